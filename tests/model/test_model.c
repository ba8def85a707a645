/* Rotary frequencies against their closed forms, and where a model's tensors lie. */
#include "check.h"

#include "core/alloc.h"
#include "model/emit.h"

#include <math.h>
#include <string.h>

static struct rh_model_config small(void)
{
	return (struct rh_model_config){.family = rh_family_find("llama"),
	                                .vocab_size = 90,
	                                .hidden_size = 48,
	                                .intermediate_size = 80,
	                                .num_hidden_layers = 3,
	                                .num_attention_heads = 4,
	                                .num_key_value_heads = 2,
	                                .head_dim = 12,
	                                .rope[0].theta = 10000,
	                                .initializer_range = 0.02};
}

static void check_frequencies(const struct rh_model_config *config, double (*expected)(double plain, int i))
{
	struct rh_model *model;
	check_ok(rh_model_create(config, RH_F32, NULL, &model));
	for (int i = 0; i < config->head_dim / 2; i++) {
		double want = expected(pow(config->rope[0].theta, -2.0 * i / (double)config->head_dim), i);
		assert_true(fabs((double)model->rope[0][0].inv_freq[i] - want) <= 3e-7 * want);
	}
	rh_model_destroy(model);
}

static double plain_angle(double plain, int i)
{
	(void)i;
	return plain;
}

static double quarter(double plain, int i)
{
	(void)i;
	return plain / 4;
}

static float divisor[32];

static double divided(double plain, int i)
{
	return plain / (double)divisor[i];
}

/* Llama 3.1's: long waves are stretched by 8, short ones kept, those between blended. */
static double llama3(double plain, int i)
{
	(void)i;
	double turns = 8192 * plain / (2 * M_PI); /* within the original context */
	if (turns < 1)
		return plain / 8;
	if (turns > 4)
		return plain;
	double blend = (turns - 1) / (4 - 1);
	return (1 - blend) * plain / 8 + blend * plain;
}

static void test_frequencies_equal_closed_forms(void **state)
{
	(void)state;
	struct rh_model_config config = small();
	config.head_dim = 64;
	check_frequencies(&config, plain_angle);
	config.rope[0].theta = 500000;
	check_frequencies(&config, plain_angle);
	config.rope[0].type = RH_ROPE_LLAMA3;
	config.rope[0].factor = 8;
	config.rope[0].low_freq_factor = 1;
	config.rope[0].high_freq_factor = 4;
	config.rope[0].original_max_position = 8192;
	check_frequencies(&config, llama3);
	for (int i = 0; i < 32; i++)
		divisor[i] = 1 + 0.25f * (float)i;
	config.rope[0].divisor = divisor; /* a GGUF file's factors replace the scaling */
	check_frequencies(&config, divided);
	config = small();
	config.rope[0].type = RH_ROPE_LINEAR;
	config.rope[0].factor = 4;
	check_frequencies(&config, quarter);
}

/* What transformers 5.23's ROPE_INIT_FUNCTIONS give for heads of 16, theta 10000 and max_position_embeddings 64. */
static void test_scalings_equal_transformers(void **state)
{
	(void)state;
	static const struct {
		struct rh_rope rope;
		int64_t positions;
		float scale, inv_freq[8];
	} cases[] = {
	        {{.type = RH_ROPE_DYNAMIC, .factor = 4, .original_max_position = 64},
	         40,
	         1,
	         {1, 0.316227764f, 0.100000001f, 0.0316227786f, 0.00999999978f, 0.00316227786f, 0.00100000005f, 0.000316227786f}},
	        {{.type = RH_ROPE_DYNAMIC, .factor = 4, .original_max_position = 64},
	         200,
	         1,
	         {1, 0.229258373f, 0.0525593981f, 0.0120496824f, 0.00276249065f, 0.000633324089f, 0.000145194848f, 3.3287135e-05f}},
	        {{.type = RH_ROPE_YARN, .factor = 4, .original_max_position = 32},
	         0,
	         1.13862944f,
	         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f, 7.90569466e-05f}},
	        {{.type = RH_ROPE_YARN,
	          .factor = 4,
	          .original_max_position = 32,
	          .plain_ramp = 1,
	          .beta_fast = 8,
	          .beta_slow = 2,
	          .mscale = 0.7,
	          .mscale_all_dim = 1.3},
	         0,
	         0.929523492f,
	         {1, 0.079056941f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f, 7.90569466e-05f}},
	        {{.type = RH_ROPE_YARN, .factor = 4, .original_max_position = 32, .attention_factor = 1.5},
	         0,
	         1.5f,
	         {1, 0.197642356f, 0.0250000004f, 0.00790569466f, 0.00249999994f, 0.000790569466f, 0.000250000012f, 7.90569466e-05f}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_rope rope = cases[i].rope;
		struct rh_rope_table table;
		rope.theta = 10000;
		rh_rope_table(&rope, 16, cases[i].positions, &table);
		assert_true(fabsf(table.scale - cases[i].scale) <= 2e-7f);
		for (int k = 0; k < 8; k++)
			assert_true(fabsf(table.inv_freq[k] / cases[i].inv_freq[k] - 1) <= 4e-7f);
	}
}

