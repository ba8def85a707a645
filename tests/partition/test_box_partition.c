/* The partitioner over boxes against brute force over all cuts, the design's counterexample to a single pass over pairs, and figures that
 * can be told by hand. Seconds, bytes and speeds are whole numbers, so that sums are exact in any order. */
#include "check.h"

#include "core/alloc.h"
#include "partition/box_partition.h"

#include <math.h>
#include <string.h>

enum { LAYERS_MOST = 8, BOXES_MOST = 5, CELLS = (LAYERS_MOST + 1) * (LAYERS_MOST + 1) };

/* A request with all that it points to. */
struct drawn {
	struct rh_box_partition_request request;
	struct rh_box_layer layer[BOXES_MOST][LAYERS_MOST], stage[BOXES_MOST][CELLS];
	struct rh_box_means box[BOXES_MOST];
	double latency_s[2 * BOXES_MOST], bytes_per_s[2 * BOXES_MOST];
	int64_t boundary[LAYERS_MOST];
};

static uint32_t below(uint64_t *random, uint32_t limit)
{
	return check_random(random) % limit;
}

static void draw(uint64_t *random, struct drawn *out)
{
	*out = (struct drawn){.request = {.layers = 1 + (int)below(random, LAYERS_MOST)}};
	struct rh_box_partition_request *request = &out->request;
	uint32_t most = below(random, 3) ? 12 : 2; /* many ties, too */
	request->boxes = 1 + (int)below(random, (uint32_t)(request->layers < BOXES_MOST ? request->layers : BOXES_MOST));
	request->micro_batches = below(random, 3) ? 1 + below(random, 12) : 0;
	for (int l = 0; l < request->layers; l++)
		out->boundary[l] = 8 * below(random, 4);
	for (int k = 0; k < request->boxes; k++) {
		for (int l = 0; l < request->layers; l++)
			out->layer[k][l] = (struct rh_box_layer){below(random, most), below(random, most), below(random, most)};
		int64_t cap = below(random, 8) ? below(random, 60) : -(int64_t)below(random, 9);
		out->box[k] = (struct rh_box_means){out->layer[k], cap, (request->boxes - k) * (1 + (int64_t)below(random, 2)), NULL};
		if (!below(random, 3)) /* any figures, also such as no sums would give */
			out->box[k].stage = out->stage[k];
		for (int i = 0; i < CELLS; i++)
			out->stage[k][i] = (struct rh_box_layer){below(random, 3 * most), below(random, 3 * most), below(random, most)};
	}
	for (int i = 0; i < 2 * (request->boxes - 1); i++) {
		out->latency_s[i] = below(random, 2) ? below(random, 20) : 0;
		out->bytes_per_s[i] = (double)(below(random, 2) << below(random, 4));
	}
	request->box = out->box;
	request->boundary_bytes = out->boundary;
	request->latency_s = out->latency_s;
	request->bytes_per_s = out->bytes_per_s;
}

/* These cuts by the header's definitions. */
static struct rh_box_partition judge(const struct rh_box_partition_request *request, const int *cut)
{
	struct rh_box_partition out = {0};
	for (int k = 0; k < request->boxes; k++) {
		const struct rh_box_means *box = &request->box[k];
		double seconds = 0;
		int64_t bytes = -box->cap_bytes;
		const struct rh_box_layer *stage = box->stage ? &box->stage[cut[k] * (request->layers + 1) + cut[k + 1]] : NULL;
		if (stage) {
			seconds = stage->seconds;
			bytes += stage->static_bytes + box->in_flight * stage->activation_bytes;
		}
		for (int l = cut[k]; l < cut[k + 1] && !stage; l++) {
			seconds += box->layer[l].seconds;
			bytes += box->layer[l].static_bytes + box->in_flight * box->layer[l].activation_bytes;
		}
		out.overshoot_bytes = bytes > out.overshoot_bytes ? bytes : out.overshoot_bytes;
		out.period_s = fmax(out.period_s, seconds);
		out.trip_s += seconds;
		for (int i = 2 * k; k + 1 < request->boxes && i < 2 * k + 2; i++) {
			double rate = request->bytes_per_s[i],
			       moves = rate > 0 ? (double)request->boundary_bytes[cut[k + 1] - 1] / rate : 0;
			out.period_s = fmax(out.period_s, moves);
			out.trip_s += moves + request->latency_s[i];
		}
	}
	if (!request->micro_batches || request->micro_batches > request->box[0].in_flight)
		out.period_s = fmax(out.period_s, out.trip_s / (double)request->box[0].in_flight);
	return out;
}

