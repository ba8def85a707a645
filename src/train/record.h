/* The recording of one step of a run, trace_step, into output_dir: trace.json and trace.svg, as plan draws its picture. It changes no bit
 * of what is computed. */
#ifndef RH_TRAIN_RECORD_H
#define RH_TRAIN_RECORD_H

#include "config/config.h"
#include "run/trace.h"

struct run;

/* NOTHING --begin--> ON --end--> THERE --write--> WRITTEN */
enum train_record_state { RECORD_NOTHING, RECORD_ON, RECORD_THERE, RECORD_WRITTEN };

struct train_record {
	enum train_record_state state;
	struct rh_trace trace;
};

/* Memory that a recording takes at most. */
int64_t train_record_bytes(const struct rh_config *config);

/* Says where there will be nothing to record. */
void train_record_check(const struct run *run);
/* The three do nothing unless this step (from 0) is the one. Begin before the update that the step hides; end when no update of its own has
 * begun, or where there is none. */
int train_record_begin(struct run *run, int64_t step) RH_MUST;
void train_record_end(struct run *run);
int train_record_write(struct run *run) RH_MUST;

#endif
