/* What nvcc said of the kernels (make cuda), against what an SM has. Runs after the tests that launch them, whose lists of launches it
 * reads. And what make says of a toolkit that it cannot use. */
#include "check.h"

#include <glob.h>
#include <string.h>

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

/* A toolkit whose headers say `version`, with cuBLAS's or without: 1 if make would build with it. `line`: what it says of one that it would
 * not. */
static int make_takes(int version, int has_cublas, char line[512])
{
	char dir[64], command[2048];
	assert_true(snprintf(dir, sizeof dir, "%s/rh-toolkit-XXXXXX", check_place("/tmp")) < (int)sizeof dir);
	assert_non_null(mkdtemp(dir));
	int length = snprintf(command, sizeof command,
	                      "cd %s && mkdir bin include && echo '#!/bin/true' >bin/nvcc && chmod +x bin/nvcc && "
	                      "echo '#define CUDART_VERSION %d' >include/cuda_runtime_api.h && %s include/cublasLt.h && cd - >/dev/null && "
	                      "env -u MAKEFLAGS -u MAKELEVEL make -s B=%s/build NVCC=%s/bin/nvcc %s/build/cuda/toolkit-there 2>&1",
	                      dir, version, has_cublas ? "touch" : "echo '#error' >", dir, dir, dir);
	assert_true(length < (int)sizeof command);
	FILE *said = popen(command, "r");
	assert_non_null(said);
	*line = 0;
	if (!fgets(line, 512, said))
		*line = 0;
	int takes = !pclose(said);
	assert_true(snprintf(command, sizeof command, "rm -rf %s", dir) < (int)sizeof command);
	assert_int_equal(system(command), 0);
	return takes;
}

static void test_a_toolkit_that_cannot_build_is_one_line(void **state)
{
	(void)state;
	char line[512];
	assert_true(make_takes(12000, 1, line));
	assert_string_equal(line, "");
	assert_false(make_takes(11080, 1, line));
	assert_non_null(strstr(line, "is older than 12 or lacks cuBLAS's headers: install one that has both"));
	assert_false(make_takes(13000, 0, line));
	assert_non_null(strstr(line, "CUDA=0"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_kernels_keep_within_an_sm),
	        cmocka_unit_test(test_a_toolkit_that_cannot_build_is_one_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
