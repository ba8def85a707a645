#include "schedule/boundary.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <limits.h>
#include <string.h>

int rh_boundary_narrow_readers(const struct rh_stage_plan *plan, int trains, int layer)
{
	int readers = 0;
	for (int i = 1; trains && rh_stage_plan_narrows(plan, layer) && i < plan->backward_stages; i++)
		readers += plan->backward[i].lo == layer;
	return readers;
}

enum rh_boundary_kind rh_boundary_input(const struct rh_stage_plan *plan, const struct rh_slot *slot)
{
	int is_backward = rh_slot_makes_gradients(slot) && slot->kind != RH_SLOT_FUSED;
	return is_backward && rh_stage_plan_narrows(plan, slot->lo) ? RH_BOUNDARY_NARROW : RH_BOUNDARY_ACTIVATION;
}

int rh_boundary_readers(const struct rh_stage_plan *plan, int trains, int layer)
{
	int readers = -rh_boundary_narrow_readers(plan, trains, layer);
	for (int i = 0; i < plan->forward_stages; i++)
		readers += plan->forward[i].lo == layer;
	for (int i = 0; i < rh_stage_plan_backward_stages(plan, trains); i++)
		readers += plan->backward[i].lo == layer;
	if (!layer && !plan->is_fed)
		return 0;
	return readers + rh_stage_plan_gives(plan, layer); /* the box above */
}

static int *place_of(const struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch)
{
	RH_ASSERT(micro_batch >= 0 && micro_batch < boundaries->micro_batches);
	return &boundaries->buffer[kind][layer * boundaries->micro_batches + micro_batch];
}

struct rh_boundary_want rh_boundary_want(const struct rh_boundaries *boundaries, const struct rh_stage_plan *plan, int trains,
                                         enum rh_boundary_kind kind, int layer)
{
	int is_activation = kind == RH_BOUNDARY_ACTIVATION, readers = is_activation ? rh_boundary_readers(plan, trains, layer) : 1;
	int leaves = is_activation ? rh_stage_plan_gives(plan, layer) : plan->owes_gradient && !layer;
	enum rh_boundary_pool pool = is_activation ? RH_BOUNDARY_TO_ABOVE : RH_BOUNDARY_TO_BELOW;
	if (kind == RH_BOUNDARY_NARROW)
		return (struct rh_boundary_want){.pool = RH_BOUNDARY_NARROWS, .readers = 1};
	int has_own = leaves && readers == 1 && boundaries->pool[pool].count;
	return (struct rh_boundary_want){.pool = has_own ? pool : RH_BOUNDARY_OWN, .readers = readers};
}

int rh_boundary_acquire(struct rh_boundaries *boundaries, struct rh_boundary_want want, enum rh_boundary_kind kind, int layer,
                        int64_t micro_batch)
{
	struct rh_boundary_buffers *from = &boundaries->pool[want.pool];
	int *where = place_of(boundaries, kind, layer, micro_batch);
	RH_ASSERT(*where < 0 && want.readers > 0 && from->free_count > 0);
	from->free_count--;
	*where = from->queue[(from->head + (want.is_latest ? from->free_count : 0)) % from->count];
	from->head = (from->head + !want.is_latest) % from->count;
	if (from->free_count < from->least_free)
		from->least_free = from->free_count;
	boundaries->readers[*where] = want.readers;
	return *where;
}

int rh_boundary_find(const struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch)
{
	int where = *place_of(boundaries, kind, layer, micro_batch);
	RH_ASSERT(where >= 0);
	return where;
}

static void give_back(struct rh_boundaries *boundaries, int buffer)
{
	struct rh_boundary_buffers *to = &boundaries->pool[0];
	while (buffer >= to->first + to->count)
		to++;
	to->queue[(to->head + to->free_count++) % to->count] = buffer;
}

