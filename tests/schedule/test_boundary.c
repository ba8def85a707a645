/* Boundary buffers: who reads them, how many are needed at once, first in first out. */
#include "check.h"
#include "eight_layers.h"

#include "schedule/needs.h"
#include "schedule/schedule.h"

static void test_readers_are_the_stages_that_begin_there(void **state)
{
	(void)state;
	const int training[LAYERS] = {0, 0, 1, 1, 0, 1, 0, 0}, inference[LAYERS] = {0, 0, 1, 0, 0, 1, 0, 0};
	for (int l = 0; l < LAYERS; l++) {
		assert_int_equal(rh_boundary_readers(&plan, 1, l), training[l]);
		assert_int_equal(rh_boundary_readers(&plan, 0, l), inference[l]);
	}
}

static int needed_by(const struct rh_stage_plan *of, int devices, int trains, int64_t micro_batches, int64_t round)
{
	struct rh_program program = {0};
	int turn = 0, count = -1;
	check_ok(rh_roundpipe_program(of, trains, devices, micro_batches, round < micro_batches ? round : micro_batches, &turn, &program));
	check_ok(rh_boundaries_needed(of, LAYERS, &program, micro_batches, &count));
	rh_program_free(&program);
	return count;
}

static int needed(int trains, int64_t micro_batches, int64_t round)
{
	return needed_by(&plan, 2, trains, micro_batches, round);
}

/* One more than the live ones, as an output is made before its input is given back. */
static void test_needed_buffers_follow_the_round(void **state)
{
	(void)state;
	for (int64_t m = 1; m <= 9; m++) {
		/* saved inputs at 3 for the backward, then at 5 for the fused stage, while 2 drains: 2M + 1 at the second forward slot */
		assert_int_equal(needed(1, m, m), 2 * m + 1);
		assert_int_equal(needed(0, m, m), m + 1);
		assert_int_equal(needed(1, m, 1), 3);
	}
	assert_int_equal(needed(1, 7, 3), 7); /* rounds of 3, 2, 2 */
}

/* Of all steps up to the longest that one or the one of whole rounds below it wants most: what is reserved goes by these two. */
static void test_no_shorter_step_needs_more(void **state)
{
	(void)state;
	for (int p = 0; p < 2; p++)
		for (int devices = 1; devices <= 8; devices = devices * 3 / 2 + 1)
			for (int trains = 0; trains < 2; trains++)
				for (int64_t round = 1; round <= 9; round++)
					for (int64_t count = 1, most = 0; count <= 20; count++) {
						int64_t whole = (count - 1) / round * round;
						int here = needed_by(all_plans[p], devices, trains, count, round);
						int below = whole ? needed_by(all_plans[p], devices, trains, whole, round) : 0;
						most = here > most ? here : most;
						assert_int_equal(here > below ? here : below, most);
					}
}

static int needed_in_round(const struct rh_stage_plan *of, int trains, int64_t micro_batches)
{
	struct rh_program program = {0};
	int turn = 0, count = -1;
	check_ok(rh_roundpipe_program(of, trains, 3, 1, 1, &turn, &program));
	check_ok(rh_boundaries_needed_in_round(of, LAYERS, &program, micro_batches, &count, NULL));
	rh_program_free(&program);
	return count;
}

static void test_a_round_is_known_by_one_micro_batch(void **state)
{
	(void)state;
	for (int p = 0; p < PLANS; p++)
		for (int trains = 0; trains < 2; trains++) {
			for (int64_t m = 1; m <= 12; m++)
				assert_int_equal(needed_in_round(all_plans[p], trains, m), needed_by(all_plans[p], 3, trains, m, m));
			for (int64_t round = 1; round <= 5; round++)
				assert_int_equal(needed_in_round(all_plans[p], trains, round),
				                 needed_by(all_plans[p], 3, trains, 4 * round, round));
		}
	assert_int_equal(needed_in_round(&plan, 1, 1 << 20), (2 << 20) + 1);
	assert_true(needed_in_round(&deeper, 1, INT64_C(1) << 40) > 1 << 28);
}

