#include "train/training.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/minmax.h"

int versions_open(struct training *run)
{
	struct train_versions *all = &run->versions;
	char *path = rh_path_join(run->config->output_dir, "versions.jsonl");
	versions_close(run);
	all->shift = rh_alloc((size_t)run->session.model->layers, sizeof *all->shift);
	all->forward = rh_alloc((size_t)run->flights.micro_batches, sizeof *all->forward);
	all->backward = rh_alloc((size_t)run->flights.micro_batches, sizeof *all->backward);
	int rc = path && all->shift && all->forward && all->backward ? rh_metrics_open(path, run->state.step, &all->log) : -ENOMEM;
	rh_free(path);
	return rc;
}

void versions_close(struct training *run)
{
	struct train_versions *all = &run->versions;
	rh_metrics_close(all->log);
	rh_free(all->shift);
	rh_free(all->forward);
	rh_free(all->backward);
	all->log = NULL;
	all->shift = all->forward = all->backward = NULL;
}

static int is_trained(const struct rh_model *model, int layer)
{
	int trained = 0;
	for (int i = 0; i < RH_LAYER_BLOCKS; i++) {
		int block = model->layer[layer].block[i];
		trained |= block >= 0 && model->block[block].trainable;
	}
	return trained;
}

/* A stretch begins with the updates of all steps before it. */
static void find_shifts(struct training *run, const struct rh_versions *versions)
{
	for (int l = 0; l < run->session.model->layers; l++)
		run->versions.shift[l] = run->versions.first_step - versions[l].forward;
}

static struct rh_versions shown(const struct training *run, const struct rh_versions *versions, int64_t micro_batch, int layer)
{
	struct rh_versions read = versions[micro_batch * run->session.model->layers + layer];
	int64_t shift = run->versions.shift[layer];
	return (struct rh_versions){shift + read.forward, shift + read.backward};
}

static void fill_line(struct training *run, const struct rh_versions *versions, int64_t count, int layer)
{
	for (int64_t m = 0; m < count; m++) {
		struct rh_versions read = shown(run, versions, m, layer);
		run->versions.forward[m] = read.forward;
		run->versions.backward[m] = read.backward;
	}
}

static int is_as_in_line(const struct training *run, const struct rh_versions *versions, int64_t count, int layer)
{
	int same = 1;
	for (int64_t m = 0; same && m < count; m++) {
		struct rh_versions read = shown(run, versions, m, layer);
		same = read.forward == run->versions.forward[m] && read.backward == run->versions.backward[m];
	}
	return same;
}

/* A line for each run of layers that are alike. */
static int log_layers(struct training *run, int64_t step, int64_t count, const struct rh_versions *versions)
{
	const struct rh_model *model = run->session.model;
	int rc = 0;
	for (int lo = 0, hi; !rc && lo < model->layers; lo = hi) {
		hi = lo + 1;
		if (!is_trained(model, lo))
			continue;
		fill_line(run, versions, count, lo);
		while (hi < model->layers && is_trained(model, hi) && is_as_in_line(run, versions, count, hi))
			hi++;
		const struct rh_versions_report report = {.step = step + 1,
		                                          .layers = {model->first_layer + lo, model->first_layer + hi - 1},
		                                          .micro_batches = count,
		                                          .forward = run->versions.forward,
		                                          .backward = run->versions.backward};
		rc = saving_line(rh_metrics_versions(run->versions.log, &report));
	}
	return rc;
}

int versions_note(struct training *run, int64_t step, const struct rh_versions *versions)
{
	struct train_versions *all = &run->versions;
	struct rh_flight *flight = rh_flight_of(&run->flights, step);
	int64_t count = flight->count;
	for (int64_t m = 0; m < count; m++) {
		int64_t layers = run->session.model->layers, drift = rh_versions_drift(versions + m * layers, layers);
		all->largest = rh_max(all->largest, drift);
		flight->drift = rh_max(flight->drift, drift);
		all->drifted += drift > 0;
	}
	all->micro_batches += count;
	if (step == all->first_step)
		find_shifts(run, versions);
	return log_layers(run, step, count, versions);
}
