/* What a result was measured on. */
#ifndef RH_BENCH_MACHINE_H
#define RH_BENCH_MACHINE_H

#include "device/cpu/cpu.h"
#include "machine/machine.h"

#include <stdio.h>
#include <string.h>

/* "AMD EPYC 9R14, 2 cores, avx512" */
static inline void bench_machine(char *text, size_t bytes)
{
	char model[128] = "unknown processor", line[256];
	FILE *file = fopen("/proc/cpuinfo", "re");
	while (file && fgets(line, sizeof line, file))
		if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
			snprintf(model, sizeof model, "%s", strchr(line, ':') + 2);
			model[strcspn(model, "\n")] = 0;
			break;
		}
	if (file)
		fclose(file);
	snprintf(text, bytes, "%s, %d cores, %s", model, rh_machine_cores(), rh_cpu_isa_name(rh_cpu_best_isa()));
}

#endif
