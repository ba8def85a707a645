/* Chunks of commands in flight: made when none is free, used again when all of a chunk's commands are over. */
#include "run/ring.h"

#include "core/alloc.h"

enum { CHUNKS = 256, WAITS = 2 * RING_CHUNK };

int ring_create(struct run_ring *out)
{
	*out = (struct run_ring){.chunks = CHUNKS, .end = RING_CHUNK};
	out->chunk = rh_alloc(out->chunks, sizeof(struct ring_chunk *));
	return out->chunk ? 0 : -ENOMEM;
}

void ring_destroy(struct run_ring *ring)
{
	for (struct ring_chunk *chunk = ring->made, *next; chunk; chunk = next) {
		next = chunk->next_made;
		rh_free(chunk->wait);
		rh_free(chunk);
	}
	rh_free(ring->chunk);
	*ring = (struct run_ring){0};
}

/* Doubles the table: the next chunk's place is taken by one that is still in use. */
static int double_table(struct run_ring *ring)
{
	struct ring_chunk **wider = rh_alloc(2 * ring->chunks, sizeof(struct ring_chunk *));
	if (!wider)
		return -ENOMEM;
	for (size_t i = 0; i < ring->chunks; i++)
		if (ring->chunk[i])
			wider[(size_t)ring->chunk[i]->number & (2 * ring->chunks - 1)] = ring->chunk[i];
	rh_free(ring->chunk);
	ring->chunk = wider;
	ring->chunks *= 2;
	return 0;
}

static struct ring_chunk *make_chunk(struct run_ring *ring)
{
	struct ring_chunk *chunk = rh_alloc(1, sizeof *chunk);
	if (!chunk || rh_grow(&chunk->wait, &chunk->wait_capacity, WAITS, sizeof *chunk->wait)) {
		rh_free(chunk);
		return NULL;
	}
	chunk->next_made = ring->made;
	ring->made = chunk;
	return chunk;
}

static int begin_chunk(struct run_ring *ring, int64_t number)
{
	int rc = 0;
	while (!rc && ring->chunk[(size_t)number & (ring->chunks - 1)])
		rc = double_table(ring);
	if (rc)
		return rc;
	struct ring_chunk *chunk = ring->unused;
	if (chunk)
		ring->unused = chunk->next_unused;
	else
		chunk = make_chunk(ring);
	if (!chunk)
		return -ENOMEM;
	chunk->number = number;
	chunk->left = RING_CHUNK;
	chunk->waits = 0;
	ring->chunk[(size_t)number & (ring->chunks - 1)] = chunk;
	return 0;
}

static void set_waits(struct ring_chunk *chunk, struct rh_command *command, const struct rh_waits *waits)
{
	command->first_wait = chunk->waits;
	command->waits = rh_int16(waits->count);
	command->paces = rh_int16(waits->paces);
	for (int i = 0; i < waits->count; i++) {
		int64_t back = command->position - waits->wait[i].position;
		RH_ASSERT(back > 0 && back <= UINT32_MAX);
		chunk->wait[chunk->waits++] = (uint32_t)back;
	}
}

int ring_add(struct run_ring *ring, const struct rh_command *command, const struct rh_waits *waits)
{
	int64_t position = ring->end;
	int rc = position % RING_CHUNK ? 0 : begin_chunk(ring, position / RING_CHUNK);
	struct ring_chunk *chunk = rc ? NULL : ring_chunk_of(ring, position);
	if (chunk && (size_t)(chunk->waits + waits->count) > chunk->wait_capacity)
		rc = rh_grow(&chunk->wait, &chunk->wait_capacity, (size_t)(chunk->waits + waits->count), sizeof *chunk->wait);
	if (rc)
		return rc;
	struct ring_command *added = &chunk->command[position % RING_CHUNK];
	added->lowered = *command;
	added->lowered.position = ring->end++;
	added->next = NULL;
	added->sequence = 0;
	added->waiter = -1;
	added->is_wanted = added->is_asked = added->is_over = 0;
	set_waits(chunk, &added->lowered, waits);
	return 0;
}

void ring_end(struct run_ring *ring, struct ring_command *command)
{
	struct ring_chunk *chunk = ring_chunk_of(ring, command->lowered.position);
	RH_ASSERT(chunk && !command->is_over);
	if (ring->keeps)
		return;
	command->is_over = 1;
	if (--chunk->left)
		return;
	ring->chunk[(size_t)chunk->number & (ring->chunks - 1)] = NULL;
	chunk->next_unused = ring->unused;
	ring->unused = chunk;
}
