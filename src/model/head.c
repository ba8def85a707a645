/* The two ends of a model: the embedding, and the final norm + head + loss, which run only on the rows whose logits are needed. */
#include "model/emit_internal.h"

#include "core/float16.h"

static int64_t least_rows(const struct rh_model *model)
{
	int64_t rows = RH_HEAD_CHUNK_BYTES / (4 * model->config->vocab_size);
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
	int table = layer->block[model->config->tie_word_embeddings ? 1 : 0];
	model->head_rows_wanted = model->block[table].trainable ? grain->head_rows_trained : grain->head_rows_frozen;
	model->head_rows = model->head_rows_wanted;
	model->has_attention_space = grain->has_attention_space;
}

int rh_model_cut_finer(struct rh_model *model)
{
	if (model->head_rows <= least_rows(model))
		return 0;
	model->head_rows /= 2;
	return 1;
}

static struct rh_view table_of(const struct rh_emit *emit, const struct rh_layer *layer)
{
	const struct rh_model_config *config = emit->model->config;
	int tied = layer->kind == RH_LAYER_HEAD && config->tie_word_embeddings;
	return emit_weight(emit, layer, tied, layer->kind == RH_LAYER_HEAD ? layer->head : 0, config->vocab_size, config->hidden_size);
}

static struct rh_view table_gradient(const struct rh_emit *emit, const struct rh_layer *layer)
{
	const struct rh_model_config *config = emit->model->config;
	int tied = layer->kind == RH_LAYER_HEAD && config->tie_word_embeddings;
	return emit_gradient(emit, layer, tied, layer->kind == RH_LAYER_HEAD ? layer->head : 0, config->vocab_size, config->hidden_size);
}

static void gather(struct rh_emit *emit, struct rh_view x, struct rh_view index, struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_GATHER_ROWS};
	op.operand[RH_GATHER_ROWS_X] = x;
	op.operand[RH_GATHER_ROWS_INDEX] = index;
	op.operand[RH_GATHER_ROWS_Y] = y;
	emit_op(emit, &op);
}

static void head_loss(struct rh_emit *emit, struct rh_view h, const struct rh_head_out *out, struct rh_view dh, struct rh_view dw)
{
	const struct rh_layer *layer = &emit->model->layer[emit->model->layers - 1];
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	int64_t mark = emit->arena->used, vocabulary = emit->model->config->vocab_size;
	struct rh_op op = {.kind = RH_OP_HEAD_LOSS};
	op.operand[RH_HEAD_LOSS_H] = h;
	op.operand[RH_HEAD_LOSS_W] = table_of(emit, layer);
	op.operand[RH_HEAD_LOSS_TARGET] = emit_micro(emit, at.target, h.rows);
	op.operand[RH_HEAD_LOSS_LOGITS] = emit_take(emit->arena, RH_F32, rh_head_chunk(emit->model, h.rows), vocabulary);
	op.operand[RH_HEAD_LOSS_LOSS] = out->loss;
	op.operand[RH_HEAD_LOSS_HIT] = out->hit;
	op.operand[RH_HEAD_LOSS_DH] = dh;
	op.operand[RH_HEAD_LOSS_DW] = dw;
	op.head_loss.scale = emit->loss_scale;
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
}

/* Logits of a few vocabulary entries, the same for every row. */
static void choice_logits(struct rh_emit *emit, struct rh_view h, struct rh_view out)
{
	const struct rh_layer *layer = &emit->model->layer[emit->model->layers - 1];
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	struct rh_view rows = emit_act(emit, emit->shape.choices, h.cols);
	gather(emit, table_of(emit, layer), emit_micro(emit, at.choice, emit->shape.choices), rows);
	emit_gemm(emit, &(struct emit_product){.a = h, .b = rows, .trans_b = 1, .d = out});
}

void emit_head(struct rh_emit *emit, struct rh_view x, const struct rh_head_out *out, struct rh_saved *keep)
{
	const struct rh_layer *layer = &emit->model->layer[emit->model->layers - 1];
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	int64_t rows = emit->shape.head_rows, hidden = emit->model->config->hidden_size, outer = emit->arena->used;
	struct rh_saved local, *s = keep ? keep : &local;
	*s = (struct rh_saved){0};
	if (rows == 0)
		return;
	struct rh_arena *arena = keep ? emit->saved : emit->arena;
	s->rows = emit_take(arena, emit->model->dtype, rows, hidden);
	struct emit_norm norm = emit_norm_of(emit, emit->model->layers - 1, RH_NORM_FINAL);
	s->norm[RH_NORM_FINAL] = emit_norm_stats(arena, norm, rows);
	if (keep)
		s->dh = emit_take(arena, emit->model->dtype, rows, hidden);
	int64_t inner = emit->arena->used;
	struct rh_view h = emit_act(emit, rows, hidden);
	gather(emit, x, emit_micro(emit, at.head_row, rows), s->rows);
	emit_norm(emit, norm, s->rows, h, s->norm[RH_NORM_FINAL]);
	if (out->logits.data)
		emit_gemm(emit, &(struct emit_product){.a = h, .b = table_of(emit, layer), .trans_b = 1, .d = out->logits});
	else
		head_loss(emit, h, out, s->dh, keep ? table_gradient(emit, layer) : (struct rh_view){0});
	if (out->choice.data)
		choice_logits(emit, h, out->choice);
	rh_arena_reset(emit->arena, keep ? inner : outer);
}

