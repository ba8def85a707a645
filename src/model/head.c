/* The two ends of a model: the embedding, and the final norm + head + loss, which run only on the rows whose logits are needed. */
#include "model/half.h"

#include "core/float16.h"

#include <math.h>

static int64_t least_rows(const struct rh_model *model)
{
	int64_t rows = RH_HEAD_CHUNK_BYTES / (4 * rh_model_outputs(model->config));
	return rows < 16 ? 16 : rows;
}

int64_t rh_head_chunk(const struct rh_model *model, int64_t head_rows)
{
	int64_t least = least_rows(model), rows = model->head_rows > least ? model->head_rows : least;
	return rows < head_rows ? rows : head_rows;
}

void rh_model_cut(struct rh_model *model, const struct rh_device_grain *grain)
{
	const struct rh_layer *layer = &model->layer[model->layers - 1];
	int table = layer->block[layer->table];
	model->head_rows_wanted = model->block[table].trainable ? grain->head_rows_trained : grain->head_rows_frozen;
	model->head_rows = model->head_rows_wanted;
	model->has_attention_space = grain->has_attention_space;
	model->attention_flops = grain->attention_flops;
	model->plain_attention_flops = grain->plain_attention_flops;
}

int rh_model_cut_finer(struct rh_model *model)
{
	if (model->head_rows <= least_rows(model))
		return 0;
	model->head_rows /= 2;
	return 1;
}

/* The head's rows of the activation table: the gathered rows, their statistics in NORM + RH_NORM_FINAL; the output of the dense part,
 * before its activation, with NORM + RH_NORM_DENSE; the gradient at the gathered rows, which is made with the loss. */
enum { ROWS = RH_ROW_MIXER, DENSE, D_ROWS };

/* The head's matrix, plain; it may lie in the arena. */
static struct rh_view head_matrix(struct rh_emit *emit, const struct rh_layer *layer)
{
	return emit_matrix(emit, layer, layer->table, layer->head, rh_model_outputs(emit->model->config), layer->width);
}

static struct rh_view table_gradient(const struct rh_emit *emit, const struct rh_layer *layer)
{
	const struct rh_model_config *config = emit->model->config;
	int64_t rows = layer->kind == RH_LAYER_HEAD ? rh_model_outputs(config) : config->vocab_size;
	return emit_gradient(emit, layer, layer->table, layer->head, rows, layer->width);
}

static struct rh_view head_bias(const struct rh_emit *emit, const struct rh_layer *layer)
{
	return emit_weight(emit, layer, layer->bias_table, layer->head_bias, 1, rh_model_outputs(emit->model->config));
}

static void gather(struct rh_emit *emit, struct rh_view x, struct rh_view index, struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_GATHER_ROWS};
	op.operand[RH_GATHER_ROWS_X] = x;
	op.operand[RH_GATHER_ROWS_INDEX] = index;
	op.operand[RH_GATHER_ROWS_Y] = y;
	emit_op(emit, &op);
}

/* What products with the head's matrix are multiplied with. */
static float logits_factor(const struct rh_emit *emit)
{
	double divisor = emit->model->config->logits_divisor;
	return divisor == 0 ? 1 : (float)(1 / divisor);
}

/* A walk over the head's rows: where their losses and hits go, what the gradient does, and what each row weighs. */
struct walk {
	struct rh_view loss, hit, dh, mix;
	int learns;
};

