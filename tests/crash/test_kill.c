/* The program is killed at random moments and goes on, again and again, until it ends: in the bits of a run that was never killed. */
#include "cli/good.h"

#include "checkpoint/checkpoint.h"

static const struct {
	const char *keys, *file;
} kinds[] = {
        {"--use_peft true --save_steps 1 --save_total_limit 2 --max_steps 30", "adapter_model.safetensors"},
        {"--use_peft false --save_steps 1 --save_total_limit 1 --max_steps 30", "model.safetensors"},
        {"--use_peft false --bf16 true --optimizer_staleness 1 --save_steps 3 --max_steps 30", "model.safetensors"},
        {"--use_peft true --save_steps 2 --max_steps 30 --spill optimizer,masters --max_nvme 64MiB --nvme_dirs @/nvme",
         "adapter_model.safetensors"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const char *line_of(const struct scratch *scratch, int kind, const char *out, int resumes)
{
	static char full[2048];
	char line[1024];
	snprintf(line, sizeof line, "train @/run.yaml --save_strategy steps --output_dir @/%s %s %s", out, kinds[kind].keys,
	         resumes ? "--resume_from_checkpoint true" : "");
	fill_in(scratch, line, full, sizeof full);
	return full;
}

static void make_run(struct scratch *scratch)
{
	make_good(scratch);
	write_text(path_of("%s/run.yaml", scratch->dir),
	           path_of("model_name_or_path: %s/hf\ntrain_file: %s/rows.jsonl\nmax_length: 64\nper_device_train_batch_size: 2\n",
	                   scratch->dir, scratch->dir));
	check_ok(rh_dir_make(path_of("%s/nvme", scratch->dir)));
	for (int k = 0; k < KINDS; k++)
		run_ok(scratch, "%s", line_of(scratch, k, path_of("whole%d", k), 0));
}

static void test_killed_again_and_again_it_ends_in_the_same_weights(void **state)
{
	(void)state;
	const char *wanted = getenv("RH_CRASH_N");
	int kills = wanted ? atoi(wanted) : getenv("RH_LONG") ? 400 : 24, done = 0, runs = 0, resumed = 0;
	uint64_t seed = check_seed();
	struct scratch scratch;
	make_run(&scratch);
	for (int k = 0; done < kills; k = (k + 1) % KINDS, runs++) {
		char out[96];
		int finished = 0;
		snprintf(out, sizeof out, "%s/out", scratch.dir);
		check_ok(rh_dir_remove(out));
		for (int tries = 0; !finished; tries++) {
			struct ran ran;
			check_ok(rh_checkpoint_put_back(out));
			int any = rh_checkpoint_count(out);
			if (any <= 0)
				check_ok(rh_dir_remove(out));
			resumed += any > 0;
			run_start(&scratch, line_of(&scratch, k, "out", any > 0), 0, &ran);
			if (tries < 30 && done < kills) {
				usleep(check_random(&seed) % 60000);
				done += kill(ran.pid, SIGKILL) == 0;
			}
			run_wait(&ran);
			if (ran.status && ran.status != 128 + SIGKILL)
				fail_msg("kind %d, after %d kills: exit %d: %s", k, done, ran.status, ran.err);
			finished = ran.status == 0;
			run_free(&ran);
		}
		if (!same_file(path_of("%s/%s", out, kinds[k].file), path_of("%s/whole%d/%s", scratch.dir, k, kinds[k].file)))
			fail_msg("kind %d, after %d kills: another result", k, done);
	}
	printf("%d kills in %d runs, %d of them gone on with: all ended in the same weights\n", done, runs, resumed);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_again_and_again_it_ends_in_the_same_weights)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
