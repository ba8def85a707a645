/* Message n of this link is message n of the host link, after the ids of the two wires, which the lower end sends first. On the host
 * link a small message is itself; a large one is a notice with its size. A notice arrives, and is acknowledged, when both ends have
 * posted the message: then each end begins its part on the wire of that direction, so that no GPU waits for long.
 *
 *   meeting --the id is there--> live --fault, close--> the thread ends, and closes the wires */
#include "link/nccl.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/fault.h"
#include "cuda/nccl.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { WIRES = 2 /* up, down */, FIRST_TAG = 0x6e63636c };
#define REASON_NS 1000000000ll
#define BUSY_NS   (50 * 1000ll) /* after something moved the thread looks without a pause for so long, and pauses for so long */

struct letter {
	char *bytes;
	int64_t size, notice;
};

/* A direction of this end. Letter n is at n % messages from when it is posted until it is done. */
struct way {
	struct letter *letter;
	int64_t posted, done;
	int is_begun; /* the oldest is on the wire */
	struct rh_nccl_wire *wire;
	int64_t bytes; /* that went over the wire */
};

struct nccl_link {
	struct rh_link base;
	struct rh_link *host_link;
	int gpu, is_upper;
	int64_t messages;
	char id[WIRES][RH_NCCL_ID];
	pthread_t thread;
	int has_thread, is_live; /* the latter is the thread's: both wires are open */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* protected by lock; wires, is_begun and the oldest letters are the thread's */
	struct way out, in;
	struct rh_link_progress host_progress; /* of the other link */
	struct rh_fault fault;
	int closes;
};

static int is_large(int64_t size)
{
	return size >= RH_NCCL_LEAST_BYTES;
}

/* The id's message, which only one direction of an end has. */
static int64_t before(const struct nccl_link *link, const struct way *way)
{
	return (way == &link->out) != link->is_upper;
}

/* ---- the thread ---- */

static void keep_fault(struct nccl_link *link, int rc)
{
	pthread_mutex_lock(&link->lock);
	rh_fault_keep(&link->fault, rc);
	pthread_cond_broadcast(&link->changed);
	pthread_mutex_unlock(&link->lock);
	link->host_link->ops->abort(link->host_link, link->fault.line); /* of a fault that came from there nothing is told */
}

static int has_ended(struct nccl_link *link)
{
	pthread_mutex_lock(&link->lock);
	int ended = link->closes || rh_fault_code(&link->fault);
	pthread_mutex_unlock(&link->lock);
	return ended;
}

/* 1: both wires are open. */
static int open_wires(struct nccl_link *link)
{
	struct way *const way[WIRES] = {link->is_upper ? &link->in : &link->out, link->is_upper ? &link->out : &link->in};
	for (int i = 0; i < WIRES; i++) {
		int rc = way[i]->wire ? 0 : rh_nccl_open(link->id[i], way[i] == &link->in, link->gpu, &way[i]->wire);
		if (rc)
			return rc;
	}
	int is_open = rh_nccl_is_open(way[0]->wire);
	return is_open > 0 ? rh_nccl_is_open(way[1]->wire) : is_open;
}

/* The oldest letter of a direction, whose message on the other link is over. 1: it is done. */
static int move_letter(struct nccl_link *link, struct way *way)
{
	struct letter *letter = &way->letter[(way->done + 1) % link->messages];
	if (!is_large(letter->size))
		return 1;
	if (letter->notice != letter->size)
		return rh_fail(-EPROTO, "the peer sends %lld bytes where %lld are expected", (long long)letter->notice,
		               (long long)letter->size);
	int rc = way->is_begun ? 0 : rh_nccl_begin(way->wire, letter->bytes, letter->size);
	way->is_begun = 1;
	if (!rc)
		rc = rh_nccl_test(way->wire);
	if (rc <= 0)
		return rc;
	way->is_begun = 0;
	return 1;
}

