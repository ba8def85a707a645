/* Activations and gradients that travel in fewer bits: other results, the same in each run, and nearly as good. */
#include "cli/boxes.h"

#include <jansson.h>
#include <math.h>

enum { STEPS = 60, LAST = 10 };

/* Mean loss of the last steps. */
static double train_boxes(const char *link_dtype, int number, const char *more, struct scratch *scratch)
{
	struct ran ran[2];
	struct box_wire wire = free_wire();
	char keys[256], line[4096];
	double sum = 0;
	snprintf(keys, sizeof keys, "device: cpu:1\nsave_strategy: \"no\"\nlink_dtype: %s\n%s", link_dtype, more);
	for (int k = 1; k <= 2; k++) {
		write_config(scratch, keys, 2, k, &wire);
		run_start(scratch,
		          path_of("train %s/run%d.yaml --max_steps %d --output_dir %s/%d-%d", scratch->dir, k, STEPS, scratch->dir, number,
		                  k),
		          0, &ran[k - 1]);
	}
	for (int k = 0; k < 2; k++) {
		run_wait(&ran[k]);
		if (ran[k].status)
			fail_msg("box %d: %s", k + 1, ran[k].err);
		run_free(&ran[k]);
	}
	FILE *file = fopen(path_of("%s/%d-1/metrics.jsonl", scratch->dir, number), "r");
	assert_non_null(file);
	for (int step = 1; fgets(line, sizeof line, file); step++) {
		json_t *row = json_loads(line, 0, NULL);
		sum += step > STEPS - LAST ? json_number_value(json_object_get(row, "loss")) : 0;
		json_decref(row);
	}
	fclose(file);
	return sum / LAST;
}

static int is_same(const struct scratch *scratch, int a, int b)
{
	return same_file(path_of("%s/%d-1/model.safetensors", scratch->dir, a), path_of("%s/%d-1/model.safetensors", scratch->dir, b)) &&
	       same_file(path_of("%s/%d-2/model.safetensors", scratch->dir, a), path_of("%s/%d-2/model.safetensors", scratch->dir, b));
}

static void test_fewer_bits_on_the_wire_change_the_loss_by_little(void **state)
{
	(void)state;
	struct scratch scratch;
	make_files(&scratch);
	double same = train_boxes("dtype", 0, "", &scratch), bf16 = train_boxes("bf16", 1, "", &scratch),
	       int8 = train_boxes("int8", 2, "", &scratch);
	printf("mean loss of steps %d to %d of an fp32 run: %.5f; link_dtype bf16 %+.5f, int8 %+.5f\n", STEPS - LAST + 1, STEPS, same,
	       bf16 - same, int8 - same);
	assert_true(fabs(bf16 - same) < 0.02 * same && fabs(int8 - same) < 0.05 * same);
	assert_false(is_same(&scratch, 0, 1) || is_same(&scratch, 0, 2) || is_same(&scratch, 1, 2));
	train_boxes("int8", 3, "", &scratch);
	assert_true(is_same(&scratch, 2, 3));
	double half = train_boxes("dtype", 4, "dtype: bf16\n", &scratch), half_int8 = train_boxes("int8", 5, "dtype: bf16\n", &scratch);
	train_boxes("bf16", 6, "dtype: bf16\n", &scratch);
	printf("of a bf16 run: %.5f; link_dtype int8 %+.2g\n", half, half_int8 - half);
	assert_true(fabs(half_int8 - half) < 0.05 * half);
	assert_false(is_same(&scratch, 4, 5));
	assert_true(is_same(&scratch, 4, 6)); /* bf16 is what a bf16 run sends anyway */
	scratch_close(&scratch);
}

/* A load travels as it is behind values in fewer bits: half of it lost would be a tenth of this loss. */
static void test_loads_of_experts_travel_whole(void **state)
{
	(void)state;
	static const char balanced[] = "router_aux_loss_coef: 0.5\n";
	struct scratch scratch;
	make_files(&scratch);
	write_experts(&scratch);
	double same = train_boxes("dtype", 0, balanced, &scratch), bf16 = train_boxes("bf16", 1, balanced, &scratch),
	       int8 = train_boxes("int8", 2, balanced, &scratch);
	printf("with a load balancing loss: %.5f; link_dtype bf16 %+.5f, int8 %+.5f\n", same, bf16 - same, int8 - same);
	assert_true(fabs(bf16 - same) < 0.02 * same && fabs(int8 - same) < 0.05 * same);
	scratch_close(&scratch);
}

int main(void)
{
	run_prepare = boxes_limit_time;
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_fewer_bits_on_the_wire_change_the_loss_by_little),
	        cmocka_unit_test(test_loads_of_experts_travel_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
