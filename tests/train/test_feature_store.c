/* Samples kept to be trained on again: what comes out is what went in, whatever was evicted between, and nothing that was not put. */
#include "check.h"

#include "core/philox.h"
#include "modes/fluidpipe/feature_store.h"
#include "offload/drives.h"
#include "offload/space.h"

#include <string.h>

enum { SAMPLES = 40, TOKEN_BYTES = 6, TEACHER_BYTES = 12, DOCUMENTS = 4, LONGEST = 9, TOKENS = DOCUMENTS * LONGEST };

struct room {
	struct rh_batch batch;
	char features[TOKENS * TOKEN_BYTES], teacher[TOKENS * TEACHER_BYTES];
};

static uint32_t drawn(uint64_t seed, uint32_t a, uint32_t b)
{
	return rh_philox(seed, a, b, 0, 1001).word[0];
}

static void make_room(struct room *room)
{
	const struct rh_batch_limits limits = {.tokens = TOKENS, .documents = DOCUMENTS, .trained = TOKENS, .longest = LONGEST};
	memset(room, 0, sizeof *room);
	check_ok(rh_batch_reserve(&room->batch, &limits));
}

/* Document d of a micro-batch is sample first + d, all of whose numbers follow from its id and the round. */
static void fill(struct room *room, uint64_t seed, uint32_t round, int64_t first)
{
	struct rh_batch *batch = &room->batch;
	batch->tokens = batch->documents = batch->trained = 0;
	batch->start[0] = 0;
	for (int64_t d = 0; d < DOCUMENTS; d++) {
		uint32_t id = (uint32_t)(first + d);
		for (uint32_t t = 0, length = 1 + drawn(seed, id, round) % LONGEST; t < length; t++, batch->tokens++) {
			uint32_t word = drawn(seed, id * 100 + t, round + 1000);
			batch->position[batch->tokens] = (int32_t)t;
			memset(room->features + batch->tokens * TOKEN_BYTES, (int)(word & 255), TOKEN_BYTES);
			if (word >> 8 & 1) {
				batch->head_row[batch->trained] = (int32_t)batch->tokens;
				memset(room->teacher + batch->trained * TEACHER_BYTES, (int)(word >> 4 & 255), TEACHER_BYTES);
				batch->target[batch->trained++] = (int32_t)(word >> 16);
			}
		}
		batch->start[++batch->documents] = (int32_t)batch->tokens;
	}
}

/* Order in which samples were put; those that were evicted are none of it any more. */
struct order {
	int64_t sample[SAMPLES];
	int first, behind, evicted;
};

static void note_evicted(void *context, int64_t sample)
{
	struct order *order = context;
	assert_true(order->first < order->behind);
	assert_int_equal(order->sample[order->first++], sample); /* the oldest */
	order->evicted++;
}

/* A micro-batch of one sample is what was put; one of several is theirs laid end to end. */
static void check_made(struct rh_feature_store *store, const int64_t *sample, int64_t count, uint64_t seed, uint32_t round)
{
	struct room made, source;
	int64_t tokens = 0, trained = 0;
	make_room(&made);
	make_room(&source);
	check_ok(rh_feature_store_make(store, sample, count, &made.batch, made.features, made.teacher));
	assert_int_equal(made.batch.documents, count);
	for (int64_t i = 0; i < count; i++) {
		int64_t d = sample[i] % DOCUMENTS;
		fill(&source, seed, round, sample[i] - d);
		int64_t start = source.batch.start[d], length = source.batch.start[d + 1] - start;
		assert_int_equal(made.batch.start[i], tokens);
		assert_memory_equal(made.batch.position + tokens, source.batch.position + start, (size_t)length * 4);
		assert_memory_equal(made.features + tokens * TOKEN_BYTES, source.features + start * TOKEN_BYTES,
		                    (size_t)length * TOKEN_BYTES);
		for (int64_t t = 0; t < source.batch.trained; t++) {
			int64_t row = source.batch.head_row[t];
			if (row < start || row >= start + length)
				continue;
			assert_int_equal(made.batch.head_row[trained], row - start + tokens);
			assert_memory_equal(made.teacher + trained * TEACHER_BYTES, source.teacher + t * TEACHER_BYTES, TEACHER_BYTES);
			assert_int_equal(made.batch.target[trained++], source.batch.target[t]);
		}
		tokens += length;
	}
	assert_int_equal(made.batch.tokens, tokens);
	assert_int_equal(made.batch.trained, trained);
	assert_int_equal(made.batch.start[count], tokens);
	rh_batch_free(&made.batch);
	rh_batch_free(&source.batch);
}

