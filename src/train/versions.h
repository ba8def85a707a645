/* With local updates: which weights each micro-batch's forward and backward read, in output_dir/versions.jsonl, and its drift. */
#ifndef RH_TRAIN_VERSIONS_H
#define RH_TRAIN_VERSIONS_H

#include "run/executor.h"

struct training;

/* Of a process. Drift is the number of updates that a layer gets between a micro-batch's forward and its backward. */
struct train_versions {
	struct rh_metrics *log;
	int64_t first_step;             /* of the stretch that runs */
	int64_t *shift;                 /* (layers): the number that a line shows less the version, in this stretch */
	int64_t *forward, *backward;    /* (micro-batches): of a line */
	int64_t largest;                /* drift of any micro-batch and layer */
	int64_t micro_batches, drifted; /* in all; those with drift */
};

/* Opens the log, without the lines of later steps than run->state.step. Called again when the run has returned to a checkpoint. */
int versions_open(struct training *run) RH_MUST;
/* Notes the micro-batches of a step, from 0. */
int versions_note(struct training *run, int64_t step, const struct rh_versions *versions) RH_MUST;
void versions_close(struct training *run);

#endif
