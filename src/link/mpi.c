/* The link's thread moves the protocol's frames: a frame's header is one message of MPI's, its payload the next, copied straight from and
 * into the posted memory. Each direction has tags of its own, so that both ends may be in one process.
 *
 *   greeting --HELLO received, and like this end's--> live --fault, BYE, close--> the thread ends, and tells the peer if it can */
#include "link/mpi.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/minmax.h"
#include "core/stop.h"
#include "link/end.h"
#include "link/hello.h"
#include "link/mpi_load.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
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
	int is_pending[2];                /* still to be awaited */
};

struct mpi_link {
	struct link_end end;
	struct mpi mpi;
	char *greeting;
	struct rh_link_timing timing;
	int peer, tag_out, tag_in;
	/* the thread's own */
	struct leaving out[AHEAD];
	int first, leaving;
	struct {
		unsigned char header[FRAME_HEADER];
		struct frame frame;
		struct rh_mpi_request request;
		enum { NOTHING, HEADER, PAYLOAD } awaits;
		char *target; /* NULL: dropped */
		char text[FRAME_TEXT];
	} in;
	char *dropped; /* room for a payload */
	int has_said_hello, is_live;
	int64_t bytes_out, bytes_in;
};

/* ---- out ---- */

static int next_frame(struct mpi_link *link, struct frame *out)
{
	if (!link->has_said_hello) {
		link->has_said_hello = 1;
		*out = (struct frame){.type = FRAME_HELLO,
		                      .length = (uint32_t)strlen(link->greeting),
		                      .a = link->end.protocol.id,
		                      .payload = link->greeting};
		return 1;
	}
	return link->is_live ? end_next(&link->end, out) : 0;
}

