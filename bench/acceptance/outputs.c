/* What a model makes of texts, for comparison with transformers (minilm.py, gemma.py):
 *   embeddings  the mean of the last layer's hidden states over a text's tokens, [CLS] and [SEP] with them: (1, hidden_size) F32
 *   logits      of each token, by the model's head: (tokens, vocabulary) F32
 * Token ids go to stdout, a line a text.
 *
 * usage: outputs embeddings|logits MODEL TEXTS OUT      MODEL: a directory or a GGUF; a text a line; OUT receives the texts' F32 in turn */
#include "ckpt/source.h"
#include "core/alloc.h"
#include "core/file.h"
#include "device/cpu/cpu.h"
#include "model/emit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKSPACE = 512 << 20, MOST_TOKENS = 256 };

struct runner {
	int wants_logits;
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

/* Layers that run: the head last, where logits are wanted. */
static int layers_of(const struct runner *runner)
{
	return runner->model->layers - !runner->wants_logits;
}

static int load(struct runner *runner)
{
	const struct rh_device_ops *ops = runner->device->ops;
	int rc = 0;
	for (int l = 0; l < layers_of(runner); l++) {
		int b = runner->model->layer[l].block[0]; /* a tied table is the first layer's */
		const struct rh_block *block = &runner->model->block[b];
		float *host = rh_alloc((size_t)block->elements, sizeof *host);
		rc = host ? 0 : -ENOMEM;
		for (int t = 0; !rc && t < block->tensors; t++) {
			const struct rh_tensor *tensor = &block->tensor[t];
			rc = rh_source_read(runner->source, tensor->name, 0, tensor->rows * tensor->cols, RH_F32, host + tensor->offset);
		}
		runner->weights[b] = rh_arena_take(&runner->arena, 4 * block->elements);
		if (!rc)
			rc = ops->copy_up(runner->device, RH_STREAM_COMPUTE, runner->weights[b], host, 4 * block->elements);
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
	int rc = rh_source_open_for(path, runner->wants_logits ? RH_TASK_CAUSAL_LM : RH_TASK_MASKED_LM, 0, &runner->source);
	if (!rc)
		rc = rh_source_tokenizer(runner->source, &runner->tokenizer);
	if (!rc)
		rc = rh_model_create(rh_source_config(runner->source), RH_F32, NULL, &runner->model);
	if (!rc)
		rh_model_freeze(runner->model);
	if (!rc)
		rc = rh_cpu_open(0, &(struct rh_cpu_options){.threads = 2, .isa = rh_cpu_best_isa()}, &runner->device);
	int64_t bytes = WORKSPACE;
	for (int b = 0; !rc && b < runner->model->blocks; b++)
		bytes += 4 * runner->model->block[b].elements;
	if (!rc)
		rc = runner->device->ops->reserve(runner->device, bytes, &base);
	if (rc)
		return rc;
	runner->arena = (struct rh_arena){.base = base, .capacity = bytes};
	runner->weights = rh_alloc((size_t)runner->model->blocks, sizeof *runner->weights);
	return runner->weights ? load(runner) : -ENOMEM;
}

/* One text's: (tokens, cols) F32. */
static int run(struct runner *runner, const struct rh_ids *ids, int64_t cols, float *out)
{
	const struct rh_device_ops *ops = runner->device->ops;
	int64_t tokens = (int64_t)ids->count, mark = runner->arena.used;
	int layers = layers_of(runner);
	struct rh_emit emit = {.model = runner->model,
	                       .launch = launch,
	                       .sink = runner,
	                       .arena = &runner->arena,
	                       .shape = {.tokens = tokens, .documents = 1, .longest = tokens, .head_rows = runner->wants_logits ? tokens : 0},
	                       .weights = runner->weights};
	if (!runner->wants_logits)
		emit.shape.typed = tokens;
	struct rh_micro_layout at = rh_micro_layout(&emit.shape);
	struct rh_view boundary[64] = {{0}};
	char *micro = rh_alloc((size_t)at.bytes, 1);
	RH_ASSERT(layers <= 64);
	if (!micro)
		return -ENOMEM;
	for (int64_t i = 0; i < tokens; i++) {
		((int32_t *)(void *)(micro + at.ids))[i] = ids->id[i];
		((int32_t *)(void *)(micro + at.position))[i] = (int32_t)i;
		if (runner->wants_logits)
			((int32_t *)(void *)(micro + at.head_row))[i] = (int32_t)i;
	}
	((int32_t *)(void *)(micro + at.start_q))[1] = ((int32_t *)(void *)(micro + at.start_k))[1] = (int32_t)tokens;
	emit.micro = rh_arena_take(&runner->arena, at.bytes);
	struct rh_view made = rh_view_of(rh_arena_take(&runner->arena, 4 * tokens * cols), RH_F32, tokens, cols);
	struct rh_head_out head = {.logits = made};
	if (!runner->wants_logits)
		boundary[layers] = made;
	int rc = ops->copy_up(runner->device, RH_STREAM_COMPUTE, emit.micro, micro, at.bytes);
	if (!rc)
		rc = rh_stage_forward(&emit, 0, layers, (struct rh_view){0}, boundary, runner->wants_logits ? &head : NULL);
	if (!rc)
		rc = ops->copy_down(runner->device, RH_STREAM_COMPUTE, out, made.data, 4 * tokens * cols);
	int synced = ops->synchronize(runner->device);
	rh_arena_reset(&runner->arena, mark);
	rh_free(micro);
	return rc ? rc : synced;
}

static void average(const float *states, int64_t tokens, int64_t cols, float *mean)
{
	for (int64_t c = 0; c < cols; c++) {
		double sum = 0;
		for (int64_t t = 0; t < tokens; t++)
			sum += (double)states[t * cols + c];
		mean[c] = (float)(sum / (double)tokens);
	}
}

static int write_one(struct runner *runner, const char *text, FILE *out)
{
	struct rh_ids ids = {0};
	int64_t cols = runner->wants_logits ? runner->model->config->vocab_size : runner->model->config->hidden_size;
	float *made = rh_alloc(MOST_TOKENS * (size_t)cols, sizeof *made), *mean = rh_alloc((size_t)cols, sizeof *mean);
	int rc = made && mean ? rh_tokenizer_encode(runner->tokenizer, text, strlen(text), RH_TOKENS_WITH_SPECIAL, &ids) : -ENOMEM;
	if (!rc && ids.count > MOST_TOKENS)
		rc = rh_fail(-EINVAL, "a text has %zu tokens; at most %d fit: '%.40s...'", ids.count, MOST_TOKENS, text);
	if (!rc)
		rc = run(runner, &ids, cols, made);
	for (size_t t = 0; !rc && t < ids.count; t++)
		printf("%d%c", ids.id[t], t + 1 < ids.count ? ' ' : '\n');
	if (!rc && !runner->wants_logits)
		average(made, (int64_t)ids.count, cols, mean);
	size_t count = runner->wants_logits ? ids.count * (size_t)cols : (size_t)cols;
	if (!rc && fwrite(runner->wants_logits ? made : mean, sizeof *made, count, out) != count)
		rc = rh_fail(-EIO, "the results cannot be written");
	rh_ids_free(&ids);
	rh_free(made);
	rh_free(mean);
	return rc;
}

int main(int count, char **argument)
{
	struct runner runner = {.wants_logits = count == 5 && !strcmp(argument[1], "logits")};
	struct rh_bytes texts = {0};
	char *rest = NULL;
	if (count != 5 || (!runner.wants_logits && strcmp(argument[1], "embeddings") != 0)) {
		fprintf(stderr, "usage: outputs embeddings|logits MODEL TEXTS OUT\n");
		return 2;
	}
	FILE *out = fopen(argument[4], "wbe");
	int rc = out ? rh_file_load(argument[3], &texts) : rh_fail(-errno, "%s: %s", argument[4], strerror(errno));
	if (!rc)
		rc = open_all(&runner, argument[2]);
	for (char *line = rc ? NULL : strtok_r(texts.bytes, "\n", &rest); line && !rc; line = strtok_r(NULL, "\n", &rest))
		rc = write_one(&runner, line, out);
	if (out && fclose(out) && !rc)
		rc = rh_fail(-EIO, "%s: cannot be written", argument[4]);
	if (rc)
		fprintf(stderr, "outputs: %s\n", rh_error(rc));
	return rc ? 1 : 0;
}
