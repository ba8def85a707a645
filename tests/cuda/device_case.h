/* Ops through a device: operands go up, the op is launched, everything comes down. For any kind of device. */
#ifndef RH_TESTS_CUDA_DEVICE_CASE_H
#define RH_TESTS_CUDA_DEVICE_CASE_H

#include "op_case.h"

#include "cuda/device.h"

enum { CASE_DEVICE_BYTES = 16 << 20 };
#ifdef RH_ON_GPU
enum { CASE_ON_GPU = 1 };
#else
enum { CASE_ON_GPU = 0 };
#endif

struct device_case {
	struct rh_device *device;
	char *base;
};

static inline struct device_case device_case_open(void)
{
	struct device_case on;
	void *base;
	struct rh_cuda_options options = {.gpu = 0, .cap_bytes = CASE_DEVICE_BYTES};
	check_ok(rh_cuda_open(0, &options, &on.device));
	check_ok(on.device->ops->reserve(on.device, CASE_DEVICE_BYTES, &base));
	on.base = base;
	return on;
}

/* Buffers begin `skew` elements beyond a border of 256 bytes. */
static inline void device_case_run(const struct device_case *on, struct op_case *c, int64_t skew)
{
	const struct rh_device_ops *ops = on->device->ops;
	struct rh_op op = c->op;
	int64_t used = 0, at[RH_OP_OPERANDS] = {0};
	for (int i = 0; i < RH_OP_OPERANDS; i++) {
		if (!c->buffer[i].bytes)
			continue;
		at[i] = used + skew * (int64_t)case_element(c->op.operand[i].dtype);
		used = at[i] + ((int64_t)c->buffer[i].size + 255) / 256 * 256 + 256;
		used = used / 256 * 256;
		assert_true(used <= CASE_DEVICE_BYTES);
		check_ok(ops->copy_up(on->device, RH_STREAM_COMPUTE, on->base + at[i], c->buffer[i].bytes, (int64_t)c->buffer[i].size));
	}
	for (int i = 0; i < RH_OP_OPERANDS; i++)
		if (op.operand[i].data)
			op.operand[i].data =
			        on->base + at[c->buffer_of[i]] + ((char *)op.operand[i].data - c->buffer[c->buffer_of[i]].bytes);
	check_ok(ops->launch(on->device, RH_STREAM_COMPUTE, &op));
	for (int i = 0; i < RH_OP_OPERANDS; i++)
		if (c->buffer[i].bytes)
			check_ok(ops->copy_down(on->device, RH_STREAM_COMPUTE, c->buffer[i].bytes, on->base + at[i],
			                        (int64_t)c->buffer[i].size));
	check_ok(ops->synchronize(on->device));
}

/* Against the oracle, and a second run bit-equal to the first. Frees the case. */
static inline void device_case_check(const struct device_case *on, struct op_case *c, int64_t skew, const char *label)
{
	const char *fault = rh_op_fault(&c->op);
	if (fault)
		print_error("%s\n", fault);
	assert_null(fault);
	struct op_case want = case_clone(c), got = case_clone(c), again = case_clone(c);
	rh_op_oracle(&want.op);
	device_case_run(on, &got, skew);
	device_case_run(on, &again, skew);
	for (int i = 0; i < RH_OP_OPERANDS; i++)
		if (c->buffer[i].bytes)
			assert_memory_equal(got.buffer[i].bytes, again.buffer[i].bytes, c->buffer[i].size);
	if (c->op.kind == RH_OP_HEAD_LOSS) /* workspace: the oracle leaves something else there */
		memcpy(got.buffer[RH_HEAD_LOSS_LOGITS].bytes, want.buffer[RH_HEAD_LOSS_LOGITS].bytes, c->buffer[RH_HEAD_LOSS_LOGITS].size);
	case_compare(&got, &want, c, label);
	case_free(&want);
	case_free(&got);
	case_free(&again);
	case_free(c);
}

#endif
