/* More memory is never slower, and never refused: random runs of the models of examples/models and of random shapes, each with two sizes of
 * one budget. And what the planner chooses by itself is as fast when it is given by hand. */
#include "plan/predict.h"
#include "plan/random_runs.h"

#include "core/log.h"

#include <stdlib.h>
#include <unistd.h>

enum {
	PAIRS = 40,
	PAIRS_LONG = 500,
	CHUNKED = 12,
	CHUNKED_LONG = 100,
	HAND = 4 /* of so many pairs, one is tried with its rounds given by hand */
};

/* Of a run's speed. By hand fewer rounds are compared; of rows in chunks what the host's memory has room for is saved, which follows from
 * the plan beside it. */
static const double apart_most = 0.01, apart_by_hand = 0.02, apart_in_chunks = 0.02;

struct said {
	double speed; /* tokens/s; 0: the run does not fit */
	int64_t round, nvme_bytes;
};

static struct said predict(const char *run, const char *key, int64_t mib)
{
	char line[PREDICT_LINE];
	struct rh_forecast is = {0};
	snprintf(line, sizeof line, "%s %s %lldMiB", run, key, (long long)mib);
	int rc = predict_words(line, &is);
	struct said said = {.speed = rc ? 0 : is.tokens_per_second, .round = is.round_micro_batches, .nvme_bytes = is.nvme_bytes};
	rh_forecast_free(&is);
	return said;
}

static int is_slower(const char *run, const char *key, int64_t less, struct said slow, int64_t more, struct said fast)
{
	double most = strstr(run, "--sequence-chunk") ? apart_in_chunks : apart_most;
	if (slow.speed <= 0 || fast.speed >= slow.speed * (1 - most))
		return 0;
	print_error("plan %s %s: %lld MiB %.1f tokens/s (%.1f GiB on NVMe), %lld MiB %.1f (%.1f)\n", run, key, (long long)less, slow.speed,
	            (double)slow.nvme_bytes / (1 << 30), (long long)more, fast.speed, (double)fast.nvme_bytes / (1 << 30));
	return 1;
}

/* 1: the rounds that were chosen give another speed when they are named. */
static int differs_by_hand(const char *run, const char *key, int64_t mib, struct said by_itself)
{
	char line[PREDICT_LINE];
	snprintf(line, sizeof line, "%s --round-micro-batches %lld", run, (long long)by_itself.round);
	double by_hand = predict(line, key, mib).speed, speed = by_itself.speed;
	if (by_hand >= speed * (1 - apart_by_hand) && by_hand <= speed * (1 + apart_by_hand))
		return 0;
	print_error("plan %s %s %lldMiB: %.1f tokens/s, by itself %.1f\n", line, key, (long long)mib, by_hand, speed);
	return 1;
}

struct counts {
	int fitting, faster, faults;
};

/* Rows in chunks. */
static void draw_chunked(uint64_t *seed, const struct run_machine *machine, const char *shape, char run[PREDICT_LINE])
{
	static const char *const some[] = {"llama-3.1-8b", "qwen3-8b", "mistral-7b", "qwen3.5-9b"};
	int number = (int)run_pick(seed, 5);
	*run = 0;
	if (number == 4)
		run_write_shape(seed, shape);
	run_add(run, number == 4 ? "--config-name %s --dtype bfloat16" : "--config-name examples/models/%s",
	        number == 4 ? shape : some[number]);
	run_add(run,
	        " --hardware %s --gpus %d --gradient-accumulation-steps %d --max-length 8192 --per-device-train-batch-size 1 "
	        "--sequence-chunk %d",
	        machine->name, 1 << run_pick(seed, machine->devices_most > 1 ? 4 : 1), 1 << run_pick(seed, 4), 1024 << run_pick(seed, 3));
	if (run_pick(seed, 2))
		run_add(run, " --use-peft true --lora-target-modules all-linear");
}

/* Each pair has a seed of its own, so that one can be tried alone. */
static void try_pair(uint64_t seed, int number, int is_chunked, const char *shape, struct counts *counts)
{
	static const char *const keys[] = {"--max-vram", "--max-ram", "--max-nvme"};
	seed += (uint64_t)number * UINT64_C(0x9E3779B97F4A7C15);
	const struct run_machine *machine = &run_machines[run_pick(&seed, sizeof run_machines / sizeof *run_machines)];
	char run[PREDICT_LINE];
	(is_chunked ? draw_chunked : run_draw)(&seed, machine, shape, run);
	int64_t ram = (int64_t)machine->ram_gib << 10;
	int kind = (int)run_pick(&seed, 5), which = kind > 2 ? kind - 3 : kind, spills = kind > 1;
	int64_t most = which == 0 ? (int64_t)machine->vram_gib << 10 : which == 1 ? ram : (int64_t)500 << 10;
	int64_t less = most / 8 + run_pick(&seed, most * 7 / 8), more = less + 1 + run_pick(&seed, most - less);
	if (spills)
		run_add(run, " --spill auto --nvme-dirs /tmp%s", which == 2 ? "" : " --max-nvme 1TiB");
	if (spills && which != 1)
		run_add(run, " --max-ram %lldMiB", (long long)(ram / 8 + run_pick(&seed, ram / 2)));
	struct said slow = predict(run, keys[which], less), fast = predict(run, keys[which], more);
	if (getenv("RH_PAIRS"))
		printf("%d: plan %s %s %lldMiB, %lldMiB: %.1f tokens/s, %.1f\n", number, run, keys[which], (long long)less, (long long)more,
		       slow.speed, fast.speed);
	int faults = is_slower(run, keys[which], less, slow, more, fast);
	if (slow.speed > 0 && !spills && !is_chunked && number % HAND == 0)
		faults += differs_by_hand(run, keys[which], less, slow);
	if (faults)
		print_error("that was pair %d: RH_PAIRS=%d\n", number, number);
	counts->fitting += slow.speed > 0;
	counts->faster += fast.speed > slow.speed * (1 + apart_most);
	counts->faults += faults;
}

/* RH_PAIRS=FIRST[-LAST] tries these pairs alone. */
static void try_pairs(int pairs, int is_chunked)
{
	const char *only = getenv("RH_PAIRS");
	int first = 0, last = pairs - 1;
	if (only && sscanf(only, "%d-%d", &first, &last) == 1)
		last = first;
	struct counts counts = {0};
	uint64_t seed = check_seed();
	char shape[] = "/tmp/rh-shape-XXXXXX";
	int file = mkstemp(shape);
	assert_true(file >= 0);
	close(file);
	for (int i = first; i <= last; i++)
		try_pair(seed, i, is_chunked, shape, &counts);
	assert_int_equal(unlink(shape), 0);
	printf("%d pairs, %d that fit in less, %d faster with more\n", last - first + 1, counts.fitting, counts.faster);
	assert_int_equal(counts.faults, 0);
	assert_true(only || (counts.fitting >= pairs / 4 && counts.faster > 0));
}

static void test_more_memory_is_never_slower(void **state)
{
	(void)state;
	try_pairs(getenv("RH_LONG") ? PAIRS_LONG : PAIRS, 0);
}

static void test_more_memory_is_never_slower_in_chunks(void **state)
{
	(void)state;
	try_pairs(getenv("RH_LONG") ? CHUNKED_LONG : CHUNKED, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_more_memory_is_never_slower),
	                                   cmocka_unit_test(test_more_memory_is_never_slower_in_chunks)};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
