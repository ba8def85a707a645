#include "config_case.h"

#include "core/alloc.h"
#include "core/file.h"
#include "model/traits.h"

/* A small valid configuration of `family` with `more` members (each ",\"key\":value"). */
static int parse_with(const char *family, const char *more, struct rh_model_config *out)
{
	char text[2048];
	snprintf(text, sizeof text,
	         "{\"architectures\":[\"%sForCausalLM\"],\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
	         "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":100%s}",
	         family, more);
	return config_parse(text, out);
}

static void check_refused(const char *family, const char *more, const char *part)
{
	struct rh_model_config config;
	int rc = parse_with(family, more, &config);
	if (rc != -EINVAL)
		fail_msg("%s with %s gives %d; expected '%s'", family, more, rc, part);
	if (!strstr(rh_error(rc), part))
		fail_msg("the line '%s' does not hold '%s'", rh_error(rc), part);
	assert_ptr_equal(strstr(rh_error(rc), "config.json: "), rh_error(rc));
}

static void check_accepted(const char *family, const char *more, struct rh_model_config *out)
{
	check_ok(parse_with(family, more, out));
}

static void test_config_defaults_are_those_of_transformers(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_ok(config_parse("{\"model_type\":\"llama\"}", &c));
	assert_ptr_equal(c.family, rh_family_find("llama"));
	assert_int_equal(c.vocab_size, 32000);
	assert_int_equal(c.hidden_size, 4096);
	assert_int_equal(c.intermediate_size, 11008);
	assert_int_equal(c.num_hidden_layers, 32);
	assert_int_equal(c.num_key_value_heads, 32);
	assert_int_equal(c.head_dim, 128);
	assert_int_equal(c.max_position_embeddings, 2048);
	assert_int_equal(c.bos_token_id, 1);
	assert_int_equal(c.eos_token_ids, 1);
	assert_int_equal(c.eos_token_id[0], 2);
	assert_true(c.rms_norm_eps == 1e-6 && c.rope[0].theta == 10000 && c.initializer_range == 0.02);
	assert_false(c.attention_bias || c.attention_output_bias || c.mlp_bias || c.qk_norm || c.tie_word_embeddings);
	rh_model_config_free(&c);
	check_ok(config_parse("{\"model_type\":\"qwen2\",\"num_attention_heads\":64,\"bos_token_id\":null}", &c));
	assert_int_equal(c.num_key_value_heads, 32);
	assert_int_equal(c.head_dim, 64);
	assert_int_equal(c.bos_token_id, -1);
	assert_int_equal(c.eos_token_ids, 0);
	assert_true(c.attention_bias && !c.attention_output_bias && !c.qk_norm);
	assert_int_equal(c.vocab_size, 151936);
	assert_int_equal(c.intermediate_size, 22016);
	assert_int_equal(c.max_position_embeddings, 32768);
	rh_model_config_free(&c);
	check_ok(config_parse("{\"architectures\":[\"Qwen3ForCausalLM\"],\"num_attention_heads\":64,\"num_key_value_heads\":null,"
	                      "\"eos_token_id\":[5,6]}",
	                      &c));
	assert_int_equal(c.num_key_value_heads, 64);
	assert_int_equal(c.head_dim, 128);
	assert_int_equal(c.eos_token_ids, 2);
	assert_int_equal(c.eos_token_id[1], 6);
	assert_true(c.qk_norm && !c.attention_bias);
	rh_model_config_free(&c);
	check_accepted("Qwen3", ",\"attention_bias\":true", &c);
	assert_true(c.attention_bias && c.attention_output_bias);
	rh_model_config_free(&c);
}