static void head_loss(struct rh_emit *emit, struct rh_view h, const struct rh_head_out *out, const struct walk *walk)
{
	const struct rh_layer *layer = &emit->model->layer[emit->model->layers - 1];
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	int64_t mark = emit->arena->used, outputs = rh_model_outputs(emit->model->config);
	struct rh_op op = {.kind = RH_OP_HEAD_LOSS};
	op.operand[RH_HEAD_LOSS_H] = h;
	op.operand[RH_HEAD_LOSS_W] = head_matrix(emit, layer);
	op.operand[RH_HEAD_LOSS_TARGET] = emit_micro(emit, at.target, h.rows);
	op.operand[RH_HEAD_LOSS_LOGITS] = emit_take(emit->arena, RH_F32, rh_head_chunk(emit->model, h.rows), outputs);
	op.operand[RH_HEAD_LOSS_LOSS] = walk->loss;
	op.operand[RH_HEAD_LOSS_HIT] = walk->hit;
	op.operand[RH_HEAD_LOSS_DH] = walk->dh;
	op.operand[RH_HEAD_LOSS_BIAS] = head_bias(emit, layer);
	struct emit_table_adapter adapter = emit_head_adapter(emit, h);
	struct rh_view dlow = adapter.low.data && walk->learns ? emit_act(emit, h.rows, adapter.low.cols) : (struct rh_view){0};
	op.operand[RH_HEAD_LOSS_LOW] = adapter.low;
	op.operand[RH_HEAD_LOSS_UP] = adapter.up;
	op.operand[RH_HEAD_LOSS_DLOW] = dlow;
	if (dlow.data)
		op.operand[RH_HEAD_LOSS_DUP] = emit_head_adapter_up_gradient(emit);
	if (walk->learns) {
		op.operand[RH_HEAD_LOSS_DW] = table_gradient(emit, layer);
		op.operand[RH_HEAD_LOSS_DBIAS] = emit_gradient(emit, layer, layer->bias_table, layer->head_bias, 1, outputs);
	}
	op.operand[RH_HEAD_LOSS_SHARES] = out->shares;
	if (emit->shape.taught)
		op.head_loss.top = emit->model->distillation.top;
	else if (out->shares.data)
		op.head_loss.top = emit->shape.top;
	op.head_loss.temperature = emit->model->distillation.temperature;
	if (out->shares.data && op.head_loss.temperature == 0) /* nothing is distilled */
		op.head_loss.temperature = 1;
	op.head_loss.divergence = emit->model->distillation.divergence;
	op.operand[RH_HEAD_LOSS_MIX] = walk->mix;
	if (emit->shape.taught) {
		op.operand[RH_HEAD_LOSS_TEACHER] = rh_view_of(emit->micro + at.teacher, RH_F32, h.rows, emit->shape.taught);
		op.operand[RH_HEAD_LOSS_MIX] = rh_view_of(emit->micro + at.mix, RH_F32, h.rows, 2);
	}
	op.head_loss.scale = emit->loss_scale;
	op.head_loss.alpha = logits_factor(emit);
	if (!out->shares.data) /* the largest logit is the largest without the cap, too */
		op.head_loss.cap = (float)emit->model->config->logits_cap;
	emit_op(emit, &op);
	if (dlow.data)
		emit_head_adapter_backward(emit, &adapter, dlow, walk->dh);
	rh_arena_reset(emit->arena, mark);
}

/* 1: the head, its adapter or a bias of it, is trained. */
static int head_learns(const struct rh_emit *emit)
{
	const struct rh_layer *layer = &emit->model->layer[emit->model->layers - 1];
	return emit->model->block[layer->block[layer->table]].trainable || layer->on_table.r ||
	       (layer->head_bias >= 0 && emit->model->block[layer->block[layer->bias_table]].trainable);
}

/* What each head row of the text weighs, in the arena, by the cross-entropies of all of them. dh: its rows times that; or absent. */
static struct rh_view weigh(struct rh_emit *emit, struct rh_view loss, struct rh_view dh)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	int64_t judged = emit->shape.judged;
	struct rh_view mix = emit_take(emit->arena, RH_F32, loss.rows, 1);
	struct rh_op op = {.kind = RH_OP_PREFERENCE, .preference = emit->model->preference};
	op.operand[RH_PREFERENCE_OP_LOSS] = loss;
	op.operand[RH_PREFERENCE_OP_SPAN] = rh_view_of(emit->micro + at.span, RH_I32, judged, RH_SPANS);
	op.operand[RH_PREFERENCE_OP_REFERENCE] = rh_view_of(emit->micro + at.reference, RH_F32, judged, 1);
	op.operand[RH_PREFERENCE_OP_SUM] = emit_take(emit->arena, RH_F32, judged, 2);
	op.operand[RH_PREFERENCE_OP_MIX] = mix;
	op.operand[RH_PREFERENCE_OP_DH] = dh;
	emit_op(emit, &op);
	return mix;
}

