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

/* Walks with a place for each boundary's latest write, none at first. */
static int walk_places(const struct rh_boundary_walk *walk, int64_t micro_batches, int64_t **where, size_t *capacity,
                       int (*touch)(void *context, const struct rh_boundary_touch *touch), void *context)
{
	size_t places = (size_t)(RH_BOUNDARY_KINDS * (walk->layers + 1) * micro_batches);
	struct rh_boundary_walk own = *walk;
	own.touch = touch;
	own.context = context;
	int rc = rh_grow(where, capacity, places, sizeof **where);
	if (rc)
		return rc;
	memset(*where, -1, places * sizeof **where);
	return rh_boundary_walk(&own);
}

int run_course_make(struct run_course *course, const struct rh_boundary_walk *walk, int64_t micro_batches, int down)
{
	struct making making = {.course = course, .layers = walk->layers, .down = down, .micro_batches = micro_batches};
	course->touches = course->writes = course->reloads = 0;
	course->records = 0;
	int rc = walk_places(walk, micro_batches, &course->where, &course->where_capacity, note, &making);
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

/* A write, where only counts are wanted. */
struct run_counted {
	int64_t step, gone; /* writes that there are when its last reload comes; 0: none comes */
	int64_t free;       /* records that are free before it, of those that went before */
};

struct counting {
	struct run_course_counts *counts;
	int layers, down;
	int64_t micro_batches;
};

static int count(void *context, const struct rh_boundary_touch *touch)
{
	struct counting *counting = context;
	struct run_course_counts *counts = counting->counts;
	if (touch->act == RH_BOUNDARY_LEAVE)
		return 0;
	RH_ASSERT(touch->micro_batch >= 0 && touch->micro_batch < counting->micro_batches);
	int64_t row = (int64_t)touch->kind * (counting->layers + 1) + touch->layer;
	int64_t *at = &counts->where[row * counting->micro_batches + touch->micro_batch];
	if (touch->act == RH_BOUNDARY_WRITE) {
		int rc = rh_grow(&counts->write, &counts->write_capacity, counts->writes + 1, sizeof *counts->write);
		if (rc)
			return rc;
		*at = (int64_t)counts->writes;
		counts->write[counts->writes++] = (struct run_counted){.step = touch->step};
		return 0;
	}
	RH_ASSERT(*at >= 0);
	if ((int64_t)counts->writes > *at + counting->down)
		counts->write[*at].gone = (int64_t)counts->writes;
	return 0;
}

/* As give_records: there are as many records as are in use at once. */
static void count_records(struct run_course_counts *counts)
{
	int in_use = 0;
	counts->records = 0;
	for (size_t n = 0; n < counts->writes; n++) {
		const struct run_counted *write = &counts->write[n];
		in_use -= (int)write->free;
		if (!write->gone)
			continue;
		if (++in_use > counts->records)
			counts->records = in_use;
		if (write->gone < (int64_t)counts->writes)
			counts->write[write->gone].free++;
	}
}

static int count_writes(struct run_course_counts *counts)
{
	int64_t steps = 0;
	for (size_t n = 0; n < counts->writes; n++)
		steps = counts->write[n].step >= steps ? counts->write[n].step + 1 : steps;
	int rc = rh_grow(&counts->of_step, &counts->step_capacity, (size_t)steps + 1, sizeof *counts->of_step);
	if (rc)
		return rc;
	memset(counts->of_step, 0, (size_t)(steps + 1) * sizeof *counts->of_step);
	counts->step_writes = 0;
	for (size_t n = 0; n < counts->writes; n++) {
		int64_t *of_step = &counts->of_step[counts->write[n].step];
		*of_step += counts->write[n].gone > 0;
		counts->step_writes = *of_step > counts->step_writes ? *of_step : counts->step_writes;
	}
	return 0;
}

int run_course_count(struct run_course_counts *counts, const struct rh_boundary_walk *walk, int64_t micro_batches, int down)
{
	struct counting counting = {.counts = counts, .layers = walk->layers, .down = down, .micro_batches = micro_batches};
	counts->writes = 0;
	int rc = walk_places(walk, micro_batches, &counts->where, &counts->where_capacity, count, &counting);
	if (rc)
		return rc;
	count_records(counts);
	return count_writes(counts);
}

void run_course_counts_free(struct run_course_counts *counts)
{
	rh_free(counts->write);
	rh_free(counts->where);
	rh_free(counts->of_step);
	rh_free(counts->stream);
	rh_free(counts->round);
	*counts = (struct run_course_counts){0};
}
