#include "machine/pace.h"

#include "core/alloc.h"
#include "core/hooks.h"
#include "device/sim/sim.h"

#include <stdlib.h>

static double op_seconds(const void *context, const struct rh_op *op)
{
	const struct rh_pace *pace = context;
	return rh_sim_op_seconds(&pace->hardware.device, op, pace->share);
}

int rh_pace_open(int devices, struct rh_pace **out)
{
	const char *name = getenv(RH_HOOK_PACE);
	*out = NULL;
	if (!name)
		return 0;
	struct rh_pace *pace = rh_alloc(1, sizeof *pace);
	if (!pace)
		return -ENOMEM;
	int rc = rh_hardware_find(name, &pace->hardware);
	if (rc) {
		rh_free(pace);
		return rc;
	}
	pace->share = pace->hardware.device.on_host_cores ? 1.0 / devices : 1;
	pace->cpu = (struct rh_cpu_pace){.op_seconds = op_seconds,
	                                 .context = pace,
	                                 .up_bytes_per_s = pace->hardware.link.up_bytes_per_s,
	                                 .down_bytes_per_s = pace->hardware.link.down_bytes_per_s};
	*out = pace;
	return 0;
}

void rh_pace_free(struct rh_pace *pace)
{
	if (pace)
		rh_hardware_free(&pace->hardware);
	rh_free(pace);
}
