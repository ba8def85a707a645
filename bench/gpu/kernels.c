/* Kernels of one layer, each alone, on arrays beyond the caches: what is bound by memory against a copy on the device, attention by its
 * rate (bench/gpu-peers.py measures PyTorch's on the same shapes). */
#include "bench/gpu/bench.h"

#include "cuda/head_loss.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20 };

static int fault_of(cudaError_t error)
{
	return error == cudaSuccess ? 0 : rh_fail(-EIO, "measuring a copy on the device: %s", cudaGetErrorString(error));
}

int bench_copy_bandwidth(struct bench *bench, double *bytes_per_second)
{
	size_t half = (size_t)bench->bytes / 4; /* 1 GiB where there is room */
	cudaStream_t stream = NULL;
	cudaEvent_t from = NULL, to = NULL;
	double best = 0;
	cudaError_t error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
	if (error == cudaSuccess)
		error = cudaEventCreateWithFlags(&from, cudaEventBlockingSync);
	if (error == cudaSuccess)
		error = cudaEventCreateWithFlags(&to, cudaEventBlockingSync);
	for (int i = 0; error == cudaSuccess && i < 7; i++) {
		float milliseconds = 0;
		error = cudaEventRecord(from, stream);
		if (error == cudaSuccess)
			error = cudaMemcpyAsync(bench->base + bench->bytes / 2, bench->base, half, cudaMemcpyDeviceToDevice, stream);
		if (error == cudaSuccess)
			error = cudaEventRecord(to, stream);
		if (error == cudaSuccess)
			error = cudaEventSynchronize(to);
		if (error == cudaSuccess)
			error = cudaEventElapsedTime(&milliseconds, from, to);
		double rate = milliseconds > 0 ? 2.0 * (double)half / ((double)milliseconds / 1e3) : 0;
		best = rate > best ? rate : best;
	}
	if (from)
		(void)cudaEventDestroy(from);
	if (to)
		(void)cudaEventDestroy(to);
	if (stream)
		(void)cudaStreamDestroy(stream);
	*bytes_per_second = best;
	bench_line("kernels", "\"kernel\": \"copy on the device\", \"value\": %.1f, \"unit\": \"GB/s\"", best / 1e9);
	return fault_of(error);
}

/* Inputs that are integers come from here; everything else is whatever the memory was filled with. */
static int put_ints(struct bench *bench, struct rh_view view, int64_t first, int64_t each)
{
	int32_t *values = malloc((size_t)view.rows * sizeof *values);
	if (!values)
		return rh_fail(-ENOMEM, "no host memory for indices");
	for (int64_t i = 0; i < view.rows; i++)
		values[i] = (int32_t)(first + i * each);
	int rc = bench->device->ops->copy_up(bench->device, RH_STREAM_COMPUTE, view.data, values, view.rows * 4);
	if (!rc)
		rc = bench->device->ops->synchronize(bench->device);
	free(values);
	return rc;
}

int bench_by_memory(struct bench *bench, const char *name, const struct rh_op *op, double copy, double bar)
{
	double seconds, bytes = rh_op_cost(op).bytes;
	const char *fault = rh_op_fault(op);
	if (fault)
		return rh_fail(-EINVAL, "%s: %s", name, fault);
	int rc = bench_op(bench, op, bench->small ? 1 : 4, &seconds);
	if (!rc)
		bench_line("kernels",
		           "\"kernel\": \"%s\", \"bytes\": %.0f, \"us\": %.2f, \"value\": %.1f, \"unit\": \"GB/s\", \"reference\": %.1f, "
		           "\"ratio\": %.3f, \"bar\": %.2f",
		           name, bytes, seconds * 1e6, bytes / seconds / 1e9, copy / 1e9, copy > 0 ? bytes / seconds / copy : 0, bar);
	return rc;
}

static int by_memory(struct bench *bench, const char *name, const struct rh_op *op, double copy)
{
	return bench_by_memory(bench, name, op, copy, 0.85);
}

