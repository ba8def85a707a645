/* What is no mistake but not as it seems is told of, in one line. */
#include "cli/good.h"

#include "core/json.h"

#include <math.h>

/* Runs a line, whose '@' is the scratch directory; it succeeds, and says all of `told` (NULL-terminated, by check_has: the key, its value
 * and the mend), but nothing that has '!' before it. */
static void says(const struct scratch *scratch, const char *line, const char *const *told)
{
	char full[2048];
	struct ran ran;
	fill_in(scratch, line, full, sizeof full);
	run_start(scratch, full, 0, &ran);
	run_wait(&ran);
	if (ran.status)
		fail_msg("%s: %s", full, ran.err);
	for (; *told; told++)
		if (**told == '!' ? strstr(ran.err, *told + 1) != NULL : !check_has(ran.err, *told))
			fail_msg("'%s' in what is said by: %s\n%s", *told, full, ran.err);
	run_free(&ran);
}
#define SAYS(scratch, line, ...) says(scratch, line, (const char *const[]){__VA_ARGS__, NULL})

static void test_cuts_below_what_is_trained_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	SAYS(&scratch, "train @/run.yaml --use_peft true --backward_cuts [1]", "backward_cuts: 1 has no effect");
	scratch_close(&scratch);
}

static void test_an_adapter_on_a_gguf_names_the_base_that_is_given(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	SAYS(&scratch, "train @/run.yaml --model_name_or_path @/model.gguf --lora_r 2 --output_dir @/one",
	     "model.gguf as its base|base_model_name_or_path: ORG/MODEL");
	SAYS(&scratch,
	     "train @/run.yaml --model_name_or_path @/model.gguf --lora_r 2 --output_dir @/two --base_model_name_or_path org/model",
	     "!as its base");
	assert_true(find_in(path_of("%s/two/adapter_config.json", scratch.dir), "\"base_model_name_or_path\": \"org/model\"") > 0);
	SAYS(&scratch, "train @/run.yaml --lora_r 2 --output_dir @/three", "!as its base", "!rope_scaling");
	SAYS(&scratch, "train @/run.yaml --lora_r 2 --output_dir @/four --rope_scaling {\"rope_type\":\"yarn\",\"factor\":4}",
	     "rope_scaling");
	scratch_close(&scratch);
}

static void test_boundaries_that_stay_in_memory_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/nvme", scratch.dir)));
#define SPILLS "train @/run.yaml --spill activations --nvme_dirs [@/nvme] --max_nvme 1GiB "
	SAYS(&scratch, SPILLS "--output_dir @/one", "spill: activations stay in memory: |one stage");
	SAYS(&scratch, SPILLS "--output_dir @/two --backward_cuts [2]", "spill: activations stay in memory: |buffers");
	SAYS(&scratch, "train @/run.yaml --spill auto --nvme_dirs [@/nvme] --max_nvme 1GiB --output_dir @/three", "!stay in memory");
	scratch_close(&scratch);
}

static void test_adapters_of_another_base_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	SAYS(&scratch, "train @/run.yaml --lora_r 2 --lora_target_modules self_attn.q_proj,v_proj --output_dir @/lora", "!adapter says");
	SAYS(&scratch, "eval @/run.yaml --validation_file @/rows.jsonl --adapter_name_or_path @/lora/", "!adapter says");
	copy_dir(path_of("%s/hf", scratch.dir), path_of("%s/other", scratch.dir));
	SAYS(&scratch, "train @/run.yaml --model_name_or_path @/other --adapter_name_or_path @/lora --output_dir @/more",
	     path_of("adapter says|%s/hf|%s/other", scratch.dir, scratch.dir));
	assert_true(find_in(path_of("%s/more/adapter_config.json", scratch.dir), "/other\"") > 0);
	SAYS(&scratch, "eval --model_name_or_path @/other --max_length 64 --validation_file @/rows.jsonl --adapter_name_or_path @/more",
	     "!adapter says");
	/* the same model by other names */
	static const char *const names[] = {"somebody/other", "/cache/models--somebody--other/snapshots/93efa2f097", "OTHER.Q4_K_M.gguf",
	                                    "other-f16.gguf"};
	char was[128];
	snprintf(was, sizeof was, "%s/other\"", scratch.dir);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		char next[128];
		snprintf(next, sizeof next, "%s\"", names[i]);
		edit_file(path_of("%s/more/adapter_config.json", scratch.dir), was, next);
		SAYS(&scratch, "generate --model_name_or_path @/other --prompt a --max_new_tokens 1 --adapter_name_or_path @/more",
		     "!adapter says");
		strcpy(was, next);
	}
	edit_file(path_of("%s/more/adapter_config.json", scratch.dir), was, "other-Instruct\"");
	SAYS(&scratch, "generate --model_name_or_path @/other --prompt a --max_new_tokens 1 --adapter_name_or_path @/more",
	     "adapter says|other-Instruct|/other");
	scratch_close(&scratch);
}

