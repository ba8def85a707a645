/* Images in IDX beside labels in IDX: the input is first the one, then the other. */
#include "fuzz/fuzz.h"

#include "core/alloc.h"
#include "data/images.h"

#include <string.h>

static const uint8_t two_images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 7, 9};
static const uint8_t two_labels[] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 0};

static void read_all(const char *path)
{
	enum { MOST_READ = 4 };
	struct rh_image_form form = {.size = 4, .patch = 2, .channels = 1, .is_resized = 1, .resample = RH_RESAMPLE_BILINEAR};
	char *item[] = {(char *)(uintptr_t)path};
	const struct rh_list paths = {.item = item, .count = 1};
	struct rh_images *images;
	float pixel[5 * 4];
	int rc = rh_images_open(&(struct rh_images_options){.paths = &paths, .form = &form, .labels = 3, .image_bytes = 1 << 20}, &images);
	fuzz_refused(rc);
	if (rc)
		return;
	for (int64_t i = 0; i < rh_images_count(images) && i < MOST_READ; i++)
		if (rh_images_label(images, i) < 3)
			fuzz_refused(rh_images_read(images, i, pixel));
	rh_images_close(images);
}

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	char path[256];
	snprintf(path, sizeof path, "%s", fuzz_write("images-idx3", bytes, length));
	fuzz_write("labels-idx1", two_labels, sizeof two_labels);
	read_all(path);
	fuzz_write("images-idx3", two_images, sizeof two_images);
	fuzz_write("labels-idx1", bytes, length);
	read_all(path);
	return 0;
}

FUZZ_MAIN("idx")
