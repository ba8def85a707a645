/* What boxes tell each other, and the adapter that box 1 puts together, are in the plan: each box's process takes no more than planned. */
#include "cli/boxes.h"

/* Two boxes, with rows of so many words. */
static void check_peaks(const char *keys, int words, const char *options)
{
	struct scratch scratch;
	struct ran ran[2];
	struct box_wire wire = free_wire();
	make_files(&scratch);
	edit_file(path_of("%s/hf/config.json", scratch.dir), "\"max_position_embeddings\": 128", "\"max_position_embeddings\": 1024");
	char *rows = calloc(64, 8 * (size_t)words + 64), *at = rows;
	for (int r = 0; r < 64; r++) {
		at += sprintf(at, "{\"text\": \"");
		for (int w = 0; w < words; w++)
			at += sprintf(at, "%c%c ", 'a' + (r + w) % 26, 'a' + (r * 7 + w * 3) % 26);
		at += sprintf(at, "\"}\n");
	}
	write_text(path_of("%s/rows.jsonl", scratch.dir), rows);
	free(rows);
	for (int k = 1; k <= 2; k++) {
		write_config(&scratch, keys, 2, k, &wire);
		edit_file(path_of("%s/run%d.yaml", scratch.dir, k),
		          "max_length: 64\nmax_steps: 6\nper_device_train_batch_size: 1\n"
		          "gradient_accumulation_steps: 4\n",
		          "");
		run_start(&scratch, path_of("train %s/run%d.yaml --json %s", scratch.dir, k, options), 0, &ran[k - 1]);
	}
	for (int k = 0; k < 2; k++) {
		run_wait(&ran[k]);
		if (ran[k].status)
			fail_msg("box %d: %s", k + 1, ran[k].err);
		json_t *json = json_loads(ran[k].out, 0, NULL);
		assert_non_null(json);
		check_peak(json, k);
		json_decref(json);
		run_free(&ran[k]);
	}
	scratch_close(&scratch);
}

/* An adapter of three megabytes a layer, most of it in box 2. */
static void test_collected_adapter_is_planned(void **state)
{
	(void)state;
	check_peaks("save_strategy: \"no\"\ndevice: cpu:1\nlora_r: 2048\nlora_target_modules: all-linear\nbox_cuts: [1]\n", 8,
	            "--max_steps 2 --max_length 64 --per_device_train_batch_size 1");
}

/* Eight steps of a stretch, whose data waits in box 2. */
static void test_messages_are_planned(void **state)
{
	(void)state;
	check_peaks(
	        "mode: paci\nsave_strategy: \"no\"\ndevice: cpu:1\nmax_grad_norm: 0\nbox_cuts: [3]\n", 700,
	        "--max_steps 8 --max_length 1024 --per_device_train_batch_size 1 --gradient_accumulation_steps 32 --num_train_epochs 9");
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_collected_adapter_is_planned),
	                                   cmocka_unit_test(test_messages_are_planned)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
