/* `roundhouse chat`: a conversation in the terminal. */
#include "cli/lines.h"
#include "cli/verbs.h"

#include "core/log.h"
#include "core/minmax.h"
#include "session/conversation.h"
#include "session/generate.h"
#include "session/prompting.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT_MOST = 4096 }; /* tokens of a conversation */

struct talk {
	struct rh_session *session;
	struct rh_prompting prompting;
	struct verb_lines *lines;
	json_t *opening, *conversation; /* as the keys say; so far */
	int64_t room;                   /* tokens that a prompt may have */
	struct rh_text answer;          /* the answer so far */
	size_t shown;                   /* bytes of it */
};

static volatile sig_atomic_t is_stopped; /* Ctrl-C while an answer is written: enough of it */

static void stop_answer(int signal)
{
	(void)signal;
	is_stopped = 1;
}

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
		return rc ? rc : is_stopped;
	fwrite(talk->answer.bytes + talk->shown, 1, length - talk->shown, stdout);
	fflush(stdout);
	talk->shown = length;
	return is_stopped;
}

static int write_answer(struct talk *talk, const struct rh_ids *prompt, struct rh_ids *out)
{
	struct sigaction before, during = {.sa_handler = stop_answer, .sa_flags = SA_RESTART};
	int is_typed = verb_lines_are_typed(talk->lines);
	is_stopped = 0;
	if (is_typed)
		sigaction(SIGINT, &during, &before);
	talk->shown = 0;
	int rc = rh_generate_told(talk->session, prompt, out, show, talk);
	if (is_typed)
		sigaction(SIGINT, &before, NULL);
	if (!rc)
		rc = decode(talk, out);
	if (rc)
		return rc;
	fwrite(talk->answer.bytes ? talk->answer.bytes + talk->shown : "", 1, talk->answer.length - talk->shown, stdout);
	fputs("\n", stdout);
	fflush(stdout);
	return rh_conversation_add(talk->conversation, "assistant", talk->answer.bytes ? talk->answer.bytes : "", talk->answer.length);
}

static int answer(struct talk *talk, const char *role, const struct rh_text *said)
{
	struct rh_ids prompt = {0}, out = {0};
	int rc = rh_conversation_add(talk->conversation, role, said->bytes, said->length);
	if (!rc)
		rc = rh_prompting_encode(&talk->prompting, talk->session->tokenizer, talk->conversation, &prompt);
	if (!rc && (int64_t)prompt.count > talk->room)
		rc = rh_fail(-EINVAL, "the conversation has grown to %zu tokens, %lld fit: begin anew (/reset), or lower max_new_tokens",
		             prompt.count, (long long)talk->room);
	if (!rc)
		rc = write_answer(talk, &prompt, &out);
	rh_ids_free(&prompt);
	rh_ids_free(&out);
	return rc;
}

/* ---- commands ---- */

static int reset(struct talk *talk)
{
	json_decref(talk->conversation);
	talk->conversation = json_deep_copy(talk->opening);
	return talk->conversation ? 0 : -ENOMEM;
}

static int set_system(struct talk *talk, const char *text)
{
	const char *now = rh_conversation_system(talk->opening);
	if (!*text) {
		rh_note("%s%s", now ? "system message: " : "there is no system message; /system TEXT sets one", now ? now : "");
		return 0;
	}
	int rc = rh_conversation_set_system(talk->opening, text, strlen(text));
	if (!rc)
		rc = reset(talk);
	if (!rc)
		rh_note("the conversation begins anew, with this system message");
	return rc;
}

static void tell_commands(void)
{
	rh_note("/system TEXT sets the system message and begins anew; /system shows it\n"
	        "/reset begins anew\n"
	        "/tool TEXT gives what a tool that was called has returned\n"
	        "/exit ends, as Ctrl-D does; Ctrl-C ends an answer\n"
	        "a line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines");
}

/* What is behind the word `command` in `line`, without blanks before it; NULL: another word stands there. */
static const char *behind(const char *line, const char *command)
{
	size_t length = strlen(command);
	if (strncmp(line, command, length) || (line[length] && !strchr(" \t\n", line[length])))
		return NULL;
	return line + length + strspn(line + length, " \t\n");
}

enum told { TOLD_TO_GO_ON, TOLD_TO_END };

