/* The executor walks a program over devices: weights up, activations up and down, ops launched, gradients down, ordered by events alone.
 * The calling thread lowers slots and issues commands as devices have room (run/dispatcher.h); after the first steps nothing is allocated
 * in a step. The same code runs on every kind of device.
 *
 * Steps are joined where updates are a step late: a step begins before the one before it is finished, its first forward slots run beside
 * that one's last backward slots, and devices are idle between steps no more than within one. What orders them, beside the data:
 *   - a block goes up for the next step once the step's own uploads of it are over and the newest weights are published
 *     (rh_updater_uploaded, rh_updater_await_weights);
 *   - its gradient comes down once the one before was taken (rh_updater_await_gradient). The last slots' gradients leave in the gaps of
 *     the next step's first slots, and are announced before that step makes its own;
 *   - micro-batches and results of two steps have memory of their own. */
#ifndef RH_RUN_EXECUTOR_H
#define RH_RUN_EXECUTOR_H

#include "device/device.h"
#include "link/wire.h"
#include "offload/store.h"
#include "offload/updater.h"
#include "partition/stage_plan.h"
#include "schedule/needs.h"

struct rh_executor;
struct rh_link;

/* What an executor does, as it was planned: numbers alone, so that one session's plan serves another. */
struct rh_executor_plan {
	const struct rh_schedule
	        *schedule;    /* a row of rh_schedules; this and other members that programs are made from: struct rh_dispatch */
	int stale;            /* updates are published late, to the store's published copies: optimizer_staleness, update_delay */
	int64_t update_delay; /* as in struct rh_dispatch */
	int devices;
	int64_t train_micro_batches;      /* the most in one training step; 0: none */
	int64_t train_round, infer_round; /* micro-batches in a round; 0: of no call */
	int64_t spare_boundaries;         /* these two as in struct rh_boundary_run */
	int spills_boundaries;
	int64_t infer_micro_batches; /* the most in one rh_executor_infer */
	int64_t logit_cols;          /* forward-only results are whole rows of logits, of so many; 0: what each micro-batch asks for */
	int64_t cache_rows;          /* of a text that is generated, or that is trained on in chunks */
	/* The most rows of the embedding's table that a training step's tokens name: these alone travel, and those of its gradient. 0: the table
	 * travels whole, as it does in forward-only calls. */
	int64_t table_rows;
	int chunks; /* as in struct rh_dispatch */
	struct rh_chunk_classes classes;
	uint64_t seed; /* dropout */
};

/* That, and what the executor works with: all pointers are borrowed. An estimate (rh_executor_bytes) reads those down to `page_bytes`. */
struct rh_executor_options {
	struct rh_executor_plan planned;
	const struct rh_model *model;
	const struct rh_stage_plan *plan;
	const int64_t *admission_limit; /* as in struct rh_dispatch */
	/* One of several boxes: the model is its part, the schedule orders units over boxes. NULL: this box alone. */
	const struct rh_boxes *boxes;
	struct rh_space *space; /* NULL: of a simulated machine */
	int registers;          /* devices register host memory; a ring is planned, too, in case the system refuses */
	int64_t page_bytes;     /* rh_store_page_bytes: of frozen weights on NVMe; 0: they are in memory */
	struct rh_store *store;
	struct rh_updater *updater; /* NULL: the store's weights change between calls only */
	struct rh_device *const *device;
	enum rh_wire wire;             /* how activations and their gradients travel to other boxes, and come from them */
	struct rh_link *below, *above; /* to the boxes beside it, NULL: there is none. Between calls the caller may use them, too */
	int throttled_threads;         /* of the optimizer while a step's weights stream; 0: all */
	int first_record;              /* rh_executor_take_space's */
	int dropped_gradient;          /* for tests: number + 1 of a block whose gradients do not come down; 0: none */
};

/* Numbers that come back of each head row beside its loss, or in place of it. */
static inline int64_t rh_executor_score_cols(const struct rh_executor_options *options, int trains, const struct rh_micro_shape *shape)
{
	return !trains && options->planned.logit_cols ? options->planned.logit_cols : rh_micro_shape_scores(shape);
}

/* Bytes beside the store's. host: mapped by rh_executor_create, for boundary buffers and staging of integers and results; exact, or an
 * upper bound where devices register host memory. nvme: taken by rh_executor_take_space. nvme_step: written there by a whole training step;
 * exact, or an upper bound in a stretch. heap: about the most that is allocated beside them. */
