/* The weights' half of AdamW's update: 14 bytes read an element and 4 written. */
#include "device/cpu/simd/simd.h"

enum { PIECE = 64 };

/* In place element by element alone: no order of the elements can be told from another. */
SIMD_INLINE void piece(const struct rh_op *op, int64_t at, int64_t count)
{
	const struct rh_adamw_terms t = op->adamw_weights;
	const struct rh_view *view = op->operand;
	const uint16_t *gradient = (const uint16_t *)view[RH_ADAMW_WEIGHTS_GRADIENT].data + at;
	const uint16_t *upper = (const uint16_t *)view[RH_ADAMW_WEIGHTS_UPPER].data + at;
	const uint16_t *lower = (const uint16_t *)view[RH_ADAMW_WEIGHTS_LOWER].data + at;
	const float *first = (const float *)view[RH_ADAMW_WEIGHTS_FIRST].data + at;
	const float *second = (const float *)view[RH_ADAMW_WEIGHTS_SECOND].data + at;
	uint16_t *new_upper = (uint16_t *)view[RH_ADAMW_WEIGHTS_NEW_UPPER].data + at;
	uint16_t *new_lower = (uint16_t *)view[RH_ADAMW_WEIGHTS_NEW_LOWER].data + at;
#pragma GCC ivdep
	for (int64_t i = 0; i < count; i++) {
		uint32_t bits = rh_adamw_split(&t, gradient[i], upper[i], lower[i], first[i], second[i]);
		new_upper[i] = rh_split_upper(bits);
		new_lower[i] = rh_split_lower(bits);
	}
}

/* Units are elements. */
static void weights(const struct rh_op *op, int64_t first, int64_t end)
{
	int64_t i = first;
	for (; i + PIECE <= end; i += PIECE)
		piece(op, i, PIECE);
	piece(op, i, end - i);
}

static struct cpu_span weights_span(const struct rh_op *op)
{
	return (struct cpu_span){op->operand[RH_ADAMW_WEIGHTS_GRADIENT].cols, CPU_TASK_ELEMENTS};
}

const struct cpu_op SIMD(cpu_adamw_weights) = {{{weights, weights_span}}};
