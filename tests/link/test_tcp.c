/* A TCP link and what may happen to it: cut connections, strangers, peers that stall, differ or were started anew. */
#include "ends.h"
#include "relay.h"

#include "core/clock.h"
#include "link/frame.h"

#include <fcntl.h>
#include <sys/epoll.h>

static const struct rh_link_timing hasty = {.heartbeat_ns = 50000000, .timeout_ns = 300000000, .give_up_ns = 20000000000};

/* Messages go both ways through a relay that cuts each connection soon, for longer than link_give_up; something moves on in most of them.
 * Every byte arrives once. */
static void test_tcp_cut_at_random_moments_loses_and_doubles_nothing(void **state)
{
	(void)state;
	enum { SIZE = 300000 };
	const struct rh_link_timing timing = {.heartbeat_ns = 50000000, .timeout_ns = 300000000, .give_up_ns = 5000000000};
	int cuts_wanted = getenv("RH_LONG") ? 400 : 40;
	int64_t begun_ns = rh_clock_ns();
	struct relay relay;
	struct ends ends;
	struct rh_link_progress progress;
	char through[32];
	static char out[2][ENDS_MESSAGES][SIZE], in[2][ENDS_MESSAGES][SIZE];
	uint64_t seed = check_seed(), number = 0;
	relay_open(&relay, 2000000, seed);
	snprintf(through, sizeof through, "127.0.0.1:%d", relay.port);
	ends_tcp(&ends_keys, &(struct rh_tcp_options){.timing = timing}, through, &ends);
	relay_start(&relay, ends.port);
	for (; relay.cuts < cuts_wanted || rh_clock_ns() - begun_ns < timing.give_up_ns * 3 / 2; number++) {
		int at = (int)(number % ENDS_MESSAGES);
		for (int i = 0; i < 2; i++) {
			if (number >= ENDS_MESSAGES) {
				check_ok(ends.end[i]->ops->wait(ends.end[i], (int64_t)number - ENDS_MESSAGES + 1,
				                                (int64_t)number - ENDS_MESSAGES + 1));
				/* what the other end sent as this number: the marks that it wrote then */
				uint64_t marked;
				memcpy(&marked, in[i][at], sizeof marked);
				assert_int_equal(marked, 2 * (number - ENDS_MESSAGES) + !i);
				memcpy(&marked, in[i][at] + SIZE - 8, sizeof marked);
				assert_int_equal(marked, 2 * (number - ENDS_MESSAGES) + !i);
			}
			uint64_t mark = 2 * number + (uint64_t)i;
			memset(in[i][at], 0, SIZE);
			check_ok(ends.end[i]->ops->receive(ends.end[i], number, in[i][at], SIZE));
			check_ok(ends.end[!i]->ops->progress(ends.end[!i], &progress));
			if (number >= ENDS_MESSAGES)
				check_ok(ends.end[i]->ops->wait(ends.end[i], (int64_t)number - ENDS_MESSAGES + 1, 0));
			memcpy(out[i][at], &mark, sizeof mark);
			memcpy(out[i][at] + SIZE - 8, &mark, sizeof mark);
			check_ok(ends.end[i]->ops->send(ends.end[i], number, out[i][at], SIZE));
		}
	}
	for (int i = 0; i < 2; i++)
		check_ok(ends.end[i]->ops->wait(ends.end[i], (int64_t)number, (int64_t)number));
	check_ok(ends.end[1]->ops->progress(ends.end[1], &progress));
	printf("%d cuts, %lld reconnects, %llu messages of %d bytes each way, %.2f of them on the wire\n", (int)relay.cuts,
	       (long long)progress.reconnects, (unsigned long long)number, SIZE, (double)progress.bytes_sent / ((double)number * SIZE));
	assert_true(progress.reconnects > 0);
	ends_close(&ends);
	relay_close(&relay);
}

