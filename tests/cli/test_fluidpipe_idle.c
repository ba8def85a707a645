/* Opportunistic steps of mode fluidpipe, over a line so slow that box 2 waits: they are of samples that it has received in the epoch, box 1
 * does not notice them, and a run that follows their log over a fast line is the same, bit for bit. */
#include "cli/boxes.h"
#include "core/json.h"
#include "data/dataset.h"
#include "link/network.h"

enum { ROW_COUNT = 32, BATCH = 2, ACCUMULATION = 2, EPOCH = ROW_COUNT / (BATCH * ACCUMULATION), STEPS = 20 };

/* Constant rate, so that a run's length changes nothing in its steps. */
#define FLUID                                                                                                                              \
	"mode: fluidpipe\ndevice: cpu:1\nbox_cuts: [3]\nsave_strategy: steps\nsave_steps: 10\nlr_scheduler_type: constant\n"               \
	"link_timeout: 5\nlink_give_up: 60\n"

static const struct shape slow[1][2] = {{{.latency_ms = 2, .mbit = 0.2}, {.latency_ms = 2, .mbit = 0.5}}};

static struct network network;
static int next_host;

static void enter_host(void)
{
	limit_time(200);
	if (network.hosts)
		network_enter(&network, next_host);
}

static void make_run(struct scratch *scratch)
{
	char rows[ROW_COUNT * 64];
	int used = 0;
	make_files(scratch);
	for (int i = 0; i < ROW_COUNT; i++)
		used += snprintf(rows + used, sizeof rows - (size_t)used, "{\"prompt\": \"row %d \", \"completion\": \"%.*s\"}\n", i,
		                 1 + i % 5, "abcde");
	write_text(path_of("%s/rows.jsonl", scratch->dir), rows);
}

/* Both boxes; keys: beyond FLUID, box 2's own in `of_2`. Returns what box 2 said, the caller's. */
static struct ran run_pair(const struct scratch *scratch, int is_slow, const char *keys, const char *of_2, const char *options)
{
	struct box_wire wire = free_wire();
	struct ran ran[2];
	char secret[BOXES_MOST][512] = {0}, all[1024];
	if (is_slow) {
		network_open(&network, 2, slow, check_seed());
		network_addresses(&network, 0, wire.listens, wire.connects);
		make_keys(scratch, 2, secret);
	}
	for (int k = 0; k < 2; k++) {
		next_host = k;
		snprintf(all, sizeof all, FLUID "%s%s%s", keys, k ? of_2 : "", secret[k]);
		write_config(scratch, all, 2, k + 1, &wire);
		run_start(scratch,
		          path_of("train %s/run%d.yaml --per_device_train_batch_size %d --gradient_accumulation_steps %d %s", scratch->dir,
		                  k + 1, (int)BATCH, (int)ACCUMULATION, options),
		          0, &ran[k]);
	}
	for (int k = 0; k < 2; k++)
		run_wait(&ran[k]);
	for (int k = 1; k >= 0; k--)
		if (ran[k].status)
			fail_msg("box %d: exit %d: %s", k + 1, ran[k].status, last_lines(ran[k].err));
	if (is_slow)
		network_close(&network);
	network.hosts = 0;
	run_free(&ran[0]);
	return ran[1];
}

static void keep_outputs(const struct scratch *scratch, const char *name)
{
	for (int k = 1; k <= 2; k++)
		check_ok(rh_path_move(path_of("%s/out%d", scratch->dir, k), path_of("%s/%s%d", scratch->dir, name, k)));
}

/* Samples that were sent in the epoch's steps up to `after`. */
static void find_received(int64_t after, int *received)
{
	struct rh_sampler *sampler;
	const int64_t *rows;
	check_ok(rh_sampler_create(ROW_COUNT, BATCH, ACCUMULATION, RH_SAMPLING_RANDOM, 42, &sampler));
	memset(received, 0, ROW_COUNT * sizeof *received);
	for (int64_t step = 0; step < after - after / EPOCH * EPOCH; step++)
		for (int64_t m = 0; m < ACCUMULATION; m++)
			for (int64_t n = rh_sampler_rows(sampler, after / EPOCH, step, m, &rows); n--;)
				received[rows[n]] = 1;
	rh_sampler_destroy(sampler);
}

