/* Golden predictions: what the simulated executor says of each run of golden.txt stays what the table says: times within 2 %, the bubble
 * within 2 points, bytes exactly. Each run's deviation is printed. RH_GOLDEN_ONLY=PART runs those alone whose names hold PART;
 * RH_GOLDEN_WRITE=FILE writes the table anew (RH_GOLDEN_WRITE_LONG: the long one), for a change that is meant. */
#include "check.h"

#include "config/config.h"
#include "core/hooks.h"
#include "core/log.h"
#include "forecast/judge.h"
#include "forecast/machine_find.h"

#include <math.h>
#include <string.h>
#include <time.h>

#define TABLE      "tests/plan/golden.txt"
#define LONG_TABLE "tests/plan/golden-long.txt"

enum { NAME_MOST = 64, WORDS_MOST = 1024, ARGUMENTS_MOST = 64, COUNTS = 5, STEPS = 3 };

static const double times_apart = 0.02, bubble_apart = 0.02;

/* A run of the table: two lines, its name and words, then its prediction. */
struct run {
	char name[NAME_MOST], words[WORDS_MOST];
	double step_seconds, tokens_per_second, bubble;
	long long bytes[COUNTS]; /* of a device, reserved of host memory, on NVMe, written there each step; and micro-batches in a round */
};

static const char *const count_name[COUNTS] = {"device bytes", "host bytes", "NVMe bytes", "NVMe bytes a step", "round"};