/* Tensors ascend without overlap; what one product computes lies back to back; all begin on a border otherwise. */
static void test_layout_keeps_products_together(void **state)
{
	(void)state;
	for (int variant = 0; variant < 8; variant++) {
		struct rh_model_config config = small();
		struct rh_model *model;
		config.tie_word_embeddings = variant & 1;
		config.attention_bias = config.mlp_bias = variant >> 1 & 1;
		config.qk_norm = variant >> 2;
		check_ok(rh_model_create(&config, RH_BF16, NULL, &model));
		int64_t trainable, all, counted = 0;
		for (int b = 0; b < model->blocks; b++) {
			int64_t end = 0;
			for (int t = 0; t < model->block[b].tensors; t++) {
				const struct rh_tensor *tensor = &model->block[b].tensor[t];
				assert_true(tensor->offset >= end);
				end = tensor->offset + tensor->rows * tensor->cols;
				counted += tensor->rows * tensor->cols;
				assert_int_equal(tensor->decays, tensor->rank == 2);
			}
			assert_true(end <= model->block[b].elements);
		}
		rh_model_parameters(model, &trainable, &all);
		assert_int_equal(trainable, counted);
		assert_int_equal(all, counted);
		for (int l = 1; l + 1 < model->layers; l++) {
			const struct rh_linear *p = model->layer[l].proj;
			static const int together[][2] = {{RH_PROJ_Q, RH_PROJ_K}, {RH_PROJ_K, RH_PROJ_V}, {RH_PROJ_GATE, RH_PROJ_UP}};
			for (int i = 0; i < 3; i++) {
				const struct rh_linear *a = &p[together[i][0]], *b = &p[together[i][1]];
				const struct rh_tensor *tensor = model->block[model->layer[l].block[0]].tensor;
				assert_int_equal(tensor[b->weight].offset, tensor[a->weight].offset + a->outputs * a->inputs);
				assert_int_equal(b->bias < 0, a->bias < 0);
				assert_true(b->bias < 0 || tensor[b->bias].offset == tensor[a->bias].offset + a->outputs);
			}
		}
		const struct rh_layer *head = &model->layer[model->layers - 1];
		assert_int_equal(head->block[RH_BLOCK_TABLE], config.tie_word_embeddings ? 0 : -1);
		assert_int_equal(model->block[0].uses, config.tie_word_embeddings ? 2 : 1);
		rh_model_destroy(model);
	}
}

/* With decay_embeddings: false the embedding tables do not decay, nor does a head tied to one. Everything else does. */
static void test_embeddings_are_spared_from_decay(void **state)
{
	(void)state;
	static const char *const families[] = {"llama", "gpt2"}; /* which has a table of positions */
	for (int variant = 0; variant < 4; variant++) {
		struct rh_model_config config = small();
		struct rh_model *model;
		config.family = rh_family_find(families[variant / 2]);
		config.tie_word_embeddings = variant & 1;
		config.max_position_embeddings = 32;
		check_ok(rh_model_create(&config, RH_F32, NULL, &model));
		rh_model_spare_embeddings(model);
		for (int b = 0; b < model->blocks; b++)
			for (int t = 0; t < model->block[b].tensors; t++)
				assert_int_equal(model->block[b].tensor[t].decays, b > 0 && model->block[b].tensor[t].rank == 2);
		rh_model_destroy(model);
	}
}

/* Layers that emit other ops are not taken for each other, however alike their tensors are. */
static void test_layers_with_other_traits_are_not_alike(void **state)
{
	(void)state;
	struct rh_model_config config = small();
	struct rh_model *model;
	config.window = 5;
	config.layer[1].windowed = 1;
	check_ok(rh_model_create(&config, RH_F32, NULL, &model));
	assert_int_equal(model->layer[1].traits.window, 0);
	assert_int_equal(model->layer[2].traits.window, 5);
	assert_false(rh_layers_alike(model, 1, 2, RH_ALIKE_IN_OPS));
	assert_true(rh_layers_alike(model, 1, 2, RH_ALIKE_IN_BYTES));
	assert_true(rh_layers_alike(model, 1, 3, RH_ALIKE_IN_OPS));
	model->layer[3].traits.intermediate++;
	assert_false(rh_layers_alike(model, 1, 3, RH_ALIKE_IN_BYTES));
	rh_model_destroy(model);
}

