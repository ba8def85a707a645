#include "machine/facts.h"

#include "device/cpu/cpu.h"
#include "machine/machine.h"

#include <dirent.h>
#include <hwloc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CAP_IPC_LOCK_BIT = 14 };

/* The file's first line, without its end; "" where it cannot be read. */
static const char *line_of(const char *root, const char *path, char *out, size_t bytes)
{
	char full[PATH_MAX];
	FILE *file = snprintf(full, sizeof full, "%s%s", root, path) < (int)sizeof full ? fopen(full, "re") : NULL;
	*out = 0;
	if (file && !fgets(out, (int)bytes, file))
		*out = 0;
	if (file)
		fclose(file);
	out[strcspn(out, "\n")] = 0;
	while (*out && out[strlen(out) - 1] == ' ')
		out[strlen(out) - 1] = 0;
	return out;
}

static int64_t number_of(const char *root, const char *path, int64_t otherwise)
{
	char text[64], *end;
	long long value = strtoll(line_of(root, path, text, sizeof text), &end, 10);
	return end == text ? otherwise : value;
}

/* What follows `key` in the first line that begins with it. */
static int find(const char *root, const char *path, const char *key, char *out, size_t bytes)
{
	char full[PATH_MAX], line[512];
	FILE *file = snprintf(full, sizeof full, "%s%s", root, path) < (int)sizeof full ? fopen(full, "re") : NULL;
	int found = 0;
	*out = 0;
	while (file && !found && fgets(line, sizeof line, file)) {
		if (strncmp(line, key, strlen(key)))
			continue;
		const char *from = line + strlen(key) + strspn(line + strlen(key), " \t:");
		snprintf(out, bytes, "%.*s", (int)strcspn(from, "\n"), from);
		found = 1;
	}
	if (file)
		fclose(file);
	return found;
}

static int64_t kib_of(const char *root, const char *key)
{
	char text[64];
	return find(root, "/proc/meminfo", key, text, sizeof text) ? strtoll(text, NULL, 10) * 1024 : -1;
}

/* "always [madvise] never": the word in brackets. */
static void chosen_of(const char *root, const char *path, char *out, size_t bytes)
{
	char line[128];
	line_of(root, path, line, sizeof line);
	const char *from = strchr(line, '[');
	snprintf(out, bytes, "%.*s", from ? (int)strcspn(from + 1, "]") : 0, from ? from + 1 : "");
}

/* ---- memory ---- */

/* "Max locked memory  8388608  8388608  bytes": the soft limit. */
static int64_t locked_limit(const char *root)
{
	char text[128], *end;
	if (!find(root, "/proc/self/limits", "Max locked memory", text, sizeof text))
		return -1;
	long long value = strtoll(text, &end, 10);
	return end == text ? -1 : value; /* "unlimited" */
}

static void look_at_memory(const char *root, struct doctor_facts *out)
{
	char text[64];
	out->ram_bytes = kib_of(root, "MemTotal:");
	out->available_bytes = kib_of(root, "MemAvailable:");
	out->free_bytes = rh_machine_free_ram_under(root);
	out->group_limit_bytes = rh_machine_group_limit_under(root);
	int64_t swap = kib_of(root, "SwapTotal:"), swap_free = kib_of(root, "SwapFree:");
	out->swap_used_bytes = swap > 0 && swap_free >= 0 ? swap - swap_free : 0;
	out->locked_bytes = locked_limit(root);
	out->locks_freely =
	        find(root, "/proc/self/status", "CapEff:", text, sizeof text) && (strtoull(text, NULL, 16) >> CAP_IPC_LOCK_BIT & 1);
	out->hugepage_bytes = kib_of(root, "Hugepagesize:");
	out->hugepages = find(root, "/proc/meminfo", "HugePages_Total:", text, sizeof text) ? strtoll(text, NULL, 10) : 0;
	out->hugepages_free = find(root, "/proc/meminfo", "HugePages_Free:", text, sizeof text) ? strtoll(text, NULL, 10) : 0;
	chosen_of(root, "/sys/kernel/mm/transparent_hugepage/enabled", out->transparent, sizeof out->transparent);
	out->overcommit = (int)number_of(root, "/proc/sys/vm/overcommit_memory", 0);
	out->io_uring_disabled = (int)number_of(root, "/proc/sys/kernel/io_uring_disabled", 0);
}

