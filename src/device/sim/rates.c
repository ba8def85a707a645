/* Duration of an op: the longer of its arithmetic and its memory traffic, plus a launch. */
#include "device/sim/sim.h"

#include <math.h>
#include <string.h>

enum rh_product rh_sim_op_product(const struct rh_op *op)
{
	const struct rh_op_info *info = rh_op_info(op->kind);
	if (op->kind == RH_OP_SCALED_GEMM)
		return op->scaled_gemm.chunk ? RH_PRODUCT_F16_F16 : RH_PRODUCT_F8;
	if (op->kind == RH_OP_DELTA || op->kind == RH_OP_DELTA_BACKWARD) /* whatever its operands: no tensor cores */
		return RH_PRODUCT_F32;
	for (int i = 0; i < info->operands; i++) /* integers, tables and sums do not decide the product's type */
		if (op->operand[i].data && op->operand[i].dtype == RH_BF16)
			return RH_PRODUCT_BF16;
	return RH_PRODUCT_F32;
}

enum rh_gemm_form rh_sim_op_form(const struct rh_op *op)
{
	switch (op->kind) {
	case RH_OP_GEMM:
		return op->gemm.trans_a ? op->gemm.trans_b ? RH_GEMM_TT : RH_GEMM_TN : op->gemm.trans_b ? RH_GEMM_NT : RH_GEMM_NN;
	case RH_OP_GROUPED_GEMM_GRADIENT:
	case RH_OP_LORA_A_GRADIENT:
	case RH_OP_LORA_B_GRADIENT:
		return RH_GEMM_TN;
	case RH_OP_LORA_LOW:
	case RH_OP_LORA_PART:
		return RH_GEMM_NT;
	case RH_OP_LORA_LOW_GRADIENT:
	case RH_OP_LORA_INPUT_GRADIENT:
		return RH_GEMM_NN;
	default:
		return RH_GEMM_ANY;
	}
}

static double lora_ranks(const struct rh_op *op)
{
	double ranks = 0;
	for (int i = RH_LORA_LOWS; i < RH_LORA_MATRICES; i++)
		ranks += op->operand[i].data ? (double)op->operand[i].cols : 0;
	return ranks;
}

/* Of the document, alone and whole, whose queries would see as many keys as these do: half of the longest's and those before them. */
static double attention_length(const struct rh_op *op)
{
	double before = (double)(op->operand[RH_ATTENTION_K].rows - op->operand[RH_ATTENTION_Q].rows);
	return (double)op->attention.longest +
	       (before > 0 && op->attention.documents > 0 ? 2 * before / (double)op->attention.documents : 0);
}

/* Lengths of the op's product. */
static void shape_of(const struct rh_op *op, double *m, double *n, double *k)
{
	const struct rh_view *view = op->operand;
	*m = (double)view[0].rows;
	*n = *k = (double)view[0].cols;
	switch (op->kind) {
	case RH_OP_GEMM:
		*m = (double)view[RH_GEMM_D].rows;
		*n = (double)view[RH_GEMM_D].cols;
		*k = (double)(op->gemm.trans_a ? view[RH_GEMM_A].rows : view[RH_GEMM_A].cols);
		break;
	case RH_OP_SCALED_GEMM:
		*m = (double)view[RH_SCALED_GEMM_D].rows;
		*n = (double)view[RH_SCALED_GEMM_D].cols;
		*k = (double)(op->scaled_gemm.trans_a ? view[RH_SCALED_GEMM_A].rows : view[RH_SCALED_GEMM_A].cols);
		break;
	case RH_OP_HEAD_LOSS:
		*m = (double)view[RH_HEAD_LOSS_LOGITS].rows;
		*n = (double)view[RH_HEAD_LOSS_W].rows;
		*k = (double)view[RH_HEAD_LOSS_H].cols;
		break;
	case RH_OP_ATTENTION:
	case RH_OP_ATTENTION_BACKWARD:
		*n = attention_length(op);
		*k = *k / (double)(op->attention.heads > 0 ? op->attention.heads : 1);
		break;
	case RH_OP_GROUPED_GEMM: {
		double experts = (double)view[RH_GROUPED_GEMM_START].rows - 1;
		*m = (double)view[RH_GROUPED_GEMM_A].rows / fmax(experts, 1);
		*n = (double)view[RH_GROUPED_GEMM_D].cols;
		*k = (double)view[RH_GROUPED_GEMM_A].cols;
		break;
	}
	case RH_OP_GROUPED_GEMM_GRADIENT: {
		double experts = (double)view[RH_GROUPED_GEMM_GRADIENT_START].rows - 1;
		*m = (double)view[RH_GROUPED_GEMM_GRADIENT_A].cols;
		*n = (double)view[RH_GROUPED_GEMM_GRADIENT_B].cols;
		*k = (double)view[RH_GROUPED_GEMM_GRADIENT_A].rows / fmax(experts, 1);
		break;
	}
	case RH_OP_LORA_LOW:
	case RH_OP_LORA_LOW_GRADIENT:
		*n = lora_ranks(op);
		break;
	case RH_OP_LORA_PART:
	case RH_OP_LORA_INPUT_GRADIENT:
		*k = lora_ranks(op);
		break;
	case RH_OP_LORA_A_GRADIENT:
	case RH_OP_LORA_B_GRADIENT:
		*k = *m;
		*m = lora_ranks(op);
		break;
	default:
		break;
	}
	*m = fmax(*m, 1);
	*n = fmax(*n, 1);
	*k = fmax(*k, 1);
}

