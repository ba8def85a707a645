#ifndef RH_PARTITION_STAGE_PLAN_INTERNAL_H
#define RH_PARTITION_STAGE_PLAN_INTERNAL_H

#include "partition/stage_plan.h"

/* PASS_KEPT: forward that keeps or saves activations by their fates, and the backward, which recomputes the others. */
enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_FUSED, PASS_KEPT, PASSES };

/* Where packed weights become plain: in a room, once a slot; or in the arena, for each product. */
enum plain { PLAIN_IN_ROOM, PLAIN_IN_ARENA, PLAINS };

/* Bytes of one stage in one pass. */
struct plan_stage_bytes {
	int64_t arena; /* the larger peak of the two kinds of micro-batch; -1: not measured yet */
	int64_t train, infer;
	int64_t kept, saved; /* activations of one micro-batch with these fates, in PASS_KEPT */
	int recomputes;      /* it has others */
	int64_t deferred;    /* operands of its weight gradients, where they are deferred */
};

/* Bytes of a stage whose layers have these fates. */
struct plan_fated {
	struct rh_stage stage; /* of no layers: none */
	enum plain plain;
	struct rh_fates *fates; /* of its layers, from its lowest on */
	struct plan_stage_bytes bytes;
};
enum { PLAN_FATED = 64 }; /* that are remembered */

/* What the search minimises: first the bytes of a next stage's weights for which there is no room while a stage runs, then the bytes of
 * weights whose layers one device recomputes, then the number of stages. */
struct plan_cost {
	int64_t not_prefetched;
	int64_t recomputed;
	int stages;
};

/* The state of one request. */
struct stage_planner {
	const struct rh_stage_plan_request *request;
	int layers;
	int alike;        /* all layers between the first and the last take the same bytes */
	int *kind;        /* (layers) else the lowest layer that emits the same ops */
	int makes_plain;  /* rh_model_makes_plain */
	enum plain plain; /* what is being tried; of a model of whose weights nothing is made IN_ROOM, which has no bytes */
	struct plan_stage_bytes *memo[PLAINS][PASSES]; /* of stages that were measured */
	struct rh_stage_state state;
	struct plan_fated *fated;         /* (FATED) the latest first */
	struct rh_fates *all_kept;        /* (layers) */
	struct rh_view *boundary;         /* scratch: (layers + 1), absent */
	int64_t *offset;                  /* scratch: 2 per block */
	int64_t *weight_bytes_below;      /* (layers + 1) bytes of weights that the layers below upload, shared blocks counted each time */
	int64_t *plain_bytes_below;       /* (layers + 1) the same of the plain matrices that are made of packed ones */
	int64_t *gradients_below;         /* (layers + 1) the same of the elements of their gradients */
	int *cuts_below;                  /* (layers + 1) how many backward stages begin below a layer */
	int64_t largest, largest_between; /* the largest upload of one layer; of one that is neither the first nor the last */
	int64_t upload_limit;             /* most bytes that a stage of several layers uploads, in the present packing */
	int64_t weight_room;              /* bytes for weights in the present packing */
	int64_t given_room;               /* bytes for weights where the user cut all stages; 0: the user did not */
};

/* 1: one device runs the whole model alone. A box among others is never alone: it has neighbours, and does better with few stages. */
int plan_is_alone(const struct rh_stage_plan_request *request);

/* Bytes that a stage uploads, each block once: a tied table is shared when both ends are in. */
int64_t plan_upload_bytes(const struct stage_planner *at, enum pass pass, int lo, int hi);
/* The pass of the topmost backward stage: PASS_FUSED, except in a box with a box above, which sends the gradients. */
enum pass plan_top_pass(const struct stage_planner *at);
/* The layer above the topmost forward stage. */
int plan_forward_top(const struct stage_planner *at, const struct rh_stage_plan *plan);
/* Counts the boundaries of the plan's backward stages, which forward stages keep: at->cuts_below. */
void plan_count_cuts(struct stage_planner *at, const struct rh_stage_plan *plan);
/* Sets the sizes that no stage changes. */
void plan_fixed_sizes(const struct rh_stage_plan_request *request, struct rh_stage_plan *plan);
/* Raise the plan's sizes to what this stage needs. The first looks at copies to and from the device alone, the second at all but the
 * arena of activations, which takes longer to measure, the third at everything. */
