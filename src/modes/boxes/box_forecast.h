/* Boxes that train one model together, in virtual time. */
#ifndef RH_MODES_BOXES_BOX_FORECAST_H
#define RH_MODES_BOXES_BOX_FORECAST_H

#include "session/session.h"

struct rh_forecast;

/* Boxes exchange a table's gradient, add up their squares and pass the norm down, as training does (box_step.c); virtual links move no
 * numbers. */
int box_forecast_norm(struct rh_session *session) RH_MUST;

/* Fills in out->table. */
void box_forecast_describe(const struct rh_session *session, struct rh_forecast *out);

#endif
