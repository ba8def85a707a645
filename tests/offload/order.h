/* Reads and writes of blocks' weights and gradients: recorded while a run is enqueued, checked afterwards.
 *
 * A lane is anything that runs in order: a device's stream, a host thread. It holds operations on blocks, and signals of and waits for
 * tokens (a device's event, a condition of the host), which order lanes among themselves. An operation comes before another only if lanes
 * and tokens say so. The time at which they happened to run does not count: so a missing wait is found even when it did no harm.
 *
 * The five orderings, for each block that is not only uploaded, steps counted from 0, staleness s (0 sync, 1 async):
 *   1  PUBLISH p      comes after every UPLOAD of steps up to p + s, which want the weights before
 *   2  UPLOAD t       comes after PUBLISH t - 1 - s, if that is a step
 *   3  TAKE t         comes after every DOWNLOAD t, of which there is one at least
 *   4  DOWNLOAD t     comes after TAKE of the last earlier step that downloaded
 *   5  TAKE t and PUBLISH t - 1 come after UPDATE t - 1; TAKE t (the first: moments may be made later) and PUBLISH t - 1 before UPDATE t */
#ifndef ORDER_H
#define ORDER_H

#include "check.h"

#include "core/alloc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum order_kind {
	ORDER_UPLOAD,   /* a device reads the block's upload form, for a step */
	ORDER_DOWNLOAD, /* a device writes the block's gradient or running sum, of a step */
	ORDER_TAKE,     /* the optimizer is done reading the gradient of a step (its own copy, or the update itself) */
	ORDER_UPDATE,   /* master and state change by the gradient of a step */
	ORDER_PUBLISH,  /* the upload form changes to what the update of a step made */
	ORDER_SIGNAL,   /* the token now marks all that its lane did before; a later signal moves the mark */
	ORDER_WAIT      /* what follows on the lane comes after the token's latest signal; never signalled: no wait */
};

struct order_event {
	enum order_kind kind;
	int lane;
	int64_t subject; /* block, or token; from 0 */
	int64_t step;    /* of operations */
};

struct order_fault {
	int ordering;                     /* 1..5; 0: none */
	struct order_event first, second; /* the second does not come after the first, as it must; first.lane -1: the first is missing */
};

/* Vector clocks (Fidge; Mattern): for each operation, how much of every lane comes before it. */
struct order_op {
	const struct order_event *event;
	int64_t index; /* among all events */
	uint32_t tick; /* on its own lane */
	uint32_t *clock;
};

struct order_clocks {
	int64_t lanes, tokens, ops;
	uint32_t *lane;      /* (lanes, lanes) */
	uint32_t *token;     /* (tokens, lanes) */
	uint32_t *clock;     /* (ops, lanes) */
	struct order_op *op; /* sorted by block, kind, step */
	int staleness;
	int64_t found; /* index of the event at fault; INT64_MAX: none yet */
	struct order_fault fault;
};

static inline int order_is_operation(const struct order_event *event)
{
	return event->kind < ORDER_SIGNAL;
}

static inline int order_compare(const void *a, const void *b)
{
	const struct order_op *x = a, *y = b;
	int64_t keys[][2] = {{x->event->subject, y->event->subject},
	                     {x->event->kind, y->event->kind},
	                     {x->event->step, y->event->step},
	                     {x->index, y->index}};
	for (int i = 0; i < 4; i++)
		if (keys[i][0] != keys[i][1])
			return keys[i][0] < keys[i][1] ? -1 : 1;
	return 0;
}

static inline void order_join(uint32_t *to, const uint32_t *from, int64_t lanes)
{
	for (int64_t i = 0; i < lanes; i++)
		to[i] = from[i] > to[i] ? from[i] : to[i];
}

static inline int order_prepare(struct order_clocks *check, const struct order_event *event, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		RH_ASSERT(event[i].lane >= 0 && event[i].subject >= 0);
		check->lanes = event[i].lane >= check->lanes ? event[i].lane + 1 : check->lanes;
		if (order_is_operation(&event[i]))
			check->ops++;
		else if (event[i].subject >= check->tokens)
			check->tokens = event[i].subject + 1;
	}
	size_t lanes = (size_t)check->lanes;
	check->lane = rh_alloc(lanes * lanes, sizeof *check->lane);
	check->token = rh_alloc((size_t)check->tokens * lanes, sizeof *check->token);
	check->clock = rh_alloc((size_t)check->ops * lanes, sizeof *check->clock);
	check->op = rh_alloc((size_t)check->ops, sizeof *check->op);
	return check->lane && check->token && check->clock && check->op ? 0 : -ENOMEM;
}

