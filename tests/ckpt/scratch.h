/* For the tests of readers: a scratch directory, files of given bytes, and mutation of valid files. */
#ifndef RH_TESTS_CKPT_SCRATCH_H
#define RH_TESTS_CKPT_SCRATCH_H

#include "check.h"

#include "core/alloc.h"
#include "core/file.h"

#include <string.h>
#include <unistd.h>

#define REFERENCE "tests/reference/ckpt/"

/* A fresh directory; its name lives in `out` (64 bytes). */
static inline void scratch_make(char *out)
{
	snprintf(out, 64, "%s/rh-ckpt-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(out));
}

static inline void scratch_write(const char *dir, const char *name, const void *bytes, size_t length)
{
	char *path = rh_path_join(dir, name);
	FILE *file = fopen(path, "wb"); /* without the fsync of rh_file_write_whole: fuzzing writes thousands */
	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, length, file), length);
	fclose(file);
	rh_free(path);
}

static inline void scratch_text(const char *dir, const char *name, const char *text)
{
	scratch_write(dir, name, text, strlen(text));
}

/* rc is an error whose line holds `part`, on one line. */
static inline void check_refused(int rc, const char *part)
{
	if (rc >= 0)
		fail_msg("accepted; expected '%s'", part);
	const char *line = rh_error(rc);
	if (!strstr(line, part))
		fail_msg("the line '%s' does not hold '%s'", line, part);
	assert_null(strchr(line, '\n'));
}

/* attempt(path) with its nth allocation refused, for n = 1, 2, 3 ... until it needs no more: -ENOMEM each time, then 0. */
static inline void scratch_starve(const char *path, int (*attempt)(const char *path))
{
	int reached = 1;
	for (uint64_t n = 1; reached; n++) {
		rh_alloc_fail_nth(n);
		int rc = attempt(path);
		reached = rh_alloc_fail_nth(0) >= n;
		assert_int_equal(rc, reached ? -ENOMEM : 0);
	}
}

/* One to four changes: a bit, a byte, a run of bytes, a telling number, a cut. Returns the new length. */
static inline size_t scratch_mutate(uint64_t *seed, char *bytes, size_t length, size_t header)
{
	static const uint64_t numbers[] = {0,         1,          0x7fffffff, 0x80000000, 0xffffffff,
	                                   INT64_MAX, UINT64_MAX, 1ull << 63, 1ull << 61, 1ull << 40};
	static const char interesting[] = "\"{}[]:,0123456789-e.\\u\0 tfn";
	size_t reach = header < length ? header : length;
	for (uint32_t changes = check_random(seed) % 4 + 1; changes && reach; changes--) {
		size_t at = check_random(seed) % reach;
		switch (check_random(seed) % 6) {
		case 0:
			bytes[at] = (char)(bytes[at] ^ 1 << check_random(seed) % 8);
			break;
		case 1:
			bytes[at] = (char)check_random(seed);
			break;
		case 2:
			bytes[at] = interesting[check_random(seed) % (sizeof interesting - 1)];
			break;
		case 3: {
			uint64_t number = numbers[check_random(seed) % (sizeof numbers / sizeof *numbers)];
			size_t width = (size_t)4 << check_random(seed) % 2;
			memcpy(bytes + at, &number, width < length - at ? width : length - at);
			break;
		}
		case 4: {
			size_t from = check_random(seed) % reach, run = check_random(seed) % 32;
			run = run < length - at ? run : length - at;
			run = run < length - from ? run : length - from;
			memmove(bytes + at, bytes + from, run);
			break;
		}
		default:
			if (check_random(seed) % 4 == 0) {
				length = at;
				reach = at;
			}
		}
	}
	return length;
}

/* Mutates `path` (only its first `header` bytes) `rounds` times as scratch/name and calls open(), which returns the reader's code. */
static inline void scratch_fuzz(const char *path, const char *name, size_t header, int rounds, int (*attempt)(const char *path))
{
	char dir[64];
	uint64_t seed = check_seed();
	struct rh_bytes map;
	int accepted = 0;
	scratch_make(dir);
	check_ok(rh_file_load(path, &map));
	char *bytes = malloc(map.length), *mutant = rh_path_join(dir, name);
	for (int i = 0; i < rounds; i++) {
		memcpy(bytes, map.bytes, map.length);
		size_t length = scratch_mutate(&seed, bytes, map.length, header);
		scratch_write(dir, name, bytes, length);
		rh_error_clear();
		int rc = attempt(mutant);
		accepted += rc >= 0;
		if (rc < 0 && (!*rh_error(rc) || strchr(rh_error(rc), '\n')))
			fail_msg("no single line for error %d: '%s'", rc, rh_error(rc));
	}
	printf("%s: %d of %d mutants accepted\n", name, accepted, rounds);
	rh_free(mutant);
	free(bytes);
	rh_bytes_free(&map);
	check_ok(rh_dir_remove(dir));
}

#endif
