#include "link/pair.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/minmax.h"
#include "core/philox.h"
#include "link/protocol.h"

#include <pthread.h>
#include <string.h>

#define SECOND_NS 1000000000ll

struct flying {
	struct flying *next; /* by arrival */
	int64_t arrival_ns;
	struct frame frame;
	char payload[];
};

struct pair;

struct pair_end {
	struct rh_link base;
	struct pair *pair;
	struct protocol protocol;
	struct rh_fault fault;
	struct rh_link_progress progress;
	int is_closed;
	/* the line towards this end */
	struct flying *flying;
	int64_t line_free_ns, last_arrival_ns;
};

/* One thread moves the frames of both directions. */
struct pair {
	struct rh_pair_options options;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* protected by lock */
	struct pair_end end[2];
	uint64_t drawn;
};

/* Evenly from 0 up to 1. */
static double draw(struct pair *pair)
{
	uint64_t count = pair->drawn++;
	struct rh_philox_block block = rh_philox(pair->options.seed, (uint32_t)count, (uint32_t)(count >> 32), 0, 0);
	return (double)block.word[0] / 4294967296.0;
}

static int launch(struct pair_end *to, const struct frame *frame, int64_t arrival_ns)
{
	struct flying *flying = rh_alloc(1, sizeof *flying + frame->length);
	if (!flying)
		return -ENOMEM;
	flying->arrival_ns = arrival_ns;
	flying->frame = *frame;
	flying->frame.payload = flying->payload;
	if (frame->length)
		memcpy(flying->payload, frame->payload, frame->length);
	struct flying **place = &to->flying;
	while (*place && (*place)->arrival_ns <= arrival_ns)
		place = &(*place)->next;
	flying->next = *place;
	*place = flying;
	return 0;
}

/* A frame takes the line for its length, and arrives a latency later. */
static int put_on_line(struct pair *pair, struct pair_end *to, const struct frame *frame, int64_t now_ns)
{
	const struct rh_pair_options *options = &pair->options;
	double bytes = (double)FRAME_HEADER + frame->length;
	to->line_free_ns = rh_max(now_ns, to->line_free_ns);
	if (options->bytes_per_second > 0)
		to->line_free_ns += (int64_t)(bytes / options->bytes_per_second * 1e9);
	int64_t arrival_ns = to->line_free_ns + options->latency_ns + (int64_t)(draw(pair) * (double)options->jitter_ns);
	if (draw(pair) < options->overtaken)
		arrival_ns += options->latency_ns + options->jitter_ns + SECOND_NS / 500;
	else
		to->last_arrival_ns = arrival_ns = rh_max(arrival_ns, to->last_arrival_ns);
	int rc = draw(pair) < options->lost ? 0 : launch(to, frame, arrival_ns);
	if (!rc && draw(pair) < options->doubled)
		rc = launch(to, frame, arrival_ns + options->latency_ns / 2);
	return rc;
}

static void keep_fault(struct pair_end *end, int rc)
{
	int is_ours = rc && !rh_fault_code(&end->fault) && rc != -ECONNABORTED && rc != -ECONNRESET;
	rh_fault_keep(&end->fault, rc);
	if (!is_ours)
		return;
	strncpy(end->protocol.abort_line, rh_error(rc), sizeof end->protocol.abort_line - 1);
	end->protocol.is_abort_due = 1;
}

/* Puts an end's next frames on the line to the other end, as long as the line is free. */
static int say(struct pair *pair, struct pair_end *from, struct pair_end *to, int64_t now_ns)
{
	struct frame frame;
	int said = 0;
	while (to->line_free_ns <= now_ns && (!rh_fault_code(&from->fault) || from->protocol.is_abort_due) &&
	       protocol_next(&from->protocol, now_ns, &frame)) {
		from->progress.bytes_sent += FRAME_HEADER + frame.length;
		keep_fault(from, put_on_line(pair, to, &frame, now_ns));
		said = 1;
	}
	return said;
}

