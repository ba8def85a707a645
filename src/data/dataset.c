#include "data/dataset.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/minmax.h"
#include "data/data_internal.h"
#include "data/sources.h"

#include <math.h>
#include <string.h>

/* The most that an image may take once decoded: a share of max_ram, or without it so much. */
enum { IMAGE_SHARE = 8, IMAGE_BYTES = 512 << 20 };

/* A dataset that grows by documents. */
struct builder {
	struct rh_dataset *set;
	size_t id_capacity, trained_capacity, start_capacity, origin_capacity, judged_capacity;
	struct data_hashes seen; /* of rows */
	int64_t copies;          /* of rows, as data_weights has them */
};

static int add_origin(struct builder *builder, const struct rh_origin *origin)
{
	struct rh_dataset *set = builder->set;
	int rc = rh_grow(&set->origin, &builder->origin_capacity, (size_t)set->origins + 1, sizeof *set->origin);
	if (!rc)
		set->origin[set->origins++] = *origin;
	return rc;
}

static int add_tokens(struct builder *builder, const int32_t *ids, const uint8_t *trained, size_t tokens)
{
	struct rh_dataset *set = builder->set;
	size_t end = (size_t)set->tokens + tokens;
	int rc = rh_grow(&set->ids, &builder->id_capacity, end, sizeof *set->ids);
	if (!rc)
		rc = rh_grow(&set->trained, &builder->trained_capacity, end, 1);
	if (rc)
		return rc;
	memcpy(set->ids + set->tokens, ids, tokens * sizeof *ids);
	memcpy(set->trained + set->tokens, trained, tokens);
	set->tokens = (int64_t)end;
	return 0;
}

static int add_document(struct builder *builder, const int32_t *ids, const uint8_t *trained, size_t tokens, const struct rh_origin *origin)
{
	struct rh_dataset *set = builder->set;
	size_t documents = (size_t)set->documents;
	int64_t start = set->tokens;
	int rc = rh_grow(&set->document_start, &builder->start_capacity, documents + 2, sizeof *set->document_start);
	if (!rc && origin)
		rc = add_origin(builder, origin);
	if (!rc)
		rc = add_tokens(builder, ids, trained, tokens);
	if (rc)
		return rc;
	set->trained[start] = 0; /* nothing comes before it */
	set->document_start[documents] = start;
	set->document_start[documents + 1] = set->tokens;
	set->documents++;
	return 0;
}

/* Targets among tokens [0, count) of a document that begins here. */
static int64_t count_trained(const uint8_t *trained, size_t count)
{
	int64_t sum = 0;
	for (size_t i = 1; i < count; i++)
		sum += trained[i] == RH_MARK_TRAINED;
	return sum;
}

/* The document is one of a row that says which answer is better: call it behind add_document. */
static int judge_document(struct builder *builder, struct rh_judged_document judged)
{
	struct rh_dataset *set = builder->set;
	int rc = rh_grow(&set->judged, &builder->judged_capacity, (size_t)set->documents, sizeof *set->judged);
	if (!rc)
		set->judged[set->documents - 1] = judged;
	return rc;
}

/* bfd_split: an overlong row goes on in further documents. */
static int add_pieces(struct builder *builder, const struct data_encoder *row, size_t max_length, struct rh_origin origin)
{
	size_t count = row->ids.count;
	int rc = 0;
	for (size_t at = 0; !rc && at < count; at += max_length) {
		size_t tokens = count - at < max_length ? count - at : max_length;
		if (!count_trained(row->trained + at, tokens)) {
			builder->set->dropped_pieces++;
			continue;
		}
		rc = add_document(builder, row->ids.id + at, row->trained + at, tokens, &origin);
		origin.hash = 0; /* the row counts once */
	}
	return rc;
}

