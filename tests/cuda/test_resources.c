/* What nvcc said of the kernels (make cuda), against what an SM has. Runs after the tests that launch them, whose lists of launches it
 * reads. */
#include "check.h"

#include <glob.h>

static void test_kernels_keep_within_an_sm(void **state)
{
	(void)state;
	const char *build = getenv("RH_BUILD");
	char pattern[512], command[2048];
	glob_t found = {0};
	build = build ? build : "build/release";
	assert_true(snprintf(pattern, sizeof pattern, "%s/cuda/*.ptxas", build) < (int)sizeof pattern);
	if (glob(pattern, 0, NULL, &found)) {
		globfree(&found);
		check_skip("registers and shared memory of the kernels: nothing of cuda/ was compiled by nvcc (make cuda)");
	}
	globfree(&found);
	int length = snprintf(command, sizeof command,
	                      "awk -f tests/cuda/resources.awk %s/tests/cuda/*.launches $(ls cuda/*.cu | sed 's,cu$,ptxas,;s,^,%s/,') "
	                      ">%s/cuda/kernels.txt",
	                      build, build, build);
	assert_true(length < (int)sizeof command);
	int status = system(command);
	if (status)
		print_error("see %s/cuda/kernels.txt\n", build);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_kernels_keep_within_an_sm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
