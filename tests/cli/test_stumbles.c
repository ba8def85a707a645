/* What newcomers stumbled over: each is said once, where it is known, with what to do. */
#include "cli/good.h"

/* What a run says, whatever its end; its '@' is the scratch directory. `lacks`: must not be said; NULL: anything may. */
static void says(const struct scratch *scratch, const char *line, const char *words, const char *lacks)
{
	char full[2048];
	struct ran ran;
	fill_in(scratch, line, full, sizeof full);
	run_start(scratch, full, 0, &ran);
	run_wait(&ran);
	if (!check_has(ran.err, words) || (lacks && strstr(ran.err, lacks)))
		fail_msg("'%s', and not '%s', in what is said by: %s\n%s", words, lacks ? lacks : "", full, ran.err);
	run_free(&ran);
}

/* A template makes conversations of some rows without turns; of others it does not. */
static void test_plain_rows_are_asked_to_drop_assistant_only_loss(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	static const char plain[] = "assistant_only_loss|plain strings, without turns: remove it";
	write_text(path_of("%s/texts.jsonl", scratch.dir), "{\"text\": \"the cat sat\"}\n");
	write_text(path_of("%s/asked.jsonl", scratch.dir), "{\"instruction\": \"the cat\", \"output\": \"sat\"}\n");
	says(&scratch, "train @/run.yaml --assistant_only_loss true", plain, "chat_template");
	says(&scratch, "inspect @/run.yaml --assistant_only_loss true", plain, "chat_template");
	says(&scratch, "train @/run.yaml --assistant_only_loss true --train_file @/texts.jsonl", plain, "chat_template");
	says(&scratch, "train @/run.yaml --assistant_only_loss true --train_file @/asked.jsonl",
	     "plain strings: remove it; or give a chat_template, such as chatml", NULL);
	write_text(path_of("%s/hf/chat_template.jinja", scratch.dir), "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
	run_ok(&scratch, "train %s/run.yaml --assistant_only_loss true --train_file %s/asked.jsonl", scratch.dir, scratch.dir);
	says(&scratch, "train @/run.yaml --assistant_only_loss true --output_dir @/two", plain, "chat_template");
	scratch_close(&scratch);
}

static void test_the_dropout_that_applies_is_shown(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, "train %s/run.yaml --lora_r 2", dir);
	assert_true(find_or_not(path_of("%s/out/checkpoint-2/config.yaml", dir), "\nlora_dropout: 0.05\n"));
	assert_true(find_or_not(path_of("%s/out/report.html", dir), "\nlora_dropout: 0.05\n"));
	run_ok(&scratch, "train %s/run.yaml --adapter_name_or_path %s/out --output_dir %s/on", dir, dir, dir);
	assert_true(find_or_not(path_of("%s/on/checkpoint-2/config.yaml", dir), "\nlora_dropout: 0.05\n"));
	run_ok(&scratch, "train %s/out/checkpoint-2/config.yaml --output_dir %s/again", dir, dir);
	run_ok(&scratch, "train %s/on/checkpoint-2/config.yaml --output_dir %s/later", dir, dir);
	write_text(path_of("%s/pairs.jsonl", dir), "{\"prompt\": \"the cat \", \"chosen\": \"sat\", \"rejected\": \"ran\"}\n");
	run_ok(&scratch, "train %s/run.yaml --lora_r 2 --loss_type sigmoid --train_file %s/pairs.jsonl --output_dir %s/pairs", dir, dir,
	       dir);
	assert_true(find_or_not(path_of("%s/pairs/checkpoint-2/config.yaml", dir), "\nlora_dropout: 0.0\n"));
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/full", dir, dir);
	assert_false(find_or_not(path_of("%s/full/checkpoint-2/config.yaml", dir), "\nlora_dropout:"));
	scratch_close(&scratch);
}

/* Blocks of 32 values hold no narrower rows. */
static void test_matrices_that_stay_f16_are_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	says(&scratch, "export --model_name_or_path @/hf --outfile @/1.gguf --outtype q8_0", "tensors, matrices in Q8_0\n", "F16");
	run_ok(&scratch, "train %s/run.yaml --lora_r 2", dir);
	says(&scratch, "export --model_name_or_path @/hf --adapter_name_or_path @/out --outfile @/2.gguf --outtype q8_0",
	     "8 tensors, matrices in Q8_0, but for 4 in F16, whose rows are no multiple of the 32 values that Q8_0 takes", NULL);
	edit_file(path_of("%s/hf/config.json", dir), "\"hidden_size\": 32", "\"hidden_size\": 16");
	edit_file(path_of("%s/hf/config.json", dir), "\"num_attention_heads\": 4", "\"num_attention_heads\": 2");
	edit_file(path_of("%s/hf/config.json", dir), "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 1");
	edit_file(path_of("%s/hf/config.json", dir), "\"intermediate_size\": 64", "\"intermediate_size\": 48");
	run_ok(&scratch,
	       "train --config_name %s/hf --train_file %s/rows.jsonl --max_steps 1 --max_length 64 --output_dir %s/small --allow "
	       "duplicates,overlap",
	       dir, dir, dir);
	says(&scratch, "export --model_name_or_path @/small --outfile @/3.gguf --outtype q4_0",
	     "matrices in F16, as none has rows of a multiple of 32 values, which Q4_0 takes", "in Q4_0");
	says(&scratch, "export --model_name_or_path @/small --outfile @/3.gguf --outtype f32", "matrices in F32\n", "F16");
	scratch_close(&scratch);
}

