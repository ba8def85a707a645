/* A block's gradient and its norm, and its update piece by piece: tasks of one span each, over the pool's threads. */
#include "offload/optimizer.h"

#include "offload/store_internal.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>

/* An update from NVMe without bytes has this many pieces: enough to show which update runs before which. */
enum { PIECES_SHOWN = 16 };

struct take {
	struct rh_store *store;
	int64_t first; /* span */
};

/* Task: one span's gradient made final, and its squares summed. */
static void take_span(void *context, int64_t i)
{
	const struct take *take = context;
	const struct rh_store *store = take->store;
	struct store_span *span = &store->span[take->first + i];
	const struct store_block *block = &store->block[span->block];
	const struct optimizer_kernels *kernels = store->kernels;
	int two = block->gradient_sum[0] && block->gradient_sum[1];
	if (!store_rows_lay(store, span)) {
		span->squares = 0;
	} else if (store->dtype == RH_F32) {
		float *gradient = (float *)block->gradient + span->first;
		if (two)
			kernels->add_f32(gradient, block->gradient_sum[1] + span->first, block->gradient_sum[0] + span->first, span->count);
		span->squares = kernels->squares_f32(gradient, span->count);
	} else {
		uint16_t *gradient = (uint16_t *)block->gradient + span->first;
		if (two)
			kernels->add_bf16(gradient, block->gradient_sum[1] + span->first, block->gradient_sum[0] + span->first,
			                  span->count);
		span->squares = kernels->squares_bf16(gradient, span->count);
	}
}

void rh_optimizer_take(struct rh_store *store, int block)
{
	struct take take = {store, store->block[block].span};
	if (store->options.addresses_only)
		return;
	store_run_spans(store, take.first, store->block[block].span_count, take_span, &take);
	store_rows_laid(store->block[block].rows);
}

/* The squares of the tensor whose spans begin with *i, which becomes the next tensor's first. */
static double tensor_squares(const struct rh_store *store, int64_t *i, int64_t end)
{
	const struct store_span *tensor = &store->span[*i];
	double sum = 0;
	for (; *i < end && store->span[*i].block == tensor->block && store->span[*i].tensor == tensor->tensor; ++*i)
		sum += store->span[*i].squares;
	return sum;
}

/* `total` and the squares of these, tensor by tensor. */
static double add_squares(const struct rh_store *store, int64_t first, int64_t end, double total)
{
	if (store->options.addresses_only)
		return 1;
	for (int64_t i = first; i < end;)
		total += tensor_squares(store, &i, end);
	return total;
}

/* The squares of a block that two boxes share count in the box with its embedding. */
double rh_optimizer_add_squares(const struct rh_store *store, double before)
{
	for (int b = 0; b < rh_store_blocks(store); b++) {
		const struct store_block *block = &store->block[b];
		if (rh_store_block(store, b)->shared != RH_SHARED_BY_HEAD)
			before = add_squares(store, block->span, block->span + block->span_count, before);
	}
	return before;
}

int64_t rh_optimizer_squares(const struct rh_store *store, double *each)
{
	int64_t count = 0;
	for (int b = 0; b < rh_store_blocks(store); b++) {
		const struct rh_block *spec = rh_store_block(store, b);
		int64_t i = store->block[b].span, end = i + store->block[b].span_count;
		for (int t = 0; spec->trainable && spec->shared != RH_SHARED_BY_HEAD && t < spec->tensors; t++, count++) {
			int has_spans = !store->options.addresses_only && i < end && store->span[i].tensor == t; /* else it is empty */
			if (each)
				each[count] = has_spans ? tensor_squares(store, &i, end) : 0;
		}
	}
	return count;
}

double rh_optimizer_taken_norm(const struct rh_store *store)
{
	return sqrt(rh_optimizer_add_squares(store, 0));
}

double rh_optimizer_block_norm(const struct rh_store *store, int block)
{
	const struct store_block *spans = &store->block[block];
	return sqrt(add_squares(store, spans->span, spans->span + spans->span_count, 0));
}

int rh_optimizer_not_finite(const struct rh_store *store, int block)
{
	const struct store_block *spans = &store->block[block];
	for (int64_t i = spans->span; i < spans->span + spans->span_count; i++)
		if (!isfinite(store->span[i].squares))
			return store->span[i].tensor;
	return -1;
}

