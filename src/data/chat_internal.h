/* A chat template, and the variables that it sees. */
#ifndef RH_DATA_CHAT_INTERNAL_H
#define RH_DATA_CHAT_INTERNAL_H

#include "data/chat.h"
#include "jinja/jinja.h"

/* Which form of text content a template accepts. */
enum chat_content { CHAT_CONTENT_UNKNOWN, CHAT_CONTENT_ANY, CHAT_CONTENT_STRINGS, CHAT_CONTENT_PARTS };

/* How a template takes the arguments of calls: as objects alone, or their JSON text too, which some write in quotes once more. */
enum chat_arguments { CHAT_ARGUMENTS_UNKNOWN, CHAT_ARGUMENTS_ANY, CHAT_ARGUMENTS_OBJECTS, CHAT_ARGUMENTS_QUOTED };

struct rh_chat_template {
	const char *name;
	char *text;
	const char *const *marker; /* of a built-in: tokens that it writes around turns, NULL-terminated; else NULL */
	struct rh_jinja *jinja;
	enum chat_content content;
	enum chat_arguments arguments;
};

/* A built-in: chat_texts.c. */
struct chat_text {
	const char *name, *text;
	const char *const *marker;
};
extern const struct chat_text chat_text[];
extern const size_t chat_texts;

/* The variables that a template sees, as transformers makes them; json_decref it. `content` is what the template takes. */
int chat_variables(const struct rh_chat *chat, const json_t *conversation, json_t **out) RH_MUST;
/* Renders `messages` with `variables`; records the spans of marks in `spans`, unless that is NULL. */
int chat_render_some(const struct rh_chat *chat, const json_t *variables, const json_t *messages, enum rh_chat_end end, struct rh_text *out,
                     struct rh_jinja_spans *spans) RH_MUST;
int chat_out_of_memory(const struct rh_chat *chat);

#endif
