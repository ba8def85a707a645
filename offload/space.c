#include "offload/space_internal.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/size.h"
#include "core/thread.h"
#include "device/cpu/cpu.h"
#include "offload/drive_internal.h"
#include "offload/simd/checksum.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { DEPTH = 32, CLOSE_SECONDS = 5, CLOSE_SECONDS_STALLED = 1 };
static const double stall_seconds = 60;

struct space_block {
	int64_t offset; /* in the drive's file */
	uint64_t sum;
	int32_t bytes;
	int16_t drive, written;
};

struct space_record {
	size_t first; /* block */
	int blocks;
	int part_end[RH_SPACE_PARTS]; /* blocks of all parts up to it */
	int summed;                   /* the space checks its blocks */
	const char *content, *owner;
};

struct rh_space {
	struct rh_space_options options;
	struct space_file file[RH_SPACE_DRIVES];
	struct rh_drive *drive[RH_SPACE_DRIVES];
	int64_t used[RH_SPACE_DRIVES]; /* bytes that records have taken */
	int64_t unit;
	uint64_t (*checksum)(const void *bytes, int64_t length);
	struct space_block *block;
	size_t blocks, block_capacity;
	struct space_record *record;
	size_t records, record_capacity;
	pthread_mutex_t lock; /* of all that follows, and of what transfers wait for */
	pthread_cond_t changed;
	int64_t read[RH_SPACE_DRIVES], written[RH_SPACE_DRIVES], all_written;
	double waited;
	struct rh_watch watch;
	struct rh_fault fault; /* it stays */
};

/* A block's way. */
struct piece {
	struct rh_drive_request request;
	struct rh_space_io *io;
	struct space_block *block;
	int summed, bad; /* bad: its checksum does not match */
};

struct rh_space_io {
	struct rh_space *space;
	struct piece *piece;
	int capacity, count; /* count 0: no transfer */
	int pending;         /* protected by space->lock */
	int record;
	int refused; /* max_nvme_writes */
	int stuck;   /* a drive stalled on it: never used again */
	double began;
	int64_t bytes;
	int aside; /* waits for it are not counted */
};

/* ---- directories and records ---- */

static int check_listed_once(const struct rh_space_options *options, int d)
{
	struct stat one, other;
	for (int e = 0; e < d; e++)
		if (!stat(options->dir[d], &one) && !stat(options->dir[e], &other) && one.st_dev == other.st_dev &&
		    one.st_ino == other.st_ino)
			return rh_fail(-EINVAL, "nvme_dirs: %s is listed twice; each directory counts once", options->dir[d]);
	return 0;
}

int rh_space_open(const struct rh_space_options *options, struct rh_space **out)
{
	if (options->dirs < 1 || options->dirs > RH_SPACE_DRIVES)
		return rh_fail(-EINVAL, "nvme_dirs: %d directories; 1 to %d can be used", options->dirs, RH_SPACE_DRIVES);
	struct rh_space *space = rh_alloc(1, sizeof *space);
	if (!space)
		return -ENOMEM;
	space->checksum = RH_CPU_PICK(rh_cpu_best_isa(), checksum);
	space->options = *options;
	space->options.dirs = 0;
	space->options.depth = options->depth ? options->depth : DEPTH;
	space->options.stall_seconds = options->stall_seconds > 0 ? options->stall_seconds : stall_seconds;
	pthread_mutex_init(&space->lock, NULL);
	rh_cond_init(&space->changed);
	int rc = 0;
	for (int d = 0; !rc && d < options->dirs; d++) {
		struct space_file *file = &space->file[d];
		rc = check_listed_once(options, d);
		if (!rc)
			rc = space_file_open(options->dir[d], file);
		if (rc)
			break;
		space->options.dirs++;
		space->unit = file->unit > space->unit ? file->unit : space->unit;
	}
	for (int d = 0; !rc && d < options->dirs; d++) {
		struct rh_drive_options drive = {
		        .descriptor = space->file[d].file, .depth = space->options.depth, .unit = space->unit, .engine = options->engine};
		rc = rh_drive_open(&drive, &space->drive[d]);
	}
	if (rc)
		rh_space_close(space);
	else
		*out = space;
	return rc;
}

void rh_space_close(struct rh_space *space)
{
	if (!space)
		return;
	double seconds = rh_fault_code(&space->fault) == -ETIMEDOUT ? CLOSE_SECONDS_STALLED : CLOSE_SECONDS;
	for (int d = 0; d < space->options.dirs; d++) {
		if (space->drive[d])
			space->drive[d]->ops->close(space->drive[d], seconds);
		space_file_close(&space->file[d]);
	}
	pthread_mutex_destroy(&space->lock);
	pthread_cond_destroy(&space->changed);
	rh_free(space->block);
	rh_free(space->record);
	rh_free(space);
}

