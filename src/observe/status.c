#include "observe/status.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOSSES = 64, BOOT_BYTES = 40, HOST_BYTES = 64 };
#define LEAST_SECONDS 0.2
#define FADING        0.95

struct rh_status {
	char *path;
	json_t *facts, *eval, *best;
	enum rh_run_phase phase;
	char line[512]; /* of the error that ended the run */
	struct rh_step_report report;
	double part[RH_TIME_PARTS]; /* fading sums */
	/* means of `each` steps, of which the last has had `in_last` so far */
	double loss[LOSSES];
	int64_t losses, each, in_last;
	int64_t first;    /* the step of the first; 0: there is none yet */
	double written_s; /* on the clock */
	char boot[BOOT_BYTES], host[HOST_BYTES];
	int64_t started;
	int has_warned;
};

const char *rh_phase_name(enum rh_run_phase phase)
{
	static const char *const names[RH_PHASES] = {"training", "evaluating", "ended", "stopped", "failed"};
	return names[phase];
}

static const struct {
	const char *key, *name;
} parts[RH_TIME_PARTS] = {{"compute_seconds", "computing"},
                          {"weights_wait_seconds", "waiting for weights"},
                          {"activations_wait_seconds", "for activations"},
                          {"gradients_wait_seconds", "for gradients to leave"},
                          {"optimizer_wait_seconds", "for the optimizer"}};

const char *rh_time_part_name(enum rh_time_part part)
{
	return parts[part].name;
}

const char *rh_time_part_key(enum rh_time_part part)
{
	return parts[part].key;
}

/* ---- processes ---- */

/* When a process began, in ticks since the machine did; -1: there is none. */
static int64_t started_of(int64_t pid)
{
	char path[64], line[1024];
	snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
	FILE *file = fopen(path, "r");
	if (!file)
		return -1;
	size_t length = fread(line, 1, sizeof line - 1, file);
	fclose(file);
	line[length] = 0;
	char *at = strrchr(line, ')'); /* behind the name, which may hold anything */
	for (int field = 2; at && field < 22; field++)
		at = strchr(at + 1, ' ');
	return at ? strtoll(at, NULL, 10) : -1;
}

static void read_boot(char out[BOOT_BYTES])
{
	FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
	if (!file || !fgets(out, BOOT_BYTES, file))
		*out = 0;
	if (file)
		fclose(file);
	out[strcspn(out, "\n")] = 0;
}

int rh_status_is_alive(const json_t *status)
{
	char boot[BOOT_BYTES];
	const char *said = json_string_value(json_object_get(status, "boot"));
	int64_t pid = json_integer_value(json_object_get(status, "pid")),
	        started = json_integer_value(json_object_get(status, "process_started"));
	read_boot(boot);
	return said && !strcmp(said, boot) && pid > 0 && started_of(pid) == started;
}

/* ---- the file ---- */

static int set(json_t *json, const char *key, json_t *value)
{
	return json_object_set_new(json, key, value) ? -ENOMEM : 0;
}

static json_t *parts_json(const struct rh_status *status)
{
	json_t *json = json_object();
	double all = 0;
	for (int p = 0; p < RH_TIME_PARTS; p++)
		all += status->part[p];
	for (int p = 0; json && p < RH_TIME_PARTS; p++)
		(void)json_object_set_new(json, parts[p].key, rh_json_number(all > 0 ? status->part[p] / all : NAN));
	return json;
}

static json_t *losses_json(const struct rh_status *status)
{
	json_t *list = json_array();
	for (int64_t i = 0; list && i < status->losses; i++)
		(void)json_array_append_new(list, rh_json_number(status->loss[i]));
	return list ? json_pack("{s:I, s:I, s:o}", "first", (json_int_t)status->first, "each", (json_int_t)status->each, "values", list)
	            : NULL;
}

static json_t *status_json(const struct rh_status *status)
{
	const struct rh_step_report *report = &status->report;
	const struct {
		const char *key;
		double value;
	} reals[] = {{"epoch", report->epoch},
	             {"loss", report->loss},
	             {"grad_norm", report->grad_norm},
	             {"learning_rate", report->learning_rate},
	             {"tokens_per_second", report->tokens_per_second},
	             {"planned_tokens_per_second", report->planned_tokens_per_second > 0 ? report->planned_tokens_per_second : NAN},
	             {"elapsed_seconds", report->elapsed_seconds},
	             {"seconds_left", report->seconds_left}};
	json_t *line = json_string(status->line); /* NULL: it is not UTF-8 */
	json_t *json =
	        json_pack("{s:s, s:o, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "state", rh_phase_name(status->phase), "line",
	                  line ? line : json_string(""), "pid", (json_int_t)getpid(), "process_started", (json_int_t)status->started,
	                  "boot", status->boot, "host", status->host, "written", (json_int_t)time(NULL), "step", (json_int_t)report->step,
	                  "steps", (json_int_t)report->steps, "vram_peak_bytes", (json_int_t)report->vram_peak_bytes, "ram_peak_bytes",
	                  (json_int_t)report->ram_peak_bytes, "nvme_bytes", (json_int_t)report->nvme_peak_bytes);
	int rc = json ? 0 : -ENOMEM;
	for (size_t i = 0; !rc && i < sizeof reals / sizeof *reals; i++)
		rc = set(json, reals[i].key, rh_json_number(reals[i].value));
	if (!rc)
		rc = set(json, "time", parts_json(status));
	if (!rc)
		rc = set(json, "losses", losses_json(status));
	if (!rc && status->eval)
		rc = set(json, "eval", json_incref(status->eval));
	if (!rc && status->best)
		rc = set(json, "best", json_incref(status->best));
	if (!rc)
		rc = set(json, "run", json_incref(status->facts));
	if (rc) {
		json_decref(json);
		json = NULL;
	}
	return json;
}