static double over(double amount, double rate)
{
	return rate > 0 ? amount / rate : 0;
}

/* What the rate of a kind depends on: short operands stay in a cache, and a row has a fixed cost. */
double rh_sim_op_size(const struct rh_op *op)
{
	switch (op->kind) {
	case RH_OP_ATTENTION:
	case RH_OP_ATTENTION_BACKWARD:
		return attention_length(op);
	case RH_OP_HEAD_LOSS:
		return (double)op->operand[RH_HEAD_LOSS_LOGITS].rows;
	case RH_OP_RMSNORM:
		return (double)op->operand[RH_RMSNORM_W].cols;
	case RH_OP_RMSNORM_BACKWARD:
		return (double)op->operand[RH_RMSNORM_BACKWARD_W].cols;
	case RH_OP_FILL:
	case RH_OP_CAST:
		return (double)op->operand[0].rows * (double)op->operand[0].cols;
	default:
		return 1;
	}
}

/* The variant with weight gradients also reads and writes their sums, so it has a rate of its own. */
const char *rh_sim_rate_name(enum rh_op_kind kind, int with_weights)
{
	if (!with_weights)
		return rh_op_info(kind)->name;
	return kind == RH_OP_HEAD_LOSS ? "head_loss_dw" : kind == RH_OP_RMSNORM_BACKWARD ? "rmsnorm_backward_dw" : NULL;
}

int rh_sim_op_has_weight_gradient(const struct rh_op *op)
{
	return (op->kind == RH_OP_HEAD_LOSS && op->operand[RH_HEAD_LOSS_DW].data) ||
	       (op->kind == RH_OP_RMSNORM_BACKWARD && op->operand[RH_RMSNORM_BACKWARD_DW].data);
}

/* Of a fused op whose parts were measured, as on a CPU, which runs them: the sum of theirs. `seconds` is below 0 once a part was not. */
struct parts_time {
	const struct rh_hardware_device *device;
	double share, seconds;
};

static int add_part(void *user, const struct rh_op *part)
{
	struct parts_time *time = user;
	double flops_per_s, bytes_per_s;
	int measured =
	        part->kind == RH_OP_GEMM || rh_hardware_op_rates(time->device, rh_sim_rate_name(part->kind, 0), rh_sim_op_product(part),
	                                                         rh_sim_op_size(part), &flops_per_s, &bytes_per_s);
	time->seconds = measured && time->seconds >= 0 ? time->seconds + rh_sim_op_seconds(time->device, part, time->share) : -1;
	return 0;
}

static double parts_seconds(const struct rh_hardware_device *device, const struct rh_op *op, double share)
{
	struct parts_time time = {device, share, 0};
	return rh_op_is_fused(op->kind) && rh_op_parts(op, add_part, &time) == 0 ? time.seconds : -1;
}

double rh_sim_op_seconds(const struct rh_hardware_device *device, const struct rh_op *op, double share)
{
	struct rh_op_cost cost = rh_op_cost(op);
	enum rh_product product = rh_sim_op_product(op);
	double flops_per_s, bytes_per_s, size = rh_sim_op_size(op);
	int known = 0;
	for (int with_weights = rh_sim_op_has_weight_gradient(op); !known && with_weights >= 0; with_weights--)
		known = rh_hardware_op_rates(device, rh_sim_rate_name(op->kind, with_weights), product, size, &flops_per_s, &bytes_per_s);
	if (known)
		return device->launch_s +
		       fmax(over(cost.product_flops + cost.other_flops, flops_per_s), over(cost.bytes, bytes_per_s)) / share;
	double parts = device->on_host_cores ? parts_seconds(device, op, share) : -1;
	if (parts >= 0)
		return parts;
	double arithmetic = over(cost.other_flops, device->other_flops_per_s);
	if (cost.product_flops > 0) {
		struct rh_gemm_shape shape = {.product = product, .form = rh_sim_op_form(op)};
		shape_of(op, &shape.m, &shape.n, &shape.k);
		arithmetic += over(cost.product_flops, rh_hardware_peak(device, product) * rh_hardware_gemm_fraction(device, shape));
	}
	return device->launch_s + fmax(arithmetic, over(cost.bytes, device->memory_bytes_per_s)) / share;
}
