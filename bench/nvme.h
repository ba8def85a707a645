/* Transfers through a space as runs make them: a few slots of memory, each waiting for its own. For bench/nvme.c and bench/spill.c. */
#ifndef RH_BENCH_NVME_H
#define RH_BENCH_NVME_H

#include "core/clock.h"
#include "offload/memory.h"
#include "offload/space.h"

#include <stdio.h>
#include <stdlib.h>

enum { RECORD = 10 << 20, RECORDS = 100, SLOTS = 6, DEPTH = 32 };
enum mode { READ, WRITE, MIXED, MODES };

struct ours {
	struct rh_space *space;
	struct rh_arena memory;
	struct rh_space_io *io[SLOTS];
	int record[RECORDS];
};

static int check(int rc)
{
	if (rc) {
		fprintf(stderr, "%s\n", rh_error(rc));
		exit(1);
	}
	return rc;
}

/* Who checks what is read: the space, as with weights and activations, or nobody here, as with optimizer state, whose update does. */
enum checks { BY_SPACE, BY_OWNER };

static void ours_open(struct ours *ours, char *dir, enum checks checks)
{
	struct rh_space_options options = {.dir = &dir, .dirs = 1, .depth = DEPTH};
	check(rh_space_open(&options, &ours->space));
	for (int r = 0; r < RECORDS; r++)
		if (checks == BY_SPACE)
			check(rh_space_take(ours->space, RECORD, "record", NULL, &ours->record[r]));
		else
			check(rh_space_take_parts(ours->space, (int64_t[RH_SPACE_PARTS]){RECORD}, "record", NULL, &ours->record[r]));
	check(rh_space_reserve(ours->space));
	check(rh_host_reserve((int64_t)SLOTS * RECORD, "the bench", &ours->memory));
	rh_space_attach(ours->space, ours->memory.base, ours->memory.capacity);
	for (int64_t i = 0; i < ours->memory.capacity / 8; i++)
		((uint64_t *)(void *)ours->memory.base)[i] = (uint64_t)i * 0x9E3779B97F4A7C15u;
	for (int s = 0; s < SLOTS; s++)
		check(rh_space_io_create(ours->space, RECORD, &ours->io[s]));
}

static void ours_close(struct ours *ours)
{
	rh_space_close(ours->space);
	for (int s = 0; s < SLOTS; s++)
		rh_space_io_destroy(ours->io[s]);
	rh_host_release(&ours->memory);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Sorts them. */
static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, by_value);
	return 0.5 * (values[(count - 1) / 2] + values[count / 2]);
}

/* Bytes a second. Mixed: slots read and write in turn, each in its half of the records. */
static double ours_run(struct ours *ours, enum mode mode, double seconds)
{
	int next[2] = {0, RECORDS / 2};
	int64_t bytes = 0;
	double began = rh_clock_seconds(), end = 0;
	for (int64_t i = 0; rh_clock_seconds() - began < seconds; i++) {
		int s = (int)(i % SLOTS), writes = mode == WRITE || (mode == MIXED && s % 2);
		check(rh_space_io_wait(ours->io[s]));
		bytes += i >= SLOTS ? RECORD : 0;
		int half = mode == MIXED && writes, *at = &next[half];
		int record = ours->record[*at];
		*at = mode != MIXED ? (*at + 1) % RECORDS
		      : half        ? RECORDS / 2 + (*at + 1 - RECORDS / 2) % (RECORDS / 2)
		                    : (*at + 1) % (RECORDS / 2);
		if (writes)
			rh_space_write(ours->io[s], record, ours->memory.base + s * RECORD);
		else
			rh_space_read(ours->io[s], record, ours->memory.base + s * RECORD);
	}
	end = rh_clock_seconds();
	for (int s = 0; s < SLOTS; s++)
		check(rh_space_io_wait(ours->io[s]));
	return (double)bytes / (end - began);
}

#endif
