#include "cli/plan_modes.h"

#include "core/minmax.h"
#include "forecast/forecast_limits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BOXES = 2, SCHEDULES = 2 };

static const double trips_ms[PLAN_TRIPS] = {0.01, 25, 50}, rates[PLAN_RATES] = {20, 100, 1000}; /* Mbit/s */

static const char *const names[PLAN_MODES] = {"local", "sync-pp", "paci", "fluidpipe"};
static const enum rh_mode modes_of[PLAN_MODES] = {RH_MODE_LOCAL, RH_MODE_SYNC_PP, RH_MODE_PACI, RH_MODE_FLUIDPIPE};
static const char *const flushed[SCHEDULES] = {"gpipe", "1f1b"};

/* A mode that this run cannot have, such as PACI's of a tied embedding, has no speed. */
static int forgive(int rc)
{
	if (rc != -EINVAL && rc != RH_DOES_NOT_FIT)
		return rc;
	rh_error_clear();
	return 0;
}

static void free_boxes(struct rh_forecast box[BOXES])
{
	for (int k = 0; k < BOXES; k++) {
		rh_forecast_free(&box[k]);
		box[k] = (struct rh_forecast){0};
	}
}

/* One mode over the request's link: mode sync-pp with the better of its two schedules, mode paci with the limits that the link asks for.
 * box: of the last simulation. */
static int simulate(const struct rh_boxes_request *fluidpipe, enum plan_mode mode, struct rh_forecast box[BOXES], double *tokens_per_s)
{
	struct rh_config config = *fluidpipe->config;
	struct rh_boxes_request request = *fluidpipe;
	struct rh_admission_limits limits;
	double unit_s[2];
	int rc = 0;
	*tokens_per_s = 0;
	request.config = &config;
	config.mode = modes_of[mode];
	config.schedule = mode == PLAN_PACI ? (char *)(uintptr_t) "paci" : NULL;
	if (mode == PLAN_PACI) {
		rc = forgive(rh_forecast_limits(&request, &limits, unit_s));
		config.admission_limits = limits.list;
	}
	for (int i = 0; !rc && i < (mode == PLAN_SYNC_PP ? SCHEDULES : 1); i++) {
		if (mode == PLAN_SYNC_PP)
			config.schedule = (char *)(uintptr_t)flushed[i];
		free_boxes(box);
		rc = rh_forecast_boxes(&request, box);
		*tokens_per_s = rc ? *tokens_per_s : fmax(*tokens_per_s, box[0].tokens_per_second);
		rc = forgive(rc);
	}
	return rc;
}

static int simulate_at(const struct rh_boxes_request *fluidpipe, double trip_ms, double mbit, double alone, double out[PLAN_MODES])
{
	struct rh_boxes_request request = *fluidpipe;
	struct rh_forecast box[BOXES] = {{0}};
	const struct rh_virtual_line way = {trip_ms / 2e3, mbit * 1e6 / 8}, line[1][2] = {{way, way}};
	int rc = 0;
	request.line = line;
	out[PLAN_LOCAL] = alone;
	for (int mode = PLAN_SYNC_PP; !rc && mode < PLAN_MODES; mode++)
		rc = simulate(&request, (enum plan_mode)mode, box, &out[mode]);
	free_boxes(box);
	return rc;
}

/* Activations of a step, of as many tokens as it has in the mean. */
static double features_bytes(const struct rh_boxes_request *request, const struct rh_forecast *box)
{
	double token = (double)box->unit_bytes / (double)(box->unit * request->input->work.train.tokens);
	return request->input->tokens_a_step * token;
}

/* Logits of a step, of as many targets as it has in the mean, that go up where box 2 distils, or come down, with the samples' ids, where
 * box 1 does. */
static double logits_bytes(const struct rh_boxes_request *request, const struct rh_forecast *box, int to_box, double epoch_steps)
{
	const struct rh_forecast_input *input = request->input;
	double targets = (double)(input->work.train.head_rows * input->work.train_micro_batches), id_bytes = to_box ? 0 : sizeof(int32_t);
	if (input->targets && epoch_steps > 0)
		targets = (double)input->targets / epoch_steps;
	return rh_config_distils(request->config, to_box) ? targets * ((double)box->target_bytes + id_bytes) : 0;
}

