/* The rotary parameters of a config.json. Three spellings: rope_theta and rope_scaling (transformers 4), rope_parameters (5), and
 * rope_parameters with an object for each kind of layers. Those that are there must agree. */
#include "model/config_internal.h"

#include "core/alloc.h"

#include <math.h>
#include <string.h>

/* One spelling. */
struct spelling {
	int is_given;
	double share; /* partial_rotary_factor; 0: not said */
	struct rh_rope rope;
};

static int parse_type(const json_t *json, const char *key, const char *where, enum rh_rope_type *out)
{
	const char *name = NULL, *old = NULL, *file = strcmp(where, key) ? where : "",
	           *between = *file ? ": " : ""; /* or a key of the run */
	int rc = rh_json_string(json, "rope_type", where, RH_JSON_OPTIONAL, &name);
	if (!rc)
		rc = rh_json_string(json, "type", where, RH_JSON_OPTIONAL, &old);
	if (rc)
		return rc;
	if (name && old && strcmp(name, old))
		return rh_fail(-EINVAL, "%s%s%s says rope_type '%s' and type '%s'; keep one", file, between, key, name, old);
	name = name ? name : old;
	if (!name && json_object_get(json, "factor"))
		return rh_fail(-EINVAL, "%s%s%s has a factor but no rope_type", file, between, key);
	*out = RH_ROPE_DEFAULT;
	for (int t = 0; name && t < RH_ROPE_TYPES; t++)
		if (!strcmp(name, rh_rope_type_name[t])) {
			*out = (enum rh_rope_type)t;
			return 0;
		}
	if (name && strcmp(name, "su"))
		return rh_fail(-EINVAL, "%s%s%s: rope type '%s' is not supported (default, linear, llama3, dynamic, yarn, longrope are)",
		               file, between, key, name);
	*out = name ? RH_ROPE_LONGROPE : RH_ROPE_DEFAULT; /* "su": LongRoPE's first name */
	return 0;
}

static int parse_factors(const json_t *json, const char *key, const char *where, int64_t count, float *out)
{
	const json_t *list = json_object_get(json, key);
	if (!json_is_array(list) || json_array_size(list) != (size_t)count || count > RH_ROPE_MAX_HALF)
		return rh_fail(-EINVAL, "%s: '%s' must be a list of %lld numbers, one for each rotated pair", where, key, (long long)count);
	for (size_t i = 0; i < (size_t)count; i++) {
		out[i] = (float)json_number_value(json_array_get(list, i));
		if (!(isfinite(out[i]) && out[i] > 0))
			return rh_fail(-EINVAL, "%s: '%s' must hold positive numbers", where, key);
	}
	return 0;
}

static int parse_yarn(const json_t *json, const char *where, struct rh_rope *out)
{
	int truncate = 1;
	int rc = rh_json_real(json, "beta_fast", where, RH_JSON_OPTIONAL, &out->beta_fast);
	if (!rc)
		rc = rh_json_real(json, "beta_slow", where, RH_JSON_OPTIONAL, &out->beta_slow);
	if (!rc)
		rc = rh_json_real(json, "mscale", where, RH_JSON_OPTIONAL, &out->mscale);
	if (!rc)
		rc = rh_json_real(json, "mscale_all_dim", where, RH_JSON_OPTIONAL, &out->mscale_all_dim);
	if (!rc)
		rc = rh_json_bool(json, "truncate", where, RH_JSON_OPTIONAL, &truncate);
	if (!rc)
		rc = rh_json_real(json, "llama_4_scaling_beta", where, RH_JSON_OPTIONAL, &out->growth);
	out->plain_ramp = !truncate;
	return rc;
}

