/* What a plan said of bytes against what the session's executor has taken since, to the byte: for the tests that start such sessions. */
#ifndef RH_TESTS_RUN_BYTES_CASE_H
#define RH_TESTS_RUN_BYTES_CASE_H

#include "check.h"

#include "run/executor_internal.h"
#include "session/session.h"

static inline void check_device_bytes(const struct rh_session *session)
{
	const struct rh_stage_plan *plan = &session->plan.stages;
	const struct rh_executor *executor = session->executor;
	int64_t most = 0;
	assert_int_equal(session->plan.bytes.device, plan->device_bytes);
	for (int d = 0; d < session->devices.count; d++) {
		struct rh_device_memory memory;
		session->devices.device[d]->ops->memory(session->devices.device[d], &memory);
		assert_int_equal(memory.reserved_bytes, plan->device_bytes);
		assert_int_equal(memory.peak_bytes, plan->device_bytes);
		assert_int_equal(executor->device[d].arena.used, 0);
		most = executor->device[d].arena.peak > most ? executor->device[d].arena.peak : most;
	}
	assert_int_equal(most, plan->arena_bytes);
}

static inline void check_host_bytes(const struct rh_session *session)
{
	const struct rh_executor *executor = session->executor;
	int64_t store;
	(void)rh_store_memory(session->store, &store);
	assert_int_equal(session->plan.bytes.store, rh_host_round(store));
	assert_int_equal(session->plan.bytes.boundaries,
	                 rh_host_round(executor->boundary_memory.capacity) + rh_host_round(executor->micro_memory.capacity));
	assert_int_equal(executor->lowering.limits.boundaries.bytes_each, session->plan.stages.boundary_bytes);
	/* the others were needed at once, but for one that was counted with what a micro-batch reads: that is free before it writes. Side by
	 * side slots need no more */
	if (executor->options.planned.devices == 1)
		assert_true(executor->lowering.boundaries.pool[RH_BOUNDARY_OWN].least_free <=
		            executor->options.planned.spare_boundaries + 1);
	assert_int_equal(session->plan.bytes.total - session->plan.bytes.store - session->plan.bytes.boundaries - session->plan.bytes.data -
	                         session->plan.bytes.host_devices * session->plan.bytes.device,
	                 session->plan.bytes.program + session->plan.bytes.checkpoints); /* the allowance that is printed */
}

#endif
