#include "forecast/forecast_limits.h"

#include "core/minmax.h"
#include "partition/rounds.h"

#include <math.h>
#include <stdio.h>

struct limiting {
	const struct rh_boxes_request *request;
	struct rh_forecast box[RH_BOXES_MAX]; /* of the limits that were simulated last */
	int64_t units;                        /* of a step */
};

void rh_admission_limits_set(int boxes, int64_t most, struct rh_admission_limits *out)
{
	RH_ASSERT(boxes > 1 && boxes <= RH_BOXES_MAX && most >= 1);
	out->list = (struct rh_list){.item = out->item, .count = (size_t)boxes};
	for (int k = 0; k < boxes; k++) {
		int64_t limit = 1 + ((boxes - 1 - k) * (most - 1) + boxes - 2) / (boxes - 1);
		snprintf(out->text[k], sizeof out->text[k], "%lld", (long long)limit);
		out->item[k] = out->text[k];
	}
}

static int64_t most_devices(const struct rh_boxes_request *request)
{
	int64_t most = 1;
	for (int k = 0; k < (int)request->config->boxes; k++)
		most = rh_max(most, request->machine[k].devices);
	return most;
}

int64_t rh_admission_limit_near(const struct rh_boxes_request *request)
{
	return 1 + (request->config->boxes - 1) * most_devices(request);
}

static void free_boxes(struct limiting *at)
{
	for (int k = 0; k < (int)at->request->config->boxes; k++) {
		rh_forecast_free(&at->box[k]);
		at->box[k] = (struct rh_forecast){0};
	}
}

/* Seconds of a unit. may_not_fit: INFINITY if memory does not suffice; else that is an error. */
static int simulate(struct limiting *at, const struct rh_config *config, int may_not_fit, double *seconds)
{
	struct rh_boxes_request request = *at->request;
	request.config = config;
	free_boxes(at);
	int rc = rh_forecast_boxes(&request, at->box);
	*seconds = INFINITY;
	if (rc == RH_DOES_NOT_FIT && may_not_fit) {
		rh_error_clear();
		return 0;
	}
	if (rc)
		return rc;
	at->units = rh_round_count(request.input->work.train_micro_batches, at->box[0].unit);
	*seconds = at->box[0].step_seconds / (double)at->units;
	return 0;
}

static int period_of(struct limiting *at, int64_t most, double *seconds)
{
	struct rh_admission_limits limits;
	struct rh_config config = *at->request->config;
	rh_admission_limits_set((int)config.boxes, most, &limits);
	config.admission_limits = limits.list;
	return simulate(at, &config, most > config.boxes, seconds);
}

/* Bounds of the search, after a simulation with PACI's own limits. */
struct bounds {
	double least_s; /* a unit takes at least this, whatever the limits: a box's work, or a transfer */
	int64_t most;   /* more units in flight in box 1 hide no more latency */
};

static struct bounds bounds_of(const struct limiting *at)
{
	const struct rh_boxes_request *request = at->request;
	int boxes = (int)request->config->boxes;
	double slowest_s = 0, trip_s = 0, transfer_s = 0;
	for (int k = 0; k < boxes; k++)
		slowest_s = fmax(slowest_s, (1 - at->box[k].bubble) * at->box[k].step_seconds / (double)at->units);
	for (int k = 0; k + 1 < boxes; k++) {
		double seconds = 0;
		for (int way = 0; way < 2; way++) {
			const struct rh_virtual_line *line = &request->line[k][way];
			double moves = line->bytes_per_s > 0 ? (double)at->box[k].unit_bytes / line->bytes_per_s : 0;
			seconds += line->latency_s + moves;
			transfer_s = fmax(transfer_s, moves);
		}
		trip_s = fmax(trip_s, seconds);
	}
	double trips = slowest_s > 0 ? ceil(trip_s / slowest_s) : 0;
	int64_t most = rh_admission_limit_near(request) + (boxes - 1) * (int64_t)fmin(trips, 1 << 10),
	        drift = request->config->max_version_drift;
	most = drift ? rh_max(rh_min(most, 1 + drift * at->units), boxes) : most;
	return (struct bounds){fmax(slowest_s, transfer_s), most};
}