static void check_flipped_bits(const struct ends_keys *keys)
{
	enum { SIZE = 100000, MESSAGES = 12 };
	struct relay relay;
	struct ends ends;
	struct rh_link_progress progress;
	char through[32];
	static char out[SIZE], in[SIZE];
	uint64_t seed = check_seed();
	relay_open(&relay, 0, seed);
	snprintf(through, sizeof through, "127.0.0.1:%d", relay.port);
	ends_tcp(keys, &(struct rh_tcp_options){.timing = hasty}, through, &ends);
	relay_start(&relay, ends.port);
	for (int number = 0; number < MESSAGES; number++) {
		int from = number % 2, count = number / 2 + 1;
		for (int i = 0; i < SIZE; i++)
			out[i] = (char)check_random(&seed);
		memset(in, 0, SIZE);
		relay.flips = 1;
		check_ok(ends.end[!from]->ops->receive(ends.end[!from], (uint64_t)number / 2, in, SIZE));
		check_ok(ends.end[from]->ops->send(ends.end[from], (uint64_t)number / 2, out, SIZE));
		check_ok(ends.end[!from]->ops->wait(ends.end[!from], 0, count));
		check_ok(ends.end[from]->ops->wait(ends.end[from], count, 0));
		assert_memory_equal(in, out, SIZE);
		assert_int_equal(relay.flips, 0);
	}
	check_ok(ends.end[1]->ops->progress(ends.end[1], &progress));
	assert_true(progress.reconnects > 0);
	ends_close(&ends);
	relay_close(&relay);
}

/* The connection is made anew, and the message sent again. Without keys nothing but the frames' own checksum finds the bit; with them TLS
 * does, and tells the sender, which is no refusal of its key. */
static void test_tcp_flipped_bits_arrive_nowhere(void **state)
{
	(void)state;
	check_flipped_bits(NULL);
	check_flipped_bits(&ends_keys);
}

/* A connection that says nothing any more counts as broken after the timeout, and is made anew. */
static void test_tcp_a_silent_connection_is_made_anew(void **state)
{
	(void)state;
	struct relay relay;
	struct ends ends;
	struct rh_link_progress progress;
	char through[32], byte = 0;
	relay_open(&relay, 0, check_seed());
	snprintf(through, sizeof through, "127.0.0.1:%d", relay.port);
	ends_tcp(&ends_keys, &(struct rh_tcp_options){.timing = hasty}, through, &ends);
	relay_start(&relay, ends.port);
	for (int i = 0; i < 2; i++) {
		check_ok(ends.end[0]->ops->receive(ends.end[0], (uint64_t)i, &byte, 1));
		check_ok(ends.end[1]->ops->send(ends.end[1], (uint64_t)i, "x", 1));
		if (!i)
			check_ok(ends.end[0]->ops->wait(ends.end[0], 0, 1));
		if (!i)
			usleep(200000); /* echoes pass */
		relay.is_mute = !i;
		if (!i)
			usleep(600000);
	}
	check_ok(ends.end[0]->ops->wait(ends.end[0], 0, 2));
	check_ok(ends.end[0]->ops->progress(ends.end[0], &progress));
	assert_true(progress.reconnects >= 1);
	assert_true(progress.latency_s > 0 && progress.latency_s < 0.05);
	ends_close(&ends);
	relay_close(&relay);
}

/* The connecting end's socket becomes a descriptor that reads and writes fail on with EINVAL, which is a fault of the link where the link
 * itself finds it (options that are wrong). */
static void test_tcp_an_error_of_the_system_ends_the_connection_alone(void **state)
{
	(void)state;
	struct ends ends;
	struct rh_link_progress progress;
	ends_tcp(&ends_keys, &(struct rh_tcp_options){.timing = hasty}, NULL, &ends);
	ends_exchange_one(&ends, 1);
	int epoll = epoll_create1(EPOLL_CLOEXEC), found = 0;
	for (int descriptor = 0; descriptor < epoll; descriptor++) {
		struct sockaddr_in peer = {0};
		socklen_t length = sizeof peer;
		if (getpeername(descriptor, (struct sockaddr *)&peer, &length) || peer.sin_family != AF_INET ||
		    ntohs(peer.sin_port) != ends.port)
			continue;
		assert_int_equal(dup3(epoll, descriptor, O_CLOEXEC), descriptor);
		found++;
	}
	close(epoll);
	assert_int_equal(found, 1);
	ends_exchange_one(&ends, 2);
	check_ok(ends.end[1]->ops->progress(ends.end[1], &progress));
	assert_int_equal(progress.reconnects, 1);
	ends_close(&ends);
}

