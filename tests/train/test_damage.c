/* A checkpoint is what it was, or it is refused: one bit flipped anywhere in it is found or changes nothing; another machine and other
 * tiers go on from it to the same bits; any look at the file system that fails is an error, never another result. */
#include "cli/good.h"
#include "fs_faults.h"

#include "checkpoint/checkpoint.h"
#include "core/json.h"
#include "core/log.h"
#include "train/train.h"

static int train(const struct scratch *scratch, const char *keys)
{
	char line[2048], filled[1024];
	char *argv[64], *rest = line;
	int argc = 0;
	struct rh_config config = {0};
	struct rh_train_result result;
	fill_in(scratch, keys, filled, sizeof filled);
	snprintf(line, sizeof line,
	         "--model_name_or_path %s/hf --train_file %s/rows.jsonl --max_length 64 --per_device_train_batch_size 1 %s", scratch->dir,
	         scratch->dir, filled);
	for (char *word; (word = strsep(&rest, " "));)
		if (*word)
			argv[argc++] = word;
	int rc = rh_config_load("train", argc, argv, NULL, &config);
	if (!rc)
		rc = rh_train(&config, &result);
	rh_config_free(&config);
	return rc;
}

static void flip(const char *path, uint64_t bit)
{
	unsigned char byte;
	int file = open(path, O_RDWR);
	assert_true(file >= 0);
	assert_int_equal(pread(file, &byte, 1, (off_t)(bit / 8)), 1);
	byte ^= (unsigned char)(1 << bit % 8);
	assert_int_equal(pwrite(file, &byte, 1, (off_t)(bit / 8)), 1);
	close(file);
}

static void test_a_flipped_bit_is_found_or_harmless(void **state)
{
	(void)state;
	int flips = getenv("RH_LONG") ? 10000 : 500, found = 0;
	uint64_t seed = check_seed();
	struct scratch scratch;
	struct rh_names names;
	char dir[128];
	json_t *sums;
	make_good(&scratch);
	check_ok(train(&scratch, "--use_peft true --max_steps 2 --save_steps 2 --output_dir @/out"));
	snprintf(dir, sizeof dir, "%s/out/checkpoint-2", scratch.dir);
	check_ok(rh_dir_list(dir, &names));
	check_ok(rh_json_load(path_of("%s/checksums.json", dir), &sums));
	for (int i = 0; i < flips; i++) {
		const char *name = names.name[check_random(&seed) % names.count];
		struct stat info;
		char path[256];
		snprintf(path, sizeof path, "%s/%s", dir, name);
		assert_int_equal(stat(path, &info), 0);
		uint64_t bit = (check_random(&seed) | (uint64_t)check_random(&seed) << 32) % ((uint64_t)info.st_size * 8);
		flip(path, bit);
		int rc = rh_checkpoint_verify(dir);
		if (rc != -EINVAL && rc != -ENOENT) { /* harmless: white space of the list of sums */
			json_t *now = NULL;
			if (rc || strcmp(name, "checksums.json") || rh_json_load(path, &now) || !json_equal(sums, now))
				fail_msg("bit %llu of %s: %d", (unsigned long long)bit, name, rc);
			json_decref(now);
		}
		found += rc != 0;
		rh_error_clear();
		flip(path, bit);
	}
	check_ok(rh_checkpoint_verify(dir));
	printf("%d flips, %d found, the others harmless\n", flips, found);
	json_decref(sums);
	rh_names_free(&names);
	scratch_close(&scratch);
}

/* In memory on four devices, then on two with what can be on NVMe there: the bits of a run on one device that never stopped. */
static void test_other_devices_and_tiers_go_on_to_the_same_bits(void **state)
{
	(void)state;
	static const char *const kinds[][2] = {{"--use_peft true --bf16 true", "adapter_model.safetensors"},
	                                       {"--bf16 true", "model.safetensors"}};
	for (int k = 0; k < 2; k++) {
		struct scratch scratch;
		make_good(&scratch);
		check_ok(rh_dir_make(path_of("%s/nvme", scratch.dir)));
		const char *common = kinds[k][0];
		check_ok(train(&scratch,
		               path_of("%s --max_steps 6 --save_steps 3 --gradient_accumulation_steps 2 --output_dir @/whole", common)));
		check_ok(train(&scratch,
		               path_of("%s --max_steps 6 --save_steps 3 --gradient_accumulation_steps 2 --device cpu:4 --output_dir @/on",
		                       common)));
		check_ok(rh_dir_remove(path_of("%s/on/checkpoint-6", scratch.dir)));
		check_ok(unlink(path_of("%s/on/%s", scratch.dir, kinds[k][1])));
		check_ok(train(&scratch,
		               path_of("%s --max_steps 6 --save_steps 3 --gradient_accumulation_steps 2 --device cpu:2 --output_dir @/on "
		                       "--spill optimizer,masters%s --max_nvme 64MiB --nvme_dirs @/nvme --resume_from_checkpoint true",
		                       common, k ? "" : ",weights")));
		assert_true(same_file(path_of("%s/whole/%s", scratch.dir, kinds[k][1]), path_of("%s/on/%s", scratch.dir, kinds[k][1])));
		scratch_close(&scratch);
	}
}

static uint64_t descriptors(void)
{
	struct rh_names names;
	check_ok(rh_dir_list("/proc/self/fd", &names));
	uint64_t count = names.count;
	rh_names_free(&names);
	return count;
}

/* Of a resumed run every open, read and look fails once, in each way: it fails with a line or comes to its end, nothing is lost or
 * leaked. */
static void test_any_look_that_fails_is_an_error_or_nothing(void **state)
{
	(void)state;
	static const unsigned kinds[] = {FS_OPEN, FS_READ, FS_STATUS};
	static const int codes[] = {EMFILE, EIO, EACCES};
	const char *keys = "--use_peft true --max_steps 3 --save_steps 1 --output_dir @/out --resume_from_checkpoint true";
	struct scratch scratch;
	char from[128];
	int calls = 0, failed = 0, stride = getenv("RH_LONG") ? 1 : 9;
	make_good(&scratch);
	check_ok(train(&scratch, "--use_peft true --max_steps 2 --save_steps 1 --output_dir @/base"));
	snprintf(from, sizeof from, "%s/base/checkpoint-2", scratch.dir);
	uint64_t before = tree_hash(from), open_before = descriptors();
	for (int k = 0; k < 3; k++)
		for (long at = 1;; at += stride) {
			check_ok(rh_dir_remove(path_of("%s/out", scratch.dir)));
			copy_dir(from, path_of("%s/out/checkpoint-2", scratch.dir));
			fs_fault_set_kinds(FS_FAILS, kinds[k], at, codes[k]);
			int rc = train(&scratch, keys);
			long asked = fs_faults.asked;
			rh_fs_use(NULL);
			calls++;
			failed += rc != 0;
			if (rc && strlen(rh_error(rc)) < 15)
				fail_msg("call %ld: '%s'", at, rh_error(rc));
			if (!rh_dir_exists(path_of("%s/out/checkpoint-2", scratch.dir)))
				fail_msg("call %ld: the checkpoint is gone", at);
			rh_error_clear();
			if (asked < at)
				break;
		}
	assert_int_equal(descriptors(), open_before);
	assert_int_equal(tree_hash(from), before);
	printf("%d calls failed, %d runs with them\n", calls, failed);
	assert_true(failed > 10);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_flipped_bit_is_found_or_harmless),
	        cmocka_unit_test(test_other_devices_and_tiers_go_on_to_the_same_bits),
	        cmocka_unit_test(test_any_look_that_fails_is_an_error_or_nothing),
	};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
