/* The updater's books, for its three files. */
#ifndef RH_OFFLOAD_UPDATER_INTERNAL_H
#define RH_OFFLOAD_UPDATER_INTERNAL_H

#include "core/fault.h"
#include "offload/updater.h"

#include <pthread.h>

/* A trainable block's gradient of one step:
 *
 *   FREE --rh_updater_arrives--> ANNOUNCED --thread: event reached, squares summed (take_arrived)--> WAITING
 *   WAITING --thread: published, all there that it has to wait for, updated piece by piece (update)--> FREE
 *   WAITING --thread: likewise, the weights alone--> WEIGHTS_DONE
 *   WEIGHTS_DONE --thread: the moments, likewise--> FREE
 */
enum updater_state { FREE, ANNOUNCED, WAITING, WEIGHTS_DONE, STATES };
/* The most opened updates whose norm was not asked for, unless blocks are updated one by one: the step that is being enqueued, and the
 * step before. The ring of updates has one place more, for blocks that still wait for an older update. */
enum { NORMS_PENDING = 2 };

/* Blocks that clip together, in one update. */
struct updater_part {
	double max_norm, scale;
	int gradients_left;
};

struct updater_step {
	struct rh_update update;
	double max_norm, norm;
	double *block_norm;        /* where blocks are updated one by one; else NULL */
	struct updater_part *part; /* (parts); NULL: all blocks clip together */
	int gradients_left;        /* gradients still to be taken; one more where parts share a norm, until the norm is known */
	int spoilt;                /* a gradient was not finite: no further block is updated */
	int bad_block, bad_tensor; /* the gradient that was not finite */
};

struct updater_block {
	enum updater_state state;
	int update,
	        next_update;  /* places in the ring: of its gradient's update; of the update that its next announced gradient belongs to */
	int64_t announcement; /* number of the gradient's */
	struct rh_event *event; /* the gradient is down */
	/* Staleness 1: the newest weights are published when the uploads of the step are over. updates_first: a gradient of the step before
	 * belongs into these weights. */
	int must_publish, updates_first;
	struct rh_event *const *upload_event;
	int upload_events;
	int64_t upload_announcement;
	int64_t updates_done;
	int awaits_other; /* the sum of another box that shares the block is not there yet */
	int is_held;      /* a checkpoint reads its weights and its state: it is not updated */
	int is_by_rows;   /* rh_updater_by_rows */
	/* Of its update: the rows that the next step reads, NULL: they are not known; and whether they are updated. */
	const int32_t *row;
	int64_t rows;
	int rows_are_done;
	/* Of its update, the thread's own. */
	int is_listed;            /* in update_order at its place of this step */
	enum rh_update_pass pass; /* where next_piece > 0, or rows_are_done */
	int next_piece;
	double began_s;
};

