#ifndef RH_PARTITION_PLAN_INTERNAL_H
#define RH_PARTITION_PLAN_INTERNAL_H

#include "partition/plan.h"

/* PASS_SAVED: forward that saves, and backward without recompute. */
enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_FUSED, PASS_SAVED, PASSES };

/* What one stage takes in one pass. */
struct plan_stage_bytes {
	int64_t arena; /* the peak of either kind of micro-batch; -1: not measured yet */
	int64_t train, infer;
	int64_t saved; /* what one micro-batch saves, in PASS_SAVED */
	int64_t late;  /* what its weight gradients are made of, where they are put off */
};

/* What a plan costs, to be made least: first what one device recomputes, in bytes of weights; then the number of stages. */
struct plan_cost {
	int64_t recomputed;
	int stages;
};

/* A request while it is being worked on. */
struct planner {
	const struct rh_plan_request *request;
	int layers;
	int alike;                             /* all layers between the first and the last emit the same ops */
	struct plan_stage_bytes *memo[PASSES]; /* of stages that were measured */
	struct rh_stage_state state;
	struct rh_view *boundary;         /* scratch: (layers + 1), absent */
	int64_t *offset;                  /* scratch: 2 per block */
	int64_t *below;                   /* (layers + 1) bytes of weights that the layers below upload, each for itself */
	int64_t *gradients_below;         /* (layers + 1) the same of the elements of their gradients */
	int *cuts_below;                  /* (layers + 1) how many backward stages begin below a layer */
	int64_t largest, largest_between; /* upload of one layer; of one that is neither the first nor the last */
	int64_t upload_limit;             /* of a stage of several layers, in this try */
	int64_t weight_room;              /* in this try */
	int64_t given_room;               /* that weights take where all stages are cut, 0: they are not */
};

/* Bytes that a stage uploads, each block once: a tied table is shared when both ends are in. */
int64_t plan_upload_bytes(const struct planner *at, enum pass pass, int lo, int hi);
/* Of the topmost backward stage: PASS_FUSED, but in a box that another follows, whose gradients come from there. */
enum pass plan_top_pass(const struct planner *at);
/* The layer above the topmost forward stage. */
int plan_forward_top(const struct planner *at, const struct rh_plan *plan);
/* All but the stages, for a request. plan_close frees what plan_open allocated, also where that failed. */
int plan_open(struct planner *at) RH_MUST;
void plan_close(struct planner *at);
/* What a device reserves for these stages, none of which saves: sets the plan's sizes, as plan_pack would. */
void plan_size(struct planner *at, struct rh_plan *plan);
/* One packing under an upload limit. */
int plan_pack(struct planner *at, int64_t limit, struct rh_plan *plan) RH_MUST;
/* What that costs at least, which takes far less time to know. Fails where the packing does, if not always. */
int plan_least_cost(struct planner *at, int64_t limit, struct rh_plan *scratch, struct plan_cost *out) RH_MUST;
/* The largest upload of the stages of several layers that are given, 0: none. Where all are, at->given_room is what weights take. */
int64_t plan_given_limit(struct planner *at, struct rh_plan *scratch);
/* The cheapest packing under any limit. */
int plan_search(struct planner *at, struct rh_plan *out) RH_MUST;

/* Room for the stages of a model of so many layers, all zero. rh_plan_free frees it, also where this failed. */
int plan_reserve(size_t layers, struct rh_plan *out) RH_MUST;

int plan_measure_open(struct planner *at) RH_MUST;
void plan_measure_close(struct planner *at);
/* Measured once; of stages of many alike layers gone on with from shorter ones, as each layer more adds as much as the one before. */
struct plan_stage_bytes plan_stage_bytes(struct planner *at, enum pass pass, int lo, int hi);
/* What a layer of any stage saves of a micro-batch at least; 0: not known. */
int64_t plan_least_saved(struct planner *at);

#endif
