#include "device/oracle_internal.h"

#include <math.h>

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

static void forward(const struct query *query)
{
	const struct rh_op *op = query->op;
	struct rh_view sink = op->operand[RH_ATTENTION_SINK];
	double largest = sink.data ? get(sink, 0, query->head) : -(double)INFINITY, o[RH_OP_MAX_HEAD_DIM] = {0};
	for (int64_t key = query->first_key; key < query->end_key; key++)
		largest = fmax(largest, score(query, key));
	double sum = sink.data ? exp(get(sink, 0, query->head) - largest) : 0;
	for (int64_t key = query->first_key; key < query->end_key; key++) {
		double p = exp(score(query, key) - largest);
		sum += p;
		for (int64_t i = 0; i < query->dim; i++)
			o[i] += p * get(op->operand[RH_ATTENTION_V], key, query->k_col + i);
	}
	for (int64_t i = 0; i < query->dim; i++)
		put(op->operand[RH_ATTENTION_O], query->row, query->q_col + i, sum > 0 ? o[i] / sum : 0);
	put(op->operand[RH_ATTENTION_LSE], query->row, query->head, sum > 0 ? log(sum) + largest : -(double)INFINITY);
}

void oracle_attention(const struct rh_op *op)
{
	each_query(op, forward);
}

static void backward_delta(const struct query *query)
{
	double delta = 0;
	for (int64_t i = 0; i < query->dim; i++)
		delta += get(query->op->operand[RH_ATTENTION_BACKWARD_DO], query->row, query->q_col + i) *
		         get(query->op->operand[RH_ATTENTION_BACKWARD_O], query->row, query->q_col + i);
	put(query->op->operand[RH_ATTENTION_BACKWARD_DELTA], query->row, query->head, delta);
}

/* p = exp(score - lse), and ds = scale p (do . v - delta): the gradient of q . k. */
static double probability(const struct query *query, int64_t key, double *ds)
{
	const struct rh_op *op = query->op;
	double p = exp(score(query, key) - get(op->operand[RH_ATTENTION_BACKWARD_LSE], query->row, query->head));
	double dp = dot(query, RH_ATTENTION_BACKWARD_DO, RH_ATTENTION_BACKWARD_V, key);
	*ds = p * (dp - get(op->operand[RH_ATTENTION_BACKWARD_DELTA], query->row, query->head)) * (double)op->attention.scale;
	return p;
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
		put(op->operand[RH_ATTENTION_BACKWARD_DK], key, kv_head * dim + c, dk[c]);
		put(op->operand[RH_ATTENTION_BACKWARD_DV], key, kv_head * dim + c, dv[c]);
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

void oracle_attention_backward(const struct rh_op *op)
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
