/* Runs the built program as a person would: its exit status, what it printed, and what it left behind. */
#ifndef RH_TESTS_CLI_RUNNER_H
#define RH_TESTS_CLI_RUNNER_H

#include "check.h"

#include "core/alloc.h"
#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#define MODELS "tests/reference/models/"

/* Scratch of one test: `dir` for its files, `logs` beside it for what programs print. */
struct scratch {
	char dir[64], logs[64];
};

static inline void scratch_open(struct scratch *scratch)
{
	const char *where = check_place("/tmp");
	snprintf(scratch->dir, sizeof scratch->dir, "%s/rh-cli-XXXXXX", where);
	snprintf(scratch->logs, sizeof scratch->logs, "%s/rh-log-XXXXXX", where);
	assert_non_null(mkdtemp(scratch->dir));
	assert_non_null(mkdtemp(scratch->logs));
}

static inline void scratch_close(struct scratch *scratch)
{
	check_ok(rh_dir_remove(scratch->dir));
	check_ok(rh_dir_remove(scratch->logs));
}

/* A path in one of a few buffers that are used in turn: good until eight more are made. */
static inline const char *path_of(const char *format, ...)
{
	static char ring[8][1024];
	static int next;
	char *out = ring[next++ % 8];
	va_list args;
	va_start(args, format);
	int length = vsnprintf(out, sizeof ring[0], format, args);
	va_end(args);
	assert_true(length >= 0 && (size_t)length < sizeof ring[0]);
	return out;
}

static inline void write_bytes(const char *path, const void *bytes, size_t length)
{
	FILE *file = fopen(path, "wb");
	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, length, file), length);
	assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text)
{
	write_bytes(path, text, strlen(text));
}

/* A file whole, with a NUL after it; free() it. */
static inline char *read_bytes(const char *path, size_t *length)
{
	struct rh_bytes map;
	check_ok(rh_file_load(path, &map));
	char *bytes = malloc(map.length + 1);
	memcpy(bytes, map.bytes, map.length);
	bytes[map.length] = 0;
	*length = map.length;
	rh_bytes_free(&map);
	return bytes;
}

static inline void copy_file(const char *from, const char *to)
{
	size_t length;
	char *bytes = read_bytes(from, &length);
	write_bytes(to, bytes, length);
	free(bytes);
}

/* A small model with its tokenizer, as a Hugging Face directory dir/hf. */
static inline void copy_model(const char *dir)
{
	static const char *const from[] = {
	        "tests/reference/models/gguf-qwen2/config.json", "tests/reference/models/gguf-qwen2/model.safetensors",
	        "tests/reference/interchange/tokenizer.json", "tests/reference/interchange/tokenizer_config.json"};
	check_ok(rh_dir_make(path_of("%s/hf", dir)));
	for (int i = 0; i < 4; i++)
		copy_file(from[i], path_of("%s/hf/%s", dir, strrchr(from[i], '/') + 1));
}

/* The files (not folders) of one directory into another, which is made. */
static inline void copy_dir(const char *from, const char *to)
{
	char source[512], target[512], path[1024], copy[1024]; /* not path_of: the caller's may be such paths */
	snprintf(source, sizeof source, "%s", from);
	snprintf(target, sizeof target, "%s", to);
	check_ok(rh_dir_make(target));
	DIR *entries = opendir(source);
	assert_non_null(entries);
	for (struct dirent *entry; (entry = readdir(entries));) {
		snprintf(path, sizeof path, "%s/%s", source, entry->d_name);
		snprintf(copy, sizeof copy, "%s/%s", target, entry->d_name);
		if (rh_file_exists(path))
			copy_file(path, copy);
	}
	closedir(entries);
}

/* Replaces the first `old` in a file by `new`, whatever their lengths. */
static inline void edit_file(const char *path, const char *old, const char *new)
{
	size_t length;
	char *bytes = read_bytes(path, &length), *at = memmem(bytes, length, old, strlen(old));
	if (!at)
		fail_msg("%s does not hold %s", path, old);
	FILE *file = fopen(path, "wb");
	assert_non_null(file);
	fwrite(bytes, 1, (size_t)(at - bytes), file);
	fwrite(new, 1, strlen(new), file);
	fwrite(at + strlen(old), 1, length - (size_t)(at - bytes) - strlen(old), file);
	assert_int_equal(fclose(file), 0);
	free(bytes);
}

/* A sum over names and contents of all that lies below a directory. */
static inline uint64_t tree_hash(const char *dir)
{
	uint64_t sum = 0;
	DIR *entries = opendir(dir);
	if (!entries)
		return 0;
	for (struct dirent *entry; (entry = readdir(entries));) {
		char path[1024];
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
		uint64_t name = XXH3_64bits(path, strlen(path)), content = 1;
		if (rh_dir_exists(path)) {
			content = tree_hash(path);
		} else if (rh_file_exists(path)) {
			struct rh_bytes map;
			check_ok(rh_file_load(path, &map));
			content = XXH3_64bits_withSeed(map.bytes, map.length, name);
			rh_bytes_free(&map);
		}
		sum += name * 3 + content;
	}
	closedir(entries);
	return sum;
}

static inline int same_file(const char *a, const char *b)
{
	struct rh_bytes one, two;
	check_ok(rh_file_load(a, &one));
	check_ok(rh_file_load(b, &two));
	int same = one.length == two.length && !memcmp(one.bytes, two.bytes, one.length);
	rh_bytes_free(&one);
	rh_bytes_free(&two);
	return same;
}

