/* Training state on NVMe: the same bits as in memory whatever is spilled, in whatever order blocks are updated and looked at in between. */
#include "offload/drives.h"
#include "tensor.h"

#include "core/file.h"
#include "core/float16.h"
#include "core/log.h"
#include "device/sim/sim.h"
#include "offload/optimizer.h"
#include "offload/store_internal.h"
#include "offload/updater.h"

#include <math.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum { BLOCKS = 7, STEPS = 8, TENSORS = 4 };

static struct rh_tensor tensors[BLOCKS][TENSORS];
static struct rh_block specs[BLOCKS];
static char names[BLOCKS][TENSORS][16];

/* Blocks of odd shapes, with gaps; the third is frozen, and one of its tensors packed. */
static void make_specs(void)
{
	static const int64_t shapes[TENSORS][2] = {{300, 401}, {1, 77}, {513, 128}, {1, 40000}};
	static char block_names[BLOCKS][16];
	for (int b = 0; b < BLOCKS; b++) {
		int64_t offset = 0;
		for (int t = 0; t < TENSORS; t++) {
			snprintf(names[b][t], sizeof names[b][t], "%d.%d", b, t);
			tensors[b][t] = (struct rh_tensor)TENSOR(names[b][t], shapes[t][0] > 1 ? shapes[t][0] + b : 1, shapes[t][1], offset,
			                                         1, shapes[t][0] > 1 ? 2 : 1);
			offset += (tensors[b][t].rows * tensors[b][t].cols + 127) / 128 * 128;
		}
		snprintf(block_names[b], sizeof block_names[b], "layer %d", b);
		specs[b] = (struct rh_block){.name = block_names[b],
		                             .elements = offset,
		                             .trainable = b != 2,
		                             .uses = 1,
		                             .tensor = tensors[b],
		                             .tensors = TENSORS};
	}
	for (int t = 0; t < TENSORS; t++) /* with room for either dtype */
		tensors[2][t].stored = 4 * tensors[2][t].offset;
	tensors[2][2].form = RH_FORM_Q8_0;
	specs[2].packed_bytes = 4 * specs[2].elements;
}

static int64_t elements(int b, int t)
{
	return tensors[b][t].rows * tensors[b][t].cols;
}

static void hash(uint64_t *sum, const void *bytes, int64_t length)
{
	*sum = XXH3_64bits_withSeed(bytes, (size_t)length, *sum);
}

/* A tensor's values, or the bytes that a packed one has in their place. */
static int get_all(struct rh_store *store, int b, int t, float *values)
{
	if (tensors[b][t].form)
		return rh_store_get_packed(store, b, t, 0, rh_block_tensor(&specs[b], t, RH_F32).bytes, values);
	return rh_store_get(store, b, t, 0, elements(b, t), values);
}

static int set_in_two(struct rh_store *store, int b, int t, const float *values)
{
	int64_t all = tensors[b][t].form ? rh_block_tensor(&specs[b], t, RH_F32).bytes : elements(b, t), half = all / 2;
	if (!tensors[b][t].form) {
		int rc = rh_store_set(store, b, t, half, all - half, values + half);
		return rc ? rc : rh_store_set(store, b, t, 0, half, values);
	}
	int rc = rh_store_set_packed(store, b, t, half, all - half, (const char *)values + half);
	return rc ? rc : rh_store_set_packed(store, b, t, 0, half, values);
}

/* Weights and all state, through the doors that checkpoints use. */
static uint64_t hash_all(struct rh_store *store)
{
	static float values[1 << 18];
	uint64_t sum = 0;
	for (int b = 0; b < BLOCKS; b++)
		for (int t = 0; t < TENSORS; t++) {
			struct rh_state state;
			memset(values, 0, (size_t)elements(b, t) * 4);
			check_ok(get_all(store, b, t, values));
			hash(&sum, values, elements(b, t) * 4);
			for (int n = 0; specs[b].trainable && rh_store_state(store, b, t, n, &state); n++) {
				check_ok(rh_store_state_get(store, b, t, n, 0, state.rows * state.cols, values));
				hash(&sum, values, rh_dtype_bytes(state.dtype, state.rows * state.cols));
			}
		}
	return sum;
}

static void set_all(struct rh_store *store, uint64_t seed)
{
	static float values[1 << 18];
	for (int b = 0; b < BLOCKS; b++)
		for (int t = 0; t < TENSORS; t++) {
			for (int64_t i = 0; i < elements(b, t); i++)
				values[i] = check_uniform(&seed);
			check_ok(set_in_two(store, b, t, values));
		}
}

