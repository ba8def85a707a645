/* The values of the store's tensors, read and set. */
#include "offload/store_internal.h"

#include "core/float16.h"
#include "core/split.h"

#include <math.h>
#include <string.h>

/* The tensor's elements [first, first+count) lie in it; returns where they start in the block. */
static int64_t locate(const struct rh_store *store, int block, int tensor, int64_t first, int64_t count)
{
	const struct rh_block *spec = rh_store_block(store, block);
	RH_ASSERT(tensor >= 0 && tensor < spec->tensors);
	RH_ASSERT(first >= 0 && count >= 0 && first <= tensor_elements(&spec->tensor[tensor]) - count);
	return spec->tensor[tensor].offset + first;
}

/* The overlap of [start, start+count), elements or bytes, with a piece. */
static int64_t overlap(const struct store_piece *piece, int64_t start, int64_t count, int64_t *from)
{
	int64_t end = start + count < piece->end ? start + count : piece->end;
	*from = start > piece->first ? start : piece->first;
	return end > *from ? end - *from : 0;
}

/* What comes or goes: elements of a plain tensor, as values in fp32, or bytes of a packed one. */
struct move {
	enum store_direction direction;
	int64_t start, count; /* elements of the block; of a packed tensor only `count`, bytes */
	char *values;
	enum rh_dtype dtype; /* in the upload form, in which they begin at byte `offset`; U8: of a packed tensor */
	int64_t offset;
};

static struct move make_move(enum store_direction direction, const struct rh_store *store, int block, int tensor, int64_t first,
                             int64_t count, const float *values)
{
	struct rh_tensor_form form = rh_block_tensor(&store->spec[block], tensor, store->dtype);
	RH_ASSERT(form.form == RH_FORM_PLAIN);
	return (struct move){.direction = direction,
	                     .start = locate(store, block, tensor, first, count),
	                     .count = count,
	                     .values = (char *)(uintptr_t)values,
	                     .dtype = form.dtype,
	                     .offset = form.offset + rh_dtype_bytes(form.dtype, first)};
}

/* Bytes of `count` values outside the store. */
static int64_t outside(const struct move *move, int64_t count)
{
	return move->dtype == RH_U8 ? count : count * (int64_t)sizeof(float);
}

/* Moves weights that are stored rounded, or as they are. */
static void move_weights(const struct move *move, void *stored)
{
	uint16_t *half = stored;
	float *values = (float *)(void *)move->values;
	if (move->dtype != RH_BF16)
		store_copy(move->direction, stored, move->values, outside(move, move->count));
	else if (move->direction == STORE_IN)
		for (int64_t i = 0; i < move->count; i++)
			half[i] = rh_f32_to_bf16(values[i]);
	else
		for (int64_t i = 0; i < move->count; i++)
			values[i] = rh_bf16_to_f32(half[i]);
}

/* BF16: what the upload form, `upper`, lacks of a trainable block's masters. */
static void move_masters(const struct move *move, const struct store_view *view, const uint16_t *upper)
{
	int64_t first = move->start - view->first;
	float *values = (float *)(void *)move->values;
	if (view->master)
		store_copy(move->direction, view->master + first, values, move->count * 4);
	else if (move->direction == STORE_IN)
		for (int64_t i = 0; i < move->count; i++)
			view->lower[first + i] = rh_split_lower(rh_f32_bits(values[i]));
	else
		for (int64_t i = 0; i < move->count; i++)
			values[i] = rh_bits_f32(rh_split_join(upper[move->start + i], view->lower[first + i]));
}

/* The part of a move that lies in this piece. Pages are cut by bytes, where an element ends. */
static struct move part_of(const struct move *move, const struct store_piece *piece, int is_page)
{
	int64_t width = is_page ? rh_dtype_bytes(move->dtype, 1) : 1, begin = is_page ? move->offset : move->start, from;
	struct move part = *move;
	part.count = overlap(piece, begin, move->count * width, &from) / width;
	int64_t passed = (from - begin) / width;
	part.start += passed;
	part.values += outside(move, passed);
	part.offset += rh_dtype_bytes(move->dtype, passed);
	return part;
}

/* Piece by piece: a frozen block's weights on NVMe, a trainable one's masters. */
static int move_pieces(struct rh_store *store, int block, const struct move *move)
{
	const struct store_block *of = &store->block[block];
	int rc = 0;
	for (int p = of->piece; !rc && p < of->piece + of->piece_count; p++) {
		struct store_view view;
		struct move part = part_of(move, &store->piece[p], !of->weights);
		rc = part.count > 0 ? store_acquire(store, p, STORE_WEIGHTS, &view) : 0;
		if (rc || part.count <= 0)
			continue;
		if (of->weights)
			move_masters(&part, &view, of->weights);
		else
			move_weights(&part, (char *)view.weights + part.offset - view.first);
		store_release(store, p, STORE_WEIGHTS, move->direction == STORE_IN ? STORE_CHANGED : STORE_UNCHANGED);
	}
	return rc;
}

