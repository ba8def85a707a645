#include "offload/drive_internal.h"

#include "core/hooks.h"
#include "core/log.h"

#include <stdlib.h>
#include <string.h>

int64_t drive_next_bytes(const struct rh_drive_request *request)
{
	int64_t left = request->bytes - request->moved;
	return !request->moved && request->first_bytes ? request->first_bytes : left;
}

int drive_advance(struct rh_drive_request *request, int64_t result, int64_t unit)
{
	if (result == -EINTR || result == -EAGAIN)
		return 0;
	int64_t before = request->moved;
	request->rc = 0;
	if (result > 0) {
		request->moved += result;
		if (request->moved >= request->bytes)
			return 1;
		/* the rest must begin aligned, or the next call would be refused */
		request->moved -= request->moved % unit;
		if (request->moved > before)
			return 0;
	}
	request->rc = result < 0 ? (int)result : -EIO; /* none or a crumb: the file ends there */
	return 1;
}

void drive_delay(int ms)
{
	struct timespec wait = {ms / 1000, ms % 1000 * 1000000L};
	while (nanosleep(&wait, &wait) < 0 && errno == EINTR)
		;
}

void drive_line_add(struct drive_line *line, struct rh_drive_request *request)
{
	request->next = NULL;
	if (line->last)
		line->last->next = request;
	else
		line->first = request;
	line->last = request;
}

struct rh_drive_request *drive_line_take(struct drive_line *line)
{
	struct rh_drive_request *request = line->first;
	if (request)
		line->first = request->next;
	if (!line->first)
		line->last = NULL;
	return request;
}

#define DRIVE_ROW(name) {#name, drive_##name##_open},
static const struct {
	const char *name;
	int (*open)(const struct rh_drive_options *options, struct rh_drive **out);
} drives[] = {DRIVES(DRIVE_ROW)};
#undef DRIVE_ROW

int rh_drive_open(const struct rh_drive_options *options, struct rh_drive **out)
{
	const char *wanted = getenv(RH_HOOK_NVME);
	struct rh_drive *drive = NULL;
	int rc = -ENOSYS, threads = options->engine == RH_DRIVE_THREADS || (wanted && !strcmp(wanted, "threads"));
	for (size_t i = 0; rc && rc != -ENOMEM && i < sizeof drives / sizeof *drives; i++) {
		if (threads && strcmp(drives[i].name, "threads"))
			continue;
		rc = drives[i].open(options, &drive);
		if (rc && rc != -ENOMEM && !strcmp(drives[i].name, "uring"))
			rh_warn_once("io_uring is not to be had here (%s): NVMe is read and written by threads, at more cost of the "
			             "processor; where a container forbids it, allow io_uring_setup, io_uring_enter and io_uring_register",
			             strerror(-rc));
	}
	if (rc)
		return rh_fail(rc, "cannot start the queue of an NVMe drive: %s", strerror(-rc));
	if (!drive_fault_armed()) {
		*out = drive;
		return 0;
	}
	rc = drive_fault_open(drive, out);
	if (rc)
		drive->ops->close(drive, 0);
	return rc;
}