/* A block in which nothing is trained is left out. */
static void drop_untrained_block(struct rh_dataset *set)
{
	int64_t start = set->documents ? set->document_start[set->documents - 1] : 0;
	if (!set->documents || count_trained(set->trained + start, (size_t)(set->tokens - start)))
		return;
	set->tokens = start;
	set->documents--;
	set->dropped_pieces++;
}

/* wrapped: the row goes on where the one before it ended, in blocks of max_length. A document's first token stays trained, unless it begins
 * a block. */
static int add_wrapped(struct builder *builder, const struct data_encoder *row, size_t max_length, struct rh_origin origin)
{
	struct rh_dataset *set = builder->set;
	size_t count = row->ids.count, tokens;
	int rc = add_origin(builder, &origin);
	for (size_t at = 0; !rc && at < count; at += tokens) {
		size_t filled = set->documents ? (size_t)(set->tokens - set->document_start[set->documents - 1]) : max_length;
		int begins = filled == max_length;
		tokens = begins ? max_length : max_length - filled;
		tokens = tokens < count - at ? tokens : count - at;
		if (begins) {
			drop_untrained_block(set);
			rc = add_document(builder, row->ids.id + at, row->trained + at, tokens, NULL);
		} else {
			rc = add_tokens(builder, row->ids.id + at, row->trained + at, tokens);
			set->document_start[set->documents] = set->tokens;
		}
	}
	return rc;
}

/* Finds the faults of a row by itself, whether or not the row is kept. */
static int check_row(struct builder *builder, const struct data_encoder *row, uint64_t hash, const char *where)
{
	struct rh_dataset *set = builder->set;
	int known = data_hashes_add(&builder->seen, hash);
	if (known < 0)
		return known;
	if (known)
		data_find(set, RH_LINT_DUPLICATE, where);
	int plain = row->kind == DATA_TEXT || row->kind == DATA_COMPLETION || row->kind == DATA_PAIR || row->kind == DATA_JUDGED;
	if (row->kind == DATA_LABELLED)
		return 0;
	set->conversation_rows += !plain;
	if (row->turn_end >= 0)
		set->turn_end = row->turn_end;
	if (plain ? !row->eos : row->lacks_end)
		data_find(set, RH_LINT_NO_END, where);
	if (row->writes_none)
		data_find(set, RH_LINT_NONE, where);
	if (!row->dropped[0])
		return 0;
	data_find(set, RH_LINT_DROPPED_ROLE, where);
	if (!set->finding[RH_LINT_DROPPED_ROLE].detail[0])
		memcpy(set->finding[RH_LINT_DROPPED_ROLE].detail, row->dropped, sizeof row->dropped);
	return 0;
}

/* Faults of a row with two answers. */
static void check_answers(struct builder *builder, const struct data_encoder *row, int is_cut, const char *where)
{
	struct rh_dataset *set = builder->set;
	if (row->is_equal)
		data_find(set, RH_LINT_EQUAL, where);
	if (row->has_no_prompt)
		data_find(set, RH_LINT_NO_PROMPT, where);
	if (is_cut)
		data_find(set, RH_LINT_CUT_ANSWER, where);
	set->cut_rows += is_cut;
	set->cut_answers += is_cut;
}

