/* Matrices whose scales are tensors of their own: bitsandbytes' 4-bit and int8, fp8 per tensor or in blocks, and NVFP4 as
 * compressed-tensors and ModelOpt have it. */
#include "ckpt/source_internal.h"

#include "core/alloc.h"
#include "core/blocks.h"
#include "core/float8.h"
#include "core/json.h"
#include "core/minmax.h"
#include "core/text.h"
#include "device/op.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BNB_RUN = 64, CODES = 16, MAP = 256, STATE_MOST = 4096, PIECE = 4096 /* elements, a multiple of every run but a whole row's */ };

/* Tensors that stand beside a matrix. */
static const char *const beside[] = {".absmax",
                                     ".quant_map",
                                     ".nested_absmax",
                                     ".nested_quant_map",
                                     ".quant_state.bitsandbytes__nf4",
                                     ".quant_state.bitsandbytes__fp4",
                                     "_scale_inv",
                                     "_scale",
                                     "_scale_2",
                                     "_global_scale",
                                     "_packed"};
/* And in place of its ".weight". */
static const char *const instead[] = {".SCB", ".weight_format", ".activation_scale", ".input_scale", ".input_global_scale"};

int source_is_beside(const struct rh_source *source, const char *name)
{
	char base[256];
	size_t length = strlen(name);
	for (size_t i = 0; i < sizeof beside / sizeof *beside + sizeof instead / sizeof *instead; i++) {
		int replaces = i >= sizeof beside / sizeof *beside;
		const char *end = replaces ? instead[i - sizeof beside / sizeof *beside] : beside[i];
		size_t size = strlen(end);
		if (length <= size || strcmp(name + length - size, end))
			continue;
		snprintf(base, sizeof base, "%.*s%s", (int)(length - size), name, replaces ? ".weight" : "");
		const struct source_entry *entry = source_entries_find(&source->entries, base);
		if (entry && entry->scaled)
			return 1;
	}
	return 0;
}

/* What is being settled. */
struct settling {
	struct rh_source *source;
	const struct source_entry *entry;
	const char *name; /* the matrix's in the file, without "_packed" */
	const json_t *map;
	struct source_scaled *out;
};

/* The tensor of the name with `end` behind it, of so many numbers, in *file; NULL in *out where it may be absent and is. */
static int find_beside(const struct settling *s, const char *end, int replaces, enum source_need need, const struct rh_file_in **file,
                       const struct rh_safetensor **out)
{
	struct rh_text name = {0};
	struct rh_safetensors *shard = NULL;
	size_t length = strlen(s->name) - (replaces ? strlen(".weight") : 0);
	*file = NULL;
	*out = NULL;
	int rc = rh_text_printf(&name, "%.*s%s", (int)length, s->name, end);
	if (!rc)
		rc = source_find(s->source, name.bytes, s->map, &shard, out);
	if (!rc && !*out && need == SOURCE_NEEDED)
		rc = rh_fail(-EINVAL, "%s: tensor '%s' is %s, but '%s', without which its numbers mean nothing, is missing",
		             s->source->path, s->name, rh_dtype_name(s->entry->tensor.dtype), name.bytes);
	if (!rc && *out)
		*file = rh_safetensors_file(shard);
	rh_text_free(&name);
	return rc;
}

static int64_t numbers_of(const struct rh_safetensor *tensor)
{
	return tensor->bytes / rh_dtype_bytes(tensor->dtype, 1);
}

static int check_numbers(const struct settling *s, const struct rh_safetensor *tensor, int64_t count)
{
	if (numbers_of(tensor) == count)
		return 0;
	return rh_fail(-EINVAL, "%s: tensor '%s' has %lld numbers, but a matrix of %lld x %lld has %lld of them", s->source->path,
	               tensor->name, (long long)numbers_of(tensor), (long long)s->entry->rows, (long long)s->entry->cols, (long long)count);
}

static int read_floats(const struct settling *s, const char *end, int64_t count, float *out)
{
	const struct rh_file_in *file;
	const struct rh_safetensor *tensor;
	int rc = find_beside(s, end, 0, SOURCE_NEEDED, &file, &tensor);
	if (!rc)
		rc = check_numbers(s, tensor, count);
	if (!rc && tensor->dtype != RH_F32)
		rc = rh_fail(-EINVAL, "%s: tensor '%s' must be F32", s->source->path, tensor->name);
	return rc ? rc : rh_file_read(file, tensor->offset, out, (size_t)count * sizeof *out);
}