static double compute_s(const struct rh_forecast *box)
{
	return (1 - box->bubble) * box->step_seconds;
}

/* Fills in the formulas' inputs: each box's computing from the simulation of its mode, each transfer from its bytes and the line. */
static int fill_formulas(const struct rh_boxes_request *request, struct plan_modes *out)
{
	const struct rh_virtual_line *up = &request->line[0][0], *down = &request->line[0][1];
	struct rh_forecast box[BOXES] = {{0}};
	double micro_batches = (double)request->input->work.train_micro_batches;
	int rc = simulate(request, PLAN_SYNC_PP, box, &out->over_own_link[PLAN_SYNC_PP]);
	for (int k = 0; !rc && k < BOXES; k++)
		out->stages.stage_s[k] = compute_s(&box[k]) / micro_batches;
	if (!rc)
		rc = simulate(request, PLAN_PACI, box, &out->over_own_link[PLAN_PACI]);
	if (!rc)
		rc = simulate(request, PLAN_FLUIDPIPE, box, &out->over_own_link[PLAN_FLUIDPIPE]);
	for (int k = 0; !rc && k < BOXES; k++)
		out->stages.fluid_stage_s[k] = compute_s(&box[k]);
	out->epoch_wait_s = rc ? 0 : box[0].epoch_wait_seconds;
	double features = rc ? 0 : features_bytes(request, &box[0]),
	       up_logits = rc ? 0 : logits_bytes(request, &box[1], 1, out->epoch_steps),
	       down_logits = rc ? 0 : logits_bytes(request, &box[1], 0, out->epoch_steps),
	       steps = out->epoch_steps > 0 ? out->epoch_steps : 1;
	out->stages.mini_batches = out->traffic.mini_batches = steps;
	out->stages.micro_batches = micro_batches;
	out->stages.activation_s = up->latency_s + features / micro_batches / up->bytes_per_s;
	out->stages.gradient_s = down->latency_s + features / micro_batches / down->bytes_per_s;
	out->stages.features_s = up->latency_s + (features + up_logits) / up->bytes_per_s;
	out->stages.logits_s = down_logits > 0 ? down->latency_s + steps * down_logits / down->bytes_per_s : 0;
	out->traffic.logits_up = up_logits;
	out->traffic.logits_an_epoch = steps * down_logits;
	out->traffic.features = out->traffic.gradients = features;
	free_boxes(box);
	return rc;
}

int plan_modes_simulate(const struct rh_boxes_request *request, double alone, struct plan_modes *out)
{
	const struct rh_config *config = request->config;
	int rc = 0;
	*out = (struct plan_modes){.over_own_link = {alone}, .has_links = config->compare, .step_tokens = request->input->tokens_a_step};
	if (request->input->run_steps > 0 && config->max_steps <= 0)
		out->epoch_steps = (double)request->input->run_steps / config->num_train_epochs;
	for (int i = 0; !rc && i < PLAN_TRIPS && config->compare; i++)
		for (int k = 0; !rc && k < PLAN_RATES; k++)
			rc = simulate_at(request, trips_ms[i], rates[k], alone, out->over_link[i][k]);
	return rc ? rc : fill_formulas(request, out);
}

static int fastest(const double tokens_per_s[PLAN_MODES])
{
	int best = 0;
	for (int mode = 1; mode < PLAN_MODES; mode++)
		best = tokens_per_s[mode] > tokens_per_s[best] ? mode : best;
	return best;
}

/* Simulated seconds of as many steps as the formulas count, and of the logits behind them; 0: this run cannot have the mode. */
static double simulated_s(const struct plan_modes *modes, enum plan_mode mode)
{
	double wait_s = mode == PLAN_FLUIDPIPE ? modes->epoch_wait_s : 0, speed = modes->over_own_link[mode];
	return speed > 0 ? modes->stages.mini_batches * modes->step_tokens / speed + wait_s : 0;
}

