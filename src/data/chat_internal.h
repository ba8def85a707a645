/* A conversation as templates see it, and Python's string methods that their texts use. */
#ifndef RH_DATA_CHAT_INTERNAL_H
#define RH_DATA_CHAT_INTERNAL_H

#include "data/chat.h"

#include <stdint.h>

struct chat_string {
	const char *bytes; /* UTF-8, may hold NUL; NULL: not there */
	size_t length;
};

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };
const char *chat_role_name(enum chat_role role);

struct chat_message {
	enum chat_role role;
	struct chat_string content, reasoning; /* borrowed from the JSON */
};

struct chat_writer {
	const struct rh_chat_template *chat;
	struct chat_message *message; /* (count), at least one */
	size_t count;
	enum rh_chat_end end;
	const char *bos, *where;
	struct rh_text *out;
	struct rh_chat_spans *spans;
	int rc; /* the first fault */
};

/* *out is rh_free'd by the caller, also on failure. -EINVAL names the message and what is wrong with it. */
int chat_messages_read(const json_t *messages, const char *where, struct chat_message **out, size_t *count) RH_MUST;

/* str.strip() of Python's whitespace (Unicode's), or of newlines only. */
enum chat_side { CHAT_LEFT = 1, CHAT_RIGHT = 2, CHAT_BOTH = 3 };
enum chat_blank { CHAT_WHITESPACE, CHAT_NEWLINES };
struct chat_string chat_strip(struct chat_string string, enum chat_side side, enum chat_blank blank);
int chat_starts_with(struct chat_string string, const char *mark);
int chat_ends_with(struct chat_string string, const char *mark);
/* The tail of `string` that begins with the last `mark`; NULL if there is none. */
struct chat_string chat_find_last(struct chat_string string, const char *mark);
/* string.split(mark)[0] and [-1] */
struct chat_string chat_before_first(struct chat_string string, const char *mark);
struct chat_string chat_after_last(struct chat_string string, const char *mark);
int chat_concat(struct rh_text *out, const struct chat_string *part, size_t count) RH_MUST;

/* The built-ins as Jinja. */
extern const char chat_jinja_chatml[], chat_jinja_smollm2[], chat_jinja_qwen2[], chat_jinja_qwen25[], chat_jinja_qwen3[],
        chat_jinja_llama2[], chat_jinja_llama3[], chat_jinja_llama31[];

/* XXH3-128 of the template texts that models bring (less one newline at the end), and the built-in that renders the same. */
struct chat_known_text {
	uint64_t high, low;
	const char *name;
};
extern const struct chat_known_text chat_known_text[];
extern const size_t chat_known_texts;

#endif