/* The walk that makes the gradient, of rows that weigh so much; its losses are weighted, too, and nobody reads them. */
static void weighted_walk(struct rh_emit *emit, struct rh_view h, const struct rh_head_out *out, struct rh_view dh, struct rh_view mix)
{
	struct rh_view loss = emit_take(emit->arena, RH_F32, h.rows, 1);
	head_loss(emit, h, out, &(struct walk){loss, out->hit, dh, mix, head_learns(emit)});
}

/* Losses over whole answers. The first walk gives each row's cross-entropy, and from these follows what the row weighs; the gradient is a
 * second walk's. Where the head is frozen the gradient of its input is linear in these weights: the first walk makes it, too. */
static void head_preference(struct rh_emit *emit, struct rh_view h, const struct rh_head_out *out, struct rh_view dh)
{
	int64_t mark = emit->arena->used;
	int learns = head_learns(emit);
	struct rh_view none = {0}, first_dh = learns ? none : dh;
	head_loss(emit, h, out, &(struct walk){.loss = out->loss, .hit = out->hit, .dh = first_dh});
	struct rh_view mix = weigh(emit, out->loss, first_dh);
	if (learns)
		weighted_walk(emit, h, out, dh, mix);
	rh_arena_reset(emit->arena, mark);
}

/* Cross-entropies of a text's head rows, which the head carries from the walk over all chunks to the gradient of each. */
static struct rh_view carried_losses(const struct rh_emit *emit)
{
	return rh_view_of(emit_carried(emit, emit->model->layers - 1), RH_F32, emit->shape.judged_rows, 1);
}

/* The chunk's own of all head rows of its text. */
static struct rh_view own_rows(const struct rh_emit *emit, struct rh_view all)
{
	return rh_view_rows(all, emit->shape.judged_first, emit->shape.head_rows);
}

/* The same of a chunk: the first walk was emit_head_carry's. */
static void chunk_preference(struct rh_emit *emit, struct rh_view h, const struct rh_head_out *out, struct rh_view dh)
{
	int64_t mark = emit->arena->used;
	struct rh_view losses = carried_losses(emit), mix = weigh(emit, losses, (struct rh_view){0});
	emit_cast(emit, own_rows(emit, losses), out->loss);
	weighted_walk(emit, h, out, dh, own_rows(emit, mix));
	rh_arena_reset(emit->arena, mark);
}

/* Logits become what the model's cap leaves of them. */
static void cap_logits(struct rh_emit *emit, struct rh_view logits)
{
	struct rh_op op = {.kind = RH_OP_ACTIVATION, .activation = {RH_ACT_TANH, (float)emit->model->config->logits_cap}};
	if (op.activation.cap == 0)
		return;
	op.operand[RH_ACTIVATION_X] = op.operand[RH_ACTIVATION_Y] = logits;
	emit_op(emit, &op);
}

static void all_logits(struct rh_emit *emit, struct rh_view h, struct rh_view out)
{
	const struct rh_layer *layer = &emit->model->layer[emit->model->layers - 1];
	int64_t mark = emit->arena->used;
	struct emit_table_adapter adapter = emit_head_adapter(emit, h);
	struct rh_view part = adapter.low.data ? out : (struct rh_view){0};
	if (part.data)
		emit_gemm(emit, &(struct emit_product){.a = adapter.low, .b = adapter.up, .trans_b = 1, .d = part});
	emit_gemm(emit, &(struct emit_product){.a = h,
	                                       .b = head_matrix(emit, layer),
	                                       .trans_b = 1,
	                                       .alpha = logits_factor(emit),
	                                       .bias = head_bias(emit, layer),
	                                       .c = part,
	                                       .d = out});
	cap_logits(emit, out);
	rh_arena_reset(emit->arena, mark);
}

