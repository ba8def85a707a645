/* Which device is given its next micro-batch. A stream of a GPU holds about a thousand commands, then the call that enqueues waits; a slot
 * has thousands. Enqueued slot by slot, all other devices would have nothing until most of a slot has been run. So slots of all devices are
 * enqueued side by side, a micro-batch at a time, by a clock of each device that its launches move on: the next is the one that could
 * begin first, by its own clock and those of its inputs. What a device is given, and in which order, is the same as slot by slot.
 * Where steps are joined the first slots of a step go beside the last ones of the step before, which that one's rh_executor_begin has left.
 *
 * A micro-batch comes after all that it needs has been enqueued, as waiting for an event that was not recorded is no waiting:
 *   - its boundaries are in the books (run/boundary.h), and there is a buffer for each that it writes, as there will be for all that slots
 *     before it have still to write: buffers are counted for slots one after another;
 *   - a slot that makes sums comes after those before it that make sums of the same layers, on whatever device;
 *   - a step's uploads of a block are over, and the updater knows it, before the next step's slots with it begin;
 *   - gradients that the step before left leave in the windows of each device's first slot, or at once where that comes after the first
 *     that makes gradients; in any case before this step's leave, and before the updater is told that uploads are over.
 * The oldest slot that is not over always may go on. */
#include "run/turns.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <string.h>

static struct run_cursor *cursor(const struct rh_executor *executor, int device)
{
	return &executor->on[device].at;
}

static const struct rh_slot *slot_of(const struct rh_executor *executor, int device)
{
	const struct run_turns *turns = &executor->turns;
	const struct run_cursor *at = cursor(executor, device);
	return at->slot < turns->slots ? &turns->slot[at->slot] : NULL;
}

static struct run_step *step_of(struct rh_executor *executor, size_t i)
{
	return &executor->turns.step[executor->turns.slot[i].step];
}

/* The device's next slot from there on. */
static size_t find_slot(const struct run_turns *turns, int device, size_t from)
{
	for (; from < turns->slots && turns->slot[from].device != device; from++)
		;
	return from;
}

static int has_begun(const struct rh_executor *executor, size_t i)
{
	const struct run_cursor *at = cursor(executor, executor->turns.slot[i].device);
	return at->slot > i || (at->slot == i && at->next >= 0);
}

/* Micro-batches of slot i that are not enqueued. */
static int64_t remaining(const struct rh_executor *executor, size_t i)
{
	const struct rh_slot *slot = &executor->turns.slot[i];
	const struct run_cursor *at = cursor(executor, slot->device);
	return at->slot > i ? 0 : at->slot < i ? slot->count : slot->count - rh_max(at->next, 0);
}

/* The step has no slot after it with its blocks. */
static int ends_sums(const struct rh_slot *slot)
{
	return rh_slot_makes_gradients(slot) && slot->last_round && !slot->sums_stay;
}

static int shares_layers(const struct rh_slot *slot, const struct rh_slot *other)
{
	return slot->lo < other->hi && other->lo < slot->hi;
}

static struct run_turn_buffers buffers_of(const struct rh_executor *executor, const struct rh_slot *slot)
{
	const struct rh_executor_options *options = &executor->options;
	int forward = slot->kind == RH_SLOT_FORWARD, trains = executor->trains, reads = slot->lo > 0;
	int from_above = slot->kind == RH_SLOT_BACKWARD || (slot->kind == RH_SLOT_INPUT_GRADIENT && slot->hi < options->model->layers);
	int64_t writes = 0;
	if (slot->kind == RH_SLOT_WEIGHT_GRADIENT)
		return (struct run_turn_buffers){0};
	for (int l = slot->lo + 1; forward && l <= slot->hi; l++)
		writes += rh_boundary_readers(options->plan, trains, l) > 0;
	if (!forward && slot->kind != RH_SLOT_INFER)
		writes += slot->lo > options->model->first_trained;
	if (forward) /* a backward stage that begins here reads it again */
		reads = reads && rh_boundary_readers(options->plan, trains, slot->lo) == 1;
	return (struct run_turn_buffers){.writes = writes, .net = writes - reads - from_above};
}

