#include "offload/order.h"

#include "core/alloc.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Vector clocks (Fidge; Mattern): for each operation, how much of every lane comes before it. */
struct op {
	const struct rh_order_event *event;
	int64_t index; /* among all events */
	uint32_t tick; /* on its own lane */
	uint32_t *clock;
};

struct check {
	int64_t lanes, tokens, ops;
	uint32_t *lane;  /* (lanes, lanes) */
	uint32_t *token; /* (tokens, lanes) */
	uint32_t *clock; /* (ops, lanes) */
	struct op *op;   /* sorted by block, kind, step */
	int staleness;
	int64_t found; /* index of the event at fault; INT64_MAX: none yet */
	struct rh_order_fault fault;
};

static int is_operation(const struct rh_order_event *event)
{
	return event->kind < RH_ORDER_SIGNAL;
}

static int compare(const void *a, const void *b)
{
	const struct op *x = a, *y = b;
	int64_t keys[][2] = {{x->event->subject, y->event->subject},
	                     {x->event->kind, y->event->kind},
	                     {x->event->step, y->event->step},
	                     {x->index, y->index}};
	for (int i = 0; i < 4; i++)
		if (keys[i][0] != keys[i][1])
			return keys[i][0] < keys[i][1] ? -1 : 1;
	return 0;
}

static void join(uint32_t *to, const uint32_t *from, int64_t lanes)
{
	for (int64_t i = 0; i < lanes; i++)
		to[i] = from[i] > to[i] ? from[i] : to[i];
}

