/* Reads a tensor's rows from its file: converted, and put back into Hugging Face's order where a GGUF has another. */
#include "ckpt/source_internal.h"

#include "core/alloc.h"
#include "core/blocks.h"
#include "core/float16.h"
#include "core/minmax.h"
#include "model/model.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 8192 }; /* elements, a multiple of every block */

static void to_bf16(const float *restrict values, int64_t count, uint16_t *restrict out)
{
	for (int64_t i = 0; i < count; i++)
		out[i] = rh_f32_to_bf16(values[i]);
}

/* `count` elements that lie side by side, from byte `at` of the file. */
static int convert(const struct rh_file_in *file, int64_t at, enum rh_dtype from, int64_t count, enum rh_dtype to, void *out)
{
	char raw[CHUNK * sizeof(float)]; /* no type takes more for an element */
	float chunk[CHUNK];
	if (from == to)
		return rh_file_read(file, at, out, (size_t)rh_dtype_bytes(to, count));
	for (int64_t done = 0; done < count; done += CHUNK) {
		int64_t now = count - done < CHUNK ? count - done : CHUNK;
		int rc = rh_file_read(file, at + rh_dtype_bytes(from, done), raw, (size_t)rh_dtype_bytes(from, now));
		if (!rc)
			rc = rh_dequantise(from, raw, now, to == RH_F32 ? (float *)out + done : chunk);
		if (rc)
			return rc;
		if (to != RH_F32)
			to_bf16(chunk, now, (uint16_t *)out + done);
	}
	return 0;
}

/* Where a Hugging Face row lies in a GGUF file of the llama architecture: pairs (i, i + D/2) of a head were put side by side. */
static int64_t stored_row(int64_t row, int64_t head_dim)
{
	int64_t within = row % head_dim, half = head_dim / 2;
	return row - within + 2 * (within % half) + within / half;
}

/* Where the model's row or column lies among a GGUF's tiled heads; and the model's that lies at `at` there. */
static int64_t tiled(const struct source_tiles *tiles, int64_t at)
{
	int64_t head = (at - tiles->first) / tiles->size, within = (at - tiles->first) % tiles->size;
	if (at < tiles->first)
		return at;
	return tiles->first + (head % tiles->per_key * tiles->keys + head / tiles->per_key) * tiles->size + within;
}

static int64_t untiled(const struct source_tiles *tiles, int64_t at)
{
	int64_t head = (at - tiles->first) / tiles->size, within = (at - tiles->first) % tiles->size;
	if (at < tiles->first)
		return at;
	return tiles->first + (head % tiles->keys * tiles->per_key + head / tiles->keys) * tiles->size + within;
}

int64_t source_row_of_stored(const struct source_entry *entry, int64_t row)
{
	if (entry->tiles.per_key && !entry->tiles.are_columns)
		return untiled(&entry->tiles, row);
	int64_t head = entry->head_dim, within = head ? row % head : 0;
	return head ? row - within + within % 2 * (head / 2) + within / 2 : row;
}

int64_t source_column_of_stored(const struct source_entry *entry, int64_t column)
{
	return entry->tiles.per_key && entry->tiles.are_columns ? untiled(&entry->tiles, column) : column;
}

/* A GGUF's row of the model's. */
static int64_t row_in_gguf(const struct source_entry *entry, int64_t row)
{
	if (entry->tiles.per_key && !entry->tiles.are_columns)
		return tiled(&entry->tiles, row);
	return entry->head_dim ? stored_row(row, entry->head_dim) : row;
}

int source_is_permuted(const struct source_entry *entry)
{
	return entry->head_dim || (entry->tiles.per_key && !entry->tiles.are_columns);
}

/* `count` values, a row or a part of a vector, which the file has as -exp of them. */
static int read_minus_exp(const struct source_entry *entry, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	for (int64_t i = 0; i < count; i++) {
		enum rh_dtype from = entry->tensor.dtype;
		float value;
		int rc = convert(entry->file, entry->offset + rh_dtype_bytes(from, row_in_gguf(entry, first + i)), from, 1, RH_F32, &value);
		if (rc)
			return rc;
		if (!(value < 0))
			return rh_fail(-EINVAL, "%s: '%s' has %g, where -exp of a number must be", rh_file_path(entry->file), entry->stored,
			               (double)value);
		value = logf(-value);
		if (dtype == RH_F32)
			((float *)out)[i] = value;
		else
			((uint16_t *)out)[i] = rh_f32_to_bf16(value);
	}
	return 0;
}

