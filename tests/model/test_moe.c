/* A layer with a mixture of experts, on the oracle: its gradients against finite differences, and the same bits whether or not the
 * recompute makes what no backward reads. */
#include "check.h"

#include "core/float16.h"
#include "model/moe.h"

#include <math.h>
#include <string.h>

enum { TOKENS = 12, HIDDEN = 24, WIDE = 16, EXPERTS = 5, TOP = 2, HEADS = 2, DIM = 8, LAYER = 1, BUFFER = 4 << 20, PROBES = 12 };

struct rig {
	struct rh_model_config config;
	struct rh_model *model;
	char *weights[4], *memory[3], *micro;
	float *gradient[4][2];
	struct rh_arena arena, deferred;
	struct rh_emit emit;
	struct rh_stage_state state;
	uint64_t seed, choice; /* choice: what the routers have chosen, hashed */
	int ran[RH_OP_KINDS];
};

static int run_oracle(void *sink, const struct rh_op *op)
{
	struct rig *rig = sink;
	if (rh_op_fault(op))
		print_error("%s: %s\n", rh_op_info(op->kind)->name, rh_op_fault(op));
	assert_null(rh_op_fault(op));
	rh_op_oracle(op);
	rig->ran[op->kind]++;
	const int32_t *index = op->operand[RH_ROUTER_INDEX].data;
	for (int i = 0; op->kind == RH_OP_ROUTER && i < TOKENS * TOP; i++)
		rig->choice = rig->choice * 31 + (uint64_t)index[i];
	return 0;
}

static void put(struct rh_view view, int64_t i, float value)
{
	if (view.dtype == RH_BF16)
		((uint16_t *)view.data)[i] = rh_f32_to_bf16(value);
	else
		((float *)view.data)[i] = value;
}

static double get(struct rh_view view, int64_t i)
{
	return (double)(view.dtype == RH_BF16 ? rh_bf16_to_f32(((uint16_t *)view.data)[i]) : ((float *)view.data)[i]);
}

/* Values that bf16 holds too. */
static void randomise(struct rh_view view, uint64_t *seed, float bound, float middle)
{
	for (int64_t i = 0; i < view.rows * view.cols; i++)
		put(view, i, rh_bf16_to_f32(rh_f32_to_bf16(middle + bound * check_uniform(seed))));
}

static void fill_micro(struct rig *rig)
{
	struct rh_micro_layout at = rh_micro_layout(&rig->emit.shape);
	rig->emit.micro = rig->micro = calloc(1, (size_t)at.bytes);
	int32_t *position = (int32_t *)(void *)(rig->micro + at.position);
	for (int t = 0; t < TOKENS; t++)
		position[t] = t < 7 ? t : t - 7;
	for (int k = 0; k < 2; k++) {
		int32_t *start = (int32_t *)(void *)(rig->micro + (k ? at.start_k : at.start_q));
		start[0] = 0, start[1] = 7, start[2] = TOKENS;
	}
}

static void rig_open(struct rig *rig, enum rh_dtype dtype, int64_t experts)
{
	*rig = (struct rig){.config = {.family = rh_family_find("qwen3"),
	                               .vocab_size = 90,
	                               .hidden_size = HIDDEN,
	                               .intermediate_size = WIDE,
	                               .num_hidden_layers = 1,
	                               .num_attention_heads = HEADS,
	                               .num_key_value_heads = 1,
	                               .head_dim = DIM,
	                               .rms_norm_eps = 1e-6,
	                               .rope[0].theta = 10000,
	                               .qk_norm = 1,
	                               .experts = experts,
	                               .experts_per_token = TOP,
	                               .router_softmax = RH_ROUTER_OVER_CHOSEN},
	                    .seed = check_seed()};
	check_ok(rh_model_create(&rig->config, dtype, NULL, &rig->model));
	check_ok(rh_stage_state_create(rig->model, &rig->state));
	assert_int_equal(rig->model->blocks, 3);
	for (int b = 0; b < rig->model->blocks; b++) {
		const struct rh_block *block = &rig->model->block[b];
		rig->weights[b] = calloc((size_t)block->elements, 4);
		rig->gradient[b][0] = calloc((size_t)block->elements, 4);
		for (int t = 0; t < block->tensors; t++) {
			const struct rh_tensor *tensor = &block->tensor[t];
			char *at = rig->weights[b] + rh_dtype_bytes(dtype, tensor->offset);
			float bound = strstr(tensor->name, "mlp.gate.") ? 1 : 0.4f;
			randomise(rh_view_of(at, dtype, tensor->rows, tensor->cols), &rig->seed, bound, tensor->rank == 1 ? 1 : 0);
		}
	}
	struct rh_arena *arena[] = {&rig->arena, &rig->deferred};
	for (int i = 0; i < 2; i++)
		*arena[i] = (struct rh_arena){rig->memory[i] = malloc(BUFFER), BUFFER, 0, 0};
	rig->emit = (struct rh_emit){.model = rig->model,
	                             .launch = run_oracle,
	                             .sink = rig,
	                             .arena = &rig->arena,
	                             .shape = {.tokens = TOKENS, .documents = 2, .longest = 7},
	                             .weights = rig->weights,
	                             .gradient = rig->gradient};
	fill_micro(rig);
}

