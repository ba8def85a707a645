/* Logits by sample id against a plain array of the last rows that were put; and through a file. */
#include "check.h"

#include "core/file.h"
#include "modes/fluidpipe/teacher_logits.h"

#include <math.h>
#include <string.h>

enum { SAMPLES = 50, OUTPUTS = 7 };

static void draw(float *row, uint64_t *seed)
{
	for (int v = 0; v < OUTPUTS; v++)
		row[v] = (float)check_random(seed) / 65536.0f - 3000;
}

static void test_get_returns_the_row_that_was_put_last(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	static float want[SAMPLES][OUTPUTS];
	int has[SAMPLES] = {0}, count = 0;
	struct rh_teacher_logits logits;
	check_ok(rh_teacher_logits_create(SAMPLES, OUTPUTS, &logits));
	for (int i = 0; i < 300; i++) {
		int id = (int)(check_random(&seed) % SAMPLES);
		draw(want[id], &seed);
		assert_int_equal(rh_teacher_logits_put(&logits, id, want[id]), 1);
		count += !has[id];
		has[id] = 1;
		assert_int_equal(logits.count, count);
		id = (int)(check_random(&seed) % SAMPLES);
		const float *row = rh_teacher_logits_get(&logits, id);
		assert_int_equal(row != NULL, has[id]);
		if (row)
			assert_memory_equal(row, want[id], sizeof want[id]);
	}
	rh_teacher_logits_clear(&logits);
	assert_int_equal(logits.count, 0);
	for (int id = -1; id <= SAMPLES; id++)
		assert_null(rh_teacher_logits_get(&logits, id));
	rh_teacher_logits_destroy(&logits);
}

static void test_a_row_that_is_not_finite_or_of_no_sample_is_not_kept(void **state)
{
	(void)state;
	struct rh_teacher_logits logits;
	float row[OUTPUTS] = {1, 2, 3, 4, 5, 6, 7};
	check_ok(rh_teacher_logits_create(SAMPLES, OUTPUTS, &logits));
	assert_int_equal(rh_teacher_logits_put(&logits, 3, row), 1);
	row[OUTPUTS - 1] = INFINITY;
	assert_int_equal(rh_teacher_logits_put(&logits, 3, row), 0);
	assert_int_equal(rh_teacher_logits_put(&logits, 4, row), 0);
	assert_true(rh_teacher_logits_get(&logits, 3)[OUTPUTS - 1] == 7);
	assert_null(rh_teacher_logits_get(&logits, 4));
	assert_int_equal(rh_teacher_logits_put(&logits, SAMPLES, row), -EPROTO);
	assert_int_equal(rh_teacher_logits_put(&logits, -1, row), -EPROTO);
	assert_int_equal(logits.count, 1);
	rh_error_clear();
	rh_teacher_logits_destroy(&logits);
}

static void write_table(const char *path, const struct rh_teacher_logits *logits)
{
	struct rh_text text = {0};
	check_ok(rh_teacher_logits_print(logits, &text));
	check_ok(rh_file_write_whole(path, text.bytes, text.length));
	rh_text_free(&text);
}

static void test_a_file_gives_back_the_same_table(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct rh_teacher_logits logits, read, other;
	char dir[64], path[128];
	float row[OUTPUTS];
	snprintf(dir, sizeof dir, "%s/teacher-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/teacher_logits.safetensors", dir);
	check_ok(rh_teacher_logits_create(SAMPLES, OUTPUTS, &logits));
	check_ok(rh_teacher_logits_create(SAMPLES, OUTPUTS, &read));
	for (int rows = 0; rows <= SAMPLES; rows += 25) { /* none, some, all */
		for (int id = 0; id < rows; id += rows < SAMPLES ? 3 : 1) {
			draw(row, &seed);
			check_ok(rh_teacher_logits_put(&logits, id, row));
		}
		write_table(path, &logits);
		draw(row, &seed);
		check_ok(rh_teacher_logits_put(&read, SAMPLES - 1, row)); /* is forgotten */
		check_ok(rh_teacher_logits_load(path, &read));
		assert_int_equal(read.count, logits.count);
		for (int id = 0; id < SAMPLES; id++) {
			const float *one = rh_teacher_logits_get(&logits, id), *same = rh_teacher_logits_get(&read, id);
			assert_int_equal(one != NULL, same != NULL);
			if (one)
				assert_memory_equal(one, same, sizeof row);
		}
	}
	check_ok(rh_teacher_logits_create(SAMPLES - 1, OUTPUTS, &other));
	assert_int_equal(rh_teacher_logits_load(path, &other), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "other data"));
	rh_teacher_logits_destroy(&other);
	check_ok(rh_teacher_logits_create(SAMPLES, OUTPUTS + 1, &other));
	assert_int_equal(rh_teacher_logits_load(path, &other), -EINVAL);
	rh_error_clear();
	rh_teacher_logits_destroy(&other);
	rh_teacher_logits_destroy(&read);
	rh_teacher_logits_destroy(&logits);
	check_ok(rh_dir_remove(dir));
}

/* Ids that no head has, or that do not ascend, and shares that are none: a peer may have sent them. */
static void test_shares_that_are_not_sound_are_not_kept(void **state)
{
	(void)state;
	static const struct {
		float row[6];
		int is;
	} cases[] = {{{0, 3, 8, 0.5f, 0.25f, 0.25f}, 1},  {{0, 3, 9, 0.5f, 0.25f, 0.25f}, 0},     {{-1, 3, 8, 0.5f, 0.25f, 0.25f}, 0},
	             {{3, 3, 8, 0.5f, 0.25f, 0.25f}, 0},  {{0, 3.5f, 8, 0.5f, 0.25f, 0.25f}, 0},  {{0, NAN, 8, 0.5f, 0.25f, 0.25f}, 0},
	             {{0, 3, 8, 0.5f, NAN, 0.25f}, 0},    {{0, 3, 8, 0.5f, 0.25f, INFINITY}, 0},  {{0, 3, 8, 0.5f, -0.25f, 0.25f}, 0},
	             {{0, 3, 8, 0.75f, 0.25f, 0.25f}, 0}, {{0, 3, 8, 0.5f, 0.25f, 0.250001f}, 1}, {{8, 3, 0, 0.5f, 0.25f, 0.25f}, 0}};
	struct rh_teacher_logits logits;
	check_ok(rh_teacher_logits_create(SAMPLES, 6, &logits));
	logits.ids = 9;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		assert_int_equal(rh_teacher_logits_put(&logits, 3, cases[i].row), cases[i].is);
	rh_teacher_logits_destroy(&logits);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_get_returns_the_row_that_was_put_last),
	        cmocka_unit_test(test_shares_that_are_not_sound_are_not_kept),
	        cmocka_unit_test(test_a_row_that_is_not_finite_or_of_no_sample_is_not_kept),
	        cmocka_unit_test(test_a_file_gives_back_the_same_table),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