/* Garbage, silence, a flood of connections, a TLS client without a certificate's key that is known: the link's own peer is served. */
static void test_tcp_strangers_are_refused_and_nothing_else_happens(void **state)
{
	(void)state;
	struct ends ends;
	struct rh_link *stranger;
	char name[300], address[32];
	ends_tcp(&ends_keys, &(struct rh_tcp_options){.timing = hasty}, NULL, &ends);
	ends_exchange_one(&ends, 1);
	int silent[4], loud = relay_socket(ends.port, 0);
	for (int i = 0; i < 4; i++)
		silent[i] = relay_socket(ends.port, 0);
	static const char garbage[100000] = "GET / HTTP/1.1\r\n\r\n";
	assert_true(send(loud, garbage, sizeof garbage, MSG_NOSIGNAL) > 0);
	for (int i = 0; i < 200; i++)
		close(relay_socket(ends.port, 0));
	snprintf(name, sizeof name, "%s/stranger.pem", ends_folder);
	check_ok(rh_identity_make(name));
	snprintf(address, sizeof address, "127.0.0.1:%d", ends.port);
	check_ok(rh_tcp_open(&(struct rh_tcp_options){.address = address,
	                                              .identity = name,
	                                              .peer = ends_keys.hash[0],
	                                              .greeting = "build=1\nmodel=tiny\n",
	                                              .messages = 1,
	                                              .timing = hasty},
	                     &stranger));
	assert_int_equal(stranger->ops->wait(stranger, 1, 0), -EACCES);
	printf("told the stranger: %s\n", rh_error(-EACCES));
	rh_link_close(stranger);
	ends_exchange_one(&ends, 2);
	close(loud);
	for (int i = 0; i < 4; i++)
		close(silent[i]);
	unlink(name);
	ends_close(&ends);
}

static int has_ipv6(void)
{
	const struct sockaddr_in6 here = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int descriptor = socket(AF_INET6, SOCK_STREAM, 0);
	int is_there = descriptor >= 0 && !bind(descriptor, (const struct sockaddr *)&here, sizeof here);
	if (descriptor >= 0)
		close(descriptor);
	return is_there;
}

/* As README writes it: listen:4711. */
static void test_tcp_a_listener_may_have_a_port_alone(void **state)
{
	(void)state;
	struct rh_tcp_options options = {.address = "0", .listens = 1, .greeting = "", .messages = 1, .timing = hasty};
	char address[32], byte = 0;
	for (int turn = 0; turn < 3; turn++) { /* plain; TLS; TLS over IPv6, where there is any */
		struct rh_link *ends[2];
		int secure = turn > 0;
		if (turn == 2 && !has_ipv6()) {
			printf("skipped: a listener's IPv6, which this machine lacks\n");
			continue;
		}
		for (int i = 0; i < 2; i++) {
			options.identity = secure ? ends_keys.path[i] : NULL;
			options.peer = secure ? ends_keys.hash[!i] : NULL;
			options.listens = !i;
			options.address = i ? address : "0";
			check_ok(rh_tcp_open(&options, &ends[i]));
			snprintf(address, sizeof address, "%s:%d", turn == 2 ? "[::1]" : "127.0.0.1", rh_tcp_port(ends[0]));
		}
		check_ok(rh_link_receive(ends[0], 1, &byte, 1));
		check_ok(rh_link_send(ends[1], 1, "z", 1));
		check_ok(ends[0]->ops->wait(ends[0], 0, 1));
		assert_int_equal(byte, 'z');
		for (int i = 0; i < 2; i++)
			rh_link_close(ends[i]);
	}
}

