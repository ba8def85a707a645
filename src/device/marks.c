#include "device/marks.h"

#include "core/minmax.h"

int rh_marks_create(struct rh_device *device, enum rh_stream stream, struct rh_stream_marks *out)
{
	int rc = 0;
	*out = (struct rh_stream_marks){.device = device, .stream = stream};
	for (int i = 0; !rc && i < RH_MARKS; i++)
		rc = device->ops->event_create(device, RH_EVENT_HOST, &out->mark[i].event);
	return rc;
}

void rh_marks_destroy(struct rh_stream_marks *marks)
{
	for (int i = 0; i < RH_MARKS; i++)
		rh_event_free(marks->mark[i].event);
}

int rh_marks_record(struct rh_stream_marks *marks, int64_t launched)
{
	struct rh_stream_mark *mark = &marks->mark[marks->recorded++ % RH_MARKS];
	mark->issued = marks->issued;
	mark->launched = launched;
	return marks->device->ops->record(marks->device, marks->stream, mark->event);
}

int rh_marks_find(struct rh_stream_marks *marks, int64_t issued, int64_t launched, const struct rh_stream_mark **out)
{
	int64_t i = marks->recorded, oldest = rh_max(marks->recorded - RH_MARKS, 0);
	RH_ASSERT(issued > 0 && issued <= marks->issued);
	while (i > oldest && marks->mark[(i - 1) % RH_MARKS].issued >= issued)
		i--;
	*out = &marks->mark[i % RH_MARKS];
	return i == marks->recorded ? rh_marks_record(marks, launched) : 0;
}

/* The oldest mark that can be told apart and is not known to be reached; -1: there is none. */
static int64_t oldest_mark(const struct rh_stream_marks *marks)
{
	int64_t oldest = rh_max(marks->reached, marks->recorded - RH_MARKS);
	return oldest < marks->recorded ? oldest : -1;
}

static void reach(struct rh_stream_marks *marks, int64_t number)
{
	marks->reached = number + 1;
	marks->latest_reached = marks->mark[number % RH_MARKS];
}

/* At one mark in so many, then at those before it. */
int rh_marks_look(struct rh_stream_marks *marks)
{
	enum { STRIDE = 8 };
	int any = 0;
	for (int64_t oldest, stride = STRIDE; (oldest = oldest_mark(marks)) >= 0;) {
		int64_t number = rh_min(oldest + stride, marks->recorded) - 1;
		struct rh_event *event = marks->mark[number % RH_MARKS].event;
		int done = event->ops->event_query(event);
		if (done < 0)
			return done;
		if (!done && number == oldest)
			break;
		if (!done)
			stride = 1;
		else
			reach(marks, number);
		any |= done;
	}
	return any;
}

int rh_marks_await(struct rh_stream_marks *marks)
{
	int64_t number = oldest_mark(marks);
	RH_ASSERT(number >= 0);
	struct rh_event *event = marks->mark[number % RH_MARKS].event;
	int rc = event->ops->event_sync(event);
	reach(marks, number);
	return rc;
}
