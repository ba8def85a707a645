/* `roundhouse inspect`: rows as the model will see them, and the faults of the data that stop a run. */
#include "cli/inspect.h"

#include "cli/output.h"
#include "cli/verbs.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "session/session.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS_IN_TERMINAL = 600, TOKENS_IN_HTML = 8192 };

/* Where rows go as they are shown. */
struct showing {
	const struct rh_config *config;
	enum inspect_colours colours;
	struct rh_text html;
	json_t *rows; /* --json */
};

static int show_json(const struct rh_preview *row, json_t *rows)
{
	json_t *ids = json_array(), *trained = json_array();
	for (size_t i = 0; ids && i < (size_t)row->tokens; i++)
		json_array_append_new(ids, json_integer(row->ids[i]));
	for (size_t i = 0; trained && i < row->pieces; i++)
		if (row->piece[i].trained && !row->piece[i].cut)
			json_array_append_new(trained, json_pack("[I, I]", (json_int_t)row->piece[i].first,
			                                         (json_int_t)(row->piece[i].first + row->piece[i].count)));
	json_t *item = json_pack("{s:s, s:s%, s:o, s:o, s:I}", "where", row->where, "text", row->text, row->text_bytes, "ids", ids,
	                         "trained", trained, "tokens", (json_int_t)row->tokens);
	int failed = !item || (row->answer && json_object_set_new(item, "answer", json_string(row->answer))) ||
	             (row->label >= 0 && json_object_set_new(item, "label", json_integer(row->label)));
	failed |= json_array_append_new(rows, item); /* takes the item over, or refuses NULL */
	return failed ? rh_fail(-ENOMEM, "%s: out of host memory", row->where) : 0;
}

static int show(void *context, const struct rh_preview *row)
{
	struct showing *showing = context;
	if (showing->config->json)
		return show_json(row, showing->rows);
	if (showing->config->html)
		return inspect_html_row(row, &showing->html);
	inspect_print_row(stdout, row, showing->colours);
	return 0;
}

static int compare_lengths(const void *a, const void *b)
{
	const int64_t *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

static int measure(const struct rh_dataset *set, struct inspect_summary *out)
{
	size_t count = (size_t)set->documents;
	int64_t *length = rh_alloc(count, sizeof *length);
	if (!length)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++)
		length[i] = set->document_start[i + 1] - set->document_start[i] - rh_task_classifies(set->objective.task);
	qsort(length, count, sizeof *length, compare_lengths);
	out->median = length[count / 2];
	out->high = length[(count * 95 + 99) / 100 - 1]; /* no less than the median */
	out->longest = length[count - 1];
	rh_free(length);
	return 0;
}

static json_t *findings_json(const struct rh_dataset *set)
{
	json_t *all = json_object();
	for (enum rh_lint lint = 0; lint < RH_LINTS; lint++) {
		const struct rh_finding *finding = &set->finding[lint];
		json_t *examples = json_array();
		for (int64_t i = 0; i < finding->rows && i < RH_LINT_EXAMPLES; i++)
			json_array_append_new(examples, json_string(finding->example[i]));
		json_object_set_new(all, rh_lint_name(lint),
		                    json_pack("{s:I, s:o}", "rows", (json_int_t)finding->rows, "examples", examples));
	}
	return all;
}

