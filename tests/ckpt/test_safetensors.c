#include "folder.h"
#include "scratch.h"
#include "tensor_bytes.h"

#include "ckpt/model_out.h"
#include "ckpt/safetensors.h"
#include "core/json.h"

/* Writes a file of this header and `data` zero bytes and opens it. */
static int open_made(const char *header, size_t data)
{
	char dir[64], *bytes = calloc(1, 8 + strlen(header) + data);
	uint64_t length = strlen(header);
	scratch_make(dir);
	memcpy(bytes, &length, 8);
	memcpy(bytes + 8, header, length);
	scratch_write(dir, "m.safetensors", bytes, 8 + length + data);
	char *path = rh_path_join(dir, "m.safetensors");
	struct rh_safetensors *file;
	int rc = rh_safetensors_open(path, &file);
	if (!rc)
		rh_safetensors_close(file);
	assert_true(rh_dir_remove(dir) == 0);
	rh_free(path);
	free(bytes);
	return rc;
}

#define A(dtype, shape, offsets) "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(first, second)                                                                                                                 \
	"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" first                                                                   \
	"},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" second "}}"

static void test_safetensors_accepts_what_the_format_allows(void **state)
{
	(void)state;
	check_ok(open_made("{}", 0));
	check_ok(open_made(A("F32", "[2,3]", "[0,24]") "      ", 24));
	check_ok(open_made(A("F32", "[]", "[0,4]"), 4));
	check_ok(open_made(A("F32", "[0,7]", "[0,0]"), 0));
	check_ok(open_made(TWO("[4,8]", "[0,4]"), 8));
	check_ok(open_made("{\"e\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[0,0]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],"
	                   "\"data_offsets\":[0,4]},\"__metadata__\":{\"k\":\"v\"}}",
	                   4));
}

