/* States of a link's thread, which owns the door and the connections. It shares the protocol and the fault under the lock.
 *
 *            door_step gives a stream      HELLO sent and received
 *   no connection ------------> greeting -----------------> live --broken--> no connection
 *         |                                                  |
 *         +-- give_up, wrong peer, unlike greetings, protocol fault, close: the thread ends, and tells the peer if it can
 *
 * A new stream of the peer's that has greeted replaces a live one: the peer noticed a break before this end did. One of another process
 * with the peer's key is turned away, and told why, while the live one is heard. */
#include "link/tcp.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/minmax.h"
#include "core/stop.h"
#include "link/conn.h"
#include "link/door.h"
#include "link/end.h"
#include "link/hello.h"

#include <math.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { FRAMES_A_TURN = 32 };
#define SECOND_NS   1000000000ll
#define FAREWELL_NS (2 * SECOND_NS)
#define ALONE_NS    (2 * SECOND_NS)  /* without a connection once the process was asked to stop: a broken one comes back sooner */
#define PATIENCE_NS (10 * SECOND_NS) /* with a connection that has not greeted */
/* A connection is paced to its line's speed times LEAD, so that timers that fire late cost nothing. */
#define LEAD 1.05

struct tcp_link {
	struct link_end end;
	struct rh_tcp_options options; /* strings are copies */
	struct rh_link_timing timing;
	struct tls *tls;
	struct door door;
	int port, wake; /* eventfd: something was posted */
	/* the thread's own */
	struct conn live, greeting, refused; /* refused: is told why */
	int64_t refused_until_ns;
	struct {
		int has_said, has_heard, has_refused;
		int64_t deadline_ns;
		uint64_t peer;
	} greets;
	int64_t live_ns;     /* when the live connection began */
	int64_t moved_first; /* the protocol's `moved` then */
	int64_t asked_ns;    /* when this thread saw that the process was asked to stop; 0: it was not */
	int64_t without_ns;  /* since when there has been no useful connection: one that moved a message on, or lasted for a heartbeat */
	int soon_silent;     /* how many useless ones there have been since then */
	int has_connected;
};

static void wake(struct link_end *end)
{
	uint64_t one = 1;
	ssize_t written = write(((struct tcp_link *)end)->wake, &one, sizeof one);
	(void)written; /* full: the thread is awake */
}

/* Greeting: HELLO, once each way. */

static int greeting_next(void *context, struct frame *out)
{
	struct tcp_link *link = context;
	if (link->greets.has_said)
		return 0;
	link->greets.has_said = 1;
	*out = (struct frame){.type = FRAME_HELLO,
	                      .length = (uint32_t)strlen(link->options.greeting),
	                      .a = link->end.protocol.id,
	                      .payload = link->options.greeting};
	return 1;
}

static int greeting_expect(void *context, const struct frame *frame, char **into)
{
	(void)context, (void)frame, (void)into;
	return rh_fail(-EPROTO, "the peer sent a message before it greeted");
}

static int greeting_take(void *context, const struct frame *frame, const char *payload)
{
	struct tcp_link *link = context;
	if (frame->type == FRAME_ABORT)
		return end_take(&link->end, frame, payload);
	if (frame->type != FRAME_HELLO || !frame->a)
		return rh_fail(-EPROTO, "the peer did not greet");
	link->greets.has_heard = 1;
	link->greets.peer = frame->a;
	return hello_compare(link->options.greeting, payload, frame->length);
}

/* Live: the protocol. */

static int live_next(void *context, struct frame *out)
{
	return end_next(&((struct tcp_link *)context)->end, out);
}

static int live_expect(void *context, const struct frame *frame, char **into)
{
	return end_expect(&((struct tcp_link *)context)->end, frame, into);
}

static int live_take(void *context, const struct frame *frame, const char *payload)
{
	return end_take(&((struct tcp_link *)context)->end, frame, payload);
}

static struct conn_peer greeting_peer(struct tcp_link *link)
{
	return (struct conn_peer){.next = greeting_next, .expect = greeting_expect, .take = greeting_take, .context = link};
}

static struct conn_peer live_peer(struct tcp_link *link)
{
	return (struct conn_peer){.next = live_next, .expect = live_expect, .take = live_take, .context = link};
}

/* 1: the fault is the link's; 0: only the connection's. */
static int is_fatal(int rc)
{
	return rc == -EPROTO || rc == -EINVAL || rc == -EACCES || rc == -ENOMEM || rc == -ECONNABORTED || rc == -ESTALE;
}

static void publish(struct tcp_link *link)
{
	end_publish(&link->end, INT64_MAX, link->live.bytes_out, link->live.bytes_in);
	link->live.bytes_out = link->live.bytes_in = 0;
}

