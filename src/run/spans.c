/* A step's trace: what devices do, told by events, so that a run on a real device and one in virtual time leave the same trace. */
#include "core/alloc.h"
#include "core/minmax.h"
#include "observe/trace.h"
#include "run/executor_internal.h"

_Static_assert((int)RH_DEVICE_LANES == (int)RH_STREAMS && RH_STREAM_COMPUTE == 0, "a device's lanes in a trace are its streams");

static enum rh_span_kind span_kind(const struct rh_executor *executor, const struct rh_command *command)
{
	int top = command->stage.hi == executor->options.model->layers;
	switch (command->kind) {
	case RH_COMMAND_FORWARD:
		return RH_SPAN_FORWARD;
	case RH_COMMAND_CARRY:
	case RH_COMMAND_RECOMPUTE:
		return top ? RH_SPAN_FUSED : RH_SPAN_RECOMPUTE;
	case RH_COMMAND_BACKWARD:
		return top ? RH_SPAN_FUSED : RH_SPAN_BACKWARD;
	case RH_COMMAND_WEIGHT_GRADIENT:
		return RH_SPAN_WEIGHT_GRADIENT;
	case RH_COMMAND_DEQUANTISE:
		return RH_SPAN_DEQUANTISE;
	default:
		return RH_SPAN_COPY;
	}
}

/* 1: the next command belongs to the open span, as pieces of one copy do, or what a micro-batch computes without a wait. */
static int extends_span(const struct rh_executor *executor, const struct rh_trace_span *span, const struct rh_command *next)
{
	if (!next || next->waits || next->stage.lo != span->lo || next->stage.hi != span->hi)
		return 0;
	if (next->kind == RH_COMMAND_ROUND)
		return 1;
	return span_kind(executor, next) == span->kind && next->micro_batch == span->micro_batch && next->kind != RH_COMMAND_CLEAR;
}

static void free_events(struct run_span *span)
{
	rh_event_free(span->begin);
	rh_event_free(span->end);
	*span = (struct run_span){0};
}

int run_span_begin(struct rh_executor *executor, const struct rh_command *command, int stream)
{
	struct run_span *span = &executor->dispatcher.stream[stream].span;
	struct rh_device *device = executor->options.device[stream / RH_STREAMS];
	if (!executor->traced.trace)
		return 0;
	int bulk = stream % RH_STREAMS == RH_STREAM_WEIGHTS || stream % RH_STREAMS == RH_STREAM_GRADIENTS;
	int64_t bytes = rh_max(command->source.bytes, command->target.bytes) * (command->kind == RH_COMMAND_COPY);
	if (span->in_trace)
		span->in_trace->bytes += bytes;
	if (span->in_trace || !executor->trains || command->step != executor->traced_step || command->kind == RH_COMMAND_CLEAR ||
	    command->kind == RH_COMMAND_ROUND || (command->kind == RH_COMMAND_COPY && !bytes))
		return 0;
	const struct rh_trace_span begun = {.kind = span_kind(executor, command),
	                                    .device = stream / RH_STREAMS,
	                                    .lane = stream % RH_STREAMS,
	                                    .lo = command->stage.lo,
	                                    .hi = command->stage.hi,
	                                    .micro_batch = bulk ? -1 : command->micro_batch,
	                                    .bytes = bytes};
	span->in_trace = rh_trace_add(executor->traced.trace, &begun);
	if (!span->in_trace)
		return 0;
	int rc = device->ops->event_create(device, RH_EVENT_TIMED, &span->begin);
	if (!rc)
		rc = device->ops->event_create(device, RH_EVENT_TIMED, &span->end);
	return rc ? rc : device->ops->record(device, (enum rh_stream)(stream % RH_STREAMS), span->begin);
}

int run_span_end(struct rh_executor *executor, const struct rh_command *command, int stream)
{
	struct run_span *span = &executor->dispatcher.stream[stream].span;
	struct rh_device *device = executor->options.device[stream / RH_STREAMS];
	const struct ring_command *next = ring_of(command)->next;
	if (!span->in_trace || extends_span(executor, span->in_trace, next ? &next->lowered : NULL))
		return 0;
	int rc = rh_grow(&executor->span, &executor->span_capacity, executor->spans + 1, sizeof *executor->span);
	if (rc)
		return rc;
	rc = device->ops->record(device, (enum rh_stream)(stream % RH_STREAMS), span->end);
	executor->span[executor->spans++] = *span;
	*span = (struct run_span){0};
	return rc;
}

void run_spans_settle(struct rh_executor *executor)
{
	for (size_t i = 0; i < executor->spans; i++) {
		struct run_span *span = &executor->span[i];
		span->in_trace->begin_s = (double)span->begin->ops->event_time_ns(span->begin) * 1e-9;
		span->in_trace->end_s = (double)span->end->ops->event_time_ns(span->end) * 1e-9;
		free_events(span);
	}
	executor->spans = 0;
}

void run_spans_drop(struct rh_executor *executor)
{
	for (int i = 0; executor->dispatcher.stream && i < executor->options.planned.devices * RH_STREAMS; i++)
		free_events(&executor->dispatcher.stream[i].span);
	for (size_t i = 0; i < executor->spans; i++)
		free_events(&executor->span[i]);
	executor->spans = 0;
}

void rh_executor_trace(struct rh_executor *executor, struct rh_trace *trace, int64_t step)
{
	const struct rh_executor_options *options = &executor->options;
	struct rh_watch watch = {rh_watch_trace_notify, &executor->traced};
	struct rh_space *space = rh_store_options(options->store)->space;
	if (trace) { /* before anyone can notify it */
		executor->traced = (struct rh_watch_trace){trace, options->model};
		executor->traced_step = step;
	}
	if (options->updater)
		rh_updater_watch(options->updater, trace ? &watch : NULL, step);
	if (space)
		rh_space_watch(space, trace ? &watch : NULL);
	if (!trace)
		executor->traced.trace = NULL;
}
