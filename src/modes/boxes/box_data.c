#include "modes/boxes/box_data.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "modes/boxes/box_step.h"

#include <string.h>

/* A micro-batch's arrays of 32-bit numbers, one after the other. */
enum { ARRAYS = 8 };
struct array {
	int32_t *item;
	int64_t items;
};

static struct array array_of(const struct rh_batch *batch, int which)
{
	int64_t judged = batch->is_judged ? batch->documents : 0;
	const struct array all[ARRAYS] = {
	        {batch->ids, batch->tokens},          {batch->position, batch->tokens},
	        {batch->start, batch->documents + 1}, {batch->head_row, batch->trained},
	        {batch->target, batch->trained},      {batch->sample, batch->names_samples ? batch->documents : 0},
	        {batch->span, judged * RH_SPANS},     {(int32_t *)(void *)batch->reference, judged}};
	return all[which];
}

int64_t box_batches_bytes(const struct rh_batch *batch, int64_t count)
{
	int64_t bytes = 0;
	for (int64_t m = 0; m < count; m++)
		for (int i = 0; i < ARRAYS; i++)
			bytes += array_of(&batch[m], i).items * (int64_t)sizeof(int32_t);
	return bytes;
}

void box_batches_pack(const struct rh_batch *batch, int64_t count, char *message, int is_out)
{
	for (int64_t m = 0; m < count; m++)
		for (int i = 0; i < ARRAYS; i++) {
			struct array array = array_of(&batch[m], i);
			size_t bytes = (size_t)array.items * sizeof *array.item;
			if (is_out)
				memcpy(message, array.item, bytes);
			else
				memcpy(array.item, message, bytes);
			message += bytes;
		}
}

/* Behind the size of later data. */
static int64_t *shapes_of(const char *message)
{
	return (int64_t *)(void *)(uintptr_t)message + 1;
}

/* The numbers of each micro-batch: tokens, documents, longest, trained. */
enum { SHAPE = 4 };

int box_data_reserve(const struct rh_mode_run *run, struct box_data **out)
{
	int64_t count = run->flights->count;
	struct box_data *data = *out = rh_alloc((size_t)count, sizeof *data);
	for (int64_t i = 0; data && i < count; i++)
		if (!(data[i].shapes = rh_alloc((size_t)box_shapes_items(run), sizeof(int64_t))))
			return -ENOMEM;
	return data ? 0 : -ENOMEM;
}

void box_data_free(const struct rh_mode_run *run, struct box_data *data)
{
	for (int64_t i = 0; data && i < run->flights->count; i++) {
		rh_free(data[i].shapes);
		rh_free(data[i].batches);
	}
	rh_free(data);
}

int64_t box_shapes_items(const struct rh_mode_run *run)
{
	return 1 + SHAPE * run->flights->micro_batches;
}

int64_t box_data_header_bytes(int64_t micro_batches)
{
	return (2 + SHAPE * micro_batches) * (int64_t)sizeof(int64_t);
}

int64_t box_shapes_tokens(const int64_t *shapes, int64_t m)
{
	return shapes[1 + SHAPE * m];
}

int64_t box_shapes_targets(const int64_t *shapes)
{
	int64_t targets = 0;
	for (int64_t m = 0; m < shapes[0]; m++)
		targets += shapes[1 + SHAPE * m + 3];
	return targets;
}

int64_t box_shapes_bytes(const int64_t *shapes, int names_samples)
{
	int64_t bytes = 0;
	for (int64_t m = 0; m < shapes[0]; m++) {
		const int64_t *shape = shapes + 1 + SHAPE * m;
		const struct rh_batch batch = {.tokens = shape[0],
		                               .documents = shape[1],
		                               .longest = shape[2],
		                               .trained = shape[3],
		                               .names_samples = names_samples};
		bytes += box_batches_bytes(&batch, 1);
	}
	return bytes;
}

static int check_count(const int64_t *shapes, int64_t most)
{
	if (shapes[0] >= 0 && shapes[0] <= most)
		return 0;
	return rh_fail(-EPROTO, "box 1 speaks of %lld micro-batches at once, of at most %lld", (long long)shapes[0], (long long)most);
}

static int say_larger(void)
{
	return rh_fail(-EPROTO, "box 1 speaks of a micro-batch that is larger than it said");
}

int box_shapes_set(struct rh_batch *batches, int64_t most, const int64_t *shapes)
{
	int rc = check_count(shapes, most);
	if (rc)
		return rc;
	for (int64_t m = 0; m < shapes[0]; m++) {
		struct rh_batch *batch = &batches[m];
		const int64_t *shape = shapes + 1 + SHAPE * m;
		batch->tokens = shape[0];
		batch->documents = shape[1];
		batch->longest = shape[2];
		batch->trained = shape[3];
		if (!rh_batch_has_room(batch))
			return say_larger();
	}
	return 0;
}

