#include "train/planning.h"

#include "core/alloc.h"
#include "core/hooks.h"
#include "core/log.h"
#include "core/minmax.h"
#include "device/sim/sim.h"
#include "partition/made.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of memory of its own that a device has; 0: its memory is the host's. */
static int room_of_devices(const struct rh_session *session, int64_t *bytes)
{
	if (!session->machine)
		return rh_devices_room(session->config->device, bytes);
	*bytes = session->machine->hardware->device.memory - session->machine->hardware->device.reserved;
	return 0;
}

static int grain_of_devices(const struct rh_session *session, struct rh_device_grain *grain)
{
	if (!session->machine)
		return rh_devices_grain(session->config->device, grain);
	*grain = rh_sim_grain(&session->machine->hardware->device);
	return 0;
}

/* What a run may take where max_ram does not say: what is free, less 2 GiB for others. */
static int64_t free_ram(const struct rh_session *session)
{
	if (session->machine && !session->machine->ram_bytes)
		return INT64_MAX;
	return (session->machine ? session->machine->ram_bytes : rh_machine_free_ram()) - ((int64_t)2 << 30);
}

/* max_ram, but no more than this process's control groups leave: above that the kernel kills. */
static int64_t allowed_ram(const struct rh_session *session)
{
	int64_t asked = session->config->max_ram, room = session->machine ? INT64_MAX : rh_machine_group_room();
	if (asked <= room)
		return asked;
	room += rh_machine_own_bytes(); /* a part of what is planned is there already: the tokenizer, the rows */
	if (asked <= room)
		return asked;
	rh_warn_once("max_ram: %.1f MiB, but this process's control group leaves %.1f: the run keeps to that (memory.max, docker's --memory)",
	             (double)asked / 1048576, (double)room / 1048576);
	return room;
}

/* What is allowed beside all that is reserved, but for the executor's part. Measured on CPU devices; what a GPU's driver takes of the host
 * has not been, nor what more than two cores do. */
static int64_t program_bytes(const struct rh_session *session)
{
	enum {
		PROGRAM = 29 << 19, /* program, libraries and one device's threads and queues: 9 to 14 MiB */
		DEVICE = 5 << 19,   /* threads and queues of another: 1 to 2.4 MiB */
		THREAD = 1 << 20,   /* its stack, scratch and part of the allocator, assumed */
		DRIVER = 192 << 20, /* of GPUs, assumed */
		ENTRY = 192,        /* of a vocabulary: up to 175 */
		LAYER = 12 << 10    /* names and books of its tensors, and their header where they are written */
	};
	int devices = session->bytes.host_devices;
	int64_t cores = session->machine ? session->machine->hardware->host.cores : rh_machine_cores();
	return PROGRAM + (cores > 2 ? cores - 2 : 0) * THREAD + (devices ? (int64_t)(devices - 1) * DEVICE : DRIVER) +
	       session->model_config->vocab_size * ENTRY + session->model->layers * LAYER;
}

/* The rows of a step as batches, and their losses: of two steps, where they may be joined. */
static int64_t batch_bytes(const struct rh_workload *work, int stale)
{
	const struct rh_micro_shape *shape = &work->train;
	return work->train_micro_batches * 4 * (2 * shape->tokens + shape->documents + 1 + (stale ? 4 : 3) * shape->head_rows);
}

/* Where devices have no room for as much at once as they want, less. */
static int plan_stages(struct rh_session *session, struct planning *planning)
{
	const struct rh_plan_request *request = &planning->request;
	if (planning->refused.cap_bytes == request->device_cap_bytes && planning->refused.round == request->train_round)
		return rh_fail_copy(RH_DOES_NOT_FIT, planning->refused.line);
	rh_model_cut(session->model, &planning->grain);
	int rc = rh_plan_make(request, &session->plan);
	while (rc == RH_DOES_NOT_FIT && rh_model_cut_finer(session->model)) {
		rh_error_clear();
		rc = rh_plan_make(request, &session->plan);
	}
	if (rc == RH_DOES_NOT_FIT) {
		planning->refused.cap_bytes = request->device_cap_bytes;
		planning->refused.round = request->train_round;
		snprintf(planning->refused.line, sizeof planning->refused.line, "%s", rh_error(rc));
	}
	return rc;
}

