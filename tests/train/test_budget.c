/* Host memory: what is said is what is taken, a budget holds to the byte, and a refused allocation anywhere harms nothing. */
#include "cli/runner.h"

#include "config/config.h"
#include "core/log.h"
#include "session/session.h"
#include "train/train.h"

#include <inttypes.h>

static int load(const char *verb, char *line, struct rh_config *config)
{
	char *argv[64];
	int argc = 0;
	for (char *word; (word = strsep(&line, " "));)
		if (*word)
			argv[argc++] = word;
	return rh_config_load(verb, argc, argv, NULL, config);
}

/* ---- bytes ---- */

/* VmRSS + HugetlbPages. */
static int64_t resident_bytes(void)
{
	char line[128];
	long long kib, total = 0;
	FILE *file = fopen("/proc/self/status", "r");
	assert_non_null(file);
	while (fgets(line, sizeof line, file))
		if (sscanf(line, "VmRSS: %lld", &kib) == 1 || sscanf(line, "HugetlbPages: %lld", &kib) == 1)
			total += kib * 1024;
	fclose(file);
	return total;
}

/* 550 million parameters, or 25 where time is short. */
static void write_model(const struct scratch *scratch, int large)
{
	int hidden = large ? 1536 : 512;
	FILE *file = fopen(path_of("%s/config.json", scratch->dir), "w");
	assert_non_null(file);
	fprintf(file,
	        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, \"intermediate_size\": %d, "
	        "\"num_hidden_layers\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"head_dim\": 64, \"vocab_size\": "
	        "%d, "
	        "\"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
	        "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}",
	        hidden, 4 * hidden, large ? 12 : 4, hidden / 64, hidden / 64, large ? 32000 : 8192);
	assert_int_equal(fclose(file), 0);
}

static void test_host_bytes_are_those_said(void **state)
{
	(void)state;
	static const struct {
		const char *layout;
		double most; /* bytes a parameter */
	} cases[] = {{"plain", 16.1}, {"split", 14.1}, {"split8", 8.3}};
	struct scratch scratch;
	int large = getenv("RH_LONG") != NULL;
	scratch_open(&scratch);
	write_model(&scratch, large);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_config config;
		struct rh_session session;
		struct rh_micro_shape shape = {.tokens = 32, .documents = 1, .longest = 32, .head_rows = 31};
		struct rh_workload work = {.train = shape, .train_micro_batches = 1};
		int64_t trainable, all;
		check_ok(load("plan",
		              (char *)(uintptr_t)path_of(
		                      "--config_name %s/config.json --device cpu:1 --max_vram 1GiB --bf16 true --state_layout %s",
		                      scratch.dir, cases[i].layout),
		              &config));
		check_ok(rh_session_open(&config, RH_SESSION_TRAINS, &session));
		rh_model_parameters(session.model, &trainable, &all);
		assert_true(all >= (large ? 500000000 : 20000000));
		int64_t before = resident_bytes();
		check_ok(rh_session_start(&session, &work));
		int64_t said = session.plan.bytes.store + session.plan.bytes.boundaries + session.plan.bytes.device,
		        grown = resident_bytes() - before;
		double each = (double)session.plan.bytes.store / (double)trainable;
		printf("%s: %.1f M parameters, %.3f bytes each; %.2f MiB reserved, %.2f resident (%+.3f %%)\n", cases[i].layout,
		       (double)trainable / 1e6, each, (double)said / 1048576, (double)grown / 1048576,
		       100 * ((double)grown / (double)said - 1));
		assert_true(each <= cases[i].most);
		assert_true(!CHECK_RESIDENT || (grown >= said - said / 50 && grown <= said + said / 50));
		rh_session_close(&session);
		rh_config_free(&config);
	}
	scratch_close(&scratch);
}

/* ---- a tiny run ---- */

static void world_open(struct scratch *scratch)
{
	scratch_open(scratch);
	const char *dir = scratch->dir;
	copy_model(dir);
	FILE *file = fopen(path_of("%s/rows.jsonl", dir), "w");
	assert_non_null(file);
	for (int row = 0; row < 6; row++)
		fprintf(file, "{\"prompt\": \"the cat %d\", \"completion\": \" sat on the mat\"}\n", row);
	assert_int_equal(fclose(file), 0);
}

/* In this process. */
static int train(const struct scratch *scratch, const char *out, const char *more, struct rh_train_result *result)
{
	char line[1024];
	struct rh_config config;
	snprintf(line, sizeof line,
	         "--model_name_or_path %s/hf --train_file %s/rows.jsonl --output_dir %s/%s --max_length 32 --device cpu:1 --max_steps 4 "
	         "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --learning_rate 1e-3 --bf16 true %s",
	         scratch->dir, scratch->dir, scratch->dir, out, more);
	rh_error_clear();
	int rc = load("train", line, &config);
	if (!rc)
		rc = rh_train(&config, result);
	rh_config_free(&config);
	return rc;
}

