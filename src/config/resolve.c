/* Resolves what depends on several keys: the device, the dtype, LoRA or full, the evaluation. Refuses contradictions and missing files. */
#include "config/config_internal.h"
#include "config/device_spec.h"
#include "config/hardware.h"

#include "core/alloc.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct resolving {
	struct config_draft *draft;
	struct rh_config *config;
	const char *verb;
	unsigned verb_bit;
	const struct config_entry *const *given;
	const char *(*default_device)(void);
	enum rh_device_kind device;
};

static const struct config_entry *given(const struct resolving *r, const char *name)
{
	const struct config_entry *entry = r->given[config_key_find(name)];
	return entry && entry->kind != VALUE_NULL ? entry : NULL;
}

static int resolve_device(struct resolving *r)
{
	struct rh_device_spec spec;
	int asks = r->default_device && r->verb_bit & VERB_MACHINE;
	const char *name = r->config->device ? r->config->device : asks ? r->default_device() : "cpu";
	const struct config_entry *entry = given(r, "device");
	if (!strcmp(name, "cpu"))
		name = "cpu:1";
	int rc = rh_device_spec_parse(name, &spec);
	if (rc)
		return config_entry_fail(entry, "%s", rh_error(rc));
	r->device = spec.kind;
	if (spec.kind == RH_DEVICE_SIM && !(r->verb_bit & VERB_FORECASTS))
		return config_entry_fail(entry, "'%s' is a simulated machine, which is for plan and stress; others need cpu, cpu:N or cuda",
		                         config_show(name).text);
	if (spec.kind == RH_DEVICE_SIM) { /* what the devices are decides the dtype */
		struct rh_hardware hardware;
		rc = rh_hardware_find(spec.profile, &hardware);
		if (rc)
			return rc;
		r->device = hardware.device.on_host_cores ? RH_DEVICE_CPU : RH_DEVICE_CUDA;
		rh_hardware_free(&hardware);
	}
	char *copy = rh_strdup(name);
	if (!copy)
		return -ENOMEM;
	rh_free(r->config->device);
	r->config->device = copy;
	return 0;
}

static int resolve_dtype(struct resolving *r)
{
	static const char *const names[] = {"float32", "bfloat16", "float16"};
	int wanted = r->draft->dtype;
	const char *flag = r->draft->bf16 ? "bf16" : r->draft->fp16 ? "fp16" : NULL;
	if (r->draft->bf16 && r->draft->fp16)
		return config_entry_fail(given(r, "fp16"), "true contradicts bf16: true; keep one of them");
	if (flag) {
		int meant = r->draft->bf16 ? DTYPE_BFLOAT16 : DTYPE_FLOAT16;
		if (wanted >= 0 && wanted != meant)
			return config_entry_fail(given(r, flag), "true contradicts dtype: %s; keep one of them", names[wanted]);
		wanted = meant;
	}
	if (wanted == DTYPE_FLOAT16)
		return config_entry_fail(given(r, flag ? flag : "dtype"), "float16 is not built yet; float32 and bfloat16 work%s",
		                         flag ? ": remove it, or write bf16: true" : "");
	int wide = wanted < 0 ? r->device == RH_DEVICE_CPU : wanted != DTYPE_BFLOAT16;
	r->config->dtype = wide ? RH_F32 : RH_BF16;
	return 0;
}

/* Tensor cores' ways of multiplying, for verbs that run the model. */
static int resolve_products(struct resolving *r)
{
	enum { DEFAULT_CHUNK = 128, UNIT = 32 };
	struct rh_config *config = r->config;
	const struct config_entry *chunk = given(r, "accumulation_chunk");
	int narrow = config->accumulation == RH_ACCUMULATION_FP16;
	const struct config_entry *asks = config->fp8 ? given(r, "fp8") : narrow ? given(r, "accumulation") : NULL;
	if (chunk && !narrow)
		return config_entry_fail(chunk, "has no effect without accumulation: fp16; add it or remove this");
	if (chunk && config->accumulation_chunk % UNIT)
		return config_entry_fail(chunk, "'%lld' is not allowed; expected a multiple of %d", (long long)config->accumulation_chunk,
		                         UNIT);
	if (config->fp8 && narrow)
		return config_entry_fail(asks,
		                         "true contradicts accumulation: fp16, as products of 8 bits are summed in fp32; keep one of them");
	if (narrow && !chunk)
		config->accumulation_chunk = DEFAULT_CHUNK;
	if (!asks || !(r->verb_bit & (VERB_DATA | VERB_SPEAKS)))
		return 0;
	if (r->device == RH_DEVICE_CPU)
		return config_entry_fail(asks, "is a way of GPUs' tensor cores, and device is %s; use device: cuda, or remove this",
		                         config->device);
	if (config->dtype != RH_BF16)
		return config_entry_fail(asks, "needs dtype: bfloat16; float32 asks for products in fp32");
	return 0;
}

