/* Another trainer's configuration, key by key: what means the same is written, what is written otherwise is rewritten, and the rest is
 * listed with the reason. A line is written only where this program takes it. */
#include "config/convert.h"

#include "config/config_internal.h"

#include "config/fields_internal.h"
#include "core/alloc.h"
#include "core/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { VALUE_MOST = 4096, KEYS_MOST = 1024, DEPTH_MOST = 16 };

struct converting {
	const struct config_tree *tree;
	const yaml_node_t *root;
	struct rh_converted *out;
	unsigned char written[KEYS_MOST]; /* by index into config_keys */
};

/* ---- values as YAML writes them on one line ---- */

static int append_scalar(struct rh_text *text, const yaml_node_t *node)
{
	const char *value = (const char *)node->data.scalar.value;
	if (node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
		return rh_text_printf(text, "%s", value);
	int rc = rh_text_append(text, "\"", 1);
	for (const char *at = value; !rc && *at; at++)
		rc = *at == '\n' ? rh_text_append(text, "\\n", 2)
		                 : rh_text_printf(text, "%s%c", *at == '"' || *at == '\\' ? "\\" : "", *at);
	return rc ? rc : rh_text_append(text, "\"", 1);
}

/* `depth`: an anchor may hold itself. */
static int append_value(struct converting *at, struct rh_text *text, const yaml_node_t *node, int depth)
{
	yaml_document_t *document = (yaml_document_t *)(uintptr_t)&at->tree->document;
	int rc = 0;
	if (depth > DEPTH_MOST)
		return config_tree_fail(at->tree, node, "values lie in one another more than %d deep", DEPTH_MOST);
	if (node->type == YAML_SCALAR_NODE)
		return append_scalar(text, node);
	if (node->type == YAML_SEQUENCE_NODE) {
		const yaml_node_item_t *first = node->data.sequence.items.start;
		rc = rh_text_append(text, "[", 1);
		for (const yaml_node_item_t *item = first; !rc && item < node->data.sequence.items.top; item++) {
			rc = item == first ? 0 : rh_text_append(text, ", ", 2);
			if (!rc)
				rc = append_value(at, text, yaml_document_get_node(document, *item), depth + 1);
		}
		return rc ? rc : rh_text_append(text, "]", 1);
	}
	const yaml_node_pair_t *first = node->data.mapping.pairs.start;
	rc = rh_text_append(text, "{", 1);
	for (const yaml_node_pair_t *pair = first; !rc && pair < node->data.mapping.pairs.top; pair++) {
		rc = pair == first ? 0 : rh_text_append(text, ", ", 2);
		if (!rc)
			rc = append_value(at, text, yaml_document_get_node(document, pair->key), depth + 1);
		if (!rc)
			rc = rh_text_append(text, ": ", 2);
		if (!rc)
			rc = append_value(at, text, yaml_document_get_node(document, pair->value), depth + 1);
	}
	return rc ? rc : rh_text_append(text, "}", 1);
}

static const char *scalar_of(const yaml_node_t *node)
{
	return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

static int is_plain(const yaml_node_t *node, const char *const *words)
{
	for (; *words; words++)
		if (node->type == YAML_SCALAR_NODE && !strcasecmp(scalar_of(node), *words))
			return 1;
	return 0;
}
#define IS(node, ...) is_plain(node, (const char *const[]){__VA_ARGS__, NULL})

/* The value of another key of the file; NULL: it is not there. */
static const yaml_node_t *other(const struct converting *at, const char *name)
{
	yaml_document_t *document = (yaml_document_t *)(uintptr_t)&at->tree->document;
	for (const yaml_node_pair_t *pair = at->root->data.mapping.pairs.start; pair < at->root->data.mapping.pairs.top; pair++)
		if (!strcmp(scalar_of(yaml_document_get_node(document, pair->key)), name))
			return yaml_document_get_node(document, pair->value);
	return NULL;
}

/* ---- the three places that a key may go to ---- */

static int leave(struct converting *at, const char *name, const char *why)
{
	at->out->lefts++;
	return rh_text_printf(&at->out->left, "# %s: %s\n", config_show(name).text, why);
}

static int drop(struct converting *at, const char *name, const char *why)
{
	at->out->idles++;
	return rh_text_printf(&at->out->idle, "# %s: %s\n", config_show(name).text, why);
}

/* Is `line` one that this program takes? Its fault without the place goes to `why`. */
static int check_line(const struct rh_text *line, char *why, size_t bytes)
{
	struct config_entries entries = {.verb = "train"};
	struct config_draft unused = {0};
	int rc = config_yaml_read(line->bytes, line->length, "line", &entries);
	for (size_t i = 0; !rc && i < entries.count; i++)
		rc = config_value_set(&unused, &entries.entry[i]);
	if (rc) {
		const char *fault = rh_error(rc), *behind = strstr(fault, ": ");
		snprintf(why, bytes, "%s", behind ? behind + 2 : fault);
		if (rc != -ENOMEM)
			rh_error_clear();
	}
	config_entries_free(&entries);
	rh_config_free(&unused.config);
	return rc;
}

static int put_text(struct converting *at, const char *name, const char *key, const char *value)
{
	struct rh_text line = {0};
	char why[RH_ERROR_LINE] = "";
	int index = config_key_find(key), rc = rh_text_printf(&line, "%s: %s\n", key, value);
	RH_ASSERT(index >= 0 && index < KEYS_MOST);
	if (!rc && at->written[index])
		snprintf(why, sizeof why, "%s is written already", key);
	else if (!rc)
		rc = check_line(&line, why, sizeof why);
	if (!*why && !rc) {
		at->written[index] = 1;
		at->out->converteds++;
		rc = rh_text_append(&at->out->yaml, line.bytes, line.length);
	} else if (*why && rc != -ENOMEM) {
		rc = leave(at, name, why);
	}
	rh_text_free(&line);
	return rc;
}

static int put(struct converting *at, const char *name, const char *key, const yaml_node_t *value)
{
	struct rh_text text = {0};
	int rc = append_value(at, &text, value, 0);
	if (!rc)
		rc = put_text(at, name, key, text.bytes ? text.bytes : "");
	rh_text_free(&text);
	return rc;
}

/* ---- keys whose values are written otherwise here ---- */

static int convert_adapter(struct converting *at, const char *name, const yaml_node_t *value)
{
	if (IS(value, "full", "none", ""))
		return drop(at, name, "all weights are trained where no lora_ key is given");
	if (!IS(value, "lora", "qlora"))
		return leave(at, name, "this kind of adapter is not built; use_peft: true is LoRA");
	return put_text(at, name, "use_peft", "true"); /* qlora's load_in_4bit is a key of its own */
}

/* LLaMA-Factory's stage, whose dpo has its loss in pref_loss. */
static int convert_stage(struct converting *at, const char *name, const yaml_node_t *value)
{
	if (IS(value, "sft", "pt"))
		return drop(at, name, "the rows say it: conversations and completions, or text");
	if (IS(value, "kto"))
		return put_text(at, name, "loss_type", "kto");
	if (!IS(value, "dpo"))
		return leave(at, name, "training on rewards is not built yet");
	return other(at, "pref_loss") ? drop(at, name, "loss_type says it") : put_text(at, name, "loss_type", "sigmoid");
}

static int convert_rl(struct converting *at, const char *name, const yaml_node_t *value)
{
	if (IS(value, "dpo"))
		return put_text(at, name, "loss_type", "sigmoid");
	return IS(value, "ipo", "kto", "orpo", "simpo") ? put_text(at, name, "loss_type", scalar_of(value))
	                                                : leave(at, name, "training on rewards is not built yet");
}

/* Its simpo has no cross-entropy beside it. */
static int convert_pref_loss(struct converting *at, const char *name, const yaml_node_t *value)
{
	const yaml_node_t *more = other(at, "pref_ftx");
	if (!IS(value, "sigmoid", "hinge", "ipo", "orpo", "simpo"))
		return leave(at, name, "that loss is not built yet");
	if (more && atof(scalar_of(more)) != 0 && IS(value, "sigmoid", "hinge", "ipo")) {
		char list[64], weights[64];
		snprintf(list, sizeof list, "[%s, sft]", scalar_of(value));
		snprintf(weights, sizeof weights, "[1, %s]", scalar_of(more));
		int rc = put_text(at, name, "loss_type", list);
		return rc ? rc : put_text(at, "pref_ftx", "loss_weights", weights);
	}
	int rc = put_text(at, name, "loss_type", scalar_of(value));
	return rc || !IS(value, "simpo") ? rc : put_text(at, name, "cpo_alpha", "0");
}

static int convert_pref_ftx(struct converting *at, const char *name, const yaml_node_t *value)
{
	const yaml_node_t *loss = other(at, "pref_loss");
	if (atof(scalar_of(value)) == 0)
		return drop(at, name, "0 is no cross-entropy beside the loss");
	if (loss && IS(loss, "sigmoid", "hinge", "ipo")) /* written with it */
		return 0;
	return leave(at, name, "here it is loss_type: [sigmoid, sft] with loss_weights: [1, ITS VALUE]");
}

static int convert_inputs(struct converting *at, const char *name, const yaml_node_t *value)
{
	int trains = IS(value, "true", "yes", "on");
	return put_text(at, name, "assistant_only_loss", trains ? "false" : "true");
}

static int convert_linear(struct converting *at, const char *name, const yaml_node_t *value)
{
	return IS(value, "true", "yes", "on") ? put_text(at, name, "lora_target_modules", "all-linear")
	                                      : drop(at, name, "lora_target_modules names them");
}

/* "a,b" and "all". */
static int convert_target(struct converting *at, const char *name, const yaml_node_t *value)
{
	char list[VALUE_MOST];
	if (value->type != YAML_SCALAR_NODE)
		return put(at, name, "lora_target_modules", value);
	snprintf(list, sizeof list, "[%s]", scalar_of(value));
	return put_text(at, name, "lora_target_modules", IS(value, "all", "all-linear") ? "all-linear" : list);
}

static int convert_optimizer(struct converting *at, const char *name, const yaml_node_t *value)
{
	const char *said = scalar_of(value);
	const char *ours = strstr(said, "lion")                ? "lion_32bit"
	                   : !strcmp(said, "sgd")              ? "sgd"
	                   : !strcmp(said, "adafactor")        ? "adafactor"
	                   : !strncmp(said, "adamw", 5)        ? "adamw_torch"
	                   : !strncmp(said, "paged_adamw", 11) ? "adamw_torch"
	                                                       : NULL;
	if (!ours)
		return leave(at, name, "that optimizer is not built; optim takes adamw_torch, lion_32bit, sgd or adafactor");
	int rc = put_text(at, name, "optim", ours);
	return rc || !strstr(said, "8bit")
	               ? rc
	               : leave(at, name, "its state is in 32 bits here; state_layout: split8 (AdamW, bfloat16) has 8-bit moments");
}

/* Axolotl's list of maps with paths, or LLaMA-Factory's names. */
static int append_path(struct converting *at, const yaml_node_t *item, struct rh_text *list)
{
	yaml_document_t *document = (yaml_document_t *)(uintptr_t)&at->tree->document;
	const yaml_node_t *path = item->type == YAML_SCALAR_NODE ? item : NULL, *files = NULL;
	if (item->type == YAML_MAPPING_NODE)
		for (const yaml_node_pair_t *pair = item->data.mapping.pairs.start; pair < item->data.mapping.pairs.top; pair++) {
			const char *name = scalar_of(yaml_document_get_node(document, pair->key));
			if (!strcmp(name, "path"))
				path = yaml_document_get_node(document, pair->value);
			else if (!strcmp(name, "data_files"))
				files = yaml_document_get_node(document, pair->value);
		}
	path = files && files->type == YAML_SCALAR_NODE ? files : path;
	int rc = path && list->length > 1 ? rh_text_append(list, ", ", 2) : 0;
	return rc || !path ? rc : append_scalar(list, path);
}

static int convert_files(struct converting *at, const char *name, const yaml_node_t *value, const char *key)
{
	yaml_document_t *document = (yaml_document_t *)(uintptr_t)&at->tree->document;
	struct rh_text list = {0};
	int rc = rh_text_append(&list, "[", 1), is_list = value->type == YAML_SEQUENCE_NODE;
	if (!is_list && !rc)
		rc = value->type == YAML_SCALAR_NODE ? rh_text_printf(&list, "%s", scalar_of(value)) : append_path(at, value, &list);
	for (const yaml_node_item_t *item = is_list ? value->data.sequence.items.start : NULL;
	     !rc && is_list && item < value->data.sequence.items.top; item++)
		rc = append_path(at, yaml_document_get_node(document, *item), &list);
	if (!rc)
		rc = rh_text_append(&list, "]", 1);
	if (!rc)
		rc = put_text(at, name, key, list.bytes);
	rh_text_free(&list);
	return rc;
}

static int convert_datasets(struct converting *at, const char *name, const yaml_node_t *value)
{
	int rc = convert_files(at, name, value, "train_file");
	return rc ? rc
	          : drop(at, name,
	                 "the form of rows is recognised (inspect shows it); a data set of the Hub is fetched with hf download "
	                 "--repo-type dataset, and its folder named in train_file");
}

static int convert_split(struct converting *at, const char *name, const yaml_node_t *value)
{
	int is_none = value->type == YAML_SCALAR_NODE && atof(scalar_of(value)) == 0;
	return is_none ? drop(at, name, "no rows are held out where eval_split is left out") : put(at, name, "eval_split", value);
}

static int convert_validation(struct converting *at, const char *name, const yaml_node_t *value)
{
	return convert_files(at, name, value, "validation_file");
}

/* Names of LLaMA-Factory's dataset_info.json. */
static int convert_dataset(struct converting *at, const char *name, const yaml_node_t *value)
{
	char path[VALUE_MOST];
	const yaml_node_t *dir = other(at, "dataset_dir");
	int is_path = strpbrk(scalar_of(value), "./") != NULL;
	int rc = convert_files(at, name, value, "train_file");
	snprintf(path, sizeof path, "%s/dataset_info.json", dir ? scalar_of(dir) : "data");
	return rc || is_path ? rc : put_text(at, name, "dataset_info", path);
}

static int convert_dataset_dir(struct converting *at, const char *name, const yaml_node_t *value)
{
	(void)value;
	return drop(at, name, "dataset_info holds it");
}

static int convert_template(struct converting *at, const char *name, const yaml_node_t *value)
{
	(void)value;
	return drop(at, name, "the model's own chat template is taken; chat_template names another (chatml, qwen2.5, llama3.1, ...)");
}

static int convert_chat_template(struct converting *at, const char *name, const yaml_node_t *value)
{
	return strncmp(scalar_of(value), "tokenizer_default", 17) && strcmp(scalar_of(value), "jinja")
	               ? put(at, name, "chat_template", value)
	               : drop(at, name, "the model's own chat template is taken where the key is left out");
}

/* "auto" is what this program does where the key is left out. */
static int convert_precision(struct converting *at, const char *name, const yaml_node_t *value)
{
	return IS(value, "auto", "full") ? drop(at, name, "dtype is bfloat16 on GPUs where the key is left out")
	                                 : put(at, name, name, value);
}

static int put_per_epoch(struct converting *at, const char *name, const yaml_node_t *value, const char *strategy, const char *steps)
{
	const yaml_node_t *epochs = other(at, "num_epochs");
	char share[32];
	double times = atof(scalar_of(value)), all = epochs ? atof(scalar_of(epochs)) : 0;
	if (times == 1)
		return put_text(at, name, strategy, "epoch");
	if (!(times > 0) || !(all > 0))
		return times == 0 ? put_text(at, name, strategy, "no") : leave(at, name, "a share of all steps needs num_epochs");
	snprintf(share, sizeof share, "%.6g", 1 / (times * all));
	int rc = put_text(at, name, strategy, "steps");
	return rc ? rc : put_text(at, name, steps, share);
}

static int convert_evals(struct converting *at, const char *name, const yaml_node_t *value)
{
	return put_per_epoch(at, name, value, "eval_strategy", "eval_steps");
}

static int convert_saves(struct converting *at, const char *name, const yaml_node_t *value)
{
	return put_per_epoch(at, name, value, "save_strategy", "save_steps");
}

static int convert_special_tokens(struct converting *at, const char *name, const yaml_node_t *value)
{
	yaml_document_t *document = (yaml_document_t *)(uintptr_t)&at->tree->document;
	int rc = 0, others = 0;
	for (const yaml_node_pair_t *pair = value->type == YAML_MAPPING_NODE ? value->data.mapping.pairs.start : NULL;
	     !rc && pair && pair < value->data.mapping.pairs.top; pair++) {
		const char *which = scalar_of(yaml_document_get_node(document, pair->key));
		if (!strcmp(which, "eos_token"))
			rc = put(at, name, "eos_token", yaml_document_get_node(document, pair->value));
		else
			others = 1;
	}
	return rc || !others ? rc : drop(at, name, "other tokens than eos_token are the tokenizer's own; nothing is padded");
}

static const struct {
	const char *name;
	int (*convert)(struct converting *at, const char *name, const yaml_node_t *value);
} specials[] = {
        {"adapter", convert_adapter},
        {"finetuning_type", convert_adapter},
        {"stage", convert_stage},
        {"rl", convert_rl},
        {"pref_loss", convert_pref_loss},
        {"pref_ftx", convert_pref_ftx},
        {"train_on_inputs", convert_inputs},
        {"lora_target_linear", convert_linear},
        {"lora_target", convert_target},
        {"optimizer", convert_optimizer},
        {"optim", convert_optimizer},
        {"lr_scheduler", NULL}, /* the key of another name, if this program has the value */
        {"torch_dtype", NULL},
        {"datasets", convert_datasets},
        {"pretraining_dataset", convert_datasets},
        {"test_datasets", convert_validation},
        {"val_set_size", convert_split},
        {"val_size", convert_split},
        {"dataset", convert_dataset},
        {"dataset_dir", convert_dataset_dir},
        {"template", convert_template},
        {"chat_template", convert_chat_template},
        {"bf16", convert_precision},
        {"fp16", convert_precision},
        {"evals_per_epoch", convert_evals},
        {"saves_per_epoch", convert_saves},
        {"special_tokens", convert_special_tokens},
};

static int convert_known(struct converting *at, const char *name, int index, const yaml_node_t *value)
{
	const struct config_key *key = &config_keys[index];
	if (key->type == KEY_INERT)
		return drop(at, name, key->help);
	return put(at, name, key->name, value);
}

static int convert_key(struct converting *at, const char *name, const yaml_node_t *value)
{
	const struct config_elsewhere *found = config_elsewhere_find(name);
	int index = config_key_find(name);
	for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
		if (!strcmp(name, specials[i].name))
			return specials[i].convert ? specials[i].convert(at, name, value) : put(at, name, found->key, value);
	if (index >= 0)
		return convert_known(at, name, index, value);
	if (!found)
		return leave(at, name, "no trainer that this program knows has such a key");
	if (found->how == ELSEWHERE_SAME)
		return put(at, name, found->key, value);
	if (found->key) {
		char why[256];
		snprintf(why, sizeof why, "here it is %s%s%s", found->key, found->note ? ": " : "", found->note ? found->note : "");
		return leave(at, name, why);
	}
	size_t length = strlen(found->note);
	static const char tail[] = "; remove it";
	char why[512];
	snprintf(why, sizeof why, "%s", found->note);
	if (length > sizeof tail && length < sizeof why && !strcmp(found->note + length - (sizeof tail - 1), tail))
		why[length - (sizeof tail - 1)] = 0;
	return strstr(found->note, "not built") ? leave(at, name, why) : drop(at, name, why);
}

/* What those programs do where a key is left out, and this one does not. */
static int write_defaults(struct converting *at)
{
	static const char axolotl[] = "base_model", factory[] = "finetuning_type";
	static const struct {
		const char *sign, *absent, *key, *value;
	} defaults[] = {
	        {axolotl, "sequence_len", "max_length", "512"},
	        {axolotl, "lora_dropout", "lora_dropout", "0"},
	        {factory, "cutoff_len", "max_length", "2048"},
	        {factory, "lora_dropout", "lora_dropout", "0"},
	};
	const yaml_node_t *rank = other(at, "lora_rank");
	int rc = 0, adapts = at->written[config_key_find("use_peft")];
	for (size_t i = 0; !rc && i < sizeof defaults / sizeof *defaults; i++) {
		int is_of_lora = config_keys[config_key_find(defaults[i].key)].lora;
		if (other(at, defaults[i].sign) && !other(at, defaults[i].absent) && (adapts || !is_of_lora))
			rc = put_text(at, defaults[i].absent, defaults[i].key, defaults[i].value);
	}
	if (!rc && adapts && other(at, factory) && !other(at, "lora_alpha")) {
		char alpha[32];
		snprintf(alpha, sizeof alpha, "%g", 2 * (rank ? atof(scalar_of(rank)) : 8));
		rc = put_text(at, "lora_alpha", "lora_alpha", alpha);
	}
	if (!rc && adapts && other(at, factory) && !rank)
		rc = put_text(at, "lora_rank", "lora_r", "8");
	if (!rc && (other(at, axolotl) || other(at, factory)) && !at->written[config_key_find("assistant_only_loss")])
		rc = rh_text_printf(&at->out->left, "# of conversations that program trains the answers alone: assistant_only_loss: true "
		                                    "(leave it out where rows are plain prompts and completions)\n");
	return rc;
}

static int convert(struct config_tree *tree, const yaml_node_t *root, void *out)
{
	struct converting at = {.tree = tree, .root = root, .out = out};
	int rc = 0;
	for (const yaml_node_pair_t *pair = root->data.mapping.pairs.start; !rc && pair < root->data.mapping.pairs.top; pair++) {
		const yaml_node_t *key = yaml_document_get_node(&tree->document, pair->key),
		                  *value = yaml_document_get_node(&tree->document, pair->value);
		if (key->type != YAML_SCALAR_NODE)
			return config_tree_fail(tree, key, "a key must be a plain word");
		if (!IS(value, "", "null", "~")) /* a default */
			rc = convert_key(&at, (const char *)key->data.scalar.value, value);
	}
	return rc ? rc : write_defaults(&at);
}

int rh_config_convert(const char *path, struct rh_converted *out)
{
	*out = (struct rh_converted){0};
	int rc = config_document_read(path, convert, out);
	if (rc)
		rh_converted_free(out);
	return rc;
}

void rh_converted_free(struct rh_converted *converted)
{
	rh_text_free(&converted->yaml);
	rh_text_free(&converted->idle);
	rh_text_free(&converted->left);
	*converted = (struct rh_converted){0};
}