static int hear_one(struct pair_end *end, int64_t now_ns, const struct frame *frame)
{
	char *into = NULL;
	int rc = frame->type == FRAME_DATA ? protocol_expect(&end->protocol, frame, &into) : 0;
	if (!rc && into && frame->length)
		memcpy(into, frame->payload, frame->length);
	end->progress.bytes_received += FRAME_HEADER + frame->length;
	return rc ? rc : protocol_take(&end->protocol, now_ns, frame, frame->payload);
}

static int take_arrived(struct pair_end *end, int64_t now_ns)
{
	int heard = 0;
	while (end->flying && end->flying->arrival_ns <= now_ns) {
		struct flying *flying = end->flying;
		end->flying = flying->next;
		if (!rh_fault_code(&end->fault) && !end->is_closed)
			keep_fault(end, hear_one(end, now_ns, &flying->frame));
		rh_free(flying);
		heard = 1;
	}
	if (end->protocol.has_heard_bye)
		rh_fault_keep(&end->fault, rh_fail(-ECONNRESET, "the peer has closed the link"));
	end->progress.sent = end->protocol.out.done;
	end->progress.received = end->protocol.in.done;
	end->progress.latency_s = (double)end->protocol.shortest_echo_ns / 2e9;
	return heard;
}

static int64_t earlier(int64_t due_ns, int64_t time_ns, int64_t now_ns)
{
	return time_ns > now_ns ? rh_min(due_ns, time_ns) : due_ns; /* the past needs no waking */
}

static void wait_for_frame(struct pair *pair, int64_t now_ns)
{
	int64_t due_ns = now_ns + SECOND_NS;
	for (int i = 0; i < 2; i++) {
		const struct pair_end *end = &pair->end[i];
		if (!end->is_closed)
			due_ns = earlier(due_ns, protocol_deadline(&end->protocol), now_ns);
		if (end->flying)
			due_ns = earlier(due_ns, end->flying->arrival_ns, now_ns);
		due_ns = earlier(due_ns, end->line_free_ns, now_ns);
	}
	struct timespec until = {.tv_sec = due_ns / SECOND_NS, .tv_nsec = due_ns % SECOND_NS};
	pthread_cond_timedwait(&pair->changed, &pair->lock, &until);
}

/* A closed end still says its farewell, and acknowledges nothing more. */
static void *run(void *context)
{
	struct pair *pair = context;
	pthread_mutex_lock(&pair->lock);
	while (!pair->end[0].is_closed || !pair->end[1].is_closed) {
		int64_t now_ns = rh_clock_ns();
		int moved = 0;
		for (int i = 0; i < 2; i++) {
			moved |= say(pair, &pair->end[i], &pair->end[!i], now_ns);
			moved |= take_arrived(&pair->end[i], now_ns);
		}
		if (moved)
			pthread_cond_broadcast(&pair->changed);
		else
			wait_for_frame(pair, now_ns);
	}
	pthread_mutex_unlock(&pair->lock);
	return NULL;
}

static int post(struct rh_link *base, int is_send, uint64_t tag, void *bytes, int64_t size)
{
	struct pair_end *end = (struct pair_end *)base;
	pthread_mutex_lock(&end->pair->lock);
	int rc = rh_fault_get(&end->fault);
	if (!rc)
		rc = is_send ? protocol_send(&end->protocol, tag, bytes, size) : protocol_receive(&end->protocol, tag, bytes, size);
	pthread_cond_broadcast(&end->pair->changed);
	pthread_mutex_unlock(&end->pair->lock);
	return rc;
}

static int pair_send(struct rh_link *base, uint64_t tag, const void *bytes, int64_t size)
{
	return post(base, 1, tag, (void *)(uintptr_t)bytes, size);
}

static int pair_receive(struct rh_link *base, uint64_t tag, void *bytes, int64_t size)
{
	return post(base, 0, tag, bytes, size);
}

