/* Lines that a person types: on a terminal with editing and a history of this session, elsewhere as they come. */
#ifndef RH_CLI_LINES_H
#define RH_CLI_LINES_H

#include "core/error.h"
#include "core/text.h"

struct verb_lines;
/* From standard input. Editing and prompts only where that and standard output are terminals. */
int verb_lines_open(struct verb_lines **out) RH_MUST;
int verb_lines_are_typed(const struct verb_lines *lines);
/* The next line, without its line break, at the end of `out`, which has a NUL behind it: 1. 0: there are no more. The terminal shows
 * `prompt`, which must live as long as `lines`. */
int verb_lines_read(struct verb_lines *lines, const char *prompt, struct rh_text *out) RH_MUST;
/* What a person says at once: a line; lines that end in \ with those behind them; or all lines between two of """. As verb_lines_read. */
int verb_lines_read_turn(struct verb_lines *lines, struct rh_text *out) RH_MUST;
/* The history's latest entry. */
void verb_lines_remember(struct verb_lines *lines, const char *text);
/* NULL is legal. */
void verb_lines_close(struct verb_lines *lines);

#endif
