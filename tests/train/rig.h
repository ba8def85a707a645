/* A run of one of the reference models (tests/reference/models), set up by hand: what parity and bit-equality tests are written with. */
#ifndef RH_TESTS_TRAIN_RIG_H
#define RH_TESTS_TRAIN_RIG_H

#include "check.h"
#include "tensor_bytes.h"

#include "ckpt/safetensors.h"
#include "core/alloc.h"
#include "core/log.h"
#include "offload/optimizer.h"
#include "session/lr.h"
#include "session/session.h"
#include "weights/tensors.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

enum { RIG_MICRO_MAX = 16 };

struct rig {
	char model[256], adapter[256];
	struct rh_config config;
	struct rh_session session;
	struct rh_safetensors *reference;
	int32_t *ints[24]; /* handed out by rig_input; freed with the rig */
	int held;
};

static inline const struct rh_safetensor *rig_tensor(const struct rig *rig, const char *name)
{
	const struct rh_safetensor *tensor = rh_safetensors_find(rig->reference, name);
	if (!tensor)
		print_error("reference.safetensors has no %s\n", name);
	assert_non_null(tensor);
	return tensor;
}

static inline double rig_double(const struct rig *rig, const char *name, int64_t index)
{
	double value;
	check_ok(rh_safetensors_read(rig->reference, rig_tensor(rig, name), 8 * index, &value, sizeof value));
	return value;
}

/* An input list: documents with masks, in micro-batches. */
struct rig_input {
	const int32_t *ids, *mask, *start, *micro;
	const int32_t *target, *type; /* of BERT: what is to be found where the mask is 1; else NULL, and it is the next token */
	const float *pixel;           /* of images: (tokens, pixels); else NULL */
	int64_t micros, pixels;
};

static inline const int32_t *rig_ints(struct rig *rig, const char *prefix, const char *part, int64_t *count)
{
	char name[64];
	snprintf(name, sizeof name, "%s.%s", prefix, part);
	const struct rh_safetensor *tensor = rig_tensor(rig, name);
	if (count)
		*count = tensor->shape[0];
	int32_t *copy = malloc((size_t)tensor->bytes);
	assert_true(rig->held < 24);
	rig->ints[rig->held++] = copy;
	check_ok(rh_safetensors_read(rig->reference, tensor, 0, copy, tensor->bytes));
	return copy;
}

static inline struct rig_input rig_input(struct rig *rig, const char *prefix)
{
	struct rig_input in = {0};
	char key[64];
	int64_t count;
	in.ids = rig_ints(rig, prefix, "ids", NULL);
	in.mask = rig_ints(rig, prefix, "mask", NULL);
	in.start = rig_ints(rig, prefix, "start", NULL);
	in.micro = rig_ints(rig, prefix, "micro", &count);
	in.micros = count - 1;
	snprintf(key, sizeof key, "%s.target", prefix);
	if (rh_safetensors_find(rig->reference, key))
		in.target = rig_ints(rig, prefix, "target", NULL);
	snprintf(key, sizeof key, "%s.type", prefix);
	if (rh_safetensors_find(rig->reference, key))
		in.type = rig_ints(rig, prefix, "type", NULL);
	snprintf(key, sizeof key, "%s.pixel", prefix);
	const struct rh_safetensor *pixel = rh_safetensors_find(rig->reference, key);
	if (pixel) { /* 4 bytes each too */
		in.pixel = (const float *)rig_ints(rig, prefix, "pixel", NULL);
		in.pixels = pixel->shape[1];
	}
	return in;
}

/* One micro-batch of the input; every_token: the head runs on all tokens (for logits), else on those before a trained target. */
struct rig_micro {
	struct rh_micro_batch batch;
	int32_t position[512], start[64], head_row[512], target[512];
	float loss[512];
	double load_balancing_loss;
};

