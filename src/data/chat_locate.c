/* Locates the assistant's turns in a rendering, for templates that do not mark them.
 *
 * A turn begins where the rendering of the conversation before it, with the generation prompt, ends. It ends where the rendering of the
 * conversation up to and including it ends. Where these renderings are no prefixes of the whole (templates that strip earlier thinking,
 * or end the last turn differently), the whole is rendered once more with a mark as the turn's content: the differing part is the
 * content, and the turn ends with what follows the mark. Where a template does not write the content beside calls of tools, or refuses
 * it, the mark is among the arguments of the last call. */
#include "core/alloc.h"
#include "data/chat_internal.h"

#include <string.h>

enum { TOKEN_MOST = 64, OVERLAP_LEAST = 8 };

struct part {
	const char *bytes;
	size_t length;
};

/* Where a marked message holds the mark. */
enum mark_place { MARK_CONTENT, MARK_ARGUMENTS };

struct locator {
	const struct rh_chat *chat;
	const json_t *variables, *messages; /* as the template sees them */
	struct part whole;
	size_t cursor; /* the end of the turn before */
	struct rh_text prompt, so_far, marked, ended, next;
	char mark[32];
	enum mark_place place;
};

static struct part part_of(const struct rh_text *text)
{
	return (struct part){text->bytes ? text->bytes : "", text->length};
}

static int begins_with(struct part text, struct part prefix)
{
	return text.length >= prefix.length && !memcmp(text.bytes, prefix.bytes, prefix.length);
}

static size_t common_prefix(struct part a, struct part b)
{
	size_t most = a.length < b.length ? a.length : b.length, i = 0;
	while (i < most && a.bytes[i] == b.bytes[i])
		i++;
	return i;
}

static size_t common_suffix(struct part a, struct part b)
{
	size_t most = a.length < b.length ? a.length : b.length, i = 0;
	while (i < most && a.bytes[a.length - 1 - i] == b.bytes[b.length - 1 - i])
		i++;
	return i;
}

/* The vocabulary's token that the text's first bytes spell, as long as it can be; 0: none. Only what stands in brackets is asked for. */
static size_t token_at(const struct rh_tokenizer *tokenizer, struct part text)
{
	char token[TOKEN_MOST + 1];
	size_t most = text.length < TOKEN_MOST ? text.length : TOKEN_MOST, found = 0;
	if (!text.length || (*text.bytes != '<' && *text.bytes != '['))
		return 0;
	for (size_t length = 3; length <= most; length++) {
		char last = text.bytes[length - 1];
		if (last != '>' && last != ']')
			continue;
		memcpy(token, text.bytes, length);
		token[length] = 0;
		if (rh_tokenizer_id(tokenizer, token) >= 0)
			found = length;
	}
	return found;
}

/* The end of the last token in `text`; 0: there is none. */
static size_t last_token_end(const struct rh_tokenizer *tokenizer, struct part text)
{
	size_t end = 0;
	for (size_t at = 0; at < text.length;) {
		size_t length = token_at(tokenizer, (struct part){text.bytes + at, text.length - at});
		if (length)
			end = at + length;
		at += length ? length : 1;
	}
	return end;
}

static size_t without_blanks(struct part text)
{
	while (text.length && strchr(" \t\r\n", text.bytes[text.length - 1]) && text.bytes[text.length - 1])
		text.length--;
	return text.length;
}

static int ends_with_token(const struct rh_tokenizer *tokenizer, struct part text)
{
	for (size_t back = 3; back <= TOKEN_MOST && back <= text.length; back++)
		if (token_at(tokenizer, (struct part){text.bytes + text.length - back, back}) == back)
			return 1;
	return 0;
}

/* How a conversation is cut and changed before it is rendered. */
struct change {
	size_t count;     /* of its messages */
	size_t marked;    /* whose content is the mark; SIZE_MAX: none */
	const char *next; /* the role of a further message; NULL: none */
	enum rh_chat_end end;
};

static const json_t *calls_of(const struct locator *locator, size_t turn)
{
	return json_object_get(json_array_get(locator->messages, turn), "tool_calls");
}

/* Puts the mark into a call's arguments, which are an object or its JSON text. */
static int mark_arguments(const struct locator *locator, json_t *call)
{
	json_t *function = json_object_get(call, "function");
	json_t *holder = json_is_object(function) ? function : call;
	return json_object_set_new(holder, "arguments",
	                           json_is_string(json_object_get(holder, "arguments")) ? json_string(locator->mark)
	                                                                                : json_pack("{s:s}", "of", locator->mark));
}

