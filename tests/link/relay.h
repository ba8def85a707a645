/* A relay on loopback between the two ends of a TCP link, by a thread of its own: shapes the bytes that pass, and cuts connections, on
 * demand or after so many bytes. */
#ifndef RH_TESTS_LINK_RELAY_H
#define RH_TESTS_LINK_RELAY_H

#include "shape.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

struct relay {
	int listener, port, to_port;
	pthread_t thread;
	atomic_int stops, cuts, is_mute, is_down; /* cuts: how often it has cut; mute: takes bytes and passes none; down: passes nobody */
	atomic_int flips;                         /* so many of the next stretches have a bit flipped, in their middle */
	int most_cuts;                            /* 0: without end */
	uint64_t seed;
	int64_t most_bytes;    /* between two cuts, drawn evenly; 0: never */
	int64_t mute_from;     /* bytes of a connection, each way, after which it passes none; 0: it passes all */
	struct shape shape[2]; /* from who connects, and to it */
};

static inline int relay_socket(int port, int listens)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(descriptor >= 0);
	int failed = listens ? bind(descriptor, (struct sockaddr *)&address, sizeof address) || listen(descriptor, 8)
	                     : connect(descriptor, (struct sockaddr *)&address, sizeof address);
	if (!failed)
		return descriptor;
	close(descriptor);
	return -1;
}

static inline void relay_reset(int descriptor)
{
	struct linger now = {.l_onoff = 1, .l_linger = 0};
	setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &now, sizeof now);
	close(descriptor);
}

/* Bytes that have come, into the queue. 0: the connection is over. */
static inline int relay_take(struct relay *relay, int from, struct shape_queue *queue, int64_t *left, int64_t *passed)
{
	char bytes[16384];
	double in_a_millisecond = queue->shape.mbit * 125;
	size_t most = queue->shape.mbit > 0 && in_a_millisecond < sizeof bytes ? (size_t)fmax(in_a_millisecond, 1448) : sizeof bytes;
	ssize_t got = recv(from, bytes, most, MSG_DONTWAIT);
	if (got <= 0)
		return got < 0 && errno == EAGAIN;
	*left -= got;
	if (*left < 0) {
		relay->cuts++;
		return 0;
	}
	*passed += got;
	if (relay->flips > 0 && got > 1000) { /* a stretch of a message, not of what links say to each other */
		bytes[got / 2] ^= 1;
		relay->flips--;
	}
	if (!relay->is_mute && (!relay->mute_from || *passed <= relay->mute_from))
		shape_put(queue, bytes, (size_t)got);
	return 1;
}

static inline int relay_give(struct shape_queue *queue, int to)
{
	int64_t now_ns = shape_now();
	for (struct shape_piece *piece; (piece = shape_due(queue, now_ns));) {
		ssize_t sent = send(to, piece->bytes + piece->sent, piece->size - piece->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0)
			return errno == EAGAIN;
		piece->sent += (size_t)sent;
		if (piece->sent == piece->size)
			shape_drop(queue);
	}
	return 1;
}

/* Until it is cut or an end closes. */
static inline void relay_pass(struct relay *relay, const int end[2])
{
	struct shape_queue queue[2]; /* from end[0], from end[1] */
	int ends_cutting = relay->most_cuts && relay->cuts >= relay->most_cuts, goes_on = 1;
	int64_t left = relay->most_bytes && !ends_cutting ? (int64_t)(check_random(&relay->seed) % (uint64_t)relay->most_bytes) : INT64_MAX;
	int64_t passed[2] = {0};
	for (int i = 0; i < 2; i++)
		shape_open(&queue[i], &relay->shape[i], check_random(&relay->seed));
	int cuts = relay->cuts;
	while (goes_on && !relay->stops && !relay->is_down) {
		struct pollfd polls[2];
		int64_t now_ns = shape_now();
		for (int i = 0; i < 2; i++)
			polls[i] = (struct pollfd){.fd = end[i],
			                           .events = (short)((queue[i].bytes < shape_room(&queue[i]) ? POLLIN : 0) |
			                                             (shape_due(&queue[!i], now_ns) ? POLLOUT : 0))};
		struct timespec wait = shape_wait(queue, now_ns, 20);
		ppoll(polls, 2, &wait, NULL);
		for (int i = 0; goes_on && i < 2; i++) {
			goes_on = !(polls[i].revents & ~POLLOUT) || relay_take(relay, end[i], &queue[i], &left, &passed[i]);
			goes_on = goes_on && relay_give(&queue[!i], end[i]);
		}
	}
	/* an end has closed: what is on its way arrives */
	for (int i = 0; i < 2; i++)
		while (queue[i].first && relay->cuts == cuts && !relay->stops && !relay->is_down && relay_give(&queue[i], end[!i]))
			usleep(1000);
	for (int i = 0; i < 2; i++)
		shape_close(&queue[i]);
}

static inline void *relay_run(void *context)
{
	struct relay *relay = context;
	while (!relay->stops) {
		struct pollfd waits = {.fd = relay->listener, .events = POLLIN};
		if (poll(&waits, 1, 20) <= 0)
			continue;
		int one = 1, end[2] = {accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC), relay->is_down ? -1 : relay_socket(relay->to_port, 0)};
		for (int i = 0; i < 2; i++)
			setsockopt(end[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		if (end[1] >= 0)
			relay_pass(relay, end);
		for (int i = 0; i < 2; i++)
			if (end[i] >= 0)
				relay_reset(end[i]);
	}
	return NULL;
}

static inline void relay_open(struct relay *relay, int64_t most_bytes, uint64_t seed)
{
	struct sockaddr_in address;
	socklen_t length = sizeof address;
	*relay = (struct relay){.most_bytes = most_bytes, .seed = seed, .listener = relay_socket(0, 1)};
	assert_false(getsockname(relay->listener, (struct sockaddr *)&address, &length));
	relay->port = ntohs(address.sin_port);
}

static inline void relay_start(struct relay *relay, int to_port)
{
	relay->to_port = to_port;
	assert_false(pthread_create(&relay->thread, NULL, relay_run, relay));
}

static inline void relay_close(struct relay *relay)
{
	relay->stops = 1;
	pthread_join(relay->thread, NULL);
	close(relay->listener);
}

#endif
