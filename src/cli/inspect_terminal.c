/* A row on a terminal: its text with what is trained in colour, then its ids. */
#include "cli/inspect.h"

#include <string.h>

/* Foreground and background that read on light and on dark terminals alike. */
#define TRAINED "\033[30;42m"
#define SPECIAL "\033[36m"
#define FAINT   "\033[2m"
#define PLAIN   "\033[0m"

enum run { RUN_PLAIN, RUN_TRAINED, RUN_SPECIAL, RUN_CUT };

static enum run run_of(const struct rh_preview_piece *piece)
{
	return piece->cut ? RUN_CUT : piece->trained ? RUN_TRAINED : piece->special ? RUN_SPECIAL : RUN_PLAIN;
}

static void open_run(FILE *out, enum run run, enum inspect_colours colours)
{
	static const char *const colour[] = {"", TRAINED, SPECIAL, FAINT};
	static const char *const mark[] = {"", "«", "", ""};
	fputs(colours == INSPECT_COLOURS ? colour[run] : mark[run], out);
}

static void close_run(FILE *out, enum run run, enum inspect_colours colours)
{
	if (colours == INSPECT_COLOURS)
		fputs(run == RUN_PLAIN ? "" : PLAIN, out);
	else
		fputs(run == RUN_TRAINED ? "»" : "", out);
}

/* Control characters of the text must not reach the terminal. A newline shows itself, as whether it is trained matters; colours end
 * before it, or the background would fill the line. */
static void put_text(FILE *out, const char *text, size_t bytes, enum run run, enum inspect_colours colours)
{
	for (size_t i = 0; i < bytes; i++) {
		unsigned char byte = (unsigned char)text[i];
		if (byte == '\n') {
			fputs("↵", out);
			if (colours == INSPECT_COLOURS)
				close_run(out, run, colours);
			fputs("\n", out);
			if (colours == INSPECT_COLOURS)
				open_run(out, run, colours);
		} else if (byte == '\t') {
			fputs("⇥", out);
		} else if (byte == '\r') {
			fputs("␍", out);
		} else if (byte < 0x20 || byte == 0x7f || (byte == 0xc2 && i + 1 < bytes && (unsigned char)text[i + 1] < 0xa0)) {
			fputs("�", out);
			i += byte == 0xc2;
		} else {
			fputc(byte, out);
		}
	}
}

/* As C0 and C1 alike. */
static void put_name(FILE *out, const char *name)
{
	put_text(out, name, strlen(name), RUN_PLAIN, INSPECT_MARKS);
}

void inspect_print_row(FILE *out, const struct rh_preview *row, enum inspect_colours colours)
{
	put_name(out, row->where);
	if (row->answer)
		fprintf(out, ", %s", row->answer);
	fprintf(out, ": %lld tokens, ", (long long)row->tokens);
	if (row->label >= 0)
		fprintf(out, "label %lld\n", (long long)row->label);
	else
		fprintf(out, "%lld trained%s\n", (long long)row->trained, row->kept < row->tokens ? ", cut at max_length" : "");
	enum run run = RUN_PLAIN;
	for (size_t i = 0; i < row->pieces; i++) {
		const struct rh_preview_piece *piece = &row->piece[i];
		if (run_of(piece) != run) {
			close_run(out, run, colours);
			run = run_of(piece);
			open_run(out, run, colours);
		}
		put_text(out, row->text + piece->text, piece->bytes, run, colours);
	}
	close_run(out, run, colours);
	if (row->shown < row->tokens)
		fprintf(out, "\n... and %lld tokens more (--html FILE.html shows them)", (long long)(row->tokens - row->shown));
	fputs("\nids:", out);
	run = RUN_PLAIN;
	for (size_t i = 0; i < row->pieces; i++) {
		const struct rh_preview_piece *piece = &row->piece[i];
		fputc(' ', out);
		run = run_of(piece);
		open_run(out, run, colours);
		for (size_t t = 0; t < piece->count; t++)
			fprintf(out, "%s%d", t ? " " : "", row->ids[piece->first + t]);
		close_run(out, run, colours);
	}
	fputs(row->shown < row->tokens ? " ...\n\n" : "\n\n", out);
}
