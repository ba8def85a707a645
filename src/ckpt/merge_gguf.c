#include "ckpt/merge_gguf.h"

#include "ckpt/mixture.h"
#include "ckpt/source_internal.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"
#include "token/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum token_type { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

static int put_arch(struct rh_gguf_out *out, const struct rh_model_config *config, const char *key, int64_t value)
{
	char name[128];
	snprintf(name, sizeof name, "%s.%s", config->family->gguf.architecture, key);
	return rh_gguf_out_u32(out, name, value);
}

static int put_arch_real(struct rh_gguf_out *out, const struct rh_model_config *config, const char *key, double value)
{
	char name[128];
	snprintf(name, sizeof name, "%s.%s", config->family->gguf.architecture, key);
	return rh_gguf_out_f32(out, name, value);
}

static int put_sizes(struct rh_gguf_out *out, const struct rh_model_config *config)
{
	const struct {
		const char *key;
		int64_t value;
	} sizes[] = {
	        {"context_length", config->max_position_embeddings},
	        {"embedding_length", config->hidden_size},
	        {"block_count", config->num_hidden_layers},
	        {"feed_forward_length", config->intermediate_size},
	        {"attention.head_count", config->num_attention_heads},
	        {"attention.head_count_kv", config->num_key_value_heads},
	        {"attention.key_length", config->head_dim},
	        {"attention.value_length", config->head_dim},
	        {"vocab_size", config->vocab_size},
	};
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++)
		rc = put_arch(out, config, sizes[i].key, sizes[i].value);
	if (!rc)
		rc = put_arch_real(out, config, rh_gguf_epsilon_key(config->family), config->rms_norm_eps);
	if (rc || config->family->names->positions)
		return rc;
	double share = config->rotary_share == 0 ? 1 : config->rotary_share;
	rc = put_arch(out, config, "rope.dimension_count", (int64_t)((double)config->head_dim * share));
	return rc ? rc : put_arch_real(out, config, "rope.freq_base", config->rope[0].theta);
}

/* Llama 3's scaling as one divisor for each pair, as llama.cpp's converter makes it. */
static int make_divisors(const struct rh_model_config *config, float **out)
{
	const struct rh_rope *rope = &config->rope[0];
	int64_t half = config->head_dim / 2;
	double low = (double)rope->original_max_position / rope->low_freq_factor,
	       high = (double)rope->original_max_position / rope->high_freq_factor;
	float *divisor = rh_alloc((size_t)half, sizeof *divisor);
	if (!divisor)
		return -ENOMEM;
	for (int64_t i = 0; i < half; i++) {
		double length = 2 * M_PI * pow(rope->theta, 2.0 * (double)i / (double)config->head_dim);
		double smooth = ((double)rope->original_max_position / length - rope->low_freq_factor) /
		                (rope->high_freq_factor - rope->low_freq_factor);
		divisor[i] = (float)(length < high ? 1 : length > low ? rope->factor : 1 / ((1 - smooth) / rope->factor + smooth));
	}
	*out = divisor;
	return 0;
}

/* What a person says of a key of this architecture, 0: nothing. */
static int put_said(struct rh_gguf_out *out, const struct rh_model_config *config, const char *key, double value)
{
	return value == 0 ? 0 : put_arch_real(out, config, key, value);
}

static int put_yarn(struct rh_gguf_out *out, const struct rh_model_config *config)
{
	const struct rh_rope *rope = &config->rope[0];
	char name[128];
	snprintf(name, sizeof name, "%s.rope.scaling.type", config->family->gguf.architecture);
	int rc = rh_gguf_out_string(out, name, "yarn");
	if (!rc)
		rc = put_arch_real(out, config, "rope.scaling.factor", rope->factor);
	if (!rc)
		rc = put_arch(out, config, "rope.scaling.original_context_length", rope->original_max_position);
	if (!rc)
		rc = put_said(out, config, "rope.scaling.yarn_attn_factor", rope->attention_factor);
	if (!rc)
		rc = put_said(out, config, "rope.scaling.yarn_beta_fast", rope->beta_fast);
	if (!rc)
		rc = put_said(out, config, "rope.scaling.yarn_beta_slow", rope->beta_slow);
	if (rc || !config->family->attention.grows_queries)
		return rc;
	rc = put_said(out, config, "rope.scaling.yarn_log_multiplier", rope->mscale_all_dim);
	return rc ? rc : put_arch_real(out, config, "attention.temperature_scale", config->rope[1].growth);
}