static void test_one_template_is_named_by_both_lines(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	write_text(path_of("%s/hf/chat_template.jinja", dir), "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
	write_text(path_of("%s/own.jinja", dir), "{% for m in messages %}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}");
	write_text(path_of("%s/talk.jsonl", dir),
	           "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n");
	run_ok(&scratch, "train %s/run.yaml --lora_r 2 --train_file %s/talk.jsonl --chat_template %s/own.jinja", dir, dir, dir);
	says(&scratch, "eval --model_name_or_path @/hf --adapter_name_or_path @/out --validation_file @/talk.jsonl --max_length 64",
	     "template of|/out, with which it was trained, in place of the base's\n|chat template of the adapter", "template of the model");
	says(&scratch, "generate --model_name_or_path @/hf --adapter_name_or_path @/out --prompt a --max_new_tokens 2",
	     "chat template of|/out, with which it was trained, in place of the base's\n|prompt put through chat template of the adapter, "
	     "as in "
	     "training",
	     "template of the model");
	says(&scratch, "eval --model_name_or_path @/hf --validation_file @/talk.jsonl --max_length 64", "chat template of the model",
	     "of the adapter");
	scratch_close(&scratch);
}

/* A text is a file; rows are what a file of rows has; packed rows are made of either. */
static void test_rows_texts_and_packed_rows_are_told_apart(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	check_ok(rh_dir_make(path_of("%s/docs", dir)));
	write_text(path_of("%s/docs/a.txt", dir), "the cat sat here, and a dog ran away from one, two and three red blue green cats");
	write_text(path_of("%s/docs/b.md", dir), "a dog ran away");
#define DOCS "inspect --model_name_or_path @/hf --train_file @/docs --max_length 16 --allow duplicates,overlap,cut-answers "
	says(&scratch, DOCS "--packing true --packing_strategy wrapped",
	     "2 texts, | tokens, | of them trained; in | packed rows of up to 16 tokens, | % full\n|texts longer than max_length go on in "
	     "further pieces\n|packed rows of 16 tokens (median)",
	     "documents");
	says(&scratch, DOCS, "2 texts, |1 texts cut to max_length (the longest row has |rows of ", "packed");
	says(&scratch, "inspect @/run.yaml", "4 rows, |rows of ", "packed");
	says(&scratch, "inspect @/run.yaml --packing true", "4 rows, |; in 1 packed rows of up to 64 tokens", "texts");
	says(&scratch, "inspect @/run.yaml --data_weights [2]", "4 rows read, 8 taken: ", "texts");
	scratch_close(&scratch);
}

static int count_in(const char *path, const char *text)
{
	size_t length;
	char *bytes = read_bytes(path, &length);
	int count = 0;
	for (const char *at = bytes; (at = strstr(at, text)); at++)
		count++;
	free(bytes);
	return count;
}

static void test_a_short_run_has_a_curve(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	const char *page = path_of("%s/out/report.html", dir);
	run_ok(&scratch, "train %s/run.yaml --max_steps 20", dir);
	assert_int_equal(count_in(page, "<title>loss: "), 20);
	run_ok(&scratch, "report %s/out", dir);
	assert_int_equal(count_in(page, "<title>loss: "), 20);
	/* one that goes on has the log's two points before */
	run_ok(&scratch, "train %s/run.yaml --max_steps 26 --resume_from_checkpoint true", dir);
	assert_int_equal(count_in(page, "<title>loss: "), 2 + 6);
	assert_int_equal(count_in(page, " at 26</title>"), 4); /* of each of the four curves the last point */
	scratch_close(&scratch);
}

/* Found before anything is loaded. */
static void test_another_adapter_than_the_checkpoints_is_told_what_to_give(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	run_ok(&scratch, "train %s/run.yaml --lora_r 8", scratch.dir);
	run_ok(&scratch, "train %s/run.yaml --output_dir %s/full", scratch.dir, scratch.dir);
#define GOES_ON "train @/run.yaml --max_steps 3 --resume_from_checkpoint true "
	refused(&scratch, GOES_ON "--lora_r 4", "resume_from_checkpoint: |checkpoint-2|another rank than 4; give lora_r: 8");
	refused(&scratch, GOES_ON, "holds an adapter, and this run trains all weights; give lora_r: 8");
	refused(&scratch, GOES_ON "--lora_r 8 --use_dora true", "without DoRA's magnitudes; give use_dora: false");
	refused(&scratch, GOES_ON "--lora_r 8 --lora_target_modules all-linear",
	        "other modules; give lora_target_modules: [q_proj, v_proj]");
	refused(&scratch, GOES_ON "--output_dir @/full --lora_r 8", "holds all weights|leave the lora_ keys and use_peft out");
	run_ok(&scratch, "train %s/run.yaml --max_steps 3 --resume_from_checkpoint true --lora_r 8 --lora_target_modules v_proj,q_proj",
	       scratch.dir);
	scratch_close(&scratch);
}

static void test_a_file_that_is_not_there_is_told_its_neighbour(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	refused(&scratch, "train @/run.yml", "/run.yml: no such file; there is |/run.yaml");
	refused(&scratch, "train @/elsewhere/run.yml", "/run.yml: no such file\n");
	refused(&scratch, "train @/another.yaml", "/another.yaml: no such file\n");
	refused(&scratch, "train @/run.yaml --train_file @/rows.json", "/rows.json': no such file or directory; there is |/rows.jsonl");
	says(&scratch, "plan @/run.yaml --train_file @/row.jsonl", "planned without it; there is |/rows.jsonl", NULL);
	scratch_close(&scratch);
}

static void test_max_length_is_raised_to_a_number(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	write_text(path_of("%s/hf/chat_template.jinja", dir), "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}");
	write_text(path_of("%s/talk.jsonl", dir), "{\"messages\": [{\"role\": \"user\", \"content\": \"xyzxyzxyzxyz\"}, {\"role\": "
	                                          "\"assistant\", \"content\": \"xyzxyz\"}]}\n");
	/* 12 and 6 letters without a merge, and an end of turn behind each */
	says(&scratch, "train @/run.yaml --train_file @/talk.jsonl --max_length 16",
	     "cut-answers: raise max_length (the longest row has 20 "
	     "tokens)",
	     NULL);
	says(&scratch, "train @/run.yaml --train_file @/talk.jsonl --max_length 8 --assistant_only_loss true",
	     "within max_length 8; raise max_length (the longest row has 20 tokens), or give", NULL);
	write_text(path_of("%s/long.jsonl", dir), "{\"prompt\": \"xyz\", \"completion\": \"xyzxyzxyzxyzxyzxyzxyzxyzxyzxyz\"}\n");
	says(&scratch, "train @/run.yaml --train_file @/long.jsonl --max_length 8",
	     "raise max_length (the longest row has about 43 tokens)", NULL); /* it has 34: reckoned from the first few */
	run_ok(&scratch, "train %s/run.yaml --train_file %s/talk.jsonl --max_length 20", dir, dir);
	scratch_close(&scratch);
}

/* Before the model is read, and without a trace. */
static void test_an_output_dir_that_cannot_be_made_is_found_at_once(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	static const char *const lines[] = {"train @/run.yaml --output_dir /proc/roundhouse/x",
	                                    "export --model_name_or_path @/hf --output_dir /proc/roundhouse"};
	for (int i = 0; i < 2; i++) {
		refused(&scratch, lines[i], "output_dir: |/proc");
		says(&scratch, lines[i], "output_dir: |cannot be ", "rows.jsonl");
	}
	refused(&scratch, "train @/run.yaml --output_dir @/rows.jsonl/out", "rows.jsonl/out: |Not a directory");
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_plain_rows_are_asked_to_drop_assistant_only_loss),
	        cmocka_unit_test(test_the_dropout_that_applies_is_shown),
	        cmocka_unit_test(test_matrices_that_stay_f16_are_told_of),
	        cmocka_unit_test(test_one_template_is_named_by_both_lines),
	        cmocka_unit_test(test_rows_texts_and_packed_rows_are_told_apart),
	        cmocka_unit_test(test_a_short_run_has_a_curve),
	        cmocka_unit_test(test_another_adapter_than_the_checkpoints_is_told_what_to_give),
	        cmocka_unit_test(test_a_file_that_is_not_there_is_told_its_neighbour),
	        cmocka_unit_test(test_max_length_is_raised_to_a_number),
	        cmocka_unit_test(test_an_output_dir_that_cannot_be_made_is_found_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
