#include "modes/fluidpipe/teacher_logits.h"

#include "ckpt/safetensors.h"
#include "core/alloc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int64_t rh_teacher_logits_bytes(int64_t samples, int64_t outputs)
{
	return samples * (outputs * (int64_t)sizeof(float) + 1);
}

int rh_teacher_logits_create(int64_t samples, int64_t outputs, struct rh_teacher_logits *out)
{
	RH_ASSERT(samples > 0 && samples <= INT32_MAX && outputs > 0);
	*out = (struct rh_teacher_logits){.samples = samples, .outputs = outputs};
	out->logit = rh_alloc((size_t)(samples * outputs), sizeof *out->logit);
	out->is_known = rh_alloc((size_t)samples, sizeof *out->is_known);
	if (out->logit && out->is_known)
		return 0;
	rh_teacher_logits_destroy(out);
	return -ENOMEM;
}

void rh_teacher_logits_destroy(struct rh_teacher_logits *logits)
{
	rh_free(logits->logit);
	rh_free(logits->is_known);
	*logits = (struct rh_teacher_logits){0};
}

void rh_teacher_logits_clear(struct rh_teacher_logits *logits)
{
	memset(logits->is_known, 0, (size_t)logits->samples);
	logits->count = 0;
}

int rh_logits_are_finite(const float *row, int64_t outputs)
{
	int are = 1;
	for (int64_t v = 0; v < outputs; v++)
		are &= isfinite(row[v]) != 0;
	return are;
}

int rh_shares_are_sound(const float *row, int64_t top, int64_t outputs)
{
	double sum = 0;
	for (int64_t i = 0; i < top; i++) {
		float id = row[i], share = row[top + i];
		if (!(id >= 0 && id < (float)outputs && id == floorf(id) && (!i || id > row[i - 1]) && share >= 0 && share <= 1))
			return 0;
		sum += (double)share;
	}
	return sum < 1.001;
}

int rh_teacher_logits_put(struct rh_teacher_logits *logits, int64_t id, const float *row)
{
	if (id < 0 || id >= logits->samples)
		return rh_fail(-EPROTO, "logits of sample %" PRId64 ", but there are %" PRId64 " samples", id, logits->samples);
	int is_sound =
	        logits->ids ? rh_shares_are_sound(row, logits->outputs / 2, logits->ids) : rh_logits_are_finite(row, logits->outputs);
	if (!is_sound)
		return 0;
	memcpy(logits->logit + id * logits->outputs, row, (size_t)logits->outputs * sizeof *row);
	logits->count += !logits->is_known[id];
	logits->is_known[id] = 1;
	return 1;
}

const float *rh_teacher_logits_get(const struct rh_teacher_logits *logits, int64_t id)
{
	return id >= 0 && id < logits->samples && logits->is_known[id] ? logits->logit + id * logits->outputs : NULL;
}

/* Tensors begin on 8 bytes: the JSON is padded with spaces. */
static int print_header(const struct rh_teacher_logits *logits, struct rh_text *out)
{
	char json[256];
	int64_t ids = logits->count * (int64_t)sizeof(int32_t), rows = logits->count * logits->outputs * (int64_t)sizeof(float);
	int length = snprintf(json, sizeof json,
	                      "{\"sample\":{\"dtype\":\"I32\",\"shape\":[%" PRId64 "],\"data_offsets\":[0,%" PRId64
	                      "]},\"logits\":{\"dtype\":\"F32\",\"shape\":[%" PRId64 ",%" PRId64 "],\"data_offsets\":[%" PRId64 ",%" PRId64
	                      "]}}",
	                      logits->count, ids, logits->count, logits->outputs, ids, ids + rows);
	RH_ASSERT(length > 0 && length < (int)sizeof json - 8);
	for (; length % 8; length++)
		json[length] = ' ';
	unsigned char size[8];
	for (int i = 0; i < 8; i++)
		size[i] = (unsigned char)((uint64_t)length >> (8 * i));
	int rc = rh_text_append(out, size, sizeof size);
	return rc ? rc : rh_text_append(out, json, (size_t)length);
}

int rh_teacher_logits_print(const struct rh_teacher_logits *logits, struct rh_text *out)
{
	size_t row = (size_t)logits->outputs * sizeof *logits->logit;
	int rc = print_header(logits, out);
	for (int64_t id = 0; !rc && id < logits->samples; id++) {
		int32_t sample = (int32_t)id;
		rc = logits->is_known[id] ? rh_text_append(out, &sample, sizeof sample) : 0;
	}
	for (int64_t id = 0; !rc && id < logits->samples; id++)
		rc = logits->is_known[id] ? rh_text_append(out, logits->logit + id * logits->outputs, row) : 0;
	return rc;
}

static int read_rows(const struct rh_safetensors *file, const struct rh_safetensor *sample, const struct rh_safetensor *rows,
                     struct rh_teacher_logits *logits)
{
	int64_t bytes = logits->outputs * (int64_t)sizeof(float);
	float *row = rh_alloc((size_t)logits->outputs, sizeof *row);
	int rc = row ? 0 : -ENOMEM;
	for (int64_t i = 0; rc >= 0 && i < sample->shape[0]; i++) {
		int32_t id = 0;
		rc = rh_safetensors_read(file, sample, i * (int64_t)sizeof id, &id, sizeof id);
		if (!rc)
			rc = rh_safetensors_read(file, rows, i * bytes, row, bytes);
		if (!rc)
			rc = rh_teacher_logits_put(logits, id, row);
	}
	rh_free(row);
	return rc < 0 ? rc : 0;
}

int rh_teacher_logits_load(const char *path, struct rh_teacher_logits *logits)
{
	struct rh_safetensors *file;
	int rc = rh_safetensors_open(path, &file);
	if (rc)
		return rc;
	const struct rh_safetensor *sample = rh_safetensors_find(file, "sample"), *rows = rh_safetensors_find(file, "logits");
	rh_teacher_logits_clear(logits);
	if (!sample || !rows || sample->dtype != RH_I32 || rows->dtype != RH_F32 || sample->rank != 1 || rows->rank != 2 ||
	    rows->shape[0] != sample->shape[0] || rows->shape[1] != logits->outputs)
		rc = rh_fail(-EINVAL, "%s: holds no logits of %" PRId64 " outputs with the samples that they are of", path,
		             logits->outputs);
	if (!rc && (rc = read_rows(file, sample, rows, logits)) == -EPROTO)
		rc = rh_fail(-EINVAL, "%s: %s; this run has other data than the one that saved it", path, rh_error(rc));
	rh_safetensors_close(file);
	return rc;
}
