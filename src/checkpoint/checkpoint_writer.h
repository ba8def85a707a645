/* Writes checkpoints while training continues, on a thread of its own. Every trainable block is held (rh_updater_hold) until it has been
 * written, or copied into a ring; then its next update may begin. What lies on NVMe is written while training stands still, because the
 * store's cache has one user at a time.
 *
 * The files' bytes go to the page cache first, which is when blocks are released; only the thread waits for the disk. */
#ifndef RH_CHECKPOINT_CHECKPOINT_WRITER_H
#define RH_CHECKPOINT_CHECKPOINT_WRITER_H

#include "checkpoint/checkpoint.h"
#include "core/text.h"

struct rh_checkpoint_writer;

/* 1: training stands still while a checkpoint of this session is written. */
int rh_checkpoint_stands_still(const struct rh_session *session);

/* Borrows the session until it is destroyed. ring_bytes: of the ring (write_ring.h) that blocks are copied into while updates
 * wait for them; 0: none. */
int rh_checkpoint_writer_create(const struct rh_session *session, int64_t ring_bytes, struct rh_checkpoint_writer **out) RH_MUST;
/* Waits until the checkpoint in progress is whole. NULL is legal. */
void rh_checkpoint_writer_destroy(struct rh_checkpoint_writer *writer);

/* One more file of every checkpoint: `print` appends its bytes when a checkpoint begins; if it appends none, that checkpoint has no such
 * file. */
struct rh_checkpoint_extra {
	const char *name;
	int (*print)(void *context, struct rh_text *out);
	void *context;
};
enum { RH_CHECKPOINT_EXTRAS = 4 }; /* the most of them */
void rh_checkpoint_writer_add(struct rh_checkpoint_writer *writer, const struct rh_checkpoint_extra *extra);

/* Begins to write checkpoint-N, and then removes the oldest beyond save_total_limit, but none from step `common` on. All updates must be
 * finished (rh_updater_finish), and the checkpoint before collected. The caller may change state and trainer when it returns. */
int rh_checkpoint_writer_begin(struct rh_checkpoint_writer *writer, const struct rh_run_state *state,
                               const struct rh_trainer_state *trainer, int64_t common) RH_MUST;

/* Collects the checkpoint that was begun: *step its step, *seconds the time that it took; returns its result. *step -1: none was begun,
 * or it is not finished and `wait` is RH_CHECKPOINT_LOOK. */
enum rh_checkpoint_wait { RH_CHECKPOINT_LOOK, RH_CHECKPOINT_WAIT };
int rh_checkpoint_writer_collect(struct rh_checkpoint_writer *writer, enum rh_checkpoint_wait wait, int64_t *step, double *seconds) RH_MUST;

#endif
