/* Mistakes that users of Axolotl, LLaMA-Factory, TRL, Unsloth and llama.cpp make: the error line leads to the mend, and the mended command
 * works. */
#include "cli/good.h"

#include <ctype.h>

struct mistake {
	const char *wrong, *mended;
};

/* Keys of a configuration, added to the good run's, of which they replace those of the same name. '@' is the scratch directory. */
static const struct mistake files[] = {
        /* Axolotl */
        {"base_model: @/hf", "model_name_or_path: @/hf"},
        {"model_type: LlamaForCausalLM", ""},
        {"datasets:\n  - path: @/rows.jsonl\n    type: alpaca", "train_file: @/rows.jsonl"},
        {"adapter: lora", "use_peft: true"},
        {"adapter: qlora", "load_in_4bit: true\nuse_peft: true"},
        {"load_in_4bit: true", "load_in_4bit: true\nuse_peft: true"},
        {"sequence_len: 64", "max_length: 64"},
        {"micro_batch_size: 2", "per_device_train_batch_size: 2"},
        {"num_epochs: 2", "num_train_epochs: 2"},
        {"optimizer: adamw_torch", "optim: adamw_torch"},
        {"optim: adamw_bnb_8bit", "optim: adamw_torch\nstate_layout: split8\ndtype: bfloat16"},
        {"optim: paged_adamw_32bit", "optim: adamw_torch"},
        {"lr_scheduler: cosine", "lr_scheduler_type: cosine"},
        {"warmup_ratio: 0.1\nwarmup_steps: 2", "warmup_steps: 2"},
        {"sample_packing: true", "packing: true"},
        {"val_set_size: 0.5", "eval_split: 0.5"},
        {"flash_attention: true", ""},
        {"lora_target_linear: true\nlora_r: 4", "lora_target_modules: all-linear\nlora_r: 4"},
        {"wandb_project: x", ""},
        {"special_tokens:\n  pad_token: <pad>", ""},
        {"train_on_inputs: false", "completion_only_loss: true"},
        {"saves_per_epoch: 2", "save_steps: 2"},
        {"dataset_prepared_path: last_run", ""},
        {"pad_to_sequence_len: true", ""},
        {"deepspeed: deepspeed_configs/zero3.json", ""},
        {"gradient_clipping: 1.0", "max_grad_norm: 1.0"},
        {"chat_template: tokenizer_default", ""},
        {"rl: dpo\ntrain_file: @/pairs.jsonl", "loss_type: sigmoid\ntrain_file: @/pairs.jsonl"},
        {"label_smoothing_factor: 0.1", ""},
        /* LLaMA-Factory */
        {"stage: sft", ""},
        {"stage: dpo\ntrain_file: @/pairs.jsonl", "loss_type: sigmoid\ntrain_file: @/pairs.jsonl"},
        {"do_train: true", ""},
        {"finetuning_type: lora", "use_peft: true"},
        {"template: @/turns.jinja", "chat_template: @/turns.jinja"},
        {"cutoff_len: 64", "max_length: 64"},
        {"lora_rank: 8", "lora_r: 8"},
        {"lora_target: all\nlora_r: 4", "lora_target_modules: all-linear\nlora_r: 4"},
        {"lora_target_modules: all\nlora_r: 4", "lora_target_modules: all-linear\nlora_r: 4"},
        {"lora_target_modules: q_proj,v_proj\nlora_r: 4", "lora_target_modules: [q_proj,v_proj]\nlora_r: 4"},
        {"dataset: @/rows.jsonl", "train_file: @/rows.jsonl"},
        {"plot_loss: true", ""},
        {"overwrite_output_dir: true", ""},
        {"preprocessing_num_workers: 16", ""},
        {"quantization_bit: 4\nlora_r: 4", "quantize: nf4\nlora_r: 4"},
        {"pref_beta: 0.2\nloss_type: sigmoid\ntrain_file: @/pairs.jsonl", "beta: 0.2\nloss_type: sigmoid\ntrain_file: @/pairs.jsonl"},
        {"freeze_trainable_layers: 2", ""},
        {"rope_scaling: linear", "rope_scaling: {rope_type: linear, factor: 2}"},
        {"rope_scaling: {type: ntk, factor: 2}", "rope_scaling: {type: linear, factor: 2}"},
        {"resize_vocab: true", ""},
        /* TRL, transformers, Unsloth */
        {"max_seq_length: 64", "max_length: 64"},
        {"evaluation_strategy: steps\neval_steps: 1\neval_split: 0.5", "eval_strategy: steps\neval_steps: 1\neval_split: 0.5"},
        {"eval_strategy: epochs\neval_split: 0.5", "eval_strategy: epoch\neval_split: 0.5"},
        {"fp16: true", "bf16: true"},
        {"bf16: true\nfp16: true", "bf16: true"},
        {"dtype: float16", "dtype: float32"},
        {"torch_dtype: bfloat16", "dtype: bfloat16"},
        {"report_to: wandb", "report_to: tensorboard"},
        {"save_steps: 0", "save_steps: 0.5"},
        {"lr_scheduler_type: cosine_decay", "lr_scheduler_type: cosine"},
        {"random_state: 3407", "seed: 3407"},
        {"target_modules: [q_proj]\nlora_r: 4", "lora_target_modules: [q_proj]\nlora_r: 4"},
        {"lora_target_modules: [c_attn]\nlora_r: 4", "lora_target_modules: [q_proj]\nlora_r: 4"},
        {"task_type: CAUSAL_LM\nlora_r: 4", "task: causal_lm\nlora_r: 4"},
        {"lora_dropout: 0.1", "lora_dropout: 0.1\nlora_r: 4"},
        {"peft_use_dora: true\nlora_r: 4", "use_dora: true\nlora_r: 4"},
        {"train_file: @/pairs.jsonl", "loss_type: sigmoid\ntrain_file: @/pairs.jsonl"},
        {"loss_type: dpo\ntrain_file: @/pairs.jsonl", "loss_type: sigmoid\ntrain_file: @/pairs.jsonl"},
        {"loss_type: sigmoid", ""},
        {"assistant_only_loss: true", ""},
        {"push_to_hub: true", ""},
        {"max_steps: 0", "max_steps: -1"},
        {"max_length: null", "max_length: 1024"},
        {"packing_strategy: ffd\npacking: true", "packing_strategy: bfd\npacking: true"},
        {"max_vram: 24", "max_vram: 24GiB"},
        {"device: auto", "device: cpu"},
        {"optim: muon", "optim: adafactor"},
        {"gradient_accumulation_steps: auto", "gradient_accumulation_steps: 4"},
        {"learning_rate:1e-4", "learning_rate: 1e-4"},
};