static json_t *marked_message(const struct locator *locator, const json_t *message)
{
	json_t *copy = json_deep_copy(message), *calls = json_object_get(copy, "tool_calls");
	int bad = !copy;
	if (!bad && locator->place == MARK_ARGUMENTS)
		bad = mark_arguments(locator, json_array_get(calls, json_array_size(calls) - 1));
	else if (!bad)
		bad = json_object_set_new(copy, "content",
		                          json_is_array(json_object_get(message, "content"))
		                                  ? json_pack("[{s:s, s:s}]", "type", "text", "text", locator->mark)
		                                  : json_string(locator->mark));
	if (bad) {
		json_decref(copy);
		return NULL;
	}
	return copy;
}

/* 1: rendered; 0: the template refuses the conversation so; -ENOMEM. */
static int render(const struct locator *locator, struct change change, struct rh_text *out)
{
	json_t *messages = json_array();
	int bad = !messages;
	out->length = 0;
	for (size_t i = 0; !bad && i < change.count; i++) {
		const json_t *message = json_array_get(locator->messages, i);
		bad = i == change.marked ? json_array_append_new(messages, marked_message(locator, message))
		                         : json_array_append(messages, (json_t *)(uintptr_t)message);
	}
	if (!bad && change.next)
		bad = json_array_append_new(messages, json_pack("{s:s, s:s}", "role", change.next, "content", "next"));
	int rc = bad ? chat_out_of_memory(locator->chat)
	             : chat_render_some(locator->chat, locator->variables, messages, change.end, out, NULL);
	json_decref(messages);
	if (rc == -EINVAL)
		rh_error_clear();
	return rc == -EINVAL ? 0 : rc ? rc : 1;
}

/* The turn's content in the whole text, and what follows it there, by the rendering with the mark. */
struct middle {
	size_t first, end;
	size_t skipped; /* bytes after the mark that are not after the content */
};

/* By a mark at locator->place. 1: found; 0: the template refuses the mark, or does not write it once. */
static int find_marked(struct locator *locator, size_t turn, struct middle *out)
{
	strcpy(locator->mark, "RoundhouseTurn");
	while (memmem(locator->whole.bytes, locator->whole.length, locator->mark, strlen(locator->mark))) {
		if (strlen(locator->mark) + 2 > sizeof locator->mark)
			return 0;
		strcat(locator->mark, "x");
	}
	int rc = render(locator, (struct change){json_array_size(locator->messages), turn, NULL, RH_CHAT_WHOLE}, &locator->marked);
	if (rc <= 0)
		return rc;
	struct part marked = part_of(&locator->marked), whole = locator->whole;
	const char *at = memmem(marked.bytes, marked.length, locator->mark, strlen(locator->mark));
	if (!at)
		return 0;
	size_t before = (size_t)(at - marked.bytes), after = marked.length - before - strlen(locator->mark);
	if (memmem(at + 1, marked.length - before - 1, locator->mark, strlen(locator->mark)))
		return 0;
	out->first = common_prefix(whole, (struct part){marked.bytes, before});
	size_t same = common_suffix((struct part){whole.bytes + out->first, whole.length - out->first},
	                            (struct part){at + strlen(locator->mark), after});
	out->end = whole.length - same;
	out->skipped = after - same;
	return 1;
}

static int find_middle(struct locator *locator, size_t turn, struct middle *out)
{
	locator->place = MARK_CONTENT;
	int rc = find_marked(locator, turn, out);
	if (rc || !json_array_size(calls_of(locator, turn)))
		return rc;
	locator->place = MARK_ARGUMENTS;
	return find_marked(locator, turn, out);
}

/* Of a turn that calls tools: the span holds its content and its last call's arguments, and ends before the text of the next message, a
 * tool's, begins. 1: so it is; 0: not, as where a template writes the tool's answer into the turn. */