int rh_boundary_release(struct rh_boundaries *boundaries, enum rh_boundary_kind kind, int layer, int64_t micro_batch)
{
	int *where = place_of(boundaries, kind, layer, micro_batch);
	RH_ASSERT(*where >= 0 && boundaries->readers[*where] > 0);
	if (--boundaries->readers[*where])
		return 0;
	give_back(boundaries, *where);
	*where = -1;
	return 1;
}

int rh_boundaries_create(const int count[RH_BOUNDARY_POOLS], int layers, int64_t micro_batches, struct rh_boundaries *out)
{
	int rc = 0, all = 0;
	*out = (struct rh_boundaries){.micro_batches = micro_batches};
	size_t places = (size_t)((layers + 1) * micro_batches);
	for (int p = 0; p < RH_BOUNDARY_POOLS; p++) {
		out->pool[p] = (struct rh_boundary_buffers){.first = all,
		                                            .count = count[p],
		                                            .queue = rh_alloc((size_t)count[p] + 1, sizeof(int)),
		                                            .free_count = count[p],
		                                            .least_free = count[p]};
		for (int i = 0; out->pool[p].queue && i < count[p]; i++)
			out->pool[p].queue[i] = all + i;
		all += count[p];
		rc = out->pool[p].queue ? rc : -ENOMEM;
	}
	out->readers = rh_alloc((size_t)all + 1, sizeof *out->readers);
	int has_narrow = 0;
	for (int p = RH_BOUNDARY_NARROWS; p < RH_BOUNDARY_POOLS; p++)
		has_narrow |= count[p] > 0;
	for (int k = 0; k < (has_narrow ? RH_BOUNDARY_KINDS : RH_BOUNDARY_NARROW); k++)
		if ((out->buffer[k] = rh_alloc(places, sizeof *out->buffer[k])))
			memset(out->buffer[k], -1, places * sizeof *out->buffer[k]);
		else
			rc = -ENOMEM;
	rc = out->readers ? rc : -ENOMEM;
	if (rc)
		rh_boundaries_destroy(out);
	return rc;
}

void rh_boundaries_destroy(struct rh_boundaries *boundaries)
{
	for (int p = 0; p < RH_BOUNDARY_POOLS; p++)
		rh_free(boundaries->pool[p].queue);
	rh_free(boundaries->readers);
	for (int k = 0; k < RH_BOUNDARY_KINDS; k++)
		rh_free(boundaries->buffer[k]);
	*boundaries = (struct rh_boundaries){0};
}

/* Facts of the whole program that the walk needs. */
struct program_facts {
	int trains, lowest; /* lowest layer of a backward */
	int *readers;       /* (layers + 1) of each boundary, then as many of its copy in 8 bits */
};

/* rh_boundary_readers of all layers. */
static void count_readers(const struct rh_stage_plan *plan, int trains, int *readers)
{
	for (int i = 0; i < plan->forward_stages; i++)
		readers[plan->forward[i].lo]++;
	for (int i = 0; i < rh_stage_plan_backward_stages(plan, trains); i++) {
		int is_narrow = i > 0 && trains && rh_stage_plan_narrows(plan, plan->backward[i].lo);
		readers[plan->backward[i].lo + (is_narrow ? rh_stage_plan_top(plan) + 1 : 0)]++;
	}
	if (!plan->is_fed)
		readers[0] = 0;
	for (int l = 1; l <= rh_stage_plan_top(plan); l++)
		readers[l] += rh_stage_plan_gives(plan, l);
}

