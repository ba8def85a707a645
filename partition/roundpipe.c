/* The exact search: for every time that the slowest stage may take, the fewest stages. */
#include "partition/roundpipe_internal.h"

#include "core/alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t searching_bytes(struct searching *at, enum rh_pass pass, int lo, int hi)
{
	const struct rh_stage_memory *memory = at->request->memory;
	int64_t *known = &at->bytes[pass][lo * (at->layers + 1) + hi];
	if (*known < 0)
		*known = memory ? memory->bytes(memory->context, pass, lo, hi) : rh_costs_stage_bytes(at->request->costs, pass, lo, hi);
	RH_ASSERT(*known >= 0);
	return *known;
}

int64_t searching_upload(struct searching *at, enum rh_pass pass, int lo, int hi)
{
	const struct rh_stage_memory *memory = at->request->memory;
	int64_t *known = &at->upload[memory ? pass : 0][lo * (at->layers + 1) + hi];
	if (*known < 0)
		*known = memory ? memory->upload(memory->context, pass, lo, hi) : rh_costs_upload_bytes(at->request->costs, lo, hi);
	RH_ASSERT(*known >= 0);
	return *known;
}

static int ascending_real(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;
	return (a > b) - (a < b);
}

static int ascending_whole(const void *left, const void *right)
{
	int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
	return (a > b) - (a < b);
}

static void list_times(struct searching *at)
{
	int64_t count = 0, different = 0;
	for (int lo = 0; lo < at->layers; lo++) {
		at->time[count++] = rh_cost_stage(&at->sums, RH_PASS_FUSED, lo, at->layers);
		for (int hi = lo + 1; hi < at->layers; hi++) {
			at->time[count++] = rh_cost_stage(&at->sums, RH_PASS_FORWARD, lo, hi);
			at->time[count++] = rh_cost_stage(&at->sums, RH_PASS_BACKWARD, lo, hi);
		}
	}
	qsort(at->time, (size_t)count, sizeof *at->time, ascending_real);
	for (int64_t i = 0; i < count; i++)
		if (!different || at->time[i] > at->time[different - 1])
			at->time[different++] = at->time[i];
	at->times = different;
}

static void list_limits(struct searching *at)
{
	int64_t count = 0, different = 0;
	for (int p = 0; p < (at->request->memory ? RH_PASSES : 1); p++)
		for (int lo = 0; lo < at->layers; lo++)
			for (int hi = lo + 1; hi <= at->layers; hi++)
				at->limit[count++] = searching_upload(at, (enum rh_pass)p, lo, hi);
	qsort(at->limit, (size_t)count, sizeof *at->limit, ascending_whole);
	for (int64_t i = 0; i < count; i++)
		if (!different || at->limit[i] > at->limit[different - 1])
			at->limit[different++] = at->limit[i];
	at->limits = different;
}

int searching_open(const struct rh_partition_request *request, struct searching *at)
{
	size_t layers = (size_t)request->costs->layers;
	*at = (struct searching){.request = request, .layers = (int)layers, .first_trained = request->costs->first_trained};
	if (request->devices < 1 || request->micro_batches < 1 || request->rounds < 1 || request->rounds > request->micro_batches ||
	    request->steps < 1)
		return rh_fail(-EINVAL,
		               "partition: devices, micro-batches, rounds and steps are counts from 1, and a round has a micro-batch");
	int rc = rh_costs_sum(request->costs, &at->sums);
	at->below_s = request->sum_s ? rh_alloc(layers + 1, sizeof *at->below_s) : NULL;
	if (!rc && !at->below_s && request->sum_s)
		rc = -ENOMEM;
	for (int l = 0; !rc && at->below_s && l < at->layers; l++)
		at->below_s[l + 1] = at->below_s[l] + (l < at->first_trained ? 0 : request->sum_s[l]);
	return rc;
}

