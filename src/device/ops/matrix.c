/* Products of matrices, and the head with its loss. */
#include "device/ops/top.h"

#include <math.h>

static void check_gemm(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view a = view[RH_GEMM_A], b = view[RH_GEMM_B], d = view[RH_GEMM_D];
	int64_t k = check->op->gemm.trans_a ? a.rows : a.cols;
	require(check, is_act(a.dtype), "gemm: a is neither F32 nor BF16");
	require(check, b.dtype == a.dtype, "gemm: b has another dtype than a");
	require(check, d.dtype == a.dtype || d.dtype == RH_F32, "gemm: d is neither F32 nor of a's dtype");
	require(check, d.rows == (check->op->gemm.trans_a ? a.cols : a.rows), "gemm: rows of a and d differ");
	require(check, d.cols == (check->op->gemm.trans_b ? b.rows : b.cols), "gemm: columns of b and d differ");
	require(check, k == (check->op->gemm.trans_b ? b.cols : b.rows), "gemm: inner lengths of a and b differ");
	shape(check, RH_GEMM_C, d.dtype, d.rows, d.cols, "gemm: c is not shaped and typed as d");
	shape(check, RH_GEMM_BIAS, a.dtype, 1, d.cols, "gemm: bias is not (1,n) of a's dtype");
}

static void oracle_gemm(const struct rh_op *op)
{
	struct rh_view a = op->operand[RH_GEMM_A], b = op->operand[RH_GEMM_B], c = op->operand[RH_GEMM_C];
	struct rh_view bias = op->operand[RH_GEMM_BIAS], d = op->operand[RH_GEMM_D];
	int64_t inner = op->gemm.trans_a ? a.rows : a.cols;
	for (int64_t m = 0; m < d.rows; m++) {
		for (int64_t n = 0; n < d.cols; n++) {
			double sum = 0;
			for (int64_t k = 0; k < inner; k++)
				sum += (op->gemm.trans_a ? get(a, k, m) : get(a, m, k)) * (op->gemm.trans_b ? get(b, n, k) : get(b, k, n));
			sum *= (double)op->gemm.alpha;
			sum += c.data ? get(c, m, n) : 0;
			sum += bias.data ? get(bias, 0, n) : 0;
			put(d, m, n, sum);
		}
	}
}

static void cost_gemm(const struct rh_op *op, struct rh_op_cost *cost)
{
	struct rh_view a = op->operand[RH_GEMM_A], d = op->operand[RH_GEMM_D];
	cost->product_flops = 2 * area(d) * (double)(op->gemm.trans_a ? a.rows : a.cols);
	cost->other_flops = area(d) * ((op->operand[RH_GEMM_C].data != NULL) + (op->operand[RH_GEMM_BIAS].data != NULL));
}

const struct op_def op_gemm = {
        .info = {"gemm", 5, {IN("a"), IN("b"), MAYBE("c"), MAYBE("bias"), OUT("d")}},
        .in_place = {{RH_GEMM_D, RH_GEMM_C}},
        .check = check_gemm,
        .oracle = oracle_gemm,
        .cost = cost_gemm,
};

