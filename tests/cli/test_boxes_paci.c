/* PACI over boxes: each box is one stage that updates itself. A run over N boxes is, bit for bit, that of one box whose N devices have
 * the same stages under schedule paci; which tests/train/test_local.c compares with a plain loop. */
#include "cli/boxes.h"

#include <jansson.h>
#include <math.h>

#define COMMON "max_grad_norm: 0\n"

/* Starts all boxes and waits for them. */
static void run_boxes(const struct scratch *scratch, const char *keys, int boxes, const char *options)
{
	struct ran ran[BOXES_MOST];
	struct box_wire wire[BOXES_MOST];
	for (int k = 0; k + 1 < boxes; k++)
		wire[k] = free_wire();
	for (int k = 1; k <= boxes; k++) {
		write_config(scratch, keys, boxes, k, wire);
		run_start(scratch, path_of("train %s/run%d.yaml %s", scratch->dir, k, options), 0, &ran[k - 1]);
	}
	for (int k = 0; k < boxes; k++)
		run_wait(&ran[k]);
	for (int k = 0; k < boxes; k++) {
		if (ran[k].status)
			print_error("box %d of %d: %s\n", k + 1, boxes, ran[k].err);
		assert_int_equal(ran[k].status, 0);
		run_free(&ran[k]);
	}
}

static void run_alone(const struct scratch *scratch, const char *keys, const char *options)
{
	write_config(scratch, keys, 1, 0, NULL);
	struct ran ran = run_line(scratch, "train %s/run0.yaml %s", scratch->dir, options);
	if (ran.status)
		print_error("%s\n", ran.err);
	assert_int_equal(ran.status, 0);
	run_free(&ran);
}

/* The same losses; norms are sums of the boxes' squares, which round apart. Says how many lines there are. */
static int check_metrics(const struct scratch *scratch, int box)
{
	FILE *file[2] = {fopen(path_of("%s/out0/metrics.jsonl", scratch->dir), "r"),
	                 fopen(path_of("%s/out%d/metrics.jsonl", scratch->dir, box), "r")};
	char line[2][4096];
	int lines = 0;
	assert_true(file[0] && file[1]);
	for (; fgets(line[0], sizeof line[0], file[0]); lines++) {
		assert_non_null(fgets(line[1], sizeof line[1], file[1]));
		json_t *one = json_loads(line[0], 0, NULL), *two = json_loads(line[1], 0, NULL);
		static const char *const names[] = {"step", "loss", "learning_rate", "trained_tokens"};
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			assert_true(json_equal(json_object_get(one, names[i]), json_object_get(two, names[i])));
		double norm = json_number_value(json_object_get(one, "grad_norm"));
		assert_true(fabs(norm - json_number_value(json_object_get(two, "grad_norm"))) <= 1e-12 * norm);
		json_decref(one);
		json_decref(two);
	}
	fclose(file[0]);
	fclose(file[1]);
	return lines;
}

struct shape {
	const char *device, *cuts;
	int boxes;
};

/* Each box has one device, or two between which its layers are dealt out. */
static const struct shape shapes[] = {{"cpu:2", "[3]", 2}, {"cpu:2", "[1]", 2}, {"cpu:3", "[2, 4]", 3}};

enum { STEPS = 20 };

/* The first step's update is that of a step that is flushed: every micro-batch has met the first weights. */
static void check_shape(const struct shape *shape, const char *keys, const char *device, int steps, int adapters)
{
	struct scratch scratch;
	char options[64], alone[512], linked[512];
	make_files(&scratch);
	snprintf(options, sizeof options, "--max_steps %d", steps);
	if (steps == 1)
		snprintf(alone, sizeof alone, COMMON "%sdevice: cpu:1\n", keys);
	else
		snprintf(alone, sizeof alone, COMMON "%sschedule: paci\ndevice: %s\nforward_cuts: %s\n", keys, shape->device, shape->cuts);
	snprintf(linked, sizeof linked, COMMON "%smode: paci\ndevice: %s\nround_micro_batches: 1\nbox_cuts: %s\n", keys, device, shape->cuts);
	run_alone(&scratch, alone, options);
	run_boxes(&scratch, linked, shape->boxes, options);
	check_weights(&scratch, adapters ? "adapter_model.safetensors" : "model.safetensors", adapters ? 1 : shape->boxes);
	for (int k = 1; k <= shape->boxes; k++)
		assert_int_equal(check_metrics(&scratch, k), steps);
	scratch_close(&scratch);
}

static void test_boxes_are_stages(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
		check_shape(&shapes[i], "save_strategy: \"no\"\n", "cpu:1", STEPS, 0);
}

static void test_the_first_update_is_a_flushed_steps(void **state)
{
	(void)state;
	check_shape(&shapes[2], "save_strategy: \"no\"\n", "cpu:1", 1, 0);
}

static void test_boxes_of_two_devices_are_stages(void **state)
{
	(void)state;
	check_shape(&shapes[0], "save_strategy: \"no\"\n", "cpu:2", STEPS, 0);
}

static void test_adapters(void **state)
{
	(void)state;
	static const char keys[] = "save_strategy: \"no\"\nlora_r: 4\nlora_dropout: 0.1\nlora_target_modules: all-linear\n";
	check_shape(&shapes[0], keys, "cpu:1", STEPS, 1);
	check_shape(&shapes[2], keys, "cpu:1", STEPS, 1);
}

/* Boxes that wait for one another for ever fail, in place of the whole test. */
static void limit_time(void)
{
	alarm(120);
}

int main(void)
{
	run_prepare = limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_boxes_are_stages),
	        cmocka_unit_test(test_the_first_update_is_a_flushed_steps),
	        cmocka_unit_test(test_boxes_of_two_devices_are_stages),
	        cmocka_unit_test(test_adapters),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
