/* sample_prompts: the answers of each evaluation are those that `generate` gives with the weights of that step, asking changes no bit of
 * the training, and memory is as planned. */
#include "cli/good.h"
#include "core/json.h"

#define EVALUATED "--eval_split 0.5 --eval_strategy steps --eval_steps 2 --save_steps 2 --max_steps 4 --learning_rate 0.05"
#define LORA      "--lora_r 4 --lora_target_modules all-linear"

/* The answer to prompt `number` at this step; the caller frees it. */
static char *answer_at(const char *dir, int64_t step, int64_t number)
{
	size_t length;
	char *bytes = read_bytes(path_of("%s/metrics.jsonl", dir), &length), *rest = bytes, *found = NULL;
	for (char *line; !found && (line = strsep(&rest, "\n")) && *line;) {
		json_t *json = NULL;
		check_ok(rh_json_parse(line, strlen(line), "metrics", &json));
		const char *answer = json_string_value(json_object_get(json, "answer"));
		if (answer && json_integer_value(json_object_get(json, "step")) == step &&
		    json_integer_value(json_object_get(json, "sample")) == number)
			found = strdup(answer);
		json_decref(json);
	}
	free(bytes);
	if (!found)
		fail_msg("no answer %lld at step %lld", (long long)number, (long long)step);
	return found;
}

static void expect_generated(const struct scratch *scratch, const char *where, const char *adapter, const char *prompt, int64_t step,
                             int64_t number)
{
	char *answer = answer_at(path_of("%s/%s", scratch->dir, where), step, number);
	struct ran ran =
	        run_line(scratch, "generate --model_name_or_path %s/hf --adapter_name_or_path %s/%s --max_new_tokens 7 --prompt %s",
	                 scratch->dir, scratch->dir, adapter, prompt);
	assert_int_equal(ran.status, 0);
	ran.out[strlen(ran.out) - 1] = 0; /* the line break */
	assert_string_equal(answer, ran.out);
	free(answer);
	run_free(&ran);
}

/* Several micro-batches and devices, prompts of unlike lengths, more prompts than micro-batches. */
static void test_answers_are_those_of_generate(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, "train %s/run.yaml " EVALUATED " " LORA " --sample_max_new_tokens 7 --sample_prompts [cat,one,redandgreen]", dir);
	expect_generated(&scratch, "out", "out/checkpoint-2", "one", 2, 1);
	expect_generated(&scratch, "out", "out/checkpoint-4", "cat", 4, 0);
	expect_generated(&scratch, "out", "out/checkpoint-4", "redandgreen", 4, 2);
	run_ok(&scratch,
	       "train %s/run.yaml " EVALUATED " " LORA " --output_dir %s/two --device cpu:2 --per_device_eval_batch_size 1 "
	       "--sample_max_new_tokens 7 --sample_prompts [cat,one,redandgreen]",
	       dir, dir);
	for (int64_t step = 2; step <= 4; step += 2)
		for (int64_t number = 0; number < 3; number++) {
			char *one = answer_at(path_of("%s/out", dir), step, number), *two = answer_at(path_of("%s/two", dir), step, number);
			assert_string_equal(one, two);
			free(one);
			free(two);
		}
	scratch_close(&scratch);
}

static void test_conversations_are_asked_through_their_template(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	write_text(path_of("%s/talk.jsonl", dir),
	           "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"good day\"}]}\n"
	           "{\"messages\": [{\"role\": \"user\", \"content\": \"who\"}, {\"role\": \"assistant\", \"content\": \"a cat\"}]}\n");
	write_text(path_of("%s/turns.jinja", dir), "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
	                                           "{% if add_generation_prompt %}assistant: {% endif %}");
	run_ok(&scratch,
	       "train %s/run.yaml --train_file %s/talk.jsonl --chat_template %s/turns.jinja " EVALUATED " " LORA
	       " --sample_max_new_tokens 7 --sample_prompts hi",
	       dir, dir, dir);
	expect_generated(&scratch, "out", "out", "hi", 4, 0); /* which asks as in training */
	scratch_close(&scratch);
}

