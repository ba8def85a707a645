/* A link in virtual time, in closed forms: latency, transfer, posted receives, acknowledgements, and a clock that a fault ends. */
#include "limit_time.h"

#include "device/sim/clock.h"
#include "link/virtual.h"

#include <unistd.h>

enum { HANG_S = 60, MEGABYTE = 1000000 };

struct line {
	struct rh_sim_clock *clock;
	struct rh_link *end[2];
};

/* One host drives both ends. Up: 10 ms and 100 MB/s; down: 30 ms and 50 MB/s. */
static void line_open(struct line *line, int64_t messages)
{
	const struct rh_virtual_line way[2] = {{0.010, 100e6}, {0.030, 50e6}};
	check_ok(rh_sim_clock_create(1, &line->clock));
	rh_sim_clock_enter(line->clock, 0);
	check_ok(rh_virtual_open(line->clock, way, messages, line->end));
}

static void line_close(struct line *line, int rc)
{
	rh_link_close(line->end[0]);
	rh_link_close(line->end[1]);
	rh_sim_clock_leave(line->clock, 0, rc);
	rh_sim_clock_free(line->clock);
}

static double after(struct line *line, int end, int64_t sent, int64_t received)
{
	check_ok(line->end[end]->ops->wait(line->end[end], sent, received));
	return rh_sim_clock_seconds(line->clock);
}

/* The sender learns of the posted receive after 30 ms; 2 MB take 20 ms, then 10 ms to arrive, and 30 ms for the acknowledgement. */
static void test_message_takes_credit_transfer_and_latency(void **state)
{
	(void)state;
	struct line line;
	line_open(&line, 4);
	check_ok(rh_link_send(line.end[0], 7, NULL, 2 * MEGABYTE));
	check_ok(rh_link_receive(line.end[1], 7, NULL, 2 * MEGABYTE));
	check_near(after(&line, 1, 0, 1), 0.030 + 0.020 + 0.010, 1e-9);
	check_near(after(&line, 0, 1, 0), 0.090, 1e-9);
	line_close(&line, 0);
}

/* Messages of one direction share the line one after the other; those of the other direction do not wait for them. */
static void test_messages_of_one_way_follow_one_another(void **state)
{
	(void)state;
	struct line line;
	line_open(&line, 4);
	for (uint64_t i = 0; i < 3; i++) {
		check_ok(rh_link_receive(line.end[1], i, NULL, MEGABYTE));
		check_ok(rh_link_send(line.end[0], i, NULL, MEGABYTE));
	}
	check_ok(rh_link_receive(line.end[0], 9, NULL, MEGABYTE));
	check_ok(rh_link_send(line.end[1], 9, NULL, MEGABYTE));
	check_near(after(&line, 1, 0, 1), 0.030 + 0.010 + 0.010, 1e-9);
	check_near(after(&line, 0, 0, 1), 0.010 + 0.020 + 0.030, 1e-9);
	check_near(after(&line, 1, 0, 3), 0.030 + 3 * 0.010 + 0.010, 1e-9);
	line_close(&line, 0);
}

static void test_wrong_and_too_many_messages_are_refused(void **state)
{
	(void)state;
	struct line line;
	line_open(&line, 1);
	check_ok(rh_link_send(line.end[0], 1, NULL, 8));
	assert_int_equal(rh_link_send(line.end[0], 2, NULL, 8), -ENOBUFS);
	assert_int_equal(rh_link_receive(line.end[1], 2, NULL, 8), -EPROTO);
	line.end[0]->ops->abort(line.end[0], "no more");
	assert_int_equal(rh_link_send(line.end[1], 1, NULL, 8), -ECONNABORTED);
	assert_string_equal(rh_error(-ECONNABORTED), "no more");
	line_close(&line, -ECONNABORTED);
}

int main(void)
{
	limit_time(HANG_S);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_message_takes_credit_transfer_and_latency),
	        cmocka_unit_test(test_messages_of_one_way_follow_one_another),
	        cmocka_unit_test(test_wrong_and_too_many_messages_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
