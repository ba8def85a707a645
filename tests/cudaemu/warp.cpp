/* What a warp does as one, as the PTX manual says it. */
#include "block.h"

#include <sched.h>
#include <stdlib.h>

struct ballot {
	int predicate;
	uint32_t result;
};

static void perform_ballot(void *const lane[32])
{
	uint32_t bits = 0;
	for (int i = 0; i < 32; i++)
		bits |= (uint32_t) !!((struct ballot *)lane[i])->predicate << i;
	for (int i = 0; i < 32; i++)
		((struct ballot *)lane[i])->result = bits;
}

uint32_t rh_ballot(int predicate)
{
	struct ballot lane = {predicate, 0};
	cudaemu_warp(perform_ballot, &lane);
	return lane.result;
}

static void perform_sync(void *const lane[32])
{
	(void)lane;
}

void rh_warp_sync(void)
{
	cudaemu_warp(perform_sync, NULL);
}

int rh_fetch_add(int *counter)
{
	return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

void rh_release(int *counter, int value)
{
	rh_warp_sync();
	if (cudaemu_lane() == 0)
		__atomic_store_n(counter, value, __ATOMIC_RELEASE);
}

void rh_await(const int *counter, int value)
{
	for (int seen; (seen = __atomic_load_n(counter, __ATOMIC_ACQUIRE)) != value; sched_yield())
		if (!cudaemu_blocks_may_run_at_once())
			cudaemu_abort("waits until a counter is %d, which is %d: no block before it raised it", value, seen);
	rh_warp_sync();
}

void rh_copy_async(void *shared, const void *global, int bytes)
{
	struct copies *copies = cudaemu_copies();
	if ((uintptr_t)shared % 16 || (uintptr_t)global % 16 || bytes < 0 || bytes > 16)
		cudaemu_abort("cp.async of %d bytes from %p to %p", bytes, global, shared);
	if (copies->count == copies->room) {
		copies->room = copies->room ? 2 * copies->room : 64;
		copies->pending = (struct copy *)realloc(copies->pending, (size_t)copies->room * sizeof *copies->pending);
		if (!copies->pending)
			cudaemu_abort("no memory for %d copies", copies->room);
	}
	copies->pending[copies->count++] = copy{(char *)shared, (const char *)global, bytes, copies->groups};
}

void rh_copy_async_commit(void)
{
	cudaemu_copies()->groups++;
}

void cudaemu_copy_async_wait(int pending)
{
	struct copies *copies = cudaemu_copies();
	int kept = 0;
	for (int i = 0; i < copies->count; i++) {
		struct copy copy = copies->pending[i];
		if (copy.group >= copies->groups - pending) {
			copies->pending[kept++] = copy;
			continue;
		}
		memcpy(copy.to, copy.from, (size_t)copy.bytes);
		memset(copy.to + copy.bytes, 0, (size_t)(16 - copy.bytes));
	}
	copies->count = kept;
}

struct ldmatrix {
	const void *row;
	uint32_t *r;
};

template <int Trans> static void perform_ldmatrix(void *const lane[32])
{
	uint16_t tile[4][8][8];
	for (int i = 0; i < 32; i++)
		memcpy(tile[i / 8][i % 8], ((struct ldmatrix *)lane[i])->row, 16);
	for (int i = 0; i < 32; i++) {
		for (int m = 0; m < 4; m++) {
			int major = i / 4, minor = i % 4 * 2;
			uint32_t low = Trans ? tile[m][minor][major] : tile[m][major][minor];
			uint32_t high = Trans ? tile[m][minor + 1][major] : tile[m][major][minor + 1];
			((struct ldmatrix *)lane[i])->r[m] = low | high << 16;
		}
	}
}

void rh_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
	struct ldmatrix lane = {row, r};
	cudaemu_check_aligned(row, __FILE__, __LINE__);
	cudaemu_warp(perform_ldmatrix<0>, &lane);
}

void rh_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
	struct ldmatrix lane = {row, r};
	cudaemu_check_aligned(row, __FILE__, __LINE__);
	cudaemu_warp(perform_ldmatrix<1>, &lane);
}

