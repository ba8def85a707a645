/* Linears and their LoRA adapters: y = x W^T + b + scale * (drop(x) A^T) B^T, forward and backward. */
#include "model/emit_internal.h"

static struct rh_view adapter_a(const struct rh_emit *emit, const struct rh_layer *layer, const struct rh_linear *linear)
{
	return emit_weight(emit, layer, 1, linear->lora_a, linear->r, linear->in);
}

static struct rh_view adapter_b(const struct rh_emit *emit, const struct rh_layer *layer, const struct rh_linear *linear)
{
	return emit_weight(emit, layer, 1, linear->lora_b, linear->out, linear->r);
}

/* What the adapter sees of x: itself, or a dropped copy in the arena. */
static struct rh_view dropped(struct rh_emit *emit, int layer, const struct rh_linear *linear, struct rh_view x)
{
	if (emit->dropout == 0)
		return x;
	struct rh_view copy = emit_act(emit, x.rows, x.cols);
	emit_dropout(emit, layer, linear, x, (struct rh_view){0}, copy);
	return copy;
}

static int64_t total_out(const struct rh_layer *layer, struct emit_linears which)
{
	int64_t out = 0;
	for (int i = 0; i < which.count; i++)
		out += layer->proj[which.first + i].out;
	return out;
}

static int any_adapted(const struct rh_layer *layer, struct emit_linears which)
{
	for (int i = 0; i < which.count; i++)
		if (layer->proj[which.first + i].r)
			return 1;
	return 0;
}

/* low (T,r) = drop(x) A^T of one module (absent: taken from the arena), and part (T,out) = scale * low B^T + c; part absent: only low. */
static void adapter_part(struct rh_emit *emit, int index, const struct rh_linear *linear, struct rh_view x, struct rh_view low,
                         struct rh_view c, struct rh_view part)
{
	const struct rh_layer *layer = &emit->model->layer[index];
	int64_t mark = emit->arena->used;
	if (!low.data)
		low = emit_act(emit, x.rows, linear->r);
	struct rh_view seen = dropped(emit, index, linear, x);
	emit_gemm(emit, &(struct emit_product){.a = seen, .b = adapter_a(emit, layer, linear), .trans_b = 1, .d = low});
	if (part.data)
		emit_gemm(emit,
		          &(struct emit_product){
		                  .a = low, .b = adapter_b(emit, layer, linear), .trans_b = 1, .alpha = linear->scale, .c = c, .d = part});
	rh_arena_reset(emit->arena, mark);
}

/* low of every adapted module, and the adapters' parts side by side: sum (T, sum of out) = parts + c, zero where there is no adapter; c
 * only with a single projection. */
static void adapter_parts(struct rh_emit *emit, struct emit_linears which, struct rh_view x, const struct rh_view *low, struct rh_view c,
                          struct rh_view sum)
{
	const struct rh_linear *linear = &emit->model->layer[which.layer].proj[which.first];
	int64_t column = 0;
	for (int i = 0; i < which.count; column += linear[i++].out) {
		struct rh_view part = rh_view_cols(sum, column, linear[i].out);
		if (linear[i].r)
			adapter_part(emit, which.layer, &linear[i], x, low[which.first + i], c, part);
		else if (part.data)
			emit_fill(emit, part);
	}
}

/* The adapters' parts come first and the base product adds them, so that what is rounded to bf16 is the whole sum. Added to a rounded
 * product they would be lost wherever they are below half its unit: in the first steps, while B is near zero, nearly everywhere. A bf16
 * residual is added last for the same reason. */
void emit_linear(struct rh_emit *emit, struct emit_linears which, struct rh_view x, struct rh_view residual, struct rh_view y,
                 const struct rh_view *low)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	const struct rh_linear *linear = &layer->proj[which.first];
	int64_t out = total_out(layer, which), mark = emit->arena->used;
	int any = any_adapted(layer, which), apart = any && residual.data && y.data && y.dtype != RH_F32;
	RH_ASSERT(!residual.data || which.count == 1);
	struct rh_view sum = apart ? emit_act(emit, y.rows, y.cols) : y;
	if (any)
		adapter_parts(emit, which, x, low, apart ? (struct rh_view){0} : residual, sum);
	if (y.data)
		emit_linear_product(emit, &(struct emit_product){.a = x,
		                                                 .b = emit_weight(emit, layer, 0, linear->weight, out, linear->in),
		                                                 .trans_b = 1,
		                                                 .bias = emit_weight(emit, layer, 0, linear->bias, 1, out),
		                                                 .c = any ? sum : residual,
		                                                 .d = sum});
	if (apart)
		emit_add(emit, residual, sum, y);
	rh_arena_reset(emit->arena, mark);
}

