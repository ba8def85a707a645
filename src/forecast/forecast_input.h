/* The steps that a forecast simulates. */
#ifndef RH_FORECAST_FORECAST_INPUT_H
#define RH_FORECAST_FORECAST_INPUT_H

#include "data/chunks.h"
#include "session/session.h"

/* Micro-batches of some consecutive steps, as the run will have them. */
struct rh_forecast_input {
	struct rh_workload work;
	struct rh_micro_shape *micro; /* (steps, work.train_micro_batches), or (1) if all are alike: read it by rh_forecast_micro */
	int alike;
	int64_t *count; /* (steps) micro-batches of each */
	int steps;
	int64_t run_steps;     /* steps of the whole run; 0: not known, because the data were not read */
	int64_t rows, targets; /* of the training set; 0: likewise */
	double tokens_a_step;  /* mean over the run */
	int synthetic;         /* the data were not read: each row is taken to have max_length tokens, all trained */
	const char *uncounted; /* why they were not read; NULL: nobody asked for them */
	int layers;            /* of the model; 0: not known, and no simulation is shortened */
	int64_t positions;     /* that the model knows; 0: not known */
	int of_images;         /* each row is an image, and max_length means nothing */
	char trains[160];      /* what is trained: "all weights", or an adapter's rank and modules; "": not known */
};
/* Micro-batch i, counted over all steps. */
static inline struct rh_micro_shape rh_forecast_micro(const struct rh_forecast_input *input, int64_t i)
{
	return input->micro[input->alike ? 0 : i];
}

/* The fewest steps that tell a step's time: one before, which begins with idle devices, and one; or two, where two run side by side. */
static inline int rh_forecast_fewest_steps(const struct rh_config *config)
{
	return config->optimizer_staleness ? 3 : 2;
}

/* Reads the data where they exist and are small enough to be read at once; else the input is synthetic, with the fewest steps. */
int rh_forecast_input_make(const struct rh_config *config, struct rh_session *session, int steps, struct rh_forecast_input *out) RH_MUST;
int rh_forecast_input_synthetic(const struct rh_config *config, int steps, struct rh_forecast_input *out) RH_MUST;
/* The same input for this model: token types, one row of logits for each row that is classified, the tokens and pixels of images. */
void rh_forecast_input_suit(const struct rh_model_config *model, struct rh_forecast_input *input);
/* What else a run keeps than its training rows, from the run's own input: evaluations, of rows no longer than max_length, and data. */
void rh_forecast_input_keep(const struct rh_forecast_input *whole, const struct rh_config *config, struct rh_forecast_input *input);
/* Of synthetic rows: in chunks, where the session cuts such rows (rh_chunks_choose). */
int rh_forecast_input_cut(struct rh_session *session, struct rh_forecast_input *input) RH_MUST;
/* Steps of the configuration's synthetic rows, of a session that this opens. whole: what else the run keeps (rh_forecast_input_keep), NULL:
 * nothing. The caller frees *out. */
int rh_forecast_input_of_machine(const struct rh_config *config, const struct rh_session_machine *machine,
                                 const struct rh_forecast_input *whole, struct rh_forecast_input *out) RH_MUST;
/* Steps of so many rows, each as the first one, in its chunks. The caller frees *out. */
int rh_forecast_input_of_first_row(const struct rh_forecast_input *input, int64_t rows, int steps, struct rh_forecast_input *out) RH_MUST;
/* The input of a run whose data have been read; work: what rh_training_data_workload says of them. */
struct rh_training_data;
int rh_forecast_input_of_data(const struct rh_training_data *data, struct rh_chunk_rule rule, const struct rh_workload *work, int steps,
                              struct rh_forecast_input *out) RH_MUST;
void rh_forecast_input_free(struct rh_forecast_input *input);
/* The first `count` micro-batches of each of at most `most` steps. The caller frees *out. */
int rh_forecast_input_shorter(const struct rh_forecast_input *input, int64_t count, int most, struct rh_forecast_input *out) RH_MUST;

#endif
