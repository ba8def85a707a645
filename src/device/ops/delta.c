/* CONV and DELTA, the two ops of a linear attention with the gated delta rule, and their gradients. */
#include "core/alloc.h"
#include "device/ops/def.h"

#include <math.h>
#include <string.h>

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* ---- CONV ---- */

static void check_conv_parts(struct check *check, int x, int w, int start)
{
	const struct rh_view *view = check->op->operand;
	require(check, is_act(view[x].dtype), "conv: x is neither F32 nor BF16");
	require(check, view[w].dtype == view[x].dtype && view[w].rows == view[x].cols,
	        "conv: w has not a row of x's dtype for each column");
	require(check, view[w].cols >= 1 && view[w].cols <= RH_CONV_MOST, "conv: w is not 1 to 8 wide");
	require(check, check->op->conv.documents >= 1, "conv: there are no documents");
	shape(check, start, RH_I32, check->op->conv.documents + 1, 1, "conv: start is not (documents+1,1) I32");
}

static void check_tail(struct check *check, int operand, enum rh_dtype dtype)
{
	struct rh_view x = check->op->operand[RH_CONV_X], w = check->op->operand[RH_CONV_W];
	shape(check, operand, dtype, w.cols - 1, x.cols, "conv: what is before or behind the rows is not (K-1,C) of its dtype");
}

static void check_conv(struct check *check)
{
	struct rh_view x = check->op->operand[RH_CONV_X];
	check_conv_parts(check, RH_CONV_X, RH_CONV_W, RH_CONV_START);
	shape(check, RH_CONV_Y, x.dtype, x.rows, x.cols, "conv: y is not shaped and typed as x");
	check_tail(check, RH_CONV_TAIL, x.dtype);
	check_tail(check, RH_CONV_END, x.dtype);
}

/* x at a row of the document that begins at `start`, which may lie before it. */
static double row_before(struct rh_view x, struct rh_view tail, int64_t start, int64_t t, int64_t c)
{
	if (t >= start)
		return get(x, t, c);
	return tail.data && t - start + tail.rows >= 0 ? get(tail, t - start + tail.rows, c) : 0;
}

static double convolved(struct rh_view x, struct rh_view w, struct rh_view tail, int64_t start, int64_t t, int64_t c)
{
	double sum = 0;
	for (int64_t j = 0; j < w.cols; j++)
		sum += get(w, c, j) * row_before(x, tail, start, t - w.cols + 1 + j, c);
	return sum;
}

static void oracle_conv(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_CONV_X], w = op->operand[RH_CONV_W], start = op->operand[RH_CONV_START];
	struct rh_view tail = op->operand[RH_CONV_TAIL], y = op->operand[RH_CONV_Y], end = op->operand[RH_CONV_END], none = {0};
	int64_t last = op->conv.documents - 1;
	for (int64_t d = 0; d <= last; d++)
		for (int64_t t = get_index(start, d); t < get_index(start, d + 1); t++)
			for (int64_t c = 0; c < x.cols; c++) {
				double z = convolved(x, w, d ? none : tail, get_index(start, d), t, c);
				put(y, t, c, z * sigmoid(z));
			}
	for (int64_t i = 0; end.data && i < end.rows; i++) { /* upwards: what is read lies above what is written */
		int64_t t = get_index(start, last + 1) - end.rows + i;
		for (int64_t c = 0; c < x.cols; c++)
			put(end, i, c, row_before(x, last ? none : tail, get_index(start, last), t, c));
	}
}

const struct op_def op_conv = {
        .info = {"conv", 6, {IN("x"), IN("w"), IN("start"), OUT("y"), MAYBE("tail"), OUT_IF("end")}},
        .in_place = {{RH_CONV_END, RH_CONV_TAIL}},
        .check = check_conv,
        .oracle = oracle_conv,
        .flops = {RH_CONV_X, 8 + SPECIAL},
};