/* Rows whose columns are tiled. */
static int read_tiled_columns(const struct source_entry *entry, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	int64_t cols = entry->cols, size = entry->tiles.size;
	enum rh_dtype from = entry->tensor.dtype;
	float *row = rh_alloc((size_t)cols, sizeof *row);
	int rc = row ? 0 : -ENOMEM;
	for (int64_t r = 0; !rc && r < count; r++) {
		rc = convert(entry->file, entry->offset + rh_dtype_bytes(from, (first + r) * cols), from, cols, RH_F32, row);
		for (int64_t c = 0; !rc && c < cols; c += size) {
			const float *head = row + tiled(&entry->tiles, c);
			if (dtype == RH_F32)
				memcpy((float *)out + r * cols + c, head, (size_t)size * sizeof *head);
			else
				to_bf16(head, size, (uint16_t *)out + r * cols + c);
		}
	}
	rh_free(row);
	return rc;
}

/* Rows [first, first + count) of a tensor that the file holds transposed: a piece of each of the file's rows. */
static int read_transposed(const struct source_entry *entry, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	enum rh_dtype from = entry->tensor.dtype;
	int64_t of_one = entry->rows / entry->matrices, cols = entry->cols, width = rh_dtype_bytes(dtype, 1);
	for (int64_t done = 0; done < count;) {
		int64_t matrix = (first + done) / of_one, within = (first + done) % of_one;
		int64_t now = rh_min(rh_min(count - done, of_one - within), CHUNK);
		char piece[CHUNK * sizeof(float)], *to = (char *)out + done * cols * width;
		for (int64_t c = 0; c < cols; c++) {
			int64_t at = (matrix * cols + c) * of_one + within;
			int rc = convert(entry->file, entry->offset + rh_dtype_bytes(from, at), from, now, dtype, piece);
			if (rc)
				return rc;
			for (int64_t r = 0; r < now; r++)
				memcpy(to + (r * cols + c) * width, piece + r * width, (size_t)width);
		}
		done += now;
	}
	return 0;
}

/* MXFP4: one scale for 32 values of a row; two values share a byte. Reads are long, because values and scales lie far apart. Packed values
 * are read into the end of the output buffer; each run is copied out before its place is overwritten. */
static int read_mxfp4(const struct source_entry *entry, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	enum { RUN = 32, MOST = CHUNK * RUN };
	uint8_t scale[CHUNK], run[RUN / 2];
	float value[RUN];
	for (int64_t done = 0, now; done < count; done += now) {
		now = rh_min(count - done, MOST);
		char *to = (char *)out + rh_dtype_bytes(dtype, done), *packed = to + rh_dtype_bytes(dtype, now) - now / 2;
		int rc = rh_file_read(entry->file, entry->offset + (first + done) / 2, packed, (size_t)now / 2);
		if (!rc)
			rc = rh_file_read(entry->scale, entry->scale_offset + (first + done) / RUN, scale, (size_t)(now / RUN));
		if (rc)
			return rc;
		for (int64_t r = 0; r < now / RUN; r++, to += rh_dtype_bytes(dtype, RUN)) {
			memcpy(run, packed + r * (RUN / 2), sizeof run);
			for (int i = 0; i < RUN; i++)
				value[i] = rh_fp4_value(run[i / 2] >> (i % 2 * 4) & 15) * rh_e8m0_value(scale[r]);
			if (dtype == RH_F32)
				memcpy(to, value, sizeof value);
			else
				to_bf16(value, RUN, (uint16_t *)(void *)to);
		}
	}
	return 0;
}

/* Which row of a matrix that the file holds as two, whose rows are alternately the model's, is the model's row `row`. */
static int64_t paired_row(const struct source_entry *entry, int64_t row)
{
	int64_t of_one = entry->tensor.shape[1];
	return row / (2 * of_one) * of_one + row % (2 * of_one) / 2;
}

