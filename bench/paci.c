/* How much faster is a pipeline without a flush over slow links? Four boxes in processes of their own, over TCP on a network that is shaped
 * (tests/link/network.h): the dispatcher and the links are the program's, devices are paced by the clock and hold no processor. A box takes
 * about 30 ms for a micro-batch, forward, recomputation and backward, and a step has 8. What travels are activations and gradients of GPT-2
 * Medium (bf16, rows of 128 tokens: 256 KiB). The reference is the better of GPipe and 1F1B with a flush; beside each measured step stands
 * the same in virtual time. Steps of PACI are measured between two rests, of which `train` makes one each 8 steps.
 *
 * usage: paci [MS:MBIT...]: round trip and speed of the links, in place of the table. */
#include "machine.h"

#include "config/config.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "device/sim/clock.h"
#include "core/file.h"
#include "link/identity.h"
#include "link/tcp.h"
#include "train/forecast_limits.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { BOXES = 4, ACCUMULATION = 8, FLUSHED_STEPS = 5, PAYLOAD = 128 * 1024 * 2, HANG_S = 120, WORDS = 40 };
static const double unit_s = 0.03, bar = 1.55;

static const struct row {
	const char *mode, *schedule, *name;
} rows[] = {{"sync-pp", "gpipe", "GPipe"},
            {"sync-pp", "1f1b", "1F1B"},
            {"sync-pp", "interleaved-1f1b", "interleaved"},
            {"sync-pp", "looped-bfs", "breadth-first"},
            {"paci", "paci", "PACI"}};
enum { ROWS = sizeof rows / sizeof *rows, FLUSHED = 2 };

/* ---- a box ---- */

/* A link whose activations are nobody's: a paced device has no memory behind its addresses. */
struct paced_link {
	struct rh_link base;
	struct rh_link *is;
	char nothing[PAYLOAD];
};

static struct paced_link *own(struct rh_link *link)
{
	return (struct paced_link *)link;
}

static int is_executors(uint64_t tag)
{
	return tag >> 63 != 0;
}

/* Both ends part together: one that is through earlier would break the other's run. */
static void paced_close(struct rh_link *link)
{
	struct rh_link *is = own(link)->is;
	char out = 1, in;
	if (rh_link_receive(is, 2, &in, 1) || rh_link_send(is, 2, &out, 1) || is->ops->wait(is, is->sends, is->receives))
		rh_error_clear();
	rh_link_close(is);
	rh_free(link);
}

static int paced_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	RH_ASSERT(size <= PAYLOAD);
	return rh_link_send(own(link)->is, tag, is_executors(tag) ? own(link)->nothing : bytes, size);
}

static int paced_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	RH_ASSERT(size <= PAYLOAD);
	return rh_link_receive(own(link)->is, tag, is_executors(tag) ? own(link)->nothing : bytes, size);
}

static int paced_progress(struct rh_link *link, struct rh_link_progress *out)
{
	return own(link)->is->ops->progress(own(link)->is, out);
}

static int paced_wait(struct rh_link *link, int64_t sent, int64_t received)
{
	return own(link)->is->ops->wait(own(link)->is, sent, received);
}

static void paced_abort(struct rh_link *link, const char *line)
{
	own(link)->is->ops->abort(own(link)->is, line);
}

static const struct rh_link_ops paced_ops = {.close = paced_close,
                                             .send = paced_send,
                                             .receive = paced_receive,
                                             .progress = paced_progress,
                                             .wait = paced_wait,
                                             .abort = paced_abort};

static void key_path(const char *folder, int box, char path[256])
{
	snprintf(path, 256, "%s/box%d.pem", folder, box);
}

