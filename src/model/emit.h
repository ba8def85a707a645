/* Model code emits ops here and never knows the device. The sink launches them; without a sink, only the arena's peak is measured.
 *
 * A stage is layers [lo, hi). For one micro-batch:
 *   rh_stage_forward    runs them, and leaves the requested boundaries and the rows of the activation table that are kept or saved;
 *   rh_stage_recompute  makes the rows that are neither, right before the backward; in a fused stage it is the forward half;
 *   rh_stage_place      says where rows are that an earlier forward left, where nothing is recomputed;
 *   rh_stage_backward   turns the gradient at hi into the gradient at lo and adds to the blocks' gradient sums;
 *   rh_stage_carry      of a text in chunks: adds what the stage carries of one, before the last chunk's backward;
 *   rh_stage_weights    adds the weight gradients that rh_stage_backward deferred, where emit->deferred is given: those of linears and of
 *                       the embedding.
 * A fused stage (hi is the model's end) computes the loss and its gradient in rh_stage_recompute's last layer, so its backward takes no dy.
 *
 * A mixture of experts with a load balancing loss (model->router_aux_loss_coef) adds up a load of 2E sums in fp32, over the tokens of all
 * layers in their order: how often each of E experts was chosen, and its shares of the routers' softmax. The loss's gradient at a router
 * needs the counts of all layers, those above it too. So the load lies behind each boundary's rows: that of the layers below behind an
 * activation, that of all layers behind a gradient. */
#ifndef RH_MODEL_EMIT_H
#define RH_MODEL_EMIT_H

#include "core/arena.h"
#include "device/op.h"
#include "model/activation.h"
#include "model/micro.h"
#include "model/model.h"

/* Bytes of a load; 0: the model has no load balancing loss. */
int64_t rh_load_bytes(const struct rh_model *model);
/* The boundary below layer `layer` (model->layers: above the last one) of a micro-batch of so many tokens, an activation or a gradient:
 * (rows, cols) numbers of the model's dtype, an activation's own and right behind them those of its side; `bytes` is with its load. */
struct rh_boundary_shape {
	int64_t rows, cols, bytes;
};
struct rh_boundary_shape rh_boundary_shape(const struct rh_model *model, int layer, int64_t tokens);
/* A copy of an activation at that boundary in 8 bits: (rows, cols) E4M3, and behind it a scale for each row (QUANTISE_ROWS). A row is a
 * token: numbers with an exponent of their own need no finer scale, and no row's bits depend on what travels with it, be it in chunks or
 * not. */
struct rh_boundary_shape rh_narrow_boundary_shape(const struct rh_model *model, int layer, int64_t tokens);
struct rh_view rh_narrow_boundary_view(const struct rh_model *model, int layer, int64_t tokens, void *at);
int64_t rh_narrow_most_bytes(const struct rh_model *model, int64_t tokens);
/* Of the largest boundary. */
int64_t rh_boundary_most_bytes(const struct rh_model *model, int64_t tokens);
static inline int64_t rh_boundary_cols(const struct rh_model *model, int layer)
{
	return model->layer[layer < model->layers ? layer : layer - 1].width;
}
static inline struct rh_side rh_boundary_has(const struct rh_model *model, int layer)
{
	return layer < model->layers ? model->layer[layer].side[0] : model->layer[layer - 1].side[1];
}
/* The boundary that lies at an address, without its side. */
static inline struct rh_view rh_boundary_view(const struct rh_model *model, int layer, int64_t tokens, void *at)
{
	return rh_view_of(at, model->dtype, tokens, rh_boundary_cols(model, layer));
}
/* Its side (rows, columns); absent where the boundary is, or has none. */
struct rh_view rh_boundary_side(const struct rh_model *model, int layer, struct rh_view boundary);
/* The load (1,2E) F32 behind the boundary; absent where the model has none, or the boundary is absent. */
struct rh_view rh_boundary_load(const struct rh_model *model, int layer, struct rh_view boundary);

/* transformers' load_balancing_loss_func times the coefficient: coefficient * E * the sum over experts of (times chosen / N) times (sum of
 * shares / N), N the tokens of all layers that have experts. load: (2E) of a micro-batch of `tokens`, with all layers; 0 without such. */
double rh_load_balancing_loss(const struct rh_model *model, int64_t tokens, const float *load);

/* The model's rope tables, (T, elements rotated) F32 each; those that it does not have are absent. */
struct rh_ropes {
	struct rh_view table[RH_ROPES];
};

/* An operand of products whose operands are scaled (scaled.c): its 8-bit forms, as it lies and transposed, and its scale. What is absent
 * was not made. */
struct rh_scaled {
	struct rh_view straight, across, scale;
};

