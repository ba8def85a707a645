/* Boxes in one virtual time, against closed forms: the time that a micro-batch adds to 1F1B, and the period of PACI, with latency and
 * transfer. Layers take the same time each; embedding and head take little beside them. */
#include "train/virtual_boxes.h"

#include "forecast/forecast_limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int even[BOXES_MOST] = {6, 6, 6, 6};

/* Of a step without a link's time, each box's computation of a micro-batch: all that its device does. */
struct timed {
	double step_s, box_s[BOXES_MOST];
};

static struct timed timed_over(struct boxes *at, int steps, int64_t micro_batches, double latency_s, double transfer_s)
{
	struct rh_forecast_input input;
	struct rh_forecast box[BOXES_MOST];
	struct rh_config *config = &at->deep.rig.config;
	struct timed out;
	config->gradient_accumulation_steps = micro_batches;
	check_ok(rh_forecast_input_synthetic(config, steps, &input));
	double bytes = (double)config->max_length * HIDDEN * (config->dtype == RH_F32 ? 4 : 2);
	for (int k = 0; k + 1 < at->boxes; k++)
		for (int way = 0; way < 2; way++)
			at->line[k][way] = (struct rh_virtual_line){latency_s, transfer_s > 0 ? bytes / transfer_s : 0};
	const struct rh_boxes_request request = {config, at->machine, at->first, at->line, &input};
	check_ok(rh_forecast_boxes(&request, box));
	out.step_s = box[0].step_seconds;
	for (int k = 0; k < at->boxes; k++) {
		out.box_s[k] = (1 - box[k].bubble) * box[k].step_seconds / (double)micro_batches;
		rh_forecast_free(&box[k]);
	}
	rh_forecast_input_free(&input);
	return out;
}

static struct timed timed_of(struct boxes *at, int64_t micro_batches, double latency_s, double transfer_s)
{
	return timed_over(at, 2, micro_batches, latency_s, transfer_s);
}

/* 3 %: what begin and end of a step, which the formula leaves out, may hide or add. */
static void check_share(const char *what, int boxes, double is, double formula)
{
	printf("%s, %d boxes: %.4f, formula %.4f\n", what, boxes, is, formula);
	assert_true(fabs(is - formula) <= 0.03 * formula);
}

/* The first box sends all activations before it takes the first gradient: with fewer buffers than these take, the boxes would wait for each
 * other. Each link is passed up and down once by the micro-batches, once by the norm. */
static void test_gpipe_of_many_micro_batches_ends(void **state)
{
	(void)state;
	enum { MICRO_BATCHES = 24 };
	for (int boxes = 2; boxes <= BOXES_MOST; boxes++) {
		struct boxes at;
		boxes_open(&at, boxes, even, RH_MODE_SYNC_PP, "gpipe");
		struct timed alone = timed_of(&at, MICRO_BATCHES, 0, 0), slow = timed_of(&at, MICRO_BATCHES, 0.1, 0);
		assert_true(alone.step_s >= (1 - 1e-12) * MICRO_BATCHES * alone.box_s[0]); /* equal but for rounding where it never waits */
		assert_true(slow.step_s >= 0.99 * 4 * (boxes - 1) * 0.1);
		boxes_close(&at);
	}
}

/* N micro-batches are in flight, and each passes all boxes and, up and down, all links; or the slowest box is busy all the time. */
static double period_of(const struct timed *alone, int boxes, double link_s)
{
	double sum = 2 * (boxes - 1) * link_s, slowest = 0;
	for (int k = 0; k < boxes; k++) {
		sum += alone->box_s[k];
		slowest = fmax(slowest, alone->box_s[k]);
	}
	return fmax(slowest, sum / boxes);
}

/* A box recomputes while the gradient is on its way. The last box, whose stage is fused, recomputes nothing: its time is what a unit waits
 * for in each of the boxes, which are alike. */
static struct timed waited_of(const struct timed *alone, int boxes)
{
	struct timed waited = *alone;
	for (int k = 0; k < boxes; k++)
		waited.box_s[k] = alone->box_s[boxes - 1];
	return waited;
}

/* All boxes but the last compute a forward f, and later a recomputation f and a backward b; the last one f + b at once. Of box 0, 1, ...
 * `box` is never idle from its first forward to its last backward. It begins when its first activation is there. Its last gradient passes
 * all boxes below, and the first box then begins the next step. */