static int norms(struct bench *bench, const struct bench_shape *s, double copy)
{
	bench->used = 0;
	struct rh_op op = {.kind = RH_OP_RMSNORM, .rmsnorm = {1, 1e-6f}};
	struct rh_view x = bench_view(bench, RH_BF16, s->tokens, s->hidden), w = bench_view(bench, RH_BF16, 1, s->hidden);
	struct rh_view y = bench_view(bench, RH_BF16, s->tokens, s->hidden), rstd = bench_view(bench, RH_F32, s->tokens, 1);
	struct rh_view dx = bench_view(bench, RH_BF16, s->tokens, s->hidden), dw = bench_view(bench, RH_F32, 1, s->hidden);
	op.operand[RH_RMSNORM_X] = x, op.operand[RH_RMSNORM_W] = w, op.operand[RH_RMSNORM_Y] = y, op.operand[RH_RMSNORM_RSTD] = rstd;
	int rc = by_memory(bench, "rmsnorm", &op, copy);
	struct rh_op back = {.kind = RH_OP_RMSNORM_BACKWARD, .rmsnorm = {1, 1e-6f}};
	back.operand[RH_RMSNORM_BACKWARD_X] = x, back.operand[RH_RMSNORM_BACKWARD_W] = w, back.operand[RH_RMSNORM_BACKWARD_RSTD] = rstd;
	back.operand[RH_RMSNORM_BACKWARD_DY] = y, back.operand[RH_RMSNORM_BACKWARD_DX] = dx;
	if (!rc)
		rc = by_memory(bench, "rmsnorm backward, frozen", &back, copy);
	back.operand[RH_RMSNORM_BACKWARD_DW] = dw;
	return rc ? rc : by_memory(bench, "rmsnorm backward", &back, copy);
}

static int elementwise(struct bench *bench, const struct bench_shape *s, double copy)
{
	bench->used = 0;
	struct rh_view gu = bench_view(bench, RH_BF16, s->tokens, 2 * s->inner), a = bench_view(bench, RH_BF16, s->tokens, s->inner);
	struct rh_op op = {.kind = RH_OP_GLU}, back = {.kind = RH_OP_GLU_BACKWARD};
	op.operand[RH_GLU_GU] = gu, op.operand[RH_GLU_A] = a;
	back.operand[RH_GLU_BACKWARD_GU] = back.operand[RH_GLU_BACKWARD_DGU] = gu;
	back.operand[RH_GLU_BACKWARD_DA] = back.operand[RH_GLU_BACKWARD_A] = a;
	int rc = by_memory(bench, "swiglu", &op, copy);
	if (!rc)
		rc = by_memory(bench, "swiglu backward", &back, copy);
	bench->used = 0;
	struct rh_view x = bench_view(bench, RH_BF16, s->tokens, s->heads * s->head_dim);
	struct rh_view table = bench_view(bench, RH_F32, s->tokens, s->head_dim);
	struct rh_op rope = {.kind = RH_OP_ROPE, .rope = {.heads = s->heads}};
	rope.operand[RH_ROPE_X] = x, rope.operand[RH_ROPE_TABLE_IN] = table;
	if (!rc)
		rc = by_memory(bench, "rope", &rope, copy);
	bench->used = 0;
	struct rh_op add = {.kind = RH_OP_DROPOUT, .dropout = {.p = 0.1f}};
	add.operand[RH_DROPOUT_X] = bench_view(bench, RH_BF16, s->tokens, s->inner);
	add.operand[RH_DROPOUT_Y] = bench_view(bench, RH_BF16, s->tokens, s->inner);
	return rc ? rc : by_memory(bench, "dropout", &add, copy);
}

