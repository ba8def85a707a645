/* The network that tests shape does what it was told, as a link over it sees it. */
#include "ends.h"
#include "limit_time.h"
#include "network.h"

enum { SIZE = 250000 };

static struct network network;
static char out[ENDS_MESSAGES][SIZE], in[ENDS_MESSAGES][SIZE];

static void open_line(const struct shape *up, const struct shape *down, struct ends *ends)
{
	const struct shape shape[1][2] = {{*up, *down}};
	struct rh_tcp_options options = {.greeting = "", .messages = ENDS_MESSAGES};
	char listens[64], connects[64];
	options.timing = (struct rh_link_timing){.heartbeat_ns = 50000000, .timeout_ns = 2000000000, .give_up_ns = 30000000000};
	network_open(&network, 2, shape, check_seed());
	network_addresses(&network, 0, listens, connects);
	for (int i = 0; i < 2; i++) {
		options.address = i ? connects : listens;
		options.listens = !i;
		options.identity = ends_keys.path[i];
		options.peer = ends_keys.hash[!i];
		network_enter(&network, i);
		check_ok(rh_tcp_open(&options, &ends->end[i]));
	}
	network_enter(&network, -1);
}

static void close_line(struct ends *ends)
{
	ends_close(ends);
	network_close(&network);
}

/* Seconds that messages take from one end to the other. */
static double move(struct ends *ends, int from, int messages)
{
	struct rh_link *source = ends->end[from], *sink = ends->end[!from];
	for (int m = 0; m < messages; m++) {
		memset(out[m], m + 1, SIZE);
		memset(in[m], 0, SIZE);
	}
	int64_t begun_ns = shape_now();
	for (int m = 0; m < messages; m++) {
		check_ok(rh_link_receive(sink, (uint64_t)m, in[m], SIZE));
		check_ok(rh_link_send(source, (uint64_t)m, out[m], SIZE));
	}
	check_ok(sink->ops->wait(sink, 0, sink->receives));
	double seconds = (double)(shape_now() - begun_ns) * 1e-9;
	check_ok(source->ops->wait(source, source->sends, 0));
	for (int m = 0; m < messages; m++)
		assert_memory_equal(in[m], out[m], SIZE);
	return seconds;
}

static double latency_of(struct ends *ends)
{
	struct rh_link_progress progress = {0};
	for (int i = 0; i < 200 && !(progress.latency_s > 0); i++) {
		usleep(20000);
		check_ok(ends->end[0]->ops->progress(ends->end[0], &progress));
	}
	return progress.latency_s;
}

/* The least is exact; above it stands what else this machine does. */
static void test_network_latency_and_rate_are_those_asked_for(void **state)
{
	(void)state;
	static const struct shape up = {.latency_ms = 30, .mbit = 20}, down = {.latency_ms = 10, .mbit = 80};
	struct ends ends;
	open_line(&up, &down, &ends);
	move(&ends, 0, 1);
	double latency_s = latency_of(&ends), up_s = move(&ends, 0, 8), down_s = move(&ends, 1, 8), bits = 8.0 * 8 * SIZE;
	printf("latency %.1f ms (20 asked for), %.1f Mbit/s up (20), %.1f down (80)\n", latency_s * 1e3, bits / up_s / 1e6,
	       bits / down_s / 1e6);
	assert_true(latency_s >= 0.0199 && latency_s < 0.2);
	assert_true(bits / up_s / 1e6 < 20.1 && bits / up_s / 1e6 > 6);
	assert_true(bits / down_s / 1e6 < 80.4 && bits / down_s / 1e6 > 10);
	close_line(&ends);
}

static void test_network_jitter_loss_and_an_outage_lose_no_message(void **state)
{
	(void)state;
	static const struct shape shape = {.latency_ms = 2, .jitter_ms = 3, .mbit = 200, .lost = 0.01};
	struct ends ends;
	open_line(&shape, &shape, &ends);
	for (int round = 0; round < 3; round++) {
		double up_s = move(&ends, 0, ENDS_MESSAGES), down_s = move(&ends, 1, ENDS_MESSAGES);
		printf("%.1f Mbit/s up, %.1f down\n", 8e-6 * SIZE * ENDS_MESSAGES / up_s, 8e-6 * SIZE * ENDS_MESSAGES / down_s);
		network_set_down(&network, 0, 1);
		usleep(200000);
		network_set_down(&network, 0, 0);
	}
	close_line(&ends);
}

/* A piece that becomes due between the look at the queue and the wait is not slept over. */
static void test_network_does_not_sleep_over_what_is_due(void **state)
{
	(void)state;
	static const struct shape shape = {.latency_ms = 1};
	struct shape_queue queue[2];
	for (int i = 0; i < 2; i++)
		shape_open(&queue[i], &shape, 1);
	shape_put(&queue[1], "piece", 5);
	int64_t seen_ns = shape_now();
	assert_null(shape_due(&queue[1], seen_ns));
	struct timespec early = shape_wait(queue, seen_ns, 20);
	assert_true(early.tv_sec == 0 && early.tv_nsec <= 1000000);
	usleep(2000);
	struct timespec late = shape_wait(queue, seen_ns, 20), waits_for_receiver = shape_wait(queue, shape_now(), 20);
	assert_true(late.tv_sec == 0 && late.tv_nsec == 0);
	assert_true(waits_for_receiver.tv_nsec == 20000000);
	for (int i = 0; i < 2; i++)
		shape_close(&queue[i]);
}

int main(void)
{
	limit_time(200);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_network_does_not_sleep_over_what_is_due),
	        cmocka_unit_test(test_network_latency_and_rate_are_those_asked_for),
	        cmocka_unit_test(test_network_jitter_loss_and_an_outage_lose_no_message),
	};
	return cmocka_run_group_tests(tests, ends_open_keys, ends_remove_keys);
}
