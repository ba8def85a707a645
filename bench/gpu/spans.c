#include "bench/gpu/spans.h"

#include "bench/gpu/bench.h"

#include <stdlib.h>

enum { BULK_BYTES = 1 << 20, LAUNCH_NS = 20000 }; /* gaps below LAUNCH_NS with nothing to wait for are the launches' own */

struct stretch {
	int64_t from, to;
};

static int by_start(const void *a, const void *b)
{
	const struct stretch *x = a, *y = b;
	return (x->from > y->from) - (x->from < y->from);
}

/* The spans of the streams in `mask`, of at least `bytes`, as disjoint stretches in order; returns their number. */
static size_t stretches(const struct spans *spans, unsigned mask, double bytes, struct stretch *out)
{
	size_t count = 0, kept = 0;
	for (size_t i = 0; i < spans->count; i++)
		if (mask >> spans->span[i].stream & 1 && spans->span[i].bytes >= bytes)
			out[count++] = (struct stretch){spans->span[i].from_ns, spans->span[i].to_ns};
	qsort(out, count, sizeof *out, by_start);
	for (size_t i = 0; i < count; i++) {
		if (kept && out[i].from <= out[kept - 1].to)
			out[kept - 1].to = out[i].to > out[kept - 1].to ? out[i].to : out[kept - 1].to;
		else
			out[kept++] = out[i];
	}
	return kept;
}

static double length(const struct stretch *a, size_t count)
{
	int64_t sum = 0;
	for (size_t i = 0; i < count; i++)
		sum += a[i].to - a[i].from;
	return (double)sum / 1e9;
}

static double common(const struct stretch *a, size_t count_a, const struct stretch *b, size_t count_b)
{
	int64_t sum = 0;
	for (size_t i = 0, j = 0; i < count_a && j < count_b;) {
		int64_t from = a[i].from > b[j].from ? a[i].from : b[j].from, to = a[i].to < b[j].to ? a[i].to : b[j].to;
		sum += to > from ? to - from : 0;
		if (a[i].to < b[j].to)
			i++;
		else
			j++;
	}
	return (double)sum / 1e9;
}

/* The gap before a compute span. The host's clock and the device's agree to some tens of microseconds. */
static void explain(struct spans *spans, const struct span *span, int64_t from)
{
	double gap = (double)(span->from_ns - from) / 1e9;
	enum span_cause cause = SPAN_NOTHING;
	if (gap <= 0)
		return;
	if (span->waited >= 0 && spans->span[span->waited].to_ns > from)
		cause = span->cause;
	else if (span->cause == SPAN_ELSEWHERE)
		cause = SPAN_ELSEWHERE;
	else if (span->enqueued_ns + span->host_ns > from)
		cause = SPAN_HOST;
	else if (gap < LAUNCH_NS / 1e9)
		cause = SPAN_LAUNCH;
	spans->idle[cause] += gap;
}

static void add_idle(struct spans *spans, int64_t begin)
{
	int64_t at = begin;
	for (size_t i = 0; i < spans->count; i++) {
		const struct span *span = &spans->span[i];
		if (span->stream != RH_STREAM_COMPUTE)
			continue;
		explain(spans, span, at);
		at = span->to_ns > at ? span->to_ns : at;
	}
}

static void add_span(struct spans *spans, const struct span *span)
{
	if (span->stream == RH_STREAM_COMPUTE) {
		spans->ops++;
		spans->flops += span->flops;
		if (span->to_ns - span->from_ns > spans->longest_ns) {
			spans->longest_ns = span->to_ns - span->from_ns;
			spans->longest = span->name;
		}
		spans->host_seconds += (double)span->host_ns / 1e9;
		return;
	}
	int down = span->stream == RH_STREAM_GRADIENTS || span->stream == RH_STREAM_ACTIVATIONS_DOWN;
	spans->copies++;
	*(down ? &spans->bytes_down : &spans->bytes_up) += span->bytes;
	spans->bulk_bytes[down] += span->bytes >= BULK_BYTES ? span->bytes : 0;
}

static void write_chrome(const struct spans *spans, int device, FILE *chrome)
{
	for (size_t i = 0; i < spans->count; i++) {
		const struct span *span = &spans->span[i];
		fprintf(chrome, "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f},\n", span->name, device,
		        (int)span->stream, (double)(span->from_ns - spans->span[0].from_ns) / 1e3,
		        (double)(span->to_ns - span->from_ns) / 1e3);
	}
}

