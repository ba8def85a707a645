/* Chooses how many rounds a step of RoundPipe has, and which partitioner cuts its stages; of other schedules only the latter. More rounds
 * send weights and sums over the links more often, and keep fewer boundaries in memory. */
#include "plan/plan_internal.h"

#include "core/minmax.h"
#include "partition/rounds.h"
#include "schedule/schedule.h"

#include <math.h>
#include <string.h>

enum {
	LONG_STEP = 16000, /* micro-batches times layers: from there on fewer numbers of rounds are tried */
	OTHERS_MOST = 23,  /* plans beside the best */
};

static const double same_time = 0.005,     /* step times closer than this share are equal */
        same_time_by_compute_alone = 0.03, /* the same if the link's rates are unknown */
        worth_memory = 0.01,               /* extra share of time that is worth saving much memory, or all of NVMe */
        worth_rounds = 0.02,               /* share of time by which more rounds may be slower and yet be worth trying */
        much_memory = 0.25,                /* share of the host memory of a plan */
        little_idle = 0.08;                /* idle share that is low */

struct choosing {
	struct planning *planning;
	struct candidate best; /* none while its round is 0 */
	/* The fastest of the others, the fastest first. */
	struct candidate other[OTHERS_MOST];
	int others;
	enum rh_plain plain;   /* of what is tried now */
	int some_have_no_room; /* of what was tried, for plain matrices */
	double fastest_s, tie;
	int fused;            /* the lowest first layer of a fused stage; 0: all plans are one stage */
	int is_one_stage;     /* some plan is */
	int64_t device_bytes; /* of the latest plan; INT64_MAX: it did not fit */
	int is_too_slow;      /* the latest plan is so much slower that more rounds are not tried */
};

/* 1: `a` needs no NVMe where `b` does, or much less memory where neither or both do. */
static int is_smaller(const struct rh_run_plan *a, const struct rh_run_plan *b)
{
	int a_spills = a->bytes.nvme > 0, b_spills = b->bytes.nvme > 0;
	if (a_spills != b_spills)
		return b_spills;
	return (double)a->bytes.total <= (1 - much_memory) * (double)b->bytes.total;
}

int rh_run_plan_is_better(const struct rh_run_plan *a, double a_step_s, const struct rh_run_plan *b, double b_step_s, double fastest_s)
{
	double most_s = fastest_s * (1 + worth_memory);
	if (a_step_s > most_s || b_step_s > most_s)
		return a_step_s < b_step_s;
	return is_smaller(a, b) || (a_step_s < b_step_s && !is_smaller(b, a));
}

static int are_same_stages(const struct rh_stage *a, int a_count, const struct rh_stage *b, int b_count)
{
	return a_count == b_count && !memcmp(a, b, (size_t)a_count * sizeof *a);
}

/* Two choices may lead to one plan. */
static int are_same(const struct candidate *a, const struct candidate *b)
{
	const struct rh_stage_plan *left = &a->stages, *right = &b->stages;
	return a->choice.round == b->choice.round && left->plain_bytes == right->plain_bytes &&
	       !memcmp(left->fates, right->fates, (size_t)rh_stage_plan_top(left) * sizeof *left->fates) &&
	       are_same_stages(left->forward, left->forward_stages, right->forward, right->forward_stages) &&
	       are_same_stages(left->backward, left->backward_stages, right->backward, right->backward_stages);
}

/* Keeps a candidate that is not the best, if it is new and among the fastest. Empties *now. */
static void keep_other(struct choosing *at, struct candidate *now)
{
	int place = at->others, same = at->best.choice.round && are_same(&at->best, now);
	for (int i = 0; i < at->others; i++)
		same |= are_same(&at->other[i], now);
	while (place > 0 && candidate_is_faster(now, &at->other[place - 1]))
		place--;
	if (same || place == OTHERS_MOST) {
		candidate_free(now);
		return;
	}
	if (at->others == OTHERS_MOST)
		candidate_free(&at->other[--at->others]);
	memmove(&at->other[place + 1], &at->other[place], (size_t)(at->others - place) * sizeof *now);
	at->other[place] = *now;
	at->others++;
	*now = (struct candidate){.cap_bytes = -1};
}

