/* A family with latent attention, and routers of sigmoids: its sizes, and which of its layers have experts. */
#include "model/config_internal.h"

#include <math.h>
#include <string.h>

/* Numbers that the scaling of positions multiplies scores by, too. */
static double score_factor(const struct rh_rope *rope)
{
	if (rope->type == RH_ROPE_DEFAULT || rope->mscale_all_dim == 0 || rope->factor <= 1)
		return 1;
	double mscale = 0.1 * rope->mscale_all_dim * log(rope->factor) + 1;
	return mscale * mscale;
}

int config_parse_latent(const json_t *json, const char *where, struct rh_model_config *out)
{
	struct rh_latent_config *latent = &out->latent;
	int64_t value = out->family->silent.latent.value;
	const struct {
		const char *key;
		int64_t *value;
	} sizes[] = {{"q_lora_rank", &latent->q_rank},
	             {"kv_lora_rank", &latent->kv_rank},
	             {"qk_nope_head_dim", &latent->own},
	             {"v_head_dim", &value}};
	if (!out->family->silent.latent.kv_rank || out->head_dim > RH_OP_MAX_HEAD_DIM)
		return 0; /* too long: rh_model_config_check says so */
	*latent = out->family->silent.latent;
	const json_t *rank = json_object_get(json, "q_lora_rank");
	if (rank && json_is_null(rank))
		return rh_fail(-EINVAL, "%s: q_lora_rank null is not supported in this family: queries are made of a vector of their own",
		               where);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int rc = rh_json_int(json, sizes[i].key, where, RH_JSON_OPTIONAL, sizes[i].value);
		if (!rc && (*sizes[i].value < 1 || *sizes[i].value > 1 << 20))
			rc = rh_fail(-EINVAL, "%s: '%s' is %lld, which makes no sense", where, sizes[i].key, (long long)*sizes[i].value);
		if (rc)
			return rc;
	}
	int64_t key = latent->own + out->head_dim;
	if (value > key || key > RH_OP_MAX_HEAD_DIM)
		return rh_fail(
		        -EINVAL,
		        "%s: v_head_dim %lld beside qk_nope_head_dim + qk_rope_head_dim = %lld is not supported: it may not be above "
		        "that, nor that above %d",
		        where, (long long)value, (long long)key, RH_OP_MAX_HEAD_DIM);
	latent->value = value;
	if (out->num_key_value_heads != out->num_attention_heads)
		return rh_fail(-EINVAL,
		               "%s: num_key_value_heads %lld is not num_attention_heads %lld, which is not supported in this family", where,
		               (long long)out->num_key_value_heads, (long long)out->num_attention_heads);
	out->attention_factor = score_factor(&out->rope[0]) / sqrt((double)key);
	return rh_json_bool(json, "rope_interleave", where, RH_JSON_OPTIONAL, &latent->rotates_adjacent);
}

/* The first layers are dense, so many as first_k_dense_replace says. */
static int parse_first(const json_t *json, const char *where, int64_t first, struct rh_model_config *out)
{
	int rc = rh_json_int(json, "first_k_dense_replace", where, RH_JSON_OPTIONAL, &first);
	for (int64_t i = 0; !rc && i < out->num_hidden_layers; i++)
		out->layer[i].dense = i < first;
	return rc;
}

