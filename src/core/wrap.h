/* Lines for a person: on a terminal they are broken between words. */
#ifndef RH_CORE_WRAP_H
#define RH_CORE_WRAP_H

#include <stdio.h>

/* `text` and a line break. Where `stream` is a terminal that the text is too wide for, it is broken between words, and what follows is
 * indented, under the text of a line such as "name   text"; into a file or a pipe it goes as it is: one line. */
void rh_put_line(FILE *stream, const char *text);
/* The same for a terminal of so many columns; 0: none. */
void rh_put_line_in(FILE *stream, const char *text, int columns);
/* Of the terminal that `stream` is; 0: it is none, or does not say. */
int rh_columns_of(FILE *stream);

#endif
