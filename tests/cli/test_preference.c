/* Losses over preferences, as a person runs them: the figures of TRL 1.16 (tests/reference/preference.py), the same bits on other machines
 * and after a resume, the reference that is kept, and what is refused. */
#include "runner.h"

#include "core/json.h"

#include <math.h>

#define ROWS "tests/reference/preference/"
#define TINY                                                                                                                               \
	"--max_length 40 --per_device_train_batch_size 2 --logging_steps 1 --lr_scheduler_type constant --train_sampling_strategy "        \
	"sequential --dtype float32 --allow duplicates,no-end-of-turn,cut-answers"

/* A list as flags take it, or a number. */
static void add_flag(char *line, size_t bytes, const char *key, const json_t *value)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
	assert_non_null(text);
	for (char *from = text, *to = text; (*to = *from); from++) /* words without quotes */
		to += *from != '"';
	size_t used = strlen(line);
	snprintf(line + used, bytes - used, " --%s %s", key, text);
	free(text);
}

/* Losses within 1e-5; where they come near 0, as hinge's do, within 1e-5 of what they are made of, whose fp32 sums have about 1e-6.
 * All else, rewards and log-probabilities among it, within 1e-4. */
static void check_figure(const char *name, const char *key, size_t step, const json_t *wanted, const json_t *line)
{
	const json_t *found = json_object_get(line, key);
	int is_loss = !strcmp(key, "loss");
	if (json_is_null(wanted) || !wanted) {
		assert_null(found);
		return;
	}
	double want = json_number_value(wanted), have = json_number_value(found);
	double room = is_loss ? 1e-5 * (fabs(want) > 0.1 ? fabs(want) : 0.1) : 1e-4;
	if (!json_is_number(found) || !(fabs(have - want) <= room))
		fail_msg("%s: step %zu: %s %.9g, TRL %.9g", name, step + 1, key, have, want);
}

static void check_curve(const struct scratch *scratch, const char *name, const json_t *curve)
{
	char line[2048];
	const char *key, *rows = json_string_value(json_object_get(curve, "rows"));
	const json_t *keys = json_object_get(curve, "keys"), *told = json_object_get(curve, "told");
	json_t *value;
	int is_lora = !strcmp(json_string_value(json_object_get(curve, "kind")), "lora");
	snprintf(line, sizeof line,
	         "train --model_name_or_path %s/hf --train_file " ROWS "%s.jsonl --output_dir %s/out --save_strategy no " TINY "%s",
	         scratch->dir, rows, scratch->dir, is_lora ? " --adapter_name_or_path " ROWS "adapter" : "");
	json_object_foreach((json_t *)(uintptr_t)keys, key, value) add_flag(line, sizeof line, key, value);
	run_ok(scratch, "%s", line);
	size_t length, step = 0;
	char *text = read_bytes(path_of("%s/out/metrics.jsonl", scratch->dir), &length), *rest = text;
	for (char *entry; (entry = strsep(&rest, "\n"));) {
		json_t *figures = *entry ? json_loads(entry, 0, NULL) : NULL;
		if (!figures)
			continue;
		json_object_foreach((json_t *)(uintptr_t)told, key, value)
		        check_figure(name, key, step, json_array_get(value, step), figures);
		step++;
		json_decref(figures);
	}
	assert_int_equal(step, json_array_size(json_object_get(told, "loss")));
	free(text);
	check_ok(rh_dir_remove(path_of("%s/out", scratch->dir)));
}

static void test_each_loss_gives_the_figures_of_trl(void **state)
{
	(void)state;
	struct scratch scratch;
	json_t *curves = json_load_file(ROWS "curves.json", 0, NULL), *curve;
	const char *name;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	assert_non_null(curves);
	assert_true(json_object_size(curves) >= 40);
	json_object_foreach(curves, name, curve) check_curve(&scratch, name, curve);
	json_decref(curves);
	scratch_close(&scratch);
}

#define RUN                                                                                                                                \
	"train --model_name_or_path %s/hf --train_file " ROWS "%s.jsonl --loss_type %s --lora_r 4 --lora_target_modules all-linear "       \
	"--learning_rate 4e-3 --max_steps %d --gradient_accumulation_steps 4 --output_dir %s/%s " TINY

