/* `roundhouse plan` of several boxes: what each holds, how fast they are together, and from which speed of their links on they are faster
 * than the fastest of them alone. */
#include "cli/plan_boxes.h"

#include "cli/plan_modes.h"
#include "cli/verbs.h"
#include "core/alloc.h"
#include "core/json.h"
#include "core/minmax.h"
#include "forecast/forecast_limits.h"
#include "forecast/judge.h"
#include "modes/boxes/box_cuts.h"
#include "partition/rounds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPEEDS = 5, HALVINGS = 7 };

static const double speeds[SPEEDS] = {20, 100, 300, 1000, 10000}; /* Mbit/s */
static const double slowest = 1, fastest = 1e5, gib = 1 << 30;

struct planned {
	const struct rh_config *config;
	const struct rh_forecast_input *input;
	struct rh_hardware hardware[RH_BOXES_MAX]; /* of box_hardware */
	struct rh_session_machine machine[RH_BOXES_MAX];
	struct rh_virtual_line line[RH_BOXES_MAX][2];
	struct rh_session session; /* of the whole model */
	struct rh_box_layer *layer;
	struct rh_box_told told[RH_BOXES_MAX]; /* lines are the configuration's */
	int first[RH_BOXES_MAX + 1];
	struct rh_forecast box[RH_BOXES_MAX];
	int64_t unit, unit_bytes; /* mode paci: a unit's micro-batches, and what each link carries of it each way */
	struct rh_config limited; /* mode paci without admission_limits: `config` points to it, and it has those that were chosen */
	struct rh_admission_limits limits;
	double unit_s[2];       /* of those, and of PACI's own; 0: none were chosen */
	int64_t delay;          /* mode paci: the paci_update_delay that is worth its memory; 0: none, or it is given */
	double delay_unit_s[2]; /* with it, and without */
	double linked, alone, at_speed[SPEEDS], even; /* tokens/s; alone: 0: fits on none. even: Mbit/s, 0: no speed is enough */
	int fastest;                                  /* the box that is meant by `alone` */
	double pipeline[2];           /* tokens/s of modes sync-pp and paci, over the configuration's links; 0: this run cannot */
	const char *flushed;          /* mode sync-pp's schedule there */
	int better[RH_BOXES_MAX + 1]; /* mode sync-pp: cuts that are faster than those that the boxes choose, */
	double better_gain;           /* by this share; 0: none were found */
	struct plan_modes modes;      /* of mode fluidpipe */
};

static void free_boxes(struct planned *all)
{
	for (int k = 0; k < (int)all->config->boxes; k++) {
		rh_forecast_free(&all->box[k]);
		all->box[k] = (struct rh_forecast){0};
	}
}

/* The speed of a link; where the configuration names none, that of a line between two homes. */
static double speed_of(const struct rh_config *config, int link, int way)
{
	const struct rh_list *list = &config->link_mbit_per_second;
	return list->count ? rh_config_link(config, list, link, way) : 100;
}

static double latency_of(const struct rh_config *config, int link, int way)
{
	const struct rh_list *list = &config->link_latency_ms;
	return list->count ? rh_config_link(config, list, link, way) : 25;
}

/* 0: the speeds of the configuration. */
static void set_links(struct planned *all, double mbit_per_s)
{
	const struct rh_config *config = all->config;
	for (int k = 0; k + 1 < (int)config->boxes; k++)
		for (int way = 0; way < 2; way++) {
			double speed = mbit_per_s > 0 ? mbit_per_s : speed_of(config, k, way);
			all->line[k][way] = (struct rh_virtual_line){latency_of(config, k, way) / 1e3, speed * 1e6 / 8};
		}
}

/* The cuts that the boxes would choose over links of that speed. With admission limits that are chosen, too, cuts are the same over all
 * links. */
