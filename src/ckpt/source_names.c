/* The tensors that a model of a configuration has: Hugging Face's names and shapes, and the names that a GGUF file has for them. */
#include "ckpt/source_internal.h"

#include "core/alloc.h"
#include "core/text.h"

#include <stdlib.h>
#include <string.h>

enum order { PLAIN, PERMUTED };

static int add(struct source_entries *list, char *name, char *stored, int64_t rows, int64_t cols, int64_t head_dim)
{
	int rc = name && stored ? rh_grow(&list->entry, &list->capacity, list->count + 1, sizeof *list->entry) : -ENOMEM;
	if (rc) {
		rh_free(name);
		rh_free(stored);
		return rc;
	}
	list->entry[list->count++] = (struct source_entry){
	        .name = name, .stored = stored, .tensor = {.rank = cols ? 2 : 1, .shape = {rows, cols}}, .head_dim = head_dim};
	return 0;
}

/* "prefix" + layer + "suffix" + ".weight" */
static char *join(const char *prefix, int64_t layer, const char *suffix, const char *kind)
{
	struct rh_text text = {0};
	return rh_text_printf(&text, "%s%lld.%s.%s", prefix, (long long)layer, suffix, kind) ? NULL : text.bytes;
}

struct module {
	const char *name, *stored;
	int64_t rows, cols; /* cols 0: a norm */
	int bias;
	enum order order;
};

static int expect_layer(const struct rh_model_config *c, int64_t layer, struct source_entries *out)
{
	int64_t hidden = c->hidden_size, wide = c->intermediate_size, head = c->head_dim;
	int64_t q = c->num_attention_heads * head, kv = c->num_key_value_heads * head;
	enum order order = c->family->gguf_permuted ? PERMUTED : PLAIN;
	const struct module modules[] = {
	        {"input_layernorm", "attn_norm", hidden, 0, 0, PLAIN},
	        {"self_attn.q_proj", "attn_q", q, hidden, c->attention_bias, order},
	        {"self_attn.k_proj", "attn_k", kv, hidden, c->attention_bias, order},
	        {"self_attn.v_proj", "attn_v", kv, hidden, c->attention_bias, PLAIN},
	        {"self_attn.o_proj", "attn_output", hidden, q, c->attention_output_bias, PLAIN},
	        {"post_attention_layernorm", "ffn_norm", hidden, 0, 0, PLAIN},
	        {"mlp.gate_proj", "ffn_gate", wide, hidden, c->mlp_bias, PLAIN},
	        {"mlp.up_proj", "ffn_up", wide, hidden, c->mlp_bias, PLAIN},
	        {"mlp.down_proj", "ffn_down", hidden, wide, c->mlp_bias, PLAIN},
	        {"self_attn.q_norm", "attn_q_norm", head, 0, 0, PLAIN},
	        {"self_attn.k_norm", "attn_k_norm", head, 0, 0, PLAIN},
	};
	size_t count = sizeof modules / sizeof *modules - (c->qk_norm ? 0 : 2);
	int rc = 0;
	for (size_t i = 0; !rc && i < count; i++) {
		const struct module *m = &modules[i];
		int64_t permuted = m->order == PERMUTED ? head : 0;
		rc = add(out, join("model.layers.", layer, m->name, "weight"), join("blk.", layer, m->stored, "weight"), m->rows, m->cols,
		         permuted);
		if (!rc && m->bias)
			rc = add(out, join("model.layers.", layer, m->name, "bias"), join("blk.", layer, m->stored, "bias"), m->rows, 0,
			         permuted);
	}
	return rc;
}

static int compare(const void *a, const void *b)
{
	const struct source_entry *x = a, *y = b;
	return strcmp(x->name, y->name);
}

int source_expect(const struct rh_model_config *config, struct source_entries *out)
{
	*out = (struct source_entries){0};
	int rc = add(out, rh_strdup("model.embed_tokens.weight"), rh_strdup("token_embd.weight"), config->vocab_size, config->hidden_size,
	             0);
	for (int64_t layer = 0; !rc && layer < config->num_hidden_layers; layer++)
		rc = expect_layer(config, layer, out);
	if (!rc)
		rc = add(out, rh_strdup("model.norm.weight"), rh_strdup("output_norm.weight"), config->hidden_size, 0, 0);
	if (!rc && !config->tie_word_embeddings)
		rc = add(out, rh_strdup("lm_head.weight"), rh_strdup("output.weight"), config->vocab_size, config->hidden_size, 0);
	if (rc)
		source_entries_free(out);
	else
		qsort(out->entry, out->count, sizeof *out->entry, compare);
	return rc;
}

void source_entries_free(struct source_entries *entries)
{
	for (size_t i = 0; i < entries->count; i++) {
		rh_free(entries->entry[i].name);
		rh_free(entries->entry[i].stored);
	}
	rh_free(entries->entry);
	*entries = (struct source_entries){0};
}

struct source_entry *source_entries_find(const struct source_entries *entries, const char *name)
{
	const struct source_entry key = {.name = (char *)(uintptr_t)name};
	return entries->count ? bsearch(&key, entries->entry, entries->count, sizeof key, compare) : NULL;
}
