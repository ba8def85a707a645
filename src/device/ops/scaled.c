/* Products of 8-bit operands, or with sums in fp16, and the scales of both. */
#include "core/float8.h"
#include "device/ops/def.h"

static int is_eight(enum rh_dtype dtype)
{
	return dtype == RH_E4M3 || dtype == RH_E5M2;
}

/* Absent, or an 8-bit view of this shape whose type holds the limit. */
static void narrow(struct check *check, int operand, int64_t rows, int64_t cols, const char *fault)
{
	struct rh_view view = check->op->operand[operand];
	float largest = view.dtype == RH_E5M2 ? RH_E5M2_LARGEST : RH_E4M3_LARGEST;
	if (!view.data)
		return;
	require(check, is_eight(view.dtype) && view.rows == rows && view.cols == cols, fault);
	require(check, check->op->quantise.limit <= largest, "quantise: the limit is beyond the type's largest number");
}

static void check_quantise(struct check *check)
{
	struct rh_view x = check->op->operand[RH_QUANTISE_X], t = check->op->operand[RH_QUANTISE_T];
	int64_t whole = (x.rows + RH_QUANTISE_RUN - 1) / RH_QUANTISE_RUN * RH_QUANTISE_RUN;
	require(check, is_act(x.dtype), "quantise: x is neither F32 nor BF16");
	require(check, check->op->quantise.limit >= 4 && check->op->quantise.limit <= RH_E5M2_LARGEST,
	        "quantise: the limit is not 4 to 57344");
	shape(check, RH_QUANTISE_PART, RH_F32, 1, RH_QUANTISE_PARTS, "quantise: part is not (1,512) F32");
	shape(check, RH_QUANTISE_SCALE, RH_F32, 1, 1, "quantise: scale is not (1,1) F32");
	struct rh_view amax = check->op->operand[RH_QUANTISE_AMAX];
	int64_t known = check->op->quantise.known;
	require(check, amax.data ? amax.dtype == RH_F32 && amax.rows == x.rows && known > 0 && known <= x.cols : known == 0,
	        "quantise: amax is not (r,n) F32, or of no columns of x");
	narrow(check, RH_QUANTISE_Y, x.rows, x.cols, "quantise: y is not shaped as x, or of no 8-bit type");
	narrow(check, RH_QUANTISE_T, x.cols, whole, "quantise: t is not (c, r rounded up to 16), or of no 8-bit type");
	require(check, !t.data || !t.cols || ((uintptr_t)t.data % RH_QUANTISE_RUN == 0 && t.stride % RH_QUANTISE_RUN == 0),
	        "quantise: rows of t do not begin on 16 bytes");
}

static double get_eight(struct rh_view view, int64_t row, int64_t col)
{
	uint8_t code = ((const uint8_t *)view.data)[row * view.stride + col];
	return (double)(view.dtype == RH_E4M3 ? rh_e4m3_to_f32(code) : rh_e5m2_to_f32(code));
}

static void put_eight(struct rh_view view, int64_t row, int64_t col, float value)
{
	((uint8_t *)view.data)[row * view.stride + col] = view.dtype == RH_E4M3 ? rh_f32_to_e4m3(value) : rh_f32_to_e5m2(value);
}

static void oracle_quantise(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_QUANTISE_X], amax = op->operand[RH_QUANTISE_AMAX], scale = op->operand[RH_QUANTISE_SCALE];
	struct rh_view y = op->operand[RH_QUANTISE_Y], t = op->operand[RH_QUANTISE_T];
	float most = 0;
	for (int64_t r = 0; r < x.rows; r++)
		for (int64_t c = op->quantise.known; c < x.cols; c++)
			most = larger(most, (float)get(x, r, c));
	for (int64_t r = 0; amax.data && r < amax.rows; r++)
		for (int64_t c = 0; c < amax.cols; c++)
			most = larger(most, (float)get(amax, r, c));
	float by = *(float *)scale.data = rh_power_scale(most, op->quantise.limit);
	for (int64_t r = 0; r < x.rows; r++)
		for (int64_t c = 0; y.data && c < x.cols; c++)
			put_eight(y, r, c, (float)get(x, r, c) / by);
	for (int64_t c = 0; t.data && c < x.cols; c++)
		for (int64_t r = 0; r < t.cols; r++)
			put_eight(t, c, r, r < x.rows ? (float)get(x, r, c) / by : 0);
}

