#include "device/sim/clock.h"

#include "core/alloc.h"
#include "core/thread.h"
#include "device/sim/sim_internal.h"

#include <math.h>

struct clock_host {
	struct rh_sim *sim; /* NULL: not created yet, or released */
	pthread_cond_t has_turn;
	int is_waiting, has_left;
};

/* Only the host that has the turn touches the machines, the alarms and the time. `lock` hands them over and protects the rest. */
struct rh_sim_clock {
	pthread_mutex_t lock;
	int turn; /* -1: all hosts have left */
	int hosts, is_broken;
	double now_s;
	double *alarm;
	size_t alarms, capacity;
	struct clock_host host[];
};

int rh_sim_clock_create(int hosts, struct rh_sim_clock **out)
{
	struct rh_sim_clock *clock = rh_alloc(1, sizeof *clock + (size_t)hosts * sizeof *clock->host);
	if (!clock)
		return -ENOMEM;
	clock->hosts = hosts;
	pthread_mutex_init(&clock->lock, NULL);
	for (int h = 0; h < hosts; h++)
		pthread_cond_init(&clock->host[h].has_turn, NULL);
	*out = clock;
	return 0;
}

void rh_sim_clock_free(struct rh_sim_clock *clock)
{
	if (!clock)
		return;
	for (int h = 0; h < clock->hosts; h++)
		pthread_cond_destroy(&clock->host[h].has_turn);
	pthread_mutex_destroy(&clock->lock);
	rh_free(clock->alarm);
	rh_free(clock);
}

/* The first host, from the one that has the turn on, that does not wait; -1: all wait or have left. */
static int next_host(const struct rh_sim_clock *clock)
{
	for (int i = 0; i < clock->hosts; i++) {
		int host = (clock->turn + i) % clock->hosts;
		if (!clock->host[host].is_waiting && !clock->host[host].has_left)
			return host;
	}
	return -1;
}

/* HUGE_VAL: there is none. An alarm of the present time lets all hosts look again. */
static double next_alarm(const struct rh_sim_clock *clock)
{
	double next = HUGE_VAL;
	for (size_t i = 0; i < clock->alarms; i++)
		next = fmin(next, clock->alarm[i]);
	return fmax(next, clock->now_s);
}

/* Drops the alarms up to the present time. */
static void drop_alarms(struct rh_sim_clock *clock)
{
	size_t left = 0;
	for (size_t i = 0; i < clock->alarms; i++)
		if (clock->alarm[i] > clock->now_s)
			clock->alarm[left++] = clock->alarm[i];
	clock->alarms = left;
}

/* The caller has the lock. */
static void await_turn(struct rh_sim_clock *clock, int host)
{
	while (clock->turn != host)
		pthread_cond_wait(&clock->host[host].has_turn, &clock->lock);
}

/* All hosts wait. At an alarm all look again, else those whose machine has ended a task. Where one has failed there may be nothing to wait
 * for: the others find that out. */
static void advance_all(struct rh_sim_clock *clock)
{
	double next = next_alarm(clock);
	const double alarm = next;
	int is_due = next <= clock->now_s;
	for (int h = 0; h < clock->hosts; h++)
		if (clock->host[h].sim)
			next = fmin(next, sim_next_end(clock->host[h].sim));
	RH_ASSERT(next < HUGE_VAL || clock->is_broken); /* else every host waits for another */
	int all_look = next >= alarm || clock->is_broken;
	for (int h = 0; h < clock->hosts; h++) {
		struct clock_host *host = &clock->host[h];
		int ended = host->sim && !is_due && next < HUGE_VAL ? sim_move(host->sim, next) : 0;
		host->is_waiting &= !all_look && !ended;
	}
	clock->now_s = is_due || next == HUGE_VAL ? clock->now_s : next;
	drop_alarms(clock);
}

void rh_sim_clock_enter(struct rh_sim_clock *clock, int host)
{
	pthread_mutex_lock(&clock->lock);
	await_turn(clock, host);
	pthread_mutex_unlock(&clock->lock);
}

static int somebody_stays(const struct rh_sim_clock *clock)
{
	for (int h = 0; h < clock->hosts; h++)
		if (!clock->host[h].has_left)
			return 1;
	return 0;
}

/* The host that has the turn waits or leaves. */
static void pass_turn(struct rh_sim_clock *clock)
{
	int next = next_host(clock);
	while (next < 0 && somebody_stays(clock)) {
		advance_all(clock);
		next = next_host(clock);
	}
	if (next >= 0 && next != clock->turn)
		pthread_cond_signal(&clock->host[next].has_turn);
	clock->turn = next;
}

void rh_sim_clock_leave(struct rh_sim_clock *clock, int host, int rc)
{
	pthread_mutex_lock(&clock->lock);
	clock->host[host].has_left = 1;
	clock->is_broken |= rc != 0;
	if (clock->turn == host)
		pass_turn(clock);
	pthread_mutex_unlock(&clock->lock);
}

void sim_clock_advance(struct rh_sim_clock *clock)
{
	pthread_mutex_lock(&clock->lock);
	int host = clock->turn;
	clock->host[host].is_waiting = 1;
	pass_turn(clock);
	await_turn(clock, host);
	pthread_mutex_unlock(&clock->lock);
}

void sim_clock_join(struct rh_sim_clock *clock, struct rh_sim *sim)
{
	clock->host[clock->turn].sim = sim;
}

void sim_clock_part(struct rh_sim_clock *clock, const struct rh_sim *sim)
{
	for (int h = 0; h < clock->hosts; h++)
		if (clock->host[h].sim == sim)
			clock->host[h].sim = NULL;
}

int rh_sim_clock_is_broken(struct rh_sim_clock *clock)
{
	pthread_mutex_lock(&clock->lock);
	int is_broken = clock->is_broken;
	pthread_mutex_unlock(&clock->lock);
	return is_broken;
}

double rh_sim_clock_seconds(const struct rh_sim_clock *clock)
{
	return clock->now_s;
}

int rh_sim_clock_alarm(struct rh_sim_clock *clock, double at_s)
{
	int rc = rh_grow(&clock->alarm, &clock->capacity, clock->alarms + 1, sizeof *clock->alarm);
	if (!rc)
		clock->alarm[clock->alarms++] = at_s;
	return rc;
}

void rh_sim_clock_pass(struct rh_sim_clock *clock)
{
	struct rh_sim *sim = clock->host[clock->turn].sim;
	if (sim && sim_enter(sim))
		return;
	sim_clock_advance(clock);
	if (sim)
		sim_settle(sim);
}
