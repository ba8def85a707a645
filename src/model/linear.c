/* Linears and their LoRA adapters: y = factor * (x W^T + scale * (drop(x) A^T) B^T) + b, forward and backward; the factor is that of the
 * family's residual, and 1 of most linears. */
#include "model/emit_internal.h"

static struct rh_view adapter_a(const struct rh_emit *emit, const struct rh_layer *layer, const struct rh_linear *linear)
{
	return emit_weight(emit, layer, 1, linear->lora_a, linear->r, linear->inputs);
}

static struct rh_view adapter_b(const struct rh_emit *emit, const struct rh_layer *layer, const struct rh_linear *linear)
{
	return emit_weight(emit, layer, 1, linear->lora_b, linear->outputs, linear->r);
}

static struct rh_view gradient_a(const struct rh_emit *emit, const struct rh_layer *layer, const struct rh_linear *linear)
{
	return emit_gradient(emit, layer, 1, linear->lora_a, linear->r, linear->inputs);
}

static struct rh_view gradient_b(const struct rh_emit *emit, const struct rh_layer *layer, const struct rh_linear *linear)
{
	return emit_gradient(emit, layer, 1, linear->lora_b, linear->outputs, linear->r);
}

static float factor_of(const struct rh_linear *linear)
{
	return linear->factor == 0 ? 1 : linear->factor;
}

static int64_t total_out(const struct rh_layer *layer, struct emit_linears which)
{
	int64_t out = 0;
	for (int i = 0; i < which.count; i++)
		out += layer->proj[which.first + i].outputs;
	return out;
}

static int any_adapted(const struct rh_layer *layer, struct emit_linears which)
{
	for (int i = 0; i < which.count; i++)
		if (layer->proj[which.first + i].r)
			return 1;
	return 0;
}

/* The product p with the base's matrix, which it lacks. */
static void multiply_base(struct rh_emit *emit, const struct rh_layer *layer, struct emit_linears which, struct emit_product p)
{
	const struct rh_linear *linear = &layer->proj[which.first];
	p.alpha = factor_of(linear);
	if (!linear->is_exact) {
		emit_base_product(emit, layer, linear->weight, total_out(layer, which), linear->inputs, p);
		return;
	}
	int64_t mark = emit->arena->used;
	p.b = emit_matrix(emit, layer, 0, linear->weight, total_out(layer, which), linear->inputs);
	emit_gemm(emit, &p);
	rh_arena_reset(emit->arena, mark);
}

/* One op of all adapters of the joint: `wide` as the kind has it, lows and matrices those of the modules that have an adapter. more: c of
 * PART; of the others workspace is taken. */
struct lora {
	enum rh_op_kind kind;
	struct rh_view wide, addend;
	const struct rh_view *low;
	struct rh_view (*matrix)(const struct rh_emit *emit, const struct rh_layer *layer, const struct rh_linear *linear);
};

static void emit_lora(struct rh_emit *emit, struct emit_linears which, const struct lora *lora)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	struct rh_op op = {.kind = lora->kind};
	int64_t mark = emit->arena->used;
	RH_ASSERT(which.count <= RH_LORA_MODULES);
	op.operand[RH_LORA_WIDE] = lora->wide;
	op.operand[RH_LORA_SPACE] = lora->addend;
	op.lora.seed = emit->seed;
	op.lora.step = emit->step;
	op.lora.micro_batch = emit->micro_batch;
	op.lora.first_row = (uint32_t)emit->shape.first;
	op.lora.p = emit->dropout;
	for (int m = 0; m < which.count; m++) {
		const struct rh_linear *linear = &layer->proj[which.first + m];
		op.lora.out[m] = linear->outputs;
		op.lora.scale[m] = linear->scale * factor_of(linear);
		op.lora.site[m] = (uint32_t)((emit->model->first_layer + which.layer) * RH_SITES + linear->site);
		if (!linear->r)
			continue;
		op.operand[RH_LORA_LOWS + m] = lora->low[which.first + m];
		op.operand[RH_LORA_MATRICES + m] = lora->matrix(emit, layer, linear);
	}
	if (emit->dropout > 0 && (lora->matrix == adapter_a || lora->matrix == gradient_a))
		op.operand[RH_LORA_SPACE] = emit_act(emit, lora->wide.rows, lora->wide.cols);
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
}

