/* A queue of transfers of whole records of a space: it carries them out one after another while the caller continues, on a thread of its
 * own or, in virtual time, on the simulated machine's queue. Only one host thread may call it. */
#ifndef RH_OFFLOAD_SPACE_QUEUE_H
#define RH_OFFLOAD_SPACE_QUEUE_H

#include "device/device.h"
#include "offload/space.h"

struct rh_space_queue;

struct rh_space_queue_options {
	struct rh_device *device; /* whose host queue does the transfers, where it has one */
	struct rh_space *space;   /* NULL: in virtual time, where nothing is moved */
	int64_t bytes;            /* of the largest record */
	int capacity;             /* the most transfers that are submitted and not taken yet */
	int is_write;
	void (*ended)(void *context); /* after each transfer, on the queue's thread; NULL: nobody is told */
	void *context;
};
int rh_space_queue_create(const struct rh_space_queue_options *options, struct rh_space_queue **out) RH_MUST;
/* Waits for all transfers. NULL is legal, here and below: a queue without room, and without transfers. */
void rh_space_queue_destroy(struct rh_space_queue *queue);

int rh_space_queue_has_room(const struct rh_space_queue *queue);
struct rh_space_transfer {
	int record;
	void *memory;           /* the record's bytes; nobody else touches them until the transfer is taken */
	struct rh_event *after; /* of a device: the transfer waits for it; NULL: for nothing */
	int64_t bytes;          /* of the record, for time in a simulation; 0: the queue's */
};
int rh_space_queue_submit(struct rh_space_queue *queue, const struct rh_space_transfer *what) RH_MUST;
/* Is a transfer submitted and not taken? Is the oldest of these finished? Does it move bytes already, because its event has been
 * reached? */
int rh_space_queue_is_busy(const struct rh_space_queue *queue);
int rh_space_queue_has_ended(const struct rh_space_queue *queue);
int rh_space_queue_is_moving(const struct rh_space_queue *queue);
/* Waits until the oldest transfer is over, and takes it. Returns 0, or the fault that the transfer ended with. */
int rh_space_queue_take(struct rh_space_queue *queue) RH_MUST;

/* The time in seconds, real or virtual, on the clock that the queue uses. The second call adds to the space's statistics how long the
 * caller has waited for a transfer. */
double rh_space_queue_seconds(struct rh_space_queue *queue);
void rh_space_queue_waited(struct rh_space_queue *queue, double seconds);

#endif
