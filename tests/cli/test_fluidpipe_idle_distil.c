/* Opportunistic steps of two boxes that distil: box 2 makes them of what it has received, box 1 between two epochs, while it waits for the
 * logits of the last one. A run that follows both logs over a fast line is the same, bit for bit. */
#include "cli/distil.h"
#include "link/network.h"

#include <sys/stat.h>

/* Six steps an epoch, four epochs; slow: some 80 ms for a step's features. */
#define SHORT "--gradient_accumulation_steps 1 --max_steps 24 --save_steps 12 "

static const struct shape slow[1][2] = {{{.latency_ms = 10, .mbit = 0.2}, {.latency_ms = 10, .mbit = 0.2}}};

/* Both boxes; over a relay that is slow, or directly. own: each box's options. */
static void run_pair(const struct scratch *scratch, int is_slow, const char *options, const char *const own[2], char *said[2])
{
	struct network network;
	struct box_wire wire = free_wire();
	struct ran ran[2];
	if (is_slow) {
		network_open(&network, 2, slow, check_seed());
		network_addresses(&network, 0, wire.listens, wire.connects);
	}
	for (int k = 0; k < 2; k++)
		start_box(scratch, k + 1, &wire, path_of(SHORT "%s %s", options, own[k]), &ran[k]);
	for (int k = 0; k < 2; k++)
		run_wait(&ran[k]);
	for (int k = 1; k >= 0; k--) {
		if (ran[k].status)
			fail_msg("box %d: exit %d: %s", k + 1, ran[k].status, last_lines(ran[k].err));
		said[k] = strdup(ran[k].err);
		run_free(&ran[k]);
	}
	if (is_slow)
		network_close(&network);
}

static int64_t size_of(const struct scratch *scratch, const char *where)
{
	struct stat status;
	assert_int_equal(stat(path_of("%s/%s/opportunistic.jsonl", scratch->dir, where), &status), 0);
	return status.st_size;
}

/* A run with `logged` is followed by one with `options`. Frees the scratch. */
static void check_replay(struct scratch scratch, const char *logged, const char *options)
{
	static const char *const files[] = {"opportunistic.jsonl", "model.safetensors", "checkpoint-12/optimizer.safetensors",
	                                    "checkpoint-12/opportunistic_losses.bin"};
	static const char *const none[2] = {"", ""};
	char replay[2][256], *said[2];
	const char *own[2] = {replay[0], replay[1]};
	run_pair(&scratch, 1, logged, none, said);
	for (int k = 0; k < 2; k++) {
		char where[8];
		snprintf(where, sizeof where, "out%d", k + 1);
		if (!size_of(&scratch, where))
			fail_msg("box %d made no steps: %s", k + 1, last_lines(said[k]));
		printf("box %d: %s", k + 1, strstr(said[k], "opportunistic steps: "));
		free(said[k]);
		snprintf(replay[k], sizeof replay[k], "--fluidpipe_idle_replay %s/first%d/opportunistic.jsonl", scratch.dir, k + 1);
	}
	move_outputs(&scratch, "first");
	run_pair(&scratch, 0, options, own, said);
	for (int k = 0; k < 2; k++) {
		char first[16], out[16];
		snprintf(first, sizeof first, "first%d", k + 1);
		snprintf(out, sizeof out, "out%d", k + 1);
		for (size_t i = 0; i < sizeof files / sizeof *files; i++)
			check_same_file(&scratch, first, out, files[i]);
		free(said[k]);
	}
	check_same_file(&scratch, "first2", "out2", "checkpoint-12/teacher_logits.safetensors");
	scratch_close(&scratch);
}

static void test_both_boxes_replay_steps_that_distil(void **state)
{
	(void)state;
	static const char by_loss[] = "--fluidpipe_recipe FP-DT --fluidpipe_idle_sampler distillation-loss "
	                              "--fluidpipe_idle_distillation_scale 0.4",
	                  by_history[] = "--fluidpipe_recipe FP-DB --fluidpipe_idle_sampler eh-difficulty --fluidpipe_weighting sum "
	                                 "--fluidpipe_idle_task_scale 0.4",
	                  of_shares[] = "--fluidpipe_recipe FP-DB --fluidpipe_idle_sampler random --fluidpipe_idle_distillation_scale 0.4 "
	                                "--fluidpipe_idle_dropout 0.3"; /* of box 1's embedding, too */
	struct scratch scratch;
	char streams[256];
	open_images(&scratch, "");
	snprintf(streams, sizeof streams, "%s --fluidpipe_logits stream", by_loss);
	check_replay(scratch, by_loss, streams); /* rows that opportunistic steps replace come behind the epoch */
	open_images(&scratch, "");
	check_replay(scratch, by_history, by_history);
	open_language(&scratch, "fluidpipe_top_k: 5\n", 0);
	snprintf(streams, sizeof streams, "%s --fluidpipe_logits stream", of_shares);
	check_replay(scratch, of_shares, streams);
}

/* A cap of 0 is the run without the key, at both boxes. */
static void test_a_cap_of_0_is_no_change(void **state)
{
	(void)state;
	static const char *const none[2] = {"", ""};
	struct scratch scratch;
	char *said[2];
	open_images(&scratch, "");
	run_pair(&scratch, 0, "--fluidpipe_recipe FP-DT", none, said);
	move_outputs(&scratch, "plain");
	for (int k = 0; k < 2; k++)
		free(said[k]);
	run_pair(&scratch, 1, "--fluidpipe_recipe FP-DT --fluidpipe_idle_sampler random --fluidpipe_idle_steps 0", none, said);
	for (int k = 0; k < 2; k++) {
		char plain[16], out[16];
		snprintf(plain, sizeof plain, "plain%d", k + 1);
		snprintf(out, sizeof out, "out%d", k + 1);
		check_same_file(&scratch, plain, out, "model.safetensors");
		check_same_file(&scratch, plain, out, "checkpoint-12/optimizer.safetensors");
		free(said[k]);
	}
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	setenv("RH_RELAY", "1", 1); /* so that boxes are on one machine, and need no keys */
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_both_boxes_replay_steps_that_distil),
	        cmocka_unit_test(test_a_cap_of_0_is_no_change),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
