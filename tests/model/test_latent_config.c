/* A family with latent attention and routers of sigmoids: what its config.json says, and leaves out. */
#include "config_case.h"

#include "model/traits.h"

#include <math.h>
#include <stdio.h>

#define GLM      "{\"model_type\":\"glm4_moe_lite\",\"num_hidden_layers\":4"
#define SMALL    ",\"n_routed_experts\":8,\"num_experts_per_tok\":2"
#define YARN     ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"factor\":40,\"original_max_position_embeddings\":64,"
#define ALL_DIMS "\"mscale\":1.0,\"mscale_all_dim\":1.0}"

/* transformers' defaults are GLM-4.7-Flash's. */
static void test_left_out_keys_take_the_familys_defaults(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_ok(config_parse(GLM "}", &c));
	struct rh_traits dense = rh_traits_of(&c, 0), sparse = rh_traits_of(&c, 1);
	assert_int_equal(sparse.mixer, RH_MIXER_LATENT_ATTENTION);
	assert_true(sparse.q_rank == 768 && sparse.kv_rank == 512 && sparse.heads == 20 && sparse.kv_heads == 20);
	assert_true(sparse.head_dim == 256 && sparse.rotary == 64 && sparse.rotates_adjacent && sparse.rope == 0);
	assert_true(sparse.scale == 0.0625f && sparse.epsilon == 1e-5f && sparse.latent_epsilon == 1e-6f);
	assert_true(dense.mlp == RH_MLP_GATED && dense.intermediate == 10240 && dense.experts == 0 && dense.shared == 0);
	assert_true(sparse.mlp == RH_MLP_SHARED && sparse.intermediate == 1536 && sparse.shared == 1536);
	assert_true(sparse.experts == 64 && sparse.experts_per_token == 4 && sparse.is_sigmoid && sparse.routed_factor == 1.8f);
	assert_true(sparse.softmax == RH_ROUTER_OVER_CHOSEN && sparse.expert_groups == 1 && sparse.best_groups == 1);
	assert_false(rh_traits_equal(&dense, &sparse));
	rh_model_config_free(&c);
}

static void test_keys_are_read(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_ok(config_parse(GLM SMALL ",\"n_group\":4,\"topk_group\":2,\"n_shared_experts\":3,\"moe_intermediate_size\":24,"
	                                "\"norm_topk_prob\":false,\"routed_scaling_factor\":2.5,\"scoring_func\":\"sigmoid\","
	                                "\"topk_method\":\"noaux_tc\",\"rope_interleave\":false,\"first_k_dense_replace\":9,"
	                                "\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\",\"sparse\"]" YARN ALL_DIMS "}",
	                      &c));
	struct rh_traits first = rh_traits_of(&c, 0);
	assert_true(first.experts == 8 && first.expert_groups == 4 && first.best_groups == 2 && first.shared == 72);
	assert_true(first.softmax == RH_ROUTER_OVER_ALL && first.routed_factor == 2.5f && !first.rotates_adjacent);
	assert_int_equal(rh_traits_of(&c, 1).experts, 0);
	double mscale = 0.1 * log(40) + 1; /* DeepSeek-V3's, of which cosines and sines have none: the two are equal */
	assert_true(fabs((double)first.scale - mscale * mscale / 16) < 1e-7);
	check_ok(rh_model_config_keep_layers(&c, 2));
	assert_int_equal(json_array_size(json_object_get(c.source, "mlp_layer_types")), 2);
	rh_model_config_free(&c);
}

static void test_what_is_written_is_read_again(void **state)
{
	(void)state;
	struct rh_model_config c, again;
	json_t *json;
	check_ok(config_parse(
	        GLM SMALL ",\"qk_rope_head_dim\":32,\"qk_nope_head_dim\":96,\"v_head_dim\":128,\"n_group\":2,\"topk_group\":1}", &c));
	check_ok(rh_model_config_write(&c, "bfloat16", &json));
	assert_int_equal(json_integer_value(json_object_get(json, "qk_rope_head_dim")), 32);
	assert_null(json_object_get(json, "head_dim")); /* transformers' other name for it */
	check_ok(rh_model_config_parse(json, "written", &again));
	for (int l = 0; l < 2; l++) {
		struct rh_traits a = rh_traits_of(&c, l), b = rh_traits_of(&again, l);
		assert_true(rh_traits_equal(&a, &b));
	}
	json_decref(json);
	rh_model_config_free(&c);
	rh_model_config_free(&again);
}

static void test_what_is_not_built_is_refused(void **state)
{
	(void)state;
	static const struct {
		const char *keys, *line;
	} cases[] = {
	        {",\"q_lora_rank\":null", "q_lora_rank null is not supported"},
	        {",\"kv_lora_rank\":0", "'kv_lora_rank' is 0"},
	        {",\"v_head_dim\":257",
	         "v_head_dim 257 beside qk_nope_head_dim + qk_rope_head_dim = 256 is not supported: it may not be above"},
	        {",\"qk_rope_head_dim\":9223372036854775807", "head_dim is 9223372036854775807; it must be 1 to 256"},
	        {",\"moe_intermediate_size\":9223372036854775807,\"n_shared_experts\":9",
	         "moe_intermediate_size is 9223372036854775807; it must be 1 to"},
	        {",\"num_key_value_heads\":4", "num_key_value_heads 4 is not num_attention_heads 20"},
	        {",\"qk_rope_head_dim\":63,\"v_head_dim\":255", "head_dim 63 is odd"},
	        {",\"partial_rotary_factor\":0.5", "partial_rotary_factor 0.5 is not supported in this family"},
	        {",\"first_k_dense_replace\":3", "first_k_dense_replace is 3, and transformers reads mlp_layer_types"},
	        {",\"mlp_layer_types\":[\"dense\"]", "'mlp_layer_types' must be a list of 4 words"},
	        {",\"mlp_layer_types\":[\"dense\",\"moe\",\"dense\",\"dense\"]", "mlp_layer_types has 'moe'"},
	        {",\"n_group\":3", "n_group 3 of 64 experts is not supported"},
	        {",\"n_group\":64", "n_group 64 of 64 experts is not supported"},
	        {",\"n_group\":32,\"topk_group\":1", "topk_group 1 of 32 groups has not the 4 experts of a token"},
	        {",\"routed_scaling_factor\":0", "routed_scaling_factor 0 makes no sense"},
	        {",\"n_shared_experts\":0", "n_shared_experts 0 is not supported"},
	        {",\"scoring_func\":\"softmax\"", "scoring_func 'softmax' is not supported (sigmoid is)"},
	        {",\"topk_method\":\"greedy\"", "topk_method 'greedy' is not supported (noaux_tc is)"},
	        {",\"num_experts\":8,\"n_routed_experts\":16", "'num_experts' says 8, but 'n_routed_experts' says 16"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_model_config c;
		char text[512];
		snprintf(text, sizeof text, GLM "%s}", cases[i].keys);
		config_refused(config_parse(text, &c), cases[i].line);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_left_out_keys_take_the_familys_defaults),
	        cmocka_unit_test(test_keys_are_read),
	        cmocka_unit_test(test_what_is_written_is_read_again),
	        cmocka_unit_test(test_what_is_not_built_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