static double step_s(const struct rh_box_partition_request *request, const struct rh_box_partition *of)
{
	return (double)(request->micro_batches - 1) * of->period_s + of->trip_s;
}

static int is_better(const struct rh_box_partition_request *request, const struct rh_box_partition *a, const struct rh_box_partition *b)
{
	if (a->overshoot_bytes != b->overshoot_bytes)
		return a->overshoot_bytes < b->overshoot_bytes;
	if (request->micro_batches)
		return step_s(request, a) < step_s(request, b);
	return a->period_s < b->period_s || (a->period_s == b->period_s && a->trip_s < b->trip_s);
}

/* Cut masks: bit l set where a box begins at layer l + 1. */
static struct rh_box_partition best_of_all(const struct rh_box_partition_request *request)
{
	struct rh_box_partition best = {0};
	for (uint32_t mask = 0, any = 0; mask < 1u << (request->layers - 1); mask++) {
		int cut[BOXES_MOST + 1] = {0}, boxes = 0;
		if (__builtin_popcount(mask) != request->boxes - 1)
			continue;
		for (int l = 0; l + 1 < request->layers; l++)
			if (mask >> l & 1)
				cut[++boxes] = l + 1;
		cut[++boxes] = request->layers;
		struct rh_box_partition is = judge(request, cut);
		if (!any++ || is_better(request, &is, &best))
			best = is;
	}
	return best;
}

static void check_found(const struct rh_box_partition_request *request, const int *cut, const struct rh_box_partition *found)
{
	assert_int_equal(cut[0], 0);
	assert_int_equal(cut[request->boxes], request->layers);
	for (int k = 0; k < request->boxes; k++)
		assert_true(cut[k] < cut[k + 1]);
	struct rh_box_partition is = judge(request, cut), best = best_of_all(request);
	check_near(found->period_s, is.period_s, 0);
	check_near(found->trip_s, is.trip_s, 0);
	assert_true(is.overshoot_bytes <= found->overshoot_bytes);
	assert_int_equal(found->overshoot_bytes, best.overshoot_bytes);
	if (request->micro_batches)
		check_near(step_s(request, found), step_s(request, &best), 0);
	else
		check_near(found->period_s, best.period_s, 0);
	if (!request->micro_batches)
		check_near(found->trip_s, best.trip_s, 0);
}

static void test_partition_equals_brute_force(void **state)
{
	(void)state;
	uint64_t random = check_seed();
	int over = 0, moved = 0;
	for (int round = 0; round < 20000; round++) {
		struct drawn drawn;
		struct rh_box_partition found;
		int cut[BOXES_MOST + 1];
		draw(&random, &drawn);
		check_ok(rh_box_partition_make(&drawn.request, cut, &found));
		check_found(&drawn.request, cut, &found);
		over += found.overshoot_bytes > 0;
		moved += cut[1] != drawn.request.layers / drawn.request.boxes;
	}
	printf("20000 requests, %d of them above a cap, %d with another first cut than even shares\n", over, moved);
	assert_true(over > 2000 && over < 18000 && moved > 2000);
}

/* One pass over (overshoot, time) pairs in lexicographic order finds 11 here (DESIGN.md 5). */
static void test_partition_that_fits_nowhere_is_least_worst_then_fastest(void **state)
{
	(void)state;
	static const struct rh_box_layer layer[] = {{9, 4, 0}, {2, 5, 1}, {5, 5, 2}, {5, 5, 2}, {4, 7, 2}};
	static const struct rh_box_means box[] = {{layer, 7, 3, NULL}, {layer, 7, 2, NULL}, {layer, 7, 1, NULL}};
	static const double links[4] = {0};
	static const int64_t none[5] = {0};
	const struct rh_box_partition_request request = {3, 5, box, none, links, links, 0};
	struct rh_box_partition found;
	int cut[4];
	check_ok(rh_box_partition_make(&request, cut, &found));
	assert_int_equal(found.overshoot_bytes, 9);
	check_near(found.period_s, 9, 0);
	check_found(&request, cut, &found);
}

