/* Adapters that PEFT wrote, of every linear, the head and the embedding, whole and in factors, against what PeftModel computes with them
 * (tests/reference/adapters, made by adapters_made.py); rules on adapter_config.json, which all verbs have alike; and a base whose files
 * contradict its configuration. */
#include "cli/runner.h"

#include "ckpt/safetensors.h"
#include "core/json.h"

#include <math.h>

#define ADAPTERS "tests/reference/adapters/"

/* The model that an adapter was made for, and PEFT's loss; NAN where PEFT refuses it. */
static double expected(const json_t *losses, const char *name, const char **model)
{
	const json_t *one = json_object_get(losses, name), *loss = json_object_get(one, "loss");
	*model = json_string_value(json_object_get(one, "model"));
	return json_is_null(loss) ? NAN : json_number_value(loss);
}

/* The loss that `eval` prints; NAN and *line (free it) where it refuses. */
static double eval_loss(const struct scratch *scratch, const char *model, const char *adapter, char **line)
{
	double loss = NAN;
	json_t *json = NULL;
	struct ran ran =
	        run_line(scratch, "eval --model_name_or_path %s %s%s --validation_file " ADAPTERS "rows.jsonl --max_length 64 --json",
	                 model, adapter ? "--adapter_name_or_path " : "", adapter ? adapter : "");
	*line = strdup(ran.err);
	if (!ran.status) {
		check_ok(rh_json_parse(ran.out, strlen(ran.out), "stdout", &json));
		loss = json_number_value(json_object_get(json, "eval_loss"));
	}
	json_decref(json);
	run_free(&ran);
	return loss;
}

static void check_loss(const char *what, const char *name, double seen, double right, const char *line)
{
	if (!(fabs(seen - right) <= 1e-5 * fabs(right)))
		fail_msg("%s of %s: the loss is %.10g, PEFT's %.10g: %s", what, name, seen, right, line);
}

static void test_adapters_are_what_peft_makes_of_them(void **state)
{
	(void)state;
	struct scratch scratch;
	json_t *losses;
	const char *name, *model;
	json_t *one;
	size_t compared = 0, refused = 0;
	scratch_open(&scratch);
	check_ok(rh_json_load(ADAPTERS "losses.json", &losses));
	json_object_foreach(losses, name, one)
	{
		char adapter[128], base[128], merged[128], *line;
		double right = expected(losses, name, &model);
		int spoilt = !json_is_null(json_object_get(one, "spoilt"));
		snprintf(adapter, sizeof adapter, ADAPTERS "%s", name);
		snprintf(base, sizeof base, ADAPTERS "%s", model);
		snprintf(merged, sizeof merged, "%s/%s", scratch.dir, name);
		double seen = eval_loss(&scratch, base, adapter, &line);
		struct ran ran = run_line(&scratch, "merge --model_name_or_path %s --adapter_name_or_path %s --output_dir %s --outtype f32",
		                          base, adapter, merged);
		if (isnan(seen) != (ran.status != 0))
			fail_msg("%s: eval says %s, merge %s", name, line, ran.err);
		if (isnan(seen) && !spoilt)
			fail_msg("%s is refused: %s", name, line);
		if (isnan(seen)) {
			refused++;
		} else if (!isnan(right)) {
			check_loss("eval", name, seen, right, line);
			free(line);
			seen = eval_loss(&scratch, merged, NULL, &line);
			check_loss("merge", name, seen, right, line);
			compared++;
		}
		free(line);
		run_free(&ran);
	}
	printf("%zu adapters have PEFT's loss, %zu contradict their configuration and are refused\n", compared, refused);
	json_decref(losses);
	assert_true(compared >= 14 && refused >= 3);
	scratch_close(&scratch);
}

/* ---- rules, for every verb ---- */

static const char *const verbs[] = {
        "eval --validation_file " ADAPTERS "rows.jsonl --max_length 64",
        "generate --prompt hi --max_new_tokens 2",
        "merge --outfile @/merged.gguf",
        "merge --output_dir @/merged",
        "export --outfile @/lora.gguf",
        "train --train_file " ADAPTERS "rows.jsonl --max_length 64 --max_steps 1 --output_dir @/trained --allow no-end-of-turn",
};
enum { VERBS = sizeof verbs / sizeof *verbs };

/* Runs a verb on ADAPTERS tied with the adapter in the scratch directory. */
static struct ran run_verb(const struct scratch *scratch, int verb)
{
	char line[512] = "";
	for (const char *at = verbs[verb]; *at; at++)
		snprintf(line + strlen(line), sizeof line - strlen(line), *at == '@' ? "%s" : "%.1s", *at == '@' ? scratch->dir : at);
	return run_line(scratch, "%s --model_name_or_path " ADAPTERS "tied --adapter_name_or_path %s/adapter", line, scratch->dir);
}

