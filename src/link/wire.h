/* The form of activations and their gradients on the wire: unchanged, or coded in place before they are sent and decoded in place when
 * they have arrived. Rows of `cols` values, one a token. */
#ifndef RH_LINK_WIRE_H
#define RH_LINK_WIRE_H

#include "core/dtype.h"
#include "model/emit.h"
#include "schedule/boundary.h"

#include <stdint.h>

/* INT8: a row's values in steps of its largest one's 127th part, rounded up or down at random so that the mean is exact; then the step in
 * fp32. A row with a value that is not finite comes out as NaNs. */
enum rh_wire { RH_WIRE_AS_IS, RH_WIRE_BF16, RH_WIRE_INT8 };

/* Selects the random numbers for rounding: each message has its own, the same in every run. */
struct rh_wire_draw {
	uint64_t seed;
	uint32_t box, step, micro_batch, kind;
};

/* Bytes of rows on the wire; never more than in memory (cols >= 4). */
int64_t rh_wire_bytes(enum rh_wire wire, enum rh_dtype dtype, int64_t rows, int64_t cols);
/* `memory` holds rows of dtype; afterwards it begins with their coded bytes. */
void rh_wire_code(enum rh_wire wire, enum rh_dtype dtype, int64_t rows, int64_t cols, const struct rh_wire_draw *draw, void *memory);
/* The reverse; coding loses precision. */
void rh_wire_decode(enum rh_wire wire, enum rh_dtype dtype, int64_t rows, int64_t cols, void *memory);

/* The tag of a boundary's message: the same at both ends, whatever their layers' numbers. */
uint64_t rh_wire_tag(enum rh_boundary_kind kind, int64_t step, int64_t micro_batch);

/* The message of a boundary, whose buffer is as long as rh_boundary_shape says: its values, coded, and right behind them its load as
 * it is. */
struct rh_wire_boundary {
	const struct rh_model *model;
	enum rh_wire wire;
	int layer;
	int64_t tokens;
};
int64_t rh_wire_boundary_bytes(const struct rh_wire_boundary *boundary);
void rh_wire_boundary_code(const struct rh_wire_boundary *boundary, const struct rh_wire_draw *draw, char *buffer);
void rh_wire_boundary_decode(const struct rh_wire_boundary *boundary, char *buffer);

#endif
