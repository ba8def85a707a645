/* Losses over answers as a run tells of them: computed on the host from the cross-entropies that come back, by the same functions as on the
 * device; and the reference's log-probabilities, which are there before the first step. */
#ifndef RH_SESSION_PREFERENCE_H
#define RH_SESSION_PREFERENCE_H

#include "observe/report.h"
#include "session/session.h"

struct rh_progress;

/* The judged documents of a micro-batch and their cross-entropies; `space` is scratch for 2 numbers of each document. */
struct rh_judged_losses {
	const int32_t *span;
	const float *reference, *loss;
	int64_t documents, rows;
	float *space;
};

/* The summed losses of a micro-batch's rows; and adds what TRL tells of a micro-batch to `figures`, NULL: to none. */
double rh_preference_judge(const struct rh_preference *is, const struct rh_judged_losses *batch, struct rh_figures *figures);

/* The l of each document: minus the summed cross-entropies of its answer. */
void rh_preference_logps(const struct rh_judged_losses *batch, float *out);

/* How many rows of a dataset the pass over the reference takes into a micro-batch, and the largest of these: added to a workload whose
 * run has one. */
int rh_reference_workload(const struct rh_config *config, const struct rh_dataset *train, const struct rh_dataset *held_out, int devices,
                          struct rh_workload *work) RH_MUST;

/* Gives `train` and `held_out` (NULL: nothing is evaluated) their references: by the file `path` where it was made of this model and these
 * rows, else by a pass of the model as it stands. *is_made: it was a pass, and the file is to be written (rh_reference_save). `path` NULL:
 * there is none. Of several boxes the first has them, and the file. */
int rh_reference_find(struct rh_session *session, const char *path, struct rh_dataset *train, struct rh_dataset *held_out,
                      struct rh_progress *progress, int *is_made) RH_MUST;
/* The same by a pass alone. */
int rh_reference_pass(struct rh_session *session, struct rh_dataset *set, int64_t each, struct rh_progress *progress) RH_MUST;
int rh_reference_save(const struct rh_session *session, const char *path, const struct rh_dataset *train,
                      const struct rh_dataset *held_out) RH_MUST;
#define RH_REFERENCE_FILE "reference_logps.bin"

#endif