static void cost_quantise(const struct rh_op *op, struct rh_op_cost *cost)
{
	struct rh_view x = op->operand[RH_QUANTISE_X];
	int outputs = (op->operand[RH_QUANTISE_Y].data != NULL) + (op->operand[RH_QUANTISE_T].data != NULL);
	cost->other_flops = 2 * ((double)x.rows * (double)(x.cols - op->quantise.known) + area(x) * outputs);
}

/* Of x: once for the scale, the columns that amax does not tell of, and once for what is made of it. */
static int64_t touched_by_quantise(const struct rh_op *op, int operand)
{
	struct rh_view view = op->operand[operand];
	if (operand != RH_QUANTISE_X || !view.cols)
		return view.rows;
	int64_t unknown = view.rows * (view.cols - op->quantise.known) / view.cols;
	return unknown + (op->operand[RH_QUANTISE_Y].data || op->operand[RH_QUANTISE_T].data ? view.rows : 0);
}

const struct op_def op_quantise = {
        .info = {"quantise", 6, {IN("x"), SPACE("part"), OUT("scale"), OUT_IF("y"), OUT_IF("t"), MAYBE("amax")}},
        .check = check_quantise,
        .oracle = oracle_quantise,
        .cost = cost_quantise,
        .touched = touched_by_quantise,
};

static void check_transpose(struct check *check)
{
	struct rh_view x = check->op->operand[RH_TRANSPOSE_X], y = check->op->operand[RH_TRANSPOSE_Y];
	require(check, is_eight(x.dtype) && y.dtype == x.dtype, "transpose: x and y are not of one 8-bit type");
	require(check, y.rows == x.cols && y.cols == x.rows, "transpose: y is not (c, r)");
	require(check, x.rows % RH_QUANTISE_RUN == 0 && x.cols % RH_QUANTISE_RUN == 0, "transpose: a length is no multiple of 16");
	require(check, rh_view_on_16(x) && rh_view_on_16(y), "transpose: rows of x or y do not begin on 16 bytes");
}

static void oracle_transpose(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_TRANSPOSE_X], y = op->operand[RH_TRANSPOSE_Y];
	const uint8_t *from = x.data;
	uint8_t *to = y.data;
	for (int64_t r = 0; r < x.rows; r++)
		for (int64_t c = 0; c < x.cols; c++)
			to[c * y.stride + r] = from[r * x.stride + c];
}

const struct op_def op_transpose = {
        .info = {"transpose", 2, {IN("x"), OUT("y")}},
        .check = check_transpose,
        .oracle = oracle_transpose,
        .flops = {RH_TRANSPOSE_Y, 1},
};

static void check_quantise_rows(struct check *check)
{
	struct rh_view x = check->op->operand[RH_QUANTISE_ROWS_X];
	require(check, is_act(x.dtype), "quantise_rows: x is neither F32 nor BF16");
	shape(check, RH_QUANTISE_ROWS_SCALE, RH_F32, x.rows, 1, "quantise_rows: scale is not (r,1) F32");
	shape(check, RH_QUANTISE_ROWS_Y, RH_E4M3, x.rows, x.cols, "quantise_rows: y is not shaped as x, or not E4M3");
}

