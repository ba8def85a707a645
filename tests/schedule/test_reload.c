/* Boundaries through rings and NVMe: every read finds what was written where schedule/reload.h says that it is, and no record is
 * overwritten too early; for many programs and rings. And the thread that carries it out. */
#include "check.h"
#include "eight_layers.h"

#include "core/minmax.h"
#include "device/device.h"
#include "offload/host_thread.h"
#include "offload/space.h"
#include "schedule/needs.h"
#include "schedule/reload.h"

#include <stdatomic.h>
#include <string.h>

enum { MICROS_MOST = 9, DOWN_MOST = 24, WRITES_MOST = 1000 };

/* Carries the reloads out with numbers of writes in place of bytes. */
static void check_contents(const struct rh_reloads *reloads, int down)
{
	int64_t ring[DOWN_MOST], record[WRITES_MOST], writes = 0, reloaded = 0, records = 0;
	memset(ring, -1, sizeof ring);
	memset(record, -1, sizeof record);
	for (size_t i = 0; i < reloads->accesses; i++) {
		const struct rh_reload_access *access = &reloads->access[i];
		int at = reloads->write[access->write].record;
		if (access->is_write) {
			assert_int_equal(access->write, writes++);
			ring[access->write % down] = access->write;
			assert_true(at < reloads->records[0]);
			if (at >= 0)
				record[at] = access->write;
			records += at >= 0;
		} else if (access->reload < 0) {
			assert_int_equal(ring[access->write % down], access->write);
		} else {
			assert_int_equal(access->reload, reloaded++);
			assert_int_equal(reloads->reload[access->reload], access->write);
			assert_int_equal(record[at], access->write);
			assert_int_not_equal(ring[access->write % down], access->write); /* else it need not have gone there */
		}
	}
	assert_int_equal(writes, reloads->writes);
	assert_int_equal(reloaded, reloads->count);
	assert_int_equal(records, reloads->step_writes);
}

static void test_every_read_finds_what_was_written(void **state)
{
	(void)state;
	struct rh_reloads reloads = {0};
	struct rh_program program = {0};
	for (int trains = 0; trains < 2; trains++)
		for (int64_t m = 1; m <= MICROS_MOST; m++)
			for (int64_t round = 1; round <= m; round++)
				for (int down = 1; down <= DOWN_MOST; down++) {
					int turn = 0;
					struct rh_boundary_walk walk = {
					        .plan = &plan, .layers = LAYERS, .program = &program, .steps_in_flight = 1};
					check_ok(rh_roundpipe_program(&plan, trains, 2, m, round, &turn, &program));
					check_ok(rh_reloads_find(&reloads, &walk, m, down));
					check_contents(&reloads, down);
					assert_true(trains || down < round || !reloads.records[0]); /* so short rounds write nothing */
				}
	rh_program_free(&program);
	rh_reloads_free(&reloads);
}

/* Boundaries written to NVMe in the step that writes the most. */
static int64_t most_writes(const struct rh_reloads *reloads)
{
	int64_t most = 0, steps = 1;
	for (int64_t step = 0; step < steps; step++) {
		int64_t of_step = 0;
		for (size_t i = 0; i < reloads->accesses; i++) {
			const struct rh_reload_access *access = &reloads->access[i];
			steps = rh_max(steps, access->step + 1);
			of_step += access->is_write && access->step == step && reloads->write[access->write].record >= 0;
		}
		most = rh_max(most, of_step);
	}
	return most;
}

/* Of programs whose slots are of several steps, in turns. */
static void test_writes_are_counted_by_step(void **state)
{
	(void)state;
	struct rh_reloads reloads = {0};
	struct rh_program program = {0};
	int64_t written = 0;
	for (int64_t m = 1; m <= MICROS_MOST; m++)
		for (int steps = 1; steps <= 4; steps++)
			for (int down = 1; down <= DOWN_MOST; down++) {
				int turn = 0;
				struct rh_boundary_walk walk = {.plan = &plan, .layers = LAYERS, .program = &program, .steps_in_flight = 1};
				check_ok(rh_roundpipe_program(&plan, 1, 2, m, (m + 1) / 2, &turn, &program));
				for (size_t i = 0; i < program.slots; i++)
					program.slot[i].step = (int64_t)i % steps;
				check_ok(rh_reloads_find(&reloads, &walk, m, down));
				assert_int_equal(reloads.step_writes, most_writes(&reloads));
				written += reloads.step_writes;
			}
	assert_true(written > 100);
	rh_program_free(&program);
	rh_reloads_free(&reloads);
}