static int tables(struct bench *bench, const struct bench_shape *s, double copy)
{
	bench->used = 0;
	struct rh_view ids = bench_view(bench, RH_I32, s->tokens, 1), table = bench_view(bench, RH_BF16, s->vocabulary, s->hidden);
	struct rh_view y = bench_view(bench, RH_BF16, s->tokens, s->hidden), sum = bench_view(bench, RH_F32, s->vocabulary, s->hidden);
	struct rh_op op = {.kind = RH_OP_EMBEDDING}, back = {.kind = RH_OP_EMBEDDING_BACKWARD};
	int rc = put_ints(bench, ids, 0, s->vocabulary / s->tokens > 0 ? s->vocabulary / s->tokens : 1);
	op.operand[RH_EMBEDDING_IDS] = ids, op.operand[RH_EMBEDDING_TABLE] = table, op.operand[RH_EMBEDDING_Y] = y;
	back.operand[RH_EMBEDDING_BACKWARD_IDS] = ids, back.operand[RH_EMBEDDING_BACKWARD_DY] = y;
	back.operand[RH_EMBEDDING_BACKWARD_DTABLE] = sum;
	if (!rc)
		rc = by_memory(bench, "embedding", &op, copy);
	return rc ? rc : by_memory(bench, "embedding backward", &back, copy);
}

/* Cross-entropy without the products around it: a copy puts the logits back before each run, as the gradient takes their place. */
static int head_rows_time(struct bench *bench, struct head_rows *rows, const void *logits, size_t bytes, double *seconds)
{
	cudaStream_t stream = NULL;
	cudaEvent_t event[2] = {NULL, NULL};
	cudaError_t error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
	float best = 0, milliseconds = 0;
	int rc = 0;
	for (int i = 0; i < 2 && error == cudaSuccess; i++)
		error = cudaEventCreateWithFlags(&event[i], cudaEventBlockingSync);
	for (int i = 0; !rc && error == cudaSuccess && i < (bench->small ? 1 : 7); i++) {
		error = cudaMemcpyAsync(rows->logits.data, logits, bytes, cudaMemcpyDeviceToDevice, stream);
		if (error == cudaSuccess)
			error = cudaEventRecord(event[0], stream);
		if (error == cudaSuccess)
			rc = cuda_head_rows(rows, stream);
		if (!rc && error == cudaSuccess)
			error = cudaEventRecord(event[1], stream);
		if (!rc && error == cudaSuccess)
			error = cudaEventSynchronize(event[1]);
		if (!rc && error == cudaSuccess)
			error = cudaEventElapsedTime(&milliseconds, event[0], event[1]);
		best = !best || milliseconds < best ? milliseconds : best;
	}
	for (int i = 0; i < 2; i++)
		if (event[i])
			(void)cudaEventDestroy(event[i]);
	if (stream)
		(void)cudaStreamDestroy(stream);
	*seconds = best > 0 ? (double)best / 1e3 : 1e-9;
	return rc ? rc : fault_of(error);
}

/* Logits are read twice, as a row of a large vocabulary fits no cache with those beside it, and written as their gradient; or read once. */
static int head(struct bench *bench, const struct bench_shape *s, double copy)
{
	static const char *const names[] = {"cross-entropy, loss only", "cross-entropy, fp32 gradient", "cross-entropy"};
	static const int64_t moved[] = {4, 12, 10};
	int64_t count = s->tokens < 2048 ? s->tokens : 2048;
	bench->used = 0;
	struct rh_view logits = bench_view(bench, RH_F32, count, s->vocabulary), kept = bench_view(bench, RH_F32, count, s->vocabulary);
	struct head_rows rows = {.logits = logits, .target = bench_view(bench, RH_I32, count, 1), .scale = 1};
	rows.loss = bench_view(bench, RH_F32, count, 1), rows.hit = bench_view(bench, RH_I32, count, 1);
	int rc = put_ints(bench, rows.target, 0, 1);
	for (int kind = HEAD_LOSS_ONLY; !rc && kind <= HEAD_GRADIENT_BF16; kind++) {
		double seconds, bytes = (double)count * (double)s->vocabulary * (double)moved[kind];
		rows.gradient = (enum head_gradient)kind;
		rc = head_rows_time(bench, &rows, kept.data, (size_t)rh_view_bytes(kept), &seconds);
		if (!rc)
			bench_line("kernels",
			           "\"kernel\": \"%s\", \"bytes\": %.0f, \"us\": %.2f, \"value\": %.1f, \"unit\": \"GB/s\", \"reference\": "
			           "%.1f, "
			           "\"ratio\": %.3f, \"bar\": 0.85",
			           names[kind], bytes, seconds * 1e6, bytes / seconds / 1e9, copy / 1e9,
			           copy > 0 ? bytes / seconds / copy : 0);
	}
	return rc;
}

