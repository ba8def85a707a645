/* The page's sections beside its curves. */
#include "ckpt/verify.h"
#include "core/alloc.h"
#include "core/file.h"
#include "observe/html.h"
#include "train/page_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int page_put_text(struct rh_text *out, const char *text)
{
	return rh_html_escape(out, text, strlen(text));
}

/* Which run a part is of, where there are several. */
static int put_name(const struct page_run *run, size_t count, struct rh_text *out)
{
	int rc = count > 1 ? rh_text_printf(out, "<p>") : 0;
	if (!rc && count > 1)
		rc = page_put_text(out, run->dir);
	return rc || count < 2 ? rc : rh_text_printf(out, "</p>\n");
}

/* ---- where the time went ---- */

static double time_of(const struct page_run *run, int part)
{
	return page_sum(run, (enum page_column)(PAGE_TIMES + part));
}

/* The longest wait, and which setting makes it shorter; nothing where no wait is worth a word. */
static int put_advice(const struct page_run *run, double all, struct rh_text *out)
{
	static const char *const mends[RH_TIME_PARTS] = {
	        NULL, "a larger gradient_accumulation_steps or per_device_train_batch_size lets each upload of weights serve more tokens",
	        "more tokens in a micro-batch, or a larger max_vram, lets more lie on the device",
	        "a larger gradient_accumulation_steps lets gradients leave less often",
	        "optimizer_staleness: 1 lets the optimizer work beside the next step (another result)"};
	const double worth = 0.1;
	int longest = RH_TIME_WEIGHTS;
	for (int p = RH_TIME_WEIGHTS; p < RH_TIME_PARTS; p++)
		longest = time_of(run, p) > time_of(run, longest) ? p : longest;
	if (time_of(run, longest) < worth * all)
		return 0;
	return rh_text_printf(out, "<p class=soft>The longest wait, %s, is %.0f %% of the time: %s.</p>\n",
	                      longest == RH_TIME_WEIGHTS ? "for weights" : rh_time_part_name((enum rh_time_part)longest),
	                      100 * time_of(run, longest) / all, mends[longest]);
}

static int put_bar(const struct page_run *run, double all, struct rh_text *out)
{
	int rc = rh_text_printf(out, "<div class=bar>");
	for (int p = 0; !rc && p < RH_TIME_PARTS; p++)
		rc = rh_text_printf(out, "<div class=f%d style=\"width:%.2f%%\" title=\"%s\"></div>", p, 100 * time_of(run, p) / all,
		                    rh_time_part_name((enum rh_time_part)p));
	rc = rc ? rc : rh_text_printf(out, "</div><p>");
	for (int p = 0; !rc && p < RH_TIME_PARTS; p++)
		if (time_of(run, p) > 0)
			rc = rh_text_printf(out, "<span class=part><span class=\"key f%d\"></span>%s %.1f %%</span> &nbsp; ", p,
			                    rh_time_part_name((enum rh_time_part)p), 100 * time_of(run, p) / all);
	return rc ? rc : rh_text_printf(out, "</p>\n");
}

int page_put_time(const struct page_run *runs, size_t count, struct rh_text *out)
{
	int rc = rh_text_printf(out, "<section><h2>Where the devices' time went</h2>\n");
	for (size_t r = 0; !rc && r < count; r++) {
		double all = 0;
		for (int p = 0; p < RH_TIME_PARTS; p++)
			all += time_of(&runs[r], p);
		if (!(all > 0))
			continue;
		rc = put_name(&runs[r], count, out);
		if (!rc)
			rc = put_bar(&runs[r], all, out);
		if (!rc)
			rc = put_advice(&runs[r], all, out);
	}
	return rc ? rc : rh_text_printf(out, "</section>\n");
}

/* ---- data ---- */

static int put_findings(const struct page_run *run, struct rh_text *out)
{
	json_t *findings = (json_t *)(uintptr_t)page_fact_json(run, "run.data.findings"), *finding;
	const char *name;
	int rc = 0;
	json_object_foreach(findings, name, finding)
	{
		const char *meaning = json_string_value(json_object_get(finding, "meaning"));
		if (!rc)
			rc = rh_text_printf(out, "<tr><td>");
		if (!rc)
			rc = page_put_text(out, name);
		if (!rc)
			rc = rh_text_printf(out, "<td class=n>%lld<td class=soft>",
			                    (long long)json_integer_value(json_object_get(finding, "rows")));
		if (!rc)
			rc = page_put_text(out, meaning ? meaning : "");
	}
	if (!rc && !json_object_size(findings))
		rc = rh_text_printf(out, "<tr><td>faults<td class=n>0<td class=soft>none was found in the rows");
	return rc;
}