static int any_dora(const struct rh_layer *layer, struct emit_linears which)
{
	for (int i = 0; i < which.count; i++)
		if (layer->proj[which.first + i].r && layer->proj[which.first + i].magnitude >= 0)
			return 1;
	return 0;
}

static void dora_modules(const struct rh_layer *layer, struct emit_linears which, struct rh_op *op)
{
	for (int m = 0; m < which.count; m++) {
		op->lora.out[m] = layer->proj[which.first + m].outputs;
		op->lora.scale[m] = layer->proj[which.first + m].scale;
	}
}

/* g of DORA_NORM, in the arena. */
static struct rh_view dora_norm(struct rh_emit *emit, struct emit_linears which)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	const struct rh_linear *first = &layer->proj[which.first];
	struct rh_op op = {.kind = RH_OP_DORA_NORM};
	struct rh_view g = emit_take(emit->arena, RH_F32, total_out(layer, which), 2);
	int64_t mark = emit->arena->used;
	dora_modules(layer, which, &op);
	op.operand[RH_DORA_NORM_W] = emit_matrix(emit, layer, 0, first->weight, g.rows, first->inputs);
	op.operand[RH_DORA_NORM_G] = g;
	for (int m = 0; m < which.count; m++) {
		const struct rh_linear *linear = &layer->proj[which.first + m];
		if (linear->magnitude < 0)
			continue;
		op.operand[RH_DORA_NORM_AS + m] = adapter_a(emit, layer, linear);
		op.operand[RH_DORA_NORM_BS + m] = adapter_b(emit, layer, linear);
		op.operand[RH_DORA_NORM_MS + m] = emit_weight(emit, layer, 1, linear->magnitude, 1, linear->outputs);
	}
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
	return g;
}

struct dora_scale {
	struct rh_view x, g, bias, c, y;
};

static void emit_dora_scale(struct rh_emit *emit, const struct dora_scale *scale)
{
	struct rh_op op = {.kind = RH_OP_DORA_SCALE};
	op.operand[RH_DORA_SCALE_X] = scale->x;
	op.operand[RH_DORA_SCALE_G] = scale->g;
	op.operand[RH_DORA_SCALE_BIAS] = scale->bias;
	op.operand[RH_DORA_SCALE_C] = scale->c;
	op.operand[RH_DORA_SCALE_Y] = scale->y;
	emit_op(emit, &op);
}

/* u = factor * (x W^T + scale * (x A^T) B^T), which DoRA scales. */
static void dora_product(struct rh_emit *emit, struct emit_linears which, struct rh_view x, struct rh_view u, const struct rh_view *low)
{
	emit_lora(emit, which, &(struct lora){.kind = RH_OP_LORA_PART, .wide = u, .low = low, .matrix = adapter_b});
	multiply_base(emit, &emit->model->layer[which.layer], which, (struct emit_product){.a = x, .trans_b = 1, .c = u, .d = u});
}

/* With DoRA the gradient of the product that it scales, in the arena; else dy. *g: of DORA_NORM. */
static struct rh_view unscaled(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view *g)
{
	if (!any_dora(&emit->model->layer[which.layer], which))
		return dy;
	struct rh_view du = emit_act(emit, dy.rows, dy.cols);
	*g = dora_norm(emit, which);
	emit_dora_scale(emit, &(struct dora_scale){.x = dy, .g = *g, .y = du});
	return du;
}

/* The adapters' parts come first and the base product adds them, so that what is rounded to bf16 is the whole sum. Added to a rounded
 * product they would be lost wherever they are below half its unit: in the first steps, while B is near zero, nearly everywhere. A bf16
 * residual is added last for the same reason: then what is returned is to be added to it, else nothing. */
