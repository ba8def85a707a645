/* Line charts as SVG: in a page whose style colours the classes s0 to s3 (lines), grid and tick; or as a file of their own. */
#ifndef RH_OBSERVE_CHART_H
#define RH_OBSERVE_CHART_H

#include "core/text.h"

#include <stddef.h>

enum { RH_CHART_SERIES = 4 }; /* colours */

enum rh_series_kind {
	RH_SERIES_LINE,
	RH_SERIES_MARKS, /* circles without a line between */
	RH_SERIES_DASHED
};

/* Points in ascending x; those whose y is not finite are left out. */
struct rh_series {
	const char *name;
	int colour;
	enum rh_series_kind kind;
	const double *x, *y;
	size_t count;
	const char *label; /* beside the last point; NULL: none */
};

struct rh_chart {
	const char *title; /* escaped in a file, as it may be somebody else's text; the names are plain words */
	const char *x_name, *y_name; /* y_name: in a file alone */
	int from_zero;   /* the y axis begins at 0 */
	int is_doubling; /* both axes are logarithmic, with a line for each power of two: 4K, 8K */
	int is_file;     /* larger, with a title and a style of its own, light or dark as the reader's */
	const struct rh_series *series;
	size_t count;
};

/* Appends one <svg>: axes with round numbers, at most 400 points a line (means of the points between), values where the pointer rests.
 * In a page nothing where no point is finite. */
int rh_chart_svg(const struct rh_chart *chart, struct rh_text *out) RH_MUST;

#endif
