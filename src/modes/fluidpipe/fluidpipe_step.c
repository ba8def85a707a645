#include "modes/fluidpipe/fluidpipe_step.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/minmax.h"
#include "link/ahead.h"
#include "modes/boxes/box_data.h"
#include "modes/boxes/box_step.h"
#include "modes/fluidpipe/fluidpipe.h"
#include "modes/fluidpipe/fluidpipe_logits.h"
#include "modes/fluidpipe/fluidpipe_run.h"
#include "modes/fluidpipe/fluidpipe_stream.h"

#include <string.h>

/* The head's numbers: box 1's newest checkpoint; then shapes as box_data.c has them. */
enum { SAVED, SHAPES };

/* The messages of a step before its activations. */
enum { HEAD, BATCHES };

struct report {
	int64_t kind, value; /* the newest checkpoint's step; of logits: samples */
};
enum { REPORT_SAVED, REPORT_ASKED, REPORT_ENDED, REPORT_LOGITS };

struct fluidpipe_talk {
	int64_t *head;         /* (head_items) the latest */
	int64_t ahead;         /* rh_fluidpipe_steps_ahead */
	int64_t **shapes;      /* box 2, of the present step and the `ahead` ones that follow: what shapes_of says */
	struct rh_batch *next; /* (micro-batches) box 1: outlines of the next step's */
	struct box_data *data; /* box 2: of the step that begins */
	struct report report;  /* box 1: being received, as number `awaited` of the link */
	int64_t awaited, reports;
	int64_t reported;      /* box 2: the newest checkpoint that was reported */
	int64_t step_messages; /* box 2: as rh_ahead_expected counts, before those of the present step */
	int64_t newest_shapes; /* box 2: the last step whose shapes are there */
	int64_t end;           /* box 1: the step that the heads said is none; -1: all are */
	int64_t taught;        /* box 1: epochs whose logits came down */
	int has_asked, has_ended;
	struct rh_link_progress begun;  /* before the first message of these */
	struct fluidpipe_stream stream; /* box 1, where logits stream: then reports are received when it is their turn alone */
	int expects_report;
};

static struct fluidpipe_talk *talk_of(const struct rh_mode_run *run)
{
	return fluidpipe_of(run)->talk;
}

static int64_t *shapes_of(const struct fluidpipe_talk *talk, int64_t step)
{
	return talk->shapes[step % (talk->ahead + 1)];
}

static int64_t head_items(const struct rh_mode_run *run)
{
	return SHAPES + box_shapes_items(run);
}

static int await_report(struct rh_mode_run *run)
{
	struct fluidpipe_talk *talk = talk_of(run);
	struct rh_link *link = run->session->box.link_above;
	int rc = rh_link_receive(link, box_tag_of(talk->reports++, BOX_REPORT), &talk->report, sizeof talk->report);
	talk->awaited = link->receives;
	return rc;
}

/* The sizes of a step's micro-batches; none behind the last step. */
static int outline_step(struct rh_mode_run *run, int64_t step, int64_t *shapes)
{
	struct fluidpipe_talk *talk = talk_of(run);
	int64_t epoch = step / run->data->steps_per_epoch, within = step % run->data->steps_per_epoch;
	int64_t count = step < run->data->steps ? rh_sampler_micro_batches(run->data->sampler, within) : 0;
	for (int64_t m = 0; m < count; m++) {
		const int64_t *rows;
		int64_t n = rh_sampler_rows(run->data->sampler, epoch, within, m, &rows);
		talk->next[m].draw = (uint32_t)epoch + 1;
		int rc = rh_batch_outline(&run->data->train, rows, n, &talk->next[m]);
		if (rc)
			return rc;
	}
	box_shapes_of(talk->next, count, shapes);
	return 0;
}

/* The head of step `step`. */
static int give_head(struct rh_mode_run *run, int64_t step)
{
	struct fluidpipe_talk *talk = talk_of(run);
	int64_t *head = talk->head;
	memset(head, 0, (size_t)head_items(run) * sizeof *head);
	head[SAVED] = run->saved;
	if (talk->has_asked && talk->end < 0)
		talk->end = step;
	int rc = talk->end < 0 ? outline_step(run, step, head + SHAPES) : 0;
	return rc ? rc
	          : rh_box_give(&run->session->box, run->session->box.link_above, box_tag_of(step, BOX_HEAD), head,
	                        head_items(run) * (int64_t)sizeof *head);
}

