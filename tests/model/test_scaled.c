/* Products with scaled operands, on the oracle: what is quantised once, weights for a slot, a gradient for both of its products and an
 * input for several, makes the same bits as what each product quantises for itself. */
#include "check.h"

#include "core/float16.h"
#include "model/emit_internal.h"

#include <string.h>

enum { LAYER = 1, BLOCKS = 4, TOKENS = 24, BUFFER = 8 << 20, GUARD = 1 << 16 };

struct rig {
	struct rh_model_config config;
	struct rh_model *model;
	char *bytes, *made, *memory;
	char *weights[BLOCKS], *plain[BLOCKS];
	float *gradient[BLOCKS][2];
	struct rh_activations rows;
	struct rh_arena arena, deferred;
	struct rh_emit emit;
	int quantised; /* launches */
};

static int run_oracle(void *sink, const struct rh_op *op)
{
	struct rig *rig = sink;
	if (rh_op_fault(op))
		print_error("%s: %s\n", rh_op_info(op->kind)->name, rh_op_fault(op));
	assert_null(rh_op_fault(op));
	rig->quantised += op->kind == RH_OP_QUANTISE;
	rh_op_oracle(op);
	return 0;
}

static enum rh_form packed(const void *context, const struct rh_tensor *tensor)
{
	(void)context;
	return strstr(tensor->name, "k_proj") || strstr(tensor->name, "down_proj") ? RH_FORM_Q8_0 : RH_FORM_PLAIN;
}

static void *bytes_of(int64_t bytes)
{
	void *memory = aligned_alloc(RH_ALIGN, (size_t)rh_align_up(bytes, RH_ALIGN));
	assert_non_null(memory);
	memset(memory, 0, (size_t)rh_align_up(bytes, RH_ALIGN));
	return memory;
}

static void rig_open(struct rig *rig, enum rh_multiply multiply, int is_packed, uint64_t *seed)
{
	*rig = (struct rig){.config = {.family = rh_family_find("llama"),
	                               .vocab_size = 90,
	                               .hidden_size = 64,
	                               .intermediate_size = 96,
	                               .num_hidden_layers = 1,
	                               .num_attention_heads = 4,
	                               .num_key_value_heads = 2,
	                               .head_dim = 16,
	                               .rope[0].theta = 10000}};
	check_ok(rh_model_create(&rig->config, RH_BF16, NULL, &rig->model));
	rig->model->multiply = multiply;
	rig->model->chunk = 64;
	if (is_packed) {
		rh_model_freeze(rig->model);
		rh_model_pack(rig->model, packed, NULL);
	}
	rh_model_scale(rig->model);
	const struct rh_block *block = &rig->model->block[LAYER];
	int64_t bytes = rh_block_bytes(block, RH_BF16);
	rig->weights[LAYER] = rig->bytes = bytes_of(bytes);
	rig->plain[LAYER] = rig->made = bytes_of(rh_block_plain_bytes(block, RH_BF16) + GUARD);
	rig->gradient[LAYER][0] = bytes_of(block->elements * 4);
	rig->memory = bytes_of(BUFFER);
	for (int64_t i = 0; i < bytes / 2; i++) { /* numbers up to 1, and what of Q8_0's blocks is read as fp16 is finite */
		uint16_t code = is_packed ? (uint16_t)(check_random(seed) % 0x3000) : rh_f32_to_bf16(check_uniform(seed));
		memcpy(rig->bytes + 2 * i, &code, sizeof code);
	}
	rig->arena = (struct rh_arena){rig->memory, BUFFER, 0, 0};
	rig->emit = (struct rh_emit){.model = rig->model,
	                             .launch = run_oracle,
	                             .sink = rig,
	                             .arena = &rig->arena,
	                             .weights = rig->weights,
	                             .gradient = rig->gradient};
}

static void rig_close(struct rig *rig)
{
	free(rig->bytes);
	free(rig->made);
	free(rig->gradient[LAYER][0]);
	free(rig->memory);
	rh_model_destroy(rig->model);
}

static struct rh_view random_view(struct rig *rig, int64_t cols, uint64_t *seed)
{
	struct rh_view view = emit_act(&rig->emit, TOKENS, cols);
	for (int64_t i = 0; i < TOKENS * cols; i++)
		((uint16_t *)view.data)[i] = rh_f32_to_bf16(check_uniform(seed));
	return view;
}

