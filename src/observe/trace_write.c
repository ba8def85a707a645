/* A recording as Chrome's JSON, and as text. */
#include "observe/trace.h"

#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char letters[RH_SPAN_KINDS] = {'F', 'X', 'r', 'B', 'W', 'd', 'c', 'u', 'i', 'o'};
static const char *const host_names[RH_HOST_LANES] = {"updates", "NVMe reads", "NVMe writes"};

/* A title has no control characters. */
static int put_escaped(struct rh_text *out, const char *text)
{
	int rc = 0;
	for (; *text && !rc; text++)
		rc = (unsigned char)*text < 0x20 ? 0 : rh_text_printf(out, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
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
	if (rc)
		return rc;
	rc = device < 0 ? rh_text_printf(out, "host\"}}") : rh_text_printf(out, "device %d\"}}", device);
	for (int lane = 0; !rc && lane < (device < 0 ? (int)RH_HOST_LANES : (int)RH_DEVICE_LANES); lane++)
		rc = rh_text_printf(out, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
		                    device + 1, lane, device < 0 ? host_names[lane] : rh_device_lane_name(lane));
	return rc;
}

static int put_span(struct rh_text *out, const struct rh_trace_span *span)
{
	int rc = rh_text_printf(out, ",\n{\"name\":\"");
	if (rc)
		return rc;
	rc = put_name(out, span);
	if (rc)
		return rc;
	rc = rh_text_printf(out, "\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{", span->device + 1, span->lane,
	                    span->begin_s * 1e6, (span->end_s - span->begin_s) * 1e6);
	if (!rc && span->micro_batch >= 0)
		rc = rh_text_printf(out, "\"micro_batch\":%lld%s", (long long)span->micro_batch, span->bytes ? "," : "");
	if (!rc && span->bytes)
		rc = rh_text_printf(out, "\"bytes\":%lld", (long long)span->bytes);
	return rc ? rc : rh_text_printf(out, "}}");
}

int rh_trace_json(const struct rh_trace *trace, const char *title, struct rh_text *out)
{
	int rc = rh_text_printf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"title\":\"");
	if (rc)
		return rc;
	rc = put_escaped(out, title);
	if (rc)
		return rc;
	rc = rh_text_printf(out, "\"},\"traceEvents\":[\n");
	for (int d = -1; !rc && d < trace->devices; d++)
		rc = put_process(out, d);
	for (size_t i = 0; !rc && i < trace->spans; i++)
		rc = put_span(out, &trace->span[i]);
	return rc ? rc : rh_text_printf(out, "\n]}\n");
}

/* ---- text ---- */

int rh_trace_text(const struct rh_trace *trace, int columns, struct rh_text *out)
{
	enum { NAME = 5, MOST = 512 };
	int cells = columns - NAME, rc = 0, drawn[RH_SPAN_KINDS] = {0};
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
			for (int k = 0; k < RH_SPAN_KINDS; k++)
				drawn[k] |= line[c] == letters[k];
		}
		line[cells] = 0;
		rc = d < 0 ? rh_text_printf(out, "host %s\n", line) : rh_text_printf(out, "%4d %s\n", d, line);
	}
	if (rc)
		return rc;
	rc = rh_text_printf(out, "    ");
	for (int k = 0; k < RH_SPAN_KINDS && !rc; k++)
		if (drawn[k])
			rc = rh_text_printf(out, " %c %s,", letters[k],
			                    k == RH_SPAN_FUSED ? "forward, loss and backward" : rh_span_name((enum rh_span_kind)k));
	return rc ? rc : rh_text_printf(out, " . idle\n");
}
