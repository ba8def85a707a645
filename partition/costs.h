/* The cost of each layer: seconds of one micro-batch, and bytes. They follow from the ops that the model emits and from a machine's rates.
 * Partitioners, schedules and predictions read nothing else. Pure: no I/O, no clock. */
#ifndef RH_PARTITION_COSTS_H
#define RH_PARTITION_COSTS_H

#include "config/hardware.h"
#include "model/emit.h"

/* Effective rates of one device, not those of its data sheet. An op takes launch_s plus the longer of its arithmetic (matrix products, then
 * the rest) and its memory traffic. */
struct rh_rates {
	double product_flops_per_s, other_flops_per_s, memory_bytes_per_s, launch_s;
	/* If given, rh_sim_op_seconds times each op on `share` of this device, and the four rates above are ignored. */
	const struct rh_hardware_device *device;
	double share;
};

/* Of one kernel at most. */
struct rh_longest_launch {
	double seconds;
	enum rh_op_kind op;
};

struct rh_layer_cost {
	double forward_s;
	double recompute_s;                   /* inside a backward stage; 0 for a head, whose loss is computed once */
	double recompute_spared_s;            /* part of recompute_s that the topmost layer of a backward stage does not need */
	double backward_s;                    /* both gradients */
	double weight_gradient_s;             /* the part of backward_s that schedules with a split backward can defer */
	double forward_flops, backward_flops; /* of matrix products */
	int64_t upload_bytes;                 /* weights on the device */
	int64_t gradient_bytes;               /* on the device: fp32 sums and their rounded copy */
	int64_t optimizer_bytes;              /* on the host: master, moments, gradient, upload form */
	int64_t saved_bytes;                  /* kept from recompute to backward, one micro-batch */
	int64_t boundary_bytes;               /* its output, one micro-batch */
	int64_t forward_workspace_bytes, backward_workspace_bytes; /* beyond what is saved */
	int64_t forward_launches, backward_launches;               /* ops of a micro-batch; backward: recompute's too */
	struct rh_longest_launch longest;
};

struct rh_costs {
	struct rh_layer_cost *layer;
	int layers, first_trained; /* no backward below first_trained */
	double hop_s;              /* one boundary activation from device to device through the host */
	int64_t tokens;            /* of the micro-batch that was measured; 0: not known */
};

/* Measures by emitting each layer alone. host_bytes_per_parameter: of trainable parameters, by the state's layout. */
int rh_costs_measure(const struct rh_model *model, const struct rh_micro_shape *shape, const struct rh_rates *rates,
                     double host_bytes_per_parameter, struct rh_costs *out) RH_MUST;
/* What was measured supposes that packed weights are made plain once a slot. Sets the seconds of layers to what the plan makes of them:
 * longer where each product has its own made, shorter where activations are kept or saved. rates: as above. */
struct rh_stage_plan;
int rh_costs_spare(const struct rh_model *model, const struct rh_micro_shape *shape, const struct rh_rates *rates,
                   const struct rh_stage_plan *plan, struct rh_costs *costs) RH_MUST;
void rh_costs_free(struct rh_costs *costs);

/* Which rows of the activation table stages had better save than recompute: of each layer those that spare the most time of all that its
 * link, and the host's memory, carry while the layer computes, in this share of it. Of one device stages have one layer; those of several
 * may have more, and the input of each layer is saved first: it spares the last product of the layer below. */
struct rh_save_request {
	const struct rh_model *model;
	const struct rh_micro_shape *shape;
	const struct rh_rates *rates;
	const struct rh_costs *costs;
	double up_bytes_per_s, down_bytes_per_s; /* of the link */
	double host_bytes_per_s;                 /* of the host's memory, for all devices; 0: not known */
	int devices;
	const struct rh_save_level {
		double share;
		int at_once; /* all devices' forwards run at once, as where a step begins, and the host's memory carries what they save */
		int64_t most_bytes; /* of a micro-batch and layer */
	} * level;                  /* (levels) */
	int levels;
};
/* fates: (levels, layers). */
int rh_costs_choose_saved(const struct rh_save_request *request, struct rh_fates *fates) RH_MUST;
/* What each layer takes where rows are saved by these fates, in stages of several layers. layer: (layers), as in request->costs before. */
int rh_costs_save(const struct rh_save_request *request, const struct rh_fates *fates, struct rh_layer_cost *layer) RH_MUST;

enum rh_pass { RH_PASS_FORWARD, RH_PASS_BACKWARD, RH_PASS_FUSED, RH_PASSES };

/* Prefix sums, for the seconds of layers [lo, hi) with one micro-batch. Layers below first_trained have no backward, whatever their figures
 * say. */
struct rh_cost_sums {
	const struct rh_costs *costs;
	double *forward, *recompute, *backward, *weight_gradient; /* (layers + 1) each */
};
int rh_costs_sum(const struct rh_costs *costs, struct rh_cost_sums *out) RH_MUST;
void rh_cost_sums_free(struct rh_cost_sums *sums);
double rh_cost_forward(const struct rh_cost_sums *sums, int lo, int hi);
double rh_cost_recompute(const struct rh_cost_sums *sums, int lo, int hi);
double rh_cost_backward(const struct rh_cost_sums *sums, int lo, int hi);        /* both gradients */
double rh_cost_weight_gradient(const struct rh_cost_sums *sums, int lo, int hi); /* the weight gradients' part */
/* Forward; recompute and backward; forward and backward. */
double rh_cost_stage(const struct rh_cost_sums *sums, enum rh_pass pass, int lo, int hi);

/* Device memory of a stage without the prefetch buffer: weights, gradients, saved activations of one micro-batch, the largest workspace and
 * three boundary buffers. A forward stage keeps neither gradients nor activations. */
int64_t rh_costs_stage_bytes(const struct rh_costs *costs, enum rh_pass pass, int lo, int hi);
int64_t rh_costs_upload_bytes(const struct rh_costs *costs, int lo, int hi);

#endif
