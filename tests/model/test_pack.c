/* Blocks with packed tensors: where their bytes lie, and the plain matrices that are made of them, on the oracle. */
#include "check.h"

#include "core/blocks.h"
#include "core/float16.h"
#include "core/float8.h"
#include "model/emit_internal.h"

#include <string.h>

enum { LAYER = 1, BLOCKS = 4, BUFFER = 4 << 20 };

struct rig {
	struct rh_model_config config;
	struct rh_model *model;
	char *bytes, *memory;
	char *weights[BLOCKS], *plain[BLOCKS];
	struct rh_arena arena;
	struct rh_emit emit;
	int launched[RH_OP_KINDS];
};

static int run_oracle(void *sink, const struct rh_op *op)
{
	struct rig *rig = sink;
	assert_null(rh_op_fault(op));
	rig->launched[op->kind]++;
	rh_op_oracle(op);
	return 0;
}

/* A form for each matrix: of query, key, value, output, gate, up, down. */
static enum rh_form form_of(const void *context, const struct rh_tensor *tensor)
{
	static const char *const names[] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
	const enum rh_form *form = context;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strstr(tensor->name, names[i]))
			return form[i] == RH_FORM_FP8_JOINT && !tensor->may_feed ? RH_FORM_PLAIN : form[i];
	if (strcmp(tensor->name, "model.embed_tokens.weight") && strcmp(tensor->name, "lm_head.weight"))
		fail_msg("%s is no matrix that may be packed", tensor->name);
	return RH_FORM_PLAIN;
}

/* multiply F8: an adapter is trained beside it. */
static int adapts(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context;
	*r = strstr(name, "q_proj") ? 4 : 0;
	*scale = 1;
	return 0;
}

static void rig_open(struct rig *rig, enum rh_dtype dtype, enum rh_multiply multiply, const enum rh_form form[7], uint64_t *seed)
{
	const struct rh_lora_config lora = {.module = adapts};
	*rig = (struct rig){.config = {.family = rh_family_find("llama"),
	                               .vocab_size = 90,
	                               .hidden_size = 64,
	                               .intermediate_size = 96,
	                               .num_hidden_layers = 1,
	                               .num_attention_heads = 4,
	                               .num_key_value_heads = 2,
	                               .head_dim = 16,
	                               .rope[0].theta = 10000}};
	check_ok(rh_model_create(&rig->config, dtype, multiply == RH_MULTIPLY_F8 ? &lora : NULL, &rig->model));
	rig->model->multiply = multiply;
	if (multiply == RH_MULTIPLY_BF16) {
		rh_model_pack(rig->model, form_of, form);
		assert_false(rh_model_is_packed(rig->model)); /* of what is trained nothing is */
		rh_model_freeze(rig->model);
	}
	rh_model_pack(rig->model, form_of, form);
	const struct rh_block *block = &rig->model->block[LAYER];
	rig->bytes = malloc((size_t)rh_block_bytes(block, dtype));
	rig->memory = malloc(BUFFER);
	assert_true(rig->bytes && rig->memory);
	for (int64_t i = 0; i < rh_block_bytes(block, dtype); i++) /* small numbers, as which type ever they are read */
		rig->bytes[i] = (char)((int)(4 * check_uniform(seed)) + 0x20);
	rig->weights[LAYER] = rig->bytes;
	rig->arena = (struct rh_arena){rig->memory, BUFFER, 0, 0};
	rig->plain[LAYER] = rh_arena_take(&rig->arena, rh_block_plain_bytes(block, dtype));
	rig->emit = (struct rh_emit){.model = rig->model, .launch = run_oracle, .sink = rig, .arena = &rig->arena, .weights = rig->weights};
}

static void rig_close(struct rig *rig)
{
	free(rig->bytes);
	free(rig->memory);
	rh_model_destroy(rig->model);
}

