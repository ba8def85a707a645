/* Runs whose state lies on NVMe: bit for bit those in memory, synchronous and asynchronous, whatever is spilled, over one directory and
 * over three; and the bytes are those said. */
#include "offload/drives.h"
#include "train/rig.h"

enum { STEPS = 50, MICROS = 3 };

struct what {
	const char *model, *adapter, *device;
	enum rh_dtype dtype;
	enum rh_state_layout layout;
	int64_t round, cap; /* 0: chosen, all */
	double clip;
	int stop; /* a flush after this step; 0: none */
	int frozen_share;
};

static const struct what full = {.model = "smollm2", .device = "cpu:2", .dtype = RH_BF16, .round = 2, .clip = 1, .stop = 7};
static const struct what plain = {
        .model = "qwen3", .device = "cpu:1", .dtype = RH_BF16, .layout = RH_LAYOUT_PLAIN, .cap = 300 << 10, .clip = 0};
static const struct what lora = {.model = "llama3", .adapter = "adapter", .device = "cpu:2", .clip = 0.1, .stop = 20};

struct outcome {
	double loss[STEPS], norm[STEPS];
	float *weights;
	int64_t count, store_bytes, nvme_bytes, step_bytes;
	struct rh_space_stats stats;
};

static struct outcome train(const struct what *what, int staleness, int spill, int drives)
{
	struct rig rig;
	struct outcome out = {0};
	rig_open(&rig, what->model, what->adapter);
	rig.config.dtype = what->dtype;
	rig.config.state_layout = what->dtype == RH_F32 ? RH_LAYOUT_PLAIN : what->layout;
	rig.config.device = (char *)(uintptr_t)what->device;
	rig.config.round_micro_batches = what->round;
	rig.config.max_vram = what->cap;
	rig.config.max_grad_norm = what->clip;
	rig.config.optimizer_staleness = staleness;
	rig.config.spill = spill;
	rig.config.frozen_share = what->frozen_share;
	rig.config.max_nvme = spill ? 1 << 30 : 0;
	rig.config.nvme_dirs = (struct rh_list){.item = group_drives.name, .count = (size_t)drives};
	struct rig_input in = rig_input(&rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS, .train_steps = STEPS};
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	setenv("RH_SPILL_ELEMENTS", "3000", 1);
	check_ok(rh_session_start(&rig.session, &work));
	for (int step = 0; step < STEPS; step++) {
		const struct rh_update update = {.settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 3e-3, .scale = 1, .step = step + 1};
		rh_updater_open(rig.session.updater, &update, what->clip);
		out.loss[step] = rig_step(&rig, &in, step * MICROS % (in.micros - MICROS + 1), MICROS, step);
		check_ok(rh_updater_norm(rig.session.updater, &out.norm[step]));
		if (step + 1 == what->stop || step + 1 == STEPS)
			check_ok(rh_updater_flush(rig.session.updater));
	}
	out.weights = rig_weights(&rig.session, &out.count);
	out.store_bytes = rig.session.plan.bytes.store;
	out.nvme_bytes = rig.session.plan.bytes.nvme;
	out.step_bytes = rig.session.plan.bytes.nvme_step;
	if (rig.session.space)
		rh_space_stats(rig.session.space, &out.stats);
	rig_close(&rig);
	return out;
}