struct mma {
	float *d;
	const void *a, *b;
};

/* d (16,8) += a (16,16) b (16,8), b by columns. Products are exact in fp32 (8 or 11 bits each), summed in the order of k. */
static void multiply(void *const lane[32], float (*a)[16], float (*b)[16])
{
	for (int i = 0; i < 32; i++) {
		float *d = ((struct mma *)lane[i])->d;
		for (int j = 0; j < 4; j++) {
			int row = i / 4 + j / 2 * 8, col = i % 4 * 2 + j % 2;
			float sum = 0;
			for (int k = 0; k < 16; k++)
				sum += a[row][k] * b[col][k];
			d[j] += sum;
		}
	}
}

/* Fragments of mma.m16n8k16 to matrices. */
template <typename T> static void gather(void *const lane[32], float (*a)[16], float (*b)[16])
{
	for (int i = 0; i < 32; i++) {
		const T *own_a = (const T *)((struct mma *)lane[i])->a, *own_b = (const T *)((struct mma *)lane[i])->b;
		for (int j = 0; j < 8; j++)
			a[i / 4 + j / 2 % 2 * 8][i % 4 * 2 + j % 2 + j / 4 * 8] = rh_to_float(own_a[j]);
		for (int j = 0; j < 4; j++)
			b[i / 4][i % 4 * 2 + j % 2 + j / 2 * 8] = rh_to_float(own_b[j]);
	}
}

template <typename T> static void perform_mma(void *const lane[32])
{
	float a[16][16], b[8][16];
	gather<T>(lane, a, b);
	multiply(lane, a, b);
}

/* A sum of fp16 and HALF_DEPTH products, as tensor cores of sm_80 to sm_89 add them: all are cut off HALF_BITS below the largest one's
 * leading bit, their sum is rounded to fp16. An instruction does so twice, its depth being 16. (Fasi, Higham, Mikaitis and Pranesh 2021,
 * Numerical behavior of NVIDIA tensor cores.) */
enum { HALF_DEPTH = 8, HALF_BITS = 24 };

static uint16_t half_sum(uint16_t before, const float *a, const float *b)
{
	float term[HALF_DEPTH + 1] = {rh_f16_to_f32(before)}, most = fabsf(term[0]);
	int exponent;
	for (int k = 0; k < HALF_DEPTH; k++) {
		term[k + 1] = a[k] * b[k];
		most = fmaxf(most, fabsf(term[k + 1]));
	}
	if (!isfinite(most)) /* an infinity, or what became of one */
		exponent = 0;
	else
		frexpf(most, &exponent);
	double sum = 0, unit = ldexp(1, exponent - 1 - HALF_BITS);
	for (float value : term)
		sum += isfinite(value) ? trunc((double)value / unit) * unit : (double)value;
	return rh_f32_to_f16((float)sum);
}

static void perform_mma_f16_sums(void *const lane[32])
{
	float a[16][16], b[8][16];
	gather<rh_f16>(lane, a, b);
	for (int i = 0; i < 32; i++) {
		uint32_t *d = (uint32_t *)(void *)((struct mma *)lane[i])->d;
		for (int j = 0; j < 4; j++) {
			int row = i / 4 + j / 2 * 8, col = i % 4 * 2 + j % 2, shift = j % 2 * 16;
			uint16_t sum = (uint16_t)(d[j / 2] >> shift);
			for (int k = 0; k < 16; k += HALF_DEPTH)
				sum = half_sum(sum, a[row] + k, b[col] + k);
			d[j / 2] = (d[j / 2] & ~(0xffffu << shift)) | (uint32_t)sum << shift;
		}
	}
}

void rh_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
	struct mma lane = {d, a, b};
	cudaemu_warp(perform_mma<rh_bf16>, &lane);
}

void rh_mma_f16_sums(uint32_t (&d)[2], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
	struct mma lane = {(float *)(void *)d, a, b};
	cudaemu_warp(perform_mma_f16_sums, &lane);
}
