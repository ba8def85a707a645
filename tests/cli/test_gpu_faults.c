/* GPUs that are missing, too old, taken or that break in the middle of a run, through the program on emulated ones: one clear line each,
 * and the last checkpoint is good. */
#define PROGRAM "roundhouse-emu"
#include "cli/runner.h"

enum { STEPS = 6 };

static void make_input(struct scratch *scratch)
{
	scratch_open(scratch);
	const char *dir = scratch->dir;
	if (access(program_path(), X_OK))
		check_skip("GPUs that break: %s is not built (the thread sanitizer does not know fibers)", program_path());
	copy_model(dir);
	FILE *file = fopen(path_of("%s/rows.jsonl", dir), "w");
	assert_non_null(file);
	for (int i = 0; i < 12; i++)
		fprintf(file, "{\"prompt\": \"%d the cat\", \"completion\": \" sat on %d mats\"}\n", i, i * 7 % 5);
	assert_int_equal(fclose(file), 0);
}

static const char *line_of(const struct scratch *scratch, const char *out, const char *more)
{
	return path_of("train --model_name_or_path %s/hf --train_file %s/rows.jsonl --output_dir %s/%s --max_length 48 --max_steps %d "
	               "--save_steps "
	               "2 --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --learning_rate 1e-3 --dtype float32 %s",
	               scratch->dir, scratch->dir, scratch->dir, out, STEPS, more);
}

static void refused(const char *machine, const char *more, const char *part)
{
	struct scratch scratch;
	make_input(&scratch);
	uint64_t before = tree_hash(scratch.dir);
	setenv("RH_EMU_MACHINE", machine, 1);
	struct ran ran = run_line(&scratch, "%s", line_of(&scratch, "out", more));
	unsetenv("RH_EMU_MACHINE");
	check_failed(&ran, part);
	if (tree_hash(scratch.dir) != before)
		fail_msg("something was written with a GPU that cannot serve: %s", machine);
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_a_missing_driver_is_one_line(void **state)
{
	(void)state;
	refused("0 0 0 0 0", "--device emu:1", "device emu: this machine has no NVIDIA driver; install it, or use device cpu");
}

static void test_an_old_driver_is_one_line(void **state)
{
	(void)state;
	refused("1 12020 8 9 24000", "--device emu:1", "the NVIDIA driver knows CUDA 12.2, this program needs 13.0");
}

static void test_an_old_gpu_is_one_line(void **state)
{
	(void)state;
	refused("1 13000 7 5 24000", "--device emu:1", "device emu:0: its compute capability is 7.5, at least 8.0 is needed");
}

static void test_more_gpus_than_there_are_is_one_line(void **state)
{
	(void)state;
	refused("1 13000 8 9 24000", "--device emu:2", "device emu:1: this machine has 1 GPU, counted from 0");
}

/* 24 GiB, nearly all of them others'. */
static void test_a_gpu_in_use_by_others_is_one_line(void **state)
{
	(void)state;
	refused("1 13000 8 9 270", "--device emu:1", "270 of 24576 MiB are free, too little for 1 worker; end what else uses the GPU");
	refused("1 13000 8 9 400", "--device emu:1 --max_vram 200MiB", "max_vram: 200.0 MiB, but only 112.0 MiB are free for each device");
}

/* The n-th launch ends with `error`: one line, and the run goes on from its last checkpoint to what an undisturbed run writes. */
static void breaks(const char *more, const char *weights, int error, const char *part)
{
	struct scratch scratch;
	make_input(&scratch);
	run_ok(&scratch, "%s", line_of(&scratch, "whole", more));
	int broken = 0;
	for (int launch = 32; broken < 2 && launch < 1 << 20;
	     launch *= 2) { /* the first that is late enough to leave a checkpoint, and one later */
		setenv("RH_EMU_FAIL", path_of("%d cudaPeek %d", launch, error), 1);
		struct ran ran = run_line(&scratch, "%s", line_of(&scratch, "broken", more));
		unsetenv("RH_EMU_FAIL");
		if (!ran.status) {
			run_free(&ran);
			break;
		}
		check_failed(&ran, part);
		run_free(&ran);
		if (rh_dir_exists(path_of("%s/broken/checkpoint-2", scratch.dir))) {
			run_ok(&scratch, "%s", line_of(&scratch, "broken", path_of("%s --resume_from_checkpoint true", more)));
			assert_true(same_file(path_of("%s/whole/%s", scratch.dir, weights), path_of("%s/broken/%s", scratch.dir, weights)));
			broken++;
		}
		if (rh_dir_exists(path_of("%s/broken", scratch.dir)))
			check_ok(rh_dir_remove(path_of("%s/broken", scratch.dir)));
	}
	assert_true(broken > 0);
	scratch_close(&scratch);
}

static void test_an_ecc_error_leaves_the_last_checkpoint(void **state)
{
	(void)state;
	breaks("--device emu:2 --lora_r 2", "adapter_model.safetensors", 214,
	       "uncorrectable ECC error encountered; the GPU's memory gave a wrong bit");
}

static void test_a_launch_error_leaves_the_last_checkpoint(void **state)
{
	(void)state;
	breaks("--device emu:1", "model.safetensors", 719, "unspecified launch failure; resume from the last checkpoint");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_missing_driver_is_one_line),
	        cmocka_unit_test(test_an_old_driver_is_one_line),
	        cmocka_unit_test(test_an_old_gpu_is_one_line),
	        cmocka_unit_test(test_more_gpus_than_there_are_is_one_line),
	        cmocka_unit_test(test_a_gpu_in_use_by_others_is_one_line),
	        cmocka_unit_test(test_an_ecc_error_leaves_the_last_checkpoint),
	        cmocka_unit_test(test_a_launch_error_leaves_the_last_checkpoint),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
