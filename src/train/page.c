#include "train/page.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/version.h"
#include "observe/chart.h"
#include "observe/html.h"
#include "train/page_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char style[] =
        ".charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); gap: 1rem; }\n"
        ".charts section { margin: 0; } .charts svg { width: 100%; height: auto; display: block; }\n"
        ".charts path { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .charts .grid { stroke: var(--line); stroke-width: 1; }\n"
        ".charts .dashed { stroke-dasharray: 5 4; stroke-width: 1.2; }\n"
        ".tick { fill: var(--soft); font: 11px system-ui, sans-serif; }\n"
        "circle { opacity: 0; } circle:hover, .mark { opacity: 1; }\n"
        ".s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); }\n"
        "circle { fill: var(--card); stroke-width: 1.6; } .bar { display: flex; height: 1.2rem; border-radius: 4px; overflow: hidden; }\n"
        ".f0 { background: var(--s0); } .f1 { background: var(--s1); } .f2 { background: var(--s2); } .f3 { background: var(--s3); }\n"
        ".part { white-space: nowrap; } .f4 { background: var(--soft); }\n"
        ".key { display: inline-block; width: .8em; height: .8em; border-radius: 2px;\n"
        "  margin-right: .35em; } .scroll { overflow-x: auto; } .zoom svg { display: block; width: 100%; min-width: 48rem; height: auto;\n"
        "  border-radius: 4px; } button { font: inherit; padding: .1rem .6rem; }\n"
        "h1 { overflow-wrap: anywhere; } td pre { display: inline; }\n"
        "@media (max-width: 40rem) { body { margin: 1rem auto; padding: 0 .6rem; } section { padding: .7rem; overflow-x: auto; } }\n"
        "@media print { section { break-inside: avoid; } body { margin: 0; max-width: none; } details, .tools { display: none; }\n"
        "  .zoom svg { min-width: 0; } .bar, .key { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }\n";

/* Pictures of class zoom: the buttons, the wheel with Ctrl, and dragging. */
const char page_script[] =
        "<script>\n"
        "for (const box of document.querySelectorAll('.zoom')) {\n"
        "  const svg = box.querySelector('svg'), w = +svg.getAttribute('width'), h = +svg.getAttribute('height');\n"
        "  let x = 0, y = 0, scale = 1, from = null;\n"
        "  const show = () => {\n"
        "    scale = Math.min(Math.max(scale, 1), 200);\n"
        "    x = Math.min(Math.max(x, 0), w - w / scale); y = Math.min(Math.max(y, 0), h - h / scale);\n"
        "    svg.setAttribute('viewBox', [x, y, w / scale, h / scale].join(' '));\n"
        "    svg.style.touchAction = scale > 1 ? 'none' : 'auto'; svg.style.cursor = scale > 1 ? 'grab' : 'auto';\n"
        "  };\n"
        "  const zoom = (by, px, py) => {\n"
        "    const to = Math.min(Math.max(scale * by, 1), 200);\n"
        "    x += px * w * (1 / scale - 1 / to); y += py * h * (1 / scale - 1 / to); scale = to; show();\n"
        "  };\n"
        "  for (const button of box.parentNode.querySelectorAll('[data-zoom]'))\n"
        "    button.addEventListener('click', () => +button.dataset.zoom ? zoom(+button.dataset.zoom, .5, .5) : (scale = 1, show()));\n"
        "  svg.addEventListener('wheel', e => {\n"
        "    if (!e.ctrlKey && !e.metaKey) return;\n"
        "    const r = svg.getBoundingClientRect(); e.preventDefault();\n"
        "    zoom(e.deltaY < 0 ? 1.25 : .8, (e.clientX - r.left) / r.width, (e.clientY - r.top) / r.height);\n"
        "  }, {passive: false});\n"
        "  svg.addEventListener('pointerdown', e => { if (scale > 1) { from = [e.clientX, e.clientY]; svg.setPointerCapture(e.pointerId); "
        "} });\n"
        "  svg.addEventListener('pointermove', e => {\n"
        "    if (!from) return;\n"
        "    const r = svg.getBoundingClientRect();\n"
        "    x -= (e.clientX - from[0]) / r.width * w / scale; y -= (e.clientY - from[1]) / r.height * h / scale;\n"
        "    from = [e.clientX, e.clientY]; show();\n"
        "  });\n"
        "  svg.addEventListener('pointerup', () => { from = null; }); svg.addEventListener('pointercancel', () => { from = null; });\n"
        "  show();\n"
        "}\n"
        "</script>\n";

