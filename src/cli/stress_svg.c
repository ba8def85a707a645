/* Tokens a second by length, a line for each placement, both axes logarithmic. Its colours follow the reader's light or dark scheme. */
#include "cli/output.h"
#include "cli/stress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 960, HEIGHT = 540, LEFT = 90, RIGHT = 150, TOP = 56, BOTTOM = 64 };

struct axes {
	double least_x, most_x, least_y, most_y; /* logarithms to base 2 */
};

static double place_x(const struct axes *axes, double log_x)
{
	return LEFT + (log_x - axes->least_x) / (axes->most_x - axes->least_x) * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct axes *axes, double log_y)
{
	return HEIGHT - BOTTOM - (log_y - axes->least_y) / (axes->most_y - axes->least_y) * (HEIGHT - TOP - BOTTOM);
}

/* To whole powers of two around all points. */
static struct axes find_axes(const struct stress_result *result)
{
	struct axes axes = {1e9, -1e9, 1e9, -1e9};
	for (int p = 0; p < RH_PLACEMENTS; p++)
		for (int i = 0; i < result->found[p].points; i++) {
			double x = log2((double)result->found[p].point[i].tokens), y = log2(result->found[p].point[i].tokens_per_second);
			if (!isfinite(x) || !isfinite(y))
				continue;
			axes.least_x = fmin(axes.least_x, floor(x));
			axes.most_x = fmax(axes.most_x, ceil(x));
			axes.least_y = fmin(axes.least_y, floor(y));
			axes.most_y = fmax(axes.most_y, ceil(y));
		}
	if (axes.least_x > axes.most_x)
		return (struct axes){10, 11, 0, 1};
	axes.most_x += axes.most_x == axes.least_x;
	axes.most_y += axes.most_y == axes.least_y;
	return axes;
}

static void show_number(double number, char out[24])
{
	if (number >= 1048576)
		snprintf(out, 24, "%gM", number / 1048576);
	else if (number >= 1024)
		snprintf(out, 24, "%gK", number / 1024);
	else
		snprintf(out, 24, "%g", number);
}

static int put_grid(const struct axes *axes, struct rh_text *out)
{
	char number[24];
	int rc = 0;
	for (double x = axes->least_x; !rc && x <= axes->most_x; x++) {
		show_number(exp2(x), number);
		rc = rh_text_printf(out,
		                    "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n"
		                    "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
		                    place_x(axes, x), TOP, place_x(axes, x), HEIGHT - BOTTOM, place_x(axes, x), HEIGHT - BOTTOM + 20,
		                    number);
	}
	for (double y = axes->least_y; !rc && y <= axes->most_y; y++) {
		show_number(exp2(y), number);
		rc = rh_text_printf(out,
		                    "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n"
		                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
		                    LEFT, place_y(axes, y), WIDTH - RIGHT, place_y(axes, y), LEFT - 8, place_y(axes, y) + 4, number);
	}
	return rc;
}

static int put_curve(const struct axes *axes, const struct rh_stress_found *found, int number, struct rh_text *out)
{
	double x = 0, y = 0;
	int rc = rh_text_printf(out, "<polyline class=\"c%d\" points=\"", number);
	for (int i = 0; !rc && i < found->points; i++) {
		double log_y = log2(found->point[i].tokens_per_second);
		if (!isfinite(log_y))
			continue;
		x = place_x(axes, log2((double)found->point[i].tokens));
		y = place_y(axes, log_y);
		rc = rh_text_printf(out, "%.1f,%.1f ", x, y);
	}
	if (!rc)
		rc = rh_text_printf(out, "\"/>\n<circle class=\"d%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", number, x, y);
	return rc ? rc
	          : rh_text_printf(out, "<text x=\"%.1f\" y=\"%.1f\">%s: %lld</text>\n", x + 8, y + 4 + 14 * (number - 1),
	                           rh_placement_name[number], (long long)found->tokens);
}

int stress_svg(const struct stress_result *result, const char *title, struct rh_text *out)
{
	const struct axes axes = find_axes(result);
	int rc = rh_text_printf(
	        out,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\"><!-- " OUTPUT_MARK " -->\n"
	        "<style>\n"
	        "svg{background:#fff;color:#222}text{font:12px sans-serif;fill:currentColor}.grid{stroke:#ccc}\n"
	        "polyline{fill:none;stroke-width:2}.c0{stroke:#1f5fa8}.c1{stroke:#b4560b}.c2{stroke:#2c7a2c}\n"
	        ".d0{fill:#1f5fa8}.d1{fill:#b4560b}.d2{fill:#2c7a2c}\n"
	        "@media(prefers-color-scheme:dark){svg{background:#16181d;color:#e6e6e6}.grid{stroke:#3a3f47}\n"
	        ".c0{stroke:#7ab8f5}.c1{stroke:#f5a35c}.c2{stroke:#7ed37e}.d0{fill:#7ab8f5}.d1{fill:#f5a35c}.d2{fill:#7ed37e}}\n"
	        "</style>\n<text x=\"%d\" y=\"28\">",
	        WIDTH, HEIGHT, WIDTH, HEIGHT, LEFT);
	for (const char *at = title; !rc && *at; at++)
		rc = *at == '<' ? rh_text_printf(out, "&lt;") : *at == '&' ? rh_text_printf(out, "&amp;") : rh_text_printf(out, "%c", *at);
	if (!rc)
		rc = rh_text_printf(out, "</text>\n<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">tokens in the sequence</text>\n",
		                    (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16);
	if (!rc)
		rc = rh_text_printf(out, "<text x=\"16\" y=\"%d\">tokens/s</text>\n", TOP - 8);
	if (!rc)
		rc = put_grid(&axes, out);
	for (int p = 0; !rc && p < RH_PLACEMENTS; p++)
		rc = result->found[p].points ? put_curve(&axes, &result->found[p], p, out) : 0;
	return rc ? rc : rh_text_printf(out, "</svg>\n");
}
