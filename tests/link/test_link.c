/* What every instance of the link seam owes its user: the same cases over each. */
#include "ends.h"
#include "mpi_stand_in.h"

#include "core/hooks.h"
#include "link/frame.h"
#include "link/mpi.h"

#include <pthread.h>

enum { LARGE = 5 * RH_LINK_FRAME_BYTES + 17 };

static const struct instance {
	const char *name;
	int is_pair, is_secure;
	enum { NO_MPI, STAND_IN, REAL_MPI } mpi;
	struct rh_pair_options pair;
} instances[] = {
        {.name = "pair", .is_pair = 1},
        {.name = "pair, lossy",
         .is_pair = 1,
         .pair = {.latency_ns = 200000, .jitter_ns = 200000, .lost = 0.05, .doubled = 0.05, .overtaken = 0.1, .retry_ns = 5000000}},
        {.name = "tcp"},
        {.name = "tls", .is_secure = 1},
        {.name = "mpi, stand-in", .mpi = STAND_IN},
        {.name = "mpi", .mpi = REAL_MPI},
};
/* The last one only where MPI is: main counts. */
static int instance_count = sizeof instances / sizeof *instances;

/* Both in this process, which is a world of one rank to MPI. */
static void open_mpi(int is_real, struct ends *ends)
{
	for (int i = 0; i < 2; i++)
		check_ok(rh_mpi_open(&(struct rh_mpi_options){.calls = is_real ? NULL : &stand_in_calls,
		                                              .is_upper = i,
		                                              .greeting = "build=1\nmodel=tiny\n",
		                                              .messages = ENDS_MESSAGES},
		                     &ends->end[i]));
}

static void open_ends(const struct instance *instance, struct ends *ends)
{
	struct rh_pair_options pair = instance->pair;
	pair.messages = ENDS_MESSAGES;
	pair.seed = check_seed();
	if (instance->is_pair)
		check_ok(rh_pair_open(&pair, ends->end));
	else if (instance->mpi)
		open_mpi(instance->mpi == REAL_MPI, ends);
	else
		ends_tcp(instance->is_secure ? &ends_keys : NULL, &(struct rh_tcp_options){0}, NULL, ends);
}

static void fill(char *bytes, int64_t size, uint64_t seed)
{
	for (int64_t i = 0; i < size; i++)
		bytes[i] = (char)(seed * 31 + (uint64_t)i * 7 + (uint64_t)i / 251);
}

static int is_filled(const char *bytes, int64_t size, uint64_t seed)
{
	for (int64_t i = 0; i < size; i++)
		if (bytes[i] != (char)(seed * 31 + (uint64_t)i * 7 + (uint64_t)i / 251))
			return 0;
	return 1;
}

/* Both directions at once, more messages than can be posted, of sizes around a frame's and none. */
static void exchange(struct ends *ends)
{
	static const int64_t sizes[] = {1, 0, LARGE, 100, RH_LINK_FRAME_BYTES, RH_LINK_FRAME_BYTES + 1, 0, RH_LINK_FRAME_BYTES - 1};
	enum { SIZES = sizeof sizes / sizeof *sizes, MESSAGES = 3 * ENDS_MESSAGES };
	char *out[2], *in[2];
	for (int i = 0; i < 2; i++) {
		out[i] = malloc((size_t)MESSAGES * LARGE);
		in[i] = calloc(MESSAGES, LARGE);
		assert_true(out[i] && in[i]);
	}
	for (int64_t number = 0; number < MESSAGES; number++) {
		int64_t size = sizes[number % SIZES];
		for (int i = 0; i < 2; i++) {
			struct rh_link *link = ends->end[i];
			if (number >= ENDS_MESSAGES)
				check_ok(link->ops->wait(link, number - ENDS_MESSAGES + 1, number - ENDS_MESSAGES + 1));
			fill(out[i] + number * LARGE, size, (uint64_t)(number + 1000 * i));
			check_ok(link->ops->receive(link, (uint64_t)number, in[i] + number * LARGE, size));
			check_ok(link->ops->send(link, (uint64_t)number, out[i] + number * LARGE, size));
		}
	}
	for (int i = 0; i < 2; i++)
		check_ok(ends->end[i]->ops->wait(ends->end[i], MESSAGES, MESSAGES));
	for (int i = 0; i < 2; i++)
		for (int64_t number = 0; number < MESSAGES; number++)
			assert_true(is_filled(in[!i] + number * LARGE, sizes[number % SIZES], (uint64_t)(number + 1000 * i)));
	for (int i = 0; i < 2; i++) {
		free(out[i]);
		free(in[i]);
	}
}

static void test_link_both_ways_full_arrive_once_and_in_order(void **state)
{
	(void)state;
	for (int i = 0; i < instance_count; i++) {
		struct ends ends;
		printf("%s\n", instances[i].name);
		open_ends(&instances[i], &ends);
		exchange(&ends);
		ends_close(&ends);
	}
}