static void test_rows_that_nobody_evaluates_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	SAYS(&scratch, "train @/run.yaml --eval_split 0.5", "nothing will be evaluated|eval_strategy");
	SAYS(&scratch, "train @/run.yaml --eval_split 0.5 --output_dir @/split", "eval_split|2 of the 4 rows");
	SAYS(&scratch, "train @/run.yaml --output_dir @/two --validation_file @/rows.jsonl --eval_strategy epoch",
	     "!nothing will be evaluated", "eval_loss");
	scratch_close(&scratch);
}

/* What a run left that was ended before its first checkpoint is in nobody's way. */
static void test_a_log_without_a_checkpoint_counts_as_empty(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/out/.checkpoint-3.tmp", scratch.dir)));
	write_text(path_of("%s/out/metrics.jsonl", scratch.dir), "{\"step\": 10, \"loss\": 1}\n");
	refused(&scratch, "train @/run.yaml --resume_from_checkpoint true", "resume_from_checkpoint: |leave the key out");
	SAYS(&scratch, "train @/run.yaml --logging_steps 1", "written to");
	assert_false(find_or_not(path_of("%s/out/metrics.jsonl", scratch.dir), "\"step\": 10,"));
	scratch_close(&scratch);
}

static void test_the_first_step_is_logged_where_that_is_asked_for(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	for (int first = 0; first < 2; first++) {
		SAYS(&scratch,
		     path_of("train @/run.yaml --max_steps 5 --logging_steps 3 --output_dir @/log%d --logging_first_step %s", first,
		             first ? "true" : "false"),
		     "written to");
		const char *log = path_of("%s/log%d/metrics.jsonl", scratch.dir, first);
		assert_int_equal(find_or_not(log, "\"step\": 1,") != 0, first);
		assert_false(find_or_not(log, "\"step\": 2,"));
		assert_true(find_or_not(log, "\"step\": 3,"));
	}
	scratch_close(&scratch);
}

static void test_going_on_says_what_is_other_and_what_is_left(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	SAYS(&scratch, "train @/run.yaml --save_steps 1 --max_steps -1 --num_train_epochs 1", "step 1/2 done");
	uint64_t before = tree_hash(scratch.dir);
	SAYS(&scratch, "train @/run.yaml --save_steps 1 --max_steps -1 --num_train_epochs 1 --resume_from_checkpoint true",
	     "/out/checkpoint-2|step 2 of 2", "nothing is left to do", "!written to");
	if (tree_hash(scratch.dir) != before)
		fail_msg("a run with nothing left to do wrote something");
	write_text(path_of("%s/out/metrics.jsonl", scratch.dir), "{\"step\": 1}\n{\"step\": 2,\n");
	SAYS(&scratch, "train @/run.yaml --save_steps 1 --max_steps -1 --num_train_epochs 2 --resume_from_checkpoint true",
	     "/out/metrics.jsonl:2: |cut off", "checkpoint's configuration: num_train_epochs: 2.0|1.0", "going on from", "!was trained on",
	     "!checkpoint's configuration: seed");
	write_text(path_of("%s/rows.jsonl", scratch.dir), ROWS ROWS);
	SAYS(&scratch, "train @/run.yaml --save_steps 1 --max_steps 5 --resume_from_checkpoint true",
	     "checkpoint-4 was trained on 4 rows|8");
	scratch_close(&scratch);
}