int64_t rh_space_round(const struct rh_space *space, int64_t bytes)
{
	int64_t unit = space ? space->unit : RH_SPACE_UNIT;
	RH_ASSERT(bytes >= 0);
	return bytes > INT64_MAX - unit ? INT64_MAX / unit * unit : (bytes + unit - 1) / unit * unit;
}

/* The drive with the least on it; of equals the first. */
static int next_drive(const struct rh_space *space)
{
	int least = 0;
	for (int d = 1; d < space->options.dirs; d++)
		if (space->used[d] < space->used[least])
			least = d;
	return least;
}

static int64_t blocks_of(int64_t rounded)
{
	return (rounded + RH_SPACE_BLOCK - 1) / RH_SPACE_BLOCK;
}

static int take(struct rh_space *space, const int64_t bytes[RH_SPACE_PARTS], struct space_record record, int *number)
{
	size_t blocks = 0;
	for (int p = 0; p < RH_SPACE_PARTS; p++)
		blocks += (size_t)blocks_of(rh_space_round(space, bytes[p]));
	int rc = rh_grow(&space->record, &space->record_capacity, space->records + 1, sizeof *space->record);
	if (!rc)
		rc = rh_grow(&space->block, &space->block_capacity, space->blocks + blocks, sizeof *space->block);
	if (rc)
		return rc;
	struct space_record *taken = &space->record[space->records];
	*taken = record;
	taken->first = space->blocks;
	taken->blocks = (int)blocks;
	for (int p = 0; p < RH_SPACE_PARTS; p++) {
		for (int64_t left = rh_space_round(space, bytes[p]); left; space->blocks++) {
			int32_t length = (int32_t)(left < RH_SPACE_BLOCK ? left : RH_SPACE_BLOCK);
			int drive = next_drive(space);
			space->block[space->blocks] =
			        (struct space_block){.offset = space->used[drive], .bytes = length, .drive = (int16_t)drive};
			space->used[drive] += length;
			left -= length;
		}
		taken->part_end[p] = (int)(space->blocks - taken->first);
	}
	*number = (int)space->records++;
	return 0;
}

int rh_space_take_parts(struct rh_space *space, const int64_t bytes[RH_SPACE_PARTS], const char *what, const char *owner, int *record)
{
	return take(space, bytes, (struct space_record){.content = what, .owner = owner}, record);
}

int rh_space_take(struct rh_space *space, int64_t bytes, const char *what, const char *owner, int *record)
{
	return take(space, (int64_t[RH_SPACE_PARTS]){bytes}, (struct space_record){.content = what, .owner = owner, .summed = 1}, record);
}

int rh_space_reserve(struct rh_space *space)
{
	int rc = 0;
	for (int d = 0; !rc && d < space->options.dirs; d++)
		rc = space_file_reserve(&space->file[d], space->used[d]);
	return rc;
}

void rh_space_attach(struct rh_space *space, void *memory, int64_t bytes)
{
	for (int d = 0; d < space->options.dirs && bytes; d++)
		space->drive[d]->ops->attach(space->drive[d], memory, bytes);
}

/* ---- transfers ---- */

int rh_space_io_create(struct rh_space *space, int64_t bytes, struct rh_space_io **out)
{
	int64_t blocks = blocks_of(rh_space_round(space, bytes)) + RH_SPACE_PARTS - 1; /* each part may end in a short one */
	struct rh_space_io *io = rh_alloc(1, sizeof *io);
	if (!io)
		return -ENOMEM;
	io->space = space;
	io->capacity = (int)blocks;
	io->piece = rh_alloc((size_t)blocks, sizeof *io->piece);
	if (!io->piece) {
		rh_free(io);
		return -ENOMEM;
	}
	*out = io;
	return 0;
}

void rh_space_io_destroy(struct rh_space_io *io)
{
	if (!io)
		return;
	rh_free(io->piece);
	rh_free(io);
}

/* On a thread of the drive's, which is the one that has time for checksums: whoever asked computes meanwhile. */
static void piece_done(struct rh_drive_request *request)
{
	struct piece *piece = request->context;
	struct rh_space *space = piece->io->space;
	struct space_block *block = piece->block;
	if (!request->rc && piece->summed && request->kind == RH_DRIVE_READ)
		piece->bad = space->checksum(request->memory, request->bytes) != block->sum;
	else if (!request->rc && piece->summed)
		block->sum = space->checksum(request->memory, request->bytes);
	block->written |= !request->rc && request->kind == RH_DRIVE_WRITE;
	pthread_mutex_lock(&space->lock);
	int64_t *meter = request->kind == RH_DRIVE_READ ? space->read : space->written;
	if (!request->rc)
		meter[block->drive] += request->bytes;
	if (!--piece->io->pending) {
		if (space->watch.notify)
			space->watch.notify(space->watch.context, request->kind == RH_DRIVE_READ ? RH_WATCHED_READ : RH_WATCHED_WRITE, -1,
			                    piece->io->bytes, piece->io->began, rh_clock_seconds());
		pthread_cond_broadcast(&space->changed);
	}
	pthread_mutex_unlock(&space->lock);
}

