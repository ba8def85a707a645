/* More memory is never slower, and never refused: random runs of the models of examples/models, each with two sizes of one budget. */
#include "check.h"

#include "config/config.h"
#include "core/log.h"
#include "forecast/judge.h"
#include "forecast/machine_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 40, PAIRS_LONG = 500, WORDS = 32 };

static const double slower_most = 0.01;

struct machine {
	const char *name;
	int devices_most, vram_gib, ram_gib; /* what a run may have */
};

static const char *const models[] = {"qwen3-1.7b",  "llama-3.1-8b", "mistral-7b", "qwen3-8b",
                                     "gpt-oss-20b", "qwen3.5-9b",   "gpt2-medium"};
static const struct machine machines[] = {{"rtx4090x8", 8, 22, 700}, {"h100x1", 1, 76, 120}, {"rtx4090x1", 1, 22, 60},
                                          {"rtx3060", 1, 10, 60}};

static int64_t pick(uint64_t *seed, int64_t count)
{
	return check_random(seed) % count;
}

/* A run's words but for the budget. Returns how many. */
static int draw(uint64_t *seed, const struct machine *machine, char words[WORDS][64])
{
	const char *model = models[pick(seed, sizeof models / sizeof *models)];
	int count = 0, is_long = strcmp(model, "gpt2-medium") != 0;
	static const int64_t steps[] = {1, 2, 4, 8, 16};
#define ADD(...) (void)snprintf(words[count++], sizeof words[0], __VA_ARGS__)
	ADD("--config-name");
	ADD("examples/models/%s", model);
	ADD("--hardware");
	ADD("%s", machine->name);
	ADD("--gpus");
	ADD("%d", 1 << pick(seed, machine->devices_most > 1 ? 4 : 1));
	ADD("--gradient-accumulation-steps");
	ADD("%d", (int)steps[pick(seed, 5)]);
	ADD("--per-device-train-batch-size");
	ADD("%d", 1 << pick(seed, 3));
	ADD("--max-length");
	ADD("%d", (is_long ? 512 : 256) << pick(seed, 3));
	if (pick(seed, 2)) {
		ADD("--use-peft");
		ADD("true");
		ADD("--lora-target-modules");
		ADD("all-linear");
	}
#undef ADD
	return count;
}

/* Tokens/s with this much of a budget; 0: the run does not fit. */
static double predict(char words[WORDS][64], int count, const char *key, int64_t mib)
{
	char *argument[WORDS + 2], value[32];
	struct rh_config config;
	struct rh_machine_found found;
	struct rh_forecast_input input;
	struct rh_forecast is;
	for (int i = 0; i < count; i++)
		argument[i] = words[i];
	argument[count] = (char *)(uintptr_t)key;
	argument[count + 1] = value;
	snprintf(value, sizeof value, "%lldMiB", (long long)mib);
	check_ok(rh_config_load("plan", count + 2, argument, NULL, &config));
	check_ok(rh_machine_find(&config, &found));
	check_ok(rh_forecast_input_synthetic(&config, 2, &input));
	int rc = rh_forecast_judged(&config, &found.machine, &input, NULL, &is);
	if (rc != RH_DOES_NOT_FIT)
		check_ok(rc);
	rh_error_clear();
	double speed = rc ? 0 : is.tokens_per_second;
	rh_forecast_free(&is);
	rh_forecast_input_free(&input);
	rh_machine_found_free(&found);
	rh_config_free(&config);
	return speed;
}

static void test_more_memory_is_never_slower(void **state)
{
	(void)state;
	int pairs = getenv("RH_LONG") ? PAIRS_LONG : PAIRS, fitting = 0, faster = 0, faults = 0;
	uint64_t seed = check_seed();
	for (int i = 0; i < pairs; i++) {
		const struct machine *machine = &machines[pick(&seed, sizeof machines / sizeof *machines)];
		char words[WORDS][64], line[512] = "";
		int count = draw(&seed, machine, words), is_vram = (int)pick(&seed, 2);
		int64_t most = (int64_t)(is_vram ? machine->vram_gib : machine->ram_gib) << 10, less = most / 8 + pick(&seed, most * 7 / 8);
		int64_t more = less + 1 + pick(&seed, most - less);
		const char *key = is_vram ? "--max-vram" : "--max-ram";
		double slow = predict(words, count, key, less), fast = predict(words, count, key, more);
		fitting += slow > 0;
		faster += fast > slow * 1.01;
		if (slow <= 0 || fast >= slow * (1 - slower_most))
			continue;
		for (int k = 0; k < count; k++)
			snprintf(line + strlen(line), sizeof line - strlen(line), " %s", words[k]);
		print_error("plan%s %s: %lld MiB %.1f tokens/s, %lld MiB %.1f\n", line, key, (long long)less, slow, (long long)more, fast);
		faults++;
	}
	printf("%d pairs, %d that fit in less, %d faster with more\n", pairs, fitting, faster);
	assert_int_equal(faults, 0);
	assert_true(fitting > pairs / 4 && faster > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_more_memory_is_never_slower)};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
