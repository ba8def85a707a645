#include "device/worker.h"

#include "core/alloc.h"
#include "core/thread.h"

#include <pthread.h>
#include <string.h>

enum { SKIP = -1 }; /* a kind: nothing follows up to the ring's end */

/* Followed by its payload. */
struct command {
	int kind;
	uint32_t bytes; /* of all, a multiple of 8 */
};

struct rh_worker {
	rh_worker_run *run;
	void *context;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work;     /* something was enqueued, or stop */
	pthread_cond_t progress; /* done has come to what somebody waits for */
	pthread_cond_t room;     /* half of the ring is free */
	uint64_t enqueued, done; /* commands; protected by lock, as is all up to stop */
	uint64_t wanted;         /* no waiter waits for less; UINT64_MAX: nobody waits */
	uint64_t written, read;  /* bytes of the ring, ever */
	int crowded, stop;       /* somebody waits for room */
	size_t bytes;            /* of the ring, in which [read, written) belongs to the thread, the rest to the enqueuer */
	char *ring;
};

/* The lock is held. */
static void wait_done(struct rh_worker *worker, uint64_t number)
{
	while (worker->done < number) {
		if (number < worker->wanted)
			worker->wanted = number;
		pthread_cond_wait(&worker->progress, &worker->lock);
	}
}

void rh_worker_await(struct rh_worker *worker, uint64_t number)
{
	pthread_mutex_lock(&worker->lock);
	wait_done(worker, number);
	pthread_mutex_unlock(&worker->lock);
}

void rh_worker_drain(struct rh_worker *worker)
{
	pthread_mutex_lock(&worker->lock);
	wait_done(worker, worker->enqueued);
	pthread_mutex_unlock(&worker->lock);
}

int rh_worker_has_done(struct rh_worker *worker, uint64_t number)
{
	pthread_mutex_lock(&worker->lock);
	int has = worker->done >= number;
	pthread_mutex_unlock(&worker->lock);
	return has;
}

/* ---- the thread ---- */

/* What the next command is, the lock held: a ring's end that was left empty is gone over. */
static const struct command *next_command(struct rh_worker *worker)
{
	const struct command *command = (const void *)(worker->ring + worker->read % worker->bytes);
	if (command->kind == SKIP) {
		worker->read += command->bytes;
		command = (const void *)(worker->ring + worker->read % worker->bytes);
	}
	return command;
}

/* The lock is held. */
static void command_done(struct rh_worker *worker, uint64_t number, uint32_t bytes)
{
	worker->done = number;
	worker->read += bytes;
	if (worker->done >= worker->wanted) {
		worker->wanted = UINT64_MAX; /* those who still wait say so again */
		pthread_cond_broadcast(&worker->progress);
	}
	if (worker->crowded && worker->written - worker->read <= worker->bytes / 2) {
		worker->crowded = 0;
		pthread_cond_broadcast(&worker->room);
	}
}

static void *work(void *argument)
{
	struct rh_worker *worker = argument;
	pthread_mutex_lock(&worker->lock);
	for (;;) {
		while (worker->done == worker->enqueued && !worker->stop)
			pthread_cond_wait(&worker->work, &worker->lock);
		if (worker->done == worker->enqueued)
			break;
		uint64_t number = worker->done + 1;
		const struct command *command = next_command(worker);
		pthread_mutex_unlock(&worker->lock);
		worker->run(worker->context, command->kind, command + 1, number); /* only this thread changes done and read */
		pthread_mutex_lock(&worker->lock);
		command_done(worker, number, command->bytes);
	}
	pthread_mutex_unlock(&worker->lock);
	return NULL;
}

static void worker_free(struct rh_worker *worker)
{
	pthread_cond_destroy(&worker->room);
	pthread_cond_destroy(&worker->progress);
	pthread_cond_destroy(&worker->work);
	pthread_mutex_destroy(&worker->lock);
	rh_free(worker->ring);
	rh_free(worker);
}

