/* Adapters of linears that share an input, as products and dropouts. */
#include "device/ops/def.h"

/* The six differ in which side is wide in x (all modules see all of it) and which in y (each has columns of its own). */
static int is_of_x(enum rh_op_kind kind)
{
	return kind == RH_OP_LORA_LOW || kind == RH_OP_LORA_INPUT_GRADIENT || kind == RH_OP_LORA_A_GRADIENT;
}

static int is_present(const struct rh_op *op, int module)
{
	return op->operand[RH_LORA_LOWS + module].data != NULL;
}

static int drops(const struct rh_op *op)
{
	return op->lora.p > 0 && is_of_x(op->kind);
}

static void check_module(struct check *check, int module)
{
	const struct rh_op *op = check->op;
	struct rh_view wide = op->operand[RH_LORA_WIDE], low = op->operand[RH_LORA_LOWS + module];
	struct rh_view matrix = op->operand[RH_LORA_MATRICES + module];
	int sums = op->kind == RH_OP_LORA_A_GRADIENT || op->kind == RH_OP_LORA_B_GRADIENT;
	require(check, (low.data != NULL) == (matrix.data != NULL), "lora: a module has one of low and matrix, and not the other");
	require(check, !low.data || op->lora.out[module] > 0, "lora: a module has no output");
	if (!low.data || check->fault)
		return;
	int64_t rows = is_of_x(op->kind) ? low.cols : op->lora.out[module], cols = is_of_x(op->kind) ? wide.cols : low.cols;
	require(check, low.dtype == wide.dtype && low.rows == wide.rows && low.cols >= 1, "lora: low is not (T,r) of wide's dtype");
	shape(check, RH_LORA_MATRICES + module, sums ? RH_F32 : wide.dtype, rows, cols,
	      "lora: a matrix is not (r,in) or (out,r) of its dtype");
}

static void check_lora(struct check *check)
{
	const struct rh_op *op = check->op;
	struct rh_view wide = op->operand[RH_LORA_WIDE], more = op->operand[RH_LORA_SPACE];
	int64_t out = 0;
	int present = 0;
	require(check, is_act(wide.dtype), "lora: wide is neither F32 nor BF16");
	require(check, op->lora.p >= 0 && op->lora.p < 1, "lora: p is not in [0, 1)");
	for (int m = 0; m < RH_LORA_MODULES; m++) {
		check_module(check, m);
		out += op->lora.out[m];
		present += is_present(op, m);
	}
	require(check, present, "lora: there is no module");
	require(check, is_of_x(op->kind) || out == wide.cols, "lora: the modules' outputs are not the columns of wide");
	shape(check, RH_LORA_SPACE, wide.dtype, wide.rows, wide.cols, "lora: space or c is not shaped and typed as wide");
	require(check, !drops(op) || more.data, "lora: there is no space for what is dropped");
}

/* A part, and what it is run with. */
struct parts {
	const struct rh_op *op;
	rh_op_run *run;
	void *user;
};

struct product {
	struct rh_view a, b, c, d;
	int trans_a, trans_b;
	float alpha;
};

static int multiply(const struct parts *parts, const struct product *p)
{
	struct rh_op product = {.kind = RH_OP_GEMM, .gemm = {p->trans_a, p->trans_b, p->alpha}};
	product.operand[RH_GEMM_A] = p->a;
	product.operand[RH_GEMM_B] = p->b;
	product.operand[RH_GEMM_C] = p->c;
	product.operand[RH_GEMM_D] = p->d;
	return parts->run(parts->user, &product);
}

static int drop(const struct parts *parts, int module, struct rh_view x, struct rh_view add, struct rh_view y)
{
	struct rh_op dropout = {.kind = RH_OP_DROPOUT};
	dropout.operand[RH_DROPOUT_X] = x;
	dropout.operand[RH_DROPOUT_ADD] = add;
	dropout.operand[RH_DROPOUT_Y] = y;
	dropout.dropout.seed = parts->op->lora.seed;
	dropout.dropout.step = parts->op->lora.step;
	dropout.dropout.micro_batch = parts->op->lora.micro_batch;
	dropout.dropout.site = parts->op->lora.site[module];
	dropout.dropout.p = parts->op->lora.p;
	dropout.dropout.first_row = parts->op->lora.first_row;
	return parts->run(parts->user, &dropout);
}

/* The input that a module takes from x. */
static int see(const struct parts *parts, int module, struct rh_view *seen)
{
	const struct rh_op *op = parts->op;
	*seen = op->operand[RH_LORA_WIDE];
	if (!drops(op))
		return 0;
	struct rh_view x = *seen;
	*seen = op->operand[RH_LORA_SPACE];
	return drop(parts, module, x, (struct rh_view){0}, *seen);
}

