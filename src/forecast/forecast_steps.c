#include "forecast/forecast_steps.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "device/sim/clock.h"
#include "forecast/forecast_check.h"
#include "observe/trace.h"
#include "session/mode.h"
#include "session/update.h"

/* Begins a step as training does. */
static int begin_step(struct rh_session *session, const struct rh_micro_batch *micro, int64_t count, int64_t step,
                      struct forecast_check *check)
{
	const struct rh_config *config = session->config;
	struct rh_update update = rh_update_of(config, step, config->learning_rate, 1);
	rh_updater_open(session->updater, &update, config->max_grad_norm);
	int rc = check ? forecast_check_expect(check, count, step) : 0;
	return rc ? rc : rh_executor_begin(session->executor, micro, count, step, 1);
}

int64_t forecast_fill(const struct rh_session *session, const struct rh_forecast_input *input, int s, const int32_t *zeros,
                      struct rh_micro_batch *micro)
{
	int64_t at = 0, tokens = 0;
	for (int before = 0; before < s; before++)
		at += input->count[before];
	for (int64_t m = 0; m < input->count[s]; m++, at++) {
		struct rh_micro_shape shape = rh_forecast_micro(input, at);
		if (session->box.number) /* as box_share_run */
			shape.pixels = shape.typed = 0;
		micro[m] = rh_micro_batch_of(shape, zeros);
		tokens += shape.tokens;
	}
	return tokens;
}

/* The messages of the session's mode, in their places. */
struct talk {
	const struct rh_mode_forecast *mode;
	void *own;
	int drains; /* some come down behind the last step */
};

static int talk_open(struct rh_session *session, const struct rh_forecast_input *input, struct talk *out)
{
	*out = (struct talk){.mode = &rh_session_mode(session)->forecast};
	return out->mode->open ? out->mode->open(session, input, &out->own, &out->drains) : 0;
}

static int talk_take_step(const struct talk *talk, int step)
{
	return talk->mode->take_step ? talk->mode->take_step(talk->own, step) : 0;
}

static int talk_finish_step(const struct talk *talk, int step)
{
	return talk->mode->finish_step ? talk->mode->finish_step(talk->own, step) : 0;
}

static double talk_seconds(const struct talk *talk, const struct rh_session *session)
{
	return talk->drains ? rh_sim_clock_seconds(session->machine->clock) : 0;
}

static void talk_close(struct talk *talk)
{
	if (talk->mode->close)
		talk->mode->close(talk->own);
}

/* *ended_s: when the step ended. A step that ends before the next one begins ends with its update; of joined steps only the slots count,
 * because the update runs beside the next step. */
static int finish_step(struct rh_session *session, const struct talk *talk, int s, int joined, double *ended_s)
{
	double norm;
	int rc = rh_executor_finish(session->executor);
	*ended_s = rh_executor_times(session->executor)->ended;
	if (rc)
		return rc;
	if (talk->mode->share_norm)
		rc = talk->mode->share_norm(talk->own, s);
	if (!rc)
		rc = rh_updater_norm(session->updater, &norm);
	if (!joined)
		*ended_s = rh_updater_seconds(session->updater);
	return rc;
}

/* The first step is not timed, because nothing is in flight before it. */
int forecast_run_steps(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                       struct forecast_observers observers, struct forecast_steps *out)
{
	int joined = rh_executor_steps_in_flight(session->executor) > 1;
	double began = 0, ended = 0;
	int begun = 0;
	struct talk talk;
	struct rh_micro_batch *micro = rh_alloc((size_t)input->work.train_micro_batches, sizeof *micro);
	int rc = talk_open(session, input, &talk);
	if (!rc && !micro)
		rc = -ENOMEM;
	double first_s = talk_seconds(&talk, session);
	for (int s = 0; !rc && s < input->steps; s++) {
		for (; !rc && begun < input->steps && begun <= s + joined; begun++) {
			int64_t filled = forecast_fill(session, input, begun, zeros, micro);
			out->tokens += begun ? filled : 0;
			if (observers.trace && begun == input->steps - 1)
				rh_executor_trace(session->executor, observers.trace, begun);
			rc = talk_take_step(&talk, begun);
			if (!rc)
				rc = begin_step(session, micro, input->count[begun], begun, observers.check);
		}
		if (!rc)
			rc = finish_step(session, &talk, s, joined, &ended);
		if (!rc)
			rc = talk_finish_step(&talk, s);
		out->times = *rh_executor_times(session->executor);
		out->busy_s += s ? out->times.compute : 0;
		began = s ? began : ended;
	}
	if (!rc && talk.mode->end)
		rc = talk.mode->end(talk.own);
	out->drained_s = talk_seconds(&talk, session) - first_s;
	if (rc)
		rc = rh_executor_abandon(session->executor, rc);
	talk_close(&talk);
	rh_executor_trace(session->executor, NULL, 0);
	if (observers.trace)
		rh_trace_resolve(observers.trace);
	rh_free(micro);
	out->seconds = ended - began;
	return rc;
}

/* The whole row that these chunks are of. */
static struct rh_micro_shape row_of(const struct rh_micro_batch *chunk, int chunks)
{
	struct rh_micro_shape row = chunk->shape;
	for (int c = 1; c < chunks; c++)
		row.tokens += chunk[c].shape.tokens;
	return (struct rh_micro_shape){.tokens = row.tokens,
	                               .documents = chunks > 1 ? row.judged : row.documents,
	                               .longest = chunks > 1 ? row.text_longest : row.longest,
	                               .head_rows = chunks > 1 ? row.judged_rows : row.head_rows};
}

int forecast_run_reference(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                           double *tokens_per_second)
{
	int chunks = rh_chunks_of(&input->work);
	int64_t count = rh_min(input->count[0] / chunks, session->work.infer_micro_batches), tokens = 0;
	*tokens_per_second = 0;
	if (!count) /* of a trial that has no pass */
		return 0;
	struct rh_micro_batch *micro = rh_alloc((size_t)input->work.train_micro_batches, sizeof *micro);
	int rc = micro ? rh_updater_flush(session->updater) : -ENOMEM;
	double began = rh_updater_seconds(session->updater);
	if (!rc)
		(void)forecast_fill(session, input, 0, zeros, micro);
	for (int64_t m = 0; !rc && m < count; m++) {
		micro[m].shape = row_of(&micro[m * chunks], chunks);
		tokens += micro[m].shape.tokens;
	}
	if (!rc)
		rc = rh_executor_infer(session->executor, micro, count);
	double seconds = rh_updater_seconds(session->updater) - began;
	*tokens_per_second = seconds > 0 ? (double)tokens / seconds : 0;
	rh_free(micro);
	return rc;
}
