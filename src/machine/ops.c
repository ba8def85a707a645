#include "machine/ops.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "machine/median.h"
#include "model/emit.h"

#include <stdlib.h>
#include <string.h>

enum { FILL_WORDS = 1 << 19 };

/* One pass over the model: `launch` of the emission counts, or enqueues and records. */
struct pass {
	struct rh_device *device;
	const struct doctor_probe *probe;
	struct rh_model *model;
	struct rh_model_config config;
	struct rh_micro_shape shape;
	struct rh_arena memory; /* the device's: weights, gradients, integers, results, then activations */
	char **weights;
	float *(*gradient)[2];
	char **rounded; /* of bf16: where gradients are rounded to */
	char *micro;
	struct rh_head_out head;
	struct rh_view x, dx;
	struct rh_stage_state state;
	struct rh_event **event; /* [0] before the first op, [i + 1] behind op i */
	struct rh_op *op;
	size_t ops, capacity;
	int rc; /* of layer_done's, that returns none */
};

static int every_module(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)name;
	*r = *(const int64_t *)context;
	*scale = 1;
	return 0;
}

static int pass_model(struct pass *pass, const struct rh_device_grain *grain)
{
	const struct doctor_probe *probe = pass->probe;
	pass->config = (struct rh_model_config){.family = rh_family_find(probe->qk_norm ? "qwen3" : "llama"),
	                                        .vocab_size = probe->vocab,
	                                        .hidden_size = probe->hidden,
	                                        .intermediate_size = probe->intermediate,
	                                        .num_hidden_layers = probe->layers,
	                                        .num_attention_heads = probe->heads,
	                                        .num_key_value_heads = probe->kv_heads,
	                                        .head_dim = probe->head_dim,
	                                        .max_position_embeddings = probe->tokens,
	                                        .rms_norm_eps = 1e-5,
	                                        .initializer_range = 0.02,
	                                        .rope[0].theta = 10000,
	                                        .qk_norm = probe->qk_norm,
	                                        .tie_word_embeddings = 1,
	                                        .bos_token_id = -1};
	struct rh_lora_config lora = {.dropout = 0.05, .module = every_module, .context = &probe->lora_r};
	pass->shape = (struct rh_micro_shape){.tokens = probe->tokens,
	                                      .documents = probe->documents,
	                                      .longest = probe->tokens / probe->documents,
	                                      .head_rows = probe->head_rows};
	int rc = rh_model_create(&pass->config, probe->dtype, probe->lora_r ? &lora : NULL, &pass->model);
	if (!rc)
		rh_model_cut(pass->model, grain);
	return rc;
}

/* Places what outlives an emission; the rest of the memory is the emission's. */
static int pass_place(struct pass *pass)
{
	const struct rh_model *model = pass->model;
	pass->weights = rh_alloc((size_t)model->blocks, sizeof *pass->weights);
	pass->gradient = rh_alloc((size_t)model->blocks, sizeof *pass->gradient);
	pass->rounded = rh_alloc((size_t)model->blocks, sizeof *pass->rounded);
	if (!pass->weights || !pass->gradient || !pass->rounded)
		return -ENOMEM;
	for (int b = 0; b < model->blocks; b++) {
		const struct rh_block *block = &model->block[b];
		pass->weights[b] = rh_arena_take(&pass->memory, rh_block_bytes(block, model->dtype));
		for (int use = 0; use < 2 && block->trainable; use++)
			pass->gradient[b][use] = rh_arena_take(&pass->memory, 4 * block->elements);
		if (block->trainable && block->uses == 1 && model->dtype != RH_F32)
			pass->rounded[b] = rh_arena_take(&pass->memory, rh_dtype_bytes(model->dtype, block->elements));
	}
	pass->micro = rh_arena_take(&pass->memory, rh_micro_layout(&pass->shape).bytes);
	int64_t rows = pass->shape.head_rows, tokens = pass->shape.tokens, cols = pass->config.hidden_size;
	int64_t bytes = rh_dtype_bytes(model->dtype, tokens * cols);
	pass->head.loss = rh_view_of(rh_arena_take(&pass->memory, 4 * rows), RH_F32, rows, 1);
	pass->head.hit = rh_view_of(rh_arena_take(&pass->memory, 4 * rows), RH_I32, rows, 1);
	pass->x = rh_view_of(rh_arena_take(&pass->memory, bytes), model->dtype, tokens, cols);
	pass->dx = rh_view_of(rh_arena_take(&pass->memory, bytes), model->dtype, tokens, cols);
	return rh_stage_state_create(model, &pass->state);
}