static double gpipe_step_by(const struct timed *alone, int boxes, int box, const double line_s[2], int64_t micro_batches)
{
	double low = alone->box_s[0], top = alone->box_s[boxes - 1], forward = low - top, backward = top - forward;
	double link_s = line_s[0] + line_s[1], begins = box * (forward + link_s);
	double work = (double)micro_batches * (box + 1 < boxes ? low : top);
	return begins + work + box * (backward + link_s);
}

/* The one below the last; or, where the line is long, the last one. */
static double gpipe_step_of(const struct timed *alone, int boxes, const double line_s[2], int64_t micro_batches)
{
	return fmax(gpipe_step_by(alone, boxes, boxes - 2, line_s, micro_batches),
	            gpipe_step_by(alone, boxes, boxes - 1, line_s, micro_batches));
}

static void test_gpipe_step_is_fill_work_and_drain(void **state)
{
	(void)state;
	enum { MICRO_BATCHES = 16 };
	static const double far[][2] = {{0, 0}, {0.025, 0}, {0.025, 0.004}, {0.05, 0}, {0.1, 0}, {0.5, 0}};
	for (int boxes = 2; boxes <= BOXES_MOST; boxes++) {
		struct boxes at;
		boxes_open(&at, boxes, even, RH_MODE_SYNC_PP, "gpipe");
		struct timed alone = timed_of(&at, MICRO_BATCHES, 0, 0);
		for (size_t i = 0; i < sizeof far / sizeof *far; i++)
			check_share("gpipe", boxes, timed_of(&at, MICRO_BATCHES, far[i][0], far[i][1]).step_s,
			            gpipe_step_of(&alone, boxes, far[i], MICRO_BATCHES));
		boxes_close(&at);
	}
}

static const struct {
	double latency_s, transfer_s;
} lines[] = {{0, 0}, {0.025, 0}, {0.025, 0.004}};
enum { LINES = sizeof lines / sizeof *lines, THREE = 3 };

/* Between a box that recomputes all the while the gradient is on its way, and one that then has all of its recomputation to do: its order
 * gives it a forward to run first. */
static void test_1f1b_micro_batch_takes_its_share_of_a_round_trip(void **state)
{
	(void)state;
	struct boxes at;
	boxes_open(&at, THREE, even, RH_MODE_SYNC_PP, "1f1b");
	struct timed alone = timed_of(&at, 4 * THREE, 0, 0), waited = waited_of(&alone, THREE);
	for (int i = 0; i < LINES; i++) {
		double link_s = lines[i].latency_s + lines[i].transfer_s;
		double less = timed_of(&at, 4 * THREE, lines[i].latency_s, lines[i].transfer_s).step_s,
		       more = timed_of(&at, 8 * THREE, lines[i].latency_s, lines[i].transfer_s).step_s;
		double is = (more - less) / (4 * THREE), least = fmax(period_of(&alone, 1, 0), period_of(&waited, THREE, link_s));
		printf("1f1b, %d boxes: %.4f, between %.4f and %.4f\n", THREE, is, least, period_of(&alone, THREE, link_s));
		assert_true(is >= 0.97 * least && is <= 1.03 * fmax(least, period_of(&alone, THREE, link_s)));
	}
	boxes_close(&at);
}

static void test_paci_period_is_that_of_its_admission_limits(void **state)
{
	(void)state;
	struct boxes at;
	boxes_open(&at, THREE, even, RH_MODE_PACI, "paci");
	struct timed alone = timed_of(&at, 4 * THREE, 0, 0), waited = waited_of(&alone, THREE);
	for (int i = 0; i < LINES; i++) {
		double link_s = lines[i].latency_s + lines[i].transfer_s,
		       formula = fmax(period_of(&alone, 1, 0), period_of(&waited, THREE, link_s));
		check_share("paci", THREE, timed_of(&at, 4 * THREE, lines[i].latency_s, lines[i].transfer_s).step_s / (4 * THREE), formula);
	}
	boxes_close(&at);
}

/* A box's forward, recomputation and backward of a unit. */
struct parts {
	double forward, again, backward;
};

/* A step of 1F1B with a flush, without latency: the box that is busy the longest takes a t. Before it the first unit passes the boxes
 * below, forward; behind it the last one, backward: they have recomputed while they waited for it. Between, while the first gradient is on
 * its way down to it, the box can compute the forwards of its warm-up and one recomputation, and is idle for the rest. Boxes that keep
 * activations recompute nothing (again 0), and equal ones take the paper's a t_max + sum t - t_max. */