/* The value of element i of a tensor, as its bytes have it. */
static float value_of(const struct rig *rig, int t, int64_t i)
{
	const struct rh_tensor *tensor = &rig->model->block[LAYER].tensor[t];
	struct rh_tensor_form form = rh_block_tensor(&rig->model->block[LAYER], t, rig->model->dtype);
	const uint8_t *from = (const uint8_t *)rig->bytes + form.offset;
	const uint8_t *scale = from + (form.form ? rh_form_scales_at(form.form, tensor->rows, tensor->cols) : 0);
	float values[RH_BLOCK_RUN], factor[RH_FACTORS], value;
	uint16_t half;
	if (form.form && !rh_form_traits(form.form)->run) {
		int64_t block = rh_dtype_block(form.dtype);
		rh_block_values(form.dtype, from + rh_dtype_bytes(form.dtype, i / block * block), (int)(i % block / 16 * 16), 16, values);
		return values[i % 16];
	}
	switch (form.form) {
	case RH_FORM_MXFP4:
		return rh_fp4_value(from[i / 2] >> i % 2 * 4 & 15) *
		       rh_e8m0_value(scale[i / tensor->cols * ((tensor->cols + 31) / 32) + i % tensor->cols / 32]);
	case RH_FORM_NVFP4:
		memcpy(factor, from + rh_form_tail_at(form.form, tensor->rows, tensor->cols), sizeof factor);
		value = rh_e4m3_to_f32(scale[i / 16]) * factor[0] / factor[1];
		return rh_fp4_value(from[i / 2] >> i % 2 * 4 & 15) * value;
	case RH_FORM_INT8:
		memcpy(&value, scale + i / tensor->cols * 4, sizeof value);
		return (float)(int8_t)from[i] * value * RH_INT8_UNIT;
	case RH_FORM_FP8:
		memcpy(&value, scale, sizeof value);
		return rh_e4m3_to_f32(from[i]) * value;
	case RH_FORM_FP8_BLOCKS: /* no row is longer than a block */
		memcpy(&value, scale + i / tensor->cols / 128 * 4, sizeof value);
		return rh_e4m3_to_f32(from[i]) * value;
	default:
		memcpy(&half, from + 2 * i, sizeof half);
		memcpy(&value, from + 4 * i, sizeof value);
		return rig->model->dtype == RH_BF16 ? rh_bf16_to_f32(half) : value;
	}
}

/* The rows of `count` tensors from t on, one under another. */
static void check_matrix(const struct rig *rig, int t, int count, struct rh_view view)
{
	int64_t at = 0;
	for (int end = t + count; t < end; t++) {
		const struct rh_tensor *tensor = &rig->model->block[LAYER].tensor[t];
		for (int64_t i = 0; i < tensor->rows * tensor->cols; i++, at++) {
			float value = value_of(rig, t, i);
			if (view.dtype == RH_BF16)
				assert_int_equal(((const uint16_t *)view.data)[at], rh_f32_to_bf16(value));
			else
				assert_memory_equal((const float *)view.data + at, &value, sizeof value);
		}
	}
	assert_int_equal(at, view.rows * view.cols);
}

/* Nothing lies on anything else, and what products read begins where they can read it. */
static void check_layout(const struct rig *rig)
{
	const struct rh_block *block = &rig->model->block[LAYER];
	enum rh_dtype dtype = rig->model->dtype;
	int64_t end = 0, plain_end = 0;
	for (int t = 0; t < block->tensors; t++) {
		struct rh_tensor_form form = rh_block_tensor(block, t, dtype);
		const struct rh_tensor *tensor = &block->tensor[t];
		assert_true(form.offset >= end);
		assert_true(tensor->joins || form.offset % RH_ALIGN == 0);
		end = form.offset + form.bytes;
		if (!block->packed_bytes || tensor->plain < 0)
			continue;
		int64_t at = rh_dtype_bytes(dtype, tensor->plain);
		assert_true(tensor->joins ? at == plain_end : at >= plain_end && at % 128 == 0);
		plain_end = at + rh_dtype_bytes(dtype, tensor->rows * tensor->cols);
	}
	assert_true(end <= rh_block_bytes(block, dtype) && plain_end <= rh_block_plain_bytes(block, dtype));
}

