#include "weights/write_ring.h"

#include "core/minmax.h"

#include <string.h>

/* Before the bytes of each put. */
struct entry {
	rh_write_ring_sink *write;
	void *file;
	int64_t length;
};

static void copy_in(struct rh_write_ring *ring, const void *bytes, int64_t length)
{
	int64_t at = (ring->first + ring->used) % ring->size, before_end = rh_min(length, ring->size - at);
	memcpy(ring->bytes + at, bytes, (size_t)before_end);
	memcpy(ring->bytes, (const char *)bytes + before_end, (size_t)(length - before_end));
	ring->used += length;
}

/* The longest run of the first `length` bytes that does not go around the end. */
static int64_t run_of(const struct rh_write_ring *ring, int64_t length)
{
	return rh_min(length, ring->size - ring->first);
}

static void take_out(struct rh_write_ring *ring, int64_t length)
{
	ring->first = (ring->first + length) % ring->size;
	ring->used -= length;
}

static struct entry next_entry(struct rh_write_ring *ring)
{
	struct entry entry;
	int64_t size = sizeof entry, run = run_of(ring, size);
	memcpy(&entry, ring->bytes + ring->first, (size_t)run);
	memcpy((char *)&entry + run, ring->bytes, (size_t)(size - run));
	take_out(ring, size);
	return entry;
}

/* The oldest put's bytes. */
static int write_oldest(struct rh_write_ring *ring)
{
	struct entry entry = next_entry(ring);
	while (entry.length) {
		int64_t run = run_of(ring, entry.length);
		int rc = entry.write(entry.file, ring->bytes + ring->first, run);
		if (rc)
			return rc;
		take_out(ring, run);
		entry.length -= run;
	}
	return 0;
}

int rh_write_ring_put(struct rh_write_ring *ring, rh_write_ring_sink *write, void *file, const void *bytes, int64_t length)
{
	const struct entry entry = {write, file, length};
	int64_t taken = (int64_t)sizeof entry + length;
	for (;;) {
		if (taken <= ring->size - ring->used && ring->is_awaited && ring->is_awaited(ring->context)) {
			copy_in(ring, &entry, sizeof entry);
			copy_in(ring, bytes, length);
			return 0;
		}
		if (!ring->used)
			return write(file, bytes, length);
		int rc = write_oldest(ring);
		if (rc)
			return rc;
	}
}

int rh_write_ring_drain(struct rh_write_ring *ring)
{
	int rc = 0;
	while (!rc && ring->used)
		rc = write_oldest(ring);
	return rc;
}

void rh_write_ring_clear(struct rh_write_ring *ring)
{
	ring->used = ring->first = 0;
}
