/* Transfers of whole records of a space, one after another, while the caller goes on: on a thread of their own, or, in virtual time, on the
 * simulated machine's queue. One host thread calls. */
#ifndef RH_OFFLOAD_SPACE_QUEUE_H
#define RH_OFFLOAD_SPACE_QUEUE_H

#include "device/device.h"
#include "offload/space.h"

struct rh_space_queue;

struct rh_space_queue_options {
	struct rh_device *device; /* whose host queue does the transfers, where it has one */
	struct rh_space *space;   /* NULL: in virtual time, where nothing is moved */
	int64_t bytes;            /* of a record */
	int capacity;             /* transfers that were submitted and not taken */
	int is_write;
	void (*ended)(void *context); /* after each transfer, on the queue's thread; NULL: nobody is told */
	void *context;
};
int rh_space_queue_create(const struct rh_space_queue_options *options, struct rh_space_queue **out) RH_MUST;
/* Waits for all transfers. NULL is legal, here and below: a queue without room, and without transfers. */
void rh_space_queue_destroy(struct rh_space_queue *queue);

int rh_space_queue_has_room(const struct rh_space_queue *queue);
/* memory: the record's bytes, untouched until the transfer is taken. after: it waits for this event of a device; NULL: for nothing. */
int rh_space_queue_submit(struct rh_space_queue *queue, int record, void *memory, struct rh_event *after) RH_MUST;
/* There are transfers that were not taken; the oldest of these is over; it has begun to move bytes, so that its event has come. */
int rh_space_queue_is_busy(const struct rh_space_queue *queue);
int rh_space_queue_has_ended(const struct rh_space_queue *queue);
int rh_space_queue_is_moving(const struct rh_space_queue *queue);
/* Waits until the oldest transfer is over, and takes it. Returns 0, or the fault that the transfer ended with. */
int rh_space_queue_take(struct rh_space_queue *queue) RH_MUST;

/* Seconds on the clock that the queue waits by: real, or virtual. The other adds to what the space says of itself how long the caller has
 * waited for a transfer. */
double rh_space_queue_seconds(struct rh_space_queue *queue);
void rh_space_queue_waited(struct rh_space_queue *queue, double seconds);

#endif
