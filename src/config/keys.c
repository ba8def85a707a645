/* The table of keys; names and defaults are those of Hugging Face TrainingArguments and TRL's SFTConfig and ModelConfig where they have
 * one. It drives parsing, defaults, checks, printing and --help. */
#include "config/config_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS_MOST = 1 << 20 };
#define BYTES_MOST 0x1p60

#define FIELD(name) offsetof(struct config_draft, config.name)
#define DRAFT(name) offsetof(struct config_draft, name)
#define WORDS(...)  ((const char *const[]){__VA_ARGS__, NULL})

#define TRANSPORT_NAME(name, ...) #name,
#define TRANSPORT_NAMES ((const char *const[]){RH_TRANSPORTS(TRANSPORT_NAME) NULL})
#define TRANSPORT_HELP(name, addresses, hashes, measures, reopens, library, help) "; " #name ": " help

/* clang-format off */
#define KEY(key_type, key_name, key_verbs, ...) \
	{.name = #key_name, .type = key_type, .verbs = key_verbs, .offset = FIELD(key_name), __VA_ARGS__}
#define INERT(key_name, why) {.name = key_name, .type = KEY_INERT, .verbs = VERB_DATA, .help = why}

const struct config_key config_keys[] = {
	KEY(KEY_STRING, model_name_or_path, VERB_MODEL, .per_box = 1, .heading = "Model and files",
	    .help = "the model: a Hugging Face directory or a .gguf file"),
	KEY(KEY_STRING, config_name, VERB_RUNS, .per_box = 1,
	    .help = "a config.json (or its directory) of a model to train from random initialisation"),
	KEY(KEY_MAP, rope_scaling, VERB_MODEL,
	    .choices = WORDS("rope_type", "type", "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
	                     "mscale", "mscale_all_dim", "truncate", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor",
	                     "rope_theta", "partial_rotary_factor"),
	    .help = "in place of what config.json says of rotary scaling, such as {rope_type: yarn, factor: 4}"),
	KEY(KEY_BOOL, verify_base, VERB_RUNS, .per_box = 1, .fallback = "false",
	    .help = "check the base model's files against the SHA-256 sums that the hub's cache, its download metadata or git-lfs keep of them"),
	KEY(KEY_STRING, base_model_name_or_path, VERB_TRAIN,
	    .help = "base that adapter_config.json names, such as ORG/MODEL, which PEFT loads; "
	            "unset: model_name_or_path, which PEFT cannot load where it is a .gguf file"),
	KEY(KEY_STRING, adapter_name_or_path, VERB_MODEL,
	    .help = "directory of a PEFT adapter: train goes on from it, other verbs run the model with it"),
	KEY(KEY_PATHS, train_file, VERB_DATA, .per_box = 1,
	    .help = "rows to train on, a file, a folder, a pattern (data/*.parquet), or a list of them: JSONL, a JSON array, CSV or TSV, also "
	            "in gzip or zstd, or Parquet, with messages, prompt and completion, text, Alpaca, ShareGPT, question and answer, input and "
	            "output; .txt and .md, each of which is a text; of images a directory with a folder for each class, or an IDX file"),
	KEY(KEY_PATHS, validation_file, VERB_DATA, .per_box = 1, .help = "rows to evaluate on, files like train_file's"),
	KEY(KEY_STRING, dataset_info, VERB_DATA, .per_box = 1,
	    .help = "LLaMA-Factory's dataset_info.json, in which train_file and validation_file are names"),
	KEY(KEY_MAP, data_columns, VERB_DATA,
	    .choices = WORDS("prompt", "completion", "messages", "conversations", "text", "instruction", "input", "output", "history", "system",
	                     "question", "answer", "tools", "chosen", "rejected", "label"),
	    .help = "columns of other names, such as {prompt: title, completion: body}"),
	KEY(KEY_LIST, data_weights, VERB_DATA, .items = KEY_REAL, .least = 1e-6, .most = 1000,
	    .help = "one number for each train_file: how often its rows are in an epoch, such as [1, 0.5, 3]; unset: once"),
	KEY(KEY_INTEGER, max_samples, VERB_DATA, .most = 1e12,
	    .help = "rows taken of each file, or images of each folder, the first ones; unset: all"),
	KEY(KEY_WORDS, allow, VERB_DATA, .fallback = "none",
	    .choices = WORDS("untrained-rows", "no-end-of-turn", "cut-answers", "duplicates", "overlap", "dropped-role", "none-for-null",
	                     "equal-answers", "no-prompt"),
	    .help = "faults of the data in spite of which train goes on (more than 1 row in 100 stops it; inspect shows them)"),
	KEY(KEY_CHOICE, task, VERB_MODEL, .choices = WORDS("causal_lm", "masked_lm", "sequence_classification", "image_classification"),
	    .help = "what the model is trained for; unset: what config.json's architectures say"),
	KEY(KEY_INTEGER, num_labels, VERB_MODEL, .fallback = "0", .most = 1 << 20,
	    .help = "labels of a classification; 0: as many as config.json has, else 2"),
	KEY(KEY_REAL, mlm_probability, VERB_DATA, .fallback = "0.15", .most = 1, .bounds = BOUND_ABOVE_LEAST | BOUND_BELOW_MOST,
	    .help = "masked_lm: share of the tokens that are to be found; of these 8 in 10 are hidden, 1 in 10 is another token"),
	KEY(KEY_REAL, eval_split, VERB_DATA, .most = 1, .bounds = BOUND_ABOVE_LEAST | BOUND_BELOW_MOST,
	    .help = "share of train_file held out for evaluation"),
	KEY(KEY_STRING, output_dir, VERB_RUNS | VERB_WRITES | VERB_JOIN, .per_box = 1, .help = "directory that the run writes to"),

	KEY(KEY_STRING, chat_template, VERB_DATA | VERB_SPEAKS, .heading = "Text to tokens",
	    .help = "a built-in chat template's name, or a file of Jinja text (or .json that holds chat_template); none: prompts as they "
	            "stand; unset: the one that the model brings, or was trained with"),
	KEY(KEY_STRING, chat_template_date, VERB_DATA | VERB_SPEAKS, .fallback = "2024-07-26",
	    .help = "the day that templates write where they ask for today's (strftime_now): a run must not change overnight"),
	KEY(KEY_STRING, dataset_text_field, VERB_DATA, .fallback = "text", .help = "field of a row that holds plain text"),
	KEY(KEY_STRING, eos_token, VERB_DATA | VERB_SPEAKS,
	    .help = "end-of-sequence token, written after texts and completions, at which generate and chat stop; unset: the tokenizer's, or "
	            "the one that the adapter was trained with"),
	KEY(KEY_INTEGER, max_length, VERB_DATA, .fallback = "1024", .least = 2, .most = 1 << 24,
	    .refuse_null = "a row always has a longest length here: write it, such as 1024",
	    .help = "longest row in tokens; the end of longer ones is cut"),
	KEY(KEY_BOOL, packing, VERB_DATA, .fallback = "false", .help = "lay several documents in one row, each seeing only itself"),
	KEY(KEY_CHOICE, packing_strategy, VERB_DATA, .fallback = "bfd", .choices = WORDS("bfd", "bfd_split", "wrapped"),
	    .help = "how rows are packed: bfd cuts overlong documents off, bfd_split goes on with them in another row; wrapped lays all "
	            "documents end to end and cuts them into blocks of max_length, in which a document sees those before it"),
	KEY(KEY_TRISTATE, completion_only_loss, VERB_DATA, .help = "train completions only; unset: where there is a prompt"),
	KEY(KEY_TRISTATE, assistant_only_loss, VERB_DATA,
	    .help = "train the assistant's turns of messages only; unset: every token of them, the user's too"),

	KEY(KEY_INTEGER, per_device_train_batch_size, VERB_RUNS, .fallback = "8", .least = 1, .most = 1 << 20
	    , .heading = "Batches and steps",
	    .help = "rows in a micro-batch of training"),
	KEY(KEY_INTEGER, per_device_eval_batch_size, VERB_DATA, .fallback = "8", .least = 1, .most = 1 << 20,
	    .help = "rows in a micro-batch of the evaluation"),
	KEY(KEY_INTEGER, gradient_accumulation_steps, VERB_RUNS, .fallback = "1", .least = 1, .most = 1 << 20,
	    .help = "micro-batches in a step, whatever the number of devices"),
	KEY(KEY_REAL, num_train_epochs, VERB_RUNS, .fallback = "3", .most = 1e6, .bounds = BOUND_ABOVE_LEAST,
	    .help = "passes over the rows"),
	KEY(KEY_INTEGER, max_steps, VERB_RUNS, .fallback = "-1", .least = -1, .most = 1e12,
	    .help = "steps instead of epochs; -1: by epochs"),
	KEY(KEY_CHOICE, train_sampling_strategy, VERB_RUNS, .fallback = "random", .choices = WORDS("random", "sequential"),
	    .help = "order of the rows in an epoch: shuffled or as in the file"),
	KEY(KEY_BOOL, model_dropout, VERB_RUNS, .fallback = "false",
	    .help = "true drops in training what the model's config.json says, such as attn_pdrop, embd_pdrop and resid_pdrop"),
	KEY(KEY_REAL, neftune_noise_alpha, VERB_RUNS, .fallback = "0", .most = 1e6,
	    .help = "NEFTune: in training the embedding gets uniform noise of at most this / sqrt(tokens of a row * hidden size), often 5 to 15"),
	KEY(KEY_SEED, seed, VERB_MODEL, .fallback = "42", .most = 0x1p63, .help = "seed of initialisation, dropout and sampling"),
	KEY(KEY_SEED, data_seed, VERB_DATA, .most = 0x1p63, .help = "seed of the order of the rows; unset: seed"),

	KEY(KEY_LIST, loss_type, VERB_DATA, .fallback = "none", .heading = "Preferences",
	    .help = "trains on which of two answers is better (rows with chosen and rejected), as TRL does: sigmoid (DPO), hinge, ipo, "
	            "sigmoid_norm, robust, exo_pair, apo_zero, apo_down, nca_pair, bco_pair, sppo_hard, and sft, the chosen answer's "
	            "cross-entropy, beside them; or a list of these. Without a reference: orpo, simpo. Of answers that are good or bad (rows "
	            "with prompt, completion and label): kto, apo_zero_unpaired. none: rows are trained on as they are. With it an unset "
	            "learning_rate is 1e-6, as in TRL, at which an adapter hardly moves (5e-6 and more)"),
	KEY(KEY_LIST, loss_weights, VERB_DATA, .items = KEY_REAL, .least = 1e-6, .most = 1000, .fallback = "none",
	    .help = "a number for each loss of loss_type; none: 1"),
	KEY(KEY_REAL, beta, VERB_DATA, .fallback = "0.1", .least = 1e-6, .most = 1000,
	    .help = "of loss_type: how much the model's preference counts against the reference's; larger, and it stays closer to that"),
	KEY(KEY_REAL, label_smoothing, VERB_DATA, .fallback = "0", .most = 1, .bounds = BOUND_BELOW_MOST,
	    .help = "share of pairs that may be the wrong way round, for loss_type: robust (such as 0.1), exo_pair (1e-3) and simpo"),
	KEY(KEY_REAL, simpo_gamma, VERB_DATA, .fallback = "0.5", .most = 1000,
	    .help = "margin by which loss_type: simpo wants a chosen answer's mean log-probability, times beta, above the rejected one's"),
	KEY(KEY_REAL, cpo_alpha, VERB_DATA, .fallback = "1", .most = 1000,
	    .help = "weight of the chosen answer's cross-entropy in loss_type: simpo (LLaMA-Factory's simpo has 0)"),
	KEY(KEY_REAL, desirable_weight, VERB_DATA, .fallback = "1", .most = 1000, .help = "weight of good answers in loss_type: kto"),
	KEY(KEY_REAL, undesirable_weight, VERB_DATA, .fallback = "1", .most = 1000, .help = "likewise of bad ones"),

	KEY(KEY_REAL, learning_rate, VERB_RUNS, .fallback = "2e-5", .most = 1000, .heading = "Optimisation",
	    .help = "peak learning rate"),
	KEY(KEY_CHOICE, lr_scheduler_type, VERB_RUNS, .fallback = "linear",
	    .choices = WORDS("linear", "cosine", "constant", "constant_with_warmup", "cosine_with_min_lr", "cosine_with_restarts",
	                     "polynomial", "inverse_sqrt", "warmup_stable_decay"),
	    .help = "course of the learning rate; constant ignores the warm-up; lr_scheduler_kwargs says more of the last five"),
	KEY(KEY_MAP, lr_scheduler_kwargs, VERB_RUNS,
	    .choices = WORDS("min_lr_rate", "min_lr", "num_cycles", "lr_end", "power", "timescale", "num_decay_steps", "num_stable_steps",
	                     "decay_type", "min_lr_ratio"),
	    .help = "as transformers has them: cosine_with_min_lr {min_lr_rate: 0.1} or {min_lr: 1e-5}; cosine_with_restarts {num_cycles: 1}; "
	            "polynomial {lr_end: 1e-7, power: 1}; inverse_sqrt {timescale: STEPS}; warmup_stable_decay {num_decay_steps: STEPS, "
	            "num_stable_steps: STEPS, decay_type: cosine, linear or 1-sqrt, min_lr_ratio: 0}"),
	KEY(KEY_STEPS, warmup_steps, VERB_RUNS, .fallback = "0", .most = 1e12,
	    .help = "steps over which the learning rate rises; below 1 a share of all steps (also: warmup_ratio)"),
	KEY(KEY_CHOICE, optim, VERB_RUNS, .fallback = "adamw_torch", .choices = WORDS("adamw_torch", "lion_32bit", "sgd", "adafactor"),
	    .help = "optimizer"),
	KEY(KEY_STRING, optim_args, VERB_RUNS, .help = "arguments of optim: sgd, such as momentum=0.9; unset: no momentum"),
	KEY(KEY_REAL, weight_decay, VERB_RUNS, .fallback = "0", .most = 1000, .help = "weight decay, never on biases and norm weights"),
	KEY(KEY_BOOL, decay_embeddings, VERB_RUNS, .fallback = "true",
	    .help = "false leaves weight_decay out of the embedding's tables too, and of a head that is one with them"),
	KEY(KEY_REAL, adam_beta1, VERB_RUNS, .fallback = "0.9", .most = 1, .bounds = BOUND_BELOW_MOST,
	    .help = "decay of Adam's first moment; Lion's beta1"),
	KEY(KEY_REAL, adam_beta2, VERB_RUNS, .fallback = "0.999", .most = 1, .bounds = BOUND_BELOW_MOST,
	    .help = "decay of Adam's second moment; Lion's beta2"),
	KEY(KEY_REAL, adam_epsilon, VERB_RUNS, .fallback = "1e-8", .least = 1e-30, .most = 1,
	    .help = "added to the root of Adam's second moment"),
	KEY(KEY_REAL, max_grad_norm, VERB_RUNS, .fallback = "1.0", .most = 1e12,
	    .help = "global gradient norm above which gradients are scaled down; 0: never"),
	KEY(KEY_REAL, router_aux_loss_coef, VERB_RUNS, .fallback = "0", .most = 1000,
	    .help = "of a mixture of experts: weight of the routers' load balancing loss, over the tokens of all layers of a micro-batch (as in "
	            "transformers with output_router_logits: true); 0: none, whatever config.json says"),
	{.name = "dtype", .type = KEY_CHOICE, .verbs = VERB_MODEL, .offset = DRAFT(dtype),
	    .choices = WORDS("float32", "bfloat16", "float16"),
	 .help = "type of weights and activations; unset: float32 on cpu, bfloat16 on cuda (float16: not built yet)"},
	{.name = "bf16", .type = KEY_BOOL, .verbs = VERB_MODEL, .offset = DRAFT(bf16), .fallback = "false", .unprinted = 1,
	 .help = "true means dtype: bfloat16"},
	{.name = "fp16", .type = KEY_BOOL, .verbs = VERB_MODEL, .offset = DRAFT(fp16), .fallback = "false", .unprinted = 1,
	 .help = "true means dtype: float16 (not built yet)"},

	{.name = "use_peft", .type = KEY_TRISTATE, .verbs = VERB_RUNS, .offset = DRAFT(use_peft), .heading = "LoRA",
	 .help = "true trains a LoRA adapter instead of all weights; lora_r and adapter_name_or_path imply it"},
	KEY(KEY_INTEGER, lora_r, VERB_RUNS, .fallback = "16", .least = 1, .most = 1 << 16, .lora = RH_LORA_R,
	    .help = "rank of the adapter"),
	KEY(KEY_REAL, lora_alpha, VERB_RUNS, .fallback = "32", .least = 1e-6, .most = 1e6, .lora = RH_LORA_ALPHA,
	    .help = "scale of the adapter: lora_alpha / lora_r"),
	KEY(KEY_REAL, lora_dropout, VERB_RUNS, .fallback = "0.05", .most = 1, .bounds = BOUND_BELOW_MOST, .lora = RH_LORA_DROPOUT,
	    .help = "share of the adapter's inputs dropped in training; unset: 0 where experts or routers have adapters, which take none"),
	KEY(KEY_TARGETS, lora_target_modules, VERB_RUNS, .fallback = "q_proj,v_proj", .lora = RH_LORA_TARGETS,
	    .help = "modules that get an adapter: a list of names, all-linear, or a regular expression on whole names"),
	KEY(KEY_LIST, lora_target_parameters, VERB_RUNS, .fallback = "none", .lora = RH_LORA_PARAMETERS,
	    .help = "parameters of experts and routers that get an adapter, such as [mlp.experts.gate_up_proj, mlp.experts.down_proj]; without "
	            "lora_target_modules nothing else does"),
	KEY(KEY_LIST, lora_modules_to_save, VERB_RUNS, .fallback = "none", .lora = RH_LORA_SAVED,
	    .help = "embedding and head, such as [embed_tokens, lm_head], trained whole and saved with the adapter (also: modules_to_save)"),
	KEY(KEY_BOOL, use_rslora, VERB_RUNS, .fallback = "false", .lora = RH_LORA_RSLORA,
	    .help = "scale the adapter by lora_alpha / sqrt(lora_r) instead"),
	KEY(KEY_BOOL, use_dora, VERB_RUNS, .fallback = "false", .lora = RH_LORA_DORA,
	    .help = "DoRA: train also the length of each row of an adapted matrix; a step takes half as long again; without lora_dropout"),
	KEY(KEY_MAP, rank_pattern, VERB_RUNS, .items = KEY_INTEGER, .least = 1, .most = 1 << 16, .lora = RH_LORA_PATTERNS,
	    .help = "other ranks than lora_r for modules whose names end so, or match so as regular expressions, such as {q_proj: 32}"),
	KEY(KEY_MAP, alpha_pattern, VERB_RUNS, .items = KEY_REAL, .least = 1e-6, .most = 1e6, .lora = RH_LORA_PATTERNS,
	    .help = "likewise other values than lora_alpha"),
	KEY(KEY_TARGETS, exclude_modules, VERB_RUNS, .lora = RH_LORA_PATTERNS,
	    .help = "modules that get no adapter though lora_target_modules names them: a list of names, or a regular expression on whole names"),
	KEY(KEY_LIST, layers_to_transform, VERB_RUNS, .items = KEY_INTEGER, .least = 0, .most = LAYERS_MOST, .fallback = "none",
	    .lora = RH_LORA_PATTERNS, .help = "numbers of the layers that get an adapter, with lora_target_modules as a list; none: all"),
	KEY(KEY_CHOICE, init_lora_weights, VERB_RUNS, .fallback = "true", .choices = WORDS("true", "gaussian", "false"),
	    .lora = RH_LORA_PATTERNS,
	    .help = "how the adapter begins: true, A uniform and B zero; gaussian, A normal and B zero; false, both uniform"),
	KEY(KEY_REAL, loraplus_lr_ratio, VERB_RUNS, .fallback = "1", .least = 1e-6, .most = 1e6,
	    .help = "LoRA+: the learning rate of an adapter's B, as a multiple of learning_rate, which is A's; often 16"),

	KEY(KEY_INTEGER, logging_steps, VERB_RUNS, .per_box = 1, .fallback = "10", .least = 1, .most = 1e12,
	    .heading = "Logging, evaluation, saving", .help = "steps between logged lines, each the mean of its steps"),
	KEY(KEY_BOOL, logging_first_step, VERB_RUNS, .per_box = 1, .fallback = "false", .help = "log the first step too"),
	KEY(KEY_WORDS, report_to, VERB_TRAIN, .per_box = 1, .fallback = "none", .choices = WORDS("tensorboard", "csv"),
	    .help = "what else is written beside metrics.jsonl: tensorboard, event files below output_dir/runs; csv, metrics.csv"),
	KEY(KEY_BOOL, verbose, VERB_RUNS | VERB_EVAL | VERB_GENERATE, .fallback = "false",
	    .help = "tell also where each byte of the plan lies, and how layers are cut into stages"),
	KEY(KEY_INTEGER, trace_step, VERB_TRAIN, .per_box = 1, .least = 2, .most = 1e12,
	    .help = "step that is recorded, into trace.json (ui.perfetto.dev, chrome://tracing) and trace.svg in output_dir; "
	            "not the first, which has nothing in flight before it"),
	KEY(KEY_CHOICE, eval_strategy, VERB_RUNS, .fallback = "no", .choices = WORDS("no", "steps", "epoch"),
	    .help = "when to evaluate during training"),
	KEY(KEY_STEPS, eval_steps, VERB_RUNS, .most = 1e12, .bounds = BOUND_ABOVE_LEAST,
	    .help = "steps between evaluations; below 1 a share of all steps; unset: logging_steps"),
	KEY(KEY_TEXTS, sample_prompts, VERB_RUNS,
	    .help = "prompts that are answered at each evaluation, to see what the run has learned: a text, or a list of up to 16; asked as the "
	            "rows are, always the likeliest token; the answers go into metrics.jsonl and the report"),
	KEY(KEY_INTEGER, sample_max_new_tokens, VERB_RUNS, .fallback = "64", .least = 1, .most = 1024,
	    .help = "most tokens of such an answer; each takes a forward pass over the prompts"),
	KEY(KEY_CHOICE, save_strategy, VERB_RUNS, .fallback = "steps", .choices = WORDS("no", "steps", "epoch"),
	    .help = "when to save a checkpoint"),
	KEY(KEY_STEPS, save_steps, VERB_RUNS, .fallback = "500", .most = 1e12, .bounds = BOUND_ABOVE_LEAST,
	    .help = "steps between checkpoints; below 1 a share of all steps"),
	KEY(KEY_INTEGER, save_total_limit, VERB_RUNS, .per_box = 1, .most = 1e9,
	    .help = "how many checkpoints are kept, the newest; unset or 0: all"),
	KEY(KEY_BOOL, save_only_model, VERB_RUNS, .fallback = "false",
	    .help = "checkpoints hold the model or the adapter alone, without the optimizer's state: smaller, but no run goes on from them"),
	KEY(KEY_BOOL, load_best_model_at_end, VERB_RUNS, .fallback = "false",
	    .help = "the result is the checkpoint with the best evaluation, which save_total_limit keeps; needs both at the same steps"),
	KEY(KEY_CHOICE, metric_for_best_model, VERB_RUNS, .fallback = "eval_loss",
	    .choices = WORDS("eval_loss", "eval_token_accuracy", "eval_accuracy", "eval_rewards/accuracies", "eval_rewards/margins"),
	    .help = "what evaluations are compared by"),
	KEY(KEY_TRISTATE, greater_is_better, VERB_RUNS, .help = "unset: of accuracies, not of a loss"),
	KEY(KEY_INTEGER, early_stopping_patience, VERB_RUNS, .fallback = "0", .most = 1e9,
	    .help = "evaluations in a row that are no better than the best, after which the run stops; 0: none do"),
	KEY(KEY_REAL, early_stopping_threshold, VERB_RUNS, .fallback = "0", .most = 1e6,
	    .help = "how much better an evaluation must be for early_stopping_patience to count anew"),
	KEY(KEY_INTEGER, max_bad_steps, VERB_RUNS, .fallback = "10", .least = 1, .most = 1e9,
	    .help = "steps in a row whose gradient is not finite, after which the run stops; each is skipped "
	            "(max_grad_norm: 0 stops at the first)"),
	KEY(KEY_RESUME, resume_from_checkpoint, VERB_RUNS, .per_box = 1,
	    .help = "checkpoint to go on from: its directory, or true for the newest in output_dir"),

	KEY(KEY_STRING, device, VERB_MACHINE, .per_box = 1, .heading = "Where it runs",
	    .help = "devices: cpu:N (N that share the cores), cuda (all GPUs), cuda:0,2 (these two), cuda:0,0 (two workers on one GPU); "
	            "of plan also sim:NAME (a hardware profile); unset: cuda if there is one, else cpu:1"),
	KEY(KEY_STRING, schedule, VERB_RUNS, .fallback = "roundpipe",
	    .help = "who runs what when (in mode local others than roundpipe are there for comparison; unset, mode sync-pp takes 1f1b and mode "
	            "paci takes paci)"),
	KEY(KEY_INTEGER, sequence_chunk, VERB_MODEL, .least = 256, .most = 1 << 24,
	    .help = "longer rows are cut into chunks of at most so many tokens, which devices take one after the other; unset: rows that do "
	            "not fit whole are cut into the longest chunks that do"),
	KEY(KEY_CHOICE, saved_dtype, VERB_MODEL, .fallback = "dtype", .choices = WORDS("dtype", "fp8"),
	    .help = "of layers' inputs between forward and backward: as dtype, or fp8: half of bfloat16's memory below the device; recompute "
	            "then begins from rounded inputs, so that gradients are a little off (losses are not)"),
	KEY(KEY_INTEGER, round_micro_batches, VERB_MODEL, .least = 1, .most = 1 << 20, .help = "micro-batches in a round; unset: chosen"),
	KEY(KEY_CUTS, forward_cuts, VERB_MODEL, .least = 1, .most = LAYERS_MOST,
	    .help = "first layer of each forward stage but the first; unset: chosen"),
	KEY(KEY_CUTS, backward_cuts, VERB_MODEL, .least = 1, .most = LAYERS_MOST,
	    .help = "first layer of each backward stage but the first; unset: chosen"),
	KEY(KEY_INTEGER, optimizer_staleness, VERB_RUNS, .fallback = "0", .most = 1,
	    .help = "1 lets a step run on weights that lack the gradient of the one before, so that the optimizer works beside it"),
	KEY(KEY_CHOICE, state_layout, VERB_RUNS, .choices = WORDS("split", "plain", "split8"),
	    .help = "layout of masters and moments on the host; unset: split in bfloat16 (14 bytes a parameter; "
	            "plain 16, split8 8), plain in float32"),
	KEY(KEY_CHOICE, accumulation, VERB_DATA | VERB_SPEAKS, .fallback = "fp32", .choices = WORDS("fp32", "fp16"),
	    .help = "precision of the sums in the linears' products; fp16: in chunks that are summed in fp32, on consumer GPUs twice as fast"),
	KEY(KEY_INTEGER, accumulation_chunk, VERB_DATA | VERB_SPEAKS, .least = 32, .most = 2048,
	    .help = "products summed in fp16 before they go to fp32, a multiple of 32; unset: 128"),
	KEY(KEY_BOOL, fp8, VERB_DATA | VERB_SPEAKS, .fallback = "false",
	    .help = "the linears' products take 8-bit operands, with a scale for each tensor (GPUs of compute capability 8.9 or later); a "
	            "frozen base is stored so, in half of bf16's bytes"),
	{.name = "quantize", .type = KEY_CHOICE, .verbs = VERB_PACKS, .offset = DRAFT(quantize), .fallback = "none",
	    .choices = WORDS("none", "nf4", "fp4", "int8", "fp8", "q4_0", "q8_0", "mxfp4"),
	    .help = "frozen matrices of a model in full precision are packed so while they are read, but for embedding, head and "
	            "routers; nf4 and fp4 as bitsandbytes has them, fp8 with a scale for 128 x 128 weights, or where fp8: true "
	            "multiplies in 8 bits as the product takes it; what a file has packed stays as it is"},
	{.name = "load_in_4bit", .type = KEY_BOOL, .verbs = VERB_PACKS, .offset = DRAFT(load_in_4bit), .fallback = "false", .unprinted = 1,
	    .help = "true means quantize: nf4, or what bnb_4bit_quant_type says"},
	{.name = "load_in_8bit", .type = KEY_BOOL, .verbs = VERB_PACKS, .offset = DRAFT(load_in_8bit), .fallback = "false", .unprinted = 1,
	    .help = "true means quantize: int8"},
	{.name = "bnb_4bit_quant_type", .type = KEY_CHOICE, .verbs = VERB_PACKS, .offset = DRAFT(bnb_type), .unprinted = 1,
	    .choices = WORDS("nf4", "fp4"),
	    .help = "of load_in_4bit; unset: nf4"},
	{.name = "bnb_4bit_use_double_quant", .type = KEY_TRISTATE, .verbs = VERB_PACKS, .offset = DRAFT(bnb_nested),
	    .help = "whether the scales of nf4 and fp4 are quantised too (also: use_bnb_nested_quant); unset: yes"},
	KEY(KEY_WORDS, spill, VERB_MODEL, .per_box = 1, .fallback = "none",
	    .choices = WORDS("optimizer", "masters", "weights", "activations", "auto"),
	    .help = "what lies on NVMe instead of in host memory: moments, master weights, frozen weights, activations between stages; "
	            "auto: what max_ram asks for"),
	KEY(KEY_SIZE, max_vram, VERB_MODEL, .least = 1, .most = BYTES_MOST, .per_box = 1,
	    .help = "memory that a device may use; unset: all that is free"),
	KEY(KEY_SIZE, max_ram, VERB_MODEL, .least = 1, .most = BYTES_MOST, .per_box = 1,
	    .help = "host memory that the run may use; unset: all that is free less 2 GiB"),
	KEY(KEY_SIZE, max_nvme, VERB_MODEL, .least = 1, .most = BYTES_MOST, .per_box = 1, .fallback = "0", .or_none = 1,
	    .help = "bytes that may lie on NVMe, reserved when the run starts"),
	KEY(KEY_LIST, nvme_dirs, VERB_MACHINE, .per_box = 1, .fallback = "none",
	    .help = "directories on NVMe disks, ideally one on each disk"),
	KEY(KEY_SIZE, max_nvme_writes, VERB_MODEL, .least = 1, .most = BYTES_MOST, .per_box = 1, .fallback = "off", .or_none = 1,
	    .help = "bytes that the run may write to NVMe"),

	KEY(KEY_STRING, prompt, VERB_GENERATE, .heading = "generate and chat", .help = "text to go on from"),
	KEY(KEY_STRING, prompt_file, VERB_GENERATE,
	    .help = "a file that holds it, in place of prompt; -: standard input. The last line break is left out"),
	KEY(KEY_STRING, system, VERB_SPEAKS, .help = "system message, which tells the model who it is; through the chat template, as in training"),
	KEY(KEY_STRING, tools, VERB_SPEAKS,
	    .help = "a JSON file: a list of the tools that the model may call, which the chat template writes as in training"),
	KEY(KEY_STRING, messages_file, VERB_SPEAKS,
	    .help = "a JSON file: a conversation so far, a list of messages or an object as a row has it (messages, tools); generate answers it "
	            "(prompt, if given, is its next message), chat goes on with it"),
	KEY(KEY_INTEGER, max_new_tokens, VERB_SPEAKS, .fallback = "256", .least = 1, .most = 1 << 24, .help = "most tokens of an answer"),
	KEY(KEY_REAL, temperature, VERB_SPEAKS, .fallback = "0", .most = 1000,
	    .help = "temperature of sampling; 0: always the likeliest token"),
	KEY(KEY_REAL, top_p, VERB_SPEAKS, .fallback = "1", .most = 1, .bounds = BOUND_ABOVE_LEAST,
	    .help = "sample from the likeliest tokens that hold this share of the probability"),
	KEY(KEY_INTEGER, top_k, VERB_SPEAKS, .fallback = "0", .most = 1 << 24, .help = "sample from so many likeliest tokens; 0: from all"),
	KEY(KEY_REAL, min_p, VERB_SPEAKS, .fallback = "0", .most = 1,
	    .help = "sample from tokens whose probability is at least this share of the likeliest one's; 0: from all"),
	KEY(KEY_REAL, repetition_penalty, VERB_SPEAKS, .fallback = "1", .most = 1000, .bounds = BOUND_ABOVE_LEAST,
	    .help = "above 1 makes tokens that stand in the prompt or the answer so far less likely; 1: off"),

	KEY(KEY_STRING, outfile, VERB_WRITES, .heading = "merge and export", .help = "a GGUF file to write, in place of output_dir"),
	KEY(KEY_CHOICE, outtype, VERB_WRITES, .choices = WORDS("f32", "bf16", "f16", "q8_0", "q4_0", "q4_k_m", "q5_k_m", "q6_k"),
	    .help = "what matrices are written in; those of q in a GGUF file (q4_k_m, q5_k_m, q6_k: llama.cpp's mixtures). "
	            "Unset: f32 or f16 where the model has it, else bf16; of an adapter alone f32"),

	KEY(KEY_INTEGER, rows, VERB_INSPECT, .fallback = "3", .least = 0, .most = 1e6, .heading = "inspect",
	    .help = "rows shown of each file, its first"),
	KEY(KEY_STRING, html, VERB_INSPECT, .help = "an HTML file that shows them, in place of the terminal"),

	KEY(KEY_STRING, save, VERB_DOCTOR, .heading = "doctor",
	    .help = "write the machine as a hardware profile: a file, or a name among your own; local is what plan takes for this machine"),
	KEY(KEY_INTEGER, measure_seconds, VERB_DOCTOR, .fallback = "36", .least = 1, .most = 3600,
	    .help = "how long a model's products and other operations are timed; where others share the machine, longer says more"),

	KEY(KEY_CHOICE, mode, VERB_RUNS, .fallback = "local", .choices = WORDS(RH_MODE_NAMES),
	    .heading = "Several boxes",
	    .help = "how boxes cooperate: local, each alone; sync-pp, one pipeline with the results of one box, in which schedule "
	            "orders the boxes; paci, one pipeline without a flush, in which each box updates itself; fluidpipe, two boxes without "
	            "gradients between them, the first under a head of its own"),
	KEY(KEY_INTEGER, boxes, VERB_RUNS, .least = 2, .most = RH_BOXES_MAX,
	    .help = "how many there are; unset: what torchrun, mpirun or Slurm say"),
	KEY(KEY_INTEGER, box, VERB_RUNS, .least = 1, .most = RH_BOXES_MAX, .per_box = 1,
	    .help = "which one this is: 1 has the lowest layers and the data; unset: what torchrun, mpirun or Slurm say"),
	KEY(KEY_LIST, box_cuts, VERB_RUNS, .items = KEY_INTEGER, .least = 1, .most = LAYERS_MOST,
	    .help = "the first layer of each box but the first, such as [12, 20]; unset: by the boxes' speeds and "
	    "memory, and their links"),
	KEY(KEY_LIST, admission_limits, VERB_RUNS, .items = KEY_INTEGER, .least = 1, .most = 1 << 16,
	    .help = "mode paci: the most units that each box has in flight, none more than the box before, such as [7, 4, 1]: slow links "
	            "need more; unset: [N, N-1, ... 1] of N boxes. Schedule paci: likewise micro-batches of each device"),
	KEY(KEY_INTEGER, max_version_drift, VERB_RUNS, .least = 1, .most = 1 << 20,
	    .help = "mode or schedule paci: the most updates that a box, or a device, may make between a unit's forward and its backward; "
	            "chooses the smallest gradient_accumulation_steps that keep to it where these are not given (of devices with "
	            "admission_limits alone), else refuses those that do not; unset: no bound"),
	KEY(KEY_CHOICE, paci_backward, VERB_RUNS, .fallback = "recompute", .choices = WORDS("recompute", "stored", "stash"),
	    .help = "what a backward of schedule paci works with: recompute, activations made again under the weights of now; stored, "
	            "activations kept from the forward, in device memory, and the weights of now; stash, the weights of the forward, of "
	            "which host memory holds older versions. For comparison"),
	KEY(KEY_INTEGER, paci_update_delay, VERB_RUNS, .fallback = "0", .most = 1 << 16,
	    .help = "schedule paci: 0, an update blocks its box; e, it runs beside the next units, into a second copy of the weights, which "
	            "the box computes with once it has made e more backwards: another result. Fewer than the units of a step"),
	KEY(KEY_CHOICE, fluidpipe_recipe, VERB_RUNS, .fallback = "FP-ND",
	    .choices = WORDS("FP-ND", "FP-ND-EL", "FP-DB", "FP-DB-EL", "FP-DT", "FP-DT-EL"),
	    .help = "mode fluidpipe: FP-ND, the boxes learn from the data alone; of classifications, and with fluidpipe_top_k of causal language "
	            "models, also FP-DB and FP-DT, each distils the other's logits, with alphas of 0.5 and 0.9; -EL, box 1 has an extra layer "
	            "below its own head, which begins as a copy of box 2's first"),
	KEY(KEY_REAL, fluidpipe_alpha1, VERB_RUNS, .fallback = "1", .most = 1,
	    .help = "mode fluidpipe: box 1's loss is so much of the task's and the rest of the distillation's; 1: no logits come back; unset: "
	            "by the recipe"),
	KEY(KEY_REAL, fluidpipe_alpha2, VERB_RUNS, .fallback = "1", .most = 1, .help = "likewise of box 2; 1: no logits go up"),
	KEY(KEY_CHOICE, fluidpipe_weighting, VERB_RUNS, .fallback = "convex", .choices = WORDS("convex", "sum"),
	    .help = "mode fluidpipe: convex, by the alphas; sum, the task's loss and the distillation's, both whole, in boxes whose alpha is "
	            "not 1"),
	KEY(KEY_REAL, fluidpipe_temperature, VERB_RUNS, .fallback = "1", .least = 0.01, .most = 1000,
	    .help = "mode fluidpipe: both logits are divided by it before their softmax, and the divergence is multiplied by its square"),
	KEY(KEY_CHOICE, fluidpipe_kl, VERB_RUNS, .fallback = "forward", .choices = WORDS("forward", "reverse"),
	    .help = "mode fluidpipe: forward, KL(teacher || student); reverse, KL(student || teacher)"),
	KEY(KEY_INTEGER, fluidpipe_top_k, VERB_RUNS, .fallback = "0", .least = 0, .most = 1 << 20,
	    .help = "mode fluidpipe, a causal language model whose boxes distil: of each trained token the boxes tell each other so many "
	            "likeliest tokens with their shares; all others are one residual. 0: a causal language model does not distil"),
	KEY(KEY_CHOICE, fluidpipe_logits, VERB_RUNS, .fallback = "epoch", .choices = WORDS("epoch", "stream"),
	    .help = "mode fluidpipe: box 2's logits go to box 1 all at once after an epoch, or after each step, so that box 1 waits less "
	            "between epochs; the same results, and one more table of logits in box 1's memory"),
	KEY(KEY_INTEGER, fluidpipe_ahead, VERB_RUNS, .fallback = "16", .least = 1, .most = 40,
	    .help = "mode fluidpipe: the most messages, one a micro-batch and two a step, that a box keeps: box 1 those that box 2 does not "
	            "have yet, box 2 those that come before it needs them; as many steps as have them, and 2 at least, still run when a box "
	            "is asked to stop"),
	KEY(KEY_BOOL, fluidpipe_freeze, VERB_RUNS, .fallback = "false",
	    .help = "mode fluidpipe: box 1's layers stay as they are, and box 2 learns from what they make: to see what training them is worth; "
	            "refused where box 1 distils (fluidpipe_alpha1 below 1)"),
	KEY(KEY_CHOICE, fluidpipe_idle_sampler, VERB_RUNS, .fallback = "none",
	    .choices = WORDS("none", "random", "difficulty", "eh-difficulty", "task-loss", "distillation-loss"),
	    .help = "mode fluidpipe: while a box waits for the other one it trains again, box 2 on samples that it has received in this epoch, "
	            "box 1 on any, where the wait is long enough: on random ones, those whose loss rises most (difficulty), easy, hard and "
	            "other ones (eh-difficulty), or those with the largest loss. Which ones is logged in opportunistic.jsonl; the results "
	            "depend on the link's speed"),
	KEY(KEY_INTEGER, fluidpipe_idle_steps, VERB_RUNS, .fallback = "-1", .least = -1, .most = 1 << 30,
	    .help = "the most such steps of an epoch; -1: as many as there is time for"),
	KEY(KEY_REAL, fluidpipe_idle_task_scale, VERB_RUNS, .fallback = "1", .most = 1000,
	    .help = "by which the task's loss is multiplied in them"),
	KEY(KEY_REAL, fluidpipe_idle_distillation_scale, VERB_RUNS, .fallback = "1", .most = 1000,
	    .help = "by which the distillation's loss is multiplied in them"),
	KEY(KEY_REAL, fluidpipe_idle_dropout, VERB_RUNS, .fallback = "0", .most = 1, .bounds = BOUND_BELOW_MOST,
	    .help = "the share of its input that a box drops in such a step: box 2 of the received features, box 1 of its embedding"),
	KEY(KEY_REAL, fluidpipe_idle_task_weight, VERB_RUNS, .fallback = "1", .least = -1000, .most = 1000,
	    .help = "samplers difficulty and eh-difficulty: weight of the task's loss in a sample's score; below 0, a small loss is difficult"),
	KEY(KEY_REAL, fluidpipe_idle_distillation_weight, VERB_RUNS, .fallback = "1", .least = -1000, .most = 1000,
	    .help = "likewise of the distillation"),
	KEY(KEY_REAL, fluidpipe_idle_easy_share, VERB_RUNS, .fallback = "0.3", .most = 1,
	    .help = "sampler eh-difficulty: share of easy samples in a step"),
	KEY(KEY_REAL, fluidpipe_idle_hard_share, VERB_RUNS, .fallback = "0.3", .most = 1,
	    .help = "likewise of hard ones; the rest are neither"),
	KEY(KEY_SIZE, fluidpipe_idle_store, VERB_RUNS, .least = 1, .most = BYTES_MOST, .per_box = 1, .fallback = "256MiB",
	    .help = "host memory of box 2 for the samples that it has received; where they need more, the oldest go to NVMe or are forgotten"),
	KEY(KEY_SIZE, fluidpipe_idle_spill, VERB_RUNS, .least = 1, .most = BYTES_MOST, .per_box = 1, .fallback = "0", .or_none = 1,
	    .help = "bytes on NVMe (nvme_dirs, max_nvme) for box 2's samples that fluidpipe_idle_store has no room for; 0: they are forgotten"),
	KEY(KEY_STRING, fluidpipe_idle_replay, VERB_RUNS, .per_box = 1,
	    .help = "this box's opportunistic.jsonl of another run, whose steps are made again, each after the same step, for the same results"),
	KEY(KEY_LIST, parts, VERB_JOIN, .help = "the boxes' output directories, such as [box1, box2]"),
	KEY(KEY_CHOICE, link_transport, VERB_RUNS, .fallback = "tcp", .choices = TRANSPORT_NAMES,
	    .help = "how boxes reach each other" RH_TRANSPORTS(TRANSPORT_HELP)),
	KEY(KEY_CHOICE, link_dtype, VERB_RUNS, .fallback = "dtype", .choices = WORDS("dtype", "bf16", "int8"),
	    .help = "how activations and their gradients travel between boxes: dtype, as they are; bf16; int8, with a scale for each token "
	            "and rounding at random that is exact in the mean. The last two change the results"),
	KEY(KEY_BOOL, tie_word_embeddings, VERB_RUNS, .fallback = "false",
	    .help = "of a model whose embedding is its head too, when boxes of mode sync-pp train all weights: true keeps one table, of which "
	            "the first and the last box each train a copy, and send each other its gradient at each step's end; false makes two of it"),
	KEY(KEY_LIST, box_hardware, VERB_PLAN,
	    .help = "for plan: the profile of each box, such as [rtx4090x1, rtx3060x1]; unset: all are like the machine that is planned for"),
	KEY(KEY_LIST, link_mbit_per_second, VERB_RUNS, .items = KEY_REAL, .least = 0.001, .most = 1e7, .fallback = "none", .per_box = 1,
	    .help = "what the links carry of messages (TCP's headers take about 5 % of a line), for plan, and for the cuts where box_cuts is "
	            "unset; over TCP, train sends little faster: one for all, one for each, or [up, down] of each in turn; none: train measures "
	            "it in mode sync-pp, plan takes 100 and does not cut by it"),
	KEY(KEY_LIST, link_latency_ms, VERB_RUNS, .items = KEY_REAL, .most = 1e6, .fallback = "none", .per_box = 1,
	    .help = "milliseconds that a message takes one way beside that, likewise; none: train measures it, plan takes 25"),
	KEY(KEY_STRING, link_below, VERB_RUNS, .per_box = 1,
	    .help = "where the box before this one is: HOST:PORT to connect to, or listen:PORT to wait for it; unset in box 2: where torchrun "
            "says that box 1 is, at MASTER_PORT + 1"),
	KEY(KEY_STRING, link_above, VERB_RUNS, .per_box = 1,
	    .help = "where the box after this one is, likewise; unset in box 1: it listens at torchrun's MASTER_PORT + 1"),
	KEY(KEY_STRING, link_peer_below, VERB_RUNS, .per_box = 1,
	    .help = "hash that keys printed on the box before this one; unset: no encryption, which only works on one machine"),
	KEY(KEY_STRING, link_peer_above, VERB_RUNS, .per_box = 1, .help = "hash of the box after this one, likewise"),
	KEY(KEY_STRING, link_identity, VERB_KEYS | VERB_RUNS, .fallback = "roundhouse-box.pem", .per_box = 1,
	    .help = "this box's key file; keys makes it where it is not there"),
	KEY(KEY_REAL, link_timeout, VERB_RUNS, .fallback = "60", .least = 0.1, .most = 1e6, .per_box = 1,
	    .help = "seconds of silence after which a connection is made anew"),
	KEY(KEY_REAL, link_give_up, VERB_RUNS, .fallback = "3600", .least = 0.1, .most = 1e7, .per_box = 1,
	    .help = "seconds without a connection after which the run stops, with a checkpoint"),

	{.name = "gradient_checkpointing", .type = KEY_INERT, .verbs = VERB_DATA, .heading = "Accepted without effect",
	 .help = "what is recomputed follows from the memory there is"},
	INERT("gradient_checkpointing_kwargs", "what is recomputed follows from the memory there is"),
	INERT("activation_checkpointing", "what is recomputed follows from the memory there is"),
	INERT("activation_checkpointing_kwargs", "what is recomputed follows from the memory there is"),
	INERT("attn_implementation", "there is one attention, memory-saving and exact"),
	INERT("use_liger_kernel", "norms, activations and the loss are fused kernels anyway"),
	INERT("tf32", "precision is set by dtype and accumulation"),
	INERT("bnb_4bit_compute_dtype", "products are computed in dtype"),
	INERT("bnb_4bit_quant_storage", "two weights share a byte"),
	INERT("dataloader_*", "rows are tokenized once and kept in memory"),
	INERT("ddp_*", "devices share one process"),
	INERT("fsdp*", "weights and states live in host memory anyway"),
	INERT("deepspeed", "only null is taken: weights and states live in host memory anyway"),
};
/* clang-format on */
const size_t config_key_count = sizeof config_keys / sizeof config_keys[0];

int config_key_find(const char *name)
{
	name = config_alias_key(name);
	for (size_t i = 0; i < config_key_count; i++) {
		const char *known = config_keys[i].name;
		size_t length = strlen(known);
		if (known[length - 1] == '*' ? !strncmp(name, known, length - 1) : !strcmp(name, known))
			return (int)i;
	}
	return -1;
}

static void describe_choices(const struct config_key *key, const char *lead, char *out, size_t bytes)
{
	size_t used = (size_t)snprintf(out, bytes, "%s", lead);
	for (size_t i = 0; key->choices[i] && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, "%s %s", i ? "," : "", key->choices[i]);
}

/* "1e12" and "0.001", as a person writes them. */
static void print_bound(double value, char out[32])
{
	snprintf(out, 32, value == floor(value) && fabs(value) < 1e9 ? "%.0f" : "%g", value);
	char *exponent = strchr(out, 'e'), *digits = exponent;
	if (!exponent)
		return;
	exponent += exponent[1] == '-' ? 2 : 1; /* behind it "+12" or "06" */
	digits = exponent + strspn(exponent, "+0");
	memmove(exponent, digits, strlen(digits) + 1);
}

/* of: what there are several of, before its range. */
static void describe_range(const struct config_key *key, const char *of, char *out, size_t bytes)
{
	char least[32], most[32];
	const char *above = key->bounds & BOUND_ABOVE_LEAST ? "above " : "", *below = key->bounds & BOUND_BELOW_MOST ? "below " : "";
	print_bound(key->least, least);
	print_bound(key->most, most);
	snprintf(out, bytes, "%s from %s%s to %s%s", of, above, least, below, most);
}

static void describe_list(const struct config_key *key, char *out, size_t bytes)
{
	char range[96];
	if (key->items == KEY_STRING) {
		snprintf(out, bytes, "a list such as [a, b], or none");
		return;
	}
	describe_range(key, key->items == KEY_INTEGER ? "a list of whole numbers" : "a list of numbers", range, sizeof range);
	snprintf(out, bytes, "%s, or none", range);
}

void config_key_describe(const struct config_key *key, char *out, size_t bytes)
{
	switch (key->type) {
	case KEY_STRING:
		snprintf(out, bytes, "text");
		break;
	case KEY_INTEGER:
		describe_range(key, "a whole number", out, bytes);
		break;
	case KEY_SEED:
		snprintf(out, bytes, "a whole number, 0 or more");
		break;
	case KEY_REAL:
		describe_range(key, "a number", out, bytes);
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
		describe_choices(key, "one of", out, bytes);
		break;
	case KEY_SIZE:
		snprintf(out, bytes, "a size such as 24GiB, 24G, 1.5 GB or plain bytes%s", key->or_none ? ", or none" : "");
		break;
	case KEY_CUTS:
		describe_range(key, "an ascending list of layers", out, bytes);
		break;
	case KEY_TARGETS:
		snprintf(out, bytes, "a list of names%s, or a regular expression",
		         strcmp(key->name, "exclude_modules") ? ", all-linear" : "");
		break;
	case KEY_LIST:
		describe_list(key, out, bytes);
		break;
	case KEY_PATHS:
		snprintf(out, bytes, "a path, or a list of paths");
		break;
	case KEY_TEXTS:
		snprintf(out, bytes, "a text, or a list of texts");
		break;
	case KEY_MAP:
		if (!key->choices) {
			describe_range(key,
			               key->items == KEY_INTEGER ? "a map such as {q_proj: 32} to whole numbers"
			                                         : "a map such as {q_proj: 32} to numbers",
			               out, bytes);
			break;
		}
		describe_choices(key, "a map with keys among", out, bytes);
		break;
	case KEY_WORDS:
		describe_choices(key, "none, or a list of", out, bytes);
		break;
	case KEY_RESUME:
		snprintf(out, bytes, "true or a checkpoint's directory");
		break;
	case KEY_INERT:
		snprintf(out, bytes, "anything");
		break;
	}
}

unsigned config_verb_bit(const char *verb)
{
	static const char *const names[] = {"train", "plan",  "doctor", "generate", "eval",   "keys",  "inspect",
	                                    "chat",  "merge", "export", "join",     "stress", "verify"}; /* in the order of the bits */
	for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
		if (!strcmp(verb, names[i]))
			return 1u << i;
	return VERB_ALL;
}
