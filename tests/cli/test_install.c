/* The program finds hardware profiles wherever it is started: those that were installed with it, or those that it has within. */
#include "runner.h"

static int shell(const char *line)
{
	int status = system(line);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* What `program plan --hardware NAME` says, started in / by a user whose home is the scratch directory, is matched by grep's `pattern`. */
static void check_plan(const struct scratch *scratch, const char *program, const char *name, int status, const char *pattern)
{
	char here[512];
	assert_non_null(getcwd(here, sizeof here));
	assert_int_equal(shell(path_of("cd / && env -u XDG_CONFIG_HOME HOME=%s %s plan --config-name %s/examples/models/qwen3-1.7b "
	                               "--max-length 256 --hardware %s --json >%s/said 2>&1",
	                               scratch->dir, program, here, name, scratch->logs)),
	                 status);
	assert_int_equal(shell(path_of("grep -q '%s' %s/said", pattern, scratch->logs)), 0);
}

static void test_installed_plan_finds_the_installed_profiles(void **state)
{
	(void)state;
	struct scratch scratch;
	const char *build = getenv("RH_BUILD");
	scratch_open(&scratch);
	assert_int_equal(shell(path_of("env -u MAKEFLAGS make -s -o all install B=%s DESTDIR=%s PREFIX=/usr >/dev/null",
	                               build ? build : "build/release", scratch.dir)),
	                 0);
	char program[128], installed[128];
	snprintf(program, sizeof program, "%s/usr/bin/roundhouse", scratch.dir);
	snprintf(installed, sizeof installed, "%s/usr/share/roundhouse/hardware", scratch.dir);
	check_plan(&scratch, program, "rtx4090x1", 0, "\"fits\":true,\"hardware\":\"rtx4090x1\"");
	check_plan(&scratch, program, "rtx4090x9", 2, "rtx4090x9.*there are: .*rtx4090x8");
	/* the installed file, not that within the program */
	assert_int_equal(shell(path_of("sed -i 's/^name: .*/name: edited/' %s/rtx4090x1.yaml && cp %s/rtx4090x1.yaml %s/extra.yaml",
	                               installed, installed, installed)),
	                 0);
	check_plan(&scratch, program, "rtx4090x1", 0, "\"hardware\":\"edited\"");
	check_plan(&scratch, program, "rtx4090x9", 2, "there are: a100, a4000, a6000, a800x8, extra, .*rtx4090x8");
	scratch_close(&scratch);
}

/* A program copied out of its tree has the profiles with it; the user's own of the same name still count before them. */
static void test_copied_program_has_the_profiles(void **state)
{
	(void)state;
	struct scratch scratch;
	const char *build = getenv("RH_BUILD");
	scratch_open(&scratch);
	char program[128];
	snprintf(program, sizeof program, "%s/a/b/c/d/roundhouse", scratch.dir);
	check_ok(rh_dir_make(path_of("%s/a/b/c/d", scratch.dir)));
	assert_int_equal(shell(path_of("cp %s/roundhouse %s", build ? build : "build/release", program)), 0);
	check_plan(&scratch, program, "rtx4090x1", 0, "\"fits\":true,\"hardware\":\"rtx4090x1\"");
	check_plan(&scratch, program, "rtx4090x9", 2, "rtx4090x9.*there are: a100, a4000, a6000, a800x8, .*rtx4090x8");
	/* and models to plan for, by their names */
	assert_int_equal(
	        shell(path_of("cd / && %s plan --model llama-3.1-8b --hardware rtx5060ti --lora_r 8 --max_length 512 --json >%s/said 2>&1",
	                      program, scratch.logs)),
	        0);
	assert_int_equal(shell(path_of("grep -q '\"fits\":true' %s/said && grep -q 'by its published config.json' %s/said", scratch.logs,
	                               scratch.logs)),
	                 0);
	assert_int_equal(shell(path_of("cd / && %s plan --model llama-9 --hardware rtx5060ti >%s/said 2>&1", program, scratch.logs)), 2);
	assert_int_equal(shell(path_of("grep -q 'plan knows by name: .*llama-3.1-8b' %s/said", scratch.logs)), 0);
	const char *own = path_of("%s/.config/roundhouse/hardware", scratch.dir);
	check_ok(rh_dir_make(own));
	assert_int_equal(shell(path_of("sed 's/^name: .*/name: mine/' examples/hardware/rtx4090x1.yaml >%s/rtx4090x1.yaml", own)), 0);
	check_plan(&scratch, program, "rtx4090x1", 0, "\"hardware\":\"mine\"");
	scratch_close(&scratch);
}

/* What bash is offered for the last of these words is matched by grep's `pattern`. */
static void check_completion(const struct scratch *scratch, const char *words, const char *pattern)
{
	assert_int_equal(shell(path_of("cd %s && PATH=usr/bin:$PATH bash -c 'source usr/share/bash-completion/completions/roundhouse; "
	                               "COMP_WORDS=(roundhouse %s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _roundhouse; "
	                               "echo \"${COMPREPLY[*]}\"' | grep -q '%s'",
	                               scratch->dir, words, pattern)),
	                 0);
}

static void test_installation_completes_explains_and_goes_without_a_trace(void **state)
{
	(void)state;
	struct scratch scratch;
	const char *build = getenv("RH_BUILD");
	char make[256], page[128];
	scratch_open(&scratch);
	snprintf(make, sizeof make, "env -u MAKEFLAGS make -s -o all B=%s DESTDIR=%s PREFIX=/usr >/dev/null",
	         build ? build : "build/release", scratch.dir);
	snprintf(page, sizeof page, "%s/usr/share/man/man1/roundhouse.1", scratch.dir);
	assert_int_equal(shell(path_of("%s install", make)), 0);
	check_completion(&scratch, "tr", "^train$");
	check_completion(&scratch, "plan --ga", "^--gantt$");
	check_completion(&scratch, "train --lr-s", "^--lr_scheduler_type --lr_scheduler_kwargs$");
	check_completion(&scratch, "train --lr_scheduler_type co", "^cosine constant constant_with_warmup");
	check_completion(&scratch, "train --packing \"\"", "^true false$");
	/* the manual has each verb's keys, and no line that troff takes for one of its own */
	assert_int_equal(
	        shell(path_of("grep -q '^.SH .ROUNDHOUSE TRAIN.$' %s && grep -q '^  max_grad_norm' %s && grep -q 'link_peer_above' %s",
	                      page, page, page)),
	        0);
	/* what the pages link to is there, too */
	assert_int_equal(shell(path_of("cd %s/usr/share/doc/roundhouse && find . -name README.md | while read -r page; do "
	                               "grep -o '](%s' \"$page\" | sed 's/](//; s/)//; s/#.*//' | grep . | while read -r to; do "
	                               "test -e \"$(dirname \"$page\")/$to\" || echo \"$page: $to\"; done; done >%s/dead; "
	                               "test $(find . -name README.md | wc -l) -gt 7 && test ! -s %s/dead",
	                               scratch.dir, "[^)]*)", scratch.logs, scratch.logs)),
	                 0);
	assert_int_equal(shell(path_of("grep -v -E '^[.](TH|SH|B|I|nf|fi)( |$)' %s | grep -q '^[.]'", page)), 1);
	assert_int_equal(shell(path_of("%s uninstall", make)), 0);
	assert_int_equal(shell(path_of("test -z \"$(find %s -type f)\"", scratch.dir)), 0);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_installed_plan_finds_the_installed_profiles),
	        cmocka_unit_test(test_copied_program_has_the_profiles),
	        cmocka_unit_test(test_installation_completes_explains_and_goes_without_a_trace),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
