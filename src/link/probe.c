#include "link/probe.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/minmax.h"

#include <math.h>

enum { FIRST_BYTES = 4 << 10, MESSAGE_BYTES = 1 << 20, FAR_BYTES = RH_LINK_PROBE_MESSAGES * MESSAGE_BYTES, NEAR_BYTES = 8 << 20 };
/* A connection learns a line whose round trip is below NEAR_S within a message: NEAR_BYTES are enough to measure it. A round that is not
 * faster by GROWTH than the fastest before it has found the line's speed, or lost packets: two of them in a row are believed. Below BRIEF_S
 * they say more of the machines' other work. */
static const double NEAR_S = 0.005, BRIEF_S = 0.01, GROWTH = 1.25;
enum { BELIEVED = 2, ECHOES = 3 };
enum verdict { ENDS, GOES_ON };

/* *round_trip_s: the shortest of some. An end's receives are posted before its first byte, so each further byte leaves at once. */
static int time_echoes(struct rh_link *link, int decides, double *round_trip_s)
{
	char in[1 + ECHOES], out = 0;
	int64_t before = link->receives;
	double since = 0;
	int rc = 0;
	*round_trip_s = INFINITY;
	for (int i = 0; !rc && i <= ECHOES; i++)
		rc = rh_link_receive(link, 0, &in[i], 1);
	for (int i = 0; !rc && i <= ECHOES; i++) {
		if (decides)
			rc = rh_link_send(link, 0, &out, 1);
		if (!rc)
			rc = link->ops->wait(link, 0, before + i + 1);
		double now = rh_clock_seconds();
		*round_trip_s = i ? fmin(*round_trip_s, now - since) : INFINITY;
		since = now;
		if (!rc && !decides)
			rc = rh_link_send(link, 0, &out, 1);
	}
	return rc ? rc : link->ops->wait(link, link->sends, 0);
}

/* `room`: of two messages, for what is sent and what is received. *in_s: until all is received. */
static int pass_round(struct rh_link *link, int64_t bytes, char *room, double *in_s)
{
	double began = rh_clock_seconds();
	int rc = 0;
	for (int64_t left = bytes; !rc && left > 0; left -= MESSAGE_BYTES) {
		int64_t size = rh_min(left, MESSAGE_BYTES);
		rc = rh_link_receive(link, 0, room + MESSAGE_BYTES, size);
		if (!rc)
			rc = rh_link_send(link, 0, room, size);
	}
	if (!rc)
		rc = link->ops->wait(link, 0, link->receives);
	*in_s = rh_clock_seconds() - began;
	return rc ? rc : link->ops->wait(link, link->sends, 0);
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
	double round_trip_s, fastest;  /* bytes a second */
	double received[BELIEVED + 1]; /* likewise, in the last rounds */
	int rounds, slower;            /* the latter in a row */
};

/* A round's bytes come after one round trip: of the word that their receives are posted, and of the bytes. */
static void note_received(struct seen *seen, int64_t bytes, double in_s)
{
	seen->received[seen->rounds++ % (BELIEVED + 1)] = (double)bytes / fmax(in_s - seen->round_trip_s, in_s / 2);
}

/* Judges one exchange. A connection that had to be made anew tells nothing about the line. */
static char judge(struct seen *seen, int64_t bytes, double seconds, const struct rh_link_progress *progress)
{
	double speed = (double)bytes / seconds;
	int64_t most = seen->round_trip_s < NEAR_S ? NEAR_BYTES : FAR_BYTES;
	seen->slower = speed > GROWTH * seen->fastest ? 0 : seen->slower + 1;
	seen->fastest = fmax(seen->fastest, speed);
	int is_over = (seen->slower >= BELIEVED && seconds >= BRIEF_S) || bytes >= most || progress->reconnects;
	return is_over ? ENDS : GOES_ON;
}

/* Each end has seen what came to it. */
static int exchange(struct rh_link *link, const struct seen *seen, struct rh_link_line *out)
{
	double mine = 0, theirs;
	for (int i = 0; i <= BELIEVED; i++)
		mine = fmax(mine, seen->received[i]);
	int rc = rh_link_receive(link, 0, &theirs, sizeof theirs);
	if (!rc)
		rc = rh_link_send(link, 0, &mine, sizeof mine);
	if (!rc)
		rc = link->ops->wait(link, link->sends, link->receives);
	if (!rc)
		*out = (struct rh_link_line){.latency_s = seen->round_trip_s / 2, .bytes_per_s = {theirs, mine}};
	return rc;
}

int rh_link_probe(struct rh_link *link, int decides, struct rh_link_line *out)
{
	char verdict = GOES_ON, *room = rh_alloc(2, MESSAGE_BYTES);
	int64_t bytes = FIRST_BYTES;
	struct seen seen = {0};
	int rc = room ? time_echoes(link, decides, &seen.round_trip_s) : -ENOMEM;
	while (!rc && verdict != ENDS) {
		struct rh_link_progress progress;
		double began = rh_clock_seconds(), in_s;
		rc = pass_round(link, bytes, room, &in_s);
		if (!rc)
			rc = link->ops->progress(link, &progress);
		if (!rc && !progress.reconnects)
			note_received(&seen, bytes, in_s);
		if (!rc && decides)
			verdict = judge(&seen, bytes, rh_clock_seconds() - began, &progress);
		if (!rc)
			rc = (decides ? send_verdict : receive_verdict)(link, &verdict);
		bytes = rh_min(2 * bytes, FAR_BYTES);
	}
	if (!rc)
		rc = exchange(link, &seen, out);
	rh_free(room);
	return rc;
}