static int pair_progress(struct rh_link *base, struct rh_link_progress *out)
{
	struct pair_end *end = (struct pair_end *)base;
	pthread_mutex_lock(&end->pair->lock);
	*out = end->progress;
	int rc = rh_fault_get(&end->fault);
	pthread_mutex_unlock(&end->pair->lock);
	return rc;
}

static int pair_wait(struct rh_link *base, int64_t sent, int64_t received)
{
	struct pair_end *end = (struct pair_end *)base;
	int rc = 0;
	pthread_mutex_lock(&end->pair->lock);
	while (!rc && (end->progress.sent < sent || end->progress.received < received)) {
		rc = rh_fault_get(&end->fault);
		if (!rc)
			pthread_cond_wait(&end->pair->changed, &end->pair->lock);
	}
	pthread_mutex_unlock(&end->pair->lock);
	return rc;
}

static void pair_abort(struct rh_link *base, const char *line)
{
	struct pair_end *end = (struct pair_end *)base;
	pthread_mutex_lock(&end->pair->lock);
	keep_fault(end, rh_fail(-ECANCELED, "%s", line));
	pthread_cond_broadcast(&end->pair->changed);
	pthread_mutex_unlock(&end->pair->lock);
}

static void release(struct pair *pair)
{
	for (int i = 0; i < 2; i++) {
		protocol_close(&pair->end[i].protocol);
		for (struct flying *flying = pair->end[i].flying, *next; flying; flying = next) {
			next = flying->next;
			rh_free(flying);
		}
	}
	pthread_cond_destroy(&pair->changed);
	pthread_mutex_destroy(&pair->lock);
	rh_free(pair);
}

static void pair_close(struct rh_link *base)
{
	struct pair_end *end = (struct pair_end *)base;
	struct pair *pair = end->pair;
	pthread_mutex_lock(&pair->lock);
	end->protocol.is_bye_due = end->is_closed = 1;
	int is_last = pair->end[0].is_closed && pair->end[1].is_closed;
	pthread_cond_broadcast(&pair->changed);
	pthread_mutex_unlock(&pair->lock);
	if (!is_last)
		return;
	pthread_join(pair->thread, NULL);
	release(pair);
}

static const struct rh_link_ops pair_ops = {
        .close = pair_close, .send = pair_send, .receive = pair_receive, .progress = pair_progress, .wait = pair_wait, .abort = pair_abort};

static void make_lock(struct pair *pair)
{
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&pair->lock, NULL);
	pthread_cond_init(&pair->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

int rh_pair_open(const struct rh_pair_options *options, struct rh_link *ends[2])
{
	ends[0] = ends[1] = NULL;
	struct pair *pair = rh_alloc(1, sizeof *pair);
	if (!pair)
		return -ENOMEM;
	int64_t once_ns = options->latency_ns + options->jitter_ns;
	int is_lossy = options->lost > 0 || options->overtaken > 0;
	int64_t retry_ns = options->retry_ns ? options->retry_ns : is_lossy ? 2 * once_ns + SECOND_NS / 20 : INT64_MAX;
	int rc = 0;
	pair->options = *options;
	make_lock(pair);
	for (int i = 0; i < 2 && !rc; i++) {
		struct pair_end *end = &pair->end[i];
		end->base.ops = &pair_ops;
		end->pair = pair;
		rc = protocol_open(&end->protocol, 1 + (uint64_t)i, options->messages, is_lossy ? retry_ns : 5 * SECOND_NS, retry_ns);
		end->protocol.peer = 2 - (uint64_t)i;
		if (!rc)
			protocol_rewind(&end->protocol, rh_clock_ns());
	}
	if (!rc) {
		int code = pthread_create(&pair->thread, NULL, run, pair);
		rc = code ? rh_fail(-code, "a link wants a thread: %s", strerror(code)) : 0;
	}
	if (rc) {
		release(pair);
		return rc;
	}
	ends[0] = &pair->end[0].base;
	ends[1] = &pair->end[1].base;
	return 0;
}
