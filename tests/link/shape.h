/* One direction of a line: what is put on it takes the line for its length, and arrives a latency later, in order. */
#ifndef RH_TESTS_LINK_SHAPE_H
#define RH_TESTS_LINK_SHAPE_H

#include "check.h"

#include "core/minmax.h"

#include <math.h>
#include <string.h>
#include <time.h>

struct shape {
	double latency_ms, jitter_ms; /* jitter is added to the latency, evenly from 0 on */
	double mbit;                  /* a second; 0: without bound */
	double lost;                  /* share of the packets; a relay of byte streams loses none */
};

struct shape_piece {
	struct shape_piece *next;
	int64_t due_ns;
	size_t size, sent;
	char bytes[];
};

struct shape_queue {
	struct shape shape;
	uint64_t seed;
	struct shape_piece *first, **end;
	int64_t free_ns, last_due_ns; /* when the line is free again; when the latest piece arrives */
	size_t bytes;                 /* queued */
};

static inline int64_t shape_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static inline double shape_draw(uint64_t *seed)
{
	return (double)check_random(seed) / 4294967296.0;
}

static inline void shape_open(struct shape_queue *queue, const struct shape *shape, uint64_t seed)
{
	*queue = (struct shape_queue){.shape = *shape, .seed = seed | 1};
	queue->end = &queue->first;
}

/* Bytes that the line takes before it makes its sender wait, or loses packets: what fills it, and a router's buffer behind it that holds
 * three times as much (one and a half round trips), of 256 KiB together at least. */
static inline size_t shape_room(const struct shape_queue *queue)
{
	const struct shape *shape = &queue->shape;
	double fills = shape->mbit * 125 * (shape->latency_ms + shape->jitter_ms);
	return shape->mbit > 0 ? (size_t)fmax(4 * fills, 256 << 10) : 4 << 20;
}

static inline void shape_put(struct shape_queue *queue, const void *bytes, size_t size)
{
	const struct shape *shape = &queue->shape;
	if (shape->lost > 0 && shape_draw(&queue->seed) < shape->lost)
		return;
	struct shape_piece *piece = malloc(sizeof *piece + size);
	assert_non_null(piece);
	queue->free_ns = rh_max(queue->free_ns, shape_now());
	if (shape->mbit > 0)
		queue->free_ns += (int64_t)((double)size * 8e3 / shape->mbit);
	double wait_ms = shape->latency_ms + (shape->jitter_ms > 0 ? shape_draw(&queue->seed) * shape->jitter_ms : 0);
	queue->last_due_ns = rh_max(queue->last_due_ns, queue->free_ns + (int64_t)(wait_ms * 1e6));
	*piece = (struct shape_piece){.due_ns = queue->last_due_ns, .size = size};
	memcpy(piece->bytes, bytes, size);
	*queue->end = piece;
	queue->end = &piece->next;
	queue->bytes += size;
}

/* The next piece, if it has arrived by now. */
static inline struct shape_piece *shape_due(const struct shape_queue *queue, int64_t now_ns)
{
	return queue->first && queue->first->due_ns <= now_ns ? queue->first : NULL;
}

static inline void shape_drop(struct shape_queue *queue)
{
	struct shape_piece *piece = queue->first;
	queue->first = piece->next;
	if (!queue->first)
		queue->end = &queue->first;
	queue->bytes -= piece->size;
	free(piece);
}

static inline void shape_close(struct shape_queue *queue)
{
	while (queue->first)
		shape_drop(queue);
}

/* How long a poll may wait for the two queues' next pieces, `most_ms` at most. What was due at seen_ns, when the caller looked, waits for
 * its receiver; what has become due since is waited for no longer. */
static inline struct timespec shape_wait(const struct shape_queue queue[2], int64_t seen_ns, double most_ms)
{
	int64_t now_ns = shape_now(), until_ns = now_ns + (int64_t)(most_ms * 1e6);
	for (int i = 0; i < 2; i++)
		if (queue[i].first && queue[i].first->due_ns > seen_ns)
			until_ns = rh_min(until_ns, queue[i].first->due_ns);
	int64_t wait_ns = rh_max(until_ns - now_ns, 0);
	return (struct timespec){.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
}

#endif
