#include "run/boundary.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <limits.h>
#include <string.h>

int rh_boundary_readers(const struct rh_plan *plan, int trains, int layer)
{
	int readers = 0;
	for (int i = 0; i < plan->forward_stages; i++)
		readers += plan->forward[i].lo == layer;
	for (int i = 0; i < rh_plan_backward_stages(plan, trains); i++)
		readers += plan->backward[i].lo == layer;
	if (!layer && !plan->is_fed)
		return 0;
	return readers + rh_plan_gives(plan, layer); /* the box above */
}

static int *place_of(const struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch)
{
	RH_ASSERT(micro_batch >= 0 && micro_batch < boundaries->micro_batches);
	return &boundaries->where[kind][layer * boundaries->micro_batches + micro_batch];
}

struct rh_boundary_buffer *rh_boundary_acquire(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch,
                                               int readers)
{
	int *where = place_of(boundaries, kind, layer, micro_batch);
	RH_ASSERT(*where < 0 && readers > 0 && boundaries->free_count > 0);
	*where = boundaries->queue[boundaries->head];
	boundaries->head = (boundaries->head + 1) % boundaries->count;
	if (--boundaries->free_count < boundaries->least_free)
		boundaries->least_free = boundaries->free_count;
	boundaries->buffer[*where].readers = readers;
	boundaries->buffer[*where].slot = -1;
	return &boundaries->buffer[*where];
}

struct rh_boundary_buffer *rh_boundary_find(const struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer,
                                            int64_t micro_batch)
{
	int where = *place_of(boundaries, kind, layer, micro_batch);
	RH_ASSERT(where >= 0);
	return &boundaries->buffer[where];
}

void rh_boundary_release(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch)
{
	int *where = place_of(boundaries, kind, layer, micro_batch);
	RH_ASSERT(*where >= 0 && boundaries->buffer[*where].readers > 0);
	if (--boundaries->buffer[*where].readers)
		return;
	boundaries->queue[(boundaries->head + boundaries->free_count++) % boundaries->count] = *where;
	*where = -1;
}

int rh_boundaries_create(const struct rh_boundaries_options *options, struct rh_boundaries *out)
{
	int count = options->count;
	*out = (struct rh_boundaries){.count = count,
	                              .free_count = count,
	                              .least_free = count,
	                              .bytes_each = options->bytes_each,
	                              .micro_batches = options->micro_batches};
	size_t places = (size_t)((options->layers + 1) * options->micro_batches);
	out->buffer = rh_alloc((size_t)count, sizeof *out->buffer);
	out->queue = rh_alloc((size_t)count, sizeof *out->queue);
	for (int k = 0; k < RH_BOUNDARY_KINDS; k++)
		if ((out->where[k] = rh_alloc(places, sizeof *out->where[k])))
			memset(out->where[k], -1, places * sizeof *out->where[k]);
	int rc = out->buffer && out->queue && out->where[0] && out->where[1] ? 0 : -ENOMEM;
	for (int i = 0; !rc && i < count; i++) {
		out->queue[i] = i;
		if (options->memory)
			out->buffer[i].memory = rh_arena_take(options->memory, options->bytes_each);
	}
	if (rc)
		rh_boundaries_destroy(out);
	return rc;
}

void rh_boundaries_destroy(struct rh_boundaries *boundaries)
{
	rh_free(boundaries->buffer);
	rh_free(boundaries->queue);
	for (int k = 0; k < RH_BOUNDARY_KINDS; k++)
		rh_free(boundaries->where[k]);
	*boundaries = (struct rh_boundaries){0};
}

/* What the walk knows of the whole program. */
struct program_facts {
	int trains, lowest; /* lowest layer of a backward */
	int *readers;       /* (layers + 1) of each boundary */
};

/* rh_boundary_readers of all layers. */
static void count_readers(const struct rh_plan *plan, int trains, int *readers)
{
	for (int i = 0; i < plan->forward_stages; i++)
		readers[plan->forward[i].lo]++;
	for (int i = 0; i < rh_plan_backward_stages(plan, trains); i++)
		readers[plan->backward[i].lo]++;
	if (!plan->is_fed)
		readers[0] = 0;
	for (int l = 1; l <= rh_plan_top(plan); l++)
		readers[l] += rh_plan_gives(plan, l);
}

