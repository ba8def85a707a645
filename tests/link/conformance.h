/* What every instance of the link seam owes its user: the same cases over each. The program that includes this names its instances. */
#ifndef RH_TESTS_LINK_CONFORMANCE_H
#define RH_TESTS_LINK_CONFORMANCE_H

#include "ends.h"

#include "link/frame.h"

enum { LARGE = 5 * RH_LINK_FRAME_BYTES + 17 };

struct instance {
	const char *name;
	int is_lossy;                    /* a farewell may be lost, too */
	void (*open)(struct ends *ends); /* both ends, each for ENDS_MESSAGES */
};
static const struct instance *instances;
static int instance_count;

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
		instances[i].open(&ends);
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
		instances[i].open(&ends);
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
		instances[i].open(&ends);
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
		instances[i].open(&ends);
		check_ok(ends.end[1]->ops->receive(ends.end[1], 0x22, &there, 1));
		check_ok(ends.end[0]->ops->send(ends.end[0], 0x11, &byte, 1));
		assert_int_equal(ends.end[1]->ops->wait(ends.end[1], 0, 1), -EPROTO);
		assert_non_null(strstr(rh_error(-EPROTO), "0x22"));
		if (!instances[i].is_lossy) { /* the farewell of a fault is said once */
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
		if (instances[i].is_lossy)
			continue;
		instances[i].open(&ends);
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
		if (instances[i].is_lossy) { /* the farewell may be lost too */
			free(out);
			free(in);
			continue;
		}
		instances[i].open(&ends);
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

#define CONFORMANCE                                                                                                                        \
	cmocka_unit_test(test_link_both_ways_full_arrive_once_and_in_order),                                                               \
	        cmocka_unit_test(test_link_without_a_receive_sends_no_payload),                                                            \
	        cmocka_unit_test(test_link_more_than_it_was_opened_for_is_refused),                                                        \
	        cmocka_unit_test(test_link_another_tag_than_expected_ends_it_at_both_ends),                                                \
	        cmocka_unit_test(test_link_an_abort_tells_the_peer_why),                                                                   \
	        cmocka_unit_test(test_link_a_farewell_comes_after_all_that_was_sent)

#endif
