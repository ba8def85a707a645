#include "train/session.h"

#include "core/alloc.h"
#include "core/json.h"
#include "core/log.h"
#include "data/dataset.h"
#include "schedule/evaluate.h"
#include "train/balance.h"
#include "train/tensors.h"

#include <string.h>

enum { ALLOWANCE_BYTES = 256 << 20 }; /* program, libraries, thread stacks, tokenizer: printed, and part of max_ram */

static int open_files(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	if (config->model_name_or_path) {
		int rc = rh_source_open(config->model_name_or_path, &session->source);
		if (rc)
			return rc;
		session->model_config = rh_source_config(session->source);
		return 0;
	}
	int rc = rh_model_config_load(config->config_name, &session->own);
	if (rc)
		return rc;
	session->model_config = &session->own;
	return 0;
}

int rh_session_load_tokenizer(struct rh_session *session)
{
	int rc = session->source ? rh_source_tokenizer(session->source, &session->tokenizer)
	                         : rh_tokenizer_load(session->config->config_name, &session->tokenizer);
	if (!rc && rh_tokenizer_size(session->tokenizer) > session->model_config->vocab_size)
		rc = rh_fail(-EINVAL, "the tokenizer has %d entries, the model's embedding only %lld; they do not belong together",
		             rh_tokenizer_size(session->tokenizer), (long long)session->model_config->vocab_size);
	return rc;
}

int rh_session_check_length(const struct rh_session *session)
{
	int64_t known = session->model_config->max_position_embeddings;
	if (session->config->max_length > known)
		return rh_fail(-EINVAL, "max_length: %lld is above the %lld positions that the model knows; lower it",
		               (long long)session->config->max_length, (long long)known);
	return 0;
}

/* A model whose config.json cannot be written is found before the training, not after it. */
static int check_writable(const struct rh_session *session)
{
	json_t *json = NULL;
	int rc = rh_model_config_write(session->model_config, "float32", &json);
	json_decref(json);
	return rc;
}

static int count_devices(const struct rh_session *session)
{
	return session->machine ? session->machine->devices : rh_devices_count(session->config->device);
}

/* Bytes of memory of its own that a device has; 0: its memory is the host's. */
static int room_of_devices(const struct rh_session *session, int64_t *bytes)
{
	if (!session->machine)
		return rh_devices_room(session->config->device, bytes);
	*bytes = session->machine->hardware->device.memory - session->machine->hardware->device.reserved;
	return 0;
}

/* What a run may take where max_ram does not say: what is free, less 2 GiB for others. */
static int64_t free_ram(const struct rh_session *session)
{
	if (session->machine && !session->machine->ram_bytes)
		return INT64_MAX;
	return (session->machine ? session->machine->ram_bytes : rh_machine_free_ram()) - ((int64_t)2 << 30);
}

static int open_session(int trains, struct rh_session *out)
{
	const struct rh_config *config = out->config;
	out->lora = trains ? config->use_lora : config->adapter_name_or_path != NULL;
	int devices = count_devices(out); /* before anything is read for a device that is not there */
	int rc = devices < 0 ? devices : open_files(out);
	if (!rc && out->lora)
		rc = rh_adapter_resolve(config, &out->adapter);
	if (!rc)
		rc = rh_model_create(out->model_config, config->dtype, out->lora ? &out->adapter.lora : NULL, &out->model);
	if (!rc && config->fp8 && !out->machine) /* a simulated one has the rate or falls back on another */
		rc = rh_devices_check_fp8(config->device);
	if (!rc) {
		out->model->multiply = config->fp8                                    ? RH_MULTIPLY_F8
		                       : config->accumulation == RH_ACCUMULATION_FP16 ? RH_MULTIPLY_F16_SUMS
		                                                                      : RH_MULTIPLY_BF16;
		out->model->chunk = config->accumulation_chunk;
	}
	if (!rc && !trains)
		rh_model_freeze(out->model);
	else if (!rc)
		rc = out->lora ? rh_adapter_check_targets(config, out->model) : check_writable(out);
	if (rc)
		rh_session_close(out);
	return rc;
}

