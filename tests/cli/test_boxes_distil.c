/* Mode fluidpipe with distillation, two processes: who learns from whom, what is sent for it, and that both go on from any checkpoint. */
#include "cli/distil_line.h"
#include "link/network.h"

#define STREAM "--fluidpipe_logits stream"

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

/* Behind each step, in place of what it tells of checkpoints: as many logits as behind an epoch, and a message more a step at most. */
static void test_streamed_logits_are_the_same_bytes_and_the_same_run(void **state)
{
	(void)state;
	struct scratch scratch;
	static const char *const recipes[] = {"--fluidpipe_recipe FP-DB", "--fluidpipe_alpha2 0.5"};
	long long bulk[2], line[2];
	open_images(&scratch, "");
	for (int i = 0; i < 2; i++) {
		read_line(run_boxes(&scratch, recipes[i]), &bulk[0], &bulk[1]);
		move_outputs(&scratch, "epoch");
		read_line(run_boxes(&scratch, path_of("%s " STREAM, recipes[i])), &line[0], &line[1]);
		check_more("up", line[0] - bulk[0], 0, 0);
		check_more("down", line[1] - bulk[1], 0, i ? 0 : STEPS);
		for (int box = 1; box <= 2; box++)
			for (int step = 1; step <= STEPS; step++)
				assert_true(is_same_step(&scratch, "epoch", box, step));
		for (int box = 1; box <= 2; box++) {
			check_ok(rh_dir_remove(path_of("%s/out%d", scratch.dir, box)));
			check_ok(rh_dir_remove(path_of("%s/epoch%d", scratch.dir, box)));
		}
	}
	scratch_close(&scratch);
}

/* Over a line that holds both boxes up, with so many messages on their way at most. */
static void check_narrow(const struct shape line[1][2], int ahead, const char *options, int steps)
{
	struct scratch scratch;
	struct network network;
	struct box_wire wire = free_wire();
	struct ran ran[2];
	char keys[256];
	snprintf(keys, sizeof keys, "--fluidpipe_recipe FP-DB --gradient_accumulation_steps 1 --max_steps %d --save_steps %d %s", steps,
	         steps, options);
	open_texts(&scratch, "");
	free(run_boxes(&scratch, keys));
	move_outputs(&scratch, "epoch");
	network_open(&network, 2, line, check_seed());
	network_addresses(&network, 0, wire.listens, wire.connects);
	for (int k = 1; k <= 2; k++)
		start_box(&scratch, k, &wire, path_of("%s " STREAM " --fluidpipe_ahead %d", keys, ahead), &ran[k - 1]);
	boxes_finish(ran, 2);
	network_close(&network);
	for (int box = 1; box <= 2; box++)
		assert_true(is_same_step(&scratch, "epoch", box, steps));
	scratch_close(&scratch);
}

/* No box waits for ever: neither where one message may be on its way, nor where logits take longer to come down than their step takes, and
 * box 1 would be more steps ahead of them than it may be. */
static void test_narrow_lines_stream_to_the_same_bits(void **state)
{
	(void)state;
	static const struct shape narrow[1][2] = {{{.latency_ms = 25, .mbit = 1}, {.latency_ms = 25, .mbit = 0.3}}},
	                          lopsided[1][2] = {{{.latency_ms = 2, .mbit = 10}, {.latency_ms = 2, .mbit = 0.1}}};
	check_narrow(narrow, 1, "", 60);
	check_narrow(lopsided, 16, "--data_weights 16 --per_device_train_batch_size 1", 2 * 16 * SAMPLES / 2);
}

/* ---- checkpoints ---- */

/* `how`: whenever logits go down, the run is the one in which they go behind an epoch. */
static void check_goes_on_from_each_step(const char *how)
{
	struct scratch scratch;
	open_images(&scratch, "fluidpipe_recipe: FP-DB\n");
	check_resumes(&scratch, how);
}

static void test_a_run_goes_on_from_each_step_to_the_same_bits(void **state)
{
	(void)state;
	check_goes_on_from_each_step("");
	check_goes_on_from_each_step(STREAM);
}

/* A box is killed at once after its checkpoint of a step; both go on from what both have. */
static void check_killed(int victim, int64_t after, const char *how)
{
	struct scratch scratch;
	struct ran ran[2], again[2];
	struct box_wire wire = free_wire();
	char resumes[96];
	open_images(&scratch, "fluidpipe_recipe: FP-DB\nlink_timeout: 2\nlink_give_up: 60\n");
	free(run_boxes(&scratch, "--max_steps 40"));
	move_outputs(&scratch, "whole");
	snprintf(resumes, sizeof resumes, "--max_steps 40 --resume_from_checkpoint true %s", how);
	for (int k = 1; k <= 2; k++)
		start_box(&scratch, k, &wire, path_of("--max_steps 40 %s", how), &ran[k - 1]);
	for (int i = 0; i < 60000 && !(is_there(&scratch, 1, after) && is_there(&scratch, 2, after)); i++)
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
	}
	scratch_close(&scratch);
}

static void test_a_killed_box_goes_on_to_the_same_bits(void **state)
{
	(void)state;
	for (int victim = 1; victim <= 2; victim++) {
		check_killed(victim, 3, "");
		check_killed(victim, 3, STREAM); /* in mid-epoch */
		check_killed(victim, 4, STREAM);
	}
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
	setenv("RH_RELAY", "1", 1); /* so that boxes are on one machine, and need no keys */
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_box_1_learns_of_box_2_from_the_second_epoch_on),
	        cmocka_unit_test(test_logits_alone_are_added_to_the_line_and_only_where_one_learns),
	        cmocka_unit_test(test_streamed_logits_are_the_same_bytes_and_the_same_run),
	        cmocka_unit_test(test_narrow_lines_stream_to_the_same_bits),
	        cmocka_unit_test(test_a_run_goes_on_from_each_step_to_the_same_bits),
	        cmocka_unit_test(test_a_killed_box_goes_on_to_the_same_bits),
	        cmocka_unit_test(test_samples_without_logits_are_learnt_from_their_labels_and_counted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
