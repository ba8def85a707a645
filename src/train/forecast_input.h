/* The steps that a prediction is made for. */
#ifndef RH_TRAIN_FORECAST_INPUT_H
#define RH_TRAIN_FORECAST_INPUT_H

#include "train/session.h"

/* To be simulated: micro-batches of some steps one after another, as the run will have them. */
struct rh_forecast_input {
	struct rh_workload work;
	struct rh_micro_shape *micro; /* (steps, work.train_micro_batches); of those that are all alike one: rh_forecast_micro */
	int alike;
	int64_t *count; /* (steps) micro-batches of each */
	int steps;
	int64_t run_steps;     /* of the whole run; 0: not known, as the data were not read */
	double tokens_a_step;  /* mean over the run */
	int synthetic;         /* rows are taken to be max_length tokens, all trained */
	const char *uncounted; /* then why, where somebody asked for the data */
	int layers;            /* of the model, where known: says how much is to be simulated */
	int64_t positions;     /* that the model knows; 0: not asked */
};
/* Micro-batch i of all steps'. */
static inline struct rh_micro_shape rh_forecast_micro(const struct rh_forecast_input *input, int64_t i)
{
	return input->micro[input->alike ? 0 : i];
}

/* From the data where there are any and they are small enough to be read at once; else synthetic, two steps. */
int rh_forecast_input_make(const struct rh_config *config, struct rh_session *session, int steps, struct rh_forecast_input *out) RH_MUST;
int rh_forecast_input_synthetic(const struct rh_config *config, int steps, struct rh_forecast_input *out) RH_MUST;
/* Of a run whose data are there; its workload is theirs (rh_training_data_workload). */
struct rh_training_data;
int rh_forecast_input_of_data(const struct rh_training_data *data, const struct rh_workload *work, int steps,
                              struct rh_forecast_input *out) RH_MUST;
void rh_forecast_input_free(struct rh_forecast_input *input);
/* The same steps with their first `count` micro-batches, no more steps than `most`. The caller's. */
int rh_forecast_input_shorter(const struct rh_forecast_input *input, int64_t count, int most, struct rh_forecast_input *out) RH_MUST;

#endif
