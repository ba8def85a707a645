#include "train/gradient_check.h"

#include "config/device_spec.h"
#include "core/alloc.h"
#include "core/float16.h"
#include "core/log.h"
#include "core/minmax.h"
#include "offload/optimizer.h"
#include "session/chunks.h"
#include "session/flights.h"
#include "session/mode.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rh_gradient_verdict_name(enum rh_gradient_verdict verdict)
{
	static const char *const names[] = {"equal", "close", "lost", "not finite", "differs"};
	return names[verdict];
}

/* Gradients of all trained blocks, as they lie in the store. */
struct gradients {
	void **block; /* (blocks) NULL: it is frozen */
	int blocks;
	enum rh_dtype dtype;
	double loss;
};

/* The data, and a session that stays while the others come and go: rows refer to its tokenizer and its model's configuration. */
struct checking {
	const struct rh_config *config;
	struct rh_session base;
	struct rh_training_data data;
	struct gradients own;
	struct rh_gradient_check *out;
};

static void gradients_free(struct gradients *gradients)
{
	for (int b = 0; gradients->block && b < gradients->blocks; b++)
		rh_free(gradients->block[b]);
	rh_free(gradients->block);
	*gradients = (struct gradients){0};
}

/* ---- the data ---- */

static int load_data(struct checking *checking)
{
	const struct rh_config *config = checking->config;
	struct rh_training_data *data = &checking->data;
	int rc = rh_session_open(config, RH_SESSION_TRAINS, &checking->base);
	if (!rc)
		rc = rh_session_check_length(&checking->base);
	if (!rc)
		rc = rh_session_load_tokenizer(&checking->base);
	if (rc)
		return rc;
	struct rh_objective objective = rh_session_objective(&checking->base);
	rc = rh_dataset_load_for(RH_DATASET_TRAIN, config, &objective, checking->base.tokenizer, &data->train);
	if (!rc)
		rh_dataset_report(&data->train);
	return rc ? rc : rh_training_data_arrange(config, &objective, checking->base.tokenizer, data);
}

/* ---- one step ---- */

static int copy_gradients(const struct rh_session *session, struct gradients *out)
{
	const struct rh_model *model = session->model;
	out->blocks = model->blocks;
	out->dtype = model->dtype;
	out->block = rh_alloc((size_t)model->blocks, sizeof *out->block);
	if (!out->block)
		return -ENOMEM;
	for (int b = 0; b < model->blocks; b++) {
		if (!model->block[b].trainable)
			continue;
		rh_optimizer_take(session->store, b); /* final, as an updater would have it */
		size_t bytes = (size_t)rh_dtype_bytes(model->dtype, model->block[b].elements);
		out->block[b] = rh_alloc(bytes, 1);
		if (!out->block[b])
			return -ENOMEM;
		memcpy(out->block[b], rh_store_gradient(session->store, b), bytes);
	}
	return 0;
}

/* The first step's forwards and backwards; nothing is updated. */
static int train_step(const struct checking *checking, struct rh_session *session, struct gradients *out)
{
	struct rh_flights flights = {0};
	int rc = rh_flights_reserve(&session->work, 1, &flights);
	int64_t count = rc ? rc : rh_flights_fill(&flights, session, &checking->data, 0);
	if (count < 0)
		rc = (int)count;
	if (!rc)
		rc = rh_executor_begin(session->executor, flights.micro, count, 0, 1.0f / (float)rh_flight_divisor(&flights, 0));
	if (!rc)
		rc = rh_executor_finish(session->executor);
	if (!rc) {
		out->loss = rh_flight_loss(&flights, 0);
		checking->out->tokens = rh_flight_of(&flights, 0)->tokens;
		rc = copy_gradients(session, out);
	}
	rh_flights_free(&flights);
	return rc;
}

static void describe(const struct rh_session *session, char way[160])
{
	const struct rh_stage_plan *plan = &session->plan.stages;
	char chunks[48] = "", nvme[48] = "";
	if (session->work.chunks > 1)
		snprintf(chunks, sizeof chunks, ", chunks of %lld tokens", (long long)session->work.chunk);
	if (session->plan.bytes.nvme)
		snprintf(nvme, sizeof nvme, ", %.1f MiB on NVMe", (double)session->plan.bytes.nvme / 1048576);
	snprintf(way, 160, "%.40s, %s, %d stage%s, rounds of %lld%s%s", session->config->device, session->config->schedule,
	         plan->forward_stages + plan->backward_stages, plan->forward_stages + plan->backward_stages == 1 ? "" : "s",
	         (long long)session->plan.executor.train_round, chunks, nvme);
}