/* The last loss and the adapter do not depend on devices, rounds, stages or the schedule. */
static void check_bits(const char *loss, const char *rows)
{
	static const char *const others[] = {"--device cpu:3", "--round_micro_batches 1 --device cpu:2", "--max_vram 700KiB",
	                                     "--schedule gpipe --device cpu:2", "--schedule 1f1b --device cpu:2"};
	struct scratch scratch;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	run_ok(&scratch, RUN, scratch.dir, rows, loss, 6, scratch.dir, "one");
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		run_ok(&scratch, RUN " %s", scratch.dir, rows, loss, 6, scratch.dir, "other", others[i]);
		check_same_file(&scratch, "one", "other", "adapter_model.safetensors");
		check_same_file(&scratch, "one", "other", "reference_logps.bin");
		check_ok(rh_dir_remove(path_of("%s/other", scratch.dir)));
	}
	scratch_close(&scratch);
}

static void test_bits_do_not_depend_on_the_machine(void **state)
{
	(void)state;
	check_bits("sigmoid,sft", "pairs");
	check_bits("kto", "judged");
}

#define EVALUATES " --eval_strategy steps --eval_steps 2 --validation_file " ROWS "plain.jsonl"

/* On from a checkpoint, whether the reference is kept, lost or damaged. */
static void test_a_resumed_run_has_the_same_bits_and_reads_its_reference(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	run_ok(&scratch, RUN, scratch.dir, "pairs", "sigmoid", 6, scratch.dir, "whole");
	for (int how = 0; how < 3; how++) {
		run_ok(&scratch, RUN EVALUATES, scratch.dir, "pairs", "sigmoid", 3, scratch.dir, "part");
		const char *kept = path_of("%s/part/reference_logps.bin", scratch.dir);
		if (how == 1)
			assert_int_equal(unlink(kept), 0);
		if (how == 2) {
			size_t length;
			char *bytes = read_bytes(kept, &length);
			bytes[length / 2 + 9] ^= 1;
			write_bytes(kept, bytes, length);
			free(bytes);
		}
		ran = run_line(&scratch, RUN EVALUATES " --resume_from_checkpoint true", scratch.dir, "pairs", "sigmoid", 6, scratch.dir,
		               "part");
		if (ran.status || !strstr(ran.err, how ? "in one pass" : "read from"))
			fail_msg("%d: exit %d: %s", how, ran.status, ran.err);
		run_free(&ran);
		check_same_file(&scratch, "whole", "part", "adapter_model.safetensors");
		assert_true(find_or_not(path_of("%s/part/metrics.jsonl", scratch.dir), "\"eval_rewards/accuracies\": "));
		check_ok(rh_dir_remove(path_of("%s/part", scratch.dir)));
	}
	scratch_close(&scratch);
}

/* A figure of the last line of a file that has it. */
static double last_figure(const char *path, const char *key)
{
	size_t length;
	double found = NAN;
	char *text = read_bytes(path, &length), *rest = text;
	for (char *entry; (entry = strsep(&rest, "\n"));) {
		json_t *line = *entry ? json_loads(entry, 0, NULL) : NULL;
		if (json_object_get(line, key))
			found = json_number_value(json_object_get(line, key));
		json_decref(line);
	}
	free(text);
	return found;
}

/* Pairs and judged answers of some hundred tokens: answers within one chunk, over several, and one that begins where a chunk does. */
static void write_long_rows(const char *path, int is_pair)
{
	enum { ROWS_LONG = 4 };
	static const char *const words[] = {"the ", "cat ", "sat ", "on ", "a ", "mat ", "red ", "dog ", "ran ", "far "};
	static const int lengths[ROWS_LONG][3] = {{90, 120, 60}, {10, 150, 20}, {120, 2, 100}, {60, 40, 90}}; /* prompt, answers */
	FILE *file = fopen(path, "w");
	uint64_t seed = 7;
	assert_non_null(file);
	for (int r = 0; r < ROWS_LONG; r++) {
		static const char *const keys[2][3] = {{"prompt", "completion", NULL}, {"prompt", "chosen", "rejected"}};
		for (int k = 0; k < 2 + is_pair; k++) {
			fprintf(file, "%s\"%s\": \"", k ? ", " : "{", keys[is_pair][k]);
			for (int w = 0; w < lengths[r][k]; w++)
				fputs(words[check_random(&seed) % 10], file);
			fputs("\"", file);
		}
		fprintf(file, "%s}\n", is_pair ? "" : r % 2 ? ", \"label\": true" : ", \"label\": false");
	}
	assert_int_equal(fclose(file), 0);
}

