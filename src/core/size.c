#include "core/size.h"

#include <stdio.h>

struct rh_size rh_size(int64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	struct rh_size size;
	double value = (double)bytes;
	int unit = 0;
	for (; value >= 1024 && unit < 4; unit++)
		value /= 1024;
	snprintf(size.text, sizeof size.text, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
	return size;
}
