/* What a config.json says of a model of images. */
#include "config_case.h"

#include "model/model.h"

static void check_line(const char *text, const char *part)
{
	struct rh_model_config c;
	config_refused(config_parse(text, &c), part);
}

/* transformers 5.23: ViTConfig(). */
static void test_left_out_keys_take_transformers_defaults(void **state)
{
	(void)state;
	struct rh_model_config c;
	check_ok(config_parse("{\"model_type\":\"vit\"}", &c));
	assert_int_equal(c.task, RH_TASK_IMAGE_CLASSIFICATION);
	assert_true(c.image_size == 224 && c.patch_size == 16 && c.num_channels == 3 && rh_model_patch(&c) == 768);
	assert_int_equal(c.max_position_embeddings, 197);
	assert_true(c.hidden_size == 768 && c.num_hidden_layers == 12 && c.num_attention_heads == 12 && c.intermediate_size == 3072);
	assert_true(c.rms_norm_eps == 1e-12);
	assert_true(c.attention_bias && c.attention_output_bias && c.mlp_bias);
	rh_model_config_free(&c);
}

static void test_qkv_bias_is_that_of_q_k_and_v_alone(void **state)
{
	(void)state;
	struct rh_model_config c;
	struct rh_model *model;
	check_ok(config_parse("{\"model_type\":\"vit\",\"qkv_bias\":false,\"num_hidden_layers\":1,\"image_size\":32,\"num_channels\":1}",
	                      &c));
	assert_int_equal(c.max_position_embeddings, 5);
	check_ok(rh_model_create(&c, RH_F32, NULL, &model));
	const struct rh_layer *layer = &model->layer[1];
	assert_true(layer->proj[RH_PROJ_Q].bias < 0 && layer->proj[RH_PROJ_V].bias < 0);
	assert_true(layer->proj[RH_PROJ_O].bias >= 0 && layer->proj[RH_PROJ_GATE].bias >= 0 && layer->proj[RH_PROJ_DOWN].bias >= 0);
	rh_model_destroy(model);
	rh_model_config_free(&c);
}

static void test_sizes_that_make_no_sense_are_one_line(void **state)
{
	(void)state;
	check_line("{\"model_type\":\"vit\",\"image_size\":30}", "image_size 30 is no multiple of patch_size 16");
	check_line("{\"model_type\":\"vit\",\"patch_size\":0}", "patch_size is 0; it must be 1 to 16384");
	check_line("{\"model_type\":\"vit\",\"image_size\":[224,224]}", "'image_size' must be");
	check_line("{\"model_type\":\"vit\",\"hidden_act\":\"relu\"}", "hidden_act 'relu' is not supported (gelu is)");
}

/* The labels of the run, not those of the file that it began with. */
static void test_written_labels_are_those_of_the_run(void **state)
{
	(void)state;
	struct rh_model_config c, written;
	json_t *json;
	check_ok(config_parse("{\"model_type\":\"vit\",\"num_labels\":10}", &c));
	assert_int_equal(c.num_labels, 10);
	check_ok(rh_model_config_set_task(&c, RH_TASK_UNSET, 3, "here"));
	check_ok(rh_model_config_write(&c, "float32", &json));
	check_ok(rh_model_config_parse(json, "written", &written));
	assert_int_equal(written.num_labels, 3);
	assert_int_equal(json_object_size(json_object_get(json, "label2id")), 3);
	assert_null(json_object_get(json, "vocab_size"));
	json_decref(json);
	rh_model_config_free(&written);
	rh_model_config_free(&c);
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_left_out_keys_take_transformers_defaults), cmocka_unit_test(test_qkv_bias_is_that_of_q_k_and_v_alone),
	        cmocka_unit_test(test_written_labels_are_those_of_the_run), cmocka_unit_test(test_sizes_that_make_no_sense_are_one_line)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