/* The rows, in the form that was asked for. */
static int print(const struct inspect_summary *summary, const struct rh_session *session)
{
	const struct rh_config *config = summary->config;
	const char *no_color = getenv("NO_COLOR");
	struct showing showing = {.config = config, .rows = json_array()};
	showing.colours = isatty(STDOUT_FILENO) && !(no_color && *no_color) ? INSPECT_COLOURS : INSPECT_MARKS;
	struct rh_objective objective = rh_session_objective(session);
	struct rh_preview_wish wish = {.part = config->train_file.count ? RH_DATASET_TRAIN : RH_DATASET_VALIDATION,
	                               .config = config,
	                               .objective = &objective,
	                               .tokenizer = session->tokenizer,
	                               .rows = config->rows,
	                               .most = config->json   ? INT64_MAX
	                                       : config->html ? TOKENS_IN_HTML
	                                                      : TOKENS_IN_TERMINAL};
	int rc = config->html ? inspect_html_begin(summary, &showing.html) : 0;
	if (!rc)
		rc = rh_dataset_preview(&wish, show, &showing);
	if (!rc && config->html) {
		rc = inspect_html_end(&showing.html);
		if (!rc)
			rc = rh_file_write_whole(config->html, showing.html.bytes, showing.html.length);
		if (!rc)
			rh_note("%s: rows and faults of the data, for a browser", config->html);
	}
	if (!rc && config->json)
		rc = verb_print_json(
		        json_pack("{s:I, s:I, s:I, s:{s:I, s:I, s:I}, s:o, s:O}", "rows_read", (json_int_t)summary->set->read_rows,
		                  "tokens", (json_int_t)summary->set->tokens, "trained_tokens", (json_int_t)summary->set->trained_tokens,
		                  "length", "median", (json_int_t)summary->median, "p95", (json_int_t)summary->high, "longest",
		                  (json_int_t)summary->longest, "findings", findings_json(summary->set), "rows", showing.rows));
	json_decref(showing.rows);
	rh_text_free(&showing.html);
	return rc;
}

static int load(const struct rh_config *config, const struct rh_session *session, struct rh_dataset *set, struct rh_dataset *held_out)
{
	struct rh_objective objective = rh_session_objective(session);
	int train = config->train_file.count > 0;
	int rc = rh_dataset_load_for(train ? RH_DATASET_TRAIN : RH_DATASET_VALIDATION, config, &objective, session->tokenizer, set);
	if (!rc)
		rh_dataset_report(set);
	if (!rc && train && config->validation_file.count) {
		rc = rh_dataset_load_for(RH_DATASET_VALIDATION, config, &objective, session->tokenizer, held_out);
		if (!rc)
			rh_dataset_report(held_out);
	} else if (!rc && train && config->eval_split > 0) {
		rc = rh_dataset_split(set, config->eval_split, config->data_seed, held_out);
		if (!rc)
			rh_dataset_report_split(set, held_out);
	}
	return rc;
}

/* What is measured: what a row became, of which a packed row may hold several. */
static const char *name_of_documents(const struct rh_dataset *set)
{
	if (set->judged)
		return "prompts with an answer";
	if (set->rows == set->documents && set->row_length)
		return "packed rows";
	return set->split_rows ? "rows or pieces" : "rows";
}

int verb_inspect(const struct rh_config *config)
{
	struct rh_session session;
	struct rh_dataset set = {0}, held_out = {0};
	struct inspect_summary summary = {.config = config, .set = &set, .held_out = &held_out};
	int verdict = 0, rc = config->html ? verb_check_output(config, "html", config->html, OUTPUT_HTML) : 0;
	if (!rc)
		rc = rh_session_open(config, RH_SESSION_INFERS, &session);
	if (rc)
		return rc;
	if (session.model_config->image_size)
		rc = rh_fail(-EINVAL, "inspect shows rows of text; %s reads images", rh_model_architecture(session.model_config));
	if (!rc)
		rc = rh_session_load_tokenizer(&session);
	if (!rc)
		rc = load(config, &session, &set, &held_out);
	if (!rc)
		rc = measure(&set, &summary);
	if (!rc)
		rh_note("%s of %lld tokens (median), 95 in 100 up to %lld, the longest %lld", name_of_documents(&set),
		        (long long)summary.median, (long long)summary.high, (long long)summary.longest);
	int is_plain = !config->json && !config->html; /* then the faults stand below the rows, where they are seen */
	if (!rc && is_plain)
		rc = print(&summary, &session);
	fflush(stdout);
	if (!rc) {
		verdict = rh_dataset_check(&set, &held_out, config);
		if (verdict && verdict != -EINVAL)
			rc = verdict;
		else if (verdict)
			rh_note("train would stop: %s", rh_error(verdict));
	}
	if (!rc && !is_plain)
		rc = print(&summary, &session);
	rh_dataset_free(&set);
	rh_dataset_free(&held_out);
	rh_session_close(&session);
	return rc ? rc : verdict ? VERB_SAYS_NO : 0;
}
