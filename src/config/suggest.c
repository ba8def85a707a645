/* Suggests a key for a name that is none: the key of this program for another trainer's name, or the nearest key. */
#include "config/config_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64 };

#define NOT_BUILT   "it is not built yet; remove it"
#define PREFERENCES "training on preferences or rewards (dpo, kto, orpo, ppo, rm) is not built yet"
#define ALWAYS      "it is always so here; remove it"
#define LOGS        "a run writes metrics.jsonl, and what report_to names (tensorboard, csv), and reports nowhere else; remove it"
#define VERBS_SAY   "the verb says it: train, eval or generate; remove it"
#define LORA        "true, LoRA over weights in dtype (qlora's in 4 bits are not built yet), or leave both out for full fine-tuning"
#define REREADS     "each run reads its rows anew and keeps nothing of them; remove it"
#define KERNELS     "which kernels run is no choice; remove it"
#define ATTENTION   "there is one attention, memory-saving and exact; remove it"

/* Names that Hugging Face's own trainers, Axolotl, LLaMA-Factory, torchtune and Unsloth have. A key: what it is called here; a note: what
 * else there is to say. A name that ends in '*' is a prefix. */
static const struct {
	const char *name, *key, *note;
	int accepted; /* another name for the same, taken as the key */
} elsewhere[] = {
        {"warmup_ratio", "warmup_steps", NULL, 1},

        {"base_model", "model_name_or_path", NULL, 0},
        {"model", "model_name_or_path", NULL, 0},
        {"model_name", "model_name_or_path", NULL, 0},
        {"model_path", "model_name_or_path", NULL, 0},
        {"model_type", NULL, "config.json says it; remove it", 0},
        {"adapter", "use_peft", LORA, 0},
        {"finetuning_type", "use_peft", LORA, 0},
        {"full_finetuning", NULL, "all weights are trained where no lora_ key is given; remove it", 0},
        {"stage", NULL, "train is supervised fine-tuning (sft; of rows of text, pt); remove it if that is meant; " PREFERENCES, 0},
        {"rl", NULL, PREFERENCES, 0},
        {"rl_beta", NULL, PREFERENCES, 0},
        {"beta", NULL, PREFERENCES, 0},
        {"loss_type", NULL, PREFERENCES, 0},
        {"trl", NULL, PREFERENCES, 0},
        {"pref_*", NULL, PREFERENCES, 0},
        {"dpo_*", NULL, PREFERENCES, 0},
        {"kto_*", NULL, PREFERENCES, 0},
        {"orpo_*", NULL, PREFERENCES, 0},
        {"ppo_*", NULL, PREFERENCES, 0},
        {"simpo_*", NULL, PREFERENCES, 0},
        {"grpo_*", NULL, PREFERENCES, 0},
        {"ref_model*", NULL, PREFERENCES, 0},
        {"reward_*", NULL, PREFERENCES, 0},
        {"max_prompt_length", NULL, PREFERENCES, 0},
        {"max_completion_length", NULL, PREFERENCES, 0},
        {"lora_model_dir", "adapter_name_or_path", NULL, 0},
        {"peft_model_id", "adapter_name_or_path", NULL, 0},
        {"tokenizer_*", NULL, "the tokenizer is the model's own; remove it", 0},
        {"datasets", "train_file", "a path, or a list of paths", 0},
        {"dataset", "train_file", "a path, or a list of paths", 0},
        {"dataset_name", "train_file", "a path, or a list of paths; nothing is downloaded", 0},
        {"dataset_path", "train_file", "a path, or a list of paths", 0},
        {"data_path", "train_file", "a path, or a list of paths", 0},
        {"dataset_dir", "dataset_info", "the path of dataset_info.json, in which train_file then is a name", 0},
        {"test_datasets", "validation_file", "a path, or a list of paths", 0},
        {"eval_dataset", "validation_file", "a path, or a list of paths", 0},
        {"eval_dataset_path", "validation_file", "a path, or a list of paths", 0},
        {"dataset_prepared_path", NULL, REREADS, 0},
        {"overwrite_cache", NULL, REREADS, 0},
        {"interleave_probs", "data_weights", "how often each file's rows are in an epoch", 0},
        {"mix_strategy", NULL, "files follow one another and rows are shuffled; data_weights says how often each is taken; remove it", 0},
        {"val_set_size", "eval_split", "a share of the rows", 0},
        {"val_size", "eval_split", "a share of the rows", 0},
        {"overwrite_output_dir", NULL,
         "results are never overwritten: choose another output_dir, or go on with resume_from_checkpoint: true", 0},
        {"do_train", NULL, VERBS_SAY, 0},
        {"do_eval", NULL, VERBS_SAY, 0},
        {"do_predict", NULL, VERBS_SAY, 0},

        {"template", "chat_template", NULL, 0},
        {"chat_template_jinja", "chat_template", "a built-in name, or the path of a file that holds the Jinja text", 0},
        {"sequence_len", "max_length", NULL, 0},
        {"max_seq_length", "max_length", NULL, 0},
        {"max_seq_len", "max_length", NULL, 0},
        {"model_max_length", "max_length", NULL, 0},
        {"cutoff_len", "max_length", NULL, 0},
        {"block_size", "max_length", NULL, 0},
        {"sample_packing", "packing", NULL, 0},
        {"eval_sample_packing", NULL, "rows are not packed in evaluation; remove it", 0},
        {"padding_free", NULL, ALWAYS, 0},
        {"pad_to_*", NULL, "nothing is padded; remove it", 0},
        {"padding_side", NULL, "nothing is padded; remove it", 0},
        {"pad_token", NULL, "nothing is padded; remove it", 0},
        {"bos_token", NULL, "the tokenizer is the model's own; remove it", 0},
        {"special_tokens", NULL, "the tokenizer is the model's own (eos_token names another end of sequence); remove it", 0},
        {"train_on_inputs", NULL,
         "its opposite is assistant_only_loss (for messages) or completion_only_loss (for prompt and completion): true trains answers "
         "alone",
         0},
        {"train_on_responses_only", "assistant_only_loss", "true (for messages; for prompt and completion: completion_only_loss)", 0},
        {"random_state", "seed", NULL, 0},
        {"remove_unused_columns", NULL, "what a row holds beside its text is ignored; remove it", 0},
        {"dataset_num_proc", NULL, "rows are tokenized by this one process; remove it", 0},
        {"preprocessing_num_workers", NULL, "rows are tokenized by this one process; remove it", 0},
        {"group_by_length", NULL, "nothing is padded, so nothing is won by it; remove it", 0},

        {"micro_batch_size", "per_device_train_batch_size", NULL, 0},
        {"batch_size", "per_device_train_batch_size", NULL, 0},
        {"train_batch_size", "per_device_train_batch_size", NULL, 0},
        {"eval_batch_size", "per_device_eval_batch_size", NULL, 0},
        {"gradient_accumulation", "gradient_accumulation_steps", NULL, 0},
        {"grad_accum", "gradient_accumulation_steps", NULL, 0},
        {"accumulate_grad_batches", "gradient_accumulation_steps", NULL, 0},
        {"auto_find_batch_size", NULL, NOT_BUILT, 0},
        {"num_epochs", "num_train_epochs", NULL, 0},
        {"epochs", "num_train_epochs", NULL, 0},
        {"optimizer", "optim", NULL, 0},
        {"lr", "learning_rate", NULL, 0},
        {"lr_scheduler", "lr_scheduler_type", NULL, 0},
        {"scheduler", "lr_scheduler_type", NULL, 0},
        {"warmup", "warmup_steps", NULL, 0},
        {"clip_grad_norm", "max_grad_norm", NULL, 0},
        {"gradient_clipping", "max_grad_norm", NULL, 0},
        {"moe_aux_loss_coef", "router_aux_loss_coef", NULL, 0},
        {"neftune_noise_alpha", NULL, NOT_BUILT, 0},
        {"label_smoothing_factor", NULL, NOT_BUILT, 0},
        {"average_tokens_across_devices", NULL, ALWAYS, 0},
        {"full_determinism", NULL, ALWAYS, 0},

        {"lora_rank", "lora_r", NULL, 0},
        {"rank", "lora_r", NULL, 0},
        {"lora_target", "lora_target_modules", "a list of names, or all-linear for all", 0},
        {"target_modules", "lora_target_modules", NULL, 0},
        {"target_parameters", "lora_target_parameters", NULL, 1},
        {"lora_target_linear", "lora_target_modules", "all-linear", 0},
        {"peft_use_rslora", "use_rslora", NULL, 0},
        {"use_dora", NULL, "DoRA is not built yet; remove it", 0},
        {"peft_use_dora", NULL, "DoRA is not built yet; remove it", 0},
        {"merge_lora", NULL, "the verb merge does it; remove it", 0},
        {"lora_bias", NULL, "biases are never trained by an adapter here; remove it", 0},
        {"bias", NULL, "biases are never trained by an adapter here; remove it", 0},
        {"lora_fan_in_fan_out", NULL, "config.json says it; remove it", 0},
        {"lora_mlp_kernel", NULL, KERNELS, 0},
        {"lora_qkv_kernel", NULL, KERNELS, 0},
        {"lora_o_kernel", NULL, KERNELS, 0},
        {"modules_to_save", "lora_modules_to_save", NULL, 1},
        {"use_bnb_nested_quant", "bnb_4bit_use_double_quant", NULL, 1},
        {"quantization*", "quantize", NULL, 0},

        {"evaluation_strategy", "eval_strategy", NULL, 0},
        {"logging_strategy", "logging_steps", NULL, 0},
        {"logging_first_step", NULL, NOT_BUILT, 0},
        {"logging_dir", "output_dir", "metrics.jsonl lies in it", 0},
        {"saves_per_epoch", "save_steps", "a number of steps, or a share of all", 0},
        {"evals_per_epoch", "eval_steps", "a number of steps, or a share of all", 0},
        {"save_safetensors", NULL, ALWAYS, 0},
        {"save_only_model", NULL, NOT_BUILT, 0},
        {"auto_resume_from_checkpoints", "resume_from_checkpoint", "true", 0},
        {"run_name", NULL, LOGS, 0},
        {"wandb_*", NULL, LOGS, 0},
        {"use_wandb", NULL, LOGS, 0},
        {"mlflow_*", NULL, LOGS, 0},
        {"comet_*", NULL, LOGS, 0},
        {"project", NULL, LOGS, 0},
        {"plot_loss", NULL, LOGS, 0},
        {"eval_table_size", NULL, LOGS, 0},
        {"strict", NULL, "an unknown key is always an error here; remove it", 0},
        {"debug", NULL, "there is no such mode (verbose: true tells more); remove it", 0},
        {"log_level", NULL, "there is one; remove it", 0},
        {"disable_tqdm", NULL, "a bar is drawn on terminals only; remove it", 0},
        {"hub_*", NULL, "nothing is uploaded; remove it", 0},
        {"push_to_hub", NULL, "nothing is uploaded; remove it", 0},

        {"torch_dtype", "dtype", NULL, 0},
        {"precision", "dtype", NULL, 0},
        {"use_cpu", "device", "cpu", 0},
        {"gpu_memory_limit", "max_vram", NULL, 0},
        {"use_gradient_checkpointing", NULL, ALWAYS, 0},
        {"no_cuda", "device", "cpu", 0},
        {"device_map", "device", "cuda takes all GPUs", 0},
        {"num_gpus", "device", "cuda takes all GPUs, cuda:0,1 two of them", 0},
        {"local_rank", NULL, "one process runs all devices; remove it", 0},
        {"torch_compile*", NULL, "there is nothing to compile; remove it", 0},
        {"trust_remote_code", NULL, "no code of a model's is run; remove it", 0},
        {"flash_attn*", NULL, ATTENTION, 0},
        {"flash_attention*", NULL, ATTENTION, 0},
        {"xformers_attention", NULL, ATTENTION, 0},
        {"sdp_attention", NULL, ATTENTION, 0},
        {"use_cache", NULL, "generate always keeps keys and values, train never; remove it", 0},
        {"max_tokens", "max_new_tokens", NULL, 0},
        {"do_sample", "temperature", "above 0 samples", 0},
        {"top_k", NULL, "it is not built yet; top_p is", 0},
        {"repetition_penalty", NULL, NOT_BUILT, 0},
};
enum { ELSEWHERE = sizeof elsewhere / sizeof elsewhere[0] };

