#include "link/frame.h"

#include <string.h>

#include <xxhash.h>

#define MAGIC 0x314b4852u /* "RHK1": another version has another */

static void put(unsigned char *out, uint64_t value, int bytes)
{
	for (int i = 0; i < bytes; i++)
		out[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *in, int bytes)
{
	uint64_t value = 0;
	for (int i = 0; i < bytes; i++)
		value |= (uint64_t)in[i] << (8 * i);
	return value;
}

uint64_t frame_hash(const void *payload, size_t length)
{
	return length ? XXH3_64bits(payload, length) : 0;
}

void frame_encode(const struct frame *frame, unsigned char out[FRAME_HEADER])
{
	memset(out, 0, FRAME_HEADER);
	put(out, MAGIC, 4);
	put(out + 4, (uint64_t)frame->type, 1);
	put(out + 8, frame->length, 4);
	put(out + 16, frame->a, 8);
	put(out + 24, frame->b, 8);
	put(out + 32, frame->c, 8);
	put(out + 40, frame->d, 8);
	put(out + 48, XXH3_64bits_withSeed(out, 48, frame_hash(frame->payload, frame->length)), 8);
}

static uint32_t longest(enum frame_type type)
{
	return type == FRAME_DATA ? RH_LINK_FRAME_BYTES : type == FRAME_HELLO || type == FRAME_ABORT ? FRAME_TEXT : 0;
}

int frame_decode(const unsigned char header[FRAME_HEADER], struct frame *out)
{
	*out = (struct frame){.type = (enum frame_type)header[4],
	                      .length = (uint32_t)get(header + 8, 4),
	                      .a = get(header + 16, 8),
	                      .b = get(header + 24, 8),
	                      .c = get(header + 32, 8),
	                      .d = get(header + 40, 8)};
	if (get(header, 4) != MAGIC)
		return rh_fail(-EPROTO, "the peer does not speak this version of Roundhouse's link");
	if (!out->type || out->type >= FRAME_TYPES || get(header + 5, 3) || get(header + 12, 4))
		return rh_fail(-EPROTO, "the peer sent a frame of an unknown kind");
	if (out->length > longest(out->type))
		return rh_fail(-EPROTO, "the peer sent a frame of %u bytes, more than its kind may have (%u)", out->length,
		               longest(out->type));
	if (out->type == FRAME_DATA && (out->c > INT64_MAX || out->b > out->c || out->length > out->c - out->b))
		return rh_fail(-EPROTO, "the peer sent a piece that lies outside its message");
	return 0;
}

int frame_check(const unsigned char header[FRAME_HEADER], uint64_t payload_hash)
{
	return XXH3_64bits_withSeed(header, 48, payload_hash) == get(header + 48, 8);
}
