#include "modes/fluidpipe/fluidpipe_forecast.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "forecast/forecast_boxes.h"
#include "link/ahead.h"
#include "modes/boxes/box_step.h"
#include "modes/fluidpipe/fluidpipe.h"
#include "modes/fluidpipe/fluidpipe_logits.h"
#include "modes/fluidpipe/fluidpipe_stream.h"

#include <math.h>

enum { REPORT_BYTES = sizeof(struct fluidpipe_step_report) };

struct talk {
	struct rh_session *session;
	const struct rh_forecast_input *input;
	struct rh_link *below; /* NULL: this is not box 2 */
	int64_t first;         /* box 2: number of the first step's first message in the link */
	int64_t rows;          /* of the logits that go down behind the steps */
	char *message;         /* as long as the longest of these messages */
};

static int64_t targets_of(const struct rh_forecast_input *input, int s)
{
	int64_t at = 0, targets = 0;
	for (int before = 0; before < s; before++)
		at += input->count[before];
	for (int64_t m = 0; m < input->count[s]; m++)
		targets += rh_forecast_micro(input, at + m).head_rows;
	return targets;
}

/* An epoch's, where it is known; else a step's. */
static int64_t rows_behind(const struct rh_session *session, const struct rh_forecast_input *input)
{
	int knows_epoch = input->run_steps > 0 && session->config->max_steps <= 0 && input->targets > 0;
	return knows_epoch && !fluidpipe_streams(session->config) ? input->targets : targets_of(input, input->steps - 1);
}

static int64_t piece_bytes(const struct rh_session *session, int64_t rows)
{
	int64_t all = fluidpipe_streams(session->config) ? rows : fluidpipe_logits_piece(session, rows);
	return REPORT_BYTES + all * fluidpipe_logits_row_bytes(session);
}

void fluidpipe_forecast_close(void *own)
{
	struct talk *talk = own;
	if (talk)
		rh_free(talk->message);
	rh_free(talk);
}

/* Activations of this step and the next ones, and each step's logits behind them, as many as there is room for. *end: the number of this
 * step's last message. */
static int expect_more(struct talk *talk, int s, int64_t *end)
{
	const struct rh_forecast_input *input = talk->input;
	const struct rh_session *session = talk->session;
	int64_t messages = 0, micros = 0;
	int rc = 0;
	int64_t last = rh_min(s + rh_fluidpipe_steps_ahead(session->config), input->steps - 1);
	for (int step = 0; step <= last; micros += input->count[step++]) {
		int64_t logits = fluidpipe_logits_bytes(session, targets_of(input, step)), before = messages;
		messages += input->count[step] + (logits > 0);
		for (int64_t i; !rc && (i = rh_ahead_expected(talk->below) - talk->first - before) < messages - before;) {
			if (i == input->count[step]) {
				rc = rh_ahead_expect_apart(talk->below, box_tag_of(step, BOX_LOGITS), talk->message, logits);
				continue;
			}
			int64_t bytes = rh_fluidpipe_activation_bytes(session->model, rh_forecast_micro(input, micros + i).tokens);
			rc = rh_ahead_expect(talk->below, rh_wire_tag(RH_BOUNDARY_ACTIVATION, step, i), bytes);
		}
		*end = step == s ? talk->first + messages : *end;
	}
	return rc == -ENOBUFS ? 0 : rc;
}

/* Box 2 sends, box 1 receives. */
static int pass(struct talk *talk, int64_t step, enum box_message message, int64_t bytes)
{
	struct rh_box *box = &talk->session->box;
	uint64_t tag = box_tag_of(step, message);
	return talk->below ? rh_box_give(box, talk->below, tag, talk->message, bytes)
	                   : rh_box_take(box->link_above, tag, talk->message, bytes);
}

int fluidpipe_forecast_open(struct rh_session *session, const struct rh_forecast_input *input, void **own, int *drains)
{
	struct talk *talk = *own = rh_alloc(1, sizeof *talk);
	if (!talk)
		return -ENOMEM;
	*talk = (struct talk){.session = session, .input = input, .below = session->box.link_below};
	talk->first = talk->below ? rh_ahead_expected(talk->below) : 0;
	talk->rows = rh_config_distils(session->config, 0) ? rows_behind(session, input) : 0;
	*drains = talk->rows > 0;
	int64_t most = piece_bytes(session, talk->rows);
	for (int s = 0; s < input->steps; s++)
		most = rh_max(most, fluidpipe_logits_bytes(session, targets_of(input, s)));
	talk->message = rh_alloc((size_t)most, 1);
	if (!talk->message)
		return -ENOMEM;
	int64_t end;
	int rc = talk->below ? expect_more(talk, 0, &end) : 0;
	return rc ? rc : pass(talk, 0, BOX_RUN, 1);
}

int fluidpipe_forecast_take_step(void *own, int step)
{
	struct talk *talk = own;
	int64_t end = 0;
	if (!talk->below)
		return 0;
	int rc = expect_more(talk, step, &end);
	return rc || !fluidpipe_logits_bytes(talk->session, 1) ? rc : rh_ahead_await(talk->below, end);
}

int fluidpipe_forecast_finish_step(void *own, int step)
{
	struct talk *talk = own;
	struct rh_box *box = &talk->session->box;
	if (talk->below)
		return 0;
	int64_t bytes = fluidpipe_logits_bytes(talk->session, targets_of(talk->input, step));
	return rh_box_give(box, box->link_above, box_tag_of(step, BOX_LOGITS), talk->message, bytes);
}

int fluidpipe_forecast_end(void *own)
{
	struct talk *talk = own;
	int64_t each = fluidpipe_logits_row_bytes(talk->session);
	if (!talk->rows)
		return 0;
	if (fluidpipe_streams(talk->session->config)) /* it was announced with the step, and the report behind it */
		return pass(talk, talk->input->steps, BOX_LOGITS, piece_bytes(talk->session, talk->rows));
	int rc = pass(talk, talk->input->steps, BOX_REPORT, REPORT_BYTES);
	for (int64_t left = talk->rows, n; !rc && left; left -= n) {
		n = fluidpipe_logits_piece(talk->session, left);
		rc = pass(talk, talk->input->steps, BOX_LOGITS, n * each);
	}
	return rc;
}

void fluidpipe_forecast_describe(const struct rh_session *session, struct rh_forecast *out)
{
	out->target_bytes = fluidpipe_logits_columns(session) * (int64_t)sizeof(float);
}

/* Where logits stream: the time in which those of a step, with their ids, come down. Else 0. */
static double streamed_s(const struct rh_boxes_request *request, const struct rh_forecast *box)
{
	const struct rh_workload *work = &request->input->work;
	double speed = request->line[0][1].bytes_per_s;
	if (!fluidpipe_streams(request->config) || !(speed > 0))
		return 0;
	return (double)(work->train_micro_batches * work->train.head_rows * (box->target_bytes + (int64_t)sizeof(int32_t))) / speed;
}

double fluidpipe_forecast_least_step_s(const struct rh_boxes_request *request, int64_t micro_batches, const struct rh_forecast *box)
{
	const struct rh_config *config = request->config;
	int64_t messages = micro_batches + RH_FLUIDPIPE_STEP_MESSAGES + rh_config_distils(config, 1),
	        expected = rh_min(config->fluidpipe_ahead, (rh_fluidpipe_steps_ahead(config) + 1) * messages);
	double round_trip_s = request->line[0][0].latency_s + request->line[0][1].latency_s;
	return fmax(round_trip_s * (double)messages / (double)expected, streamed_s(request, box));
}