static const struct mistake lines[] = {
        {"plan --config @/run.yaml", "plan @/run.yaml"},
        {"plan @/run.yaml learning_rate=1e-4", "plan @/run.yaml --learning_rate=1e-4"},
        {"plan @/run.yaml --no-packing", "plan @/run.yaml --packing false"},
        {"plan @/run.yaml --n-gpu-layers 10", "plan @/run.yaml"},
        {"plan @/run.yaml --nproc_per_node 2", "plan @/run.yaml"},
        {"plan @/run.yaml --hardware 4090", "plan @/run.yaml --hardware rtx4090"},
        {"plan @/run.yaml --lora_r 4 --lora_target_modules q_proj v_proj",
         "plan @/run.yaml --lora_r 4 --lora_target_modules [q_proj,v_proj]"},
        {"plan --model llama3-8b --hardware rtx4060 --lora_r 16", "plan --model llama-3.1-8b --hardware rtx4060 --lora_r 16"},
        {"inspect @/rows.jsonl --model @/hf", "inspect --train_file @/rows.jsonl --model @/hf"},
        {"finetune @/run.yaml --output_dir @/1", "train @/run.yaml --output_dir @/1"},
        {"train @/run.yaml --output_dir @/1", "train @/run.yaml --output_dir @/2"},
        {"train @/run.yaml --output_dir @/3 --eval_strategy epoch",
         "train @/run.yaml --output_dir @/3 --eval_strategy epoch --eval_split 0.5"},
        {"train @/run.yaml --output_dir @/4 --load_best_model_at_end true --eval_split 0.5",
         "train @/run.yaml --output_dir @/4 --load_best_model_at_end true --eval_split 0.5 --eval_strategy epoch"},
        {"train @/run.yaml --output_dir @/5 --resume_from_checkpoint true", "train @/run.yaml --output_dir @/5"},
        {"train @/run.yaml --output_dir @/6 --train_file trl-lib/Capybara", "train @/run.yaml --output_dir @/6 --train_file @/rows.jsonl"},
        {"train @/run.yaml --output_dir @/7 --train_file @/twice.jsonl --allow none",
         "train @/run.yaml --output_dir @/7 --train_file @/twice.jsonl --allow duplicates"},
        {"generate -m @/hf --prompt 1 --max_new_tokens 2", "generate --model_name_or_path @/hf --prompt 1 --max_new_tokens 2"},
        {"generate --model @/hf -p 1 --max_new_tokens 2", "generate --model @/hf --prompt 1 --max_new_tokens 2"},
        {"generate --model @/hf --prompt 1 -n 2", "generate --model @/hf --prompt 1 --max_new_tokens 2"},
        {"generate --model @/hf --prompt 1 --n-predict 2", "generate --model @/hf --prompt 1 --max_new_tokens 2"},
        {"generate --model @/hf --prompt 1 --max_new_tokens 2 --temp 0.5",
         "generate --model @/hf --prompt 1 --max_new_tokens 2 --temperature 0.5"},
        {"generate --model @/hf --prompt 1 --max_new_tokens 2 --repeat-penalty 1.1",
         "generate --model @/hf --prompt 1 --max_new_tokens 2 --repetition_penalty 1.1"},
        {"generate --model @/hf --file @/prompt.txt --max_new_tokens 2",
         "generate --model @/hf --prompt_file @/prompt.txt --max_new_tokens 2"},
        {"generate --model @/hf --prompt 1 --max_new_tokens 2 --ctx-size 64", "generate --model @/hf --prompt 1 --max_new_tokens 2"},
        {"generate --model @/hf --prompt 1 --max_new_tokens 500", "generate --model @/hf --prompt 1 --max_new_tokens 2"},
        {"generate --model @/hf --prompt 1 --max_new_tokens 2 --adapter @/lora",
         "generate --model @/hf --prompt 1 --max_new_tokens 2 --adapter_name_or_path @/lora"},
        {"generate --model @/hf/model.safetensors --prompt 1 --max_new_tokens 2", "generate --model @/hf --prompt 1 --max_new_tokens 2"},
        {"export --model @/hf -o @/1.gguf", "export --model @/hf --outfile @/1.gguf"},
        {"export --model @/hf --output @/2.gguf", "export --model @/hf --outfile @/2.gguf"},
        {"export --model @/hf --outfile @/3.gguf --outtype q3_k_m", "export --model @/hf --outfile @/3.gguf --outtype q4_k_m"},
        {"merge --model @/hf --lora_model_dir @/lora --outfile @/4.gguf",
         "merge --model @/hf --adapter_name_or_path @/lora --outfile @/4.gguf"},
        {"eval --model @/hf --max_length 64", "eval --model @/hf --max_length 64 --validation_file @/rows.jsonl"},
};

