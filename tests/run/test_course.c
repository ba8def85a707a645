/* The way of boundaries through rings and NVMe: every read finds what was written, wherever the course says that it is, and no record is
 * another's too early; for many programs and rings. And the thread that carries it out. */
#include "check.h"

#include "core/minmax.h"
#include "device/device.h"
#include "offload/host_thread.h"
#include "offload/space.h"
#include "run/course.h"
#include "run/executor_internal.h"

#include <stdatomic.h>
#include <string.h>

/* Layers 0 to 7: forward stages up to 5, then fused [5, 8), [3, 5), [0, 3). */
static struct rh_stage forward[] = {{0, 2}, {2, 5}}, backward[] = {{5, 8}, {3, 5}, {0, 3}};
static const struct rh_plan plan = {.forward = forward, .backward = backward, .forward_stages = 2, .backward_stages = 3};
enum { LAYERS = 8, MICROS_MOST = 9, DOWN_MOST = 24, WRITES_MOST = 1000 };

/* Carries the course out with numbers of writes in place of bytes. */
static void check_course(const struct run_course *course, const struct run_course_counts *counts, int down)
{
	int64_t ring[DOWN_MOST], record[WRITES_MOST], writes = 0, reloads = 0, records = 0;
	memset(ring, -1, sizeof ring);
	memset(record, -1, sizeof record);
	for (size_t i = 0; i < course->touches; i++) {
		const struct run_touch *touch = &course->touch[i];
		int at = course->write[touch->write].record;
		if (touch->is_write) {
			assert_int_equal(touch->write, writes++);
			ring[touch->write % down] = touch->write;
			assert_true(at < course->records);
			if (at >= 0)
				record[at] = touch->write;
			records += at >= 0;
		} else if (touch->reload < 0) {
			assert_int_equal(ring[touch->write % down], touch->write);
		} else {
			assert_int_equal(touch->reload, reloads++);
			assert_int_equal(course->reload[touch->reload], touch->write);
			assert_int_equal(record[at], touch->write);
			assert_int_not_equal(ring[touch->write % down], touch->write); /* else it need not have gone there */
		}
	}
	assert_int_equal(writes, course->writes);
	assert_int_equal(reloads, course->reloads);
	assert_int_equal(records, counts->step_writes);
	assert_int_equal(course->records, counts->records);
}

static void test_every_read_finds_what_was_written(void **state)
{
	(void)state;
	struct run_course course = {0};
	struct run_course_counts counts = {0};
	struct rh_program program = {0};
	for (int trains = 0; trains < 2; trains++)
		for (int64_t m = 1; m <= MICROS_MOST; m++)
			for (int64_t round = 1; round <= m; round++)
				for (int down = 1; down <= DOWN_MOST; down++) {
					int turn = 0;
					struct rh_boundary_walk walk = {
					        .plan = &plan, .layers = LAYERS, .program = &program, .steps_held = 1};
					check_ok(rh_roundpipe_program(&plan, trains, 2, m, round, &turn, &program));
					check_ok(run_course_make(&course, &walk, m, down));
					check_ok(run_course_count(&counts, &walk, m, down));
					check_course(&course, &counts, down);
					assert_true(trains || down < round || !course.records); /* so short rounds write nothing */
				}
	rh_program_free(&program);
	run_course_free(&course);
	run_course_counts_free(&counts);
}

/* Boundaries written to NVMe in the step that writes the most. */
static int64_t most_writes(const struct run_course *course)
{
	int64_t most = 0, steps = 1;
	for (int64_t step = 0; step < steps; step++) {
		int64_t of_step = 0;
		for (size_t i = 0; i < course->touches; i++) {
			const struct run_touch *touch = &course->touch[i];
			steps = rh_max(steps, touch->step + 1);
			of_step += touch->is_write && touch->step == step && course->write[touch->write].record >= 0;
		}
		most = rh_max(most, of_step);
	}
	return most;
}

/* Of programs whose slots are of several steps, in turns. */
static void test_counts_of_several_steps_are_the_courses(void **state)
{
	(void)state;
	struct run_course course = {0};
	struct run_course_counts counts = {0};
	struct rh_program program = {0};
	int64_t written = 0;
	for (int64_t m = 1; m <= MICROS_MOST; m++)
		for (int steps = 1; steps <= 4; steps++)
			for (int down = 1; down <= DOWN_MOST; down++) {
				int turn = 0;
				struct rh_boundary_walk walk = {.plan = &plan, .layers = LAYERS, .program = &program, .steps_held = 1};
				check_ok(rh_roundpipe_program(&plan, 1, 2, m, (m + 1) / 2, &turn, &program));
				for (size_t i = 0; i < program.slots; i++)
					program.slot[i].step = (int64_t)i % steps;
				check_ok(run_course_make(&course, &walk, m, down));
				check_ok(run_course_count(&counts, &walk, m, down));
				assert_int_equal(counts.records, course.records);
				assert_int_equal(counts.step_writes, most_writes(&course));
				written += counts.step_writes;
			}
	assert_true(written > 100);
	rh_program_free(&program);
	run_course_free(&course);
	run_course_counts_free(&counts);
}

/* What is reserved for rounds, by one or two of them, against all programs of as many micro-batches or fewer. */
static void test_rounds_are_reserved_for_as_all_their_programs_ask(void **state)
{
	(void)state;
	const struct rh_model model = {.layers = LAYERS};
	struct rh_plan large = plan;
	struct run_course course = {0};
	struct rh_program program = {0};
	int spilled = 0;
	large.boundary_bytes = RH_SPACE_UNIT;
	for (int64_t count = 1; count <= 24; count++)
		for (int64_t round = 1; round <= count; round++)
			for (int64_t spare = 0; spare <= 8; spare += 4) {
				const struct rh_executor_options options = {.plan = &large,
				                                            .model = &model,
				                                            .schedule = rh_schedule_find("roundpipe"),
				                                            .devices = 2,
				                                            .train_micro_batches = count,
				                                            .train_round = round,
				                                            .spare_boundaries = spare,
				                                            .spills_boundaries = 1};
				struct run_boundary_room room;
				int64_t writes = 0, records = 0;
				check_ok(run_boundary_room(&options, &room));
				for (int64_t m = count; m > count - round; m--) {
					int turn = 0;
					struct rh_boundary_walk walk = {
					        .plan = &plan, .layers = LAYERS, .program = &program, .steps_held = 1};
					check_ok(rh_roundpipe_program(&plan, 1, 2, m, round < m ? round : m, &turn, &program));
					check_ok(run_course_make(&course, &walk, m, 4 + (int)spare));
					writes = rh_max(writes, most_writes(&course));
					records = rh_max(records, course.records);
				}
				if (!room.records)
					continue;
				assert_int_equal(room.records, records);
				assert_int_equal(room.step_writes, writes);
				spilled++;
			}
	printf("%d of them spill\n", spilled);
	assert_true(spilled > 50);
	rh_program_free(&program);
	run_course_free(&course);
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
	        cmocka_unit_test(test_counts_of_several_steps_are_the_courses),
	        cmocka_unit_test(test_rounds_are_reserved_for_as_all_their_programs_ask),
	        cmocka_unit_test(test_a_thread_does_jobs_in_order_until_one_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