int searching_remember(struct searching *at)
{
	size_t runs = (size_t)at->layers * ((size_t)at->layers + 1);
	int64_t *memo = rh_alloc(runs * 2 * RH_PASSES, sizeof *memo);
	at->bytes[0] = memo;
	if (!memo)
		return -ENOMEM;
	memset(memo, -1, runs * 2 * RH_PASSES * sizeof *memo);
	for (int p = 0; p < RH_PASSES; p++) {
		at->bytes[p] = memo + runs * (size_t)p;
		at->upload[p] = memo + runs * (size_t)(RH_PASSES + p);
	}
	return 0;
}

/* All times and uploads that the exact search can be bounded by. */
static int list_bounds(struct searching *at)
{
	size_t runs = (size_t)at->layers * ((size_t)at->layers + 1);
	at->time = rh_alloc(runs, sizeof *at->time);
	at->limit = rh_alloc(runs * RH_PASSES / 2 + 1, sizeof *at->limit);
	if (!at->time || !at->limit)
		return -ENOMEM;
	list_times(at);
	list_limits(at);
	return 0;
}

void searching_close(struct searching *at)
{
	rh_cost_sums_free(&at->sums);
	rh_free(at->bytes[0]);
	rh_free(at->time);
	rh_free(at->limit);
	rh_free(at->below_s);
}

int partition_create(int layers, struct rh_partition *out)
{
	*out = (struct rh_partition){.forward = rh_alloc((size_t)layers, sizeof *out->forward),
	                             .backward = rh_alloc((size_t)layers, sizeof *out->backward)};
	if (out->forward && out->backward)
		return 0;
	rh_partition_free(out);
	return -ENOMEM;
}

void rh_partition_free(struct rh_partition *partition)
{
	rh_free(partition->forward);
	rh_free(partition->backward);
	*partition = (struct rh_partition){0};
}

void partition_copy(struct rh_partition *to, const struct rh_partition *from)
{
	struct rh_partition copy = *from;
	copy.forward = to->forward;
	copy.backward = to->backward;
	memcpy(to->forward, from->forward, (size_t)from->forward_stages * sizeof *from->forward);
	memcpy(to->backward, from->backward, (size_t)from->backward_stages * sizeof *from->backward);
	*to = copy;
}

static double lockstep(const struct rh_partition_request *request, int stages, double slowest_s)
{
	double n = request->devices;
	return ((double)request->micro_batches * stages + n * (n - 1)) * slowest_s;
}

static void widen(struct searching *at, enum rh_pass pass, struct rh_stage stage, struct rh_partition *partition)
{
	int64_t bytes = searching_bytes(at, pass, stage.lo, stage.hi), upload = searching_upload(at, pass, stage.lo, stage.hi);
	double seconds = rh_cost_stage(&at->sums, pass, stage.lo, stage.hi);
	partition->device_bytes = bytes > partition->device_bytes ? bytes : partition->device_bytes;
	partition->prefetch_bytes = upload > partition->prefetch_bytes ? upload : partition->prefetch_bytes;
	partition->slowest_s = seconds > partition->slowest_s ? seconds : partition->slowest_s;
}

int searching_measure(struct searching *at, struct rh_partition *partition)
{
	int stages = partition->forward_stages + partition->backward_stages;
	partition->device_bytes = partition->prefetch_bytes = 0;
	partition->slowest_s = 0;
	for (int i = 0; i < partition->forward_stages; i++)
		widen(at, RH_PASS_FORWARD, partition->forward[i], partition);
	for (int i = 0; i < partition->backward_stages; i++)
		widen(at, i ? RH_PASS_BACKWARD : RH_PASS_FUSED, partition->backward[i], partition);
	if (stages == 1)
		partition->prefetch_bytes = 0;
	partition->device_bytes += partition->prefetch_bytes;
	partition->lockstep_s = lockstep(at->request, stages, partition->slowest_s);
	return partition->device_bytes <= at->request->cap_bytes;
}

