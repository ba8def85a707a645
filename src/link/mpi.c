/* A link's thread moves the session's frames: a header is one message of MPI's, a payload the next, straight from and into the memory that
 * was posted. Each direction has tags of its own, so that both ends may be in one process.
 *
 *   greeting --HELLO heard, like this end's--> live --fault, farewell, close--> the thread ends, telling the peer where it can */
#include "link/mpi.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/minmax.h"
#include "link/hello.h"
#include "link/mpi_load.h"
#include "link/session.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { AHEAD = 8 /* frames on their way */, TAGS = 4 /* of a link: header and payload, up and down */ };
#define SECOND_NS   1000000000ll
#define FAREWELL_NS (2 * SECOND_NS)
#define BUSY_NS     (50 * 1000ll) /* after something moved the thread asks MPI without a pause for so long, and pauses for so long */

/* A frame that is on its way out. */
struct leaving {
	unsigned char header[FRAME_HEADER];
	struct frame frame;
	struct rh_mpi_request request[2]; /* header, payload */
	int left[2];                      /* still to be awaited */
};

struct mpi_link {
	struct rh_link base;
	struct mpi mpi;
	char *greeting;
	struct rh_link_timing timing;
	int peer, tag_out, tag_in;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* protected by lock */
	struct session session;
	struct rh_fault fault;
	struct rh_link_progress progress;
	int closes;
	/* the thread's own */
	struct leaving out[AHEAD];
	int first, leaving;
	struct {
		unsigned char header[FRAME_HEADER];
		struct frame frame;
		struct rh_mpi_request request;
		enum { NOTHING, HEADER, PAYLOAD } awaits;
		char *into; /* NULL: dropped */
		char text[FRAME_TEXT];
	} in;
	char *dropped; /* room for a payload */
	int has_said_hello, is_live;
	int64_t bytes_out, bytes_in;
};

static void end_with(struct mpi_link *link, int rc)
{
	pthread_mutex_lock(&link->lock);
	int is_ours = !rh_fault_code(&link->fault) && rc != -ECONNRESET && rc != -ECONNABORTED;
	rh_fault_keep(&link->fault, rc);
	if (is_ours && !link->session.is_abort_due) {
		snprintf(link->session.abort_line, sizeof link->session.abort_line, "%s", rh_error(rc));
		link->session.is_abort_due = 1;
	}
	pthread_cond_broadcast(&link->changed);
	pthread_mutex_unlock(&link->lock);
}

/* ---- out ---- */

static int next_frame(struct mpi_link *link, struct frame *out)
{
	if (!link->has_said_hello) {
		link->has_said_hello = 1;
		*out = (struct frame){
		        .type = FRAME_HELLO, .length = (uint32_t)strlen(link->greeting), .a = link->session.id, .payload = link->greeting};
		return 1;
	}
	if (!link->is_live)
		return 0;
	pthread_mutex_lock(&link->lock);
	int any = session_next(&link->session, rh_clock_ns(), out);
	pthread_mutex_unlock(&link->lock);
	return any;
}

/* Frames whose messages are over make room; 1: there were any. */
static int retire(struct mpi_link *link)
{
	int moved = 0;
	while (link->leaving) {
		struct leaving *at = &link->out[link->first];
		for (int i = 0; i < 2; i++) {
			int over = at->left[i] ? mpi_test(&link->mpi, &at->request[i]) : 1;
			if (over <= 0)
				return over < 0 ? over : moved;
			at->left[i] = 0;
		}
		link->first = (link->first + 1) % AHEAD;
		link->leaving--;
		moved = 1;
	}
	return moved;
}

/* 1: something was sent, or has arrived at the peer. */
static int say(struct mpi_link *link)
{
	int moved = retire(link);
	while (moved >= 0 && link->leaving < AHEAD) {
		struct leaving *at = &link->out[(link->first + link->leaving) % AHEAD];
		if (!next_frame(link, &at->frame))
			break;
		frame_encode(&at->frame, at->header);
		at->left[0] = at->left[1] = 0;
		int rc = mpi_send(&link->mpi, at->header, FRAME_HEADER, link->peer, link->tag_out, &at->request[0]);
		at->left[0] = !rc;
		if (!rc && at->frame.length)
			rc = mpi_send(&link->mpi, at->frame.payload, at->frame.length, link->peer, link->tag_out + 1, &at->request[1]);
		at->left[1] = !rc && at->frame.length;
		link->leaving++;
		link->bytes_out += FRAME_HEADER + at->frame.length;
		moved = rc ? rc : 1;
	}
	return moved;
}