static inline void rig_micro_make(const struct rig_input *in, int64_t m, int every_token, struct rig_micro *out)
{
	int32_t first_document = in->micro[m], documents = in->micro[m + 1] - first_document, base = in->start[first_document];
	struct rh_micro_shape shape = {.documents = documents, .tokens = in->start[first_document + documents] - base};
	assert_true(shape.tokens <= 512 && documents < 64);
	for (int32_t d = 0; d <= documents; d++)
		out->start[d] = in->start[first_document + d] - base;
	for (int32_t d = 0; d < documents; d++) {
		int32_t length = out->start[d + 1] - out->start[d];
		shape.longest = length > shape.longest ? length : shape.longest;
		for (int32_t i = 0; i < length; i++) {
			int32_t at = out->start[d] + i;
			out->position[at] = i;
			if (in->target) {
				if (!in->mask[base + at])
					continue;
				out->head_row[shape.head_rows] = at;
				out->target[shape.head_rows++] = in->target[base + at];
			} else if (every_token || (i + 1 < length && in->mask[base + at + 1])) {
				out->head_row[shape.head_rows] = at;
				out->target[shape.head_rows++] = every_token ? 0 : in->ids[base + at + 1];
			}
		}
	}
	shape.typed = in->type ? shape.tokens : 0;
	shape.pixels = in->pixels;
	out->batch = (struct rh_micro_batch){.shape = shape,
	                                     .type = in->type ? in->type + base : NULL,
	                                     .pixel = in->pixel ? in->pixel + base * in->pixels : NULL,
	                                     .ids = in->ids + base,
	                                     .position = out->position,
	                                     .start_q = out->start,
	                                     .start_k = out->start,
	                                     .head_row = out->head_row,
	                                     .target = out->target,
	                                     .loss = out->loss,
	                                     .load_balancing_loss = &out->load_balancing_loss};
}

/* The largest micro-batch of an input, each size for itself. */
static inline struct rh_micro_shape rig_limits(const struct rig_input *in, int every_token)
{
	static struct rig_micro micro;
	struct rh_micro_shape most = {0};
	for (int64_t m = 0; m < in->micros; m++) {
		rig_micro_make(in, m, every_token, &micro);
		int64_t *const a[] = {&most.tokens, &most.documents, &most.longest, &most.head_rows, &most.typed, &most.pixels};
		const int64_t b[] = {micro.batch.shape.tokens,    micro.batch.shape.documents, micro.batch.shape.longest,
		                     micro.batch.shape.head_rows, micro.batch.shape.typed,     micro.batch.shape.pixels};
		for (int i = 0; i < 6; i++)
			*a[i] = b[i] > *a[i] ? b[i] : *a[i];
	}
	return most;
}

/* Opens tests/reference/models/<name> (or a .gguf of it) with the defaults of keys.c; the caller changes rig->config before rig_start. */
static inline void rig_open(struct rig *rig, const char *name, const char *adapter)
{
	rh_log_quiet(1);
	*rig = (struct rig){0};
	char path[256];
	snprintf(path, sizeof path, "tests/reference/models/%s/reference.safetensors", name);
	check_ok(rh_safetensors_open(path, &rig->reference));
	snprintf(rig->model, sizeof rig->model, "tests/reference/models/%s%s", name, strncmp(name, "gguf", 4) ? "" : "/model.gguf");
	if (adapter)
		snprintf(rig->adapter, sizeof rig->adapter, "tests/reference/models/%s/%s", name, adapter);
	rig->config = (struct rh_config){.model_name_or_path = rig->model,
	                                 .adapter_name_or_path = adapter ? rig->adapter : NULL,
	                                 .use_lora = adapter != NULL,
	                                 .task = RH_TASK_UNSET,
	                                 .dtype = RH_F32,
	                                 .seed = 42,
	                                 .device = (char *)(uintptr_t) "cpu:1",
	                                 .forward_cut_count = -1,
	                                 .backward_cut_count = -1,
	                                 .adam_beta1 = 0.9,
	                                 .adam_beta2 = 0.999,
	                                 .adam_epsilon = 1e-8,
	                                 .max_grad_norm = 1,
	                                 .decay_embeddings = 1};
}

