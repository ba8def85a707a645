/* What whoever connects may say to a box that listens, from the first byte on: to TLS, whose handshake it cannot end without a key, or on a
 * plain link up to the greeting and the frames behind it. The steps of the link's thread are called here, without the thread. */
#include "fuzz/fuzz.h"

/* Itself, as its steps have no names outside; the library has it once more. */
#define rh_tcp_open fuzz_tcp_open
#define rh_tcp_port fuzz_tcp_port
#include "link/tcp.c"

#include "link/identity.h"

#include <sys/socket.h>
#include <xxhash.h>

/* The first byte of an input says which. */
enum { TO_TLS = 1, CHECKED = 2 };
enum { TURNS = 100, HEADERS = FRAME_HEADER - 8 };

/* What a hostile peer can do: frames whose checks are right. */
static void correct_checks(uint8_t *bytes, size_t length)
{
	for (size_t at = 0; at + FRAME_HEADER <= length;) {
		uint32_t payload;
		memcpy(&payload, bytes + at + 8, sizeof payload);
		if (payload > length - at - FRAME_HEADER)
			return;
		uint64_t check = XXH3_64bits_withSeed(bytes + at, HEADERS, frame_hash(bytes + at + FRAME_HEADER, payload));
		memcpy(bytes + at + HEADERS, &check, sizeof check);
		at += FRAME_HEADER + payload;
	}
}

static struct tcp_link *open_listener_link(int is_tls)
{
	static char key[256], hash[RH_IDENTITY_HASH];
	struct rh_tcp_options options = {.address = "127.0.0.1:0", .listens = 1, .greeting = "build=1\nmodel=tiny\n", .messages = 2};
	if (is_tls && !*key) {
		snprintf(key, sizeof key, "%s/box.pem", fuzz_dir());
		if (rh_identity_make(key) || rh_identity_hash(key, hash))
			abort();
	}
	if (is_tls) {
		options.identity = key;
		options.peer = hash;
	}
	struct tcp_link *link = rh_alloc(1, sizeof *link);
	link->end = (struct link_end){.base.ops = &tcp_ops, .run = run, .wake = wake};
	link->wake = link->door.listener = -1;
	if (prepare(link, &options))
		abort();
	return link;
}

/* A connection, as accept gives it, from someone who has said these bytes and will say no more. */
static int connect_stranger(struct tcp_link *link, const uint8_t *bytes, size_t length)
{
	int pair[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) ||
	    send(pair[1], bytes, length, MSG_NOSIGNAL) != (ssize_t)length || shutdown(pair[1], SHUT_WR))
		abort();
	link->door.guest[0] = (struct door_guest){.is_there = 1, .descriptor = pair[0], .since_ns = rh_clock_ns()};
	return pair[1];
}

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	static char out[100], in[100];
	if (!length)
		return 0;
	uint8_t *copy = malloc(length);
	memcpy(copy, bytes, length);
	if (*copy & CHECKED)
		correct_checks(copy + 1, length - 1);
	struct tcp_link *link = open_listener_link(*copy & TO_TLS);
	if (end_send(&link->end.base, 1, out, sizeof out) || end_receive(&link->end.base, 1, in, sizeof in))
		abort();
	link->without_ns = rh_clock_ns();
	int stranger = connect_stranger(link, copy + 1, length - 1), rc = 0;
	for (int i = 0; i < TURNS && !rc; i++) {
		rc = step_all(link, rh_clock_ns());
		publish(link);
	}
	fuzz_refused(rc);
	int knows_stranger = link->tls && link->has_connected, waits_on = !rc && (link->greeting.stream || link->live.stream);
	if (knows_stranger || waits_on)
		abort();
	conn_close(&link->greeting);
	conn_close(&link->live);
	close(stranger);
	release(link);
	free(copy);
	return 0;
}

FUZZ_MAIN("handshake")
