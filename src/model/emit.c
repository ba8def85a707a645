#include "model/half.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <math.h>
#include <string.h>

int64_t rh_load_bytes(const struct rh_model *model)
{
	return model->router_aux_loss_coef == 0 ? 0 : 2 * model->config->experts * (int64_t)sizeof(float);
}

struct rh_boundary_shape rh_boundary_shape(const struct rh_model *model, int layer, int64_t tokens)
{
	int64_t cols = rh_boundary_cols(model, layer) + rh_side_cols(rh_boundary_has(model, layer)), load = rh_load_bytes(model);
	int64_t bytes = rh_dtype_bytes(model->dtype, tokens * cols);
	return (struct rh_boundary_shape){tokens, cols, load ? rh_align_up(bytes, RH_ALIGN) + load : bytes};
}

struct rh_boundary_shape rh_narrow_boundary_shape(const struct rh_model *model, int layer, int64_t tokens)
{
	int64_t side = rh_side_cols(rh_boundary_has(model, layer)), cols = rh_boundary_cols(model, layer) + side;
	int64_t scales = (side ? 2 : 1) * tokens * (int64_t)sizeof(float);
	return (struct rh_boundary_shape){tokens, cols, rh_align_up(tokens * cols, RH_ALIGN) + scales};
}

int64_t rh_narrow_most_bytes(const struct rh_model *model, int64_t tokens)
{
	int64_t most = 0;
	for (int l = 1; l < model->layers; l++)
		most = rh_max(most, rh_narrow_boundary_shape(model, l, tokens).bytes);
	return most;
}

struct rh_view rh_narrow_boundary_view(const struct rh_model *model, int layer, int64_t tokens, void *at)
{
	return rh_view_of(at, RH_E4M3, tokens, rh_boundary_cols(model, layer));
}

/* Scales of a narrow boundary's rows, which = 0, or of its side's, 1: they lie behind both. */
static struct rh_view scales_of(const struct rh_model *model, int layer, struct rh_view narrow, int which)
{
	int64_t cols = narrow.cols + rh_side_cols(rh_boundary_has(model, layer));
	char *scales = (char *)narrow.data + rh_align_up(narrow.rows * cols, RH_ALIGN);
	return rh_view_of(scales + which * narrow.rows * (int64_t)sizeof(float), RH_F32, narrow.rows, 1);
}

static void quantise_rows(struct rh_emit *emit, struct rh_view x, struct rh_view scales, struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_QUANTISE_ROWS};
	op.operand[RH_QUANTISE_ROWS_X] = x;
	op.operand[RH_QUANTISE_ROWS_SCALE] = scales;
	op.operand[RH_QUANTISE_ROWS_Y] = y;
	emit_op(emit, &op);
}

void emit_narrow(struct rh_emit *emit, int layer, struct rh_view x, struct rh_view beside, struct rh_view narrow)
{
	quantise_rows(emit, x, scales_of(emit->model, layer, narrow, 0), narrow);
	if (beside.data)
		quantise_rows(emit, beside, scales_of(emit->model, layer, narrow, 1), rh_boundary_side(emit->model, layer, narrow));
}

static void dequantise_rows(struct rh_emit *emit, struct rh_view x, struct rh_view scales, struct rh_view y)
{
	enum { RUN = 8 };
	struct rh_op op = {.kind = RH_OP_DEQUANTISE};
	op.operand[RH_DEQUANTISE_X] = x;
	op.operand[RH_DEQUANTISE_SCALE] = scales;
	op.operand[RH_DEQUANTISE_Y] = y;
	op.dequantise.run = (x.cols + RUN - 1) / RUN * RUN;
	op.dequantise.tall = 1;
	emit_op(emit, &op);
}

