/* PNG by libpng: every colour type and depth, as 8-bit grey or RGB. Alpha is dropped and 16 bits lose their lower 8. */
#include "data/image.h"

#include "core/alloc.h"

#include <png.h>
#include <setjmp.h>
#include <string.h>

/* Whatever is read of an image lies here, where a jump out of libpng leaves it. */
struct reader {
	const uint8_t *bytes;
	size_t offset, length;
	char fault[96];
	uint8_t **row;
	size_t rows;
};

static void read_bytes(png_structp png, png_bytep out, size_t count)
{
	struct reader *reader = png_get_io_ptr(png);
	if (count > reader->length - reader->offset)
		png_error(png, "the file ends too early");
	memcpy(out, reader->bytes + reader->offset, count);
	reader->offset += count;
}

static void keep_fault(png_structp png, png_const_charp line)
{
	struct reader *reader = png_get_error_ptr(png);
	snprintf(reader->fault, sizeof reader->fault, "%s", line);
	longjmp(png_jmpbuf(png), 1);
}

static void ignore(png_structp png, png_const_charp line)
{
	(void)png;
	(void)line;
}

/* Between the file's pixels and 8 bits of grey or RGB. */
static void set_transforms(png_structp png, png_infop info)
{
	png_byte type = png_get_color_type(png, info), depth = png_get_bit_depth(png, info);
	if (type == PNG_COLOR_TYPE_PALETTE)
		png_set_palette_to_rgb(png);
	if (type == PNG_COLOR_TYPE_GRAY && depth < 8)
		png_set_expand_gray_1_2_4_to_8(png);
	if (depth == 16)
		png_set_strip_16(png);
	png_set_strip_alpha(png);
	(void)png_set_interlace_handling(png);
	png_read_update_info(png, info);
}

static int point_at_rows(struct reader *reader, const struct data_image *image)
{
	int rc = rh_grow(&reader->row, &reader->rows, (size_t)image->height, sizeof *reader->row);
	for (int64_t y = 0; !rc && y < image->height; y++)
		reader->row[y] = image->bytes + y * image->width * image->channels;
	return rc;
}

static int read_image(png_structp png, png_infop info, const char *where, int64_t most_bytes, struct reader *reader, struct data_image *out)
{
	if (setjmp(png_jmpbuf(png)))
		return rh_fail(-EINVAL, "%s: the PNG is damaged: %s", where, reader->fault);
	png_set_read_fn(png, reader, read_bytes);
	png_read_info(png, info);
	int is_colour = png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR;
	int rc = data_image_shape(where, png_get_image_width(png, info), png_get_image_height(png, info), is_colour ? 3 : 1, most_bytes,
	                          out);
	if (!rc)
		rc = point_at_rows(reader, out);
	if (rc)
		return rc;
	set_transforms(png, info);
	if ((int64_t)png_get_rowbytes(png, info) != out->width * out->channels)
		return rh_fail(-EINVAL, "%s: the PNG has rows of %zu bytes, where %lld are due", where, png_get_rowbytes(png, info),
		               (long long)(out->width * out->channels));
	png_read_image(png, reader->row);
	png_read_end(png, NULL);
	return 0;
}

int data_png_decode(const char *where, const void *bytes, size_t length, int64_t most_bytes, struct data_image *out)
{
	struct reader reader = {.bytes = bytes, .length = length};
	png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, keep_fault, ignore);
	png_infop info = png ? png_create_info_struct(png) : NULL;
	int rc = info ? 0 : rh_fail(-ENOMEM, "%s: out of host memory", where);
	if (!rc) {
		png_set_chunk_malloc_max(png, (png_alloc_size_t)most_bytes);
		rc = read_image(png, info, where, most_bytes, &reader, out);
	}
	png_destroy_read_struct(&png, &info, NULL);
	rh_free(reader.row);
	return rc;
}
