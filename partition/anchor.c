#include "partition/anchor.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "partition/made.h"
#include "partition/resize.h"
#include "partition/roundpipe_long.h"
#include "partition/spared.h"

#include <math.h>

/* This system's bytes a trained parameter: on the device an fp32 sum and its bf16 copy; on the host the split layout, held
 * and moved by an update, whose gradient is read for its norm before; a block's launches, of 47 in all (forward, recompute, backward). */
enum { DEVICE_GRADIENT = 6, HELD = 14, LAUNCHES_FORWARD = 12, LAUNCHES_BACKWARD = 23 };
const struct rh_step_bytes rh_anchor_bytes = {.cleared = 4,
                                              .rounded = 6,
                                              .gradient = 2,
                                              .carried = 4,
                                              .taken = 2,
                                              .updated = 26,
                                              .weights = 18,
                                              .moments = 18,
                                              .made_up = 10,
                                              .made = 18,
                                              .made_upper = 2,
                                              .made_lower = 2};

/* Sizes that are tried: sequences in a micro-batch, and rounds. */
static const int64_t sequences_tried[] = {4, 2, 1, 3, 6, 8};
static const int64_t rounds_tried[] = {1, 2, 3, 4, 6, 8};
enum { SEQUENCES_TRIED = sizeof sequences_tried / sizeof *sequences_tried, ROUNDS_TRIED = sizeof rounds_tried / sizeof *rounds_tried };
enum { STALE_ROUNDS_MOST = 4 }; /* where steps join, more of them change nothing */
/* Moves of the best size's cuts, once it is known: of MOVES_LAYERS at most MOVES_SHALLOW; of more, which take longer each, fewer. */
enum { MOVES_LAYERS = 28 };
static const double MOVES = 24000, MOVES_SHALLOW = 100000;
static const double SAME_SPEED = 0.01, SAME_IDLE = 0.001;
static const double SLOWER_STARTS = 0.05; /* than the best so far: cuts that may still be bettered */

static int64_t whole(double bytes)
{
	return (int64_t)bytes;
}

/* What the table leaves open: bytes, by parameters. The embedding goes with the lowest block. */
static void fill_bytes(const struct rh_anchor_request *request, struct rh_costs *costs, double *trained)
{
	const struct rh_experiment *experiment = request->experiment;
	double weight = request->as ? request->as->weight_bytes : 2, held = request->as ? request->as->held_bytes : HELD;
	double device = request->as ? request->as->gradient_bytes : DEVICE_GRADIENT;
	for (int l = 0; l < costs->layers; l++) {
		struct rh_layer_cost *layer = &costs->layer[l];
		int head = l + 1 == costs->layers;
		double parameters = head ? experiment->parameters.head : experiment->parameters.block;
		trained[l] = head ? experiment->trained.head : experiment->trained.block;
		double adapters = trained[l] < parameters ? trained[l] : 0;
		if (adapters > 0 || trained[l] <= 0)
			layer->weight_gradient_s = 0;
		layer->gradient_bytes = whole(device * trained[l]);
		layer->upload_bytes = whole(weight * (parameters + adapters + (l ? 0 : experiment->parameters.embedding)));
		trained[l] += l ? 0 : experiment->trained.embedding;
		layer->optimizer_bytes = whole(held * trained[l]);
		layer->boundary_bytes = 2 * experiment->hidden_size * costs->tokens;
		layer->saved_bytes = head ? 2 * layer->boundary_bytes : experiment->saved_bytes_per_token * costs->tokens;
	}
}

/* How much slower products are with so few rows. Shapes are not known; square ones of the hidden size stand for all. */
static double slower(const struct rh_anchor_request *request, int64_t tokens)
{
	double hidden = (double)request->experiment->hidden_size;
	const struct rh_hardware_device *device = &request->hardware->device;
	struct rh_gemm_shape timed = {RH_PRODUCT_BF16, RH_GEMM_ANY, (double)request->table->tokens, hidden, hidden}, now = timed;
	now.m = (double)tokens;
	double ratio = rh_hardware_gemm_fraction(device, timed) / rh_hardware_gemm_fraction(device, now);
	return ratio > 1 ? ratio : 1;
}