/* Each line's samples are different ones, and were received in its epoch. Returns how many lines there are; most: of an epoch, -1: any. */
static int check_log(const struct scratch *scratch, const char *where, int most)
{
	struct rh_bytes text;
	int lines = 0, of_epoch[STEPS / EPOCH + 1] = {0};
	check_ok(rh_file_load(path_of("%s/%s/opportunistic.jsonl", scratch->dir, where), &text));
	for (char *at = text.bytes, *end; (end = strchr(at, '\n')); at = end + 1) {
		json_t *line = json_loadb(at, (size_t)(end - at), 0, NULL), *batch, *sample;
		int received[ROW_COUNT];
		size_t m, i;
		assert_non_null(line);
		if (json_object_get(line, "restart")) {
			json_decref(line);
			continue;
		}
		int64_t after = json_integer_value(json_object_get(line, "after"));
		assert_true(after > 0 && after < STEPS && after % EPOCH);
		find_received(after, received);
		json_array_foreach(json_object_get(line, "samples"), m, batch) json_array_foreach(batch, i, sample)
		        assert_int_equal(received[json_integer_value(sample)]--, 1);
		of_epoch[after / EPOCH]++;
		json_decref(line);
		lines++;
	}
	for (int epoch = 0; epoch <= STEPS / EPOCH; epoch++)
		assert_true(most < 0 || of_epoch[epoch] <= most);
	rh_bytes_free(&text);
	return lines;
}

#define LONG "--max_steps 20"

static void check_replay(const char *keys, int most, const char *says)
{
	struct scratch scratch;
	char replay[256];
	make_run(&scratch);
	struct ran ran = run_pair(&scratch, 0, "", "", LONG);
	run_free(&ran);
	keep_outputs(&scratch, "plain");
	ran = run_pair(&scratch, 1, keys, "", LONG);
	int lines = check_log(&scratch, "out2", most);
	printf("%d opportunistic steps beside %d\n", lines, (int)STEPS);
	if (!lines || !strstr(ran.err, says))
		fail_msg("%d steps: %s", lines, last_lines(ran.err));
	run_free(&ran);
	keep_outputs(&scratch, "first");
	check_same_file(&scratch, "plain1", "first1", "model.safetensors");
	snprintf(replay, sizeof replay, "fluidpipe_idle_replay: %s/first2/opportunistic.jsonl\n", scratch.dir);
	ran = run_pair(&scratch, 0, keys, replay, LONG);
	run_free(&ran);
	check_same_file(&scratch, "first2", "out2", "opportunistic.jsonl");
	check_same_file(&scratch, "first2", "out2", "model.safetensors");
	check_same_file(&scratch, "first2", "out2", "checkpoint-10/optimizer.safetensors");
	scratch_close(&scratch);
}

static void test_a_replay_of_random_steps_is_the_same_run(void **state)
{
	(void)state;
	check_replay("fluidpipe_idle_sampler: random\n", -1, "opportunistic steps: ");
}

static void test_a_replay_of_difficult_steps_with_a_small_store_is_the_same_run(void **state)
{
	(void)state;
	check_replay("fluidpipe_idle_sampler: eh-difficulty\nfluidpipe_idle_steps: 3\nfluidpipe_idle_task_scale: 0.4\n"
	             "fluidpipe_idle_dropout: 0.25\nfluidpipe_idle_store: 8KiB\nfluidpipe_idle_hard_share: 0.5\n"
	             "fluidpipe_idle_distillation_weight: -0.5\n",
	             3, "the oldest are forgotten");
}

