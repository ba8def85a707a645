/* The kernels that the program has, in a list that is made before main begins (rh_cuda.h) and never changes afterwards. */
#ifndef RH_CUDA_KERNEL_LIST_H
#define RH_CUDA_KERNEL_LIST_H

struct cuda_listed_kernel {
	const void *entry;     /* by which the runtime knows it */
	const char *signature; /* of a function whose template argument `Kernel` it is, as the compiler spells it */
	struct cuda_listed_kernel *next;
};

void cuda_list_kernel(struct cuda_listed_kernel *kernel);

#endif