static int64_t planned(const struct scratch *scratch, const char *verb, const char *keys, const char *tier)
{
	json_t *json = NULL;
	struct ran ran = run_line(scratch, "%s %s/run.yaml " EVALUATED " %s --json", verb, scratch->dir, keys);
	if (ran.status)
		fail_msg("%s", ran.err);
	check_ok(rh_json_parse(ran.out, strlen(ran.out), verb, &json));
	int is_plan = !strcmp(verb, "plan");
	const json_t *in = is_plan ? json_object_get(json_object_get(json, "tiers"), tier)
	                           : json_object_get(json_object_get(json, "plan"), "peak_bytes");
	int64_t bytes = json_integer_value(json_object_get(in, is_plan ? "used_bytes" : tier));
	if (!is_plan)
		assert_true(json_integer_value(json_object_get(json_object_get(json, "peak_bytes"), tier)) <= bytes);
	json_decref(json);
	run_free(&ran);
	assert_true(bytes > 0);
	return bytes;
}

/* A long answer is the largest thing that this run computes, and its bytes are reserved. */
static void test_asking_keeps_the_plan_and_the_bits(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	const char *plain = "--max_vram 64MiB", *asking = "--max_vram 64MiB --sample_max_new_tokens 120 --sample_prompts [cat,one]";
	int64_t without = planned(&scratch, "train", path_of("%s --output_dir %s/plain", plain, dir), "vram");
	int64_t with = planned(&scratch, "train", path_of("%s --output_dir %s/asking", asking, dir), "vram");
	assert_true(with > without);
	check_same_file(&scratch, "plain", "asking", "model.safetensors");
	int64_t host = planned(&scratch, "plan", asking, "ram"), host_without = planned(&scratch, "plan", plain, "ram");
	assert_true(host > host_without); /* a CPU device's memory is host memory */
	scratch_close(&scratch);
}

static void test_a_resumed_run_has_each_answer_once(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir, *keys = EVALUATED " " LORA " --sample_prompts cat --sample_max_new_tokens 5";
	run_ok(&scratch, "train %s/run.yaml %s", dir, keys);
	char *before = answer_at(path_of("%s/out", dir), 4, 0);
	run_ok(&scratch, "train %s/run.yaml %s --resume_from_checkpoint %s/out/checkpoint-2", dir, keys, dir);
	char *after = answer_at(path_of("%s/out", dir), 4, 0);
	assert_string_equal(before, after);
	free(before);
	free(after);
	size_t length;
	char *bytes = read_bytes(path_of("%s/out/metrics.jsonl", dir), &length);
	int answers = 0;
	for (const char *at = bytes; (at = strstr(at, "\"answer\"")); at++)
		answers++;
	assert_int_equal(answers, 2);
	free(bytes);
	scratch_close(&scratch);
}

static void test_what_cannot_be_asked_is_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	char longest[17 << 10], many[256] = "";
	memset(longest, 'a', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	for (int i = 0; i < 17; i++)
		snprintf(many + strlen(many), sizeof many - strlen(many), "%sp%d", i ? "," : "", i);
	write_text(path_of("%s/long.yaml", scratch.dir), "");
	refused(&scratch, "train @/run.yaml --sample_prompts hi", "sample_prompts: |eval_strategy");
	refused(&scratch, "train @/run.yaml --sample_max_new_tokens 4", "sample_max_new_tokens: has no effect without sample_prompts");
	refused(&scratch, "train @/run.yaml " EVALUATED " --sample_prompts hi --sample_max_new_tokens 1024",
	        "sample_prompts: |positions that the model knows; lower sample_max_new_tokens");
	refused(&scratch, path_of("train @/run.yaml " EVALUATED " --sample_prompts [%s]", many), "sample_prompts: are 17; up to 16");
	refused(&scratch, "train @/run.yaml " EVALUATED " --sample_prompts hi --mode sync-pp --boxes 2 --box 1 --link_above listen:1",
	        "sample_prompts: |sync-pp");
	FILE *file = fopen(path_of("%s/long.yaml", scratch.dir), "w");
	fprintf(file, "sample_prompts: %s\n", longest);
	fclose(file);
	refused(&scratch, "train @/long.yaml --model_name_or_path @/hf --train_file @/rows.jsonl --output_dir @/out " EVALUATED,
	        "sample_prompts: |longer than 16 KiB");
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_answers_are_those_of_generate),
	        cmocka_unit_test(test_conversations_are_asked_through_their_template),
	        cmocka_unit_test(test_asking_keeps_the_plan_and_the_bits),
	        cmocka_unit_test(test_a_resumed_run_has_each_answer_once),
	        cmocka_unit_test(test_what_cannot_be_asked_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
