/* A tensor's rows out of its file: converted, and put back into Hugging Face's order where a GGUF keeps another. */
#include "ckpt/source_internal.h"

#include "core/float16.h"

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

int rh_source_read(const struct rh_source *source, const char *name, int64_t first, int64_t count, enum rh_dtype dtype, void *out)
{
	RH_ASSERT(dtype == RH_F32 || dtype == RH_BF16);
	const struct source_entry *entry = source_entries_find(&source->entries, name);
	if (!entry)
		return rh_fail(-ENOENT, "%s: there is no tensor '%s'", source->path, name);
	enum rh_dtype from = entry->tensor.dtype;
	int permuted = source->gguf && entry->head_dim;
	int64_t cols = entry->tensor.rank == 2 ? entry->tensor.shape[1] : 1, all = entry->tensor.shape[0] * cols;
	if (entry->tensor.rank == 1 && !permuted)
		cols = rh_dtype_block(from); /* any part of a vector */
	if (first < 0 || count < 0 || first > all || count > all - first || first % cols || count % cols)
		return rh_fail(-EINVAL, "%s: elements %lld to %lld are no whole rows of tensor '%s' (%lld elements, rows of %lld)",
		               source->path, (long long)first, (long long)(first + count), name, (long long)all, (long long)cols);
	int rc = permuted ? 0 : convert(entry->file, entry->offset + rh_dtype_bytes(from, first), from, count, dtype, out);
	for (int64_t done = 0; !rc && permuted && done < count; done += cols) {
		int64_t row = stored_row((first + done) / cols, entry->head_dim);
		rc = convert(entry->file, entry->offset + rh_dtype_bytes(from, row * cols), from, cols, dtype,
		             (char *)out + rh_dtype_bytes(dtype, done));
	}
	return rc;
}