/* Its answers' documents, each cut by itself. Where the prompt fills max_length there is nothing to judge. */
static int add_answers(struct builder *builder, const struct data_encoder *row, const struct rh_config *config, const char *where,
                       struct rh_origin origin, int64_t copies)
{
	struct rh_dataset *set = builder->set;
	size_t most = (size_t)config->max_length, count = row->ids.count, first[3] = {0, row->second ? row->second : count, count};
	int answers = row->second ? 2 : 1, is_cut = 0, is_trained = !row->is_empty && row->prompt < most;
	set->read_rows++;
	set->prefix_mismatches += row->is_prefix_mismatch;
	set->two_bos_rows += row->has_two_bos;
	int rc = row->is_empty ? 0 : check_row(builder, row, origin.hash, where);
	for (int i = 0; i < answers && is_trained; i++) {
		size_t length = first[i + 1] - first[i], kept = length < most ? length : most;
		int cut_rc = data_note_length(set, row, length);
		if (cut_rc)
			return cut_rc;
		is_cut |= length > most;
		is_trained = kept > row->prompt + !row->prompt; /* nothing comes before a first token */
	}
	if (rc)
		return rc;
	if (!is_trained) {
		data_find(set, RH_LINT_UNTRAINED, where);
		set->dropped_rows++;
		return 0;
	}
	check_answers(builder, row, is_cut, where);
	for (int64_t n = 0; !rc && n < copies; n++)
		for (int i = 0; !rc && i < answers; i++) {
			size_t length = first[i + 1] - first[i], kept = length < most || !row->second ? length : most;
			struct rh_origin own = origin;
			own.hash = i ? 0 : origin.hash; /* the row counts once */
			rc = add_document(builder, row->ids.id + first[i], row->trained + first[i], kept, &own);
			int is_chosen = row->second ? i == 0 : row->is_good;
			if (!rc)
				rc = judge_document(builder, (struct rh_judged_document){(int32_t)row->prompt,
				                                                         is_chosen ? RH_ROLE_CHOSEN : RH_ROLE_REJECTED, 0});
		}
	return rc;
}

static int add_row(struct builder *builder, struct data_encoder *row, const struct rh_config *config, const char *where,
                   struct rh_origin origin, int64_t copies)
{
	struct rh_dataset *set = builder->set;
	if (config->preference.answers)
		return add_answers(builder, row, config, where, origin, copies);
	int has_label = rh_task_classifies(row->objective.task);
	size_t count = row->ids.count, max_length = (size_t)config->max_length + (size_t)has_label;
	int64_t all = count_trained(row->trained, count);
	int goes_on = data_rows_go_on(config) && all, is_wrapped = data_is_wrapped(config);
	size_t kept = count < max_length || goes_on ? count : max_length;
	set->read_rows++;
	set->prefix_mismatches += row->is_prefix_mismatch;
	set->two_bos_rows += row->has_two_bos;
	int rc = row->is_empty ? 0 : check_row(builder, row, origin.hash, where);
	if (!rc)
		rc = data_note_length(set, row, row->is_empty ? 0 : count - (size_t)has_label);
	if (rc)
		return rc;
	if (!count_trained(row->trained, kept)) {
		data_find(set, RH_LINT_UNTRAINED, where);
		set->dropped_rows++;
		return 0;
	}
	int lost = kept < count ? data_answer_is_cut(row, kept, where) : 0;
	if (lost < 0)
		return lost;
	if (lost)
		data_find(set, RH_LINT_CUT_ANSWER, where);
	set->split_rows += goes_on && count > max_length;
	set->cut_rows += kept < count || row->is_truncated;
	set->cut_answers += lost;
	for (int64_t i = 0; !rc && i < copies; i++)
		rc = is_wrapped ? add_wrapped(builder, row, max_length, origin)
		     : goes_on  ? add_pieces(builder, row, max_length, origin)
		                : add_document(builder, row->ids.id, row->trained, kept, &origin);
	return rc;
}

/* How often row `index` of a file of this weight is in an epoch: the whole part, and one more by lot. */
static int64_t count_copies(const struct rh_config *config, double weight, uint32_t file, int64_t index)
{
	enum { PARTS = 1 << 30 };
	double whole = floor(weight);
	uint64_t rest = (uint64_t)llround((weight - whole) * PARTS);
	if (!rest)
		return (int64_t)whole;
	return (int64_t)whole + (data_draw(config->data_seed, RH_PHILOX_WEIGHT, file, (uint64_t)index, PARTS) < rest);
}

