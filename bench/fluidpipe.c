/* How much faster are two boxes without gradients between them (mode fluidpipe) over slow links? Two boxes (bench/boxes/boxes.h) train
 * Llama 3.1 8B, all weights, cut in the middle; 32 tokens a micro-batch, so 256 KiB travel (bf16). Products alone take time. Under the
 * schedules with gradients each box's products are as fast as makes its stage take 12 ms a micro-batch: 4 ms forward and 8 ms backward,
 * or, where a box recomputes, three equal parts and one more in the same 12 ms. Under FluidPipe both boxes are as fast as makes half of
 * the model take 12 ms; box 1's auxiliary head comes on top. The reference is the better of GPipe and 1F1B.
 *
 * usage: fluidpipe [MS:MBIT[:STAGE_MS:MICRO_BATCHES]...]: links and steps in place of the tables. */
#include "boxes/boxes.h"
#include "machine.h"

#include <math.h>

enum { BOXES = 2, STEPS = 24 /* a connection needs some round trips to be fast */, PAYLOAD = 32 * 4096 * 2 };

static const struct boxes_row rows[] = {
        {"sync-pp", "gpipe", "GPipe"}, {"sync-pp", "1f1b", "1F1B"}, {"paci", "paci", "PACI"}, {"fluidpipe", NULL, "FluidPipe"}};
enum { ROWS = sizeof rows / sizeof *rows, FLUSHED = 2, FLUID = ROWS - 1 };

static char *const words[] = {"examples/models/llama-3.1-8b.yaml",
                              "--per_device_train_batch_size",
                              "1",
                              "--max_length",
                              "32",
                              "--packing",
                              "false",
                              "--max_grad_norm",
                              "0",
                              "--eval_strategy",
                              "no",
                              NULL};
static const int cuts[BOXES + 1] = {0, 17, 34};

/* A network, and what a stage and a step are there. */
struct setting {
	struct boxes_link link;
	double stage_ms;
	int micro_batches;
};

/* Of the default tables: networks first, then stages and steps. at_least: the bar, 0: none. */
static const struct {
	struct setting setting;
	double at_least;
} table[] = {{{{0.01, 1000}, 12, 4}, 1.15}, {{{25, 1000}, 12, 4}, 1.6}, {{{50, 1000}, 12, 4}, 2.0}, {{{0.01, 100}, 12, 4}, 0},
             {{{25, 100}, 12, 4}, 0},       {{{50, 100}, 12, 4}, 0},    {{{0.01, 20}, 12, 4}, 0},   {{{25, 20}, 12, 4}, 0},
             {{{50, 20}, 12, 4}, 0},        {{{25, 1000}, 3, 4}, 0},    {{{25, 1000}, 48, 4}, 0},   {{{25, 1000}, 3, 16}, 0},
             {{{25, 1000}, 12, 16}, 0},     {{{25, 1000}, 48, 16}, 0}};
enum { SETTINGS = sizeof table / sizeof *table };

/* Speeds at which each box takes stage_s for a micro-batch. FluidPipe's: half of what both boxes' parts of the model need, once. */
static int find_pace(const struct boxes_bench *bench, int row, double stage_s, struct boxes_pace *pace)
{
	struct rh_forecast box[BOXES] = {{0}};
	char limits[64];
	*pace = (struct boxes_pace){.flops_per_s = {1e12, 1e12}};
	int rc = boxes_foresee(bench, row == FLUID ? 0 : row, pace, (struct boxes_link){0, 1e6}, limits, box);
	double half_s = (box[0].product_peak_seconds + box[1].product_peak_seconds) / 2;
	for (int k = 0; !rc && k < BOXES; k++) {
		double computes_s = row == FLUID ? half_s : (1 - box[k].bubble) * box[k].step_seconds;
		pace->flops_per_s[k] *= computes_s / bench->micro_batches / stage_s;
	}
	boxes_free(bench, box);
	return rc;
}

/* A pipeline whose step is its slots and one round trip alone: no schedule here is as fast, as a flushed step passes its data and its
 * norm on, too, and its messages take time. */
static double least_pipeline_ms(const struct setting *setting)
{
	return (setting->micro_batches + BOXES - 1) * setting->stage_ms + setting->link.trip_ms;
}

