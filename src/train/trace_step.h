/* Records one step of a run (key trace_step) into output_dir: trace.json and trace.svg, the picture that plan draws. It changes no bit
 * of what is computed. */
#ifndef RH_TRAIN_TRACE_STEP_H
#define RH_TRAIN_TRACE_STEP_H

#include "config/config.h"
#include "observe/trace.h"

struct training;

/* NOTHING --begin--> ON --end--> THERE --write--> WRITTEN */
enum trace_step_state { TRACE_STEP_NOTHING, TRACE_STEP_ON, TRACE_STEP_THERE, TRACE_STEP_WRITTEN };

struct trace_step {
	enum trace_step_state state;
	struct rh_trace trace;
};

/* A line says so where nothing will be recorded. */
void trace_step_check(const struct training *run);
/* The three calls do nothing unless this step (from 0) is the one to record. Begin before the update that the step hides; end when the
 * step is done. */
int trace_step_begin(struct training *run, int64_t step) RH_MUST;
void trace_step_end(struct training *run);
int trace_step_write(struct training *run) RH_MUST;

#endif