int bench_attention(struct bench *bench, const struct bench_shape *s, int64_t length, struct rh_op *forward, struct rh_op *backward)
{
	int64_t documents = s->tokens / length > 0 ? s->tokens / length : 1, tokens = documents * length;
	bench->used = 0;
	struct rh_op op = {.kind = RH_OP_ATTENTION}, back = {.kind = RH_OP_ATTENTION_BACKWARD};
	struct rh_view q = bench_view(bench, RH_BF16, tokens, s->heads * s->head_dim),
	               k = bench_view(bench, RH_BF16, tokens, s->kv_heads * s->head_dim);
	struct rh_view v = bench_view(bench, RH_BF16, tokens, s->kv_heads * s->head_dim),
	               start = bench_view(bench, RH_I32, documents + 1, 1);
	struct rh_view o = bench_view(bench, RH_BF16, tokens, s->heads * s->head_dim), lse = bench_view(bench, RH_F32, tokens, s->heads);
	int rc = put_ints(bench, start, 0, length);
	op.attention.heads = s->heads, op.attention.kv_heads = s->kv_heads, op.attention.documents = documents;
	op.attention.longest = length, op.attention.scale = 0.1f;
	back.attention = op.attention;
	op.operand[RH_ATTENTION_Q] = q, op.operand[RH_ATTENTION_K] = k, op.operand[RH_ATTENTION_V] = v;
	op.operand[RH_ATTENTION_START_Q] = op.operand[RH_ATTENTION_START_K] = start;
	op.operand[RH_ATTENTION_O] = o, op.operand[RH_ATTENTION_LSE] = lse;
	memcpy(back.operand, op.operand, 7 * sizeof *op.operand); /* both name their first seven alike */
	back.operand[RH_ATTENTION_BACKWARD_DO] = bench_view(bench, RH_BF16, tokens, s->heads * s->head_dim);
	back.operand[RH_ATTENTION_BACKWARD_DELTA] = bench_view(bench, RH_F32, tokens, s->heads);
	back.operand[RH_ATTENTION_BACKWARD_DQ] = bench_view(bench, RH_BF16, tokens, s->heads * s->head_dim);
	back.operand[RH_ATTENTION_BACKWARD_DK] = bench_view(bench, RH_BF16, tokens, s->kv_heads * s->head_dim);
	back.operand[RH_ATTENTION_BACKWARD_DV] = bench_view(bench, RH_BF16, tokens, s->kv_heads * s->head_dim);
	if (rh_attention_uses_space(s->head_dim))
		back.operand[RH_ATTENTION_BACKWARD_SPACE] =
		        bench_view(bench, RH_F32, rh_attention_space_rows(tokens, documents, s->head_dim), s->heads * s->head_dim);
	*forward = op, *backward = back;
	return rc;
}

