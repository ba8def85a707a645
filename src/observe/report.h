/* What a run tells of itself. Filled by the training loop; shown by progress.h, kept by metrics.h and trainer_state.h. */
#ifndef RH_OBSERVE_REPORT_H
#define RH_OBSERVE_REPORT_H

#include <math.h>
#include <stdint.h>

enum { RH_REPORT_DRIVES = 16 };

/* What losses over answers tell beside the loss, under TRL's names: the mean over micro-batches of each. count 0: not told. */
enum rh_figure {
	RH_FIGURE_REWARDS_CHOSEN,
	RH_FIGURE_REWARDS_REJECTED,
	RH_FIGURE_REWARDS_ACCURACIES,
	RH_FIGURE_REWARDS_MARGINS,
	RH_FIGURE_LOGPS_CHOSEN,
	RH_FIGURE_LOGPS_REJECTED,
	RH_FIGURE_KL,
	RH_FIGURE_NLL_LOSS,
	RH_FIGURE_LOG_ODDS_RATIO,
	RH_FIGURE_LOG_ODDS_CHOSEN,
	RH_FIGURES
};
struct rh_figures {
	double sum[RH_FIGURES];
	int64_t count[RH_FIGURES];
};
const char *rh_figure_name(enum rh_figure figure);
/* NAN where it is not told. */
static inline double rh_figure_of(const struct rh_figures *figures, enum rh_figure figure)
{
	return figures->count[figure] ? figures->sum[figure] / (double)figures->count[figure] : (double)NAN;
}

/* A step, or the mean of the steps since the last logged one. NAN: not known. More than 20 members: one a column of metrics.jsonl. */
struct rh_step_report {
	int64_t step, steps;  /* steps done, 1-based; of how many */
	double epoch;         /* done, with its fraction */
	double loss;          /* a trained token, mean of the steps since the last line */
	double grad_norm;     /* before clipping */
	double learning_rate; /* the one just used */
	double tokens_per_second;
	double planned_tokens_per_second; /* 0: not known */
	int64_t trained_tokens; /* since the run began, resumed parts included */
	double elapsed_seconds; /* since this process began to train, evaluations and saving included */
	double seconds_left;
	/* where a step's time went, mean since the last line: run/executor.h, rh_step_times */
	double compute_seconds, weights_seconds, activations_seconds, gradients_seconds, optimizer_seconds;
	/* with local updates: the most updates that a micro-batch met between its forward and its backward, since the last line */
	int has_version_drift;
	int64_t version_drift;
	/* of NVMe, of a step, mean since the last line: what threads waited for it, added up; each drive's bytes */
	int nvme_drives; /* 0: not used, or not known */
	double nvme_wait_seconds;
	int64_t nvme_read_bytes[RH_REPORT_DRIVES], nvme_written_bytes[RH_REPORT_DRIVES];
	struct rh_figures figures;                                /* since the last line */
	int64_t vram_peak_bytes, ram_peak_bytes, nvme_peak_bytes; /* a device's highest; the process's. 0: tier not used */
};

struct rh_eval_report {
	int64_t step;
	double epoch;
	double loss;    /* weighted by token */
	int64_t tokens; /* trained tokens it was measured on */
	int64_t rows;
	double seconds;
	double elapsed_seconds; /* as a step's, when it had ended */
	struct rh_figures figures;
};

/* An answer of sample_prompts. */
struct rh_sample_report {
	int64_t step;
	double epoch;
	int64_t number; /* of the prompt, from 0 */
	const char *prompt, *answer;
	int64_t tokens; /* of the answer */
	int has_ended;  /* by itself, not by sample_max_new_tokens */
};

/* Layers whose weights had the same versions in all micro-batches of a step. */
struct rh_versions_report {
	int64_t step, layers[2]; /* the first layer and the last */
	int64_t micro_batches;
	const int64_t *forward, *backward; /* (micro_batches): after how many steps' updates each of them read the weights */
};

/* The end of a run, as Hugging Face's last entry of log_history has it. */
struct rh_run_report {
	int64_t step;
	double epoch;
	double loss; /* mean over the run's steps */
	int64_t rows;
	double seconds, flops;
};

#endif
