#include "forecast/forecast_input.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/minmax.h"
#include "data/chat.h"
#include "data/dataset.h"
#include "data/files.h"
#include "session/chunks.h"
#include "session/evaluate.h"
#include "session/training_data.h"

#include <stdio.h>
#include <string.h>

enum { READ_BYTES = 4 << 20 }; /* data up to this size are tokenized: some tenths of a second */

/* shapes: how many shapes of micro-batches are kept. */
static int reserve(struct rh_forecast_input *input, int steps, int64_t shapes)
{
	input->steps = steps;
	input->micro = rh_alloc((size_t)shapes + 1, sizeof *input->micro);
	input->count = rh_alloc((size_t)steps + 1, sizeof *input->count);
	return input->micro && input->count ? 0 : -ENOMEM;
}

int rh_forecast_input_synthetic(const struct rh_config *config, int steps, struct rh_forecast_input *out)
{
	int64_t answers = config->preference.answers ? config->preference.answers : 1;
	int64_t rows = config->per_device_train_batch_size * answers, length = config->max_length,
	        count = config->gradient_accumulation_steps;
	*out = (struct rh_forecast_input){.synthetic = 1};
	struct rh_micro_shape shape = {.tokens = rows * length, .documents = rows, .longest = length, .head_rows = rows * (length - 1)};
	shape.head_rows = shape.head_rows > 0 ? shape.head_rows : 1;
	out->work.train_micro_batches = count;
	if (rh_preference_refers(&config->preference)) { /* the pass over the reference */
		out->work.infer = shape;
		out->work.infer_micro_batches = count;
	}
	shape.judged = config->preference.answers ? rows : 0;
	int rc = rh_batch_check_tokens(shape.tokens);
	if (!rc)
		rc = reserve(out, steps, 1);
	out->alike = 1;
	if (!rc)
		*out->micro = shape;
	for (int s = 0; !rc && s < steps; s++)
		out->count[s] = count;
	out->work.train = shape;
	out->run_steps = config->max_steps > 0 ? config->max_steps : 0;
	out->tokens_a_step = (double)shape.tokens * (double)count;
	if (rc)
		rh_forecast_input_free(out);
	return rc;
}

/* Fills *input, but for its workload, with the run's first steps. */
static int steps_of(const struct rh_training_data *data, const struct rh_chunk_rule *rule, int steps, struct rh_forecast_input *input)
{
	int chunks = rh_chunks_of(&input->work);
	struct rh_batch batch = {0};
	int64_t each = data->steps_per_epoch;
	int rc = reserve(input, steps, steps * input->work.train_micro_batches);
	for (int64_t s = 0, at = 0; !rc && s < steps; s++) {
		input->count[s] = chunks * rh_sampler_micro_batches(data->sampler, s % each);
		for (int64_t m = 0; !rc && m < input->count[s] / chunks; m++, at += chunks) {
			const int64_t *rows;
			int64_t n = rh_sampler_rows(data->sampler, s / each, s % each, m, &rows);
			rc = rh_batch_outline(&data->train, rows, n, &batch);
			struct rh_micro_batch micro = rh_micro_of(&batch);
			input->micro[at] = micro.shape;
			if (!rc && chunks > 1)
				rc = rh_chunks_shapes(rule, &micro, chunks, &input->micro[at]);
		}
	}
	input->run_steps = data->steps;
	input->rows = data->train.rows;
	input->targets = data->targets;
	input->tokens_a_step = (double)rh_dataset_tokens(&data->train) / (double)each;
	rh_batch_free(&batch);
	return rc;
}

int rh_forecast_input_of_data(const struct rh_training_data *data, struct rh_chunk_rule rule, const struct rh_workload *work, int steps,
                              struct rh_forecast_input *out)
{
	*out = (struct rh_forecast_input){.work = *work};
	int rc = steps_of(data, &rule, steps, out);
	if (rc)
		rh_forecast_input_free(out);
	return rc;
}