void rh_optimizer_spoil(struct rh_store *store, int block)
{
	struct store_span *span = &store->span[store->block[block].span];
	if (store->dtype == RH_F32)
		((float *)store->block[block].gradient)[span->first] = NAN;
	else
		((uint16_t *)store->block[block].gradient)[span->first] = 0x7fc0;
	span->squares = NAN;
}

double rh_optimizer_clip(double norm, double max_norm)
{
	double factor = max_norm / (norm + 1e-6);
	return max_norm == 0 || factor >= 1 ? 1 : factor; /* NaN stays NaN */
}

struct spans {
	struct rh_store *store;
	struct store_block *block;
	const struct store_piece *piece;
	struct store_view view;
	optimizer_kernel *kernel;
	const struct store_rows *ahead;     /* NULL: no row has been updated ahead */
	const int32_t *row;                 /* of update_row */
	struct optimizer_terms terms[2][2]; /* by is_lora_b and decays of a tensor */
	_Atomic int bad;                    /* lowest tensor with a non-finite weight, INT_MAX for none */
	_Atomic int torn;                   /* 1 + the lowest block of the record that is not what was written, likewise */
};

static void update_run(struct spans *spans, const struct store_span *run)
{
	const struct rh_store *store = spans->store;
	const struct store_block *block = spans->block;
	const struct store_view *view = &spans->view;
	const struct rh_tensor *tensor = &store->spec[run->block].tensor[run->tensor];
	struct optimizer_span at = store_span_at(store, block, view, run->first);
	for (int k = 0; k < 2; k++) {
		if (view->moment[k])
			at.moment[k] = view->moment[k] + (run->first - view->first);
		if (view->code[k]) {
			at.code[k] = view->code[k] + (run->first - view->first);
			at.largest[k] = block->largest[k] + run->codes;
		}
	}
	if (spans->kernel(&spans->terms[tensor->is_lora_b][tensor->decays], &at, run->count))
		sums_keep_lowest(&spans->bad, run->tensor);
}

/* The parts of the span that no update ahead has made: runs of whole rows, but for the span's ends. */
static void update_rest(struct spans *spans, const struct store_span *span)
{
	int64_t cols = spans->ahead->cols, end = span->first + span->count;
	struct store_span run = *span;
	for (int64_t at = span->first, next; at < end; at = next) {
		next = (at / cols + 1) * cols < end ? (at / cols + 1) * cols : end;
		int is_ahead = spans->ahead->is_ahead[at / cols];
		run.count = (int32_t)((is_ahead ? at : next) - run.first);
		if (run.count && (is_ahead || next == end))
			update_run(spans, &run);
		run.first = is_ahead ? next : run.first;
	}
}

/* Task of rh_optimizer_update. */
static void update_span(void *context, int64_t i)
{
	struct spans *spans = context;
	const struct rh_store *store = spans->store;
	const struct store_span *span = &store->span[spans->piece->span + i];
	const struct store_view *view = &spans->view;
	int torn = view->unknown ? sums_check_span(store, spans->piece, view->unknown, i, view->frame) : 0;
	if (torn) {
		sums_keep_lowest(&spans->torn, torn);
		return;
	}
	if (spans->ahead)
		update_rest(spans, span);
	else
		update_run(spans, span);
	if (view->parts)
		sums_make_span(store, spans->piece, view->parts, i, view->frame);
}

/* Task of rh_optimizer_update_rows. */
static void update_row(void *context, int64_t i)
{
	struct spans *spans = context;
	int64_t cols = spans->block->rows->cols;
	struct store_span run = {
	        .first = spans->row[i] * cols, .count = (int32_t)cols, .block = (int32_t)(spans->block - spans->store->block)};
	update_run(spans, &run);
}

double optimizer_rate(const struct rh_update *update, int is_lora_b)
{
	return is_lora_b && update->lora_b_ratio > 0 ? update->learning_rate * update->lora_b_ratio : update->learning_rate;
}

