/* Free memory under control groups, on made-up /proc and /sys. */
#include "made_up.h"

#include "core/alloc.h"
#include "machine/machine.h"

#include <string.h>
#include <unistd.h>

static const int64_t mib = 1 << 20;

static void put_number(const struct root *root, const char *path, int64_t value)
{
	char text[32];
	snprintf(text, sizeof text, "%lld\n", (long long)value);
	put(root, path, text);
}

static void root_open(struct root *root)
{
	root_make(root);
	put(root, "/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
}

static void free_is(const struct root *root, int64_t expected_mib)
{
	assert_int_equal(rh_machine_free_ram_under(root->dir), expected_mib * mib);
}

static void test_free_ram_without_groups_is_what_is_available(void **state)
{
	(void)state;
	struct root root;
	root_open(&root);
	free_is(&root, 8192);
	put(&root, "/proc/self/cgroup", "0::/user.slice\n"); /* nothing is mounted */
	free_is(&root, 8192);
	root_close(&root);
}

/* The kernel says what is free; a container's limit stands where control groups are mounted. */
static void test_free_ram_without_proc_is_the_kernels(void **state)
{
	(void)state;
	struct root root;
	root_make(&root);
	assert_true(rh_machine_free_ram_under(root.dir) > mib);
	put_number(&root, "/sys/fs/cgroup/memory.max", 50 * mib);
	put_number(&root, "/sys/fs/cgroup/memory.current", 49 * mib);
	free_is(&root, 1);
	root_close(&root);
}

static void test_free_ram_is_the_least_of_nested_groups(void **state)
{
	(void)state;
	struct root root;
	root_open(&root);
	put(&root, "/proc/self/cgroup", "0::/a.slice/b.scope/c\n");
	put(&root, "/sys/fs/cgroup/a.slice/b.scope/c/memory.max", "max\n");
	put_number(&root, "/sys/fs/cgroup/a.slice/b.scope/c/memory.current", 10 * mib);
	free_is(&root, 8192);
	put_number(&root, "/sys/fs/cgroup/a.slice/memory.max", 1024 * mib);
	put_number(&root, "/sys/fs/cgroup/a.slice/memory.current", 400 * mib);
	free_is(&root, 624);
	put(&root, "/sys/fs/cgroup/a.slice/memory.stat", "anon 1\ninactive_file 104857600\nactive_file 52428800\n");
	free_is(&root, 774); /* the page cache can be taken back */
	put_number(&root, "/sys/fs/cgroup/a.slice/b.scope/memory.max", 512 * mib);
	put_number(&root, "/sys/fs/cgroup/a.slice/b.scope/memory.current", 100 * mib);
	free_is(&root, 412);
	put_number(&root, "/sys/fs/cgroup/memory.max", 50 * mib); /* a container: the mount is the group's own */
	put_number(&root, "/sys/fs/cgroup/memory.current", 20 * mib);
	free_is(&root, 30);
	put(&root, "/proc/self/cgroup", "0::/../elsewhere\n");
	free_is(&root, 30);
	put_number(&root, "/sys/fs/cgroup/memory.current", 60 * mib); /* above the limit: it was lowered */
	free_is(&root, 0);
	put_number(&root, "/sys/fs/cgroup/memory.max", 1000 * mib);
	free_is(&root, 940);
	put_number(&root, "/sys/fs/cgroup/memory.high", 400 * mib); /* above it all is slow */
	free_is(&root, 340);
	setenv("RH_MACHINE_ROOT", root.dir, 1);
	assert_int_equal(rh_machine_group_room(), 340 * mib);
	unsetenv("RH_MACHINE_ROOT");
	root_close(&root);
}

static void test_free_ram_reads_version_1_too(void **state)
{
	(void)state;
	struct root root;
	root_open(&root);
	put(&root, "/proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/docker/0123\n0::/x\n");
	put(&root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
	put_number(&root, "/sys/fs/cgroup/memory/memory.usage_in_bytes", 100 * mib);
	free_is(&root, 8192);
	put_number(&root, "/sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", 300 * mib);
	put_number(&root, "/sys/fs/cgroup/memory/docker/0123/memory.usage_in_bytes", 100 * mib);
	put(&root, "/sys/fs/cgroup/memory/docker/0123/memory.stat",
	    "inactive_file 1\ntotal_inactive_file 20971520\ntotal_active_file 10485760\n");
	free_is(&root, 230);
	root_close(&root);
}

static void test_free_ram_of_this_machine_is_something(void **state)
{
	(void)state;
	assert_true(rh_machine_free_ram() > 0);
}

/* ---- closing ---- */

static char calls[16];

static int note_rest(struct rh_device *device)
{
	strcat(calls, device->index ? "r1 " : "r0 ");
	return rh_fail(-EIO, "a device's fault");
}

static void note_close(struct rh_device *device)
{
	strcat(calls, device->index ? "c1 " : "c0 ");
}

/* One that was closed while another's queue still waits for it would be read after its end. */
static void test_devices_close_comes_to_rest_before_any_is_closed(void **state)
{
	(void)state;
	const struct rh_device_ops ops = {.close = note_close, .synchronize = note_rest};
	struct rh_device device[2] = {{.ops = &ops, .index = 0}, {.ops = &ops, .index = 1}};
	struct rh_devices devices = {.device = rh_alloc(2, sizeof(struct rh_device *)), .count = 2};
	assert_non_null(devices.device);
	devices.device[0] = &device[0];
	devices.device[1] = &device[1];
	int rc = rh_fail(-EINVAL, "the fault that ends the run");
	rh_devices_close(&devices);
	assert_string_equal(calls, "r0 r1 c0 c1 ");
	assert_string_equal(rh_error(rc), "the fault that ends the run");
	assert_int_equal(devices.count, 0);
}

/* Reserved hugepages are this process's memory, too; old kernels do not tell of them. */
static void test_peak_memory_counts_reserved_hugepages(void **state)
{
	(void)state;
	struct root root;
	root_make(&root);
	put(&root, "/proc/self/status", "Name:\tx\nVmHWM:\t    3000 kB\nVmRSS:\t    2000 kB\nHugetlbPages:\t    4096 kB\n");
	assert_int_equal(rh_machine_peak_ram_under(root.dir), (3000 + 4096) * 1024);
	put(&root, "/proc/self/status", "Name:\tx\nVmHWM:\t    3000 kB\nVmRSS:\t    2000 kB\n");
	assert_int_equal(rh_machine_peak_ram_under(root.dir), 3000 * 1024);
	root_close(&root);
	assert_true(rh_machine_peak_ram() > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_free_ram_without_groups_is_what_is_available),
	        cmocka_unit_test(test_free_ram_without_proc_is_the_kernels),
	        cmocka_unit_test(test_free_ram_is_the_least_of_nested_groups),
	        cmocka_unit_test(test_free_ram_reads_version_1_too),
	        cmocka_unit_test(test_free_ram_of_this_machine_is_something),
	        cmocka_unit_test(test_peak_memory_counts_reserved_hugepages),
	        cmocka_unit_test(test_devices_close_comes_to_rest_before_any_is_closed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
