/* Frames: what passes between the ends of a link. Little-endian; a header, then `length` bytes of payload.
 *
 *  0 magic   4  type  1  (zero) 3  length 4  (zero) 4
 * 16 a 8   24 b 8   32 c 8   40 d 8   48 check 8: XXH3 of the 48 bytes before, seeded with XXH3 of the payload
 *
 * type    a                        b                        c                       d
 * HELLO   session                  -                        -                       -                payload: name=value lines
 * STATE   messages received        bytes of the next one    receives posted         session of the receiver of these counts
 * DATA    message, from 0          offset of the payload    size of the message     tag
 * PING    sender's clock in ns     -                        -                       -
 * PONG    the ping's a             -                        -                       -
 * BYE     -                        -                        -                       -
 * ABORT   -                        -                        -                       -                payload: one line */
#ifndef RH_LINK_FRAME_H
#define RH_LINK_FRAME_H

#include "link/link.h"

#include <stddef.h>

enum frame_type { FRAME_HELLO = 1, FRAME_STATE, FRAME_DATA, FRAME_PING, FRAME_PONG, FRAME_BYE, FRAME_ABORT, FRAME_TYPES };

enum { FRAME_HEADER = 56, FRAME_TEXT = 8192 /* payload of HELLO and ABORT at most */ };

struct frame {
	enum frame_type type;
	uint32_t length; /* of the payload */
	uint64_t a, b, c, d;
	const void *payload; /* of a frame to send; borrowed */
};

/* The hash of a payload, which frame_encode and frame_check take. */
uint64_t frame_hash(const void *payload, size_t length);
void frame_encode(const struct frame *frame, unsigned char out[FRAME_HEADER]);
/* -EPROTO with a line: no frame, or a length that its type does not have. The payload is unchecked. */
int frame_decode(const unsigned char header[FRAME_HEADER], struct frame *out) RH_MUST;
/* 1: header and payload belong together. */
int frame_check(const unsigned char header[FRAME_HEADER], uint64_t payload_hash);

#endif