static double flush_step_of(const struct parts *part, int boxes, int64_t units)
{
	double longest = 0;
	for (int i = 0; i < boxes; i++) {
		double below = 0, above = 0;
		for (int k = 0; k < i; k++)
			below += part[k].forward + part[k].backward;
		for (int k = i + 1; k < boxes; k++)
			above += part[k].forward + part[k].backward;
		double warm = (boxes - 1 - i) * part[i].forward + part[i].again, busy = part[i].forward + part[i].again + part[i].backward;
		double idle = i + 1 < boxes ? fmax(above - warm, 0) : 0;
		longest = fmax(longest, below + (double)units * busy + idle);
	}
	return longest;
}

static struct timed timed_alone(int boxes, const int *blocks, const char *schedule, enum rh_paci_backward backward, int64_t units)
{
	struct boxes at;
	boxes_open(&at, boxes, blocks, strcmp(schedule, "paci") ? RH_MODE_SYNC_PP : RH_MODE_PACI, schedule);
	at.deep.rig.config.paci_backward = backward;
	struct timed timed = timed_of(&at, units, 0, 0);
	boxes_close(&at);
	return timed;
}

/* A step of PACI of a micro-batches takes a t_max, one of 1F1B what flush_step_of says: their ratio is the bubble. What a box recomputes is
 * what it computes less where it keeps activations; a forward takes as long. */
static void test_paci_over_flush_is_the_bubble(void **state)
{
	(void)state;
	enum { ACCUMULATION = 8 };
	static const struct {
		int boxes, blocks[BOXES_MOST];
	} cases[] = {{2, {6, 6}},        {3, {6, 6, 6}}, {4, {6, 6, 6, 6}}, {3, {4, 6, 12}},
	             {4, {5, 2, 4, 12}}, {3, {4, 9, 6}}, {4, {9, 3, 5, 4}}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int boxes = cases[i].boxes;
		const int *blocks = cases[i].blocks;
		struct timed flushed = timed_alone(boxes, blocks, "1f1b", RH_BACKWARD_RECOMPUTE, ACCUMULATION),
		             own = timed_alone(boxes, blocks, "paci", RH_BACKWARD_RECOMPUTE, ACCUMULATION),
		             stored = timed_alone(boxes, blocks, "paci", RH_BACKWARD_STORED, ACCUMULATION);
		struct parts part[BOXES_MOST];
		double most = 0;
		for (int k = 0; k < boxes; k++) {
			double again = own.box_s[k] - stored.box_s[k]; /* of the last box 0, and its forward counts as backward */
			part[k] = (struct parts){again, again, stored.box_s[k] - again};
			most = fmax(most, own.box_s[k]);
		}
		double formula = flush_step_of(part, boxes, ACCUMULATION);
		check_share("paci's step", boxes, own.step_s, ACCUMULATION * most);
		check_share("1f1b's step", boxes, flushed.step_s, formula);
		check_share("paci over 1f1b", boxes, flushed.step_s / own.step_s, formula / (ACCUMULATION * most));
	}
}

/* The paper's form of equal boxes that recompute nothing: 1 + (sum t - t_max) / (a t_max). */
static void test_flush_step_is_the_papers_without_recomputation(void **state)
{
	(void)state;
	for (int boxes = 2; boxes <= BOXES_MOST; boxes++)
		for (int64_t units = boxes; units < 4 * boxes; units++) {
			struct parts part[BOXES_MOST] = {{1, 0, 2}, {1, 0, 2}, {1, 0, 2}, {1, 0, 2}};
			assert_true(fabs(flush_step_of(part, boxes, units) - 3.0 * (double)(units + boxes - 1)) < 1e-9);
		}
}

/* Mode fluidpipe: no box waits for the line but for what may be expected in a round trip; a step takes the slower box's time, or the
 * transfer of its activations. Box 1 has a head, too, so its time is its own. */
