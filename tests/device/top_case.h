/* A HEAD_LOSS case's teacher of the top k shares. */
#ifndef RH_TESTS_DEVICE_TOP_CASE_H
#define RH_TESTS_DEVICE_TOP_CASE_H

#include "op_case.h"

/* Of each row k of the ids, drawn and ascending, whose shares sum to less than 1; of all ids, to 1. */
static inline struct rh_view case_top_teacher(struct op_case *c, int64_t rows, int64_t outputs, int64_t pad)
{
	int64_t top = c->op.head_loss.top;
	struct rh_view teacher = case_operand(c, RH_HEAD_LOSS_TEACHER, RH_F32, rows, 2 * top, pad, FILL_NONE);
	for (int64_t r = 0; r < rows; r++) {
		double sum = 0;
		int64_t found = 0;
		for (int64_t v = 0; v < outputs; v++) {
			double weight = 0.01 + (double)(check_random(c->seed) % 1000) / 1000;
			sum += weight;
			if ((int64_t)(check_random(c->seed) % (uint64_t)(outputs - v)) >= top - found)
				continue;
			case_put(teacher, r, found, (double)v);
			case_put(teacher, r, top + found++, weight);
		}
		assert_int_equal(found, top);
		for (int64_t i = 0; i < top; i++)
			case_put(teacher, r, top + i, case_get(teacher, r, top + i) / sum);
	}
	return teacher;
}

#endif
