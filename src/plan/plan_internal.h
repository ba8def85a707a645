/* Inside the planner: the state of one request, and the candidates that it compares. */
#ifndef RH_PLAN_PLAN_INTERNAL_H
#define RH_PLAN_PLAN_INTERNAL_H

#include "partition/costs.h"
#include "plan/balance.h"
#include "plan/run_plan.h"

/* How stages are cut, where the user does not: by time (rh_partition_make, rh_partition_long_rounds), as large as memory allows, as small
 * as their number allows, or a layer each below a fused stage. Stages that are bound to devices: by PACI's partitioner alone, by it and the
 * schedule's own order, or by weight. */
enum cutter { CUT_FOR_ROUNDS, CUT_FOR_LONG_ROUNDS, CUT_BY_MEMORY, CUT_SMALL, CUT_BELOW_FUSED, CUT_FOR_PERIOD, CUT_FOR_STEP, CUT_BY_WEIGHT };

/* How much of what the link carries while a layer computes its stage saves in host memory: none, what that memory has room for, inputs of
 * layers alone, half, as much as the host's memory carries of all devices' forwards at once, or all (choose_saves.c). One device has all
 * but the inputs and what several devices' forwards share, several all but the second. */
enum saves { SAVES_NONE, SAVES_FITTING, SAVES_INPUTS, SAVES_HALF, SAVES_HOST, SAVES_ALL, SAVES };

/* What the planner decides before it cuts stages. */
struct choice {
	int64_t round; /* micro-batches in a round */
	enum cutter cutter;
	int64_t most_bytes; /* of a device's memory, that stages may take; 0: all of it */
	int fused;          /* with CUT_BELOW_FUSED: the fused stage's first layer */
	enum saves saves;
	int saves_from;   /* of several devices: the lowest layer of which more than the input is saved */
	int stages_most;  /* most stages, for host memory or with CUT_SMALL; 0: any number */
	int spill;        /* what lies on NVMe: bits of enum rh_spill */
	int frozen_share; /* of struct rh_store_options */
	enum rh_plain plain;
};

/* A choice and the plan that follows from it. It may be moved: nothing in it points into itself. */
struct candidate {
	struct choice choice;
	int64_t cap_bytes; /* of a device; below 0: stages are not cut yet */
	int joined;        /* steps overlap (rh_executor_begin) */
	int no_stages_fit; /* the cap is too small for any stages, so spilling more cannot help */
	struct rh_stage_plan stages;
	struct rh_balanced balanced;
	double late_s; /* of balanced.step_s, while plans are ranked: what the host's memory makes a step longer, by an estimate */
	int64_t head_rows;
	int64_t table_rows; /* of struct rh_executor_plan */
	int64_t spare;      /* boundary buffers beyond the least */
	struct rh_run_bytes bytes;
};

/* The store's bytes, and what of its options they were measured with. */
struct store_sizes {
	int is_known, spill, frozen_share, crosses_rounds, stash;
	int64_t bytes, page_bytes;
	struct rh_store_nvme nvme;
};

struct planning {
	const struct rh_run_request *request;
	struct rh_stage_plan_request stages; /* without cap and round, which each candidate has of its own */
	struct rh_executor_plan executor;
	struct rh_store_options store;
	struct rh_costs costs; /* costs.layers 0: the costs of layers are not known */
	struct rh_balance balance;
	struct store_sizes store_sizes;
	int cuts_devices; /* stages are bound to devices, and planning_cut_devices may cut them: into as many as `cuts` does by weight */
	int cuts_by_time; /* else stages are packed, or cut by the user */
	struct rh_stage_plan_found found;
	int64_t *cuts, *each_layer; /* (layers) 1, 2, ... */
	struct rh_fates *saves;     /* (SAVES - 1, layers): from SAVES_FITTING on; NULL: no stage may save */
	struct {
		struct rh_fates *fates; /* (layers) */
		struct rh_costs costs;
	} shared; /* what follows from the latest choice that saves, of several devices */
	struct rh_deferral *deferral;
	struct rh_fates *fates;
	struct rh_boxes boxes; /* boxes.boxes 0: this one alone */
	int64_t data_bytes, reading_bytes;
	int spill;       /* what the plans that are searched for now put on NVMe: bits of enum rh_spill without AUTO */
	int frozen_most; /* with `auto`, of RH_STORE_FROZEN_PARTS frozen blocks the most that are spilled */
	int lacks_ram;   /* since it was last cleared, a choice did not fit for want of host memory, or had fewer spare buffers */
};

/* NULL: this box alone. */
static inline const struct rh_boxes *planning_boxes(const struct planning *planning)
{
	return planning->boxes.boxes ? &planning->boxes : NULL;
}

/* The most stages whose boundaries and spare buffers fit the host's memory, estimated from the latest plan. 0: no such number. */
int planning_allowed_stages(const struct planning *planning, const struct candidate *candidate);

void candidate_free(struct candidate *candidate);
/* By the recurrence; where drives take longer than both, the one with less other work is. */
static inline int candidate_is_faster(const struct candidate *a, const struct candidate *b)
{
	const struct rh_balanced *x = &a->balanced, *y = &b->balanced;
	return x->step_s < y->step_s || (x->step_s <= y->step_s && x->work_s < y->work_s);
}
/* Writes what follows from a choice, rounds and tiers, into the options. */
void planning_apply(struct planning *planning, const struct choice *choice);
/* Plans a choice within every budget. *out is zeroed, or the result of an earlier call that spilled other kinds: stages that stay the same
 * are not cut again. RH_DOES_NOT_FIT where max_vram or max_ram is too small. */
