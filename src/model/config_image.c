/* The words of config.json about images. */
#include "model/config_internal.h"

enum { MOST_SIDE = 1 << 14, MOST_CHANNELS = 64 };

int64_t rh_model_patch(const struct rh_model_config *config)
{
	return config->num_channels * config->patch_size * config->patch_size;
}

int config_parse_images(const json_t *json, const char *where, struct rh_model_config *out)
{
	const struct {
		const char *key;
		int64_t *value, silent, most;
	} sizes[] = {
	        {"image_size", &out->image_size, out->family->silent.image_size, MOST_SIDE},
	        {"patch_size", &out->patch_size, out->family->silent.patch_size, MOST_SIDE},
	        {"num_channels", &out->num_channels, out->family->silent.num_channels, MOST_CHANNELS},
	};
	if (!out->family->silent.image_size)
		return 0;
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		*sizes[i].value = sizes[i].silent;
		int rc = rh_json_int(json, sizes[i].key, where, RH_JSON_OPTIONAL, sizes[i].value);
		if (!rc && (*sizes[i].value < 1 || *sizes[i].value > sizes[i].most))
			rc = rh_fail(-EINVAL, "%s: %s is %lld; it must be 1 to %lld", where, sizes[i].key, (long long)*sizes[i].value,
			             (long long)sizes[i].most);
		if (rc)
			return rc;
	}
	int64_t across = out->image_size / out->patch_size;
	if (across * out->patch_size != out->image_size)
		return rh_fail(-EINVAL, "%s: image_size %lld is no multiple of patch_size %lld", where, (long long)out->image_size,
		               (long long)out->patch_size);
	out->max_position_embeddings = across * across + 1;
	return 0;
}
