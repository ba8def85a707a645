/* The forms that rows come in, each turned into one of the few that the encoder knows (enum data_kind). What a row becomes:
 *   prompt, completion     as it is: two strings, or two lists of messages
 *   messages               as it is; in a table, and wherever it is a string, its JSON text
 *   conversations          ShareGPT: a list of {from, value} becomes messages; `system` and `tools` beside it are taken
 *   instruction, output    Alpaca, with `input`, `history`, `system`: a prompt of messages and a completion of one where the model has
 *   question, answer         a chat template; else the prompt text that the Alpaca project trained with
 *   input, output
 *   text                   as it is; dataset_text_field names another key for it
 * The first row decides, in this order; a form that the columns map names a key of comes before all others. */
#ifndef RH_DATA_FORM_H
#define RH_DATA_FORM_H

#include "core/json.h"
#include "core/text.h"

enum data_kind {
	DATA_COMPLETION,
	DATA_COMPLETION_CHAT,
	DATA_MESSAGES,
	DATA_TEXT,
	DATA_LABELLED,
	DATA_PAIR, /* these four: data/preference.h */
	DATA_PAIR_CHAT,
	DATA_JUDGED,
	DATA_JUDGED_CHAT
};
enum data_form { FORM_COMPLETION, FORM_MESSAGES, FORM_SHAREGPT, FORM_ALPACA, FORM_QUESTION, FORM_INPUT, FORM_TEXT };

/* The names of the parts of ShareGPT's turns, as LLaMA-Factory's dataset_info.json may give them. NULL: the usual name. */
struct data_tags {
	const char *role, *content, *user, *assistant, *observation, *function, *system;
};

struct data_shape {
	enum data_form form;
	enum data_kind kind;
};

/* `columns` maps our keys to the file's: {"prompt": "title"}; NULL: none. `row` becomes the row under our keys. */
int data_columns_rename(const json_t *columns, const char *where, json_t **row) RH_MUST;
/* Does a form read this key? */
int data_form_has_key(const char *key);
/* -EINVAL names the row's keys and what to write. */
int data_form_find(const json_t *row, const json_t *columns, const char *text_key, const char *where, enum data_form *out) RH_MUST;
/* Appends the keys of `row`, after it was renamed, whose values the form leaves out: "'id', 'source'"; nothing where it reads all. */
int data_form_list_unread(enum data_form form, const json_t *row, const json_t *columns, struct rh_text *out) RH_MUST;
/* Converts *row, of form `form`, to what the encoder takes, of kind *kind. `has_template`: there is a template for conversations. */
int data_form_convert(enum data_form form, const struct data_tags *tags, int has_template, const char *where, json_t **row,
                      enum data_kind *kind) RH_MUST;

/* Inside: messages of a ShareGPT row. */
int data_sharegpt_convert(const struct data_tags *tags, const char *where, json_t **row) RH_MUST;
/* A string that begins as a JSON list or object becomes that; anything else stays. An empty string becomes null. */
int data_parse_cell(json_t *row, const char *key, const char *where) RH_MUST;
/* Appends {"role": role, "content": content} to `messages`. */
int data_add_message(json_t *messages, const char *role, const json_t *content) RH_MUST;
/* 1: the key is there, and neither null nor an empty string. */
int data_is_given(const json_t *row, const char *key);

#endif