/* GPT-2 has keys of its own. */
static void test_config_of_gpt2(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_ok(config_parse("{\"model_type\":\"gpt2\"}", &c));
	assert_int_equal(c.hidden_size, 768);
	assert_int_equal(c.intermediate_size, 3072);
	assert_int_equal(c.num_key_value_heads, 12);
	assert_int_equal(c.head_dim, 64);
	assert_int_equal(c.max_position_embeddings, 1024);
	assert_true(c.attention_bias && c.attention_output_bias && c.mlp_bias && c.tie_word_embeddings);
	rh_model_config_free(&c);
	assert_int_equal(config_parse("{\"model_type\":\"gpt2\",\"n_embd\":100}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "hidden_size 100 is no multiple of n_head 12"));
	assert_int_equal(config_parse("{\"model_type\":\"gpt2\",\"activation_function\":\"relu\"}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "activation_function 'relu' is not supported (gelu_new is)"));
	assert_int_equal(config_parse("{\"model_type\":\"gpt2\",\"scale_attn_by_inverse_layer_idx\":true}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "'scale_attn_by_inverse_layer_idx' changes what layers compute"));
	assert_int_equal(config_parse("{\"model_type\":\"gpt2\",\"scale_attn_weights\":false}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "'scale_attn_weights' false changes"));
	assert_int_equal(config_parse("{\"model_type\":\"gpt2\",\"n_layer\":0}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "'n_layer' is 0; it must be positive"));
}

static void test_config_both_spellings_of_rope(void **state)
{
	(void)state;
	static const char *const spellings[] = {
	        ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
	        "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}",
	        ",\"rope_theta\":500000,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
	        "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}",
	        ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
	        "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}",
	        ",\"max_position_embeddings\":8192,\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\",\"factor\":8.0,"
	        "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0}",
	};
	for (size_t i = 0; i < 4; i++) {
		struct rh_model_config c;
		check_accepted("Llama", spellings[i], &c);
		assert_int_equal(c.rope[0].type, RH_ROPE_LLAMA3);
		assert_true(c.rope[0].theta == 500000 && c.rope[0].factor == 8 && c.rope[0].low_freq_factor == 1 &&
		            c.rope[0].high_freq_factor == 4);
		assert_int_equal(c.rope[0].original_max_position, 8192);
		rh_model_config_free(&c);
	}
	struct rh_model_config c;
	check_accepted("Qwen2",
	               ",\"rope_theta\":1e6,\"rope_scaling\":null,\"rope_parameters\":{\"rope_type\":\"default\","
	               "\"rope_theta\":1000000}",
	               &c);
	assert_int_equal(c.rope[0].type, RH_ROPE_DEFAULT);
	assert_true(c.rope[0].theta == 1e6);
	rh_model_config_free(&c);
	check_accepted("Qwen2", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}", &c);
	assert_int_equal(c.rope[0].type, RH_ROPE_LINEAR);
	assert_true(c.rope[0].factor == 2.5 && c.rope[0].theta == 10000);
	rh_model_config_free(&c);
}

static void test_config_rope_disagreement_and_unknown_types_are_errors(void **state)
{
	(void)state;
	check_refused("Llama", ",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":1e6}",
	              "'rope_theta' is given twice, as 10000 and as 1e+06");
	check_refused("Llama",
	              ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4}",
	              "'rope_scaling' and 'rope_parameters' disagree");
	check_refused("Llama", ",\"rope_scaling\":null,\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":4}", "disagree");
	check_refused("Llama", ",\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"default\",\"factor\":2}",
	              "rope_scaling says rope_type 'default' and type 'linear'");
	check_refused("Llama", ",\"rope_scaling\":{\"type\":\"axial\",\"factor\":2}", "rope_scaling: rope type 'axial' is not supported");
	check_refused("Qwen3", ",\"rope_parameters\":{\"rope_type\":\"dynamic\"}", "'factor' is missing");
	check_refused("Phi3", ",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1],\"long_factor\":[1]}",
	              "'short_factor' must be a list of 8 numbers");
	check_refused("Llama", ",\"rope_scaling\":{\"factor\":2}", "rope_scaling has a factor but no rope_type");
	check_refused("Llama", ",\"rope_scaling\":{\"rope_type\":\"linear\"}", "'factor' is missing");
	check_refused("Llama", ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}", "rope scaling factor 0 makes no sense");
	check_refused("Llama", ",\"rope_scaling\":\"linear\"", "'rope_scaling' must be an object or null");
	check_refused("Llama", ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}", "differs between kinds of layers");
	check_refused("Llama", ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}", "partial_rotary_factor 0.5 is not supported");
	check_refused("Llama", ",\"partial_rotary_factor\":0.5", "partial_rotary_factor 0.5 is not supported");
	check_refused("Llama", ",\"rope_theta\":-1", "rope_theta -1 makes no sense");
	check_refused("Llama", ",\"rope_theta\":0", "rope_theta 0 makes no sense");
	check_refused("Llama", ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}",
	              "llama3 rope scaling needs 0 < low_freq_factor < high_freq_factor");
}

static void test_config_of_layers_with_linear_attention(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_accepted("Qwen3_5", ",\"full_attention_interval\":2", &c);
	assert_true(c.layer[0].is_delta && !c.layer[1].is_delta);
	assert_int_equal(c.delta.heads, 32);
	rh_model_config_free(&c);
	check_accepted("Qwen3_5", ",\"layer_types\":[\"full_attention\",\"linear_attention\"]", &c);
	assert_true(!c.layer[0].is_delta && c.layer[1].is_delta);
	rh_model_config_free(&c);
	check_refused("Qwen3_5", ",\"linear_num_value_heads\":24", "linear_num_value_heads 24 is no multiple of linear_num_key_heads 16");
	check_refused("Qwen3_5", ",\"linear_key_head_dim\":256", "'linear_key_head_dim' is 256; it must be 1 to 128");
	check_refused("Qwen3_5", ",\"linear_conv_kernel_dim\":0", "'linear_conv_kernel_dim' is 0; it must be 1 to 8");
	check_refused("Qwen3_5", ",\"attn_output_gate\":false", "'attn_output_gate' false is not supported");
	check_refused("Qwen3_5", ",\"full_attention_interval\":0", "'full_attention_interval' is 0; it must be positive");
	check_refused("Qwen3_5", ",\"layer_types\":[\"full_attention\"]", "'layer_types' must be a list of 2 words");
	check_refused("Qwen3_5", ",\"layer_types\":[\"full_attention\",\"mamba\"]", "layer_types has 'mamba', which is not supported");
}

/* transformers' Qwen3NextConfig norms where nothing is said; a size of layers without experts is there, and no such layer. */
static void test_config_of_qwen3_next(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_accepted("Qwen3Next", ",\"shared_expert_intermediate_size\":32,\"decoder_sparse_step\":1,\"mlp_only_layers\":[]", &c);
	assert_int_equal(c.router_softmax, RH_ROUTER_OVER_CHOSEN);
	assert_true(c.intermediate_size == 32 && c.expert_size == 512 && c.experts == 512 && c.experts_per_token == 10);
	assert_true(c.layer[0].is_delta && c.layer[1].is_delta && c.head_dim == 256 && c.rotary_share == 0.25);
	rh_model_config_free(&c);
	check_accepted("Qwen3Next", ",\"norm_topk_prob\":false", &c);
	assert_int_equal(c.router_softmax, RH_ROUTER_OVER_ALL);
	rh_model_config_free(&c);
	check_refused("Qwen3Next", ",\"mlp_only_layers\":[1]", "layer 1 is to have no experts");
	check_refused("Qwen3Next", ",\"decoder_sparse_step\":2", "layer 0 is to have no experts");
}

static void test_config_of_layers_that_do_not_rotate(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_accepted("SmolLM3", ",\"no_rope_layer_interval\":2", &c);
	assert_true(!c.layer[0].is_unrotated && c.layer[1].is_unrotated);
	rh_model_config_free(&c);
	check_accepted("SmolLM3", ",\"no_rope_layers\":[0,1]", &c);
	assert_true(c.layer[0].is_unrotated && !c.layer[1].is_unrotated);
	rh_model_config_free(&c);
	check_refused("SmolLM3", ",\"no_rope_layers\":[1]", "'no_rope_layers' must be a list of 2 numbers");
	check_refused("SmolLM3", ",\"no_rope_layer_interval\":0", "'no_rope_layer_interval' is 0; it must be positive");
	check_refused("SmolLM3", ",\"use_sliding_window\":true", "'use_sliding_window' true is not supported");
}

static void test_config_of_multipliers_and_dense_hybrids(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_accepted("Granite", "", &c); /* where nothing is said scores are not scaled at all */
	assert_true(c.attention_factor == 1 && c.embedding_scale == 0 && !c.layer[0].is_unrotated);
	rh_model_config_free(&c);
	check_accepted("Granite", ",\"embedding_multiplier\":12,\"logits_scaling\":16,\"residual_multiplier\":0.22", &c);
	assert_true(c.embedding_scale == 12 && c.logits_divisor == 16 && c.residual_factor == 0.22);
	rh_model_config_free(&c);
	check_refused("Granite", ",\"logits_scaling\":0", "logits_scaling 0 makes no sense; it must be positive");
	check_refused("Granite", ",\"attention_bias\":true,\"residual_multiplier\":0.5",
	              "residual_multiplier 0.5 beside attention_bias or mlp_bias is not supported");
	check_accepted("GraniteMoeHybrid",
	               ",\"num_local_experts\":0,\"layer_types\":[\"attention\",\"full_attention\"],\"shared_intermediate_size\":48,"
	               "\"position_embedding_type\":\"rope\"",
	               &c);
	assert_true(c.intermediate_size == 48 && !c.layer[1].is_unrotated);
	rh_model_config_free(&c);
	check_accepted("GraniteMoeHybrid", ",\"num_local_experts\":0,\"layer_types\":[\"attention\",\"attention\"]", &c);
	assert_true(c.layer[0].is_unrotated && c.layer[1].is_unrotated);
	rh_model_config_free(&c);
	check_refused("GraniteMoeHybrid", ",\"layer_types\":[\"attention\",\"attention\"]", "num_local_experts 8 is not supported");
	check_refused("GraniteMoeHybrid", ",\"num_local_experts\":0", "'layer_types' must be a list of 2 words, one for each layer");
	check_refused("GraniteMoeHybrid", ",\"num_local_experts\":0,\"layer_types\":[\"mamba\",\"attention\"]",
	              "layer_types has 'mamba', which is not supported (attention, full_attention are)");
}

static void test_config_refuses_what_is_not_built_or_makes_no_sense(void **state)
{
	(void)state;
	check_refused("Mamba", "", "architecture MambaForCausalLM is not supported (known: LlamaForCausalLM, Qwen2ForCausalLM");
	check_refused("Mamba", "",
	              "MistralForCausalLM, Mistral3ForConditionalGeneration, Ministral3ForCausalLM, Phi3ForCausalLM"); /* once */
	check_refused("Mamba", "", "ViTForImageClassification)");
	check_refused("Llama", ",\"model_type\":\"qwen2\"", "'architectures' says LlamaForCausalLM, but 'model_type' says qwen2");
	check_refused("Llama", ",\"hidden_act\":\"gelu\"", "hidden_act 'gelu' is not supported (silu is)");
	check_refused("Llama", ",\"quantization_config\":{\"quant_method\":\"gptq\"}", "the model is stored quantised");
	check_refused("Llama", ",\"quantization_config\":\"gptq\"", "the model is stored quantised");
	check_refused("Qwen3Moe", ",\"mlp_only_layers\":\"0\"", "'mlp_only_layers' must be a list of layers from 0 to 1");
	check_refused("Qwen3Moe", ",\"mlp_only_layers\":[2]", "'mlp_only_layers' must be a list of layers from 0 to 1");
	check_refused("Qwen3", ",\"layer_types\":[\"full_attention\"]", "'layer_types' must be a list of 2 words");
	check_refused("Qwen3", ",\"layer_types\":[\"linear_attention\",\"full_attention\"]",
	              "layer_types has 'linear_attention', which is not supported");
	check_refused("Mistral", ",\"sliding_window\":0", "'sliding_window' is 0; it must be positive, or null for none");
	check_refused("Llama", ",\"no_rope_layers\":[1,1,1,0]", "'no_rope_layers' changes what layers compute, which is not supported");
	check_refused("Llama", ",\"attention_multiplier\":0.0078125", "'attention_multiplier' changes what layers compute");
	check_refused("Qwen3", ",\"num_experts\":128", "Qwen3ForCausalLM has no such thing here");
	check_refused("Qwen2", ",\"alibi\":true", "'alibi' changes");
	check_refused("Llama", ",\"scale_emb\":\"12\"", "'scale_emb' changes");
	check_refused("Llama", ",\"head_dim\":15", "head_dim 15 is odd");
	check_refused("Llama", ",\"head_dim\":-2", "'head_dim' is -2; it must be positive");
	check_refused("Llama", ",\"rope_theta\":1e308", "rope_theta 1e+308 makes no sense; it must be from 1 to 1e12");
	check_refused("Llama", ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":1e-10}",
	              "rope scaling factor 1e-10 makes no sense; it must be from 0.001 to 1e6");
	check_refused("Llama", ",\"head_dim\":258", "head_dim is 258; it must be 1 to 256");
	check_refused("Llama", ",\"head_dim\":65537", "head_dim is 65537; it must be 1 to 256");
	check_refused("Llama", ",\"vocab_size\":0,\"a\":1", "not valid JSON"); /* repeated key */
	struct rh_model_config c;
	assert_int_equal(config_parse("{\"model_type\":\"llama\",\"hidden_size\":100,\"num_attention_heads\":7}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "hidden_size 100 is no multiple of num_attention_heads 7"));
	assert_int_equal(config_parse("{\"model_type\":\"llama\",\"num_key_value_heads\":3}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "num_attention_heads 32 is no multiple of num_key_value_heads 3"));
	assert_int_equal(config_parse("{\"model_type\":\"llama\",\"vocab_size\":4e9}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "'vocab_size' must be a whole number"));
	assert_int_equal(config_parse("{\"model_type\":\"llama\",\"vocab_size\":4000000000}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "vocab_size is 4000000000; it must be 1 to 2147483647"));
	assert_int_equal(config_parse("{}", &c), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "neither 'architectures' nor 'model_type'"));
	assert_int_equal(config_parse("[]", &c), -EINVAL);
	assert_int_equal(config_parse("{\"architectures\":[]}", &c), -EINVAL);
	assert_int_equal(config_parse("{\"architectures\":[\"LlamaForCausalLM\",\"X\"]}", &c), -EINVAL);
	check_refused("Llama", ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9]", "'eos_token_id' has 9 entries; at most 8");
	check_refused("Llama", ",\"eos_token_id\":\"x\"", "'eos_token_id' must be a whole number or a list of them");
	check_refused("Llama", ",\"eos_token_id\":-5", "eos_token_id -5 makes no sense");
	check_refused("Llama", ",\"torch_dtype\":\"float32\",\"dtype\":\"bfloat16\"",
	              "'torch_dtype' says float32, but 'dtype' says bfloat16");
	check_refused("Llama", ",\"rms_norm_eps\":-1", "rms_norm_eps -1 makes no sense");
	check_refused("Llama", ",\"tie_word_embeddings\":1", "'tie_word_embeddings' must be true or false");
}

static void test_config_words_of_others_that_change_nothing_are_accepted(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_accepted("Llama",
	               ",\"rope_interleaved\":false,\"no_rope_layers\":[1,1],\"residual_multiplier\":1.0,\"clip_qkv\":null,"
	               "\"num_local_experts\":0,\"is_llama_config\":true",
	               &c);
	rh_model_config_free(&c);
}

/* The windows of the two layers, as transformers has them. */
static void test_config_windows_are_those_of_transformers(void **state)
{
	(void)state;
	static const struct {
		const char *family, *more;
		int64_t window[2];
	} cases[] = {
	        {"Qwen2", ",\"use_sliding_window\":false,\"sliding_window\":512,\"max_window_layers\":0", {0, 0}},
	        {"Qwen2", ",\"use_sliding_window\":true,\"sliding_window\":512,\"max_window_layers\":2", {0, 0}},
	        {"Qwen2", ",\"use_sliding_window\":true,\"sliding_window\":512,\"max_window_layers\":1", {0, 512}},
	        {"Qwen2", ",\"use_sliding_window\":true,\"max_window_layers\":0", {4096, 4096}},
	        {"Qwen2", ",\"use_sliding_window\":true,\"sliding_window\":null,\"max_window_layers\":0", {0, 0}},
	        {"Qwen3",
	         ",\"use_sliding_window\":true,\"sliding_window\":5,\"layer_types\":[\"sliding_attention\",\"full_attention\"]",
	         {5, 0}},
	        {"Llama", ",\"sliding_window\":16,\"attention_dropout\":0.0", {0, 0}},
	        {"Mistral", "", {4096, 4096}},
	        {"Mistral", ",\"sliding_window\":null", {0, 0}},
	        {"Mistral", ",\"sliding_window\":7", {7, 7}},
	        {"Phi3", "", {0, 0}},
	        {"Phi3", ",\"sliding_window\":2047", {2047, 2047}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_model_config c;
		check_accepted(cases[i].family, cases[i].more, &c);
		for (int l = 0; l < 2; l++)
			assert_int_equal(rh_traits_of(&c, l).window, cases[i].window[l]);
		rh_model_config_free(&c);
	}
}

/* What is written parses to the same again, keeps foreign keys, and says the same in both spellings. */
static void test_config_written_configurations_read_back(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {"Llama", ",\"mlp_bias\":true,\"attention_bias\":true,\"keep\":\"me\",\"torch_dtype\":\"float16\""},
	        {"Llama", ",\"tie_word_embeddings\":true,\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"llama3\",\"factor\":32.0,"
	                  "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192},\"keep\":\"me\""},
	        {"Qwen2", ",\"eos_token_id\":[3,4],\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.0,\"rope_theta\":1e6},"
	                  "\"keep\":\"me\""},
	        {"Qwen3", ",\"head_dim\":32,\"bos_token_id\":7,\"keep\":\"me\",\"dtype\":\"bfloat16\""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_model_config first, again;
		json_t *json;
		check_accepted(cases[i][0], cases[i][1], &first);
		check_ok(rh_model_config_write(&first, "bfloat16", &json));
		assert_string_equal(json_string_value(json_object_get(json, "keep")), "me");
		assert_string_equal(json_string_value(json_object_get(json, "dtype")), "bfloat16");
		assert_string_equal(json_string_value(json_object_get(json, "torch_dtype")), "bfloat16");
		assert_true(json_is_object(json_object_get(json, "rope_parameters")));
		check_ok(rh_model_config_parse(json, "written", &again));
		json_decref(json);
		json_decref(first.source);
		json_decref(again.source);
		first.source = again.source = NULL;
		assert_memory_equal(&first, &again, sizeof first);
		rh_model_config_free(&first);
		rh_model_config_free(&again);
	}
}

static void test_config_what_no_file_can_say_is_not_written(void **state)
{
	(void)state;
	struct rh_model_config c;
	json_t *json;
	check_accepted("Llama", "", &c);
	c.attention_bias = 1;
	assert_int_equal(rh_model_config_write(&c, "float32", &json), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "LlamaForCausalLM cannot have biases on q, k and v as this model does"));
	c.attention_bias = 0;
	c.rope[0].divisor = rh_alloc((size_t)c.head_dim / 2, sizeof *c.rope[0].divisor);
	assert_non_null(c.rope[0].divisor);
	for (int64_t i = 0; i < c.head_dim / 2; i++)
		c.rope[0].divisor[i] = 1 + (float)(i % 3);
	assert_int_equal(rh_model_config_write(&c, "float32", &json), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "rope_freqs.weight of the GGUF file follows no known scaling"));
	json_t *two[2]; /* models can be compared all the same */
	for (int i = 0; i < 2; i++) {
		check_ok(rh_model_config_describe(&c, &two[i]));
		c.rope[0].divisor[0] *= 2;
	}
	assert_false(json_equal(two[0], two[1]));
	c.rope[0].divisor[0] /= 4;
	json_decref(two[0]);
	json_decref(two[1]);
	for (int64_t i = 0; i < c.head_dim / 2; i++)
		c.rope[0].divisor[i] = 1;
	check_ok(rh_model_config_write(&c, "float32", &json));
	assert_true(json_is_null(json_object_get(json, "rope_scaling")));
	json_decref(json);
	rh_model_config_free(&c);
}

static void test_config_survives_mutation(void **state)
{
	(void)state;
	static const char alphabet[] = "\"{}[]:,0123456789-e.truefalsn";
	struct rh_bytes map;
	uint64_t seed = check_seed();
	int accepted = 0;
	check_ok(rh_file_load("tests/reference/ckpt/llama/config.json", &map));
	char *text = malloc(map.length + 1);
	for (int round = 0; round < 20000; round++) {
		size_t length = map.length;
		memcpy(text, map.bytes, length);
		for (uint32_t change = check_random(&seed) % 3 + 1; change; change--) {
			size_t at = check_random(&seed) % length;
			if (check_random(&seed) % 50 == 0)
				length = at + 1;
			else
				text[at] = check_random(&seed) % 8 ? alphabet[check_random(&seed) % (sizeof alphabet - 1)]
				                                   : (char)check_random(&seed);
		}
		json_t *json = NULL;
		struct rh_model_config c;
		rh_error_clear();
		int rc = rh_json_parse(text, length, "mutant", &json);
		if (!rc)
			rc = rh_model_config_parse(json, "mutant", &c);
		json_decref(json);
		if (!rc) {
			accepted++;
			if (!rh_model_config_write(&c, "float32", &json))
				json_decref(json);
			rh_model_config_free(&c);
		} else if (!*rh_error(rc) || strchr(rh_error(rc), '\n')) {
			fail_msg("no single line for error %d: '%s'", rc, rh_error(rc));
		}
	}
	printf("%d of 20000 mutants accepted\n", accepted);
	free(text);
	rh_bytes_free(&map);
}

static void test_config_load_takes_a_file_or_a_directory(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_ok(rh_model_config_load("tests/reference/ckpt/qwen3", &c));
	assert_int_equal(c.head_dim, 16);
	rh_model_config_free(&c);
	check_ok(rh_model_config_load("tests/reference/ckpt/qwen3/config.json", &c));
	assert_int_equal(c.rope[0].type, RH_ROPE_LINEAR);
	rh_model_config_free(&c);
	assert_int_equal(rh_model_config_load("tests/reference/nothing", &c), -ENOENT);
}

/* The first layers of a model are a model whose config.json reads back: each family, in both spellings of transformers. */
static void test_config_of_the_first_layers_reads_back(void **state)
{
	(void)state;
	static const char *const spellings[] = {"config.json", "config-4.json"};
	struct rh_names models;
	int tried = 0;
	check_ok(rh_dir_list("tests/reference/models", &models));
	for (size_t i = 0; i < 2 * models.count; i++) {
		char path[256];
		struct rh_model_config whole, first, again;
		json_t *json;
		snprintf(path, sizeof path, "tests/reference/models/%s/%s", models.name[i / 2], spellings[i % 2]);
		if (!rh_file_exists(path))
			continue;
		check_ok(rh_model_config_load(path, &whole));
		int64_t layers = whole.num_hidden_layers - 1;
		check_ok(rh_model_config_copy(&whole, &first));
		if (layers && !rh_model_config_keep_layers(&first, layers) && !rh_model_config_write(&first, "float32", &json)) {
			int rc = rh_model_config_parse(json, path, &again);
			if (rc)
				fail_msg("%s: %s", path, rh_error(rc));
			assert_int_equal(again.num_hidden_layers, layers);
			assert_memory_equal(again.layer, whole.layer, (size_t)layers * sizeof *whole.layer);
			rh_model_config_free(&again);
			json_decref(json);
			tried++;
		}
		assert_int_equal(whole.num_hidden_layers, layers + 1);
		rh_model_config_free(&first);
		rh_model_config_free(&whole);
	}
	printf("%d configurations\n", tried);
	assert_true(tried > 20);
	rh_names_free(&models);
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_config_defaults_are_those_of_transformers),
	        cmocka_unit_test(test_config_of_gpt2),
	        cmocka_unit_test(test_config_both_spellings_of_rope),
	        cmocka_unit_test(test_config_rope_disagreement_and_unknown_types_are_errors),
	        cmocka_unit_test(test_config_of_layers_with_linear_attention),
	        cmocka_unit_test(test_config_of_qwen3_next),
	        cmocka_unit_test(test_config_of_layers_that_do_not_rotate),
	        cmocka_unit_test(test_config_of_multipliers_and_dense_hybrids),
	        cmocka_unit_test(test_config_refuses_what_is_not_built_or_makes_no_sense),
	        cmocka_unit_test(test_config_words_of_others_that_change_nothing_are_accepted),
	        cmocka_unit_test(test_config_windows_are_those_of_transformers),
	        cmocka_unit_test(test_config_written_configurations_read_back),
	        cmocka_unit_test(test_config_what_no_file_can_say_is_not_written),
	        cmocka_unit_test(test_config_survives_mutation),
	        cmocka_unit_test(test_config_of_the_first_layers_reads_back),
	        cmocka_unit_test(test_config_load_takes_a_file_or_a_directory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