/* Frames whose messages are over make room; 1: there were any. */
static int retire(struct mpi_link *link)
{
	int moved = 0;
	while (link->leaving) {
		struct leaving *at = &link->out[link->first];
		for (int i = 0; i < 2; i++) {
			int over = at->is_pending[i] ? mpi_test(&link->mpi, &at->request[i]) : 1;
			if (over <= 0)
				return over < 0 ? over : moved;
			at->is_pending[i] = 0;
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
		at->is_pending[0] = at->is_pending[1] = 0;
		int rc = mpi_send(&link->mpi, at->header, FRAME_HEADER, link->peer, link->tag_out, &at->request[0]);
		at->is_pending[0] = !rc;
		if (!rc && at->frame.length)
			rc = mpi_send(&link->mpi, at->frame.payload, at->frame.length, link->peer, link->tag_out + 1, &at->request[1]);
		at->is_pending[1] = !rc && at->frame.length;
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
	pthread_mutex_lock(&link->end.lock);
	link->end.protocol.peer = frame->a;
	protocol_rewind(&link->end.protocol, rh_clock_ns());
	pthread_mutex_unlock(&link->end.lock);
	link->is_live = 1;
	return 0;
}

static int take_frame(struct mpi_link *link)
{
	const struct frame *frame = &link->in.frame;
	const char *payload = link->in.target ? link->in.target : link->dropped;
	link->bytes_in += FRAME_HEADER + frame->length;
	if (!frame_check(link->in.header, frame_hash(payload, frame->length)))
		return rh_fail(-EIO, "MPI delivered a frame that was damaged on its way");
	if (!link->is_live && frame->type != FRAME_ABORT)
		return take_hello(link, frame, payload);
	return end_take(&link->end, frame, link->in.text);
}

/* Where the payload goes is known by its header. */
static int begin_payload(struct mpi_link *link)
{
	int rc = frame_decode(link->in.header, &link->in.frame);
	const struct frame *frame = &link->in.frame;
	link->in.target = link->in.text;
	if (!rc && frame->type == FRAME_DATA)
		rc = link->is_live ? end_expect(&link->end, frame, &link->in.target)
		                   : rh_fail(-EPROTO, "the peer sent a message before it greeted");
	link->in.awaits = rc || !frame->length ? NOTHING : PAYLOAD;
	if (rc || !frame->length)
		return rc ? rc : take_frame(link);
	char *into = link->in.target ? link->in.target : link->dropped;
	return mpi_receive(&link->mpi, into, frame->length, link->peer, link->tag_in + 1, &link->in.request);
}

/* 1: something came. */
static int poll_incoming(struct mpi_link *link)
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
	int64_t sent = INT64_MAX;
	for (int i = 0; i < link->leaving; i++) {
		const struct leaving *at = &link->out[(link->first + i) % AHEAD];
		if (at->frame.type == FRAME_DATA && at->is_pending[1])
			sent = rh_min(sent, (int64_t)at->frame.a);
	}
	end_publish(&link->end, sent, link->bytes_out, link->bytes_in);
	link->bytes_out = link->bytes_in = 0;
}

static int listen_for_silence(struct mpi_link *link, int64_t begun_ns)
{
	int64_t heard_ns = link->is_live ? link->end.protocol.heard_ns : begun_ns;
	if (rh_stop_is_asked() && rh_clock_ns() - heard_ns >= 2 * link->timing.heartbeat_ns)
		return rh_fail(-ETIMEDOUT, "MPI: asked to stop while rank %d said nothing", link->peer);
	if (rh_clock_ns() - heard_ns < link->timing.give_up_ns)
		return link->end.protocol.has_heard_bye ? rh_fail(-ECONNRESET, "the peer has closed the link") : 0;
	return rh_fail(-ETIMEDOUT, "MPI: rank %d has said nothing for %g s (link_give_up)", link->peer,
	               (double)link->timing.give_up_ns / SECOND_NS);
}

/* MPI does not notify of messages, so the thread polls, often while messages arrive. */
static void pause_briefly(int64_t moved_ns)
{
	static const struct timespec pause = {.tv_nsec = BUSY_NS};
	if (rh_clock_ns() - moved_ns < BUSY_NS)
		sched_yield();
	else
		nanosleep(&pause, NULL);
}

/* The peer has said its last word. */
static int is_alone(const struct mpi_link *link)
{
	int rc = rh_fault_code(&link->end.fault);
	return link->end.protocol.has_heard_bye || rc == -ECONNRESET || rc == -ECONNABORTED;
}

/* The last words: an abort, or the farewell; and until MPI has sent all that it was given. */
static void part(struct mpi_link *link)
{
	int64_t until_ns = rh_clock_ns() + FAREWELL_NS;
	int rc = 0;
	link->is_live = 1; /* what may be said to a peer that has not greeted is an abort */
	while (rc >= 0 && rh_clock_ns() < until_ns && !is_alone(link) && (end_last_words(&link->end) == END_SPEAKS || link->leaving)) {
		rc = say(link);
		if (rc >= 0 && !rh_fault_code(&link->end.fault))
			rc = poll_incoming(link);
		pause_briefly(0);
	}
	for (; link->leaving; link->leaving--, link->first = (link->first + 1) % AHEAD)
		for (int i = 0; i < 2; i++)
			if (link->out[link->first].is_pending[i])
				mpi_cancel(&link->mpi, &link->out[link->first].request[i]);
	if (link->in.awaits != NOTHING)
		mpi_cancel(&link->mpi, &link->in.request);
	publish(link);
}

static void run(struct link_end *end)
{
	struct mpi_link *link = (struct mpi_link *)end;
	int64_t begun_ns = rh_clock_ns(), moved_ns = begun_ns;
	while (!end_has_ended(end)) {
		int said = say(link), heard = said < 0 ? said : poll_incoming(link), rc = heard < 0 ? heard : 0;
		if (!rc)
			rc = listen_for_silence(link, begun_ns);
		if (rc)
			end_fail(end, rc);
		publish(link);
		if (said > 0 || heard > 0)
			moved_ns = rh_clock_ns();
		else
			pause_briefly(moved_ns);
	}
	part(link);
}

/* ---- the seam ---- */

static void release(struct mpi_link *link)
{
	end_close(&link->end);
	rh_free(link->greeting);
	rh_free(link->dropped);
	rh_free(link);
}

static void link_close(struct rh_link *base)
{
	struct mpi_link *link = (struct mpi_link *)base;
	end_stop(&link->end);
	release(link);
}

static const struct rh_link_ops mpi_ops = {
        .close = link_close, .send = end_send, .receive = end_receive, .progress = end_progress, .wait = end_wait, .abort = end_abort};

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
	int rc = end_open(&link->end, options->messages, link->timing.heartbeat_ns);
	if (rc)
		return rc;
	link->greeting = rh_strdup(options->greeting);
	link->dropped = rh_alloc(1, RH_LINK_FRAME_BYTES);
	if (!link->greeting || !link->dropped)
		return -ENOMEM;
	rc = mpi_start(options->calls, &link->mpi);
	if (rc)
		return rc;
	if (link->mpi.rank != options->rank || options->peer >= link->mpi.ranks)
		return rh_fail(
		        -EINVAL,
		        "link_transport: to MPI this process is %d of %d, which does not go with box %d linked with box %d: start all "
		        "boxes by one mpirun or srun, and leave boxes and box out",
		        link->mpi.rank + 1, link->mpi.ranks, options->rank + 1, options->peer + 1);
	choose_tags(link, options->is_upper);
	return 0;
}

int rh_mpi_open(const struct rh_mpi_options *options, struct rh_link **out)
{
	*out = NULL;
	struct mpi_link *link = rh_alloc(1, sizeof *link);
	if (!link)
		return -ENOMEM;
	link->end = (struct link_end){.base.ops = &mpi_ops, .run = run};
	link->peer = options->peer;
	link->timing = options->timing;
	link->timing.give_up_ns = link->timing.give_up_ns ? link->timing.give_up_ns : 3600 * SECOND_NS;
	link->timing.heartbeat_ns =
	        link->timing.heartbeat_ns ? link->timing.heartbeat_ns : rh_min(5 * SECOND_NS, link->timing.give_up_ns / 4);
	int rc = prepare(link, options);
	if (!rc)
		rc = end_start(&link->end);
	if (rc)
		release(link);
	else
		*out = &link->end.base;
	return rc;
}
