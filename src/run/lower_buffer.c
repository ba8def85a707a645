/* Which buffer of host memory each boundary is in. Where boundaries go to NVMe, buffers are two rings (lower_drive.c). Else they are given
 * out in the order of the program, and the plan has counted enough of them for that order (schedule/needs.h). A command that fills a buffer
 * waits for the readers of its earlier content. Therefore a micro-batch's output takes the buffer of its input, if that has no other
 * reader: the slot then waits for its own device alone. */
#include "run/lower.h"

static int acquire(struct lowering *to, const struct lower_boundary *boundary)
{
	struct rh_boundary_want want =
	        rh_boundary_want(&to->boundaries, to->options->plan, to->call.trains, boundary->kind, boundary->layer);
	const struct rh_chunk_classes *classes = &to->options->planned.classes;
	int kind = to->call.trains && classes->count > 1 ? classes->of_chunk[boundary->index % to->options->planned.chunks] : 0;
	if (want.pool == RH_BOUNDARY_NARROWS) {
		want.pool = (enum rh_boundary_pool)(RH_BOUNDARY_NARROWS + kind);
	} else if (want.pool == RH_BOUNDARY_OWN) {
		want.is_latest = to->has_input_buffer;
		to->has_input_buffer = 0;
		want.pool = kind ? (enum rh_boundary_pool)(RH_BOUNDARY_SHORTER + kind - 1) : RH_BOUNDARY_OWN;
	}
	return rh_boundary_acquire(&to->boundaries, want, boundary->kind, boundary->layer, boundary->index);
}

/* (devices + 1): the latest copy from the buffer to each device, and its latest WRITE or SEND. */
static int64_t *readers_of(struct lowering *to, int buffer)
{
	return &to->buffer_read[(int64_t)buffer * (to->options->planned.devices + 1)];
}

void lower_buffer_await(struct lowering *to, int lane, int buffer)
{
	int64_t *read = readers_of(to, buffer);
	int is_read = 0;
	for (int i = 0; i <= to->options->planned.devices; i++) {
		lower_await(to, lane, read[i], RH_WAIT_NEEDS);
		is_read |= read[i] != LOWER_NEVER;
		read[i] = LOWER_NEVER;
	}
	if (!is_read) /* else the reads waited for it */
		lower_await(to, lane, to->buffer_filled[buffer], RH_WAIT_NEEDS);
}

int lower_buffer_take(struct lowering *to, int lane, const struct lower_boundary *boundary)
{
	int buffer = to->drives.write_buffers ? lower_ring_next(to, boundary) : acquire(to, boundary);
	lower_buffer_await(to, lane, buffer);
	return buffer;
}

void lower_buffer_filled(struct lowering *to, const struct lower_boundary *boundary, int buffer, int64_t position)
{
	to->buffer_filled[buffer] = position;
	if (to->drives.write_buffers)
		lower_ring_filled(to, boundary, position);
}

int lower_buffer_find(struct lowering *to, int lane, const struct lower_boundary *boundary)
{
	int buffer = to->drives.write_buffers ? lower_ring_find(to, boundary)
	                                      : rh_boundary_find(&to->boundaries, boundary->kind, boundary->layer, boundary->index);
	lower_await(to, lane, to->buffer_filled[buffer], RH_WAIT_NEEDS);
	return buffer;
}

struct rh_place lower_buffer_place(const struct lowering *to, int buffer, int64_t bytes)
{
	const struct rh_boundary_needs *needs = &to->limits.boundaries;
	const struct rh_boundary_buffers *pool = &to->boundaries.pool[RH_BOUNDARY_SHORTER];
	int64_t offset = rh_bytes_times(needs->bytes_each, pool->first);
	if (!needs->sizes)
		return lower_bytes(-1, RH_ROOM_HOST_BOUNDARY, buffer, 0, bytes);
	if (buffer < pool->first) {
		RH_ASSERT(bytes <= needs->bytes_each);
		return lower_bytes(-1, RH_ROOM_HOST_BOUNDARY, 0, buffer * needs->bytes_each, bytes);
	}
	int size = 0;
	for (; buffer >= pool[size].first + pool[size].count; size++)
		offset += needs->size_bytes[size] * pool[size].count;
	RH_ASSERT(bytes <= needs->size_bytes[size]);
	return lower_bytes(-1, RH_ROOM_HOST_BOUNDARY, 0, offset + (buffer - pool[size].first) * needs->size_bytes[size], bytes);
}

static void note_read(struct lowering *to, int buffer, int reader, int64_t position)
{
	readers_of(to, buffer)[reader] = position;
}

void lower_buffer_read_again(struct lowering *to, const struct lower_boundary *boundary, int buffer, int reader, int64_t position)
{
	note_read(to, buffer, reader, position);
	if (to->drives.write_buffers)
		lower_read_ahead(to, boundary->step);
}

void lower_buffer_read(struct lowering *to, const struct lower_boundary *boundary, int buffer, int reader, int64_t position)
{
	note_read(to, buffer, reader, position);
	if (to->drives.write_buffers)
		lower_read_ahead(to, boundary->step);
	else if (rh_boundary_release(&to->boundaries, boundary->kind, boundary->layer, boundary->index))
		to->has_input_buffer = reader < to->options->planned.devices && boundary->kind != RH_BOUNDARY_NARROW;
}
