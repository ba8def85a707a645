#include "device/ops/def.h"

#define DECLARE(kind, name) extern const struct op_def op_##name;
RH_OPS(DECLARE, DECLARE)

#define ROW(kind, name) [RH_OP_##kind] = &op_##name,
static const struct op_def *const defs[RH_OP_KINDS] = {RH_OPS(ROW, ROW)};

const struct rh_op_info *rh_op_info(enum rh_op_kind kind)
{
	RH_ASSERT(kind >= 0 && kind < RH_OP_KINDS);
	return &defs[kind]->info;
}

static int may_be(const struct op_def *def, int output, int input)
{
	for (int i = 0; def->in_place[i].output != def->in_place[i].input; i++)
		if (def->in_place[i].output == output && def->in_place[i].input == input)
			return 1;
	return 0;
}

static int same(struct rh_view a, struct rh_view b)
{
	return a.data == b.data && a.dtype == b.dtype && a.stride == b.stride;
}

/* Column ranges of one wide buffer have one stride and lie side by side within it; anything else overlaps when its bytes do. */
static int overlap(struct rh_view a, struct rh_view b)
{
	if (!a.rows || !b.rows || !a.cols || !b.cols)
		return 0;
	intptr_t first_a = (intptr_t)a.data, end_a = first_a + rh_dtype_bytes(a.dtype, (a.rows - 1) * a.stride + a.cols);
	intptr_t first_b = (intptr_t)b.data, end_b = first_b + rh_dtype_bytes(b.dtype, (b.rows - 1) * b.stride + b.cols);
	if (end_a <= first_b || end_b <= first_a)
		return 0;
	int64_t stride = rh_dtype_bytes(a.dtype, a.stride);
	if (stride != rh_dtype_bytes(b.dtype, b.stride))
		return 1;
	int64_t apart = (first_b - first_a) % stride;
	apart += apart < 0 ? stride : 0;
	return apart < rh_dtype_bytes(a.dtype, a.cols) || apart + rh_dtype_bytes(b.dtype, b.cols) > stride;
}

static const char *overlap_fault(const struct rh_op *op, const struct op_def *def)
{
	const struct rh_op_info *info = &def->info;
	for (int y = 0; y < info->operands; y++) {
		for (int x = 0; x < info->operands; x++) {
			int reads = info->operand[x].access == RH_ACCESS_IN;
			if (info->operand[y].access == RH_ACCESS_IN || x == y || !op->operand[y].data || !op->operand[x].data)
				continue;
			if (reads && may_be(def, y, x) && same(op->operand[y], op->operand[x]))
				continue;
			if (overlap(op->operand[y], op->operand[x]))
				return "an output overlaps another operand";
		}
	}
	return NULL;
}

const char *rh_op_fault(const struct rh_op *op)
{
	if (op->kind < 0 || op->kind >= RH_OP_KINDS)
		return "no such op";
	const struct op_def *def = defs[op->kind];
	const struct rh_op_info *info = &def->info;
	for (int i = 0; i < RH_OP_OPERANDS; i++) {
		struct rh_view view = op->operand[i];
		if (i >= info->operands && view.data)
			return "more operands than the op has";
		if (i < info->operands && !view.data && !info->operand[i].optional)
			return "a required operand is absent";
		if (view.data && (view.rows < 0 || view.cols < 0 || view.stride < view.cols))
			return "a view has a negative length or a stride below its columns";
	}
	struct check check = {.op = op};
	def->check(&check);
	return check.fault ? check.fault : overlap_fault(op, def);
}

/* Of a part. */
static int add_flops(void *user, const struct rh_op *part)
{
	struct rh_op_cost *cost = user, own = rh_op_cost(part);
	cost->product_flops += own.product_flops;
	cost->other_flops += own.other_flops;
	return 0;
}

struct rh_op_cost rh_op_cost(const struct rh_op *op)
{
	const struct op_def *def = defs[op->kind];
	struct rh_op_cost cost = {0};
	if (def->parts)
		RH_ASSERT(def->parts(op, add_flops, &cost) == 0);
	else if (def->cost)
		def->cost(op, &cost);
	else
		cost.other_flops = def->flops.per_element * area(op->operand[def->flops.operand]);
	for (int i = 0; i < def->info.operands; i++) { /* once each, as far as it is touched */
		struct rh_view view = op->operand[i];
		if (!view.data || def->info.operand[i].access == RH_ACCESS_NONE)
			continue;
		if (def->touched)
			view.rows = def->touched(op, i);
		double bytes = area(view) / (double)rh_dtype_block(view.dtype) * (double)rh_dtype_block_bytes(view.dtype);
		cost.bytes += bytes * (def->info.operand[i].access == RH_ACCESS_INOUT ? 2 : 1);
	}
	return cost;
}

int rh_op_is_fused(enum rh_op_kind kind)
{
	return defs[kind]->parts != NULL;
}

int rh_op_parts(const struct rh_op *op, rh_op_run *run, void *user)
{
	RH_ASSERT(rh_op_is_fused(op->kind));
	return defs[op->kind]->parts(op, run, user);
}

static int part_oracle(void *user, const struct rh_op *part)
{
	(void)user;
	rh_op_oracle(part);
	return 0;
}

void rh_op_oracle(const struct rh_op *op)
{
	RH_ASSERT(!rh_op_fault(op));
	if (rh_op_is_fused(op->kind))
		RH_ASSERT(rh_op_parts(op, part_oracle, NULL) == 0);
	else
		defs[op->kind]->oracle(op);
	rh_op_amax(op);
}

void rh_op_amax(const struct rh_op *op)
{
	if (defs[op->kind]->amax)
		defs[op->kind]->amax(op);
}

void ops_amax_rows(struct rh_view x, int64_t first, int64_t end, int64_t each, struct rh_view amax)
{
	for (int64_t r = first; amax.data && r < end; r++) {
		for (int64_t i = 0; i < amax.cols; i++) {
			float most = 0;
			for (int64_t c = i * each; c < (i + 1) * each && c < x.cols; c++)
				most = larger(most, (float)get(x, r, c));
			((float *)amax.data)[r * amax.stride + i] = most;
		}
	}
}
