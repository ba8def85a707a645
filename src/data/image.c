#include "data/image.h"

#include "core/alloc.h"

#include <string.h>

enum { MOST_SIDE = 1 << 16 };

int data_image_shape(const char *where, int64_t width, int64_t height, int64_t channels, int64_t most_bytes, struct data_image *out)
{
	if (width < 1 || height < 1 || width > MOST_SIDE || height > MOST_SIDE)
		return rh_fail(-EINVAL, "%s: an image of %lld x %lld pixels; its sides may be 1 to %d", where, (long long)width,
		               (long long)height, MOST_SIDE);
	if (width * height * RH_IMAGE_CHANNELS > most_bytes)
		return rh_fail(
		        -EINVAL,
		        "%s: an image of %lld x %lld pixels takes %.1f MiB once decoded, above the %.1f that it may; make it smaller%s",
		        where, (long long)width, (long long)height, (double)(width * height * RH_IMAGE_CHANNELS) / 1048576,
		        (double)most_bytes / 1048576, " or raise max_ram");
	out->width = width;
	out->height = height;
	out->channels = channels;
	return rh_grow(&out->bytes, &out->capacity, (size_t)(width * height * channels), 1);
}

/* ---- PGM and PPM ---- */

struct text {
	const uint8_t *bytes;
	size_t offset, length;
};

static int is_blank(uint8_t byte)
{
	return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

/* A number of the header, after blanks and comments; -1: there is none. */
static int64_t next_number(struct text *text)
{
	int64_t value = -1;
	while (text->offset < text->length && (is_blank(text->bytes[text->offset]) || text->bytes[text->offset] == '#')) {
		int is_comment = text->bytes[text->offset] == '#';
		while (is_comment && text->offset < text->length && text->bytes[text->offset] != '\n')
			text->offset++;
		text->offset += text->offset < text->length;
	}
	for (; text->offset < text->length && text->bytes[text->offset] >= '0' && text->bytes[text->offset] <= '9'; text->offset++) {
		value = (value < 0 ? 0 : value) * 10 + (text->bytes[text->offset] - '0');
		if (value > INT32_MAX)
			return -1;
	}
	return value;
}

static int pnm_decode(const char *where, const uint8_t *bytes, size_t length, int64_t most_bytes, struct data_image *out)
{
	struct text text = {bytes, 2, length};
	int64_t channels = bytes[1] == '6' ? 3 : 1, width = next_number(&text), height = next_number(&text), most = next_number(&text);
	if (width < 0 || height < 0 || most < 0 || text.offset >= length || !is_blank(bytes[text.offset]))
		return rh_fail(-EINVAL, "%s: the PNM header is damaged: width, height and largest value must follow P%c", where, bytes[1]);
	text.offset++;
	if (most < 1 || most > 255)
		return rh_fail(-EINVAL, "%s: values up to %lld are not supported (1 to 255 are); save the image with 8 bits", where,
		               (long long)most);
	int rc = data_image_shape(where, width, height, channels, most_bytes, out);
	if (rc)
		return rc;
	size_t size = (size_t)(width * height * channels);
	if (length - text.offset < size)
		return rh_fail(-EINVAL, "%s: the file ends after %zu of %zu bytes of pixels", where, length - text.offset, size);
	for (size_t i = 0; i < size; i++) {
		int64_t value = bytes[text.offset + i];
		out->bytes[i] = (uint8_t)(value >= most ? 255 : (value * 255 * 2 + most) / (2 * most)); /* rounded */
	}
	return 0;
}

/* ---- all formats ---- */

int data_image_decode(const char *where, const void *bytes, size_t length, int64_t most_bytes, struct data_image *out)
{
	const uint8_t *first = bytes;
	if (length >= 8 && !memcmp(first, "\x89PNG\r\n\x1a\n", 8))
		return data_png_decode(where, bytes, length, most_bytes, out);
	if (length >= 3 && first[0] == 0xff && first[1] == 0xd8 && first[2] == 0xff)
		return data_jpeg_decode(where, bytes, length, most_bytes, out);
	if (length >= 3 && first[0] == 'P' && (first[1] == '5' || first[1] == '6') && (is_blank(first[2]) || first[2] == '#'))
		return pnm_decode(where, bytes, length, most_bytes, out);
	return rh_fail(-EINVAL, "%s: no PNG, no JPEG, no PGM or PPM (P5, P6), whatever its name says; convert it or take it away", where);
}

int data_image_convert(struct data_image *image, int64_t channels)
{
	int64_t count = image->width * image->height;
	if (image->channels == channels)
		return 0;
	if (channels == 1) {
		for (int64_t i = 0; i < count; i++) {
			const uint8_t *from = image->bytes + 3 * i;
			image->bytes[i] = (uint8_t)((from[0] * 19595u + from[1] * 38470u + from[2] * 7471u + 0x8000u) >> 16);
		}
	} else {
		int rc = rh_grow(&image->bytes, &image->capacity, (size_t)(3 * count), 1);
		if (rc)
			return rc;
		for (int64_t i = count - 1; i >= 0; i--)
			memset(image->bytes + 3 * i, image->bytes[i], 3);
	}
	image->channels = channels;
	return 0;
}
