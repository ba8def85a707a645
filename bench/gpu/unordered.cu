/* attention_one_pass.cu with its waits left out, for "gpu-tools kernels DEVICE waits": what their time is less, the waits cost. Its dq is a
 * race's. Linked with --wrap of the product's entry (cuda/device.mk), whose name is C++'s. */
#include "cuda/attention_walk.h"

#define attention_delta          unordered_delta
#define attention_pass           unordered_pass
#define pass_add_queries         unordered_add_queries
#define attention_one_pass       unordered_one_pass
#define rh_await(counter, value) ((void)(value))
#include "cuda/attention_one_pass.cu"
#undef attention_one_pass

extern "C" {
int bench_unordered;
int __real__Z18attention_one_passPK14attention_argsP11CUstream_st(const struct attention_args *a, CUstream_st *stream);
int __wrap__Z18attention_one_passPK14attention_argsP11CUstream_st(const struct attention_args *a, CUstream_st *stream)
{
	return bench_unordered ? unordered_one_pass(a, stream) : __real__Z18attention_one_passPK14attention_argsP11CUstream_st(a, stream);
}
}
