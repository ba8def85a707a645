/* How long a sequence may be, by plans alone. */
#ifndef RH_FORECAST_LONGEST_H
#define RH_FORECAST_LONGEST_H

#include "session/session.h"

#include <stdatomic.h>

/* The longest rows that a configuration trains on. */
struct rh_longest {
	int64_t tokens; /* 0: none fits */
	int64_t chunk;  /* most tokens of a chunk of them; 0: they are whole */
	const char *
	        budget; /* the key of the budget that a longer one exceeds: max_vram, max_ram or max_nvme; NULL: none that was tried does */
};

enum { RH_LONGEST_MOST = 1 << 22 }; /* longer ones are not tried */

/* Of `rows` sequences of a step that are in flight at once, one in each micro-batch; all else is as the configuration has it. To 2 %, never
 * more than fits. most: longer ones are not looked for. unwanted: NULL, or set by others who want no result any more. */
int rh_longest_find(const struct rh_config *config, const struct rh_session_machine *machine, int64_t rows, int64_t most,
                    const _Atomic int *unwanted, struct rh_longest *out) RH_MUST;

#endif
