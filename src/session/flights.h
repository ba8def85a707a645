/* The steps of a run that are in flight: their micro-batches, and what comes of them. */
#ifndef RH_SESSION_FLIGHTS_H
#define RH_SESSION_FLIGHTS_H

#include "observe/report.h"
#include "session/session.h"
#include "session/training_data.h"

struct rh_flight {
	int64_t count, tokens, trained; /* micro-batches; tokens; targets */
	double norm;                    /* where each of several boxes updates itself: the norm of this box's gradients */
	/* with local updates: the largest drift of a micro-batch; when this box had done the step, by its clock (0: not yet), and its times */
	int64_t drift;
	double done_s;
	struct rh_step_times times;
};

/* Step k is number k mod `count` of `step`, and its micro-batches follow one another in the last three arrays. */
struct rh_flights {
	int64_t count, micro_batches; /* steps; the most micro-batches of a step */
	struct rh_batch *batch;       /* (micro_batches / chunks) of the step that begins */
	struct rh_micro_batch *micro; /* (micro_batches) likewise */
	int chunks;                   /* micro-batches of a batch: 1, or it is in chunks */
	int64_t numbers_each;         /* `numbers` of a batch */
	int32_t *numbers;             /* chunks' own arrays */
	struct rh_flight *step;
	float **loss;                /* of each target */
	double *load_balancing_loss; /* rh_load_balancing_loss of each micro-batch */
	int64_t *targets;            /* of each micro-batch */
	/* where documents are judged (core/preference.h): by what; of each micro-batch its documents, and their spans and references */
	const struct rh_preference *preference; /* of the model; NULL: nothing is judged */
	int64_t *documents;
	int32_t **span;
	float **reference, *sums; /* sums: scratch */
	float *row_loss;          /* scratch: the losses of a row in chunks, whose documents are those of its first chunk */
};

/* Memory for `count` steps of such a workload. rh_flights_free in any case. -ENOMEM. */
int rh_flights_reserve(const struct rh_workload *work, int64_t count, struct rh_flights *out) RH_MUST;
void rh_flights_free(struct rh_flights *flights);

/* The step in flight that has this number; and the first of its micro-batches. */
static inline struct rh_flight *rh_flight_of(const struct rh_flights *flights, int64_t step)
{
	return &flights->step[step % flights->count];
}

static inline int64_t rh_flight_first(const struct rh_flights *flights, int64_t step)
{
	return step % flights->count * flights->micro_batches;
}

/* Makes the step's micro-batches of this machine's rows, in `batch` alone; returns their number, or a fault. */
int64_t rh_flights_make(struct rh_flights *flights, const struct rh_training_data *data, int64_t step);
/* Makes the step's micro-batches of this machine's rows, in `batch` and `micro`; returns their number, chunks counted each, or a fault. */
int64_t rh_flights_fill(struct rh_flights *flights, const struct rh_session *session, const struct rh_training_data *data, int64_t step);
/* The first `count` of `batch` are the step's micro-batches: fills `micro`, and what `step` knows of them. */
int rh_flights_use(struct rh_flights *flights, const struct rh_session *session, int64_t step, int64_t count) RH_MUST;

/* By what the summed losses of a step's micro-batches are divided: targets; judged rows. */
double rh_flight_divisor(const struct rh_flights *flights, int64_t step);
/* Summed by micro-batch, then in index order; and the mean of the micro-batches' load balancing losses. */
double rh_flight_loss(const struct rh_flights *flights, int64_t step);
/* Adds what the step's losses over answers tell. */
void rh_flight_tell(const struct rh_flights *flights, int64_t step, struct rh_figures *figures);

#endif
