/* Reads preprocessor_config.json: the form in which a model takes an image. */
#include "data/images.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"

#include <math.h>
#include <string.h>

/* As ViTImageProcessor has them where its file is silent. */
struct words {
	int resizes, rescales, normalises, crops;
	int64_t resample, height, width;
	double factor, mean[RH_IMAGE_CHANNELS], deviation[RH_IMAGE_CHANNELS];
};

/* One number for all channels, or one for each. */
static int parse_channels(const json_t *json, const char *key, const char *where, int64_t channels, double *out)
{
	const json_t *list = json_object_get(json, key);
	if (!list || json_is_null(list))
		return 0;
	int64_t count = json_is_array(list) ? (int64_t)json_array_size(list) : 1;
	if (count != 1 && count != channels)
		return rh_fail(-EINVAL, "%s: '%s' has %lld numbers, but the model reads %lld channels", where, key, (long long)count,
		               (long long)channels);
	for (int64_t c = 0; c < channels; c++) {
		const json_t *value = json_is_array(list) ? json_array_get(list, (size_t)(count == 1 ? 0 : c)) : list;
		if (!json_is_number(value))
			return rh_fail(-EINVAL, "%s: '%s' must be a number for each channel", where, key);
		out[c] = json_number_value(value);
	}
	return 0;
}

/* {"height": H, "width": W}, or one number. */
static int parse_size(const json_t *json, const char *where, struct words *out)
{
	const json_t *size = json_object_get(json, "size");
	if (json_is_integer(size)) {
		out->height = out->width = json_integer_value(size);
		return 0;
	}
	if (!size || json_is_null(size))
		return 0;
	if (!json_is_object(size) || !json_object_get(size, "height") || !json_object_get(size, "width"))
		return rh_fail(-EINVAL, "%s: 'size' must be a number, or have 'height' and 'width'", where);
	int rc = rh_json_int(size, "height", where, RH_JSON_REQUIRED, &out->height);
	return rc ? rc : rh_json_int(size, "width", where, RH_JSON_REQUIRED, &out->width);
}

static int parse(const json_t *json, const char *where, int64_t channels, struct words *out)
{
	int rc = rh_json_bool(json, "do_resize", where, RH_JSON_OPTIONAL, &out->resizes);
	if (rc)
		return rc;
	rc = rh_json_bool(json, "do_rescale", where, RH_JSON_OPTIONAL, &out->rescales);
	if (rc)
		return rc;
	rc = rh_json_bool(json, "do_normalize", where, RH_JSON_OPTIONAL, &out->normalises);
	if (rc)
		return rc;
	rc = rh_json_bool(json, "do_center_crop", where, RH_JSON_OPTIONAL, &out->crops);
	if (rc)
		return rc;
	rc = rh_json_int(json, "resample", where, RH_JSON_OPTIONAL, &out->resample);
	if (rc)
		return rc;
	rc = rh_json_real(json, "rescale_factor", where, RH_JSON_OPTIONAL, &out->factor);
	if (rc)
		return rc;
	rc = parse_size(json, where, out);
	if (rc)
		return rc;
	rc = parse_channels(json, "image_mean", where, channels, out->mean);
	return rc ? rc : parse_channels(json, "image_std", where, channels, out->deviation);
}

static int check(const struct words *words, const struct rh_image_form *form, const char *where)
{
	if (words->crops)
		return rh_fail(-EINVAL, "%s: do_center_crop is not supported; set it to false, and 'size' to the model's image_size",
		               where);
	if (words->resizes && (words->height != form->size || words->width != form->size))
		return rh_fail(-EINVAL, "%s: images become %lld x %lld pixels, but the model reads %lld x %lld (image_size)", where,
		               (long long)words->width, (long long)words->height, (long long)form->size, (long long)form->size);
	if (words->resizes && words->resample != RH_RESAMPLE_BILINEAR && words->resample != RH_RESAMPLE_BICUBIC)
		return rh_fail(-EINVAL, "%s: resample %lld is not supported (2, bilinear, and 3, bicubic, are)", where,
		               (long long)words->resample);
	for (int64_t c = 0; c < form->channels; c++)
		if (words->normalises && !(isfinite(words->mean[c]) && isfinite(words->deviation[c]) && words->deviation[c] > 0))
			return rh_fail(-EINVAL, "%s: image_mean %g and image_std %g make no sense", where, words->mean[c],
			               words->deviation[c]);
	return isfinite(words->factor) ? 0 : rh_fail(-EINVAL, "%s: rescale_factor %g makes no sense", where, words->factor);
}

/* In the order and with the roundings of transformers' numpy code: a product of doubles, then floats. */
static void fill_values(const struct words *words, struct rh_image_form *form)
{
	form->is_resized = words->resizes;
	form->resample = (enum rh_resample)words->resample;
	for (int64_t c = 0; c < form->channels; c++)
		for (int v = 0; v < 256; v++) {
			float value = words->rescales ? (float)(v * words->factor) : (float)v;
			if (words->normalises)
				value = (value - (float)words->mean[c]) / (float)words->deviation[c];
			form->value[c][v] = value;
		}
}

int rh_image_form_load(const char *dir, struct rh_image_form *form)
{
	struct words words = {.resizes = 1, .rescales = 1, .normalises = 1, .resample = RH_RESAMPLE_BILINEAR, .factor = 1 / 255.0};
	json_t *json = NULL;
	if (form->channels != 1 && form->channels != RH_IMAGE_CHANNELS)
		return rh_fail(-EINVAL, "%s: images of %lld channels are not read (1, grey, and 3, RGB, are)", dir,
		               (long long)form->channels);
	for (int c = 0; c < RH_IMAGE_CHANNELS; c++)
		words.mean[c] = words.deviation[c] = 0.5;
	words.height = words.width = form->size;
	char *path = rh_path_join(dir, "preprocessor_config.json");
	int rc = path ? 0 : -ENOMEM, is_there = path && rh_file_exists(path);
	if (!rc && is_there)
		rc = rh_json_load(path, &json);
	if (!rc && is_there)
		rc = parse(json, path, form->channels, &words);
	if (!rc && !is_there)
		rh_note("%s: no preprocessor_config.json: images are resized to %lld x %lld pixels and mapped to -1 to 1", dir,
		        (long long)form->size, (long long)form->size);
	if (!rc)
		rc = check(&words, form, path);
	if (!rc)
		fill_values(&words, form);
	json_decref(json);
	rh_free(path);
	return rc;
}