/* Whatever fails here is told once, and is no fault of the run's. */
static void write_now(struct rh_status *status)
{
	char line[RH_ERROR_LINE] = "";
	rh_error_swap(line);
	json_t *json = status_json(status);
	char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	json_decref(json);
	status->written_s = rh_clock_seconds();
	if (text && rh_file_put(status->path, text, strlen(text))) {
		if (!status->has_warned)
			rh_note("warning: %s; what top shows is old", rh_error(-EIO));
		status->has_warned = 1;
	}
	rh_error_swap(line);
	free(text);
}

int rh_status_open(const char *dir, json_t *facts, struct rh_status **out)
{
	struct rh_status *status = rh_alloc(1, sizeof *status);
	if (status)
		*status = (struct rh_status){
		        .path = rh_path_join(dir, RH_STATUS_NAME), .facts = facts, .each = 1, .started = started_of(getpid())};
	else
		json_decref(facts);
	if (!status || !status->path || !facts) {
		rh_status_close(status);
		return -ENOMEM;
	}
	status->report = (struct rh_step_report){.loss = NAN, .grad_norm = NAN, .learning_rate = NAN, .tokens_per_second = NAN};
	read_boot(status->boot);
	if (gethostname(status->host, sizeof status->host - 1))
		*status->host = 0;
	write_now(status);
	*out = status;
	return 0;
}

void rh_status_times(struct rh_status *status, const double seconds[RH_TIME_PARTS])
{
	for (int p = 0; status && p < RH_TIME_PARTS; p++)
		status->part[p] = FADING * status->part[p] + seconds[p];
}

/* When there is no room, two neighbours become one. */
static void add_loss(struct rh_status *status, int64_t step, double loss)
{
	if (!isfinite(loss))
		return;
	if (!status->losses)
		status->first = step;
	if (status->losses == LOSSES && status->in_last == status->each) {
		for (int i = 0; i < LOSSES / 2; i++)
			status->loss[i] = (status->loss[2 * i] + status->loss[2 * i + 1]) / 2;
		status->losses = LOSSES / 2;
		status->each *= 2;
		status->in_last = status->each;
	}
	if (!status->losses || status->in_last == status->each) {
		status->loss[status->losses++] = loss;
		status->in_last = 1;
		return;
	}
	double *last = &status->loss[status->losses - 1];
	*last += (loss - *last) / (double)++status->in_last;
}

void rh_status_step(struct rh_status *status, const struct rh_step_report *report, double now_seconds)
{
	if (!status)
		return;
	status->report = *report;
	status->phase = RH_PHASE_TRAINING;
	add_loss(status, report->step, report->loss);
	if (now_seconds - status->written_s >= LEAST_SECONDS || report->step == report->steps)
		write_now(status);
}

void rh_status_phase(struct rh_status *status, enum rh_run_phase phase, const char *line)
{
	if (!status)
		return;
	status->phase = phase;
	rh_text_shorten(line ? line : "", status->line, sizeof status->line);
	write_now(status);
}

void rh_status_eval(struct rh_status *status, const struct rh_eval_report *report, int64_t best_step, double best_metric)
{
	if (!status)
		return;
	json_decref(status->eval);
	json_decref(status->best);
	status->eval = json_pack("{s:I, s:o, s:o}", "step", (json_int_t)report->step, "loss", rh_json_number(report->loss), "seconds",
	                         rh_json_number(report->seconds));
	status->best = best_step ? json_pack("{s:I, s:o}", "step", (json_int_t)best_step, "metric", rh_json_number(best_metric)) : NULL;
	rh_status_phase(status, RH_PHASE_TRAINING, NULL);
}

void rh_status_close(struct rh_status *status)
{
	if (!status)
		return;
	json_decref(status->facts);
	json_decref(status->eval);
	json_decref(status->best);
	rh_free(status->path);
	rh_free(status);
}
