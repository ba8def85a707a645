#include "session/samples.h"

#include "core/alloc.h"
#include "core/minmax.h"
#include "data/chat.h"
#include "session/generate.h"
#include "session/prompting.h"

#include <stdint.h>
#include <string.h>

/* As a message of the user, through the template of the run's conversations. */
static int encode_message(const struct rh_prompting *prompting, const struct rh_tokenizer *tokenizer, struct rh_sample *sample)
{
	json_t *conversation = json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", sample->prompt);
	int rc = conversation ? rh_prompting_encode(prompting, tokenizer, conversation, &sample->ids) : -ENOMEM;
	json_decref(conversation);
	return rc;
}

/* As it stands; what a tokenizer puts behind a text as its end would leave nothing to answer. */
static int encode_text(const struct rh_tokenizer *tokenizer, struct rh_sample *sample)
{
	struct rh_ids *ids = &sample->ids;
	int rc = rh_tokenizer_encode(tokenizer, sample->prompt, strlen(sample->prompt), RH_TOKENS_WITH_SPECIAL, ids);
	if (!rc && ids->count > 1 && ids->id[ids->count - 1] == rh_tokenizer_eos(tokenizer))
		ids->count--;
	return rc;
}

int rh_samples_make(const struct rh_config *config, const struct rh_tokenizer *tokenizer, const struct rh_dataset *train,
                    struct rh_samples *out)
{
	const struct rh_list *prompts = &config->sample_prompts;
	struct rh_prompting prompting = {.date = config->chat_template_date};
	*out = (struct rh_samples){.most = config->sample_max_new_tokens, .turn_end = train->turn_end};
	if (!prompts->count)
		return 0;
	if (train->objective.task != RH_TASK_CAUSAL_LM)
		return rh_fail(-EINVAL, "sample_prompts: this model does not continue texts, so it answers none; leave the key out");
	int is_chat = train->chat_template != NULL,
	    rc = is_chat ? rh_chat_template_open(config->chat_template, rh_tokenizer_chat_template(tokenizer), &prompting.chat) : 0;
	if (!rc)
		rc = (out->sample = rh_alloc(prompts->count, sizeof *out->sample)) ? 0 : -ENOMEM;
	for (; !rc && out->count < prompts->count; out->count++) {
		struct rh_sample *sample = &out->sample[out->count];
		*sample = (struct rh_sample){.prompt = prompts->item[out->count]};
		rc = is_chat ? encode_message(&prompting, tokenizer, sample) : encode_text(tokenizer, sample);
		sample->prompt_tokens = sample->ids.count;
		if (!rc && !sample->ids.count)
			rc = rh_fail(-EINVAL, "sample_prompts: '%.80s' has no token; leave it out", sample->prompt);
		if (!rc) /* so that answering allocates nothing */
			rc = rh_grow(&sample->ids.id, &sample->ids.capacity, sample->ids.count + (size_t)out->most, sizeof *sample->ids.id);
	}
	rh_chat_template_close(prompting.chat);
	return rc;
}

void rh_samples_free(struct rh_samples *samples)
{
	for (size_t i = 0; i < samples->count; i++)
		rh_ids_free(&samples->sample[i].ids);
	rh_free(samples->sample);
	*samples = (struct rh_samples){0};
}

/* Prompts of one micro-batch: as many as it takes for all of them to go into one call. */
static size_t prompts_each(const struct rh_samples *samples, int64_t micro_batches)
{
	return (samples->count + (size_t)micro_batches - 1) / (size_t)micro_batches;
}

/* The largest micro-batch: the longest prompts come together nowhere else. */
static struct rh_micro_shape largest(const struct rh_samples *samples, size_t each)
{
	struct rh_micro_shape most = {.documents = (int64_t)each, .head_rows = (int64_t)each, .top = 1};
	for (size_t first = 0; first < samples->count; first += each) {
		int64_t tokens = 0;
		for (size_t i = first; i < samples->count && i < first + each; i++) {
			int64_t length = (int64_t)samples->sample[i].prompt_tokens + samples->most;
			tokens += length;
			most.longest = rh_max(most.longest, length);
		}
		most.tokens = rh_max(most.tokens, tokens);
	}
	return most;
}

/* Of the arrays of all micro-batches. */
static int64_t numbers_bytes(const struct rh_samples *samples, const struct rh_micro_shape *most, int64_t micro_batches)
{
	int64_t each = 2 * most->tokens + 5 * most->documents + 1;
	return samples->count ? micro_batches * (each * (int64_t)sizeof(int32_t) + (int64_t)sizeof(struct rh_micro_batch)) : 0;
}

int rh_samples_widen(const struct rh_samples *samples, const struct rh_model_config *model, struct rh_workload *work)
{
	int64_t known = rh_model_longest(model);
	struct rh_micro_shape *infer = &work->infer;
	if (!samples->count)
		return 0;
	RH_ASSERT(work->infer_micro_batches > 0);
	const struct rh_micro_shape most = largest(samples, prompts_each(samples, work->infer_micro_batches));
	for (size_t i = 0; i < samples->count; i++)
		if ((int64_t)samples->sample[i].prompt_tokens + samples->most > known)
			return rh_fail(-EINVAL,
			               "sample_prompts: the %lld tokens of '%.40s' and sample_max_new_tokens, %lld, are above the %lld "
			               "positions that the model knows; lower sample_max_new_tokens, or shorten the prompt",
			               (long long)samples->sample[i].prompt_tokens, samples->sample[i].prompt, (long long)samples->most,
			               (long long)known);
	infer->tokens = rh_max(infer->tokens, most.tokens);
	infer->documents = rh_max(infer->documents, most.documents);
	infer->longest = rh_max(infer->longest, most.longest);
	infer->head_rows = rh_max(infer->head_rows, most.head_rows);
	infer->top = most.top;
	work->data_bytes += most.tokens * (int64_t)sizeof(int32_t) + numbers_bytes(samples, &most, work->infer_micro_batches);
	return 0;
}