static int put_head(const struct page_run *runs, size_t count, struct rh_text *out)
{
	int rc = rh_text_printf(out,
	                        "<!doctype html><!-- " RH_MARK
	                        " -->\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
	                        "content=\"width=device-width, initial-scale=1\">\n"
	                        "<title>Roundhouse: what the run did</title>\n<style>\n" RH_HTML_STYLE "%s</style></head><body>\n<h1>",
	                        style);
	for (size_t r = 0; !rc && r < count; r++) {
		rc = rh_text_printf(out, "%s<span class=\"key f%zu\"></span>", r ? " &nbsp; " : "", r);
		if (!rc)
			rc = page_put_text(out, runs[r].dir);
	}
	return rc ? rc : rh_text_printf(out, "</h1>\n");
}

/* How a run ended, or that it still goes on. */
static int put_state(const struct page_run *run, struct rh_text *out)
{
	const char *state = json_string_value(page_fact_json(run, "state")), *line = json_string_value(page_fact_json(run, "line"));
	int is_over = state && (!strcmp(state, rh_phase_name(RH_PHASE_ENDED)) || !strcmp(state, rh_phase_name(RH_PHASE_STOPPED)) ||
	                        !strcmp(state, rh_phase_name(RH_PHASE_FAILED)));
	int rc = rh_text_printf(out, "<td class=n>");
	if (!rc && state)
		rc = page_put_text(out, is_over || rh_status_is_alive(run->status) ? state : "killed, or on another machine");
	if (!rc && line && *line)
		rc = rh_text_printf(out, ": ");
	return rc || !line ? rc : page_put_text(out, line);
}

static int put_cell(struct rh_text *out, const char *format, double value)
{
	char text[64] = "";
	if (isfinite(value))
		snprintf(text, sizeof text, fabs(value) < 1e12 ? format : "%.4g", value);
	return rh_text_printf(out, "<td class=n>%s", text);
}

/* Of a column of metrics.jsonl, or of the plan in status.json. */
struct summary_row {
	const char *name, *format;
	enum page_column column;
	enum page_how how;
	const char *fact;
	double unit; /* 0: 1, and 0 is a figure; of memory 0 says that the tier was not used */
};

static double summary_figure(const struct page_run *run, const struct summary_row *row)
{
	double figure = row->fact ? page_fact(run, row->fact) : page_figure(run, row->column, row->how);
	return row->unit == 0 ? figure : figure > 0 ? figure / row->unit : NAN;
}

static int put_row(const struct page_run *runs, size_t count, const struct summary_row *row, struct rh_text *out)
{
	int some = 0, rc = 0;
	for (size_t r = 0; r < count; r++)
		some |= isfinite(summary_figure(&runs[r], row)) != 0;
	if (!some)
		return 0;
	rc = rh_text_printf(out, "<tr><td>%s", row->name);
	for (size_t r = 0; !rc && r < count; r++)
		rc = put_cell(out, row->format, summary_figure(&runs[r], row));
	return rc ? rc : rh_text_printf(out, "</tr>\n");
}

