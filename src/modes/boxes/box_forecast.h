/* Boxes that train one model together, in virtual time. */
#ifndef RH_MODES_BOXES_BOX_FORECAST_H
#define RH_MODES_BOXES_BOX_FORECAST_H

#include "forecast/forecast_input.h"
#include "session/session.h"

struct rh_forecast;
struct rh_letters;

/* Flushed steps (box_flush.h): slots of struct rh_mode_forecast. */
int box_forecast_open(struct rh_session *session, const struct rh_forecast_input *input, void **own, int *drains) RH_MUST;
int box_forecast_take_step(void *own, int step) RH_MUST;
int box_forecast_share_norm(void *own, int step) RH_MUST;
void box_forecast_close(void *own);

/* Steps without a flush: the slots of struct rh_mode_forecast. */
int box_forecast_open_stretch(struct rh_session *session, const struct rh_forecast_input *input, int64_t steps, void **own,
                              const struct rh_letters **letters) RH_MUST;
int box_forecast_may_begin(void *own, int64_t step) RH_MUST;
void box_forecast_ended(void *own, int64_t step);
void box_forecast_close_stretch(void *own);

/* Fills in out->table. */
void box_forecast_describe(const struct rh_session *session, struct rh_forecast *out);

#endif
