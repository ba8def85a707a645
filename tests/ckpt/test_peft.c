#include "scratch.h"

#include "ckpt/peft.h"
#include "core/json.h"

#include <math.h>

static int load_text(const char *text, struct rh_peft_config *out)
{
	char dir[64];
	scratch_make(dir);
	scratch_text(dir, "adapter_config.json", text);
	int rc = rh_peft_config_load(dir, out);
	assert_true(rh_dir_remove(dir) == 0);
	return rc;
}

/* Targets, ranks and alphas of every linear module of a model are those that PEFT gave them; also after a round through our own file. */
static void test_peft_modules_are_those_of_peft(void **state)
{
	(void)state;
	json_t *cases, *item, *wanted;
	size_t i;
	const char *module;
	check_ok(rh_json_load(REFERENCE "peft.json", &cases));
	assert_true(json_array_size(cases) >= 7);
	json_array_foreach(cases, i, item)
	{
		struct rh_peft_config config;
		char *text = json_dumps(json_object_get(item, "config"), 0), dir[64];
		scratch_make(dir);
		scratch_text(dir, "adapter_config.json", text);
		for (int round = 0; round < 2; round++) {
			check_ok(rh_peft_config_load(dir, &config));
			json_object_foreach(json_object_get(item, "modules"), module, wanted)
			{
				int targeted = rh_peft_matches(&config, module);
				if (targeted != json_is_array(wanted))
					fail_msg("case %zu: %s is %stargeted", i, module, targeted ? "" : "not ");
				if (!targeted)
					continue;
				int64_t r;
				double alpha;
				check_ok(rh_peft_module(&config, module, &r, &alpha));
				assert_int_equal(r, json_integer_value(json_array_get(wanted, 0)));
				assert_true(alpha == json_number_value(json_array_get(wanted, 1)));
				double scale = alpha / (config.use_rslora ? sqrt((double)r) : (double)r);
				assert_true(scale == json_number_value(json_array_get(wanted, 2)));
			}
			check_ok(rh_peft_config_save(&config, dir));
			rh_peft_config_free(&config);
		}
		check_ok(rh_dir_remove(dir));
		free(text);
	}
	json_decref(cases);
}

static void test_peft_saved_configurations_have_pefts_keys_and_sorted_targets(void **state)
{
	(void)state;
	struct rh_peft_config config;
	char dir[64];
	const char *key;
	json_t *cases, *saved, *value;
	check_ok(load_text("{\"peft_type\":\"LORA\",\"r\":8,\"lora_alpha\":16,\"lora_dropout\":0.05,\"base_model_name_or_path\":\"./m\","
	                   "\"target_modules\":[\"v_proj\",\"q_proj\",\"v_proj\"],\"rank_pattern\":{\"q_proj\":3}}",
	                   &config));
	scratch_make(dir);
	check_ok(rh_peft_config_save(&config, dir));
	rh_peft_config_free(&config);
	char *path = rh_path_join(dir, "adapter_config.json");
	check_ok(rh_json_load(path, &saved));
	check_ok(rh_json_load(REFERENCE "peft.json", &cases));
	json_object_foreach(json_object_get(json_array_get(cases, 0), "config"), key, value)
	{
		if (strcmp(key, "peft_version") && !json_object_get(saved, key))
			fail_msg("'%s' is missing", key);
	}
	json_t *targets = json_object_get(saved, "target_modules");
	assert_int_equal(json_array_size(targets), 2);
	assert_string_equal(json_string_value(json_array_get(targets, 0)), "q_proj");
	assert_true(json_is_integer(json_object_get(saved, "lora_alpha")));
	assert_int_equal(json_integer_value(json_object_get(json_object_get(saved, "rank_pattern"), "q_proj")), 3);
	assert_true(json_number_value(json_object_get(saved, "lora_dropout")) == 0.05);
	json_decref(saved);
	json_decref(cases);
	rh_free(path);
	check_ok(rh_dir_remove(dir));
}

static void refused(const char *more, const char *part)
{
	struct rh_peft_config config;
	char text[1024];
	snprintf(text, sizeof text, "{\"peft_type\":\"LORA\",\"r\":4,%s}", more);
	check_refused(load_text(text, &config), part);
}