static int has_key(const char *text, const char *key, size_t length)
{
	for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n')
		if (!strncmp(at, key, length) && at[length] == ':')
			return 1;
	return 0;
}

/* The good run's lines but for the keys that one of two texts has; then `text`. */
static void write_run(const struct scratch *scratch, const char *text, const char *other)
{
	char filled[1024], whole[2048];
	size_t length, used = 0;
	char *good = read_bytes(path_of("%s/run.yaml", scratch->dir), &length);
	for (char *at = good; *at; at += strcspn(at, "\n") + 1)
		if (!has_key(text, at, strcspn(at, ":")) && !has_key(other, at, strcspn(at, ":")))
			used += (size_t)snprintf(whole + used, sizeof whole - used, "%.*s\n", (int)strcspn(at, "\n"), at);
	free(good);
	fill_in(scratch, text, filled, sizeof filled);
	snprintf(whole + used, sizeof whole - used, "%s\n", filled);
	write_text(path_of("%s/mistaken.yaml", scratch->dir), whole);
}

/* The next word of a key, a value or a flag: no path, which the user knows, and no number. */
static const char *next_word(const char **rest, char *word, size_t bytes)
{
	static const char ends[] = " \n:=,[]{}";
	for (;;) {
		*rest += strspn(*rest, ends);
		size_t length = strcspn(*rest, ends);
		if (!length)
			return NULL;
		const char *at = *rest;
		*rest += length;
		if (*at == '@' || (isdigit((unsigned char)at[*at == '-']) && !strpbrk(at, "GM")))
			continue;
		at += strncmp(at, "--", 2) ? 0 : 2;
		snprintf(word, bytes, "%.*s", (int)(*rest - at), at);
		return word;
	}
}

static int is_letter(char letter)
{
	return isalnum((unsigned char)letter) || letter == '_';
}