static void test_a_budget_holds_to_the_byte(void **state)
{
	(void)state;
	struct scratch scratch;
	struct rh_train_result result, again;
	world_open(&scratch);
	check_ok(train(&scratch, "free", "--save_steps 4 --max_vram 64MiB", &result));
	int64_t needed = result.ram_planned_bytes;
	/* what is left is shared with the ring of checkpoints that are written beside the training */
	for (int64_t left = 0; left <= 2000; left += 1000) {
		char out[32];
		snprintf(out, sizeof out, "exact-%d", (int)left);
		check_ok(train(&scratch, out, path_of("--save_steps 2 --max_vram 64MiB --max_ram %" PRId64, needed + left), &again));
		assert_int_equal(again.ram_planned_bytes, needed + left / 2);
		assert_true(again.final_loss == result.final_loss);
		assert_true(!CHECK_RESIDENT || again.ram_peak_bytes <= again.ram_planned_bytes);
	}
	check_ok(train(&scratch, "wide", "--save_steps 2 --max_vram 64MiB", &again));
	assert_true(again.ram_planned_bytes > needed + 2000);
	int rc = train(&scratch, "short", path_of("--save_steps 2 --max_vram 64MiB --max_ram %" PRId64, needed - 1), &again);
	assert_int_equal(rc, RH_DOES_NOT_FIT);
	assert_non_null(strstr(rh_error(rc), "max_ram"));
	assert_non_null(strstr(rh_error(rc), "1 byte"));
	assert_false(rh_dir_exists(path_of("%s/short", scratch.dir)));
	scratch_close(&scratch);
}

/* Each allocation of a run that goes on from a checkpoint refused in turn: one line, no crash, no stray file, and the checkpoint still
 * good. */
static void test_each_refused_allocation_leaves_the_last_checkpoint_good(void **state)
{
	(void)state;
	static const char *const kinds[] = {"", "--state_layout split8 --lora_r 2", "--optim adafactor --state_layout plain"};
	uint64_t stride = getenv("RH_LONG") ? 1 : 17;
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		struct scratch scratch;
		struct rh_train_result whole, result;
		char more[256];
		uint64_t n = 1, failures = 0;
		int rc = -1;
		world_open(&scratch);
		check_ok(train(&scratch, "whole", path_of("--save_steps 2 %s", kinds[k]), &whole));
		copy_dir(path_of("%s/whole/checkpoint-2", scratch.dir), path_of("%s/on/checkpoint-2", scratch.dir));
		snprintf(more, sizeof more, "--save_steps 2 %s --resume_from_checkpoint %s/on/checkpoint-2", kinds[k], scratch.dir);
		uint64_t kept = tree_hash(path_of("%s/on/checkpoint-2", scratch.dir));
		for (; n < 1000000; n += 1 + (n + k) % (2 * stride - 1)) {
			rh_alloc_fail_nth(n);
			rc = train(&scratch, "on", more, &result);
			if (rh_alloc_fail_nth(0) < n) /* none was refused */
				break;
			if (!rc) { /* what was refused was not needed, such as for a prediction: nothing else may differ */
				assert_true(result.final_loss == whole.final_loss);
				check_ok(rh_dir_remove(path_of("%s/on/checkpoint-4", scratch.dir)));
				continue;
			}
			const char *line = rh_error(rc);
			if (rc != -ENOMEM || strlen(line) < 15 || strchr(line, '\n'))
				fail_msg("allocation %" PRIu64 ": code %d, '%s'", n, rc, line);
			failures++;
			assert_int_equal(tree_hash(path_of("%s/on/checkpoint-2", scratch.dir)), kept);
			assert_false(rh_dir_exists(path_of("%s/on/.checkpoint-4.tmp", scratch.dir)));
		}
		check_ok(rc);
		assert_true(failures > 0);
		check_ok(rh_dir_remove(path_of("%s/on/checkpoint-4", scratch.dir)));
		check_ok(train(&scratch, "on", more, &result));
		assert_true(result.final_loss == whole.final_loss);
		printf("%s: %" PRIu64 " refused allocations of %" PRIu64 "\n", kinds[k][0] ? kinds[k] : "split", failures, n);
		scratch_close(&scratch);
	}
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_budget_holds_to_the_byte), /* first: it looks at the process's peak */
	        cmocka_unit_test(test_host_bytes_are_those_said),
	        cmocka_unit_test(test_each_refused_allocation_leaves_the_last_checkpoint_good),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