int rh_store_check_finite(const struct rh_store *store, int block, int tensor, int64_t first, int64_t count, const float *values)
{
	const struct rh_tensor *named = &rh_store_block(store, block)->tensor[tensor];
	uint32_t bad = 0;
	for (int64_t i = 0; i < count; i++)
		bad |= (rh_f32_bits(values[i]) & 0x7f800000u) == 0x7f800000u;
	if (!bad)
		return 0;
	int64_t i = 0;
	while (isfinite(values[i]))
		i++;
	return rh_fail(-EINVAL, "tensor %s holds %g at row %lld, column %lld: weights must be finite; repair or re-download the file",
	               named->name, (double)values[i], (long long)((first + i) / named->cols), (long long)((first + i) % named->cols));
}

/* Each by one: of threads that set at once none may undo another's. */
static void count_change(struct store_block *block)
{
	__atomic_fetch_add(&block->version, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&block->published_version, 1, __ATOMIC_RELAXED);
}

int rh_store_set(struct rh_store *store, int block, int tensor, int64_t first, int64_t count, const float *values)
{
	struct store_block *to = &store->block[block];
	const struct move move = make_move(STORE_IN, store, block, tensor, first, count, values);
	int rc = rh_store_check_finite(store, block, tensor, first, count, values);
	if (rc)
		return rc;
	count_change(to);
	if (!to->weights)
		return move_pieces(store, block, &move);
	char *stored = (char *)to->weights + move.offset;
	int splits = store->dtype != RH_F32 && store->spec[block].trainable;
	for (int64_t i = 0; splits && i < count; i++)
		((uint16_t *)(void *)stored)[i] = rh_split_upper(rh_f32_bits(values[i]));
	if (!splits)
		move_weights(&move, stored);
	if (to->published)
		memcpy((char *)to->published + move.offset, stored, (size_t)rh_dtype_bytes(move.dtype, count));
	return splits ? move_pieces(store, block, &move) : 0;
}

int rh_store_published_get(const struct rh_store *store, int block, int tensor, int64_t first, int64_t count, void *values)
{
	const char *published = store->block[block].published;
	int64_t start = locate(store, block, tensor, first, count);
	RH_ASSERT(published);
	memcpy(values, published + rh_dtype_bytes(store->dtype, start), (size_t)rh_dtype_bytes(store->dtype, count));
	return 0;
}

int rh_store_published_set(struct rh_store *store, int block, int tensor, int64_t first, int64_t count, const void *values)
{
	struct store_block *to = &store->block[block];
	int64_t start = locate(store, block, tensor, first, count);
	RH_ASSERT(to->published);
	memcpy((char *)to->published + rh_dtype_bytes(store->dtype, start), values, (size_t)rh_dtype_bytes(store->dtype, count));
	to->published_version = to->version + 1;
	to->version += 2;
	return 0;
}

int rh_store_get(struct rh_store *store, int block, int tensor, int64_t first, int64_t count, float *values)
{
	const struct store_block *from = &store->block[block];
	const struct move move = make_move(STORE_OUT, store, block, tensor, first, count, values);
	if (!from->weights || (store->dtype != RH_F32 && store->spec[block].trainable))
		return move_pieces(store, block, &move);
	move_weights(&move, (char *)from->weights + move.offset);
	return 0;
}

static int move_packed(enum store_direction direction, struct rh_store *store, int block, int tensor, int64_t first, int64_t bytes,
                       void *packed)
{
	struct store_block *of = &store->block[block];
	struct rh_tensor_form form = rh_block_tensor(&store->spec[block], tensor, store->dtype);
	RH_ASSERT(form.form != RH_FORM_PLAIN && first >= 0 && bytes >= 0 && first <= form.bytes - bytes);
	const struct move move = {.direction = direction, .count = bytes, .values = packed, .dtype = RH_U8, .offset = form.offset + first};
	if (direction == STORE_IN)
		count_change(of);
	if (!of->weights)
		return move_pieces(store, block, &move);
	move_weights(&move, (char *)of->weights + move.offset);
	return 0;
}

int rh_store_set_packed(struct rh_store *store, int block, int tensor, int64_t first, int64_t bytes, const void *packed)
{
	return move_packed(STORE_IN, store, block, tensor, first, bytes, (void *)(uintptr_t)packed);
}

int rh_store_get_packed(struct rh_store *store, int block, int tensor, int64_t first, int64_t bytes, void *packed)
{
	return move_packed(STORE_OUT, store, block, tensor, first, bytes, packed);
}
