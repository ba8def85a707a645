/* How busy and how warm GPUs are, by NVIDIA's management library, which comes with the driver and is loaded when it is asked for. */
#ifndef RH_MACHINE_NVML_H
#define RH_MACHINE_NVML_H

#include "core/error.h"

#include <stdint.h>

/* Its functions, under their own names; structs as in nvml.h. */
typedef struct nvmlDevice_st *nvmlDevice_t;
struct rh_nvml_utilization {
	unsigned gpu, memory; /* per cent */
};
struct rh_nvml_memory {
	unsigned long long total, free, used;
};
struct rh_nvml_calls {
	int (*init)(void);
	int (*shutdown)(void);
	int (*by_address)(const char *address, nvmlDevice_t *out);
	int (*utilization)(nvmlDevice_t device, struct rh_nvml_utilization *out);
	int (*temperature)(nvmlDevice_t device, int sensor, unsigned *celsius);
	int (*power)(nvmlDevice_t device, unsigned *milliwatts);
	int (*memory)(nvmlDevice_t device, struct rh_nvml_memory *out);
	int (*name)(nvmlDevice_t device, char *out, unsigned bytes);
};

struct rh_nvml {
	struct rh_nvml_calls calls;
	void *library;
};
/* -ENOENT, without a line: there is no such library, as on a machine without NVIDIA's driver; or it does not begin. */
int rh_nvml_open(struct rh_nvml *out) RH_MUST;
void rh_nvml_close(struct rh_nvml *nvml);

/* What is not known is -1, the name "". */
struct rh_gpu_state {
	char name[96];
	int load_percent, celsius;
	double watts;
	int64_t used_bytes, total_bytes;
};
/* `address`: on the PCI bus, as /sys/bus/pci/devices has it. 0: there is no such card. */
int rh_nvml_read(const struct rh_nvml *nvml, const char *address, struct rh_gpu_state *out);

#endif
