/* Lines for the person at the terminal, on stderr. stdout belongs to results (--json, generated text). */
#ifndef RH_CORE_LOG_H
#define RH_CORE_LOG_H

#include "core/error.h"

/* A plain statement of what the program does or found. */
void rh_note(const char *format, ...) RH_PRINTF(1, 2);

/* Something is degraded or surprising; the line says what and why. Each distinct format is said once. */
void rh_warn_once(const char *format, ...) RH_PRINTF(1, 2);

/* quiet: notes are dropped (tests); warnings stay. */
void rh_log_quiet(int quiet);

/* Called before and after every line, so that a progress bar on the same terminal can step aside. May be NULL. */
void rh_log_hooks(void (*before)(void *), void (*after)(void *), void *context);

/* Lines that are kept instead of printed: those of work that runs in parallel, so that the order in which it ends changes nothing.
 * Zeroed: none. */
struct rh_log_line;
struct rh_log_kept {
	struct rh_log_line *first, *last;
};
/* From now on the calling thread's lines go to `kept`, NULL: to the terminal. Returns where they went before. */
struct rh_log_kept *rh_log_keep(struct rh_log_kept *kept);
/* Prints the kept lines as if the calling thread had just said them, and empties the list. */
void rh_log_say(struct rh_log_kept *kept);
void rh_log_forget(struct rh_log_kept *kept);

#endif
