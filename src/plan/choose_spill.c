/* What `spill: auto` puts on NVMe: the kinds that cost least among those that are enough, and of frozen weights no more than is short. */
#include "plan/plan_internal.h"

#include "core/minmax.h"
#include "partition/rounds.h"

#include <math.h>

enum { STATE = RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS, ALL = STATE | RH_SPILL_WEIGHTS | RH_SPILL_ACTIVATIONS };

/* In the order in which they are tried; all of them last. */
static const int kinds[] = {0,
                            RH_SPILL_ACTIVATIONS,
                            RH_SPILL_WEIGHTS,
                            RH_SPILL_WEIGHTS | RH_SPILL_ACTIVATIONS,
                            RH_SPILL_OPTIMIZER,
                            STATE,
                            RH_SPILL_OPTIMIZER | RH_SPILL_ACTIVATIONS,
                            STATE | RH_SPILL_ACTIVATIONS,
                            STATE | RH_SPILL_WEIGHTS,
                            ALL};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ---- seconds of drives ---- */

static double seconds(double bytes, double rate)
{
	return rate > 0 ? bytes / rate : 0;
}

/* Bytes of frozen weights that a step reads, at least: each stage's in each round, less those that stay on a device when a round turns. */
static double frozen_bytes(const struct planning *planning, const struct candidate *candidate)
{
	const struct rh_stage_plan *stages = &candidate->stages;
	double spilled = (double)candidate->bytes.nvme_frozen, layers = planning->request->model->layers,
	       fused = stages->backward_stages ? stages->backward[0].hi - stages->backward[0].lo : layers;
	double rounds = (double)rh_round_count(planning->executor.train_micro_batches, rh_max(planning->stages.train_round, 1));
	double share = spilled / fmax(spilled + (double)candidate->bytes.store, 1),
	       stay = 2 * (double)stages->weight_bytes * planning->stages.devices * share;
	return fmax(rounds * (spilled * (2 - fused / layers) - stay), 0);
}

double planning_drive_seconds(const struct planning *planning, const struct candidate *candidate)
{
	const struct rh_hardware *hardware = planning->request->machine.hardware;
	double written = (double)candidate->bytes.nvme_step, read = written + frozen_bytes(planning, candidate);
	if (!hardware || !candidate->bytes.nvme)
		return 0;
	const struct rh_hardware_nvme *nvme = &hardware->nvme;
	return fmax(seconds(read + written, nvme->mixed_bytes_per_s),
	            fmax(seconds(read, nvme->read_bytes_per_s), seconds(written, nvme->write_bytes_per_s)));
}

/* ---- no more than is short ---- */

static int count_with(struct planning *planning, struct candidate *candidate, int share)
{
	candidate->choice.frozen_share = share;
	planning->store.frozen_share = share;
	return planning_count_bytes(planning, candidate);
}

int planning_spill_less(struct planning *planning, struct candidate *candidate)
{
	int low = 0, high = planning->frozen_most;
	if (!(planning->request->config->spill & RH_SPILL_AUTO) || !(candidate->choice.spill & RH_SPILL_WEIGHTS))
		return 0;
	while (high - low > 1) {
		int rc = count_with(planning, candidate, (low + high) / 2);
		if (rc)
			return rc;
		*(candidate->bytes.total <= candidate->bytes.total_budget ? &high : &low) = (low + high) / 2;
	}
	return count_with(planning, candidate, high);
}

/* ---- which kinds ---- */

/* The kinds that this run has so much of that spilling them may be enough. */
static int large_kinds(const struct planning *planning)
{
	enum { SMALL = 64 }; /* a part of the store that is not worth a try of its own */
	const struct rh_model *model = planning->request->model;
	struct rh_store_options options = planning->store;
	options.spill = 0;
	int64_t least = rh_store_bytes(model->block, model->blocks, &options) / SMALL;
	options.spill = ALL & ~RH_SPILL_ACTIVATIONS;
	struct rh_store_nvme nvme = rh_store_nvme(model->block, model->blocks, &options);
	return (nvme.state ? RH_SPILL_OPTIMIZER : 0) | (nvme.masters > least ? RH_SPILL_MASTERS : 0) |
	       (nvme.frozen > least ? RH_SPILL_WEIGHTS : 0) | (planning->stages.trains ? RH_SPILL_ACTIVATIONS : 0);
}

/* The plans found so far. */
struct gathering {
	struct planning *planning;
	struct candidate *out;
	int count;
	int64_t nvme_most;     /* max_nvme */
	struct candidate over; /* of plans with more on NVMe, the one with the least */
	int has_over;
};

static void move(struct candidate *from, struct candidate *to)
{
	candidate_free(to);
	*to = *from;
	*from = (struct candidate){.cap_bytes = -1};
}

/* Moves the fastest `few` of some plans to those found. */
static void gather(struct gathering *at, struct candidate now[RH_RUN_PLANS_MOST], int count, int few)
{
	int is_taken[RH_RUN_PLANS_MOST] = {0};
	for (int taken = 0; taken < count; taken++) {
		int best = -1;
		for (int i = 0; i < count; i++)
			if (!is_taken[i] && (best < 0 || candidate_is_faster(&now[i], &now[best])))
				best = i;
		is_taken[best] = 1;
		if (now[best].bytes.nvme <= at->nvme_most) {
			if (few-- > 0 && at->count < RH_RUN_PLANS_MOST)
				move(&now[best], &at->out[at->count++]);
		} else if (!at->has_over || now[best].bytes.nvme < at->over.bytes.nvme) {
			at->has_over = 1;
			move(&now[best], &at->over);
		}
	}
}

