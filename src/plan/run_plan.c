#include "plan/plan_internal.h"

#include "core/alloc.h"
#include "core/hooks.h"
#include "core/minmax.h"
#include "core/philox.h"
#include "partition/rounds.h"
#include "schedule/schedule.h"

#include <stdlib.h>

enum { STEPS_JOINED = 3 }; /* of the recurrence that chooses cuts */

/* Bytes of a step's rows as batches, and of their losses: of two steps' losses if steps may be joined; those of a judged row in chunks once
 * more, together. */
static int64_t batch_bytes(const struct rh_workload *work, int stale)
{
	const struct rh_micro_shape *shape = &work->train;
	int64_t judged = shape->judged * (RH_SPANS + 1) * (stale ? 3 : 2); /* as batches, and until the results are there */
	int64_t row = work->chunks > 1 && shape->judged ? work->row.head_rows * 4 : 0;
	return row +
	       work->train_micro_batches * 4 * (2 * shape->tokens + shape->documents + 1 + (stale ? 4 : 3) * shape->head_rows + judged);
}

/* Memory of the messages between boxes, beside activations and gradients. A box keeps micro-batches from their arrival until their step
 * is done and the box above has them; it keeps losses until the box below has them; evaluations likewise. Without a flush data go ahead
 * of their step and results pass later (rh_dispatch_ahead); a stretch's first data go together. */
static int64_t stretch_bytes(const struct rh_run_request *request, int64_t data, int64_t losses)
{
	const struct rh_config *config = request->config;
	int64_t unit = config->round_micro_batches ? config->round_micro_batches : request->machine.devices;
	struct rh_boxes_ahead ahead = rh_dispatch_ahead(request->admission_limit ? request->admission_limit[0] : config->boxes,
	                                                rh_max(rh_round_count(request->work->train_micro_batches, unit), 1));
	int has_both = config->box > 1 && config->box < config->boxes;
	int64_t kept = config->box == 1 ? 2 * ahead.data + 1 : ahead.data + 1;
	return (kept + 2 * ahead.data) * data + (ahead.shares + (1 + has_both) * (ahead.results + 1)) * losses;
}

static int64_t message_bytes(const struct rh_run_request *request)
{
	enum { LINK = 1 << 20 }; /* a link's thread's stack, and what TLS takes, assumed */
	const struct rh_config *config = request->config;
	const struct rh_workload *work = request->work;
	const struct rh_micro_shape *infer = &work->infer;
	if (!request->order)
		return 0;
	int64_t links = (config->box > 1) + (config->box < config->boxes), losses = work->train_micro_batches * 4 * work->train.head_rows,
	        data = batch_bytes(work, 0) - losses, judged = config->preference.answers ? infer->documents * (RH_SPANS + 1) : 0,
	        evaluated = work->infer_micro_batches * 4 * (2 * infer->tokens + infer->documents + 1 + 2 * infer->head_rows + judged);
	/* of flushed steps box k of N has the data of N - k + 2 */
	int64_t ahead = request->order->orders_boxes ? config->boxes - config->box + 1 : 0;
	int64_t steps =
	        request->order->update == RH_UPDATE_LOCAL ? stretch_bytes(request, data, losses) : (links + ahead) * data + 2 * losses;
	return links * (LINK + evaluated) + data + 2 * evaluated + steps;
}

void candidate_free(struct candidate *candidate)
{
	rh_stage_plan_free(&candidate->stages);
	*candidate = (struct candidate){.cap_bytes = -1};
}

static int plan_stages(const struct planning *planning, const struct rh_stage_plan_request *request, enum cutter cutter,
                       struct rh_stage_plan *out)
{
	int by_time = cutter == CUT_FOR_PERIOD || cutter == CUT_FOR_STEP;
	return by_time ? planning_cut_devices(planning, request, cutter, out) : rh_stage_plan_make(request, out);
}

/* Packs stages as full as memory allows, with fewer rows of logits computed at once if devices lack room for all, unless a smaller fused
 * stage is tried next. */