/* What a checkpoint would bring: moments are not negative where roots are taken. */
static void set_state(struct rh_store *store, uint64_t seed)
{
	static float values[1 << 18];
	struct rh_state state;
	for (int b = 0; b < BLOCKS; b++)
		for (int t = 0; specs[b].trainable && t < TENSORS; t++)
			for (int n = 0; rh_store_state(store, b, t, n, &state); n++) {
				int64_t count = state.rows * state.cols;
				for (int64_t i = 0; i < count; i++)
					if (state.dtype == RH_U8)
						((uint8_t *)values)[i] = (uint8_t)(check_random(&seed) % 100 + 128);
					else
						values[i] = check_uniform(&seed) + 1.5f;
				check_ok(rh_store_state_set(store, b, t, n, 0, count, values));
			}
}

static void fill_gradients(struct rh_store *store, uint64_t seed)
{
	for (int b = 0; b < BLOCKS; b++)
		for (int t = 0; specs[b].trainable && t < TENSORS; t++)
			for (int64_t i = tensors[b][t].offset; i < tensors[b][t].offset + elements(b, t); i++) {
				float value = check_uniform(&seed);
				if (rh_store_options(store)->dtype == RH_F32)
					((float *)rh_store_gradient(store, b))[i] = value;
				else
					((uint16_t *)rh_store_gradient(store, b))[i] = rh_f32_to_bf16(value);
			}
}

/* Blocks `one` and `other` in turn, piece by piece at random. */
static void update_in_turn(struct rh_store *store, int one, int other, const struct rh_update *update, uint64_t *order)
{
	int block[2] = {one, other}, piece[2] = {0}, left = 2;
	while (left) {
		int i = (int)(check_random(order) % 2);
		if (piece[i] == rh_optimizer_pieces(store, block[i]))
			continue;
		if (check_random(order) % 3 == 0)
			rh_store_expect(store, &block[check_random(order) % 2], 1);
		int distance = rh_optimizer_distance(store, block[i], piece[i]);
		assert_true(distance >= 0 && distance <= 2);
		check_ok(rh_optimizer_update_piece(store, block[i], piece[i]++, update, RH_UPDATE_WHOLE));
		left -= piece[i] == rh_optimizer_pieces(store, block[i]);
	}
}

/* The step's i-th. */
static int block_at(int step, int i)
{
	return step % 3 == 0 ? i : step % 3 == 1 ? BLOCKS - 1 - i : (i + step) % BLOCKS;
}

/* Steps in the order of the blocks, backwards, and at random, the last two in turn; looked at in between as checkpoints do, and read ahead,
 * rightly or not. */
static uint64_t train(const struct rh_store_options *options, struct rh_pool *pool, struct rh_space *space)
{
	struct rh_optimizer_settings settings = {0.9, 0.95, 1e-8, 0.01, options->momentum ? 0.9 : 0};
	struct rh_store *store = NULL;
	uint64_t seed = 5, order = 77, sum = 0;
	check_ok(rh_store_create(specs, BLOCKS, options, pool, &store));
	if (space)
		check_ok(rh_space_reserve(space));
	set_all(store, seed);
	for (int step = 0; step < STEPS; step++) {
		fill_gradients(store, 100 + (uint64_t)step);
		const struct rh_update update = {settings, 1e-3, 0.5, step + 1, 1};
		int all[BLOCKS], last = block_at(step, BLOCKS - 1), but_last = block_at(step, BLOCKS - 2);
		int in_turn = space && step % 2 && specs[last].trainable && specs[but_last].trainable;
		for (int b = 0; b < BLOCKS; b++)
			all[b] = b;
		if (step % 4 < 2)
			rh_store_expect(store, all, BLOCKS);
		for (int i = 0; i < BLOCKS - 2 * in_turn; i++) {
			int b = block_at(step, i);
			if (step % 4 == 3 && check_random(&order) % 2)
				rh_store_expect(store, all + check_random(&order) % BLOCKS, 1);
			if (specs[b].trainable)
				check_ok(rh_optimizer_update(store, b, &update));
		}
		if (in_turn)
			update_in_turn(store, last, but_last, &update, &order);
		if (step == 4)
			set_state(store, 9);
		if (step % 5 == 3)
			sum += hash_all(store);
	}
	sum += 3 * hash_all(store);
	rh_space_close(space);
	rh_store_destroy(store);
	return sum;
}

static int64_t nvme_bytes(const struct rh_store_options *options)
{
	struct rh_store_nvme nvme = rh_store_nvme(specs, BLOCKS, options);
	return nvme.frozen + nvme.masters + nvme.state;
}

