#include "boxes/boxes.h"

#include "config/config.h"
#include "core/alloc.h"
#include "core/file.h"
#include "device/sim/clock.h"
#include "link/identity.h"
#include "link/probe.h"
#include "link/tcp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HANG_S = 120, WORDS = 48 };

char *const boxes_gpt2_words[] = {"examples/models/gpt2-medium.yaml",
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
                                  NULL};

/* ---- a box ---- */

/* A link whose activations are nobody's: a paced device has no memory behind its addresses. */
struct paced_link {
	struct rh_link base;
	struct rh_link *is;
	struct rh_sim_clock *clock; /* of the paced devices, borrowed */
	int64_t payload;
	char *nothing; /* (payload) */
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
	rh_free(own(link)->nothing);
	rh_free(link);
}

static int paced_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	RH_ASSERT(size <= own(link)->payload);
	return rh_link_send(own(link)->is, tag, is_executors(tag) ? own(link)->nothing : bytes, size);
}

static int paced_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	RH_ASSERT(size <= own(link)->payload);
	return rh_link_receive(own(link)->is, tag, is_executors(tag) ? own(link)->nothing : bytes, size);
}

static int paced_progress(struct rh_link *link, struct rh_link_progress *out)
{
	return own(link)->is->ops->progress(own(link)->is, out);
}

