#include "cli/top.h"

#include "core/json.h"
#include "core/size.h"
#include "observe/status.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct view {
	const json_t *status;
	const struct top_style *style;
	struct rh_text *out;
};

/* ---- figures of the status ---- */

static const char *text_of(const json_t *status, const char *path)
{
	const char *text = json_string_value(rh_json_at(status, path));
	return text ? text : "";
}

static int is_state(const json_t *status, enum rh_run_phase phase)
{
	return !strcmp(text_of(status, "state"), rh_phase_name(phase));
}

int top_is_over(const json_t *status, int is_alive)
{
	return !is_alive || is_state(status, RH_PHASE_ENDED) || is_state(status, RH_PHASE_STOPPED) || is_state(status, RH_PHASE_FAILED);
}

/* ---- lines ---- */

/* Appends a line, cut at the view's width; what begins a character of UTF-8 is a column. Control characters are blanks: the text may be
 * others'. */
static int put(const struct view *view, const char *line)
{
	int columns = 0, rc = 0;
	const char *end = line;
	for (; *end; end++) {
		int begins = ((unsigned char)*end & 0xc0) != 0x80;
		if (begins && view->style->columns && columns == view->style->columns)
			break;
		columns += begins;
	}
	for (const char *byte = line; !rc && byte < end; byte++)
		rc = rh_text_append(view->out, (unsigned char)*byte < 0x20 || *byte == 0x7f ? " " : byte, 1);
	return rc ? rc : rh_text_append(view->out, "\n", 1);
}

static void show_time(double seconds, char out[32])
{
	int64_t whole = isfinite(seconds) && seconds > 0 ? (int64_t)(seconds + 0.5) : 0;
	if (whole >= 86400)
		snprintf(out, 32, "%" PRId64 " d %" PRId64 " h", whole / 86400, whole % 86400 / 3600);
	else if (whole >= 3600)
		snprintf(out, 32, "%" PRId64 ":%02" PRId64 ":%02" PRId64, whole / 3600, whole % 3600 / 60, whole % 60);
	else
		snprintf(out, 32, "%" PRId64 ":%02" PRId64, whole / 60, whole % 60);
}

/* What the run does, in words. */
static int put_state(const struct view *view, const char *dir)
{
	char line[1024], ago[32];
	const char *state = text_of(view->status, "state"), *fault = text_of(view->status, "line");
	double age = (double)view->style->now - rh_json_number_at(view->status, "written");
	show_time(age, ago);
	if (!view->style->is_alive && !is_state(view->status, RH_PHASE_ENDED) && !is_state(view->status, RH_PHASE_STOPPED) &&
	    !is_state(view->status, RH_PHASE_FAILED))
		snprintf(line, sizeof line, "%.300s: no process here runs it: killed, or on another machine; last heard of %s ago", dir,
		         ago);
	else if (*fault)
		snprintf(line, sizeof line, "%.300s: %.40s: %.600s", dir, state, fault);
	else
		snprintf(line, sizeof line, "%.300s: %.40s", dir, state);
	return put(view, line);
}

static int put_progress(const struct view *view)
{
	enum { BAR = 24 };
	char line[256], bar[BAR + 1], left[32], past[32];
	double step = rh_json_number_at(view->status, "step"), steps = rh_json_number_at(view->status, "steps"),
	       share = steps > 0 ? fmin(step / steps, 1) : 0;
	for (int i = 0; i < BAR; i++)
		bar[i] = i < (int)(share * BAR) ? '=' : ' ';
	bar[BAR] = 0;
	show_time(rh_json_number_at(view->status, "elapsed_seconds"), past);
	show_time(rh_json_number_at(view->status, "seconds_left"), left);
	if (!(steps > 0))
		return put(view, "step   no step is done yet");
	snprintf(line, sizeof line, "step   %.0f of %.0f  [%s] %.0f %%  epoch %.2f", step, steps, bar, 100 * share,
	         rh_json_number_at(view->status, "epoch"));
	int rc = put(view, line);
	snprintf(line, sizeof line, "time   %s so far, %s left", past, left);
	return rc ? rc : put(view, line);
}

/* The run's losses from its begin to now, as many columns as there is room. */
static void draw_losses(const struct view *view, char *out, size_t bytes)
{
	static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
	static const char letters[] = "_.,-=+*#";
	enum { LEVELS = 8, LEAST = 8, BESIDE = 24 };
	const json_t *values = rh_json_at(view->status, "losses.values");
	size_t count = json_array_size(values), columns = 64, used = 0;
	double low = INFINITY, high = -INFINITY;
	if (view->style->columns)
		columns = view->style->columns > LEAST + BESIDE ? (size_t)view->style->columns - BESIDE : LEAST;
	columns = columns < count ? columns : count;
	*out = 0;
	for (size_t i = 0; i < count; i++) {
		low = fmin(low, json_number_value(json_array_get(values, i)));
		high = fmax(high, json_number_value(json_array_get(values, i)));
	}
	for (size_t c = 0; c < columns; c++) {
		double sum = 0;
		size_t first = c * count / columns, end = (c + 1) * count / columns;
		for (size_t i = first; i < end; i++)
			sum += json_number_value(json_array_get(values, i));
		double share = high > low ? (sum / (double)(end - first) - low) / (high - low) : 0.5;
		int level = (int)fmin(share * LEVELS, LEVELS - 1);
		int length = view->style->is_ascii ? snprintf(out + used, bytes - used, "%c", letters[level])
		                                   : snprintf(out + used, bytes - used, "%s", blocks[level]);
		used += (size_t)length;
	}
}