/* Its readers are the caller's to free. */
static int find_facts(const struct rh_boundary_walk *walk, struct program_facts *out)
{
	*out = (struct program_facts){.lowest = walk->plan->owes_gradient ? -1 : walk->layers,
	                              .readers = rh_alloc(2 * ((size_t)walk->layers + 1), sizeof *out->readers)};
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
		if (!rc && (at.readers = facts->readers[walk->layers + 1 + l]))
			rc = access(walk, at, RH_BOUNDARY_WRITE, RH_BOUNDARY_NARROW, l);
		if (!rc && rh_stage_plan_gives(walk->plan, l)) /* to another box */
			rc = access(walk, at, RH_BOUNDARY_RELEASE, RH_BOUNDARY_ACTIVATION, l);
	}
	at.readers = 1;
	if (!rc && slot->kind != RH_SLOT_FORWARD && slot->kind != RH_SLOT_INFER && slot->lo > facts->lowest)
		rc = access(walk, at, RH_BOUNDARY_WRITE, RH_BOUNDARY_GRADIENT, slot->lo);
	if (!rc && rh_slot_gives_gradient(walk->plan, slot))
		rc = access(walk, at, RH_BOUNDARY_RELEASE, RH_BOUNDARY_GRADIENT, 0);
	return rc;
}

/* A boundary from another box counts as written when the first slot that reads it begins. */
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

/* A micro-batch of a slot: inputs are read, outputs written, then inputs given back. */
static int walk_micro_batch(const struct rh_boundary_walk *walk, const struct program_facts *facts, const struct rh_slot *slot,
                            struct rh_boundary_access at)
{
	int from_above = rh_slot_reads_gradient(walk->plan, slot), reads = slot->lo > 0 || walk->plan->is_fed;
	enum rh_boundary_kind input = rh_boundary_input(walk->plan, slot);
	int rc = walk_arrivals(walk, facts, slot, at);
	if (!rc && reads)
		rc = access(walk, at, RH_BOUNDARY_READ, input, slot->lo);
	if (!rc && from_above)
		rc = access(walk, at, RH_BOUNDARY_READ, RH_BOUNDARY_GRADIENT, slot->hi);
	if (!rc)
		rc = walk_outputs(walk, facts, slot, at);
	if (!rc && reads)
		rc = access(walk, at, RH_BOUNDARY_RELEASE, input, slot->lo);
	if (!rc && from_above)
		rc = access(walk, at, RH_BOUNDARY_RELEASE, RH_BOUNDARY_GRADIENT, slot->hi);
	return rc;
}

/* One slot as the executor does it (lower_text of run/lower_slot.c): of a text in chunks backwards go from the last chunk to the first, and
 * a slot with a mixer reads all their inputs before. */
