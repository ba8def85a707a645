/* How far is virtual time from a shaped network? Two boxes (bench/boxes/boxes.h) over TCP with TLS: GPipe and 1F1B at three latencies, each
 * way, and three speeds. The first box takes about 60 ms for a micro-batch, the second 42, and a step has 8; 256 KiB go each way for each.
 * The bar is 3 % of a step's time, in the median of the repetitions.
 *
 * TCP's congestion control is the system's; the first line says which it is. The boxes probe their line first, as a run's do
 * (src/link/probe.h). A machine that does other work makes the measured steps longer: the network's threads carry each packet themselves,
 * and at 1,000 Mbit/s they need a core.
 *
 * usage: links-time [REPETITIONS [MS:MBIT...]]: 3, and latency and speed of the link in place of the table. */
#include "boxes/boxes.h"
#include "machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BOXES = 2, MICRO_BATCHES = 8, STEPS = 6, MOST = 25 };
static const double unit_s = 0.06, bar = 0.03;
static const int cuts[BOXES + 1] = {0, 13, 26};
static const struct boxes_row rows[] = {{"sync-pp", "gpipe", "GPipe"}, {"sync-pp", "1f1b", "1F1B"}};
enum { ROWS = sizeof rows / sizeof *rows };
static int by_size(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;
	return (a > b) - (a < b);
}

/* One schedule over one network. worst: the largest error so far. */
static int compare(const struct boxes_bench *bench, const struct boxes_pace *pace, int row, struct boxes_link link, int repetitions,
                   double *worst)
{
	double seconds[MOST];
	struct boxes_times times;
	int rc = boxes_compare(bench, row, pace, link, repetitions, seconds, &times);
	if (rc)
		return rc;
	qsort(seconds, (size_t)repetitions, sizeof *seconds, by_size);
	double median = (seconds[(repetitions - 1) / 2] + seconds[repetitions / 2]) / 2, error = median / times.virtual_s - 1;
	printf("%-6s %8g %8g %12.1f %10.1f %10.1f %10.1f %8.1f %%\n", rows[row].name, link.trip_ms / 2, link.mbit, times.virtual_s * 1e3,
	       median * 1e3, seconds[0] * 1e3, seconds[repetitions - 1] * 1e3, error * 100);
	fflush(stdout);
	*worst = fmax(*worst, fabs(error));
	return 0;
}

static void print_congestion_control(void)
{
	char name[64] = "?";
	FILE *file = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "r");
	if (file && !fgets(name, sizeof name, file))
		name[0] = '?';
	if (file)
		fclose(file);
	printf("TCP's congestion control: %.*s\n", (int)strcspn(name, "\n"), name);
}

static int compare_all(const struct boxes_bench *bench, int argc, char **argv, double *worst)
{
	static const double table[][2] = {{0, 1000}, {25, 1000}, {50, 1000}, {0, 100}, {25, 100}, {50, 100}, {0, 20}, {25, 20}, {50, 20}};
	int repetitions = argc > 1 ? atoi(argv[1]) : 3, count = argc > 2 ? argc - 2 : (int)(sizeof table / sizeof *table);
	struct boxes_pace pace;
	if (repetitions < 1 || repetitions > MOST)
		return rh_fail(-EINVAL, "usage: links-time [REPETITIONS, at most %d [MS:MBIT...]]", (int)MOST);
	int rc = boxes_find_pace(bench, 0, unit_s, &pace);
	if (rc)
		return rc;
	print_congestion_control();
	printf("%-6s %8s %8s %12s %10s %10s %10s %10s\n", "", "ms", "Mbit/s", "virtual ms", "median ms", "least", "most", "error");
	for (int i = 0; i < count; i++) {
		double ms = table[argc > 2 ? 0 : i][0], mbit = table[argc > 2 ? 0 : i][1];
		if (argc > 2 && (sscanf(argv[i + 2], "%lf:%lf", &ms, &mbit) != 2 || ms < 0 || mbit <= 0))
			return rh_fail(-EINVAL, "'%s' is no MS:MBIT", argv[i + 2]);
		for (int row = 0; !rc && row < ROWS; row++)
			rc = compare(bench, &pace, row, (struct boxes_link){2 * ms, mbit}, repetitions, worst);
		if (rc)
			return rc;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct boxes_bench bench = {.name = "links-time",
	                            .boxes = BOXES,
	                            .steps = STEPS,
	                            .micro_batches = MICRO_BATCHES,
	                            .cuts = cuts,
	                            .word = boxes_gpt2_words,
	                            .row = rows,
	                            .payload = BOXES_GPT2_BYTES};
	double worst = 0;
	int status = boxes_run_if_box(&bench, argc, argv);
	if (status >= 0)
		return status;
	int rc = boxes_open(&bench);
	if (!rc)
		rc = compare_all(&bench, argc, argv, &worst);
	if (boxes_close(&bench, rc))
		return 1;
	char machine[256];
	bench_machine(machine, sizeof machine);
	printf("{\"bench\": \"links-time\", \"value\": %.4f, \"unit\": \"largest error of a step's virtual time\", \"reference\": %.2f, "
	       "\"ratio\": %.3f, \"machine\": \"%s\"}\n",
	       worst, bar, bar / worst, machine);
	return 0;
}
