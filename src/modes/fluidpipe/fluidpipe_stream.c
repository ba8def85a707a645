#include "modes/fluidpipe/fluidpipe_stream.h"

#include "core/alloc.h"
#include "link/ahead.h"
#include "modes/boxes/box_step.h"
#include "modes/fluidpipe/fluidpipe_logits.h"

#include <string.h>

int fluidpipe_streams(const struct rh_config *config)
{
	return config->fluidpipe_logits == RH_LOGITS_STREAM && rh_config_distils(config, 0);
}

int64_t fluidpipe_stream_bytes(const struct rh_session *session, const struct rh_workload *work)
{
	int64_t targets = work->train_micro_batches * work->train.head_rows;
	return RH_FLUIDPIPE_UNHEARD_MOST * ((int64_t)sizeof(struct fluidpipe_step_report) + targets * fluidpipe_logits_row_bytes(session));
}

void fluidpipe_stream_begin(const struct training *run, struct fluidpipe_stream *stream)
{
	*stream = (struct fluidpipe_stream){.heard = run->state.step, .expected = run->state.step, .given = run->state.step};
}

/* Rows of a step's message: nobody learns from those of the last epoch. */
static int64_t rows_of(const struct training *run, int64_t step, int64_t targets)
{
	int64_t each = run->data.steps_per_epoch;
	return step / each < (run->data.steps - 1) / each ? targets : 0;
}

static int64_t message_bytes(const struct training *run, int64_t rows)
{
	return (int64_t)sizeof(struct fluidpipe_step_report) + rows * fluidpipe_logits_row_bytes(&run->session);
}

int fluidpipe_stream_send(struct training *run, int64_t step, const struct fluidpipe_step_report *report)
{
	struct rh_box *box = &run->session.box;
	int64_t rows = rows_of(run, step, run->flight[step % run->flights].trained), bytes = message_bytes(run, rows);
	char *message = rh_alloc((size_t)bytes, 1);
	if (!message)
		return -ENOMEM;
	memcpy(message, report, sizeof *report);
	if (rows)
		fluidpipe_logits_pack_step(run, rows, message + sizeof *report);
	int rc = rh_box_give(box, box->link_below, box_tag_of(step, BOX_LOGITS), message, bytes);
	rh_free(message);
	return rc;
}

int fluidpipe_stream_is_full(const struct fluidpipe_stream *stream)
{
	return stream->given - stream->heard == RH_FLUIDPIPE_UNHEARD_MOST;
}

int fluidpipe_stream_add(struct training *run, struct fluidpipe_stream *stream, int64_t targets)
{
	RH_ASSERT(!fluidpipe_stream_is_full(stream));
	stream->targets[stream->given++ % RH_FLUIDPIPE_UNHEARD_MOST] = targets;
	return fluidpipe_stream_expect(run, stream);
}

static int64_t step_bytes(const struct training *run, const struct fluidpipe_stream *stream, int64_t step)
{
	return message_bytes(run, rows_of(run, step, stream->targets[step % RH_FLUIDPIPE_UNHEARD_MOST]));
}

int fluidpipe_stream_expect(struct training *run, struct fluidpipe_stream *stream)
{
	int rc = 0;
	while (!rc && stream->expected < stream->given) {
		int64_t step = stream->expected;
		rc = rh_ahead_expect(run->session.box.link_above, box_tag_of(step, BOX_LOGITS), step_bytes(run, stream, step));
		stream->expected += !rc;
	}
	return rc == -ENOBUFS ? 0 : rc;
}

int fluidpipe_stream_receive(struct training *run, struct fluidpipe_stream *stream, struct fluidpipe_step_report *out)
{
	RH_ASSERT(stream->heard < stream->given);
	int rc = fluidpipe_stream_expect(run, stream); /* one at least, as nothing before it is expected */
	int64_t step = stream->heard, bytes = step_bytes(run, stream, step);
	char *message = rc ? NULL : rh_alloc((size_t)bytes, 1);
	if (!message)
		return rc ? rc : -ENOMEM;
	RH_ASSERT(step < stream->expected);
	rc = rh_box_take(run->session.box.link_above, box_tag_of(step, BOX_LOGITS), message, bytes);
	int64_t rows = (bytes - (int64_t)sizeof *out) / fluidpipe_logits_row_bytes(&run->session);
	if (!rc)
		rc = fluidpipe_logits_collect(run, rows, message + sizeof *out);
	if (!rc) {
		memcpy(out, message, sizeof *out);
		stream->heard++;
		rc = fluidpipe_stream_expect(run, stream);
	}
	rh_free(message);
	return rc;
}
