/* Mixtures of experts: the choice of experts, and the rows on their way to them and back. */
#include "device/ops/def.h"

#include <math.h>

/* index, place: (T,k) I32; logits (T,E). */
static void check_choice(struct check *check, struct rh_view logits, int index, int weight)
{
	struct rh_view chosen = check->op->operand[index];
	enum rh_router_softmax over = check->op->router.softmax;
	require(check, is_act(logits.dtype), "router: the logits are neither F32 nor BF16");
	require(check, logits.cols <= RH_ROUTER_MAX_EXPERTS, "router: too many experts");
	require(check, chosen.dtype == RH_I32 && chosen.rows == logits.rows, "router: index is not (T,k) I32");
	require(check, chosen.cols >= 1 && chosen.cols <= logits.cols && chosen.cols <= RH_ROUTER_MAX_TOP,
	        "router: k is not in 1..E, or too large");
	shape(check, weight, RH_F32, chosen.rows, chosen.cols, "router: weight is not (T,k) F32");
	require(check, over == RH_ROUTER_OVER_ALL || over == RH_ROUTER_OVER_CHOSEN, "router: no such softmax");
	int64_t groups = check->op->router.groups, best = check->op->router.best_groups;
	if (groups <= 1)
		return;
	require(check, check->op->router.sigmoid, "router: groups without sigmoids");
	require(check, groups <= RH_ROUTER_MAX_GROUPS && logits.cols % groups == 0 && logits.cols / groups >= 2,
	        "router: groups are too many, or not of equal sizes of at least 2");
	require(check, best >= 1 && best <= groups && chosen.cols <= best * (logits.cols / groups), "router: too few groups for k experts");
}

/* (1,E) act, or absent. */
static void check_scale(struct check *check, int operand, int64_t experts)
{
	struct rh_view scale = check->op->operand[operand];
	require(check, !scale.data || (is_act(scale.dtype) && scale.rows == 1 && scale.cols == experts),
	        "router: scale is not (1,E) F32 or BF16");
}

/* e^(logit - largest) of the experts that share the softmax, 0 of others; or their sigmoids. */
struct shares {
	double term[RH_ROUTER_MAX_EXPERTS], sum;
};

static double sigmoid(double logit)
{
	return 1 / (1 + exp(-logit));
}

static struct rh_op over_all(const struct rh_op *op)
{
	struct rh_op all = *op;
	all.router.softmax = RH_ROUTER_OVER_ALL;
	return all;
}

static double or_last(double value)
{
	return isnan(value) ? -(double)INFINITY : value;
}

/* Experts of groups that take no part come last. */
static void leave_groups(const struct rh_op *op, int64_t experts, double *rank)
{
	int64_t groups = op->router.groups, size = groups > 1 ? experts / groups : 0;
	double sum[RH_ROUTER_MAX_GROUPS];
	for (int64_t g = 0; size && g < groups; g++) {
		double first = -(double)INFINITY, second = first;
		for (int64_t e = g * size; e < (g + 1) * size; e++) {
			second = fmax(second, fmin(first, rank[e]));
			first = fmax(first, rank[e]);
		}
		sum[g] = first + second;
	}
	for (int64_t g = 0; size && g < groups; g++) {
		int64_t before = 0;
		for (int64_t other = 0; other < groups; other++)
			before += sum[other] > sum[g] || (sum[other] == sum[g] && other < g);
		for (int64_t e = g * size; before >= op->router.best_groups && e < (g + 1) * size; e++)
			rank[e] = -(double)INFINITY;
	}
}

/* What the choice is by. Sigmoids are rounded to fp32 before their biases are added, as everywhere: sums of small and large ones are often
 * equal. */
static void rank_experts(const struct rh_op *op, int64_t t, double *rank)
{
	struct rh_view logits = op->operand[RH_ROUTER_LOGITS], bias = op->operand[RH_ROUTER_BIAS];
	for (int64_t e = 0; e < logits.cols; e++) {
		float more = 0;
		for (int64_t p = 0; bias.data && p < bias.rows; p++)
			more += (float)get(bias, p, e);
		double logit = get(logits, t, e);
		rank[e] = or_last(op->router.sigmoid ? (double)((float)sigmoid(logit) + more) : logit);
	}
	leave_groups(op, logits.cols, rank);
}

