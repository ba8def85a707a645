/* How many boundary buffers there are, and what of boundaries goes to NVMe. */
#include "core/minmax.h"
#include "partition/rounds.h"
#include "run/course.h"
#include "run/executor_internal.h"

enum {
	DOWN_LEAST = 4, /* one that a device fills, one that comes next, two on their way to drives */
	UP_LEAST = 3    /* one that a device reads, one that is there, one on its way */
};

static int ring_down(const struct rh_executor_options *options)
{
	return DOWN_LEAST + (int)options->spare_boundaries;
}

/* A forward-only round writes a boundary a micro-batch, and the next stage reads it a round later. */
int64_t run_infer_round(const struct rh_executor_options *options)
{
	int64_t round = options->infer_round, down = ring_down(options);
	return options->spills_boundaries && round > down ? down : round;
}

/* What all programs of one run ask for. */
struct asking {
	const struct rh_executor_options *options;
	struct run_course_counts course;
	int needed; /* buffers in memory */
	int records;
	int64_t writes;
};

/* Of a program of so many micro-batches a step; more than one `each`: of those, each in place of its one. */
static int ask(struct asking *asking, const struct rh_program *program, int64_t steps_held, int64_t count, int64_t each)
{
	const struct rh_executor_options *options = asking->options;
	struct rh_boundary_walk walk = {.plan = options->plan,
	                                .layers = options->model->layers,
	                                .program = program,
	                                .steps_held = steps_held,
	                                .step_micro_batches = count};
	int rc = each > 1 ? run_course_count_round(&asking->course, &walk, each, ring_down(options))
	                  : run_course_count(&asking->course, &walk, steps_held * count, ring_down(options));
	if (rc)
		return rc;
	asking->records = (int)rh_max(asking->records, asking->course.records);
	return 0;
}

/* Steps without a flush between them: what they have in flight is the same from some step on. */
static int ask_stretch(struct asking *asking, struct rh_program *program)
{
	const struct rh_executor_options *options = asking->options;
	int64_t held = run_steps_held(options), count = options->train_micro_batches;
	asking->needed = run_stretch_boundaries(options);
	if (!asking->needed || !options->spills_boundaries)
		return 0;
	struct rh_dispatch dispatch = run_dispatch(options);
	int64_t fewer, period, writes = 0;
	int rc = rh_dispatch_fewer(&dispatch, count, &fewer, &period);
	int64_t periods = rc ? 0 : (count - fewer) / period;
	for (int64_t i = 0; !rc && i <= (periods > 0); i++) {
		int64_t steps_count = dispatch.train_micro_batches = fewer + i * period;
		rc = rh_dispatch_stretch(&dispatch, steps_count, 2 * held + 2, program);
		rc = rc ? rc : ask(asking, program, held, steps_count, 1);
		writes += (asking->course.step_writes - writes) * (i ? periods : 1);
	}
	asking->writes = rh_max(asking->writes, writes);
	asking->records = asking->records ? asking->needed : 0; /* of any stretch */
	return rc;
}

/* What a step of so many whole and shorter rounds writes to NVMe, by a round of one micro-batch; one is over before the next. */
static int ask_step(struct asking *asking, int64_t count, int64_t rounds, const struct rh_program *program)
{
	int64_t lengths = count % rounds ? 2 : 1, writes = 0;
	int rc = 0;
	for (int64_t i = 0; !rc && i < lengths; i++) {
		int64_t unused, length;
		rh_round_range(count, rounds, i ? rounds - 1 : 0, &unused, &length);
		rc = ask(asking, program, 1, 1, length);
		if (!rc)
			writes += asking->course.step_writes * (lengths == 1 ? rounds : i ? rounds - count % rounds : count % rounds);
	}
	asking->writes = rh_max(asking->writes, writes);
	return rc;
}

/* RoundPipe's rounds, of any number of micro-batches up to the most. Rounds are of one length or the next, so that those of a step with one
 * round less are longest where all are whole. A longer round keeps more, writes more and reads more of it again later: each micro-batch has
 * all of the shorter round's between what it writes and reads, and more. */