static int cuts_at(const struct planned *all, double mbit_per_s, int *first)
{
	struct rh_config config = *all->config;
	char text[32], *item[1] = {text};
	snprintf(text, sizeof text, "%.9g", mbit_per_s);
	config.link_mbit_per_second = (struct rh_list){.item = item, .count = 1};
	memcpy(first, all->first, sizeof all->first);
	return config.box_cuts.count || all->unit_s[0] > 0 ? 0
	                                                   : rh_box_cuts_choose(&config, all->session.model, all->layer, all->told, first);
}

/* Forecasts the boxes with the configuration's links. */
static int forecast_linked(struct planned *all)
{
	const struct rh_boxes_request request = {all->config, all->machine, all->first, all->line, all->input};
	set_links(all, 0);
	free_boxes(all);
	int rc = rh_forecast_boxes(&request, all->box);
	all->linked = rc ? 0 : all->box[0].tokens_per_second;
	return rc;
}

/* The speed over links of that speed, with cuts and limits for it. */
static int forecast_at(struct planned *all, double mbit_per_s, double *tokens_per_s)
{
	int first[RH_BOXES_MAX + 1], rc = cuts_at(all, mbit_per_s, first);
	struct rh_config config = *all->config;
	const struct rh_boxes_request request = {&config, all->machine, first, all->line, all->input};
	struct rh_forecast box[RH_BOXES_MAX] = {{0}};
	set_links(all, mbit_per_s);
	if (!rc && all->unit_s[0] > 0) {
		config.admission_limits = (struct rh_list){0};
		return rh_forecast_widest(&request, tokens_per_s);
	}
	if (!rc)
		rc = rh_forecast_boxes(&request, box);
	*tokens_per_s = rc ? 0 : box[0].tokens_per_second;
	for (int k = 0; k < (int)config.boxes; k++)
		rh_forecast_free(&box[k]);
	return rc;
}

/* Chooses how late updates are published, for the configuration's links. */
static int choose_delay(struct planned *all)
{
	const struct rh_boxes_request request = {all->config, all->machine, all->first, all->line, all->input};
	if (all->config->mode != RH_MODE_PACI || all->config->paci_update_delay)
		return 0;
	set_links(all, 0);
	return rh_forecast_delay(&request, &all->delay, all->delay_unit_s);
}

static int find_even(struct planned *all)
{
	double low = slowest, high = fastest, speed;
	int rc = forecast_at(all, high, &speed);
	if (rc || speed <= all->alone)
		return rc;
	for (int i = 0; !rc && i < HALVINGS; i++) {
		double middle = sqrt(low * high);
		rc = forecast_at(all, middle, &speed);
		if (speed > all->alone)
			high = middle;
		else
			low = middle;
	}
	all->even = sqrt(low * high);
	return rc;
}

static int forecast_alone(struct planned *all, int k, struct rh_tasks *tasks)
{
	struct rh_config alone = *all->config;
	struct rh_forecast forecast = {0};
	const struct rh_forecast_options options = {.tasks = tasks};
	alone.mode = RH_MODE_LOCAL;
	alone.boxes = alone.box = 0;
	alone.schedule = NULL;
	alone.admission_limits = (struct rh_list){0};
	int rc = rh_forecast_judged(&alone, &all->machine[k], all->input, &options, &forecast);
	if (!rc && forecast.tokens_per_second > all->alone) {
		all->alone = forecast.tokens_per_second;
		all->fastest = k;
	}
	rh_forecast_free(&forecast);
	if (rc != RH_DOES_NOT_FIT)
		return rc;
	rh_error_clear();
	return 0;
}

/* With the same cuts. */
static int compare_modes(struct planned *all)
{
	const struct rh_boxes_request request = {all->config, all->machine, all->first, all->line, all->input};
	set_links(all, 0);
	return plan_modes_simulate(&request, all->alone, &all->modes);
}

