#include "partition/costs.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "device/sim/sim.h"
#include "partition/stage_plan.h"

#include <math.h>
#include <string.h>

/* Addresses that nothing else shares, so that an op that writes a gradient sum is known by where it writes, and no tensor seems to be
 * overwritten by another's op. */
static char *const KEPT = (char *)((uintptr_t)1 << 55);
static char *const SAVED = (char *)((uintptr_t)1 << 56);
static char *const X = (char *)((uintptr_t)1 << 57);
static char *const DX = (char *)((uintptr_t)1 << 58);
static char *const DY = (char *)((uintptr_t)1 << 59);
static char *const WEIGHTS = (char *)((uintptr_t)1 << 60);
static char *const GRADIENTS = (char *)((uintptr_t)1 << 61);

/* The totals of a run of ops. */
struct tally {
	const struct rh_rates *rates;
	double seconds, gradient_seconds, product_flops;
	int64_t launches;
	struct rh_longest_launch longest;
};

static double op_seconds(const struct rh_rates *rates, const struct rh_op *op, struct rh_op_cost cost)
{
	if (rates->device)
		return rh_sim_op_seconds(rates->device, op, rates->share);
	double arithmetic = cost.product_flops / rates->product_flops_per_s + cost.other_flops / rates->other_flops_per_s;
	double traffic = cost.bytes / rates->memory_bytes_per_s;
	return rates->launch_s + (arithmetic > traffic ? arithmetic : traffic);
}

/* Does the op write into a gradient sum and nothing else? */
static int is_weight_gradient(const struct rh_op *op)
{
	const struct rh_op_info *info = rh_op_info(op->kind);
	int sums = 0;
	for (int i = 0; i < info->operands; i++) {
		const char *data = op->operand[i].data;
		if (!data || info->operand[i].access == RH_ACCESS_IN)
			continue;
		if (data < GRADIENTS)
			return 0;
		sums = 1;
	}
	return sums;
}

static int tally_op(void *sink, const struct rh_op *op)
{
	struct tally *tally = sink;
	struct rh_op_cost cost = rh_op_cost(op);
	double seconds = op_seconds(tally->rates, op, cost);
	tally->seconds += seconds;
	tally->launches++;
	double launch = seconds * rh_op_launch_share(op);
	if (launch > tally->longest.seconds)
		tally->longest = (struct rh_longest_launch){launch, op->kind};
	tally->gradient_seconds += is_weight_gradient(op) ? seconds : 0;
	tally->product_flops += cost.product_flops;
	return 0;
}

struct measuring {
	const struct rh_model *model;
	const struct rh_micro_shape *shape;
	const struct rh_rates *rates;
	int is_by_product; /* packed weights are made plain for each product, not once a slot */
	struct rh_stage_state state;
	char **weights;
	float *(*gradient)[2];
};

static struct rh_emit emit_of(const struct measuring *at, struct rh_arena *arena, struct tally *tally)
{
	return (struct rh_emit){.model = at->model,
	                        .launch = tally_op,
	                        .sink = tally,
	                        .arena = arena,
	                        .shape = *at->shape,
	                        .micro = (char *)(uintptr_t)RH_ALIGN,
	                        .dropout = at->model->dropout,
	                        .drop = at->model->drop,
	                        .loss_scale = 1,
	                        .weights = at->weights,
	                        .gradient = at->gradient,
	                        .cache = WEIGHTS,
	                        .sums = WEIGHTS,
	                        .cache_rows = at->shape->first + at->shape->tokens,
	                        .plain = at->is_by_product ? NULL : at->weights};
}

static struct rh_longest_launch longer(struct rh_longest_launch a, struct rh_longest_launch b)
{
	return a.seconds < b.seconds ? b : a;
}

