/* Generation: greedy text of every reference model, on one stage and under caps; sampling by seed. tests/reference/README.md. */
#include "rig.h"

#include "core/alloc.h"
#include "session/generate.h"

#include <math.h>

static const char *const models[] = {"llama2",
                                     "llama3",
                                     "llama-bias",
                                     "smollm2",
                                     "qwen2",
                                     "qwen3",
                                     "mistral",
                                     "phi3",
                                     "gemma3",
                                     "qwen3-moe",
                                     "gpt-oss",
                                     "gguf-llama",
                                     "gguf-qwen2",
                                     "gpt2",
                                     "gguf-gpt2",
                                     "gguf-gemma3",
                                     "gguf-qwen3-moe",
                                     "gguf-gpt-oss",
                                     "gguf-phi3",
                                     "gguf-mistral3",
                                     "gemma3-vision",
                                     "mistral3",
                                     "qwen3.5",
                                     "qwen3.5-vision",
                                     "smollm3",
                                     "olmo2",
                                     "olmo3",
                                     "granite",
                                     "granite4",
                                     "ministral3",
                                     "qwen3.5-moe",
                                     "qwen3.5-moe-vision",
                                     "gemma4",
                                     "gemma4-vision",
                                     "gguf-smollm3",
                                     "gguf-olmo2",
                                     "gguf-granite",
                                     "gemma4-moe",
                                     "glm4-lite",
                                     "gemma4-e2b",
                                     "deepseek3",
                                     "gguf-olmo3",
                                     "gguf-qwen3.5",
                                     "gguf-qwen3.5-moe",
                                     "qwen3-next",
                                     "gguf-qwen3-next",
                                     "gguf-ministral3",
                                     "muse-glimmer",
                                     "gguf-muse-glimmer",
                                     "gguf-gemma4",
                                     "gguf-gemma4-e2b"};
enum { MODELS = sizeof models / sizeof *models, TOKENS = 64 };

struct way {
	const char *device, *adapter;
	int64_t cap; /* bytes of device memory, 0: all */
	double temperature, top_p, repetition_penalty;
	uint64_t seed;
};

struct text {
	int32_t id[TOKENS];
	int stages;
	int64_t device_bytes;
	int rc;
};

/* 64 tokens after the reference's prompt: no token ends the text here, as in the reference. */
static struct text generate(const char *model, const struct way *way)
{
	struct rig rig;
	struct text text = {0};
	int64_t count;
	rig_open(&rig, model, way->adapter);
	rig.config.device = (char *)(uintptr_t)way->device;
	rig.config.max_vram = way->cap;
	rig.config.max_new_tokens = TOKENS;
	rig.config.temperature = way->temperature;
	rig.config.top_p = way->top_p;
	rig.config.repetition_penalty = way->repetition_penalty;
	rig.config.seed = way->seed;
	const int32_t *prompt = rig_ints(&rig, "greedy", "prompt", &count);
	struct rh_ids ids = {.id = (int32_t *)(uintptr_t)prompt, .count = (size_t)count}, out = {0};
	struct rh_workload work = rh_generate_workload(&rig.config, count);
	check_ok(rh_session_open(&rig.config, RH_SESSION_INFERS, &rig.session));
	((struct rh_model_config *)(uintptr_t)rig.session.model_config)->eos_token_ids = 0;
	text.rc = rh_session_start(&rig.session, &work);
	if (!text.rc)
		check_ok(rh_generate(&rig.session, &ids, &out));
	if (!text.rc) {
		assert_int_equal(out.count, TOKENS);
		memcpy(text.id, out.id, sizeof text.id);
		text.stages = rig.session.plan.stages.forward_stages + rig.session.plan.stages.backward_stages;
		text.device_bytes = rig.session.plan.stages.device_bytes;
	}
	rh_ids_free(&out);
	rig_close(&rig);
	return text;
}

static const struct way greedy = {.device = "cpu:1", .top_p = 1, .seed = 42};

static void is_reference(const char *model, const struct text *text)
{
	struct rig rig;
	int64_t count;
	rig_open(&rig, model, NULL);
	const int32_t *expected = rig_ints(&rig, "greedy", "ids", &count);
	assert_int_equal(count, TOKENS);
	for (int i = 0; i < TOKENS; i++)
		if (text->id[i] != expected[i])
			fail_msg("%s: token %d is %d, expected %d", model, i, text->id[i], expected[i]);
	rig_close(&rig);
}

