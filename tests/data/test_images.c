/* Images: their formats and preparation against transformers' own (tests/reference/data_images.py), IDX, folders, faults, batches. */
#include "check.h"
#include "tensor_bytes.h"

#include "ckpt/safetensors.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "data/dataset.h"
#include "data/image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#define ROOT    "tests/reference/data/images"
#define CLASSES ROOT "/classes"
enum { SIDE = 12, PATCH = 4, TOKENS = 1 + SIDE / PATCH * (SIDE / PATCH) };

static void check_refused(int rc, const char *part)
{
	assert_int_equal(rc < 0, 1);
	if (!strstr(rh_error(rc), part))
		fail_msg("the line '%s' does not hold '%s'", rh_error(rc), part);
}

static struct rh_image_form form_of(const char *dir, int64_t channels)
{
	struct rh_image_form form = {.size = SIDE, .patch = PATCH, .channels = channels};
	check_ok(rh_image_form_load(dir, &form));
	return form;
}

static int open_set(const char *path, const struct rh_image_form *form, int64_t labels, struct rh_images **out)
{
	char *item[] = {(char *)(uintptr_t)path};
	const struct rh_list paths = {.item = item, .count = 1};
	return rh_images_open(&(struct rh_images_options){.paths = &paths, .form = form, .labels = labels, .image_bytes = 1 << 20}, out);
}

/* The pixel at channel, row and column of what is laid out by tokens. */
static float pixel_at(const float *pixel, int64_t channels, int64_t c, int64_t y, int64_t x)
{
	int64_t token = 1 + y / PATCH * (SIDE / PATCH) + x / PATCH;
	return pixel[token * channels * PATCH * PATCH + (c * PATCH + y % PATCH) * PATCH + x % PATCH];
}

/* The largest difference to transformers' pixels. */
static double worst_of(struct rh_images *images, int64_t image, const struct rh_safetensors *file, const char *name)
{
	int64_t channels = rh_images_pixels(images) / (PATCH * PATCH);
	const struct rh_safetensor *tensor = rh_safetensors_find(file, name);
	if (!tensor)
		fail_msg("no %s", name);
	const char *bytes = tensor_bytes(file, tensor);
	float *pixel = malloc((size_t)(TOKENS * channels * PATCH * PATCH) * sizeof *pixel);
	double worst = 0;
	check_ok(rh_images_read(images, image, pixel));
	for (int64_t i = 0; i < channels * PATCH * PATCH; i++)
		assert_true(pixel[i] == 0); /* the class token's */
	for (int64_t i = 0; i < channels * SIDE * SIDE; i++) {
		float expected;
		memcpy(&expected, bytes + 4 * i, sizeof expected);
		double difference =
		        fabs((double)pixel_at(pixel, channels, i / (SIDE * SIDE), i / SIDE % SIDE, i % SIDE) - (double)expected);
		worst = fmax(worst, difference);
	}
	free(pixel);
	return worst;
}

/* PNG and PNM to the bit; JPEG decoders may differ by a step of 8 bits here and there. */
static void compare(const char *config, int64_t channels, const struct rh_safetensors *file)
{
	static const char *const folders[] = {"one", "two"};
	char path[256];
	struct rh_images *images;
	snprintf(path, sizeof path, ROOT "/%s", config);
	const struct rh_image_form form = form_of(path, channels);
	int64_t image = 0;
	double worst_jpeg = 0, step = (double)fabsf(form.value[0][1] - form.value[0][0]);
	check_ok(open_set(CLASSES, &form, 2, &images));
	assert_int_equal(rh_images_count(images), 12);
	assert_int_equal(rh_images_tokens(images), TOKENS);
	for (int label = 0; label < 2; label++) {
		struct rh_names names;
		snprintf(path, sizeof path, CLASSES "/%s", folders[label]);
		check_ok(rh_dir_list(path, &names));
		for (size_t i = 0; i < names.count; i++) {
			if (strstr(names.name[i], ".txt"))
				continue;
			snprintf(path, sizeof path, "%s/%s/%s", config, folders[label], names.name[i]);
			double worst = worst_of(images, image, file, path);
			if (strstr(path, ".jp"))
				worst_jpeg = fmax(worst_jpeg, worst);
			else if (worst > 0)
				fail_msg("%s differs by %g", path, worst);
			assert_int_equal(rh_images_label(images, image++), label);
		}
		rh_names_free(&names);
	}
	printf("%s: all equal; JPEG within %.2f steps of 8 bits\n", config, worst_jpeg / step);
	assert_true(worst_jpeg <= 1.01 * step);
	rh_images_close(images);
}

static void test_images_become_transformers_pixels(void **state)
{
	(void)state;
	struct rh_safetensors *file;
	check_ok(rh_safetensors_open(ROOT "/expected.safetensors", &file));
	compare("bilinear", 3, file);
	compare("bicubic", 3, file);
	compare("plain", 3, file);
	compare("grey", 1, file);
	rh_safetensors_close(file);
}

/* ---- IDX ---- */

enum { IMAGES = 5 };

