/* Orders that are made piece by piece: a device's slots are those of the whole program, however the pieces are cut. */
#include "check.h"

#include "core/alloc.h"
#include "schedule/endless.h"

#include <string.h>

enum { STAGES = 4, MICROS = 40, PIECES = 7 };

static const struct rh_stage stages[STAGES] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}};

/* This device's next slot from `*at` on, of a micro-batch below MICROS; NULL: there is none. */
static const struct rh_slot *next_of(const struct rh_program *program, int device, size_t *at)
{
	while (*at < program->slots) {
		const struct rh_slot *slot = &program->slot[(*at)++];
		if (slot->device == device && slot->first < MICROS)
			return slot;
	}
	return NULL;
}

static void check_pieces(const char *name, const int64_t *limits, int count, double hop_s, size_t piece)
{
	const struct rh_schedule *schedule = rh_schedule_find(name);
	const struct rh_schedule_request request = {.devices = count,
	                                            .micro_batches = MICROS,
	                                            .steps = 1,
	                                            .stage = stages,
	                                            .stages = count,
	                                            .hop_s = hop_s,
	                                            .admission_limit = limits};
	struct rh_program whole = {0}, part = {0}, all = {0};
	struct rh_endless *endless;
	check_ok(rh_schedule_make(schedule, &request, &whole));
	check_ok(rh_endless_open(schedule, &request, &endless));
	while (all.slots < 3 * whole.slots) {
		check_ok(rh_endless_more(endless, piece, &part));
		assert_true(part.slots >= piece);
		check_ok(rh_grow(&all.slot, &all.capacity, all.slots + part.slots, sizeof *all.slot));
		memcpy(all.slot + all.slots, part.slot, part.slots * sizeof *all.slot);
		all.slots += part.slots;
	}
	for (int d = 0; d < count; d++) {
		size_t one = 0, two = 0;
		const struct rh_slot *expected;
		int64_t slots = 0;
		for (; (expected = next_of(&whole, d, &one)); slots++) {
			const struct rh_slot *got = next_of(&all, d, &two);
			assert_non_null(got);
			assert_int_equal(got->kind, expected->kind);
			assert_int_equal(got->first, expected->first);
			assert_int_equal(got->stage, expected->stage);
		}
		assert_int_equal(slots, 2 * MICROS);
	}
	rh_endless_close(endless);
	rh_program_free(&whole);
	rh_program_free(&part);
	rh_program_free(&all);
}

static void test_pieces_are_the_whole_program(void **state)
{
	(void)state;
	static const int64_t wide[STAGES] = {13, 9, 5, 1};
	static const size_t piece[PIECES] = {1, 2, 3, 7, 8, 50, 1000};
	for (int p = 0; p < PIECES; p++)
		for (int count = 1; count <= STAGES; count++) {
			check_pieces("1f1b-async", NULL, count, 0, piece[p]);
			check_pieces("paci", NULL, count, 0, piece[p]);
			check_pieces("paci", wide + STAGES - count, count, 1.5, piece[p]);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces_are_the_whole_program)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