/* This system's recompute does not make a stage's output again. */
static int spare(const struct rh_anchor_request *request, struct rh_costs *costs)
{
	double share = 0;
	int rc = request->as ? 0 : rh_spared_share(request->experiment, &request->hardware->device, costs->tokens, &share);
	for (int l = 0; !rc && l + 1 < costs->layers; l++)
		costs->layer[l].recompute_spared_s = costs->layer[l].recompute_s * share;
	return rc;
}

/* Costs of a micro-batch of `tokens` under the system asked for; *trained: parameters of each layer that are (rh_free). */
static int costs_of(const struct rh_anchor_request *request, int64_t tokens, struct rh_costs *out, double **trained)
{
	const struct rh_experiment *experiment = request->experiment;
	struct rh_costs given;
	*out = (struct rh_costs){0};
	*trained = NULL;
	int rc = rh_costs_from_table(request->table, NULL, &given);
	if (rc)
		return rc;
	*trained = rh_alloc((size_t)given.layers, sizeof **trained);
	rc = *trained ? 0 : -ENOMEM;
	if (!rc)
		fill_bytes(request, &given, *trained);
	struct rh_resize how = {.tokens = tokens,
	                        .fixed_forward_s = experiment->fixed_forward_ms * 1e-3,
	                        .fixed_backward_s = experiment->fixed_backward_ms * 1e-3,
	                        .slower = 1};
	how.launch_forward_s = how.fixed_forward_s;
	how.launch_backward_s = how.fixed_backward_s;
	if (!request->as) {
		how.launch_forward_s = LAUNCHES_FORWARD * request->hardware->device.launch_s;
		how.launch_backward_s = LAUNCHES_BACKWARD * request->hardware->device.launch_s;
		how.memory_bytes_per_s = request->hardware->device.memory_bytes_per_s;
		how.slower = slower(request, tokens);
	}
	rc = rc ? rc : rh_costs_resize(&given, &how, out);
	rc = rc ? rc : spare(request, out);
	rh_costs_free(&given);
	if (rc) {
		rh_costs_free(out);
		rh_free(*trained);
		*trained = NULL;
	}
	return rc;
}

/* Stages of `sizes` blocks from `at` on, upwards or downwards; the place behind the last. */
static int lay(const struct rh_stage_sizes *sizes, int at, int way, struct rh_stage *out, int *count)
{
	for (int i = 0; i < sizes->count; i++) {
		int next = at + way * sizes->size[i];
		if (sizes->size[i] && next >= 0)
			out[(*count)++] = way > 0 ? (struct rh_stage){at, next} : (struct rh_stage){next, at};
		at = next;
	}
	return at;
}

static int sum_of(const struct rh_stage_sizes *sizes)
{
	int sum = 0;
	for (int i = 0; i < sizes->count; i++)
		sum += sizes->size[i];
	return sum;
}

int rh_anchor_cuts(const struct rh_experiment *experiment, int layers, struct rh_partition *out)
{
	const struct rh_bubble *cuts = &experiment->bubble[RH_BUBBLE_ROUNDPIPE];
	int blocks = layers - 1, forward = sum_of(&cuts->stages), backward = sum_of(&cuts->backward);
	*out = (struct rh_partition){0};
	/* the fused stage comes first of the backward ones and may hold blocks beside the head */
	if (forward > blocks || backward != blocks || !cuts->backward.count || forward + cuts->backward.size[0] != blocks)
		return rh_fail(-EINVAL, "%s: the published cuts hold %d and %d blocks; there are %d", experiment->name, forward, backward,
		               blocks);
	out->forward = rh_alloc((size_t)layers, sizeof *out->forward);
	out->backward = rh_alloc((size_t)layers, sizeof *out->backward);
	if (!out->forward || !out->backward) {
		rh_partition_free(out);
		return -ENOMEM;
	}
	lay(&cuts->stages, 0, 1, out->forward, &out->forward_stages);
	struct rh_stage_sizes below = cuts->backward;
	out->backward[out->backward_stages++] = (struct rh_stage){forward, layers};
	below.size[0] = 0;
	lay(&below, forward, -1, out->backward, &out->backward_stages);
	return 0;
}

