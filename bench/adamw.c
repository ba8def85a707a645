/* How near is the optimizer to the memory's speed? One AdamW update of a large block in each layout, against the best of three ways to move
 * the same bytes on the same threads: memcpy, a non-temporal copy, and a pass over the same arrays that reads and writes what the update
 * does but computes nothing. Bytes are those that a program reads and writes, so a cache line fetched only to be overwritten is not
 * counted.
 *
 * Then the same job by PyTorch's fused AdamW and DeepSpeed's CPUAdam (bench/adamw-peer.py), where build/venv is there (`make reference`;
 * ADAMW_PEER names another python). Deepspeed: installed into it by hand.
 *
 * usage: adamw [millions of parameters] [threads] */
#include "machine.h"
#include "offload/memory.h"
#include "offload/optimizer.h"

#include <emmintrin.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 15, PIECE = 1 << 20, CHUNK = 256 }; /* best of; bytes of a copying task; elements that a pass takes of one array */

typedef uint64_t line __attribute__((vector_size(64)));

enum touch { READ, CHANGE, WRITE };
struct array {
	char *at;
	int bytes; /* an element */
	enum touch touch;
};

struct run {
	struct rh_store *store;
	int64_t piece; /* elements of a pass's task */
	struct array array[6];
	int arrays;
	char *from, *to; /* for copies */
	int ahead;       /* lines that the pass asks for ahead */
	uint64_t zero;   /* that the compiler does not know */
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

/* Lines of one array. */
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) static uint64_t
pass(line *at, int64_t lines, enum touch touch, int ahead, uint64_t nothing)
{
	line zero = {nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing}, seen = zero;
	for (int64_t i = 0; i < lines; i++) {
		if (ahead)
			__builtin_prefetch(at + i + ahead);
		if (touch == READ)
			seen |= at[i];
		else
			at[i] = touch == CHANGE ? at[i] ^ zero : zero;
	}
	return seen[0];
}

static void pass_task(void *context, int64_t i)
{
	struct run *run = context;
	uint64_t seen = 0;
	for (int64_t first = i * run->piece; first < (i + 1) * run->piece; first += CHUNK)
		for (int a = 0; a < run->arrays; a++) {
			const struct array *array = &run->array[a];
			char *at = array->at + first * array->bytes;
			seen |= pass((line *)(void *)at, CHUNK * array->bytes / 64, array->touch, run->ahead, run->zero);
		}
	run->sink |= seen;
}

static double best(double time, double before)
{
	return before == 0 || time < before ? time : before;
}

struct rates {
	double update, copy, stream, pass, norm; /* bytes a second */
	double parameters;                       /* a second */
	int moved;                               /* bytes a parameter, scales of 8-bit moments not counted */
};

static void add(struct run *run, struct rates *rates, void *at, int bytes, enum touch touch)
{
	run->array[run->arrays++] = (struct array){at, bytes, touch};
	rates->moved += touch == CHANGE ? 2 * bytes : bytes;
}

/* The arrays as offload/store.c and state.c place them for one block. */
static void find_arrays(struct run *run, struct rates *rates, int64_t elements)
{
	const struct rh_store_options *options = rh_store_options(run->store);
	int wide = options->dtype == RH_F32, eight = options->layout == RH_LAYOUT_SPLIT8;
	char *weights = (char *)(uintptr_t)rh_store_weights(run->store, 0);
	add(run, rates, rh_store_gradient(run->store, 0), wide ? 4 : 2, READ);
	if (!wide && options->layout == RH_LAYOUT_PLAIN) {
		add(run, rates, weights, 2, WRITE);
		add(run, rates, weights + 2 * elements, 4, CHANGE);
	} else {
		add(run, rates, weights, wide ? 4 : 2, CHANGE);
		if (!wide)
			add(run, rates, weights + 2 * elements, 2, CHANGE);
	}
	for (int n = 0; n < 2; n++) {
		struct rh_state state;
		if (rh_store_state(run->store, 0, 0, n, &state))
			add(run, rates, state.data, eight ? 1 : 4, CHANGE);
	}
}

static void fill_gradient(struct run *run, int64_t elements)
{
	uint32_t seed = 1;
	for (int64_t i = 0; i < elements; i++) {
		seed = seed * 1664525u + 1013904223u;
		float value = (float)(int32_t)seed * 0x1p-31f;
		uint32_t bits;
		memcpy(&bits, &value, 4);
		if (rh_store_options(run->store)->dtype == RH_F32)
			((float *)rh_store_gradient(run->store, 0))[i] = value;
		else
			((uint16_t *)rh_store_gradient(run->store, 0))[i] = (uint16_t)(bits >> 16);
	}
}

static void must(int rc)
{
	if (rc) {
		fprintf(stderr, "%s\n", rh_error(rc));
		exit(1);
	}
}

