#include "session/chunks.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <string.h>

struct rh_chunk_rule rh_chunk_rule_of(int64_t most, const struct rh_model *model)
{
	struct rh_chunk_rule rule = {.most = most};
	for (int l = 0; l < model->layers; l++) {
		const struct rh_layer *layer = &model->layer[l];
		const struct rh_traits *traits = &layer->traits;
		double share = 1, attended = 4.0 * (double)(traits->heads * traits->head_dim);
		if (layer->kind == RH_LAYER_EMBEDDING)
			continue;
		if (layer->kind == RH_LAYER_BLOCK && traits->experts)
			share = (double)traits->experts_per_token / (double)traits->experts;
		rule.token += 2 * share * (double)model->block[layer->block[0]].elements;
		if (layer->kind != RH_LAYER_BLOCK)
			continue;
		if (layer->carried.bytes) { /* of the gated delta rule each token costs the same */
			rule.token += (double)(traits->delta_heads * traits->delta_key * traits->delta_value) * 6;
			continue;
		}
		*(traits->window ? &rule.windowed : &rule.pair) += attended;
		rule.window = rh_max(rule.window, traits->window);
	}
	return rule;
}

/* Each mixer of a backward stage needs what all later chunks add to its gradients first. */
static int cuts_are_fine(const struct rh_config *config, const struct rh_model *model)
{
	int hi = model->layers, lo;
	for (int64_t i = config->backward_cut_count - 1; i >= -1; i--, hi = lo) {
		lo = i >= 0 ? (int)config->backward_cuts[i] : (int)rh_max(model->first_trained, 0);
		if (lo >= 0 && lo < hi && hi <= model->layers && rh_model_carriers(model, lo, hi) > 1)
			return 0;
	}
	return 1;
}

/* What keeps rows from being cut; NULL: nothing. */
static const char *obstacle(const struct rh_config *config, const struct rh_model *model)
{
	for (int l = 0; l < model->layers; l++)
		if (model->layer[l].kind == RH_LAYER_BLOCK && model->layer[l].traits.direction == RH_ATTENTION_BOTH)
			return "a model that looks in both directions, whose rows are not cut";
	if (config->boxes > 1)
		return "several boxes";
	if (config->schedule && strcmp(config->schedule, "roundpipe") != 0)
		return "another schedule than roundpipe";
	if (config->per_device_train_batch_size != 1 && rh_preference_fewest_rows(&config->preference) == 1)
		return "several rows a micro-batch; set per_device_train_batch_size: 1";
	if (model->router_aux_loss_coef != 0)
		return "a router's balance loss; set router_aux_loss_coef: 0";
	if (config->backward_cut_count >= 0 && !cuts_are_fine(config, model))
		return config->preference.answers ? "backward_cuts that leave two blocks in a stage, or the head beside one (loss_type)"
		                                  : "backward_cuts that leave two blocks in a stage";
	return NULL;
}

int rh_chunks_check(const struct rh_config *config, const struct rh_model *model)
{
	const char *with = config->sequence_chunk ? obstacle(config, model) : NULL;
	return with ? rh_fail(-EINVAL, "sequence_chunk: rows in chunks are not there with %s", with) : 0;
}

int rh_saved_check(const struct rh_config *config, struct rh_model *model)
{
	const char *with = config->boxes > 1                                                ? "several boxes"
	                   : config->schedule && strcmp(config->schedule, "roundpipe") != 0 ? "another schedule than roundpipe"
	                   : model->router_aux_loss_coef != 0 ? "a router's balance loss (router_aux_loss_coef)"
	                   : config->backward_cut_count >= 0 && !cuts_are_fine(config, model)
	                           ? "backward_cuts that leave two blocks in a stage"
	                           : NULL;
	int64_t cuts = config->backward_cut_count, top = cuts > 0 ? config->backward_cuts[cuts - 1] : 0;
	if (config->saved_dtype == RH_SAVED_SAME)
		return 0;
	if (!with && cuts >= 0 && top != model->layers - 1)
		with = "backward_cuts that do not leave the head alone";
	if (with)
		return rh_fail(-EINVAL, "saved_dtype: fp8 is not there with %s", with);
	model->saves_narrow = 1;
	return 0;
}

static void widen(struct rh_micro_shape *most, const struct rh_micro_shape *shape)
{
	most->tokens = rh_max(most->tokens, shape->tokens);
	most->documents = rh_max(most->documents, shape->documents);
	most->longest = rh_max(most->longest, shape->longest);
	most->head_rows = rh_max(most->head_rows, shape->head_rows);
	most->keys = rh_max(most->keys, shape->keys);
	most->first = rh_max(most->first, shape->first);
	most->text_longest = rh_max(most->text_longest, shape->text_longest);
	most->judged = rh_max(most->judged, shape->judged);
	most->judged_rows = rh_max(most->judged_rows, shape->judged_rows);
	most->chunks = shape->chunks > most->chunks ? shape->chunks : most->chunks;
}

