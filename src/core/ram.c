#include "core/ram.h"

#include "core/log.h"

#include <limits.h>
#include <stdio.h>
#include <sys/sysinfo.h>

void rh_ram_under(const char *root, int64_t *total_bytes, int64_t *available_bytes)
{
	char path[PATH_MAX], line[128];
	long long kib;
	FILE *file = snprintf(path, sizeof path, "%s/proc/meminfo", root) < (int)sizeof path ? fopen(path, "re") : NULL;
	*total_bytes = *available_bytes = 0;
	while (file && fgets(line, sizeof line, file)) {
		if (sscanf(line, "MemTotal: %lld kB", &kib) == 1)
			*total_bytes = kib * 1024;
		else if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
			*available_bytes = kib * 1024;
	}
	if (file) {
		fclose(file);
		return;
	}
	struct sysinfo info;
	if (sysinfo(&info))
		return;
	rh_warn_once(
	        "/proc/meminfo is not there: of memory, only what nothing uses counts as free, not what the page cache would give back");
	*total_bytes = (int64_t)info.totalram * info.mem_unit;
	*available_bytes = ((int64_t)info.freeram + (int64_t)info.bufferram) * info.mem_unit;
}