/* The memory that max_ram leaves for a row, beside the program and the rows before it; 0: max_ram is not set. */
static int64_t row_room(const struct data_encoder *encoder, const struct rh_dataset *set)
{
	enum { LEAST = 1 << 20 }; /* where there is less, the plan says what the run lacks */
	int64_t taken =
	        RH_DATASET_PROGRAM_BYTES + (int64_t)rh_tokenizer_size(encoder->tokenizer) * RH_DATASET_ENTRY_BYTES + rh_dataset_bytes(set);
	return encoder->config->max_ram ? rh_max(LEAST, encoder->config->max_ram - taken) : 0;
}

static int read_file(struct builder *builder, struct data_encoder *encoder, const struct data_source *source, int32_t file)
{
	struct data_reader reader;
	const struct rh_config *config = encoder->config;
	struct rh_dataset *set = builder->set;
	int64_t rows = set->read_rows;
	int rc = data_reader_open(source, config->dataset_text_field, data_encoder_has_template(encoder), &reader);
	if (rc)
		return rc;
	reader.is_labelled = encoder->objective.task != RH_TASK_CAUSAL_LM;
	reader.preference = data_preference_wanted(config);
	while (!rc) {
		json_t *row;
		int64_t room = reader.records.row_room = row_room(encoder, set);
		rc = data_reader_next(&reader, &row);
		if (rc <= 0)
			break;
		const char *where = reader.records.where.bytes;
		int64_t values = reader.records.value_bytes;
		encoder->row_room = room ? rh_max(1, room - values) : 0;
		encoder->lacks_template = data_reader_lacks_template(&reader);
		rc = data_encode(encoder, reader.kind, row, where);
		json_decref(row);
		set->reading_bytes = rh_max(set->reading_bytes, rh_max(reader.records.row_bytes, values + encoder->row_bytes));
		struct rh_origin origin = {.line = reader.records.line, .file = file, .row = reader.records.row};
		if (rc)
			break;
		origin.hash = data_hash_row(encoder);
		int64_t copies = count_copies(config, source->weight, (uint32_t)file, reader.rows - 1);
		builder->copies += copies;
		rc = add_row(builder, encoder, config, where, origin, copies);
		set->other_rows += reader.records.format != DATA_DOCUMENT;
		set->has_answers |= reader.kind != DATA_TEXT && reader.kind != DATA_LABELLED;
		set->whole_conversations |=
		        reader.kind == DATA_MESSAGES && config->assistant_only_loss != RH_YES && config->completion_only_loss != RH_YES;
	}
	if (reader.unread.length && !*set->unread)
		snprintf(set->unread, sizeof set->unread, "%.120s: columns that are not read: %s", source->path, reader.unread.bytes);
	data_reader_close(&reader);
	if (!rc && set->read_rows == rows)
		rc = rh_fail(-EINVAL, "%s:1: the file holds no rows", source->path);
	return rc;
}

/* Origins name files after the sources are gone. */
static int name_files(struct rh_dataset *set, const struct data_sources *sources)
{
	set->file = rh_alloc(sources->count, sizeof *set->file);
	if (!set->file)
		return -ENOMEM;
	for (size_t i = 0; i < sources->count; i++, set->files++)
		if (!(set->file[i] = rh_strdup(sources->source[i].path)))
			return -ENOMEM;
	if (set->files > 1)
		snprintf(set->name, sizeof set->name, "%.120s and %zu more", set->file[0], set->files - 1);
	else
		snprintf(set->name, sizeof set->name, "%s", set->file[0]);
	return 0;
}

static int set_objective(struct data_encoder *encoder, const struct rh_objective *objective, struct rh_dataset *out)
{
	int rc = data_encoder_set_objective(encoder, objective);
	if (rc || objective->task == RH_TASK_CAUSAL_LM)
		return rc;
	out->objective = encoder->objective;
	out->objective.label_ids = NULL;
	out->vocabulary = rh_tokenizer_size(encoder->tokenizer);
	out->special = encoder->special;
	return 0;
}

