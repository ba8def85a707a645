/* Each change that `plan` prints of a run that does not fit is tried: with it the run fits, at the speed that was printed. The fastest
 * comes first, and a change of what is trained says so. */
#include "runner.h"

#include "core/json.h"
#include "plan/random_runs.h"

#include <ctype.h>
#include <math.h>

/* A plan with a cap as it is printed may have a little more than the least that was tried. */
static const double speed_apart = 0.01;

struct refused {
	const char *line; /* '@': the scratch directory */
	int least;        /* changes that are printed, at least */
};

#define EIGHT   "plan --config-name examples/models/llama-3.1-8b --gradient_accumulation_steps 8 "
#define MOE_RUN "plan examples/models/qwen3-30b-a3b.yaml --load_in_4bit false --max_length 2048 --per_device_train_batch_size 2 "

static const struct refused quick[] = {
        {EIGHT "--max_length 2048 --hardware rtx4090x1 --max_ram 60GiB --per_device_train_batch_size 4", 3},
        {EIGHT "--hardware rtx4090x1 --max_ram 60GiB --max_length 8192 --max_vram 6GiB", 1},
        {MOE_RUN "--hardware rtx4090x1 --max_ram 57GiB", 2},
        {"plan @/run.yaml --device cpu:1 --max_ram 1GiB --max_vram 1MiB", 1}, /* with evaluations, of rows that were read */
        {"plan @/run.yaml --device cpu:1 --max_ram 20MiB", 1},
};
static const struct refused slow[] = {
        {EIGHT "--max_length 2048 --hardware rtx4090x8 --gpus 2 --max_ram 90GiB --per_device_train_batch_size 2", 3},
        {EIGHT "--max_length 2048 --hardware rtx4090x1 --use_peft true --lora_target_modules all-linear --max_ram 12GiB", 2},
        {"plan examples/models/qwen3-32b.yaml --load_in_4bit false --hardware rtx4090x1", 1},
        {"plan examples/models/gemma-3-27b.yaml --hardware rtx4090x1 --max_ram 45GiB", 1},
        {"plan examples/models/gpt-oss-20b.yaml --hardware rtx3060 --max_ram 12GiB --max_vram 3GiB", 1},
        {"plan @/run.yaml --device cpu:2 --dtype float32 --max_ram 22MiB", 1},
};

/* The words of a text like "a: 1 and b: 2 (...)" as flags. */
static void put_flags(const char *text, const char *dir, char *out, size_t room)
{
	char words[512], *place = NULL;
	snprintf(words, sizeof words, "%s", text);
	words[strcspn(words, "(")] = 0;
	size_t used = strlen(out);
	char *key = NULL;
	for (char *word = strtok_r(words, " ,", &place); word; word = strtok_r(NULL, " ,", &place)) {
		size_t length = strlen(word);
		if (key)
			used += (size_t)snprintf(out + used, room - used, " --%s %s", key, word);
		else if (!strcmp(word, "nvme_dirs"))
			used += (size_t)snprintf(out + used, room - used, " --nvme_dirs %s", dir);
		key = !key && word[length - 1] == ':' ? word : NULL;
		if (key)
			word[length - 1] = 0;
	}
}

static void make_runs(struct scratch *scratch)
{
	const char *dir = scratch->dir;
	char held[4096] = "";
	scratch_open(scratch);
	copy_model(dir);
	for (int i = 0; i < 12; i++)
		snprintf(held + strlen(held), sizeof held - strlen(held),
		         "{\"text\": \"the cat %d sat on the mat and looked at the dog that ran to the end of it, where it is so\"}\n", i);
	write_text(path_of("%s/rows.jsonl", dir),
	           "{\"text\": \"the cat sat on the mat\"}\n{\"text\": \"a dog ran\"}\n{\"text\": \"the end\"}\n"
	           "{\"text\": \"it is so\"}\n");
	write_text(path_of("%s/held.jsonl", dir), held);
	write_text(path_of("%s/run.yaml", dir),
	           path_of("model_name_or_path: %s/hf\ntrain_file: %s/rows.jsonl\nvalidation_file: %s/held.jsonl\neval_strategy: epoch\n"
	                   "output_dir: %s/out\nmax_length: 64\nmax_steps: 2\nper_device_train_batch_size: 1\n"
	                   "per_device_eval_batch_size: 8\ngradient_accumulation_steps: 4\nallow: [duplicates, overlap]\n",
	                   dir, dir, dir, dir));
	setenv("XDG_CONFIG_HOME", dir, 1);
}

