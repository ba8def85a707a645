/* Dropout: words of Philox by the vector, then one pass over the elements. */
#include "device/cpu/simd/act.h"
#include "device/cpu/simd/simd.h"

enum { LANES64 = VF / 2, CHUNK = 1024 }; /* Philox blocks in a vector; words made at once */

typedef uint64_t vw __attribute__((vector_size(VF * 4)));

/* Products of the low halves of 64-bit lanes; the high halves may hold anything. */
SIMD_INLINE vw multiply_low(vw a, uint32_t b)
{
	vw factor = (vw){0} + b;
#if defined __AVX512F__
	return (vw)_mm512_mul_epu32((__m512i)a, (__m512i)factor);
#elif defined __AVX2__
	return (vw)_mm256_mul_epu32((__m256i)a, (__m256i)factor);
#else
	return (vw)_mm_mul_epu32((__m128i)a, (__m128i)factor);
#endif
}

/* The words of LANES64 consecutive blocks from block `first` on, in order. */
SIMD_INLINE void philox(const struct rh_op *op, uint32_t first, uint32_t *words)
{
	uint32_t k0 = (uint32_t)op->dropout.seed, k1 = (uint32_t)(op->dropout.seed >> 32);
	vw c0 = {0}, c1 = (vw){0} + op->dropout.site, c2 = (vw){0} + op->dropout.micro_batch, c3 = (vw){0} + op->dropout.step;
	for (uint32_t i = 0; i < LANES64; i++)
		c0[i] = (uint32_t)(first + i);
	for (int round = 0; round < 10; round++) {
		vw p0 = multiply_low(c0, 0xD2511F53u), p1 = multiply_low(c2, 0xCD9E8D57u);
		c0 = (p1 >> 32) ^ c1 ^ k0;
		c1 = p1;
		c2 = (p0 >> 32) ^ c3 ^ k1;
		c3 = p0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	vw even = {0}, odd = {0}, low = (c0 & 0xffffffffu) | c1 << 32, high = (c2 & 0xffffffffu) | c3 << 32;
	for (int i = 0; i < LANES64; i++) { /* block i is low[i], high[i] */
		even[i] = i & 1 ? (uint64_t)(LANES64 + i / 2) : (uint64_t)(i / 2);
		odd[i] = even[i] + LANES64 / 2;
	}
	vw first_half = __builtin_shuffle(low, high, even), second_half = __builtin_shuffle(low, high, odd);
	memcpy(words, &first_half, sizeof first_half);
	memcpy(words + VF, &second_half, sizeof second_half);
}

/* Columns [begin, begin + n) of a row; word[i] belongs to the i-th of them. */
SIMD_INLINE void apply(const struct rh_op *op, int64_t row, int64_t begin, int64_t n, const uint32_t *word, const int bf16)
{
	struct rh_view add = op->operand[RH_DROPOUT_ADD];
	const void *x = row_at(op->operand[RH_DROPOUT_X], row), *plus = add.data ? row_at(add, row) : NULL;
	void *y = row_at(op->operand[RH_DROPOUT_Y], row);
	float p = op->dropout.p, scale = 1.0f / (1.0f - p);
	for (int64_t i = 0; i < n; i += VF) {
		vu bits;
		memcpy(&bits, word + i, sizeof bits); /* the buffer is longer than a chunk by a vector */
		vf unit = __builtin_convertvector((vi)(bits >> 8), vf) * 0x1p-24f;
		vf value = vf_select(unit >= p, act_load(x, begin + i, n - i, bf16) * scale, (vf){0});
		if (op->dropout.noise > 0)
			value += op->dropout.noise * (2 * unit - 1);
		if (plus)
			value += act_load(plus, begin + i, n - i, bf16);
		act_store(y, begin + i, value, n - i, bf16);
	}
}

SIMD_INLINE void rows(const struct rh_op *op, int64_t first, int64_t end, const int bf16)
{
	int64_t cols = op->operand[RH_DROPOUT_X].cols;
	uint32_t words[CHUNK + 8 * VF];
	for (int64_t t = first; t < end; t++) {
		for (int64_t begin = 0; begin < cols; begin += CHUNK) {
			int64_t n = cols - begin < CHUNK ? cols - begin : CHUNK;
			int64_t element = (op->dropout.first_row + t) * cols + begin, skip = element % 4;
			for (int64_t i = 0; i < skip + n; i += 4 * LANES64)
				philox(op, (uint32_t)(element / 4 + i / 4), words + i);
			apply(op, t, begin, n, words + skip, bf16);
		}
	}
}

/* Units are rows. */
static void dropout(const struct rh_op *op, int64_t first, int64_t end)
{
	BY_DTYPE(op->operand[RH_DROPOUT_X].dtype, rows, op, first, end);
}

const struct cpu_op SIMD(cpu_dropout) = {{{dropout, NULL}}};