/* More than 20 members: what a thread and its callers share under one lock. */
struct rh_updater {
	struct rh_store *store;
	int blocks;
	struct rh_host_queue *queue; /* whose clock is virtual, in place of the thread; else NULL */
	pthread_t thread;
	int has_thread;
	int is_part;               /* other parts of the model have updaters of their own */
	pthread_mutex_t work_lock; /* while a block is worked on: its holder has the store's pool */
	pthread_mutex_t lock;      /* of all that follows; taken inside work_lock */
	pthread_cond_t changed;
	int64_t changes; /* of `changed`, counted */
	struct updater_block *block;
	struct updater_step *step; /* the ring of updates: a step's gradients may arrive before the last ones of the step before */
	int step_count;
	int latest_update;   /* its place in the ring */
	double *block_norms; /* of all updates */
	int is_by_block;     /* blocks are updated one by one, whatever step others are at */
	int *part_of, parts; /* of each block; 0 parts: all blocks clip together */
	struct updater_part *part_memory;
	int told;          /* place in the ring of the update whose norm was asked for last */
	int norms_pending; /* updates whose norm is to be asked for: the latest ones */
	/* The thread's own. A ring of trainable blocks in the order in which they became ready the last time, the latest one in it (-1: none
	 * yet); and a list of blocks that may be updated now, followed by those that are expected next. */
	int *update_order, update_order_count, last_listed;
	int *expected;
	double two_pass_traffic;   /* bytes of an update in two passes over bytes of one; 0: one pass only */
	int uses_two_passes;       /* the current step does */
	double opened_s, worked_s; /* when the latest update was opened; seconds of work since */
	int64_t announcements;
	int busy_blocks;      /* those that are not FREE, and those to be published */
	int low, high;        /* bounds of them; low > high: none */
	int count_in[STATES]; /* blocks in each state but FREE */
	int may_read_ahead;   /* the store may have something to read ahead, when there is nothing else to do */
	int has_rows;         /* of some block */
	int held_blocks;
	double held_s; /* seconds that updates have waited for held blocks */
	struct rh_watch watch;
	int64_t watched_step;
	double task_began_s; /* of a virtual clock */
	int is_ending;
	struct rh_fault fault;           /* of a task */
	int bad_block, bad_tensor;       /* of the update whose norm was asked for last; -1: none */
	int64_t spoil_first, spoil_last; /* RH_HOOK_SPOIL_STEPS; 0: none */
	int spoil_block;
	void (*tell)(const struct rh_updater_moment *moment); /* changed while nothing works */
};

/* What is to be done next, most urgent first: publishing holds up the next step; taking makes the norm, and the order of updates, known. */
enum updater_task_kind { NOTHING, PUBLISH, TAKE, ROWS, UPDATE, WEIGHTS, MOMENTS, READ_AHEAD, LISTEN, TASK_KINDS };
struct updater_task {
	enum updater_task_kind kind;
	int block;
	int rc;                 /* of a device */
	struct rh_event *event; /* LISTEN: to this one */
};

/* Wakes the thread and all callers that wait for a change. The lock is held. */
static inline void updater_tell(struct rh_updater *updater)
{
	updater->changes++;
	pthread_cond_broadcast(&updater->changed);
}

/* The lock is held. */
static inline void updater_set_state(struct rh_updater *updater, struct updater_block *block, enum updater_state state)
{
	updater->count_in[block->state]--;
	updater->count_in[block->state = state]++;
}

static inline int updater_is_stale(const struct rh_updater *updater)
{
	return rh_store_options(updater->store)->published;
}

static inline void updater_note(const struct rh_updater *updater, struct rh_updater_moment moment)
{
	if (updater->tell)
		updater->tell(&moment);
}

/* The part of a block in its update; NULL: there are no parts. */
static inline struct updater_part *updater_part(const struct rh_updater *updater, int b)
{
	struct updater_part *part = updater->step[updater->block[b].update].part;
	return part ? &part[updater->part_of[b]] : NULL;
}

/* The norm of the blocks of one part, of all: part -1. */
double updater_norm_of(const struct rh_updater *updater, const struct updater_step *step, int part);

/* updater_work.c: the thread, whose argument is the updater; and the same in virtual time, of struct rh_host_worker. */
void *updater_work(void *updater);
int updater_next_job(void *updater, struct rh_host_job *job);

/* updater_choose.c; the lock is held. */
struct updater_task updater_next_task(const struct rh_updater *updater);
/* The i-th most urgent block to update. */
int updater_in_order(const struct rh_updater *updater, int i);
/* The block's gradient is WAITING, and everything that its update must wait for is there. */
int updater_may_update(const struct rh_updater *updater, const struct updater_block *block);
/* The pass in which the block's update begins, or goes on. */
enum rh_update_pass updater_pass(const struct rh_updater *updater, int b);
/* Only a hold keeps some block from being updated or published. */
int updater_waits_for_held(const struct rh_updater *updater);

#endif