/* Greetings may pass where large packets never do: a connection that moved no message on and was soon silent does not count. */
static void disconnect(struct tcp_link *link)
{
	publish(link);
	conn_close(&link->live);
	link->soon_silent++;
	if (link->end.protocol.moved == link->moved_first && link->end.protocol.heard_ns - link->live_ns < link->timing.heartbeat_ns)
		return;
	link->without_ns = rh_clock_ns();
	link->soon_silent = 0;
}

/* The connection is of no use any more. After a farewell that is the end of the link. */
static int broken(struct tcp_link *link)
{
	disconnect(link);
	pthread_mutex_lock(&link->end.lock);
	int is_over = link->end.protocol.has_heard_bye;
	pthread_mutex_unlock(&link->end.lock);
	return is_over ? rh_fail(-ECONNRESET, "the peer has closed the link") : 0;
}

static int refused_next(void *context, struct frame *out)
{
	static const char line[] = "this box is linked already, with another process that has the same key: end one of the two";
	struct tcp_link *link = context;
	if (link->greets.has_refused)
		return 0;
	link->greets.has_refused = 1;
	*out = (struct frame){.type = FRAME_ABORT, .length = sizeof line - 1, .payload = line};
	return 1;
}

static int refused_expect(void *context, const struct frame *frame, char **into)
{
	(void)context, (void)frame;
	*into = NULL;
	return 0;
}

static int refused_take(void *context, const struct frame *frame, const char *payload)
{
	(void)context, (void)frame, (void)payload;
	return 0;
}

/* What the other process sends meanwhile is dropped: unread, it would have the system take the line back. */
static void step_refused(struct tcp_link *link, int64_t now_ns)
{
	if (!link->refused.stream)
		return;
	struct conn_peer peer = {.next = refused_next, .expect = refused_expect, .take = refused_take, .context = link};
	int rc = conn_write(&link->refused, &peer, 2);
	if (!rc || rc == -EAGAIN)
		rc = conn_read(&link->refused, &peer, FRAMES_A_TURN);
	if ((rc && rc != -EAGAIN) || now_ns >= link->refused_until_ns)
		conn_close(&link->refused);
}

/* The live connection is of a process that was heard lately, and the one that greets is of another. */
static int is_intruder(struct tcp_link *link, int64_t now_ns)
{
	pthread_mutex_lock(&link->end.lock);
	int is_heard = link->live.stream && now_ns - link->end.protocol.heard_ns < 2 * link->timing.heartbeat_ns;
	int is_other = link->end.protocol.peer != link->greets.peer;
	pthread_mutex_unlock(&link->end.lock);
	return is_heard && is_other;
}

static void turn_away(struct tcp_link *link, int64_t now_ns)
{
	door_note_refusal(&link->door, rh_fail(-EBUSY, "another process with the peer's key, which is linked already"), now_ns);
	conn_close(&link->refused);
	link->refused = link->greeting;
	link->greeting.stream = NULL;
	link->greets.has_refused = 0;
	link->refused_until_ns = now_ns + FAREWELL_NS;
}

static int promote(struct tcp_link *link)
{
	pthread_mutex_lock(&link->end.lock);
	/* another process there is no matter while nothing has passed: both may be meeting anew */
	int is_same = link->end.protocol.peer == link->greets.peer || protocol_is_unused(&link->end.protocol);
	if (is_same) {
		link->end.protocol.peer = link->greets.peer;
		protocol_rewind(&link->end.protocol, rh_clock_ns());
		link->end.progress.reconnects += link->has_connected;
	}
	pthread_mutex_unlock(&link->end.lock);
	if (!is_same)
		return rh_fail(-ESTALE,
		               "the box at the other end was started anew: start this one again, too, with resume_from_checkpoint: true");
	if (link->live.stream)
		disconnect(link);
	link->live = link->greeting;
	link->live_ns = rh_clock_ns();
	link->moved_first = link->end.protocol.moved;
	link->greeting.stream = NULL;
	link->has_connected = 1;
	return 0;
}

/* 1: refuse the connection and listen on, because its greeting is not the peer's: on a plain link any process of this machine may
 * connect. Before the boxes have met, a different greeting is the peer's own, and the difference ends both. */
static int is_stranger(const struct tcp_link *link, int rc)
{
	return link->options.listens &&
	       (rc == -EPROTO || rc == -ECONNABORTED || rc == -EBADMSG || rc == -ETIMEDOUT || (rc == -EINVAL && link->has_connected));
}

