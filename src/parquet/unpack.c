#include "parquet/parquet_internal.h"

#include <snappy-c.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

/* Several gzip streams may follow one another. */
static int unpack_gzip(const uint8_t *from, size_t length, uint8_t *to, size_t room)
{
	enum { GZIP_OR_ZLIB = 15 + 32 };
	z_stream stream = {.next_in = (Bytef *)(uintptr_t)from, .avail_in = (uInt)length, .next_out = to, .avail_out = (uInt)room};
	if (inflateInit2(&stream, GZIP_OR_ZLIB) != Z_OK)
		return -ENOMEM;
	int verdict = Z_OK;
	while (verdict == Z_OK && stream.avail_out) {
		verdict = inflate(&stream, Z_NO_FLUSH);
		if (verdict == Z_STREAM_END && stream.avail_out && stream.avail_in)
			verdict = inflateReset(&stream);
	}
	int is_whole = !stream.avail_out && (verdict == Z_OK || verdict == Z_STREAM_END);
	inflateEnd(&stream);
	return is_whole ? 0 : -EINVAL;
}

int parquet_unpack(enum parquet_codec codec, const uint8_t *from, size_t length, uint8_t *to, size_t room)
{
	size_t got = room;
	if (!room)
		return 0;
	switch (codec) {
	case PARQUET_PLAIN:
		if (length != room)
			return -EINVAL;
		memcpy(to, from, room);
		return 0;
	case PARQUET_SNAPPY:
		if (snappy_uncompressed_length((const char *)from, length, &got) != SNAPPY_OK || got != room)
			return -EINVAL;
		return snappy_uncompress((const char *)from, length, (char *)to, &got) == SNAPPY_OK && got == room ? 0 : -EINVAL;
	case PARQUET_GZIP:
		return unpack_gzip(from, length, to, room);
	case PARQUET_ZSTD:
		return ZSTD_decompress(to, room, from, length) == room ? 0 : -EINVAL;
	case PARQUET_LZO:
	case PARQUET_BROTLI:
	case PARQUET_LZ4:
	case PARQUET_LZ4_RAW:
		break;
	}
	return -EINVAL; /* refused when the file was opened */
}