static int take_head(struct rh_mode_run *run, int64_t step)
{
	int64_t *head = talk_of(run)->head;
	int rc = rh_box_take(run->session->box.link_below, box_tag_of(step, BOX_HEAD), head, head_items(run) * (int64_t)sizeof *head);
	if (rc)
		return rc;
	run->saved_by_all = rh_min(run->saved, head[SAVED]);
	rc = box_shapes_set(run->flights->batch, run->flights->micro_batches, head + SHAPES); /* which checks them */
	memcpy(shapes_of(talk_of(run), step), head + SHAPES, (size_t)box_shapes_items(run) * sizeof *head);
	talk_of(run)->newest_shapes = step;
	return rc;
}

/* Epochs whose logits were there when a run stood before this step: those of the last one come down when the next one begins. */
static int64_t epochs_taught(const struct rh_mode_run *run, int64_t step)
{
	return step > 0 ? (step - 1) / run->data->steps_per_epoch : 0;
}

int fluidpipe_begin(struct rh_mode_run *run, const char *checkpoint)
{
	int64_t first = run->state->step;
	struct fluidpipe_talk *talk = fluidpipe_of(run)->talk = rh_alloc(1, sizeof *talk);
	if (!talk)
		return -ENOMEM;
	*talk = (struct fluidpipe_talk){
	        .reported = run->saved, .end = -1, .taught = epochs_taught(run, first), .ahead = rh_fluidpipe_steps_ahead(run->config)};
	talk->head = rh_alloc((size_t)head_items(run), sizeof *talk->head);
	talk->next = rh_alloc((size_t)run->flights->micro_batches, sizeof *talk->next);
	talk->shapes = rh_alloc((size_t)talk->ahead + 1, sizeof *talk->shapes);
	int is_first = !run->session->box.number, is_room = talk->head && talk->next && talk->shapes;
	int rc = is_room ? box_data_reserve(run, &talk->data) : -ENOMEM;
	if (!rc)
		rc = fluidpipe_logits_begin(run, checkpoint);
	struct rh_link *link = is_first ? run->session->box.link_above : run->session->box.link_below;
	if (!rc)
		rc = link->ops->progress(link, &talk->begun);
	for (int64_t i = 0; !rc && i <= talk->ahead; i++)
		if (!(talk->shapes[i] = rh_alloc((size_t)box_shapes_items(run), sizeof(int64_t))))
			rc = -ENOMEM;
	for (int64_t step = first; !rc && step < first + talk->ahead; step++)
		rc = is_first ? give_head(run, step) : take_head(run, step);
	fluidpipe_stream_begin(run, &talk->stream);
	if (rc || is_first)
		return rc || fluidpipe_streams(run->config) ? rc : await_report(run);
	talk->step_messages = rh_ahead_expected(run->session->box.link_below);
	return 0;
}

void fluidpipe_free(struct rh_mode_run *run)
{
	struct fluidpipe_talk *talk = talk_of(run);
	if (!talk)
		return;
	for (int64_t m = 0; talk->next && m < run->flights->micro_batches; m++)
		rh_batch_free(&talk->next[m]);
	for (int64_t i = 0; talk->shapes && i <= talk->ahead; i++)
		rh_free(talk->shapes[i]);
	box_data_free(run, talk->data);
	rh_free(talk->shapes);
	rh_free(talk->next);
	rh_free(talk->head);
	rh_free(talk);
}

/* Box 1, where logits stream: waits for the message of the next step. */
static int take_step_report(struct rh_mode_run *run)
{
	struct fluidpipe_talk *talk = talk_of(run);
	struct fluidpipe_step_report report;
	int rc = fluidpipe_stream_receive(run, &talk->stream, &report);
	if (rc)
		return rc;
	run->saved_by_all = rh_min(run->saved, report.saved);
	talk->has_asked |= report.asked != 0;
	return 0;
}

/* Box 1 begins this step, whose logits will come. */
static int stream_step(struct rh_mode_run *run, int64_t step)
{
	struct fluidpipe_stream *stream = &talk_of(run)->stream;
	int rc = 0;
	while (!rc && fluidpipe_stream_is_full(stream))
		rc = take_step_report(run);
	return rc ? rc : fluidpipe_stream_add(run, stream, rh_flight_of(run->flights, step)->trained);
}

