#include "forecast/forecast_boxes.h"

#include "core/alloc.h"
#include "core/fault.h"
#include "core/minmax.h"
#include "core/thread.h"
#include "modes/fluidpipe/fluidpipe.h"

#include <math.h>

/* Micro-batches times layers times steps that are simulated at once: some tenths of a second. */
enum { SIMULATED_MOST = 16000 };

struct host {
	const struct rh_boxes_request *request;
	const struct rh_forecast_input *input;
	struct rh_sim_clock *clock;
	struct rh_box box;
	struct rh_forecast *out;
	struct rh_fault fault;
	pthread_t thread;
	int has_thread;
};

static void *simulate(void *context)
{
	struct host *host = context;
	struct rh_config config = *host->request->config;
	struct rh_session_machine machine = host->request->machine[host->box.number];
	config.box = host->box.number + 1;
	machine.box = &host->box;
	machine.clock = host->clock;
	rh_sim_clock_enter(host->clock, host->box.number);
	int rc = rh_forecast(&config, &machine, host->input, NULL, host->out);
	rh_fault_keep(&host->fault, rc);
	rh_sim_clock_leave(host->clock, host->box.number, rc);
	return NULL;
}

static int is_of_link(int code)
{
	return code == -ECONNRESET || code == -ECONNABORTED;
}

/* The lowest box's fault that caused those of links. */
static int first_fault(struct host *host, int boxes)
{
	int found = -1, found_code = 0;
	for (int k = 0; k < boxes; k++) {
		int code = rh_fault_code(&host[k].fault);
		if (!code || (found_code && (is_of_link(code) || !is_of_link(found_code))))
			continue;
		found = k;
		found_code = code;
	}
	if (found < 0)
		return 0;
	int rc = rh_fault_get(&host[found].fault);
	return rh_fail_in(rc, "box %d", found + 1);
}

static int open_links(const struct rh_boxes_request *request, struct rh_sim_clock *clock, struct host *host)
{
	int boxes = (int)request->config->boxes, rc = 0;
	for (int k = 0; k < boxes; k++)
		host[k].box = (struct rh_box){.boxes = boxes, .number = k, .lo = request->first[k], .hi = request->first[k + 1]};
	for (int k = 0; !rc && k + 1 < boxes; k++) {
		struct rh_link *ends[2];
		rc = rh_virtual_open(clock, request->line[k], RH_BOX_MESSAGES, ends);
		if (rc)
			return rc;
		host[k].box.link_above = ends[0];
		host[k + 1].box.link_below = ends[1];
	}
	return rc;
}

/* Closes the ends of hosts that did not begin; a host that began closes its own. */
static void close_links(struct host *host, int boxes)
{
	for (int k = 0; k < boxes; k++) {
		if (host[k].has_thread)
			continue;
		rh_link_close(host[k].box.link_below);
		rh_link_close(host[k].box.link_above);
	}
}

static int run_hosts(const struct rh_boxes_request *request, const struct rh_forecast_input *input, struct rh_forecast *out)
{
	int boxes = (int)request->config->boxes;
	struct rh_sim_clock *clock = NULL;
	struct host *host = rh_alloc((size_t)boxes, sizeof *host);
	if (!host)
		return -ENOMEM;
	int rc = rh_sim_clock_create(boxes, &clock);
	if (!rc)
		rc = open_links(request, clock, host);
	for (int k = 0; k < boxes; k++) {
		host[k].request = request;
		host[k].input = input;
		host[k].clock = clock;
		host[k].out = &out[k];
		if (!rc)
			rc = rh_thread_start(&host[k].thread, simulate, &host[k]);
		host[k].has_thread = !rc;
		if (rc && clock)
			rh_sim_clock_leave(clock, k, rc);
	}
	for (int k = 0; k < boxes; k++)
		if (host[k].has_thread)
			pthread_join(host[k].thread, NULL);
	close_links(host, boxes);
	if (!rc)
		rc = first_fault(host, boxes);
	rh_sim_clock_free(clock);
	rh_free(host);
	return rc;
}

/* The step time of the slowest box, for which the others wait. */
static double slowest(const struct rh_forecast *box, int boxes)
{
	double seconds = 0;
	for (int k = 0; k < boxes; k++)
		seconds = fmax(seconds, box[k].step_seconds);
	return seconds;
}

static void free_all(struct rh_forecast *box, int boxes)
{
	for (int k = 0; k < boxes; k++) {
		rh_forecast_free(&box[k]);
		box[k] = (struct rh_forecast){0};
	}
}