/* Its readers are the caller's to free. */
static int find_facts(const struct rh_boundary_walk *walk, struct program_facts *out)
{
	*out = (struct program_facts){.lowest = walk->plan->owes_gradient ? -1 : walk->layers,
	                              .readers = rh_alloc((size_t)walk->layers + 1, sizeof *out->readers)};
	if (!out->readers)
		return -ENOMEM;
	for (size_t i = 0; i < walk->program->slots; i++) {
		const struct rh_slot *slot = &walk->program->slot[i];
		if (slot->kind != RH_SLOT_BACKWARD && slot->kind != RH_SLOT_FUSED && slot->kind != RH_SLOT_INPUT_GRADIENT)
			continue;
		out->trains = 1;
		out->lowest = slot->lo < out->lowest ? slot->lo : out->lowest;
	}
	count_readers(walk->plan, out->trains, out->readers);
	return 0;
}

static int access(const struct rh_boundary_walk *walk, struct rh_boundary_access access, enum rh_boundary_verb verb,
                  enum rh_boundary_kind kind, int layer)
{
	access.verb = verb;
	access.kind = kind;
	access.layer = layer;
	return walk->access(walk->context, &access);
}

static int walk_outputs(const struct rh_boundary_walk *walk, const struct program_facts *facts, const struct rh_slot *slot,
                        struct rh_boundary_access at)
{
	int rc = 0;
	for (int l = slot->lo + 1; !rc && slot->kind == RH_SLOT_FORWARD && l <= slot->hi; l++) {
		if ((at.readers = facts->readers[l]))
			rc = access(walk, at, RH_BOUNDARY_WRITE, RH_BOUNDARY_ACTIVATION, l);
		if (!rc && rh_plan_gives(walk->plan, l)) /* to another box */
			rc = access(walk, at, RH_BOUNDARY_RELEASE, RH_BOUNDARY_ACTIVATION, l);
	}
	at.readers = 1;
	if (!rc && slot->kind != RH_SLOT_FORWARD && slot->kind != RH_SLOT_INFER && slot->lo > facts->lowest)
		rc = access(walk, at, RH_BOUNDARY_WRITE, RH_BOUNDARY_GRADIENT, slot->lo);
	if (!rc && rh_slot_gives_gradient(walk->plan, slot))
		rc = access(walk, at, RH_BOUNDARY_RELEASE, RH_BOUNDARY_GRADIENT, 0);
	return rc;
}

/* What comes from another box is written as the first slot begins that reads it. */
static int walk_arrivals(const struct rh_boundary_walk *walk, const struct program_facts *facts, const struct rh_slot *slot,
                         struct rh_boundary_access at)
{
	int rc = 0;
	at.readers = facts->readers[0];
	if (rh_slot_takes_input(walk->plan, slot))
		rc = access(walk, at, RH_BOUNDARY_WRITE, RH_BOUNDARY_ACTIVATION, 0);
	at.readers = 1;
	if (!rc && rh_slot_takes_gradient(walk->plan, slot))
		rc = access(walk, at, RH_BOUNDARY_WRITE, RH_BOUNDARY_GRADIENT, slot->hi);
	return rc;
}

