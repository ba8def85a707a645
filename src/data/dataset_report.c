/* What is told of a dataset once it is read. A row is one of a file, a text a file of its own; packed rows are made of either. */
#include "core/log.h"
#include "data/data_internal.h"

/* Of a row whose tokens were counted but for the first few, about as many as its bytes let expect. */
static int reckon_length(const struct data_encoder *row, size_t *count)
{
	struct rh_text text = {0};
	int rc = rh_tokenizer_decode(row->tokenizer, row->ids.id, row->ids.count, RH_SPECIALS_KEEP, &text);
	if (!rc && text.length)
		*count = (size_t)((double)row->text.length / (double)text.length * (double)row->ids.count);
	rh_text_free(&text);
	return rc;
}

int data_note_length(struct rh_dataset *set, const struct data_encoder *row, size_t count)
{
	int is_counted = !row->is_cut && !row->is_truncated && !(row->kind == DATA_PAIR && count >= row->most_ids), is_about = 0;
	if (!is_counted && (row->kind == DATA_TEXT || row->kind == DATA_COMPLETION)) {
		int rc = reckon_length(row, &count);
		if (rc)
			return rc;
		is_about = 1;
	} else if (!is_counted) {
		set->has_longer = 1;
	}
	if ((int64_t)count > set->longest) {
		set->longest = (int64_t)count;
		set->longest_is_about = is_about;
	}
	return 0;
}

const char *data_longest(const struct rh_dataset *set, int64_t max_length, char out[DATA_LONGEST_BYTES])
{
	*out = 0;
	if (!set->has_longer && set->longest > max_length)
		snprintf(out, DATA_LONGEST_BYTES, " (the longest row has %s%lld tokens)", set->longest_is_about ? "about " : "",
		         (long long)set->longest);
	return out;
}

static void tell_size(const struct rh_dataset *set, const char *rows)
{
	long long read = (long long)set->read_rows, packed = (long long)set->rows, tokens = (long long)set->tokens,
	          trained = (long long)set->trained_tokens;
	if (set->row_length)
		rh_note("%s: %lld %s, %lld tokens, %lld of them trained; in %lld packed rows of up to %lld tokens, %.1f %% full", set->name,
		        read, rows, tokens, trained, packed, (long long)set->row_length,
		        100.0 * (double)set->tokens / ((double)set->rows * (double)set->row_length));
	else if (read == packed)
		rh_note("%s: %lld %s, %lld tokens, %lld of them trained", set->name, read, rows, tokens, trained);
	else
		rh_note("%s: %lld %s read, %lld taken: %lld tokens, %lld of them trained", set->name, read, rows, packed, tokens, trained);
}

static void tell_lost(const struct rh_dataset *set, const char *rows)
{
	const char *path = set->name;
	char longest[DATA_LONGEST_BYTES];
	data_longest(set, set->max_length, longest);
	if (set->dropped_rows)
		rh_note("%s: %lld %s dropped: they have no text or answer, or none of it within max_length", path,
		        (long long)set->dropped_rows, rows);
	if (set->cut_rows && set->has_answers)
		rh_note("%s: %lld %s cut to max_length%s; %lld answers lost their end by it", path, (long long)set->cut_rows, rows, longest,
		        (long long)set->cut_answers);
	else if (set->cut_rows)
		rh_note("%s: %lld %s cut to max_length%s%s", path, (long long)set->cut_rows, rows, longest,
		        set->is_packable ? "; packing: true with packing_strategy: wrapped trains on all of a long text" : "");
	if (set->split_rows)
		rh_note("%s: %lld %s longer than max_length go on in further pieces%s", path, (long long)set->split_rows, rows,
		        set->dropped_pieces ? ", of which those with nothing trained are left out" : "");
}

void rh_dataset_report(const struct rh_dataset *dataset)
{
	const char *path = dataset->name, *rows = dataset->read_rows && !dataset->other_rows ? "texts" : "rows";
	if (dataset->images) {
		rh_note("%s: %lld images of %lld classes, %lld tokens each", path, (long long)dataset->documents,
		        (long long)dataset->objective.labels, (long long)rh_images_tokens(dataset->images));
		return;
	}
	tell_size(dataset, rows);
	if (dataset->chat_template)
		rh_note("%s: conversations go through chat template %s%s", path, dataset->chat_template,
		        dataset->whole_conversations
		                ? " (every token is trained, also the user's; assistant_only_loss: true trains answers only)"
		                : "");
	if (*dataset->unread)
		rh_note("%s", dataset->unread);
	tell_lost(dataset, rows);
	if (dataset->two_bos_rows)
		rh_note("%s: %lld rows begin " RH_TWO_BOS "rows", path, (long long)dataset->two_bos_rows);
	if (dataset->prefix_mismatches)
		rh_note("%s: %lld rows where the prompt's tokens are not the first of the whole's (a token reaches across the border, "
		        "such as a space at the prompt's end): their mask may be off by a token",
		        path, (long long)dataset->prefix_mismatches);
}

void rh_dataset_report_split(const struct rh_dataset *dataset, const struct rh_dataset *held_out)
{
	rh_note("%s: eval_split holds out %lld of the %lld %srows", dataset->name, (long long)held_out->rows,
	        (long long)(dataset->rows + held_out->rows), dataset->row_length ? "packed " : "");
}
