/* The updater's books, for its three files. */
#ifndef RH_OFFLOAD_UPDATER_INTERNAL_H
#define RH_OFFLOAD_UPDATER_INTERNAL_H

#include "core/fault.h"
#include "offload/updater.h"

#include <pthread.h>

/* A trainable block's gradient of one step:
 *
 *   FREE --rh_updater_arrives--> COMING --thread: event reached, squares summed (take_arrived)--> WAITING
 *   WAITING --thread: published, all there that it has to wait for, updated piece by piece (update)--> FREE
 *   WAITING --thread: likewise, the weights alone--> HALF
 *   HALF --thread: the moments, likewise--> FREE
 */
enum updater_state { FREE, COMING, WAITING, HALF, STATES };
/* Updates at once whose norm was not asked for, unless blocks are apart: of the step that is enqueued, and of the one that is not over. One
 * more is known, for which blocks still wait. */
enum { STEPS_UNTOLD = 2 };

struct updater_step {
	struct rh_update update;
	double max_norm, norm;
	double *block_norm;        /* of blocks that are updated apart; else NULL */
	int left;                  /* gradients still to be taken, and one more where parts share a norm: then it is known */
	int spoilt;                /* a gradient was not finite: nothing of the step that is still to be updated is */
	int bad_block, bad_tensor; /* whose it was, where spoilt */
};

struct updater_block {
	enum updater_state state;
	int which, next; /* of the updates: its gradient's, and that of the gradient to be announced next */
	int64_t number;  /* of the announcement */
	struct rh_event *event;
	/* Staleness 1: what is newest is to be published once these events are reached, and uploads must wait. behind: of the step before there
	 * is a gradient that is to be in it. */
	int publishes, behind;
	struct rh_event *const *uploaded;
	int uploads;
	int64_t upload_number;
	int64_t updated; /* steps that it has been updated by */
	int held;        /* somebody reads its weights and its state: it is not updated */
	/* Of its update, the thread's own. */
	int named;                /* it may be updated, and is known to */
	enum rh_update_pass pass; /* that it is in, where piece > 0 */
	int piece;                /* the next */
	double began;
};

struct rh_updater {
	struct rh_store *store;
	int blocks;
	struct rh_host_queue *queue; /* whose clock is virtual, in place of the thread; else NULL */
	pthread_t thread;
	int started;
	int is_part;          /* other parts of the model have updaters of their own */
	pthread_mutex_t turn; /* held while a block is worked on: whoever holds it has the store's pool */
	pthread_mutex_t lock; /* of all that follows; inside turn */
	pthread_cond_t changed;
	int64_t changes; /* of `changed`, counted */
	struct updater_block *block;
	/* A step's gradients may arrive while some of the step before are still to come, and blocks of that one wait. */
	struct updater_step *step; /* a ring */
	int steps;
	double *block_norms; /* of all steps */
	int is_apart;        /* blocks are updated apart from one another */
	/* Trainable blocks, a ring: those that could be updated one after the other; latest: of these, -1 before the first. The thread's own */
	int *order, ordered, latest;
	int *line;                 /* those that may be updated now, and what comes after them; the thread's own */
	int which;                 /* the latest */
	int untold;                /* updates whose norm is to be asked for, the latest ones */
	double apart;              /* bytes of an update in two passes over bytes of one; 0: one pass only */
	int in_two;                /* now they are */
	double opened_s, worked_s; /* when the latest update was opened; what was done since took so long */
	int64_t announced;
	int busy;       /* blocks that are not FREE, and those to be published */
	int low, high;  /* bounds of them; low > high: none */
	int in[STATES]; /* blocks in each state but FREE */
	int ahead;      /* there may be something to be read ahead, by whoever has nothing else to do */
	int held;       /* blocks that are */
	double held_s;  /* that updates have waited for them */
	struct rh_watch watch;
	int64_t watched_step;
	double task_began; /* of a virtual clock */
	int ending;
	struct rh_fault fault;           /* of a task */
	int bad_block, bad_tensor;       /* of the update whose norm was told last; -1: none */
	int64_t spoil_first, spoil_last; /* RH_HOOK_SPOIL_STEPS; 0: none */
	int spoil_block;
	/* recording; changed while nothing works */
	struct rh_order_log *log;
	int lane;
	int64_t token;
	int64_t (*event_token)(struct rh_event *event);
};

/* What is to be done next, most urgent first: publishing holds up the next step; taking makes the norm, and the order of updates, known. */
struct updater_task {
	enum { NOTHING, PUBLISH, TAKE, UPDATE, WEIGHTS, MOMENTS, READ_AHEAD, LISTEN } what;
	int block;
	int rc;                 /* of a device */
	struct rh_event *event; /* LISTEN: to this one */
};

/* Something that the thread, or whoever waits for it, may wait for; the lock is held. */
static inline void updater_tell(struct rh_updater *updater)
{
	updater->changes++;
	pthread_cond_broadcast(&updater->changed);
}

/* The lock is held. */
static inline void updater_set_state(struct rh_updater *updater, struct updater_block *block, enum updater_state state)
{
	updater->in[block->state]--;
	updater->in[block->state = state]++;
}

static inline int updater_is_stale(const struct rh_updater *updater)
{
	return rh_store_options(updater->store)->published;
}

/* Tokens of the recording: a block's weights are ready, its gradient is taken, or announced; an update begins, it is done. */
enum updater_recorded { READY, TAKEN, ANNOUNCED, RECORDED };

static inline int64_t updater_block_token(const struct rh_updater *updater, enum updater_recorded what, int block)
{
	return updater->token + RECORDED * block + what;
}

static inline int64_t updater_whole_token(const struct rh_updater *updater, int done)
{
	return updater->token + RECORDED * updater->blocks + done;
}

/* updater_work.c: the thread, whose argument is the updater; and the same in virtual time, of struct rh_host_worker. */
void *updater_work(void *updater);
int updater_next_job(void *updater, struct rh_host_job *job);

/* updater_choose.c; the lock is held. */
struct updater_task updater_next_task(const struct rh_updater *updater);
/* The i-th block by how urgent its update is. */
int updater_in_order(const struct rh_updater *updater, int i);
/* Its gradient waits, and nothing that it has to wait for is missing. */
int updater_may_update(const struct rh_updater *updater, const struct updater_block *block);
/* Something would be done, were the block not held. */
int updater_waits_for_held(const struct rh_updater *updater);

#endif