/* optim_args as TrainingArguments has them: name=value, ...; sgd's momentum is the one that is taken. */
static int resolve_optim_args(struct resolving *r)
{
	struct rh_config *config = r->config;
	const struct config_entry *entry = given(r, "optim_args");
	config->momentum = 0;
	if (!config->optim_args)
		return 0;
	const char *text = config->optim_args;
	if (strncmp(text, "momentum=", 9) || config_parse_real(text + 9, &config->momentum) || config->momentum < 0 ||
	    config->momentum >= 1)
		return config_entry_fail(entry, "'%s' is not allowed; expected momentum=NUMBER from 0 to below 1", config_show(text).text);
	if (config->optim != RH_OPTIM_SGD)
		return config_entry_fail(entry, "momentum is for optim: sgd; remove it or change optim");
	return 0;
}

/* Who writes that embeddings do not decay expects that something else does, and that embeddings are trained. */
static int check_decay(struct resolving *r)
{
	const struct rh_config *config = r->config;
	const struct config_entry *entry = given(r, "decay_embeddings");
	if (!entry || config->decay_embeddings || !(r->verb_bit & VERB_RUNS))
		return 0;
	if (config->weight_decay == 0)
		return config_entry_fail(entry, "has no effect without weight_decay; add it or remove this");
	if (config->use_lora && !config->lora_modules_to_save.count && !config->adapter_name_or_path)
		return config_entry_fail(entry,
		                         "has no effect where no embedding is trained: name it in lora_modules_to_save, or remove this");
	return 0;
}

static int resolve_scheduler(struct resolving *r)
{
	if (!(r->verb_bit & VERB_RUNS))
		return 0;
	return config_resolve_scheduler(r->config, given(r, "lr_scheduler_type"), given(r, "lr_scheduler_kwargs"));
}

static int check_loraplus(struct resolving *r)
{
	const struct rh_config *config = r->config;
	if (!(r->verb_bit & VERB_RUNS) || config->loraplus_lr_ratio == 1 || config->use_lora)
		return 0;
	return config_entry_fail(given(r, "loraplus_lr_ratio"), "has no effect where all weights are trained; add lora_r or remove it");
}

static int resolve_optimizer(struct resolving *r)
{
	struct rh_config *config = r->config;
	const struct config_entry *entry = given(r, "state_layout");
	int narrow = entry && config->state_layout == RH_LAYOUT_SPLIT8;
	if (narrow && config->dtype == RH_F32)
		return config_entry_fail(entry, "split8 needs dtype: bfloat16; in float32 use plain");
	if (narrow && config->optim != RH_OPTIM_ADAMW)
		return config_entry_fail(entry, "split8 is for the moments of optim: adamw_torch; use split or plain");
	if (config->dtype == RH_F32) /* its master is the upload form */
		config->state_layout = RH_LAYOUT_PLAIN;
	else if (!entry)
		config->state_layout = RH_LAYOUT_SPLIT;
	return resolve_optim_args(r);
}

static int resolve_date(struct resolving *r)
{
	struct tm date = {0};
	const char *text = r->config->chat_template_date, *end = text ? strptime(text, "%Y-%m-%d", &date) : NULL;
	if (!text || (end && !*end && strlen(text) == 10))
		return 0;
	return config_entry_fail(given(r, "chat_template_date"), "'%s' is not allowed; expected a day such as 2024-07-26",
	                         config_show(text).text);
}

static int resolve_lora(struct resolving *r)
{
	struct rh_config *config = r->config;
	const struct config_entry *stray = NULL;
	int keys = 0;
	/* a file that trained an adapter serves to evaluate and to generate with it too: what it says of training is no matter then */
	if (!(r->verb_bit & VERB_RUNS)) {
		config->use_lora = config->adapter_name_or_path != NULL;
		return 0;
	}
	for (size_t i = 0; i < config_key_count; i++) {
		const struct config_entry *entry = r->given[i];
		if (!config_keys[i].lora || !entry || entry->kind == VALUE_NULL)
			continue;
		keys |= config_keys[i].lora;
		stray = stray ? stray : entry;
	}
	config->use_lora = (keys & RH_LORA_R) || r->draft->use_peft == RH_YES || config->adapter_name_or_path;
	if (r->draft->use_peft == RH_NO && config->use_lora)
		return config_entry_fail(given(r, "use_peft"), "false contradicts %s; remove one of them",
		                         keys & RH_LORA_R ? "lora_r" : "adapter_name_or_path");
	if (stray && !config->use_lora)
		return config_entry_fail(stray,
		                         "has no effect without lora_r, use_peft: true or adapter_name_or_path; add one or remove it");
	config->lora_targets_given = config->use_lora && (keys & RH_LORA_TARGETS);
	config->lora_dropout_given = config->use_lora && (keys & RH_LORA_DROPOUT);
	config->lora_keys_given = config->adapter_name_or_path ? keys : 0;
	return 0;
}