static void check_spilled(const struct what *what, int staleness, const struct outcome *expected, int spill, int drives)
{
	struct outcome got = train(what, staleness, spill, drives);
	int64_t written = 0, read = 0, reserved = 0;
	for (int step = 0; step < STEPS; step++)
		if (got.loss[step] != expected->loss[step] || got.norm[step] != expected->norm[step])
			fail_msg("%s, spill %d over %d, staleness %d, step %d: loss %.9g norm %.9g, in memory %.9g %.9g", what->model,
			         spill, drives, staleness, step, got.loss[step], got.norm[step], expected->loss[step],
			         expected->norm[step]);
	assert_memory_equal(got.weights, expected->weights, (size_t)got.count * sizeof(float));
	for (int d = 0; d < got.stats.drives; d++) {
		reserved += got.stats.reserved_bytes[d];
		written += got.stats.written_bytes[d];
		read += got.stats.read_bytes[d];
		assert_true(!got.stats.reserved_bytes[d] || got.stats.written_bytes[d] > 0);
	}
	assert_int_equal(reserved, got.nvme_bytes);
	assert_int_equal(got.stats.drives, drives);
	assert_true(written >= (STEPS - 1) * got.step_bytes &&
	            written <= STEPS * got.step_bytes + reserved); /* the last may be on their way */
	/* else the cache held everything, and nothing was tried; weights that a device keeps are read once */
	assert_true((what->adapter && spill == RH_SPILL_OPTIMIZER) || read > (what->adapter ? 0 : 20 * reserved));
	printf("%s, spill %d over %d: %lld bytes, written %lld, read %lld\n", what->model, spill, drives, (long long)reserved,
	       (long long)written, (long long)read);
	free(got.weights);
}

static void check_case(const struct what *what)
{
	for (int staleness = 0; staleness < 2; staleness++) {
		struct outcome expected = train(what, staleness, 0, 0);
		check_spilled(what, staleness, &expected, RH_SPILL_OPTIMIZER, 1 + 2 * staleness);
		check_spilled(what, staleness, &expected, RH_SPILL_MASTERS, 3 - 2 * staleness);
		check_spilled(what, staleness, &expected, RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS, 1);
		check_spilled(what, staleness, &expected, RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS, 3);
		free(expected.weights);
	}
}

static void test_full_training_from_nvme_is_that_in_memory(void **state)
{
	(void)state;
	check_case(&full);
	check_case(&plain);
}

/* Some layers' weights on NVMe, the others' in memory. */
static void test_lora_partly_from_nvme_is_that_in_memory(void **state)
{
	(void)state;
	struct what wide = lora;
	wide.cap = 240 << 10;
	struct outcome expected = train(&wide, 0, 0, 0), all = train(&wide, 0, RH_SPILL_WEIGHTS, 1);
	static const int shares[] = {24, 32, 63};
	int64_t before = 0;
	for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
		wide.frozen_share = shares[i];
		check_spilled(&wide, 0, &expected, RH_SPILL_WEIGHTS, 1);
		struct outcome part = train(&wide, 0, RH_SPILL_WEIGHTS, 1);
		assert_true(part.nvme_bytes > before && part.nvme_bytes < all.nvme_bytes && part.store_bytes > all.store_bytes);
		before = part.nvme_bytes;
		free(part.weights);
	}
	free(expected.weights);
	free(all.weights);
}

static void test_lora_from_nvme_is_that_in_memory(void **state)
{
	(void)state;
	struct what wide = lora;
	wide.cap = 240 << 10; /* its weights are sent again and again */
	for (int staleness = 0; staleness < 2; staleness++) {
		struct outcome expected = train(&wide, staleness, 0, 0);
		check_spilled(&wide, staleness, &expected, RH_SPILL_OPTIMIZER, 3 - 2 * staleness);
		check_spilled(&wide, staleness, &expected, RH_SPILL_WEIGHTS, 1 + 2 * staleness);
		check_spilled(&wide, staleness, &expected, RH_SPILL_WEIGHTS | RH_SPILL_OPTIMIZER, 3 - 2 * staleness);
		free(expected.weights);
	}
}

/* A model of 25 million parameters, so that what is saved is more than what a window takes. */
static void write_model(const char *path)
{
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file,
	        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 512, \"intermediate_size\": 2048, "
	        "\"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 8, \"head_dim\": 64, \"vocab_size\": 8192, "
	        "\"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\", "
	        "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\"}");
	assert_int_equal(fclose(file), 0);
}

struct budget {
	int spill;
	int64_t ram, nvme, writes;
};

