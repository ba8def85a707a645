/* A recording as a picture: for each device the stages that it computed, one box a slot, with the idle time between them left open; below,
 * what each of its copy streams did, the darker the busier; last the host. */
#include "observe/trace.h"

#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 1600, LEFT = 118, RIGHT = 64, TOP = 84, LEGEND = 34, COMPUTE = 30, COPY = 7, GAP = 12, LETTER = 7, SMALL_LETTER = 5 };
enum { COLUMNS = WIDTH - LEFT - RIGHT, SHADES = 4 };

/* Colours that differ in lightness too. */
static const char *const colours[RH_SPAN_KINDS] = {"#4c78a8", "#b279a2", "#9ecae9", "#f58518", "#eeca3b",
                                                   "#bab0ac", "#54a24b", "#e45756", "#72b7b2", "#9d755d"};
static const char *const copy_colours[RH_DEVICE_LANES] = {NULL, "#2c7a2c", "#5f3dc4", "#0b7285", "#8d4b00"};
static const char *const shade[SHADES] = {"0.4", "0.6", "0.8", "1"};

struct picture {
	const struct rh_trace *trace;
	struct rh_text *out;
	double per_s;
	int hosts; /* 1: the host did something */
	int rc;
};

static void rect(struct picture *at, double x, double y, double width, double height, const char *colour)
{
	if (!at->rc)
		at->rc = rh_text_printf(at->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, width,
		                        height, colour);
}

static void label(struct picture *at, double x, double y, const char *style, const char *text)
{
	if (!at->rc)
		at->rc = rh_text_printf(at->out, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style, text);
}

static double row_height(void)
{
	return COMPUTE + 2 + (RH_DEVICE_LANES - 1) * (COPY + 1) + GAP;
}

/* Where a lane begins: devices from the top, then the host. */
static double lane_top(const struct picture *at, int device, int lane)
{
	return TOP + (device < 0 ? at->trace->devices : device) * row_height() + (lane ? COMPUTE + 2 + (lane - 1) * (COPY + 1) : 0);
}

/* One slot's spans: recompute and backward alternate in it. */
static int same_slot(const struct rh_trace_span *a, const struct rh_trace_span *b)
{
	int alternate = (a->kind == RH_SPAN_RECOMPUTE || a->kind == RH_SPAN_BACKWARD) &&
	                (b->kind == RH_SPAN_RECOMPUTE || b->kind == RH_SPAN_BACKWARD);
	return a->device == b->device && a->lane == b->lane && a->lo == b->lo && a->hi == b->hi && (a->kind == b->kind || alternate) &&
	       a->micro_batch <= b->micro_batch;
}

/* The layers of a slot that is so wide: in one line, in two small ones where that is too long, or not at all. */
static void name_slot(struct picture *at, const struct rh_trace_span *span, double width, int dark)
{
	const char *style = dark ? "text-anchor=\"middle\" fill=\"white\"" : "text-anchor=\"middle\"";
	const char *small = dark ? "text-anchor=\"middle\" font-size=\"10\" fill=\"white\"" : "text-anchor=\"middle\" font-size=\"10\"";
	double x = LEFT + span->begin_s * at->per_s + width / 2, top = lane_top(at, span->device, 0);
	char layers[48] = "", last[24] = "";
	int several = span->hi > span->lo + 1;
	if (span->hi > span->lo)
		snprintf(layers, sizeof layers, several ? "%d-%d" : "%d", span->lo, span->hi - 1);
	if (*layers && width > LETTER * (double)strlen(layers) + 2) {
		label(at, x, top + COMPUTE / 2.0 + 2, style, layers);
	} else if (several) {
		snprintf(layers, sizeof layers, "%d-", span->lo);
		snprintf(last, sizeof last, "%d", span->hi - 1);
		size_t letters = strlen(layers) > strlen(last) ? strlen(layers) : strlen(last);
		if (width <= SMALL_LETTER * (double)letters)
			return;
		label(at, x, top + COMPUTE / 2.0 - 4, small, layers);
		label(at, x, top + COMPUTE / 2.0 + 7, small, last);
	}
}