static void test_fluidpipe_hides_the_line(void **state)
{
	(void)state;
	enum { AHEAD = 16, TWO = 2, STEPS = 12 };
	static const int64_t counts[] = {4, 8, AHEAD};
	static const double far[][2] = {{0, 0}, {0.025, 0}, {0.025, 0.004}, {0.05, 0}, {0.15, 0}, {2, 0}};
	struct boxes at;
	boxes_open(&at, TWO, even, RH_MODE_FLUIDPIPE, NULL);
	at.deep.rig.config.fluidpipe_ahead = AHEAD;
	at.deep.rig.config.fluidpipe_alpha1 = at.deep.rig.config.fluidpipe_alpha2 = 1;
	for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
		struct timed alone = timed_of(&at, counts[c], 0, 0);
		double count = (double)counts[c], slowest = count * fmax(alone.box_s[0], alone.box_s[1]);
		for (size_t i = 0; i < sizeof far / sizeof *far; i++)
			check_share("fluidpipe", TWO, timed_over(&at, STEPS, counts[c], far[i][0], far[i][1]).step_s,
			            fmax(fmax(slowest, count * far[i][1]), 2 * far[i][0] * (count + 2) / AHEAD));
	}
	boxes_close(&at);
}

enum { DISTILLED_MICROS = 8, TOP = 4 };

/* A step, and what an epoch of one step takes behind it, of boxes that distil over such a line. */
static struct rh_forecast distilled(double alpha1, double alpha2, enum rh_logits logits, struct rh_virtual_line up,
                                    struct rh_virtual_line down)
{
	struct boxes at;
	struct rh_forecast_input input;
	struct rh_forecast box[2];
	boxes_open(&at, 2, even, RH_MODE_FLUIDPIPE, NULL);
	struct rh_config *config = &at.deep.rig.config;
	config->gradient_accumulation_steps = DISTILLED_MICROS;
	config->fluidpipe_ahead = 16;
	config->fluidpipe_temperature = 1;
	config->fluidpipe_top_k = TOP;
	config->fluidpipe_logits = logits;
	config->fluidpipe_alpha1 = alpha1;
	config->fluidpipe_alpha2 = alpha2;
	at.line[0][0] = up;
	at.line[0][1] = down;
	check_ok(rh_forecast_input_synthetic(config, 2, &input));
	const struct rh_boxes_request request = {config, at.machine, at.first, at.line, &input};
	check_ok(rh_forecast_boxes(&request, box));
	for (int k = 0; k < 2; k++)
		rh_forecast_free(&box[k]);
	rh_forecast_input_free(&input);
	boxes_close(&at);
	return box[0];
}

/* A token's shares take 8 bytes each, and on their way down a number. They go up beside the activations. Down they come when box 2 has
 * finished: a latency for the last activations, one for the report, two for the word that box 1 receives and for its answer, and their
 * bytes; those of a step that stream were announced. Whether or not logits come down, steps are as long, unless they stream and the line
 * is slower. */
static void test_fluidpipe_counts_the_time_of_logits(void **state)
{
	(void)state;
	enum {
		TARGETS = DISTILLED_MICROS * 63,
		FEATURES = DISTILLED_MICROS * 64 * HIDDEN * 4,
		UP = TARGETS * 8 * TOP,
		DOWN = UP + TARGETS * 4
	};
	const double latency_s = 10, bytes_per_s = 1e3;
	const struct rh_virtual_line free = {0, 0}, slow = {0, bytes_per_s}, far = {latency_s, bytes_per_s}, long_line = {latency_s, 0};
	struct rh_forecast none = distilled(1, 1, RH_LOGITS_EPOCH, slow, free), up = distilled(1, 0.5, RH_LOGITS_EPOCH, slow, free),
	                   near = distilled(1, 1, RH_LOGITS_EPOCH, long_line, far),
	                   bulk = distilled(0.5, 1, RH_LOGITS_EPOCH, long_line, far),
	                   stream = distilled(0.5, 1, RH_LOGITS_STREAM, long_line, far);
	check_share("fluidpipe, activations alone", 2, none.step_seconds, FEATURES / bytes_per_s);
	check_share("fluidpipe, logits go up", 2, up.step_seconds, (FEATURES + UP) / bytes_per_s);
	check_share("fluidpipe, logits come down at once", 2, bulk.epoch_wait_seconds, 4 * latency_s + DOWN / bytes_per_s);
	check_share("fluidpipe, logits stream", 2, stream.epoch_wait_seconds, 2 * latency_s + DOWN / bytes_per_s);
	assert_true(bulk.step_seconds == near.step_seconds);
	assert_true(stream.step_seconds == fmax(near.step_seconds, DOWN / bytes_per_s));
	assert_true(none.epoch_wait_seconds == 0 && up.epoch_wait_seconds == 0 && near.epoch_wait_seconds == 0);
}

