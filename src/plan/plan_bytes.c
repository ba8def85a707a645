/* Bytes of a plan by tier: the store's, the executor's and the devices', to the byte, and an allowance for the program. */
#include "plan/plan_internal.h"

#include "config/transport.h"
#include "core/hooks.h"
#include "core/minmax.h"
#include "data/dataset.h"
#include "observe/trainer_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Measured on CPU devices of two cores, and with one GPU on sixteen: driver 580 and cuBLASLt 13 took 584 MiB, of which 342 are the driver's
 * own mapping of /dev/nvidiactl and 74 pages of the library. */
static int64_t tokenizer_bytes(const struct rh_model *model)
{
	return model->config->vocab_size * RH_DATASET_ENTRY_BYTES;
}

int64_t rh_run_program_bytes(const struct rh_config *config, const struct rh_run_machine *machine, const struct rh_model *model)
{
	enum {
		DEVICE = 5 << 19,   /* threads and queues of each further CPU device: 1 to 2.4 MiB */
		THREAD = 1 << 20,   /* of each: its stack, scratch and part of the allocator, assumed */
		DRIVER = 640 << 20, /* a GPU's driver and cuBLASLt; assumed to serve several GPUs, too */
		WORKER = 17 << 16,  /* of each GPU: its queue of 1 MiB (cuda/device_queue.c), and the stack that it touches, assumed */
		LAYER = 12 << 10    /* names and books of a layer's tensors, and their header when they are written */
	};
	int64_t cores = machine->cores, devices = machine->devices,
	        library = config->mode == RH_MODE_LOCAL ? 0 : rh_transport_traits(config->link_transport).library_mib;
	return RH_DATASET_PROGRAM_BYTES + (library << 20) + (cores > 2 ? cores - 2 : 0) * THREAD +
	       (machine->device_room ? DRIVER + devices * WORKER : (devices - 1) * DEVICE) + tokenizer_bytes(model) + model->layers * LAYER;
}

/* Bytes written to NVMe before the first step: the weights as they are loaded, given adapters once more and, for a run that continues a
 * checkpoint, its weights, its masters where it has them apart, and its state. */
static int64_t loaded_bytes(const struct rh_run_request *request, const struct rh_store_nvme *nvme)
{
	const struct rh_config *config = request->config;
	int64_t whole = nvme->frozen + nvme->masters, bytes = whole;
	if (config->adapter_name_or_path)
		bytes += nvme->masters;
	if (config->resume_from_checkpoint)
		bytes += nvme->state + nvme->masters + (request->lora ? 0 : whole);
	return bytes;
}

/* 1: spare buffers alone exceed the host's memory, so the caller tries fewer. To find what else goes to NVMe would be wasted time, and long
 * for many micro-batches. */
static int spares_too_many(const struct planning *planning, const struct candidate *candidate)
{
	return planning->request->machine.device_room > 0 && planning->executor.spills_boundaries && planning->executor.devices > 1 &&
	       candidate->stages.backward_stages > 1 &&
	       rh_bytes_times(candidate->stages.boundary_bytes, candidate->spare) > candidate->bytes.total_budget;
}

/* Memory of the thread that writes checkpoints. With a GGUF base it reads the vocabulary once more and writes it as tokenizer.json: up
 * to 335 bytes an entry were seen. */
static int64_t checkpoint_bytes(const struct rh_run_request *request)
{
	enum { SAVED_ENTRY = 400 };
	const char *base = request->config->model_name_or_path;
	size_t length = base ? strlen(base) : 0;
	int is_gguf = length > 5 && !strcasecmp(base + length - 5, ".gguf");
	return RH_RUN_CHECKPOINT_BYTES + (is_gguf ? request->model->config->vocab_size * SAVED_ENTRY : 0);
}

/* Of trainer_state.json: what the whole run logs, also before a checkpoint that it goes on from. */
static int64_t history_bytes(const struct rh_run_request *request)
{
	const struct rh_config *config = request->config;
	int64_t steps = rh_max(request->work->run_steps, request->work->train_steps);
	int64_t lines = steps / rh_max(config->logging_steps, 1) * (config->eval_strategy == RH_WHEN_NO ? 1 : 2);
	return rh_min(lines, RH_HISTORY_MOST) * RH_HISTORY_ENTRY_BYTES;
}