/* One of the two pipelines, with the same cuts; mode paci with the limits that the links ask for. 0 tokens/s: this run cannot. */
static int forecast_pipeline(const struct planned *all, enum rh_mode mode, const char *schedule, double *tokens_per_s)
{
	struct rh_config other = *all->config;
	struct rh_boxes_request request = {&other, all->machine, all->first, all->line, all->input};
	struct rh_forecast box[RH_BOXES_MAX] = {{0}};
	struct rh_admission_limits limits;
	double unit_s[2];
	int rc = 0;
	other.mode = mode;
	other.schedule = (char *)(uintptr_t)schedule;
	other.paci_backward = RH_BACKWARD_RECOMPUTE;
	other.admission_limits = (struct rh_list){0};
	if (mode == RH_MODE_PACI) {
		rc = rh_forecast_limits(&request, &limits, unit_s);
		other.admission_limits = limits.list;
	}
	if (!rc)
		rc = rh_forecast_boxes(&request, box);
	*tokens_per_s = rc ? 0 : box[0].tokens_per_second;
	for (int k = 0; k < (int)other.boxes; k++)
		rh_forecast_free(&box[k]);
	if (rc != -EINVAL && rc != RH_DOES_NOT_FIT)
		return rc;
	rh_error_clear();
	return 0;
}

/* Forecasts both pipelines, mode sync-pp under the faster of two schedules. */
static int compare_pipelines(struct planned *all)
{
	static const char *const flushed[] = {"1f1b", "gpipe"};
	const struct rh_config *config = all->config;
	int is_paci = config->mode == RH_MODE_PACI, rc = 0;
	all->pipeline[is_paci] = all->linked;
	all->flushed = is_paci ? NULL : config->schedule ? config->schedule : flushed[0];
	for (size_t i = 0; !rc && i < sizeof flushed / sizeof *flushed; i++) {
		double now = 0;
		if (!all->flushed || strcmp(all->flushed, flushed[i]))
			rc = forecast_pipeline(all, RH_MODE_SYNC_PP, flushed[i], &now);
		if (all->flushed && now <= all->pipeline[0])
			continue;
		all->pipeline[0] = now;
		all->flushed = flushed[i];
	}
	return rc || is_paci ? rc : forecast_pipeline(all, RH_MODE_PACI, "paci", &all->pipeline[1]);
}

/* Seconds of a step, mode paci's with the limits of links that take no time. INFINITY: a box does not fit. */
static int simulate_cuts(struct planned *all, const int *first, const struct rh_virtual_line (*line)[2], double *seconds)
{
	struct rh_config config = *all->config;
	const struct rh_boxes_request request = {&config, all->machine, first, line, all->input};
	struct rh_admission_limits limits;
	rh_admission_limits_set((int)config.boxes, rh_admission_limit_near(&request), &limits);
	if (config.mode == RH_MODE_PACI)
		config.admission_limits = limits.list;
	free_boxes(all);
	int rc = rh_forecast_boxes(&request, all->box);
	*seconds = INFINITY;
	if (rc == RH_DOES_NOT_FIT) {
		rh_error_clear();
		return 0;
	}
	if (rc)
		return rc;
	*seconds = all->box[0].step_seconds;
	all->unit = all->box[0].unit;
	all->unit_bytes = all->box[0].unit_bytes;
	return 0;
}

/* Moves each cut, by a layer at a time, while that makes the step over these links shorter: the partitioner knows what a layer computes,
 * but not what uploads of weights add. */
static int move_cuts(struct planned *all, int *first, const struct rh_virtual_line (*line)[2], double *seconds)
{
	int rc = simulate_cuts(all, first, line, seconds);
	for (int k = 1; k < (int)all->config->boxes; k++)
		for (int way = -1; !rc && way <= 1;) {
			double now = INFINITY;
			first[k] += way;
			if (first[k] > first[k - 1] && first[k] < first[k + 1])
				rc = simulate_cuts(all, first, line, &now);
			if (now < *seconds) {
				*seconds = now;
			} else {
				first[k] -= way;
				way += 2;
			}
		}
	return rc;
}

/* Looks for faster cuts than the boxes choose, over the configuration's links. *step_s: the seconds of a step with these. */
static int find_better_cuts(struct planned *all, double *step_s)
{
	memcpy(all->better, all->first, sizeof all->better);
	set_links(all, 0);
	return move_cuts(all, all->better, all->line, step_s);
}

