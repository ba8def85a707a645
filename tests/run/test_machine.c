/* Free memory under control groups, on made-up /proc and /sys. */
#include "made_up.h"

#include "run/machine.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_free_ram_without_groups_is_what_is_available),
	        cmocka_unit_test(test_free_ram_is_the_least_of_nested_groups),
	        cmocka_unit_test(test_free_ram_reads_version_1_too),
	        cmocka_unit_test(test_free_ram_of_this_machine_is_something),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
