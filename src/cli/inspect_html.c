/* `inspect --html`: one page without scripts from elsewhere, in the reader's own light or dark. */
#include "cli/inspect.h"

#include "cli/output.h"
#include "observe/html.h"

#include <string.h>

static const char head[] =
        "<!doctype html><!-- " RH_MARK
        " -->\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n"
        "<title>Roundhouse: the data as the model sees them</title>\n<style>\n" RH_HTML_STYLE
        "b { font-weight: 400; color: var(--ink); background: var(--trained); } i { font-style: normal; color: var(--special); }\n"
        "s { opacity: .55; } u { text-decoration: none; color: var(--soft); }\n"
        "span:hover, b:hover, i:hover { outline: 1px solid var(--soft); }\n"
        "</style></head><body>\n";

/* A text's line breaks are tokens, too: each is shown by a sign. */
static int put_text(struct rh_text *out, const char *text, size_t bytes)
{
	for (const char *end = text + bytes; text < end;) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));
		int rc = rh_html_escape(out, text, (size_t)((stop ? stop : end) - text));
		if (!rc && stop)
			rc = rh_text_printf(out, "<u>↵</u>\n");
		if (rc)
			return rc;
		text = stop ? stop + 1 : end;
	}
	return 0;
}

static int put_findings(const struct inspect_summary *summary, struct rh_text *out)
{
	int rc = rh_text_printf(out, "<table><tr><th>Fault<th>Rows<th>Meaning<th>First ones</tr>\n");
	for (enum rh_lint lint = 0; !rc && lint < RH_LINTS; lint++) {
		const struct rh_finding *finding = &summary->set->finding[lint];
		rc = rh_text_printf(out, "<tr><td%s>%s<td class=n>%lld<td>%s<td class=soft>", finding->rows ? " class=bad" : "",
		                    rh_lint_name(lint), (long long)finding->rows, rh_lint_meaning(lint));
		for (int i = 0; !rc && i < RH_LINT_EXAMPLES && i < finding->rows; i++) {
			rc = rh_text_printf(out, "%s", i ? "<br>" : "");
			if (!rc)
				rc = put_text(out, finding->example[i], strlen(finding->example[i]));
		}
		if (!rc)
			rc = rh_text_printf(out, "</tr>\n");
	}
	return rc ? rc : rh_text_printf(out, "</table>\n");
}

int inspect_html_begin(const struct inspect_summary *summary, struct rh_text *out)
{
	const struct rh_dataset *set = summary->set;
	int rc = rh_text_printf(out, "%s<h1>", head);
	if (rc)
		return rc;
	rc = put_text(out, set->name, strlen(set->name));
	if (!rc)
		rc = rh_text_printf(out,
		                    "</h1>\n<p>%lld rows, %lld tokens, of which %lld are trained. A row has %lld tokens (median), "
		                    "95 in 100 have at most %lld, the longest has %lld. max_length is %lld.%s%s</p>\n",
		                    (long long)set->read_rows, (long long)set->tokens, (long long)set->trained_tokens,
		                    (long long)summary->median, (long long)summary->high, (long long)summary->longest,
		                    (long long)summary->config->max_length, set->chat_template ? " Chat template: " : "",
		                    set->chat_template ? set->chat_template : "");
	if (rc)
		return rc;
	rc = put_findings(summary, out);
	return rc ? rc
	          : rh_text_printf(out, "<p class=soft><b>Trained tokens</b> count in the loss. <i>Special tokens</i> stand for no text. "
	                                "<s>Faint ones</s> lie beyond max_length. A token shows its id where the pointer rests.</p>\n");
}

static int put_piece(const struct rh_preview *row, const struct rh_preview_piece *piece, struct rh_text *out)
{
	const char *tag = piece->trained ? "b" : piece->special ? "i" : "span";
	int rc = rh_text_printf(out, "%s<%s title=\"", piece->cut ? "<s>" : "", tag);
	for (size_t t = 0; !rc && t < piece->count; t++)
		rc = rh_text_printf(out, "%s%d", t ? " " : "", row->ids[piece->first + t]);
	if (rc)
		return rc;
	rc = rh_text_printf(out, "\">");
	if (rc)
		return rc;
	rc = put_text(out, row->text + piece->text, piece->bytes);
	return rc ? rc : rh_text_printf(out, "</%s>%s", tag, piece->cut ? "</s>" : "");
}

int inspect_html_row(const struct rh_preview *row, struct rh_text *out)
{
	int rc = rh_text_printf(out, "<section><h2>");
	if (rc)
		return rc;
	rc = put_text(out, row->where, strlen(row->where));
	if (!rc)
		rc = rh_text_printf(out, " <span class=soft>%s%s%lld tokens, ", row->answer ? row->answer : "", row->answer ? ", " : "",
		                    (long long)row->tokens);
	if (!rc && row->label >= 0)
		rc = rh_text_printf(out, "label %lld", (long long)row->label);
	else if (!rc)
		rc = rh_text_printf(out, "%lld trained%s", (long long)row->trained, row->kept < row->tokens ? ", cut at max_length" : "");
	if (!rc)
		rc = rh_text_printf(out, "</span></h2>\n<pre>");
	for (size_t i = 0; !rc && i < row->pieces; i++)
		rc = put_piece(row, &row->piece[i], out);
	if (!rc && row->shown < row->tokens)
		rc = rh_text_printf(out, "\n<u>... and %lld tokens more</u>", (long long)(row->tokens - row->shown));
	if (rc)
		return rc;
	rc = rh_text_printf(out, "</pre>\n<details><summary>ids</summary><pre>");
	for (size_t i = 0; !rc && i < row->pieces; i++) {
		const struct rh_preview_piece *piece = &row->piece[i];
		rc = rh_text_printf(out, piece->trained ? "<b>" : "");
		for (size_t t = 0; !rc && t < piece->count; t++)
			rc = rh_text_printf(out, "%s%d", t ? " " : "", row->ids[piece->first + t]);
		if (!rc)
			rc = rh_text_printf(out, piece->trained ? "</b> " : " ");
	}
	return rc ? rc : rh_text_printf(out, "</pre></details></section>\n");
}

int inspect_html_end(struct rh_text *out)
{
	return rh_text_printf(out, "</body></html>\n");
}