/* Where boxes distil: do fewer bytes travel than with gradients? */
static void print_conditions(const struct plan_modes *modes, const char *unit)
{
	const struct rh_two_stages_traffic *traffic = &modes->traffic;
	double up = traffic->mini_batches * traffic->logits_up, gradients = traffic->mini_batches * traffic->gradients;
	if (traffic->logits_an_epoch > 0)
		printf("logits       %s: %.4g bytes down, %s than gradients' %.4g\n", unit, traffic->logits_an_epoch,
		       rh_paper_fluidpipe_pays_down(traffic) ? "less" : "no less", gradients);
	if (up > 0)
		printf("logits       %s: %.4g bytes up, twice that is %s than gradients' %.4g\n", unit, up,
		       rh_paper_fluidpipe_pays_both(traffic) ? "less" : "no less", gradients);
}

void plan_modes_print(const struct plan_modes *modes)
{
	const char *unit = modes->epoch_steps > 0 ? "an epoch" : "a step";
	for (int i = 0; i < PLAN_TRIPS && modes->has_links; i++) {
		printf("%-13sround trip %5g ms:", i ? "" : "fastest", trips_ms[i]);
		for (int k = 0; k < PLAN_RATES; k++) {
			int best = fastest(modes->over_link[i][k]);
			printf(" %g Mbit/s %s, %.1f tokens/s%s", rates[k], names[best], modes->over_link[i][k][best],
			       k + 1 < PLAN_RATES ? ";" : "\n");
		}
	}
	for (int mode = PLAN_SYNC_PP; mode <= PLAN_PACI; mode++)
		if (modes->over_own_link[mode] > 0)
			printf("mode %-8s%.1f tokens/s, with gradients between the boxes\n", names[mode], modes->over_own_link[mode]);
	printf("bytes        %s: %.4g up; with gradients %.4g, up and down\n", unit, rh_paper_fluidpipe_epoch_bytes(&modes->traffic),
	       rh_paper_pipeline_epoch_bytes(&modes->traffic));
	printf("papers       %s: FluidPipe %.4g s (simulated %.4g)", unit, rh_paper_fluidpipe_epoch_s(&modes->stages),
	       simulated_s(modes, PLAN_FLUIDPIPE));
	if (modes->over_own_link[PLAN_SYNC_PP] > 0)
		printf("; synchronous pipeline %.4g s (simulated %.4g)", rh_paper_pipeline_epoch_s(&modes->stages),
		       simulated_s(modes, PLAN_SYNC_PP));
	printf("; FluidPipe without overlap %.4g s\n", rh_paper_fluidpipe_sequential_epoch_s(&modes->stages));
	print_conditions(modes, unit);
}

static json_t *speeds_json(const double tokens_per_s[PLAN_MODES])
{
	json_t *out = json_object();
	for (int mode = 0; mode < PLAN_MODES; mode++)
		if (tokens_per_s[mode] > 0)
			json_object_set_new(out, names[mode], json_real(tokens_per_s[mode]));
	return out;
}

json_t *plan_modes_json(const struct plan_modes *modes)
{
	json_t *links = json_array();
	for (int i = 0; i < PLAN_TRIPS && modes->has_links; i++)
		for (int k = 0; k < PLAN_RATES; k++)
			json_array_append_new(links, json_pack("{s:f, s:f, s:s, s:o}", "round_trip_ms", trips_ms[i], "mbit_per_second",
			                                       rates[k], "fastest", names[fastest(modes->over_link[i][k])],
			                                       "tokens_per_second", speeds_json(modes->over_link[i][k])));
	return json_pack("{s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:b}", "tokens_per_second",
	                 speeds_json(modes->over_own_link), "links", links, "steps", modes->stages.mini_batches, "fluidpipe_seconds",
	                 simulated_s(modes, PLAN_FLUIDPIPE), "fluidpipe_wait_seconds", modes->epoch_wait_s, "bytes",
	                 rh_paper_fluidpipe_epoch_bytes(&modes->traffic), "bytes_with_gradients",
	                 rh_paper_pipeline_epoch_bytes(&modes->traffic), "papers_fluidpipe_seconds",
	                 rh_paper_fluidpipe_epoch_s(&modes->stages), "papers_pipeline_seconds", rh_paper_pipeline_epoch_s(&modes->stages),
	                 "papers_sequential_seconds", rh_paper_fluidpipe_sequential_epoch_s(&modes->stages), "pays_down",
	                 rh_paper_fluidpipe_pays_down(&modes->traffic), "pays_both", rh_paper_fluidpipe_pays_both(&modes->traffic));
}