/* From a box to another, where there is an address. */
static int open_link(const char *folder, int box, int peer, const char *address, struct rh_link **out)
{
	char path[256], hash[RH_IDENTITY_HASH];
	*out = NULL;
	if (!address)
		return 0;
	key_path(folder, peer, path);
	int rc = rh_identity_hash(path, hash);
	key_path(folder, box, path);
	const struct rh_tcp_options options = {
	        .address = address, .listens = peer > box, .identity = path, .peer = hash, .greeting = "", .messages = RH_BOX_MESSAGES};
	struct paced_link *link = rc ? NULL : rh_alloc(1, sizeof *link);
	rc = rc ? rc : link ? rh_tcp_open(&options, &link->is) : -ENOMEM;
	if (rc) {
		rh_free(link);
		return rc;
	}
	link->base = (struct rh_link){.ops = &paced_ops, .is_virtual = 1};
	*out = &link->base;
	return 0;
}

/* Each launch takes as long, nothing else takes time. */
static struct rh_hardware paced_hardware(double launch_s)
{
	struct rh_hardware out = {.name = (char *)(uintptr_t)"paced", .devices = 1};
	for (int p = 0; p < RH_PRODUCTS; p++)
		out.device.peak[p] = 1e18;
	out.device.other_flops_per_s = out.device.memory_bytes_per_s = 1e18;
	out.device.launch_s = launch_s;
	out.device.memory = INT64_C(1) << 40;
	out.link = (struct rh_hardware_link){.up_bytes_per_s = 1e15, .down_bytes_per_s = 1e15, .both_bytes_per_s = 2e15};
	out.host = (struct rh_hardware_host){.cores = 64, .dram_bytes_per_s = 1e16};
	for (int l = 0; l < RH_LAYOUTS; l++)
		out.host.optimizer_bytes_per_s[l] = 1e15;
	return out;
}

static int load(const struct row *row, const char *limits, struct rh_config *config, struct rh_forecast_input *input)
{
	char text[256], *word[WORDS] = {"examples/models/gpt2-medium.yaml", "--lora_r", "16", "--per_device_train_batch_size", "1",
	                                "--gradient_accumulation_steps", "8", "--max_length", "128", "--max_grad_norm", "0", "--packing",
	                                "false", "--eval_strategy", "no", "--boxes", "4", "--box", "1", "--box_cuts", "[7,13,19]"};
	int words = 0;
	while (word[words])
		words++;
	word[words++] = (char *)(uintptr_t)"--mode";
	word[words++] = (char *)(uintptr_t)row->mode;
	word[words++] = (char *)(uintptr_t)"--schedule";
	word[words++] = (char *)(uintptr_t)row->schedule;
	if (limits && *limits) {
		snprintf(text, sizeof text, "%s", limits);
		word[words++] = (char *)(uintptr_t)"--admission_limits";
		word[words++] = text;
	}
	int rc = rh_config_load("plan", words, word, NULL, config);
	return rc ? rc : rh_forecast_input_synthetic(config, FLUSHED_STEPS, input);
}

static const int cuts[BOXES + 1] = {0, 7, 13, 19, 26};

/* Prints the seconds of a step. words: number, row, limits, seconds of a launch, folder of the keys. */
static int run_box(char **word)
{
	int number = atoi(word[0]);
	struct rh_config config;
	struct rh_forecast_input input;
	struct rh_forecast forecast = {0};
	struct rh_hardware hardware = paced_hardware(atof(word[3]));
	struct rh_box box = {.boxes = BOXES, .number = number, .lo = cuts[number], .hi = cuts[number + 1]};
	struct rh_session_machine machine = {.hardware = &hardware, .devices = 1, .box = &box};
	int rc = load(&rows[atoi(word[1])], word[2], &config, &input);
	config.box = number + 1;
	rc = rc ? rc : open_link(word[4], number, number - 1, number ? getenv("BELOW") : NULL, &box.below);
	rc = rc ? rc : open_link(word[4], number, number + 1, number + 1 < BOXES ? getenv("ABOVE") : NULL, &box.above);
	rc = rc ? rc : rh_sim_clock_create(1, &machine.clock);
	if (rc)
		return rc;
	rh_sim_clock_enter(machine.clock, 0);
	rh_sim_clock_pace(machine.clock);
	rc = rh_forecast(&config, &machine, &input, NULL, &forecast);
	rh_sim_clock_leave(machine.clock, 0, rc);
	printf("seconds %.9f\n", forecast.step_seconds);
	rh_forecast_free(&forecast);
	rh_forecast_input_free(&input);
	rh_sim_clock_free(machine.clock);
	rh_config_free(&config);
	return rc;
}

