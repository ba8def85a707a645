/* What runs where: stages, and bytes of device memory, by emitting the model's ops into an arena that measures. Pure: no I/O, no clock.
 *
 * Stages are packed greedily under the device's cap, or cut where the user says: the fused stage from the top (its recompute, loss and
 * backward run as one), then the other backward stages, then the forward stages over the layers below the fused one. A device holds
 *   weights: one stage's, and those of the device's next stage, which are prefetched meanwhile (a double buffer, filled from both ends)
 *   plain matrices: those of the largest stage, where its weights are packed (core/form.h), made once a slot; likewise 8-bit forms and
 *     scales (rh_model_scale). Where a device has no room for them, each product has its own made in the arena, in every micro-batch
 *   the largest stage's gradient sums, fp32, and their rounded copy in bf16
 *   the arena: the largest stage's activations and workspace for one micro-batch
 *   boundary buffers: inputs and outputs of two micro-batches, and copies in 8 bits; the micro-batches' integers and results likewise
 *   the KV cache, when generating; of texts in chunks, what the mixers of the largest forward stage carry, or that of one layer with the
 *     sums of its gradients, of linear attention with its states before chunks: a backward stage has one mixer at most
 *   kept activations, where one device trains alone and has memory to spare: of as many backward stages below the fused one as fit, for
 *     every micro-batch of a round. These stages keep from their forward what the others recompute in their backward. Where stages that
 *     update themselves keep what their forwards made (kept_micro_batches), all but a fused one do, in a ring
 *   operands of deferred weight gradients, where backwards are split: of each of the device's stages, for as many micro-batches as the
 *     schedule defers at once */
#ifndef RH_PARTITION_STAGE_PLAN_H
#define RH_PARTITION_STAGE_PLAN_H

#include "model/emit.h"

/* A stage whose backwards are split: its device, and the most micro-batches whose weight gradients are deferred at once. */
struct rh_deferral {
	int device;
	int64_t micro_batches;
};

/* A memo of stages' bytes, for further requests with the same model and micro-batches. Zero it before the first. */
struct rh_stage_plan_found {
	struct plan_stage_bytes *stage; /* NULL: nothing yet */
	struct plan_fated *fated;       /* those with fates of their own: a few, measured last */
	int64_t head_rows;              /* of the model as it was cut then */
};
void rh_stage_plan_found_free(struct rh_stage_plan_found *found);

/* Where packed weights become plain. By default a model that is one stage stays on its device, in a room or not, and stages that come and
 * go have a room where devices have one. */
enum rh_plain { RH_PLAIN_ANYWHERE, RH_PLAIN_IN_ROOM, RH_PLAIN_BY_PRODUCT };

struct rh_stage_plan_request {
	const struct rh_model *model;
	int trains;                         /* 0: forward only (eval, generate) */
	struct rh_micro_shape train, infer; /* the largest micro-batches of either kind; all zero when there are none */
	int infer_logits;                   /* forward-only results are whole rows of logits */
	int64_t cache_rows;                 /* of the KV cache, 0: none */
	int64_t device_cap_bytes;
	int small_stages; /* as small as stages_most allows; 0: those that spare the most recompute, and of these the fewest */
	int stages_most;  /* of stages that are not cut by the user; 0: any number */
	enum rh_plain plain;
	const char *cap_key; /* the key that would raise the cap; NULL: none would */
	int devices;
	int64_t train_round;        /* micro-batches in a round */
	int crosses_rounds;         /* a step has several rounds */
	int64_t kept_micro_batches; /* in flight at once, whose activations every stage keeps for its backward; 0: the plan chooses who keeps */
	const struct rh_fates *fates; /* of each layer, where they are given: tests; NULL: the plan chooses */
	/* first layer of each stage but the first, ascending; -1: choose */
	const int64_t *forward_cuts, *backward_cuts;
	int64_t forward_cut_count, backward_cut_count;
	const struct rh_deferral *deferral; /* of each backward stage, as the cuts make them, top down; NULL: none is split */
	struct rh_stage_plan_found *found;  /* NULL: no memo */
};

