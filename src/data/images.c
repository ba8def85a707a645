/* A set of images: paths in, labels and pixels out. */
#include "data/images.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "data/image.h"
#include "data/stream.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* One source of images: a folder of files that share a label, or an IDX file of images with an IDX file of labels. */
struct part {
	char *path;
	int64_t first, count; /* of the set's images */
	struct rh_names names;
	int32_t label;
	/* IDX: grey images; `bytes` holds them all where the file is compressed, else they are read from `file` */
	uint8_t *bytes, *labels;
	struct rh_file_in *file;
	int64_t width, height, held_bytes;
};

struct rh_images {
	struct rh_image_form form;
	int64_t count, image_bytes, most_images;
	int owners;
	struct part *part;
	size_t parts, capacity;
	/* of the image that is read */
	struct rh_bytes whole;
	struct data_image decoded, half, resized;
};

static struct part *part_of(const struct rh_images *images, int64_t image)
{
	size_t low = 0, high = images->parts;
	RH_ASSERT(image >= 0 && image < images->count);
	while (high - low > 1) {
		size_t middle = (low + high) / 2;
		*(images->part[middle].first <= image ? &low : &high) = middle;
	}
	return &images->part[low];
}

/* A part with nothing in it but its path and place. */
static int add_part(struct rh_images *images, const char *path, struct part **out)
{
	int rc = rh_grow(&images->part, &images->capacity, images->parts + 1, sizeof *images->part);
	if (rc)
		return rc;
	images->part[images->parts] = (struct part){.path = rh_strdup(path), .first = images->count};
	*out = &images->part[images->parts++];
	return (*out)->path ? 0 : -ENOMEM;
}

/* Counts the part's images: only the first most_images of them. */
static void count_part(struct rh_images *images, struct part *part)
{
	if (images->most_images && part->count > images->most_images)
		part->count = images->most_images;
	images->count += part->count;
}

/* ---- IDX ---- */

/* A whole file, decompressed where it is compressed, of at most RH_FILE_LOAD_MOST. */
static int load_stream(const char *path, uint8_t **out, size_t *length)
{
	struct data_stream *stream;
	size_t capacity = 0, got = 1;
	*out = NULL;
	*length = 0;
	int rc = data_stream_open(path, &stream);
	if (rc)
		return rc;
	while (!rc && got) {
		if ((int64_t)*length > RH_FILE_LOAD_MOST)
			rc = rh_fail(-EFBIG, "%s: more than %lld bytes; decompress the file", path, (long long)RH_FILE_LOAD_MOST);
		if (!rc)
			rc = rh_grow(out, &capacity, *length + DATA_PIECE, 1);
		if (!rc)
			rc = data_stream_read(stream, *out + *length, DATA_PIECE, &got);
		*length += rc ? 0 : got;
	}
	data_stream_close(stream);
	if (rc) {
		rh_free(*out);
		*out = NULL;
	}
	return rc;
}

static int64_t big_endian(const uint8_t *bytes)
{
	return (int64_t)bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
}

enum { IDX_IMAGES = 16, IDX_LABELS = 8 }; /* bytes of a header with three sizes, with one */

/* Two zeros, 8 for bytes, the number of sizes, and these. */
static int check_idx(const char *path, const uint8_t *header, size_t length, int sizes, int64_t bytes)
{
	size_t need = (size_t)(4 + 4 * sizes);
	if (length < need || header[0] || header[1] || header[2] != 8 || header[3] != sizes)
		return rh_fail(-EINVAL,
		               "%s: no IDX file of bytes with %d sizes; images are a directory with a folder for each class, or "
		               "such a file (train-images-idx3-ubyte)",
		               path, sizes);
	int64_t all = big_endian(header + 4), most = ((int64_t)1 << 40) / (all + 1);
	for (int i = 1; i < sizes; i++) {
		int64_t size = big_endian(header + 4 + 4 * i);
		if (size < 1 || size > most)
			return rh_fail(-EINVAL, "%s: the IDX header says images of %lld rows or columns", path, (long long)size);
		all *= size;
		most /= size;
	}
	if (all == bytes - (int64_t)need && all)
		return 0;
	return rh_fail(-EINVAL, "%s: the IDX header says %lld bytes, but the file has %lld; fetch it again", path, (long long)all,
	               (long long)(bytes - (int64_t)need));
}