/* Which layers' attention has a window. */
static int put_windows(struct rh_gguf_out *out, const struct rh_model_config *config)
{
	unsigned char *flag = rh_alloc((size_t)config->num_hidden_layers, sizeof *flag);
	char name[128];
	int rc = flag ? put_arch(out, config, "attention.sliding_window", config->window) : -ENOMEM;
	snprintf(name, sizeof name, "%s.attention.sliding_window_pattern", config->family->gguf.architecture);
	for (int64_t i = 0; flag && i < config->num_hidden_layers; i++)
		flag[i] = config->layer[i].windowed;
	if (!rc)
		rc = rh_gguf_out_bools(out, name, flag, (size_t)config->num_hidden_layers);
	rh_free(flag);
	return rc;
}

/* Every which layer has attention; 0: no number says it. */
static int64_t attention_period(const struct rh_model_config *config)
{
	int64_t period = 1, layers = config->num_hidden_layers;
	while (period <= layers && config->layer[period - 1].is_delta)
		period++;
	for (int64_t i = 0; i < layers; i++)
		if ((config->layer[i].is_delta != 0) != ((i + 1) % period != 0))
			return 0;
	return period;
}

static int put_delta(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir)
{
	const struct rh_delta_config *delta = &config->delta;
	static const int32_t sections[4] = {11, 11, 10, 0}; /* of pairs by time, height and width; texts have one position for all */
	int64_t period = attention_period(config);
	char name[128];
	if (!period)
		return rh_fail(-EINVAL, "%s: its layer_types are in an order that a GGUF file cannot say", dir);
	const struct {
		const char *key;
		int64_t value;
	} sizes[] = {{"ssm.conv_kernel", delta->taps},
	             {"ssm.state_size", delta->key},
	             {"ssm.group_count", delta->key_heads},
	             {"ssm.time_step_rank", delta->heads},
	             {"ssm.inner_size", delta->value * delta->heads},
	             {"full_attention_interval", period}};
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++)
		rc = put_arch(out, config, sizes[i].key, sizes[i].value);
	snprintf(name, sizeof name, "%s.rope.dimension_sections", config->family->gguf.architecture);
	return rc ? rc : rh_gguf_out_ints(out, name, sections, 4);
}

static int put_rope(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir, float **freqs)
{
	const struct rh_rope *rope = &config->rope[0];
	char name[128];
	if (rope->type == RH_ROPE_LLAMA3)
		return make_divisors(config, freqs);
	if (rope->type == RH_ROPE_DEFAULT)
		return 0;
	if (rope->type == RH_ROPE_YARN && (config->family->attention.grows_queries || config->family->residual == RH_RESIDUAL_BEHIND))
		return put_yarn(out, config);
	if (rope->type != RH_ROPE_LINEAR)
		return rh_fail(-EINVAL, "%s: this rotary scaling is not written to GGUF; llama.cpp's convert_hf_to_gguf.py does it", dir);
	snprintf(name, sizeof name, "%s.rope.scaling.type", config->family->gguf.architecture);
	int rc = rh_gguf_out_string(out, name, "linear");
	return rc ? rc : put_arch_real(out, config, "rope.scaling.factor", rope->factor);
}

struct vocabulary {
	const char **token;
	size_t *bytes;
	int32_t *type;
	size_t count;
	struct rh_text padding; /* names of ids that no token has, each with its NUL */
};

/* As the tokenizer is once all of the directory's files have been read: what they name is special also where tokenizer.json does not say
 * so, and llama.cpp finds only control tokens in a chat template's text. */