/* The prompt of `generate` and the chat template: which is used is said. */
static void test_the_chat_template_in_use_is_named(void **state)
{
	(void)state;
	static const char chatml[] =
	        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
	        "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n";
	static const struct {
		const char *options, *told;
	} cases[] = {{"--prompt the", "the prompt is used as it stands|`chat`|chat template"},
	             {"--prompt <|im_start|>the", NULL},
	             {"--prompt the --chat_template none", NULL},
	             {"--prompt the --chat_template chatml", "chat template chatml|chat_template: none"}};
	struct scratch scratch;
	make_good(&scratch);
	const char *model = path_of("%s/hf/tokenizer.json", scratch.dir),
	           *refusal = "generate --model_name_or_path @/hf --max_new_tokens 2 --prompt the";
	refused(&scratch, path_of("%s --chat_template llama3", refusal), "chat_template: llama3 writes <|eot_id|>");
	refused(&scratch, path_of("%s --chat_template chatml", refusal), "chat_template: chatml writes <|im_start|>");
	while (find_or_not(model, "<|endoftext|>"))
		edit_file(model, "<|endoftext|>", "<|im_start|>");
	edit_file(path_of("%s/hf/tokenizer_config.json", scratch.dir), "<|endoftext|>", "<|im_start|>");
	write_text(path_of("%s/hf/chat_template.jinja", scratch.dir), chatml);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ran ran =
		        run_line(&scratch, "generate --model_name_or_path %s/hf --max_new_tokens 2 %s", scratch.dir, cases[i].options);
		assert_int_equal(ran.status, 0);
		if (cases[i].told ? !check_has(ran.err, cases[i].told) : strstr(ran.err, "template") != NULL)
			fail_msg("%s: %s", cases[i].options, ran.err);
		run_free(&ran);
	}
	write_text(path_of("%s/rows.jsonl", scratch.dir),
	           "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n");
	SAYS(&scratch, "train @/run.yaml", "chat template of the model|every token is trained|assistant_only_loss");
	SAYS(&scratch, "eval --model_name_or_path @/out --validation_file @/rows.jsonl --max_length 64 --assistant_only_loss",
	     "chat template of the model", "!every token is trained");
	/* a model trained here on conversations is prompted with their template by itself */
	SAYS(&scratch, "generate --model_name_or_path @/out --max_new_tokens 2 --prompt the",
	     "chat template of the model|chat_template: none");
	SAYS(&scratch, "generate --model_name_or_path @/out --max_new_tokens 2 --prompt the --chat_template none", "!template");
	/* the template trained with goes with the model: in place of another, wherever that stood */
	const char *const jinja = "src/data/templates/chatml.jinja";
	char *text = read_bytes("src/data/templates/chatml.jinja", &(size_t){0});
	write_text(path_of("%s/hf/chat_template.jinja", scratch.dir), text);
	SAYS(&scratch, "train @/run.yaml --output_dir @/same --chat_template chatml", "!the output carries");
	free(text);
	write_text(path_of("%s/hf/chat_template.jinja", scratch.dir), "{{ other }}");
	write_text(path_of("%s/hf/chat_template.json", scratch.dir), "{}");
	edit_file(path_of("%s/hf/tokenizer_config.json", scratch.dir), "{", "{\"chat_template\": \"{{ other }}\", ");
	SAYS(&scratch, "train @/run.yaml --output_dir @/lora --chat_template chatml --use_peft true --save_steps 1",
	     "the output carries|chatml|chat_template.jinja|in place of the base's");
	static const char *const places[] = {"%s/lora", "%s/lora/checkpoint-1"};
	for (int i = 0; i < 2; i++) {
		const char *dir = path_of(places[i], scratch.dir);
		size_t length, expected;
		char *bytes = read_bytes(path_of("%s/chat_template.jinja", dir), &length), *own = read_bytes(jinja, &expected);
		assert_int_equal(length, expected);
		assert_memory_equal(bytes, own, length);
		free(bytes);
		free(own);
		assert_false(find_or_not(path_of("%s/tokenizer_config.json", dir), "other"));
		assert_true(find_or_not(path_of("%s/tokenizer_config.json", dir), "add_generation_prompt"));
		assert_false(rh_file_exists(path_of("%s/chat_template.json", dir)));
	}
	SAYS(&scratch, "train @/run.yaml --output_dir @/full --chat_template chatml", "in place of the base's");
	SAYS(&scratch, "eval --model_name_or_path @/full --validation_file @/rows.jsonl --max_length 64", "chat template of the model");
	scratch_close(&scratch);
}

