/* sample_prompts: prompts that a run answers at each evaluation, so that one sees what it has learned. Always the likeliest token, all
 * prompts together, a forward pass a token over the weights where they lie. */
#ifndef RH_SESSION_SAMPLES_H
#define RH_SESSION_SAMPLES_H

#include "data/dataset.h"
#include "session/session.h"

struct rh_sample {
	const char *prompt; /* the configuration's */
	struct rh_ids ids;  /* the prompt as the run's rows have it, and behind it the answer so far */
	size_t prompt_tokens;
	int has_ended; /* by a token that ends a text, in the latest answer */
};

struct rh_samples {
	struct rh_sample *sample;
	size_t count; /* 0: nothing is asked */
	int64_t most; /* tokens of an answer */
	int32_t turn_end;
};

/* Encodes the prompts as `train`, the run's rows, are: through its template where these are conversations. Nothing, where none are asked.
 * Free *out in any case. */
int rh_samples_make(const struct rh_config *config, const struct rh_tokenizer *tokenizer, const struct rh_dataset *train,
                    struct rh_samples *out) RH_MUST;
void rh_samples_free(struct rh_samples *samples);

/* Widens what the evaluation needs (work->infer; there is one) to what the answers need. -EINVAL: a prompt and its answer are longer than
 * the model knows positions. */
int rh_samples_widen(const struct rh_samples *samples, const struct rh_model_config *model, struct rh_workload *work) RH_MUST;

/* Answers all prompts; `ids` of each then ends in its answer. The session was started for such a workload and nothing is in flight. */
int rh_samples_answer(struct rh_samples *samples, struct rh_session *session) RH_MUST;
/* The answer's text, appended. */
int rh_sample_text(const struct rh_sample *sample, const struct rh_tokenizer *tokenizer, struct rh_text *out) RH_MUST;

#endif
