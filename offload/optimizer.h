/* The optimizer on the host, over a store's trainable blocks, in fp32 on fp32 masters. Its kind and the layout of its state are the
 * store's.
 *
 *   adamw       torch.optim.AdamW; with 8-bit moments bitsandbytes' block-wise dynamic codes (simd/codes.c)
 *   lion        bitsandbytes' 32-bit Lion: decoupled decay, sign of the interpolated gradient
 *   sgd         torch.optim.SGD: decay added to the gradient, momentum without dampening
 *   adafactor   transformers' Adafactor as TrainingArguments makes it: scale_parameter and relative_step off, no first moment,
 *               eps 1e-30, clip_threshold 1, decay_rate -0.8, decoupled decay */
#ifndef RH_OFFLOAD_OPTIMIZER_H
#define RH_OFFLOAD_OPTIMIZER_H

#include "offload/store.h"

struct rh_optimizer_settings {
	double beta1, beta2, epsilon; /* epsilon: AdamW */
	double weight_decay;
	double momentum; /* SGD; nonzero exactly where the store keeps one */
};

/* What one step's updates have in common. */
struct rh_update {
	struct rh_optimizer_settings settings;
	double learning_rate, scale; /* of the gradients */
	int64_t step;                /* counts from 1 */
	double lora_b_ratio;         /* tensors with is_lora_b have learning_rate times this; 0 means 1 */
};

/* Makes one trainable block's stored gradient final, and sums its squares. For a block of two uses the gradient is use 1 (the head) +
 * use 0, added in fp32 and rounded once, which uses up both sums. Call it once a step, when all of the gradient is down. */
void rh_optimizer_take(struct rh_store *store, int block);
/* The 2-norm of the gradients of all blocks, or of one, as last taken: in fp64, per tensor in fixed blocks of elements, then in tensor
 * order. A norm that is not finite is no error. */
double rh_optimizer_taken_norm(const struct rh_store *store);
double rh_optimizer_block_norm(const struct rh_store *store, int block);
/* `before` plus the squares of all blocks' gradients, added tensor by tensor. Where other stores hold the model's lower layers, `before`
 * is their sum; the result is then the sum that one store of all layers would give. */
double rh_optimizer_add_squares(const struct rh_store *store, double before);
/* The same squares one by one; each: (the result), or NULL. Returns how many: trained tensors, without a shared block's where it is the
 * head's. Added up in the order of the layers, over all stores, they are that sum. */
int64_t rh_optimizer_squares(const struct rh_store *store, double *each);
/* The first tensor of a block whose taken gradient is not finite; -1: all are. */
int rh_optimizer_not_finite(const struct rh_store *store, int block);
/* Tests: puts a NaN into a block's taken gradient. */
void rh_optimizer_spoil(struct rh_store *store, int block);

/* min(1, max_norm / (norm + 1e-6)), torch.nn.utils.clip_grad_norm_'s factor; 1 where max_norm is 0 (off). */
double rh_optimizer_clip(double norm, double max_norm);

/* One update of one block: gradients times `scale`, state, decay (of tensors with `decays`), master, upload form. One pass; Adafactor
 * takes three, because its step depends on all of a tensor's gradient. The result has the same bits for any number of threads and any
 * instruction set. -EINVAL names block and tensor if a weight became non-finite: the run must stop, because the split layout has lost
 * its master. Or a fault of NVMe. */
int rh_optimizer_update(struct rh_store *store, int block, const struct rh_update *update) RH_MUST;
/* The same update in two passes, each of which moves fewer bytes than one update does. The first makes the weights (upload form and
 * masters) from new moments that it does not store; the second computes the moments from the gradient again, and stores them. Nothing
 * else may change the block between the two. Legal where rh_optimizer_has_passes: AdamW whose moments are fp32 and lie, with the
 * masters, in memory. */
enum rh_update_pass { RH_UPDATE_WHOLE, RH_UPDATE_WEIGHTS, RH_UPDATE_MOMENTS };
int rh_optimizer_has_passes(const struct rh_store *store);
/* The update, or a pass of it, piece by piece, so that the caller can do other work in between: where a block's state lies on NVMe its
 * update takes as long as the drive. Pieces in ascending order, each once; pieces of several blocks may alternate. */
int rh_optimizer_update_piece(struct rh_store *store, int block, int piece, const struct rh_update *update,
                              enum rh_update_pass pass) RH_MUST;
/* Before the first of these pieces, of a block whose gradient comes by rows (rh_store_by_rows), where rh_optimizer_has_passes: the update
 * of some of its rows, or the pass that makes weights. That pass then leaves these rows out. */
int rh_optimizer_update_rows(struct rh_store *store, int block, const int32_t *row, int64_t count, const struct rh_update *update,
                             enum rh_update_pass pass) RH_MUST;
/* 0 of a block without tensors. */
int rh_optimizer_pieces(const struct rh_store *store, int block);
/* Where the piece's spilled state is: 0: in memory; 1: being read; 2: on NVMe. Only for a caller that holds the pool. */
int rh_optimizer_distance(const struct rh_store *store, int block, int piece);

#endif
