/* A machine as `plan` and simulated devices see it: effective rates, and the source of each section. One YAML file:
 *
 *   name: rtx4090x8
 *   source: RoundPipe's box (arXiv 2604.27085), vendor data sheets
 *   devices: 8                       # all alike
 *   devices_most: 8                  # so many that --gpus may ask for; unset: devices
 *   device:
 *     name: NVIDIA GeForce RTX 4090
 *     memory: 24GiB
 *     reserved: 600MiB               # context and libraries: not to be had
 *     on_host_cores: 0               # 1: computes on the host's cores (CPU devices), which the optimizer needs too
 *     one_core: 0                    # of these: the share of the rates that one core reaches alone; 0: no more than its part
 *     halves: 0                      # what two halves of them reach in sum, each with work of its own; 0: 1, as the whole
 *     peaks: {bf16: 165.2e12, f16_f16: 330.3e12, f32: 82.6e12}
 *     gemm: [{product: bf16, form: nt, m: 8192, n: 4096, k: 4096, fraction: 0.86}]
 *     ops: [{op: attention_backward, product: bf16, size: 2048, flops_per_s: 110e12}]
 *     other_flops_per_s: 40e12
 *     memory_bytes_per_s: 920e9
 *     launch_s: 4e-6
 *     source: data sheet; fractions measured with bench/gpu
 *   link: {up_bytes_per_s: 25e9, down_bytes_per_s: 26e9, both_bytes_per_s: 44e9, latency_s: 10e-6, source: ...}
 *   switch: {devices: 2, up_bytes_per_s: 25e9, ...}      # PCIe switch (or host bridge) that so many devices share
 *   host: {ram: 800GiB, dram_bytes_per_s: 150e9, cores: 28, optimizer: {plain: 90e9, split: 90e9, split8: 40e9}, source: ...}
 *   nvme: {bytes: 2TB, read_bytes_per_s: 6.8e9, write_bytes_per_s: 4e9, mixed_bytes_per_s: 5e9, source: ...}
 *
 * A rate that is absent or 0 limits nothing (an idealised machine); a peak that is absent cannot be planned with. */
#ifndef RH_CONFIG_HARDWARE_H
#define RH_CONFIG_HARDWARE_H

#include "config/optim.h"
#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

/* Dtype of a product's operands, and of its sums. */
enum rh_product {
	RH_PRODUCT_F32,     /* "f32": fp32 in fp32, no TF32 */
	RH_PRODUCT_BF16,    /* "bf16": in fp32 */
	RH_PRODUCT_F16,     /* "f16": in fp32 */
	RH_PRODUCT_F16_F16, /* "f16_f16": in fp16 */
	RH_PRODUCT_F8,      /* "f8": in fp32 */
	RH_PRODUCTS
};
const char *rh_product_name(enum rh_product product);

/* Which operands are transposed. Their strides differ, and so does the product's speed. */
enum rh_gemm_form {
	RH_GEMM_ANY, /* not given */
	RH_GEMM_NN,  /* "nn": none, as a linear's dx = dy w */
	RH_GEMM_NT,  /* "nt": b, as its y = x w^T */
	RH_GEMM_TN,  /* "tn": a, as its dw += dy^T x, into sums */
	RH_GEMM_TT,  /* "tt": both */
	RH_GEMM_FORMS
};
const char *rh_gemm_form_name(enum rh_gemm_form form); /* "" of any */

/* A measured product d (m,n) = a (m,k) b (k,n), and the share of the peak that it reached. */
struct rh_hardware_gemm {
	enum rh_product product;
	enum rh_gemm_form form;
	int64_t m, n, k;
	double fraction;
};

/* Rates of one kind of op that the device's general rates do not describe: it takes launch_s + the longer of (product and other FLOPs) /
 * flops_per_s and bytes / bytes_per_s; 0 limits nothing. Its name is that of device/op.c's table; of head_loss and rmsnorm_backward that
 * make weights' gradients too it has _dw behind it (where there is none of these, the other counts). */
struct rh_hardware_op {
	char *op;
	enum rh_product product; /* the operands that it was measured with */
	int64_t size; /* of what was measured, where it decides: of attention the longest document, of head_loss the rows of a chunk, of rmsnorm
	               * the numbers in a norm, of fill and cast all of them; 0: any */
	double flops_per_s, bytes_per_s;
};

