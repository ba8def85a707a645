/* The published table of bubbles from the experiments' own files: RoundPipe's row within 0.05 points with its cuts and no worse with ours,
 * the other schedules' rows within 0.5. */
#include "check.h"

#include "schedule/published.h"

#include <math.h>
#include <string.h>

static void test_published_bubbles_are_recomputed(void **state)
{
	(void)state;
	static const char *const names[] = {"qwen3-1.7b", "llama-3.1-8b", "gpt-oss-20b", "qwen3-32b", "qwen3-235b-lora"};
	static const double anchors[] = {19.07, 14.28, 15.02, 6.91, 3.29};
	for (int i = 0; i < 5; i++) {
		char path[256];
		struct rh_experiment experiment;
		struct rh_layer_table table;
		struct rh_bubble_row_result row[RH_BUBBLE_ROWS];
		snprintf(path, sizeof path, "examples/anchors/%s.yaml", names[i]);
		check_ok(rh_experiment_read(path, &experiment));
		check_ok(rh_layer_table_read(experiment.layers, &table));
		check_ok(rh_published_bubbles(&experiment, &table, row));
		check_near(row[0].published, anchors[i], 0);
		for (int k = 0; k < RH_BUBBLE_ROWS; k++) {
			printf("%-16s %-17s published %5.2f, recomputed %5.2f\n", names[i], rh_bubble_row_name((enum rh_bubble_row)k),
			       row[k].published, row[k].recomputed);
			assert_true(row[k].published > 0);
			check_near(row[k].recomputed, row[k].published, k == RH_BUBBLE_ROUNDPIPE ? 0.05 : 0.5);
		}
		assert_true(row[RH_BUBBLE_ROUNDPIPE].own <= row[RH_BUBBLE_ROUNDPIPE].recomputed);
		/* stages that do not hold the table's blocks */
		experiment.bubble[RH_BUBBLE_GPIPE].stages.size[0]++;
		assert_int_equal(rh_published_bubbles(&experiment, &table, row), -EINVAL);
		experiment.bubble[RH_BUBBLE_GPIPE].stages.size[0]--;
		experiment.bubble[RH_BUBBLE_ROUNDPIPE].backward.size[1]++;
		assert_int_equal(rh_published_bubbles(&experiment, &table, row), -EINVAL);
		rh_layer_table_free(&table);
		rh_experiment_free(&experiment);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_published_bubbles_are_recomputed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