/* Large models have tens of thousands of tensors, and candidates that spill alike have the same store. */
static const struct store_sizes *measure_store(struct planning *planning)
{
	const struct rh_model *model = planning->request->model;
	const struct rh_store_options *store = &planning->store;
	struct store_sizes *sizes = &planning->store_sizes;
	int same = sizes->is_known && sizes->spill == store->spill && sizes->frozen_share == store->frozen_share &&
	           sizes->crosses_rounds == store->crosses_rounds && sizes->stash == store->stash;
	if (!same)
		*sizes = (struct store_sizes){.is_known = 1,
		                              .spill = store->spill,
		                              .frozen_share = store->frozen_share,
		                              .crosses_rounds = store->crosses_rounds,
		                              .stash = store->stash,
		                              .bytes = rh_min(rh_store_bytes(model->block, model->blocks, store), RH_BYTES_MOST),
		                              .page_bytes = rh_store_page_bytes(model->block, model->blocks, store),
		                              .nvme = rh_store_nvme(model->block, model->blocks, store)};
	return sizes;
}

/* A frozen table goes up ahead of its step, and again in each round, unless it stays on a device; its rows go up once, as the step
 * begins. So that is worth it in several rounds, if they are a third of the table at most, and where devices hold less than three quarters
 * of all weights. */
static int spares_frozen(const struct planning *planning, const struct candidate *candidate, int64_t rows, int64_t all_rows)
{
	const struct rh_model *model = planning->request->model;
	int64_t all = 0;
	for (int l = 0; l < model->layers; l++)
		all += rh_stage_plan_layer_upload(model, l);
	return planning->executor.train_round < planning->executor.train_micro_batches && 3 * rows <= all_rows &&
	       4 * candidate->stages.weight_bytes < 3 * all && rh_schedule_has_planned_stages(planning->executor.schedule);
}

/* The most rows of the embedding's table that a step's tokens name, where these alone travel: of a trained table if they are three quarters
 * of it at most. 0: it travels whole, as tables do that two layers or boxes share, that are packed, or have others beside them in their
 * block; and where weights change within a step, or a frozen table lies on NVMe. */
static int64_t table_rows(const struct planning *planning, const struct candidate *candidate)
{
	const struct rh_run_request *request = planning->request;
	const struct rh_model *model = request->model;
	const struct rh_workload *work = request->work;
	const struct rh_block *table = &model->block[rh_model_table(model)];
	const char *asked = getenv(RH_HOOK_TABLE_ROWS);
	if (!work->train_micro_batches || request->order || rh_model_is_part(model) || table->tensors != 1 || table->uses != 1 ||
	    table->packed_bytes || model->layer[0].on_table.r || planning->executor.schedule->update == RH_UPDATE_LOCAL ||
	    (!table->trainable && candidate->choice.spill & RH_SPILL_WEIGHTS))
		return 0;
	int64_t all = table->tensor[0].rows, rows = rh_min(rh_bytes_times(work->train.tokens, work->train_micro_batches), all);
	int spares = table->trainable ? 4 * rows <= 3 * all : spares_frozen(planning, candidate, rows, all);
	return (asked ? *asked == '1' : spares) ? rows : 0;
}

