/* The conversation that a prompt begins or continues: what the keys system, tools and messages_file say. */
#ifndef RH_SESSION_CONVERSATION_H
#define RH_SESSION_CONVERSATION_H

#include "config/config.h"
#include "core/json.h"

/* {"messages": [...], "tools": [...]}, and what else the object of messages_file holds for templates; the messages may be none yet. The
 * caller's (json_decref). -EINVAL: a file that holds something else, or two system messages. */
int rh_conversation_open(const struct rh_config *config, json_t **out) RH_MUST;
/* Does one of these keys ask for a conversation? *key is its name; NULL is legal. */
int rh_conversation_is_asked_for(const struct rh_config *config, const char **key);

/* Adds a message. -EINVAL: `content` is not valid UTF-8. */
int rh_conversation_add(json_t *conversation, const char *role, const char *content, size_t length) RH_MUST;
/* Sets the system message: the first, in place of one that is there. */
int rh_conversation_set_system(json_t *conversation, const char *content, size_t length) RH_MUST;
/* The system message's text, borrowed; NULL: there is none, or it is no text. */
const char *rh_conversation_system(const json_t *conversation);

#endif
