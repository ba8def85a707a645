/* A run, for train.c (how it begins and ends) and steps.c (its steps). */
#ifndef RH_TRAIN_TRAINING_H
#define RH_TRAIN_TRAINING_H

#include "checkpoint/checkpoint_writer.h"
#include "observe/metrics.h"
#include "observe/progress.h"
#include "observe/reports.h"
#include "session/training_data.h"
#include "train/trace_step.h"
#include "train/train.h"
#include "train/versions.h"

struct train_step {
	int64_t count, tokens, trained; /* micro-batches; tokens; targets */
	double norm;                    /* where each of several boxes updates itself: the norm of this box's gradients */
};

/* What is known of losses and norms that are not finite, or far off. */
struct trouble {
	int64_t bad_in_a_row;              /* steps that were skipped since the last good one */
	double usual_loss, usual_distance; /* running means of the loss and of its distance from usual_loss */
	int64_t steps, warned_step;        /* steps in these means; the step of the last warning */
	int64_t bad;                       /* the step, from 1, that ended the run, because it could not be skipped; 0: none */
	int64_t *left_out;                 /* steps, from 0, that are not trained again after the run has returned to a checkpoint */
	size_t left_outs, left_out_room;
};

/* A file SAVE in output_dir: UNASKED --it is seen--> ASKED --a save begins--> ANSWERED --that is over, the file goes--> UNASKED */
enum saving_asked { SAVING_UNASKED, SAVING_ASKED, SAVING_ANSWERED };

struct saving {
	struct rh_checkpoint_writer *writer;
	enum saving_asked request;
	int64_t count;      /* checkpoints written */
	int64_t newest;     /* step of this box's newest whole checkpoint that other boxes make too; or the one it went on from; -1: none */
	int64_t common;     /* the newest that all of several boxes have, -1: none; of one box INT64_MAX */
	double seconds;     /* seconds of writing them */
	double stood_still; /* seconds in which no step began because of them, beside the waiting of updates */
	double end_seconds; /* seconds that the run waited for its last one */
};

/* All of one run: the state that steps, evaluation, checkpoints and messages share. */
struct training {
	const struct rh_config *config;
	struct rh_session session;
	struct rh_training_data data;
	struct rh_workload work;                /* of the session */
	struct rh_chat_template *chat;          /* the named one; NULL: the base's own, or no conversations */
	int64_t warmup, eval_every, save_every; /* in steps; the last two 0: never */
	struct rh_batch *batch;                 /* of a step */
	struct rh_micro_batch *micro;
	/* Steps in flight: step k is number k mod `flights` of `flight`, and its micro-batches follow one another in the next three
	 * arrays. */
	struct train_step *flight;
	float **loss;
	double *load_balancing_loss; /* rh_load_balancing_loss of each */
	int64_t *targets;
	int64_t flights, micro_batches;   /* the most of a step */
	int64_t begun;                    /* steps; those from state.step on are in flight. Not with local updates */
	struct box_data *box_data;        /* (flights) where there are several boxes: box_step.h */
	struct fluidpipe_talk *fluidpipe; /* of mode fluidpipe: fluidpipe_step.c */
	struct idle_steps *idle;          /* opportunistic ones, NULL: this box makes none */
	struct fluidpipe_logits *logits;  /* NULL: no box distils */
	struct rh_run_state state;
	struct rh_trainer_state trainer;
	char *best_before; /* trainer.best_checkpoint before the one that is there now; NULL: there was none */
	struct rh_progress *progress;
	struct rh_metrics *metrics;
	struct rh_reports *reports; /* NULL: report_to names none */
	double began, since_log;    /* clock */
	struct rh_step_times times_since_log;
	struct rh_space_stats nvme_logged; /* up to the last line */
	int64_t first_step, tokens_since_log, tokens_before;
	int64_t room_at_start; /* bytes that control groups left when all was reserved */
	int output;            /* descriptor of output_dir, which is this run's own while it is open; -1: there is none yet */
	int nothing_left;      /* the checkpoint stands at the last step, and output_dir holds its result */
	int stop_requested;    /* this box was asked to stop by a signal, or another box was */
	int save_requested;    /* this box was asked for a checkpoint by a file SAVE, or another box was; in mode fluidpipe this box */
	int is_stopping;       /* the run stops, because a signal or the memory limit asked for it, after the checkpoint of this step */
	int stopped_early;     /* the run ends because evaluations got no better */
	struct saving saving;
	struct trouble trouble;
	struct train_versions versions;
	struct trace_step traced;
	struct rh_train_result *result;
};

/* From now on a first SIGINT, SIGTERM, SIGHUP or SIGXCPU asks the run to stop, and says so at once; a second of the same ends the process
 * as usual. Those that were ignored stay so. */
void train_watch_signals(void);

/* With local updates several steps are in flight: those of a stretch. */
static inline int training_is_local(const struct training *run)
{
	return run->session.plan.executor.schedule->update == RH_UPDATE_LOCAL;
}

