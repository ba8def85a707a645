/* Which checkpoints of one box, and of one among several, save_total_limit removes. */
#include "check.h"

#include "checkpoint/checkpoint_internal.h"
#include "core/file.h"

#include <stdlib.h>
#include <string.h>

static void check_left(int64_t limit, struct checkpoint_kept kept, const char *left)
{
	static const int64_t steps[] = {10, 20, 30, 40, 50};
	char dir[] = "/tmp/rh-kept-XXXXXX", path[128], found[128] = "";
	assert_non_null(mkdtemp(dir));
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		snprintf(path, sizeof path, "%s/checkpoint-%d", dir, (int)steps[i]);
		check_ok(rh_dir_make(path));
	}
	const struct rh_config config = {.output_dir = dir, .save_total_limit = limit};
	check_ok(checkpoint_remove_oldest(&config, &kept));
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		snprintf(path, sizeof path, "%s/checkpoint-%d", dir, (int)steps[i]);
		if (rh_dir_exists(path))
			snprintf(found + strlen(found), sizeof found - strlen(found), "%d ", (int)steps[i]);
	}
	assert_string_equal(found, left);
	check_ok(rh_dir_remove(dir));
}

static void test_one_box_keeps_the_newest_and_the_best(void **state)
{
	(void)state;
	check_left(2, (struct checkpoint_kept){50, -1, INT64_MAX}, "40 50 ");
	check_left(1, (struct checkpoint_kept){50, -1, INT64_MAX}, "50 ");
	check_left(2, (struct checkpoint_kept){50, 20, INT64_MAX}, "20 50 ");
	check_left(3, (struct checkpoint_kept){30, 10, INT64_MAX}, "10 30 50 "); /* gone on from an older one */
	check_left(0, (struct checkpoint_kept){50, -1, INT64_MAX}, "10 20 30 40 50 ");
}

/* A box that is slow to write may have any step from the common one on, and no other: none of these goes. */
static void test_one_of_several_keeps_all_from_the_common_one_on(void **state)
{
	(void)state;
	check_left(2, (struct checkpoint_kept){50, -1, -1}, "10 20 30 40 50 ");
	check_left(2, (struct checkpoint_kept){50, -1, 30}, "30 40 50 ");
	check_left(1, (struct checkpoint_kept){50, -1, 40}, "40 50 ");
	check_left(4, (struct checkpoint_kept){50, -1, 30}, "20 30 40 50 ");
	check_left(2, (struct checkpoint_kept){50, 10, 40}, "10 40 50 ");
	check_left(2, (struct checkpoint_kept){50, -1, 50}, "40 50 ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_one_box_keeps_the_newest_and_the_best),
	        cmocka_unit_test(test_one_of_several_keeps_all_from_the_common_one_on),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