static void check_conv_backward(struct check *check)
{
	struct rh_view x = check->op->operand[RH_CONV_BACKWARD_X], w = check->op->operand[RH_CONV_BACKWARD_W];
	check_conv_parts(check, RH_CONV_BACKWARD_X, RH_CONV_BACKWARD_W, RH_CONV_BACKWARD_START);
	shape(check, RH_CONV_BACKWARD_DY, x.dtype, x.rows, x.cols, "conv_backward: dy is not shaped and typed as x");
	shape(check, RH_CONV_BACKWARD_DX, x.dtype, x.rows, x.cols, "conv_backward: dx is not shaped and typed as x");
	shape(check, RH_CONV_BACKWARD_DW, RH_F32, w.rows, w.cols, "conv_backward: dw is not (C,K) F32");
	check_tail(check, RH_CONV_BACKWARD_TAIL, x.dtype);
	check_tail(check, RH_CONV_BACKWARD_D_END, RH_F32);
	check_tail(check, RH_CONV_BACKWARD_D_TAIL, RH_F32);
}

/* The rows before a document. */
static struct rh_view tail_of(const struct rh_op *op, int64_t document)
{
	return document ? (struct rh_view){0} : op->operand[RH_CONV_BACKWARD_TAIL];
}

/* The gradient of the sum at (t,c), through silu; t may lie behind its document. */
static double conv_gradient(const struct rh_op *op, int64_t document, int64_t t, int64_t c)
{
	const struct rh_view *view = op->operand;
	int64_t first = get_index(view[RH_CONV_BACKWARD_START], document), end = get_index(view[RH_CONV_BACKWARD_START], document + 1);
	struct rh_view d_end = view[RH_CONV_BACKWARD_D_END];
	if (t >= end)
		return d_end.data && document + 1 == op->conv.documents && t - end < d_end.rows ? get(d_end, t - end, c) : 0;
	double z = convolved(view[RH_CONV_BACKWARD_X], view[RH_CONV_BACKWARD_W], tail_of(op, document), first, t, c), s = sigmoid(z);
	return get(view[RH_CONV_BACKWARD_DY], t, c) * (s + z * s * (1 - s));
}

static void oracle_conv_backward(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_CONV_BACKWARD_X], w = op->operand[RH_CONV_BACKWARD_W],
	               start = op->operand[RH_CONV_BACKWARD_START];
	struct rh_view dx = op->operand[RH_CONV_BACKWARD_DX], dw = op->operand[RH_CONV_BACKWARD_DW],
	               d_tail = op->operand[RH_CONV_BACKWARD_D_TAIL];
	for (int64_t c = 0; c < x.cols; c++) {
		double of_w[RH_CONV_MOST] = {0};
		for (int64_t d = 0; d < op->conv.documents; d++) {
			int64_t first = get_index(start, d), end = get_index(start, d + 1);
			for (int64_t t = first; t < end; t++) {
				double sum = 0, dz = conv_gradient(op, d, t, c);
				for (int64_t j = 0; j < w.cols; j++) {
					sum += get(w, c, j) * conv_gradient(op, d, t + w.cols - 1 - j, c);
					of_w[j] += dz * row_before(x, tail_of(op, d), first, t - w.cols + 1 + j, c);
				}
				put(dx, t, c, sum);
			}
		}
		for (int64_t j = 0; j < w.cols && dw.data; j++)
			put(dw, c, j, get(dw, c, j) + of_w[j]);
		for (int64_t j = d_tail.rows - 1; d_tail.data && j >= 0; j--) /* downwards: what is read lies below what is written */
			put(d_tail, j, c, conv_gradient(op, 0, get_index(start, 0) + j, c));
	}
}