/* The one that connects finds someone else than it was told; or it is not who the listener expects. */
static void test_tcp_the_wrong_peer_is_named(void **state)
{
	(void)state;
	struct ends ends;
	struct rh_link *link;
	char address[32];
	ends_tcp(&ends_keys, &(struct rh_tcp_options){.timing = hasty}, NULL, &ends);
	snprintf(address, sizeof address, "127.0.0.1:%d", ends.port);
	for (int own = 0; own < 2; own++) { /* the listener is 0, and expects 1 */
		check_ok(rh_tcp_open(&(struct rh_tcp_options){.address = address,
		                                              .identity = ends_keys.path[own],
		                                              .peer = ends_keys.hash[own],
		                                              .greeting = "",
		                                              .messages = 1,
		                                              .timing = hasty},
		                     &link));
		assert_int_equal(link->ops->wait(link, 1, 0), -EACCES);
		assert_non_null(strstr(rh_error(-EACCES), own ? "the peer's certificate has the hash" : "the peer refuses this box"));
		assert_non_null(strstr(rh_error(-EACCES), ends_keys.hash[0]));
		rh_link_close(link);
	}
	ends_close(&ends);
}

/* Once the boxes have met, the right address may be another's for a while: whoever answers there is refused, and the peer found again. */
static void test_tcp_a_stranger_at_the_peers_address_ends_nothing(void **state)
{
	(void)state;
	struct relay relay;
	struct ends ends;
	struct rh_link *stranger;
	struct rh_link_progress progress;
	char through[32];
	relay_open(&relay, 0, check_seed());
	snprintf(through, sizeof through, "127.0.0.1:%d", relay.port);
	ends_tcp(&ends_keys, &(struct rh_tcp_options){.timing = hasty}, through, &ends);
	check_ok(rh_tcp_open(&(struct rh_tcp_options){.address = "127.0.0.1:0",
	                                              .listens = 1,
	                                              .identity = ends_keys.path[1],
	                                              .peer = ends_keys.hash[0],
	                                              .greeting = "",
	                                              .messages = 1},
	                     &stranger));
	relay_start(&relay, ends.port);
	ends_exchange_one(&ends, 1);
	for (int meets_stranger = 1; meets_stranger >= 0; meets_stranger--) {
		relay.is_down = 1;
		usleep(100000); /* the relay has seen it */
		relay.to_port = meets_stranger ? rh_tcp_port(stranger) : ends.port;
		relay.is_down = 0;
		usleep(meets_stranger ? 700000 : 0);
		check_ok(ends.end[1]->ops->progress(ends.end[1], &progress));
	}
	ends_exchange_one(&ends, 2);
	rh_link_close(stranger);
	ends_close(&ends);
	relay_close(&relay);
}

/* Linux paces a connection's packets from the eleventh on. */
static void send_unpaced_packets(struct ends *ends, int sender)
{
	struct rh_link *from = ends->end[sender], *to = ends->end[1 - sender];
	enum { PACKETS = 10 };
	char word = 0;
	for (uint64_t p = 0; p < PACKETS; p++) {
		check_ok(rh_link_receive(to, p, &word, 1));
		check_ok(rh_link_send(from, p, "w", 1));
		check_ok(to->ops->wait(to, 0, to->receives));
	}
}

/* Each end, the one that listens and the one that connects, sends at a speed that it was told: no message can be there before its bytes
 * have taken their time. The bound leaves out two packets: the first one leaves at once, and one after a pause takes half of its time. */
static void test_tcp_sends_no_faster_than_it_was_told(void **state)
{
	(void)state;
	enum { MESSAGES = 4, SIZE = 1 << 18, SPEED = 4 << 20, PACKET = 1 << 16 };
	static char out[SIZE], in[MESSAGES][SIZE];
	struct ends ends;
	ends_tcp(&ends_keys, &(struct rh_tcp_options){.bytes_per_s = SPEED}, NULL, &ends);
	for (int sender = 0; sender < 2; sender++) {
		struct rh_link *from = ends.end[sender], *to = ends.end[1 - sender];
		send_unpaced_packets(&ends, sender);
		for (uint64_t m = 0; m < MESSAGES; m++)
			check_ok(rh_link_receive(to, 100 + m, in[m], SIZE));
		double began = rh_clock_seconds();
		for (uint64_t m = 0; m < MESSAGES; m++)
			check_ok(rh_link_send(from, 100 + m, out, SIZE));
		check_ok(to->ops->wait(to, 0, to->receives));
		assert_true(rh_clock_seconds() - began >= (MESSAGES * SIZE - 2 * PACKET) / (1.05 * SPEED));
	}
	ends_close(&ends);
}

