/* Adapters of the embedding's table and of the head's matrix. The embedding's are rows of A for each token, which B makes wide. A head's A
 * and B are a linear's, except that HEAD_LOSS multiplies with B, chunk by chunk; of a tied table they are the embedding's B and A, each
 * transposed. */
#include "model/emit_internal.h"

static const struct rh_layer *head_of(const struct rh_emit *emit)
{
	return &emit->model->layer[emit->model->layers - 1];
}

/* A of the head, (r,H), or of a tied table (H,r); and the gradient's sum. */
static int a_of(const struct rh_layer *head)
{
	return rh_head_shares_adapter(head) ? head->on_table.lora_b : head->on_table.lora_a;
}

static int up_of(const struct rh_layer *head)
{
	return rh_head_shares_adapter(head) ? head->on_table.lora_a : head->on_table.lora_b;
}

static int64_t outputs_of(const struct rh_emit *emit)
{
	return rh_model_outputs(emit->model->config);
}

/* y = add + what adapters' dropout leaves of x. */
static void drop(struct rh_emit *emit, struct rh_view x, struct rh_view add, struct rh_view y)
{
	int layer = emit->model->first_layer + emit->model->layers - 1;
	struct rh_op op = {.kind = RH_OP_DROPOUT,
	                   .dropout = {.seed = emit->seed,
	                               .step = emit->step,
	                               .micro_batch = emit->micro_batch,
	                               .site = (uint32_t)(layer * RH_SITES),
	                               .p = emit->dropout,
	                               .first_row = (uint32_t)emit->shape.first}};
	op.operand[RH_DROPOUT_X] = x;
	op.operand[RH_DROPOUT_ADD] = add;
	op.operand[RH_DROPOUT_Y] = y;
	emit_op(emit, &op);
}

/* A product's operand that is the head's A. */
static struct rh_view matrix_a(const struct rh_emit *emit)
{
	const struct rh_layer *head = head_of(emit);
	int64_t r = head->on_table.r, shares = rh_head_shares_adapter(head);
	return emit_weight(emit, head, RH_BLOCK_ADAPTER, a_of(head), shares ? head->width : r, shares ? r : head->width);
}

struct emit_table_adapter emit_head_adapter(struct rh_emit *emit, struct rh_view h)
{
	const struct rh_layer *head = head_of(emit);
	struct emit_table_adapter out = {.x = h};
	double divisor = emit->model->config->logits_divisor;
	if (!head->on_table.r)
		return (struct emit_table_adapter){0};
	if (emit->dropout > 0) {
		out.x = emit_act(emit, h.rows, h.cols);
		drop(emit, h, (struct rh_view){0}, out.x);
	}
	out.low = emit_act(emit, h.rows, head->on_table.r);
	out.up = emit_weight(emit, head, RH_BLOCK_ADAPTER, up_of(head), outputs_of(emit), head->on_table.r);
	emit_gemm(emit, &(struct emit_product){.a = out.x,
	                                       .b = matrix_a(emit),
	                                       .trans_b = !rh_head_shares_adapter(head),
	                                       .alpha = head->on_table.scale * (divisor == 0 ? 1 : (float)(1 / divisor)),
	                                       .d = out.low});
	return out;
}

struct rh_view emit_head_adapter_up_gradient(const struct rh_emit *emit)
{
	const struct rh_layer *head = head_of(emit);
	return emit_gradient(emit, head, RH_BLOCK_ADAPTER, up_of(head), outputs_of(emit), head->on_table.r);
}

