#include "device/ops/def.h"

static void check_work(struct check *check)
{
	require(check, check->op->work.seconds >= 0 && check->op->work.product_flops >= 0 && check->op->work.bytes >= 0,
	        "work: a cost is negative");
}

static void oracle_work(const struct rh_op *op)
{
	(void)op;
}

static void cost_work(const struct rh_op *op, struct rh_op_cost *cost)
{
	cost->product_flops = op->work.product_flops;
	cost->bytes = op->work.bytes;
}

const struct op_def op_work = {.info = {.name = "work"}, .check = check_work, .oracle = oracle_work, .cost = cost_work};
