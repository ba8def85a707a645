/* Rows in chunks: the same run as of whole rows but for rounding, and the same bits wherever it is executed. */
#include "offload/drives.h"
#include "rig.h"

#include "core/hooks.h"
#include "session/chunks.h"

#include <stdlib.h>

enum { STEPS = 2, ROWS = 3, CHUNK = 256, TOKENS = 1400, MOST_CHUNKS = 12 };

/* Rows of documents of these lengths: one that is cut many times between two that are not, one whole, and one of a chunk alone. */
static const int32_t row_documents[ROWS][4] = {{70, 5 * RH_ATTENTION_TILE + 33, 20, 300}, {900}, {200}};

struct what {
	const char *model, *adapter;
	enum rh_dtype dtype;
	double dropout, noise;
	enum rh_saved_dtype saved;
};

struct way {
	const char *device;
	int64_t round, cap, ram;     /* rows in a round, 0: chosen; bytes of a device, 0: all there are; of host memory, likewise */
	int stale, drives, is_short; /* drives: on which activations lie */
	const char *fates;           /* of activations, row by row at random: the hook's seed; NULL: the plan's own */
};

struct outcome {
	double loss[STEPS], norm[STEPS];
	uint64_t weights;
	int stages, chunks;
	int64_t ram, device_bytes, device_peak, nvme_bytes, kept, saved;
};

/* A row, as data/batch.c makes one. */
struct row {
	struct rh_micro_batch batch;
	int32_t ids[TOKENS], position[TOKENS], start[5], head_row[TOKENS], target[TOKENS];
	int32_t start_q[MOST_CHUNKS][6], start_k[MOST_CHUNKS][6], own_head[MOST_CHUNKS][TOKENS];
};

static void row_make(const int32_t *length, int64_t vocabulary, uint64_t *seed, struct row *out)
{
	struct rh_micro_shape shape = {0};
	for (int d = 0; d < 4 && length[d]; d++) {
		out->start[d] = (int32_t)shape.tokens;
		for (int32_t i = 0; i < length[d]; i++, shape.tokens++) {
			out->ids[shape.tokens] = (int32_t)(check_random(seed) % (uint32_t)vocabulary);
			out->position[shape.tokens] = i;
			int is_prompt = length[d] == 900 && i < 400; /* chunks without a target */
			if (!i || is_prompt || check_random(seed) % 5 == 0)
				continue;
			out->head_row[shape.head_rows] = (int32_t)shape.tokens - 1;
			out->target[shape.head_rows++] = out->ids[shape.tokens];
		}
		shape.longest = length[d] > shape.longest ? length[d] : shape.longest;
		out->start[++shape.documents] = (int32_t)shape.tokens;
	}
	assert_true(shape.tokens <= TOKENS);
	out->batch = (struct rh_micro_batch){.shape = shape,
	                                     .ids = out->ids,
	                                     .position = out->position,
	                                     .start_q = out->start,
	                                     .start_k = out->start,
	                                     .head_row = out->head_row,
	                                     .target = out->target};
}

static void widen(struct rh_micro_shape *most, const struct rh_micro_shape *shape)
{
	int64_t *const a[] = {&most->tokens, &most->documents, &most->longest,     &most->head_rows,
	                      &most->keys,   &most->first,     &most->text_longest};
	const int64_t b[] = {shape->tokens, shape->documents, shape->longest,     shape->head_rows,
	                     shape->keys,   shape->first,     shape->text_longest};
	for (int i = 0; i < 7; i++)
		*a[i] = b[i] > *a[i] ? b[i] : *a[i];
	most->chunks = shape->chunks > most->chunks ? shape->chunks : most->chunks;
}