/* over: messages of the other link. 1: something was done. */
static int move_way(struct nccl_link *link, struct way *way, int64_t over)
{
	for (int moved = 0;; moved = 1) {
		pthread_mutex_lock(&link->lock);
		int any = way->done < way->posted && way->done + before(link, way) < over;
		pthread_mutex_unlock(&link->lock);
		int rc = any ? move_letter(link, way) : 0;
		if (rc <= 0)
			return rc ? rc : moved;
		pthread_mutex_lock(&link->lock);
		way->done++;
		int64_t size = way->letter[way->done % link->messages].size;
		way->bytes += is_large(size) ? size : 0;
		pthread_cond_broadcast(&link->changed);
		pthread_mutex_unlock(&link->lock);
	}
}

/* Messages that the peer sent before it closed can still be received. */
static int is_owed(const struct nccl_link *link, int ends, const struct rh_link_progress *below)
{
	return ends == -ECONNRESET && link->in.done < link->in.posted && link->in.done + before(link, &link->in) < below->received;
}

/* 1: something was done. */
static int move(struct nccl_link *link)
{
	struct rh_link_progress below;
	int ends = link->host_link->ops->progress(link->host_link, &below), rc = 0;
	pthread_mutex_lock(&link->lock);
	link->host_progress = below;
	pthread_mutex_unlock(&link->lock);
	int has_met = link->is_upper ? below.received > 0 : below.sent > 0;
	if (has_met && !link->is_live)
		rc = link->is_live = open_wires(link);
	if (rc < 0)
		return rc;
	int out = link->is_live ? move_way(link, &link->out, below.sent) : 0,
	    in = link->is_live && out >= 0 ? move_way(link, &link->in, below.received) : 0;
	if (out < 0 || in < 0)
		return out < 0 ? out : in;
	return out || in ? 1 : is_owed(link, ends, &below) ? 0 : ends;
}

static void pause_briefly(int64_t moved_ns)
{
	static const struct timespec pause = {.tv_nsec = BUSY_NS};
	if (rh_clock_ns() - moved_ns < BUSY_NS)
		sched_yield();
	else
		nanosleep(&pause, NULL);
}

/* A peer that ends breaks the wires, too: what it says on the other link tells more. */
static int better_reason(struct nccl_link *link, int rc)
{
	struct rh_link_progress unused;
	char line[RH_ERROR_LINE];
	int64_t until_ns = rh_clock_ns() + REASON_NS;
	snprintf(line, sizeof line, "%s", rh_error(rc));
	while (rh_clock_ns() < until_ns) {
		int said = link->host_link->ops->progress(link->host_link, &unused);
		if (said)
			return said;
		pause_briefly(0);
	}
	return rh_fail(rc, "%s", line);
}

static void *run(void *context)
{
	struct nccl_link *link = context;
	int64_t moved_ns = rh_clock_ns();
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	while (!has_ended(link)) {
		int rc = move(link);
		if (rc < 0)
			keep_fault(link, rc == -EIO ? better_reason(link, rc) : rc);
		if (rc > 0)
			moved_ns = rh_clock_ns();
		else
			pause_briefly(moved_ns);
	}
	rh_nccl_close(link->out.wire);
	rh_nccl_close(link->in.wire);
	return NULL;
}

/* ---- the seam ---- */

static struct nccl_link *own(struct rh_link *link)
{
	return (struct nccl_link *)link;
}

static void release(struct nccl_link *link)
{
	rh_link_close(link->host_link);
	pthread_cond_destroy(&link->changed);
	pthread_mutex_destroy(&link->lock);
	rh_free(link->out.letter);
	rh_free(link->in.letter);
	rh_free(link);
}

static void nccl_close(struct rh_link *base)
{
	struct nccl_link *link = own(base);
	pthread_mutex_lock(&link->lock);
	link->closes = 1;
	pthread_mutex_unlock(&link->lock);
	if (link->has_thread)
		pthread_join(link->thread, NULL);
	release(link);
}