/* The largest chunk of all rows, and more of these. */
struct largest {
	struct rh_micro_shape shape;
	int64_t row, tokens[RH_CHUNKS_MOST]; /* of the longest row that is cut; of each chunk */
};

static int widen_by_row(const struct rh_chunk_rule *rule, const struct rh_micro_batch *row, struct largest *most)
{
	int64_t cut[RH_CHUNKS_MOST + 1], chunks = rh_chunks_cut(rule, row->start_q, row->shape.documents, cut);
	if (chunks < 0)
		return (int)chunks;
	for (int c = 0; c < chunks; c++) {
		struct rh_micro_batch chunk = rh_chunk_of(row, cut, c, (int)chunks, &(struct rh_chunk_room){0});
		widen(&most->shape, &chunk.shape);
		most->tokens[c] = rh_max(most->tokens[c], chunk.shape.tokens);
	}
	if (chunks > 1)
		most->row = rh_max(most->row, row->shape.tokens);
	return 0;
}

/* Groups of about as many chunks, by length: the fewer differ in one, the less memory is left unused. */
void rh_chunks_classify(const int64_t *tokens, int chunks, struct rh_chunk_classes *out)
{
	int count = chunks < RH_CHUNK_CLASSES ? chunks : RH_CHUNK_CLASSES;
	*out = (struct rh_chunk_classes){.count = count};
	for (int c = 0; c < chunks && count > 1; c++) {
		int longer = 0;
		for (int other = 0; other < chunks; other++)
			longer += tokens[other] > tokens[c] || (tokens[other] == tokens[c] && other < c);
		int kind = longer * count / chunks;
		out->of_chunk[c] = (uint8_t)kind;
		out->tokens[kind] = rh_max(out->tokens[kind], tokens[c]);
	}
}

/* Whole rows where none is longer than a chunk. */
static void settle(const struct largest *most, struct rh_workload *work)
{
	if (most->shape.chunks < 2)
		return;
	work->row = work->train;
	work->train = most->shape;
	work->chunks = most->shape.chunks;
	work->cache_rows = most->row;
	work->train_micro_batches *= work->chunks;
	rh_chunks_classify(most->tokens, work->chunks, &work->classes);
}

/* What is cut is a micro-batch: a row, or several that follow one another, which are compared with each other. */
static int cut_dataset(const struct rh_chunk_rule *rule, const struct rh_dataset *dataset, int64_t each, struct rh_workload *work)
{
	struct rh_batch batch = {0};
	struct largest most = {0};
	int64_t *rows = rh_alloc((size_t)each, sizeof *rows);
	int rc = rows ? 0 : -ENOMEM;
	for (int64_t row = 0; !rc && row < dataset->rows; row += each) {
		int64_t count = rh_min(each, dataset->rows - row);
		for (int64_t i = 0; i < count; i++)
			rows[i] = row + i;
		rc = rh_batch_outline(dataset, rows, count, &batch);
		struct rh_micro_batch micro = rh_micro_of(&batch);
		if (!rc)
			rc = widen_by_row(rule, &micro, &most);
	}
	rh_batch_free(&batch);
	rh_free(rows);
	if (!rc)
		settle(&most, work);
	return rc;
}

int rh_synthetic_row_create(const struct rh_micro_shape *shape, struct rh_synthetic_row *out)
{
	int64_t documents = rh_max(shape->judged, 1);
	*out = (struct rh_synthetic_row){.head = rh_alloc((size_t)shape->head_rows, sizeof *out->head),
	                                 .start = rh_alloc((size_t)documents + 1, sizeof *out->start)};
	if (!out->head || !out->start) {
		rh_synthetic_row_free(out);
		return -ENOMEM;
	}
	for (int64_t i = 0; i < shape->head_rows; i++)
		out->head[i] = (int32_t)i;
	for (int64_t d = 1; d <= documents; d++)
		out->start[d] = (int32_t)(shape->tokens * d / documents);
	out->batch = rh_micro_batch_of(*shape, out->head);
	out->batch.shape.documents = documents;
	out->batch.shape.longest = shape->tokens / documents;
	out->batch.start_q = out->batch.start_k = out->start;
	return 0;
}

void rh_synthetic_row_free(struct rh_synthetic_row *row)
{
	rh_free(row->head);
	rh_free(row->start);
	row->head = row->start = NULL;
}

