/* Numbers of a config.json that a family with them multiplies by, and which of its layers rotate. */
#include "model/config_internal.h"

#include <math.h>

/* layer_rope_theta: a number for each layer, 0 where it does not rotate. transformers rotates all others by rope_theta. */
static int parse_thetas(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *list = json_object_get(json, "layer_rope_theta");
	int64_t layers = out->num_hidden_layers, period = out->family->silent.window_period;
	if (!out->family->attention.reads_thetas || layers > RH_MOST_LAYERS)
		return 0;
	for (int64_t i = 0; i < layers; i++)
		out->layer[i].is_unrotated = (layers - 1 - i) % period == 0;
	if (!list || json_is_null(list))
		return 0;
	if (!json_is_array(list) || json_array_size(list) != (size_t)layers)
		return rh_fail(-EINVAL, "%s: 'layer_rope_theta' must be a list of %lld numbers, one for each layer", where,
		               (long long)layers);
	for (size_t i = 0; i < json_array_size(list); i++) {
		double theta = json_number_value(json_array_get(list, i));
		if (theta != 0 && theta != out->rope[0].theta)
			return rh_fail(-EINVAL, "%s: layer_rope_theta has %g, which is not supported (0 and rope_theta, here %g, are)",
			               where, theta, out->rope[0].theta);
		out->layer[i].is_unrotated = theta == 0;
	}
	return 0;
}

int config_parse_factors(const json_t *json, const char *where, struct rh_model_config *out)
{
	const struct rh_family_silent *silent = &out->family->silent;
	double of_queries = silent->qk_scale_factor, of_logits = silent->output_multiplier;
	const struct {
		const char *key;
		double silent, *value;
	} factors[] = {{"qk_scale_factor", silent->qk_scale_factor, &of_queries},
	               {"output_multiplier", silent->output_multiplier, &of_logits},
	               {"post_norm_eps", silent->post_norm_eps, &out->post_norm_eps}};
	out->post_norm_eps = silent->post_norm_eps;
	for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
		int rc = factors[i].silent == 0 ? 0 : rh_json_real(json, factors[i].key, where, RH_JSON_OPTIONAL, factors[i].value);
		if (rc)
			return rc;
		if (factors[i].silent != 0 && !(isfinite(*factors[i].value) && *factors[i].value > 0))
			return rh_fail(-EINVAL, "%s: %s %g makes no sense; it must be positive", where, factors[i].key, *factors[i].value);
	}
	if (silent->qk_scale_factor != 0)
		out->attention_factor = of_queries / sqrt((double)out->head_dim);
	if (silent->output_multiplier != 0)
		out->logits_divisor = 1 / of_logits;
	return parse_thetas(json, where, out);
}
