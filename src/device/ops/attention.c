/* ATTENTION and its gradient. */
#include "device/ops/def.h"

#include "core/philox.h"

#include <math.h>

/* The operands that forward and backward share, and their parameters. */
static void check_attention_inputs(struct check *check, const int at[5])
{
	struct rh_view q = check->op->operand[at[0]], k = check->op->operand[at[1]];
	int64_t heads = check->op->attention.heads, kv_heads = check->op->attention.kv_heads, documents = check->op->attention.documents;
	require(check, is_act(q.dtype), "attention: q is neither F32 nor BF16");
	require(check, heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0, "attention: heads are no multiple of kv_heads");
	require(check, !check->fault && q.cols % heads == 0 && q.cols / heads >= 1, "attention: q is not heads*D wide");
	if (check->fault)
		return;
	int64_t dim = q.cols / heads;
	require(check, dim <= RH_OP_MAX_HEAD_DIM, "attention: D is above 512");
	require(check, k.dtype == q.dtype && k.cols == kv_heads * dim, "attention: k is not (Tk,kv_heads*D) of q's dtype");
	shape(check, at[2], q.dtype, k.rows, k.cols, "attention: v is not shaped and typed as k");
	require(check, check->op->attention.direction == RH_ATTENTION_CAUSAL || check->op->attention.direction == RH_ATTENTION_BOTH,
	        "attention: no such direction");
	require(check, documents >= 0 && check->op->attention.window >= 0, "attention: documents or window is negative");
	require(check, check->op->attention.head_parts >= 0 && check->op->attention.row_parts >= 0, "attention: parts are negative");
	require(check, check->op->attention.longest >= 0 && check->op->attention.longest <= q.rows, "attention: longest is not in [0, Tq]");
	float p = check->op->attention.p;
	require(check, p >= 0 && p < 1, "attention: p is not in [0, 1)");
	require(check, p == 0 || (heads < 1024 && k.rows + (int64_t)check->op->attention.first_k < 1 << 24),
	        "attention: heads or keys are too many to drop some");
	shape(check, at[3], RH_I32, documents + 1, 1, "attention: start_q is not (documents+1,1) I32");
	shape(check, at[4], RH_I32, documents + 1, 1, "attention: start_k is not (documents+1,1) I32");
}

/* Pairs of query and key, of one head: half the square of a document's queries (in both directions all of it), the keys that were there
 * before them, at most a window (a window on each side). */
static double attention_pairs(const struct rh_op *op)
{
	double queries = (double)op->operand[RH_ATTENTION_Q].rows, keys = (double)op->operand[RH_ATTENTION_K].rows;
	int sides = op->attention.direction == RH_ATTENTION_BOTH ? 2 : 1;
	double seen = (double)op->attention.longest * sides / 2;
	if (op->attention.documents > 0 && keys > queries)
		seen += (keys - queries) / (double)op->attention.documents;
	if (op->attention.window > 0 && seen > (double)(sides * op->attention.window))
		seen = (double)(sides * op->attention.window);
	return queries * seen;
}

static int64_t heads_apart(const struct rh_op *op)
{
	return op->kind == RH_OP_ATTENTION_BACKWARD ? op->attention.kv_heads : op->attention.heads;
}

static int64_t parts_up(int64_t all, int64_t parts)
{
	return (all + parts - 1) / parts;
}

/* Of one head, all keys before the queries being the longest document's: pairs, and what they would be if every row had as many as those
 * that have the most. Where rows are parted, these may lie together. */
static double pairs_of_head(const struct rh_op *op, double *uneven)
{
	struct rh_op one = *op;
	one.attention.documents = op->attention.documents > 0;
	double queries = (double)op->operand[RH_ATTENTION_Q].rows, keys = (double)op->operand[RH_ATTENTION_K].rows,
	       longest = (double)op->attention.longest, window = op->attention.window > 0 ? (double)op->attention.window : HUGE_VAL;
	if (op->attention.direction == RH_ATTENTION_BOTH)
		window *= 2;
	*uneven = queries * fmin(window, longest + fmax(keys - queries, 0));
	if (op->kind == RH_OP_ATTENTION_BACKWARD)
		*uneven = fmax(*uneven, keys * fmin(window, longest));
	return attention_pairs(&one);
}