/* The length that the model was trained at first. One outside the rope's own object comes before that inside. */
static int parse_original(const json_t *config, const json_t *json, const char *where, int64_t max_position, struct rh_rope *out)
{
	out->original_max_position = max_position;
	if (out->type == RH_ROPE_DYNAMIC)
		return 0;
	int rc = rh_json_int(json, "original_max_position_embeddings", where, RH_JSON_OPTIONAL, &out->original_max_position);
	return rc ? rc : rh_json_int(config, "original_max_position_embeddings", where, RH_JSON_OPTIONAL, &out->original_max_position);
}

static int parse_scaling(const json_t *config, const json_t *json, const char *where, const struct rh_model_config *model, double share,
                         struct rh_rope *out)
{
	int derived = out->type == RH_ROPE_YARN || out->type == RH_ROPE_LONGROPE;
	int rc = 0;
	if (out->type == RH_ROPE_DEFAULT)
		return 0;
	if (out->type == RH_ROPE_PROPORTIONAL) {
		out->factor = 1;
		return rh_json_real(json, "factor", where, RH_JSON_OPTIONAL, &out->factor);
	}
	if (out->type != RH_ROPE_LINEAR)
		rc = parse_original(config, json, where, model->max_position_embeddings, out);
	if (!rc)
		rc = rh_json_real(json, "factor", where, derived ? RH_JSON_OPTIONAL : RH_JSON_REQUIRED, &out->factor);
	if (!rc && derived && !out->factor && out->original_max_position > 0)
		out->factor = (double)model->max_position_embeddings / (double)out->original_max_position;
	if (!rc && derived)
		rc = rh_json_real(json, "attention_factor", where, RH_JSON_OPTIONAL, &out->attention_factor);
	if (!rc && out->type == RH_ROPE_LLAMA3)
		rc = rh_json_real(json, "low_freq_factor", where, RH_JSON_REQUIRED, &out->low_freq_factor);
	if (!rc && out->type == RH_ROPE_LLAMA3)
		rc = rh_json_real(json, "high_freq_factor", where, RH_JSON_REQUIRED, &out->high_freq_factor);
	if (!rc && out->type == RH_ROPE_YARN)
		rc = parse_yarn(json, where, out);
	int64_t pairs = (int64_t)((double)model->head_dim * share) / 2;
	if (!rc && out->type == RH_ROPE_LONGROPE)
		rc = parse_factors(json, "short_factor", where, pairs, out->short_factor);
	if (!rc && out->type == RH_ROPE_LONGROPE)
		rc = parse_factors(json, "long_factor", where, pairs, out->long_factor);
	return rc;
}

/* The object under a key, which messages name; NULL: not given. */
static int parse_object(const json_t *config, const json_t *json, const char *key, const char *where, const struct rh_model_config *model,
                        double outer_share, struct spelling *out)
{
	if (!json || json_is_null(json))
		return 0;
	if (!json_is_object(json))
		return rh_fail(-EINVAL, "%s: '%s' must be an object or null", where, key);
	out->is_given = 1;
	int rc = parse_type(json, key, where, &out->rope.type);
	if (!rc)
		rc = rh_json_real(json, "rope_theta", where, RH_JSON_OPTIONAL, &out->rope.theta);
	if (!rc)
		rc = rh_json_real(json, "partial_rotary_factor", where, RH_JSON_OPTIONAL, &out->share);
	if (!rc)
		rc = parse_scaling(config, json, where, model, out->share ? out->share : outer_share, &out->rope);
	return rc;
}

static int same_scaling(struct rh_rope a, struct rh_rope b)
{
	a.theta = b.theta = 0;
	return a.type == b.type && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
	       a.high_freq_factor == b.high_freq_factor && a.original_max_position == b.original_max_position &&
	       a.attention_factor == b.attention_factor && a.beta_fast == b.beta_fast && a.beta_slow == b.beta_slow &&
	       a.mscale == b.mscale && a.growth == b.growth && a.mscale_all_dim == b.mscale_all_dim && a.plain_ramp == b.plain_ramp &&
	       !memcmp(a.long_factor, b.long_factor, sizeof a.long_factor) &&
	       !memcmp(a.short_factor, b.short_factor, sizeof a.short_factor);
}

