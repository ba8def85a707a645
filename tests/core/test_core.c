#include "folder.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/float16.h"
#include "core/json.h"
#include "core/lfs.h"
#include "core/philox.h"
#include "core/pool.h"
#include "core/size.h"
#include "core/text.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* Allocations of a region are apart and zero; one that fails is told once, and the others still end with the region. */
static void test_region_holds_what_was_taken_until_it_ends(void **state)
{
	(void)state;
	struct rh_region region = {0};
	char *part[100];
	for (int i = 0; i < 100; i++) {
		part[i] = rh_region_take(&region, i, 3);
		assert_non_null(part[i]);
		for (int k = 0; k < 3 * i; k++)
			assert_int_equal(part[i][k], 0);
		memset(part[i], i + 1, (size_t)(3 * i));
	}
	for (int i = 1; i < 100; i++)
		assert_true(part[i][0] == i + 1 && part[i][3 * i - 1] == i + 1);
	rh_alloc_fail_nth(1);
	assert_null(rh_region_take(&region, 1, 8));
	assert_null(rh_region_take(&region, 1, 8)); /* it would fail no more: the fault stays */
	assert_int_equal(region.rc, -ENOMEM);
	rh_region_free(&region);
	assert_true(!region.rc && !region.latest);
	rh_error_clear();
}

static void test_float16_every_half_survives_the_round_trip(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 65536; h++) {
		float value = rh_f16_to_f32((uint16_t)h);
		if (isnan(value))
			continue;
		assert_int_equal(rh_f32_to_f16(value), h);
		_Float16 reference;
		uint16_t bits = (uint16_t)h;
		memcpy(&reference, &bits, 2);
		assert_true((float)reference == value);
	}
}

static void test_float16_rounding_equals_the_compilers(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int i = 0; i < 1000000; i++) {
		float value = rh_bits_f32(check_random(&seed));
		if (isnan(value))
			continue;
		_Float16 reference = (_Float16)value;
		uint16_t bits;
		memcpy(&bits, &reference, 2);
		assert_int_equal(rh_f32_to_f16(value), bits);
	}
}

static void test_bf16_ties_go_to_even_and_away(void **state)
{
	(void)state;
	assert_int_equal(rh_f32_to_bf16(rh_bits_f32(0x3f808000)), 0x3f80);
	assert_int_equal(rh_f32_to_bf16_away(rh_bits_f32(0x3f808000)), 0x3f81);
	assert_int_equal(rh_f32_to_bf16(rh_bits_f32(0x3f818000)), 0x3f82);
	assert_true(isnan(rh_bf16_to_f32(rh_f32_to_bf16(NAN))));
}

/* Known answers of the Random123 distribution (kat_vectors, philox4x32-10). */
static void test_philox_known_answers(void **state)
{
	(void)state;
	struct rh_philox_block zero = rh_philox(0, 0, 0, 0, 0);
	assert_int_equal(zero.word[0], 0x6627e8d5);
	assert_int_equal(zero.word[1], 0xe169c58d);
	assert_int_equal(zero.word[2], 0xbc57ac4c);
	assert_int_equal(zero.word[3], 0x9b00dbd8);
	struct rh_philox_block ones = rh_philox(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX);
	assert_int_equal(ones.word[0], 0x408f276d);
	assert_int_equal(ones.word[1], 0x41c83b0e);
	assert_int_equal(ones.word[2], 0xa20bc7c6);
	assert_int_equal(ones.word[3], 0x6d5451fd);
}

static void count_task(void *context, int64_t i)
{
	__atomic_fetch_add(&((int *)context)[i], 1, __ATOMIC_RELAXED);
}

static void test_pool_runs_each_task_once(void **state)
{
	(void)state;
	for (int threads = 1; threads <= 5; threads++) {
		struct rh_pool *pool;
		check_ok(rh_pool_create(threads, &pool));
		for (int run = 0; run < 200; run++) {
			int counts[97] = {0};
			rh_pool_run(pool, count_task, counts, run % 97);
			for (int i = 0; i < 97; i++)
				assert_int_equal(counts[i], i < run % 97);
		}
		rh_pool_destroy(pool);
	}
}

