/* The fault of the calling thread: one line, made where the fault is known, printed once by main.
 *
 * A function that can fail returns 0 or a negative errno and has said what went wrong with rh_fail()
 * (what, where, how to mend it). Callers pass the code on; they do not add to the line unless they
 * know something the callee could not, for which there is rh_fail_in().
 *
 * One idiom passes it on. A function that owns resources: `int rc = step_one(); if (rc) goto out;` for
 * each step, and one `out:` that releases. A function that owns none returns at the first error. */
#ifndef RH_CORE_ERROR_H
#define RH_CORE_ERROR_H

#include <errno.h>
#include <stddef.h>

/* Bytes of a line at most, its end among them. */
enum { RH_ERROR_LINE = 1024 };

#define RH_MUST                   __attribute__((warn_unused_result))
#define RH_PRINTF(fmt_arg, first) __attribute__((format(printf, fmt_arg, first)))

/* Replaces the thread's line and returns `code` (a negative errno), so that `return rh_fail(-EINVAL, ...)` reads well. */
int rh_fail(int code, const char *format, ...) RH_PRINTF(2, 3);

/* Puts "context: " before the thread's line; returns `code`. */
int rh_fail_in(int code, const char *format, ...) RH_PRINTF(2, 3);

/* The thread's line, or strerror of `code` where nobody said one. Valid until the thread's next rh_fail. */
const char *rh_error(int code);

/* Takes over a line that another thread made (as rh_error() gave it there); returns `code`. */
int rh_fail_copy(int code, const char *line);

void rh_error_clear(void);

/* Exchanges the thread's line for this one, "": none. So cleaning up after a fault can keep the fault's line. */
void rh_error_swap(char other[RH_ERROR_LINE]);

/* Assertions are for our own mistakes and stay on in every build; never for input. */
#define RH_ASSERT(condition) ((condition) ? (void)0 : rh_assert_failed(#condition, __FILE__, __LINE__))
void rh_assert_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

#endif