/* Logits of a few vocabulary entries, the same for every row; of labels all. */
static void choice_logits(struct rh_emit *emit, struct rh_view h, struct rh_view out)
{
	const struct rh_layer *layer = &emit->model->layer[emit->model->layers - 1];
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	if (rh_task_classifies(emit->model->config->task)) {
		all_logits(emit, h, out);
		return;
	}
	struct rh_view rows = emit_act(emit, emit->shape.choices, h.cols), index = emit_micro(emit, at.choice, emit->shape.choices);
	if (!emit_packed_rows(emit, layer, layer->table, layer->head, index, rows))
		gather(emit, head_matrix(emit, layer), index, rows);
	struct emit_table_adapter adapter = emit_head_adapter(emit, h);
	struct rh_view part = adapter.low.data ? out : (struct rh_view){0};
	if (part.data) {
		struct rh_view up = emit_act(emit, emit->shape.choices, adapter.up.cols);
		gather(emit, adapter.up, index, up);
		emit_gemm(emit, &(struct emit_product){.a = adapter.low, .b = up, .trans_b = 1, .d = part});
	}
	emit_gemm(emit, &(struct emit_product){.a = h, .b = rows, .trans_b = 1, .alpha = logits_factor(emit), .c = part, .d = out});
	cap_logits(emit, out);
}

static int dense_out(const struct rh_layer *layer)
{
	return layer->proj[RH_PROJ_O].outputs != 0;
}

static struct emit_linears dense_of(const struct rh_emit *emit)
{
	return (struct emit_linears){emit->model->layers - 1, RH_PROJ_O, 1};
}

static void activate(struct rh_emit *emit, const struct rh_layer *layer, struct rh_view x, struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_ACTIVATION, .activation.act = layer->traits.activation};
	op.operand[RH_ACTIVATION_X] = x;
	op.operand[RH_ACTIVATION_Y] = y;
	emit_op(emit, &op);
}

static void emit_final_norm(struct rh_emit *emit, struct rh_view h, const struct rh_activations *s)
{
	int head = emit->model->layers - 1;
	if (emit->model->layer[head].norm[RH_NORM_FINAL] >= 0)
		emit_norm(emit, emit_norm_of(emit, head, RH_NORM_FINAL), s->view[ROWS], h, s->view[RH_ROW_NORM + RH_NORM_FINAL]);
	else
		emit_cast(emit, s->view[ROWS], h);
}

/* The rows that the table is multiplied with, made from the gathered rows: their norm, then the dense part with its activation and norm. */
static void head_rows(struct rh_emit *emit, struct rh_view h, const struct rh_activations *s)
{
	int head = emit->model->layers - 1;
	const struct rh_layer *layer = &emit->model->layer[head];
	emit_final_norm(emit, h, s);
	if (!dense_out(layer))
		return;
	emit_linear(emit, dense_of(emit), h, (struct rh_view){0}, s->view[DENSE], s);
	activate(emit, layer, s->view[DENSE], h);
	if (layer->norm[RH_NORM_DENSE] >= 0)
		emit_norm(emit, emit_norm_of(emit, head, RH_NORM_DENSE), h, h, s->view[RH_ROW_NORM + RH_NORM_DENSE]);
}

void emit_declare_head(const struct rh_emit *emit, int index, struct emit_table *table)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	enum rh_dtype act = emit->model->dtype;
	int64_t rows = emit->shape.head_rows, width = layer->width;
	rh_row_set dense = RH_ROW_SET(ROWS) | RH_ROW_SET(RH_ROW_NORM + RH_NORM_FINAL);
	if (!rows)
		return;
	emit_row(table, ROWS, act, rows, width, (struct emit_origin){RH_MAKER_MLP, RH_ROW_SET(RH_ROW_X), 0});
	for (int n = 0; n < RH_NORMS; n++)
		if (layer->norm[n] >= 0)
			emit_row(table, RH_ROW_NORM + n, RH_F32, rows,
			         emit_norm_stats_cols(emit_norm_of(emit, index, (enum rh_norm_place)n)),
			         (struct emit_origin){RH_MAKER_MLP, n == RH_NORM_FINAL ? RH_ROW_SET(ROWS) : RH_ROW_SET(DENSE), 0});
	if (dense_out(layer))
		emit_row(table, DENSE, act, rows, width, (struct emit_origin){RH_MAKER_MLP, dense, 0});
	emit_row(table, D_ROWS, act, rows, width, (struct emit_origin){RH_MAKER_BACKWARD, 0, 0});
}

