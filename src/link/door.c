#include "link/door.h"

#include "core/log.h"
#include "core/minmax.h"
#include "link/link.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_WAIT_NS (100 * 1000000ll)
#define LAST_WAIT_NS  (5 * 1000000000ll)
#define NOTE_EVERY_NS (60 * 1000000000ll)
#define CROWDED_NS    (1000000000ll) /* a greeting takes two ways there and back */

/* A listener may have a port alone: then it listens on all of its host's addresses. */
static int split_address(const char *address, int listens, char *host, size_t bytes, const char **port)
{
	const char *colon = strrchr(address, ':'), *begin = address;
	if (listens && *address && strspn(address, "0123456789") == strlen(address)) {
		*host = 0;
		*port = address;
		return 0;
	}
	size_t length = colon ? (size_t)(colon - address) : 0;
	int is_bracketed = length >= 2 && address[0] == '[' && address[length - 1] == ']';
	*port = NULL;
	if (is_bracketed) {
		begin++;
		length -= 2;
	}
	if (!colon || !colon[1] || length >= bytes || (!is_bracketed && memchr(begin, ':', length)))
		return rh_fail(-EINVAL, "'%.200s' is no address: write HOST:PORT, or [IPv6]:PORT", address);
	memcpy(host, begin, length);
	host[length] = 0;
	*port = colon + 1;
	return 0;
}

static int is_loopback(const struct addrinfo *info)
{
	if (info->ai_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)(const void *)info->ai_addr)->sin_addr.s_addr) >> 24 == 127;
	return info->ai_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)info->ai_addr)->sin6_addr);
}

/* -EHOSTUNREACH: a later lookup may succeed. While a home's line is down, no name server can be reached. */
static int resolve(const struct door *door, struct addrinfo **out)
{
	char host[256];
	const char *port;
	int rc = split_address(door->address, door->listens, host, sizeof host, &port);
	if (rc)
		return rc;
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = door->listens ? AI_PASSIVE : 0};
	const char *plain_host = door->tls ? NULL : "127.0.0.1";
	int code = getaddrinfo(*host ? host : plain_host, port, &hints, out);
	if (code)
		return rh_fail(code == EAI_AGAIN || door->has_opened ? -EHOSTUNREACH : -EINVAL, "%s: %s", door->address,
		               gai_strerror(code));
	if (!door->tls && !is_loopback(*out)) {
		freeaddrinfo(*out);
		return rh_fail(-EINVAL, "%s: a link without TLS stays on this machine: give link_identity and link_peer", door->address);
	}
	return 0;
}

/* Little data may wait unsent in the kernel, as acknowledgements and heartbeats stand behind it. A connection that sends at its line's
 * speed leaves little in the line's queue, too. Behind a long one acknowledgements arrive in bunches, and congestion control (BBR) then
 * believes the line to be many times as fast as it is. */
static void set_options(const struct door *door, int descriptor)
{
	int one = 1, unsent = RH_LINK_FRAME_BYTES;
	setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(descriptor, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
	if (door->bytes_per_s)
		setsockopt(descriptor, SOL_SOCKET, SO_MAX_PACING_RATE, &door->bytes_per_s, sizeof door->bytes_per_s);
}

static int open_socket(const struct door *door, const struct addrinfo *info)
{
	int descriptor = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1, none = 0;
	if (descriptor < 0)
		return -errno;
	set_options(door, descriptor);
	setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (info->ai_family == AF_INET6)
		setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &none, sizeof none);
	return descriptor;
}

/* A listener's socket, or -errno. */
static int open_listener(const struct door *door, const struct addrinfo *info)
{
	int descriptor = open_socket(door, info);
	if (descriptor < 0)
		return descriptor;
	if (!bind(descriptor, info->ai_addr, info->ai_addrlen) && !listen(descriptor, SOMAXCONN))
		return descriptor;
	int rc = -errno;
	close(descriptor);
	return rc;
}