static void say_ratios(const struct setting *setting, const double ratio[2], double fluid_ms)
{
	printf("FluidPipe is %.2f times as fast as the better of GPipe and 1F1B (virtual: %.2f), and %.2f times as fast as a pipeline of "
	       "%g ms:\n"
	       "its slots and one round trip\n",
	       ratio[0], ratio[1], least_pipeline_ms(setting) / fluid_ms, least_pipeline_ms(setting));
}

/* One setting, all schedules. ratio: the better flushed one's step over FluidPipe's; measured, and in virtual time. */
static int compare(struct boxes_bench *bench, const struct setting *setting, double ratio[2])
{
	double flushed[2] = {INFINITY, INFINITY};
	int rc = 0;
	bench->micro_batches = setting->micro_batches;
	printf("\nround trip %g ms, %g Mbit/s, stages of %g ms, %d micro-batches a step\n%-14s %12s %12s\n", setting->link.trip_ms,
	       setting->link.mbit, setting->stage_ms, setting->micro_batches, "schedule", "ms a step", "virtual ms");
	for (int r = 0; !rc && r < ROWS; r++) {
		struct boxes_times times = {0};
		struct boxes_pace pace;
		double seconds[2] = {0};
		rc = find_pace(bench, r, setting->stage_ms / 1e3, &pace);
		if (!rc)
			rc = boxes_compare(bench, r, &pace, setting->link, 1, &seconds[0], &times);
		seconds[1] = times.virtual_s;
		if (!rc)
			printf("%-14s %12.1f %12.1f %s\n", rows[r].name, seconds[0] * 1e3, seconds[1] * 1e3, times.limits);
		fflush(stdout);
		for (int i = 0; i < 2; i++) {
			flushed[i] = r < FLUSHED ? fmin(flushed[i], seconds[i]) : flushed[i];
			ratio[i] = flushed[i] / seconds[i];
		}
	}
	if (!rc)
		say_ratios(setting, ratio, flushed[0] / ratio[0] * 1e3);
	return rc;
}

static int read_setting(const char *text, struct setting *out)
{
	*out = table[0].setting;
	int read = sscanf(text, "%lf:%lf:%lf:%d", &out->link.trip_ms, &out->link.mbit, &out->stage_ms, &out->micro_batches);
	if ((read == 2 || read == 4) && out->link.mbit > 0 && out->stage_ms > 0 && out->micro_batches > 0)
		return 0;
	return rh_fail(-EINVAL, "usage: fluidpipe [MS:MBIT[:STAGE_MS:MICRO_BATCHES]...]");
}

static void say_rest(void)
{
	printf("\nPACI has true gradients, up to the age that its limits bound, and a memory of one version of the weights: where two "
	       "boxes take\n"
	       "the same time under it as under FluidPipe, prefer it.\n");
}

int main(int argc, char **argv)
{
	struct boxes_bench bench = {
	        .name = "fluidpipe", .boxes = BOXES, .steps = STEPS, .cuts = cuts, .word = words, .row = rows, .payload = PAYLOAD};
	double ratio[2] = {0}, at_25_ms = 0;
	int status = boxes_run_if_box(&bench, argc, argv), missed = 0;
	if (status >= 0)
		return status;
	int rc = boxes_open(&bench), count = argc > 1 ? argc - 1 : (int)SETTINGS;
	for (int i = 0; !rc && i < count; i++) {
		struct setting setting = table[argc > 1 ? 0 : i].setting;
		double at_least = argc > 1 ? 0 : table[i].at_least;
		if (argc > 1)
			rc = read_setting(argv[i + 1], &setting);
		if (!rc)
			rc = compare(&bench, &setting, ratio);
		if (rc)
			break;
		if (at_least > 0)
			printf("at least %.2f: %s\n", at_least, ratio[0] >= at_least ? "met" : "not met");
		missed += ratio[0] < at_least;
		if (setting.link.trip_ms == 25 && setting.link.mbit == 1000 && setting.stage_ms == 12 && setting.micro_batches == 4)
			at_25_ms = ratio[0];
	}
	if (boxes_close(&bench, rc))
		return 1;
	say_rest();
	char machine[256];
	bench_machine(machine, sizeof machine);
	printf("{\"bench\": \"fluidpipe\", \"value\": %.3f, \"unit\": \"times as fast as the better of GPipe and 1F1B, 25 ms\", "
	       "\"reference\": 1, "
	       "\"ratio\": %.3f, \"bars_missed\": %d, \"machine\": \"%s\"}\n",
	       at_25_ms, at_25_ms, missed, machine);
	return missed > 0;
}