/* Epochs in a ring of that size; returns how many were evicted. */
static int run_epochs(int64_t budget, uint64_t seed)
{
	struct rh_feature_store *store;
	struct room room;
	int evicted = 0, kept;
	make_room(&room);
	struct order order = {0};
	const struct rh_feature_store_options options = {.samples = SAMPLES,
	                                                 .token_bytes = TOKEN_BYTES,
	                                                 .teacher_bytes = TEACHER_BYTES,
	                                                 .budget_bytes = budget,
	                                                 .evicted = note_evicted,
	                                                 .context = &order};
	check_ok(rh_feature_store_create(&options, &store));
	for (uint32_t round = 0; round < 5; round++) {
		order = (struct order){0};
		rh_feature_store_clear(store);
		for (int64_t first = 0; first < SAMPLES; first += DOCUMENTS) {
			fill(&room, seed, round, first);
			for (int64_t d = 0; d < DOCUMENTS; d++) {
				order.sample[order.behind] = first + d;
				kept = rh_feature_store_put(store, first + d, &room.batch, d, room.features, room.teacher);
				order.behind += kept;
			}
			for (int64_t i = 0; i < SAMPLES; i++) {
				int is_there = 0;
				for (int k = order.first; k < order.behind; k++)
					is_there |= order.sample[k] == i;
				assert_int_equal(rh_feature_store_has(store, i), is_there);
			}
			for (int k = order.first; k < order.behind; k += DOCUMENTS)
				check_made(store, order.sample + k, order.behind - k < DOCUMENTS ? order.behind - k : DOCUMENTS, seed,
				           round);
		}
		evicted += order.evicted;
	}
	rh_batch_free(&room.batch);
	rh_feature_store_free(store);
	return evicted;
}

static void test_entries_are_what_was_put_and_the_oldest_go(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	assert_int_equal(run_epochs(1 << 20, seed), 0);
	int before = 0;
	for (int64_t budget = 4096; budget >= 200; budget -= 56) {
		int evicted = run_epochs(budget, seed);
		assert_true(evicted > 0 || budget > 2500);
		before = evicted > before ? evicted : before;
	}
	assert_true(before > 5 * SAMPLES / 2);
	(void)run_epochs(64, seed); /* some entries are larger than the ring */
}

static void count_evicted(void *context, int64_t sample)
{
	(void)sample;
	++*(int *)context;
}

/* A small ring before so many records of NVMe; returns how many were evicted. What is there is what was put, whichever ring it is in. */
static int run_spilled(int64_t records, uint64_t seed)
{
	enum { BUDGET = 700, EPOCHS = 3 };
	struct drives drives;
	struct rh_space *space;
	struct rh_feature_store *store;
	struct rh_space_stats stats;
	struct room room;
	int evicted = 0, kept, first_record = 0, record;
	struct rh_feature_store_options options = {.samples = SAMPLES,
	                                           .token_bytes = TOKEN_BYTES,
	                                           .teacher_bytes = TEACHER_BYTES,
	                                           .budget_bytes = BUDGET,
	                                           .evicted = count_evicted,
	                                           .context = &evicted};
	options.record_bytes = rh_feature_store_entry_bytes(&options, 1, LONGEST, LONGEST);
	drives_make_in(&drives, "build");
	const struct rh_space_options of_space = {.dir = drives.name, .dirs = 2};
	check_ok(rh_space_open(&of_space, &space));
	for (int64_t n = 0; n < records; n++) {
		check_ok(rh_space_take(space, options.record_bytes, "samples", NULL, &record));
		first_record = n ? first_record : record;
	}
	check_ok(rh_space_reserve(space));
	check_ok(rh_feature_store_create(&options, &store));
	check_ok(rh_feature_store_spill(store, space, first_record, records));
	make_room(&room);
	for (uint32_t round = 0; round < EPOCHS; round++) {
		rh_feature_store_clear(store);
		int before = evicted;
		for (int64_t first = 0; first < SAMPLES; first += DOCUMENTS) {
			fill(&room, seed, round, first);
			for (int64_t d = 0; d < DOCUMENTS; d++) {
				kept = rh_feature_store_put(store, first + d, &room.batch, d, room.features, room.teacher);
				assert_int_equal(kept, 1);
			}
			int64_t there[SAMPLES], count = 0;
			for (int64_t i = first + DOCUMENTS; i-- > 0;)
				if (rh_feature_store_has(store, i))
					there[count++] = i;
			assert_int_equal(count, first + DOCUMENTS - (evicted - before));
			for (int64_t i = 0; i < count; i += DOCUMENTS)
				check_made(store, there + i, count - i < DOCUMENTS ? count - i : DOCUMENTS, seed, round);
		}
	}
	check_ok(rh_feature_store_fault(store));
	rh_space_stats(space, &stats);
	int64_t written = stats.written_bytes[0] + stats.written_bytes[1], read = stats.read_bytes[0] + stats.read_bytes[1];
	printf("%lld records: %d evicted, %lld bytes written, %lld read\n", (long long)records, evicted, (long long)written,
	       (long long)read);
	assert_true(written > 0 && read > 0);
	rh_batch_free(&room.batch);
	rh_space_close(space);
	rh_feature_store_free(store);
	drives_remove(&drives);
	return evicted;
}

static void test_what_leaves_memory_comes_back_from_nvme(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	assert_int_equal(run_spilled(SAMPLES, seed), 0); /* all of an epoch */
	assert_true(run_spilled(3, seed) > SAMPLES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_entries_are_what_was_put_and_the_oldest_go),
	                                   cmocka_unit_test(test_what_leaves_memory_comes_back_from_nvme)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
