/* A recording as Chrome's JSON, as SVG, and as text. */
#include "run/trace.h"

#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Colours that differ in lightness too. */
static const char *const colours[RH_SPAN_KINDS] = {"#4c78a8", "#b279a2", "#9ecae9", "#f58518", "#eeca3b",
                                                   "#54a24b", "#e45756", "#72b7b2", "#9d755d"};
static const char letters[RH_SPAN_KINDS] = {'F', 'X', 'r', 'B', 'W', 'c', 'u', 'i', 'o'};
static const char *const stream_names[RH_STREAMS] = {"compute", "weights up", "activations up", "activations down", "gradients down"};
static const char *const host_names[RH_HOST_LANES] = {"updates", "NVMe reads", "NVMe writes"};

/* Escapes for XML and JSON alike; a title has no control characters. */
static int put_escaped(struct rh_text *out, const char *text, int xml)
{
	int rc = 0;
	for (; *text && !rc; text++)
		switch (*text) {
		case '<':
			rc = rh_text_printf(out, "%s", xml ? "&lt;" : "<");
			break;
		case '&':
			rc = rh_text_printf(out, "%s", xml ? "&amp;" : "&");
			break;
		case '"':
		case '\\':
			rc = rh_text_printf(out, xml ? "%c" : "\\%c", *text);
			break;
		default:
			rc = (unsigned char)*text < 0x20 ? 0 : rh_text_append(out, text, 1);
		}
	return rc;
}

static int put_name(struct rh_text *out, const struct rh_trace_span *span)
{
	if (span->hi <= span->lo)
		return rh_text_printf(out, "%s", rh_span_name(span->kind));
	if (span->hi == span->lo + 1)
		return rh_text_printf(out, "%s %d", rh_span_name(span->kind), span->lo);
	return rh_text_printf(out, "%s %d-%d", rh_span_name(span->kind), span->lo, span->hi - 1);
}

/* Names of a process and its threads. */
static int put_process(struct rh_text *out, int device)
{
	int rc = rh_text_printf(out, "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"", device < 0 ? "" : ",\n",
	                        device + 1);
	rc = rc ? rc : device < 0 ? rh_text_printf(out, "host\"}}") : rh_text_printf(out, "device %d\"}}", device);
	for (int lane = 0; !rc && lane < (device < 0 ? (int)RH_HOST_LANES : (int)RH_STREAMS); lane++)
		rc = rh_text_printf(out, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
		                    device + 1, lane, device < 0 ? host_names[lane] : stream_names[lane]);
	return rc;
}

int rh_trace_json(const struct rh_trace *trace, const char *title, struct rh_text *out)
{
	int rc = rh_text_printf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"title\":\"");
	rc = rc ? rc : put_escaped(out, title, 0);
	rc = rc ? rc : rh_text_printf(out, "\"},\"traceEvents\":[\n");
	for (int d = -1; !rc && d < trace->devices; d++)
		rc = put_process(out, d);
	for (size_t i = 0; !rc && i < trace->spans; i++) {
		const struct rh_trace_span *span = &trace->span[i];
		rc = rh_text_printf(out, ",\n{\"name\":\"");
		rc = rc ? rc : put_name(out, span);
		if (!rc)
			rc = rh_text_printf(out, "\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{",
			                    span->device + 1, span->lane, span->begin_s * 1e6, (span->end_s - span->begin_s) * 1e6);
		if (!rc && span->micro_batch >= 0)
			rc = rh_text_printf(out, "\"micro_batch\":%lld%s", (long long)span->micro_batch, span->bytes ? "," : "");
		if (!rc && span->bytes)
			rc = rh_text_printf(out, "\"bytes\":%lld", (long long)span->bytes);
		rc = rc ? rc : rh_text_printf(out, "}}");
	}
	return rc ? rc : rh_text_printf(out, "\n]}\n");
}

/* ---- SVG ---- */

enum { WIDTH = 1600, LEFT = 110, TOP = 78, LEGEND = 32, COMPUTE = 26, COPY = 7, GAP = 12, LETTER = 7 };

struct picture {
	const struct rh_trace *trace;
	struct rh_text *out;
	double per_s;
	int rc;
};

static void rect(struct picture *at, double x, double y, double width, double height, const char *colour)
{
	if (!at->rc)
		at->rc = rh_text_printf(at->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>\n", x, y, width,
		                        height, colour);
}