/* The step's micro-batches: rows, or their chunks in `each` places; each: what was wanted before, 0: it is counted. */
static int cut_rows(const struct rh_chunk_rule *rule, struct row *row, int each, struct rh_micro_batch *out, struct rh_micro_shape *most,
                    struct rh_chunk_classes *classes)
{
	int64_t tokens[MOST_CHUNKS] = {0};
	int64_t cut[ROWS][RH_CHUNKS_MOST + 1], chunks[ROWS];
	for (int r = 0; r < ROWS; r++) {
		chunks[r] = rh_chunks_cut(rule, row[r].batch.start_q, row[r].batch.shape.documents, cut[r]);
		assert_in_range(chunks[r], 1, MOST_CHUNKS);
		each = (int)chunks[r] > each ? (int)chunks[r] : each;
	}
	*most = (struct rh_micro_shape){0};
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < each; c++) {
			struct rh_chunk_room room = {row[r].start_q[c], row[r].start_k[c], row[r].own_head[c]};
			out[r * each + c] = rh_chunk_of(&row[r].batch, cut[r], c, (int)chunks[r], &room);
			widen(most, &out[r * each + c].shape);
			if (out[r * each + c].shape.tokens > tokens[c])
				tokens[c] = out[r * each + c].shape.tokens;
		}
	rh_chunks_classify(tokens, each, classes);
	return each;
}

static struct outcome run(const struct what *what, const struct way *way, int64_t chunk)
{
	static struct row row[ROWS];
	static float loss[ROWS * MOST_CHUNKS][TOKENS];
	struct rh_micro_batch micro[ROWS * MOST_CHUNKS];
	struct rh_workload work = {0};
	struct rig rig;
	struct outcome out = {0};
	uint64_t seed = check_seed();
	assert_int_equal(way->fates ? setenv(RH_HOOK_FATES, way->fates, 1) : unsetenv(RH_HOOK_FATES), 0);
	rig_open(&rig, what->model, what->adapter);
	rig.config.dtype = what->dtype;
	rig.config.device = (char *)(uintptr_t)way->device;
	rig.config.max_vram = way->cap;
	rig.config.sequence_chunk = chunk;
	rig.config.saved_dtype = what->saved;
	rig.config.per_device_train_batch_size = 1;
	rig.config.lora_dropout = what->dropout;
	rig.config.neftune_noise_alpha = what->noise;
	rig.config.lora_keys_given = what->dropout > 0 ? RH_LORA_DROPOUT : 0;
	rig.config.optimizer_staleness = way->stale;
	if (way->drives) {
		rig.config.spill = RH_SPILL_ACTIVATIONS;
		rig.config.max_ram = way->ram;
		rig.config.max_nvme = 1 << 28;
		rig.config.nvme_dirs = (struct rh_list){.item = group_drives.name, .count = (size_t)way->drives};
	}
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	const struct rh_chunk_rule rule = rh_chunk_rule_of(chunk, rig.session.model);
	for (int r = 0; r < ROWS; r++)
		row_make(row_documents[r], rig.session.model_config->vocab_size, &seed, &row[r]);
	out.chunks = cut_rows(&rule, row, 0, micro, &work.train, &work.classes);
	work.chunks = out.chunks > 1 ? out.chunks : 0;
	work.cache_rows = work.chunks ? TOKENS : 0;
	work.train.chunks = work.chunks;
	work.train_micro_batches = ROWS * out.chunks;
	rig.config.round_micro_batches = way->round;
	check_ok(rh_session_start(&rig.session, &work));
	for (int step = 0; step < STEPS; step++) {
		int64_t trained = 0, count = (step ? ROWS - 1 : ROWS) * out.chunks; /* the last step is a short one */
		double sum = 0;
		for (int64_t m = 0; m < count; m++) {
			micro[m].loss = loss[m];
			trained += micro[m].shape.head_rows;
		}
		check_ok(rig_train(rig.session.executor, micro, count, step, 1.0f / (float)trained));
		for (int64_t m = 0; m < count; m++)
			for (int64_t i = 0; i < micro[m].shape.head_rows; i++)
				sum += (double)loss[m][i];
		out.loss[step] = sum / (double)trained;
		out.norm[step] = rig_update(&rig, 3e-3, step);
	}
	struct rh_device_memory memory;
	rig.session.devices.device[0]->ops->memory(rig.session.devices.device[0], &memory);
	out.weights = rig_weights_hash(&rig.session);
	out.stages = rig.session.plan.stages.forward_stages + rig.session.plan.stages.backward_stages;
	out.device_bytes = rig.session.plan.stages.device_bytes;
	out.device_peak = memory.peak_bytes;
	out.nvme_bytes = rig.session.plan.bytes.boundaries_nvme;
	out.ram = rig.session.plan.bytes.total;
	out.kept = rig.session.plan.stages.kept_bytes;
	out.saved = rig.session.plan.stages.saved_bytes;
	rig_close(&rig);
	assert_int_equal(unsetenv(RH_HOOK_FATES), 0);
	return out;
}

