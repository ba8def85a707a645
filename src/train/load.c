/* The micro-batches that a prediction is made for. */
#include "train/predict.h"

#include "core/alloc.h"
#include "core/file.h"
#include "train/training_data.h"

enum { READ_BYTES = 4 << 20 }; /* data up to this size are tokenized: some tenths of a second */

static int reserve(struct rh_load *load, int steps, int64_t count)
{
	load->steps = steps;
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
	out->work.train_micro_batches = count;
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

/* Steps as the run will have them, from its first; the rest of *load but its workload. */
static int steps_of(const struct rh_training_data *data, int steps, struct rh_load *load)
{
	struct rh_batch batch = {0};
	int64_t each = data->steps_per_epoch;
	int rc = reserve(load, steps, load->work.train_micro_batches);
	for (int64_t s = 0, at = 0; !rc && s < steps; s++) {
		load->count[s] = rh_sampler_micro_batches(data->sampler, s % each);
		for (int64_t m = 0; !rc && m < load->count[s]; m++, at++) {
			const int64_t *rows;
			int64_t n = rh_sampler_rows(data->sampler, s / each, s % each, m, &rows);
			rc = rh_batch_make(&data->train, rows, n, &batch);
			load->micro[at] = rh_micro_of(&batch).shape;
		}
	}
	load->run_steps = data->steps;
	load->tokens_a_step = (double)data->train.tokens / (double)each;
	rh_batch_free(&batch);
	return rc;
}

int rh_load_of_data(const struct rh_training_data *data, const struct rh_workload *work, int steps, struct rh_load *out)
{
	*out = (struct rh_load){.work = *work};
	int rc = steps_of(data, steps, out);
	if (rc)
		rh_load_free(out);
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

int rh_load_shorter(const struct rh_load *load, int64_t count, int most, struct rh_load *out)
{
	*out = *load;
	out->micro = NULL;
	out->count = NULL;
	out->work.train_micro_batches = count;
	int rc = reserve(out, load->steps < most ? load->steps : most, count);
	double tokens = 0;
	int64_t all = 0;
	for (int64_t s = 0, from = 0; !rc && s < out->steps; from += load->count[s++]) {
		out->count[s] = load->count[s] < count ? load->count[s] : count;
		for (int64_t m = 0; m < out->count[s]; m++)
			tokens += (double)(out->micro[all++] = load->micro[from + m]).tokens;
	}
	out->tokens_a_step = !rc && out->steps ? tokens / out->steps : 0;
	if (rc)
		rh_load_free(out);
	return rc;
}

int rh_load_make(const struct rh_config *config, struct rh_session *session, int steps, struct rh_load *out)
{
	if (!is_small(config->train_file) || (config->validation_file && !is_small(config->validation_file))) {
		int rc = rh_load_synthetic(config, 2, out);
		out->layers = session->model->layers;
		out->positions = session->model_config->max_position_embeddings;
		return rc;
	}
	*out = (struct rh_load){0};
	struct rh_training_data data = {0};
	struct rh_workload work;
	int rc = session->tokenizer ? 0 : rh_session_load_tokenizer(session);
	if (rc == -ENOENT && !session->source) { /* a config.json alone: nothing tells how long the rows are */
		rh_error_clear();
		rc = rh_load_synthetic(config, 2, out);
		out->layers = session->model->layers;
		out->positions = session->model_config->max_position_embeddings;
		return rc;
	}
	if (!rc)
		rc = rh_dataset_load(config->train_file, config, session->tokenizer, &data.train);
	if (!rc)
		rc = rh_training_data_arrange(config, session->tokenizer, &data);
	if (!rc)
		rc = rh_training_data_workload(config, &data, session->device_count, &work);
	if (!rc)
		rc = rh_load_of_data(&data, &work, steps, out);
	out->layers = session->model->layers;
	out->positions = session->model_config->max_position_embeddings;
	rh_training_data_free(&data);
	return rc;
}

void rh_load_free(struct rh_load *load)
{
	rh_free(load->micro);
	rh_free(load->count);
	*load = (struct rh_load){0};
}
