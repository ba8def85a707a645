#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char line[RH_ERROR_LINE];

/* An error is one line that a terminal shows as it is: names and values out of files may hold anything. */
static void keep(const char *text)
{
	size_t length = strlen(text);
	for (size_t i = 0; i < length; i++)
		line[i] = (unsigned char)text[i] < 32 || text[i] == 127 ? '?' : text[i];
	line[length] = 0;
}

int rh_fail(int code, const char *format, ...)
{
	RH_ASSERT(code < 0);
	char fresh[RH_ERROR_LINE]; /* the arguments may point into the old line */
	va_list args;
	va_start(args, format);
	vsnprintf(fresh, sizeof fresh, format, args);
	va_end(args);
	keep(fresh);
	return code;
}

int rh_fail_in(int code, const char *format, ...)
{
	RH_ASSERT(code < 0);
	char fresh[RH_ERROR_LINE];
	va_list args;
	va_start(args, format);
	vsnprintf(fresh, sizeof fresh, format, args);
	va_end(args);
	size_t used = strlen(fresh);
	snprintf(fresh + used, sizeof fresh - used, ": %s", rh_error(code));
	keep(fresh);
	return code;
}

int rh_fail_copy(int code, const char *text)
{
	RH_ASSERT(code < 0);
	char fresh[RH_ERROR_LINE];
	snprintf(fresh, sizeof fresh, "%s", text);
	keep(fresh);
	return code;
}

const char *rh_error(int code)
{
	return line[0] ? line : strerror(-code);
}

void rh_error_clear(void)
{
	line[0] = 0;
}

void rh_error_swap(char other[RH_ERROR_LINE])
{
	char mine[RH_ERROR_LINE];
	memcpy(mine, line, sizeof mine);
	memcpy(line, other, sizeof line);
	memcpy(other, mine, sizeof mine);
}

void rh_assert_failed(const char *condition, const char *file, int number)
{
	fprintf(stderr, "roundhouse: internal error: %s does not hold (%s:%d)\n", condition, file, number);
	abort();
}
