/* The first fault stays, with its line, whoever keeps one and whoever asks. */
#include "check.h"

#include "core/fault.h"

#include <pthread.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 200 };

static void test_the_first_fault_stays_with_its_line(void **state)
{
	(void)state;
	struct rh_fault fault = {0};
	rh_fault_keep(&fault, 0);
	assert_int_equal(rh_fault_get(&fault), 0);
	rh_fault_keep(&fault, rh_fail(-EIO, "the drive is gone"));
	rh_fault_keep(&fault, rh_fail(-ENOMEM, "an effect of it"));
	rh_error_clear();
	assert_int_equal(rh_fault_code(&fault), -EIO);
	assert_int_equal(rh_fault_get(&fault), -EIO);
	assert_string_equal(rh_error(-EIO), "the drive is gone");
}

struct party {
	struct rh_fault *fault;
	pthread_barrier_t *start;
	int number;
};

static void *keep_one(void *context)
{
	const struct party *party = context;
	pthread_barrier_wait(party->start);
	rh_fault_keep(party->fault, rh_fail(-1 - party->number, "of thread %d", party->number));
	/* once one is kept it is seen by all, with its own line */
	char expected[32];
	int code = rh_fault_get(party->fault);
	snprintf(expected, sizeof expected, "of thread %d", -1 - code);
	return code && !strcmp(rh_error(code), expected) ? NULL : context;
}

static void test_of_several_threads_one_wins(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct rh_fault fault = {0};
		pthread_barrier_t start;
		pthread_t thread[THREADS];
		struct party party[THREADS];
		pthread_barrier_init(&start, NULL, THREADS);
		for (int t = 0; t < THREADS; t++) {
			party[t] = (struct party){&fault, &start, t};
			assert_int_equal(pthread_create(&thread[t], NULL, keep_one, &party[t]), 0);
		}
		for (int t = 0; t < THREADS; t++) {
			void *wrong;
			pthread_join(thread[t], &wrong);
			assert_null(wrong);
		}
		pthread_barrier_destroy(&start);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_the_first_fault_stays_with_its_line),
	        cmocka_unit_test(test_of_several_threads_one_wins),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