/* A file of two folders of the scratch directory. */
static inline void check_same_file(const struct scratch *scratch, const char *left, const char *right, const char *file)
{
	if (!same_file(path_of("%s/%s/%s", scratch->dir, left, file), path_of("%s/%s/%s", scratch->dir, right, file)))
		fail_msg("%s of %s and %s differ", file, left, right);
}

#ifndef PROGRAM
#define PROGRAM "roundhouse"
#endif

static inline const char *program_path(void)
{
	const char *build = getenv("RH_BUILD");
	return path_of("%s/" PROGRAM, build ? build : "build/release");
}

/* One run of the program. */
struct ran {
	pid_t pid;
	int status; /* of exit; 128 + signal if one ended it */
	char *out, *err;
	char out_path[128], err_path[128];
};

/* What a started program's process does before it becomes the program; NULL: nothing. */
static void (*run_prepare)(void) __attribute__((unused));

/* Starts `line`, whose arguments are parted by spaces. file_limit: bytes that a file may grow to, 0: any. */
static inline void run_start(const struct scratch *scratch, const char *line, rlim_t file_limit, struct ran *ran)
{
	static int number;
	char *copy = strdup(line), *argument[128], *rest = copy;
	int count = 0;
	argument[count++] = strdup(program_path());
	for (char *word; (word = strsep(&rest, " "));)
		if (*word && count < 127)
			argument[count++] = word;
	argument[count] = NULL;
	*ran = (struct ran){0};
	snprintf(ran->out_path, sizeof ran->out_path, "%s/%d.out", scratch->logs, ++number);
	snprintf(ran->err_path, sizeof ran->err_path, "%s/%d.err", scratch->logs, number);
	fflush(NULL);
	/* now: a run that is killed at once has printed nothing, but has not printed nowhere */
	for (int i = 0; i < 2; i++) {
		int made = open(i ? ran->err_path : ran->out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
		assert_true(made >= 0);
		close(made);
	}
	ran->pid = fork();
	assert_true(ran->pid >= 0);
	if (ran->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* who gave up waiting for a test should find no run that goes on */
		if (file_limit) {
			signal(SIGXFSZ, SIG_IGN);
			setrlimit(RLIMIT_FSIZE, &(struct rlimit){file_limit, file_limit});
		}
		int out = open(ran->out_path, O_WRONLY | O_CREAT | O_TRUNC, 0666),
		    err = open(ran->err_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
		if (out < 0 || err < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0)
			_exit(126);
		if (run_prepare)
			run_prepare();
		execv(argument[0], argument);
		_exit(127);
	}
	free(argument[0]);
	free(copy);
}

static inline void run_wait(struct ran *ran)
{
	int status;
	size_t length;
	assert_int_equal(waitpid(ran->pid, &status, 0), ran->pid);
	ran->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	ran->out = read_bytes(ran->out_path, &length);
	ran->err = read_bytes(ran->err_path, &length);
	if (ran->status == 127 && !strstr(ran->err, "shared libraries")) /* where memory is too little the loader ends so, too */
		fail_msg("%s is not built", program_path());
}

static inline void run_free(struct ran *ran)
{
	free(ran->out);
	free(ran->err);
}

static inline struct ran run_line(const struct scratch *scratch, const char *format, ...)
{
	char line[4096];
	va_list args;
	va_start(args, format);
	vsnprintf(line, sizeof line, format, args);
	va_end(args);
	struct ran ran;
	run_start(scratch, line, 0, &ran);
	run_wait(&ran);
	return ran;
}

/* Runs and requires success. */
#define run_ok(scratch, ...)                                                                                                               \
	do {                                                                                                                               \
		struct ran run_ok_ran = run_line(scratch, __VA_ARGS__);                                                                    \
		if (run_ok_ran.status)                                                                                                     \
			fail_msg("exit %d: %s", run_ok_ran.status, run_ok_ran.err);                                                        \
		run_free(&run_ok_ran);                                                                                                     \
	} while (0)

/* A failure as it should be: exit 1 or 2, the last line is "roundhouse VERB: ...", the only one of its kind, with `words` (check_has). */
static inline void check_failed(const struct ran *ran, const char *words)
{
	size_t length = strlen(ran->err);
	const char *last = ran->err + length;
	int errors = 0;
	if (ran->status != 1 && ran->status != 2)
		fail_msg("exit %d instead of 1 or 2; expected '%s' in: %s", ran->status, words, ran->err);
	if (!length || ran->err[length - 1] != '\n')
		fail_msg("no whole line: '%s'", ran->err);
	for (last--; last > ran->err && last[-1] != '\n';)
		last--;
	for (const char *at = ran->err; (at = strstr(at, "roundhouse")); at++)
		errors += at == ran->err || at[-1] == '\n';
	if (strncmp(last, "roundhouse", 10) || errors != 1)
		fail_msg("the last of its lines alone should be the error: %s", ran->err);
	if (!check_has(last, words))
		fail_msg("'%s' is not in: %s", words, last);
	for (const char *at = last; at[1]; at++)
		if ((unsigned char)*at < 32 || *at == 127)
			fail_msg("a control character (%d) is in: %s", *at, last);
	if (strstr(ran->err, "internal error"))
		fail_msg("%s", ran->err);
	assert_int_equal(strlen(ran->out), 0);
}

static inline int find_or_not(const char *path, const char *text)
{
	size_t length;
	char *bytes = read_bytes(path, &length);
	int found = memmem(bytes, length, text, strlen(text)) != NULL;
	free(bytes);
	return found;
}

#endif