/* Twelve layers of a second each on the first box, of two on the second. */
static void test_faster_box_gets_more_layers(void **state)
{
	(void)state;
	enum { LAYERS = 12 };
	struct rh_box_layer fast[LAYERS], slow[LAYERS];
	struct rh_box_means box[] = {{fast, 1000, 2, NULL}, {slow, 1000, 1, NULL}};
	double latency[2] = {0}, speed[2] = {0};
	int64_t bytes[LAYERS];
	for (int l = 0; l < LAYERS; l++) {
		fast[l] = (struct rh_box_layer){.seconds = 1, .static_bytes = 10};
		slow[l] = (struct rh_box_layer){.seconds = 2, .static_bytes = 10};
		bytes[l] = 10;
	}
	struct rh_box_partition_request request = {2, LAYERS, box, bytes, latency, speed, 0};
	struct rh_box_partition found;
	int cut[3];
	check_ok(rh_box_partition_make(&request, cut, &found));
	assert_int_equal(cut[1], 8); /* 8 s each */
	check_near(found.period_s, 8, 0);
	box[0].cap_bytes = 50; /* holds five layers */
	check_ok(rh_box_partition_make(&request, cut, &found));
	assert_int_equal(cut[1], 5);
	assert_int_equal(found.overshoot_bytes, 0);
	box[0].cap_bytes = 1000;
	request.micro_batches = 1; /* each layer in turn: where it is fastest */
	check_ok(rh_box_partition_make(&request, cut, &found));
	assert_int_equal(cut[1], 11);
	check_near(found.trip_s, 13, 0);
	request.micro_batches = 0;
	latency[0] = latency[1] = 2; /* two micro-batches are in flight, whose trip decides */
	check_ok(rh_box_partition_make(&request, cut, &found));
	assert_int_equal(cut[1], 9);
	check_near(found.period_s, (9 + 6 + 4) / 2.0, 0);
	latency[0] = latency[1] = 0;
	speed[0] = 1; /* 10 s for each boundary */
	check_ok(rh_box_partition_make(&request, cut, &found));
	assert_int_equal(cut[1], 11);
	check_near(found.period_s, (11 + 2 + 10) / 2.0, 0);
}

/* Of two micro-batches through four boxes both are in flight: the second follows as soon as the busiest box lets it. */
static void test_a_step_of_few_micro_batches_is_cut_evenly(void **state)
{
	(void)state;
	enum { LAYERS = 12, BOXES = 4 };
	struct rh_box_layer layer[LAYERS];
	struct rh_box_means box[BOXES];
	double links[2 * BOXES] = {0};
	int64_t bytes[LAYERS] = {0};
	for (int l = 0; l < LAYERS; l++)
		layer[l] = (struct rh_box_layer){.seconds = 1};
	for (int k = 0; k < BOXES; k++)
		box[k] = (struct rh_box_means){layer, 1000, BOXES - k < 2 ? 1 : 2, NULL};
	struct rh_box_partition_request request = {BOXES, LAYERS, box, bytes, links, links, 2};
	struct rh_box_partition found;
	int cut[BOXES + 1];
	check_ok(rh_box_partition_make(&request, cut, &found));
	for (int k = 0; k < BOXES; k++)
		assert_int_equal(cut[k], 3 * k);
	check_near(found.period_s, 3, 0);
	check_near(found.trip_s, 12, 0);
}

static void test_impossible_requests_are_refused(void **state)
{
	(void)state;
	static const struct rh_box_layer vast[] = {{1, INT64_MAX, 1}, {1, 1, 1}}, small[] = {{1, 1, 1}, {1, 1, 1}};
	static const double links[2] = {0};
	static const int64_t one[] = {1, 1};
	struct rh_box_means box[] = {{small, 1, 2, NULL}, {vast, 1, 1, NULL}};
	struct rh_box_partition_request request = {2, 1, box, one, links, links, 0};
	struct rh_box_partition found;
	int cut[3], rc = -ENOMEM;
	assert_int_equal(rh_box_partition_make(&request, cut, &found), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "boxes: 2 for 1 layers"));
	request.layers = 2;
	assert_int_equal(rh_box_partition_make(&request, cut, &found), -EOVERFLOW);
	box[1].layer = small;
	for (uint64_t nth = 1; rc; nth++) {
		rh_alloc_fail_nth(nth);
		rc = rh_box_partition_make(&request, cut, &found);
		rh_alloc_fail_nth(0);
		assert_true(rc == 0 || rc == -ENOMEM);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_partition_equals_brute_force),
	        cmocka_unit_test(test_partition_that_fits_nowhere_is_least_worst_then_fastest),
	        cmocka_unit_test(test_faster_box_gets_more_layers),
	        cmocka_unit_test(test_a_step_of_few_micro_batches_is_cut_evenly),
	        cmocka_unit_test(test_impossible_requests_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