/* mlp_layer_types: a word for each layer. Without it the first layer is dense, which other programs read elsewhere. */
static int parse_dense(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *types = json_object_get(json, "mlp_layer_types");
	int64_t first = 1;
	if (out->family->moe.first_dense)
		return parse_first(json, where, out->family->moe.first_dense, out);
	for (int64_t i = 0; i < out->num_hidden_layers; i++)
		out->layer[i].dense = i < 1;
	if (!types || json_is_null(types)) {
		int rc = rh_json_int(json, "first_k_dense_replace", where, RH_JSON_OPTIONAL, &first);
		return rc || first == 1
		               ? rc
		               : rh_fail(-EINVAL,
		                         "%s: first_k_dense_replace is %lld, and transformers reads mlp_layer_types, without which one "
		                         "layer is dense; say it there",
		                         where, (long long)first);
	}
	if (!json_is_array(types) || json_array_size(types) != (size_t)out->num_hidden_layers)
		return rh_fail(-EINVAL, "%s: 'mlp_layer_types' must be a list of %lld words, one for each layer", where,
		               (long long)out->num_hidden_layers);
	for (size_t i = 0; i < json_array_size(types); i++) {
		const char *kind = json_string_value(json_array_get(types, i));
		if (!kind || (strcmp(kind, "sparse") && strcmp(kind, "dense")))
			return rh_fail(-EINVAL, "%s: mlp_layer_types has '%s', which is not supported (sparse, dense are)", where,
			               kind ? kind : "(no string)");
		out->layer[i].dense = !strcmp(kind, "dense");
	}
	return 0;
}

static int check_groups(const char *where, const struct rh_model_config *out)
{
	int64_t groups = out->expert_groups, best = out->best_groups, each = groups > 0 ? out->experts / groups : 0;
	if (groups < 1 || groups > RH_ROUTER_MAX_GROUPS || out->experts % groups || each < 2)
		return rh_fail(-EINVAL, "%s: n_group %lld of %lld experts is not supported: 1 to %d groups of equal sizes, at least 2",
		               where, (long long)groups, (long long)out->experts, RH_ROUTER_MAX_GROUPS);
	if (best < 1 || best > groups || out->experts_per_token > best * each)
		return rh_fail(-EINVAL, "%s: topk_group %lld of %lld groups has not the %lld experts of a token", where, (long long)best,
		               (long long)groups, (long long)out->experts_per_token);
	return 0;
}

/* Words that other programs read, of the one way that there is here. */
static int check_word(const json_t *json, const char *where, const char *key, const char *known)
{
	const char *word = known;
	int rc = rh_json_string(json, key, where, RH_JSON_OPTIONAL, &word);
	return rc || !strcmp(word, known) ? rc : rh_fail(-EINVAL, "%s: %s '%s' is not supported (%s is)", where, key, word, known);
}

int config_parse_sigmoids(const json_t *json, const char *where, struct rh_model_config *out)
{
	int64_t shared = 1;
	out->routed_factor = out->family->moe.routed_factor;
	out->expert_groups = out->family->moe.groups ? out->family->moe.groups : 1;
	out->best_groups = out->family->moe.groups ? out->family->moe.best_groups : 1;
	int rc = rh_json_real(json, "routed_scaling_factor", where, RH_JSON_OPTIONAL, &out->routed_factor);
	if (!rc && !(isfinite(out->routed_factor) && out->routed_factor > 0))
		rc = rh_fail(-EINVAL, "%s: routed_scaling_factor %g makes no sense; it must be positive", where, out->routed_factor);
	if (!rc)
		rc = rh_json_int(json, "n_group", where, RH_JSON_OPTIONAL, &out->expert_groups);
	if (!rc)
		rc = rh_json_int(json, "topk_group", where, RH_JSON_OPTIONAL, &out->best_groups);
	if (!rc)
		rc = rh_json_int(json, "n_shared_experts", where, RH_JSON_OPTIONAL, &shared);
	if (!rc && (shared < 1 || shared > 1024))
		rc = rh_fail(-EINVAL, "%s: n_shared_experts %lld is not supported; it must be 1 or more", where, (long long)shared);
	if (!rc)
		rc = check_word(json, where, "scoring_func", "sigmoid");
	if (!rc)
		rc = check_word(json, where, "topk_method", "noaux_tc");
	if (!rc)
		rc = check_groups(where, out);
	if (!rc && out->expert_size > 0 && out->expert_size <= INT32_MAX) /* else rh_model_config_check says so */
		out->shared_size = shared * out->expert_size;
	return rc ? rc : parse_dense(json, where, out);
}
