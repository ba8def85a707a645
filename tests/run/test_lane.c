/* Lanes as storage: positions, waits. The checker has test_check.c, today's executor on lanes test_recorded.c. */
#include "check.h"

#include "run/lane.h"

#include <string.h>

/* Three lanes; `lane` gets a command without operands, whose position comes back. */
static int64_t add(struct rh_lanes *lanes, int lane)
{
	struct rh_command command = {.kind = RH_COMMAND_COPY, .lane = lane, .block = -1, .micro_batch = -1}, *added;
	while (lanes->lanes < 3)
		assert_true(rh_lanes_add_lane(lanes, (struct rh_lane){.queue = RH_QUEUE_CALLER}) >= 0);
	check_ok(rh_lanes_add(lanes, &command, &added));
	return added->position;
}

static void expect_waits(const struct rh_lanes *lanes, int64_t position, const int64_t *wait, int waits, int paces)
{
	const struct rh_command *command = rh_command_at(lanes, position);
	assert_int_equal(command->waits, waits);
	assert_int_equal(command->paces, paces);
	assert_memory_equal(lanes->wait + command->first_wait, wait, (size_t)waits * sizeof *wait);
}

static void test_lane_wait_keeps_the_latest_of_each_other_lane(void **state)
{
	(void)state;
	struct rh_lanes lanes = {0};
	int64_t a = add(&lanes, 0), b = add(&lanes, 0), c = add(&lanes, 1), d = add(&lanes, 2);
	check_ok(rh_lanes_wait(&lanes, a, RH_WAIT_NEEDS));
	check_ok(rh_lanes_wait(&lanes, c, RH_WAIT_PACES));
	check_ok(rh_lanes_wait(&lanes, b, RH_WAIT_NEEDS));
	check_ok(rh_lanes_wait(&lanes, a, RH_WAIT_NEEDS));
	expect_waits(&lanes, d, (int64_t[]){b, c}, 2, 1);
	check_ok(rh_lanes_wait(&lanes, c, RH_WAIT_NEEDS)); /* now a result needs it */
	expect_waits(&lanes, d, (int64_t[]){b, c}, 2, 0);
	int64_t e = add(&lanes, 2);
	check_ok(rh_lanes_wait(&lanes, d, RH_WAIT_NEEDS)); /* its own lane's order needs none */
	check_ok(rh_lanes_wait(&lanes, b, RH_WAIT_PACES));
	check_ok(rh_lanes_wait(&lanes, a, RH_WAIT_NEEDS)); /* the later one may be forgotten by the checker: both stay */
	expect_waits(&lanes, e, (int64_t[]){a, b}, 2, 1);
	expect_waits(&lanes, d, (int64_t[]){b, c}, 2, 0);
	rh_lanes_free(&lanes);
}

static void test_lane_describe_names_every_kind(void **state)
{
	(void)state;
	struct rh_lanes lanes = {0};
	char text[256];
	int64_t a = add(&lanes, 0);
	struct rh_command *command = rh_command_at(&lanes, a);
	*command = (struct rh_command){.kind = RH_COMMAND_COPY,
	                               .block = 3,
	                               .step = 2,
	                               .micro_batch = -1,
	                               .from = {.room = RH_ROOM_HOST_WEIGHTS, .device = -1, .number = 3, .first = 0, .bytes = 256},
	                               .to = {.room = RH_ROOM_WEIGHTS, .device = 1, .number = 3, .first = 512, .bytes = 256}};
	rh_command_describe(&lanes, command, text, sizeof text);
	assert_string_equal(
	        text, "0 copy of block 3, step 2, from host weights 3 at 0+256, to device 1's weights 3 at 512+256 (lane 0, queue 1)");
	for (int kind = 0; kind < RH_COMMANDS; kind++)
		assert_non_null(rh_command_name((enum rh_command_kind)kind));
	rh_lanes_free(&lanes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_lane_wait_keeps_the_latest_of_each_other_lane),
	                                   cmocka_unit_test(test_lane_describe_names_every_kind)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