/* Spans [first, end) of one slot, from x to x + width. What is recomputed is a light foot, in one piece where micro-batches are thin. */
static void draw_slot(struct picture *at, size_t first, size_t end)
{
	const struct rh_trace_span *span = at->trace->span;
	double top = lane_top(at, span[first].device, 0), from = span[first].begin_s, to = from;
	enum rh_span_kind kind = span[end - 1].kind;
	for (size_t i = first; i < end; i++) { /* boxes end where a gap can be seen */
		int last = i + 1 == end, gap = !last && (span[i + 1].begin_s - span[i].end_s) * at->per_s > 0.8;
		to = fmax(to, span[i].end_s);
		if (!last && !gap)
			continue;
		double width = (to - from) * at->per_s - (last ? 0.6 : 0);
		rect(at, LEFT + from * at->per_s, top, fmax(width, 0.3), COMPUTE, colours[kind]);
		from = last ? from : span[i + 1].begin_s;
	}
	double slot = (to - span[first].begin_s) * at->per_s, each = slot / (double)(end - first);
	double begun = -1, ended = 0;
	for (size_t i = first; i <= end; i++) {
		int is = i < end && span[i].kind == RH_SPAN_RECOMPUTE && kind == RH_SPAN_BACKWARD;
		if (begun >= 0 && (i == end || (is && (each > 1.5 || span[i].begin_s - ended > 3 * (ended - begun))))) {
			rect(at, LEFT + begun * at->per_s, top + COMPUTE - 5, fmax((ended - begun) * at->per_s, 0.3), 5,
			     colours[RH_SPAN_RECOMPUTE]);
			begun = -1;
		}
		if (is) {
			begun = begun < 0 ? span[i].begin_s : begun;
			ended = span[i].end_s;
		}
	}
	name_slot(at, &span[first], slot, kind == RH_SPAN_FORWARD || kind == RH_SPAN_FUSED);
}

/* A lane of thin spans, as columns of a pixel: how much of each is busy. */
static void draw_busy(struct picture *at, size_t first, size_t end, double top, double height, const char *colour)
{
	double busy[COLUMNS + 1] = {0};
	for (size_t i = first; i < end; i++) {
		double from = at->trace->span[i].begin_s * at->per_s, to = fmax(at->trace->span[i].end_s * at->per_s, from + 0.05);
		for (int c = (int)from; c < to && c < COLUMNS; c++)
			busy[c] += fmin(to, c + 1) - fmax(from, c);
	}
	for (int s = 0; s < SHADES && !at->rc; s++) {
		int drawn = 0;
		for (int c = 0, from = -1; c <= COLUMNS && !at->rc; c++) {
			int is = c < COLUMNS && busy[c] > 0.02 && (int)fmin(busy[c] * SHADES, SHADES - 1) == s;
			if (is && from < 0)
				from = c;
			if (is || from < 0)
				continue;
			if (!drawn++)
				at->rc = rh_text_printf(at->out, "<path fill=\"%s\" fill-opacity=\"%s\" d=\"", colour, shade[s]);
			if (!at->rc)
				at->rc = rh_text_printf(at->out, "M%d %.0fh%dv%.0fh-%dz", LEFT + from, top, c - from, height, c - from);
			from = -1;
		}
		if (drawn && !at->rc)
			at->rc = rh_text_printf(at->out, "\"/>\n");
	}
}

static void draw_spans(struct picture *at)
{
	const struct rh_trace_span *span = at->trace->span;
	for (size_t i = 0, next; i < at->trace->spans && !at->rc; i = next) {
		int computes = span[i].device >= 0 && !span[i].lane;
		for (next = i + 1; next < at->trace->spans; next++)
			if (computes ? !same_slot(&span[next - 1], &span[next])
			             : span[next].device != span[i].device || span[next].lane != span[i].lane)
				break;
		if (computes)
			draw_slot(at, i, next);
		else
			draw_busy(at, i, next, lane_top(at, span[i].device, span[i].lane), span[i].lane ? COPY : COMPUTE,
			          span[i].device < 0 ? colours[span[i].kind] : copy_colours[span[i].lane]);
	}
}