/* Bytes of a file; more than READ_BYTES where it cannot be read. */
static int64_t bytes_of(const char *path)
{
	struct rh_file_in *file;
	if (!rh_file_exists(path) || rh_file_open(path, &file)) {
		rh_error_clear();
		return READ_BYTES + 1;
	}
	int64_t bytes = rh_file_length(file);
	rh_file_close(file);
	return bytes;
}

/* Of images names alone are read. */
static int are_small(const struct rh_list *files, enum rh_task_kind task)
{
	int small = 1;
	for (size_t i = 0; small && i < files->count; i++) {
		struct rh_names names;
		int64_t bytes = 0;
		if (task == RH_TASK_IMAGE_CLASSIFICATION && rh_dir_exists(files->item[i]))
			continue;
		if (data_files_find(files->item[i], &names)) { /* reading them says what is wrong */
			rh_error_clear();
			continue;
		}
		for (size_t n = 0; n < names.count; n++)
			bytes += bytes_of(names.name[n]);
		small = bytes <= READ_BYTES;
		rh_names_free(&names);
	}
	return small;
}

int rh_forecast_input_shorter(const struct rh_forecast_input *input, int64_t count, int most, struct rh_forecast_input *out)
{
	*out = *input;
	out->micro = NULL;
	out->count = NULL;
	out->work.train_micro_batches = count;
	int steps = input->steps < most ? input->steps : most, rc = reserve(out, steps, input->alike ? 1 : steps * count);
	double tokens = 0;
	int64_t all = 0;
	for (int64_t s = 0, from = 0; !rc && s < out->steps; from += input->count[s++]) {
		out->count[s] = input->count[s] < count ? input->count[s] : count;
		for (int64_t m = 0; m < out->count[s]; m++, all++) {
			out->micro[out->alike ? 0 : all] = rh_forecast_micro(input, from + m);
			tokens += (double)rh_forecast_micro(out, all).tokens;
		}
	}
	out->tokens_a_step = !rc && out->steps ? tokens / out->steps : 0;
	if (rc)
		rh_forecast_input_free(out);
	return rc;
}

/* Why the data cannot say how long the rows are; NULL: they can. */
static int find_uncounted(const struct rh_config *config, struct rh_session *session, const char **why)
{
	enum rh_task_kind task = session->model_config->task;
	*why = NULL;
	if (!config->train_file.count)
		*why = "no train_file there";
	else if (!config->dataset_info && (!are_small(&config->train_file, task) || !are_small(&config->validation_file, task)))
		*why = "they are above 4 MiB and are not read here";
	if (*why || session->tokenizer)
		return 0;
	int rc = rh_session_load_tokenizer(session);
	if (rc != -ENOENT || session->source)
		return rc;
	*why = "a config.json, but no tokenizer there";
	rh_error_clear();
	return 0;
}

void rh_forecast_input_suit(const struct rh_model_config *model, struct rh_forecast_input *input)
{
	struct rh_micro_shape *const shapes[] = {input->micro, &input->work.train};
	RH_ASSERT(input->alike);
	for (int i = 0; i < 2; i++) {
		if (rh_model_patch(model)) {
			shapes[i]->pixels = rh_model_patch(model);
			shapes[i]->longest = model->max_position_embeddings;
			shapes[i]->tokens = shapes[i]->documents * shapes[i]->longest;
		}
		shapes[i]->typed = model->types ? shapes[i]->tokens : 0;
		if (rh_task_classifies(model->task))
			shapes[i]->head_rows = shapes[i]->documents;
	}
	input->tokens_a_step = (double)input->micro->tokens * (double)input->work.train_micro_batches;
}