static double seconds_of_processor(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* 1: read; 0: the table is over. Comment lines and empty lines are passed over. */
static int read_run(FILE *table, struct run *out)
{
	char line[NAME_MOST + WORDS_MOST];
	do {
		if (!fgets(line, sizeof line, table))
			return 0;
	} while (*line == '#' || *line == '\n');
	assert_int_equal(sscanf(line, "%63[^:]: %1023[^\n]", out->name, out->words), 2);
	assert_non_null(fgets(line, sizeof line, table));
	int found = sscanf(line, " step_s %lf tokens_per_s %lf bubble %lf device %lld host %lld nvme %lld nvme_step %lld round %lld",
	                   &out->step_seconds, &out->tokens_per_second, &out->bubble, &out->bytes[0], &out->bytes[1], &out->bytes[2],
	                   &out->bytes[3], &out->bytes[4]);
	if (found != 8)
		fail_msg("%s: its second line has no eight values", out->name);
	return 1;
}

static void write_run(FILE *table, const struct run *run)
{
	fprintf(table, "%s: %s\n\tstep_s %.9g tokens_per_s %.9g bubble %.6f device %lld host %lld nvme %lld nvme_step %lld round %lld\n",
	        run->name, run->words, run->step_seconds, run->tokens_per_second, run->bubble, run->bytes[0], run->bytes[1], run->bytes[2],
	        run->bytes[3], run->bytes[4]);
}

/* Micro-batches of unlike lengths, as packed rows never are and others always. */
static void make_uneven(struct rh_forecast_input *input)
{
	int64_t count = input->work.train_micro_batches;
	struct rh_micro_shape whole = input->micro[0];
	free(input->micro);
	input->micro = calloc((size_t)(input->steps * count), sizeof *input->micro);
	input->alike = 0;
	input->tokens_a_step = 0;
	for (int64_t i = 0; i < input->steps * count; i++) {
		int64_t shorter = whole.longest * (i * 7 % 5) / 10;
		struct rh_micro_shape shape = whole;
		shape.longest -= shorter;
		shape.tokens -= shorter * whole.documents;
		shape.head_rows -= shorter * whole.documents;
		input->micro[i] = shape;
		input->tokens_a_step += (double)shape.tokens / input->steps;
	}
}

static void predict(const struct rh_config *config, int uneven, struct run *out)
{
	struct rh_machine_found found;
	struct rh_forecast_input input;
	struct rh_forecast is;
	check_ok(rh_machine_find(config, &found));
	check_ok(rh_forecast_input_synthetic(config, STEPS, &input));
	if (uneven)
		make_uneven(&input);
	check_ok(rh_forecast_judged(config, &found.machine, &input, NULL, &is));
	out->step_seconds = is.step_seconds;
	out->tokens_per_second = is.tokens_per_second;
	out->bubble = is.bubble;
	/* what is reserved: the allowance for the program beside it is no part, as it changes with the size of its structs */
	int64_t host = is.store_bytes + is.boundary_bytes + is.data_bytes + is.host_devices * is.device_bytes;
	const int64_t bytes[COUNTS] = {is.device_bytes, host, is.nvme_bytes, is.nvme_step_bytes, is.round_micro_batches};
	for (int i = 0; i < COUNTS; i++)
		out->bytes[i] = bytes[i];
	rh_forecast_free(&is);
	rh_forecast_input_free(&input);
	rh_machine_found_free(&found);
}

/* The words are `plan`'s; before them may stand "uneven". */
static void run_words(const struct run *run, struct run *out)
{
	char words[WORDS_MOST], *argument[ARGUMENTS_MOST], *place = NULL;
	int count = 0, uneven = 0;
	struct rh_config config;
	*out = *run;
	snprintf(words, sizeof words, "%s", run->words);
	for (char *word = strtok_r(words, " ", &place); word; word = strtok_r(NULL, " ", &place)) {
		assert_true(count < ARGUMENTS_MOST);
		if (!strcmp(word, "uneven"))
			uneven = 1;
		else
			argument[count++] = word;
	}
	check_ok(rh_config_load("plan", count, argument, NULL, &config));
	predict(&config, uneven, out);
	rh_config_free(&config);
}

/* How many values are off. */
static int compare(const struct run *gold, const struct run *now, double cpu_seconds)
{
	double step = now->step_seconds / gold->step_seconds - 1, speed = now->tokens_per_second / gold->tokens_per_second - 1,
	       bubble = now->bubble - gold->bubble;
	int off = !(fabs(step) <= times_apart) + !(fabs(speed) <= times_apart) + !(fabs(bubble) <= bubble_apart);
	printf("%-32s step %9.4f s %+6.2f %%, tokens/s %+6.2f %%, bubble %5.2f %% %+6.2f points, bytes", gold->name, now->step_seconds,
	       100 * step, 100 * speed, 100 * now->bubble, 100 * bubble);
	int same = 1;
	for (int i = 0; i < COUNTS; i++) {
		if (gold->bytes[i] == now->bytes[i])
			continue;
		printf("%s %s %lld, were %lld", same ? " OFF:" : ",", count_name[i], now->bytes[i], gold->bytes[i]);
		same = 0;
		off++;
	}
	printf("%s; %.2f s of processor time%s\n", same ? " the same" : "", cpu_seconds, off ? "  <-- OFF" : "");
	return off;
}

static void check_table(const char *path, const char *written, int least)
{
	const char *only = getenv("RH_GOLDEN_ONLY");
	FILE *table = fopen(path, "r"), *anew = written ? fopen(written, "w") : NULL;
	struct run gold, now;
	int runs = 0, off = 0;
	assert_non_null(table);
	assert_true(!written || anew);
	while (read_run(table, &gold)) {
		if (only && !strstr(gold.name, only))
			continue;
		double began = seconds_of_processor();
		run_words(&gold, &now);
		off += compare(&gold, &now, seconds_of_processor() - began) > 0;
		runs++;
		if (anew)
			write_run(anew, &now);
	}
	fclose(table);
	if (anew)
		fclose(anew);
	printf("%d runs, %d off\n", runs, off);
	assert_true(only || runs >= least);
	assert_int_equal(off, 0);
}

static void test_predictions_stay_as_the_golden_table_has_them(void **state)
{
	(void)state;
	check_table(TABLE, getenv("RH_GOLDEN_WRITE"), 40);
}

static void test_predictions_of_long_steps_stay_too(void **state)
{
	(void)state;
	if (!getenv("RH_LONG"))
		check_skip("six long steps of the golden table; make test-long runs them");
	check_table(LONG_TABLE, getenv("RH_GOLDEN_WRITE_LONG"), 6);
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_predictions_stay_as_the_golden_table_has_them),
	                                   cmocka_unit_test(test_predictions_of_long_steps_stay_too)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