/* After this micro-batch of slot i the others can still go on one slot after another, as when buffers were counted. */
static int fits(const struct rh_executor *executor, size_t i)
{
	const struct run_turns *turns = &executor->turns;
	int64_t free_count = executor->boundaries.free_count, more = 0;
	size_t last = i;
	if (i == turns->oldest || !turns->buffers[i].writes)
		return 1;
	for (int d = 0; d < executor->options.devices; d++)
		if (cursor(executor, d)->next >= 0 && cursor(executor, d)->slot > last)
			last = cursor(executor, d)->slot;
	if (turns->buffers[i].writes > free_count)
		return 0;
	free_count -= turns->buffers[i].net;
	for (size_t j = turns->oldest; j <= last; j++) {
		const struct run_turn_buffers *takes = &turns->buffers[j];
		int64_t left = remaining(executor, j) - (j == i);
		if (left <= 0)
			continue;
		if (more + takes->writes + rh_max((left - 1) * takes->net, 0) > free_count)
			return 0;
		more += left * takes->net;
	}
	return 1;
}

static int may_begin(const struct rh_executor *executor, size_t i)
{
	const struct run_turns *turns = &executor->turns;
	const struct rh_slot *slot = &turns->slot[i];
	int makes = rh_slot_makes_gradients(slot);
	for (size_t j = turns->oldest; executor->trains && j < i; j++) {
		const struct rh_slot *other = &turns->slot[j];
		if (!remaining(executor, j) || !shares_layers(slot, other))
			continue;
		if (makes && rh_slot_makes_gradients(other))
			return 0;
		if (slot->step != other->step && !(has_begun(executor, j) && executor->work[other->device].uploads_over))
			return 0;
	}
	return 1;
}

/* Slots in whose windows leaves what the step before has left are enqueued up to the end of slot i: theirs, or its own. */
static int left_may_be_over(struct rh_executor *executor, size_t i)
{
	const struct run_step *step = step_of(executor, i);
	for (int d = 0; d < executor->options.devices; d++) {
		size_t first = executor->on[d].first[executor->turns.slot[i].step], at = cursor(executor, d)->slot;
		if (at < step->begin || (first <= step->making && at == first && at != i))
			return 0;
	}
	return 1;
}

/* What is left on devices without such a slot goes now, and what waited for the gradient before it to be taken. */
static int send_left(struct rh_executor *executor, size_t i)
{
	const struct run_turns *turns = &executor->turns;
	struct run_step *step = step_of(executor, i);
	int rc = 0;
	for (int d = 0; !rc && d < executor->options.devices; d++)
		if (step->making < step->end && d != turns->slot[step->making].device && cursor(executor, d)->slot != i)
			rc = bulk_send_left(executor, d);
	step->left_sent = 1; /* but for what is in slot i's last window, which comes next */
	return rc;
}

/* Must the host wait for an update before it can go on with this device? */
static int awaits_update(const struct rh_executor *executor, int device)
{
	const struct rh_executor_options *options = &executor->options;
	const struct rh_slot *slot = slot_of(executor, device);
	const struct run_bulk *bulk = &executor->on[device].bulk;
	struct run_cursor *at = cursor(executor, device);
	if (!options->updater)
		return 0;
	if (at->next >= 0) {
		const struct rh_transfer_piece *piece = &bulk->piece[bulk->sent];
		return bulk->sent < bulk->pieces && piece->window == at->next &&
		       !rh_updater_has_gradient(options->updater, bulk->download[piece->item].sum / 2);
	}
	for (int l = slot->lo; !at->updated && l < slot->hi; l++)
		for (int which = 0; which < 2; which++) {
			int b = options->model->layer[l].block[which];
			if (b >= 0 && options->model->block[b].trainable && !rh_updater_has_weights(options->updater, b))
				return 1;
		}
	at->updated = 1; /* asked for once */
	return 0;
}

/* May the device's next micro-batch be enqueued, or the beginning of its next slot? *ready: when its inputs are. */
static int may_go_on(struct rh_executor *executor, int device, int64_t *ready)
{
	const struct rh_slot *slot = slot_of(executor, device);
	const struct run_cursor *at = cursor(executor, device);
	*ready = at->clock;
	if (!slot)
		return 0;
	if (at->next < 0)
		return may_begin(executor, at->slot);
	if (!run_slot_inputs(executor, slot, at->next, ready) || !fits(executor, at->slot))
		return 0;
	return !executor->trains || !rh_slot_makes_gradients(slot) || at->next < slot->count - 1 ||
	       step_of(executor, at->slot)->left_sent || left_may_be_over(executor, at->slot);
}

