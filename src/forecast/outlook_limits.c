/* Finds what limits a run, by trying a little more of each resource. */
#include "forecast/outlook_internal.h"

#include "core/alloc.h"

static const double more = 1.25; /* of a resource, to see whether it limits */

const char *rh_bottleneck_name(enum rh_bottleneck limit)
{
	static const char *const names[RH_LIMITS] = {"compute", "upload", "download", "dram", "optimizer", "nvme"};
	return names[limit];
}

static void widen_link(struct rh_hardware_link *link, int up)
{
	*(up ? &link->up_bytes_per_s : &link->down_bytes_per_s) *= more;
	link->both_bytes_per_s *= more;
}

/* `op`: room for the device's own rates. */
static void widen_compute(struct rh_hardware_device *device, struct rh_hardware_op *op)
{
	for (int p = 0; p < RH_PRODUCTS; p++)
		device->peak[p] *= more;
	for (size_t i = 0; i < device->ops; i++) {
		op[i] = device->op[i];
		op[i].flops_per_s *= more;
		op[i].bytes_per_s *= more;
	}
	device->op = op;
	device->other_flops_per_s *= more;
	device->memory_bytes_per_s *= more;
	device->launch_s /= more;
}

static void widen(enum rh_bottleneck what, struct outlook_wider *out)
{
	struct rh_hardware *hardware = &out->hardware;
	switch (what) {
	case RH_LIMIT_COMPUTE:
		widen_compute(&hardware->device, out->op);
		break;
	case RH_LIMIT_UPLOAD:
	case RH_LIMIT_DOWNLOAD:
		widen_link(&hardware->link, what == RH_LIMIT_UPLOAD);
		widen_link(&hardware->pcie_switch, what == RH_LIMIT_UPLOAD);
		break;
	case RH_LIMIT_DRAM:
		hardware->host.dram_bytes_per_s *= more;
		break;
	case RH_LIMIT_OPTIMIZER:
		for (int l = 0; l < RH_LAYOUTS; l++)
			hardware->host.optimizer_bytes_per_s[l] *= more;
		break;
	default:
		hardware->nvme.read_bytes_per_s *= more;
		hardware->nvme.write_bytes_per_s *= more;
		hardware->nvme.mixed_bytes_per_s *= more;
	}
}

static void try_wider(const struct outlook_small *small, enum rh_bottleneck what, struct outlook_wider *out)
{
	out->hardware = *small->used.hardware;
	out->machine = small->used;
	out->machine.hardware = &out->hardware;
	size_t ops = out->hardware.device.ops;
	out->op = rh_alloc(ops, sizeof *out->op);
	if (!out->op)
		return; /* of it nothing is known */
	widen(what, out);
	outlook_try_begin(small->tasks, &small->config, &out->machine, &small->input, &out->tried);
}

void outlook_limits_begin(const struct outlook_small *small, struct outlook_limits *limits)
{
	try_wider(small, RH_LIMIT_COMPUTE, &limits->wider[RH_LIMIT_COMPUTE]);
}

/* Tries resource after resource until what is left cannot save more. A step's time is the longest chain of things that wait for one
 * another, each held up by one resource; a quarter more of a resource saves at most a fifth of what the chain spends on it. So no resource
 * saves more than a fifth of the whole less what those tried before have saved. */
void outlook_limits_find(const struct outlook_small *small, struct outlook_limits *limits, struct rh_outlook *out)
{
	double time = 1 / small->base.forecast.tokens_per_second, left = time * (1 - 1 / more), most = 0;
	for (int l = 0; l < RH_LIMITS && most < left; l++) {
		struct outlook_wider *wider = &limits->wider[l];
		if (l == RH_LIMIT_NVME && !out->forecast.nvme_bytes)
			continue;
		if (l != RH_LIMIT_COMPUTE)
			try_wider(small, (enum rh_bottleneck)l, wider);
		double tokens = outlook_try_finish(&wider->tried), saved = tokens > 0 ? time - 1 / tokens : 0;
		left -= saved > 0 ? saved : 0;
		if (saved <= most)
			continue;
		most = saved;
		out->bottleneck_gain = tokens * time - 1;
		out->bottleneck = (enum rh_bottleneck)l;
	}
}

void outlook_limits_close(struct outlook_limits *limits)
{
	for (int l = 0; l < RH_LIMITS; l++) {
		rh_task_drop(&limits->wider[l].tried.task);
		rh_free(limits->wider[l].op);
	}
}
