/* A hardware profile: read, printed, read again. */
#include "fuzz/fuzz.h"

#include "config/hardware.h"
#include "core/text.h"

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	struct rh_hardware hardware = {0}, again = {0};
	int rc = rh_hardware_parse((const char *)bytes, length, "profile", &hardware);
	if (!rc) {
		struct rh_text text = {0};
		if (!rh_hardware_print(&hardware, &text)) {
			int back = rh_hardware_parse(text.bytes, text.length, "printed", &again);
			if (!back)
				rh_hardware_free(&again);
			fuzz_refused(back);
		}
		rh_text_free(&text);
		rh_hardware_free(&hardware);
	}
	fuzz_refused(rc);
	return 0;
}

FUZZ_MAIN("hardware")
