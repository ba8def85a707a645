/* Rows laid end to end as a micro-batch, and the most that any batch of an epoch can hold: memory is planned by it. */
#include "core/alloc.h"
#include "core/philox.h"
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

static int64_t row_first(const struct rh_dataset *dataset, int64_t row)
{
	return dataset->document_start[dataset->row_document[row]];
}

int64_t rh_dataset_row_targets(const struct rh_dataset *dataset, int64_t row)
{
	int64_t targets = 0;
	for (int64_t at = row_first(dataset, row); at < row_first(dataset, row + 1); at++)
		targets += dataset->trained[at] == RH_MARK_TRAINED || dataset->trained[at] == RH_MARK_PROMPT;
	return targets;
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
	out->pixels = 0;
	for (int64_t row = 0; row < rows; row++)
		size[row] = dataset->row_document[row + 1] - dataset->row_document[row];
	out->documents = largest_sum(size, rows, batch);
	out->judged = dataset->judged ? out->documents : 0;
	for (int64_t row = 0; row < rows; row++)
		size[row] = rh_dataset_row_targets(dataset, row);
	out->trained = largest_sum(size, rows, batch);
	out->longest = 0;
	for (int64_t i = 0; i < dataset->documents; i++) {
		int64_t length = dataset->document_start[i + 1] - dataset->document_start[i] - rh_task_classifies(dataset->objective.task);
		out->longest = length > out->longest ? length : out->longest;
	}
	if (dataset->images) {
		out->longest = rh_images_tokens(dataset->images);
		out->tokens = out->documents * out->longest;
		out->pixels = rh_images_pixels(dataset->images);
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
	if (!rc)
		rc = rh_grow(&batch->type, &batch->capacity[5], tokens, sizeof *batch->type);
	if (!rc)
		rc = rh_grow(&batch->sample, &batch->capacity[7], documents, sizeof *batch->sample);
	if (!rc && limits->judged)
		rc = rh_grow(&batch->span, &batch->capacity[8], documents * RH_SPANS, sizeof *batch->span);
	if (!rc && limits->judged)
		rc = rh_grow(&batch->reference, &batch->capacity[9], documents, sizeof *batch->reference);
	batch->is_judged = limits->judged > 0;
	if (!rc && limits->pixels)
		rc = rh_grow(&batch->pixel, &batch->capacity[6], tokens * (size_t)limits->pixels, sizeof *batch->pixel);
	return rc;
}

static void add_target(struct rh_batch *batch, int64_t row, int32_t target)
{
	batch->head_row[batch->trained] = (int32_t)row;
	batch->target[batch->trained++] = target;
}

static void next_tokens(struct rh_batch *batch, const struct rh_dataset *dataset, int64_t first, int64_t length)
{
	for (int64_t i = 0; i < length; i++) {
		if (dataset->trained[first + i] != RH_MARK_TRAINED && dataset->trained[first + i] != RH_MARK_PROMPT)
			continue;
		RH_ASSERT(i > 0);
		add_target(batch, batch->tokens + i - 1, dataset->ids[first + i]);
	}
}

static struct rh_philox_block drawn(const struct rh_batch *batch, const struct rh_dataset *dataset, int64_t at)
{
	return rh_philox(dataset->objective.seed, (uint32_t)at, (uint32_t)(at >> 32), batch->draw, RH_PHILOX_HIDE);
}

/* A token to be found: 8 in 10 are hidden, 1 in 10 is any other token, 1 in 10 stays. */
static void hide(struct rh_batch *batch, const struct rh_dataset *dataset, int64_t first, int64_t i, struct rh_philox_block bits)
{
	float way = rh_philox_unit(bits.word[1]);
	add_target(batch, batch->tokens + i, dataset->ids[first + i]);
	if (way < 0.8f)
		batch->ids[batch->tokens + i] = dataset->special.mask;
	else if (way < 0.9f)
		batch->ids[batch->tokens + i] = (int32_t)((uint64_t)bits.word[2] * (uint64_t)dataset->vocabulary >> 32);
}

/* Each token that may be is hidden by lot, a document's own; one of a document of which none would be. */
static void hide_tokens(struct rh_batch *batch, const struct rh_dataset *dataset, int64_t first, int64_t length)
{
	int64_t before = batch->trained, candidates = 0;
	for (int64_t i = 0; i < length; i++) {
		if (dataset->trained[first + i] != RH_MARK_TRAINED)
			continue;
		struct rh_philox_block bits = drawn(batch, dataset, first + i);
		candidates++;
		if ((double)rh_philox_unit(bits.word[0]) < dataset->objective.hidden_share)
			hide(batch, dataset, first, i, bits);
	}
	if (batch->trained > before || !candidates)
		return;
	struct rh_philox_block bits = drawn(batch, dataset, first);
	int64_t wanted = (int64_t)((uint64_t)bits.word[3] * (uint64_t)candidates >> 32);
	for (int64_t i = 0; i < length; i++)
		if (dataset->trained[first + i] == RH_MARK_TRAINED && wanted-- == 0)
			hide(batch, dataset, first, i, bits);
}

/* Lays the tokens [first, end) of the dataset, one document, at the end of the batch. */
static void add_document(struct rh_batch *batch, const struct rh_dataset *dataset, int64_t first, int64_t end)
{
	int64_t length = end - first - rh_task_classifies(dataset->objective.task), base = batch->tokens; /* without the label */
	if (length > batch->longest)
		batch->longest = length;
	memcpy(batch->ids + base, dataset->ids + first, (size_t)length * sizeof *batch->ids);
	for (int64_t i = 0; i < length; i++) {
		batch->position[base + i] = (int32_t)i;
		batch->type[base + i] = dataset->trained[first + i] == RH_MARK_SECOND;
	}
	switch (dataset->objective.task) {
	case RH_TASK_UNSET:
	case RH_TASKS:
	case RH_TASK_CAUSAL_LM:
		next_tokens(batch, dataset, first, length);
		break;
	case RH_TASK_MASKED_LM:
		hide_tokens(batch, dataset, first, length);
		break;
	case RH_TASK_SEQUENCE_CLASSIFICATION:
	case RH_TASK_IMAGE_CLASSIFICATION: /* add_image */
		add_target(batch, base, dataset->ids[first + length]);
		break;
	}
	batch->tokens += length;
	batch->start[++batch->documents] = (int32_t)batch->tokens;
}

/* The class token, then the patches. */
static void add_image(struct rh_batch *batch, const struct rh_dataset *dataset, int64_t first)
{
	int64_t tokens = rh_images_tokens(dataset->images), base = batch->tokens;
	for (int64_t i = 0; i < tokens; i++) {
		batch->ids[base + i] = i > 0;
		batch->position[base + i] = (int32_t)i;
		batch->type[base + i] = 0;
	}
	add_target(batch, base, dataset->ids[first + 1]);
	batch->longest = tokens;
	batch->tokens += tokens;
	batch->start[++batch->documents] = (int32_t)batch->tokens;
}

/* Before document d is added. Of its prompt all targets come before its answer's. */
static void add_span(struct rh_batch *batch, const struct rh_dataset *dataset, int64_t d)
{
	const struct rh_judged_document *judged = &dataset->judged[d];
	int64_t first = dataset->document_start[d], end = dataset->document_start[d + 1], before = 0;
	for (int64_t at = first; at < first + judged->prompt; at++)
		before += dataset->trained[at] == RH_MARK_PROMPT;
	int32_t *span = batch->span + batch->documents * RH_SPANS;
	span[RH_SPAN_FIRST] = (int32_t)batch->trained;
	span[RH_SPAN_ANSWER] = (int32_t)(batch->trained + before);
	span[RH_SPAN_TOKENS] = (int32_t)(end - first - judged->prompt);
	span[RH_SPAN_ROLE] = (int32_t)judged->role;
	batch->reference[batch->documents] = judged->reference;
}

static int read_pixels(const struct rh_dataset *dataset, const int64_t *rows, int64_t count, struct rh_batch *batch)
{
	int64_t each = rh_images_tokens(dataset->images) * batch->pixels;
	int rc = 0;
	for (int64_t i = 0; !rc && i < count; i++) /* each row is one image */
		rc = rh_images_read(dataset->images, dataset->ids[row_first(dataset, rows[i])], batch->pixel + i * each);
	return rc;
}

int rh_batch_make(const struct rh_dataset *dataset, const int64_t *rows, int64_t count, struct rh_batch *batch)
{
	int rc = rh_batch_outline(dataset, rows, count, batch);
	if (rc || !dataset->images)
		return rc;
	struct rh_batch_limits need = {
	        .tokens = batch->tokens, .documents = batch->documents, .trained = batch->trained, .pixels = batch->pixels};
	rc = rh_batch_reserve(batch, &need);
	return rc ? rc : read_pixels(dataset, rows, count, batch);
}

int rh_batch_outline(const struct rh_dataset *dataset, const int64_t *rows, int64_t count, struct rh_batch *batch)
{
	struct rh_batch_limits need = {0};
	for (int64_t i = 0; i < count; i++) {
		RH_ASSERT(rows[i] >= 0 && rows[i] < dataset->rows);
		need.tokens += row_first(dataset, rows[i] + 1) - row_first(dataset, rows[i]);
		need.documents += dataset->row_document[rows[i] + 1] - dataset->row_document[rows[i]];
		need.trained += rh_dataset_row_targets(dataset, rows[i]);
	}
	if (dataset->images)
		need.tokens = need.documents * rh_images_tokens(dataset->images);
	need.judged = dataset->judged ? need.documents : 0;
	int rc = rh_batch_reserve(batch, &need);
	if (rc)
		return rc;
	batch->tokens = batch->documents = batch->trained = batch->longest = 0;
	batch->is_typed = dataset->objective.is_typed;
	batch->pixels = dataset->images ? rh_images_pixels(dataset->images) : 0;
	batch->start[0] = 0;
	for (int64_t i = 0; i < count; i++)
		for (int64_t d = dataset->row_document[rows[i]]; d < dataset->row_document[rows[i] + 1]; d++) {
			batch->sample[batch->documents] = (int32_t)rows[i];
			if (dataset->judged)
				add_span(batch, dataset, d);
			if (dataset->images)
				add_image(batch, dataset, dataset->document_start[d]);
			else
				add_document(batch, dataset, dataset->document_start[d], dataset->document_start[d + 1]);
		}
	return 0;
}

int rh_batch_has_room(const struct rh_batch *batch)
{
	const int64_t items[] = {batch->tokens, batch->tokens, batch->documents + 1, batch->trained, batch->trained};
	int has = batch->tokens > 0 && batch->documents > 0 && batch->longest > 0 && batch->longest <= batch->tokens;
	for (int i = 0; i < 5; i++)
		has &= items[i] >= 0 && (uint64_t)items[i] <= batch->capacity[i];
	if (batch->is_judged)
		has &= (uint64_t)batch->documents * RH_SPANS <= batch->capacity[8] && (uint64_t)batch->documents <= batch->capacity[9];
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

/* Head rows of documents follow one another, and all of an answer's come last. */
static int spans_are_sound(const struct rh_batch *batch)
{
	int64_t end = batch->trained;
	int are = 1;
	for (int64_t d = batch->documents - 1; d >= 0; d--) {
		const int32_t *span = batch->span + d * RH_SPANS;
		are &= span[RH_SPAN_FIRST] >= 0 && span[RH_SPAN_ANSWER] >= span[RH_SPAN_FIRST] && span[RH_SPAN_ANSWER] <= end &&
		       span[RH_SPAN_TOKENS] > 0 && span[RH_SPAN_ROLE] >= RH_ROLE_REJECTED && span[RH_SPAN_ROLE] <= RH_ROLE_MISMATCHED;
		end = span[RH_SPAN_FIRST];
	}
	return are && end == 0;
}

int rh_batch_is_sound(const struct rh_batch *batch, int64_t vocabulary, int64_t outputs)
{
	int is = batch->start[0] == 0 && batch->start[batch->documents] == batch->tokens;
	for (int64_t d = 0; d < batch->documents; d++) {
		int64_t length = (int64_t)batch->start[d + 1] - batch->start[d];
		is &= length > 0 && length <= batch->longest;
	}
	return is && (!batch->is_judged || spans_are_sound(batch)) && are_within(batch->ids, batch->tokens, 0, vocabulary) &&
	       are_within(batch->position, batch->tokens, 0, batch->longest) &&
	       are_within(batch->head_row, batch->trained, 0, batch->tokens) && are_within(batch->target, batch->trained, 0, outputs);
}

void rh_batch_free(struct rh_batch *batch)
{
	rh_free(batch->ids);
	rh_free(batch->position);
	rh_free(batch->start);
	rh_free(batch->head_row);
	rh_free(batch->target);
	rh_free(batch->type);
	rh_free(batch->pixel);
	rh_free(batch->sample);
	rh_free(batch->span);
	rh_free(batch->reference);
	*batch = (struct rh_batch){0};
}