/* Samples that memory has no room for come back from NVMe: the log of a run that kept all in memory is followed to the same bits. */
static void test_a_run_that_spills_samples_is_the_run_that_keeps_them_in_memory(void **state)
{
	(void)state;
	struct scratch scratch;
	char keys[1024];
	make_run(&scratch);
	check_ok(rh_dir_make(path_of("%s/drive", scratch.dir)));
	struct ran ran = run_pair(&scratch, 1, "fluidpipe_idle_sampler: random\n", "", LONG);
	run_free(&ran);
	assert_true(check_log(&scratch, "out2", -1) > 0);
	keep_outputs(&scratch, "first");
	snprintf(keys, sizeof keys,
	         "fluidpipe_idle_replay: %s/first2/opportunistic.jsonl\nfluidpipe_idle_store: 2KiB\nfluidpipe_idle_spill: 1MiB\n"
	         "max_nvme: 4MiB\nnvme_dirs: [%s/drive]\n",
	         scratch.dir, scratch.dir);
	ran = run_pair(&scratch, 0, "fluidpipe_idle_sampler: random\n", keys, LONG);
	if (!strstr(ran.err, "NVMe: ") || strstr(ran.err, "are forgotten"))
		fail_msg("%s", ran.err);
	run_free(&ran);
	check_same_file(&scratch, "first2", "out2", "opportunistic.jsonl");
	check_same_file(&scratch, "first2", "out2", "model.safetensors");
	check_same_file(&scratch, "first2", "out2", "checkpoint-10/optimizer.safetensors");
	scratch_close(&scratch);
}

/* Without a step all is as without the key: none are allowed, or a log without lines is followed. */
static void test_no_step_is_no_change(void **state)
{
	(void)state;
	struct scratch scratch;
	char replay[256];
	make_run(&scratch);
	struct ran ran = run_pair(&scratch, 0, "", "", LONG);
	run_free(&ran);
	keep_outputs(&scratch, "plain");
	ran = run_pair(&scratch, 1, "fluidpipe_idle_sampler: task-loss\nfluidpipe_idle_steps: 0\n", "", LONG);
	run_free(&ran);
	for (int k = 1; k <= 2; k++) {
		char plain[16], out[16];
		snprintf(plain, sizeof plain, "plain%d", k);
		snprintf(out, sizeof out, "out%d", k);
		check_same_file(&scratch, plain, out, "model.safetensors");
		check_same_file(&scratch, plain, out, "checkpoint-10/optimizer.safetensors");
	}
	keep_outputs(&scratch, "none");
	write_text(path_of("%s/empty.jsonl", scratch.dir), "");
	snprintf(replay, sizeof replay, "fluidpipe_idle_replay: %s/empty.jsonl\n", scratch.dir);
	ran = run_pair(&scratch, 0, "fluidpipe_idle_sampler: difficulty\n", replay, LONG);
	run_free(&ran);
	check_same_file(&scratch, "plain2", "out2", "model.safetensors");
	scratch_close(&scratch);
}

/* A run that went on from a checkpoint has lost what it had received; its log says so, and what follows the log is the same run. */
static void test_a_run_that_went_on_is_replayed_whole(void **state)
{
	(void)state;
	static const char keys[] = "fluidpipe_idle_sampler: difficulty\n";
	struct scratch scratch;
	char replay[256];
	make_run(&scratch);
	struct ran ran = run_pair(&scratch, 1, keys, "", "--max_steps 10");
	run_free(&ran);
	ran = run_pair(&scratch, 1, keys, "", LONG " --resume_from_checkpoint true");
	run_free(&ran);
	assert_true(check_log(&scratch, "out2", -1) > 0);
	keep_outputs(&scratch, "first");
	snprintf(replay, sizeof replay, "fluidpipe_idle_replay: %s/first2/opportunistic.jsonl\n", scratch.dir);
	ran = run_pair(&scratch, 0, keys, replay, LONG);
	run_free(&ran);
	check_same_file(&scratch, "first2", "out2", "model.safetensors");
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = enter_host;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_replay_of_random_steps_is_the_same_run),
	        cmocka_unit_test(test_a_replay_of_difficult_steps_with_a_small_store_is_the_same_run),
	        cmocka_unit_test(test_a_run_that_spills_samples_is_the_run_that_keeps_them_in_memory),
	        cmocka_unit_test(test_no_step_is_no_change),
	        cmocka_unit_test(test_a_run_that_went_on_is_replayed_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
