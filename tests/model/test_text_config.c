/* A text model inside a larger one (text_config), and rotary scaling that the run says in place of config.json's. */
#include "config_case.h"

#include "model/traits.h"

/* Gemma 3 4B as its publisher wrote it: most of what the text model is, is transformers' default. */
static void test_left_out_keys_take_the_text_models_defaults(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_ok(
	        config_parse("{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],"
	                     "\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"intermediate_size\":10240,"
	                     "\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},"
	                     "\"vision_config\":{\"hidden_size\":1152,\"num_attention_heads\":16},\"torch_dtype\":\"bfloat16\"}",
	                     &c));
	assert_ptr_equal(c.family, rh_family_find("gemma3_text"));
	assert_true(c.wrapped);
	assert_int_equal(c.num_attention_heads, 8);
	assert_int_equal(c.num_key_value_heads, 4);
	assert_int_equal(c.head_dim, 256);
	assert_int_equal(c.vocab_size, 262208);
	assert_true(c.tie_word_embeddings);
	assert_int_equal(c.eos_token_ids, 2);
	assert_int_equal(rh_traits_of(&c, 0).window, 1024);
	assert_int_equal(rh_traits_of(&c, 5).window, 0);
	assert_int_equal(c.rope[0].type, RH_ROPE_LINEAR);
	assert_true(c.rope[0].theta == 1e6 && c.rope[1].theta == 1e4 && c.rope[1].type == RH_ROPE_DEFAULT);
	assert_string_equal(rh_model_names(&c)->layers, "model.language_model.layers.");
	assert_string_equal(rh_model_names(&c)->head, "lm_head");
	rh_model_config_free(&c);

	check_ok(config_parse("{\"model_type\":\"mistral3\",\"text_config\":{\"num_hidden_layers\":2},\"vision_config\":{}}", &c));
	assert_ptr_equal(c.family, rh_family_find("mistral"));
	assert_int_equal(c.window, 4096);
	assert_false(c.tie_word_embeddings);
	rh_model_config_free(&c);

	check_ok(config_parse("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\",\"num_hidden_layers\":2,"
	                      "\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":16,\"original_max_position_embeddings\":16384,"
	                      "\"llama_4_scaling_beta\":0.1}},\"vision_config\":{}}",
	                      &c));
	assert_ptr_equal(c.family, rh_family_find("ministral3"));
	assert_true(c.rope[0].growth == 0 && c.rope[1].growth == 0.1 && c.rope[1].original_max_position == 16384);
	assert_true(rh_traits_of(&c, 0).rope == 0 && rh_traits_of(&c, 0).query_rope == 1);
	rh_model_config_free(&c);
}

static void test_what_is_no_known_text_model_is_refused_by_name(void **state)
{
	(void)state;
	struct rh_model_config c;
	config_refused(config_parse("{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"model_type\":\"mistral3\"}", &c),
	               "Mistral3ForConditionalGeneration has no 'text_config' object");
	config_refused(config_parse("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"qwen3\"}}", &c),
	               "text_config is of model_type qwen3, which is not supported inside Mistral3ForConditionalGeneration (mistral is)");
	config_refused(config_parse("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\"}}", &c),
	               "rope_parameters must be of rope_type yarn, with a positive llama_4_scaling_beta");
	config_refused(config_parse("{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,"
	                            "\"original_max_position_embeddings\":8,\"llama_4_scaling_beta\":0.1}}",
	                            &c),
	               "'llama_4_scaling_beta' changes what layers compute: LlamaForCausalLM has no such thing here");
	config_refused(
	        config_parse("{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":\"mistral3\",\"text_config\":{}}", &c),
	        "'architectures' says Gemma3ForConditionalGeneration, but 'model_type' says mistral3");
	config_refused(config_parse("{\"architectures\":[\"Qwen2VLForConditionalGeneration\"],\"text_config\":{}}", &c),
	               "architecture Qwen2VLForConditionalGeneration is not supported");
	config_refused(config_parse("{\"model_type\":\"gemma3\",\"text_config\":{\"num_attention_heads\":0}}", &c),
	               "'num_attention_heads' is 0");
}

