/* What every test includes: cmocka with the headers it needs first, and the seed. */
#ifndef RH_TESTS_CHECK_H
#define RH_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"

/* Fails with the error line when rc is negative. */
#define check_ok(expression)                                                                                                               \
	do {                                                                                                                               \
		int check_rc = (expression);                                                                                               \
		if (check_rc < 0) {                                                                                                        \
			print_error("%s: %s\n", #expression, rh_error(check_rc));                                                          \
			fail();                                                                                                            \
		}                                                                                                                          \
	} while (0)

/* Two doubles at most `apart` from one another; cmocka's own compares floats. */
#define check_near(left, right, apart)                                                                                                     \
	do {                                                                                                                               \
		double check_left = (left), check_right = (right);                                                                         \
		if (!(check_left - check_right <= (apart) && check_right - check_left <= (apart)))                                         \
			fail_msg("%s is %.12g, %s is %.12g", #left, check_left, #right, check_right);                                      \
	} while (0)

/* ThreadSanitizer makes inner loops fifty times as slow, and what it looks for does not need many elements: tests that are long for their
 * size, not for their threads, take less of it there, each by a factor that it names. */
#ifdef __SANITIZE_THREAD__
enum { CHECK_THREADS_ONLY = 1 };
#else
enum { CHECK_THREADS_ONLY = 0 };
#endif

/* What a process takes is what the program takes: AddressSanitizer and ThreadSanitizer add their own, some bytes for each byte touched. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { CHECK_RESIDENT = 0 };
#else
enum { CHECK_RESIDENT = 1 };
#endif

/* 1: the text has each part of `words`, between which '|' stands, one behind the other. So a test names what a reader needs of a line and
 * leaves its wording free. */
static inline int check_has(const char *text, const char *words)
{
	for (const char *end; text && *words; words = *end ? end + 1 : end) {
		end = strchrnul(words, '|');
		text = memmem(text, strlen(text), words, (size_t)(end - words));
		text = text ? text + (end - words) : NULL;
	}
	return text != NULL;
}

/* Skips the case, saying why on a line of its own. */
#define check_skip(...)                                                                                                                    \
	do {                                                                                                                               \
		printf("skipped: " __VA_ARGS__);                                                                                           \
		printf("\n");                                                                                                              \
		skip();                                                                                                                    \
	} while (0)

/* Where scratch files go: into memory, as fsync on a busy disk takes long, or `disk` where there is no such place or no room in it for the
 * programs that run at once (two took 250 MB; a container's is often 64 MiB). */
static inline const char *check_place(const char *disk)
{
	struct statvfs room;
	if (access("/dev/shm", W_OK) || statvfs("/dev/shm", &room) || (double)room.f_bavail * (double)room.f_frsize < 1e9)
		return disk;
	return "/dev/shm";
}

/* RH_SEED if set, else a fixed number; printed, so that a failure can be repeated. */
static inline uint64_t check_seed(void)
{
	const char *text = getenv("RH_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : 20261121u;
	printf("seed %llu\n", (unsigned long long)seed);
	return seed;
}

/* xorshift64*: good enough for test inputs. */
static inline uint32_t check_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return (uint32_t)(*state * 0x2545F4914F6CDD1Dull >> 32);
}

/* Uniform in [-1, 1). */
static inline float check_uniform(uint64_t *state)
{
	return (float)(int32_t)check_random(state) * 0x1p-31f;
}

#endif
