/* How rows share sequences and batches: packing, blocks, the rows held out, and the batch as it is laid. */
#include "dataset_case.h"

#include "core/log.h"

#include <unistd.h>

static void test_packing_cuts_or_goes_on(void **state)
{
	(void)state;
	static const char rows[] =
	        "{\"text\":\"aaaaaaaaa\"}\n{\"text\":\"bbb\"}\n{\"text\":\"ccccc\"}\n{\"text\":\"d\"}\n"; /* 10 4 6 2 tokens */
	struct rh_config config = plain_config();
	struct rh_dataset set;
	config.packing = 1;
	config.packing_strategy = RH_PACKING_BFD;
	config.max_length = 8;
	load_ok(rows, &config, &plain_tokenizer, &set); /* a8 | c6 d2 | b4 */
	assert_int_equal(set.cut_rows, 1);
	assert_int_equal(set.cut_answers, 0);
	assert_int_equal(set.rows, 3);
	assert_int_equal(set.documents, 4);
	assert_int_equal(set.row_document[1], 1);
	assert_int_equal(set.row_document[2], 3);
	assert_int_equal(set.ids[8], 'c');
	assert_int_equal(set.ids[14], 'd');
	assert_int_equal(set.ids[16], 'b');
	rh_dataset_free(&set);
	config.packing_strategy = RH_PACKING_BFD_SPLIT;
	load_ok(rows, &config, &plain_tokenizer, &set); /* a8 | c6 a2 | b4 d2 */
	assert_int_equal(set.split_rows, 1);
	assert_int_equal(set.rows, 3);
	assert_int_equal(set.documents, 5);
	assert_int_equal(set.tokens, 22);
	expect_mask(&set, 2, "_#");
	assert_int_equal(set.trained_tokens, 17);
	rh_dataset_free(&set);
}

/* Rows laid end to end: a block goes on with the next row, whose first token is trained unless it begins the block. */
static void test_wrapped_rows_fill_blocks(void **state)
{
	(void)state;
	static const char rows[] =
	        "{\"text\":\"aaaaaaaaa\"}\n{\"text\":\"bbb\"}\n{\"text\":\"ccccc\"}\n{\"text\":\"d\"}\n"; /* 10 4 6 2 tokens */
	static const char answers[] = "{\"prompt\":\"pppppppppppppppp\",\"completion\":\"a\"}\n{\"prompt\":\"q\",\"completion\":\"b\"}\n";
	struct rh_config config = plain_config();
	struct rh_dataset set;
	config.packing = 1;
	config.packing_strategy = RH_PACKING_WRAPPED;
	config.max_length = 8;
	load_ok(rows, &config, &plain_tokenizer, &set); /* a8 | a2 b4 c2 | c4 d2 */
	assert_int_equal(set.cut_rows, 0);
	assert_int_equal(set.split_rows, 1);
	assert_int_equal(set.rows, 3);
	assert_int_equal(set.documents, 3);
	assert_int_equal(set.tokens, 22);
	assert_int_equal(set.ids[10], 'b');
	assert_int_equal(set.ids[14], 'c');
	assert_int_equal(set.ids[20], 'd');
	expect_mask(&set, 0, "_#######");
	expect_mask(&set, 1, "_#######");
	expect_mask(&set, 2, "_#####");
	assert_int_equal(set.trained_tokens, 19);
	rh_dataset_free(&set);
	load_ok(answers, &config, &plain_tokenizer, &set); /* p8 | p8 | a2 q1 b2: the first two train nothing */
	assert_int_equal(set.dropped_pieces, 2);
	assert_int_equal(set.rows, 1);
	expect_mask(&set, 0, "_#_##");
	rh_dataset_free(&set);
}

