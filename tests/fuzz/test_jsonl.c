/* Rows of a data file in any form, through a small tokenizer and a chat template. */
#include "fuzz/fuzz.h"

#include "config/config.h"
#include "data/dataset.h"
#include "token/tokenizer.h"

static struct rh_tokenizer *tokenizer;
static struct rh_config config;

static const char *device(void)
{
	return "cpu:1";
}

static void prepare(void)
{
	if (tokenizer)
		return;
	char *argv[] = {"--model_name_or_path", "tests/reference/models/qwen2",
	                "--train_file",         "tests/corpus/config-odd.yaml",
	                "--output_dir",         "fuzz-out",
	                "--chat_template",      "chatml",
	                "--max_length",         "64",
	                "--use_peft",           "true"};
	if (rh_tokenizer_load("tests/reference/interchange", &tokenizer) || rh_config_load("train", 12, argv, device, &config)) {
		fprintf(stderr, "%s\n", rh_error(-EINVAL));
		abort();
	}
}

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	struct rh_dataset set = {0};
	prepare();
	if (!length)
		return 0;
	config.packing = *bytes & 1;
	config.packing_strategy = *bytes & 4 ? RH_PACKING_WRAPPED : *bytes & 2 ? RH_PACKING_BFD_SPLIT : RH_PACKING_BFD;
	char *file = (char *)(uintptr_t)fuzz_file(bytes + 1, length - 1);
	struct rh_config whole = config;
	whole.train_file = (struct rh_list){&file, 1, 1};
	int rc = rh_dataset_load(RH_DATASET_TRAIN, &whole, tokenizer, &set);
	if (!rc)
		rh_dataset_free(&set);
	fuzz_refused(rc);
	return 0;
}

FUZZ_MAIN("jsonl")