/* Rounds of many micro-batches, by one. */
static void test_a_rounds_counts_are_known_by_one_micro_batch(void **state)
{
	(void)state;
	struct rh_reloads counts = {0}, by_one = {0};
	struct rh_program program = {0}, one = {0};
	int spilled = 0;
	for (int p = 0; p < PLANS; p++)
		for (int trains = 0; trains < 2; trains++)
			for (int64_t m = 1; m <= 40; m++)
				for (int ring = 1; ring <= 90; ring += 1 + ring / 12) {
					int turn = 0;
					struct rh_boundary_walk walk = {
					        .plan = all_plans[p], .layers = LAYERS, .program = &program, .steps_in_flight = 1};
					check_ok(rh_roundpipe_program(all_plans[p], trains, 2, m, m, &turn, &program));
					check_ok(rh_roundpipe_program(all_plans[p], trains, 2, 1, 1, &turn, &one));
					check_ok(rh_reloads_find(&counts, &walk, m, ring));
					walk.program = &one;
					check_ok(rh_reloads_count_round(&by_one, &walk, m, ring));
					assert_int_equal(by_one.records[0], counts.records[0]);
					assert_int_equal(by_one.step_writes, counts.step_writes);
					spilled += counts.records[0] > 0;
				}
	printf("%d of them spill\n", spilled);
	assert_true(spilled > 1000);
	rh_program_free(&program);
	rh_program_free(&one);
	rh_reloads_free(&counts);
	rh_reloads_free(&by_one);
}

/* What is reserved for rounds, by one or two of them, against all programs of as many micro-batches or fewer. */
static void test_rounds_are_reserved_for_as_all_their_programs_ask(void **state)
{
	(void)state;
	const struct rh_model model = {.layers = LAYERS};
	struct rh_stage_plan large = plan;
	struct rh_reloads reloads = {0};
	struct rh_program program = {0};
	int spilled = 0;
	large.boundary_bytes = RH_SPACE_UNIT;
	for (int64_t count = 1; count <= 24; count++)
		for (int64_t round = 1; round <= count; round++)
			for (int64_t spare = 0; spare <= 8; spare += 4) {
				const struct rh_boundary_run run = {.dispatch = {.plan = &large,
				                                                 .model = &model,
				                                                 .schedule = rh_schedule_find("roundpipe"),
				                                                 .devices = 2,
				                                                 .train_micro_batches = count,
				                                                 .train_round = round},
				                                    .spare = spare,
				                                    .spills = 1,
				                                    .record_bytes = large.boundary_bytes};
				struct rh_boundary_needs needs;
				int64_t writes = 0, records = 0;
				check_ok(rh_boundary_needs(&run, &needs));
				for (int64_t m = count; m > count - round; m--) {
					int turn = 0;
					struct rh_boundary_walk walk = {
					        .plan = &plan, .layers = LAYERS, .program = &program, .steps_in_flight = 1};
					check_ok(rh_roundpipe_program(&plan, 1, 2, m, round < m ? round : m, &turn, &program));
					check_ok(rh_reloads_find(&reloads, &walk, m, 4 + (int)spare));
					writes = rh_max(writes, most_writes(&reloads));
					records = rh_max(records, reloads.records[0]);
				}
				if (!needs.records)
					continue;
				assert_int_equal(needs.records, records);
				assert_int_equal(needs.step_writes, writes);
				spilled++;
			}
	printf("%d of them spill\n", spilled);
	assert_true(spilled > 50);
	rh_program_free(&program);
	rh_reloads_free(&reloads);
}

/* What a program takes that is made whole. */
struct whole {
	int64_t writes;
	int records, needed;
};

static void walk_whole(const struct rh_boundary_run *run, const struct rh_program *program, int64_t held, int64_t count, struct whole *out)
{
	struct rh_reloads counts = {0};
	const struct rh_boundary_walk walk = {.plan = run->dispatch.plan,
	                                      .layers = run->dispatch.model->layers,
	                                      .program = program,
	                                      .steps_in_flight = held,
	                                      .step_micro_batches = run->dispatch.train_micro_batches};
	check_ok(rh_reloads_find(&counts, &walk, held * count, 4 + (int)run->spare));
	out->writes = rh_max(out->writes, counts.step_writes);
	out->records = (int)rh_max(out->records, counts.records[0]);
	rh_reloads_free(&counts);
}

/* A step, all that a run may ask for in its place, and where steps are not flushed many of them. */
static void ask_whole(const struct rh_boundary_run *run, struct whole *out)
{
	const struct rh_dispatch dispatch = run->dispatch;
	int64_t count = dispatch.train_micro_batches;
	struct rh_program program = {0};
	*out = (struct whole){0};
	if (rh_dispatch_is_local(&dispatch)) {
		int64_t held = rh_boundary_steps_in_flight(&dispatch);
		out->needed = rh_boundary_in_flight(&dispatch);
		check_ok(rh_dispatch_stretch(&dispatch, count, 2 * held + 2, &program));
		walk_whole(run, &program, held, count, out);
		out->records = out->records ? out->needed : 0;
	}
	for (int64_t m = count; m > count - rh_min(rh_dispatch_distinct(&dispatch, 1, count), (int64_t)dispatch.devices); m--) {
		int turn = 0, needed;
		check_ok(rh_dispatch_call(&dispatch, 1, m, &turn, &program));
		check_ok(rh_boundaries_needed(dispatch.plan, dispatch.model->layers, &program, m, &needed));
		out->needed = (int)rh_max(out->needed, needed);
		walk_whole(run, &program, 1, m, out);
	}
	rh_program_free(&program);
}