static void test_greedy_text_equals_hugging_face(void **state)
{
	(void)state;
	for (int i = 0; i < MODELS; i++) {
		struct text text = generate(models[i], &greedy);
		check_ok(text.rc);
		is_reference(models[i], &text);
		struct way way = greedy;
		int most = text.stages;
		int64_t smallest = text.device_bytes;
		for (way.cap = text.device_bytes - 1; way.cap > 0; way.cap = way.cap * 15 / 16) {
			struct text capped = generate(models[i], &way);
			if (capped.rc)
				break;
			assert_true(capped.device_bytes <= way.cap);
			is_reference(models[i], &capped);
			most = capped.stages > most ? capped.stages : most;
			smallest = capped.device_bytes;
		}
		way = (struct way){.device = "cpu:3", .top_p = 1, .cap = smallest};
		struct text spread = generate(models[i], &way);
		check_ok(spread.rc);
		is_reference(models[i], &spread);
		printf("%s: 64 tokens equal from %lld bytes of device memory in one stage down to %lld in %d\n", models[i],
		       (long long)text.device_bytes, (long long)smallest, most);
		assert_true(most >= 2);
	}
}

static void test_an_adapter_changes_the_text_alike_everywhere(void **state)
{
	(void)state;
	struct way way = greedy;
	struct text plain = generate("smollm2", &way);
	way.adapter = "adapter";
	struct text adapted = generate("smollm2", &way);
	assert_memory_not_equal(plain.id, adapted.id, sizeof plain.id);
	way.device = "cpu:2";
	int stages = adapted.stages;
	for (way.cap = adapted.device_bytes - 1; way.cap > 0; way.cap = way.cap * 15 / 16) {
		struct text capped = generate("smollm2", &way);
		if (capped.rc)
			break;
		stages = capped.stages > stages ? capped.stages : stages;
		assert_memory_equal(capped.id, adapted.id, sizeof plain.id);
	}
	assert_true(stages > adapted.stages);
}

static void test_sampling_is_by_seed(void **state)
{
	(void)state;
	struct way way = {.device = "cpu:1", .temperature = 1, .top_p = 0.9, .seed = 7};
	struct text first = generate("qwen3", &way), again = generate("qwen3", &way);
	assert_memory_equal(first.id, again.id, sizeof first.id);
	way.device = "cpu:2";
	again = generate("qwen3", &way);
	assert_memory_equal(first.id, again.id, sizeof first.id);
	way.seed = 8;
	again = generate("qwen3", &way);
	assert_memory_not_equal(first.id, again.id, sizeof first.id);
}

static void test_a_tiny_top_p_or_temperature_is_greedy(void **state)
{
	(void)state;
	struct way share = {.device = "cpu:1", .temperature = 1, .top_p = 1e-9, .seed = 7};
	struct way cold = {.device = "cpu:1", .temperature = 1e-6, .top_p = 1, .seed = 7};
	struct text text = generate("llama3", &share);
	is_reference("llama3", &text);
	text = generate("llama3", &cold);
	is_reference("llama3", &text);
}

/* Logits of the token behind `count` others. */
static void score(const struct rig *rig, const int32_t *ids, int64_t count, float *logits)
{
	int32_t start[2] = {0, (int32_t)count}, last = (int32_t)count - 1, position[TOKENS];
	for (int64_t i = 0; i < count; i++)
		position[i] = (int32_t)i;
	struct rh_micro_batch micro = {
	        .ids = ids, .position = position, .start_q = start, .start_k = start, .head_row = &last, .scores = logits};
	micro.shape = (struct rh_micro_shape){.tokens = count, .documents = 1, .longest = count, .head_rows = 1, .keys = count};
	check_ok(rh_executor_infer(rig->session.executor, &micro, 1));
}

/* Probabilities of the tokens that may be drawn, the likeliest first; returns how many. In transformers' order: the penalty of what stands
 * in `said`, the temperature, top_k, top_p, min_p. */
static int candidates(const struct rh_config *config, const int32_t *said, int64_t said_count, float *logits, int64_t count, int32_t *id,
                      double *probability)
{
	double total = 0, sum = 0, kept = 0;
	uint8_t *is_taken = rh_alloc((size_t)count, 1);
	int tokens = 0, most = config->top_k ? (int)config->top_k : (int)count;
	for (int64_t i = 0; i < said_count; i++) {
		float *logit = &logits[said[i]], penalty = (float)config->repetition_penalty;
		*logit = is_taken[said[i]] ? *logit : *logit < 0 ? *logit * penalty : *logit / penalty;
		is_taken[said[i]] = 1;
	}
	memset(is_taken, 0, (size_t)count);
	while (tokens < most) { /* in order */
		int64_t best = -1;
		for (int64_t i = 0; i < count; i++)
			if (!is_taken[i] && (best < 0 || logits[i] > logits[best]))
				best = i;
		is_taken[best] = 1;
		id[tokens] = (int32_t)best;
		total += probability[tokens++] = exp((double)logits[best] / config->temperature);
	}
	rh_free(is_taken);
	for (tokens = 0; tokens < most && sum < config->top_p * total; tokens++)
		sum += probability[tokens];
	while (tokens > 1 && probability[tokens - 1] < config->min_p * probability[0])
		tokens--;
	for (int i = 0; i < tokens; i++)
		kept += probability[i];
	for (int i = 0; i < tokens; i++)
		probability[i] /= kept;
	return tokens;
}