const struct op_def op_conv_backward = {
        .info = {"conv_backward",
                 9,
                 {IN("x"), IN("w"), IN("start"), IN("dy"), OUT("dx"), ADD_TO_IF("dw"), MAYBE("tail"), MAYBE("d_end"), OUT_IF("d_tail")}},
        .in_place = {{RH_CONV_BACKWARD_D_TAIL, RH_CONV_BACKWARD_D_END}},
        .check = check_conv_backward,
        .oracle = oracle_conv_backward,
        .flops = {RH_CONV_BACKWARD_X, 24 + SPECIAL},
};

/* ---- DELTA ---- */

/* Operands 0 to 7 are the same in forward and backward. */
static void check_delta_inputs(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view q = view[RH_DELTA_Q], v = view[RH_DELTA_V];
	int64_t heads = check->op->delta.heads, key_heads = check->op->delta.key_heads, documents = check->op->delta.documents;
	require(check, is_act(q.dtype), "delta: q is neither F32 nor BF16");
	require(check, key_heads >= 1 && heads >= key_heads && heads % key_heads == 0, "delta: heads are no multiple of key heads");
	require(check, documents >= 1, "delta: there are no documents");
	if (check->fault)
		return;
	require(check, q.cols >= key_heads && q.cols % key_heads == 0 && q.cols / key_heads <= RH_DELTA_MOST,
	        "delta: q is not key_heads*K wide, K at most 128");
	require(check, v.cols >= heads && v.cols % heads == 0 && v.cols / heads <= RH_DELTA_MOST,
	        "delta: v is not heads*V wide, V at most 128");
	shape(check, RH_DELTA_K, q.dtype, q.rows, q.cols, "delta: k is not shaped and typed as q");
	shape(check, RH_DELTA_V, q.dtype, q.rows, v.cols, "delta: v is not (T,heads*V) of q's dtype");
	shape(check, RH_DELTA_B, q.dtype, q.rows, heads, "delta: b is not (T,heads) of q's dtype");
	shape(check, RH_DELTA_A, q.dtype, q.rows, heads, "delta: a is not (T,heads) of q's dtype");
	shape(check, RH_DELTA_A_LOG, q.dtype, 1, heads, "delta: a_log is not (1,heads) of q's dtype");
	shape(check, RH_DELTA_DT_BIAS, q.dtype, 1, heads, "delta: dt_bias is not (1,heads) of q's dtype");
	shape(check, RH_DELTA_START, RH_I32, documents + 1, 1, "delta: start is not (documents+1,1) I32");
}

static void check_state(struct check *check, int operand)
{
	struct rh_view q = check->op->operand[RH_DELTA_Q], v = check->op->operand[RH_DELTA_V];
	int64_t heads = check->op->delta.heads, key_heads = check->op->delta.key_heads;
	shape(check, operand, RH_F32, heads * (q.cols / key_heads), v.cols / heads, "delta: a state is not (heads*K,V) F32");
}

/* What is read of one end of the documents and what is left of the other. */
static void check_ends(struct check *check, int in, int out)
{
	const struct rh_view *view = check->op->operand;
	check_state(check, in);
	check_state(check, out);
	require(check, !view[in].data || view[in].data != view[out].data || check->op->delta.documents == 1,
	        "delta: the states before and behind several documents lie in one place");
}

static void check_delta(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view q = view[RH_DELTA_Q], v = view[RH_DELTA_V];
	check_delta_inputs(check);
	if (check->fault)
		return;
	shape(check, RH_DELTA_O, q.dtype, q.rows, v.cols, "delta: o is not shaped and typed as v");
	check_ends(check, RH_DELTA_STATE, RH_DELTA_END);
}

/* One token of a value head, in fp64. */
struct token {
	double q[RH_DELTA_MOST], k[RH_DELTA_MOST], q_rstd, k_rstd;
	double g, beta, soft, x; /* soft: softplus(x), x = a + dt_bias */
};