#define LONG                                                                                                                               \
	"train --model_name_or_path %s/hf --train_file %s/%s.jsonl --loss_type %s --max_steps 4 --gradient_accumulation_steps 2 "          \
	"--output_dir %s/%s --max_length 1200 --per_device_train_batch_size %d --logging_steps 1 --lr_scheduler_type constant "            \
	"--train_sampling_strategy sequential --dtype float32 --allow duplicates,no-end-of-turn,cut-answers %s %s"

/* The figures of whole rows within rounding, and the same bits on other machines and after a resume, which keeps the chunks. */
static void check_chunks(const struct scratch *scratch, const char *loss, const char *rows, int batch, const char *trains)
{
	static const char *const others[] = {"--sequence_chunk 256 --device cpu:3",
	                                     "--sequence_chunk 256 --round_micro_batches 1 --device cpu:2",
	                                     "--sequence_chunk 256 --max_vram "};
	static const char *const figures[] = {"loss", "grad_norm", "rewards/chosen", "rewards/rejected", "logps/chosen"};
	const char *dir = scratch->dir;
	run_ok(scratch, LONG, dir, dir, rows, loss, dir, "whole", batch, trains, "");
	run_ok(scratch, LONG, dir, dir, rows, loss, dir, "one", batch, trains, "--sequence_chunk 256");
	for (size_t f = 0; f < sizeof figures / sizeof *figures; f++) {
		double whole = last_figure(path_of("%s/whole/metrics.jsonl", dir), figures[f]),
		       own = last_figure(path_of("%s/one/metrics.jsonl", dir), figures[f]);
		if (!(fabs(own - whole) <= 1e-5 * (fabs(whole) + (f ? 1 : 0)))) /* rewards: a difference of sums of some hundreds */
			fail_msg("%s %s: %s in chunks %.9g, whole %.9g", loss, trains, figures[f], own, whole);
	}
	const char *room = batch > 1 ? "8MiB" : "3MiB", *output = *trains ? "adapter_model.safetensors" : "model.safetensors";
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		run_ok(scratch, LONG, dir, dir, rows, loss, dir, "other", batch, trains, path_of("%s%s", others[i], i < 2 ? "" : room));
		check_same_file(scratch, "one", "other", output);
		check_ok(rh_dir_remove(path_of("%s/other", dir)));
	}
	run_ok(scratch, LONG, dir, dir, rows, loss, dir, "other", batch, trains,
	       "--sequence_chunk 256 --save_strategy steps --save_steps 2");
	run_ok(scratch, LONG, dir, dir, rows, loss, dir, "again", batch, trains,
	       path_of("--resume_from_checkpoint %s/other/checkpoint-2", dir));
	check_same_file(scratch, "one", "again", output);
	static const char *const made[] = {"whole", "one", "other", "again"};
	for (size_t i = 0; i < sizeof made / sizeof *made; i++)
		check_ok(rh_dir_remove(path_of("%s/%s", dir, made[i])));
}

static void test_rows_in_chunks_give_what_whole_rows_give(void **state)
{
	(void)state;
	static const char lora[] = "--lora_r 4 --lora_target_modules all-linear --learning_rate 4e-3", full[] = "";
	struct scratch scratch;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	edit_file(path_of("%s/hf/config.json", scratch.dir), "\"max_position_embeddings\": 128", "\"max_position_embeddings\": 4096");
	write_long_rows(path_of("%s/pairs.jsonl", scratch.dir), 1);
	write_long_rows(path_of("%s/judged.jsonl", scratch.dir), 0);
	check_chunks(&scratch, "sigmoid,sft", "pairs", 1, lora);
	check_chunks(&scratch, "ipo", "pairs", 1, full);
	check_chunks(&scratch, "orpo", "pairs", 1, full);
	check_chunks(&scratch, "simpo", "pairs", 1, lora);
	check_chunks(&scratch, "apo_zero_unpaired", "judged", 1, lora);
	/* a micro-batch of several rows is cut whole, with its mismatched documents; the last of an epoch has fewer */
	check_chunks(&scratch, "kto", "judged", 3, lora);
	check_chunks(&scratch, "kto", "judged", 2, full);
	scratch_close(&scratch);
}

