/* How a model wants to be prompted: the template that a run trained with, which its output's directory tells of (roundhouse.json). */
#ifndef RH_SESSION_PROMPTING_H
#define RH_SESSION_PROMPTING_H

#include "config/config.h"
#include "core/json.h"
#include "data/chat.h"

struct rh_prompting {
	struct rh_chat_template *chat; /* NULL: prompts as they stand */
	char *date;
	int is_trained;  /* the files say so; else it is the model's own, or named */
	int is_adapters; /* it lies beside the adapter, whatever the model brings */
};
/* For a person: a name, "of the model" or "of the adapter". There is a template. */
const char *rh_prompting_name(const struct rh_prompting *prompting);
/* chat_template where the configuration has one (a name, a file, none); else what adapter_name_or_path, then the model's files tell:
 * the training's template, or none for plain text; else the template that the model brings, is_trained 0. -EINVAL where a named template
 * does not suit the vocabulary. */
int rh_prompting_open(const struct rh_config *config, const struct rh_tokenizer *tokenizer, struct rh_prompting *out) RH_MUST;
void rh_prompting_close(struct rh_prompting *prompting);
/* Ids of a conversation, {"messages": [...], "tools": ...}, with the opening of the answer. */
int rh_prompting_encode(const struct rh_prompting *prompting, const struct rh_tokenizer *tokenizer, const json_t *conversation,
                        struct rh_ids *out) RH_MUST;

/* The template that conversations with an adapter go through where no key names one: that of the training which its roundhouse.json tells
 * of, else, for a base without a template, the one beside the adapter. *text is the caller's (rh_free), NULL: there is none. */
int rh_prompting_of_adapter(const char *dir, int base_has_template, char **text) RH_MUST;

#endif
