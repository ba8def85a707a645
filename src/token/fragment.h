/* A text is cut into fragments, by one cutter after the other. Each fragment goes through all later cutters before the next
 * fragment is cut off, so a text of any length needs no list of its fragments. */
#ifndef RH_TOKEN_FRAGMENT_H
#define RH_TOKEN_FRAGMENT_H

#include <stddef.h>
#include <stdint.h>

struct fragment {
	const char *text; /* borrowed for the call */
	size_t bytes;
	int32_t id; /* of the token that it is; -1: text */
	/* How many of its leading bytes stem from the very first character of what the user gave. Above 0 only in the fragment (or fragments, if
	 * that character became several) at the start, which is what Metaspace's scheme `first` asks for. */
	size_t leading;
};

/* Takes fragments in the text's order. 0, 1: no more are wanted, or negative errno; the last two end the cutting, which returns them. */
struct fragment_sink {
	int (*take)(void *context, const struct fragment *fragment);
	void *context;
};

/* Hands on bytes [first, end) of a text with `leading`; an empty stretch is dropped. */
static inline int fragment_give(const struct fragment_sink *sink, const char *text, size_t first, size_t end, size_t leading)
{
	struct fragment fragment = {.text = text + first,
	                            .bytes = end - first,
	                            .id = -1,
	                            .leading = leading <= first ? 0
	                                       : leading < end  ? leading - first
	                                                        : end - first};
	return first < end ? sink->take(sink->context, &fragment) : 0;
}

#endif