static struct emit_drop head_drop(const struct rh_emit *emit)
{
	return (struct emit_drop){emit->model->layers - 1, RH_OWN_END, emit->drop.head};
}

void emit_head(struct rh_emit *emit, struct rh_view x, const struct rh_head_out *out, int learns, struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[emit->model->layers - 1];
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	int64_t rows = emit->shape.head_rows;
	if (rows == 0)
		return;
	struct rh_view dh = learns ? emit_operand(emit, s, D_ROWS) : (struct rh_view){0};
	int64_t mark = emit->arena->used;
	struct rh_view h = emit_act(emit, rows, layer->width);
	gather(emit, x, emit_micro(emit, at.head_row, rows), s->view[ROWS]);
	head_rows(emit, h, s);
	if (emit->drop.head > 0)
		emit_dropout(emit, head_drop(emit), h, (struct rh_view){0}, h);
	if (out->logits.data)
		all_logits(emit, h, out->logits);
	else if (learns && emit->shape.judged && emit->shape.chunks > 1)
		chunk_preference(emit, h, out, dh);
	else if (learns && emit->shape.judged)
		head_preference(emit, h, out, dh);
	else
		head_loss(emit, h, out, &(struct walk){.loss = out->loss, .hit = out->hit, .dh = dh, .learns = learns});
	if (out->choice.data)
		choice_logits(emit, h, out->choice);
	rh_arena_reset(emit->arena, mark);
}

void emit_head_carry(struct rh_emit *emit, struct rh_view x, struct rh_activations *s)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	int64_t mark = emit->arena->used, rows = emit->shape.head_rows;
	if (rows == 0)
		return;
	struct rh_view h = emit_act(emit, rows, x.cols), hit = emit_take(emit->arena, RH_I32, rows, 1);
	gather(emit, x, emit_micro(emit, at.head_row, rows), s->view[ROWS]);
	head_rows(emit, h, s);
	head_loss(emit, h, &(struct rh_head_out){0}, &(struct walk){.loss = own_rows(emit, carried_losses(emit)), .hit = hit});
	rh_arena_reset(emit->arena, mark);
}

/* dh, of what the dense part made, becomes that of its input; its gradients. */
static void dense_backward(struct rh_emit *emit, struct rh_activations *s)
{
	int head = emit->model->layers - 1;
	const struct rh_layer *layer = &emit->model->layer[head];
	int64_t mark = emit->arena->used;
	struct rh_op op = {.kind = RH_OP_ACTIVATION_BACKWARD, .activation.act = layer->traits.activation};
	struct rh_view h = emit_act(emit, s->view[ROWS].rows, s->view[ROWS].cols);
	if (layer->norm[RH_NORM_DENSE] >= 0) {
		activate(emit, layer, s->view[DENSE], h);
		emit_norm_backward(
		        emit, emit_norm_of(emit, head, RH_NORM_DENSE),
		        &(struct emit_norm_gradient){
		                .x = h, .stats = s->view[RH_ROW_NORM + RH_NORM_DENSE], .dy = s->view[D_ROWS], .dx = s->view[D_ROWS]});
	}
	op.operand[RH_ACTIVATION_BACKWARD_X] = op.operand[RH_ACTIVATION_BACKWARD_DX] = s->view[DENSE];
	op.operand[RH_ACTIVATION_BACKWARD_DY] = s->view[D_ROWS];
	emit_op(emit, &op);
	emit_final_norm(emit, h, s);
	emit_linear_dx(emit, dense_of(emit), s->view[DENSE], s->view[D_ROWS], s);
	emit_linear_dw(emit, dense_of(emit), s->view[DENSE], h, s);
	rh_arena_reset(emit->arena, mark);
}