void rh_anchor_result_free(struct rh_anchor_result *result)
{
	rh_partition_free(&result->cuts);
	*result = (struct rh_anchor_result){0};
}

static double least(double a, double b)
{
	return a > 0 && (b <= 0 || a < b) ? a : b;
}

struct rh_step_rates rh_anchor_rates(const struct rh_hardware *hardware)
{
	double both = hardware->link.both_bytes_per_s / 2;
	return (struct rh_step_rates){least(hardware->link.up_bytes_per_s, both), least(hardware->link.down_bytes_per_s, both),
	                              hardware->host.dram_bytes_per_s, hardware->host.optimizer_bytes_per_s[RH_LAYOUT_SPLIT],
	                              hardware->device.memory_bytes_per_s};
}

static void set_rates(const struct rh_anchor_request *request, struct rh_step_request *step)
{
	const struct rh_peer *as = request->as;
	if (as) {
		step->rates = (struct rh_step_rates){as->link_bytes_per_s, as->link_bytes_per_s, as->host_bytes_per_s, 0, 0};
		step->bytes = (struct rh_step_bytes){.gradient = as->gradient_bytes,
		                                     .carried = as->gradient_bytes,
		                                     .taken = as->taken_bytes,
		                                     .updated = as->updated_bytes,
		                                     .published = as->published_bytes};
		step->update = RH_STEP_AS_A_WHOLE;
		step->gradients_block = step->sums_apart = 1;
		return;
	}
	step->rates = rh_anchor_rates(request->hardware);
	step->bytes = rh_anchor_bytes;
}

/* A size of micro-batches, with both sums that the step's recurrence reads. */
struct sized {
	struct rh_costs costs[2];
	struct rh_cost_sums sums[2];
	double *trained, *sum_s; /* (layers) parameters, and what their gradient sums take from round to round, one way */
	double *made;            /* (layers), of the cuts that were timed last */
};

static void sized_close(struct sized *sized)
{
	for (int i = 0; i < 2; i++) {
		rh_cost_sums_free(&sized->sums[i]);
		rh_costs_free(&sized->costs[i]);
	}
	rh_free(sized->trained);
	rh_free(sized->sum_s);
	rh_free(sized->made);
}

static int sized_open(const struct rh_anchor_request *request, int64_t sequences, struct sized *out)
{
	int rc = 0;
	*out = (struct sized){0};
	for (int i = 0; !rc && i < 2; i++) {
		double *trained;
		rc = costs_of(request, (sequences + i) * request->experiment->sequence_length, &out->costs[i], &trained);
		rc = rc ? rc : rh_costs_sum(&out->costs[i], &out->sums[i]);
		rh_free(out->trained);
		out->trained = trained;
	}
	if (!rc && !request->as) {
		out->sum_s = rh_alloc((size_t)out->costs[0].layers, sizeof *out->sum_s);
		out->made = rh_alloc((size_t)out->costs[0].layers, sizeof *out->made);
		rc = out->sum_s && out->made ? 0 : -ENOMEM;
	}
	for (int l = 0; !rc && out->sum_s && l < out->costs[0].layers; l++)
		out->sum_s[l] = out->trained[l] * rh_anchor_bytes.carried / rh_anchor_rates(request->hardware).up_bytes_per_s;
	if (rc)
		sized_close(out);
	return rc;
}

static int64_t device_cap(const struct rh_hardware *hardware)
{
	int64_t cap = hardware->device.memory - hardware->device.reserved;
	return cap > 0 ? cap : INT64_MAX / 4;
}

