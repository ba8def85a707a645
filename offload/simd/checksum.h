/* XXH3-64 of what goes to NVMe and comes back. */
#ifndef RH_OFFLOAD_SIMD_CHECKSUM_H
#define RH_OFFLOAD_SIMD_CHECKSUM_H

#include <stdint.h>

uint64_t checksum_avx512(const void *bytes, int64_t length);
uint64_t checksum_avx2(const void *bytes, int64_t length);
uint64_t checksum_base(const void *bytes, int64_t length);

#endif