void plan_widen_transfers(const struct stage_planner *at, struct rh_stage_plan *plan, enum pass pass, int lo, int hi);
void plan_widen_but_arena(const struct stage_planner *at, struct rh_stage_plan *plan, enum pass pass, int lo, int hi);
void plan_widen(struct stage_planner *at, struct rh_stage_plan *plan, enum pass pass, int lo, int hi);
/* The plan widened by this stage, with the try's room for weights. */
struct rh_stage_plan plan_widened(struct stage_planner *at, const struct rh_stage_plan *plan, enum pass pass, int lo, int hi);
int64_t plan_total_bytes(const struct rh_stage_plan *plan);
/* Would the plan, widened by this stage, stay under the cap, and the stage under the try's upload limit? A single layer may be above. */
int plan_fits(struct stage_planner *at, const struct rh_stage_plan *plan, enum pass pass, int lo, int hi);
/* Allocates and measures what every packing needs. plan_close frees it, also after plan_open failed. */
int plan_open(struct stage_planner *at) RH_MUST;
void plan_close(struct stage_planner *at);
/* Sets the sizes of a plan with these stages, none of which saves activations, as plan_pack would. */
void plan_size(struct stage_planner *at, struct rh_stage_plan *plan);
/* rh_stage_plan_sizer_stage_bytes. */
int64_t plan_stage_device_bytes(struct stage_planner *at, struct rh_stage stage, int64_t deferred);
/* The most bytes of weights that a device holds of two slots that follow one another on it. */
int64_t plan_two_in_turn(const struct stage_planner *at, const struct rh_stage_plan *plan);
/* Packs the stages under one upload limit. */
int plan_pack(struct stage_planner *at, int64_t limit, struct rh_stage_plan *plan) RH_MUST;
/* The error once no packing fits. Where a layer does not fit even as a stage of its own, the line names the layer that needs the most
 * memory, and how much is enough for each layer alone; else the line stays as it is. */
int plan_refuse(struct stage_planner *at) RH_MUST;
/* Lower bound on that packing's cost, found much sooner. It may exist for a packing that does not fit; only plan_pack finds that out. */
int plan_least_cost(struct stage_planner *at, int64_t limit, struct rh_stage_plan *scratch, struct plan_cost *out) RH_MUST;
/* The largest upload of the user's stages of several layers; 0: there are none. Sets at->given_room. */
int64_t plan_given_limit(struct stage_planner *at, struct rh_stage_plan *scratch);
/* The cheapest packing under any limit. */
int plan_search(struct stage_planner *at, struct rh_stage_plan *out) RH_MUST;

/* Room for the stages of a model of so many layers, all zero. rh_stage_plan_free frees it, also where this failed. */
int plan_reserve(size_t layers, struct rh_stage_plan *out) RH_MUST;
/* An empty plan with the same arrays; *to with all that *from has, in its own arrays. */
struct rh_stage_plan plan_lists(const struct rh_stage_plan *plan);
void plan_assign(struct rh_stage_plan *to, const struct rh_stage_plan *from);

int plan_measure_open(struct stage_planner *at) RH_MUST;
void plan_measure_close(struct stage_planner *at);
/* Bytes of a stage, measured once. Stages of many alike layers are extrapolated linearly from two shorter ones. */
struct plan_stage_bytes plan_stage_bytes(struct stage_planner *at, enum pass pass, int lo, int hi);
/* Of a stage with these fates, in PASS_KEPT. */
struct plan_stage_bytes plan_fated_bytes(struct stage_planner *at, const struct rh_fates *fates, int lo, int hi);
/* Lower bound on the bytes that one layer keeps of a micro-batch; 0: not known. */
int64_t plan_least_kept(struct stage_planner *at);

#endif
