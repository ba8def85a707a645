/* Boxes that keep a table one which is embedding and head (tie_word_embeddings): the first and the last box train a copy each, and both are
 * the one box's table, bit for bit. */
#include "cli/sync_boxes.h"

#include "core/hooks.h"
#include "link/relay.h"

#define TIED    "tie_word_embeddings: true\n"
#define NO_SAVE "save_strategy: \"no\"\n"

enum { VOCABULARY = 2048, TABLE_BYTES = VOCABULARY * 32 * 4, PIECE_BYTES = 8192 };

/* A table that travels in 32 pieces: twice as many as may be on their way. */
static void make_tied_files(struct scratch *scratch)
{
	make_files(scratch);
	edit_file(path_of("%s/hf/config.json", scratch->dir), "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
	edit_file(path_of("%s/hf/config.json", scratch->dir), "\"vocab_size\": 288", "\"vocab_size\": 2048");
	check_ok(setenv(RH_HOOK_PIECE_BYTES, "8192", 1));
	_Static_assert(TABLE_BYTES / PIECE_BYTES == 32, "as said");
}

static void close_files(struct scratch *scratch)
{
	unsetenv(RH_HOOK_PIECE_BYTES);
	scratch_close(scratch);
}

/* `copied`: tensors of the table's block. */
static void check_runs_of(struct scratch *scratch, const char *keys, const char *linked, int boxes, int copied)
{
	char all[1024];
	write_config(scratch, keys, 1, 0, NULL);
	run_ok(scratch, "train %s/run0.yaml" TWENTY_STEPS, scratch->dir);
	snprintf(all, sizeof all, "%s%s" TIED, keys, linked);
	run_boxes(scratch, all, boxes, 0);
	check_weights_copied(scratch, "model.safetensors", boxes, copied);
	check_joined(scratch, boxes);
	for (int k = boxes; k >= 0; k--) {
		if (k)
			assert_true(check_metrics(scratch, k, 0) >= 20);
		check_ok(rh_dir_remove(path_of("%s/out%d", scratch->dir, k)));
	}
}

static void check_runs(const char *keys, const char *linked, int boxes)
{
	struct scratch scratch;
	make_tied_files(&scratch);
	check_runs_of(&scratch, keys, linked, boxes, 1);
	close_files(&scratch);
}

static void test_each_schedule_over_two_and_three_boxes(void **state)
{
	(void)state;
	for (int boxes = 2; boxes <= 3; boxes++) {
		check_runs(NO_SAVE "device: cpu:1\n", "schedule: gpipe\n", boxes);
		check_runs(NO_SAVE "device: cpu:1\n", "schedule: 1f1b\n", boxes);
		check_runs(NO_SAVE "device: cpu:1\n", "schedule: zb-h1\n", boxes);
	}
}

/* One micro-batch a step is one round, in which a box alone holds one sum of the table. */
static void test_in_steps_of_one_round(void **state)
{
	(void)state;
	check_runs(NO_SAVE "device: cpu:2\n", "round_micro_batches: 4\n", 2);
	check_runs(NO_SAVE "device: cpu:1\nmax_grad_norm: 0\n", "round_micro_batches: 4\nbox_cuts: [1, 6]\n", 3);
}

static void test_without_clipping(void **state)
{
	(void)state;
	check_runs(NO_SAVE "device: cpu:2\nmax_grad_norm: 0\n", "", 2);
	check_runs(NO_SAVE "device: cpu:1\nmax_grad_norm: 0\n", "schedule: zb-2p\n", 4);
}

static void test_bf16_and_other_updates(void **state)
{
	(void)state;
	check_runs(NO_SAVE "device: cpu:1\nbf16: true\nweight_decay: 0.1\n", "", 2);
	check_runs(NO_SAVE "device: cpu:1\nbf16: true\nstate_layout: split8\nweight_decay: 0.1\ndecay_embeddings: false\n", "", 3);
	check_runs(NO_SAVE "device: cpu:1\noptim: adafactor\n", "round_micro_batches: 4\n", 2);
}

/* GPT-2's learned positions lie beside the table, and both boxes have them. */
static void test_a_table_beside_positions(void **state)
{
	(void)state;
	struct scratch scratch;
	make_tied_files(&scratch);
	const char *path = path_of("%s/hf/config.json", scratch.dir);
	copy_file("tests/reference/models/gguf-gpt2/config.json", path);
	edit_file(path, "\"n_layer\": 2", "\"n_layer\": 3");
	check_runs_of(&scratch, NO_SAVE "device: cpu:1\n", "", 3, 2);
	close_files(&scratch);
}

static void test_a_killed_end_is_started_again(void **state)
{
	(void)state;
	struct scratch scratch;
	for (int victim = 1; victim <= 2; victim++) {
		make_tied_files(&scratch);
		check_killed(&scratch, TIED, victim, 1);
		close_files(&scratch);
	}
}

/* Of a link's bytes more than nine in ten are the table's: it is cut again and again while the ends exchange their sums. */
static void test_links_cut_in_the_middle_of_the_exchange(void **state)
{
	(void)state;
	enum { BOXES = 3, CUTS = 24 };
	static const char keys[] = NO_SAVE "device: cpu:1\n", linked[] = "link_timeout: 2\nlink_give_up: 60\n" TIED;
	struct scratch scratch;
	struct relay relay[BOXES - 1];
	struct box_wire wire[BOXES];
	struct ran ran[BOXES];
	char all[512];
	uint64_t seed = check_seed();
	make_tied_files(&scratch);
	write_config(&scratch, keys, 1, 0, NULL);
	run_ok(&scratch, "train %s/run0.yaml" TWENTY_STEPS, scratch.dir);
	snprintf(all, sizeof all, "%s%s", keys, linked);
	for (int k = 0; k + 1 < BOXES; k++) {
		int port = free_port();
		relay_open(&relay[k], TABLE_BYTES, seed + (uint64_t)k);
		relay[k].most_cuts = CUTS;
		snprintf(wire[k].listens, sizeof wire[k].listens, "127.0.0.1:%d", port);
		snprintf(wire[k].connects, sizeof wire[k].connects, "127.0.0.1:%d", relay[k].port);
		relay_start(&relay[k], port);
	}
	for (int k = 0; k < BOXES; k++) {
		write_config(&scratch, all, BOXES, k + 1, wire);
		run_start(&scratch, path_of("train %s/run%d.yaml" TWENTY_STEPS, scratch.dir, k + 1), 0, &ran[k]);
	}
	boxes_finish(ran, BOXES);
	for (int k = 0; k + 1 < BOXES; k++) {
		printf("line %d was cut %d times\n", k + 1, (int)relay[k].cuts);
		assert_int_equal(relay[k].cuts, CUTS);
		relay_close(&relay[k]);
	}
	check_weights_copied(&scratch, "model.safetensors", BOXES, 1);
	close_files(&scratch);
}

/* The key where it has no effect. */
static void test_other_runs_are_refused(void **state)
{
	(void)state;
	static const struct {
		const char *keys, *line;
	} cases[] = {{"mode: local\n", "tie_word_embeddings: has no effect in mode local"},
	             {"mode: paci\n", "tie_word_embeddings: has no effect in mode paci"},
	             {"mode: fluidpipe\n", "tie_word_embeddings: has no effect in mode fluidpipe"},
	             {"mode: sync-pp\nlora_r: 4\n", "tie_word_embeddings: has no effect with an adapter"},
	             {"mode: sync-pp\n", "tie_word_embeddings: this model's head is not its embedding"}};
	struct scratch scratch;
	char keys[256];
	make_files(&scratch); /* an untied model */
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		snprintf(keys, sizeof keys, "%s" TIED "device: cpu:1\n%s", cases[i].keys,
		         i ? "boxes: 2\nbox: 1\nlink_above: listen:4711\n" : "");
		write_config(&scratch, keys, 1, 0, NULL);
		struct ran ran = run_line(&scratch, "train %s/run0.yaml", scratch.dir);
		check_failed(&ran, cases[i].line);
		assert_false(rh_dir_exists(path_of("%s/out0", scratch.dir)));
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* A copy that is another step's, or another run's. */
/* Said before the boxes meet. */
static void test_beside_an_adapter_the_table_is_not_trained(void **state)
{
	(void)state;
	static const char *const modes[] = {"sync-pp", "paci"}, *const modules[] = {"embed_tokens", "lm_head"},
	                         *const lists[] = {"lora_modules_to_save", "lora_target_modules"};
	struct scratch scratch;
	char keys[256], said[128];
	make_tied_files(&scratch);
	for (int i = 0; i < 8; i++) {
		snprintf(keys, sizeof keys, "mode: %s\nboxes: 2\nbox: 1\nlink_above: listen:4711\nlora_r: 4\n%s: [%s]\n", modes[i / 2 % 2],
		         lists[i / 4], modules[i % 2]);
		snprintf(said, sizeof said, "%s: this model's embedding is its head too, in another box", lists[i / 4]);
		write_config(&scratch, keys, 1, 0, NULL);
		struct ran ran = run_line(&scratch, "train %s/run0.yaml", scratch.dir);
		check_failed(&ran, said);
		assert_null(strstr(ran.err, "waiting for its neighbour"));
		assert_false(rh_dir_exists(path_of("%s/out0", scratch.dir)));
		run_free(&ran);
	}
	close_files(&scratch);
}

static void test_join_refuses_copies_that_differ(void **state)
{
	(void)state;
	struct scratch scratch;
	make_tied_files(&scratch);
	for (int steps = 2; steps <= 4; steps += 2) {
		struct ran ran[2];
		struct box_wire wire = free_wire();
		for (int k = 1; k <= 2; k++) {
			write_config(&scratch, NO_SAVE TIED "device: cpu:1\n", 2, k, &wire);
			run_start(&scratch,
			          path_of("train %s/run%d.yaml --max_steps %d --output_dir %s/of%d-%d", scratch.dir, k, steps, scratch.dir,
			                  steps, k),
			          0, &ran[k - 1]);
		}
		boxes_finish(ran, 2);
	}
	struct ran ran = run_line(&scratch, "join --parts %s/of2-1,%s/of4-2 --output_dir %s/joined", scratch.dir, scratch.dir, scratch.dir);
	check_failed(&ran, "model.embed_tokens.weight is not the same in the two that have it");
	run_free(&ran);
	ran = run_line(&scratch, "join --parts %s/of2-1,%s/of2-1,%s/of2-2 --output_dir %s/joined", scratch.dir, scratch.dir, scratch.dir,
	               scratch.dir);
	check_failed(&ran, "is in two of them");
	assert_false(rh_dir_exists(path_of("%s/joined", scratch.dir)));
	run_free(&ran);
	close_files(&scratch);
}

/* What is planned for a box is what it takes, with a table of 32 MiB a sum; and what `plan` says of the table is what the store has. */
static void test_bytes_are_planned(void **state)
{
	(void)state;
	enum { BOXES = 3 };
	struct scratch scratch;
	struct box_wire wire[BOXES];
	struct ran ran[BOXES];
	make_tied_files(&scratch);
	unsetenv(RH_HOOK_PIECE_BYTES);
	edit_file(path_of("%s/hf/config.json", scratch.dir), "\"vocab_size\": 2048", "\"vocab_size\": 262144");
	for (int k = 0; k + 1 < BOXES; k++)
		wire[k] = free_wire();
	for (int k = 1; k <= BOXES; k++) {
		write_config(&scratch, NO_SAVE "device: cpu:1\nbox_cuts: [3, 5]\n" TIED, BOXES, k, wire);
		run_start(&scratch, path_of("train %s/run%d.yaml --json --max_steps 3", scratch.dir, k), 0, &ran[k - 1]);
	}
	for (int k = 0; k < BOXES; k++) {
		run_wait(&ran[k]);
		if (ran[k].status)
			fail_msg("box %d: %s", k + 1, ran[k].err);
		json_t *json = json_loads(ran[k].out, 0, NULL), *plan = json_object_get(json, "plan");
		assert_non_null(json);
		json_t *peak = json_object_get(json, "peak_bytes"), *planned = json_object_get(plan, "peak_bytes");
		double used = json_number_value(json_object_get(peak, "ram")), most = json_number_value(json_object_get(planned, "ram"));
		printf("box %d: %.2f MiB of %.2f planned\n", k + 1, used / 1048576, most / 1048576);
		assert_true(json_equal(json_object_get(peak, "vram"), json_object_get(planned, "vram")));
		if (CHECK_RESIDENT)
			assert_true(used <= most);
		json_decref(json);
		run_free(&ran[k]);
	}
	struct ran shown = run_line(&scratch, "plan %s/run1.yaml --json", scratch.dir);
	json_t *json = json_loads(shown.out, 0, NULL), *table = json_object_get(json, "tied_table");
	if (!json)
		fail_msg("%s", shown.err);
	assert_int_equal(json_integer_value(json_object_get(table, "weights_bytes")), (int64_t)32 << 20);
	assert_int_equal(json_integer_value(json_object_get(table, "gradient_bytes")), (int64_t)64 << 20);
	assert_int_equal(json_integer_value(json_object_get(table, "wire_bytes")), (int64_t)32 << 20);
	assert_true(json_integer_value(json_object_get(table, "state_bytes")) >= (int64_t)64 << 20);
	assert_true(json_integer_value(json_object_get(table, "state_bytes")) < (int64_t)65 << 20);
	json_decref(json);
	run_free(&shown);
	close_files(&scratch);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_each_schedule_over_two_and_three_boxes),
	        cmocka_unit_test(test_in_steps_of_one_round),
	        cmocka_unit_test(test_without_clipping),
	        cmocka_unit_test(test_bf16_and_other_updates),
	        cmocka_unit_test(test_a_table_beside_positions),
	        cmocka_unit_test(test_a_killed_end_is_started_again),
	        cmocka_unit_test(test_links_cut_in_the_middle_of_the_exchange),
	        cmocka_unit_test(test_other_runs_are_refused),
	        cmocka_unit_test(test_beside_an_adapter_the_table_is_not_trained),
	        cmocka_unit_test(test_join_refuses_copies_that_differ),
	        cmocka_unit_test(test_bytes_are_planned),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