static void check_head_loss(struct check *check)
{
	struct rh_view h = check->op->operand[RH_HEAD_LOSS_H], w = check->op->operand[RH_HEAD_LOSS_W];
	struct rh_view logits = check->op->operand[RH_HEAD_LOSS_LOGITS];
	require(check, is_act(h.dtype), "head_loss: h is neither F32 nor BF16");
	require(check, w.dtype == h.dtype && w.cols == h.cols && w.rows >= 1, "head_loss: w is not (V,H) of h's dtype");
	require(check, logits.dtype == RH_F32 && logits.cols == w.rows && logits.rows >= 1, "head_loss: logits are not (chunk,V) F32");
	shape(check, RH_HEAD_LOSS_TARGET, RH_I32, h.rows, 1, "head_loss: target is not (n,1) I32");
	shape(check, RH_HEAD_LOSS_LOSS, RH_F32, h.rows, 1, "head_loss: loss is not (n,1) F32");
	shape(check, RH_HEAD_LOSS_HIT, RH_I32, h.rows, 1, "head_loss: hit is not (n,1) I32");
	shape(check, RH_HEAD_LOSS_DH, h.dtype, h.rows, h.cols, "head_loss: dh is not shaped and typed as h");
	shape(check, RH_HEAD_LOSS_DW, RH_F32, w.rows, w.cols, "head_loss: dw is not (V,H) F32");
	shape(check, RH_HEAD_LOSS_BIAS, h.dtype, 1, w.rows, "head_loss: bias is not (1,V) of h's dtype");
	shape(check, RH_HEAD_LOSS_DBIAS, RH_F32, 1, w.rows, "head_loss: dbias is not (1,V) F32");
	int64_t top = check->op->head_loss.top;
	require(check, top >= 0 && top <= w.rows, "head_loss: top is not 0 to V");
	require(check, !top || w.rows <= RH_TOP_IDS, "head_loss: ids of more than 2^24 outputs");
	shape(check, RH_HEAD_LOSS_TEACHER, RH_F32, h.rows, top ? 2 * top : w.rows, "head_loss: teacher is neither (n,V) nor (n,2k) F32");
	shape(check, RH_HEAD_LOSS_SHARES, RH_F32, h.rows, 2 * top, "head_loss: shares are not (n,2k) F32");
	int has_teacher = check->op->operand[RH_HEAD_LOSS_TEACHER].data != NULL,
	    has_shares = check->op->operand[RH_HEAD_LOSS_SHARES].data != NULL;
	shape(check, RH_HEAD_LOSS_MIX, RH_F32, h.rows, 1 + has_teacher, "head_loss: mix is neither (n,1) F32 nor, with a teacher, (n,2)");
	require(check, !has_teacher || check->op->operand[RH_HEAD_LOSS_MIX].data, "head_loss: teacher without mix");
	require(check, !has_shares || top, "head_loss: shares of none");
	struct rh_view low = check->op->operand[RH_HEAD_LOSS_LOW], up = check->op->operand[RH_HEAD_LOSS_UP];
	require(check, !low.data == !up.data, "head_loss: one of low and up without the other");
	shape(check, RH_HEAD_LOSS_LOW, h.dtype, h.rows, up.cols, "head_loss: low is not (n,r) of h's dtype");
	shape(check, RH_HEAD_LOSS_UP, h.dtype, w.rows, low.cols, "head_loss: up is not (V,r) of h's dtype");
	shape(check, RH_HEAD_LOSS_DLOW, h.dtype, h.rows, low.cols, "head_loss: dlow is not shaped and typed as low");
	shape(check, RH_HEAD_LOSS_DUP, RH_F32, w.rows, low.cols, "head_loss: dup is not (V,r) F32");
	require(check, check->op->head_loss.cap == 0 || (check->op->head_loss.cap > 0 && !has_teacher && !has_shares),
	        "head_loss: a cap below 0, or beside a teacher or shares");
	require(check, !(has_teacher || has_shares) || check->op->head_loss.temperature > 0, "head_loss: the temperature is not above 0");
}

static double dot(struct rh_view a, int64_t row_a, struct rh_view b, int64_t row_b)
{
	double sum = 0;
	for (int64_t i = 0; i < a.cols; i++)
		sum += get(a, row_a, i) * get(b, row_b, i);
	return sum;
}

/* log of the sum of e^(x / temperature) over a row. */
static double log_sum(struct rh_view x, int64_t row, double temperature)
{
	double largest = get(x, row, 0), sum = 0;
	for (int64_t v = 1; v < x.cols; v++)
		largest = get(x, row, v) > largest ? get(x, row, v) : largest;
	for (int64_t v = 0; v < x.cols; v++)
		sum += exp((get(x, row, v) - largest) / temperature);
	return log(sum) + largest / temperature;
}

/* Of a row's teacher and of its logits, which lie in row 0 of theirs. */
struct divergence {
	struct rh_view logits, teacher;
	int64_t row;
	double temperature;
	enum rh_divergence which;
	double student_sum, teacher_sum; /* log_sum of both */
};

/* log of the student's share, and of the teacher's. */
static double log_student(const struct divergence *at, int64_t v)
{
	return get(at->logits, 0, v) / at->temperature - at->student_sum;
}

