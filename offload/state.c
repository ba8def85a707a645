/* The arrays that each kind of optimizer keeps for a block, and where they lie. */
#include "offload/store_internal.h"

#include "core/minmax.h"

#include <string.h>

/* Adafactor's groups of rows at most: partial sums of columns are kept of each. */
enum { FACTOR_GROUPS = 128 };

int64_t state_codes(int64_t elements)
{
	return (elements + OPTIMIZER_CODES - 1) / OPTIMIZER_CODES;
}

struct state_factors state_factors(const struct rh_tensor *tensor)
{
	int factored = tensor->rank == 2;
	struct state_factors f = {.factored = factored,
	                          .rows = factored ? tensor->rows : 1,
	                          .cols = factored ? tensor->cols : tensor_elements(tensor),
	                          .group_rows = 1};
	if (f.cols)
		f.group_rows = rh_max((STORE_SPAN + f.cols - 1) / f.cols, (f.rows + FACTOR_GROUPS - 1) / FACTOR_GROUPS);
	f.groups = (f.rows + f.group_rows - 1) / f.group_rows;
	f.floats = factored ? f.rows + f.cols : f.cols;
	/* sums of columns by group, factors of columns, one fp64 sum of each group */
	f.scratch = rh_align_up(f.groups * f.cols * 4, RH_ALIGN) + rh_align_up(f.cols * 4, RH_ALIGN) + f.groups * 8;
	return f;
}

int64_t state_scratch(const struct rh_block *specs, int count, const struct rh_store_options *options)
{
	int64_t bytes = 0;
	if (options->optim == RH_OPTIM_ADAFACTOR)
		for (int b = 0; b < count; b++)
			for (int t = 0; specs[b].trainable && t < specs[b].tensors; t++)
				bytes = rh_max(bytes, state_factors(&specs[b].tensor[t]).scratch);
	return bytes;
}

int state_moments(const struct rh_store_options *options)
{
	switch (options->optim) {
	case RH_OPTIM_ADAMW:
		return 2;
	case RH_OPTIM_LION:
		return 1;
	case RH_OPTIM_SGD:
		return options->momentum ? 1 : 0;
	default:
		return 0;
	}
}

void state_place(const struct rh_block *spec, const struct rh_store_options *options, struct rh_arena *memory, struct store_block *block)
{
	int narrow = options->layout == RH_LAYOUT_SPLIT8;
	int64_t codes = 0, floats = 0;
	for (int t = 0; t < spec->tensors; t++) {
		codes += state_codes(tensor_elements(&spec->tensor[t]));
		floats += state_factors(&spec->tensor[t]).floats;
	}
	int spilled = options->spill & RH_SPILL_OPTIMIZER;
	for (int k = 0; k < state_moments(options) && !spilled; k++)
		if (narrow)
			block->code[k] = rh_arena_take(memory, spec->elements);
		else
			block->moment[k] = rh_arena_take(memory, spec->elements * 4);
	for (int k = 0; narrow && k < state_moments(options); k++)
		block->largest[k] = rh_arena_take(memory, codes * 4);
	if (options->optim == RH_OPTIM_ADAFACTOR)
		block->factor = rh_arena_take(memory, floats * 4);
}

float *state_factor_at(const struct rh_block *spec, const struct store_block *block, int tensor)
{
	float *at = block->factor;
	for (int t = 0; t < tensor; t++)
		at += state_factors(&spec->tensor[t]).floats;
	return at;
}

/* A tensor of the model's own shape. */
static struct rh_state whole(const struct rh_tensor *tensor, const char *suffix, enum rh_dtype dtype, void *data)
{
	return (struct rh_state){suffix, data, dtype, tensor->rank, tensor->rows, tensor->cols};
}

static struct rh_state vector(const char *suffix, float *data, int64_t count)
{
	return (struct rh_state){suffix, data, RH_F32, 1, 1, count};
}

