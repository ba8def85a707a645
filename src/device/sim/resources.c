/* The resources of a machine, and how much of each a kind of transfer or work uses. */
#include "device/sim/sim_internal.h"

#include <math.h>

/* Its number; -1 where the capacity is unlimited. */
static int add(struct rh_sim *sim, double capacity)
{
	if (!(capacity > 0))
		return -1;
	RH_ASSERT(sim->resources < SIM_RESOURCES);
	sim->capacity[sim->resources] = capacity;
	return sim->resources++;
}

static void use(struct sim_route *route, int resource, double weight)
{
	if (resource < 0 || !(weight > 0))
		return;
	RH_ASSERT(route->uses < SIM_USES);
	route->use[route->uses].resource = resource;
	route->use[route->uses++].weight = weight;
}

static double per(double amount, double rate)
{
	return rate > 0 ? amount / rate : 0;
}

void sim_resources(struct rh_sim *sim, enum rh_state_layout layout)
{
	const struct rh_hardware *has = &sim->hardware;
	double optimizer = has->host.optimizer_bytes_per_s[layout], cores = (double)has->host.cores;
	int64_t under = has->pcie_switch.devices;
	sim->dram = add(sim, has->host.dram_bytes_per_s);
	sim->cores = add(sim, cores);
	sim->nvme_read = add(sim, has->nvme.read_bytes_per_s);
	sim->nvme_write = add(sim, has->nvme.write_bytes_per_s);
	sim->nvme_mixed = add(sim, has->nvme.mixed_bytes_per_s);
	for (int d = 0; d < sim->devices; d++) {
		sim->link_up[d] = add(sim, has->link.up_bytes_per_s);
		sim->link_down[d] = add(sim, has->link.down_bytes_per_s);
		sim->link_both[d] = add(sim, has->link.both_bytes_per_s);
	}
	for (int d = 0; under && d < sim->devices; d += (int)under) {
		int s = (int)(d / under);
		sim->switch_up[s] = add(sim, has->pcie_switch.up_bytes_per_s);
		sim->switch_down[s] = add(sim, has->pcie_switch.down_bytes_per_s);
		sim->switch_both[s] = add(sim, has->pcie_switch.both_bytes_per_s);
	}
	struct sim_route *work = sim->work;
	for (int w = 0; w < RH_HOST_WORKS; w++)
		work[w] = (struct sim_route){.number = w, .scale = 1};
	work[RH_HOST_OPTIMIZER].most = optimizer;
	work[RH_HOST_MEMORY].most = has->host.dram_bytes_per_s;
	for (int w = RH_HOST_OPTIMIZER; w <= RH_HOST_MEMORY; w++) {
		use(&work[w], sim->dram, 1);
		use(&work[w], sim->cores, per(cores, work[w].most));
	}
	use(&work[RH_HOST_NVME_READ], sim->nvme_read, 1);
	use(&work[RH_HOST_NVME_WRITE], sim->nvme_write, 1);
	use(&work[RH_HOST_NVME], sim->nvme_read, 0.5);
	use(&work[RH_HOST_NVME], sim->nvme_write, 0.5);
	for (int w = RH_HOST_NVME_READ; w <= RH_HOST_NVME; w++) {
		use(&work[w], sim->nvme_mixed, 1);
		use(&work[w], sim->dram, 1);
	}
}

/* Speed of a device on `threads` cores while the other cores idle, over threads / cores of the whole host: above 1, since it has memory
 * bandwidth and thermal headroom for itself. A power law of the share, through the measured speed of one core. */
static double gain_alone(const struct rh_hardware *has, double threads)
{
	double share = threads / (double)has->host.cores, part = 1 / (double)has->host.cores;
	if (!(has->device.one_core > part) || share >= 1)
		return 1;
	return pow(share, log(has->device.one_core) / log(part)) / share;
}

/* The same while the other cores work too: fewer threads wait less for one another. Interpolated from the measured gain of two halves, for
 * each halving. */
static double gain_beside(const struct rh_hardware *has, double threads)
{
	return has->device.halves > 0 ? pow(has->device.halves, log2((double)has->host.cores / threads)) : 1;
}

void sim_device_routes(struct rh_sim *sim, struct sim_device *device)
{
	const struct rh_hardware *has = &sim->hardware;
	int d = device->base.index, on_host = has->device.on_host_cores != 0;
	int64_t under = has->pcie_switch.devices;
	int number = RH_HOST_WORKS + d * (1 + SIM_WAYS);
	device->compute = (struct sim_route){.number = number++, .most = 1, .scale = 1};
	if (on_host && has->host.cores) { /* in units of cores; memory work at the full rate counts as all cores */
		double threads = (double)has->host.cores * sim->share, rate = sim->work[RH_HOST_OPTIMIZER].most;
		threads = threads < 1 ? 1 : threads;
		double beside = gain_beside(has, threads);
		use(&device->compute, sim->cores, threads / beside);
		device->compute.most = fmax(gain_alone(has, threads), beside);
		device->compute.scale = rate > 0 ? (double)has->host.cores * beside / (rate * threads) : 1;
	}
	for (int way = 0; way < SIM_WAYS; way++) {
		struct sim_route *copy = &device->copy[way];
		*copy = (struct sim_route){.number = number++, .scale = 1, .delay_s = has->link.latency_s};
		use(copy, way == SIM_UP ? sim->link_up[d] : sim->link_down[d], 1);
		use(copy, sim->link_both[d], 1);
		use(copy, sim->dram, 1);
		if (on_host) /* a host thread does the copy */
			use(copy, sim->cores, per(1, way == SIM_UP ? has->link.up_bytes_per_s : has->link.down_bytes_per_s));
		if (!under)
			continue;
		use(copy, way == SIM_UP ? sim->switch_up[d / under] : sim->switch_down[d / under], 1);
		use(copy, sim->switch_both[d / under], 1);
	}
}
