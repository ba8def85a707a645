/* Checksums of what a run writes and of what it starts from, against sha256sum and git. */
#include "cli/good.h"

#include "ckpt/safetensors.h"

#include <xxhash.h>

/* What a program prints, without its last newline. */
static const char *printed(const char *command)
{
	static char text[256];
	FILE *out = popen(command, "r");
	assert_non_null(out);
	size_t length = fread(text, 1, sizeof text - 1, out);
	text[length] = 0;
	text[strcspn(text, "\n")] = 0;
	assert_int_equal(pclose(out), 0);
	return text;
}

static void flip(const char *path, long from_end)
{
	FILE *file = fopen(path, "r+b");
	assert_non_null(file);
	assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
	int byte = fgetc(file);
	assert_int_equal(fseek(file, -from_end, SEEK_END), 0);
	fputc(byte ^ 1, file);
	fclose(file);
}

static void test_results_carry_their_checksums(void **state)
{
	(void)state;
	static const char *const ways[] = {"--use_peft true", "--use_peft false"};
	for (int i = 0; i < 2; i++) {
		struct scratch scratch;
		make_good(&scratch);
		run_ok(&scratch, "train %s/run.yaml %s", scratch.dir, ways[i]);
		printed(path_of("cd %s/out && sha256sum -c --quiet SHA256SUMS && echo good", scratch.dir));
		assert_true(find_or_not(path_of("%s/out/SHA256SUMS", scratch.dir),
		                        i ? "  model.safetensors\n" : "  adapter_model.safetensors\n"));
		assert_true(find_or_not(path_of("%s/out/SHA256SUMS", scratch.dir), "  tokenizer.json\n"));
		/* what is made of it, too, in a directory that holds another's list */
		check_ok(rh_dir_make(path_of("%s/made", scratch.dir)));
		copy_file(path_of("%s/out/SHA256SUMS", scratch.dir), path_of("%s/made/SHA256SUMS", scratch.dir));
		if (i)
			run_ok(&scratch, "join --parts %s/out --output_dir %s/made", scratch.dir, scratch.dir);
		else
			run_ok(&scratch, "merge --model_name_or_path %s/hf --adapter_name_or_path %s/out --output_dir %s/made", scratch.dir,
			       scratch.dir, scratch.dir);
		printed(path_of("cd %s/made && sha256sum -c --quiet SHA256SUMS && grep -q model.safetensors SHA256SUMS && echo good",
		                scratch.dir));
		struct rh_safetensors *file;
		const char *path = path_of("%s/out/%s", scratch.dir, i ? "model.safetensors" : "adapter_model.safetensors");
		check_ok(rh_safetensors_open(path, &file));
		assert_int_equal(rh_safetensors_verify(file), 1);
		rh_safetensors_close(file);
		/* the sum in the header is XXH3-128 of all that follows it */
		size_t length;
		char *bytes = read_bytes(path, &length), hex[40];
		uint64_t header;
		memcpy(&header, bytes, 8);
		XXH128_hash_t hash = XXH3_128bits(bytes + 8 + header, length - 8 - header);
		snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
		assert_non_null(memmem(bytes, 8 + header, hex, 32));
		free(bytes);
		flip(path, 5);
		check_ok(rh_safetensors_open(path, &file));
		assert_int_equal(rh_safetensors_verify(file), -EINVAL);
		rh_safetensors_close(file);
		if (!i)
			refused(&scratch, "eval @/run.yaml --validation_file @/rows.jsonl --adapter_name_or_path @/out",
			        "adapter_model.safetensors: its tensors do not match the checksum in its header");
		scratch_close(&scratch);
	}
}

static const char *const verified = "train @/run.yaml --use_peft true --verify_base true";