static void check_forms(enum rh_dtype dtype, const enum rh_form form[7], uint64_t *seed)
{
	struct rig rig;
	rig_open(&rig, dtype, RH_MULTIPLY_BF16, form, seed);
	const struct rh_layer *layer = &rig.model->layer[LAYER];
	check_layout(&rig);
	check_ok(rh_block_make_plain(&rig.emit, LAYER, rig.bytes, rig.plain[LAYER]));
	for (int in_room = 0; in_room < 2; in_room++)
		for (int p = 0, count; p < RH_PROJS; p += count) {
			const struct rh_linear *first = &layer->proj[p];
			int64_t rows = first->outputs, mark = rig.arena.used;
			for (count = 1; p + count < RH_PROJS && first[count].joins; count++)
				rows += first[count].outputs;
			if (!first->outputs)
				continue;
			rig.emit.plain = in_room ? rig.plain : NULL;
			check_matrix(&rig, first->weight, count, emit_matrix(&rig.emit, layer, 0, first->weight, rows, first->inputs));
			assert_true(!in_room || rig.arena.used == mark);
			rh_arena_reset(&rig.arena, mark);
		}
	rig_close(&rig);
}

static void test_plain_matrices_are_what_packed_ones_stand_for(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 40; i++) {
		enum rh_form form[7];
		for (int p = 0; p < 7; p++)
			do
				form[p] = (enum rh_form)(check_random(&seed) % RH_FORM_FP8_JOINT);
			while (form[p] && (32 % rh_dtype_block(rh_form_traits(form[p])->element) || !rh_form_takes(form[p], 96)));
		check_forms(i % 2 ? RH_BF16 : RH_F32, form, &seed);
	}
}

/* Tensors beside one another in one form are one op, but where scales would lie between. */
static void test_tensors_of_one_form_are_one_op(void **state)
{
	(void)state;
	static const enum rh_form of[] = {['q'] = RH_FORM_Q8_0, ['m'] = RH_FORM_MXFP4, ['-'] = RH_FORM_PLAIN};
	const struct {
		const char *form;
		int dequantises, copies;
	} cases[] = {{"qqqqqqq", 4, 0}, {"mmmmmmm", 7, 0}, {"q-q----", 2, 1}, {"--q-qm-", 3, 1}, {"------q", 1, 0}, {"-------", 0, 0}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rig rig;
		uint64_t seed = 1;
		enum rh_form form[7];
		for (int p = 0; p < 7; p++)
			form[p] = of[(int)cases[i].form[p]];
		rig_open(&rig, RH_F32, RH_MULTIPLY_BF16, form, &seed);
		if (rh_model_is_packed(rig.model))
			check_ok(rh_block_make_plain(&rig.emit, LAYER, rig.bytes, rig.plain[LAYER]));
		assert_int_equal(rig.launched[RH_OP_DEQUANTISE], cases[i].dequantises);
		assert_int_equal(rig.launched[RH_OP_CAST], cases[i].copies);
		rig_close(&rig);
	}
}

/* The projections beside one another from `first` on, as their product reads them: as they lie, and across from the room and from the
 * arena. */
