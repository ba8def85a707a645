#include "schedule/needs.h"

#include "core/minmax.h"
#include "partition/rounds.h"

enum {
	WRITE_BUFFERS_LEAST = 4, /* one that a device fills, the next one, two that are being written to drives */
	READ_BUFFERS_LEAST = 3   /* one that a device reads, one that is ready, one that is being read from drives */
};

static int write_ring(int64_t spare)
{
	return WRITE_BUFFERS_LEAST + (int)spare;
}

int64_t rh_boundary_infer_round(int64_t round, int spills, int64_t spare)
{
	return spills ? rh_min(round, write_ring(spare)) : round;
}

int64_t rh_boundary_steps_in_flight(const struct rh_dispatch *dispatch)
{
	int64_t most = 0, count = dispatch->train_micro_batches;
	for (int s = 0; s < (dispatch->boxes ? 1 : dispatch->devices); s++)
		most = rh_max(most, rh_dispatch_in_flight(dispatch, s));
	if (dispatch->boxes) /* a box posts receives ahead, for what its neighbours have in flight */
		most += dispatch->plan->is_fed ? rh_max(most, rh_dispatch_in_flight_below(dispatch)) : most;
	return (most + count - 1) / count + 1;
}

/* Each micro-batch in flight needs a buffer at every boundary that its stage writes: for the activation, later for the gradient, and for
 * both while its unit changes over. The boundary to the box below counts with that box's micro-batches. */
int rh_boundary_in_flight(const struct rh_dispatch *dispatch)
{
	const struct rh_stage_plan *plan = dispatch->plan;
	int64_t count = 0, unit = dispatch->boxes ? dispatch->boxes->unit : 1;
	for (int s = 0; s < plan->forward_stages; s++)
		for (int l = plan->forward[s].lo + 1; l <= plan->forward[s].hi; l++)
			count += rh_boundary_readers(plan, 1, l) ? rh_dispatch_in_flight(dispatch, s) + unit : 0;
	if (plan->is_fed)
		count += rh_dispatch_in_flight_below(dispatch) + unit;
	return (int)count;
}

/* The largest needs of all programs of a run. */
struct counting {
	const struct rh_boundary_run *run;
	struct rh_reloads reloads;
	int needed;                     /* buffers in memory */
	int of_size[RH_BOUNDARY_SIZES]; /* of shorter chunks, and of copies in 8 bits */
	int records[RH_RECORD_SIZES];
	int64_t writes, size_writes[RH_RECORD_SIZES];
};

static void count_records(struct counting *counting)
{
	for (int size = 0; size < RH_RECORD_SIZES; size++)
		counting->records[size] = (int)rh_max(counting->records[size], counting->reloads.records[size]);
}

/* writes: of each size, in a step. */
static void count_writes(struct counting *counting, const int64_t *writes)
{
	int64_t all = 0;
	for (int size = 0; size < RH_RECORD_SIZES; size++) {
		counting->size_writes[size] = rh_max(counting->size_writes[size], writes[size]);
		all += writes[size];
	}
	counting->writes = rh_max(counting->writes, all);
}

/* Counts a program of `count` micro-batches a step. each > 1: each of its micro-batches stands for so many. */
static int count_program(struct counting *counting, const struct rh_program *program, int64_t steps_in_flight, int64_t count, int64_t each)
{
	const struct rh_dispatch *dispatch = &counting->run->dispatch;
	int write_buffers = write_ring(counting->run->spare);
	struct rh_boundary_walk walk = {.plan = dispatch->plan,
	                                .layers = dispatch->model->layers,
	                                .program = program,
	                                .steps_in_flight = steps_in_flight,
	                                .step_micro_batches = count};
	int rc = each > 1 ? rh_reloads_count_round(&counting->reloads, &walk, each, write_buffers)
	                  : rh_reloads_find(&counting->reloads, &walk, steps_in_flight * count, write_buffers);
	if (rc)
		return rc;
	count_records(counting);
	return 0;
}

/* Steps without a flush between them: from some step on they always have the same number of boundaries in flight. */
static int count_stretch(struct counting *counting, struct rh_program *program)
{
	struct rh_dispatch dispatch = counting->run->dispatch;
	if (!rh_dispatch_is_local(&dispatch))
		return 0;
	int64_t in_flight = rh_boundary_steps_in_flight(&dispatch), count = dispatch.train_micro_batches;
	counting->needed = rh_boundary_in_flight(&dispatch);
	if (!counting->needed || !counting->run->spills)
		return 0;
	int64_t fewer, period, writes[RH_RECORD_SIZES] = {0};
	int rc = rh_dispatch_fewer(&dispatch, count, &fewer, &period);
	int64_t periods = rc ? 0 : (count - fewer) / period;
	for (int64_t i = 0; !rc && i <= (periods > 0); i++) {
		int64_t steps_count = dispatch.train_micro_batches = fewer + i * period;
		rc = rh_dispatch_stretch(&dispatch, steps_count, 2 * in_flight + 2, program);
		if (!rc)
			rc = count_program(counting, program, in_flight, steps_count, 1);
		writes[0] += (counting->reloads.step_writes - writes[0]) * (i ? periods : 1);
	}
	count_writes(counting, writes);
	counting->records[0] = counting->records[0] ? counting->needed : 0; /* of any stretch */
	return rc;
}