static void rig_close(struct rig *rig)
{
	for (int b = 0; b < rig->model->blocks; b++) {
		free(rig->weights[b]);
		free(rig->gradient[b][0]);
	}
	for (int i = 0; i < 2; i++)
		free(rig->memory[i]);
	free(rig->micro);
	rh_stage_state_free(&rig->state);
	rh_model_destroy(rig->model);
}

static struct rh_view hidden(enum rh_dtype dtype)
{
	return rh_view_of(calloc(TOKENS * HIDDEN, 4), dtype, TOKENS, HIDDEN);
}

/* Recompute and backward from clean sums; y absent: as the top layer of a stage has it. */
static void backward(struct rig *rig, struct rh_view x, struct rh_view y, struct rh_view dy, struct rh_view dx, int deferred)
{
	memset(rig->gradient[LAYER][0], 0, (size_t)rig->model->block[LAYER].elements * 4);
	memset(rig->ran, 0, sizeof rig->ran);
	rig->emit.deferred = deferred ? &rig->deferred : NULL;
	rig->arena.used = rig->deferred.used = 0;
	if (y.data) { /* the whole forward, of which all is kept */
		struct rh_fates all[LAYER + 2] = {[LAYER] = {.kept = ~(rh_row_set)0}};
		const struct rh_view boundary[] = {[LAYER + 1] = y};
		struct rh_arena kept = {rig->arena.base + BUFFER / 2, BUFFER / 2, 0, 0}, again = kept;
		rig->emit.fates = all;
		rig->emit.kept = &kept;
		check_ok(rh_stage_forward(&rig->emit, LAYER, LAYER + 1, x, boundary, NULL));
		rig->emit.kept = &again;
		rh_stage_place(&rig->emit, LAYER, LAYER + 1, x, &rig->state);
		rig->emit.fates = NULL;
	} else {
		check_ok(rh_stage_recompute(&rig->emit, LAYER, LAYER + 1, x, &rig->state, NULL));
	}
	check_ok(rh_stage_backward(&rig->emit, LAYER, LAYER + 1, &rig->state, dy, dx));
	if (deferred)
		check_ok(rh_stage_weights(&rig->emit, LAYER, LAYER + 1, &rig->state));
}

static double loss(struct rig *rig, struct rh_view x, struct rh_view y, struct rh_view dy)
{
	double sum = 0;
	rig->choice = 1;
	rig->arena.used = 0;
	const struct rh_view boundary[] = {[LAYER + 1] = y};
	check_ok(rh_stage_forward(&rig->emit, LAYER, LAYER + 1, x, boundary, NULL));
	for (int64_t i = 0; i < TOKENS * HIDDEN; i++)
		sum += get(y, i) * get(dy, i);
	return sum;
}

struct probing {
	struct rig *rig;
	struct rh_view x, y, dy;
	int checked;
};

