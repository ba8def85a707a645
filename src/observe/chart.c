#include "observe/chart.h"

#include "core/version.h"
#include "observe/html.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POINTS_MOST = 400, TICKS = 5, DOTS_MOST = 60, LABEL_LINE = 14 };

struct range {
	double low, high;
};

/* What lies where; x and y in the axes' units: of doubling ones logarithms to base 2. */
struct frame {
	int width, height, left, right, top, bottom;
	int is_doubling;
	struct range x, y;
};
static const struct frame in_page = {.width = 640, .height = 220, .left = 64, .right = 12, .top = 10, .bottom = 34};
static const struct frame in_file = {.width = 960, .height = 540, .left = 90, .right = 150, .top = 64, .bottom = 64};

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

/* To whole powers of two. */
static struct range doubled(struct range range)
{
	if (range.low > range.high)
		return (struct range){0, 1};
	double low = floor(range.low), high = ceil(range.high);
	return (struct range){low, high > low ? high : low + 1};
}

static double unit(const struct frame *frame, double value)
{
	return frame->is_doubling ? log2(value) : bounded(value);
}

/* Of a doubling axis nothing is at 0. */
static int is_shown(const struct frame *frame, double y)
{
	return isfinite(y) && isfinite(unit(frame, y));
}

static double across(const struct frame *frame, double x)
{
	return frame->left + (x - frame->x.low) / (frame->x.high - frame->x.low) * (frame->width - frame->left - frame->right);
}

static double down(const struct frame *frame, double y)
{
	return frame->top + (frame->y.high - y) / (frame->y.high - frame->y.low) * (frame->height - frame->top - frame->bottom);
}

static void show_number(const struct frame *frame, double at, char out[32])
{
	double number = frame->is_doubling ? exp2(at) : at;
	const char *unit_name = "";
	if (frame->is_doubling && number >= 1024) {
		unit_name = number >= 1048576 ? "M" : "K";
		number /= number >= 1048576 ? 1048576 : 1024;
	}
	snprintf(out, 32, "%.6g%s", number, unit_name);
}