/* With a load balancing loss: of its own references only the inputs stay, which have been read. */
static inline void rig_balance(struct rig *rig, const char *name)
{
	char path[256];
	snprintf(path, sizeof path, "tests/reference/balance/%s.safetensors", name);
	rh_safetensors_close(rig->reference);
	check_ok(rh_safetensors_open(path, &rig->reference));
	rig->config.router_aux_loss_coef = rig_double(rig, "coefficient", 0);
}

static inline void rig_start(struct rig *rig, enum rh_session_purpose purpose, const struct rh_workload *work)
{
	check_ok(rh_session_open(&rig->config, purpose, &rig->session));
	check_ok(rh_session_start(&rig->session, work));
}

static inline void rig_close(struct rig *rig)
{
	rh_session_close(&rig->session);
	rh_safetensors_close(rig->reference);
	while (rig->held > 0)
		free(rig->ints[--rig->held]);
}

/* A step in flight. */
struct rig_flight {
	struct rig_micro micro[RIG_MICRO_MAX];
	int64_t count, trained;
};

/* Forward and backward of micro-batches [first, first + count) begin. */
static inline void rig_begin(struct rig *rig, const struct rig_input *in, int64_t first, int64_t count, int64_t step,
                             struct rig_flight *flight)
{
	struct rh_micro_batch batch[RIG_MICRO_MAX];
	assert_true(count <= RIG_MICRO_MAX);
	flight->count = count;
	flight->trained = 0;
	for (int64_t m = 0; m < count; m++) {
		rig_micro_make(in, first + m, 0, &flight->micro[m]);
		batch[m] = flight->micro[m].batch;
		flight->trained += batch[m].shape.head_rows;
	}
	check_ok(rh_executor_begin(rig->session.executor, batch, count, step, 1.0f / (float)flight->trained));
}

/* The loss of the first step in flight, which is this one. */
static inline double rig_finish(struct rig *rig, const struct rig_flight *flight)
{
	double total = 0, balance = 0;
	check_ok(rh_executor_finish(rig->session.executor));
	for (int64_t m = 0; m < flight->count; m++) {
		double sum = 0;
		balance += flight->micro[m].load_balancing_loss;
		for (int64_t i = 0; i < flight->micro[m].batch.shape.head_rows; i++)
			sum += (double)flight->micro[m].loss[i];
		total += sum;
	}
	return total / (double)flight->trained + balance / (double)flight->count;
}

/* A step begun and finished: the store holds its gradients. */
static inline int rig_train(struct rh_executor *executor, const struct rh_micro_batch *batch, int64_t count, int64_t step, float loss_scale)
{
	int rc = rh_executor_begin(executor, batch, count, step, loss_scale);
	return rc ? rc : rh_executor_finish(executor);
}

/* Makes all gradients final, as an updater would; their norm. */
static inline double rig_norm(struct rh_session *session)
{
	for (int b = 0; b < session->model->blocks; b++)
		if (session->model->block[b].trainable)
			rh_optimizer_take(session->store, b);
	return rh_optimizer_taken_norm(session->store);
}

/* Both; the step's loss. */
static inline double rig_step(struct rig *rig, const struct rig_input *in, int64_t first, int64_t count, int64_t step)
{
	static struct rig_flight flight;
	rig_begin(rig, in, first, count, step, &flight);
	return rig_finish(rig, &flight);
}

