/* A relay on loopback between the two ends of a TCP link: cuts all that passes through it, on demand or after so many bytes. */
#ifndef RH_TESTS_LINK_RELAY_H
#define RH_TESTS_LINK_RELAY_H

#include "check.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

struct relay {
	int listener, port, to_port;
	pthread_t thread;
	atomic_int stops, cuts, is_mute; /* cuts: how often it has cut; mute: takes bytes and passes none */
	uint64_t seed;
	int64_t most_bytes; /* between two cuts, drawn evenly; 0: never */
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

/* Until it is cut or an end closes. */
static inline void relay_pass(struct relay *relay, int a, int b)
{
	static char bytes[65536];
	int64_t left = relay->most_bytes ? (int64_t)(check_random(&relay->seed) % (uint64_t)relay->most_bytes) : INT64_MAX;
	while (!relay->stops) {
		struct pollfd polls[2] = {{.fd = a, .events = POLLIN}, {.fd = b, .events = POLLIN}};
		poll(polls, 2, 20);
		for (int i = 0; i < 2; i++) {
			if (!polls[i].revents)
				continue;
			ssize_t got = recv(polls[i].fd, bytes, sizeof bytes, 0);
			if (got <= 0)
				return;
			if (relay->is_mute)
				continue;
			left -= got;
			if (left < 0) {
				relay->cuts++;
				return;
			}
			for (ssize_t sent = 0, now; sent < got; sent += now)
				if ((now = send(polls[!i].fd, bytes + sent, (size_t)(got - sent), MSG_NOSIGNAL)) <= 0)
					return;
		}
	}
}

static inline void *relay_run(void *context)
{
	struct relay *relay = context;
	while (!relay->stops) {
		struct pollfd waits = {.fd = relay->listener, .events = POLLIN};
		if (poll(&waits, 1, 20) <= 0)
			continue;
		int from = accept(relay->listener, NULL, NULL), to = relay_socket(relay->to_port, 0);
		if (to >= 0)
			relay_pass(relay, from, to);
		relay_reset(from);
		if (to >= 0)
			relay_reset(to);
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