static void test_pool_groups_and_limits_change_only_who_does_what(void **state)
{
	(void)state;
	for (int threads = 1; threads <= 5; threads++) {
		struct rh_pool *pool;
		int group[5] = {0, 1, 2, 0, 1};
		check_ok(rh_pool_create(threads, &pool));
		rh_pool_group(pool, group, 3);
		for (int run = 0; run < 200; run++) {
			int counts[97] = {0};
			rh_pool_limit(pool, run % 7); /* none, all, and too many */
			if (run % 2)
				rh_pool_run_shared(pool, count_task, counts, (int64_t[]){0, run % 31, run % 31, 31 + run % 61});
			else
				rh_pool_run(pool, count_task, counts, 31 + run % 61);
			for (int i = 0; i < 97; i++)
				assert_int_equal(counts[i], i < 31 + run % 61);
		}
		rh_pool_destroy(pool);
	}
}

static void test_json_takes_whole_numbers_of_any_length(void **state)
{
	(void)state;
	static const char text[] =
	        "{\"a\": [1000000000000000019884624838656, -99999999999999999999,7], \"b\\\"c\": \"12345678901234567890123\","
	        " \"d\": 1234567890123456789012.5, \"e\": 9223372036854775807}";
	json_t *value;
	check_ok(rh_json_parse(text, sizeof text - 1, "x", &value));
	const json_t *list = json_object_get(value, "a");
	check_near(json_real_value(json_array_get(list, 0)) / 1e30, 1, 1e-12);
	check_near(json_real_value(json_array_get(list, 1)) / -1e20, 1, 1e-12);
	assert_int_equal(json_integer_value(json_array_get(list, 2)), 7);
	assert_string_equal(json_string_value(json_object_get(value, "b\"c")), "12345678901234567890123");
	check_near(json_real_value(json_object_get(value, "d")) / 1234567890123456789012.5, 1, 1e-12);
	json_decref(value);
	assert_int_equal(rh_json_parse("[1e999]", 7, "x", &value), -EINVAL);
	assert_int_equal(rh_json_parse("[99999999999999999999", 21, "x", &value), -EINVAL);
}

static void test_json_refuses_duplicates_and_lone_surrogates(void **state)
{
	(void)state;
	json_t *value;
	assert_int_equal(rh_json_parse("{\"a\":1,\"a\":2}", 13, "x", &value), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "x: not valid JSON at column ")); /* of the one line that x is */
	assert_int_equal(rh_json_parse("{\n\"a\":}", 7, "x", &value), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "x: not valid JSON at line 2, column "));
	assert_int_equal(rh_json_parse("\"\\ud800\"", 8, "x", &value), -EINVAL);
	check_ok(rh_json_parse("\"a\\u0000b\"", 10, "x", &value));
	assert_int_equal(json_string_length(value), 3);
	json_decref(value);
}

static void test_a_git_lfs_pointer_is_called_by_its_name(void **state)
{
	(void)state;
	static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0011\nsize 4976698672\n";
	assert_int_equal(rh_lfs_refuse("model.safetensors", pointer, sizeof pointer - 1), -EINVAL);
	assert_string_equal(rh_error(-EINVAL),
	                    "model.safetensors: a git-lfs pointer stands in place of the file (4976698672 bytes): run git lfs "
	                    "pull in its directory, or fetch it with hf download");
	check_ok(rh_lfs_refuse("model.safetensors", pointer + 1, sizeof pointer - 2));
	check_ok(rh_lfs_refuse("empty", "", 0));
}

static void test_file_stands_untouched_until_commit(void **state)
{
	(void)state;
	char dir[] = "/tmp/rh-core-XXXXXX";
	assert_non_null(mkdtemp(dir));
	char *path = rh_path_join(dir, "a");
	check_ok(rh_file_write_whole(path, "old", 3));
	struct rh_file_out *out;
	check_ok(rh_file_create(path, &out));
	check_ok(rh_file_write(out, "newer", 5));
	struct rh_bytes map;
	check_ok(rh_file_load(path, &map));
	assert_int_equal(map.length, 3);
	rh_bytes_free(&map);
	rh_file_abandon(out);
	check_ok(rh_file_create(path, &out));
	check_ok(rh_file_write(out, "newer", 5));
	check_ok(rh_file_commit(out));
	check_ok(rh_file_load(path, &map));
	assert_memory_equal(map.bytes, "newer", 5);
	rh_bytes_free(&map);
	check_ok(rh_dir_remove(dir));
	check_folder_is_empty(dir);
	rh_free(path);
}

