#include "core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 1024 };
static _Thread_local char line[LINE_BYTES];

int rh_fail(int code, const char *format, ...)
{
	RH_ASSERT(code < 0);
	char fresh[LINE_BYTES]; /* the arguments may point into the old line */
	va_list args;
	va_start(args, format);
	vsnprintf(fresh, sizeof fresh, format, args);
	va_end(args);
	memcpy(line, fresh, sizeof line);
	return code;
}

int rh_fail_in(int code, const char *format, ...)
{
	RH_ASSERT(code < 0);
	char fresh[LINE_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(fresh, sizeof fresh, format, args);
	va_end(args);
	size_t used = strlen(fresh);
	snprintf(fresh + used, sizeof fresh - used, ": %s", rh_error(code));
	memcpy(line, fresh, sizeof line);
	return code;
}

int rh_fail_copy(int code, const char *text)
{
	RH_ASSERT(code < 0);
	snprintf(line, sizeof line, "%s", text);
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

void rh_assert_failed(const char *condition, const char *file, int number)
{
	fprintf(stderr, "roundhouse: internal error: %s does not hold (%s:%d)\n", condition, file, number);
	abort();
}