static void oracle_quantise_rows(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_QUANTISE_ROWS_X], scale = op->operand[RH_QUANTISE_ROWS_SCALE];
	for (int64_t r = 0; r < x.rows; r++) {
		float most = 0;
		for (int64_t c = 0; c < x.cols; c++)
			most = larger(most, (float)get(x, r, c));
		float by = rh_power_scale(most, RH_E4M3_LARGEST);
		put(scale, r, 0, (double)by);
		for (int64_t c = 0; c < x.cols; c++)
			put_eight(op->operand[RH_QUANTISE_ROWS_Y], r, c, (float)get(x, r, c) / by);
	}
}

const struct op_def op_quantise_rows = {
        .info = {"quantise_rows", 3, {IN("x"), OUT("scale"), OUT("y")}},
        .check = check_quantise_rows,
        .oracle = oracle_quantise_rows,
        .flops = {RH_QUANTISE_ROWS_X, 4},
};

static void check_types(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	enum rh_dtype a = view[RH_SCALED_GEMM_A].dtype, b = view[RH_SCALED_GEMM_B].dtype, d = view[RH_SCALED_GEMM_D].dtype;
	int64_t chunk = check->op->scaled_gemm.chunk;
	require(check, d == RH_F32 || d == RH_BF16, "scaled_gemm: d is neither F32 nor BF16");
	if (chunk) {
		require(check, a == RH_BF16 && b == RH_BF16, "scaled_gemm: a or b is not BF16, which fp16 sums want");
		require(check, chunk > 0 && chunk <= RH_CHUNK_MOST && chunk % RH_CHUNK_UNIT == 0,
		        "scaled_gemm: chunk is no multiple of 32 up to 2048");
		require(check, !check->op->scaled_gemm.trans_a || !check->op->scaled_gemm.trans_b,
		        "scaled_gemm: both sides are transposed");
		return;
	}
	require(check, is_eight(a) && is_eight(b) && (a != RH_E5M2 || b != RH_E5M2),
	        "scaled_gemm: a and b are not 8-bit, at least one of them E4M3");
	require(check, !check->op->scaled_gemm.trans_a && check->op->scaled_gemm.trans_b, "scaled_gemm: 8-bit rows do not run along k");
	require(check, view[RH_SCALED_GEMM_A].cols % 16 == 0 && view[RH_SCALED_GEMM_B].rows % 16 == 0,
	        "scaled_gemm: n or k is no multiple of 16");
}

static void check_scaled_gemm(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view a = view[RH_SCALED_GEMM_A], b = view[RH_SCALED_GEMM_B], d = view[RH_SCALED_GEMM_D];
	int trans_a = check->op->scaled_gemm.trans_a, trans_b = check->op->scaled_gemm.trans_b;
	check_types(check);
	require(check, d.rows == (trans_a ? a.cols : a.rows), "scaled_gemm: rows of a and d differ");
	require(check, d.cols == (trans_b ? b.rows : b.cols), "scaled_gemm: columns of b and d differ");
	require(check, (trans_a ? a.rows : a.cols) == (trans_b ? b.cols : b.rows), "scaled_gemm: inner lengths of a and b differ");
	require(check, trans_a ? a.rows > 0 : a.cols > 0, "scaled_gemm: a sum over nothing");
	shape(check, RH_SCALED_GEMM_SCALE_A, RH_F32, 1, 1, "scaled_gemm: scale_a is not (1,1) F32");
	shape(check, RH_SCALED_GEMM_SCALE_B, RH_F32, 1, 1, "scaled_gemm: scale_b is not (1,1) F32");
	shape(check, RH_SCALED_GEMM_C, d.dtype, d.rows, d.cols, "scaled_gemm: c is not shaped and typed as d");
	shape(check, RH_SCALED_GEMM_BIAS, RH_BF16, 1, d.cols, "scaled_gemm: bias is not (1,n) BF16");
	require(check, rh_view_on_16(a) && rh_view_on_16(b) && rh_view_on_16(d) && rh_view_on_16(view[RH_SCALED_GEMM_C]),
	        "scaled_gemm: rows of a, b, c or d do not begin on 16 bytes");
}