static int attention_of(struct bench *bench, const struct bench_shape *s, int64_t length)
{
	double forward, backward;
	struct rh_op op, back;
	int rc = bench_attention(bench, s, length, &op, &back);
	if (!rc)
		rc = bench_op(bench, &op, 1, &forward);
	if (!rc)
		rc = bench_op(bench, &back, 1, &backward);
	if (!rc)
		rc = bench->device->ops->synchronize(bench->device);
	if (!rc)
		bench_line("attention",
		           "\"who\": \"ours\", \"documents\": %lld, \"length\": %lld, \"heads\": %lld, \"kv_heads\": %lld, \"head_dim\": "
		           "%lld, "
		           "\"forward_ms\": %.4f, \"backward_ms\": %.4f, \"forward_tflops\": %.2f, \"backward_tflops\": %.2f",
		           (long long)op.attention.documents, (long long)length, (long long)s->heads, (long long)s->kv_heads,
		           (long long)s->head_dim, forward * 1e3, backward * 1e3, rh_op_cost(&op).product_flops / forward / 1e12,
		           rh_op_cost(&back).product_flops / backward / 1e12);
	return rc;
}

static int attention_at_lengths(struct bench *bench, const struct bench_shape *like, int dim)
{
	static const int64_t lengths[] = {2048, 4096, 8192, 16384, 32768};
	struct bench_shape shape = *like;
	int rc = 0;
	shape.head_dim = dim;
	for (int i = 0; !rc && i < (bench->small ? 1 : 5); i++)
		rc = attention_of(bench, &shape, bench->small ? 64 : lengths[i]);
	return rc;
}

static int attention_64(struct bench *bench, const struct bench_shape *s, double copy)
{
	(void)copy;
	return attention_at_lengths(bench, s, 64);
}

static int attention_96(struct bench *bench, const struct bench_shape *s, double copy)
{
	(void)copy;
	return attention_at_lengths(bench, s, 96);
}

static int attention_128(struct bench *bench, const struct bench_shape *s, double copy)
{
	(void)copy;
	return attention_at_lengths(bench, s, 128);
}

/* Gemma 3's head size, with half as many heads. */
static int attention_256(struct bench *bench, const struct bench_shape *s, double copy)
{
	struct bench_shape half = *s;
	(void)copy;
	half.heads /= 2;
	half.kv_heads /= 2;
	return attention_at_lengths(bench, &half, 256);
}

/* Gemma 4's widest, with a quarter as many. */
static int attention_512(struct bench *bench, const struct bench_shape *s, double copy)
{
	struct bench_shape quarter = *s;
	(void)copy;
	quarter.heads /= 4;
	quarter.kv_heads = (quarter.kv_heads + 3) / 4;
	return attention_at_lengths(bench, &quarter, 512);
}

/* DEVICE [PART]: a part in a process of its own, as one that fails may leave the GPU's context unusable. */
int bench_kernels(int argc, char **argv)
{
	static const struct bench_shape large = {16384, 4096, 32, 8, 128, 14336, 128256}, tiny = {64, 64, 4, 2, 64, 96, 96};
	static const struct {
		const char *name;
		bench_kernel *run;
	} parts[] = {{"norms", norms},
	             {"elementwise", elementwise},
	             {"tables", tables},
	             {"head", head},
	             {"attention-64", attention_64},
	             {"attention-96", attention_96},
	             {"attention-128", attention_128},
	             {"attention-256", attention_256},
	             {"attention-512", attention_512},
	             {"quantise", bench_quantise},
	             {"dequantise", bench_dequantise},
	             {"repeats", bench_repeats},
	             {"waits", bench_waits}};
	struct bench bench;
	double copy = 0;
	int rc = argc < 1 ? -EINVAL : bench_open(argv[0], strncmp(argv[0], "emu", 3) ? (int64_t)8 << 30 : 8 * MIB, &bench);
	if (rc)
		return rc;
	struct bench_shape shape = bench.small ? tiny : large;
	rc = bench_copy_bandwidth(&bench, &copy);
	for (size_t i = 0; !rc && i < sizeof parts / sizeof *parts; i++)
		if (argc < 2 || !strcmp(argv[1], parts[i].name))
			rc = parts[i].run(&bench, &shape, copy);
	bench_close(&bench);
	return rc;
}
