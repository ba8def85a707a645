#include "parquet/thrift.h"

enum { DEPTH_MOST = 32, VARINT_MOST = 10, DOUBLE_BYTES = 8, UUID_BYTES = 16, LONG_LIST = 15 };

static uint8_t next_byte(struct thrift *in)
{
	if (in->at < in->end)
		return *in->at++;
	in->is_bad = 1;
	return 0;
}

static void mark_bad(struct thrift *in)
{
	in->is_bad = 1;
	in->at = in->end;
}

static const uint8_t *take(struct thrift *in, uint64_t bytes)
{
	const uint8_t *from = in->at;
	if (bytes > (uint64_t)(in->end - in->at))
		mark_bad(in);
	else
		in->at += bytes;
	return from;
}

uint64_t thrift_varint(struct thrift *in)
{
	uint64_t value = 0;
	for (unsigned i = 0; i < VARINT_MOST; i++) {
		uint8_t byte = next_byte(in);
		value |= (uint64_t)(byte & 0x7f) << 7 * i;
		if (!(byte & 0x80))
			return value;
	}
	mark_bad(in);
	return 0;
}

int thrift_next(struct thrift *in, struct thrift_field *field)
{
	uint8_t head = next_byte(in);
	field->type = head & 0xf;
	if (in->is_bad || field->type == THRIFT_STOP)
		return 0;
	int64_t id = head >> 4 ? field->id + (head >> 4) : thrift_unzigzag(thrift_varint(in));
	if (id < 1 || id > INT16_MAX || field->type > THRIFT_UUID)
		mark_bad(in);
	field->id = in->is_bad ? 0 : (int)id;
	return !in->is_bad;
}

int64_t thrift_int(struct thrift *in, const struct thrift_field *field)
{
	if (field->type == THRIFT_BYTE)
		return (int8_t)next_byte(in);
	if (field->type >= THRIFT_I16 && field->type <= THRIFT_I64)
		return thrift_unzigzag(thrift_varint(in));
	mark_bad(in);
	return 0;
}

int thrift_bool(struct thrift *in, const struct thrift_field *field)
{
	if (field->type != THRIFT_TRUE && field->type != THRIFT_FALSE)
		mark_bad(in);
	return field->type == THRIFT_TRUE;
}

struct thrift_bytes thrift_binary(struct thrift *in, const struct thrift_field *field)
{
	if (field->type != THRIFT_BINARY) {
		mark_bad(in);
		return (struct thrift_bytes){0};
	}
	uint64_t length = thrift_varint(in);
	const uint8_t *bytes = take(in, length);
	return in->is_bad ? (struct thrift_bytes){0} : (struct thrift_bytes){bytes, (size_t)length};
}

static uint64_t list_head(struct thrift *in, enum thrift_type *items)
{
	uint8_t head = next_byte(in);
	uint64_t count = head >> 4 == LONG_LIST ? thrift_varint(in) : head >> 4;
	*items = head & 0xf;
	if (count > (uint64_t)(in->end - in->at))
		mark_bad(in);
	return in->is_bad ? 0 : count;
}

size_t thrift_list(struct thrift *in, const struct thrift_field *field, enum thrift_type items)
{
	enum thrift_type type = THRIFT_STOP;
	uint64_t count = field->type == THRIFT_LIST ? list_head(in, &type) : 0;
	if (field->type != THRIFT_LIST || (count && type != items))
		mark_bad(in);
	return in->is_bad ? 0 : (size_t)count;
}

/* `in_list`: booleans have a byte of their own there, and none in a struct. */
static void skip(struct thrift *in, enum thrift_type type, int in_list, int depth)
{
	if (depth > DEPTH_MOST || in->is_bad) {
		mark_bad(in);
		return;
	}
	enum thrift_type key = THRIFT_STOP, value = THRIFT_STOP;
	switch (type) {
	case THRIFT_TRUE:
	case THRIFT_FALSE:
		if (in_list)
			next_byte(in);
		return;
	case THRIFT_BYTE:
		next_byte(in);
		return;
	case THRIFT_I16:
	case THRIFT_I32:
	case THRIFT_I64:
		thrift_varint(in);
		return;
	case THRIFT_DOUBLE:
		take(in, DOUBLE_BYTES);
		return;
	case THRIFT_UUID:
		take(in, UUID_BYTES);
		return;
	case THRIFT_BINARY:
		take(in, thrift_varint(in));
		return;
	case THRIFT_LIST:
	case THRIFT_SET:
		for (uint64_t left = list_head(in, &value); left && !in->is_bad; left--)
			skip(in, value, 1, depth + 1);
		return;
	case THRIFT_MAP: {
		uint64_t left = thrift_varint(in);
		uint8_t types = left ? next_byte(in) : 0;
		key = types >> 4;
		value = types & 0xf;
		for (; left && !in->is_bad; left--) {
			skip(in, key, 1, depth + 1);
			skip(in, value, 1, depth + 1);
		}
		return;
	}
	case THRIFT_STRUCT:
		for (struct thrift_field field = {0}; thrift_next(in, &field);)
			skip(in, field.type, 0, depth + 1);
		return;
	case THRIFT_STOP:
		break;
	}
	mark_bad(in);
}

void thrift_skip(struct thrift *in, const struct thrift_field *field)
{
	skip(in, field->type, 0, 0);
}
