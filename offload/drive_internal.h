/* Instances of the drive, and what they share. */
#ifndef RH_OFFLOAD_DRIVE_INTERNAL_H
#define RH_OFFLOAD_DRIVE_INTERNAL_H

#include "offload/drive.h"

#include <time.h>

/* The instances, best first. To add one, write its file and its row. An open that fails writes no error line: -EPERM, -ENOSYS and the
 * like mean that this machine lacks the instance, and the next one is tried. */
/* clang-format off */
#define DRIVES(ROW) ROW(uring) ROW(threads)
/* clang-format on */
#define DRIVE_OPEN(name) int drive_##name##_open(const struct rh_drive_options *options, struct rh_drive **out) RH_MUST;
DRIVES(DRIVE_OPEN)
#undef DRIVE_OPEN

/* Takes `inner` over. */
int drive_fault_open(struct rh_drive *inner, struct rh_drive **out) RH_MUST;

/* 1: calls are counted for rh_drive_fail_nth. And for code that calls the kernel by itself: counts one call, and returns 0 or the code
 * of the fault that is due. */
int drive_fault_armed(void);
int drive_fault_due(void);

/* The most bytes that the next kernel call for this request may move. */
int64_t drive_next_bytes(const struct rh_drive_request *request);
/* A kernel call for the request returned `result`: bytes or a negative errno. Returns nonzero when the request is finished; its rc is
 * then set. */
int drive_advance(struct rh_drive_request *request, int64_t result, int64_t unit);

void drive_delay(int ms);

/* Requests in line, first in, first out. */
struct drive_line {
	struct rh_drive_request *first, *last;
};
void drive_line_add(struct drive_line *line, struct rh_drive_request *request);
struct rh_drive_request *drive_line_take(struct drive_line *line); /* NULL: empty */

#endif
