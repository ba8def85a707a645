/* Ports of this machine, for tests and benches that run at once.
 *
 * A port that the system chooses and the test closes again is anybody's until the box listens there: another test is given it as well, or
 * a connection begins at it. So ports come from below those that the system chooses (32768 and above), and a test claims each for as long
 * as it runs, by a socket of that name which ends with the process. */
#ifndef RH_TESTS_PORT_H
#define RH_TESTS_PORT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PORT_FIRST = 20000, PORT_COUNT = 12000 };

/* Whether no other test has the port; from now on this one has it. */
static inline int port_claim(int port)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "roundhouse-test-port-%d", port);
	int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (!bind(descriptor, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length)))
		return 1; /* open until the process ends */
	close(descriptor);
	return 0;
}

/* Whether a listener could have it: what is no test may be there. */
static inline int port_is_free(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_ANY)};
	int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	int failed = bind(descriptor, (struct sockaddr *)&address, sizeof address) || listen(descriptor, 1);
	close(descriptor);
	return !failed;
}

/* A port that nobody listens on, and that no other test is given. */
static inline int free_port(void)
{
	static int next = -1;
	if (next < 0)
		next = (int)getpid() * 61 % PORT_COUNT;
	for (int i = 0; i < PORT_COUNT; i++) {
		int port = PORT_FIRST + next;
		next = (next + 1) % PORT_COUNT;
		if (port_claim(port) && port_is_free(port))
			return port;
	}
	fprintf(stderr, "no port is free\n");
	abort();
}

#endif
