#include "modes/boxes/box_forecast.h"

#include "core/alloc.h"
#include "forecast/forecast.h"
#include "modes/boxes/box_data.h"
#include "modes/boxes/box_flush.h"
#include "modes/boxes/box_letters.h"

static int64_t first_micro(const struct rh_forecast_input *input, int64_t step)
{
	int64_t first = 0;
	for (int64_t before = 0; before < step; before++)
		first += input->count[before];
	return first;
}

/* Bytes of step `step`, which is one of the input's in turn: data, and losses. */
static void step_bytes(const struct rh_forecast_input *input, int64_t step, int64_t *data, int64_t *losses)
{
	int64_t s = step % input->steps, first = first_micro(input, s);
	*data = box_data_header_bytes(input->work.train_micro_batches);
	*losses = input->count[s] * (int64_t)sizeof(double);
	for (int64_t m = first; m < first + input->count[s]; m++) {
		const struct rh_micro_shape shape = rh_forecast_micro(input, m);
		const struct rh_batch batch = {.tokens = shape.tokens, .documents = shape.documents, .trained = shape.head_rows};
		*data += box_batches_bytes(&batch, 1);
		*losses += shape.head_rows * (int64_t)sizeof(float);
	}
}

/* ---- flushed steps ---- */

struct flushed {
	struct box_flush flush;
	const struct rh_forecast_input *input;
};

static int64_t feed_bytes(void *context, int64_t step)
{
	const struct flushed *own = context;
	int64_t data, losses;
	step_bytes(own->input, step, &data, &losses);
	return data;
}

static int feed_make(void *context, int64_t step, struct box_feed_step *out)
{
	out->bytes = feed_bytes(context, step);
	out->message = rh_alloc((size_t)out->bytes, 1);
	return out->message ? 0 : -ENOMEM;
}

static int64_t next_sizes(void *context, int64_t step, const char *message, int64_t *tokens)
{
	const struct flushed *own = context;
	int64_t first = first_micro(own->input, step), count = own->input->count[step];
	(void)message;
	for (int64_t m = 0; m < count; m++)
		tokens[m] = rh_forecast_micro(own->input, first + m).tokens;
	return count;
}

int box_forecast_open(struct rh_session *session, const struct rh_forecast_input *input, void **out, int *drains)
{
	struct flushed *own = *out = rh_alloc(1, sizeof *own);
	(void)drains;
	if (!own)
		return -ENOMEM;
	own->input = input;
	own->flush.session = session;
	own->flush.feed =
	        (struct box_feed){.box = &session->box, .steps = input->steps, .make = feed_make, .bytes_of = feed_bytes, .context = own};
	return box_flush_open(&own->flush, input->work.train_micro_batches);
}

int box_forecast_take_step(void *context, int step)
{
	struct flushed *own = context;
	const char *message;
	int64_t data, losses;
	int rc = box_feed_step(&own->flush.feed, step, &message);
	if (rc)
		return rc;
	box_feed_drop(&own->flush.feed, step);
	step_bytes(own->input, step, &data, &losses);
	return box_flush_begin(&own->flush, step, losses);
}

int box_forecast_share_norm(void *context, int step)
{
	struct flushed *own = context;
	struct box_flush_end end = {.continues = step + 1 < own->input->steps, .next = next_sizes, .context = own};
	return box_flush_end(&own->flush, step, &end);
}

void box_forecast_close(void *context)
{
	struct flushed *own = context;
	if (own)
		box_flush_close(&own->flush);
	rh_free(own);
}

/* ---- steps without a flush ---- */

struct stretch {
	struct box_letters letters;
	const struct rh_forecast_input *input;
};

static int bytes_of(void *context, const struct rh_letter *letter, void **bytes, int64_t *size)
{
	struct stretch *stretch = context;
	int64_t data, losses;
	step_bytes(stretch->input, letter->step, &data, &losses);
	*bytes = NULL; /* virtual links move none */
	*size = letter->kind == BOX_BATCHES   ? data
	        : letter->kind == BOX_SQUARES ? (int64_t)sizeof(struct box_squares)
	                                      : (int64_t)sizeof(struct box_results) + losses;
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
