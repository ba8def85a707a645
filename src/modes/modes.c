#include "modes/modes_internal.h"

#include "core/error.h"

/* A box alone. */
static const struct rh_mode_ops mode_local = {.is_judged = 1};

const struct rh_mode_ops *rh_mode_of(enum rh_mode mode)
{
	static const struct rh_mode_ops *const rows[] = {[RH_MODE_LOCAL] = &mode_local,
	                                                 [RH_MODE_SYNC_PP] = &mode_sync_pp,
	                                                 [RH_MODE_PACI] = &mode_paci,
	                                                 [RH_MODE_FLUIDPIPE] = &mode_fluidpipe};
	RH_ASSERT((size_t)mode < sizeof rows / sizeof *rows);
	return rows[mode];
}
