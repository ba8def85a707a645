/* A model written over another, killed or failing at each change to the file system: one of the two is there, or none; no mix of them. */
#include "crash/record.h"
#include "fs_faults.h"
#include "scratch.h"

#include "ckpt/model_out.h"
#include "core/json.h"

#include <sys/wait.h>

static const struct rh_safetensors_entry entries[] = {{"a", RH_F32, 1, {4}}, {"b", RH_F32, 1, {4}}, {"c", RH_F32, 1, {4}}};

/* All bytes are `value`; shards of at most so many bytes. */
static int save(const char *dir, char value, int64_t shard_bytes)
{
	struct rh_model_out *out;
	char data[48];
	memset(data, value, sizeof data);
	int rc = rh_model_out_create(dir, entries, 3, shard_bytes, &out);
	if (rc)
		return rc;
	rc = rh_model_out_write(out, data, sizeof data);
	if (!rc)
		return rh_model_out_commit(out);
	rh_model_out_abandon(out);
	return rc;
}

/* The value that all bytes of a tensor have. */
static char value_in(const char *dir, const char *file, const char *tensor)
{
	struct rh_safetensors *opened;
	char *path = rh_path_join(dir, file), value;
	check_ok(rh_safetensors_open(path, &opened));
	check_ok(rh_safetensors_read(opened, rh_safetensors_find(opened, tensor), 0, &value, 1));
	rh_safetensors_close(opened);
	rh_free(path);
	return value;
}

/* What a reader finds: the value of a model's bytes, 0 if there is none. A mix fails. */
static char seen(const char *dir, const char *when)
{
	char *single = rh_path_join(dir, "model.safetensors"), *index = rh_path_join(dir, "model.safetensors.index.json"), value = 0;
	json_t *root = NULL;
	if (!rh_file_exists(single) && rh_file_exists(index))
		check_ok(rh_json_load(index, &root));
	for (int i = 0; i < 3 && (root || rh_file_exists(single)); i++) {
		const char *file = root ? json_string_value(json_object_get(json_object_get(root, "weight_map"), entries[i].name))
		                        : "model.safetensors";
		char now = value_in(dir, file, entries[i].name);
		if (value && now != value)
			fail_msg("%s: a mix", when);
		value = now;
	}
	json_decref(root);
	rh_free(single);
	rh_free(index);
	return value;
}

/* Returns how many faults left no model. */
static int sweep(enum fs_fault what, int64_t earlier_bytes, int64_t bytes)
{
	int none = 0;
	for (long at = 1;; at++) {
		char dir[64], when[64];
		int status;
		snprintf(when, sizeof when, "%s at change %ld", what == FS_KILLED ? "killed" : "failing", at);
		scratch_make(dir);
		check_ok(save(dir, 'a', earlier_bytes));
		fflush(NULL);
		pid_t child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			fs_fault_set(what, at);
			int rc = save(dir, 'b', bytes);
			_exit(rc ? 1 : fs_faults.asked < at ? 2 : 0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		char value = seen(dir, when);
		if (WEXITSTATUS(status) == 2)
			assert_int_equal(value, 'b');
		none += !value;
		check_ok(save(dir, 'c', bytes)); /* and it does not stand in the way of the next */
		assert_int_equal(seen(dir, when), 'c');
		check_ok(rh_dir_remove(dir));
		if (WEXITSTATUS(status) == 2)
			break;
	}
	return none;
}

static void test_a_model_replaces_an_earlier_one_whole(void **state)
{
	(void)state;
	for (int what = FS_KILLED; what <= FS_FAILS; what++) {
		assert_int_equal(sweep((enum fs_fault)what, 1000, 1000), 0);
		/* only from the earlier index's end to the new one's: the removals, their flush, the renames */
		assert_true(sweep((enum fs_fault)what, 16, 16) <= 6);
		assert_true(sweep((enum fs_fault)what, 32, 16) <= 6);
		assert_true(sweep((enum fs_fault)what, 1000, 16) <= 6);
		assert_true(sweep((enum fs_fault)what, 16, 1000) <= 3);
	}
}

/* When a model is told to be there its directory has been flushed after the last change of a name. */
static void test_names_are_flushed(void **state)
{
	(void)state;
	for (int shards = 1; shards <= 3; shards += 2) {
		char dir[64];
		int named = -1, flushed = -1;
		scratch_make(dir);
		record_begin(dir);
		check_ok(save(dir, 'a', 48 / shards));
		for (int i = 0; i < record.changes; i++) {
			named = record.change[i].kind == RECORD_NAMES ? i : named;
			flushed = record.change[i].kind == RECORD_SYNC && record.change[i].inode == 1 ? i : flushed;
		}
		record_end();
		record_free();
		assert_true(named >= 0 && flushed > named);
		check_ok(rh_dir_remove(dir));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_model_replaces_an_earlier_one_whole),
	        cmocka_unit_test(test_names_are_flushed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
