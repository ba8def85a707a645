/* The order in which slots of several devices are enqueued. */
#ifndef RH_RUN_TURNS_H
#define RH_RUN_TURNS_H

#include "run/work.h"

/* executor->program is what comes after all that there is: the step that has this place among those in flight. */
int run_turns_add(struct rh_executor *executor, int place) RH_MUST;

/* Enqueues until the step's slots are over, and of the next step's what comes meanwhile; or until the next step should have been added, so
 * that its first slots go beside this one's last. */
enum run_until { RUN_UNTIL_OVER, RUN_UNTIL_NEXT_IS_DUE };
int run_turns(struct rh_executor *executor, int place, enum run_until until) RH_MUST;

/* Nothing is enqueued any more. Clocks begin anew. */
void run_turns_drop(struct rh_executor *executor);

#endif