static int put_axes(const struct frame *frame, const char *x_name, struct rh_text *out)
{
	double step = frame->is_doubling ? 1 : tick_of(frame->y), across_step = frame->is_doubling ? 1 : fmax(1, tick_of(frame->x));
	int rc = 0, floor_y = frame->height - frame->bottom;
	char number[32];
	for (double at = ceil(frame->y.low / step) * step; !rc && at <= frame->y.high + step * 1e-9; at += step) {
		show_number(frame, fabs(at) < step * 1e-9 ? 0 : at, number);
		rc = rh_text_printf(out,
		                    "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"tick\" x=\"%d\" y=\"%.1f\" "
		                    "text-anchor=\"end\">%s</text>\n",
		                    frame->left, down(frame, at), frame->width - frame->right, frame->left - 6, down(frame, at) + 4,
		                    number);
	}
	for (double at = ceil(frame->x.low / across_step) * across_step; !rc && at <= frame->x.high; at += across_step) {
		show_number(frame, at, number);
		if (frame->is_doubling)
			rc = rh_text_printf(out, "<path class=\"grid\" d=\"M%.1f %dV%d\"/>", across(frame, at), frame->top, floor_y);
		if (!rc)
			rc = rh_text_printf(out, "<text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
			                    across(frame, at), floor_y + 22, number);
	}
	return rc ? rc
	          : rh_text_printf(out, "<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n",
	                           frame->width - frame->right, floor_y + 31, x_name);
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

static int put_line(const struct frame *frame, const struct rh_series *series, struct rh_text *out)
{
	size_t stretch = (series->count + POINTS_MOST - 1) / POINTS_MOST, drawn = 0;
	int rc = rh_text_printf(out, "<path class=\"s%d%s\" d=\"", series->colour, series->kind == RH_SERIES_DASHED ? " dashed" : "");
	for (size_t i = 0; !rc && i < series->count; i += stretch) {
		size_t count = series->count - i < stretch ? series->count - i : stretch;
		double x = mean_of(series->x + i, series->y + i, count), y = mean_of(series->y + i, series->y + i, count);
		if (is_shown(frame, y))
			rc = rh_text_printf(out, "%c%.1f %.1f", drawn++ ? 'L' : 'M', across(frame, unit(frame, x)),
			                    down(frame, unit(frame, y)));
	}
	return rc ? rc : rh_text_printf(out, "\"/>\n");
}

/* Dots: all of those that stand alone; of a line so many that each can be pointed at. */
static int put_dots(const struct frame *frame, const struct rh_series *series, struct rh_text *out)
{
	int marks = series->kind == RH_SERIES_MARKS, rc = 0;
	size_t every = marks ? 1 : (series->count + DOTS_MOST - 1) / DOTS_MOST;
	for (size_t i = 0; !rc && i < series->count; i += every)
		if (is_shown(frame, series->y[i]))
			rc = rh_text_printf(out,
			                    "<circle class=\"s%d%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"><title>%s: %.6g at "
			                    "%.6g</title></circle>\n",
			                    series->colour, marks ? " mark" : "", across(frame, unit(frame, series->x[i])),
			                    down(frame, unit(frame, series->y[i])), marks ? 4 : 3, series->name, series->y[i],
			                    series->x[i]);
	return rc;
}

static int put_series(const struct frame *frame, const struct rh_series *series, struct rh_text *out)
{
	int rc = series->kind == RH_SERIES_MARKS ? 0 : put_line(frame, series, out);
	if (!rc && series->kind != RH_SERIES_DASHED)
		rc = put_dots(frame, series, out);
	size_t last = series->count;
	while (last && !is_shown(frame, series->y[last - 1]))
		last--;
	if (rc || !series->label || !last)
		return rc;
	/* labels of lines that end in one place stand below each other */
	double x = across(frame, unit(frame, series->x[last - 1])), y = down(frame, unit(frame, series->y[last - 1]));
	return rh_text_printf(out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 8, y + 4 + LABEL_LINE * (series->colour - 1),
	                      series->label);
}

static int put_file_head(const struct rh_chart *chart, const struct frame *frame, struct rh_text *out)
{
	int rc = rh_text_printf(
	        out,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\"><!-- " RH_MARK " -->\n<style>\n"
	        "svg{background:#fff;color:#222}text{font:12px sans-serif;fill:currentColor}path{fill:none;stroke-width:2}\n"
	        ".grid{stroke:#ccc;stroke-width:1}.dashed{stroke-dasharray:5 4}circle{fill:#fff}\n"
	        ".s0{stroke:#1f5fa8}.s1{stroke:#b4560b}.s2{stroke:#2c7a2c}.s3{stroke:#7b3fb0}\n"
	        "@media(prefers-color-scheme:dark){svg{background:#16181d;color:#e6e6e6}.grid{stroke:#3a3f47}circle{fill:#16181d}\n"
	        ".s0{stroke:#7ab8f5}.s1{stroke:#f5a35c}.s2{stroke:#7ed37e}.s3{stroke:#c297ff}}\n"
	        "</style>\n<text x=\"%d\" y=\"28\">",
	        frame->width, frame->height, frame->width, frame->height, frame->left);
	if (!rc)
		rc = rh_html_escape(out, chart->title, strlen(chart->title));
	return rc ? rc : rh_text_printf(out, "</text>\n<text x=\"16\" y=\"%d\">%s</text>\n", frame->top - 14, chart->y_name);
}

static struct frame frame_of(const struct rh_chart *chart)
{
	struct frame frame = chart->is_file ? in_file : in_page;
	frame.is_doubling = chart->is_doubling;
	frame.x = frame.y = (struct range){INFINITY, -INFINITY};
	for (size_t s = 0; s < chart->count; s++)
		for (size_t i = 0; i < chart->series[s].count; i++)
			if (is_shown(&frame, chart->series[s].y[i])) {
				widen(&frame.x, unit(&frame, chart->series[s].x[i]));
				widen(&frame.y, unit(&frame, chart->series[s].y[i]));
			}
	return frame;
}

int rh_chart_svg(const struct rh_chart *chart, struct rh_text *out)
{
	struct frame frame = frame_of(chart);
	if (frame.x.low > frame.x.high && !chart->is_file)
		return 0;
	if (chart->from_zero)
		widen(&frame.y, 0);
	frame.x = chart->is_doubling ? doubled(frame.x) : settled(frame.x);
	frame.y = chart->is_doubling ? doubled(frame.y) : settled(frame.y);
	int rc = chart->is_file ? put_file_head(chart, &frame, out)
	                        : rh_text_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", frame.width,
	                                         frame.height, chart->title);
	if (!rc)
		rc = put_axes(&frame, chart->x_name, out);
	for (size_t s = 0; !rc && s < chart->count; s++)
		rc = put_series(&frame, &chart->series[s], out);
	return rc ? rc : rh_text_printf(out, "</svg>\n");
}