static double load_unit(struct rh_view view, int64_t t, int64_t first, int64_t n, double scale, double *out)
{
	double squares = 0;
	for (int64_t i = 0; i < n; i++)
		squares += get(view, t, first + i) * get(view, t, first + i);
	double rstd = 1 / sqrt(squares + (double)RH_DELTA_EPSILON);
	for (int64_t i = 0; i < n; i++)
		out[i] = get(view, t, first + i) * rstd * scale;
	return rstd;
}

static void load_token(const struct rh_op *op, int64_t t, int64_t head, struct token *out)
{
	const struct rh_view *view = op->operand;
	int64_t n = view[RH_DELTA_Q].cols / op->delta.key_heads, key = head / (op->delta.heads / op->delta.key_heads);
	out->q_rstd = load_unit(view[RH_DELTA_Q], t, key * n, n, 1 / sqrt((double)n), out->q);
	out->k_rstd = load_unit(view[RH_DELTA_K], t, key * n, n, 1, out->k);
	out->x = get(view[RH_DELTA_A], t, head) + get(view[RH_DELTA_DT_BIAS], 0, head);
	out->soft = out->x > 30 ? out->x : log1p(exp(out->x));
	out->g = -exp(get(view[RH_DELTA_A_LOG], 0, head)) * out->soft;
	out->beta = sigmoid(get(view[RH_DELTA_B], t, head));
}

/* S (K,V) decays; delta (V) = beta (v - S^T k), which S takes in. */
static void step(const struct rh_op *op, int64_t t, int64_t head, const struct token *of, double *s, double *delta)
{
	struct rh_view v = op->operand[RH_DELTA_V];
	int64_t wide = v.cols / op->delta.heads, n = op->operand[RH_DELTA_Q].cols / op->delta.key_heads;
	double decay = exp(of->g);
	for (int64_t i = 0; i < n * wide; i++)
		s[i] *= decay;
	for (int64_t j = 0; j < wide; j++) {
		double seen = 0;
		for (int64_t i = 0; i < n; i++)
			seen += s[i * wide + j] * of->k[i];
		delta[j] = of->beta * (get(v, t, head * wide + j) - seen);
		for (int64_t i = 0; i < n; i++)
			s[i * wide + j] += of->k[i] * delta[j];
	}
}

/* A head's state, or its gradient, (K,V); absent: zeros. */
static void load_state(const struct rh_op *op, struct rh_view from, int64_t head, double *s)
{
	int64_t n = op->operand[RH_DELTA_Q].cols / op->delta.key_heads, wide = op->operand[RH_DELTA_V].cols / op->delta.heads;
	for (int64_t i = 0; i < n * wide; i++)
		s[i] = from.data ? get(from, head * n + i / wide, i % wide) : 0;
}

static void store_state(const struct rh_op *op, struct rh_view to, int64_t head, const double *s)
{
	int64_t n = op->operand[RH_DELTA_Q].cols / op->delta.key_heads, wide = op->operand[RH_DELTA_V].cols / op->delta.heads;
	for (int64_t i = 0; i < n * wide && to.data; i++)
		put(to, head * n + i / wide, i % wide, s[i]);
}

/* The view of what is before a document, or behind it. */
static struct rh_view before_document(const struct rh_op *op, int operand, int64_t document)
{
	return document ? (struct rh_view){0} : op->operand[operand];
}

static struct rh_view behind_document(const struct rh_op *op, int operand, int64_t document)
{
	return document + 1 < op->delta.documents ? (struct rh_view){0} : op->operand[operand];
}

static void oracle_delta(const struct rh_op *op)
{
	struct rh_view start = op->operand[RH_DELTA_START], o = op->operand[RH_DELTA_O];
	int64_t n = op->operand[RH_DELTA_Q].cols / op->delta.key_heads, wide = op->operand[RH_DELTA_V].cols / op->delta.heads;
	double s[RH_DELTA_MOST * RH_DELTA_MOST], delta[RH_DELTA_MOST];
	for (int64_t d = 0; d < op->delta.documents; d++)
		for (int64_t head = 0; head < op->delta.heads; head++) {
			load_state(op, before_document(op, RH_DELTA_STATE, d), head, s);
			for (int64_t t = get_index(start, d); t < get_index(start, d + 1); t++) {
				struct token of;
				load_token(op, t, head, &of);
				step(op, t, head, &of, s, delta);
				for (int64_t j = 0; j < wide && o.data; j++) {
					double sum = 0;
					for (int64_t i = 0; i < n; i++)
						sum += s[i * wide + j] * of.q[i];
					put(o, t, head * wide + j, sum);
				}
			}
			store_state(op, behind_document(op, RH_DELTA_END, d), head, s);
		}
}

