#include "machine/nvml.h"

#include <dlfcn.h>
#include <string.h>

enum { SENSOR_GPU = 0 };

/* A function's address, by way of an object pointer, as POSIX has it. */
static int find(void *library, const char *name, void *function)
{
	void *symbol = dlsym(library, name);
	memcpy(function, &symbol, sizeof symbol);
	return symbol != NULL;
}

int rh_nvml_open(struct rh_nvml *out)
{
	*out = (struct rh_nvml){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
	struct rh_nvml_calls *calls = &out->calls;
	if (!out->library)
		return -ENOENT;
	int is_whole = find(out->library, "nvmlInit_v2", &calls->init) && find(out->library, "nvmlShutdown", &calls->shutdown) &&
	               find(out->library, "nvmlDeviceGetHandleByPciBusId_v2", &calls->by_address) &&
	               find(out->library, "nvmlDeviceGetUtilizationRates", &calls->utilization) &&
	               find(out->library, "nvmlDeviceGetTemperature", &calls->temperature) &&
	               find(out->library, "nvmlDeviceGetPowerUsage", &calls->power) &&
	               find(out->library, "nvmlDeviceGetMemoryInfo", &calls->memory) &&
	               find(out->library, "nvmlDeviceGetName", &calls->name);
	if (is_whole && !calls->init())
		return 0;
	dlclose(out->library);
	*out = (struct rh_nvml){0};
	return -ENOENT;
}

void rh_nvml_close(struct rh_nvml *nvml)
{
	if (nvml->calls.shutdown)
		nvml->calls.shutdown();
	if (nvml->library)
		dlclose(nvml->library);
	*nvml = (struct rh_nvml){0};
}

int rh_nvml_read(const struct rh_nvml *nvml, const char *address, struct rh_gpu_state *out)
{
	const struct rh_nvml_calls *calls = &nvml->calls;
	struct rh_nvml_utilization load;
	struct rh_nvml_memory memory;
	nvmlDevice_t device;
	unsigned number;
	*out = (struct rh_gpu_state){.load_percent = -1, .celsius = -1, .watts = -1, .used_bytes = -1, .total_bytes = -1};
	if (!calls->by_address || !*address || calls->by_address(address, &device))
		return 0;
	if (calls->name(device, out->name, sizeof out->name))
		*out->name = 0;
	if (!calls->utilization(device, &load))
		out->load_percent = (int)load.gpu;
	if (!calls->temperature(device, SENSOR_GPU, &number))
		out->celsius = (int)number;
	if (!calls->power(device, &number))
		out->watts = number / 1e3;
	if (!calls->memory(device, &memory)) {
		out->used_bytes = (int64_t)memory.used;
		out->total_bytes = (int64_t)memory.total;
	}
	return 1;
}
