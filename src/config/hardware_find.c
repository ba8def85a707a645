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
	if (!dir || !*dir || snprintf(path, sizeof path, "%s/%s.yaml", dir, name) >= (int)sizeof path || !rh_file_exists(path))
		return 0;
	int rc = rh_hardware_read(path, out);
	return rc ? rc : 1;
}

/* build/release/roundhouse, build/release/tests/room/test_x, PREFIX/bin/roundhouse. */
static int try_shipped(const char *name, struct rh_hardware *out)
{
	char dir[PATH_MAX];
	int rc = 0;
	for (int up = 1; !rc && up <= 4; up++) {
		beside_program(up, "examples/hardware", dir);
		rc = try_in(dir, name, out);
	}
	if (rc)
		return rc;
	beside_program(1, "share/roundhouse/hardware", dir);
	return try_in(dir, name, out);
}

static int by_name(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;
	return strcmp(*x, *y);
}

/* The names of the profiles in `dir`; of one that cannot be read, none. */
static int list_in(const char *dir, struct rh_list *names)
{
	DIR *entries = dir && *dir ? opendir(dir) : NULL;
	int rc = 0;
	for (struct dirent *entry; entries && !rc && (entry = readdir(entries));) {
		char *end = strstr(entry->d_name, ".yaml");
		if (!end || end == entry->d_name || end[5])
			continue;
		*end = 0;
		int known = 0;
		for (size_t i = 0; i < names->count; i++)
			known |= !strcmp(names->item[i], entry->d_name);
		rc = known ? 0 : config_list_append(names, entry->d_name);
	}
	if (entries)
		closedir(entries);
	return rc;
}

static int fail_unknown(const char *name, const char *own)
{
	enum { NAMED_MOST = 24 };
	struct rh_list names = {0};
	struct rh_text line = {0};
	char dir[PATH_MAX];
	int rc = list_in(own, &names);
	for (int up = 1; !rc && up <= 5; up++) {
		beside_program(up < 5 ? up : 1, up < 5 ? "examples/hardware" : "share/roundhouse/hardware", dir);
		rc = list_in(dir, &names);
	}
	if (names.count)
		qsort(names.item, names.count, sizeof *names.item, by_name);
	for (size_t i = 0; !rc && i < names.count && i < NAMED_MOST; i++)
		rc = rh_text_printf(&line, "%s%s", i ? ", " : "; there are: ", config_show(names.item[i]).text);
	if (!rc)
		rc = rh_fail(-ENOENT, "no hardware profile '%s'%s%s; `roundhouse doctor --save NAME` measures the machine it runs on",
		             config_show(name).text, line.length ? line.bytes : "", names.count > NAMED_MOST ? ", ..." : "");
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
	int rc = try_in(own, name, out);
	if (!rc)
		rc = try_shipped(name, out);
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
	int rc = try_in(own, "local", out);
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