/* ---- in ---- */

static int take_hello(struct mpi_link *link, const struct frame *frame, const char *payload)
{
	if (frame->type != FRAME_HELLO || !frame->a)
		return rh_fail(-EPROTO, "the peer did not greet");
	int rc = hello_compare(link->greeting, payload, frame->length);
	if (rc)
		return rc;
	pthread_mutex_lock(&link->lock);
	link->session.peer = frame->a;
	session_rewind(&link->session, rh_clock_ns());
	pthread_mutex_unlock(&link->lock);
	link->is_live = 1;
	return 0;
}

static int take_frame(struct mpi_link *link)
{
	const struct frame *frame = &link->in.frame;
	const char *payload = link->in.into ? link->in.into : link->dropped;
	link->bytes_in += FRAME_HEADER + frame->length;
	if (!frame_check(link->in.header, frame_hash(payload, frame->length)))
		return rh_fail(-EIO, "MPI delivered a frame that was damaged on its way");
	if (!link->is_live && frame->type != FRAME_ABORT)
		return take_hello(link, frame, payload);
	pthread_mutex_lock(&link->lock);
	int rc = session_take(&link->session, rh_clock_ns(), frame, link->in.text);
	pthread_mutex_unlock(&link->lock);
	return rc;
}

/* Where the payload goes is known by its header. */
static int begin_payload(struct mpi_link *link)
{
	int rc = frame_decode(link->in.header, &link->in.frame);
	const struct frame *frame = &link->in.frame;
	link->in.into = link->in.text;
	if (!rc && frame->type == FRAME_DATA) {
		pthread_mutex_lock(&link->lock);
		rc = link->is_live ? session_expect(&link->session, frame, &link->in.into)
		                   : rh_fail(-EPROTO, "the peer sent a message before it greeted");
		pthread_mutex_unlock(&link->lock);
	}
	link->in.awaits = rc || !frame->length ? NOTHING : PAYLOAD;
	if (rc || !frame->length)
		return rc ? rc : take_frame(link);
	char *into = link->in.into ? link->in.into : link->dropped;
	return mpi_receive(&link->mpi, into, frame->length, link->peer, link->tag_in + 1, &link->in.request);
}

/* 1: something came. */
static int hear(struct mpi_link *link)
{
	for (int moved = 0;; moved = 1) {
		if (link->in.awaits == NOTHING) {
			int rc = mpi_receive(&link->mpi, link->in.header, FRAME_HEADER, link->peer, link->tag_in, &link->in.request);
			if (rc)
				return rc;
			link->in.awaits = HEADER;
		}
		int over = mpi_test(&link->mpi, &link->in.request);
		if (over <= 0)
			return over < 0 ? over : moved;
		int is_header = link->in.awaits == HEADER;
		link->in.awaits = NOTHING;
		int rc = is_header ? begin_payload(link) : take_frame(link);
		if (rc)
			return rc;
		if (moved) /* what there is to say waits */
			return 1;
	}
}

/* ---- the thread ---- */

/* A send is done once MPI, too, reads its memory no more. */
static void publish(struct mpi_link *link)
{
	pthread_mutex_lock(&link->lock);
	struct rh_link_progress *progress = &link->progress;
	int64_t sent = link->session.out.done;
	for (int i = 0; i < link->leaving; i++) {
		const struct leaving *at = &link->out[(link->first + i) % AHEAD];
		if (at->frame.type == FRAME_DATA && at->left[1])
			sent = rh_min(sent, (int64_t)at->frame.a);
	}
	int is_new = progress->sent != sent || progress->received != link->session.in.done || rh_fault_code(&link->fault);
	progress->sent = sent;
	progress->received = link->session.in.done;
	progress->latency_s = (double)link->session.shortest_echo_ns / 2e9;
	progress->bytes_sent = link->bytes_out;
	progress->bytes_received = link->bytes_in;
	if (is_new)
		pthread_cond_broadcast(&link->changed);
	pthread_mutex_unlock(&link->lock);
}