static int measure_layer(struct measuring *at, int l, struct rh_layer_cost *out)
{
	const struct rh_model *model = at->model;
	struct rh_view x = rh_boundary_view(model, l, at->shape->tokens, X), dx = rh_boundary_view(model, l, at->shape->tokens, DX);
	struct rh_view dy = rh_boundary_view(model, l + 1, at->shape->tokens, DY);
	struct rh_head_out head = {.loss = rh_view_of(x.data, RH_F32, at->shape->head_rows, 1),
	                           .hit = rh_view_of(x.data, RH_I32, at->shape->head_rows, 1)};
	struct tally forward = {.rates = at->rates}, recompute = forward, backward = forward;
	struct rh_arena arena = rh_arena_measuring();
	struct rh_emit emit = emit_of(at, &arena, &forward);
	int rc = rh_stage_forward(&emit, l, l + 1, x, NULL, &head);
	if (rc)
		return rc;
	out->forward_s = forward.seconds;
	out->forward_flops = forward.product_flops;
	out->forward_workspace_bytes = arena.peak;
	arena = rh_arena_measuring();
	emit = emit_of(at, &arena, &recompute);
	rc = rh_stage_recompute(&emit, l, l + 1, x, &at->state, &head);
	out->saved_bytes = arena.used;
	emit.sink = &backward;
	if (!rc && l >= model->first_trained)
		rc = rh_stage_backward(&emit, l, l + 1, &at->state, dy, dx);
	if (rc)
		return rc;
	out->backward_workspace_bytes = rh_max(arena.peak - out->saved_bytes, 0);
	out->backward_s = backward.seconds;
	out->backward_flops = backward.product_flops;
	out->weight_gradient_s = backward.gradient_seconds;
	out->forward_launches = forward.launches;
	out->backward_launches = recompute.launches + backward.launches;
	out->longest = longer(longer(forward.longest, recompute.longest), backward.longest);
	switch (model->layer[l].kind) {
	case RH_LAYER_HEAD: /* its loss and gradients are one op, made where others recompute */
		out->backward_s += recompute.seconds - forward.seconds;
		out->backward_flops += recompute.product_flops - forward.product_flops;
		break;
	case RH_LAYER_EMBEDDING:
	case RH_LAYER_BLOCK:
		out->recompute_s = forward.seconds;
		out->recompute_spared_s = forward.seconds - recompute.seconds;
		break;
	}
	return 0;
}

static void count_bytes(const struct rh_model *model, int l, double host_bytes_per_parameter, const struct rh_micro_shape *shape,
                        struct rh_layer_cost *out)
{
	int bf16 = model->dtype != RH_F32;
	out->upload_bytes = rh_stage_plan_layer_upload(model, l);
	out->gradient_bytes = rh_stage_plan_layer_gradients(model, l) * (4 + 2 * bf16);
	for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
		int b = model->layer[l].block[which];
		const struct rh_block *block = b < 0 ? NULL : &model->block[b];
		if (block && block->trainable && !model->layer[l].use[which]) /* a tied table's state is counted once */
			out->optimizer_bytes += (int64_t)((double)block->elements * host_bytes_per_parameter);
	}
	out->boundary_bytes = rh_align_up(rh_boundary_shape(model, l, shape->tokens).bytes, RH_ALIGN);
}

/* The nearest layer before this one that costs the same; 0: none. The lowest trained layer makes no gradient of its input. */
static int find_alike(const struct rh_model *model, int l)
{
	int before = l - 1, floor = l > model->first_trained && model->first_trained > 0 ? model->first_trained : 0;
	if (l == model->first_trained)
		return 0;
	while (before > floor && !rh_layers_alike(model, before, l, RH_ALIKE_IN_OPS))
		before--;
	return before > floor ? before : 0;
}

static void measuring_close(struct measuring *at)
{
	rh_stage_state_free(&at->state);
	rh_free(at->weights);
	rh_free(at->gradient);
}

static int measuring_open(struct measuring *at)
{
	int rc = rh_stage_state_create(at->model, &at->state);
	at->weights = rh_alloc((size_t)at->model->blocks, sizeof *at->weights);
	at->gradient = rh_alloc((size_t)at->model->blocks, sizeof *at->gradient);
	if (!rc && !(at->weights && at->gradient))
		rc = -ENOMEM;
	for (int b = 0; !rc && b < at->model->blocks; b++) {
		at->weights[b] = WEIGHTS;
		at->gradient[b][0] = at->gradient[b][1] = (float *)(void *)GRADIENTS;
	}
	return rc;
}

static int measure_layers(struct measuring *at, struct rh_layer_cost *layer)
{
	int rc = 0;
	for (int l = 0; !rc && l < at->model->layers; l++) {
		int before = find_alike(at->model, l);
		if (before)
			layer[l] = layer[before];
		else
			rc = measure_layer(at, l, &layer[l]);
	}
	return rc;
}

int rh_costs_measure(const struct rh_model *model, const struct rh_micro_shape *shape, const struct rh_rates *rates,
                     double host_bytes_per_parameter, struct rh_costs *out)
{
	struct measuring at = {.model = model, .shape = shape, .rates = rates};
	*out = (struct rh_costs){.layers = model->layers, .first_trained = model->first_trained, .tokens = shape->tokens};
	int rc = measuring_open(&at);
	out->layer = rh_alloc((size_t)model->layers, sizeof *out->layer);
	if (!rc && !out->layer)
		rc = -ENOMEM;
	if (!rc)
		rc = measure_layers(&at, out->layer);
	for (int l = 0; !rc && l < model->layers; l++)
		count_bytes(model, l, host_bytes_per_parameter, shape, &out->layer[l]);
	measuring_close(&at);
	if (rc)
		rh_costs_free(out);
	return rc;
}

