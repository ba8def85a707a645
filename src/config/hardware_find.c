/* Where profiles are found, and what is assumed of a machine that has none. */
#include "config/hardware.h"

#include "config/config_internal.h"
#include "core/alloc.h"
#include "core/file.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *rh_hardware_user_dir(void)
{
	const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
	if (config && *config)
		return rh_path_join(config, "roundhouse/hardware");
	return home && *home ? rh_path_join(home, ".config/roundhouse/hardware") : NULL;
}

/* The directory `up` levels above the program's, with `below` behind it; empty where it cannot be told. */
static void beside_program(int up, const char *below, char out[PATH_MAX])
{
	char path[PATH_MAX / 2];
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
	*out = 0;
	if (length <= 0)
		return;
	path[length] = 0;
	for (; up >= 0; up--) {
		char *slash = strrchr(path, '/');
		if (!slash)
			return;
		*slash = 0;
	}
	snprintf(out, PATH_MAX, "%s/%s", path, below);
}

/* 1: read; 0: no such file there. */
static int try_in(const char *dir, const char *name, struct rh_hardware *out)
{
	char path[PATH_MAX];
	if (!*dir || snprintf(path, sizeof path, "%s/%s.yaml", dir, name) >= (int)sizeof path || !rh_file_exists(path))
		return 0;
	int rc = rh_hardware_read(path, out);
	return rc ? rc : 1;
}

enum { PROFILE_DIRS = 6 };

/* Directory `i` of those that may have profiles; of two profiles of one name that in the earlier counts. Empty where it cannot be told. */
static void profile_dir(int i, const char *own, char out[PATH_MAX])
{
	if (!i)
		snprintf(out, PATH_MAX, "%s", own ? own : "");
	else if (i < PROFILE_DIRS - 1) /* build/release/roundhouse, build/release/tests/room/test_x */
		beside_program(i, "examples/hardware", out);
	else /* PREFIX/bin/roundhouse */
		beside_program(1, "share/roundhouse/hardware", out);
}

/* 1: read; 0: there is none of that name. */
static int try_built_in(const char *name, struct rh_hardware *out)
{
	for (const struct config_profile *profile = config_profiles; profile->name; profile++)
		if (!strcmp(profile->name, name)) {
			int rc = rh_hardware_parse(profile->text, strlen(profile->text), name, out);
			return rc ? rc : 1;
		}
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;
	return strcmp(*x, *y);
}

static int add_name(struct rh_list *names, const char *name)
{
	for (size_t i = 0; i < names->count; i++)
		if (!strcmp(names->item[i], name))
			return 0;
	return config_list_append(names, name);
}

/* The names of the profiles in `dir`; of one that cannot be read, none. */
static int list_in(const char *dir, struct rh_list *names)
{
	DIR *entries = *dir ? opendir(dir) : NULL;
	int rc = 0;
	for (struct dirent *entry; entries && !rc && (entry = readdir(entries));) {
		char *end = strstr(entry->d_name, ".yaml");
		if (!end || end == entry->d_name || end[5])
			continue;
		*end = 0;
		rc = add_name(names, entry->d_name);
	}
	if (entries)
		closedir(entries);
	return rc;
}

static int fail_unknown(const char *name, const char *own)
{
	enum { NAMED_MOST = 32 };
	struct rh_list names = {0};
	struct rh_text line = {0};
	char dir[PATH_MAX];
	int rc = 0;
	for (int i = 0; !rc && i < PROFILE_DIRS; i++) {
		profile_dir(i, own, dir);
		rc = list_in(dir, &names);
	}
	for (const struct config_profile *profile = config_profiles; !rc && profile->name; profile++)
		rc = add_name(&names, profile->name);
	if (names.count)
		qsort(names.item, names.count, sizeof *names.item, by_name);
	for (size_t i = 0; !rc && i < names.count && i < NAMED_MOST; i++)
		rc = rh_text_printf(&line, "%s%s", i ? ", " : "", config_show(names.item[i]).text);
	if (!rc)
		rc = rh_fail(-ENOENT,
		             "no hardware profile '%s'; there are: %s%s; `roundhouse doctor --save NAME` measures the machine it runs on",
		             config_show(name).text, line.bytes, names.count > NAMED_MOST ? ", ..." : "");
	rh_text_free(&line);
	config_list_free(&names);
	return rc;
}

int rh_hardware_find(const char *name, struct rh_hardware *out)
{
	size_t length = strlen(name);
	*out = (struct rh_hardware){0};
	if (strchr(name, '/') || (length > 5 && !strcmp(name + length - 5, ".yaml")))
		return rh_hardware_read(name, out);
	char *own = rh_hardware_user_dir();
	char dir[PATH_MAX];
	int rc = 0;
	for (int i = 0; !rc && i < PROFILE_DIRS; i++) {
		profile_dir(i, own, dir);
		rc = try_in(dir, name, out);
	}
	if (!rc)
		rc = try_built_in(name, out);
	if (!rc)
		rc = fail_unknown(name, own);
	rh_free(own);
	return rc < 0 ? rc : 0;
}

/* One core of a present processor with AVX-512 or AVX2, cautiously: what `doctor` measures replaces it. */
static const char assumed_profile[] = "name: assumed\n"
                                      "source: guessed; roundhouse doctor --save local measures this machine\n"
                                      "device:\n"
                                      "  name: CPU\n"
                                      "  on_host_cores: 1\n"
                                      "  peaks: {f32: 60.0e9, bf16: 60.0e9}\n"
                                      "  gemm:\n"
                                      "    - {product: f32, m: 512, n: 1024, k: 1024, fraction: 0.9}\n"
                                      "    - {product: bf16, m: 512, n: 1024, k: 1024, fraction: 0.9}\n"
                                      "  other_flops_per_s: 8.0e9\n"
                                      "  memory_bytes_per_s: 8.0e9\n"
                                      "  launch_s: 5.0e-6\n"
                                      "link: {up_bytes_per_s: 8.0e9, down_bytes_per_s: 8.0e9, both_bytes_per_s: 10.0e9}\n"
                                      "host: {dram_bytes_per_s: 16.0e9, optimizer: {split: 8.0e9, plain: 8.0e9, split8: 3.0e9}}\n";

int rh_hardware_local(int cores, int64_t ram_bytes, struct rh_hardware *out, int *assumed)
{
	char *own = rh_hardware_user_dir();
	int rc = own ? try_in(own, "local", out) : 0;
	rh_free(own);
	*assumed = !rc;
	if (rc)
		return rc < 0 ? rc : 0;
	rc = rh_hardware_parse(assumed_profile, sizeof assumed_profile - 1, "assumed.yaml", out);
	if (rc)
		return rc;
	for (int p = 0; p < RH_PRODUCTS; p++)
		out->device.peak[p] *= cores;
	out->device.other_flops_per_s *= cores;
	out->device.memory_bytes_per_s *= cores < 4 ? cores : 4; /* a socket's memory is at its limit with a few */
	for (int l = 0; l < RH_LAYOUTS; l++)
		out->host.optimizer_bytes_per_s[l] *= cores < 4 ? cores : 4;
	out->host.dram_bytes_per_s *= cores < 4 ? cores : 4;
	out->host.cores = cores;
	out->host.ram = ram_bytes;
	return 0;
}