/* Halves the distance from *most to `least` until the limits fit. *seconds: a unit's; INFINITY: only `least` fits. */
static int find_fitting(struct limiting *at, int64_t least, int64_t *most, double *seconds)
{
	int rc = 0;
	for (*seconds = INFINITY; !rc && *most > least && !isfinite(*seconds);) {
		rc = period_of(at, *most, seconds);
		*most = isfinite(*seconds) ? *most : (least + *most) / 2;
	}
	return rc;
}

/* Bisects for the smallest number whose period is within 3 % of the best. `least` is too small; *enough is known to suffice. */
static int find_least(struct limiting *at, int (*period)(struct limiting *at, int64_t number, double *seconds), int64_t least,
                      int64_t *enough, double best, double *seconds)
{
	int rc = 0;
	while (!rc && *enough - least > 1) {
		int64_t middle = (least + *enough) / 2;
		double now;
		rc = period(at, middle, &now);
		best = fmin(best, now);
		if (now <= RH_LIMITS_TOLERANCE * best) {
			*enough = middle;
			*seconds = now;
		} else {
			least = middle;
		}
	}
	return rc;
}

/* With PACI's own limits, and with the widest that fit, unless the former are as good. */
static int find_widest(struct limiting *at, int64_t *most, double *own_s, double *best_s)
{
	int64_t least = at->request->config->boxes;
	int rc = period_of(at, least, own_s);
	*most = least;
	*best_s = *own_s;
	if (rc)
		return rc;
	const struct bounds bounds = bounds_of(at);
	if (*own_s <= RH_LIMITS_TOLERANCE * bounds.least_s)
		return 0;
	*most = bounds.most;
	rc = find_fitting(at, least, most, best_s);
	*best_s = fmin(*best_s, *own_s);
	return rc;
}

int rh_forecast_widest(const struct rh_boxes_request *request, double *tokens_per_s)
{
	struct limiting at = {.request = request};
	double own_s, best_s;
	int64_t most;
	int rc = find_widest(&at, &most, &own_s, &best_s);
	free_boxes(&at);
	*tokens_per_s = rc ? 0 : request->input->tokens_a_step / (best_s * (double)at.units);
	return rc;
}

int rh_forecast_limits(const struct rh_boxes_request *request, struct rh_admission_limits *out, double unit_s[2])
{
	int boxes = (int)request->config->boxes;
	struct limiting at = {.request = request};
	double best;
	int64_t enough;
	int rc = find_widest(&at, &enough, &unit_s[1], &best);
	unit_s[0] = best;
	if (unit_s[1] <= RH_LIMITS_TOLERANCE * best) {
		enough = boxes;
		unit_s[0] = unit_s[1];
	}
	if (!rc)
		rc = find_least(&at, period_of, boxes, &enough, best, &unit_s[0]);
	free_boxes(&at);
	rh_admission_limits_set(boxes, enough, out);
	return rc;
}

static int delayed_period(struct limiting *at, int64_t delay, double *seconds)
{
	struct rh_config config = *at->request->config;
	config.paci_update_delay = delay;
	return simulate(at, &config, delay > 0, seconds);
}

int rh_forecast_delay(const struct rh_boxes_request *request, int64_t *delay, double unit_s[2])
{
	struct limiting at = {.request = request};
	double best = INFINITY;
	int64_t enough = 0;
	int rc = delayed_period(&at, 0, &unit_s[1]);
	unit_s[0] = unit_s[1];
	if (!rc && at.units > 1 && request->config->paci_backward != RH_BACKWARD_STASH)
		rc = delayed_period(&at, at.units - 1, &best);
	if (!rc && RH_LIMITS_TOLERANCE * best < unit_s[1]) {
		enough = at.units - 1;
		unit_s[0] = best;
	}
	if (!rc)
		rc = find_least(&at, delayed_period, 0, &enough, best, &unit_s[0]);
	free_boxes(&at);
	*delay = enough;
	return rc;
}