static void expect_greeting_fault(const char *mine, const char *theirs, const char *word)
{
	struct rh_link *ends[2];
	char address[32] = "127.0.0.1:0";
	struct rh_tcp_options options = {.address = address, .listens = 1, .greeting = mine, .messages = 1, .timing = hasty};
	check_ok(rh_tcp_open(&options, &ends[0]));
	snprintf(address, sizeof address, "127.0.0.1:%d", rh_tcp_port(ends[0]));
	options.listens = 0;
	options.greeting = theirs;
	check_ok(rh_tcp_open(&options, &ends[1]));
	for (int i = 0; i < 2; i++) {
		int rc = ends[i]->ops->wait(ends[i], 1, 0);
		assert_int_equal(rc, -EINVAL);
		if (!strstr(rh_error(rc), word))
			fail_msg("'%s' does not name %s", rh_error(rc), word);
	}
	rh_link_close(ends[0]);
	rh_link_close(ends[1]);
}

static void test_tcp_boxes_that_differ_name_the_first_difference(void **state)
{
	(void)state;
	expect_greeting_fault("build=1\ndtype=bf16\nseed=1\n", "build=1\ndtype=fp32\nseed=2\n", "dtype");
	expect_greeting_fault("build=1\nmodel=a\n", "build=1\n", "versions");
}

/* An end that was started anew knows nothing of what it had: the other does not go on with it. */
static void test_tcp_a_peer_started_anew_ends_the_link(void **state)
{
	(void)state;
	struct ends ends;
	struct rh_link *again;
	char address[32];
	ends_tcp(&ends_keys, &(struct rh_tcp_options){.timing = hasty}, NULL, &ends);
	ends_exchange_one(&ends, 1);
	char byte = 0;
	check_ok(ends.end[1]->ops->send(ends.end[1], 1, &byte, 1)); /* not received: the end goes without a farewell */
	rh_link_close(ends.end[1]);
	snprintf(address, sizeof address, "127.0.0.1:%d", ends.port);
	check_ok(rh_tcp_open(&(struct rh_tcp_options){.address = address,
	                                              .identity = ends_keys.path[1],
	                                              .peer = ends_keys.hash[0],
	                                              .greeting = "build=1\nmodel=tiny\n",
	                                              .messages = 1,
	                                              .timing = hasty},
	                     &again));
	assert_int_equal(ends.end[0]->ops->wait(ends.end[0], 1, 0), -ESTALE);
	rh_link_close(ends.end[0]);
	rh_link_close(again);
}

static void test_tcp_nobody_there_is_given_up(void **state)
{
	(void)state;
	struct rh_link *link;
	struct rh_link_timing timing = hasty;
	timing.give_up_ns = 300000000;
	struct rh_tcp_options options = {.address = "127.0.0.1:1", .greeting = "", .messages = 1, .timing = timing};
	check_ok(rh_tcp_open(&options, &link));
	assert_int_equal(link->ops->wait(link, 1, 0), -ETIMEDOUT);
	rh_link_close(link);
}

