/* The store's arrays: their bytes and places. What they hold is read and set in store_values.c. */
#include "offload/store_internal.h"

#include "core/alloc.h"
#include "device/cpu/cpu.h"
#include "offload/memory.h"

#include <string.h>

/* More elements than any address space holds at 28 bytes each; below it no sum of sizes overflows. */
static const int64_t too_many = INT64_C(1) << 56;

/* Spans of a block; checks the caller's layout. */
static int64_t count_spans(const struct rh_block *spec)
{
	int64_t spans = 0, end = 0;
	for (int i = 0; i < spec->tensors; i++) {
		const struct rh_tensor *tensor = &spec->tensor[i];
		RH_ASSERT(tensor->rows >= 0 && tensor->cols >= 0 && tensor->offset >= end);
		end = tensor->offset + tensor_elements(tensor);
		spans += (tensor_elements(tensor) + STORE_SPAN - 1) / STORE_SPAN;
	}
	RH_ASSERT(end <= spec->elements && (spec->uses == 1 || spec->uses == 2));
	return spec->trainable ? spans : 0;
}

int rh_store_gradient_use(const struct rh_block *spec, enum rh_dtype dtype, int crosses_rounds)
{
	int crosses = crosses_rounds || spec->shared, two = spec->uses == 2;
	/* fp32: the sum becomes the gradient; of a block that two boxes share, the sum that the other box sends, since this box's own may still
	 * be on its way to the other. bf16, one use: the last round's gradient replaces the sum that it continued. bf16, two uses: nowhere,
	 * since a thread's rounded halves would land on sums that others have not read yet. */
	if (dtype == RH_F32 && (crosses || two))
		return spec->shared ? !rh_shared_use(spec->shared) : !crosses;
	return crosses && !two ? 0 : -1;
}

/* Cuts a block's arrays from `memory`, which may only be measuring: nothing is touched. turn: of spill_takes_weights. */
static void place_block(const struct rh_block *spec, const struct rh_store_options *options, int *turn, struct rh_arena *memory,
                        struct store_block *block)
{
	int64_t n = spec->elements, half = 2 * n, full = 4 * n;
	int wide = options->dtype == RH_F32;
	int64_t stored = rh_block_bytes(spec, options->dtype);
	*block = (struct store_block){.version = 1, .published_version = 1};
	if (!spill_takes_weights(spec, options, turn))
		block->weights = rh_arena_take(memory, stored);
	if (!spec->trainable)
		return;
	if (options->published)
		block->published = rh_arena_take(memory, stored);
	if (options->stash)
		block->stash = rh_arena_take(memory, options->stash * stored);
	int spilled = options->spill & RH_SPILL_MASTERS;
	if (!wide && !spilled && options->layout == RH_LAYOUT_PLAIN)
		block->master = rh_arena_take(memory, full);
	else if (!wide && !spilled)
		block->lower = rh_arena_take(memory, half);
	state_place(spec, options, memory, block);
	if (options->crosses_rounds || spec->shared)
		block->gradient_sum[0] = rh_arena_take(memory, full);
	if (spec->uses == 2)
		block->gradient_sum[1] = rh_arena_take(memory, full);
	int use = rh_store_gradient_use(spec, options->dtype, options->crosses_rounds);
	block->gradient = use < 0 ? rh_arena_take(memory, wide ? full : half) : block->gradient_sum[use];
}

/* Places all blocks, the span table and the scratch behind it; returns the number of spans, or -1 for more elements than can be. */
static int64_t place_all(const struct rh_block *specs, int count, const struct rh_store_options *options, struct rh_arena *memory,
                         struct store_block *blocks, struct store_span **table, void **scratch)
{
	int64_t spans = 0, elements = 0;
	int turn = 0;
	RH_ASSERT(options->dtype == RH_F32 || options->dtype == RH_BF16);
	RH_ASSERT(options->layout != RH_LAYOUT_SPLIT8 || (options->dtype == RH_BF16 && options->optim == RH_OPTIM_ADAMW));
	for (int i = 0; i < count; i++) {
		struct store_block block;
		RH_ASSERT(specs[i].elements >= 0);
		if (specs[i].elements > too_many - elements)
			return -1;
		elements += specs[i].elements;
		place_block(&specs[i], options, &turn, memory, &block);
		block.span = spans;
		block.span_count = count_spans(&specs[i]);
		spans += block.span_count;
		if (blocks)
			blocks[i] = block;
	}
	*table = rh_arena_take(memory, spans * (int64_t)sizeof **table);
	*scratch = rh_arena_take(memory, state_scratch(specs, count, options));
	return spans;
}