static int cut_synthetic(const struct rh_chunk_rule *rule, struct rh_workload *work)
{
	struct largest most = {0};
	struct rh_synthetic_row row;
	int rc = rh_synthetic_row_create(&work->train, &row);
	if (rc)
		return rc;
	rc = widen_by_row(rule, &row.batch, &most);
	rh_synthetic_row_free(&row);
	if (!rc)
		settle(&most, work);
	return rc;
}

int rh_chunks_shapes(const struct rh_chunk_rule *rule, const struct rh_micro_batch *row, int chunks, struct rh_micro_shape *out)
{
	int64_t cut[RH_CHUNKS_MOST + 1], count = rh_chunks_cut(rule, row->start_q, row->shape.documents, cut);
	for (int c = 0; count > 0 && c < chunks; c++)
		out[c] = rh_chunk_of(row, cut, c, (int)count, &(struct rh_chunk_room){0}).shape;
	return count < 0 ? (int)count : 0;
}

static int cut(const struct rh_session *session, const struct rh_dataset *dataset, int64_t chunk, struct rh_workload *work)
{
	const struct rh_chunk_rule rule = rh_chunk_rule_of(chunk, session->model);
	work->chunk = chunk;
	if (!chunk)
		return 0;
	int64_t each = session->config->per_device_train_batch_size;
	return dataset ? cut_dataset(&rule, dataset, each, work) : cut_synthetic(&rule, work);
}

/* 1: one device can train so; a negative number is a fault. Chunks leave a part of the budget to plans for several devices, whose stages
 * follow one another in another order. */
static int fits(struct rh_session *session, const struct rh_workload *work)
{
	enum { LEFT = 16 };
	struct rh_config config = *session->config;
	struct rh_run_plan plan;
	struct rh_run_request request = {
	        .config = &config, .model = session->model, .lora = session->lora, .work = work, .stages = RH_STAGES_PACKED};
	int rc = rh_session_run_machine(session, &request.machine);
	if (rc)
		return rc;
	int64_t *budget = &request.machine.ram_bytes;
	if (config.max_vram || request.machine.device_room) { /* the host's memory holds as much of whole rows as of chunks */
		config.max_vram = config.max_vram ? config.max_vram : request.machine.device_room;
		config.spill = 0;
		request.machine.ram_bytes = INT64_MAX;
		budget = &config.max_vram;
	}
	if (work->chunks > 1 && *budget < INT64_MAX)
		*budget -= *budget / LEFT;
	request.machine.devices = 1;
	request.machine.simulated = 1;
	rc = rh_run_plan_make(&request, &plan);
	rh_run_plan_free(&plan);
	if (rc == RH_DOES_NOT_FIT)
		rh_error_clear();
	return rc == RH_DOES_NOT_FIT ? 0 : rc ? rc : 1;
}

/* Rows that do not fit are cut into the longest chunks that do, of a power of two of tokens: what else is free then decides little. */
static int cut_to_fit(struct rh_session *session, const struct rh_dataset *dataset, struct rh_workload *work)
{
	enum { LEAST = 8 }; /* its exponent */
	const struct rh_workload whole = *work;
	int low = LEAST, high = LEAST;
	while ((int64_t)2 << high < whole.train.tokens)
		high++;
	while (low <= high) {
		int middle = low + (high - low) / 2;
		struct rh_workload trial = whole;
		int rc = cut(session, dataset, (int64_t)1 << middle, &trial), is_fine;
		int too_many = rc == -EINVAL; /* chunks */
		if (too_many)
			rh_error_clear();
		is_fine = too_many ? 0 : rc ? rc : fits(session, &trial);
		if (is_fine < 0)
			return is_fine;
		if (is_fine)
			*work = trial;
		if (is_fine || too_many)
			low = middle + 1;
		else
			high = middle - 1;
	}
	return 0;
}

int rh_chunks_choose(struct rh_session *session, const struct rh_dataset *dataset, int64_t kept, struct rh_workload *work)
{
	const struct rh_config *config = session->config;
	const char *with = obstacle(config, session->model);
	if (config->sequence_chunk)
		return cut(session, dataset, config->sequence_chunk, work);
	if (kept > 0 && with)
		return rh_fail(-EINVAL, "the checkpoint's run had rows in chunks, which are not there with %s", with);
	if (kept >= 0 || with)
		return cut(session, dataset, rh_max(kept, 0), work);
	int is_fine = fits(session, work);
	return is_fine < 0 ? is_fine : is_fine ? 0 : cut_to_fit(session, dataset, work);
}
