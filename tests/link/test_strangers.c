/* Whoever else connects to a box that listens: refused, logged, and the link to the right peer goes on as if nobody had come. */
#include "ends.h"
#include "relay.h"

#include "core/clock.h"
#include "link/frame.h"
#include "link/tls.h"

#include <fcntl.h>

/* A short patience, with which a busy machine still greets its peer. */
static const struct rh_link_timing hasty = {.timeout_ns = 3000000000};
static const char hello[] = "build=1\nmodel=tiny\n"; /* that of the ends */

/* What the process says on stderr until log_take. */
static struct {
	int terminal;
	char path[64];
} logged;

static void log_begin(void)
{
	snprintf(logged.path, sizeof logged.path, "%s/stderr", ends_folder);
	fflush(stderr);
	int file = open(logged.path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
	logged.terminal = dup(2);
	assert_true(file >= 0 && logged.terminal >= 0 && dup2(file, 2) == 2);
	close(file);
}

static void log_take(char *text, size_t bytes)
{
	fflush(stderr);
	assert_int_equal(dup2(logged.terminal, 2), 2);
	close(logged.terminal);
	FILE *file = fopen(logged.path, "r");
	assert_non_null(file);
	text[fread(text, 1, bytes - 1, file)] = 0;
	fclose(file);
	unlink(logged.path);
}

static void exchange_one(struct rh_link *from, struct rh_link *to)
{
	char byte = 0;
	check_ok(rh_link_receive(to, 9, &byte, 1));
	check_ok(rh_link_send(from, 9, "y", 1));
	check_ok(to->ops->wait(to, 0, to->receives));
	check_ok(from->ops->wait(from, from->sends, 0));
	assert_int_equal(byte, 'y');
}

/* Reads what the listener says until it closes. */
static void wait_until_closed(int descriptor)
{
	char bytes[4096];
	ssize_t got = 1;
	while (got > 0) {
		struct pollfd waits = {.fd = descriptor, .events = POLLIN};
		assert_int_equal(poll(&waits, 1, 10000), 1);
		got = recv(descriptor, bytes, sizeof bytes, 0);
	}
	close(descriptor);
}

/* The log has one refusal, for this reason. */
static void check_logged(const char *log, const char *why)
{
	const char *line = strstr(log, "was refused: ");
	if (!line || !strstr(line, why) || strstr(line + 1, "was refused: "))
		fail_msg("'%s' is not one refusal with '%s'", log, why);
	printf("%s", log);
}

/* `come` is somebody who connects to that port and returns when the listener has closed. */
static void check_stranger(int encrypts, void (*come)(int port, const void *context), const void *context, const char *why)
{
	struct ends ends;
	char log[4096];
	log_begin();
	ends_tcp(encrypts ? &ends_keys : NULL, &(struct rh_tcp_options){.timing = hasty}, NULL, &ends);
	exchange_one(ends.end[1], ends.end[0]);
	come(ends.port, context);
	for (int i = 0; i < 2; i++) {
		struct rh_link_progress progress;
		exchange_one(ends.end[i], ends.end[!i]);
		check_ok(ends.end[i]->ops->progress(ends.end[i], &progress));
		assert_int_equal(progress.reconnects, 0);
	}
	ends_close(&ends);
	log_take(log, sizeof log);
	check_logged(log, why);
}

struct bytes {
	unsigned char bytes[FRAME_HEADER + sizeof hello];
	size_t size;
};

static void send_bytes(int port, const void *context)
{
	const struct bytes *said = context;
	int descriptor = relay_socket(port, 0);
	assert_true(descriptor >= 0);
	assert_int_equal(send(descriptor, said->bytes, said->size, MSG_NOSIGNAL), said->size);
	wait_until_closed(descriptor);
}

static struct bytes frame_bytes(const struct frame *frame)
{
	struct bytes out = {.size = FRAME_HEADER + frame->length};
	assert_true(out.size <= sizeof out.bytes);
	frame_encode(frame, out.bytes);
	if (frame->length)
		memcpy(out.bytes + FRAME_HEADER, frame->payload, frame->length);
	return out;
}

static struct bytes hello_bytes(void)
{
	return frame_bytes(&(struct frame){.type = FRAME_HELLO, .a = 7, .payload = hello, .length = sizeof hello - 1});
}

static void test_stranger_with_an_oversized_frame(void **state)
{
	(void)state;
	struct bytes said = hello_bytes();
	memset(said.bytes + 8, 0xff, 4);
	check_stranger(0, send_bytes, &said, "a frame of 4294967295 bytes, more than its kind may have (8192)");
}

static void test_stranger_with_a_malformed_frame(void **state)
{
	(void)state;
	struct bytes said = hello_bytes();
	said.bytes[4] = 99;
	check_stranger(0, send_bytes, &said, "a frame of an unknown kind");
	said = hello_bytes();
	said.bytes[6] = 1; /* what is zero in every frame */
	check_stranger(0, send_bytes, &said, "a frame of an unknown kind");
	said = hello_bytes();
	said.bytes[FRAME_HEADER] ^= 1; /* the checksum is of another payload */
	check_stranger(0, send_bytes, &said, "a frame was damaged on its way");
	said = frame_bytes(&(struct frame){.type = FRAME_DATA, .c = 1, .payload = hello, .length = 2});
	check_stranger(0, send_bytes, &said, "a piece that lies outside its message");
	said = frame_bytes(&(struct frame){.type = FRAME_DATA, .c = 1, .payload = hello, .length = 1});
	check_stranger(0, send_bytes, &said, "a message before it greeted");
	said = frame_bytes(&(struct frame){.type = FRAME_PING});
	check_stranger(0, send_bytes, &said, "the peer did not greet");
}

/* Another version of frames; and, once the boxes have met, another of the program. */
static void test_stranger_of_another_version(void **state)
{
	(void)state;
	static const char other[] = "build=2\nmodel=tiny\n";
	struct bytes said = hello_bytes();
	said.bytes[3]++;
	check_stranger(0, send_bytes, &said, "does not speak this version of Roundhouse's link");
	said = frame_bytes(&(struct frame){.type = FRAME_HELLO, .a = 7, .payload = other, .length = sizeof other - 1});
	check_stranger(0, send_bytes, &said, "the boxes differ in build");
}

/* With a key of its own: it ends its handshake and sends a frame at once, which nobody looks at. */
static void send_with_own_key(int port, const void *context)
{
	char path[300];
	struct tls *tls;
	struct stream *stream;
	short wants;
	int descriptor = relay_socket(port, 0), copy = dup(descriptor), rc;
	snprintf(path, sizeof path, "%s/stranger.pem", ends_folder);
	check_ok(rh_identity_make(path));
	check_ok(tls_open(path, ends_keys.hash[0], &tls));
	check_ok(tls_stream(tls, descriptor, 0, &stream));
	while ((rc = stream->ops->greet(stream, &wants)) == -EAGAIN)
		usleep(100);
	check_ok(rc); /* its own part of the handshake */
	const struct bytes *said = context;
	(void)!stream->ops->write(stream, said->bytes, (int64_t)said->size, &wants); /* the listener may have closed already */
	wait_until_closed(copy);
	stream_close(stream);
	tls_close(tls);
	unlink(path);
}

/* Without a key that the listener was told, no frame is parsed: the refusal is the handshake's, not the frame's. */
static void test_stranger_without_the_key_is_refused_before_its_frame(void **state)
{
	(void)state;
	struct bytes said = hello_bytes();
	memset(said.bytes + 8, 0xff, 4); /* oversized, were it parsed */
	check_stranger(1, send_bytes, &said, "it does not speak TLS");
	check_stranger(1, send_with_own_key, &said, "the peer's certificate has the hash");
}

/* Says the beginning of a frame, or nothing, and waits. */
static void test_stranger_that_stalls(void **state)
{
	(void)state;
	struct bytes said = hello_bytes();
	for (int encrypts = 0; encrypts < 2; encrypts++) {
		said.size = 0;
		check_stranger(encrypts, send_bytes, &said, "it did not greet within 3 s");
	}
	said.size = FRAME_HEADER / 2;
	check_stranger(0, send_bytes, &said, "it did not greet within 3 s");
	said.size = FRAME_HEADER + 1;
	check_stranger(0, send_bytes, &said, "it did not greet within 3 s");
}

static struct rh_link *open_end(int which, const char *address)
{
	struct rh_link *link;
	check_ok(rh_tcp_open(&(struct rh_tcp_options){.address = address,
	                                              .listens = !which,
	                                              .identity = ends_keys.path[which],
	                                              .peer = ends_keys.hash[!which],
	                                              .greeting = hello,
	                                              .messages = 1},
	                     &link));
	return link;
}

/* A flood that goes on: so many connections a second, each of which says so many bytes and then nothing. */
struct flood {
	int port, per_second, from; /* from: the last byte of the address of loopback */
	unsigned char said[64];
	size_t bytes;
	atomic_int stops, made;
	pthread_t thread;
};

static void *run_flood(void *context)
{
	struct flood *flood = context;
	enum { OPEN_MOST = 600 };
	int open[OPEN_MOST] = {0};
	for (int i = 0; !flood->stops; i = (i + 1) % OPEN_MOST) {
		if (open[i])
			close(open[i]);
		struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + (unsigned)flood->from)},
		                   to = {.sin_family = AF_INET,
		                         .sin_port = htons((uint16_t)flood->port),
		                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		open[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (open[i] > 0 && !bind(open[i], (struct sockaddr *)&own, sizeof own)) {
			(void)!connect(open[i], (struct sockaddr *)&to, sizeof to);
			(void)!send(open[i], flood->said, flood->bytes, MSG_NOSIGNAL);
			flood->made++;
		}
		usleep((useconds_t)(1000000 / flood->per_second));
	}
	for (int i = 0; i < OPEN_MOST; i++)
		if (open[i])
			close(open[i]);
	return NULL;
}

/* Seconds until the peer, which connects once the flood has begun, has moved a message. */
static double meet_in_a_flood(struct flood *flood)
{
	enum { MOST_SECONDS = 60 };
	char address[32] = "127.0.0.1:0", log[8192], byte;
	struct rh_link_progress progress = {0};
	log_begin();
	struct rh_link *end[2] = {open_end(0, address)};
	flood->port = rh_tcp_port(end[0]);
	assert_int_equal(pthread_create(&flood->thread, NULL, run_flood, flood), 0);
	while (flood->made < flood->per_second)
		usleep(10000);
	snprintf(address, sizeof address, "127.0.0.1:%d", flood->port);
	int64_t began = rh_clock_ns();
	end[1] = open_end(1, address);
	check_ok(rh_link_receive(end[0], 9, &byte, 1));
	check_ok(rh_link_send(end[1], 9, "y", 1));
	while (!progress.received) {
		check_ok(end[0]->ops->progress(end[0], &progress));
		assert_true(rh_clock_ns() - began < MOST_SECONDS * 1000000000ll);
		usleep(1000);
	}
	double seconds = (double)(rh_clock_ns() - began) / 1e9;
	flood->stops = 1;
	pthread_join(flood->thread, NULL);
	for (int i = 0; i < 2; i++)
		rh_link_close(end[i]);
	log_take(log, sizeof log);
	check_logged(log, ": ");
	printf("the peer was in after %.1f s and %d connections\n", seconds, flood->made);
	return seconds;
}

/* From the peer's own address, and saying nothing: each gives its place to the next. */
static void test_stranger_in_a_silent_flood_keeps_no_peer_out(void **state)
{
	(void)state;
	struct flood flood = {.per_second = 500};
	assert_true(meet_in_a_flood(&flood) < 40);
}

/* From another address, beginning as TLS does: that source has no more places than leave the peer one. */
static void test_stranger_in_a_flood_that_speaks_keeps_no_peer_out(void **state)
{
	(void)state;
	struct flood flood = {.per_second = 500, .from = 7, .said = {22, 3, 1, 0, 200, 1, 0, 0, 196}, .bytes = 9};
	assert_true(meet_in_a_flood(&flood) < 40);
}

/* A second process with the peer's key is told, and the pair goes on. */
static void test_a_second_process_with_the_peers_key_is_turned_away(void **state)
{
	(void)state;
	for (int encrypts = 0; encrypts < 2; encrypts++) {
		struct ends ends;
		char address[32], log[4096], byte = 0;
		log_begin();
		ends_tcp(encrypts ? &ends_keys : NULL, &(struct rh_tcp_options){0}, NULL, &ends);
		exchange_one(ends.end[1], ends.end[0]);
		exchange_one(ends.end[0], ends.end[1]);
		snprintf(address, sizeof address, "127.0.0.1:%d", ends.port);
		struct rh_tcp_options options = {.address = address, .greeting = hello, .messages = 1};
		if (encrypts) {
			options.identity = ends_keys.path[1];
			options.peer = ends_keys.hash[0];
		}
		struct rh_link *second;
		check_ok(rh_tcp_open(&options, &second));
		int rc = rh_link_receive(second, 9, &byte, 1); /* it may have been told already */
		if (!rc)
			rc = rh_link_send(second, 9, "y", 1);
		if (!rc)
			rc = second->ops->wait(second, 1, 1);
		assert_int_equal(rc, -ECONNABORTED);
		if (!strstr(rh_error(-ECONNABORTED), "linked already, with another process"))
			fail_msg("%s", rh_error(-ECONNABORTED));
		rh_link_close(second);
		for (int i = 0; i < 2; i++) {
			struct rh_link_progress progress;
			exchange_one(ends.end[i], ends.end[!i]);
			check_ok(ends.end[i]->ops->progress(ends.end[i], &progress));
			assert_int_equal(progress.reconnects, 0);
		}
		ends_close(&ends);
		log_take(log, sizeof log);
		check_logged(log, "another process with the peer's key");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_stranger_with_an_oversized_frame),
	        cmocka_unit_test(test_stranger_with_a_malformed_frame),
	        cmocka_unit_test(test_stranger_of_another_version),
	        cmocka_unit_test(test_stranger_without_the_key_is_refused_before_its_frame),
	        cmocka_unit_test(test_stranger_that_stalls),
	        cmocka_unit_test(test_stranger_in_a_silent_flood_keeps_no_peer_out),
	        cmocka_unit_test(test_stranger_in_a_flood_that_speaks_keeps_no_peer_out),
	        cmocka_unit_test(test_a_second_process_with_the_peers_key_is_turned_away),
	};
	return cmocka_run_group_tests(tests, ends_open_keys, ends_remove_keys);
}
