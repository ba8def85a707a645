#include "partition/steady.h"

#include "core/alloc.h"
#include "core/error.h"

#include <math.h>

/* Of what times move on by, and is rounding. */
static const double SAME = 1e-9;

int steady_create(size_t room, struct steady *out)
{
	*out = (struct steady){.room = room, .round = -1};
	out->at = rh_alloc(room, sizeof *out->at);
	out->was = rh_alloc(room, sizeof *out->was);
	if (out->at && out->was)
		return 0;
	steady_free(out);
	return -ENOMEM;
}

void steady_free(struct steady *steady)
{
	rh_free(steady->at);
	rh_free(steady->was);
	*steady = (struct steady){0};
}

void steady_begin(struct steady *steady)
{
	steady->round = -1;
}

void steady_clear(struct steady *steady)
{
	steady->times = steady->all = 0;
}

void steady_time(struct steady *steady, double *time)
{
	RH_ASSERT(steady->times == steady->all && steady->all < steady->room);
	steady->at[steady->all++] = time;
	steady->times = steady->all;
}

void steady_sum(struct steady *steady, double *sum)
{
	RH_ASSERT(steady->all < steady->room);
	steady->at[steady->all++] = sum;
}

/* Are all times later by the same? */
static int moved_on(const struct steady *steady, double *by)
{
	*by = -1;
	for (size_t i = 0; i < steady->times; i++) {
		double now = *steady->at[i], further = now - steady->was[i];
		if (now <= 0)
			continue;
		if (*by < 0)
			*by = further;
		if (fabs(further - *by) > SAME * *by)
			return 0;
	}
	return *by > 0;
}

int64_t steady_skip(struct steady *steady, int64_t round, int64_t left)
{
	double by;
	int known = steady->round >= 0, same = known && moved_on(steady, &by);
	int64_t since = round - steady->round, times = same ? left / since : 0;
	for (size_t i = 0; times && i < steady->all; i++) {
		double *at = steady->at[i], further = i < steady->times ? by : *at - steady->was[i];
		if (i >= steady->times || *at > 0)
			*at += (double)times * further;
	}
	if (times || !known || since >= steady->twice) {
		for (size_t i = 0; i < steady->all; i++)
			steady->was[i] = *steady->at[i];
		steady->round = round;
		steady->twice = known ? 2 * since : 0;
	}
	return times * since;
}