static int holds_calls(struct locator *locator, size_t turn, const struct rh_chat_span *span)
{
	const json_t *content = json_object_get(json_array_get(locator->messages, turn), "content");
	const json_t *next = json_array_get(locator->messages, turn + 1);
	struct middle middle;
	int rc = 0;
	if (!json_array_size(calls_of(locator, turn)))
		return 1;
	for (locator->place = MARK_CONTENT; rc >= 0 && locator->place <= MARK_ARGUMENTS; locator->place++) {
		if (locator->place == MARK_CONTENT && !json_string_length(content) && !json_array_size(content))
			continue;
		rc = find_marked(locator, turn, &middle);
		if (rc > 0 && (middle.first < span->first || middle.end > span->end))
			return 0;
	}
	locator->place = MARK_CONTENT;
	if (rc >= 0 && next && !rh_chat_is_assistant(next)) {
		rc = find_marked(locator, turn + 1, &middle);
		if (rc > 0 && middle.first < span->end)
			return 0;
	}
	return rc < 0 ? rc : 1;
}

/* *out: the text after the mark in a rendering of the turns so far and, where `role` is not NULL, of a message of that role. */
static int tail_of(struct locator *locator, size_t turn, const char *role, size_t skipped, struct rh_text *text, struct part *out)
{
	int rc = render(locator, (struct change){turn + 1, turn, role, RH_CHAT_WHOLE}, text);
	if (rc <= 0)
		return rc;
	struct part all = part_of(text);
	const char *at = memmem(all.bytes, all.length, locator->mark, strlen(locator->mark));
	if (!at)
		return 0;
	size_t first = (size_t)(at - all.bytes) + strlen(locator->mark) + skipped;
	if (first > all.length)
		return 0;
	*out = (struct part){all.bytes + first, all.length - first};
	return 1;
}

/* What follows the turn in three renderings: as the last one, with a user's message after it, and in the whole. */
struct tails {
	struct part last, user, whole;
};

/* The token of `here` that a kind of ending of its own has: where the last turn ends with a token too, or whoever comes next. What opens
 * the next message differs with its role, and ends nothing. */
static int find_own_end(struct locator *locator, size_t turn, const struct middle *middle, const struct tails *tails, size_t same,
                        size_t *out)
{
	const struct rh_tokenizer *tokenizer = locator->chat->tokenizer;
	struct part here = tails->whole, assistant = {"", 0};
	size_t most = here.length;
	*out = 0;
	if (!last_token_end(tokenizer, tails->last)) {
		int rc = tail_of(locator, turn, "assistant", middle->skipped, &locator->so_far, &assistant);
		if (rc <= 0)
			return rc;
		most = common_prefix(common_prefix(here, assistant) < common_prefix(here, tails->user) ? assistant : tails->user, here);
	}
	for (size_t at = same + 1; !*out && at-- > 0;) { /* the token may begin alike: look back to where it begins */
		size_t length = token_at(tokenizer, (struct part){here.bytes + at, here.length - at});
		if (length && at + length > same && at + length <= most)
			*out = at + length;
	}
	return 0;
}

/* Where the turn ends: what ends it whether or not another follows, through its last token; else the token that stands there. */
static int find_end(struct locator *locator, size_t turn, const struct middle *middle, size_t *out)
{
	struct tails tails = {.whole = {locator->whole.bytes + middle->end, locator->whole.length - middle->end}};
	int rc = tail_of(locator, turn, NULL, middle->skipped, &locator->ended, &tails.last);
	if (rc < 0)
		return rc;
	if (!rc)
		tails.last = tails.whole;
	rc = tail_of(locator, turn, "user", middle->skipped, &locator->next, &tails.user);
	if (rc < 0)
		return rc;
	if (!rc)
		tails.user = tails.last;
	size_t shared = common_prefix(tails.last, tails.user);
	size_t same = common_prefix(tails.whole, (struct part){tails.last.bytes, shared});
	size_t end = last_token_end(locator->chat->tokenizer, (struct part){tails.whole.bytes, same});
	if (!end) {
		rc = find_own_end(locator, turn, middle, &tails, same, &end);
		if (rc < 0 || (!end && same < shared))
			return rc < 0 ? rc : 0;
		if (!end && shared < tails.last.length) /* the last turn is written otherwise before it ends */
			return 0;
		if (!end)
			end = without_blanks((struct part){tails.whole.bytes, same});
	}
	*out = middle->end + end;
	return 1;
}

/* Where an opening is looked for: it begins in [first, limit) of the whole, and ends before `end`. */
struct range {
	size_t first, limit, end;
	int is_bounded; /* the message before ends at `first`, so that the first of several places is the turn's */
};