/* The JSON of a quant_state; json_decref'd by the caller. */
static int read_state(const struct settling *s, const char *end, json_t **out)
{
	const struct rh_file_in *file;
	const struct rh_safetensor *tensor;
	char text[STATE_MOST];
	int rc = find_beside(s, end, 0, SOURCE_NEEDED, &file, &tensor);
	if (rc)
		return rc;
	if (tensor->dtype != RH_U8 || tensor->bytes > STATE_MOST)
		return rh_fail(-EINVAL, "%s: tensor '%s' is no JSON text", s->source->path, tensor->name);
	rc = rh_file_read(file, tensor->offset, text, (size_t)tensor->bytes);
	if (rc)
		return rc;
	*out = json_loadb(text, (size_t)tensor->bytes, 0, NULL);
	return *out ? 0 : rh_fail(-EINVAL, "%s: tensor '%s' is no JSON text", s->source->path, tensor->name);
}

static int check_state(const struct settling *s, const json_t *state, int is_nested)
{
	const json_t *shape = json_object_get(state, "shape");
	json_int_t run = json_integer_value(json_object_get(state, "blocksize"));
	json_int_t nested = json_integer_value(json_object_get(state, "nested_blocksize"));
	if (run != BNB_RUN || (is_nested && nested != RH_NESTED_RUN))
		return rh_fail(-EINVAL, "%s: tensor '%s' has a scale for %lld values; 64 are read, whose scales are in blocks of 256",
		               s->source->path, s->name, (long long)run);
	if (json_array_size(shape) != 2 || json_integer_value(json_array_get(shape, 0)) != s->entry->rows ||
	    json_integer_value(json_array_get(shape, 1)) != s->entry->cols)
		return rh_fail(-EINVAL, "%s: tensor '%s' was made of a matrix of another shape than %lld x %lld", s->source->path, s->name,
		               (long long)s->entry->rows, (long long)s->entry->cols);
	if (s->entry->cols % BNB_RUN)
		return rh_fail(-EINVAL,
		               "%s: tensor '%s' has rows of %lld values, no multiple of 64; take the model in full precision and "
		               "load_in_4bit: true",
		               s->source->path, s->name, (long long)s->entry->cols);
	return 0;
}

/* The code book tells NF4 from FP4, and both from what is neither. */
static int check_codes(const struct settling *s, int is_fp4)
{
	float code[CODES];
	int rc = read_floats(s, ".quant_map", CODES, code);
	for (int q = 0; !rc && q < CODES; q++)
		if (code[q] != (is_fp4 ? rh_bnb_fp4_value(q) : rh_nf4_value(q)))
			rc = rh_fail(-EINVAL, "%s: tensor '%s.quant_map' is not the code book of %s: %g for code %d", s->source->path,
			             s->name, is_fp4 ? "fp4" : "nf4", (double)code[q], q);
	return rc;
}

static int settle_nested(const struct settling *s, const json_t *state, int64_t scales)
{
	const struct rh_safetensor *tensor;
	double offset = json_number_value(json_object_get(state, "nested_offset"));
	s->out->map = rh_alloc(RH_NESTED_MAP, sizeof *s->out->map);
	int rc = s->out->map ? read_floats(s, ".nested_quant_map", MAP, s->out->map) : -ENOMEM;
	if (!rc)
		rc = find_beside(s, ".nested_absmax", 0, SOURCE_NEEDED, &s->out->nested_file, &tensor);
	if (!rc)
		rc = check_numbers(s, tensor, (scales + RH_NESTED_RUN - 1) / RH_NESTED_RUN);
	if (!rc && (tensor->dtype != RH_F32 || !isfinite(offset)))
		rc = rh_fail(-EINVAL, "%s: tensor '%s': nested scales must be F32, and their nested_offset a number", s->source->path,
		             s->name);
	if (rc)
		return rc;
	s->out->nested_offset = tensor->offset;
	s->out->map[MAP] = (float)offset;
	return 0;
}

