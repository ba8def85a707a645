#include "session/training_data.h"

#include "core/minmax.h"
#include "observe/trace.h"
#include "session/chunks.h"
#include "session/preference.h"

#include <math.h>

int rh_training_data_arrange(const struct rh_config *config, const struct rh_objective *objective, const struct rh_tokenizer *tokenizer,
                             struct rh_training_data *data)
{
	int rc = 0;
	if (config->validation_file.count)
		rc = rh_evaluate_load(config, objective, tokenizer, &data->held_out);
	else if (config->eval_split > 0)
		rc = rh_dataset_split(&data->train, config->eval_split, config->data_seed, &data->held_out);
	if (rc)
		return rc;
	rc = rh_dataset_pair(&data->train, config->per_device_train_batch_size, config->max_length);
	if (!rc)
		rc = rh_dataset_pair(&data->held_out, config->per_device_train_batch_size, config->max_length);
	if (rc)
		return rc;
	if (data->held_out.rows)
		data->choices = rh_choices_find(&data->held_out);
	rc = rh_samples_make(config, tokenizer, &data->train, &data->samples);
	if (rc)
		return rc;
	rc = rh_sampler_create(data->train.rows, config->per_device_train_batch_size, config->gradient_accumulation_steps,
	                       config->train_sampling_strategy, config->data_seed, &data->sampler);
	if (rc)
		return rc;
	for (int64_t row = 0; row < data->train.rows; row++)
		data->targets += rh_dataset_row_targets(&data->train, row);
	data->steps_per_epoch = rh_sampler_steps_per_epoch(data->sampler);
	data->steps = config->max_steps > 0 ? config->max_steps : (int64_t)ceil(config->num_train_epochs * (double)data->steps_per_epoch);
	return 0;
}

struct rh_dataset *rh_training_data_evaluated(const struct rh_config *config, struct rh_training_data *data)
{
	return config->eval_strategy != RH_WHEN_NO && data->held_out.rows ? &data->held_out : NULL;
}

int rh_training_data_workload(struct rh_session *session, struct rh_training_data *data, int64_t chunk, struct rh_workload *out)
{
	const struct rh_config *config = session->config;
	struct rh_batch_limits limits;
	int rc = rh_dataset_limits(&data->train, config->per_device_train_batch_size, &limits);
	if (rc)
		return rc;
	*out = (struct rh_workload){.train = {.tokens = limits.tokens,
	                                      .documents = limits.documents,
	                                      .longest = limits.longest,
	                                      .head_rows = limits.trained,
	                                      .typed = data->train.objective.is_typed ? limits.tokens : 0,
	                                      .pixels = limits.pixels,
	                                      .judged = limits.judged},
	                            .train_micro_batches = rh_sampler_micro_batches(data->sampler, 0), /* the first step is a whole one */
	                            .train_steps = data->steps,                                        /* of a run that begins */
	                            .run_steps = data->steps,
	                            .data_bytes = rh_dataset_bytes(&data->train) + rh_dataset_bytes(&data->held_out),
	                            .reading_bytes = rh_max(data->train.reading_bytes, data->held_out.reading_bytes)};
	out->data_bytes += rh_micro_shape_pixel_bytes(&out->train) * out->train_micro_batches;
	out->data_bytes += config->trace_step ? (int64_t)RH_TRACE_STEP_SPANS * RH_TRACE_SPAN_BYTES : 0;
	const struct rh_dataset *evaluated = rh_training_data_evaluated(config, data);
	if (rh_preference_refers(&config->preference)) {
		rc = rh_reference_workload(config, &data->train, evaluated, session->device_count, out);
	} else if (evaluated) {
		out->infer_micro_batches =
		        rh_evaluate_micro_batches(evaluated->rows, config->per_device_eval_batch_size, session->device_count);
		rc = rh_evaluate_shape(evaluated, config->per_device_eval_batch_size, &data->choices, &out->infer);
		out->data_bytes += rc ? 0 : rh_micro_shape_pixel_bytes(&out->infer) * out->infer_micro_batches;
	}
	if (!rc && evaluated)
		rc = rh_samples_widen(&data->samples, session->model_config, out);
	return rc ? rc : rh_chunks_choose(session, &data->train, chunk, out);
}

void rh_training_data_free(struct rh_training_data *data)
{
	rh_sampler_destroy(data->sampler);
	rh_samples_free(&data->samples);
	rh_dataset_free(&data->train);
	rh_dataset_free(&data->held_out);
	*data = (struct rh_training_data){0};
}
