/* A model's config.json: read, written, read again. */
#include "fuzz/fuzz.h"

#include "core/json.h"
#include "model/config.h"

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	json_t *json = NULL, *written = NULL;
	struct rh_model_config config = {0}, again = {0};
	int rc = rh_json_parse((const char *)bytes, length, "config.json", &json);
	if (!rc)
		rc = rh_model_config_parse(json, "config.json", &config);
	json_decref(json);
	if (!rc) {
		int back = rh_model_config_write(&config, "float32", &written);
		if (!back)
			back = rh_model_config_parse(written, "written", &again);
		if (!back)
			rh_model_config_free(&again);
		fuzz_refused(back);
		json_decref(written);
		rh_model_config_free(&config);
	}
	fuzz_refused(rc);
	return 0;
}

FUZZ_MAIN("config_json")