static struct shares shares_of(const struct rh_op *op, struct rh_view logits, struct rh_view index, int64_t t)
{
	struct shares shares = {.sum = 0};
	double largest = get(logits, t, (int64_t)get(index, t, 0));
	for (int64_t e = 0; e < logits.cols; e++) {
		int counts = op->router.softmax == RH_ROUTER_OVER_ALL;
		for (int64_t j = 0; j < index.cols; j++)
			counts |= (int64_t)get(index, t, j) == e;
		shares.term[e] = counts ? exp(get(logits, t, e) - largest) : 0;
		if (counts && op->router.sigmoid)
			shares.term[e] = sigmoid(get(logits, t, e));
		shares.sum += shares.term[e];
	}
	if (op->router.sigmoid)
		shares.sum = op->router.softmax == RH_ROUTER_OVER_ALL ? 1 : shares.sum + (double)RH_ROUTER_EPSILON;
	return shares;
}

static void check_router(struct check *check)
{
	struct rh_view logits = check->op->operand[RH_ROUTER_LOGITS];
	check_choice(check, logits, RH_ROUTER_INDEX, RH_ROUTER_WEIGHT);
	shape(check, RH_ROUTER_LOAD, RH_F32, logits.rows, 2 * logits.cols, "router: load is not (T,2E) F32");
	check_scale(check, RH_ROUTER_SCALE, logits.cols);
	struct rh_view bias = check->op->operand[RH_ROUTER_BIAS];
	int sigmoid = check->op->router.sigmoid;
	require(check, !bias.data || (sigmoid && is_act(bias.dtype) && bias.rows >= 1 && bias.cols == logits.cols),
	        "router: bias is not (p,E) F32 or BF16, or there are no sigmoids");
	require(check, !sigmoid || !check->op->operand[RH_ROUTER_LOAD].data, "router: a load of sigmoids");
}

/* A row of it. */
static void put_load(const struct rh_op *op, int64_t t)
{
	struct rh_view logits = op->operand[RH_ROUTER_LOGITS], index = op->operand[RH_ROUTER_INDEX], load = op->operand[RH_ROUTER_LOAD];
	const struct rh_op all = over_all(op);
	struct shares shares = shares_of(&all, logits, index, t);
	for (int64_t e = 0; e < logits.cols; e++) {
		put(load, t, e, 0);
		put(load, t, logits.cols + e, shares.term[e] / shares.sum);
	}
	for (int64_t j = 0; j < index.cols; j++)
		put(load, t, (int64_t)get(index, t, j), 1);
}

static void oracle_router(const struct rh_op *op)
{
	struct rh_view logits = op->operand[RH_ROUTER_LOGITS], index = op->operand[RH_ROUTER_INDEX], weight = op->operand[RH_ROUTER_WEIGHT];
	struct rh_view scale = op->operand[RH_ROUTER_SCALE];
	double factor = op->router.factor == 0 ? 1 : (double)op->router.factor, rank[RH_ROUTER_MAX_EXPERTS];
	for (int64_t t = 0; t < logits.rows; t++) {
		char taken[RH_ROUTER_MAX_EXPERTS] = {0};
		rank_experts(op, t, rank);
		for (int64_t j = 0; j < index.cols; j++) {
			int64_t best = -1;
			for (int64_t e = 0; e < logits.cols; e++)
				if (!taken[e] && (best < 0 || rank[e] > rank[best]))
					best = e;
			taken[best] = 1;
			put(index, t, j, (double)best);
		}
		struct shares shares = shares_of(op, logits, index, t);
		for (int64_t j = 0; j < index.cols; j++) {
			int64_t e = (int64_t)get(index, t, j);
			put(weight, t, j, shares.term[e] / shares.sum * factor * (scale.data ? get(scale, 0, e) : 1));
		}
		if (op->operand[RH_ROUTER_LOAD].data)
			put_load(op, t);
	}
}

/* k rounds of comparisons, and a softmax. */
static void cost_router(const struct rh_op *op, struct rh_op_cost *cost)
{
	cost->other_flops = area(op->operand[RH_ROUTER_LOGITS]) * (double)(op->operand[RH_ROUTER_INDEX].cols + SPECIAL + 2);
}

