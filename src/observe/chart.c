#include "observe/chart.h"

#include <math.h>
#include <stdlib.h>

enum { WIDTH = 640, HEIGHT = 220, LEFT = 64, RIGHT = 12, TOP = 10, BOTTOM = 34, POINTS_MOST = 400, TICKS = 5, DOTS_MOST = 60 };

struct range {
	double low, high;
};

/* Larger values are drawn at this one, so that no difference or sum of what is drawn overflows. */
static double bounded(double value)
{
	static const double most = 1e300;
	return fmax(-most, fmin(most, value));
}

static void widen(struct range *range, double value)
{
	range->low = fmin(range->low, value);
	range->high = fmax(range->high, value);
}

/* 1, 2 or 5 times a power of ten: so that about TICKS of them span the range. */
static double tick_of(struct range range)
{
	double rough = (range.high - range.low) / TICKS, power = pow(10, floor(log10(rough))), share = rough / power;
	return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

/* No point at all, or one value alone, has no span to draw. */
static struct range settled(struct range range)
{
	double middle = (range.low + range.high) / 2, least = fmax(fabs(middle) * 1e-3, 1e-12);
	if (range.high - range.low < least)
		return (struct range){middle - least, middle + least};
	return range;
}

struct frame {
	struct range x, y;
};

static double across(const struct frame *frame, double x)
{
	return LEFT + (x - frame->x.low) / (frame->x.high - frame->x.low) * (WIDTH - LEFT - RIGHT);
}

static double down(const struct frame *frame, double y)
{
	return TOP + (frame->y.high - y) / (frame->y.high - frame->y.low) * (HEIGHT - TOP - BOTTOM);
}

static int put_axes(const struct frame *frame, const char *x_name, struct rh_text *out)
{
	double step = tick_of(frame->y), across_step = fmax(1, tick_of(frame->x));
	int rc = 0;
	for (double at = ceil(frame->y.low / step) * step; !rc && at <= frame->y.high + step * 1e-9; at += step)
		rc = rh_text_printf(out, "<path class=grid d=\"M%d %.1fH%d\"/><text class=tick x=%d y=%.1f text-anchor=end>%.4g</text>\n",
		                    LEFT, down(frame, at), WIDTH - RIGHT, LEFT - 6, down(frame, at) + 4, fabs(at) < step * 1e-9 ? 0 : at);
	for (double at = ceil(frame->x.low / across_step) * across_step; !rc && at <= frame->x.high; at += across_step)
		rc = rh_text_printf(out, "<text class=tick x=%.1f y=%d text-anchor=middle>%.6g</text>\n", across(frame, at), HEIGHT - 12,
		                    at);
	return rc ? rc : rh_text_printf(out, "<text class=tick x=%d y=%d text-anchor=end>%s</text>\n", WIDTH - RIGHT, HEIGHT - 1, x_name);
}

/* The mean of the finite points of a stretch; NAN: there are none. */
static double mean_of(const double *value, const double *beside, size_t count)
{
	double sum = 0;
	size_t n = 0;
	for (size_t i = 0; i < count; i++)
		if (isfinite(beside[i])) {
			sum += bounded(value[i]);
			n++;
		}
	return n ? sum / (double)n : NAN;
}

static int put_series(const struct frame *frame, const struct rh_series *series, struct rh_text *out)
{
	size_t stretch = (series->count + POINTS_MOST - 1) / POINTS_MOST, drawn = 0;
	int rc = series->marks ? 0 : rh_text_printf(out, "<path class=\"s%d\" d=\"", series->colour);
	for (size_t i = 0; !rc && !series->marks && i < series->count; i += stretch) {
		size_t count = series->count - i < stretch ? series->count - i : stretch;
		double x = mean_of(series->x + i, series->y + i, count), y = mean_of(series->y + i, series->y + i, count);
		if (isfinite(y))
			rc = rh_text_printf(out, "%c%.1f %.1f", drawn++ ? 'L' : 'M', across(frame, x), down(frame, y));
	}
	if (!rc && !series->marks)
		rc = rh_text_printf(out, "\"/>\n");
	/* dots: all of those that stand alone; of a line so many that each can be pointed at */
	size_t every = series->marks ? 1 : (series->count + DOTS_MOST - 1) / DOTS_MOST;
	for (size_t i = 0; !rc && i < series->count; i += every)
		if (isfinite(series->y[i]))
			rc = rh_text_printf(out, "<circle class=\"s%d%s\" cx=%.1f cy=%.1f r=%d><title>%s: %.6g at %.6g</title></circle>\n",
			                    series->colour, series->marks ? " mark" : "", across(frame, bounded(series->x[i])),
			                    down(frame, bounded(series->y[i])), series->marks ? 4 : 3, series->name, series->y[i],
			                    series->x[i]);
	return rc;
}

int rh_chart_svg(const struct rh_chart *chart, struct rh_text *out)
{
	struct frame frame = {{INFINITY, -INFINITY}, {INFINITY, -INFINITY}};
	for (size_t s = 0; s < chart->count; s++)
		for (size_t i = 0; i < chart->series[s].count; i++)
			if (isfinite(chart->series[s].y[i])) {
				widen(&frame.x, bounded(chart->series[s].x[i]));
				widen(&frame.y, bounded(chart->series[s].y[i]));
			}
	if (frame.x.low > frame.x.high)
		return 0;
	if (chart->from_zero)
		widen(&frame.y, 0);
	frame.x = settled(frame.x);
	frame.y = settled(frame.y);
	int rc = rh_text_printf(out, "<svg viewBox=\"0 0 %d %d\" role=img aria-label=\"%s\">\n", WIDTH, HEIGHT, chart->title);
	if (!rc)
		rc = put_axes(&frame, chart->x_name, out);
	for (size_t s = 0; !rc && s < chart->count; s++)
		rc = put_series(&frame, &chart->series[s], out);
	return rc ? rc : rh_text_printf(out, "</svg>\n");
}