/* ---- all boxes ---- */

/* What all measurements share. */
struct bench {
	double launch_s;
	char folder[64]; /* of the keys */
};

/* The slowest box's step over the shaped network. */
static int measure(const struct bench *bench, int row, const char *limits, double trip_ms, double mbit, double *seconds)
{
	char command[4096], line[256], self[512];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	if (length < 0)
		return -errno;
	self[length] = 0;
	int used = snprintf(command, sizeof command, "timeout %d build/release/tests/link/network", (int)HANG_S);
	for (int k = 0; k + 1 < BOXES; k++)
		used += snprintf(command + used, sizeof command - (size_t)used, " %g,%g,%g", trip_ms / 2, mbit, mbit);
	used += snprintf(command + used, sizeof command - (size_t)used, " --");
	for (int k = 0; k < BOXES; k++)
		used += snprintf(command + used, sizeof command - (size_t)used, " \"%s box %d %d '%s' %.9g %s 2>%s/errors%d\"", self, k, row,
		                 limits, bench->launch_s, bench->folder, bench->folder, k);
	FILE *file = popen(command, "r");
	int boxes = 0;
	*seconds = 0;
	if (!file)
		return -errno;
	for (double one; fgets(line, sizeof line, file);)
		if (sscanf(line, "seconds %lf", &one) == 1) {
			*seconds = fmax(*seconds, one);
			boxes++;
		}
	int status = pclose(file);
	if (boxes == BOXES && !status)
		return 0;
	snprintf(command, sizeof command, "tail -qn 1 %s/errors* >&2", bench->folder);
	(void)!system(command);
	return rh_fail(-EIO, "%d of %d boxes ended, exit %d", boxes, (int)BOXES, status);
}

/* In virtual time. limits: of PACI chosen first, if there is room for them. */
static int foresee(int row, double launch_s, double trip_ms, double mbit, char *limits, struct rh_forecast *box)
{
	struct rh_config config;
	struct rh_forecast_input input;
	struct rh_hardware hardware = paced_hardware(launch_s);
	struct rh_session_machine machine[BOXES];
	struct rh_virtual_line line[BOXES - 1][2];
	struct rh_admission_limits chosen;
	double unit[2];
	int rc = load(&rows[row], NULL, &config, &input);
	for (int k = 0; k < BOXES; k++)
		machine[k] = (struct rh_session_machine){.hardware = &hardware, .devices = 1};
	for (int k = 0; k + 1 < BOXES; k++)
		line[k][0] = line[k][1] = (struct rh_virtual_line){trip_ms / 2e3, mbit * 1e6 / 8};
	const struct rh_boxes_request request = {&config, machine, cuts, line, &input};
	if (!rc && config.mode == RH_MODE_PACI) {
		rc = rh_forecast_limits(&request, &chosen, unit);
		snprintf(limits, 64, "[%s,%s,%s,%s]", chosen.item[0], chosen.item[1], chosen.item[2], chosen.item[3]);
		config.admission_limits = chosen.list;
	}
	rc = rc ? rc : rh_forecast_boxes(&request, box);
	config.admission_limits = (struct rh_list){0};
	rh_forecast_input_free(&input);
	rh_config_free(&config);
	return rc;
}

static void free_boxes(struct rh_forecast *box)
{
	for (int k = 0; k < BOXES; k++)
		rh_forecast_free(&box[k]);
}

/* Launches so long that the slowest box takes unit_s for a micro-batch. */
static int pace(double *launch_s)
{
	struct rh_forecast box[BOXES] = {{0}};
	char limits[64];
	double slowest = 0;
	*launch_s = 1e-4;
	int rc = foresee(ROWS - 1, *launch_s, 0, 1e6, limits, box);
	printf("a micro-batch in boxes 1 to %d:", (int)BOXES);
	for (int k = 0; !rc && k < BOXES; k++)
		slowest = fmax(slowest, (1 - box[k].bubble) * box[k].step_seconds / ACCUMULATION);
	for (int k = 0; !rc && k < BOXES; k++)
		printf(" %.1f", (1 - box[k].bubble) * box[k].step_seconds / ACCUMULATION / slowest * unit_s * 1e3);
	printf(" ms (the last recomputes nothing)\n");
	*launch_s *= slowest > 0 ? unit_s / slowest : 1;
	free_boxes(box);
	return rc;
}