/* The value that is given, or the default where none is; two different ones are an error. */
static int only_value(const double *said, int count, double silent, const char *key, const char *where, double *out)
{
	*out = 0;
	for (int i = 0; i < count; i++) {
		if (said[i] && *out && said[i] != *out)
			return rh_fail(-EINVAL, "%s: '%s' is given twice, as %g and as %g; keep one", where, key, *out, said[i]);
		*out = *out ? *out : said[i];
	}
	*out = *out ? *out : silent;
	return 0;
}

static int check_share(const struct rh_family *family, double share, const char *where)
{
	if (share != 1 && !family->attention.may_rotate_part && !family->attention.splits_kinds)
		return rh_fail(-EINVAL, "%s: partial_rotary_factor %g is not supported in this family (only 1)", where, share);
	if (!(share > 0 && share <= 1))
		return rh_fail(-EINVAL, "%s: partial_rotary_factor %g makes no sense; it must be above 0 and at most 1", where, share);
	return 0;
}

/* rope_parameters has an object for each kind of layers. */
static int is_nested(const json_t *parameters)
{
	const char *name;
	json_t *value;
	if (json_is_object(parameters))
		json_object_foreach((json_t *)(uintptr_t)parameters, name, value) if (json_is_object(value)) return 1;
	return 0;
}

static int refuse_nested(const struct rh_model_config *out, const char *where)
{
	return rh_fail(-EINVAL, "%s: rope_parameters differs between kinds of layers, which %s does not have", where,
	               out->family->architecture);
}

/* The rope table of windowed layers, where the family has one. */
static int parse_windowed(const json_t *json, const json_t *nested, const char *where, struct rh_model_config *out)
{
	struct spelling own = {0};
	double theta = 0, said[2];
	int rc = rh_json_real(json, "rope_local_base_freq", where, RH_JSON_OPTIONAL, &theta);
	if (!rc)
		rc = parse_object(json, json_object_get(nested, "sliding_attention"), "sliding_attention", where, out, 1, &own);
	if (rc)
		return rc;
	out->rope[1] = own.rope;
	double silent = out->family->silent.rope_theta_windowed < 0 ? out->rope[0].theta : out->family->silent.rope_theta_windowed;
	said[0] = theta, said[1] = own.rope.theta;
	return only_value(said, 2, silent, "rope_local_base_freq", where, &out->rope[1].theta);
}

/* Queries that grow with their positions: their table is a second one, and only that grows. */
static int split_growth(const char *where, struct rh_model_config *out)
{
	double growth = out->rope[0].growth;
	if (!out->family->attention.grows_queries)
		return growth == 0 ? 0
		                   : rh_fail(-EINVAL, "%s: 'llama_4_scaling_beta' changes what layers compute: %s has no such thing here",
		                             where, out->family->architecture);
	if (out->rope[0].type != RH_ROPE_YARN || !(isfinite(growth) && growth > 0))
		return rh_fail(-EINVAL, "%s: rope_parameters must be of rope_type yarn, with a positive llama_4_scaling_beta", where);
	out->rope[1] = out->rope[0];
	out->rope[0].growth = 0;
	return 0;
}

/* A family's layers without a window rotate so, and no others. */
static int check_proportional(const char *where, struct rh_model_config *out)
{
	int is_proportional = out->rope[0].type == RH_ROPE_PROPORTIONAL, splits = out->family->attention.splits_kinds;
	if (is_proportional != splits || out->rope[1].type == RH_ROPE_PROPORTIONAL)
		return rh_fail(-EINVAL, "%s: %s", where,
		               splits ? "rope_parameters must have a full_attention of rope_type proportional, and a sliding_attention of "
		                        "another"
		                      : "rope_type 'proportional' is not supported in this family");
	double turned = out->rotary_share * (double)out->full_head_dim / 2;
	if (splits && !(turned >= 1 && turned < RH_ROPE_MAX_HALF + 1))
		return rh_fail(-EINVAL, "%s: partial_rotary_factor %g of heads of %lld turns %lld pairs; 1 to %d are supported", where,
		               out->rotary_share, (long long)out->full_head_dim, (long long)turned, RH_ROPE_MAX_HALF);
	out->rope[0].width = out->full_head_dim;
	return 0;
}