static int step_greeting(struct tcp_link *link, int64_t now_ns)
{
	if (!link->greeting.stream)
		return 0;
	struct conn_peer peer = greeting_peer(link);
	int rc = conn_write(&link->greeting, &peer, 2);
	if ((!rc || rc == -EAGAIN) && !link->greets.has_heard)
		rc = conn_read(&link->greeting, &peer, 1);
	int has_failed = rc && rc != -EAGAIN;
	if (!has_failed && link->greets.has_heard && !link->greeting.out.is_open) {
		if (!is_intruder(link, now_ns))
			return promote(link);
		turn_away(link, now_ns);
		return 0;
	}
	if (!has_failed && now_ns < link->greets.deadline_ns)
		return 0;
	if (!has_failed)
		rc = door_fail_late(&link->door);
	if (is_stranger(link, rc))
		door_note_refusal(&link->door, rc, now_ns);
	else if (is_fatal(rc))
		return rc;
	conn_close(&link->greeting);
	return 0;
}

/* Who is asked to stop does not wait for a peer that is gone. */
static int stop_alone(struct tcp_link *link, int64_t now_ns)
{
	if (!rh_stop_is_asked())
		return 0;
	if (!link->asked_ns)
		link->asked_ns = now_ns;
	int64_t gone_ns = link->live.stream ? link->end.protocol.heard_ns + 2 * link->timing.heartbeat_ns : link->without_ns;
	if (now_ns - rh_max(gone_ns, link->asked_ns) < ALONE_NS)
		return 0;
	return rh_fail(-ETIMEDOUT, "%s: asked to stop while the box there was gone", link->options.address);
}

static int step_live(struct tcp_link *link, int64_t now_ns)
{
	int alone = stop_alone(link, now_ns);
	if (alone)
		return alone;
	if (!link->live.stream)
		return now_ns - link->without_ns < link->timing.give_up_ns
		               ? 0
		               : rh_fail(-ETIMEDOUT, "%s: no connection for %g s (link_give_up)%s", link->options.address,
		                         (double)link->timing.give_up_ns / SECOND_NS,
		                         link->soon_silent > 1 ? "; some began, and were soon silent: a tunnel or firewall on the way may "
		                                                 "drop large packets (try a smaller MTU)"
		                                               : "");
	struct conn_peer peer = live_peer(link);
	int rc = conn_read(&link->live, &peer, FRAMES_A_TURN);
	if (!rc || rc == -EAGAIN)
		rc = conn_write(&link->live, &peer, FRAMES_A_TURN);
	if (rc && rc != -EAGAIN)
		return is_fatal(rc) ? rc : broken(link);
	return now_ns - link->end.protocol.heard_ns < link->timing.timeout_ns ? 0 : broken(link);
}

static int step_door(struct tcp_link *link, int64_t now_ns)
{
	struct stream *stream;
	int rc = door_step(&link->door, !link->live.stream && !link->greeting.stream, now_ns, &stream);
	if (!stream)
		return rc;
	conn_close(&link->greeting);
	conn_open(&link->greeting, stream);
	link->greets.has_said = link->greets.has_heard = 0;
	link->greets.deadline_ns = now_ns + link->door.patience_ns;
	return 0;
}

static int add_poll(struct conn *conn, struct pollfd *polls, int count)
{
	if (conn->stream)
		polls[count++] = (struct pollfd){.fd = conn->stream->descriptor, .events = (short)(conn->in_wants | conn->out_wants)};
	return count;
}

/* Waits until something moves, or for the earliest deadline. TLS may hold bytes that no poll shows, but reading stops only where TLS has
 * none, or at its limit of frames. */
static void wait_for_io(struct tcp_link *link, int64_t now_ns, int is_busy)
{
	struct pollfd polls[DOOR_POLLS + 4];
	int64_t deadline_ns = now_ns + link->timing.heartbeat_ns;
	int count = door_polls(&link->door, !link->live.stream && !link->greeting.stream, now_ns, polls, &deadline_ns);
	count = add_poll(&link->live, polls, count);
	count = add_poll(&link->greeting, polls, count);
	count = add_poll(&link->refused, polls, count);
	polls[count++] = (struct pollfd){.fd = link->wake, .events = POLLIN};
	if (link->live.stream) {
		pthread_mutex_lock(&link->end.lock);
		deadline_ns = rh_min(deadline_ns, protocol_deadline(&link->end.protocol));
		pthread_mutex_unlock(&link->end.lock);
	}
	int64_t wait_ms = is_busy ? 0 : rh_max(0, (deadline_ns - now_ns + 999999) / 1000000);
	poll(polls, (nfds_t)count, (int)rh_min(wait_ms, 1000));
	uint64_t woken;
	ssize_t got = read(link->wake, &woken, sizeof woken);
	(void)got;
}

