/* The list of instruction sets: each has a name of its own, by which RH_CPU_ISA asks for it. */
#include "check.h"
#include "isa.h"

#include <stdio.h>

static void test_each_instruction_set_is_asked_for_by_its_own_name(void **state)
{
	(void)state;
	enum rh_cpu_isa best = rh_cpu_best_isa();
	printf("this machine: %s\n", rh_cpu_isa_name(best));
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa < RH_CPU_ISAS; isa++) {
		const char *name = rh_cpu_isa_name(isa);
		assert_non_null(name);
		for (enum rh_cpu_isa other = RH_CPU_BASE; other < isa; other++)
			assert_string_not_equal(name, rh_cpu_isa_name(other));
		char *kept = isa_lower(isa);
		assert_int_equal(rh_cpu_best_isa(), isa < best ? isa : best);
		isa_restore(kept);
		assert_int_equal(rh_cpu_best_isa(), best);
	}
}

static void test_an_unknown_name_is_ignored_with_a_line_of_all_names(void **state)
{
	(void)state;
	enum rh_cpu_isa best = rh_cpu_best_isa();
	char line[512];
	FILE *said = tmpfile();
	int terminal = dup(STDERR_FILENO);
	assert_true(said && terminal >= 0);
	dup2(fileno(said), STDERR_FILENO);
	setenv(RH_HOOK_CPU_ISA, "avx3", 1);
	enum rh_cpu_isa given = rh_cpu_best_isa();
	unsetenv(RH_HOOK_CPU_ISA);
	dup2(terminal, STDERR_FILENO);
	close(terminal);
	rewind(said);
	line[fread(line, 1, sizeof line - 1, said)] = 0;
	fclose(said);
	assert_int_equal(given, best);
	assert_non_null(strstr(line, RH_HOOK_CPU_ISA "=avx3"));
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa < RH_CPU_ISAS; isa++)
		assert_non_null(strstr(line, rh_cpu_isa_name(isa)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_each_instruction_set_is_asked_for_by_its_own_name),
	        cmocka_unit_test(test_an_unknown_name_is_ignored_with_a_line_of_all_names),
	};
	unsetenv(RH_HOOK_CPU_ISA); /* what this machine has, whatever these tests are run with */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