/* A boundary is as wide as the layer above it, or at the model's end the one below; room for any of them is that of the widest. */
static void test_boundaries_are_as_wide_as_their_layers(void **state)
{
	(void)state;
	enum { TOKENS = 7 };
	struct rh_model_config config = small();
	struct rh_model *model;
	check_ok(rh_model_create(&config, RH_BF16, NULL, &model));
	model->layer[2].width = 3 * config.hidden_size;
	model->layer[model->layers - 1].width = 2 * config.hidden_size;
	for (int l = 0; l <= model->layers; l++) {
		struct rh_boundary_shape shape = rh_boundary_shape(model, l, TOKENS);
		int64_t cols = config.hidden_size * (l == 2 ? 3 : l + 1 >= model->layers ? 2 : 1);
		char at;
		assert_true(shape.rows == TOKENS && shape.cols == cols && shape.bytes == 2 * TOKENS * cols);
		struct rh_view view = rh_boundary_view(model, l, TOKENS, &at);
		assert_true(view.data == &at && view.dtype == RH_BF16 && view.rows == TOKENS && view.cols == cols);
	}
	assert_int_equal(rh_boundary_most_bytes(model, TOKENS), 2 * TOKENS * 3 * config.hidden_size);
	assert_false(rh_layers_alike(model, 1, 2, RH_ALIKE_IN_BYTES));
	rh_model_destroy(model);
}

/* Of a layer with keys and values, one with a state, and one that reads the first one's. */
static void test_what_mixers_carry_has_its_place(void **state)
{
	(void)state;
	enum { ROWS = 43, COLUMNS = 6, STATE = 300 };
	struct rh_model_config config = small();
	struct rh_model *model;
	check_ok(rh_model_create(&config, RH_BF16, NULL, &model));
	assert_int_equal(model->layer[1].carried.columns, 2 * config.num_key_value_heads * config.head_dim);
	model->layer[1].carried = (struct rh_carried){.columns = COLUMNS};
	model->layer[2].carried = (struct rh_carried){.bytes = STATE};
	model->layer[3].carried = (struct rh_carried){.columns = COLUMNS, .below = 2};
	const int64_t tokens = 3 * RH_ALIGN, run = 2 * RH_ALIGN; /* 43 * 6 * 2 bytes, and 300, rounded up */
	const struct {
		int lo, hi;
		int64_t first, bytes;
	} range[] = {{0, 2, 0, tokens},       {1, 2, 0, tokens},       {2, 3, tokens, run},
	             {1, 3, 0, tokens + run}, {3, 4, 0, tokens + run}, {0, model->layers, 0, tokens + run}};
	for (size_t i = 0; i < sizeof range / sizeof *range; i++) {
		int64_t first, bytes = rh_model_cache_range(model, range[i].lo, range[i].hi, ROWS, &first);
		assert_true(first == range[i].first && bytes == range[i].bytes);
	}
	rh_model_destroy(model);
}

static int only_second_v(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context;
	*r = strcmp(name, "model.layers.1.self_attn.v_proj") ? 0 : 3;
	*scale = 0.5;
	return 0;
}

static int nothing(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context;
	(void)name;
	*r = 0;
	*scale = 0;
	return 0;
}

static void test_adapters_train_only_what_is_targeted(void **state)
{
	(void)state;
	struct rh_model_config config = small();
	struct rh_lora_config lora = {.module = only_second_v};
	struct rh_model *model;
	int64_t trainable, all;
	check_ok(rh_model_create(&config, RH_F32, &lora, &model));
	rh_model_parameters(model, &trainable, &all);
	assert_int_equal(trainable, 3 * 48 + 24 * 3);
	assert_int_equal(model->first_trained, 2);
	assert_int_equal(model->layer[1].block[1], -1);
	assert_true(model->layer[2].block[1] > 0);
	rh_model_destroy(model);
	lora.module = nothing;
	int rc = rh_model_create(&config, RH_F32, &lora, &model);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "lora_target_modules"));
}

static int every_module(const void *context, const char *name, int64_t *r, double *scale)
{
	const char *wanted = context;
	*r = strstr(name, wanted) ? 2 : 0;
	*scale = 1;
	return 0;
}