void rh_forecast_input_keep(const struct rh_forecast_input *whole, const struct rh_config *config, struct rh_forecast_input *input)
{
	const struct rh_workload *from = &whole->work;
	struct rh_workload *to = &input->work;
	to->data_bytes = from->data_bytes;
	to->reading_bytes = from->reading_bytes;
	to->run_steps = from->run_steps;
	to->train_steps = from->train_steps;
	if (rh_preference_refers(&config->preference)) /* that pass is there */
		return;
	to->infer = from->infer;
	to->infer_micro_batches = from->infer_micro_batches;
	if (to->infer.pixels)
		return;
	to->infer.longest = rh_min(to->infer.longest, config->max_length);
	to->infer.tokens = rh_min(to->infer.tokens, to->infer.documents * config->max_length);
	to->infer.head_rows = rh_min(to->infer.head_rows, to->infer.tokens);
}

/* Evaluations of rows that were not read. */
static void evaluate(const struct rh_config *config, const struct rh_session *session, struct rh_forecast_input *input)
{
	enum { MANY = 1 << 16 };
	int64_t rows = config->per_device_eval_batch_size, length = config->max_length;
	struct rh_objective objective = rh_session_objective(session);
	struct rh_workload *work = &input->work;
	if (config->eval_strategy == RH_WHEN_NO || !(config->validation_file.count || config->eval_split > 0) ||
	    work->infer_micro_batches || rh_model_patch(session->model_config))
		return;
	work->infer_micro_batches = rh_evaluate_micro_batches(MANY * rows, rows, session->device_count);
	work->infer = (struct rh_micro_shape){.tokens = rows * length, .documents = rows, .longest = length};
	work->infer.head_rows = rh_task_classifies(objective.task) ? rows : rh_max(rows * (length - 1), 1);
	work->infer.typed = session->model_config->types ? work->infer.tokens : 0;
	work->infer.choices = rh_task_classifies(objective.task) ? objective.labels : 0;
}

static int input_of_files(const struct rh_config *config, struct rh_session *session, int steps, struct rh_forecast_input *out)
{
	struct rh_training_data data = {0};
	struct rh_workload work;
	struct rh_objective objective = rh_session_objective(session);
	int rc = rh_dataset_load_for(RH_DATASET_TRAIN, config, &objective, session->tokenizer, &data.train);
	if (!rc)
		rc = rh_training_data_arrange(config, &objective, session->tokenizer, &data);
	if (!rc)
		rc = rh_training_data_workload(session, &data, RH_CHUNK_UNKNOWN, &work);
	if (!rc)
		rc = rh_forecast_input_of_data(&data, rh_chunk_rule_of(work.chunk, session->model), &work, steps, out);
	rh_training_data_free(&data);
	return rc;
}

int rh_forecast_input_cut(struct rh_session *session, struct rh_forecast_input *input)
{
	const struct rh_micro_shape whole = input->work.train;
	struct rh_synthetic_row row = {0};
	int rc = rh_chunks_choose(session, NULL, RH_CHUNK_UNKNOWN, &input->work);
	const struct rh_chunk_rule rule = rh_chunk_rule_of(input->work.chunk, session->model);
	int64_t chunks = rh_chunks_of(&input->work), count = input->work.train_micro_batches;
	if (rc || chunks < 2)
		return rc;
	rh_free(input->micro);
	rh_free(input->count);
	rc = reserve(input, input->steps, input->steps * count);
	if (!rc)
		rc = rh_synthetic_row_create(&whole, &row);
	for (int64_t at = 0; !rc && at < input->steps * count; at += chunks)
		rc = rh_chunks_shapes(&rule, &row.batch, (int)chunks, &input->micro[at]);
	for (int s = 0; !rc && s < input->steps; s++)
		input->count[s] = count;
	rh_synthetic_row_free(&row);
	input->alike = 0;
	return rc;
}

