/* Lanes to and from drives: what goes to NVMe, and when it comes back.
 *
 *   frozen weights   READ page n -> frame n mod LOWER_FRAMES -> COPY to a device. READ n + LOWER_FRAMES waits for that copy.
 *   boundaries       COPY of boundary n from a device -> ring of writes, buffer n mod `write_buffers` -> WRITE, where a reload is to come.
 *                    READ of reload r -> ring of reads, buffer r mod `read_buffers` -> COPY. The buffer's next READ waits for that copy.
 *
 * Which boundaries are written, and which reads are reloads, is known when a call begins (schedule/reload.h). A READ is placed as soon as
 * its WRITE and the last copy out of its buffer have been placed, so drives read ahead as far as there are buffers. */
#include "run/lower.h"

#include "core/alloc.h"

void lower_drives_create(struct lowering *to, const struct rh_boundary_needs *needs)
{
	struct lower_drives *drives = &to->drives;
	drives->pages = lower_lanes(to, 1, (struct rh_lane){.queue = RH_QUEUE_READS});
	drives->reads = lower_lanes(to, 1, (struct rh_lane){.queue = RH_QUEUE_READS, .owner = 1});
	drives->writes = lower_lanes(to, 1, (struct rh_lane){.queue = RH_QUEUE_WRITES, .owner = 2});
	drives->write_buffers = needs->write_buffers;
	drives->read_buffers = needs->read_buffers;
	drives->copied = rh_region_take(&to->memory, LOWER_FRAMES, sizeof(int64_t));
	drives->reread = rh_region_take(&to->memory, needs->records, sizeof(int64_t));
	for (int size = 0, first = 0; size < RH_RECORD_SIZES; first += needs->size_records[size++]) {
		drives->size[size].first = first;
		drives->size[size].bytes = needs->record_bytes[size];
	}
}

int64_t lower_record_bytes(const struct lowering *to, int record)
{
	int size = RH_RECORD_SIZES - 1;
	while (to->drives.size[size].first > record || !to->drives.size[size].bytes)
		size--;
	return to->drives.size[size].bytes;
}

/* The record of a write; -1: it has none. */
static int record_of(const struct lower_drives *drives, int64_t write)
{
	const struct rh_reload_write *of = &drives->reloads.write[write];
	return of->record < 0 ? -1 : drives->size[of->size].first + of->record;
}

void lower_drives_destroy(struct lowering *to)
{
	struct lower_drives *drives = &to->drives;
	rh_reloads_free(&drives->reloads);
	rh_free(drives->written);
}

static int64_t transfer(struct lowering *to, int lane, int64_t step, struct rh_place from, struct rh_place where)
{
	struct rh_command command = lower_command_on(lane == to->drives.writes ? RH_COMMAND_WRITE : RH_COMMAND_READ, lane, step);
	command.source = from;
	command.target = where;
	return lower_add(to, &command);
}

/* ---- frozen weights ---- */

struct rh_place lower_page(struct lowering *to, int lane, int64_t step, struct rh_place page)
{
	struct lower_drives *drives = &to->drives;
	int frame = (int)(drives->next_page++ % LOWER_FRAMES);
	RH_ASSERT(page.first % to->options->page_bytes == 0 && page.bytes <= to->options->page_bytes);
	struct rh_place where = lower_bytes(-1, RH_ROOM_HOST_FRAME, frame, 0, page.bytes);
	lower_await(to, drives->pages, drives->copied[frame], RH_WAIT_NEEDS);
	lower_await(to, lane, transfer(to, drives->pages, step, page, where), RH_WAIT_NEEDS);
	return where;
}

/* ---- boundaries ---- */

