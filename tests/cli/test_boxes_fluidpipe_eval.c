/* Mode fluidpipe, two processes: evaluations while they train are those of models of the same step, box 1's of the partial one and box 2's
 * of the full one, and change nothing of the training. */
#define LABELS 2
#include "cli/distil.h"

#include "core/json.h"

#define JUDGED                                                                                                                             \
	" --eval_strategy steps --eval_steps 2 --per_device_eval_batch_size 5 --validation_file " CLASSES " --allow [overlap,duplicates]"

/* "eval_loss" and "eval_accuracy" as box `box` logged them behind that step. */
static void logged(const struct scratch *scratch, int box, int step, double *loss)
{
	char line[4096];
	FILE *file = fopen(path_of("%s/out%d/metrics.jsonl", scratch->dir, box), "r");
	int found = 0;
	assert_non_null(file);
	while (fgets(line, sizeof line, file)) {
		json_t *json = json_loads(line, 0, NULL), *value = json_object_get(json, "eval_loss");
		if (value && json_integer_value(json_object_get(json, "step")) == step) {
			*loss = json_real_value(value);
			found++;
		}
		json_decref(json);
	}
	fclose(file);
	assert_int_equal(found, 1);
}

/* The loss that `roundhouse eval` finds of a model in that folder. */
static double judged(const struct scratch *scratch, const char *model, const char *rows)
{
	struct ran ran = run_line(scratch, "eval --json --model_name_or_path %s/%s --validation_file %s --max_length 64 --device cpu:1",
	                          scratch->dir, model, rows);
	if (ran.status)
		fail_msg("%s: %s", model, ran.err);
	json_t *json = json_loads(ran.out, 0, NULL);
	double loss = json_real_value(json_object_get(json, "eval_loss"));
	json_decref(json);
	run_free(&ran);
	return loss;
}

static void check_last(const struct scratch *scratch, const char *rows)
{
	double loss;
	struct ran ran = run_line(scratch, "join --parts %s/out1,%s/out2 --output_dir %s/joined", scratch->dir, scratch->dir, scratch->dir);
	assert_int_equal(ran.status, 0);
	run_free(&ran);
	logged(scratch, 1, STEPS, &loss);
	check_near(loss, judged(scratch, "out1/checkpoint-6", rows), 1e-6);
	logged(scratch, 2, STEPS, &loss);
	check_near(loss, judged(scratch, "joined", rows), 1e-6);
}

static void check_judged(const char *recipe)
{
	struct scratch scratch;
	double loss;
	open_images(&scratch, recipe);
	free(run_boxes(&scratch, ""));
	move_outputs(&scratch, "alone");
	free(run_boxes(&scratch, JUDGED));
	for (int step = 1; step <= STEPS; step++)
		for (int box = 1; box <= 2; box++)
			assert_true(is_same_step(&scratch, "alone", box, step));
	for (int step = 2; step < STEPS; step += 2) {
		char name[32];
		snprintf(name, sizeof name, "out1/checkpoint-%d", step);
		logged(&scratch, 1, step, &loss);
		check_near(loss, judged(&scratch, name, CLASSES), 1e-6);
	}
	check_last(&scratch, CLASSES);
	scratch_close(&scratch);
}

static void test_boxes_judge_models_of_the_same_step(void **state)
{
	(void)state;
	check_judged("");
	check_judged("fluidpipe_recipe: FP-DB\n");
	check_judged("fluidpipe_recipe: FP-DT-EL\nfluidpipe_ahead: 1\n");
}

static void test_boxes_judge_a_language_model(void **state)
{
	(void)state;
	static const char keys[] =
	        "mode: fluidpipe\ndevice: cpu:1\nbox_cuts: [3]\neval_strategy: steps\neval_steps: 3\nsave_strategy: steps\n"
	        "save_steps: 2\nper_device_eval_batch_size: 2\n";
	struct scratch scratch;
	struct ran ran[2];
	struct box_wire wire = free_wire();
	make_files(&scratch);
	write_text(path_of("%s/held.jsonl", scratch.dir),
	           "{\"prompt\": \"a cat \", \"completion\": \"sat\"}\n{\"prompt\": \"the dog is \", \"completion\": \"ran\"}\n"
	           "{\"prompt\": \"cats \", \"completion\": \"ran\"}\n{\"prompt\": \"it \", \"completion\": \"sat\"}\n"
	           "{\"prompt\": \"then we \", \"completion\": \"ran\"}\n");
	for (int k = 1; k <= 2; k++) {
		write_config(&scratch, keys, 2, k, &wire);
		run_start(&scratch, path_of("train %s/run%d.yaml", scratch.dir, k), 0, &ran[k - 1]);
	}
	boxes_finish(ran, 2);
	check_last(&scratch, path_of("%s/held.jsonl", scratch.dir));
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_boxes_judge_models_of_the_same_step),
	        cmocka_unit_test(test_boxes_judge_a_language_model),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