/* A turn: a command, which begins with a slash, or what the user says. Slashes further on in the first word are a path's. */
static int take(struct talk *talk, const struct rh_text *turn, enum told *told)
{
	const char *line = turn->bytes, *rest;
	size_t word = strcspn(line, " \t\n");
	*told = TOLD_TO_GO_ON;
	if (*line != '/' || memchr(line + 1, '/', word - 1))
		return answer(talk, "user", turn);
	if (behind(line, "/exit") || behind(line, "/quit") || behind(line, "/bye")) {
		*told = TOLD_TO_END;
		return 0;
	}
	if (behind(line, "/reset")) {
		rh_note("the conversation begins anew");
		return reset(talk);
	}
	if ((rest = behind(line, "/system")))
		return set_system(talk, rest);
	if ((rest = behind(line, "/tool"))) {
		struct rh_text said = {.bytes = (char *)(uintptr_t)rest, .length = turn->length - (size_t)(rest - line)};
		return answer(talk, "tool", &said);
	}
	if (!behind(line, "/help") && !behind(line, "/?"))
		rh_note("there is no command %.*s (a blank before the slash makes it a text):", (int)rh_min((int64_t)word, (int64_t)40),
		        line);
	tell_commands();
	return 0;
}

/* At a terminal a turn that cannot be answered costs nothing: it is told of, and is not part of the conversation. */
static int forgive(struct talk *talk, size_t messages, int rc)
{
	json_t *list = json_object_get(talk->conversation, "messages");
	if (rc != -EINVAL || !verb_lines_are_typed(talk->lines))
		return rc;
	rh_note("%s", rh_error(rc));
	rh_error_clear();
	while (json_array_size(list) > messages)
		json_array_remove(list, json_array_size(list) - 1);
	return 0;
}

static int converse(struct talk *talk)
{
	struct rh_text turn = {0};
	enum told told = TOLD_TO_GO_ON;
	int rc = 0, got = 1;
	while (!rc && told == TOLD_TO_GO_ON) {
		turn.length = 0;
		got = verb_lines_read_turn(talk->lines, &turn);
		if (got <= 0)
			break;
		if (!turn.length)
			continue;
		verb_lines_remember(talk->lines, turn.bytes);
		size_t messages = json_array_size(json_object_get(talk->conversation, "messages"));
		rc = take(talk, &turn, &told);
		if (rc)
			rc = forgive(talk, messages, rc);
	}
	if (verb_lines_are_typed(talk->lines) && !got)
		fputs("\n", stdout);
	rh_text_free(&turn);
	return rc ? rc : got < 0 ? got : 0;
}

static int open_talk(struct talk *talk, const struct rh_config *config)
{
	int rc = rh_session_check_speaks(talk->session);
	if (!rc)
		rc = rh_session_load_tokenizer(talk->session);
	if (!rc)
		rc = rh_prompting_open(config, talk->session->tokenizer, &talk->prompting);
	if (rc)
		return rc;
	if (config->chat_template && rh_chat_template_is_none(config->chat_template))
		return rh_fail(-EINVAL, "chat_template: none leaves chat without a template; leave the key out, or use generate");
	if (!talk->prompting.chat)
		return rh_fail(-EINVAL, "the model %s; name one with chat_template, or use generate",
		               talk->prompting.is_trained ? "was trained on plain text, without a chat template"
		                                          : "brings no chat template");
	talk->room = rh_min(CONTEXT_MOST, rh_model_longest(talk->session->model_config)) - config->max_new_tokens;
	if (talk->room < 1)
		return rh_fail(-EINVAL, "max_new_tokens: %lld leaves no room for a question; lower it", (long long)config->max_new_tokens);
	rc = rh_conversation_open(config, &talk->opening);
	if (!rc)
		rc = reset(talk);
	if (rc)
		return rc;
	struct rh_workload work = rh_generate_workload(config, talk->room);
	rc = rh_session_start(talk->session, &work);
	return rc ? rc : verb_lines_open(&talk->lines);
}

int verb_chat(const struct rh_config *config)
{
	struct rh_session session;
	struct talk talk = {.session = &session};
	int rc = rh_session_open(config, RH_SESSION_INFERS, &session);
	if (rc)
		return rc;
	rc = open_talk(&talk, config);
	if (!rc) {
		rh_note("chat template: %s%s; /help lists commands, Ctrl-D ends", rh_prompting_name(&talk.prompting),
		        talk.prompting.is_trained ? ", as in training" : "");
		rc = converse(&talk);
	}
	json_decref(talk.opening);
	json_decref(talk.conversation);
	rh_text_free(&talk.answer);
	verb_lines_close(talk.lines);
	rh_prompting_close(&talk.prompting);
	rh_session_close(&session);
	return rc;
}