static int count_bytes(struct planning *planning, struct candidate *candidate)
{
	const struct store_sizes *store = measure_store(planning);
	const struct rh_run_request *request = planning->request;
	const struct rh_model *model = request->model;
	struct rh_executor_options options = {.planned = planning->executor,
	                                      .model = model,
	                                      .plan = &candidate->stages,
	                                      .admission_limit = request->admission_limit,
	                                      .boxes = planning_boxes(planning),
	                                      .space = request->space,
	                                      .registers = request->machine.device_room > 0,
	                                      .page_bytes = store->page_bytes};
	struct rh_executor_bytes beside;
	struct rh_run_bytes *bytes = &candidate->bytes;
	if (spares_too_many(planning, candidate))
		return rh_fail(RH_DOES_NOT_FIT, "max_ram: spare boundary buffers alone are more");
	options.planned.infer_round = planning_infer_round(planning, &candidate->stages);
	options.planned.spare_boundaries = candidate->spare;
	options.planned.table_rows = candidate->table_rows;
	int rc = rh_executor_bytes(&options, &beside);
	if (rc)
		return rc;
	const struct rh_store_nvme nvme = store->nvme;
	bytes->boundaries = beside.host;
	bytes->boundaries_nvme = beside.nvme;
	bytes->store = store->bytes;
	const struct rh_workload *work = request->work;
	int64_t record = rh_space_round(request->space, work->nvme_record_bytes);
	bytes->nvme = nvme.frozen + nvme.masters + nvme.state + beside.nvme + work->nvme_records * record;
	bytes->nvme_frozen = nvme.frozen;
	bytes->nvme_step = nvme.masters + nvme.state + beside.nvme_step + work->nvme_step_records * record;
	bytes->nvme_loaded = loaded_bytes(request, &nvme);
	bytes->device = candidate->stages.device_bytes;
	bytes->data = planning->data_bytes;
	bytes->host_devices = request->machine.device_room ? 0 : request->machine.devices;
	bytes->program = rh_run_program_bytes(request->config, &request->machine, model) + beside.heap + history_bytes(request);
	bytes->checkpoints = request->work->train_micro_batches ? checkpoint_bytes(request) : 0;
	bytes->tokenizer = tokenizer_bytes(model);
	bytes->total = bytes->store + beside.host + rh_bytes_times(bytes->device, bytes->host_devices) + bytes->data + bytes->program +
	               bytes->checkpoints;
	/* reading the rows, before the store is reserved, may need more than the run itself: the excess counts as data */
	int64_t reading = bytes->data + bytes->program + planning->reading_bytes, beyond = rh_max(reading - bytes->total, 0);
	bytes->data += beyond;
	bytes->total += beyond;
	return 0;
}

/* Where host memory is too small for rows of the table on their way, the table travels whole. */
int planning_count_bytes(struct planning *planning, struct candidate *candidate)
{
	candidate->table_rows = table_rows(planning, candidate);
	int rc = count_bytes(planning, candidate);
	if (rc || !candidate->table_rows || candidate->bytes.total <= candidate->bytes.total_budget)
		return rc;
	candidate->table_rows = 0;
	return count_bytes(planning, candidate);
}

int64_t rh_run_plan_add_ring(struct rh_run_plan *plan, int64_t most_bytes)
{
	int64_t bytes = rh_max(rh_min(most_bytes, (plan->bytes.total_budget - plan->bytes.total) / 2), 0);
	plan->bytes.checkpoints += bytes;
	plan->bytes.total += bytes;
	return bytes;
}

/* A line for a person that says what the memory is for: its two or three largest parts. */
int planning_refuse_ram(const struct candidate *candidate)
{
	enum { PARTS = 5, SAID_MOST = 3 };
	char names[PARTS][32] = {"weights and optimizer", "boundary activations", "", "data", "program"}, parts[160];
	const struct rh_run_bytes *counted = &candidate->bytes;
	int64_t total = counted->total, ram = counted->total_budget,
	        bytes[PARTS] = {counted->store, counted->boundaries, counted->host_devices * counted->device, counted->data,
	                        counted->program};
	int large = total >= (int64_t)10 << 30, host_devices = counted->host_devices;
	double unit = large ? 1 << 30 : 1 << 20;
	snprintf(names[2], sizeof names[2], "%d CPU device%s", host_devices, host_devices == 1 ? "" : "s");
	*parts = 0;
	for (int said = 0; said < SAID_MOST; said++) {
		int most = 0;
		for (int i = 1; i < PARTS; i++)
			most = bytes[i] > bytes[most] ? i : most;
		if (bytes[most] < total / 20)
			break;
		size_t used = strlen(parts);
		snprintf(parts + used, sizeof parts - used, "%s%s %.1f", said ? ", " : "", names[most], (double)bytes[most] / unit);
		bytes[most] = 0;
	}
	char less[40] = ""; /* only where the two figures look alike */
	if (total - ram < (int64_t)(unit / 10))
		snprintf(less, sizeof less, ", %lld byte%s less", (long long)(total - ram), total - ram == 1 ? "" : "s");
	return rh_fail(RH_DOES_NOT_FIT,
	               "max_ram: the run needs %s%.1f %s of host memory (%s) and may have %.1f%s; raise max_ram, %sspill to NVMe, or train "
	               "fewer parameters",
	               host_devices && !counted->device ? "more than " : "", (double)total / unit, large ? "GiB" : "MiB", parts,
	               (double)ram / unit, less, host_devices ? "lower max_vram, " : "");
}