const struct op_def op_router = {
        .info = {"router", 6, {IN("logits"), OUT("index"), OUT("weight"), OUT_IF("load"), MAYBE("scale"), MAYBE("bias")}},
        .check = check_router,
        .oracle = oracle_router,
        .cost = cost_router,
};

/* Operand (T,k) I32 with T*k = rows. */
static void check_pairs(struct check *check, int operand, int64_t rows, const char *fault)
{
	struct rh_view pairs = check->op->operand[operand];
	int64_t count = 0;
	require(check, pairs.dtype == RH_I32 && pairs.cols >= 1, fault);
	require(check, !__builtin_mul_overflow(pairs.rows, pairs.cols, &count) && count <= RH_MOE_MAX_PAIRS && count == rows, fault);
}

static void check_router_backward(struct check *check)
{
	struct rh_view logits = check->op->operand[RH_ROUTER_BACKWARD_LOGITS], index = check->op->operand[RH_ROUTER_BACKWARD_INDEX];
	struct rh_view dlogits = check->op->operand[RH_ROUTER_BACKWARD_DLOGITS];
	check_choice(check, logits, RH_ROUTER_BACKWARD_INDEX, RH_ROUTER_BACKWARD_WEIGHT);
	struct rh_view dot = check->op->operand[RH_ROUTER_BACKWARD_DOT];
	check_pairs(check, RH_ROUTER_BACKWARD_PLACE, dot.rows, "router_backward: place is not (T,k) I32, or dot has not T*k rows");
	shape(check, RH_ROUTER_BACKWARD_PLACE, RH_I32, index.rows, index.cols, "router_backward: place and index differ in size");
	shape(check, RH_ROUTER_BACKWARD_DOT, RH_F32, dot.rows, 1, "router_backward: dot is not (T*k,1) F32");
	shape(check, RH_ROUTER_BACKWARD_MORE, RH_F32, logits.rows, logits.cols, "router_backward: more is not (T,E) F32");
	shape(check, RH_ROUTER_BACKWARD_COUNT, RH_F32, 1, logits.cols, "router_backward: count is not (1,E) F32");
	require(check, is_act(dlogits.dtype) && dlogits.rows == logits.rows && dlogits.cols == logits.cols,
	        "router_backward: dlogits are not (T,E) F32 or BF16");
	check_scale(check, RH_ROUTER_BACKWARD_SCALE, logits.cols);
	shape(check, RH_ROUTER_BACKWARD_DSCALE, RH_F32, logits.rows, logits.cols, "router_backward: dscale is not (T,E) F32");
	require(check, !check->op->operand[RH_ROUTER_BACKWARD_DSCALE].data || check->op->operand[RH_ROUTER_BACKWARD_SCALE].data,
	        "router_backward: there is a dscale, but no scale");
	require(check, !check->op->router.sigmoid || !check->op->operand[RH_ROUTER_BACKWARD_COUNT].data,
	        "router_backward: a count of sigmoids");
}

/* The same of a softmax over all, of which each element's gradient is `balance` times its count. */
static double balance_of(const struct rh_op *op, const struct shares *all, int64_t e)
{
	struct rh_view count = op->operand[RH_ROUTER_BACKWARD_COUNT];
	double mean = 0;
	for (int64_t other = 0; other < count.cols; other++)
		mean += all->term[other] / all->sum * get(count, 0, other);
	return (double)op->router.balance * all->term[e] / all->sum * (get(count, 0, e) - mean);
}

/* The gradient of expert e's logit. p: its share; g: the gradient of that share, 0 where it was not chosen. Of a softmax it is p g less p
 * times the sum of all p g. Of sigmoids it is that, times 1 - s of its sigmoid s; where these are not divided by their sum, nothing is
 * subtracted. */
static double logit_gradient(const struct rh_op *op, const struct shares *shares, double through, double sum, double logit, int64_t e)
{
	double share = shares->term[e] / shares->sum;
	if (!op->router.sigmoid)
		return through - share * sum;
	return sigmoid(-logit) * (op->router.softmax == RH_ROUTER_OVER_ALL ? through : through - share * sum);
}

