/* The machine's memory. */
#ifndef RH_CORE_RAM_H
#define RH_CORE_RAM_H

#include <stdint.h>

/* Physical memory, and what of it may be taken, in bytes: as root/proc/meminfo says ("": the machine's own), else, where there is no /proc,
 * as the kernel's sysinfo says, which counts no page cache as free: a line says so once. */
void rh_ram_under(const char *root, int64_t *total_bytes, int64_t *available_bytes);

#endif