/* While the host waits for an update nobody is given anything: it does so when there is nothing else to do, and then of the oldest slot, as
 * slot by slot, so that what it waits for does not hang on what it keeps back. What NVMe brings and takes is asked for in the program's
 * order. *passed_over: devices that wait for an update while another goes on. */
static int choose(struct rh_executor *executor, int64_t *ready, int *passed_over)
{
	const struct run_turns *turns = &executor->turns;
	int chosen = -1, chosen_awaits = 1;
	*passed_over = 0;
	if (executor->options.devices == 1 || executor->boundaries.spool) {
		chosen = turns->slot[turns->oldest].device;
		*ready = cursor(executor, chosen)->clock;
		return chosen;
	}
	for (int d = 0; d < executor->options.devices; d++) {
		int64_t begins;
		if (!may_go_on(executor, d, &begins))
			continue;
		int awaits = awaits_update(executor, d);
		*passed_over += awaits;
		int older = chosen >= 0 && cursor(executor, d)->slot < cursor(executor, chosen)->slot;
		int better = chosen < 0 || awaits < chosen_awaits;
		if (!better && awaits == chosen_awaits)
			better = awaits || begins == *ready ? older : begins < *ready;
		if (!better)
			continue;
		chosen = d;
		chosen_awaits = awaits;
		*ready = begins;
	}
	RH_ASSERT(chosen >= 0); /* the oldest could */
	*passed_over = chosen_awaits ? 0 : *passed_over;
	return chosen;
}

static int begin_slot(struct rh_executor *executor, int device)
{
	struct run_cursor *at = cursor(executor, device);
	const struct rh_slot *slot = slot_of(executor, device);
	const struct run_step *step = step_of(executor, at->slot);
	int rc = 0;
	if (executor->trains && at->slot == executor->on[device].first[slot->step] && at->slot > step->making)
		rc = bulk_send_left(executor, device);
	at->next = 0;
	return rc ? rc : run_slot_begin(executor, slot);
}

/* To the device's next slot, and out of a step, perhaps. */
static int end_slot(struct rh_executor *executor, int device)
{
	struct run_turns *turns = &executor->turns;
	struct run_cursor *at = cursor(executor, device);
	size_t was = at->slot;
	*at = (struct run_cursor){.slot = find_slot(turns, device, was + 1), .next = -1, .clock = at->clock};
	turns->oldest = turns->slots;
	for (int d = 0; d < executor->options.devices; d++)
		turns->oldest = cursor(executor, d)->slot < turns->oldest ? cursor(executor, d)->slot : turns->oldest;
	return at->slot < step_of(executor, was)->end ? 0 : run_device_enqueued(executor, device, turns->slot[was].step);
}

/* Slots after which their step uploads their blocks no more, as all before them have begun. */
static void end_uploads(struct rh_executor *executor)
{
	const struct run_turns *turns = &executor->turns;
	for (int d = 0; d < executor->options.devices; d++) {
		const struct rh_slot *slot = slot_of(executor, d);
		size_t i = cursor(executor, d)->slot, j = turns->oldest;
		if (!slot || cursor(executor, d)->next < 0 || executor->work[d].uploads_over || !step_of(executor, i)->left_sent ||
		    !ends_sums(slot))
			continue;
		while (j < i && (has_begun(executor, j) || !shares_layers(slot, &turns->slot[j])))
			j++;
		if (j == i)
			bulk_uploads_over(&executor->work[d]);
	}
}

static int go_on(struct rh_executor *executor, int device, int64_t ready)
{
	struct run_cursor *at = cursor(executor, device);
	const struct rh_slot *slot = slot_of(executor, device);
	int is_last = at->next == slot->count - 1, rc = 0;
	if (at->next < 0) {
		rc = begin_slot(executor, device);
		end_uploads(executor);
	} else {
		if (is_last && executor->trains && rh_slot_makes_gradients(slot) && !step_of(executor, at->slot)->left_sent)
			rc = send_left(executor, at->slot);
		at->clock = ready;
		rc = rc ? rc : run_slot_window(executor, device, at->next);
		end_uploads(executor); /* the step's own gradients come after it */
		rc = rc ? rc : run_slot_next(executor, device, at->next++);
	}
	return rc || !is_last ? rc : end_slot(executor, device);
}