static int listen_for_silence(struct mpi_link *link, int64_t begun_ns)
{
	int64_t heard_ns = link->is_live ? link->session.heard_ns : begun_ns;
	if (rh_clock_ns() - heard_ns < link->timing.give_up_ns)
		return link->session.has_heard_bye ? rh_fail(-ECONNRESET, "the peer has closed the link") : 0;
	return rh_fail(-ETIMEDOUT, "MPI: rank %d has said nothing for %g s (link_give_up)", link->peer,
	               (double)link->timing.give_up_ns / SECOND_NS);
}

static int has_ended(struct mpi_link *link)
{
	pthread_mutex_lock(&link->lock);
	int ended = link->closes || rh_fault_code(&link->fault);
	pthread_mutex_unlock(&link->lock);
	return ended;
}

/* Nothing tells of MPI's messages: it is asked, often while they come. */
static void rest(int64_t moved_ns)
{
	static const struct timespec pause = {.tv_nsec = BUSY_NS};
	if (rh_clock_ns() - moved_ns < BUSY_NS)
		sched_yield();
	else
		nanosleep(&pause, NULL);
}

/* 1: there is no more to say. */
static int has_spoken(struct mpi_link *link)
{
	pthread_mutex_lock(&link->lock);
	const struct session *session = &link->session;
	int is_at_fault = rh_fault_code(&link->fault) != 0, is_undone = session->out.done < session->out.posted;
	int over = is_at_fault ? !session->is_abort_due : session->has_said_bye || is_undone;
	pthread_mutex_unlock(&link->lock);
	return over;
}

/* The peer has said its last word. */
static int is_alone(const struct mpi_link *link)
{
	int rc = rh_fault_code(&link->fault);
	return link->session.has_heard_bye || rc == -ECONNRESET || rc == -ECONNABORTED;
}

/* The last words: an abort, or the farewell; and until MPI has sent all that it was given. */
static void part(struct mpi_link *link)
{
	int64_t until_ns = rh_clock_ns() + FAREWELL_NS;
	int rc = 0;
	link->is_live = 1; /* what may be said to a peer that has not greeted is an abort */
	while (rc >= 0 && rh_clock_ns() < until_ns && !is_alone(link) && (!has_spoken(link) || link->leaving)) {
		rc = say(link);
		if (rc >= 0 && !rh_fault_code(&link->fault))
			rc = hear(link);
		rest(0);
	}
	for (; link->leaving; link->leaving--, link->first = (link->first + 1) % AHEAD)
		for (int i = 0; i < 2; i++)
			if (link->out[link->first].left[i])
				mpi_cancel(&link->mpi, &link->out[link->first].request[i]);
	if (link->in.awaits != NOTHING)
		mpi_cancel(&link->mpi, &link->in.request);
	publish(link);
}

static void *run(void *context)
{
	struct mpi_link *link = context;
	sigset_t all; /* signals are the main thread's */
	int64_t begun_ns = rh_clock_ns(), moved_ns = begun_ns;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	while (!has_ended(link)) {
		int said = say(link), heard = said < 0 ? said : hear(link), rc = heard < 0 ? heard : 0;
		if (!rc)
			rc = listen_for_silence(link, begun_ns);
		if (rc)
			end_with(link, rc);
		publish(link);
		if (said > 0 || heard > 0)
			moved_ns = rh_clock_ns();
		else
			rest(moved_ns);
	}
	part(link);
	return NULL;
}

/* ---- the seam ---- */

static int post(struct mpi_link *link, int is_send, uint64_t tag, void *bytes, int64_t size)
{
	pthread_mutex_lock(&link->lock);
	int rc = rh_fault_get(&link->fault);
	if (!rc)
		rc = is_send ? session_send(&link->session, tag, bytes, size) : session_receive(&link->session, tag, bytes, size);
	pthread_mutex_unlock(&link->lock);
	return rc;
}

static int link_send(struct rh_link *base, uint64_t tag, const void *bytes, int64_t size)
{
	return post((struct mpi_link *)base, 1, tag, (void *)(uintptr_t)bytes, size);
}

static int link_receive(struct rh_link *base, uint64_t tag, void *bytes, int64_t size)
{
	return post((struct mpi_link *)base, 0, tag, bytes, size);
}

