/* More memory is never slower, and never refused: random runs of the models of examples/models and of random shapes, each with two sizes of
 * one budget. And what the planner chooses by itself is as fast when it is given by hand. */
#include "plan/predict.h"

#include "core/log.h"

#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

enum { PAIRS = 40, PAIRS_LONG = 500, HAND = 4 /* of so many pairs, one is tried with its rounds given by hand */ };

static const double apart_most = 0.01; /* of a run's speed */

struct machine {
	const char *name;
	int devices_most, vram_gib, ram_gib; /* what a run may have */
};

/* The large ones in long runs alone. */
static const char *const models[] = {"qwen3-1.7b",        "llama-3.1-8b",  "mistral-7b",     "qwen3-8b",  "gpt-oss-20b",
                                     "qwen3.5-9b",        "gpt2-medium",   "bert-large",     "vit-large", "qwen3-30b-a3b",
                                     "qwen3.5-27b",       "gemma-3-27b",   "gemma-4-31b",    "qwen3-32b", "qwen3.5-35b-a3b",
                                     "qwen3.5-122b-a10b", "llama-3.1-70b", "qwen3-235b-a22b"};
enum { SMALL = 10, MODELS = sizeof models / sizeof *models, ENCODERS = 7 };
static const struct machine machines[] = {
        {"rtx4090x8", 8, 22, 700}, {"h100x1", 1, 76, 120}, {"rtx4090x1", 1, 22, 60}, {"rtx3060", 1, 10, 60}};

static int64_t pick(uint64_t *seed, int64_t count)
{
	return check_random(seed) % count;
}

static void add(char line[PREDICT_LINE], const char *format, ...)
{
	size_t used = strlen(line);
	va_list args;
	va_start(args, format);
	vsnprintf(line + used, PREDICT_LINE - used, format, args);
	va_end(args);
}

/* A dense model of a random shape, in a file of its own. */
static void write_shape(uint64_t *seed, const char *path)
{
	static const int widths[] = {512, 1024, 2048, 3072, 5120};
	int width = widths[pick(seed, 5)], heads = width / 64, layers = 2 + (int)pick(seed, 46);
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file,
	        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, "
	        "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": 64, \"vocab_size\": "
	        "%d, "
	        "\"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
	        "\"tie_word_embeddings\": %s, \"torch_dtype\": \"bfloat16\"}",
	        width, width * (2 + (int)pick(seed, 3)), layers, heads, pick(seed, 2) ? heads : heads / 4, 8000 << pick(seed, 5),
	        pick(seed, 2) ? "true" : "false");
	assert_int_equal(fclose(file), 0);
}

/* A run but for the budget. */
static void draw(uint64_t *seed, const struct machine *machine, const char *shape, char line[PREDICT_LINE])
{
	static const int steps[] = {1, 2, 4, 8, 16, 64};
	int number = (int)pick(seed, getenv("RH_LONG") ? MODELS : SMALL), is_encoder = number == ENCODERS || number == ENCODERS + 1,
	    kind = (int)pick(seed, 4), is_long = number != ENCODERS - 1;
	*line = 0;
	if (kind == 3) {
		write_shape(seed, shape);
		add(line, "--config-name %s --dtype bfloat16", shape);
		is_encoder = is_long = 0;
	} else if (kind == 2 || is_encoder) { /* as its file has it */
		add(line, "examples/models/%s.yaml", models[number]);
	} else {
		add(line, "--config-name examples/models/%s", models[number]);
	}
	add(line, " --hardware %s --gpus %d --gradient-accumulation-steps %d", machine->name,
	    1 << pick(seed, machine->devices_most > 1 ? 4 : 1), steps[pick(seed, 6)]);
	if (!is_encoder)
		add(line, " --per-device-train-batch-size %d --max-length %d", 1 << pick(seed, 3), (is_long ? 512 : 256) << pick(seed, 3));
	if (!is_encoder && kind != 2 && pick(seed, 2))
		add(line, " --use-peft true --lora-target-modules all-linear");
}

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
	if (slow.speed <= 0 || fast.speed >= slow.speed * (1 - apart_most))
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
	if (by_hand >= speed * (1 - apart_most) && by_hand <= speed * (1 + apart_most))
		return 0;
	print_error("plan %s %s %lldMiB: %.1f tokens/s, by itself %.1f\n", line, key, (long long)mib, by_hand, speed);
	return 1;
}

struct counts {
	int fitting, faster, faults;
};

/* Each pair has a seed of its own, so that one can be tried alone. */
static void try_pair(uint64_t seed, int number, const char *shape, struct counts *counts)
{
	static const char *const keys[] = {"--max-vram", "--max-ram", "--max-nvme"};
	seed += (uint64_t)number * UINT64_C(0x9E3779B97F4A7C15);
	const struct machine *machine = &machines[pick(&seed, sizeof machines / sizeof *machines)];
	char run[PREDICT_LINE];
	draw(&seed, machine, shape, run);
	int64_t ram = (int64_t)machine->ram_gib << 10;
	int kind = (int)pick(&seed, 5), which = kind > 2 ? kind - 3 : kind, spills = kind > 1;
	int64_t most = which == 0 ? (int64_t)machine->vram_gib << 10 : which == 1 ? ram : (int64_t)500 << 10;
	int64_t less = most / 8 + pick(&seed, most * 7 / 8), more = less + 1 + pick(&seed, most - less);
	if (spills)
		add(run, " --spill auto --nvme-dirs /tmp%s", which == 2 ? "" : " --max-nvme 1TiB");
	if (spills && which != 1)
		add(run, " --max-ram %lldMiB", (long long)(ram / 8 + pick(&seed, ram / 2)));
	struct said slow = predict(run, keys[which], less), fast = predict(run, keys[which], more);
	if (getenv("RH_PAIRS"))
		printf("%d: plan %s %s %lldMiB, %lldMiB: %.1f tokens/s, %.1f\n", number, run, keys[which], (long long)less, (long long)more,
		       slow.speed, fast.speed);
	int faults = is_slower(run, keys[which], less, slow, more, fast);
	if (slow.speed > 0 && !spills && number % HAND == 0)
		faults += differs_by_hand(run, keys[which], less, slow);
	if (faults)
		print_error("that was pair %d: RH_PAIRS=%d\n", number, number);
	counts->fitting += slow.speed > 0;
	counts->faster += fast.speed > slow.speed * (1 + apart_most);
	counts->faults += faults;
}

/* RH_PAIRS=FIRST[-LAST] tries these pairs alone. */
static void test_more_memory_is_never_slower(void **state)
{
	(void)state;
	const char *only = getenv("RH_PAIRS");
	int first = 0, last = (getenv("RH_LONG") ? PAIRS_LONG : PAIRS) - 1;
	if (only && sscanf(only, "%d-%d", &first, &last) == 1)
		last = first;
	struct counts counts = {0};
	uint64_t seed = check_seed();
	char shape[] = "/tmp/rh-shape-XXXXXX";
	int file = mkstemp(shape);
	assert_true(file >= 0);
	close(file);
	for (int i = first; i <= last; i++)
		try_pair(seed, i, shape, &counts);
	assert_int_equal(unlink(shape), 0);
	printf("%d pairs, %d that fit in less, %d faster with more\n", last - first + 1, counts.fitting, counts.faster);
	assert_int_equal(counts.faults, 0);
	assert_true(only || (counts.fitting > PAIRS / 4 && counts.faster > 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_more_memory_is_never_slower)};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