/* What is written to NVMe before the first step: weights as they come, adapters again where they are given, and by a run that goes on the
 * checkpoint's weights, its masters where it keeps them apart, and its state. */
static int64_t loaded_bytes(const struct rh_session *session, const struct rh_store_nvme *nvme)
{
	const struct rh_config *config = session->config;
	int64_t whole = nvme->frozen + nvme->masters, bytes = whole;
	if (config->adapter_name_or_path)
		bytes += nvme->masters;
	if (config->resume_from_checkpoint)
		bytes += nvme->state + nvme->masters + (session->lora ? 0 : whole);
	return bytes;
}

/* May devices make the weights of a step's last blocks? Where the host's cores are not the devices'. */
static int makes_weights(const struct planning *planning)
{
	const struct rh_store_options *store = &planning->store;
	const char *hook = getenv(RH_HOOK_MAKE_WEIGHTS);
	return planning->request.trains && rh_schedule_is_roundpipe(planning->options.schedule) && !store->published &&
	       store->dtype == RH_BF16 && store->optim == RH_OPTIM_ADAMW && store->layout == RH_LAYOUT_SPLIT &&
	       !(store->spill & (RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS)) && (hook ? *hook != '0' : planning->device_room > 0);
}

static int made_alike(const struct planning_made *a, const struct planning_made *b)
{
	return a->cap_bytes == b->cap_bytes && a->round == b->round && a->long_rounds == b->long_rounds &&
	       a->stages_most == b->stages_most && a->weights == b->weights && a->joined == b->joined;
}

void planning_keep(struct rh_session *session, struct planning *planning)
{
	rh_plan_free(&planning->kept.plan);
	planning->kept.made = planning->made;
	planning->kept.plan = session->plan;
	planning->kept.balanced = session->balanced;
	planning->kept.head_rows = session->model->head_rows;
	session->plan = (struct rh_plan){0};
	planning->made.cap_bytes = -1;
}

static void go_back(struct rh_session *session, struct planning *planning)
{
	session->plan = planning->kept.plan;
	session->balanced = planning->kept.balanced;
	planning->made = planning->kept.made;
	planning->kept.plan = (struct rh_plan){0};
	planning->kept.made.cap_bytes = -1;
	rh_model_cut(session->model, &planning->grain);
	while (session->model->head_rows > planning->kept.head_rows && rh_model_cut_finer(session->model))
		;
}

enum { STEPS_JOINED = 3 }; /* of the recurrence that chooses cuts */

static int choose_stages(struct rh_session *session, struct planning *planning, int64_t cap)
{
	const struct planning_made wanted = {cap,
	                                     planning->request.train_round,
	                                     planning->balance.long_rounds,
	                                     planning->balance.stages_most,
	                                     makes_weights(planning) && !session->is_recorded,
	                                     rh_executor_joins(&planning->options)};
	if (made_alike(&planning->made, &wanted))
		return 0;
	planning->made.cap_bytes = -1;
	rh_plan_free(&session->plan);
	planning->request.device_cap_bytes = cap;
	planning->balance.steps = wanted.joined ? STEPS_JOINED : 1;
	if (made_alike(&planning->kept.made, &wanted)) {
		go_back(session, planning);
		return 0;
	}
	int rc = plan_stages(session, planning);
	if (!rc && planning->balances)
		rc = rh_balance_plan(&planning->balance, &session->plan, &session->balanced);
	if (!rc && wanted.weights)
		rc = rh_made_plan(&session->plan, session->model, session->device_count, cap);
	if (!rc)
		planning->made = wanted;
	return rc;
}

/* Spare buffers alone are more than the host has, so that what else goes to NVMe beside them, which takes long to find of many
 * micro-batches, need not be known: there will be fewer. */
static int spares_too_many(const struct rh_session *session, const struct planning *planning)
{
	const struct rh_executor_options *options = &planning->options;
	return planning->device_room > 0 && options->spills_boundaries && options->devices > 1 && session->plan.backward_stages > 1 &&
	       rh_bytes_times(session->plan.boundary_bytes, options->spare_boundaries) > session->bytes.total_budget;
}