int fluidpipe_give_step(struct rh_mode_run *run, int64_t step, int64_t count)
{
	struct rh_box *box = &run->session->box;
	int64_t bytes = box_batches_bytes(run->flights->batch, count);
	int rc = give_head(run, step + talk_of(run)->ahead);
	char *message = rc ? NULL : rh_alloc((size_t)rh_max(bytes, 1), 1);
	if (!message)
		return rc ? rc : -ENOMEM;
	box_batches_pack(run->flights->batch, count, message, 1);
	rc = rh_box_give(box, box->link_above, box_tag_of(step, BOX_BATCHES), message, bytes);
	rh_free(message);
	if (!rc && fluidpipe_streams(run->config))
		rc = stream_step(run, step);
	fluidpipe_logits_attach(run, step, count);
	return rc;
}

/* How many messages box 2 receives in a step. */
static int64_t messages_of(const struct rh_mode_run *run, const int64_t *shapes)
{
	return RH_FLUIDPIPE_STEP_MESSAGES + shapes[0] + (fluidpipe_logits_bytes(run->session, 1) > 0);
}

/* Message number i of a step. */
static int expect_one(struct rh_mode_run *run, int64_t step, int64_t i)
{
	const struct rh_model *model = run->session->model;
	const int64_t *shapes = shapes_of(talk_of(run), step);
	struct rh_link *link = run->session->box.link_below;
	if (i == HEAD)
		return rh_ahead_expect(link, box_tag_of(step + talk_of(run)->ahead, BOX_HEAD), head_items(run) * (int64_t)sizeof *shapes);
	if (i == BATCHES)
		return rh_ahead_expect(link, box_tag_of(step, BOX_BATCHES), box_shapes_bytes(shapes, run->flights->batch->names_samples));
	if (i == RH_FLUIDPIPE_STEP_MESSAGES + shapes[0])
		return rh_ahead_expect_apart(link, box_tag_of(step, BOX_LOGITS), fluidpipe_logits_place(run, step),
		                             fluidpipe_logits_bytes(run->session, box_shapes_targets(shapes)));
	int64_t m = i - RH_FLUIDPIPE_STEP_MESSAGES, bytes = rh_fluidpipe_activation_bytes(model, box_shapes_tokens(shapes, m));
	return rh_ahead_expect(link, rh_wire_tag(RH_BOUNDARY_ACTIVATION, step, m), bytes);
}

/* Messages of this step and of those behind it that are known, as many as there is room for; none behind an evaluation, whose own come in
 * between. */
static int expect_more(struct rh_mode_run *run, int64_t step)
{
	const struct fluidpipe_talk *talk = talk_of(run);
	int64_t first = talk->step_messages;
	int rc = 0;
	for (; !rc && step <= talk->newest_shapes && shapes_of(talk, step)[0]; step++) {
		int64_t messages = messages_of(run, shapes_of(talk, step));
		for (int64_t i; !rc && (i = rh_ahead_expected(run->session->box.link_below) - first) < messages;)
			rc = expect_one(run, step, i);
		first += messages;
		if (rh_mode_evaluates_at(run, step + 1))
			break;
	}
	return rc == -ENOBUFS ? 0 : rc;
}

int64_t fluidpipe_take_step(struct rh_mode_run *run, int64_t step)
{
	struct fluidpipe_talk *talk = talk_of(run);
	struct box_data *data = talk->data;
	if (rh_mode_evaluates_at(run, step)) /* its messages are none of a step's, and nothing was expected behind them */
		talk->step_messages = rh_ahead_expected(run->session->box.link_below);
	int rc = expect_more(run, step);
	if (!rc)
		rc = take_head(run, step + talk->ahead);
	if (!rc)
		rc = expect_more(run, step);
	if (rc)
		return rc;
	memcpy(data->shapes, shapes_of(talk, step), (size_t)box_shapes_items(run) * sizeof *data->shapes);
	int64_t bytes = box_shapes_bytes(data->shapes, run->flights->batch->names_samples);
	rh_free(data->batches);
	data->batches = rh_alloc((size_t)rh_max(bytes, 1), 1);
	if (!data->batches)
		return -ENOMEM;
	rc = rh_box_take(run->session->box.link_below, box_tag_of(step, BOX_BATCHES), data->batches, bytes);
	if (!rc)
		rc = expect_more(run, step);
	talk->step_messages += messages_of(run, data->shapes);
	if (!rc && fluidpipe_logits_bytes(run->session, 1)) { /* the step's last message, and there is room for all before it */
		RH_ASSERT(rh_ahead_expected(run->session->box.link_below) >= talk->step_messages);
		rc = rh_ahead_await(run->session->box.link_below, talk->step_messages);
	}
	int64_t count = rc ? rc : box_take_data(run, step, data);
	fluidpipe_logits_attach(run, step, rh_max(count, 0));
	return count;
}

