/* A checkpoint's small files, joined by lines of "=NAME": verified and read. */
#include "fuzz/fuzz.h"

#include "checkpoint/checkpoint.h"
#include "config/config.h"

#include <string.h>

static void split(const char *at, const char *end)
{
	static const char *const names[] = {"checksums.json", "run_state.json", "trainer_state.json", "config.yaml",
	                                    "optimizer.safetensors"};
	for (int i = 0; i < 5; i++) {
		char line[40];
		size_t length = (size_t)snprintf(line, sizeof line, "=%s\n", names[i]);
		const char *from = memmem(at, (size_t)(end - at), line, length);
		const char *next = from ? memmem(from + length, (size_t)(end - from) - length, "\n=", 2) : NULL;
		if (from)
			fuzz_write(names[i], from + length, (size_t)((next ? next + 1 : end) - from) - length);
		else
			fuzz_write(names[i], "", 0);
	}
}

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	struct rh_config config = {0};
	struct rh_run_state state;
	struct rh_trainer_state trainer;
	split((const char *)bytes, (const char *)bytes + length);
	fuzz_refused(rh_checkpoint_verify(fuzz_dir()));
	int rc = rh_checkpoint_state(fuzz_dir(), &config, &state, &trainer);
	if (!rc)
		rh_trainer_state_free(&trainer);
	fuzz_refused(rc);
	return 0;
}

FUZZ_MAIN("checkpoint")
