/* What the two halves of the GGUF reader (header, metadata) share. */
#ifndef RH_CKPT_GGUF_INTERNAL_H
#define RH_CKPT_GGUF_INTERNAL_H

#include "ckpt/gguf.h"
#include "core/file.h"

enum gguf_type {
	GGUF_U8,
	GGUF_I8,
	GGUF_U16,
	GGUF_I16,
	GGUF_U32,
	GGUF_I32,
	GGUF_F32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_U64,
	GGUF_I64,
	GGUF_F64,
	GGUF_TYPES
};

struct gguf_pair {
	char *key;
	enum gguf_type type, element; /* element: of an array */
	uint64_t count;               /* of an array; bytes of a string */
	const char *value;            /* into the header, unaligned; a string's first byte, an array's first element */
	char *text;                   /* a string, NUL-terminated */
};

struct rh_gguf {
	struct rh_file_in *input;
	char *header; /* the file's first bytes: all before the tensors' data, and more */
	size_t header_bytes;
	char *path;
	struct gguf_pair *pair; /* sorted by key once read */
	uint64_t pairs;
	struct rh_gguf_tensor *tensor; /* names are owned */
	int64_t tensors;
	struct rh_gguf_tensor **by_name; /* of all parts */
	int64_t in_parts;                /* how many these are */
	struct rh_gguf **part;           /* of a split model: those behind this first one */
	int64_t parts;
};

/* The reader's position in the file; `end` is the end of the bytes in memory. */
struct gguf_cursor {
	const char *next, *end, *path;
	int64_t bytes_after; /* bytes of the file after `end` */
};

/* Bytes of the file after the reader's position. */
static inline uint64_t gguf_left(const struct gguf_cursor *cursor)
{
	return (uint64_t)(cursor->end - cursor->next + cursor->bytes_after);
}

/* GGML's number of a type that GGUF files have. */
uint32_t gguf_type_number(enum rh_dtype dtype);

/* Both -EINVAL when the file ends before; -EAGAIN, without a line, when the bytes in memory do. Little-endian. */
int gguf_take(struct gguf_cursor *cursor, int64_t bytes, const char **out) RH_MUST;
int gguf_take_uint(struct gguf_cursor *cursor, int bytes, uint64_t *out) RH_MUST;
/* A fresh copy; names and keys: 1 to 1024 bytes of UTF-8 without control characters. */
int gguf_take_name(struct gguf_cursor *cursor, const char *what, char **out) RH_MUST;
/* All pairs, checked and sorted. */
int gguf_read_pairs(struct rh_gguf *gguf, struct gguf_cursor *cursor) RH_MUST;

#endif
