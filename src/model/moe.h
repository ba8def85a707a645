/* Between mlp.c, moe.c, moe_layout.c and beside.c: rows of the activation table, and the tensors of a mixture of experts. */
#ifndef RH_MODEL_MOE_H
#define RH_MODEL_MOE_H

#include "model/half.h"

/* In rh_layer's own[RH_MLP], -1 absent: (E,H), (E * 2I,H), (E * H,I), of the last two the first expert's; their biases (1,E), (E,2I),
 * (E,H); the factors of experts' weights (1,E); the bias of the choice, in parts (RH_BF16_PARTS,E). Then those of beside.c. */
enum { MOE_ROUTER, MOE_GATE_UP, MOE_DOWN, MOE_ROUTER_BIAS, MOE_GATE_UP_BIAS, MOE_DOWN_BIAS, MOE_SCALE, MOE_CHOICE_BIAS, MOE_TENSORS };

/* Rows of one MLP: gate|up, the input of Down, what Gating makes and that one's gradient. Those of experts lie behind them. */
enum { MLP_GATE_UP = RH_ROW_MLP, MLP_HIDDEN, MLP_GATING, MLP_D_GATING, MLP_EXPERTS };

/* Rows of experts: of the router, (T,E) logits and (T,k) choice and weights; (E+1) where each expert's rows begin, (T,k) rows of the
 * choices; and gate|up, a row for each pair of token and expert. The backward makes the gradients of logits and of what Down made,
 * act(gate) * up, and the input's rows by expert. */
enum {
	ROUTED_LOGITS = MLP_EXPERTS,
	ROUTED_INDEX,
	ROUTED_WEIGHT,
	ROUTED_START,
	ROUTED_PLACE,
	ROUTED_GATE_UP,
	ROUTED_D_LOGITS,
	ROUTED_D_DOWN,
	ROUTED_HIDDEN,
	ROUTED_INPUT_ROWS
};

/* Low activations of adapters, by enum rh_routed, and their gradients. */
enum { ROUTED_LOW = ROUTED_INPUT_ROWS + 1, ROUTED_D_LOW = ROUTED_LOW + RH_ROUTED };
_Static_assert(ROUTED_D_LOW + RH_ROUTED <= RH_ROW_MLP + RH_MLP_ROWS, "each row has its number");

/* The experts without a router and what is beside them, as half.h says of a half. moe_learns: also of their router. */
int moe_learns(const struct rh_emit *emit, int layer);
void moe_declare(const struct rh_emit *emit, int layer, struct emit_table *table);
/* Of the logits: choice and weights, and the layer's part of the load. */
void moe_route(struct rh_emit *emit, const struct rh_layer *layer, const struct rh_activations *s);
/* y = add + what the experts make of x; y absent: only wanted rows. */
void moe_forward(struct rh_emit *emit, int layer, struct rh_view x, struct rh_view add, struct rh_view y, struct rh_activations *s);
/* First the rows that the backward leaves in the arena for `gradients`. Then: of dy the row ROUTED_D_LOGITS, and, in the arena, the
 * gradient of the experts' input, as a row for each pair: moe_gather. */
void moe_take_operands(struct rh_emit *emit, int layer, struct rh_activations *s);
struct rh_view moe_backward(struct rh_emit *emit, int layer, struct rh_activations *s, struct rh_view dy);
/* dx = add + each token's rows; dx may be add, which may be absent. */
void moe_gather(struct rh_emit *emit, const struct rh_activations *s, struct rh_view rows, struct rh_view add, struct rh_view dx);
void moe_gradients(struct rh_emit *emit, int layer, struct rh_activations *s, struct rh_view x);
void moe_weights(struct rh_emit *emit, int layer, struct rh_activations *s, struct rh_view x);

void moe_size(const struct rh_model_config *config, struct rh_layer *layer);
void moe_place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind);
void moe_place_adapters(const struct rh_model_config *config, const struct rh_lora_config *lora, const char *prefix, struct rh_layer *layer,
                        struct layout *at);

#endif