static int pack_stages(struct planning *planning, struct rh_stage_plan_request *request, enum cutter cutter, struct rh_stage_plan *out)
{
	struct rh_model *model = planning->request->model;
	rh_model_cut(model, &planning->request->machine.grain);
	int rc = plan_stages(planning, request, cutter, out);
	while (rc == RH_DOES_NOT_FIT && cutter != CUT_BELOW_FUSED && rh_model_cut_finer(model)) {
		rh_error_clear();
		rc = plan_stages(planning, request, cutter, out);
	}
	return rc;
}

/* Cuts stages for a device of so many bytes. The candidate's stay if nothing that they follow from has changed. */
static int make_stages(struct planning *planning, int64_t cap, struct candidate *candidate)
{
	struct rh_stage_plan_request request = planning->stages;
	struct rh_balance balance = planning->balance;
	int joined = rh_executor_joins(&planning->executor, planning->request->model),
	    by_memory = candidate->choice.cutter == CUT_BY_MEMORY || candidate->choice.cutter == CUT_SMALL;
	if (candidate->cap_bytes == cap && candidate->joined == joined)
		return 0;
	rh_stage_plan_free(&candidate->stages);
	candidate->cap_bytes = -1;
	candidate->balanced = (struct rh_balanced){0};
	request.device_cap_bytes = rh_min(cap, candidate->choice.most_bytes ? candidate->choice.most_bytes : cap);
	request.small_stages = candidate->choice.cutter == CUT_SMALL;
	request.plain = candidate->choice.plain;
	request.stages_most = by_memory ? candidate->choice.stages_most : 0;
	int rc = 0;
	if (candidate->choice.cutter == CUT_BELOW_FUSED)
		planning_cut_saves(planning, &candidate->choice, &request);
	else if (candidate->choice.saves)
		rc = planning_share_saves(planning, &candidate->choice, &request, &balance);
	if (!rc)
		rc = pack_stages(planning, &request, candidate->choice.cutter, &candidate->stages);
	if (rc) {
		candidate->no_stages_fit = rc == RH_DOES_NOT_FIT;
		return rc;
	}
	balance.request = &request;
	balance.long_rounds = candidate->choice.cutter == CUT_FOR_LONG_ROUNDS;
	balance.stages_most = candidate->choice.stages_most;
	balance.steps = joined ? STEPS_JOINED : 1;
	if (planning->cuts_by_time && !by_memory)
		rc = rh_balance_plan(&balance, &candidate->stages, &candidate->balanced);
	if (rc)
		return rc;
	candidate->cap_bytes = cap;
	candidate->joined = joined;
	candidate->head_rows = planning->request->model->head_rows;
	return 0;
}

/* Cuts stages for devices of so many bytes, and counts the plan's bytes. */
static int fit_cap(struct planning *planning, int64_t cap, struct candidate *candidate)
{
	int rc = make_stages(planning, cap, candidate);
	candidate->bytes.device_budget = cap;
	candidate->bytes.total_budget = planning->request->machine.ram_bytes;
	return rc ? rc : planning_count_bytes(planning, candidate);
}

/* For devices with memory of their own, or for CPU devices if max_vram gives their share of the host's. */
static int fit_given_cap(struct planning *planning, int64_t cap, struct candidate *candidate)
{
	int rc = fit_cap(planning, cap, candidate);
	if (rc == RH_DOES_NOT_FIT)
		return rh_fail_in(rc, planning->request->config->max_vram ? "max_vram" : "device");
	return rc || candidate->bytes.total <= candidate->bytes.total_budget ? rc : planning_refuse_ram(candidate);
}

/* CPU devices share what the rest of the plan leaves of max_ram. That rest depends on the stages, and the stages on the cap, so this
 * searches from above for the largest cap that is a fixed point. Each try lowers the cap, because the devices of a plan that is too large
 * take more than it leaves. No cap that fits is skipped: a smaller cap makes more stages, hence more boundaries beside them. */