/* chunk: as in rh_chunks_choose; 0: rows stay whole. */
static int run(struct checking *checking, int64_t chunk, struct rh_session *session, struct gradients *out, char way[160])
{
	struct rh_workload work;
	int rc = rh_training_data_workload(session, &checking->data, chunk, &work);
	if (!rc)
		rc = rh_session_start(session, &work);
	if (rc)
		return rc;
	describe(session, way);
	return train_step(checking, session, out);
}

/* Has the run lose what RH_DROP_GRADIENT names. */
static int drop_gradient(struct rh_session *session)
{
	const char *name = getenv("RH_DROP_GRADIENT");
	for (int b = 0; name && b < session->model->blocks; b++)
		for (int t = 0; session->model->block[b].trainable && t < session->model->block[b].tensors; t++)
			if (strstr(session->model->block[b].tensor[t].name, name)) {
				session->dropped_gradient = b + 1;
				return 0;
			}
	return name ? rh_fail(-EINVAL, "RH_DROP_GRADIENT: no trained tensor's name holds %.100s", name) : 0;
}

/* ---- the reference ---- */

/* One device of the run's kind, which holds all layers as one stage, with everything in memory. */
static int reference_config(const struct rh_config *config, char device[32], struct rh_config *out)
{
	struct rh_device_spec spec;
	int rc = rh_device_spec_parse(config->device, &spec);
	if (rc)
		return rc;
	if (spec.kind == RH_DEVICE_CUDA && !strncmp(config->device, "cuda", 4))
		snprintf(device, 32, "cuda:%d", spec.count ? spec.gpu[0] : 0);
	else
		snprintf(device, 32, "%.*s:1", (int)strcspn(config->device, ":"), config->device);
	*out = *config; /* its strings are borrowed */
	out->device = device;
	out->schedule = (char *)(uintptr_t) "roundpipe";
	out->optimizer_staleness = 0;
	out->round_micro_batches = 0;
	out->sequence_chunk = 0;
	out->forward_cuts = out->backward_cuts = NULL;
	out->forward_cut_count = out->backward_cut_count = 0;
	out->max_vram = 0;
	out->spill = 0;
	out->max_nvme = out->max_nvme_writes = 0;
	out->nvme_dirs = (struct rh_list){0};
	return 0;
}

static int64_t bytes_of(const struct gradients *gradients, const struct rh_model *model)
{
	int64_t bytes = 0;
	for (int b = 0; b < gradients->blocks; b++)
		bytes += gradients->block[b] ? rh_dtype_bytes(gradients->dtype, model->block[b].elements) : 0;
	return bytes;
}

/* ---- comparing ---- */

static double value_of(const struct gradients *gradients, int block, int64_t i)
{
	const void *from = gradients->block[block];
	return gradients->dtype == RH_F32 ? (double)((const float *)from)[i] : (double)rh_bf16_to_f32(((const uint16_t *)from)[i]);
}

static void compare(const struct gradients *own, const struct gradients *reference, int block, const struct rh_tensor *tensor,
                    struct rh_gradient_of *out)
{
	double difference = 0, norm = 0, other = 0;
	int is_equal = 1, is_finite = 1;
	for (int64_t i = tensor->offset; i < tensor->offset + out->elements; i++) {
		double a = value_of(own, block, i), b = value_of(reference, block, i);
		is_finite &= isfinite(a) && isfinite(b);
		is_equal &= a == b;
		difference += (a - b) * (a - b);
		norm += a * a;
		other += b * b;
	}
	out->norm = sqrt(norm);
	out->reference_norm = sqrt(other);
	out->difference = sqrt(difference) / (other > 0 ? out->reference_norm : 1);
	out->verdict = !is_finite               ? RH_GRADIENT_NOT_FINITE
	               : is_equal               ? RH_GRADIENT_EQUAL
	               : norm == 0 && other > 0 ? RH_GRADIENT_LOST
	                                        : RH_GRADIENT_DIFFERS;
}

static int compare_all(struct checking *checking, const struct gradients *reference, const struct rh_model *model)
{
	/* what is so small beside the largest is rounding alone */
	static const double noise = 1e-6;
	struct rh_gradient_check *out = checking->out;
	size_t room = 0;
	double largest = 0;
	int rc = 0;
	for (int b = 0; !rc && b < model->blocks; b++)
		for (int t = 0; !rc && model->block[b].trainable && t < model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &model->block[b].tensor[t];
			rc = rh_grow(&out->tensor, &room, (size_t)out->tensors + 1, sizeof *out->tensor);
			if (rc)
				break;
			struct rh_gradient_of *of = &out->tensor[out->tensors];
			*of = (struct rh_gradient_of){.name = rh_strdup(tensor->name), .elements = tensor->rows * tensor->cols};
			rc = of->name ? 0 : -ENOMEM;
			out->tensors += !rc;
			compare(&checking->own, reference, b, tensor, of);
			largest = fmax(largest, of->reference_norm);
		}
	for (int64_t i = 0; i < out->tensors; i++) {
		struct rh_gradient_of *of = &out->tensor[i];
		int is_noise = of->reference_norm <= noise * largest && of->norm <= noise * largest;
		if (of->verdict == RH_GRADIENT_DIFFERS && !out->is_bitwise && (of->difference <= out->tolerance || is_noise))
			of->verdict = RH_GRADIENT_CLOSE;
		out->bad += of->verdict > RH_GRADIENT_CLOSE;
	}
	return rc;
}