/* ---- cores ---- */

/* "max 100000" or "150000 100000". */
static double quota_of(const char *root)
{
	char group[512], path[640], text[64];
	double quota, period;
	if (!find(root, "/proc/self/cgroup", "0::", group, sizeof group) || strstr(group, ".."))
		*group = 0;
	snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
	if (!*line_of(root, path, text, sizeof text))
		line_of(root, "/sys/fs/cgroup/cpu.max", text, sizeof text);
	return sscanf(text, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : 0;
}

static void look_at_cores(const char *root, struct doctor_facts *out)
{
	hwloc_topology_t topology;
	out->cores = rh_machine_cores();
	snprintf(out->isa, sizeof out->isa, "%s", rh_cpu_isa_name(rh_cpu_best_isa()));
	if (!hwloc_topology_init(&topology)) {
		if (!hwloc_topology_load(topology)) {
			out->packages = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE);
			out->nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
		}
		hwloc_topology_destroy(topology);
	}
	if (!find(root, "/proc/cpuinfo", "model name", out->processor, sizeof out->processor))
		snprintf(out->processor, sizeof out->processor, "unknown processor");
	out->core_quota = quota_of(root);
	char load[64];
	out->load = strtod(line_of(root, "/proc/loadavg", load, sizeof load), NULL);
	line_of(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", out->governor, sizeof out->governor);
	line_of(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", out->frequency_driver, sizeof out->frequency_driver);
}

/* ---- PCIe ---- */

double doctor_pcie_bytes_per_s(double speed, int lanes)
{
	double coded = speed > 6 ? 128.0 / 130 : 0.8; /* 8 GT/s and above: 128b/130b; below: 8b/10b */
	return speed > 0 && lanes > 0 ? speed * 1e9 * coded * lanes / 8 : 0;
}

/* "16.0 GT/s PCIe", or "Unknown". */
static double speed_in(const char *root, const char *device, const char *file)
{
	char path[PATH_MAX], text[64];
	if (snprintf(path, sizeof path, "%s/%s", device, file) >= (int)sizeof path)
		return 0;
	return strtod(line_of(root, path, text, sizeof text), NULL);
}

/* `device` is the card's folder, /sys/bus/pci/devices/ADDRESS. The folder is a link to its place in the tree of ports; the one above is the
 * port. */
static void look_at_link(const char *root, const char *device, struct doctor_pcie *out)
{
	char above[PATH_MAX], node[PATH_MAX];
	snprintf(above, sizeof above, "%.3900s/..", device);
	snprintf(node, sizeof node, "%.3900s/numa_node", device);
	const char *slash = strrchr(device, '/');
	snprintf(out->address, sizeof out->address, "%.15s", slash ? slash + 1 : device);
	out->speed = speed_in(root, device, "current_link_speed");
	out->card_speed = speed_in(root, device, "max_link_speed");
	out->slot_speed = speed_in(root, above, "max_link_speed");
	out->lanes = (int)speed_in(root, device, "current_link_width");
	out->card_lanes = (int)speed_in(root, device, "max_link_width");
	out->slot_lanes = (int)speed_in(root, above, "max_link_width");
	out->node = (int)number_of(root, node, -1);
	if (out->card_lanes >= 255 || out->lanes >= 255) /* what a virtual machine's port says that has no link */
		out->lanes = out->card_lanes = out->slot_lanes = 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Calls `visit` with each name in a folder, in order. */
static void each_name(const char *root, const char *dir, void (*visit)(const char *root, const char *name, struct doctor_facts *out),
                      struct doctor_facts *out)
{
	char full[PATH_MAX], *name[256];
	int names = 0;
	DIR *open = snprintf(full, sizeof full, "%s%s", root, dir) < (int)sizeof full ? opendir(full) : NULL;
	for (struct dirent *entry; open && (entry = readdir(open)) && names < 256;)
		if (entry->d_name[0] != '.' && (name[names] = strdup(entry->d_name)))
			names++;
	if (open)
		closedir(open);
	qsort(name, (size_t)names, sizeof *name, by_name);
	for (int i = 0; i < names; i++) {
		visit(root, name[i], out);
		free(name[i]);
	}
}

/* NVIDIA's display and compute cards: class 0x03xxxx. */
static void visit_pci(const char *root, const char *address, struct doctor_facts *out)
{
	char device[PATH_MAX], path[PATH_MAX + 32], text[32];
	snprintf(device, sizeof device, "/sys/bus/pci/devices/%.64s", address);
	snprintf(path, sizeof path, "%s/class", device);
	if (strncmp(line_of(root, path, text, sizeof text), "0x03", 4) || out->gpus == DOCTOR_GPUS_MOST)
		return;
	snprintf(path, sizeof path, "%s/vendor", device);
	if (strcmp(line_of(root, path, text, sizeof text), "0x10de"))
		return;
	struct doctor_gpu *gpu = &out->gpu[out->gpus++];
	snprintf(path, sizeof path, "/proc/driver/nvidia/gpus/%.64s/information", address);
	if (!find(root, path, "Model:", gpu->name, sizeof gpu->name))
		snprintf(gpu->name, sizeof gpu->name, "NVIDIA GPU");
	look_at_link(root, device, &gpu->link);
}

int rh_doctor_is_wsl(const char *root)
{
	char path[4200];
	snprintf(path, sizeof path, "%s/dev/dxg", root);
	return !access(path, F_OK);
}

int rh_doctor_cards(const char *root)
{
	struct doctor_facts facts = {0};
	each_name(root, "/sys/bus/pci/devices", visit_pci, &facts);
	return facts.gpus;
}

static void visit_block(const char *root, const char *name, struct doctor_facts *out)
{
	char path[PATH_MAX];
	int nvme = !strncmp(name, "nvme", 4), disk = !strncmp(name, "sd", 2) || !strncmp(name, "vd", 2);
	if ((!nvme && !disk) || out->drives == DOCTOR_DRIVES_MOST)
		return;
	struct doctor_drive *drive = &out->drive[out->drives++];
	snprintf(drive->name, sizeof drive->name, "%.31s", name);
	snprintf(path, sizeof path, "/sys/block/%.64s/size", name);
	drive->bytes = number_of(root, path, 0) * 512;
	snprintf(path, sizeof path, "/sys/block/%.64s/queue/rotational", name);
	drive->spins = !nvme && !strncmp(name, "sd", 2) && number_of(root, path, 0) == 1;
	snprintf(path, sizeof path, "/sys/block/%.64s/device/model", name);
	line_of(root, path, drive->model, sizeof drive->model);
	if (!nvme)
		return;
	/* the block device's "device" is the controller, whose "device" is the PCI function */
	char address[64];
	snprintf(path, sizeof path, "/sys/block/%.64s/device/address", name);
	if (!*line_of(root, path, address, sizeof address))
		return;
	snprintf(path, sizeof path, "/sys/bus/pci/devices/%.64s", address);
	look_at_link(root, path, &drive->link);
}

void rh_doctor_look(const char *root, struct doctor_facts *out)
{
	char line[256];
	*out = (struct doctor_facts){0};
	look_at_cores(root, out);
	look_at_memory(root, out);
	/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 ..." */
	line_of(root, "/proc/driver/nvidia/version", line, sizeof line);
	for (const char *at = line; *at && !*out->nvidia_driver; at++)
		if (at[0] >= '0' && at[0] <= '9' && at > line && at[-1] == ' ')
			snprintf(out->nvidia_driver, sizeof out->nvidia_driver, "%.*s", (int)strcspn(at, " "), at);
	out->is_wsl = rh_doctor_is_wsl(root);
	each_name(root, "/sys/bus/pci/devices", visit_pci, out);
	each_name(root, "/sys/block", visit_block, out);
}
