/* An installed program finds the hardware profiles that were installed with it, wherever it is started. */
#include "runner.h"

static int shell(const char *line)
{
	int status = system(line);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_installed_plan_finds_the_installed_profiles(void **state)
{
	(void)state;
	struct scratch scratch;
	char here[512];
	const char *build = getenv("RH_BUILD");
	scratch_open(&scratch);
	assert_non_null(getcwd(here, sizeof here));
	assert_int_equal(shell(path_of("env -u MAKEFLAGS make -s -o all install B=%s DESTDIR=%s PREFIX=/usr >/dev/null",
	                               build ? build : "build/release", scratch.dir)),
	                 0);
	const char *plan =
	        path_of("cd / && env -u XDG_CONFIG_HOME HOME=%s %s/usr/bin/roundhouse plan --config-name %s/examples/models/qwen3-1.7b "
	                "--max-length 256 --hardware",
	                scratch.dir, scratch.dir, here);
	assert_int_equal(shell(path_of("%s rtx4090x1 --json >%s/plan.json", plan, scratch.dir)), 0);
	assert_int_equal(shell(path_of("grep -q '\"fits\":true,\"hardware\":\"rtx4090x1\"' %s/plan.json", scratch.dir)), 0);
	/* one that is not there: those that are, are named */
	assert_int_equal(shell(path_of("%s rtx4090x9 2>%s/refused", plan, scratch.dir)), 2);
	assert_int_equal(shell(path_of("grep -q 'rtx4090x9.*there are: .*rtx4090x8' %s/refused", scratch.dir)), 0);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_installed_plan_finds_the_installed_profiles)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