static json_t *plan(const struct scratch *scratch, const struct refused *run, const char *change, int fits)
{
	char line[2048] = "", words[1024], *place = NULL;
	snprintf(words, sizeof words, "%s", run->line);
	for (char *word = strtok_r(words, " ", &place); word; word = strtok_r(NULL, " ", &place)) {
		size_t used = strlen(line);
		if (word[0] == '-' && strstr(change, word + 2)) /* and its value */
			(void)strtok_r(NULL, " ", &place);
		else if (word[0] == '@')
			snprintf(line + used, sizeof line - used, "%s%s ", scratch->dir, word + 1);
		else
			snprintf(line + used, sizeof line - used, "%s ", word);
	}
	put_flags(change, scratch->dir, line, sizeof line);
	struct ran ran = run_line(scratch, "%s --json", line);
	json_t *json = json_loads(ran.out, 0, NULL);
	if (!json || json_is_true(json_object_get(json, "fits")) != fits)
		fail_msg("%s\n%s%s", line, ran.err, json ? json_string_value(json_object_get(json, "why")) : "no answer");
	run_free(&ran);
	return json;
}

static void try_changes(const struct scratch *scratch, const struct refused *run)
{
	json_t *answer = plan(scratch, run, "", 0), *mends = json_object_get(answer, "mends");
	double before = INFINITY;
	printf("%s: %zu changes\n", run->line, json_array_size(mends));
	if ((int)json_array_size(mends) < run->least)
		fail_msg("%s: %zu changes", run->line, json_array_size(mends));
	for (size_t i = 0; i < json_array_size(mends); i++) {
		const json_t *mend = json_array_get(mends, i);
		const char *change = json_string_value(json_object_get(mend, "change"));
		double said = json_real_value(json_object_get(mend, "tokens_per_second"));
		int is_other = strstr(change, "batch_size") || strstr(change, "max_length") || strstr(change, "dtype") ||
		               strstr(change, "split8") || strstr(change, "use_peft") || strstr(change, "sequence_chunk");
		if (is_other != (strstr(change, "other results") != NULL))
			fail_msg("'%s'", change);
		json_t *with = plan(scratch, run, change, 1);
		double speed = json_real_value(json_object_get(with, "tokens_per_second"));
		printf("  %s: %.1f tokens/s, then %.1f\n", change, said, speed);
		if (!(fabs(speed / said - 1) <= speed_apart))
			fail_msg("%s with %s: %.1f tokens/s, then %.1f", run->line, change, said, speed);
		assert_true(said <= before);
		before = said;
		json_decref(with);
	}
	json_decref(answer);
}

/* Runs of random models and shapes in too little memory. */
static void test_changes_of_random_runs_too(void **state)
{
	(void)state;
	enum { RUNS = 40 };
	struct scratch scratch;
	uint64_t seed = check_seed();
	int refused = 0;
	if (!getenv("RH_LONG"))
		check_skip("random runs; make test-long has them");
	make_runs(&scratch);
	for (int i = 0; i < RUNS; i++) {
		const struct run_machine *machine = &run_machines[run_pick(&seed, sizeof run_machines / sizeof *run_machines)];
		char drawn[RUN_LINE], line[RUN_LINE + 64];
		run_draw(&seed, machine, path_of("%s/shape.json", scratch.dir), drawn);
		for (char *word = strstr(drawn, "--"); word; word = strstr(word + 2, "--")) /* as changes write keys */
			for (char *at = word + 2; *at && *at != ' '; at++)
				*at = *at == '-' ? '_' : *at;
		int64_t mib = ((int64_t)machine->ram_gib << 10) / 64 * (1 + run_pick(&seed, 24));
		snprintf(line, sizeof line, "plan %s --max_ram %lldMiB", drawn, (long long)mib);
		struct ran ran = run_line(&scratch, "%s --json", line);
		int fits = ran.status == 0;
		run_free(&ran);
		if (fits)
			continue;
		refused++;
		try_changes(&scratch, &(struct refused){line, 0});
	}
	scratch_close(&scratch);
	assert_true(refused >= RUNS / 4);
}

static void test_each_change_fits_at_the_speed_that_is_printed(void **state)
{
	(void)state;
	struct scratch scratch;
	make_runs(&scratch);
	for (size_t i = 0; i < sizeof quick / sizeof *quick; i++)
		try_changes(&scratch, &quick[i]);
	for (size_t i = 0; getenv("RH_LONG") && i < sizeof slow / sizeof *slow; i++)
		try_changes(&scratch, &slow[i]);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_change_fits_at_the_speed_that_is_printed),
	                                   cmocka_unit_test(test_changes_of_random_runs_too)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