static int fail_untrained(const struct rh_dataset *set, const struct rh_config *config)
{
	char longest[DATA_LONGEST_BYTES];
	return rh_fail(-EINVAL,
	               "%s: none of its %lld rows has a trained token within max_length %lld; raise max_length%s, or give them "
	               "text or answers",
	               set->name, (long long)set->read_rows, (long long)config->max_length, data_longest(set, config->max_length, longest));
}

static int read_files(enum rh_dataset_part part, const struct rh_config *config, const struct rh_objective *objective,
                      const struct rh_tokenizer *tokenizer, struct rh_dataset *out)
{
	const struct rh_list *files = part == RH_DATASET_TRAIN ? &config->train_file : &config->validation_file;
	struct data_sources sources;
	struct data_encoder encoder = {0};
	struct builder builder = {.set = out};
	int rc = data_sources_find(files, config, part == RH_DATASET_TRAIN ? DATA_WEIGHTED : DATA_UNWEIGHTED, &sources);
	if (rc)
		return rc;
	rc = name_files(out, &sources);
	if (!rc)
		rc = data_encoder_open(config, tokenizer, &encoder);
	if (!rc && objective)
		rc = set_objective(&encoder, objective, out);
	for (size_t i = 0; !rc && i < sources.count; i++)
		rc = read_file(&builder, &encoder, &sources.source[i], (int32_t)i);
	if (!rc && encoder.chat && !encoder.is_chat_checked && out->read_rows)
		rh_warn_once("chat_template has no effect on rows of plain text (%s): only conversations go through it",
		             out->has_answers ? "prompt and completion" : config->dataset_text_field);
	if (encoder.is_chat_checked)
		out->chat_template = !config->chat_template && rh_tokenizer_is_chat_template_set(tokenizer)
		                             ? "of the adapter"
		                             : rh_chat_template_name(encoder.chat);
	if (!rc && data_is_wrapped(config))
		drop_untrained_block(out);
	const struct rh_finding *dropped = &out->finding[RH_LINT_DROPPED_ROLE];
	if (!rc && !out->documents && dropped->rows == out->read_rows)
		rc = rh_fail(-EINVAL,
		             "%s: none of its %lld rows has a trained token: the chat template leaves each %s out; write a role "
		             "that it knows, such as user and assistant, or choose another chat_template",
		             out->name, (long long)out->read_rows, dropped->detail);
	else if (!rc && !out->documents && *encoder.last_role)
		rc = rh_fail(-EINVAL,
		             "%s: none of its %lld rows has a trained token: no turn is the assistant's, and only these are trained "
		             "(assistant_only_loss); one ends with role '%s'",
		             out->name, (long long)out->read_rows, encoder.last_role);
	else if (!rc && !builder.copies)
		rc = rh_fail(-EINVAL, "data_weights: none of the %lld rows of %s is taken: raise them", (long long)out->read_rows,
		             out->name);
	else if (!rc && !out->documents)
		rc = fail_untrained(out, config);
	if (!rc && out->documents >= UINT32_MAX)
		rc = rh_fail(-EINVAL, "%s: more than 2^32 documents; split the file", out->name);
	data_encoder_close(&encoder);
	data_hashes_free(&builder.seen);
	data_sources_free(&sources);
	return rc;
}

/* Images name themselves, so that no row is read here. */
static int read_images(enum rh_dataset_part part, const struct rh_config *config, const struct rh_objective *objective,
                       struct rh_dataset *out)
{
	const struct rh_list *paths = part == RH_DATASET_TRAIN ? &config->train_file : &config->validation_file;
	struct builder builder = {.set = out};
	if (config->packing || config->dataset_info || config->data_weights.count)
		return rh_fail(-EINVAL, "%s: has no meaning for images; leave it out",
		               config->packing        ? "packing"
		               : config->dataset_info ? "dataset_info"
		                                      : "data_weights");
	int rc = rh_images_open(&(struct rh_images_options){.paths = paths,
	                                                    .form = objective->image,
	                                                    .most_images = config->max_samples,
	                                                    .labels = objective->labels,
	                                                    .label_ids = objective->label_ids,
	                                                    .image_bytes = config->max_ram ? config->max_ram / IMAGE_SHARE : IMAGE_BYTES},
	                        &out->images);
	if (rc)
		return rc;
	out->objective = *objective;
	out->objective.label_ids = NULL;
	out->objective.image = NULL;
	snprintf(out->name, sizeof out->name, "%.140s%s", paths->item[0], paths->count > 1 ? " and more" : "");
	out->read_rows = rh_images_count(out->images);
	for (int64_t i = 0; !rc && i < out->read_rows; i++) {
		const int32_t ids[] = {(int32_t)i, rh_images_label(out->images, i)};
		rc = add_document(&builder, ids, (const uint8_t[]){RH_MARK_NONE, RH_MARK_TRAINED}, 2, NULL);
	}
	return rc;
}

