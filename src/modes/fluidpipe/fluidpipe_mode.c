/* The row of mode fluidpipe. */
#include "core/alloc.h"
#include "modes/boxes/box_cuts.h"
#include "modes/boxes/box_data.h"
#include "modes/boxes/box_output.h"
#include "modes/boxes/box_step.h"
#include "modes/fluidpipe/fluidpipe.h"
#include "modes/fluidpipe/fluidpipe_forecast.h"
#include "modes/fluidpipe/fluidpipe_logits.h"
#include "modes/fluidpipe/fluidpipe_run.h"
#include "modes/fluidpipe/fluidpipe_step.h"
#include "modes/fluidpipe/idle_steps.h"
#include "modes/modes_internal.h"

static int prepare(struct rh_mode_run *run)
{
	struct fluidpipe_run *own = run->own = rh_alloc(1, sizeof *own);
	if (!own)
		return -ENOMEM;
	return idle_steps_are_wanted(run->session) ? idle_steps_create(run) : 0;
}

static int begin(struct rh_mode_run *run, const char *checkpoint)
{
	if (run->config->fluidpipe_freeze && !run->session->box.number)
		run->course->lr.base = 0; /* AdamW's decay is a share of it, too */
	int rc = fluidpipe_begin(run, checkpoint);
	return rc || !fluidpipe_of(run)->idle ? rc : idle_steps_begin(run, checkpoint);
}

static int before_step(struct rh_mode_run *run)
{
	return fluidpipe_of(run)->idle ? idle_steps_make(run) : 0;
}

/* Box 1's rows go to box 2, which has a step's data when it gets there. */
static int64_t next_data(struct rh_mode_run *run, int64_t step)
{
	int rc = fluidpipe_begin_epoch(run, step);
	if (rc)
		return rc;
	int is_first = !run->session->box.number;
	int64_t count = is_first ? rh_flights_fill(run->flights, run->session, run->data, step) : fluidpipe_take_step(run, step);
	if (count > 0 && is_first)
		rc = fluidpipe_give_step(run, step, count);
	if (!rc && count > 0 && fluidpipe_of(run)->idle)
		rc = idle_steps_expect(run, step);
	return rc ? rc : count;
}

/* No step waits for the other box's: what it has said until now is heard. */
static int listen(struct rh_mode_run *run, int64_t first, int64_t steps)
{
	RH_ASSERT(first == run->state->step && steps == 1);
	int rc = fluidpipe_listen(run, run->stop_requested);
	if (!rc && fluidpipe_of(run)->idle)
		idle_steps_record(run, first);
	return rc;
}

static void report(const struct rh_mode_run *run)
{
	if (fluidpipe_of(run)->idle)
		idle_steps_report(run);
}

static void free_run(struct rh_mode_run *run)
{
	if (!run->own)
		return;
	fluidpipe_free(run);
	fluidpipe_logits_free(run);
	idle_steps_free(run);
	rh_free(run->own);
	run->own = NULL;
}

static const char *evaluated(const struct rh_session *session)
{
	return session->box.number ? " of the full model" : " of the partial model";
}

const struct rh_mode_ops mode_fluidpipe = {.has_boxes = 1,
                                           .is_apart = 1,
                                           .part = {.check = rh_fluidpipe_check,
                                                    .choose = rh_box_take_layers,
                                                    .take = rh_fluidpipe_take_part,
                                                    .bytes = box_output_bytes,
                                                    .share_rows = box_share_rows},
                                           .steps = {.agree = box_share_least,
                                                     .share_run = box_share_run,
                                                     .plan = rh_fluidpipe_plan,
                                                     .prepare = prepare,
                                                     .begin = begin,
                                                     .before_step = before_step,
                                                     .data = next_data,
                                                     .share_results = listen,
                                                     .end = fluidpipe_end,
                                                     .report = report,
                                                     .free = free_run},
                                           .output = {.evaluated = evaluated, .is_here = box_output_is_here, .save = rh_fluidpipe_save},
                                           .forecast = {.open = fluidpipe_forecast_open,
                                                        .take_step = fluidpipe_forecast_take_step,
                                                        .finish_step = fluidpipe_forecast_finish_step,
                                                        .end = fluidpipe_forecast_end,
                                                        .close = fluidpipe_forecast_close,
                                                        .describe = fluidpipe_forecast_describe,
                                                        .least_step_s = fluidpipe_forecast_least_step_s}};