static double log_teacher(const struct divergence *at, int64_t v)
{
	return get(at->teacher, at->row, v) / at->temperature - at->teacher_sum;
}

/* Times the temperature's square. */
static double divergence_of(struct divergence *at)
{
	double sum = 0;
	at->student_sum = log_sum(at->logits, 0, at->temperature);
	at->teacher_sum = log_sum(at->teacher, at->row, at->temperature);
	for (int64_t v = 0; v < at->logits.cols; v++) {
		double student = log_student(at, v), teacher = log_teacher(at, v);
		sum += at->which == RH_DIVERGENCE_FORWARD ? exp(teacher) * (teacher - student) : exp(student) * (student - teacher);
	}
	return at->temperature * at->temperature * sum;
}

/* Its derivative by logit v. */
static double divergence_slope(const struct divergence *at, int64_t v, double divergence)
{
	double student = log_student(at, v), teacher = log_teacher(at, v), whole = divergence / (at->temperature * at->temperature);
	if (at->which == RH_DIVERGENCE_FORWARD)
		return at->temperature * (exp(student) - exp(teacher));
	return at->temperature * exp(student) * (student - teacher - whole);
}

static double alpha_of(const struct rh_op *op)
{
	return op->head_loss.alpha == 0 ? 1 : (double)op->head_loss.alpha;
}

static double capped(const struct rh_op *op, double logit)
{
	double cap = (double)op->head_loss.cap;
	return cap > 0 ? cap * tanh(logit / cap) : logit;
}

/* The derivative of a capped logit by what it was before. */
static double cap_slope(const struct rh_op *op, double logit)
{
	double cap = (double)op->head_loss.cap;
	return cap > 0 ? 1 - logit / cap * (logit / cap) : 1;
}

/* One row: `logits` row 0 is its workspace, and holds the gradient of the logits at the end. */
static void head_loss_row(const struct rh_op *op, int64_t row)
{
	struct rh_view h = op->operand[RH_HEAD_LOSS_H], w = op->operand[RH_HEAD_LOSS_W], logits = op->operand[RH_HEAD_LOSS_LOGITS];
	struct rh_view bias = op->operand[RH_HEAD_LOSS_BIAS], low = op->operand[RH_HEAD_LOSS_LOW];
	int64_t target = get_index(op->operand[RH_HEAD_LOSS_TARGET], row), best = 0;
	for (int64_t v = 0; v < w.rows; v++) {
		double part = low.data ? dot(low, row, op->operand[RH_HEAD_LOSS_UP], v) : 0;
		put(logits, 0, v, capped(op, alpha_of(op) * dot(h, row, w, v) + part + (bias.data ? get(bias, 0, v) : 0)));
		best = get(logits, 0, v) > get(logits, 0, best) ? v : best;
	}
	double sum = log_sum(logits, 0, 1), task = sum - get(logits, 0, target), divergence = 0;
	struct rh_view mix = op->operand[RH_HEAD_LOSS_MIX], teacher = op->operand[RH_HEAD_LOSS_TEACHER];
	double weight[2] = {mix.data ? get(mix, row, 0) : 1, teacher.data ? get(mix, row, 1) : 0};
	struct divergence at = {logits, teacher, row, op->head_loss.temperature, op->head_loss.divergence, 0, 0};
	struct buckets buckets;
	if (op->operand[RH_HEAD_LOSS_SHARES].data)
		top_put_shares(op, row);
	if (weight[1] != 0 && op->head_loss.top)
		divergence = top_divergence(op, row, &buckets);
	else if (weight[1] != 0)
		divergence = divergence_of(&at);
	put(op->operand[RH_HEAD_LOSS_LOSS], row, 0, weight[0] * task + weight[1] * divergence);
	put(op->operand[RH_HEAD_LOSS_HIT], row, 0, best == target);
	for (int64_t v = 0; v < w.rows; v++) {
		double slope = weight[0] * (exp(get(logits, 0, v) - sum) - (v == target));
		if (weight[1] != 0)
			slope += weight[1] * (op->head_loss.top ? top_slope(&buckets, v) : divergence_slope(&at, v, divergence));
		put(logits, 0, v, (double)op->head_loss.scale * slope * cap_slope(op, get(logits, 0, v)));
	}
}