/* Rows are held out and never evaluated: the reference's pass leaves them out; their micro-batches would be larger than training's. */
static void test_rows_that_are_not_evaluated_get_no_reference(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	struct ran ran = run_line(&scratch,
	                          "train --model_name_or_path %s/hf --train_file " ROWS "plain.jsonl --loss_type sigmoid --output_dir "
	                          "%s/out --save_strategy no --max_length 40 --max_steps 1 --per_device_train_batch_size 1 "
	                          "--per_device_eval_batch_size 8 --eval_split 0.5 --eval_strategy no --allow cut-answers",
	                          scratch.dir, scratch.dir);
	if (ran.status || !strstr(ran.err, "log-probabilities of 8 rows"))
		fail_msg("exit %d: %s", ran.status, ran.err);
	run_free(&ran);
	scratch_close(&scratch);
}

/* Alone, the chosen answers' cross-entropy is supervised training on them, and compares with no reference. */
static void test_sft_alone_is_supervised_training_without_a_reference(void **state)
{
	(void)state;
	static const char run[] =
	        "train --model_name_or_path %s/hf --train_file %s --output_dir %s/%s --learning_rate 1e-3 --max_steps 4 " TINY " %s";
	struct scratch scratch;
	size_t length;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	const char *dir = scratch.dir, *chosen = path_of("%s/chosen.jsonl", dir);
	char *text = read_bytes(ROWS "plain.jsonl", &length), *rest = text;
	FILE *file = fopen(chosen, "w");
	assert_non_null(file);
	for (char *line; (line = strsep(&rest, "\n"));) {
		json_t *row = *line ? json_loads(line, 0, NULL) : NULL;
		if (!row)
			continue;
		json_t *as =
		        json_pack("{s:O, s:O}", "prompt", json_object_get(row, "prompt"), "completion", json_object_get(row, "chosen"));
		assert_int_equal(json_dumpf(as, file, JSON_COMPACT), 0);
		fputc('\n', file);
		json_decref(as);
		json_decref(row);
	}
	free(text);
	assert_int_equal(fclose(file), 0);
	struct ran ran = run_line(&scratch, run, dir, ROWS "plain.jsonl", dir, "sft", "--loss_type sft");
	if (ran.status || strstr(ran.err, "in one pass"))
		fail_msg("exit %d: %s", ran.status, ran.err);
	run_free(&ran);
	assert_false(rh_file_exists(path_of("%s/sft/reference_logps.bin", dir)));
	run_ok(&scratch, run, dir, chosen, dir, "plain", "");
	for (int f = 0; f < 2; f++) {
		const char *key = f ? "grad_norm" : "loss";
		double found = last_figure(path_of("%s/sft/metrics.jsonl", dir), key),
		       wanted = last_figure(path_of("%s/plain/metrics.jsonl", dir), key);
		if (!(fabs(found - wanted) <= 1e-5 * fabs(wanted))) /* the weights are divided in another order */
			fail_msg("%s %.9g, supervised %.9g", key, found, wanted);
	}
	scratch_close(&scratch);
}

/* `eval` finds the reference of the run that made the model: the base, the base with an adapter, the model before it was trained. */
static void test_eval_gives_what_training_gave(void **state)
{
	(void)state;
	static const char *const kinds[] = {"--lora_r 4", "--adapter_name_or_path " ROWS "adapter", ""};
	static const char *const figures[] = {"eval_loss", "eval_rewards/margins", "eval_logps/chosen"};
	struct scratch scratch;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		const char *out = path_of("%s/out%zu", scratch.dir, k), *base = path_of("%s/hf", scratch.dir);
		run_ok(&scratch,
		       "train --model_name_or_path %s --train_file " ROWS
		       "pairs.jsonl --loss_type sigmoid --learning_rate 4e-3 --max_steps 4 "
		       "--output_dir %s %s " TINY EVALUATES,
		       base, out, kinds[k]);
		struct ran ran = run_line(&scratch,
		                          "eval --model_name_or_path %s%s%s --validation_file " ROWS
		                          "plain.jsonl --loss_type sigmoid --max_length 40 --dtype float32 --json",
		                          *kinds[k] ? base : out, *kinds[k] ? " --adapter_name_or_path " : "", *kinds[k] ? out : "");
		if (ran.status)
			fail_msg("exit %d: %s", ran.status, ran.err);
		json_t *result = json_loads(ran.out, 0, NULL);
		for (size_t f = 0; f < 3; f++) {
			double trained = last_figure(path_of("%s/metrics.jsonl", out), figures[f]),
			       found = json_number_value(json_object_get(result, figures[f]));
			if (!(fabs(found - trained) <= 1e-7 * (1 + fabs(trained)))) /* the same sums; it prints 12 digits */
				fail_msg("%s: %s %.12g, in training %.12g", kinds[k], figures[f], found, trained);
		}
		json_decref(result);
		run_free(&ran);
	}
	struct ran ran = run_line(
	        &scratch, "eval --model_name_or_path %s/hf --validation_file " ROWS "plain.jsonl --loss_type sigmoid --max_length 40",
	        scratch.dir);
	check_failed(&ran, "does not say which");
	run_free(&ran);
	scratch_close(&scratch);
}