/* Is there an evaluation when so many steps are done? */
static inline int training_evaluates_at(const struct training *run, int64_t steps)
{
	return run->eval_every > 0 && (steps % run->eval_every == 0 || steps == run->data.steps);
}

/* Two boxes that do not share their steps' results. */
static inline int training_is_fluidpipe(const struct training *run)
{
	return run->config->mode == RH_MODE_FLUIDPIPE;
}

/* Judges a step by its loss and norm. 0: both are finite, and the step counts. 1: one is not; the step was skipped and has changed
 * nothing. Negative errno: one is not, and weights may have changed: the run cannot continue, and trouble.bad is this step. */
int trouble_judge(struct training *run, int64_t step, double loss, double norm) RH_MUST;
/* 1: such a step has ended the run, which can begin again from a checkpoint. Not in mode fluidpipe, where a box knows only its own
 * steps, nor over links that a process can open only once (config/transport.h). */
int trouble_may_return(const struct training *run);
/* After that end with error rc: *checkpoint is this box's newest checkpoint from before that step, or the one that the run began with
 * (rh_free). From now on the step is left out. -EDOM: there is no checkpoint. */
int trouble_return(struct training *run, int rc, const char *began_with, char **checkpoint) RH_MUST;
/* Leaves a step out: it is not trained again. And: is it left out? */
int trouble_leave_out(struct training *run, int64_t step) RH_MUST;
int trouble_leaves_out(const struct training *run, int64_t step);
/* Call it before the first step: left-out steps right before it count as bad steps in a row. */
void trouble_begin(struct training *run);
/* 1: too many steps in a row were skipped. trouble_stop: the error that ends the run then. */
int trouble_is_too_much(const struct training *run);
int trouble_stop(const struct training *run) RH_MUST;
/* Warns of a loss far above those before it. */
void trouble_watch(struct training *run, double loss);

/* Between two checkpoints' steps: what is written of steps goes on from run->state, whatever stands there of later ones. */
int train_go_on(struct training *run) RH_MUST;

/* box_return.c */
/* The newest checkpoint that all boxes have: one that was ended while others saved has that before, and one that went on by a step when a
 * line broke for good has one that the others lack. *checkpoint: this box's newest, whose state the run has; NULL: none. */
int box_agree_on_checkpoint(struct training *run, char **checkpoint) RH_MUST;
/* At rest, in mode paci: step `bad` had this loss and norm, of which one is not finite. The run stands at the checkpoint's step then. */
int box_return(struct training *run, int64_t bad, double loss, double norm) RH_MUST;

/* load_best_model_at_end asks for what the run does not do. */
int best_check(const struct training *run) RH_MUST;
/* A run that goes on: where its best checkpoint is now. */
int best_find(struct training *run) RH_MUST;
/* Books an evaluation: the best so far, patience. Before the checkpoint of its step is saved. */
int best_judge(struct training *run, const struct rh_evaluation *eval, int saves) RH_MUST;
/* The checkpoint of this step could not be written: the best one is that before it. */
void best_take_back(struct training *run, int64_t step);
/* load_best_model_at_end: the session holds the best checkpoint's weights. */
int best_load(struct training *run) RH_MUST;

/* saving.c */
/* Plans the ring of a run that saves while it trains, and returns its bytes. */
int64_t saving_plan_ring(struct training *run);
/* A disk, or a quota, has no room. */
int saving_is_full(int rc);
/* A line of a log that has no room is left out: 0. Other faults come back. */
int saving_line(int rc) RH_MUST;
/* Is there a checkpoint when so many steps are done, whoever asks for one? */
int saving_is_due(const struct training *run, int64_t steps);
/* A file SAVE asks for a checkpoint that is not begun yet. */
int saving_is_asked(struct training *run);
/* Begins the checkpoint of run->state.step, all updates being finished; where the run ends there, waits for it. */
int saving_save(struct training *run, int asked) RH_MUST;
/* Books the end of what was begun; -EIO and the like stop the run, want of room does not. */
int saving_collect(struct training *run, enum rh_checkpoint_wait wait) RH_MUST;
/* output_dir was renamed or removed: the error, after a last checkpoint. */
int saving_without_directory(struct training *run) RH_MUST;
/* A link's fault, which comes back, ends the run: what is done is saved where the boxes can go on from it. */
int saving_without_link(struct training *run, int rc) RH_MUST;
/* The run is over, with this result: what is still being written becomes whole. Returns the first fault. */
int saving_end(struct training *run, int rc) RH_MUST;
void saving_report(const struct training *run);

/* The first `count` batches of run->batch are the step's micro-batches: fills run->micro, and what the flight knows of them. */
void train_use_batches(struct training *run, int64_t step, int64_t count);
/* Of the step in flight that has this number: per micro-batch, then in index order; and the mean of the micro-batches' load balancing
 * losses. */
double train_step_loss(const struct training *run, int64_t step);
/* The rate of a step. */
double train_rate_at(const struct training *run, int64_t step);

/* The next step; or, with local updates, all steps until a flush is wanted. */
int train_steps(struct training *run) RH_MUST;

#endif