static int ask_rounds(struct asking *asking, int trains, struct rh_program *program)
{
	const struct rh_executor_options *options = asking->options;
	struct rh_dispatch dispatch = run_dispatch(options);
	int64_t count = trains ? options->train_micro_batches : options->infer_micro_batches;
	int64_t round = rh_min(trains ? dispatch.train_round : dispatch.infer_round, count), rounds = rh_round_count(count, round);
	int64_t longest = rh_max(rh_round_count(count, rounds), rounds > 1 ? round : 0);
	int turn = 0, needed = 0;
	dispatch.train_round = dispatch.infer_round = 1;
	int rc = rh_dispatch_call(&dispatch, trains, 1, &turn, program);
	if (!rc && options->spills_boundaries) {
		rc = ask_step(asking, count, rounds, program);
		if (!rc && rounds > 1 && count % round)
			rc = ask_step(asking, (rounds - 1) * round, rounds - 1, program);
	}
	rc = rc ? rc : rh_boundaries_needed_in_round(options->plan, options->model->layers, program, longest, &needed);
	asking->needed = (int)rh_max(asking->needed, needed);
	return rc;
}

/* A step of another schedule. */
static int ask_scheduled(struct asking *asking, int64_t count, struct rh_program *program)
{
	const struct rh_executor_options *options = asking->options;
	const struct rh_dispatch dispatch = run_dispatch(options);
	const struct rh_plan *plan = options->plan;
	struct rh_dispatch_brief brief;
	int needed = 0, layers = options->model->layers;
	int rc = rh_dispatch_brief(&dispatch, count, &brief, program);
	if (!rc)
		rc = brief.each > 1 ? rh_boundaries_needed_in_round(plan, layers, program, brief.each, &needed)
		                    : rh_boundaries_needed(plan, layers, program, brief.count, &needed);
	asking->needed = (int)rh_max(asking->needed, needed);
	if (rc || !options->spills_boundaries)
		return rc;
	int64_t writes = 0;
	for (int64_t i = 0; !rc && i <= (brief.periods > 0); i++) {
		int64_t longer = brief.count + i * brief.period;
		rc = i ? rh_dispatch_shorter(&dispatch, longer, program) : 0;
		rc = rc ? rc : ask(asking, program, 1, longer, brief.each);
		writes += (asking->course.step_writes - writes) * (i ? brief.periods : 1);
	}
	asking->writes = rh_max(asking->writes, writes);
	return rc;
}

/* Any number of micro-batches up to the most: what is live grows with the micro-batches of a round. */
static int ask_all(struct asking *asking, struct rh_program *program)
{
	const struct rh_executor_options *options = asking->options;
	const struct rh_dispatch dispatch = run_dispatch(options);
	int rc = ask_stretch(asking, program);
	for (int trains = 0; !rc && trains < 2; trains++) {
		int64_t count = trains ? options->train_micro_batches : options->infer_micro_batches;
		/* where rounds do not count, a step needs no less than one shorter by as many as there are devices */
		int64_t distinct = rh_min(rh_dispatch_distinct(&dispatch, trains, count), (int64_t)options->devices);
		if (count && (!trains || rh_schedule_is_roundpipe(options->schedule))) {
			rc = ask_rounds(asking, trains, program);
			continue;
		}
		for (int64_t m = count; !rc && m > count - distinct; m--)
			rc = ask_scheduled(asking, m, program);
	}
	return rc;
}

int run_boundary_room(const struct rh_executor_options *options, struct run_boundary_room *out)
{
	struct asking asking = {.options = options};
	struct rh_program program = {0};
	int64_t spare = options->spare_boundaries, bytes = options->plan->boundary_bytes;
	int rc = ask_all(&asking, &program);
	rh_program_free(&program);
	run_course_counts_free(&asking.course);
	if (rc)
		return rc;
	*out = (struct run_boundary_room){.count = asking.needed ? asking.needed + (int)(options->devices > 1 || options->boxes ? spare : 0)
	                                                         : 0,
	                                  .bytes_each = bytes};
	int down = ring_down(options), up = UP_LEAST + (int)(options->devices > 1 ? spare : 0);
	int64_t rounded = rh_space_round(options->space, bytes);
	if (!options->spills_boundaries || !asking.records || rh_bytes_times(rounded, down + up) >= rh_bytes_times(bytes, out->count))
		return 0;
	*out = (struct run_boundary_room){
	        .count = down + up, .bytes_each = rounded, .down = down, .up = up, .records = asking.records, .step_writes = asking.writes};
	return 0;
}

int rh_executor_take_space(struct rh_executor_options *options)
{
	struct run_boundary_room room;
	int rc = run_boundary_room(options, &room);
	for (int i = 0, record; !rc && options->space && i < room.records; i++) {
		rc = rh_space_take(options->space, room.bytes_each, "boundary activations", NULL, i ? &record : &options->first_record);
		RH_ASSERT(rc || !i || record == options->first_record + i);
	}
	return rc;
}
