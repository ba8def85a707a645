/* What a peer sends over a link: frames to a session that has messages posted both ways; and greetings. */
#include "fuzz/fuzz.h"

#include "link/hello.h"
#include "link/protocol.h"

#include <string.h>

enum { CAPACITY = 4, SIZE = 1000 };

/* One frame; returns how many bytes it took, 0: the connection would end here. */
static size_t one_frame(struct protocol *session, const uint8_t *bytes, size_t length)
{
	struct frame frame;
	char *into = NULL;
	int rc = frame_decode(bytes, &frame);
	fuzz_refused(rc);
	if (rc || frame.length > length - FRAME_HEADER)
		return 0;
	const char *payload = (const char *)bytes + FRAME_HEADER;
	if (frame.type == FRAME_DATA) {
		rc = protocol_expect(session, &frame, &into);
		if (!rc && into)
			memcpy(into, payload, frame.length);
	}
	/* checksums are not guessed: what passes them is what a hostile peer with a key may send */
	if (!rc)
		rc = protocol_take(session, 1, &frame, payload);
	fuzz_refused(rc);
	return rc ? 0 : FRAME_HEADER + frame.length;
}

static int fuzz_one(const uint8_t *bytes, size_t length)
{
	static char out[SIZE];
	struct protocol session;
	struct frame frame;
	char *in = malloc(CAPACITY * SIZE); /* a sanitizer sees who writes beyond it */
	if (!in || protocol_open(&session, 1, CAPACITY, 1000, 1000))
		abort();
	protocol_rewind(&session, 0);
	for (int i = 0; i < CAPACITY; i++)
		if (protocol_send(&session, (uint64_t)i, out, i * 300) ||
		    protocol_receive(&session, (uint64_t)i, in + i * SIZE, i ? SIZE : 0))
			abort();
	for (size_t at = 0, took; at + FRAME_HEADER <= length; at += took) {
		took = one_frame(&session, bytes + at, length - at);
		if (!took)
			break;
		for (int i = 0; i < 8 && protocol_next(&session, 1, &frame); i++)
			if (frame.length > RH_LINK_FRAME_BYTES)
				abort();
	}
	protocol_close(&session);
	free(in);
	fuzz_refused(hello_compare("build=1\nmodel=tiny\n", (const char *)bytes, length));
	return 0;
}

FUZZ_MAIN("link")
