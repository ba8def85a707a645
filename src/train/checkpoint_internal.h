/* Between a checkpoint's content (checkpoint.c) and its place in output_dir (checkpoint_dir.c). */
#ifndef RH_TRAIN_CHECKPOINT_INTERNAL_H
#define RH_TRAIN_CHECKPOINT_INTERNAL_H

#include "train/checkpoint.h"

#include <limits.h>

/* "dir/name" into `path`. */
int checkpoint_in(char path[PATH_MAX], const char *dir, const char *name) RH_MUST;

/* Where step N's is made, out of sight: dir/.checkpoint-N.tmp. */
int checkpoint_temporary(char path[PATH_MAX], const char *dir, int64_t step) RH_MUST;

/* Puts it there, whole and flushed as it must be, under its name; the one that had the name goes. A kill at any moment leaves one of the
 * two whole, under its name or where rh_checkpoint_put_back finds it. */
int checkpoint_place(const char *dir, int64_t step) RH_MUST;

/* Removes the oldest beyond save_total_limit. Never those of steps `kept` and `best` (-1: none), even where a run that went on from an
 * older one left newer ones behind. */
int checkpoint_remove_oldest(const struct rh_config *config, int64_t kept, int64_t best) RH_MUST;

#endif