static int forecast_all(struct planned *all, struct rh_tasks *tasks)
{
	static const double worth = 1.01; /* cuts that are faster by less are not named */
	double better_s = INFINITY;
	int rc = forecast_alone(all, 0, tasks);
	for (int k = 1; !rc && k < (int)all->config->box_hardware.count; k++)
		rc = forecast_alone(all, k, tasks);
	for (int i = 0; !rc && i < SPEEDS; i++)
		rc = forecast_at(all, speeds[i], &all->at_speed[i]);
	if (!rc && all->alone > 0)
		rc = find_even(all);
	if (!rc && all->config->mode == RH_MODE_FLUIDPIPE)
		rc = compare_modes(all);
	if (!rc && all->config->mode == RH_MODE_SYNC_PP && !all->config->box_cuts.count)
		rc = find_better_cuts(all, &better_s);
	if (rc)
		return rc;
	rc = choose_delay(all);
	if (!rc)
		rc = forecast_linked(all);
	double gain = rc ? 0 : all->box[0].step_seconds / better_s;
	all->better_gain = gain > worth ? gain - 1 : 0;
	return rc || all->config->mode == RH_MODE_FLUIDPIPE ? rc : compare_pipelines(all);
}

static const char *advice(const struct planned *all)
{
	double most = fmax(all->pipeline[0], all->pipeline[1]);
	return all->alone >= most ? "local" : all->pipeline[1] > all->pipeline[0] ? "paci" : "sync-pp";
}

static void put_cuts(const int *first, int boxes)
{
	for (int k = 1; k < boxes; k++)
		printf("%s%d", k > 1 ? ", " : "box_cuts: [", first[k]);
	printf("]");
}

static void put_link(const struct rh_config *config, int k)
{
	printf("             link up %g Mbit/s, %g ms; down %g Mbit/s, %g ms\n", speed_of(config, k, 0), latency_of(config, k, 0),
	       speed_of(config, k, 1), latency_of(config, k, 1));
}

/* A table that is kept one is in two boxes: one copy's bytes more than without boxes, and the exchange. */
static void put_table(const struct planned *all)
{
	static const double mib = 1 << 20;
	const struct rh_forecast *box = &all->box[0];
	if (box->table.wire_bytes)
		printf("table        embedding and head are one: boxes 1 and %d each hold %.1f MiB of weights, %.1f of optimizer state and "
		       "%.1f of gradient, and send %.1f MiB to each other at each step's end\n",
		       (int)all->config->boxes, (double)box->table.weights_bytes / mib, (double)box->table.state_bytes / mib,
		       (double)box->table.gradient_bytes / mib, (double)box->table.wire_bytes / mib);
}

static void put_updates(const struct planned *all)
{
	int64_t given = all->config->paci_update_delay;
	if (all->config->mode != RH_MODE_PACI)
		return;
	if (given)
		printf("updates      run beside their box, on a second copy of its trained weights, and are published %lld unit%s later\n",
		       (long long)given, given == 1 ? "" : "s");
	else
		printf("updates      block their box: no second copy of the weights, which a forward reads in one version\n");
	if (all->delay)
		printf("             paci_update_delay: %lld (other results) runs them beside it, with a second copy: %.4g s a unit, not "
		       "%.4g\n",
		       (long long)all->delay, all->delay_unit_s[0], all->delay_unit_s[1]);
}