/* Where element i of a file's tensor lies in the model's: files hold some matrices transposed. */
static inline int64_t rig_element(const struct rh_tensor *tensor, int64_t i)
{
	if (tensor->interleaved) {
		int64_t n = tensor->interleaved, wide = tensor->cols * n, row = i / wide, column = i % wide;
		return (column % n * (tensor->rows / n) + row) * tensor->cols + column / n;
	}
	if (tensor->groups.count) {
		int64_t width = tensor->rank == 1 ? 1 : tensor->cols, run;
		return rh_row_of_file(&tensor->groups, i / width, &run) * width + i % width;
	}
	if (!tensor->transposed)
		return i;
	int64_t of_one = tensor->rows / tensor->transposed, size = of_one * tensor->cols;
	return i / size * size + i % size % of_one * tensor->cols + i % size / of_one;
}

/* |a-b|_2 / |b|_2 of a stored gradient against a reference tensor; *size: |b|_2. */
static inline double rig_gradient_error(const struct rig *rig, int b, int t, const struct rh_safetensor *reference, double *size)
{
	const struct rh_tensor *tensor = &rig->session.model->block[b].tensor[t];
	const float *gradient = (const float *)rh_store_gradient(rig->session.store, b) + tensor->offset;
	double difference = 0, norm = 0;
	const char *expected = tensor_bytes(rig->reference, reference);
	assert_int_equal(reference->bytes, tensor->rows * tensor->cols * 4);
	for (int64_t i = 0; i < tensor->rows * tensor->cols; i++) {
		float value;
		memcpy(&value, expected + 4 * i, sizeof value);
		double other = (double)gradient[rig_element(tensor, i)] - (double)value;
		difference += other * other;
		norm += (double)value * (double)value;
	}
	*size = sqrt(norm);
	return sqrt(difference) / (*size > 0 ? *size : 1);
}

/* One optimizer update of everything trainable; the gradient norm before clipping. */
static inline double rig_update(struct rig *rig, double rate, int64_t step)
{
	const struct rh_config *config = &rig->config;
	struct rh_optimizer_settings settings = {config->adam_beta1, config->adam_beta2, config->adam_epsilon, config->weight_decay,
	                                         config->momentum};
	double norm = rig_norm(&rig->session), scale = rh_optimizer_clip(norm, config->max_grad_norm);
	for (int b = 0; b < rig->session.model->blocks; b++)
		if (rig->session.model->block[b].trainable)
			check_ok(rh_optimizer_update(rig->session.store, b,
			                             &(struct rh_update){settings, rate, scale, step + 1, config->loraplus_lr_ratio}));
	return norm;
}

/* All trained tensors, one after the other, in floats; the caller's. */
static inline float *rig_weights(const struct rh_session *session, int64_t *count)
{
	int64_t all, at = 0;
	rh_model_parameters(session->model, count, &all);
	float *weights = malloc((size_t)*count * sizeof *weights);
	assert_non_null(weights);
	for (int b = 0; b < session->model->blocks; b++)
		for (int t = 0; session->model->block[b].trainable && t < session->model->block[b].tensors; t++) {
			int64_t n = session->model->block[b].tensor[t].rows * session->model->block[b].tensor[t].cols;
			check_ok(rh_store_get(session->store, b, t, 0, n, weights + at));
			at += n;
		}
	assert_int_equal(at, *count);
	return weights;
}

/* Of all weights, as the store has them. */
static inline uint64_t rig_weights_hash(const struct rh_session *session)
{
	XXH3_state_t *state = XXH3_createState();
	XXH3_64bits_reset(state);
	for (int b = 0; b < session->model->blocks; b++)
		for (int t = 0; t < session->model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &session->model->block[b].tensor[t];
			size_t count = (size_t)(tensor->rows * tensor->cols);
			float *values = malloc(count * sizeof *values);
			check_ok(rh_store_get(session->store, b, t, 0, (int64_t)count, values));
			XXH3_64bits_update(state, values, count * sizeof *values);
			free(values);
		}
	uint64_t hash = XXH3_64bits_digest(state);
	XXH3_freeState(state);
	return hash;
}

#endif