/* The time of the result's micro-batches, rounds and cuts. */
static int time_result(const struct rh_anchor_request *request, const struct sized *sized, struct rh_anchor_result *result)
{
	const struct rh_experiment *experiment = request->experiment;
	struct rh_step_request step = {.longer = &sized->sums[1],
	                               .shorter = &sized->sums[0],
	                               .trained = sized->trained,
	                               .cuts = &result->cuts,
	                               .devices = request->devices,
	                               .sequences = experiment->batch,
	                               .rounds = result->rounds,
	                               .round_micro_batches = result->round_micro_batches,
	                               .stale = request->stale};
	set_rates(request, &step);
	if (sized->made && !request->stale) {
		result->made_blocks = rh_made_layers(&result->cuts, &sized->costs[0], sized->trained, experiment->trained.embedding,
		                                     request->devices, device_cap(request->hardware), sized->made);
		step.made = sized->made;
	}
	int rc = rh_step_estimate(&step, &result->time);
	double tokens = (double)(experiment->batch * experiment->sequence_length);
	result->tokens_per_s = rc ? 0 : tokens / result->time.period_s;
	result->micro_batches = result->rounds * result->round_micro_batches;
	return rc;
}

static int make_cuts(const struct rh_anchor_request *request, const struct sized *sized, int64_t micro_batches, int64_t rounds,
                     int64_t moves, double most_s, struct rh_partition *out)
{
	struct rh_partition_request partition = {.costs = &sized->costs[0],
	                                         .cap_bytes = device_cap(request->hardware),
	                                         .devices = request->devices,
	                                         .micro_batches = micro_batches,
	                                         .rounds = rounds,
	                                         .steps = request->stale ? 3 : 1,
	                                         .moves = moves,
	                                         .most_s = most_s,
	                                         .sum_s = sized->sum_s};
	return rh_partition_long_rounds(&partition, out);
}

static int predict_published(const struct rh_anchor_request *request, struct rh_anchor_result *out)
{
	const struct rh_experiment *experiment = request->experiment;
	const struct rh_published_run *run = request->stale ? &experiment->async : &experiment->sync;
	struct sized sized;
	if (!run->rounds)
		return rh_fail(-ENOENT, "%s: nothing is published for %s updates", experiment->name,
		               request->stale ? "stale" : "synchronous");
	out->rounds = run->rounds;
	out->round_micro_batches = run->round_micro_batches;
	int rc = sized_open(request, rh_step_shorter(experiment->batch, run->rounds, run->round_micro_batches), &sized);
	if (rc)
		return rc;
	rc = experiment->bubble[RH_BUBBLE_ROUNDPIPE].percent > 0
	             ? rh_anchor_cuts(experiment, sized.costs[0].layers, &out->cuts)
	             : make_cuts(request, &sized, run->rounds * run->round_micro_batches, run->rounds, 0, 0, &out->cuts);
	rc = rc ? rc : time_result(request, &sized, out);
	if (request->devices == experiment->bubble_devices || !experiment->bubble_devices)
		out->published_tokens_per_s = run->tokens_per_s;
	else if (request->devices == 1 && request->stale)
		out->published_tokens_per_s = experiment->one_device_tokens_per_s;
	sized_close(&sized);
	return rc;
}

/* Better: faster; of those as fast within what such a prediction is worth, the one that idles less. */
static int better(const struct rh_anchor_result *a, const struct rh_anchor_result *b)
{
	double ratio = a->time.period_s / b->time.period_s;
	if (ratio < 1 - SAME_SPEED || ratio > 1 + SAME_SPEED)
		return ratio < 1;
	double less = b->time.bubble + b->time.exposed - a->time.bubble - a->time.exposed;
	return less > SAME_IDLE || (less > -SAME_IDLE && ratio < 1);
}