int searching_fits(struct searching *at, struct rh_partition *partition)
{
	int fits = searching_measure(at, partition);
	if (!at->request->sizer)
		return fits;
	partition->device_bytes =
	        rh_stage_plan_sizer_bytes(at->request->sizer, (struct rh_stages){partition->forward, partition->forward_stages},
	                                  (struct rh_stages){partition->backward, partition->backward_stages});
	return partition->device_bytes <= at->request->cap_bytes;
}

static int fits(struct searching *at, enum rh_pass pass, int lo, int hi)
{
	return rh_cost_stage(&at->sums, pass, lo, hi) <= at->slowest_s && searching_upload(at, pass, lo, hi) <= at->upload_limit &&
	       searching_bytes(at, pass, lo, hi) <= at->bytes_limit;
}

/* The fewest stages under the limits in force: each as large as it goes, which is exact because a stage that fits still does when it
 * shrinks. 0 when there are more than `most`, or a layer fits nowhere. */
static int pack(struct searching *at, int most, struct rh_partition *out)
{
	int lo = at->layers, hi;
	out->forward_stages = out->backward_stages = 0;
	while (lo > 0 && fits(at, RH_PASS_FUSED, lo - 1, at->layers))
		lo--;
	if (lo == at->layers)
		return 0;
	out->backward[out->backward_stages++] = (struct rh_stage){lo, at->layers};
	int top = lo, trained = at->first_trained;
	for (hi = top; hi > trained; hi = lo) {
		for (lo = hi; lo > trained && fits(at, RH_PASS_BACKWARD, lo - 1, hi);)
			lo--;
		if (lo == hi || out->backward_stages == most)
			return 0;
		out->backward[out->backward_stages++] = (struct rh_stage){lo, hi};
	}
	for (lo = 0; lo < top; lo = hi) {
		for (hi = lo; hi < top && fits(at, RH_PASS_FORWARD, lo, hi + 1);)
			hi++;
		if (lo == hi || out->backward_stages + out->forward_stages == most)
			return 0;
		out->forward[out->forward_stages++] = (struct rh_stage){lo, hi};
	}
	return 1;
}

/* Is there a prefetch buffer among limit[first..last] with which at most `most` stages do? A packing under the loosest limits of the range
 * is a bound; where it fits as it stands it is an answer, and a range of one is never in doubt. */
static int pack_any(struct searching *at, int64_t first, int64_t last, int most, struct rh_partition *out)
{
	at->upload_limit = at->limit[last];
	at->bytes_limit = at->request->cap_bytes - at->limit[first];
	if (!pack(at, most, out))
		return 0;
	if (searching_measure(at, out))
		return 1;
	RH_ASSERT(first < last);
	int64_t middle = first + (last - first) / 2;
	return pack_any(at, first, middle, most, out) || pack_any(at, middle + 1, last, most, out);
}

/* The least slowest stage with at most `most` stages; 0 when nothing fits. time[highest] is known to do, or is the last. */
static int least_slowest(struct searching *at, int most, int64_t lowest, int64_t *highest, struct rh_partition *scratch,
                         struct rh_partition *out)
{
	int found = 0;
	int64_t low = lowest, high = *highest;
	while (low <= high) {
		int64_t middle = low + (high - low) / 2;
		at->slowest_s = at->time[middle];
		if (pack_any(at, 0, at->limits - 1, most, scratch)) {
			partition_copy(out, scratch);
			found = 1;
			high = middle - 1;
		} else {
			low = middle + 1;
		}
	}
	if (found)
		*highest = high + 1;
	return found;
}

/* Lower bound on the slowest stage's time: the heaviest layer in its cheapest pass, and an even share of the work that no cut spares. */
static double least_time(const struct searching *at, int stages)
{
	double heaviest = 0;
	for (int l = 0; l < at->layers; l++) {
		double forward = rh_cost_stage(&at->sums, RH_PASS_FORWARD, l, l + 1);
		double backward = l < at->first_trained ? 0 : rh_cost_stage(&at->sums, RH_PASS_BACKWARD, l, l + 1);
		double alone = forward > backward ? forward : backward, fused = rh_cost_stage(&at->sums, RH_PASS_FUSED, l, at->layers);
		double least = l + 1 < at->layers && alone < fused ? alone : fused;
		heaviest = least > heaviest ? least : heaviest;
	}
	double share = rh_cost_stage(&at->sums, RH_PASS_FUSED, 0, at->layers) / stages;
	return (share > heaviest ? share : heaviest) * (1 - 1e-9);
}

