/* An op with operands of its own in host memory, to be run by the oracle and by the CPU kernels and compared. */
#ifndef RH_TESTS_DEVICE_OP_CASE_H
#define RH_TESTS_DEVICE_OP_CASE_H

#include "check.h"

#include "core/float16.h"
#include "core/pool.h"
#include "device/cpu/kernels.h"
#include "device/op.h"

#include <math.h>
#include <string.h>

struct op_case {
	struct rh_op op;
	uint64_t *seed; /* of what is random in its operands */
	struct {
		char *bytes;
		size_t size;
	} buffer[RH_OP_OPERANDS];
	int buffer_of[RH_OP_OPERANDS]; /* aliases share one */
	double tolerance[RH_OP_OPERANDS];
	int exact; /* outputs are the oracle's to the last bit */
};

/* What an op's tests go through: dtypes, lengths, rows apart. */
struct case_shape {
	enum rh_dtype dtype;
	int64_t rows, cols, pad;
	int index; /* of all shapes: picks optionals and aliases */
};

enum op_fill { FILL_RANDOM, FILL_POISON, FILL_NONE };

static inline size_t case_element(enum rh_dtype dtype)
{
	return dtype == RH_BF16 || dtype == RH_I16 ? 2 : dtype == RH_F32 || dtype == RH_I32 ? 4 : 1;
}

/* Single values that case_get and case_put know. */
static inline int case_is_plain(enum rh_dtype dtype)
{
	return dtype == RH_F32 || dtype == RH_BF16 || dtype == RH_I32;
}

static inline double case_get(struct rh_view view, int64_t row, int64_t col)
{
	int64_t at = row * view.stride + col;
	if (view.dtype == RH_E4M3 || view.dtype == RH_E5M2) /* codes, to be compared */
		return ((uint8_t *)view.data)[at];
	if (view.dtype == RH_I16)
		return ((int16_t *)view.data)[at];
	if (view.dtype == RH_I32)
		return ((int32_t *)view.data)[at];
	return (double)(view.dtype == RH_F32 ? ((float *)view.data)[at] : rh_bf16_to_f32(((uint16_t *)view.data)[at]));
}

static inline void case_put(struct rh_view view, int64_t row, int64_t col, double value)
{
	int64_t at = row * view.stride + col;
	if (view.dtype == RH_I32)
		((int32_t *)view.data)[at] = (int32_t)value;
	else if (view.dtype == RH_F32)
		((float *)view.data)[at] = (float)value;
	else
		((uint16_t *)view.data)[at] = rh_f32_to_bf16((float)value);
}

/* Operand i becomes (rows, cols) with rows `pad` elements apart; what lies between rows is a pattern that must stay. Bytes and blocks are
 * filled with random bytes. */
static inline struct rh_view case_operand(struct op_case *c, int i, enum rh_dtype dtype, int64_t rows, int64_t cols, int64_t pad,
                                          enum op_fill fill)
{
	struct rh_view view = {NULL, dtype, rows, cols, cols + pad};
	c->buffer[i].size = (size_t)rh_dtype_bytes(dtype, rows * view.stride) + case_element(dtype);
	c->buffer[i].bytes = malloc(c->buffer[i].size);
	assert_non_null(c->buffer[i].bytes);
	memset(c->buffer[i].bytes, 0xA5, c->buffer[i].size);
	view.data = c->buffer[i].bytes;
	for (size_t at = 0; !case_is_plain(dtype) && fill == FILL_RANDOM && at < c->buffer[i].size; at++)
		c->buffer[i].bytes[at] = (char)(check_random(c->seed) >> 7);
	for (int64_t r = 0; case_is_plain(dtype) && r < rows && fill != FILL_NONE; r++)
		for (int64_t k = 0; k < cols; k++)
			case_put(view, r, k, fill == FILL_POISON ? (double)NAN : (double)check_uniform(c->seed));
	c->buffer_of[i] = i;
	return c->op.operand[i] = view;
}

/* Operand becomes a copy of another case's. */
static inline void case_take(struct op_case *to, int operand, const struct op_case *from, int source)
{
	struct rh_view view = from->op.operand[source];
	case_operand(to, operand, view.dtype, view.rows, view.cols, view.stride - view.cols, FILL_NONE);
	memcpy(to->buffer[operand].bytes, from->buffer[source].bytes, from->buffer[source].size);
}

static inline void case_alias(struct op_case *c, int i, int same_as)
{
	c->op.operand[i] = c->op.operand[same_as];
	c->buffer_of[i] = same_as;
}

static inline struct op_case case_clone(const struct op_case *c)
{
	struct op_case copy = *c;
	for (int i = 0; i < RH_OP_OPERANDS; i++) {
		if (c->buffer[i].bytes) {
			copy.buffer[i].bytes = malloc(c->buffer[i].size);
			assert_non_null(copy.buffer[i].bytes);
			memcpy(copy.buffer[i].bytes, c->buffer[i].bytes, c->buffer[i].size);
		}
		if (c->op.operand[i].data) {
			int64_t offset = (char *)c->op.operand[i].data - c->buffer[c->buffer_of[i]].bytes;
			copy.op.operand[i].data = (char *)offset; /* made an address below, when all buffers are there */
		}
	}
	for (int i = 0; i < RH_OP_OPERANDS; i++)
		if (c->op.operand[i].data)
			copy.op.operand[i].data = copy.buffer[c->buffer_of[i]].bytes + (intptr_t)copy.op.operand[i].data;
	return copy;
}