static int settle_bnb(const struct settling *s, const struct rh_safetensor *matrix)
{
	static const char *const states[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};
	const struct rh_file_in *file;
	const struct rh_safetensor *state = NULL, *absmax;
	json_t *json = NULL;
	int64_t elements = s->entry->rows * s->entry->cols;
	int rc = find_beside(s, states[1], 0, SOURCE_OPTIONAL, &file, &state);
	int is_fp4 = state != NULL;
	if (!rc)
		rc = read_state(s, states[is_fp4], &json);
	if (!rc)
		rc = find_beside(s, ".absmax", 0, SOURCE_NEEDED, &s->out->file, &absmax);
	if (rc)
		goto out;
	int is_nested = absmax->dtype == RH_U8;
	rc = check_state(s, json, is_nested);
	if (!rc && matrix->bytes != elements / 2)
		rc = rh_fail(-EINVAL, "%s: tensor '%s' has %lld bytes, not two values in each of %lld", s->source->path, s->name,
		             (long long)matrix->bytes, (long long)(elements / 2));
	if (!rc)
		rc = check_numbers(s, absmax, elements / BNB_RUN);
	if (!rc)
		rc = check_codes(s, is_fp4);
	if (!rc && is_nested)
		rc = settle_nested(s, json, elements / BNB_RUN);
	if (rc)
		goto out;
	s->out->offset = absmax->offset;
	s->out->dtype = absmax->dtype;
	s->out->form = is_fp4 ? is_nested ? RH_FORM_BNB_FP4_NESTED : RH_FORM_BNB_FP4 : is_nested ? RH_FORM_NF4_NESTED : RH_FORM_NF4;
out:
	json_decref(json);
	return rc;
}

/* compressed-tensors divides all scales by a number, ModelOpt multiplies them by one. */
static int settle_nvfp4(const struct settling *s, const struct rh_safetensor *matrix, int is_divided)
{
	static const char pre[] = ".pre_quant_scale";
	const struct rh_file_in *file;
	const struct rh_safetensor *scale, *by;
	int64_t rows = s->entry->rows, cols = s->entry->cols;
	float factor;
	int rc = find_beside(s, pre, 1, SOURCE_OPTIONAL, &file, &by);
	if (!rc && by)
		return rh_fail(-EINVAL, "%s: tensor '%s' is stored by NVFP4_AWQ, whose '%s' is not supported (NVFP4 is)", s->source->path,
		               s->name, pre + 1);
	if (!rc)
		rc = find_beside(s, "_scale", 0, SOURCE_NEEDED, &s->out->file, &scale);
	if (!rc)
		rc = read_floats(s, is_divided ? "_global_scale" : "_scale_2", 1, &factor);
	if (rc)
		return rc;
	if (!rh_form_takes(RH_FORM_NVFP4, cols) || matrix->bytes != rows * cols / 2)
		return rh_fail(-EINVAL, "%s: tensor '%s' has %lld bytes; NVFP4 of %lld x %lld values has two in each, and whole runs of 16",
		               s->source->path, matrix->name, (long long)matrix->bytes, (long long)rows, (long long)cols);
	if (!(factor > 0) || !isfinite(factor))
		return rh_fail(-EINVAL, "%s: tensor '%s%s' is %g, not a positive number", s->source->path, s->name,
		               is_divided ? "_global_scale" : "_scale_2", (double)factor);
	s->out->factor[0] = is_divided ? 1 : factor;
	s->out->factor[1] = is_divided ? factor : 1;
	s->out->form = RH_FORM_NVFP4;
	s->out->offset = scale->offset;
	s->out->dtype = scale->dtype;
	return check_numbers(s, scale, rows * rh_form_runs(RH_FORM_NVFP4, cols));
}

/* Of two values in a byte: whose they are, the tensors beside tell. */
static int settle_half_bytes(const struct settling *s, const struct rh_safetensor *matrix)
{
	const struct rh_file_in *file;
	const struct rh_safetensor *scale = NULL, *factor = NULL;
	int is_compressed = strcmp(matrix->name, s->name) != 0;
	int rc = is_compressed ? 0 : find_beside(s, "_scale", 0, SOURCE_OPTIONAL, &file, &scale);
	if (!rc && !scale)
		rc = find_beside(s, "_scale_2", 0, SOURCE_OPTIONAL, &file, &factor);
	if (rc)
		return rc;
	return is_compressed || scale || factor ? settle_nvfp4(s, matrix, is_compressed) : settle_bnb(s, matrix);
}

