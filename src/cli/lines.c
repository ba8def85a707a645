#include "cli/lines.h"

#include "core/alloc.h"

#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HISTORY_MOST = 1000 };

struct verb_lines {
	EditLine *editor; /* NULL: no terminal */
	History *history;
	const char *prompt;
	char *line; /* getline's */
	size_t capacity;
};

static char *show_prompt(EditLine *editor)
{
	struct verb_lines *lines = NULL;
	el_get(editor, EL_CLIENTDATA, &lines);
	return (char *)(uintptr_t)lines->prompt;
}

static int open_editor(struct verb_lines *lines)
{
	HistEvent event;
	/* the editor counts characters: without a locale that has them it would take bytes for some */
	if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
		setlocale(LC_CTYPE, "C.UTF-8");
	lines->editor = el_init("roundhouse", stdin, stdout, stderr);
	lines->history = history_init();
	if (!lines->editor || !lines->history)
		return -ENOMEM;
	history(lines->history, &event, H_SETSIZE, HISTORY_MOST);
	history(lines->history, &event, H_SETUNIQUE, 1);
	el_set(lines->editor, EL_CLIENTDATA, lines);
	el_set(lines->editor, EL_PROMPT, show_prompt);
	el_set(lines->editor, EL_EDITOR, "emacs");
	el_set(lines->editor, EL_SIGNAL, 1); /* the terminal is as it was after Ctrl-C and Ctrl-Z */
	el_set(lines->editor, EL_HIST, history, lines->history);
	el_source(lines->editor, NULL); /* ~/.editrc */
	return 0;
}

int verb_lines_open(struct verb_lines **out)
{
	struct verb_lines *lines = rh_alloc(1, sizeof *lines);
	int rc = lines ? 0 : -ENOMEM;
	if (!rc && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
		rc = open_editor(lines);
	if (rc)
		verb_lines_close(lines);
	else
		*out = lines;
	return rc;
}

int verb_lines_are_typed(const struct verb_lines *lines)
{
	return lines->editor != NULL;
}

int verb_lines_read(struct verb_lines *lines, const char *prompt, struct rh_text *out)
{
	const char *line;
	ssize_t length;
	lines->prompt = prompt;
	if (lines->editor) {
		int count = 0;
		line = el_gets(lines->editor, &count);
		length = line ? count : -1;
	} else {
		length = getline(&lines->line, &lines->capacity, stdin);
		line = lines->line;
	}
	if (length < 0 || (lines->editor && !length))
		return 0;
	while (length && (line[length - 1] == '\r' || line[length - 1] == '\n'))
		length--;
	int rc = rh_text_append(out, line, (size_t)length);
	return rc ? rc : 1;
}

/* Appends lines until one closes the block. */
static int read_block(struct verb_lines *lines, struct rh_text *out)
{
	static const char fence[] = "\"\"\"";
	for (;;) {
		char *end = strstr(out->bytes, fence);
		if (end) {
			out->length = (size_t)(end - out->bytes);
			out->bytes[out->length] = 0;
			return 1;
		}
		if (out->length && rh_text_append(out, "\n", 1))
			return -ENOMEM;
		int got = verb_lines_read(lines, ". ", out);
		if (got <= 0)
			return got < 0 ? got : out->length > 0; /* nothing more comes: the block ends here */
	}
}

int verb_lines_read_turn(struct verb_lines *lines, struct rh_text *out)
{
	int got = verb_lines_read(lines, "> ", out);
	if (got > 0 && !strncmp(out->bytes, "\"\"\"", 3)) {
		memmove(out->bytes, out->bytes + 3, out->length - 3 + 1);
		out->length -= 3;
		return read_block(lines, out);
	}
	while (got > 0 && out->length && out->bytes[out->length - 1] == '\\') {
		out->bytes[out->length - 1] = '\n';
		got = verb_lines_read(lines, ". ", out);
		if (!got)
			return 1;
	}
	return got;
}

void verb_lines_remember(struct verb_lines *lines, const char *text)
{
	HistEvent event;
	if (lines->history)
		history(lines->history, &event, H_ENTER, text);
}

void verb_lines_close(struct verb_lines *lines)
{
	if (!lines)
		return;
	if (lines->history)
		history_end(lines->history);
	if (lines->editor)
		el_end(lines->editor);
	free(lines->line);
	rh_free(lines);
}
