/* A forecast's steps on lanes, checked. */
#ifndef RH_TRAIN_FORECAST_CHECK_H
#define RH_TRAIN_FORECAST_CHECK_H

#include "train/forecast.h"

struct forecast_check;

/* Between rh_session_start and the first step; closed before the session is. -ENOTSUP: what lanes do not carry yet, with its line. */
int forecast_check_open(struct rh_session *session, struct forecast_check **out) RH_MUST;
/* The step that begins next. */
int forecast_check_expect(struct forecast_check *check, int64_t micro_batches, int64_t step) RH_MUST;
/* After the last step. */
int forecast_check_run(struct forecast_check *check, struct rh_forecast_check *out) RH_MUST;
/* NULL is legal. */
void forecast_check_close(struct forecast_check *check);

#endif
