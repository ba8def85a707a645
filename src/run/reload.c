#include "run/reload.h"

#include "core/alloc.h"

#include <string.h>

struct finding {
	struct run_reloads *reloads;
	int layers, down;
	int64_t micro_batches;
};

static int64_t *latest_write(const struct finding *finding, const struct rh_boundary_access *access)
{
	int64_t row = (int64_t)access->kind * (finding->layers + 1) + access->layer;
	RH_ASSERT(access->micro_batch >= 0 && access->micro_batch < finding->micro_batches);
	return &finding->reloads->latest[row * finding->micro_batches + access->micro_batch];
}

static int note(void *context, const struct rh_boundary_access *access)
{
	struct finding *finding = context;
	struct run_reloads *reloads = finding->reloads;
	if (access->verb == RH_BOUNDARY_RELEASE)
		return 0;
	int is_write = access->verb == RH_BOUNDARY_WRITE;
	int64_t *at = latest_write(finding, access);
	int rc = rh_grow(&reloads->access, &reloads->access_capacity, reloads->accesses + 1, sizeof *reloads->access);
	if (!rc && is_write)
		rc = rh_grow(&reloads->write, &reloads->write_capacity, reloads->writes + 1, sizeof *reloads->write);
	else if (!rc)
		rc = rh_grow(&reloads->reload, &reloads->reload_capacity, reloads->count + 1, sizeof *reloads->reload);
	if (rc)
		return rc;
	if (is_write) {
		*at = (int64_t)reloads->writes;
		reloads->write[reloads->writes++] = (struct run_write){.record = -1};
	}
	RH_ASSERT(*at >= 0);
	int reload = !is_write && (int64_t)reloads->writes > *at + finding->down;
	reloads->access[reloads->accesses++] = (struct run_access){.is_write = is_write,
	                                                           .kind = (int)access->kind,
	                                                           .layer = access->layer,
	                                                           .micro_batch = access->micro_batch,
	                                                           .step = access->step,
	                                                           .write = *at,
	                                                           .reload = reload ? (int64_t)reloads->count : -1};
	if (reload) {
		reloads->reload[reloads->count++] = *at;
		reloads->write[*at].reloads++;
	}
	return 0;
}

/* A record is free for another boundary once the last reload of the one before is read. */
static int give_records(struct run_reloads *reloads)
{
	int rc = rh_grow(&reloads->free_record, &reloads->free_capacity, reloads->writes + 1, sizeof *reloads->free_record), unused = 0;
	for (size_t i = 0; !rc && i < reloads->accesses; i++) {
		const struct run_access *access = &reloads->access[i];
		struct run_write *write = &reloads->write[access->write];
		if (access->is_write && write->reloads)
			write->record = unused ? reloads->free_record[--unused] : reloads->records++;
		else if (access->reload >= 0 && --write->reloads == 0)
			reloads->free_record[unused++] = write->record;
	}
	return rc;
}

/* Walks with an entry for each boundary's latest write, none at first. */
static int walk_boundaries(const struct rh_boundary_walk *walk, int64_t micro_batches, int64_t **latest, size_t *capacity,
                           int (*access)(void *context, const struct rh_boundary_access *access), void *context)
{
	size_t places = (size_t)(RH_BOUNDARY_KINDS * (walk->layers + 1) * micro_batches);
	struct rh_boundary_walk own = *walk;
	own.access = access;
	own.context = context;
	int rc = rh_grow(latest, capacity, places, sizeof **latest);
	if (rc)
		return rc;
	memset(*latest, -1, places * sizeof **latest);
	return rh_boundary_walk(&own);
}

int run_reloads_find(struct run_reloads *reloads, const struct rh_boundary_walk *walk, int64_t micro_batches, int down)
{
	struct finding finding = {.reloads = reloads, .layers = walk->layers, .down = down, .micro_batches = micro_batches};
	reloads->accesses = reloads->writes = reloads->count = 0;
	reloads->records = 0;
	int rc = walk_boundaries(walk, micro_batches, &reloads->latest, &reloads->latest_capacity, note, &finding);
	return rc ? rc : give_records(reloads);
}

void run_reloads_free(struct run_reloads *reloads)
{
	rh_free(reloads->access);
	rh_free(reloads->write);
	rh_free(reloads->reload);
	rh_free(reloads->latest);
	rh_free(reloads->free_record);
	*reloads = (struct run_reloads){0};
}

/* A write, where only counts are wanted. */
struct run_counted {
	int64_t step, gone; /* writes that there are when its last reload comes; 0: none comes */
	int64_t free;       /* records that are free before it, of those that went before */
};

struct counting {
	struct run_reload_counts *counts;
	int layers, down;
	int64_t micro_batches;
};

static int count(void *context, const struct rh_boundary_access *access)
{
	struct counting *counting = context;
	struct run_reload_counts *counts = counting->counts;
	if (access->verb == RH_BOUNDARY_RELEASE)
		return 0;
	RH_ASSERT(access->micro_batch >= 0 && access->micro_batch < counting->micro_batches);
	int64_t row = (int64_t)access->kind * (counting->layers + 1) + access->layer;
	int64_t *at = &counts->latest[row * counting->micro_batches + access->micro_batch];
	if (access->verb == RH_BOUNDARY_WRITE) {
		int rc = rh_grow(&counts->write, &counts->write_capacity, counts->writes + 1, sizeof *counts->write);
		if (rc)
			return rc;
		*at = (int64_t)counts->writes;
		counts->write[counts->writes++] = (struct run_counted){.step = access->step};
		return 0;
	}
	RH_ASSERT(*at >= 0);
	if ((int64_t)counts->writes > *at + counting->down)
		counts->write[*at].gone = (int64_t)counts->writes;
	return 0;
}

/* As give_records: there are as many records as are in use at once. */
static void count_records(struct run_reload_counts *counts)
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

static int count_writes(struct run_reload_counts *counts)
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

int run_reload_count(struct run_reload_counts *counts, const struct rh_boundary_walk *walk, int64_t micro_batches, int down)
{
	struct counting counting = {.counts = counts, .layers = walk->layers, .down = down, .micro_batches = micro_batches};
	counts->writes = 0;
	int rc = walk_boundaries(walk, micro_batches, &counts->latest, &counts->latest_capacity, count, &counting);
	if (rc)
		return rc;
	count_records(counts);
	return count_writes(counts);
}

void run_reload_counts_free(struct run_reload_counts *counts)
{
	rh_free(counts->write);
	rh_free(counts->latest);
	rh_free(counts->of_step);
	rh_free(counts->stream);
	rh_free(counts->round);
	*counts = (struct run_reload_counts){0};
}