/* After the last words until the peer closes too, so that it reads them all. */
static void part(struct tcp_link *link)
{
	struct conn_peer peer = live_peer(link);
	int64_t until_ns = rh_clock_ns() + FAREWELL_NS;
	int rc = link->live.stream ? 0 : -EPIPE, has_finished = 0;
	while ((!rc || rc == -EAGAIN) && rh_clock_ns() < until_ns) {
		enum end_words words = end_last_words(&link->end);
		if (words == END_IN_SILENCE)
			break;
		if (!has_finished && words == END_HAS_SPOKEN && !link->live.out.is_open) {
			link->live.stream->ops->finish(link->live.stream);
			link->live.out_wants = 0; /* nothing more is written: a poll for it would end at once */
			has_finished = 1;
		}
		rc = has_finished ? 0 : conn_write(&link->live, &peer, 1);
		if (!rc || rc == -EAGAIN)
			rc = conn_read(&link->live, &peer, 1);
		if (rc == -EAGAIN)
			wait_for_io(link, rh_clock_ns(), 0);
	}
	publish(link);
	conn_close(&link->live);
	conn_close(&link->greeting);
	conn_close(&link->refused);
}

static int step_all(struct tcp_link *link, int64_t now_ns)
{
	int rc = step_door(link, now_ns);
	if (!rc)
		rc = step_greeting(link, now_ns);
	step_refused(link, now_ns);
	return rc ? rc : step_live(link, now_ns);
}

static void run(struct link_end *end)
{
	struct tcp_link *link = (struct tcp_link *)end;
	link->without_ns = rh_clock_ns();
	while (!end_has_ended(end)) {
		int64_t now_ns = rh_clock_ns();
		int rc = step_all(link, now_ns);
		if (rc)
			end_fail(end, rc);
		publish(link);
		if (!rc)
			wait_for_io(link, now_ns, link->live.stream && link->live.has_more);
	}
	part(link);
}

static void release(struct tcp_link *link)
{
	door_close(&link->door);
	tls_close(link->tls);
	end_close(&link->end);
	if (link->wake >= 0)
		close(link->wake);
	rh_free((char *)(uintptr_t)link->options.address);
	rh_free((char *)(uintptr_t)link->options.greeting);
	rh_free(link);
}

static void tcp_close(struct rh_link *base)
{
	struct tcp_link *link = (struct tcp_link *)base;
	end_stop(&link->end);
	release(link);
}

static const struct rh_link_ops tcp_ops = {
        .close = tcp_close, .send = end_send, .receive = end_receive, .progress = end_progress, .wait = end_wait, .abort = end_abort};

static int64_t or_default(int64_t value, int64_t otherwise)
{
	return value ? value : otherwise;
}

/* All but the thread. */
static int prepare(struct tcp_link *link, const struct rh_tcp_options *options)
{
	link->options = *options;
	link->options.address = rh_strdup(options->address);
	link->options.greeting = rh_strdup(options->greeting);
	int64_t timeout_ns = or_default(options->timing.timeout_ns, 60 * SECOND_NS);
	link->timing =
	        (struct rh_link_timing){.heartbeat_ns = or_default(options->timing.heartbeat_ns, rh_min(5 * SECOND_NS, timeout_ns / 4)),
	                                .timeout_ns = timeout_ns,
	                                .give_up_ns = or_default(options->timing.give_up_ns, 3600 * SECOND_NS)};
	int rc = end_open(&link->end, options->messages, link->timing.heartbeat_ns);
	if (rc)
		return rc;
	if (!link->options.address || !link->options.greeting)
		return -ENOMEM;
	if ((link->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0)
		return rh_fail(-errno, "a link wants a descriptor: %s", strerror(errno));
	if (!options->identity != !options->peer)
		return rh_fail(-EINVAL, "link_identity and link_peer go together: this box's key file, and the hash that `roundhouse keys` "
		                        "prints at the peer");
	if (options->identity) {
		rc = tls_open(options->identity, options->peer, &link->tls);
		if (rc)
			return rc;
	}
	link->door = (struct door){.address = link->options.address,
	                           .tls = link->tls,
	                           .listens = options->listens,
	                           .patience_ns = rh_min(link->timing.timeout_ns, PATIENCE_NS),
	                           .bytes_per_s = (uint64_t)ceil(fmin(options->bytes_per_s * LEAD, 1e18))};
	return door_open(&link->door);
}

int rh_tcp_open(const struct rh_tcp_options *options, struct rh_link **out)
{
	RH_ASSERT(strlen(options->greeting) <= FRAME_TEXT);
	*out = NULL;
	struct tcp_link *link = rh_alloc(1, sizeof *link);
	if (!link)
		return -ENOMEM;
	link->end = (struct link_end){.base.ops = &tcp_ops, .run = run, .wake = wake};
	link->wake = link->door.listener = -1;
	int rc = prepare(link, options);
	if (!rc) {
		link->port = door_port(&link->door);
		rc = end_start(&link->end);
	}
	if (rc)
		release(link);
	else
		*out = &link->end.base;
	return rc;
}

int rh_tcp_port(const struct rh_link *link)
{
	return ((const struct tcp_link *)link)->port;
}