int rh_session_open(const struct rh_config *config, enum rh_session_purpose purpose, struct rh_session *out)
{
	*out = (struct rh_session){.config = config};
	return open_session(purpose == RH_SESSION_TRAINS, out);
}

int rh_session_simulate(const struct rh_config *config, const struct rh_session_machine *machine, struct rh_session *out)
{
	*out = (struct rh_session){.config = config, .machine = machine};
	return open_session(1, out);
}

/* All that the plan depends on but the device's cap. */
struct planning {
	struct rh_plan_request request;
	struct rh_executor_options options;
	struct rh_store_options store;
	int64_t device_room; /* bytes of memory of its own that a device has; 0: its memory is the host's */
	int host_devices;    /* devices whose memory is the host's */
	/* costs.layers: stages are chosen by them */
	struct rh_costs costs;
	struct rh_balance balance;
};

static int plan_once(struct rh_session *session, struct planning *planning, int64_t cap)
{
	rh_plan_free(&session->plan);
	planning->request.device_cap_bytes = cap;
	int rc = rh_plan_make(&planning->request, &session->plan);
	if (!rc && planning->costs.layers)
		rc = rh_balance_plan(&planning->balance, &session->plan, &session->balanced);
	if (rc)
		return rc;
	planning->options.plan = &session->plan;
	planning->options.page_bytes = rh_store_page_bytes(session->model->block, session->model->blocks, &planning->store);
	int64_t boundaries = rh_executor_host_bytes(&planning->options);
	if (boundaries < 0)
		return (int)boundaries;
	session->bytes.boundaries = boundaries;
	session->bytes.store = rh_store_bytes(session->model->block, session->model->blocks, &planning->store);
	session->bytes.nvme =
	        rh_store_nvme_bytes(session->model->block, session->model->blocks, &planning->store, &session->bytes.nvme_step);
	session->bytes.device = session->plan.device_bytes;
	session->bytes.total =
	        session->bytes.store + boundaries + planning->host_devices * session->bytes.device + session->bytes.data + ALLOWANCE_BYTES;
	return 0;
}

/* CPU devices' memory is host memory: where the user gave no max_vram, the devices share what max_ram leaves. */
static int plan_as_asked(struct rh_session *session, struct planning *planning)
{
	const struct rh_config *config = session->config;
	int64_t ram = config->max_ram ? config->max_ram : free_ram(session);
	int64_t room = planning->device_room, cap = config->max_vram ? config->max_vram : room ? room : ram;
	if (room && cap > room)
		return rh_fail(-ENOMEM, "max_vram: %.1f MiB, but only %.1f MiB are free for each device; lower it", (double)cap / 1048576,
		               (double)room / 1048576);
	session->bytes.total_budget = ram;
	for (int tries = 0; tries < 4; tries++) {
		session->bytes.device_budget = cap;
		int rc = plan_once(session, planning, cap > 0 ? cap : 0);
		if (rc == -ENOMEM && !config->max_vram)
			return rh_fail_in(rc, "max_ram: of %.1f MiB, %.1f are left for each device", (double)ram / 1048576,
			                  (double)(cap > 0 ? cap : 0) / 1048576);
		if (rc || session->bytes.total <= ram)
			return rc;
		if (config->max_vram || room)
			break;
		cap = (ram - (session->bytes.total - planning->host_devices * session->bytes.device)) / planning->host_devices;
		if (cap <= 0)
			break;
	}
	return rh_fail(-ENOMEM,
	               "max_ram: the run needs %.1f MiB of host memory (weights and optimizer %.1f, boundary activations %.1f, %d CPU "
	               "device%s of %.1f, data %.1f, program %d) and may have %.1f, %lld byte%s less; raise max_ram, lower max_vram, or "
	               "train fewer parameters",
	               (double)session->bytes.total / 1048576, (double)session->bytes.store / 1048576,
	               (double)session->bytes.boundaries / 1048576, planning->host_devices, planning->host_devices == 1 ? "" : "s",
	               (double)session->bytes.device / 1048576, (double)session->bytes.data / 1048576, ALLOWANCE_BYTES >> 20,
	               (double)ram / 1048576, (long long)(session->bytes.total - ram), session->bytes.total - ram == 1 ? "" : "s");
}

