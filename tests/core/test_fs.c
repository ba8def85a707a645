/* The file layer: the real instance makes the system calls that it says, files above it take whatever a disk does. */
#include "check.h"
#include "fs_faults.h"

#include "core/alloc.h"
#include "core/file.h"

#include <stdlib.h>
#include <sys/syscall.h>

static int flushes;

/* Linked before the C library's. */
int fsync(int file)
{
	flushes++;
	return (int)syscall(SYS_fsync, file);
}

static const char *scratch(void)
{
	static char dir[64];
	snprintf(dir, sizeof dir, "%s/rh-fs-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(dir));
	return dir;
}

static void fill(char *bytes, size_t length)
{
	uint64_t seed = 3;
	for (size_t i = 0; i < length; i++)
		bytes[i] = (char)check_random(&seed);
}

static void test_a_committed_file_is_flushed_and_so_is_its_directory(void **state)
{
	(void)state;
	char *path = rh_path_join(scratch(), "a");
	flushes = 0;
	check_ok(rh_file_write_whole(path, "abc", 3));
	assert_int_equal(flushes, 2);
	struct rh_bytes bytes;
	check_ok(rh_file_load(path, &bytes));
	assert_string_equal(bytes.bytes, "abc");
	rh_bytes_free(&bytes);
	*strrchr(path, '/') = 0;
	flushes = 0;
	check_ok(rh_dir_make(path));
	assert_int_equal(flushes, 0);
	char *below = rh_path_join(path, "b/c");
	check_ok(rh_dir_make(below));
	assert_int_equal(flushes, 2); /* each new one into the one above */
	check_ok(rh_dir_remove(path));
	rh_free(below);
	rh_free(path);
}

static void test_short_reads_and_writes_move_all_bytes(void **state)
{
	(void)state;
	enum { LENGTH = 100000 };
	char *path = rh_path_join(scratch(), "a"), *copy, bytes[LENGTH], back[1000];
	fill(bytes, sizeof bytes);
	fs_fault_set_kinds(FS_SHORT, 0, 0, 0);
	check_ok(rh_file_write_whole(path, bytes, sizeof bytes));
	*strrchr(path, '/') = 0;
	copy = rh_path_join(path, "b");
	path[strlen(path)] = '/';
	check_ok(rh_file_copy(path, copy));
	rh_fs_use(NULL);
	struct rh_bytes loaded;
	check_ok(rh_file_load(copy, &loaded));
	assert_int_equal(loaded.length, sizeof bytes);
	assert_memory_equal(loaded.bytes, bytes, sizeof bytes);
	struct rh_file_in *in;
	check_ok(rh_file_open(copy, &in));
	fs_fault_set_kinds(FS_SHORT, 0, 0, 0);
	check_ok(rh_file_read(in, 777, back, sizeof back));
	rh_fs_use(NULL);
	assert_memory_equal(back, bytes + 777, sizeof back);
	int rc = rh_file_read(in, LENGTH - 10, back, 11);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "became shorter"));
	rh_file_close(in);
	rh_bytes_free(&loaded);
	*strrchr(path, '/') = 0;
	check_ok(rh_dir_remove(path));
	rh_free(copy);
	rh_free(path);
}

/* Every call fails once: an error or success, the old content or the new, nothing left behind, no descriptor leaked. */
static void test_a_file_is_replaced_whole_or_not_at_all(void **state)
{
	(void)state;
	static const int codes[] = {EIO, ENOSPC, EMFILE};
	const char *dir = scratch();
	char *path = rh_path_join(dir, "a");
	int failed = 0, first = open("/dev/null", O_RDONLY);
	close(first);
	for (size_t c = 0; c < sizeof codes / sizeof *codes; c++)
		for (long at = 1;; at++) {
			check_ok(rh_file_write_whole(path, "old", 3));
			fs_fault_set_kinds(FS_FAILS, FS_CHANGES | FS_LOOKS, at, codes[c]);
			int rc = rh_file_write_whole(path, "new!", 4);
			long asked = fs_faults.asked;
			rh_fs_use(NULL);
			struct rh_bytes now;
			struct rh_names names;
			check_ok(rh_file_load(path, &now));
			assert_true(!strcmp(now.bytes, "new!") || (rc && !strcmp(now.bytes, "old")));
			check_ok(rh_dir_list(dir, &names));
			if (names.count > 1 && rc != -codes[c])
				fail_msg("call %ld leaves %s", at, names.name[1]);
			for (size_t i = 0; i < names.count; i++)
				if (strcmp(names.name[i], "a")) { /* the removal itself failed: the next run tidies */
					char *left = rh_path_join(dir, names.name[i]);
					check_ok(rh_file_remove(left));
					rh_free(left);
				}
			rh_names_free(&names);
			rh_bytes_free(&now);
			failed += rc != 0;
			if (asked < at)
				break;
		}
	int last = open("/dev/null", O_RDONLY);
	close(last);
	assert_int_equal(first, last);
	assert_true(failed > 10);
	check_ok(rh_dir_remove(dir));
	rh_free(path);
}

/* Names below the bound directory lead through its descriptor: not through links, and to where it was moved. */
static void test_a_bound_directory_is_reached_by_its_descriptor(void **state)
{
	(void)state;
	char root[64], *out, *moved, *file, *link_path, *through;
	snprintf(root, sizeof root, "%s", scratch());
	out = rh_path_join(root, "out");
	moved = rh_path_join(root, "moved");
	file = rh_path_join(out, "sub/file");
	link_path = rh_path_join(out, "link");
	through = rh_path_join(out, "link/file");
	check_ok(rh_dir_make(out));
	assert_int_equal(symlink(root, link_path), 0);
	int descriptor = open(out, O_RDONLY | O_DIRECTORY);
	rh_dir_bind(descriptor, out);
	assert_true(rh_dir_bound_is_there());
	assert_int_equal(rh_path_kind(link_path), RH_PATH_LINK);
	assert_int_equal(rh_dir_remove(link_path), -ENOTDIR);
	assert_int_equal(rh_file_write_whole(through, "x", 1), -ENOTDIR);
	char *beyond = rh_path_join(root, "file");
	assert_false(rh_file_exists(beyond)); /* nor was it written on the way */
	rh_free(beyond);
	assert_int_equal(rename(out, moved), 0);
	assert_false(rh_dir_bound_is_there());
	assert_int_equal(mkdir(out, 0777), 0); /* another in its place is another */
	assert_false(rh_dir_bound_is_there());
	assert_int_equal(rmdir(out), 0);
	char *sub = rh_path_join(out, "sub");
	check_ok(rh_dir_make(sub));
	check_ok(rh_file_write_whole(file, "here", 4));
	assert_true(rh_file_exists(file));
	rh_dir_unbind();
	assert_false(rh_file_exists(file));
	char *found = rh_path_join(moved, "sub/file");
	assert_true(rh_file_exists(found));
	close(descriptor);
	check_ok(rh_dir_remove(root));
	rh_free(found);
	rh_free(sub);
	rh_free(through);
	rh_free(link_path);
	rh_free(file);
	rh_free(moved);
	rh_free(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_committed_file_is_flushed_and_so_is_its_directory),
	        cmocka_unit_test(test_short_reads_and_writes_move_all_bytes),
	        cmocka_unit_test(test_a_file_is_replaced_whole_or_not_at_all),
	        cmocka_unit_test(test_a_bound_directory_is_reached_by_its_descriptor),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
