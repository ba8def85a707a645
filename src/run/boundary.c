#include "run/boundary.h"

#include "core/alloc.h"

#include <string.h>

int rh_boundary_readers(const struct rh_plan *plan, int trains, int layer)
{
	int readers = 0;
	for (int i = 0; i < plan->forward_stages; i++)
		readers += plan->forward[i].lo == layer;
	for (int i = 0; i < (trains ? plan->backward_stages : 1); i++)
		readers += plan->backward[i].lo == layer;
	return layer ? readers : 0;
}

static int *slot_of(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch)
{
	RH_ASSERT(micro_batch >= 0 && micro_batch < boundaries->micro_batches);
	return &boundaries->where[kind][layer * boundaries->micro_batches + micro_batch];
}

struct rh_boundary_buffer *rh_boundary_acquire(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch,
                                               int readers)
{
	int *where = slot_of(boundaries, kind, layer, micro_batch);
	RH_ASSERT(*where < 0 && readers > 0 && boundaries->free_count > 0);
	*where = boundaries->queue[boundaries->head];
	boundaries->head = (boundaries->head + 1) % boundaries->count;
	if (--boundaries->free_count < boundaries->least_free)
		boundaries->least_free = boundaries->free_count;
	boundaries->buffer[*where].readers = readers;
	return &boundaries->buffer[*where];
}

struct rh_boundary_buffer *rh_boundary_find(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch)
{
	int where = *slot_of(boundaries, kind, layer, micro_batch);
	RH_ASSERT(where >= 0);
	return &boundaries->buffer[where];
}

void rh_boundary_release(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch)
{
	int *where = slot_of(boundaries, kind, layer, micro_batch);
	RH_ASSERT(*where >= 0 && boundaries->buffer[*where].readers > 0);
	if (--boundaries->buffer[*where].readers)
		return;
	boundaries->queue[(boundaries->head + boundaries->free_count++) % boundaries->count] = *where;
	*where = -1;
}

int rh_boundaries_create(int count, int layers, int64_t micro_batches, int64_t bytes_each, struct rh_arena *memory,
                         struct rh_device *const *device, int devices, struct rh_boundaries *out)
{
	*out = (struct rh_boundaries){.count = count, .free_count = count, .least_free = count, .micro_batches = micro_batches};
	size_t places = (size_t)((layers + 1) * micro_batches);
	out->buffer = rh_alloc((size_t)count, sizeof *out->buffer);
	out->queue = rh_alloc((size_t)count, sizeof *out->queue);
	for (int k = 0; k < RH_BOUNDARY_KINDS; k++)
		if ((out->where[k] = rh_alloc(places, sizeof *out->where[k])))
			memset(out->where[k], -1, places * sizeof *out->where[k]);
	int rc = out->buffer && out->queue && out->where[0] && out->where[1] ? 0 : -ENOMEM;
	for (int i = 0; !rc && i < count; i++) {
		struct rh_boundary_buffer *buffer = &out->buffer[i];
		out->queue[i] = i;
		buffer->written_by = -1;
		if (!memory)
			continue;
		buffer->memory = rh_arena_take(memory, bytes_each);
		buffer->written = rh_alloc((size_t)devices, sizeof *buffer->written);
		buffer->read = rh_alloc((size_t)devices, sizeof *buffer->read);
		rc = buffer->written && buffer->read ? 0 : -ENOMEM;
		for (int d = 0; !rc && d < devices; d++) {
			rc = device[d]->ops->event_create(device[d], &buffer->written[d]);
			if (!rc)
				rc = device[d]->ops->event_create(device[d], &buffer->read[d]);
		}
	}
	if (rc)
		rh_boundaries_destroy(out, devices);
	return rc;
}

static void destroy_events(struct rh_event **event, int count)
{
	for (int i = 0; event && i < count; i++)
		if (event[i])
			event[i]->ops->event_destroy(event[i]);
	rh_free(event);
}

void rh_boundaries_destroy(struct rh_boundaries *boundaries, int devices)
{
	for (int i = 0; boundaries->buffer && i < boundaries->count; i++) {
		destroy_events(boundaries->buffer[i].written, devices);
		destroy_events(boundaries->buffer[i].read, devices);
	}
	rh_free(boundaries->buffer);
	rh_free(boundaries->queue);
	for (int k = 0; k < RH_BOUNDARY_KINDS; k++)
		rh_free(boundaries->where[k]);
	*boundaries = (struct rh_boundaries){0};
}

/* Books one slot as the executor does: for each micro-batch outputs first, then inputs are given back. */
static void walk_slot(struct rh_boundaries *books, const int *reads, const struct rh_slot *slot, int layers, int first_trained)
{
	for (int64_t m = slot->first; m < slot->first + slot->count; m++) {
		if (slot->kind == RH_SLOT_FORWARD)
			for (int l = slot->lo + 1; l <= slot->hi; l++) {
				if (reads[l])
					rh_boundary_acquire(books, RH_BOUNDARY_ACTIVATION, l, m, reads[l]);
			}
		else if (slot->kind == RH_SLOT_WEIGHT_GRADIENT)
			continue;
		else if (slot->kind != RH_SLOT_INFER && slot->lo > first_trained)
			rh_boundary_acquire(books, RH_BOUNDARY_GRADIENT, slot->lo, m, 1);
		if (slot->lo > 0)
			rh_boundary_release(books, RH_BOUNDARY_ACTIVATION, slot->lo, m);
		if (slot->kind == RH_SLOT_BACKWARD || (slot->kind == RH_SLOT_INPUT_GRADIENT && slot->hi < layers))
			rh_boundary_release(books, RH_BOUNDARY_GRADIENT, slot->hi, m);
	}
}

int rh_boundaries_needed(const struct rh_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches, int *out)
{
	struct rh_boundaries books;
	int trains = 0, most = 0, lowest = layers;
	for (size_t i = 0; i < program->slots; i++) {
		enum rh_slot_kind kind = program->slot[i].kind;
		int backward = kind == RH_SLOT_BACKWARD || kind == RH_SLOT_FUSED || kind == RH_SLOT_INPUT_GRADIENT;
		trains |= backward;
		if (backward)
			lowest = program->slot[i].lo < lowest ? program->slot[i].lo : lowest;
	}
	int *readers = rh_alloc((size_t)layers + 1, sizeof *readers);
	if (!readers)
		return -ENOMEM;
	for (int l = 1; l <= layers; l++)
		readers[l] = rh_boundary_readers(plan, trains, l);
	for (int l = 1; l < layers; l++)
		most += readers[l] > 0;
	most = (int)((most + plan->backward_stages + 2) * micro_batches);
	int rc = rh_boundaries_create(most, layers, micro_batches, 0, NULL, NULL, 0, &books);
	for (size_t i = 0; !rc && i < program->slots; i++)
		walk_slot(&books, readers, &program->slot[i], layers, lowest);
	*out = books.count - books.least_free;
	rh_boundaries_destroy(&books, 0);
	rh_free(readers);
	return rc;
}
