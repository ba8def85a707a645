/* Instances of the drive, and what they share. */
#ifndef RH_OFFLOAD_DRIVE_INTERNAL_H
#define RH_OFFLOAD_DRIVE_INTERNAL_H

#include "offload/drive.h"

#include <time.h>

/* -EPERM, -ENOSYS and the like: io_uring is not to be had. No line is made. */
int drive_uring_open(const struct rh_drive_options *options, struct rh_drive **out) RH_MUST;
int drive_threads_open(const struct rh_drive_options *options, struct rh_drive **out) RH_MUST;
/* Takes `inner` over. */
int drive_fault_open(struct rh_drive *inner, struct rh_drive **out) RH_MUST;

/* Whether faults are counted, and, for those who call the kernel elsewhere: counts one call; 0, or the code of the fault that is due. */
int drive_fault_armed(void);
int drive_fault_due(void);

/* What the next call for a request moves at most. */
int64_t drive_next_bytes(const struct rh_drive_request *request);
/* A call for it returned `result`: bytes or a negative errno. Nonzero when the request is over, and its rc set. */
int drive_advance(struct rh_drive_request *request, int64_t result, int64_t unit);

void drive_be_late(int ms);

/* Requests in line, first in, first out. */
struct drive_line {
	struct rh_drive_request *first, *last;
};
void drive_line_add(struct drive_line *line, struct rh_drive_request *request);
struct rh_drive_request *drive_line_take(struct drive_line *line); /* NULL: empty */

#endif
