/* Steps without a flush between them in virtual time: as training runs them, under a schedule whose stages update themselves. */
#include "train/forecast_steps.h"

#include "core/alloc.h"
#include "run/trace.h"
#include "train/update.h"

#include <string.h>

/* Steps of the stretch, and those of them that the period is taken over: the first fill the pipeline, the last drain it. */
enum { STEPS = 12, FIRST = 3, LAST = 8, SPANS = 1 << 16 };

struct stretch {
	struct rh_session *session;
	const struct rh_forecast_input *input;
	const int32_t *zeros;
	struct rh_micro_batch *micro;
	double ended_s[STEPS];
	int64_t tokens[STEPS];
	int64_t *drift; /* (STEPS, micro-batches) */
};

static int begin(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale)
{
	struct stretch *at = context;
	at->tokens[step] = forecast_fill(at->input, (int)(step % at->input->steps), at->zeros, at->micro);
	*batch = at->micro;
	*loss_scale = 1;
	struct rh_update update = rh_update_of(at->session->config, step, at->session->config->learning_rate, 1);
	rh_updater_open(at->session->updater, &update, 0);
	return 0;
}

static int end(void *context, int64_t step, const int64_t *drift)
{
	struct stretch *at = context;
	double norm;
	int64_t count = at->input->work.train_micro_batches;
	memcpy(at->drift + step * count, drift, (size_t)count * sizeof *drift);
	at->ended_s[step] = rh_updater_seconds(at->session->updater);
	return rh_updater_norm(at->session->updater, &norm);
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
	const struct rh_stretch stretch = {
	        .steps = STEPS, .micro_batches = at->input->work.train_micro_batches, .begin = begin, .end = end, .context = at};
	rh_executor_trace(executor, trace, LAST);
	int rc = rh_executor_train_stretch(executor, &stretch);
	rh_executor_trace(executor, NULL, 0);
	if (rc)
		return rc;
	rh_trace_resolve(trace);
	out->seconds = at->ended_s[LAST] - at->ended_s[FIRST];
	for (int s = FIRST + 1; s <= LAST; s++)
		out->tokens += at->tokens[s];
	out->times.compute = busy_seconds(trace); /* what devices wait for is no one step's here */
	out->busy_s = out->times.compute * (LAST - FIRST);
	return 0;
}

int forecast_run_stretch(struct rh_session *session, const struct rh_forecast_input *input, const int32_t *zeros,
                         struct forecast_beside beside, struct forecast_steps *out)
{
	struct stretch at = {.session = session, .input = input, .zeros = zeros};
	struct rh_trace own = {0};
	at.micro = rh_alloc((size_t)input->work.train_micro_batches, sizeof *at.micro);
	out->drifts = STEPS * input->work.train_micro_batches;
	out->drift = at.drift = rh_alloc((size_t)out->drifts, sizeof *at.drift);
	int rc = at.micro && at.drift ? 0 : -ENOMEM;
	if (!rc && !beside.trace)
		rc = rh_trace_create(session->devices.count, SPANS, &own);
	if (!rc)
		rc = run_stretch(&at, beside.trace ? beside.trace : &own, out);
	rh_trace_free(&own);
	rh_free(at.micro);
	return rc;
}
