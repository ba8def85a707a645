/* How near is the optimizer to the memory's speed? One AdamW update of a large block, against the best of three ways to move the same
 * bytes on the same threads: memcpy, a non-temporal copy, and a pass over the same arrays that reads and writes what the update does but
 * computes nothing. Bytes are those that a program reads and writes, so a cache line fetched only to be overwritten is not counted.
 *
 * usage: adamw [millions of parameters] [threads] */
#include "offload/memory.h"
#include "offload/optimizer.h"

#include <emmintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 15, PIECE = 1 << 20 }; /* best of; bytes of a copying task */

typedef uint64_t line __attribute__((vector_size(64)));

struct run {
	struct rh_store *store;
	enum rh_dtype dtype;
	int64_t elements, piece; /* elements of a pass's task */
	char *from, *to;         /* for copies */
	int ahead;               /* lines that the pass asks for ahead */
	uint64_t zero;           /* that the compiler does not know */
	volatile uint64_t sink;
};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void copy_task(void *context, int64_t i)
{
	struct run *run = context;
	memcpy(run->to + i * PIECE, run->from + i * PIECE, PIECE);
}

static void stream_task(void *context, int64_t i)
{
	struct run *run = context;
	const __m128i *from = (const __m128i *)(void *)(run->from + i * PIECE);
	__m128i *to = (__m128i *)(void *)(run->to + i * PIECE);
	for (int64_t k = 0; k < PIECE / 16; k += 4) {
		__m128i a = _mm_load_si128(from + k), b = _mm_load_si128(from + k + 1);
		__m128i c = _mm_load_si128(from + k + 2), d = _mm_load_si128(from + k + 3);
		_mm_stream_si128(to + k, a);
		_mm_stream_si128(to + k + 1, b);
		_mm_stream_si128(to + k + 2, c);
		_mm_stream_si128(to + k + 3, d);
	}
	_mm_sfence();
}

/* The update's reads and writes: `wide` fp32 arrays and `narrow` halves changed in place, and a gradient read. Lines `ahead` are asked
 * for, if not 0. */
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) static uint64_t
pass(line *const wide[3], line *const narrow[2], const line *gradient, int64_t lines, int halves, int ahead, uint64_t nothing)
{
	line zero = {nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing}, seen = zero;
	for (int64_t i = 0; i < lines; i++) {
		int64_t w = i << halves;
		if (ahead) {
			__builtin_prefetch(gradient + i + ahead);
			__builtin_prefetch((halves ? narrow[0] : wide[0]) + i + ahead);
			if (halves)
				__builtin_prefetch(narrow[1] + i + ahead);
			for (int k = 0; k <= halves; k++) {
				__builtin_prefetch(wide[1] + w + k + ahead);
				__builtin_prefetch(wide[2] + w + k + ahead);
			}
		}
		seen |= gradient[i];
		if (halves) {
			narrow[0][i] ^= zero;
			narrow[1][i] ^= zero;
		} else {
			wide[0][i] ^= zero;
		}
		for (int k = 0; k <= halves; k++) {
			wide[1][w + k] ^= zero;
			wide[2][w + k] ^= zero;
		}
	}
	return seen[0];
}

static void pass_task(void *context, int64_t i)
{
	struct run *run = context;
	int halves = run->dtype == RH_BF16;
	int64_t at = i * run->piece * (halves ? 2 : 4), wide_at = i * run->piece * 4;
	char *weights = (char *)(uintptr_t)rh_store_weights(run->store, 0);
	char *lower = weights + run->elements * 2; /* as the store lays it out for this one block */
	line *wide[3] = {(line *)(void *)(weights + wide_at), (line *)(void *)((char *)rh_store_moment(run->store, 0, 0) + wide_at),
	                 (line *)(void *)((char *)rh_store_moment(run->store, 0, 1) + wide_at)};
	line *narrow[2] = {(line *)(void *)(weights + at), (line *)(void *)(lower + at)};
	run->sink |= pass(wide, narrow, (const line *)(void *)((char *)rh_store_gradient(run->store, 0) + at),
	                  run->piece * (halves ? 2 : 4) / 64, halves, run->ahead, run->zero);
}

static double best(double time, double before)
{
	return before == 0 || time < before ? time : before;
}

struct rates {
	double update, copy, stream, pass, norm; /* bytes a second */
	double parameters;                       /* a second */
};