static int is_name(const char *known, const char *name)
{
	size_t length = strlen(known);
	return known[length - 1] == '*' ? !strncmp(name, known, length - 1) : !strcmp(name, known);
}

const char *config_alias_key(const char *name)
{
	for (size_t i = 0; i < ELSEWHERE; i++)
		if (elsewhere[i].accepted && !strcmp(elsewhere[i].name, name))
			return elsewhere[i].key;
	return name;
}

static int least_of(int a, int b)
{
	return a < b ? a : b;
}

/* Damerau-Levenshtein distance (neighbours swapped at most once), of names cut at NAME_BYTES; another letter in place of one costs
 * `replacing`. */
static int distance(const char *a, const char *b, int replacing)
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
			int replaced = above[j - 1] + (a[i - 1] != b[j - 1] ? replacing : 0);
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
	int best = NAME_BYTES, length = (int)strnlen(name, NAME_BYTES);
	char words[NAME_BYTES];
	for (const char *from = known; from; from = strchr(from, '_') ? strchr(from, '_') + 1 : NULL)
		for (const char *to = from; *to;) {
			to += 1 + strcspn(to + 1, "_");
			if (abs((int)(to - from) - length) >= best) /* so many edits at least */
				continue;
			snprintf(words, sizeof words, "%.*s", (int)(to - from), from);
			best = least_of(best, distance(name, words, 2)); /* one letter replaced is most often another word: stage, state */
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
	int far = 2 * distance(name, known, 1), words = distance_to_words(name, known);
	size_t length = strlen(name);
	if (is_initials(name, known))
		return 0;
	if (!words || length > 3)
		far = least_of(far, 2 * words + 1);
	return length > 2 ? least_of(far, abbreviation_farness(name, known)) : far;
}

