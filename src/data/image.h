/* One image: decoded, and converted to what a model takes. */
#ifndef RH_DATA_IMAGE_H
#define RH_DATA_IMAGE_H

#include "data/images.h"

#include <stddef.h>
#include <stdint.h>

/* 8 bits a channel, row after row. Grown and reused from image to image. */
struct data_image {
	int64_t width, height, channels; /* channels: 1, grey, or 3, RGB */
	uint8_t *bytes;                  /* (height, width, channels) */
	size_t capacity;
};

/* A file's bytes as an image; which format, its first bytes say: PNG, JPEG, or PGM and PPM of 8 bits (P5, P6). `where` names the file; one
 * that is none of these, damaged, or of more than `most_bytes` once decoded is -EINVAL. */
int data_image_decode(const char *where, const void *bytes, size_t length, int64_t most_bytes, struct data_image *out) RH_MUST;
int data_png_decode(const char *where, const void *bytes, size_t length, int64_t most_bytes, struct data_image *out) RH_MUST;
int data_jpeg_decode(const char *where, const void *bytes, size_t length, int64_t most_bytes, struct data_image *out) RH_MUST;
/* Inside: room for an image of this size, which the file at `where` says it has. */
int data_image_shape(const char *where, int64_t width, int64_t height, int64_t channels, int64_t most_bytes,
                     struct data_image *out) RH_MUST;

/* The image with 1 or 3 channels: grey three times, or the luma of ITU-R 601-2, as Pillow's convert has it. */
int data_image_convert(struct data_image *image, int64_t channels) RH_MUST;

/* *out is `from` in another size, as Pillow resizes 8-bit images: separable filters as wide as the step where it shrinks, weights of 22
 * bits, rounded to 8 bits after each of the two passes. `half` is scratch. */
int data_image_resize(const struct data_image *from, int64_t width, int64_t height, enum rh_resample resample, struct data_image *half,
                      struct data_image *out) RH_MUST;

#endif
