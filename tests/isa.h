/* Runs code on a lower instruction set than this machine's best. */
#ifndef RH_TESTS_ISA_H
#define RH_TESTS_ISA_H

#include "core/hooks.h"
#include "device/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

/* Until isa_restore, rh_cpu_best_isa gives at most `isa`. Returns what isa_restore takes: what the environment asked for before, NULL:
 * nothing. */
static inline char *isa_lower(enum rh_cpu_isa isa)
{
	const char *before = getenv(RH_HOOK_CPU_ISA);
	char *kept = before ? strdup(before) : NULL;
	setenv(RH_HOOK_CPU_ISA, rh_cpu_isa_name(isa), 1);
	return kept;
}

static inline void isa_restore(char *kept)
{
	if (kept)
		setenv(RH_HOOK_CPU_ISA, kept, 1);
	else
		unsetenv(RH_HOOK_CPU_ISA);
	free(kept);
}

#endif