static int walk_slot(const struct rh_boundary_walk *walk, const struct program_facts *facts, const struct rh_slot *slot)
{
	struct rh_boundary_access at = {.step = slot->step, .slot = (size_t)(slot - walk->program->slot)};
	int64_t index = slot->first + slot->step % walk->steps_in_flight * walk->step_micro_batches, each = rh_max(walk->chunks, 1);
	int descends = each > 1 && rh_slot_makes_gradients(slot), rc = 0,
	    carries = descends && slot->lo > 0 && rh_model_carriers(walk->model, slot->lo, slot->hi) > 0;
	if (slot->kind == RH_SLOT_WEIGHT_GRADIENT)
		return 0;
	for (int64_t first = 0; !rc && first < slot->count; first += each) {
		for (int64_t c = 0; !rc && carries && c < each; c++) {
			at.micro_batch = index + first + c;
			rc = access(walk, at, RH_BOUNDARY_READ, rh_boundary_input(walk->plan, slot), slot->lo);
		}
		for (int64_t c = 0; !rc && c < each; c++) {
			at.micro_batch = index + first + (descends ? each - 1 - c : c);
			rc = walk_micro_batch(walk, facts, slot, at);
		}
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
	if (!rc)
		rc = walk_all(walk, &facts);
	rh_free(facts.readers);
	return rc;
}

static int book(void *context, const struct rh_boundary_access *access)
{
	struct rh_boundaries *books = context;
	enum rh_boundary_pool pool = access->kind == RH_BOUNDARY_NARROW ? RH_BOUNDARY_NARROWS : RH_BOUNDARY_OWN;
	if (access->verb == RH_BOUNDARY_WRITE)
		(void)rh_boundary_acquire(books, (struct rh_boundary_want){.pool = pool, .readers = access->readers}, access->kind,
		                          access->layer, access->micro_batch);
	if (access->verb == RH_BOUNDARY_RELEASE)
		(void)rh_boundary_release(books, access->kind, access->layer, access->micro_batch);
	return 0;
}

/* Books alone, for a program of so many micro-batches. */
static int open_books(const struct rh_boundary_walk *walk, const struct program_facts *facts, int64_t micro_batches,
                      struct rh_boundaries *books)
{
	int most = walk->plan->backward_stages + 2;
	for (int l = 0; l <= walk->layers; l++)
		most += facts->readers[l] > 0;
	int narrow = walk->plan->narrow_bytes ? (int)(walk->plan->backward_stages * micro_batches) : 0;
	const int count[RH_BOUNDARY_POOLS] = {(int)(most * micro_batches), [RH_BOUNDARY_NARROWS] = narrow};
	return rh_boundaries_create(count, walk->layers, micro_batches, books);
}

int rh_boundaries_needed(const struct rh_stage_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches, int *out)
{
	struct rh_boundaries books = {0};
	struct rh_boundary_walk walk = {
	        .plan = plan, .layers = layers, .program = program, .steps_in_flight = 1, .access = book, .context = &books};
	struct program_facts facts;
	int rc = find_facts(&walk, &facts);
	if (rc)
		goto out;
	rc = open_books(&walk, &facts, micro_batches, &books);
	if (rc)
		goto out;
	rc = walk_all(&walk, &facts);
	*out = books.pool[RH_BOUNDARY_OWN].count - books.pool[RH_BOUNDARY_OWN].least_free;
out:
	rh_boundaries_destroy(&books);
	rh_free(facts.readers);
	return rc;
}

/* Buffers of a pool that a round needs, while its slots are walked. */
struct round_needs {
	struct rh_boundary_buffers *buffers;
	int64_t before, in_use, most;
};

static int64_t taken(const struct rh_boundary_buffers *buffers)
{
	return buffers->count - buffers->free_count;
}

static void begin_slot(struct round_needs *needs)
{
	needs->before = taken(needs->buffers);
	needs->buffers->least_free = needs->buffers->free_count;
}

static void end_slot(struct round_needs *needs, int64_t micro_batches)
{
	int64_t each = taken(needs->buffers) - needs->before,
	        meanwhile = needs->buffers->count - needs->buffers->least_free - needs->before;
	needs->most = rh_max(needs->most, needs->in_use + meanwhile + rh_bytes_times(rh_max(each, 0), micro_batches - 1));
	needs->in_use += each * micro_batches;
}

int rh_boundaries_needed_in_round(const struct rh_stage_plan *plan, int layers, const struct rh_program *program, int64_t micro_batches,
                                  int *out, int *narrow)
{
	struct rh_boundaries books = {0};
	struct rh_boundary_walk walk = {
	        .plan = plan, .layers = layers, .program = program, .steps_in_flight = 1, .access = book, .context = &books};
	struct program_facts facts;
	struct round_needs own = {&books.pool[RH_BOUNDARY_OWN], 0, 0, 0}, narrows = {&books.pool[RH_BOUNDARY_NARROWS], 0, 0, 0};
	int rc = find_facts(&walk, &facts);
	if (!rc)
		rc = open_books(&walk, &facts, 1, &books);
	for (size_t i = 0; !rc && i < program->slots; i++) {
		RH_ASSERT(program->slot[i].count == 1);
		begin_slot(&own);
		begin_slot(&narrows);
		rc = walk_slot(&walk, &facts, &program->slot[i]);
		end_slot(&own, micro_batches);
		end_slot(&narrows, micro_batches);
	}
	*out = (int)rh_min(own.most, INT_MAX / 4);
	if (narrow)
		*narrow = (int)rh_min(narrows.most, INT_MAX / 4);
	rh_boundaries_destroy(&books);
	rh_free(facts.readers);
	return rc;
}
