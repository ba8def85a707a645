/* Rows of BERT's tasks: [CLS] text [SEP], or [CLS] first [SEP] second [SEP], with a label; or without, for tokens that are hidden. */
#include "core/alloc.h"
#include "data/data_internal.h"

#include <string.h>

/* Names of one text or of two, as transformers' run_glue.py and its tasks have them; in this order. */
static const char *const pairs[][2] = {{"text_a", "text_b"},       {"sentence1", "sentence2"}, {"premise", "hypothesis"},
                                       {"question1", "question2"}, {"question", "sentence"},   {"text", NULL},
                                       {"sentence", NULL}};

int rh_task_tokens_find(const struct rh_tokenizer *tokenizer, struct rh_task_tokens *out)
{
	static const char *const names[] = {"[CLS]", "[SEP]", "[MASK]"};
	int32_t *const ids[] = {&out->cls, &out->sep, &out->mask};
	for (int i = 0; i < 3; i++)
		if ((*ids[i] = rh_tokenizer_id(tokenizer, names[i])) < 0)
			return rh_fail(-EINVAL, "the tokenizer has no token %s, which this task needs", names[i]);
	return 0;
}

int data_encoder_set_objective(struct data_encoder *encoder, const struct rh_objective *objective)
{
	if (objective->task == RH_TASK_CAUSAL_LM)
		return 0;
	if (encoder->config->packing && rh_task_classifies(objective->task))
		return rh_fail(-EINVAL, "packing: rows with a label each cannot be packed; leave it out");
	if (data_is_wrapped(encoder->config))
		return rh_fail(-EINVAL, "packing_strategy: wrapped is for models that continue texts; write bfd or bfd_split");
	encoder->objective = *objective;
	return rh_task_tokens_find(encoder->tokenizer, &encoder->special);
}

static int text_of(const json_t *row, const char *key, const char *where, const json_t **out)
{
	*out = json_object_get(row, key);
	return json_is_string(*out) ? 0 : rh_fail(-EINVAL, "%s: '%s' must be a string", where, key);
}

/* The row's one or two texts. */
static int find_texts(const struct data_encoder *encoder, const json_t *row, const char *where, const json_t *text[2])
{
	text[0] = text[1] = NULL;
	const char *own = encoder->config->dataset_text_field;
	if (own && strcmp(own, "text") && json_object_get(row, own))
		return text_of(row, own, where, &text[0]);
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		if (!json_object_get(row, pairs[i][0]) || (pairs[i][1] && !json_object_get(row, pairs[i][1])))
			continue;
		int rc = text_of(row, pairs[i][0], where, &text[0]);
		return rc || !pairs[i][1] ? rc : text_of(row, pairs[i][1], where, &text[1]);
	}
	return rh_fail(-EINVAL,
	               "%s: the row has no text; it has 'text' or 'sentence', or two of them: 'text_a' and 'text_b', 'sentence1' and "
	               "'sentence2', 'premise' and 'hypothesis', 'question1' and 'question2'",
	               where);
}

/* A number, or a name of label2id; in a table a number's text too. */
static int find_label(const struct rh_objective *objective, const json_t *row, const char *where, int64_t *out)
{
	const json_t *label = json_object_get(row, "label");
	const char *name = json_string_value(label);
	char *end = NULL;
	if (name) {
		const json_t *known = json_object_get(objective->label_ids, name);
		*out = json_is_integer(known) ? json_integer_value(known) : *name ? strtoll(name, &end, 10) : -1;
		if (!known && (!end || *end))
			return rh_fail(-EINVAL, "%s: label '%.40s' is none of label2id in the model's config.json, and no number", where,
			               name);
	} else if (json_is_integer(label)) {
		*out = json_integer_value(label);
	} else {
		return rh_fail(-EINVAL, "%s: 'label' must be a whole number or a name", where);
	}
	if (*out < 0 || *out >= objective->labels)
		return rh_fail(-EINVAL, "%s: label %lld is not within 0 to %lld; num_labels says how many there are", where,
		               (long long)*out, (long long)objective->labels - 1);
	return 0;
}

static int encode_text(struct data_encoder *encoder, const json_t *text, const char *where, struct rh_ids *out)
{
	int rc = data_encoder_check_room(encoder, json_string_value(text), json_string_length(text), where);
	if (rc)
		return rc;
	rc = rh_tokenizer_encode(encoder->tokenizer, json_string_value(text), json_string_length(text), RH_TOKENS_PLAIN, out);
	return rc ? rh_fail_in(rc, "%s", where) : 0;
}

/* Both texts cut to `room` tokens: the longer one first, then both to a half (tokenizers' longest_first). */
static void cut_both(size_t room, size_t *first, size_t *second)
{
	size_t *shorter = *first <= *second ? first : second, *longer = *first <= *second ? second : first;
	if (*shorter > room)
		*longer = *shorter;
	else if (*longer > room - *shorter)
		*longer = room - *shorter > *shorter ? room - *shorter : *shorter;
	if (*shorter + *longer > room) {
		*shorter = room / 2;
		*longer = room / 2 + room % 2;
	}
}

static int put(struct data_encoder *encoder, int32_t id, enum rh_mark mark)
{
	struct rh_ids *ids = &encoder->ids;
	int rc = rh_grow(&ids->id, &ids->capacity, ids->count + 1, sizeof *ids->id);
	if (!rc)
		rc = rh_grow(&encoder->trained, &encoder->trained_capacity, ids->count + 1, 1);
	if (rc)
		return rc;
	encoder->trained[ids->count] = (uint8_t)mark;
	ids->id[ids->count++] = id;
	return 0;
}

static int put_text(struct data_encoder *encoder, const int32_t *id, size_t count, enum rh_mark mark)
{
	int rc = 0;
	for (size_t i = 0; i < count && !rc; i++)
		rc = put(encoder, id[i], mark);
	return rc ? rc : put(encoder, encoder->special.sep, mark == RH_MARK_TRAINED ? RH_MARK_NONE : mark);
}

int data_encode_labelled(struct data_encoder *encoder, const json_t *row, const char *where)
{
	const struct rh_objective *objective = &encoder->objective;
	int hides = objective->task == RH_TASK_MASKED_LM;
	const json_t *text[2];
	int64_t label = 0;
	int rc = find_texts(encoder, row, where, text);
	if (!rc && !hides)
		rc = find_label(objective, row, where, &label);
	encoder->part.count = 0;
	if (!rc)
		rc = encode_text(encoder, text[0], where, &encoder->part);
	size_t first = encoder->part.count;
	if (!rc && text[1])
		rc = encode_text(encoder, text[1], where, &encoder->part);
	if (rc)
		return rc;
	size_t second = encoder->part.count - first, begin = first, room = (size_t)encoder->config->max_length, around = text[1] ? 3 : 2;
	if (room <= around)
		return rh_fail(-EINVAL, "max_length: %zu leaves no room for a text between [CLS] and [SEP]", room);
	size_t all = first + second;
	if (text[1])
		cut_both(room - around, &first, &second);
	else if (first > room - around)
		first = room - around;
	encoder->is_truncated = first + second < all;
	rc = put(encoder, encoder->special.cls, RH_MARK_NONE);
	if (!rc)
		rc = put_text(encoder, encoder->part.id, first, hides ? RH_MARK_TRAINED : RH_MARK_NONE);
	if (!rc && text[1])
		rc = put_text(encoder, encoder->part.id + begin, second, RH_MARK_SECOND);
	return rc || hides ? rc : put(encoder, (int32_t)label, RH_MARK_TRAINED);
}
