/* The probe of a line: it ends at both ends alike, on lines near and far, and messages pass behind it. */
#include "ends.h"
#include "mpi_stand_in.h"
#include "relay.h"

#include "link/mpi.h"
#include "link/probe.h"

struct prober {
	struct rh_link *link;
	struct rh_link_line line;
	int rc;
};

static void *probe(void *context)
{
	struct prober *prober = context;
	prober->rc = rh_link_probe(prober->link, 0, &prober->line);
	return NULL;
}

/* Both ends' bytes of the probe; *line as the deciding end sees it, which the other end sees alike. */
static int64_t probed(const struct ends *ends, struct rh_link_line *line)
{
	struct prober other = {.link = ends->end[1]};
	struct rh_link_progress progress;
	pthread_t thread;
	char in[2] = {0};
	assert_false(pthread_create(&thread, NULL, probe, &other));
	check_ok(rh_link_probe(ends->end[0], 1, line));
	pthread_join(thread, NULL);
	check_ok(other.rc);
	for (int i = 0; i < 2; i++)
		assert_true(line->bytes_per_s[i] == other.line.bytes_per_s[1 - i]);
	printf("%.3g ms, %.3g and %.3g Mbit/s\n", line->latency_s * 1e3, line->bytes_per_s[0] * 8e-6, line->bytes_per_s[1] * 8e-6);
	assert_int_equal(ends->end[0]->sends, ends->end[1]->receives);
	assert_int_equal(ends->end[1]->sends, ends->end[0]->receives);
	check_ok(ends->end[0]->ops->progress(ends->end[0], &progress));
	for (int i = 0; i < 2; i++)
		check_ok(rh_link_receive(ends->end[i], 5, &in[i], 1));
	for (int i = 0; i < 2; i++)
		check_ok(rh_link_send(ends->end[i], 5, i ? "b" : "a", 1));
	for (int i = 0; i < 2; i++)
		check_ok(ends->end[i]->ops->wait(ends->end[i], ends->end[i]->sends, ends->end[i]->receives));
	assert_int_equal(in[0], 'b');
	assert_int_equal(in[1], 'a');
	return progress.bytes_sent;
}

static void test_probe_of_a_far_line_lasts_until_it_is_full(void **state)
{
	(void)state;
	enum { MBIT = 50, SLOW_MBIT = 20, LATENCY_MS = 25 };
	struct rh_link_line line;
	struct relay relay;
	struct ends ends;
	char through[32];
	relay_open(&relay, 0, check_seed());
	snprintf(through, sizeof through, "127.0.0.1:%d", relay.port);
	relay.shape[0] = (struct shape){.latency_ms = LATENCY_MS, .mbit = MBIT}; /* to the end that listens, and decides */
	relay.shape[1] = (struct shape){.latency_ms = LATENCY_MS, .mbit = SLOW_MBIT};
	ends_tcp_for(&ends_keys, &(struct rh_tcp_options){.timing = {0}}, through, 2 * RH_LINK_PROBE_MESSAGES, &ends);
	relay_start(&relay, ends.port);
	int64_t began = shape_now(), bytes = probed(&ends, &line);
	double seconds = (double)(shape_now() - began) / 1e9;
	printf("%.1f MiB each way in %.2f s\n", (double)bytes / 1048576, seconds);
	assert_true(bytes >= SLOW_MBIT * 125000 * 8 * 0.05); /* the last round fills many round trips */
	assert_true(bytes < 2 * (32 << 20) && seconds < 20);
	/* frames and TLS take 1 % of a line; the rest is for what else the machine does */
	check_near(line.latency_s, LATENCY_MS * 1e-3, 5e-3);
	check_near(line.bytes_per_s[0], SLOW_MBIT * 125000, 0.2 * SLOW_MBIT * 125000);
	check_near(line.bytes_per_s[1], MBIT * 125000, 0.2 * MBIT * 125000);
	ends_close(&ends);
	relay_close(&relay);
}

/* Cut as any message; of a line that breaks no more is asked. */
static void test_probe_survives_cuts(void **state)
{
	(void)state;
	struct relay relay;
	struct ends ends;
	char through[32];
	relay_open(&relay, 400000, check_seed());
	relay.most_cuts = 10;
	snprintf(through, sizeof through, "127.0.0.1:%d", relay.port);
	relay.shape[0] = relay.shape[1] = (struct shape){.latency_ms = 10, .mbit = 100};
	ends_tcp_for(&ends_keys, &(struct rh_tcp_options){.timing = {0}}, through, 2 * RH_LINK_PROBE_MESSAGES, &ends);
	relay_start(&relay, ends.port);
	struct rh_link_line line;
	int64_t bytes = probed(&ends, &line);
	printf("%d cuts, %.2f MiB each way\n", (int)relay.cuts, (double)bytes / 1048576);
	assert_true(relay.cuts > 0 && bytes > 0 && bytes < 8 << 20);
	ends_close(&ends);
	relay_close(&relay);
}

static void test_probe_of_a_near_line_is_short(void **state)
{
	(void)state;
	struct ends ends;
	ends_tcp_for(NULL, &(struct rh_tcp_options){.timing = {0}}, NULL, 2 * RH_LINK_PROBE_MESSAGES, &ends);
	struct rh_link_line line;
	int64_t bytes = probed(&ends, &line);
	printf("%.2f MiB each way\n", (double)bytes / 1048576);
	assert_true(bytes >= 4 << 10 && bytes < 2 * (32 << 20));
	assert_true(line.bytes_per_s[0] > 1e6 && line.bytes_per_s[1] > 1e6); /* loopback has gigabytes, of a machine that is free */
	ends_close(&ends);
}

static void test_probe_of_a_link_over_mpi(void **state)
{
	(void)state;
	struct ends ends = {0};
	struct rh_link_line line;
	struct rh_mpi_options options = {.calls = &stand_in_calls, .greeting = "", .messages = 2 * RH_LINK_PROBE_MESSAGES};
	for (int i = 0; i < 2; i++) {
		options.is_upper = i;
		check_ok(rh_mpi_open(&options, &ends.end[i]));
	}
	assert_true(probed(&ends, &line) >= 4 << 10);
	assert_true(line.bytes_per_s[0] > 1e6 && line.bytes_per_s[1] > 1e6);
	ends_close(&ends);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_probe_of_a_far_line_lasts_until_it_is_full),
	        cmocka_unit_test(test_probe_survives_cuts),
	        cmocka_unit_test(test_probe_of_a_near_line_is_short),
	        cmocka_unit_test(test_probe_of_a_link_over_mpi),
	};
	return cmocka_run_group_tests(tests, ends_open_keys, ends_remove_keys);
}