/* The end of the place where `text` stands; 0: none, or several in a range that is not bounded. */
static size_t place_in(const struct range *range, struct part whole, struct part text)
{
	size_t found = 0;
	for (size_t at = range->first; at < range->limit && at + text.length <= range->end; at++) {
		const char *next = memmem(whole.bytes + at, range->end - at, text.bytes, text.length);
		if (!next || (size_t)(next - whole.bytes) >= range->limit)
			break;
		if (found)
			return 0;
		at = (size_t)(next - whole.bytes);
		found = at + text.length;
		if (range->is_bounded)
			break;
	}
	return found;
}

/* Where the turn's opening may stand: before its content and, where the content of the message before can be found, behind that. */
static int find_range(struct locator *locator, size_t turn, const struct middle *middle, struct range *out)
{
	enum mark_place place = locator->place; /* the middle's */
	struct middle before;
	*out = (struct range){locator->cursor, middle->first, middle->end, 0};
	locator->place = MARK_CONTENT;
	int rc = turn ? find_marked(locator, turn - 1, &before) : 0;
	locator->place = place;
	if (rc > 0 && before.end >= locator->cursor && before.end <= middle->first) {
		out->first = before.end;
		out->is_bounded = 1;
	}
	return rc < 0 ? rc : 0;
}

/* The place before `limit` whose left side shares most with the end of `text`; 0: too little, or two places share as much. */
static size_t best_overlap(const struct locator *locator, struct part text, size_t limit)
{
	size_t best = 0, place = 0;
	int ties = 0;
	for (size_t end = locator->cursor + 1; end <= limit; end++) {
		size_t same = common_suffix((struct part){locator->whole.bytes + locator->cursor, end - locator->cursor}, text);
		ties = same == best ? ties + 1 : same > best ? 0 : ties;
		place = same > best ? end : place;
		best = same > best ? same : best;
	}
	return best >= OVERLAP_LEAST && !ties ? place : 0;
}

/* Where the turn begins, though what is before it is rendered otherwise: behind the opening that it shares with the generation prompt. This
 * is cut between tokens only ("</think>" begins as "<think>" does). */
static int find_start(struct locator *locator, size_t turn, const struct middle *middle, size_t *out)
{
	struct part prompt = part_of(&locator->prompt), opening = {"", 0};
	int rc = turn ? render(locator, (struct change){turn, SIZE_MAX, NULL, RH_CHAT_WHOLE}, &locator->ended) : 0;
	if (rc < 0)
		return rc;
	if (rc && begins_with(prompt, part_of(&locator->ended))) {
		opening = (struct part){prompt.bytes + locator->ended.length, prompt.length - locator->ended.length};
	} else {
		rc = render(locator, (struct change){json_array_size(locator->messages), SIZE_MAX, NULL, RH_CHAT_PROMPT}, &locator->next);
		if (rc < 0)
			return rc;
		if (rc && begins_with(part_of(&locator->next), locator->whole))
			opening = (struct part){locator->next.bytes + locator->whole.length, locator->next.length - locator->whole.length};
	}
	struct range range;
	rc = find_range(locator, turn, middle, &range);
	if (rc)
		return rc;
	size_t found = 0;
	for (size_t length = opening.length; !found && length >= 3; length--, range.is_bounded = 0)
		if (length == opening.length || opening.bytes[length] == '<' || strchr("\n>]", opening.bytes[length - 1]))
			found = place_in(&range, locator->whole, (struct part){opening.bytes, length});
	if (!found && !opening.length)
		found = best_overlap(locator, prompt, middle->first);
	*out = found;
	return found > 0;
}

