/* What is in flight, and how it shares what it needs: max-min fairly. Pure. */
#ifndef RH_DEVICE_SIM_FLOW_H
#define RH_DEVICE_SIM_FLOW_H

enum { SIM_USES = 10 };

/* A kind of transfer or work: all resources that it holds at once. Its rate is in units of its own (bytes or seconds of work) a second. */
struct sim_route {
	double most;    /* its rate alone; 0: no limit but its resources' */
	double scale;   /* its rate at a fair share of 1: routes that share a resource are compared in these units */
	double delay_s; /* before its first unit, holding nothing */
	int uses;
	struct {
		int resource;
		double weight; /* of the resource's units, for one of the route's */
	} use[SIM_USES];
};

struct sim_flow {
	const struct sim_route *route;
	double rate; /* set by sim_share */
};

/* Sets the rates so that no flow can gain without taking from one that has no more than it has (in fair shares): progressive filling.
 * capacity[resource] > 0; `spare` and `load` are scratch of the resources' number. A flow that nothing limits gets HUGE_VAL. */
void sim_share(struct sim_flow *const *flow, int flows, const double *capacity, int resources, double *spare, double *load);

#endif
