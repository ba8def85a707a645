/* Counts a round's reloads, whose slots each have many micro-batches that all do the same: found from one micro-batch, in a time that
 * does not grow with their number. */
#include "schedule/reload.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <limits.h>
#include <string.h>

/* A boundary that a slot writes for each micro-batch. */
struct rh_reload_stream {
	int size;           /* of its records */
	size_t slot, last;  /* the slot that writes it; the last slot that reads it, or the same slot if none does */
	int64_t nth;        /* its number among the slot's writes for a micro-batch */
	int64_t first, end; /* micro-batches whose last read is a reload */
	int64_t next;       /* stream with the same last reader, -1: none */
};

struct rh_reload_slot {
	int64_t streams_before; /* streams of the slots before it */
	int64_t read;           /* first of the streams that it is the last to read, -1: none */
	int64_t writes;         /* for a micro-batch */
	int64_t written;        /* before it begins, of all micro-batches */
};

/* An access of the round's only micro-batch. */
static int note(void *context, const struct rh_boundary_access *access)
{
	struct rh_reloads *reloads = context;
	int64_t *at = &reloads->latest[(int64_t)access->kind * reloads->layers + access->layer];
	if (access->verb == RH_BOUNDARY_RELEASE)
		return 0;
	if (access->verb == RH_BOUNDARY_READ) {
		RH_ASSERT(*at >= 0);
		reloads->stream[*at].last = access->slot;
		return 0;
	}
	int rc = rh_grow(&reloads->stream, &reloads->stream_capacity, reloads->streams + 1, sizeof *reloads->stream);
	if (rc)
		return rc;
	*at = (int64_t)reloads->streams;
	reloads->stream[reloads->streams++] = (struct rh_reload_stream){.size = rh_record_size(access->kind, NULL, 0),
	                                                                .slot = access->slot,
	                                                                .last = access->slot,
	                                                                .nth = reloads->round[access->slot].writes++};
	return 0;
}

static void number_slots(struct rh_reloads *reloads, size_t slots, int64_t micro_batches)
{
	int64_t streams = 0;
	for (size_t s = 0; s < slots; s++) {
		struct rh_reload_slot *slot = &reloads->round[s];
		slot->streams_before = streams;
		slot->written = streams * micro_batches;
		slot->read = -1;
		streams += slot->writes;
	}
	for (size_t i = 0; i < reloads->streams; i++) {
		struct rh_reload_stream *stream = &reloads->stream[i];
		int64_t *first = &reloads->round[stream->last].read;
		stream->next = stream->last == stream->slot ? -1 : *first;
		*first = stream->last == stream->slot ? *first : (int64_t)i;
	}
}

/* When micro-batch m is read last there have been last.written + m * last.writes writes, and its boundary was number slot.written +
 * m * slot.writes + nth. It is reloaded if that is more than `write_buffers` before. */
static void find_reloaded(struct rh_reloads *reloads, struct rh_reload_stream *stream, int64_t micro_batches, int write_buffers)
{
	const struct rh_reload_slot *from = &reloads->round[stream->slot], *to = &reloads->round[stream->last];
	int64_t beyond = to->written - from->written - stream->nth - write_buffers, slope = to->writes - from->writes;
	stream->first = 0;
	stream->end = stream->last == stream->slot || (beyond <= 0 && slope <= 0) ? 0 : micro_batches;
	if (slope > 0 && beyond <= 0)
		stream->first = rh_min(-beyond / slope + 1, stream->end);
	if (slope < 0 && beyond > 0)
		stream->end = rh_min((beyond - 1) / -slope + 1, stream->end);
}

/* 1: the read of micro-batch m is a reload. *until: lowered to the first micro-batch with another answer. */
static int is_reloaded(const struct rh_reload_stream *stream, int64_t m, int64_t *until)
{
	if (m < stream->first)
		*until = rh_min(*until, stream->first);
	else if (m < stream->end)
		*until = rh_min(*until, stream->end);
	return m >= stream->first && m < stream->end;
}

/* Counts the records of a size that are in use while a slot runs. Each micro-batch frees the records that it reads last, then takes one for
 * each boundary that it writes and that is reloaded. Updates *in_use and *most. */
static void run_slot(struct rh_reloads *reloads, size_t s, int size, int64_t micro_batches, int64_t *in_use, int64_t *most)
{
	const struct rh_reload_slot *slot = &reloads->round[s];
	for (int64_t m = 0, until; m < micro_batches; m = until) {
		int64_t more = 0;
		until = micro_batches;
		for (int64_t i = slot->streams_before; i < slot->streams_before + slot->writes; i++)
			more += reloads->stream[i].size == size && is_reloaded(&reloads->stream[i], m, &until);
		for (int64_t i = slot->read; i >= 0; i = reloads->stream[i].next)
			more -= reloads->stream[i].size == size && is_reloaded(&reloads->stream[i], m, &until);
		*in_use += more * (until - m);
		*most = rh_max(*most, *in_use);
		*most = rh_max(*most, *in_use - more * (until - m) + more);
	}
}

int rh_reloads_count_round(struct rh_reloads *reloads, const struct rh_boundary_walk *walk, int64_t micro_batches, int write_buffers)
{
	size_t slots = walk->program->slots, places = (size_t)(RH_BOUNDARY_KINDS * (walk->layers + 1));
	struct rh_boundary_walk own = *walk;
	own.access = note;
	own.context = reloads;
	reloads->layers = walk->layers + 1;
	reloads->streams = 0;
	reloads->step_writes = 0;
	memset(reloads->records, 0, sizeof reloads->records);
	memset(reloads->size_writes, 0, sizeof reloads->size_writes);
	int rc = rh_grow(&reloads->latest, &reloads->latest_capacity, places, sizeof *reloads->latest);
	if (!rc)
		rc = rh_grow(&reloads->round, &reloads->round_capacity, slots, sizeof *reloads->round);
	if (rc)
		return rc;
	memset(reloads->latest, -1, places * sizeof *reloads->latest);
	memset(reloads->round, 0, slots * sizeof *reloads->round);
	rc = rh_boundary_walk(&own);
	if (rc)
		return rc;
	number_slots(reloads, slots, micro_batches);
	for (size_t i = 0; i < reloads->streams; i++) {
		struct rh_reload_stream *stream = &reloads->stream[i];
		find_reloaded(reloads, stream, micro_batches, write_buffers);
		reloads->step_writes += stream->end - stream->first;
		reloads->size_writes[stream->size] += stream->end - stream->first;
	}
	for (int size = 0; size < RH_RECORD_SIZES; size += RH_CHUNK_CLASSES) {
		int64_t in_use = 0, most = 0;
		for (size_t s = 0; s < slots; s++)
			run_slot(reloads, s, size, micro_batches, &in_use, &most);
		reloads->records[size] = (int)rh_min(most, INT_MAX / 4);
	}
	return 0;
}