/* Writes an adapter of two linears with factors of one rank, named as its configuration has them or otherwise. */
static void write_adapter(const struct scratch *scratch, const char *config, const char *first, const char *more)
{
	static float ones[16];
	char name[2][160];
	struct rh_safetensors_out *out;
	struct rh_safetensors_entry entry[3] = {{.name = name[0], .dtype = RH_F32, .rank = 2, .shape = {1, 16}},
	                                        {.name = name[1], .dtype = RH_F32, .rank = 2, .shape = {16, 1}},
	                                        {.name = more, .dtype = RH_F32, .rank = 2, .shape = {1, 16}}};
	int count = more ? 3 : 2;
	check_ok(rh_dir_make(path_of("%s/adapter", scratch->dir)));
	write_text(path_of("%s/adapter/adapter_config.json", scratch->dir), config);
	for (int i = 0; i < 16; i++)
		ones[i] = 0.25f;
	for (int f = 0; f < 2; f++)
		snprintf(name[f], sizeof name[f], "base_model.model.%s.lora_%c.weight", first, 'A' + f);
	check_ok(rh_safetensors_create(path_of("%s/adapter/adapter_model.safetensors", scratch->dir), entry, count, &out));
	for (int i = 0; i < count; i++)
		check_ok(rh_safetensors_write(out, ones, sizeof ones));
	check_ok(rh_safetensors_commit(out));
}

#define CONFIG(more)  "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 1" more "}"
#define TARGET(names) ", \"target_modules\": [" names "]"
#define Q(layer)      "model.layers." layer ".self_attn.q_proj"

static void test_every_verb_has_the_same_rules(void **state)
{
	(void)state;
	static const struct {
		const char *config, *factors, *more, *says;
	} rules[] = {
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\"")), Q("0"), NULL, NULL}, /* the sound one */
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\", \"layers.1.self_attn.q_proj\"")), Q("0"), NULL, "layers.1.self_attn.q_proj"},
	        {CONFIG(TARGET("\"layers.1.self_attn.q_proj\"")), Q("0"), NULL, "q_proj"},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\"")), Q("0"), "base_model.model.lm_head.lora_A.weight", "lm_head"},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\", \"lm_head\"")), Q("0"), NULL, "lm_head"},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\", \"embed_tokens\"")), Q("0"), NULL, "embed_tokens"},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\"") ", \"modules_to_save\": [\"embed_tokens\"]"), Q("0"), NULL, "embed_tokens"},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\"") ", \"modules_to_save\": [\"norm\"]"), Q("0"), NULL, "'norm' cannot be"},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\"")), Q("0"), "base_model.model.lm_head.weight", "lm_head.weight'"},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\"")), Q("0"), "base_model.model.model.layers.9.x.lora_A.weight", NULL},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\"") ", \"use_dora\": true"), Q("0"), NULL, "lora_magnitude_vector"},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\"") ", \"bias\": \"all\""), Q("0"), NULL, "bias"},
	        {CONFIG(TARGET("\"layers.0.self_attn.q_proj\"") ", \"rank_pattern\": {\"q_proj\": 2}"), Q("0"), NULL, ""},
	        {"{\"peft_type\": \"IA3\"}", Q("0"), NULL, "peft_type"},
	};
	struct scratch scratch;
	scratch_open(&scratch);
	for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
		for (int v = 0; v < VERBS; v++) {
			write_adapter(&scratch, rules[r].config, rules[r].factors, rules[r].more);
			struct ran ran = run_verb(&scratch, v);
			int refuses = r > 0;
			if ((ran.status != 0) != refuses)
				fail_msg("rule %zu, %s: exit %d: %s", r, verbs[v], ran.status, ran.err);
			if (refuses && rules[r].says && !strstr(ran.err, rules[r].says))
				fail_msg("rule %zu, %s: no '%s' in: %s", r, verbs[v], rules[r].says, ran.err);
			run_free(&ran);
			check_ok(rh_dir_remove(path_of("%s/adapter", scratch.dir)));
			check_ok(rh_dir_remove(path_of("%s/merged", scratch.dir)));
			check_ok(rh_dir_remove(path_of("%s/trained", scratch.dir)));
			for (int file = 0; file < 2; file++)
				if (rh_file_exists(path_of("%s/%s.gguf", scratch.dir, file ? "lora" : "merged")))
					check_ok(rh_file_remove(path_of("%s/%s.gguf", scratch.dir, file ? "lora" : "merged")));
		}
	scratch_close(&scratch);
}