int page_put_data(const struct page_run *runs, size_t count, struct rh_text *out)
{
	static const char *const rows[][2] = {
	        {"rows in the files", "run.data.read_rows"},   {"rows trained on", "run.data.rows"},
	        {"rows held out", "run.data.held_out_rows"},   {"tokens in an epoch", "run.data.tokens"},
	        {"tokens trained", "run.data.trained_tokens"}, {"rows cut at max_length", "run.data.cut_rows"}};
	int rc = 0, has_any = 0;
	for (size_t r = 0; !rc && r < count; r++) {
		if (!json_is_object(page_fact_json(&runs[r], "run.data")))
			continue;
		rc = has_any++ ? 0 : rh_text_printf(out, "<section><h2>Data</h2>\n");
		if (!rc)
			rc = put_name(&runs[r], count, out);
		if (!rc)
			rc = rh_text_printf(out, "<table>\n");
		for (size_t i = 0; !rc && i < sizeof rows / sizeof *rows; i++)
			rc = rh_text_printf(out, "<tr><td>%s<td class=n>%.0f<td>", rows[i][0], fmax(page_fact(&runs[r], rows[i][1]), 0));
		if (!rc)
			rc = put_findings(&runs[r], out);
		if (!rc)
			rc = rh_text_printf(out, "</table>\n");
	}
	return rc || !has_any ? rc : rh_text_printf(out, "</section>\n");
}

/* ---- answers ---- */

static int put_answer(const struct page_answer *answer, struct rh_text *out)
{
	const char *text = json_string_value(json_object_get(answer->line, "answer"));
	int has_ended = json_is_true(json_object_get(answer->line, "ended")),
	    rc = rh_text_printf(out, "<tr><td class=n>%lld<td><pre>", (long long)answer->step);
	if (!rc)
		rc = page_put_text(out, text);
	return rc ? rc
	          : rh_text_printf(out, "</pre>%s",
	                           !has_ended ? "<span class=soft>...</span>"
	                           : !*text   ? "<span class=soft>(ended at once)</span>"
	                                      : "");
}

/* A prompt's answers, the latest first; those before it are folded. */
static int put_prompt(const struct page_run *run, int64_t sample, struct rh_text *out)
{
	size_t shown = 0;
	int rc = 0;
	for (size_t i = run->answers; !rc && i-- > 0;) {
		const struct page_answer *answer = &run->answer[i];
		const char *prompt = json_string_value(json_object_get(answer->line, "prompt"));
		if (answer->sample != sample)
			continue;
		if (!shown)
			rc = rh_text_printf(out, "<p><b>");
		if (!rc && !shown)
			rc = page_put_text(out, prompt ? prompt : "");
		if (!rc && !shown)
			rc = rh_text_printf(out, "</b></p><table>\n");
		if (!rc && shown == 1)
			rc = rh_text_printf(out, "</table><details><summary>before that</summary><table>\n");
		if (!rc)
			rc = put_answer(answer, out);
		shown++;
	}
	return rc || !shown ? rc : rh_text_printf(out, shown > 1 ? "</table></details>\n" : "</table>\n");
}

int page_put_answers(const struct page_run *runs, size_t count, struct rh_text *out)
{
	int rc = 0, has_any = 0;
	for (size_t r = 0; !rc && r < count; r++) {
		int64_t most = -1;
		for (size_t i = 0; i < runs[r].answers; i++)
			most = runs[r].answer[i].sample > most ? runs[r].answer[i].sample : most;
		if (most < 0)
			continue;
		rc = has_any++ ? 0 : rh_text_printf(out, "<section><h2>Answers to sample_prompts, by step</h2>\n");
		if (!rc)
			rc = put_name(&runs[r], count, out);
		for (int64_t sample = 0; !rc && sample <= most; sample++)
			rc = put_prompt(&runs[r], sample, out);
	}
	return rc || !has_any ? rc : rh_text_printf(out, "</section>\n");
}

/* ---- configurations ---- */

