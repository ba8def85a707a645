/* Faults of data that would spoil a run silently: found while rows are read, reported once all are read. */
#include "core/alloc.h"
#include "core/log.h"
#include "core/text.h"
#include "data/data_internal.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* A finding stops a run where it concerns more than one row in so many. */
enum { SHARE = 100, TAIL_BYTES = 64, SAMPLE_MOST = 32 };

static const struct {
	const char *name, *meaning, *mend;
} lints[RH_LINTS] = {
        [RH_LINT_UNTRAINED] = {"untrained-rows", "rows without a trained token",
                               "raise max_length, or remove those without text or answer"},
        [RH_LINT_NO_END] = {"no-end-of-turn", "answers or texts that no special token ends",
                            "the model would not learn to stop: a chat template ends turns; for texts and completions give eos_token, such "
                            "as <|endoftext|>"},
        [RH_LINT_CUT_ANSWER] = {"cut-answers", "answers that lose their end to max_length", "raise max_length"},
        [RH_LINT_DUPLICATE] = {"duplicates", "rows that were there before", "remove them"},
        [RH_LINT_OVERLAP] = {"overlap", "rows to evaluate on that are trained on too", "remove them from one of the files"},
        [RH_LINT_DROPPED_ROLE] = {"dropped-role", "conversations of which the chat template leaves a part out",
                                  "write roles that the template knows, such as user and assistant, or choose another chat_template"},
        [RH_LINT_NONE] = {"none-for-null", "conversations with a null for which the chat template writes None",
                          "write \"\" in place of null, or leave the key out"},
        [RH_LINT_EQUAL] = {"equal-answers", "pairs whose chosen answer is the rejected one", "remove them"},
        [RH_LINT_NO_PROMPT] = {"no-prompt", "pairs without a prompt: their answers begin otherwise",
                               "give both answers of a pair the same prompt"},
};

const char *rh_lint_name(enum rh_lint lint)
{
	return lints[lint].name;
}

const char *rh_lint_meaning(enum rh_lint lint)
{
	return lints[lint].meaning;
}

/* The slot that holds `hash`, or would hold it. */
static size_t slot_of(const struct data_hashes *hashes, uint64_t hash)
{
	size_t at = (size_t)hash & (hashes->capacity - 1);
	while (hashes->slot[at] && hashes->slot[at] != hash)
		at = (at + 1) & (hashes->capacity - 1);
	return at;
}

int data_hashes_has(const struct data_hashes *hashes, uint64_t hash)
{
	return hashes->capacity && hashes->slot[slot_of(hashes, hash)] == hash;
}

int data_hashes_add(struct data_hashes *hashes, uint64_t hash)
{
	if (2 * hashes->count >= hashes->capacity) {
		struct data_hashes grown = {.capacity = hashes->capacity ? 2 * hashes->capacity : 1024};
		grown.slot = rh_alloc(grown.capacity, sizeof *grown.slot);
		if (!grown.slot)
			return -ENOMEM;
		for (size_t i = 0; i < hashes->capacity; i++)
			if (hashes->slot[i])
				grown.slot[slot_of(&grown, hashes->slot[i])] = hashes->slot[i];
		grown.count = hashes->count;
		rh_free(hashes->slot);
		*hashes = grown;
	}
	size_t at = slot_of(hashes, hash);
	if (hashes->slot[at] == hash)
		return 1;
	hashes->slot[at] = hash;
	hashes->count++;
	return 0;
}

void data_hashes_free(struct data_hashes *hashes)
{
	rh_free(hashes->slot);
	*hashes = (struct data_hashes){0};
}

uint64_t data_hash_row(const struct data_encoder *encoder)
{
	uint64_t hash = encoder->is_cut ? XXH3_64bits(encoder->text.bytes, encoder->text.length)
	                                : XXH3_64bits(encoder->ids.id, encoder->ids.count * sizeof *encoder->ids.id);
	return hash ? hash : 1;
}

void data_find(struct rh_dataset *set, enum rh_lint lint, const char *where)
{
	struct rh_finding *finding = &set->finding[lint];
	if (finding->rows++ < RH_LINT_EXAMPLES)
		snprintf(finding->example[finding->rows - 1], RH_PLACE_BYTES, "%s", where);
}

/* The first run of bytes that templates write as they are; at most SAMPLE_MOST of them. */
static size_t sample_of(const char *bytes, size_t length, const char **out)
{
	static const char altered[] = "\"\\<>&'`{}[]\r\n\t";
	size_t from = 0;
	while (from < length && (bytes[from] == ' ' || (unsigned char)bytes[from] < 0x20 || strchr(altered, bytes[from])))
		from++;
	size_t end = from;
	while (end < length && end - from < SAMPLE_MOST && (unsigned char)bytes[end] >= 0x20 && (unsigned char)bytes[end] < 0x80 &&
	       !strchr(altered, bytes[end]))
		end++;
	while (end > from && bytes[end - 1] == ' ')
		end--;
	*out = bytes + from;
	return end - from;
}

