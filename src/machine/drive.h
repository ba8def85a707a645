/* Measures how fast drives read and write in a run: through offload/space.h, checksums included. */
#ifndef RH_MACHINE_DRIVE_H
#define RH_MACHINE_DRIVE_H

#include "core/error.h"

#include <stdint.h>

struct doctor_drive_rates {
	double read, write, mixed; /* bytes per second; mixed: in sum, as much read as written */
	int64_t free_bytes;        /* of the file systems */
	char name[32];             /* of the block device below the first, "nvme0n1"; "" where there is none */
};

/* In at most `bytes` in the directories together, one a drive, in files that have no name (nothing is left behind); at most about `seconds`
 * for each of the three.
 * -ENOSPC; -EINVAL for a file system that cannot pass by the page cache; or what it answers. */
int doctor_measure_drive(char *const *dir, int dirs, int64_t bytes, double seconds, struct doctor_drive_rates *out) RH_MUST;

#endif
