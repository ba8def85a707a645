#include "offload/host_thread.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/fault.h"
#include "core/thread.h"
#include "device/device.h"

#include <pthread.h>
#include <string.h>

struct host_thread {
	struct rh_host_queue base;
	pthread_t thread;
	struct rh_host_job *job; /* ring: ticket t's is number t % capacity */
	int capacity;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	int64_t submitted, done;
	int ending;
	struct rh_fault fault; /* of a job; those after it are passed over */
};

static struct host_thread *own(struct rh_host_queue *queue)
{
	return (struct host_thread *)queue;
}

static int do_job(const struct rh_host_job *job)
{
	int rc = job->wait_event ? job->wait_event->ops->event_sync(job->wait_event) : 0;
	return rc ? rc : job->run(job->context, job->argument);
}

static void *work(void *context)
{
	struct host_thread *queue = context;
	pthread_mutex_lock(&queue->lock);
	for (;;) {
		while (queue->done == queue->submitted && !queue->ending)
			pthread_cond_wait(&queue->changed, &queue->lock);
		if (queue->done == queue->submitted)
			break;
		const struct rh_host_job *job = &queue->job[(queue->done + 1) % queue->capacity];
		pthread_mutex_unlock(&queue->lock);
		if (!rh_fault_code(&queue->fault))
			rh_fault_keep(&queue->fault, do_job(job));
		pthread_mutex_lock(&queue->lock);
		queue->done++;
		pthread_cond_broadcast(&queue->changed);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

static void free_queue(struct host_thread *queue)
{
	pthread_mutex_destroy(&queue->lock);
	pthread_cond_destroy(&queue->changed);
	rh_free(queue->job);
	rh_free(queue);
}

static void thread_destroy(struct rh_host_queue *base)
{
	struct host_thread *queue = own(base);
	pthread_mutex_lock(&queue->lock);
	queue->ending = 1;
	pthread_cond_broadcast(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
	pthread_join(queue->thread, NULL);
	free_queue(queue);
}

static int thread_submit(struct rh_host_queue *base, const struct rh_host_job *job, int64_t *ticket)
{
	struct host_thread *queue = own(base);
	pthread_mutex_lock(&queue->lock);
	RH_ASSERT(queue->submitted - queue->done < queue->capacity);
	*ticket = ++queue->submitted;
	queue->job[*ticket % queue->capacity] = *job;
	pthread_cond_broadcast(&queue->changed);
	pthread_mutex_unlock(&queue->lock);
	return 0;
}

static int thread_await(struct rh_host_queue *base, int64_t ticket)
{
	struct host_thread *queue = own(base);
	pthread_mutex_lock(&queue->lock);
	RH_ASSERT(ticket <= queue->submitted);
	while (queue->done < ticket)
		pthread_cond_wait(&queue->changed, &queue->lock);
	int rc = rh_fault_get(&queue->fault);
	pthread_mutex_unlock(&queue->lock);
	return rc;
}

static double thread_seconds(struct rh_host_queue *base)
{
	(void)base;
	return rh_clock_seconds();
}

static const struct rh_host_queue_ops ops = {
        .destroy = thread_destroy, .submit = thread_submit, .await = thread_await, .seconds = thread_seconds};

int rh_host_thread_open(int capacity, struct rh_host_queue **out)
{
	struct host_thread *queue = rh_alloc(1, sizeof *queue);
	if (!queue)
		return -ENOMEM;
	queue->base.ops = &ops;
	queue->capacity = capacity;
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->changed, NULL);
	queue->job = rh_alloc((size_t)capacity, sizeof *queue->job);
	int fault = queue->job ? -rh_thread_start(&queue->thread, work, queue) : ENOMEM;
	if (fault) {
		free_queue(queue);
		return rh_fail(-fault, "cannot start a thread of the host's: %s", strerror(fault));
	}
	*out = &queue->base;
	return 0;
}
