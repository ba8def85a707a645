/* Boxes of emulated GPUs whose activations and gradients go by NCCL, for which a library stands in (tests/cuda/nccl_stand_in.c): they
 * compute what one box does. */
#define PROGRAM "roundhouse-emu"
#include "cli/boxes.h"

#include "core/hooks.h"

enum { BOXES = 2 };
/* Micro-batches so large that their activations are large messages: 8 rows of 60 tokens and more. */
#define MORE " --per_device_train_batch_size 8 --gradient_accumulation_steps 1"

static void write_box(const struct scratch *scratch, const char *keys, int box, const struct box_wire *wire, char secret[BOXES_MOST][512])
{
	char all[1024];
	snprintf(all, sizeof all, "%slink_transport: nccl\nbox_cuts: [3]\n%s", keys, secret[box - 1]);
	write_config(scratch, all, BOXES, box, wire);
}

static void write_rows(const struct scratch *scratch)
{
	FILE *file = fopen(path_of("%s/rows.jsonl", scratch->dir), "w");
	assert_non_null(file);
	for (int row = 0; row < 24; row++) {
		fprintf(file, "{\"prompt\": \"%d \", \"completion\": \" ", row);
		for (int word = 0; word < 24; word++)
			fprintf(file, "%c ", 'a' + (row * 7 + word * word) % 26);
		fprintf(file, "\"}\n");
	}
	fclose(file);
}

static void check_run(const char *keys, const char *file, int parts)
{
	struct scratch scratch;
	struct ran ran[BOXES];
	char secret[BOXES_MOST][512] = {0};
	struct box_wire wire = free_wire();
	size_t sends;
	make_files(&scratch);
	write_rows(&scratch);
	setenv("NCCL_STAND_IN_SENDS", path_of("%s/sends", scratch.dir), 1);
	make_keys(&scratch, BOXES, secret);
	write_config(&scratch, keys, 1, 0, NULL);
	struct ran alone = run_line(&scratch, "train %s/run0.yaml" MORE, scratch.dir);
	if (alone.status)
		print_error("%s\n", alone.err);
	assert_int_equal(alone.status, 0);
	run_free(&alone);
	for (int k = 1; k <= BOXES; k++) {
		write_box(&scratch, keys, k, &wire, secret);
		run_start(&scratch, path_of("train %s/run%d.yaml" MORE, scratch.dir, k), 0, &ran[k - 1]);
	}
	boxes_finish(ran, BOXES);
	free(read_bytes(path_of("%s/sends", scratch.dir), &sends));
	assert_int_equal(sends, 2 * 6); /* an activation and a gradient a step: a step is a micro-batch */
	check_weights(&scratch, file, parts);
	scratch_close(&scratch);
}

static void test_boxes_over_nccl_compute_what_one_does(void **state)
{
	(void)state;
	check_run("device: emu:1\ndtype: float32\nsave_strategy: \"no\"\n", "model.safetensors", BOXES);
	check_run("device: emu:1\ndtype: float32\nsave_strategy: \"no\"\nlora_r: 4\nlora_target_modules: all-linear\n",
	          "adapter_model.safetensors", 1);
}

static void check_refused(const char *keys, const char *line)
{
	struct scratch scratch;
	char secret[BOXES_MOST][512] = {0};
	struct box_wire wire = free_wire();
	make_files(&scratch);
	write_box(&scratch, keys, 1, &wire, secret);
	struct ran ran = run_line(&scratch, "train %s/run1.yaml", scratch.dir);
	assert_int_equal(ran.status, 1);
	if (!strstr(ran.err, line))
		fail_msg("%s", last_lines(ran.err));
	assert_false(rh_dir_exists(path_of("%s/out1", scratch.dir)));
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_nccl_without_gpus_or_its_library_is_refused(void **state)
{
	(void)state;
	check_refused("device: cpu:1\n", "link_transport: nccl sends from GPUs, and device is 'cpu:1'");
	setenv(RH_HOOK_NCCL, "/nowhere/libnccl.so.2", 1);
	check_refused("device: emu:1\n", "install libnccl2, or write tcp");
}

int main(void)
{
	const char *build = getenv("RH_BUILD");
	setenv(RH_HOOK_NCCL, path_of("%s/nccl-stand-in.so", build ? build : "build/release"), 1);
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_boxes_over_nccl_compute_what_one_does),
	        cmocka_unit_test(test_nccl_without_gpus_or_its_library_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