/* Cuts the parts into the pieces of io; returns their bytes. A block never written reads as zeros at once. */
static int64_t cut(struct rh_space_io *io, int record, unsigned parts, enum rh_drive_kind kind, char *at)
{
	struct rh_space *space = io->space;
	const struct space_record *of = &space->record[record];
	int64_t bytes = 0;
	for (int i = 0, part = 0; i < of->blocks; i++) {
		struct space_block *block = &space->block[of->first + (size_t)i];
		while (i == of->part_end[part])
			part++;
		int asked = parts >> part & 1;
		if (asked && kind == RH_DRIVE_READ && !block->written) {
			memset(at, 0, (size_t)block->bytes);
		} else if (asked) {
			struct piece *piece = &io->piece[io->count++];
			*piece = (struct piece){.io = io, .block = block, .summed = of->summed};
			piece->request = (struct rh_drive_request){.kind = kind,
			                                           .memory = at,
			                                           .offset = block->offset,
			                                           .bytes = block->bytes,
			                                           .done = piece_done,
			                                           .context = piece};
			bytes += block->bytes;
		}
		at += block->bytes;
	}
	return bytes;
}

static void start(struct rh_space_io *io, int record, unsigned parts, enum rh_drive_kind kind, void *memory)
{
	struct rh_space *space = io->space;
	RH_ASSERT((!io->count || io->stuck) && record >= 0 && (size_t)record < space->records);
	if (io->stuck)
		return;
	RH_ASSERT(space->record[record].blocks <= io->capacity && (uintptr_t)memory % (uintptr_t)space->unit == 0);
	io->record = record;
	int64_t bytes = cut(io, record, parts, kind, memory);
	pthread_mutex_lock(&space->lock);
	io->began = rh_clock_seconds();
	io->bytes = bytes;
	if (kind == RH_DRIVE_WRITE)
		space->all_written += bytes;
	io->refused = space->options.most_written_bytes && kind == RH_DRIVE_WRITE && space->all_written > space->options.most_written_bytes;
	io->pending = io->refused || rh_fault_code(&space->fault) ? 0 : io->count; /* after a fault nothing more is asked of the drives */
	int go = io->pending;
	pthread_mutex_unlock(&space->lock);
	for (int i = 0; i < go; i++) {
		struct rh_drive *drive = space->drive[io->piece[i].block->drive];
		drive->ops->submit(drive, &io->piece[i].request);
	}
}

void rh_space_read_parts(struct rh_space_io *io, int record, unsigned parts, void *memory)
{
	start(io, record, parts, RH_DRIVE_READ, memory);
}

void rh_space_write_parts(struct rh_space_io *io, int record, unsigned parts, const void *memory)
{
	start(io, record, parts, RH_DRIVE_WRITE, (void *)(uintptr_t)memory);
}

void rh_space_read(struct rh_space_io *io, int record, void *memory)
{
	start(io, record, ~0u, RH_DRIVE_READ, memory);
}

void rh_space_write(struct rh_space_io *io, int record, const void *memory)
{
	start(io, record, ~0u, RH_DRIVE_WRITE, (void *)(uintptr_t)memory);
}

/* Until nothing is left of it; -ETIMEDOUT when no block came for as long as a drive may take. Lock held. */
static int await(struct rh_space_io *io, int counts)
{
	struct rh_space *space = io->space;
	double began = rh_clock_seconds();
	int before = io->pending, rc = 0;
	while (io->pending && !io->stuck && !rc) {
		struct timespec until = rh_cond_deadline(space->options.stall_seconds);
		int late = pthread_cond_timedwait(&space->changed, &space->lock, &until) == ETIMEDOUT;
		if (late && io->pending == before)
			rc = -ETIMEDOUT;
		before = io->pending;
	}
	space->waited += counts && !io->aside ? rh_clock_seconds() - began : 0;
	return rc;
}

static const char *name_of(const struct rh_space *space, int number, char *text, size_t bytes)
{
	const struct space_record *record = &space->record[number];
	snprintf(text, bytes, "%s%s%s", record->content, record->owner ? " of " : "", record->owner ? record->owner : "");
	return text;
}