/* What ops of a stage left of their outputs' largest magnitudes, for products whose operands are scaled (amax.c). */
enum { RH_AMAXES = 8 };
struct rh_amax {
	struct rh_view of, at; /* absent `of`: it was overwritten */
	int64_t known;         /* columns of `of` that `at` tells of */
	int64_t turn;          /* the larger, the later */
	int is_new;            /* the op that makes both is the next one */
};
struct rh_amaxes {
	char *room;   /* RH_AMAXES slots, in the arena */
	int64_t cols; /* numbers of a token that a slot has room for; 0: there are no slots */
	int64_t turns;
	struct rh_amax latest[RH_AMAXES];
};

struct rh_emit {
	const struct rh_model *model;
	int (*launch)(void *sink, const struct rh_op *op); /* NULL: measure */
	void *sink;
	struct rh_arena *arena;        /* activations that are recomputed, and workspace */
	const struct rh_fates *fates;  /* of each layer of the model; NULL: all activations are recomputed */
	struct rh_arena *kept, *saved; /* rows with these fates, in the order of the table; NULL: there are none */
	struct rh_arena *deferred;     /* operands of the weight gradients that rh_stage_weights adds; NULL: none is deferred */
	int rc;                        /* first fault of the sink; nothing is launched after it */

	/* this micro-batch, on the device */
	struct rh_micro_shape shape;
	char *micro;                /* laid out as rh_micro_layout says */
	uint32_t step, micro_batch; /* for dropout's counter */
	uint64_t seed;
	float dropout;                /* of adapters' inputs: the model's dropout in training, else 0 */
	struct rh_model_dropout drop; /* of the model's own: in training, else zeros */
	float loss_scale;             /* 1 / trained tokens of the step */
	float micro_batch_share;      /* 1 / micro-batches of the step: the weight of this one's load balancing loss */
	/* of the stage that is being emitted, set by rh_stage_* */
	int is_backward; /* of a backward slot: recompute, backward, and what is carried before them */
	struct rh_ropes ropes;
	struct rh_view load; /* absent: the model has no load balancing loss */
	struct rh_side has;  /* the columns of these two, all that any boundary of the stage has; both absent where that is nothing */
	struct rh_view side, d_side;
	struct {
		const void *dy; /* NULL: none */
		struct rh_scaled made;
	} scaled_dy; /* the output gradient that the latest linear's dx was made of, in the arena for its dW */
	struct {
		struct rh_view of; /* absent: none */
		struct rh_scaled made;
	} scaled_x;               /* an input that several products read (emit_share_input) */
	struct rh_amaxes *amaxes; /* of the stage's pass, while rh_stage_* run; NULL: ops leave none */

	/* blocks on the device; only those of the stage's layers are read. weights: model dtype; gradient[block][use]: F32 sums */
	char **weights;
	float *(*gradient)[2];
	char **plain; /* of blocks: what was made of them (rh_block_make_plain). NULL: each product has its own made in the arena */

	/* What layers carry of a text that is generated, or that is cut into chunks, for cache_rows tokens: each where
	 * rh_model_cache_range says, from that of cache_layer on. sums: rh_model_carried_back_bytes of one layer's. */
	char *cache, *sums;
	int64_t cache_rows;
	int cache_layer;
};

/* Makes a block's packed matrices plain, and what `multiply` asks for: its bytes are at `from`, what is made goes to `to`
 * (rh_block_plain_bytes). */
int rh_block_make_plain(struct rh_emit *emit, int block, char *from, char *to) RH_MUST;

/* A stage between its recompute and its backward, allocated once for the model's layers. */
struct rh_stage_state {
	struct rh_activations *layer; /* one per layer of the model */
	struct rh_ropes ropes;
	struct rh_view load; /* (1,2E) of the layers up to the stage's end */
	struct rh_view side; /* what lies beside its activations; where it is recomputed */
	int64_t mark;        /* of the arena before the stage began */
	struct rh_amaxes amaxes;
};
int rh_stage_state_create(const struct rh_model *model, struct rh_stage_state *out) RH_MUST;
void rh_stage_state_free(struct rh_stage_state *state);

/* Layers [lo, hi) of a stage, whose parts are emitted one after the other: forward upwards, backward downwards. */
struct rh_stage_part {
	int lo, hi, stage_lo, stage_hi;
};
/* Between two parts of a stage. */
struct rh_stage_pass {
	struct rh_ropes ropes;
	struct rh_view spare[2];
	struct rh_view x;    /* what the next layer reads: an activation, or a gradient */
	struct rh_view load; /* (1,2E) of the layers so far; backward: of all layers */
	struct rh_view side; /* beside its activations; backward: beside its gradients */
	int64_t mark;
	int turn;
	struct rh_amaxes amaxes; /* forward */
};

/* Where a fused stage, or a forward up to the model's end, writes its results. Absent views are not written. */
struct rh_head_out {
	struct rh_view loss;   /* (head_rows,1) F32 */
	struct rh_view hit;    /* (head_rows,1) I32 */
	struct rh_view choice; /* (head_rows, choices) F32 logits of the chosen vocabulary entries */
	struct rh_view shares; /* (head_rows, 2 top) F32, as HEAD_LOSS tells them */
	struct rh_view logits; /* (head_rows, V) F32: generation; then no loss is made */
	struct rh_view load;   /* (1,2E) F32 of all layers */
};