void rh_attention_split(struct rh_op *op, double most_flops)
{
	int64_t heads = heads_apart(op), products = op->kind == RH_OP_ATTENTION_BACKWARD ? 5 : 2;
	double uneven, pairs = pairs_of_head(op, &uneven), most = most_flops / (double)(2 * products * op->operand[RH_ATTENTION_Q].cols);
	op->attention.head_parts = op->attention.row_parts = 1;
	if (most_flops <= 0 || pairs <= most)
		return;
	int64_t together = (int64_t)(most * (double)heads / pairs);
	op->attention.head_parts = together ? parts_up(heads, together) : heads;
	op->attention.row_parts = together ? 1 : (int64_t)ceil(uneven / (most * (double)heads));
}

double rh_op_launch_share(const struct rh_op *op)
{
	int is_attention = op->kind == RH_OP_ATTENTION || op->kind == RH_OP_ATTENTION_BACKWARD;
	if (op->kind == RH_OP_HEAD_LOSS && op->operand[RH_HEAD_LOSS_H].rows > op->operand[RH_HEAD_LOSS_LOGITS].rows)
		return (double)op->operand[RH_HEAD_LOSS_LOGITS].rows / (double)op->operand[RH_HEAD_LOSS_H].rows;
	if (!is_attention)
		return 1;
	int64_t heads = heads_apart(op), of_heads = op->attention.head_parts, of_rows = op->attention.row_parts;
	double share = of_heads > 1 ? (double)parts_up(heads, of_heads) / (double)heads : 1;
	double uneven, pairs = pairs_of_head(op, &uneven);
	return of_rows > 1 && pairs > 0 ? share * fmin(uneven / pairs / (double)of_rows, 1) : share;
}

static void attention_cost(const struct rh_op *op, double products, struct rh_op_cost *cost)
{
	double pairs = attention_pairs(op);
	cost->product_flops = products * 2 * pairs * (double)op->operand[RH_ATTENTION_Q].cols;
	double drops = op->attention.p > 0 ? 40 : 0; /* a quarter of a block of Philox, and what it decides */
	cost->other_flops = pairs * (double)op->attention.heads * (SPECIAL + 4 + drops);
}

/* Rows of one document. */
struct document {
	int64_t q0, lq, k0, lk;
};

/* One query row of one head, and the keys of its document that it sees: rows [first_key, end_key) of k and v. */
struct query {
	const struct rh_op *op;
	int64_t row, head, first_key, end_key, dim;
	int64_t q_col, k_col; /* where its head begins */
};

/* The operands q, k, v, start_q and start_k have the same numbers in both ops. */
static struct document document_at(const struct rh_op *op, int64_t d)
{
	struct rh_view start_q = op->operand[RH_ATTENTION_START_Q], start_k = op->operand[RH_ATTENTION_START_K];
	int64_t q0 = get_index(start_q, d), k0 = get_index(start_k, d);
	return (struct document){q0, get_index(start_q, d + 1) - q0, k0, get_index(start_k, d + 1) - k0};
}

static struct query query_at(const struct rh_op *op, const struct document *document, int64_t i, int64_t head)
{
	int64_t window = op->attention.window, dim = op->operand[RH_ATTENTION_Q].cols / op->attention.heads;
	int64_t end = i + document->lk - document->lq + 1, first = window > 0 ? end - window : 0;
	if (op->attention.direction == RH_ATTENTION_BOTH)
		end = window > 0 && end - 1 + window < document->lk ? end - 1 + window : document->lk;
	end = end < 0 ? 0 : end;
	first = first < 0 ? 0 : first;
	int64_t kv_head = head / (op->attention.heads / op->attention.kv_heads);
	return (struct query){op, document->q0 + i, head, document->k0 + first, document->k0 + end, dim, head * dim, kv_head * dim};
}

static void each_query(const struct rh_op *op, void (*visit)(const struct query *query))
{
	for (int64_t d = 0; d < op->attention.documents; d++) {
		struct document document = document_at(op, d);
		for (int64_t i = 0; i < document.lq; i++) {
			for (int64_t h = 0; h < op->attention.heads; h++) {
				struct query query = query_at(op, &document, i, h);
				visit(&query);
			}
		}
	}
}

/* A head's part of a row of q, o, do (queries) times one of k, v (keys). */
static double dot(const struct query *query, int of_query, int of_key, int64_t key)
{
	double sum = 0;
	for (int64_t i = 0; i < query->dim; i++)
		sum += get(query->op->operand[of_query], query->row, query->q_col + i) *
		       get(query->op->operand[of_key], key, query->k_col + i);
	return sum;
}

static double score(const struct query *query, int64_t key)
{
	return dot(query, RH_ATTENTION_Q, RH_ATTENTION_K, key) * (double)query->op->attention.scale;
}