/* Spare boundary buffers are the first to go. */
static int plan_within_budget(struct rh_session *session, struct planning *planning)
{
	int rc = plan_as_asked(session, planning);
	if (rc != -ENOMEM || !planning->options.spare_boundaries)
		return rc;
	planning->options.spare_boundaries = 0;
	rh_error_clear();
	return plan_as_asked(session, planning);
}

/* What auto may choose, the first that is enough: state is touched once a step, so it goes first. */
static const int spill_choices[] = {0, RH_SPILL_OPTIMIZER, RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS,
                                    RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS | RH_SPILL_WEIGHTS};

/* With as little on NVMe as `spill` and max_ram ask for. */
static int plan_spilled(struct rh_session *session, struct planning *planning)
{
	const struct rh_config *config = session->config;
	if (!(config->spill & RH_SPILL_AUTO)) {
		session->spill = planning->store.spill = config->spill;
		return plan_within_budget(session, planning);
	}
	int rc = 0;
	for (size_t i = 0; i < sizeof spill_choices / sizeof *spill_choices; i++) {
		rh_error_clear();
		session->spill = planning->store.spill = spill_choices[i];
		rc = plan_within_budget(session, planning);
		if (rc != -ENOMEM)
			break;
	}
	return rc;
}

/* Bytes that the run will write to NVMe: what loading sets, and each step's. */
static int64_t planned_writes(const struct rh_session *session, int64_t steps)
{
	int64_t each = session->bytes.nvme_step, loads = session->config->resume_from_checkpoint ? 2 : 1;
	if (each && steps > (INT64_MAX / 2 - session->bytes.nvme) / each)
		return INT64_MAX;
	return each * steps + session->bytes.nvme * loads;
}

static int check_nvme(const struct rh_session *session, int64_t steps)
{
	const struct rh_config *config = session->config;
	int64_t needed = session->bytes.nvme, writes = planned_writes(session, steps);
	if (!needed)
		return 0;
	if (needed > config->max_nvme)
		return rh_fail(-ENOSPC, "max_nvme: the run needs %lld bytes of NVMe and may have %lld, %lld less; raise it, or spill less",
		               (long long)needed, (long long)config->max_nvme, (long long)(needed - config->max_nvme));
	if (config->max_nvme_writes && writes > config->max_nvme_writes)
		return rh_fail(
		        -EDQUOT,
		        "max_nvme_writes: the run will write %.1f MiB to NVMe (%.1f a step, %lld steps) and may write %.1f; raise it, "
		        "spill less, or train fewer steps",
		        (double)writes / 1048576, (double)session->bytes.nvme_step / 1048576, (long long)steps,
		        (double)config->max_nvme_writes / 1048576);
	if (session->machine)
		return 0;
	rh_note("NVMe: %.1f MiB in %zu director%s; each step writes %.1f MiB to it, the run %.1f", (double)needed / 1048576,
	        config->nvme_dirs.count, config->nvme_dirs.count == 1 ? "y" : "ies", (double)session->bytes.nvme_step / 1048576,
	        (double)writes / 1048576);
	return 0;
}

/* Before the plan, which asks it for its unit. */
static int open_space(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	if (!config->spill || session->machine)
		return 0;
	if (config->spill & RH_SPILL_ACTIVATIONS)
		return rh_fail(-EINVAL, "spill: activations on NVMe are not built yet; optimizer, masters, weights and auto work");
	if (config->nvme_dirs.count > RH_SPACE_DRIVES)
		return rh_fail(-EINVAL, "nvme_dirs: %zu directories; at most %d can be used", config->nvme_dirs.count, RH_SPACE_DRIVES);
	struct rh_space_options options = {
	        .dir = config->nvme_dirs.item, .dirs = (int)config->nvme_dirs.count, .most_written_bytes = config->max_nvme_writes};
	return rh_space_open(&options, &session->space);
}

