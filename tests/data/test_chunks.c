/* Where rows are cut, and what a chunk sees of its row. */
#include "check.h"

#include "core/minmax.h"
#include "data/chunks.h"
#include "device/op.h"

#include <math.h>

static const struct rh_chunk_rule rule = {.most = 1024, .token = 1e6, .pair = 3e3, .windowed = 1e3, .window = 500};

static double flops(const struct rh_chunk_rule *of, int64_t p)
{
	double sum = 0;
	for (int64_t i = 0; i < p; i++)
		sum += of->token + of->pair * (double)i + of->windowed * (double)rh_min(i, of->window);
	return sum;
}

/* Few tokens, of which attention is the smaller part: all chunks have equal FLOPs. */
static void test_chunks_cut_one_document_into_equal_flops(void **state)
{
	(void)state;
	int64_t cut[RH_CHUNKS_MOST + 1], length = 5001;
	const int32_t start[] = {0, (int32_t)length};
	struct rh_chunk_rule is = rule;
	is.token = 2e7;
	int64_t chunks = rh_chunks_cut(&is, start, 1, cut);
	double share = flops(&is, length) / (double)chunks;
	assert_true(chunks >= 5 && chunks <= 10 && cut[0] == 0 && cut[chunks] == length);
	for (int64_t i = 0; i < chunks; i++) { /* each end is off by half a tile at most */
		double tile = (is.token + is.pair * (double)cut[i + 1] + is.windowed * (double)is.window) * RH_ATTENTION_TILE;
		assert_true(cut[i] % RH_ATTENTION_TILE == 0 && cut[i + 1] - cut[i] <= is.most);
		assert_true(fabs(flops(&is, cut[i + 1]) - flops(&is, cut[i]) - share) <= tile);
	}
}

/* Where attention is most of it, the first chunks are as long as they may be, and the others share the rest. */
static void test_chunks_of_much_attention_are_at_most_twice_as_many(void **state)
{
	(void)state;
	int64_t cut[RH_CHUNKS_MOST + 1], length = 100000, least = (length + rule.most - 1) / rule.most;
	const int32_t start[] = {0, (int32_t)length};
	int64_t chunks = rh_chunks_cut(&rule, start, 1, cut);
	assert_true(chunks > least && chunks <= 2 * least + 1 && cut[chunks] == length && cut[1] == rule.most);
	double last = flops(&rule, length) - flops(&rule, cut[chunks - 1]), first = flops(&rule, cut[1]);
	assert_true(last < 40 * first); /* of equal lengths it would be 200 */
	for (int64_t i = 0; i < chunks; i++)
		assert_true(cut[i] % RH_ATTENTION_TILE == 0 && cut[i + 1] > cut[i] && cut[i + 1] - cut[i] <= rule.most);
}

static void test_chunks_cut_at_tiles_within_documents(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int round = 0; round < 300; round++) {
		struct rh_chunk_rule is = rule;
		int32_t start[9] = {0};
		int64_t documents = 1 + check_random(&seed) % 8, cut[RH_CHUNKS_MOST + 1];
		is.most = 256 + check_random(&seed) % 1000;
		for (int64_t d = 0; d < documents; d++)
			start[d + 1] = start[d] + 1 + (int32_t)(check_random(&seed) % (d % 2 ? 60 : 4000));
		int64_t chunks = rh_chunks_cut(&is, start, documents, cut);
		assert_true(chunks >= 1 && cut[0] == 0 && cut[chunks] == start[documents]);
		for (int64_t i = 0, d = 0; i < chunks; i++) {
			while (start[d + 1] <= cut[i])
				d++;
			assert_true((cut[i] - start[d]) % RH_ATTENTION_TILE == 0 && cut[i + 1] > cut[i] && cut[i + 1] - cut[i] <= is.most);
		}
	}
}

static void test_chunks_beyond_the_most_are_refused(void **state)
{
	(void)state;
	int64_t cut[RH_CHUNKS_MOST + 1];
	const int32_t start[] = {0, 1 << 20};
	struct rh_chunk_rule is = {.most = 256, .token = 1};
	assert_int_equal(rh_chunks_cut(&is, start, 1, cut), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "sequence_chunk"));
	rh_error_clear();
	is.most = 0;
	assert_int_equal(rh_chunks_cut(&is, start, 1, cut), 1);
}

/* Documents of 70, 400 and 30 tokens, cut at 70 + 128 and 70 + 384. */
static void test_chunk_reads_keys_from_where_its_first_document_begins(void **state)
{
	(void)state;
	enum { TOKENS = 500 };
	static const int64_t cut[] = {0, 198, 454, TOKENS};
	static const int32_t start[] = {0, 70, 470, TOKENS}, want_q[3][3] = {{0, 70, 198}, {0, 256}, {0, 16, 46}},
	                     want_k[3][3] = {{0, 70, 198}, {0, 384}, {0, 400, 430}};
	int32_t ids[TOKENS], head[TOKENS / 2], start_q[4], start_k[4], own[TOKENS];
	for (int i = 0; i < TOKENS; i++)
		ids[i] = i;
	for (int i = 0; i < TOKENS / 2; i++)
		head[i] = 2 * i;
	const struct rh_micro_shape shape = {.tokens = TOKENS, .documents = 3, .longest = 400, .head_rows = TOKENS / 2};
	struct rh_micro_batch row = rh_micro_batch_of(shape, ids);
	row.start_q = row.start_k = start;
	row.head_row = head;
	for (int c = 0; c < 4; c++) {
		struct rh_chunk_room room = {start_q, start_k, own};
		struct rh_micro_batch chunk = rh_chunk_of(&row, cut, c, 3, &room);
		if (c == 3) {
			assert_true(!chunk.shape.tokens && !chunk.shape.documents && !chunk.shape.head_rows && !chunk.shape.keys);
			continue;
		}
		assert_int_equal(chunk.shape.documents, c == 1 ? 1 : 2);
		assert_memory_equal(start_q, want_q[c], (size_t)(chunk.shape.documents + 1) * 4);
		assert_memory_equal(start_k, want_k[c], (size_t)(chunk.shape.documents + 1) * 4);
		assert_true(chunk.shape.first == cut[c] && chunk.shape.keys == want_k[c][chunk.shape.documents] && chunk.ids[0] == cut[c]);
		assert_int_equal(chunk.shape.head_rows, (cut[c + 1] - cut[c]) / 2);
		for (int64_t i = 0; i < chunk.shape.head_rows; i++)
			assert_true(own[i] == 2 * i && chunk.target[i] == cut[c] / 2 + i);
		assert_int_equal(chunk.shape.text_longest, 400);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_chunks_cut_one_document_into_equal_flops),
	        cmocka_unit_test(test_chunks_of_much_attention_are_at_most_twice_as_many),
	        cmocka_unit_test(test_chunks_cut_at_tiles_within_documents),
	        cmocka_unit_test(test_chunks_beyond_the_most_are_refused),
	        cmocka_unit_test(test_chunk_reads_keys_from_where_its_first_document_begins),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