static int try_rounds(const struct rh_anchor_request *request, const struct sized *sized, int64_t micro_batches, int64_t rounds,
                      int64_t moves, struct rh_anchor_result *best)
{
	struct rh_anchor_result now = {.rounds = rounds, .round_micro_batches = (micro_batches + rounds - 1) / rounds};
	double most_s = best->tokens_per_s > 0 ? best->time.period_s * (1 + SLOWER_STARTS) : 0;
	int rc = make_cuts(request, sized, rounds * now.round_micro_batches, rounds, moves, most_s, &now.cuts);
	if (rc == RH_DOES_NOT_FIT && most_s > 0) {
		rh_error_clear();
		return 0;
	}
	rc = rc ? rc : time_result(request, sized, &now);
	if (!rc && (best->tokens_per_s <= 0 || better(&now, best))) {
		rh_partition_free(&best->cuts);
		*best = now;
	} else {
		rh_partition_free(&now.cuts);
	}
	return rc;
}

static int try_size(const struct rh_anchor_request *request, int64_t sequences, struct rh_anchor_result *best)
{
	int64_t batch = request->experiment->batch, micro_batches = (batch + sequences - 1) / sequences, shorter = batch / micro_batches;
	struct sized sized;
	int rc = sized_open(request, shorter, &sized);
	if (rc)
		return rc;
	double work = rh_cost_stage(&sized.sums[0], RH_PASS_FUSED, 0, sized.costs[0].layers) * (double)batch / (double)shorter;
	for (int r = 0; !rc && r < ROUNDS_TRIED; r++) {
		int64_t rounds = rounds_tried[r], count = (micro_batches + rounds - 1) / rounds;
		int hopeless = best->tokens_per_s > 0 && work / request->devices > best->time.period_s * (1 - SAME_SPEED);
		if (hopeless || (request->stale && rounds > STALE_ROUNDS_MOST) || (r && count < request->devices) ||
		    rounds * count > batch || rh_step_shorter(batch, rounds, count) != shorter)
			continue;
		rc = try_rounds(request, &sized, micro_batches, rounds, 0, best);
	}
	sized_close(&sized);
	return rc;
}

/* The cuts once more, of the size that was found best. */
static int refine(const struct rh_anchor_request *request, struct rh_anchor_result *out)
{
	struct sized sized;
	int rc = sized_open(request, rh_step_shorter(request->experiment->batch, out->rounds, out->round_micro_batches), &sized);
	if (rc)
		return rc;
	double fewer = pow((double)MOVES_LAYERS / (double)rh_max(sized.costs[0].layers, MOVES_LAYERS), 2);
	int64_t moves = (int64_t)rh_max_double(MOVES * fewer, MOVES_SHALLOW * fewer * fewer);
	rc = try_rounds(request, &sized, out->micro_batches, out->rounds, moves, out);
	sized_close(&sized);
	return rc;
}

static int search(const struct rh_anchor_request *request, struct rh_anchor_result *out)
{
	int rc = 0;
	for (int i = 0; (!rc || rc == RH_DOES_NOT_FIT) && i < SEQUENCES_TRIED; i++)
		rc = sequences_tried[i] <= request->experiment->batch ? try_size(request, sequences_tried[i], out) : rc;
	rc = rc == RH_DOES_NOT_FIT && out->tokens_per_s > 0 ? 0 : rc;
	return rc ? rc : refine(request, out);
}

int rh_anchor_predict(const struct rh_anchor_request *request, struct rh_anchor_result *out)
{
	*out = (struct rh_anchor_result){0};
	struct rh_costs costs;
	double *trained;
	int rc = request->as ? predict_published(request, out) : search(request, out);
	rc = rc ? rc : costs_of(request, request->table->tokens, &costs, &trained);
	if (!rc) {
		for (int l = 0; l < costs.layers; l++)
			out->host_bytes += (double)costs.layer[l].optimizer_bytes + (double)costs.layer[l].upload_bytes - 2 * trained[l];
		rh_costs_free(&costs);
		rh_free(trained);
	} else {
		rh_anchor_result_free(out);
	}
	return rc;
}