/* The schedule that `schedule` names, NULL for RoundPipe, which is the default. */
static int find_schedule(const struct rh_config *config, const struct rh_schedule **out)
{
	const char *name = config->schedule;
	*out = name ? rh_schedule_find(name) : NULL;
	if (name && (!*out || (*out)->update == RH_UPDATE_STALE))
		return rh_fail(
		        -EINVAL,
		        "schedule: '%s' is not one that runs; choose roundpipe (with optimizer_staleness 1 for its asynchronous form), "
		        "gpipe, 1f1b, interleaved-1f1b, looped-bfs, mobius, zb-h1, zb-h2, zb-1p, zb-2p, zb-v, 1f1b-async or paci",
		        name);
	if (*out && !(*out)->stages_least)
		*out = NULL;
	return 0;
}

/* Stages that update themselves know nothing of each other. */
static int check_local(const struct rh_session *session, const struct rh_schedule *schedule)
{
	const struct rh_config *config = session->config;
	if (config->max_grad_norm > 0)
		return rh_fail(-EINVAL,
		               "max_grad_norm: under schedule %s each stage updates itself, and there is no norm of all gradients to clip "
		               "by; set max_grad_norm: 0",
		               schedule->name);
	if (config->optimizer_staleness)
		return rh_fail(-EINVAL, "optimizer_staleness: schedule %s has a staleness of its own; leave it 0", schedule->name);
	for (int b = 0; b < session->model->blocks; b++)
		if (session->model->block[b].uses > 1 && session->model->block[b].trainable)
			return rh_fail(
			        -EINVAL,
			        "schedule: under %s each stage updates itself, but this model's embedding is its head too, in another "
			        "stage; train an adapter, or choose another schedule",
			        schedule->name);
	return 0;
}

/* Other schedules have model stages that forward and backward share: those that the user cut, or even ones, two a device where the
 * schedule goes round and the layers suffice. */
static int cut_for(struct rh_session *session, const struct rh_schedule *schedule, struct planning *planning)
{
	const struct rh_config *config = session->config;
	struct rh_plan_request *request = &planning->request;
	int layers = session->model->layers, devices = request->devices;
	if (config->backward_cut_count >= 0)
		return rh_fail(-EINVAL, "backward_cuts: schedule %s cuts forward and backward alike; give forward_cuts alone",
		               schedule->name);
	if (config->forward_cut_count < 0) {
		int each = schedule->stages_most > 1 && layers >= 2 * devices ? 2 : schedule->stages_least;
		if (layers < each * devices)
			return rh_fail(-EINVAL, "device: schedule %s needs %s for each of %d devices, the model has %d; use fewer",
			               schedule->name, each > 1 ? "two layers" : "a layer", devices, layers);
		session->cuts = rh_alloc((size_t)(each * devices), sizeof *session->cuts);
		if (!session->cuts)
			return -ENOMEM;
		rh_plan_even_cuts(session->model, each * devices, session->cuts);
		request->forward_cuts = session->cuts;
		request->forward_cut_count = each * devices - 1;
	}
	int64_t stages = request->forward_cut_count + 1;
	if (stages % devices || stages / devices > schedule->stages_most || stages / devices < schedule->stages_least)
		return rh_fail(-EINVAL,
		               "forward_cuts: schedule %s puts the same number of stages, %d to %d, on each of %d devices; these are %lld",
		               schedule->name, schedule->stages_least, schedule->stages_most, devices, (long long)stages);
	/* the fused stage begins at the last cut, so forward stages end there */
	request->backward_cuts = request->forward_cuts;
	request->backward_cut_count = request->forward_cut_count;
	if (request->forward_cut_count)
		request->forward_cut_count--;
	return 0;
}

