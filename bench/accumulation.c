/* What do faster products lose? Sums of 4096 products of bf16 numbers, as SCALED_GEMM defines them (its oracle): in fp16 over chunks of
 * each length, and of 8-bit operands; against the exact sums, relative to their root mean square. The reference is what the rounding of the
 * exact sum to bf16 loses, which every product of a training run in bf16 pays anyway. On any machine: nothing is timed.
 *
 * usage: accumulation */
#include "core/error.h"
#include "core/float16.h"
#include "device/op.h"
#include "machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 20, DEPTH = 4096, OUTLIER = 77, CHUNKS = 7 };

enum fill { NORMAL, POSITIVE, OUTLIERS, FILLS };
static const char *const fills[FILLS] = {"normal", "positive", "a channel 1000 times the others"};

/* A SIDE x DEPTH matrix of activations and one of weights, in every form that a product wants. */
struct matrix {
	uint16_t *bf16;
	uint8_t *eight;
	float part[RH_QUANTISE_PARTS], scale;
};

static uint64_t state = 1;

static double uniform(void)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return ((double)(state >> 33) + 0.5) / 0x1p31;
}

static double normal(void)
{
	double radius = sqrt(-2 * log(uniform()));
	return radius * cos(2 * M_PI * uniform());
}

static void fill(struct matrix *m, enum fill how, double size, int outliers)
{
	for (int i = 0; i < SIDE * DEPTH; i++) {
		double value = size * normal();
		if (how == POSITIVE)
			value = fabs(value);
		if (outliers && i % DEPTH == OUTLIER)
			value *= 1000;
		m->bf16[i] = rh_f32_to_bf16((float)value);
	}
}

static struct rh_view one(float *value)
{
	return rh_view_of(value, RH_F32, 1, 1);
}

static void quantise(struct matrix *m, float limit, int eight)
{
	struct rh_op op = {.kind = RH_OP_QUANTISE, .quantise.limit = limit};
	op.operand[RH_QUANTISE_X] = rh_view_of(m->bf16, RH_BF16, SIDE, DEPTH);
	op.operand[RH_QUANTISE_PART] = rh_view_of(m->part, RH_F32, 1, RH_QUANTISE_PARTS);
	op.operand[RH_QUANTISE_SCALE] = one(&m->scale);
	if (eight)
		op.operand[RH_QUANTISE_Y] = rh_view_of(m->eight, RH_E4M3, SIDE, DEPTH);
	rh_op_oracle(&op);
}

/* chunk 0: of 8-bit operands. */
static void multiply(struct matrix *a, struct matrix *b, int64_t chunk, float *d)
{
	struct rh_op op = {.kind = RH_OP_SCALED_GEMM, .scaled_gemm = {0, 1, 1, chunk}};
	struct rh_view *view = op.operand;
	quantise(a, chunk ? rh_half_limit(chunk) : 448, !chunk);
	quantise(b, chunk ? rh_half_limit(chunk) : 448, !chunk);
	view[RH_SCALED_GEMM_A] = chunk ? rh_view_of(a->bf16, RH_BF16, SIDE, DEPTH) : rh_view_of(a->eight, RH_E4M3, SIDE, DEPTH);
	view[RH_SCALED_GEMM_B] = chunk ? rh_view_of(b->bf16, RH_BF16, 16, DEPTH) : rh_view_of(b->eight, RH_E4M3, 16, DEPTH);
	view[RH_SCALED_GEMM_SCALE_A] = one(&a->scale);
	view[RH_SCALED_GEMM_SCALE_B] = one(&b->scale);
	view[RH_SCALED_GEMM_D] = rh_view_of(d, RH_F32, SIDE, 16);
	rh_op_oracle(&op);
}

static double error_of(const float *got, const double *exact)
{
	double error = 0, size = 0;
	for (int i = 0; i < SIDE * 16; i++) {
		error += ((double)got[i] - exact[i]) * ((double)got[i] - exact[i]);
		size += exact[i] * exact[i];
	}
	return sqrt(error / size);
}

int main(void)
{
	static const int64_t chunks[CHUNKS] = {32, 64, 128, 256, 512, 1024, 2048};
	struct matrix a, b;
	float *d = NULL;
	double exact[SIDE * 16], stored = 0, chosen = 0;
	char machine[256];
	int rc = posix_memalign((void **)&a.bf16, 64, SIDE * DEPTH * 2) || posix_memalign((void **)&b.bf16, 64, SIDE * DEPTH * 2) ||
	         posix_memalign((void **)&a.eight, 64, SIDE * DEPTH) || posix_memalign((void **)&b.eight, 64, SIDE * DEPTH) ||
	         posix_memalign((void **)&d, 64, sizeof exact);
	RH_ASSERT(!rc);
	printf("%-32s", "chunk of fp16 sums");
	for (int c = 0; c < CHUNKS; c++)
		printf(" %8d", (int)chunks[c]);
	printf("  bf16 stored     e4m3\n");
	for (int how = 0; how < FILLS; how++) {
		fill(&a, (enum fill)how, 1, how == OUTLIERS);
		fill(&b, (enum fill)how, 0.02, 0);
		for (int i = 0; i < SIDE * 16; i++) {
			exact[i] = 0;
			for (int k = 0; k < DEPTH; k++)
				exact[i] += (double)rh_bf16_to_f32(a.bf16[i / 16 * DEPTH + k]) *
				            (double)rh_bf16_to_f32(b.bf16[i % 16 * DEPTH + k]);
			d[i] = rh_bf16_to_f32(rh_f32_to_bf16((float)exact[i]));
		}
		double rounding = error_of(d, exact);
		printf("%-32s", fills[how]);
		for (int c = 0; c < CHUNKS; c++) {
			multiply(&a, &b, chunks[c], d);
			double error = error_of(d, exact);
			if (how == NORMAL && chunks[c] == 128)
				chosen = error, stored = rounding;
			printf(" %8.1e", error);
		}
		multiply(&a, &b, 0, d);
		printf("     %8.1e %8.1e\n", rounding, error_of(d, exact));
	}
	bench_machine(machine, sizeof machine);
	printf("{\"bench\": \"accumulation\", \"value\": %.3g, \"unit\": \"relative error of chunks of 128\", \"reference\": %.3g, "
	       "\"ratio\": %.3f, \"machine\": \"%s\"}\n",
	       chosen, stored, stored / chosen, machine);
	free(a.bf16), free(b.bf16), free(a.eight), free(b.eight), free(d);
	return 0;
}