static void put(const struct planned *all)
{
	const struct rh_config *config = all->config;
	int differ = config->box_hardware.count > 0;
	printf("boxes        %d%s, schedule %s\n", (int)config->boxes, differ ? "" : " like this one",
	       config->schedule ? config->schedule : "roundpipe in each");
	for (int k = 0; k < (int)config->boxes; k++) {
		printf("box %-8d layers %d-%d; %.2f GiB on each device, %.2f GiB of host memory", k + 1, all->first[k],
		       all->first[k + 1] - 1, (double)all->box[k].device_bytes / gib, (double)all->box[k].ram_bytes / gib);
		if (all->box[k].nvme_bytes)
			printf(", %.2f GiB on NVMe", (double)all->box[k].nvme_bytes / gib);
		printf("%s%s\n", differ ? "; " : "", differ ? config->box_hardware.item[k] : "");
		if (k + 1 < (int)config->boxes)
			put_link(config, k);
	}
	put_table(all);
	printf("speed        %.1f tokens/s, %.4g s a step\n", all->linked, all->box[0].step_seconds);
	if (all->unit_s[0] > 0) {
		printf("limits       admission_limits: [");
		for (size_t i = 0; i < all->limits.list.count; i++)
			printf("%s%s", i ? ", " : "", all->limits.item[i]);
		printf("], ");
		put_cuts(all->first, (int)config->boxes);
		printf("; limits are the smallest within 3 %% of the best: %.4g s a unit; PACI's own: %.4g s\n", all->unit_s[0],
		       all->unit_s[1]);
	}
	if (all->better_gain > 0) {
		printf("better cuts  ");
		put_cuts(all->better, (int)config->boxes);
		printf(": %.1f %% more tokens/s, %s results\n", 100 * all->better_gain,
		       config->link_dtype == RH_LINK_DTYPE_SAME ? "the same" : "other");
	}
	if (config->mode == RH_MODE_FLUIDPIPE)
		plan_modes_print(&all->modes);
	put_updates(all);
	if (all->alone > 0)
		printf("alone        %.1f tokens/s: box %d, with what does not fit on its devices in host memory\n", all->alone,
		       all->fastest + 1);
	else
		printf("alone        does not fit on one box\n");
	for (int i = 0; i < SPEEDS; i++)
		printf("%-12s %5g Mbit/s: %.1f tokens/s\n", i ? "" : "links of", speeds[i], all->at_speed[i]);
	if (all->even > 0)
		printf("break-even   %.0f Mbit/s: slower links make the boxes slower than one of them alone\n", all->even);
	if (config->mode != RH_MODE_FLUIDPIPE)
		printf("modes        sync-pp %.1f tokens/s (schedule: %s), paci %.1f: mode %s is the fastest here\n", all->pipeline[0],
		       all->flushed, all->pipeline[1], advice(all));
	if (all->alone > all->linked)
		printf("advice       do not link: one box alone is faster%s\n", all->even > 0 ? "" : ", up to links of 100 Gbit/s");
}

static json_t *as_json(const struct planned *all)
{
	json_t *boxes = json_array(), *table = json_array();
	for (int k = 0; k < (int)all->config->boxes; k++)
		json_array_append_new(boxes,
		                      json_pack("{s:i, s:i, s:I, s:I, s:I}", "first_layer", all->first[k], "last_layer",
		                                all->first[k + 1] - 1, "device_bytes", (json_int_t)all->box[k].device_bytes, "ram_bytes",
		                                (json_int_t)all->box[k].ram_bytes, "nvme_bytes", (json_int_t)all->box[k].nvme_bytes));
	for (size_t i = 0; i < all->config->admission_limits.count; i++)
		json_object_set_new(json_array_get(boxes, i), "admission_limit",
		                    json_integer(atoll(all->config->admission_limits.item[i])));
	for (int i = 0; i < SPEEDS; i++)
		json_array_append_new(table, json_pack("{s:f, s:f}", "mbit_per_second", speeds[i], "tokens_per_second", all->at_speed[i]));
	json_t *beside = all->config->mode == RH_MODE_FLUIDPIPE ? plan_modes_json(&all->modes)
	                                                        : json_pack("{s:f, s:s, s:f, s:s}", "sync-pp", all->pipeline[0], "schedule",
	                                                                    all->flushed, "paci", all->pipeline[1], "fastest", advice(all));
	json_t *updates = all->delay ? json_pack("{s:I, s:f, s:f}", "paci_update_delay", (json_int_t)all->delay, "unit_seconds",
	                                         all->delay_unit_s[0], "blocked_unit_seconds", all->delay_unit_s[1])
	                             : json_null();
	json_t *better = all->better_gain > 0 ? json_pack("{s:o, s:f}", "box_cuts", json_array(), "gain", all->better_gain) : json_null();
	for (int k = 1; all->better_gain > 0 && k < (int)all->config->boxes; k++)
		json_array_append_new(json_object_get(better, "box_cuts"), json_integer(all->better[k]));
	const struct rh_forecast *end = &all->box[0];
	json_t *shared = json_pack("{s:I, s:I, s:I, s:I}", "weights_bytes", (json_int_t)end->table.weights_bytes, "state_bytes",
	                           (json_int_t)end->table.state_bytes, "gradient_bytes", (json_int_t)end->table.gradient_bytes,
	                           "wire_bytes", (json_int_t)end->table.wire_bytes);
	return json_pack("{s:b, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "fits", 1, "tokens_per_second", all->linked,
	                 "step_seconds", all->box[0].step_seconds, "alone_tokens_per_second",
	                 all->alone > 0 ? json_real(all->alone) : json_null(), "break_even_mbit_per_second",
	                 all->even > 0 ? json_real(all->even) : json_null(), "boxes", boxes, "links", table, "modes", beside, "updates",
	                 updates, "tied_table", shared, "better_cuts", better);
}

