/* The one header that kernels include: CUDA under nvcc; under g++ -DRH_CUDA_EMULATED the emulation of tests/cudaemu, which runs the very
 * same source on the CPU. What follows is all that a kernel may use beside plain C++, threadIdx, blockIdx, blockDim, gridDim and
 * __syncthreads():
 *
 * RH_KERNEL(threads, min_blocks) name(...)   begins a kernel, with __launch_bounds__: at most `threads` a block; the compiler limits
 *                                            registers so that min_blocks blocks fit an SM
 * RH_DEVICE, RH_HOST_DEVICE                  begin an inline function
 * RH_LAUNCH(kernel, grid, block, dynamic_bytes, stream, ...)
 *                                            0, or a negative errno with the error line made. A template instance with commas stands in
 *                                            parentheses: RH_LAUNCH((k<float, 64>), ...); one place launches one
 *                                            kernel. Grids are never empty, blocks are whole warps.
 * RH_SHARED(type, name, count)               static shared memory: type name[count]. Say count, never sizeof(name): it is a pointer in
 *                                            emulation.
 * RH_SHARED_2D(type, name, rows, cols)       type name[rows][cols]
 * RH_DYNAMIC_SHARED(type, name, offset, count)
 *                                            `count` of dynamic shared memory at `offset` bytes, a multiple of 16. Arrays of a kernel lie
 *                                            apart (emulation checks it, and that they stay within dynamic_bytes).
 * RH_UNROLL, RH_ROLLED                       unrolls the loop that follows; leaves it as it is
 *
 * nvcc compiles once, as the first of CUDA_ARCHS (compute_80; device.mk), and makes machine code for each GPU of it; clang (for CUDA 12)
 * compiles once for each. So no kernel asks for __CUDA_ARCH__'s value: launchers choose at run time. A kernel for later GPUs alone is a
 * file of its own with its own -gencode.
 *
 * Warp-wide functions take all 32 lanes, always; the wrappers below are the only inline PTX. A lane's shared memory writes are seen by
 * other lanes after rh_warp_sync() or __syncthreads() only. Kernels are templates or have names unique in cuda/: the table of
 * registers and shared memory finds them by name. */
#ifndef RH_CUDA_H
#define RH_CUDA_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

extern "C" {
#include "core/error.h"
#include "core/hooks.h"
#include "core/philox.h"
#include "device/op.h"

#include "cuda/kernel_list.h"

/* launch.c: after a kernel's launch: 0, or a negative errno with the error line made. CUDA's error stays for the device, which says what
 * to do about it. */
int cuda_launched(const char *kernel);
}

/* As CUDA's driver declares it; opaque here and in emulation. */
struct CUstream_st;

enum { RH_WARP = 32 };

/* What the program keeps of a kernel, one object for each: its row in the list of all. RH_LAUNCH names the object, and so it is made before
 * main begins, whether the kernel is ever launched or not. */
template <auto Kernel> struct rh_kernel_of {
	struct cuda_listed_kernel row;

	rh_kernel_of() : row{(const void *)Kernel, __PRETTY_FUNCTION__, NULL}
	{
		cuda_list_kernel(&row);
	}
	static rh_kernel_of own;
};
template <auto Kernel> rh_kernel_of<Kernel> rh_kernel_of<Kernel>::own;

template <auto Kernel> static inline void rh_list_kernel(void)
{
	(void)&rh_kernel_of<Kernel>::own;
}

#ifdef RH_CUDA_EMULATED
#include <cudaemu.h>
#else
#include <atomic>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

typedef __nv_bfloat16 rh_bf16;
typedef __half rh_f16;

#define RH_KERNEL(threads, min_blocks)       __global__ void __launch_bounds__(threads, min_blocks)
#define RH_DEVICE                            static __device__ __forceinline__
#define RH_HOST_DEVICE                       static __host__ __device__ __forceinline__
#define RH_SPECIAL                           __device__ __forceinline__ /* begins a specialisation of an RH_DEVICE template */
#define RH_CHECK_ALIGNED(at)                 ((void)0)
#define RH_UNROLL                            _Pragma("unroll")
#define RH_ROLLED                            _Pragma("unroll 1")
#define RH_SHARED(type, name, count)         __shared__ __align__(128) type name[count]
#define RH_SHARED_2D(type, name, rows, cols) __shared__ __align__(128) type name[rows][cols]
#define RH_DYNAMIC_SHARED(type, name, offset, count)                                                                                       \
	extern __shared__ __align__(128) unsigned char rh_dynamic_shared[];                                                                \
	type *const name = (type *)(rh_dynamic_shared + (offset))