void emit_head_backward(struct rh_emit *emit, struct rh_activations *s, struct rh_view dx)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	int head = emit->model->layers - 1;
	if (emit->shape.head_rows == 0) {
		if (dx.data)
			emit_fill(emit, dx);
		return;
	}
	if (emit->drop.head > 0)
		emit_dropout(emit, head_drop(emit), s->view[D_ROWS], (struct rh_view){0}, s->view[D_ROWS]);
	if (dense_out(&emit->model->layer[head]))
		dense_backward(emit, s);
	const struct emit_norm_gradient gradient = {
	        .x = s->view[ROWS], .stats = s->view[RH_ROW_NORM + RH_NORM_FINAL], .dy = s->view[D_ROWS], .dx = s->view[D_ROWS]};
	if (emit->model->layer[head].norm[RH_NORM_FINAL] >= 0)
		emit_norm_backward(emit, emit_norm_of(emit, head, RH_NORM_FINAL), &gradient);
	if (!dx.data)
		return;
	struct rh_op scatter = {.kind = RH_OP_SCATTER_ROWS};
	scatter.operand[RH_SCATTER_ROWS_X] = s->view[D_ROWS];
	scatter.operand[RH_SCATTER_ROWS_INDEX] = emit_micro(emit, at.head_row, emit->shape.head_rows);
	scatter.operand[RH_SCATTER_ROWS_Y] = dx;
	emit_op(emit, &scatter);
}

/* A root of the width is rounded to the weights' dtype, as transformers does; a number of config.json is not. */
static float rounded_scale(const struct rh_model *model, float scale)
{
	return model->dtype == RH_BF16 && model->config->family->scales_embedding ? rh_bf16_to_f32(rh_f32_to_bf16(scale)) : scale;
}

/* One of the embedding's tables, as rows of it for each token. */
struct table {
	enum rh_layer_block block;
	int tensor;
	int64_t rows, index; /* byte offset of the indices in the micro-batch */
	float scale;
};
enum { TABLES = 3 };

/* Fills in the tables that the model has; returns how many. */
static int tables_of(const struct rh_emit *emit, struct table out[TABLES])
{
	const struct rh_layer *layer = &emit->model->layer[0];
	const struct rh_model_config *config = emit->model->config;
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	int count = 0;
	out[count++] =
	        (struct table){RH_BLOCK_BASE, 0, config->vocab_size, at.ids, rounded_scale(emit->model, (float)config->embedding_scale)};
	if (layer->types >= 0)
		out[count++] = (struct table){RH_BLOCK_BASE, layer->types, config->types, at.type, 1};
	if (layer->positions >= 0)
		out[count++] = (struct table){RH_BLOCK_BASE, layer->positions, config->max_position_embeddings, at.position, 1};
	return count;
}

/* The tokens' rows of one table. */
static void rows_of(struct rh_emit *emit, const struct table *table, struct rh_view to)
{
	const struct rh_layer *layer = &emit->model->layer[0];
	struct rh_op op = {.kind = RH_OP_EMBEDDING, .embedding.scale = table->scale};
	struct rh_view ids = emit_micro(emit, table->index, emit->shape.tokens);
	op.operand[RH_EMBEDDING_IDS] = ids;
	op.operand[RH_EMBEDDING_TABLE] = emit_weight(emit, layer, table->block, table->tensor, table->rows, to.cols);
	op.operand[RH_EMBEDDING_Y] = to;
	if (!emit_packed_rows(emit, layer, table->block, table->tensor, ids, to))
		emit_op(emit, &op);
}

static void table_gradient_of(struct rh_emit *emit, const struct table *table, struct rh_view dy)
{
	const struct rh_layer *layer = &emit->model->layer[0];
	struct rh_op op = {.kind = RH_OP_EMBEDDING_BACKWARD, .embedding.scale = table->scale};
	op.operand[RH_EMBEDDING_BACKWARD_IDS] = emit_micro(emit, table->index, emit->shape.tokens);
	op.operand[RH_EMBEDDING_BACKWARD_DY] = dy;
	op.operand[RH_EMBEDDING_BACKWARD_DTABLE] = emit_gradient(emit, layer, table->block, table->tensor, table->rows, dy.cols);
	emit_op(emit, &op);
}

