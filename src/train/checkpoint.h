/* Checkpoints: output_dir/checkpoint-N, whole or not there at all. A run that goes on from one is bit-equal to a run that never stopped.
 *
 *   adapter_model.safetensors + adapter_config.json, or model*.safetensors + config.json + tokenizer files
 *   optimizer.safetensors   the optimizer's state; fp32 masters too where the weights' own file holds less (full fine-tuning in bf16)
 *   trainer_state.json      for Hugging Face readers
 *   run_state.json          what no other file holds, exactly
 *   config.yaml             the resolved configuration
 *   checksums.json          XXH3-128 of each of them; verified on load */
#ifndef RH_TRAIN_CHECKPOINT_H
#define RH_TRAIN_CHECKPOINT_H

#include "observe/trainer_state.h"
#include "train/session.h"

/* Where a run stands between two steps. */
struct rh_run_state {
	int64_t step;                    /* done */
	double loss_since_log, run_loss; /* sums over steps */
	int64_t steps_since_log;
	int64_t tokens, trained_tokens; /* since the run began */
	int64_t data_rows, data_tokens; /* of the rows trained on; 0 where a checkpoint of an earlier version does not say */
};

/* Writes checkpoint-N and then removes the oldest beyond save_total_limit. */
int rh_checkpoint_save(const struct rh_session *session, const struct rh_run_state *state, const struct rh_trainer_state *trainer) RH_MUST;

/* What resume_from_checkpoint names: *path (rh_free), NULL when the key is not set. `true` is the newest complete one in output_dir;
 * -ENOENT if there is none. */
int rh_checkpoint_find(const struct rh_config *config, char **path) RH_MUST;

/* The step of the newest complete checkpoint in a directory, -1 if there is none or no directory. What lacks its checksums was not written
 * by this program, or not to the end: it is passed over, which is told. */
int rh_checkpoint_newest(const char *output_dir, int64_t *step) RH_MUST;

/* The step that a checkpoint was saved at. */
int rh_checkpoint_step(const char *path, int64_t *step) RH_MUST;
/* -EINVAL: a file does not match its checksum, or is missing; named. */
int rh_checkpoint_verify(const char *path) RH_MUST;

/* Whether a file's or directory's name is one that a killed run leaves half written. */
int rh_checkpoint_left_behind(const char *name);
/* Removes what killed runs left half written in output_dir, .checkpoint-N.tmp and NAME.tmp.PID, and the oldest checkpoints over save_total_limit,
 * which a run killed after it saved had not yet removed; never that of step `resumed` (-1: none), never anything else. No run may be writing
 * there. */
int rh_checkpoint_tidy(const struct rh_config *config, int64_t resumed) RH_MUST;

/* Verifies and loads: weights, optimizer state, run state; -EINVAL for another optim or state_layout. Keys in which this
 * configuration differs from the checkpoint's are told of. */
int rh_checkpoint_load(const char *path, struct rh_session *session, struct rh_run_state *state, struct rh_trainer_state *trainer) RH_MUST;

/* The trained model or adapter, as it leaves the program, into `dir`. */
int rh_output_save(const struct rh_session *session, const char *dir) RH_MUST;

#endif