/* A time axis of round steps. */
static void draw_axis(struct picture *at, double bottom)
{
	double step = pow(10, floor(log10(at->trace->seconds)));
	if (at->trace->seconds / step < 2)
		step /= 5;
	else if (at->trace->seconds / step < 5)
		step /= 2;
	for (int k = 0; k * step <= at->trace->seconds && !at->rc; k++) {
		double x = LEFT + k * step * at->per_s;
		char text[32];
		snprintf(text, sizeof text, "%g s", k * step);
		at->rc = rh_text_printf(at->out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ccc\"/>\n", x, TOP - 6, x,
		                        bottom);
		label(at, x, TOP - 10, "text-anchor=\"middle\"", text);
	}
}

static double draw_key(struct picture *at, double x, const char *colour, const char *name)
{
	rect(at, x, LEGEND, 14, 12, colour);
	label(at, x + 19, LEGEND + 10, "", name);
	return x + 38 + 6.4 * (double)strlen(name);
}

static void draw_legend(struct picture *at)
{
	int used[RH_SPAN_KINDS] = {0};
	double x = LEFT;
	for (size_t i = 0; i < at->trace->spans; i++)
		used[at->trace->span[i].kind] = 1;
	for (int k = 0; k < RH_SPAN_KINDS; k++) {
		const char *name = k == RH_SPAN_FUSED ? "forward, loss and backward" : rh_span_name((enum rh_span_kind)k);
		if (used[k] && k != RH_SPAN_COPY)
			x = draw_key(at, x, colours[k], name);
	}
	x = draw_key(at, x, "#eee", "idle");
	for (int s = 1; s < RH_DEVICE_LANES; s++)
		x = draw_key(at, x, copy_colours[s], rh_device_lane_name(s));
}

/* The rows' names and beds; how much of the time each device computed. */
static void draw_rows(struct picture *at)
{
	const struct rh_trace *trace = at->trace;
	for (int row = 0; row < trace->devices + at->hosts && !at->rc; row++) {
		int device = row < trace->devices ? row : -1;
		double busy = 0, top = lane_top(at, device, 0);
		char text[32] = "host: updates";
		if (device >= 0)
			snprintf(text, sizeof text, "device %d", device);
		label(at, LEFT - 10, top + COMPUTE / 2.0 + 4, "text-anchor=\"end\"", text);
		rect(at, LEFT, top, COLUMNS, COMPUTE, "#eee");
		for (size_t i = 0; i < trace->spans; i++)
			busy += trace->span[i].device == device && !trace->span[i].lane ? trace->span[i].end_s - trace->span[i].begin_s : 0;
		snprintf(text, sizeof text, "%.1f %%", 100 * busy / trace->seconds);
		label(at, WIDTH - RIGHT + 8, top + COMPUTE / 2.0 + 4, "", text);
	}
	label(at, WIDTH - RIGHT + 8, TOP - 10, "", "busy");
}

static void put_title(struct picture *at, const char *title)
{
	at->rc = at->rc ? at->rc : rh_text_printf(at->out, "<text x=\"8\" y=\"22\" font-size=\"16\">");
	for (; *title && !at->rc; title++)
		if (*title == '<' || *title == '&')
			at->rc = rh_text_printf(at->out, *title == '<' ? "&lt;" : "&amp;");
		else if ((unsigned char)*title >= 0x20)
			at->rc = rh_text_append(at->out, title, 1);
	at->rc = at->rc ? at->rc : rh_text_printf(at->out, "</text>\n");
}

int rh_trace_svg(const struct rh_trace *trace, const char *title, struct rh_text *out)
{
	struct picture at = {.trace = trace, .out = out, .per_s = trace->seconds > 0 ? COLUMNS / trace->seconds : 0};
	at.hosts = trace->spans && trace->span[0].device < 0; /* spans are in order of device */
	double bottom = TOP + (trace->devices + at.hosts) * row_height();
	at.rc = rh_text_printf(
	        out,
	        "<!-- Roundhouse --><svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" font-family=\"sans-serif\" "
	        "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
	        WIDTH, bottom + 10);
	put_title(&at, title);
	if (trace->seconds > 0) {
		draw_rows(&at);
		draw_axis(&at, bottom - GAP);
		draw_legend(&at);
		draw_spans(&at);
	}
	return at.rc ? at.rc : rh_text_printf(out, "</svg>\n");
}
