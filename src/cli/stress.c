/* `roundhouse stress`: the longest sequence, by prediction and by trial. Each part runs in a process of its own, which is ended where it
 * takes too long: what it reserved goes with it, and files on NVMe have no name. This process reserves nothing. */
#include "cli/stress.h"

#include "cli/output.h"
#include "cli/verbs.h"
#include "config/device_spec.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "forecast/machine_find.h"
#include "machine/machine.h"
#include "observe/chart.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const double default_s = 600;

/* What a process is asked for. */
struct part {
	struct rh_config config;
	enum rh_placement placement;
	double until_s;
	const struct rh_stress_found *found; /* NULL: predict; else try its length */
};

/* What comes back, as a whole or not at all: later ones say more. */
struct answer {
	struct rh_stress_found found;
	struct rh_stress_tried tried;
	char machine[64];
	int devices, rates_assumed;
	char fault[512]; /* "": none */
};

static void send_answer(int pipe_end, const struct answer *answer)
{
	const char *at = (const char *)answer;
	for (size_t left = sizeof *answer; left;) {
		ssize_t sent = write(pipe_end, at, left);
		if (sent < 0 && errno != EINTR)
			_exit(1);
		at += sent > 0 ? sent : 0;
		left -= sent > 0 ? (size_t)sent : 0;
	}
}

static int predict(const struct part *part, struct answer *out)
{
	struct rh_machine_found found;
	int rc = rh_machine_find(&part->config, &found);
	if (rc)
		return rc;
	snprintf(out->machine, sizeof out->machine, "%s", found.hardware.name);
	out->devices = found.machine.devices;
	out->rates_assumed = found.assumed;
	rc = rh_stress_predict(&part->config, &found.machine, part->placement, part->until_s, &out->found);
	rh_machine_found_free(&found);
	return rc;
}

struct sending {
	int pipe_end;
	struct answer *answer;
};

static void send_reserved(void *context, const struct rh_stress_tried *so_far)
{
	struct sending *sending = context;
	sending->answer->tried = *so_far;
	send_answer(sending->pipe_end, sending->answer);
}

static int try_length(const struct part *part, int pipe_end, struct answer *out)
{
	enum { SHORTER = 4 }; /* times, by 1/32: another program may have taken memory since */
	struct sending sending = {pipe_end, out};
	struct rh_machine_found found;
	int64_t tokens = part->found->tokens;
	int rc = rh_machine_find(&part->config, &found);
	if (rc)
		return rc;
	for (int i = 0; i < SHORTER; i++, tokens -= tokens >> 5) {
		const struct rh_config config = rh_stress_config(&part->config, &found.hardware, part->placement, tokens);
		double scale = (double)tokens / (double)part->found->tokens;
		rh_stress_try(&config, part->until_s - rh_clock_seconds(), part->found->step_seconds * scale, send_reserved, &sending,
		              &out->tried);
		if (out->tried.reserved_tokens)
			break;
	}
	rh_machine_found_free(&found);
	return 0;
}

/* The process. If memory should run short all the same, the kernel takes this one before any other. */
static void run_part(const struct part *part, int pipe_end)
{
	static struct answer answer;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	if (file >= 0) {
		(void)!write(file, "1000", 4);
		close(file);
	}
	rh_log_quiet(1);
	int rc = part->found ? try_length(part, pipe_end, &answer) : predict(part, &answer);
	if (rc)
		snprintf(answer.fault, sizeof answer.fault, "%s", rh_error(rc));
	send_answer(pipe_end, &answer);
	_exit(0);
}

/* 1: an answer came, 0: the pipe has ended or the time is up. */
static int read_answer(int pipe_end, double until_s, struct answer *out)
{
	struct answer next;
	char *at = (char *)&next;
	for (size_t left = sizeof next; left;) {
		double wait_s = until_s - rh_clock_seconds();
		struct pollfd poll_of = {.fd = pipe_end, .events = POLLIN};
		if (wait_s <= 0)
			return 0;
		int ready = poll(&poll_of, 1, wait_s < 1000 ? (int)(wait_s * 1000) + 1 : 1000000);
		ssize_t got = ready > 0 ? read(pipe_end, at, left) : ready < 0 && errno != EINTR ? 0 : -1;
		if (ready > 0 && got <= 0 && !(got < 0 && errno == EINTR))
			return 0;
		at += got > 0 ? got : 0;
		left -= got > 0 ? (size_t)got : 0;
	}
	*out = next;
	return 1;
}