static int put_summary(const struct page_run *runs, size_t count, struct rh_text *out)
{
	enum { gib = 1 << 30 };
	static const struct summary_row rows[] = {{"steps", "%.0f", PAGE_STEP, PAGE_LAST, NULL, 0},
	                                          {"steps to do", "%.0f", 0, 0, "steps", 0},
	                                          {"epochs", "%.3g", PAGE_EPOCH, PAGE_LAST, NULL, 0},
	                                          {"loss of the last steps", "%.4f", PAGE_LOSS, PAGE_LAST, NULL, 0},
	                                          {"best evaluation's loss", "%.4f", PAGE_EVAL_LOSS, PAGE_LEAST, NULL, 0},
	                                          {"last evaluation's loss", "%.4f", PAGE_EVAL_LOSS, PAGE_LAST, NULL, 0},
	                                          {"tokens/s, mean", "%.1f", PAGE_SPEED, PAGE_MEAN, NULL, 0},
	                                          {"tokens/s, planned", "%.1f", 0, 0, "run.planned_tokens_per_second", 0},
	                                          {"minutes", "%.1f", PAGE_ELAPSED, PAGE_LAST, NULL, 60},
	                                          {"largest gradient norm", "%.3g", PAGE_GRAD_NORM, PAGE_MOST, NULL, 0},
	                                          {"most device memory, GiB", "%.2f", PAGE_VRAM_PEAK, PAGE_MOST, NULL, gib},
	                                          {"planned device memory, GiB", "%.2f", 0, 0, "run.planned.vram", gib},
	                                          {"most host memory, GiB", "%.2f", PAGE_RAM_PEAK, PAGE_MOST, NULL, gib},
	                                          {"planned host memory, GiB", "%.2f", 0, 0, "run.planned.ram", gib},
	                                          {"most NVMe, GiB", "%.2f", PAGE_NVME_PEAK, PAGE_MOST, NULL, gib},
	                                          {"planned NVMe, GiB", "%.2f", 0, 0, "run.planned.nvme", gib}};
	int rc = rh_text_printf(out, "<section><h2>In short</h2><div class=scroll><table>\n"), has_state = 0, is_assumed = 0;
	for (size_t r = 0; r < count; r++) {
		has_state |= runs[r].status != NULL;
		is_assumed |= json_is_true(page_fact_json(&runs[r], "run.rates_assumed"));
	}
	if (!rc && has_state)
		rc = rh_text_printf(out, "<tr><td>state");
	for (size_t r = 0; !rc && has_state && r < count; r++)
		rc = put_state(&runs[r], out);
	if (!rc && has_state)
		rc = rh_text_printf(out, "</tr>\n");
	for (size_t i = 0; !rc && i < sizeof rows / sizeof *rows; i++)
		rc = put_row(runs, count, &rows[i], out);
	return rc ? rc
	          : rh_text_printf(out, "</table></div>%s</section>\n",
	                           is_assumed ? "<p class=soft>The planned speed is by assumed rates: doctor --save local measures this "
	                                        "machine.</p>"
	                                      : "");
}

static int put_chart(const struct page_run *runs, size_t count, const char *title, enum page_column column, int from_zero,
                     struct rh_text *out)
{
	static const char *const names[PAGE_COLUMNS] = {[PAGE_LOSS] = "loss",
	                                                [PAGE_GRAD_NORM] = "grad_norm",
	                                                [PAGE_LEARNING_RATE] = "learning_rate",
	                                                [PAGE_SPEED] = "tokens_per_second"};
	struct rh_series series[2 * RH_PAGE_RUNS];
	struct rh_text svg = {0};
	size_t used = 0;
	for (size_t r = 0; r < count; r++) {
		const struct page_run *run = &runs[r];
		const double *x = run->value[PAGE_STEP];
		series[used++] =
		        (struct rh_series){.name = names[column], .colour = (int)r, .x = x, .y = run->value[column], .count = run->lines};
		if (column == PAGE_LOSS && run->losses)
			series[used - 1] = (struct rh_series){
			        .name = names[column], .colour = (int)r, .x = run->loss_step, .y = run->loss, .count = run->losses};
		if (column == PAGE_LOSS)
			series[used++] =
			        (struct rh_series){"eval_loss", (int)r, RH_SERIES_MARKS, x, run->value[PAGE_EVAL_LOSS], run->lines, NULL};
		else if (column == PAGE_SPEED && run->planned)
			series[used++] = (struct rh_series){"planned", (int)r, RH_SERIES_DASHED, x, run->planned, run->lines, NULL};
	}
	const struct rh_chart chart = {.title = title, .x_name = "step", .from_zero = from_zero, .series = series, .count = used};
	int rc = rh_chart_svg(&chart, &svg);
	if (!rc && svg.length)
		rc = rh_text_printf(out, "<section><h2>%s</h2>\n%s</section>\n", title, svg.bytes);
	rh_text_free(&svg);
	return rc;
}