/* Writes of a step to NVMe, counted on a round of one micro-batch. Rounds are of two lengths at most, and do not overlap. */
static int count_step(struct counting *counting, int64_t count, int64_t rounds, const struct rh_program *program)
{
	int64_t lengths = count % rounds ? 2 : 1, writes[RH_RECORD_SIZES] = {0};
	int rc = 0;
	for (int64_t i = 0; !rc && i < lengths; i++) {
		int64_t unused, length;
		rh_round_range(count, rounds, i ? rounds - 1 : 0, &unused, &length);
		rc = count_program(counting, program, 1, 1, length);
		int64_t alike = lengths == 1 ? rounds : i ? rounds - count % rounds : count % rounds;
		for (int size = 0; !rc && size < RH_RECORD_SIZES; size++)
			writes[size] += counting->reloads.size_writes[size] * alike;
	}
	count_writes(counting, writes);
	return rc;
}

/* Of texts in chunks each micro-batch is told apart. */
static int count_chunks(struct counting *counting, int64_t count, struct rh_program *program)
{
	const struct rh_dispatch *dispatch = &counting->run->dispatch;
	const struct rh_boundary_walk walk = {.plan = dispatch->plan,
	                                      .layers = dispatch->model->layers,
	                                      .program = program,
	                                      .steps_in_flight = 1,
	                                      .step_micro_batches = count,
	                                      .chunks = dispatch->chunks,
	                                      .classes = &dispatch->classes,
	                                      .model = dispatch->model};
	int turn = 0, rc = rh_dispatch_call(dispatch, 1, count, &turn, program);
	if (!rc)
		rc = rh_reloads_find(&counting->reloads, &walk, count, write_ring(counting->run->spare));
	if (rc)
		return rc;
	count_records(counting);
	count_writes(counting, counting->reloads.size_writes);
	return 0;
}

static int64_t chunks_of_class(const struct rh_chunk_classes *classes, int chunks, int kind)
{
	int64_t count = 0;
	for (int c = 0; c < chunks; c++)
		count += classes->count < 2 ? !kind : classes->of_chunk[c] == kind;
	return count;
}

/* RoundPipe's rounds, for any number of micro-batches up to the most. Rounds differ in length by one at most, so only the longest step is
 * counted, and a step of one round less with rounds of full length. A longer round needs no less than a shorter one: between a write and
 * its read each micro-batch has all writes of the shorter round, and more. */
static int count_rounds(struct counting *counting, int trains, struct rh_program *program)
{
	struct rh_dispatch dispatch = counting->run->dispatch;
	int64_t count = trains ? dispatch.train_micro_batches : counting->run->infer_micro_batches;
	int64_t chunks = trains && dispatch.chunks > 1 ? dispatch.chunks : 1;
	count /= chunks;
	int64_t round = rh_min(rh_max((trains ? dispatch.train_round : dispatch.infer_round) / chunks, 1), count);
	int64_t rounds = rh_round_count(count, round), longest = rh_max(rh_round_count(count, rounds), rounds > 1 ? round : 0) * chunks;
	int turn = 0, needed = 0;
	dispatch.train_round = dispatch.infer_round = 1;
	dispatch.chunks = 0; /* each micro-batch of the round stands for itself */
	int rc = 0;
	if (chunks > 1 && counting->run->spills)
		rc = count_chunks(counting, count * chunks, program);
	if (!rc && chunks > 1 && counting->run->spills && rounds > 1 && count % round)
		rc = count_chunks(counting, (rounds - 1) * round * chunks, program);
	if (!rc)
		rc = rh_dispatch_call(&dispatch, trains, 1, &turn, program);
	if (!rc && counting->run->spills && chunks == 1) {
		rc = count_step(counting, count, rounds, program);
		if (!rc && rounds > 1 && count % round)
			rc = count_step(counting, (rounds - 1) * round, rounds - 1, program);
	}
	int *narrows = &counting->of_size[RH_BOUNDARY_NARROWS - RH_BOUNDARY_SHORTER], narrow = 0;
	for (int kind = 1; !rc && chunks > 1 && kind < dispatch.classes.count; kind++) {
		int64_t all = chunks_of_class(&dispatch.classes, (int)chunks, kind) * (longest / chunks);
		rc = rh_boundaries_needed_in_round(dispatch.plan, dispatch.model->layers, program, all, &needed, &narrow);
		counting->of_size[kind - 1] = needed;
		narrows[kind] = narrow;
	}
	if (chunks > 1)
		longest = chunks_of_class(&dispatch.classes, (int)chunks, 0) * (longest / chunks);
	if (!rc)
		rc = rh_boundaries_needed_in_round(dispatch.plan, dispatch.model->layers, program, longest, &needed, &narrow);
	counting->needed = (int)rh_max(counting->needed, needed);
	narrows[0] = (int)rh_max(narrows[0], narrow);
	return rc;
}

