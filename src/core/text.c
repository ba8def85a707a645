#include "core/text.h"

#include "core/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int rh_text_append(struct rh_text *text, const void *bytes, size_t length)
{
	int rc = rh_grow(&text->bytes, &text->capacity, text->length + length + 1, 1);
	if (rc)
		return rc;
	if (length)
		memcpy(text->bytes + text->length, bytes, length);
	text->length += length;
	text->bytes[text->length] = 0;
	return 0;
}

int rh_text_printf(struct rh_text *text, const char *format, ...)
{
	va_list args, again;
	va_start(args, format);
	va_copy(again, args);
	int length = vsnprintf(NULL, 0, format, args);
	va_end(args);
	int rc = length < 0 ? rh_fail(-EINVAL, "cannot format '%s'", format)
	                    : rh_grow(&text->bytes, &text->capacity, text->length + (size_t)length + 1, 1);
	if (!rc) {
		vsnprintf(text->bytes + text->length, (size_t)length + 1, format, again);
		text->length += (size_t)length;
	}
	va_end(again);
	return rc;
}

void rh_text_free(struct rh_text *text)
{
	rh_free(text->bytes);
	*text = (struct rh_text){0};
}

const char *rh_text_utf16(const void *bytes, size_t length)
{
	const char *byte = bytes;
	if (length >= 2 && (!memcmp(bytes, "\xFF\xFE", 2) || !memcmp(bytes, "\xFE\xFF", 2)))
		return "UTF-16";
	if (length < 4)
		return NULL;
	if (byte[0] && !byte[1] && byte[2] && !byte[3])
		return "UTF-16LE";
	return !byte[0] && byte[1] && !byte[2] && byte[3] ? "UTF-16BE" : NULL;
}

size_t rh_text_fit(const char *text, size_t most)
{
	size_t length = strlen(text);
	if (length <= most)
		return length;
	while (most && ((unsigned char)text[most] & 0xc0) == 0x80)
		most--;
	return most;
}

void rh_text_shorten(const char *text, char *out, size_t bytes)
{
	RH_ASSERT(bytes > 4);
	size_t length = strlen(text), fits = length < bytes ? length : rh_text_fit(text, bytes - 4);
	snprintf(out, bytes, "%.*s%s", (int)fits, text, fits < length ? "..." : "");
	for (char *at = out; *at; at++)
		if ((unsigned char)*at < 0x20 || *at == 0x7f)
			*at = ' ';
}
