#include "session/chunks.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <string.h>

struct rh_chunk_rule rh_chunk_rule_of(const struct rh_config *config, const struct rh_model *model)
{
	struct rh_chunk_rule rule = {.most = config->sequence_chunk};
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
		*(traits->window ? &rule.windowed : &rule.pair) += attended;
		rule.window = rh_max(rule.window, traits->window);
	}
	return rule;
}

int rh_chunks_check(const struct rh_config *config, const struct rh_model *model)
{
	const char *with = NULL;
	if (!config->sequence_chunk)
		return 0;
	for (int l = 0; l < model->layers; l++)
		if (model->layer[l].kind == RH_LAYER_BLOCK && model->layer[l].traits.direction == RH_ATTENTION_BOTH)
			with = "a model that looks in both directions, whose rows are not cut";
	if (config->boxes > 1)
		with = "several boxes";
	else if (config->schedule && strcmp(config->schedule, "roundpipe") != 0)
		with = "another schedule than roundpipe";
	else if (config->per_device_train_batch_size != 1)
		with = "several rows a micro-batch; set per_device_train_batch_size: 1";
	else if (model->router_aux_loss_coef != 0)
		with = "a router's balance loss; set router_aux_loss_coef: 0";
	else if (config->spill & RH_SPILL_ACTIVATIONS)
		with = "activations on NVMe";
	else if (config->forward_cut_count >= 0 || config->backward_cut_count >= 0)
		with = "stages that are cut by hand";
	return with ? rh_fail(-EINVAL, "sequence_chunk: rows in chunks are not there with %s", with) : 0;
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
	most->chunks = shape->chunks > most->chunks ? shape->chunks : most->chunks;
}

/* Widens *most by a row's chunks; *longest: tokens of the longest row that is cut. */
static int widen_by_row(const struct rh_chunk_rule *rule, const struct rh_micro_batch *row, struct rh_micro_shape *most, int64_t *longest)
{
	int64_t cut[RH_CHUNKS_MOST + 1], chunks = rh_chunks_cut(rule, row->start_q, row->shape.documents, cut);
	if (chunks < 0)
		return (int)chunks;
	for (int c = 0; c < chunks; c++) {
		struct rh_micro_batch chunk = rh_chunk_of(row, cut, c, (int)chunks, &(struct rh_chunk_room){0});
		widen(most, &chunk.shape);
	}
	if (chunks > 1)
		*longest = rh_max(*longest, row->shape.tokens);
	return 0;
}

/* Whole rows where none is longer than a chunk. */
static void settle(const struct rh_micro_shape *most, int64_t longest, struct rh_workload *work)
{
	if (most->chunks < 2)
		return;
	work->row = work->train;
	work->train = *most;
	work->chunks = most->chunks;
	work->cache_rows = longest;
	work->train_micro_batches *= most->chunks;
}

int rh_chunks_workload(const struct rh_chunk_rule *rule, const struct rh_dataset *dataset, struct rh_workload *work)
{
	struct rh_batch batch = {0};
	struct rh_micro_shape most = {0};
	int64_t longest = 0;
	int rc = 0;
	for (int64_t row = 0; rule->most && !rc && row < dataset->rows; row++) {
		rc = rh_batch_outline(dataset, &row, 1, &batch);
		struct rh_micro_batch micro = rh_micro_of(&batch);
		if (!rc)
			rc = widen_by_row(rule, &micro, &most, &longest);
	}
	rh_batch_free(&batch);
	if (!rc)
		settle(&most, longest, work);
	return rc;
}

int rh_chunks_shapes(const struct rh_chunk_rule *rule, const struct rh_micro_batch *row, int chunks, struct rh_micro_shape *out)
{
	int64_t cut[RH_CHUNKS_MOST + 1], count = rh_chunks_cut(rule, row->start_q, row->shape.documents, cut);
	for (int c = 0; count > 0 && c < chunks; c++)
		out[c] = rh_chunk_of(row, cut, c, (int)count, &(struct rh_chunk_room){0}).shape;
	return count < 0 ? (int)count : 0;
}

int rh_chunks_workload_synthetic(const struct rh_chunk_rule *rule, struct rh_workload *work)
{
	struct rh_micro_shape most = {0};
	int64_t longest = 0, rows = work->train.head_rows;
	int32_t start[2] = {0, (int32_t)work->train.tokens}, *head = rule->most ? rh_alloc((size_t)rows, sizeof *head) : NULL;
	struct rh_micro_batch row = rh_micro_batch_of(work->train, start);
	if (!rule->most)
		return 0;
	if (!head)
		return -ENOMEM;
	for (int64_t i = 0; i < rows; i++)
		head[i] = (int32_t)i;
	row.head_row = head;
	int rc = widen_by_row(rule, &row, &most, &longest);
	rh_free(head);
	if (!rc)
		settle(&most, longest, work);
	return rc;
}
