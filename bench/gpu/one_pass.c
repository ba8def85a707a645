/* Attention's backward, whose blocks add to dq one after the other: that 50 runs give the same bits, and what the waits cost. */
#include "bench/gpu/bench.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS = 50 };

extern int bench_unordered; /* unordered.cu */

/* dq, dk, dv: one after the other in `out`. */
static int gradients(struct bench *bench, const struct rh_op *back, char *out)
{
	const struct rh_device_ops *ops = bench->device->ops;
	int rc = ops->launch(bench->device, RH_STREAM_COMPUTE, back);
	for (int i = RH_ATTENTION_BACKWARD_DQ; !rc && i <= RH_ATTENTION_BACKWARD_DV; i++) {
		rc = ops->copy_down(bench->device, RH_STREAM_COMPUTE, out, back->operand[i].data, rh_view_bytes(back->operand[i]));
		out += rh_view_bytes(back->operand[i]);
	}
	return rc ? rc : ops->synchronize(bench->device);
}

static int same_bits(struct bench *bench, const struct bench_shape *s)
{
	struct rh_op op, back;
	int64_t bytes = 0;
	int rc = bench_attention(bench, s, s->tokens, &op, &back), runs = bench->small ? 3 : RUNS, different = 0;
	for (int i = RH_ATTENTION_BACKWARD_DQ; i <= RH_ATTENTION_BACKWARD_DV; i++)
		bytes += rh_view_bytes(back.operand[i]);
	char *first = malloc((size_t)bytes), *again = malloc((size_t)bytes);
	if (!rc && (!first || !again))
		rc = rh_fail(-ENOMEM, "no host memory for gradients");
	if (!rc)
		rc = bench->device->ops->launch(bench->device, RH_STREAM_COMPUTE, &op);
	if (!rc)
		rc = gradients(bench, &back, first);
	for (int i = 1; !rc && i < runs; i++) {
		rc = gradients(bench, &back, again);
		different += !rc && memcmp(first, again, (size_t)bytes) != 0;
	}
	free(first);
	free(again);
	if (rc)
		return rc;
	bench_line("repeats",
	           "\"result\": \"%s\", \"what\": \"attention's backward, %d runs, head size %lld\", \"why\": \"%d differ from the first\"",
	           different ? "failed" : "ok", runs, (long long)s->head_dim, different);
	return different ? rh_fail(-EIO, "%d of %d runs of attention's backward differ", different, runs) : 0;
}

int bench_repeats(struct bench *bench, const struct bench_shape *s, double copy)
{
	static const int64_t dims[] = {64, 96, 128};
	struct bench_shape shape = *s;
	int rc = 0;
	(void)copy;
	shape.tokens = bench->small ? 96 : 4096;
	for (int i = 0; !rc && i < (bench->small ? 1 : 3); i++) {
		shape.head_dim = dims[i];
		rc = same_bits(bench, &shape);
	}
	return rc;
}

/* An SM whose mma is fast takes other kernels, unless RH_SHARED_BYTES says that it has an RTX card's memory: then both times are one. */
int bench_waits(struct bench *bench, const struct bench_shape *s, double copy)
{
	static const int64_t dims[] = {64, 128};
	struct bench_shape shape = *s;
	int rc = 0;
	(void)copy;
	for (int i = 0; !rc && i < (bench->small ? 1 : 2); i++) {
		struct rh_op op, back;
		double ordered, unordered;
		shape.head_dim = dims[i];
		rc = bench_attention(bench, &shape, bench->small ? 64 : 8192, &op, &back);
		if (!rc)
			rc = bench_op(bench, &back, 1, &ordered);
		bench_unordered = 1;
		if (!rc)
			rc = bench_op(bench, &back, 1, &unordered);
		bench_unordered = 0;
		if (!rc)
			bench_line("waits",
			           "\"what\": \"attention's backward without its waits\", \"head_dim\": %lld, \"ms\": %.4f, "
			           "\"without_ms\": %.4f, "
			           "\"share_of_waits\": %.4f",
			           (long long)shape.head_dim, ordered * 1e3, unordered * 1e3, 1 - unordered / ordered);
	}
	return rc;
}