/* "train-labels-idx1-ubyte.gz" for "train-images-idx3-ubyte.gz". */
static int labels_path(const char *path, char **out)
{
	const char *name = strrchr(path, '/');
	*out = rh_strdup(path);
	if (!*out)
		return -ENOMEM;
	char *at = *out + (name ? name + 1 - path : 0), *word = strstr(at, "images"), *kind = strstr(at, "idx3");
	if (!word)
		return rh_fail(-EINVAL, "%s: the name has no 'images', in place of which the file of labels has 'labels'; rename both",
		               path);
	memcpy(word, "labels", 6);
	if (kind)
		memcpy(kind, "idx1", 4);
	return 0;
}

static int load_labels(struct part *part, int64_t labels)
{
	char *path = NULL;
	uint8_t *bytes = NULL;
	size_t length = 0;
	int rc = labels_path(part->path, &path);
	if (!rc)
		rc = load_stream(path, &bytes, &length);
	if (!rc)
		rc = check_idx(path, bytes, length, 1, (int64_t)length);
	if (!rc && big_endian(bytes + 4) != part->count)
		rc = rh_fail(-EINVAL, "%s: %lld labels for the %lld images of %s", path, (long long)big_endian(bytes + 4),
		             (long long)part->count, part->path);
	for (int64_t i = 0; !rc && i < part->count; i++)
		if (bytes[IDX_LABELS + i] >= labels)
			rc = rh_fail(-EINVAL, "%s: label %d of image %lld is not within 0 to %lld; num_labels says how many there are",
			             path, bytes[IDX_LABELS + i], (long long)i, (long long)labels - 1);
	part->labels = bytes;
	rh_free(path);
	return rc;
}

static int open_idx(struct rh_images *images, const char *path, int64_t labels)
{
	struct part *part;
	uint8_t header[IDX_IMAGES] = {0};
	size_t length = 0;
	int rc = add_part(images, path, &part);
	if (!rc)
		rc = rh_file_open(path, &part->file);
	if (rc)
		return rc;
	int64_t bytes = rh_file_length(part->file);
	rc = rh_file_read(part->file, 0, header, bytes < IDX_IMAGES ? (size_t)bytes : sizeof header);
	if (!rc && header[0]) { /* no IDX, or a compressed one */
		rc = load_stream(path, &part->bytes, &length);
		rh_file_close(part->file);
		part->file = NULL;
		bytes = (int64_t)length;
		if (!rc)
			memcpy(header, part->bytes, length < sizeof header ? length : sizeof header);
	}
	if (!rc)
		rc = check_idx(path, header, bytes < IDX_IMAGES ? (size_t)bytes : sizeof header, 3, bytes);
	if (rc)
		return rc;
	part->count = big_endian(header + 4);
	part->height = big_endian(header + 8);
	part->width = big_endian(header + 12);
	part->held_bytes = (int64_t)length + part->count;
	rc = load_labels(part, labels);
	count_part(images, part);
	return rc;
}

/* ---- folders ---- */

static int is_image_name(const char *name)
{
	static const char *const ends[] = {".png", ".jpg", ".jpeg", ".ppm", ".pgm"};
	const char *end = strrchr(name, '.');
	for (size_t i = 0; end && *name != '.' && i < sizeof ends / sizeof *ends; i++)
		if (!strcasecmp(end, ends[i]))
			return 1;
	return 0;
}

/* Only names of images stay, in their order; returns how many went. */
static int64_t keep_images(struct rh_names *names)
{
	size_t kept = 0, count = names->count;
	for (size_t i = 0; i < count; i++)
		if (is_image_name(names->name[i]))
			names->name[kept++] = names->name[i];
		else
			rh_free(names->name[i]);
	names->count = kept;
	return (int64_t)(count - kept);
}

static int64_t number_of(const char *name)
{
	char *end;
	int64_t value = strtoll(name, &end, 10);
	return *name >= '0' && *name <= '9' && !*end ? value : -1;
}

/* How a directory's folders are numbered: by label2id where it has them all, by their own numbers, or by their order. */
enum numbering { BY_NAME, BY_NUMBER, BY_ORDER };

