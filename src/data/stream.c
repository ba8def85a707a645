#include "data/stream.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/lfs.h"
#include "core/text.h"

#include <stdint.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

enum { ROW_MOST = 1 << 30, ROOM_KEPT = 4 * DATA_PIECE };
enum packing { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD };

struct data_stream {
	const char *path;
	struct rh_file_in *file;
	int64_t next, length; /* of the file: bytes read, bytes there are */
	enum packing packing;
	unsigned char *packed; /* (DATA_PIECE), of which [first, end) is not yet unpacked */
	size_t first, end;
	int is_inside; /* a compressed stream has begun and not ended */
	z_stream gzip;
	ZSTD_DStream *zstd;
};

static int read_file(struct data_stream *stream, void *bytes, size_t room, size_t *got)
{
	int64_t left = stream->length - stream->next;
	*got = (int64_t)room < left ? room : (size_t)left;
	int rc = rh_file_read(stream->file, stream->next, bytes, *got);
	stream->next += (int64_t)*got;
	return rc;
}

static int refill(struct data_stream *stream)
{
	stream->first = stream->end = 0;
	return read_file(stream, stream->packed, DATA_PIECE, &stream->end);
}

static int starts(const struct data_stream *stream, const char *magic, size_t bytes)
{
	return stream->end >= bytes && !memcmp(stream->packed, magic, bytes);
}

/* Refuses data that is no text. */
static int refuse_others(const struct data_stream *stream)
{
	const char *path = stream->path;
	if (starts(stream, "ARROW1", 6))
		return rh_fail(-EINVAL,
		               "%s: Arrow is not read; convert it: python3 -c \"import datasets; "
		               "datasets.Dataset.from_file('%s').to_json('rows.jsonl')\"",
		               path, path);
	if (starts(stream, "PK\3\4", 4))
		return rh_fail(-EINVAL, "%s: a zip archive (or a spreadsheet); unzip it, or save the sheet as CSV", path);
	if (starts(stream, "BZh", 3))
		return rh_fail(-EINVAL, "%s: bzip2 is not read; bunzip2 '%s' first", path, path);
	if (starts(stream,
	           "\xFD"
	           "7zXZ",
	           5))
		return rh_fail(-EINVAL, "%s: xz is not read; unxz '%s' first", path, path);
	const char *form = rh_text_utf16(stream->packed, stream->end);
	if (form)
		return rh_fail(-EINVAL, "%s:1: the file is UTF-16; iconv -f %s -t UTF-8 '%s' >rows.jsonl converts it", path, form, path);
	return rh_lfs_refuse(path, stream->packed, stream->end);
}

static int open_packed(struct data_stream *stream)
{
	if (starts(stream, "\x1f\x8b", 2)) {
		stream->packing = PACKED_GZIP;
		enum { GZIP_WINDOW = 15 + 16 };
		return inflateInit2(&stream->gzip, GZIP_WINDOW) == Z_OK ? 0 : rh_fail(-ENOMEM, "%s: out of host memory", stream->path);
	}
	if (starts(stream, "\x28\xb5\x2f\xfd", 4)) {
		stream->packing = PACKED_ZSTD;
		stream->zstd = ZSTD_createDStream();
		return stream->zstd ? 0 : rh_fail(-ENOMEM, "%s: out of host memory", stream->path);
	}
	return refuse_others(stream);
}

int data_stream_open(const char *path, struct data_stream **out)
{
	struct data_stream *stream = rh_alloc(1, sizeof *stream);
	if (!stream)
		return -ENOMEM;
	stream->path = path;
	int rc = rh_dir_exists(path)
	                 ? rh_fail(-EISDIR, "%s: a directory; name the files of rows in it, as a list where there are several", path)
	                 : rh_file_open(path, &stream->file);
	if (!rc)
		stream->length = rh_file_length(stream->file);
	if (!rc && !(stream->packed = rh_alloc(DATA_PIECE, 1)))
		rc = -ENOMEM;
	if (!rc)
		rc = refill(stream);
	if (!rc)
		rc = open_packed(stream);
	if (rc)
		data_stream_close(stream);
	else
		*out = stream;
	return rc;
}

void data_stream_close(struct data_stream *stream)
{
	if (!stream)
		return;
	if (stream->packing == PACKED_GZIP)
		inflateEnd(&stream->gzip);
	ZSTD_freeDStream(stream->zstd);
	rh_file_close(stream->file);
	rh_free(stream->packed);
	rh_free(stream);
}