/* The address of IPv6 first, where there is one: a listener of all addresses then takes IPv4, too. A system without IPv6 has the other. */
static int listen_at(struct door *door)
{
	struct addrinfo *info;
	int rc = resolve(door, &info);
	if (rc)
		return rc;
	for (int want_v6 = 1; want_v6 >= 0 && door->listener < 0; want_v6--)
		for (const struct addrinfo *at = info; at && door->listener < 0; at = at->ai_next)
			if ((at->ai_family == AF_INET6) == want_v6)
				door->listener = rc = open_listener(door, at);
	freeaddrinfo(info);
	return door->listener >= 0 ? 0 : rh_fail(rc, "%s: cannot listen there: %s", door->address, strerror(-rc));
}

int door_open(struct door *door)
{
	char host[256];
	const char *port;
	door->listener = -1;
	door->wait_ns = FIRST_WAIT_NS;
	return door->listens ? listen_at(door) : split_address(door->address, 0, host, sizeof host, &port);
}

void door_close(struct door *door)
{
	for (int i = 0; i < DOOR_PENDING; i++)
		stream_close(door->pending[i].stream);
	if (door->listener >= 0)
		close(door->listener);
	*door = (struct door){.listener = -1};
}

int door_port(const struct door *door)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof address;
	if (door->listener < 0 || getsockname(door->listener, (struct sockaddr *)&address, &length))
		return 0;
	return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
	                                           : ((struct sockaddr_in *)&address)->sin_port);
}

/* A place of its own for a descriptor that greets. */
static int admit(struct door *door, int descriptor, int is_connecting, int64_t now_ns)
{
	struct door_pending *pending = door->pending;
	while (pending < door->pending + DOOR_PENDING && pending->stream)
		pending++;
	RH_ASSERT(pending < door->pending + DOOR_PENDING);
	int rc =
	        door->tls ? tls_stream(door->tls, descriptor, door->listens, &pending->stream) : stream_plain(descriptor, &pending->stream);
	if (rc)
		return rc;
	pending->is_connecting = is_connecting;
	pending->wants = is_connecting ? POLLOUT : POLLIN;
	pending->since_ns = now_ns;
	return 0;
}

static int count_pending(const struct door *door)
{
	int count = 0;
	for (int i = 0; i < DOOR_PENDING; i++)
		count += door->pending[i].stream != NULL;
	return count;
}

static int may_note(struct door *door, int64_t now_ns)
{
	if (now_ns < door->next_note_ns)
		return 0;
	door->next_note_ns = now_ns + NOTE_EVERY_NS;
	return 1;
}

/* A name may have several addresses (IPv6 and IPv4): each try takes the next. */
static const struct addrinfo *nth_address(const struct addrinfo *info, unsigned n)
{
	const struct addrinfo *at = info;
	for (; n > 0; n--)
		at = at->ai_next ? at->ai_next : info;
	return at;
}

/* An address that does not answer is tried again, ever more slowly; a name is looked up each time. */
static int connect_to(struct door *door, int64_t now_ns)
{
	struct addrinfo *info;
	door->next_try_ns = now_ns + door->wait_ns;
	door->wait_ns = rh_min(2 * door->wait_ns, LAST_WAIT_NS);
	int rc = resolve(door, &info);
	if (rc == -EHOSTUNREACH && may_note(door, now_ns))
		rh_note("link: %s; trying again", rh_error(rc));
	if (rc)
		return rc == -EHOSTUNREACH ? 0 : rc;
	const struct addrinfo *chosen = nth_address(info, door->tries++);
	int descriptor = open_socket(door, chosen);
	int failed = descriptor < 0 || (connect(descriptor, chosen->ai_addr, chosen->ai_addrlen) && errno != EINPROGRESS);
	freeaddrinfo(info);
	if (!failed)
		return admit(door, descriptor, 1, now_ns);
	if (descriptor >= 0)
		close(descriptor);
	return 0;
}