/* One pass over the recording in its order. */
static inline void order_replay(struct order_clocks *check, const struct order_event *event, int64_t count)
{
	int64_t lanes = check->lanes, ops = 0;
	for (int64_t i = 0; i < count; i++) {
		uint32_t *now = check->lane + event[i].lane * lanes;
		uint32_t *token = check->token + (order_is_operation(&event[i]) ? 0 : event[i].subject * lanes);
		now[event[i].lane]++;
		if (event[i].kind == ORDER_WAIT) {
			order_join(now, token, lanes);
		} else if (event[i].kind == ORDER_SIGNAL) {
			memcpy(token, now, (size_t)lanes * sizeof *now);
		} else {
			struct order_op *op = &check->op[ops];
			*op = (struct order_op){&event[i], i, now[event[i].lane], check->clock + ops * lanes};
			memcpy(op->clock, now, (size_t)lanes * sizeof *now);
			ops++;
		}
	}
	qsort(check->op, (size_t)check->ops, sizeof *check->op, order_compare);
}

/* Operations of one kind on one block in steps [from, to]: the first, and how many. */
static inline struct order_op *order_find(const struct order_clocks *check, int64_t block, enum order_kind kind, int64_t from, int64_t to,
                                          int64_t *count)
{
	int64_t bounds[2];
	for (int end = 0; end < 2; end++) {
		struct order_event key = {kind, 0, block, end ? to : from};
		struct order_op wanted = {&key, end ? INT64_MAX : -1, 0, NULL};
		int64_t low = 0, high = check->ops;
		while (low < high) {
			int64_t middle = (low + high) / 2;
			if (order_compare(&check->op[middle], &wanted) < 0)
				low = middle + 1;
			else
				high = middle;
		}
		bounds[end] = low;
	}
	*count = bounds[1] - bounds[0];
	return check->op + bounds[0];
}

static inline int order_comes_before(const struct order_op *first, const struct order_op *second)
{
	return second->clock[first->event->lane] >= first->tick;
}

static inline void order_blame(struct order_clocks *check, int ordering, const struct order_event *first, const struct order_op *second)
{
	if (second->index >= check->found)
		return;
	check->found = second->index;
	check->fault = (struct order_fault){ordering, *first, *second->event};
}

enum order_need { ORDER_ANY, ORDER_ONE_AT_LEAST, ORDER_THE_FIRST };

/* `second` comes after all operations of a kind on its block in steps [from, to]. */
static inline void order_expect_after(struct order_clocks *check, int ordering, enum order_need need, enum order_kind kind, int64_t from,
                                      int64_t to, const struct order_op *second)
{
	int64_t count;
	const struct order_op *first = order_find(check, second->event->subject, kind, from, to, &count);
	if (!count && need != ORDER_ANY)
		order_blame(check, ordering, &(struct order_event){kind, -1, second->event->subject, to}, second);
	for (int64_t i = 0; i < (need == ORDER_THE_FIRST && count ? 1 : count); i++)
		if (!order_comes_before(&first[i], second))
			order_blame(check, ordering, first[i].event, second);
}

static inline void order_check_op(struct order_clocks *check, const struct order_op *op)
{
	int64_t step = op->event->step, block = op->event->subject, before = step - 1 - check->staleness, count;
	switch (op->event->kind) {
	case ORDER_PUBLISH:
		order_expect_after(check, 1, ORDER_ANY, ORDER_UPLOAD, 0, step + check->staleness, op);
		order_expect_after(check, 5, ORDER_ONE_AT_LEAST, ORDER_UPDATE, step, step, op);
		break;
	case ORDER_UPLOAD:
		if (before >= 0)
			order_expect_after(check, 2, ORDER_ONE_AT_LEAST, ORDER_PUBLISH, before, before, op);
		break;
	case ORDER_TAKE:
		order_expect_after(check, 3, ORDER_ONE_AT_LEAST, ORDER_DOWNLOAD, step, step, op);
		order_expect_after(check, 5, ORDER_ANY, ORDER_UPDATE, step - 1, step - 1, op);
		break;
	case ORDER_DOWNLOAD: {
		const struct order_op *earlier = order_find(check, block, ORDER_DOWNLOAD, 0, step - 1, &count);
		if (count) {
			int64_t last = earlier[count - 1].event->step;
			order_expect_after(check, 4, ORDER_ONE_AT_LEAST, ORDER_TAKE, last, last, op);
		}
		break;
	}
	case ORDER_UPDATE:
		order_expect_after(check, 5, ORDER_THE_FIRST, ORDER_TAKE, step, step, op);
		order_expect_after(check, 5, ORDER_ANY, ORDER_PUBLISH, step - 1, step - 1, op);
		break;
	default:
		break;
	}
}

