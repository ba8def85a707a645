/* A view of a link in which messages are given again: between what the link brings stands what was supplied, each where it was asked for;
 * only the link's messages are looked at, and others who use the link do not disturb the view. */
#include "check.h"

#include "core/philox.h"
#include "link/pair.h"
#include "link/recall.h"

#include <string.h>

enum { MESSAGES = 6, BURSTS = 60, BYTES = 300 };

struct seen {
	uint64_t tag[BURSTS * MESSAGES];
	int count;
};

static uint8_t content(uint64_t tag)
{
	return (uint8_t)(tag * 37 + 11);
}

static void look(void *context, uint64_t tag, const void *bytes, int64_t size)
{
	struct seen *seen = context;
	for (int64_t i = 0; i < size; i++)
		assert_int_equal(((const uint8_t *)bytes)[i], content(tag));
	seen->tag[seen->count++] = tag;
}

static int64_t size_of(uint64_t tag)
{
	return (int64_t)(tag % (BYTES + 1));
}

/* Sends, or supplies, messages `tag` and on, asks the view for all of them, and checks them. */
static void check_burst(struct rh_link *sender, struct rh_link *view, uint64_t tag, int count, int supplies)
{
	static uint8_t out[MESSAGES][BYTES], in[MESSAGES][BYTES];
	struct rh_link_progress progress;
	for (int i = 0; i < count; i++) {
		memset(out[i], content(tag + (uint64_t)i), BYTES);
		memset(in[i], 0, BYTES);
		if (supplies)
			check_ok(rh_recall_supply(view, tag + (uint64_t)i, out[i], size_of(tag + (uint64_t)i)));
		else
			check_ok(rh_link_send(sender, tag + (uint64_t)i, out[i], size_of(tag + (uint64_t)i)));
	}
	for (int i = 0; i < count; i++)
		check_ok(rh_link_receive(view, tag + (uint64_t)i, in[i], size_of(tag + (uint64_t)i)));
	if (supplies) { /* is there without anybody's help */
		check_ok(view->ops->progress(view, &progress));
		assert_int_equal(progress.received, view->receives);
	}
	check_ok(view->ops->wait(view, 0, view->receives));
	check_ok(sender->ops->wait(sender, sender->sends, 0));
	check_ok(view->ops->progress(view, &progress));
	assert_int_equal(progress.received, view->receives);
	for (int i = 0; i < count; i++)
		for (int64_t k = 0; k < size_of(tag + (uint64_t)i); k++)
			assert_int_equal(in[i][k], content(tag + (uint64_t)i));
}

static void test_recall_gives_what_came_and_what_was_supplied(void **state)
{
	(void)state;
	uint64_t seed = check_seed(), tag = 1, brought[BURSTS * MESSAGES];
	const struct rh_pair_options options = {.messages = MESSAGES, .latency_ns = 200000, .seed = seed};
	struct rh_link *end[2], *view;
	static struct seen seen;
	int links = 0;
	seen.count = 0;
	check_ok(rh_pair_open(&options, end));
	check_ok(rh_recall_open(end[1], MESSAGES, look, &seen, &view));
	for (uint32_t burst = 0; burst < BURSTS; burst++) {
		uint32_t word = rh_philox(seed, burst, 0, 0, 1002).word[0];
		int count = 1 + (int)(word % MESSAGES), supplies = (int)(word >> 8 & 1);
		check_burst(end[0], view, tag, count, supplies);
		for (int i = 0; i < count && !supplies; i++)
			brought[links++] = tag + (uint64_t)i;
		tag += (uint64_t)count;
		if (word >> 9 & 1) { /* somebody else's */
			char sent = 7, got = 0;
			check_ok(rh_link_send(end[0], tag, &sent, 1));
			check_ok(rh_link_receive(end[1], tag++, &got, 1));
			check_ok(end[1]->ops->wait(end[1], 0, end[1]->receives));
			check_ok(end[0]->ops->wait(end[0], end[0]->sends, 0));
			assert_int_equal(got, 7);
		}
	}
	assert_int_equal(seen.count, links);
	assert_memory_equal(seen.tag, brought, (size_t)links * sizeof *brought);
	rh_link_close(view);
	rh_link_close(end[0]);
	rh_link_close(end[1]);
}

/* What is sent while the view drops is done at once and the peer never sees it; the rest arrives in order. */
static void test_recall_drops_what_is_sent(void **state)
{
	(void)state;
	const struct rh_pair_options options = {.messages = MESSAGES, .latency_ns = 200000, .seed = check_seed()};
	struct rh_link *end[2], *view;
	struct rh_link_progress progress;
	check_ok(rh_pair_open(&options, end));
	check_ok(rh_recall_open(end[0], MESSAGES, NULL, NULL, &view));
	for (uint64_t tag = 1; tag < 40; tag++) {
		char byte = (char)tag, got = 0;
		int drops = tag % 3 == 0;
		rh_recall_drop(view, drops);
		check_ok(rh_link_send(view, tag, &byte, 1));
		if (!drops) { /* not sent before the peer asks for it */
			check_ok(view->ops->progress(view, &progress));
			assert_int_equal(progress.sent, view->sends - 1);
			check_ok(rh_link_receive(end[1], tag, &got, 1));
			check_ok(end[1]->ops->wait(end[1], 0, end[1]->receives));
			assert_int_equal(got, byte);
			check_ok(view->ops->wait(view, view->sends, 0));
		}
		check_ok(view->ops->progress(view, &progress));
		assert_int_equal(progress.sent, view->sends);
	}
	rh_recall_drop(view, 1);
	for (int i = 0; i < 3 * MESSAGES; i++) { /* nobody counts them as in flight */
		check_ok(rh_link_send(view, 1, NULL, 0));
		check_ok(view->ops->progress(view, &progress));
	}
	rh_link_close(view);
	rh_link_close(end[0]);
	rh_link_close(end[1]);
}

static void test_recall_refuses_more_than_it_was_opened_for(void **state)
{
	(void)state;
	const struct rh_pair_options options = {.messages = 2 * MESSAGES, .seed = check_seed()};
	struct rh_link *end[2], *view;
	struct seen seen = {0};
	char byte[MESSAGES + 1];
	check_ok(rh_pair_open(&options, end));
	check_ok(rh_recall_open(end[1], MESSAGES, look, &seen, &view));
	for (int i = 0; i < MESSAGES; i++)
		check_ok(rh_recall_supply(view, 1, byte, 1));
	assert_int_equal(rh_recall_supply(view, 1, byte, 1), -ENOBUFS);
	for (int i = 0; i < MESSAGES; i++)
		check_ok(rh_link_receive(view, 1, &byte[i], 1));
	assert_int_equal(rh_link_receive(view, 1, &byte[MESSAGES], 1), -ENOBUFS);
	rh_link_close(view);
	rh_link_close(end[0]);
	rh_link_close(end[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_recall_gives_what_came_and_what_was_supplied),
	        cmocka_unit_test(test_recall_drops_what_is_sent),
	        cmocka_unit_test(test_recall_refuses_more_than_it_was_opened_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