/* One slot as the executor does it: for each micro-batch inputs are read, outputs written, then inputs given back. */
static int walk_slot(const struct rh_boundary_walk *walk, const struct program_facts *facts, const struct rh_slot *slot)
{
	struct rh_boundary_access at = {.step = slot->step, .slot = (size_t)(slot - walk->program->slot)};
	int from_above = rh_slot_reads_gradient(walk->plan, slot), reads = slot->lo > 0 || walk->plan->is_fed, rc = 0;
	if (slot->kind == RH_SLOT_WEIGHT_GRADIENT)
		return 0;
	for (int64_t m = slot->first; !rc && m < slot->first + slot->count; m++) {
		at.micro_batch = m + slot->step % walk->steps_held * walk->step_micro_batches;
		rc = walk_arrivals(walk, facts, slot, at);
		if (!rc && reads)
			rc = access(walk, at, RH_BOUNDARY_READ, RH_BOUNDARY_ACTIVATION, slot->lo);
		if (!rc && from_above)
			rc = access(walk, at, RH_BOUNDARY_READ, RH_BOUNDARY_GRADIENT, slot->hi);
		rc = rc ? rc : walk_outputs(walk, facts, slot, at);
		if (!rc && reads)
			rc = access(walk, at, RH_BOUNDARY_RELEASE, RH_BOUNDARY_ACTIVATION, slot->lo);
		if (!rc && from_above)
			rc = access(walk, at, RH_BOUNDARY_RELEASE, RH_BOUNDARY_GRADIENT, slot->hi);
	}
	return rc;
}

static int walk_all(const struct rh_boundary_walk *walk, const struct program_facts *facts)
{
	int rc = 0;
	for (size_t i = 0; !rc && i < walk->program->slots; i++)
		rc = walk_slot(walk, facts, &walk->program->slot[i]);
	return rc;
}

int rh_boundary_walk(const struct rh_boundary_walk *walk)
{
	struct program_facts facts;
	int rc = find_facts(walk, &facts);
	rc = rc ? rc : walk_all(walk, &facts);
	rh_free(facts.readers);
	return rc;
}

static int book(void *context, const struct rh_boundary_access *access)
{
	struct rh_boundaries *books = context;
	if (access->verb == RH_BOUNDARY_WRITE)
		(void)rh_boundary_acquire(books, access->kind, access->layer, access->micro_batch, access->readers);
	if (access->verb == RH_BOUNDARY_RELEASE)
		rh_boundary_release(books, access->kind, access->layer, access->micro_batch);
	return 0;
}

/* Books alone, for a program of so many micro-batches. */
static int open_books(const struct rh_boundary_walk *walk, const struct program_facts *facts, int64_t micro_batches,
                      struct rh_boundaries *books)
{
	int most = walk->plan->backward_stages + 2;
	for (int l = 0; l <= walk->layers; l++)
		most += facts->readers[l] > 0;
	const struct rh_boundaries_options options = {
	        .count = (int)(most * micro_batches), .layers = walk->layers, .micro_batches = micro_batches};
	return rh_boundaries_create(&options, books);
}

int rh_boundaries_needed(const struct rh_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches, int *out)
{
	struct rh_boundaries books = {0};
	struct rh_boundary_walk walk = {
	        .plan = plan, .layers = layers, .program = program, .steps_held = 1, .access = book, .context = &books};
	struct program_facts facts;
	int rc = find_facts(&walk, &facts);
	rc = rc ? rc : open_books(&walk, &facts, micro_batches, &books);
	rc = rc ? rc : walk_all(&walk, &facts);
	*out = books.count - books.least_free;
	rh_boundaries_destroy(&books);
	rh_free(facts.readers);
	return rc;
}

int rh_boundaries_needed_in_round(const struct rh_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches, int *out)
{
	struct rh_boundaries books = {0};
	struct rh_boundary_walk walk = {
	        .plan = plan, .layers = layers, .program = program, .steps_held = 1, .access = book, .context = &books};
	struct program_facts facts;
	int64_t held = 0, most = 0;
	int rc = find_facts(&walk, &facts);
	rc = rc ? rc : open_books(&walk, &facts, 1, &books);
	for (size_t i = 0; !rc && i < program->slots; i++) {
		int64_t before = books.count - books.free_count;
		RH_ASSERT(program->slot[i].count == 1);
		books.least_free = books.free_count;
		rc = walk_slot(&walk, &facts, &program->slot[i]);
		int64_t each = books.count - books.free_count - before, meanwhile = books.count - books.least_free - before;
		most = rh_max(most, held + meanwhile + rh_bytes_times(rh_max(each, 0), micro_batches - 1));
		held += each * micro_batches;
	}
	*out = (int)rh_min(most, INT_MAX / 4);
	rh_boundaries_destroy(&books);
	rh_free(facts.readers);
	return rc;
}