static int locate(struct locator *locator, size_t turn, struct rh_chat_span *out)
{
	const struct rh_tokenizer *tokenizer = locator->chat->tokenizer;
	size_t all = json_array_size(locator->messages);
	int has_first = 0, has_end = 0;
	int rc = render(locator, (struct change){turn, SIZE_MAX, NULL, RH_CHAT_PROMPT}, &locator->prompt);
	if (rc < 0)
		return rc;
	if (!rc)
		locator->prompt.length = 0;
	if (rc && locator->prompt.length >= locator->cursor && begins_with(locator->whole, part_of(&locator->prompt))) {
		out->first = locator->prompt.length;
		has_first = 1;
	}
	/* the last turn's end must be one that another turn may follow */
	rc = render(locator, (struct change){turn + 1, SIZE_MAX, turn + 1 == all ? "user" : NULL, RH_CHAT_WHOLE}, &locator->so_far);
	if (rc < 0)
		return rc;
	struct part upto = turn + 1 == all ? locator->whole : part_of(&locator->so_far);
	if (rc && begins_with(turn + 1 == all ? part_of(&locator->so_far) : locator->whole, upto)) {
		out->end = without_blanks(upto);
		has_end = ends_with_token(tokenizer, (struct part){upto.bytes, out->end});
	}
	if (has_first && has_end && out->first <= out->end)
		return 1;
	struct middle middle = {0};
	rc = find_middle(locator, turn, &middle);
	if (rc > 0 && !has_first)
		rc = find_start(locator, turn, &middle, &out->first);
	if (rc > 0 && !has_end)
		rc = find_end(locator, turn, &middle, &out->end);
	return rc > 0 ? out->first <= out->end && out->first >= locator->cursor && out->end <= locator->whole.length : rc;
}

static int push(struct rh_chat_spans *spans, struct rh_chat_span span)
{
	int rc = rh_grow(&spans->span, &spans->capacity, spans->count + 1, sizeof *spans->span);
	if (!rc)
		spans->span[spans->count++] = span;
	return rc;
}

static int locate_all(struct locator *locator, struct rh_chat_spans *spans)
{
	int rc = 0;
	size_t i;
	const json_t *message;
	json_array_foreach(locator->messages, i, message)
	{
		struct rh_chat_span span = {.message = i};
		if (!rh_chat_is_assistant(message))
			continue;
		rc = locate(locator, i, &span);
		if (rc > 0)
			rc = holds_calls(locator, i, &span);
		if (!rc) {
			rc = rh_fail(-EINVAL,
			             "%s: message %zu: chat template %s does not let the assistant's turn be located; mark it with {%% "
			             "generation "
			             "%%} in a copy of the template, or train every token",
			             locator->chat->where, i + 1, locator->chat->form->name);
			break;
		}
		locator->cursor = span.end;
		rc = rc < 0 ? rc : span.first < span.end ? push(spans, span) : 0;
		if (rc)
			break;
	}
	rh_text_free(&locator->prompt);
	rh_text_free(&locator->so_far);
	rh_text_free(&locator->marked);
	rh_text_free(&locator->ended);
	rh_text_free(&locator->next);
	return rc;
}

/* Takes the ranges that {% generation %} marks. If there are as many as assistants' messages, they are these messages, one by one. */
static int take_marks(const struct rh_jinja_spans *marks, const json_t *messages, struct rh_chat_spans *spans)
{
	size_t assistants = 0, at = 0, i;
	const json_t *message;
	int rc = 0;
	json_array_foreach(messages, i, message) assistants += (size_t)rh_chat_is_assistant(message);
	for (size_t k = 0; !rc && k < marks->count; k++) {
		while (assistants == marks->count && !rh_chat_is_assistant(json_array_get(messages, at)))
			at++;
		size_t which = assistants == marks->count ? at++ : SIZE_MAX;
		if (marks->span[k].first < marks->span[k].end)
			rc = push(spans, (struct rh_chat_span){marks->span[k].first, marks->span[k].end, which});
	}
	return rc;
}

int rh_chat_locate(const struct rh_chat *chat, const json_t *conversation, const struct rh_text *rendered, struct rh_chat_spans *spans)
{
	json_t *variables = NULL;
	spans->count = 0;
	int rc = chat_variables(chat, conversation, &variables);
	if (rc)
		return rc;
	const json_t *messages = json_object_get(variables, "messages");
	struct rh_jinja_spans marks = {0};
	int is_marked = rh_jinja_has_generation(chat->form->jinja);
	if (is_marked) {
		struct rh_text again = {0};
		rc = chat_render_some(chat, variables, messages, RH_CHAT_WHOLE, &again, &marks);
		rh_text_free(&again);
		is_marked = !marks.is_hidden;
		if (!rc && is_marked)
			rc = take_marks(&marks, messages, spans);
		rh_jinja_spans_free(&marks);
	}
	if (!rc && !is_marked) {
		struct locator locator = {.chat = chat, .variables = variables, .messages = messages, .whole = part_of(rendered)};
		rc = locate_all(&locator, spans);
	}
	json_decref(variables);
	return rc;
}
