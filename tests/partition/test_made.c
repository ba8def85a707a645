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

/* Eight blocks of one size under an embedding that is counted to the lowest: one a stage on four devices, two in the stages before. */
static void test_the_last_wave_makes_what_fits(void **state)
{
	(void)state;
	enum { LAYERS = 9, DEVICES = 4 };
	static const double BLOCK = 1e6, TABLE = 4e5;
	struct rh_layer_cost layer[LAYERS];
	double trained[LAYERS], made[LAYERS];
	for (int l = 0; l < LAYERS; l++) {
		trained[l] = BLOCK + (l ? 0 : TABLE);
		layer[l] = (struct rh_layer_cost){.upload_bytes = (int64_t)(2 * trained[l]), .gradient_bytes = (int64_t)(6 * trained[l])};
	}
	const struct rh_costs costs = {.layer = layer, .layers = LAYERS};
	struct rh_stage forward[] = {{0, 4}, {4, 8}}, backward[] = {{8, 9}, {6, 8}, {4, 6}, {3, 4}, {2, 3}, {1, 2}, {0, 1}};
	const struct rh_partition cuts = {.forward = forward, .backward = backward, .forward_stages = 2, .backward_stages = 7};
	/* the fewest bytes that stages take: sums 12e6, weights 8.8e6 and 4e6 */
	int64_t least = 24800000;
	int none = rh_made_layers(&cuts, &costs, trained, TABLE, DEVICES, least - 1000000, made);
	assert_int_equal(rh_made_layers(&cuts, &costs, trained, TABLE, DEVICES, least + 10000000, made), 5);
	for (int l = 0; l < LAYERS; l++)
		assert_true(made[l] == (l < 4 ? trained[l] : 0));
	assert_true(none < 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_arrays_take_what_is_left_largest_first),
	        cmocka_unit_test(test_the_last_wave_makes_what_fits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
