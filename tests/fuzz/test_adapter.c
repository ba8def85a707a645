/* adapter_config.json: read, matched with names, written, read again. */
#include "fuzz/fuzz.h"

#include "ckpt/peft.h"

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj", "lm_head"};
	struct rh_peft_config config = {0};
	fuzz_write("adapter_config.json", bytes, length);
	int rc = rh_peft_config_load(fuzz_dir(), &config);
	for (int i = 0; !rc && i < 3; i++) {
		int64_t r;
		double alpha;
		fuzz_refused(rh_peft_matches(&config, modules[i]));
		fuzz_refused(rh_peft_module(&config, modules[i], &r, &alpha));
	}
	if (!rc) {
		int back = rh_peft_config_save(&config, fuzz_dir());
		rh_peft_config_free(&config);
		if (!back && !(back = rh_peft_config_load(fuzz_dir(), &config)))
			rh_peft_config_free(&config);
		fuzz_refused(back);
	}
	fuzz_refused(rc);
	return 0;
}

FUZZ_MAIN("adapter")
