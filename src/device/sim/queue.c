/* The instance of host_queue.h: the time of a job passes, then the job runs. */
#include "device/sim/sim_internal.h"

#include "core/alloc.h"

static struct sim_host_queue *own(struct rh_host_queue *queue)
{
	return (struct sim_host_queue *)queue;
}

static void wait_done(struct sim_queue *queue, int64_t ticket)
{
	sim_enter(queue->sim);
	while (queue->host.done < ticket) {
		sim_advance(queue->sim);
		sim_settle(queue->sim);
	}
}

static void queue_destroy(struct rh_host_queue *base)
{
	struct sim_host_queue *host = own(base);
	struct rh_sim *sim = host->queue.sim;
	wait_done(&host->queue, host->queue.host.submitted);
	while (!sim_queue_idle(&host->queue)) { /* sim_work succeeded and sim_job had no memory: a task without its job is left */
		sim_advance(sim);
		sim_settle(sim);
	}
	sim_queue_close(&host->queue);
	rh_free(host);
	rh_sim_release(sim);
}

static int queue_submit(struct rh_host_queue *base, const struct rh_host_job *job, int64_t *ticket)
{
	struct sim_queue *queue = &own(base)->queue;
	RH_ASSERT(!job->wait_event ||
	          ((struct sim_event *)job->wait_event)->use != RH_EVENT_ORDER); /* a real queue's thread waits for it */
	int rc = job->wait_event ? sim_wait(queue, (struct sim_event *)job->wait_event) : 0;
	if (!rc)
		rc = sim_work(queue, job);
	if (!rc)
		rc = sim_job(queue, job);
	if (!rc)
		*ticket = ++queue->host.submitted;
	return rc;
}

static int queue_await(struct rh_host_queue *base, int64_t ticket)
{
	struct sim_queue *queue = &own(base)->queue;
	RH_ASSERT(ticket <= queue->host.submitted);
	wait_done(queue, ticket);
	return rh_fault_get(&queue->host.fault);
}

static void queue_serve(struct rh_host_queue *base, const struct rh_host_worker *worker)
{
	sim_serve(&own(base)->queue, worker);
}

static void queue_await_change(struct rh_host_queue *base)
{
	struct rh_sim *sim = own(base)->queue.sim;
	if (sim_enter(sim))
		return;
	sim_advance(sim);
	sim_settle(sim);
}

static double queue_seconds(struct rh_host_queue *base)
{
	return rh_sim_seconds(own(base)->queue.sim);
}

static const struct rh_host_queue_ops queue_ops = {.destroy = queue_destroy,
                                                   .submit = queue_submit,
                                                   .await = queue_await,
                                                   .serve = queue_serve,
                                                   .await_change = queue_await_change,
                                                   .seconds = queue_seconds};

int rh_sim_queue(struct rh_sim *sim, struct rh_host_queue **out)
{
	struct sim_host_queue *host = rh_alloc(1, sizeof *host);
	if (!host)
		return -ENOMEM;
	host->base.ops = &queue_ops;
	struct sim_queue *queue = &host->queue;
	sim_queue_open(sim, queue);
	/* The simulator asks a worker for one job at a time, and only when the queue is idle. Memory for one task and one job is taken
	 * here, because nobody could be told later that there is none. */
	if (rh_grow(&queue->command, &queue->capacity, 2, sizeof *queue->command) ||
	    rh_grow(&queue->host.job, &queue->host.capacity, 1, sizeof *queue->host.job)) {
		sim_queue_close(queue);
		rh_free(host);
		return -ENOMEM;
	}
	sim_reference(sim);
	*out = &host->base;
	return 0;
}
