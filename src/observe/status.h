/* status.json in a run's output_dir: what the run does now, for `top` and for the report. Written whole, after each step, at most five
 * times a second; not flushed. No run fails because its status cannot be written. */
#ifndef RH_OBSERVE_STATUS_H
#define RH_OBSERVE_STATUS_H

#include "core/json.h"
#include "observe/report.h"

#define RH_STATUS_NAME "status.json"

/* "ended": the run came to its end, "stopped": a signal ended it and it can go on, "failed": an error did. */
enum rh_run_phase { RH_PHASE_TRAINING, RH_PHASE_EVALUATING, RH_PHASE_ENDED, RH_PHASE_STOPPED, RH_PHASE_FAILED, RH_PHASES };
const char *rh_phase_name(enum rh_run_phase phase);

/* Where a device's time goes: computing, and waiting for these. */
enum rh_time_part { RH_TIME_COMPUTE, RH_TIME_WEIGHTS, RH_TIME_ACTIVATIONS, RH_TIME_GRADIENTS, RH_TIME_OPTIMIZER, RH_TIME_PARTS };
/* For a person: "computing", "waiting for weights". And metrics.jsonl's key. */
const char *rh_time_part_name(enum rh_time_part part);
const char *rh_time_part_key(enum rh_time_part part);

/* `facts`: an object that stays, "run" in the file; taken over. */
struct rh_status;
int rh_status_open(const char *dir, json_t *facts, struct rh_status **out) RH_MUST;

/* All of these are legal with NULL, and leave the calling thread's error line alone. now_seconds: of rh_clock_seconds. */
void rh_status_times(struct rh_status *status, const double seconds[RH_TIME_PARTS]);
void rh_status_step(struct rh_status *status, const struct rh_step_report *report, double now_seconds);
void rh_status_phase(struct rh_status *status, enum rh_run_phase phase, const char *line);
/* best_step 0: none is the best. */
void rh_status_eval(struct rh_status *status, const struct rh_eval_report *report, int64_t best_step, double best_metric);
void rh_status_close(struct rh_status *status);

/* Does the process that wrote it still run? On this machine, and it is that process: its number may be another's by now. */
int rh_status_is_alive(const json_t *status);

/* Keys of the file: state (rh_phase_name), line (of an error), pid, process_started, boot, host, written (seconds since 1970), step,
 * steps, epoch, loss, grad_norm, learning_rate, tokens_per_second, planned_tokens_per_second, elapsed_seconds, seconds_left,
 * vram_peak_bytes, ram_peak_bytes, nvme_bytes, time (an object: shares by rh_time_part_key of the last twenty steps or so), losses (an
 * object: "first", the first one's step, "each", how many steps a value is the mean of, and "values"), eval (an object: step, loss,
 * seconds) and best (step, metric) once there was one, run. */

#endif
