/* The checker: runs lanes on symbolic contents, in the order of positions, and proves three things.
 *
 *   - Each command finds what the program owes it: a forward of step 7 the weights after the updates that step 7 computes with, a sum of
 *     micro-batches 0 to m - 1 where micro-batch m is added, the activation of its own micro-batch.
 *   - Two commands that touch the same bytes, one of them writing, are ordered by lanes and waits. So whatever order a run takes, each
 *     command finds what it finds here.
 *   - All bytes lie within what the plan gives each room.
 *
 * Waits that only keep a pace are not counted on. Steps may follow one another: contents stay from call to call. */
#ifndef RH_RUN_CHECK_H
#define RH_RUN_CHECK_H

#include "run/lane.h"

struct rh_check_options {
	const struct rh_model *model;     /* borrowed */
	const struct rh_stage_plan *plan; /* borrowed; may be of other devices' kind: bytes alone are read */
	int devices;
	int crosses_rounds; /* the store has a place for every sum */
	int chunks;         /* places of a text's chunks, where a training step's micro-batches are chunks; else 0 or 1 */
	int stale;          /* updates go to the master, and are published by WEIGHTS_READY */
	/* rh_check_rooms fills what the plan and the model know; the caller sets the counts of host rooms. */
	struct rh_room_size room[RH_ROOMS];
};
/* micro_batches: places of HOST_MICRO and HOST_RESULT. */
void rh_check_rooms(struct rh_check_options *options, int64_t micro_batches);

/* A call, by the step that its commands name. */
struct rh_check_call {
	int64_t step;
	int64_t micro_batches;
	int64_t version; /* updates that the call's weights have had; -1: all that come before each command (local updates) */
	int trains;
	int updates; /* its gradients go to the optimizer */
	int clips;
};

struct rh_check_fault {
	int64_t position, other; /* of the command at fault, and of the one that it is at odds with: -1: none. No fault: both -1 */
	char text[1024];         /* one line */
};

struct rh_check;
int rh_check_create(const struct rh_check_options *options, struct rh_check **out) RH_MUST;
void rh_check_destroy(struct rh_check *check);

/* Before commands of the call are run. */
int rh_check_expect(struct rh_check *check, const struct rh_check_call *call) RH_MUST;
/* Runs all commands of all calls, once. After a fault nothing else is run. -ENOMEM. */
int rh_check_run(struct rh_check *check, const struct rh_lanes *lanes, struct rh_check_fault *out) RH_MUST;
/* Checks that every call is complete, its results read, its gradients taken. */
void rh_check_finish(struct rh_check *check, struct rh_check_fault *out);

#endif