static int fit_shared_cap(struct planning *planning, struct candidate *candidate)
{
	int64_t ram = planning->request->machine.ram_bytes, cap = ram, beside = 0;
	struct rh_run_bytes *bytes = &candidate->bytes;
	do {
		int rc = fit_cap(planning, rh_max(cap, 0), candidate);
		if (rc == RH_DOES_NOT_FIT) {
			candidate->no_stages_fit &= cap == ram; /* a smaller cap may grow once more of the rest is on NVMe */
			return rh_fail_in(rc, "max_ram: of %.1f MiB, %.1f are left for each device", (double)ram / 1048576,
			                  (double)cap / 1048576);
		}
		if (rc || bytes->total <= ram)
			return rc;
		beside = bytes->total - rh_bytes_times(bytes->device, bytes->host_devices);
		cap = (ram - beside) / bytes->host_devices;
		RH_ASSERT(cap < bytes->device && bytes->device <= bytes->device_budget);
	} while (cap > 0);
	bytes->device = 0; /* the rest alone exceeds max_ram */
	bytes->total = beside;
	return planning_refuse_ram(candidate);
}

static int fit_caps(struct planning *planning, struct candidate *candidate)
{
	int64_t given = planning->request->config->max_vram;
	given = given ? given : planning->request->machine.device_room;
	candidate->no_stages_fit = 0;
	return given ? fit_given_cap(planning, given, candidate) : fit_shared_cap(planning, candidate);
}

void planning_apply(struct planning *planning, const struct choice *choice)
{
	struct rh_stage_plan_request *stages = &planning->stages;
	int64_t count = planning->executor.train_micro_batches, chunks = rh_max(planning->executor.chunks, 1);
	int64_t round = rh_round_count(rh_min(choice->round, count), chunks) * chunks; /* texts in chunks stay together */
	int has_rounds = rh_schedule_has_rounds(planning->executor.schedule);
	planning->executor.train_round = has_rounds ? rh_max(round, choice->round) : count;
	stages->train_round = planning->boxes.unit ? planning->boxes.unit : round;
	if (has_rounds)
		stages->crosses_rounds = planning->store.crosses_rounds = round < count;
	planning->store.spill = choice->spill;
	planning->store.frozen_share = choice->frozen_share ? choice->frozen_share : planning->frozen_most;
	planning->executor.spills_boundaries = (choice->spill & RH_SPILL_ACTIVATIONS) != 0;
}

/* Gives up spare boundary buffers first: all at once, or, where each saves writing to NVMe, by halves. With one for each micro-batch of a
 * round and each device, no device waits for another's buffer (in virtual time, 8 devices and an 8B model: 67 s a step without, 38 with),
 * and what the next slot reads need not go to NVMe. */
int planning_fit(struct planning *planning, const struct choice *choice, struct candidate *out)
{
	planning_apply(planning, choice);
	int spills = planning->executor.spills_boundaries, devices = planning->stages.devices;
	int64_t spare = spills || devices > 1 || planning->boxes.boxes ? devices * planning->stages.train_round : 0;
	out->choice = *choice;
	for (;; spare = spills ? spare / 2 : 0) {
		out->spare = spare;
		rh_error_clear();
		int rc = fit_caps(planning, out);
		planning->lacks_ram |= rc == RH_DOES_NOT_FIT && !out->no_stages_fit;
		if (!rc)
			return planning_spill_less(planning, out);
		if (rc != RH_DOES_NOT_FIT || !spare || out->no_stages_fit)
			return rc;
	}
}

/* Where stages that are cut by time need more than the host's memory: stages as large as devices hold have the fewest boundaries there. */
static int fit_by_any_cuts(struct planning *planning, const struct choice *choice, struct candidate *out)
{
	int rc = planning_fit(planning, choice, out);
	if (rc != RH_DOES_NOT_FIT || !planning->cuts_by_time || out->no_stages_fit)
		return rc;
	struct choice packed = *choice;
	packed.cutter = CUT_BY_MEMORY;
	candidate_free(out);
	rc = planning_fit(planning, &packed, out);
	out->cap_bytes = -1; /* another choice's stages are cut by time */
	return rc;
}

/* Where a room for plain matrices leaves devices so little that there are too many stages, hence boundaries, for the host's memory: each
 * product has its own made. */
static int fit_in_host(struct planning *planning, struct choice choice, struct candidate *out)
{
	int rc = fit_by_any_cuts(planning, &choice, out);
	if (rc != RH_DOES_NOT_FIT || out->no_stages_fit || !rh_model_makes_plain(planning->request->model))
		return rc;
	choice.plain = RH_PLAIN_BY_PRODUCT;
	candidate_free(out);
	rc = fit_by_any_cuts(planning, &choice, out);
	out->cap_bytes = -1; /* another choice's stages have a room */
	return rc;
}

