/* The kernels of one instruction set, by op. A kernel does units [first, end) of an op: what a unit is (a row, a column, a task of
 * attention) and how many there are is its file's to say. Which units run together never changes a bit. */
#ifndef RH_DEVICE_CPU_SIMD_KERNELS_H
#define RH_DEVICE_CPU_SIMD_KERNELS_H

#include "device/op.h"

enum {
	CPU_PASSES = 3,           /* a further pass starts when all of the one before is done */
	CPU_COLUMNS = 64,         /* most columns that a kernel over columns is given at once */
	CPU_TILE = 4096,          /* values of a row that DEQUANTISE takes as a unit: whole blocks of every type */
	CPU_TASK_ELEMENTS = 16384 /* of an op over rows: some microseconds */
};

typedef void cpu_kernel(const struct rh_op *op, int64_t first, int64_t end);

/* Units of a pass, and how many make a task: of the shapes alone. */
struct cpu_span {
	int64_t units, grain;
};

static inline struct cpu_span over_rows(struct rh_view view)
{
	int64_t rows = CPU_TASK_ELEMENTS / (view.cols > 0 ? view.cols : 1);
	return (struct cpu_span){view.rows, rows > 0 ? rows : 1};
}

static inline struct cpu_span over_columns(struct rh_view view)
{
	return (struct cpu_span){view.cols, CPU_COLUMNS};
}

struct cpu_op {
	struct {
		cpu_kernel *kernel;
		struct cpu_span (*span)(const struct rh_op *op); /* NULL: over the rows of operand 0 */
	} pass[CPU_PASSES];
};

struct cpu_kernels {
	const struct cpu_op *op[RH_OP_KINDS]; /* NULL: products */
};

extern const struct cpu_kernels cpu_kernels_avx512, cpu_kernels_avx2, cpu_kernels_base;

/* Attention's tasks are blocks of a document's queries (or keys) for one key head: ATTENTION_LANES pairs of position and query head, or
 * as many keys. Document d's blocks begin at slot start[d] / positions + d, so that slots are known from the shapes alone: a few stay
 * empty. */
enum { ATTENTION_LANES = 48 };

/* Query heads that share a block, and query positions in a block. */
static inline int64_t attention_block_heads(const struct rh_op *op)
{
	int64_t group = op->attention.heads / op->attention.kv_heads;
	return group < ATTENTION_LANES ? group : ATTENTION_LANES;
}

static inline int64_t attention_block_positions(const struct rh_op *op)
{
	return ATTENTION_LANES / attention_block_heads(op);
}

/* Blocks of heads that a key head's group is cut into: 1 but for groups above ATTENTION_LANES. */
static inline int64_t attention_head_blocks(const struct rh_op *op)
{
	int64_t group = op->attention.heads / op->attention.kv_heads, heads = attention_block_heads(op);
	return (group + heads - 1) / heads;
}

static inline int64_t attention_query_slots(const struct rh_op *op)
{
	return op->operand[RH_ATTENTION_Q].rows / attention_block_positions(op) + op->attention.documents;
}

static inline int64_t attention_key_slots(const struct rh_op *op)
{
	return op->operand[RH_ATTENTION_K].rows / ATTENTION_LANES + op->attention.documents;
}

static inline struct cpu_span cpu_query_blocks(const struct rh_op *op)
{
	return (struct cpu_span){attention_query_slots(op) * op->attention.kv_heads * attention_head_blocks(op), 1};
}

#endif
