/* The recorder's books, and what the executor tells it: each function does nothing where no recorder listens. */
#ifndef RH_RUN_RECORD_INTERNAL_H
#define RH_RUN_RECORD_INTERNAL_H

#include "offload/order.h"
#include "run/record.h"
#include "run/work.h"

/* How much of each lane is done before something: a row of positions, -1 none of it. */
struct record_stamp {
	const void *of; /* an event, or a token of the updater's */
	int64_t *known;
};

/* Ops that make the next compute command. */
struct record_compute {
	int begun;
	enum rh_span_kind phase;
	int ends; /* layer at which it has made a boundary that others read; 0: none */
	struct rh_command command;
};

struct record_range {
	const char *memory;
	int64_t bytes;
	enum rh_room room;
	int number;
};

struct rh_recorder {
	struct rh_device_ops ops; /* the first: devices have its address while they are recorded */
	const struct rh_device_ops *real;
	struct rh_executor *executor;
	struct rh_lanes lanes;
	int64_t *known;      /* of each lane, and behind them of the host: what its next command comes after */
	int64_t *row;        /* of each command: what comes before it, itself included */
	size_t row_capacity; /* in rows */
	struct record_stamp *stamp;
	size_t stamps, stamp_capacity; /* capacity: a power of two */
	struct record_range *range;    /* of host memory, ascending */
	int ranges;
	struct {
		int64_t step, micro_batch;
	} * place;                      /* of micro-batches on the host */
	int64_t trained, inferred;      /* calls so far */
	struct record_compute *compute; /* of each device */
	enum rh_boundary_kind *kind;    /* of each host boundary buffer, then of each device's ring */
	/* the updater's */
	struct rh_order_log *log;
	int64_t heard;     /* events of the log */
	int arriving;      /* block whose gradient has arrived and is being taken, -1 none */
	int64_t *arrivals; /* of each block */
	int64_t *taking;   /* of each block: the step whose gradient is read */
	int64_t all_arrived;
	int rc;
};

enum { RECORD_HOST_STAMP = -1 };

static inline int record_caller(const struct rh_recorder *recorder)
{
	return recorder->executor->options.devices * RH_STREAMS;
}

static inline int record_optimizer(const struct rh_recorder *recorder)
{
	return record_caller(recorder) + 1;
}

static inline int record_lanes(const struct rh_recorder *recorder)
{
	return record_caller(recorder) + 2;
}

static inline int64_t *record_known(const struct rh_recorder *recorder, int lane)
{
	return recorder->known + lane * record_lanes(recorder);
}

static inline int64_t *record_host(const struct rh_recorder *recorder)
{
	return record_known(recorder, record_lanes(recorder));
}

/* record_order.c */
void record_join(const struct rh_recorder *recorder, int64_t *to, const int64_t *from);
/* Appends the command to its lane, behind all that is known there. */
void record_add(struct rh_recorder *recorder, struct rh_command *command);
/* NULL: there is none, or no memory for it. */
int64_t *record_stamp(struct rh_recorder *recorder, const void *of, int make);
/* All that the updater has done since becomes commands. */
void record_updater(struct rh_recorder *recorder);

/* record_compute.c */
void record_launch(struct rh_recorder *recorder, int device, const struct rh_op *op);
/* Ops that were launched, and make no command yet. down to this layer alone where it is above the stage's first */
void record_flush(struct rh_recorder *recorder, int device, int layer);
struct rh_place record_device_place(const struct rh_recorder *recorder, int device, const void *at, int64_t bytes);

#endif
