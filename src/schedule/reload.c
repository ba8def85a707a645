#include "schedule/reload.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <string.h>

struct finding {
	struct rh_reloads *reloads;
	const struct rh_chunk_classes *classes;
	int layers, write_buffers, chunks;
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
	struct rh_reloads *reloads = finding->reloads;
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
		int size = rh_record_size(access->kind, finding->chunks > 1 ? finding->classes : NULL,
		                          access->micro_batch % rh_max(finding->chunks, 1));
		reloads->write[reloads->writes++] = (struct rh_reload_write){.record = -1, .size = size};
	}
	RH_ASSERT(*at >= 0);
	int reload = !is_write && (int64_t)reloads->writes > *at + finding->write_buffers;
	reloads->access[reloads->accesses++] = (struct rh_reload_access){.is_write = is_write,
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

/* Gives out records. A record is free for another boundary after the last reload of the one that it has. */
static void give_records(struct rh_reloads *reloads)
{
	int unused[RH_RECORD_SIZES]; /* of each size the latest write whose record became free; -1: there is none */
	memset(unused, -1, sizeof unused);
	for (size_t i = 0; i < reloads->accesses; i++) {
		const struct rh_reload_access *access = &reloads->access[i];
		struct rh_reload_write *write = &reloads->write[access->write];
		int *latest = &unused[write->size];
		if (access->is_write && write->reloads) {
			write->record = *latest >= 0 ? reloads->write[*latest].record : reloads->records[write->size]++;
			*latest = *latest >= 0 ? reloads->write[*latest].unused : -1;
		} else if (access->reload >= 0 && --write->reloads == 0) {
			write->unused = *latest;
			*latest = (int)access->write;
		}
	}
}

/* Counts the writes to NVMe of the step that has the most: slots of several steps may alternate. */
static int count_writes(struct rh_reloads *reloads)
{
	int64_t steps = 1, most = 0;
	for (size_t i = 0; i < reloads->accesses; i++)
		steps = rh_max(steps, reloads->access[i].step + 1);
	int rc = rh_grow(&reloads->of_step, &reloads->step_capacity, (size_t)steps, sizeof *reloads->of_step);
	if (rc)
		return rc;
	memset(reloads->of_step, 0, (size_t)steps * sizeof *reloads->of_step);
	for (size_t i = 0; i < reloads->accesses; i++) {
		const struct rh_reload_access *access = &reloads->access[i];
		int64_t *writes = &reloads->of_step[access->step];
		*writes += access->is_write && reloads->write[access->write].record >= 0;
		most = *writes > reloads->step_writes ? access->step : most;
		reloads->step_writes = rh_max(reloads->step_writes, *writes);
	}
	for (size_t i = 0; i < reloads->accesses; i++) {
		const struct rh_reload_access *access = &reloads->access[i];
		const struct rh_reload_write *write = &reloads->write[access->write];
		reloads->size_writes[write->size] += access->step == most && access->is_write && write->record >= 0;
	}
	return 0;
}

int rh_reloads_find(struct rh_reloads *reloads, const struct rh_boundary_walk *walk, int64_t micro_batches, int write_buffers)
{
	struct finding finding = {.reloads = reloads,
	                          .classes = walk->classes,
	                          .layers = walk->layers,
	                          .write_buffers = write_buffers,
	                          .chunks = walk->chunks,
	                          .micro_batches = micro_batches};
	size_t boundaries = (size_t)(RH_BOUNDARY_KINDS * (walk->layers + 1) * micro_batches);
	struct rh_boundary_walk own = *walk;
	own.access = note;
	own.context = &finding;
	reloads->accesses = reloads->writes = reloads->count = reloads->next = 0;
	reloads->step_writes = 0;
	memset(reloads->records, 0, sizeof reloads->records);
	memset(reloads->size_writes, 0, sizeof reloads->size_writes);
	int rc = rh_grow(&reloads->latest, &reloads->latest_capacity, boundaries, sizeof *reloads->latest);
	if (rc)
		return rc;
	memset(reloads->latest, -1, boundaries * sizeof *reloads->latest);
	rc = rh_boundary_walk(&own);
	if (rc)
		return rc;
	give_records(reloads);
	return count_writes(reloads);
}

const struct rh_reload_access *rh_reloads_next(struct rh_reloads *reloads, int is_write, enum rh_boundary_kind kind, int layer,
                                               int64_t micro_batch)
{
	while (reloads->next < reloads->accesses) {
		const struct rh_reload_access *access = &reloads->access[reloads->next++];
		if (access->is_write == is_write && access->kind == (int)kind && access->layer == layer &&
		    access->micro_batch == micro_batch)
			return access;
	}
	RH_ASSERT(!"a boundary that the program does not have");
	return NULL;
}

void rh_reloads_free(struct rh_reloads *reloads)
{
	rh_free(reloads->access);
	rh_free(reloads->write);
	rh_free(reloads->reload);
	rh_free(reloads->latest);
	rh_free(reloads->of_step);
	rh_free(reloads->stream);
	rh_free(reloads->round);
	*reloads = (struct rh_reloads){0};
}
