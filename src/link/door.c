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

static void dismiss(struct door_guest *guest)
{
	if (guest->stream)
		stream_close(guest->stream);
	else if (guest->is_there)
		close(guest->descriptor);
	*guest = (struct door_guest){0};
}

void door_close(struct door *door)
{
	for (int i = 0; i < DOOR_GUESTS; i++)
		dismiss(&door->guest[i]);
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

static int count_guests(const struct door *door, int greets)
{
	int count = 0;
	for (int i = 0; i < DOOR_GUESTS; i++)
		count += door->guest[i].is_there && (door->guest[i].stream != NULL) == greets;
	return count;
}

static int count_from(const struct door *door, int greets, const struct door_source *source)
{
	int count = 0;
	for (int i = 0; i < DOOR_GUESTS; i++) {
		const struct door_guest *guest = &door->guest[i];
		count += guest->is_there && (guest->stream != NULL) == greets && !memcmp(&guest->source, source, sizeof *source);
	}
	return count;
}

static struct door_guest *free_guest(struct door *door)
{
	struct door_guest *guest = door->guest;
	while (guest->is_there)
		guest++;
	RH_ASSERT(guest < door->guest + DOOR_GUESTS);
	return guest;
}

/* The guest becomes one that greets. */
static int begin_greeting(struct door *door, struct door_guest *guest, int64_t now_ns)
{
	int rc = door->tls ? tls_stream(door->tls, guest->descriptor, door->listens, &guest->stream)
	                   : stream_plain(guest->descriptor, &guest->stream);
	if (rc) {
		*guest = (struct door_guest){0};
		return rc;
	}
	guest->wants = guest->is_connecting ? POLLOUT : POLLIN;
	guest->since_ns = now_ns;
	return 0;
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
	if (failed) {
		if (descriptor >= 0)
			close(descriptor);
		return 0;
	}
	struct door_guest *guest = free_guest(door);
	*guest = (struct door_guest){.is_there = 1, .descriptor = descriptor, .is_connecting = 1};
	return begin_greeting(door, guest, now_ns);
}

int door_polls(struct door *door, int is_wanted, int64_t now_ns, struct pollfd *polls, int64_t *deadline_ns)
{
	int count = 0, guests = 0;
	if (door->listener >= 0 && now_ns >= door->deaf_until_ns)
		polls[count++] = (struct pollfd){.fd = door->listener, .events = POLLIN};
	else if (door->listener >= 0)
		*deadline_ns = rh_min(*deadline_ns, door->deaf_until_ns);
	for (int i = 0; i < DOOR_GUESTS; i++) {
		const struct door_guest *guest = &door->guest[i];
		if (!guest->is_there)
			continue;
		guests++;
		polls[count++] = (struct pollfd){.fd = guest->descriptor, .events = guest->stream ? guest->wants : POLLIN};
		*deadline_ns = rh_min(*deadline_ns, guest->since_ns + door->patience_ns);
	}
	if (!door->listens && is_wanted && !guests)
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

static struct door_source source_of(const struct sockaddr_storage *address)
{
	struct door_source source = {{0}};
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
	if (address->ss_family != AF_INET6)
		memcpy(source.bytes, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
	else if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
		memcpy(source.bytes, v6->sin6_addr.s6_addr + 12, 4);
	else
		memcpy(source.bytes, v6->sin6_addr.s6_addr, sizeof source.bytes);
	return source;
}

/* Of those that greet, or do not yet, the oldest from the source that has most; *places: how many that has. NULL: there is none. */
static struct door_guest *least_claim(struct door *door, int greets, int *places)
{
	struct door_guest *chosen = NULL;
	*places = 0;
	for (struct door_guest *guest = door->guest; guest < door->guest + DOOR_GUESTS; guest++) {
		if (!guest->is_there || (guest->stream != NULL) != greets)
			continue;
		int count = count_from(door, greets, &guest->source);
		if (chosen && (count < *places || (count == *places && guest->since_ns >= chosen->since_ns)))
			continue;
		chosen = guest;
		*places = count;
	}
	return chosen;
}

static void evict(struct door *door, struct door_guest *guest, int others, int64_t now_ns)
{
	door_note_refusal(door, rh_fail(-EBUSY, "it did not greet, and so did %d others", others), now_ns);
	dismiss(guest);
}

static void accept_all(struct door *door, int64_t now_ns)
{
	struct sockaddr_storage address;
	int places;
	for (int i = 0; i < DOOR_SILENT && now_ns >= door->deaf_until_ns; i++) {
		socklen_t length = sizeof address;
		int descriptor = accept4(door->listener, (struct sockaddr *)&address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
		int code = descriptor < 0 ? errno : 0, is_short = code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM;
		int silent = count_guests(door, 0);
		if (silent && (is_short || (!code && silent == DOOR_SILENT)))
			evict(door, least_claim(door, 0, &places), silent - 1, now_ns);
		else if (is_short)
			door->deaf_until_ns = now_ns + CROWDED_NS;
		if (descriptor < 0)
			return;
		set_options(door, descriptor);
		*free_guest(door) =
		        (struct door_guest){.is_there = 1, .descriptor = descriptor, .since_ns = now_ns, .source = source_of(&address)};
	}
}

/* Of what it has said: -EAGAIN: nothing; 0: it speaks as a peer begins to; else why it is refused. */
static int listen_to(const struct door *door, const struct door_guest *guest)
{
	enum { TLS_HANDSHAKE = 22, TLS_MAJOR = 3 };
	unsigned char said[2];
	ssize_t got = recv(guest->descriptor, said, sizeof said, MSG_PEEK | MSG_DONTWAIT);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return -EAGAIN;
	if (got <= 0)
		return rh_fail(-ECONNRESET, "it closed before it greeted");
	if (door->tls && (said[0] != TLS_HANDSHAKE || (got > 1 && said[1] != TLS_MAJOR)))
		return rh_fail(-ECONNRESET, "it does not speak TLS");
	return 0;
}

/* Room among those that greet for another from this source; 0: there is none. */
static int make_room(struct door *door, const struct door_source *source, int64_t now_ns)
{
	if (count_guests(door, 1) < DOOR_GREETING)
		return 1;
	int places;
	struct door_guest *guest = least_claim(door, 1, &places);
	if (count_from(door, 1, source) + 1 >= places && now_ns - guest->since_ns < CROWDED_NS)
		return 0;
	evict(door, guest, DOOR_GREETING - 1, now_ns);
	return 1;
}

/* Those that begin to speak greet; those that stay silent, or say what no peer says, are refused. */
static void hear_silent(struct door *door, int64_t now_ns)
{
	for (struct door_guest *guest = door->guest; guest < door->guest + DOOR_GUESTS; guest++) {
		if (!guest->is_there || guest->stream)
			continue;
		int rc = listen_to(door, guest);
		if (rc == -EAGAIN && now_ns - guest->since_ns < door->patience_ns)
			continue;
		if (rc == -EAGAIN)
			rc = door_fail_late(door);
		else if (!rc && make_room(door, &guest->source, now_ns))
			rc = begin_greeting(door, guest, now_ns);
		else if (!rc)
			rc = rh_fail(-EBUSY, "%d others greet", DOOR_GREETING);
		if (rc) {
			door_note_refusal(door, rc, now_ns);
			dismiss(guest);
		}
	}
}

static int greet(struct door_guest *guest)
{
	if (guest->is_connecting) {
		int code = 0;
		socklen_t length = sizeof code;
		struct pollfd poll_now = {.fd = guest->stream->descriptor, .events = POLLOUT};
		if (poll(&poll_now, 1, 0) == 0)
			return -EAGAIN;
		if (getsockopt(guest->stream->descriptor, SOL_SOCKET, SO_ERROR, &code, &length) || code)
			return rh_fail(-ECONNREFUSED, "nobody answers: %s", strerror(code));
		guest->is_connecting = 0;
	}
	return guest->stream->ops->greet(guest->stream, &guest->wants);
}

int door_step(struct door *door, int is_wanted, int64_t now_ns, struct stream **out)
{
	int rc = 0;
	*out = NULL;
	if (door->listener >= 0) {
		accept_all(door, now_ns);
		hear_silent(door, now_ns);
	} else if (is_wanted && !count_guests(door, 1) && now_ns >= door->next_try_ns) {
		rc = connect_to(door, now_ns);
	}
	for (struct door_guest *guest = door->guest; guest < door->guest + DOOR_GUESTS && !rc && !*out; guest++) {
		int code = guest->stream ? greet(guest) : -EAGAIN;
		if (code == -EAGAIN && guest->stream && now_ns - guest->since_ns >= door->patience_ns)
			code = door_fail_late(door);
		if (code == -EAGAIN)
			continue;
		if (!code) {
			*out = guest->stream;
			*guest = (struct door_guest){0};
			door->wait_ns = FIRST_WAIT_NS;
			door->has_opened = 1;
		} else {
			dismiss(guest);
			if (code == -EACCES && !door->listens && !door->has_opened)
				rc = code;
			else if (code == -EACCES || door->listens)
				door_note_refusal(door, code, now_ns);
		}
	}
	return rc;
}