/* Rows [first, first + count) of a tensor that the file holds as two: rows alternate between them; in a bias the elements of a row do. */
static int read_paired(const struct source_entry *entry, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	int is_bias = entry->tensor.rank == 2;
	int64_t of_one = entry->tensor.shape[1], cols = is_bias ? 1 : entry->cols, width = rh_dtype_bytes(dtype, cols);
	char piece[2][CHUNK / 2 * sizeof(float)];
	RH_ASSERT(!entry->are_halves); /* a GGUF's experts are named apart where the model's gates and ups do not alternate */
	if (!is_bias) {
		for (int64_t r = first; r < first + count; r++) {
			int64_t row = paired_row(entry, r) * cols;
			enum rh_dtype from = r % 2 ? entry->dtype2 : entry->tensor.dtype;
			int rc = convert(r % 2 ? entry->file2 : entry->file,
			                 (r % 2 ? entry->offset2 : entry->offset) + rh_dtype_bytes(from, row), from, cols, dtype,
			                 (char *)out + (r - first) * width);
			if (rc)
				return rc;
		}
		return 0;
	}
	for (int64_t r = first; r < first + count; r++)
		for (int64_t done = 0, now; done < of_one; done += now) {
			now = rh_min(of_one - done, CHUNK / 2);
			int64_t at = r * of_one + done;
			int rc = convert(entry->file, entry->offset + rh_dtype_bytes(entry->tensor.dtype, at), entry->tensor.dtype, now,
			                 dtype, piece[0]);
			if (!rc)
				rc = convert(entry->file2, entry->offset2 + rh_dtype_bytes(entry->dtype2, at), entry->dtype2, now, dtype,
				             piece[1]);
			if (rc)
				return rc;
			char *to = (char *)out + ((r - first) * of_one + done) * 2 * width;
			for (int64_t i = 0; i < 2 * now; i++)
				memcpy(to + i * width, piece[i % 2] + i / 2 * width, (size_t)width);
		}
	return 0;
}

/* Of a matrix whose rows here are the file's first tensor's and then the second's: *row of the model's becomes the row there, *run is how
 * many follow one another. 1: of the second. */
static int is_of_second(const struct source_entry *entry, int64_t *row, int64_t *run)
{
	*row = rh_row_of_file(&entry->groups, *row, run);
	int is = *row >= entry->second;
	*row -= is ? entry->second : 0;
	return is;
}

static int read_two(const struct source_entry *entry, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	int64_t cols = entry->cols;
	for (int64_t done = 0, run; done < count; done += run) {
		int64_t row = first + done;
		int is_second = is_of_second(entry, &row, &run);
		enum rh_dtype from = is_second ? entry->dtype2 : entry->tensor.dtype;
		run = rh_min(run, count - done);
		int rc = convert(is_second ? entry->file2 : entry->file,
		                 (is_second ? entry->offset2 : entry->offset) + rh_dtype_bytes(from, row * cols), from, run * cols, dtype,
		                 (char *)out + rh_dtype_bytes(dtype, done * cols));
		if (rc)
			return rc;
	}
	return 0;
}

/* Weights of a norm that are stored with 1 added. */
static int read_less_one(const struct source_entry *entry, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	float chunk[CHUNK];
	for (int64_t done = 0, now; done < count; done += now) {
		now = rh_min(count - done, CHUNK);
		enum rh_dtype from = entry->tensor.dtype;
		int rc = convert(entry->file, entry->offset + rh_dtype_bytes(from, first + done), from, now, RH_F32, chunk);
		if (rc)
			return rc;
		for (int64_t i = 0; i < now; i++)
			chunk[i] -= 1;
		if (dtype == RH_F32)
			memcpy((float *)out + done, chunk, (size_t)now * sizeof *chunk);
		else
			to_bf16(chunk, now, (uint16_t *)out + done);
	}
	return 0;
}

