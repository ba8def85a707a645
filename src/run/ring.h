/* The commands in flight: those that have been lowered and are not over. They lie in chunks. A chunk is used again when all of its commands
 * are over, so memory is bounded by the commands in flight, however long a step is. A position that is not here is that of a command that
 * is over. */
#ifndef RH_RUN_RING_H
#define RH_RUN_RING_H

#include "run/lane.h"

#include <stddef.h>

enum { RING_CHUNK = 32, RING_NEVER = 0 /* a position that no command has */ };

struct ring_command {
	struct rh_command lowered; /* first: ring_of */
	struct ring_command *next; /* in its lane, or of a struct ring_queue */
	int64_t sequence;          /* 0: not issued; then its number on the stream; off streams 1 */
	int waiter;                /* a lane whose head it blocks, -1: none. The others follow by next_waiter of struct dispatch_lane */
	signed char index;         /* of its step among those in flight; DISPATCH_AHEAD (dispatcher.h) */
	char is_wanted;            /* another command waits for it */
	char is_asked;             /* a command that is on no stream waits for it */
	char is_over;
};

struct ring_chunk {
	int64_t number; /* of positions from number * RING_CHUNK on */
	int left;       /* commands that are not over, or not lowered yet */
	int waits;
	uint32_t *wait; /* how many positions before its own a command waits for */
	size_t wait_capacity;
	struct ring_chunk *next_unused, *next_made;
	struct ring_command command[RING_CHUNK];
};

struct run_ring {
	struct ring_chunk **chunk; /* by number mod chunks, a power of two; NULL: over */
	size_t chunks;
	struct ring_chunk *unused, *made;
	int64_t end; /* position of the next command; the first has RING_CHUNK */
	int keeps;   /* for a recording: no command is ever over */
};

static inline struct ring_chunk *ring_chunk_of(const struct run_ring *ring, int64_t position)
{
	struct ring_chunk *chunk = ring->chunk[(size_t)(position / RING_CHUNK) & (ring->chunks - 1)];
	return chunk && chunk->number == position / RING_CHUNK ? chunk : NULL;
}

/* NULL: it is over, or there is none. */
static inline struct ring_command *ring_find(const struct run_ring *ring, int64_t position)
{
	struct ring_chunk *chunk = ring_chunk_of(ring, position);
	struct ring_command *command = chunk ? &chunk->command[position % RING_CHUNK] : NULL;
	return command && !command->is_over ? command : NULL;
}

/* Wait number i of a command of the ring; NULL: it is over. */
static inline struct ring_command *ring_wait(const struct run_ring *ring, const struct rh_command *command, int i)
{
	return ring_find(ring, command->position - ring_chunk_of(ring, command->position)->wait[command->first_wait + i]);
}

/* Of a command of the ring. */
static inline struct ring_command *ring_of(const struct rh_command *command)
{
	return (struct ring_command *)(uintptr_t)command;
}

/* Commands that were taken from their lanes, in order. */
struct ring_queue {
	struct ring_command *oldest, *latest;
};
static inline void ring_push(struct ring_queue *queue, struct ring_command *command)
{
	command->next = NULL;
	*(queue->oldest ? &queue->latest->next : &queue->oldest) = command;
	queue->latest = command;
}
static inline struct ring_command *ring_pop(struct ring_queue *queue)
{
	struct ring_command *command = queue->oldest;
	queue->oldest = command->next;
	return command;
}

int ring_create(struct run_ring *out) RH_MUST;
void ring_destroy(struct run_ring *ring);
/* Adds a command at the next position, with these waits. The dispatcher sets its index. -ENOMEM. */
int ring_add(struct run_ring *ring, const struct rh_command *command, const struct rh_waits *waits) RH_MUST;
/* The command is over: nobody need wait for it any more. */
void ring_end(struct run_ring *ring, struct ring_command *command);

#endif