static void check_kind(struct drives *drives, struct rh_pool *pool, struct rh_store_options options, const char *name)
{
	uint64_t expected = train(&options, pool, NULL);
	int64_t plain = rh_store_bytes(specs, BLOCKS, &options);
	for (int spill = 1; spill < 8; spill += spill == 3 ? 4 : 1) /* 7: frozen weights too */
		for (int dirs = 1; dirs <= DRIVES; dirs += 2) {
			if (CHECK_THREADS_ONLY && dirs != (spill % 2 ? DRIVES : 1)) /* half of the runs */
				continue;
			struct rh_space_options where = {
			        .dir = drives->name, .dirs = dirs, .engine = spill == 1 ? RH_DRIVE_THREADS : RH_DRIVE_BEST};
			check_ok(rh_space_open(&where, &options.space));
			options.spill = spill;
			setenv("RH_SPILL_ELEMENTS", spill == 1 ? "40000" : spill == 2 ? "80000" : "120000", 1);
			int64_t bytes = rh_store_bytes(specs, BLOCKS, &options), nvme = nvme_bytes(&options);
			uint64_t got = train(&options, pool, options.space);
			if (got != expected)
				fail_msg("%s: spill %d over %d drives is not what it is in memory", name, spill, dirs);
			if (dirs == DRIVES)
				printf("%s, spill %d: %lld bytes in memory instead of %lld, %lld on NVMe\n", name, spill, (long long)bytes,
				       (long long)plain, (long long)nvme);
		}
}

static void test_state_on_nvme_is_state_in_memory(void **state)
{
	(void)state;
	struct rh_pool *pool = NULL;
	struct drives drives;
	make_specs();
	drives_make(&drives);
	check_ok(rh_pool_create(2, &pool));
	check_kind(&drives, pool, (struct rh_store_options){.dtype = RH_BF16}, "adamw, split");
	check_kind(&drives, pool, (struct rh_store_options){.dtype = RH_BF16, .layout = RH_LAYOUT_PLAIN, .published = 1}, "adamw, plain");
	check_kind(&drives, pool, (struct rh_store_options){.dtype = RH_BF16, .layout = RH_LAYOUT_SPLIT8}, "adamw, split8");
	check_kind(&drives, pool, (struct rh_store_options){.dtype = RH_F32, .layout = RH_LAYOUT_PLAIN}, "adamw, fp32");
	check_kind(&drives, pool, (struct rh_store_options){.dtype = RH_BF16, .optim = RH_OPTIM_LION}, "lion");
	check_kind(&drives, pool, (struct rh_store_options){.dtype = RH_BF16, .optim = RH_OPTIM_SGD, .momentum = 1}, "sgd");
	check_kind(&drives, pool, (struct rh_store_options){.dtype = RH_BF16, .optim = RH_OPTIM_ADAFACTOR}, "adafactor");
	rh_pool_destroy(pool);
	drives_remove(&drives);
}

struct moved {
	int64_t read, written;
};

static struct moved moved_by(struct rh_space *space)
{
	struct rh_space_stats stats;
	struct moved moved = {0};
	rh_space_stats(space, &stats);
	for (int d = 0; d < stats.drives; d++) {
		moved.read += stats.read_bytes[d];
		moved.written += stats.written_bytes[d];
	}
	return moved;
}

/* What the cache may still hold, or have held before. */
static void check_moved(const char *what, struct rh_space *space, struct moved *before, struct moved expected, int64_t window)
{
	struct moved now = moved_by(space), moved = {now.read - before->read, now.written - before->written};
	printf("%s: read %lld of %lld, written %lld of %lld\n", what, (long long)moved.read, (long long)expected.read,
	       (long long)moved.written, (long long)expected.written);
	assert_true(moved.read <= expected.read && moved.read >= expected.read - window);
	assert_true(moved.written <= expected.written && moved.written >= expected.written - window);
	*before = now;
}

