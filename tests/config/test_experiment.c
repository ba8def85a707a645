/* Experiments known by layer times: the published ones are read, bad ones get one line. */
#include "check.h"

#include "config/experiment.h"
#include "core/alloc.h"
#include "core/file.h"

#include <string.h>

#define GOOD "name: x\nlayers: x-layers.yaml\ndevice: d\nbatch: 8\nsequence_length: 16\nhidden_size: 4\nparameters: {block: 10, head: 20}\n"

static void test_published_experiments_are_read(void **state)
{
	(void)state;
	struct rh_experiment is;
	check_ok(rh_experiment_read("examples/anchors/gpt-oss-20b.yaml", &is));
	assert_string_equal(is.layers, "examples/anchors/gpt-oss-20b-layers.yaml");
	assert_string_equal(is.system, "examples/anchors/roundpipe.yaml");
	assert_int_equal(is.batch, 128);
	assert_int_equal(is.sync.round_micro_batches, 16);
	check_near(is.async.tokens_per_s, 18122, 0);
	check_near(is.trained.block, is.parameters.block, 0);
	check_near(24 * is.parameters.block + is.parameters.head + is.parameters.embedding, 20914757184.0, 0);
	assert_int_equal(is.block.experts, 32);
	assert_int_equal(is.block.window_every, 2);
	const struct rh_bubble *row = &is.bubble[RH_BUBBLE_ROUNDPIPE];
	assert_int_equal(row->stages.count, 5);
	assert_int_equal(row->stages.size[0], 4);
	assert_int_equal(row->stages.size[4], 5);
	assert_int_equal(row->backward.count, 25);
	assert_int_equal(row->backward.size[0], 0);
	rh_experiment_free(&is);
	check_ok(rh_experiment_read("examples/anchors/qwen3-235b-lora.yaml", &is));
	assert_true(is.trained.block > 7e7 && is.trained.block < 7.1e7 && is.trained.head <= 0);
	assert_non_null(strstr(is.exception, "launches"));
	rh_experiment_free(&is);
	struct rh_peer peer;
	check_ok(rh_peer_read("examples/anchors/roundpipe.yaml", &peer));
	check_near(peer.held_bytes, 20, 0);
	check_near(peer.taken_bytes + peer.updated_bytes + peer.published_bytes, 46, 0);
	rh_peer_free(&peer);
}

static void refused(const char *text, const char *part)
{
	struct rh_experiment is;
	int rc = rh_experiment_parse(text, strlen(text), "e.yaml", &is);
	assert_int_equal(rc, -EINVAL);
	if (!strstr(rh_error(rc), part) || !strstr(rh_error(rc), "e.yaml"))
		fail_msg("'%s' does not say '%s'", rh_error(rc), part);
}

static void test_bad_experiments_are_refused(void **state)
{
	(void)state;
	struct rh_experiment is;
	check_ok(rh_experiment_parse(GOOD, sizeof GOOD - 1, "e.yaml", &is));
	rh_experiment_free(&is);
	refused("batch: 8\n", "needs layers");
	refused(GOOD "batches: 8\n", "unknown key 'batches'");
	refused(GOOD "block: {experts: 0}\n", "experts");
	refused(GOOD "published: {async: {rounds: 1, round_micro_batches: 2}}\n", "system is missing");
	refused(GOOD "published: {system: s, async: {rounds: 1}}\n", "round_micro_batches are needed");
	refused(GOOD "published: {system: s, bubbles: {micro_batches: 1, rounds: 1, gpipe: {percent: 1, stages: 2x1}}}\n",
	        "devices are needed");
	refused(GOOD "published: {system: s, bubbles: {gpipe: {percent: 1}}}\n", "expected stages");
	refused(GOOD "published: {system: s, bubbles: {gpipe: {percent: 101, stages: 2x1}}}\n", "percent");
	static const char *const sizes[] = {"2x", "x2", "2x2,", "-1", "99999", "600x1", "2 x2", "0x3"};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		char text[1024];
		snprintf(text, sizeof text, "%spublished: {system: s, bubbles: {gpipe: {percent: 1, stages: '%s'}}}\n", GOOD, sizes[i]);
		refused(text, "expected stages like");
	}
}

static void test_only_experiments_are_taken_for_one(void **state)
{
	(void)state;
	assert_int_equal(rh_experiment_is("examples/anchors/qwen3-32b.yaml"), 1);
	assert_int_equal(rh_experiment_is("examples/anchors/qwen3-32b-layers.yaml"), 0);
	assert_int_equal(rh_experiment_is("examples/demo.yaml"), 0);
	assert_int_equal(rh_experiment_is("examples/none.yaml"), 0);
	assert_int_equal(rh_experiment_is("examples"), 0);
	assert_int_equal(rh_experiment_is("README.md"), 0);
}

static void test_mutated_experiments_are_taken_or_refused(void **state)
{
	(void)state;
	struct rh_bytes seed;
	uint64_t random = check_seed();
	check_ok(rh_file_load("examples/anchors/llama-3.1-8b.yaml", &seed));
	char *text = malloc(seed.length);
	assert_non_null(text);
	for (int round = 0; round < 4000; round++) {
		memcpy(text, seed.bytes, seed.length);
		for (uint32_t n = check_random(&random) % 6; n > 0; n--)
			text[check_random(&random) % seed.length] =
			        check_random(&random) % 2 ? (char)check_random(&random) : seed.bytes[check_random(&random) % seed.length];
		struct rh_experiment is;
		int rc = rh_experiment_parse(text, seed.length, "mutated", &is);
		assert_true(rc == 0 || rc == -EINVAL);
		rh_experiment_free(&is);
	}
	free(text);
	int rc = -ENOMEM;
	for (uint64_t nth = 1; rc; nth++) {
		struct rh_experiment is;
		rh_alloc_fail_nth(nth);
		rc = rh_experiment_parse(seed.bytes, seed.length, "e.yaml", &is);
		rh_alloc_fail_nth(0);
		assert_true(rc == 0 || rc == -ENOMEM);
		rh_experiment_free(&is);
	}
	rh_bytes_free(&seed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_published_experiments_are_read),
	        cmocka_unit_test(test_bad_experiments_are_refused),
	        cmocka_unit_test(test_only_experiments_are_taken_for_one),
	        cmocka_unit_test(test_mutated_experiments_are_taken_or_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