int rh_source_read(const struct rh_source *source, const char *name, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	RH_ASSERT(dtype == RH_F32 || dtype == RH_BF16);
	const struct source_entry *entry = source_entries_find(&source->entries, name);
	if (!entry)
		return rh_fail(-ENOENT, "%s: there is no tensor '%s'", source->path, name);
	enum rh_dtype from = entry->tensor.dtype;
	int permuted = source->gguf && source_is_permuted(entry);
	int64_t cols = entry->cols, all = entry->rows * cols;
	if (entry->tensor.rank == 1 && !permuted)
		cols = rh_dtype_block(from); /* any part of a vector */
	if (first < 0 || count < 0 || first > all || count > all - first || first % cols || count % cols)
		return rh_fail(-EINVAL, "%s: elements %lld to %lld are no whole rows of tensor '%s' (%lld elements, rows of %lld)",
		               source->path, (long long)first, (long long)(first + count), name, (long long)all, (long long)cols);
	if (entry->scaled)
		return source_read_scaled(entry, first, count, dtype, out);
	if (entry->scale)
		return read_mxfp4(entry, first, count, dtype, out);
	if (entry->second)
		return read_two(entry, first / cols, count / cols, dtype, out);
	if (entry->stored2)
		return read_paired(entry, first / cols, count / cols, dtype, out);
	if (entry->is_minus_exp)
		return read_minus_exp(entry, first, count, dtype, out);
	if (entry->tiles.are_columns)
		return read_tiled_columns(entry, first / cols, count / cols, dtype, out);
	if (entry->has_one_added)
		return read_less_one(entry, first, count, dtype, out);
	if (entry->matrices)
		return read_transposed(entry, first / cols, count / cols, dtype, out);
	int rc = permuted ? 0 : convert(entry->file, entry->offset + rh_dtype_bytes(from, first), from, count, dtype, out);
	for (int64_t done = 0; !rc && permuted && done < count; done += cols) {
		int64_t row = row_in_gguf(entry, (first + done) / cols);
		rc = convert(entry->file, entry->offset + rh_dtype_bytes(from, row * cols), from, cols, dtype,
		             (char *)out + rh_dtype_bytes(dtype, done));
	}
	return rc;
}

static enum rh_form form_of(const struct source_entry *entry)
{
	if (!entry || !entry->file || entry->tensor.rank < 2 || entry->has_one_added || entry->tiles.are_columns)
		return RH_FORM_PLAIN;
	if ((entry->matrices && !entry->scale) || (entry->stored2 && entry->dtype2 != entry->tensor.dtype))
		return RH_FORM_PLAIN;
	if (entry->scaled)
		return entry->scaled->form;
	return entry->scale ? RH_FORM_MXFP4 : rh_form_of(entry->tensor.dtype);
}

/* Can the rows of a packed matrix lie in another order than the file's? Each part of a group must be whole blocks; nested scales share
 * numbers from row to row. */
static int can_regroup(enum rh_form form, const struct rh_row_groups *groups)
{
	const struct rh_form_traits *of = form ? rh_form_traits(form) : NULL;
	int can = !of || !groups->count || of->tail != RH_TAIL_NESTED;
	for (int p = 0; can && of && of->tall != RH_FORM_ALL && p < 4; p++)
		can = groups->part[p] % of->tall == 0;
	return can;
}

enum rh_form rh_source_form(const void *source, const struct rh_tensor *tensor)
{
	enum rh_form form = form_of(source_entries_find(&((const struct rh_source *)source)->entries, tensor->name));
	return can_regroup(form, &tensor->groups) ? form : RH_FORM_PLAIN;
}

int rh_source_read_packed(const struct rh_source *source, const char *name, int64_t first, int64_t count, void *elements)
{
	const struct source_entry *entry = source_entries_find(&source->entries, name);
	enum rh_form form = form_of(entry);
	RH_ASSERT(form != RH_FORM_PLAIN && first >= 0 && count >= 0 && first <= entry->rows - count);
	int64_t row_bytes = rh_form_element_bytes(form, 1, entry->cols);
	int is_moved = entry->stored2 || (source->gguf && source_is_permuted(entry));
	int64_t at_once = is_moved ? 1 : count;
	for (int64_t done = 0; done < count; done += at_once) {
		int64_t row = first + done, run;
		int is_second = entry->second ? is_of_second(entry, &row, &run) : entry->stored2 && row % 2;
		int64_t offset = is_second ? entry->offset2 : entry->offset;
		if (is_moved && !entry->second)
			row = entry->stored2 ? paired_row(entry, row) : row_in_gguf(entry, row);
		int rc = rh_file_read(is_second ? entry->file2 : entry->file, offset + row * row_bytes, (char *)elements + done * row_bytes,
		                      (size_t)(at_once * row_bytes));
		if (rc)
			return rc;
	}
	return 0;
}

int rh_source_read_scales(const struct rh_source *source, const char *name, void *scales, void *tail)
{
	const struct source_entry *entry = source_entries_find(&source->entries, name);
	enum rh_form form = form_of(entry);
	RH_ASSERT(form != RH_FORM_PLAIN && rh_form_traits(form)->run);
	if (entry->scaled)
		return source_scales_of(entry, scales, tail);
	return rh_file_read(entry->scale, entry->scale_offset, scales, (size_t)rh_form_scale_bytes(form, entry->rows, entry->cols));
}
