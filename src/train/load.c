/* The micro-batches that a prediction is made for. */
#include "train/predict.h"

#include "core/alloc.h"
#include "core/file.h"
#include "data/dataset.h"
#include "train/evaluate.h"

#include <math.h>

enum { READ_BYTES = 4 << 20 }; /* data up to this size are tokenized: some tenths of a second */

static int reserve(struct rh_load *load, int steps, int64_t count)
{
	load->steps = steps;
	load->work.train_micro_batches = count;
	load->micro = rh_alloc((size_t)(steps * count) + 1, sizeof *load->micro);
	load->count = rh_alloc((size_t)steps + 1, sizeof *load->count);
	return load->micro && load->count ? 0 : -ENOMEM;
}

int rh_load_synthetic(const struct rh_config *config, int steps, struct rh_load *out)
{
	int64_t rows = config->per_device_train_batch_size, length = config->max_length, count = config->gradient_accumulation_steps;
	*out = (struct rh_load){.synthetic = 1};
	struct rh_micro_shape shape = {.tokens = rows * length, .documents = rows, .longest = length, .head_rows = rows * (length - 1)};
	shape.head_rows = shape.head_rows > 0 ? shape.head_rows : 1;
	int rc = reserve(out, steps, count);
	for (int64_t i = 0; !rc && i < steps * count; i++)
		out->micro[i] = shape;
	for (int s = 0; !rc && s < steps; s++)
		out->count[s] = count;
	out->work.train = shape;
	out->run_steps = config->max_steps > 0 ? config->max_steps : 0;
	out->tokens_a_step = (double)shape.tokens * (double)count;
	if (rc)
		rh_load_free(out);
	return rc;
}

/* Steps as the run will have them, from its first. */
static int steps_of(const struct rh_config *config, const struct rh_dataset *data, struct rh_load *load, int steps)
{
	struct rh_sampler *sampler = NULL;
	struct rh_batch batch = {0};
	int rc = rh_sampler_create(data->rows, config->per_device_train_batch_size, config->gradient_accumulation_steps,
	                           config->train_sampling_strategy, config->data_seed, &sampler);
	if (rc)
		return rc;
	int64_t each = rh_sampler_steps_per_epoch(sampler);
	rc = reserve(load, steps, rh_sampler_micro_batches(sampler, 0));
	for (int64_t s = 0, at = 0; !rc && s < steps; s++) {
		load->count[s] = rh_sampler_micro_batches(sampler, s % each);
		for (int64_t m = 0; !rc && m < load->count[s]; m++, at++) {
			const int64_t *rows;
			int64_t n = rh_sampler_rows(sampler, s / each, s % each, m, &rows);
			rc = rh_batch_make(data, rows, n, &batch);
			load->micro[at] = rh_micro_of(&batch).shape;
		}
	}
	load->run_steps = config->max_steps > 0 ? config->max_steps : (int64_t)ceil(config->num_train_epochs * (double)each);
	load->tokens_a_step = (double)data->tokens / (double)each;
	rh_batch_free(&batch);
	rh_sampler_destroy(sampler);
	return rc;
}

int rh_load_of_data(const struct rh_config *config, const struct rh_dataset *train, const struct rh_workload *work, int steps,
                    struct rh_load *out)
{
	*out = (struct rh_load){.work = *work};
	int rc = steps_of(config, train, out, steps);
	if (rc)
		rh_load_free(out);
	return rc;
}

/* As a run would set it up. */
static int read_data(const struct rh_config *config, struct rh_session *session, int steps, struct rh_load *out)
{
	struct rh_dataset train = {0}, held_out = {0};
	struct rh_batch_limits limits;
	struct rh_workload work = {0};
	int rc = rh_dataset_load(config->train_file, config, session->tokenizer, &train);
	if (!rc && config->validation_file)
		rc = rh_evaluate_load(config, session->tokenizer, &held_out);
	else if (!rc && config->eval_split > 0)
		rc = rh_dataset_split(&train, config->eval_split, config->data_seed, &held_out);
	if (!rc)
		rc = rh_dataset_limits(&train, config->per_device_train_batch_size, &limits);
	if (!rc) {
		work.train = (struct rh_micro_shape){
		        .tokens = limits.tokens, .documents = limits.documents, .longest = limits.longest, .head_rows = limits.trained};
		work.data_bytes = rh_dataset_bytes(&train) + rh_dataset_bytes(&held_out);
	}
	if (!rc && config->eval_strategy != RH_WHEN_NO && held_out.rows) {
		struct rh_choices choices = rh_choices_find(&held_out);
		rc = rh_evaluate_shape(&held_out, config, &choices, &work.infer);
		work.infer_micro_batches = rh_evaluate_micro_batches(&held_out, config, session->machine->devices);
	}
	if (!rc)
		rc = steps_of(config, &train, out, steps);
	if (!rc) {
		work.train_micro_batches = out->work.train_micro_batches;
		out->work = work;
	}
	rh_dataset_free(&train);
	rh_dataset_free(&held_out);
	return rc;
}

static int is_small(const char *path)
{
	struct rh_mapping file;
	if (!path || !rh_file_exists(path) || rh_file_map(path, &file)) {
		rh_error_clear();
		return 0;
	}
	int small = file.length <= READ_BYTES;
	rh_file_unmap(&file);
	return small;
}

int rh_load_make(const struct rh_config *config, struct rh_session *session, int steps, struct rh_load *out)
{
	if (!is_small(config->train_file) || (config->validation_file && !is_small(config->validation_file)))
		return rh_load_synthetic(config, 2, out);
	*out = (struct rh_load){0};
	int rc = session->tokenizer ? 0 : rh_session_load_tokenizer(session);
	rc = rc ? rc : read_data(config, session, steps, out);
	if (rc)
		rh_load_free(out);
	return rc;
}

void rh_load_free(struct rh_load *load)
{
	rh_free(load->micro);
	rh_free(load->count);
	*load = (struct rh_load){0};
}
