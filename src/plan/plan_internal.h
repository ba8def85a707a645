/* Inside the planner: a request while it is being worked on, and the candidates that it compares. */
#ifndef RH_PLAN_PLAN_INTERNAL_H
#define RH_PLAN_PLAN_INTERNAL_H

#include "partition/costs.h"
#include "plan/balance.h"
#include "plan/run_plan.h"

/* What is decided before stages are made. */
struct choice {
	int64_t round;   /* micro-batches in a round */
	int long_rounds; /* cuts by the partitioner for long rounds */
	int stages_most; /* by the host's memory; 0: any number */
	int kinds;       /* on NVMe: bits of enum rh_spill */
};

/* A plan with the choice that it follows from. Nothing in it points into itself. */
struct candidate {
	struct choice choice;
	int64_t cap_bytes; /* of a device; below 0: there are no stages yet */
	int joined;        /* steps are */
	int unfit;         /* no stages fit the cap, whatever goes to NVMe */
	struct rh_plan stages;
	struct rh_balanced balanced;
	int64_t head_rows;
	int64_t spare; /* boundary buffers beyond the least */
	struct rh_run_bytes bytes;
};

struct planning {
	const struct rh_run_request *request;
	struct rh_plan_request stages; /* but for cap and round, which candidates have */
	struct rh_executor_options options;
	struct rh_store_options store;
	struct rh_costs costs; /* costs.layers: what layers take is known */
	struct rh_balance balance;
	int balances; /* stages are chosen by time */
	struct rh_plan_found found;
	int64_t *cuts;
	struct rh_put_off *put_off;
	struct rh_boxes boxes; /* of options.boxes, where there are several */
	int64_t data_bytes;
};

void candidate_free(struct candidate *candidate);
/* What follows from a choice, into the request's options: rounds, tiers. */
void planning_apply(struct planning *planning, const struct choice *choice);
/* The plan of a choice within every budget. *out is zeroed, or what an earlier call for other kinds left: its stages are taken where they
 * are the same. RH_DOES_NOT_FIT where max_vram or max_ram are too little. */
int planning_fit(struct planning *planning, const struct choice *choice, struct candidate *out) RH_MUST;

/* The best few plans of different numbers of rounds, where devices have memory of their own: out[0] is the choice by the recurrence, the
 * others follow, the fastest first. *count 0: nothing has been planned. The caller frees what there is, also after an error. */
int planning_rounds(struct planning *planning, struct candidate out[RH_RUN_PLANS_MOST], int *count) RH_MUST;

/* Which schedule training follows, and what follows from one that is not RoundPipe: its cuts, how much of each backward is put off, sums
 * that cross rounds. */
int planning_schedule(struct planning *planning) RH_MUST;

/* settle.c: the plan that a candidate is, and what executor and store are created with. The candidate's stages are then the plan's. */
void planning_settle(struct planning *planning, struct candidate *candidate, struct rh_run_plan *out);
/* run_plan.c: a request, but for its schedule. */
void planning_describe(const struct rh_run_request *request, struct planning *out);
/* What planning allocated beside its candidates. */
void planning_close(struct planning *planning);

/* plan_bytes.c: bytes of a candidate whose stages are made, by tier. */
int planning_count_bytes(const struct planning *planning, struct candidate *candidate) RH_MUST;
/* What the memory is for, in a line that a person reads. */
int planning_refuse_ram(const struct candidate *candidate);

#endif
