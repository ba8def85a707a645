/* Within the recurrence of a step: slots and copies (step.c), and the host's update of what they send (step_update.c). */
#ifndef RH_PARTITION_STEP_INTERNAL_H
#define RH_PARTITION_STEP_INTERNAL_H

#include "partition/steady.h"
#include "partition/step.h"

/* A layer's update. */
enum stage_of_update { COMING, WAITING, HALF, DONE };

struct lane {
	double free_s, up_s, down_s; /* when compute and both copies are done */
	double ended_s[2];           /* its last slot, and the one before it */
	double room_s;               /* for gradient sums: free */
	double activation_bytes;     /* up, of its last slot */
};

enum { UP, DOWN, GRADIENTS, NEXT, SURGES };

struct stepping {
	const struct rh_step_request *request;
	int layers, stages, forward;
	int uniform;       /* all micro-batches of a slot take the same */
	int64_t most;      /* of a slot's micro-batches, how many have a place: all of a round's; of uniform ones the first and the last */
	struct lane *lane; /* (devices) */
	double *end;       /* (stages, most): of this round */
	double *whole;     /* (stages): end of each slot, in this round and in the one before */
	double *whole_before;
	double *gate;      /* (layers): when the weights that this step uploads are there */
	double *next_gate; /* the same for the next step, of stale updates */
	double *arrived;   /* (layers): gradients of this step, on the host */
	double *made_s;    /* (layers): when what devices make of its weights is on the host */
	double *left;      /* (layers): parameters that a pass has not come to yet; -1: not begun */
	double *each;      /* (layers): bytes that it moves for a parameter */
	double *owed;      /* (layers): parameters whose moments are to be made alone */
	int *state;        /* (layers): enum stage_of_update */
	int in_two;        /* updates may be in two passes */
	double worker_s;   /* the host's update is done with all it was given */
	double uploaded_s; /* the step's last upload */
	double busy_s, copied_bytes, updated_bytes, worked_s, last_s; /* but for last_s: of a step */
	int turn;
	struct steady steady; /* of uniform rounds without an update */
	struct steady_state rounds;
	struct surge {
		double begin, end, bytes;
	} surge[SURGES]; /* copies that a step's end is full of: of weights that devices make, up in its last wave and down after it; gradients
	                     * of its last round down; and up what the next step computes with first */
	double taken_s;     /* the step before is at its end: its last gradient has been taken */
	double left_rate;   /* of the host's memory, beside all other copies */
	double update_rate; /* of the update beside copies, in this try; 0: no time */
};

/* Of limits, 0 being none. */
static inline double step_lesser(double a, double b)
{
	return a > 0 && (b <= 0 || a < b) ? a : b;
}

static inline double step_take(double bytes, double rate)
{
	return rate > 0 ? bytes / rate : 0;
}

/* Parameters of the stage's layers that the update covers. */
static inline double step_trained_in(const struct stepping *at, struct rh_stage stage)
{
	double sum = 0;
	for (int l = stage.lo; l < stage.hi; l++)
		sum += l >= at->request->shorter->costs->first_trained ? at->request->trained[l] : 0;
	return sum;
}

/* Of layers [lo, hi), which end in the step's last wave. */
static inline double step_made_in(const struct stepping *at, struct rh_stage stage)
{
	double sum = 0;
	for (int l = stage.lo; at->request->made && l < stage.hi; l++)
		sum += at->request->made[l];
	return sum;
}

/* The host's update of a step whose slots have run: when each layer's weights are there goes to gate (layers), or to at->gate. */
void step_update_as_they_arrive(struct stepping *at, double *gate);
void step_update_as_a_whole(struct stepping *at);

#endif