/* Mode fluidpipe, of boxes that simulated so many steps of an epoch: what it takes beyond its steps, where box 1 waits for logits. */
static double epoch_wait(const struct rh_config *config, const struct rh_forecast *box, int steps)
{
	int waits = config->mode == RH_MODE_FLUIDPIPE && rh_config_distils(config, 0);
	return waits ? fmax(box[0].drained_seconds - steps * slowest(box, (int)config->boxes), 0) : 0;
}

/* Simulates a step of `count` micro-batches: its forecasts, its seconds, and an epoch's wait. */
static int time_shorter(const struct rh_boxes_request *request, int64_t count, struct rh_forecast *out, double *seconds, double *wait_s)
{
	int boxes = (int)request->config->boxes;
	struct rh_forecast_input shorter;
	int rc = rh_forecast_input_shorter(request->input, count, 2, &shorter);
	if (rc)
		return rc;
	free_all(out, boxes);
	rc = run_hosts(request, &shorter, out);
	*seconds = slowest(out, boxes);
	*wait_s = epoch_wait(request->config, out, shorter.steps);
	rh_forecast_input_free(&shorter);
	return rc;
}

/* Extrapolates the seconds linearly from two shorter steps; *wait_s is that of the longer one. *out gets the whole step's plans. */
static int extrapolate(const struct rh_boxes_request *request, int64_t most, struct rh_forecast *out, double *seconds, double *wait_s)
{
	int64_t count = request->input->work.train_micro_batches;
	struct rh_forecast_input plan_alone = *request->input;
	double less, more;
	plan_alone.steps = 0;
	int rc = time_shorter(request, most / 2, out, &less, wait_s);
	if (!rc)
		rc = time_shorter(request, most, out, &more, wait_s);
	if (rc)
		return rc;
	free_all(out, (int)request->config->boxes);
	*seconds = more + (more - less) * (double)(count - most) / (double)(most - most / 2);
	return run_hosts(request, &plan_alone, out);
}

/* Where logits stream: the time in which those of a step, with their ids, come down. Else 0. */
static double streamed_s(const struct rh_boxes_request *request, const struct rh_forecast *box)
{
	const struct rh_workload *work = &request->input->work;
	double speed = request->line[0][1].bytes_per_s;
	if (request->config->fluidpipe_logits != RH_LOGITS_STREAM || !rh_config_distils(request->config, 0) || !(speed > 0))
		return 0;
	return (double)(work->train_micro_batches * work->train.head_rows * (box->target_bytes + (int64_t)sizeof(int32_t))) / speed;
}

/* Mode fluidpipe: lower bound on a step's time. Box 2 expects at most fluidpipe_ahead messages, and those of at most
 * rh_fluidpipe_steps_ahead + 1 steps, so no more pass in a round trip. Simulated steps have no heads and no micro-batches on the line and
 * do not show all of this; and logits that stream are not simulated step by step. Other modes: 0. */
static double least_step_s(const struct rh_boxes_request *request, int64_t micro_batches, const struct rh_forecast *box)
{
	const struct rh_config *config = request->config;
	if (config->mode != RH_MODE_FLUIDPIPE)
		return 0;
	int64_t messages = micro_batches + RH_FLUIDPIPE_STEP_MESSAGES + rh_config_distils(config, 1),
	        expected = rh_min(config->fluidpipe_ahead, (rh_fluidpipe_steps_ahead(config) + 1) * messages);
	double round_trip_s = request->line[0][0].latency_s + request->line[0][1].latency_s;
	return fmax(round_trip_s * (double)messages / (double)expected, streamed_s(request, box));
}

int rh_forecast_boxes(const struct rh_boxes_request *request, struct rh_forecast *out)
{
	int boxes = (int)request->config->boxes;
	int64_t count = request->input->work.train_micro_batches;
	int64_t most = rh_max(SIMULATED_MOST / (2 * rh_max(request->first[boxes], 1)), 8 * boxes);
	double seconds = 0, wait_s = 0;
	for (int k = 0; k < boxes; k++)
		out[k] = (struct rh_forecast){0};
	int rc = count > most ? extrapolate(request, most, out, &seconds, &wait_s) : run_hosts(request, request->input, out);
	if (rc)
		return rc;
	if (count <= most) {
		seconds = slowest(out, boxes);
		wait_s = epoch_wait(request->config, out, request->input->steps);
	}
	seconds = fmax(seconds, least_step_s(request, count, out));
	for (int k = 0; k < boxes; k++) {
		out[k].step_seconds = seconds;
		out[k].epoch_wait_seconds = wait_s;
		out[k].tokens_per_second = seconds > 0 ? request->input->tokens_a_step / seconds : 0;
	}
	return 0;
}