static int tell(struct rh_mode_run *run, int kind, int64_t value)
{
	const struct report report = {.kind = kind, .value = value};
	struct rh_box *box = &run->session->box;
	return rh_box_give(box, box->link_below, box_tag_of(talk_of(run)->reports++, BOX_REPORT), &report, sizeof report);
}

static int take_report(struct rh_mode_run *run)
{
	struct fluidpipe_talk *talk = talk_of(run);
	if (talk->report.kind == REPORT_SAVED)
		run->saved_by_all = rh_min(run->saved, talk->report.value);
	if (talk->report.kind == REPORT_LOGITS) {
		int rc = fluidpipe_logits_receive(run, talk->taught++, talk->report.value);
		if (rc)
			return rc;
	}
	talk->has_asked |= talk->report.kind == REPORT_ASKED;
	talk->has_ended = talk->report.kind == REPORT_ENDED;
	return talk->has_ended || fluidpipe_streams(run->config) ? 0 : await_report(run);
}

/* 1: an expected message has arrived. */
static int is_any_here(struct rh_mode_run *run)
{
	int64_t expected, here;
	int rc = rh_ahead_unasked(run->session->box.link_above, &expected, &here);
	return rc ? rc : here > 0;
}

/* Where logits stream: takes the report that follows the messages of all begun steps. waits 0: returns 0 where it has not arrived. */
static int take_report_behind(struct rh_mode_run *run, int waits)
{
	struct fluidpipe_talk *talk = talk_of(run);
	struct fluidpipe_stream *stream = &talk->stream;
	struct rh_link *link = run->session->box.link_above;
	int rc = 0;
	for (int is_taken = 0; !rc && !is_taken;) {
		uint64_t tag = box_tag_of(talk->reports, BOX_REPORT);
		if (!talk->expects_report && stream->expected == stream->given) {
			rc = rh_ahead_expect(link, tag, sizeof talk->report);
			talk->expects_report = !rc;
			rc = rc == -ENOBUFS ? 0 : rc;
		}
		int is_here = rc || waits ? 1 : is_any_here(run);
		if (rc || is_here <= 0)
			return rc ? rc : is_here;
		is_taken = stream->heard == stream->given;
		rc = is_taken ? rh_box_take(link, tag, &talk->report, sizeof talk->report) : take_step_report(run);
	}
	talk->reports++;
	talk->expects_report = 0;
	if (!rc)
		rc = take_report(run);
	return rc ? rc : 1;
}

/* fluidpipe_listen, where logits stream. */
static int listen_to_steps(struct rh_mode_run *run, int asked)
{
	struct fluidpipe_talk *talk = talk_of(run);
	int is_first = !run->session->box.number, rc = 0;
	if (!is_first) {
		const struct fluidpipe_step_report report = {.saved = run->saved, .asked = asked};
		rc = fluidpipe_stream_send(run, run->state->step, &report);
	}
	while (is_first && !rc && talk->stream.heard < talk->stream.given && (rc = is_any_here(run)) > 0)
		rc = take_step_report(run);
	if (rc < 0)
		return rc;
	talk->has_asked |= asked;
	run->stop_requested = is_first ? talk->end >= 0 && run->state->step + 1 >= talk->end : !shapes_of(talk, run->state->step + 1)[0];
	return 0;
}

