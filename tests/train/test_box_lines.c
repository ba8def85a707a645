/* Each end of a link is paced to its own number of link_mbit_per_second. */
#include "config/place.h"
#include "limit_time.h"
#include "port.h"

#include "modes/boxes/box.h"

#include <math.h>
#include <pthread.h>

enum { BOXES = 3, LINKS = BOXES - 1, DESCRIPTORS = 256 };

struct met {
	pthread_t thread;
	struct rh_config config;
	struct rh_box box;
};

static void *meet(void *context)
{
	struct met *met = context;
	check_ok(rh_box_open(&met->config, "model=none\n", &met->box));
	return NULL;
}

/* Box 2 listens for both of its neighbours. */
static void load_box(int number, const char *line, const int port[LINKS], struct rh_config *out)
{
	char yaml[512];
	int used = snprintf(yaml, sizeof yaml, "mode: sync-pp\nboxes: %d\nbox: %d\nlink_latency_ms: 0\n%s", BOXES, number + 1, line);
	const char *listen = number == 1 ? "listen:" : "";
	if (number)
		used += snprintf(yaml + used, sizeof yaml - (size_t)used, "link_below: %s127.0.0.1:%d\n", listen, port[number - 1]);
	if (number < LINKS)
		used += snprintf(yaml + used, sizeof yaml - (size_t)used, "link_above: %s127.0.0.1:%d\n", listen, port[number]);
	check_ok(load(yaml, NULL, out));
}

static int port_of(const struct sockaddr_in *address)
{
	return ntohs(address->sin_port);
}

/* The pacing rates of all ends, which share this process. rate[k][way]: of link k; the lower end sends up (way 0), the upper down. */
static void find_rates(const int port[LINKS], uint64_t rate[LINKS][2])
{
	for (int descriptor = 0; descriptor < DESCRIPTORS; descriptor++) {
		struct sockaddr_in own, peer;
		uint64_t bytes_per_s;
		socklen_t length = sizeof own, peer_length = sizeof peer, rate_length = sizeof bytes_per_s;
		if (getpeername(descriptor, (struct sockaddr *)&peer, &peer_length) || peer.sin_family != AF_INET ||
		    getsockname(descriptor, (struct sockaddr *)&own, &length) ||
		    getsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s, &rate_length))
			continue;
		for (int k = 0; k < LINKS; k++)
			for (int listens = 0; listens < 2; listens++)
				if (port_of(listens ? &own : &peer) ==
				    port[k]) /* the upper end of link 0 listens, the lower end of link 1 */
					rate[k][k ? !listens : listens] = bytes_per_s;
	}
}

static void check_rates(const char *line, const double mbit[LINKS][2])
{
	int port[LINKS];
	struct met met[BOXES];
	uint64_t rate[LINKS][2] = {{0}};
	for (int k = 0; k < LINKS; k++)
		port[k] = free_port();
	for (int b = 0; b < BOXES; b++) {
		load_box(b, line, port, &met[b].config);
		assert_int_equal(pthread_create(&met[b].thread, NULL, meet, &met[b]), 0);
	}
	for (int b = 0; b < BOXES; b++)
		pthread_join(met[b].thread, NULL);
	find_rates(port, rate);
	for (int k = 0; k < LINKS; k++)
		for (int way = 0; way < 2; way++) {
			uint64_t expected = mbit[k][way] ? (uint64_t)ceil(mbit[k][way] * 1e6 / 8 * 1.05) : UINT64_MAX;
			if (rate[k][way] != expected)
				fail_msg("%slink %d, %s: %llu bytes/s, not %llu", line, k, way ? "down" : "up",
				         (unsigned long long)rate[k][way], (unsigned long long)expected);
		}
	for (int b = 0; b < BOXES; b++) {
		rh_box_close(&met[b].box, 0);
		rh_config_free(&met[b].config);
	}
}

static void test_each_end_sends_at_its_entry(void **state)
{
	(void)state;
	static const struct {
		const char *line;
		double mbit[LINKS][2];
	} cases[] = {{"link_mbit_per_second: [4000, 5000, 6000, 7000]\n", {{4000, 5000}, {6000, 7000}}},
	             {"link_mbit_per_second: [4000, 5000]\n", {{4000, 4000}, {5000, 5000}}},
	             {"link_mbit_per_second: 4000\n", {{4000, 4000}, {4000, 4000}}},
	             {"", {{0}}}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_rates(cases[i].line, cases[i].mbit);
}

int main(void)
{
	limit_time(300);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_end_sends_at_its_entry)};
	return cmocka_run_group_tests(tests, place_make, place_remove);
}