static double rate_of(double one_way, double both)
{
	double half = both / 2;
	return half > 0 && (one_way <= 0 || half < one_way) ? half : one_way;
}

/* Finds the seconds that gradient sums take between rounds, for devices with memory of their own. */
static int weigh_sums(struct planning *planning)
{
	const struct rh_hardware_link *link = &planning->request->machine.hardware->link;
	struct rh_balance *balance = &planning->balance;
	int layers = planning->costs.layers,
	    each = planning->stages.model->dtype != RH_F32 ? 6 : 4; /* bytes a parameter, of them 4 a sum */
	if (!planning->request->machine.device_room)
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

/* Measures layers and links. By these RoundPipe's rounds are chosen and, with several devices and no cuts of the user's, stages cut. */
static int weigh_layers(struct planning *planning)
{
	const struct rh_stage_plan_request *stages = &planning->stages;
	const struct rh_run_machine *machine = &planning->request->machine;
	if (!stages->trains || !machine->hardware || (stages->devices < 2 && !machine->device_room))
		return 0;
	if (!rh_schedule_has_planned_stages(planning->executor.schedule)) {
		planning->cuts_devices = planning->cuts && stages->devices > 1 && stages->model->layers <= RH_PARTITION_LAYERS_MOST;
		return planning->cuts_devices ? rh_balance_costs(stages, machine->hardware, &planning->costs) : 0;
	}
	planning->cuts_by_time = /* a chunk's times differ, and its backward stages have a mixer each */
	        stages->devices > 1 && !stages->train.chunks && stages->forward_cut_count < 0 && stages->backward_cut_count < 0 &&
	        !stages->model->tap;
	planning->balance = (struct rh_balance){.hardware = machine->hardware,
	                                        .costs = &planning->costs,
	                                        .micro_batches = planning->executor.train_micro_batches,
	                                        .steps = 1};
	int rc = rh_balance_costs(stages, machine->hardware, &planning->costs);
	return rc ? rc : weigh_sums(planning);
}

void planning_describe(const struct rh_run_request *request, struct planning *out)
{
	const struct rh_config *config = request->config;
	const struct rh_workload *work = request->work;
	int trains = work->train_micro_batches > 0, devices = request->machine.devices;
	*out = (struct planning){.request = request};
	out->data_bytes =
	        work->data_bytes + batch_bytes(work, config->optimizer_staleness > 0) + message_bytes(request) + request->linked_bytes;
	out->reading_bytes = work->reading_bytes;
	out->spill = config->spill & ~RH_SPILL_AUTO;
	out->frozen_most = config->frozen_share;
	out->stages = (struct rh_stage_plan_request){.model = request->model,
	                                             .trains = trains,
	                                             .train = work->train,
	                                             .infer = work->infer,
	                                             .infer_logits = work->infer_logits,
	                                             .cache_rows = work->cache_rows,
	                                             .cap_key = config->max_vram               ? "max_vram"
	                                                        : request->machine.device_room ? NULL
	                                                                                       : "max_ram",
	                                             .found = &out->found,
	                                             .devices = devices,
	                                             .forward_cuts = config->forward_cuts,
	                                             .backward_cuts = config->backward_cuts,
	                                             .forward_cut_count = config->forward_cut_count,
	                                             .backward_cut_count = config->backward_cut_count};
	out->executor = (struct rh_executor_plan){.devices = devices,
	                                          .train_micro_batches = work->train_micro_batches,
	                                          .infer_micro_batches = work->infer_micro_batches,
	                                          .logit_cols = work->infer_logits ? rh_model_outputs(request->model->config) : 0,
	                                          .cache_rows = work->cache_rows,
	                                          .chunks = work->chunks,
	                                          .classes = work->classes,
	                                          .stale = trains && (config->optimizer_staleness || config->paci_update_delay),
	                                          .update_delay = config->paci_update_delay,
	                                          .seed = config->seed};
	out->store = (struct rh_store_options){.dtype = config->dtype,
	                                       .layout = config->state_layout,
	                                       .optim = config->optim,
	                                       .momentum = config->momentum != 0,
	                                       .published = out->executor.stale,
	                                       .addresses_only = request->machine.simulated,
	                                       .space = request->space};
	rh_model_cut(request->model, &request->machine.grain);
}

static int check_room(const struct rh_run_request *request)
{
	int64_t cap = request->config->max_vram, room = request->machine.device_room;
	if (room && cap > room)
		return rh_fail(RH_DOES_NOT_FIT, "max_vram: %.1f MiB, but only %.1f MiB are free for each device; lower it",
		               (double)cap / 1048576, (double)room / 1048576);
	return 0;
}

void planning_close(struct planning *planning)
{
	rh_costs_free(&planning->costs);
	rh_free(planning->balance.sum_s);
	rh_free(planning->cuts);
	rh_free(planning->deferral);
	rh_free(planning->fates);
	rh_free(planning->each_layer);
	rh_free(planning->saves);
	rh_free(planning->shared.fates);
	rh_costs_free(&planning->shared.costs);
	rh_stage_plan_found_free(&planning->found);
}

/* A layer's rows all share a fate, or each has its own. */
static struct rh_fates draw_fates(uint64_t seed, int layer)
{
	struct rh_fates fates = {0};
	uint32_t of_layer = rh_philox(seed, (uint32_t)layer, RH_ACTIVATIONS, 0, 0).word[0] % 5;
	for (int row = 0; row < RH_ACTIVATIONS; row++) {
		uint32_t of_row = rh_philox(seed, (uint32_t)layer, (uint32_t)row, 0, 0).word[0] % RH_FATES;
		uint32_t fate = of_layer < RH_FATES ? of_layer : of_row;
		fates.kept |= fate == RH_FATE_KEEP ? RH_ROW_SET(row) : 0;
		fates.saved |= fate == RH_FATE_SAVE ? RH_ROW_SET(row) : 0;
	}
	return fates;
}

/* Random fates, where a test asks for them: where the run's devices have all its rounds, or activations are kept in a ring. */
static int draw_test_fates(struct planning *planning)
{
	const char *seed = getenv(RH_HOOK_FATES);
	const struct rh_model *model = planning->request->model;
	int is_whole = !rh_model_is_part(model) && rh_schedule_has_planned_stages(planning->executor.schedule);
	if (!seed || model->saves_narrow || !(is_whole || planning->stages.kept_micro_batches))
		return 0;
	planning->stages.fates = planning->fates = rh_alloc((size_t)model->layers, sizeof *planning->fates);
	for (int l = 0; planning->fates && l < model->layers; l++)
		planning->fates[l] = draw_fates(strtoull(seed, NULL, 10), l);
	return planning->fates ? 0 : -ENOMEM;
}

/* Devices whose memory is the host's have no room for plain matrices where making each anew costs little: with so many tokens in a
 * micro-batch, a few hundredths of a step (bench/results/packed-2-cores.txt). */
static enum rh_plain plain_of(const struct planning *planning)
{
	enum { TOKENS = 512 };
	int is_spared = planning->stages.trains && !planning->request->machine.device_room && planning->stages.train.tokens >= TOKENS;
	return is_spared ? RH_PLAIN_BY_PRODUCT : RH_PLAIN_ANYWHERE;
}

/* After a plan that host memory is too small for: how many stages may fit. One device cuts small stages, to keep more activations, and
 * each has a boundary in the host's memory. 0: no such number. */
static int fewer_stages(const struct planning *planning, int rc, const struct candidate *candidate)
{
	int may = rc == RH_DOES_NOT_FIT && planning->stages.devices == 1 && !planning->cuts_devices;
	return may && candidate->cap_bytes >= 0 && !candidate->bytes.boundaries_nvme ? planning_allowed_stages(planning, candidate) : 0;
}

/* Rounds of the length given, or of the default one; where host memory holds too little of these, of a micro-batch for each device, and of
 * one; and last of fewer stages. */
static int fit_rounds(struct planning *planning, struct candidate *out)
{
	const struct rh_run_request *request = planning->request;
	int64_t given = request->config->round_micro_batches, micro_batches = request->work->train_micro_batches;
	struct choice choice = {.round = given ? given : rh_roundpipe_default_round(micro_batches, planning->stages.devices),
	                        .plain = plain_of(planning),
	                        .spill = planning->spill};
	if (planning->cuts_devices)
		choice.cutter = planning->executor.schedule->update == RH_UPDATE_LOCAL ? CUT_FOR_PERIOD : CUT_FOR_STEP;
	int rc = fit_in_host(planning, choice, out);
	int is_free = !given && micro_batches && rh_schedule_has_rounds(planning->executor.schedule) && !planning->boxes.boxes;
	const int64_t shorter[] = {planning->stages.devices, 1, choice.round}; /* where none fits, the line is about the default ones */
	struct choice fewer = choice;
	fewer.cutter = CUT_BY_MEMORY;
	fewer.stages_most = fewer_stages(planning, rc, out);
	for (int i = 0; rc == RH_DOES_NOT_FIT && is_free && !out->no_stages_fit && i < 3; i++) {
		if (i < 2 && shorter[i] >= rh_min(shorter[2], micro_batches))
			continue;
		choice.round = shorter[i];
		candidate_free(out);
		rh_error_clear();
		rc = fit_in_host(planning, choice, out);
		if (i == 2)
			continue;
		fewer.round = choice.round;
		fewer.stages_most = fewer_stages(planning, rc, out);
	}
	for (int last = 0; rc == RH_DOES_NOT_FIT && fewer.stages_most && last < 2; last++) {
		candidate_free(out);
		rh_error_clear();
		rc = fit_in_host(planning, last ? choice : fewer, out);
	}
	return rc;
}

int planning_find(struct planning *planning, struct candidate candidate[RH_RUN_PLANS_MOST], int *count)
{
	*count = 0;
	int rc = planning->request->stages == RH_STAGES_CHOSEN ? planning_rounds(planning, candidate, count) : 0;
	if (rc || *count)
		return rc;
	*count = 1;
	rc = fit_rounds(planning, &candidate[0]);
	return rc || !planning->cuts_devices ? rc : planning_other_cuts(planning, candidate, count);
}

static int find_candidates(struct planning *planning, struct candidate candidate[RH_RUN_PLANS_MOST], int *count)
{
	const struct rh_run_request *request = planning->request;
	int rc = request->work->train_micro_batches ? planning_schedule(planning) : 0;
	*count = 0;
	if (!rc && request->work->train_micro_batches)
		rc = draw_test_fates(planning);
	if (!rc && request->stages == RH_STAGES_CHOSEN)
		rc = weigh_layers(planning);
	if (rc)
		return rc;
	return (request->config->spill & RH_SPILL_AUTO ? planning_find_spilled : planning_find)(planning, candidate, count);
}

int rh_run_plan_search(const struct rh_run_request *request, struct rh_run_plans *out)
{
	struct planning planning;
	struct candidate candidate[RH_RUN_PLANS_MOST];
	int count = 0;
	*out = (struct rh_run_plans){0};
	for (int i = 0; i < RH_RUN_PLANS_MOST; i++)
		candidate[i] = (struct candidate){.cap_bytes = -1};
	planning_describe(request, &planning);
	int rc = check_room(request);
	if (!rc)
		rc = find_candidates(&planning, candidate, &count);
	if (!rc || rc == RH_DOES_NOT_FIT) /* the caller tells the bytes of a plan that does not fit */
		for (int i = 0; i < count; i++)
			planning_settle(&planning, &candidate[i], &out->plan[out->count++]);
	for (int i = 0; i < RH_RUN_PLANS_MOST; i++)
		candidate_free(&candidate[i]);
	planning_close(&planning);
	return rc;
}

int rh_run_plan_make(const struct rh_run_request *request, struct rh_run_plan *out)
{
	struct rh_run_plans plans;
	int rc = rh_run_plan_search(request, &plans);
	*out = plans.plan[0];
	plans.plan[0] = (struct rh_run_plan){0};
	rh_run_plans_free(&plans);
	if (!rc)
		rh_run_plan_cut_head(out, request->model);
	return rc;
}