/* Loading and saving move the parts that they are about, once. */
static void test_what_is_not_asked_for_is_not_moved(void **state)
{
	(void)state;
	static float values[1 << 18];
	struct rh_pool *pool = NULL;
	struct drives drives;
	make_specs();
	drives_make(&drives);
	check_ok(rh_pool_create(1, &pool));
	for (int spill = RH_SPILL_OPTIMIZER; spill <= (RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS); spill += RH_SPILL_MASTERS) {
		struct rh_space_options where = {.dir = drives.name, .dirs = 1};
		struct rh_store_options options = {.dtype = RH_BF16, .spill = spill};
		struct rh_optimizer_settings settings = {0.9, 0.95, 1e-8, 0.01, 0};
		struct rh_store *store = NULL;
		struct moved before = {0};
		setenv("RH_SPILL_ELEMENTS", "40000", 1);
		check_ok(rh_space_open(&where, &options.space));
		check_ok(rh_store_create(specs, BLOCKS, &options, pool, &store));
		check_ok(rh_space_reserve(options.space));
		struct rh_store_nvme nvme = rh_store_nvme(specs, BLOCKS, &options);
		int64_t window = 6 * 10 * 48000, moments = 4 * nvme.state / 8;
		set_all(store, 5);
		check_ok(rh_store_settle(store));
		check_moved("weights set", options.space, &before, (struct moved){0, nvme.masters}, 0);
		for (int b = 0; b < BLOCKS; b++)
			if (specs[b].trainable)
				check_ok(rh_optimizer_update(store, b, &(struct rh_update){settings, 1e-3, 1, 1, 1}));
		check_ok(rh_store_settle(store));
		/* moments never written are not read */
		check_moved("a step", options.space, &before, (struct moved){nvme.masters, nvme.masters + nvme.state}, window);
		for (int b = 0; b < BLOCKS; b++)
			for (int t = 0; t < TENSORS; t++)
				check_ok(get_all(store, b, t, values));
		check_moved("weights got", options.space, &before, (struct moved){nvme.masters, 0}, window);
		for (int b = 0; b < BLOCKS; b++)
			for (int t = 0; specs[b].trainable && t < TENSORS; t++)
				check_ok(rh_store_state_get(store, b, t, 1, 0, elements(b, t), values));
		check_moved("one moment got", options.space, &before, (struct moved){moments, 0}, window);
		for (int b = 0; b < BLOCKS; b++)
			for (int t = 0; specs[b].trainable && t < TENSORS; t++)
				check_ok(rh_store_state_set(store, b, t, 0, 0, elements(b, t), values));
		check_ok(rh_store_settle(store));
		check_moved("one moment set", options.space, &before, (struct moved){moments, moments}, window);
		rh_space_close(options.space);
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
	drives_remove(&drives);
}

/* A fault of the drive comes out of the update, and stays. */
static void test_a_fault_comes_out_of_the_update(void **state)
{
	(void)state;
	struct rh_pool *pool = NULL;
	struct drives drives;
	make_specs();
	drives_make(&drives);
	check_ok(rh_pool_create(1, &pool));
	for (int flip = 0; flip < 2; flip++) {
		struct rh_space_options where = {.dir = drives.name, .dirs = 1};
		struct rh_store_options options = {.dtype = RH_BF16, .spill = RH_SPILL_OPTIMIZER};
		setenv("RH_SPILL_ELEMENTS", "40000", 1);
		struct rh_optimizer_settings settings = {0.9, 0.95, 1e-8, 0.01, 0};
		struct rh_store *store = NULL;
		rh_drive_fail_nth(30, flip ? RH_FAULT_FLIP : RH_FAULT_FAIL, -EIO);
		check_ok(rh_space_open(&where, &options.space));
		check_ok(rh_store_create(specs, BLOCKS, &options, pool, &store));
		check_ok(rh_space_reserve(options.space));
		int rc = 0, met = 0;
		for (int step = 0; step < 4; step++)
			for (int b = 0; b < BLOCKS; b++)
				if (specs[b].trainable &&
				    (rc = rh_optimizer_update(store, b, &(struct rh_update){settings, 1e-3, 1, step + 1, 1}))) {
					assert_int_equal(rc, flip ? -EBADMSG : -EIO);
					assert_non_null(strstr(rh_error(rc), "optimizer state of layer"));
					met++;
				}
		rh_drive_fail_nth(0, 0, 0);
		assert_true(met > 1);
		rh_space_close(options.space);
		rh_store_destroy(store);
	}
	rh_pool_destroy(pool);
	drives_remove(&drives);
}

/* A store whose state is on NVMe. */
struct spilled {
	struct drives drives;
	struct rh_pool *pool;
	struct rh_store_options options;
	struct rh_store *store;
};

static void spilled_open(struct spilled *spilled, const struct rh_block *blocks, int count, struct rh_store_options options)
{
	*spilled = (struct spilled){.options = options};
	drives_make(&spilled->drives);
	check_ok(rh_pool_create(2, &spilled->pool));
	struct rh_space_options where = {.dir = spilled->drives.name, .dirs = DRIVES};
	check_ok(rh_space_open(&where, &spilled->options.space));
	check_ok(rh_store_create(blocks, count, &spilled->options, spilled->pool, &spilled->store));
	check_ok(rh_space_reserve(spilled->options.space));
}

static void spilled_close(struct spilled *spilled)
{
	rh_space_close(spilled->options.space);
	rh_store_destroy(spilled->store);
	rh_pool_destroy(spilled->pool);
	drives_remove(&spilled->drives);
}

/* The record's block that this byte of a piece's memory is in. */
static int block_of(const struct spill_parts *parts, int64_t byte)
{
	int64_t block = 0;
	for (int p = 0; p < RH_SPACE_PARTS; p++) {
		if (byte < parts->bytes[p])
			return (int)(block + byte / RH_SPACE_BLOCK);
		byte -= parts->bytes[p];
		block += (parts->bytes[p] + RH_SPACE_BLOCK - 1) / RH_SPACE_BLOCK;
	}
	fail();
	return 0;
}

/* How many bits were flipped: one in each `stride` bytes. */
static int check_flips(struct rh_store *store, const struct store_piece *piece, int64_t stride, uint64_t *seed)
{
	struct spill_parts parts = spill_parts(&store->options, piece);
	int64_t bytes = parts.bytes[0] + parts.bytes[1] + parts.bytes[2];
	char *memory = malloc((size_t)bytes);
	for (int64_t i = 0; i < bytes; i++)
		memory[i] = (char)check_random(seed);
	assert_int_equal(sums_check(store, piece, STORE_ALL, memory), 0); /* never written: nothing to compare with */
	sums_make(store, piece, STORE_ALL, memory);
	assert_int_equal(sums_check(store, piece, STORE_ALL, memory), 0);
	int flips = 0;
	for (int64_t i = 0; i < bytes; i = i + 1 == bytes ? bytes : i + stride < bytes ? i + stride : bytes - 1, flips++) {
		memory[i] ^= (char)(1 << i % 8);
		assert_int_equal(sums_check(store, piece, STORE_ALL, memory), 1 + block_of(&parts, i));
		memory[i] ^= (char)(1 << i % 8);
	}
	int64_t last = parts.bytes[0] + parts.bytes[1] - 1; /* of parts that are asked for */
	memory[last] ^= 1;
	assert_int_equal(sums_check(store, piece, STORE_WEIGHTS | STORE_SECOND, memory), 0);
	sums_make(store, piece, STORE_SECOND, memory);
	assert_int_equal(sums_check(store, piece, STORE_ALL, memory), 1 + block_of(&parts, last));
	free(memory);
	return flips;
}

/* Each byte of a piece is under a checksum, and of the right block's. */
static void test_a_flipped_bit_is_of_its_block(void **state)
{
	(void)state;
	/* odd, with gaps, and of several blocks of the space, whose borders lie within spans */
	struct rh_tensor large[] = {TENSOR("a", 500, 701, 0, 1, 2), TENSOR("b", 1, 77, 350592, 1, 1), TENSOR("c", 600, 1000, 350720, 1, 2)};
	struct rh_tensor small[] = {TENSOR("d", 3, 5, 0, 1, 2)};
	struct rh_block blocks[] = {
	        {.name = "large", .elements = 950784, .trainable = 1, .uses = 1, .tensor = large, .tensors = 3},
	        {.name = "small", .elements = 128, .trainable = 1, .uses = 1, .tensor = small, .tensors = 1},
	};
	int64_t stride = getenv("RH_LONG") ? 1301 : 20011;
	int flips = 0;
	unsetenv("RH_SPILL_ELEMENTS");
	for (int plain = 0; plain < 2; plain++) {
		struct spilled spilled;
		uint64_t seed = 3;
		spilled_open(&spilled, blocks, 2,
		             (struct rh_store_options){.dtype = RH_BF16,
		                                       .layout = plain ? RH_LAYOUT_PLAIN : RH_LAYOUT_SPLIT,
		                                       .spill = RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS});
		int64_t sums = spill_measure(blocks, 2, &spilled.options).sums, end = 0;
		assert_int_equal(spilled.store->pieces, 2);
		for (int p = 0; p < 2; p++) {
			const struct store_piece *piece = &spilled.store->piece[p];
			struct spill_parts parts = spill_parts(&spilled.options, piece);
			assert_int_equal(piece->first_checksum, end);
			end += sums_count(&parts, piece->span_count);
			flips += check_flips(spilled.store, piece, stride, &seed);
		}
		assert_int_equal(end, sums);
		spilled_close(&spilled);
	}
	printf("%d bits flipped, each found in its block\n", flips);
}

/* Two steps and a look at all that there is; the first error. */
static int short_run(struct spilled *spilled, uint64_t *sum)
{
	static float values[1 << 18];
	struct rh_optimizer_settings settings = {0.9, 0.95, 1e-8, 0.01, spilled->options.momentum ? 0.9 : 0};
	struct rh_store *store = spilled->store;
	uint64_t seed = 5;
	int rc = 0;
	for (int b = 0; b < BLOCKS; b++)
		for (int t = 0; t < TENSORS && !rc; t++) {
			for (int64_t i = 0; i < elements(b, t); i++)
				values[i] = check_uniform(&seed);
			rc = set_in_two(store, b, t, values);
		}
	fill_gradients(store, 100);
	for (int step = 1; step <= 2; step++)
		for (int b = 0; b < BLOCKS && !rc; b++)
			rc = specs[b].trainable ? rh_optimizer_update(store, b, &(struct rh_update){settings, 1e-3, 0.5, step, 1}) : 0;
	for (int b = 0; b < BLOCKS; b++)
		for (int t = 0; t < TENSORS && !rc; t++) {
			struct rh_state state;
			rc = get_all(store, b, t, values);
			hash(sum, values, elements(b, t) * 4);
			for (int n = 0; !rc && specs[b].trainable && rh_store_state(store, b, t, n, &state); n++) {
				rc = rh_store_state_get(store, b, t, n, 0, state.rows * state.cols, values);
				hash(sum, values, rh_dtype_bytes(state.dtype, state.rows * state.cols));
			}
		}
	return rc;
}

/* What is flipped on its way is told, or was never asked for again: then all is as it should be. */
static void sweep_flips(struct rh_store_options options, const char *name)
{
	struct spilled spilled;
	uint64_t right = 0;
	spilled_open(&spilled, specs, BLOCKS, options);
	check_ok(short_run(&spilled, &right));
	spilled_close(&spilled);
	int told = 0, runs = 0;
	for (int64_t n = 1, calls = n; calls >= n; n += getenv("RH_LONG") ? 1 : CHECK_THREADS_ONLY ? 9 : 3, runs++) {
		uint64_t sum = 0;
		rh_drive_fail_nth(n, RH_FAULT_FLIP, 0);
		spilled_open(&spilled, specs, BLOCKS, options);
		int rc = short_run(&spilled, &sum);
		spilled_close(&spilled);
		calls = rh_drive_fail_nth(0, 0, 0);
		assert_true(rc == -EBADMSG || (!rc && sum == right));
		if (rc && !strstr(rh_error(rc), "does not match its checksum"))
			fail_msg("%s", rh_error(rc));
		told += rc != 0;
	}
	printf("%s: %d flips, %d told\n", name, runs, told);
	assert_true(told > runs / 2);
}

static void test_a_flip_on_its_way_is_told(void **state)
{
	(void)state;
	int both = RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS;
	make_specs();
	setenv("RH_SPILL_ELEMENTS", "80000", 1);
	sweep_flips((struct rh_store_options){.dtype = RH_BF16, .spill = both | RH_SPILL_WEIGHTS}, "adamw, split");
	sweep_flips((struct rh_store_options){.dtype = RH_BF16, .spill = both, .layout = RH_LAYOUT_SPLIT8}, "adamw, split8");
	sweep_flips((struct rh_store_options){.dtype = RH_F32, .spill = both, .layout = RH_LAYOUT_PLAIN, .optim = RH_OPTIM_LION}, "lion");
	sweep_flips((struct rh_store_options){.dtype = RH_BF16, .spill = both, .optim = RH_OPTIM_ADAFACTOR}, "adafactor");
}

/* A block that comes to be more urgent than the one whose update is in progress costs no reading twice, in this step or for the next. */
static void test_an_interrupted_update_reads_once(void **state)
{
	(void)state;
	struct spilled spilled;
	struct rh_optimizer_settings settings = {0.9, 0.95, 1e-8, 0.01, 0};
	make_specs();
	setenv("RH_SPILL_ELEMENTS", "3000", 1);
	spilled_open(&spilled, specs, 2,
	             (struct rh_store_options){.dtype = RH_F32, .layout = RH_LAYOUT_PLAIN, .spill = RH_SPILL_OPTIMIZER});
	struct rh_store *store = spilled.store;
	struct rh_store_nvme nvme = rh_store_nvme(specs, 2, &spilled.options);
	int64_t frames = 6 * 8 * 2 * STORE_SPAN;
	struct moved before = {0};
	for (int step = 1; step < 4; step++) {
		const struct rh_update update = {settings, 1e-3, 1, step, 1};
		rh_store_expect(store, (int[]){1, 0}, 2);
		int half = rh_optimizer_pieces(store, 1) / 2;
		assert_true(half > 2 && 2 * half > 6); /* frames */
		for (int p = 0; p < half; p++)
			check_ok(rh_optimizer_update_piece(store, 1, p, &update, RH_UPDATE_WHOLE));
		rh_store_expect(store, (int[]){0, 1}, 2);
		check_ok(rh_optimizer_update(store, 0, &update));
		for (int p = half; p < rh_optimizer_pieces(store, 1); p++)
			check_ok(rh_optimizer_update_piece(store, 1, p, &update, RH_UPDATE_WHOLE));
		for (int more = 1; more > 0;)
			more = rh_store_advance(store);
		check_ok(rh_store_settle(store));
		check_moved("a step", spilled.options.space, &before, (struct moved){step > 1 ? nvme.state : 0, nvme.state}, frames);
	}
	spilled_close(&spilled);
}

/* An event that is reached when something has been read, and what was taken when block 0 was updated. */
struct later {
	struct rh_event event;
	_Atomic int reached;
	struct rh_store *store;
	double norm;
	int updated[2], updates; /* blocks in their order */
};

static int later_query(struct rh_event *event)
{
	return ((struct later *)event)->reached;
}

static int later_sync(struct rh_event *event)
{
	struct timespec wait = {0, 1000000};
	while (!later_query(event))
		nanosleep(&wait, NULL);
	return 0;
}

static void did_move(void *context, enum rh_watched what, int block, int64_t bytes, double began_s, double ended_s)
{
	(void)block, (void)bytes, (void)began_s, (void)ended_s;
	if (what == RH_WATCHED_READ)
		((struct later *)context)->reached = 1;
}

static void did_update(void *context, enum rh_watched what, int block, int64_t bytes, double began_s, double ended_s)
{
	struct later *later = context;
	(void)what, (void)bytes, (void)began_s, (void)ended_s;
	later->updated[later->updates++ % 2] = block;
	if (block == 0)
		later->norm = rh_optimizer_block_norm(later->store, 1);
}

/* A gradient that arrives while another block's update goes through many pieces is taken between two of them, and used there if its block
 * comes first. */
static void test_what_is_urgent_does_not_wait_for_an_update(void **state)
{
	(void)state;
	static const struct rh_device_ops ops = {.event_query = later_query, .event_sync = later_sync};
	struct spilled spilled;
	struct rh_updater *updater = NULL;
	struct rh_update update = {{0.9, 0.95, 1e-8, 0.01, 0}, 1e-3, 1, 2, 1};
	make_specs();
	setenv("RH_SPILL_ELEMENTS", "3000", 1);
	spilled_open(&spilled, specs, 2,
	             (struct rh_store_options){.dtype = RH_F32, .layout = RH_LAYOUT_PLAIN, .spill = RH_SPILL_OPTIMIZER});
	struct rh_store *store = spilled.store;
	struct later later = {.event = {&ops}, .store = store};
	assert_true(store->block[0].piece_count > 5); /* the cache has six frames */
	for (int b = 0; b < 2; b++)                   /* what was never written is not read */
		check_ok(rh_optimizer_update(store, b, &(struct rh_update){update.settings, 1e-3, 1, 1, 1}));
	assert_true(rh_optimizer_block_norm(store, 1) == 0);
	for (int64_t i = 0; i < 77; i++)
		((float *)rh_store_gradient(store, 1))[i] = 1;
	check_ok(rh_updater_create(store, NULL, &updater));
	rh_space_watch(spilled.options.space, &(struct rh_watch){did_move, &later});
	rh_updater_watch(updater, &(struct rh_watch){did_update, &later}, 1);
	rh_updater_open(updater, &update, 0);
	rh_updater_arrives(updater, 0, NULL);
	rh_updater_arrives(updater, 1, &later.event);
	check_ok(rh_updater_finish(updater));
	assert_true(later.norm > 8);
	assert_true(later.updated[0] == 0 && later.updated[1] == 1);
	check_ok(rh_updater_norm(updater, &later.norm));
	/* a lower block, which the next step needs before, is updated between two pieces of a higher one */
	update.step++;
	later.reached = 0;
	rh_updater_watch(updater, &(struct rh_watch){did_update, &later}, 2);
	rh_updater_open(updater, &update, 0);
	rh_updater_arrives(updater, 1, NULL);
	rh_updater_arrives(updater, 0, &later.event);
	check_ok(rh_updater_finish(updater));
	assert_true(later.updated[0] == 0 && later.updated[1] == 1);
	rh_updater_destroy(updater);
	rh_space_watch(spilled.options.space, NULL);
	spilled_close(&spilled);
}

/* And in virtual time, of which plans are made. */
static void test_what_is_urgent_goes_first_in_virtual_time(void **state)
{
	(void)state;
	struct rh_hardware hardware = {.devices = 1, .nvme = {.read_bytes_per_s = 1e9, .write_bytes_per_s = 1e9}};
	struct rh_store_options options = {.dtype = RH_BF16, .spill = RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS, .addresses_only = 1};
	struct rh_update update = {{0.9, 0.95, 1e-8, 0.01, 0}, 1e-3, 1, 1, 1};
	struct rh_pool *pool = NULL;
	struct rh_sim *sim = NULL;
	struct rh_host_queue *queue = NULL;
	struct rh_updater *updater = NULL;
	struct later later = {0};
	double norm;
	make_specs();
	hardware.host = (struct rh_hardware_host){.cores = 2, .dram_bytes_per_s = 1e11, .optimizer_bytes_per_s[RH_LAYOUT_SPLIT] = 1e11};
	check_ok(rh_pool_create(1, &pool));
	check_ok(rh_sim_create(&(struct rh_sim_options){.hardware = &hardware, .devices = 1, .layout = RH_LAYOUT_SPLIT}, &sim));
	check_ok(rh_sim_queue(sim, &queue));
	check_ok(rh_store_create(specs, 2, &options, pool, &later.store));
	check_ok(rh_updater_create(later.store, queue, &updater));
	rh_updater_watch(updater, &(struct rh_watch){did_update, &later}, 0);
	rh_updater_open(updater, &update, 0);
	rh_updater_arrives(updater, 1, NULL);
	for (int i = 0; i < 5; i++)
		queue->ops->await_change(queue);
	assert_int_equal(later.updates, 0);
	rh_updater_arrives(updater, 0, NULL);
	check_ok(rh_updater_finish(updater));
	assert_true(later.updates == 2 && later.updated[0] == 0 && later.updated[1] == 1);
	double whole = rh_store_traffic(later.store, 0).nvme + rh_store_traffic(later.store, 1).nvme;
	assert_true(fabs(rh_updater_seconds(updater) / (whole / 2e9) - 1) < 0.05); /* half is read, half is written */
	check_ok(rh_updater_norm(updater, &norm));
	rh_updater_destroy(updater);
	rh_store_destroy(later.store);
	rh_pool_destroy(pool);
	rh_sim_release(sim);
}

/* Blocks with as many elements may have other bytes, where one of them is packed. */
static void test_pages_of_packed_blocks_are_their_own(void **state)
{
	(void)state;
	enum { FROZEN = 5 };
	struct rh_tensor tensor[FROZEN];
	struct rh_block frozen[FROZEN];
	const struct rh_store_options options = {.dtype = RH_F32, .spill = RH_SPILL_WEIGHTS, .addresses_only = 1};
	int64_t each = 0;
	setenv("RH_SPILL_ELEMENTS", "1024", 1);
	for (int b = 0; b < FROZEN; b++) {
		tensor[b] = (struct rh_tensor)TENSOR(names[0][0], 64, 256, 0, 1, 2);
		tensor[b].form = b == 2 ? RH_FORM_Q8_0 : RH_FORM_PLAIN;
		frozen[b] = (struct rh_block){.name = names[0][0],
		                              .elements = 64 * 256,
		                              .uses = 1,
		                              .tensor = &tensor[b],
		                              .tensors = 1,
		                              .packed_bytes = b == 2 ? 64 * 256 / 32 * 34 : 0};
		each += rh_store_nvme(&frozen[b], 1, &options).frozen;
	}
	assert_int_equal(rh_store_nvme(frozen, FROZEN, &options).frozen, each);
	unsetenv("RH_SPILL_ELEMENTS");
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_state_on_nvme_is_state_in_memory),
	        cmocka_unit_test(test_what_is_not_asked_for_is_not_moved),
	        cmocka_unit_test(test_a_fault_comes_out_of_the_update),
	        cmocka_unit_test(test_a_flipped_bit_is_of_its_block),
	        cmocka_unit_test(test_a_flip_on_its_way_is_told),
	        cmocka_unit_test(test_an_interrupted_update_reads_once),
	        cmocka_unit_test(test_what_is_urgent_does_not_wait_for_an_update),
	        cmocka_unit_test(test_what_is_urgent_goes_first_in_virtual_time),
	        cmocka_unit_test(test_pages_of_packed_blocks_are_their_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