static void oracle_router_backward(const struct rh_op *op)
{
	struct rh_view logits = op->operand[RH_ROUTER_BACKWARD_LOGITS], index = op->operand[RH_ROUTER_BACKWARD_INDEX];
	struct rh_view weight = op->operand[RH_ROUTER_BACKWARD_WEIGHT], place = op->operand[RH_ROUTER_BACKWARD_PLACE];
	struct rh_view dot = op->operand[RH_ROUTER_BACKWARD_DOT], more = op->operand[RH_ROUTER_BACKWARD_MORE];
	struct rh_view dlogits = op->operand[RH_ROUTER_BACKWARD_DLOGITS], count = op->operand[RH_ROUTER_BACKWARD_COUNT];
	struct rh_view scale = op->operand[RH_ROUTER_BACKWARD_SCALE], dscale = op->operand[RH_ROUTER_BACKWARD_DSCALE];
	const struct rh_op all = over_all(op);
	for (int64_t t = 0; t < logits.rows; t++) {
		struct shares shares = shares_of(op, logits, index, t), balanced = shares_of(&all, logits, index, t);
		double through[RH_ROUTER_MAX_EXPERTS] = {0}, sum = 0;
		for (int64_t j = 0; j < index.cols; j++) {
			int64_t e = (int64_t)get(index, t, j);
			through[e] = get(dot, (int64_t)get(place, t, j), 0);
			through[e] += more.data ? get(weight, t, j) * get(more, t, e) : 0;
			sum += through[e];
		}
		for (int64_t e = 0; e < logits.cols; e++)
			put(dlogits, t, e,
			    logit_gradient(op, &shares, through[e], sum, get(logits, t, e), e) +
			            (count.data ? balance_of(op, &balanced, e) : 0));
		for (int64_t e = 0; e < logits.cols && dscale.data; e++)
			put(dscale, t, e, get(scale, 0, e) == 0 ? 0 : through[e] / get(scale, 0, e));
	}
}

const struct op_def op_router_backward = {
        .info = {"router_backward",
                 10,
                 {IN("logits"), IN("index"), IN("weight"), IN("place"), IN("dot"), MAYBE("more"), MAYBE("count"), OUT("dlogits"),
                  MAYBE("scale"), OUT_IF("dscale")}},
        .check = check_router_backward,
        .oracle = oracle_router_backward,
        .flops = {RH_ROUTER_BACKWARD_LOGITS, SPECIAL + 4},
};

static void check_permute(struct check *check)
{
	struct rh_view index = check->op->operand[RH_PERMUTE_INDEX], x = check->op->operand[RH_PERMUTE_X];
	struct rh_view start = check->op->operand[RH_PERMUTE_START], y = check->op->operand[RH_PERMUTE_Y];
	require(check, is_act(x.dtype), "permute: x is neither F32 nor BF16");
	require(check, y.dtype == x.dtype && y.cols == x.cols, "permute: y is not (T*k,c) of x's dtype");
	check_pairs(check, RH_PERMUTE_INDEX, y.rows, "permute: index is not (T,k) I32, or y has not T*k rows");
	require(check, index.rows == x.rows, "permute: rows of index and x differ");
	require(check, start.dtype == RH_I32 && start.cols == 1 && start.rows >= 2 && start.rows <= RH_ROUTER_MAX_EXPERTS + 1,
	        "permute: start is not (E+1,1) I32, or there are too many experts");
	shape(check, RH_PERMUTE_PLACE, RH_I32, index.rows, index.cols, "permute: place is not (T,k) I32");
}

static void oracle_permute(const struct rh_op *op)
{
	struct rh_view index = op->operand[RH_PERMUTE_INDEX], x = op->operand[RH_PERMUTE_X], start = op->operand[RH_PERMUTE_START];
	struct rh_view place = op->operand[RH_PERMUTE_PLACE], y = op->operand[RH_PERMUTE_Y];
	int64_t next = 0;
	for (int64_t e = 0; e < start.rows - 1; e++) {
		put(start, e, 0, (double)next);
		for (int64_t t = 0; t < index.rows; t++) {
			for (int64_t j = 0; j < index.cols; j++) {
				if ((int64_t)get(index, t, j) != e)
					continue;
				put(place, t, j, (double)next);
				for (int64_t c = 0; c < x.cols; c++)
					put(y, next, c, get(x, t, c));
				next++;
			}
		}
	}
	put(start, start.rows - 1, 0, (double)next);
	RH_ASSERT(next == y.rows);
}

