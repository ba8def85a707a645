/* trainer_state.json with exactly the keys of transformers 5's TrainerState (trainer_callback.py), whose reader refuses any other. */
#ifndef RH_OBSERVE_TRAINER_STATE_H
#define RH_OBSERVE_TRAINER_STATE_H

#include "core/json.h"
#include "core/text.h"
#include "observe/report.h"

/* Entries of log_history at most: above it, of steps and of evaluations those stay that are far enough apart, by the run's length, so that
 * the whole curve stays in bounded memory; metrics.jsonl has all lines. ENTRY_BYTES: of one, and of its text while that is written (730 and
 * up to 540 were seen). */
enum { RH_HISTORY_MOST = 2000, RH_HISTORY_ENTRY_BYTES = 1536 };

struct rh_trainer_state {
	int64_t global_step, max_steps, num_train_epochs; /* num_train_epochs rounded up */
	double epoch;
	int64_t train_batch_size; /* per device */
	int64_t logging_steps, eval_steps, save_steps;
	int64_t num_input_tokens_seen;
	double total_flos;
	/* the best evaluation so far; step 0: there was none. `best_checkpoint`, owned, is of the last one of these that was saved; NULL:
	 * none was */
	int64_t best_step;
	double best_metric;
	char *best_checkpoint;
	int64_t patience, patience_used; /* of early stopping, in evaluations; patience 0: off */
	double patience_threshold;
	json_t *log_history; /* array; owned */
};

/* All zero but for an empty log_history; freed with rh_trainer_state_free. */
int rh_trainer_state_create(struct rh_trainer_state *out) RH_MUST;

/* Reads the state that a resumed run continues from. Keys that are not in the struct are ignored. -EINVAL names the path and the key. */
int rh_trainer_state_load(const char *path, struct rh_trainer_state *out) RH_MUST;
void rh_trainer_state_free(struct rh_trainer_state *state);

/* Entries of log_history: epoch, grad_norm, learning_rate, loss, step; epoch, eval_loss, eval_runtime, eval_samples_per_second, step;
 * epoch, step, total_flos, train_loss, train_runtime, train_samples_per_second, train_steps_per_second. Not finite: null. */
int rh_trainer_state_log_step(struct rh_trainer_state *state, const struct rh_step_report *report) RH_MUST;
int rh_trainer_state_log_eval(struct rh_trainer_state *state, const struct rh_eval_report *report) RH_MUST;
int rh_trainer_state_log_end(struct rh_trainer_state *state, const struct rh_run_report *report) RH_MUST;

/* The file's text, appended to `out`. */
int rh_trainer_state_print(const struct rh_trainer_state *state, struct rh_text *out) RH_MUST;
/* Whole or not at all. */
int rh_trainer_state_save(const struct rh_trainer_state *state, const char *path) RH_MUST;

#endif