/* The inputs of all layers, of what lies beside activations or gradients. */
static struct rh_view inputs_of(const struct rh_emit *emit, struct rh_view side)
{
	return rh_view_cols(side, rh_side_cols(emit->has) - emit->has.inputs, emit->has.inputs);
}

float rh_model_inputs_scale(const struct rh_model *model)
{
	return rounded_scale(model, sqrtf((float)model->config->layer_input_size));
}

static struct table inputs_table(const struct rh_emit *emit)
{
	const struct rh_model_config *config = emit->model->config;
	return (struct table){RH_BLOCK_TABLE, 0, config->layer_input_rows, rh_micro_layout(&emit->shape).ids,
	                      rh_model_inputs_scale(emit->model)};
}

void emit_input_rows(struct rh_emit *emit)
{
	struct table table = inputs_table(emit);
	if (!table.rows || !emit->side.data)
		return;
	struct rh_view all = inputs_of(emit, emit->side);
	char *at = emit->micro + rh_micro_layout(&emit->shape).row;
	struct rh_view none = {0}, rows = rh_view_of(at + RH_ALIGN, all.dtype, all.rows, all.cols);
	if (rh_model_row_bytes(emit->model))
		emit_add_scaled(emit, rows, none, rh_view_of(at, all.dtype, 1, 1), all);
	else
		rows_of(emit, &table, all);
}

void emit_input_rows_backward(struct rh_emit *emit)
{
	struct table table = inputs_table(emit);
	if (table.rows && emit->model->block[emit->model->layer[0].block[table.block]].trainable)
		table_gradient_of(emit, &table, inputs_of(emit, emit->d_side));
}

/* A family's norm of each token's row of the table. */
static int norms_rows(const struct rh_emit *emit)
{
	return emit->model->config->family->norms_embedding;
}

static struct emit_norm norm_of_rows(const struct rh_emit *emit)
{
	return (struct emit_norm){&emit->model->layer[0], -1, 1, emit->model->layer[0].width, 0};
}

static void norm_in_place(struct rh_emit *emit, struct emit_norm norm, struct rh_view y)
{
	int64_t mark = emit->arena->used;
	emit_norm(emit, norm, y, y, emit_norm_stats(emit->arena, norm, y.rows));
	rh_arena_reset(emit->arena, mark);
}

/* y = the sum of a token's rows. */
static void sum_tables(struct rh_emit *emit, struct rh_view y)
{
	struct table table[TABLES];
	int count = tables_of(emit, table);
	int64_t mark = emit->arena->used;
	struct rh_view rows = count > 1 ? emit_act(emit, y.rows, y.cols) : y;
	for (int i = 0; i < count; i++) {
		rows_of(emit, &table[i], i ? rows : y);
		if (i)
			emit_add(emit, y, rows, y);
		else if (norms_rows(emit))
			norm_in_place(emit, norm_of_rows(emit), y);
		if (!i)
			emit_embedding_adapter(emit, emit_micro(emit, table[0].index, emit->shape.tokens), table[0].scale, y);
		if (!i && emit->drop.noise > 0)
			emit_noise(emit, 0, y);
	}
	rh_arena_reset(emit->arena, mark);
}

/* The input of the patches' linear: (T, a patch), zeros at the class tokens; in the arena where the model's dtype is another. */
static struct rh_view patches(struct rh_emit *emit)
{
	int64_t at = rh_micro_layout(&emit->shape).pixel;
	struct rh_view pixels = rh_view_of(emit->micro + at, RH_F32, emit->shape.tokens, emit->shape.pixels);
	if (emit->model->dtype == RH_F32)
		return pixels;
	struct rh_view narrow = emit_act(emit, pixels.rows, pixels.cols);
	emit_cast(emit, pixels, narrow);
	return narrow;
}

