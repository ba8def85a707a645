#include "cli/plan_experiment.h"

#include "cli/verbs.h"
#include "core/json.h"
#include "core/tasks.h"
#include "partition/anchor.h"
#include "schedule/published.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODES = 2 };
static const char *const mode_name[MODES] = {"async", "sync"};

struct mode {
	struct rh_task task;
	struct rh_anchor_request request;
	struct rh_anchor_result result;
	int known;
};

struct experiment_plan {
	const struct rh_config *asked;
	struct rh_experiment experiment;
	struct rh_layer_table table;
	struct rh_peer peer;
	struct rh_hardware hardware;
	int devices;
	struct mode mode[MODES];
	struct rh_bubble_row_result bubble[RH_BUBBLE_ROWS];
};

static int read_files(struct experiment_plan *plan)
{
	const struct rh_config *asked = plan->asked;
	int rc = rh_experiment_read(asked->experiment, &plan->experiment);
	rc = rc ? rc : rh_layer_table_read(plan->experiment.layers, &plan->table);
	rc = rc ? rc : rh_hardware_find(asked->hardware, &plan->hardware);
	if (!rc && asked->as_published && !plan->experiment.system)
		rc = rh_fail(-EINVAL, "--as published: %s says of no system that published it", asked->experiment);
	if (!rc && asked->as_published)
		rc = rh_peer_read(plan->experiment.system, &plan->peer);
	if (rc)
		return rc;
	const char *name = plan->hardware.device.name;
	if (!name || strcmp(name, plan->experiment.device) != 0)
		return rh_fail(-EINVAL, "--hardware: the layers were timed on %s; %s has %s, for which they say nothing",
		               plan->experiment.device, plan->hardware.name, name ? name : "another device");
	plan->devices = asked->gpus ? asked->gpus : (int)plan->hardware.devices;
	if (plan->devices > plan->hardware.devices)
		return rh_fail(-EINVAL, "--gpus: %s has %d", plan->hardware.name, (int)plan->hardware.devices);
	return 0;
}

static int predict_mode(void *context)
{
	struct mode *mode = context;
	return rh_anchor_predict(&mode->request, &mode->result);
}

static int predict(struct experiment_plan *plan, struct rh_tasks *tasks)
{
	int known = 0, rc = 0;
	for (int m = 0; m < MODES; m++) {
		struct mode *mode = &plan->mode[m];
		const struct rh_published_run *run = m ? &plan->experiment.sync : &plan->experiment.async;
		mode->request = (struct rh_anchor_request){.experiment = &plan->experiment,
		                                           .table = &plan->table,
		                                           .as = plan->asked->as_published ? &plan->peer : NULL,
		                                           .hardware = &plan->hardware,
		                                           .devices = plan->devices,
		                                           .stale = !m};
		if (plan->asked->as_published && !run->rounds)
			continue;
		mode->known = ++known;
		rh_task_begin(tasks, &mode->task, predict_mode, mode);
	}
	for (int m = 0; !rc && m < MODES; m++)
		rc = rh_task_finish(&plan->mode[m].task);
	if (!rc && plan->asked->as_published && plan->experiment.bubble_devices)
		rc = rh_published_bubbles(&plan->experiment, &plan->table, plan->bubble);
	return !rc && !known ? rh_fail(-ENOENT, "%s: no run of it is published", plan->asked->experiment) : rc;
}

/* ---- for programs ---- */

static json_t *known_real(double value)
{
	return value > 0 ? json_real(value) : json_null();
}

static json_t *sizes_json(const struct rh_stage *stage, int count)
{
	json_t *list = json_array();
	for (int i = 0; i < count; i++)
		json_array_append_new(list, json_integer(stage[i].hi - stage[i].lo));
	return list;
}

static json_t *result_json(const struct rh_anchor_result *is)
{
	return json_pack("{s:f, s:o, s:f, s:I, s:I, s:I, s:f, s:f, s:f, s:b, s:f, s:f, s:f, s:i, s:o, s:o}", "tokens_per_second",
	                 is->tokens_per_s, "published_tokens_per_second", known_real(is->published_tokens_per_s), "step_seconds",
	                 is->time.period_s, "micro_batches", (json_int_t)is->micro_batches, "rounds", (json_int_t)is->rounds,
	                 "round_micro_batches", (json_int_t)is->round_micro_batches, "bubble", is->time.bubble, "exposed", is->time.exposed,
	                 "schedule_seconds", is->time.schedule_s, "host_bound", is->time.host_bound, "copied_bytes", is->time.copied_bytes,
	                 "updated_bytes", is->time.updated_bytes, "host_bytes", is->host_bytes, "blocks_made_on_devices", is->made_blocks,
	                 "forward_layers", sizes_json(is->cuts.forward, is->cuts.forward_stages), "backward_layers",
	                 sizes_json(is->cuts.backward, is->cuts.backward_stages));
}

