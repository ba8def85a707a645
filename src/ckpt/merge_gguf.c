#include "ckpt/merge_gguf.h"

#include "ckpt/source_internal.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"
#include "token/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum token_type { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

const char *rh_gguf_architecture(const struct rh_model_config *config)
{
	const struct rh_family_gguf *gguf = &config->family->gguf;
	return gguf->converted_as && !config->wrapped ? gguf->converted_as : gguf->architecture;
}

int merge_gguf_int(struct rh_gguf_out *out, const struct rh_model_config *config, const char *key, int64_t value)
{
	char name[128];
	snprintf(name, sizeof name, "%s.%s", rh_gguf_architecture(config), key);
	return rh_gguf_out_u32(out, name, value);
}

int merge_gguf_real(struct rh_gguf_out *out, const struct rh_model_config *config, const char *key, double value)
{
	char name[128];
	snprintf(name, sizeof name, "%s.%s", rh_gguf_architecture(config), key);
	return rh_gguf_out_f32(out, name, value);
}

/* That of layers without experts, of which the model has none: what config.json says, 0: nothing. */
static int64_t dense_size(const struct rh_model_config *config)
{
	const json_t *text = config->wrapped ? json_object_get(config->source, "text_config") : config->source;
	return json_integer_value(json_object_get(text, "intermediate_size"));
}

/* The lengths without a suffix are those of layers without a window, where these have others. */
static int put_sizes(struct rh_gguf_out *out, const struct rh_model_config *config)
{
	int64_t head = config->full_head_dim ? config->full_head_dim : config->head_dim;
	int is_shared_alone = config->family->moe.is_shared && !config->family->moe.is_beside;
	double share = config->rotary_share == 0 || config->full_head_dim ? 1 : config->rotary_share;
	const struct {
		const char *key;
		int64_t value; /* 0: not written */
	} sizes[] = {
	        {"context_length", config->max_position_embeddings},
	        {"embedding_length", config->hidden_size},
	        {"block_count", config->num_hidden_layers},
	        {"feed_forward_length", is_shared_alone             ? dense_size(config)
	                                : config->doubles_borrowers ? 0
	                                                            : config->intermediate_size},
	        {"attention.head_count", config->num_attention_heads},
	        {"attention.head_count_kv", config->full_head_dim ? 0 : config->num_key_value_heads},
	        {"attention.key_length", head},
	        {"attention.value_length", head},
	        {"vocab_size", config->vocab_size},
	        {"rope.dimension_count", config->family->names->positions ? 0 : (int64_t)((double)head * share)},
	};
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof sizes / sizeof *sizes; i++)
		if (sizes[i].value)
			rc = merge_gguf_int(out, config, sizes[i].key, sizes[i].value);
	if (!rc)
		rc = merge_gguf_real(out, config, rh_gguf_epsilon_key(config->family), config->rms_norm_eps);
	if (rc || config->family->names->positions)
		return rc;
	rc = merge_gguf_real(out, config, "rope.freq_base", config->rope[0].theta);
	if (!rc && config->family->silent.rope_theta_windowed)
		rc = merge_gguf_real(out, config, "rope.freq_base_swa", config->rope[1].theta);
	return rc;
}

/* What a person says of a key of this architecture, 0: nothing. */
static int put_said(struct rh_gguf_out *out, const struct rh_model_config *config, const char *key, double value)
{
	return value == 0 ? 0 : merge_gguf_real(out, config, key, value);
}

static int put_yarn(struct rh_gguf_out *out, const struct rh_model_config *config)
{
	const struct rh_rope *rope = &config->rope[0];
	char name[128];
	snprintf(name, sizeof name, "%s.rope.scaling.type", rh_gguf_architecture(config));
	int rc = rh_gguf_out_string(out, name, "yarn");
	if (!rc)
		rc = merge_gguf_real(out, config, "rope.scaling.factor", rope->factor);
	if (!rc)
		rc = merge_gguf_int(out, config, "rope.scaling.original_context_length", rope->original_max_position);
	if (!rc)
		rc = put_said(out, config, "rope.scaling.yarn_attn_factor", rope->attention_factor);
	if (!rc)
		rc = put_said(out, config, "rope.scaling.yarn_beta_fast", rope->beta_fast);
	if (!rc)
		rc = put_said(out, config, "rope.scaling.yarn_beta_slow", rope->beta_slow);
	if (rc || !config->family->attention.grows_queries)
		return rc;
	rc = put_said(out, config, "rope.scaling.yarn_log_multiplier", rope->mscale_all_dim);
	return rc ? rc : merge_gguf_real(out, config, "attention.temperature_scale", config->rope[1].growth);
}

/* LongRoPE is written of this family alone; and a window that is never seen, as llama.cpp asks for the key. */
static int is_phi3(const struct rh_model_config *config)
{
	return config->family->attention.may_rotate_part && config->family->attention.windows == RH_WINDOWS_ALL;
}

