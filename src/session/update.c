#include "session/update.h"

struct rh_update rh_update_of(const struct rh_config *config, int64_t step, double learning_rate, double scale)
{
	return (struct rh_update){
	        .settings = {config->adam_beta1, config->adam_beta2, config->adam_epsilon, config->weight_decay, config->momentum},
	        .learning_rate = learning_rate,
	        .scale = scale,
	        .step = step + 1,
	        .lora_b_ratio = config->loraplus_lr_ratio};
}