int config_parse_rope(const json_t *json, const char *where, struct rh_model_config *out)
{
	const json_t *parameters = json_object_get(json, "rope_parameters"), *scaling = json_object_get(json, "rope_scaling");
	const json_t *nested = is_nested(parameters) ? parameters : NULL;
	struct spelling old = {0}, fresh = {0};
	double theta = 0, share = 0, silent = out->family->silent.rope_theta ? out->family->silent.rope_theta : 10000;
	if (out->family->names->positions)
		return 0;
	if (nested && !out->family->silent.rope_theta_windowed)
		return refuse_nested(out, where);
	int rc = rh_json_real(json, "rope_theta", where, RH_JSON_OPTIONAL, &theta);
	if (!rc)
		rc = rh_json_real(json, "partial_rotary_factor", where, RH_JSON_OPTIONAL, &share);
	if (!rc)
		rc = parse_object(json, scaling, "rope_scaling", where, out, share ? share : 1, &old);
	if (!rc)
		rc = parse_object(json, nested ? json_object_get(nested, "full_attention") : parameters, "rope_parameters", where, out,
		                  share ? share : 1, &fresh);
	if (rc)
		return rc;
	old.is_given |= scaling != NULL; /* null says: no scaling */
	if (old.is_given && fresh.is_given && !same_scaling(old.rope, fresh.rope))
		return rh_fail(-EINVAL, "%s: 'rope_scaling' and 'rope_parameters' disagree; keep one of them", where);
	if (json_is_number(json_object_get(json, "rope_theta")) && theta == 0)
		return rh_fail(-EINVAL, "%s: rope_theta 0 makes no sense; it must be positive", where);
	out->rope[0] = fresh.is_given ? fresh.rope : old.rope;
	if (out->family->attention.splits_kinds && !fresh.is_given && !old.is_given)
		out->rope[0] = (struct rh_rope){.type = RH_ROPE_PROPORTIONAL, .factor = 1};
	rc = only_value((double[]){theta, old.rope.theta, fresh.rope.theta}, 3, silent, "rope_theta", where, &out->rope[0].theta);
	if (!rc)
		rc = only_value((double[]){share, old.share, fresh.share}, 3,
		                out->family->silent.rotary_share ? out->family->silent.rotary_share : 1, "partial_rotary_factor", where,
		                &out->rotary_share);
	if (!rc)
		rc = check_share(out->family, out->rotary_share, where);
	if (!rc && out->family->silent.rope_theta_windowed)
		rc = parse_windowed(json, nested, where, out);
	if (!rc)
		rc = check_proportional(where, out);
	return rc ? rc : split_growth(where, out);
}