int rh_forecast_input_of_machine(const struct rh_config *config, const struct rh_session_machine *machine,
                                 const struct rh_forecast_input *whole, struct rh_forecast_input *out)
{
	struct rh_session session;
	*out = (struct rh_forecast_input){0};
	int rc = rh_session_simulate(config, machine, &session);
	if (rc)
		return rc;
	rc = rh_forecast_input_synthetic(config, rh_forecast_fewest_steps(config), out);
	if (!rc)
		rh_forecast_input_suit(session.model_config, out);
	if (!rc && whole)
		rh_forecast_input_keep(whole, config, out);
	if (!rc)
		rc = rh_forecast_input_cut(&session, out);
	out->layers = session.model->layers;
	rh_session_close(&session);
	if (rc)
		rh_forecast_input_free(out);
	return rc;
}

int rh_forecast_input_of_first_row(const struct rh_forecast_input *input, int64_t rows, int steps, struct rh_forecast_input *out)
{
	const struct rh_workload *work = &input->work;
	int64_t chunks = rh_chunks_of(work), count = rows * chunks, tokens = 0;
	*out = (struct rh_forecast_input){.synthetic = 1, .layers = input->layers, .positions = input->positions};
	out->work = (struct rh_workload){.train = work->train,
	                                 .row = work->row,
	                                 .chunk = work->chunk,
	                                 .chunks = work->chunks,
	                                 .classes = work->classes,
	                                 .cache_rows = work->cache_rows,
	                                 .train_micro_batches = count};
	int rc = reserve(out, steps, steps * count);
	for (int64_t m = 0; !rc && m < steps * count; m++)
		out->micro[m] = rh_forecast_micro(input, m % chunks);
	for (int s = 0; !rc && s < steps; s++)
		out->count[s] = count;
	for (int64_t m = 0; m < chunks; m++)
		tokens += rh_forecast_micro(input, m).tokens;
	out->tokens_a_step = (double)(tokens * rows);
	if (rc)
		rh_forecast_input_free(out);
	return rc;
}

/* "a LoRA adapter of rank 16 on q_proj, v_proj" */
static void describe_trained(const struct rh_session *session, struct rh_forecast_input *out)
{
	const struct rh_peft_config *peft = &session->adapter.peft;
	size_t room = sizeof out->trains;
	if (!session->lora) {
		snprintf(out->trains, room, "all weights");
		return;
	}
	size_t used = (size_t)snprintf(out->trains, room, "a %s adapter of rank %lld on %s", peft->use_dora ? "DoRA" : "LoRA",
	                               (long long)peft->r, peft->all_linear || !peft->targets ? "what the adapter names" : "");
	for (size_t i = 0; i < peft->targets && used < room; i++)
		used += (size_t)snprintf(out->trains + used, room - used, "%s%s", i ? ", " : "", peft->target[i]);
	if (used >= room)
		memcpy(out->trains + room - 4, "...", 4);
}

int rh_forecast_input_make(const struct rh_config *config, struct rh_session *session, int steps, struct rh_forecast_input *out)
{
	const char *why;
	struct rh_chat_template *chat = NULL; /* a name that is mistyped must not pass where no row is read either */
	*out = (struct rh_forecast_input){0};
	int named = config->chat_template && !rh_chat_template_is_none(config->chat_template);
	int rc = named ? rh_chat_template_open(config->chat_template, NULL, &chat) : 0;
	rh_chat_template_close(chat);
	if (!rc)
		rc = find_uncounted(config, session, &why);
	if (rc)
		return rc;
	rc = why ? rh_forecast_input_synthetic(config, rh_forecast_fewest_steps(config), out) : input_of_files(config, session, steps, out);
	if (!rc && why)
		rh_forecast_input_suit(session->model_config, out);
	if (!rc && why)
		evaluate(config, session, out);
	if (!rc && why)
		rc = rh_forecast_input_cut(session, out);
	out->uncounted = why;
	out->layers = session->model->layers;
	out->positions = rh_model_longest(session->model_config);
	out->of_images = rh_model_patch(session->model_config) > 0;
	describe_trained(session, out);
	return rc;
}

void rh_forecast_input_free(struct rh_forecast_input *input)
{
	rh_free(input->micro);
	rh_free(input->count);
	*input = (struct rh_forecast_input){0};
}
