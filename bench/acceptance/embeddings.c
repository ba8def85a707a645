/* Sentence embeddings of a BERT: the mean of the last layer's hidden states over a text's tokens, [CLS] and [SEP] with them. For comparison
 * with transformers (minilm.py).
 *
 * usage: embeddings MODEL TEXTS OUT      a text a line; OUT receives (texts, hidden_size) F32 */
#include "ckpt/source.h"
#include "core/alloc.h"
#include "core/file.h"
#include "device/cpu/cpu.h"
#include "model/emit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMORY = 512 << 20, MOST_TOKENS = 256 };

struct runner {
	struct rh_source *source;
	struct rh_tokenizer *tokenizer;
	struct rh_model *model;
	struct rh_device *device;
	char **weights; /* on the device */
	struct rh_arena arena;
};

static int launch(void *sink, const struct rh_op *op)
{
	struct runner *runner = sink;
	return runner->device->ops->launch(runner->device, RH_STREAM_COMPUTE, op);
}

/* All blocks but the head's. */
static int load(struct runner *runner)
{
	const struct rh_device_ops *ops = runner->device->ops;
	int rc = 0;
	for (int l = 0; l + 1 < runner->model->layers; l++) {
		int b = runner->model->layer[l].block[0];
		const struct rh_block *block = &runner->model->block[b];
		float *host = rh_alloc((size_t)block->elements, sizeof *host);
		rc = host ? 0 : -ENOMEM;
		for (int t = 0; !rc && t < block->tensors; t++) {
			const struct rh_tensor *tensor = &block->tensor[t];
			rc = rh_source_read(runner->source, tensor->name, 0, tensor->rows * tensor->cols, RH_F32, host + tensor->offset);
		}
		runner->weights[b] = rh_arena_take(&runner->arena, 4 * block->elements);
		rc = rc ? rc : ops->copy_up(runner->device, RH_STREAM_COMPUTE, runner->weights[b], host, 4 * block->elements);
		int synced = ops->synchronize(runner->device);
		rh_free(host);
		if (rc || synced)
			return rc ? rc : synced;
	}
	return rc;
}

static int open_all(struct runner *runner, const char *path)
{
	void *base = NULL;
	int rc = rh_source_open_for(path, RH_TASK_MASKED_LM, 0, &runner->source);
	rc = rc ? rc : rh_source_tokenizer(runner->source, &runner->tokenizer);
	rc = rc ? rc : rh_model_create(rh_source_config(runner->source), RH_F32, NULL, &runner->model);
	if (!rc)
		rh_model_freeze(runner->model);
	rc = rc ? rc : rh_cpu_open(0, &(struct rh_cpu_options){.threads = 2, .isa = rh_cpu_best_isa()}, &runner->device);
	rc = rc ? rc : runner->device->ops->reserve(runner->device, MEMORY, &base);
	if (rc)
		return rc;
	runner->arena = (struct rh_arena){.base = base, .capacity = MEMORY};
	runner->weights = rh_alloc((size_t)runner->model->blocks, sizeof *runner->weights);
	return runner->weights ? load(runner) : -ENOMEM;
}

/* (tokens, hidden) of the last layer, of one text. */
static int hidden_states(struct runner *runner, const struct rh_ids *ids, float *out)
{
	const struct rh_device_ops *ops = runner->device->ops;
	int64_t tokens = (int64_t)ids->count, hidden = runner->model->config->hidden_size, mark = runner->arena.used;
	int last = runner->model->layers - 1;
	struct rh_emit emit = {.model = runner->model,
	                       .launch = launch,
	                       .sink = runner,
	                       .arena = &runner->arena,
	                       .saved = &runner->arena,
	                       .shape = {.tokens = tokens, .documents = 1, .longest = tokens, .typed = tokens},
	                       .weights = runner->weights};
	struct rh_micro_layout at = rh_micro_layout(&emit.shape);
	struct rh_view boundary[64] = {{0}};
	char *micro = rh_alloc((size_t)at.bytes, 1);
	RH_ASSERT(last < 64);
	if (!micro)
		return -ENOMEM;
	for (int64_t i = 0; i < tokens; i++) {
		((int32_t *)(void *)(micro + at.ids))[i] = ids->id[i];
		((int32_t *)(void *)(micro + at.position))[i] = (int32_t)i;
	}
	((int32_t *)(void *)(micro + at.start_q))[1] = ((int32_t *)(void *)(micro + at.start_k))[1] = (int32_t)tokens;
	emit.micro = rh_arena_take(&runner->arena, at.bytes);
	boundary[last] = rh_view_of(rh_arena_take(&runner->arena, 4 * tokens * hidden), RH_F32, tokens, hidden);
	int rc = ops->copy_up(runner->device, RH_STREAM_COMPUTE, emit.micro, micro, at.bytes);
	rc = rc ? rc : rh_stage_forward(&emit, 0, last, (struct rh_view){0}, boundary, NULL);
	rc = rc ? rc : ops->copy_down(runner->device, RH_STREAM_COMPUTE, out, boundary[last].data, 4 * tokens * hidden);
	int synced = ops->synchronize(runner->device);
	rh_arena_reset(&runner->arena, mark);
	rh_free(micro);
	return rc ? rc : synced;
}

static int embed(struct runner *runner, const char *text, FILE *out)
{
	struct rh_ids ids = {0};
	int64_t hidden = runner->model->config->hidden_size;
	float *states = rh_alloc(MOST_TOKENS * (size_t)hidden, sizeof *states), *mean = rh_alloc((size_t)hidden, sizeof *mean);
	int rc = states && mean ? rh_tokenizer_encode(runner->tokenizer, text, strlen(text), RH_TOKENS_WITH_SPECIAL, &ids) : -ENOMEM;
	if (!rc && ids.count > MOST_TOKENS)
		rc = rh_fail(-EINVAL, "a text has %zu tokens; at most %d fit: '%.40s...'", ids.count, MOST_TOKENS, text);
	rc = rc ? rc : hidden_states(runner, &ids, states);
	for (int64_t h = 0; !rc && h < hidden; h++) {
		double sum = 0;
		for (size_t t = 0; t < ids.count; t++)
			sum += (double)states[(int64_t)t * hidden + h];
		mean[h] = (float)(sum / (double)ids.count);
	}
	if (!rc && fwrite(mean, sizeof *mean, (size_t)hidden, out) != (size_t)hidden)
		rc = rh_fail(-EIO, "the embeddings cannot be written");
	rh_ids_free(&ids);
	rh_free(states);
	rh_free(mean);
	return rc;
}

int main(int count, char **argument)
{
	struct runner runner = {0};
	struct rh_bytes texts = {0};
	char *rest = NULL;
	if (count != 4) {
		fprintf(stderr, "usage: embeddings MODEL TEXTS OUT\n");
		return 2;
	}
	FILE *out = fopen(argument[3], "wbe");
	int rc = out ? rh_file_load(argument[2], &texts) : rh_fail(-errno, "%s: %s", argument[3], strerror(errno));
	rc = rc ? rc : open_all(&runner, argument[1]);
	for (char *line = rc ? NULL : strtok_r(texts.bytes, "\n", &rest); line && !rc; line = strtok_r(NULL, "\n", &rest))
		rc = embed(&runner, line, out);
	if (out && fclose(out) && !rc)
		rc = rh_fail(-EIO, "%s: cannot be written", argument[3]);
	if (rc)
		fprintf(stderr, "embeddings: %s\n", rh_error(rc));
	return rc ? 1 : 0;
}