static int remember(void *sink, const struct rh_op *op)
{
	struct pass *pass = sink;
	int rc = rh_grow(&pass->op, &pass->capacity, pass->ops + 1, sizeof *pass->op);
	if (!rc)
		pass->op[pass->ops++] = *op;
	return rc;
}

/* As a stage begins its sums. */
static int clear_gradients(struct pass *pass)
{
	int rc = 0;
	for (int b = 0; b < pass->model->blocks; b++)
		for (int use = 0; !rc && use < pass->model->block[b].uses && pass->gradient[b][use]; use++) {
			struct rh_op fill = {.kind = RH_OP_FILL};
			fill.operand[RH_FILL_Y] = rh_view_of(pass->gradient[b][use], RH_F32, 1, pass->model->block[b].elements);
			rc = remember(pass, &fill);
		}
	return rc;
}

/* As a run rounds a layer's sums, once they are final. */
static void round_layer(struct pass *pass, int layer)
{
	for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
		int b = pass->model->layer[layer].block[which];
		if (b < 0 || !pass->rounded[b] || pass->rc)
			continue;
		struct rh_op cast = {.kind = RH_OP_CAST};
		cast.operand[RH_CAST_X] = rh_view_of(pass->gradient[b][0], RH_F32, 1, pass->model->block[b].elements);
		cast.operand[RH_CAST_Y] = rh_view_of(pass->rounded[b], pass->model->dtype, 1, pass->model->block[b].elements);
		pass->rc = remember(pass, &cast);
	}
}

/* The blocks below the last as a forward stage; all of them as a backward stage; the head, which makes loss and gradient. */
static int emit_all(struct pass *pass)
{
	struct rh_arena arena = pass->memory;
	int blocks = pass->model->layers - 1, lowest = pass->model->first_trained;
	struct rh_emit emit = {.model = pass->model,
	                       .launch = remember,
	                       .sink = pass,
	                       .arena = &arena,
	                       .shape = pass->shape,
	                       .micro = pass->micro,
	                       .seed = 1,
	                       .dropout = pass->model->dropout,
	                       .loss_scale = 1 / (float)pass->shape.tokens,
	                       .weights = pass->weights,
	                       .gradient = pass->gradient};
	struct rh_view none = {0}, boundary[2] = {{0}, pass->x};
	int rc = rh_stage_forward(&emit, 0, 1, none, boundary, NULL);
	if (!rc)
		rc = clear_gradients(pass);
	if (!rc)
		rc = rh_stage_recompute(&emit, 1, blocks + 1, pass->x, &pass->state, &pass->head);
	struct rh_stage_pass down;
	for (int l = blocks; !rc && l >= rh_stage_lowest(pass->model, 1); l--) {
		struct rh_stage_part part = {l, l + 1, 1, blocks + 1};
		rc = rh_stage_backward_part(&emit, part, &pass->state, &down, none, lowest < 1 ? pass->dx : none);
		if (!rc)
			round_layer(pass, l);
	}
	if (!rc && lowest < 1) {
		rc = rh_stage_recompute(&emit, 0, 1, none, &pass->state, NULL);
		if (!rc)
			rc = rh_stage_backward(&emit, 0, 1, &pass->state, pass->dx, none);
	}
	pass->memory.peak = arena.peak > pass->memory.peak ? arena.peak : pass->memory.peak;
	return rc ? rc : pass->rc;
}

static void pass_close(struct pass *pass)
{
	for (size_t i = 0; pass->event && i <= pass->ops; i++)
		if (pass->event[i])
			pass->device->ops->event_destroy(pass->event[i]);
	rh_free(pass->event);
	rh_free(pass->op);
	rh_free(pass->weights);
	rh_free(pass->gradient);
	rh_free(pass->rounded);
	rh_stage_state_free(&pass->state);
	rh_model_destroy(pass->model);
}

