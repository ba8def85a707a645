/* What the programs of gpu-tools share: a device with all its memory reserved, times by its own events, results as lines of JSON. */
#ifndef RH_BENCH_GPU_BENCH_H
#define RH_BENCH_GPU_BENCH_H

#include "device/device.h"
#include "machine/machine.h"

struct bench {
	struct rh_devices devices;
	struct rh_device *device;
	char *base; /* bytes of device memory, filled with something that is no zero */
	int64_t bytes, used;
	int small; /* a rehearsal: shapes that an emulated GPU gets through */
	struct rh_event *from, *to;
};

/* `device` as the configuration names it; one device is opened. */
int bench_open(const char *device, int64_t bytes, struct bench *out) RH_MUST;
void bench_close(struct bench *bench);

/* Room for (rows, cols) on a border of 256 bytes, from what is reserved; bench->used = 0 frees everything. */
struct rh_view bench_view(struct bench *bench, enum rh_dtype dtype, int64_t rows, int64_t cols);

/* Seconds that one op takes: the median over repetitions, in each of which it is enqueued `times` times in a row. */
int bench_op(struct bench *bench, const struct rh_op *op, int times, double *seconds) RH_MUST;

/* The same of anything that enqueues on the compute stream. */
typedef int bench_enqueue(struct bench *bench, void *user);
int bench_time(struct bench *bench, bench_enqueue *enqueue, void *user, int times, double *seconds) RH_MUST;

/* One result line on stdout: {"bench": NAME, "device": ..., then the format, which begins with a quote}. */
void bench_line(const char *name, const char *format, ...) RH_PRINTF(2, 3);

/* Bytes read and written a second by the driver's own copy on the device. */
int bench_copy_bandwidth(struct bench *bench, double *bytes_per_second) RH_MUST;

/* Sizes of a layer and of the rows that go through it. */
struct bench_shape {
	int64_t tokens, hidden, heads, kv_heads, head_dim, inner, vocabulary;
};

/* A part of "gpu-tools kernels"; copy: bytes a second of bench_copy_bandwidth. */
typedef int bench_kernel(struct bench *bench, const struct bench_shape *s, double copy);
bench_kernel bench_quantise, bench_dequantise; /* narrow.c */
bench_kernel bench_repeats, bench_waits;       /* one_pass.c */

/* An op that memory binds: a line with its rate, the share of a copy's and the bar. */
int bench_by_memory(struct bench *bench, const char *name, const struct rh_op *op, double copy, double bar) RH_MUST;
/* Attention of s->tokens in documents of `length`, and its backward, on fresh views. */
int bench_attention(struct bench *bench, const struct bench_shape *s, int64_t length, struct rh_op *forward,
                    struct rh_op *backward) RH_MUST;

/* Of a mixture of experts, beside dense ones. */
int bench_grouped(struct bench *bench);

int bench_products(int argc, char **argv);
int bench_scaled(int argc, char **argv);
int bench_kernels(int argc, char **argv);
int bench_copies(int argc, char **argv);
int bench_trace(int argc, char **argv);
int bench_about(int argc, char **argv);

#endif