static uint64_t hash(uint64_t seed, const void *bytes, int64_t count)
{
	for (int64_t i = 0; i < count; i++)
		seed = (seed ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3;
	return seed;
}

/* y, dx and dW of one product's linears. */
static uint64_t products(struct rig *rig, struct emit_linears which, struct rh_view x, struct rh_view dy)
{
	struct rh_emit *emit = &rig->emit;
	const struct rh_block *block = &rig->model->block[LAYER];
	int64_t mark = emit->arena->used;
	struct rh_view y = emit_act(emit, TOKENS, dy.cols), dx = emit_act(emit, TOKENS, x.cols);
	emit_linear(emit, which, x, (struct rh_view){0}, y, &rig->rows);
	emit_linear_dx(emit, which, dy, dx, &rig->rows);
	memset(rig->gradient[LAYER][0], 0, (size_t)block->elements * 4);
	emit_linear_dw(emit, which, dy, x, &rig->rows);
	uint64_t bits = hash(hash(1, y.data, rh_view_bytes(y)), dx.data, rh_view_bytes(dx));
	rh_arena_reset(emit->arena, mark);
	return hash(bits, rig->gradient[LAYER][0], block->elements * 4);
}

/* How often a product's linears quantise: on the way up x and, where it has no room, the weight; down dy, and for dW x again. */
static void check_linears(struct rig *rig, int first, int count, uint64_t *seed)
{
	const struct rh_linear *linear = &rig->model->layer[LAYER].proj[first];
	struct emit_linears which = {LAYER, first, count};
	int64_t out = 0, mark = rig->arena.used;
	int is_trained = rig->model->block[LAYER].trainable;
	for (int i = 0; i < count; i++)
		out += linear[i].outputs;
	assert_true(rig->model->block[LAYER].tensor[linear->weight].scaled > 0);
	struct rh_view x = random_view(rig, linear->inputs, seed), dy = random_view(rig, out, seed);
	rig->emit.deferred = &rig->deferred; /* dW comes later: nothing is left for it */
	rig->emit.plain = NULL;
	rig->quantised = 0;
	uint64_t apart = products(rig, which, x, dy);
	assert_int_equal(rig->quantised, is_trained ? 6 : 4);
	rig->emit.deferred = NULL;
	for (int in_room = 0; in_room < 2; in_room++) {
		rig->emit.plain = in_room ? rig->plain : NULL;
		rig->quantised = 0;
		assert_true(products(rig, which, x, dy) == apart);
		assert_int_equal(rig->quantised, (is_trained ? 3 : 2) + (in_room ? 0 : 2));
	}
	rh_arena_reset(&rig->arena, mark);
}

/* Several products of one x, up, or dW of several gradients: what was made of x once, or by each. */
static uint64_t products_of_one(struct rig *rig, struct rh_view x, const struct rh_view dy[2], int is_shared)
{
	static const struct emit_linears which[] = {{LAYER, RH_PROJ_Q, 3}, {LAYER, RH_PROJ_GATE, 2}};
	struct rh_emit *emit = &rig->emit;
	const struct rh_block *block = &rig->model->block[LAYER];
	int64_t outer = emit->arena->used, mark;
	uint64_t bits = 1;
	for (int across = 0; across < 2; across++) {
		memset(rig->gradient[LAYER][0], 0, (size_t)block->elements * 4);
		struct rh_view y[] = {emit_act(emit, TOKENS, dy[0].cols), emit_act(emit, TOKENS, dy[1].cols)};
		mark = is_shared ? emit_share_input(emit, x, across) : emit->arena->used;
		for (int i = 0; i < 2 && !across; i++)
			emit_linear(emit, which[i], x, (struct rh_view){0}, y[i], &rig->rows);
		for (int i = 0; i < 2 && across; i++)
			emit_linear_dw(emit, which[i], dy[i], x, &rig->rows);
		emit_unshare_input(emit, mark);
		for (int i = 0; i < 2 && !across; i++)
			bits = hash(bits, y[i].data, rh_view_bytes(y[i]));
		bits = hash(bits, rig->gradient[LAYER][0], block->elements * 4);
	}
	rh_arena_reset(emit->arena, outer);
	return bits;
}

static void check_shared_input(struct rig *rig, uint64_t *seed)
{
	int64_t mark = rig->arena.used;
	int is_trained = rig->model->block[LAYER].trainable;
	struct rh_view x = random_view(rig, 64, seed), dy[] = {random_view(rig, 128, seed), random_view(rig, 192, seed)};
	rig->emit.plain = rig->plain;
	rig->quantised = 0;
	uint64_t apart = products_of_one(rig, x, dy, 0);
	assert_int_equal(rig->quantised, is_trained ? 6 : 2); /* x for each of both products; for each dW x and dy */
	rig->quantised = 0;
	assert_true(products_of_one(rig, x, dy, 1) == apart);
	assert_int_equal(rig->quantised, is_trained ? 4 : 2); /* of a frozen base there is no dW: nobody asks for what is shared */
	rh_arena_reset(&rig->arena, mark);
}

static void test_what_is_quantised_once_makes_the_same_bits(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 8; i++) {
		struct rig rig;
		rig_open(&rig, i % 2 ? RH_MULTIPLY_F8 : RH_MULTIPLY_F16_SUMS, i / 2 % 2, &seed);
		check_ok(rh_block_make_plain(&rig.emit, LAYER, rig.bytes, rig.plain[LAYER]));
		assert_int_equal(rig.quantised, 4);
		for (int k = 0; k < GUARD; k++) /* nothing is made beyond its room */
			assert_int_equal(rig.made[rh_block_plain_bytes(&rig.model->block[LAYER], RH_BF16) + k], 0);
		check_linears(&rig, RH_PROJ_Q, 3, &seed);
		check_linears(&rig, RH_PROJ_O, 1, &seed);
		check_linears(&rig, RH_PROJ_GATE, 2, &seed);
		check_linears(&rig, RH_PROJ_DOWN, 1, &seed);
		check_shared_input(&rig, &seed);
		rig_close(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_quantised_once_makes_the_same_bits)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
