/* From what was measured to a hardware profile. */
#include "machine/doctor.h"

#include "core/alloc.h"
#include "device/sim/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Without the time of the launch itself; at least a tenth of what was measured. */
static double busy(const struct rh_doctor_report *report, const struct doctor_op_time *time)
{
	double seconds = time->seconds - report->launch_s;
	return seconds > time->seconds / 10 ? seconds : time->seconds / 10;
}

/* ---- products ---- */

struct point {
	struct rh_hardware_gemm gemm;
	double flops, seconds;
};

static int by_shape(const void *a, const void *b)
{
	const struct rh_hardware_gemm *x = &((const struct point *)a)->gemm, *y = &((const struct point *)b)->gemm;
	if (x->product != y->product)
		return x->product < y->product ? -1 : 1;
	if (x->form != y->form)
		return x->form < y->form ? -1 : 1;
	if (x->m != y->m)
		return x->m < y->m ? -1 : 1;
	if (x->n != y->n)
		return x->n < y->n ? -1 : 1;
	return (x->k > y->k) - (x->k < y->k);
}

static int add_products(const struct rh_doctor_report *report, struct rh_hardware_device *out)
{
	struct point *point = rh_alloc(report->ops.count + 1, sizeof *point);
	size_t points = 0, kept = 0;
	if (!point)
		return -ENOMEM;
	for (size_t i = 0; i < report->ops.count; i++) {
		const struct rh_op *op = &report->ops.item[i].op;
		if (op->kind != RH_OP_GEMM)
			continue;
		struct rh_view a = op->operand[RH_GEMM_A], d = op->operand[RH_GEMM_D];
		point[points++] = (struct point){
		        .gemm = {rh_sim_op_product(op), rh_sim_op_form(op), d.rows, d.cols, op->gemm.trans_a ? a.rows : a.cols, 0},
		        .flops = rh_op_cost(op).product_flops,
		        .seconds = busy(report, &report->ops.item[i])};
	}
	qsort(point, points, sizeof *point, by_shape);
	for (size_t i = 0; i < points; i++) {
		if (kept && !by_shape(&point[kept - 1], &point[i])) {
			point[kept - 1].flops += point[i].flops;
			point[kept - 1].seconds += point[i].seconds;
		} else {
			point[kept++] = point[i];
		}
	}
	for (size_t i = 0; i < kept; i++)
		out->peak[point[i].gemm.product] = fmax(out->peak[point[i].gemm.product], point[i].flops / point[i].seconds);
	out->gemm = kept ? rh_alloc(kept, sizeof *out->gemm) : NULL;
	int rc = kept && !out->gemm ? -ENOMEM : 0;
	for (size_t i = 0; !rc && i < kept; i++) {
		point[i].gemm.fraction = point[i].flops / point[i].seconds / out->peak[point[i].gemm.product];
		out->gemm[out->gemms++] = point[i].gemm;
	}
	out->gemm_capacity = out->gemms;
	rh_free(point);
	return rc;
}

/* ---- the other ops ---- */

/* Of one kind of op: work and time in all, and how evenly each of the two measures of work explains the time. */
struct sums {
	double flops, bytes, seconds;
	double flops_log, flops_log2, bytes_log, bytes_log2; /* of seconds over work */
	int count;
};

static void add_to(struct sums *sums, struct rh_op_cost cost, double seconds)
{
	double flops = cost.product_flops + cost.other_flops;
	double by_flops = flops > 0 ? log(seconds / flops) : 0, by_bytes = cost.bytes > 0 ? log(seconds / cost.bytes) : 0;
	sums->flops += flops;
	sums->bytes += cost.bytes;
	sums->seconds += seconds;
	sums->flops_log += by_flops;
	sums->flops_log2 += by_flops * by_flops;
	sums->bytes_log += by_bytes;
	sums->bytes_log2 += by_bytes * by_bytes;
	sums->count++;
}

