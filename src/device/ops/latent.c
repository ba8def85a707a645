/* Keys and values of multi-head latent attention. */
#include "device/ops/def.h"

/* Lengths of a head: of its key that of its own and what all share, of its value, and of that with its zeros. */
struct lengths {
	int64_t heads, own, shared, value, wide;
};

/* kv, shared, k, v: operands, or their gradients. */
static struct lengths lengths_of(const struct rh_op *op, int kv, int shared, int k, int v)
{
	struct lengths of = {.heads = op->latent.heads, .shared = op->operand[shared].cols, .value = op->latent.value};
	of.own = op->operand[kv].cols / of.heads - of.value;
	of.wide = op->operand[v].cols / of.heads;
	RH_ASSERT(op->operand[k].cols == of.heads * (of.own + of.shared));
	return of;
}

static void check_lengths(struct check *check, int kv, int shared, int k, int v)
{
	const struct rh_op *op = check->op;
	const int operands[] = {kv, shared, k, v};
	int64_t heads = op->latent.heads;
	for (int i = 0; i < 4; i++) {
		struct rh_view view = op->operand[operands[i]];
		require(check, is_act(view.dtype) && view.dtype == op->operand[kv].dtype && view.rows == op->operand[kv].rows,
		        "latent: operands are not all (T,.) F32 or BF16");
		require(check, heads >= 1 && (operands[i] == shared || view.cols % heads == 0),
		        "latent: an operand is not of so many heads");
	}
	if (check->fault)
		return;
	int64_t value = op->latent.value, own = op->operand[kv].cols / heads - value;
	require(check, value >= 0 && own >= 0, "latent: V is negative, or above N + V");
	require(check, op->operand[k].cols / heads == own + op->operand[shared].cols, "latent: k is not (T,heads*(N+R))");
	require(check, op->operand[v].cols / heads >= value, "latent: v is not (T,heads*W), W at least V");
}

static void check_latent(struct check *check)
{
	check_lengths(check, RH_LATENT_KV, RH_LATENT_SHARED, RH_LATENT_K, RH_LATENT_V);
}

static void oracle_latent(const struct rh_op *op)
{
	struct rh_view kv = op->operand[RH_LATENT_KV], shared = op->operand[RH_LATENT_SHARED], k = op->operand[RH_LATENT_K];
	struct lengths of = lengths_of(op, RH_LATENT_KV, RH_LATENT_SHARED, RH_LATENT_K, RH_LATENT_V);
	for (int64_t t = 0; t < kv.rows; t++)
		for (int64_t h = 0; h < of.heads; h++) {
			int64_t from = h * (of.own + of.value), to = h * (of.own + of.shared);
			for (int64_t i = 0; i < of.own; i++)
				put(k, t, to + i, get(kv, t, from + i));
			for (int64_t i = 0; i < of.shared; i++)
				put(k, t, to + of.own + i, get(shared, t, i));
			for (int64_t i = 0; i < of.wide; i++)
				put(op->operand[RH_LATENT_V], t, h * of.wide + i, i < of.value ? get(kv, t, from + of.own + i) : 0);
		}
}

const struct op_def op_latent = {
        .info = {"latent", 4, {IN("kv"), IN("shared"), OUT("k"), OUT("v")}},
        .check = check_latent,
        .oracle = oracle_latent,
};

static void check_latent_backward(struct check *check)
{
	check_lengths(check, RH_LATENT_BACKWARD_DKV, RH_LATENT_BACKWARD_DSHARED, RH_LATENT_BACKWARD_DK, RH_LATENT_BACKWARD_DV);
}

static void oracle_latent_backward(const struct rh_op *op)
{
	struct rh_view dk = op->operand[RH_LATENT_BACKWARD_DK], dv = op->operand[RH_LATENT_BACKWARD_DV];
	struct rh_view dkv = op->operand[RH_LATENT_BACKWARD_DKV];
	struct lengths of =
	        lengths_of(op, RH_LATENT_BACKWARD_DKV, RH_LATENT_BACKWARD_DSHARED, RH_LATENT_BACKWARD_DK, RH_LATENT_BACKWARD_DV);
	for (int64_t t = 0; t < dkv.rows; t++) {
		for (int64_t h = 0; h < of.heads; h++) {
			int64_t to = h * (of.own + of.value);
			for (int64_t i = 0; i < of.own; i++)
				put(dkv, t, to + i, get(dk, t, h * (of.own + of.shared) + i));
			for (int64_t i = 0; i < of.value; i++)
				put(dkv, t, to + of.own + i, get(dv, t, h * of.wide + i));
		}
		for (int64_t i = 0; i < of.shared; i++) {
			double sum = 0;
			for (int64_t h = 0; h < of.heads; h++)
				sum += get(dk, t, h * (of.own + of.shared) + of.own + i);
			put(op->operand[RH_LATENT_BACKWARD_DSHARED], t, i, sum);
		}
	}
}

const struct op_def op_latent_backward = {
        .info = {"latent_backward", 4, {IN("dk"), IN("dv"), OUT("dkv"), OUT("dshared")}},
        .check = check_latent_backward,
        .oracle = oracle_latent_backward,
        .flops = {RH_LATENT_BACKWARD_DK, 1},
};