/* Five points h apart, as tests/device/derivative.h. An element whose steps change an expert's choice has no derivative to compare. */
static void probe(struct probing *at, struct rh_view view, int64_t i, double got, const char *name)
{
	const double h = 0x1p-7;
	double was = get(view, i), value[5];
	uint64_t choice = 0;
	int moved = 0;
	for (int k = 0; k < 5; k++) {
		put(view, i, (float)(was + (k - 2) * h));
		value[k] = loss(at->rig, at->x, at->y, at->dy);
		moved |= k && at->rig->choice != choice;
		choice = at->rig->choice;
	}
	put(view, i, (float)was);
	if (moved)
		return;
	double want = (value[0] - 8 * value[1] + 8 * value[3] - value[4]) / (12 * h);
	if (fabs(got - want) > 2e-3 + 2e-3 * fabs(want))
		print_error("%s[%d]: gradient %.6g, by differences %.6g\n", name, (int)i, got, want);
	assert_true(fabs(got - want) <= 2e-3 + 2e-3 * fabs(want));
	at->checked++;
}

static void test_gradients_are_the_derivative(void **state)
{
	(void)state;
	for (int softmax = RH_ROUTER_OVER_ALL; softmax <= RH_ROUTER_OVER_CHOSEN; softmax++) {
		struct rig rig;
		rig_open(&rig, RH_F32, EXPERTS);
		rig.model->layer[LAYER].traits.softmax = (enum rh_router_softmax)softmax;
		rig.model->layer[LAYER].traits.window = softmax ? 3 : 0;
		struct probing at = {&rig, hidden(RH_F32), hidden(RH_F32), hidden(RH_F32), 0};
		struct rh_view dx = hidden(RH_F32);
		const struct rh_block *block = &rig.model->block[LAYER];
		randomise(at.x, &rig.seed, 1, 0);
		randomise(at.dy, &rig.seed, 1, 0);
		backward(&rig, at.x, (struct rh_view){0}, at.dy, dx, 0);
		for (int p = 0; p < PROBES; p++) {
			int64_t i = (int64_t)((check_uniform(&rig.seed) + 1) / 2 * (TOKENS * HIDDEN - 1));
			probe(&at, at.x, i, get(dx, i), "x");
		}
		for (int t = 0; t < block->tensors; t++) {
			const struct rh_tensor *tensor = &block->tensor[t];
			int64_t count = tensor->rows * tensor->cols;
			struct rh_view w = rh_view_of(rig.weights[LAYER] + 4 * tensor->offset, RH_F32, tensor->rows, tensor->cols);
			for (int p = 0; p < PROBES; p++) {
				int64_t i = (int64_t)((check_uniform(&rig.seed) + 1) / 2 * (float)(count - 1));
				probe(&at, w, i, (double)rig.gradient[LAYER][0][tensor->offset + i], tensor->name);
			}
		}
		printf("%d elements of %d, in %d tensors\n", at.checked, PROBES * (block->tensors + 1), block->tensors);
		assert_true(at.checked > PROBES * block->tensors * 3 / 4);
		free(at.x.data), free(at.y.data), free(at.dy.data), free(dx.data);
		rig_close(&rig);
	}
}

/* The recompute of a stage's top layer leaves out what makes its output; then of weight gradients put off. */
static void test_what_no_backward_reads_is_not_made_again(void **state)
{
	(void)state;
	for (int variant = 0; variant < 4; variant++) {
		enum rh_dtype dtype = variant & 1 ? RH_BF16 : RH_F32;
		int experts = variant & 2 ? EXPERTS : 0, whole[RH_OP_KINDS];
		struct rig rig;
		rig_open(&rig, dtype, experts);
		struct rh_view x = hidden(dtype), y = hidden(dtype), dy = hidden(dtype), dx = hidden(dtype), dx_spared = hidden(dtype);
		size_t bytes = (size_t)rig.model->block[LAYER].elements * 4, hidden_bytes = (size_t)rh_view_bytes(x);
		float *kept = malloc(bytes);
		randomise(x, &rig.seed, 1, 0);
		randomise(dy, &rig.seed, 1, 0);
		backward(&rig, x, y, dy, dx, 0);
		memcpy(kept, rig.gradient[LAYER][0], bytes);
		memcpy(whole, rig.ran, sizeof whole);
		for (int deferred = 0; deferred < 2; deferred++) {
			backward(&rig, x, (struct rh_view){0}, dy, dx_spared, deferred);
			assert_memory_equal(rig.gradient[LAYER][0], kept, bytes);
			assert_memory_equal(dx_spared.data, dx.data, hidden_bytes);
			for (int kind = 0; kind < RH_OP_KINDS; kind++) {
				int spared = kind == RH_OP_GLU || kind == (experts ? RH_OP_GROUPED_GEMM : RH_OP_GEMM) ||
				             (experts && kind == RH_OP_UNPERMUTE);
				int added = kind == RH_OP_CAST ? deferred : 0; /* dy is kept with what is put off */
				assert_int_equal(rig.ran[kind], whole[kind] - spared + added);
			}
		}
		free(kept), free(x.data), free(y.data), free(dy.data), free(dx.data), free(dx_spared.data);
		rig_close(&rig);
	}
}