static double spread(double sum, double squares, int count)
{
	return squares / count - sum / count * (sum / count);
}

static int add_op(const char *name, enum rh_product product, int64_t size, const struct sums *sums, int by_flops,
                  struct rh_hardware_device *out)
{
	struct rh_hardware_op op = {.op = rh_strdup(name), .product = product, .size = size};
	if (!op.op)
		return -ENOMEM;
	if (by_flops)
		op.flops_per_s = sums->flops / sums->seconds;
	else
		op.bytes_per_s = sums->bytes / sums->seconds;
	int rc = rh_grow(&out->op, &out->op_capacity, out->ops + 1, sizeof *out->op);
	if (rc)
		rh_free(op.op);
	else
		out->op[out->ops++] = op;
	return rc;
}

/* Ops that are measured as one. */
struct kind {
	enum rh_op_kind kind;
	int weighs; /* makes weights' gradients too, of those kinds that may */
	enum rh_product product;
};

static int is_of(const struct rh_op *op, struct kind kind)
{
	return op->kind == kind.kind && rh_sim_op_has_weight_gradient(op) == kind.weighs && rh_sim_op_product(op) == kind.product;
}

/* One entry for each size of the ops whose size decides, one for all sizes of the others. */
static int add_kind(const struct rh_doctor_report *report, struct kind kind, struct rh_hardware_device *out)
{
	struct sums all = {0};
	for (size_t i = 0; i < report->ops.count; i++) {
		const struct doctor_op_time *time = &report->ops.item[i];
		if (is_of(&time->op, kind))
			add_to(&all, rh_op_cost(&time->op), busy(report, time));
	}
	if (!all.count)
		return 0;
	int by_flops =
	        all.flops > 0 && (spread(all.flops_log, all.flops_log2, all.count) < spread(all.bytes_log, all.bytes_log2, all.count) ||
	                          kind.kind == RH_OP_ATTENTION || kind.kind == RH_OP_ATTENTION_BACKWARD || kind.kind == RH_OP_HEAD_LOSS);
	for (double above = 0, size = 0;; above = size) { /* the next larger size */
		struct sums sums = {0};
		size = INFINITY;
		for (size_t i = 0; i < report->ops.count; i++) {
			const struct doctor_op_time *time = &report->ops.item[i];
			double this = rh_sim_op_size(&time->op);
			if (is_of(&time->op, kind) && this > above && this < size)
				size = this;
		}
		if (!isfinite(size))
			return 0;
		for (size_t i = 0; i < report->ops.count; i++) {
			const struct doctor_op_time *time = &report->ops.item[i];
			if (is_of(&time->op, kind) && rh_sim_op_size(&time->op) == size)
				add_to(&sums, rh_op_cost(&time->op), busy(report, time));
		}
		int rc = add_op(rh_sim_rate_name(kind.kind, kind.weighs), kind.product, size > 1 ? (int64_t)size : 0, &sums, by_flops, out);
		if (rc)
			return rc;
	}
}

/* The general rates are for ops that were not measured: the best of the others, so that they limit none that was. */
static int add_ops(const struct rh_doctor_report *report, struct rh_hardware_device *out)
{
	for (size_t i = 0; i < report->ops.count; i++) {
		const struct doctor_op_time *time = &report->ops.item[i];
		struct rh_op_cost cost = rh_op_cost(&time->op);
		out->memory_bytes_per_s = fmax(out->memory_bytes_per_s, cost.bytes / busy(report, time));
		out->other_flops_per_s = fmax(out->other_flops_per_s, cost.other_flops / busy(report, time));
	}
	int rc = 0;
	for (int kind = 0; !rc && kind < RH_OP_KINDS; kind++)
		for (int p = 0; !rc && kind != RH_OP_GEMM && p < 2 * RH_PRODUCTS; p++)
			rc = add_kind(report, (struct kind){(enum rh_op_kind)kind, p / RH_PRODUCTS, (enum rh_product)(p % RH_PRODUCTS)},
			              out);
	return rc;
}

