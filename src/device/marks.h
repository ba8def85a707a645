/* Marks in a stream: events recorded between numbered commands, by which the host knows how far the stream has come. Only one host
 * thread may use them. */
#ifndef RH_DEVICE_MARKS_H
#define RH_DEVICE_MARKS_H

#include "device/device.h"

enum { RH_MARKS = 128 }; /* the most marks of a stream that are remembered */

struct rh_stream_mark {
	struct rh_event *event;
	int64_t issued;   /* the latest command before it, counted from 1 */
	int64_t launched; /* ops by then, as the caller counts them */
};

struct rh_stream_marks {
	struct rh_device *device;
	enum rh_stream stream;
	struct rh_stream_mark mark[RH_MARKS]; /* number i is mark[i % RH_MARKS], until another takes its place */
	int64_t recorded, reached;     /* how many marks; reached: as far as the host knows */
	int64_t issued;                /* the latest command, which the caller counts */
	struct rh_stream_mark latest_reached;           /* the latest mark that is known to be reached */
};

/* A zeroed struct may be destroyed. */
int rh_marks_create(struct rh_device *device, enum rh_stream stream, struct rh_stream_marks *out) RH_MUST;
void rh_marks_destroy(struct rh_stream_marks *marks);

int rh_marks_record(struct rh_stream_marks *marks, int64_t launched) RH_MUST;
/* Finds a mark at or after command number `issued`; records one now where there is none. */
int rh_marks_find(struct rh_stream_marks *marks, int64_t issued, int64_t launched, const struct rh_stream_mark **out) RH_MUST;

/* Queries the stream. 1: it has reached another mark; 0: it has not; or its fault. */
int rh_marks_look(struct rh_stream_marks *marks) RH_MUST;
/* Waits until the oldest mark that is not known to be reached is reached; there must be one. */
int rh_marks_await(struct rh_stream_marks *marks) RH_MUST;

/* The mark that was recorded last; all zero before the first. */
static inline struct rh_stream_mark rh_marks_latest(const struct rh_stream_marks *marks)
{
	return marks->recorded ? marks->mark[(marks->recorded - 1) % RH_MARKS] : (struct rh_stream_mark){0};
}

#endif
