/* How fast is the gated delta rule on a CPU device? Forward, and forward with backward, of the heads of a quarter of a Qwen3.5 9B layer,
 * fp32, one thread. Beside it transformers' own way without other packages (torch_chunk_gated_delta_rule, bench/delta-peer.py), in the same
 * run, where build/venv is there (`make reference`; DELTA_PEER names another python). Processor time, medians.
 *
 * usage: delta [rounds] */
#include "core/pool.h"
#include "device/cpu/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 2048, KEY_HEADS = 4, HEADS = 8, LENGTH = 128, MOST_ROUNDS = 64 };

static void must(int rc)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "delta: %s\n", rh_error(rc));
	exit(1);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct rh_view fresh(int64_t rows, int64_t cols)
{
	static uint32_t state = 1;
	float *values = malloc((size_t)(rows * cols) * sizeof *values);
	if (!values)
		must(rh_fail(-ENOMEM, "out of memory"));
	for (int64_t i = 0; i < rows * cols; i++)
		values[i] = (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
	return rh_view_of(values, RH_F32, rows, cols);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(double *of, int count)
{
	qsort(of, (size_t)count, sizeof *of, ascending);
	return of[count / 2];
}

/* Ours, in seconds. */
static void run(struct cpu_context *context, int rounds, double out[2])
{
	static int32_t starts[2] = {0, TOKENS};
	static double forward_time[MOST_ROUNDS], both_time[MOST_ROUNDS];
	struct rh_op forward = {.kind = RH_OP_DELTA, .delta = {HEADS, KEY_HEADS, 1}},
	             backward = {.kind = RH_OP_DELTA_BACKWARD, .delta = {HEADS, KEY_HEADS, 1}};
	const int64_t width[] = {KEY_HEADS * LENGTH, KEY_HEADS * LENGTH, HEADS * LENGTH, HEADS, HEADS};
	for (int i = RH_DELTA_Q; i <= RH_DELTA_A; i++)
		forward.operand[i] = fresh(TOKENS, width[i]);
	forward.operand[RH_DELTA_A_LOG] = fresh(1, HEADS);
	forward.operand[RH_DELTA_DT_BIAS] = fresh(1, HEADS);
	forward.operand[RH_DELTA_START] = rh_view_of(starts, RH_I32, 2, 1);
	for (int i = RH_DELTA_Q; i <= RH_DELTA_START; i++)
		backward.operand[i] = forward.operand[i];
	forward.operand[RH_DELTA_O] = fresh(TOKENS, HEADS * LENGTH);
	backward.operand[RH_DELTA_BACKWARD_DO] = fresh(TOKENS, HEADS * LENGTH);
	for (int i = RH_DELTA_Q; i <= RH_DELTA_A; i++)
		backward.operand[RH_DELTA_BACKWARD_DQ + i] = fresh(TOKENS, width[i]);
	backward.operand[RH_DELTA_BACKWARD_DA_LOG] = fresh(1, HEADS);
	backward.operand[RH_DELTA_BACKWARD_DDT_BIAS] = fresh(1, HEADS);
	backward.operand[RH_DELTA_BACKWARD_SPACE] = fresh(1, rh_delta_space(TOKENS, 1, HEADS, LENGTH, LENGTH));
	for (int r = -1; r < rounds; r++) {
		double start = now();
		must(cpu_run(context, &forward));
		double middle = now();
		must(cpu_run(context, &backward));
		if (r >= 0) {
			forward_time[r] = middle - start;
			both_time[r] = now() - start;
		}
	}
	out[0] = median(forward_time, rounds);
	out[1] = median(both_time, rounds);
}

/* The peer's, in seconds; 0: it is not there. */
static int run_peer(int rounds, double out[2])
{
	const char *python = getenv("DELTA_PEER");
	char command[512];
	python = python ? python : "build/venv/run";
	if (access(python, X_OK))
		return 0;
	snprintf(command, sizeof command, "%s bench/delta-peer.py %d %d %d %d %d", python, TOKENS, KEY_HEADS, HEADS, LENGTH, rounds);
	FILE *pipe = popen(command, "r");
	int found = pipe && fscanf(pipe, "%lf %lf", &out[0], &out[1]) == 2;
	if (pipe)
		(void)pclose(pipe);
	return found;
}

int main(int count, char **argument)
{
	static const char *const what[2] = {"forward", "forward and backward"};
	struct cpu_context context = {.isa = rh_cpu_best_isa()};
	int rounds = count > 1 ? atoi(argument[1]) : 5;
	double ours[2], peers[2];
	if (rounds < 1 || rounds > MOST_ROUNDS) {
		fprintf(stderr, "delta: 1 to %d rounds\n", MOST_ROUNDS);
		return 2;
	}
	must(rh_pool_create(1, &context.pool));
	run(&context, rounds, ours);
	int has_peer = run_peer(rounds, peers);
	printf("gated delta rule, %d tokens, %d key heads, %d value heads of %d, fp32, one thread (%s)\n", TOKENS, KEY_HEADS, HEADS, LENGTH,
	       rh_cpu_isa_name(context.isa));
	for (int i = 0; i < 2; i++) {
		printf("%-21s %7.1f ms", what[i], 1e3 * ours[i]);
		if (has_peer)
			printf(", transformers %7.1f ms: %.2f times as fast", 1e3 * peers[i], peers[i] / ours[i]);
		printf("\n");
	}
	rh_pool_destroy(context.pool);
	return 0;
}