static int settle_int8(const struct settling *s)
{
	const struct rh_safetensor *scale;
	int rc = find_beside(s, ".SCB", 1, SOURCE_NEEDED, &s->out->file, &scale);
	if (!rc)
		rc = check_numbers(s, scale, s->entry->rows);
	if (rc)
		return rc;
	s->out->offset = scale->offset;
	s->out->dtype = scale->dtype;
	s->out->form = RH_FORM_INT8;
	return 0;
}

static int settle_fp8(const struct settling *s)
{
	const struct rh_safetensor *scale;
	int rc = find_beside(s, "_scale", 0, SOURCE_OPTIONAL, &s->out->file, &scale);
	if (!rc && !scale)
		rc = find_beside(s, "_scale_inv", 0, SOURCE_NEEDED, &s->out->file, &scale);
	if (rc)
		return rc;
	int64_t rows = s->entry->rows, cols = s->entry->cols;
	s->out->form = numbers_of(scale) == 1 ? RH_FORM_FP8 : RH_FORM_FP8_BLOCKS;
	s->out->offset = scale->offset;
	s->out->dtype = scale->dtype;
	return check_numbers(s, scale, rh_form_scale_rows(s->out->form, rows) * rh_form_runs(s->out->form, cols));
}

/* May scales be stored in this type? */
static int takes_scales(enum rh_form form, enum rh_dtype scale)
{
	const struct rh_form_traits *of = rh_form_traits(form);
	int is_fp8 = of->element == RH_E4M3 && (scale == RH_BF16 || scale == RH_U8 || scale == RH_E8M0);
	return scale == of->scale || is_fp8;
}

int source_settle_scaled(struct rh_source *source, struct source_entry *entry, const json_t *map, const struct rh_safetensor *matrix)
{
	char name[256];
	struct source_scaled *scaled = rh_alloc(1, sizeof *scaled);
	size_t length = strlen(matrix->name), packed = strlen("_packed");
	entry->tensor.dtype = matrix->dtype;
	if (length > packed && !strcmp(matrix->name + length - packed, "_packed"))
		length -= packed;
	snprintf(name, sizeof name, "%.*s", (int)length, matrix->name);
	const struct settling s = {source, entry, name, map, scaled};
	if (!scaled)
		return -ENOMEM;
	entry->scaled = scaled;
	int rc = matrix->dtype == RH_U8 ? settle_half_bytes(&s, matrix) : matrix->dtype == RH_I8 ? settle_int8(&s) : settle_fp8(&s);
	if (rc)
		return rc;
	enum rh_dtype scale = scaled->dtype;
	if (!takes_scales(scaled->form, scale))
		return rh_fail(-EINVAL, "%s: tensor '%s' has scales of type %s, which is not supported", source->path, matrix->name,
		               rh_dtype_name(scale));
	entry->tensor.dtype = rh_form_traits(scaled->form)->element;
	return 0;
}

/* Scales [first, first + count) as they are stored in the form, but for nested ones' values. */
static int read_scales(const struct source_scaled *of, int64_t first, int64_t count, void *out)
{
	if (of->dtype == rh_form_traits(of->form)->scale)
		return rh_file_read(of->file, of->offset + rh_dtype_bytes(of->dtype, first), out, (size_t)rh_dtype_bytes(of->dtype, count));
	uint8_t bytes[PIECE];
	float *to = out;
	int64_t width = rh_dtype_bytes(of->dtype, 1);
	for (int64_t done = 0, now; done < count; done += now) {
		now = rh_min(count - done, PIECE / width);
		int rc = rh_file_read(of->file, of->offset + (first + done) * width, bytes, (size_t)(now * width));
		if (rc)
			return rc;
		for (int64_t i = 0; i < now; i++)
			to[done + i] = of->dtype != RH_BF16 ? rh_e8m0_value(bytes[i])
			                                    : rh_bf16_to_f32((uint16_t)(bytes[2 * i] | bytes[2 * i + 1] << 8));
	}
	return 0;
}