static int start(struct rh_session *session, struct rh_config *config, const char *model, struct budget budget)
{
	struct rh_micro_shape shape = {.tokens = 32, .documents = 1, .longest = 32, .head_rows = 31};
	struct rh_workload work = {.train = shape, .train_micro_batches = 1, .train_steps = 10};
	*config = (struct rh_config){.config_name = (char *)(uintptr_t)model,
	                             .dtype = RH_BF16,
	                             .seed = 42,
	                             .device = (char *)(uintptr_t) "cpu:1",
	                             .forward_cut_count = -1,
	                             .backward_cut_count = -1,
	                             .max_vram = 64 << 20,
	                             .max_ram = budget.ram,
	                             .max_nvme = budget.nvme,
	                             .max_nvme_writes = budget.writes,
	                             .spill = budget.spill,
	                             .nvme_dirs = {.item = group_drives.name, .count = 2}};
	check_ok(rh_session_open(config, RH_SESSION_TRAINS, session));
	setenv("RH_SPILL_ELEMENTS", "262144", 1);
	setenv("RH_TABLE_ROWS", "0", 1); /* rows take memory where there is some left */
	return rh_session_start(session, &work);
}

static void refused(const char *model, struct budget budget, int code, const char *part, const char *other)
{
	struct rh_session session;
	struct rh_config config;
	int rc = start(&session, &config, model, budget);
	assert_int_equal(rc, code);
	if (!strstr(rh_error(rc), part) || !strstr(rh_error(rc), other))
		fail_msg("%s", rh_error(rc));
	rh_session_close(&session);
}

static void test_budgets_hold_to_the_byte(void **state)
{
	(void)state;
	struct rh_session session;
	struct rh_config config;
	int64_t ram[3], nvme = 0, writes = 0;
	static const int spills[] = {0, RH_SPILL_OPTIMIZER, RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS};
	char model[128];
	snprintf(model, sizeof model, "%s/config.json", group_drives.root);
	write_model(model);
	for (int i = 0; i < 3; i++) {
		check_ok(start(&session, &config, model, (struct budget){spills[i], 0, 1 << 30, 0}));
		ram[i] = session.plan.bytes.total;
		nvme = session.plan.bytes.nvme;
		writes = 10 * session.plan.bytes.nvme_step + session.plan.bytes.nvme_loaded;
		printf("spill %d: %.1f MiB of state in memory, %.1f on NVMe\n", spills[i], (double)session.plan.bytes.store / 1048576,
		       (double)nvme / 1048576);
		rh_session_close(&session);
		assert_true(!i || ram[i] < ram[i - 1]);
	}
	assert_true(writes > 10 * nvme && writes < 10 * nvme + nvme / 4); /* loading writes masters, a fifth of it */
	/* auto takes the least that is enough */
	for (int i = 0; i < 3; i++) {
		check_ok(start(&session, &config, model, (struct budget){RH_SPILL_AUTO, ram[i], 1 << 30, 0}));
		assert_int_equal(session.plan.spill, spills[i]);
		assert_int_equal(session.plan.bytes.total, ram[i]);
		rh_session_close(&session);
	}
	refused(model, (struct budget){RH_SPILL_AUTO, ram[2] - 1, 1 << 30, 0}, RH_DOES_NOT_FIT, "max_ram", "1 byte");
	check_ok(start(&session, &config, model, (struct budget){spills[2], ram[2], nvme, writes}));
	rh_session_close(&session);
	refused(model, (struct budget){spills[2], ram[2], nvme - 1, 0}, -ENOSPC, "max_nvme", "raise it to");
	refused(model, (struct budget){spills[2], ram[2], nvme, writes - 1}, -EDQUOT, "max_nvme_writes", "10 steps");
	assert_int_equal(unlink(model), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_full_training_from_nvme_is_that_in_memory),
	        cmocka_unit_test(test_lora_from_nvme_is_that_in_memory),
	        cmocka_unit_test(test_lora_partly_from_nvme_is_that_in_memory),
	        cmocka_unit_test(test_budgets_hold_to_the_byte),
	};
	return cmocka_run_group_tests(tests, group_drives_make, group_drives_remove);
}
