#include "link/virtual.h"

#include "core/alloc.h"

#include <math.h>
#include <stdio.h>

struct letter {
	uint64_t tag;
	int64_t size;
	double posted_s;
};

/* Messages of one direction. Message n is at n % capacity from when an end posts it until the sender has its acknowledgement. */
struct way {
	struct rh_virtual_line line;
	struct letter *sent, *awaited;
	double *arrives_s, *acknowledged_s; /* of the messages that are matched */
	int64_t sends, receives, matched, arrived, acknowledged;
	double free_s; /* of the line */
};

struct line_pair;

struct virtual_end {
	struct rh_link base;
	struct line_pair *pair;
	int number;
};

struct line_pair {
	struct rh_sim_clock *clock;
	struct way way[2]; /* from end i */
	struct virtual_end end[2];
	int64_t messages;
	int open, fault;
	char line[RH_ERROR_LINE];
};

static struct virtual_end *own(struct rh_link *link)
{
	return (struct virtual_end *)link;
}

static int fault_of(const struct line_pair *pair)
{
	if (pair->fault)
		return rh_fail(pair->fault, "%s", pair->line);
	if (rh_sim_clock_is_broken(pair->clock))
		return rh_fail(-ECONNRESET, "another box's simulation has ended with a fault");
	return 0;
}

static void free_way(struct way *way)
{
	rh_free(way->sent);
	rh_free(way->awaited);
	rh_free(way->arrives_s);
	rh_free(way->acknowledged_s);
}

static void virtual_close(struct rh_link *link)
{
	struct line_pair *pair = own(link)->pair;
	if (--pair->open)
		return;
	free_way(&pair->way[0]);
	free_way(&pair->way[1]);
	rh_free(pair);
}

/* Times of the messages that are both sent and awaited. */
static int match(struct line_pair *pair, int from)
{
	struct way *way = &pair->way[from];
	double back_s = pair->way[!from].line.latency_s;
	int rc = 0;
	for (; !rc && way->matched < way->sends && way->matched < way->receives; way->matched++) {
		int64_t at = way->matched % pair->messages;
		const struct letter *sent = &way->sent[at], *awaited = &way->awaited[at];
		if (sent->tag != awaited->tag || sent->size != awaited->size)
			return rh_fail(-EPROTO, "message %lld of a virtual link: %lld bytes with tag %llx, where %lld with tag %llx are expected",
			               (long long)way->matched, (long long)sent->size, (unsigned long long)sent->tag,
			               (long long)awaited->size, (unsigned long long)awaited->tag);
		double begins_s = fmax(fmax(sent->posted_s, awaited->posted_s + back_s), way->free_s);
		way->free_s = begins_s + (way->line.bytes_per_s > 0 ? (double)sent->size / way->line.bytes_per_s : 0);
		way->arrives_s[at] = way->free_s + way->line.latency_s;
		way->acknowledged_s[at] = way->arrives_s[at] + back_s;
		rc = rh_sim_clock_alarm(pair->clock, way->arrives_s[at]);
		if (!rc)
			rc = rh_sim_clock_alarm(pair->clock, way->acknowledged_s[at]);
	}
	return rc;
}

/* Counts what has arrived, and what its sender knows to have arrived. */
static void count(struct line_pair *pair, int from)
{
	struct way *way = &pair->way[from];
	double now = rh_sim_clock_seconds(pair->clock);
	while (way->arrived < way->matched && way->arrives_s[way->arrived % pair->messages] <= now)
		way->arrived++;
	while (way->acknowledged < way->arrived && way->acknowledged_s[way->acknowledged % pair->messages] <= now)
		way->acknowledged++;
}

static int post(struct line_pair *pair, int from, struct letter *letters, int64_t *posted, const struct letter *letter)
{
	int rc = fault_of(pair);
	if (rc)
		return rc;
	count(pair, from);
	if (*posted - pair->way[from].acknowledged >= pair->messages)
		return rh_fail(-ENOBUFS, "a virtual link takes %lld messages at once", (long long)pair->messages);
	letters[*posted % pair->messages] = *letter;
	++*posted;
	return match(pair, from);
}

static int virtual_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	(void)bytes;
	struct virtual_end *end = own(link);
	struct way *way = &end->pair->way[end->number];
	const struct letter letter = {tag, size, rh_sim_clock_seconds(end->pair->clock)};
	return post(end->pair, end->number, way->sent, &way->sends, &letter);
}

static int virtual_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	(void)bytes;
	struct virtual_end *end = own(link);
	struct way *way = &end->pair->way[!end->number];
	const struct letter letter = {tag, size, rh_sim_clock_seconds(end->pair->clock)};
	return post(end->pair, !end->number, way->awaited, &way->receives, &letter);
}

static int virtual_progress(struct rh_link *link, struct rh_link_progress *out)
{
	struct virtual_end *end = own(link);
	struct line_pair *pair = end->pair;
	count(pair, 0);
	count(pair, 1);
	*out = (struct rh_link_progress){.sent = pair->way[end->number].acknowledged,
	                                 .received = pair->way[!end->number].arrived,
	                                 .latency_s = (pair->way[0].line.latency_s + pair->way[1].line.latency_s) / 2};
	return fault_of(pair);
}

static int virtual_wait(struct rh_link *link, int64_t sent, int64_t received)
{
	struct rh_link_progress progress;
	int rc;
	while (!(rc = virtual_progress(link, &progress)) && (progress.sent < sent || progress.received < received))
		rh_sim_clock_pass(own(link)->pair->clock);
	return rc;
}

static void virtual_abort(struct rh_link *link, const char *line)
{
	struct line_pair *pair = own(link)->pair;
	pair->fault = -ECONNABORTED;
	snprintf(pair->line, sizeof pair->line, "%s", line);
}

static const struct rh_link_ops virtual_ops = {.close = virtual_close,
                                               .send = virtual_send,
                                               .receive = virtual_receive,
                                               .progress = virtual_progress,
                                               .wait = virtual_wait,
                                               .abort = virtual_abort};

static int open_way(const struct rh_virtual_line *line, int64_t messages, struct way *out)
{
	*out = (struct way){.line = *line};
	out->sent = rh_alloc((size_t)messages, sizeof *out->sent);
	out->awaited = rh_alloc((size_t)messages, sizeof *out->awaited);
	out->arrives_s = rh_alloc((size_t)messages, sizeof *out->arrives_s);
	out->acknowledged_s = rh_alloc((size_t)messages, sizeof *out->acknowledged_s);
	return out->sent && out->awaited && out->arrives_s && out->acknowledged_s ? 0 : -ENOMEM;
}

int rh_virtual_open(struct rh_sim_clock *clock, const struct rh_virtual_line way[2], int64_t messages, struct rh_link *ends[2])
{
	struct line_pair *pair = rh_alloc(1, sizeof *pair);
	if (!pair)
		return -ENOMEM;
	pair->clock = clock;
	pair->messages = messages;
	int rc = open_way(&way[0], messages, &pair->way[0]);
	if (!rc)
		rc = open_way(&way[1], messages, &pair->way[1]);
	if (rc) {
		free_way(&pair->way[0]);
		free_way(&pair->way[1]);
		rh_free(pair);
		return rc;
	}
	for (int i = 0; i < 2; i++) {
		pair->end[i] = (struct virtual_end){.base = {.ops = &virtual_ops, .is_virtual = 1}, .pair = pair, .number = i};
		ends[i] = &pair->end[i].base;
	}
	pair->open = 2;
	return 0;
}