/* The fastest first. With nothing on NVMe it may be a little slower. */
static void put_fastest_first(struct gathering *at)
{
	static const double worth_drives = 0.01;
	int best = 0;
	for (int i = 1; i < at->count; i++) {
		double share = at->out[i].bytes.nvme && !at->out[best].bytes.nvme ? 1 - worth_drives : 1;
		best = at->out[i].balanced.step_s < at->out[best].balanced.step_s * share ? i : best;
	}
	struct candidate first = at->out[best];
	at->out[best] = at->out[0];
	at->out[0] = first;
}

/* Searches with these kinds, of frozen weights at most a share. *stops: trying more of them is of no use. */
static int try_share(struct gathering *at, int tried, int share, int *stops)
{
	enum { FEW = 8, FEW_IN_MEMORY = 16 };
	struct planning *planning = at->planning;
	struct candidate now[RH_RUN_PLANS_MOST];
	int count = 0;
	for (int i = 0; i < RH_RUN_PLANS_MOST; i++)
		now[i] = (struct candidate){.cap_bytes = -1};
	rh_error_clear();
	planning->spill = tried;
	planning->frozen_most = share;
	planning->lacks_ram = 0;
	int rc = planning_find(planning, now, &count);
	if (!rc) {
		*stops = (!tried && !planning->lacks_ram) || planning->request->stages == RH_STAGES_PACKED;
		gather(at, now, count, *stops ? RH_RUN_PLANS_MOST : tried ? FEW : FEW_IN_MEMORY);
	} else if (rc == RH_DOES_NOT_FIT) {
		*stops = now[0].no_stages_fit;
		if (!at->count && !at->has_over) /* the caller tells its bytes */
			move(&now[0], &at->out[0]);
	}
	for (int i = 0; i < RH_RUN_PLANS_MOST; i++)
		candidate_free(&now[i]);
	return rc;
}

/* Host memory has room for all. The state may yet lie on NVMe: where the update takes all that host memory can carry, drives carry it
 * beside. The fastest plans with that. */
static int add_state(struct gathering *at, int large)
{
	enum { FEW = 6 };
	static const int states[] = {RH_SPILL_OPTIMIZER, STATE};
	int plans = (int)rh_min(at->count, FEW), rc = 0;
	for (size_t k = 0; k < sizeof states / sizeof *states; k++)
		for (int i = 0; !rc && i < plans && !(states[k] & ~large) && at->count < RH_RUN_PLANS_MOST; i++) {
			struct candidate *now = &at->out[at->count], from = at->out[i];
			struct choice choice = from.choice;
			choice.spill = states[k];
			*now = from;
			rc = rh_stage_plan_copy(&from.stages, &now->stages);
			if (!rc)
				rc = planning_fit(at->planning, &choice, now);
			now->balanced.step_s = fmax(now->balanced.work_s, planning_drive_seconds(at->planning, now));
			if (!rc && now->bytes.nvme <= at->nvme_most)
				at->count++;
			else
				candidate_free(now);
		}
	return rc;
}

/* 1: weights and state alone leave room in host memory. */
static int may_fit(const struct planning *planning, int tried, int share)
{
	const struct rh_model *model = planning->request->model;
	struct rh_store_options options = planning->store;
	options.spill = tried;
	options.frozen_share = share;
	return rh_store_bytes(model->block, model->blocks, &options) < planning->request->machine.ram_bytes;
}

/* With memory for more boundaries plans have more and smaller stages. So of weights the two least shares that are enough are tried too, and
 * not all of them alone. */
static int try_kinds(struct gathering *at, int tried, int *stops)
{
	enum { ENOUGH = 2 };
	static const int shares[] = {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, RH_STORE_FROZEN_PARTS};
	const struct planning *planning = at->planning;
	int fits = 0, rc = RH_DOES_NOT_FIT, is_partial = tried & RH_SPILL_WEIGHTS && planning->request->stages == RH_STAGES_CHOSEN;
	for (size_t i = 0; !*stops && i < sizeof shares / sizeof *shares; i++) {
		int skips = !is_partial || fits >= ENOUGH || !may_fit(planning, tried, shares[i]);
		if (shares[i] < RH_STORE_FROZEN_PARTS && skips)
			continue;
		rc = try_share(at, tried, shares[i], stops);
		if (rc && rc != RH_DOES_NOT_FIT)
			return rc;
		fits += !rc;
	}
	return fits ? 0 : rc;
}

int planning_find_spilled(struct planning *planning, struct candidate out[RH_RUN_PLANS_MOST], int *count)
{
	struct gathering at = {
	        .planning = planning, .out = out, .nvme_most = planning->request->config->max_nvme, .over = {.cap_bytes = -1}};
	int large = large_kinds(planning), ample[KINDS], amples = 0, rc = 0, stops = 0;
	for (int k = 0; !stops && k < KINDS; k++) {
		int skips = k + 1 == KINDS ? at.count > 0 : (kinds[k] & ~large) != 0;
		for (int i = 0; i < amples; i++)
			skips |= (kinds[k] & ample[i]) == ample[i];
		if (skips)
			continue;
		rc = try_kinds(&at, kinds[k], &stops);
		if (rc && rc != RH_DOES_NOT_FIT)
			goto out;
		if (!rc && !planning->lacks_ram)
			ample[amples++] = kinds[k];
	}
	if (at.count && stops && !at.out[0].bytes.nvme && planning->request->stages == RH_STAGES_CHOSEN)
		rc = add_state(&at, large);
	if (rc && rc != RH_DOES_NOT_FIT)
		goto out;
	if (!at.count && at.has_over) /* max_nvme is too small: rh_run_plan_check_nvme says so */
		move(&at.over, &out[at.count++]);
	if (at.count) {
		rh_error_clear();
		put_fastest_first(&at);
		rc = 0;
	}
out:
	candidate_free(&at.over);
	*count = at.count ? at.count : 1;
	return rc;
}