/* The constants in double on the host, each rounded once, as torch does; of tensors that decay or do not. */
static struct optimizer_terms make_terms(const struct rh_store *store, const struct rh_update *update, int is_lora_b, int decays)
{
	const struct rh_optimizer_settings *settings = &update->settings;
	double learning_rate = optimizer_rate(update, is_lora_b), step = (double)update->step, decay = decays ? settings->weight_decay : 0;
	int adamw = store->options.optim == RH_OPTIM_ADAMW, coupled = store->options.optim == RH_OPTIM_SGD;
	double weight = 1 - settings->beta1;
	int from_end = weight >= 0.5; /* torch.lerp switches there: the end it is nearer to is kept exact */
	return (struct optimizer_terms){
	        .adamw = {.scale = (float)update->scale,
	                  .keep = coupled ? 1 : (float)(1 - learning_rate * decay),
	                  .minus_step = (float)(adamw ? -learning_rate / (1 - pow(settings->beta1, step)) : -learning_rate),
	                  .lerp = from_end ? -(1.0f - (float)weight) : (float)weight,
	                  .lerp_from_end = from_end,
	                  .beta2 = (float)settings->beta2,
	                  .one_minus_beta2 = (float)(1 - settings->beta2),
	                  .inverse_root = adamw ? (float)(1 / sqrt(1 - pow(settings->beta2, step))) : 0,
	                  .epsilon = (float)settings->epsilon},
	        .beta1 = (float)settings->beta1,
	        .one_minus_beta1 = (float)weight,
	        .decay = coupled ? (float)decay : 0,
	        .momentum = (float)settings->momentum,
	};
}

static enum optimizer_step step_of(const struct rh_store_options *options)
{
	switch (options->optim) {
	case RH_OPTIM_LION:
		return STEP_LION;
	case RH_OPTIM_SGD:
		return options->momentum ? STEP_MOMENTUM : STEP_SGD;
	default:
		return options->layout == RH_LAYOUT_SPLIT8 ? STEP_ADAMW8 : STEP_ADAMW;
	}
}

static optimizer_kernel *kernel_of(const struct rh_store *store, enum rh_update_pass pass)
{
	const struct optimizer_kernels *kernels = store->kernels;
	switch (pass) {
	case RH_UPDATE_WEIGHTS:
		return kernels->weights[store->form];
	case RH_UPDATE_MOMENTS:
		return kernels->moments[store->form];
	default:
		return kernels->update[step_of(&store->options)][store->form];
	}
}

/* The first fault that the update of a piece found; INT_MAX: none. */
struct found {
	int bad, torn; /* as in struct spans */
};

static void make_all_terms(struct spans *spans, const struct rh_update *update)
{
	for (int b = 0; b < 2; b++)
		for (int decays = 0; decays < 2; decays++)
			spans->terms[b][decays] = make_terms(spans->store, update, b, decays);
}

static struct found update_spans(struct rh_store *store, const struct store_piece *piece, const struct store_view *view,
                                 const struct rh_update *update, enum rh_update_pass pass)
{
	const struct store_rows *rows = store->block[piece->block].rows;
	struct spans spans = {.store = store,
	                      .block = &store->block[piece->block],
	                      .piece = piece,
	                      .view = *view,
	                      .kernel = kernel_of(store, pass),
	                      .ahead = rows && rows->aheads && pass != RH_UPDATE_MOMENTS ? rows : NULL,
	                      .bad = INT_MAX,
	                      .torn = INT_MAX};
	make_all_terms(&spans, update);
	store_run_spans(store, piece->span, piece->span_count, update_span, &spans);
	return (struct found){atomic_load_explicit(&spans.bad, memory_order_relaxed),
	                      atomic_load_explicit(&spans.torn, memory_order_relaxed)};
}

/* The tensors that a piece holds whole, from the last, so that the lowest bad one is the one that is told. */
static struct found update_tensors(struct rh_store *store, const struct store_piece *piece, const struct store_view *view,
                                   const struct rh_update *update)
{
	int bad = INT_MAX;
	for (int64_t s = piece->span + piece->span_count - 1; s >= piece->span; s--) {
		int tensor = store->span[s].tensor, begins = s == piece->span || store->span[s - 1].tensor != tensor;
		if (begins && adafactor_update(store, piece->block, tensor, view, update))
			bad = tensor;
	}
	return (struct found){bad, INT_MAX};
}

int rh_optimizer_pieces(const struct rh_store *store, int block)
{
	if (!store->options.addresses_only)
		return store->block[block].piece_count;
	int64_t elements = rh_store_block(store, block)->elements, most = spill_piece_elements(0);
	if (rh_store_traffic(store, block).nvme > 0)
		return PIECES_SHOWN;
	return store->options.optim == RH_OPTIM_ADAFACTOR || elements <= most ? 1 : (int)((elements + most - 1) / most);
}