/* Slots that are over leave the list. */
static void forget(struct rh_executor *executor)
{
	struct run_turns *turns = &executor->turns;
	size_t gone = turns->oldest;
	if (!gone)
		return;
	memmove(turns->slot, turns->slot + gone, (turns->slots - gone) * sizeof *turns->slot);
	memmove(turns->buffers, turns->buffers + gone, (turns->slots - gone) * sizeof *turns->buffers);
	turns->slots -= gone;
	turns->oldest = 0;
	for (int d = 0; d < executor->options.devices; d++) {
		struct run_device *on = &executor->on[d];
		on->at.slot = on->at.slot < gone ? 0 : on->at.slot - gone;
		for (int p = 0; p < RUN_FLIGHT; p++)
			on->first[p] = on->first[p] < gone ? 0 : on->first[p] - gone;
	}
	for (int p = 0; p < RUN_FLIGHT; p++) {
		struct run_step *step = &turns->step[p];
		step->begin = step->begin < gone ? 0 : step->begin - gone;
		step->end = step->end < gone ? 0 : step->end - gone;
		step->making = step->making < gone ? 0 : step->making - gone;
	}
}

int run_turns_add(struct rh_executor *executor, int place)
{
	struct run_turns *turns = &executor->turns;
	const struct rh_program *program = &executor->program;
	forget(executor);
	size_t begin = turns->slots, end = begin + program->slots, most = end > 2 * program->slots ? end : 2 * program->slots;
	int rc = rh_grow(&turns->slot, &turns->capacity, most, sizeof *turns->slot);
	rc = rc ? rc : rh_grow(&turns->buffers, &turns->buffers_capacity, most, sizeof *turns->buffers);
	if (rc)
		return rc;
	memcpy(turns->slot + begin, program->slot, program->slots * sizeof *turns->slot);
	turns->slots = end;
	struct run_step *step = &turns->step[place];
	*step = (struct run_step){.begin = begin, .end = end, .making = begin};
	for (size_t i = begin; i < end; i++) {
		turns->slot[i].step = place;
		turns->buffers[i] = buffers_of(executor, &turns->slot[i]);
	}
	while (step->making < end && !rh_slot_makes_gradients(&turns->slot[step->making]))
		step->making++;
	for (int d = 0; !rc && d < executor->options.devices; d++) {
		struct run_device *on = &executor->on[d];
		on->first[place] = find_slot(turns, d, begin);
		if (on->at.slot >= begin) /* it had no more */
			on->at = (struct run_cursor){.slot = on->first[place], .next = -1, .clock = on->at.clock};
		if (on->first[place] == end)
			rc = run_device_enqueued(executor, d, place);
	}
	return rc;
}

/* A device that has nothing left could begin before any other can go on: it is the next step's turn, which all of this one's slots are
 * ready for. */
static int next_is_due(struct rh_executor *executor, int place, int64_t ready)
{
	const struct run_step *step = &executor->turns.step[place];
	int due = 0;
	for (size_t i = step->begin; i < step->end; i++)
		if (!has_begun(executor, i))
			return 0;
	for (int d = 0; d < executor->options.devices; d++) {
		const struct rh_slot *slot = slot_of(executor, d);
		if (slot && ends_sums(slot) && !executor->work[d].uploads_over)
			return 0;
		due |= !slot && cursor(executor, d)->clock <= ready;
	}
	return due && step->left_sent && executor->turns.oldest >= step->begin;
}

int run_turns(struct rh_executor *executor, int place, enum run_until until)
{
	struct run_turns *turns = &executor->turns;
	int rc = 0;
	while (!rc && turns->oldest < turns->step[place].end) {
		int64_t ready = 0;
		int passed_over, device = choose(executor, &ready, &passed_over);
		if (until == RUN_UNTIL_NEXT_IS_DUE && next_is_due(executor, place, ready))
			break;
		rc = passed_over ? bulk_upload_ahead(executor) : 0;
		rc = rc ? rc : go_on(executor, device, ready);
	}
	return rc;
}

void run_turns_drop(struct rh_executor *executor)
{
	executor->turns.slots = executor->turns.oldest = 0;
	for (int d = 0; d < executor->options.devices; d++)
		*cursor(executor, d) = (struct run_cursor){.next = -1};
}
