/* The rows of all modes; modes.c lists them. */
#ifndef RH_MODES_MODES_INTERNAL_H
#define RH_MODES_MODES_INTERNAL_H

#include "session/mode.h"

extern const struct rh_mode_ops mode_sync_pp, mode_paci; /* boxes/box_modes.c */
extern const struct rh_mode_ops mode_fluidpipe;          /* fluidpipe/fluidpipe_mode.c */

#endif