static int plan_once(struct rh_session *session, struct planning *planning, int64_t cap)
{
	int rc = choose_stages(session, planning, cap);
	if (!rc && spares_too_many(session, planning))
		rc = rh_fail(RH_DOES_NOT_FIT, "max_ram: spare boundary buffers alone are more");
	if (rc)
		return rc;
	planning->options.plan = &session->plan;
	planning->options.page_bytes = rh_store_page_bytes(session->model->block, session->model->blocks, &planning->store);
	struct rh_executor_bytes beside;
	rc = rh_executor_bytes(&planning->options, &beside);
	if (rc)
		return rc;
	session->bytes.boundaries = beside.host;
	session->bytes.boundaries_nvme = beside.nvme;
	session->bytes.store = rh_min(rh_store_bytes(session->model->block, session->model->blocks, &planning->store), RH_BYTES_MOST);
	struct rh_store_nvme nvme = rh_store_nvme(session->model->block, session->model->blocks, &planning->store);
	session->bytes.nvme = nvme.frozen + nvme.masters + nvme.state + beside.nvme;
	session->bytes.nvme_step = nvme.masters + nvme.state + beside.nvme_step;
	session->bytes.nvme_loaded = loaded_bytes(session, &nvme);
	session->bytes.device = session->plan.device_bytes;
	session->bytes.program = program_bytes(session) + beside.heap;
	session->bytes.total = session->bytes.store + beside.host + rh_bytes_times(session->bytes.device, session->bytes.host_devices) +
	                       session->bytes.data + session->bytes.program;
	return 0;
}

/* What the memory is for, in a line that a person reads: the two or three parts that count. */
static int refuse_ram(const struct rh_session *session, int64_t ram)
{
	enum { PARTS = 5, SAID_MOST = 3 };
	char names[PARTS][32] = {"weights and optimizer", "boundary activations", "", "data", "program"}, parts[160];
	int64_t total = session->bytes.total,
	        bytes[PARTS] = {session->bytes.store, session->bytes.boundaries, session->bytes.host_devices * session->bytes.device,
	                        session->bytes.data, session->bytes.program};
	int large = total >= (int64_t)10 << 30, host_devices = session->bytes.host_devices;
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
	               host_devices && !session->bytes.device ? "more than " : "", (double)total / unit, large ? "GiB" : "MiB", parts,
	               (double)ram / unit, less, host_devices ? "lower max_vram, " : "");
}

/* CPU devices' memory is host memory: where the user gave no max_vram, the devices share what max_ram leaves. */
static int plan_as_asked(struct rh_session *session, struct planning *planning)
{
	const struct rh_config *config = session->config;
	int64_t ram = config->max_ram ? allowed_ram(session) : free_ram(session);
	int64_t room = planning->device_room, cap = config->max_vram ? config->max_vram : room ? room : ram;
	if (room && cap > room)
		return rh_fail(RH_DOES_NOT_FIT, "max_vram: %.1f MiB, but only %.1f MiB are free for each device; lower it",
		               (double)cap / 1048576, (double)room / 1048576);
	session->bytes.total_budget = ram;
	planning->request.cap_key = config->max_vram ? "max_vram" : room ? NULL : "max_ram";
	for (int tries = 0; tries < 4; tries++) {
		session->bytes.device_budget = cap;
		int rc = plan_once(session, planning, cap > 0 ? cap : 0);
		if (rc == RH_DOES_NOT_FIT && (config->max_vram || room))
			return rh_fail_in(rc, config->max_vram ? "max_vram" : "device");
		if (rc == RH_DOES_NOT_FIT)
			return rh_fail_in(rc, "max_ram: of %.1f MiB, %.1f are left for each device", (double)ram / 1048576,
			                  (double)(cap > 0 ? cap : 0) / 1048576);
		if (rc || session->bytes.total <= ram)
			return rc;
		if (config->max_vram || room)
			break;
		int64_t beside = session->bytes.total - rh_bytes_times(session->bytes.device, session->bytes.host_devices);
		cap = (ram - beside) / session->bytes.host_devices;
		if (cap <= 0) { /* too much without devices already, which took all that they were let */
			session->bytes.device = 0;
			session->bytes.total = beside;
			break;
		}
	}
	return refuse_ram(session, ram);
}

/* Spare boundary buffers are the first to go: all at once, or, where each saves writing, by halves. */
int planning_within_budget(struct rh_session *session, struct planning *planning, int kinds)
{
	int spills = (kinds & RH_SPILL_ACTIVATIONS) != 0;
	session->spill = planning->store.spill = kinds;
	planning->options.spills_boundaries = spills;
	for (int64_t spare = spills ? planning->spare_spilled : planning->spare;; spare = spills ? spare / 2 : 0) {
		planning->options.spare_boundaries = spare;
		rh_error_clear();
		int rc = plan_as_asked(session, planning);
		if (rc != RH_DOES_NOT_FIT || !spare)
			return rc;
	}
}

