/* Measures the time of training's ops on a device, each in its place: a small model's forward, recompute and backward are emitted as in
 * a run, with an event after each op, so that every op finds its operands where the op before left them. */
#ifndef RH_MACHINE_OPS_H
#define RH_MACHINE_OPS_H

#include "device/device.h"
#include "model/config.h"

/* A model to emit, and the micro-batch. Its blocks are `layers` equal ones, so that weights are not always those just used. */
struct doctor_probe {
	int64_t hidden, intermediate, heads, kv_heads, head_dim, vocab, layers;
	int64_t tokens, documents; /* of tokens / documents each */
	int64_t head_rows;         /* of the tokens, those whose loss is made */
	enum rh_dtype dtype;
	int64_t lora_r; /* on all linears; 0: full fine-tuning */
	int qk_norm;
};

/* An op as it was launched (addresses mean nothing any more), and what it usually took. */
struct doctor_op_time {
	struct rh_op op;
	double seconds;
};
struct doctor_op_times {
	struct doctor_op_time *item;
	size_t count, capacity;
	double usual_s, taken_s; /* by all passes: their ops' usual times in sum, and what they took */
};
void doctor_op_times_free(struct doctor_op_times *times);

/* Device bytes that a probe needs, cut as the device wants it. Negative errno. */
int64_t doctor_probe_bytes(const struct doctor_probe *probe, const struct rh_device_grain *grain);

/* A device and `bytes` of its memory from `base`. */
struct doctor_place {
	struct rh_device *device;
	int warms; /* what is launched for the first time takes longer: not to be measured */
	struct rh_device_grain grain;
	void *base;
	int64_t bytes;
};

/* A probe's ops, and how long each took, run after run. */
struct doctor_samples {
	struct rh_op *op;
	double *seconds; /* (runs, ops) */
	size_t ops, capacity;
	int runs;
};
/* Runs it so often in that memory, whose content is lost, and adds to its samples. */
int doctor_probe_run(const struct doctor_place *place, const struct doctor_probe *probe, int runs, struct doctor_samples *samples) RH_MUST;
/* Adds its ops with what each usually took. Where others share a machine, its speed changes from pass to pass: so an op's time is the
 * median of its shares of a pass, of what a pass takes in the mean, the slowest quarter of them left out. */
int doctor_samples_reduce(const struct doctor_samples *samples, struct doctor_op_times *out) RH_MUST;
void doctor_samples_free(struct doctor_samples *samples);

#endif