static void expect(const struct scratch *scratch, const char *part)
{
	char line[2048];
	fill_in(scratch, verified, line, sizeof line);
	struct ran ran = run_line(scratch, "%s", line);
	if (ran.status || !strstr(ran.err, part))
		fail_msg("exit %d, '%s' expected in: %s", ran.status, part, ran.err);
	run_free(&ran);
	check_ok(rh_dir_remove(path_of("%s/out", scratch->dir)));
}

static void test_base_files_are_checked_against_what_is_recorded(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	refused(&scratch, verified, "verify_base: ");
	refused(&scratch, verified, "no sum of its weights is recorded");
	/* sha256sum's list */
	printed(path_of("cd %s/hf && sha256sum model.safetensors config.json > SHA256SUMS; echo", dir));
	expect(&scratch, "/hf: 2 files match their recorded checksums; of others none is recorded");
	flip(path_of("%s/hf/model.safetensors", dir), 9);
	refused(&scratch, verified, "/hf/model.safetensors: its SHA-256 is ");
	flip(path_of("%s/hf/model.safetensors", dir), 9);
	check_ok(unlink(path_of("%s/hf/SHA256SUMS", dir)));
	/* a download's metadata: SHA-256 of large files, git's blob name of small ones */
	check_ok(rh_dir_make(path_of("%s/hf/.cache/huggingface/download", dir)));
	printed(path_of("cd %s/hf && printf 'abc\\n%%s\\n1700000000.0\\n' $(sha256sum < model.safetensors | cut -d' ' -f1) > "
	                ".cache/huggingface/download/model.safetensors.metadata; echo",
	                dir));
	printed(path_of("cd %s/hf && printf 'abc\\n%%s\\n1700000000.0\\n' $(git hash-object config.json) > "
	                ".cache/huggingface/download/config.json.metadata; echo",
	                dir));
	expect(&scratch, "/hf: 2 files match their recorded checksums");
	edit_file(path_of("%s/hf/config.json", dir), "{", "{ ");
	refused(&scratch, verified, "/hf/config.json: its SHA-1 as git makes it is ");
	edit_file(path_of("%s/hf/config.json", dir), "{ ", "{");
	check_ok(rh_dir_remove(path_of("%s/hf/.cache", dir)));
	/* a clone with git-lfs: its objects have the names that pointers say */
	printed(path_of(
	        "cd %s/hf && s=$(sha256sum < model.safetensors | cut -d' ' -f1) && o=.git/lfs/objects/$(echo $s | cut -c1-2)/$(echo $s | "
	        "cut -c3-4) && mkdir -p $o && cp model.safetensors $o/$s; echo",
	        dir));
	expect(&scratch, "/hf: 1 files match their recorded checksums; of others none is recorded");
	flip(path_of("%s/hf/model.safetensors", dir), 9);
	refused(&scratch, verified, "of which git-lfs keeps no file in ");
	flip(path_of("%s/hf/model.safetensors", dir), 9);
	check_ok(rh_dir_remove(path_of("%s/hf/.git", dir)));
	/* the hub's cache: a link to a blob that is named by its sum */
	check_ok(rh_dir_make(path_of("%s/blobs", dir)));
	printed(path_of(
	        "cd %s && s=$(sha256sum < hf/model.safetensors | cut -d' ' -f1) && mv hf/model.safetensors blobs/$s && ln -s ../blobs/$s "
	        "hf/model.safetensors; echo",
	        dir));
	expect(&scratch, "/hf: 1 files match their recorded checksums");
	flip(path_of("%s/hf/model.safetensors", dir), 9);
	refused(&scratch, verified, "/hf/model.safetensors: its SHA-256 is ");
	/* a pointer in place of the file, asked for or not */
	check_ok(unlink(path_of("%s/hf/model.safetensors", dir)));
	write_text(path_of("%s/hf/model.safetensors", dir), "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12\n");
	refused(&scratch, verified, "git-lfs pointer");
	refused(&scratch, "train @/run.yaml --use_peft true", "git-lfs pointer");
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_results_carry_their_checksums),
	        cmocka_unit_test(test_base_files_are_checked_against_what_is_recorded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