static struct rates measure(enum rh_dtype dtype, int64_t elements, struct rh_pool *pool)
{
	struct rh_tensor tensor = {"w", elements / 1024, 1024, 0, 1, 2};
	struct rh_block spec = {"block", elements, 1, 1, &tensor, 1};
	struct rh_optimizer_settings adamw = {0.9, 0.999, 1e-8, 0.01, 0};
	struct run run = {.dtype = dtype, .elements = elements, .piece = 32768};
	int64_t moved = dtype == RH_F32 ? 28 : 26, half = elements * 8;
	struct rh_arena arena;
	if (rh_store_create(&spec, 1, &(struct rh_store_options){.dtype = dtype}, pool, &run.store) ||
	    rh_host_reserve(2 * half, "the copies", &arena)) {
		fprintf(stderr, "%s\n", rh_error(-ENOMEM));
		exit(1);
	}
	run.from = arena.base;
	run.to = arena.base + half;
	memset(arena.base, 1, (size_t)(2 * half));
	uint32_t seed = 1;
	for (int64_t i = 0; i < elements; i++) {
		seed = seed * 1664525u + 1013904223u;
		float value = (float)(int32_t)seed * 0x1p-31f;
		uint32_t bits;
		memcpy(&bits, &value, 4);
		if (dtype == RH_F32)
			((float *)rh_store_gradient(run.store, 0))[i] = value;
		else
			((uint16_t *)rh_store_gradient(run.store, 0))[i] = (uint16_t)(bits >> 16);
	}
	double update = 0, copy = 0, stream = 0, through = 0, norm = 0;
	for (int round = 0; round < ROUNDS; round++) {
		double t0 = now();
		if (rh_optimizer_update(run.store, 0, &adamw, 1e-3, 1, round + 1)) {
			fprintf(stderr, "%s\n", rh_error(-EINVAL));
			exit(1);
		}
		double t1 = now();
		rh_pool_run(pool, pass_task, &run, elements / run.piece);
		double t12 = now();
		run.ahead = 32;
		rh_pool_run(pool, pass_task, &run, elements / run.piece);
		run.ahead = 0;
		double t2 = now();
		rh_pool_run(pool, copy_task, &run, half / PIECE);
		double t3 = now();
		rh_pool_run(pool, stream_task, &run, half / PIECE);
		double t4 = now();
		(void)rh_optimizer_norm(run.store);
		double t5 = now();
		if (!round)
			continue; /* pages were touched for the first time */
		update = best(t1 - t0, update);
		through = best(t2 - t12, best(t12 - t1, through));
		copy = best(t3 - t2, copy);
		stream = best(t4 - t3, stream);
		norm = best(t5 - t4, norm);
	}
	rh_store_destroy(run.store);
	rh_host_release(&arena);
	double n = (double)elements, copied = 2 * (double)half;
	return (struct rates){.update = n * (double)moved / update,
	                      .copy = copied / copy,
	                      .stream = copied / stream,
	                      .pass = n * (double)moved / through,
	                      .norm = n * (dtype == RH_F32 ? 4 : 2) / norm,
	                      .parameters = n / update};
}

static double reference(const struct rates *r)
{
	double most = r->copy > r->stream ? r->copy : r->stream;
	return most > r->pass ? most : r->pass;
}

static void processor(char *name, size_t size)
{
	FILE *file = fopen("/proc/cpuinfo", "r");
	snprintf(name, size, "unknown processor");
	for (char text[512]; file && fgets(text, sizeof text, file);)
		if (!strncmp(text, "model name", 10) && strchr(text, ':')) {
			snprintf(name, size, "%.*s", (int)strcspn(strchr(text, ':') + 2, "\n"), strchr(text, ':') + 2);
			break;
		}
	if (file)
		fclose(file);
}

int main(int argc, char **argv)
{
	int64_t elements = (argc > 1 ? strtoll(argv[1], NULL, 10) : 64) << 20;
	int threads = argc > 2 ? atoi(argv[2]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
	struct rh_pool *pool;
	if (elements <= 0 || threads <= 0 || rh_pool_create(threads, &pool)) {
		fprintf(stderr, "usage: adamw [millions of parameters] [threads]\n");
		return 2;
	}
	struct rates rates[2];
	const char *names[2] = {"fp32", "bf16, split master"};
	for (int i = 0; i < 2; i++) {
		struct rates r = rates[i] = measure(i ? RH_BF16 : RH_F32, elements, pool);
		printf("%-18s %7.2f GB/s (%.0f M parameters/s): %.3f of the best of memcpy %.2f, non-temporal copy %.2f, pass %.2f; norm "
		       "%.2f\n",
		       names[i], r.update / 1e9, r.parameters / 1e6, r.update / reference(&r), r.copy / 1e9, r.stream / 1e9, r.pass / 1e9,
		       r.norm / 1e9);
	}
	rh_pool_destroy(pool);
	char name[256];
	processor(name, sizeof name);
	struct rates *split = &rates[1], *plain = &rates[0];
	printf("{\"bench\": \"adamw\", \"value\": %.3f, \"unit\": \"GB/s\", \"reference\": %.3f, \"ratio\": %.3f, "
	       "\"parameters_per_second\": "
	       "%.0f, \"fp32_value\": %.3f, \"fp32_reference\": %.3f, \"fp32_ratio\": %.3f, \"fp32_parameters_per_second\": %.0f, "
	       "\"threads\": %d, "
	       "\"machine\": \"%s, %d threads\"}\n",
	       split->update / 1e9, reference(split) / 1e9, split->update / reference(split), split->parameters, plain->update / 1e9,
	       reference(plain) / 1e9, plain->update / reference(plain), plain->parameters, threads, name, threads);
	return 0;
}