/* What is written keeps the larger model's words, and is the same text model. */
static void test_written_configurations_keep_what_is_around_the_text_model(void **state)
{
	(void)state;
	struct rh_model_config c, again;
	json_t *json;
	check_ok(config_parse(
	        "{\"architectures\":[\"Mistral3ForConditionalGeneration\"],\"model_type\":\"mistral3\",\"image_token_index\":10,"
	        "\"text_config\":{\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"num_hidden_layers\":2},"
	        "\"vision_config\":{\"model_type\":\"pixtral\"}}",
	        &c));
	c.tie_word_embeddings = 0;
	check_ok(rh_model_config_write(&c, "bfloat16", &json));
	assert_string_equal(json_string_value(json_array_get(json_object_get(json, "architectures"), 0)),
	                    "Mistral3ForConditionalGeneration");
	assert_int_equal(json_integer_value(json_object_get(json, "image_token_index")), 10);
	assert_true(json_is_false(json_object_get(json, "tie_word_embeddings")));
	assert_string_equal(json_string_value(json_object_get(json, "dtype")), "bfloat16");
	const json_t *text = json_object_get(json, "text_config");
	assert_string_equal(json_string_value(json_object_get(text, "model_type")), "mistral");
	assert_null(json_object_get(text, "architectures"));
	assert_null(json_object_get(json, "hidden_size"));
	check_ok(rh_model_config_parse(json, "written", &again));
	assert_int_equal(again.window, 4096);
	assert_int_equal(again.hidden_size, 64);
	rh_model_config_free(&again);
	rh_model_config_free(&c);
	json_decref(json);
}

static void scale(const char *config, const char *scaling, struct rh_model_config *out)
{
	json_t *json = NULL;
	check_ok(config_parse(config, out));
	check_ok(rh_json_parse(scaling, strlen(scaling), "scaling", &json));
	check_ok(rh_model_config_scale_rope(out, json));
	json_decref(json);
}

static void test_the_runs_scaling_replaces_the_configurations(void **state)
{
	(void)state;
	struct rh_model_config c;
	static const char yarn[] = "{\"rope_type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":32768}";
	scale("{\"model_type\":\"qwen3\",\"rope_theta\":1e6,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.0}}", yarn, &c);
	assert_int_equal(c.rope[0].type, RH_ROPE_YARN);
	assert_int_equal(c.rope[0].original_max_position, 32768);
	assert_true(c.rope[0].factor == 4 && c.rope[0].theta == 1e6);
	assert_true(c.max_position_embeddings == 32768 && rh_model_longest(&c) == 131072); /* longer texts are what it is for */
	json_t *json;
	check_ok(rh_model_config_write(&c, "float32", &json)); /* and is what a model trained so says */
	assert_string_equal(json_string_value(json_object_get(json_object_get(json, "rope_scaling"), "rope_type")), "yarn");
	json_decref(json);
	rh_model_config_free(&c);

	scale("{\"model_type\":\"phi3\",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":2e4,\"partial_rotary_factor\":0.75}}",
	      "{\"rope_type\":\"linear\",\"factor\":2.0,\"rope_theta\":5e5}", &c);
	assert_true(c.rope[0].type == RH_ROPE_LINEAR && c.rope[0].theta == 5e5 && c.rotary_share == 0.75);
	assert_int_equal(rh_model_longest(&c), 8192);
	rh_model_config_free(&c);

	scale("{\"model_type\":\"gemma3\",\"text_config\":{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8."
	      "0,"
	      "\"rope_theta\":1e6},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":2e4}}}}",
	      "{\"rope_type\":\"default\"}", &c);
	assert_true(c.rope[0].type == RH_ROPE_DEFAULT && c.rope[0].theta == 1e6 && c.rope[1].theta == 2e4);
	assert_int_equal(rh_model_longest(&c), 131072);
	rh_model_config_free(&c);

	check_ok(config_parse("{\"model_type\":\"qwen3\"}", &c));
	check_ok(rh_json_parse("{\"rope_type\":\"spiral\"}", 22, "scaling", &json));
	int rc = rh_model_config_scale_rope(&c, json);
	assert_int_equal(strncmp(rh_error(rc), "rope_scaling: rope type 'spiral' is not supported", 49), 0); /* the key once */
	config_refused(rc, "rope type 'spiral' is not supported");
	assert_int_equal(c.rope[0].type, RH_ROPE_DEFAULT);
	json_decref(json);
	rh_model_config_free(&c);
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_left_out_keys_take_the_text_models_defaults),
	        cmocka_unit_test(test_what_is_no_known_text_model_is_refused_by_name),
	        cmocka_unit_test(test_written_configurations_keep_what_is_around_the_text_model),
	        cmocka_unit_test(test_the_runs_scaling_replaces_the_configurations),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