/* The router's gradient in bf16 against fp32 of the same weights: a dot of rows that were rounded, as one with the experts' outputs would
 * be. Of 2^-8 a rounding, in rows of 16 and of either sign: within 2 % of the whole, as the other gradients of the layer are. */
static void test_router_gradient_in_bf16(void **state)
{
	(void)state;
	struct rig rig[2];
	double difference = 0, size = 0;
	for (int i = 0; i < 2; i++) {
		enum rh_dtype dtype = i ? RH_BF16 : RH_F32;
		rig_open(&rig[i], dtype, EXPERTS);
		struct rh_view x = hidden(dtype), dy = hidden(dtype), dx = hidden(dtype);
		randomise(x, &rig[i].seed, 1, 0);
		randomise(dy, &rig[i].seed, 1, 0);
		rig[i].choice = 1;
		backward(&rig[i], x, (struct rh_view){0}, dy, dx, 0);
		free(x.data), free(dy.data), free(dx.data);
	}
	assert_true(rig[0].choice == rig[1].choice);
	int64_t router = rig[0].model->block[LAYER].tensor[rig[0].model->layer[LAYER].own[RH_MLP][MOE_ROUTER]].offset;
	const float *exact = rig[0].gradient[LAYER][0] + router, *rounded = rig[1].gradient[LAYER][0] + router;
	for (int i = 0; i < EXPERTS * HIDDEN; i++) {
		difference += pow((double)(rounded[i] - exact[i]), 2);
		size += pow((double)exact[i], 2);
	}
	printf("router's gradient in bf16: off by %.2f %% of fp32's\n", 100 * sqrt(difference / size));
	assert_true(sqrt(difference / size) < 0.02);
	rig_close(&rig[0]);
	rig_close(&rig[1]);
}

static void test_experts_lie_one_after_the_other(void **state)
{
	(void)state;
	struct rig rig;
	rig_open(&rig, RH_F32, EXPERTS);
	const struct rh_layer *layer = &rig.model->layer[LAYER];
	const struct rh_block *block = &rig.model->block[LAYER];
	int found = 0;
	for (int t = 0; t < block->tensors; t++) {
		const struct rh_tensor *tensor = &block->tensor[t];
		int e = 0;
		char which[16];
		if (sscanf(tensor->name, "model.layers.0.mlp.experts.%d.%15[a-z]_proj", &e, which) != 2)
			continue;
		int64_t each = WIDE * HIDDEN;
		int64_t at = !strcmp(which, "down")
		                     ? block->tensor[layer->own[RH_MLP][MOE_DOWN]].offset + e * each
		                     : block->tensor[layer->own[RH_MLP][MOE_GATE_UP]].offset + (2 * e + !strcmp(which, "up")) * each;
		assert_int_equal(tensor->offset, at);
		found++;
	}
	assert_int_equal(found, 3 * EXPERTS);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_gradients_are_the_derivative),
	        cmocka_unit_test(test_what_no_backward_reads_is_not_made_again),
	        cmocka_unit_test(test_router_gradient_in_bf16),
	        cmocka_unit_test(test_experts_lie_one_after_the_other),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