static void check_feeds(struct rig *rig, int first, int count)
{
	const struct rh_layer *layer = &rig->model->layer[LAYER];
	const struct rh_block *block = &rig->model->block[LAYER];
	int64_t rows = 0, cols = layer->proj[first].inputs, mark = rig->arena.used;
	int tensor = layer->proj[first].weight;
	for (int i = 0; i < count; i++)
		rows += layer->proj[first + i].outputs;
	const uint8_t *bytes = (const uint8_t *)rig->bytes + rh_block_tensor(block, tensor, RH_BF16).offset;
	for (int way = 0; way < 3; way++) {
		struct rh_scaled stored = {0};
		rig->emit.plain = way == 1 ? rig->plain : NULL;
		assert_true(emit_eight_bits(&rig->emit, layer, tensor, way > 0, rows, cols, &stored));
		struct rh_view data = way ? stored.across : stored.straight;
		assert_int_equal(data.dtype, RH_E4M3);
		assert_ptr_equal(stored.scale.data, bytes + rows * cols);
		assert_true(way != 0 || data.data == bytes);
		assert_true(way == 2 || rig->arena.used == mark);
		for (int64_t i = 0; i < rows * cols; i++) {
			int64_t at = way ? i % cols * data.stride + i / cols : i;
			assert_int_equal(((const uint8_t *)data.data)[at], bytes[i]);
		}
		rh_arena_reset(&rig->arena, mark);
	}
}

/* One scale behind the last of tensors that one product reads; a byte an element, once more for the transposes. */
static void test_what_feeds_products_is_read_as_it_is_stored(void **state)
{
	(void)state;
	enum { Q = 64 * 64, KV = 2 * 32 * 64, O = 64 * 64, GATE_UP = 2 * 96 * 64, DOWN = 64 * 96, SCALES = 4 * 4 };
	enum rh_form form[7];
	struct rig rig;
	uint64_t seed = check_seed();
	for (int p = 0; p < 7; p++)
		form[p] = RH_FORM_FP8_JOINT;
	form[3] = RH_FORM_FP8; /* a matrix of its own */
	rig_open(&rig, RH_BF16, RH_MULTIPLY_F8, form, &seed);
	const struct rh_block *block = &rig.model->block[LAYER];
	int64_t bytes = 0;
	for (int t = 0; t < block->tensors; t++)
		bytes += block->tensor[t].form ? rh_block_tensor(block, t, RH_BF16).bytes : 0;
	assert_int_equal(bytes, Q + KV + O + GATE_UP + DOWN + SCALES);
	assert_int_equal(rh_block_plain_bytes(block, RH_BF16), Q + KV + O + GATE_UP + DOWN);
	check_ok(rh_block_make_plain(&rig.emit, LAYER, rig.bytes, rig.plain[LAYER]));
	assert_int_equal(rig.launched[RH_OP_TRANSPOSE], 4);
	check_feeds(&rig, RH_PROJ_Q, 3);
	check_feeds(&rig, RH_PROJ_O, 1);
	check_feeds(&rig, RH_PROJ_GATE, 2);
	check_feeds(&rig, RH_PROJ_DOWN, 1);
	const struct rh_linear *gate = &rig.model->layer[LAYER].proj[RH_PROJ_GATE]; /* a product that is not in 8 bits after all */
	(void)emit_matrix(&rig.emit, &rig.model->layer[LAYER], 0, gate->weight, 2 * gate->outputs, gate->inputs);
	assert_int_equal(rig.launched[RH_OP_DEQUANTISE], 1);
	rig_close(&rig);
	form[1] = RH_FORM_Q8_0; /* a file has it so: none of the three feeds */
	rig_open(&rig, RH_BF16, RH_MULTIPLY_F8, form, &seed);
	for (int p = RH_PROJ_Q; p <= RH_PROJ_V; p++) {
		const struct rh_tensor *tensor = &rig.model->block[LAYER].tensor[rig.model->layer[LAYER].proj[p].weight];
		assert_int_equal(tensor->form, p == RH_PROJ_K ? RH_FORM_Q8_0 : RH_FORM_PLAIN);
		assert_false(tensor->feeds);
	}
	rh_model_freeze(rig.model); /* no backward, no transposes */
	rh_model_pack(rig.model, form_of, form);
	assert_int_equal(rh_block_plain_bytes(&rig.model->block[LAYER], RH_BF16), 2 * (Q + KV));
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain_matrices_are_what_packed_ones_stand_for),
	                                   cmocka_unit_test(test_tensors_of_one_form_are_one_op),
	                                   cmocka_unit_test(test_what_feeds_products_is_read_as_it_is_stored)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
