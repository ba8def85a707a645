/* How much faster is a pipeline without a flush over slow links? Four boxes (bench/boxes/boxes.h) take about 30 ms each for a
 * micro-batch, forward, recomputation and backward, and a step has 8. What travels are activations and gradients of GPT-2 Medium (bf16,
 * rows of 128 tokens: 256 KiB). The reference is the better of GPipe and 1F1B with a flush. The executor, its messages and the links are
 * those of `train`; what a run does beside its steps (reading rows, logs, checkpoints) is not in these figures.
 *
 * usage: paci [MS:MBIT...]: round trip and speed of the links, in place of the table. */
#include "boxes/boxes.h"
#include "machine.h"

#include <math.h>

enum { BOXES = 4, ACCUMULATION = 8, FLUSHED_STEPS = 5 };
static const double unit_s = 0.03, bar = 1.55;

static const struct boxes_row rows[] = {
        {"sync-pp", "gpipe", "GPipe"}, {"sync-pp", "1f1b", "1F1B"}, {"sync-pp", "zb-h1", "zero bubble"}, {"paci", "paci", "PACI"}};
enum { ROWS = sizeof rows / sizeof *rows, FLUSHED = 2 };

static const int cuts[BOXES + 1] = {0, 7, 13, 19, 26};

/* One network, all schedules. ratio: the better flushed one's step over PACI's. */
static int compare(const struct boxes_bench *bench, const struct boxes_pace *pace, struct boxes_link link, double *ratio)
{
	double flushed = INFINITY;
	int rc = 0;
	printf("\nround trip %g ms, %g Mbit/s\n%-14s %12s %12s\n", link.trip_ms, link.mbit, "schedule", "ms a step", "virtual ms");
	for (int r = 0; !rc && r < ROWS; r++) {
		struct boxes_times times;
		double seconds = 0;
		rc = boxes_compare(bench, r, pace, link, 1, &seconds, &times);
		if (!rc)
			printf("%-14s %12.1f %12.1f %s\n", rows[r].name, seconds * 1e3, times.virtual_s * 1e3, times.limits);
		fflush(stdout);
		flushed = r < FLUSHED ? fmin(flushed, seconds) : flushed;
		*ratio = flushed / seconds;
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
	                            .word = boxes_gpt2_words,
	                            .row = rows,
	                            .payload = BOXES_GPT2_BYTES};
	struct boxes_pace pace;
	double ratio = 0, at_bar = 0;
	int status = boxes_run_if_box(&bench, argc, argv);
	if (status >= 0)
		return status;
	int rc = boxes_open(&bench), count = argc > 1 ? argc - 1 : (int)(sizeof table / sizeof *table);
	if (!rc)
		rc = boxes_find_pace(&bench, ROWS - 1, unit_s, &pace);
	for (int i = 0; !rc && i < count; i++) {
		struct boxes_link link = table[argc > 1 ? 0 : i];
		if (argc > 1 && sscanf(argv[i + 1], "%lf:%lf", &link.trip_ms, &link.mbit) != 2)
			rc = rh_fail(-EINVAL, "usage: paci [MS:MBIT...]");
		if (!rc)
			rc = compare(&bench, &pace, link, &ratio);
		at_bar = link.trip_ms == 25 && link.mbit >= 1000 ? ratio : at_bar;
	}
	if (boxes_close(&bench, rc))
		return 1;
	char machine[256];
	bench_machine(machine, sizeof machine);
	printf("{\"bench\": \"paci\", \"value\": %.3f, \"unit\": \"times the better of GPipe and 1F1B, 25 ms\", \"reference\": %.2f, "
	       "\"ratio\": %.3f, \"machine\": \"%s\"}\n",
	       at_bar, bar, at_bar / bar, machine);
	return 0;
}
