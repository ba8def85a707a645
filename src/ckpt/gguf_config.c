/* The model configuration in a GGUF's metadata, checked as a config.json's is. */
#include "ckpt/source_internal.h"

#include "core/alloc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int gguf_arch_int(const struct rh_gguf *gguf, const char *arch, const char *key, enum gguf_need need, int64_t *out)
{
	char name[128];
	snprintf(name, sizeof name, "%s.%s", arch, key);
	int rc = rh_gguf_int(gguf, name, out);
	if (rc == 0 && need == GGUF_REQUIRED)
		rc = rh_fail(-EINVAL, "%s: metadata '%s' is missing", rh_gguf_path(gguf), name);
	return rc < 0 ? rc : 0;
}

/* What a person wrote before it was rounded to fp32: 1e-05, not 9.99999975e-06. Only the number in a config.json written later depends on
 * it: fp32 arithmetic sees the same bits. */
static double shortest_decimal(double value)
{
	char text[32];
	for (int digits = 1; digits <= 9 && value == (double)(float)value; digits++) {
		snprintf(text, sizeof text, "%.*g", digits, value);
		if ((double)strtof(text, NULL) == value)
			return strtod(text, NULL);
	}
	return value;
}

int gguf_arch_real(const struct rh_gguf *gguf, const char *arch, const char *key, enum gguf_need need, double *out)
{
	char name[128];
	snprintf(name, sizeof name, "%s.%s", arch, key);
	int rc = rh_gguf_real(gguf, name, out);
	if (rc > 0)
		*out = shortest_decimal(*out);
	if (rc == 0 && need == GGUF_REQUIRED)
		rc = rh_fail(-EINVAL, "%s: metadata '%s' is missing", rh_gguf_path(gguf), name);
	return rc < 0 ? rc : 0;
}

const char *rh_gguf_epsilon_key(const struct rh_family *family)
{
	return family->norm == RH_NORM_LAYER ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
}

static int has_key(const struct rh_gguf *gguf, const char *arch, const char *key)
{
	char name[128];
	double value = 0;
	snprintf(name, sizeof name, "%s.%s", arch, key);
	return rh_gguf_real(gguf, name, &value) > 0 && value != 0;
}

/* llama.cpp gives two families one architecture: OLMo 2 and 3, Mistral and Ministral 3. Windows, or queries that grow, tell them apart. */
static const struct rh_family *family_of(const struct rh_gguf *gguf, const char *arch)
{
	const struct rh_family *first = rh_family_of_gguf(arch), *family;
	int grows = has_key(gguf, arch, "attention.temperature_scale"), windows = has_key(gguf, arch, "attention.sliding_window");
	for (size_t i = 0; first && (family = rh_family_at(i)); i++)
		if (family->gguf.architecture && !strcmp(family->gguf.architecture, arch) && family->attention.grows_queries == grows &&
		    (!windows || family->attention.windows != RH_WINDOWS_NONE))
			return family;
	return first;
}

static int is_listed(size_t before, const char *arch)
{
	for (size_t i = 0; i < before; i++)
		if (rh_family_at(i)->gguf.architecture && !strcmp(rh_family_at(i)->gguf.architecture, arch))
			return 1;
	return 0;
}

static int read_family(const struct rh_gguf *gguf, const char **arch, const struct rh_family **out)
{
	int rc = rh_gguf_string(gguf, "general.architecture", arch);
	if (rc < 0)
		return rc;
	if (!rc)
		return rh_fail(-EINVAL, "%s: metadata 'general.architecture' is missing", rh_gguf_path(gguf));
	if ((*out = family_of(gguf, *arch)))
		return 0;
	char known[256] = "";
	const struct rh_family *family;
	for (size_t i = 0, used = 0; (family = rh_family_at(i)) && used < sizeof known; i++)
		if (family->gguf.architecture && !is_listed(i, family->gguf.architecture))
			used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", family->gguf.architecture);
	return rh_fail(-EINVAL, "%s: architecture '%.64s' is not supported (known: %s)", rh_gguf_path(gguf), *arch, known);
}

