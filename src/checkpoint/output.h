/* output_dir before anything is written to it. */
#ifndef RH_CHECKPOINT_OUTPUT_H
#define RH_CHECKPOINT_OUTPUT_H

#include "session/session.h"

/* May the run write to output_dir? It may where the directory is empty, or holds what a run left that ended before its first checkpoint
 * (metrics.jsonl, recording, half-written files), or holds the checkpoint that this run continues (NULL: none); and where it, or its
 * nearest parent, can be written. -EEXIST, -EACCES and others say what to do. */
int rh_output_check(const struct rh_config *config, const char *checkpoint) RH_MUST;

/* Locks `dir` for this process and binds it (core/file.h) until rh_output_unlock. A missing directory can be locked later; *descriptor
 * is then -1. -EBUSY: another run has locked it. */
int rh_output_lock(const char *dir, int *descriptor) RH_MUST;
void rh_output_unlock(int *descriptor);

/* 1: nothing but what such a run left, or not there; 0: more; negative errno. */
int rh_output_fresh(const char *dir) RH_MUST;

/* 1: `dir` holds the result of a run that ended at `step`; 0: not, or an unfinished one. */
int rh_output_holds(const struct rh_session *session, const char *dir, int64_t step);

/* Can this directory be written, or be made where it is not there? -errno says in one line why not. Nothing is left behind. */
int rh_output_check_place(const char *dir) RH_MUST;

#endif