/* What the layer makes of its own rows, and its output, where that is a row that is recomputed. */
static int recompute_layer(struct measuring *at, const struct rh_fates *fates, int l, int hi, struct rh_layer_cost *cost)
{
	struct rh_view x = rh_boundary_view(at->model, l, at->shape->tokens, X);
	struct rh_arena arena = rh_arena_measuring(), kept = arena, saved = arena;
	kept.base = KEPT;
	saved.base = SAVED;
	struct tally tally = {.rates = at->rates};
	struct rh_emit emit = emit_of(at, &arena, &tally);
	emit.fates = fates;
	emit.kept = &kept;
	emit.saved = &saved;
	int makes_output = l + 1 < hi && rh_fate_of(&fates[l + 1], RH_ROW_X) == RH_FATE_RECOMPUTE;
	int rc = rh_stage_recompute(&emit, l, l + 1, x, &at->state, NULL);
	cost->recompute_s = tally.seconds + (makes_output ? cost->recompute_spared_s : 0);
	cost->recompute_spared_s = 0;
	return rc;
}

int rh_costs_spare(const struct rh_model *model, const struct rh_micro_shape *shape, const struct rh_rates *rates,
                   const struct rh_stage_plan *plan, struct rh_costs *costs)
{
	struct measuring at = {.model = model, .shape = shape, .rates = rates};
	int rc = 0;
	if (rh_model_makes_plain(model) && !plan->plain_bytes) {
		at.is_by_product = 1;
		rc = measuring_open(&at);
		if (!rc)
			rc = measure_layers(&at, costs->layer);
	}
	for (int i = 0; !rc && i < plan->backward_stages; i++) {
		const struct rh_stage *stage = &plan->backward[i];
		int is_fated = rh_stage_plan_piece(plan, *stage, stage->lo).places != NULL,
		    in_part = is_fated && plan->places[i].recomputes;
		if (in_part && !at.weights)
			rc = measuring_open(&at);
		for (int l = stage->lo; !rc && is_fated && l < stage->hi; l++) {
			if (in_part)
				rc = recompute_layer(&at, plan->fates, l, stage->hi, &costs->layer[l]);
			else
				costs->layer[l].recompute_s = costs->layer[l].recompute_spared_s = 0;
		}
	}
	measuring_close(&at);
	return rc;
}

/* ---- what to save ---- */

/* That many rows are chosen one by one, at most, as all their sets are tried: the largest, each at least this part of all. */
enum { SAVE_ROWS = 10, SAVE_PART = 64 };

/* Rows of a layer that its forward may save: the large ones, and before them the small ones as one. */
struct savable {
	rh_row_set row[SAVE_ROWS + 1];
	int64_t bytes[SAVE_ROWS + 1];
	int count;
};

/* several: devices share the stages, whose tables no slot saves. */
static void list_savable(const struct measuring *at, int l, int several, struct savable *out)
{
	const struct rh_emit emit = {.model = at->model, .shape = *at->shape};
	struct rh_stage_rows rows;
	struct rh_stage_row row;
	int64_t bytes[RH_ACTIVATIONS], all = 0;
	int number[RH_ACTIVATIONS], count = 0;
	*out = (struct savable){.count = 1};
	rh_stage_rows(&emit, l, l + 1, &rows);
	while (rh_stage_next_row(&rows, &row)) {
		int place = count;
		if (row.is.maker == RH_MAKER_BACKWARD || (several && row.is.maker == RH_MAKER_STAGE))
			continue;
		for (; place && bytes[place - 1] < row.bytes; place--) { /* the largest first */
			bytes[place] = bytes[place - 1];
			number[place] = number[place - 1];
		}
		bytes[place] = rh_align_up(row.bytes, RH_ALIGN);
		number[place] = row.is.row;
		all += bytes[place];
		count++;
	}
	for (int i = 0; i < count; i++) {
		int is_large = i < SAVE_ROWS && bytes[i] >= all / SAVE_PART, to = is_large ? out->count++ : 0;
		out->row[to] |= RH_ROW_SET(number[i]);
		out->bytes[to] += bytes[i];
	}
}

/* Bytes that the layer may save of a micro-batch: beside its boundaries they go down while its forward computes, and come up while its
 * backward does. Both ways pass the host's memory, which devices share. Of several devices the layer's input is the first of them. */
