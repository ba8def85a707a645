#include "session/generate.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/json.h"
#include "core/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct rh_workload rh_generate_workload(const struct rh_config *config, int64_t prompt_tokens)
{
	struct rh_workload work = {.infer_micro_batches = 1, .infer_logits = 1};
	work.cache_rows = prompt_tokens + config->max_new_tokens;
	work.infer = (struct rh_micro_shape){
	        .tokens = prompt_tokens, .documents = 1, .longest = prompt_tokens, .head_rows = 1, .keys = work.cache_rows};
	return work;
}

struct candidate {
	float logit;
	int32_t id;
};

/* Largest first; equal logits by id, so that sampling does not depend on the sort. */
static int by_logit(const void *left, const void *right)
{
	const struct candidate *a = left, *b = right;
	if (a->logit != b->logit)
		return a->logit < b->logit ? 1 : -1;
	return (a->id > b->id) - (a->id < b->id);
}

static int32_t greedy(const float *logits, int64_t count)
{
	int64_t best = 0;
	for (int64_t i = 1; i < count; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

static double weight(const struct rh_config *config, const struct candidate *sorted, int64_t i)
{
	return exp(((double)sorted[i].logit - (double)sorted[0].logit) / config->temperature);
}

/* How many of the candidates, likeliest first, may be drawn, and the sum of their weights. In the order of transformers' warpers: the top_k
 * likeliest (with those that are as likely as the last), of these the smallest set that reaches top_p, of these what min_p leaves. */
static int64_t count_kept(const struct rh_config *config, const struct candidate *sorted, int64_t count, double *kept)
{
	double total = 0;
	int64_t most = count, n = 0;
	if (config->top_k && config->top_k < count)
		for (most = config->top_k; most < count && !(sorted[most].logit < sorted[config->top_k - 1].logit);)
			most++;
	for (int64_t i = 0; i < most; i++)
		total += weight(config, sorted, i);
	*kept = 0;
	do {
		*kept += weight(config, sorted, n++);
	} while (n < most && *kept < config->top_p * total && weight(config, sorted, n) >= config->min_p);
	return n;
}

static int32_t sample(const struct rh_config *config, const float *logits, int64_t count, int64_t position, struct candidate *scratch)
{
	for (int64_t i = 0; i < count; i++)
		scratch[i] = (struct candidate){logits[i], (int32_t)i};
	qsort(scratch, (size_t)count, sizeof *scratch, by_logit);
	double kept, reached = 0;
	int64_t last = count_kept(config, scratch, count, &kept) - 1;
	struct rh_philox_block bits = rh_philox(config->seed, (uint32_t)position, 0, 0, RH_PHILOX_SAMPLE);
	double point = ((double)bits.word[0] + 0.5) * 0x1p-32 * kept;
	for (int64_t i = 0; i < last; i++) {
		reached += weight(config, scratch, i);
		if (point < reached)
			return scratch[i].id;
	}
	return scratch[last].id;
}

/* Of each token that stands in the prompt or the answer, once, as transformers does it. */
static void penalise(const struct rh_config *config, const uint8_t *is_said, int64_t count, float *logits)
{
	float penalty = (float)config->repetition_penalty;
	for (int64_t i = 0; i < count; i++)
		if (is_said[i])
			logits[i] = logits[i] < 0 ? logits[i] * penalty : logits[i] / penalty;
}

static int append(struct rh_ids *ids, int32_t id)
{
	int rc = rh_grow(&ids->id, &ids->capacity, ids->count + 1, sizeof *ids->id);
	if (!rc)
		ids->id[ids->count++] = id;
	return rc;
}

/* Adds what generation_config.json in `dir` names as the end: a token or a list of them. */
static int add_generation_ends(const char *dir, struct rh_ids *ends)
{
	json_t *json = NULL;
	if (!dir || !rh_dir_exists(dir))
		return 0;
	char *path = rh_path_join(dir, "generation_config.json");
	int rc = !path ? -ENOMEM : rh_file_exists(path) ? rh_json_load(path, &json) : 0;
	const json_t *said = json_object_get(json, "eos_token_id");
	size_t count = json_is_array(said) ? json_array_size(said) : 1;
	for (size_t i = 0; !rc && i < count; i++) {
		const json_t *id = json_is_array(said) ? json_array_get(said, i) : said;
		if (json_is_integer(id))
			rc = append(ends, (int32_t)json_integer_value(id));
	}
	json_decref(json);
	rh_free(path);
	return rc;
}

int rh_generate_ends(const struct rh_session *session, struct rh_ids *ends)
{
	const struct rh_config *config = session->config;
	int rc = add_generation_ends(config->model_name_or_path, ends);
	if (!rc)
		rc = add_generation_ends(config->adapter_name_or_path, ends);
	for (int64_t i = 0; !rc && i < session->model_config->eos_token_ids; i++)
		rc = append(ends, (int32_t)session->model_config->eos_token_id[i]);
	return rc || !session->tokenizer ? rc : append(ends, rh_tokenizer_eos(session->tokenizer));
}

int rh_generate_is_end(const struct rh_ids *ends, int32_t id)
{
	for (size_t i = 0; i < ends->count; i++)
		if (ends->id[i] == id)
			return 1;
	return 0;
}

/* One forward pass over `count` new tokens that stand at `first`; the last one's logits come back. */
static int forward(struct rh_session *session, const int32_t *ids, int64_t first, int64_t count, int32_t *position, float *logits)
{
	int32_t start_q[2] = {0, (int32_t)count}, start_k[2] = {0, (int32_t)(first + count)}, last = (int32_t)count - 1;
	for (int64_t i = 0; i < count; i++)
		position[i] = (int32_t)(first + i);
	struct rh_micro_batch micro = {
	        .ids = ids, .position = position, .start_q = start_q, .start_k = start_k, .head_row = &last, .scores = logits};
	micro.shape = (struct rh_micro_shape){
	        .tokens = count, .documents = 1, .longest = count, .head_rows = 1, .keys = first + count, .first = first};
	return rh_executor_infer(session->executor, &micro, 1);
}

int rh_generate(struct rh_session *session, const struct rh_ids *prompt, struct rh_ids *out)
{
	return rh_generate_told(session, prompt, out, NULL, NULL);
}

int rh_generate_told(struct rh_session *session, const struct rh_ids *prompt, struct rh_ids *out,
                     int (*tell)(void *context, const struct rh_ids *out), void *context)
{
	const struct rh_config *config = session->config;
	int64_t vocabulary = session->model_config->vocab_size, at = 0;
	float *logits = rh_alloc((size_t)vocabulary, sizeof *logits);
	int32_t *position = rh_alloc(prompt->count, sizeof *position);
	struct candidate *scratch = rh_alloc((size_t)vocabulary, sizeof *scratch);
	uint8_t *is_said = rh_alloc((size_t)vocabulary, 1);
	int penalises = config->repetition_penalty > 0 && config->repetition_penalty != 1;
	struct rh_ids ends = {0};
	int rc = logits && position && scratch && is_said ? rh_generate_ends(session, &ends) : -ENOMEM;
	for (size_t i = 0; !rc && i < prompt->count; i++)
		is_said[prompt->id[i]] = 1;
	for (int64_t made = 0; !rc && made < config->max_new_tokens; made++) {
		const int32_t *ids = made ? &out->id[out->count - 1] : prompt->id;
		int64_t count = made ? 1 : (int64_t)prompt->count;
		rc = forward(session, ids, at, count, position, logits);
		if (rc)
			break;
		at += count;
		if (penalises)
			penalise(config, is_said, vocabulary, logits);
		int32_t next = config->temperature > 0 ? sample(config, logits, vocabulary, made, scratch) : greedy(logits, vocabulary);
		is_said[next] = 1;
		rc = append(out, next);
		int told = !rc && tell ? tell(context, out) : 0;
		rc = told < 0 ? told : rc;
		if (told > 0 || rh_generate_is_end(&ends, next))
			break;
	}
	rh_free(is_said);
	rh_free(logits);
	rh_free(position);
	rh_free(scratch);
	rh_ids_free(&ends);
	return rc;
}
