/* A run's CONFIG.yaml: read, and printed if it is good. */
#include "fuzz/fuzz.h"

#include "config/config.h"
#include "core/text.h"

static const char *device(void)
{
	return "cpu:1";
}

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	struct rh_config config = {0};
	char path[256];
	snprintf(path, sizeof path, "%s", fuzz_write("run.yaml", bytes, length));
	char *argv[] = {path};
	int rc = rh_config_load("train", 1, argv, device, &config);
	if (!rc) {
		struct rh_text text = {0};
		if (rh_config_print(&config, &text))
			abort();
		rh_text_free(&text);
	}
	fuzz_refused(rc);
	rh_config_free(&config);
	return 0;
}

FUZZ_MAIN("yaml")