void box_shapes_of(const struct rh_batch *batches, int64_t count, int64_t *shapes)
{
	shapes[0] = count;
	for (int64_t m = 0; m < count; m++) {
		const struct rh_batch *batch = &batches[m];
		const int64_t shape[SHAPE] = {batch->tokens, batch->documents, batch->longest, batch->trained};
		memcpy(shapes + 1 + SHAPE * m, shape, sizeof shape);
	}
}

/* Box 1's numbers are those of a micro-batch of this model. */
static int check_batch(const struct rh_session *session, const struct rh_batch *batch, int64_t m)
{
	const struct rh_model_config *model = session->model_config;
	int64_t answers = session->config->preference.answers;
	if (rh_batch_is_sound(batch, model->vocab_size, rh_model_outputs(model)) && (!answers || batch->documents % answers == 0))
		return 0;
	return rh_fail(-EPROTO, "micro-batch %lld from box 1 is not one of this model's", (long long)m);
}

int box_share_rows(struct rh_session *session, int64_t row, struct rh_batch *batch, int64_t count)
{
	struct rh_box *box = &session->box;
	int64_t *shapes = rh_alloc((size_t)(1 + SHAPE * count), sizeof *shapes), bytes = 0;
	char *message = NULL;
	int is_first = !box->number, rc = shapes ? 0 : -ENOMEM;
	if (!rc && is_first)
		box_shapes_of(batch, count, shapes);
	if (!rc)
		rc = rh_box_pass_up(box, box_tag_of(row, BOX_EVAL_SHAPES), shapes, (1 + SHAPE * count) * (int64_t)sizeof *shapes);
	if (!rc && !is_first)
		rc = box_shapes_set(batch, count, shapes);
	if (rc)
		goto out;
	bytes = box_batches_bytes(batch, count);
	message = rh_alloc((size_t)rh_max(bytes, 1), 1);
	rc = message ? 0 : -ENOMEM;
	if (!rc && is_first)
		box_batches_pack(batch, count, message, 1);
	if (!rc)
		rc = rh_box_pass_up(box, box_tag_of(row, BOX_EVAL_BATCHES), message, bytes);
	if (!rc && !is_first)
		box_batches_pack(batch, count, message, 0);
	for (int64_t m = 0; !rc && !is_first && m < count; m++)
		rc = check_batch(session, &batch[m], m);
out:
	rh_free(message);
	rh_free(shapes);
	return rc;
}

int box_data_make(const struct rh_mode_run *run, int64_t step, char **message, int64_t *bytes)
{
	const struct rh_batch *batch = run->flights->batch;
	int64_t count = rh_flights_make(run->flights, run->data, step), header = box_data_header_bytes(run->flights->micro_batches);
	if (count < 0)
		return (int)count;
	*bytes = header + box_batches_bytes(batch, count);
	*message = rh_alloc((size_t)*bytes, 1);
	if (!*message)
		return -ENOMEM;
	box_shapes_of(batch, count, shapes_of(*message));
	box_batches_pack(batch, count, *message + header, 1);
	return 0;
}

int64_t box_data_take(struct rh_mode_run *run, int64_t step, const char *message)
{
	const struct box_data data = {.shapes = shapes_of(message),
	                              .batches = (char *)(uintptr_t)message + box_data_header_bytes(run->flights->micro_batches)};
	return box_take_data(run, step, &data);
}

int64_t box_data_count(const char *message)
{
	return shapes_of(message)[0];
}

int64_t box_data_sizes(const struct rh_mode_run *run, const char *message, int64_t *tokens)
{
	const int64_t *shapes = shapes_of(message);
	int rc = check_count(shapes, run->flights->micro_batches);
	for (int64_t m = 0; !rc && m < shapes[0]; m++) {
		tokens[m] = box_shapes_tokens(shapes, m);
		rc = tokens[m] < 0 || tokens[m] > run->work->train.tokens ? say_larger() : 0;
	}
	return rc ? rc : shapes[0];
}

int64_t box_take_data(struct rh_mode_run *run, int64_t step, const struct box_data *data)
{
	int64_t count = data->shapes[0];
	int rc = box_shapes_set(run->flights->batch, run->flights->micro_batches, data->shapes);
	if (rc)
		return rc;
	box_batches_pack(run->flights->batch, count, data->batches, 0);
	for (int64_t m = 0; m < count; m++) {
		rc = check_batch(run->session, &run->flights->batch[m], m);
		if (rc)
			return rc;
	}
	rc = rh_flights_use(run->flights, run->session, step, count);
	return rc ? rc : count;
}