int planning_fit(struct planning *planning, const struct choice *choice, struct candidate *out) RH_MUST;

/* The best few plans with different numbers of rounds, for devices with memory of their own. out[0] is the recurrence's choice; the others
 * follow, fastest first. *count 0: this run has no choice of rounds. The caller frees the candidates, also after an error. */
int planning_rounds(struct planning *planning, struct candidate out[RH_RUN_PLANS_MOST], int *count) RH_MUST;

/* choose_saves.c: stages that save rows of the activation table in host memory rather than recompute them, as far as the link carries them
 * while the layer computes. Of one device these are stages of one layer below the fused one; of several any, cut by time for what they
 * still recompute.
 *
 * planning_may_save   may stages save?
 * planning_weigh_saves  chooses the rows of each layer; bytes_free: of host memory, beside a plan that saves none
 * planning_cut_saves  sets what of the request follows from a choice with CUT_BELOW_FUSED
 * planning_try_saves  plans that choice with as large a fused stage as fits, from choice->fused on, in as few rounds as fit, from
 *                     choice->round on; RH_DOES_NOT_FIT
 * planning_share_saves  sets what follows from a choice of several devices that saves: fates, and costs to cut stages by
 * planning_are_saves_alike  do two levels save the same?
 * planning_shared_saves  there are a few ways for several devices to save: puts way *number, from 0, or the next one that is another, into
 *                     the choice and the number after it into *number; 0: no such way
 * planning_host_late  such a candidate's late_s
 * planning_try_shared_saves  plans that choice, with fewer layers that save where host memory is too small for all; RH_DOES_NOT_FIT */
int planning_may_save(const struct planning *planning);
int planning_weigh_saves(struct planning *planning, int64_t bytes_free) RH_MUST;
void planning_cut_saves(const struct planning *planning, const struct choice *choice, struct rh_stage_plan_request *request);
int planning_try_saves(struct planning *planning, struct choice choice, struct candidate *out) RH_MUST;
int planning_share_saves(struct planning *planning, const struct choice *choice, struct rh_stage_plan_request *request,
                         struct rh_balance *balance) RH_MUST;
int planning_are_saves_alike(const struct planning *planning, enum saves a, enum saves b);
int planning_shared_saves(struct planning *planning, int *number, struct choice *choice);
double planning_host_late(const struct planning *planning, const struct candidate *candidate);
int planning_try_shared_saves(struct planning *planning, struct choice choice, struct candidate *out) RH_MUST;

/* run_plan.c: the plans with these kinds on NVMe: those with different rounds, or one with rounds of the default length. If none fits, the
 * bytes of candidate[0] say what is too small. */
int planning_find(struct planning *planning, struct candidate candidate[RH_RUN_PLANS_MOST], int *count) RH_MUST;

/* choose_spill.c
 *
 * planning_find_spilled   planning_find with `spill: auto`: with nothing on NVMe, and, where host memory is short, with each of the smaller
 *                         sets of kinds that is enough. The fastest first, by a lower bound
 * planning_spill_less     of a plan that fits: with `auto`, leaves as many frozen weights in memory as fit
 * planning_drive_seconds  lower bound on a step's time by what its drives read and write */
int planning_find_spilled(struct planning *planning, struct candidate candidate[RH_RUN_PLANS_MOST], int *count) RH_MUST;
int planning_spill_less(struct planning *planning, struct candidate *candidate) RH_MUST;
double planning_drive_seconds(const struct planning *planning, const struct candidate *candidate);

/* Finds the schedule that training follows. For one other than RoundPipe it also sets the cuts, how many weight gradients each stage
 * defers, and whether gradient sums cross rounds. */
int planning_schedule(struct planning *planning) RH_MUST;

/* What the schedule's programs are made from. */
struct rh_dispatch planning_dispatch(const struct planning *planning);

/* Makes a plan whose stages, as many as the request cuts, are cut by time within the request's cap. cutter: CUT_FOR_PERIOD or, where steps
 * are flushed, CUT_FOR_STEP. RH_DOES_NOT_FIT: the line says by how much the best cuts exceed the cap. */
int planning_cut_devices(const struct planning *planning, const struct rh_stage_plan_request *request, enum cutter cutter,
                         struct rh_stage_plan *out) RH_MUST;
/* Where steps are flushed, so that cuts change no result: the plans that other cutters make than that of candidate[0], appended. */
int planning_other_cuts(struct planning *planning, struct candidate candidate[RH_RUN_PLANS_MOST], int *count) RH_MUST;

/* settle.c: makes a candidate the plan, with what executor and store are created with. The plan takes over its stages. */
void planning_settle(struct planning *planning, struct candidate *candidate, struct rh_run_plan *out);
/* run_plan.c: everything of a request but its schedule. */
void planning_describe(const struct rh_run_request *request, struct planning *out);
/* Frees what planning allocated, candidates excepted. */
void planning_close(struct planning *planning);

/* How many micro-batches a round of a forward-only call (evaluation, generation) has, where it runs in these stages. */
int64_t planning_infer_round(const struct planning *planning, const struct rh_stage_plan *stages);

/* plan_bytes.c: counts the bytes of a candidate whose stages are cut, by tier. */
int planning_count_bytes(struct planning *planning, struct candidate *candidate) RH_MUST;
/* The error line that says what host memory is needed for. */
int planning_refuse_ram(const struct candidate *candidate);

#endif