/* A frozen block is only uploaded, and has one version. */
static inline int order_is_trained(const struct order_clocks *check, int64_t block)
{
	int64_t count = 0;
	for (int kind = ORDER_DOWNLOAD; !count && kind < ORDER_SIGNAL; kind++)
		(void)order_find(check, block, (enum order_kind)kind, 0, INT64_MAX, &count);
	return count > 0;
}

/* 0, and *out says what is broken first (in the order of the recorded events), if anything is. -ENOMEM. Pure. Memory and time grow with
 * events times lanes. */
static inline RH_MUST int order_check(const struct order_event *event, int64_t count, int staleness, struct order_fault *out)
{
	struct order_clocks check = {.staleness = staleness, .found = INT64_MAX};
	int rc = order_prepare(&check, event, count);
	if (!rc) {
		order_replay(&check, event, count);
		for (int64_t i = 0; i < check.ops; i++)
			if (order_is_trained(&check, check.op[i].event->subject))
				order_check_op(&check, &check.op[i]);
	}
	rh_free(check.lane);
	rh_free(check.token);
	rh_free(check.clock);
	rh_free(check.op);
	*out = check.fault;
	return rc;
}

/* "ordering 2: UPLOAD of block 3, step 4, on lane 1 does not come after PUBLISH of ..., step 3" */
static inline void order_describe(const struct order_fault *fault, char *text, size_t bytes)
{
	static const char *const names[] = {"UPLOAD", "DOWNLOAD", "TAKE", "UPDATE", "PUBLISH", "SIGNAL", "WAIT"};
	const struct order_event *a = &fault->first, *b = &fault->second;
	if (!fault->ordering)
		snprintf(text, bytes, "all orderings hold");
	else if (a->lane < 0)
		snprintf(text, bytes, "ordering %d: %s of block %lld, step %lld, on lane %d has no %s of step %lld before it",
		         fault->ordering, names[b->kind], (long long)b->subject, (long long)b->step, b->lane, names[a->kind],
		         (long long)a->step);
	else
		snprintf(text, bytes, "ordering %d: %s of block %lld, step %lld, on lane %d does not come after %s of step %lld on lane %d",
		         fault->ordering, names[b->kind], (long long)b->subject, (long long)b->step, b->lane, names[a->kind],
		         (long long)a->step, a->lane);
}

/* A recording that any thread may add to. Add a signal before it is given, and a wait after it has been waited for; if the two are only
 * enqueued, add both then. It holds `capacity` events and drops later ones. */
struct order_log {
	pthread_mutex_t lock;
	int64_t capacity, count, forgotten; /* protected by lock */
	struct order_event *event;          /* likewise */
};

static inline struct order_log *order_log_create(int64_t capacity)
{
	struct order_log *log = rh_alloc(1, sizeof *log);
	assert_non_null(log);
	log->event = rh_alloc((size_t)capacity, sizeof *log->event);
	assert_non_null(log->event);
	log->capacity = capacity;
	pthread_mutex_init(&log->lock, NULL);
	return log;
}

static inline void order_log_destroy(struct order_log *log)
{
	pthread_mutex_destroy(&log->lock);
	rh_free(log->event);
	rh_free(log);
}

static inline void order_log_add(struct order_log *log, enum order_kind kind, int lane, int64_t what, int64_t step)
{
	pthread_mutex_lock(&log->lock);
	if (log->count < log->capacity)
		log->event[log->count++] = (struct order_event){kind, lane, what, step};
	else
		log->forgotten++;
	pthread_mutex_unlock(&log->lock);
}

/* The recorded events; *forgotten: how many events were dropped. Valid until the next add. */
static inline const struct order_event *order_log_events(struct order_log *log, int64_t *count, int64_t *forgotten)
{
	pthread_mutex_lock(&log->lock);
	*count = log->count;
	*forgotten = log->forgotten;
	pthread_mutex_unlock(&log->lock);
	return log->event;
}

#endif