/* How much a schedule that splits backwards puts off: of each stage, top down, as the plan wants it. */
static int find_put_off(struct rh_session *session, const struct rh_schedule *schedule, int64_t micro_batches, struct planning *planning)
{
	const struct rh_plan_request *request = &planning->request;
	int stages = (int)request->backward_cut_count + 1;
	struct rh_stage *stage = rh_alloc((size_t)stages, sizeof *stage);
	struct rh_put_off *upward = rh_alloc((size_t)stages, sizeof *upward);
	struct rh_program program = {0};
	session->put_off = rh_alloc((size_t)stages, sizeof *session->put_off);
	struct rh_schedule_request asked = {
	        .devices = request->devices, .micro_batches = micro_batches, .steps = 1, .stage = stage, .stages = stages};
	int rc = stage && upward && session->put_off ? rh_schedule_make(schedule, &asked, &program) : -ENOMEM;
	if (!rc)
		rh_program_put_off(&program, stages, upward);
	for (int s = 0; !rc && s < stages; s++)
		session->put_off[s] = upward[stages - 1 - s];
	planning->request.put_off = session->put_off;
	rh_program_free(&program);
	rh_free(stage);
	rh_free(upward);
	return rc;
}

static int plan_schedule(struct rh_session *session, const struct rh_workload *work, struct planning *planning)
{
	const struct rh_schedule *schedule = planning->options.schedule;
	int rc = schedule->update == RH_UPDATE_LOCAL ? check_local(session, schedule) : 0;
	rc = rc ? rc : cut_for(session, schedule, planning);
	/* a device of one stage keeps its sums until they are whole */
	int loops = planning->request.backward_cut_count + 1 > planning->request.devices;
	planning->store.crosses_rounds = planning->request.crosses_rounds = loops && work->train_micro_batches > 1;
	planning->options.train_round = work->train_micro_batches;
	planning->options.window = session->window;
	if (!rc && schedule->splits_backward)
		rc = find_put_off(session, schedule, work->train_micro_batches, planning);
	return rc;
}

/* RoundPipe's stages on several devices, where the user has not cut them. */
static int weigh_layers(struct rh_session *session, const struct rh_workload *work, struct planning *planning)
{
	struct rh_plan_request *request = &planning->request;
	const struct rh_session_machine *machine = session->machine;
	struct rh_hardware hardware = {0};
	if (!request->trains || request->devices < 2 || planning->options.schedule || request->forward_cut_count >= 0 ||
	    request->backward_cut_count >= 0)
		return 0;
	int rc = machine ? 0 : rh_hardware_local(rh_machine_cores(), rh_machine_free_ram(), &hardware, &session->rates_assumed);
	if (rc)
		return rc;
	rc = rh_balance_costs(request, machine ? machine->hardware : &hardware, &planning->costs);
	rh_hardware_free(&hardware);
	planning->balance = (struct rh_balance){.request = request,
	                                        .costs = &planning->costs,
	                                        .micro_batches = work->train_micro_batches,
	                                        .steps = planning->store.published ? 3 : 1};
	return rc;
}