/* Of a chunk of C tokens: the products of keys, of queries and keys, the triangular solution and its use (each half of C^2), and three with
 * the state. Without the output no queries. */
static void cost_delta(const struct rh_op *op, struct rh_op_cost *cost)
{
	double k = (double)op->operand[RH_DELTA_Q].cols / (double)op->delta.key_heads;
	double v = (double)op->operand[RH_DELTA_V].cols / (double)op->delta.heads;
	double tokens = (double)op->operand[RH_DELTA_Q].rows * (double)op->delta.heads;
	cost->product_flops = 2 * tokens * (3 * k * v + RH_DELTA_CHUNK * (k + v));
	if (op->kind == RH_OP_DELTA && !op->operand[RH_DELTA_O].data)
		cost->product_flops -= tokens * (2 * k * v + RH_DELTA_CHUNK * (k + v));
	cost->other_flops = tokens * (6 * k + 4 * v + SPECIAL * (4 + RH_DELTA_CHUNK / 2));
}

const struct op_def op_delta = {
        .info = {"delta",
                 11,
                 {IN("q"), IN("k"), IN("v"), IN("b"), IN("a"), IN("a_log"), IN("dt_bias"), IN("start"), OUT_IF("o"), MAYBE("state"),
                  OUT_IF("end")}},
        .in_place = {{RH_DELTA_END, RH_DELTA_STATE}},
        .check = check_delta,
        .oracle = oracle_delta,
        .cost = cost_delta,
};

static void check_delta_backward(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view q = view[RH_DELTA_Q], v = view[RH_DELTA_V], space = view[RH_DELTA_BACKWARD_SPACE];
	int64_t heads = check->op->delta.heads, key_heads = check->op->delta.key_heads;
	check_delta_inputs(check);
	if (check->fault)
		return;
	shape(check, RH_DELTA_BACKWARD_DO, q.dtype, q.rows, v.cols, "delta_backward: do is not shaped and typed as v");
	shape(check, RH_DELTA_BACKWARD_DQ, q.dtype, q.rows, q.cols, "delta_backward: dq is not shaped and typed as q");
	shape(check, RH_DELTA_BACKWARD_DK, q.dtype, q.rows, q.cols, "delta_backward: dk is not shaped and typed as q");
	shape(check, RH_DELTA_BACKWARD_DV, q.dtype, q.rows, v.cols, "delta_backward: dv is not shaped and typed as v");
	shape(check, RH_DELTA_BACKWARD_DB, q.dtype, q.rows, heads, "delta_backward: db is not (T,heads) of q's dtype");
	shape(check, RH_DELTA_BACKWARD_DA, q.dtype, q.rows, heads, "delta_backward: da is not (T,heads) of q's dtype");
	shape(check, RH_DELTA_BACKWARD_DA_LOG, RH_F32, 1, heads, "delta_backward: da_log is not (1,heads) F32");
	shape(check, RH_DELTA_BACKWARD_DDT_BIAS, RH_F32, 1, heads, "delta_backward: ddt_bias is not (1,heads) F32");
	check_state(check, RH_DELTA_BACKWARD_STATE);
	check_ends(check, RH_DELTA_BACKWARD_D_END, RH_DELTA_BACKWARD_D_STATE);
	require(check,
	        space.dtype == RH_F32 && space.rows == 1 &&
	                space.cols >= rh_delta_space(q.rows, check->op->delta.documents, heads, q.cols / key_heads, v.cols / heads),
	        "delta_backward: space is not a row of F32 as long as rh_delta_space says");
}

