/* A fuzz target: a program that includes this, defines fuzz_one() and says FUZZ_MAIN("NAME"). Built as a test it replays the corpus,
 * tests/fuzz/corpus/NAME, whole and cut short; built by `make fuzz` (rules.mk) libFuzzer calls it. */
#ifndef RH_TESTS_FUZZ_H
#define RH_TESTS_FUZZ_H

#include "core/error.h"
#include "core/log.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* One input. It may be refused, with one line; it may not crash, leak, hang or take more memory than a small multiple of its size. */
static int fuzz_one(const uint8_t *bytes, size_t length);

/* A file in memory that holds the input; its path is good until the next call. */
static inline const char *fuzz_file(const void *bytes, size_t length)
{
	static char path[64];
	static int file = -1;
	if (file < 0)
		file = memfd_create("input", 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	if (file < 0 || ftruncate(file, 0) || pwrite(file, bytes, length, 0) != (ssize_t)length)
		abort();
	return path;
}

/* A directory of this process, for inputs that are one file of several. */
static inline const char *fuzz_dir(void)
{
	static char path[64];
	if (!*path) {
		snprintf(path, sizeof path, "/dev/shm/rh-fuzz-XXXXXX");
		if (!mkdtemp(path))
			abort();
	}
	return path;
}

static inline const char *fuzz_write(const char *name, const void *bytes, size_t length)
{
	static char path[256];
	snprintf(path, sizeof path, "%s/%s", fuzz_dir(), name);
	int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (file < 0 || write(file, bytes, length) != (ssize_t)length)
		abort();
	close(file);
	return path;
}

/* A refusal must have said what is wrong. */
static inline void fuzz_refused(int rc)
{
	if (rc < 0 && rc != -ENOMEM && !*rh_error(rc))
		abort();
	rh_error_clear();
}

#ifdef RH_FUZZER

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

#define FUZZ_MAIN(name)                                                                                                                    \
	int LLVMFuzzerInitialize(int *argc, char ***argv)                                                                                  \
	{                                                                                                                                  \
		(void)argc, (void)argv;                                                                                                    \
		rh_log_quiet(1);                                                                                                           \
		return 0;                                                                                                                  \
	}                                                                                                                                  \
	int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)                                                                    \
	{                                                                                                                                  \
		return fuzz_one(bytes, length);                                                                                            \
	}

#else

#include "check.h"

#include "core/file.h"

#include <string.h>

static inline void fuzz_replay(const char *name)
{
	enum { CUTS = 7 };
	struct rh_names names;
	char dir[256];
	snprintf(dir, sizeof dir, "tests/fuzz/corpus/%s", name);
	rh_log_quiet(1);
	check_ok(rh_dir_list(dir, &names));
	for (size_t i = 0; i < names.count; i++) {
		struct rh_bytes input;
		char *path = rh_path_join(dir, names.name[i]);
		check_ok(rh_file_load(path, &input));
		for (size_t cut = 0; cut <= CUTS; cut++) {
			size_t length = cut ? input.length * cut / (CUTS + 1) : input.length;
			uint8_t *copy = malloc(length + 1); /* its own, so that a sanitizer sees who reads beyond the end */
			memcpy(copy, input.bytes, length);
			fuzz_one(copy, length);
			free(copy);
		}
		rh_bytes_free(&input);
		free(path);
	}
	printf("%s: %zu inputs\n", name, names.count);
	assert_true(names.count > 0);
	rh_names_free(&names);
	check_ok(rh_dir_remove(fuzz_dir()));
}

#define FUZZ_MAIN(name)                                                                                                                    \
	static void test_the_corpus_is_read_or_refused(void **state)                                                                       \
	{                                                                                                                                  \
		(void)state;                                                                                                               \
		fuzz_replay(name);                                                                                                         \
	}                                                                                                                                  \
	int main(void)                                                                                                                     \
	{                                                                                                                                  \
		const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_corpus_is_read_or_refused)};                                  \
		return cmocka_run_group_tests(tests, NULL, NULL);                                                                          \
	}

#endif
#endif