/* With `memory` measuring: for its peak. */
static int pass_open(const struct doctor_probe *probe, const struct rh_device_grain *grain, struct rh_arena memory, struct pass *out)
{
	*out = (struct pass){.probe = probe, .memory = memory};
	int rc = pass_model(out, grain);
	if (!rc)
		rc = pass_place(out);
	if (!rc)
		rc = emit_all(out);
	if (rc)
		pass_close(out);
	return rc;
}

int64_t doctor_probe_bytes(const struct doctor_probe *probe, const struct rh_device_grain *grain)
{
	struct pass pass;
	int rc = pass_open(probe, grain, rh_arena_measuring(), &pass);
	if (rc)
		return rc;
	int64_t bytes = pass.memory.peak;
	pass_close(&pass);
	return bytes;
}

/* Numbers of about 0.02 and of either sign, read as bf16 and as fp32: never zeros or subnormals, which some machines multiply at another
 * speed. */
static int fill(struct rh_device *device, char *base, int64_t bytes)
{
	uint16_t *word = rh_alloc(FILL_WORDS, sizeof *word);
	uint32_t state = 1;
	int rc = word ? 0 : -ENOMEM;
	for (int i = 0; !rc && i < FILL_WORDS; i++) {
		state = state * 1664525u + 1013904223u;
		word[i] = (uint16_t)(0x3c80u | (state >> 16 & 0x807fu));
	}
	int64_t piece = FILL_WORDS * (int64_t)sizeof *word;
	for (int64_t at = 0; !rc && at < bytes; at += piece)
		rc = device->ops->copy_up(device, RH_STREAM_COMPUTE, base + at, word, bytes - at < piece ? bytes - at : piece);
	int synced = device->ops->synchronize(device); /* before the words are freed, whatever happened */
	rh_free(word);
	return rc ? rc : synced;
}

/* The integers of a micro-batch of equal documents, random tokens. */
static int send_micro(struct pass *pass)
{
	struct rh_micro_layout at = rh_micro_layout(&pass->shape);
	int64_t length = pass->shape.longest;
	char *host = rh_alloc((size_t)at.bytes, 1);
	if (!host)
		return -ENOMEM;
	int32_t *ids = (int32_t *)(void *)(host + at.ids), *position = (int32_t *)(void *)(host + at.position);
	int32_t *start_q = (int32_t *)(void *)(host + at.start_q), *start_k = (int32_t *)(void *)(host + at.start_k);
	int32_t *head_row = (int32_t *)(void *)(host + at.head_row), *target = (int32_t *)(void *)(host + at.target);
	uint32_t state = 7;
	for (int64_t t = 0; t < pass->shape.tokens; t++) {
		state = state * 1664525u + 1013904223u;
		ids[t] = (int32_t)(state % (uint32_t)pass->config.vocab_size);
		position[t] = (int32_t)(t % length);
		if (t < pass->shape.head_rows) {
			head_row[t] = (int32_t)t;
			target[t] = ids[t];
		}
	}
	for (int64_t d = 0; d <= pass->shape.documents; d++)
		start_q[d] = start_k[d] = (int32_t)(d * length);
	int rc = pass->device->ops->copy_up(pass->device, RH_STREAM_COMPUTE, pass->micro, host, at.bytes);
	int synced = pass->device->ops->synchronize(pass->device);
	rh_free(host);
	return rc ? rc : synced;
}

static int run_once(struct pass *pass)
{
	const struct rh_device_ops *ops = pass->device->ops;
	int rc = ops->record(pass->device, RH_STREAM_COMPUTE, pass->event[0]);
	for (size_t i = 0; !rc && i < pass->ops; i++) {
		rc = ops->launch(pass->device, RH_STREAM_COMPUTE, &pass->op[i]);
		if (!rc)
			rc = ops->record(pass->device, RH_STREAM_COMPUTE, pass->event[i + 1]);
	}
	int synced = ops->synchronize(pass->device);
	return rc ? rc : synced;
}

