/* Mode fluidpipe, a causal language model that distils by its likeliest tokens, two processes: both boxes compute what a plain loop does,
 * their line carries what it should, both go on from any checkpoint, and what cannot be is refused. */
#define TOP         5
#define ROW_TARGETS 32
#include "cli/distil_line.h"
#include "cli/distil_plain.h"

#define LIKELIEST "fluidpipe_top_k: 5\n"

static void test_both_boxes_compute_what_a_plain_loop_does(void **state)
{
	(void)state;
	static const char *const keys[] = {LIKELIEST "fluidpipe_recipe: FP-DB\n", LIKELIEST "fluidpipe_recipe: FP-DT-EL\n",
	                                   LIKELIEST "fluidpipe_alpha1: 0.25\n",
	                                   LIKELIEST "fluidpipe_alpha2: 0\nfluidpipe_kl: reverse\nfluidpipe_temperature: 3\n",
	                                   LIKELIEST "fluidpipe_recipe: FP-DB\nfluidpipe_weighting: sum\nfluidpipe_temperature: 2\n"};
	static const char *const options[] = {"", "--device cpu:2", "--fluidpipe_ahead 1"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		struct scratch scratch;
		open_language(&scratch, keys[i], i == 4);
		check_plain(scratch, options[i % 3]);
	}
}

/* Of box 1's shares each box that distils takes 8 bytes a token and a likeliest one; of what comes down each target's number besides, and
 * once how many targets each row has. */
static void test_the_line_carries_8_bytes_a_share(void **state)
{
	(void)state;
	struct scratch scratch;
	static const char *const options[] = {"", "--fluidpipe_top_k 5 --fluidpipe_alpha1 0.5",
	                                      "--fluidpipe_top_k 5 --fluidpipe_alpha2 0.5", "--fluidpipe_top_k 5 --fluidpipe_recipe FP-DB"};
	long long before[2], line[2], targets = 0;
	open_language(&scratch, "", 0);
	for (int i = 0; i < 4; i++) {
		int lower = i & 1, upper = i >> 1; /* distils */
		char *said = run_boxes(&scratch, options[i]), *tokens = strstr(said, " of them trained");
		if (!tokens)
			fail_msg("%s", said);
		while (tokens[-1] >= '0' && tokens[-1] <= '9')
			tokens--;
		targets = atoll(tokens);
		read_line(said, &line[0], &line[1]);
		if (!i)
			memcpy(before, line, sizeof line);
		const long long epochs = STEPS / EPOCH, shares = targets * 8 * TOP, ids = epochs * SAMPLES * 4 + SAMPLES * 4;
		assert_true(targets > SAMPLES);
		check_more("up", line[0] - before[0], upper * epochs * shares + lower * ids, upper * STEPS + lower * (2 * epochs + 1));
		check_more("down", line[1] - before[1], lower * (epochs - 1) * (shares + targets * 4),
		           lower * 2 * (epochs - 1) + upper * STEPS);
		char kept[8];
		snprintf(kept, sizeof kept, "run%d-", i);
		move_outputs(&scratch, kept);
	}
	scratch_close(&scratch);
}

static void test_a_run_goes_on_from_each_step_to_the_same_bits(void **state)
{
	(void)state;
	struct scratch scratch;
	open_language(&scratch, LIKELIEST "fluidpipe_recipe: FP-DB\n", 0);
	check_resumes(&scratch, "");
	open_language(&scratch, LIKELIEST "fluidpipe_recipe: FP-DB\n", 0);
	check_resumes(&scratch, "--fluidpipe_logits stream");
}

/* Frees the scratch. */
static void refused(struct scratch scratch, int status, const char *options, const char *line)
{
	struct ran ran;
	struct box_wire wire = free_wire();
	start_box(&scratch, 1, &wire, options, &ran); /* which does not wait for box 2 */
	run_wait(&ran);
	if (ran.status != status || !strstr(ran.err, line))
		fail_msg("%s: exit %d: %s", options, ran.status, ran.err);
	run_free(&ran);
	assert_false(rh_dir_exists(path_of("%s/out1", scratch.dir)));
	scratch_close(&scratch);
}

static struct scratch language(void)
{
	struct scratch scratch;
	open_language(&scratch, "", 0);
	return scratch;
}

static void test_what_cannot_be_is_refused_in_one_line(void **state)
{
	(void)state;
	refused(language(), 1, "--fluidpipe_recipe FP-DB",
	        "fluidpipe_recipe: boxes distil a causal language model by its likeliest tokens: write fluidpipe_top_k");
	refused(language(), 1, "--fluidpipe_recipe FP-DB --fluidpipe_top_k 289", "fluidpipe_top_k: 289 of a vocabulary of 288 tokens");
	refused(language(), 2, "--fluidpipe_top_k 5", "fluidpipe_top_k: has no effect where no box distils");
	static const char *const by_losses[] = {"difficulty", "eh-difficulty", "task-loss", "distillation-loss"};
	for (size_t i = 0; i < sizeof by_losses / sizeof *by_losses; i++) {
		char options[256];
		snprintf(options, sizeof options, "--fluidpipe_recipe FP-DB --fluidpipe_top_k 5 --fluidpipe_idle_sampler %s", by_losses[i]);
		refused(language(), 2, options,
		        "fluidpipe_idle_sampler: goes by a sample's two losses, which fluidpipe_top_k does not tell apart");
	}
	struct scratch scratch;
	open_images(&scratch, "");
	refused(scratch, 1, "--fluidpipe_recipe FP-DB --fluidpipe_top_k 5",
	        "fluidpipe_top_k: 5 tokens of a causal language model, and this model is none");
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_both_boxes_compute_what_a_plain_loop_does),
	        cmocka_unit_test(test_the_line_carries_8_bytes_a_share),
	        cmocka_unit_test(test_a_run_goes_on_from_each_step_to_the_same_bits),
	        cmocka_unit_test(test_what_cannot_be_is_refused_in_one_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
