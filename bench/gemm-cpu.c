/* How fast are the CPU device's matrix products? The products of one block of SmolLM2-135M (LoRA of rank 8 beside them), some of its head,
 * and a square one, against oneDNN's sgemm (OpenMP, as many threads) in turn in one process. The least time of each is taken.
 *
 * gemm-cpu [threads [seconds a shape]]. Build: gcc -O2 -Isrc -I. -o gemm-cpu bench/gemm-cpu.c build/release/libroundhouse.a (Makefile's
 * LIBS). */
#include "device/cpu/kernels.h"

#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { NT, NN, TN }; /* forward, gradient of the input, gradient of the weight (which adds to what is there) */

struct shape {
	const char *name;
	int64_t m, n, k;
	int form;
	int count; /* in one step of a block with LoRA; 0: shown only */
};

enum { T = 664, H = 576, QKV = 960, GU = 3072, I = 1536, V = 49152, R = 8 };

static const struct shape shapes[] = {
        {"square", 2048, 2048, 2048, NN, 0},
        {"qkv", T, QKV, H, NT, 2}, /* twice: recomputed */
        {"o", T, H, H, NT, 2},
        {"gate_up", T, GU, H, NT, 2},
        {"down", T, H, I, NT, 2},
        {"qkv dx", T, H, QKV, NN, 1},
        {"o dx", T, H, H, NN, 1},
        {"gate_up dx", T, H, GU, NN, 1},
        {"down dx", T, I, H, NN, 1},
        {"qkv dw", QKV, H, T, TN, 0},
        {"o dw", H, H, T, TN, 0},
        {"gate_up dw", GU, H, T, TN, 0},
        {"down dw", H, I, T, TN, 0},
        {"head", 90, V, H, NT, 0},
        {"head dx", 90, H, V, NN, 0},
        {"head dw", V, H, 90, TN, 0},
        {"lora a", T, R, H, NT, 12},
        {"lora a (down)", T, R, I, NT, 2},
        {"lora b", T, H, R, NT, 10},
        {"lora b (gate)", T, I, R, NT, 4},
        {"lora db in", T, R, H, NN, 5},
        {"lora db in (gate)", T, R, I, NN, 2},
        {"lora da", R, H, T, TN, 6},
        {"lora da (down)", R, I, T, TN, 1},
        {"lora db", H, R, T, TN, 5},
        {"lora db (gate)", I, R, T, TN, 2},
        {"lora dx", T, H, R, NN, 6},
        {"lora dx (down)", T, I, R, NN, 1},
        {"90 rows", 90, GU, H, NT, 0},
        {"7 rows", 7, GU, H, NT, 0},
        {"one row", 1, GU, H, NT, 0},
        {"one row, head", 1, V, H, NT, 0},
};

/* With one thread its own time, which a busy machine disturbs less. */
static clockid_t clock_used = CLOCK_MONOTONIC;