int fluidpipe_listen(struct rh_mode_run *run, int asked)
{
	struct fluidpipe_talk *talk = talk_of(run);
	struct rh_link_progress progress;
	int rc = fluidpipe_logits_finish(run, run->state->step);
	if (fluidpipe_streams(run->config))
		return rc ? rc : listen_to_steps(run, asked);
	if (run->session->box.number) {
		if (!rc && talk->reported != run->saved)
			rc = tell(run, REPORT_SAVED, run->saved);
		talk->reported = run->saved;
		if (!rc && asked && !talk->has_asked)
			rc = tell(run, REPORT_ASKED, 0);
		talk->has_asked |= asked;
		run->stop_requested = !shapes_of(talk, run->state->step + 1)[0];
		return rc;
	}
	for (int again = 1; !rc && again && !talk->has_ended;) {
		rc = run->session->box.link_above->ops->progress(run->session->box.link_above, &progress);
		again = !rc && progress.received >= talk->awaited;
		if (again)
			rc = take_report(run);
	}
	talk->has_asked |= asked;
	run->stop_requested = talk->end >= 0 && run->state->step + 1 >= talk->end;
	return rc;
}

static int begins_epoch(const struct rh_mode_run *run, int64_t step)
{
	return step && step % run->data->steps_per_epoch == 0 && rh_config_distils(run->config, 0);
}

/* Box 1: takes the next report. waits 0: returns 0 where it has not arrived. */
static int take_next_report(struct rh_mode_run *run, int waits)
{
	struct fluidpipe_talk *talk = talk_of(run);
	struct rh_link *link = run->session->box.link_above;
	struct rh_link_progress progress;
	if (fluidpipe_streams(run->config))
		return take_report_behind(run, waits);
	int rc = waits ? link->ops->wait(link, link->sends, talk->awaited) : link->ops->progress(link, &progress);
	if (!rc && !waits && progress.received < talk->awaited)
		return 0;
	if (!rc)
		rc = take_report(run);
	return rc ? rc : 1;
}

int fluidpipe_take_epoch(struct rh_mode_run *run, int64_t step, int waits)
{
	int rc = 1;
	while (rc > 0 && begins_epoch(run, step) && talk_of(run)->taught < step / run->data->steps_per_epoch)
		rc = take_next_report(run, waits);
	return rc;
}

int fluidpipe_begin_epoch(struct rh_mode_run *run, int64_t step)
{
	if (!run->session->box.number) {
		int rc = fluidpipe_take_epoch(run, step, 1);
		return rc < 0 ? rc : 0;
	}
	if (!begins_epoch(run, step))
		return 0;
	int rc = tell(run, REPORT_LOGITS, fluidpipe_logits_kept(run));
	return rc ? rc : fluidpipe_logits_send(run, step / run->data->steps_per_epoch - 1);
}

/* The bytes that the line carried since the boxes began to train, frames and acknowledgements included. */
static int tell_bytes(const struct rh_mode_run *run)
{
	const struct rh_box *box = &run->session->box;
	const struct rh_link_progress *begun = &talk_of(run)->begun;
	struct rh_link *link = box->number ? box->link_below : box->link_above;
	struct rh_link_progress progress;
	int rc = link->ops->progress(link, &progress);
	if (!rc)
		rh_note("link: %lld bytes %s box %d, %lld from there", (long long)(progress.bytes_sent - begun->bytes_sent),
		        box->number ? "down to" : "up to", 2 - box->number, (long long)(progress.bytes_received - begun->bytes_received));
	return rc;
}

/* Box 2's report is heard before it closes the link: it waits for an answer. */
int fluidpipe_end(struct rh_mode_run *run)
{
	struct fluidpipe_talk *talk = talk_of(run);
	struct rh_box *box = &run->session->box;
	const uint64_t tag = box_tag_of(run->state->step, BOX_RESULTS);
	char answer = 1;
	int rc = box->number ? tell(run, REPORT_ENDED, 0) : 0;
	fluidpipe_logits_report(run);
	if (box->number) {
		if (!rc)
			rc = tell_bytes(run); /* before box 1 closes the link */
		return rc ? rc : rh_box_take(box->link_below, tag, &answer, 1);
	}
	while (rc >= 0 && !talk->has_ended)
		rc = take_next_report(run, 1);
	if (rc < 0)
		return rc;
	rc = tell_bytes(run);
	return rc ? rc : rh_box_give(box, box->link_above, tag, &answer, 1);
}
