/* What 8-bit moments cost: full fine-tuning of the demo's model, 200 steps of batch 8 on all of its rows (640 are learned by heart in as
 * many steps, and then their loss says nothing) and all of their tokens, against fp32 moments. A quarter of an hour on two cores, so under
 * RH_LONG alone; needs what `make demo` fetched. */
#include "cli/runner.h"

#include "core/json.h"

#include <math.h>

enum { STEPS = 200, LAST = 50 };

/* Mean loss of the last steps of a run. */
static double loss_of(const struct scratch *scratch, const char *layout)
{
	static const char model[] = "build/demo/SmolLM2-135M-Instruct.Q4_1.gguf", rows[] = "build/demo/train-full.jsonl";
	if (!rh_file_exists(model) || !rh_file_exists(rows))
		return NAN;
	run_ok(scratch,
	       "train --model_name_or_path %s --train_file %s --output_dir %s/%s --bf16 true --state_layout %s --max_length 32 "
	       "--completion_only_loss false --allow cut-answers "
	       "--per_device_train_batch_size 8 --max_steps %d --learning_rate 2e-5 --logging_steps %d --save_strategy no",
	       model, rows, scratch->dir, layout, layout, STEPS, LAST);
	size_t length;
	char *text = read_bytes(path_of("%s/%s/metrics.jsonl", scratch->dir, layout), &length), *rest = text;
	double loss = NAN;
	for (char *line; (line = strsep(&rest, "\n"));) {
		json_t *entry;
		if (!*line)
			continue;
		check_ok(rh_json_parse(line, strlen(line), layout, &entry));
		json_t *found = json_object_get(entry, "loss");
		loss = found ? json_number_value(found) : loss;
		json_decref(entry);
	}
	free(text);
	return loss;
}

static void test_8_bit_moments_learn_as_fp32_ones_do(void **state)
{
	(void)state;
	struct scratch scratch;
	if (!getenv("RH_LONG"))
		check_skip("8-bit moments on the demo's model: a quarter of an hour, under RH_LONG=1");
	scratch_open(&scratch);
	double full = loss_of(&scratch, "split"), narrow = isnan(full) ? NAN : loss_of(&scratch, "split8");
	scratch_close(&scratch);
	if (isnan(full))
		check_skip("8-bit moments on the demo's model: build/demo is not there; run make demo");
	printf("loss of steps %d to %d: %.6f with fp32 moments, %.6f with 8 bits (%+.3f %%)\n", STEPS - LAST + 1, STEPS, full, narrow,
	       100 * (narrow / full - 1));
	assert_true(fabs(narrow / full - 1) <= 0.01);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_8_bit_moments_learn_as_fp32_ones_do)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