/* The value of a key in "key: value" lines; its length, 0: it is not there. */
static size_t value_of(const char *config, const char *key, size_t length, const char **value)
{
	for (const char *line = config; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (!strncmp(line, key, length) && line[length] == ':') {
			*value = line + length + 1 + strspn(line + length + 1, " ");
			return strcspn(*value, "\n");
		}
	*value = "";
	return 0;
}

static int put_difference(const struct page_run *runs, size_t count, const char *key, size_t length, int *has_any, struct rh_text *out)
{
	const char *first, *value;
	size_t first_length = value_of(runs[0].config, key, length, &first), bytes;
	int differs = 0, rc = 0;
	for (size_t r = 1; r < count; r++) {
		bytes = value_of(runs[r].config, key, length, &value);
		differs |= bytes != first_length || memcmp(value, first, bytes) != 0;
	}
	if (!differs)
		return 0;
	if (!(*has_any)++)
		rc = rh_text_printf(out, "<section><h2>Keys that differ</h2><div class=scroll><table>\n");
	if (!rc)
		rc = rh_text_printf(out, "<tr><td>%.*s", (int)length, key);
	for (size_t r = 0; !rc && r < count; r++) {
		bytes = value_of(runs[r].config, key, length, &value);
		rc = rh_text_printf(out, "<td>");
		if (!rc)
			rc = rh_html_escape(out, value, bytes);
	}
	return rc;
}

int page_put_differences(const struct page_run *runs, size_t count, struct rh_text *out)
{
	int rc = 0, has_any = 0;
	for (size_t r = 0; r < count; r++)
		if (!runs[r].config)
			return 0;
	for (const char *line = count > 1 ? runs[0].config : NULL; !rc && line && *line;
	     line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		size_t length = strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_");
		if (length && line[length] == ':')
			rc = put_difference(runs, count, line, length, &has_any, out);
	}
	return rc || !has_any ? rc : rh_text_printf(out, "</table></div></section>\n");
}

/* ---- what lies beside the metrics ---- */

static int put_folded(const char *heading, const char *text, size_t bytes, struct rh_text *out)
{
	int rc = rh_text_printf(out, "<details><summary>%s</summary><pre>", heading);
	if (!rc)
		rc = rh_html_escape(out, text, bytes);
	return rc ? rc : rh_text_printf(out, "</pre></details>\n");
}

static int put_picture(const char *text, size_t bytes, struct rh_text *out)
{
	const char *svg = strstr(text, "<svg");
	int rc = rh_text_printf(out, "<section><h2>One step: what each device does when</h2>\n"
	                             "<p class=\"soft tools\"><button type=button data-zoom=1.6>closer</button> <button type=button "
	                             "data-zoom=0.625>further</button> <button type=button data-zoom=0>whole</button> or Ctrl and the "
	                             "wheel; drag to move</p>\n<div class=\"scroll zoom\">\n");
	if (!rc && svg)
		rc = rh_text_append(out, svg, bytes - (size_t)(svg - text));
	return rc ? rc : rh_text_printf(out, "</div></section>\n");
}

/* Nothing where the file is not there. */
static int put_file(const char *dir, const char *name, const char *heading, struct rh_text *out)
{
	struct rh_bytes bytes = {0};
	char *path = rh_path_join(dir, name);
	int rc = path ? 0 : -ENOMEM;
	if (!rc && rh_file_exists(path))
		rc = rh_file_load(path, &bytes);
	if (!rc && bytes.length)
		rc = heading ? put_folded(heading, bytes.bytes, bytes.length, out) : put_picture(bytes.bytes, bytes.length, out);
	rh_bytes_free(&bytes);
	rh_free(path);
	return rc;
}

static int put_program(const struct page_run *run, struct rh_text *out)
{
	static const char *const said[] = {"run.program", "run.model", "run.method", "run.dtype", "run.device"};
	int rc = rh_text_printf(out, "<p class=soft>"), has_any = 0;
	for (size_t i = 0; !rc && i < sizeof said / sizeof *said; i++) {
		const char *text = json_string_value(page_fact_json(run, said[i]));
		if (text && has_any++)
			rc = rh_text_printf(out, ", ");
		if (!rc && text)
			rc = page_put_text(out, text);
	}
	double trained = page_fact(run, "run.trained_parameters"), all = page_fact(run, "run.parameters");
	if (!rc && all > 0)
		rc = rh_text_printf(out, "; %.4g M parameters, %.4g M trained", all / 1e6, trained / 1e6);
	return rc ? rc : rh_text_printf(out, "</p>\n");
}

int page_put_files(const struct page_run *run, struct rh_text *out)
{
	int rc = put_file(run->dir, "trace.svg", NULL, out);
	if (!rc)
		rc = rh_text_printf(out, "<section><h2>");
	if (!rc)
		rc = page_put_text(out, run->dir);
	if (!rc)
		rc = rh_text_printf(out, "</h2>\n");
	if (!rc)
		rc = put_program(run, out);
	if (!rc && run->config)
		rc = put_folded("Configuration, every key as it was resolved", run->config, strlen(run->config), out);
	if (!rc)
		rc = put_file(run->dir, "adapter_config.json", "adapter_config.json", out);
	if (!rc)
		rc = put_file(run->dir, RH_SUMS_NAME, "Files with their SHA-256 sums", out);
	return rc ? rc : rh_text_printf(out, "</section>\n");
}
