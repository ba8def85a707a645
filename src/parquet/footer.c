/* The footer: the schema, and where the columns of each row group lie. It ends the file, with its length and "PAR1" behind it. */
#include "core/alloc.h"
#include "parquet/parquet_internal.h"

#include <string.h>

enum { MAGIC = 4, TAIL = 8 /* length and magic */ };
static const char magic[] = "PAR1", magic_encrypted[] = "PARE";

int rh_parquet_is_one(const char *path)
{
	struct rh_file_in *file;
	char first[MAGIC];
	int rc = rh_file_exists(path) ? rh_file_open(path, &file) : -ENOENT;
	if (rc == -ENOMEM)
		return rc;
	if (rc) {
		rh_error_clear();
		return 0;
	}
	int is_one = rh_file_length(file) >= MAGIC && !rh_file_read(file, 0, first, MAGIC) &&
	             (!memcmp(first, magic, MAGIC) || !memcmp(first, magic_encrypted, MAGIC));
	rh_file_close(file);
	rh_error_clear();
	return is_one;
}

int parquet_fail_footer(const struct rh_parquet *file)
{
	return rh_fail(-EINVAL, "%s: the Parquet footer is damaged; fetch the file again", rh_file_path(file->file));
}

static int refuse_codec(const struct rh_parquet *file, int64_t codec)
{
	static const char *const names[] = {"", "", "", "lzo", "brotli", "lz4", "", "lz4"};
	const char *path = rh_file_path(file->file);
	if (codec < 0 || codec > PARQUET_LZ4_RAW)
		return parquet_fail_footer(file);
	if (!*names[codec])
		return 0;
	return rh_fail(-EINVAL,
	               "%s: compressed with %s, which is not read; write it with zstd: python3 -c \"import pyarrow.parquet as p; "
	               "p.write_table(p.read_table('%s'), 'rows.parquet', compression='zstd')\"",
	               path, names[codec], path);
}

/* ColumnMetaData. */
static int read_column(struct rh_parquet *file, struct thrift *in, struct parquet_chunk *out)
{
	int64_t codec = 0, data = -1, dictionary = -1, type = -1, most = rh_file_length(file->file);
	*out = (struct parquet_chunk){.bytes = -1, .entries = -1};
	for (struct thrift_field field = {0}; thrift_next(in, &field);) {
		int64_t *const numbers[] = {NULL, &type,       NULL, NULL,  &codec, &out->entries,
		                            NULL, &out->bytes, NULL, &data, NULL,   &dictionary};
		if (field.id < (int)(sizeof numbers / sizeof *numbers) && numbers[field.id])
			*numbers[field.id] = thrift_int(in, &field);
		else
			thrift_skip(in, &field);
	}
	size_t leaf = file->leaves ? file->chunks % file->leaves : 0;
	out->at = dictionary >= MAGIC && dictionary < data ? dictionary : data;
	int is_inside = out->at >= MAGIC && out->at <= most && out->bytes >= 0 && out->bytes <= most - out->at;
	if (in->is_bad || out->entries < 0 || (out->entries && !is_inside) || !file->leaves || type != (int64_t)file->leaf[leaf].type)
		return parquet_fail_footer(file);
	out->codec = (enum parquet_codec)codec;
	return refuse_codec(file, codec);
}

/* ColumnChunk. */
static int read_chunk(struct rh_parquet *file, struct thrift *in)
{
	int rc = rh_grow(&file->chunk, &file->chunk_capacity, file->chunks + 1, sizeof *file->chunk), is_there = 0, is_encrypted = 0;
	for (struct thrift_field field = {0}; !rc && thrift_next(in, &field);) {
		is_encrypted |= field.id == 8 || field.id == 9;
		if (field.id == 1)
			rc = rh_fail(-EINVAL, "%s: its columns lie in other files; name those", rh_file_path(file->file));
		else if (field.id == 3 && field.type == THRIFT_STRUCT && !is_there++)
			rc = read_column(file, in, &file->chunk[file->chunks]);
		else
			thrift_skip(in, &field);
	}
	if (!rc && is_encrypted)
		return rh_fail(-EINVAL, "%s: encrypted, which is not read", rh_file_path(file->file));
	if (!rc && !is_there)
		return parquet_fail_footer(file);
	file->chunks += !rc;
	return rc;
}

static int read_group(struct rh_parquet *file, struct thrift *in)
{
	int rc = rh_grow(&file->group, &file->group_capacity, file->groups + 1, sizeof *file->group);
	if (rc)
		return rc;
	struct parquet_group *group = &file->group[file->groups++];
	*group = (struct parquet_group){.rows = -1, .chunk = file->chunks};
	for (struct thrift_field field = {0}; !rc && thrift_next(in, &field);) {
		if (field.id == 1)
			for (size_t left = thrift_list(in, &field, THRIFT_STRUCT); !rc && left && !in->is_bad; left--)
				rc = read_chunk(file, in);
		else if (field.id == 3)
			group->rows = thrift_int(in, &field);
		else
			thrift_skip(in, &field);
	}
	if (!rc && (in->is_bad || group->rows < 0 || file->chunks - group->chunk != file->leaves))
		return parquet_fail_footer(file);
	return rc;
}

static int read_metadata(struct rh_parquet *file, struct thrift *in)
{
	int rc = 0;
	for (struct thrift_field field = {0}; !rc && thrift_next(in, &field);) {
		if (field.id == 2)
			rc = parquet_schema_read(file, in, &field);
		else if (field.id == 4)
			for (size_t left = thrift_list(in, &field, THRIFT_STRUCT); !rc && left && !in->is_bad; left--)
				rc = read_group(file, in);
		else
			thrift_skip(in, &field);
	}
	return !rc && (in->is_bad || !file->leaves) ? parquet_fail_footer(file) : rc;
}

int parquet_footer_read(struct rh_parquet *file)
{
	const char *path = rh_file_path(file->file);
	uint8_t first[MAGIC], tail[TAIL];
	uint32_t length;
	int64_t bytes = rh_file_length(file->file);
	if (bytes < MAGIC + TAIL)
		return rh_fail(-EINVAL, "%s: the file is too short for Parquet; fetch it again", path);
	int rc = rh_file_read(file->file, 0, first, MAGIC);
	if (!rc)
		rc = rh_file_read(file->file, bytes - TAIL, tail, TAIL);
	if (rc)
		return rc;
	if (!memcmp(first, magic_encrypted, MAGIC) || !memcmp(tail + TAIL - MAGIC, magic_encrypted, MAGIC))
		return rh_fail(-EINVAL, "%s: encrypted, which is not read", path);
	if (memcmp(first, magic, MAGIC))
		return rh_fail(-EINVAL, "%s: no Parquet file: it does not begin with PAR1", path);
	if (memcmp(tail + TAIL - MAGIC, magic, MAGIC))
		return rh_fail(-EINVAL, "%s: the Parquet file is cut off: it does not end with PAR1; fetch it again", path);
	memcpy(&length, tail, sizeof length);
	if (length > bytes - MAGIC - TAIL)
		return parquet_fail_footer(file);
	uint8_t *footer = rh_alloc(length ? length : 1, 1);
	rc = footer ? rh_file_read(file->file, bytes - TAIL - length, footer, length) : -ENOMEM;
	if (!rc) {
		struct thrift in = {footer, footer + length, 0};
		rc = read_metadata(file, &in);
	}
	rh_free(footer);
	return rc;
}
