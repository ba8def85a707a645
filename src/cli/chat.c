/* `roundhouse chat`: a conversation in the terminal, a line a turn. */
#include "cli/verbs.h"

#include "core/log.h"
#include "core/minmax.h"
#include "session/generate.h"
#include "session/prompting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONTEXT_MOST = 4096 }; /* tokens of a conversation */

struct talk {
	struct rh_session *session;
	struct rh_prompting prompting;
	json_t *messages;
	int64_t room;          /* tokens that a prompt may have */
	struct rh_text answer; /* the answer so far */
	size_t shown;          /* bytes of it */
};

static int decode(struct talk *talk, const struct rh_ids *ids)
{
	talk->answer.length = 0;
	return rh_tokenizer_decode(talk->session->tokenizer, ids->id, ids->count, RH_SPECIALS_SKIP, &talk->answer);
}

/* Shows what a new token adds, once its characters are whole. */
static int show(void *context, const struct rh_ids *ids)
{
	static const char part[] = "\xEF\xBF\xBD"; /* what half a character is decoded to */
	struct talk *talk = context;
	int rc = decode(talk, ids);
	size_t length = talk->answer.length;
	if (rc || length <= talk->shown || (length >= 3 && !memcmp(talk->answer.bytes + length - 3, part, 3)))
		return rc;
	fwrite(talk->answer.bytes + talk->shown, 1, length - talk->shown, stdout);
	fflush(stdout);
	talk->shown = length;
	return 0;
}

static int add(struct talk *talk, const char *role, const char *content, size_t length)
{
	json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", content, length);
	if (!message)
		return rh_fail(-EINVAL, "this line is not valid UTF-8");
	return json_array_append_new(talk->messages, message) ? -ENOMEM : 0;
}

static int answer(struct talk *talk, const char *line, size_t length)
{
	struct rh_ids prompt = {0}, out = {0};
	int rc = add(talk, "user", line, length);
	if (!rc)
		rc = rh_prompting_encode(&talk->prompting, talk->session->tokenizer, talk->messages, &prompt);
	if (!rc && (int64_t)prompt.count > talk->room)
		rc = rh_fail(-EINVAL, "the conversation has grown to %zu tokens, %lld fit: begin anew, or lower max_new_tokens",
		             prompt.count, (long long)talk->room);
	talk->shown = 0;
	if (!rc)
		rc = rh_generate_told(talk->session, &prompt, &out, show, talk);
	if (!rc)
		rc = decode(talk, &out);
	if (!rc) {
		fwrite(talk->answer.bytes ? talk->answer.bytes + talk->shown : "", 1, talk->answer.length - talk->shown, stdout);
		fputs("\n", stdout);
		fflush(stdout);
		rc = add(talk, "assistant", talk->answer.bytes ? talk->answer.bytes : "", talk->answer.length);
	}
	rh_ids_free(&prompt);
	rh_ids_free(&out);
	return rc;
}

static int converse(struct talk *talk)
{
	int rc = 0, is_terminal = isatty(STDIN_FILENO);
	char *line = NULL;
	size_t capacity = 0;
	for (;;) {
		if (is_terminal) {
			fputs("> ", stdout);
			fflush(stdout);
		}
		ssize_t length = getline(&line, &capacity, stdin);
		if (length < 0)
			break;
		while (length && (line[length - 1] == '\r' || line[length - 1] == '\n'))
			length--;
		if (!length)
			continue;
		rc = answer(talk, line, (size_t)length);
		if (rc)
			break;
	}
	if (is_terminal && !rc)
		fputs("\n", stdout);
	free(line);
	return rc;
}

int verb_chat(const struct rh_config *config)
{
	struct rh_session session;
	struct talk talk = {.session = &session};
	int rc = rh_session_open(config, RH_SESSION_INFERS, &session);
	if (rc)
		return rc;
	rc = rh_session_check_speaks(&session);
	if (!rc)
		rc = rh_session_load_tokenizer(&session);
	if (!rc)
		rc = rh_prompting_open(config, session.tokenizer, &talk.prompting);
	if (!rc && config->chat_template && rh_chat_template_is_none(config->chat_template))
		rc = rh_fail(-EINVAL, "chat_template: none leaves chat without a template; leave the key out, or use generate");
	else if (!rc && !talk.prompting.chat)
		rc = rh_fail(-EINVAL, "the model %s; name one with chat_template, or use generate",
		             talk.prompting.is_trained ? "was trained on plain text, without a chat template" : "brings no chat template");
	if (!rc)
		talk.room = rh_min(CONTEXT_MOST, rh_model_longest(session.model_config)) - config->max_new_tokens;
	if (!rc && talk.room < 1)
		rc = rh_fail(-EINVAL, "max_new_tokens: %lld leaves no room for a question; lower it", (long long)config->max_new_tokens);
	if (!rc) {
		struct rh_workload work = rh_generate_workload(config, talk.room);
		rc = rh_session_start(&session, &work);
	}
	if (!rc && !(talk.messages = json_array()))
		rc = -ENOMEM;
	if (!rc) {
		rh_note("chat template: %s%s; an empty line is skipped, Ctrl-D ends", rh_chat_template_name(talk.prompting.chat),
		        talk.prompting.is_trained ? ", as in training" : "");
		rc = converse(&talk);
	}
	json_decref(talk.messages);
	rh_text_free(&talk.answer);
	rh_prompting_close(&talk.prompting);
	rh_session_close(&session);
	return rc;
}