#define RH_LAUNCH(kernel, grid, block, dynamic_bytes, stream, ...)                                                                         \
	(rh_list_kernel<kernel>(), rh_launch(                                                                                              \
	                                   #kernel, kernel, dim3(grid), dim3(block),                                                       \
	                                   [](size_t bytes) {                                                                              \
		                                   static std::atomic<int> allowed[RH_GPUS];                                               \
		                                   return rh_dynamic{bytes, allowed};                                                      \
	                                   }(dynamic_bytes),                                                                               \
	                                   stream, __VA_ARGS__))

enum {
	RH_DYNAMIC_BYTES_UNASKED = 48 << 10, /* more must be asked for, of each GPU */
	RH_GPUS = 64                         /* that one process may see */
};

struct rh_dynamic {
	size_t bytes;
	std::atomic<int> *allowed; /* what the kernel has been allowed, by device */
};

/* Lets the kernel have so much dynamic shared memory on the calling thread's device, and the SM give all that it can. Asked at each launch,
 * this would cost as much as the launch. */
template <typename Kernel> static cudaError_t rh_allow(Kernel *kernel, const struct rh_dynamic &dynamic)
{
	std::atomic<int> *allowed = dynamic.allowed;
	int device = 0, bytes = (int)dynamic.bytes;
	cudaError_t fault = cudaGetDevice(&device);
	if (fault != cudaSuccess || allowed[device % RH_GPUS].load(std::memory_order_relaxed) >= bytes)
		return fault;
	fault = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
	if (fault == cudaSuccess)
		fault = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
	if (fault == cudaSuccess)
		allowed[device % RH_GPUS].store(bytes, std::memory_order_relaxed); /* two threads may ask: the answer is one */
	return fault;
}

template <typename... P, typename... A>
static int rh_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, struct rh_dynamic dynamic, CUstream_st *stream,
                     A... args)
{
	cudaError_t fault = cudaSuccess;
	if (dynamic.bytes > RH_DYNAMIC_BYTES_UNASKED)
		fault = rh_allow(kernel, dynamic);
	if (fault == cudaSuccess)
		kernel<<<grid, block, dynamic.bytes, stream>>>(static_cast<P>(args)...);
	return cuda_launched(name);
}

RH_DEVICE float rh_to_float(float x)
{
	return x;
}

RH_DEVICE float rh_to_float(rh_bf16 x)
{
	return __bfloat162float(x);
}

RH_DEVICE float rh_to_float(rh_f16 x)
{
	return __half2float(x);
}

RH_DEVICE rh_bf16 rh_to_bf16(float x)
{
	return __float2bfloat16_rn(x);
}

RH_DEVICE rh_f16 rh_to_f16(float x)
{
	return __float2half_rn(x);
}

/* Shuffles: every lane gives `value` and gets that of lane (own ^ mask), or of lane `from`. */
template <typename V> RH_DEVICE V rh_shuffle_xor(V value, int mask)
{
	return __shfl_xor_sync(0xffffffffu, value, mask);
}

template <typename V> RH_DEVICE V rh_shuffle(V value, int from)
{
	return __shfl_sync(0xffffffffu, value, from);
}

/* Bit i: whether lane i's predicate holds. */
RH_DEVICE uint32_t rh_ballot(int predicate)
{
	return __ballot_sync(0xffffffffu, predicate);
}

RH_DEVICE void rh_warp_sync(void)
{
	__syncwarp();
}

/* An attribute of the calling thread's device, which the driver is asked for once; `unknown` where it cannot be asked: the launch will say
 * why. */
template <cudaDeviceAttr Which> static int rh_attribute(int unknown)
{
	static std::atomic<int> known[RH_GPUS]; /* 0: not asked yet */
	int device = 0, value = 0;
	if (cudaGetDevice(&device) != cudaSuccess)
		return unknown;
	value = known[device % RH_GPUS].load(std::memory_order_relaxed);
	if (value)
		return value;
	if (cudaDeviceGetAttribute(&value, Which, device) != cudaSuccess)
		return unknown;
	known[device % RH_GPUS].store(value, std::memory_order_relaxed);
	return value;
}

/* SMs, for grids that walk all of their work. */
static inline int rh_processors(void)
{
	return rh_attribute<cudaDevAttrMultiProcessorCount>(1);
}