static struct rates measure(const struct rh_store_options *options, int64_t elements, struct rh_pool *pool)
{
	struct rh_tensor tensor = {.name = "w", .rows = elements / 1024, .cols = 1024, .decays = 1, .rank = 2};
	struct rh_block spec = {.name = "block", .elements = elements, .trainable = 1, .uses = 1, .tensor = &tensor, .tensors = 1};
	struct rh_optimizer_settings settings = {0.9, 0.999, 1e-8, 0.01, 0};
	struct run run = {.piece = 32768};
	struct rates rates = {0};
	int64_t half = elements * 8;
	struct rh_arena arena;
	must(rh_store_create(&spec, 1, options, pool, &run.store));
	must(rh_host_reserve(2 * half, "the copies", &arena));
	run.from = arena.base;
	run.to = arena.base + half;
	memset(arena.base, 1, (size_t)(2 * half));
	fill_gradient(&run, elements);
	find_arrays(&run, &rates, elements);
	double update = 0, copy = 0, stream = 0, through = 0, norm = 0;
	for (int round = 0; round < ROUNDS; round++) {
		double t0 = now();
		must(rh_optimizer_update(run.store, 0, &(struct rh_update){settings, 1e-3, 1, round + 1, 1}));
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
		rh_optimizer_take(run.store, 0);
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
	rates.update = n * rates.moved / update;
	rates.copy = copied / copy;
	rates.stream = copied / stream;
	rates.pass = n * rates.moved / through;
	rates.norm = n * (options->dtype == RH_F32 ? 4 : 2) / norm;
	rates.parameters = n / update;
	return rates;
}

static double reference(const struct rates *r)
{
	double most = r->copy > r->stream ? r->copy : r->stream;
	return most > r->pass ? most : r->pass;
}

/* Parameters a second of the peers; 0: not there. */
static void ask_peers(int64_t elements, int threads, double rate[2])
{
	const char *python = getenv("ADAMW_PEER");
	char command[512], text[512] = "";
	snprintf(command, sizeof command, "%s bench/adamw-peer.py %lld %d 2>/dev/null", python ? python : "build/venv/run",
	         (long long)(elements >> 20), threads);
	if (!python && access("build/venv/run", X_OK))
		return;
	FILE *peer = popen(command, "r");
	json_t *json = NULL;
	while (peer && fgets(text, sizeof text, peer))
		if (text[0] == '{')
			json = json_loads(text, 0, NULL);
	if (peer)
		pclose(peer);
	rate[0] = json_number_value(json_object_get(json, "torch"));
	rate[1] = json_number_value(json_object_get(json, "deepspeed"));
	json_decref(json);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name, *key;
		struct rh_store_options options;
	} kinds[] = {{"fp32", "fp32", {.dtype = RH_F32}},
	             {"bf16 split", "split", {.dtype = RH_BF16, .layout = RH_LAYOUT_SPLIT}},
	             {"bf16 plain", "plain", {.dtype = RH_BF16, .layout = RH_LAYOUT_PLAIN}},
	             {"bf16 split8", "split8", {.dtype = RH_BF16, .layout = RH_LAYOUT_SPLIT8}}};
	enum { KINDS = sizeof kinds / sizeof *kinds, SPLIT = 1 };
	int64_t elements = (argc > 1 ? strtoll(argv[1], NULL, 10) : 64) << 20;
	int threads = argc > 2 ? atoi(argv[2]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
	struct rh_pool *pool;
	if (elements <= 0 || threads <= 0 || rh_pool_create(threads, &pool)) {
		fprintf(stderr, "usage: adamw [millions of parameters] [threads]\n");
		return 2;
	}
	struct rates rates[KINDS];
	for (int i = 0; i < KINDS; i++) {
		struct rates r = rates[i] = measure(&kinds[i].options, elements, pool);
		printf("%-11s %2d bytes: %7.2f GB/s (%.0f M parameters/s), %.3f of the best of memcpy %.2f, non-temporal copy %.2f, pass "
		       "%.2f; "
		       "norm %.2f\n",
		       kinds[i].name, r.moved, r.update / 1e9, r.parameters / 1e6, r.update / reference(&r), r.copy / 1e9, r.stream / 1e9,
		       r.pass / 1e9, r.norm / 1e9);
	}
	rh_pool_destroy(pool);
	double peer[2] = {0};
	ask_peers(elements, threads, peer);
	static const char *const peers[2] = {"torch fused", "DeepSpeed"};
	for (int i = 0; i < 2; i++)
		if (peer[i] > 0)
			printf("%s: %.0f M parameters/s, ours %.2fx\n", peers[i], peer[i] / 1e6, rates[SPLIT].parameters / peer[i]);
		else
			printf("%s: not installed in build/venv\n", peers[i]);
	char name[256];
	bench_machine(name, sizeof name);
	struct rates *split = &rates[SPLIT];
	printf("{\"bench\": \"adamw\", \"value\": %.3f, \"unit\": \"GB/s\", \"reference\": %.3f, \"ratio\": %.3f, "
	       "\"parameters_per_second\": %.0f, \"torch_ratio\": %.3f, \"deepspeed_ratio\": %.3f, ",
	       split->update / 1e9, reference(split) / 1e9, split->update / reference(split), split->parameters,
	       peer[0] > 0 ? split->parameters / peer[0] : 0, peer[1] > 0 ? split->parameters / peer[1] : 0);
	for (int i = 0; i < KINDS; i++)
		if (i != SPLIT)
			printf("\"%s\": {\"value\": %.3f, \"ratio\": %.3f, \"parameters_per_second\": %.0f}, ", kinds[i].key,
			       rates[i].update / 1e9, rates[i].update / reference(&rates[i]), rates[i].parameters);
	printf("\"threads\": %d, \"machine\": \"%s, %d threads\"}\n", threads, name, threads);
	return 0;
}