/* With the row's gradient of the logits: dx = alpha * that times w, dw += alpha * that^T times x; both may be absent. */
static void matrix_gradients(struct rh_view gradient, double alpha, int64_t row, const struct rh_view m[4])
{
	struct rh_view x = m[0], w = m[1], dx = m[2], dw = m[3];
	for (int64_t i = 0; i < x.cols && dx.data; i++) {
		double sum = 0;
		for (int64_t v = 0; v < w.rows; v++)
			sum += get(gradient, 0, v) * get(w, v, i);
		put(dx, row, i, alpha * sum);
	}
	for (int64_t v = 0; v < w.rows && dw.data; v++)
		for (int64_t i = 0; i < x.cols; i++)
			put(dw, v, i, get(dw, v, i) + alpha * get(gradient, 0, v) * get(x, row, i));
}

static void oracle_head_loss(const struct rh_op *op)
{
	struct rh_view h = op->operand[RH_HEAD_LOSS_H], w = op->operand[RH_HEAD_LOSS_W], logits = op->operand[RH_HEAD_LOSS_LOGITS];
	struct rh_view dh = op->operand[RH_HEAD_LOSS_DH], dw = op->operand[RH_HEAD_LOSS_DW], dbias = op->operand[RH_HEAD_LOSS_DBIAS];
	for (int64_t row = 0; row < h.rows; row++) {
		head_loss_row(op, row);
		for (int64_t v = 0; v < w.rows && dbias.data; v++)
			put(dbias, 0, v, get(dbias, 0, v) + get(logits, 0, v));
		matrix_gradients(logits, alpha_of(op), row, (struct rh_view[]){h, w, dh, dw});
		if (op->operand[RH_HEAD_LOSS_LOW].data)
			matrix_gradients(logits, 1, row, &op->operand[RH_HEAD_LOSS_LOW]);
	}
}

/* Logits, and one more product each for dh and dw; the adapter's beside each. */
static void cost_head_loss(const struct rh_op *op, struct rh_op_cost *cost)
{
	double logits = (double)op->operand[RH_HEAD_LOSS_H].rows * (double)op->operand[RH_HEAD_LOSS_W].rows;
	int products = 1 + (op->operand[RH_HEAD_LOSS_DH].data != NULL) + (op->operand[RH_HEAD_LOSS_DW].data != NULL);
	cost->product_flops = 2 * logits * (double)op->operand[RH_HEAD_LOSS_H].cols * products;
	int more = 1 + (op->operand[RH_HEAD_LOSS_DLOW].data != NULL) + (op->operand[RH_HEAD_LOSS_DUP].data != NULL);
	cost->product_flops += 2 * logits * (double)op->operand[RH_HEAD_LOSS_LOW].cols * more;
	int distils = op->operand[RH_HEAD_LOSS_TEACHER].data != NULL;
	cost->other_flops = logits * (SPECIAL + (products > 1 ? 4 : 2) + (op->operand[RH_HEAD_LOSS_DBIAS].data != NULL));
	cost->other_flops += distils ? logits * (2 * SPECIAL + 8) : 0; /* two more softmaxes, their divergence and its slope */
	cost->other_flops += op->operand[RH_HEAD_LOSS_SHARES].data ? logits * (SPECIAL + 4) : 0; /* one, and which are the largest */
}

static int64_t head_loss_touched(const struct rh_op *op, int operand)
{
	return operand == RH_HEAD_LOSS_LOGITS ? 0 : op->operand[operand].rows; /* a chunk of workspace stays in cache */
}

const struct op_def op_head_loss = {
        .info = {"head_loss",
                 17,
                 {IN("h"), IN("w"), IN("target"), OUT("logits"), OUT("loss"), OUT("hit"), OUT_IF("dh"), ADD_TO_IF("dw"), MAYBE("bias"),
                  ADD_TO_IF("dbias"), MAYBE("teacher"), MAYBE("mix"), OUT_IF("shares"), MAYBE("low"), MAYBE("up"), OUT_IF("dlow"),
                  ADD_TO_IF("dup")}},
        .check = check_head_loss,
        .oracle = oracle_head_loss,
        .cost = cost_head_loss,
        .touched = head_loss_touched,
};