struct rh_stage {
	int lo, hi;
};

static inline int rh_stage_has_head(const struct rh_model *model, struct rh_stage stage)
{
	return model->layer[stage.hi - 1].kind == RH_LAYER_HEAD;
}

/* Where a stage's activations lie, by their fates: the round's first micro-batch at `offset`, then `bytes` for each. 0 bytes: there are
 * none. A plan with kept_micro_batches uses them as a ring of so many places. */
struct rh_stage_places {
	struct {
		int64_t offset, bytes;
	} kept, saved;  /* on the device; in host memory */
	int recomputes; /* the others, if there are any, are made again */
};

/* Where a device keeps the operands of a stage's deferred weight gradients: micro-batch m at `offset` + m % `places` * `bytes`. */
struct rh_deferred_place {
	int64_t offset, bytes, places;
};

/* The stages and the bytes that a device reserves. More than 20 members: one figure a room of its memory. */
struct rh_stage_plan {
	struct rh_stage *forward;           /* bottom up, covering [0, backward[0].lo) */
	struct rh_stage *backward;          /* top down; [0] is fused */
	struct rh_stage_places *places;     /* of each backward stage */
	struct rh_deferred_place *deferred; /* likewise */
	struct rh_fates *fates;             /* of each layer */
	int forward_stages, backward_stages;

	/* Of a box's part: its input at layer 0 comes from the box below, which wants its gradient back; the output of its last layer goes to
	 * the box above, and its gradient comes back. */
	int is_fed, owes_gradient, feeds;
	int tap; /* the model's: the activation at this layer boundary goes to the box above, too, and no gradient comes back; 0: none */

	int64_t narrow_bytes;       /* with model->saves_narrow, of a boundary's copy in 8 bits; else 0 */
	int crosses_rounds;         /* the request's: the store has a place for every sum */
	int64_t kept_micro_batches; /* the request's */
	int boundary_buffers;
	int64_t weight_bytes, plain_bytes, gradient_bytes, rounded_bytes, arena_bytes, kept_bytes, deferred_bytes, boundary_bytes,
	        micro_bytes, result_bytes, cache_bytes; /* of one each */
	int64_t saving_bytes;                           /* of saved activations on their way: of one buffer */
	int64_t saved_bytes;                            /* in host memory, of all that are saved at once */
	int64_t device_bytes;                           /* all of the above but that: what a device reserves */
};

/* How many of the backward stages a call runs: forward-only the fused one, for losses or logits, where this box has the head. */
static inline int rh_stage_plan_backward_stages(const struct rh_stage_plan *cuts, int trains)
{
	return trains ? cuts->backward_stages : !cuts->feeds;
}

/* The number of layers. A box's part in which nothing is trained has no backward stage. */
static inline int rh_stage_plan_top(const struct rh_stage_plan *cuts)
{
	return cuts->backward_stages ? cuts->backward[0].hi : cuts->forward[cuts->forward_stages - 1].hi;
}

/* With saved_dtype: fp8 backward stages read their input from a copy in 8 bits, forward stages from the activation itself. Each layer's
 * input is rounded, so each is a backward stage of its own: else results would depend on cuts. Not rounded is what the lowest two layers
 * and the head read: the former may be one stage, the latter reads what the forward left. Is the activation at this boundary rounded? */
static inline int rh_stage_plan_narrows(const struct rh_stage_plan *cuts, int layer)
{
	return cuts->narrow_bytes && layer > 1 && layer + 1 < rh_stage_plan_top(cuts);
}

enum { RH_PLAN_MICRO_BUFFERS = 2, RH_PLAN_RESULT_BUFFERS = 2, RH_PLAN_SAVING_BUFFERS = 2 };

/* Does the activation at this layer boundary go to the box above? */
static inline int rh_stage_plan_gives(const struct rh_stage_plan *cuts, int layer)
{
	return (cuts->feeds && layer == rh_stage_plan_top(cuts)) || (cuts->tap && layer == cuts->tap);
}