/* The clock goes on meanwhile: behind a wait in which it stood still, devices would begin as early as when the wait began. */
static int paced_wait(struct rh_link *link, int64_t sent, int64_t received)
{
	struct rh_link_progress progress;
	int rc;
	while (!(rc = paced_progress(link, &progress)) && (progress.sent < sent || progress.received < received))
		rh_sim_clock_pass(own(link)->clock);
	return rc;
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
static int open_link(const struct boxes_bench *bench, int box, int peer, const char *address, double bytes_per_s,
                     struct rh_sim_clock *clock, struct rh_link **out)
{
	char path[256], hash[RH_IDENTITY_HASH];
	*out = NULL;
	if (!address)
		return 0;
	key_path(bench->folder, peer, path);
	int rc = rh_identity_hash(path, hash);
	if (rc)
		return rc;
	key_path(bench->folder, box, path);
	const struct rh_tcp_options options = {.address = address,
	                                       .listens = peer > box,
	                                       .identity = path,
	                                       .peer = hash,
	                                       .greeting = "",
	                                       .messages = RH_BOX_MESSAGES,
	                                       .bytes_per_s = bytes_per_s};
	struct paced_link *link = rh_alloc(1, sizeof *link);
	if (!link)
		return -ENOMEM;
	link->payload = bench->payload;
	link->clock = clock;
	link->nothing = rh_alloc((size_t)bench->payload, 1);
	rc = link->nothing ? rh_tcp_open(&options, &link->is) : -ENOMEM;
	if (rc) {
		rh_free(link->nothing);
		rh_free(link);
		return rc;
	}
	struct rh_link_line line;
	rc = rh_link_probe(link->is, peer > box, &line);
	if (rc)
		return rc;
	link->base = (struct rh_link){
	        .ops = &paced_ops, .is_virtual = 1, .sends = link->is->sends, .receives = link->is->receives}; /* progress counts on */
	*out = &link->base;
	return 0;
}

static struct rh_hardware paced_hardware(double launch_s, double flops_per_s)
{
	struct rh_hardware out = {.name = (char *)(uintptr_t) "paced", .devices = 1};
	for (int p = 0; p < RH_PRODUCTS; p++)
		out.device.peak[p] = flops_per_s;
	out.device.other_flops_per_s = out.device.memory_bytes_per_s = 1e18;
	out.device.launch_s = launch_s;
	out.device.memory = INT64_C(1) << 40;
	out.link = (struct rh_hardware_link){.up_bytes_per_s = 1e15, .down_bytes_per_s = 1e15, .both_bytes_per_s = 2e15};
	out.host = (struct rh_hardware_host){.cores = 64, .dram_bytes_per_s = 1e16};
	for (int l = 0; l < RH_LAYOUTS; l++)
		out.host.optimizer_bytes_per_s[l] = 1e15;
	return out;
}

static void write_cuts(const struct boxes_bench *bench, char *out, size_t bytes)
{
	int used = 0;
	for (int k = 1; k < bench->boxes; k++)
		used += snprintf(out + used, bytes - (size_t)used, "%s%d", k > 1 ? "," : "[", bench->cuts[k]);
	snprintf(out + used, bytes - (size_t)used, "]");
}

static int load(const struct boxes_bench *bench, int row, const char *limits, struct rh_config *config, struct rh_forecast_input *input)
{
	char text[64], count[16], boxes[16], cuts[64], *word[WORDS];
	int words = 0;
	const char *const mode[] = {"--gradient_accumulation_steps",
	                            count,
	                            "--boxes",
	                            boxes,
	                            "--box",
	                            "1",
	                            "--box_cuts",
	                            cuts,
	                            "--mode",
	                            bench->row[row].mode,
	                            "--schedule",
	                            bench->row[row].schedule};
	int modes = (int)(sizeof mode / sizeof *mode) - (bench->row[row].schedule ? 0 : 2);
	snprintf(count, sizeof count, "%d", bench->micro_batches);
	snprintf(boxes, sizeof boxes, "%d", bench->boxes);
	write_cuts(bench, cuts, sizeof cuts);
	for (; bench->word[words]; words++)
		word[words] = bench->word[words];
	for (int i = 0; i < modes; i++)
		word[words++] = (char *)(uintptr_t)mode[i];
	if (limits && *limits) {
		snprintf(text, sizeof text, "%s", limits);
		word[words++] = (char *)(uintptr_t) "--admission_limits";
		word[words++] = text;
	}
	RH_ASSERT(words <= WORDS);
	int rc = rh_config_load("plan", words, word, NULL, config);
	return rc ? rc : rh_forecast_input_synthetic(config, bench->steps, input);
}

/* Prints the seconds of a step. word: number, row, limits, the pace's two, micro-batches, folder, bytes a second of the links. */
static int run_box(struct boxes_bench *bench, char **word)
{
	int number = atoi(word[0]);
	struct rh_config config;
	struct rh_forecast_input input;
	struct rh_forecast forecast = {0};
	struct rh_hardware hardware = paced_hardware(atof(word[3]), atof(word[4]));
	struct rh_box box = {.boxes = bench->boxes, .number = number, .lo = bench->cuts[number], .hi = bench->cuts[number + 1]};
	struct rh_session_machine machine = {.hardware = &hardware, .devices = 1, .box = &box};
	bench->micro_batches = atoi(word[5]);
	snprintf(bench->folder, sizeof bench->folder, "%s", word[6]);
	double bytes_per_s = atof(word[7]);
	int rc = load(bench, atoi(word[1]), word[2], &config, &input);
	if (rc)
		return rc;
	config.box = number + 1;
	rc = rh_sim_clock_create(1, &machine.clock);
	if (!rc)
		rc = open_link(bench, number, number - 1, number ? getenv("BELOW") : NULL, bytes_per_s, machine.clock, &box.link_below);
	if (!rc)
		rc = open_link(bench, number, number + 1, number + 1 < bench->boxes ? getenv("ABOVE") : NULL, bytes_per_s,
		               machine.clock, &box.link_above);
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

int boxes_run_if_box(const struct boxes_bench *bench, int argc, char **argv)
{
	enum { ARGUMENTS = 10 };
	struct boxes_bench own_bench = *bench;
	if (argc != ARGUMENTS || strcmp(argv[1], "box"))
		return -1;
	int rc = run_box(&own_bench, argv + 2);
	if (rc)
		fprintf(stderr, "%s: box %d: %s\n", bench->name, atoi(argv[2]) + 1, rh_error(rc));
	return rc != 0;
}

/* ---- all boxes ---- */

/* Payload's share of a line's bytes while both directions carry data: of each two packets of 1,500 bytes, headers (IPv4, and TCP with
 * timestamps), and the acknowledgement of two packets of the other direction. */
static double payload_bytes_per_s(double mbit)
{
	enum { PACKET = 1500, HEADERS = 52, ACKNOWLEDGEMENT = HEADERS, ACKNOWLEDGED = 2 };
	return mbit * 1e6 / 8 * (PACKET - HEADERS) / (PACKET + (double)ACKNOWLEDGEMENT / ACKNOWLEDGED);
}

/* The slowest box's seconds of a step, over the shaped network. */
static int measure(const struct boxes_bench *bench, int row, const struct boxes_pace *pace, struct boxes_link link, const char *limits,
                   double *seconds)
{
	char command[4096], line[256], self[512];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	if (length < 0)
		return -errno;
	self[length] = 0;
	int used = snprintf(command, sizeof command, "timeout %d build/release/tests/link/network", (int)HANG_S);
	for (int k = 0; k + 1 < bench->boxes; k++)
		used += snprintf(command + used, sizeof command - (size_t)used, " %g,%g,%g", link.trip_ms / 2, link.mbit, link.mbit);
	used += snprintf(command + used, sizeof command - (size_t)used, " --");
	for (int k = 0; k < bench->boxes; k++)
		used += snprintf(command + used, sizeof command - (size_t)used, " \"%s box %d %d '%s' %.9g %.9g %d %s %.9g 2>%s/errors%d\"",
		                 self, k, row, limits, pace->launch_s, pace->flops_per_s[k], bench->micro_batches, bench->folder,
		                 payload_bytes_per_s(link.mbit), bench->folder, k);
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
	if (boxes == bench->boxes && !status)
		return 0;
	snprintf(command, sizeof command, "tail -qn 1 %s/errors* >&2", bench->folder);
	(void)!system(command);
	return rh_fail(-EIO, "%d of %d boxes ended, exit %d", boxes, bench->boxes, status);
}

int boxes_foresee(const struct boxes_bench *bench, int row, const struct boxes_pace *pace, struct boxes_link link, char limits[64],
                  struct rh_forecast *out)
{
	struct rh_config config;
	struct rh_forecast_input input;
	struct rh_hardware hardware[BOXES_MOST];
	struct rh_session_machine machine[BOXES_MOST];
	struct rh_virtual_line line[BOXES_MOST][2];
	struct rh_admission_limits chosen;
	double unit[2];
	int rc = load(bench, row, NULL, &config, &input);
	if (rc)
		return rc;
	for (int k = 0; k < bench->boxes; k++) {
		hardware[k] = paced_hardware(pace->launch_s, pace->flops_per_s[k]);
		machine[k] = (struct rh_session_machine){.hardware = &hardware[k], .devices = 1};
		line[k][0] = line[k][1] = (struct rh_virtual_line){link.trip_ms / 2e3, payload_bytes_per_s(link.mbit)};
	}
	const struct rh_boxes_request request = {&config, machine, bench->cuts, line, &input};
	limits[0] = 0;
	if (config.mode == RH_MODE_PACI) {
		rc = rh_forecast_limits(&request, &chosen, unit);
		int used = 0;
		for (int k = 0; !rc && k < bench->boxes; k++)
			used += snprintf(limits + used, 64 - (size_t)used, "%s%s", k ? "," : "[", chosen.item[k]);
		snprintf(limits + used, 64 - (size_t)used, "]");
		config.admission_limits = chosen.list;
	}
	if (!rc)
		rc = rh_forecast_boxes(&request, out);
	config.admission_limits = (struct rh_list){0};
	rh_forecast_input_free(&input);
	rh_config_free(&config);
	return rc;
}

void boxes_free(const struct boxes_bench *bench, struct rh_forecast *out)
{
	for (int k = 0; k < bench->boxes; k++)
		rh_forecast_free(&out[k]);
}

int boxes_open(struct boxes_bench *bench)
{
	snprintf(bench->folder, sizeof bench->folder, "/tmp/rh-%s-XXXXXX", bench->name);
	if (access("build/release/tests/link/network", X_OK))
		return rh_fail(-ENOENT, "make build/release/tests/link/network first");
	if (!mkdtemp(bench->folder))
		return -errno;
	int rc = 0;
	for (int k = 0; !rc && k < bench->boxes; k++) {
		char path[256];
		key_path(bench->folder, k, path);
		rc = rh_identity_make(path);
	}
	return rc;
}

int boxes_find_pace(const struct boxes_bench *bench, int row, double unit_s, struct boxes_pace *pace)
{
	struct rh_forecast box[BOXES_MOST] = {{0}};
	char limits[64];
	double unit[BOXES_MOST], slowest = 0;
	*pace = (struct boxes_pace){.launch_s = 1e-4};
	for (int k = 0; k < bench->boxes; k++)
		pace->flops_per_s[k] = 1e18;
	int rc = boxes_foresee(bench, row, pace, (struct boxes_link){0, 1e6}, limits, box);
	for (int k = 0; !rc && k < bench->boxes; k++) {
		unit[k] = (1 - box[k].bubble) * box[k].step_seconds / bench->micro_batches;
		slowest = fmax(slowest, unit[k]);
	}
	boxes_free(bench, box);
	if (rc)
		return rc;
	printf("a micro-batch in boxes 1 to %d:", bench->boxes);
	for (int k = 0; k < bench->boxes; k++)
		printf(" %.1f", unit[k] / slowest * unit_s * 1e3);
	printf(" ms (the last recomputes nothing)\n");
	pace->launch_s *= unit_s / slowest;
	return 0;
}

int boxes_compare(const struct boxes_bench *bench, int row, const struct boxes_pace *pace, struct boxes_link link, int repetitions,
                  double *measured_s, struct boxes_times *out)
{
	struct rh_forecast box[BOXES_MOST] = {{0}};
	*out = (struct boxes_times){0};
	int rc = boxes_foresee(bench, row, pace, link, out->limits, box);
	for (int i = 0; !rc && i < repetitions; i++)
		rc = measure(bench, row, pace, link, out->limits, &measured_s[i]);
	out->virtual_s = box[0].step_seconds;
	boxes_free(bench, box);
	return rc;
}

int boxes_close(struct boxes_bench *bench, int rc)
{
	if (rc)
		fprintf(stderr, "%s: %s\n", bench->name, rh_error(rc));
	int removed = rh_dir_remove(bench->folder);
	return rc || removed;
}