static void test_peft_refuses_what_is_not_built_or_makes_no_sense(void **state)
{
	(void)state;
#define T ",\"target_modules\":[\"q_proj\"]"
	struct rh_peft_config config;
	refused("\"use_dora\":true,\"target_parameters\":[\"mlp.experts.down_proj\"]" T, "'use_dora' is of modules");
	refused("\"modules_to_save\":[1]" T, "'modules_to_save' has an entry that is no name");
	refused("\"ensure_weight_tying\":1" T, "ensure_weight_tying");
	refused("\"layers_to_transform\":\"1\"" T, "'layers_to_transform' must be a whole number or a list of them");
	refused("\"layers_to_transform\":[1.5]" T, "'layers_to_transform' must be a whole number or a list of them");
	refused("\"layers_to_transform\":0,\"target_modules\":\"all-linear\"", "goes with a list of target_modules alone");
	refused("\"layers_pattern\":\"h\"" T, "'layers_pattern' is not supported");
	refused("\"exclude_modules\":\"(q\"" T, "exclude_modules: '(q' is no regular expression");
	refused("\"exclude_modules\":[1]" T, "'exclude_modules' has an entry that is no name");
	refused("\"bias\":\"all\"" T, "bias 'all' is not supported (none is)");
	refused("\"init_lora_weights\":\"pissa_niter_4\"" T, "init_lora_weights 'pissa_niter_4' changes the base model's weights");
	refused("\"r2\":1", "'target_modules' must be a list of names");
	refused("\"target_modules\":[]", "'target_modules' must be a list of names");
	refused("\"target_modules\":[1]", "'target_modules' has an entry that is no name");
	refused("\"target_modules\":[\"\"]", "'target_modules' has an entry that is no name");
	refused("\"target_modules\":\"(q\"", "target_modules: '(q' is no regular expression: missing closing parenthesis");
	refused("\"rank_pattern\":{\"[\":3}" T, "rank_pattern: '[' is no regular expression");
	refused("\"rank_pattern\":{\"q\":3.5}" T, "rank_pattern['q'] must be a whole number from 1 to 65536");
	refused("\"alpha_pattern\":{\"q\":\"x\"}" T, "alpha_pattern['q'] must be a number");
	refused("\"alpha_pattern\":[]" T, "'alpha_pattern' must be an object");
	refused("\"lora_alpha\":\"x\"" T, "'lora_alpha' must be a number");
	refused("\"lora_dropout\":1" T, "lora_dropout is 1; it must be at least 0 and below 1");
	check_refused(load_text("{\"r\":4}", &config), "peft_type '' is not supported (LORA is)");
	check_refused(load_text("{\"peft_type\":\"IA3\"}", &config), "peft_type 'IA3' is not supported");
	check_refused(load_text("{\"peft_type\":\"LORA\",\"r\":0" T "}", &config), "r is 0; it must be 1 to 65536");
	check_refused(load_text("[]", &config), "expected a JSON object");
	check_refused(load_text("{", &config), "not valid JSON");
	assert_int_equal(rh_peft_config_load("/nonexistent", &config), -ENOENT);
}

static void test_peft_patterns_that_run_away_are_errors(void **state)
{
	(void)state;
	struct rh_peft_config config;
	check_refused(load_text("{\"peft_type\":\"LORA\",\"target_modules\":\"((.+)+)+[!?]\"}", &config), "fails on");
	check_ok(load_text("{\"peft_type\":\"LORA\",\"target_modules\":\"ALL-linear\"}", &config));
	assert_int_equal(rh_peft_matches(&config, "lm_head"), 0);
	assert_int_equal(rh_peft_matches(&config, "model.layers.0.mlp.up_proj"), 1);
	rh_peft_config_free(&config);
}

static int attempt(const char *path)
{
	struct rh_peft_config config;
	char dir[256];
	snprintf(dir, sizeof dir, "%s", path);
	*strrchr(dir, '/') = 0;
	int rc = rh_peft_config_load(dir, &config);
	if (rc)
		return rc;
	int64_t r;
	double alpha;
	rc = rh_peft_matches(&config, "model.layers.0.self_attn.q_proj");
	if (rc >= 0)
		rc = rh_peft_module(&config, "model.layers.0.self_attn.q_proj", &r, &alpha);
	rh_peft_config_free(&config);
	return rc;
}

static void test_peft_config_survives_mutation(void **state)
{
	(void)state;
	char dir[64];
	scratch_make(dir);
	scratch_text(dir, "valid.json",
	             "{\"peft_type\":\"LORA\",\"r\":4,\"lora_alpha\":8,\"lora_dropout\":0.0,\"bias\":\"none\","
	             "\"target_modules\":\"layers.[0-9]+.(q|k)_proj\",\"use_rslora\":false,\"rank_pattern\":{\"q_proj\":3,"
	             "\"(a|b)+\":2},\"alpha_pattern\":{\"^x.*$\":1.5},\"modules_to_save\":null}");
	char *path = rh_path_join(dir, "valid.json");
	scratch_fuzz(path, "adapter_config.json", 4096, 10000, attempt);
	rh_free(path);
	check_ok(rh_dir_remove(dir));
}

static int load(const char *dir)
{
	struct rh_peft_config config;
	int rc = rh_peft_config_load(dir, &config);
	if (!rc)
		rh_peft_config_free(&config);
	return rc;
}

static void test_peft_survives_failed_allocations(void **state)
{
	(void)state;
	char dir[64];
	scratch_make(dir);
	scratch_text(dir, "adapter_config.json",
	             "{\"peft_type\":\"LORA\",\"target_modules\":[\"a\",\"b\"],\"rank_pattern\":{\"q\":3,\"p\":2},"
	             "\"alpha_pattern\":{\"x\":1},\"base_model_name_or_path\":\"b\"}");
	scratch_starve(dir, load);
	check_ok(rh_dir_remove(dir));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_peft_modules_are_those_of_peft),
	        cmocka_unit_test(test_peft_saved_configurations_have_pefts_keys_and_sorted_targets),
	        cmocka_unit_test(test_peft_refuses_what_is_not_built_or_makes_no_sense),
	        cmocka_unit_test(test_peft_patterns_that_run_away_are_errors),
	        cmocka_unit_test(test_peft_config_survives_mutation),
	        cmocka_unit_test(test_peft_survives_failed_allocations),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
