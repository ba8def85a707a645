#include "data/preview.h"

#include "core/alloc.h"
#include "data/data_internal.h"
#include "data/sources.h"

#include <string.h>

/* Tokens before a run that are decoded with it: decoders treat a text's first token apart. */
enum { CONTEXT = 8, RUN_MOST = 16 };

struct pieces {
	struct rh_text text, scratch;
	struct rh_preview_piece *piece;
	size_t count, capacity;
};

/* The text of tokens [first, end), as it stands behind those before it. */
static int decode_run(const struct rh_tokenizer *tokenizer, const int32_t *ids, size_t first, size_t end, struct rh_text *out,
                      size_t *begin)
{
	size_t from = first > CONTEXT ? first - CONTEXT : 0;
	out->length = 0;
	int rc = rh_tokenizer_decode(tokenizer, ids + from, first - from, RH_SPECIALS_KEEP, out);
	*begin = out->length;
	out->length = 0;
	return rc ? rc : rh_tokenizer_decode(tokenizer, ids + from, end - from, RH_SPECIALS_KEEP, out);
}

static int ends_in_pieces(const struct rh_text *text)
{
	static const char replacement[] = "\xEF\xBF\xBD"; /* what a decoder writes for half a character */
	return text->length >= 3 && !memcmp(text->bytes + text->length - 3, replacement, 3);
}

static int add_piece(struct pieces *pieces, const struct data_encoder *row, size_t first, size_t end, size_t begin, size_t kept)
{
	const char *bytes = pieces->scratch.bytes ? pieces->scratch.bytes : "";
	size_t length = pieces->scratch.length > begin ? pieces->scratch.length - begin : 0;
	int rc = rh_grow(&pieces->piece, &pieces->capacity, pieces->count + 1, sizeof *pieces->piece);
	if (rc)
		return rc;
	struct rh_preview_piece *piece = &pieces->piece[pieces->count++];
	*piece = (struct rh_preview_piece){.text = pieces->text.length,
	                                   .bytes = length,
	                                   .first = first,
	                                   .count = end - first,
	                                   /* nothing comes before a first token */
	                                   .trained = first > 0 && row->trained[first] == RH_MARK_TRAINED,
	                                   .special = rh_tokenizer_is_special(row->tokenizer, row->ids.id[first]),
	                                   .cut = first >= kept};
	return rh_text_append(&pieces->text, bytes + begin, length);
}

static int cut_to_pieces(struct pieces *pieces, const struct data_encoder *row, size_t shown, size_t kept)
{
	pieces->text.length = 0;
	pieces->count = 0;
	int rc = rh_text_append(&pieces->text, "", 0);
	for (size_t first = 0, end; !rc && first < shown; first = end) {
		size_t begin = 0;
		end = first;
		do {
			end++;
			rc = decode_run(row->tokenizer, row->ids.id, first, end, &pieces->scratch, &begin);
		} while (!rc && end < shown && end - first < RUN_MOST && ends_in_pieces(&pieces->scratch) &&
		         row->trained[end] == row->trained[first]);
		if (!rc)
			rc = add_piece(pieces, row, first, end, begin, kept);
	}
	return rc;
}

/* How one row is shown, and to whom. */
struct view {
	struct data_encoder encoder;
	struct pieces pieces;
	int64_t rows, most_rows;
	int (*show)(void *context, const struct rh_preview *row);
	void *context;
};

/* answer: as struct rh_preview has it. */
static int show_row(struct view *view, const struct data_encoder *row, const char *answer, const char *where)
{
	int has_label = rh_task_classifies(row->objective.task);
	size_t count = row->ids.count - (size_t)has_label, length = (size_t)row->config->max_length, kept = count < length ? count : length;
	int goes_on = data_rows_go_on(row->config);
	size_t shown = count < (size_t)view->most_rows ? count : (size_t)view->most_rows;
	int rc = cut_to_pieces(&view->pieces, row, shown, goes_on ? count : kept);
	if (rc)
		return rc;
	struct rh_preview preview = {.where = where,
	                             .answer = answer,
	                             .ids = row->ids.id,
	                             .tokens = (int64_t)count,
	                             .label = has_label ? row->ids.id[count] : -1,
	                             .kept = (int64_t)(goes_on ? count : kept),
	                             .shown = (int64_t)shown,
	                             .text = view->pieces.text.bytes,
	                             .text_bytes = view->pieces.text.length,
	                             .piece = view->pieces.piece,
	                             .pieces = view->pieces.count};
	for (size_t i = 1; i < (size_t)preview.kept; i++)
		preview.trained += row->trained[i] == RH_MARK_TRAINED;
	return view->show(view->context, &preview);
}

/* Each answer of a row by itself, with its prompt. */
static int show_answers(struct view *view, const char *where)
{
	const struct data_encoder *row = &view->encoder;
	size_t count = row->ids.count, first[3] = {0, row->second ? row->second : count, count};
	int rc = 0;
	for (int i = 0; !rc && i < (row->second ? 2 : 1); i++) {
		struct data_encoder one = *row; /* a view */
		one.ids.id += first[i];
		one.trained += first[i];
		one.ids.count = first[i + 1] - first[i];
		rc = show_row(view, &one, !row->second ? row->is_good ? "good" : "bad" : i ? "rejected" : "chosen", where);
	}
	return rc;
}

static int walk(struct view *view, const struct data_source *source)
{
	struct data_reader reader;
	const char *key = view->encoder.config->dataset_text_field;
	int rc = data_reader_open(source, key, data_encoder_has_template(&view->encoder), &reader);
	if (rc)
		return rc;
	reader.is_labelled = view->encoder.objective.task != RH_TASK_CAUSAL_LM;
	reader.preference = data_preference_wanted(view->encoder.config);
	while (!rc && reader.rows < view->rows) {
		json_t *row;
		rc = data_reader_next(&reader, &row);
		if (rc <= 0)
			break;
		view->encoder.lacks_template = data_reader_lacks_template(&reader);
		rc = data_encode(&view->encoder, reader.kind, row, reader.records.where.bytes);
		json_decref(row);
		if (!rc)
			rc = reader.preference ? show_answers(view, reader.records.where.bytes)
			                       : show_row(view, &view->encoder, NULL, reader.records.where.bytes);
	}
	data_reader_close(&reader);
	return rc;
}

int rh_dataset_preview(const struct rh_preview_wish *wish, int (*show)(void *context, const struct rh_preview *row), void *context)
{
	const struct rh_config *config = wish->config;
	const struct rh_list *files = wish->part == RH_DATASET_TRAIN ? &config->train_file : &config->validation_file;
	struct view view = {.rows = wish->rows, .most_rows = wish->most, .show = show, .context = context};
	struct data_sources sources;
	int rc = data_sources_find(files, config, DATA_UNWEIGHTED, &sources);
	if (rc)
		return rc;
	rc = data_encoder_open(config, wish->tokenizer, &view.encoder);
	if (!rc)
		rc = data_encoder_set_objective(&view.encoder, wish->objective);
	for (size_t i = 0; !rc && i < sources.count; i++)
		rc = walk(&view, &sources.source[i]);
	data_encoder_close(&view.encoder);
	data_sources_free(&sources);
	rh_text_free(&view.pieces.text);
	rh_text_free(&view.pieces.scratch);
	rh_free(view.pieces.piece);
	return rc;
}