/* A dataset with `order`'s documents of `from`, rows beginning at each first[row] (rows + 1). */
static int gather(const struct rh_dataset *from, const int64_t *order, const int64_t *first, int64_t rows, struct rh_dataset *out)
{
	struct builder builder = {.set = out};
	int rc = 0;
	out->objective = from->objective;
	out->preference = from->preference;
	out->special = from->special;
	out->vocabulary = from->vocabulary;
	out->images = rh_images_share(from->images);
	out->row_document = rh_alloc((size_t)rows + 1, sizeof *out->row_document);
	if (!out->row_document)
		return -ENOMEM;
	memcpy(out->row_document, first, ((size_t)rows + 1) * sizeof *first);
	out->rows = rows;
	for (int64_t i = 0; !rc && i < first[rows]; i++) {
		int64_t start = from->document_start[order[i]], end = from->document_start[order[i] + 1];
		rc = add_document(&builder, from->ids + start, from->trained + start, (size_t)(end - start),
		                  from->origins == from->documents ? &from->origin[order[i]] : NULL);
		if (!rc && from->judged)
			rc = judge_document(&builder, from->judged[order[i]]);
	}
	for (int64_t i = 0; i < out->tokens; i++)
		out->trained_tokens += out->trained[i] == RH_MARK_TRAINED;
	return rc;
}

/* `set` takes over the arrays and sizes of `fresh` and keeps all else. */
static void replace(struct rh_dataset *set, const struct rh_dataset *fresh)
{
	rh_free(set->ids);
	rh_free(set->trained);
	rh_free(set->document_start);
	rh_free(set->row_document);
	rh_free(set->origin);
	rh_free(set->judged);
	set->judged = fresh->judged;
	set->ids = fresh->ids;
	set->trained = fresh->trained;
	set->document_start = fresh->document_start;
	set->row_document = fresh->row_document;
	set->origin = fresh->origin;
	set->origins = fresh->origins;
	set->tokens = fresh->tokens;
	set->documents = fresh->documents;
	set->rows = fresh->rows;
	set->trained_tokens = fresh->trained_tokens;
	rh_images_close(fresh->images); /* the set has them already */
}

static int pack_rows(struct rh_dataset *set, int64_t max_length)
{
	size_t documents = (size_t)set->documents;
	struct rh_dataset packed = {0};
	int64_t bins, *length = rh_alloc(documents, sizeof *length), *order = rh_alloc(documents, sizeof *order);
	int64_t *first = rh_alloc(documents + 1, sizeof *first);
	int rc = length && order && first ? 0 : -ENOMEM;
	for (size_t i = 0; !rc && i < documents; i++)
		length[i] = set->document_start[i + 1] - set->document_start[i];
	if (!rc)
		rc = data_pack(length, set->documents, max_length < set->tokens ? max_length : set->tokens, order, first, &bins);
	if (!rc)
		rc = gather(set, order, first, bins, &packed);
	if (!rc)
		replace(set, &packed);
	else
		rh_dataset_free(&packed);
	rh_free(length);
	rh_free(order);
	rh_free(first);
	return rc;
}