/* A path that passes greetings and drops what is larger: connections begin and are silent, for ever. */
static void test_tcp_connections_that_are_soon_silent_are_given_up(void **state)
{
	(void)state;
	static const struct rh_link_timing timing = {.heartbeat_ns = 200000000, .timeout_ns = 500000000, .give_up_ns = 1500000000};
	static char out[1 << 20], in[1 << 20];
	struct relay relay;
	struct ends ends;
	char through[32];
	relay_open(&relay, 0, check_seed());
	relay.mute_from = 4096;
	snprintf(through, sizeof through, "127.0.0.1:%d", relay.port);
	ends_tcp(NULL, &(struct rh_tcp_options){.timing = timing}, through, &ends);
	relay_start(&relay, ends.port);
	check_ok(ends.end[0]->ops->receive(ends.end[0], 1, in, sizeof in));
	check_ok(ends.end[1]->ops->send(ends.end[1], 1, out, sizeof out));
	int rc = ends.end[0]->ops->wait(ends.end[0], 0, 1);
	assert_int_equal(rc, -ETIMEDOUT);
	assert_non_null(strstr(rh_error(rc), "drop large packets"));
	assert_int_equal(ends.end[1]->ops->wait(ends.end[1], 1, 0), -ETIMEDOUT);
	ends_close(&ends);
	relay_close(&relay);
}

static void test_tcp_bad_options_are_refused_in_one_line(void **state)
{
	(void)state;
	static const struct {
		struct rh_tcp_options options;
		const char *word;
	} cases[] = {
	        {{.address = "nowhere", .listens = 1}, "HOST:PORT"},
	        {{.address = "::1:99", .listens = 1}, "[IPv6]"},
	        {{.address = "0.0.0.0:0", .listens = 1}, "TLS"},
	        {{.address = "127.0.0.1:0", .listens = 1, .identity = "/nowhere/key.pem"}, "go together"},
	        {{.address = "127.0.0.1:0", .listens = 1, .identity = "/nowhere/key.pem", .peer = "12"}, "link_peer"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_tcp_options options = cases[i].options;
		struct rh_link *link;
		options.greeting = "";
		options.messages = 1;
		int rc = rh_tcp_open(&options, &link);
		assert_true(rc < 0);
		assert_null(link);
		if (!strstr(rh_error(rc), cases[i].word))
			fail_msg("'%s' does not name %s", rh_error(rc), cases[i].word);
	}
}

static void test_identity_is_made_once_and_private(void **state)
{
	(void)state;
	char hash[RH_IDENTITY_HASH];
	assert_int_equal(rh_identity_make(ends_keys.path[0]), -EEXIST);
	check_ok(rh_identity_hash(ends_keys.path[0], hash));
	assert_string_equal(hash, ends_keys.hash[0]);
	assert_string_not_equal(ends_keys.hash[0], ends_keys.hash[1]);
	assert_int_equal(rh_identity_hash("/nowhere/key.pem", hash), -ENOENT);
	assert_int_equal(access(ends_keys.path[0], R_OK), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_tcp_cut_at_random_moments_loses_and_doubles_nothing),
	        cmocka_unit_test(test_tcp_flipped_bits_arrive_nowhere),
	        cmocka_unit_test(test_tcp_a_silent_connection_is_made_anew),
	        cmocka_unit_test(test_tcp_an_error_of_the_system_ends_the_connection_alone),
	        cmocka_unit_test(test_tcp_strangers_are_refused_and_nothing_else_happens),
	        cmocka_unit_test(test_tcp_a_listener_may_have_a_port_alone),
	        cmocka_unit_test(test_tcp_the_wrong_peer_is_named),
	        cmocka_unit_test(test_tcp_a_stranger_at_the_peers_address_ends_nothing),
	        cmocka_unit_test(test_tcp_sends_no_faster_than_it_was_told),
	        cmocka_unit_test(test_tcp_boxes_that_differ_name_the_first_difference),
	        cmocka_unit_test(test_tcp_a_peer_started_anew_ends_the_link),
	        cmocka_unit_test(test_tcp_nobody_there_is_given_up),
	        cmocka_unit_test(test_tcp_connections_that_are_soon_silent_are_given_up),
	        cmocka_unit_test(test_tcp_bad_options_are_refused_in_one_line),
	        cmocka_unit_test(test_identity_is_made_once_and_private),
	};
	return cmocka_run_group_tests(tests, ends_open_keys, ends_remove_keys);
}