static void test_split_shares_the_rows_out(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	struct rh_dataset set, held;
	struct rh_text lines = {0};
	for (int i = 0; i < 100; i++)
		check_ok(rh_text_printf(&lines, "{\"text\":\"%c\"}\n", 33 + i % 90 + (i % 90 == 1) + (i % 90 == 59)));
	check_ok(load(lines.bytes, lines.length, &config, &plain_tokenizer, &set));
	check_ok(rh_dataset_split(&set, 0.25, 7, &held));
	assert_int_equal(set.rows, 75);
	assert_int_equal(held.rows, 25);
	assert_int_equal(held.tokens, 50);
	assert_int_equal(set.read_rows, 100);
	assert_int_equal(held.trained_tokens, 25);
	int seen[256] = {0};
	for (int64_t i = 0; i < set.tokens; i += 2)
		seen[set.ids[i]]++;
	for (int64_t i = 0; i < held.tokens; i += 2)
		seen[held.ids[i]]++;
	int sum = 0;
	for (int i = 0; i < 256; i++)
		sum += seen[i];
	assert_int_equal(sum, 100);
	rh_dataset_free(&held);
	check_ok(rh_dataset_split(&set, 1e-9, 7, &held));
	assert_int_equal(held.rows, 1);
	rh_dataset_free(&held);
	rh_dataset_free(&set);
	load_ok("{\"text\":\"a\"}\n", &config, &plain_tokenizer, &set);
	assert_int_equal(rh_dataset_split(&set, 0.5, 7, &held), -EINVAL);
	rh_dataset_free(&set);
	rh_text_free(&lines);
}

static void test_batch_lays_rows_end_to_end(void **state)
{
	(void)state;
	struct rh_config config = plain_config();
	struct rh_dataset set;
	config.packing = 1;
	config.max_length = 8;
	load_ok("{\"prompt\":\"a\",\"completion\":\"bcd\"}\n{\"prompt\":\"e\",\"completion\":\"f\"}\n{\"prompt\":\"ghijk\",\"completion\":"
	        "\"lm\"}\n",
	        &config, &plain_tokenizer, &set); /* rows: ghijklm$ | abcd$ ef$ */
	assert_int_equal(set.rows, 2);
	struct rh_batch batch = {0};
	struct rh_batch_limits limits;
	check_ok(rh_dataset_limits(&set, 1, &limits));
	assert_int_equal(limits.tokens, 8);
	assert_int_equal(limits.documents, 2);
	assert_int_equal(limits.trained, 6);
	assert_int_equal(limits.longest, 8);
	check_ok(rh_dataset_limits(&set, 100, &limits));
	assert_int_equal(limits.tokens, 16);
	check_ok(rh_batch_reserve(&batch, &limits));
	rh_alloc_fail_nth(1); /* reserved: nothing more is asked for */
	check_ok(rh_batch_make(&set, (int64_t[]){1, 0}, 2, &batch));
	assert_int_equal(rh_alloc_fail_nth(0), 0);
	assert_int_equal(batch.tokens, 16);
	assert_int_equal(batch.documents, 3);
	assert_int_equal(batch.longest, 8);
	assert_memory_equal(batch.ids, ((int32_t[]){'a', 'b', 'c', 'd', FAKE_EOS, 'e', 'f', FAKE_EOS}), 32);
	assert_memory_equal(batch.ids + 8, ((int32_t[]){'g', 'h', 'i', 'j', 'k', 'l', 'm', FAKE_EOS}), 32);
	assert_memory_equal(batch.start, ((int32_t[]){0, 5, 8, 16}), 16);
	assert_memory_equal(batch.sample, ((int32_t[]){1, 1, 0}), 12);
	assert_memory_equal(batch.position, ((int32_t[]){0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7}), 64);
	assert_int_equal(batch.trained, 9);
	assert_memory_equal(batch.head_row, ((int32_t[]){0, 1, 2, 3, 5, 6, 12, 13, 14}), 36);
	assert_memory_equal(batch.target, ((int32_t[]){'b', 'c', 'd', FAKE_EOS, 'f', FAKE_EOS, 'l', 'm', FAKE_EOS}), 36);
	check_ok(rh_batch_make(&set, (int64_t[]){0}, 1, &batch));
	assert_int_equal(batch.tokens, 8);
	assert_int_equal(batch.start[1], 8);
	rh_batch_free(&batch);
	rh_batch_free(&batch);
	rh_dataset_free(&set);
}

int main(void)
{
	snprintf(path, sizeof path, "/tmp/rh-layout-%ld.jsonl", (long)getpid());
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_packing_cuts_or_goes_on),
	        cmocka_unit_test(test_wrapped_rows_fill_blocks),
	        cmocka_unit_test(test_split_shares_the_rows_out),
	        cmocka_unit_test(test_batch_lays_rows_end_to_end),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	return failed;
}