/* One network, all schedules. ratio: the better flushed one's step over PACI's. */
static int compare(const struct bench *bench, double trip_ms, double mbit, double *ratio)
{
	double flushed = INFINITY;
	int rc = 0;
	printf("\nround trip %g ms, %g Mbit/s\n%-14s %12s %12s\n", trip_ms, mbit, "schedule", "ms a step", "virtual ms");
	for (int r = 0; !rc && r < ROWS; r++) {
		struct rh_forecast box[BOXES] = {{0}};
		char limits[64] = "";
		double seconds = 0;
		rc = foresee(r, bench->launch_s, trip_ms, mbit, limits, box);
		rc = rc ? rc : measure(bench, r, limits, trip_ms, mbit, &seconds);
		if (!rc)
			printf("%-14s %12.1f %12.1f %s\n", rows[r].name, seconds * 1e3, box[0].step_seconds * 1e3, limits);
		fflush(stdout);
		flushed = r < FLUSHED ? fmin(flushed, seconds) : flushed;
		*ratio = flushed / seconds;
		free_boxes(box);
	}
	if (!rc)
		printf("PACI is %.2f times as fast as the better of GPipe and 1F1B\n", *ratio);
	return rc;
}

static int open_bench(struct bench *bench)
{
	snprintf(bench->folder, sizeof bench->folder, "/tmp/rh-paci-XXXXXX");
	int rc = access("build/release/tests/link/network", X_OK) ? rh_fail(-ENOENT, "make build/release/tests/link/network first") : 0;
	if (!rc && !mkdtemp(bench->folder))
		rc = -errno;
	for (int k = 0; !rc && k < BOXES; k++) {
		char path[256];
		key_path(bench->folder, k, path);
		rc = rh_identity_make(path);
	}
	return rc ? rc : pace(&bench->launch_s);
}

int main(int argc, char **argv)
{
	static const double table[][2] = {{0, 1000}, {25, 1000}, {50, 1000}, {25, 100}, {25, 20}};
	struct bench bench = {0};
	double ratio = 0, at_bar = 0;
	if (argc == 7 && !strcmp(argv[1], "box")) {
		int rc = run_box(argv + 2);
		if (rc)
			fprintf(stderr, "paci: box %d: %s\n", atoi(argv[2]) + 1, rh_error(rc));
		return rc != 0;
	}
	int rc = open_bench(&bench), count = argc > 1 ? argc - 1 : (int)(sizeof table / sizeof *table);
	for (int i = 0; !rc && i < count; i++) {
		double trip_ms = table[argc > 1 ? 0 : i][0], mbit = table[argc > 1 ? 0 : i][1];
		if (argc > 1 && sscanf(argv[i + 1], "%lf:%lf", &trip_ms, &mbit) != 2)
			rc = rh_fail(-EINVAL, "usage: paci [MS:MBIT...]");
		rc = rc ? rc : compare(&bench, trip_ms, mbit, &ratio);
		at_bar = trip_ms == 25 && mbit >= 1000 ? ratio : at_bar;
	}
	if (rc)
		fprintf(stderr, "paci: %s\n", rh_error(rc));
	int removed = rh_dir_remove(bench.folder);
	if (rc || removed)
		return 1;
	char machine[256];
	bench_machine(machine, sizeof machine);
	printf("{\"bench\": \"paci\", \"value\": %.3f, \"unit\": \"times the better of GPipe and 1F1B, 25 ms\", \"reference\": %.2f, "
	       "\"ratio\": %.3f, \"machine\": \"%s\"}\n",
	       at_bar, bar, at_bar / bar, machine);
	return 0;
}