static int put_loss(const struct view *view)
{
	char line[512], curve[320];
	double loss = rh_json_number_at(view->status, "loss");
	if (!isfinite(loss))
		return 0;
	draw_losses(view, curve, sizeof curve);
	snprintf(line, sizeof line, "loss   %-8.4g %s", loss, curve);
	return put(view, line);
}

static int put_evaluations(const struct view *view)
{
	char line[256], best[96] = "";
	double loss = rh_json_number_at(view->status, "eval.loss");
	if (!isfinite(loss))
		return 0;
	if (isfinite(rh_json_number_at(view->status, "best.metric")))
		snprintf(best, sizeof best, "; best %.4g at step %.0f", rh_json_number_at(view->status, "best.metric"),
		         rh_json_number_at(view->status, "best.step"));
	snprintf(line, sizeof line, "eval   %.4g at step %.0f%s", loss, rh_json_number_at(view->status, "eval.step"), best);
	return put(view, line);
}

static int put_speed(const struct view *view)
{
	char line[256], planned[128] = "";
	double speed = rh_json_number_at(view->status, "tokens_per_second"),
	       plan = rh_json_number_at(view->status, "run.planned_tokens_per_second");
	if (!isfinite(speed))
		return 0;
	if (plan > 0 && !json_is_true(rh_json_at(view->status, "run.rates_assumed"))) /* guessed rates predict nothing */
		snprintf(planned, sizeof planned, ", %.0f %% of the plan's %.0f", 100 * speed / plan, plan);
	snprintf(line, sizeof line, "speed  %.0f tokens/s%s", speed, planned);
	return put(view, line);
}

/* One line where it fits, else one for each part. */
static int put_parts(const struct view *view)
{
	char line[512] = "", part[96];
	int rc = 0, columns = view->style->columns ? view->style->columns : 1000;
	for (int p = 0; !rc && p < RH_TIME_PARTS; p++) {
		char path[64];
		snprintf(path, sizeof path, "time.%s", rh_time_part_key((enum rh_time_part)p));
		double share = rh_json_number_at(view->status, path);
		if (!(share >= 0.005))
			continue;
		snprintf(part, sizeof part, "%s %.0f %%", rh_time_part_name((enum rh_time_part)p), 100 * share);
		if (*line && (int)(strlen(line) + 2 + strlen(part)) > columns) {
			rc = put(view, line);
			*line = 0;
			snprintf(line, sizeof line, "       %s", part);
		} else {
			snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", *line ? ", " : "where  ", part);
		}
	}
	return rc || !*line ? rc : put(view, line);
}

static int put_tier(const struct view *view, const char *name, const char *used, const char *planned)
{
	char line[256];
	double bytes = rh_json_number_at(view->status, used), plan = rh_json_number_at(view->status, planned);
	if (!(bytes > 0))
		return 0;
	snprintf(line, sizeof line, "%-6s %s", name, rh_size((int64_t)bytes).text);
	if (plan > 0)
		snprintf(line + strlen(line), sizeof line - strlen(line), " of %s planned", rh_size((int64_t)plan).text);
	return put(view, line);
}

static int put_gpus(const struct view *view, const struct rh_nvml *nvml)
{
	const json_t *addresses = rh_json_at(view->status, "run.addresses");
	int rc = 0;
	for (size_t i = 0; !rc && nvml && i < json_array_size(addresses); i++) {
		struct rh_gpu_state gpu;
		char line[256], load[32] = "", heat[32] = "", power[32] = "";
		const char *address = json_string_value(json_array_get(addresses, i));
		int is_seen = 0;
		for (size_t b = 0; b < i; b++) /* two workers on one GPU */
			is_seen |= json_equal(json_array_get(addresses, b), json_array_get(addresses, i));
		if (is_seen || !address || !rh_nvml_read(nvml, address, &gpu))
			continue;
		if (gpu.load_percent >= 0)
			snprintf(load, sizeof load, "  load %d %%", gpu.load_percent);
		if (gpu.celsius >= 0)
			snprintf(heat, sizeof heat, "  %d C", gpu.celsius);
		if (gpu.watts >= 0)
			snprintf(power, sizeof power, "  %.0f W", gpu.watts);
		snprintf(line, sizeof line, "gpu %-2zu %s%s%s  %s", i, *gpu.name ? gpu.name : address, load, heat, power);
		rc = put(view, line);
	}
	return rc;
}

static int put_what(const struct view *view)
{
	char line[1024];
	const json_t *run = view->status;
	if (!*text_of(run, "run.model"))
		return 0;
	snprintf(line, sizeof line, "model  %.400s, %.80s, %.20s, %.200s", text_of(run, "run.model"), text_of(run, "run.method"),
	         text_of(run, "run.dtype"), text_of(run, "run.device"));
	return put(view, line);
}

int top_view(const json_t *status, const char *dir, const struct rh_nvml *nvml, const struct top_style *style, struct rh_text *out)
{
	const struct view view = {status, style, out};
	int rc = put_state(&view, dir);
	if (!rc)
		rc = put_what(&view);
	if (!rc)
		rc = put_progress(&view);
	if (!rc)
		rc = put_loss(&view);
	if (!rc)
		rc = put_evaluations(&view);
	if (!rc)
		rc = put_speed(&view);
	if (!rc)
		rc = put_parts(&view);
	if (!rc)
		rc = put_tier(&view, "device", "vram_peak_bytes", "run.planned.vram");
	if (!rc)
		rc = put_tier(&view, "host", "ram_peak_bytes", "run.planned.ram");
	if (!rc)
		rc = put_tier(&view, "nvme", "nvme_bytes", "run.planned.nvme");
	return rc ? rc : put_gpus(&view, nvml);
}