static void make_idx(const char *dir, int is_packed)
{
	uint8_t images[16 + IMAGES * SIDE * SIDE] = {0, 0, 8, 3, 0, 0, 0, IMAGES, 0, 0, 0, SIDE, 0, 0, 0, SIDE};
	uint8_t labels[8 + IMAGES] = {0, 0, 8, 1, 0, 0, 0, IMAGES, 2, 0, 1, 1, 2};
	char path[2][256];
	for (int i = 0; i < IMAGES * SIDE * SIDE; i++)
		images[16 + i] = (uint8_t)(7 * i);
	for (int p = 0; p < 2; p++)
		snprintf(path[p], sizeof path[p], "%s/x-%s-ubyte%s", dir, p ? "labels-idx1" : "images-idx3", is_packed ? ".gz" : "");
	if (!is_packed) {
		check_ok(rh_file_write_whole(path[0], images, sizeof images));
		check_ok(rh_file_write_whole(path[1], labels, sizeof labels));
		return;
	}
	gzFile out = gzopen(path[0], "wb");
	assert_int_equal(gzwrite(out, images, sizeof images), sizeof images);
	gzclose(out);
	out = gzopen(path[1], "wb");
	assert_int_equal(gzwrite(out, labels, sizeof labels), sizeof labels);
	gzclose(out);
}

static void test_idx_is_read_packed_and_plain(void **state)
{
	(void)state;
	const struct rh_image_form form = form_of(ROOT "/grey", 1);
	static const int expected[] = {2, 0, 1, 1, 2};
	for (int is_packed = 0; is_packed < 2; is_packed++) {
		char dir[96], path[256];
		struct rh_images *images;
		float pixel[TOKENS * PATCH * PATCH];
		snprintf(dir, sizeof dir, "%s/rh-images-XXXXXX", check_place("/tmp"));
		assert_non_null(mkdtemp(dir));
		make_idx(dir, is_packed);
		snprintf(path, sizeof path, "%s/x-images-idx3-ubyte%s", dir, is_packed ? ".gz" : "");
		check_refused(open_set(path, &form, 2, &images), "label 2 of image 0 is not within 0 to 1");
		check_ok(open_set(path, &form, 3, &images));
		assert_int_equal(rh_images_count(images), IMAGES);
		for (int i = IMAGES - 1; i >= 0; i--) {
			check_ok(rh_images_read(images, i, pixel));
			assert_int_equal(rh_images_label(images, i), expected[i]);
			for (int y = 0; y < SIDE; y++)
				for (int x = 0; x < SIDE; x++)
					assert_true(pixel_at(pixel, 1, 0, y, x) ==
					            form.value[0][(uint8_t)(7 * ((i * SIDE + y) * SIDE + x))]);
		}
		assert_int_equal(rh_images_bytes(images), IMAGES + (is_packed ? 16 + IMAGES * SIDE * SIDE : 0));
		rh_images_close(images);
		check_ok(rh_dir_remove(dir));
	}
}

static void replace_file(const char *path, const void *bytes, size_t length)
{
	check_ok(rh_file_write_whole(path, bytes, length));
}

static void test_faults_of_idx_are_one_line(void **state)
{
	(void)state;
	const struct rh_image_form form = form_of(ROOT "/grey", 1);
	char dir[96], path[256], labels[256], other[256];
	struct rh_images *images;
	snprintf(dir, sizeof dir, "%s/rh-images-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/x-images-idx3-ubyte", dir);
	snprintf(labels, sizeof labels, "%s/x-labels-idx1-ubyte", dir);
	snprintf(other, sizeof other, "%s/pictures", dir);
	make_idx(dir, 0);
	replace_file(labels, (const uint8_t[]){0, 0, 8, 1, 0, 0, 0, 2, 1, 1}, 10);
	check_refused(open_set(path, &form, 3, &images), "2 labels for the 5 images of");
	replace_file(labels, "text", 4);
	check_refused(open_set(path, &form, 3, &images), "no IDX file of bytes with 1 sizes");
	check_ok(rh_file_remove(labels));
	check_refused(open_set(path, &form, 3, &images), "x-labels-idx1-ubyte");
	check_ok(rh_path_move(path, other));
	check_refused(open_set(other, &form, 3, &images), "the name has no 'images'");
	replace_file(path, (const uint8_t[]){0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 9, 1}, 17);
	check_refused(open_set(path, &form, 3, &images), "the IDX header says 162 bytes, but the file has 1");
	replace_file(path, "{\"text\": \"a\"}\n", 14);
	check_refused(open_set(path, &form, 3, &images), "no IDX file of bytes with 3 sizes");
	check_ok(rh_dir_remove(dir));
}

/* ---- folders ---- */