void *emit_linear_apart(struct rh_emit *emit, struct emit_linears which, struct rh_view x, struct rh_view residual, struct rh_view y,
                        const struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	struct rh_view bias = emit_weight(emit, layer, 0, layer->proj[which.first].bias, 1, total_out(layer, which)), none = {0};
	const struct rh_view *low = &s->view[RH_ROW_LOW];
	int any = any_adapted(layer, which), apart = any && residual.data && y.data && y.dtype != RH_F32 && !any_dora(layer, which);
	RH_ASSERT(!residual.data || which.count == 1);
	struct rh_view sum = apart ? emit_act(emit, y.rows, y.cols) : y, before = apart ? none : residual;
	if (any)
		emit_lora(emit, which, &(struct lora){.kind = RH_OP_LORA_LOW, .wide = x, .low = low, .matrix = adapter_a});
	if (y.data && any_dora(layer, which)) {
		int64_t mark = emit->arena->used;
		dora_product(emit, which, x, y, low);
		emit_dora_scale(emit, &(struct dora_scale){y, dora_norm(emit, which), bias, residual, y});
		rh_arena_reset(emit->arena, mark);
		return NULL;
	}
	if (any && y.data)
		emit_lora(emit, which,
		          &(struct lora){.kind = RH_OP_LORA_PART, .wide = sum, .addend = before, .low = low, .matrix = adapter_b});
	if (y.data)
		multiply_base(emit, layer, which,
		              (struct emit_product){.a = x, .trans_b = 1, .bias = bias, .c = any ? sum : residual, .d = sum});
	return apart ? sum.data : NULL;
}

void emit_add_apart(struct rh_emit *emit, struct rh_view residual, void *sum, struct rh_view y)
{
	if (sum)
		emit_add(emit, residual, rh_view_of(sum, y.dtype, y.rows, y.cols), y);
}

void emit_linear(struct rh_emit *emit, struct emit_linears which, struct rh_view x, struct rh_view residual, struct rh_view y,
                 const struct rh_activations *s)
{
	int64_t mark = emit->arena->used;
	emit_add_apart(emit, residual, emit_linear_apart(emit, which, x, residual, y, s), y);
	rh_arena_reset(emit->arena, mark);
}

static void take_d_lows(struct rh_emit *emit, struct emit_linears which, struct rh_activations *s)
{
	for (int i = which.first; i < which.first + which.count; i++)
		if (emit->model->layer[which.layer].proj[i].r)
			(void)emit_operand(emit, s, RH_ROW_D_LOW + i);
}

/* The adapters' parts first, as in emit_linear. */
static void make_dx(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view dx, const struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	const struct rh_view *d_low = &s->view[RH_ROW_D_LOW];
	struct rh_view g;
	int64_t before = emit->arena->used;
	int any = any_adapted(layer, which), doras = any_dora(layer, which);
	dy = unscaled(emit, which, dy, &g);
	if (any)
		emit_lora(emit, which, &(struct lora){.kind = RH_OP_LORA_LOW_GRADIENT, .wide = dy, .low = d_low, .matrix = adapter_b});
	emit->scaled_dy.dy = NULL;
	if (!dx.data && doras)
		rh_arena_reset(emit->arena, before);
	if (!dx.data)
		return;
	if (any)
		emit_lora(emit, which, &(struct lora){.kind = RH_OP_LORA_INPUT_GRADIENT, .wide = dx, .low = d_low, .matrix = adapter_a});
	struct emit_product product = {.a = dy, .c = any ? dx : (struct rh_view){0}, .d = dx};
	int64_t mark = emit->arena->used;
	const struct rh_linear *first = &layer->proj[which.first];
	if (!first->is_exact && !emit->deferred && emit_gradient(emit, layer, 0, first->weight, 1, 1).data)
		product.of_a = emit_scaled_gradient(emit, dy, dx, &mark);
	multiply_base(emit, layer, which, product);
	rh_arena_reset(emit->arena, mark);
	emit->scaled_dy.dy = product.of_a.scale.data ? dy.data : NULL;
	emit->scaled_dy.made = product.of_a;
	emit->scaled_dy.made.straight.data = NULL;
	if (doras) /* the base is frozen: nothing was made of dy for its dW */
		rh_arena_reset(emit->arena, before);
}

