#include "machine/machine.h"

#include "config/device_spec.h"
#include "core/alloc.h"
#include "core/hooks.h"
#include "core/log.h"
#include "core/ram.h"
#include "cuda/device.h"
#include "device/cpu/cpu.h"
#include "device/sim/sim.h"
#include "machine/facts.h"
#include "machine/pace.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

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

/* Where a version of control groups keeps its numbers. */
struct group_files {
	const char *mount, *limit, *slow, *used, *cold, *warm;
};
static const struct group_files group_v2 = {"/sys/fs/cgroup", "memory.max",     "memory.high",
                                            "memory.current", "inactive_file ", "active_file "};
static const struct group_files group_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", NULL,
                                            "memory.usage_in_bytes", "total_inactive_file ",  "total_active_file "};

static int64_t group_number(const char *dir, const char *file, const char *key)
{
	char path[PATH_MAX];
	int length = snprintf(path, sizeof path, "%s/%s", dir, file);
	return length < (int)sizeof path ? number_in(path, key, 1) : -1;
}

/* What one group may have before it is killed, or slowed down (version 2's memory.high); a version 1 without a limit says a number near
 * INT64_MAX. */
static int64_t group_limit(const char *dir, const struct group_files *files)
{
	int64_t limit = group_number(dir, files->limit, NULL), slow = files->slow ? group_number(dir, files->slow, NULL) : -1;
	limit = limit < 0 ? INT64_MAX : limit;
	return slow >= 0 && slow < limit ? slow : limit;
}

/* What one group leaves; INT64_MAX where it sets no limit. What is in use counts the page cache, which the kernel takes back: a model file
 * just read must not stand in its own way. */
static int64_t group_room(const char *dir, const struct group_files *files)
{
	int64_t limit = group_limit(dir, files), used = group_number(dir, files->used, NULL);
	if (limit == INT64_MAX || used < 0)
		return INT64_MAX;
	int64_t cold = group_number(dir, "memory.stat", files->cold), warm = group_number(dir, "memory.stat", files->warm);
	used -= (cold > 0 ? cold : 0) + (warm > 0 ? warm : 0);
	used = used < 0 ? 0 : used;
	return limit > used ? limit - used : 0;
}

typedef int64_t group_figure(const char *dir, const struct group_files *files);

/* The least figure of a group and those above it, up to the mount: limits are nested. In a container the path may be the host's, of which
 * only the mount itself is to be seen. */
static int64_t nested_least(const char *root, const char *group, const struct group_files *files, group_figure *figure)
{
	char dir[PATH_MAX];
	int mount = snprintf(dir, sizeof dir, "%s%s", root, files->mount);
	int length = snprintf(dir, sizeof dir, "%s%s%s", root, files->mount, strstr(group, "..") ? "" : group);
	if (length >= (int)sizeof dir)
		return INT64_MAX;
	int64_t least = INT64_MAX;
	for (;;) {
		int64_t room = figure(dir, files);
		least = room < least ? room : least;
		char *slash = strrchr(dir + mount, '/');
		if (!slash)
			return least;
		*slash = 0;
	}
}

/* A line of /proc/self/cgroup is "0::/path" (v2) or "4:cpu,memory:/path" (v1). Without /proc the mounts themselves are asked, which in a
 * container are the process's own groups. */
static int64_t groups_least(const char *root, group_figure *figure)
{
	char path[PATH_MAX], line[PATH_MAX + 64];
	if (snprintf(path, sizeof path, "%s/proc/self/cgroup", root) >= (int)sizeof path)
		return INT64_MAX;
	FILE *file = fopen(path, "re");
	int64_t least = INT64_MAX;
	for (int i = 0; !file && i < 2; i++) {
		int64_t room = nested_least(root, "", i ? &group_v1 : &group_v2, figure);
		least = room < least ? room : least;
	}
	while (file && fgets(line, sizeof line, file)) {
		char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!group)
			continue;
		*controllers++ = *group++ = 0;
		group[strcspn(group, "\n")] = 0;
		const struct group_files *files = *controllers ? NULL : &group_v2;
		for (char *name; (name = strsep(&controllers, ","));)
			files = strcmp(name, "memory") ? files : &group_v1;
		int64_t room = files ? nested_least(root, group, files, figure) : INT64_MAX;
		least = room < least ? room : least;
	}
	if (file)
		fclose(file);
	return least;
}

int64_t rh_machine_free_ram_under(const char *root)
{
	int64_t room = groups_least(root, group_room), total, available;
	rh_ram_under(root, &total, &available);
	return room < available ? room : available;
}

int64_t rh_machine_group_limit_under(const char *root)
{
	int64_t limit = groups_least(root, group_limit);
	return limit < ((int64_t)1 << 60) ? limit : -1;
}

int64_t rh_machine_group_room(void)
{
	const char *root = getenv(RH_HOOK_MACHINE_ROOT);
	return groups_least(root ? root : "", group_room);
}

