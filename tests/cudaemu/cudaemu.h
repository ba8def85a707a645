/* CUDA's side of cuda/rh_cuda.h on the CPU. Blocks run one after another unless a test asks for several at once; the threads of a block are
 * fibers, switched at barriers and at warp-wide functions, which the last lane to come performs for all. A run's threads (and blocks) go in
 * ascending, descending or random order: a kernel whose results differ between orders lacks a barrier or depends on the order of blocks.
 *
 * These abort with a message: threads of a block at different barriers, or at one that others never reach; lanes of a warp at different
 * warp-wide functions; misaligned vectors; shared memory beyond what a launch or the SM has; an empty grid.
 * Shared memory begins as 0xff bytes (NaNs) in every block; each array is a heap block, so that ASan sees what lies beyond it. */
#ifndef CUDAEMU_H
#define CUDAEMU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#include "core/float16.h"
}
#include "cudaemu_control.h"

struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
	{
	}
};

struct cudaemu_place {
	dim3 thread, block, block_dim, grid_dim;
};

/* Of the calling fiber. */
extern __thread struct cudaemu_place cudaemu_here;

#define threadIdx       (cudaemu_here.thread)
#define blockIdx        (cudaemu_here.block)
#define blockDim        (cudaemu_here.block_dim)
#define gridDim         (cudaemu_here.grid_dim)
#define __syncthreads() cudaemu_barrier(__FILE__, __LINE__)

struct rh_bf16 {
	uint16_t bits;
};

struct rh_f16 {
	uint16_t bits;
};