struct rh_view emit_widened(struct rh_emit *emit, int layer, struct rh_view x)
{
	if (x.dtype != RH_E4M3 || !x.data)
		return x;
	struct rh_view both = emit_act(emit, 1, x.rows * (x.cols + rh_side_cols(rh_boundary_has(emit->model, layer))));
	struct rh_view y = rh_view_of(both.data, both.dtype, x.rows, x.cols), beside = rh_boundary_side(emit->model, layer, y);
	dequantise_rows(emit, x, scales_of(emit->model, layer, x, 0), y);
	if (beside.data)
		dequantise_rows(emit, rh_boundary_side(emit->model, layer, x), scales_of(emit->model, layer, x, 1), beside);
	return y;
}

int64_t rh_boundary_most_bytes(const struct rh_model *model, int64_t tokens)
{
	int64_t most = 0;
	for (int l = 0; l <= model->layers; l++)
		most = rh_max(most, rh_boundary_shape(model, l, tokens).bytes);
	return most;
}

struct rh_view rh_boundary_side(const struct rh_model *model, int layer, struct rh_view boundary)
{
	int64_t cols = rh_side_cols(rh_boundary_has(model, layer));
	if (!cols || !boundary.data)
		return (struct rh_view){0};
	return rh_view_of((char *)boundary.data + rh_view_bytes(boundary), boundary.dtype, boundary.rows, cols);
}

struct rh_view rh_boundary_load(const struct rh_model *model, int layer, struct rh_view boundary)
{
	if (model->router_aux_loss_coef == 0 || !boundary.data)
		return (struct rh_view){0};
	int64_t bytes = rh_view_bytes(boundary) + rh_view_bytes(rh_boundary_side(model, layer, boundary));
	char *at = (char *)boundary.data + rh_align_up(bytes, RH_ALIGN);
	return rh_view_of(at, RH_F32, 1, 2 * model->config->experts);
}

void emit_op(struct rh_emit *emit, const struct rh_op *op)
{
	if (emit->amaxes && emit->amaxes->cols)
		emit_amax_forget(emit->amaxes, op);
	if (emit->launch && !emit->rc)
		emit->rc = emit->launch(emit->sink, op);
}

struct rh_view emit_lane(const struct rh_emit *emit, struct rh_view side, int lane)
{
	return rh_view_cols(side, lane ? emit->has.lane[0] : 0, emit->has.lane[lane]);
}

char *emit_carried(const struct rh_emit *emit, int layer)
{
	int64_t own, lowest;
	(void)rh_model_cache_range(emit->model, layer, layer + 1, emit->cache_rows, &own);
	(void)rh_model_cache_range(emit->model, emit->cache_layer, emit->cache_layer + 1, emit->cache_rows, &lowest);
	return emit->cache + own - lowest;
}

struct rh_view emit_act(struct rh_emit *emit, int64_t rows, int64_t cols)
{
	return emit_take(emit->arena, emit->model->dtype, rows, cols);
}

struct rh_view emit_operand(const struct rh_emit *emit, struct rh_activations *s, int row)
{
	struct rh_view *view = &s->view[row];
	if (!(s->placed & RH_ROW_SET(row)))
		view->data = rh_arena_take(emit->arena, rh_dtype_bytes(view->dtype, view->rows * view->cols));
	return *view;
}

struct rh_view emit_micro(const struct rh_emit *emit, int64_t offset, int64_t count)
{
	return rh_view_of(emit->micro + offset, RH_I32, count, 1);
}

struct rh_view emit_weight(const struct rh_emit *emit, const struct rh_layer *layer, int which, int tensor, int64_t rows, int64_t cols)
{
	if (tensor < 0)
		return (struct rh_view){0};
	int block = layer->block[which];
	struct rh_tensor_form form = rh_block_tensor(&emit->model->block[block], tensor, emit->model->dtype);
	char *base = emit->launch ? emit->weights[block] : (char *)(uintptr_t)RH_ALIGN; /* measuring: any address */
	return rh_view_of(base + form.offset, form.dtype, rows, cols);
}

struct rh_view emit_gradient(const struct rh_emit *emit, const struct rh_layer *layer, int which, int tensor, int64_t rows, int64_t cols)
{
	int block = layer->block[which];
	if (tensor < 0 || block < 0 || !emit->model->block[block].trainable)
		return (struct rh_view){0};
	float *base = emit->launch ? emit->gradient[block][layer->use[which]] : (float *)(uintptr_t)RH_ALIGN;
	return rh_view_of(base + emit->model->block[block].tensor[tensor].offset, RH_F32, rows, cols);
}

