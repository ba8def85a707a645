/* Flows: transfers and work in flight, which share resources max-min fairly. Pure. */
#ifndef RH_DEVICE_SIM_FLOW_H
#define RH_DEVICE_SIM_FLOW_H

enum { SIM_USES = 10 };

/* A kind of transfer or work, with all resources that it uses at the same time. Its rate is in its own units (bytes, or seconds of work)
 * per second. */
struct sim_route {
	int number;     /* none of the machine's other routes has it */
	double most;    /* rate limit of a single flow; 0: only its resources limit it */
	double scale;   /* rate at a fair share of 1: fairness between different routes is judged in these units */
	double delay_s; /* latency before the first unit; uses no resource */
	int uses;
	struct {
		int resource;
		double weight; /* units of the resource that one unit of the route takes */
	} use[SIM_USES];
};

struct sim_flow {
	const struct sim_route *route;
	double rate; /* set by sim_share */
};

/* Sets max-min fair rates, by progressive filling: no flow can gain unless a flow with no larger fair share loses. capacity[resource] > 0;
 * `spare` and `load` are scratch of `resources` elements. A flow that nothing limits gets HUGE_VAL. */
void sim_share(struct sim_flow *const *flow, int flows, const double *capacity, int resources, double *spare, double *load);

#endif