static enum numbering numbering_of(const struct rh_names *folders, const json_t *label_ids, int64_t labels)
{
	int named = 1, numbered = 1;
	for (size_t i = 0; i < folders->count; i++) {
		int64_t number = number_of(folders->name[i]);
		named &= json_is_integer(json_object_get(label_ids, folders->name[i]));
		numbered &= number >= 0 && number < labels;
	}
	return named ? BY_NAME : numbered ? BY_NUMBER : BY_ORDER;
}

/* Folders, those that are hidden apart. */
static int list_folders(const char *path, struct rh_names *out)
{
	size_t kept = 0;
	int rc = rh_dir_list(path, out);
	for (size_t i = 0; !rc && i < out->count; i++) {
		char *inside = rh_path_join(path, out->name[i]);
		int is = inside && *out->name[i] != '.' && rh_dir_exists(inside);
		rc = inside ? 0 : -ENOMEM;
		rh_free(inside);
		if (is) {
			char *name = out->name[i];
			out->name[i] = out->name[kept];
			out->name[kept++] = name;
		}
	}
	for (size_t i = kept; i < out->count; i++)
		rh_free(out->name[i]);
	out->count = kept;
	return rc;
}

static int open_folder(struct rh_images *images, const char *dir, const char *name, int64_t label, int64_t labels)
{
	struct part *part;
	char *path = rh_path_join(dir, name);
	int rc = path ? add_part(images, path, &part) : -ENOMEM;
	rh_free(path);
	if (!rc && (label < 0 || label >= labels))
		rc = rh_fail(-EINVAL, "%s: label %lld is not within 0 to %lld; num_labels says how many there are", part->path,
		             (long long)label, (long long)labels - 1);
	if (!rc)
		rc = rh_dir_list(part->path, &part->names);
	if (rc)
		return rc;
	int64_t others = keep_images(&part->names);
	if (others)
		rh_note("%s: %lld files that are no images by their names are left out", part->path, (long long)others);
	part->label = (int32_t)label;
	part->count = (int64_t)part->names.count;
	count_part(images, part);
	if (!part->count) /* the next part begins at the same image */
		rc = rh_fail(-EINVAL, "%s: the folder holds no images (.png, .jpg, .jpeg, .ppm, .pgm)", part->path);
	return rc;
}

static int open_folders(struct rh_images *images, const char *path, const struct rh_images_options *options)
{
	struct rh_names folders = {0};
	int rc = list_folders(path, &folders);
	if (!rc && !folders.count)
		rc = rh_fail(-EINVAL, "%s: the directory has no folders; images lie in one for each class, or in an IDX file that is named",
		             path);
	enum numbering numbering = rc ? BY_NAME : numbering_of(&folders, options->label_ids, options->labels);
	if (!rc && numbering == BY_ORDER && (int64_t)folders.count != options->labels)
		rc = rh_fail(-EINVAL,
		             "%s: %zu class folders, but the model has %lld labels; set num_labels: %zu, or name all folders in "
		             "label2id of its config.json",
		             path, folders.count, (long long)options->labels, folders.count);
	for (size_t i = 0; !rc && i < folders.count; i++) {
		const char *name = folders.name[i];
		int64_t label = numbering == BY_NAME     ? json_integer_value(json_object_get(options->label_ids, name))
		                : numbering == BY_NUMBER ? number_of(name)
		                                         : (int64_t)i;
		rc = open_folder(images, path, name, label, options->labels);
	}
	if (!rc && numbering == BY_ORDER)
		rh_note("%s: labels are the folders in alphabetical order: %s is 0, %s is %zu", path, folders.name[0],
		        folders.name[folders.count - 1], folders.count - 1);
	rh_names_free(&folders);
	return rc;
}

/* ---- the set ---- */

int rh_images_open(const struct rh_images_options *options, struct rh_images **out)
{
	struct rh_images *images = rh_alloc(1, sizeof *images);
	int rc = images ? 0 : -ENOMEM;
	if (!rc)
		*images = (struct rh_images){
		        .form = *options->form, .image_bytes = options->image_bytes, .most_images = options->most_images, .owners = 1};
	for (size_t i = 0; !rc && i < options->paths->count; i++) {
		const char *path = options->paths->item[i];
		rc = rh_dir_exists(path) ? open_folders(images, path, options) : open_idx(images, path, options->labels);
	}
	if (!rc && images->count > INT32_MAX)
		rc = rh_fail(-EINVAL, "%s: more than 2^31 images; name fewer", options->paths->item[0]);
	if (rc)
		rh_images_close(images);
	else
		*out = images;
	return rc;
}