static int prepare(struct check *check, const struct rh_order_event *event, int64_t count)
{
	for (int64_t i = 0; i < count; i++) {
		RH_ASSERT(event[i].lane >= 0 && event[i].subject >= 0);
		check->lanes = event[i].lane >= check->lanes ? event[i].lane + 1 : check->lanes;
		if (is_operation(&event[i]))
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
static void replay(struct check *check, const struct rh_order_event *event, int64_t count)
{
	int64_t lanes = check->lanes, ops = 0;
	for (int64_t i = 0; i < count; i++) {
		uint32_t *now = check->lane + event[i].lane * lanes;
		uint32_t *token = check->token + (is_operation(&event[i]) ? 0 : event[i].subject * lanes);
		now[event[i].lane]++;
		if (event[i].kind == RH_ORDER_WAIT) {
			join(now, token, lanes);
		} else if (event[i].kind == RH_ORDER_SIGNAL) {
			memcpy(token, now, (size_t)lanes * sizeof *now);
		} else {
			struct op *op = &check->op[ops];
			*op = (struct op){&event[i], i, now[event[i].lane], check->clock + ops * lanes};
			memcpy(op->clock, now, (size_t)lanes * sizeof *now);
			ops++;
		}
	}
	qsort(check->op, (size_t)check->ops, sizeof *check->op, compare);
}

/* Operations of one kind on one block in steps [from, to]: the first, and how many. */
static struct op *find(const struct check *check, int64_t block, enum rh_order_kind kind, int64_t from, int64_t to, int64_t *count)
{
	int64_t bounds[2];
	for (int end = 0; end < 2; end++) {
		struct rh_order_event key = {kind, 0, block, end ? to : from};
		struct op wanted = {&key, end ? INT64_MAX : -1, 0, NULL};
		int64_t low = 0, high = check->ops;
		while (low < high) {
			int64_t middle = (low + high) / 2;
			if (compare(&check->op[middle], &wanted) < 0)
				low = middle + 1;
			else
				high = middle;
		}
		bounds[end] = low;
	}
	*count = bounds[1] - bounds[0];
	return check->op + bounds[0];
}

static int comes_before(const struct op *first, const struct op *second)
{
	return second->clock[first->event->lane] >= first->tick;
}

static void blame(struct check *check, int ordering, const struct rh_order_event *first, const struct op *second)
{
	if (second->index >= check->found)
		return;
	check->found = second->index;
	check->fault = (struct rh_order_fault){ordering, *first, *second->event};
}

enum need { ANY, ONE_AT_LEAST, THE_FIRST };

/* `second` comes after all operations of a kind on its block in steps [from, to]. */
static void expect_after(struct check *check, int ordering, enum need need, enum rh_order_kind kind, int64_t from, int64_t to,
                         const struct op *second)
{
	int64_t count;
	const struct op *first = find(check, second->event->subject, kind, from, to, &count);
	if (!count && need != ANY)
		blame(check, ordering, &(struct rh_order_event){kind, -1, second->event->subject, to}, second);
	for (int64_t i = 0; i < (need == THE_FIRST && count ? 1 : count); i++)
		if (!comes_before(&first[i], second))
			blame(check, ordering, first[i].event, second);
}

static void check_op(struct check *check, const struct op *op)
{
	int64_t step = op->event->step, block = op->event->subject, before = step - 1 - check->staleness, count;
	switch (op->event->kind) {
	case RH_ORDER_PUBLISH:
		expect_after(check, 1, ANY, RH_ORDER_UPLOAD, 0, step + check->staleness, op);
		expect_after(check, 5, ONE_AT_LEAST, RH_ORDER_UPDATE, step, step, op);
		break;
	case RH_ORDER_UPLOAD:
		if (before >= 0)
			expect_after(check, 2, ONE_AT_LEAST, RH_ORDER_PUBLISH, before, before, op);
		break;
	case RH_ORDER_TAKE:
		expect_after(check, 3, ONE_AT_LEAST, RH_ORDER_DOWNLOAD, step, step, op);
		expect_after(check, 5, ANY, RH_ORDER_UPDATE, step - 1, step - 1, op);
		break;
	case RH_ORDER_DOWNLOAD: {
		const struct op *earlier = find(check, block, RH_ORDER_DOWNLOAD, 0, step - 1, &count);
		if (count) {
			int64_t last = earlier[count - 1].event->step;
			expect_after(check, 4, ONE_AT_LEAST, RH_ORDER_TAKE, last, last, op);
		}
		break;
	}
	case RH_ORDER_UPDATE:
		expect_after(check, 5, THE_FIRST, RH_ORDER_TAKE, step, step, op);
		expect_after(check, 5, ANY, RH_ORDER_PUBLISH, step - 1, step - 1, op);
		break;
	default:
		break;
	}
}

/* A frozen block is only uploaded, and has one version. */
static int is_trained(const struct check *check, int64_t block)
{
	int64_t count = 0;
	for (int kind = RH_ORDER_DOWNLOAD; !count && kind < RH_ORDER_SIGNAL; kind++)
		(void)find(check, block, (enum rh_order_kind)kind, 0, INT64_MAX, &count);
	return count > 0;
}

int rh_order_check(const struct rh_order_event *event, int64_t count, int staleness, struct rh_order_fault *out)
{
	struct check check = {.staleness = staleness, .found = INT64_MAX};
	int rc = prepare(&check, event, count);
	if (!rc) {
		replay(&check, event, count);
		for (int64_t i = 0; i < check.ops; i++)
			if (is_trained(&check, check.op[i].event->subject))
				check_op(&check, &check.op[i]);
	}
	rh_free(check.lane);
	rh_free(check.token);
	rh_free(check.clock);
	rh_free(check.op);
	*out = check.fault;
	return rc;
}

void rh_order_describe(const struct rh_order_fault *fault, char *text, size_t bytes)
{
	static const char *const names[] = {"UPLOAD", "DOWNLOAD", "TAKE", "UPDATE", "PUBLISH", "SIGNAL", "WAIT"};
	const struct rh_order_event *a = &fault->first, *b = &fault->second;
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

struct rh_order_log {
	pthread_mutex_t lock;
	int64_t capacity, count, forgotten; /* protected by lock */
	struct rh_order_event *event;       /* likewise */
};

int rh_order_log_create(int64_t capacity, struct rh_order_log **out)
{
	RH_ASSERT(capacity > 0);
	struct rh_order_log *log = rh_alloc(1, sizeof *log);
	if (!log)
		return -ENOMEM;
	log->event = rh_alloc((size_t)capacity, sizeof *log->event);
	if (!log->event) {
		rh_free(log);
		return -ENOMEM;
	}
	log->capacity = capacity;
	pthread_mutex_init(&log->lock, NULL);
	*out = log;
	return 0;
}

void rh_order_log_destroy(struct rh_order_log *log)
{
	if (!log)
		return;
	pthread_mutex_destroy(&log->lock);
	rh_free(log->event);
	rh_free(log);
}

void rh_order_log_add(struct rh_order_log *log, enum rh_order_kind kind, int lane, int64_t what, int64_t step)
{
	if (!log)
		return;
	pthread_mutex_lock(&log->lock);
	if (log->count < log->capacity)
		log->event[log->count++] = (struct rh_order_event){kind, lane, what, step};
	else
		log->forgotten++;
	pthread_mutex_unlock(&log->lock);
}

const struct rh_order_event *rh_order_log_events(struct rh_order_log *log, int64_t *count, int64_t *forgotten)
{
	pthread_mutex_lock(&log->lock);
	*count = log->count;
	*forgotten = log->forgotten;
	pthread_mutex_unlock(&log->lock);
	return log->event;
}
