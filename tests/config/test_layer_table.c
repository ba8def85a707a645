/* Tables of layers: what is refused and how it is told, and that no change of bytes does harm. */
#include "check.h"

#include "config/layer_table.h"
#include "core/file.h"

#include <string.h>

static void test_table_that_is_wrong_says_where(void **state)
{
	(void)state;
	static const struct {
		const char *text, *line;
	} cases[] = {
	        {"", "t.yaml: expected lines"},
	        {"- 1\n", "t.yaml: expected lines"},
	        {"tokens: [\n", "t.yaml:2: not valid YAML"},
	        {"tokens: 1\n", "layers: expected a list"},
	        {"layers: 3\n", "t.yaml:1: layers: expected a list"},
	        {"layers: []\n", "layers: 0 is none"},
	        {"layers:\n  - {forward_ms: 1}\n", "t.yaml:2: a layer needs forward_ms and backward_ms"},
	        {"layers:\n  - {forward_ms: 1, backward_ms: -1}\n", "t.yaml:2: backward_ms: '-1' is not a number from 0"},
	        {"layers:\n  - {forward_ms: 1, backward_ms: nan}\n", "backward_ms: 'nan' is not a number"},
	        {"layers:\n  - {forward_ms: 1, backward_ms: [1]}\n", "backward_ms: expected a number"},
	        {"layers:\n  - {forward_ms: 1, backward_ms: 1, forward_ms: 2}\n", "forward_ms is given twice"},
	        {"layers:\n  - {forward: 1, backward_ms: 1}\n", "t.yaml:2: unknown key 'forward'"},
	        {"layers:\n  - {count: 5000, forward_ms: 1, backward_ms: 1}\n", "count: '5000' is not a whole number from 1 to 4096"},
	        {"layers:\n  - {count: 4096, forward_ms: 1, backward_ms: 1}\n  - {forward_ms: 1, backward_ms: 1}\n",
	         "t.yaml:3: more than 4096 layers"},
	        {"layers:\n  - {forward_ms: 1, backward_ms: 1, saved_bytes: -5}\n", "saved_bytes: '-5' is not a size"},
	        {"first_trained: 1\nlayers:\n  - {forward_ms: 1, backward_ms: 1}\n", "first_trained: there are no more than 1 layers"},
	        {"layers: &a [*a]\n", "name: value pairs"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct rh_layer_table table;
		int rc = rh_layer_table_parse(cases[i].text, strlen(cases[i].text), "t.yaml", &table);
		assert_int_equal(rc, -EINVAL);
		if (!strstr(rh_error(rc), cases[i].line))
			fail_msg("'%s' is not in: %s", cases[i].line, rh_error(rc));
	}
}

static void test_published_tables_are_read(void **state)
{
	(void)state;
	struct rh_layer_table table;
	check_ok(rh_layer_table_read("examples/anchors/gpt-oss-20b-layers.yaml", &table));
	assert_int_equal(table.entries, 2);
	assert_int_equal(table.entry[0].count, 24);
	check_near(table.entry[0].backward_ms, 81.781, 0);
	check_near(table.entry[0].recompute_ms, -1, 0);
	check_near(table.entry[1].recompute_ms, 0, 0);
	check_near(table.hop_ms, 2.25, 0);
	rh_layer_table_free(&table);
	assert_int_equal(rh_layer_table_read("examples/anchors/none.yaml", &table), -ENOENT);
}

static void test_table_mutated_is_taken_or_refused(void **state)
{
	(void)state;
	struct rh_bytes seed;
	uint64_t random = check_seed();
	int taken = 0, refused = 0;
	check_ok(rh_file_load("examples/anchors/qwen3-1.7b-layers.yaml", &seed));
	char *text = malloc(seed.length);
	assert_non_null(text);
	for (int round = 0; round < 20000; round++) {
		memcpy(text, seed.bytes, seed.length);
		size_t length = check_random(&random) % 4 ? seed.length : check_random(&random) % seed.length;
		for (uint32_t n = check_random(&random) % 6; n > 0; n--)
			text[check_random(&random) % seed.length] =
			        check_random(&random) % 2 ? (char)check_random(&random) : seed.bytes[check_random(&random) % seed.length];
		struct rh_layer_table table;
		int rc = rh_layer_table_parse(text, length, "mutated", &table);
		assert_true(rc == 0 || rc == -EINVAL);
		taken += !rc;
		refused += !!rc;
		rh_layer_table_free(&table);
	}
	free(text);
	rh_bytes_free(&seed);
	printf("%d taken, %d refused\n", taken, refused);
	assert_true(taken > 1000 && refused > 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_table_that_is_wrong_says_where),
	        cmocka_unit_test(test_published_tables_are_read),
	        cmocka_unit_test(test_table_mutated_is_taken_or_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