/* A call's micro-batches, and the arrays that they point into. */
struct asking {
	struct rh_samples *samples;
	struct rh_micro_batch *micro;
	int32_t *numbers;
	float *told; /* of each prompt: the likeliest token, and its share */
	size_t each;
	struct rh_ids ends;
};

/* Writes a micro-batch of those prompts of [first, end) that have not ended; returns what is left of the numbers. */
static int32_t *write_micro(struct asking *asking, size_t first, size_t end, int32_t *numbers, struct rh_micro_batch *out)
{
	struct rh_micro_shape shape = {.top = 1};
	for (size_t i = first; i < end; i++)
		if (!asking->samples->sample[i].has_ended) {
			int64_t tokens = (int64_t)asking->samples->sample[i].ids.count;
			shape.tokens += tokens;
			shape.longest = rh_max(shape.longest, tokens);
			shape.documents++;
		}
	shape.head_rows = shape.documents;
	int32_t *ids = numbers, *position = ids + shape.tokens, *start = position + shape.tokens, *head_row = start + shape.documents + 1,
	        *target = head_row + shape.documents;
	int64_t at = 0, d = 0;
	for (size_t i = first; i < end; i++) {
		const struct rh_sample *sample = &asking->samples->sample[i];
		if (sample->has_ended)
			continue;
		start[d] = (int32_t)at;
		for (size_t t = 0; t < sample->ids.count; t++, at++) {
			ids[at] = sample->ids.id[t];
			position[at] = (int32_t)t;
		}
		target[d] = 0; /* no loss is asked for */
		head_row[d++] = (int32_t)at - 1;
	}
	start[d] = (int32_t)at;
	*out = (struct rh_micro_batch){.shape = shape,
	                               .ids = ids,
	                               .position = position,
	                               .start_q = start,
	                               .start_k = start,
	                               .head_row = head_row,
	                               .target = target,
	                               .scores = asking->told + 2 * first};
	return target + shape.documents;
}

/* Takes the tokens that came back; a token that ends the text, or that no file names, is none of the answer. */
static void take(struct asking *asking, const struct rh_session *session, size_t first, size_t end)
{
	const float *told = asking->told + 2 * first;
	for (size_t i = first; i < end; i++) {
		struct rh_sample *sample = &asking->samples->sample[i];
		if (sample->has_ended)
			continue;
		int32_t id = (int32_t)told[0];
		told += 2;
		if (id < 0 || id >= rh_tokenizer_size(session->tokenizer) || !rh_tokenizer_text(session->tokenizer, id) ||
		    id == asking->samples->turn_end || rh_generate_is_end(&asking->ends, id))
			sample->has_ended = 1;
		else
			sample->ids.id[sample->ids.count++] = id;
	}
}

/* Where the micro-batch ends whose first prompt this is. */
static size_t end_of(const struct asking *asking, size_t first)
{
	size_t count = asking->samples->count;
	return first + asking->each < count ? first + asking->each : count;
}

/* One more token of each prompt. *asked: how many there still were. */
static int step(struct asking *asking, struct rh_session *session, int64_t *asked)
{
	size_t count = asking->samples->count, first[RH_SAMPLES_MOST];
	int32_t *numbers = asking->numbers;
	int64_t micro_batches = 0;
	*asked = 0;
	for (size_t at = 0; at < count; at += asking->each) {
		struct rh_micro_batch *micro = &asking->micro[micro_batches];
		int32_t *rest = write_micro(asking, at, end_of(asking, at), numbers, micro);
		if (!micro->shape.documents)
			continue;
		numbers = rest;
		*asked += micro->shape.documents;
		first[micro_batches++] = at;
	}
	int rc = micro_batches ? rh_executor_infer(session->executor, asking->micro, micro_batches) : 0;
	for (int64_t m = 0; !rc && m < micro_batches; m++)
		take(asking, session, first[m], end_of(asking, first[m]));
	return rc;
}

int rh_samples_answer(struct rh_samples *samples, struct rh_session *session)
{
	int64_t micro_batches = session->work.infer_micro_batches, asked = 1;
	struct asking asking = {.samples = samples, .each = prompts_each(samples, micro_batches)};
	const struct rh_micro_shape most = largest(samples, asking.each);
	asking.micro = rh_alloc((size_t)micro_batches, sizeof *asking.micro);
	asking.numbers = rh_alloc((size_t)numbers_bytes(samples, &most, micro_batches), 1);
	asking.told = rh_alloc(2 * samples->count, sizeof *asking.told);
	int rc = asking.micro && asking.numbers && asking.told ? rh_generate_ends(session, &asking.ends) : -ENOMEM;
	for (size_t i = 0; i < samples->count; i++) {
		samples->sample[i].ids.count = samples->sample[i].prompt_tokens;
		samples->sample[i].has_ended = 0;
	}
	for (int64_t made = 0; !rc && asked && made < samples->most; made++)
		rc = step(&asking, session, &asked);
	rh_free(asking.micro);
	rh_free(asking.numbers);
	rh_free(asking.told);
	rh_ids_free(&asking.ends);
	return rc;
}

int rh_sample_text(const struct rh_sample *sample, const struct rh_tokenizer *tokenizer, struct rh_text *out)
{
	return rh_tokenizer_decode(tokenizer, sample->ids.id + sample->prompt_tokens, sample->ids.count - sample->prompt_tokens,
	                           RH_SPECIALS_SKIP, out);
}