static int link_progress(struct rh_link *base, struct rh_link_progress *out)
{
	struct mpi_link *link = (struct mpi_link *)base;
	pthread_mutex_lock(&link->lock);
	*out = link->progress;
	int rc = rh_fault_get(&link->fault);
	pthread_mutex_unlock(&link->lock);
	return rc;
}

static int link_wait(struct rh_link *base, int64_t sent, int64_t received)
{
	struct mpi_link *link = (struct mpi_link *)base;
	int rc = 0;
	pthread_mutex_lock(&link->lock);
	while (!rc && (link->progress.sent < sent || link->progress.received < received)) {
		rc = rh_fault_get(&link->fault);
		if (!rc)
			pthread_cond_wait(&link->changed, &link->lock);
	}
	pthread_mutex_unlock(&link->lock);
	return rc;
}

static void link_abort(struct rh_link *base, const char *line)
{
	end_with((struct mpi_link *)base, rh_fail(-ECANCELED, "%s", line));
}

static void release(struct mpi_link *link)
{
	session_close(&link->session);
	pthread_cond_destroy(&link->changed);
	pthread_mutex_destroy(&link->lock);
	rh_free(link->greeting);
	rh_free(link->dropped);
	rh_free(link);
}

static void link_close(struct rh_link *base)
{
	struct mpi_link *link = (struct mpi_link *)base;
	pthread_mutex_lock(&link->lock);
	link->closes = link->session.is_bye_due = 1;
	pthread_mutex_unlock(&link->lock);
	pthread_join(link->thread, NULL);
	release(link);
}

static const struct rh_link_ops mpi_ops = {
        .close = link_close, .send = link_send, .receive = link_receive, .progress = link_progress, .wait = link_wait, .abort = link_abort};

/* A link that is opened later must not take what was said last on one before it: the n-th of one end is the other's n-th. */
static void choose_tags(struct mpi_link *link, int is_upper)
{
	enum { LINKS = 4096 }; /* MPI allows tags up to 32767 at least */
	static atomic_uint opened[2];
	int base = (int)(atomic_fetch_add(&opened[is_upper], 1) % LINKS) * TAGS;
	link->tag_out = base + (is_upper ? 2 : 0);
	link->tag_in = base + (is_upper ? 0 : 2);
}

static int prepare(struct mpi_link *link, const struct rh_mpi_options *options)
{
	uint64_t id = 0;
	link->greeting = rh_strdup(options->greeting);
	link->dropped = rh_alloc(1, RH_LINK_FRAME_BYTES);
	if (!link->greeting || !link->dropped)
		return -ENOMEM;
	if (getrandom(&id, sizeof id, 0) != sizeof id)
		return rh_fail(-EIO, "the system gives no random numbers");
	int rc = mpi_start(options->calls, &link->mpi);
	if (rc)
		return rc;
	if (link->mpi.rank != options->rank || options->peer >= link->mpi.ranks)
		return rh_fail(
		        -EINVAL,
		        "link_transport: to MPI this process is %d of %d, which does not go with box %d linked with box %d: start all "
		        "boxes by one mpirun or srun, and leave boxes and box out",
		        link->mpi.rank + 1, link->mpi.ranks, options->rank + 1, options->peer + 1);
	choose_tags(link, options->is_upper);
	return session_open(&link->session, id | 1, options->messages, link->timing.heartbeat_ns, INT64_MAX);
}

int rh_mpi_open(const struct rh_mpi_options *options, struct rh_link **out)
{
	*out = NULL;
	struct mpi_link *link = rh_alloc(1, sizeof *link);
	if (!link)
		return -ENOMEM;
	link->base.ops = &mpi_ops;
	link->peer = options->peer;
	link->timing = options->timing;
	link->timing.give_up_ns = link->timing.give_up_ns ? link->timing.give_up_ns : 3600 * SECOND_NS;
	link->timing.heartbeat_ns =
	        link->timing.heartbeat_ns ? link->timing.heartbeat_ns : rh_min(5 * SECOND_NS, link->timing.give_up_ns / 4);
	pthread_mutex_init(&link->lock, NULL);
	pthread_cond_init(&link->changed, NULL);
	int rc = prepare(link, options);
	if (!rc) {
		rc = -pthread_create(&link->thread, NULL, run, link);
		rc = rc ? rh_fail(rc, "a link wants a thread: %s", strerror(-rc)) : 0;
	}
	if (rc)
		release(link);
	else
		*out = &link->base;
	return rc;
}