/* How a process ended that has not said all. */
struct ending {
	int is_late;
	char why[128]; /* "": it has said all */
};

static void find_ending(int status, int is_late, struct ending *out)
{
	*out = (struct ending){0};
	if (WIFEXITED(status) && !WEXITSTATUS(status))
		return;
	out->is_late = is_late;
	if (is_late)
		snprintf(out->why, sizeof out->why, "the time was up");
	else if (WIFSIGNALED(status))
		snprintf(out->why, sizeof out->why, "its process ended with signal %d%s", WTERMSIG(status),
		         WTERMSIG(status) == SIGKILL ? ": the host's memory may have run short" : "");
	else
		snprintf(out->why, sizeof out->why, "its process ended with exit code %d", WEXITSTATUS(status));
}

/* The number of answers, of which *out is the last; negative: no process could be started. */
static int ask(const struct part *part, struct answer *out, struct ending *ending)
{
	int ends[2], count = 0, status = 0;
	*out = (struct answer){0};
	if (pipe2(ends, O_CLOEXEC))
		return rh_fail(-errno, "no pipe: %s", strerror(errno));
	pid_t child = fork();
	if (child < 0) {
		int rc = rh_fail(-errno, "no process: %s", strerror(errno));
		close(ends[0]);
		close(ends[1]);
		return rc;
	}
	if (!child) {
		close(ends[0]);
		run_part(part, ends[1]);
	}
	close(ends[1]);
	while (read_answer(ends[0], part->until_s, out))
		count++;
	int is_late = rh_clock_seconds() >= part->until_s;
	kill(child, SIGKILL); /* what ended before keeps its own status */
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	close(ends[0]);
	find_ending(status, is_late, ending);
	return count;
}

static int find_place(struct part *part, struct stress_result *result)
{
	struct answer answer;
	struct ending ending;
	int rc = ask(part, &answer, &ending);
	if (rc < 0)
		return rc;
	if (rc && *answer.fault)
		return rh_fail(-EINVAL, "%s", answer.fault);
	result->is_out_of_time |= ending.is_late;
	if (!rc) {
		snprintf(answer.found.why, sizeof answer.found.why, "%s", ending.is_late ? "there was no time to find it" : ending.why);
		result->found[part->placement] = answer.found;
		return 0;
	}
	static char machine[64];
	snprintf(machine, sizeof machine, "%s", answer.machine);
	result->machine = machine;
	result->devices = answer.devices;
	result->rates_assumed = answer.rates_assumed;
	result->found[part->placement] = answer.found;
	return 0;
}

static int try_place(struct part *part, struct stress_result *result)
{
	struct answer answer;
	struct ending ending;
	part->found = &result->found[part->placement];
	if (!part->found->tokens)
		return 0;
	int rc = ask(part, &answer, &ending);
	if (rc < 0)
		return rc;
	struct rh_stress_tried *tried = &result->tried[part->placement];
	*tried = answer.tried;
	result->is_tried[part->placement] = 1;
	if (*answer.fault)
		snprintf(tried->why, sizeof tried->why, "%s", answer.fault);
	if (!*tried->why)
		snprintf(tried->why, sizeof tried->why, "%s", ending.why);
	result->is_out_of_time |= ending.is_late;
	return 0;
}

/* Predictions first: they take a share of the time. */
static int run(const struct rh_config *config, struct stress_result *result)
{
	static const double for_prediction = 0.5;
	double began = rh_clock_seconds(), all_s = config->time_s > 0 ? config->time_s : default_s;
	struct part part = {.config = *config};
	int rc = 0;
	if (!part.config.max_ram && result->is_real) { /* both parts keep to what is free now */
		int64_t unused = rh_machine_free_ram(), spare = (int64_t)2 << 30;
		part.config.max_ram = unused - (unused > 2 * spare ? spare : unused / 2);
	}
	for (int p = 0; !rc && p < RH_PLACEMENTS; p++) {
		part.placement = (enum rh_placement)p;
		part.until_s = began + all_s * (result->is_real ? for_prediction : 1) * (p + 1) / RH_PLACEMENTS;
		rc = find_place(&part, result);
	}
	for (int p = 0; !rc && p < RH_PLACEMENTS && result->is_real; p++) {
		double left_s = began + all_s - rh_clock_seconds();
		part.placement = (enum rh_placement)p;
		part.until_s = rh_clock_seconds() + left_s / (RH_PLACEMENTS - p);
		rc = try_place(&part, result);
	}
	return rc;
}

