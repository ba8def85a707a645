/* PNG, JPEG and PNM, as the first bytes say. */
#include "fuzz/fuzz.h"

#include "core/alloc.h"
#include "data/image.h"

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	struct data_image image = {0}, half = {0}, resized = {0};
	int rc = data_image_decode("input", bytes, length, 1 << 20, &image);
	if (!rc)
		rc = data_image_convert(&image, length % 2 ? 1 : 3);
	if (!rc)
		rc = data_image_resize(&image, 9, 7, length % 3 ? RH_RESAMPLE_BILINEAR : RH_RESAMPLE_BICUBIC, &half, &resized);
	fuzz_refused(rc);
	rh_free(image.bytes);
	rh_free(half.bytes);
	rh_free(resized.bytes);
	return 0;
}

FUZZ_MAIN("image")