static int scale_values(const struct source_scaled *of, int64_t first, int64_t count, float *out)
{
	uint8_t q[PIECE / 8];
	if (rh_form_traits(of->form)->tail == RH_TAIL_NONE)
		return read_scales(of, first, count, out);
	RH_ASSERT(count <= (int64_t)sizeof q);
	int rc = read_scales(of, first, count, q);
	float factor = 0;
	if (rh_form_traits(of->form)->tail == RH_TAIL_FACTORS) {
		for (int64_t i = 0; !rc && i < count; i++)
			out[i] = rh_e4m3_to_f32(q[i]) * of->factor[0] / of->factor[1];
		return rc;
	}
	for (int64_t i = 0; !rc && i < count; i++) {
		if (i == 0 || (first + i) % RH_NESTED_RUN == 0)
			rc = rh_file_read(of->nested_file, of->nested_offset + (first + i) / RH_NESTED_RUN * 4, &factor, sizeof factor);
		volatile float product = of->map[q[i]] * factor; /* rounded before the sum, as DEQUANTISE does */
		out[i] = product + of->map[MAP];
	}
	return rc;
}

static float value_of(enum rh_dtype dtype, const uint8_t *from, int64_t i, float scale)
{
	switch (dtype) {
	case RH_NF4:
		return rh_nf4_value(from[i / 2] >> (i % 2 ? 0 : 4) & 15) * scale;
	case RH_BNB_FP4:
		return rh_bnb_fp4_value(from[i / 2] >> (i % 2 ? 0 : 4) & 15) * scale;
	case RH_FP4:
		return rh_fp4_value(from[i / 2] >> (i % 2 ? 4 : 0) & 15) * scale;
	case RH_I8:
		return (float)(int8_t)from[i] * scale * RH_INT8_UNIT;
	default: /* RH_E4M3 */
		return rh_e4m3_to_f32(from[i]) * scale;
	}
}

int source_read_scaled(const struct source_entry *entry, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	const struct source_scaled *of = entry->scaled;
	const struct rh_form_traits *traits = rh_form_traits(of->form);
	int64_t cols = entry->cols, runs = rh_form_runs(of->form, cols), run = rh_min(traits->run, cols);
	uint8_t bytes[PIECE];
	float scale[PIECE / 8];
	int64_t before = -1; /* the first scale that was read: rows of a block share theirs */
	for (int64_t done = 0, now; done < count; done += now) {
		int64_t row = (first + done) / cols, c = (first + done) % cols;
		now = rh_min(rh_min(count - done, cols - c), PIECE);
		int64_t first_scale = row / traits->tall * runs + c / run, scales = (c + now - 1) / run - c / run + 1;
		int rc = before == first_scale ? 0 : scale_values(of, first_scale, scales, scale);
		before = cols <= PIECE ? first_scale : -1; /* so that as many were read */
		if (!rc)
			rc = rh_file_read(entry->file, entry->offset + rh_dtype_bytes(traits->element, first + done), bytes,
			                  (size_t)rh_dtype_bytes(traits->element, now));
		if (rc)
			return rc;
		for (int64_t i = 0; i < now; i++) {
			float value = value_of(traits->element, bytes, i, scale[(c + i) / run - c / run]);
			if (dtype == RH_F32)
				((float *)out)[done + i] = value;
			else
				((uint16_t *)out)[done + i] = rh_f32_to_bf16(value);
		}
	}
	return 0;
}

int source_scales_of(const struct source_entry *entry, void *scales, void *tail)
{
	const struct source_scaled *of = entry->scaled;
	int64_t count = rh_form_scale_rows(of->form, entry->rows) * rh_form_runs(of->form, entry->cols);
	int64_t factors = (count + RH_NESTED_RUN - 1) / RH_NESTED_RUN;
	int rc = read_scales(of, 0, count, scales);
	enum rh_form_tail kind = rh_form_traits(of->form)->tail;
	if (!rc && kind == RH_TAIL_FACTORS)
		memcpy(tail, of->factor, sizeof of->factor);
	if (rc || kind != RH_TAIL_NESTED)
		return rc;
	memcpy((float *)tail + factors, of->map, RH_NESTED_MAP * sizeof *of->map);
	return rh_file_read(of->nested_file, of->nested_offset, tail, (size_t)factors * sizeof(float));
}
