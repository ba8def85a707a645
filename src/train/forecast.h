/* What a run will take, before it begins: its plan made, and a few of its steps run by the executor on a simulated machine. No weights are
 * read. Deterministic. */
#ifndef RH_TRAIN_FORECAST_H
#define RH_TRAIN_FORECAST_H

#include "train/forecast_input.h"

struct rh_tasks;
struct rh_trace;

/* One simulation; of an input without steps the plan alone. */
struct rh_forecast {
	double step_seconds, tokens_per_second;
	double bubble;               /* share of all devices' time in which they compute nothing */
	struct rh_step_times times;  /* of the last step */
	double product_peak_seconds; /* a step's necessary products at the devices' peak */
	struct rh_plan plan;
	double scheduled_idle;                                      /* by the recurrence of slots: a step idles no less; 0: not known */
	double scheduled_seconds;                                   /* by it: a step without its update; 0: not known */
	int64_t round_micro_batches;                                /* at most, in a round */
	int64_t device_bytes, device_budget, ram_bytes, ram_budget; /* budgets: 0: no limit */
	int64_t store_bytes, boundary_bytes, data_bytes, nvme_bytes, nvme_budget;
	int64_t nvme_step_bytes; /* written by each step */
	int64_t nvme_run_bytes;  /* written by the whole run; 0: its steps are not known */
	int host_devices, layers;
	int packed; /* stages are packed by memory alone: there are too many layers to search for cuts */
};
/* The steps of a forecast on lanes, checked (run/check.h). */
struct rh_forecast_check {
	int64_t commands, waits;
	int lanes;
	char text[768]; /* the first fault, in a line; "": there is none */
};
/* What goes on beside a forecast; zeroed: nothing. */
struct rh_forecast_beside {
	struct rh_trace *trace; /* NULL, or one that the last simulated step is recorded in */
	struct rh_tasks *tasks; /* NULL, or for what is independent of one another (core/tasks.h) */
	/* NULL, or is called once, before steps are simulated: all that does not come of them is known, and the whole run's plan, which is
	 * gone afterwards. */
	void (*planned)(void *context, const struct rh_forecast *so_far, const struct rh_plan *plan);
	void *context;
	struct rh_forecast_check *check; /* NULL, or what is found: devices make no weights then */
	const struct rh_run_plan *plan;  /* NULL: the recurrence's choice; else this one is simulated */
};
/* beside: may be NULL. RH_DOES_NOT_FIT with the line that says what does not fit. */
int rh_forecast(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                const struct rh_forecast_beside *beside, struct rh_forecast *out) RH_MUST;
void rh_forecast_free(struct rh_forecast *forecast);

#endif