/* What a probability is multiplied with: 0, or 1 / (1 - p). */
static double kept(const struct query *query, int64_t key)
{
	const struct rh_op *op = query->op;
	double p = (double)op->attention.p;
	if (p == 0)
		return 1;
	uint32_t at = op->attention.first_k + (uint32_t)key, head = (uint32_t)query->head << 22;
	struct rh_philox_block block =
	        rh_philox(rh_attention_drop_key(op->attention.seed, op->attention.site), head | at / 4,
	                  op->attention.first_q + (uint32_t)query->row, op->attention.micro_batch, op->attention.step);
	return rh_philox_unit(block.word[at % 4]) >= op->attention.p ? 1 / (1 - p) : 0;
}

static void forward(const struct query *query)
{
	const struct rh_op *op = query->op;
	struct rh_view sink = op->operand[RH_ATTENTION_SINK];
	double largest = sink.data ? get(sink, 0, query->head) : -(double)INFINITY, o[RH_OP_MAX_HEAD_DIM] = {0};
	for (int64_t key = query->first_key; key < query->end_key; key++)
		largest = fmax(largest, score(query, key));
	double sum = sink.data ? exp(get(sink, 0, query->head) - largest) : 0;
	for (int64_t key = query->first_key; key < query->end_key; key++) {
		double p = exp(score(query, key) - largest), drop = kept(query, key);
		sum += p;
		for (int64_t i = 0; i < query->dim; i++)
			o[i] += p * drop * get(op->operand[RH_ATTENTION_V], key, query->k_col + i);
	}
	for (int64_t i = 0; i < query->dim; i++)
		put(op->operand[RH_ATTENTION_O], query->row, query->q_col + i, sum > 0 ? o[i] / sum : 0);
	put(op->operand[RH_ATTENTION_LSE], query->row, query->head, sum > 0 ? log(sum) + largest : -(double)INFINITY);
}

static void check_attention(struct check *check)
{
	struct rh_view q = check->op->operand[RH_ATTENTION_Q];
	check_attention_inputs(check,
	                       (const int[]){RH_ATTENTION_Q, RH_ATTENTION_K, RH_ATTENTION_V, RH_ATTENTION_START_Q, RH_ATTENTION_START_K});
	shape(check, RH_ATTENTION_O, q.dtype, q.rows, q.cols, "attention: o is not shaped and typed as q");
	shape(check, RH_ATTENTION_LSE, RH_F32, q.rows, check->op->attention.heads, "attention: lse is not (Tq,heads) F32");
	shape(check, RH_ATTENTION_SINK, q.dtype, 1, check->op->attention.heads, "attention: sink is not (1,heads) of q's dtype");
	shape(check, RH_ATTENTION_AMAX, RH_F32, q.rows, check->op->attention.heads, "attention: amax is not (Tq,heads) F32");
	require(check, !check->op->operand[RH_ATTENTION_AMAX].data || q.cols <= RH_AMAX_HEAD_DIM * check->op->attention.heads,
	        "attention: amax of heads of more than 256");
}

static void oracle_attention(const struct rh_op *op)
{
	each_query(op, forward);
}

/* q k^T and p v. */
static void cost_attention(const struct rh_op *op, struct rh_op_cost *cost)
{
	attention_cost(op, 2, cost);
}

static void amax_attention(const struct rh_op *op)
{
	struct rh_view o = op->operand[RH_ATTENTION_O], start = op->operand[RH_ATTENTION_START_Q];
	for (int64_t d = 0; d < op->attention.documents; d++)
		ops_amax_rows(o, get_index(start, d), get_index(start, d + 1), o.cols / op->attention.heads,
		              op->operand[RH_ATTENTION_AMAX]);
}

const struct op_def op_attention = {
        .info = {"attention",
                 9,
                 {IN("q"), IN("k"), IN("v"), IN("start_q"), IN("start_k"), OUT("o"), OUT("lse"), MAYBE("sink"), AMAX_IF("amax")}},
        .check = check_attention,
        .oracle = oracle_attention,
        .cost = cost_attention,
        .amax = amax_attention,
};

static void backward_delta(const struct query *query)
{
	double delta = 0;
	for (int64_t i = 0; i < query->dim; i++)
		delta += get(query->op->operand[RH_ATTENTION_BACKWARD_DO], query->row, query->q_col + i) *
		         get(query->op->operand[RH_ATTENTION_BACKWARD_O], query->row, query->q_col + i);
	put(query->op->operand[RH_ATTENTION_BACKWARD_DELTA], query->row, query->head, delta);
}