static void test_a_template_without_effect_is_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	SAYS(&scratch, "train @/run.yaml", "!chat_template");
	SAYS(&scratch, "train @/run.yaml --output_dir @/two --chat_template chatml", "chat_template has no effect", "!the output carries");
	assert_false(rh_file_exists(path_of("%s/two/chat_template.jinja", scratch.dir)));
	scratch_close(&scratch);
}

/* Runs a line with --json and requires `part` in its result, which is one line of JSON. */
static void prints(const struct scratch *scratch, const char *line, const char *part)
{
	char full[2048];
	json_t *result;
	fill_in(scratch, line, full, sizeof full);
	struct ran ran = run_line(scratch, "%s", full);
	if (ran.status || !strstr(ran.out, part))
		fail_msg("'%s' in what is printed by: %s\n%s%s", part, full, ran.out, ran.err);
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "stdout", &result));
	json_decref(result);
	run_free(&ran);
}

static double loss_of(const struct scratch *scratch, const char *line)
{
	char full[1024];
	json_t *result;
	fill_in(scratch, line, full, sizeof full);
	struct ran ran = run_line(scratch, "%s", full);
	if (ran.status)
		fail_msg("%s", ran.err);
	check_ok(rh_json_parse(ran.out, strlen(ran.out), "stdout", &result));
	json_t *eval = json_object_get(result, "eval"); /* of train */
	double loss = json_number_value(json_object_get(eval ? eval : result, "eval_loss"));
	json_decref(result);
	run_free(&ran);
	return loss;
}

/* By the file that trained: the loss is that of training's last evaluation, to the twelve digits that are printed. */
static void test_rows_that_training_held_out_can_be_evaluated(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	double trained = loss_of(&scratch, "train @/run.yaml --json --eval_split 0.5 --data_seed 3 --eval_strategy epoch");
	double held = loss_of(&scratch, "eval @/run.yaml --json --eval_split 0.5 --data_seed 3 --model_name_or_path @/out");
	double others =
	        loss_of(&scratch, "eval @/run.yaml --json --validation_file @/rows.jsonl --eval_split 0.5 --model_name_or_path @/out");
	assert_true(held > 0 && fabs(held / trained - 1) < 1e-10);
	assert_true(fabs(others / held - 1) > 1e-6); /* all four rows */
	SAYS(&scratch, "eval @/run.yaml --eval_split 0.5 --model_name_or_path @/out", "eval_split|2 of the 4 rows");
	refused(&scratch, "eval --model_name_or_path @/hf --eval_split 0.5", "eval_split: |train_file");
	scratch_close(&scratch);
}

/* The numbers of a tensor in the bytes of a safetensors file; width: of a row. */
static float *tensor_in(char *bytes, const char *name, int64_t *rows, int64_t *width)
{
	uint64_t header;
	memcpy(&header, bytes, sizeof header);
	json_t *table = json_loadb(bytes + 8, (size_t)header, 0, NULL), *tensor = json_object_get(table, name),
	       *shape = json_object_get(tensor, "shape");
	*rows = json_integer_value(json_array_get(shape, 0));
	*width = json_array_size(shape) > 1 ? json_integer_value(json_array_get(shape, 1)) : 1;
	int64_t begin = json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 0));
	json_decref(table);
	assert_true(*rows > 0);
	return (float *)(void *)(bytes + 8 + header + (uint64_t)begin);
}

