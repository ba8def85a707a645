#include "observe/events.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Numbers of the messages' fields. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };
enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct rh_events {
	struct rh_file_log *log;
	struct rh_text event, summary, value, record;
	int rc; /* the first fault while a message is put together */
};

uint32_t rh_events_checksum(const void *bytes, size_t length)
{
	enum { POLYNOMIAL = 0x82f63b78 }; /* Castagnoli's, bits reversed */
	const unsigned char *at = bytes;
	uint32_t crc = 0xffffffff;
	for (size_t i = 0; i < length; i++) {
		crc ^= at[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? (uint32_t)POLYNOMIAL : 0);
	}
	crc = ~crc;
	return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_bytes(struct rh_events *events, struct rh_text *to, const void *bytes, size_t length)
{
	if (!events->rc)
		events->rc = rh_text_append(to, bytes, length);
}

static void put_varint(struct rh_events *events, struct rh_text *to, uint64_t value)
{
	do {
		unsigned char byte = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
		put_bytes(events, to, &byte, 1);
		value >>= 7;
	} while (value);
}

static void put_key(struct rh_events *events, struct rh_text *to, int field, enum wire wire)
{
	put_varint(events, to, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_text(struct rh_events *events, struct rh_text *to, int field, const void *bytes, size_t length)
{
	put_key(events, to, field, WIRE_BYTES);
	put_varint(events, to, length);
	put_bytes(events, to, bytes, length);
}

/* The machine is little-endian, as the format is. */
static void begin_event(struct rh_events *events, int64_t step)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	double wall = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
	events->rc = 0;
	events->event.length = events->summary.length = 0;
	put_key(events, &events->event, EVENT_WALL_TIME, WIRE_64);
	put_bytes(events, &events->event, &wall, sizeof wall);
	if (step) {
		put_key(events, &events->event, EVENT_STEP, WIRE_VARINT);
		put_varint(events, &events->event, (uint64_t)step);
	}
}

static void put_scalar(struct rh_events *events, const char *tag, double value)
{
	float simple = (float)value;
	if (!isfinite(value))
		return;
	events->value.length = 0;
	put_text(events, &events->value, VALUE_TAG, tag, strlen(tag));
	put_key(events, &events->value, VALUE_SIMPLE, WIRE_32);
	put_bytes(events, &events->value, &simple, sizeof simple);
	put_text(events, &events->summary, SUMMARY_VALUE, events->value.bytes, events->value.length);
}

/* A record: length, its checksum, the event, its checksum. */
static int end_event(struct rh_events *events)
{
	if (events->summary.length)
		put_text(events, &events->event, EVENT_SUMMARY, events->summary.bytes, events->summary.length);
	uint64_t length = events->event.length;
	uint32_t of_length = rh_events_checksum(&length, sizeof length);
	events->record.length = 0;
	put_bytes(events, &events->record, &length, sizeof length);
	put_bytes(events, &events->record, &of_length, sizeof of_length);
	put_bytes(events, &events->record, events->event.bytes, events->event.length);
	uint32_t of_event = events->rc ? 0 : rh_events_checksum(events->event.bytes, events->event.length);
	put_bytes(events, &events->record, &of_event, sizeof of_event);
	return events->rc ? events->rc : rh_file_log_append(events->log, events->record.bytes, events->record.length);
}

static int begin_file(struct rh_events *events, int64_t step)
{
	static const char version[] = "brain.Event:2", start[] = {SESSION_STATUS << 3, SESSION_START};
	begin_event(events, 0);
	put_text(events, &events->event, EVENT_FILE_VERSION, version, sizeof version - 1);
	int rc = end_event(events);
	if (rc || !step)
		return rc;
	begin_event(events, step + 1); /* steps from here on come anew */
	put_text(events, &events->event, EVENT_SESSION_LOG, start, sizeof start);
	return end_event(events);
}

int rh_events_open(const char *dir, int64_t step, struct rh_events **opened)
{
	struct rh_text path = {0};
	struct rh_events *events = rh_alloc(1, sizeof *events);
	int rc = events ? rh_text_printf(&path, "%s/runs", dir) : -ENOMEM;
	if (rc)
		goto out;
	rc = rh_dir_make(path.bytes);
	if (rc)
		goto out;
	rc = rh_text_printf(&path, "/events.out.tfevents.%010lld.roundhouse.%ld", (long long)time(NULL), (long)getpid());
	if (rc)
		goto out;
	rc = rh_file_log_open(path.bytes, 0, &events->log);
	if (rc)
		goto out;
	rc = begin_file(events, step);
out:
	rh_text_free(&path);
	if (rc)
		rh_events_close(events);
	else
		*opened = events;
	return rc;
}

static void put_figures(struct rh_events *events, const char *prefix, const struct rh_figures *figures)
{
	for (enum rh_figure f = 0; f < RH_FIGURES; f++) {
		char key[64];
		snprintf(key, sizeof key, "%s/%s", prefix, rh_figure_name(f));
		if (figures->count[f])
			put_scalar(events, key, rh_figure_of(figures, f));
	}
}

int rh_events_step(struct rh_events *events, const struct rh_step_report *report)
{
	begin_event(events, report->step);
	put_scalar(events, "train/loss", report->loss);
	put_scalar(events, "train/grad_norm", report->grad_norm);
	put_scalar(events, "train/learning_rate", report->learning_rate);
	put_scalar(events, "train/epoch", report->epoch);
	put_scalar(events, "train/tokens_per_second", report->tokens_per_second);
	put_figures(events, "train", &report->figures);
	return end_event(events);
}

int rh_events_eval(struct rh_events *events, const struct rh_eval_report *report)
{
	begin_event(events, report->step);
	put_scalar(events, "eval/loss", report->loss);
	put_scalar(events, "eval/runtime", report->seconds);
	put_figures(events, "eval", &report->figures);
	return end_event(events);
}

void rh_events_close(struct rh_events *events)
{
	if (!events)
		return;
	rh_file_log_close(events->log);
	rh_text_free(&events->event);
	rh_text_free(&events->summary);
	rh_text_free(&events->value);
	rh_text_free(&events->record);
	rh_free(events);
}
