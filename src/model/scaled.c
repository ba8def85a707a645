/* Products of linears by tensor cores' faster ways: fp16 sums, or 8-bit operands. Each operand gets a scale of its own, from its largest
 * magnitude in this micro-batch: nothing is carried from one step to the next, so that cuts, rounds and devices change nothing. */
#include "model/emit_internal.h"

#include "core/float8.h"

static int64_t unit_of(enum rh_multiply multiply)
{
	return multiply == RH_MULTIPLY_F8 ? 16 : 8;
}

/* In every one of a linear's products its in and out are the columns of a and of d. */
static int fits(const struct emit_product *p, enum rh_multiply multiply)
{
	int64_t unit = unit_of(multiply);
	if (multiply == RH_MULTIPLY_BF16 || p->a.dtype != RH_BF16 || p->a.cols % unit || p->d.cols % unit)
		return 0;
	return rh_view_on_16(p->a) && rh_view_on_16(p->b) && rh_view_on_16(p->c) && rh_view_on_16(p->d);
}

struct side {
	struct rh_view data, scale;
};

static struct side quantise(struct rh_emit *emit, struct rh_view x, float limit, struct rh_view y, struct rh_view t)
{
	struct rh_op op = {.kind = RH_OP_QUANTISE, .quantise.limit = limit};
	struct side side = {.data = y.data ? y : t.data ? t : x, .scale = emit_take(emit->arena, RH_F32, 1, 1)};
	int64_t mark = emit->arena->used;
	op.operand[RH_QUANTISE_X] = x;
	op.operand[RH_QUANTISE_PART] = emit_take(emit->arena, RH_F32, 1, RH_QUANTISE_PARTS);
	op.operand[RH_QUANTISE_SCALE] = side.scale;
	op.operand[RH_QUANTISE_Y] = y;
	op.operand[RH_QUANTISE_T] = t;
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
	return side;
}

/* Quantises x to 8 bits, rows along k: transposed where its rows lie across k. */
static struct side quantise_operand(struct rh_emit *emit, struct rh_view x, enum rh_dtype dtype, int across)
{
	int64_t whole = (x.rows + RH_QUANTISE_RUN - 1) / RH_QUANTISE_RUN * RH_QUANTISE_RUN;
	struct rh_view none = {0},
	               to = across ? emit_take(emit->arena, dtype, x.cols, whole) : emit_take(emit->arena, dtype, x.rows, x.cols);
	return quantise(emit, x, dtype == RH_E5M2 ? RH_E5M2_LARGEST : RH_E4M3_LARGEST, across ? none : to, across ? to : none);
}

static void emit_scaled_product(struct rh_emit *emit, const struct emit_product *p)
{
	const struct rh_model *model = emit->model;
	struct rh_op op = {.kind = RH_OP_SCALED_GEMM};
	struct side a, b;
	int64_t mark = emit->arena->used;
	op.scaled_gemm.alpha = p->alpha == 0 ? 1 : p->alpha;
	if (model->multiply == RH_MULTIPLY_F8) {
		a = quantise_operand(emit, p->a, p->trans_b ? RH_E4M3 : RH_E5M2, p->trans_a);
		b = quantise_operand(emit, p->b, RH_E4M3, !p->trans_b);
		op.scaled_gemm.trans_b = 1;
	} else {
		float limit = rh_half_limit(model->chunk);
		a = quantise(emit, p->a, limit, (struct rh_view){0}, (struct rh_view){0});
		b = quantise(emit, p->b, limit, (struct rh_view){0}, (struct rh_view){0});
		op.scaled_gemm.trans_a = p->trans_a;
		op.scaled_gemm.trans_b = p->trans_b;
		op.scaled_gemm.chunk = model->chunk;
	}
	op.operand[RH_SCALED_GEMM_A] = a.data;
	op.operand[RH_SCALED_GEMM_B] = b.data;
	op.operand[RH_SCALED_GEMM_SCALE_A] = a.scale;
	op.operand[RH_SCALED_GEMM_SCALE_B] = b.scale;
	op.operand[RH_SCALED_GEMM_C] = p->c;
	op.operand[RH_SCALED_GEMM_BIAS] = p->bias;
	op.operand[RH_SCALED_GEMM_D] = p->d;
	emit_op(emit, &op);
	rh_arena_reset(emit->arena, mark);
}

void emit_linear_product(struct rh_emit *emit, const struct emit_product *p)
{
	if (fits(p, emit->model->multiply))
		emit_scaled_product(emit, p);
	else
		emit_gemm(emit, p);
}

/* How many of a block's projections have a length that is no multiple of `unit`. */
static int64_t unfit_of(const struct rh_linear *proj, int64_t unit)
{
	int64_t count = 0;
	for (int p = 0, joint = 1; p < RH_PROJS; p += joint) {
		int64_t out = proj[p].outputs;
		for (joint = 1; p + joint < RH_PROJS && proj[p + joint].joins; joint++)
			out += proj[p + joint].outputs;
		if (proj[p].weight >= 0)
			count += proj[p].inputs % unit || out % unit ? joint : 0;
	}
	return count;
}

int64_t rh_model_unfit(const struct rh_model *model)
{
	int64_t count = 0, unit = unit_of(model->multiply);
	for (int l = 0; model->multiply != RH_MULTIPLY_BF16 && l < model->layers; l++) {
		switch (model->layer[l].kind) {
		case RH_LAYER_BLOCK:
			count += unfit_of(model->layer[l].proj, unit);
			break;
		case RH_LAYER_EMBEDDING:
		case RH_LAYER_HEAD:
			break; /* never narrow */
		}
	}
	return count;
}