struct rh_images *rh_images_share(struct rh_images *images)
{
	if (images)
		images->owners++;
	return images;
}

void rh_images_close(struct rh_images *images)
{
	if (!images || --images->owners > 0)
		return;
	for (size_t i = 0; i < images->parts; i++) {
		struct part *part = &images->part[i];
		rh_names_free(&part->names);
		rh_file_close(part->file);
		rh_free(part->bytes);
		rh_free(part->labels);
		rh_free(part->path);
	}
	rh_free(images->part);
	rh_bytes_free(&images->whole);
	rh_free(images->decoded.bytes);
	rh_free(images->half.bytes);
	rh_free(images->resized.bytes);
	rh_free(images);
}

int64_t rh_images_count(const struct rh_images *images)
{
	return images->count;
}

int32_t rh_images_label(const struct rh_images *images, int64_t image)
{
	const struct part *part = part_of(images, image);
	return part->labels ? part->labels[IDX_LABELS + image - part->first] : part->label;
}

int64_t rh_images_tokens(const struct rh_images *images)
{
	int64_t across = images->form.size / images->form.patch;
	return 1 + across * across;
}

int64_t rh_images_pixels(const struct rh_images *images)
{
	return images->form.channels * images->form.patch * images->form.patch;
}

int64_t rh_images_bytes(const struct rh_images *images)
{
	int64_t bytes = 0;
	for (size_t i = 0; i < images->parts; i++) {
		const struct part *part = &images->part[i];
		bytes += part->held_bytes;
		for (size_t n = 0; n < part->names.count; n++)
			bytes += (int64_t)(strlen(part->names.name[n]) + 1 + sizeof *part->names.name);
	}
	return bytes;
}

/* The image as it is stored, into images->decoded. */
static int fetch(struct rh_images *images, const struct part *part, int64_t number)
{
	struct data_image *image = &images->decoded;
	if (part->names.count) {
		char *path = rh_path_join(part->path, part->names.name[number]);
		int rc = path ? rh_file_load(path, &images->whole) : -ENOMEM;
		if (!rc)
			rc = data_image_decode(path, images->whole.bytes, images->whole.length, images->image_bytes, image);
		rh_bytes_free(&images->whole);
		rh_free(path);
		return rc;
	}
	int rc = data_image_shape(part->path, part->width, part->height, 1, images->image_bytes, image);
	int64_t bytes = part->width * part->height, at = IDX_IMAGES + number * bytes;
	if (rc || part->file)
		return rc ? rc : rh_file_read(part->file, at, image->bytes, (size_t)bytes);
	memcpy(image->bytes, part->bytes + at, (size_t)bytes);
	return 0;
}

static void lay_out(const struct rh_image_form *form, const struct data_image *image, float *pixel)
{
	int64_t side = form->patch, across = form->size / side, each = form->channels * side * side;
	memset(pixel, 0, (size_t)each * sizeof *pixel);
	for (int64_t patch = 0; patch < across * across; patch++) {
		float *to = pixel + (1 + patch) * each;
		const uint8_t *from = image->bytes + (patch / across * side * form->size + patch % across * side) * form->channels;
		for (int64_t c = 0; c < form->channels; c++)
			for (int64_t y = 0; y < side; y++)
				for (int64_t x = 0; x < side; x++)
					*to++ = form->value[c][from[(y * form->size + x) * form->channels + c]];
	}
}

int rh_images_read(struct rh_images *images, int64_t image, float *pixel)
{
	const struct rh_image_form *form = &images->form;
	const struct part *part = part_of(images, image);
	struct data_image *decoded = &images->decoded;
	int rc = fetch(images, part, image - part->first);
	if (rc)
		return rc;
	rc = data_image_convert(decoded, form->channels);
	if (rc)
		return rc;
	int fits = decoded->width == form->size && decoded->height == form->size;
	if (!fits && !form->is_resized)
		return rh_fail(-EINVAL, "%s: image %lld has %lld x %lld pixels, and do_resize is false", part->path,
		               (long long)(image - part->first), (long long)decoded->width, (long long)decoded->height);
	if (!fits)
		rc = data_image_resize(decoded, form->size, form->size, form->resample, &images->half, &images->resized);
	if (!rc)
		lay_out(form, fits ? decoded : &images->resized, pixel);
	return rc;
}
