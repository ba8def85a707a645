/* Predicts a run: the executor runs a few of its steps, by its plan, on a simulated machine. It reads no weights. Deterministic. */
#ifndef RH_FORECAST_FORECAST_H
#define RH_FORECAST_FORECAST_H

#include "forecast/forecast_input.h"

struct rh_tasks;
struct rh_trace;

/* The result of one simulation: flat, because `plan --json` prints it field by field. An input without steps gives the plan alone. */
struct rh_forecast {
	double step_seconds, tokens_per_second;
	double drained_seconds;     /* mode fluidpipe: of all simulated steps, and of the logits that come down behind them; 0: none do */
	double epoch_wait_seconds;  /* mode fluidpipe: how much longer than its steps an epoch takes whose logits box 1 waits for; else 0 */
	double bubble;              /* share of all devices' time in which they compute nothing */
	struct rh_step_times times; /* of the last step */
	double product_peak_seconds;             /* a step's necessary products at the devices' peak */
	struct rh_longest_launch longest_launch; /* of a row as long as the first step's last one */
	struct rh_stage_plan plan;
	double scheduled_idle;       /* lower bound on the idle share, by the slot recurrence; 0: not known */
	double scheduled_seconds;    /* a step without its update, by the same; 0: not known */
	int64_t round_micro_batches; /* most micro-batches of a round */
	int64_t unit, unit_bytes;    /* several boxes: micro-batches that are sent together, and their bytes */
	/* A table that the first and the last box each hold: weights, optimizer state and gradient of one copy, and what each link
	 * carries each way at a step's end. Elsewhere 0; boxes between the two have only wire_bytes. */
	struct {
		int64_t weights_bytes, state_bytes, gradient_bytes, wire_bytes;
	} table;
	int64_t target_bytes; /* of mode fluidpipe: logits of a target, which boxes that distil send each other */
	int64_t device_bytes, device_budget, ram_bytes, ram_budget; /* budgets: 0: no limit */
	int64_t store_bytes, boundary_bytes, data_bytes, nvme_bytes, nvme_budget;
	int64_t nvme_step_bytes; /* written by each step */
	int64_t nvme_run_bytes;  /* written by the whole run; 0: its steps are not known */
	int spill, frozen_share; /* what lies on NVMe, as in the plan's rh_store_options */
	int host_devices, layers;
	int devices; /* that the plan uses: all, or the first so many */
	/* Where stages update themselves: for each simulated micro-batch, from the first on, the largest number of updates of a layer
	 * here between its forward and its backward. NULL elsewhere. */
	int64_t *drift, drift_count;
	double reference_tokens_per_second; /* of the pass over a reference, before step 1; 0: there is none */
	int packed;                         /* too many layers for a search: stages are packed by memory alone */
};
/* What the checker (run/check.h) says of a forecast's lanes. */
struct rh_forecast_check {
	int64_t commands, waits;
	int lanes;
	char text[768]; /* the first fault, in one line; "": none */
};
/* Options of a forecast; all zero is legal. */
struct rh_forecast_options {
	struct rh_trace *trace; /* NULL, or records the last simulated step */
	struct rh_tasks *tasks; /* NULL, or runs independent simulations in parallel (core/tasks.h) */
	/* NULL, or is called before steps are simulated, with everything that is known without them. The plan is valid during the call. */
	void (*planned)(void *context, const struct rh_forecast *so_far, const struct rh_stage_plan *plan);
	void *context;
	struct rh_forecast_check *check; /* NULL, or receives the checker's result */
	const struct rh_run_plan *plan;  /* NULL: the recurrence's choice; else this one is simulated */
};
/* options: may be NULL. RH_DOES_NOT_FIT with the line that says what does not fit. */
int rh_forecast(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_forecast_input *input,
                const struct rh_forecast_options *options, struct rh_forecast *out) RH_MUST;
void rh_forecast_free(struct rh_forecast *forecast);

#endif
