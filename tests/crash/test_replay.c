/* Runs are recorded; every state that a power cut may have left of output_dir at any moment is gone on from. The newest checkpoint that the
 * run had finished is there and whole, or a newer one; a result that was told of is there. Leaving out a flush loses one of them. */
#include "cli/good.h"
#include "crash/states.h"

#include "checkpoint/checkpoint.h"
#include "checkpoint/output.h"
#include "core/log.h"
#include "train/train.h"

struct kind {
	const char *name, *keys;
	const char *file; /* that its result is */
	int resumes;      /* goes on from checkpoint 2, with later ones in its way */
	int is_asked;     /* for a checkpoint, by the file SAVE */
};

static const struct kind kinds[] = {
        {"full", "--max_steps 4 --save_steps 1 --save_total_limit 2", "model.safetensors", 0, 0},
        {"lora", "--use_peft true --max_steps 4 --save_steps 1 --save_total_limit 1", "adapter_model.safetensors", 0, 0},
        {"spilled", "--use_peft true --max_steps 4 --save_steps 2 --spill optimizer,masters --max_nvme 64MiB --nvme_dirs %s/nvme",
         "adapter_model.safetensors", 0, 0},
        {"stale", "--max_steps 4 --save_steps 2 --optimizer_staleness 1 --bf16 true", "model.safetensors", 0, 0},
        {"resumed", "--use_peft true --lr_scheduler_type constant --max_steps 5 --save_steps 1 --save_total_limit 2",
         "adapter_model.safetensors", 1, 0},
        {"asked", "--use_peft true --max_steps 4 --save_strategy no", "adapter_model.safetensors", 0, 1},
};

static void load(const struct scratch *scratch, const struct kind *kind, const char *out, const char *from, struct rh_config *config)
{
	char line[2048], keys[512];
	char *argv[64], *rest = line;
	int argc = 0;
	snprintf(keys, sizeof keys, kind->keys, scratch->dir);
	snprintf(line, sizeof line,
	         "--model_name_or_path %s/hf --train_file %s/rows.jsonl --max_length 64 --per_device_train_batch_size 2 --logging_steps 1 "
	         "--output_dir %s %s%s%s",
	         scratch->dir, scratch->dir, out, keys, from ? " --resume_from_checkpoint " : "", from ? from : "");
	for (char *word; (word = strsep(&rest, " "));)
		if (*word)
			argv[argc++] = word;
	check_ok(rh_config_load("train", argc, argv, NULL, config));
}

static void train(const struct scratch *scratch, const struct kind *kind, const char *out, const char *from)
{
	struct rh_config config;
	struct rh_train_result result;
	load(scratch, kind, out, from, &config);
	check_ok(rh_train(&config, &result));
	rh_config_free(&config);
}

/* What the run had promised after so many changes. A checkpoint is written beside the training; it is finished when the next one begins,
 * when the file that asked for it goes, and at the end. */
struct promise {
	int step, result;
};

static struct promise promised(int cut, int begun_with)
{
	struct promise promise = {begun_with, cut == record.changes};
	int made = -1;
	for (int i = 0; i < cut; i++) {
		const struct record_change *change = &record.change[i];
		int step, next;
		char rest;
		for (int n = 0; change->kind == RECORD_NAMES && n < change->names; n++)
			if (change->name[n].inode && sscanf(change->name[n].name, "checkpoint-%d%c", &step, &rest) == 1)
				made = step > made ? step : made;
		for (int n = 0; change->kind == RECORD_NAMES && n < change->names; n++)
			if (change->name[n].inode && sscanf(change->name[n].name, ".checkpoint-%d.tm%c", &next, &rest) == 2 && next > made)
				promise.step = made > promise.step ? made : promise.step;
		for (int n = 0; change->kind == RECORD_NAMES && n < change->names; n++)
			if (!change->name[n].inode && !strcmp(change->name[n].name, "SAVE"))
				promise.step = made > promise.step ? made : promise.step;
	}
	if (promise.result && made >= 0)
		promise.step = made;
	return promise;
}

/* NULL: as it must be; else what is lost. */
static const char *check_state(const struct scratch *scratch, const struct kind *kind, const char *out, struct promise promise,
                               const char *reference)
{
	static char lost[1200];
	struct rh_config config;
	char *found = NULL;
	int step = -1;
	load(scratch, kind, out, "true", &config);
	int rc = rh_checkpoint_put_back(out);
	if (!rc)
		rc = rh_checkpoint_find(&config, &found);
	rh_config_free(&config);
	*lost = 0;
	if (!rc && sscanf(strrchr(found, '/'), "/checkpoint-%d", &step) != 1)
		step = -1;
	if (rc && (rc != -ENOENT || promise.step > 0))
		snprintf(lost, sizeof lost, "%s", rh_error(rc));
	else if (step < promise.step)
		snprintf(lost, sizeof lost, "the newest checkpoint is of step %d, that of %d was finished", step, promise.step);
	rh_error_clear();
	rh_free(found);
	const char *result = path_of("%s/%s", out, kind->file);
	if (!*lost && promise.result && (!rh_file_exists(result) || !same_file(result, reference)))
		snprintf(lost, sizeof lost, "the result was told of, and is not there");
	return *lost ? lost : NULL;
}

