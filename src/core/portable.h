/* Functions that host code and kernels share: a definition that begins with RH_PORTABLE is compiled for both. Headers that use it are plain
 * C, without restrict. */
#ifndef RH_CORE_PORTABLE_H
#define RH_CORE_PORTABLE_H

#ifdef __CUDACC__
#define RH_PORTABLE static __host__ __device__ __forceinline__
#else
#define RH_PORTABLE static inline __attribute__((always_inline))
#endif

#endif