int rh_worker_open(size_t ring_bytes, rh_worker_run *run, void *context, struct rh_worker **out)
{
	struct rh_worker *worker = rh_alloc(1, sizeof *worker);
	if (!worker)
		return -ENOMEM;
	worker->run = run;
	worker->context = context;
	worker->wanted = UINT64_MAX;
	worker->bytes = ring_bytes;
	pthread_mutex_init(&worker->lock, NULL);
	pthread_cond_init(&worker->work, NULL);
	pthread_cond_init(&worker->progress, NULL);
	pthread_cond_init(&worker->room, NULL);
	worker->ring = rh_alloc(ring_bytes, 1);
	int rc = worker->ring ? rh_thread_start(&worker->thread, work, worker) : -ENOMEM;
	if (rc)
		worker_free(worker);
	else
		*out = worker;
	return rc;
}

void rh_worker_close(struct rh_worker *worker)
{
	if (!worker)
		return;
	pthread_mutex_lock(&worker->lock);
	worker->stop = 1;
	pthread_cond_signal(&worker->work);
	pthread_mutex_unlock(&worker->lock);
	pthread_join(worker->thread, NULL);
	worker_free(worker);
}

/* ---- enqueuing ---- */

/* The lock is held from here to rh_worker_publish. */
void *rh_worker_claim(struct rh_worker *worker, int kind, size_t payload, uint64_t *number)
{
	size_t bytes = (sizeof(struct command) + payload + 7) / 8 * 8;
	RH_ASSERT(bytes <= worker->bytes / 4);
	pthread_mutex_lock(&worker->lock);
	for (;;) { /* another host thread may come first */
		size_t at = worker->written % worker->bytes, left = worker->bytes - at, skip = left < bytes ? left : 0;
		if (worker->written - worker->read + skip + bytes > worker->bytes) {
			worker->crowded = 1;
			pthread_cond_wait(&worker->room, &worker->lock);
			continue;
		}
		struct command *command = (void *)(worker->ring + at);
		if (skip) {
			*command = (struct command){SKIP, (uint32_t)skip};
			command = (void *)worker->ring;
		}
		worker->written += skip + bytes;
		*command = (struct command){kind, (uint32_t)bytes};
		*number = worker->enqueued + 1;
		return command + 1;
	}
}

void rh_worker_publish(struct rh_worker *worker)
{
	if (worker->enqueued++ == worker->done)
		pthread_cond_signal(&worker->work);
	pthread_mutex_unlock(&worker->lock);
}

/* ---- ops in the ring ---- */

static size_t parameter_bytes(const struct rh_op *op)
{
	enum { SHORT = 96 }; /* what all but two kinds need of the parameters */
	_Static_assert(sizeof op->attention <= SHORT && sizeof op->dropout <= SHORT && sizeof op->scaled_gemm <= SHORT &&
	                       sizeof op->dequantise <= SHORT && sizeof op->qk_rope <= SHORT && sizeof op->lora <= SHORT,
	               "parameters that are longer must be told apart");
	return op->kind == RH_OP_ROPE_TABLE || op->kind == RH_OP_PREFERENCE ? sizeof *op - offsetof(struct rh_op, gemm) : SHORT;
}

static size_t operand_bytes(const struct rh_op *op)
{
	return (size_t)rh_op_info(op->kind)->operands * sizeof op->operand[0];
}

size_t rh_op_packed_bytes(const struct rh_op *op)
{
	return 8 + parameter_bytes(op) + operand_bytes(op);
}

void rh_op_pack(const struct rh_op *op, void *to)
{
	char *at = to;
	memcpy(at, &op->kind, sizeof op->kind);
	memcpy(at + 8, &op->gemm, parameter_bytes(op));
	memcpy(at + 8 + parameter_bytes(op), op->operand, operand_bytes(op));
}

void rh_op_unpack(const void *from, struct rh_op *op)
{
	const char *at = from;
	memset(op, 0, sizeof *op);
	memcpy(&op->kind, at, sizeof op->kind);
	memcpy(&op->gemm, at + 8, parameter_bytes(op));
	memcpy(op->operand, at + 8 + parameter_bytes(op), operand_bytes(op));
}