/* Each box's machine: its own profile, or the one that is planned for. */
static int find_machines(struct planned *all, const struct rh_machine_found *found)
{
	const struct rh_list *names = &all->config->box_hardware;
	int rc = 0;
	for (int k = 0; !rc && k < (int)all->config->boxes; k++) {
		struct rh_hardware *own = &all->hardware[k];
		all->machine[k] = found->machine;
		if (!names->count)
			continue;
		rc = rh_hardware_find(names->item[k], own);
		all->machine[k] = (struct rh_session_machine){.hardware = own, .devices = (int)own->devices, .ram_bytes = own->host.ram};
	}
	return rc ? rh_fail_in(rc, "box_hardware") : 0;
}

static int chooses_limits(const struct planned *all)
{
	return all->config->mode == RH_MODE_PACI && !all->config->admission_limits.count;
}

/* Admission limits for these cuts and the configuration's links, if they are faster than those chosen before for others. *most: box 1's
 * limit. */
static int consider_limits(struct planned *all, const int *first, int64_t *most)
{
	const struct rh_boxes_request request = {all->config, all->machine, first, all->line, all->input};
	struct rh_admission_limits limits;
	double unit_s[2];
	int rc = rh_forecast_limits(&request, &limits, unit_s);
	if (rc)
		return rc;
	*most = atoll(limits.item[0]);
	if (all->unit_s[0] > 0 && all->unit_s[0] <= unit_s[0])
		return 0;
	memcpy(all->unit_s, unit_s, sizeof unit_s);
	memcpy(all->first, first, ((size_t)all->config->boxes + 1) * sizeof *first);
	rh_admission_limits_set((int)all->config->boxes, *most, &all->limits);
	return 0;
}

/* What a unit takes at least over the configuration's links, where one takes so long without them. */
static double with_transfer(const struct planned *all, double unit_s)
{
	for (int k = 0; k + 1 < (int)all->config->boxes; k++)
		for (int way = 0; way < 2; way++)
			if (all->line[k][way].bytes_per_s > 0)
				unit_s = fmax(unit_s, (double)all->unit_bytes / all->line[k][way].bytes_per_s);
	return unit_s;
}

/* Admission limits that are wide enough hide the links, so cuts are chosen for links that take no time: all speeds have the same. Where
 * limits must be smaller (memory, max_version_drift), cuts and limits depend on each other. Then each is chosen by turns for the other,
 * until the cuts stay as they are; the fastest pair is taken. */
