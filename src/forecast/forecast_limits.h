/* What mode paci's speed depends on, and a simulation chooses: admission limits for slow links, which say how many units each box has in
 * flight; and how long after an update it is published. */
#ifndef RH_FORECAST_FORECAST_LIMITS_H
#define RH_FORECAST_FORECAST_LIMITS_H

#include "forecast/forecast_boxes.h"

#define RH_LIMITS_TOLERANCE 1.03 /* a period that is longer than the best by this factor is as good */

/* Limits as the configuration has them; the list points into the struct, which must not move. */
struct rh_admission_limits {
	struct rh_list list;
	char *item[RH_BOXES_MAX], text[RH_BOXES_MAX][24];
};
/* Of a first box with `most` units in flight, 1 of the last; those between lie on a line: 1 + ceil((boxes - i) (most - 1) / (boxes - 1)).
 */
void rh_admission_limits_set(int boxes, int64_t most, struct rh_admission_limits *out);

/* Box 1's limit over links that take no time: each box above has a unit on each of its devices. Of boxes of one device PACI's own. */
int64_t rh_admission_limit_near(const struct rh_boxes_request *request);

/* The smallest limits whose simulated period is within 3 % of the best, of those from PACI's own (boxes + 1 - i) up to
 * 1 + (boxes - i) (D + ceil(R / T)): D a box's devices, R a round trip with an activation's and a gradient's transfer, T the slowest box's
 * time for a unit, over all its devices. None exceeds what memory holds, or what max_version_drift allows. unit_s: the seconds that a unit
 * takes with these limits, and with PACI's own. RH_DOES_NOT_FIT: PACI's own do not. */
int rh_forecast_limits(const struct rh_boxes_request *request, struct rh_admission_limits *out, double unit_s[2]) RH_MUST;

/* Tokens a second with limits as wide as help and fit: what rh_forecast_limits calls the best. */
int rh_forecast_widest(const struct rh_boxes_request *request, double *tokens_per_s) RH_MUST;

/* The smallest paci_update_delay whose simulated period is within 3 % of the longest one's, with the request's limits; 0 where that is no
 * more than 3 % faster than updates that block their box, or the second copy of the weights does not fit. unit_s: the seconds that a unit
 * takes with it, and without a delay. */
int rh_forecast_delay(const struct rh_boxes_request *request, int64_t *delay, double unit_s[2]) RH_MUST;

#endif
