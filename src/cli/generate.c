/* `roundhouse generate`: a prompt gone on with. */
#include "train/generate.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"
#include "data/chat.h"

#include <stdio.h>
#include <string.h>

/* A prompt is used as it stands unless `chat_template` names one, as training does with prompts that are plain text. A model that was
 * taught with a template is told of, where the prompt is not in its form already. */
static void tell_of_template(const struct rh_config *config, const struct rh_session *session)
{
	const struct rh_chat_template *chat;
	const char *own = rh_tokenizer_chat_template(session->tokenizer);
	if (config->chat_template || !own)
		return;
	if (rh_chat_template_by_text(own, "the model's chat template", &chat))
		rh_note("the prompt is used as it stands; the model brings a chat template, which is none of the built-in ones "
		        "(chat_template: none says that this is meant)");
	else if (!rh_chat_template_is_in(chat, config->prompt) && !rh_chat_template_check(chat, session->tokenizer))
		rh_note("the prompt is used as it stands; --chat_template %s puts it through the model's own chat template, none says that "
		        "this "
		        "is meant",
		        rh_chat_template_name(chat));
}

/* The prompt through the chat template that `chat_template` names, else as it stands. */
static int encode_prompt(const struct rh_config *config, const struct rh_session *session, struct rh_ids *ids)
{
	struct rh_text text = {0};
	int rc = 0;
	enum rh_tokens mode = RH_TOKENS_WITH_SPECIAL;
	if (config->chat_template && !rh_chat_template_is_none(config->chat_template)) {
		const struct rh_chat_template *chat;
		json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", config->prompt);
		const char *bos = rh_tokenizer_bos(session->tokenizer) < 0
		                          ? ""
		                          : rh_tokenizer_text(session->tokenizer, rh_tokenizer_bos(session->tokenizer));
		rc = messages ? rh_chat_template_by_name(config->chat_template, &chat) : rh_fail(-EINVAL, "prompt: is not valid UTF-8");
		if (!rc)
			rc = rh_chat_template_check(chat, session->tokenizer);
		if (!rc)
			rc = rh_chat_render(chat, messages, RH_CHAT_PROMPT, bos, "prompt", &text, NULL);
		if (!rc)
			rh_note("prompt put through chat template %s (chat_template: none for raw text)", rh_chat_template_name(chat));
		json_decref(messages);
		mode = RH_TOKENS_PLAIN; /* the template writes its own beginning-of-sequence */
	} else {
		tell_of_template(config, session);
		rc = rh_text_append(&text, config->prompt, strlen(config->prompt));
	}
	if (!rc)
		rc = rh_tokenizer_encode(session->tokenizer, text.bytes, text.length, mode, ids);
	if (!rc && !ids->count)
		rc = rh_fail(-EINVAL, "prompt: is empty; there is nothing to continue");
	rh_text_free(&text);
	return rc;
}

static int print(const struct rh_config *config, const struct rh_session *session, const struct rh_ids *ids)
{
	struct rh_text text = {0};
	int rc = rh_tokenizer_decode(session->tokenizer, ids->id, ids->count, RH_SPECIALS_SKIP, &text);
	if (!rc && config->json) {
		json_t *list = json_array();
		for (size_t i = 0; list && i < ids->count; i++)
			json_array_append_new(list, json_integer(ids->id[i]));
		rc = verb_print_json(json_pack("{s:s%, s:o}", "text", text.bytes ? text.bytes : "", text.length, "ids", list));
	} else if (!rc) {
		fwrite(text.bytes ? text.bytes : "", 1, text.length, stdout);
		putchar('\n');
	}
	rh_text_free(&text);
	return rc;
}

int verb_generate(const struct rh_config *config)
{
	struct rh_session session;
	struct rh_ids prompt = {0}, out = {0};
	int rc = rh_session_open(config, RH_SESSION_INFERS, &session);
	if (rc)
		return rc;
	rc = rh_session_load_tokenizer(&session);
	if (!rc)
		rc = encode_prompt(config, &session, &prompt);
	if (!rc && (int64_t)prompt.count + config->max_new_tokens > session.model_config->max_position_embeddings)
		rc = rh_fail(-EINVAL,
		             "max_new_tokens: the prompt's %zu tokens and %lld new ones are above the %lld positions that the model knows; "
		             "lower it",
		             prompt.count, (long long)config->max_new_tokens, (long long)session.model_config->max_position_embeddings);
	if (!rc) {
		struct rh_workload work = rh_generate_workload(config, (int64_t)prompt.count);
		rc = rh_session_start(&session, &work);
	}
	if (!rc)
		rc = rh_generate(&session, &prompt, &out);
	if (!rc)
		rc = print(config, &session, &out);
	rh_ids_free(&prompt);
	rh_ids_free(&out);
	rh_session_close(&session);
	return rc;
}
