/* Host memory and the optimizer on it. */
#include "machine/copies.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "offload/memory.h"
#include "offload/optimizer.h"
#include "machine/median.h"

#include <string.h>

enum { PIECE_BYTES = 4 << 20, REPEATS = 3, UPDATES = 9 };

typedef uint64_t line __attribute__((vector_size(64)));

struct touching {
	char *from, *to; /* to NULL: read alone */
	uint64_t sink;   /* keeps the reads */
};

#ifdef __SANITIZE_THREAD__ /* which is not ready yet when the loader asks which clone to take */
#define CLONES
#else
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

/* Asking for lines some way ahead is worth twice the rate on machines whose own prefetch is timid. */
CLONES static uint64_t read_through(const line *at, int64_t lines)
{
	enum { AHEAD = 32 };
	line seen[4] = {{0}};
	for (int64_t i = 0; i < lines; i += 4)
		for (int j = 0; j < 4; j++) {
			__builtin_prefetch(at + i + j + AHEAD);
			seen[j] |= at[i + j];
		}
	line all = seen[0] | seen[1] | seen[2] | seen[3];
	return all[0] | all[1] | all[2] | all[3] | all[4] | all[5] | all[6] | all[7];
}

static void touch(void *context, int64_t i)
{
	struct touching *touching = context;
	const char *from = touching->from + i * PIECE_BYTES;
	if (touching->to)
		memcpy(touching->to + i * PIECE_BYTES, from, PIECE_BYTES);
	else
		__atomic_fetch_or(&touching->sink, read_through((const line *)(const void *)from, PIECE_BYTES / 64), __ATOMIC_RELAXED);
}

/* Seconds of the best of a few passes over `pieces`. */
static double best_of(struct rh_pool *pool, struct touching *touching, int64_t pieces)
{
	double best = 0;
	for (int n = 0; n < REPEATS; n++) {
		double began = rh_clock_seconds();
		rh_pool_run(pool, touch, touching, pieces);
		double seconds = rh_clock_seconds() - began;
		best = !n || seconds < best ? seconds : best;
	}
	return best;
}

int doctor_measure_host(struct rh_pool *pool, int64_t bytes, struct doctor_host *out)
{
	struct rh_arena memory;
	struct rh_pool *one = NULL;
	int64_t pieces = bytes / 2 / PIECE_BYTES, half = pieces * PIECE_BYTES;
	*out = (struct doctor_host){0};
	int rc = rh_host_reserve(2 * half, "the measurement of memory", &memory);
	if (rc)
		return rc;
	memset(memory.base, 1, (size_t)(2 * half));
	struct touching touching = {.from = memory.base};
	out->read = 2 * (double)half / best_of(pool, &touching, 2 * pieces);
	touching.to = memory.base + half;
	out->copy = 2 * (double)half / best_of(pool, &touching, pieces);
	rc = rh_pool_create(1, &one);
	if (!rc)
		out->core_copy = 2 * (double)half / best_of(one, &touching, pieces);
	rh_pool_destroy(one);
	rh_host_release(&memory);
	return rc;
}

/* Bytes of memory that an update of AdamW moves for each parameter: gradient read; weights and lower half, or master and moments, read and
 * written; scales of 8-bit moments, one of 256, not counted. */
static int moved_of(enum rh_dtype dtype, enum rh_state_layout layout)
{
	if (dtype == RH_F32)
		return 4 + 8 + 16;
	return layout == RH_LAYOUT_PLAIN ? 2 + 2 + 8 + 16 : layout == RH_LAYOUT_SPLIT ? 2 + 4 + 4 + 16 : 2 + 4 + 4 + 4;
}

int doctor_measure_optimizer(struct rh_pool *pool, int64_t elements, enum rh_dtype dtype, enum rh_state_layout layout, double *out)
{
	struct rh_tensor tensor = {.name = (char[]){"scratch"}, .rows = elements / 1024, .cols = 1024, .decays = 1, .rank = 2};
	struct rh_block block = {.name = (char[]){"scratch"},
	                         .elements = tensor.rows * tensor.cols,
	                         .trainable = 1,
	                         .uses = 1,
	                         .tensor = &tensor,
	                         .tensors = 1};
	struct rh_store_options options = {.dtype = dtype, .layout = layout, .optim = RH_OPTIM_ADAMW};
	struct rh_optimizer_settings settings = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01};
	struct rh_store *store = NULL;
	int rc = rh_store_create(&block, 1, &options, pool, &store);
	if (rc)
		return rc;
	double seconds[UPDATES + 1];
	for (int64_t n = 0; !rc && n <= UPDATES; n++) { /* the first touches the memory */
		double began = rh_clock_seconds();
		rc = rh_optimizer_update(store, 0, &(struct rh_update){settings, 1e-4, 1, n + 1, 1});
		seconds[n] = rh_clock_seconds() - began;
	}
	*out = rc ? 0 : moved_of(dtype, layout) * (double)block.elements / doctor_median(seconds + 1, UPDATES);
	rh_store_destroy(store);
	return rc;
}