/* A verdict, not a fault: a budget is too small. -ENOMEM is an allocation that failed. */
enum { RH_DOES_NOT_FIT = -E2BIG };

/* For a search over many cuts: the bytes that a plan with these cuts would reserve on a device, exactly. The request's own cuts are
 * ignored; it has several devices. */
struct rh_stages {
	struct rh_stage *stage; /* borrowed; as in struct rh_stage_plan */
	int count;
};
struct rh_stage_plan_sizer;
int rh_stage_plan_sizer_create(const struct rh_stage_plan_request *request, struct rh_stage_plan_sizer **out) RH_MUST;
void rh_stage_plan_sizer_destroy(struct rh_stage_plan_sizer *sizer);
/* Those of a device that runs this stage alone, forward and backward; deferred: micro-batches whose weight gradients it defers at once. */
int64_t rh_stage_plan_sizer_stage_bytes(struct rh_stage_plan_sizer *sizer, struct rh_stage stage, int64_t deferred);
int64_t rh_stage_plan_sizer_bytes(struct rh_stage_plan_sizer *sizer, struct rh_stages forward, struct rh_stages backward);

/* RH_DOES_NOT_FIT: the error line names the layer and what it needs. -EINVAL: a cut is not a layer. */
int rh_stage_plan_make(const struct rh_stage_plan_request *request, struct rh_stage_plan *out) RH_MUST;
void rh_stage_plan_free(struct rh_stage_plan *plan);
/* The caller's (rh_stage_plan_free), also where it failed. */
int rh_stage_plan_copy(const struct rh_stage_plan *plan, struct rh_stage_plan *out) RH_MUST;

/* Of a training slot's layers those that are in one backward stage with `layer`: the rows of these that are kept or saved are placed
 * together, as a stage's [lo, hi) are. A backward slot is one piece; a forward slot of several devices may have several, and a backward
 * stage may be pieces of two forward slots. */
struct rh_stage_piece {
	struct rh_stage stage; /* the backward stage; the slot's where its layers are not trained */
	int lo, hi;
	const struct rh_stage_places *places; /* of the backward stage; NULL: all its activations are recomputed */
};
struct rh_stage_piece rh_stage_plan_piece(const struct rh_stage_plan *plan, struct rh_stage slot, int layer);

/* Of the stage [lo, hi), whose backwards are split. */
const struct rh_deferred_place *rh_stage_plan_deferred(const struct rh_stage_plan *plan, int lo, int hi);

/* Where the weights of a stage lie in its upload, each block once: offset[b], for each block of the model, in bytes; -1 where the stage
 * does not use it. Returns the total. is_backward: for a slot of the stage that makes gradients (rh_slot_makes_gradients). That of the
 * embedding alone reads no weights, but for those of a norm and of an adapter (rh_model_embedding_reads_back). */
int64_t rh_stage_plan_upload_layout(const struct rh_model *model, int lo, int hi, int is_backward, int64_t *offset);
/* The same for the plain matrices of a stage's packed blocks; -1 where a block has none. */
int64_t rh_stage_plan_plain_layout(const struct rh_model *model, int lo, int hi, int64_t *offset);
/* The same for gradient sums, in elements: offset[2*b+use]. */
int64_t rh_stage_plan_gradient_layout(const struct rh_model *model, int lo, int hi, int64_t *offset);
/* The totals of one layer alone. */
int64_t rh_stage_plan_layer_upload(const struct rh_model *model, int l);
int64_t rh_stage_plan_layer_gradients(const struct rh_model *model, int l);
int64_t rh_stage_plan_layer_plain(const struct rh_model *model, int l);

/* Cuts for `stages` (at most one a layer) stages of about equal weights: the first layer of each but the first. cut: (stages - 1). */
void rh_stage_plan_even_cuts(const struct rh_model *model, int stages, int64_t *cut);

#endif