static void test_faults_of_folders_are_one_line(void **state)
{
	(void)state;
	const struct rh_image_form form = form_of(ROOT "/bilinear", 3);
	struct rh_images *images;
	check_refused(open_set(CLASSES, &form, 3, &images), "2 class folders, but the model has 3 labels; set num_labels: 2");
	check_refused(open_set(CLASSES "/one", &form, 2, &images), "the directory has no folders");
	struct rh_image_form other = form;
	other.is_resized = 0;
	float pixel[TOKENS * 3 * PATCH * PATCH];
	check_ok(open_set(CLASSES, &other, 2, &images));
	check_refused(rh_images_read(images, 0, pixel), "image 0 has 14 x 15 pixels, and do_resize is false");
	rh_images_close(images);
	check_refused(rh_image_form_load(ROOT "/grey", &(struct rh_image_form){.size = 16, .patch = 4, .channels = 1}),
	              "images become 12 x 12 pixels, but the model reads 16 x 16");
	check_refused(rh_image_form_load(ROOT "/bilinear", &(struct rh_image_form){.size = 12, .patch = 4, .channels = 1}),
	              "'image_mean' has 3 numbers, but the model reads 1 channels");
}

static void test_damaged_images_are_one_line(void **state)
{
	(void)state;
	static const char *const files[] = {"one/rgb.png", "two/colour.jpg", "two/progressive.jpg", "two/small.ppm"};
	for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
		char path[256];
		struct rh_bytes whole;
		struct data_image image = {0};
		snprintf(path, sizeof path, CLASSES "/%s", files[f]);
		check_ok(rh_file_load(path, &whole));
		check_ok(data_image_decode(path, whole.bytes, whole.length, 1 << 20, &image));
		check_refused(data_image_decode(path, whole.bytes, whole.length, 64, &image), "MiB once decoded");
		for (size_t length = 0; length < whole.length - 12; length += 1 + whole.length / 40)
			check_refused(data_image_decode(path, whole.bytes, length, 1 << 20, &image), path);
		rh_free(image.bytes);
		rh_bytes_free(&whole);
	}
}

/* ---- batches ---- */

static void test_batches_of_images_hold_their_pixels(void **state)
{
	(void)state;
	struct rh_image_form form = form_of(ROOT "/bilinear", 3);
	char *item[] = {(char *)(uintptr_t)CLASSES};
	const struct rh_config config = {.train_file = {.item = item, .count = 1}, .max_length = 1};
	const struct rh_objective objective = {.task = RH_TASK_IMAGE_CLASSIFICATION, .labels = 2, .image = &form};
	struct rh_dataset set, held_out;
	struct rh_batch batch = {0};
	struct rh_batch_limits limits;
	enum { EACH = TOKENS * 3 * PATCH * PATCH };
	check_ok(rh_dataset_load_for(RH_DATASET_TRAIN, &config, &objective, NULL, &set));
	check_ok(rh_dataset_split(&set, 0.25, 5, &held_out));
	assert_int_equal(set.rows, 9);
	assert_int_equal(held_out.rows, 3);
	assert_int_equal(rh_dataset_tokens(&set), 9 * TOKENS);
	check_ok(rh_dataset_limits(&set, 4, &limits));
	assert_true(limits.tokens == 4 * TOKENS && limits.documents == 4 && limits.trained == 4 && limits.longest == TOKENS &&
	            limits.pixels == 3 * PATCH * PATCH);
	for (int part = 0; part < 2; part++) {
		const struct rh_dataset *of = part ? &held_out : &set;
		check_ok(rh_batch_make(of, (const int64_t[]){2, 0}, 2, &batch));
		assert_true(batch.tokens == 2 * TOKENS && batch.documents == 2 && batch.trained == 2);
		assert_true(batch.ids[0] == 0 && batch.ids[1] == 1 && batch.ids[TOKENS] == 0 && batch.position[TOKENS - 1] == TOKENS - 1);
		assert_true(batch.head_row[0] == 0 && batch.head_row[1] == TOKENS);
		assert_true(batch.sample[0] == 2 && batch.sample[1] == 0);
		for (int i = 0; i < 2; i++) {
			float pixel[EACH];
			int32_t image = of->ids[of->document_start[i ? 0 : 2]];
			check_ok(rh_images_read(of->images, image, pixel));
			assert_memory_equal(pixel, batch.pixel + i * EACH, sizeof pixel);
			assert_int_equal(batch.target[i], rh_images_label(of->images, image));
		}
	}
	struct rh_config packed = config;
	packed.packing = 1;
	struct rh_dataset none;
	check_refused(rh_dataset_load_for(RH_DATASET_TRAIN, &packed, &objective, NULL, &none), "packing: has no meaning for images");
	rh_batch_free(&batch);
	rh_dataset_free(&set);
	rh_dataset_free(&held_out);

	struct rh_config fewer = config;
	fewer.max_samples = 2; /* of each folder */
	check_ok(rh_dataset_load_for(RH_DATASET_TRAIN, &fewer, &objective, NULL, &set));
	assert_true(set.rows == 4 && rh_images_label(set.images, 1) == 0 && rh_images_label(set.images, 2) == 1);
	rh_dataset_free(&set);
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_images_become_transformers_pixels), cmocka_unit_test(test_idx_is_read_packed_and_plain),
	        cmocka_unit_test(test_faults_of_idx_are_one_line),        cmocka_unit_test(test_faults_of_folders_are_one_line),
	        cmocka_unit_test(test_damaged_images_are_one_line),       cmocka_unit_test(test_batches_of_images_hold_their_pixels),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