static int read_sizes(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	int64_t value_length = 0, rotary = 0, experts = 0, behind = 0;
	const struct {
		const char *key;
		enum gguf_need need;
		int64_t *value;
	} sizes[] = {
	        {"embedding_length", GGUF_REQUIRED, &out->hidden_size},
	        {"feed_forward_length", out->family->moe.is_shared ? GGUF_OPTIONAL : GGUF_REQUIRED, &out->intermediate_size},
	        {"block_count", GGUF_REQUIRED, &out->num_hidden_layers},
	        {"attention.head_count", GGUF_REQUIRED, &out->num_attention_heads},
	        {"attention.head_count_kv", GGUF_OPTIONAL, &out->num_key_value_heads},
	        {"attention.key_length", GGUF_OPTIONAL, &out->head_dim},
	        {"attention.value_length", GGUF_OPTIONAL, &value_length},
	        {"context_length", GGUF_REQUIRED, &out->max_position_embeddings},
	        {"rope.dimension_count", GGUF_OPTIONAL, &rotary},
	        {"expert_count", GGUF_OPTIONAL, &experts},
	        {"nextn_predict_layers", GGUF_OPTIONAL, &behind},
	};
	int rc = 0;
	int splits_kinds = out->family->attention.splits_kinds; /* then these may be lists: gguf_read_kinds */
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++)
		if (!splits_kinds || (sizes[i].value != &out->num_key_value_heads && sizes[i].value != &out->intermediate_size))
			rc = gguf_arch_int(gguf, arch, sizes[i].key, sizes[i].need, sizes[i].value);
	if (rc)
		return rc;
	const char *path = rh_gguf_path(gguf);
	if (behind < 0 || behind >= out->num_hidden_layers)
		return rh_fail(-EINVAL, "%s: %lld of %lld layers predict further tokens, which makes no sense", path, (long long)behind,
		               (long long)out->num_hidden_layers);
	out->num_hidden_layers -= behind; /* those of the multi-token prediction, which nothing here runs */
	if (out->num_attention_heads <= 0)
		return rh_fail(-EINVAL, "%s: %s.attention.head_count is %lld; it must be positive", path, arch,
		               (long long)out->num_attention_heads);
	if (!out->num_key_value_heads)
		out->num_key_value_heads = out->num_attention_heads;
	if (!out->head_dim) {
		if (out->hidden_size % out->num_attention_heads)
			return rh_fail(-EINVAL, "%s: embedding_length %lld is no multiple of head_count %lld, and there is no key_length",
			               path, (long long)out->hidden_size, (long long)out->num_attention_heads);
		out->head_dim = out->hidden_size / out->num_attention_heads;
	}
	if (value_length && value_length != out->head_dim)
		return rh_fail(-EINVAL, "%s: attention heads have keys of %lld and values of %lld; different lengths are not supported",
		               path, (long long)out->head_dim, (long long)value_length);
	if (rotary > 0 && rotary < out->head_dim && out->family->attention.may_rotate_part)
		out->rotary_share = (double)rotary / (double)out->head_dim;
	else if (rotary && rotary != out->head_dim)
		return rh_fail(-EINVAL, "%s: rotary embeddings on %lld of %lld elements of a head are not supported", path,
		               (long long)rotary, (long long)out->head_dim);
	if (experts && !out->family->silent.experts && !out->family->moe.is_beside)
		return rh_fail(-EINVAL, "%s: the model is a mixture of %lld experts, which %s is not", path, (long long)experts, arch);
	return 0;
}

/* The file does not say whether the ramp's ends are rounded to whole pairs: the family does. */
static int read_yarn(const struct rh_gguf *gguf, const char *arch, double factor, struct rh_model_config *out)
{
	struct rh_rope *rope = &out->rope[0];
	double temperature = 0, scale = 0;
	rope->type = RH_ROPE_YARN;
	rope->factor = factor;
	rope->plain_ramp = out->family->gguf.yarn_plain_ramp;
	int rc = gguf_arch_int(gguf, arch, "rope.scaling.original_context_length", GGUF_REQUIRED, &rope->original_max_position);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "rope.scaling.yarn_beta_fast", GGUF_OPTIONAL, &rope->beta_fast);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "rope.scaling.yarn_beta_slow", GGUF_OPTIONAL, &rope->beta_slow);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "attention.temperature_scale", GGUF_OPTIONAL, &temperature);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "rope.scaling.yarn_attn_factor", GGUF_OPTIONAL, &rope->attention_factor);
	if (!rc && out->family->attention.grows_queries)
		rc = gguf_arch_real(gguf, arch, "rope.scaling.yarn_log_multiplier", GGUF_OPTIONAL, &scale);
	rope->mscale = rope->mscale_all_dim = scale; /* the file has the second; of a model of this family they are equal */
	rope->growth = temperature;
	if (!rc && temperature != 0 && !out->family->attention.grows_queries)
		rc = rh_fail(-EINVAL, "%s: %s.attention.temperature_scale %g is not supported", rh_gguf_path(gguf), arch, temperature);
	return rc;
}

static int read_scaling(const struct rh_gguf *gguf, const char *arch, struct rh_model_config *out)
{
	char name[128];
	const char *type = "none";
	snprintf(name, sizeof name, "%s.rope.scaling.type", arch);
	int rc = rh_gguf_string(gguf, name, &type);
	if (rc < 0)
		return rc;
	double factor = 0, old_factor = 0, attention = 1;
	rc = gguf_arch_real(gguf, arch, "rope.scaling.factor", GGUF_OPTIONAL, &factor);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "rope.scale_linear", GGUF_OPTIONAL, &old_factor);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "rope.scaling.attn_factor", GGUF_OPTIONAL, &attention);
	if (rc)
		return rc;
	if (attention != 1 && !out->family->attention.may_rotate_part) /* LongRoPE's is read with its factors */
		return rh_fail(-EINVAL, "%s: rope.scaling.attn_factor %g is not supported", rh_gguf_path(gguf), attention);
	if (factor && old_factor && factor != old_factor)
		return rh_fail(-EINVAL, "%s: rope.scaling.factor %g and rope.scale_linear %g disagree", rh_gguf_path(gguf), factor,
		               old_factor);
	if (!factor)
		factor = old_factor;
	if (!strcmp(type, "yarn"))
		return read_yarn(gguf, arch, factor, out);
	if (strcmp(type, "none") && strcmp(type, "linear") && !(out->family->attention.may_rotate_part && !strcmp(type, "longrope")))
		return rh_fail(-EINVAL, "%s: rope scaling '%.32s' is not supported (none, linear and yarn are)", rh_gguf_path(gguf), type);
	if (!strcmp(type, "linear") || old_factor) {
		out->rope[0].type = factor && factor != 1 ? RH_ROPE_LINEAR : RH_ROPE_DEFAULT;
		out->rope[0].factor = out->rope[0].type == RH_ROPE_LINEAR ? factor : 0;
	}
	return 0;
}

