/* A run, for train.c (how it begins and ends) and its two loops, flushed.c and stretch.c. */
#ifndef RH_TRAIN_TRAINING_H
#define RH_TRAIN_TRAINING_H

#include "checkpoint/checkpoint_writer.h"
#include "observe/metrics.h"
#include "observe/progress.h"
#include "observe/reports.h"
#include "observe/status.h"
#include "session/mode.h"
#include "train/divergence.h"
#include "train/trace_step.h"
#include "train/train.h"
#include "train/versions.h"

/* What is known of losses and norms that are not finite, or far off. */
struct trouble {
	int64_t bad_in_a_row;              /* steps that were skipped since the last good one */
	double usual_loss, usual_distance; /* running means of the loss and of its distance from usual_loss */
	int64_t steps, warned_step;        /* steps in these means; the step of the last warning */
	int64_t bad;                       /* the step, from 1, that ended the run, because it could not be skipped; 0: none */
	struct divergence divergence;
	int64_t *left_out; /* steps, from 0, that are not trained again after the run has returned to a checkpoint */
	size_t left_outs, left_out_room;
};

/* A file SAVE in output_dir: UNASKED --it is seen--> ASKED --a save begins--> ANSWERED --that is over, the file goes--> UNASKED */
enum saving_asked { SAVING_UNASKED, SAVING_ASKED, SAVING_ANSWERED };

struct saving {
	enum saving_asked request;
	int64_t count;      /* checkpoints written */
	double seconds;     /* seconds of writing them */
	double stood_still; /* seconds in which no step began because of them, beside the waiting of updates */
	double end_seconds; /* seconds that the run waited for its last one */
};

/* Where steps are told, and what the next line tells. */
struct train_log {
	struct rh_progress *progress;
	struct rh_metrics *metrics;
	struct rh_reports *reports; /* NULL: report_to names none */
	struct rh_status *status;
	double began, since_log; /* clock, behind which evaluations and saving are put */
	double started;          /* clock */
	struct rh_step_times times_since_log;
	struct rh_space_stats nvme_logged; /* up to the last line */
	int64_t tokens_since_log, tokens_before;
};

/* Steps without a flush between them. */
struct training_stretch {
	int64_t first, begun;
	int has_bad; /* a step whose loss or norm is not finite: when all boxes are at rest they return to a checkpoint */
	int64_t bad;
	double loss, norm;
};

/* All of one run: the state that steps, evaluation, checkpoints and messages share. More than 20 members: one for each of these. */
struct training {
	const struct rh_config *config;
	const struct rh_mode_ops *mode; /* the session's row */
	struct rh_mode_run shared;      /* what the mode sees of all this */
	struct rh_session session;
	struct rh_training_data data;
	struct rh_workload work;       /* of the session */
	struct rh_chat_template *chat; /* the named one; NULL: the base's own, or no conversations */
	struct rh_course course;
	struct rh_flights flights;
	int64_t begun; /* steps; those from state.step on are in flight. Not with local updates */
	struct rh_run_state state;
	struct rh_trainer_state trainer;
	char *best_before; /* trainer.best_checkpoint before the one that is there now; NULL: there was none */
	struct train_log log;
	int64_t room_at_start; /* bytes that control groups left when all was reserved */
	int output;            /* descriptor of output_dir, which is this run's own while it is open; -1: there is none yet */
	int nothing_left;      /* the checkpoint stands at the last step, and output_dir holds its result */
	int is_stopping;       /* the run stops, because a signal or the memory limit asked for it, after the checkpoint of this step */
	int is_alone;          /* it stops because a signal asked for it while a neighbour was gone, with a checkpoint */
	int is_over;           /* it has come to its end, or was stopped, without a fault */
	int stopped_early;     /* the run ends because evaluations got no better */
	struct saving saving;
	struct trouble trouble;
	struct train_versions versions;
	struct training_stretch stretch;
	struct trace_step traced;
	struct rh_train_result *result;
};

/* signals.c */
/* From now on a first SIGINT, SIGTERM, SIGHUP or SIGXCPU asks the run to stop, and says so at once; a second of the same ends the process
 * as usual. Those that were ignored stay so. */
void train_watch_signals(void);
/* What a step takes, for that line. */
void train_tell_step_seconds(double seconds);

/* With local updates several steps are in flight: those of a stretch. */
static inline int training_is_local(const struct training *run)
{
	return run->session.plan.executor.schedule->update == RH_UPDATE_LOCAL;
}

