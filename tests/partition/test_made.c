/* Where a device keeps what weights are made of. */
#include "check.h"

#include "partition/made.h"

static void test_arrays_take_what_is_left_largest_first(void **state)
{
	(void)state;
	struct rh_made_place place[RH_MADE_ARRAYS];
	struct rh_made_room room = {0};
	int64_t elements = 1000, four = rh_made_array_bytes(RH_MADE_FIRST, elements), two = rh_made_array_bytes(RH_MADE_LOWER, elements);
	assert_int_equal(four, 4096);
	assert_int_equal(two, 2048);
	assert_int_equal(rh_made_place(&room, elements, place), 0);
	room.region[RH_MADE_IN_GRADIENTS].at = 512;
	room.region[RH_MADE_IN_GRADIENTS].end = 512 + four;
	room.region[RH_MADE_IN_ROUNDED].end = two;
	room.region[RH_MADE_IN_OWN].end = four - 1;
	struct rh_made_room before = room;
	assert_int_equal(rh_made_place(&room, elements, place), 0); /* all of them or none */
	assert_memory_equal(&room, &before, sizeof room);
	room.region[RH_MADE_IN_OWN].end = four;
	assert_int_equal(rh_made_place(&room, elements, place), 1);
	assert_int_equal(place[RH_MADE_SECOND].region, RH_MADE_IN_GRADIENTS);
	assert_int_equal(place[RH_MADE_SECOND].at, 512);
	assert_int_equal(place[RH_MADE_FIRST].region, RH_MADE_IN_OWN);
	assert_int_equal(place[RH_MADE_LOWER].region, RH_MADE_IN_ROUNDED);
	for (int r = 0; r < RH_MADE_REGIONS; r++)
		assert_int_equal(room.region[r].at, room.region[r].end);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_arrays_take_what_is_left_largest_first),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