/* A step of any other schedule. */
static int count_scheduled(struct counting *counting, int64_t count, struct rh_program *program)
{
	const struct rh_dispatch *dispatch = &counting->run->dispatch;
	const struct rh_stage_plan *plan = dispatch->plan;
	struct rh_dispatch_brief brief;
	int needed = 0, layers = dispatch->model->layers;
	int rc = rh_dispatch_brief(dispatch, count, &brief, program);
	if (!rc)
		rc = brief.scale > 1 ? rh_boundaries_needed_in_round(plan, layers, program, brief.scale, &needed, NULL)
		                     : rh_boundaries_needed(plan, layers, program, brief.count, &needed);
	counting->needed = (int)rh_max(counting->needed, needed);
	if (rc || !counting->run->spills)
		return rc;
	int64_t writes[RH_RECORD_SIZES] = {0};
	for (int64_t i = 0; !rc && i <= (brief.periods > 0); i++) {
		int64_t longer = brief.count + i * brief.period;
		rc = i ? rh_dispatch_shorter(dispatch, longer, program) : 0;
		if (!rc)
			rc = count_program(counting, program, 1, longer, brief.scale);
		writes[0] += (counting->reloads.step_writes - writes[0]) * (i ? brief.periods : 1);
	}
	count_writes(counting, writes);
	return rc;
}

/* Buffers for messages between this box and those beside it.
 *
 *   to_below  gradients. One leaves when the box below begins its backward, which may come after all forwards that it has in flight.
 *             Without these buffers the two boxes might wait for each other
 *   to_above  activations. A buffer is busy until the box above has its activation. With one for each in flight, a slow link does not delay
 *             the next forward
 *   *ahead    what neighbours send here. A message leaves only when its receive is posted, a trip before */
static int count_messages(const struct rh_dispatch *dispatch, struct rh_boundary_needs *out, int *ahead)
{
	const struct rh_stage_plan *plan = dispatch->plan;
	int64_t below = 0, own = 0;
	*ahead = 0;
	if (!dispatch->boxes || !dispatch->boxes->unit || !dispatch->train_micro_batches)
		return 0;
	int rc = 0, is_local = rh_dispatch_is_local(dispatch);
	if (is_local)
		own = rh_dispatch_in_flight(dispatch, 0);
	if (is_local && plan->is_fed)
		below = rh_dispatch_in_flight_below(dispatch);
	if (!is_local)
		rc = rh_dispatch_boxes_in_flight(dispatch, dispatch->train_micro_batches, &below, &own);
	out->to_below = (int)rh_min(plan->owes_gradient ? below : 0, INT32_MAX / 8);
	out->to_above = (int)rh_min(plan->feeds ? own : 0, INT32_MAX / 8);
	if (!is_local)
		out->from_below = (int)rh_min(plan->is_fed ? below : 0, INT32_MAX / 8);
	if (!is_local)
		*ahead = (int)rh_min((plan->is_fed ? below : 0) + (plan->feeds ? own : 0), INT32_MAX / 8);
	return rc;
}

/* Counts calls of any number of micro-batches up to the most. */
static int count_all(struct counting *counting, struct rh_program *program)
{
	const struct rh_dispatch *dispatch = &counting->run->dispatch;
	int rc = count_stretch(counting, program);
	for (int trains = 0; !rc && trains < 2; trains++) {
		int64_t count = trains ? dispatch->train_micro_batches : counting->run->infer_micro_batches;
		/* where rounds do not count, a step needs no less than one shorter by as many as there are devices */
		int64_t distinct = rh_min(rh_dispatch_distinct(dispatch, trains, count), (int64_t)dispatch->devices);
		if (count && (!trains || rh_schedule_has_rounds(dispatch->schedule))) {
			rc = count_rounds(counting, trains, program);
			continue;
		}
		for (int64_t m = count; !rc && m > count - distinct; m--)
			rc = count_scheduled(counting, m, program);
	}
	return rc;
}

/* Rounded up. */
static int64_t share_of(int64_t count, int64_t part, int64_t all)
{
	return (count * part + all - 1) / all;
}