/* Tokens a second by length, a line for each placement. */
static int draw(const struct stress_result *result, const char *title, struct rh_text *out)
{
	double x[RH_PLACEMENTS][RH_STRESS_POINTS], y[RH_PLACEMENTS][RH_STRESS_POINTS];
	char label[RH_PLACEMENTS][64];
	struct rh_series series[RH_PLACEMENTS];
	struct rh_chart chart = {
	        .title = title, .x_name = "tokens in the sequence", .y_name = "tokens/s", .is_doubling = 1, .is_file = 1, .series = series};
	for (int p = 0; p < RH_PLACEMENTS; p++) {
		const struct rh_stress_found *found = &result->found[p];
		for (int i = 0; i < found->points; i++) {
			x[p][i] = (double)found->point[i].tokens;
			y[p][i] = found->point[i].tokens_per_second;
		}
		snprintf(label[p], sizeof label[p], "%s: %lld", rh_placement_name[p], (long long)found->tokens);
		series[chart.count++] = (struct rh_series){
		        .name = rh_placement_name[p], .colour = p, .x = x[p], .y = y[p], .count = (size_t)found->points, .label = label[p]};
	}
	return rh_chart_svg(&chart, out);
}

static int write_svg(const struct rh_config *config, const struct stress_result *result)
{
	struct rh_text svg = {0};
	char title[256];
	if (!config->svg)
		return 0;
	snprintf(title, sizeof title, "%s: tokens a second by length of the sequence, %s",
	         config->model_name_or_path ? config->model_name_or_path : config->config_name, result->machine ? result->machine : "");
	int rc = draw(result, title, &svg);
	if (!rc)
		rc = rh_file_write_whole(config->svg, svg.bytes, svg.length);
	rh_text_free(&svg);
	return rc;
}

const char *verb_stress_device(void)
{
	static char name[64];
	int ends[2];
	size_t length = 0;
	if (pipe2(ends, O_CLOEXEC))
		return "cpu:1";
	pid_t child = fork();
	if (!child) {
		const char *found = rh_machine_default_device();
		_exit(write(ends[1], found, strlen(found)) < 0);
	}
	close(ends[1]);
	for (ssize_t got = 1; child > 0 && got > 0 && length + 1 < sizeof name; length += got > 0 ? (size_t)got : 0)
		got = read(ends[0], name + length, sizeof name - 1 - length);
	close(ends[0]);
	while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	return *name ? name : "cpu:1";
}

int verb_stress(const struct rh_config *config)
{
	static struct stress_result result;
	struct rh_device_spec spec;
	struct rh_text text = {0};
	if (config->mode != RH_MODE_LOCAL)
		return rh_fail(-EINVAL, "it is for one box; add --mode local");
	if (config->preference.answers)
		return rh_fail(-EINVAL, "it tries rows of random tokens, not answers that are compared; leave loss_type out");
	int rc = config->svg ? verb_check_output(config, "svg", config->svg, OUTPUT_SVG) : 0;
	if (!rc)
		rc = rh_device_spec_parse(config->device, &spec);
	if (rc)
		return rc;
	result.is_real = spec.kind != RH_DEVICE_SIM;
	rc = run(config, &result);
	if (!rc && config->json)
		rc = verb_print_json(stress_json(&result));
	else if (!rc && !(rc = stress_put(&result, &text)))
		fputs(text.bytes, stdout);
	rh_text_free(&text);
	if (!rc)
		rc = write_svg(config, &result);
	int64_t most = 0;
	for (int p = 0; p < RH_PLACEMENTS; p++)
		most = result.found[p].tokens > most ? result.found[p].tokens : most;
	return rc ? rc : most ? 0 : VERB_SAYS_NO;
}
