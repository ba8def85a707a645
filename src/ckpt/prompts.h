/* How the rows of a model's training were given: a directory's roundhouse.json, or two keys of a GGUF file's metadata. */
#ifndef RH_CKPT_PROMPTS_H
#define RH_CKPT_PROMPTS_H

#include "ckpt/gguf_out.h"

#define RH_GGUF_PROMPTS      "roundhouse.prompts"
#define RH_GGUF_PROMPTS_DATE "roundhouse.chat_template_date"

struct rh_prompts {
	int is_told;      /* 0: nothing says it */
	int is_chat;      /* conversations, else plain text */
	char *date;       /* the day that their template was given; NULL: not said */
	const char *base; /* of an adapter: the digest of the weights that it was trained on; borrowed, written only; NULL: none */
	/* of a run with losses over preferences: what its reference was, a model's path, and an adapter's or NULL; likewise */
	const char *reference_model, *reference_adapter;
};
/* Of a directory, or of a GGUF file that is read (a path that is neither: not told). */
int rh_prompts_read(const char *place, struct rh_prompts *out) RH_MUST;
/* That digest, as a directory's file has it; "": it does not say. */
int rh_prompts_base(const char *dir, char *digest, size_t bytes) RH_MUST;
/* The reference of the run that wrote `dir`; both are the caller's (rh_free). *model NULL: it does not say. */
int rh_prompts_reference(const char *dir, char **model, char **adapter) RH_MUST;
void rh_prompts_free(struct rh_prompts *prompts);
/* Nothing where they are not told. */
int rh_prompts_write(const struct rh_prompts *prompts, const char *dir) RH_MUST;
int rh_prompts_write_gguf(const struct rh_prompts *prompts, struct rh_gguf_out *out) RH_MUST;

#endif