void emit_linear_dx(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view dx, struct rh_activations *s)
{
	take_d_lows(emit, which, s);
	make_dx(emit, which, dy, dx, s);
}

void emit_linear_more_dx(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view dx, struct rh_activations *s)
{
	take_d_lows(emit, which, s);
	int64_t mark = emit->arena->used;
	struct rh_view part = dx.data ? emit_act(emit, dx.rows, dx.cols) : dx;
	make_dx(emit, which, dy, part, s);
	emit->scaled_dy.dy = NULL; /* what was made of it is in the arena that is given back */
	if (dx.data)
		emit_add(emit, dx, part, dx);
	rh_arena_reset(emit->arena, mark);
}

int emit_linear_learns(const struct rh_emit *emit, struct emit_linears which)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	return emit->model->block[layer->block[0]].trainable || any_adapted(layer, which);
}

/* The product that was scaled is made again: as large as the output, it is no row of the activation table. Returns its gradient. */
static struct rh_view magnitude_gradients(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view x,
                                          const struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	struct rh_op op = {.kind = RH_OP_DORA_GRADIENT};
	struct rh_view g, du = unscaled(emit, which, dy, &g);
	int64_t mark = emit->arena->used;
	struct rh_view u = emit_act(emit, dy.rows, dy.cols);
	dora_product(emit, which, x, u, &s->view[RH_ROW_LOW]);
	dora_modules(layer, which, &op);
	op.operand[RH_DORA_GRADIENT_DY] = dy;
	op.operand[RH_DORA_GRADIENT_U] = u;
	op.operand[RH_DORA_GRADIENT_G] = g;
	for (int m = 0; m < which.count; m++) {
		const struct rh_linear *linear = &layer->proj[which.first + m];
		op.operand[RH_DORA_GRADIENT_DMS + m] = emit_gradient(emit, layer, 1, linear->magnitude, 1, linear->outputs);
	}
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
	return du;
}

void emit_linear_dw(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view x, const struct rh_activations *s)
{
	const struct rh_layer *layer = &emit->model->layer[which.layer];
	const struct rh_linear *linear = &layer->proj[which.first];
	int64_t out = total_out(layer, which);
	struct rh_view dw = emit_gradient(emit, layer, 0, linear->weight, out, linear->inputs);
	struct rh_view db = emit_gradient(emit, layer, 0, linear->bias, 1, out);
	struct emit_product product = {.a = dy, .trans_a = 1, .b = x, .c = dw, .d = dw, .alpha = factor_of(linear)};
	if (emit->scaled_dy.dy && emit->scaled_dy.dy == dy.data)
		product.of_a = emit->scaled_dy.made;
	emit->scaled_dy.dy = NULL;
	if (dw.data && linear->is_exact)
		emit_gemm(emit, &product);
	else if (dw.data)
		emit_linear_product(emit, &product);
	if (db.data)
		emit_column_sum(emit, dy, db);
	if (!any_adapted(layer, which))
		return;
	int64_t mark = emit->arena->used;
	if (any_dora(layer, which))
		dy = magnitude_gradients(emit, which, dy, x, s);
	emit_lora(emit, which,
	          &(struct lora){.kind = RH_OP_LORA_B_GRADIENT, .wide = dy, .low = &s->view[RH_ROW_LOW], .matrix = gradient_b});
	emit_lora(emit, which,
	          &(struct lora){.kind = RH_OP_LORA_A_GRADIENT, .wide = x, .low = &s->view[RH_ROW_D_LOW], .matrix = gradient_a});
	rh_arena_reset(emit->arena, mark);
}

void emit_linear_gradients(struct rh_emit *emit, struct emit_linears which, struct rh_view dy, struct rh_view x,
                           const struct rh_activations *s)
{
	if (!emit->deferred)
		emit_linear_dw(emit, which, dy, x, s);
}
