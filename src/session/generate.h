/* Text from a model, with or without an adapter: greedy, or sampled by temperature, top_k, top_p and min_p. */
#ifndef RH_SESSION_GENERATE_H
#define RH_SESSION_GENERATE_H

#include "session/session.h"

/* Continues `prompt` until a token that ends a text (of config.json, generation_config.json or the tokenizer) or
 * max_new_tokens; appends to *out. The executor must have been started for it: see rh_generate_workload. */
int rh_generate(struct rh_session *session, const struct rh_ids *prompt, struct rh_ids *out) RH_MUST;
/* The same; `tell` is called after each token with all of them. It ends the text where it returns 1, and with an error where that is
 * negative. */
int rh_generate_told(struct rh_session *session, const struct rh_ids *prompt, struct rh_ids *out,
                     int (*tell)(void *context, const struct rh_ids *out), void *context) RH_MUST;

/* Appends all tokens that end a text: those of config.json, of generation_config.json, and the tokenizer's. Ids alone need no tokenizer. */
int rh_generate_ends(const struct rh_session *session, struct rh_ids *ends) RH_MUST;
int rh_generate_is_end(const struct rh_ids *ends, int32_t id);

struct rh_workload rh_generate_workload(const struct rh_config *config, int64_t prompt_tokens);

#endif
