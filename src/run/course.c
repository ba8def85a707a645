#include "run/course.h"

#include "core/alloc.h"

#include <string.h>

struct making {
	struct run_course *course;
	int layers, down;
	int64_t micro_batches;
};

static int64_t *where(const struct making *making, const struct rh_boundary_touch *touch)
{
	int64_t row = (int64_t)touch->kind * (making->layers + 1) + touch->layer;
	RH_ASSERT(touch->micro_batch >= 0 && touch->micro_batch < making->micro_batches);
	return &making->course->where[row * making->micro_batches + touch->micro_batch];
}

static int note(void *context, const struct rh_boundary_touch *touch)
{
	struct making *making = context;
	struct run_course *course = making->course;
	if (touch->act == RH_BOUNDARY_LEAVE)
		return 0;
	int is_write = touch->act == RH_BOUNDARY_WRITE;
	int64_t *at = where(making, touch);
	int rc = rh_grow(&course->touch, &course->touch_capacity, course->touches + 1, sizeof *course->touch);
	if (!rc && is_write)
		rc = rh_grow(&course->write, &course->write_capacity, course->writes + 1, sizeof *course->write);
	else if (!rc)
		rc = rh_grow(&course->reload, &course->reload_capacity, course->reloads + 1, sizeof *course->reload);
	if (rc)
		return rc;
	if (is_write) {
		*at = (int64_t)course->writes;
		course->write[course->writes++] = (struct run_write){.record = -1};
	}
	RH_ASSERT(*at >= 0);
	int reload = !is_write && (int64_t)course->writes > *at + making->down;
	course->touch[course->touches++] = (struct run_touch){.is_write = is_write,
	                                                      .kind = (int)touch->kind,
	                                                      .layer = touch->layer,
	                                                      .micro_batch = touch->micro_batch,
	                                                      .step = touch->step,
	                                                      .write = *at,
	                                                      .reload = reload ? (int64_t)course->reloads : -1};
	if (reload) {
		course->reload[course->reloads++] = *at;
		course->write[*at].reloads++;
	}
	return 0;
}

/* A record is another boundary's once the last reload of the one before has come back. */
static int give_records(struct run_course *course)
{
	int rc = rh_grow(&course->free_record, &course->free_capacity, course->writes + 1, sizeof *course->free_record), unused = 0;
	for (size_t i = 0; !rc && i < course->touches; i++) {
		const struct run_touch *touch = &course->touch[i];
		struct run_write *write = &course->write[touch->write];
		if (touch->is_write && write->reloads)
			write->record = unused ? course->free_record[--unused] : course->records++;
		else if (touch->reload >= 0 && --write->reloads == 0)
			course->free_record[unused++] = write->record;
	}
	return rc;
}

int64_t run_course_writes(const struct run_course *course)
{
	int64_t most = 0, of_step = 0, steps = 1;
	for (int64_t step = 0; step < steps; step++, of_step = 0) {
		for (size_t i = 0; i < course->touches; i++) {
			const struct run_touch *touch = &course->touch[i];
			steps = touch->step + 1 > steps ? touch->step + 1 : steps;
			of_step += touch->is_write && touch->step == step && course->write[touch->write].record >= 0;
		}
		most = of_step > most ? of_step : most;
	}
	return most;
}

int run_course_make(struct run_course *course, const struct rh_boundary_walk *walk, int64_t micro_batches, int down)
{
	size_t places = (size_t)(RH_BOUNDARY_KINDS * (walk->layers + 1) * micro_batches);
	struct making making = {.course = course, .layers = walk->layers, .down = down, .micro_batches = micro_batches};
	struct rh_boundary_walk own = *walk;
	own.touch = note;
	own.context = &making;
	course->touches = course->writes = course->reloads = 0;
	course->records = 0;
	int rc = rh_grow(&course->where, &course->where_capacity, places, sizeof *course->where);
	if (rc)
		return rc;
	memset(course->where, -1, places * sizeof *course->where);
	rc = rh_boundary_walk(&own);
	return rc ? rc : give_records(course);
}

void run_course_free(struct run_course *course)
{
	rh_free(course->touch);
	rh_free(course->write);
	rh_free(course->reload);
	rh_free(course->where);
	rh_free(course->free_record);
	*course = (struct run_course){0};
}
