/* A box's program of steps without a flush between them, made piece by piece: nobody need know how many steps there will be. */
#ifndef RH_SCHEDULE_DISPATCH_STEPS_H
#define RH_SCHEDULE_DISPATCH_STEPS_H

#include "schedule/dispatch.h"
#include "schedule/endless.h"

struct rh_dispatch_steps {
	struct rh_dispatch dispatch; /* whose pointers are borrowed */
	int64_t count;               /* micro-batches of each step */
	struct rh_endless *endless;
	struct rh_stage *stage;   /* of the model, bottom up; NULL: one of several boxes */
	struct rh_program piece;  /* of the order of all devices, or boxes */
	int turn[2];              /* as in struct dispatch_dealing */
	int64_t *forward, *other; /* (stages of the order): slots of these kinds that were made so far */
	int stages;
	size_t noted; /* slots of the program that are complete */
};

/* rh_dispatch_is_local must hold. rh_dispatch_steps_close in any case; it may follow zeroed memory. */
int rh_dispatch_steps_open(const struct rh_dispatch *dispatch, int64_t count, struct rh_dispatch_steps *out) RH_MUST;
/* Drops the program's first `over` slots and appends more: at least one step's. The first `noted` slots may be lowered then; of those
 * behind them it is not known yet whether their sums stay on the device. */
int rh_dispatch_steps_more(struct rh_dispatch_steps *steps, size_t over, struct rh_program *program) RH_MUST;
/* Steps whose slots have all been appended. */
int64_t rh_dispatch_steps_whole(const struct rh_dispatch_steps *steps);
void rh_dispatch_steps_close(struct rh_dispatch_steps *steps);

#endif
