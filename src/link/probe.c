#include "link/probe.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/minmax.h"

#include <math.h>

enum { FIRST_BYTES = 4 << 10, MESSAGE_BYTES = 1 << 20, MOST_BYTES = RH_LINK_PROBE_MESSAGES * MESSAGE_BYTES };
/* Below NEAR_S a connection learns the line within a message. A round that is not faster by GROWTH than the fastest before it has found
 * the line's speed, or lost packets: two of them in a row are believed. */
static const double NEAR_S = 0.01, GROWTH = 1.25;
enum { BELIEVED = 2 };
enum verdict { ENDS, GOES_ON };

/* `room`: of two messages, for what is sent and what is received. */
static int pass_round(struct rh_link *link, int64_t bytes, char *room)
{
	int rc = 0;
	for (int64_t left = bytes; !rc && left > 0; left -= MESSAGE_BYTES) {
		int64_t size = rh_min(left, MESSAGE_BYTES);
		rc = rh_link_receive(link, 0, room + MESSAGE_BYTES, size);
		if (!rc)
			rc = rh_link_send(link, 0, room, size);
	}
	return rc ? rc : link->ops->wait(link, link->sends, link->receives);
}

static int send_verdict(struct rh_link *link, char *verdict)
{
	int rc = rh_link_send(link, 0, verdict, 1);
	return rc ? rc : link->ops->wait(link, link->sends, 0);
}

static int receive_verdict(struct rh_link *link, char *verdict)
{
	int rc = rh_link_receive(link, 0, verdict, 1);
	return rc ? rc : link->ops->wait(link, 0, link->receives);
}

struct seen {
	double fastest; /* bytes a second */
	int slower;     /* rounds in a row */
};

/* Of a round. A connection that had to be made anew says nothing of the line. */
static char judge(struct seen *seen, int64_t bytes, double seconds, const struct rh_link_progress *progress)
{
	double speed = (double)bytes / seconds;
	seen->slower = speed > GROWTH * seen->fastest ? 0 : seen->slower + 1;
	seen->fastest = fmax(seen->fastest, speed);
	int is_over = seconds < NEAR_S || seen->slower == BELIEVED || bytes == MOST_BYTES || progress->reconnects;
	return is_over ? ENDS : GOES_ON;
}

int rh_link_probe(struct rh_link *link, int decides)
{
	char verdict = GOES_ON, *room = rh_alloc(2, MESSAGE_BYTES);
	int64_t bytes = FIRST_BYTES;
	struct seen seen = {0};
	int rc = room ? 0 : -ENOMEM;
	while (!rc && verdict != ENDS) {
		struct rh_link_progress progress;
		double began = rh_clock_seconds();
		rc = pass_round(link, bytes, room);
		if (!rc)
			rc = link->ops->progress(link, &progress);
		if (!rc && decides)
			verdict = judge(&seen, bytes, rh_clock_seconds() - began, &progress);
		if (!rc)
			rc = (decides ? send_verdict : receive_verdict)(link, &verdict);
		bytes = rh_min(2 * bytes, MOST_BYTES);
	}
	rh_free(room);
	return rc;
}