/* Names are those of PyTorch's, transformers' and bitsandbytes' own states. */
int rh_store_state(const struct rh_store *store, int block, int tensor, int which, struct rh_state *out)
{
	const struct rh_block *spec = rh_store_block(store, block);
	const struct store_block *at = &store->block[block];
	RH_ASSERT(spec->trainable && tensor >= 0 && tensor < spec->tensors && which >= 0);
	const struct rh_tensor *one = &spec->tensor[tensor];
	static const char *const names[] = {".exp_avg", ".exp_avg_sq"}, *const scales[] = {".exp_avg_absmax", ".exp_avg_sq_absmax"};
	int count = state_moments(&store->options);
	if (at->factor) {
		struct state_factors f = state_factors(one);
		float *data = state_factor_at(spec, at, tensor);
		if (which >= (f.factored ? 2 : 1))
			return 0;
		*out = !f.factored  ? whole(one, ".exp_avg_sq", RH_F32, data)
		       : which == 0 ? vector(".exp_avg_sq_row", data, f.rows)
		                    : vector(".exp_avg_sq_col", data + f.rows, f.cols);
	} else if (store->options.layout == RH_LAYOUT_SPLIT8) {
		if (which >= 2 * count)
			return 0;
		int64_t first = 0;
		for (int t = 0; t < tensor; t++)
			first += state_codes(tensor_elements(&spec->tensor[t]));
		*out = which < count ? whole(one, names[which], RH_U8, at->code[which] ? at->code[which] + one->offset : NULL)
		                     : vector(scales[which - count], at->largest[which - count] + first, state_codes(tensor_elements(one)));
	} else {
		if (which >= count)
			return 0;
		const char *name = store->options.optim == RH_OPTIM_SGD ? ".momentum_buffer" : names[which];
		*out = whole(one, name, RH_F32, at->moment[which] ? at->moment[which] + one->offset : NULL);
	}
	return 1;
}

/* Elements of a tensor's array number `array`. */
struct part {
	int block, tensor, array;
	int64_t first, count;
};

/* A spilled array piece by piece. */
static int move_spilled(struct rh_store *store, const struct part *part, char *outside, enum store_direction direction)
{
	const struct store_block *of = &store->block[part->block];
	unsigned kept = part->array ? STORE_SECOND : STORE_MOMENT;
	int64_t first = rh_store_block(store, part->block)->tensor[part->tensor].offset + part->first, all = first + part->count;
	for (int p = of->piece; p < of->piece + of->piece_count; p++) {
		const struct store_piece *piece = &store->piece[p];
		int64_t from = rh_max(first, piece->first), end = rh_min(all, piece->end);
		struct store_view view;
		if (from >= end)
			continue;
		int rc = store_acquire(store, p, kept, &view);
		if (rc)
			return rc;
		if (view.code[part->array])
			store_copy(direction, view.code[part->array] + (from - view.first), outside + (from - first), end - from);
		else
			store_copy(direction, view.moment[part->array] + (from - view.first), outside + 4 * (from - first),
			           4 * (end - from));
		store_release(store, p, kept, direction == STORE_IN ? STORE_CHANGED : STORE_UNCHANGED);
	}
	return 0;
}

static int move_state(struct rh_store *store, const struct part *part, void *outside, enum store_direction direction)
{
	struct rh_state state;
	RH_ASSERT(rh_store_state(store, part->block, part->tensor, part->array, &state));
	RH_ASSERT(part->first >= 0 && part->count >= 0 && part->first <= state.rows * state.cols - part->count);
	if (!state.data)
		return move_spilled(store, part, outside, direction);
	store_copy(direction, (char *)state.data + rh_dtype_bytes(state.dtype, part->first), outside,
	           rh_dtype_bytes(state.dtype, part->count));
	return 0;
}

int rh_store_state_get(struct rh_store *store, int block, int tensor, int which, int64_t first, int64_t count, void *values)
{
	return move_state(store, &(struct part){block, tensor, which, first, count}, values, STORE_OUT);
}

int rh_store_state_set(struct rh_store *store, int block, int tensor, int which, int64_t first, int64_t count, const void *values)
{
	return move_state(store, &(struct part){block, tensor, which, first, count}, (void *)(uintptr_t)values, STORE_IN);
}