/* device_shares.c: when the run begins, opens a step's update, and knows its norm */
int device_shares_begin(struct training *run) RH_MUST;
void device_shares_open(struct training *run, int64_t step, const struct rh_update *update);
void device_shares_note(struct training *run, int64_t step, double norm);

/* resumed.c. -EINVAL where the run's base or its adapter's shape is not the checkpoint's, with what to give. */
int resumed_check(const struct training *run, const char *checkpoint) RH_MUST;
void resumed_tell_data(const struct training *run, const char *checkpoint);

/* stage_cuts.c: before the session is planned, and once it is */
int stage_cuts_keep(struct training *run, const char *checkpoint) RH_MUST;
int stage_cuts_note(struct training *run) RH_MUST;

/* trouble.c */
/* Judges a step by its loss and norm. 0: both are finite, and the step counts. 1: one is not; the step was skipped and has changed
 * nothing. Negative errno: one is not, and weights may have changed: the run cannot continue, and trouble.bad is this step. */
int trouble_judge(struct training *run, int64_t step, double loss, double norm) RH_MUST;
/* 1: such a step has ended the run, which can begin again from a checkpoint. Not where a box knows only its own steps, nor over links that
 * a process can open only once (config/transport.h). */
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
/* Warns of a loss far above those before it, or worse than guessing, and of a gradient of zero. */
void trouble_watch(struct training *run, double loss, double norm);
/* The run is over: -EDOM where all of its steps were skipped. */
int trouble_end(const struct training *run) RH_MUST;

/* Between two checkpoints' steps: what is written of steps goes on from run->state, whatever stands there of later ones. */
int train_go_on(struct training *run) RH_MUST;

/* returning.c */
/* The newest checkpoint that all boxes have: one that was ended while others saved has that before, and one that went on by a step when a
 * line broke for good has one that the others lack. *checkpoint: this box's newest, whose state the run has; NULL: none. */
int returning_agree(struct training *run, char **checkpoint) RH_MUST;
/* At rest: step `bad` had this loss and norm, of which one is not finite. The run stands at the checkpoint's step then. */
int returning_at_rest(struct training *run, int64_t bad, double loss, double norm) RH_MUST;

/* best.c */
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
/* A link's fault, which comes back, ends the run: what is done is saved where the boxes can go on from it. 0: a signal has asked for the
 * end, and the checkpoint of the last step is there. */
int saving_without_link(struct training *run, int rc) RH_MUST;
/* The run is over, with this result: what is still being written becomes whole. Returns the first fault. */
int saving_end(struct training *run, int rc) RH_MUST;
void saving_report(const struct training *run);

/* run_status.c */
/* Once output_dir is this run's. And its end, with this result; rh_error's line stays. */
int status_open(struct training *run) RH_MUST;
void status_end(struct training *run, int rc);

/* step_log.c */
/* Adds a step's times to those of the next line; `between`: what its end took, where the optimizer has the host. */
void train_book_times(struct training *run, const struct rh_step_times *step, double between);
/* Books and tells of the step that run->state.step has just counted. */
int train_step_done(struct training *run, double loss, double norm) RH_MUST;

/* pause.c */
/* Does something want all updates over when so many steps are done? */
int pause_is_due(const struct training *run, int64_t steps);
/* What this box is asked for now, in run->shared. */
void pause_note_requests(struct training *run);
/* Would this box stop or save now, whatever the others do? */
int pause_is_wanted(struct training *run);
/* Between steps: what is due now. */
int pause_steps(struct training *run) RH_MUST;
/* A step that the run, or all boxes, leave out: it counts, and nothing of it does. */
int pause_leave_out(struct training *run) RH_MUST;

/* The two loops. The next step (flushed.c); or, with local updates, all steps until a flush is wanted (stretch.c). */
int flushed_step(struct training *run) RH_MUST;
int stretch_steps(struct training *run) RH_MUST;
/* For struct rh_mode_run: a step's losses and its norm are known. */
int stretch_tell(void *context, int64_t step) RH_MUST;

/* A step's micro-batches as the mode has them; their number, or a fault. */
static inline int64_t train_data(struct training *run, int64_t step)
{
	return run->mode->steps.data ? run->mode->steps.data(&run->shared, step)
	                             : rh_flights_fill(&run->flights, &run->session, &run->data, step);
}

#endif
