/* Resizing as Pillow does it (its algorithm, not its code): a row of weights for each pixel of the result, in fixed point. */
#include "data/image.h"

#include "core/alloc.h"

#include <math.h>
#include <string.h>

enum { BITS = 22 }; /* of a weight's fraction: 8 of a value and some of a sum stay free in 32 */

/* For each pixel of the result the first one that it is made of, how many, and their weights. */
struct weights {
	int64_t *first, *count;
	int32_t *weight; /* (size, most) */
	int64_t most_inputs;
};

static double bilinear(double x)
{
	x = fabs(x);
	return x < 1 ? 1 - x : 0;
}

static double bicubic(double x)
{
	const double a = -0.5;
	x = fabs(x);
	if (x < 1)
		return ((a + 2) * x - (a + 3)) * x * x + 1;
	return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static void weigh(double (*filter)(double), double support, int64_t from, int64_t to, int64_t place, double *real, struct weights *out)
{
	double scale = (double)from / (double)to, wide = scale < 1 ? 1 : scale, centre = ((double)place + 0.5) * scale, sum = 0;
	double reach = support * wide;
	int64_t low = (int64_t)(centre - reach + 0.5), high = (int64_t)(centre + reach + 0.5);
	low = centre - reach + 0.5 < 0 ? 0 : low;
	high = high > from ? from : high;
	for (int64_t i = 0; i < high - low; i++)
		sum += real[i] = filter(((double)(i + low) - centre + 0.5) * (1 / wide));
	out->first[place] = low;
	out->count[place] = high - low;
	for (int64_t i = 0; i < high - low; i++) {
		double value = (sum != 0 ? real[i] / sum : real[i]) * (1 << BITS);
		out->weight[place * out->most_inputs + i] = (int32_t)(value < 0 ? value - 0.5 : value + 0.5);
	}
}

static void weights_free(struct weights *weights)
{
	rh_free(weights->first);
	rh_free(weights->count);
	rh_free(weights->weight);
}

static int weights_make(enum rh_resample resample, int64_t from, int64_t to, struct weights *out)
{
	double support = resample == RH_RESAMPLE_BICUBIC ? 2 : 1, wide = (double)from / (double)to;
	*out = (struct weights){.most_inputs = 2 * (int64_t)ceil(support * (wide < 1 ? 1 : wide)) + 1};
	double *real = rh_alloc((size_t)out->most_inputs, sizeof *real);
	out->first = rh_alloc((size_t)to, sizeof *out->first);
	out->count = rh_alloc((size_t)to, sizeof *out->count);
	out->weight = rh_alloc((size_t)(to * out->most_inputs), sizeof *out->weight);
	int rc = real && out->first && out->count && out->weight ? 0 : -ENOMEM;
	for (int64_t i = 0; !rc && i < to; i++)
		weigh(resample == RH_RESAMPLE_BICUBIC ? bicubic : bilinear, support, from, to, i, real, out);
	rh_free(real);
	if (rc)
		weights_free(out);
	return rc;
}

/* One value of the result, of values that lie `stride` apart. */
static uint8_t weighted(const uint8_t *from, int64_t stride, const struct weights *weights, int64_t place)
{
	const int32_t *weight = weights->weight + place * weights->most_inputs;
	int64_t sum = 1 << (BITS - 1);
	from += weights->first[place] * stride;
	for (int64_t i = 0; i < weights->count[place]; i++)
		sum += (int64_t)from[i * stride] * weight[i];
	sum >>= BITS;
	return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static int set_shape(struct data_image *image, int64_t width, int64_t height, int64_t channels)
{
	image->width = width;
	image->height = height;
	image->channels = channels;
	return rh_grow(&image->bytes, &image->capacity, (size_t)(width * height * channels), 1);
}

static int resize_rows(const struct data_image *from, int64_t width, enum rh_resample resample, struct data_image *out)
{
	struct weights weights;
	int64_t channels = from->channels;
	int rc = set_shape(out, width, from->height, channels);
	if (!rc)
		rc = weights_make(resample, from->width, width, &weights);
	if (rc)
		return rc;
	for (int64_t y = 0; y < from->height; y++)
		for (int64_t x = 0; x < width; x++)
			for (int64_t c = 0; c < channels; c++)
				out->bytes[(y * width + x) * channels + c] =
				        weighted(from->bytes + y * from->width * channels + c, channels, &weights, x);
	weights_free(&weights);
	return 0;
}

static int resize_columns(const struct data_image *from, int64_t height, enum rh_resample resample, struct data_image *out)
{
	struct weights weights;
	int64_t row = from->width * from->channels;
	int rc = set_shape(out, from->width, height, from->channels);
	if (!rc)
		rc = weights_make(resample, from->height, height, &weights);
	if (rc)
		return rc;
	for (int64_t y = 0; y < height; y++)
		for (int64_t i = 0; i < row; i++)
			out->bytes[y * row + i] = weighted(from->bytes + i, row, &weights, y);
	weights_free(&weights);
	return 0;
}

int data_image_resize(const struct data_image *from, int64_t width, int64_t height, enum rh_resample resample, struct data_image *half,
                      struct data_image *out)
{
	int rc = 0;
	if (from->width != width) {
		rc = resize_rows(from, width, resample, half);
		from = half;
	}
	return rc ? rc : resize_columns(from, height, resample, out);
}