static const struct way one_device = {.device = "cpu:1"};

static void near(const struct what *what, double got, double expected)
{
	if (fabs(got - expected) > 1e-5 * fabs(expected))
		print_error("%s %s: %.9g, expected %.9g\n", what->model, what->adapter ? what->adapter : "full", got, expected);
	assert_true(fabs(got - expected) <= 1e-5 * fabs(expected));
}

/* Packed documents; tied heads, norms of heads, windows, sinks, experts, groups of heads; all weights and adapters, with dropout. */
static void test_rows_in_chunks_are_whole_rows_but_for_rounding(void **state)
{
	(void)state;
	static const struct what what[] = {{.model = "smollm2"},
	                                   {.model = "qwen3"},
	                                   {.model = "gemma3"},
	                                   {.model = "gpt-oss"},
	                                   {.model = "qwen3-moe"},
	                                   {.model = "mistral"},
	                                   {.model = "smollm2", .adapter = "adapter", .dropout = 0.1},
	                                   {.model = "qwen3", .adapter = "adapter-rs", .dropout = 0.25, .noise = 5}};
	for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
		struct outcome whole = run(&what[i], &one_device, 0), chunks = run(&what[i], &one_device, CHUNK);
		assert_true(whole.chunks == 1 && chunks.chunks > 4);
		for (int step = 0; step < STEPS; step++) {
			near(&what[i], chunks.loss[step], whole.loss[step]);
			near(&what[i], chunks.norm[step], whole.norm[step]);
		}
	}
}

static void check_everywhere(const struct what *what, int64_t chunk)
{
	static const struct way way[] = {{.device = "cpu:1", .round = 1},
	                                 {.device = "cpu:2"},
	                                 {.device = "cpu:3", .round = 2},
	                                 {.device = "cpu:8", .round = 1},
	                                 {.device = "cpu:8"},
	                                 {.device = "cpu:2", .round = 1, .cap = 8 << 20},
	                                 {.device = "cpu:1", .round = 3, .cap = 8 << 20, .drives = 1, .is_short = 1},
	                                 {.device = "cpu:2", .round = 3, .cap = 8 << 20, .drives = 2, .is_short = 1}};
	struct outcome expected = run(what, &one_device, chunk);
	for (size_t w = 0; w < sizeof way / sizeof *way; w++) {
		struct outcome got = run(what, &way[w], chunk);
		/* with so much less memory for its rings that activations do lie on drives */
		for (int64_t less = 64 << 10, all = got.ram; way[w].is_short && !got.nvme_bytes && less < 4 << 20; less += 64 << 10) {
			struct way shorter = way[w];
			shorter.ram = all - less;
			got = run(what, &shorter, chunk);
		}
		int equal = got.weights == expected.weights && !memcmp(got.loss, expected.loss, sizeof got.loss) &&
		            !memcmp(got.norm, expected.norm, sizeof got.norm);
		if (!equal)
			print_error("%s on %s, round %lld: losses %.9g %.9g, expected %.9g %.9g\n", what->model, way[w].device,
			            (long long)way[w].round, got.loss[0], got.loss[1], expected.loss[0], expected.loss[1]);
		assert_true(equal);
		assert_true(got.device_peak == got.device_bytes);
		assert_true((got.nvme_bytes > 0) == (way[w].drives > 0));
	}
	assert_true(expected.stages > 1);
}