const enum rh_form config_forms[QUANTIZES][2] = {[QUANTIZE_NONE] = {RH_FORM_PLAIN, RH_FORM_PLAIN},
                                                 [QUANTIZE_NF4] = {RH_FORM_NF4, RH_FORM_NF4_NESTED},
                                                 [QUANTIZE_FP4] = {RH_FORM_BNB_FP4, RH_FORM_BNB_FP4_NESTED},
                                                 [QUANTIZE_INT8] = {RH_FORM_INT8, RH_FORM_INT8},
                                                 [QUANTIZE_FP8] = {RH_FORM_FP8_BLOCKS, RH_FORM_FP8_BLOCKS},
                                                 [QUANTIZE_Q4_0] = {RH_FORM_Q4_0, RH_FORM_Q4_0},
                                                 [QUANTIZE_Q8_0] = {RH_FORM_Q8_0, RH_FORM_Q8_0},
                                                 [QUANTIZE_MXFP4] = {RH_FORM_MXFP4, RH_FORM_MXFP4}};

/* One of the keys says how frozen matrices are packed. */
static int resolve_quantize(struct resolving *r)
{
	const struct config_draft *draft = r->draft;
	const struct config_entry *type = given(r, "bnb_4bit_quant_type"), *nested = given(r, "bnb_4bit_use_double_quant");
	const struct config_entry *asks = given(r, draft->load_in_4bit   ? "load_in_4bit"
	                                           : draft->load_in_8bit ? "load_in_8bit"
	                                                                 : "quantize");
	int word = draft->quantize, is_four_bits;
	if (draft->load_in_4bit + draft->load_in_8bit + (word != QUANTIZE_NONE) > 1)
		return config_entry_fail(asks, "load_in_4bit, load_in_8bit and quantize contradict each other; keep one of them");
	if (draft->load_in_4bit)
		word = type && draft->bnb_type ? QUANTIZE_FP4 : QUANTIZE_NF4;
	if (draft->load_in_8bit)
		word = QUANTIZE_INT8;
	is_four_bits = word == QUANTIZE_NF4 || word == QUANTIZE_FP4;
	if (type && !draft->load_in_4bit)
		return config_entry_fail(type, "has no effect without load_in_4bit: true; add it or remove this");
	if (nested && !is_four_bits)
		return config_entry_fail(nested,
		                         "has no effect without load_in_4bit: true, or quantize: nf4 or fp4; add one or remove this");
	r->config->quantize = config_forms[word][draft->bnb_nested != RH_NO];
	if (word != QUANTIZE_NONE && r->verb_bit & VERB_RUNS && !r->config->use_lora)
		return config_entry_fail(asks,
		                         "packed weights are not trained, an adapter beside them is: add use_peft: true, or remove this");
	return 0;
}

static int resolve_evaluation(struct resolving *r)
{
	struct rh_config *config = r->config;
	if (config->eval_steps == 0)
		config->eval_steps = (double)config->logging_steps;
	if (config->validation_file.count && config->eval_split > 0 && (r->verb_bit & VERB_RUNS))
		return config_entry_fail(given(r, "eval_split"), "contradicts validation_file; keep one of them");
	if (config->eval_split > 0 && r->verb_bit == VERB_EVAL && !config->train_file.count)
		return config_entry_fail(given(r, "eval_split"), "is a share of train_file's rows; give it, or validation_file");
	if (config->eval_strategy != RH_WHEN_NO && r->verb_bit == VERB_TRAIN && !config->validation_file.count && config->eval_split == 0 &&
	    config->box <= 1) /* which has the rows */
		return config_entry_fail(given(r, "eval_strategy"), "needs rows to evaluate on: give validation_file or eval_split");
	return 0;
}