static double period_with(struct boxes *at, int64_t most, const double line_s[2])
{
	struct rh_admission_limits limits;
	rh_admission_limits_set(at->boxes, most, &limits);
	at->deep.rig.config.admission_limits = limits.list;
	double seconds = timed_of(at, 4 * THREE, line_s[0], line_s[1]).step_s / (4 * THREE);
	at->deep.rig.config.admission_limits = (struct rh_list){0};
	return seconds;
}

/* With 1 + (N - i) (1 + ceil(R / T)) units in flight the links' latency is hidden: the period is the slowest box's, or a link's transfer of
 * an activation and a unit's part of the step's integers and squares. */
static void test_wide_admission_limits_hide_the_links(void **state)
{
	(void)state;
	static const double far[][2] = {{0.025, 0}, {0.025, 0.004}, {0.1, 0}, {0.01, 0.06}};
	struct boxes at;
	boxes_open(&at, THREE, even, RH_MODE_PACI, "paci");
	enum { COUNT = 4 * THREE, TOKENS = 64, ROWS = TOKENS - 1 };
	const double integers = (2 + 4 * COUNT) * 8 + COUNT * (2 * TOKENS + 2 + 2 * ROWS) * 4, squares = 5 * 8;
	const double share = 1 + (integers + squares) / COUNT / (TOKENS * HIDDEN * 4);
	double slowest = 0;
	struct timed alone = timed_of(&at, COUNT, 0, 0);
	for (int k = 0; k < THREE; k++)
		slowest = fmax(slowest, alone.box_s[k]);
	for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
		int64_t most = 1 + (THREE - 1) * (1 + (int64_t)ceil(2 * (far[i][0] + far[i][1]) / slowest));
		check_share("paci, wide limits", THREE, period_with(&at, most, far[i]), fmax(slowest, share * far[i][1]));
	}
	boxes_close(&at);
}

/* Fewer units in flight than were chosen are more than 3 % slower than the best, which the wide limits' formula gives. */
static void test_chosen_admission_limits_are_the_smallest(void **state)
{
	(void)state;
	static const double far[][2] = {{0, 0}, {0.025, 0}, {0.025, 0.004}};
	struct boxes at;
	boxes_open(&at, THREE, even, RH_MODE_PACI, "paci");
	for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
		struct timed alone = timed_of(&at, 4 * THREE, far[i][0], far[i][1]); /* sets the lines */
		double unit_s[2], slowest = 0;
		struct rh_admission_limits limits;
		struct rh_forecast_input input;
		for (int k = 0; k < THREE; k++)
			slowest = fmax(slowest, alone.box_s[k]);
		check_ok(rh_forecast_input_synthetic(&at.deep.rig.config, 2, &input));
		const struct rh_boxes_request request = {&at.deep.rig.config, at.machine, at.first, at.line, &input};
		check_ok(rh_forecast_limits(&request, &limits, unit_s));
		int64_t most = atoll(limits.list.item[0]);
		printf("%lld units in flight: %.4f s a unit, PACI's own %.4f s\n", (long long)most, unit_s[0], unit_s[1]);
		assert_true(unit_s[0] <= 1.03 * 1.03 * slowest); /* of choice, and of the forecast */
		assert_true(unit_s[0] == period_with(&at, most, far[i]));
		assert_true(most == THREE ? i == 0 : period_with(&at, most - 1, far[i]) > 1.03 * slowest);
		assert_string_equal(limits.list.item[THREE - 1], "1");
		rh_forecast_input_free(&input);
	}
	boxes_close(&at);
}

/* Seconds of a step of a model whose embedding is its head, with one table or two. */
static double tied_step(int boxes, int ties, double latency_s, double bytes_per_s, int64_t *table_bytes)
{
	struct boxes at;
	struct rh_forecast_input input;
	struct rh_forecast box[BOXES_MOST];
	boxes_open_of(&at, "qwen2", boxes, even, RH_MODE_SYNC_PP, "1f1b");
	struct rh_config *config = &at.deep.rig.config;
	config->tie_word_embeddings = ties;
	config->gradient_accumulation_steps = 4;
	check_ok(rh_forecast_input_synthetic(config, 2, &input));
	for (int k = 0; k + 1 < boxes; k++)
		for (int way = 0; way < 2; way++)
			at.line[k][way] = (struct rh_virtual_line){latency_s, bytes_per_s};
	const struct rh_boxes_request request = {config, at.machine, at.first, at.line, &input};
	check_ok(rh_forecast_boxes(&request, box));
	double seconds = box[0].step_seconds;
	*table_bytes = box[0].table.wire_bytes;
	for (int k = 0; k < boxes; k++) {
		assert_int_equal(box[k].table.wire_bytes, *table_bytes);
		assert_int_equal(box[k].table.weights_bytes > 0, ties && (!k || k + 1 == boxes));
		rh_forecast_free(&box[k]);
	}
	rh_forecast_input_free(&input);
	boxes_close(&at);
	return seconds;
}