/* Where the reference was there is another model by now: one that does not continue texts, or knows fewer tokens. */
static void test_a_reference_that_is_another_model_is_refused(void **state)
{
	(void)state;
	static const char *const others[][2] = {{"bert-cls", "does not continue texts"}, {"llama2", "fewer tokens"}};
	struct scratch scratch;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	run_ok(&scratch, RUN, scratch.dir, "pairs", "sigmoid", 1, scratch.dir, "out");
	for (size_t i = 0; i < 2; i++) {
		char text[512];
		snprintf(text, sizeof text, "{\"prompts\": \"text\", \"reference_model\": \"tests/reference/models/%s\"}", others[i][0]);
		write_text(path_of("%s/out/roundhouse.json", scratch.dir), text);
		struct ran ran = run_line(&scratch,
		                          "eval --model_name_or_path %s/hf --adapter_name_or_path %s/out --validation_file " ROWS
		                          "plain.jsonl --loss_type sigmoid --max_length 40",
		                          scratch.dir, scratch.dir);
		check_failed(&ran, others[i][1]);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

static void test_what_cannot_be_is_refused_in_a_line(void **state)
{
	(void)state;
	static const char *const refused[][3] = {
	        {"pairs", "--loss_type sigmoid --packing true", "packing|has no meaning beside loss_type"},
	        {"pairs", "--loss_type sigmoid --assistant_only_loss true", "assistant_only_loss|judged whole"},
	        {"pairs", "--loss_type sigmoid --sequence_chunk 256 --per_device_train_batch_size 1 --backward_cuts 2",
	         "sequence_chunk|the head beside one"},
	        {"pairs", "--loss_type sigmoid --beta 1e-9", "beta|from 1e-6"},
	        {"pairs", "--loss_type exo_pair --label_smoothing 1e-50", "label_smoothing|between 1e-6"},
	        {"pairs", "--loss_type exo_pair --label_smoothing 0.99999999", "label_smoothing|between 1e-6"},
	        {"pairs", "--loss_type sigmoid,sft --loss_weights 1,1e-50", "loss_weights|from 1e-6"},
	        {"pairs", "--loss_type sigmoid,orpo", "orpo is a loss by itself"},
	        {"pairs", "--loss_type sigmoid,sigmoid", "named twice"},
	        {"pairs", "--loss_type dpo", "'dpo' is sigmoid here"},
	        {"pairs", "--loss_type sigmoid --mode paci --boxes 2 --box 1 --link_above listen:127.0.0.1:1", "local and sync-pp"},
	        {"pairs", "--loss_type sigmoid,sft --loss_weights 1", "1 numbers for 2 losses"},
	        {"pairs", "--loss_type exo_pair", "label_smoothing above 0"},
	        {"pairs", "--loss_type robust --label_smoothing 0.5", "below 0.5"},
	        {"pairs", "--beta 0.3", "beta|has no effect without loss_type"},
	        {"pairs", "--loss_type sigmoid --simpo_gamma 1", "has no effect without loss_type: simpo"},
	        {"pairs", "", "has a chosen and a rejected answer|loss_type: sigmoid"},
	        {"judged", "", "loss_type: kto"},
	        {"pairs", "--loss_type kto", "prompt, completion and label"},
	        {"judged", "--loss_type kto --per_device_train_batch_size 1", "2 or more"},
	        {"judged", "--loss_type kto --train_sampling_strategy random", "follow one another"},
	};
	struct scratch scratch;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		struct ran ran =
		        run_line(&scratch,
		                 "train --model_name_or_path %s/hf --train_file " ROWS "%s.jsonl --output_dir %s/out --max_length 40 "
		                 "--lora_r 4 %s",
		                 scratch.dir, refused[i][0], scratch.dir, refused[i][1]);
		check_failed(&ran, refused[i][2]);
		run_free(&ran);
		assert_false(rh_dir_exists(path_of("%s/out", scratch.dir)));
	}
	scratch_close(&scratch);
}

/* plan counts both answers of a pair, and the pass over the reference. */
static void test_plan_tells_of_pairs_and_of_the_pass(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	struct ran ran[2];
	double step[2];
	for (int is_pair = 0; is_pair < 2; is_pair++) {
		ran[is_pair] = run_line(
		        &scratch,
		        "plan --model llama-3.1-8b --hardware rtx4090x1 --lora_r 16 --max_length 512 --gradient_accumulation_steps "
		        "4 --per_device_train_batch_size %d --json%s",
		        is_pair ? 1 : 2, is_pair ? " --loss_type sigmoid" : "");
		if (ran[is_pair].status)
			fail_msg("exit %d: %s", ran[is_pair].status, ran[is_pair].err);
		json_t *json = json_loads(ran[is_pair].out, 0, NULL);
		double pass = json_number_value(json_object_get(json, "reference_tokens_per_second")),
		       speed = json_number_value(json_object_get(json, "tokens_per_second"));
		step[is_pair] = json_number_value(json_object_get(json, "step_seconds"));
		if (is_pair) /* forwards alone; a step has a backward of as many products, and recomputes most of the forward */
			assert_true(pass > 1.8 * speed && pass < 4 * speed);
		json_decref(json);
		run_free(&ran[is_pair]);
	}
	assert_true(fabs(step[0] - step[1]) < 0.02 * step[0]); /* a pair is two rows */
	/* a pair, and two answers with their mismatched ones */
	static const char *const cut[][2] = {
	        {"--per_device_train_batch_size 1 --loss_type sigmoid", "the longest row, of 40000 tokens, in 3 of at most 16384"},
	        {"--per_device_train_batch_size 2 --loss_type kto", "the longest micro-batch, of 80000 tokens, in 6 of at most 16384"}};
	for (size_t i = 0; i < 2; i++) {
		struct ran chunks = run_line(&scratch,
		                             "plan --model qwen3-1.7b --hardware rtx4090x2 --lora_r 16 --max_length 20000 --check "
		                             "--gradient_accumulation_steps 2 --sequence_chunk 16384 %s",
		                             cut[i][0]);
		if (chunks.status || !strstr(chunks.out, cut[i][1]))
			fail_msg("exit %d: %s%s", chunks.status, chunks.err, chunks.out);
		run_free(&chunks);
	}
	scratch_close(&scratch);
}

static void test_inspect_shows_both_answers(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	copy_model(scratch.dir);
	struct ran ran = run_line(&scratch,
	                          "inspect --model_name_or_path %s/hf --train_file " ROWS "pairs.jsonl --loss_type sigmoid --max_length 60 "
	                          "--rows 1 --allow duplicates",
	                          scratch.dir);
	assert_int_equal(ran.status, 0);
	assert_non_null(strstr(ran.out, "pairs.jsonl:1, chosen: "));
	assert_non_null(strstr(ran.out, "pairs.jsonl:1, rejected: "));
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_each_loss_gives_the_figures_of_trl),
	        cmocka_unit_test(test_bits_do_not_depend_on_the_machine),
	        cmocka_unit_test(test_a_resumed_run_has_the_same_bits_and_reads_its_reference),
	        cmocka_unit_test(test_rows_in_chunks_give_what_whole_rows_give),
	        cmocka_unit_test(test_rows_that_are_not_evaluated_get_no_reference),
	        cmocka_unit_test(test_sft_alone_is_supervised_training_without_a_reference),
	        cmocka_unit_test(test_eval_gives_what_training_gave),
	        cmocka_unit_test(test_a_reference_that_is_another_model_is_refused),
	        cmocka_unit_test(test_what_cannot_be_is_refused_in_a_line),
	        cmocka_unit_test(test_plan_tells_of_pairs_and_of_the_pass),
	        cmocka_unit_test(test_inspect_shows_both_answers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
