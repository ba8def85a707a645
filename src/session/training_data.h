/* What a run trains on: its rows, those held out, and the order of its steps. The same for a run and for the prediction of one. */
#ifndef RH_SESSION_TRAINING_DATA_H
#define RH_SESSION_TRAINING_DATA_H

#include "data/dataset.h"
#include "session/evaluate.h"
#include "session/samples.h"

struct rh_training_data {
	struct rh_dataset train, held_out; /* held_out.rows 0: there are none */
	struct rh_choices choices;         /* of held_out */
	struct rh_samples samples;         /* prompts that are asked at each evaluation */
	struct rh_sampler *sampler;
	int64_t steps_per_epoch, steps; /* steps: of the whole run */
	int64_t targets;                /* of all rows of `train` */
};

/* `train` has been loaded (rh_dataset_load) and all else is zero: holds rows out as configured (validation_file or eval_split) and counts
 * the steps. On an error too, rh_training_data_free frees what there is. */
int rh_training_data_arrange(const struct rh_config *config, const struct rh_objective *objective, const struct rh_tokenizer *tokenizer,
                             struct rh_training_data *data) RH_MUST;

/* The rows that the run evaluates on; NULL: it evaluates nothing. */
struct rh_dataset *rh_training_data_evaluated(const struct rh_config *config, struct rh_training_data *data);

/* What a session must be ready for. chunk: as in rh_chunks_choose. */
int rh_training_data_workload(struct rh_session *session, struct rh_training_data *data, int64_t chunk, struct rh_workload *out) RH_MUST;

void rh_training_data_free(struct rh_training_data *data);

#endif