void spans_step(struct spans *spans, int device, FILE *chrome)
{
	int64_t begin = spans->span[0].from_ns, end = 0;
	for (size_t i = 0; i < spans->count; i++) {
		begin = spans->span[i].from_ns < begin ? spans->span[i].from_ns : begin;
		end = spans->span[i].to_ns > end ? spans->span[i].to_ns : end;
	}
	int64_t since = spans->last_end;
	spans->last_end = end;
	if (!spans->seen++) /* kernels are loaded, algorithms chosen */
		return;
	enum { COMPUTE, UP, DOWN, BULK_UP, BULK_DOWN, LISTS };
	const unsigned up = 1u << RH_STREAM_WEIGHTS | 1u << RH_STREAM_ACTIVATIONS_UP;
	const unsigned down = 1u << RH_STREAM_GRADIENTS | 1u << RH_STREAM_ACTIVATIONS_DOWN;
	const unsigned masks[LISTS] = {1u << RH_STREAM_COMPUTE, up, down, up, down};
	struct stretch *list[LISTS];
	size_t count[LISTS];
	for (int i = 0; i < LISTS; i++) {
		list[i] = malloc(spans->count * sizeof *list[i]);
		RH_ASSERT(list[i]);
		count[i] = stretches(spans, masks[i], i >= BULK_UP ? BULK_BYTES : 0, list[i]);
	}
	for (size_t i = 0; i < spans->count; i++)
		add_span(spans, &spans->span[i]);
	spans->steps++;
	spans->between += (double)(begin - since) / 1e9;
	spans->wall += (double)(end - begin) / 1e9;
	spans->compute += length(list[COMPUTE], count[COMPUTE]);
	spans->up += length(list[UP], count[UP]);
	spans->down += length(list[DOWN], count[DOWN]);
	spans->up_hidden += common(list[COMPUTE], count[COMPUTE], list[UP], count[UP]);
	spans->down_hidden += common(list[COMPUTE], count[COMPUTE], list[DOWN], count[DOWN]);
	spans->bulk_seconds[0] += length(list[BULK_UP], count[BULK_UP]);
	spans->bulk_seconds[1] += length(list[BULK_DOWN], count[BULK_DOWN]);
	add_idle(spans, begin);
	if (spans->seen == 2 && chrome)
		write_chrome(spans, device, chrome);
	for (int i = 0; i < LISTS; i++)
		free(list[i]);
}

static double share(double part, double whole)
{
	return whole > 0 ? part / whole : 0;
}

void spans_report(const struct spans *spans, int device, double tokens_per_second)
{
	const double *idle = spans->idle, steps = spans->steps ? (double)spans->steps : 1;
	bench_line("trace",
	           "\"device\": %d, \"steps\": %lld, \"tokens_per_second\": %.1f, \"step_s\": %.4f, \"between_steps_s\": %.4f, "
	           "\"compute_s\": %.4f, "
	           "\"compute_share\": %.4f, "
	           "\"executed_tflops\": %.3f, \"ops_a_step\": %.0f, \"launches_a_step\": %.0f, \"host_us_an_op\": %.2f, "
	           "\"searches_a_step\": %.1f, \"evictions_a_step\": %.1f, "
	           "\"launch_share_of_compute\": %.4f, \"longest_op\": \"%s\", \"longest_op_s\": %.4f, "
	           "\"up_bytes\": %.0f, \"down_bytes\": %.0f, \"up_hidden\": %.4f, \"down_hidden\": %.4f, \"bulk_up_gbs\": %.2f, "
	           "\"bulk_down_gbs\": %.2f, "
	           "\"idle_s\": {\"weights\": %.4f, \"activations\": %.4f, \"gradients\": %.4f, \"other devices\": %.4f, \"host\": %.4f, "
	           "\"launches\": %.4f, \"unexplained\": %.4f}, \"unexplained_share\": %.4f, \"bar\": 0.02",
	           device, (long long)spans->steps, tokens_per_second, spans->wall / steps, spans->between / steps, spans->compute / steps,
	           share(spans->compute, spans->wall), share(spans->flops, spans->wall) / 1e12, (double)spans->ops / steps,
	           (double)spans->launches / steps, spans->ops ? spans->host_seconds / (double)spans->ops * 1e6 : 0,
	           (double)spans->searches / steps, (double)spans->evictions / steps, share(spans->host_seconds, spans->compute),
	           spans->longest ? spans->longest : "", (double)spans->longest_ns / 1e9, spans->bytes_up / steps,
	           spans->bytes_down / steps, share(spans->up_hidden, spans->up), share(spans->down_hidden, spans->down),
	           share(spans->bulk_bytes[0], spans->bulk_seconds[0]) / 1e9, share(spans->bulk_bytes[1], spans->bulk_seconds[1]) / 1e9,
	           idle[SPAN_WEIGHTS] / steps, idle[SPAN_ACTIVATIONS] / steps, idle[SPAN_GRADIENTS] / steps, idle[SPAN_ELSEWHERE] / steps,
	           idle[SPAN_HOST] / steps, idle[SPAN_LAUNCH] / steps, (idle[SPAN_NOTHING] + idle[SPAN_COMPUTE]) / steps,
	           share(idle[SPAN_NOTHING] + idle[SPAN_COMPUTE], spans->wall));
}
