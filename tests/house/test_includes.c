/* The folders of src/README.md: which may include which (only to the right), and what the pure and the portable ones may not use. */
#include "tree.h"

enum { RANKS = 16, ROOMS_MAX = 5 };

/* cli > train > modes > forecast > checkpoint > session > plan, weights > run, data, ckpt, machine > link > schedule, token > partition,
 * offload > model > device/cpu, device/sim, cuda > device > config, observe, jinja, parquet > core: a folder includes itself and those in
 * later rows. */
static const char *const ranks[RANKS][ROOMS_MAX] = {
        {"cli"},
        {"train"},
        {"modes"},
        {"forecast"},
        {"checkpoint"},
        {"session"},
        {"plan", "weights"},
        {"run", "data", "ckpt", "machine"},
        {"link"},
        {"schedule", "token"},
        {"partition", "offload"},
        {"model"},
        {"device/cpu", "device/sim", "cuda"},
        {"device"},
        {"config", "observe", "jinja", "parquet"},
        {"core"},
};

static const char *const roots[] = {"src", "offload", "partition", "cuda"};

static int faults, includes_seen;
static int silent; /* while the checker itself is checked */

static int has_prefix(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix));
}

/* The room of a path as it is included ("device/cpu/gemm.h" -> "device/cpu"), its row in *rank; NULL: not ours. */
static const char *room_of(const char *path, int *rank)
{
	const char *best = NULL;
	for (int i = 0; i < RANKS; i++)
		for (int j = 0; j < ROOMS_MAX && ranks[i][j]; j++) {
			size_t length = strlen(ranks[i][j]);
			if (!has_prefix(path, ranks[i][j]) || path[length] != '/' || (best && strlen(best) > length))
				continue;
			best = ranks[i][j];
			*rank = i;
		}
	return best;
}

static void complain(const char *path, int line, const char *what, const char *culprit)
{
	if (!silent)
		print_error("%s:%d: %s: %s\n", path, line, what, culprit);
	faults++;
}

static void check_include(const char *path, int line, const char *included)
{
	int from = 0, to = 0;
	const char *name = has_prefix(path, "src/") ? path + 4 : path;
	const char *room = room_of(name, &from), *other = room_of(included, &to);
	includes_seen++;
	if (!room)
		complain(path, line, "this folder is not in the table of src/README.md", name);
	else if (!other)
		complain(path, line, "include our own headers by folder/name.h", included);
	else if (room != other && to <= from)
		complain(path, line, "this folder may not include that one", included);
	const char *slash = strrchr(included, '/');
	if (room && other && room != other && strstr(slash, "_internal.h"))
		complain(path, line, "an internal header is seen in its folder only", included);
}

/* Words that the folders beginning with `room` must not hold. A call is matched where no letter stands before it. */
static const struct {
	const char *room, *why;
	const char *words[16];
} bans[] = {
        {"offload/", "offload/ includes no CUDA header", {"cuda_runtime", "cuda.h", "cublas", "driver_types.h", "cuda_fp16", "nvtx"}},
        {"partition/",
         "partition/ is pure: no I/O, no thread, no clock",
         {"pthread_", "thrd_", "clock_gettime(", "gettimeofday(", "time(", "fopen(", "open(", "read(", "write(", "printf(", "fprintf(",
          "rh_file_", "rh_pool_", "rh_note(", "rh_warn_once("}},
        {"src/schedule/",
         "schedule/ is pure: no I/O, no thread, no clock",
         {"pthread_", "thrd_", "clock_gettime(", "gettimeofday(", "time(", "fopen(", "open(", "read(", "write(", "printf(", "fprintf(",
          "rh_file_", "rh_pool_", "rh_note(", "rh_warn_once("}},
};

static int is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static int holds_word(const char *line, const char *word)
{
	for (const char *at = strstr(line, word); at; at = strstr(at + 1, word))
		if (at == line || !is_letter(at[-1]))
			return 1;
	return 0;
}

static void check_line(const char *path, int number, const char *line)
{
	char included[256];
	if (sscanf(line, " # include \"%255[^\"]\"", included) == 1)
		check_include(path, number, included);
	for (size_t i = 0; i < sizeof bans / sizeof bans[0]; i++)
		for (size_t j = 0; has_prefix(path, bans[i].room) && j < 16 && bans[i].words[j]; j++)
			if (holds_word(line, bans[i].words[j]))
				complain(path, number, bans[i].why, bans[i].words[j]);
}