static inline void case_free(struct op_case *c)
{
	for (int i = 0; i < RH_OP_OPERANDS; i++)
		free(c->buffer[i].bytes);
}

/* An input whose buffer an output shares. */
static inline int case_overwritten(const struct op_case *c, int input)
{
	const struct rh_op_info *info = rh_op_info(c->op.kind);
	for (int i = 0; i < info->operands; i++)
		if (info->operand[i].access != RH_ACCESS_IN && c->op.operand[i].data && c->buffer_of[i] == c->buffer_of[input])
			return 1;
	return 0;
}

/* Every amax is that of the outputs as they are, to the last bit. */
static inline void case_compare_amax(const struct op_case *got, const char *label)
{
	const struct rh_op_info *info = rh_op_info(got->op.kind);
	struct op_case want = case_clone(got);
	rh_op_amax(&want.op);
	for (int i = 0; i < info->operands; i++) {
		if (!info->operand[i].is_amax || !got->op.operand[i].data)
			continue;
		if (memcmp(got->buffer[i].bytes, want.buffer[i].bytes, got->buffer[i].size) != 0)
			print_error("%s %s: %s is not of its output\n", info->name, label, info->operand[i].name);
		assert_memory_equal(got->buffer[i].bytes, want.buffer[i].bytes, got->buffer[i].size);
	}
	case_free(&want);
}

/* Every element is within tolerance[i] + relative * |oracle|, the latter one unit of the dtype: a value near the middle of two may round
 * to either. Absolute tolerances are the caller's, from the length of its sums. Bytes between rows are untouched,
 * and so are inputs. */
static inline void case_compare(const struct op_case *got, const struct op_case *want, const struct op_case *before, const char *label)
{
	const struct rh_op_info *info = rh_op_info(got->op.kind);
	case_compare_amax(got, label);
	for (int i = 0; i < info->operands; i++) {
		if (info->operand[i].access == RH_ACCESS_NONE) /* workspace: each leaves something else there */
			continue;
		if (info->operand[i].access == RH_ACCESS_IN) {
			if (!case_overwritten(got, i) && got->buffer[i].bytes)
				assert_memory_equal(got->buffer[i].bytes, before->buffer[i].bytes, before->buffer[i].size);
			continue;
		}
		struct rh_view g = got->op.operand[i], w = want->op.operand[i], b = before->op.operand[i];
		int is_amax = info->operand[i].is_amax; /* of the very outputs: case_compare_amax */
		double relative = got->exact ? 0 : g.dtype == RH_BF16 ? 0x1p-7 : 0x1p-20;
		for (int64_t r = 0; g.data && r < g.rows; r++) {
			for (int64_t k = 0; k < g.cols && !is_amax; k++) {
				double x = case_get(g, r, k), y = case_get(w, r, k);
				int zeros_differ = got->exact && signbit(x) != signbit(y) && !isnan(x);
				if ((x == y && !zeros_differ) || (isnan(x) && isnan(y)) ||
				    (x != y && fabs(x - y) <= got->tolerance[i] + relative * fabs(y)))
					continue;
				print_error("%s %s: %s[%d][%d] is %.9g, oracle %.9g\n", info->name, label, info->operand[i].name, (int)r,
				            (int)k, x, y);
				fail();
			}
			size_t size = case_element(g.dtype), gap = (size_t)(r * g.stride + g.cols) * size;
			size_t length = (size_t)(g.stride - g.cols + (r == g.rows - 1)) * size;
			if (memcmp((char *)g.data + gap, (char *)b.data + gap, length) != 0) {
				print_error("%s %s: %s was written beyond row %d\n", info->name, label, info->operand[i].name, (int)r);
				fail();
			}
		}
	}
}

static inline void case_run(struct op_case *c, enum rh_cpu_isa isa, int threads)
{
	struct cpu_context context = {.isa = isa};
	check_ok(rh_pool_create(threads, &context.pool));
	check_ok(cpu_run(&context, &c->op));
	rh_pool_destroy(context.pool);
}

/* The kernels of each instruction set against the oracle, and 2, 4 and 8 threads bit-equal to one. Frees the case. */
static inline void case_check(struct op_case *c)
{
	const char *fault = rh_op_fault(&c->op);
	if (fault)
		print_error("%s\n", fault);
	assert_null(fault);
	struct op_case want = case_clone(c);
	rh_op_oracle(&want.op);
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa <= rh_cpu_best_isa(); isa++) {
		struct op_case one = case_clone(c);
		char label[64];
		snprintf(label, sizeof label, "%s", rh_cpu_isa_name(isa));
		case_run(&one, isa, 1);
		case_compare(&one, &want, c, label);
		for (int threads = 2; threads <= 8; threads *= 2) {
			struct op_case many = case_clone(c);
			case_run(&many, isa, threads);
			for (int i = 0; i < RH_OP_OPERANDS; i++)
				if (c->buffer[i].bytes)
					assert_memory_equal(one.buffer[i].bytes, many.buffer[i].bytes, c->buffer[i].size);
			case_free(&many);
		}
		case_free(&one);
	}
	case_free(&want);
	case_free(c);
}

static inline int64_t case_between(uint64_t *seed, int64_t low, int64_t high)
{
	return low + check_random(seed) % (high - low + 1);
}

#endif
