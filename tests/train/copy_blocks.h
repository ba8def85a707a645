#ifndef RH_TESTS_TRAIN_COPY_BLOCKS_H
#define RH_TESTS_TRAIN_COPY_BLOCKS_H

#include "check.h"

#include "session/session.h"

/* The weights of the first `blocks` blocks, which both sessions have. */
static inline void copy_blocks(const struct rh_session *from, struct rh_session *to, int blocks)
{
	for (int b = 0; b < blocks; b++)
		for (int t = 0; t < from->model->block[b].tensors; t++) {
			int64_t count = from->model->block[b].tensor[t].rows * from->model->block[b].tensor[t].cols;
			float *values = malloc((size_t)count * sizeof *values);
			assert_non_null(values);
			check_ok(rh_store_get(from->store, b, t, 0, count, values));
			check_ok(rh_store_set(to->store, b, t, 0, count, values));
			free(values);
		}
	check_ok(rh_store_settle(to->store));
}

#endif