/* A model whose logits are no numbers behind one token: its hidden row is all in column 0, which the last norm then makes overflow. */
static void spoil_token(const char *path, int64_t token)
{
	size_t length;
	int64_t rows, width;
	char *bytes = read_bytes(path, &length);
	float *embedding = tensor_in(bytes, "model.embed_tokens.weight", &rows, &width);
	embedding[token * width] = 1e6f;
	tensor_in(bytes, "model.norm.weight", &rows, &width)[0] = 1e38f;
	float *head = tensor_in(bytes, "lm_head.weight", &rows, &width);
	for (int64_t row = 0; row < rows; row++)
		head[row * width] = 0;
	write_bytes(path, bytes, length);
	free(bytes);
}

/* JSON has no NaN: a loss that is none is null, and the rest of the result is there. */
static void test_losses_that_are_no_numbers_are_null(void **state)
{
	(void)state;
	enum { OF_Z = 90 };
	struct scratch scratch;
	make_good(&scratch);
	copy_file(MODELS "gguf-llama/config.json", path_of("%s/hf/config.json", scratch.dir));
	copy_file(MODELS "gguf-llama/model.safetensors", path_of("%s/hf/model.safetensors", scratch.dir));
	spoil_token(path_of("%s/hf/model.safetensors", scratch.dir), OF_Z);
	write_text(path_of("%s/z.jsonl", scratch.dir), "{\"prompt\": \"Z \", \"completion\": \"Z Z\"}\n");
	prints(&scratch, "train @/run.yaml --json --use_peft true --validation_file @/z.jsonl --eval_strategy epoch", "\"eval_loss\":null");
	prints(&scratch, "eval --json --model_name_or_path @/hf --max_length 64 --validation_file @/z.jsonl", "\"eval_loss\":null");
	scratch_close(&scratch);
}

/* "eval_loss" of what a line prints with --json. */
static double eval_loss_of(const struct scratch *scratch, const char *line)
{
	char full[2048];
	fill_in(scratch, line, full, sizeof full);
	struct ran ran = run_line(scratch, "%s --json", full);
	if (ran.status)
		fail_msg("%s: %s", full, ran.err);
	json_t *json = json_loads(ran.out, 0, NULL), *eval = json_object_get(json, "eval");
	double loss = json_real_value(json_object_get(eval ? eval : json, "eval_loss"));
	json_decref(json);
	run_free(&ran);
	return loss;
}

/* The run's key alone asks for it, and evaluations leave it out: what the run says of its last weights, eval says of them too. */
static void test_a_load_balancing_loss_that_is_left_out_is_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *config = path_of("%s/hf/config.json", scratch.dir);
	copy_file(MODELS "gguf-qwen3-moe/config.json", config);
	edit_file(config, "\"output_router_logits\": false", "\"output_router_logits\": true");
	write_text(path_of("%s/moe.yaml", scratch.dir),
	           path_of("config_name: %s/hf\ntrain_file: %s/rows.jsonl\nvalidation_file: %s/rows.jsonl\nallow: [duplicates, overlap]\n"
	                   "max_length: 64\nmax_steps: 2\nper_device_train_batch_size: 2\neval_strategy: epoch\ndevice: cpu:2\n"
	                   "backward_cuts: [2, 3]\nforward_cuts: [1]\n",
	                   scratch.dir, scratch.dir, scratch.dir));
	SAYS(&scratch, "train @/moe.yaml --output_dir @/one", "output_router_logits|router_aux_loss_coef");
	SAYS(&scratch, "train @/moe.yaml --output_dir @/two --router_aux_loss_coef 0.5", "!output_router_logits");
	double in_run = eval_loss_of(&scratch, "train @/moe.yaml --output_dir @/three --router_aux_loss_coef 0.5");
	double alone = eval_loss_of(&scratch, "eval --model_name_or_path @/three --max_length 64 --validation_file @/rows.jsonl");
	assert_true(alone > 1 && fabs(in_run - alone) < 1e-6 * alone);
	scratch_close(&scratch);
}