static int fail_packed(const struct data_stream *stream, const char *what)
{
	return rh_fail(-EINVAL, "%s: the %s data are damaged: %s; fetch or compress the file again", stream->path,
	               stream->packing == PACKED_GZIP ? "gzip" : "zstd", what);
}

/* One call of the library, over what [first, end) holds. A file may be several compressed streams, one after the other. */
static int unpack(struct data_stream *stream, void *bytes, size_t room, size_t *got)
{
	unsigned char *from = stream->packed + stream->first;
	size_t left = stream->end - stream->first;
	if (stream->packing == PACKED_ZSTD) {
		ZSTD_inBuffer in = {from, left, 0};
		ZSTD_outBuffer to = {bytes, room, 0};
		size_t rest = ZSTD_decompressStream(stream->zstd, &to, &in);
		if (ZSTD_isError(rest))
			return fail_packed(stream, ZSTD_getErrorName(rest));
		stream->first += in.pos;
		stream->is_inside = rest != 0;
		*got = to.pos;
		return 0;
	}
	if (!stream->is_inside && inflateReset(&stream->gzip) != Z_OK)
		return fail_packed(stream, "the decoder cannot be reset");
	stream->gzip.next_in = from;
	stream->gzip.avail_in = (uInt)left;
	stream->gzip.next_out = bytes;
	stream->gzip.avail_out = (uInt)room;
	int verdict = inflate(&stream->gzip, Z_NO_FLUSH);
	if (verdict == Z_MEM_ERROR)
		return rh_fail(-ENOMEM, "%s: out of host memory", stream->path);
	if (verdict != Z_OK && verdict != Z_STREAM_END && verdict != Z_BUF_ERROR)
		return fail_packed(stream, stream->gzip.msg ? stream->gzip.msg : "not a gzip stream");
	stream->first += left - stream->gzip.avail_in;
	stream->is_inside = verdict != Z_STREAM_END;
	*got = room - stream->gzip.avail_out;
	return 0;
}

int data_stream_read(struct data_stream *stream, void *bytes, size_t room, size_t *got)
{
	*got = 0;
	if (stream->packing == PACKED_NOT) {
		if (stream->first == stream->end)
			return read_file(stream, bytes, room, got);
		*got = room < stream->end - stream->first ? room : stream->end - stream->first;
		memcpy(bytes, stream->packed + stream->first, *got);
		stream->first += *got;
		return 0;
	}
	while (!*got) {
		int rc = stream->first == stream->end ? refill(stream) : 0;
		if (!rc && stream->first == stream->end) {
			if (!stream->is_inside)
				return 0;
			/* the decoder may still hold bytes that had no room */
			rc = unpack(stream, bytes, room, got);
			return rc || *got || !stream->is_inside ? rc : fail_packed(stream, "the file ends in the middle of them");
		}
		if (!rc)
			rc = unpack(stream, bytes, room, got);
		if (rc)
			return rc;
	}
	return 0;
}

int data_window_more(struct data_window *window, const char *where)
{
	size_t held = window->end - window->begin, got;
	if (window->begin) {
		memmove(window->bytes, window->bytes + window->begin, held);
		window->begin = 0;
		window->end = held;
	}
	if (held > ROW_MOST)
		return rh_fail(-EINVAL, "%s: the row is longer than %d MiB; is a quote or a bracket left open?", where, ROW_MOST >> 20);
	int rc = rh_grow(&window->bytes, &window->capacity, held + DATA_PIECE, 1);
	if (rc)
		return rc;
	rc = data_stream_read(window->stream, window->bytes + held, DATA_PIECE, &got);
	if (rc)
		return rc;
	window->end += got;
	return got > 0;
}

void data_window_consume(struct data_window *window, size_t bytes)
{
	window->begin += bytes;
	size_t held = window->end - window->begin;
	if (window->capacity <= ROOM_KEPT || held > DATA_PIECE)
		return;
	char *less = rh_alloc(ROOM_KEPT, 1);
	if (!less) { /* what there is serves too */
		rh_error_clear();
		return;
	}
	memcpy(less, window->bytes + window->begin, held);
	rh_free(window->bytes);
	*window = (struct data_window){.stream = window->stream, .bytes = less, .end = held, .capacity = ROOM_KEPT};
}

void data_window_free(struct data_window *window)
{
	rh_free(window->bytes);
	*window = (struct data_window){.stream = window->stream};
}