static int every_parameter(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context;
	*r = strstr(name, "gate.weight") ? 0 : strstr(name, "gate_up_proj") ? 4 : 2;
	*scale = 1;
	return 0;
}

static void check_adapter(const struct rh_model *model, int block, int tensor, const char *name, int64_t rows, int64_t cols, int64_t turns)
{
	const struct rh_tensor *t = &model->block[block].tensor[tensor];
	assert_string_equal(t->name, name);
	assert_int_equal(t->rows, rows);
	assert_int_equal(t->cols, cols);
	assert_int_equal(t->interleaved, turns);
}

/* Each expert has a part of the adapter of all, under the names that PEFT's two wrappers give; a dense layer's modules are modules. */
static void test_adapters_of_experts_are_one_of_each(void **state)
{
	(void)state;
	struct rh_model_config config = small();
	struct rh_lora_config lora = {.module = every_module, .parameter = every_parameter, .context = "up_proj"};
	struct rh_model *model;
	config.family = rh_family_find("qwen3_moe");
	config.experts = 4;
	config.experts_per_token = 2;
	config.layer[1].dense = 1;
	check_ok(rh_model_create(&config, RH_F32, &lora, &model));
	const struct rh_layer *layer = &model->layer[1];
	assert_int_equal(layer->traits.experts, 4);
	assert_int_equal(layer->routed[RH_ROUTED_ROUTER].r, 0);
	const struct rh_linear *up = &layer->routed[RH_ROUTED_GATE_UP], *down = &layer->routed[RH_ROUTED_DOWN];
	int block = layer->block[1];
	check_adapter(model, block, up->lora_a, "base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight", 4 * 4, 48, 0);
	check_adapter(model, block, up->lora_b, "base_model.model.model.layers.0.mlp.experts.base_layer.lora_B.weight", 4 * 160, 4, 4);
	check_adapter(model, block, down->lora_a, "base_model.model.model.layers.0.mlp.experts.lora_A.weight", 4 * 2, 80, 0);
	check_adapter(model, block, down->lora_b, "base_model.model.model.layers.0.mlp.experts.lora_B.weight", 4 * 48, 2, 4);
	layer = &model->layer[2];
	assert_int_equal(layer->traits.experts, 0);
	assert_int_equal(layer->routed[RH_ROUTED_DOWN].r, 0);
	assert_int_equal(layer->proj[RH_PROJ_UP].r, 2);
	rh_model_destroy(model);
}

/* A value is a function of where it is: pieces equal the whole. */
static void test_initial_values_come_in_any_pieces(void **state)
{
	(void)state;
	struct rh_model_config config = small();
	struct rh_lora_config lora = {.module = only_second_v};
	struct rh_model *model;
	check_ok(rh_model_create(&config, RH_F32, &lora, &model));
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &model->block[b].tensor[t];
			int64_t count = tensor->rows * tensor->cols;
			float whole[8192], piece[8192];
			double square = 0, most = 0;
			rh_model_initial(model, 7, b, t, 0, count, whole);
			for (int64_t at = 0; at < count; at += 7)
				rh_model_initial(model, 7, b, t, at, count - at < 7 ? count - at : 7, piece + at);
			assert_memory_equal(whole, piece, (size_t)count * sizeof *whole);
			for (int64_t i = 0; i < count; i++) {
				square += (double)whole[i] * (double)whole[i];
				most = fmax(most, fabs((double)whole[i]));
			}
			if (strstr(tensor->name, ".lora_A.")) /* uniform within 1/sqrt(in) */
				assert_true(most <= 1 / sqrt((double)tensor->cols) && most > 0.9 / sqrt((double)tensor->cols));
			else if (strstr(tensor->name, ".lora_B."))
				assert_true(most == 0);
			else if (tensor->rank == 1)
				assert_true(square == (double)count);
			else
				assert_true(fabs(sqrt(square / (double)count) / 0.02 - 1) < 0.06);
		}
	rh_model_destroy(model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_frequencies_equal_closed_forms),
	        cmocka_unit_test(test_scalings_equal_transformers),
	        cmocka_unit_test(test_layout_keeps_products_together),
	        cmocka_unit_test(test_layers_with_other_traits_are_not_alike),
	        cmocka_unit_test(test_adapters_train_only_what_is_targeted),
	        cmocka_unit_test(test_adapters_of_experts_are_one_of_each),
	        cmocka_unit_test(test_initial_values_come_in_any_pieces),
	        cmocka_unit_test(test_embeddings_are_spared_from_decay),
	        cmocka_unit_test(test_boundaries_are_as_wide_as_their_layers),
	        cmocka_unit_test(test_what_mixers_carry_has_its_place),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
