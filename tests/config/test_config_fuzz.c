/* Mutated YAML and command lines: every one is either taken, and then its print loads back, or refused in one line. */
#include "check.h"

#include "config/config.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/log.h"
#include "core/text.h"

#include <string.h>
#include <unistd.h>

#define EVERY_VERB "generate_or_not" /* no verb's name: keys of all are taken, none is needed */

enum { BYTES_MAX = 2048, ARGS_MAX = 12 };

/* tests/corpus/config holds the seeds; these words are spliced in. */
static const char *const words[] = {"null",
                                    "~",
                                    "true",
                                    "no",
                                    "-1",
                                    "1e999",
                                    "0x7f",
                                    "99999999999999999999",
                                    "[",
                                    "]",
                                    "{",
                                    "}",
                                    "- ",
                                    "&a ",
                                    "*a",
                                    "!!str ",
                                    "<<: *a",
                                    "\n",
                                    "\n---\n",
                                    "\"",
                                    "'",
                                    "\\u0000",
                                    "\\x07",
                                    "|\n  ",
                                    "#",
                                    ": ",
                                    ", ",
                                    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
                                    "all-linear",
                                    "cpu:7",
                                    "1.5GiB",
                                    "0.1",
                                    "\xff",
                                    "\xef\xbb\xbf",
                                    "\xf0\x9f\x98\x80",
                                    "\t",
                                    "? ",
                                    "%YAML 1.1\n",
                                    "lora_r: 4\n",
                                    "seed: 1\n",
                                    "warmup_ratio: 0.5\n",
                                    "fsdp_config: ",
                                    "forward_cuts: [1, 2]\n",
                                    "eval_split: 0.5\n",
                                    "use_peft: true\n",
                                    "bf16: true\n"};
enum { WORDS = sizeof words / sizeof words[0] };

static uint64_t seed;

static int case_count(void)
{
	return getenv("RH_LONG") ? 20000 : CHECK_THREADS_ONLY ? 600 : 6000; /* one thread */
}

static size_t below(size_t limit)
{
	return check_random(&seed) % limit;
}

static void insert(char *bytes, size_t *length, size_t at, const char *what, size_t count)
{
	char copy[BYTES_MAX]; /* `what` may lie in bytes */
	if (*length + count > BYTES_MAX)
		return;
	memcpy(copy, what, count);
	memmove(bytes + at + count, bytes + at, *length - at);
	memcpy(bytes + at, copy, count);
	*length += count;
}

/* One to four cuts, copies, flips and splices. */
static void mutate(char *bytes, size_t *length)
{
	for (size_t left = 1 + below(4); left; left--) {
		size_t at = below(*length + 1), count = below(16);
		count = count > *length - at ? *length - at : count;
		const char *word = words[below(WORDS)];
		switch (below(4)) {
		case 0:
			memmove(bytes + at, bytes + at + count, *length - at - count);
			*length -= count;
			break;
		case 1:
			if (at < *length)
				bytes[at] = (char)(bytes[at] ^ (1 << below(8)));
			break;
		case 2:
			insert(bytes, length, below(at + 1), bytes + at, count);
			break;
		default:
			insert(bytes, length, at, word, strlen(word));
		}
	}
}

static void write_plain(const char *path, const char *bytes, size_t length)
{
	FILE *file = fopen(path, "wb");
	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, length, file), length);
	assert_int_equal(fclose(file), 0);
}

static void check_verdict(int rc, struct rh_config *config, int *taken)
{
	if (rc < 0) {
		const char *line = rh_error(rc);
		assert_true(*line && !strchr(line, '\n'));
		return;
	}
	++*taken;
	struct rh_text text = {0}, again = {0};
	struct rh_config back;
	static char path[] = "printed.yaml";
	char *argv[] = {path};
	check_ok(rh_config_print(config, &text));
	write_plain(path, text.bytes, text.length);
	check_ok(rh_config_load(EVERY_VERB, 1, argv, NULL, &back));
	check_ok(rh_config_print(&back, &again));
	assert_string_equal(text.bytes, again.bytes);
	rh_text_free(&text);
	rh_text_free(&again);
	rh_config_free(&back);
	rh_config_free(config);
}

static size_t read_seed(const char *name, char *bytes)
{
	struct rh_bytes map;
	check_ok(rh_file_load(name, &map));
	assert_true(map.length <= BYTES_MAX);
	memcpy(bytes, map.bytes, map.length);
	size_t length = map.length;
	rh_bytes_free(&map);
	return length;
}

