/* A link that copies what is sent: the sender's memory is free at once, the peer gets everything in order, and no more than the copies are
 * on their way. */
#include "limit_time.h"

#include "link/ahead.h"
#include "link/pair.h"

#include <string.h>

enum { COPIES = 3, MESSAGES = 5, ALL = 40, BYTES = 1000 };

static void open_ends(int64_t latency_ns, struct rh_link *end[2])
{
	const struct rh_pair_options options = {.messages = COPIES, .latency_ns = latency_ns, .seed = check_seed()};
	struct rh_link *outer;
	check_ok(rh_pair_open(&options, end));
	check_ok(rh_ahead_open(end[0], COPIES, MESSAGES, &outer));
	end[0] = outer;
}

static void test_ahead_memory_is_free_once_a_send_is_done(void **state)
{
	(void)state;
	struct rh_link *end[2];
	char bytes[BYTES], there[BYTES];
	open_ends(500000, end);
	for (int i = 0, got = 0; i < ALL; i++) {
		memset(bytes, i, sizeof bytes);
		check_ok(rh_link_send(end[0], (uint64_t)i, bytes, 1 + i * 7));
		check_ok(end[0]->ops->wait(end[0], i + 1, 0));
		for (; i + 1 - got >= COPIES || (i + 1 == ALL && got < ALL); got++) {
			memset(there, -1, sizeof there);
			check_ok(rh_link_receive(end[1], (uint64_t)got, there, 1 + got * 7));
			check_ok(end[1]->ops->wait(end[1], 0, got + 1));
			for (int k = 0; k < 1 + got * 7; k++)
				assert_int_equal(there[k], got);
		}
	}
	rh_link_close(end[0]);
	rh_link_close(end[1]);
}

static void test_ahead_as_many_as_copies_are_done_without_the_peer(void **state)
{
	(void)state;
	struct rh_link *end[2];
	struct rh_link_progress progress;
	char bytes[MESSAGES + COPIES] = {0}, there[MESSAGES + COPIES];
	open_ends(0, end);
	for (int i = 0; i < MESSAGES + COPIES; i++) {
		bytes[i] = (char)i;
		check_ok(rh_link_send(end[0], 7, &bytes[i], 1));
		check_ok(end[0]->ops->progress(end[0], &progress));
		assert_int_equal(progress.sent, i < COPIES ? i + 1 : COPIES);
	}
	assert_int_equal(rh_link_send(end[0], 7, bytes, 1), -ENOBUFS);
	for (int i = 0; i < COPIES; i++)
		check_ok(rh_link_receive(end[1], 7, &there[i], 1));
	check_ok(end[1]->ops->wait(end[1], 0, COPIES));
	check_ok(end[0]->ops->wait(end[0], 2 * COPIES, 0)); /* copies take the places of what has arrived */
	for (int i = COPIES; i < MESSAGES + COPIES; i++) {
		check_ok(end[0]->ops->wait(end[0], i + 1, 0));
		check_ok(rh_link_receive(end[1], 7, &there[i], 1));
		check_ok(end[1]->ops->wait(end[1], 0, i + 1));
	}
	assert_memory_equal(bytes, there, sizeof bytes);
	rh_link_close(end[0]);
	rh_link_close(end[1]);
}

/* The receiver's end: what it expects comes before it is asked for, and is found in order, among messages that were not expected. No more
 * than the copies come; the next ones do as soon as earlier ones are received, without another word. */
static void test_ahead_what_is_expected_comes_before_it_is_asked_for(void **state)
{
	(void)state;
	const struct rh_pair_options options = {.messages = ALL, .latency_ns = 500000, .seed = check_seed()};
	enum { ANNOUNCED = COPIES + MESSAGES };
	struct rh_link *end[2], *outer;
	struct rh_link_progress progress;
	char bytes[ALL][BYTES], there[ALL][BYTES];
	check_ok(rh_pair_open(&options, end));
	check_ok(rh_ahead_open(end[1], COPIES, MESSAGES, &outer));
	end[1] = outer;
	for (int i = 0; i < ALL; i++) {
		memset(bytes[i], i, sizeof bytes[i]);
		check_ok(rh_link_send(end[0], (uint64_t)i, bytes[i], i * 5));
	}
	for (int i = 0; i < ANNOUNCED; i++)
		check_ok(rh_ahead_expect(end[1], (uint64_t)i, i * 5));
	assert_int_equal(rh_ahead_expect(end[1], ANNOUNCED, ANNOUNCED * 5), -ENOBUFS);
	for (int i = 0; i < 2; i++) {
		check_ok(end[0]->ops->wait(end[0], COPIES + i, 0)); /* the peer has them, and nobody has asked for the last ones */
		check_ok(end[0]->ops->progress(end[0], &progress));
		assert_int_equal(progress.sent, COPIES + i);
		check_ok(rh_link_receive(end[1], (uint64_t)i, there[i], i * 5));
		check_ok(end[1]->ops->wait(end[1], 0, i + 1));
		check_ok(end[1]->ops->progress(end[1], &progress));
	}
	for (int i = 2; i < ALL; i++) {
		check_ok(rh_link_receive(end[1], (uint64_t)i, there[i], i * 5));
		if (i % 3) /* the last message that was asked for, or the next */
			continue;
		check_ok(end[1]->ops->wait(end[1], 0, i + 1));
		if (rh_ahead_expected(end[1]) == i + 1 && i + 1 < ALL)
			check_ok(rh_ahead_expect(end[1], (uint64_t)i + 1, (i + 1) * 5));
	}
	check_ok(end[1]->ops->wait(end[1], 0, ALL));
	for (int i = 0; i < ALL; i++)
		assert_memory_equal(bytes[i], there[i], (size_t)i * 5);
	rh_link_close(end[0]);
	rh_link_close(end[1]);
}