/* Bytes of the mapping that holds all arrays. */
static int64_t array_bytes(const struct rh_block *blocks, int count, const struct rh_store_options *options)
{
	struct rh_arena measure = rh_arena_measuring();
	struct store_span *table;
	void *scratch;
	return place_all(blocks, count, options, &measure, NULL, &table, &scratch) < 0 ? INT64_MAX : rh_host_round(measure.used);
}

int64_t rh_store_bytes(const struct rh_block *blocks, int count, const struct rh_store_options *options)
{
	struct rh_store_options real = *options;
	real.addresses_only = 0;
	int64_t bytes = array_bytes(blocks, count, &real);
	return bytes == INT64_MAX ? bytes : bytes + rh_host_round(spill_measure(blocks, count, options).cache_bytes);
}

struct rh_store_nvme rh_store_nvme(const struct rh_block *blocks, int count, const struct rh_store_options *options)
{
	return spill_measure(blocks, count, options).nvme;
}

static void fill_spans(struct rh_store *store)
{
	struct store_span *span = store->span;
	for (int b = 0; b < store->count; b++) {
		const struct rh_block *spec = &store->spec[b];
		int64_t codes = 0;
		for (int t = 0; spec->trainable && t < spec->tensors; t++) {
			int64_t n = tensor_elements(&spec->tensor[t]);
			for (int64_t first = 0; first < n; first += STORE_SPAN, span++) {
				int64_t left = n - first;
				*span = (struct store_span){.first = spec->tensor[t].offset + first,
				                            .count = (int32_t)(left < STORE_SPAN ? left : STORE_SPAN),
				                            .block = b,
				                            .tensor = t,
				                            .codes = (uint32_t)(codes + first / OPTIMIZER_CODES)};
			}
			codes += state_codes(n);
		}
	}
	RH_ASSERT(span == store->span + store->spans);
}

/* A node's part of one array: the elements whose spans its threads take. */
static void place_array(struct rh_numa *numa, void *array, int64_t elements, int64_t element_bytes)
{
	int nodes = rh_numa_nodes(numa);
	for (int n = 0; array && n < nodes; n++) {
		int64_t first = rh_numa_part(elements, nodes, n), end = rh_numa_part(elements, nodes, n + 1);
		rh_numa_place(numa, n, (char *)array + first * element_bytes, (end - first) * element_bytes);
	}
}

static void place_on_nodes(const void *context, struct rh_numa *numa, struct rh_arena memory)
{
	const struct rh_store *store = context;
	int64_t width = rh_dtype_bytes(store->dtype, 1);
	int turn = 0;
	for (int b = 0; b < store->count; b++) {
		struct store_block block;
		int64_t elements = store->spec[b].elements;
		place_block(&store->spec[b], &store->options, &turn, &memory, &block);
		if (!store->spec[b].trainable)
			continue;
		place_array(numa, block.weights, elements, width);
		place_array(numa, block.published, elements, width);
		place_array(numa, block.lower, elements, 2);
		place_array(numa, block.master, elements, 4);
		place_array(numa, block.gradient, elements, width);
		for (int k = 0; k < 2; k++) {
			place_array(numa, block.moment[k], elements, 4);
			place_array(numa, block.code[k], elements, 1);
			place_array(numa, block.gradient_sum[k] == block.gradient ? NULL : block.gradient_sum[k], elements, 4);
		}
	}
}

static int reserve(struct rh_store *store, int64_t bytes)
{
	static const char what[] = "weights and optimizer state";
	if (store->options.addresses_only)
		return rh_host_reserve_addresses(bytes, what, &store->memory);
	struct rh_numa *numa = rh_numa_open();
	if (store->options.devices) /* frozen weights: nobody else reads them */
		(void)rh_numa_near(numa, store->options.device, store->options.devices);
	struct rh_host_placing placing = {.numa = numa, .place = place_on_nodes, .context = store};
	int rc = rh_host_reserve_placed(&placing, bytes, what, &store->memory);
	store->nodes = rh_numa_nodes(numa);
	if (!rc)
		rh_numa_group(numa, store->pool);
	rh_numa_close(numa);
	return rc;
}

void store_run_spans(struct rh_store *store, int64_t first, int64_t count, void (*task)(void *context, int64_t i), void *context)
{
	int64_t share[RH_POOL_GROUPS + 1] = {0}, i = 0;
	if (store->nodes == 1 || !count) {
		rh_pool_run(store->pool, task, context, count);
		return;
	}
	int64_t elements = store->spec[store->span[first].block].elements;
	for (int n = 1; n <= store->nodes; n++) { /* spans ascend */
		int64_t end = n == store->nodes ? INT64_MAX : rh_numa_part(elements, store->nodes, n);
		while (i < count && store->span[first + i].first < end)
			i++;
		share[n] = i;
	}
	rh_pool_run_shared(store->pool, task, context, share);
}