static double now(void)
{
	struct timespec t;
	clock_gettime(clock_used, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* On huge pages, as the device's memory is. */
static float *random_floats(int64_t count)
{
	size_t page = 2 << 20, bytes = ((size_t)count * 4 / page + 1) * page;
	float *made = aligned_alloc(page, bytes);
	(void)!madvise(made, bytes, MADV_HUGEPAGE);
	uint32_t state = 1;
	for (int64_t i = 0; i < count; i++)
		made[i] = (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1;
	return made;
}

static void ours(struct cpu_context *context, const struct rh_op *op)
{
	if (cpu_gemm(context, op) < 0)
		abort();
}

static void theirs(const struct rh_op *op)
{
	const struct rh_view *a = &op->operand[RH_GEMM_A], *b = &op->operand[RH_GEMM_B], *d = &op->operand[RH_GEMM_D];
	if (dnnl_sgemm(op->gemm.trans_a ? 'T' : 'N', op->gemm.trans_b ? 'T' : 'N', d->rows, d->cols, op->gemm.trans_a ? a->rows : a->cols,
	               op->gemm.alpha, a->data, a->stride, b->data, b->stride, op->operand[RH_GEMM_C].data ? 1 : 0, d->data,
	               d->stride) != dnnl_success)
		abort();
}

struct result {
	double ours, theirs; /* seconds */
};

static struct result measure(struct cpu_context *context, const struct shape *s, enum rh_dtype act, double seconds)
{
	float *a = random_floats(s->m * s->k), *b = random_floats(s->k * s->n), *d = random_floats(s->m * s->n);
	struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {s->form == TN, s->form == NT, 1}};
	op.operand[RH_GEMM_A] = s->form == TN ? rh_view_of(a, act, s->k, s->m) : rh_view_of(a, act, s->m, s->k);
	op.operand[RH_GEMM_B] = s->form == NT ? rh_view_of(b, act, s->n, s->k) : rh_view_of(b, act, s->k, s->n);
	op.operand[RH_GEMM_D] = rh_view_of(d, s->form == TN ? RH_F32 : act, s->m, s->n);
	if (s->form == TN)
		op.operand[RH_GEMM_C] = op.operand[RH_GEMM_D];
	struct result best = {INFINITY, INFINITY};
	double end = now() + seconds;
	for (int i = 0; i < 5 || now() < end; i++) {
		double start = now();
		ours(context, &op);
		double middle = now();
		best.ours = fmin(best.ours, middle - start);
		if (act != RH_F32)
			continue;
		theirs(&op);
		best.theirs = fmin(best.theirs, now() - middle);
	}
	free(a);
	free(b);
	free(d);
	return best;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
	double seconds = argc > 2 ? atof(argv[2]) : 0.3;
	enum { SHAPES = sizeof shapes / sizeof *shapes };
	struct cpu_context context = {.isa = rh_cpu_best_isa()};
	if (threads < 1 || rh_pool_create(threads, &context.pool) < 0)
		return 1;
	if (threads == 1)
		clock_used = CLOCK_THREAD_CPUTIME_ID;
	omp_set_num_threads(threads);
	struct result fp32[SHAPES], bf16[SHAPES], total = {0, 0};
	double best = 0;
	for (int i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		fp32[i] = measure(&context, s, RH_F32, seconds);
		bf16[i] = measure(&context, s, RH_BF16, seconds / 2);
		best = fmax(best, 2.0 * (double)(s->m * s->n * s->k) / fp32[i].ours);
		total.ours += s->count * fp32[i].ours;
		total.theirs += s->count * fp32[i].theirs;
	}
	printf("%-18s %6s %6s %6s %10s %6s %10s %7s %10s\n", "product", "m", "n", "k", "GFLOP/s", "share", "oneDNN", "ratio", "bf16");
	for (int i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		double flops = 2.0 * (double)(s->m * s->n * s->k);
		printf("%-18s %6ld %6ld %6ld %10.1f %5.0f%% %10.1f %7.2f %10.1f\n", s->name, (long)s->m, (long)s->n, (long)s->k,
		       flops / fp32[i].ours * 1e-9, 100 * flops / fp32[i].ours / best, flops / fp32[i].theirs * 1e-9,
		       fp32[i].theirs / fp32[i].ours, flops / bf16[i].ours * 1e-9);
	}
	rh_pool_destroy(context.pool);
	printf("{\"bench\": \"gemm-cpu\", \"value\": %.3f, \"unit\": \"ms for the products of one block, LoRA r 8, 664 rows, fp32\", "
	       "\"reference\": %.3f, \"reference_is\": \"oneDNN sgemm\", \"ratio\": %.3f, \"machine\": \"%d threads, %s\"}\n",
	       total.ours * 1e3, total.theirs * 1e3, total.theirs / total.ours, threads, rh_cpu_isa_name(context.isa));
	return 0;
}