static int make_plan(struct rh_session *session, const struct rh_workload *work, struct planning *planning)
{
	const struct rh_config *config = session->config;
	int devices = count_devices(session);
	if (devices < 0)
		return devices;
	int64_t round = config->round_micro_batches;
	int trains = work->train_micro_batches > 0;
	*planning = (struct planning){0};
	session->bytes.data = work->data_bytes;
	planning->request = (struct rh_plan_request){.model = session->model,
	                                             .trains = trains,
	                                             .train = work->train,
	                                             .infer = work->infer,
	                                             .infer_logits = work->infer_logits,
	                                             .cache_rows = work->cache_rows,
	                                             .devices = devices,
	                                             .forward_cuts = config->forward_cuts,
	                                             .backward_cuts = config->backward_cuts,
	                                             .forward_cut_count = config->forward_cut_count,
	                                             .backward_cut_count = config->backward_cut_count};
	planning->options =
	        (struct rh_executor_options){.model = session->model,
	                                     .devices = devices,
	                                     .train_micro_batches = work->train_micro_batches,
	                                     .infer_micro_batches = work->infer_micro_batches,
	                                     .infer_round = rh_roundpipe_default_round(work->infer_micro_batches, devices),
	                                     .score_cols = work->infer_logits ? session->model_config->vocab_size : work->infer.choices,
	                                     .infer_logits = work->infer_logits,
	                                     .cache_rows = work->cache_rows,
	                                     .seed = config->seed};
	planning->options.train_round = round ? round : rh_roundpipe_default_round(work->train_micro_batches, devices);
	planning->store = (struct rh_store_options){.dtype = config->dtype,
	                                            .layout = config->state_layout,
	                                            .optim = config->optim,
	                                            .momentum = config->momentum != 0,
	                                            .space = session->space};
	int rc = room_of_devices(session, &planning->device_room);
	if (rc)
		return rc;
	planning->options.registers = planning->device_room > 0;
	/* half the cores come near all of the memory's bandwidth, and leave copies more of it than all would */
	planning->options.throttled_threads = planning->device_room > 0 ? (rh_machine_cores() + 1) / 2 : 0;
	planning->store.addresses_only = session->machine != NULL;
	session->bytes.host_devices = planning->host_devices = planning->device_room ? 0 : devices;
	planning->store.crosses_rounds = trains && planning->options.train_round < work->train_micro_batches;
	planning->request.train_round =
	        planning->options.train_round < work->train_micro_batches ? planning->options.train_round : work->train_micro_batches;
	planning->request.crosses_rounds = planning->store.crosses_rounds;
	planning->store.published = trains && config->optimizer_staleness > 0;
	/* With one more buffer a micro-batch of a round for each device none waits for another's (measured in virtual time: 8 devices, an
	 * 8B model: 67 s a step without, 38 with). */
	planning->options.spare_boundaries = trains && devices > 1 ? devices * planning->request.train_round : 0;
	if (trains)
		rc = find_schedule(config, &planning->options.schedule);
	session->schedule = planning->options.schedule;
	if (!rc && planning->options.schedule)
		rc = plan_schedule(session, work, planning);
	if (!rc)
		rc = weigh_layers(session, work, planning);
	if (!rc)
		rc = plan_spilled(session, planning);
	rh_costs_free(&planning->costs);
	return rc;
}

static int load_weights(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	int rc = rh_weights_load(session->source, config->seed, session->model, session->store);
	if (!rc && config->adapter_name_or_path)
		rc = rh_adapter_load(config->adapter_name_or_path, session->model, session->store);
	return rc ? rc : rh_store_settle(session->store);
}

static int open_devices(struct rh_session *session)
{
	const struct rh_session_machine *machine = session->machine;
	if (!machine)
		return rh_devices_open(session->config->device, session->plan.device_bytes, &session->devices);
	return rh_devices_simulate(machine->hardware, machine->devices, session->config->state_layout, session->plan.device_bytes,
	                           &session->devices);
}

static int create_updater(struct rh_session *session)
{
	struct rh_device *device = session->devices.device[0];
	struct rh_host_queue *queue = NULL;
	int rc = device->ops->host_queue ? device->ops->host_queue(device, &queue) : 0;
	return rc ? rc : rh_updater_create(session->store, queue, &session->updater);
}

int rh_session_start(struct rh_session *session, const struct rh_workload *work)
{
	struct planning planning;
	int rc = open_space(session);
	if (!rc)
		rc = make_plan(session, work, &planning);
	if (!rc)
		rc = check_nvme(session, work->train_steps);
	if (!rc)
		rc = rh_pool_create(session->machine ? 1 : rh_machine_cores(), &session->pool);
	if (!rc)
		rc = rh_store_create(session->model->block, session->model->blocks, &planning.store, session->pool, &session->store);
	if (!rc && session->space)
		rc = rh_space_reserve(session->space);
	if (!rc && !session->machine)
		rc = load_weights(session);
	if (!rc)
		rc = open_devices(session);
	if (rc)
		return rc;
	if (work->train_micro_batches)
		rc = create_updater(session);
	if (rc)
		return rc;
	planning.options.store = session->store;
	planning.options.updater = session->updater;
	planning.options.device = session->devices.device;
	return rh_executor_create(&planning.options, &session->executor);
}