static int has_word(const char *text, const char *word)
{
	size_t length = strlen(word);
	for (const char *at = text; (at = strstr(at, word)); at++)
		if ((at == text || !is_letter(at[-1])) && !is_letter(at[length]))
			return 1;
	return 0;
}

/* Whether the mend only takes words away. */
static int is_removal(const struct mistake *mistake)
{
	for (const char *at = mistake->mended; *(at += strspn(at, " \n")); at += strcspn(at, " \n")) {
		size_t length = strcspn(at, " \n");
		int is_there = 0;
		for (const char *in = mistake->wrong; *(in += strspn(in, " \n")); in += strcspn(in, " \n"))
			is_there |= strcspn(in, " \n") == length && !strncmp(in, at, length);
		if (!is_there)
			return 0;
	}
	return 1;
}

/* What the mend adds stands in the error's lines; a mend that only removes is asked for. */
static void check_led(const struct mistake *mistake, const char *err)
{
	char word[128];
	for (const char *rest = mistake->mended; next_word(&rest, word, sizeof word);)
		if (!has_word(mistake->wrong, word) && !has_word(err, word))
			fail_msg("%s\nis mended by '%s', which is not in: %s", mistake->wrong, word, err);
	if (is_removal(mistake) && !has_word(err, "remove") && !has_word(err, "keep") && !has_word(err, "leave"))
		fail_msg("%s\nis mended by removing it, of which nothing is in: %s", mistake->wrong, err);
}

static void check_works(const struct scratch *scratch, const struct mistake *mistake, const char *line)
{
	struct ran ran = run_line(scratch, "%s", line);
	if (ran.status)
		fail_msg("%s\nmended by\n%s\nexit %d: %s", mistake->wrong, mistake->mended, ran.status, ran.err);
	run_free(&ran);
}

static void check_fails(const struct scratch *scratch, const struct mistake *mistake, const char *line)
{
	struct ran ran = run_line(scratch, "%s", line);
	if (!ran.status)
		fail_msg("%s\nis no mistake", mistake->wrong);
	check_failed(&ran, "roundhouse");
	check_led(mistake, ran.err);
	run_free(&ran);
}

static void make_rows(struct scratch *scratch)
{
	static const char pair[] = "{\"prompt\": \"the cat \", \"chosen\": \"sat here\", \"rejected\": \"ran away\"}\n"
	                           "{\"prompt\": \"a dog \", \"chosen\": \"ran away\", \"rejected\": \"sat\"}\n";
	static const char turns[] = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}";
	make_good(scratch);
	write_text(path_of("%s/pairs.jsonl", scratch->dir), pair);
	write_text(path_of("%s/twice.jsonl", scratch->dir), ROWS ROWS);
	write_text(path_of("%s/prompt.txt", scratch->dir), "the cat");
	write_text(path_of("%s/turns.jinja", scratch->dir), turns);
	write_text(path_of("%s/hf/chat_template.jinja", scratch->dir), turns);
}

static void test_mistakes_in_a_file_are_mended_as_their_line_says(void **state)
{
	(void)state;
	struct scratch scratch;
	char line[256];
	make_rows(&scratch);
	snprintf(line, sizeof line, "plan %s/mistaken.yaml", scratch.dir);
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		write_run(&scratch, files[i].wrong, files[i].mended);
		check_fails(&scratch, &files[i], line);
		write_run(&scratch, files[i].mended, files[i].mended);
		check_works(&scratch, &files[i], line);
	}
	printf("%zu mistakes\n", sizeof files / sizeof *files);
	scratch_close(&scratch);
}

static void test_mistakes_on_the_command_line_are_mended_as_their_line_says(void **state)
{
	(void)state;
	struct scratch scratch;
	char line[1024];
	make_rows(&scratch);
	run_ok(&scratch, "train %s/run.yaml --lora_r 2 --output_dir %s/lora", scratch.dir, scratch.dir);
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
		fill_in(&scratch, lines[i].wrong, line, sizeof line);
		check_fails(&scratch, &lines[i], line);
		fill_in(&scratch, lines[i].mended, line, sizeof line);
		check_works(&scratch, &lines[i], line);
	}
	printf("%zu mistakes\n", sizeof lines / sizeof *lines);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_mistakes_in_a_file_are_mended_as_their_line_says),
	        cmocka_unit_test(test_mistakes_on_the_command_line_are_mended_as_their_line_says),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