/* Gradients of one document for the value heads of one key head. */
struct reverse {
	const struct rh_op *op;
	int64_t document, first, end, n, wide;
	double *s;               /* states: before the first token and after each */
	double *ds, *dq, *dk;    /* (K,V); (T,K) each, of unit vectors, of all value heads */
	double da_log, ddt_bias; /* of one value head */
};

/* Token t of a value head, last one first; ds is the gradient at the state behind it, and then before it. */
static void step_back(struct reverse *r, int64_t t, int64_t head)
{
	const struct rh_view *view = r->op->operand;
	int64_t n = r->n, wide = r->wide, at = t - r->first;
	const double *before = r->s + at * n * wide, *after = before + n * wide;
	double delta[RH_DELTA_MOST], d_delta[RH_DELTA_MOST], seen, d_beta = 0, dg = 0;
	struct token of;
	load_token(r->op, t, head, &of);
	double decay = exp(of.g);
	for (int64_t j = 0; j < wide; j++) {
		double d_o = get(view[RH_DELTA_BACKWARD_DO], t, head * wide + j);
		for (int64_t i = 0; i < n; i++) {
			r->dq[at * n + i] += after[i * wide + j] * d_o;
			r->ds[i * wide + j] += of.q[i] * d_o;
		}
		d_delta[j] = seen = 0;
		for (int64_t i = 0; i < n; i++) {
			seen += decay * before[i * wide + j] * of.k[i];
			d_delta[j] += r->ds[i * wide + j] * of.k[i];
		}
		double rest = get(view[RH_DELTA_V], t, head * wide + j) - seen;
		delta[j] = of.beta * rest;
		d_beta += d_delta[j] * rest;
		d_delta[j] *= of.beta; /* from here on the gradient of v, and less that of what was seen */
		put(view[RH_DELTA_BACKWARD_DV], t, head * wide + j, d_delta[j]);
	}
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < wide; j++) {
			double decayed = decay * before[i * wide + j], *ds = &r->ds[i * wide + j];
			r->dk[at * n + i] += *ds * delta[j] - decayed * d_delta[j];
			*ds -= of.k[i] * d_delta[j];
			dg += *ds * decayed;
			*ds *= decay;
		}
	double slope = -exp(get(view[RH_DELTA_A_LOG], 0, head)) * sigmoid(of.x);
	put(view[RH_DELTA_BACKWARD_DB], t, head, d_beta * of.beta * (1 - of.beta));
	put(view[RH_DELTA_BACKWARD_DA], t, head, dg * slope);
	r->ddt_bias += dg * slope;
	r->da_log += dg * of.g;
}

/* Through the division by a vector's length: dx of the gradient at x rstd scale. */
static void put_unit_gradient(struct rh_view x, struct rh_view dx, int64_t t, int64_t first, int64_t n, double scale, const double *d)
{
	double unit[RH_DELTA_MOST], rstd = load_unit(x, t, first, n, 1, unit), along = 0;
	for (int64_t i = 0; i < n; i++)
		along += unit[i] * d[i];
	for (int64_t i = 0; i < n; i++)
		put(dx, t, first + i, scale * rstd * (d[i] - unit[i] * along));
}

static void reverse_head(struct reverse *r, int64_t head)
{
	double delta[RH_DELTA_MOST];
	int64_t size = r->n * r->wide;
	load_state(r->op, before_document(r->op, RH_DELTA_BACKWARD_STATE, r->document), head, r->s);
	load_state(r->op, behind_document(r->op, RH_DELTA_BACKWARD_D_END, r->document), head, r->ds);
	for (int64_t t = r->first; t < r->end; t++) {
		double *s = r->s + (t - r->first) * size;
		struct token of;
		memcpy(s + size, s, (size_t)size * sizeof *s);
		load_token(r->op, t, head, &of);
		step(r->op, t, head, &of, s + size, delta);
	}
	r->da_log = r->ddt_bias = 0;
	for (int64_t t = r->end - 1; t >= r->first; t--)
		step_back(r, t, head);
	store_state(r->op, before_document(r->op, RH_DELTA_BACKWARD_D_STATE, r->document), head, r->ds);
}

