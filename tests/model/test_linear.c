/* Linears with adapters, on the oracle: what an adapter adds is not lost in the rounding of bf16. */
#include "check.h"

#include "core/float16.h"
#include "model/emit_internal.h"

#include <math.h>
#include <string.h>

enum { TOKENS = 512, R = 2, LAYER = 1, BUFFER = 16 << 20 };
/* What the adapter adds to every element: a sixteenth of the unit of values in [0.5, 1), which most results are near. */
static const float part = 0x1p-12f;

struct rig {
	struct rh_model_config config;
	struct rh_model *model;
	char *weights[8], *memory;
	struct rh_arena arena;
	struct rh_emit emit;
	uint64_t seed;
};

static int run_oracle(void *sink, const struct rh_op *op)
{
	(void)sink;
	if (rh_op_fault(op))
		print_error("%s: %s\n", rh_op_info(op->kind)->name, rh_op_fault(op));
	assert_null(rh_op_fault(op));
	rh_op_oracle(op);
	return 0;
}

static int all_but_up(const void *context, const char *name, int64_t *r, double *scale)
{
	(void)context;
	*r = strstr(name, "up_proj") ? 0 : R;
	*scale = (double)part;
	return 0;
}

static void put(struct rh_view view, int64_t row, int64_t col, float value)
{
	int64_t at = row * view.stride + col;
	if (view.dtype == RH_BF16)
		((uint16_t *)view.data)[at] = rh_f32_to_bf16(value);
	else
		((float *)view.data)[at] = value;
}

static double get(struct rh_view view, int64_t row, int64_t col)
{
	int64_t at = row * view.stride + col;
	return (double)(view.dtype == RH_BF16 ? rh_bf16_to_f32(((uint16_t *)view.data)[at]) : ((float *)view.data)[at]);
}

static void randomise(struct rh_view view, uint64_t *seed, float bound)
{
	for (int64_t r = 0; r < view.rows; r++)
		for (int64_t c = 0; c < view.cols; c++)
			put(view, r, c, bound * check_uniform(seed));
}

static void rig_open(struct rig *rig, enum rh_dtype dtype)
{
	*rig = (struct rig){.config = {.family = rh_family_find("llama"),
	                               .vocab_size = 90,
	                               .hidden_size = 48,
	                               .intermediate_size = 80,
	                               .num_hidden_layers = 1,
	                               .num_attention_heads = 4,
	                               .num_key_value_heads = 2,
	                               .head_dim = 12,
	                               .rope[0].theta = 10000,
	                               .initializer_range = 0.02},
	                    .seed = check_seed()};
	struct rh_lora_config lora = {.module = all_but_up};
	check_ok(rh_model_create(&rig->config, dtype, &lora, &rig->model));
	assert_in_range(rig->model->blocks, 1, 8);
	for (int b = 0; b < rig->model->blocks; b++) {
		int64_t elements = rig->model->block[b].elements;
		rig->weights[b] = calloc((size_t)elements, 4);
		randomise(rh_view_of(rig->weights[b], dtype, 1, elements), &rig->seed, 0.25f);
	}
	rig->memory = malloc(BUFFER);
	rig->arena = (struct rh_arena){rig->memory, BUFFER, 0, 0};
	rig->emit = (struct rh_emit){.model = rig->model, .launch = run_oracle, .arena = &rig->arena, .weights = rig->weights};
}

static void rig_close(struct rig *rig)
{
	for (int b = 0; b < rig->model->blocks; b++)
		free(rig->weights[b]);
	free(rig->memory);
	rh_model_destroy(rig->model);
}

static struct rh_view rig_view(struct rig *rig, int64_t rows, int64_t cols)
{
	struct rh_view view = emit_act(&rig->emit, rows, cols);
	randomise(view, &rig->seed, 1);
	for (int64_t t = 0; t < rows; t++)
		put(view, t, 0, 1);
	return view;
}

/* With the first column of x and of dy 1: A of e_0 and B of ones add `part` to every y, A of ones and B of e_0 to every dx. Only the first
 * of the R columns is used. */
enum adapter { ADAPTER_OFF, ADAPTER_ON_Y, ADAPTER_ON_DX };

static void set_adapters(struct rig *rig, enum adapter adapter)
{
	const struct rh_layer *layer = &rig->model->layer[LAYER];
	for (int p = 0; p < RH_PROJS; p++) {
		const struct rh_linear *linear = &layer->proj[p];
		struct rh_view a = emit_weight(&rig->emit, layer, 1, linear->lora_a, R, linear->inputs);
		struct rh_view b = emit_weight(&rig->emit, layer, 1, linear->lora_b, linear->outputs, R);
		for (int64_t i = 0; linear->r && i < linear->inputs; i++)
			put(a, 0, i, adapter == ADAPTER_ON_DX || i == 0 ? 1.0f : 0.0f);
		for (int64_t i = 0; linear->r && i < linear->outputs; i++) {
			put(b, i, 0, adapter == ADAPTER_ON_Y || (adapter == ADAPTER_ON_DX && i == 0) ? 1.0f : 0.0f);
			put(b, i, 1, 0);
		}
	}
}

/* The mean of with - without over columns [first, first + count), in units of `part`. */
static double shift(struct rh_view with, struct rh_view without, int64_t first, int64_t count)
{
	double sum = 0;
	for (int64_t t = 0; t < with.rows; t++)
		for (int64_t c = first; c < first + count; c++)
			sum += get(with, t, c) - get(without, t, c);
	return sum / (double)(with.rows * count) / (double)part;
}