static int low_part(const struct parts *parts, int module, struct rh_view low, struct rh_view matrix)
{
	struct rh_view seen;
	int rc = see(parts, module, &seen);
	return rc ? rc : multiply(parts, &(struct product){.a = seen, .b = matrix, .trans_b = 1, .alpha = 1, .d = low});
}

static int a_gradient_part(const struct parts *parts, int module, struct rh_view low, struct rh_view matrix)
{
	struct rh_view seen;
	int rc = see(parts, module, &seen);
	return rc ? rc : multiply(parts, &(struct product){.a = low, .trans_a = 1, .b = seen, .alpha = 1, .c = matrix, .d = matrix});
}

/* Columns of y that are the module's. */
static struct rh_view columns_of(const struct rh_op *op, int operand, int module)
{
	int64_t first = 0;
	for (int m = 0; m < module; m++)
		first += op->lora.out[m];
	return rh_view_cols(op->operand[operand], first, op->lora.out[module]);
}

/* Columns of no module are c's, or zeros. */
static int empty_part(const struct parts *parts, struct rh_view c, struct rh_view y)
{
	struct rh_op fill = {.kind = c.data ? RH_OP_CAST : RH_OP_FILL};
	fill.operand[c.data ? RH_CAST_Y : RH_FILL_Y] = y;
	if (c.data)
		fill.operand[RH_CAST_X] = c;
	return y.cols ? parts->run(parts->user, &fill) : 0;
}

static int module_part(const struct parts *parts, int module, int first)
{
	const struct rh_op *op = parts->op;
	struct rh_view wide = op->operand[RH_LORA_WIDE], low = op->operand[RH_LORA_LOWS + module];
	struct rh_view matrix = op->operand[RH_LORA_MATRICES + module], none = {0}, sum = first ? none : wide;
	struct rh_view own = is_of_x(op->kind) ? wide : columns_of(op, RH_LORA_WIDE, module);
	float scale = op->lora.scale[module];
	switch (op->kind) {
	case RH_OP_LORA_LOW:
		return low_part(parts, module, low, matrix);
	case RH_OP_LORA_PART:
		return multiply(
		        parts,
		        &(struct product){
		                .a = low, .b = matrix, .trans_b = 1, .alpha = scale, .c = columns_of(op, RH_LORA_C, module), .d = own});
	case RH_OP_LORA_LOW_GRADIENT:
		return multiply(parts, &(struct product){.a = own, .b = matrix, .alpha = scale, .d = low});
	case RH_OP_LORA_INPUT_GRADIENT: {
		if (!drops(op))
			return multiply(parts, &(struct product){.a = low, .b = matrix, .alpha = 1, .c = sum, .d = wide});
		struct rh_view space = op->operand[RH_LORA_SPACE];
		int rc = multiply(parts, &(struct product){.a = low, .b = matrix, .alpha = 1, .d = space});
		return rc ? rc : drop(parts, module, space, sum, wide);
	}
	case RH_OP_LORA_A_GRADIENT:
		return a_gradient_part(parts, module, low, matrix);
	default:
		RH_ASSERT(op->kind == RH_OP_LORA_B_GRADIENT);
		return multiply(parts, &(struct product){.a = own, .trans_a = 1, .b = low, .alpha = scale, .c = matrix, .d = matrix});
	}
}

static int lora_parts(const struct rh_op *op, rh_op_run *run, void *user)
{
	const struct parts parts = {op, run, user};
	int rc = 0, first = 1;
	for (int m = 0; !rc && m < RH_LORA_MODULES; m++) {
		if (is_present(op, m)) {
			rc = module_part(&parts, m, first);
			first = 0;
		} else if (op->kind == RH_OP_LORA_PART) {
			rc = empty_part(&parts, columns_of(op, RH_LORA_C, m), columns_of(op, RH_LORA_WIDE, m));
		}
	}
	return rc;
}

#define LORA(op_name, wide, low, matrix, more)                                                                                             \
	const struct op_def op_##op_name = {                                                                                               \
	        .info = {#op_name,                                                                                                         \
	                 RH_LORA_OPERANDS,                                                                                                 \
	                 {wide("wide"), low("low_0"), low("low_1"), low("low_2"), matrix("matrix_0"), matrix("matrix_1"),                  \
	                  matrix("matrix_2"), more}},                                                                                      \
	        .check = check_lora,                                                                                                       \
	        .parts = lora_parts,                                                                                                       \
	}

LORA(lora_low, IN, OUT_IF, MAYBE, SPACE_IF("space"));
LORA(lora_part, OUT, MAYBE, MAYBE, MAYBE("c"));
LORA(lora_low_gradient, IN, OUT_IF, MAYBE, SPACE_IF("space"));
LORA(lora_input_gradient, OUT, MAYBE, MAYBE, SPACE_IF("space"));
LORA(lora_a_gradient, IN, MAYBE, ADD_TO_IF, SPACE_IF("space"));
LORA(lora_b_gradient, IN, MAYBE, ADD_TO_IF, SPACE_IF("space"));
