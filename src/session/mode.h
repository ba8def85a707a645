/* A mode is how boxes work together: `local` (a box alone), sync-pp, paci, fluidpipe. Each mode is a row of flags and functions, defined in
 * src/modes/ and found by enum rh_mode. Session, forecast and train ask the row; none of them asks which mode it is. A slot that is NULL
 * does what its comment says, so that the row of mode local is almost empty.
 *
 * Training calls the slots of a run in this order:
 *
 *   part.check                            when the session opens; behind it the links open
 *   agree, part.choose                    from which checkpoint, and which layers
 *   share_run, plan, agree, prepare       before the session starts; agree again when the run goes on from a checkpoint
 *   part.bytes, part.reserve              when it is planned, and when it starts
 *   begin                                 before the first step
 *   before_step, data, share_results      in each step that ends before the next one begins
 *   begin_stretch, data, ended, share_results  for steps without a flush between them: the last of them when all stages are at rest
 *   end, report                           behind the last step
 *   free                                  in any case, behind rh_session_close */
#ifndef RH_SESSION_MODE_H
#define RH_SESSION_MODE_H

#include "session/flights.h"
#include "session/lr.h"
#include "session/run_state.h"

struct rh_boxes_request;
struct rh_checkpoint_writer;
struct rh_letters;
struct rh_forecast;
struct rh_forecast_input;

/* What a run does when, in steps; 0: never. */
struct rh_course {
	int64_t eval_every, save_every;
	struct rh_lr lr;
};

/* What a mode sees of a run. All pointers are borrowed from it, but for `own`. */
struct rh_mode_run {
	const struct rh_config *config;
	struct rh_session *session;
	struct rh_workload *work;      /* of the session */
	struct rh_training_data *data; /* rows in box 1 alone; steps in all boxes */
	struct rh_course *course;
	struct rh_flights *flights;
	struct rh_run_state *state;
	struct rh_checkpoint_writer *writer; /* to which modes add files; NULL before the session has started */
	int64_t first_step;                  /* of this process */
	/* Stopping. Of this box before share_results, of all boxes after it: a signal asked the run to stop, and a file SAVE for a
	 * checkpoint. */
	int stop_requested, save_requested;
	int rest_requested; /* this box wants all stages at rest, whatever for */
	int continues;      /* behind the step that is shared the next one begins at once, unless boxes are asked for something else */
	int64_t saved;      /* step of this box's newest whole checkpoint that other boxes make too; or the one it went on from; -1: none */
	int64_t saved_by_all; /* the newest that all boxes have, -1: none; of one box INT64_MAX */
	/* Judges a step that the mode made beside the run's own, behind step `step`: as training judges its own. */
	int (*judge)(void *context, int64_t step, double loss, double norm);
	/* Of steps without a flush: a step's losses and norm are in `flights`. */
	int (*tell)(void *context, int64_t step);
	void *context;
	void *own; /* the mode's memory for this run; NULL: none */
};

/* Is there an evaluation when so many steps are done? */
static inline int rh_mode_evaluates_at(const struct rh_mode_run *run, int64_t steps)
{
	return run->course->eval_every > 0 && (steps % run->course->eval_every == 0 || steps == run->data->steps);
}

/* This box's part of the model, and what a session sends. NULL slots: nothing is refused, the part is the whole model, 0 bytes, nothing is
 * sent. */
struct rh_mode_part {
	/* -EINVAL: a model that the boxes cannot train. The model is the whole one, and no link is open yet. */
	int (*check)(const struct rh_session *session);
	/* Chooses session->box.lo and .hi when the links are open. checkpoint: the one of all boxes that the run goes on from, or NULL. */
	int (*choose)(struct rh_session *session, const char *checkpoint);
	/* Makes the session's model that part. */
	int (*take)(struct rh_session *session);
	/* Host memory of messages that no device sends; rh_session_start reserves it. */
	int64_t (*bytes)(const struct rh_session *session);
	int (*reserve)(struct rh_session *session);
	/* Evaluations: `count` micro-batches of rows from `row` on, which box 1 has, go to all boxes; and the sums go to all boxes from the
	 * one that has the head. */
	int (*share_rows)(struct rh_session *session, int64_t row, struct rh_batch *batch, int64_t count);
	int (*share_tally)(struct rh_session *session, void *tally, int64_t bytes);
};