/* ---- both ---- */

static int check_ways(const struct rh_config *config)
{
	const struct rh_schedule *schedule = rh_schedule_find(config->schedule);
	if (schedule && schedule->update == RH_UPDATE_LOCAL)
		return rh_fail(-EINVAL,
		               "schedule: %s updates weights while gradients are made, which has no reference to compare with; add "
		               "--schedule roundpipe",
		               config->schedule);
	return 0;
}

/* Within rounding where rows are cut, or a GPU makes its logits in other pieces; else to the bit. */
static void promise(struct checking *checking, int64_t chunks, int64_t head_rows, const struct rh_session *reference)
{
	struct rh_gradient_check *out = checking->out;
	int other_pieces = head_rows != reference->model->head_rows && !reference->plan.bytes.host_devices;
	out->is_bitwise = chunks < 2 && !other_pieces;
	out->tolerance = checking->config->dtype == RH_F32 ? 1e-4 : 3e-2;
}

/* With a model of its first layers, where that is asked. RH_DOES_NOT_FIT: the reference does not. */
static int check_layers(struct checking *checking, const struct rh_config *config)
{
	struct rh_config resident;
	char device[32];
	struct gradients reference = {0};
	struct rh_session session = {0};
	int rc = reference_config(config, device, &resident);
	/* does it fit? before the run's own step, which may take long */
	if (!rc)
		rc = rh_session_open(&resident, RH_SESSION_TRAINS, &session);
	struct rh_workload work;
	if (!rc)
		rc = rh_training_data_workload(&session, &checking->data, 0, &work);
	if (!rc)
		rc = rh_session_plan(&session, &work, RH_STAGES_PACKED);
	rh_session_close(&session);
	if (!rc)
		rc = rh_session_open(config, RH_SESSION_TRAINS, &session);
	if (!rc)
		rc = drop_gradient(&session);
	if (!rc)
		rc = run(checking, RH_CHUNK_UNKNOWN, &session, &checking->own, checking->out->ways[0]);
	int64_t chunks = session.work.chunks, head_rows = rc ? 0 : session.model->head_rows;
	if (!rc && resident.max_ram)
		resident.max_ram = rh_max(resident.max_ram - bytes_of(&checking->own, session.model), 1);
	rh_session_close(&session);
	if (!rc)
		rc = rh_session_open(&resident, RH_SESSION_TRAINS, &session);
	if (!rc)
		rc = run(checking, 0, &session, &reference, checking->out->ways[1]);
	if (!rc) {
		checking->out->layers = session.model_config->num_hidden_layers;
		checking->out->loss = checking->own.loss;
		checking->out->reference_loss = reference.loss;
		promise(checking, chunks, head_rows, &session);
		rc = compare_all(checking, &reference, session.model);
	}
	rh_session_close(&session);
	gradients_free(&reference);
	return rc;
}

int rh_gradient_check(const struct rh_config *config, struct rh_gradient_check *out)
{
	struct checking checking = {.config = config, .out = out};
	struct rh_config fewer = *config; /* its strings are borrowed */
	*out = (struct rh_gradient_check){0};
	int rc = check_ways(config);
	if (!rc)
		rc = load_data(&checking);
	if (!rc) {
		if (!config->adapter_name_or_path && !checking.base.adapter.peft.parameters)
			fewer.init_lora_weights = RH_LORA_INIT_FALSE; /* else the gradients of A are zero in the first step anyway */
		out->all_layers = checking.base.model_config->num_hidden_layers;
		out->micro_batches = rh_sampler_micro_batches(checking.data.sampler, 0);
		rc = check_layers(&checking, &fewer);
	}
	for (int64_t layers = out->all_layers / 2; rc == RH_DOES_NOT_FIT && layers >= 1; layers /= 2) {
		gradients_free(&checking.own);
		rh_note("all layers do not fit at once; checking the first %lld", (long long)layers);
		fewer.first_layers = layers;
		rc = check_layers(&checking, &fewer);
	}
	gradients_free(&checking.own);
	rh_training_data_free(&checking.data);
	rh_session_close(&checking.base);
	return rc;
}

void rh_gradient_check_free(struct rh_gradient_check *check)
{
	for (int64_t i = 0; i < check->tensors; i++)
		rh_free(check->tensor[i].name);
	rh_free(check->tensor);
	*check = (struct rh_gradient_check){0};
}
