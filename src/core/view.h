/* A tensor seen as a matrix: rows of `cols` elements, `stride` elements from one row to the next.
 * Views own nothing; the buffer behind `data` outlives them. Device addresses are never dereferenced on the host. */
#ifndef RH_CORE_VIEW_H
#define RH_CORE_VIEW_H

#include "core/dtype.h"

struct rh_view {
	void *data; /* NULL: the operand is absent */
	enum rh_dtype dtype;
	int64_t rows, cols, stride;
};

static inline struct rh_view rh_view_of(void *data, enum rh_dtype dtype, int64_t rows, int64_t cols)
{
	return (struct rh_view){data, dtype, rows, cols, cols};
}

static inline int64_t rh_view_bytes(struct rh_view view)
{
	return rh_dtype_bytes(view.dtype, view.rows * view.cols);
}

/* Whether two views are of the same memory, alike. */
static inline int rh_view_is(struct rh_view a, struct rh_view b)
{
	return a.data && a.data == b.data && a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols && a.stride == b.stride;
}

/* Whether every row begins on 16 bytes; also of an absent view. */
static inline int rh_view_on_16(struct rh_view view)
{
	return !view.data || ((uintptr_t)view.data % 16 == 0 && rh_dtype_bytes(view.dtype, view.stride) % 16 == 0);
}

/* Columns [first, first+count) of every row. Plain dtypes only. */
static inline struct rh_view rh_view_cols(struct rh_view view, int64_t first, int64_t count)
{
	if (view.data)
		view.data = (char *)view.data + rh_dtype_bytes(view.dtype, first);
	view.cols = count;
	return view;
}

/* Rows [first, first+count). */
static inline struct rh_view rh_view_rows(struct rh_view view, int64_t first, int64_t count)
{
	if (view.data)
		view.data = (char *)view.data + rh_dtype_bytes(view.dtype, first * view.stride);
	view.rows = count;
	return view;
}

#endif