static int put_phi3(struct rh_gguf_out *out, const struct rh_model_config *config)
{
	const struct rh_rope *rope = &config->rope[0];
	int64_t first = rope->type == RH_ROPE_LONGROPE ? rope->original_max_position : config->max_position_embeddings;
	int rc = merge_gguf_int(out, config, "rope.scaling.original_context_length", first);
	return rc ? rc : merge_gguf_int(out, config, "attention.sliding_window", config->window);
}

static int put_rope(struct rh_gguf_out *out, const struct rh_model_config *config, const char *dir)
{
	const struct rh_rope *rope = &config->rope[0];
	char name[128];
	if (rope->type == RH_ROPE_LLAMA3 || rope->type == RH_ROPE_DEFAULT || (rope->type == RH_ROPE_PROPORTIONAL && rope->factor == 1))
		return 0;
	if (rope->type == RH_ROPE_LONGROPE && is_phi3(config)) {
		struct rh_rope_table table;
		rh_rope_table(rope, 2, 1, &table);
		return merge_gguf_real(out, config, "rope.scaling.attn_factor", (double)table.scale);
	}
	if (rope->type == RH_ROPE_YARN && (config->family->attention.grows_queries || config->family->residual == RH_RESIDUAL_BEHIND ||
	                                   config->family->gguf.yarn_plain_ramp))
		return put_yarn(out, config);
	if (rope->type != RH_ROPE_LINEAR)
		return rh_fail(-EINVAL, "%s: this rotary scaling is not written to GGUF; llama.cpp's convert_hf_to_gguf.py does it", dir);
	snprintf(name, sizeof name, "%s.rope.scaling.type", rh_gguf_architecture(config));
	int rc = rh_gguf_out_string(out, name, "linear");
	return rc ? rc : merge_gguf_real(out, config, "rope.scaling.factor", rope->factor);
}

struct vocabulary {
	const char **token;
	size_t *bytes;
	int32_t *type;
	size_t count;
	struct rh_text padding; /* names of ids that no token has, each with its NUL */
};

/* Tokens of Gemma 4 that llama.cpp shows in what the model writes, as its parser of answers looks for them. */
static int is_shown(const char *text)
{
	static const char *const shown[] = {"<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
	                                    "<|tool_response>", "<tool_response|>", "<|\"|>"};
	for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
		if (!strcmp(text, shown[i]))
			return 1;
	return 0;
}

static int is_byte(const char *text)
{
	static const char digits[] = "0123456789ABCDEFabcdef";
	return strlen(text) == 6 && !strncmp(text, "<0x", 3) && strspn(text + 3, digits) == 2 && text[5] == '>';
}

static int32_t type_of(const struct rh_tokenizer *tokenizer, int32_t id, int is_gemma4)
{
	const char *text = rh_tokenizer_text(tokenizer, id);
	if (is_gemma4 && is_shown(text))
		return USER_DEFINED;
	if (is_gemma4 && is_byte(text))
		return BYTE;
	return rh_tokenizer_is_special(tokenizer, id) ? CONTROL : rh_tokenizer_is_added(tokenizer, id) ? USER_DEFINED : NORMAL;
}

/* As the tokenizer is once all of the directory's files have been read: what they name is special also where tokenizer.json does not say
 * so, and llama.cpp finds only control tokens in a chat template's text. */
