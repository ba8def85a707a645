/* The instance of host_queue.h: jobs take their time, then are run. */
#include "device/sim/sim_internal.h"

#include "core/alloc.h"

static struct sim_queue *own(struct rh_host_queue *queue)
{
	return (struct sim_queue *)queue;
}

static void wait_done(struct sim_lane *lane, int64_t ticket)
{
	sim_enter(lane->sim);
	while (lane->done < ticket) {
		sim_advance(lane->sim);
		sim_settle(lane->sim);
	}
}

static void queue_destroy(struct rh_host_queue *base)
{
	struct sim_queue *queue = own(base);
	struct rh_sim *sim = queue->lane.sim;
	wait_done(&queue->lane, queue->lane.jobs);
	while (!sim_lane_idle(&queue->lane)) { /* the time of a job that was refused for want of memory */
		sim_advance(sim);
		sim_settle(sim);
	}
	sim_lane_close(&queue->lane);
	rh_free(queue);
	rh_sim_release(sim);
}

static int queue_submit(struct rh_host_queue *base, const struct rh_host_job *job, int64_t *ticket)
{
	struct sim_lane *lane = &own(base)->lane;
	RH_ASSERT(!job->after || ((struct sim_event *)job->after)->use != RH_EVENT_ORDER); /* a real queue's thread waits for it */
	int rc = job->after ? sim_wait(lane, (struct sim_event *)job->after) : 0;
	if (!rc)
		rc = sim_work(lane, job);
	if (!rc)
		rc = sim_job(lane, job);
	if (!rc)
		*ticket = ++lane->jobs;
	return rc;
}

static int queue_await(struct rh_host_queue *base, int64_t ticket)
{
	struct sim_lane *lane = &own(base)->lane;
	RH_ASSERT(ticket <= lane->jobs);
	wait_done(lane, ticket);
	return rh_fault_get(&lane->fault);
}

static void queue_serve(struct rh_host_queue *base, const struct rh_host_worker *worker)
{
	sim_serve(&own(base)->lane, worker);
}

static void queue_pass(struct rh_host_queue *base)
{
	struct rh_sim *sim = own(base)->lane.sim;
	if (sim_enter(sim))
		return;
	sim_advance(sim);
	sim_settle(sim);
}

static double queue_seconds(struct rh_host_queue *base)
{
	return rh_sim_seconds(own(base)->lane.sim);
}

static const struct rh_host_queue_ops queue_ops = {.destroy = queue_destroy,
                                                   .submit = queue_submit,
                                                   .await = queue_await,
                                                   .serve = queue_serve,
                                                   .pass = queue_pass,
                                                   .seconds = queue_seconds};

int rh_sim_queue(struct rh_sim *sim, struct rh_host_queue **out)
{
	struct sim_queue *queue = rh_alloc(1, sizeof *queue);
	if (!queue)
		return -ENOMEM;
	queue->base.ops = &queue_ops;
	struct sim_lane *lane = &queue->lane;
	sim_lane_open(sim, lane);
	/* A worker is asked when the lane is idle, for a job at a time: its time and the job itself have a place from the start, since
	 * nobody could be told that they have none. */
	if (rh_grow(&lane->command, &lane->capacity, 2, sizeof *lane->command) ||
	    rh_grow(&lane->job, &lane->job_capacity, 1, sizeof *lane->job)) {
		sim_lane_close(lane);
		rh_free(queue);
		return -ENOMEM;
	}
	sim_hold(sim);
	*out = &queue->base;
	return 0;
}