/* A file that was damaged is refused by all. */
static void test_a_damaged_adapter_is_refused_by_every_verb(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	write_adapter(&scratch, CONFIG(TARGET("\"layers.0.self_attn.q_proj\"")), Q("0"), NULL);
	const char *path = path_of("%s/adapter/adapter_model.safetensors", scratch.dir);
	FILE *file = fopen(path, "r+b");
	assert_true(file && fseek(file, -2, SEEK_END) == 0 && fputc('!', file) == '!' && !fclose(file));
	for (int v = 0; v < VERBS; v++) {
		struct ran ran = run_verb(&scratch, v);
		if (!ran.status || !strstr(ran.err, "checksum"))
			fail_msg("%s: exit %d: %s", verbs[v], ran.status, ran.err);
		run_free(&ran);
	}
	scratch_close(&scratch);
}

/* Training goes on from tables that are trained whole, and from no others. */
static void test_adapters_of_tables_are_not_trained_on(void **state)
{
	(void)state;
	struct scratch scratch;
	json_t *losses, *one;
	const char *name;
	size_t refused = 0;
	scratch_open(&scratch);
	check_ok(rh_json_load(ADAPTERS "losses.json", &losses));
	json_object_foreach(losses, name, one)
	{
		struct ran ran =
		        run_line(&scratch,
		                 "train --model_name_or_path " ADAPTERS "%s --adapter_name_or_path " ADAPTERS "%s --train_file " ADAPTERS
		                 "rows.jsonl --max_length 64 --max_steps 1 --output_dir %s/trained --allow no-end-of-turn",
		                 json_string_value(json_object_get(one, "model")), name, scratch.dir);
		if (ran.status && !rh_dir_exists(path_of("%s/trained", scratch.dir)))
			refused += strstr(ran.err, "merge it first") != NULL;
		else if (ran.status)
			fail_msg("%s: %s", name, ran.err);
		run_free(&ran);
		check_ok(rh_dir_remove(path_of("%s/trained", scratch.dir)));
	}
	assert_int_equal(refused, 11);
	json_decref(losses);
	scratch_close(&scratch);
}

/* ---- a base whose configuration says that its head is its embedding ---- */

/* Copies ADAPTERS apart, whose tables are two, and says that they are one; `same`: the head's bytes become the embedding's. */
static void make_contradiction(const struct scratch *scratch, int same)
{
	struct rh_safetensors *file;
	copy_dir(ADAPTERS "apart", path_of("%s/model", scratch->dir));
	edit_file(path_of("%s/model/config.json", scratch->dir), "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
	if (!same)
		return;
	char path[128];
	size_t length;
	snprintf(path, sizeof path, "%s/model/model.safetensors", scratch->dir);
	check_ok(rh_safetensors_open(path, &file));
	const struct rh_safetensor *head = rh_safetensors_find(file, "lm_head.weight"),
	                           *table = rh_safetensors_find(file, "model.embed_tokens.weight");
	int64_t to = head->offset, from = table->offset, bytes = head->bytes;
	rh_safetensors_close(file);
	char *all = read_bytes(path, &length);
	memcpy(all + to, all + from, (size_t)bytes);
	write_bytes(path, all, length);
	free(all);
}

static void test_a_head_that_is_there_counts_before_the_word(void **state)
{
	(void)state;
	for (int same = 0; same < 2; same++) {
		struct scratch scratch;
		char model[128], *line;
		scratch_open(&scratch);
		make_contradiction(&scratch, same);
		snprintf(model, sizeof model, "%s/model", scratch.dir);
		double seen = eval_loss(&scratch, model, NULL, &line);
		if ((strstr(line, "is another table in the files") == NULL) != same)
			fail_msg("%d: %s", same, line);
		free(line);
		double apart = eval_loss(&scratch, ADAPTERS "apart", NULL, &line);
		free(line);
		assert_true(!isnan(seen) && (fabs(seen - apart) < 1e-9) == !same);
		/* and goes along */
		run_ok(&scratch, "export --model_name_or_path %s --output_dir %s/out --outtype f32", model, scratch.dir);
		double again = eval_loss(&scratch, path_of("%s/out", scratch.dir), NULL, &line);
		assert_true(fabs(again - seen) < 1e-9);
		free(line);
		scratch_close(&scratch);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_adapters_are_what_peft_makes_of_them),
	        cmocka_unit_test(test_every_verb_has_the_same_rules),
	        cmocka_unit_test(test_a_damaged_adapter_is_refused_by_every_verb),
	        cmocka_unit_test(test_adapters_of_tables_are_not_trained_on),
	        cmocka_unit_test(test_a_head_that_is_there_counts_before_the_word),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