static void label(struct picture *at, double x, double y, const char *anchor, const char *text)
{
	if (!at->rc)
		at->rc = rh_text_printf(at->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

/* Where a lane begins below its device's top. */
static double lane_of(const struct rh_trace_span *span)
{
	return span->lane ? COMPUTE + 1 + (span->lane - 1) * (COPY + 1) : 0;
}

/* Spans of one slot that follow one another are one rectangle where they would be thinner than a hair; its layers stand in it where there
 * is room. */
static void draw_spans(struct picture *at)
{
	const struct rh_trace *trace = at->trace;
	double height = COMPUTE + 1 + (RH_STREAMS - 1) * (COPY + 1) + GAP;
	for (size_t i = 0; i < trace->spans && !at->rc;) {
		const struct rh_trace_span *first = &trace->span[i];
		double begin = first->begin_s, end = first->end_s;
		size_t next = i + 1;
		for (; next < trace->spans; next++) {
			const struct rh_trace_span *span = &trace->span[next];
			int same = span->device == first->device && span->lane == first->lane && span->kind == first->kind &&
			           span->lo == first->lo && span->hi == first->hi;
			if (!same || (span->begin_s - end) * at->per_s > 0.3 ||
			    ((end - begin) * at->per_s > 3 && (span->end_s - span->begin_s) * at->per_s > 3))
				break;
			end = fmax(end, span->end_s);
		}
		i = next;
		double y = TOP + (first->device < 0 ? trace->devices : first->device) * height + lane_of(first);
		double x = LEFT + begin * at->per_s, width = fmax((end - begin) * at->per_s, 0.15);
		int compute = !first->lane;
		rect(at, x, y, compute && width > 1 ? width - 0.25 : width, compute ? COMPUTE : COPY, colours[first->kind]);
		char layers[32] = "";
		if (first->hi == first->lo + 1)
			snprintf(layers, sizeof layers, "%d", first->lo);
		else if (first->hi > first->lo)
			snprintf(layers, sizeof layers, "%d-%d", first->lo, first->hi - 1);
		if (compute && *layers && width > LETTER * (double)strlen(layers) + 4)
			label(at, x + width / 2, y + COMPUTE / 2.0 + 4, "middle", layers);
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
		at->rc = rh_text_printf(at->out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", x, TOP - 6, x,
		                        bottom);
		if (!at->rc)
			at->rc = rh_text_printf(at->out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g s</text>\n", x, TOP - 10,
			                        k * step);
	}
}

static void draw_legend(struct picture *at)
{
	double x = LEFT;
	for (int k = 0; k < RH_SPAN_KINDS; k++) {
		int used = 0;
		for (size_t i = 0; i < at->trace->spans && !used; i++)
			used = at->trace->span[i].kind == (enum rh_span_kind)k;
		if (!used)
			continue;
		rect(at, x, LEGEND, 14, 12, colours[k]);
		const char *name = rh_span_name((enum rh_span_kind)k);
		if (k == RH_SPAN_COPY)
			name = "copies (weights up, activations up and down, gradients down)";
		label(at, x + 19, LEGEND + 10, "start", name);
		x += 34 + 6.2 * (double)strlen(name);
	}
}

int rh_trace_svg(const struct rh_trace *trace, const char *title, struct rh_text *out)
{
	struct picture at = {.trace = trace, .out = out, .per_s = trace->seconds > 0 ? (WIDTH - LEFT - 20) / trace->seconds : 0};
	double height = COMPUTE + 1 + (RH_STREAMS - 1) * (COPY + 1) + GAP, bottom = TOP + trace->devices * height;
	int host = 0;
	for (size_t i = 0; i < trace->spans && !host; i++)
		host = trace->span[i].device < 0;
	bottom += host ? COMPUTE + 1 + (RH_HOST_LANES - 1) * (COPY + 1) + GAP : 0;
	at.rc = rh_text_printf(out,
	                       "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" font-family=\"sans-serif\" "
	                       "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"8\" y=\"22\" "
	                       "font-size=\"15\">",
	                       WIDTH, bottom + 10);
	at.rc = at.rc ? at.rc : put_escaped(out, title, 1);
	at.rc = at.rc ? at.rc : rh_text_printf(out, "</text>\n");
	if (trace->seconds > 0)
		draw_axis(&at, bottom);
	for (int d = 0; d < trace->devices + host && !at.rc; d++) {
		char name[32] = "host";
		if (d < trace->devices)
			snprintf(name, sizeof name, "device %d", d);
		label(&at, LEFT - 8, TOP + d * height + COMPUTE / 2.0 + 4, "end", name);
		rect(&at, LEFT, TOP + d * height, WIDTH - LEFT - 20, COMPUTE, "#f4f4f4");
	}
	draw_legend(&at);
	draw_spans(&at);
	return at.rc ? at.rc : rh_text_printf(out, "</svg>\n");
}

/* ---- text ---- */

int rh_trace_text(const struct rh_trace *trace, int columns, struct rh_text *out)
{
	enum { NAME = 5, MOST = 512 };
	int cells = columns - NAME, rc = 0;
	double each = cells > 0 ? trace->seconds / cells : 0;
	if (cells < 8 || cells > MOST || !(trace->seconds > 0))
		return 0;
	for (int d = trace->devices && trace->spans && trace->span[0].device < 0 ? -1 : 0, row = 0; row <= trace->devices && !rc;
	     row++, d++) {
		double busy[MOST][RH_SPAN_KINDS] = {{0}};
		char line[MOST + 1];
		if (d >= trace->devices)
			break;
		for (size_t i = 0; i < trace->spans; i++) {
			const struct rh_trace_span *span = &trace->span[i];
			if (span->device != d || span->lane)
				continue;
			for (int c = (int)(span->begin_s / each); c < cells && c * each < span->end_s; c++)
				busy[c][span->kind] += fmin(span->end_s, (c + 1) * each) - fmax(span->begin_s, c * each);
		}
		for (int c = 0; c < cells; c++) { /* what most of the cell is */
			double most = each / 2, all = 0;
			line[c] = '.';
			for (int k = 0; k < RH_SPAN_KINDS; k++)
				all += busy[c][k];
			for (int k = 0; k < RH_SPAN_KINDS && all > most; k++)
				if (busy[c][k] >= all / 2 || line[c] == '.')
					line[c] = busy[c][k] > 0 ? letters[k] : line[c];
		}
		line[cells] = 0;
		rc = d < 0 ? rh_text_printf(out, "host %s\n", line) : rh_text_printf(out, "%4d %s\n", d, line);
	}
	return rc ? rc
	          : rh_text_printf(
	                    out,
	                    "     F forward, X forward + loss + backward, r recompute, B backward, W weight gradients, u update, . idle\n");
}
