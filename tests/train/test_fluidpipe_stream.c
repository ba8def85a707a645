/* What box 1 of mode fluidpipe waits at an epoch's end for box 2's logits, in virtual time: the messages of fluidpipe_step.c, with steps
 * that take a fixed time. Behind the epoch, they take their transfer and a round trip for each piece; behind each step, the last step's. */
#include "limit_time.h"

#include "device/sim/clock.h"
#include "link/ahead.h"
#include "link/virtual.h"
#include "modes/fluidpipe/fluidpipe_stream.h"

#include <unistd.h>

enum { AHEAD = 16, PIECE = 4 << 20, HANG_S = 60 };

/* ViT-Large on CIFAR-100 as the papers train it: 98 steps of 512 images, 100 classes. */
enum { STEPS = 98, ROWS = 512, ROW = 4 * (1 + 100), REPORT = 16 };

struct line {
	struct rh_sim_clock *clock;
	struct rh_link *lower, *upper;
};

/* Box 1's end keeps messages ahead. */
static void line_open(struct line *line, double trip_ms, double mbit)
{
	const struct rh_virtual_line way = {trip_ms / 2e3, mbit * 1e6 / 8}, ways[2] = {way, way};
	struct rh_link *ends[2];
	check_ok(rh_sim_clock_create(1, &line->clock));
	rh_sim_clock_enter(line->clock, 0);
	check_ok(rh_virtual_open(line->clock, ways, RH_BOX_MESSAGES, ends));
	check_ok(rh_ahead_open(ends[0], AHEAD, RH_BOX_MESSAGES, &line->lower));
	line->upper = ends[1];
}

static void line_close(struct line *line)
{
	rh_link_close(line->lower);
	rh_link_close(line->upper);
	rh_sim_clock_leave(line->clock, 0, 0);
	rh_sim_clock_free(line->clock);
}

static void pass_until(struct line *line, double at_s)
{
	check_ok(rh_sim_clock_alarm(line->clock, at_s));
	while (rh_sim_clock_seconds(line->clock) < at_s)
		rh_sim_clock_pass(line->clock);
}

static void take(struct line *line, int64_t size)
{
	check_ok(rh_link_receive(line->lower, 0, NULL, size));
	check_ok(line->lower->ops->wait(line->lower, 0, line->lower->receives));
}

/* Seconds from box 2's last step to box 1's first of the next epoch. */
static double wait_for_epoch(double trip_ms, double mbit, double step_s)
{
	struct line line;
	line_open(&line, trip_ms, mbit);
	check_ok(rh_link_receive(line.lower, 0, NULL, REPORT)); /* posted since the last one came */
	pass_until(&line, STEPS * step_s);
	check_ok(rh_link_send(line.upper, 0, NULL, REPORT));
	check_ok(line.lower->ops->wait(line.lower, 0, 1));
	for (int64_t left = (int64_t)STEPS * ROWS, n; left; left -= n) {
		n = left < PIECE / ROW ? left : PIECE / ROW;
		check_ok(rh_link_send(line.upper, 0, NULL, n * ROW));
		take(&line, n * ROW);
	}
	double out = rh_sim_clock_seconds(line.clock) - STEPS * step_s;
	line_close(&line);
	return out;
}

static double wait_for_stream(double trip_ms, double mbit, double step_s)
{
	struct line line;
	int expected = 0, rc = 0;
	line_open(&line, trip_ms, mbit);
	for (int step = 0; step < STEPS; step++) {
		/* box 1 waits already: behind the last step's message it expects the report */
		while (!rc && expected <= STEPS && !(rc = rh_ahead_expect(line.lower, 0, REPORT + (expected < STEPS ? ROWS * ROW : 0))))
			expected++;
		rc = rc == -ENOBUFS ? 0 : rc;
		check_ok(rc);
		pass_until(&line, (step + 1) * step_s);
		check_ok(rh_link_send(line.upper, 0, NULL, REPORT + ROWS * ROW));
		int64_t unasked, here;
		check_ok(rh_ahead_unasked(line.lower, &unasked, &here));
		for (; here > 0; here--)
			take(&line, REPORT + ROWS * ROW);
	}
	check_ok(rh_link_send(line.upper, 0, NULL, REPORT));
	while (line.lower->receives < STEPS)
		take(&line, REPORT + ROWS * ROW);
	take(&line, REPORT);
	double out = rh_sim_clock_seconds(line.clock) - STEPS * step_s;
	line_close(&line);
	return out;
}

static void test_an_epoch_waits_for_its_last_step_alone(void **state)
{
	(void)state;
	static const struct {
		double trip_ms, mbit, step_s;
	} at[] = {{0.01, 1000, 2}, {25, 1000, 2}, {25, 20, 2}, {50, 20, 2}, {25, 20, 0.09}};
	for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
		double bytes_per_s = at[i].mbit * 1e6 / 8, trip_s = at[i].trip_ms / 1e3, all = (double)STEPS * ROWS * ROW,
		       pieces = (double)((STEPS * ROWS - 1) / (PIECE / ROW) + 1);
		double bulk = wait_for_epoch(at[i].trip_ms, at[i].mbit, at[i].step_s),
		       stream = wait_for_stream(at[i].trip_ms, at[i].mbit, at[i].step_s);
		printf("round trip %g ms, %g Mbit/s, steps of %g s: %.3f s behind the epoch, %.3f behind each step: saves %.3f s an epoch "
		       "of "
		       "%.0f s\n",
		       at[i].trip_ms, at[i].mbit, at[i].step_s, bulk, stream, bulk - stream, STEPS * at[i].step_s);
		check_near(bulk, trip_s / 2 + REPORT / bytes_per_s + pieces * trip_s + all / bytes_per_s, 1e-6);
		check_near(stream, (REPORT + ROWS * ROW + REPORT) / bytes_per_s + trip_s / 2, 1e-6);
	}
}

int main(void)
{
	limit_time(HANG_S);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_an_epoch_waits_for_its_last_step_alone)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