static int64_t first_from(const struct searching *at, double least)
{
	int64_t low = 0, high = at->times;
	while (low < high) {
		int64_t middle = low + (high - low) / 2;
		if (at->time[middle] < least)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Into the list by its figure; the last falls off. */
static void insert_sorted(struct rh_partition kept[KEPT], int *count, const struct rh_partition *found)
{
	if (*count == KEPT && found->lockstep_s >= kept[KEPT - 1].lockstep_s)
		return;
	int place = *count < KEPT ? (*count)++ : KEPT - 1;
	struct rh_partition storage = kept[place];
	for (; place > 0 && kept[place - 1].lockstep_s > found->lockstep_s; place--)
		kept[place] = kept[place - 1];
	kept[place] = storage;
	partition_copy(&kept[place], found);
}

static int nothing_fits(struct searching *at)
{
	static const char *const name[RH_PASSES] = {"forward", "backward", "forward, loss and backward"};
	int64_t prefetch = 0, most = -1;
	int layer = 0, pass = 0;
	for (int l = 0; l < at->layers; l++)
		for (int p = 0; p < RH_PASSES; p++) {
			if ((p == RH_PASS_FUSED) != (l + 1 == at->layers) || (p == RH_PASS_BACKWARD && l < at->first_trained))
				continue;
			int64_t bytes = searching_bytes(at, (enum rh_pass)p, l, l + 1),
			        upload = searching_upload(at, (enum rh_pass)p, l, l + 1);
			prefetch = upload > prefetch ? upload : prefetch;
			if (bytes > most) {
				most = bytes;
				layer = l;
				pass = p;
			}
		}
	return rh_fail(RH_DOES_NOT_FIT,
	               "max_vram: the device's %lld bytes cannot hold the %s of layer %d alone, which takes %lld with the buffer for the "
	               "largest layer's weights; raise max_vram, or lower max_length or per_device_train_batch_size",
	               (long long)at->request->cap_bytes, name[pass], layer, (long long)(most + prefetch));
}

static int measure_one_stage(struct searching *at, struct rh_partition *out)
{
	out->forward_stages = 0;
	out->backward_stages = 1;
	out->backward[0] = (struct rh_stage){0, at->layers};
	return searching_measure(at, out);
}

int lockstep_search(struct searching *at, struct rh_partition kept[KEPT], int *count)
{
	struct rh_partition scratch = {0}, found = {0};
	*count = 0;
	int rc = list_bounds(at);
	int64_t highest = at->times - 1;
	if (!rc)
		rc = partition_create(at->layers, &scratch);
	if (!rc)
		rc = partition_create(at->layers, &found);
	for (int i = 0; !rc && i < KEPT; i++)
		rc = partition_create(at->layers, &kept[i]);
	if (!rc && measure_one_stage(at, &found))
		insert_sorted(kept, count, &found);
	for (int stages = 2, last = *count; !rc && stages < 2 * at->layers; stages++) {
		double least = least_time(at, stages), slowest = last ? found.slowest_s : -1;
		if (*count == KEPT && lockstep(at->request, stages, least) >= kept[KEPT - 1].lockstep_s)
			continue;
		if (!least_slowest(at, stages, first_from(at, least), &highest, &scratch, &found))
			continue;
		if (found.slowest_s != slowest || found.forward_stages + found.backward_stages != last)
			insert_sorted(kept, count, &found);
		last = found.forward_stages + found.backward_stages;
	}
	if (!rc && !*count)
		rc = nothing_fits(at);
	rh_partition_free(&scratch);
	rh_partition_free(&found);
	return rc;
}
