#include "train/training.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"

#include <inttypes.h>
#include <stdio.h>

void trace_step_check(const struct training *run)
{
	int64_t step = run->config->trace_step;
	if (step && (step <= run->state.step || step > run->data.steps))
		rh_note("trace_step: nothing will be recorded, as this run goes from step %" PRId64 " to %" PRId64, run->state.step + 1,
		        run->data.steps);
}

int trace_step_begin(struct training *run, int64_t step)
{
	if (run->config->trace_step != step + 1 || run->traced.state != TRACE_STEP_NOTHING)
		return 0;
	int rc = rh_trace_create(run->session.devices.count, RH_TRACE_STEP_SPANS, &run->traced.trace);
	if (rc)
		return rc;
	rh_executor_trace(run->session.executor, &run->traced.trace, step);
	run->traced.state = TRACE_STEP_ON;
	return 0;
}

void trace_step_end(struct training *run)
{
	if (run->traced.state != TRACE_STEP_ON)
		return;
	rh_executor_trace(run->session.executor, NULL, 0);
	run->traced.state = TRACE_STEP_THERE;
}

static int write_text(const struct training *run, const char *name, int (*put)(const struct rh_trace *, const char *, struct rh_text *))
{
	const struct rh_config *config = run->config;
	struct rh_text text = {0};
	char title[512];
	snprintf(title, sizeof title, "step %" PRId64 " of %s on %s", config->trace_step,
	         config->model_name_or_path ? config->model_name_or_path : config->config_name, config->device);
	char *path = rh_path_join(config->output_dir, name);
	int rc = path ? put(&run->traced.trace, title, &text) : -ENOMEM;
	if (!rc)
		rc = rh_file_write_whole(path, text.bytes, text.length);
	rh_text_free(&text);
	rh_free(path);
	return rc;
}

int trace_step_write(struct training *run)
{
	struct rh_trace *trace = &run->traced.trace;
	if (run->traced.state != TRACE_STEP_THERE || !trace->spans) /* a signal came before the step */
		return 0;
	run->traced.state = TRACE_STEP_WRITTEN;
	rh_trace_resolve(trace);
	int rc = write_text(run, "trace.json", rh_trace_json);
	if (!rc)
		rc = write_text(run, "trace.svg", rh_trace_svg);
	if (!rc)
		rh_note("step %" PRId64 " is recorded in %s: trace.svg, and trace.json for ui.perfetto.dev or chrome://tracing",
		        run->config->trace_step, run->config->output_dir);
	if (!rc && trace->forgotten)
		rh_note("its recording ends early: %zu spans are there, for %" PRId64 " there was no room", trace->spans, trace->forgotten);
	rh_trace_free(trace);
	return rc;
}