static int fail_mismatch(const struct rh_space *space, int record, int block)
{
	const struct space_block *at = &space->block[space->record[record].first + (size_t)block];
	char name[256];
	return rh_fail(-EBADMSG,
	               "NVMe: %s: block %d of the %s (%d bytes at %lld) does not match its checksum: the drive gave back something "
	               "else than was written to it; nothing of it was used, go on from the last checkpoint, on another drive",
	               space->file[at->drive].dir, block, name_of(space, record, name, sizeof name), at->bytes, (long long)at->offset);
}

static int fail_piece(const struct rh_space_io *io, const struct piece *piece)
{
	const struct rh_space *space = io->space;
	char name[256];
	int block = (int)(piece->block - &space->block[space->record[io->record].first]), rc = piece->request.rc;
	if (!rc)
		return fail_mismatch(space, io->record, block);
	return rh_fail(rc, "NVMe: %s: cannot %s block %d of the %s: %s; go on from the last checkpoint when the drive is well",
	               space->file[piece->block->drive].dir, piece->request.kind == RH_DRIVE_READ ? "read" : "write", block,
	               name_of(space, io->record, name, sizeof name), strerror(-rc));
}

/* The result of the transfer, from its blocks in their order. */
static int outcome(const struct rh_space_io *io, int late)
{
	const struct rh_space *space = io->space;
	char name[256];
	if (io->refused)
		return rh_fail(-EDQUOT,
		               "max_nvme_writes: %s may be written, and the %s would exceed them; raise it, or go on from the last "
		               "checkpoint",
		               rh_size(space->options.most_written_bytes).text, name_of(space, io->record, name, sizeof name));
	if (late)
		return rh_fail(late, "NVMe: a drive gave no answer for %.0f seconds (%s); go on from the last checkpoint when it is well",
		               space->options.stall_seconds, name_of(space, io->record, name, sizeof name));
	for (int i = 0; i < io->count; i++)
		if (io->piece[i].request.rc)
			return fail_piece(io, &io->piece[i]);
	for (int i = 0; i < io->count; i++)
		if (io->piece[i].bad)
			return fail_piece(io, &io->piece[i]);
	return 0;
}

static int wait_for(struct rh_space_io *io, int counts)
{
	struct rh_space *space = io->space;
	pthread_mutex_lock(&space->lock);
	int late = await(io, counts), rc = rh_fault_get(&space->fault);
	if (!rc)
		rh_fault_keep(&space->fault, rc = outcome(io, late));
	io->stuck |= late != 0;
	if (!io->stuck)
		io->count = 0;
	pthread_mutex_unlock(&space->lock);
	return rc;
}

int rh_space_io_wait(struct rh_space_io *io)
{
	return wait_for(io, 1);
}

int rh_space_io_wait_idle(struct rh_space_io *io)
{
	return wait_for(io, 0);
}

int rh_space_mismatch(struct rh_space *space, int record, int block)
{
	pthread_mutex_lock(&space->lock);
	int rc = rh_fault_get(&space->fault);
	if (!rc)
		rh_fault_keep(&space->fault, rc = fail_mismatch(space, record, block));
	pthread_mutex_unlock(&space->lock);
	return rc;
}

int rh_space_io_done(struct rh_space_io *io)
{
	pthread_mutex_lock(&io->space->lock);
	int done = !io->pending;
	pthread_mutex_unlock(&io->space->lock);
	return done;
}

void rh_space_watch(struct rh_space *space, const struct rh_watch *watch)
{
	pthread_mutex_lock(&space->lock);
	space->watch = watch ? *watch : (struct rh_watch){0};
	pthread_mutex_unlock(&space->lock);
}

void rh_space_io_aside(struct rh_space_io *io)
{
	io->aside = 1;
}

void rh_space_waited(struct rh_space *space, double seconds)
{
	pthread_mutex_lock(&space->lock);
	space->waited += seconds;
	pthread_mutex_unlock(&space->lock);
}

void rh_space_stats(struct rh_space *space, struct rh_space_stats *out)
{
	*out = (struct rh_space_stats){.drives = space->options.dirs, .direct = 1};
	pthread_mutex_lock(&space->lock);
	for (int d = 0; d < space->options.dirs; d++) {
		out->dir[d] = space->file[d].dir;
		out->read_bytes[d] = space->read[d];
		out->written_bytes[d] = space->written[d];
		out->reserved_bytes[d] = space->used[d];
		out->direct &= space->file[d].direct;
	}
	out->wait_seconds = space->waited;
	out->engine = space->drive[0]->ops->kind;
	pthread_mutex_unlock(&space->lock);
}