int door_polls(struct door *door, int is_wanted, int64_t now_ns, struct pollfd *polls, int64_t *deadline_ns)
{
	int count = 0, pending = count_pending(door), is_full = pending == DOOR_PENDING;
	if (door->listener >= 0 && !is_full)
		polls[count++] = (struct pollfd){.fd = door->listener, .events = POLLIN};
	for (int i = 0; i < DOOR_PENDING; i++) {
		if (!door->pending[i].stream)
			continue;
		polls[count++] = (struct pollfd){.fd = door->pending[i].stream->descriptor, .events = door->pending[i].wants};
		*deadline_ns = rh_min(*deadline_ns, door->pending[i].since_ns + (is_full ? CROWDED_NS : door->patience_ns));
	}
	if (!door->listens && is_wanted && !pending)
		*deadline_ns = rh_min(*deadline_ns, rh_max(door->next_try_ns, now_ns));
	return count;
}

void door_note_refusal(struct door *door, int rc, int64_t now_ns)
{
	if (may_note(door, now_ns))
		rh_note("link: a connection to %s was refused: %s", door->address, rh_error(rc));
}

int door_fail_late(const struct door *door)
{
	return rh_fail(-ETIMEDOUT, "it did not greet within %g s", (double)door->patience_ns / 1e9);
}

/* A crowd of connections that do not greet: the oldest gives its place to the next. */
static void make_place(struct door *door, int64_t now_ns)
{
	struct door_pending *oldest = NULL;
	for (struct door_pending *at = door->pending; at < door->pending + DOOR_PENDING; at++) {
		if (!at->stream)
			return;
		oldest = !oldest || at->since_ns < oldest->since_ns ? at : oldest;
	}
	if (now_ns - oldest->since_ns < CROWDED_NS)
		return;
	door_note_refusal(door, rh_fail(-EBUSY, "it did not greet, and so did %d others", DOOR_PENDING - 1), now_ns);
	stream_close(oldest->stream);
	oldest->stream = NULL;
}

static void accept_all(struct door *door, int64_t now_ns)
{
	make_place(door, now_ns);
	for (int pending = count_pending(door); pending < DOOR_PENDING; pending++) {
		int descriptor = accept4(door->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (descriptor < 0)
			return;
		set_options(door, descriptor);
		if (admit(door, descriptor, 0, now_ns))
			return;
	}
}

static int greet(struct door_pending *pending)
{
	if (pending->is_connecting) {
		int code = 0;
		socklen_t length = sizeof code;
		struct pollfd poll_now = {.fd = pending->stream->descriptor, .events = POLLOUT};
		if (poll(&poll_now, 1, 0) == 0)
			return -EAGAIN;
		if (getsockopt(pending->stream->descriptor, SOL_SOCKET, SO_ERROR, &code, &length) || code)
			return rh_fail(-ECONNREFUSED, "nobody answers: %s", strerror(code));
		pending->is_connecting = 0;
	}
	return pending->stream->ops->greet(pending->stream, &pending->wants);
}

int door_step(struct door *door, int is_wanted, int64_t now_ns, struct stream **out)
{
	int rc = 0;
	*out = NULL;
	if (door->listener >= 0)
		accept_all(door, now_ns);
	else if (is_wanted && !count_pending(door) && now_ns >= door->next_try_ns)
		rc = connect_to(door, now_ns);
	for (int i = 0; i < DOOR_PENDING && !rc && !*out; i++) {
		struct door_pending *pending = &door->pending[i];
		int code = pending->stream ? greet(pending) : -EAGAIN;
		if (code == -EAGAIN && pending->stream && now_ns - pending->since_ns >= door->patience_ns)
			code = door_fail_late(door);
		if (code == -EAGAIN)
			continue;
		if (!code) {
			*out = pending->stream;
			door->wait_ns = FIRST_WAIT_NS;
			door->has_opened = 1;
		} else {
			stream_close(pending->stream);
			if (code == -EACCES && !door->listens && !door->has_opened)
				rc = code;
			else if (code == -EACCES || door->listens)
				door_note_refusal(door, code, now_ns);
		}
		pending->stream = NULL;
	}
	return rc;
}