static int collect(const struct rh_tokenizer *tokenizer, int is_gemma4, struct vocabulary *vocabulary)
{
	int rc = 0;
	size_t i, size = (size_t)rh_tokenizer_size(tokenizer);
	for (i = 0; i < size; i++) {
		const char *text = rh_tokenizer_text(tokenizer, (int32_t)i);
		if (!text)
			continue;
		vocabulary->token[i] = text;
		vocabulary->bytes[i] = strlen(text);
		vocabulary->type[i] = type_of(tokenizer, (int32_t)i, is_gemma4);
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

/* The converter has one score for all tokens: which are merged is told by the merges alone. */
static int put_scores(struct rh_gguf_out *out, size_t count)
{
	float *score = rh_alloc(count, sizeof *score);
	for (size_t i = 0; score && i < count; i++)
		score[i] = -1000;
	int rc = score ? rh_gguf_out_floats(out, "tokenizer.ggml.scores", score, count) : -ENOMEM;
	rh_free(score);
	return rc;
}

static int put_tokens(struct rh_gguf_out *out, const struct rh_tokenizer *tokenizer, int is_gemma4, size_t count)
{
	struct vocabulary vocabulary = {.count = count,
	                                .token = rh_alloc(count, sizeof *vocabulary.token),
	                                .bytes = rh_alloc(count, sizeof *vocabulary.bytes),
	                                .type = rh_alloc(count, sizeof *vocabulary.type)};
	int rc = vocabulary.token && vocabulary.bytes && vocabulary.type ? 0 : -ENOMEM;
	if (!rc)
		rc = collect(tokenizer, is_gemma4, &vocabulary);
	if (!rc)
		rc = rh_gguf_out_strings(out, "tokenizer.ggml.tokens", vocabulary.token, vocabulary.bytes, vocabulary.count);
	if (!rc && is_gemma4)
		rc = put_scores(out, count);
	if (!rc)
		rc = rh_gguf_out_ints(out, "tokenizer.ggml.token_type", vocabulary.type, vocabulary.count);
	rh_text_free(&vocabulary.padding);
	rh_free(vocabulary.token);
	rh_free(vocabulary.bytes);
	rh_free(vocabulary.type);
	return rc;
}

/* Which tokens begin and end a text, and whether the tokenizer puts them there by itself. */
static int put_ends(struct rh_gguf_out *out, const struct rh_model_config *config, const struct rh_tokenizer *tokenizer, int is_gemma4)
{
	int64_t bos = rh_tokenizer_bos(tokenizer), eos = rh_tokenizer_eos(tokenizer);
	const char *turn_end = config->family->gguf.turn_end;
	bos = bos < 0 ? config->bos_token_id : bos;
	eos = eos < 0 && config->eos_token_ids ? config->eos_token_id[0] : eos;
	const struct {
		const char *key;
		int64_t id; /* below 0: there is none */
	} ends[] = {{"tokenizer.ggml.bos_token_id", bos},
	            {"tokenizer.ggml.eos_token_id", eos},
	            {"tokenizer.ggml.padding_token_id", rh_tokenizer_pad(tokenizer)},
	            {"tokenizer.ggml.unknown_token_id", is_gemma4 ? rh_tokenizer_unknown(tokenizer) : -1},
	            {"tokenizer.ggml.eot_token_id", turn_end ? rh_tokenizer_id(tokenizer, turn_end) : -1}};
	struct rh_ids ids = {0};
	int rc = rh_tokenizer_encode(tokenizer, "a", 1, RH_TOKENS_WITH_SPECIAL, &ids);
	for (size_t i = 0; !rc && i < sizeof ends / sizeof *ends; i++)
		if (ends[i].id >= 0)
			rc = rh_gguf_out_u32(out, ends[i].key, ends[i].id);
	if (!rc)
		rc = rh_gguf_out_bool(out, "tokenizer.ggml.add_bos_token", ids.count && bos >= 0 && ids.id[0] == bos);
	if (!rc)
		rc = rh_gguf_out_bool(out, "tokenizer.ggml.add_eos_token", ids.count && eos >= 0 && ids.id[ids.count - 1] == eos);
	if (!rc && is_gemma4)
		rc = rh_gguf_out_bool(out, "tokenizer.ggml.add_space_prefix", 0);
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
	int is_gemma4 = !rc && !cutting && rh_tokenizer_is_gemma4(tokenizer);
	if (!rc && !cutting && !is_gemma4)
		rc = rh_fail(
		        -EINVAL,
		        "%s: this tokenizer is not written to GGUF (byte-level BPE cut as Llama 3, Qwen, GPT-OSS, Phi-4, Mistral NeMo, "
		        "SmolLM or GPT-2 do is, and Gemma 4's); merge into a directory and use llama.cpp's convert_hf_to_gguf.py",
		        path);
	if (!rc && eos_of && rh_tokenizer_eos(eos_of) >= 0)
		rc = rh_tokenizer_set_eos(tokenizer, rh_tokenizer_text(eos_of, rh_tokenizer_eos(eos_of)));
	if (!rc)
		rc = rh_gguf_out_string(out, "tokenizer.ggml.model", is_gemma4 ? "gemma4" : "gpt2");
	if (!rc && cutting)
		rc = rh_gguf_out_string(out, "tokenizer.ggml.pre", cutting);
	if (!rc)
		rc = put_tokens(out, tokenizer, is_gemma4, (size_t)config->vocab_size);
	if (!rc)
		rc = put_merges(out, json);
	if (!rc)
		rc = put_ends(out, config, tokenizer, is_gemma4);
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
                     const struct rh_tokenizer *eos_of, int64_t file_type)
{
	enum rh_family_windows windows = config->family->attention.windows;
	int has_pattern = windows == RH_WINDOWS_PERIOD || windows == RH_WINDOWS_FROM_LAST;
	int is_seen = config->window && config->window < config->max_position_embeddings;
	if (!rh_gguf_architecture(config) || (is_seen && !has_pattern))
		return rh_fail(-EINVAL, "%s: models of type %s%s are not written to GGUF; llama.cpp's convert_hf_to_gguf.py does it", dir,
		               config->family->model_type, is_seen ? " with attention windows" : "");
	int rc = rh_gguf_out_string(out, "general.architecture", rh_gguf_architecture(config));
	if (!rc)
		rc = rh_gguf_out_string(out, "general.type", "model");
	if (!rc)
		rc = put_name(out, dir);
	if (!rc)
		rc = rh_gguf_out_u32(out, "general.file_type", file_type);
	if (!rc)
		rc = rh_gguf_out_u32(out, "general.quantization_version", 2);
	if (!rc)
		rc = put_sizes(out, config);
	if (!rc)
		rc = merge_gguf_layers(out, config, dir);
	if (!rc && is_phi3(config))
		rc = put_phi3(out, config);
	if (!rc)
		rc = put_rope(out, config, dir);
	return rc ? rc : put_vocabulary(out, config, dir, chat, eos_of);
}
