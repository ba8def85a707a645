/* Boxes on hosts of their own, with addresses, directories and speeds of their own, over a network that is slow, shaky and at times away:
 * they compute what one box does. */
#include "cli/boxes.h"
#include "link/network.h"

static struct network network;
static int next_host;

static void enter_host(void)
{
	limit_time(300); /* boxes that wait for one another for ever are ended, not the whole test */
	if (network.hosts)
		network_enter(&network, next_host);
}

/* A slower machine: the process stands still for that share of each 20 ms. */
struct slow {
	pid_t pid;
	double share;
	atomic_int stops;
};

static void *slow_down(void *context)
{
	enum { PERIOD_US = 20000 };
	struct slow *slow = context;
	while (!slow->stops) {
		kill(slow->pid, SIGSTOP);
		usleep((useconds_t)(slow->share * PERIOD_US));
		kill(slow->pid, SIGCONT);
		usleep((useconds_t)((1 - slow->share) * PERIOD_US));
	}
	return NULL;
}

static void test_unequal_boxes_over_a_shaky_network_compute_what_one_does(void **state)
{
	(void)state;
	enum { BOXES = 3 };
	static const char keys[] = "device: cpu:1\nsave_strategy: \"no\"\nlink_timeout: 2\nlink_give_up: 60\nbox_cuts: [2, 3]\n";
	static const struct shape shape[BOXES - 1][2] = {
	        {{.latency_ms = 5, .mbit = 20, .lost = 0.01}, {.latency_ms = 8, .mbit = 50, .lost = 0.01}},
	        {{.latency_ms = 1, .jitter_ms = 4, .mbit = 100}, {.latency_ms = 1, .jitter_ms = 4, .mbit = 100}}};
	struct scratch scratch;
	struct ran ran[BOXES];
	struct box_wire wire[BOXES];
	char secret[BOXES_MOST][512] = {0};
	make_files(&scratch);
	make_keys(&scratch, BOXES, secret);
	write_config(&scratch, "device: cpu:1\nsave_strategy: \"no\"\n", 1, 0, NULL);
	run_ok(&scratch, "train %s/run0.yaml --max_steps 20", scratch.dir);
	network_open(&network, BOXES, shape, check_seed());
	for (int k = 0; k + 1 < BOXES; k++)
		network_addresses(&network, k, wire[k].listens, wire[k].connects);
	for (next_host = 0; next_host < BOXES; next_host++) {
		char all[1024];
		snprintf(all, sizeof all, "%s%s", keys, secret[next_host]);
		write_config(&scratch, all, BOXES, next_host + 1, wire);
		run_start(&scratch, path_of("train %s/run%d.yaml --max_steps 20", scratch.dir, next_host + 1), 0, &ran[next_host]);
	}
	struct slow slow = {.pid = ran[1].pid, .share = 0.5};
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, slow_down, &slow), 0);
	for (int k = 0; k + 1 < BOXES; k++) {
		usleep(500000);
		network_set_down(&network, k, 1);
		usleep(300000);
		network_set_down(&network, k, 0);
	}
	siginfo_t ended; /* its number stays its own until it is waited for */
	assert_int_equal(waitid(P_PID, (id_t)slow.pid, &ended, WEXITED | WNOWAIT), 0);
	slow.stops = 1;
	pthread_join(thread, NULL);
	for (int k = 0; k < BOXES; k++)
		run_wait(&ran[k]);
	for (int k = 0; k < BOXES; k++) {
		if (ran[k].status)
			fail_msg("box %d: exit %d: %s", k + 1, ran[k].status, ran[k].err);
		run_free(&ran[k]);
	}
	check_weights(&scratch, "model.safetensors", BOXES);
	network_close(&network);
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = enter_host;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_unequal_boxes_over_a_shaky_network_compute_what_one_does),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