void emit_head_adapter_backward(struct rh_emit *emit, const struct emit_table_adapter *adapter, struct rh_view dlow, struct rh_view dh)
{
	const struct rh_layer *head = head_of(emit);
	int shares = rh_head_shares_adapter(head), drops = emit->dropout > 0;
	double divisor = emit->model->config->logits_divisor;
	float scale = head->on_table.scale * (divisor == 0 ? 1 : (float)(1 / divisor));
	struct rh_view a = matrix_a(emit), da = emit_gradient(emit, head, RH_BLOCK_ADAPTER, a_of(head), a.rows, a.cols);
	struct rh_view of_a = shares ? adapter->x : dlow, of_b = shares ? dlow : adapter->x;
	int64_t mark = emit->arena->used;
	emit_gemm(emit, &(struct emit_product){.a = of_a, .trans_a = 1, .b = of_b, .c = da, .d = da, .alpha = scale});
	struct rh_view dx = drops ? emit_act(emit, dh.rows, dh.cols) : dh;
	emit_gemm(emit, &(struct emit_product){
	                        .a = dlow, .b = a, .trans_b = shares, .c = drops ? (struct rh_view){0} : dh, .d = dx, .alpha = scale});
	if (drops)
		drop(emit, dx, dh, dh);
	rh_arena_reset(emit->arena, mark);
}

static struct rh_view low_of_tokens(struct rh_emit *emit, const struct rh_linear *linear, struct rh_view ids, float scale)
{
	struct rh_op op = {.kind = RH_OP_EMBEDDING, .embedding.scale = linear->scale * scale};
	struct rh_view low = emit_act(emit, emit->shape.tokens, linear->r);
	op.operand[RH_EMBEDDING_IDS] = ids;
	op.operand[RH_EMBEDDING_TABLE] =
	        emit_weight(emit, &emit->model->layer[0], RH_BLOCK_ADAPTER, linear->lora_a, linear->inputs, linear->r);
	op.operand[RH_EMBEDDING_Y] = low;
	emit_op(emit, &op);
	return low;
}

static float of_table(float scale)
{
	return scale == 0 ? 1 : scale;
}

void emit_embedding_adapter(struct rh_emit *emit, struct rh_view ids, float scale, struct rh_view y)
{
	const struct rh_layer *layer = &emit->model->layer[0];
	const struct rh_linear *linear = &layer->on_table;
	int64_t mark = emit->arena->used;
	if (!linear->r)
		return;
	struct rh_view low = low_of_tokens(emit, linear, ids, of_table(scale));
	struct rh_view b = emit_weight(emit, layer, RH_BLOCK_ADAPTER, linear->lora_b, linear->outputs, linear->r);
	emit_gemm(emit, &(struct emit_product){.a = low, .b = b, .trans_b = 1, .c = y, .d = y});
	rh_arena_reset(emit->arena, mark);
}

void emit_embedding_adapter_backward(struct rh_emit *emit, struct rh_view ids, float scale, struct rh_view dy)
{
	const struct rh_layer *layer = &emit->model->layer[0];
	const struct rh_linear *linear = &layer->on_table;
	int64_t mark = emit->arena->used;
	if (!linear->r)
		return;
	struct rh_view low = low_of_tokens(emit, linear, ids, of_table(scale)), dlow = emit_act(emit, low.rows, low.cols);
	struct rh_view b = emit_weight(emit, layer, RH_BLOCK_ADAPTER, linear->lora_b, linear->outputs, linear->r);
	struct rh_view db = emit_gradient(emit, layer, RH_BLOCK_ADAPTER, linear->lora_b, linear->outputs, linear->r);
	emit_gemm(emit, &(struct emit_product){.a = dy, .trans_a = 1, .b = low, .c = db, .d = db});
	emit_gemm(emit, &(struct emit_product){.a = dy, .b = b, .d = dlow});
	struct rh_op op = {.kind = RH_OP_EMBEDDING_BACKWARD, .embedding.scale = linear->scale * of_table(scale)};
	op.operand[RH_EMBEDDING_BACKWARD_IDS] = ids;
	op.operand[RH_EMBEDDING_BACKWARD_DY] = dlow;
	op.operand[RH_EMBEDDING_BACKWARD_DTABLE] = emit_gradient(emit, layer, RH_BLOCK_ADAPTER, linear->lora_a, linear->inputs, linear->r);
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
}
