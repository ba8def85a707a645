/* Between a checkpoint's content (checkpoint.c) and its place in output_dir (checkpoint_dir.c). */
#ifndef RH_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define RH_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "checkpoint/checkpoint_writer.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/text.h"
#include "weights/tensors.h"
#include "weights/write_ring.h"

#include <limits.h>

/* "dir/name" into `path`. */
int checkpoint_in(char path[PATH_MAX], const char *dir, const char *name) RH_MUST;

/* The hidden directory in which step N's checkpoint is made: dir/.checkpoint-N.tmp. */
int checkpoint_temporary(char path[PATH_MAX], const char *dir, int64_t step) RH_MUST;

/* Flushes the finished checkpoint and renames it to `path`, checkpoint-N; an older one of that name is removed. A kill at any moment
 * leaves one of the two whole, under this name or where rh_checkpoint_put_back finds it. */
int checkpoint_place(const char *dir, int64_t step, char path[PATH_MAX]) RH_MUST;

/* Steps whose checkpoints must stay, -1: none. `common` and all later ones stay, too, because boxes continue only from a checkpoint that
 * all of them have, and another box may lack a later one. INT64_MAX: a single box. */
struct checkpoint_kept {
	int64_t newest, best, common;
};

/* Removes the oldest checkpoints beyond save_total_limit. Those that must stay do, even if they are the oldest, because a run that
 * continued an older checkpoint left newer ones. */
int checkpoint_remove_oldest(const struct rh_config *config, const struct checkpoint_kept *kept) RH_MUST;

/* Tensors of optimizer.safetensors. */
int checkpoint_optimizer_tensors(const struct rh_session *session, struct rh_tensor_list *list) RH_MUST;
extern const char *const checkpoint_optim_names[RH_OPTIMS], *const checkpoint_layout_names[RH_LAYOUTS];
/* The weights that devices read, where these lack the last update. */
#define CHECKPOINT_PUBLISHED "published.safetensors"

/* Files that are the same in each checkpoint of this run: the first one writes them, later ones copy them from the last. Zeroed: there
 * is none yet. */
enum { CHECKPOINT_FIXED = 16 };
struct checkpoint_fixed {
	char dir[PATH_MAX]; /* "": there is no checkpoint to copy from */
	struct rh_names names;
	char hex[CHECKPOINT_FIXED][RH_FILE_HASH];
};
void checkpoint_fixed_forget(struct checkpoint_fixed *fixed);

/* A checkpoint to be written: a copy of everything, except tensors, that changes while training continues. */
struct checkpoint_job {
	const struct rh_session *session;
	struct checkpoint_kept kept; /* newest: this one's step */
	struct rh_text trainer, run, config;
	struct {
		const char *name;
		struct rh_text text;
	} extra[RH_CHECKPOINT_EXTRAS]; /* struct rh_checkpoint_extra's; without bytes: no file */
	struct checkpoint_fixed *fixed;
	struct rh_write_ring *ring;                /* tensors are copied into it first; NULL: not */
	void (*written)(void *context, int block); /* the block has been read from the store for the last time; may be NULL */
	void *context;
};
int checkpoint_job_make(const struct rh_session *session, const struct rh_run_state *state, const struct rh_trainer_state *trainer,
                        struct checkpoint_fixed *fixed, struct checkpoint_job *out) RH_MUST; /* kept.common: INT64_MAX */
/* checkpoint-N, whole or not at all; then the oldest beyond save_total_limit go. */
int checkpoint_job_write(const struct checkpoint_job *job) RH_MUST;
void checkpoint_job_free(struct checkpoint_job *job);

#endif