/* Ends that keep one table exchange its gradient, both ways at once: here in one piece. On its way up it takes its time on each link in
 * turn, behind the first box's backward; with more than two boxes some of it is hidden by what the others send down. The first box begins
 * the next step when the box above has the piece and says so: a round trip of one link. */
static void test_exchange_of_a_table_takes_its_bytes(void **state)
{
	(void)state;
	static const double bytes_per_s = 1e6;
	for (int boxes = 2; boxes <= BOXES_MOST; boxes++)
		for (int far = 0; far < 2; far++) {
			double latency_s = far * 0.025;
			int64_t none, bytes;
			double apart = tied_step(boxes, 0, latency_s, bytes_per_s, &none),
			       one = tied_step(boxes, 1, latency_s, bytes_per_s, &bytes);
			assert_int_equal(none, 0);
			assert_true(bytes >= 113 * HIDDEN * 4 && bytes < 115 * HIDDEN * 4); /* a block is aligned */
			double table_s = (double)bytes / bytes_per_s, least = (boxes > 2 ? boxes - 2 : 1) * table_s,
			       most = (boxes - 1) * table_s + 2 * latency_s;
			printf("one table, %d boxes: %.4f s more, between %.4f and %.4f\n", boxes, one - apart, least, most);
			assert_true(one - apart >= 0.98 * least && one - apart <= 1.02 * most);
		}
}

/* Box `small` and those above it have next to no device memory. */
static void check_named(int small, const char *name)
{
	enum { BOXES = 3 };
	struct boxes at;
	struct rh_forecast_input input;
	struct rh_forecast box[BOXES];
	boxes_open(&at, BOXES, even, RH_MODE_SYNC_PP, "1f1b");
	at.deep.rig.config.gradient_accumulation_steps = 4;
	check_ok(rh_forecast_input_synthetic(&at.deep.rig.config, 2, &input));
	for (int k = small; k <= BOXES; k++)
		at.hardware[k - 1].device.memory = 1 << 16;
	const struct rh_boxes_request request = {&at.deep.rig.config, at.machine, at.first, at.line, &input};
	assert_int_equal(rh_forecast_boxes(&request, box), RH_DOES_NOT_FIT);
	if (strncmp(rh_error(RH_DOES_NOT_FIT), name, strlen(name)))
		fail_msg("not %s: %s", name, rh_error(RH_DOES_NOT_FIT));
	for (int k = 0; k < BOXES; k++)
		rh_forecast_free(&box[k]);
	rh_forecast_input_free(&input);
	boxes_close(&at);
}

/* A box that does not fit ends the others, and is named; of several the first. */
static void test_box_that_does_not_fit_is_named(void **state)
{
	(void)state;
	check_named(3, "box 3");
	check_named(2, "box 2");
	check_named(1, "box 1");
}

int main(void)
{
	limit_time(HANG_S);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_gpipe_step_is_fill_work_and_drain),
	        cmocka_unit_test(test_gpipe_of_many_micro_batches_ends),
	        cmocka_unit_test(test_1f1b_micro_batch_takes_its_share_of_a_round_trip),
	        cmocka_unit_test(test_paci_period_is_that_of_its_admission_limits),
	        cmocka_unit_test(test_paci_over_flush_is_the_bubble),
	        cmocka_unit_test(test_flush_step_is_the_papers_without_recomputation),
	        cmocka_unit_test(test_fluidpipe_hides_the_line),
	        cmocka_unit_test(test_fluidpipe_counts_the_time_of_logits),
	        cmocka_unit_test(test_wide_admission_limits_hide_the_links),
	        cmocka_unit_test(test_chosen_admission_limits_are_the_smallest),
	        cmocka_unit_test(test_exchange_of_a_table_takes_its_bytes),
	        cmocka_unit_test(test_box_that_does_not_fit_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
