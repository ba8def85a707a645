/* Checks the lanes of a forecast's steps. */
#ifndef RH_FORECAST_FORECAST_CHECK_H
#define RH_FORECAST_FORECAST_CHECK_H

#include "forecast/forecast.h"

struct forecast_check;

/* Open it between rh_session_start and the first step; close it before the session. */
int forecast_check_open(struct rh_session *session, struct forecast_check **out) RH_MUST;
/* Says which step begins next. */
int forecast_check_expect(struct forecast_check *check, int64_t micro_batches, int64_t step) RH_MUST;
/* After the last step. */
int forecast_check_run(struct forecast_check *check, struct rh_forecast_check *out) RH_MUST;
/* NULL is legal. */
void forecast_check_close(struct forecast_check *check);

#endif