static void test_safetensors_refuses_lying_headers(void **state)
{
	(void)state;
	check_refused(open_made(A("F32", "[2,3]", "[0,24]"), 23), "tensor 'a' lies at bytes 0 to 24, but the file has 23 bytes of data");
	check_refused(open_made(A("F32", "[2,3]", "[0,24]"), 25), "1 bytes follow the last tensor");
	check_refused(open_made(A("F32", "[2,3]", "[0,20]"), 20), "has 20 bytes, but its shape and type need 24");
	check_refused(open_made(A("F32", "[2,3]", "[24,0]"), 24), "tensor 'a' lies at bytes 24 to 0");
	check_refused(open_made(A("F32", "[2,3]", "[-4,20]"), 24), "tensor 'a' lies at bytes -4 to 20");
	check_refused(open_made(A("F32", "[2,3]", "[0,1e3]"), 24), "has no 'data_offsets' pair");
	check_refused(open_made(A("F32", "[2,3]", "[0]"), 24), "has no 'data_offsets' pair");
	check_refused(open_made(A("F32", "[2,3]", "7"), 24), "has no 'data_offsets' pair");
	check_refused(open_made(A("F8_E5M2", "[24]", "[0,24]"), 24), "tensor 'a' has type F8_E5M2, which is not supported");
	check_refused(open_made(A("Q4_K", "[256]", "[0,144]"), 144), "tensor 'a' has type Q4_K, which is not supported");
	check_refused(open_made(A("F32", "[-2,-3]", "[0,24]"), 24), "has a shape that is not whole numbers from 0");
	check_refused(open_made(A("F32", "[2.0,3]", "[0,24]"), 24), "has a shape that is not whole numbers from 0");
	check_refused(open_made(A("F32", "[4611686018427387904,4]", "[0,0]"), 0), "has a shape whose size overflows");
	check_refused(open_made(A("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4), "has 9 dimensions (at most 8)");
	check_refused(open_made(A("F32", "[99999999999999999999]", "[0,4]"), 4), "a shape that is not whole numbers from 0");
	check_refused(open_made(TWO("[0,4]", "[0,4]"), 4), "overlaps");
	check_refused(open_made(TWO("[0,4]", "[2,6]"), 6), "tensor 'b' overlaps 'a'");
	check_refused(open_made(TWO("[0,4]", "[5,9]"), 9), "tensor 'b' leaves a gap after 'a'");
	check_refused(open_made(TWO("[1,5]", "[5,9]"), 9), "tensor 'a' leaves a gap after 'the header'");
	check_refused(open_made("{\"a\":1}", 0), "header entry 'a' must be an object");
	check_refused(open_made("{\"a\":{}}", 0), "tensor 'a' has no 'dtype'");
	check_refused(open_made("{\"a\":{\"dtype\":\"F32\"}}", 0), "tensor 'a' has no 'shape' list");
	check_refused(open_made("{\"__metadata__\":{\"k\":1}}", 0), "__metadata__: 'k' must be a string");
	check_refused(open_made("{\"__metadata__\":[]}", 0), "__metadata__ must be an object");
	check_refused(open_made("{\"a\":{},\"a\":{}}", 0), "not valid JSON");
	check_refused(open_made("{\"\xff\":{}}", 0), "not valid JSON");
	check_refused(open_made("[]", 0), "the header is no JSON object");
	check_refused(open_made("", 0), "the header is no JSON object");
	check_refused(open_made("{", 0), "not valid JSON");
}

static void test_safetensors_refuses_lying_lengths(void **state)
{
	(void)state;
	char dir[64];
	scratch_make(dir);
	char *path = rh_path_join(dir, "m");
	struct rh_safetensors *file;
	scratch_write(dir, "m", "1234567", 7);
	check_refused(rh_safetensors_open(path, &file), "7 bytes are too few for a safetensors file (truncated?)");
	scratch_write(dir, "m", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
	check_refused(rh_safetensors_open(path, &file), "the header claims 18446744073709551615 bytes, but the file has 10");
	scratch_write(dir, "m", "\x03\0\0\0\0\0\0\0{}", 10);
	check_refused(rh_safetensors_open(path, &file), "the header claims 3 bytes, but the file has 10");
	scratch_write(dir, "m", "", 0);
	check_refused(rh_safetensors_open(path, &file), "0 bytes are too few");
	check_ok(rh_dir_remove(dir));
	assert_int_equal(rh_safetensors_open(path, &file), -ENOENT);
	rh_free(path);
}

static void test_safetensors_written_files_read_back(void **state)
{
	(void)state;
	const struct rh_safetensors_entry entries[] = {
	        {"z.weight", RH_BF16, 2, {3, 5}}, {"quote\"d", RH_F32, 1, {2}}, {"empty", RH_I64, 2, {0, 4}}, {"scalar", RH_U8, 0, {0}}};
	char data[64], dir[64];
	for (int i = 0; i < 64; i++)
		data[i] = (char)(i * 7);
	scratch_make(dir);
	char *path = rh_path_join(dir, "w.safetensors");
	struct rh_safetensors_out *out;
	check_ok(rh_safetensors_create(path, entries, 4, &out));
	check_ok(rh_safetensors_write(out, data, 13)); /* across borders */
	check_ok(rh_safetensors_write(out, data + 13, 26));
	check_refused(rh_safetensors_write(out, data, 1), "more bytes were written than its header declares (39)");
	assert_int_equal(rh_file_exists(path), 0);
	check_ok(rh_safetensors_commit(out));
	struct rh_safetensors *file;
	check_ok(rh_safetensors_open(path, &file));
	assert_int_equal(rh_safetensors_count(file), 4);
	int64_t offset = 0;
	for (int i = 0; i < 4; i++) {
		const struct rh_safetensor *tensor = rh_safetensors_find(file, entries[i].name);
		assert_non_null(tensor);
		assert_int_equal(tensor->dtype, entries[i].dtype);
		assert_int_equal(tensor->rank, entries[i].rank);
		assert_memory_equal(tensor->shape, entries[i].shape, (size_t)entries[i].rank * 8);
		assert_memory_equal(tensor_bytes(file, tensor), data + offset, (size_t)tensor->bytes);
		offset += tensor->bytes;
	}
	assert_int_equal(rh_safetensors_find(file, "z.weight")->offset % 8, 0);
	assert_null(rh_safetensors_find(file, "y"));
	rh_safetensors_close(file);
	check_ok(rh_safetensors_create(path, entries, 1, &out));
	check_ok(rh_safetensors_write(out, data, 29));
	check_refused(rh_safetensors_commit(out), "29 bytes were written, but its header declares 30");
	check_ok(rh_safetensors_open(path, &file)); /* the old one stands */
	assert_int_equal(rh_safetensors_count(file), 4);
	rh_safetensors_close(file);
	const struct rh_safetensors_entry twice[] = {{"a", RH_F32, 1, {1}}, {"a", RH_F32, 1, {1}}};
	check_refused(rh_safetensors_create(path, twice, 2, &out), "tensor 'a' is declared twice");
	check_ok(rh_dir_remove(dir));
	rh_free(path);
}

static int file_there(const char *dir, const char *name)
{
	char *path = rh_path_join(dir, name);
	int there = rh_file_exists(path);
	rh_free(path);
	return there;
}

/* Writes 3 tensors of 40, 24 and 16 bytes with shards of at most `shard_bytes`, `chunk` bytes at a time. */
static void write_model(const char *dir, int64_t shard_bytes, int64_t chunk)
{
	const struct rh_safetensors_entry entries[] = {{"a", RH_F32, 2, {2, 5}}, {"b", RH_F32, 1, {6}}, {"c", RH_BF16, 1, {8}}};
	char data[80];
	for (int i = 0; i < 80; i++)
		data[i] = (char)i;
	struct rh_model_out *out;
	check_ok(rh_model_out_create(dir, entries, 3, shard_bytes, &out));
	for (int64_t at = 0; at < 80; at += chunk)
		check_ok(rh_model_out_write(out, data + at, at + chunk > 80 ? 80 - at : chunk));
	check_refused(rh_model_out_write(out, data, 1), "more bytes were written than");
	check_ok(rh_model_out_commit(out));
}

static void test_model_out_cuts_shards_and_writes_the_index(void **state)
{
	(void)state;
	char dir[64];
	scratch_make(dir);
	for (int64_t chunk = 1; chunk <= 80; chunk += 13) {
		write_model(dir, RH_SHARD_BYTES, chunk);
		assert_true(file_there(dir, "model.safetensors"));
		assert_false(file_there(dir, "model.safetensors.index.json"));
		check_ok(rh_dir_remove(dir));
		check_ok(rh_dir_make(dir));
		write_model(dir, 40, chunk); /* a | b c */
		char *path = rh_path_join(dir, "model.safetensors.index.json");
		json_t *index;
		check_ok(rh_json_load(path, &index));
		json_t *map = json_object_get(index, "weight_map");
		assert_string_equal(json_string_value(json_object_get(map, "a")), "model-00001-of-00002.safetensors");
		assert_string_equal(json_string_value(json_object_get(map, "b")), "model-00002-of-00002.safetensors");
		assert_string_equal(json_string_value(json_object_get(map, "c")), "model-00002-of-00002.safetensors");
		assert_int_equal(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")), 80);
		json_decref(index);
		rh_free(path);
		path = rh_path_join(dir, "model-00002-of-00002.safetensors");
		struct rh_safetensors *file;
		check_ok(rh_safetensors_open(path, &file));
		assert_int_equal(*(const char *)tensor_bytes(file, rh_safetensors_find(file, "b")), 40);
		assert_int_equal(*(const char *)tensor_bytes(file, rh_safetensors_find(file, "c")), 64);
		rh_safetensors_close(file);
		rh_free(path);
		check_ok(rh_dir_remove(dir));
		check_ok(rh_dir_make(dir));
	}
	write_model(dir, 1, 80);
	assert_true(file_there(dir, "model-00003-of-00003.safetensors"));
	check_ok(rh_dir_remove(dir));
}

static void test_model_out_leaves_nothing_when_given_up(void **state)
{
	(void)state;
	const struct rh_safetensors_entry entries[] = {{"a", RH_F32, 1, {4}}, {"b", RH_F32, 1, {4}}};
	char dir[64], data[32] = {0};
	struct rh_model_out *out;
	scratch_make(dir);
	check_ok(rh_model_out_create(dir, entries, 2, 16, &out));
	check_ok(rh_model_out_write(out, data, 20));
	assert_false(file_there(dir, "model-00001-of-00002.safetensors")); /* before the model is whole */
	rh_model_out_abandon(out);
	check_folder_is_empty(dir);
	check_ok(rh_model_out_create(dir, entries, 2, 16, &out));
	check_ok(rh_model_out_write(out, data, 16));
	check_refused(rh_model_out_commit(out), "only 1 of 2 shards were filled");
	check_folder_is_empty(dir);
	check_ok(rh_model_out_create(dir, entries, 2, 16, &out));
	check_ok(rh_model_out_write(out, data, 31));
	check_refused(rh_model_out_commit(out), "15 bytes were written, but its header declares 16");
	check_folder_is_empty(dir);
	check_ok(rh_dir_remove(dir));
}

static int attempt(const char *path)
{
	struct rh_safetensors *file;
	int rc = rh_safetensors_open(path, &file);
	if (rc)
		return rc;
	size_t sum = 0;
	for (int64_t i = 0; i < rh_safetensors_count(file); i++) {
		const struct rh_safetensor *tensor = rh_safetensors_at(file, i);
		for (int64_t k = 0; k < tensor->bytes; k += 64) {
			unsigned char byte;
			check_ok(rh_safetensors_read(file, tensor, k, &byte, 1));
			sum += byte;
		}
		assert_ptr_equal(rh_safetensors_find(file, tensor->name), tensor);
	}
	rh_safetensors_close(file);
	return (int)(sum >> 63);
}

static void test_safetensors_survives_mutation(void **state)
{
	(void)state;
	scratch_fuzz(REFERENCE "llama/model-00003-of-00003.safetensors", "m.safetensors", 700, 10000, attempt);
}

static void test_safetensors_survives_failed_allocations(void **state)
{
	(void)state;
	char dir[64];
	scratch_make(dir);
	for (uint64_t n = 1;; n++) {
		struct rh_safetensors *file;
		struct rh_model_out *out;
		const struct rh_safetensors_entry entries[] = {{"a", RH_F32, 1, {4}}, {"b", RH_F32, 1, {4}}};
		rh_alloc_fail_nth(n);
		int rc = rh_safetensors_open(REFERENCE "qwen2/model.safetensors", &file);
		if (!rc) {
			rh_safetensors_close(file);
			rc = rh_model_out_create(dir, entries, 2, 16, &out);
			if (!rc) {
				rc = rh_model_out_write(out, "................................", 32);
				if (rc)
					rh_model_out_abandon(out);
				else
					rc = rh_model_out_commit(out);
			}
		}
		int reached = rh_alloc_fail_nth(0) >= n;
		if (!reached) {
			assert_int_equal(rc, 0);
			break;
		}
		assert_int_equal(rc, -ENOMEM);
		check_folder_is_empty(dir);
	}
	check_ok(rh_dir_remove(dir));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_safetensors_accepts_what_the_format_allows),
	        cmocka_unit_test(test_safetensors_refuses_lying_headers),
	        cmocka_unit_test(test_safetensors_refuses_lying_lengths),
	        cmocka_unit_test(test_safetensors_written_files_read_back),
	        cmocka_unit_test(test_model_out_cuts_shards_and_writes_the_index),
	        cmocka_unit_test(test_model_out_leaves_nothing_when_given_up),
	        cmocka_unit_test(test_safetensors_survives_mutation),
	        cmocka_unit_test(test_safetensors_survives_failed_allocations),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
