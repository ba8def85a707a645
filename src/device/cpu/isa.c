/* Which instruction set to compute with. */
#include "device/cpu/cpu.h"

#include "core/hooks.h"
#include "core/log.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const names[] = {
        [RH_CPU_BASE] = "base", [RH_CPU_AVX2] = "avx2", [RH_CPU_AVX512] = "avx512", [RH_CPU_BF16] = "avx512-bf16", [RH_CPU_AMX] = "amx",
};
static_assert(sizeof names / sizeof *names == RH_CPU_ISAS, "each instruction set has a name");

const char *rh_cpu_isa_name(enum rh_cpu_isa isa)
{
	RH_ASSERT(isa < RH_CPU_ISAS);
	return names[isa];
}

/* Linux lets a process use the tile registers once it has asked, for all of its threads. */
static int may_use_amx(void)
{
	enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, of newer headers */
	return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static enum rh_cpu_isa machine_isa(void)
{
	__builtin_cpu_init();
	if (!__builtin_cpu_supports("x86-64-v3"))
		return RH_CPU_BASE;
	if (!__builtin_cpu_supports("x86-64-v4"))
		return RH_CPU_AVX2;
	if (!__builtin_cpu_supports("avx512bf16"))
		return RH_CPU_AVX512;
	return __builtin_cpu_supports("amx-bf16") && may_use_amx() ? RH_CPU_AMX : RH_CPU_BF16;
}

enum rh_cpu_isa rh_cpu_best_isa(void)
{
	enum rh_cpu_isa best = machine_isa();
	const char *wish = getenv(RH_HOOK_CPU_ISA);
	if (!wish)
		return best;
	char known[64] = "";
	for (enum rh_cpu_isa isa = RH_CPU_BASE; isa < RH_CPU_ISAS; isa++) {
		if (strcmp(wish, names[isa]) == 0)
			return isa < best ? isa : best;
		size_t length = strlen(known);
		snprintf(known + length, sizeof known - length, "%s%s", length ? ", " : "", names[isa]);
	}
	rh_warn_once(RH_HOOK_CPU_ISA "=%s is none of %s: ignored", wish, known);
	return best;
}