int lower_drives_begin(struct lowering *to)
{
	struct lower_drives *drives = &to->drives;
	const struct rh_boundary_walk walk = {.plan = to->options->plan,
	                                      .layers = to->options->model->layers,
	                                      .program = &to->program,
	                                      .steps_in_flight = to->limits.steps_in_flight,
	                                      .step_micro_batches = to->options->planned.train_micro_batches,
	                                      .chunks = to->call.trains ? to->options->planned.chunks : 0,
	                                      .classes = &to->options->planned.classes,
	                                      .model = to->options->model};
	if (!drives->write_buffers)
		return 0;
	int rc = rh_reloads_find(&drives->reloads, &walk, to->limits.micro_batches, drives->write_buffers);
	if (!rc)
		rc = rh_grow(&drives->written, &drives->written_capacity, drives->reloads.writes + 1, sizeof *drives->written);
	for (size_t i = 0; !rc && i < drives->reloads.writes; i++)
		drives->written[i].position = LOWER_NEVER;
	drives->next_read = drives->first_in_use = 0;
	return rc;
}

static void read_back(struct lowering *to, int64_t reload, int64_t step)
{
	struct lower_drives *drives = &to->drives;
	int64_t write = drives->reloads.reload[reload];
	int record = record_of(drives, write), buffer = drives->write_buffers + (int)(reload % drives->read_buffers);
	int64_t bytes = drives->written[write].bytes;
	lower_await(to, drives->reads, drives->written[write].position, RH_WAIT_NEEDS);
	lower_buffer_await(to, drives->reads, buffer);
	drives->reread[record] = to->buffer_filled[buffer] =
	        transfer(to, drives->reads, step, lower_bytes(-1, RH_ROOM_RECORD, record, 0, bytes),
	                 lower_bytes(-1, RH_ROOM_HOST_BOUNDARY, buffer, 0, bytes));
}

/* Places the READs of reloads in the order of the program, each once it has a buffer and its WRITE has been placed. */
void lower_read_ahead(struct lowering *to, int64_t step)
{
	struct lower_drives *drives = &to->drives;
	const struct rh_reloads *reloads = &drives->reloads;
	while (!to->rc && drives->next_read < (int64_t)reloads->count && drives->next_read < drives->first_in_use + drives->read_buffers &&
	       drives->written[reloads->reload[drives->next_read]].position != LOWER_NEVER)
		read_back(to, drives->next_read++, step);
}

int lower_ring_next(struct lowering *to, const struct lower_boundary *boundary)
{
	struct lower_drives *drives = &to->drives;
	drives->write = rh_reloads_next(&drives->reloads, 1, boundary->kind, boundary->layer, boundary->index)->write;
	return (int)(drives->write % drives->write_buffers);
}

void lower_ring_filled(struct lowering *to, const struct lower_boundary *boundary, int64_t copy)
{
	struct lower_drives *drives = &to->drives;
	int64_t write = drives->write, bytes = boundary->bytes;
	int buffer = (int)(write % drives->write_buffers), record = record_of(drives, write);
	if (record < 0)
		return;
	RH_ASSERT(bytes <= lower_record_bytes(to, record));
	lower_await(to, drives->writes, copy, RH_WAIT_NEEDS);
	lower_await(to, drives->writes, drives->reread[record], RH_WAIT_NEEDS);
	int64_t position = transfer(to, drives->writes, boundary->step, lower_bytes(-1, RH_ROOM_HOST_BOUNDARY, buffer, 0, bytes),
	                            lower_bytes(-1, RH_ROOM_RECORD, record, 0, bytes));
	drives->written[write].position = position;
	drives->written[write].bytes = bytes;
	lower_buffer_read(to, boundary, buffer, to->options->planned.devices, position);
}

int lower_ring_find(struct lowering *to, const struct lower_boundary *boundary)
{
	struct lower_drives *drives = &to->drives;
	const struct rh_reload_access *access = rh_reloads_next(&drives->reloads, 0, boundary->kind, boundary->layer, boundary->index);
	int buffer = (int)(access->write % drives->write_buffers);
	if (access->reload >= 0) {
		buffer = drives->write_buffers + (int)(access->reload % drives->read_buffers);
		drives->first_in_use = access->reload;
		if (drives->next_read <= access->reload) { /* the slots that read the reloads before it were skipped */
			drives->next_read = access->reload + 1;
			read_back(to, access->reload, boundary->step);
		}
		drives->first_in_use++;
	}
	return buffer;
}
