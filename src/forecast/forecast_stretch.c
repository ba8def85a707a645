/* Steps without a flush between them in virtual time: as training runs them, under a schedule whose stages update themselves. */
#include "forecast/forecast_steps.h"

#include "core/alloc.h"
#include "forecast/forecast_check.h"
#include "observe/trace.h"
#include "session/mode.h"
#include "session/run_state.h"
#include "session/update.h"

struct stretch {
	struct rh_session *session;
	const struct rh_mode_forecast *mode;
	void *own; /* the mode's */
	const struct rh_forecast_input *input;
	const int32_t *zeros;
	struct rh_micro_batch *micro;
	/* Steps run; first and last step of the measured period. Earlier steps fill the pipeline, later ones drain it. A step's end is
	 * noticed only when another begins, up to 2 * in_flight steps later. */
	int64_t steps, first, last;
	double *ended_s; /* (steps) */
	int64_t *tokens; /* (steps) */
	int64_t *drift;  /* (steps, micro-batches) */
	double max_norm[RH_SHARING_DEVICES];
	struct forecast_check *check; /* NULL: nothing is checked */
};

static int begin(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale)
{
	enum { LATER = 2 }; /* struct rh_stretch */
	struct stretch *at = context;
	if (at->own && !at->mode->may_begin(at->own, step))
		return LATER;
	int rc = at->check ? forecast_check_expect(at->check, at->input->work.train_micro_batches, step) : 0;
	if (rc)
		return rc;
	at->tokens[step] = forecast_fill(at->session, at->input, (int)(step % at->input->steps), at->zeros, at->micro);
	*batch = at->micro;
	*loss_scale = 1;
	struct rh_update update = rh_update_of(at->session->config, step, at->session->config->learning_rate, 1);
	if (rh_session_clipping_devices(at->session)) /* a device's blocks wait for its gradients, whatever these are */
		rh_updater_open_parts(at->session->updater, &update, at->max_norm);
	else
		rh_updater_open(at->session->updater, &update, 0);
	return 0;
}

static int end(void *context, int64_t step, const struct rh_versions *versions)
{
	struct stretch *at = context;
	double norm;
	int64_t count = at->input->work.train_micro_batches, layers = at->session->model->layers;
	for (int64_t m = 0; m < count; m++)
		at->drift[step * count + m] = rh_versions_drift(versions + m * layers, layers);
	at->ended_s[step] = rh_updater_seconds(at->session->updater);
	int rc = rh_updater_norm(at->session->updater, &norm);
	if (at->own)
		at->mode->ended(at->own, step);
	return rc;
}

/* Devices' computation in the recorded step, in their mean. */
static double busy_seconds(const struct rh_trace *trace)
{
	double busy = 0;
	for (size_t i = 0; i < trace->spans; i++)
		if (trace->span[i].device >= 0 && trace->span[i].lane == RH_STREAM_COMPUTE)
			busy += trace->span[i].end_s - trace->span[i].begin_s;
	return busy / trace->devices;
}

static int run_stretch(struct stretch *at, struct rh_trace *trace, struct forecast_steps *out)
{
	struct rh_executor *executor = at->session->executor;
	const struct rh_letters *letters = NULL;
	int rc = at->mode->open_stretch ? at->mode->open_stretch(at->session, at->input, at->steps, &at->own, &letters) : 0;
	const struct rh_stretch stretch = {.steps = at->steps,
	                                   .micro_batches = at->input->work.train_micro_batches,
	                                   .letters = letters,
	                                   .begin = begin,
	                                   .end = end,
	                                   .context = at};
	rh_executor_trace(executor, trace, at->last);
	if (!rc)
		rc = rh_executor_train_stretch(executor, &stretch);
	rh_executor_trace(executor, NULL, 0);
	if (at->mode->close_stretch)
		at->mode->close_stretch(at->own);
	if (rc)
		return rc;
	rh_trace_resolve(trace);
	out->seconds = at->ended_s[at->last] - at->ended_s[at->first];
	for (int64_t s = at->first + 1; s <= at->last; s++)
		out->tokens += at->tokens[s];
	out->times.compute = busy_seconds(trace); /* waits belong to no one step here */
	out->busy_s = out->times.compute * (double)(at->last - at->first);
	return 0;
}

/* The most steps that a stage has in flight: the same number in all boxes. */
static int64_t steps_in_flight(const struct rh_session *session, int64_t count)
{
	int is_linked = rh_box_is_linked(&session->box);
	int64_t units = session->admission_limit ? session->admission_limit[0] : is_linked ? session->box.boxes : session->devices.count;
	return (units * (is_linked ? session->plan.boxes.unit : 1) + count - 1) / count;
}

int forecast_run_stretch(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                         struct forecast_observers observers, struct forecast_steps *out)
{
	int64_t count = input->work.train_micro_batches, ahead = steps_in_flight(session, count);
	struct stretch at = {.session = session,
	                     .mode = &rh_session_mode(session)->forecast,
	                     .input = input,
	                     .zeros = zeros,
	                     .check = observers.check,
	                     .first = 1 + 2 * ahead,
	                     .last = 5 + 3 * ahead,
	                     .steps = 9 + 5 * ahead};
	struct rh_trace own = {0};
	for (int d = 0; d < RH_SHARING_DEVICES; d++)
		at.max_norm[d] = 1;
	at.micro = rh_alloc((size_t)count, sizeof *at.micro);
	at.ended_s = rh_alloc((size_t)at.steps, sizeof *at.ended_s);
	at.tokens = rh_alloc((size_t)at.steps, sizeof *at.tokens);
	out->drift_count = at.steps * count;
	out->drift = at.drift = rh_alloc((size_t)out->drift_count, sizeof *at.drift);
	int rc = at.micro && at.ended_s && at.tokens && at.drift ? 0 : -ENOMEM;
	if (!rc && !observers.trace)
		rc = rh_trace_create(session->devices.count, RH_TRACE_STEP_SPANS, &own);
	if (!rc)
		rc = run_stretch(&at, observers.trace ? observers.trace : &own, out);
	rh_trace_free(&own);
	rh_free(at.micro);
	rh_free(at.ended_s);
	rh_free(at.tokens);
	return rc;
}
