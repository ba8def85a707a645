/* What a run should know of GPUs that a desktop shares: displays, and Windows between the program and the card. */
#include "machine/machine.h"

#include "config/device_spec.h"
#include "core/hooks.h"
#include "core/log.h"
#include "cuda/device.h"
#include "machine/facts.h"

#include <stdlib.h>

void rh_devices_tell_desktop(const char *device)
{
	struct rh_device_spec spec;
	struct rh_cuda_gpu gpu;
	const char *root = getenv(RH_HOOK_MACHINE_ROOT);
	int rc = rh_device_spec_parse(device, &spec), has_gpus = !rc && (spec.kind == RH_DEVICE_CUDA || spec.kind == RH_DEVICE_EMU);
	for (int i = 0; has_gpus && i < (spec.count ? spec.count : rh_cuda_count()); i++) {
		int number = spec.count ? spec.gpu[i] : i;
		if (!rh_cuda_describe(number, &gpu) && gpu.has_time_limit)
			rh_note("device %s:%d drives a display: its driver ends a kernel that takes seconds, so launches are kept below "
			        "%.1f s by "
			        "plan; the desktop may stutter",
			        rh_cuda_kind(), number, RH_LAUNCH_MOST_S);
	}
	rh_error_clear();
	if (has_gpus && rh_doctor_is_wsl(root ? root : ""))
		rh_note("the GPU is reached through Windows (WSL 2): what does not fit its memory may lie in host memory without an error "
		        "(the "
		        "run's is probed when it is reserved), and little host memory can be registered; where steps take longer than "
		        "predicted, lower max_vram");
}