int64_t rh_machine_free_ram(void)
{
	return rh_machine_free_ram_under("");
}

/* Without /proc: the most that was ever resident, files' pages too. */
static int64_t most_resident(void)
{
	struct rusage usage;
	return getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_maxrss * 1024;
}

int64_t rh_machine_own_bytes(void)
{
	int64_t anonymous = number_in("/proc/self/status", "RssAnon:", 1024);
	return anonymous < 0 ? most_resident() : anonymous;
}

int64_t rh_machine_peak_ram_under(const char *root)
{
	char path[PATH_MAX];
	if (snprintf(path, sizeof path, "%s/proc/self/status", root) >= (int)sizeof path)
		return 0;
	int64_t peak = number_in(path, "VmHWM:", 1024), reserved = number_in(path, "HugetlbPages:", 1024);
	return (peak < 0 ? most_resident() : peak) + (reserved < 0 ? 0 : reserved);
}

int64_t rh_machine_peak_ram(void)
{
	return rh_machine_peak_ram_under("");
}

/* The specification with all devices counted, and asked for only where this build can run them. */
static int resolve(const char *text, struct rh_device_spec *spec)
{
	int rc = rh_device_spec_parse(text, spec);
	if (rc)
		return rh_fail_in(rc, "device");
	if (spec->kind == RH_DEVICE_CPU)
		return 0;
	if (spec->kind == RH_DEVICE_SIM)
		return rh_fail(-ENODEV, "device: '%s' is a simulated machine, which is for plan; use cpu or cuda", text);
	int emulated = rh_cuda_kind() && !strcmp(rh_cuda_kind(), "emu");
	if (!emulated && spec->kind == RH_DEVICE_EMU)
		return rh_fail(-ENODEV, "device: '%s' is for builds of tests; use cpu or cuda", text);
	if (emulated && spec->kind == RH_DEVICE_CUDA)
		return rh_fail(-ENODEV, "device: '%s' is not in this build, which is for tests; use cpu or emu:N", text);
	int count = rh_cuda_count();
	if (count < 0)
		return count;
	if (!spec->count) { /* all there are */
		spec->count = count < RH_DEVICES_MAX ? count : RH_DEVICES_MAX;
		for (int i = 0; i < spec->count; i++)
			spec->gpu[i] = i;
	}
	return 0;
}

/* Who hides the GPUs wants the CPU. */
static int has_unused_card(void)
{
	const char *root = getenv(RH_HOOK_MACHINE_ROOT);
	return !getenv("CUDA_VISIBLE_DEVICES") && rh_doctor_cards(root ? root : "") > 0;
}

const char *rh_machine_device_for(int gpus)
{
	if (gpus < 0 && (gpus != -ENODEV || has_unused_card()))
		rh_warn_once("the CPU is used: %s", rh_error(gpus));
	rh_error_clear();
	return gpus > 0 ? "cuda" : "cpu:1";
}

const char *rh_machine_default_device(void)
{
	int emulated = rh_cuda_kind() && !strcmp(rh_cuda_kind(), "emu");
	return rh_machine_device_for(emulated ? 0 : rh_cuda_count());
}

int rh_devices_count(const char *text)
{
	struct rh_device_spec spec;
	int rc = resolve(text, &spec);
	return rc ? rc : spec.count;
}

/* The least that any of them has: all get the same plan. */
int rh_devices_room(const char *text, int64_t *bytes)
{
	struct rh_device_spec spec;
	int rc = resolve(text, &spec);
	const char *room_of_cpu = getenv(RH_HOOK_ROOM);
	*bytes = room_of_cpu && spec.kind == RH_DEVICE_CPU ? strtoll(room_of_cpu, NULL, 10) : 0;
	for (int i = 0; !rc && spec.kind != RH_DEVICE_CPU && i < spec.count; i++) {
		int workers = 0;
		int64_t room;
		for (int j = 0; j < spec.count; j++)
			workers += spec.gpu[j] == spec.gpu[i];
		rc = rh_cuda_room(spec.gpu[i], workers, &room);
		if (!rc && (!i || room < *bytes))
			*bytes = room;
	}
	return rc;
}

/* The slowest SM on which bf16 runs (sm_86) has 0.9 TFLOP/s of products and as much in fp32 for ordinary arithmetic; attention reaches less
 * than half of the first, and with fp32 arithmetic a quarter of the second (cuda/attention_plain.cu). */
static void bound_launches(int multiprocessors, struct rh_device_grain *grain)
{
	static const double of_sm = 0.4e12, of_sm_plain = 0.1e12;
	double most = RH_LAUNCH_MOST_S * multiprocessors * of_sm, plain = RH_LAUNCH_MOST_S * multiprocessors * of_sm_plain;
	if (grain->attention_flops == 0 || most < grain->attention_flops) {
		grain->attention_flops = most;
		grain->plain_attention_flops = plain;
	}
}

