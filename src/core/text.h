/* A growable run of bytes, always NUL-terminated. */
#ifndef RH_CORE_TEXT_H
#define RH_CORE_TEXT_H

#include "core/error.h"

struct rh_text {
	char *bytes; /* NULL while empty and never appended to */
	size_t length, capacity;
};

/* Both return 0 or -ENOMEM and leave the text as it was on failure. */
int rh_text_append(struct rh_text *text, const void *bytes, size_t length) RH_MUST;
int rh_text_printf(struct rh_text *text, const char *format, ...) RH_MUST RH_PRINTF(2, 3);

/* What iconv calls the encoding where the bytes begin as UTF-16 does, with a mark or with two characters of ASCII; NULL: they do not. */
const char *rh_text_utf16(const void *bytes, size_t length);

/* Bytes of the longest beginning of UTF-8 that has at most so many and cuts no character. */
size_t rh_text_fit(const char *text, size_t most);
/* The beginning of UTF-8 as one line of less than `bytes` bytes, for a person: control characters are blanks, "..." ends what is cut. */
void rh_text_shorten(const char *text, char *out, size_t bytes);

/* Empties and frees; the struct may be used again. */
void rh_text_free(struct rh_text *text);

#endif
