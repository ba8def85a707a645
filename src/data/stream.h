/* A data file's bytes in pieces, decompressed where its first bytes are gzip's or zstd's. */
#ifndef RH_DATA_STREAM_H
#define RH_DATA_STREAM_H

#include "core/error.h"

#include <stddef.h>

struct data_stream;
/* -EINVAL, with the command that converts, for what is no text in UTF-8: Arrow, archives, UTF-16, a git-lfs pointer. `path` is
 * borrowed until the stream is closed. */
int data_stream_open(const char *path, struct data_stream **out) RH_MUST;
/* Up to `room` bytes; *got is 0 at the end alone. */
int data_stream_read(struct data_stream *stream, void *bytes, size_t room, size_t *got) RH_MUST;
void data_stream_close(struct data_stream *stream);

/* Bytes that were read and not yet consumed. */
enum { DATA_PIECE = 256 << 10 };
struct data_window {
	struct data_stream *stream;
	char *bytes;
	size_t begin, end, capacity;
};
/* Appends another piece; it may move all bytes to the front (`begin` 0). 1, 0 at the stream's end, negative errno. `where` names the row
 * that needs more. */
int data_window_more(struct data_window *window, const char *where) RH_MUST;
/* Consumes `bytes`. Memory that a long row needed is freed. */
void data_window_consume(struct data_window *window, size_t bytes);
void data_window_free(struct data_window *window);

#endif
