/* Space on NVMe: records of fixed size, each cut into blocks that lie in turn on all drives (one directory each, one nameless file in it),
 * each block with a checksum that is verified when it is read, unless the record's owner does that itself. The records live as long as the
 * process: nothing of them is found again after it, and no file is left behind whatever ends it.
 *
 *   open      directories found, locked, their alignment asked for
 *   take      a record more; nothing is written yet
 *   reserve   every record taken so far has its bytes on the drives, to the byte
 *   start ... wait   a record read or written whole; a transfer belongs to one thread at a time
 *
 * The first fault stays: every later wait fails with its line. */
#ifndef RH_OFFLOAD_SPACE_H
#define RH_OFFLOAD_SPACE_H

#include "offload/drive.h"
#include "offload/watch.h"

/* block: bytes of one request and of one checksum, at most; parts: of a record, at most; unit: of the usual drive, which
 * pays for less with a read before the write */
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
/* Waits for transfers under way, but not for drives that stall. Before the memory they go to and from is given back, and before
 * rh_space_io_destroy. NULL is legal. */
void rh_space_close(struct rh_space *space);

/* Bytes that a record of `bytes` takes, of NVMe and of memory, which lies on multiples of rh_space_round(1): the strictest of the drives'
 * units. NULL: of one whose drives are the usual ones. */
int64_t rh_space_round(const struct rh_space *space, int64_t bytes);

/* *record is its number. `what` and `owner` name it in errors ("optimizer state", "model.layers.3"; owner may be NULL) and are borrowed. */
int rh_space_take(struct rh_space *space, int64_t bytes, const char *what, const char *owner, int *record) RH_MUST;
/* The same of a record whose parts can be read and written apart: one after the other, each begins a block. The owner checks what it reads,
 * against checksums of its own. */
int rh_space_take_parts(struct rh_space *space, const int64_t bytes[RH_SPACE_PARTS], const char *what, const char *owner,
                        int *record) RH_MUST;
/* -ENOSPC: a drive has not enough room; the line says which, and how much is needed there. */
int rh_space_reserve(struct rh_space *space) RH_MUST;

/* Transfers will go to and from this memory, which stays until rh_space_close. */
void rh_space_attach(struct rh_space *space, void *memory, int64_t bytes);

/* One transfer after the other, each of a record of at most `bytes`, its parts together. */
struct rh_space_io;
int rh_space_io_create(struct rh_space *space, int64_t bytes, struct rh_space_io **out) RH_MUST;
/* After rh_space_close, or with nothing under way. NULL is legal. */
void rh_space_io_destroy(struct rh_space_io *io);

/* Begins. The caller has waited for the one before (asserted). memory: the record's bytes, rounded up; unchanged, or unread, until
 * rh_space_io_wait. A record never written reads as zeros. No record is read while it is written, or written twice at a time: the caller's
 * order. */
void rh_space_read(struct rh_space_io *io, int record, void *memory);
void rh_space_write(struct rh_space_io *io, int record, const void *memory);
/* Some of its parts alone, bit p of `parts` for part p; memory: that of the whole record, in which the rest is not touched. */
void rh_space_read_parts(struct rh_space_io *io, int record, unsigned parts, void *memory);
void rh_space_write_parts(struct rh_space_io *io, int record, unsigned parts, const void *memory);
/* Until all is there, and verified. -EIO, -ENOSPC, -ETIMEDOUT..., -EBADMSG for a checksum; the line names directory, block and record.
 * Without a transfer: 0, or the fault that stays. */
int rh_space_io_wait(struct rh_space_io *io) RH_MUST;
/* The same, for who has nothing else to do: it does not count as time waited. */
int rh_space_io_wait_idle(struct rh_space_io *io) RH_MUST;
/* A record's owner found that this block of it (from 0) is not what was written: -EBADMSG with the line, a fault that stays. */
int rh_space_mismatch(struct rh_space *space, int record, int block) RH_MUST;
/* Whether rh_space_io_wait would return at once. */
int rh_space_io_done(struct rh_space_io *io);
/* It is waited for on a thread of its own from now on, which counts for nothing: whoever waits for that thread says so with
 * rh_space_waited. */
void rh_space_io_aside(struct rh_space_io *io);
void rh_space_waited(struct rh_space *space, double seconds);

/* Told of each transfer from now on, those under way too, when its last block has come; NULL: no more, and none is being told of any more.
 */
void rh_space_watch(struct rh_space *space, const struct rh_watch *watch);

struct rh_space_stats {
	int drives;
	const char *dir[RH_SPACE_DRIVES];
	int64_t read_bytes[RH_SPACE_DRIVES], written_bytes[RH_SPACE_DRIVES], reserved_bytes[RH_SPACE_DRIVES];
	double wait_seconds; /* that threads stood in rh_space_io_wait, added up */
	const char *engine;
	int direct; /* whether all drives are read and written past the page cache */
};
void rh_space_stats(struct rh_space *space, struct rh_space_stats *out);

#endif