int rh_optimizer_distance(const struct rh_store *store, int block, int piece)
{
	return store->options.addresses_only ? 0 : store_distance(store, store->block[block].piece + piece);
}

static int not_finite(const struct rh_store *store, int block, int tensor, const struct rh_update *update)
{
	const struct rh_block *spec = rh_store_block(store, block);
	return rh_fail(-EINVAL,
	               "weight %s of %s is no longer finite after step %lld (learning rate %g): lower learning_rate or max_grad_norm",
	               spec->tensor[tensor].name, spec->name, (long long)update->step, update->learning_rate);
}

int rh_optimizer_update_piece(struct rh_store *store, int block, int at, const struct rh_update *update, enum rh_update_pass pass)
{
	const struct rh_block *spec = rh_store_block(store, block);
	RH_ASSERT(spec->trainable && update->step >= 1 && (update->settings.momentum != 0) == (store->options.momentum != 0));
	RH_ASSERT(at >= 0 && at < rh_optimizer_pieces(store, block) && (pass == RH_UPDATE_WHOLE || rh_optimizer_has_passes(store)));
	if (pass != RH_UPDATE_MOMENTS)                                                 /* devices may be reading the weights by then */
		__atomic_fetch_add(&store->block[block].version, 1, __ATOMIC_RELAXED); /* rh_store_version may be asked meanwhile */
	if (store->options.addresses_only)
		return 0;
	int number = store->block[block].piece + at, by_tensor = store->options.optim == RH_OPTIM_ADAFACTOR;
	const struct store_piece *piece = &store->piece[number];
	struct store_view view;
	store_requested(store, block, at);
	int rc = (by_tensor ? store_acquire : store_acquire_unknown)(store, number, STORE_ALL, &view);
	if (rc)
		return rc;
	struct found found = by_tensor ? update_tensors(store, piece, &view, update) : update_spans(store, piece, &view, update, pass);
	if (found.torn < INT_MAX) {
		store_release(store, number, STORE_ALL, STORE_UNCHANGED);
		return rh_space_mismatch(store->options.space, piece->record, found.torn - 1);
	}
	store_release(store, number, STORE_ALL, by_tensor ? STORE_DONE : STORE_SUMMED);
	if (at + 1 == store->block[block].piece_count) {
		store_done(store, block);
		store_rows_are_behind(store->block[block].rows, pass);
	}
	return found.bad == INT_MAX ? 0 : not_finite(store, block, found.bad, update);
}

int rh_optimizer_update_rows(struct rh_store *store, int block, const int32_t *row, int64_t count, const struct rh_update *update,
                             enum rh_update_pass pass)
{
	struct store_block *of = &store->block[block];
	RH_ASSERT(rh_optimizer_has_passes(store) && pass != RH_UPDATE_MOMENTS);
	__atomic_fetch_add(&of->version, 1, __ATOMIC_RELAXED);
	if (store->options.addresses_only)
		return 0;
	struct spans spans = {.store = store,
	                      .block = of,
	                      .view = {.lower = of->lower, .master = of->master, .moment = {of->moment[0], of->moment[1]}},
	                      .kernel = kernel_of(store, pass),
	                      .row = row,
	                      .bad = INT_MAX};
	make_all_terms(&spans, update);
	rh_pool_run(store->pool, update_row, &spans, count);
	store_rows_are_ahead(of->rows, row, count);
	int bad = atomic_load_explicit(&spans.bad, memory_order_relaxed);
	return bad == INT_MAX ? 0 : not_finite(store, block, bad, update);
}

int rh_optimizer_has_passes(const struct rh_store *store)
{
	const struct rh_store_options *options = &store->options;
	return options->optim == RH_OPTIM_ADAMW && step_of(options) == STEP_ADAMW &&
	       !(options->spill & (RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS));
}

int rh_optimizer_update(struct rh_store *store, int block, const struct rh_update *update)
{
	int rc = 0;
	store_first(store, block);
	for (int p = 0, pieces = rh_optimizer_pieces(store, block); !rc && p < pieces; p++)
		rc = rh_optimizer_update_piece(store, block, p, update, RH_UPDATE_WHOLE);
	return rc;
}
