/* `roundhouse generate`: a prompt gone on with. */
#include "session/generate.h"

#include "cli/verbs.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"
#include "session/conversation.h"
#include "session/prompting.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { PROMPT_MOST = 1 << 24 };

static int has_prompt(const struct rh_config *config)
{
	return config->prompt || config->prompt_file;
}

/* A prompt goes through the template that `chat_template` names, else the one that the model or its adapter was trained with here; that of
 * another model only where it is asked for, and the user is told of it where the prompt is not in its form already. */
static int is_put_through(const struct rh_config *config, const struct rh_session *session, const struct rh_prompting *prompting,
                          const char *prompt)
{
	if (!prompting->chat || config->chat_template || prompting->is_trained)
		return prompting->chat != NULL;
	if (!rh_chat_template_is_in(prompting->chat, prompt, session->tokenizer))
		rh_note("the prompt is used as it stands; `chat` puts what one types through the model's chat template (chat_template: "
		        "none says "
		        "that this is meant)");
	return 0;
}

/* prompt, or what prompt_file or standard input holds, less its last line break; always with a NUL behind it. */
static int read_prompt(const struct rh_config *config, struct rh_text *out)
{
	char piece[1 << 16];
	if (config->prompt)
		return rh_text_printf(out, "%s", config->prompt);
	const char *name = strcmp(config->prompt_file, "-") ? config->prompt_file : "standard input";
	FILE *file = strcmp(config->prompt_file, "-") ? fopen(config->prompt_file, "rb") : stdin;
	if (!file)
		return rh_fail(-errno, "prompt_file: %s: %s", name, strerror(errno));
	int rc = 0;
	for (size_t length; !rc && (length = fread(piece, 1, sizeof piece, file)) > 0;)
		rc = out->length + length > PROMPT_MOST ? rh_fail(-EINVAL, "prompt_file: %s holds more than 16 MiB; shorten it", name)
		                                        : rh_text_append(out, piece, length);
	if (!rc && ferror(file))
		rc = rh_fail(-EIO, "prompt_file: %s cannot be read", name);
	if (file != stdin)
		fclose(file);
	if (!rc && out->length && out->bytes[out->length - 1] == '\n')
		out->length--;
	return rc ? rc : rh_text_append(out, "", 0);
}

/* What the tokenizer puts around a prompt as around any text, and what does the answer no good. */
static void tell_of_ends(const struct rh_tokenizer *tokenizer, const struct rh_text *prompt, const struct rh_ids *ids)
{
	int32_t eos = rh_tokenizer_eos(tokenizer);
	const char *end = eos < 0 ? "" : rh_tokenizer_text(tokenizer, eos);
	if (rh_ids_have_two_bos(ids, rh_tokenizer_bos(tokenizer)))
		rh_warn_once("prompt: it begins " RH_TWO_BOS "prompt");
	size_t bytes = strlen(end);
	int is_own = prompt->length >= bytes && !memcmp(prompt->bytes + prompt->length - bytes, end, bytes);
	if (eos >= 0 && ids->count && ids->id[ids->count - 1] == eos && !is_own)
		rh_warn_once("prompt: the tokenizer puts %s behind it, as in transformers, so that the answer begins after an end; take it "
		             "out of tokenizer.json's post_processor",
		             end);
}

/* The prompt as the next message of the conversation that system, tools and messages_file begin. */
static int encode_conversation(const struct rh_config *config, const struct rh_session *session, const struct rh_prompting *prompting,
                               const struct rh_text *text, struct rh_ids *ids)
{
	json_t *conversation = NULL;
	int rc = rh_conversation_open(config, &conversation);
	if (!rc && has_prompt(config))
		rc = rh_conversation_add(conversation, "user", text->bytes ? text->bytes : "", text->length);
	const json_t *messages = json_object_get(conversation, "messages"), *last = json_array_get(messages, json_array_size(messages) - 1);
	if (!rc && rh_chat_is_assistant(last))
		rc = rh_fail(-EINVAL,
		             "messages_file: its last message is an assistant's, which leaves nothing to answer; add prompt, or use chat");
	if (!rc)
		rc = rh_prompting_encode(prompting, session->tokenizer, conversation, ids);
	if (!rc)
		rh_note("prompt put through chat template %s%s (chat_template: none for raw text)", rh_prompting_name(prompting),
		        prompting->is_trained ? ", as in training" : "");
	json_decref(conversation);
	return rc;
}

static int encode_prompt(const struct rh_config *config, const struct rh_session *session, struct rh_ids *ids)
{
	struct rh_prompting prompting;
	struct rh_text text = {0};
	const char *key;
	int rc = rh_prompting_open(config, session->tokenizer, &prompting);
	if (rc)
		return rc;
	int asks = rh_conversation_is_asked_for(config, &key);
	if (asks && !prompting.chat)
		rc = rh_fail(-EINVAL, "%s: goes through a chat template, and %s; %s", key,
		             config->chat_template ? "chat_template: none leaves none" : "the model brings none",
		             config->chat_template ? "remove one of them" : "name one with chat_template");
	if (!rc && has_prompt(config))
		rc = read_prompt(config, &text);
	if (rc)
		goto out;
	if (asks || is_put_through(config, session, &prompting, text.bytes ? text.bytes : "")) {
		rc = encode_conversation(config, session, &prompting, &text, ids);
	} else {
		rc = rh_tokenizer_encode(session->tokenizer, text.bytes ? text.bytes : "", text.length, RH_TOKENS_WITH_SPECIAL, ids);
		if (!rc)
			tell_of_ends(session->tokenizer, &text, ids);
	}
	if (!rc && !ids->count)
		rc = rh_fail(-EINVAL, "prompt: is empty; there is nothing to continue");
out:
	rh_text_free(&text);
	rh_prompting_close(&prompting);
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
	rc = rh_session_check_speaks(&session);
	if (!rc)
		rc = rh_session_load_tokenizer(&session);
	if (!rc)
		rc = encode_prompt(config, &session, &prompt);
	int64_t longest = rh_model_longest(session.model_config), tokens = (int64_t)prompt.count;
	if (!rc && tokens + config->max_new_tokens > longest)
		rc = rh_fail(-EINVAL,
		             "%s: the prompt's %lld tokens and %lld new ones are above the %lld positions that the model knows; %s it",
		             tokens < longest ? "max_new_tokens" : "prompt", (long long)tokens, (long long)config->max_new_tokens,
		             (long long)longest, tokens < longest ? "lower" : "shorten");
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