static int collect(const struct rh_tokenizer *tokenizer, struct vocabulary *vocabulary)
{
	int rc = 0;
	size_t i, size = (size_t)rh_tokenizer_size(tokenizer);
	for (i = 0; i < size; i++) {
		const char *text = rh_tokenizer_text(tokenizer, (int32_t)i);
		if (!text)
			continue;
		vocabulary->token[i] = text;
		vocabulary->bytes[i] = strlen(text);
		vocabulary->type[i] = rh_tokenizer_is_special(tokenizer, (int32_t)i) ? CONTROL
		                      : rh_tokenizer_is_added(tokenizer, (int32_t)i) ? USER_DEFINED
		                                                                     : NORMAL;
	}
	for (i = 0; !rc && i < vocabulary->count; i++) { /* the model's table may have rows that no token needs; their names lie apart */
		if (!vocabulary->token[i])
			rc = rh_text_printf(&vocabulary->padding, "[PAD%zu]", i);
		if (!rc && !vocabulary->token[i])
			rc = rh_text_append(&vocabulary->padding, "", 1);
	}
	const char *name = vocabulary->padding.bytes;
	for (i = 0; !rc && i < vocabulary->count; i++)
		if (!vocabulary->token[i]) {
			vocabulary->token[i] = name;
			vocabulary->bytes[i] = strlen(name);
			vocabulary->type[i] = UNUSED;
			name += strlen(name) + 1;
		}
	return rc;
}

static int put_merges(struct rh_gguf_out *out, const json_t *tokenizer)
{
	const json_t *list = json_object_get(json_object_get(tokenizer, "model"), "merges"), *merge;
	size_t count = json_array_size(list), i;
	struct rh_text joined = {0};
	const char **text = rh_alloc(count + 1, sizeof *text);
	size_t *bytes = rh_alloc(count + 1, sizeof *bytes), *at = rh_alloc(count + 1, sizeof *at);
	int rc = text && bytes && at ? 0 : -ENOMEM;
	json_array_foreach(list, i, merge)
	{
		const char *left = json_string_value(json_array_get(merge, 0)), *right = json_string_value(json_array_get(merge, 1));
		if (rc)
			break;
		at[i] = joined.length;
		if (json_is_string(merge))
			rc = rh_text_printf(&joined, "%s", json_string_value(merge));
		else
			rc = rh_text_printf(&joined, "%s %s", left ? left : "", right ? right : "");
		bytes[i] = joined.length - at[i];
	}
	for (i = 0; !rc && i < count; i++)
		text[i] = joined.bytes + at[i];
	if (!rc)
		rc = rh_gguf_out_strings(out, "tokenizer.ggml.merges", text, bytes, count);
	rh_text_free(&joined);
	rh_free(text);
	rh_free(bytes);
	rh_free(at);
	return rc;
}

static int put_tokens(struct rh_gguf_out *out, const struct rh_tokenizer *tokenizer, size_t count)
{
	struct vocabulary vocabulary = {.count = count,
	                                .token = rh_alloc(count, sizeof *vocabulary.token),
	                                .bytes = rh_alloc(count, sizeof *vocabulary.bytes),
	                                .type = rh_alloc(count, sizeof *vocabulary.type)};
	int rc = vocabulary.token && vocabulary.bytes && vocabulary.type ? 0 : -ENOMEM;
	if (!rc)
		rc = collect(tokenizer, &vocabulary);
	if (!rc)
		rc = rh_gguf_out_strings(out, "tokenizer.ggml.tokens", vocabulary.token, vocabulary.bytes, vocabulary.count);
	if (!rc)
		rc = rh_gguf_out_ints(out, "tokenizer.ggml.token_type", vocabulary.type, vocabulary.count);
	rh_text_free(&vocabulary.padding);
	rh_free(vocabulary.token);
	rh_free(vocabulary.bytes);
	rh_free(vocabulary.type);
	return rc;
}

/* Which tokens begin and end a text, and whether the tokenizer puts them there by itself. */
static int put_ends(struct rh_gguf_out *out, const struct rh_model_config *config, const struct rh_tokenizer *tokenizer)
{
	int64_t bos = rh_tokenizer_bos(tokenizer), eos = rh_tokenizer_eos(tokenizer);
	bos = bos < 0 ? config->bos_token_id : bos;
	eos = eos < 0 && config->eos_token_ids ? config->eos_token_id[0] : eos;
	struct rh_ids ids = {0};
	int rc = rh_tokenizer_encode(tokenizer, "a", 1, RH_TOKENS_WITH_SPECIAL, &ids);
	if (!rc && bos >= 0)
		rc = rh_gguf_out_u32(out, "tokenizer.ggml.bos_token_id", bos);
	if (!rc && eos >= 0)
		rc = rh_gguf_out_u32(out, "tokenizer.ggml.eos_token_id", eos);
	if (!rc)
		rc = rh_gguf_out_bool(out, "tokenizer.ggml.add_bos_token", ids.count && bos >= 0 && ids.id[0] == bos);
	if (!rc)
		rc = rh_gguf_out_bool(out, "tokenizer.ggml.add_eos_token", ids.count && eos >= 0 && ids.id[ids.count - 1] == eos);
	rh_ids_free(&ids);
	return rc;
}

