/* Bases are compared by their weights: of boxes with one another, of a run that goes on with what its adapter was trained on. Equal weights
 * in another file are equal. */
#include "cli/good.h"

#include "port.h"

/* Another base beside hf, of the same shape: other/; and hf's own as a GGUF file, same.gguf, and as a directory written anew, same/. */
static void make_bases(struct scratch *scratch)
{
	uint64_t header;
	size_t length;
	make_good(scratch);
	copy_dir(path_of("%s/hf", scratch->dir), path_of("%s/other", scratch->dir));
	const char *path = path_of("%s/other/model.safetensors", scratch->dir);
	char *bytes = read_bytes(path, &length);
	memcpy(&header, bytes, sizeof header);
	float *first = (float *)(void *)(bytes + 8 + header);
	*first *= 1.5f;
	write_bytes(path, bytes, length);
	free(bytes);
	run_ok(scratch, "export --model_name_or_path %s/hf --outfile %s/same.gguf --outtype f32", scratch->dir, scratch->dir);
	run_ok(scratch, "export --model_name_or_path %s/same.gguf --output_dir %s/same --outtype f32", scratch->dir, scratch->dir);
	static const char *const compared[] = {"config.json", "tokenizer.json", "tokenizer_config.json"}; /* as text, in greetings */
	for (int i = 0; i < 3; i++)
		copy_file(path_of("%s/hf/%s", scratch->dir, compared[i]), path_of("%s/same/%s", scratch->dir, compared[i]));
}

/* Two boxes with these bases; the exit status of both, and in *told whether either names the difference. */
static int run_two(const struct scratch *scratch, const char *lower, const char *upper, const char *more, int *told)
{
	const char *const base[] = {lower, upper};
	struct ran ran[2];
	int port = free_port(), status;
	for (int k = 0; k < 2; k++) {
		check_ok(rh_dir_remove(path_of("%s/box%d", scratch->dir, k + 1)));
		run_start(scratch,
		          path_of("train %s/run.yaml --model_name_or_path %s/%s --output_dir %s/box%d --mode sync-pp --boxes 2 --box %d "
		                  "--box_cuts 2 --%s %s127.0.0.1:%d %s",
		                  scratch->dir, scratch->dir, base[k], scratch->dir, k + 1, k + 1, k ? "link_below" : "link_above",
		                  k ? "" : "listen:", port, more),
		          0, &ran[k]);
	}
	run_wait(&ran[0]);
	run_wait(&ran[1]);
	*told = strstr(ran[0].err, "the boxes differ in base weights: ") || strstr(ran[1].err, "the boxes differ in base weights: ");
	status = ran[0].status | ran[1].status;
	if (!*told && status)
		fail_msg("%s\n%s", ran[0].err, ran[1].err);
	run_free(&ran[0]);
	run_free(&ran[1]);
	return status;
}

static void test_boxes_with_other_bases_do_not_train_together(void **state)
{
	(void)state;
	struct scratch scratch;
	int told;
	make_bases(&scratch);
	for (int lora = 0; lora < 2; lora++) {
		const char *more = lora ? "--use_peft true" : "";
		assert_int_equal(run_two(&scratch, "hf", "hf", more, &told), 0);
		assert_int_equal(run_two(&scratch, "hf", "same", more, &told), 0);
		assert_int_not_equal(run_two(&scratch, "hf", "other", more, &told), 0);
		assert_true(told);
	}
	scratch_close(&scratch);
}

static void test_an_adapter_goes_on_beside_its_own_base(void **state)
{
	(void)state;
	static const char *const run = "train %s/run.yaml --use_peft true --save_steps 1";
	struct scratch scratch;
	make_bases(&scratch);
	const char *dir = scratch.dir;
	run_ok(&scratch, run, dir);
	refused(&scratch, "train @/run.yaml --use_peft true --model_name_or_path @/other --max_steps 4 --resume_from_checkpoint true",
	        "resume_from_checkpoint: |checkpoint-2 was trained on other weights than those of |/other");
	run_ok(&scratch, "train %s/run.yaml --use_peft true --model_name_or_path %s/same.gguf --max_steps 3 --resume_from_checkpoint true",
	       dir, dir);
	static const char *const uses[] = {
	        "train @/run.yaml --adapter_name_or_path @/out --output_dir @/more --model_name_or_path ",
	        "eval --validation_file @/rows.jsonl --max_length 64 --adapter_name_or_path @/out --model_name_or_path ",
	        "generate --prompt the --max_new_tokens 2 --adapter_name_or_path @/out --model_name_or_path "};
	for (size_t i = 0; i < 3 * sizeof uses / sizeof *uses; i++) {
		static const char *const bases[] = {"hf", "same.gguf", "other"};
		char line[1024];
		fill_in(&scratch, uses[i / 3], line, sizeof line);
		struct ran ran = run_line(&scratch, "%s%s/%s", line, dir, bases[i % 3]);
		int warned = strstr(ran.err, "warning: adapter_name_or_path: ") &&
		             strstr(ran.err, "was trained on other weights than those of ");
		if (ran.status || warned != (i % 3 == 2))
			fail_msg("%s%s: exit %d: %s", line, bases[i % 3], ran.status, ran.err);
		run_free(&ran);
		check_ok(rh_dir_remove(path_of("%s/more", dir)));
	}
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_boxes_with_other_bases_do_not_train_together),
	        cmocka_unit_test(test_an_adapter_goes_on_beside_its_own_base),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
