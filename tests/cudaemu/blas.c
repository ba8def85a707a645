/* Products of the emulated device, by BLAS's definition and no more: what cuda/gemm.c asks for is taken as cuBLASLt would take it. */
#include "cuda/choices.h"

#include "core/alloc.h"
#include "core/float8.h"
#include "cudaemu_control.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct blas {
	int products;
	struct choices *choices; /* as cuBLASLt's are, for their number */
};

int blas_create(struct blas **out)
{
	struct blas *blas = rh_alloc(1, sizeof *blas);
	if (!blas || !(blas->choices = choices_create())) {
		rh_free(blas);
		return -ENOMEM;
	}
	*out = blas;
	return 0;
}

void blas_destroy(struct blas *blas)
{
	if (blas)
		choices_destroy(blas->choices);
	rh_free(blas);
}

int64_t blas_misses(const struct blas *blas)
{
	return choices_misses(blas->choices);
}

int64_t blas_evictions(const struct blas *blas)
{
	return choices_evicted(blas->choices);
}

/* Row `row`, column `col` of a matrix by columns. */
static float at(const void *data, int64_t ld, enum rh_dtype dtype, int64_t row, int64_t col)
{
	int64_t i = row + col * ld;
	switch (dtype) {
	case RH_F32:
		return ((const float *)data)[i];
	case RH_E4M3:
		return rh_e4m3_to_f32(((const uint8_t *)data)[i]);
	case RH_E5M2:
		return rh_e5m2_to_f32(((const uint8_t *)data)[i]);
	default:
		return rh_bf16_to_f32(((const uint16_t *)data)[i]);
	}
}

/* op(b) (k,n) in fp32, one row of n after another; op(a)'s rows likewise. */
static float *unpack(const struct blas_matrix *matrix, int transposed, enum rh_dtype dtype, int64_t rows, int64_t cols)
{
	float *out = rh_alloc((size_t)(rows * cols), sizeof *out);
	for (int64_t r = 0; out && r < rows; r++)
		for (int64_t c = 0; c < cols; c++)
			out[r * cols + c] =
			        transposed ? at(matrix->data, matrix->ld, dtype, c, r) : at(matrix->data, matrix->ld, dtype, r, c);
	return out;
}

/* Tensor cores of sm_89 and sm_90 add 8-bit products EIGHT_DEPTH at a time: all of them and the sum so far are cut off EIGHT_BITS below the
 * largest one's leading bit, whatever fp32 could hold. (DeepSeek-V3, section 3.5.2: "around 14 bits".) */
enum { EIGHT_DEPTH = 32, EIGHT_BITS = 13 };

/* An element of d, of 8-bit operands. */
static float sum_eight(const struct blas_product *p, const float *a, const float *b, int64_t row, int64_t col)
{
	float sum = 0;
	for (int64_t first = 0; first < p->k; first += EIGHT_DEPTH) {
		int64_t end = first + EIGHT_DEPTH < p->k ? first + EIGHT_DEPTH : p->k;
		float most = fabsf(sum), unit;
		int exponent;
		for (int64_t k = first; k < end; k++)
			most = fmaxf(most, fabsf(a[row * p->k + k] * b[k * p->n + col]));
		frexpf(most, &exponent);
		unit = ldexpf(1, exponent - 1 - EIGHT_BITS);
		sum = truncf(sum / unit) * unit;
		for (int64_t k = first; k < end; k++)
			sum += truncf(a[row * p->k + k] * b[k * p->n + col] / unit) * unit;
	}
	return sum;
}

