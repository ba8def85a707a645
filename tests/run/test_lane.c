/* Lanes as storage: positions, waits. The checker has test_check.c, today's executor on lanes test_recorded.c. */
#include "check.h"

#include "core/alloc.h"
#include "run/lane.h"

#include <string.h>

static void expect_waits(const struct rh_waits *waits, const int64_t *position, int count, int paces)
{
	assert_int_equal(waits->count, count);
	assert_int_equal(waits->paces, paces);
	for (int i = 0; i < count; i++) {
		assert_int_equal(waits->wait[i].position, position[i]);
		assert_int_equal(waits->wait[i].why, i < count - paces ? RH_WAIT_NEEDS : RH_WAIT_PACES);
	}
}

static void await(struct rh_waits *waits, int64_t position, int lane, enum rh_wait_for why)
{
	check_ok(rh_waits_add(waits, (struct rh_wait){position, lane, why}));
}

static void test_lane_wait_keeps_the_latest_of_each_other_lane(void **state)
{
	(void)state;
	enum { A = 10, B, C, D };
	struct rh_waits waits = {0};
	await(&waits, A, 0, RH_WAIT_NEEDS);
	await(&waits, C, 1, RH_WAIT_PACES);
	await(&waits, B, 0, RH_WAIT_NEEDS);
	await(&waits, A, 0, RH_WAIT_NEEDS);
	expect_waits(&waits, (int64_t[]){B, C}, 2, 1);
	await(&waits, C, 1, RH_WAIT_NEEDS); /* now a result needs it */
	expect_waits(&waits, (int64_t[]){B, C}, 2, 0);
	waits.count = waits.paces = 0;
	await(&waits, B, 0, RH_WAIT_PACES);
	await(&waits, A, 0, RH_WAIT_NEEDS); /* the later one may be forgotten by the checker: both stay */
	expect_waits(&waits, (int64_t[]){A, B}, 2, 1);
	await(&waits, D, 0, RH_WAIT_NEEDS);
	expect_waits(&waits, (int64_t[]){D}, 1, 0);
	rh_free(waits.wait);
}

static void test_lane_add_drops_waits_for_what_is_over(void **state)
{
	(void)state;
	struct rh_lanes lanes = {.first = 20};
	const struct rh_command command = {.kind = RH_COMMAND_COPY};
	assert_int_equal(rh_lanes_add_lane(&lanes, (struct rh_lane){.queue = RH_QUEUE_CALLER}), 0);
	struct rh_waits old = {.count = 2, .paces = 1, .wait = (struct rh_wait[]){{19, 1, RH_WAIT_NEEDS}, {3, 2, RH_WAIT_PACES}}};
	struct rh_waits new = {.count = 2, .paces = 1, .wait = (struct rh_wait[]){{19, 1, RH_WAIT_NEEDS}, {20, 0, RH_WAIT_PACES}}};
	check_ok(rh_lanes_add(&lanes, &command, &old));
	check_ok(rh_lanes_add(&lanes, &command, &new));
	const struct rh_command *first = rh_command_at(&lanes, 20), *second = rh_command_at(&lanes, 21);
	assert_int_equal(first->waits + first->paces, 0);
	assert_int_equal(second->waits, 1);
	assert_int_equal(second->paces, 1);
	assert_int_equal(lanes.wait[second->first_wait], 20);
	rh_lanes_free(&lanes);
}

static void test_lane_describe_names_every_kind(void **state)
{
	(void)state;
	struct rh_lanes lanes = {0};
	char text[256];
	assert_int_equal(rh_lanes_add_lane(&lanes, (struct rh_lane){.queue = RH_QUEUE_CALLER}), 0);
	const struct rh_command command = {.kind = RH_COMMAND_COPY,
	                                   .block = 3,
	                                   .step = 2,
	                                   .micro_batch = -1,
	                                   .source = {.room = RH_ROOM_HOST_WEIGHTS, .device = -1, .number = 3, .first = 0, .bytes = 256},
	                                   .target = {.room = RH_ROOM_WEIGHTS, .device = 1, .number = 3, .first = 512, .bytes = 256}};
	rh_command_describe(&lanes, &command, text, sizeof text);
	assert_string_equal(
	        text, "0 copy of block 3, step 2, from host weights 3 at 0+256, to device 1's weights 3 at 512+256 (lane 0, queue 1)");
	const struct rh_command message = {
	        .kind = RH_COMMAND_SEND, .block = -1, .step = 2, .lo = 5, .hi = 5, .boundary = RH_BOUNDARY_GRADIENT, .source.device = -1};
	rh_command_describe(&lanes, &message, text, sizeof text);
	assert_string_equal(text, "0 send of a gradient at layer 5, step 2 micro-batch 0 (lane 0, queue 1)");
	for (int kind = 0; kind < RH_COMMANDS; kind++)
		assert_non_null(rh_command_name((enum rh_command_kind)kind));
	rh_lanes_free(&lanes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_lane_wait_keeps_the_latest_of_each_other_lane),
	                                   cmocka_unit_test(test_lane_add_drops_waits_for_what_is_over),
	                                   cmocka_unit_test(test_lane_describe_names_every_kind)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
