#include "run/machine.h"

#include "core/alloc.h"
#include "device/cpu/cpu.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = 64 };

int rh_machine_cores(void)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	if (sched_getaffinity(0, sizeof set, &set) < 0)
		return 1;
	int cores = CPU_COUNT(&set);
	return cores < 1 ? 1 : cores;
}

/* The number behind "key" in a file of "key number" lines, times `unit`; with key NULL the file's only number. -1 if there is none. */
static int64_t number_in(const char *path, const char *key, int64_t unit)
{
	FILE *file = fopen(path, "re");
	char line[256];
	int64_t found = -1;
	while (file && found < 0 && fgets(line, sizeof line, file)) {
		const char *at = key ? (strncmp(line, key, strlen(key)) ? NULL : line + strlen(key)) : line;
		if (!at)
			continue;
		char *end;
		long long value = strtoll(at, &end, 10);
		if (end != at)
			found = value * unit;
	}
	if (file)
		fclose(file);
	return found;
}

int64_t rh_machine_free_ram(void)
{
	int64_t available = number_in("/proc/meminfo", "MemAvailable:", 1024);
	int64_t limit = number_in("/sys/fs/cgroup/memory.max", NULL, 1), used = number_in("/sys/fs/cgroup/memory.current", NULL, 1);
	/* what is in use counts the page cache, which the kernel takes back: a model file just read must not stand in its own way */
	int64_t cold = number_in("/sys/fs/cgroup/memory.stat", "inactive_file ", 1);
	int64_t warm = number_in("/sys/fs/cgroup/memory.stat", "active_file ", 1);
	used -= used < 0 ? 0 : (cold > 0 ? cold : 0) + (warm > 0 ? warm : 0);
	if (limit >= 0 && used >= 0 && limit - used < available)
		available = limit - used;
	return available < 0 ? 0 : available;
}

int64_t rh_machine_peak_rss(void)
{
	int64_t peak = number_in("/proc/self/status", "VmHWM:", 1024);
	return peak < 0 ? 0 : peak;
}

void rh_machine_describe(char *text, size_t bytes)
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

int rh_devices_count(const char *spec)
{
	if (strncmp(spec, "cpu", 3) || (spec[3] && spec[3] != ':'))
		return rh_fail(-EINVAL, "device: '%s' is not built yet; use cpu or cpu:N", spec);
	if (!spec[3])
		return 1;
	char *end;
	long count = strtol(spec + 4, &end, 10);
	if (end == spec + 4 || *end || count < 1 || count > DEVICES_MAX)
		return rh_fail(-EINVAL, "device: '%s' must be cpu:N with N from 1 to %d", spec, DEVICES_MAX);
	return (int)count;
}

int rh_devices_open(const char *spec, int64_t cap_bytes, struct rh_devices *out)
{
	*out = (struct rh_devices){0};
	int count = rh_devices_count(spec);
	if (count < 0)
		return count;
	out->device = rh_alloc((size_t)count, sizeof(struct rh_device *));
	int rc = out->device ? 0 : -ENOMEM;
	int threads = rh_machine_cores() / count;
	struct rh_cpu_options options = {.threads = threads < 1 ? 1 : threads, .cap_bytes = cap_bytes, .isa = rh_cpu_best_isa()};
	for (; !rc && out->count < count; out->count += !rc)
		rc = rh_cpu_open(out->count, &options, &out->device[out->count]);
	if (rc)
		rh_devices_close(out);
	return rc;
}

void rh_devices_close(struct rh_devices *devices)
{
	for (int i = 0; i < devices->count; i++)
		devices->device[i]->ops->close(devices->device[i]);
	rh_free(devices->device);
	*devices = (struct rh_devices){0};
}