static void add_size(struct rh_boundary_needs *needs, int size, int64_t bytes, int count)
{
	needs->sizes |= count > 0;
	needs->of_size[size] = count;
	needs->size_bytes[size] = rh_align_up(bytes, RH_ALIGN);
	needs->count += count;
	needs->bytes = rh_min(needs->bytes + rh_bytes_times(needs->size_bytes[size], count), RH_BYTES_MOST);
}

/* A record of this size holds any boundary of its kind and class. */
static int64_t record_bytes(const struct rh_boundary_run *run, int size)
{
	const struct rh_dispatch *dispatch = &run->dispatch;
	int kind = size % RH_CHUNK_CLASSES, is_narrow = size >= RH_CHUNK_CLASSES;
	if (!size || !run->record_unit)
		return run->record_bytes;
	int64_t bytes = !kind       ? dispatch->plan->narrow_bytes
	                : is_narrow ? rh_narrow_most_bytes(dispatch->model, dispatch->classes.tokens[kind])
	                            : rh_boundary_most_bytes(dispatch->model, dispatch->classes.tokens[kind]);
	return rh_min(rh_round_count(bytes, run->record_unit) * run->record_unit, run->record_bytes);
}

static void add_records(const struct counting *counting, struct rh_boundary_needs *out)
{
	for (int size = 0; size < RH_RECORD_SIZES; size++) {
		if (!counting->records[size])
			continue;
		int64_t each = out->record_bytes[size] = record_bytes(counting->run, size);
		out->size_records[size] = counting->records[size];
		out->records += counting->records[size];
		out->nvme = rh_min(out->nvme + rh_bytes_times(each, counting->records[size]), RH_BYTES_MOST);
		out->nvme_step = rh_min(out->nvme_step + rh_bytes_times(each, counting->size_writes[size]), RH_BYTES_MOST);
	}
}

int rh_boundary_needs(const struct rh_boundary_run *run, struct rh_boundary_needs *out)
{
	const struct rh_dispatch *dispatch = &run->dispatch;
	struct counting counting = {.run = run};
	struct rh_program program = {0};
	int64_t bytes = dispatch->plan->boundary_bytes;
	int ahead, spare = dispatch->devices > 1 ? (int)run->spare : 0;
	*out = (struct rh_boundary_needs){.bytes_each = bytes};
	int chunks = dispatch->chunks > 1 ? dispatch->chunks : 1;
	int64_t longest = chunks_of_class(&dispatch->classes, chunks, 0);
	int rc = count_messages(dispatch, out, &ahead);
	if (!rc)
		rc = count_all(&counting, &program);
	rh_program_free(&program);
	rh_reloads_free(&counting.reloads);
	if (rc)
		return rc;
	if (counting.needed)
		out->count = counting.needed + ahead + out->to_above + out->to_below +
		             (dispatch->boxes ? (int)run->spare : (int)share_of(spare, longest, chunks));
	else
		out->to_above = out->to_below = 0;
	out->bytes = rh_bytes_times(bytes, out->count);
	int classes = chunks > 1 && dispatch->classes.count > 1 ? dispatch->classes.count : 1;
	for (int kind = 0; counting.needed && kind < classes; kind++) {
		int of_spare = (int)share_of(spare, chunks_of_class(&dispatch->classes, chunks, kind), chunks);
		if (kind)
			add_size(out, kind - 1, rh_boundary_most_bytes(dispatch->model, dispatch->classes.tokens[kind]),
			         counting.of_size[kind - 1] + of_spare);
		int narrow = RH_BOUNDARY_NARROWS - RH_BOUNDARY_SHORTER + kind;
		int64_t each = kind ? rh_narrow_most_bytes(dispatch->model, dispatch->classes.tokens[kind]) : dispatch->plan->narrow_bytes;
		if (counting.of_size[narrow])
			add_size(out, narrow, each, counting.of_size[narrow] + of_spare);
	}
	int write_buffers = write_ring(run->spare), read_buffers = READ_BUFFERS_LEAST + spare;
	int records = 0;
	for (int size = 0; size < RH_RECORD_SIZES; size++)
		records |= counting.records[size];
	if (!run->spills || !records || rh_bytes_times(run->record_bytes, write_buffers + read_buffers) >= out->bytes)
		return 0;
	*out = (struct rh_boundary_needs){.count = write_buffers + read_buffers,
	                                  .bytes_each = run->record_bytes,
	                                  .bytes = rh_bytes_times(run->record_bytes, write_buffers + read_buffers),
	                                  .write_buffers = write_buffers,
	                                  .read_buffers = read_buffers,
	                                  .step_writes = counting.writes};
	add_records(&counting, out);
	return 0;
}
