#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

enum { ONCE_MAX = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *said[ONCE_MAX]; /* protected by lock; formats are literals, so pointers identify them */
static int said_count;             /* protected by lock */
static int is_quiet;
static void (*hook_before)(void *), (*hook_after)(void *);
static void *hook_context;

static void say(const char *prefix, const char *format, va_list args)
{
	if (hook_before)
		hook_before(hook_context);
	fputs(prefix, stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	if (hook_after)
		hook_after(hook_context);
}

void rh_note(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	pthread_mutex_lock(&lock);
	if (!is_quiet)
		say("", format, args);
	pthread_mutex_unlock(&lock);
	va_end(args);
}

void rh_warn_once(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	pthread_mutex_lock(&lock);
	int known = 0;
	for (int i = 0; i < said_count; i++)
		known |= said[i] == format;
	if (!known) {
		if (said_count < ONCE_MAX)
			said[said_count++] = format;
		say("warning: ", format, args);
	}
	pthread_mutex_unlock(&lock);
	va_end(args);
}

void rh_log_quiet(int quiet)
{
	is_quiet = quiet;
}

void rh_log_hooks(void (*before)(void *), void (*after)(void *), void *context)
{
	pthread_mutex_lock(&lock);
	hook_before = before;
	hook_after = after;
	hook_context = context;
	pthread_mutex_unlock(&lock);
}
