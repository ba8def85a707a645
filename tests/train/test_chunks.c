/* Rows in chunks: the same run as of whole rows but for rounding, and the same bits wherever it is executed. */
#include "chunk_case.h"

static const struct way one_device = {.device = "cpu:1"};

static void near(const struct what *what, double got, double expected)
{
	if (fabs(got - expected) > 1e-5 * fabs(expected))
		print_error("%s %s: %.9g, expected %.9g\n", what->model, what->adapter ? what->adapter : "full", got, expected);
	assert_true(fabs(got - expected) <= 1e-5 * fabs(expected));
}

/* Packed documents; tied heads, norms of heads, windows, sinks, experts, groups of heads, linear attention; all weights and adapters, with
 * dropout. */
static void test_rows_in_chunks_are_whole_rows_but_for_rounding(void **state)
{
	(void)state;
	static const struct what what[] = {{.model = "smollm2"},
	                                   {.model = "qwen3"},
	                                   {.model = "gemma3"},
	                                   {.model = "gpt-oss"},
	                                   {.model = "qwen3-moe"},
	                                   {.model = "mistral"},
	                                   {.model = "qwen3.5"},
	                                   {.model = "qwen3.5-moe"},
	                                   {.model = "glm4-lite"},
	                                   {.model = "qwen3-next", .adapter = "adapter", .dropout = 0.1},
	                                   {.model = "qwen3.5", .adapter = "adapter", .dropout = 0.1},
	                                   {.model = "gemma4-e2b"},
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
	                                 {.device = "cpu:1", .round = ROWS, .cap = 8 << 20, .drives = 1, .is_short = 1},
	                                 {.device = "cpu:2", .round = ROWS, .cap = 8 << 20, .drives = 2, .is_short = 1}};
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
	                                   {.model = "qwen3", .adapter = "adapter-rs", .dropout = 0.25},
	                                   {.model = "qwen3.5"},
	                                   {.model = "glm4-lite", .adapter = "adapter", .dtype = RH_BF16},
	                                   {.model = "qwen3-next", .dtype = RH_BF16},
	                                   {.model = "qwen3.5-moe", .adapter = "adapter-rs", .dropout = 0.25}};
	for (size_t i = 0; i < sizeof what / sizeof *what; i++)
		check_fates(&what[i]);
}

static void test_chunks_are_the_same_everywhere(void **state)
{
	(void)state;
	static const struct what what[] = {{.model = "smollm2"},
	                                   {.model = "gpt-oss"},
	                                   {.model = "gemma3", .dtype = RH_BF16},
	                                   {.model = "qwen3", .adapter = "adapter-rs", .dropout = 0.25, .noise = 5},
	                                   {.model = "qwen3.5"},
	                                   {.model = "gemma4-e2b", .adapter = "adapter", .dtype = RH_BF16},
	                                   {.model = "qwen3-next", .adapter = "adapter-rs", .dtype = RH_BF16, .dropout = 0.25},
	                                   {.model = "deepseek3", .adapter = "adapter-rs", .dtype = RH_BF16},
	                                   {.model = "qwen3.5-moe", .adapter = "adapter-rs", .dtype = RH_BF16, .dropout = 0.25}};
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
	                                   {.model = "gemma4-e2b", .saved = RH_SAVED_FP8},
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
