/* Checkpoints: output_dir/checkpoint-N, whole or not there at all. A run that goes on from one is bit-equal to a run that never stopped.
 *
 *   adapter_model.safetensors + adapter_config.json, or model*.safetensors + config.json + tokenizer files
 *   optimizer.safetensors   the optimizer's state; fp32 masters too where the weights' own file holds less (full fine-tuning in bf16).
 *                           Neither it nor run_state.json with save_only_model
 *   teacher_logits.safetensors  of mode fluidpipe: what box 1 distils, or what box 2 keeps for it (fluidpipe_logits.h)
 *   published.safetensors   of a run of stale weights that stopped between two saves: the weights that its next step computes with
 *   trainer_state.json      for Hugging Face readers
 *   run_state.json          what no other file holds, exactly
 *   config.yaml             the resolved configuration
 *   checksums.json          XXH3-128 of each of them; verified before anything is read */
#ifndef RH_CHECKPOINT_CHECKPOINT_H
#define RH_CHECKPOINT_CHECKPOINT_H

#include "observe/trainer_state.h"
#include "session/run_state.h"
#include "session/session.h"

/* The checkpoint that resume_from_checkpoint names, verified: *path (rh_free), NULL when the key is not set. `true` means the newest
 * whole one in output_dir: broken ones are reported and skipped; -ENOENT if none is whole. */
int rh_checkpoint_find(const struct rh_config *config, char **path) RH_MUST;

/* The newest whole checkpoint of a step below `below`, verified: *path (rh_free), NULL: there is none. Broken ones are reported and
 * skipped. */
int rh_checkpoint_newest(const char *output_dir, int64_t below, char **path) RH_MUST;

/* How many checkpoints a directory holds, whole or broken: 0 also if there is no directory; or negative errno. */
int rh_checkpoint_count(const char *output_dir) RH_MUST;

/* -EINVAL: a file does not match its checksum, or is missing; named. */
int rh_checkpoint_verify(const char *path) RH_MUST;
/* The same of what a run goes on from; -EINVAL also where it holds the model alone. Tokenizer files, which other programs read and some
 * write, may have changed: a line says so, and the run takes those of its model. */
int rh_checkpoint_verify_state(const char *path) RH_MUST;

/* 1: the name is one that a killed run leaves, half written or half removed: .checkpoint-N.tmp, .checkpoint-N.old, NAME.tmp.PID. */
int rh_checkpoint_left_behind(const char *name);
/* Renames whole checkpoints that have such a name back to checkpoint-N, unless that exists. A missing directory holds none. No run may
 * be writing there. */
int rh_checkpoint_put_back(const char *output_dir) RH_MUST;
/* Removes everything that still has such a name, and the oldest checkpoints beyond save_total_limit, which a run that was killed right
 * after a save had not removed yet. Keeps the checkpoints of steps `resumed` and `best` (-1: none), and everything else. No run may be
 * writing there. */
int rh_checkpoint_tidy(const struct rh_config *config, int64_t resumed, int64_t best) RH_MUST;

/* output_dir/checkpoint-N into a fresh string (rh_free); NULL when out of memory. */
char *rh_checkpoint_path(const char *output_dir, int64_t step) RH_MUST;
/* The step that such a path says; -1: none, or the path is NULL. */
int64_t rh_checkpoint_step(const char *path);

/* The state of the run in a verified checkpoint. -EINVAL: another optim or state_layout, or numbers that no run writes. *trainer is the
 * caller's. */
int rh_checkpoint_state(const char *path, const struct rh_config *config, struct rh_run_state *state,
                        struct rh_trainer_state *trainer) RH_MUST;
/* A list of quoted words in a verified one's resolved configuration; key: as printed, "name: ". *out is the caller's (json_decref), NULL:
 * it is not there. */
struct json_t;
int rh_checkpoint_value(const char *path, const char *key, struct json_t **out) RH_MUST;
/* Loads weights and optimizer state of a verified checkpoint. A line names the keys in which this configuration differs from the
 * checkpoint's. */
int rh_checkpoint_load(const char *path, struct rh_session *session) RH_MUST;

/* The weights alone of a checkpoint that this verifies, one of save_only_model too: what a result is made of. */
int rh_checkpoint_load_weights(const char *path, struct rh_session *session) RH_MUST;

/* Writes the trained model or adapter into `dir`, in the form that other programs read. */
int rh_output_save(const struct rh_session *session, const char *dir) RH_MUST;

#endif