static void test_reasoning_that_a_template_leaves_out_is_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/rows.jsonl", scratch.dir), "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, "
	                                                  "{\"role\": \"assistant\", \"content\": \"a\", \"reasoning\": \"as it is\"}]}\n");
	static const char line[] = "inspect @/run.yaml --chat_template @/turns.jinja";
	write_text(path_of("%s/turns.jinja", scratch.dir), "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
	SAYS(&scratch, line, "rows.jsonl:1: message 2: |turns.jinja|thought");
	write_text(path_of("%s/turns.jinja", scratch.dir),
	           "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}<|im_end|>{% endfor %}");
	SAYS(&scratch, line, "!thought");
	scratch_close(&scratch);
}

/* Some templates write text arguments as a JSON string, as transformers does, and a model would learn to call tools so. */
static void test_arguments_that_a_template_quotes_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(
	        path_of("%s/rows.jsonl", scratch.dir),
	        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": "
	        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]}]}\n");
	static const char line[] = "inspect @/run.yaml --chat_template @/turns.jinja";
	static const char turns[] = "{%% for m in messages %%}{{ m.content }}{%% for c in m.tool_calls %%}{{ c.function.name }} {{ %s "
	                            "}}{%% endfor %%}<|im_end|>"
	                            "{%% endfor %%}";
	write_text(path_of("%s/turns.jinja", scratch.dir), path_of(turns, "c.function.arguments | tojson"));
	SAYS(&scratch, line, "rows.jsonl:1: message 2: |turns.jinja|in quotes|objects");
	write_text(path_of("%s/turns.jinja", scratch.dir), path_of(turns, "c.function.arguments"));
	SAYS(&scratch, line, "!in quotes");
	scratch_close(&scratch);
}

/* The file that names it is the one to mend. */
static void test_a_named_token_that_is_none_is_told_with_its_file(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	write_text(path_of("%s/hf/special_tokens_map.json", scratch.dir), "{\"pad_token\": \"<none>\"}");
	SAYS(&scratch, "inspect @/run.yaml", "special_tokens_map.json: token '<none>'|has no row");
	write_text(path_of("%s/hf/special_tokens_map.json", scratch.dir), "{}");
	write_text(path_of("%s/hf/tokenizer_config.json", scratch.dir), "{\"pad_token\": \"<none>\"}");
	SAYS(&scratch, "inspect @/run.yaml --allow no-end-of-turn", "tokenizer_config.json: token '<none>'|has no row");
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_cuts_below_what_is_trained_are_told_of),
	        cmocka_unit_test(test_an_adapter_on_a_gguf_names_the_base_that_is_given),
	        cmocka_unit_test(test_boundaries_that_stay_in_memory_are_told_of),
	        cmocka_unit_test(test_adapters_of_another_base_are_told_of),
	        cmocka_unit_test(test_rows_that_nobody_evaluates_are_told_of),
	        cmocka_unit_test(test_a_log_without_a_checkpoint_counts_as_empty),
	        cmocka_unit_test(test_the_first_step_is_logged_where_that_is_asked_for),
	        cmocka_unit_test(test_going_on_says_what_is_other_and_what_is_left),
	        cmocka_unit_test(test_the_chat_template_in_use_is_named),
	        cmocka_unit_test(test_a_template_without_effect_is_told_of),
	        cmocka_unit_test(test_rows_that_training_held_out_can_be_evaluated),
	        cmocka_unit_test(test_losses_that_are_no_numbers_are_null),
	        cmocka_unit_test(test_a_load_balancing_loss_that_is_left_out_is_told_of),
	        cmocka_unit_test(test_a_named_token_that_is_none_is_told_with_its_file),
	        cmocka_unit_test(test_reasoning_that_a_template_leaves_out_is_told_of),
	        cmocka_unit_test(test_arguments_that_a_template_quotes_are_told_of),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
