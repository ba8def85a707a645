/* What a run will take, before it begins: its plan made, and a few of its steps run by the executor on a simulated machine. No weights are
 * read. Deterministic. */
#ifndef RH_TRAIN_PREDICT_H
#define RH_TRAIN_PREDICT_H

#include "train/session.h"

enum rh_bottleneck { RH_LIMIT_COMPUTE, RH_LIMIT_UPLOAD, RH_LIMIT_DOWNLOAD, RH_LIMIT_DRAM, RH_LIMIT_OPTIMIZER, RH_LIMIT_NVME, RH_LIMITS };
const char *rh_bottleneck_name(enum rh_bottleneck limit);

/* The steps to be simulated: micro-batches of some steps one after another, as the run will have them. */
struct rh_load {
	struct rh_workload work;
	struct rh_micro_shape *micro; /* (steps, work.train_micro_batches) */
	int64_t *count;               /* (steps) micro-batches of each */
	int steps;
	int64_t run_steps;    /* of the whole run; 0: not known, as the data were not read */
	double tokens_a_step; /* mean over the run */
	int synthetic;        /* rows are taken to be max_length tokens, all trained */
	int layers;           /* of the model, where known: says how much is to be simulated */
	int64_t positions;    /* that the model knows; 0: not asked */
};
/* From the data where there are any and they are small enough to be read at once; else synthetic, two steps. */
int rh_load_make(const struct rh_config *config, struct rh_session *session, int steps, struct rh_load *out) RH_MUST;
int rh_load_synthetic(const struct rh_config *config, int steps, struct rh_load *out) RH_MUST;
/* Of a run whose data are there; its workload is theirs (rh_training_data_workload). */
struct rh_training_data;
int rh_load_of_data(const struct rh_training_data *data, const struct rh_workload *work, int steps, struct rh_load *out) RH_MUST;
void rh_load_free(struct rh_load *load);
/* The same steps with their first `count` micro-batches, no more steps than `most`. The caller's. */
int rh_load_shorter(const struct rh_load *load, int64_t count, int most, struct rh_load *out) RH_MUST;
/* The configuration with the stages of a plan, which are then not searched for anew: *cut is its and the caller's to free. */
int rh_config_pin_stages(struct rh_config *config, const struct rh_plan *plan, int64_t **cut) RH_MUST;

struct rh_trace;

/* One simulation; of a load without steps the plan alone. */
struct rh_forecast {
	double step_seconds, tokens_per_second;
	double bubble;               /* share of all devices' time in which they compute nothing */
	struct rh_step_times times;  /* of the last step */
	double product_peak_seconds; /* a step's necessary products at the devices' peak */
	struct rh_plan plan;
	int64_t device_bytes, device_budget, ram_bytes, ram_budget; /* budgets: 0: no limit */
	int64_t store_bytes, boundary_bytes, data_bytes, nvme_bytes, nvme_budget;
	int64_t nvme_run_bytes; /* written by the whole run; 0: its steps are not known */
	int host_devices, layers;
};
/* trace: NULL, or one that the last simulated step is recorded in. -ENOMEM with the line that says what does not fit. */
int rh_forecast(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_load *load,
                struct rh_trace *trace, struct rh_forecast *out) RH_MUST;
/* The same in bounded time: of steps with more micro-batches times layers than can be simulated at once, two shorter ones with the same
 * stages are, and what a micro-batch more takes is taken to go on. The trace is then of the longer of the two. Bytes are of the whole. */
int rh_forecast_bounded(const struct rh_config *config, const struct rh_session_machine *machine, const struct rh_load *load,
                        struct rh_trace *trace, struct rh_forecast *out) RH_MUST;
void rh_forecast_free(struct rh_forecast *forecast);

/* The machine that the configuration names: a profile, or this one. *assumed: its rates are guesses, as doctor has not been here. */
struct rh_machine_found {
	struct rh_hardware hardware;
	struct rh_session_machine machine; /* refers to the above */
	int assumed;
};
int rh_machine_find(const struct rh_config *config, struct rh_machine_found *out) RH_MUST;
void rh_machine_found_free(struct rh_machine_found *found);

#endif