/* Bytes of shared memory of an SM; as of an sm_89 where it cannot be asked. */
static inline int rh_shared_bytes(void)
{
	const char *text = getenv(RH_HOOK_SHARED_BYTES);
	int bytes = rh_attribute<cudaDevAttrMaxSharedMemoryPerMultiprocessor>(100 << 10), most = text ? atoi(text) : INT32_MAX;
	return bytes < most ? bytes : most;
}

RH_DEVICE uint32_t rh_shared_address(const void *shared)
{
	return (uint32_t)__cvta_generic_to_shared(shared);
}

/* The first `bytes` (0 to 16) of 16 from global memory to shared, zeros for the rest; both 16-byte aligned. There once the wait returns,
 * and for other threads after a barrier behind it. Source bytes beyond `bytes` are not read, but the address must be a valid one. */
RH_DEVICE void rh_copy_async(void *shared, const void *global, int bytes)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(rh_shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

/* The same; the 128 or 256 bytes around come to L2 as well (Near 0: only what is read). */
template <int Near> RH_DEVICE void rh_copy_async_near(void *shared, const void *global, int bytes)
{
	if constexpr (Near == 256)
		asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(rh_shared_address(shared)), "l"(global),
		             "r"(bytes)
		             : "memory");
	else if constexpr (Near == 128)
		asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(rh_shared_address(shared)), "l"(global),
		             "r"(bytes)
		             : "memory");
	else
		rh_copy_async(shared, global, bytes);
}

/* The 32 bytes at an address come to L2. */
RH_DEVICE void rh_prefetch(const void *global)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/* Closes a group of copies. */
RH_DEVICE void rh_copy_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most `Pending` of this thread's latest groups are under way. */
template <int Pending> RH_DEVICE void rh_copy_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/* Four 8x8 matrices of 16-bit elements from shared memory: lane l gives the address of row l%8 (16 bytes, aligned) of matrix l/8. Register
 * m of lane l then holds elements 2*(l%4) and 2*(l%4)+1 of row l/4 of matrix m; transposed, of column l/4. */
RH_DEVICE void rh_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(rh_shared_address(row))
	             : "memory");
}

RH_DEVICE void rh_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(rh_shared_address(row))
	             : "memory");
}

/* d (16,8) += a (16,16) b (16,8), fp32 sums. With g = lane/4 and t = 2*(lane%4), low half first:
 * a[0] = a(g, t..t+1), a[1] = a(g+8, t..), a[2] = a(g, t+8..), a[3] = a(g+8, t+8..); b[0] = b(t..t+1, g), b[1] = b(t+8.., g);
 * d[0], d[1] = d(g, t..t+1), d[2], d[3] = d(g+8, t..). (PTX ISA, fragments of mma.m16n8k16.) */