/* Of recompute and of what is carried, x may be such a copy: it is made wide in the arena.
 *
 * x: the boundary at lo, absent when lo is 0. boundary[l], where present, receives the activation at layer boundary l, lo < l <= hi
 * (l < layers). `head` is used when hi is the model's end. */
int rh_stage_forward(struct rh_emit *emit, int lo, int hi, struct rh_view x, const struct rh_view *boundary,
                     const struct rh_head_out *head) RH_MUST;
/* The same in parts, each of which leaves its last activation in y (absent at the model's end, and where it stays in the arena), and a copy
 * in 8 bits in `narrow`, absent or not. x: of the first part. Nothing else is emitted on the arena between them, but what is given back. */
int rh_stage_forward_part(struct rh_emit *emit, struct rh_stage_part part, struct rh_stage_pass *pass, struct rh_view x, struct rh_view y,
                          struct rh_view narrow, const struct rh_head_out *head) RH_MUST;
/* Of a stage with one layer at most that carries, which may have the embedding below and a head that carries nothing above. x: the boundary
 * at lo, absent when lo is 0. */
int rh_stage_carry(struct rh_emit *emit, int lo, int hi, struct rh_view x) RH_MUST;
/* Makes the stage's rows whose fate is to be recomputed, in the arena, of the others, which lie in `kept` and `saved` as rh_stage_forward
 * left them. x and `head` as above. */
int rh_stage_recompute(struct rh_emit *emit, int lo, int hi, struct rh_view x, struct rh_stage_state *state,
                       const struct rh_head_out *head) RH_MUST;
/* The same in parts, upwards. x: of the first part. Nothing else is emitted on the arena between them, but what is given back. */
int rh_stage_recompute_part(struct rh_emit *emit, struct rh_stage_part part, struct rh_view x, struct rh_stage_state *state,
                            const struct rh_head_out *head) RH_MUST;
/* Launches nothing: only places the stage's rows, in the arenas of their fates and those that are deferred. */
void rh_stage_place(struct rh_emit *emit, int lo, int hi, struct rh_view x, struct rh_stage_state *state);

/* The activation table of a stage, one row after the other, in the order in which they are placed. Begin with rh_stage_rows. Of *emit
 * model, shape, fates and deferred are read. */
struct rh_stage_rows {
	const struct rh_emit *emit;
	int lo, hi, next;        /* layers; that whose rows come next */
	int64_t bytes[RH_FATES]; /* of the rows so far */
	struct rh_activation_row table[RH_ACTIVATIONS];
	int count, at;
};
struct rh_stage_row {
	struct rh_activation_row is;
	int layer;
	enum rh_fate fate;
	int64_t offset, bytes; /* among the stage's rows with this fate */
};
void rh_stage_rows(const struct rh_emit *emit, int lo, int hi, struct rh_stage_rows *out);
/* 0: there are no more. Rows that the backward makes come, too; they have no offset. */
int rh_stage_next_row(struct rh_stage_rows *rows, struct rh_stage_row *out);
/* Bytes of the stage's rows by their fates. */
void rh_stage_fate_bytes(const struct rh_emit *emit, int lo, int hi, int64_t bytes[RH_FATES]);
/* dy at hi, absent for a fused stage; dx at lo, absent when no layer below is trained. The arena is back where it was. */
int rh_stage_backward(struct rh_emit *emit, int lo, int hi, struct rh_stage_state *state, struct rh_view dy, struct rh_view dx) RH_MUST;
/* The same in parts: dy of the first, dx of the last, which ends at rh_stage_lowest. */
int rh_stage_backward_part(struct rh_emit *emit, struct rh_stage_part part, struct rh_stage_state *state, struct rh_stage_pass *pass,
                           struct rh_view dy, struct rh_view dx) RH_MUST;
/* The lowest layer, from `lo` on, that has a backward: a fused stage may contain frozen layers below it. */
int rh_stage_lowest(const struct rh_model *model, int lo);
/* After rh_stage_backward with the same `deferred`, or rh_stage_place. */
int rh_stage_weights(struct rh_emit *emit, int lo, int hi, struct rh_stage_state *state) RH_MUST;

/* A micro-batch's results in a buffer that is laid out as rh_result_layout says. are_logits: scores are whole rows of logits. */
struct rh_head_out rh_result_views(const struct rh_model *model, const struct rh_micro_shape *shape, int64_t score_cols, int are_logits,
                                   char *buffer);

/* Rows of logits made at once: model->head_rows, and no fewer than fit here. */
enum { RH_HEAD_CHUNK_BYTES = 16 << 20 };
int64_t rh_head_chunk(const struct rh_model *model, int64_t head_rows);

#endif
