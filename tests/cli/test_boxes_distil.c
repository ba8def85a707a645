/* Mode fluidpipe with distillation, two processes: who learns from whom, what is sent for it, and that both go on from any checkpoint. */
#include "cli/distil_line.h"

/* ---- who learns from whom ---- */

static void test_box_1_learns_of_box_2_from_the_second_epoch_on(void **state)
{
	(void)state;
	struct scratch scratch;
	open_images(&scratch, "");
	free(run_boxes(&scratch, ""));
	move_outputs(&scratch, "alone");
	free(run_boxes(&scratch, "--fluidpipe_alpha2 0.5")); /* box 2 learns otherwise, and box 1 hears nothing of it */
	for (int step = 1; step <= STEPS; step++) {
		assert_true(is_same_step(&scratch, "alone", 1, step));
		assert_false(is_same_step(&scratch, "alone", 2, step));
	}
	move_outputs(&scratch, "upper");
	free(run_boxes(&scratch, "--fluidpipe_alpha1 0.5")); /* as what comes back counts */
	for (int step = 1; step <= STEPS; step++)
		assert_int_equal(is_same_step(&scratch, "alone", 1, step), step <= EPOCH);
	move_outputs(&scratch, "lower");
	free(run_boxes(&scratch, "--fluidpipe_alpha1 0.5 --fluidpipe_alpha2 0.5")); /* other logits come back */
	for (int step = 1; step <= STEPS; step++)
		assert_int_equal(is_same_step(&scratch, "lower", 1, step), step <= EPOCH);
	scratch_close(&scratch);
}

static void test_logits_alone_are_added_to_the_line_and_only_where_one_learns(void **state)
{
	(void)state;
	struct scratch scratch;
	static const char *const options[] = {"", "--fluidpipe_alpha1 0.5", "--fluidpipe_alpha2 0.5", "--fluidpipe_recipe FP-DB"};
	const long long epochs = STEPS / EPOCH, row = 4 * LABELS, up = epochs * SAMPLES * row, ids = epochs * SAMPLES * 4,
	                down = (epochs - 1) * SAMPLES * (row + 4);
	long long before[2], line[2];
	open_images(&scratch, "");
	for (int i = 0; i < 4; i++) {
		int lower = i & 1, upper = i >> 1; /* distils */
		read_line(run_boxes(&scratch, options[i]), &line[0], &line[1]);
		if (!i)
			memcpy(before, line, sizeof line);
		check_more("up", line[0] - before[0], upper * up + lower * ids, upper * STEPS + lower * 2 * epochs);
		check_more("down", line[1] - before[1], lower * down, lower * 2 * (epochs - 1) + upper * STEPS);
		char kept[8];
		snprintf(kept, sizeof kept, "run%d-", i);
		move_outputs(&scratch, kept);
	}
	scratch_close(&scratch);
}

/* ---- checkpoints ---- */

static void test_a_run_goes_on_from_each_step_to_the_same_bits(void **state)
{
	(void)state;
	struct scratch scratch;
	open_images(&scratch, "fluidpipe_recipe: FP-DB\n");
	check_resumes(&scratch);
}

/* A box is killed at once after its checkpoint of a step; both go on from what both have. */
static void test_a_killed_box_goes_on_to_the_same_bits(void **state)
{
	(void)state;
	struct scratch scratch;
	open_images(&scratch, "fluidpipe_recipe: FP-DB\nlink_timeout: 2\nlink_give_up: 60\n");
	free(run_boxes(&scratch, "--max_steps 40"));
	move_outputs(&scratch, "whole");
	for (int victim = 1; victim <= 2; victim++) {
		struct ran ran[2], again[2];
		struct box_wire wire = free_wire();
		static const char resumes[] = "--max_steps 40 --resume_from_checkpoint true";
		for (int k = 1; k <= 2; k++)
			start_box(&scratch, k, &wire, "--max_steps 40", &ran[k - 1]);
		for (int i = 0; i < 60000 && !(is_there(&scratch, 1, 3) && is_there(&scratch, 2, 3)); i++)
			usleep(1000);
		kill(ran[victim - 1].pid, SIGKILL);
		run_wait(&ran[victim - 1]);
		start_box(&scratch, victim, &wire, resumes, &again[victim - 1]); /* the other one learns of it */
		run_wait(&ran[2 - victim]);
		start_box(&scratch, 3 - victim, &wire, resumes, &again[2 - victim]);
		boxes_finish(again, 2);
		for (int k = 1; k <= 2; k++) {
			run_free(&ran[k - 1]);
			assert_true(is_same_step(&scratch, "whole", k, 40));
			check_ok(rh_dir_remove(path_of("%s/out%d", scratch.dir, k)));
		}
	}
	scratch_close(&scratch);
}

/* A run without distillation left no logits for the rest of its second epoch: box 1 goes on as it would have, says for how many samples,
 * and distils in the third. */
static void test_samples_without_logits_are_learnt_from_their_labels_and_counted(void **state)
{
	(void)state;
	struct scratch scratch;
	open_images(&scratch, "");
	free(run_boxes(&scratch, ""));
	move_outputs(&scratch, "alone");
	free(run_boxes(&scratch, "--max_steps 3"));
	char *said = run_boxes(&scratch, "--resume_from_checkpoint true --fluidpipe_alpha1 0.5");
	if (!strstr(said, "has no teacher_logits.safetensors") || !strstr(said, "12 samples were learnt from their labels alone"))
		fail_msg("%s", said);
	free(said);
	assert_true(is_same_step(&scratch, "alone", 1, 4));
	assert_false(is_same_step(&scratch, "alone", 1, 5)); /* box 2 kept logits in step 4; box 1 distils them from here on */
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_box_1_learns_of_box_2_from_the_second_epoch_on),
	        cmocka_unit_test(test_logits_alone_are_added_to_the_line_and_only_where_one_learns),
	        cmocka_unit_test(test_a_run_goes_on_from_each_step_to_the_same_bits),
	        cmocka_unit_test(test_a_killed_box_goes_on_to_the_same_bits),
	        cmocka_unit_test(test_samples_without_logits_are_learnt_from_their_labels_and_counted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