int planning_allowed_stages(const struct planning *planning, const struct candidate *candidate)
{
	const struct rh_run_bytes *bytes = &candidate->bytes;
	const struct rh_stage_plan *stages = &candidate->stages;
	int64_t spare = planning->stages.devices > 1 ? planning->stages.devices * planning->stages.train_round : 0;
	int64_t used = candidate->spare * stages->boundary_bytes;
	int64_t room = bytes->total_budget - (bytes->total - bytes->boundaries) - spare * stages->boundary_bytes;
	double share = bytes->boundaries > used && room > 0 ? (double)room / (double)(bytes->boundaries - used) : 0;
	int count = stages->forward_stages + stages->backward_stages, most = (int)(share * count);
	return most > planning->stages.devices && most < count ? most : 0;
}

/* Plans a choice with all spare buffers, because without them devices wait for one another: if need be with fewer, larger stages, whose
 * boundaries need less memory. */
static int fit(struct planning *planning, struct choice choice, struct candidate *out)
{
	int rc = planning_fit(planning, &choice, out), most;
	if (rc && rc != RH_DOES_NOT_FIT)
		return rc;
	int64_t spare = planning->stages.devices > 1 ? planning->stages.devices * planning->stages.train_round : 0;
	if (!rc && out->spare >= spare)
		return 0;
	/* one device cuts small stages, which leave room to keep activations */
	int cuts_many = choice.cutter == CUT_FOR_LONG_ROUNDS || (choice.cutter == CUT_BY_MEMORY && planning->stages.devices == 1);
	if (!cuts_many || out->cap_bytes < 0 || out->bytes.boundaries_nvme || !(most = planning_allowed_stages(planning, out)))
		return rc;
	rh_error_clear();
	choice.stages_most = most;
	candidate_free(out);
	return planning_fit(planning, &choice, out);
}

/* Ranks a plan among the earlier ones. Empties *now. */
static int rank(struct choosing *at, struct candidate *now)
{
	struct planning *planning = at->planning;
	int rc = rh_balance_step(&planning->balance, &planning->stages, now->joined, &now->stages, &now->balanced);
	if (rc)
		return rc;
	now->balanced.work_s = now->balanced.step_s;
	now->late_s = now->choice.saves && planning->stages.devices > 1 ? planning_host_late(planning, now) : 0;
	now->balanced.step_s = fmax(now->balanced.work_s, planning_drive_seconds(planning, now)) + now->late_s;
	int first = !at->best.choice.round;
	at->some_have_no_room |= !now->stages.plain_bytes;
	at->fastest_s = first || now->balanced.step_s < at->fastest_s ? now->balanced.step_s : at->fastest_s;
	at->is_too_slow = now->balanced.step_s > at->fastest_s * (1 + worth_rounds);
	if (now->stages.backward_stages > 1 && (!at->fused || now->stages.backward[0].lo < at->fused))
		at->fused = now->stages.backward[0].lo;
	at->is_one_stage |= now->stages.backward_stages == 1;
	int saves = (double)now->bytes.total <= (1 - much_memory) * (double)at->best.bytes.total;
	if (first || now->balanced.step_s < at->best.balanced.step_s * (1 - at->tie) ||
	    (saves && now->balanced.step_s <= at->fastest_s * (1 + worth_memory))) {
		struct candidate before = at->best;
		at->best = *now;
		*now = before;
	}
	if (!first)
		keep_other(at, now);
	return 0;
}

/* Makes a plan and ranks it. Callers begin with the rounds that need the most memory. Plans that do not fit are skipped. */
static int consider_choice(struct choosing *at, struct choice choice)
{
	struct planning *planning = at->planning;
	struct candidate now = {.cap_bytes = -1};
	choice.plain = at->plain;
	choice.spill = planning->spill;
	if (!planning->cuts_by_time && choice.cutter != CUT_SMALL)
		choice.cutter = CUT_BY_MEMORY;
	int rc = fit(planning, choice, &now);
	at->device_bytes = rc ? INT64_MAX : now.bytes.device;
	if (!rc)
		rc = rank(at, &now);
	if (rc) {
		candidate_free(&now);
		if (rc == RH_DOES_NOT_FIT)
			rh_error_clear();
		return rc == RH_DOES_NOT_FIT ? 0 : rc;
	}
	return 0;
}

static int consider(struct choosing *at, int64_t round, enum cutter cutter)
{
	return consider_choice(at, (struct choice){.round = round, .cutter = cutter});
}

/* Stages as large as devices hold, in rounds of the default length and of one micro-batch: fewer weights travel. Where a device holds all
 * layers, each computes whole micro-batches. */