static void test_load_mutated_yaml_is_taken_or_refused(void **state)
{
	char(*seeds)[BYTES_MAX + 1] = *state;
	int taken = 0, cases = case_count();
	static char path[] = "fuzz.yaml", json[] = "--json";
	for (int i = 0; i < cases; i++) {
		char bytes[BYTES_MAX];
		const char *from = seeds[below(3)];
		size_t length = strlen(from);
		memcpy(bytes, from, length);
		mutate(bytes, &length);
		write_plain(path, bytes, length);
		char *argv[] = {path, json};
		struct rh_config config;
		check_verdict(rh_config_load(EVERY_VERB, 2, argv, NULL, &config), &config, &taken);
	}
	printf("%d of %d taken\n", taken, cases);
	assert_true(taken > cases / 100);
}

static void test_load_mutated_flags_are_taken_or_refused(void **state)
{
	(void)state;
	static const char *const flags[] = {"--lora-r",
	                                    "--seed=4",
	                                    "--lora_target_modules",
	                                    "q_proj,[v_proj",
	                                    "--forward-cuts",
	                                    "1,2,3",
	                                    "--eos-token",
	                                    "\"a",
	                                    "--bf16",
	                                    "--max-ram",
	                                    "3 GiB",
	                                    "--fsdp",
	                                    "--device",
	                                    "cpu:3",
	                                    "--temperature",
	                                    "[1]",
	                                    "--backward_cuts=[]",
	                                    "--warmup_ratio",
	                                    ".5",
	                                    "--use_peft",
	                                    "--prompt",
	                                    "a: b"};
	int taken = 0, cases = case_count();
	for (int i = 0; i < cases; i++) {
		char text[ARGS_MAX][BYTES_MAX + 1], *argv[ARGS_MAX];
		int argc = 1 + (int)below(ARGS_MAX / 3);
		for (int a = 0; a < argc; a++) {
			const char *flag = flags[below(sizeof flags / sizeof flags[0])];
			size_t length = strlen(flag);
			memcpy(text[a], flag, length);
			if (!below(4))
				mutate(text[a], &length);
			text[a][length] = 0;
			argv[a] = text[a];
		}
		struct rh_config config;
		check_verdict(rh_config_load(EVERY_VERB, argc, argv, NULL, &config), &config, &taken);
	}
	printf("%d of %d taken\n", taken, cases);
	assert_true(taken > cases / 100);
}

/* The deepest and the longest that a person can hand over. */
static void test_load_extreme_yaml_is_refused(void **state)
{
	(void)state;
	enum { LENGTH = (1 << 20) + 1 };
	static char path[] = "big.yaml";
	char *argv[] = {path}, *bytes = malloc(LENGTH);
	assert_non_null(bytes);
	struct rh_config config;
	static const char fillers[] = "[{-?&*a: \"\n";
	for (const char *filler = fillers; *filler; filler++) {
		memset(bytes, *filler, LENGTH);
		write_plain(path, bytes, LENGTH);
		assert_int_equal(rh_config_load("train", 1, argv, NULL, &config), -EINVAL);
		assert_non_null(strstr(rh_error(-EINVAL), "big.yaml"));
		write_plain(path, bytes, 20000);
		assert_true(rh_config_load(EVERY_VERB, 1, argv, NULL, &config) < 0 || strchr(" \n", *filler));
		rh_config_free(&config);
	}
	free(bytes);
}

static char work[] = "/tmp/rh-config-fuzz-XXXXXX";

static int set_up(void **state)
{
	static char seeds[3][BYTES_MAX + 1];
	static const char *const names[] = {"tests/corpus/config-lora.yaml", "tests/corpus/config-full.yaml",
	                                    "tests/corpus/config-odd.yaml"};
	seed = check_seed();
	for (int i = 0; i < 3; i++)
		seeds[i][read_seed(names[i], seeds[i])] = 0;
	assert_non_null(mkdtemp(work));
	assert_int_equal(chdir(work), 0);
	rh_log_quiet(1);
	*state = seeds;
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	assert_int_equal(chdir("/"), 0);
	check_ok(rh_dir_remove(work));
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_load_mutated_yaml_is_taken_or_refused),
	        cmocka_unit_test(test_load_mutated_flags_are_taken_or_refused),
	        cmocka_unit_test(test_load_extreme_yaml_is_refused),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