static void add_to(struct rh_view sum, int64_t head, double value)
{
	if (sum.data)
		put(sum, 0, head, get(sum, 0, head) + value);
}

static void reverse_document(const struct rh_op *op, int64_t document)
{
	const struct rh_view *view = op->operand;
	int64_t group = op->delta.heads / op->delta.key_heads;
	struct reverse r = {.op = op,
	                    .document = document,
	                    .first = get_index(view[RH_DELTA_START], document),
	                    .end = get_index(view[RH_DELTA_START], document + 1),
	                    .n = view[RH_DELTA_Q].cols / op->delta.key_heads,
	                    .wide = view[RH_DELTA_V].cols / op->delta.heads};
	int64_t tokens = r.end - r.first;
	r.s = rh_alloc((size_t)((tokens + 2) * r.n * r.wide + 2 * tokens * r.n), sizeof *r.s);
	RH_ASSERT(r.s);
	r.ds = r.s + (tokens + 1) * r.n * r.wide;
	r.dq = r.ds + r.n * r.wide;
	r.dk = r.dq + tokens * r.n;
	for (int64_t key = 0; key < op->delta.key_heads; key++) {
		memset(r.dq, 0, (size_t)(2 * tokens * r.n) * sizeof *r.dq);
		for (int64_t head = key * group; head < (key + 1) * group; head++) {
			reverse_head(&r, head);
			add_to(view[RH_DELTA_BACKWARD_DA_LOG], head, r.da_log);
			add_to(view[RH_DELTA_BACKWARD_DDT_BIAS], head, r.ddt_bias);
		}
		for (int64_t t = r.first; t < r.end; t++) {
			int64_t at = (t - r.first) * r.n;
			put_unit_gradient(view[RH_DELTA_Q], view[RH_DELTA_BACKWARD_DQ], t, key * r.n, r.n, 1 / sqrt((double)r.n),
			                  r.dq + at);
			put_unit_gradient(view[RH_DELTA_K], view[RH_DELTA_BACKWARD_DK], t, key * r.n, r.n, 1, r.dk + at);
		}
	}
	rh_free(r.s);
}

static void oracle_delta_backward(const struct rh_op *op)
{
	for (int64_t d = 0; d < op->delta.documents; d++)
		reverse_document(op, d);
}

/* The forward without its output, then each product twice. */
static void cost_delta_backward(const struct rh_op *op, struct rh_op_cost *cost)
{
	cost_delta(op, cost);
	cost->product_flops *= 3;
	cost->other_flops *= 3;
}

const struct op_def op_delta_backward = {
        .info = {"delta_backward",
                 20,
                 {IN("q"),
                  IN("k"),
                  IN("v"),
                  IN("b"),
                  IN("a"),
                  IN("a_log"),
                  IN("dt_bias"),
                  IN("start"),
                  IN("do"),
                  OUT("dq"),
                  OUT("dk"),
                  OUT("dv"),
                  OUT("db"),
                  OUT("da"),
                  ADD_TO_IF("da_log"),
                  ADD_TO_IF("ddt_bias"),
                  {"space", RH_ACCESS_NONE, 0},
                  MAYBE("state"),
                  MAYBE("d_end"),
                  OUT_IF("d_state")}},
        .in_place = {{RH_DELTA_BACKWARD_D_STATE, RH_DELTA_BACKWARD_D_END}},
        .check = check_delta_backward,
        .oracle = oracle_delta_backward,
        .cost = cost_delta_backward,
};