static enum optimizer_form form_of(const struct rh_store_options *options)
{
	return options->dtype == RH_F32 ? FORM_WIDE : options->layout == RH_LAYOUT_PLAIN ? FORM_PLAIN : FORM_SPLIT;
}

int rh_store_create(const struct rh_block *blocks, int count, const struct rh_store_options *options, struct rh_pool *pool,
                    struct rh_store **out)
{
	int64_t bytes = array_bytes(blocks, count, options);
	if (bytes == INT64_MAX)
		return rh_fail(-ENOMEM, "the weights and optimizer state of this model have more bytes than any machine can address");
	int rc = -ENOMEM;
	struct rh_store *store = rh_alloc(1, sizeof *store);
	if (!store)
		return rc;
	*store = (struct rh_store){.spec = blocks,
	                           .count = count,
	                           .dtype = options->dtype,
	                           .options = *options,
	                           .form = form_of(options),
	                           .pool = pool,
	                           .nodes = 1,
	                           .kernels = &RH_CPU_PICK(rh_cpu_best_isa(), optimizer_kernels)};
	store->block = rh_alloc((size_t)count, sizeof *store->block);
	if (!store->block)
		goto out;
	rc = reserve(store, bytes);
	if (rc)
		goto out;
	store->spans = place_all(blocks, count, options, &store->memory, store->block, &store->span, &store->scratch);
	if (!options->addresses_only)
		fill_spans(store);
	spill_weigh(store);
	rc = options->addresses_only ? 0 : spill_create(store);
	if (rc)
		goto out;
	*out = store;
	return 0;
out:
	rh_store_destroy(store);
	return rc;
}

void rh_store_destroy(struct rh_store *store)
{
	if (!store)
		return;
	spill_destroy(store);
	for (int b = 0; store->block && b < store->count; b++)
		store_rows_free(store->block[b].rows);
	rh_host_release(&store->memory);
	rh_free(store->block);
	rh_free(store);
}

static struct store_block *block_at(const struct rh_store *store, int block)
{
	RH_ASSERT(block >= 0 && block < store->count);
	return &store->block[block];
}

void rh_store_throttle(struct rh_store *store, int threads)
{
	rh_pool_limit(store->pool, threads);
}

void *rh_store_memory(const struct rh_store *store, int64_t *bytes)
{
	*bytes = store->memory.capacity;
	return store->memory.base;
}

int rh_store_blocks(const struct rh_store *store)
{
	return store->count;
}

const struct rh_block *rh_store_block(const struct rh_store *store, int block)
{
	(void)block_at(store, block);
	return &store->spec[block];
}

const void *rh_store_weights(const struct rh_store *store, int block)
{
	const struct store_block *from = block_at(store, block);
	return from->published ? from->published : from->weights;
}

uint64_t rh_store_version(const struct rh_store *store, int block)
{
	const struct store_block *from = block_at(store, block);
	/* an update may be running: relaxed is enough, as whoever uses its weights waits for it (rh_updater_await_weights) */
	return __atomic_load_n(from->published ? &from->published_version : &from->version, __ATOMIC_RELAXED);
}

struct copying {
	char *target;
	const char *source;
	int64_t bytes;
};

enum { COPY_PIECE = 1 << 20 };

static void copy_piece(void *context, int64_t i)
{
	const struct copying *copying = context;
	int64_t first = i * COPY_PIECE, left = copying->bytes - first;
	memcpy(copying->target + first, copying->source + first, (size_t)(left < COPY_PIECE ? left : COPY_PIECE));
}

/* A block's weights, by all threads. */
static void copy_weights(struct rh_store *store, int block, char *to)
{
	struct copying copying = {to, store->block[block].weights, rh_block_bytes(&store->spec[block], store->dtype)};
	if (!store->options.addresses_only)
		rh_pool_run(store->pool, copy_piece, &copying, (copying.bytes + COPY_PIECE - 1) / COPY_PIECE);
}

const void *rh_store_stashed(const struct rh_store *store, int block, int64_t number)
{
	return (char *)block_at(store, block)->stash + number % store->options.stash * rh_block_bytes(&store->spec[block], store->dtype);
}

