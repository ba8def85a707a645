/* Bytes for people. */
#ifndef RH_CORE_SIZE_H
#define RH_CORE_SIZE_H

#include <stdint.h>

struct rh_size {
	char text[16];
};

/* "2.50 MiB", "512 B": three digits at least, in the largest unit up to TiB of which there is one. */
struct rh_size rh_size(int64_t bytes);

#endif