void emit_gemm(struct rh_emit *emit, const struct emit_product *product)
{
	struct rh_op op = {.kind = RH_OP_GEMM};
	op.operand[RH_GEMM_A] = product->a;
	op.operand[RH_GEMM_B] = product->b;
	op.operand[RH_GEMM_C] = product->c;
	op.operand[RH_GEMM_BIAS] = product->bias;
	op.operand[RH_GEMM_D] = product->d;
	op.gemm.trans_a = product->trans_a;
	op.gemm.trans_b = product->trans_b;
	op.gemm.alpha = product->alpha == 0 ? 1 : product->alpha;
	emit_op(emit, &op);
}

void emit_column_sum(struct rh_emit *emit, struct rh_view x, struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_COLUMN_SUM};
	op.operand[RH_COLUMN_SUM_X] = x;
	op.operand[RH_COLUMN_SUM_Y] = y;
	emit_op(emit, &op);
}

void emit_cast(struct rh_emit *emit, struct rh_view x, struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_CAST};
	op.operand[RH_CAST_X] = x;
	op.operand[RH_CAST_Y] = y;
	emit_op(emit, &op);
}

uint32_t emit_own_site(const struct rh_emit *emit, int layer, int own)
{
	return (uint32_t)(RH_SITE_OWN + RH_OWN_SITES * (emit->model->first_layer + layer) + own);
}

static struct rh_op dropout_op(const struct rh_emit *emit, int layer, int own)
{
	return (struct rh_op){.kind = RH_OP_DROPOUT,
	                      .dropout = {.seed = emit->seed,
	                                  .step = emit->step,
	                                  .micro_batch = emit->micro_batch,
	                                  .site = emit_own_site(emit, layer, own),
	                                  .first_row = (uint32_t)emit->shape.first}};
}

void emit_dropout(struct rh_emit *emit, struct emit_drop drop, struct rh_view x, struct rh_view add, struct rh_view y)
{
	struct rh_op op = dropout_op(emit, drop.layer, drop.own);
	op.dropout.p = drop.p;
	op.operand[RH_DROPOUT_X] = x;
	op.operand[RH_DROPOUT_ADD] = add;
	op.operand[RH_DROPOUT_Y] = y;
	emit_op(emit, &op);
}

void emit_noise(struct rh_emit *emit, int layer, struct rh_view y)
{
	struct rh_op op = dropout_op(emit, layer, RH_OWN_NOISE);
	int64_t tokens = emit->shape.chunks ? emit->shape.text_longest : emit->shape.longest;
	op.dropout.noise = emit->drop.noise / sqrtf((float)(rh_max(tokens, 1) * y.cols));
	op.operand[RH_DROPOUT_X] = op.operand[RH_DROPOUT_Y] = y;
	emit_op(emit, &op);
}

void emit_fill(struct rh_emit *emit, struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_FILL};
	op.operand[RH_FILL_Y] = y;
	emit_op(emit, &op);
}

void emit_add_scaled(struct rh_emit *emit, struct rh_view a, struct rh_view b, struct rh_view scale, struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_ADD};
	op.operand[RH_ADD_A] = a;
	op.operand[RH_ADD_B] = b;
	op.operand[RH_ADD_Y] = y;
	op.operand[RH_ADD_SCALE] = scale;
	emit_op(emit, &op);
}

void emit_add(struct rh_emit *emit, struct rh_view a, struct rh_view b, struct rh_view y)
{
	emit_add_scaled(emit, a, b, (struct rh_view){0}, y);
}

void emit_glu(struct rh_emit *emit, enum rh_activation act, struct rh_view gu, struct rh_view a)
{
	struct rh_op op = {.kind = RH_OP_GLU, .activation.act = act};
	op.operand[RH_GLU_GU] = gu;
	op.operand[RH_GLU_A] = a;
	op.operand[RH_GLU_AMAX] = emit_amax(emit, a, a.cols, rh_glu_parts(a.cols));
	emit_op(emit, &op);
}

