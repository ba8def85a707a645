/* Line charts as SVG, for a page whose style colours the classes s0 to s3 (lines), grid and tick. */
#ifndef RH_OBSERVE_CHART_H
#define RH_OBSERVE_CHART_H

#include "core/text.h"

#include <stddef.h>

enum { RH_CHART_SERIES = 4 }; /* colours */

/* Points in ascending x; those whose y is not finite are left out. marks: circles without a line between. */
struct rh_series {
	const char *name;
	int colour, marks;
	const double *x, *y;
	size_t count;
};

struct rh_chart {
	const char *title, *x_name; /* of plain words: not escaped */
	int from_zero;              /* the y axis begins at 0 */
	const struct rh_series *series;
	size_t count;
};

/* Appends one <svg>: axes with round numbers, at most 400 points a line (means of the points between), values where the pointer rests.
 * Nothing where no point is finite. */
int rh_chart_svg(const struct rh_chart *chart, struct rh_text *out) RH_MUST;

#endif