static int put_charts(const struct page_run *runs, size_t count, struct rh_text *out)
{
	int has_plan = 0, rc = rh_text_printf(out, "<div class=charts>\n");
	for (size_t r = 0; r < count; r++)
		has_plan |= runs[r].planned != NULL;
	if (!rc)
		rc = put_chart(runs, count, "Loss (circles: evaluations)", PAGE_LOSS, 0, out);
	if (!rc)
		rc = put_chart(runs, count, "Gradient norm", PAGE_GRAD_NORM, 1, out);
	if (!rc)
		rc = put_chart(runs, count, "Learning rate", PAGE_LEARNING_RATE, 1, out);
	if (!rc)
		rc = put_chart(runs, count, has_plan ? "Tokens/s (dashed: the plan's)" : "Tokens/s", PAGE_SPEED, 1, out);
	return rc ? rc : rh_text_printf(out, "</div>\n");
}

static int put_page(const struct page_run *runs, size_t count, struct rh_text *out)
{
	int rc = put_head(runs, count, out);
	if (!rc)
		rc = put_summary(runs, count, out);
	if (!rc)
		rc = page_put_differences(runs, count, out);
	if (!rc)
		rc = put_charts(runs, count, out);
	if (!rc)
		rc = page_put_answers(runs, count, out);
	if (!rc)
		rc = page_put_time(runs, count, out);
	if (!rc)
		rc = page_put_data(runs, count, out);
	for (size_t r = 0; !rc && r < count; r++)
		rc = page_put_files(&runs[r], out);
	return rc ? rc : rh_text_printf(out, "%s</body></html>\n", page_script);
}

int rh_page_make(const char *const *dirs, size_t count, struct rh_text *out)
{
	struct page_run runs[RH_PAGE_RUNS];
	size_t read = 0;
	int rc = 0;
	RH_ASSERT(count && count <= RH_PAGE_RUNS);
	for (; !rc && read < count; read += !rc)
		rc = page_run_read(dirs[read], &runs[read]);
	if (!rc)
		rc = put_page(runs, read, out);
	for (size_t r = 0; r < read; r++)
		page_run_free(&runs[r]);
	return rc;
}

/* 1: nothing of that name is there, or a page of this program's. */
static int is_free(const char *path)
{
	char line[128] = "";
	struct rh_file_in *file;
	if (rh_path_kind(path) == RH_PATH_NONE)
		return 1;
	if (rh_file_open(path, &file))
		return 0;
	size_t bytes = rh_file_length(file) < (int64_t)sizeof line ? (size_t)rh_file_length(file) : sizeof line - 1;
	int is_own = !rh_file_read(file, 0, line, bytes) && strstr(line, RH_MARK);
	rh_file_close(file);
	return is_own;
}

void rh_page_leave(const char *dir)
{
	char kept[RH_ERROR_LINE] = "";
	struct rh_text page = {0};
	rh_error_swap(kept);
	char *path = rh_path_join(dir, RH_PAGE_NAME);
	int rc = path && is_free(path) ? rh_page_make(&dir, 1, &page) : -EEXIST;
	if (!rc)
		rc = rh_file_put(path, page.bytes, page.length);
	if (!rc)
		rh_note("how it went: %s", path);
	else if (rc != -EEXIST && rc != -ENODATA && rc != -ENOENT)
		rh_note("warning: no report was written: %s", rh_error(rc));
	rh_error_swap(kept);
	rh_text_free(&page);
	rh_free(path);
}
