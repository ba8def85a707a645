/* Labelled images: a set keeps names and labels, and decodes an image only when it is read. A path is a file of images in IDX (MNIST's
 * form; compressed or not), with its labels' file beside it, or a directory with a folder of image files for each class. */
#ifndef RH_DATA_IMAGES_H
#define RH_DATA_IMAGES_H

#include "config/config.h"
#include "core/json.h"

#include <stdint.h>

enum { RH_IMAGE_CHANNELS = 3 };
enum rh_resample { RH_RESAMPLE_BILINEAR = 2, RH_RESAMPLE_BICUBIC = 3 }; /* as preprocessor_config.json has them */

/* The form in which a model takes an image: `size` x `size` pixels of `channels`, in patches of `patch` x `patch`. */
struct rh_image_form {
	int64_t size, patch, channels; /* the model's; channels 1 or 3 */
	int is_resized;                /* else images must have the size */
	enum rh_resample resample;
	float value[RH_IMAGE_CHANNELS][256]; /* of each 8-bit value: rescaled and normalised */
};
/* From `dir`/preprocessor_config.json, as transformers' ViTImageProcessor reads it; without that file its defaults hold. -EINVAL for what
 * is not built, or does not fit the model's sizes, which `form` has already. */
int rh_image_form_load(const char *dir, struct rh_image_form *form) RH_MUST;

struct rh_images_options {
	const struct rh_list *paths;
	const struct rh_image_form *form; /* copied */
	int64_t labels;                   /* the number of labels */
	const json_t *label_ids;          /* config.json's label2id, borrowed while opening, or NULL */
	int64_t image_bytes;              /* the most bytes of a decoded image; larger ones are refused */
	int64_t most_images;              /* only so many first images of each folder and IDX file are taken; 0: all */
};
struct rh_images;
/* Folders' names are labels: names of label2id, else whole numbers, else their places in alphabetical order. */
int rh_images_open(const struct rh_images_options *options, struct rh_images **out) RH_MUST;
/* One more owner of the same set. NULL gives NULL. */
struct rh_images *rh_images_share(struct rh_images *images);
void rh_images_close(struct rh_images *images); /* by each owner; NULL is legal */

int64_t rh_images_count(const struct rh_images *images);
int32_t rh_images_label(const struct rh_images *images, int64_t image);
/* Tokens of an image: the class token and its patches. Numbers of each. */
int64_t rh_images_tokens(const struct rh_images *images);
int64_t rh_images_pixels(const struct rh_images *images);
int64_t rh_images_bytes(const struct rh_images *images); /* host memory that the set holds */
/* pixel (tokens, pixels): zeros, then the patches, row after row of them; each by channel, row and column. A damaged file is -EINVAL and
 * named. */
int rh_images_read(struct rh_images *images, int64_t image, float *pixel) RH_MUST;

#endif