void rh_session_close(struct rh_session *session)
{
	rh_updater_destroy(session->updater); /* first: it may listen to the executor's events */
	rh_space_close(session->space);       /* before the memory that its transfers may still be in */
	rh_executor_destroy(session->executor);
	rh_devices_close(&session->devices);
	rh_store_destroy(session->store);
	rh_pool_destroy(session->pool);
	rh_plan_free(&session->plan);
	rh_free(session->cuts);
	rh_free(session->put_off);
	rh_model_destroy(session->model);
	rh_adapter_free(&session->adapter);
	rh_tokenizer_destroy(session->tokenizer);
	rh_source_close(session->source);
	rh_model_config_free(&session->own);
	*session = (struct rh_session){0};
}

/* Backward stages end at the lowest layer that is trained: the embedding under LoRA never is. */
static void report_idle_cuts(const struct rh_session *session)
{
	int lowest = session->model->first_trained;
	for (int64_t i = 0; i < session->config->backward_cut_count; i++)
		if (session->config->backward_cuts[i] <= lowest)
			rh_note("backward_cuts: %lld has no effect, as nothing below layer %d is trained",
			        (long long)session->config->backward_cuts[i], lowest);
}

void rh_session_report(const struct rh_session *session)
{
	report_idle_cuts(session);
	const struct rh_plan *plan = &session->plan;
	int64_t trainable, all;
	rh_model_parameters(session->model, &trainable, &all);
	rh_note("model: %.1f M parameters, %.2f M trained (%.2f %%), %s", (double)all / 1e6, (double)trainable / 1e6,
	        all ? 100.0 * (double)trainable / (double)all : 0, session->config->dtype == RH_F32 ? "fp32" : "bf16");
	int64_t unfit = rh_model_unfit(session->model);
	if (unfit)
		rh_note("%s: the products of %lld linears stay in bf16 with fp32 sums: their lengths are no multiples of %d",
		        session->config->fp8 ? "fp8" : "accumulation: fp16", (long long)unfit, session->config->fp8 ? 16 : 8);
	int saving = 0;
	for (int i = 0; i < plan->backward_stages; i++)
		saving += plan->saved[i].bytes > 0;
	rh_note("plan: %s, %d forward and %d backward stages, %d of them without recompute; device %.1f MiB (weights %.1f, gradients %.1f, "
	        "activations %.1f)",
	        session->config->device, plan->forward_stages, plan->backward_stages, saving + 1, (double)plan->device_bytes / 1048576,
	        (double)plan->weight_bytes / 1048576, (double)(plan->gradient_bytes + plan->rounded_bytes) / 1048576,
	        (double)(plan->arena_bytes + plan->saved_bytes) / 1048576);
	if (session->balanced.step_s > 0)
		rh_note("stages: cut for %d devices by what layers take (%s); compute alone takes %.3g s a step, %.0f %% of it idle",
		        session->devices.count,
		        session->rates_assumed ? "rates assumed: doctor --save local measures them" : "profile local",
		        session->balanced.step_s, 100 * session->balanced.idle);
	rh_note("host: %.1f MiB (weights and optimizer %.1f, boundaries %.1f, devices %.1f, data %.1f, program %d)",
	        (double)session->bytes.total / 1048576, (double)session->bytes.store / 1048576, (double)session->bytes.boundaries / 1048576,
	        (double)(session->bytes.device * session->bytes.host_devices) / 1048576, (double)session->bytes.data / 1048576,
	        ALLOWANCE_BYTES >> 20);
}

struct rh_micro_batch rh_micro_of(const struct rh_batch *batch)
{
	struct rh_micro_batch micro = {.ids = batch->ids,
	                               .position = batch->position,
	                               .start_q = batch->start,
	                               .start_k = batch->start,
	                               .head_row = batch->head_row,
	                               .target = batch->target};
	micro.shape = (struct rh_micro_shape){
	        .tokens = batch->tokens, .documents = batch->documents, .longest = batch->longest, .head_rows = batch->trained};
	return micro;
}