void emit_head_backward(struct rh_emit *emit, const struct rh_saved *s, struct rh_view dx)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	if (emit->shape.head_rows == 0) {
		struct rh_op fill = {.kind = RH_OP_FILL};
		fill.operand[RH_FILL_Y] = dx;
		if (dx.data)
			emit_op(emit, &fill);
		return;
	}
	const struct emit_norm_gradient gradient = {.x = s->rows, .stats = s->norm[RH_NORM_FINAL], .dy = s->dh, .dx = s->dh};
	emit_norm_backward(emit, emit_norm_of(emit, emit->model->layers - 1, RH_NORM_FINAL), &gradient);
	if (!dx.data)
		return;
	struct rh_op scatter = {.kind = RH_OP_SCATTER_ROWS};
	scatter.operand[RH_SCATTER_ROWS_X] = s->dh;
	scatter.operand[RH_SCATTER_ROWS_INDEX] = emit_micro(emit, at.head_row, emit->shape.head_rows);
	scatter.operand[RH_SCATTER_ROWS_Y] = dx;
	emit_op(emit, &scatter);
}

/* Rounded to the weights' dtype, as transformers does. */
static float embedding_scale(const struct rh_model *model)
{
	float scale = (float)model->config->embedding_scale;
	return model->dtype == RH_BF16 ? rh_bf16_to_f32(rh_f32_to_bf16(scale)) : scale;
}

/* y += the table of positions. */
static void add_positions(struct rh_emit *emit, struct rh_view y)
{
	const struct rh_model_config *config = emit->model->config;
	const struct rh_layer *layer = &emit->model->layer[0];
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	int64_t mark = emit->arena->used;
	struct rh_op op = {.kind = RH_OP_EMBEDDING};
	struct rh_view rows = emit_act(emit, y.rows, y.cols);
	op.operand[RH_EMBEDDING_IDS] = emit_micro(emit, at.position, emit->shape.tokens);
	op.operand[RH_EMBEDDING_TABLE] = emit_weight(emit, layer, 0, layer->positions, config->max_position_embeddings, y.cols);
	op.operand[RH_EMBEDDING_Y] = rows;
	emit_op(emit, &op);
	emit_add(emit, y, rows, y);
	rh_arena_reset(emit->arena, mark);
}

void emit_embedding(struct rh_emit *emit, struct rh_view y)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	struct rh_op op = {.kind = RH_OP_EMBEDDING};
	op.operand[RH_EMBEDDING_IDS] = emit_micro(emit, at.ids, emit->shape.tokens);
	op.operand[RH_EMBEDDING_TABLE] = table_of(emit, &emit->model->layer[0]);
	op.operand[RH_EMBEDDING_Y] = y;
	op.embedding.scale = embedding_scale(emit->model);
	emit_op(emit, &op);
	if (emit->model->layer[0].positions >= 0)
		add_positions(emit, y);
}

void emit_embedding_backward(struct rh_emit *emit, struct rh_view dy)
{
	struct rh_micro_layout at = rh_micro_layout(&emit->shape);
	struct rh_view gradient = table_gradient(emit, &emit->model->layer[0]);
	if (!gradient.data)
		return;
	struct rh_op op = {.kind = RH_OP_EMBEDDING_BACKWARD};
	op.operand[RH_EMBEDDING_BACKWARD_IDS] = emit_micro(emit, at.ids, emit->shape.tokens);
	op.operand[RH_EMBEDDING_BACKWARD_DY] = dy;
	op.operand[RH_EMBEDDING_BACKWARD_DTABLE] = gradient;
	op.embedding.scale = embedding_scale(emit->model);
	emit_op(emit, &op);
	const struct rh_layer *layer = &emit->model->layer[0];
	if (layer->positions < 0)
		return;
	op.embedding.scale = 1;
	op.operand[RH_EMBEDDING_BACKWARD_IDS] = emit_micro(emit, at.position, emit->shape.tokens);
	op.operand[RH_EMBEDDING_BACKWARD_DTABLE] =
	        emit_gradient(emit, layer, 0, layer->positions, emit->model->config->max_position_embeddings, dy.cols);
	emit_op(emit, &op);
}