static int post(struct nccl_link *link, struct way *way, uint64_t tag, void *bytes, int64_t size)
{
	struct rh_link *through = link->host_link;
	pthread_mutex_lock(&link->lock);
	int rc = rh_fault_get(&link->fault), is_full = way->posted - way->done >= link->messages;
	struct letter *letter = &way->letter[(way->posted + 1) % link->messages];
	if (!rc && is_full)
		rc = rh_fail(-ENOBUFS, "%lld messages are posted, as many as the link was opened for", (long long)link->messages);
	if (!rc) {
		*letter = (struct letter){bytes, size, way == &link->out ? size : 0};
		void *there = is_large(size) ? &letter->notice : bytes;
		int64_t length = is_large(size) ? (int64_t)sizeof letter->notice : size;
		rc = way == &link->out ? rh_link_send(through, tag, there, length) : rh_link_receive(through, tag, there, length);
	}
	way->posted += !rc;
	pthread_mutex_unlock(&link->lock);
	return rc;
}

static int nccl_send(struct rh_link *base, uint64_t tag, const void *bytes, int64_t size)
{
	return post(own(base), &own(base)->out, tag, (void *)(uintptr_t)bytes, size);
}

static int nccl_receive(struct rh_link *base, uint64_t tag, void *bytes, int64_t size)
{
	return post(own(base), &own(base)->in, tag, bytes, size);
}

static int nccl_progress(struct rh_link *base, struct rh_link_progress *out)
{
	struct nccl_link *link = own(base);
	pthread_mutex_lock(&link->lock);
	*out = link->host_progress;
	out->sent = link->out.done;
	out->received = link->in.done;
	out->bytes_sent += link->out.bytes;
	out->bytes_received += link->in.bytes;
	int rc = rh_fault_get(&link->fault);
	pthread_mutex_unlock(&link->lock);
	return rc;
}

static int nccl_wait(struct rh_link *base, int64_t sent, int64_t received)
{
	struct nccl_link *link = own(base);
	int rc = 0;
	pthread_mutex_lock(&link->lock);
	while (!rc && (link->out.done < sent || link->in.done < received)) {
		rc = rh_fault_get(&link->fault);
		if (!rc)
			pthread_cond_wait(&link->changed, &link->lock);
	}
	pthread_mutex_unlock(&link->lock);
	return rc;
}

static void nccl_abort(struct rh_link *base, const char *line)
{
	keep_fault(own(base), rh_fail(-ECANCELED, "%s", line));
}

static const struct rh_link_ops nccl_ops = {
        .close = nccl_close, .send = nccl_send, .receive = nccl_receive, .progress = nccl_progress, .wait = nccl_wait, .abort = nccl_abort};

/* The lower end's ids go first. */
static int begin(struct nccl_link *link)
{
	int rc = 0;
	link->out.letter = rh_alloc((size_t)link->messages, sizeof *link->out.letter);
	link->in.letter = rh_alloc((size_t)link->messages, sizeof *link->in.letter);
	if (!link->out.letter || !link->in.letter)
		return -ENOMEM;
	for (int i = 0; !rc && !link->is_upper && i < WIRES; i++)
		rc = rh_nccl_make_id(link->id[i]);
	if (!rc)
		rc = link->is_upper ? rh_link_receive(link->host_link, FIRST_TAG, link->id, sizeof link->id)
		                    : rh_link_send(link->host_link, FIRST_TAG, link->id, sizeof link->id);
	if (rc)
		return rc;
	int code = pthread_create(&link->thread, NULL, run, link);
	link->has_thread = !code;
	return code ? rh_fail(-code, "a link wants a thread: %s", strerror(code)) : 0;
}

int rh_nccl_link_open(const struct rh_nccl_options *options, struct rh_link **out)
{
	struct nccl_link *link = rh_alloc(1, sizeof *link);
	*out = NULL;
	if (!link) {
		rh_link_close(options->host_link);
		return -ENOMEM;
	}
	link->base.ops = &nccl_ops;
	link->host_link = options->host_link;
	link->gpu = options->gpu;
	link->is_upper = options->is_upper;
	link->messages = options->messages;
	pthread_mutex_init(&link->lock, NULL);
	pthread_cond_init(&link->changed, NULL);
	int rc = begin(link);
	if (rc)
		release(link);
	else
		*out = &link->base;
	return rc;
}
