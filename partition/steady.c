#include "partition/steady.h"

#include "core/alloc.h"

#include <math.h>
#include <string.h>

/* Of what times move on by, and is rounding. */
static const double SAME = 1e-9;

/* Rounds over which each goes on as it did, whatever the others do. */
enum { LONG = 512 };

int steady_create(size_t room, struct steady *out)
{
	*out = (struct steady){.room = room, .round = -1, .was = rh_alloc(room, sizeof *out->was)};
	return out->was ? 0 : -ENOMEM;
}

void steady_free(struct steady *steady)
{
	rh_free(steady->was);
	*steady = (struct steady){0};
}

void steady_begin(struct steady *steady)
{
	steady->round = -1;
}

/* Are all times later by the same? */
static int moved_on(const struct steady *steady, struct steady_state now, double *by)
{
	*by = -1;
	for (size_t i = 0; i < now.times; i++) {
		double further = now.value[i] - steady->was[i];
		if (now.value[i] <= 0)
			continue;
		if (*by < 0)
			*by = further;
		if (fabs(further - *by) > SAME * *by)
			return 0;
	}
	return *by > 0;
}

int64_t steady_skip(struct steady *steady, struct steady_state now, int64_t round, int64_t left)
{
	double by;
	int known = steady->round >= 0, same = known && moved_on(steady, now, &by);
	int64_t since = round - steady->round, times = same || (known && since >= LONG) ? left / since : 0;
	RH_ASSERT(now.all <= steady->room);
	for (size_t i = 0; times && i < now.all; i++) {
		double further = same && i < now.times ? by : now.value[i] - steady->was[i];
		if (i >= now.times || now.value[i] > 0)
			now.value[i] += (double)times * further;
	}
	if (times || !known || since >= steady->twice) {
		memcpy(steady->was, now.value, now.all * sizeof *now.value);
		steady->round = round;
		steady->twice = known ? 2 * since : 0;
	}
	return times * since;
}
