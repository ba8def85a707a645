/* A thread that carries out commands in the order in which they were enqueued, from a bounded ring of bytes: a stream of a CPU device, or
 * the thread that makes a GPU's calls. The n-th command that was enqueued is over when n are done. */
#ifndef RH_DEVICE_WORKER_H
#define RH_DEVICE_WORKER_H

#include "core/error.h"
#include "device/op.h"

#include <stddef.h>

struct rh_worker;

/* Carries out command number `number`; the payload is the ring's. On the worker's thread. */
typedef void rh_worker_run(void *context, int kind, const void *payload, uint64_t number);

/* Negative errno of the allocation or of the thread, without a line. */
int rh_worker_open(size_t ring_bytes, rh_worker_run *run, void *context, struct rh_worker **out) RH_MUST;
/* Carries out what is enqueued, then ends the thread. NULL is legal. */
void rh_worker_close(struct rh_worker *worker);

/* Room for the payload of the next command, of kind 0 or more; blocks while the ring is full. *number: the command's. Other threads
 * cannot enqueue until this command is published. */
void *rh_worker_claim(struct rh_worker *worker, int kind, size_t bytes, uint64_t *number);
void rh_worker_publish(struct rh_worker *worker);

/* Waits until `number` commands are done; and: are they done? */
void rh_worker_await(struct rh_worker *worker, uint64_t number);
int rh_worker_has_done(struct rh_worker *worker, uint64_t number);
/* Waits until everything enqueued so far is done. */
void rh_worker_drain(struct rh_worker *worker);

/* An op without what its kind does not use, in bytes aligned to 8. */
size_t rh_op_packed_bytes(const struct rh_op *op);
void rh_op_pack(const struct rh_op *op, void *to);
void rh_op_unpack(const void *from, struct rh_op *op);

#endif