static int consider_packed(struct choosing *at, int64_t least)
{
	int rc = consider(at, least, CUT_BY_MEMORY);
	return rc || !at->best.choice.round ? rc : consider(at, 1, CUT_BY_MEMORY);
}

/* Any number of stages, from the fewest on. A large fused stage spares recompute. With few micro-batches devices wait for weights: no
 * device computes while the first stage's are uploaded, and a large stage leaves no room to upload the next one's beside it; then stages
 * cut by time are tried too, in no more of a device's memory than these take. The numbers do not depend on how much memory there is, so
 * that more of it loses none of these plans. */
static int consider_numbers(struct choosing *at, int64_t round, int is_short)
{
	int most = 2 * at->planning->costs.layers - 1, rc = 0;
	int64_t taken[] = {[CUT_FOR_ROUNDS] = INT64_MAX, [CUT_FOR_LONG_ROUNDS] = INT64_MAX}; /* by the latest plan that the cutter made */
	int cutters = is_short && at->planning->cuts_by_time ? (int)(sizeof taken / sizeof *taken) : 0;
	for (int stages = 2; !rc && stages < most; stages += stages / 2) {
		rc = consider_choice(at, (struct choice){.round = round, .cutter = CUT_SMALL, .stages_most = stages});
		int64_t bytes = at->device_bytes;
		for (int c = 0; !rc && c < cutters; c++)
			if (bytes < taken[c]) { /* else the cutter would make the same plan */
				rc = consider_choice(at, (struct choice){.round = round, .cutter = (enum cutter)c, .most_bytes = bytes});
				taken[c] = at->device_bytes;
			}
	}
	return rc || !cutters ? rc : consider(at, round, CUT_SMALL);
}

/* 1: few micro-batches. */
static int is_short(const struct planning *planning, int devices)
{
	int64_t count = planning->executor.train_micro_batches;
	return count <= rh_roundpipe_default_round(count, devices);
}

/* Numbers of stages, in rounds of this length or, of many micro-batches, of the best one. On one device stages of few layers leave room for
 * the activations of more layers, and updates begin earlier; of a row in chunks all devices have something to do only where it has many
 * stages. */
static int consider_layers(struct choosing *at, int64_t round)
{
	const struct planning *planning = at->planning;
	int devices = planning->stages.devices, few = is_short(planning, devices), rc = 0;
	if (!few && at->best.choice.round)
		round = at->best.choice.round;
	if (planning->cuts_by_time || (devices == 1 && !planning->stages.train.chunks))
		rc = consider_numbers(at, round, few);
	if (!rc && (devices == 1 || planning->stages.train.chunks) && at->best.choice.round)
		rc = consider(at, at->best.choice.round, CUT_SMALL);
	return rc;
}

/* Tries the fewest rounds first, and rounds of the default length last. It stops when more rounds only take longer and devices hardly idle;
 * never because rounds do not fit. */
static int consider_rounds(struct choosing *at, int64_t least)
{
	int64_t count = at->planning->executor.train_micro_batches, round;
	int layers = at->planning->costs.layers, rc = 0, continues = 1, times = count * layers > LONG_STEP ? 4 : 2;
	for (int64_t rounds = 1; !rc && continues && (round = rh_round_count(count, rounds)) > least; rounds *= times) {
		rc = consider(at, round, CUT_FOR_LONG_ROUNDS);
		continues = !at->is_too_slow || at->best.balanced.idle > little_idle;
	}
	if (!rc && continues)
		rc = consider(at, least, CUT_FOR_LONG_ROUNDS);
	if (!rc && continues)
		rc = consider(at, least, CUT_FOR_ROUNDS);
	if (!rc && at->planning->cuts_by_time)
		rc = consider_packed(at, least);
	return rc ? rc : consider_layers(at, least);
}

/* Rounds of the length that the user gave. */
static int consider_given(struct choosing *at, int64_t round)
{
	int rc = consider(at, round, CUT_FOR_LONG_ROUNDS);
	if (!rc && at->planning->cuts_by_time)
		rc = consider(at, round, CUT_FOR_ROUNDS);
	if (!rc && at->planning->cuts_by_time)
		rc = consider(at, round, CUT_BY_MEMORY);
	return rc ? rc : consider_layers(at, round);
}

static int consider_all(struct choosing *at)
{
	const struct planning *planning = at->planning;
	int64_t fixed = planning->request->config->round_micro_batches;
	return fixed ? consider_given(at, fixed)
	             : consider_rounds(at, rh_roundpipe_default_round(planning->executor.train_micro_batches, planning->stages.devices));
}