void rh_store_stash(struct rh_store *store, int block)
{
	struct store_block *from = block_at(store, block);
	if (from->stash)
		copy_weights(store, block, (char *)(uintptr_t)rh_store_stashed(store, block, from->stashed_versions++));
}

void rh_store_publish(struct rh_store *store, int block)
{
	struct store_block *from = block_at(store, block);
	if (!from->published || from->published_version == from->version)
		return;
	copy_weights(store, block, from->published);
	__atomic_store_n(&from->published_version, from->version, __ATOMIC_RELAXED);
}

void *rh_store_gradient(const struct rh_store *store, int block)
{
	return block_at(store, block)->gradient;
}

float *rh_store_sum(const struct rh_store *store, int block, int use)
{
	RH_ASSERT(use == 0 || use == 1);
	return block_at(store, block)->gradient_sum[use];
}

struct add_use {
	struct rh_store *store;
	struct store_block *block;
	int64_t first, count;
	const float *sum;
};

static void add_use_span(void *context, int64_t i)
{
	const struct add_use *add = context;
	int64_t at = i * STORE_SPAN, count = add->count - at < STORE_SPAN ? add->count - at : STORE_SPAN, first = add->first + at;
	if (add->store->dtype == RH_F32)
		add->store->kernels->add_f32((float *)add->block->gradient + first, add->block->gradient_sum[1] + first, add->sum + at,
		                             count);
	else
		add->store->kernels->add_bf16((uint16_t *)add->block->gradient + first, add->block->gradient_sum[1] + first, add->sum + at,
		                              count);
}

void rh_store_add_use(struct rh_store *store, int block, int64_t first, int64_t count, const float *sum)
{
	struct add_use add = {store, block_at(store, block), first, count, sum};
	RH_ASSERT(add.block->gradient_sum[1] && !add.block->gradient_sum[0]);
	RH_ASSERT(first >= 0 && count >= 0 && first <= store->spec[block].elements - count);
	if (!store->options.addresses_only)
		rh_pool_run(store->pool, add_use_span, &add, (count + STORE_SPAN - 1) / STORE_SPAN);
}

/* Each array as often as it is read and written: the gradient read, weights, masters and state both. */
struct rh_store_traffic rh_store_traffic_of(const struct rh_block *spec, const struct rh_store_options *options)
{
	double elements = (double)spec->elements, width = (double)rh_dtype_bytes(options->dtype, 1), state;
	int split = options->dtype != RH_F32 && options->layout != RH_LAYOUT_PLAIN;
	if (!spec->trainable)
		return (struct rh_store_traffic){0};
	switch (options->optim) {
	case RH_OPTIM_ADAMW:
		state = options->layout == RH_LAYOUT_SPLIT8 ? 2.03125 : 8;
		break;
	case RH_OPTIM_LION:
		state = 4;
		break;
	case RH_OPTIM_SGD:
		state = options->momentum ? 4 : 0;
		break;
	default:
		state = width; /* Adafactor reads the gradient three times in all */
	}
	double weights = split ? 8 : options->dtype == RH_F32 ? 8 : 10; /* plain: the master both ways, the upload form written */
	weights += options->stash ? 2 * width : 0;
	return (struct rh_store_traffic){.take = elements * width * (spec->uses == 2 ? 4 : 1),
	                                 .update = elements * (width + weights + 2 * state),
	                                 .weights = elements * (width + weights + state),
	                                 .moments = elements * (width + 2 * state),
	                                 .publish = options->published ? elements * 2 * width : 0};
}

struct rh_store_traffic rh_store_traffic(const struct rh_store *store, int block)
{
	struct rh_store_traffic traffic = rh_store_traffic_of(&store->spec[block], &store->options);
	const struct store_rows *rows = store->block[block].rows;
	if (rows) /* those that have come are read, and laid where as many were before */
		traffic.take = 3.0 * (double)(rows->count * rows->cols * rh_dtype_bytes(store->dtype, 1));
	traffic.nvme = store->spec[block].trainable ? 2 * (double)store->block[block].spilled : 0;
	return traffic;
}

const struct rh_store_options *rh_store_options(const struct rh_store *store)
{
	return &store->options;
}

int rh_store_can_set_concurrently(const struct rh_store *store)
{
	return !store->cache;
}

int rh_store_is_behind(const struct rh_store *store, int block)
{
	const struct store_block *from = block_at(store, block);
	/* an update may be running, as in rh_store_version */
	return from->published &&
	       __atomic_load_n(&from->published_version, __ATOMIC_RELAXED) != __atomic_load_n(&from->version, __ATOMIC_RELAXED);
}
