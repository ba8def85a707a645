/* JPEG by libjpeg: grey or RGB. A file that ends too early is damaged; what the library only warns of is not. */
#include "data/image.h"

#include <setjmp.h>
#include <stdio.h>

#include <jerror.h>
#include <jpeglib.h>

struct reader {
	struct jpeg_error_mgr errors; /* first: libjpeg hands out its address */
	jmp_buf out;
	char fault[JMSG_LENGTH_MAX];
};

static void keep_fault(j_common_ptr jpeg)
{
	struct reader *reader = (struct reader *)(void *)jpeg->err;
	jpeg->err->format_message(jpeg, reader->fault);
	longjmp(reader->out, 1);
}

static void judge_warning(j_common_ptr jpeg, int level)
{
	if (level < 0 && (jpeg->err->msg_code == JWRN_JPEG_EOF || jpeg->err->msg_code == JWRN_HIT_MARKER))
		keep_fault(jpeg);
}

static int read_image(struct jpeg_decompress_struct *jpeg, struct reader *reader, const char *where, int64_t most_bytes,
                      struct data_image *out)
{
	if (setjmp(reader->out))
		return rh_fail(-EINVAL, "%s: the JPEG is damaged: %s", where, reader->fault);
	(void)jpeg_read_header(jpeg, TRUE);
	if (jpeg->num_components != 1 && jpeg->num_components != 3)
		return rh_fail(-EINVAL, "%s: a JPEG of %d components (CMYK?) is not supported; save it as RGB", where,
		               jpeg->num_components);
	jpeg->out_color_space = jpeg->num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
	int rc = data_image_shape(where, jpeg->image_width, jpeg->image_height, jpeg->num_components, most_bytes, out);
	if (rc)
		return rc;
	(void)jpeg_start_decompress(jpeg);
	while (jpeg->output_scanline < jpeg->output_height) {
		uint8_t *row = out->bytes + (int64_t)jpeg->output_scanline * out->width * out->channels;
		(void)jpeg_read_scanlines(jpeg, &row, 1);
	}
	(void)jpeg_finish_decompress(jpeg);
	return 0;
}

int data_jpeg_decode(const char *where, const void *bytes, size_t length, int64_t most_bytes, struct data_image *out)
{
	struct reader reader = {0};
	struct jpeg_decompress_struct jpeg = {.err = jpeg_std_error(&reader.errors)};
	reader.errors.error_exit = keep_fault;
	reader.errors.emit_message = judge_warning;
	if (setjmp(reader.out))
		return rh_fail(-ENOMEM, "%s: %s", where, reader.fault);
	jpeg_create_decompress(&jpeg);
	jpeg.mem->max_memory_to_use = (long)most_bytes;
	jpeg_mem_src(&jpeg, bytes, (unsigned long)length);
	int rc = read_image(&jpeg, &reader, where, most_bytes, out);
	jpeg_destroy_decompress(&jpeg);
	return rc;
}
