/* Kernels under emulation against the oracle; and through a device, where the same tests run on a real GPU (gpu-tools ops): so a test calls
 * its kernels by kernel_check alone. */
#ifndef RH_TESTS_CUDA_KERNEL_CASE_H
#define RH_TESTS_CUDA_KERNEL_CASE_H

#include "op_case.h"

#include "cudaemu_control.h"
#include "launches.h"

struct CUstream_st;

typedef int kernel_entry(const struct rh_op *op, struct CUstream_st *stream);

#ifdef RH_ON_GPU
#include "device_case.h"

/* On a device: against the oracle, twice. Frees the case. */
static inline void kernel_check(struct op_case *c, kernel_entry *entry, uint64_t *seed)
{
	static struct device_case on;
	(void)entry, (void)seed;
	if (!on.device)
		on = device_case_open();
	device_case_check(&on, c, 0, "device");
}

#else
/* With threads in ascending, descending and random order: within tolerance of the oracle, and bit-equal among each other. Frees the case.
 */
static inline void kernel_check(struct op_case *c, kernel_entry *entry, uint64_t *seed)
{
	static const char *const labels[CUDAEMU_ORDERS] = {"ascending", "descending", "random"};
	static int registered;
	if (!registered++)
		atexit(kernel_write_launches);
	const char *fault = rh_op_fault(&c->op);
	if (fault)
		print_error("%s\n", fault);
	assert_null(fault);
	struct op_case want = case_clone(c), run[CUDAEMU_ORDERS];
	rh_op_oracle(&want.op);
	for (int order = 0; order < CUDAEMU_ORDERS; order++) {
		run[order] = case_clone(c);
		cudaemu_set_order((enum cudaemu_order)order, check_random(seed));
		check_ok(entry(&run[order].op, NULL));
		case_compare(&run[order], &want, c, labels[order]);
		for (int i = 0; i < RH_OP_OPERANDS; i++)
			if (c->buffer[i].bytes)
				assert_memory_equal(run[0].buffer[i].bytes, run[order].buffer[i].bytes, c->buffer[i].size);
	}
	for (int order = 0; order < CUDAEMU_ORDERS; order++)
		case_free(&run[order]);
	case_free(&want);
	case_free(c);
}
#endif

/* Lengths around a chunk, a warp's and a block's tiles, in both dtypes, packed and with padded rows. */
static inline void kernel_each_shape(const int *lengths, int count, void (*check)(const struct case_shape *shape, uint64_t *seed))
{
	uint64_t seed = check_seed();
	int index = 0;
	for (int i = 0; i < count; i++) {
		for (int k = 0; k < 6; k++) {
			int64_t rows = k >= 4 ? case_between(&seed, 65, 140) : case_between(&seed, 0, 9);
			int64_t pad = k & 2 ? case_between(&seed, 1, 9) : 0;
			struct case_shape shape = {k & 1 ? RH_BF16 : RH_F32, rows, lengths[i], pad, index++};
			check(&shape, &seed);
		}
	}
	cudaemu_release();
}

#endif