/* One more row of samples. */
static int measure(struct pass *pass, struct doctor_samples *samples)
{
	const struct rh_device_ops *ops = pass->device->ops;
	int rc = rh_grow(&samples->seconds, &samples->capacity, ((size_t)samples->runs + 1) * samples->ops, sizeof *samples->seconds);
	if (rc)
		return rc;
	rc = run_once(pass);
	for (size_t i = 0; !rc && i < pass->ops; i++) {
		int64_t ns = ops->event_time_ns(pass->event[i + 1]) - ops->event_time_ns(pass->event[i]);
		samples->seconds[(size_t)samples->runs * samples->ops + i] = (double)ns * 1e-9;
	}
	samples->runs += !rc;
	return rc;
}

int doctor_probe_run(const struct doctor_place *place, const struct doctor_probe *probe, int runs, struct doctor_samples *samples)
{
	struct rh_device *device = place->device;
	struct pass pass;
	int rc = pass_open(probe, &place->grain, (struct rh_arena){.base = place->base, .capacity = place->bytes}, &pass);
	if (rc)
		return rc;
	pass.device = device;
	pass.event = rh_alloc(pass.ops + 1, sizeof *pass.event);
	rc = pass.event ? fill(device, place->base, pass.memory.peak) : -ENOMEM;
	for (size_t i = 0; !rc && i <= pass.ops; i++)
		rc = device->ops->event_create(device, RH_EVENT_TIMED, &pass.event[i]);
	if (!rc)
		rc = send_micro(&pass);
	if (!rc && !samples->op) {
		samples->op = pass.op;
		samples->ops = pass.ops;
		rc = place->warms ? run_once(&pass) : 0;
	}
	RH_ASSERT(samples->ops == pass.ops || rc);
	for (int n = 0; !rc && n < runs; n++)
		rc = measure(&pass, samples);
	if (samples->op == pass.op)
		pass.op = NULL;
	pass_close(&pass);
	return rc;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* The mean of the passes but for the slowest quarter, of which the machine's other users have the greatest part. Sorts them. */
static double usual_pass(double *taken, int runs)
{
	int counted = runs - runs / 4;
	double sum = 0;
	qsort(taken, (size_t)runs, sizeof *taken, by_value);
	for (int n = 0; n < counted; n++)
		sum += taken[n];
	return counted ? sum / counted : 0;
}

int doctor_samples_reduce(const struct doctor_samples *samples, struct doctor_op_times *out)
{
	size_t runs = (size_t)samples->runs, first = out->count;
	double *taken = rh_alloc(2 * runs + 1, sizeof *taken), *share = taken + runs, shares = 0;
	int rc = taken ? rh_grow(&out->item, &out->capacity, out->count + samples->ops, sizeof *out->item) : -ENOMEM;
	for (size_t n = 0; !rc && n < runs; n++) {
		for (size_t i = 0; i < samples->ops; i++)
			taken[n] += samples->seconds[n * samples->ops + i];
		out->taken_s += taken[n];
	}
	for (size_t i = 0; !rc && runs && i < samples->ops; i++) {
		for (size_t n = 0; n < runs; n++)
			share[n] = taken[n] > 0 ? samples->seconds[n * samples->ops + i] / taken[n] : 0;
		double median = doctor_median(share, samples->runs);
		out->item[out->count++] = (struct doctor_op_time){samples->op[i], median};
		shares += median;
	}
	double usual = rc ? 0 : usual_pass(taken, samples->runs);
	for (size_t i = first; i < out->count; i++)
		out->item[i].seconds *= shares > 0 ? usual / shares : 0;
	out->usual_s += usual * (double)runs;
	rh_free(taken);
	return rc;
}

void doctor_samples_free(struct doctor_samples *samples)
{
	rh_free(samples->op);
	rh_free(samples->seconds);
	*samples = (struct doctor_samples){0};
}

void doctor_op_times_free(struct doctor_op_times *times)
{
	rh_free(times->item);
	*times = (struct doctor_op_times){0};
}
