/* The rows of modes sync-pp and paci: boxes that train one model together, with a flush behind each step and without. */
#include "core/alloc.h"
#include "modes/boxes/box_cuts.h"
#include "modes/boxes/box_data.h"
#include "modes/boxes/box_flush.h"
#include "modes/boxes/box_forecast.h"
#include "modes/boxes/box_letters.h"
#include "modes/boxes/box_output.h"
#include "modes/boxes/box_step.h"
#include "modes/boxes/box_stretch.h"
#include "modes/boxes/box_table.h"
#include "modes/modes_internal.h"

#include <math.h>

static int take_part(struct rh_session *session)
{
	int64_t trained_here, parameters;
	box_table_note(session);
	session->box.squares_above = box_flush_squares(session->model, session->box.hi);
	rh_model_keep(session->model, session->box.lo, session->box.hi);
	rh_model_parameters(session->model, &trained_here, &parameters);
	session->box.norm_share = sqrt((double)trained_here / (double)session->box.trained);
	return 0;
}

static int64_t message_bytes(const struct rh_session *session)
{
	return box_output_bytes(session) + box_table_relay_bytes(&session->box);
}

/* ---- sync-pp: the mode's own memory is a struct box_flush ---- */

static int make_data(void *context, int64_t step, struct box_feed_step *out)
{
	return box_data_make(context, step, &out->message, &out->bytes);
}

static int begin(struct rh_mode_run *run, const char *checkpoint)
{
	struct box_flush *flush = run->own = rh_alloc(1, sizeof *flush);
	(void)checkpoint;
	if (!flush)
		return -ENOMEM;
	flush->session = run->session;
	flush->feed = (struct box_feed){.box = &run->session->box, .steps = run->data->steps, .make = make_data, .context = run};
	return box_flush_open(flush, run->flights->micro_batches);
}

static void free_data(struct rh_mode_run *run)
{
	if (run->own)
		box_flush_close(run->own);
	rh_free(run->own);
	run->own = NULL;
}

static int64_t share_data(struct rh_mode_run *run, int64_t step)
{
	struct box_flush *flush = run->own;
	const char *message;
	int rc = box_feed_step(&flush->feed, step, &message);
	if (rc)
		return rc;
	int64_t count =
	        run->session->box.number ? box_data_take(run, step, message) : rh_flights_fill(run->flights, run->session, run->data, step);
	box_feed_drop(&flush->feed, step);
	rc = count < 0 ? 0 : box_flush_begin(flush, step, box_losses_bytes(run, step));
	return rc ? rc : count;
}

static int64_t next_sizes(void *context, int64_t step, const char *message, int64_t *tokens)
{
	const struct rh_mode_run *run = context;
	(void)step;
	return box_data_sizes(run, message, tokens);
}

static int share_results(struct rh_mode_run *run, int64_t step, int64_t steps)
{
	struct box_flush *flush = run->own;
	struct box_flush_end end = {.words = {.requests = {.stop = run->stop_requested, .save = run->save_requested}, .saved = run->saved},
	                            .continues = run->continues,
	                            .next = next_sizes,
	                            .context = run};
	RH_ASSERT(steps == 1);
	if (!run->session->box.link_above)
		box_losses_pack(run, step, box_flush_results(flush), BOX_PACK_OUT);
	int rc = box_flush_end(flush, step, &end);
	if (rc)
		return rc;
	box_losses_pack(run, step, box_flush_results(flush), BOX_PACK_IN);
	run->stop_requested = end.words.requests.stop != 0;
	run->save_requested = end.words.requests.save != 0;
	run->saved_by_all = end.words.saved;
	return 0;
}

/* ---- paci: the mode's own memory is a struct box_stretch ---- */

static int begin_stretches(struct rh_mode_run *run, const char *checkpoint)
{
	struct box_stretch *stretch = NULL;
	(void)checkpoint;
	int rc = box_stretch_reserve(run, &stretch);
	run->own = stretch;
	return rc;
}

static void free_stretches(struct rh_mode_run *run)
{
	box_stretch_free(run->own);
	run->own = NULL;
}

static int64_t shares_ahead(const struct rh_session *session)
{
	return box_ahead_of(session).shares;
}

#define BOX_PART                                                                                                                           \
	.part = {.choose = rh_box_take_layers,                                                                                             \
	         .take = take_part,                                                                                                        \
	         .bytes = message_bytes,                                                                                                   \
	         .reserve = box_table_reserve,                                                                                             \
	         .share_rows = box_share_rows,                                                                                             \
	         .share_tally = box_share_tally}

const struct rh_mode_ops mode_sync_pp = {.has_boxes = 1,
                                         .unties = 1,
                                         .shares_norm = 1,
                                         .order = {.orders_boxes = 1, .update = RH_UPDATE_FLUSHES},
                                         BOX_PART,
                                         .steps = {.agree = box_share_least,
                                                   .share_run = box_share_run,
                                                   .begin = begin,
                                                   .data = share_data,
                                                   .share_results = share_results,
                                                   .free = free_data},
                                         .output = {.is_here = box_output_is_here, .save = box_output_save},
                                         .forecast = {.open = box_forecast_open,
                                                      .take_step = box_forecast_take_step,
                                                      .share_norm = box_forecast_share_norm,
                                                      .close = box_forecast_close,
                                                      .describe = box_forecast_describe}};

const struct rh_mode_ops mode_paci = {.has_boxes = 1,
                                      .unties = 1,
                                      .order = {.orders_boxes = 1, .update = RH_UPDATE_LOCAL},
                                      BOX_PART,
                                      .steps = {.agree = box_share_least,
                                                .share_run = box_share_run,
                                                .begin = begin_stretches,
                                                .data = box_stretch_data,
                                                .kept = shares_ahead,
                                                .share_ahead = shares_ahead,
                                                .begin_stretch = box_stretch_begin,
                                                .ended = box_stretch_ended,
                                                .share_results = box_stretch_rest,
                                                .free = free_stretches},
                                      .output = {.is_here = box_output_is_here, .save = box_output_save},
                                      .forecast = {.open_stretch = box_forecast_open_stretch,
                                                   .may_begin = box_forecast_may_begin,
                                                   .ended = box_forecast_ended,
                                                   .close_stretch = box_forecast_close_stretch,
                                                   .describe = box_forecast_describe}};