void emit_glu_backward(struct rh_emit *emit, enum rh_activation act, struct rh_view gu, struct rh_view da, struct rh_view dot)
{
	struct rh_op op = {.kind = RH_OP_GLU_BACKWARD, .activation.act = act};
	op.operand[RH_GLU_BACKWARD_GU] = op.operand[RH_GLU_BACKWARD_DGU] = gu;
	op.operand[RH_GLU_BACKWARD_DA] = op.operand[RH_GLU_BACKWARD_A] = da;
	op.operand[RH_GLU_BACKWARD_DOT] = dot;
	op.operand[RH_GLU_BACKWARD_DGU_AMAX] = emit_amax(emit, gu, gu.cols, rh_glu_parts(da.cols));
	op.operand[RH_GLU_BACKWARD_A_AMAX] = emit_amax(emit, da, da.cols, rh_glu_parts(da.cols));
	emit_op(emit, &op);
}

/* The number of positions, for models whose rope table depends on it. */
static int64_t positions(const struct rh_micro_shape *shape)
{
	if (shape->chunks)
		return shape->text_longest;
	return shape->keys > shape->longest ? shape->keys : shape->longest;
}

/* The elements of a head that a table turns: the same in all layers that ask for it; 0: none does. */
static int64_t rotary_of(const struct rh_model *model, int rope)
{
	for (int l = 0; l < model->layers; l++) {
		const struct rh_traits *traits = &model->layer[l].traits;
		if (model->layer[l].kind == RH_LAYER_BLOCK && (traits->rope == rope || traits->query_rope == rope))
			return traits->rotary;
	}
	return 0;
}

static struct rh_rope_table chosen_table(const struct rh_emit *emit, int which, int64_t rotary)
{
	const struct rh_rope *rope = &emit->model->config->rope[which];
	int is_long = rh_rope_varies(rope) && positions(&emit->shape) > rope->original_max_position;
	struct rh_rope_table table = emit->model->rope[which][is_long];
	if (is_long && rope->type == RH_ROPE_DYNAMIC)
		rh_rope_table(rope, rotary, positions(&emit->shape), &table);
	return table;
}

void emit_declare_ropes(const struct rh_emit *emit, struct emit_table *table)
{
	for (int i = 0; i < emit->model->ropes; i++) {
		int64_t rotary = rotary_of(emit->model, i);
		if (rotary) /* else of layers that other boxes have */
			emit_row(table, RH_ROW_ROPE + i, RH_F32, emit->shape.tokens, rotary, (struct emit_origin){RH_MAKER_STAGE, 0, 0});
	}
}

void emit_rope_tables(struct rh_emit *emit, const struct rh_activations *s)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	for (int i = 0; i < emit->model->ropes; i++) {
		struct rh_view to = emit_wanted(s, RH_ROW_ROPE + i);
		if (!to.data)
			continue;
		struct rh_rope_table table = chosen_table(emit, i, to.cols);
		struct rh_op op = {.kind = RH_OP_ROPE_TABLE};
		op.operand[RH_ROPE_TABLE_POSITION] = emit_micro(emit, at.position, emit->shape.tokens);
		op.operand[RH_ROPE_TABLE_TABLE] = to;
		memcpy(op.rope_table.inv_freq, table.inv_freq, sizeof op.rope_table.inv_freq);
		op.rope_table.scale = table.scale;
		op.rope_table.growth = (float)emit->model->config->rope[i].growth;
		op.rope_table.step = (float)emit->model->config->rope[i].original_max_position;
		emit_op(emit, &op);
	}
}

int rh_stage_state_create(const struct rh_model *model, struct rh_stage_state *out)
{
	*out = (struct rh_stage_state){0};
	out->layer = rh_alloc((size_t)model->layers, sizeof *out->layer);
	return out->layer ? 0 : -ENOMEM;
}

void rh_stage_state_free(struct rh_stage_state *state)
{
	rh_free(state->layer);
	*state = (struct rh_stage_state){0};
}
