/* Annealed cuts: never worse, whole, the same every time; and what it is for, a step that single moves do not find. */
#include "check.h"

#include "partition/anneal.h"
#include "partition/roundpipe_internal.h"

#include <math.h>
#include <stdlib.h>

enum { LAYERS = 28, TOP = 27 };

struct counted {
	int calls, first_trained;
};

/* As far from stages of three layers each as can be said, uphill on the way there from stages of one. */
static double seconds_of(void *context, struct rh_partition *cuts, double most)
{
	struct counted *counted = context;
	double sum = 1;
	int at = 0;
	(void)most;
	counted->calls++;
	for (int i = 0; i < cuts->forward_stages; i++) {
		assert_int_equal(cuts->forward[i].lo, at);
		assert_true(cuts->forward[i].hi > at);
		at = cuts->forward[i].hi;
		sum += pow(at - cuts->forward[i].lo - 3, 2) * 0.01;
	}
	assert_int_equal(at, cuts->backward[0].lo);
	assert_int_equal(cuts->backward[0].hi, LAYERS);
	for (int i = 1; i < cuts->backward_stages; i++) {
		assert_int_equal(cuts->backward[i].hi, at);
		assert_true(cuts->backward[i].lo < at);
		at = cuts->backward[i].lo;
		sum += pow(cuts->backward[i].hi - at - 3, 2) * 0.01;
	}
	assert_int_equal(at, counted->first_trained);
	return sum + 0.001 * abs(cuts->backward[0].lo - TOP);
}

static void test_better_cuts_are_found(void **state)
{
	(void)state;
	for (int first_trained = 0; first_trained <= 9; first_trained += 9) {
		double found[2];
		for (int again = 0; again < 2; again++) {
			struct counted counted = {.first_trained = first_trained};
			struct rh_partition best;
			check_ok(partition_create(LAYERS, &best));
			for (int l = 0; l < TOP; l++)
				best.forward[best.forward_stages++] = (struct rh_stage){l, l + 1};
			best.backward[best.backward_stages++] = (struct rh_stage){TOP, LAYERS};
			for (int l = TOP - 1; l >= first_trained; l--)
				best.backward[best.backward_stages++] = (struct rh_stage){l, l + 1};
			double before = best.makespan_s = seconds_of(&counted, &best, HUGE_VAL);
			check_ok(anneal_cuts(&(struct anneal){LAYERS, first_trained, 20000, seconds_of, &counted}, &best));
			assert_true(counted.calls > 1000 && counted.calls <= 20001);
			check_near(seconds_of(&counted, &best, HUGE_VAL), best.makespan_s, 1e-12);
			found[again] = best.makespan_s;
			printf("from %.3f to %.3f with %d + %d stages\n", before, best.makespan_s, best.forward_stages,
			       best.backward_stages);
			assert_true(best.makespan_s < 1.1);
			rh_partition_free(&best);
		}
		check_near(found[0], found[1], 0);
	}
}

/* A fused stage alone, and layers none of which is trained below it. */
static void test_no_cuts_are_left_as_they_are(void **state)
{
	(void)state;
	for (int top = 0; top <= 1; top++) {
		struct counted counted = {.first_trained = top};
		struct rh_partition best;
		check_ok(partition_create(LAYERS, &best));
		best.backward[best.backward_stages++] = (struct rh_stage){top, LAYERS};
		if (top)
			best.forward[best.forward_stages++] = (struct rh_stage){0, top};
		best.makespan_s = 0.5;
		check_ok(anneal_cuts(&(struct anneal){LAYERS, top, 500, seconds_of, &counted}, &best));
		check_near(best.makespan_s, 0.5, 0);
		assert_int_equal(best.backward[0].lo, top);
		rh_partition_free(&best);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_better_cuts_are_found),
	        cmocka_unit_test(test_no_cuts_are_left_as_they_are),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