/* Shorter rounds have fewer boundaries in the host's memory, so that stages may be small enough for a room for plain matrices, and one
 * device keeps the activations of fewer micro-batches, hence of more layers; but weights travel more often. */
static int consider_shorter(struct choosing *at)
{
	enum { PARTS = 4 };
	const struct planning *planning = at->planning;
	int64_t round = at->best.choice.round, given = planning->request->config->round_micro_batches;
	int makes_plain = rh_model_makes_plain(planning->request->model), rc = 0;
	int keeps = planning->stages.devices == 1 && at->best.stages.backward_stages > 1;
	if (!round || !(keeps || (makes_plain && !at->best.stages.plain_bytes)))
		return 0;
	at->plain = makes_plain ? RH_PLAIN_IN_ROOM : RH_PLAIN_ANYWHERE;
	for (int parts = given ? 1 : 2; !rc && parts <= (given ? 1 : PARTS) && parts <= round; parts++) {
		rc = consider(at, rh_round_count(round, parts), CUT_FOR_LONG_ROUNDS);
		if (!rc && keeps)
			rc = consider(at, rh_round_count(round, parts), CUT_SMALL);
	}
	return rc;
}

/* A packed model that stays on its device has each product's matrix made plain for each micro-batch: stages that come and go, with a room
 * for plain matrices, may be faster. Where stages with a room are too many for the host's memory, those without one are larger. */
static int consider_plain(struct choosing *at)
{
	if (!rh_model_makes_plain(at->planning->request->model) || (at->best.choice.round && !at->some_have_no_room))
		return 0;
	at->plain = at->best.choice.round ? RH_PLAIN_IN_ROOM : RH_PLAIN_BY_PRODUCT;
	return consider_all(at);
}

/* ---- stages that save activations ---- */

/* In the fewest rounds that fit, below a fused stage that begins at layer `fused` or above. */
static int consider_saved(struct choosing *at, int fused, enum saves saves)
{
	struct planning *planning = at->planning;
	int64_t given = planning->request->config->round_micro_batches, count = planning->executor.train_micro_batches;
	const struct choice choice = {
	        .round = given ? given : count, .fused = fused, .saves = saves, .plain = at->plain, .spill = planning->spill};
	struct candidate now = {.cap_bytes = -1};
	int rc = planning_try_saves(planning, choice, &now);
	if (!rc)
		rc = rank(at, &now);
	candidate_free(&now);
	if (rc == RH_DOES_NOT_FIT) {
		rh_error_clear();
		rc = 0;
	}
	return rc;
}

/* 1: host memory has room for more than half of what the link carries. Of whole rows that level is not tried: what it saves depends on the
 * plans beside it, and more memory might be slower. */
static int has_room_for_more(const struct planning *planning)
{
	if (planning->executor.chunks < 2)
		return 1;
	return planning_are_saves_alike(planning, SAVES_FITTING, SAVES_HALF) ||
	       planning_are_saves_alike(planning, SAVES_FITTING, SAVES_ALL);
}

/* All levels below a fused stage as large as fits. With few micro-batches stages that save nothing are considered elsewhere. */
static int consider_saves(struct choosing *at, int fused, int few)
{
	int rc = 0;
	for (int saves = SAVES_ALL; !rc && saves >= (few ? SAVES_FITTING : SAVES_NONE); saves--)
		if (saves != SAVES_INPUTS && saves != SAVES_HOST && (saves != SAVES_FITTING || !has_room_for_more(at->planning)))
			rc = consider_saved(at, fused, (enum saves)saves);
	return rc;
}

/* Below smaller fused stages, of 1, 2, 3, 4, 6, 8, 12, ... layers: a large one waits for its weights, and its gradients come late. */
static int consider_smaller_fused(struct choosing *at, int fused)
{
	int rc = 0, top = at->planning->costs.layers - 1;
	for (int below = 1; !rc && below < top - fused; below *= 2)
		for (int layers = below; !rc && layers < top - fused && layers<2 * below; layers += below> 1 ? below / 2 : 1)
			rc = consider_saves(at, top - layers, 1);
	return rc;
}

/* The best few go behind the plans that are there, with the recurrence's time alone, a lower bound. */
static void add_plans(struct choosing *at, int few, struct candidate out[RH_RUN_PLANS_MOST], int *count)
{
	int room = (int)rh_min(few, RH_RUN_PLANS_ALIKE - *count);
	for (int i = -1; i < at->others; i++) {
		struct candidate *now = i < 0 ? &at->best : &at->other[i];
		now->balanced.step_s -= now->late_s;
		if (room-- > 0 && now->choice.round)
			out[(*count)++] = *now;
		else
			candidate_free(now);
	}
}