/* The steps of a run. NULL slots do nothing. */
struct rh_mode_steps {
	/* *least: the smallest of the boxes' numbers. Returns 1: all have this one; 0: some have another. NULL: this box is the only one. */
	int (*agree)(struct rh_session *session, int64_t own, int64_t *least);
	/* Box 1 knows the rows: all boxes learn how many steps there are and how large micro-batches may be. */
	int (*share_run)(struct rh_mode_run *run);
	/* Adds to a workload what the mode takes of this box's memory. rows, targets: of the training set; 0: not known. */
	int (*plan)(const struct rh_session *session, int64_t rows, int64_t targets, struct rh_workload *work);
	int (*prepare)(struct rh_mode_run *run);
	int (*begin)(struct rh_mode_run *run, const char *checkpoint);
	/* Between two steps, before the next one begins. */
	int (*before_step)(struct rh_mode_run *run);
	/* A step's micro-batches, in run->flights; returns their number, or a fault. NULL: this machine's rows. Of a stretch, 0: it has no such
	 * step; -EAGAIN: the step cannot begin yet. */
	int64_t (*data)(struct rh_mode_run *run, int64_t step);
	/* Steps whose results a run without a flush keeps at once; NULL: as many as the executor has in flight. */
	int64_t (*kept)(const struct rh_session *session);
	/* Steps before the one that is clipped by its share of a step's norm. NULL: a step is clipped by its own norm. */
	int64_t (*share_ahead)(const struct rh_session *session);
	/* A stretch begins with step run->state->step. Box 1 wants it to end before step `until`, and knows the micro-batches of each of its
	 * steps; the other boxes learn them. *letters: its messages, the mode's. NULL: this box alone decides when it ends. */
	int (*begin_stretch)(struct rh_mode_run *run, int64_t until, int64_t *count, const struct rh_letters **letters);
	/* Of a stretch: this box has done the step, and its own norm is in run->flights. */
	void (*ended)(struct rh_mode_run *run, int64_t step);
	/* The executor has finished `steps` steps, one unless they were a stretch: shares what is not shared yet of their results and of what
	 * boxes were asked for. NULL: this box has all of a step's results when its executor has finished it. */
	int (*share_results)(struct rh_mode_run *run, int64_t first, int64_t steps);
	int (*end)(struct rh_mode_run *run);
	void (*report)(const struct rh_mode_run *run);
	void (*free)(struct rh_mode_run *run);
};

/* What a run leaves. */
struct rh_mode_output {
	const char *(*evaluated)(const struct rh_session *session); /* which model: " of the full model"; NULL: the model, "" */
	int (*is_here)(const struct rh_session *session);           /* 1: this box writes it; NULL: it does */
	int (*save)(struct rh_session *session, const char *dir);   /* all boxes call it; NULL: rh_output_save */
};

/* The messages of a step in virtual time, beside activations; each in its place among what training does. They have training's sizes and
 * order. NULL slots: there are none. */
struct rh_mode_forecast {
	/* *own: the mode's memory for one simulation; close frees it. *drains: messages come down behind the last step. */
	int (*open)(struct rh_session *session, const struct rh_forecast_input *input, void **own, int *drains);
	int (*take_step)(void *own, int step);   /* before it begins */
	int (*share_norm)(void *own, int step);  /* when the executor has finished it */
	int (*finish_step)(void *own, int step); /* when its update is known */
	int (*end)(void *own);                   /* behind the last step */
	void (*close)(void *own);
	/* Steps without a flush, so many: *own is the mode's memory for them, *letters its messages. A step begins when it may; `ended`: this
	 * box has done it. */
	int (*open_stretch)(struct rh_session *session, const struct rh_forecast_input *input, int64_t steps, void **own,
	                    const struct rh_letters **letters);
	int (*may_begin)(void *own, int64_t step);
	void (*ended)(void *own, int64_t step);
	void (*close_stretch)(void *own);
	/* Fills in what the forecast says of the mode alone. */
	void (*describe)(const struct rh_session *session, struct rh_forecast *out);
	/* Lower bound on a step's seconds, which simulated steps do not show. box: the first one's forecast. NULL: 0. */
	double (*least_step_s)(const struct rh_boxes_request *request, int64_t micro_batches, const struct rh_forecast *box);
};

/* All of a mode. */
struct rh_mode_ops {
	int has_boxes;   /* several boxes, linked */
	int is_judged;   /* plans are judged in virtual time; else the recurrence's choice is followed */
	int unties;      /* an embedding that is the head too lies in two boxes, which train it apart */
	int shares_norm; /* a step's updates wait for the norm of all boxes' gradients */
	int is_apart;    /* a box does not know the others' losses and norms: each has a model and checkpoints of its own */
	struct rh_mode_order order;
	struct rh_mode_part part;
	struct rh_mode_steps steps;
	struct rh_mode_output output;
	struct rh_mode_forecast forecast;
};

/* The row of a mode: src/modes/modes.c. */
const struct rh_mode_ops *rh_mode_of(enum rh_mode mode);
/* The session's row. One that has not met the other boxes, or simulates a whole model, is local. */
const struct rh_mode_ops *rh_session_mode(const struct rh_session *session);

#endif
