/* Between mlp.c, moe.c and moe_layout.c: rows of the activation table, and the tensors of a mixture of experts. */
#ifndef RH_MODEL_MOE_H
#define RH_MODEL_MOE_H

#include "model/half.h"

/* In rh_layer's own[RH_MLP]: (E,H), (E * 2I,H), (E * H,I), of the last two the first expert's; their biases (1,E), (E,2I), (E,H), -1
 * absent. */
enum { MOE_ROUTER, MOE_GATE_UP, MOE_DOWN, MOE_ROUTER_BIAS, MOE_GATE_UP_BIAS, MOE_DOWN_BIAS };

/* Rows of one MLP: gate|up, the input of Down, what Gating makes and that one's gradient. Those of experts lie behind them. */
enum { MLP_GATE_UP = RH_ROW_MLP, MLP_HIDDEN, MLP_GATING, MLP_D_GATING, MLP_EXPERTS };

void moe_size(const struct rh_model_config *config, struct rh_layer *layer);
void moe_place(const struct rh_model_config *config, struct rh_layer *layer, struct layout *at, enum half_tensors kind);
void moe_place_adapters(const struct rh_model_config *config, const struct rh_lora_config *lora, const char *prefix, struct rh_layer *layer,
                        struct layout *at);

#endif