/* What auto may choose, the first that is enough: state is touched once a step, so it goes first. */
static const int spill_choices[] = {0, RH_SPILL_OPTIMIZER, RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS,
                                    RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS | RH_SPILL_WEIGHTS,
                                    RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS | RH_SPILL_WEIGHTS | RH_SPILL_ACTIVATIONS};

/* With as little on NVMe as `spill` and max_ram ask for. */
static int plan_spilled(struct rh_session *session, struct planning *planning)
{
	const struct rh_config *config = session->config;
	if (!(config->spill & RH_SPILL_AUTO))
		return planning_within_budget(session, planning, config->spill);
	int rc = RH_DOES_NOT_FIT;
	for (size_t i = 0; rc == RH_DOES_NOT_FIT && i < sizeof spill_choices / sizeof *spill_choices; i++)
		rc = planning_within_budget(session, planning, spill_choices[i]);
	return rc;
}

int64_t planning_nvme_writes(const struct rh_session *session, int64_t steps)
{
	int64_t each = session->bytes.nvme_step;
	if (each && steps > (INT64_MAX / 2 - session->bytes.nvme_loaded) / each)
		return INT64_MAX;
	return each * steps + session->bytes.nvme_loaded;
}

int planning_check_nvme(const struct rh_session *session, int64_t steps)
{
	const struct rh_config *config = session->config;
	int64_t needed = session->bytes.nvme, writes = planning_nvme_writes(session, steps);
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

static double rate_of(double one_way, double both)
{
	double half = both / 2;
	return half > 0 && (one_way <= 0 || half < one_way) ? half : one_way;
}

/* What gradient sums take between rounds, where devices have memory of their own. */
static int weigh_sums(const struct rh_hardware *hardware, struct planning *planning)
{
	const struct rh_hardware_link *link = &hardware->link;
	struct rh_balance *balance = &planning->balance;
	int layers = planning->costs.layers,
	    each = planning->request.model->dtype != RH_F32 ? 6 : 4; /* bytes a parameter, of them 4 a sum */
	if (!planning->device_room)
		return 0;
	balance->up_bytes_per_s = rate_of(link->up_bytes_per_s, link->both_bytes_per_s);
	balance->down_bytes_per_s = rate_of(link->down_bytes_per_s, link->both_bytes_per_s);
	balance->sum_s = rh_alloc((size_t)layers, sizeof *balance->sum_s);
	if (!balance->sum_s)
		return -ENOMEM;
	for (int l = 0; l < layers && balance->up_bytes_per_s > 0; l++)
		balance->sum_s[l] = 4 * (double)planning->costs.layer[l].gradient_bytes / each / balance->up_bytes_per_s;
	return 0;
}

/* RoundPipe's stages on several devices, where the user has not cut them; and its rounds. */
static int weigh_layers(struct rh_session *session, const struct rh_workload *work, struct planning *planning)
{
	struct rh_plan_request *request = &planning->request;
	const struct rh_session_machine *machine = session->machine;
	struct rh_hardware hardware = {0};
	if (!request->trains || !rh_schedule_is_roundpipe(planning->options.schedule) || (request->devices < 2 && !planning->device_room))
		return 0;
	int rc = machine ? 0 : rh_hardware_local(rh_machine_cores(), rh_machine_free_ram(), &hardware, &session->rates_assumed);
	if (rc)
		return rc;
	const struct rh_hardware *is = machine ? machine->hardware : &hardware;
	planning->balances = request->devices > 1 && request->forward_cut_count < 0 && request->backward_cut_count < 0;
	planning->balance =
	        (struct rh_balance){.request = request, .costs = &planning->costs, .micro_batches = work->train_micro_batches, .steps = 1};
	rc = rh_balance_costs(request, is, &planning->costs);
	rc = rc ? rc : weigh_sums(is, planning);
	rh_hardware_free(&hardware);
	return rc;
}

void planning_set_round(struct planning *planning, int64_t round)
{
	struct rh_plan_request *request = &planning->request;
	int64_t count = planning->options.train_micro_batches;
	planning->options.train_round = round;
	request->train_round = round < count ? round : count;
	request->crosses_rounds = planning->store.crosses_rounds = round < count;
	/* With one more buffer a micro-batch of a round for each device none waits for another's (measured in virtual time: 8 devices, an
	 * 8B model: 67 s a step without, 38 with). And to NVMe what the next slot reads need not go. */
	planning->spare_spilled = request->devices * request->train_round;
	planning->spare = request->devices > 1 ? planning->spare_spilled : 0;
}

/* All that does not depend on the schedule. */
static int describe(struct rh_session *session, const struct rh_workload *work, struct planning *out)
{
	const struct rh_config *config = session->config;
	int trains = work->train_micro_batches > 0, devices = session->device_count;
	*out = (struct planning){.made.cap_bytes = -1, .kept.made.cap_bytes = -1, .refused.cap_bytes = -1};
	int rc = room_of_devices(session, &out->device_room);
	rc = rc ? rc : grain_of_devices(session, &out->grain);
	if (rc)
		return rc;
	rh_model_cut(session->model, &out->grain);
	session->bytes.data = work->data_bytes + batch_bytes(work, config->optimizer_staleness > 0);
	session->bytes.host_devices = out->device_room ? 0 : devices;
	out->request = (struct rh_plan_request){.model = session->model,
	                                        .trains = trains,
	                                        .train = work->train,
	                                        .infer = work->infer,
	                                        .infer_logits = work->infer_logits,
	                                        .cache_rows = work->cache_rows,
	                                        .found = &out->found,
	                                        .devices = devices,
	                                        .forward_cuts = config->forward_cuts,
	                                        .backward_cuts = config->backward_cuts,
	                                        .forward_cut_count = config->forward_cut_count,
	                                        .backward_cut_count = config->backward_cut_count};
	out->options = (struct rh_executor_options){
	        .model = session->model,
	        .devices = devices,
	        .registers = out->device_room > 0,
	        /* half the cores come near all of the memory's bandwidth, and leave copies more of it than all would */
	        .throttled_threads = out->device_room > 0 ? (rh_machine_cores() + 1) / 2 : 0,
	        .train_micro_batches = work->train_micro_batches,
	        .infer_micro_batches = work->infer_micro_batches,
	        .infer_round = rh_roundpipe_default_round(work->infer_micro_batches, devices),
	        .score_cols = work->infer_logits ? session->model_config->vocab_size : work->infer.choices,
	        .infer_logits = work->infer_logits,
	        .cache_rows = work->cache_rows,
	        .space = session->space,
	        .stale = trains && config->optimizer_staleness > 0,
	        .seed = config->seed};
	out->store = (struct rh_store_options){.dtype = config->dtype,
	                                       .layout = config->state_layout,
	                                       .optim = config->optim,
	                                       .momentum = config->momentum != 0,
	                                       .published = out->options.stale,
	                                       .addresses_only = session->machine != NULL,
	                                       .space = session->space};
	planning_set_round(out, config->round_micro_batches ? config->round_micro_batches
	                                                    : rh_roundpipe_default_round(work->train_micro_batches, devices));
	return 0;
}

int planning_make(struct rh_session *session, const struct rh_workload *work, enum rh_session_stages stages, struct planning *out)
{
	int rc = describe(session, work, out);
	if (!rc && work->train_micro_batches)
		rc = planning_schedule(session, work, out);
	if (!rc && stages != RH_STAGES_PACKED)
		rc = weigh_layers(session, work, out);
	if (!rc && stages == RH_STAGES_CHOSEN)
		rc = planning_rounds(session, out);
	if (!rc)
		rc = plan_spilled(session, out);
	else if (rc > 0)
		rc = 0;
	session->train_round = rh_min(out->options.train_round, out->options.train_micro_batches);
	rh_costs_free(&out->costs);
	rh_free(out->balance.sum_s);
	out->balance.sum_s = NULL;
	rh_plan_free(&out->kept.plan);
	rh_plan_found_free(&out->found);
	out->request.found = NULL;
	return rc;
}

int rh_session_plan(struct rh_session *session, const struct rh_workload *work, enum rh_session_stages stages)
{
	struct planning planning;
	int rc = planning_make(session, work, stages, &planning);
	return rc ? rc : planning_check_nvme(session, work->train_steps);
}
