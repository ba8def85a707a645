/* How much faster is a pipeline without a flush over slow links? Four boxes (bench/boxes/boxes.h) take about 30 ms each for a
 * micro-batch, forward, recomputation and backward, and a step has 8. What travels are activations and gradients of GPT-2 Medium (bf16,
 * rows of 128 tokens: 256 KiB). The reference is the better of GPipe and 1F1B with a flush. Steps of PACI are measured between two
 * rests, of which `train` makes one each 8 steps.
 *
 * usage: paci [MS:MBIT...]: round trip and speed of the links, in place of the table. */
#include "boxes/boxes.h"
#include "machine.h"

#include <math.h>

enum { BOXES = 4, ACCUMULATION = 8, FLUSHED_STEPS = 5, PAYLOAD = 128 * 1024 * 2 };
static const double unit_s = 0.03, bar = 1.55;

static const struct boxes_row rows[] = {{"sync-pp", "gpipe", "GPipe"},
                                        {"sync-pp", "1f1b", "1F1B"},
                                        {"sync-pp", "interleaved-1f1b", "interleaved"},
                                        {"sync-pp", "looped-bfs", "breadth-first"},
                                        {"sync-pp", "zb-h1", "zero bubble"},
                                        {"paci", "paci", "PACI"}};
enum { ROWS = sizeof rows / sizeof *rows, FLUSHED = 2 };

static char *const words[] = {"examples/models/gpt2-medium.yaml",
                              "--lora_r",
                              "16",
                              "--per_device_train_batch_size",
                              "1",
                              "--max_length",
                              "128",
                              "--max_grad_norm",
                              "0",
                              "--packing",
                              "false",
                              "--eval_strategy",
                              "no",
                              "--boxes",
                              "4",
                              "--box",
                              "1",
                              "--box_cuts",
                              "[7,13,19]",
                              NULL};
static const int cuts[BOXES + 1] = {0, 7, 13, 19, 26};

/* Launches so long that the slowest box takes unit_s for a micro-batch. */
static int find_pace(const struct boxes_bench *bench, struct boxes_pace *pace)
{
	struct rh_forecast box[BOXES] = {{0}};
	char limits[64];
	double slowest = 0;
	pace->launch_s = 1e-4;
	for (int k = 0; k < BOXES; k++)
		pace->flops_per_s[k] = 1e18;
	int rc = boxes_foresee(bench, ROWS - 1, pace, (struct boxes_link){0, 1e6}, limits, box);
	printf("a micro-batch in boxes 1 to %d:", (int)BOXES);
	for (int k = 0; !rc && k < BOXES; k++)
		slowest = fmax(slowest, (1 - box[k].bubble) * box[k].step_seconds / ACCUMULATION);
	for (int k = 0; !rc && k < BOXES; k++)
		printf(" %.1f", (1 - box[k].bubble) * box[k].step_seconds / ACCUMULATION / slowest * unit_s * 1e3);
	printf(" ms (the last recomputes nothing)\n");
	pace->launch_s *= slowest > 0 ? unit_s / slowest : 1;
	boxes_free(bench, box);
	return rc;
}

/* One network, all schedules. ratio: the better flushed one's step over PACI's. */
static int compare(const struct boxes_bench *bench, const struct boxes_pace *pace, struct boxes_link link, double *ratio)
{
	double flushed = INFINITY;
	int rc = 0;
	printf("\nround trip %g ms, %g Mbit/s\n%-14s %12s %12s\n", link.trip_ms, link.mbit, "schedule", "ms a step", "virtual ms");
	for (int r = 0; !rc && r < ROWS; r++) {
		struct rh_forecast box[BOXES] = {{0}};
		char limits[64] = "";
		double seconds = 0;
		rc = boxes_foresee(bench, r, pace, link, limits, box);
		if (!rc)
			rc = boxes_measure(bench, r, pace, link, limits, &seconds);
		if (!rc)
			printf("%-14s %12.1f %12.1f %s\n", rows[r].name, seconds * 1e3, box[0].step_seconds * 1e3, limits);
		fflush(stdout);
		flushed = r < FLUSHED ? fmin(flushed, seconds) : flushed;
		*ratio = flushed / seconds;
		boxes_free(bench, box);
	}
	if (!rc)
		printf("PACI is %.2f times as fast as the better of GPipe and 1F1B\n", *ratio);
	return rc;
}

int main(int argc, char **argv)
{
	static const struct boxes_link table[] = {{0, 1000}, {25, 1000}, {50, 1000}, {25, 100}, {25, 20}};
	struct boxes_bench bench = {.name = "paci",
	                            .boxes = BOXES,
	                            .steps = FLUSHED_STEPS,
	                            .micro_batches = ACCUMULATION,
	                            .cuts = cuts,
	                            .word = words,
	                            .row = rows,
	                            .payload = PAYLOAD};
	struct boxes_pace pace;
	double ratio = 0, at_bar = 0;
	int status = boxes_run_if_box(&bench, argc, argv);
	if (status >= 0)
		return status;
	int rc = boxes_open(&bench), count = argc > 1 ? argc - 1 : (int)(sizeof table / sizeof *table);
	if (!rc)
		rc = find_pace(&bench, &pace);
	for (int i = 0; !rc && i < count; i++) {
		struct boxes_link link = table[argc > 1 ? 0 : i];
		if (argc > 1 && sscanf(argv[i + 1], "%lf:%lf", &link.trip_ms, &link.mbit) != 2)
			rc = rh_fail(-EINVAL, "usage: paci [MS:MBIT...]");
		if (!rc)
			rc = compare(&bench, &pace, link, &ratio);
		at_bar = link.trip_ms == 25 && link.mbit >= 1000 ? ratio : at_bar;
	}
	if (rc)
		fprintf(stderr, "paci: %s\n", rh_error(rc));
	int removed = boxes_close(&bench);
	if (rc || removed)
		return 1;
	char machine[256];
	bench_machine(machine, sizeof machine);
	printf("{\"bench\": \"paci\", \"value\": %.3f, \"unit\": \"times the better of GPipe and 1F1B, 25 ms\", \"reference\": %.2f, "
	       "\"ratio\": %.3f, \"machine\": \"%s\"}\n",
	       at_bar, bar, at_bar / bar, machine);
	return 0;
}