/* Several devices: the fastest plans that save nothing, with stages that do. */
static int add_shared_saves(const struct choosing *others, struct candidate out[RH_RUN_PLANS_MOST], int *count)
{
	enum { MOST = 3, LAYERS = 40 }; /* of more layers one: each takes longer */
	struct planning *planning = others->planning;
	struct choosing at = {.planning = planning, .best = {.cap_bytes = -1}, .tie = others->tie};
	int rc = 0, bases = 0, few = planning->costs.layers > LAYERS ? 1 : MOST;
	for (int i = 0; !rc && i < *count && bases < few; i++) {
		if (out[i].stages.backward_stages < 2)
			continue;
		bases++;
		struct choice choice = out[i].choice;
		for (int k = 0; !rc && planning_shared_saves(planning, &k, &choice);) {
			struct candidate now = {.cap_bytes = -1};
			rc = planning_try_shared_saves(planning, choice, &now);
			if (!rc)
				rc = rank(&at, &now);
			candidate_free(&now);
			if (rc == RH_DOES_NOT_FIT) {
				rh_error_clear();
				rc = 0;
			}
		}
	}
	add_plans(&at, MOST, out, count);
	return rc;
}

/* The other plans stay: the recurrence does not know of drives, nor of copies that compete. */
static int add_saves(const struct choosing *others, struct candidate out[RH_RUN_PLANS_MOST], int *count)
{
	enum { FEW = 4, OF_ONE = 4 };
	struct planning *planning = others->planning;
	const struct choosing none = {.planning = planning, .best = {.cap_bytes = -1}, .plain = others->plain, .tie = others->tie};
	struct choosing at = none;
	int few = is_short(planning, 1);
	if (!*count || planning->spill & RH_SPILL_ACTIVATIONS || !planning_may_save(planning))
		return 0;
	int rc = planning_weigh_saves(planning, planning->request->machine.ram_bytes - others->best.bytes.total);
	if (planning->stages.devices > 1)
		return rc ? rc : add_shared_saves(others, out, count);
	if (!rc && others->fused)
		rc = consider_saves(&at, others->fused, few);
	int fits = others->is_one_stage || at.best.choice.round;
	add_plans(&at, OF_ONE, out, count);
	at = none;
	if (!rc && fits)
		rc = consider_smaller_fused(&at, others->is_one_stage ? 1 : others->fused);
	add_plans(&at, FEW, out, count);
	return rc;
}

int planning_rounds(struct planning *planning, struct candidate out[RH_RUN_PLANS_MOST], int *count)
{
	const struct rh_run_request *request = planning->request;
	struct choosing at = {.planning = planning,
	                      .best = {.cap_bytes = -1},
	                      .tie = planning->balance.up_bytes_per_s > 0 ? same_time : same_time_by_compute_alone};
	*count = 0;
	if (!planning->stages.trains || !request->machine.device_room || !planning->costs.layers ||
	    !rh_schedule_has_rounds(planning->executor.schedule))
		return 0;
	int rc = consider_all(&at);
	if (!rc)
		rc = consider_plain(&at);
	if (!rc)
		rc = consider_shorter(&at);
	if (at.best.choice.round)
		out[(*count)++] = at.best;
	for (int i = 0; i < at.others; i++)
		out[(*count)++] = at.other[i];
	return rc ? rc : add_saves(&at, out, count);
}

int planning_other_cuts(struct planning *planning, struct candidate candidate[RH_RUN_PLANS_MOST], int *count)
{
	static const enum cutter others[] = {CUT_FOR_PERIOD, CUT_BY_WEIGHT};
	if (planning->executor.schedule->update == RH_UPDATE_LOCAL)
		return 0;
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		struct choice choice = candidate[0].choice;
		struct candidate *now = &candidate[*count];
		choice.cutter = others[i];
		int rc = planning_fit(planning, &choice, now), same = 0;
		if (rc && rc != RH_DOES_NOT_FIT)
			return rc;
		for (int k = 0; !rc && k < *count; k++)
			same |= are_same(&candidate[k], now);
		if (rc)
			rh_error_clear();
		if (rc || same)
			candidate_free(now);
		else
			++*count;
	}
	return 0;
}
