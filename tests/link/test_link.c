/* The conformance cases over the instances that need no GPU (tests/cuda/test_nccl.c has the other), and MPI's own. */
#include "conformance.h"
#include "limit_time.h"
#include "mpi_stand_in.h"

#include "core/hooks.h"
#include "link/mpi.h"

#include <pthread.h>

static void open_pair(const struct rh_pair_options *options, struct ends *ends)
{
	struct rh_pair_options pair = *options;
	pair.messages = ENDS_MESSAGES;
	pair.seed = check_seed();
	check_ok(rh_pair_open(&pair, ends->end));
}

static void open_sound_pair(struct ends *ends)
{
	open_pair(&(struct rh_pair_options){0}, ends);
}

static void open_lossy_pair(struct ends *ends)
{
	open_pair(
	        &(struct rh_pair_options){
	                .latency_ns = 200000, .jitter_ns = 200000, .lost = 0.05, .doubled = 0.05, .overtaken = 0.1, .retry_ns = 5000000},
	        ends);
}

static void open_tcp(struct ends *ends)
{
	ends_tcp(NULL, &(struct rh_tcp_options){0}, NULL, ends);
}

static void open_tls(struct ends *ends)
{
	ends_tcp(&ends_keys, &(struct rh_tcp_options){0}, NULL, ends);
}

/* Both in this process, which is a world of one rank to MPI. */
static void open_mpi(const struct rh_mpi_calls *calls, struct ends *ends)
{
	for (int i = 0; i < 2; i++)
		check_ok(rh_mpi_open(
		        &(struct rh_mpi_options){
		                .calls = calls, .is_upper = i, .greeting = "build=1\nmodel=tiny\n", .messages = ENDS_MESSAGES},
		        &ends->end[i]));
}

static void open_mpi_stand_in(struct ends *ends)
{
	open_mpi(&stand_in_calls, ends);
}

static void open_real_mpi(struct ends *ends)
{
	open_mpi(NULL, ends);
}

/* The last one only where MPI is: main counts. */
static const struct instance all[] = {{"pair", 0, open_sound_pair}, {"pair, lossy", 1, open_lossy_pair},     {"tcp", 0, open_tcp},
                                      {"tls", 0, open_tls},         {"mpi, stand-in", 0, open_mpi_stand_in}, {"mpi", 0, open_real_mpi}};

static void test_mpi_boxes_that_differ_or_have_another_rank_are_told(void **state)
{
	(void)state;
	struct rh_mpi_options options = {.calls = &stand_in_calls, .greeting = "build=1\nseed=1\n", .messages = 1};
	struct rh_link *ends[2], *none;
	check_ok(rh_mpi_open(&options, &ends[0]));
	options.greeting = "build=1\nseed=2\n";
	options.is_upper = 1;
	check_ok(rh_mpi_open(&options, &ends[1]));
	for (int i = 0; i < 2; i++) {
		int rc = ends[i]->ops->wait(ends[i], 1, 0);
		assert_true(rc == -EINVAL || rc == -ECONNABORTED);
		assert_non_null(strstr(rh_error(rc), "seed"));
	}
	for (int i = 0; i < 2; i++)
		rh_link_close(ends[i]);
	options.rank = 1;
	assert_int_equal(rh_mpi_open(&options, &none), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "to MPI this process is 1 of 1"));
	options = (struct rh_mpi_options){.calls = &stand_in_calls, .greeting = "", .messages = 1, .timing = {.give_up_ns = 100000000}};
	check_ok(rh_mpi_open(&options, &none)); /* nobody is there */
	assert_int_equal(none->ops->wait(none, 1, 0), -ETIMEDOUT);
	rh_link_close(none);
}

/* Where it was built. */
static int has_mpi(void)
{
	char path[512];
	const char *build = getenv("RH_BUILD");
	snprintf(path, sizeof path, "%s/roundhouse-mpi.so", build ? build : "build/release");
	setenv(RH_HOOK_MPI, path, 1);
	return !access(path, R_OK);
}

int main(void)
{
	limit_time(200);
	instances = all;
	instance_count = sizeof all / sizeof *all;
	if (!has_mpi()) {
		printf("skipped: the cases over MPI, which is not installed here (libopenmpi-dev); its stand-in runs\n");
		instance_count--;
	}
	const struct CMUnitTest tests[] = {
	        CONFORMANCE,
	        cmocka_unit_test(test_mpi_boxes_that_differ_or_have_another_rank_are_told),
	};
	return cmocka_run_group_tests(tests, ends_open_keys, ends_remove_keys);
}
