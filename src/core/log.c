#include "core/log.h"

#include "core/wrap.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ONCE_MAX = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *said[ONCE_MAX]; /* protected by lock; formats are literals, so pointers identify them */
static int said_count;             /* protected by lock */
static int is_quiet;
static void (*hook_before)(void *), (*hook_after)(void *);
static void *hook_context;

struct rh_log_line {
	struct rh_log_line *next;
	const char *format; /* a warning's format; NULL: a note */
	char text[];
};

static _Thread_local struct rh_log_kept *keeps; /* NULL: lines are said at once */

static void put(const char *before, const char *format, va_list args)
{
	va_list again;
	va_copy(again, args);
	int bytes = vsnprintf(NULL, 0, format, again), prefix = (int)strlen(before);
	va_end(again);
	char *line = bytes < 0 ? NULL : malloc((size_t)(prefix + bytes) + 1); /* rh_alloc's own fault is none of the caller's */
	if (line) {
		memcpy(line, before, (size_t)prefix);
		vsnprintf(line + prefix, (size_t)bytes + 1, format, args);
		rh_put_line(stderr, line);
		free(line);
		return;
	}
	fputs(before, stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
}

/* With the lock. */
static void say(const char *once, const char *format, va_list args)
{
	int known = 0;
	for (int i = 0; once && i < said_count; i++)
		known |= said[i] == once;
	if (once ? known : is_quiet)
		return;
	if (once && said_count < ONCE_MAX)
		said[said_count++] = once;
	if (hook_before)
		hook_before(hook_context);
	put(once ? "warning: " : "", format, args);
	if (hook_after)
		hook_after(hook_context);
}

/* 0: there is no memory for it. A warning that is kept once is not kept again. */
static int keep(const char *once, const char *format, va_list args)
{
	va_list again;
	va_copy(again, args);
	int bytes = vsnprintf(NULL, 0, format, again);
	va_end(again);
	struct rh_log_line *line = keeps->first;
	while (line && !(once && line->format == once))
		line = line->next;
	if (line)
		return 1;
	line = bytes < 0 ? NULL : malloc(sizeof *line + (size_t)bytes + 1); /* rh_alloc's own fault is none of the caller's */
	if (!line)
		return 0;
	line->next = NULL;
	line->format = once;
	vsnprintf(line->text, (size_t)bytes + 1, format, args);
	*(keeps->last ? &keeps->last->next : &keeps->first) = line;
	keeps->last = line;
	return 1;
}

static void say_or_keep(const char *once, const char *format, va_list args)
{
	if (keeps && keep(once, format, args))
		return;
	pthread_mutex_lock(&lock);
	say(once, format, args);
	pthread_mutex_unlock(&lock);
}

static void say_line(const char *once, const char *format, ...) RH_PRINTF(2, 3);
static void say_line(const char *once, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	say_or_keep(once, format, args);
	va_end(args);
}

void rh_note(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	say_or_keep(NULL, format, args);
	va_end(args);
}

void rh_warn_once(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	say_or_keep(format, format, args);
	va_end(args);
}

struct rh_log_kept *rh_log_keep(struct rh_log_kept *kept)
{
	struct rh_log_kept *before = keeps;
	keeps = kept;
	return before;
}

void rh_log_say(struct rh_log_kept *kept)
{
	RH_ASSERT(kept != keeps);
	for (const struct rh_log_line *line = kept->first; line; line = line->next)
		say_line(line->format, "%s", line->text);
	rh_log_forget(kept);
}

void rh_log_forget(struct rh_log_kept *kept)
{
	for (struct rh_log_line *line = kept->first, *next; line; line = next) {
		next = line->next;
		free(line);
	}
	*kept = (struct rh_log_kept){0};
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