struct rh_executor_bytes {
	int64_t host, nvme, nvme_step, heap;
};
int rh_executor_bytes(const struct rh_executor_options *options, struct rh_executor_bytes *out) RH_MUST;

/* Takes the records of boundaries on NVMe, before rh_space_reserve. Does nothing where none go there. */
int rh_executor_take_space(struct rh_executor_options *options) RH_MUST;

int rh_executor_create(const struct rh_executor_options *options, struct rh_executor **out) RH_MUST;
void rh_executor_destroy(struct rh_executor *executor);

/* Begins forward and backward of one step, beside the update that the updater is at. `step` counts from 0; loss_scale is 1 / trained tokens
 * of the step. The micro-batches are read before it returns. By then all is enqueued but the last downloads of gradients and, where another
 * step may begin, the last slots: these are enqueued beside that step's first, or by rh_executor_finish, which delivers the results. Steps
 * are finished in their order, and none may begin while rh_executor_steps_in_flight are in flight. The updater has been told of a step's
 * update before it begins, or is told when none is in flight. After a fault nothing is running any more, and the executor can only be
 * destroyed. */
int rh_executor_begin(struct rh_executor *executor, const struct rh_micro_batch *batch, int64_t count, int64_t step,
                      float loss_scale) RH_MUST;
/* Finishes the oldest step in flight. If no other has begun, devices compute nothing on return, and the store holds the step's gradients;
 * else these may be in flight, and rh_updater_norm waits for them. After a synchronous update, uploads of its weights for the next step may
 * be in flight: set no weights by hand until that step is over. */
int rh_executor_finish(struct rh_executor *executor) RH_MUST;
/* Gives up what is in flight after a fault of the caller's, and returns that fault with its line. Nothing is running on return, and the
 * executor can only be destroyed. */
int rh_executor_abandon(struct rh_executor *executor, int rc) RH_MUST;
/* 1: steps are not joined, unless in a stretch. Steps of stale updates are joined, unless boundaries go to NVMe, a trained table has two
 * uses (its sums are added up when all devices are idle), or the store could not be registered whole. */
int64_t rh_executor_steps_in_flight(const struct rh_executor *executor);
/* Whether an executor joins steps that are planned so, where the store can be registered whole. */
int rh_executor_joins(const struct rh_executor_plan *planned, const struct rh_model *model);
/* Why stale steps are not joined, for a note; NULL: they are, or updates are not stale. */
const char *rh_executor_unjoined(const struct rh_executor *executor);

/* Versions of a layer's weights at a micro-batch's forward and backward: they rise with each update. 0, 0: it trains nothing. */
struct rh_versions {
	int64_t forward, backward;
};

/* A micro-batch's drift: the most updates that any of its layers got between its forward and its backward. */
static inline int64_t rh_versions_drift(const struct rh_versions *versions, int64_t layers)
{
	int64_t most = 0;
	for (int64_t l = 0; l < layers; l++)
		most = versions[l].backward - versions[l].forward > most ? versions[l].backward - versions[l].forward : most;
	return most;
}

/* Messages of the caller's over the links, which have fixed places among those of activations and gradients: the same at both ends, in the
 * order in which a place names them. One is posted when the messages before it on its way are, and the caller says that it may be. */
enum rh_letter_way { RH_LETTER_FROM_BELOW, RH_LETTER_TO_BELOW, RH_LETTER_FROM_ABOVE, RH_LETTER_TO_ABOVE };
enum rh_letter_place {
	RH_LETTER_AHEAD,    /* before the step's first activation comes from below, and goes up */
	RH_LETTER_BACKWARD, /* before its first gradient comes from above, and goes down; where a box has no backward, behind AHEAD */
	RH_LETTER_END       /* behind all messages of a stretch; of its last step */
};
struct rh_letter {
	enum rh_letter_way way;
	int kind;     /* the caller's */
	int64_t step; /* that it speaks of */
};
struct rh_letters {
	/* Letter number i of a place. 0: the place has no more. */
	int (*at)(void *context, enum rh_letter_place place, int64_t step, int i, struct rh_letter *out);
	/* Its tag, and memory that is the link's from now on. 1: it is posted; 0: it cannot be yet; or a fault. */
	int (*open)(void *context, const struct rh_letter *letter, uint64_t *tag, void **bytes, int64_t *size);
	/* It has come; or the peer has it, and the memory is the caller's again. */
	int (*close)(void *context, const struct rh_letter *letter);
	void *context;
};