static void test_alloc_fails_the_nth_call(void **state)
{
	(void)state;
	rh_alloc_fail_nth(2);
	void *first = rh_alloc(1, 1);
	void *second = rh_alloc(1, 1);
	void *third = rh_alloc(1, 1);
	assert_non_null(first);
	assert_null(second);
	assert_non_null(third);
	assert_int_equal(rh_alloc_fail_nth(0), 3);
	rh_free(first);
	rh_free(third);
}

static char flushed[4096]; /* paths, each in <> */

/* Linked before the C library's. */
int fsync(int fd)
{
	char link[64], path[1024], entry[1088];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t length = readlink(link, path, sizeof path - 1);
	path[length < 0 ? 0 : length] = 0;
	snprintf(entry, sizeof entry, "<%s>", path);
	strncat(flushed, entry, sizeof flushed - strlen(flushed) - 1);
	return fdatasync(fd);
}

/* A power cut must not take what is flushed inside with it. */
static void test_dir_make_flushes_the_parent_of_each_new_one(void **state)
{
	(void)state;
	char dir[] = "/tmp/rh-core-XXXXXX", expected[256];
	assert_non_null(mkdtemp(dir));
	char *inner = rh_path_join(dir, "a/b/");
	flushed[0] = 0;
	check_ok(rh_dir_make(inner));
	snprintf(expected, sizeof expected, "<%s><%s/a>", dir, dir);
	assert_string_equal(flushed, expected);
	check_ok(rh_dir_make(inner));
	assert_string_equal(flushed, expected);
	check_ok(rh_dir_remove(dir));
	rh_free(inner);
}

static void test_utf16_is_known_with_and_without_a_mark(void **state)
{
	(void)state;
	assert_string_equal(rh_text_utf16("\xFF\xFE{", 3), "UTF-16");
	assert_string_equal(rh_text_utf16("{\0\"\0", 4), "UTF-16LE");
	assert_string_equal(rh_text_utf16("\0{\0\"", 4), "UTF-16BE");
	assert_null(rh_text_utf16("{\"a\"", 4));
	assert_null(rh_text_utf16("{\0", 2));
}

static void test_sizes_are_told_in_the_largest_unit(void **state)
{
	(void)state;
	assert_string_equal(rh_size(0).text, "0 B");
	assert_string_equal(rh_size(1023).text, "1023 B");
	assert_string_equal(rh_size(2621440).text, "2.50 MiB");
	assert_string_equal(rh_size(61198110720).text, "57.00 GiB");
	assert_string_equal(rh_size(INT64_MAX).text, "8388608.00 TiB");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_region_holds_what_was_taken_until_it_ends),
	        cmocka_unit_test(test_float16_every_half_survives_the_round_trip),
	        cmocka_unit_test(test_float16_rounding_equals_the_compilers),
	        cmocka_unit_test(test_bf16_ties_go_to_even_and_away),
	        cmocka_unit_test(test_philox_known_answers),
	        cmocka_unit_test(test_pool_runs_each_task_once),
	        cmocka_unit_test(test_pool_groups_and_limits_change_only_who_does_what),
	        cmocka_unit_test(test_json_takes_whole_numbers_of_any_length),
	        cmocka_unit_test(test_json_refuses_duplicates_and_lone_surrogates),
	        cmocka_unit_test(test_a_git_lfs_pointer_is_called_by_its_name),
	        cmocka_unit_test(test_file_stands_untouched_until_commit),
	        cmocka_unit_test(test_dir_make_flushes_the_parent_of_each_new_one),
	        cmocka_unit_test(test_utf16_is_known_with_and_without_a_mark),
	        cmocka_unit_test(test_sizes_are_told_in_the_largest_unit),
	        cmocka_unit_test(test_alloc_fails_the_nth_call),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
