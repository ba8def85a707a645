/* `train`: the step loop and all that hangs on it. */
#ifndef RH_TRAIN_TRAIN_H
#define RH_TRAIN_TRAIN_H

#include "config/config.h"
#include "session/evaluate.h"

struct rh_train_result {
	int64_t steps;
	double mean_loss;         /* of all steps of the run that count, also before this process; NAN if none */
	double final_loss;        /* of the last logged line, else of the steps of this process; NAN if none */
	int64_t final_steps;      /* the steps that it is the mean of */
	double tokens_per_second; /* over the steps of this process */
	double seconds;
	double reference_seconds; /* of the pass over the reference, before the first step; 0: there was none */
	int has_eval;
	struct rh_evaluation eval; /* the last */
	int64_t device_peak_bytes, ram_peak_bytes, device_planned_bytes, ram_planned_bytes;
	int64_t nvme_bytes;                 /* reserved, as planned */
	double predicted_tokens_per_second; /* by a simulation at the start; 0: none was made, as with local updates */
	/* with local updates: the most updates that a micro-batch met between its forward and its backward, the bound that the
	 * admission limits set, micro-batches, and those that met any; all 0 without local updates */
	int64_t version_drift, version_drift_bound, drift_micro_batches, drifted;
	int rates_assumed; /* it went by guessed rates, as doctor has not been here */
	int interrupted;   /* a signal asked to stop; a checkpoint was saved */
};

/* 0: trained and written to output_dir, or stopped by a signal with a checkpoint. */
int rh_train(const struct rh_config *config, struct rh_train_result *out) RH_MUST;

#endif
