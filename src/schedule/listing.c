#include "schedule/listing.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <math.h>

struct listing {
	const struct rh_schedule_request *request;
	const struct listing_rule *rule;
	int64_t first, micro_batches, window; /* window: the most micro-batches that are in flight */
	struct stage_times *times;            /* of each stage */
	double *forward_end, *input_end;      /* (stages, window): micro-batch m's are number m mod window */
	int64_t *forwards, *inputs, *weights; /* of each stage: begun so far */
	double *free_at;                      /* of each device */
	int split;                            /* the rule splits backward */
	double now, next;                     /* next: when something may change */
};

/* When micro-batch m's input, coming from stage `from`, lies at another. */
static double arrival(const struct listing *at, const double *end, int from, int64_t m)
{
	return end[from * at->window + m % at->window] + at->request->hop_s;
}

/* Is the input there? Else notes when it will be, where that is known. */
static int has_come(struct listing *at, double when)
{
	if (when <= at->now)
		return 1;
	at->next = when < at->next ? when : at->next;
	return 0;
}

static int is_ready(struct listing *at, enum rh_slot_kind kind, int stage)
{
	int stages = at->request->stages;
	int64_t m = at->forwards[stage];
	if (kind == RH_SLOT_FORWARD) {
		const int64_t *released = at->split ? at->weights : at->inputs;
		if (m == at->micro_batches || !at->rule->admits(at->rule, at->request, stage, at->forwards, released))
			return 0;
		return !stage || (at->forwards[stage - 1] > m && has_come(at, arrival(at, at->forward_end, stage - 1, m)));
	}
	m = at->inputs[stage];
	if (kind == RH_SLOT_WEIGHT_GRADIENT)
		return at->weights[stage] < m && has_come(at, at->input_end[stage * at->window + at->weights[stage] % at->window]);
	if (m >= at->forwards[stage] || !has_come(at, at->forward_end[stage * at->window + m % at->window]))
		return 0;
	return stage + 1 == stages || (at->inputs[stage + 1] > m && has_come(at, arrival(at, at->input_end, stage + 1, m)));
}

static void emit(struct listing *at, enum rh_slot_kind kind, int stage, struct rh_program *out)
{
	struct stage_times times = at->times[stage];
	int64_t *begun = kind == RH_SLOT_FORWARD ? at->forwards : kind == RH_SLOT_WEIGHT_GRADIENT ? at->weights : at->inputs;
	int64_t m = begun[stage]++, count = at->request->micro_batches, global = at->first + m;
	double seconds = kind == RH_SLOT_FORWARD           ? times.forward
	                 : kind == RH_SLOT_WEIGHT_GRADIENT ? times.weight
	                 : kind == RH_SLOT_INPUT_GRADIENT  ? times.input
	                                                   : times.input + times.weight;
	double end = at->now + seconds;
	if (kind == RH_SLOT_FORWARD)
		at->forward_end[stage * at->window + m % at->window] = end;
	else if (kind != RH_SLOT_WEIGHT_GRADIENT)
		at->input_end[stage * at->window + m % at->window] = end;
	at->free_at[stage] = end;
	struct rh_stage layers = at->request->stage[stage];
	out->slot[out->slots++] = (struct rh_slot){.kind = kind,
	                                           .lo = layers.lo,
	                                           .hi = layers.hi,
	                                           .device = stage,
	                                           .first = global % count,
	                                           .count = 1,
	                                           .stage = stage,
	                                           .step = global / count};
}

static int take(struct listing *at, int stage, struct rh_program *out)
{
	for (int i = 0; i < at->rule->orders; i++)
		if (is_ready(at, at->rule->order[i], stage)) {
			emit(at, at->rule->order[i], stage, out);
			return 1;
		}
	return 0;
}

/* A call that follows another finds devices as that one left them, and goes on with the device that it stopped at. */
static int run(struct listing *at, size_t slots, struct rh_program *out)
{
	while (slots) {
		at->next = INFINITY;
		for (int d = 0; d < at->request->devices; d++) {
			while (at->free_at[d] <= at->now && slots && take(at, d, out))
				slots--;
			if (at->free_at[d] > at->now && at->free_at[d] < at->next)
				at->next = at->free_at[d];
		}
		if (!slots)
			return 0;
		if (at->next == INFINITY)
			return -EDEADLK;
		at->now = at->next;
	}
	return 0;
}

int listing_open(const struct rh_schedule_request *request, const struct listing_rule *rule, int64_t first, int64_t micro_batches,
                 int64_t window, struct listing **out)
{
	struct listing *at = *out = rh_alloc(1, sizeof *at);
	if (!at)
		return -ENOMEM;
	*at = (struct listing){
	        .request = request, .rule = rule, .first = first, .micro_batches = micro_batches, .window = rh_min(window, micro_batches)};
	size_t stages = (size_t)request->stages, cells = stages * (size_t)at->window;
	at->times = rh_alloc(stages, sizeof *at->times);
	at->forward_end = rh_alloc(2 * cells, sizeof *at->forward_end);
	at->forwards = rh_alloc(3 * stages, sizeof *at->forwards);
	at->free_at = rh_alloc((size_t)request->devices, sizeof *at->free_at);
	if (!(at->times && at->forward_end && at->forwards && at->free_at))
		return -ENOMEM;
	at->input_end = at->forward_end + cells;
	at->inputs = at->forwards + stages;
	at->weights = at->inputs + stages;
	for (int s = 0; s < request->stages; s++)
		at->times[s] = stage_times(request, s);
	for (int i = 0; i < rule->orders; i++)
		at->split = at->split || rule->order[i] == RH_SLOT_WEIGHT_GRADIENT;
	return 0;
}

int listing_more(struct listing *at, size_t slots, struct rh_program *out)
{
	int rc = rh_grow(&out->slot, &out->capacity, out->slots + slots, sizeof *out->slot);
	return rc ? rc : run(at, slots, out);
}

void listing_close(struct listing *at)
{
	if (!at)
		return;
	rh_free(at->times);
	rh_free(at->forward_end);
	rh_free(at->forwards);
	rh_free(at->free_at);
	rh_free(at);
}

int listing_make(const struct rh_schedule_request *request, const struct listing_rule *rule, int64_t first, int64_t micro_batches,
                 struct rh_program *out)
{
	struct listing *at = NULL;
	int rc = listing_open(request, rule, first, micro_batches, micro_batches, &at);
	if (!rc)
		rc = listing_more(at, (size_t)request->stages * (size_t)micro_batches * (at->split ? 3 : 2), out);
	listing_close(at);
	return rc;
}