/* Blanks comments, which may speak of anything; line ends stay. Strings are left as they are. */
static void blank_comments(char *text)
{
	char quote = 0;
	for (char *at = text; *at; at++) {
		if (quote) {
			if (*at == '\\' && at[1])
				at++;
			else if (*at == quote || *at == '\n')
				quote = 0;
		} else if (*at == '"' || *at == '\'') {
			quote = *at;
		} else if (at[0] == '/' && at[1] == '/') {
			for (; *at && *at != '\n'; at++)
				*at = ' ';
			at--;
		} else if (at[0] == '/' && at[1] == '*') {
			char *end = strstr(at + 2, "*/");
			for (end = end ? end + 2 : at + strlen(at); at < end; at++)
				*at = *at == '\n' ? '\n' : ' ';
			at--;
		}
	}
}

static void check_text(const char *path, char *text)
{
	int number = 1;
	blank_comments(text);
	for (char *line; (line = tree_line(&text)); number++)
		check_line(path, number, line);
}

static void test_includes_point_right(void **state)
{
	(void)state;
	faults = includes_seen = 0;
	int files = tree_walk_all(roots, sizeof roots / sizeof roots[0], check_text);
	printf("%d files, %d includes\n", files, includes_seen);
	assert_true(files > 10 && includes_seen > 10); /* run from the root of the tree */
	assert_int_equal(faults, 0);
}

static int faults_of(const char *path, const char *text)
{
	char copy[256];
	snprintf(copy, sizeof copy, "%s", text);
	blank_comments(copy);
	faults = 0;
	silent = 1;
	check_line(path, 1, copy);
	silent = 0;
	return faults;
}

static void test_checker_finds_what_it_should(void **state)
{
	(void)state;
	assert_int_equal(faults_of("src/core/a.c", "#include \"core/b.h\""), 0);
	assert_int_equal(faults_of("src/core/a.c", "#include \"config/config.h\""), 1);
	assert_int_equal(faults_of("src/config/a.c", "#include \"observe/report.h\""), 1);
	assert_int_equal(faults_of("src/train/a.c", "  #  include \"partition/stage_plan.h\""), 0);
	assert_int_equal(faults_of("offload/a.c", "#include \"model/config.h\""), 0);
	assert_int_equal(faults_of("offload/a.c", "#include \"token/tokenizer.h\""), 1);
	assert_int_equal(faults_of("src/device/cpu/a.c", "#include \"device/device.h\""), 0);
	assert_int_equal(faults_of("src/device/op.c", "#include \"device/cpu/cpu.h\""), 1);
	assert_int_equal(faults_of("src/device/sim/a.c", "#include \"device/cpu/cpu.h\""), 1);
	assert_int_equal(faults_of("cuda/gemm.cu", "#include \"device/op.h\""), 0);
	assert_int_equal(faults_of("src/modes/boxes/a.c", "#include \"checkpoint/checkpoint.h\""), 0);
	assert_int_equal(faults_of("src/session/a.c", "#include \"modes/boxes/a.h\""), 1);
	assert_int_equal(faults_of("src/cli/a.c", "#include \"config/config_internal.h\""), 1);
	assert_int_equal(faults_of("src/core/a.c", "#include \"b.h\""), 1);
	assert_int_equal(faults_of("src/cellar/a.c", "#include \"core/b.h\""), 1);
	assert_int_equal(faults_of("offload/a.c", "#include <cuda_runtime.h>"), 1);
	assert_int_equal(faults_of("partition/a.c", "\tint fd = open(path);"), 1);
	assert_int_equal(faults_of("partition/a.c", "\treopen(path); snprintf(a, 1, b); /* never open() */ // nor time()"), 0);
	assert_int_equal(faults_of("src/schedule/a.c", "\tpthread_create(a); clock_gettime(b);"), 2);
	assert_int_equal(faults_of("src/run/a.c", "\tpthread_create(a); clock_gettime(b);"), 0);
}

static void ignore(const char *path, char *text)
{
	(void)path;
	(void)text;
}

/* Sources lie in the folders that were agreed on; others are somebody's own. */
static void test_no_other_folder_holds_sources(void **state)
{
	(void)state;
	static const char *const names[] = {"src", "cuda", "offload", "partition", "examples", "tests", "bench", "build"};
	DIR *stream = opendir(".");
	assert_non_null(stream);
	for (struct dirent *entry; (entry = readdir(stream));) {
		int is_known = entry->d_name[0] == '.';
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			is_known |= !strcmp(entry->d_name, names[i]);
		if (!is_known && tree_walk(entry->d_name, ignore))
			fail_msg("%s: a folder of sources that is not in the table of src/README.md", entry->d_name);
	}
	closedir(stream);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_no_other_folder_holds_sources),
	        cmocka_unit_test(test_checker_finds_what_it_should),
	        cmocka_unit_test(test_includes_point_right),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
