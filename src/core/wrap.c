#include "core/wrap.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { INDENT = 2, INDENT_MOST = 24, COLUMNS_LEAST = 40 }; /* in narrower terminals the terminal's own breaks do as well */

/* Columns of a word, or of the rest of a line: characters, whatever their bytes. */
static int width_of(const char *text, size_t bytes)
{
	int width = 0;
	for (size_t i = 0; i < bytes; i++)
		width += ((unsigned char)text[i] & 0xc0) != 0x80;
	return width;
}

/* Where the text of "name   text" begins. */
static int indent_of(const char *text, size_t length)
{
	size_t at = strspn(text, " "), blanks = 0;
	for (; at < length && blanks < 2; at++)
		blanks = text[at] == ' ' ? blanks + 1 : 0;
	while (at < length && text[at] == ' ')
		at++;
	return blanks == 2 && at < length && at <= INDENT_MOST ? (int)at : INDENT;
}

/* One line, which holds no line break. */
static void put_broken(FILE *stream, const char *text, size_t length, int columns)
{
	int used = 0, indent = indent_of(text, length);
	for (size_t at = 0; at < length;) {
		size_t blanks = strspn(text + at, " "), word;
		blanks = blanks < length - at ? blanks : length - at;
		word = strcspn(text + at + blanks, " \n");
		word = word < length - at - blanks ? word : length - at - blanks;
		int width = width_of(text + at, blanks + word);
		if (used && used + width > columns && word) {
			fprintf(stream, "\n%*s", indent, "");
			at += blanks;
			blanks = 0;
			used = indent;
			width = width_of(text + at, word);
		}
		fwrite(text + at, 1, blanks + word, stream);
		used += width;
		at += blanks + word;
	}
}

void rh_put_line_in(FILE *stream, const char *text, int columns)
{
	while (*text) {
		size_t length = strcspn(text, "\n");
		if (columns < COLUMNS_LEAST || width_of(text, length) <= columns)
			fwrite(text, 1, length, stream);
		else
			put_broken(stream, text, length, columns);
		text += length;
		if (*text && *++text)
			fputc('\n', stream);
	}
	fputc('\n', stream);
}

int rh_columns_of(FILE *stream)
{
	struct winsize size = {0};
	return isatty(fileno(stream)) && !ioctl(fileno(stream), TIOCGWINSZ, &size) ? size.ws_col : 0;
}

void rh_put_line(FILE *stream, const char *text)
{
	rh_put_line_in(stream, text, rh_columns_of(stream));
}
