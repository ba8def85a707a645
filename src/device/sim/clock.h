/* One virtual clock for several simulated machines, each driven by its own host thread.
 *
 * One host runs at a time. When a host waits for time to pass, the next host that does not wait gets the turn. Once all hosts wait, the
 * clock advances to the next alarm or the next end of a task, whichever is earlier. At an alarm every host looks again; at the end of a
 * task only the host of that machine does. The order of turns is fixed, so a simulation repeats itself. */
#ifndef RH_DEVICE_SIM_CLOCK_H
#define RH_DEVICE_SIM_CLOCK_H

#include "core/error.h"

struct rh_sim_clock;

/* The caller frees the clock after all hosts have left it and their machines are released. */
int rh_sim_clock_create(int hosts, struct rh_sim_clock **out) RH_MUST;
void rh_sim_clock_free(struct rh_sim_clock *clock);

/* A host thread's first call, which waits for its turn, and its last. A host that never entered may leave. rc: 0, or the fault that ends
 * the host. The others see it in rh_sim_clock_is_broken, so that they need not wait for this host's messages. */
void rh_sim_clock_enter(struct rh_sim_clock *clock, int host);
void rh_sim_clock_leave(struct rh_sim_clock *clock, int host, int rc);
int rh_sim_clock_is_broken(struct rh_sim_clock *clock);

/* For the host that has the turn. */
double rh_sim_clock_seconds(const struct rh_sim_clock *clock);
/* The clock stops at that time. Where it is not later than the present, all hosts look again before time advances. */
int rh_sim_clock_alarm(struct rh_sim_clock *clock, double at_s) RH_MUST;
/* Begins what the host has enqueued, or lets time advance. */
void rh_sim_clock_pass(struct rh_sim_clock *clock);

#endif