/* The nearest of the keys that one of `verbs` has a use for. Other trainers' names stand for their keys. */
static const char *nearest_of(const char *name, unsigned verbs, int *farness_of_it)
{
	const char *nearest = NULL;
	for (size_t i = 0; i < config_key_count + ELSEWHERE; i++) {
		const char *known = i < config_key_count ? config_keys[i].name : elsewhere[i - config_key_count].name;
		const char *key = i < config_key_count ? known : elsewhere[i - config_key_count].key;
		if (!key || strchr(known, '*'))
			continue;
		int index = config_key_find(key);
		RH_ASSERT(index >= 0);
		if (!(config_keys[index].verbs & verbs))
			continue;
		int far = farness(name, known);
		if (nearest && far >= *farness_of_it)
			continue;
		*farness_of_it = far;
		nearest = key;
	}
	return nearest;
}

/* A third of the letters wrong: what is farther was not meant. */
static int is_near(const char *name, int far)
{
	int most = (int)strnlen(name, NAME_BYTES) / 3;
	return far <= 2 * (most ? most : 1) + 1;
}

void config_suggest(const char *name, const char *verb, enum config_origin origin, char *out, size_t bytes)
{
	const struct config_shown shown = config_show(name);
	for (size_t i = 0; i < ELSEWHERE; i++) {
		const char *key = elsewhere[i].key, *note = elsewhere[i].note;
		if (!is_name(elsewhere[i].name, name))
			continue;
		if (key)
			snprintf(out, bytes, "unknown key '%s'; here it is %s%s%s", shown.text, key, note ? ": " : "", note ? note : "");
		else
			snprintf(out, bytes, "unknown key '%s': %s", shown.text, note);
		return;
	}
	int far = 0;
	unsigned bit = config_verb_bit(verb);
	const char *nearest = nearest_of(name, bit, &far);
	if (origin == ORIGIN_FILE && !is_near(name, far)) /* a file may hold other verbs' keys */
		nearest = nearest_of(name, VERB_ALL, &far);
	if (is_near(name, far))
		snprintf(out, bytes, "unknown key '%s'; the nearest known one is %s", shown.text, nearest);
	else
		snprintf(out, bytes, "unknown key '%s'; `roundhouse %s --help` lists all", shown.text, verb);
}