/* Patches times their matrix, and to them their rows of the tables, among which is the linear's bias. */
static void embed_patches(struct rh_emit *emit, struct rh_view y)
{
	struct rh_view sum = emit_act(emit, y.rows, y.cols);
	sum_tables(emit, sum);
	const struct rh_layer *layer = &emit->model->layer[0];
	const struct rh_linear *linear = &layer->proj[RH_PROJ_O];
	struct rh_view weight = emit_weight(emit, layer, 0, linear->weight, linear->outputs, linear->inputs);
	emit_gemm(emit, &(struct emit_product){.a = patches(emit), .b = weight, .trans_b = 1, .c = sum, .d = y});
}

static struct emit_drop embedding_drop(const struct rh_emit *emit)
{
	return (struct emit_drop){0, RH_OWN_END, emit->drop.embedding};
}

void emit_embedding(struct rh_emit *emit, struct rh_view y)
{
	int64_t mark = emit->arena->used;
	RH_ASSERT(!emit->model->config->types || emit->shape.typed == emit->shape.tokens);
	RH_ASSERT(emit->shape.pixels == rh_model_patch(emit->model->config));
	if (emit->shape.pixels)
		embed_patches(emit, y);
	else
		sum_tables(emit, y);
	if (emit->model->layer[0].norm[RH_NORM_FINAL] >= 0)
		norm_in_place(emit, emit_norm_of(emit, 0, RH_NORM_FINAL), y);
	if (emit->drop.embedding > 0)
		emit_dropout(emit, embedding_drop(emit), y, (struct rh_view){0}, y);
	rh_arena_reset(emit->arena, mark);
}

/* The gradient of the norm's input, in the arena. The input is made again: the tables' sum, or rows of one. */
static struct rh_view norm_backward(struct rh_emit *emit, struct emit_norm norm, const struct table *one, struct rh_view dy)
{
	struct rh_view sum = emit_act(emit, dy.rows, dy.cols), normed = emit_act(emit, dy.rows, dy.cols);
	struct rh_view stats = emit_norm_stats(emit->arena, norm, dy.rows);
	if (one)
		rows_of(emit, one, sum);
	else
		sum_tables(emit, sum);
	emit_norm(emit, norm, sum, normed, stats);
	emit_norm_backward(emit, norm, &(struct emit_norm_gradient){.x = sum, .stats = stats, .dy = dy, .dx = normed});
	return normed;
}

static void patches_gradient(struct rh_emit *emit, struct rh_view dy)
{
	const struct rh_layer *layer = &emit->model->layer[0];
	const struct rh_linear *linear = &layer->proj[RH_PROJ_O];
	struct rh_view sum = emit_gradient(emit, layer, 0, linear->weight, linear->outputs, linear->inputs);
	emit_gemm(emit, &(struct emit_product){.a = dy, .trans_a = 1, .b = patches(emit), .c = sum, .d = sum});
}

void emit_embedding_backward(struct rh_emit *emit, struct rh_view dy)
{
	const struct rh_layer *layer = &emit->model->layer[0];
	struct table table[TABLES];
	int count = tables_of(emit, table);
	int64_t mark = emit->arena->used;
	int is_trained = emit->model->block[layer->block[RH_BLOCK_BASE]].trainable;
	if (!is_trained && !layer->on_table.r)
		return;
	if (emit->drop.embedding > 0) {
		struct rh_view kept = emit_act(emit, dy.rows, dy.cols);
		emit_dropout(emit, embedding_drop(emit), dy, (struct rh_view){0}, kept);
		dy = kept;
	}
	if (layer->norm[RH_NORM_FINAL] >= 0)
		dy = norm_backward(emit, emit_norm_of(emit, 0, RH_NORM_FINAL), NULL, dy);
	emit_embedding_adapter_backward(emit, emit_micro(emit, table[0].index, emit->shape.tokens), table[0].scale, dy);
	if (is_trained && norms_rows(emit))
		dy = norm_backward(emit, norm_of_rows(emit), &table[0], dy);
	for (int i = 0; i < count && is_trained; i++)
		table_gradient_of(emit, &table[i], dy);
	if (emit->shape.pixels && is_trained)
		patches_gradient(emit, dy);
	rh_arena_reset(emit->arena, mark);
}
