#include "modes/boxes/box_forecast.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "forecast/forecast.h"
#include "modes/boxes/box_data.h"
#include "modes/boxes/box_feed.h"
#include "modes/boxes/box_letters.h"
#include "modes/boxes/box_table.h"

/* Bytes of the messages of step `step`, which is one of the input's in turn: data, and results. */
static void step_bytes(const struct rh_forecast_input *input, int64_t step, int64_t *data, int64_t *results)
{
	int64_t at = 0, s = step % input->steps;
	for (int64_t before = 0; before < s; before++)
		at += input->count[before];
	*data = box_data_header_bytes(input->work.train_micro_batches);
	*results = (int64_t)sizeof(struct box_results) + input->count[s] * (int64_t)sizeof(double);
	for (int64_t m = at; m < at + input->count[s]; m++) {
		const struct rh_micro_shape shape = rh_forecast_micro(input, m);
		const struct rh_batch batch = {.tokens = shape.tokens, .documents = shape.documents, .trained = shape.head_rows};
		*data += box_batches_bytes(&batch, 1);
		*results += shape.head_rows * (int64_t)sizeof(float);
	}
}

/* ---- flushed steps ---- */

struct feed {
	struct box_feed feed;
	const struct rh_forecast_input *input;
};

static int64_t feed_bytes(void *context, int64_t step)
{
	const struct feed *own = context;
	int64_t data, results;
	step_bytes(own->input, step, &data, &results);
	return data;
}

static int feed_make(void *context, int64_t step, struct box_feed_step *out)
{
	out->bytes = feed_bytes(context, step);
	out->message = rh_alloc((size_t)out->bytes, 1);
	return out->message ? 0 : -ENOMEM;
}

int box_forecast_open(struct rh_session *session, const struct rh_forecast_input *input, void **out, int *drains)
{
	struct feed *own = *out = rh_alloc(1, sizeof *own);
	(void)drains;
	if (!own)
		return -ENOMEM;
	own->input = input;
	own->feed =
	        (struct box_feed){.box = &session->box, .steps = input->steps, .make = feed_make, .bytes_of = feed_bytes, .context = own};
	return box_feed_open(&own->feed);
}

int box_forecast_take_step(void *context, int step)
{
	struct feed *own = context;
	const char *message;
	int rc = box_feed_step(&own->feed, step, &message);
	if (!rc)
		box_feed_drop(&own->feed, step);
	return rc;
}

void box_forecast_close(void *context)
{
	struct feed *own = context;
	if (own)
		box_feed_free(&own->feed);
	rh_free(own);
}

int box_forecast_norm(struct rh_session *session)
{
	struct rh_box *box = &session->box;
	double squares = 0, norm = 1;
	int rc = box_table_exchange(session, 2);
	if (!rc)
		rc = rh_box_take(box->link_below, 0, &squares, sizeof squares);
	if (!rc)
		rc = rh_updater_add_squares(session->updater, &squares);
	if (!rc)
		rc = rh_box_give(box, box->link_above, 0, &squares, sizeof squares);
	if (!rc)
		rc = rh_box_pass_down(box, 1, &norm, sizeof norm);
	if (rc)
		return rc;
	rh_updater_give_norm(session->updater, norm);
	return box_table_settle(session);
}

/* ---- steps without a flush ---- */

struct stretch {
	struct box_letters letters;
	const struct rh_forecast_input *input;
	char *nothing; /* room for the largest message: virtual links move no bytes, those of paced devices do */
};

static int bytes_of(void *context, const struct rh_letter *letter, void **bytes, int64_t *size)
{
	struct stretch *stretch = context;
	int64_t data, results;
	step_bytes(stretch->input, letter->step, &data, &results);
	*bytes = stretch->nothing;
	*size = letter->kind == BOX_BATCHES ? data : letter->kind == BOX_SQUARES ? (int64_t)sizeof(struct box_squares) : results;
	return 1;
}

static int pass(void *context, enum box_message kind, int64_t step)
{
	(void)context, (void)kind, (void)step;
	return 0;
}

int box_forecast_open_stretch(struct rh_session *session, const struct rh_forecast_input *input, int64_t steps, void **own,
                              const struct rh_letters **letters)
{
	struct stretch *stretch = *own = rh_alloc(1, sizeof *stretch);
	if (!stretch)
		return -ENOMEM;
	int64_t most = sizeof(struct box_squares), data, results;
	for (int64_t step = 0; step < input->steps; step++) {
		step_bytes(input, step, &data, &results);
		most = rh_max(most, rh_max(data, results));
	}
	stretch->nothing = rh_alloc((size_t)most, 1);
	if (!stretch->nothing)
		return -ENOMEM;
	stretch->input = input;
	stretch->letters = (struct box_letters){
	        .box = &session->box, .ahead = box_ahead_of(session), .bytes_of = bytes_of, .come = pass, .gone = pass, .context = stretch};
	box_letters_begin(&stretch->letters, 0);
	stretch->letters.last = steps - 1;
	*letters = &stretch->letters.letters;
	return 0;
}

int box_forecast_may_begin(void *own, int64_t step)
{
	const struct stretch *stretch = own;
	return box_letters_may_begin(&stretch->letters, step);
}

void box_forecast_ended(void *own, int64_t step)
{
	struct stretch *stretch = own;
	stretch->letters.ended = step + 1;
}

void box_forecast_close_stretch(void *own)
{
	struct stretch *stretch = own;
	if (stretch)
		rh_free(stretch->nothing);
	rh_free(own);
}

void box_forecast_describe(const struct rh_session *session, struct rh_forecast *out)
{
	int b = rh_model_shared_block(session->model);
	out->table.wire_bytes = session->box.table_bytes;
	if (b < 0)
		return;
	const struct rh_block *block = &session->model->block[b];
	int stored = session->model->dtype != RH_F32; /* apart from the sums of both uses */
	out->table.weights_bytes = rh_block_bytes(block, session->model->dtype);
	out->table.gradient_bytes = block->elements * (2 * 4 + (stored ? 2 : 0));
	out->table.state_bytes = rh_store_bytes(block, 1, &session->plan.store) - out->table.weights_bytes - out->table.gradient_bytes;
}
