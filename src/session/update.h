/* The update that ends a step of training, and of its prediction. */
#ifndef RH_SESSION_UPDATE_H
#define RH_SESSION_UPDATE_H

#include "config/config.h"
#include "offload/updater.h"

/* `step` counts from 0. */
struct rh_update rh_update_of(const struct rh_config *config, int64_t step, double learning_rate, double scale);

#endif
