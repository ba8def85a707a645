/* Space on NVMe: records of fixed size. Each record is cut into blocks, striped over all drives (a drive is one directory, with one
 * nameless file in it). Each block has a checksum, which is verified when it is read, unless the record's owner verifies it. Records live
 * as long as the process: however it ends, no file is left behind.
 *
 *   open      finds and locks the directories, asks for their alignment
 *   take      adds a record; nothing is written yet
 *   reserve   allocates the bytes of every record taken so far, exactly
 *   start ... wait   reads or writes a whole record; a transfer belongs to one thread at a time
 *
 * The first fault stays: every later wait fails with its line. */
#ifndef RH_OFFLOAD_SPACE_H
#define RH_OFFLOAD_SPACE_H

#include "offload/drive.h"
#include "offload/watch.h"

/* block: bytes of one request and of one checksum, at most; parts: of a record, at most; unit: alignment of the usual drive (it has to read
 * before it can write less) */
enum { RH_SPACE_DRIVES = 16, RH_SPACE_BLOCK = 1 << 20, RH_SPACE_PARTS = 3, RH_SPACE_UNIT = 4096 };

struct rh_space;

struct rh_space_options {
	char *const *dir; /* borrowed */
	int dirs;
	int64_t most_written_bytes; /* 0: any; a write beyond is refused */
	enum rh_drive_engine engine;
	int depth;            /* requests at each drive; 0: 32 */
	double stall_seconds; /* a drive that answers nothing for so long has failed; 0: 60 */
};

/* -EBUSY: another run is in one of the directories. Errors name the directory. */
int rh_space_open(const struct rh_space_options *options, struct rh_space **out) RH_MUST;
/* Waits for transfers in flight, but not for drives that stall. Call it before their memory is released, and before rh_space_io_destroy.
 * NULL is legal. */
void rh_space_close(struct rh_space *space);

/* Bytes that a record of `bytes` takes on NVMe and in memory. Its memory is aligned to rh_space_round(1), the largest of the drives' units.
 * space NULL: of usual drives. */
int64_t rh_space_round(const struct rh_space *space, int64_t bytes);

/* *record is its number. `what` and `owner` name it in errors ("optimizer state", "model.layers.3"; owner may be NULL) and are borrowed. */
int rh_space_take(struct rh_space *space, int64_t bytes, const char *what, const char *owner, int *record) RH_MUST;
/* The same for a record of several parts, which can be read and written one by one. Parts lie one after the other, and each begins a
 * block. The owner verifies them with checksums of its own. */
int rh_space_take_parts(struct rh_space *space, const int64_t bytes[RH_SPACE_PARTS], const char *what, const char *owner,
                        int *record) RH_MUST;
/* -ENOSPC: a drive has too little free space; the line names it and the bytes needed. */
int rh_space_reserve(struct rh_space *space) RH_MUST;

/* Registers memory of later transfers. It stays until rh_space_close. */
void rh_space_attach(struct rh_space *space, void *memory, int64_t bytes);

/* Does one transfer after another, each of a record of at most `bytes`, its parts together. */
struct rh_space_io;
int rh_space_io_create(struct rh_space *space, int64_t bytes, struct rh_space_io **out) RH_MUST;
/* After rh_space_close, or with no transfer in flight. NULL is legal. */
void rh_space_io_destroy(struct rh_space_io *io);

/* Start a transfer. The caller has waited for the one before (asserted). memory: the record's bytes, rounded up. Until rh_space_io_wait
 * the caller does not change it (write) or read it (read). A record that was never written reads as zeros. The caller orders transfers: no
 * record is read while it is written, or written twice at a time. */
void rh_space_read(struct rh_space_io *io, int record, void *memory);
void rh_space_write(struct rh_space_io *io, int record, const void *memory);
/* Some parts of a record, bit p of `parts` for part p. memory is that of the whole record; the other parts are not touched. */
void rh_space_read_parts(struct rh_space_io *io, int record, unsigned parts, void *memory);
void rh_space_write_parts(struct rh_space_io *io, int record, unsigned parts, const void *memory);
/* Waits until the transfer is done, and verified. -EIO, -ENOSPC, -ETIMEDOUT..., -EBADMSG for a checksum; the line names directory, block
 * and record. Without a transfer: 0, or the fault that stays. */
int rh_space_io_wait(struct rh_space_io *io) RH_MUST;
/* The same for callers that are idle anyway: the time is not counted as waiting. */
int rh_space_io_wait_idle(struct rh_space_io *io) RH_MUST;
/* The record's owner calls this when its own check finds that block `block` (from 0) differs from what was written. Returns -EBADMSG
 * with its line; the fault stays. */
int rh_space_mismatch(struct rh_space *space, int record, int block) RH_MUST;
/* Whether rh_space_io_wait would return at once. */
int rh_space_io_done(struct rh_space_io *io);
/* From now on a thread of its own waits for this io, and its waiting is not counted. A caller that waits for that thread reports its own
 * waiting with rh_space_waited. */
void rh_space_io_aside(struct rh_space_io *io);
void rh_space_waited(struct rh_space *space, double seconds);

/* Reports each transfer from now on, those in flight too, when its last block is done. NULL: no more; on return no report is running. */
void rh_space_watch(struct rh_space *space, const struct rh_watch *watch);

struct rh_space_stats {
	int drives;
	const char *dir[RH_SPACE_DRIVES];
	int64_t read_bytes[RH_SPACE_DRIVES], written_bytes[RH_SPACE_DRIVES], reserved_bytes[RH_SPACE_DRIVES];
	double wait_seconds; /* sum of the time that threads spent in rh_space_io_wait */
	const char *engine;
	int direct; /* whether all drives are read and written past the page cache */
};
void rh_space_stats(struct rh_space *space, struct rh_space_stats *out);

#endif
