/* The largest magnitudes that ops leave of their outputs (AMAX), from the op that makes a tensor to the products that quantise it. A tensor
 * is known by its view; whatever op writes to its memory next makes it forgotten, so that no scale is ever made of another tensor's. */
#include "model/emit_internal.h"
#include "model/model_internal.h"

/* The most numbers that one op leaves of a token. */
static int64_t most_cols(const struct rh_model *model)
{
	int64_t most = 1;
	for (int l = 0; l < model->layers; l++) {
		const struct rh_layer *layer = &model->layer[l];
		if (layer->kind == RH_LAYER_BLOCK)
			most = rh_max(most,
			              rh_max(layer->traits.heads + layer->traits.kv_heads, rh_glu_parts(layer->proj[RH_PROJ_DOWN].inputs)));
	}
	return most;
}

static int64_t slot_bytes(const struct rh_amaxes *amaxes, int64_t rows)
{
	return rh_align_up(rows * amaxes->cols * (int64_t)sizeof(float), RH_ALIGN);
}

void emit_amax_begin(struct rh_emit *emit, struct rh_amaxes *amaxes)
{
	*amaxes = (struct rh_amaxes){0};
	if (emit->model->multiply == RH_MULTIPLY_BF16 || emit->model->dtype != RH_BF16)
		return;
	amaxes->cols = most_cols(emit->model);
	amaxes->room = rh_arena_take(emit->arena, RH_AMAXES * slot_bytes(amaxes, emit->shape.tokens));
}

/* The slot for the next tensor: one whose tensor is forgotten, or else the oldest. */
static int next_slot(const struct rh_amaxes *amaxes)
{
	int slot = 0;
	for (int i = 0; i < RH_AMAXES; i++) {
		if (!amaxes->latest[i].of.data)
			return i;
		if (amaxes->latest[i].turn < amaxes->latest[slot].turn)
			slot = i;
	}
	return slot;
}

struct rh_view emit_amax(struct rh_emit *emit, struct rh_view of, int64_t known, int64_t cols)
{
	struct rh_amaxes *amaxes = emit->amaxes;
	if (!amaxes || cols > amaxes->cols || !of.data || of.dtype != RH_BF16 || of.rows != emit->shape.tokens)
		return (struct rh_view){0};
	int slot = next_slot(amaxes);
	struct rh_view at = rh_view_of(amaxes->room + slot * slot_bytes(amaxes, of.rows), RH_F32, of.rows, cols);
	amaxes->latest[slot] = (struct rh_amax){.of = of, .at = at, .known = known, .turn = ++amaxes->turns, .is_new = 1};
	return at;
}

static int overlaps(struct rh_view a, struct rh_view b)
{
	const char *first_a = a.data, *first_b = b.data;
	if (!first_a || !first_b || a.rows <= 0 || b.rows <= 0)
		return 0;
	return first_a < first_b + rh_dtype_bytes(b.dtype, (b.rows - 1) * b.stride + b.cols) &&
	       first_b < first_a + rh_dtype_bytes(a.dtype, (a.rows - 1) * a.stride + a.cols);
}

static int is_overwritten(const struct rh_op *op, struct rh_view view)
{
	const struct rh_op_info *info = rh_op_info(op->kind);
	for (int i = 0; i < info->operands; i++)
		if (info->operand[i].access != RH_ACCESS_IN && overlaps(op->operand[i], view))
			return 1;
	return 0;
}

void emit_amax_forget(struct rh_amaxes *amaxes, const struct rh_op *op)
{
	for (int i = 0; i < RH_AMAXES; i++) {
		struct rh_amax *amax = &amaxes->latest[i];
		if (amax->is_new)
			amax->is_new = 0;
		else if (amax->of.data && is_overwritten(op, amax->of))
			amax->of.data = NULL;
	}
}

const struct rh_amax *emit_amax_of(const struct rh_emit *emit, struct rh_view x)
{
	for (int i = 0; emit->amaxes && i < RH_AMAXES; i++) {
		const struct rh_amax *amax = &emit->amaxes->latest[i];
		if (rh_view_is(amax->of, x))
			return amax;
	}
	return NULL;
}