static double half(double value)
{
	return (double)rh_f16_to_f32(rh_f32_to_f16((float)value));
}

/* An element as it goes into the product. */
static double element(struct rh_view view, int64_t row, int64_t col, double scale)
{
	return view.dtype == RH_BF16 ? half(get(view, row, col) / scale) : get_eight(view, row, col);
}

/* Products [first, end) of row m and column n. */
static double products(const struct rh_op *op, int64_t m, int64_t n, int64_t first, int64_t end)
{
	struct rh_view a = op->operand[RH_SCALED_GEMM_A], b = op->operand[RH_SCALED_GEMM_B];
	double scale_a = (double)*(float *)op->operand[RH_SCALED_GEMM_SCALE_A].data;
	double scale_b = (double)*(float *)op->operand[RH_SCALED_GEMM_SCALE_B].data, sum = 0;
	for (int64_t k = first; k < end; k++)
		sum += (op->scaled_gemm.trans_a ? element(a, k, m, scale_a) : element(a, m, k, scale_a)) *
		       (op->scaled_gemm.trans_b ? element(b, n, k, scale_b) : element(b, k, n, scale_b));
	return sum;
}

/* Chunks' sums in fp16, rounded after each instruction's depth of 16. */
static double chunked(const struct rh_op *op, int64_t m, int64_t n, int64_t inner)
{
	enum { INSTRUCTION = 16 };
	double sum = 0;
	for (int64_t first = 0; first < inner; first += op->scaled_gemm.chunk) {
		int64_t end = first + op->scaled_gemm.chunk < inner ? first + op->scaled_gemm.chunk : inner;
		double part = 0;
		for (int64_t k = first; k < end; k += INSTRUCTION)
			part = half(part + products(op, m, n, k, k + INSTRUCTION < end ? k + INSTRUCTION : end));
		sum += part;
	}
	return sum;
}

static void oracle_scaled_gemm(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_SCALED_GEMM_A], c = op->operand[RH_SCALED_GEMM_C], bias = op->operand[RH_SCALED_GEMM_BIAS];
	struct rh_view d = op->operand[RH_SCALED_GEMM_D];
	int64_t inner = op->scaled_gemm.trans_a ? a.rows : a.cols;
	for (int64_t m = 0; m < d.rows; m++) {
		for (int64_t n = 0; n < d.cols; n++) {
			double sum = op->scaled_gemm.chunk ? chunked(op, m, n, inner) : products(op, m, n, 0, inner);
			sum *= (double)op->scaled_gemm.alpha * (double)*(float *)op->operand[RH_SCALED_GEMM_SCALE_A].data *
			       (double)*(float *)op->operand[RH_SCALED_GEMM_SCALE_B].data;
			sum += c.data ? get(c, m, n) : 0;
			sum += bias.data ? get(bias, 0, n) : 0;
			put(d, m, n, sum);
		}
	}
}

static void cost_scaled_gemm(const struct rh_op *op, struct rh_op_cost *cost)
{
	struct rh_view a = op->operand[RH_SCALED_GEMM_A], d = op->operand[RH_SCALED_GEMM_D];
	cost->product_flops = 2 * area(d) * (double)(op->scaled_gemm.trans_a ? a.rows : a.cols);
	cost->other_flops = area(d) * (1 + (op->operand[RH_SCALED_GEMM_C].data != NULL) + (op->operand[RH_SCALED_GEMM_BIAS].data != NULL));
}

const struct op_def op_scaled_gemm = {
        .info = {"scaled_gemm", 7, {IN("a"), IN("b"), IN("scale_a"), IN("scale_b"), MAYBE("c"), MAYBE("bias"), OUT("d")}},
        .in_place = {{RH_SCALED_GEMM_D, RH_SCALED_GEMM_C}},
        .check = check_scaled_gemm,
        .oracle = oracle_scaled_gemm,
        .cost = cost_scaled_gemm,
};
