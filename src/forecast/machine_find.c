#include "forecast/machine_find.h"

#include "config/device_spec.h"
#include "device/cpu/cpu.h"

int rh_machine_find(const struct rh_config *config, struct rh_machine_found *out)
{
	struct rh_device_spec spec;
	*out = (struct rh_machine_found){0};
	int rc = rh_device_spec_parse(config->device, &spec), here = spec.kind != RH_DEVICE_SIM;
	if (rc)
		return rh_fail_in(rc, "device");
	int64_t ram = rh_machine_free_ram();
	rc = here ? rh_hardware_local(rh_machine_cores(), ram, &out->hardware, &out->assumed)
	          : rh_hardware_find(spec.profile, &out->hardware);
	if (rc)
		return rc;
	int on_host = out->hardware.device.on_host_cores != 0, count = here ? rh_devices_count(config->device) : (int)out->hardware.devices;
	if (count >= 0 && here && on_host != (spec.kind == RH_DEVICE_CPU))
		rc = rh_fail(-ENODATA, "device: '%s', but %s; run roundhouse doctor --save local there, or name a profile with --hardware",
		             config->device,
		             out->assumed ? "nothing is known of this machine's" : "this machine's profile is of other devices");
	rc = count < 0 ? count : rc;
	int most = !here && out->hardware.devices_most > count ? (int)out->hardware.devices_most : count;
	if (!rc && config->gpus > most)
		rc = rh_fail(-EINVAL, "--gpus: %d, but %s has %d device%s%s; lower it", config->gpus, out->hardware.name, most,
		             most == 1 ? "" : "s", most > count ? " at most" : "");
	if (rc) {
		rh_machine_found_free(out);
		return rc;
	}
	out->machine = (struct rh_session_machine){.hardware = &out->hardware,
	                                           .devices = config->gpus ? config->gpus : count,
	                                           .ram_bytes = here ? ram : out->hardware.host.ram};
	return 0;
}

double rh_machine_bf16_gain(const struct rh_machine_found *found, const struct rh_config *config)
{
	static const double large = 2, of_amx = 3;
	const struct rh_hardware_device *device = &found->hardware.device;
	double narrow = rh_hardware_peak(device, RH_PRODUCT_BF16), wide = rh_hardware_peak(device, RH_PRODUCT_F32);
	if (config->dtype != RH_F32 || !device->on_host_cores)
		return 0;
	double gain = found->assumed ? (rh_cpu_best_isa() == RH_CPU_AMX ? of_amx : 0) : wide > 0 ? narrow / wide : 0;
	return gain >= large ? gain : 0;
}

void rh_machine_found_free(struct rh_machine_found *found)
{
	rh_hardware_free(&found->hardware);
}