/* Steps of every schedule, of many micro-batches, are reserved for by shorter ones. */
static void test_long_steps_are_known_by_shorter_ones(void **state)
{
	(void)state;
	enum { DEEP = 13 };
	struct rh_stage up[DEEP], down[DEEP];
	const struct rh_model model = {.layers = DEEP};
	const int64_t limit[4] = {9, 6, 3, 4};
	int spilled = 0, with_limits = 0;
	for (int i = 0; i < rh_schedule_count; i++)
		for (int devices = 1; devices <= 4; devices++)
			for (int each = rh_schedules[i].stages_least; each && each <= 3 && each <= rh_schedules[i].stages_most; each++)
				for (int64_t n = 0; n < 30; n++) {
					int stages = each * devices, is_limited = !strcmp(rh_schedules[i].name, "paci") && n % 2;
					int64_t count = (is_limited ? 430 : 15 * devices) + 3 * n, spare = is_limited ? n % 4 : 7 * n % 40;
					struct rh_stage_plan cut = {.forward = up,
					                            .backward = down,
					                            .forward_stages = stages - 1,
					                            .backward_stages = stages,
					                            .boundary_bytes = RH_SPACE_UNIT};
					struct rh_boundary_run run = {.dispatch = {.plan = &cut,
					                                           .model = &model,
					                                           .schedule = &rh_schedules[i],
					                                           .devices = devices,
					                                           .train_micro_batches = count,
					                                           .train_round = count,
					                                           .admission_limit = is_limited ? limit : NULL},
					                              .spare = spare,
					                              .record_bytes = cut.boundary_bytes};
					struct rh_boundary_needs needs;
					struct whole whole;
					for (int s = 0; s < stages; s++)
						up[s] = down[stages - 1 - s] = (struct rh_stage){s, s + 1 < stages ? s + 1 : DEEP};
					ask_whole(&run, &whole);
					check_ok(rh_boundary_needs(&run, &needs));
					assert_int_equal(needs.count, whole.needed ? whole.needed + (devices > 1 ? spare : 0) : 0);
					run.spills = 1;
					check_ok(rh_boundary_needs(&run, &needs));
					if (!needs.records)
						continue;
					assert_int_equal(needs.records, whole.records);
					assert_int_equal(needs.step_writes, whole.writes);
					with_limits += is_limited;
					spilled++;
				}
	printf("%d of them spill\n", spilled);
	assert_true(spilled > 200 && with_limits > 10);
}

/* ---- the host's thread ---- */

struct counting {
	atomic_int done;
	int fails_at;
};

static int count(void *context, int64_t argument)
{
	struct counting *counting = context;
	assert_int_equal(atomic_fetch_add(&counting->done, 1), argument);
	return argument == counting->fails_at ? rh_fail(-EIO, "job %d went wrong", (int)argument) : 0;
}

static void test_a_thread_does_jobs_in_order_until_one_fails(void **state)
{
	(void)state;
	enum { JOBS = 50, CAPACITY = 4 };
	for (int fails_at = -1; fails_at < JOBS; fails_at += 17) {
		struct counting counting = {.fails_at = fails_at};
		struct rh_host_queue *queue;
		int64_t ticket[JOBS];
		int rc = 0;
		check_ok(rh_host_thread_open(CAPACITY, &queue));
		for (int i = 0; i < JOBS; i++) {
			if (i >= CAPACITY)
				rc = queue->ops->await(queue, ticket[i - CAPACITY]);
			assert_true(!rc || i > fails_at);
			struct rh_host_job job = {.work = RH_HOST_MEMORY, .run = count, .context = &counting, .argument = i};
			check_ok(queue->ops->submit(queue, &job, &ticket[i]));
			assert_int_equal(ticket[i], i + 1);
		}
		rc = queue->ops->await(queue, ticket[JOBS - 1]);
		assert_int_equal(rc, fails_at < 0 ? 0 : -EIO);
		assert_true(!rc || strstr(rh_error(rc), "went wrong"));
		assert_int_equal(counting.done, fails_at < 0 ? JOBS : fails_at + 1);
		queue->ops->destroy(queue);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_every_read_finds_what_was_written),
	        cmocka_unit_test(test_writes_are_counted_by_step),
	        cmocka_unit_test(test_a_rounds_counts_are_known_by_one_micro_batch),
	        cmocka_unit_test(test_rounds_are_reserved_for_as_all_their_programs_ask),
	        cmocka_unit_test(test_long_steps_are_known_by_shorter_ones),
	        cmocka_unit_test(test_a_thread_does_jobs_in_order_until_one_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