static int holds(const struct rh_text *text, const char *bytes, size_t length)
{
	return !length || (text->length && memmem(text->bytes, text->length, bytes, length));
}

/* 1: the template wrote the text of `content`: a string, or parts of which some are text. */
static int is_written(const struct rh_text *text, const json_t *content)
{
	const char *sample;
	if (json_is_string(content)) {
		size_t length = sample_of(json_string_value(content), json_string_length(content), &sample);
		return holds(text, sample, length);
	}
	size_t i;
	const json_t *part;
	json_array_foreach(content, i, part)
	{
		const json_t *inner = json_is_object(part) ? json_object_get(part, "text") : part;
		if (json_is_string(inner) && !is_written(text, inner))
			return 0;
	}
	return 1;
}

/* Does the rendered answer end with a special token? Only its tail is looked at. */
static int ends_special(struct data_encoder *encoder, size_t end)
{
	const char *bytes = encoder->text.bytes;
	size_t from = end > TAIL_BYTES ? end - TAIL_BYTES : 0;
	while (from < end && ((unsigned char)bytes[from] & 0xc0) == 0x80)
		from++;
	encoder->part.count = 0;
	int rc = rh_tokenizer_encode(encoder->tokenizer, bytes + from, end - from, RH_TOKENS_PLAIN, &encoder->part);
	if (rc)
		return rc;
	return encoder->part.count && rh_tokenizer_is_special(encoder->tokenizer, encoder->part.id[encoder->part.count - 1]);
}

/* 1: all that a call's arguments say is written: names, texts and numbers. */
static int are_arguments_written(const struct rh_text *text, const json_t *value)
{
	size_t i;
	const char *key, *sample;
	json_t *item;
	char digits[32];
	if (json_is_integer(value)) {
		snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(value));
		return holds(text, digits, strlen(digits));
	}
	if (json_is_string(value)) {
		size_t length = sample_of(json_string_value(value), json_string_length(value), &sample);
		return holds(text, sample, length);
	}
	json_array_foreach(value, i, item)
	{
		if (!are_arguments_written(text, item))
			return 0;
	}
	json_object_foreach((json_t *)(uintptr_t)value, key, item)
	{
		size_t length = sample_of(key, strlen(key), &sample);
		if (!holds(text, sample, length) || !are_arguments_written(text, item))
			return 0;
	}
	return 1;
}

static int are_calls_written(const struct rh_text *text, const json_t *calls)
{
	size_t i;
	const json_t *call;
	json_array_foreach(calls, i, call)
	{
		const json_t *function = json_object_get(call, "function"), *holder = json_is_object(function) ? function : call;
		const char *name = json_string_value(json_object_get(holder, "name"));
		if ((name && !holds(text, name, strlen(name))) || !are_arguments_written(text, json_object_get(holder, "arguments")))
			return 0;
	}
	return 1;
}

/* What the template left out of a message, NULL: nothing. Of an assistant's earlier turns templates leave out the reasoning, and cut it
 * out of the content: only what the last turn thought is asked for, and no assistant's content. */
static const char *dropped_part(const struct data_encoder *encoder, const json_t *message, int is_last_turn)
{
	const struct rh_text *text = &encoder->text;
	if (!rh_chat_is_assistant(message))
		return is_written(text, json_object_get(message, "content")) ? NULL : "content";
	if (!are_calls_written(text, json_object_get(message, "tool_calls")))
		return "tool_calls";
	const json_t *reasoning = rh_chat_reasoning(message);
	if (is_last_turn && json_is_string(reasoning) && rh_chat_reads_reasoning(encoder->chat) && !is_written(text, reasoning))
		return "reasoning";
	return NULL;
}

/* 1: a member of a message is null. */
static int has_null(const json_t *messages)
{
	size_t i;
	const char *key;
	json_t *message, *value;
	json_array_foreach(messages, i, message) json_object_foreach(message, key, value) if (json_is_null(value)) return 1;
	return 0;
}

int data_check_conversation(struct data_encoder *encoder, const json_t *messages)
{
	size_t last_turn = json_array_size(messages);
	while (last_turn && rh_chat_is_assistant(json_array_get(messages, last_turn - 1)))
		last_turn--;
	encoder->writes_none &= has_null(messages);
	for (size_t i = 0; i < json_array_size(messages) && !encoder->dropped[0]; i++) {
		const json_t *message = json_array_get(messages, i);
		const char *role = json_string_value(json_object_get(message, "role"));
		const char *part = role ? dropped_part(encoder, message, i >= last_turn) : NULL;
		if (part)
			snprintf(encoder->dropped, sizeof encoder->dropped, "%.16s's %s", role, part);
	}
	if (!encoder->spans.count)
		return 0;
	int ended = ends_special(encoder, encoder->spans.span[encoder->spans.count - 1].end);
	encoder->lacks_end = !ended;
	if (ended > 0)
		encoder->turn_end = encoder->part.id[encoder->part.count - 1];
	return ended < 0 ? ended : 0;
}

