/* RoundPipe's program: rounds, slots, devices. */
#include "check.h"

#include "core/alloc.h"
#include "schedule/program.h"

static struct rh_stage forward[] = {{0, 2}, {2, 5}}, backward[] = {{5, 8}, {3, 5}, {0, 3}};
static const struct rh_stage_plan plan = {.forward = forward, .backward = backward, .forward_stages = 2, .backward_stages = 3};

static void test_rounds_differ_by_at_most_one_longer_first(void **state)
{
	(void)state;
	for (int64_t m = 1; m <= 40; m++)
		for (int64_t most = 1; most <= m; most++) {
			int64_t rounds = rh_round_count(m, most), next = 0, longest = 0, before = INT64_MAX;
			assert_int_equal(rounds, (m + most - 1) / most);
			for (int64_t r = 0; r < rounds; r++) {
				int64_t first, count;
				rh_round_range(m, rounds, r, &first, &count);
				assert_int_equal(first, next);
				assert_true(count >= 1 && count <= most && count <= before);
				longest = r ? longest : count;
				assert_true(longest - count <= 1);
				before = count;
				next += count;
			}
			assert_int_equal(next, m);
		}
}

static void test_default_round_is_the_designs(void **state)
{
	(void)state;
	assert_int_equal(rh_roundpipe_default_round(3, 1), 3);
	assert_int_equal(rh_roundpipe_default_round(100, 1), 8);
	assert_int_equal(rh_roundpipe_default_round(100, 4), 8);
	assert_int_equal(rh_roundpipe_default_round(100, 8), 16);
	assert_int_equal(rh_roundpipe_default_round(10, 8), 10);
}

/* The round robin goes on across rounds and steps. */
static void test_program_of_steps_deals_slots_in_turn(void **state)
{
	(void)state;
	for (int devices = 1; devices <= 8; devices++) {
		struct rh_program program = {0};
		int turn = 0;
		int64_t dealt = 0;
		for (int step = 0; step < 3; step++) {
			int64_t micro_batches = 7 - step;
			check_ok(rh_roundpipe_program(&plan, 1, devices, micro_batches, 3, &turn, &program));
			int64_t rounds = rh_round_count(micro_batches, 3);
			assert_int_equal(program.slots, rounds * 5);
			for (size_t i = 0; i < program.slots; i++, dealt++) {
				const struct rh_slot *slot = &program.slot[i];
				int64_t round = (int64_t)i / 5, first, count;
				int stage = (int)(i % 5);
				struct rh_stage expected = stage < 2 ? forward[stage] : backward[stage - 2];
				rh_round_range(micro_batches, rounds, round, &first, &count);
				assert_int_equal(slot->device, dealt % devices);
				assert_int_equal(slot->kind, stage < 2 ? RH_SLOT_FORWARD : stage == 2 ? RH_SLOT_FUSED : RH_SLOT_BACKWARD);
				assert_int_equal(slot->lo, expected.lo);
				assert_int_equal(slot->hi, expected.hi);
				assert_int_equal(slot->first, first);
				assert_int_equal(slot->count, count);
				assert_int_equal(slot->first_round, round == 0);
				assert_int_equal(slot->last_round, round + 1 == rounds);
			}
			assert_int_equal(turn, dealt % devices);
		}
		rh_program_free(&program);
	}
}

static void test_program_without_training_ends_with_the_top(void **state)
{
	(void)state;
	struct rh_program program = {0};
	int turn = 1;
	check_ok(rh_roundpipe_program(&plan, 0, 2, 4, 2, &turn, &program));
	assert_int_equal(program.slots, 6);
	for (size_t i = 0; i < program.slots; i++) {
		assert_int_equal(program.slot[i].kind, i % 3 == 2 ? RH_SLOT_INFER : RH_SLOT_FORWARD);
		assert_int_equal(program.slot[i].device, (1 + i) % 2);
	}
	assert_int_equal(program.slot[2].lo, 5);
	assert_int_equal(program.slot[2].hi, 8);
	rh_program_free(&program);
}

static void test_program_without_memory_fails(void **state)
{
	(void)state;
	struct rh_program program = {0};
	int turn = 3;
	rh_alloc_fail_nth(1);
	int rc = rh_roundpipe_program(&plan, 1, 4, 4, 2, &turn, &program);
	rh_alloc_fail_nth(0);
	assert_int_equal(rc, -ENOMEM);
	assert_int_equal(turn, 3);
	rh_program_free(&program);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rounds_differ_by_at_most_one_longer_first),
	        cmocka_unit_test(test_default_round_is_the_designs),
	        cmocka_unit_test(test_program_of_steps_deals_slots_in_turn),
	        cmocka_unit_test(test_program_without_training_ends_with_the_top),
	        cmocka_unit_test(test_program_without_memory_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
