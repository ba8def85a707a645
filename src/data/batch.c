/* Rows laid end to end as a micro-batch, and the most that any batch of an epoch can hold: memory is planned by it. */
#include "core/alloc.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

static int64_t row_first(const struct rh_dataset *dataset, int64_t row)
{
	return dataset->document_start[dataset->row_document[row]];
}

static int descending(const void *left, const void *right)
{
	int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
	return (a < b) - (a > b);
}

/* The sum of the `batch` largest of `size` (rows); sorts it. */
static int64_t largest_sum(int64_t *size, int64_t rows, int64_t batch)
{
	int64_t sum = 0;
	qsort(size, (size_t)rows, sizeof *size, descending);
	for (int64_t i = 0; i < batch; i++)
		sum += size[i];
	return sum;
}

int rh_batch_check_tokens(int64_t tokens)
{
	if (tokens <= INT32_MAX)
		return 0;
	return rh_fail(-EINVAL,
	               "a micro-batch of %lld tokens is more than 2^31 - 1 can count; lower per_device_train_batch_size or max_length",
	               (long long)tokens);
}

int rh_dataset_limits(const struct rh_dataset *dataset, int64_t batch, struct rh_batch_limits *out)
{
	RH_ASSERT(batch > 0);
	int64_t rows = dataset->rows;
	if (batch > rows)
		batch = rows;
	int64_t *size = rh_alloc((size_t)rows, sizeof *size);
	if (!size)
		return -ENOMEM;
	for (int64_t row = 0; row < rows; row++)
		size[row] = row_first(dataset, row + 1) - row_first(dataset, row);
	out->tokens = largest_sum(size, rows, batch);
	for (int64_t row = 0; row < rows; row++)
		size[row] = dataset->row_document[row + 1] - dataset->row_document[row];
	out->documents = largest_sum(size, rows, batch);
	for (int64_t row = 0; row < rows; row++) {
		size[row] = 0;
		for (int64_t at = row_first(dataset, row); at < row_first(dataset, row + 1); at++)
			size[row] += dataset->trained[at];
	}
	out->trained = largest_sum(size, rows, batch);
	out->longest = 0;
	for (int64_t i = 0; i < dataset->documents; i++) {
		int64_t length = dataset->document_start[i + 1] - dataset->document_start[i];
		out->longest = length > out->longest ? length : out->longest;
	}
	rh_free(size);
	return rh_batch_check_tokens(out->tokens);
}

int rh_batch_reserve(struct rh_batch *batch, const struct rh_batch_limits *limits)
{
	size_t tokens = (size_t)limits->tokens, documents = (size_t)limits->documents, trained = (size_t)limits->trained;
	int rc = rh_batch_check_tokens(limits->tokens);
	if (!rc)
		rc = rh_grow(&batch->ids, &batch->capacity[0], tokens, sizeof *batch->ids);
	if (!rc)
		rc = rh_grow(&batch->position, &batch->capacity[1], tokens, sizeof *batch->position);
	if (!rc)
		rc = rh_grow(&batch->start, &batch->capacity[2], documents + 1, sizeof *batch->start);
	if (!rc)
		rc = rh_grow(&batch->head_row, &batch->capacity[3], trained, sizeof *batch->head_row);
	if (!rc)
		rc = rh_grow(&batch->target, &batch->capacity[4], trained, sizeof *batch->target);
	return rc;
}

/* Lays the tokens [first, end) of the dataset, one document, at the end of the batch. */
static void add_document(struct rh_batch *batch, const struct rh_dataset *dataset, int64_t first, int64_t end)
{
	int64_t length = end - first, base = batch->tokens;
	if (length > batch->longest)
		batch->longest = length;
	memcpy(batch->ids + base, dataset->ids + first, (size_t)length * sizeof *batch->ids);
	for (int64_t i = 0; i < length; i++) {
		batch->position[base + i] = (int32_t)i;
		if (!dataset->trained[first + i])
			continue;
		RH_ASSERT(i > 0);
		batch->head_row[batch->trained] = (int32_t)(base + i - 1);
		batch->target[batch->trained++] = dataset->ids[first + i];
	}
	batch->tokens += length;
	batch->start[++batch->documents] = (int32_t)batch->tokens;
}

int rh_batch_make(const struct rh_dataset *dataset, const int64_t *rows, int64_t count, struct rh_batch *batch)
{
	struct rh_batch_limits need = {0};
	for (int64_t i = 0; i < count; i++) {
		RH_ASSERT(rows[i] >= 0 && rows[i] < dataset->rows);
		int64_t first = row_first(dataset, rows[i]), end = row_first(dataset, rows[i] + 1);
		need.tokens += end - first;
		need.documents += dataset->row_document[rows[i] + 1] - dataset->row_document[rows[i]];
		for (int64_t at = first; at < end; at++)
			need.trained += dataset->trained[at];
	}
	int rc = rh_batch_reserve(batch, &need);
	if (rc)
		return rc;
	batch->tokens = batch->documents = batch->trained = batch->longest = 0;
	batch->start[0] = 0;
	for (int64_t i = 0; i < count; i++)
		for (int64_t d = dataset->row_document[rows[i]]; d < dataset->row_document[rows[i] + 1]; d++)
			add_document(batch, dataset, dataset->document_start[d], dataset->document_start[d + 1]);
	return 0;
}

int rh_batch_has_room(const struct rh_batch *batch)
{
	const int64_t items[] = {batch->tokens, batch->tokens, batch->documents + 1, batch->trained, batch->trained};
	int has = batch->tokens > 0 && batch->documents > 0 && batch->longest > 0 && batch->longest <= batch->tokens;
	for (int i = 0; i < 5; i++)
		has &= items[i] >= 0 && (uint64_t)items[i] <= batch->capacity[i];
	return has;
}

/* All of them in [least, end). */
static int are_within(const int32_t *item, int64_t items, int64_t least, int64_t end)
{
	int are = 1;
	for (int64_t i = 0; i < items; i++)
		are &= item[i] >= least && item[i] < end;
	return are;
}

int rh_batch_is_sound(const struct rh_batch *batch, int64_t vocabulary)
{
	int is = batch->start[0] == 0 && batch->start[batch->documents] == batch->tokens;
	for (int64_t d = 0; d < batch->documents; d++) {
		int64_t length = (int64_t)batch->start[d + 1] - batch->start[d];
		is &= length > 0 && length <= batch->longest;
	}
	return is && are_within(batch->ids, batch->tokens, 0, vocabulary) &&
	       are_within(batch->position, batch->tokens, 0, batch->longest) &&
	       are_within(batch->head_row, batch->trained, 0, batch->tokens) && are_within(batch->target, batch->trained, 0, vocabulary);
}

void rh_batch_free(struct rh_batch *batch)
{
	rh_free(batch->ids);
	rh_free(batch->position);
	rh_free(batch->start);
	rh_free(batch->head_row);
	rh_free(batch->target);
	*batch = (struct rh_batch){0};
}