/* Records the run; the reference is its result. */
static void record_run(const struct scratch *scratch, const struct kind *kind)
{
	char work[128], out[160], from[200];
	snprintf(work, sizeof work, "%s/work", scratch->dir);
	snprintf(out, sizeof out, "%s/out", work);
	snprintf(from, sizeof from, "%s/checkpoint-2", out);
	check_ok(rh_dir_remove(work));
	check_ok(rh_dir_make(work));
	check_ok(rh_dir_make(path_of("%s/nvme", scratch->dir)));
	if (kind->resumes) {
		struct kind first = *kind;
		first.keys = "--use_peft true --lr_scheduler_type constant --max_steps 4 --save_steps 1";
		train(scratch, &first, out, NULL);
		check_ok(unlink(path_of("%s/%s", out, kind->file)));
		check_ok(unlink(path_of("%s/trainer_state.json", out)));
	}
	if (kind->is_asked) {
		check_ok(rh_dir_make(out));
		write_text(path_of("%s/SAVE", out), "");
	}
	record_begin(work);
	train(scratch, kind, out, kind->resumes ? from : NULL);
	record_end();
}

/* Makes `states` states of the recording and checks them. Returns how many lose something; the first such is told in `told`. */
static int replay(const struct scratch *scratch, const struct kind *kind, int states, uint64_t *seed, int goes_on, char told[1400])
{
	char place[128], out[160], reference[256];
	int losses = 0, begun_with = kind->resumes ? 2 : -1, after[16], promises = 0; /* cuts right after a promise */
	for (int cut = 1; cut <= record.changes && promises < 16; cut++)
		if (promised(cut, begun_with).step > promised(cut - 1, begun_with).step)
			after[promises++] = cut;
	snprintf(place, sizeof place, "%s/state", scratch->dir);
	snprintf(out, sizeof out, "%s/out", place);
	snprintf(reference, sizeof reference, "%s/work/out/%s", scratch->dir, kind->file);
	for (int s = 0; s < states; s++) {
		int cut = states >= record.changes ? (int)((int64_t)s * record.changes / states) + 1
		                                   : 1 + (int)(check_random(seed) % (uint32_t)record.changes);
		enum states_way way = s % 8 == 7 ? STATES_TORN : (enum states_way)(s % STATES_WAYS);
		if (promises && s % 5 == 0)
			cut = after[s / 5 % promises];
		if (s == states - 1 || check_random(seed) % 16 == 0)
			cut = record.changes;
		check_ok(rh_dir_remove(place));
		states_make(cut, way, seed, place);
		struct promise promise = promised(cut, begun_with);
		const char *lost = check_state(scratch, kind, out, promise, reference);
		if (lost && !losses++)
			snprintf(told, 1400, "%s, after %d of %d changes, way %d: %s", kind->name, cut, record.changes, (int)way, lost);
		if (!lost && goes_on && s % goes_on == 0 && promise.step > 0) {
			check_ok(rh_dir_remove(path_of("%s/nvme", scratch->dir)));
			check_ok(rh_dir_make(path_of("%s/nvme", scratch->dir)));
			train(scratch, kind, out, "true");
			if (!same_file(path_of("%s/%s", out, kind->file), reference))
				fail_msg("%s, after %d changes, way %d: gone on with, another result", kind->name, cut, (int)way);
		}
	}
	return losses;
}

static void test_no_state_that_a_power_cut_leaves_loses_a_checkpoint(void **state)
{
	(void)state;
	const char *wanted = getenv("RH_CRASH_STATES");
	int states = wanted ? atoi(wanted) : getenv("RH_LONG") ? 2500 : 160, all = 0;
	uint64_t seed = check_seed();
	struct scratch scratch;
	make_good(&scratch);
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		char told[1400] = "";
		record_run(&scratch, &kinds[k]);
		int losses = replay(&scratch, &kinds[k], states, &seed, states / 4, told);
		all += states;
		if (losses)
			fail_msg("%d of %d states lose something: %s", losses, states, told);
		record_free();
	}
	printf("%d states, none lost\n", all);
	scratch_close(&scratch);
}

/* Each kind of flush that a save makes is needed: without it some state loses what was promised. */
static void test_each_flush_left_out_loses_something(void **state)
{
	(void)state;
	static const char *const flushes[] = {"adapter_model.safetensors",
	                                      "adapter_config.json",
	                                      "optimizer.safetensors",
	                                      "run_state.json",
	                                      "trainer_state.json",
	                                      "config.yaml",
	                                      "checksums.json",
	                                      ".checkpoint-",
	                                      "out"};
	uint64_t seed = check_seed();
	struct scratch scratch;
	make_good(&scratch);
	record_run(&scratch, &kinds[1]);
	for (size_t f = 0; f < sizeof flushes / sizeof *flushes; f++) {
		char told[1400] = "";
		int losses = 0;
		states_left_out = flushes[f];
		for (int tries = 0; !losses && tries < 12; tries++)
			losses = replay(&scratch, &kinds[1], 100, &seed, 0, told);
		states_left_out = NULL;
		if (!losses)
			fail_msg("without the flush of %s nothing is lost", flushes[f]);
		printf("without the flush of %s: %s\n", flushes[f], told);
	}
	record_free();
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_no_state_that_a_power_cut_leaves_loses_a_checkpoint),
	        cmocka_unit_test(test_each_flush_left_out_loses_something),
	};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