#define RH_KERNEL(threads, min_blocks) void
#define RH_DEVICE                      static inline
#define RH_HOST_DEVICE                 static inline
#define RH_SPECIAL                     inline
#define RH_UNROLL
#define RH_ROLLED
#define RH_CHECK_ALIGNED(at) cudaemu_check_aligned(at, __FILE__, __LINE__)
#define RH_SHARED(type, name, count)                                                                                                       \
	static char name##_key;                                                                                                            \
	type *const name = (type *)cudaemu_shared(&name##_key, #name, sizeof(type) * (count))
#define RH_SHARED_2D(type, name, rows, cols)                                                                                               \
	static char name##_key;                                                                                                            \
	type(*const name)[cols] = (type(*)[cols])cudaemu_shared(&name##_key, #name, sizeof(type) * (rows) * (cols))
#define RH_DYNAMIC_SHARED(type, name, offset, count)                                                                                       \
	static char name##_key;                                                                                                            \
	type *const name = (type *)cudaemu_dynamic(&name##_key, #name, offset, sizeof(type) * (size_t)(count))
#define RH_LAUNCH(kernel, grid, block, dynamic_bytes, stream, ...)                                                                         \
	(rh_list_kernel<kernel>(), cudaemu_launch<kernel>(stream, dim3(grid), dim3(block), dynamic_bytes, __VA_ARGS__),                    \
	 cuda_launched(#kernel))

void cudaemu_barrier(const char *file, int line);
void cudaemu_check_aligned(const void *at, const char *file, int line);
void *cudaemu_shared(const char *key, const char *name, size_t bytes);
void *cudaemu_dynamic(const char *key, const char *name, size_t offset, size_t bytes);
extern "C" int cudaemu_is_refused(void);              /* runtime.c: a launch; the thread's last error says why */
void *cudaemu_keep(const void *launch, size_t bytes); /* a copy, by malloc */
void cudaemu_run(const char *signature, dim3 grid, dim3 block, size_t dynamic_bytes, void (*body)(void *), void *argument);

/* Waits until every lane of the warp is here, with the same `perform`; the last to come calls it on the arguments of all 32. */
void cudaemu_warp(void (*perform)(void *const lane[32]), void *argument);

/* At once, or when the stream has come to it: with copies of the arguments as they are now. */
template <auto Kernel, typename... A>
void cudaemu_launch(struct CUstream_st *stream, dim3 grid, dim3 block, size_t dynamic_bytes, A... args)
{
	const char *signature = __PRETTY_FUNCTION__;
	if (cudaemu_is_refused())
		return;
	auto launch = [=] {
		auto body = [&] { Kernel(args...); };
		cudaemu_run(
		        signature, grid, block, dynamic_bytes, [](void *call) { (*(decltype(body) *)call)(); }, &body);
	};
	if (stream)
		cudaemu_enqueue(
		        stream, [](void *call) { (*(decltype(launch) *)call)(); }, cudaemu_keep(&launch, sizeof launch));
	else
		launch();
}

RH_DEVICE float rh_to_float(float x)
{
	return x;
}

RH_DEVICE float rh_to_float(rh_bf16 x)
{
	return rh_bf16_to_f32(x.bits);
}

RH_DEVICE float rh_to_float(rh_f16 x)
{
	return rh_f16_to_f32(x.bits);
}

RH_DEVICE rh_bf16 rh_to_bf16(float x)
{
	return rh_bf16{rh_f32_to_bf16(x)};
}

RH_DEVICE rh_f16 rh_to_f16(float x)
{
	return rh_f16{rh_f32_to_f16(x)};
}

template <typename V> struct cudaemu_shuffle {
	V value, result;
	int from;
};

template <typename V> void cudaemu_perform_shuffle(void *const lane[32])
{
	for (int i = 0; i < 32; i++) {
		auto *own = (cudaemu_shuffle<V> *)lane[i];
		own->result = ((cudaemu_shuffle<V> *)lane[own->from & 31])->value;
	}
}

template <typename V> RH_DEVICE V rh_shuffle(V value, int from)
{
	cudaemu_shuffle<V> lane = {value, value, from};
	cudaemu_warp(cudaemu_perform_shuffle<V>, &lane);
	return lane.result;
}

int cudaemu_lane(void);

template <typename V> RH_DEVICE V rh_shuffle_xor(V value, int mask)
{
	return rh_shuffle(value, cudaemu_lane() ^ mask);
}

uint32_t rh_ballot(int predicate);
void rh_warp_sync(void);

/* Performed when waited for, so that a missing wait shows. */
void rh_copy_async(void *shared, const void *global, int bytes);
template <int Near> RH_DEVICE void rh_copy_async_near(void *shared, const void *global, int bytes)
{
	static_assert(Near == 0 || Near == 128 || Near == 256, "what cp.async knows");
	rh_copy_async(shared, global, bytes);
}

RH_DEVICE void rh_prefetch(const void *global)
{
	(void)*(volatile const unsigned char *)global; /* AddressSanitizer looks at it */
}

void rh_copy_async_commit(void);
void cudaemu_copy_async_wait(int pending);

template <int Pending> RH_DEVICE void rh_copy_async_wait(void)
{
	cudaemu_copy_async_wait(Pending);
}

void rh_ldmatrix_x4(uint32_t (&r)[4], const void *row);
void rh_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row);
void rh_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void rh_mma_f16_sums(uint32_t (&d)[2], const uint32_t (&a)[4], const uint32_t (&b)[2]);

RH_DEVICE uint32_t rh_pack_f16(float low, float high)
{
	return rh_f32_to_f16(low) | (uint32_t)rh_f32_to_f16(high) << 16;
}

RH_DEVICE void rh_unpack_f16(uint32_t pair, float (&out)[2])
{
	out[0] = rh_f16_to_f32((uint16_t)pair);
	out[1] = rh_f16_to_f32((uint16_t)(pair >> 16));
}

RH_DEVICE int rh_opaque(int x)
{
	return x;
}

RH_DEVICE float rh_exp2(float x)
{
	return x < -126 ? 0 : exp2f(x);
}

/* Where blocks run one after another, what a block waits for is there or never comes, and that aborts. */
int rh_fetch_add(int *counter);
void rh_release(int *counter, int value);
void rh_await(const int *counter, int value);

RH_DEVICE void rh_load16_fresh(float (&out)[4], const float *at)
{
	RH_CHECK_ALIGNED(at);
	memcpy(out, at, sizeof out);
}

RH_DEVICE uint32_t rh_float_bits(float x)
{
	return rh_f32_bits(x);
}

RH_DEVICE float rh_bits_float(uint32_t bits)
{
	return rh_bits_f32(bits);
}

RH_DEVICE int rh_lowest_bit(uint32_t word)
{
	return __builtin_ctz(word);
}

RH_DEVICE int rh_bit_count(uint32_t word)
{
	return __builtin_popcount(word);
}

/* As cudaemu_set_shared_bytes says. */
static inline int rh_shared_bytes(void)
{
	return cudaemu_shared_bytes();
}

/* Few, so that small grids walk too. */
static inline int rh_processors(void)
{
	return 2;
}

#endif