/* Llama-3's scaling comes as one divisor for each pair of a head. */
static int read_divisor(const struct rh_gguf *gguf, struct rh_model_config *out)
{
	const struct rh_gguf_tensor *tensor = rh_gguf_find(gguf, "rope_freqs.weight");
	if (!tensor || out->family->attention.splits_kinds)
		return 0;
	int64_t half = out->head_dim / 2;
	if (tensor->dtype != RH_F32 || tensor->rank != 1 || tensor->shape[0] != half)
		return rh_fail(-EINVAL, "%s: rope_freqs.weight must hold %lld F32 numbers; found %lld of %s in %d dimensions",
		               rh_gguf_path(gguf), (long long)half, (long long)tensor->shape[0], rh_dtype_name(tensor->dtype),
		               tensor->rank);
	out->rope[0].divisor = rh_alloc((size_t)half, sizeof(float));
	if (!out->rope[0].divisor)
		return -ENOMEM;
	return rh_file_read(tensor->file, tensor->offset, out->rope[0].divisor, (size_t)tensor->bytes);
}

static int has(const struct rh_gguf *gguf, const char *name)
{
	return rh_gguf_find(gguf, name) != NULL;
}

static int read_tokens(const struct rh_gguf *gguf, struct rh_model_config *out)
{
	int64_t eos = -1, turn = -1;
	out->bos_token_id = -1;
	int rc = rh_gguf_int(gguf, "tokenizer.ggml.bos_token_id", &out->bos_token_id);
	if (rc >= 0)
		rc = rh_gguf_int(gguf, "tokenizer.ggml.eos_token_id", &eos);
	if (rc >= 0)
		rc = rh_gguf_int(gguf, "tokenizer.ggml.eot_token_id", &turn);
	if (rc < 0)
		return rc;
	if (eos >= 0)
		out->eos_token_id[out->eos_token_ids++] = eos;
	if (turn >= 0 && turn != eos)
		out->eos_token_id[out->eos_token_ids++] = turn;
	return 0;
}

static int read_all(const struct rh_gguf *gguf, struct rh_model_config *out)
{
	const char *arch = "", *path = rh_gguf_path(gguf);
	int rc = read_family(gguf, &arch, &out->family);
	if (!rc)
		rc = read_sizes(gguf, arch, out);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, rh_gguf_epsilon_key(out->family), GGUF_REQUIRED, &out->rms_norm_eps);
	if (!rc)
		rc = gguf_arch_real(gguf, arch, "rope.freq_base", GGUF_OPTIONAL, &out->rope[0].theta);
	if (!rc)
		rc = read_scaling(gguf, arch, out);
	if (!rc)
		rc = gguf_read_layers(gguf, arch, out);
	if (!rc)
		rc = read_tokens(gguf, out);
	if (rc)
		return rc;
	const struct rh_gguf_tensor *embedding = rh_gguf_find(gguf, "token_embd.weight");
	if (!embedding || embedding->rank != 2)
		return rh_fail(-EINVAL, "%s: there is no token_embd.weight matrix; is this a language model?", path);
	out->vocab_size = embedding->shape[0];
	out->tie_word_embeddings = !has(gguf, "output.weight");
	out->attention_bias = has(gguf, "blk.0.attn_q.bias");
	out->attention_output_bias = has(gguf, "blk.0.attn_output.bias");
	out->mlp_bias = has(gguf, "blk.0.ffn_gate.bias");
	if (out->family->attention.bias == RH_BIAS_ALL)
		out->attention_bias = out->attention_output_bias = out->mlp_bias = 1;
	out->qk_norm = out->family->attention.qk_norm;
	rc = rh_model_config_check(out, path); /* before head_dim / 2 is believed */
	if (!rc)
		rc = read_divisor(gguf, out);
	return rc ? rc : rh_model_config_check(out, path);
}

int gguf_model_config(const struct rh_gguf *gguf, struct rh_model_config *out)
{
	*out = (struct rh_model_config){.rope[0].theta = 10000, .rotary_share = 1, .initializer_range = 0.02, .num_labels = 2};
	int rc = read_all(gguf, out);
	if (rc)
		rh_model_config_free(out);
	return rc;
}