/* Of the other schedules only the longest steps are looked at. */
static void test_no_step_of_any_schedule_needs_more(void **state)
{
	(void)state;
	enum { DEEP = 9, MOST = 48 };
	struct rh_stage up[DEEP], down[DEEP];
	const struct rh_model model = {.layers = DEEP};
	int compared = 0;
	for (int i = 0; i < rh_schedule_count; i++)
		for (int devices = 2; devices <= 4; devices++)
			for (int each = 1; each <= 2; each++) {
				const struct rh_schedule *schedule = &rh_schedules[i];
				int stages = each * devices, needed[MOST + 1] = {0};
				struct rh_stage_plan cut = {.forward = up,
				                            .backward = down,
				                            .forward_stages = stages - 1,
				                            .backward_stages = stages,
				                            .boundary_bytes = 1};
				if (rh_schedule_has_rounds(schedule) || schedule->update == RH_UPDATE_LOCAL || schedule->splits_backward ||
				    each < schedule->stages_least || each > schedule->stages_most)
					continue;
				for (int s = 0; s < stages; s++) {
					struct rh_stage stage = {s, s + 1 < stages ? s + 1 : DEEP};
					up[s] = stage;
					down[stages - 1 - s] = stage;
				}
				for (int count = 1; count <= MOST; count++) {
					struct rh_program program = {0};
					const struct rh_boundary_run run = {.dispatch = {.plan = &cut,
					                                                 .model = &model,
					                                                 .schedule = schedule,
					                                                 .devices = devices,
					                                                 .train_micro_batches = count,
					                                                 .train_round = count}};
					struct rh_boundary_needs room;
					int turn = 0;
					check_ok(rh_dispatch_call(&run.dispatch, 1, count, &turn, &program));
					check_ok(rh_boundaries_needed(&cut, DEEP, &program, count, &needed[count]));
					needed[count] = needed[count] > needed[count - 1] ? needed[count] : needed[count - 1];
					check_ok(rh_boundary_needs(&run, &room));
					assert_int_equal(room.count, needed[count]);
					rh_program_free(&program);
					compared++;
				}
			}
	printf("%d steps\n", compared);
	assert_true(compared > 500);
}

static void test_buffers_come_back_first_in_first_out(void **state)
{
	(void)state;
	const int count[RH_BOUNDARY_POOLS] = {4, [RH_BOUNDARY_TO_BELOW] = 1};
	const struct rh_boundary_want one = {.readers = 1}, two = {.readers = 2}, latest = {.readers = 1, .is_latest = 1},
	                              below = {.pool = RH_BOUNDARY_TO_BELOW, .readers = 1};
	struct rh_boundaries books;
	check_ok(rh_boundaries_create(count, LAYERS, 5, &books));
	int a = rh_boundary_acquire(&books, two, RH_BOUNDARY_ACTIVATION, 2, 0),
	    b = rh_boundary_acquire(&books, one, RH_BOUNDARY_GRADIENT, 2, 0);
	int d = rh_boundary_acquire(&books, below, RH_BOUNDARY_GRADIENT, 0, 0);
	assert_true(a != b && d == 4); /* a pool of its own, behind the others */
	assert_int_equal(rh_boundary_find(&books, RH_BOUNDARY_ACTIVATION, 2, 0), a);
	assert_false(rh_boundary_release(&books, RH_BOUNDARY_ACTIVATION, 2, 0)); /* one reader is left */
	assert_int_equal(rh_boundary_find(&books, RH_BOUNDARY_ACTIVATION, 2, 0), a);
	assert_true(rh_boundary_release(&books, RH_BOUNDARY_GRADIENT, 2, 0));
	int c = rh_boundary_acquire(&books, one, RH_BOUNDARY_ACTIVATION, 5, 3);
	assert_true(c != a && c != b && c != d); /* the one that has been free longest */
	assert_int_equal(rh_boundary_acquire(&books, latest, RH_BOUNDARY_ACTIVATION, 5, 2), b);
	assert_true(rh_boundary_release(&books, RH_BOUNDARY_ACTIVATION, 5, 2));
	int e = rh_boundary_acquire(&books, one, RH_BOUNDARY_ACTIVATION, 4, 1);
	assert_true(e != a && e != b && e != c && e != d);
	assert_int_equal(rh_boundary_acquire(&books, one, RH_BOUNDARY_ACTIVATION, 4, 2), b);
	assert_true(rh_boundary_release(&books, RH_BOUNDARY_GRADIENT, 0, 0));
	assert_int_equal(rh_boundary_acquire(&books, below, RH_BOUNDARY_GRADIENT, 0, 4), d);
	assert_int_equal(books.pool[RH_BOUNDARY_OWN].least_free, 0);
	rh_boundaries_destroy(&books);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_readers_are_the_stages_that_begin_there),
	        cmocka_unit_test(test_needed_buffers_follow_the_round),
	        cmocka_unit_test(test_no_shorter_step_needs_more),
	        cmocka_unit_test(test_a_round_is_known_by_one_micro_batch),
	        cmocka_unit_test(test_no_step_of_any_schedule_needs_more),
	        cmocka_unit_test(test_buffers_come_back_first_in_first_out),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