static int choose_by_turns(struct planned *all)
{
	enum { TURNS = 4 };
	static const struct rh_virtual_line none[RH_BOXES_MAX][2]; /* links that take no time */
	struct rh_config config = *all->config;
	struct rh_admission_limits limits;
	int first[RH_BOXES_MAX + 1] = {0}, before[RH_BOXES_MAX + 1] = {0};
	int64_t most;
	double step_s;
	config.link_latency_ms = config.link_mbit_per_second = (struct rh_list){0};
	int rc = rh_box_cuts_choose(&config, all->session.model, all->layer, all->told, first);
	if (!rc)
		rc = move_cuts(all, first, none, &step_s);
	if (rc)
		return rc;
	int64_t units = rh_round_count(all->input->work.train_micro_batches, rh_max(all->unit, 1)); /* 0: no cuts fit */
	double least_s = with_transfer(all, step_s / (double)units);
	for (int turn = 0; turn < TURNS && memcmp(first, before, sizeof first); turn++) {
		rc = consider_limits(all, first, &most);
		if (rc || all->unit_s[0] <= RH_LIMITS_TOLERANCE * least_s)
			break;
		memcpy(before, first, sizeof first);
		rh_admission_limits_set((int)config.boxes, most, &limits);
		config = *all->config;
		config.admission_limits = limits.list;
		rc = rh_box_cuts_choose(&config, all->session.model, all->layer, all->told, first);
		if (rc)
			break;
	}
	if (rc != RH_DOES_NOT_FIT || !(all->unit_s[0] > 0))
		return rc;
	rh_error_clear();
	return 0;
}

/* What rh_box_cuts_choose asks for. The session stays open. */
static int measure_layers(struct planned *all)
{
	const struct rh_config *config = all->config;
	size_t layers = (size_t)all->input->layers, boxes = (size_t)config->boxes;
	int rc = 0;
	all->layer = rh_alloc(boxes * layers, sizeof *all->layer);
	if (!all->layer)
		return -ENOMEM;
	for (size_t k = 0; !rc && k < boxes; k++) {
		rh_session_close(&all->session);
		rc = rh_session_simulate(config, &all->machine[k], &all->session);
		if (!rc)
			rc = rh_box_measure(&all->session, (int)k, all->layer + k * layers, &all->told[k].cap_bytes);
	}
	return rc;
}

/* box_cuts and admission_limits, or the choice of what is not given. */
static int find_cuts_and_limits(struct planned *all)
{
	const struct rh_config *config = all->config;
	int first[RH_BOXES_MAX + 1], rc;
	int64_t most;
	set_links(all, 0);
	if (!config->box_cuts.count) {
		rc = measure_layers(all);
		if (!rc)
			rc = chooses_limits(all) ? choose_by_turns(all)
			                         : rh_box_cuts_choose(config, all->session.model, all->layer, all->told, all->first);
	} else {
		rc = rh_box_cuts(config, all->input->layers, first);
		memcpy(all->first, first, sizeof first);
		if (!rc && chooses_limits(all))
			rc = consider_limits(all, first, &most);
	}
	if (rc || !(all->unit_s[0] > 0))
		return rc;
	all->limited = *config;
	all->limited.admission_limits = all->limits.list;
	all->config = &all->limited;
	return 0;
}

int plan_boxes(const struct rh_config *config, const struct rh_machine_found *found, const struct rh_forecast_input *input,
               struct rh_tasks *tasks)
{
	struct planned *all = rh_alloc(1, sizeof *all);
	if (!all)
		return -ENOMEM;
	all->config = config;
	all->input = input;
	int rc = rh_run_check_boxes(config);
	if (!rc)
		rc = find_machines(all, found);
	if (!rc)
		rc = find_cuts_and_limits(all);
	if (!rc)
		rc = forecast_all(all, tasks);
	if (!rc && config->json)
		rc = verb_print_json(as_json(all));
	else if (!rc)
		put(all);
	if (rc == RH_DOES_NOT_FIT && !config->json) {
		printf("does not fit %s\n", rh_error(rc));
		rh_error_clear();
		rc = VERB_SAYS_NO;
	}
	free_boxes(all);
	rh_session_close(&all->session);
	rh_free(all->layer);
	for (int k = 0; k < (int)config->boxes; k++)
		rh_hardware_free(&all->hardware[k]);
	rh_free(all);
	return rc;
}