/* p = exp(score - lse), and ds = scale p (drop do . v - delta): the gradient of q . k. Returns p drop, by which v is weighed. */
static double probability(const struct query *query, int64_t key, double *ds)
{
	const struct rh_op *op = query->op;
	double p = exp(score(query, key) - get(op->operand[RH_ATTENTION_BACKWARD_LSE], query->row, query->head));
	double drop = kept(query, key), dp = drop * dot(query, RH_ATTENTION_BACKWARD_DO, RH_ATTENTION_BACKWARD_V, key);
	*ds = p * (dp - get(op->operand[RH_ATTENTION_BACKWARD_DELTA], query->row, query->head)) * (double)op->attention.scale;
	return p * drop;
}

static void backward_dq(const struct query *query)
{
	const struct rh_op *op = query->op;
	double dq[RH_OP_MAX_HEAD_DIM] = {0}, ds;
	for (int64_t key = query->first_key; key < query->end_key; key++) {
		probability(query, key, &ds);
		for (int64_t i = 0; i < query->dim; i++)
			dq[i] += ds * get(op->operand[RH_ATTENTION_BACKWARD_K], key, query->k_col + i);
	}
	for (int64_t i = 0; i < query->dim; i++)
		put(op->operand[RH_ATTENTION_BACKWARD_DQ], query->row, query->q_col + i, dq[i]);
}

/* A gradient of key row `key`: where there are sums it is added to them, and written only if the key is one of the queries'. */
static void put_key(const struct rh_op *op, const struct document *document, int sums, int to, int64_t key, int64_t col, double value)
{
	struct rh_view sum = op->operand[sums];
	int64_t row = key;
	if (sum.data) {
		RH_ASSERT(document->lk >= document->lq);
		value += get(sum, key, col);
		put(sum, key, col, value);
		row = key - document->k0 - (document->lk - document->lq) + document->q0;
	}
	if (!sum.data || row >= document->q0)
		put(op->operand[to], row, col, value);
}

/* Key row `key` of one key head: over all queries that see it, of all heads that read that head. */
static void backward_dk_dv(const struct rh_op *op, const struct document *document, int64_t kv_head, int64_t key)
{
	int64_t group = op->attention.heads / op->attention.kv_heads, dim = op->operand[RH_ATTENTION_BACKWARD_Q].cols / op->attention.heads;
	double dk[RH_OP_MAX_HEAD_DIM] = {0}, dv[RH_OP_MAX_HEAD_DIM] = {0}, ds;
	for (int64_t i = 0; i < document->lq; i++) {
		for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
			struct query query = query_at(op, document, i, h);
			if (key < query.first_key || key >= query.end_key)
				continue;
			double p = probability(&query, key, &ds);
			for (int64_t c = 0; c < dim; c++) {
				dk[c] += ds * get(op->operand[RH_ATTENTION_BACKWARD_Q], query.row, query.q_col + c);
				dv[c] += p * get(op->operand[RH_ATTENTION_BACKWARD_DO], query.row, query.q_col + c);
			}
		}
	}
	for (int64_t c = 0; c < dim; c++) {
		put_key(op, document, RH_ATTENTION_BACKWARD_DK_SUM, RH_ATTENTION_BACKWARD_DK, key, kv_head * dim + c, dk[c]);
		put_key(op, document, RH_ATTENTION_BACKWARD_DV_SUM, RH_ATTENTION_BACKWARD_DV, key, kv_head * dim + c, dv[c]);
	}
}

/* A sink is a key whose value is 0: its dp is 0, its ds -p delta. */
static void backward_dsink(const struct rh_op *op, int64_t head)
{
	struct rh_view dsink = op->operand[RH_ATTENTION_BACKWARD_DSINK], start = op->operand[RH_ATTENTION_START_Q];
	double sum = 0, sink = get(op->operand[RH_ATTENTION_BACKWARD_SINK], 0, head);
	for (int64_t row = get_index(start, 0); row < get_index(start, op->attention.documents); row++)
		sum -= exp(sink - get(op->operand[RH_ATTENTION_BACKWARD_LSE], row, head)) *
		       get(op->operand[RH_ATTENTION_BACKWARD_DELTA], row, head);
	put(dsink, 0, head, get(dsink, 0, head) + sum);
}

