/* What bench/paci, bench/fluidpipe and bench/links-time share: boxes in processes of their own, over TCP on a network that is shaped
 * (tests/link/network.h). The dispatcher and the links are the program's; devices are paced by the clock and hold no processor. Beside
 * each measured step stands the same in virtual time. */
#ifndef RH_BENCH_BOXES_H
#define RH_BENCH_BOXES_H

#include "train/forecast_limits.h"

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
	char *const *word; /* of the configuration: a file and keys, NULL behind the last */
	const struct boxes_row *row;
	int64_t payload; /* bytes of the largest message */
	char folder[64]; /* of the boxes' keys, and of what they have to say */
};

struct boxes_link {
	double trip_ms, mbit;
};

/* Makes the keys. boxes_close in any case. */
int boxes_open(struct boxes_bench *bench) RH_MUST;
int boxes_close(struct boxes_bench *bench) RH_MUST;

/* The line as a row in virtual time has it: the network's speed counts whole packets of 1,500 bytes, of which TCP's payload is 1,448. */
static inline struct boxes_link boxes_payload(struct boxes_link link)
{
	return (struct boxes_link){link.trip_ms, link.mbit * 1448 / 1500};
}

/* A row in virtual time. out: (boxes) freed with boxes_free. Mode paci's limits are chosen first, and written to `limits`. */
int boxes_foresee(const struct boxes_bench *bench, int row, const struct boxes_pace *pace, struct boxes_link link, char limits[64],
                  struct rh_forecast *out) RH_MUST;
void boxes_free(const struct boxes_bench *bench, struct rh_forecast *out);

/* The slowest box's seconds of a step, over the shaped network. */
int boxes_measure(const struct boxes_bench *bench, int row, const struct boxes_pace *pace, struct boxes_link link, const char *limits,
                  double *seconds) RH_MUST;

/* Where this process is a box that boxes_measure started: runs it, and returns main's status; else -1. */
int boxes_run_if_box(const struct boxes_bench *bench, int argc, char **argv);

#endif
