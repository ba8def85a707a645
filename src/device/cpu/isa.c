/* Which instruction set to compute with. */
#include "device/cpu/cpu.h"

#include "core/log.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"base", "avx2", "avx512", "avx512_bf16"};

const char *rh_cpu_isa_name(enum rh_cpu_isa isa)
{
	return names[isa];
}

static enum rh_cpu_isa machine_isa(void)
{
	__builtin_cpu_init();
	if (!__builtin_cpu_supports("x86-64-v3"))
		return RH_CPU_BASE;
	if (!__builtin_cpu_supports("x86-64-v4"))
		return RH_CPU_AVX2;
	return __builtin_cpu_supports("avx512bf16") ? RH_CPU_AVX512_BF16 : RH_CPU_AVX512;
}

enum rh_cpu_isa rh_cpu_best_isa(void)
{
	enum rh_cpu_isa best = machine_isa();
	const char *wish = getenv("RH_CPU_ISA");
	if (!wish)
		return best;
	for (int isa = RH_CPU_BASE; isa <= RH_CPU_AVX512_BF16; isa++) {
		if (strcmp(wish, names[isa]) == 0)
			return (enum rh_cpu_isa)isa < best ? (enum rh_cpu_isa)isa : best;
	}
	rh_warn_once("RH_CPU_ISA=%s is none of base, avx2, avx512, avx512_bf16: ignored", wish);
	return best;
}