RH_DEVICE void rh_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The same of fp16 operands with sums in fp16, rounded once: d[0] = d(g, t..t+1), d[1] = d(g+8, t..), low half first. */
RH_DEVICE void rh_mma_f16_sums(uint32_t (&d)[2], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
	             : "+r"(d[0]), "+r"(d[1])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two floats to fp16 by one instruction, nearest even, `low` in the low half; and back. */
RH_DEVICE uint32_t rh_pack_f16(float low, float high)
{
	__half2 pair = __floats2half2_rn(low, high);
	return *reinterpret_cast<uint32_t *>(&pair);
}

RH_DEVICE void rh_unpack_f16(uint32_t pair, float (&out)[2])
{
	float2 both = __half22float2(*reinterpret_cast<__half2 *>(&pair));
	out[0] = both.x;
	out[1] = both.y;
}

/* x, hidden from the compiler: what depends on it is recomputed in each iteration instead of occupying registers. */
RH_DEVICE int rh_opaque(int x)
{
	asm volatile("" : "+r"(x));
	return x;
}

/* 2^x by one instruction, within 2 units of the last place; 0 below 2^-126. */
RH_DEVICE float rh_exp2(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Adds 1 to the counter and returns its old value: each caller gets another number. */
RH_DEVICE int rh_fetch_add(int *counter)
{
	return atomicAdd(counter, 1);
}

/* Blocks that hand over to one another. A whole warp calls these. rh_release: what the warp wrote before is seen by a warp of another block
 * whose rh_await of that value returns, if it reads by rh_load16_fresh. Only a block that is sure to run may be waited for. */
RH_DEVICE void rh_release(int *counter, int value)
{
	__syncwarp();
	if (threadIdx.x % RH_WARP == 0)
		asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

/* 16 bytes past the SM's own cache, which does not see what other blocks write. */
RH_DEVICE void rh_load16_fresh(float (&out)[4], const float *at)
{
	asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(out[0]), "=f"(out[1]), "=f"(out[2]), "=f"(out[3]) : "l"(at));
}

RH_DEVICE void rh_await(const int *counter, int value)
{
	int seen = value;
	if (threadIdx.x % RH_WARP == 0)
		do {
			asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
		} while (seen != value);
	__syncwarp();
}

RH_DEVICE uint32_t rh_float_bits(float x)
{
	return __float_as_uint(x);
}

RH_DEVICE float rh_bits_float(uint32_t bits)
{
	return __uint_as_float(bits);
}

/* Place of the lowest bit that is set, of a word that is not 0. */
RH_DEVICE int rh_lowest_bit(uint32_t word)
{
	return __ffs((int)word) - 1;
}

/* How many bits are set. */
RH_DEVICE int rh_bit_count(uint32_t word)
{
	return __popc(word);
}

#endif /* from here on: both worlds */

/* Whether the SM's mma is so fast (8 cycles and less) that shared memory must feed it with care: those with 160 KB and more (sm_80, sm_90,
 * sm_100). */
static inline int rh_mma_is_fast(void)
{
	return rh_shared_bytes() >= 160 << 10;
}

/* Rounded to T, nearest even: rh_from_float<T>(x). */
template <typename T> RH_DEVICE T rh_from_float(float x);
template <> RH_SPECIAL float rh_from_float<float>(float x)
{
	return x;
}
template <> RH_SPECIAL rh_bf16 rh_from_float<rh_bf16>(float x)
{
	return rh_to_bf16(x);
}
template <> RH_SPECIAL rh_f16 rh_from_float<rh_f16>(float x)
{
	return rh_to_f16(x);
}

/* 16 bytes of T, loaded and stored by one instruction: addresses are multiples of 16. */
template <typename T> struct alignas(16) rh_vec {
	static constexpr int N = 16 / (int)sizeof(T);
	T v[N];
};

template <typename T> RH_DEVICE rh_vec<T> rh_load16(const T *at)
{
	RH_CHECK_ALIGNED(at);
	return *reinterpret_cast<const rh_vec<T> *>(at);
}

template <typename T> RH_DEVICE void rh_store16(T *at, const rh_vec<T> &value)
{
	RH_CHECK_ALIGNED(at);
	*reinterpret_cast<rh_vec<T> *>(at) = value;
}

/* Two 16-bit elements as mma takes them, `low` in the low half. */
template <typename T> RH_DEVICE uint32_t rh_pack2(float low, float high)
{
	static_assert(sizeof(T) == 2, "16-bit elements");
	struct alignas(4) {
		T v[2];
	} pair = {{rh_from_float<T>(low), rh_from_float<T>(high)}};
	return *reinterpret_cast<uint32_t *>(&pair);
}

/* Over a warp, in an order of its own: the same in every lane. */
RH_DEVICE float rh_warp_sum(float x)
{
	RH_UNROLL
	for (int mask = RH_WARP / 2; mask; mask /= 2)
		x += rh_shuffle_xor(x, mask);
	return x;
}

RH_DEVICE float rh_warp_max(float x)
{
	RH_UNROLL
	for (int mask = RH_WARP / 2; mask; mask /= 2)
		x = fmaxf(x, rh_shuffle_xor(x, mask));
	return x;
}

/* Over a block of WARPS warps, each of which has its part in all lanes: `join` of the parts in the order of warps, the same in every
 * thread. A barrier lies between two calls of the same `join`. */
template <int WARPS, typename V, typename F> RH_DEVICE V rh_block_join(V own, const F &join)
{
	RH_SHARED(V, part, WARPS);
	if (threadIdx.x % RH_WARP == 0)
		part[threadIdx.x / RH_WARP] = own;
	__syncthreads();
	own = part[0];
	for (int i = 1; i < WARPS; i++)
		own = join(own, part[i]);
	return own;
}

RH_HOST_DEVICE int64_t rh_ceil_div(int64_t a, int64_t b)
{
	return (a + b - 1) / b;
}

/* Whether rows that begin at `data`, `stride` elements apart, all begin on 16 bytes. */
RH_HOST_DEVICE int rh_rows_aligned(const void *data, int64_t stride, int element_bytes)
{
	return (reinterpret_cast<uintptr_t>(data) | (uintptr_t)(stride * element_bytes)) % 16 == 0;
}

#endif