/* An element moves by a whole unit or not at all: of 24,576 with at most 16 `part` a unit, rounded twice, the mean is within 4 % mostly. */
static void check_shift(const char *what, double found, double expected)
{
	printf("%s: mean change %.3f of what the adapter adds\n", what, found);
	assert_true(fabs(found - expected) <= 0.15);
}

static void forward(struct rig *rig, struct emit_linears which, int with_residual, enum adapter adapter, struct rh_view *y)
{
	const struct rh_linear *linear = &rig->model->layer[LAYER].proj[which.first];
	struct rh_activations rows = {0};
	struct rh_view residual = {0};
	int64_t out = 0;
	rig->seed = 1; /* the same input each time */
	for (int i = 0; i < which.count; i++)
		out += linear[i].outputs;
	struct rh_view x = rig_view(rig, TOKENS, linear->inputs);
	if (with_residual)
		residual = rig_view(rig, TOKENS, out);
	*y = emit_act(&rig->emit, TOKENS, out);
	set_adapters(rig, adapter);
	for (int i = which.first; i < which.first + which.count; i++)
		if (linear[i - which.first].r)
			rows.view[RH_ROW_LOW + i] = emit_act(&rig->emit, TOKENS, R);
	emit_linear(&rig->emit, which, x, residual, *y, &rows);
}

static void check_forward(enum rh_dtype dtype)
{
	struct rig rig;
	struct rh_view with, without;
	const struct emit_linears gate_up = {LAYER, RH_PROJ_GATE, 2}, down = {LAYER, RH_PROJ_DOWN, 1};
	rig_open(&rig, dtype);
	forward(&rig, gate_up, 0, ADAPTER_OFF, &without);
	forward(&rig, gate_up, 0, ADAPTER_ON_Y, &with);
	check_shift("gate", shift(with, without, 0, 80), 1);
	for (int64_t t = 0; t < TOKENS; t++) /* up has no adapter */
		for (int64_t c = 80; c < 160; c++)
			assert_true(get(with, t, c) == get(without, t, c));
	forward(&rig, down, 1, ADAPTER_OFF, &without);
	forward(&rig, down, 1, ADAPTER_ON_Y, &with);
	check_shift("down + residual", shift(with, without, 0, 48), 1);
	rig_close(&rig);
}

static void test_adapter_below_half_a_unit_is_not_swallowed(void **state)
{
	(void)state;
	check_forward(RH_BF16);
	check_forward(RH_F32);
}

/* What dropout leaves out differs from micro-batch to micro-batch and from step to step, and is the same again for the same of both. */
static void test_dropout_differs_between_micro_batches_and_steps(void **state)
{
	(void)state;
	static const uint32_t runs[][2] = {{0, 0}, {1, 0}, {0, 1}, {0, 0}};
	const struct emit_linears gate_up = {LAYER, RH_PROJ_GATE, 2};
	struct rig rig;
	struct rh_view y[4];
	rig_open(&rig, RH_F32);
	rig.emit.dropout = 0.5f;
	for (int i = 0; i < 4; i++) {
		rig.emit.micro_batch = runs[i][0];
		rig.emit.step = runs[i][1];
		forward(&rig, gate_up, 0, ADAPTER_ON_Y, &y[i]);
	}
	for (int i = 1; i < 4; i++) {
		double apart = 0;
		for (int64_t t = 0; t < TOKENS; t++)
			apart += fabs(get(y[i], t, 0) - get(y[0], t, 0));
		assert_true(i == 3 ? apart == 0 : apart > 0);
	}
	rig_close(&rig);
}

static void backward(struct rig *rig, struct emit_linears which, enum adapter adapter, struct rh_view *dx)
{
	const struct rh_linear *linear = &rig->model->layer[LAYER].proj[which.first];
	int64_t out = 0;
	rig->seed = 1;
	for (int i = 0; i < which.count; i++)
		out += linear[i].outputs;
	struct rh_view dy = rig_view(rig, TOKENS, out);
	*dx = emit_act(&rig->emit, TOKENS, linear->inputs);
	set_adapters(rig, adapter);
	struct rh_activations rows = {0};
	for (int i = which.first; i < which.first + which.count; i++)
		rows.view[RH_ROW_D_LOW + i] = rh_view_of(NULL, rig->model->dtype, TOKENS, R);
	emit_linear_dx(&rig->emit, which, dy, *dx, &rows);
}

static void check_backward(enum rh_dtype dtype, float dropout)
{
	struct rig rig;
	struct rh_view with, without;
	rig_open(&rig, dtype);
	rig.emit.dropout = dropout;
	backward(&rig, (struct emit_linears){LAYER, RH_PROJ_O, 1}, ADAPTER_OFF, &without);
	backward(&rig, (struct emit_linears){LAYER, RH_PROJ_O, 1}, ADAPTER_ON_DX, &with);
	check_shift(dropout > 0 ? "dx of o with dropout" : "dx of o", shift(with, without, 0, 48), 1);
	rig_close(&rig);
}

static void test_adapter_gradient_below_half_a_unit_is_not_swallowed(void **state)
{
	(void)state;
	check_backward(RH_BF16, 0);
	check_backward(RH_BF16, 0.25f);
	check_backward(RH_F32, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_dropout_differs_between_micro_batches_and_steps),
	        cmocka_unit_test(test_adapter_below_half_a_unit_is_not_swallowed),
	        cmocka_unit_test(test_adapter_gradient_below_half_a_unit_is_not_swallowed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