static int check_samples(struct resolving *r)
{
	enum { PROMPT_MOST = 1 << 14, TOKENS = 64 };
	const struct rh_config *config = r->config;
	const struct rh_list *prompts = &config->sample_prompts;
	const struct config_entry *entry = given(r, "sample_prompts"), *tokens = given(r, "sample_max_new_tokens");
	if (!(r->verb_bit & VERB_RUNS))
		return 0;
	if (tokens && config->sample_max_new_tokens != TOKENS && !prompts->count)
		return config_entry_fail(tokens, "has no effect without sample_prompts; add them or remove it");
	if (!prompts->count)
		return 0;
	if (config->eval_strategy == RH_WHEN_NO)
		return config_entry_fail(entry, "are asked at each evaluation, and there is none; give eval_strategy, or remove them");
	if (config->mode != RH_MODE_LOCAL)
		return config_entry_fail(entry, "are asked by a box that has the whole model; with mode: %s none has it, remove them",
		                         config_keys[config_key_find("mode")].choices[config->mode]);
	if (prompts->count > RH_SAMPLES_MOST)
		return config_entry_fail(entry, "are %zu; up to %d are asked", prompts->count, RH_SAMPLES_MOST);
	for (size_t i = 0; i < prompts->count; i++)
		if (strlen(prompts->item[i]) > PROMPT_MOST || !config_utf8_valid(prompts->item[i]))
			return config_entry_fail(entry, "'%.40s' is %s", config_show(prompts->item[i]).text,
			                         config_utf8_valid(prompts->item[i]) ? "longer than 16 KiB; shorten it" : "not UTF-8");
	return 0;
}

static int resolve_data(struct resolving *r)
{
	const struct rh_config *config = r->config;
	const struct config_entry *entry = given(r, "data_weights");
	if (!config->data_weights.count || !config->train_file.count)
		return 0;
	if (config->data_weights.count != config->train_file.count)
		return config_entry_fail(entry, "%zu numbers for %zu files of train_file; give one for each", config->data_weights.count,
		                         config->train_file.count);
	for (size_t i = 0; i < config->data_weights.count; i++) {
		double weight = strtod(config->data_weights.item[i], NULL);
		if (weight > 1 && config->eval_split > 0)
			return config_entry_fail(entry, "above 1 puts copies of a row on both sides of eval_split; use validation_file");
	}
	return 0;
}

static int resolve_spill(struct resolving *r)
{
	struct rh_config *config = r->config;
	const struct config_entry *entry = given(r, "spill");
	if (config->spill & RH_SPILL_AUTO && config->spill != RH_SPILL_AUTO)
		return config_entry_fail(entry, "auto chooses for itself; write it alone");
	int uses_nvme = config->spill || config->fluidpipe_idle_spill;
	if (!config->spill)
		entry = given(r, "fluidpipe_idle_spill");
	if (uses_nvme && !config->nvme_dirs.count)
		return config_entry_fail(entry, "needs nvme_dirs, the directories that it may use, ideally one on each disk");
	if (uses_nvme && !config->max_nvme)
		return config_entry_fail(entry, "needs max_nvme, the bytes that it may use there");
	static const char *const idle[] = {"nvme_dirs", "max_nvme", "max_nvme_writes"};
	for (size_t i = 0; i < sizeof idle / sizeof idle[0] && !uses_nvme && r->verb_bit != VERB_DOCTOR; i++)
		if (given(r, idle[i]) && (i == 0   ? config->nvme_dirs.count > 0
		                          : i == 1 ? config->max_nvme > 0
		                                   : config->max_nvme_writes > 0))
			return config_entry_fail(given(r, idle[i]), "has no effect without spill; write spill: auto, or remove it");
	return 0;
}

static int check_steps(struct resolving *r)
{
	if (r->config->max_steps == 0)
		return config_entry_fail(given(r, "max_steps"),
		                         "'0' is not allowed; expected a number of steps, or -1 for num_train_epochs");
	return 0;
}

static int check_model(struct resolving *r)
{
	const struct config_entry *entry = given(r, "config_name");
	if (entry && r->config->model_name_or_path && (r->verb_bit & VERB_RUNS))
		return config_entry_fail(entry, "means random initialisation and contradicts model_name_or_path; keep one of them");
	return 0;
}

static int resolve_boxes(struct resolving *r)
{
	if (r->config->check && r->config->paci_backward == RH_BACKWARD_STASH)
		return config_entry_fail(given(r, "paci_backward"), "--check does not follow the stash's versions: leave one of them out");
	if (r->verb_bit == VERB_VERIFY && r->config->mode != RH_MODE_LOCAL)
		return config_entry_fail(given(r, "mode"), "verify checks the gradients of one box; add --mode local");
	if (r->verb_bit & VERB_FORECASTS && r->config->mode != RH_MODE_LOCAL) {
		if (r->config->check || r->config->gantt || (r->config->compare && r->config->mode != RH_MODE_FLUIDPIPE))
			return config_entry_fail(given(r, "mode"),
			                         "--compare, --check and --gantt are for one box, --compare for mode fluidpipe too: "
			                         "add --mode local");
		if (!r->config->box) /* all are planned */
			r->config->box = 1;
	}
	return r->verb_bit & VERB_RUNS ? config_resolve_boxes(r->draft, r->given, !(r->verb_bit & VERB_FORECASTS)) : 0;
}