/* Of each three messages the last is taken apart, before the two ahead of it are asked for; these come in their order, as if it were none
 * of the link's. */
static void test_ahead_a_message_is_taken_apart(void **state)
{
	(void)state;
	const struct rh_pair_options options = {.messages = ALL, .latency_ns = 300000, .seed = check_seed()};
	struct rh_link *end[2], *outer;
	char bytes[ALL][BYTES], there[ALL][BYTES];
	check_ok(rh_pair_open(&options, end));
	check_ok(rh_ahead_open(end[1], COPIES, MESSAGES, &outer));
	end[1] = outer;
	for (int i = 0; i < ALL; i++) {
		memset(bytes[i], i, sizeof bytes[i]);
		check_ok(rh_link_send(end[0], (uint64_t)i, bytes[i], 1 + i * 5));
	}
	for (int i = 0, known = 0; i + 2 < ALL; i += 3) {
		for (int rc = 0; !rc && known < ALL; known += !rc)
			rc = known % 3 == 2 ? rh_ahead_expect_apart(end[1], (uint64_t)known, there[known], 1 + known * 5)
			                    : rh_ahead_expect(end[1], (uint64_t)known, 1 + known * 5);
		assert_true(known == ALL || known == i + COPIES + MESSAGES);
		check_ok(rh_ahead_await(end[1], i + 3));
		assert_memory_equal(bytes[i + 2], there[i + 2], (size_t)(1 + (i + 2) * 5));
		for (int k = 0; k < 2; k++) {
			check_ok(rh_link_receive(end[1], (uint64_t)(i + k), there[i + k], 1 + (i + k) * 5));
			assert_int_equal(end[1]->receives, i / 3 * 2 + k + 1);
			check_ok(end[1]->ops->wait(end[1], 0, end[1]->receives));
			assert_memory_equal(bytes[i + k], there[i + k], (size_t)(1 + (i + k) * 5));
		}
	}
	rh_link_close(end[0]);
	rh_link_close(end[1]);
}

static void test_ahead_an_abort_reaches_the_peer(void **state)
{
	(void)state;
	struct rh_link *end[2];
	char byte = 0, there;
	open_ends(0, end);
	check_ok(rh_link_send(end[0], 1, &byte, 1));
	check_ok(rh_link_receive(end[1], 1, &there, 1));
	check_ok(end[1]->ops->wait(end[1], 0, 1));
	end[0]->ops->abort(end[0], "no space left");
	int rc = rh_link_receive(end[1], 2, &there, 1); /* which may know already */
	assert_int_equal(rc ? rc : end[1]->ops->wait(end[1], 0, 2), -ECONNABORTED);
	rh_link_close(end[0]);
	rh_link_close(end[1]);
}

/* What was expected and not asked for is counted, and can be waited for without a receive. */
static void test_ahead_tells_what_is_here_before_it_is_asked_for(void **state)
{
	(void)state;
	struct rh_link *end[2];
	char bytes[COPIES], there[COPIES];
	int64_t expected, here;
	open_ends(2000000, end);
	check_ok(rh_ahead_unasked(end[0], &expected, &here));
	assert_int_equal(expected, 0);
	assert_int_equal(here, 0);
	for (int i = 0; i < COPIES; i++)
		check_ok(rh_ahead_expect(end[0], (uint64_t)i, 1));
	check_ok(rh_ahead_unasked(end[0], &expected, &here));
	assert_int_equal(expected, COPIES);
	assert_int_equal(here, 0); /* nothing was sent */
	for (int i = 0; i < 2; i++) {
		bytes[i] = (char)(i + 1);
		check_ok(rh_link_send(end[1], (uint64_t)i, &bytes[i], 1));
	}
	check_ok(rh_ahead_await_unasked(end[0], 2));
	check_ok(rh_ahead_unasked(end[0], &expected, &here));
	assert_int_equal(here, 2);
	check_ok(rh_link_receive(end[0], 0, &there[0], 1));
	check_ok(end[0]->ops->wait(end[0], 0, 1));
	assert_int_equal(there[0], 1);
	check_ok(rh_ahead_unasked(end[0], &expected, &here));
	assert_int_equal(expected, COPIES - 1);
	assert_int_equal(here, 1);
	rh_link_close(end[0]);
	rh_link_close(end[1]);
}

int main(void)
{
	limit_time(60);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_ahead_memory_is_free_once_a_send_is_done),
	        cmocka_unit_test(test_ahead_tells_what_is_here_before_it_is_asked_for),
	        cmocka_unit_test(test_ahead_as_many_as_copies_are_done_without_the_peer),
	        cmocka_unit_test(test_ahead_what_is_expected_comes_before_it_is_asked_for),
	        cmocka_unit_test(test_ahead_a_message_is_taken_apart),
	        cmocka_unit_test(test_ahead_an_abort_reaches_the_peer),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
