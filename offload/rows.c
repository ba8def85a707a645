/* A gradient that comes as the rows that are not zero. The take lays them where the gradient keeps them, and zeros where rows of the step
 * before lie. */
#include "core/alloc.h"
#include "offload/optimizer.h"
#include "offload/store_internal.h"

int rh_store_by_rows(struct rh_store *store, int b)
{
	const struct rh_block *spec = rh_store_block(store, b);
	const struct rh_tensor *tensor = &spec->tensor[0];
	struct store_rows *rows = rh_alloc(1, sizeof *rows);
	RH_ASSERT(spec->trainable && spec->tensors == 1 && spec->uses == 1 && tensor->offset == 0 && !store->block[b].rows);
	store->block[b].rows = rows;
	if (!rows)
		return -ENOMEM;
	*rows = (struct store_rows){.rows = tensor->rows, .cols = tensor->cols};
	rows->place = rh_alloc((size_t)tensor->rows, sizeof *rows->place);
	rows->is_filled = rh_alloc((size_t)tensor->rows, sizeof *rows->is_filled);
	rows->is_ahead = rh_alloc((size_t)tensor->rows, sizeof *rows->is_ahead);
	return rows->place && rows->is_filled && rows->is_ahead ? 0 : -ENOMEM;
}

void store_rows_free(struct store_rows *rows)
{
	if (!rows)
		return;
	rh_free(rows->place);
	rh_free(rows->is_filled);
	rh_free(rows->is_ahead);
	rh_free(rows);
}

void rh_store_rows_arrive(struct rh_store *store, int b, const int32_t *id, int64_t count, const void *gradient)
{
	struct store_rows *rows = store->block[b].rows;
	RH_ASSERT(rows && gradient);
	rows->count = count;
	if (store->options.addresses_only)
		return;
	rows->data = gradient;
	for (int64_t i = 0; i < count; i++)
		rows->place[id[i]] = (int32_t)i + 1;
	/* a sum that rounds continue lies in the gradient's bytes */
	for (int64_t row = 0; store->block[b].gradient_sum[0] && row < rows->rows; row++)
		rows->is_filled[row] = 1;
}

int store_rows_lay(const struct rh_store *store, const struct store_span *span)
{
	const struct store_block *block = &store->block[span->block];
	const struct store_rows *rows = block->rows;
	int64_t width = rh_dtype_bytes(store->dtype, 1), end = span->first + span->count, next;
	int any = 0;
	if (!rows || !rows->data)
		return 1;
	for (int64_t at = span->first; at < end; at = next) {
		int64_t row = at / rows->cols, place = rows->place[row];
		next = (row + 1) * rows->cols < end ? (row + 1) * rows->cols : end;
		char *to = (char *)block->gradient + at * width;
		if (place)
			memcpy(to, rows->data + ((place - 1) * rows->cols + at % rows->cols) * width, (size_t)((next - at) * width));
		else if (rows->is_filled[row])
			memset(to, 0, (size_t)((next - at) * width));
		any |= place != 0;
	}
	return any;
}

void store_rows_laid(struct store_rows *rows)
{
	if (!rows || !rows->data)
		return;
	rows->data = NULL;
	for (int64_t row = 0; row < rows->rows; row++) {
		rows->is_filled[row] = rows->place[row] != 0;
		rows->place[row] = 0;
	}
}

void store_rows_are_ahead(struct store_rows *rows, const int32_t *row, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		rows->is_ahead[row[i]] = 1;
	rows->aheads = count;
}

void store_rows_are_behind(struct store_rows *rows, int pass)
{
	if (!rows || !rows->aheads || pass == RH_UPDATE_MOMENTS)
		return;
	memset(rows->is_ahead, 0, (size_t)rows->rows);
	rows->aheads = 0;
}
