/* What bench/paci, bench/fluidpipe and bench/links-time share: boxes in processes of their own, over TCP on a network that is shaped
 * (tests/link/network.h). The dispatcher and the links are the program's; devices are paced by the clock and hold no processor. Beside
 * each measured step stands the same in virtual time. */
#ifndef RH_BENCH_BOXES_H
#define RH_BENCH_BOXES_H

#include "forecast/forecast_limits.h"

enum { BOXES_MOST = 4 };

/* A pipeline that is measured. */
struct boxes_row {
	const char *mode, *schedule, *name; /* schedule NULL: the mode has none to choose */
};

/* Device speeds: each launch takes launch_s; products take as long as at flops_per_s. Nothing else takes time. */
struct boxes_pace {
	double launch_s, flops_per_s[BOXES_MOST];
};

struct boxes_bench {
	const char *name;  /* of the program, which boxes are started from */
	int boxes, steps;  /* measured together, the first not counted */
	int micro_batches; /* of a step */
	const int *cuts;   /* (boxes + 1) layers */
	char *const *word; /* of the configuration: a file and keys without those of boxes, NULL behind the last */
	const struct boxes_row *row;
	int64_t payload; /* bytes of the largest message */
	char folder[64]; /* of the boxes' keys, and of what they have to say */
};

struct boxes_link {
	double trip_ms, mbit;
};

/* A row's seconds a step. */
struct boxes_times {
	double virtual_s;
	char limits[64]; /* mode paci's, which are chosen first; else empty */
};

/* GPT-2 Medium with adapters in bf16, rows of 128 tokens, one a micro-batch: what travels then is BOXES_GPT2_BYTES. */
extern char *const boxes_gpt2_words[];
enum { BOXES_GPT2_BYTES = 128 * 1024 * 2 };

/* Makes the keys. boxes_close in any case; it prints the fault `rc`, and returns main's status. */
int boxes_open(struct boxes_bench *bench) RH_MUST;
int boxes_close(struct boxes_bench *bench, int rc) RH_MUST;

/* A row in virtual time, over a line at the share of link.mbit that headers and acknowledgements leave. out: (boxes) freed with
 * boxes_free. */
int boxes_foresee(const struct boxes_bench *bench, int row, const struct boxes_pace *pace, struct boxes_link link, char limits[64],
                  struct rh_forecast *out) RH_MUST;
void boxes_free(const struct boxes_bench *bench, struct rh_forecast *out);

/* Launches so long that the slowest box takes unit_s for a micro-batch of the row; prints what each takes. */
int boxes_find_pace(const struct boxes_bench *bench, int row, double unit_s, struct boxes_pace *pace) RH_MUST;

/* A row in virtual time, and measured over the shaped network so often: measured_s is (repetitions), of the slowest box each. */
int boxes_compare(const struct boxes_bench *bench, int row, const struct boxes_pace *pace, struct boxes_link link, int repetitions,
                  double *measured_s, struct boxes_times *out) RH_MUST;

/* Where this process is a box that boxes_compare started: runs it, and returns main's status; else -1. */
int boxes_run_if_box(const struct boxes_bench *bench, int argc, char **argv);

#endif