/* How often each of these was drawn, within 5 standard deviations; no other was. */
static void check_frequencies(const int *drawn, int draws, const int32_t *id, const double *probability, int tokens)
{
	int seen = 0;
	for (int i = 0; i < tokens; i++) {
		double expected = draws * probability[i];
		seen += drawn[id[i]];
		check_near((double)drawn[id[i]], expected, 5 * sqrt(expected * (1 - probability[i])) + 1);
	}
	assert_int_equal(seen, draws);
}

struct warpers {
	double top_p, min_p, repetition_penalty;
	int64_t top_k;
};

/* Of many seeds, the first token and, behind the likeliest one, the second are drawn by their probabilities. */
static void check_draws(const struct warpers *warpers)
{
	enum { DRAWS = CHECK_THREADS_ONLY ? 300 : 3000 };
	struct rig rig;
	int64_t count;
	rig_open(&rig, "qwen3", NULL);
	rig.config.device = (char *)(uintptr_t) "cpu:1";
	rig.config.max_new_tokens = 2;
	rig.config.temperature = 1;
	rig.config.top_p = warpers->top_p;
	rig.config.top_k = warpers->top_k;
	rig.config.min_p = warpers->min_p;
	rig.config.repetition_penalty = warpers->repetition_penalty;
	const int32_t *prompt = rig_ints(&rig, "greedy", "prompt", &count);
	struct rh_workload work = rh_generate_workload(&rig.config, count + 1);
	check_ok(rh_session_open(&rig.config, RH_SESSION_INFERS, &rig.session));
	((struct rh_model_config *)(uintptr_t)rig.session.model_config)->eos_token_ids = 0;
	check_ok(rh_session_start(&rig.session, &work));
	int64_t vocabulary = rig.session.model_config->vocab_size;
	float *logits = rh_alloc((size_t)vocabulary, sizeof *logits);
	double *probability[2];
	int32_t *id[2], longer[TOKENS];
	int *drawn[2], tokens[2], draws[2] = {DRAWS, 0};
	assert_true(count < TOKENS);
	memcpy(longer, prompt, (size_t)count * sizeof *longer);
	for (int i = 0; i < 2; i++) {
		probability[i] = rh_alloc((size_t)vocabulary, sizeof **probability);
		id[i] = rh_alloc((size_t)vocabulary, sizeof **id);
		drawn[i] = rh_alloc((size_t)vocabulary, sizeof **drawn);
		score(&rig, longer, count + i, logits);
		tokens[i] = candidates(&rig.config, longer, count + i, logits, vocabulary, id[i], probability[i]);
		printf("token %d: one of %d, the likeliest %.3f\n", i, tokens[i], probability[i][0]);
		assert_true(tokens[i] > 2);
		longer[count] = id[0][0];
	}
	for (int seed = 0; seed < DRAWS; seed++) {
		struct rh_ids ids = {.id = (int32_t *)(uintptr_t)prompt, .count = (size_t)count}, out = {0};
		rig.config.seed = (uint64_t)seed;
		check_ok(rh_generate(&rig.session, &ids, &out));
		drawn[0][out.id[0]]++;
		if (out.id[0] == id[0][0]) {
			drawn[1][out.id[1]]++;
			draws[1]++;
		}
		rh_ids_free(&out);
	}
	for (int i = 0; i < 2; i++) {
		check_frequencies(drawn[i], draws[i], id[i], probability[i], tokens[i]);
		rh_free(probability[i]);
		rh_free(id[i]);
		rh_free(drawn[i]);
	}
	rh_free(logits);
	rig_close(&rig);
}

static void test_tokens_are_drawn_by_their_probabilities(void **state)
{
	(void)state;
	static const struct warpers cases[] = {{.top_p = 0.6, .repetition_penalty = 1},
	                                       {.top_p = 1, .top_k = 4, .repetition_penalty = 1},
	                                       {.top_p = 1, .min_p = 0.04, .repetition_penalty = 1},
	                                       {.top_p = 0.9, .top_k = 12, .min_p = 0.05, .repetition_penalty = 1.5}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		check_draws(&cases[i]);
}

/* Greedy: a token that was said cannot be said again. */
static void test_a_large_penalty_repeats_nothing(void **state)
{
	(void)state;
	struct way way = greedy;
	struct text plain = generate("smollm2", &way);
	way.repetition_penalty = 1e3;
	struct text text = generate("smollm2", &way);
	int again = 0;
	for (int i = 0; i < TOKENS; i++)
		for (int k = 0; k < i; k++) {
			assert_int_not_equal(text.id[i], text.id[k]);
			again |= plain.id[i] == plain.id[k];
		}
	assert_true(again);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_greedy_text_equals_hugging_face),
	        cmocka_unit_test(test_an_adapter_changes_the_text_alike_everywhere),
	        cmocka_unit_test(test_sampling_is_by_seed),
	        cmocka_unit_test(test_tokens_are_drawn_by_their_probabilities),
	        cmocka_unit_test(test_a_large_penalty_repeats_nothing),
	        cmocka_unit_test(test_a_tiny_top_p_or_temperature_is_greedy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