/* Bytes per second in one direction alone, and the sum of both while both are busy. */
struct rh_hardware_link {
	double up_bytes_per_s, down_bytes_per_s, both_bytes_per_s;
	double latency_s; /* of a copy, before its first byte; of a link alone */
	int64_t devices;  /* of a switch alone: devices that share it; 0: no switch */
	char *source;
};

struct rh_hardware_device {
	char *name, *source;
	int64_t memory, reserved; /* bytes; memory 0: the host's */
	int64_t on_host_cores;
	double one_core, halves;
	double peak[RH_PRODUCTS]; /* FLOP/s; 0: not given */
	struct rh_hardware_gemm *gemm;
	size_t gemms, gemm_capacity;
	struct rh_hardware_op *op;
	size_t ops, op_capacity;
	double other_flops_per_s, memory_bytes_per_s, launch_s;
};

struct rh_hardware_host {
	int64_t ram; /* bytes */
	double dram_bytes_per_s;
	int64_t cores;
	double optimizer_bytes_per_s[RH_LAYOUTS]; /* memory moved by an update, all cores at work */
	char *source;
};

struct rh_hardware_nvme {
	int64_t bytes;                                                 /* 0: none */
	double read_bytes_per_s, write_bytes_per_s, mixed_bytes_per_s; /* mixed: in sum, both at once */
	char *source;
};

/* All strings are owned, NULL where absent. */
struct rh_hardware {
	char *name, *source;
	int64_t devices, devices_most; /* devices_most: that --gpus may ask for; 0: devices */
	struct rh_hardware_device device;
	struct rh_hardware_link link, pcie_switch; /* "switch" in the file */
	struct rh_hardware_host host;
	struct rh_hardware_nvme nvme;
};

/* -EINVAL with file, line and what is wrong. *out is freed with rh_hardware_free. */
int rh_hardware_parse(const char *bytes, size_t length, const char *path, struct rh_hardware *out) RH_MUST;
int rh_hardware_read(const char *path, struct rh_hardware *out) RH_MUST;
/* By name: a path where it has a slash or ends in .yaml; else NAME.yaml in the user's own profiles (rh_hardware_user_dir), then in
 * examples/hardware or share/roundhouse/hardware beside the program; else that of examples/hardware when the program was built. -ENOENT
 * names those that are there. */
int rh_hardware_find(const char *name, struct rh_hardware *out) RH_MUST;
/* This machine: the profile "local" that `doctor --save` wrote; where there is none, *assumed is 1 and the rates are guesses by the number
 * of cores. */
int rh_hardware_local(int cores, int64_t ram_bytes, struct rh_hardware *out, int *assumed) RH_MUST;
void rh_hardware_free(struct rh_hardware *hardware);

/* Where `doctor --save NAME` puts NAME.yaml: $XDG_CONFIG_HOME/roundhouse/hardware, or ~/.config/roundhouse/hardware. A fresh string
 * (rh_free), NULL without a home or memory. */
char *rh_hardware_user_dir(void) RH_MUST;

/* As YAML that rh_hardware_parse reads back. */
struct rh_text;
int rh_hardware_print(const struct rh_hardware *hardware, struct rh_text *out) RH_MUST;

/* FLOP/s of products at most. Where a profile has none for sums in fp16, they are no faster than those in fp32: GPUs for data centres. 0:
 * it cannot be computed there. */
double rh_hardware_peak(const struct rh_hardware_device *device, enum rh_product product);

struct rh_gemm_shape {
	enum rh_product product;
	enum rh_gemm_form form;
	double m, n, k;
};
/* Share of the peak that a product of this shape reaches: measured points of its form (of all where there is none of it), the nearer in the
 * logarithms of m, n and k the more they count. Where none of a product of 16 or 8 bits was measured, bf16's points count; 1 where there
 * are none either. */
double rh_hardware_gemm_fraction(const struct rh_hardware_device *device, struct rh_gemm_shape shape);

/* The rates of a kind of op: of the entry without a size, or of those with one between the nearest two, even in logarithms; beyond the last
 * the last counts. 0: there is none. */
int rh_hardware_op_rates(const struct rh_hardware_device *device, const char *op, enum rh_product product, double size, double *flops_per_s,
                         double *bytes_per_s);

#endif
