#include "machine/drive.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/pages.h"
#include "offload/space.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { RECORD_BYTES = 8 << 20, LANES = 8 }; /* transfers under way at a time */
enum work { WORK_WRITE, WORK_READ, WORK_MIXED };

struct lane {
	struct rh_space_io *io;
	char *memory;
};
struct working {
	struct rh_space *space;
	int *record, records;
	struct lane lane[LANES];
	int lanes;
};

/* Record after record, each lane in turn, until all are done or the time is up. Mixed: even records are read while odd ones are written. */
static int run(struct working *working, enum work work, double seconds, double *bytes_per_s)
{
	double began = rh_clock_seconds();
	int rc = 0, done = 0;
	while (!rc && done < working->records && rh_clock_seconds() - began < seconds) {
		struct lane *lane = &working->lane[done % working->lanes];
		rc = rh_space_io_wait(lane->io);
		if (rc)
			break;
		if (work == WORK_READ || (work == WORK_MIXED && done % 2 == 0))
			rh_space_read(lane->io, working->record[done], lane->memory);
		else
			rh_space_write(lane->io, working->record[done], lane->memory);
		done++;
	}
	for (int i = 0; i < working->lanes; i++) {
		int waited = rh_space_io_wait(working->lane[i].io);
		if (!rc)
			rc = waited;
	}
	*bytes_per_s = (double)done * RECORD_BYTES / (rh_clock_seconds() - began);
	if (work == WORK_WRITE) /* what a slow drive did not get to has nothing to read */
		working->records = done;
	return rc;
}

/* Of the file system that a directory is on: "nvme0n1" for a partition of it. */
static void name_of(const char *dir, char *out, size_t bytes)
{
	struct stat status;
	char path[64], target[PATH_MAX];
	*out = 0;
	if (stat(dir, &status))
		return;
	snprintf(path, sizeof path, "/sys/dev/block/%u:%u", major(status.st_dev), minor(status.st_dev));
	ssize_t length = readlink(path, target, sizeof target - 1);
	if (length <= 0)
		return;
	target[length] = 0; /* ".../nvme0n1/nvme0n1p2", ".../block/vda" */
	char *last = strrchr(target, '/');
	if (!last)
		return;
	*last = 0;
	const char *above = strrchr(target, '/');
	snprintf(out, bytes, "%.31s", above && strcmp(above + 1, "block") ? above + 1 : last + 1);
}

static int prepare(struct working *working, char *const *dir, int dirs, int records)
{
	struct rh_space_options options = {.dir = dir, .dirs = dirs};
	struct rh_space_stats stats;
	int rc = rh_space_open(&options, &working->space);
	if (rc)
		return rc;
	rh_space_stats(working->space, &stats);
	if (!stats.direct)
		return rh_fail(-EINVAL, "%s: this file system does not pass by the page cache, so it says nothing of a drive", dir[0]);
	working->record = rh_alloc((size_t)records, sizeof *working->record);
	if (!working->record)
		return -ENOMEM;
	for (; !rc && working->records < records; working->records += !rc)
		rc = rh_space_take(working->space, RECORD_BYTES, "a measurement", NULL, &working->record[working->records]);
	if (!rc)
		rc = rh_space_reserve(working->space);
	for (; !rc && working->lanes < LANES; working->lanes += !rc) {
		struct lane *lane = &working->lane[working->lanes];
		rc = rh_space_io_create(working->space, RECORD_BYTES, &lane->io);
		if (rc)
			break;
		rc = rh_pages_map(RECORD_BYTES, &lane->memory);
		if (rc)
			rh_space_io_destroy(lane->io);
		else
			memset(lane->memory, 0x5a, RECORD_BYTES);
	}
	return rc;
}

int doctor_measure_drive(char *const *dir, int dirs, int64_t bytes, double seconds, struct doctor_drive_rates *out)
{
	struct working working = {0};
	*out = (struct doctor_drive_rates){0};
	for (int i = 0; i < dirs; i++) {
		struct statvfs room;
		if (statvfs(dir[i], &room))
			return rh_fail(-errno, "%s: %s", dir[i], strerror(errno));
		int64_t free_bytes = (int64_t)room.f_bavail * (int64_t)room.f_frsize;
		bytes = bytes < free_bytes / 4 ? bytes : free_bytes / 4;
		out->free_bytes += free_bytes;
	}
	int64_t records = bytes / RECORD_BYTES;
	if (records < 2)
		return rh_fail(-ENOSPC, "%s: too little is free to measure in; free some or name another directory", dir[0]);
	name_of(dir[0], out->name, sizeof out->name);
	int rc = prepare(&working, dir, dirs, (int)records);
	if (!rc)
		rc = run(&working, WORK_WRITE, seconds, &out->write);
	if (!rc)
		rc = run(&working, WORK_READ, seconds, &out->read);
	if (!rc)
		rc = run(&working, WORK_MIXED, seconds, &out->mixed);
	rh_space_close(working.space);
	for (int i = 0; i < working.lanes; i++) {
		rh_space_io_destroy(working.lane[i].io);
		rh_pages_unmap(working.lane[i].memory, RECORD_BYTES);
	}
	rh_free(working.record);
	return rc;
}
