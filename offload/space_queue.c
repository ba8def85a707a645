#include "offload/space_queue.h"

#include "core/alloc.h"
#include "offload/host_thread.h"

#include <stdatomic.h>

struct transfer {
	int record;
	void *memory;
	struct rh_event *wait_event;
	int64_t ticket;
};

struct rh_space_queue {
	struct rh_space_queue_options options;
	struct rh_host_queue *host;
	struct rh_space_io *io;            /* NULL where nothing is moved */
	struct transfer *transfer;         /* a ring */
	int64_t submitted, taken;          /* as the caller knows */
	_Atomic(int64_t) begun, completed; /* by the queue's thread */
};

/* On the queue's thread. The transfer's own wait for its device comes first: a fault there must be told, too. */
static int run(void *context, int64_t number)
{
	struct rh_space_queue *queue = context;
	const struct transfer *transfer = &queue->transfer[number % queue->options.capacity];
	int rc = 0;
	if (queue->io) {
		rc = transfer->wait_event ? transfer->wait_event->ops->event_sync(transfer->wait_event) : 0;
		atomic_store_explicit(&queue->begun, number + 1, memory_order_relaxed); /* a hint for the accounts */
		if (!rc && queue->options.is_write)
			rh_space_write(queue->io, transfer->record, transfer->memory);
		else if (!rc)
			rh_space_read(queue->io, transfer->record, transfer->memory);
		if (!rc)
			rc = rh_space_io_wait(queue->io);
	}
	atomic_store_explicit(&queue->completed, number + 1, memory_order_release); /* release: who sees it sees the bytes read */
	if (queue->options.ended)
		queue->options.ended(queue->options.context);
	return rc;
}

int rh_space_queue_submit(struct rh_space_queue *queue, const struct rh_space_transfer *what)
{
	RH_ASSERT(rh_space_queue_has_room(queue));
	int64_t number = queue->submitted;
	struct transfer *transfer = &queue->transfer[number % queue->options.capacity];
	*transfer = (struct transfer){.record = what->record, .memory = what->memory, .wait_event = what->after};
	const struct rh_host_job job = {.work = queue->options.is_write ? RH_HOST_NVME_WRITE : RH_HOST_NVME_READ,
	                                .bytes = (double)(what->bytes ? what->bytes : queue->options.bytes),
	                                .wait_event = queue->io ? NULL : what->after,
	                                .run = run,
	                                .context = queue,
	                                .argument = number};
	int rc = queue->host->ops->submit(queue->host, &job, &transfer->ticket);
	queue->submitted += !rc;
	return rc;
}

int rh_space_queue_has_room(const struct rh_space_queue *queue)
{
	return queue && queue->submitted - queue->taken < queue->options.capacity;
}

int rh_space_queue_is_busy(const struct rh_space_queue *queue)
{
	return queue && queue->taken < queue->submitted;
}

int rh_space_queue_has_ended(const struct rh_space_queue *queue)
{
	return rh_space_queue_is_busy(queue) && queue->taken < atomic_load_explicit(&queue->completed, memory_order_acquire);
}

int rh_space_queue_is_moving(const struct rh_space_queue *queue)
{
	return rh_space_queue_is_busy(queue) && queue->taken < atomic_load_explicit(&queue->begun, memory_order_relaxed);
}

int rh_space_queue_take(struct rh_space_queue *queue)
{
	RH_ASSERT(rh_space_queue_is_busy(queue));
	return queue->host->ops->await(queue->host, queue->transfer[queue->taken++ % queue->options.capacity].ticket);
}

double rh_space_queue_seconds(struct rh_space_queue *queue)
{
	return queue->host->ops->seconds(queue->host);
}

void rh_space_queue_waited(struct rh_space_queue *queue, double seconds)
{
	rh_space_waited(queue->options.space, seconds);
}

int rh_space_queue_create(const struct rh_space_queue_options *options, struct rh_space_queue **out)
{
	struct rh_device *device = options->device;
	struct rh_space_queue *queue = rh_alloc(1, sizeof *queue);
	if (!queue)
		return -ENOMEM;
	queue->options = *options;
	queue->transfer = rh_alloc((size_t)options->capacity, sizeof *queue->transfer);
	int rc = queue->transfer ? 0 : -ENOMEM;
	if (!rc)
		rc = device->ops->host_queue ? device->ops->host_queue(device, &queue->host)
		                             : rh_host_thread_open(options->capacity + 1, &queue->host);
	if (!rc && options->space)
		rc = rh_space_io_create(options->space, options->bytes, &queue->io);
	if (rc) {
		rh_space_queue_destroy(queue);
		return rc;
	}
	if (queue->io)
		rh_space_io_aside(queue->io);
	*out = queue;
	return 0;
}

void rh_space_queue_destroy(struct rh_space_queue *queue)
{
	if (!queue)
		return;
	if (queue->host)
		queue->host->ops->destroy(queue->host);
	rh_space_io_destroy(queue->io);
	rh_free(queue->transfer);
	rh_free(queue);
}