static int print_json(const struct experiment_plan *plan)
{
	const struct rh_experiment *experiment = &plan->experiment;
	json_t *out = json_pack("{s:s, s:s, s:s, s:i, s:s?}", "experiment", experiment->name, "as",
	                        plan->asked->as_published ? plan->peer.name : "roundhouse", "hardware", plan->hardware.name, "devices",
	                        plan->devices, "exception", plan->asked->as_published ? experiment->exception : NULL);
	for (int mode = 0; out && mode < MODES; mode++)
		json_object_set_new(out, mode_name[mode], plan->mode[mode].known ? result_json(&plan->mode[mode].result) : json_null());
	json_t *bubbles = json_object();
	for (int row = 0; row < RH_BUBBLE_ROWS; row++) {
		const struct rh_bubble_row_result *is = &plan->bubble[row];
		if (is->published > 0)
			json_object_set_new(bubbles, rh_bubble_row_name((enum rh_bubble_row)row),
			                    json_pack("{s:f, s:f, s:o}", "published", is->published, "recomputed", is->recomputed,
			                              "own_cuts", known_real(is->own)));
	}
	json_object_set_new(out, "bubbles", bubbles);
	return verb_print_json(out);
}

/* ---- for people ---- */

static void print_row(const char *name, const struct rh_experiment *experiment, const struct rh_anchor_result *is)
{
	double each = (double)experiment->batch / (double)is->micro_batches;
	printf("%-6s %5lld of %-5.4g %5lld  %3d + %-4d %10.0f", name, (long long)is->micro_batches, each, (long long)is->rounds,
	       is->cuts.forward_stages, is->cuts.backward_stages, is->tokens_per_s);
	if (is->published_tokens_per_s > 0)
		printf(" %10.0f %+7.1f %%", is->published_tokens_per_s, 100 * (is->tokens_per_s / is->published_tokens_per_s - 1));
	else
		printf(" %10s %9s", "-", "-");
	printf(" %8.2f s %7.2f %% %7.2f %%%s\n", is->time.period_s, fmax(0, 100 * is->time.bubble), fmax(0, 100 * is->time.exposed),
	       is->time.host_bound ? "  the host's memory is the bottleneck" : "");
}

static void print_bubbles(const struct experiment_plan *plan)
{
	const struct rh_experiment *experiment = &plan->experiment;
	printf("\nbubbles of one flushed step, %lld micro-batches in %lld rounds on %lld devices, percent\n",
	       (long long)experiment->bubble_micro_batches, (long long)experiment->bubble_rounds, (long long)experiment->bubble_devices);
	printf("%-18s %10s %14s %14s\n", "", "published", "with its cuts", "with our cuts");
	for (int row = 0; row < RH_BUBBLE_ROWS; row++) {
		const struct rh_bubble_row_result *is = &plan->bubble[row];
		if (is->published <= 0)
			continue;
		printf("%-18s %10.2f %14.2f", rh_bubble_row_name((enum rh_bubble_row)row), is->published, is->recomputed);
		if (is->own > 0)
			printf(" %14.2f", is->own);
		printf("\n");
	}
}

static void print_text(const struct experiment_plan *plan)
{
	const struct rh_experiment *experiment = &plan->experiment;
	const struct rh_anchor_result *any = &plan->mode[plan->mode[0].known ? 0 : 1].result;
	printf("%s: %lld sequences of %lld tokens a step, on %d x %s (%s), as %s\n", experiment->name, (long long)experiment->batch,
	       (long long)experiment->sequence_length, plan->devices, plan->hardware.device.name, plan->hardware.name,
	       plan->asked->as_published ? plan->peer.name : "this program would");
	printf("layer times as measured (%s); the host holds %.0f GB of weights and their updates\n\n", experiment->layers,
	       any->host_bytes * 1e-9);
	printf("%-6s %-14s %6s  %-10s %10s %10s %9s %10s %9s %9s\n", "", "micro-batches", "rounds", "stages", "tokens/s", "published",
	       "off by", "step", "bubble", "exposed");
	for (int mode = 0; mode < MODES; mode++)
		if (plan->mode[mode].known)
			print_row(mode_name[mode], experiment, &plan->mode[mode].result);
	printf("micro-batches: how many, of so many sequences. stages: forward + backward. bubble: devices' idle time by the schedule. "
	       "exposed: "
	       "what\ngradients, the update and new weights add to the step\n");
	if (plan->mode[1].known && plan->mode[1].result.made_blocks)
		printf("sync: weights of the last %d blocks are made on the devices\n", plan->mode[1].result.made_blocks);
	if (!plan->asked->as_published)
		printf("async: steps follow one another without a flush, as training has them\n");
	if (plan->asked->as_published && experiment->source)
		printf("published: %s\n", experiment->source);
	if (plan->asked->as_published && experiment->exception)
		printf("exception: %s\n", experiment->exception);
	if (plan->asked->as_published && experiment->bubble_devices)
		print_bubbles(plan);
}

static void plan_free(struct experiment_plan *plan)
{
	for (int mode = 0; mode < MODES; mode++) {
		rh_task_drop(&plan->mode[mode].task);
		rh_anchor_result_free(&plan->mode[mode].result);
	}
	rh_hardware_free(&plan->hardware);
	rh_peer_free(&plan->peer);
	rh_layer_table_free(&plan->table);
	rh_experiment_free(&plan->experiment);
}

int plan_experiment(const struct rh_config *config, struct rh_tasks *tasks)
{
	struct experiment_plan plan = {.asked = config};
	int rc = read_files(&plan);
	rc = rc ? rc : predict(&plan, tasks);
	if (!rc && config->json)
		rc = print_json(&plan);
	else if (!rc)
		print_text(&plan);
	plan_free(&plan);
	return rc;
}
