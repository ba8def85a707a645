#include "partition/spared.h"

/* Of a model with such blocks, one or a period of them. What is not said counts for nothing in a block. */
static struct rh_model_config config_of(const struct rh_experiment *experiment)
{
	const struct rh_experiment_block *block = &experiment->block;
	return (struct rh_model_config){.family = rh_family_at(0),
	                                .vocab_size = 1,
	                                .hidden_size = experiment->hidden_size,
	                                .intermediate_size = block->intermediate_size,
	                                .num_hidden_layers = block->window ? block->window_every : 1,
	                                .num_attention_heads = block->attention_heads,
	                                .num_key_value_heads = block->key_value_heads,
	                                .head_dim = block->head_dim,
	                                .max_position_embeddings = experiment->sequence_length,
	                                .rope[0].theta = 10000,
	                                .bos_token_id = -1,
	                                .experts = block->experts,
	                                .experts_per_token = block->experts_per_token,
	                                .router_softmax = RH_ROUTER_OVER_CHOSEN,
	                                .window = block->window,
	                                .layer[0].windowed = block->window > 0};
}

int rh_spared_share(const struct rh_experiment *experiment, const struct rh_hardware_device *device, int64_t tokens, double *share)
{
	struct rh_model_config config = config_of(experiment);
	struct rh_micro_shape shape = {.tokens = tokens,
	                               .documents = (tokens + experiment->sequence_length - 1) / experiment->sequence_length,
	                               .longest = tokens < experiment->sequence_length ? tokens : experiment->sequence_length,
	                               .head_rows = 1};
	struct rh_rates rates = {.device = device, .share = 1};
	struct rh_model *model = NULL;
	struct rh_costs costs = {0};
	*share = 0;
	if (!config.intermediate_size)
		return 0;
	int rc = rh_model_config_check(&config, experiment->name);
	rc = rc ? rc : rh_model_create(&config, RH_BF16, NULL, &model);
	rc = rc ? rc : rh_costs_measure(model, &shape, &rates, 0, &costs);
	double spared = 0, all = 0;
	for (int l = 1; !rc && l <= config.num_hidden_layers; l++) {
		spared += costs.layer[l].recompute_spared_s;
		all += costs.layer[l].recompute_s;
	}
	*share = all > 0 ? spared / all : 0;
	rh_costs_free(&costs);
	rh_model_destroy(model);
	return rc;
}