static int resolve_preference(struct resolving *r)
{
	return r->verb_bit & VERB_DATA ? config_resolve_preference(r->draft, r->given, (r->verb_bit & VERB_RUNS) != 0) : 0;
}

static int check_prompt(struct resolving *r)
{
	const struct config_entry *file = given(r, "prompt_file");
	return file && given(r, "prompt") ? config_entry_fail(file, "contradicts prompt; keep one of them") : 0;
}

/* An adapter is small, and llama.cpp's own converter writes it so. */
static int resolve_outtype(struct resolving *r)
{
	enum { F32 };
	if (r->verb_bit == VERB_EXPORT && r->config->adapter_name_or_path && !given(r, "outtype"))
		r->config->outtype = F32;
	return 0;
}

/* Given, and not an empty list. */
static int is_filled(const struct resolving *r, const char *name)
{
	const struct config_key *key = &config_keys[config_key_find(name)];
	const struct rh_list *list = (const struct rh_list *)(const void *)((const char *)r->draft + key->offset);
	return given(r, name) && ((key->type != KEY_LIST && key->type != KEY_PATHS) || list->count);
}

static int check_required(struct resolving *r)
{
	static const struct {
		unsigned verbs;
		const char *key, *instead;
	} needs[] = {
	        {VERB_RUNS, "model_name_or_path", "config_name"},
	        {VERB_SPEAKS | VERB_EVAL | VERB_WRITES, "model_name_or_path", NULL},
	        {VERB_MERGE, "adapter_name_or_path", NULL},
	        {VERB_JOIN, "parts", NULL},
	        {VERB_JOIN, "output_dir", NULL},
	        {VERB_TRAIN | VERB_VERIFY, "train_file", NULL},
	        {VERB_TRAIN, "output_dir", NULL},
	        {VERB_GENERATE, "prompt", "prompt_file"},
	        {VERB_EVAL, "validation_file", "eval_split"},
	        {VERB_INSPECT, "model_name_or_path", NULL},
	        {VERB_INSPECT, "train_file", "validation_file"},
	};
	for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++) {
		if (r->verb_bit == VERB_ALL || !(needs[i].verbs & r->verb_bit) || is_filled(r, needs[i].key))
			continue;
		if (needs[i].instead && is_filled(r, needs[i].instead))
			continue;
		if (r->verb_bit == VERB_GENERATE && is_filled(r, "messages_file")) /* its last message is the prompt */
			continue;
		if (r->config->box > 1 && !strcmp(needs[i].key, "train_file")) /* box 1 has the rows */
			continue;
		return rh_fail(-EINVAL, "%s needs %s%s%s; write it in CONFIG.yaml or give --%s%s", r->verb, needs[i].key,
		               needs[i].instead ? " or " : "", needs[i].instead ? needs[i].instead : "", needs[i].key,
		               !strcmp(r->verb, "merge") && !strcmp(needs[i].key, "adapter_name_or_path")
		                       ? " (export writes a model without an adapter)"
		                       : "");
	}
	return 0;
}

static int check_files(struct resolving *r)
{
	return config_resolve_paths(r->draft, r->verb_bit, r->given);
}

int config_resolve(struct config_draft *draft, const char *verb, const struct config_entry *const *entries,
                   const char *(*default_device)(void))
{
	static int (*const parts[])(struct resolving *) = {
	        resolve_device,   resolve_dtype,   resolve_products,   resolve_optimizer,  resolve_scheduler, resolve_lora,
	        resolve_quantize, check_decay,     check_loraplus,     resolve_evaluation, resolve_data,      resolve_spill,
	        check_steps,      check_model,     resolve_boxes,      check_prompt,       check_required,    check_files,
	        resolve_date,     resolve_outtype, resolve_preference, check_samples};
	struct resolving r = {draft, &draft->config, verb, config_verb_bit(verb), entries, default_device, RH_DEVICE_CPU};
	const struct config_entry *seed = given(&r, "data_seed");
	if (!seed)
		draft->config.data_seed = draft->config.seed;
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		int rc = parts[i](&r);
		if (rc)
			return rc;
	}
	return 0;
}
