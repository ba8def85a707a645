#include "partition/paci.h"

#include "core/alloc.h"

#include <math.h>

enum { STEP_MOST = 1 << 20 }; /* a window that no machine holds */

struct dp {
	const struct rh_paci_request *request;
	int64_t window_step;
	double *seconds;             /* (layers + 1) prefix sums */
	int64_t *fixed, *activation; /* likewise, bytes */
	double *best_s;              /* (boxes + 1, layers + 1): the first i layers in j stages */
	int64_t *best_bytes;         /* likewise, of the overshoot */
	int *from;                   /* likewise: where stage j begins */
};

int64_t rh_paci_window(int boxes, int stage, int64_t step)
{
	return 1 + (int64_t)(boxes - stage) * step;
}

int64_t rh_paci_window_step(double latency_s, double slowest_s)
{
	double trips = latency_s <= 0 ? 0 : slowest_s <= 0 ? STEP_MOST : ceil(2 * latency_s / slowest_s);
	return 1 + (trips < STEP_MOST ? (int64_t)trips : STEP_MOST);
}

/* Bytes above the cap, of layers [lo, hi) as stage j, from 1; saturated. */
static int64_t overshoot(const struct dp *dp, int j, int lo, int hi)
{
	int64_t window = rh_paci_window(dp->request->boxes, j, dp->window_step), needed;
	int64_t fixed = dp->fixed[hi] - dp->fixed[lo], activation = dp->activation[hi] - dp->activation[lo];
	if (__builtin_mul_overflow(window, activation, &needed) || __builtin_add_overflow(needed, fixed, &needed))
		return INT64_MAX;
	return needed > dp->request->cap_bytes ? needed - dp->request->cap_bytes : 0;
}

static size_t cell(const struct dp *dp, int j, int i)
{
	return (size_t)j * (size_t)(dp->request->layers + 1) + (size_t)i;
}

/* The least worst overshoot. */
static int64_t least_overshoot(struct dp *dp)
{
	int layers = dp->request->layers, boxes = dp->request->boxes;
	for (int j = 1; j <= boxes; j++)
		for (int i = j; i <= layers - (boxes - j); i++) {
			int64_t *best = &dp->best_bytes[cell(dp, j, i)];
			*best = INT64_MAX;
			for (int x = j == 1 ? 0 : j - 1; x < (j == 1 ? 1 : i); x++) {
				int64_t before = j == 1 ? 0 : dp->best_bytes[cell(dp, j - 1, x)], here = overshoot(dp, j, x, i);
				int64_t worst = before > here ? before : here;
				*best = worst < *best ? worst : *best;
			}
		}
	return dp->best_bytes[cell(dp, boxes, layers)];
}

/* Equation 15 under cap + allowed; the cuts stand in `from`. */
static double least_slowest(struct dp *dp, int64_t allowed)
{
	int layers = dp->request->layers, boxes = dp->request->boxes;
	for (int j = 1; j <= boxes; j++)
		for (int i = j; i <= layers - (boxes - j); i++) {
			double *best = &dp->best_s[cell(dp, j, i)];
			*best = INFINITY;
			for (int x = j == 1 ? 0 : j - 1; x < (j == 1 ? 1 : i); x++) {
				double before = j == 1 ? 0 : dp->best_s[cell(dp, j - 1, x)], here = dp->seconds[i] - dp->seconds[x];
				double slowest = before > here ? before : here;
				if (slowest < *best && overshoot(dp, j, x, i) <= allowed) {
					*best = slowest;
					dp->from[cell(dp, j, i)] = x;
				}
			}
		}
	return dp->best_s[cell(dp, boxes, layers)];
}

static int dp_open(const struct rh_paci_request *request, struct dp *dp)
{
	*dp = (struct dp){.request = request};
	if (request->boxes < 1 || request->boxes > request->layers)
		return rh_fail(-EINVAL, "partition: %d layers cannot be shared out to %d boxes, each of which needs one; use fewer boxes",
		               request->layers, request->boxes);
	size_t sums = (size_t)request->layers + 1, cells = sums * ((size_t)request->boxes + 1);
	dp->seconds = rh_alloc(sums, sizeof *dp->seconds);
	dp->fixed = rh_alloc(sums, sizeof *dp->fixed);
	dp->activation = rh_alloc(sums, sizeof *dp->activation);
	dp->best_s = rh_alloc(cells, sizeof *dp->best_s);
	dp->best_bytes = rh_alloc(cells, sizeof *dp->best_bytes);
	dp->from = rh_alloc(cells, sizeof *dp->from);
	if (!(dp->seconds && dp->fixed && dp->activation && dp->best_s && dp->best_bytes && dp->from))
		return -ENOMEM;
	for (int l = 0; l < request->layers; l++) {
		dp->seconds[l + 1] = dp->seconds[l] + request->layer[l].seconds;
		if (__builtin_add_overflow(dp->fixed[l], request->layer[l].static_bytes, &dp->fixed[l + 1]) ||
		    __builtin_add_overflow(dp->activation[l], request->layer[l].activation_bytes, &dp->activation[l + 1]))
			return rh_fail(-EOVERFLOW, "partition: the layers' bytes up to layer %d are more than 64 bits hold", l);
	}
	return 0;
}

static void dp_close(struct dp *dp)
{
	rh_free(dp->seconds);
	rh_free(dp->fixed);
	rh_free(dp->activation);
	rh_free(dp->best_s);
	rh_free(dp->best_bytes);
	rh_free(dp->from);
}

/* Sets all of *out but the cuts, which stand in dp->from. */
static void solve(struct dp *dp, int64_t window_step, struct rh_paci_partition *out)
{
	dp->window_step = out->window_step = window_step;
	out->overshoot_bytes = least_overshoot(dp);
	out->slowest_s = least_slowest(dp, out->overshoot_bytes);
}

static int finish(struct dp *dp, struct rh_paci_partition *out)
{
	int boxes = dp->request->boxes;
	out->cut = rh_alloc((size_t)boxes + 1, sizeof *out->cut);
	if (!out->cut)
		return -ENOMEM;
	out->cut[boxes] = dp->request->layers;
	for (int j = boxes; j > 0; j--)
		out->cut[j - 1] = dp->from[cell(dp, j, out->cut[j])];
	return 0;
}

int rh_paci_partition_windowed(const struct rh_paci_request *request, int64_t window_step, struct rh_paci_partition *out)
{
	struct dp dp;
	*out = (struct rh_paci_partition){0};
	int rc = dp_open(request, &dp);
	if (!rc) {
		solve(&dp, window_step, out);
		rc = finish(&dp, out);
	}
	dp_close(&dp);
	return rc;
}

int rh_paci_partition(const struct rh_paci_request *request, struct rh_paci_partition *out)
{
	struct dp dp;
	*out = (struct rh_paci_partition){0};
	int rc = dp_open(request, &dp);
	if (rc)
		goto out;
	/* the smallest step that is wide enough for the stages it leads to */
	int64_t low = 1, high = rh_paci_window_step(request->latency_s, dp.seconds[request->layers] / request->boxes);
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		solve(&dp, middle, out);
		if (rh_paci_window_step(request->latency_s, out->slowest_s) <= middle)
			high = middle;
		else
			low = middle + 1;
	}
	solve(&dp, low, out);
	rc = finish(&dp, out);
out:
	dp_close(&dp);
	return rc;
}

void rh_paci_partition_free(struct rh_paci_partition *partition)
{
	rh_free(partition->cut);
	*partition = (struct rh_paci_partition){0};
}