/* ---- the rest ---- */

static int name_it(const struct rh_doctor_report *report, struct rh_hardware *out)
{
	static const char *const source = "measured by roundhouse doctor";
	const struct doctor_facts *facts = &report->facts;
	char text[256];
	int on_gpu = report->device_bytes > 0, which = 0;
	while (which < facts->gpus - 1 && strcmp(facts->gpu[which].link.address, report->gpu.address))
		which++;
	snprintf(text, sizeof text, "%s, %d cores, %s", facts->processor, facts->cores, facts->isa);
	out->name = rh_strdup(text);
	if (on_gpu)
		snprintf(text, sizeof text, "%s, sm_%d%d, %d multiprocessors", facts->gpus ? facts->gpu[which].name : report->measured.kind,
		         report->gpu.major, report->gpu.minor, report->gpu.multiprocessors);
	else
		snprintf(text, sizeof text, "%s", facts->processor);
	out->device.name = rh_strdup(text);
	out->source = rh_strdup(source);
	out->device.source = rh_strdup("measured by roundhouse doctor; a peak is the best product seen");
	return out->name && out->device.name && out->source && out->device.source ? 0 : -ENOMEM;
}

int rh_doctor_profile(const struct rh_doctor_report *report, struct rh_hardware *out)
{
	const struct doctor_copies *copies = &report->measured.copies;
	const struct doctor_drive_rates *drive = &report->measured.drive;
	*out = (struct rh_hardware){.devices = report->devices};
	out->device.memory = report->device_bytes;
	out->device.reserved = report->device_reserved_bytes;
	out->device.on_host_cores = !report->device_bytes;
	out->device.one_core = report->one_core;
	out->device.halves = report->halves;
	out->device.launch_s = report->launch_s;
	int rc = name_it(report, out);
	if (!rc)
		rc = add_products(report, &out->device);
	if (!rc)
		rc = add_ops(report, &out->device);
	out->link = (struct rh_hardware_link){.up_bytes_per_s = copies->up,
	                                      .down_bytes_per_s = copies->down,
	                                      .both_bytes_per_s = copies->both,
	                                      .latency_s = copies->latency_s};
	/* devices that get less together than each would alone share something; all of them, as far as is known */
	if (report->devices > 1 && copies->all_up < 0.9 * report->devices * copies->up)
		out->pcie_switch = (struct rh_hardware_link){.devices = report->devices,
		                                             .up_bytes_per_s = copies->all_up,
		                                             .down_bytes_per_s = copies->all_up * copies->down / copies->up,
		                                             .both_bytes_per_s = copies->all_up * copies->both / copies->up};
	double dram = fmax(fmax(report->host.read, report->host.copy), report->optimizer_f32); /* the best that was seen to pass */
	for (int l = 0; l < RH_LAYOUTS; l++)
		dram = fmax(dram, report->optimizer[l]);
	out->host = (struct rh_hardware_host){.ram = report->facts.ram_bytes, .dram_bytes_per_s = dram, .cores = report->facts.cores};
	for (int l = 0; l < RH_LAYOUTS; l++)
		out->host.optimizer_bytes_per_s[l] = report->optimizer[l];
	if (out->device.on_host_cores) /* fp32 weights are the default there, and their layout is called plain */
		out->host.optimizer_bytes_per_s[RH_LAYOUT_PLAIN] = report->optimizer_f32;
	out->nvme = (struct rh_hardware_nvme){.bytes = drive->read > 0 ? drive->free_bytes : 0,
	                                      .read_bytes_per_s = drive->read,
	                                      .write_bytes_per_s = drive->write,
	                                      .mixed_bytes_per_s = drive->mixed};
	if (rc)
		rh_hardware_free(out);
	return rc;
}