static int put_vocabulary(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir, const char *chat,
                          const struct rh_tokenizer *eos_of)
{
	struct rh_tokenizer *tokenizer = NULL;
	char *path = rh_path_join(dir, "tokenizer.json");
	json_t *json = NULL;
	int rc = path ? rh_json_load(path, &json) : -ENOMEM;
	if (!rc)
		rc = rh_tokenizer_load(dir, &tokenizer);
	if (!rc)
		rc = rh_tokenizer_fit(tokenizer, config->vocab_size);
	const char *cutting = rc ? NULL : rh_tokenizer_pre(tokenizer);
	if (!rc && !cutting)
		rc = rh_fail(
		        -EINVAL,
		        "%s: this tokenizer is not written to GGUF (byte-level BPE cut as Llama 3, Qwen, Phi-4, Mistral NeMo, SmolLM or "
		        "GPT-2 do is); merge into a directory and use llama.cpp's convert_hf_to_gguf.py",
		        path);
	if (!rc && eos_of && rh_tokenizer_eos(eos_of) >= 0)
		rc = rh_tokenizer_set_eos(tokenizer, rh_tokenizer_text(eos_of, rh_tokenizer_eos(eos_of)));
	if (!rc)
		rc = rh_gguf_out_string(out, "tokenizer.ggml.model", "gpt2");
	if (!rc)
		rc = rh_gguf_out_string(out, "tokenizer.ggml.pre", cutting);
	if (!rc)
		rc = put_tokens(out, tokenizer, (size_t)config->vocab_size);
	if (!rc)
		rc = put_merges(out, json);
	if (!rc)
		rc = put_ends(out, config, tokenizer);
	const char *own = rc ? NULL : chat ? chat : rh_tokenizer_chat_template(tokenizer);
	if (!rc && own)
		rc = rh_gguf_out_string(out, "tokenizer.chat_template", own);
	rh_tokenizer_destroy(tokenizer);
	json_decref(json);
	rh_free(path);
	return rc;
}

/* The directory's own name. */
static int put_name(struct rh_gguf_out *out, const char *dir)
{
	char name[128];
	size_t length = strlen(dir);
	while (length > 1 && dir[length - 1] == '/')
		length--;
	size_t first = length;
	while (first && dir[first - 1] != '/')
		first--;
	snprintf(name, sizeof name, "%.*s", (int)(length - first), dir + first);
	return rh_gguf_out_string(out, "general.name", name);
}

int rh_gguf_describe(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir, const char *chat,
                     const struct rh_tokenizer *eos_of, enum rh_dtype dtype, float **rope_freqs)
{
	*rope_freqs = NULL;
	int has_pattern = config->family->attention.windows == RH_WINDOWS_PERIOD;
	if (!config->family->gguf.architecture || config->experts || (config->window && !has_pattern))
		return rh_fail(-EINVAL, "%s: models of type %s%s are not written to GGUF; llama.cpp's convert_hf_to_gguf.py does it", dir,
		               config->family->model_type,
		               config->experts  ? " with experts"
		               : config->window ? " with attention windows"
		                                : "");
	int rc = rh_gguf_out_string(out, "general.architecture", config->family->gguf.architecture);
	if (!rc)
		rc = rh_gguf_out_string(out, "general.type", "model");
	if (!rc)
		rc = put_name(out, dir);
	if (!rc)
		rc = rh_gguf_out_u32(out, "general.file_type", rh_gguf_file_type(dtype));
	if (!rc)
		rc = rh_gguf_out_u32(out, "general.quantization_version", 2);
	if (!rc)
		rc = put_sizes(out, config);
	if (!rc && config->window)
		rc = put_windows(out, config);
	if (!rc && config->delta.heads)
		rc = put_delta(out, config, dir);
	if (!rc)
		rc = put_rope(out, config, dir, rope_freqs);
	if (!rc)
		rc = put_vocabulary(out, config, dir, chat, eos_of);
	if (rc) {
		rh_free(*rope_freqs);
		*rope_freqs = NULL;
	}
	return rc;
}