/* Nothing but control frames moves before the peer has posted a receive. */
static void test_link_without_a_receive_sends_no_payload(void **state)
{
	(void)state;
	for (int i = 0; i < instance_count; i++) {
		struct ends ends;
		struct rh_link_progress progress;
		char small = 0, back = 0, *large = calloc(1, LARGE), *there = calloc(1, LARGE);
		printf("%s\n", instances[i].name);
		open_ends(&instances[i], &ends);
		struct rh_link *here = ends.end[0], *peer = ends.end[1];
		check_ok(here->ops->receive(here, 1, &back, 1));
		check_ok(here->ops->send(here, 7, large, LARGE));
		check_ok(peer->ops->send(peer, 1, &small, 1));
		check_ok(here->ops->wait(here, 0, 1)); /* a whole exchange passes */
		check_ok(here->ops->progress(here, &progress));
		assert_true(progress.bytes_sent < 4096);
		assert_int_equal(progress.sent, 0);
		check_ok(peer->ops->receive(peer, 7, there, LARGE));
		check_ok(here->ops->wait(here, 1, 1));
		check_ok(peer->ops->wait(peer, 1, 1));
		check_ok(here->ops->progress(here, &progress));
		assert_true(progress.bytes_sent > LARGE);
		ends_close(&ends);
		free(large);
		free(there);
	}
}

static void test_link_more_than_it_was_opened_for_is_refused(void **state)
{
	(void)state;
	for (int i = 0; i < instance_count; i++) {
		struct ends ends;
		char byte = 0;
		open_ends(&instances[i], &ends);
		for (int j = 0; j < ENDS_MESSAGES; j++)
			check_ok(ends.end[0]->ops->send(ends.end[0], 1, &byte, 1));
		assert_int_equal(ends.end[0]->ops->send(ends.end[0], 1, &byte, 1), -ENOBUFS);
		ends_close(&ends);
	}
}

static void test_link_another_tag_than_expected_ends_it_at_both_ends(void **state)
{
	(void)state;
	for (int i = 0; i < instance_count; i++) {
		struct ends ends;
		char byte = 0, there = 0;
		printf("%s\n", instances[i].name);
		open_ends(&instances[i], &ends);
		check_ok(ends.end[1]->ops->receive(ends.end[1], 0x22, &there, 1));
		check_ok(ends.end[0]->ops->send(ends.end[0], 0x11, &byte, 1));
		assert_int_equal(ends.end[1]->ops->wait(ends.end[1], 0, 1), -EPROTO);
		assert_non_null(strstr(rh_error(-EPROTO), "0x22"));
		if (instances[i].pair.lost == 0) { /* the farewell of a fault is said once */
			assert_int_equal(ends.end[0]->ops->wait(ends.end[0], 1, 0), -ECONNABORTED);
			assert_non_null(strstr(rh_error(-ECONNABORTED), "0x11"));
		}
		ends_close(&ends);
	}
}

static void test_link_an_abort_tells_the_peer_why(void **state)
{
	(void)state;
	for (int i = 0; i < instance_count; i++) {
		struct ends ends;
		char byte = 0;
		if (instances[i].pair.lost > 0)
			continue;
		open_ends(&instances[i], &ends);
		check_ok(ends.end[0]->ops->receive(ends.end[0], 1, &byte, 1));
		check_ok(ends.end[1]->ops->send(ends.end[1], 1, "x", 1));
		check_ok(ends.end[0]->ops->wait(ends.end[0], 0, 1)); /* connected */
		ends.end[0]->ops->abort(ends.end[0], "box 1: no space left on the device");
		assert_int_equal(ends.end[1]->ops->wait(ends.end[1], 2, 0), -ECONNABORTED);
		assert_non_null(strstr(rh_error(-ECONNABORTED), "no space left"));
		ends_close(&ends);
	}
}

/* What was done before stands, what is asked for after it fails. */
static void test_link_a_farewell_comes_after_all_that_was_sent(void **state)
{
	(void)state;
	for (int i = 0; i < instance_count; i++) {
		struct ends ends;
		char *out = calloc(1, LARGE), *in = calloc(1, LARGE);
		if (instances[i].pair.lost > 0) { /* the farewell may be lost too */
			free(out);
			free(in);
			continue;
		}
		open_ends(&instances[i], &ends);
		fill(out, LARGE, 5);
		check_ok(ends.end[1]->ops->receive(ends.end[1], 1, in, LARGE));
		check_ok(ends.end[0]->ops->send(ends.end[0], 1, out, LARGE));
		check_ok(ends.end[0]->ops->wait(ends.end[0], 1, 0));
		rh_link_close(ends.end[0]);
		check_ok(ends.end[1]->ops->wait(ends.end[1], 0, 1));
		assert_true(is_filled(in, LARGE, 5));
		assert_int_equal(ends.end[1]->ops->wait(ends.end[1], 0, 2), -ECONNRESET);
		rh_link_close(ends.end[1]);
		free(out);
		free(in);
	}
}

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
	alarm(200);
	if (!has_mpi()) {
		printf("skipped: the cases over MPI, which is not installed here (libopenmpi-dev); its stand-in runs\n");
		instance_count--;
	}
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_link_both_ways_full_arrive_once_and_in_order),
	        cmocka_unit_test(test_link_without_a_receive_sends_no_payload),
	        cmocka_unit_test(test_link_more_than_it_was_opened_for_is_refused),
	        cmocka_unit_test(test_link_another_tag_than_expected_ends_it_at_both_ends),
	        cmocka_unit_test(test_link_an_abort_tells_the_peer_why),
	        cmocka_unit_test(test_link_a_farewell_comes_after_all_that_was_sent),
	        cmocka_unit_test(test_mpi_boxes_that_differ_or_have_another_rank_are_told),
	};
	return cmocka_run_group_tests(tests, ends_open_keys, ends_remove_keys);
}