/* du (T,r) = scale * dy B, made once for dx and once for dW: cheaper than keeping it alive in between. */
static struct rh_view low_gradient(struct rh_emit *emit, const struct rh_layer *layer, const struct rh_linear *linear, struct rh_view dy)
{
	struct rh_view du = emit_act(emit, dy.rows, linear->r);
	emit_gemm(emit, &(struct emit_product){.a = dy, .b = adapter_b(emit, layer, linear), .alpha = linear->scale, .d = du});
	return du;
}

/* The adapters' parts first, as in emit_linear. */
void emit_linear_dx(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view dx)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	const struct rh_linear *linear = &layer->proj[which.first];
	int64_t out = total_out(layer, which), column = 0;
	struct rh_view sum = {0};
	for (int i = 0; i < which.count; column += linear[i++].out) {
		if (linear[i].r == 0)
			continue;
		int64_t mark = emit->arena->used;
		struct rh_view du = low_gradient(emit, layer, &linear[i], rh_view_cols(dy, column, linear[i].out));
		struct rh_view a = adapter_a(emit, layer, &linear[i]);
		if (emit->dropout == 0) {
			emit_gemm(emit, &(struct emit_product){.a = du, .b = a, .c = sum, .d = dx});
		} else {
			struct rh_view through = emit_act(emit, dx.rows, dx.cols);
			emit_gemm(emit, &(struct emit_product){.a = du, .b = a, .d = through});
			emit_dropout(emit, which.layer, &linear[i], through, sum, dx);
		}
		sum = dx;
		rh_arena_reset(emit->arena, mark);
	}
	emit_linear_product(emit, &(struct emit_product){
	                                  .a = dy, .b = emit_weight(emit, layer, 0, linear->weight, out, linear->in), .c = sum, .d = dx});
}

static void column_sum(struct rh_emit *emit, struct rh_view x, struct rh_view y)
{
	struct rh_op op = {.kind = RH_OP_COLUMN_SUM};
	op.operand[RH_COLUMN_SUM_X] = x;
	op.operand[RH_COLUMN_SUM_Y] = y;
	emit_op(emit, &op);
}

struct rh_arena *emit_linear_operands(const struct rh_emit *emit, struct emit_linears which)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	int learns = emit->model->block[layer->block[0]].trainable || any_adapted(layer, which);
	return emit->late && learns ? emit->late : emit->arena;
}

void emit_linear_dw(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view x, const struct rh_view *low)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	const struct rh_linear *linear = &layer->proj[which.first];
	int64_t out = total_out(layer, which), column = 0;
	struct rh_view dw = emit_gradient(emit, layer, 0, linear->weight, out, linear->in);
	struct rh_view db = emit_gradient(emit, layer, 0, linear->bias, 1, out);
	if (dw.data)
		emit_linear_product(emit, &(struct emit_product){.a = dy, .trans_a = 1, .b = x, .c = dw, .d = dw});
	if (db.data)
		column_sum(emit, dy, db);
	for (int i = 0; i < which.count; column += linear[i++].out) {
		if (linear[i].r == 0)
			continue;
		int64_t mark = emit->arena->used;
		struct rh_view part = rh_view_cols(dy, column, linear[i].out);
		struct rh_view da = emit_gradient(emit, layer, 1, linear[i].lora_a, linear[i].r, linear[i].in);
		struct rh_view db_low = emit_gradient(emit, layer, 1, linear[i].lora_b, linear[i].out, linear[i].r);
		struct rh_view du = low_gradient(emit, layer, &linear[i], part), seen = dropped(emit, which.layer, &linear[i], x);
		emit_gemm(emit,
		          &(struct emit_product){
		                  .a = part, .trans_a = 1, .b = low[which.first + i], .alpha = linear[i].scale, .c = db_low, .d = db_low});
		emit_gemm(emit, &(struct emit_product){.a = du, .trans_a = 1, .b = seen, .c = da, .d = da});
		rh_arena_reset(emit->arena, mark);
	}
}
