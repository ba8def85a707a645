/* Every configuration of examples/ runs, on a tiny model of its family and rows of its form: a key or a value that this program does not
 * take, or that contradicts another, is found here. */
#include "cli/good.h"

#define CLASSES "tests/reference/data/images/classes"
#define CALL                                                                                                                               \
	"{\"messages\": [{\"role\": \"user\", \"content\": \"sum\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": "        \
	"[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {\"a\": 1}}}]}, {\"role\": \"tool\", \"content\": "    \
	"\"3\"}, {\"role\": \"assistant\", \"content\": \"three\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": "       \
	"\"add\"}}]}\n"
static const char turns[] = "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
                            "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
                            "{% if add_generation_prompt %}assistant: {% endif %}";

/* A model of random weights with the tokenizer that `from` has, made by a run of one step. */
static void make_model(const struct scratch *scratch, const char *name, const char *config)
{
	const char *dir = scratch->dir;
	copy_dir(path_of("%s/hf", dir), path_of("%s/%s-config", dir, name));
	check_ok(unlink(path_of("%s/%s-config/model.safetensors", dir, name)));
	write_text(path_of("%s/%s-config/config.json", dir, name), config);
	run_ok(scratch,
	       "train --config_name %s/%s-config --train_file %s/rows.jsonl --output_dir %s/%s --max_length 64 --max_steps 1 --allow "
	       "duplicates",
	       dir, name, dir, dir, name);
}

static void make_place(struct scratch *scratch)
{
	static const char texts[] = "{\"text\": \"good dog\", \"label\": 1}\n{\"text\": \"bad cat\", \"label\": 0}\n";
	make_good(scratch);
	const char *dir = scratch->dir;
	write_text(path_of("%s/turns.jinja", dir), turns);
	write_text(path_of("%s/talk.jsonl", dir), path_of("%s%s%s", CALL, CALL, CALL));
	check_ok(rh_dir_make(path_of("%s/docs", dir)));
	write_text(path_of("%s/docs/a.txt", dir), "The quick brown fox jumps over the lazy dog, again and again and again and again.\n");
	write_text(path_of("%s/docs/b.md", dir), "# A title\n\nAnd a text that is as long as the first one, or longer, by some words.\n");
	write_text(path_of("%s/labelled.jsonl", dir), texts);
	make_model(
	        scratch, "moe",
	        "{\"model_type\": \"qwen3_moe\", \"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 288, \"hidden_size\": 16, "
	        "\"intermediate_size\": 32, \"moe_intermediate_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
	        "\"num_key_value_heads\": 1, \"head_dim\": 8, \"num_experts\": 4, \"num_experts_per_tok\": 2, \"norm_topk_prob\": true, "
	        "\"max_position_embeddings\": 4096}");
	check_ok(rh_dir_make(path_of("%s/bert", dir)));
	write_text(path_of("%s/bert/vocab.txt", dir), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\nbad\ndog\ncat\n");
	write_text(path_of("%s/bert/config.json", dir),
	           "{\"model_type\": \"bert\", \"architectures\": [\"BertForSequenceClassification\"], \"vocab_size\": 9, \"hidden_size\": "
	           "16, "
	           "\"intermediate_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"max_position_embeddings\": 256}");
	check_ok(rh_dir_make(path_of("%s/vit", dir)));
	write_text(
	        path_of("%s/vit/config.json", dir),
	        "{\"model_type\": \"vit\", \"architectures\": [\"ViTForImageClassification\"], \"hidden_size\": 24, \"image_size\": 12, "
	        "\"patch_size\": 4, \"intermediate_size\": 36, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_labels\": 2}");
	copy_file("tests/reference/data/images/bilinear/preprocessor_config.json", path_of("%s/vit/preprocessor_config.json", dir));
}

/* An example, less its model_name_or_path where `more` names a config.json to begin from. */
static void expect_runs(const struct scratch *scratch, const char *example, int begins, const char *more)
{
	char line[2048], path[256];
	static int number;
	snprintf(path, sizeof path, "%s/example-%d.yaml", scratch->dir, number);
	copy_file(path_of("examples/%s.yaml", example), path);
	if (begins)
		edit_file(path, "\nmodel_name_or_path:", "\n#");
	fill_in(scratch,
	        path_of("train %s --max_steps 2 --dtype float32 --device cpu:1 --save_strategy epoch --output_dir @/out%d %s", path,
	                number++, more),
	        line, sizeof line);
	struct ran ran = run_line(scratch, "%s", line);
	if (ran.status || !strstr(ran.err, "written to"))
		fail_msg("examples/%s.yaml: exit %d: %s", example, ran.status,
		         ran.err + (strlen(ran.err) > 400 ? strlen(ran.err) - 400 : 0)); /* its end */
	run_free(&ran);
}

static void test_examples_run(void **state)
{
	(void)state;
	struct scratch scratch;
	make_place(&scratch);
	static const char talk[] =
	        "--train_file @/talk.jsonl --chat_template @/turns.jinja --allow [duplicates,overlap,cut-answers] --max_length 128 "
	        "--eval_strategy no --eval_split 0.4 --model_name_or_path ";
	expect_runs(&scratch, "lora-24gb", 0, path_of("%s@/hf", talk));
	expect_runs(&scratch, "tools-lora", 0, path_of("%s@/hf", talk));
	expect_runs(&scratch, "dpo", 0,
	            "--model_name_or_path @/hf --train_file tests/reference/preference/pairs.jsonl --max_length 64 --eval_split 0.4 --allow "
	            "[duplicates,cut-answers]");
	expect_runs(&scratch, "kto", 0,
	            "--model_name_or_path @/hf --train_file tests/reference/preference/judged.jsonl --max_length 64 --eval_split 0.4 --allow "
	            "[duplicates,cut-answers]");
	expect_runs(&scratch, "orpo", 0,
	            "--model_name_or_path @/hf --train_file tests/reference/preference/pairs.jsonl --max_length 64 --eval_split 0.4 --allow "
	            "[duplicates,cut-answers]");
	expect_runs(&scratch, "moe-lora", 0, path_of("%s@/moe", talk));
	expect_runs(&scratch, "full-finetune", 0,
	            "--model_name_or_path @/hf --train_file @/rows.jsonl --validation_file @/rows.jsonl --max_length 64 --allow "
	            "[duplicates,overlap,cut-answers]");
	expect_runs(
	        &scratch, "documents", 0,
	        "--model_name_or_path @/hf --train_file @/docs --max_length 16 --eval_split 0.3 --allow [duplicates,overlap,cut-answers]");
	expect_runs(&scratch, "classify-texts", 1,
	            "--config_name @/bert --train_file @/labelled.jsonl --validation_file @/labelled.jsonl --max_length 16 --allow "
	            "[duplicates,overlap,cut-answers] --metric_for_best_model eval_loss");
	expect_runs(&scratch, "classify-images", 1, "--config_name @/vit --train_file " CLASSES " --validation_file " CLASSES);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_examples_run)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