/* Each document is a row, or each few are. */
static int number_rows(struct rh_dataset *set, int64_t each)
{
	set->rows = set->documents / each;
	set->row_document = rh_alloc((size_t)set->rows + 1, sizeof *set->row_document);
	if (!set->row_document)
		return -ENOMEM;
	for (int64_t i = 0; i <= set->rows; i++)
		set->row_document[i] = i * each;
	for (int64_t i = 0; i < set->tokens; i++)
		set->trained_tokens += set->trained[i] == RH_MARK_TRAINED;
	return 0;
}

/* A document made of one's prompt and another's answer. */
struct joined {
	int32_t *id;
	uint8_t *trained;
};

/* Adds document `d` of `from` with the answer of document `answer`, cut to max_length. */
static int add_joined(struct builder *builder, const struct rh_dataset *from, int64_t d, int64_t answer, enum rh_role role,
                      int64_t max_length, const struct joined *space)
{
	int64_t prompt = from->judged[d].prompt, first = from->document_start[answer] + from->judged[answer].prompt;
	int64_t rest = rh_min(max_length - prompt, from->document_start[answer + 1] - first);
	memcpy(space->id, from->ids + from->document_start[d], (size_t)prompt * sizeof *space->id);
	memcpy(space->id + prompt, from->ids + first, (size_t)rest * sizeof *space->id);
	memset(space->trained, RH_MARK_NONE, (size_t)prompt);
	memset(space->trained + prompt, RH_MARK_TRAINED, (size_t)rest);
	int rc = add_document(builder, space->id, space->trained, (size_t)(prompt + rest),
	                      from->origins == from->documents && role != RH_ROLE_MISMATCHED ? &from->origin[d] : NULL);
	return rc ? rc : judge_document(builder, (struct rh_judged_document){(int32_t)prompt, role, 0});
}

int rh_dataset_pair(struct rh_dataset *set, int64_t batch, int64_t max_length)
{
	struct rh_dataset paired = {.preference = set->preference};
	struct builder builder = {.set = &paired};
	if (!set->rows || !set->preference.answers || rh_preference_is_paired(&set->preference))
		return 0;
	struct joined space = {rh_alloc((size_t)max_length, sizeof *space.id), rh_alloc((size_t)max_length, 1)};
	int rc = space.id && space.trained ? 0 : -ENOMEM;
	for (int64_t d = 0; !rc && d < set->documents; d++) {
		int64_t first = d / batch * batch, count = rh_min(batch, set->documents - first);
		rc = add_joined(&builder, set, d, d, set->judged[d].role, max_length, &space);
		if (!rc && set->preference.answers == 2)
			rc = add_joined(&builder, set, d, d == first ? first + count - 1 : d - 1, RH_ROLE_MISMATCHED, max_length, &space);
	}
	rh_free(space.id);
	rh_free(space.trained);
	if (!rc)
		rc = number_rows(&paired, set->preference.answers);
	if (!rc)
		replace(set, &paired);
	else
		rh_dataset_free(&paired);
	return rc;
}

int rh_dataset_load(enum rh_dataset_part part, const struct rh_config *config, const struct rh_tokenizer *tokenizer, struct rh_dataset *out)
{
	return rh_dataset_load_for(part, config, NULL, tokenizer, out);
}

int rh_dataset_load_for(enum rh_dataset_part part, const struct rh_config *config, const struct rh_objective *objective,
                        const struct rh_tokenizer *tokenizer, struct rh_dataset *out)
{
	RH_ASSERT(config->max_length > 0);
	struct rh_dataset set = {.turn_end = -1, .preference = config->preference, .max_length = config->max_length};
	int is_of_images = objective && objective->task == RH_TASK_IMAGE_CLASSIFICATION;
	int rc = is_of_images ? read_images(part, config, objective, &set) : read_files(part, config, objective, tokenizer, &set);
	if (!rc)
		rc = config->packing && !data_is_wrapped(config) ? pack_rows(&set, config->max_length)
		                                                 : number_rows(&set, rh_preference_is_paired(&set.preference) ? 2 : 1);
	set.row_length = config->packing ? config->max_length : 0;
	int splits = config->packing && config->packing_strategy != RH_PACKING_BFD;
	set.is_packable = part == RH_DATASET_TRAIN && !splits && set.objective.task == RH_TASK_CAUSAL_LM && !config->preference.answers;
	if (rc)
		rh_dataset_free(&set);
	else
		*out = set;
	return rc;
}