static int64_t save_budget(const struct rh_save_request *request, int l, const struct rh_save_level *level)
{
	const struct rh_layer_cost *cost = &request->costs->layer[l];
	double boundary = (double)cost->boundary_bytes, input = request->devices > 1 ? boundary : 0;
	double down = request->down_bytes_per_s * cost->forward_s - boundary,
	       up = request->up_bytes_per_s * cost->backward_s - 2 * boundary;
	double most = fmin(down, up);
	if (request->host_bytes_per_s > 0 && request->devices > 1) {
		double each = request->host_bytes_per_s / request->devices, all = each * (cost->forward_s + cost->backward_s);
		most = fmin(most, level->at_once ? each * cost->forward_s - 3 * boundary / 2 : (all - 4 * boundary) / 2);
	}
	return (int64_t)fmax(level->share * fmax(most, 0) - input, 0);
}

/* The set of one layer's rows that spares the most in so many bytes; of equal ones the smallest. seconds: of each set. */
static rh_row_set best_set(const struct savable *rows, const double *seconds, int64_t budget)
{
	int sets = 1 << rows->count, best = 0;
	int64_t best_bytes = 0;
	for (int set = 1; set < sets; set++) {
		int64_t bytes = 0;
		for (int i = 0; i < rows->count; i++)
			bytes += set >> i & 1 ? rows->bytes[i] : 0;
		if (bytes > budget || seconds[set] > seconds[best] || (seconds[set] >= seconds[best] && bytes >= best_bytes))
			continue;
		best = set;
		best_bytes = bytes;
	}
	rh_row_set saved = 0;
	for (int i = 0; i < rows->count; i++)
		saved |= best >> i & 1 ? rows->row[i] : 0;
	return saved;
}

static int choose_for_layer(struct measuring *at, const struct rh_save_request *request, int l, struct rh_fates *fates)
{
	static const struct rh_fates none;
	int layers = request->model->layers, rc = 0;
	struct savable rows;
	list_savable(at, l, request->devices > 1, &rows);
	double *seconds = rh_alloc((size_t)1 << rows.count, sizeof *seconds);
	struct rh_fates *tried = rh_alloc((size_t)layers, sizeof *tried);
	if (!seconds || !tried)
		rc = -ENOMEM;
	for (int set = 0; !rc && set < 1 << rows.count; set++) {
		struct rh_layer_cost cost = {0};
		tried[l] = none;
		for (int i = 0; i < rows.count; i++)
			tried[l].saved |= set >> i & 1 ? rows.row[i] : 0;
		rc = recompute_layer(at, tried, l, l + 1, &cost);
		seconds[set] = cost.recompute_s;
	}
	for (int k = 0; !rc && k < request->levels; k++) {
		int64_t budget = rh_min(save_budget(request, l, &request->level[k]), request->level[k].most_bytes);
		fates[k * layers + l].saved = best_set(&rows, seconds, budget) | (request->devices > 1 ? RH_ROW_SET(RH_ROW_X) : 0);
	}
	rh_free(seconds);
	rh_free(tried);
	return rc;
}

int rh_costs_choose_saved(const struct rh_save_request *request, struct rh_fates *fates)
{
	const struct rh_model *model = request->model;
	struct measuring at = {.model = model, .shape = request->shape, .rates = request->rates};
	int rc = measuring_open(&at);
	for (int l = 0; !rc && l < model->layers; l++) {
		int before = find_alike(model, l);
		if (model->layer[l].kind != RH_LAYER_BLOCK || l < model->first_trained)
			continue;
		for (int k = 0; before && k < request->levels; k++)
			fates[k * model->layers + l] = fates[k * model->layers + before];
		if (!before)
			rc = choose_for_layer(&at, request, l, fates);
	}
	measuring_close(&at);
	return rc;
}

int rh_costs_save(const struct rh_save_request *request, const struct rh_fates *fates, struct rh_layer_cost *layer)
{
	const struct rh_model *model = request->model;
	struct measuring at = {.model = model, .shape = request->shape, .rates = request->rates};
	int rc = measuring_open(&at);
	for (int l = 0; !rc && l < model->layers; l++) {
		int before = find_alike(model, l);
		if (!fates[l].saved)
			continue;
		if (before && fates[before].saved == fates[l].saved) {
			layer[l].recompute_s = layer[before].recompute_s;
			layer[l].recompute_spared_s = layer[before].recompute_spared_s;
		} else {
			rc = recompute_layer(&at, fates, l, l + 1, &layer[l]);
		}
	}
	measuring_close(&at);
	return rc;
}

void rh_costs_free(struct rh_costs *costs)
{
	rh_free(costs->layer);
	*costs = (struct rh_costs){0};
}
