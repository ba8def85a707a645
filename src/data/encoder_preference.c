/* A row with a better and a worse answer, or with a good or a bad one, becomes a document for each: the prompt and the answer. As in TRL
 * the answer begins where the prompt's ids and the whole's first differ, for both answers at one place; what a given prompt has behind that
 * is not read. */
#include "core/alloc.h"
#include "core/log.h"
#include "data/data_internal.h"

#include <string.h>

/* encoder->ids become those of the prompt with an answer, or of the prompt alone where that is NULL. */
static int encode_one(struct data_encoder *encoder, const json_t *row, const json_t *answer, const char *where)
{
	const json_t *prompt = json_object_get(row, "prompt");
	encoder->text.length = 0;
	if (json_is_string(prompt)) {
		int rc = data_append(encoder, prompt);
		if (!rc && answer)
			rc = data_append_ending(encoder, answer);
		return rc ? rc : data_encode_whole(encoder, RH_TOKENS_WITH_SPECIAL, where);
	}
	json_t *messages = json_copy((json_t *)(uintptr_t)prompt);
	int rc = messages && !(answer && json_array_extend(messages, (json_t *)(uintptr_t)answer)) ? 0 : -ENOMEM;
	json_t *conversation = rc ? NULL : data_with_messages(row, messages);
	if (!conversation) {
		rc = rh_fail(-ENOMEM, "%s: out of host memory", where);
	} else if (answer) {
		rc = data_encode_conversation(encoder, conversation, 0, where);
	} else if (json_array_size(prompt)) {
		struct rh_chat chat = data_chat_of(encoder, where);
		rc = rh_chat_render(&chat, conversation, RH_CHAT_PROMPT, &encoder->text);
		if (!rc)
			rc = data_encode_whole(encoder, RH_TOKENS_PLAIN, where);
	} else {
		encoder->ids.count = 0;
	}
	json_decref(messages);
	json_decref(conversation);
	return rc;
}

static int add_ids(struct rh_ids *to, const struct rh_ids *from)
{
	int rc = rh_grow(&to->id, &to->capacity, to->count + from->count + 1, sizeof *to->id);
	if (rc)
		return rc;
	if (from->count)
		memcpy(to->id + to->count, from->id, from->count * sizeof *from->id);
	to->count += from->count;
	return 0;
}

/* How many of the prompt's ids begin ids [first, end) of both documents. */
static size_t common_prefix(const struct rh_ids *prompt, const int32_t *id, size_t count)
{
	size_t most = prompt->count < count ? prompt->count : count, same = 0;
	while (same < most && prompt->id[same] == id[same])
		same++;
	return same;
}

/* Marks the answers in both documents, which encoder->ids hold; with ORPO the chosen one's prompt counts, too. */
static int mark_answers(struct data_encoder *encoder)
{
	size_t count = encoder->ids.count, prompt = encoder->prompt, second = encoder->second;
	int rc = rh_grow(&encoder->trained, &encoder->trained_capacity, count + 1, 1);
	if (rc)
		return rc;
	memset(encoder->trained, RH_MARK_TRAINED, count);
	memset(encoder->trained, encoder->config->preference.weight[RH_PREFERENCE_ORPO] != 0 ? RH_MARK_PROMPT : RH_MARK_NONE, prompt);
	if (second)
		memset(encoder->trained + second, RH_MARK_NONE, prompt);
	return 0;
}

/* Both documents' ids are in encoder->both. */
static int part_prompt(struct data_encoder *encoder, const json_t *row, const char *where)
{
	int was_cut = encoder->is_cut, two_bos = encoder->has_two_bos;
	int rc = encode_one(encoder, row, NULL, where);
	if (rc)
		return rc;
	encoder->has_two_bos |= two_bos;
	size_t count = encoder->both.count, second = encoder->second ? encoder->second : count;
	const int32_t *id = encoder->both.id;
	size_t same = common_prefix(&encoder->ids, id, second);
	if (encoder->second) {
		size_t other = common_prefix(&encoder->ids, id + second, count - second);
		same = other < same ? other : same;
		encoder->is_equal = count == 2 * second && !memcmp(id, id + second, second * sizeof *id);
	}
	encoder->is_prefix_mismatch = same < encoder->ids.count && !(was_cut && same == (size_t)encoder->config->max_length + 1);
	encoder->prompt = same;
	struct rh_ids prompt = encoder->ids;
	encoder->ids = encoder->both;
	encoder->both = prompt;
	return mark_answers(encoder);
}

int data_encode_preference(struct data_encoder *encoder, const json_t *row, const char *where)
{
	int is_pair = encoder->kind == DATA_PAIR || encoder->kind == DATA_PAIR_CHAT, lacks_end = 0, writes_none = 0, two_bos = 0;
	const json_t *const answer[2] = {json_object_get(row, is_pair ? "chosen" : "completion"), json_object_get(row, "rejected")};
	const json_t *prompt = json_object_get(row, "prompt");
	for (int i = 0; i < 1 + is_pair; i++) {
		int rc = data_check_answer(prompt, answer[i], where);
		if (rc)
			return rc;
		if (data_is_nothing(encoder, answer[i]))
			return data_leave_empty(encoder);
	}
	encoder->both.count = 0;
	for (int i = 0; i < 1 + is_pair; i++) {
		int rc = encode_one(encoder, row, answer[i], where);
		if (i && !rc)
			encoder->second = encoder->both.count;
		if (!rc)
			rc = add_ids(&encoder->both, &encoder->ids);
		if (rc)
			return rc;
		lacks_end |= encoder->lacks_end;
		writes_none |= encoder->writes_none;
		two_bos |= encoder->has_two_bos;
	}
	encoder->has_no_prompt = json_is_array(prompt) ? !json_array_size(prompt) : !json_string_length(prompt);
	encoder->is_good = json_is_true(json_object_get(row, "label"));
	encoder->has_two_bos = two_bos;
	int rc = part_prompt(encoder, row, where);
	encoder->lacks_end = lacks_end;
	encoder->writes_none = writes_none;
	encoder->is_masked = 1;
	encoder->is_cut = 0; /* the hash of a row is of its ids: of both answers */
	return rc;
}