int64_t rh_dataset_bytes(const struct rh_dataset *dataset)
{
	return dataset->tokens * (int64_t)(sizeof *dataset->ids + sizeof *dataset->trained) +
	       (dataset->documents + dataset->rows) * (int64_t)sizeof *dataset->row_document +
	       (dataset->judged ? dataset->documents * (int64_t)sizeof *dataset->judged : 0) +
	       (dataset->images ? rh_images_bytes(dataset->images) : 0);
}

int64_t rh_dataset_tokens(const struct rh_dataset *dataset)
{
	return dataset->images ? dataset->documents * rh_images_tokens(dataset->images) : dataset->tokens;
}

void rh_dataset_free(struct rh_dataset *dataset)
{
	rh_free(dataset->ids);
	rh_free(dataset->trained);
	rh_free(dataset->document_start);
	rh_free(dataset->row_document);
	rh_free(dataset->origin);
	rh_free(dataset->judged);
	for (size_t i = 0; i < dataset->files; i++)
		rh_free(dataset->file[i]);
	rh_free(dataset->file);
	rh_images_close(dataset->images);
	*dataset = (struct rh_dataset){0};
}

/* The rows of `from` whose mark is `mark`, in their order. */
static int take_rows(const struct rh_dataset *from, const uint8_t *marks, uint8_t mark, struct rh_dataset *out)
{
	int64_t *order = rh_alloc((size_t)from->documents, sizeof *order), rows = 0, documents = 0;
	int64_t *first = rh_alloc((size_t)from->rows + 1, sizeof *first);
	int rc = order && first ? 0 : -ENOMEM;
	for (int64_t row = 0; !rc && row < from->rows; row++) {
		if (marks[row] != mark)
			continue;
		for (int64_t d = from->row_document[row]; d < from->row_document[row + 1]; d++)
			order[documents++] = d;
		first[++rows] = documents;
	}
	if (!rc)
		rc = gather(from, order, first, rows, out);
	rh_free(order);
	rh_free(first);
	return rc;
}

int rh_dataset_split(struct rh_dataset *dataset, double share, uint64_t seed, struct rh_dataset *held_out)
{
	if (!(share > 0 && share < 1))
		return rh_fail(-EINVAL, "eval_split: %g is not between 0 and 1", share);
	if (dataset->rows < 2)
		return rh_fail(-EINVAL, "eval_split: the training file gives one row only; at least two are needed to hold one out");
	int64_t rows = dataset->rows, count = llround(share * (double)rows);
	count = count < 1 ? 1 : count > rows - 1 ? rows - 1 : count;
	struct rh_dataset kept = {0}, held = {0};
	int64_t *order = rh_alloc((size_t)rows, sizeof *order);
	uint8_t *marks = rh_alloc((size_t)rows, 1);
	int rc = order && marks ? 0 : -ENOMEM;
	if (!rc)
		data_shuffle(seed, RH_PHILOX_SPLIT, 0, order, rows);
	for (int64_t i = 0; !rc && i < count; i++)
		marks[order[i]] = 1;
	if (!rc)
		rc = take_rows(dataset, marks, 0, &kept);
	if (!rc)
		rc = take_rows(dataset, marks, 1, &held);
	if (!rc) {
		replace(dataset, &kept);
		*held_out = held;
	} else {
		rh_dataset_free(&kept);
		rh_dataset_free(&held);
	}
	rh_free(order);
	rh_free(marks);
	return rc;
}