static void place_origin(const struct rh_origin *origin, const char *file, char where[RH_PLACE_BYTES])
{
	if (!origin->line)
		snprintf(where, RH_PLACE_BYTES, "%s (row %u)", file, origin->row);
	else
		snprintf(where, RH_PLACE_BYTES, origin->row ? "%s:%lld (row %u)" : "%s:%lld", file, (long long)origin->line, origin->row);
}

static int find_overlap(struct rh_dataset *train, const struct rh_dataset *held_out)
{
	struct data_hashes hashes = {0};
	char *const *file = held_out->files ? held_out->file : train->file; /* a share of one file has its names there */
	int rc = 0;
	for (int64_t d = 0; rc >= 0 && held_out->origins && d < train->origins; d++)
		rc = train->origin[d].hash ? data_hashes_add(&hashes, train->origin[d].hash) : 0;
	for (int64_t d = 0; rc >= 0 && d < held_out->origins; d++) {
		const struct rh_origin *origin = &held_out->origin[d];
		char where[RH_PLACE_BYTES];
		if (!origin->hash || !data_hashes_has(&hashes, origin->hash))
			continue;
		place_origin(origin, file[origin->file], where);
		data_find(train, RH_LINT_OVERLAP, where);
	}
	data_hashes_free(&hashes);
	return rc < 0 ? rc : 0;
}

/* "a.json:7" as "7" where a.json is the only file. */
static const char *place_of(const struct rh_dataset *set, const char *example)
{
	size_t length = strlen(set->name);
	return set->files == 1 && !strncmp(example, set->name, length) && example[length] == ':' ? example + length + 1 : example;
}

static void tell(const struct rh_dataset *set, enum rh_lint lint, int64_t of)
{
	const struct rh_finding *finding = &set->finding[lint];
	const char *first = place_of(set, finding->example[0]);
	const char *what = first == finding->example[0] ? "" : finding->rows > 1 ? "lines " : "line ";
	rh_note("%s: %s: %lld of %lld %s%s%s (%s%s%s%s%s%s%s)", set->name, lints[lint].name, (long long)finding->rows, (long long)of,
	        lints[lint].meaning, *finding->detail ? ": " : "", finding->detail, what, first, *finding->example[1] ? ", " : "",
	        place_of(set, finding->example[1]), *finding->example[2] ? ", " : "", place_of(set, finding->example[2]),
	        finding->rows > RH_LINT_EXAMPLES ? ", ..." : "");
}

/* What mends a finding; raising max_length says to what. */
static int tell_mend(const struct rh_dataset *set, enum rh_lint lint, const struct rh_config *config, struct rh_text *out)
{
	static const char raise[] = "raise max_length";
	char longest[DATA_LONGEST_BYTES];
	const char *mend = lints[lint].mend;
	int raises = !strncmp(mend, raise, sizeof raise - 1);
	return rh_text_printf(out, ": %s%s%s", raises ? raise : "", raises ? data_longest(set, config->max_length, longest) : "",
	                      mend + (raises ? sizeof raise - 1 : 0));
}

/* Tells a set's findings; the names of those that stop the run go to `stops`. */
static int judge(const struct rh_dataset *set, int64_t held_out, const struct rh_config *config, struct rh_text *stops,
                 struct rh_text *mend)
{
	int rc = 0;
	for (enum rh_lint lint = 0; !rc && lint < RH_LINTS; lint++) {
		int64_t rows = set->finding[lint].rows, of = lint == RH_LINT_OVERLAP ? held_out : set->read_rows;
		if (!rows)
			continue;
		tell(set, lint, of);
		if (rows * SHARE <= of || config->allow >> lint & 1 || (stops->length && strstr(stops->bytes, lints[lint].name)))
			continue;
		mend->length = 0;
		if (!stops->length)
			rc = tell_mend(set, lint, config, mend);
		if (!rc)
			rc = rh_text_printf(stops, "%s%s", stops->length ? "," : "", lints[lint].name);
	}
	return rc;
}

static void forget_origins(struct rh_dataset *set)
{
	rh_free(set->origin);
	set->origin = NULL;
	set->origins = 0;
}

int rh_dataset_check(struct rh_dataset *train, struct rh_dataset *held_out, const struct rh_config *config)
{
	struct rh_text stops = {0}, mend = {0};
	int64_t held_rows = held_out->judged ? held_out->rows : held_out->origins;
	int rc = find_overlap(train, held_out);
	forget_origins(train);
	forget_origins(held_out);
	if (!rc)
		rc = judge(train, held_rows, config, &stops, &mend);
	if (!rc && held_out->read_rows) /* a file of its own, not a share of the other */
		rc = judge(held_out, 0, config, &stops, &mend);
	if (!rc && stops.length)
		rc = rh_fail(-EINVAL, "%s: more than 1 row in %d: %s%s; roundhouse inspect shows them, --allow %s goes on in spite of them",
		             train->name, SHARE, stops.bytes, mend.length ? mend.bytes : "", stops.bytes);
	rh_text_free(&mend);
	rh_text_free(&stops);
	return rc;
}
