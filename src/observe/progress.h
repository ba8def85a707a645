/* The line a person watches. On a terminal it is one line, redrawn in place, that steps aside for log lines, of which each logged step
 * leaves one; elsewhere there are log lines alone. It has no clock: the caller passes the time. */
#ifndef RH_OBSERVE_PROGRESS_H
#define RH_OBSERVE_PROGRESS_H

#include "core/error.h"
#include "observe/report.h"

enum rh_progress_style { RH_PROGRESS_LINES, RH_PROGRESS_BAR };

/* RH_PROGRESS_BAR where the descriptor is a terminal that can move its cursor. */
enum rh_progress_style rh_progress_style_of(int descriptor);

/* `columns` 0: the terminal's width, asked before each drawing. A bar takes the log's hooks until it is closed: one at a time.
 * Safe against log lines from other threads; the functions below are the training thread's. */
struct rh_progress;
int rh_progress_open(int descriptor, enum rh_progress_style style, int columns, struct rh_progress **out) RH_MUST;

/* After each step; `now_seconds` from any steady clock. A bar is redrawn, at most ten times a second and always at the last step. It says
 * also whether the loss falls: the mean of the last ten steps or so against that of the last fifty; and the speed's share of the plan's. */
void rh_progress_step(struct rh_progress *progress, const struct rh_step_report *report, double now_seconds);
/* After a logged step: a line that stays, of the means since the last one; as wide as the terminal where there is a bar. */
void rh_progress_logged(struct rh_progress *progress, const struct rh_step_report *report);

/* Where the first step is not logged: a plain line (none where there is a bar) that it is done, and how long the rest will take. */
void rh_progress_first(const struct rh_progress *progress, const struct rh_step_report *report);

/* During an evaluation, `done` of `rows`: the bar shows that in the steps' place, until all are done. NULL is legal. */
void rh_progress_rows(struct rh_progress *progress, int64_t done, int64_t rows, double seconds_left, double now_seconds);

/* While a model is loaded: shown once that has taken a second, until all is there. */
void rh_progress_loading(struct rh_progress *progress, int64_t done_bytes, int64_t bytes, double now_seconds);

/* Leaves the last bar of steps standing, gives the hooks back, frees. NULL is legal. */
void rh_progress_close(struct rh_progress *progress);

#endif
