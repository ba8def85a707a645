/* The table of keys: SEMANTICS.md 1. It drives parsing, defaults, checks, printing and --help. */
#include "config/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FIELD(name) offsetof(struct config_draft, config.name)
#define DRAFT(name) offsetof(struct config_draft, name)
#define WORDS(...)  ((const char *const[]){__VA_ARGS__, NULL})

/* clang-format off */
#define KEY(key_type, key_name, key_verbs, ...) \
	{.name = #key_name, .type = key_type, .verbs = key_verbs, .offset = FIELD(key_name), __VA_ARGS__}
#define FIXED(key_name, key_verbs, ...) {.name = #key_name, .type = KEY_FIXED, .verbs = key_verbs, __VA_ARGS__}
#define INERT(key_name, why) {.name = key_name, .type = KEY_INERT, .verbs = VERB_ALL, .help = why}

const struct config_key config_keys[] = {
	KEY(KEY_STRING, model_name_or_path, VERB_ALL, .heading = "Model and files",
	    .help = "a Hugging Face directory or a .gguf file"),
	KEY(KEY_STRING, config_name, VERB_RUNS, .help = "a config.json (or its directory): train from random initialisation"),
	KEY(KEY_STRING, adapter_name_or_path, VERB_ALL, .help = "a PEFT adapter to go on from"),
	KEY(KEY_STRING, train_file, VERB_RUNS, .help = "JSONL with messages, prompt + completion, or text"),
	KEY(KEY_STRING, validation_file, VERB_DATA, .help = "the same, for evaluation"),
	KEY(KEY_REAL, eval_split, VERB_RUNS, .most = 1, .bounds = BOUND_ABOVE_LEAST | BOUND_BELOW_MOST,
	    .help = "share of train_file held out for evaluation"),
	KEY(KEY_STRING, output_dir, VERB_ALL, .help = "where the run writes"),

	KEY(KEY_STRING, chat_template, VERB_DATA | VERB_GENERATE, .heading = "Text to tokens",
	    .help = "name of a built-in chat template; unset: the one that equals the model's own"),
	KEY(KEY_STRING, dataset_text_field, VERB_DATA, .fallback = "text", .help = "the field that holds plain text"),
	KEY(KEY_STRING, eos_token, VERB_DATA | VERB_GENERATE, .help = "end-of-sequence token; unset: the tokenizer's"),
	KEY(KEY_INTEGER, max_length, VERB_DATA, .fallback = "1024", .least = 2, .most = 1 << 24,
	    .refuse_null = "a row always has a longest length here: write it, such as 1024",
	    .help = "longest row in tokens; the end of longer ones is cut"),
	KEY(KEY_BOOL, packing, VERB_DATA, .fallback = "false", .help = "several documents in a row, kept apart"),
	KEY(KEY_CHOICE, packing_strategy, VERB_DATA, .fallback = "bfd", .choices = WORDS("bfd", "bfd_split"),
	    .help = "best fit decreasing; bfd_split goes on with overlong rows in another"),
	KEY(KEY_TRISTATE, completion_only_loss, VERB_DATA, .help = "train completions only; unset: where there is a prompt"),
	KEY(KEY_TRISTATE, assistant_only_loss, VERB_DATA, .help = "train the assistant's turns only"),

	KEY(KEY_INTEGER, per_device_train_batch_size, VERB_RUNS, .fallback = "8", .least = 1, .most = 1 << 20, .heading = "Batches and steps",
	    .help = "rows in a micro-batch"),
	KEY(KEY_INTEGER, per_device_eval_batch_size, VERB_DATA, .fallback = "8", .least = 1, .most = 1 << 20,
	    .help = "rows in a micro-batch of the evaluation"),
	KEY(KEY_INTEGER, gradient_accumulation_steps, VERB_RUNS, .fallback = "1", .least = 1, .most = 1 << 20,
	    .help = "micro-batches in a step, whatever the number of devices"),
	KEY(KEY_REAL, num_train_epochs, VERB_RUNS, .fallback = "3", .most = 1e9, .bounds = BOUND_ABOVE_LEAST, .help = "passes over the rows"),
	KEY(KEY_INTEGER, max_steps, VERB_RUNS, .fallback = "-1", .least = -1, .most = 1e12, .help = "steps instead of epochs; -1: by epochs"),
	KEY(KEY_CHOICE, train_sampling_strategy, VERB_RUNS, .fallback = "random", .choices = WORDS("random", "sequential"),
	    .help = "order of the rows in an epoch"),
	KEY(KEY_SEED, seed, VERB_ALL, .fallback = "42", .help = "of initialisation, dropout and sampling"),
	KEY(KEY_SEED, data_seed, VERB_RUNS, .help = "of the order of the rows; unset: seed"),

	KEY(KEY_REAL, learning_rate, VERB_RUNS, .fallback = "2e-5", .most = HUGE_VAL, .heading = "Optimisation", .help = "at its highest"),
	KEY(KEY_CHOICE, lr_scheduler_type, VERB_RUNS, .fallback = "linear",
	    .choices = WORDS("linear", "cosine", "constant", "constant_with_warmup"), .help = "its course; constant ignores the warm-up"),
	KEY(KEY_STEPS, warmup_steps, VERB_RUNS, .fallback = "0", .most = 1e12,
	    .help = "steps of warm-up; below 1 a share of all steps (alias: warmup_ratio)"),
	KEY(KEY_CHOICE, optim, VERB_RUNS, .fallback = "adamw_torch", .choices = WORDS("adamw_torch", "lion_32bit", "sgd", "adafactor"),
	    .help = "the optimizer"),
	KEY(KEY_STRING, optim_args, VERB_RUNS, .help = "of sgd: momentum=0.9; unset: no momentum"),
	KEY(KEY_REAL, weight_decay, VERB_RUNS, .fallback = "0", .most = HUGE_VAL, .help = "never on biases and norm weights"),
	KEY(KEY_REAL, adam_beta1, VERB_RUNS, .fallback = "0.9", .most = 1, .bounds = BOUND_BELOW_MOST, .help = "decay of the first moment"),
	KEY(KEY_REAL, adam_beta2, VERB_RUNS, .fallback = "0.999", .most = 1, .bounds = BOUND_BELOW_MOST, .help = "decay of the second moment"),
	KEY(KEY_REAL, adam_epsilon, VERB_RUNS, .fallback = "1e-8", .most = HUGE_VAL, .bounds = BOUND_ABOVE_LEAST,
	    .help = "added to the root of the second moment"),
	KEY(KEY_REAL, max_grad_norm, VERB_RUNS, .fallback = "1.0", .most = HUGE_VAL, .help = "clip the global gradient norm; 0: off"),
	{.name = "dtype", .type = KEY_CHOICE, .verbs = VERB_ALL, .offset = DRAFT(dtype), .choices = WORDS("float32", "bfloat16", "float16"),
	 .help = "of weights and activations; unset: float32 on cpu"},
	{.name = "bf16", .type = KEY_BOOL, .verbs = VERB_ALL, .offset = DRAFT(bf16), .fallback = "false", .unprinted = 1,
	 .help = "true: the same as dtype: bfloat16"},
	{.name = "fp16", .type = KEY_BOOL, .verbs = VERB_ALL, .offset = DRAFT(fp16), .fallback = "false", .unprinted = 1,
	 .help = "true: the same as dtype: float16 (cuda only)"},

	{.name = "use_peft", .type = KEY_TRISTATE, .verbs = VERB_RUNS, .offset = DRAFT(use_peft), .heading = "LoRA",
	 .help = "true: train an adapter; also with lora_r or adapter_name_or_path"},
	KEY(KEY_INTEGER, lora_r, VERB_RUNS, .fallback = "16", .least = 1, .most = 1 << 16, .lora = RH_LORA_R, .help = "rank"),
	KEY(KEY_REAL, lora_alpha, VERB_RUNS, .fallback = "32", .most = HUGE_VAL, .bounds = BOUND_ABOVE_LEAST, .lora = RH_LORA_ALPHA,
	    .help = "scale: alpha / r"),
	KEY(KEY_REAL, lora_dropout, VERB_RUNS, .fallback = "0.05", .most = 1, .bounds = BOUND_BELOW_MOST, .lora = RH_LORA_DROPOUT,
	    .help = "share of the adapter's inputs dropped in training"),
	KEY(KEY_TARGETS, lora_target_modules, VERB_RUNS, .fallback = "q_proj,v_proj", .lora = RH_LORA_TARGETS,
	    .help = "a list of names, all-linear, or a regular expression on whole names"),
	KEY(KEY_BOOL, use_rslora, VERB_RUNS, .fallback = "false", .lora = RH_LORA_RSLORA, .help = "scale: alpha / sqrt(r)"),

	KEY(KEY_INTEGER, logging_steps, VERB_RUNS, .fallback = "10", .least = 1, .most = 1e12, .heading = "Logging, evaluation, saving",
	    .help = "steps between logged lines"),
	KEY(KEY_CHOICE, eval_strategy, VERB_RUNS, .fallback = "no", .choices = WORDS("no", "steps", "epoch"), .help = "when to evaluate"),
	KEY(KEY_STEPS, eval_steps, VERB_RUNS, .most = 1e12, .bounds = BOUND_ABOVE_LEAST,
	    .help = "steps between evaluations; below 1 a share of all steps; unset: logging_steps"),
	KEY(KEY_CHOICE, save_strategy, VERB_RUNS, .fallback = "steps", .choices = WORDS("no", "steps", "epoch"), .help = "when to save"),
	KEY(KEY_STEPS, save_steps, VERB_RUNS, .fallback = "500", .most = 1e12, .bounds = BOUND_ABOVE_LEAST,
	    .help = "steps between checkpoints; below 1 a share of all steps"),
	KEY(KEY_INTEGER, save_total_limit, VERB_RUNS, .most = 1e9, .help = "checkpoints kept, the newest; unset or 0: all"),
	KEY(KEY_RESUME, resume_from_checkpoint, VERB_RUNS, .help = "a checkpoint's directory, or true: the newest in output_dir"),

	KEY(KEY_STRING, device, VERB_ALL, .heading = "Where it runs", .help = "cpu:N (N devices that share the cores), cuda (all GPUs), cuda:0,2, cuda:0,0; unset: cuda if there is one"),
	KEY(KEY_STRING, schedule, VERB_RUNS, .fallback = "roundpipe",
	    .help = "who runs what when: roundpipe, or for comparison gpipe, 1f1b, interleaved-1f1b, looped-bfs, mobius, zb-h1, zb-h2, zb-1p, zb-2p, zb-v"),
	KEY(KEY_INTEGER, round_micro_batches, VERB_ALL, .least = 1, .most = 1 << 20, .help = "micro-batches in a round; unset: chosen"),
	KEY(KEY_CUTS, forward_cuts, VERB_ALL, .help = "first layer of each forward stage but the first; unset: chosen"),
	KEY(KEY_CUTS, backward_cuts, VERB_ALL, .help = "first layer of each backward stage but the first; unset: chosen"),
	KEY(KEY_INTEGER, optimizer_staleness, VERB_RUNS, .fallback = "0", .most = 1,
	    .help = "1: a step runs on weights that lack the gradient of the one before, so that the optimizer works beside it"),
	KEY(KEY_CHOICE, state_layout, VERB_RUNS, .choices = WORDS("split", "plain", "split8"),
	    .help = "of masters and moments on the host; unset: split in bfloat16 (14 bytes a parameter; plain 16, split8 8), plain in float32"),
	FIXED(accumulation, VERB_ALL, .fallback = "fp32", .choices = WORDS("fp16"), .help = "precision of sums in matrix products"),
	FIXED(accumulation_chunk, VERB_ALL, .help = "products summed in fp16 before they go to fp32"),
	FIXED(fp8, VERB_ALL, .fallback = "false", .help = "fp8 operands"),
	FIXED(spill, VERB_ALL, .fallback = "none", .help = "what may go to NVMe"),
	KEY(KEY_SIZE, max_vram, VERB_ALL, .help = "memory of a device; unset: all that is free"),
	KEY(KEY_SIZE, max_ram, VERB_ALL, .help = "host memory of the run; unset: all that is free less 2 GiB"),
	FIXED(max_nvme, VERB_ALL, .fallback = "0", .help = "bytes on NVMe"),
	FIXED(nvme_dirs, VERB_ALL, .fallback = "none", .help = "where they lie"),
	FIXED(max_nvme_writes, VERB_ALL, .fallback = "off", .help = "bytes written to NVMe over the run"),

	KEY(KEY_STRING, prompt, VERB_GENERATE, .heading = "generate", .help = "the text to go on from"),
	KEY(KEY_INTEGER, max_new_tokens, VERB_GENERATE, .fallback = "256", .least = 1, .most = 1 << 24, .help = "longest answer"),
	KEY(KEY_REAL, temperature, VERB_GENERATE, .fallback = "0", .most = HUGE_VAL, .help = "0: always the likeliest token"),
	KEY(KEY_REAL, top_p, VERB_GENERATE, .fallback = "1", .most = 1, .bounds = BOUND_ABOVE_LEAST,
	    .help = "draw from the likeliest tokens that hold this share"),

	KEY(KEY_STRING, save, VERB_DOCTOR, .heading = "doctor",
	    .help = "write the machine as a hardware profile: a file, or a name among your own; local is what plan takes for this machine"),

	{.name = "gradient_checkpointing", .type = KEY_INERT, .verbs = VERB_ALL, .heading = "Accepted without effect",
	 .help = "what is recomputed follows from the memory there is"},
	INERT("gradient_checkpointing_kwargs", "what is recomputed follows from the memory there is"),
	INERT("activation_checkpointing", "what is recomputed follows from the memory there is"),
	INERT("activation_checkpointing_kwargs", "what is recomputed follows from the memory there is"),
	INERT("attn_implementation", "there is one attention, memory-saving and exact"),
	INERT("use_liger_kernel", "norms, activations and the loss are fused kernels anyway"),
	INERT("tf32", "precision is set by dtype and accumulation"),
	INERT("report_to", "a run writes metrics.jsonl, trainer_state.json and report.html"),
	INERT("dataloader_*", "rows are tokenized once and kept in memory"),
	INERT("ddp_*", "devices share one process"),
	INERT("fsdp*", "weights and states live in host memory anyway"),
	INERT("deepspeed", "weights and states live in host memory anyway"),
};
/* clang-format on */
const size_t config_key_count = sizeof config_keys / sizeof config_keys[0];

static const struct {
	const char *name, *key;
} aliases[] = {{"warmup_ratio", "warmup_steps"}};
enum { ALIASES = sizeof aliases / sizeof aliases[0], NAME_BYTES = 64 };

int config_key_find(const char *name)
{
	for (size_t i = 0; i < ALIASES; i++)
		if (!strcmp(name, aliases[i].name))
			name = aliases[i].key;
	for (size_t i = 0; i < config_key_count; i++) {
		const char *known = config_keys[i].name;
		size_t length = strlen(known);
		if (known[length - 1] == '*' ? !strncmp(name, known, length - 1) : !strcmp(name, known))
			return (int)i;
	}
	return -1;
}

static int least_of(int a, int b)
{
	return a < b ? a : b;
}

/* Damerau-Levenshtein distance (neighbours swapped at most once), of names cut at NAME_BYTES. */
static int distance(const char *a, const char *b)
{
	int a_length = (int)strnlen(a, NAME_BYTES), b_length = (int)strnlen(b, NAME_BYTES);
	int rows[3][NAME_BYTES + 1];
	int *above2 = rows[0], *above = rows[1], *row = rows[2];
	for (int j = 0; j <= b_length; j++)
		row[j] = j;
	for (int i = 1; i <= a_length; i++) {
		int *spare = above2;
		above2 = above;
		above = row;
		row = spare;
		row[0] = i;
		for (int j = 1; j <= b_length; j++) {
			int replaced = above[j - 1] + (a[i - 1] != b[j - 1]);
			row[j] = least_of(replaced, least_of(above[j], row[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = least_of(row[j], above2[j - 2] + 1);
		}
	}
	return row[b_length];
}

/* How far `name` is from being whole words of `known`, as "epochs" is of "num_train_epochs" and "modl" nearly of "model_name_or_path":
 * edits to the nearest run of words. */
static int distance_to_words(const char *name, const char *known)
{
	int best = NAME_BYTES;
	char words[NAME_BYTES];
	for (const char *from = known; from; from = strchr(from, '_') ? strchr(from, '_') + 1 : NULL)
		for (const char *to = from; *to;) {
			to += 1 + strcspn(to + 1, "_");
			snprintf(words, sizeof words, "%.*s", (int)(to - from), from);
			best = least_of(best, distance(name, words));
		}
	return best;
}

/* "lr" of "learning_rate". */
static int is_initials(const char *name, const char *known)
{
	for (; *name && *known == *name; name++) {
		known += strcspn(known, "_");
		known += *known == '_';
	}
	return !*name && !*known;
}

/* "log" of "logging_steps", "val_file" of "validation_file": a run of words, each cut short or not. In half edits: 2, or 3 for words inside
 * the name. */
static int abbreviation_farness(const char *name, const char *known)
{
	for (const char *from = known; from; from = strchr(from, '_') ? strchr(from, '_') + 1 : NULL) {
		const char *at = name, *in = from;
		while (*at && *in) {
			if (*at == '_')
				in += strcspn(in, "_");
			if (*at != *in)
				break;
			at++, in++;
		}
		if (!*at)
			return from == known ? 2 : 3;
	}
	return NAME_BYTES;
}

/* How far a key is from what was written, in half edits: an edit is 2, and to have meant a part of the name costs 1. A part of less than
 * four letters is next to anything, so it must be written without a fault. */
static int farness(const char *name, const char *known)
{
	int far = 2 * distance(name, known), words = distance_to_words(name, known);
	size_t length = strlen(name);
	if (is_initials(name, known))
		return 0;
	if (!words || length > 3)
		far = least_of(far, 2 * words + 1);
	return length > 2 ? least_of(far, abbreviation_farness(name, known)) : far;
}

const char *config_key_nearest(const char *name)
{
	const char *nearest = NULL;
	int best = 0;
	for (size_t i = 0; i < config_key_count + ALIASES; i++) {
		const char *known = i < config_key_count ? config_keys[i].name : aliases[i - config_key_count].name;
		int far = farness(name, known);
		if (strchr(known, '*') || (nearest && far >= best))
			continue;
		best = far;
		nearest = known;
	}
	return nearest;
}

static void describe_choices(const struct config_key *key, char *out, size_t bytes)
{
	size_t used = (size_t)snprintf(out, bytes, "one of");
	for (size_t i = 0; key->choices[i] && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, "%s %s", i ? "," : "", key->choices[i]);
}

static void describe_number(const struct config_key *key, const char *what, char *out, size_t bytes)
{
	const char *above = key->bounds & BOUND_ABOVE_LEAST ? "above " : "", *below = key->bounds & BOUND_BELOW_MOST ? "below " : "";
	if (key->most >= 1e9)
		snprintf(out, bytes, *above ? "%s above %.0f" : "%s, %.0f or more", what, key->least);
	else
		snprintf(out, bytes, "%s from %s%.0f to %s%.0f", what, above, key->least, below, key->most);
}

void config_key_describe(const struct config_key *key, char *out, size_t bytes)
{
	switch (key->type) {
	case KEY_STRING:
		snprintf(out, bytes, "text");
		break;
	case KEY_INTEGER:
		describe_number(key, "a whole number", out, bytes);
		break;
	case KEY_SEED:
		snprintf(out, bytes, "a whole number, 0 or more");
		break;
	case KEY_REAL:
		describe_number(key, "a number", out, bytes);
		break;
	case KEY_STEPS:
		snprintf(out, bytes, "a whole number of steps, or a share of all steps %s 0 and below 1",
		         key->bounds & BOUND_ABOVE_LEAST ? "above" : "from");
		break;
	case KEY_BOOL:
	case KEY_TRISTATE:
		snprintf(out, bytes, "true or false");
		break;
	case KEY_CHOICE:
		describe_choices(key, out, bytes);
		break;
	case KEY_SIZE:
		snprintf(out, bytes, "a size such as 24GiB, 1.5 GB or plain bytes");
		break;
	case KEY_CUTS:
		snprintf(out, bytes, "an ascending list of layers from 1, such as [4, 8], or [] for one stage");
		break;
	case KEY_TARGETS:
		snprintf(out, bytes, "a list of names, all-linear, or a regular expression");
		break;
	case KEY_RESUME:
		snprintf(out, bytes, "true or a checkpoint's directory");
		break;
	case KEY_FIXED:
		snprintf(out, bytes, "%s so far", key->fallback ? key->fallback : "null");
		break;
	case KEY_INERT:
		snprintf(out, bytes, "anything");
		break;
	}
}

unsigned config_verb_bit(const char *verb)
{
	static const char *const names[] = {"train", "plan",  "stress",  "doctor", "generate",
	                                    "eval",  "merge", "inspect", "verify", "report"};
	for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
		if (!strcmp(verb, names[i]))
			return 1u << i;
	return VERB_ALL;
}