static void check_attention_backward(struct check *check)
{
	const struct rh_view *view = check->op->operand;
	struct rh_view q = view[RH_ATTENTION_BACKWARD_Q], k = view[RH_ATTENTION_BACKWARD_K];
	struct rh_view dk_sum = view[RH_ATTENTION_BACKWARD_DK_SUM];
	int64_t heads = check->op->attention.heads, key_rows = dk_sum.data ? q.rows : k.rows;
	check_attention_inputs(check, (const int[]){RH_ATTENTION_BACKWARD_Q, RH_ATTENTION_BACKWARD_K, RH_ATTENTION_BACKWARD_V,
	                                            RH_ATTENTION_BACKWARD_START_Q, RH_ATTENTION_BACKWARD_START_K});
	shape(check, RH_ATTENTION_BACKWARD_O, q.dtype, q.rows, q.cols, "attention_backward: o is not shaped and typed as q");
	shape(check, RH_ATTENTION_BACKWARD_LSE, RH_F32, q.rows, heads, "attention_backward: lse is not (Tq,heads) F32");
	shape(check, RH_ATTENTION_BACKWARD_DO, q.dtype, q.rows, q.cols, "attention_backward: do is not shaped and typed as q");
	shape(check, RH_ATTENTION_BACKWARD_DELTA, RH_F32, q.rows, heads, "attention_backward: delta is not (Tq,heads) F32");
	shape(check, RH_ATTENTION_BACKWARD_DQ, q.dtype, q.rows, q.cols, "attention_backward: dq is not shaped and typed as q");
	shape(check, RH_ATTENTION_BACKWARD_DK, q.dtype, key_rows, k.cols, "attention_backward: dk is not shaped and typed as k");
	shape(check, RH_ATTENTION_BACKWARD_DV, q.dtype, key_rows, k.cols, "attention_backward: dv is not shaped and typed as v");
	require(check, !dk_sum.data == !view[RH_ATTENTION_BACKWARD_DV_SUM].data, "attention_backward: there is one of dk_sum and dv_sum");
	shape(check, RH_ATTENTION_BACKWARD_DK_SUM, RH_F32, k.rows, k.cols, "attention_backward: dk_sum is not F32, shaped as k");
	shape(check, RH_ATTENTION_BACKWARD_DV_SUM, RH_F32, k.rows, k.cols, "attention_backward: dv_sum is not F32, shaped as v");
	shape(check, RH_ATTENTION_BACKWARD_SINK, q.dtype, 1, heads, "attention_backward: sink is not (1,heads) of q's dtype");
	shape(check, RH_ATTENTION_BACKWARD_DSINK, RH_F32, 1, heads, "attention_backward: dsink is not (1,heads) F32");
	struct rh_view space = view[RH_ATTENTION_BACKWARD_SPACE];
	if (!space.data || check->fault)
		return;
	int64_t rows = rh_attention_space_rows(q.rows, check->op->attention.documents, q.cols / heads);
	require(check, space.dtype == RH_F32 && space.rows >= rows && space.cols == q.cols,
	        "attention_backward: space is not (rh_attention_space_rows,heads*D) F32");
}

static void oracle_attention_backward(const struct rh_op *op)
{
	each_query(op, backward_delta);
	each_query(op, backward_dq);
	for (int64_t d = 0; d < op->attention.documents; d++) {
		struct document document = document_at(op, d);
		for (int64_t key = document.k0; key < document.k0 + document.lk; key++)
			for (int64_t kv_head = 0; kv_head < op->attention.kv_heads; kv_head++)
				backward_dk_dv(op, &document, kv_head, key);
	}
	if (op->operand[RH_ATTENTION_BACKWARD_SINK].data && op->operand[RH_ATTENTION_BACKWARD_DSINK].data)
		for (int64_t head = 0; head < op->attention.heads; head++)
			backward_dsink(op, head);
}

/* q k^T once more, do v^T, and one for each gradient. */
static void cost_attention_backward(const struct rh_op *op, struct rh_op_cost *cost)
{
	attention_cost(op, 5, cost);
}

const struct op_def op_attention_backward = {
        .info = {"attention_backward",
                 17,
                 {IN("q"), IN("k"), IN("v"), IN("start_q"), IN("start_k"), IN("o"), IN("lse"), IN("do"), OUT("delta"), OUT("dq"), OUT("dk"),
                  OUT("dv"), MAYBE("sink"), ADD_TO_IF("dsink"), SPACE_IF("space"), ADD_TO_IF("dk_sum"), ADD_TO_IF("dv_sum")}},
        .check = check_attention_backward,
        .oracle = oracle_attention_backward,
        .cost = cost_attention_backward,
};