/* One row of d: sums over ascending k. */
static void row_of(const struct blas_product *p, const float *a, const float *b, int64_t row, float *sum)
{
	memset(sum, 0, (size_t)p->n * sizeof *sum);
	for (int64_t j = 0; p->scale_a && j < p->n; j++)
		sum[j] = sum_eight(p, a, b, row, j);
	for (int64_t k = 0; !p->scale_a && k < p->k; k++)
		for (int64_t j = 0; j < p->n; j++)
			sum[j] += a[row * p->k + k] * b[k * p->n + j];
	for (int64_t j = 0; j < p->n; j++) {
		float value = p->alpha * sum[j] * (p->scale_a ? *p->scale_a * *p->scale_b : 1);
		value += p->c.data ? at(p->c.data, p->c.ld, p->output, row, j) : 0;
		value += p->bias ? at(p->bias, 1, p->output, row, 0) : 0;
		if (p->output == RH_F32)
			((float *)p->d)[row + j * p->ldd] = value;
		else
			((uint16_t *)p->d)[row + j * p->ldd] = rh_f32_to_bf16(value);
	}
}

/* What cuBLASLt refuses of 8-bit operands on sm_89, by its manual: anything but TN, two of E5M2, rows and lengths off 16 bytes. */
static int can_eight(const struct blas_product *p)
{
	const uintptr_t places[] = {(uintptr_t)p->a.data, (uintptr_t)p->b.data, (uintptr_t)p->c.data, (uintptr_t)p->d,
	                            (uintptr_t)p->a.ld,   (uintptr_t)p->b.ld,   (uintptr_t)p->m,      (uintptr_t)p->k};
	int64_t element = rh_dtype_block_bytes(p->output), can = p->trans_a && !p->trans_b && p->scale_a && p->scale_b;
	for (size_t i = 0; i < sizeof places / sizeof *places; i++)
		can = can && places[i] % 16 == 0;
	can = can && p->ldd * element % 16 == 0 && (!p->c.data || p->c.ld * element % 16 == 0);
	return can && (p->type_a == RH_E4M3 || p->type_b == RH_E4M3) && rh_dtype_block_bytes(p->type_a) == 1 &&
	       rh_dtype_block_bytes(p->type_b) == 1;
}

struct multiplication {
	struct blas_product product;
	char *workspace;
	int number;
};

/* The workspace is filled with something else each time: nothing may live there. */
static void multiply(void *argument)
{
	const struct multiplication *this = argument;
	const struct blas_product *p = &this->product;
	memset(this->workspace, this->number & 255, 256);
	memset(this->workspace + BLAS_WORKSPACE_BYTES - 256, this->number & 255, 256);
	float *a = unpack(&p->a, p->trans_a, p->type_a, p->m, p->k), *b = unpack(&p->b, p->trans_b, p->type_b, p->k, p->n);
	float *sum = rh_alloc((size_t)p->n, sizeof *sum);
	RH_ASSERT(a && b && sum);
	for (int64_t row = 0; row < p->m; row++)
		row_of(p, a, b, row, sum);
	rh_free(a);
	rh_free(b);
	rh_free(sum);
}

int blas_multiply(struct blas *blas, const struct blas_product *p, void *workspace, struct CUstream_st *stream)
{
	RH_ASSERT(p->m >= 1 && p->n >= 1 && p->k >= 1 && stream && workspace && (uintptr_t)workspace % 256 == 0);
	if (p->type_a == RH_E4M3 || p->type_a == RH_E5M2)
		RH_ASSERT(can_eight(p));
	else
		RH_ASSERT(p->type_a == p->type_b && !p->scale_a && !p->scale_b);
	/* a fused bias and what it is added to: 16 bytes (cuBLASLt's vector epilogues) */
	RH_ASSERT(!p->bias ||
	          ((uintptr_t)p->bias % 16 == 0 && (uintptr_t)p->d % 16 == 0 && p->ldd * rh_dtype_block_bytes(p->output) % 16 == 0));
	const struct choice_key key = choice_key_of(p);
	int known;
	choices_find(blas->choices, &key, &known);
	struct multiplication *later = malloc(sizeof *later); /* freed by the queue */
	if (!later)
		return -ENOMEM;
	*later = (struct multiplication){*p, workspace, ++blas->products};
	cudaemu_enqueue(stream, multiply, later);
	return 0;
}