const struct op_def op_permute = {
        .info = {"permute", 5, {IN("index"), IN("x"), OUT("start"), OUT("place"), OUT("y")}},
        .check = check_permute,
        .oracle = oracle_permute,
};

static void check_unpermute(struct check *check)
{
	struct rh_view x = check->op->operand[RH_UNPERMUTE_X], place = check->op->operand[RH_UNPERMUTE_PLACE];
	require(check, is_act(x.dtype), "unpermute: x is neither F32 nor BF16");
	check_pairs(check, RH_UNPERMUTE_PLACE, x.rows, "unpermute: place is not (T,k) I32, or x has not T*k rows");
	shape(check, RH_UNPERMUTE_WEIGHT, RH_F32, place.rows, place.cols, "unpermute: weight is not (T,k) F32");
	shape(check, RH_UNPERMUTE_ADD, x.dtype, place.rows, x.cols, "unpermute: add is not (T,c) of x's dtype");
	shape(check, RH_UNPERMUTE_Y, x.dtype, place.rows, x.cols, "unpermute: y is not (T,c) of x's dtype");
}

static void oracle_unpermute(const struct rh_op *op)
{
	struct rh_view x = op->operand[RH_UNPERMUTE_X], place = op->operand[RH_UNPERMUTE_PLACE], weight = op->operand[RH_UNPERMUTE_WEIGHT];
	struct rh_view add = op->operand[RH_UNPERMUTE_ADD], y = op->operand[RH_UNPERMUTE_Y];
	for (int64_t t = 0; t < y.rows; t++) {
		for (int64_t c = 0; c < y.cols; c++) {
			double sum = add.data ? get(add, t, c) : 0;
			for (int64_t j = 0; j < place.cols; j++)
				sum += (weight.data ? get(weight, t, j) : 1) * get(x, (int64_t)get(place, t, j), c);
			put(y, t, c, sum);
		}
	}
}

const struct op_def op_unpermute = {
        .info = {"unpermute", 5, {IN("x"), IN("place"), MAYBE("weight"), MAYBE("add"), OUT("y")}},
        .in_place = {{RH_UNPERMUTE_Y, RH_UNPERMUTE_ADD}},
        .check = check_unpermute,
        .oracle = oracle_unpermute,
        .flops = {RH_UNPERMUTE_X, 2},
};

static void check_unpermute_backward(struct check *check)
{
	struct rh_view place = check->op->operand[RH_UNPERMUTE_BACKWARD_PLACE], dx = check->op->operand[RH_UNPERMUTE_BACKWARD_DX];
	require(check, is_act(dx.dtype), "unpermute_backward: dx is neither F32 nor BF16");
	check_pairs(check, RH_UNPERMUTE_BACKWARD_PLACE, dx.rows, "unpermute_backward: place is not (T,k) I32, or dx has not T*k rows");
	shape(check, RH_UNPERMUTE_BACKWARD_WEIGHT, RH_F32, place.rows, place.cols, "unpermute_backward: weight is not (T,k) F32");
	shape(check, RH_UNPERMUTE_BACKWARD_DY, dx.dtype, place.rows, dx.cols, "unpermute_backward: dy is not (T,c) of dx's dtype");
}

static void oracle_unpermute_backward(const struct rh_op *op)
{
	struct rh_view dy = op->operand[RH_UNPERMUTE_BACKWARD_DY], place = op->operand[RH_UNPERMUTE_BACKWARD_PLACE];
	struct rh_view weight = op->operand[RH_UNPERMUTE_BACKWARD_WEIGHT], dx = op->operand[RH_UNPERMUTE_BACKWARD_DX];
	for (int64_t t = 0; t < dy.rows; t++)
		for (int64_t j = 0; j < place.cols; j++)
			for (int64_t c = 0; c < dy.cols; c++)
				put(dx, (int64_t)get(place, t, j), c, get(weight, t, j) * get(dy, t, c));
}

const struct op_def op_unpermute_backward = {
        .info = {"unpermute_backward", 4, {IN("dy"), IN("place"), IN("weight"), OUT("dx")}},
        .check = check_unpermute_backward,
        .oracle = oracle_unpermute_backward,
        .flops = {RH_UNPERMUTE_BACKWARD_DX, 1},
};