int rh_devices_grain(const char *text, struct rh_device_grain *out)
{
	struct rh_device_spec spec;
	int rc = resolve(text, &spec);
	*out = !rc && spec.kind != RH_DEVICE_CPU ? rh_cuda_grain() : rh_cpu_grain();
	for (int i = 0; !rc && spec.kind != RH_DEVICE_CPU && i < spec.count; i++) {
		struct rh_cuda_gpu gpu;
		rc = rh_cuda_describe(spec.gpu[i], &gpu);
		if (!rc)
			bound_launches(gpu.multiprocessors, out);
	}
	return rc;
}

int rh_devices_check_fp8(const char *text)
{
	struct rh_device_spec spec;
	int rc = resolve(text, &spec);
	for (int i = 0; !rc && spec.kind != RH_DEVICE_CPU && i < spec.count; i++) /* a CPU device computes them, slowly, for comparison */
		rc = rh_cuda_check_fp8(spec.gpu[i]);
	return rc;
}

static int open_device(const struct rh_device_spec *spec, int index, int64_t cap_bytes, const struct rh_pace *pace, struct rh_device **out)
{
	if (spec->kind != RH_DEVICE_CPU) {
		struct rh_cuda_options options = {.gpu = spec->gpu[index], .cap_bytes = cap_bytes};
		return rh_cuda_open(index, &options, out);
	}
	int threads = rh_machine_cores() / spec->count;
	struct rh_cpu_options options = {
	        .threads = threads < 1 ? 1 : threads, .cap_bytes = cap_bytes, .isa = rh_cpu_best_isa(), .pace = pace ? &pace->cpu : NULL};
	return rh_cpu_open(index, &options, out);
}

/* All devices take the same share of the work, and plans have the first one's rates. */
static int tell_unlike(const struct rh_device_spec *spec)
{
	struct rh_cuda_gpu first = {0}, other;
	int rc = rh_cuda_describe(spec->gpu[0], &first);
	for (int i = 1; !rc && i < spec->count; i++) {
		rc = rh_cuda_describe(spec->gpu[i], &other);
		if (!rc && (first.major != other.major || first.minor != other.minor || first.multiprocessors != other.multiprocessors))
			rh_warn_once("GPUs %d and %d are not alike (compute capability %d.%d with %d multiprocessors, %d.%d with %d): the "
			             "slowest sets the pace, and plans count on the first one's speed; device: %s:%d alone may be faster",
			             spec->gpu[0], spec->gpu[i], first.major, first.minor, first.multiprocessors, other.major, other.minor,
			             other.multiprocessors, rh_cuda_kind(), spec->gpu[0]);
	}
	return rc;
}

int rh_devices_open(const char *text, int count, int64_t cap_bytes, struct rh_devices *out)
{
	struct rh_device_spec spec;
	*out = (struct rh_devices){0};
	int rc = resolve(text, &spec);
	if (!rc && spec.kind != RH_DEVICE_CPU)
		rc = tell_unlike(&spec);
	if (rc)
		return rc;
	RH_ASSERT(count <= spec.count);
	out->device = rh_alloc((size_t)count, sizeof(struct rh_device *));
	rc = out->device ? rh_pace_open(count, &out->pace) : -ENOMEM;
	for (; !rc && out->count < count; out->count += !rc)
		rc = open_device(&spec, out->count, cap_bytes, out->pace, &out->device[out->count]);
	if (rc)
		rh_devices_close(out);
	return rc;
}

int rh_devices_simulate(const struct rh_hardware *hardware, int count, enum rh_state_layout layout, int64_t cap_bytes,
                        struct rh_sim_clock *clock, struct rh_devices *out)
{
	struct rh_sim_options options = {.hardware = hardware,
	                                 .devices = count,
	                                 .layout = layout,
	                                 .clock = clock,
	                                 .stream_capacity = rh_sim_stream_capacity(&hardware->device)};
	struct rh_sim *sim = NULL;
	*out = (struct rh_devices){.device = rh_alloc((size_t)count, sizeof(struct rh_device *))};
	int rc = out->device ? rh_sim_create(&options, &sim) : -ENOMEM;
	for (; !rc && out->count < count; out->count += !rc)
		rc = rh_sim_open(sim, out->count, cap_bytes, &out->device[out->count]);
	rh_sim_release(sim);
	if (rc)
		rh_devices_close(out);
	return rc;
}

/* After a fault a device may still wait for an event of another's, whose queue must be there: all come to rest first. */
void rh_devices_close(struct rh_devices *devices)
{
	char line[RH_ERROR_LINE] = "";
	rh_error_swap(line);
	for (int i = 0; i < devices->count; i++)
		(void)devices->device[i]->ops->synchronize(devices->device[i]);
	rh_error_swap(line);
	for (int i = 0; i < devices->count; i++)
		devices->device[i]->ops->close(devices->device[i]);
	rh_free(devices->device);
	rh_pace_free(devices->pace);
	*devices = (struct rh_devices){0};
}
