/* From configuration, model, machine and workload to a plan that every budget allows, and to what executor and store are created with. */
#ifndef RH_TRAIN_PLANNING_H
#define RH_TRAIN_PLANNING_H

#include "train/session.h"

/* Points into itself: is not copied or moved once it is made. */
struct planning {
	struct rh_plan_request request; /* all but the device's cap */
	struct rh_executor_options options;
	struct rh_store_options store;
	struct rh_device_grain grain;
	int64_t device_room; /* bytes of memory of its own that a device has; 0: its memory is the host's */
	/* boundary buffers beyond the least, where there is room: of boundaries in memory, and of those that go to NVMe */
	int64_t spare, spare_spilled;
	/* costs.layers: what layers take is known */
	struct rh_costs costs;
	struct rh_balance balance;
	int balances; /* stages are chosen by it */
	/* What the session's plan was made for: how much host memory may hold changes nothing in it. cap_bytes below 0: there is none. */
	struct planning_made {
		int64_t cap_bytes, round;
		int long_rounds, stages_most;
		int weights, joined; /* devices may make some; steps are joined */
	} made;
	/* A plan to be gone back to, of which the session has no copy. */
	struct {
		struct planning_made made;
		struct rh_plan plan;
		struct rh_balanced balanced;
		int64_t head_rows; /* of the model as it was cut */
	} kept;
	/* What no stages fit, and the line that says so: whatever goes to NVMe, they do not. cap_bytes below 0: nothing of the kind. */
	struct {
		int64_t cap_bytes, round;
		char line[RH_ERROR_LINE];
	} refused;
	struct rh_plan_found found;
};

/* Fills *out's options, all but the objects that are still to be created, and the session's plan, bytes, spill, schedule, cuts and
 * balance. Reserves nothing. RH_DOES_NOT_FIT where max_vram or max_ram are too little. */
int planning_make(struct rh_session *session, const struct rh_workload *work, enum rh_session_stages stages, struct planning *out) RH_MUST;

/* Steps in parts of at most `round` micro-batches. */
void planning_set_round(struct planning *planning, int64_t round);
/* Plans with these kinds on NVMe (enum rh_spill), within every budget. RH_DOES_NOT_FIT as planning_make. */
int planning_within_budget(struct rh_session *session, struct planning *planning, int kinds) RH_MUST;

/* Puts the session's plan aside, for when one for the same is asked for. */
void planning_keep(struct rh_session *session, struct planning *planning);

/* Of a step with more micro-batches than a round has by default, where devices have memory of their own: fewer rounds, if they fit the
 * budgets and a step is predicted to end sooner. 1: planned so; 0: nothing has been planned. */
int planning_rounds(struct rh_session *session, struct planning *planning) RH_MUST;

/* Which schedule training follows (NULL in the options: RoundPipe), and what follows from one that is not RoundPipe: its cuts, how much of
 * each backward is put off, sums that cross rounds. The request knows the devices. */
int planning_schedule(struct rh_session *session, const struct rh_workload *work, struct planning *planning) RH_MUST;

/* Bytes that so many steps write to NVMe, and what loading sets there. */
int64_t planning_nvme_writes(const struct rh_session *session, int64_t steps);
/* The planned bytes on NVMe, and those that so many steps write there, against their budgets. */
int planning_check_nvme(const struct rh_session *session, int64_t steps) RH_MUST;

#endif
