/* Inside src/observe. */
#ifndef RH_OBSERVE_INTERNAL_H
#define RH_OBSERVE_INTERNAL_H

#include "core/text.h"

/* The fewest digits that read back as the same double, as JSON; null where it is not finite. */
int observe_print_real(struct rh_text *out, double value) RH_MUST;

#endif