/* One device with memory to spare keeps all activations; some kept, some saved, some made again: the same bits. */
static void check_fates(const struct what *what)
{
	enum { CASES = 4 };
	const struct way several = {.device = "cpu:2"}; /* none of which keeps any */
	struct outcome all = run(what, &one_device, CHUNK), none = run(what, &several, CHUNK);
	int kept = 0, saved = 0;
	assert_true(all.kept > 0 && none.kept == 0 && all.weights == none.weights);
	for (int i = 0; i < CASES; i++) {
		char fates[16];
		snprintf(fates, sizeof fates, "%d", 7 * i + 2);
		struct outcome got = run(what, &(struct way){.device = "cpu:1", .fates = fates}, CHUNK);
		if (got.weights != none.weights || memcmp(got.loss, none.loss, sizeof got.loss) != 0)
			fail_msg("%s, fates %s: losses %.9g %.9g, expected %.9g %.9g", what->model, fates, got.loss[0], got.loss[1],
			         none.loss[0], none.loss[1]);
		kept += got.kept > 0;
		saved += got.saved > 0;
	}
	assert_true(kept > 0 && saved > 0);
}

static void test_chunks_that_keep_activations_give_the_same_bits(void **state)
{
	(void)state;
	static const struct what what[] = {{.model = "smollm2"},
	                                   {.model = "gpt-oss", .dtype = RH_BF16},
	                                   {.model = "qwen3", .adapter = "adapter-rs", .dropout = 0.25}};
	for (size_t i = 0; i < sizeof what / sizeof *what; i++)
		check_fates(&what[i]);
}

static void test_chunks_are_the_same_everywhere(void **state)
{
	(void)state;
	static const struct what what[] = {{.model = "smollm2"},
	                                   {.model = "gpt-oss"},
	                                   {.model = "gemma3", .dtype = RH_BF16},
	                                   {.model = "qwen3", .adapter = "adapter-rs", .dropout = 0.25, .noise = 5}};
	for (size_t i = 0; i < sizeof what / sizeof *what; i++)
		check_everywhere(&what[i], CHUNK);
}

/* Layers' inputs in 8 bits: losses are those of before, until weights differ; gradients are off by what recompute from rounded inputs
 * gives, some hundredths; and there is one result whatever the cuts, of chunks and of whole rows. */
static void test_narrow_inputs_are_the_same_everywhere(void **state)
{
	(void)state;
	static const struct what what[] = {{.model = "smollm2", .saved = RH_SAVED_FP8},
	                                   {.model = "gemma3", .dtype = RH_BF16, .saved = RH_SAVED_FP8},
	                                   {.model = "qwen3", .adapter = "adapter-rs", .dropout = 0.25, .saved = RH_SAVED_FP8}};
	for (size_t i = 0; i < sizeof what / sizeof *what; i++) {
		struct what plain = what[i];
		plain.saved = RH_SAVED_SAME;
		for (int64_t chunk = 0; chunk <= CHUNK; chunk += CHUNK) {
			struct outcome narrow = run(&what[i], &one_device, chunk), wide = run(&plain, &one_device, chunk);
			print_message("%s, chunks of %lld: norm %.6g, of inputs as they are %.6g\n", what[i].model, (long long)chunk,
			              narrow.norm[0], wide.norm[0]);
			assert_true(narrow.loss[0] == wide.loss[0] && narrow.norm[0] != wide.norm[0]);
			assert_true(fabs(narrow.norm[0] - wide.norm[0]) < 0.05 * wide.norm[0]);
			check_everywhere(&what[i], chunk);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rows_in_chunks_are_whole_rows_but_for_rounding),
	        cmocka_unit_test(test_chunks_that_keep_activations_give_the_same_bits),
	        cmocka_unit_test(test_chunks_are_the_same_everywhere),
	        cmocka_unit_test(test_narrow_inputs_are_the_same_everywhere),
	};
	return cmocka_run_group_tests(tests, group_drives_make, group_drives_remove);
}