int config_check_rope(const struct rh_model_config *config, int which, const char *where)
{
	const struct rh_rope *rope = &config->rope[which];
	if (config->family->names->positions || (which && !config->family->silent.rope_theta_windowed))
		return 0;
	if (!(rope->theta >= 1 && rope->theta <= 1e12))
		return rh_fail(-EINVAL, "%s: rope_theta %g makes no sense; it must be from 1 to 1e12", where, rope->theta);
	if (rope->type != RH_ROPE_DEFAULT && !(rope->factor >= 1e-3 && rope->factor <= 1e6))
		return rh_fail(-EINVAL, "%s: rope scaling factor %g makes no sense; it must be from 0.001 to 1e6", where, rope->factor);
	if (rope->type == RH_ROPE_LLAMA3 && !(rope->low_freq_factor > 0 && rope->high_freq_factor > rope->low_freq_factor &&
	                                      isfinite(rope->high_freq_factor) && rope->original_max_position > 0))
		return rh_fail(-EINVAL,
		               "%s: llama3 rope scaling needs 0 < low_freq_factor < high_freq_factor and a positive "
		               "original_max_position_embeddings; found %g, %g, %lld",
		               where, rope->low_freq_factor, rope->high_freq_factor, (long long)rope->original_max_position);
	if ((rope->type == RH_ROPE_YARN || rope->type == RH_ROPE_LONGROPE) && rope->original_max_position < 2)
		return rh_fail(-EINVAL, "%s: %s rope scaling needs an original_max_position_embeddings above 1; found %lld", where,
		               rh_rope_type_name[rope->type], (long long)rope->original_max_position);
	if (rope->type == RH_ROPE_DYNAMIC && config->head_dim < 4)
		return rh_fail(-EINVAL, "%s: dynamic rope scaling needs heads of at least 4 elements", where);
	for (int64_t i = 0; rope->divisor && i < config->head_dim / 2; i++)
		if (!(isfinite(rope->divisor[i]) && rope->divisor[i] > 0))
			return rh_fail(-EINVAL, "%s: rope_freqs.weight[%lld] is %g; it must be positive", where, (long long)i,
			               (double)rope->divisor[i]);
	return 0;
}

int64_t rh_model_longest(const struct rh_model_config *config)
{
	const struct rh_rope *rope = &config->rope[0];
	int64_t known = config->max_position_embeddings, first = rope->original_max_position > 0 ? rope->original_max_position : known;
	double stretched = rope->type == RH_ROPE_DEFAULT ? 0 : rope->factor * (double)first;
	return stretched > (double)known ? (int64_t)fmin(stretched, INT32_MAX) : known;
}

/* A value of the object in which config.json keeps the rotary parameters, put beside it. */
static int pull_out(json_t *text, const json_t *parameters, const char *key, const char *as)
{
	json_t *value = json_object_get(parameters, key);
	return value ? json_object_set(text, as, value) : 0;
}

/* text's rotary parameters with `scaling` for theirs, in the spelling of transformers 4, which 5 reads too. */
static int replace_scaling(json_t *text, const json_t *scaling)
{
	static const char *const kept[] = {"rope_theta", "partial_rotary_factor"};
	json_t *parameters = json_incref(json_object_get(text, "rope_parameters")), *copy = json_deep_copy(scaling);
	const json_t *full = json_object_get(parameters, "full_attention"), *windowed = json_object_get(parameters, "sliding_attention");
	int failed = !copy;
	json_object_del(text, "rope_parameters");
	for (int i = 0; i < 2; i++) {
		failed |= pull_out(text, full ? full : parameters, kept[i], kept[i]);
		failed |= pull_out(text, scaling, kept[i], kept[i]);
		json_object_del(copy, kept[i]);
	}
	failed |= pull_out(text, windowed, "rope_theta", "rope_local_base_freq");
	failed |= json_object_set_new(text, "rope_scaling", copy);
	json_decref(parameters);
	return failed ? -ENOMEM : 0;
}

int rh_model_config_scale_rope(struct rh_model_config *config, const json_t *scaling)
{
	json_t *json = NULL;
	struct rh_model_config *scaled = rh_alloc(1, sizeof *scaled);
	int rc = scaled ? 0 : -ENOMEM;
	if (!rc && config->source)
		rc = (json = json_deep_copy(config->source)) ? 0 : -ENOMEM;
	else if (!rc)
		rc = rh_model_config_write(config, "float32", &json);
	if (!rc)
		rc = replace_scaling(config->wrapped ? json_object_get(json, "text_config") : json, scaling);
	if (!rc)
		rc = rh_model_config_parse(json, "rope_scaling", scaled);
	if (!rc) {
		scaled->tie_word_embeddings = config->tie_word_embeddings; /* the files' word */
		rh_model_config_free(config);
		*config = *scaled;
	}
	json_decref(json);
	rh_free(scaled);
	return rc;
}
