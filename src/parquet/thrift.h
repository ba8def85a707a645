/* Thrift's compact protocol, in which Parquet writes its footer and the heads of pages. Reading beyond the end, and whatever else cannot
 * be, marks the input bad; what is read from there on is 0 and empty, so that loops end. */
#ifndef RH_PARQUET_THRIFT_H
#define RH_PARQUET_THRIFT_H

#include <stddef.h>
#include <stdint.h>

enum thrift_type {
	THRIFT_STOP,
	THRIFT_TRUE,
	THRIFT_FALSE,
	THRIFT_BYTE,
	THRIFT_I16,
	THRIFT_I32,
	THRIFT_I64,
	THRIFT_DOUBLE,
	THRIFT_BINARY,
	THRIFT_LIST,
	THRIFT_SET,
	THRIFT_MAP,
	THRIFT_STRUCT,
	THRIFT_UUID
};

struct thrift {
	const uint8_t *at, *end;
	int is_bad;
};
/* A field of a struct; all zero before the struct's first one. */
struct thrift_field {
	int id;
	enum thrift_type type;
};
struct thrift_bytes {
	const uint8_t *bytes; /* borrowed from the input */
	size_t length;
};

/* 1: `field` is the struct's next one, whose value is read or skipped next; 0: the struct has ended. */
int thrift_next(struct thrift *in, struct thrift_field *field);
/* The field's value; one of another type marks the input bad. */
int64_t thrift_int(struct thrift *in, const struct thrift_field *field);
int thrift_bool(struct thrift *in, const struct thrift_field *field);
struct thrift_bytes thrift_binary(struct thrift *in, const struct thrift_field *field);
/* How many items the field, a list of `items`, has; each is at least one byte long, so there are no more than bytes are left. */
size_t thrift_list(struct thrift *in, const struct thrift_field *field, enum thrift_type items);
void thrift_skip(struct thrift *in, const struct thrift_field *field);

/* An unsigned number of 7 bits a byte. */
uint64_t thrift_varint(struct thrift *in);
static inline int64_t thrift_unzigzag(uint64_t value)
{
	return (int64_t)(value >> 1 ^ (0 - (value & 1)));
}

#endif