/* Steps with local updates (RH_UPDATE_LOCAL), without a flush between them: when the updater has a stage's gradients of a step's
 * micro-batches it updates the stage's blocks. Only the stage's next slot waits for that; with an update_delay the slot that comes so many
 * backwards later (rh_dispatch_publishes), because devices read a copy. A stage's backward works from the input that its forward had, with
 * the weights of now (arXiv 2606.07881, equation 1): it recomputes, or, where the plan keeps activations (kept_micro_batches), has those of
 * its forward. Where the store has a stash it recomputes with the forward's weights. */
struct rh_stretch {
	int64_t first_step, steps;        /* steps: the most; where boundaries go to NVMe the whole program is made of so many at once */
	int64_t micro_batches;            /* of each step, at most options.planned.train_micro_batches */
	const struct rh_letters *letters; /* of one of several boxes; NULL: there are none */
	/* Each step in turn: opens its update, and gives its micro-batches and the loss's scale. What goes in is read at once; results are put
	 * where they are wanted at the step's `end`. 1: there shall be no more; 2: it cannot begin yet, which is asked again when a message
	 * has come. */
	int (*begin)(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale);
	/* Each step in turn, when its results are there and all of its gradients have been taken, so that its norm can be asked for: before
	 * rh_executor_steps_in_flight more have begun. versions: (micro_batches, layers). */
	int (*end)(void *context, int64_t step, const struct rh_versions *versions);
	void *context;
};
/* All steps, and a flush. A negative return of the two ends it. Blocks of two uses are frozen. */
int rh_executor_train_stretch(struct rh_executor *executor, const struct rh_stretch *stretch) RH_MUST;

/* rh_dispatch_drift_bound of the executor's programs. */
int64_t rh_executor_drift_bound(const struct rh_executor *executor);

/* Seconds of the step that was finished last, in a stretch from the end of the step before: means over the devices' compute streams, except
 * `optimizer`. */
struct rh_step_times {
	double compute;
	double weights;     /* waits for uploads of weights */
	double activations; /* waits for activations and gradients between stages */
	double gradients;   /* waits for room that a download still needs */
	double optimizer;   /* the host's wait for updates */
	double ended;       /* when the compute streams had finished the step, on the devices' clocks; in a stretch by rh_updater_seconds */
};
const struct rh_step_times *rh_executor_times(const struct rh_executor *executor);

/* Records what devices do in this training step, the updates that it hides (rh_updater_watch), and all transfers of NVMe, until it is
 * called with NULL. Call it before the step, best before the previous step begins. The spans' times are known when rh_executor_finish or
 * _train_stretch returns; after the call with NULL the caller resolves the trace. Borrowed. */
struct rh_trace;
void rh_executor_trace(struct rh_executor *executor, struct rh_trace *trace, int64_t step);

/* One of several boxes, steps that are flushed: messages of the caller's that follow the step's last activation from below, or its last
 * gradient from above. Their receives are posted with its own, so that they wait for no trip of their own; they are the link's latest
 * receives when the step is finished, and nothing of the step waits for them. Of the step that begins next; borrowed until it is over. */
struct rh_follower {
	uint64_t tag;
	void *bytes;
	int64_t size;
};
void rh_executor_follow(struct rh_executor *executor, enum rh_letter_way way, const struct rh_follower *follower, int count);
/* Between two such steps: posts the receives of the first activations from below of step `step`, which begins next. count: its
 * micro-batches; tokens: (count), of each. */
int rh_executor_expect(struct rh_executor *executor, int64_t step, const int64_t *tokens, int64_t count) RH_MUST;

/* Forward only; no step is in flight. */
int rh_executor_infer(struct rh_executor *executor, const struct rh_micro_batch *batch, int64_t count) RH_MUST;

/* ---- what it has lowered, for the checker (run/check.h) ---- */

struct rh_lanes;
struct rh_check_options;
/* Between calls. The executor keeps its commands from then on until rh_record_end. */
void rh_record_begin(struct rh_executor *executor);
void rh_record_end(struct rh_executor *executor);

/* Their lanes. Forward-only calls are steps -1, -2, ... */
const struct rh_lanes *rh_record_lanes(const struct rh_executor *executor);
/* The rooms of this run. */
void rh_record_rooms(const struct rh_executor *executor, struct rh_check_options *out);

/* Notes that the caller publishes all updates up to this step's (rh_updater_flush). */
int rh_record_flushed(struct rh_executor *executor, int64_t step) RH_MUST;

#endif
