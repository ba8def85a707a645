/* Adapters of the embedding's table and of the head's matrix: curves of PEFT's (tests/reference/tables.py); what is written is read as the
 * same model, with the adapter's part in the tables; keys that make such adapters. */
#include "rig.h"

#include "ckpt/safetensors.h"
#include "core/file.h"
#include "weights/tensors_out.h"

#include <unistd.h>

enum { KINDS = 5, STEPS = 20 };
static const struct {
	const char *name, *model;
} kinds[KINDS] = {{"both", "llama2"}, {"head", "llama-bias"}, {"tied", "smollm2"}, {"scaled", "gemma3"}, {"inside", "muse-glimmer"}};

static void open_kind(struct rig *rig, int kind)
{
	rig_open(rig, kinds[kind].model, "adapter");
	snprintf(rig->adapter, sizeof rig->adapter, "tests/reference/train/tables/%s", kinds[kind].name);
}

/* The adapter of `rig`, which has been trained, in `dir`. */
static void write_adapter(struct rig *rig, const char *dir)
{
	struct rh_tensors_out *out;
	check_ok(rh_adapter_out_open(dir, rig->session.model, rig->session.store, &out));
	check_ok(rh_tensors_out_commit(out));
	check_ok(rh_peft_config_save(&rig->session.adapter.peft, dir));
}

/* The last step's loss once more, by the adapter that was written: its part is now in the tables, whose products round otherwise. */
static void check_written(struct rig *rig, int kind, const struct rig_input *train)
{
	struct rig again;
	char dir[96];
	static struct rig_micro micro;
	snprintf(dir, sizeof dir, "%s/rh-tables-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(dir));
	write_adapter(rig, dir);
	double trained = rig_step(rig, train, 0, 1, STEPS), merged = 0;
	open_kind(&again, kind);
	snprintf(again.adapter, sizeof again.adapter, "%s", dir);
	struct rig_input in = rig_input(&again, "train");
	rig_micro_make(&in, 0, 0, &micro);
	struct rh_workload work = {.infer = micro.batch.shape, .infer_micro_batches = 1};
	rig_start(&again, RH_SESSION_INFERS, &work);
	check_ok(rh_executor_infer(again.session.executor, &micro.batch, 1));
	for (int64_t i = 0; i < micro.batch.shape.head_rows; i++)
		merged += (double)micro.loss[i] / (double)micro.batch.shape.head_rows;
	printf("%s: written and read, the loss is off by %.2e\n", kinds[kind].name, fabs(merged / trained - 1));
	assert_true(fabs(merged / trained - 1) <= 1e-5);
	rig_close(&again);
	check_ok(rh_dir_remove(dir));
}

static void test_curves_equal_peft(void **state)
{
	(void)state;
	FILE *file = fopen("tests/reference/train/tables/tables.txt", "r");
	assert_non_null(file);
	for (int kind = 0; kind < KINDS; kind++) {
		struct rig rig;
		double worst = 0, expected;
		open_kind(&rig, kind);
		rig.config.weight_decay = 0.01; /* torch's default */
		struct rig_input in = rig_input(&rig, "train");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 2};
		rig_start(&rig, RH_SESSION_TRAINS, &work);
		for (int step = 0; step < STEPS; step++) {
			assert_int_equal(fscanf(file, "%la", &expected), 1);
			double loss = rig_step(&rig, &in, 2 * step, 2, step);
			rig_update(&rig, 1e-3, step);
			worst = fmax(worst, fabs(loss / expected - 1));
		}
		printf("%s: worst loss error %.2e\n", kinds[kind].name, worst);
		assert_true(worst <= 1e-6); /* PEFT in fp64 is 1.4e-7 from itself in fp32 */
		check_written(&rig, kind, &in);
		rig_close(&rig);
	}
	fclose(file);
}

/* What is read is written again, tensor by tensor, as PEFT writes it. */
static void test_tied_adapters_go_by_both_names(void **state)
{
	(void)state;
	struct rig rig;
	char dir[96], path[128];
	struct rh_safetensors *file;
	snprintf(dir, sizeof dir, "%s/rh-tables-XXXXXX", check_place("/tmp"));
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
	open_kind(&rig, 2);
	struct rig_input in = rig_input(&rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 2};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	write_adapter(&rig, dir);
	check_ok(rh_safetensors_open(path, &file));
	struct rh_safetensors *theirs;
	check_ok(rh_safetensors_open("tests/reference/train/tables/tied/adapter_model.safetensors", &theirs));
	assert_int_equal(rh_safetensors_count(file), rh_safetensors_count(theirs));
	for (int64_t i = 0; i < rh_safetensors_count(theirs); i++) {
		const struct rh_safetensor *one = rh_safetensors_at(theirs, i), *other = rh_safetensors_find(file, one->name);
		if (!other)
			fail_msg("%s is not written", one->name);
		assert_memory_equal(one->shape, other->shape, sizeof one->shape);
		assert_memory_equal(tensor_bytes(theirs, one), tensor_bytes(file, other), (size_t)one->bytes);
	}
	rh_safetensors_close(file);
	rh_safetensors_close(theirs);
	rig_close(&rig);
	check_ok(rh_dir_remove(dir));
}

/* ---- keys ---- */

struct keys {
	const char *model;
	const char *targets[4];
	const char *line; /* of the refusal; NULL: there is none */
	int is_pattern, ratio;
};

static void set_keys(struct rig *rig, const struct keys *keys, char *targets[4])
{
	size_t count = 0;
	for (; count < 4 && keys->targets[count]; count++)
		targets[count] = (char *)(uintptr_t)keys->targets[count];
	rig_open(rig, keys->model, NULL);
	rig->config.use_lora = 1;
	rig->config.lora_r = 2;
	rig->config.lora_alpha = 4;
	rig->config.lora_targets_given = 1;
	rig->config.lora_targets_pattern = keys->is_pattern;
	rig->config.loraplus_lr_ratio = keys->ratio;
	rig->config.lora_target_modules = (struct rh_list){targets, count, count};
}

static void test_keys_make_adapters_of_tables_or_are_refused(void **state)
{
	(void)state;
	static const struct keys all[] = {
	        {"llama2", {"q_proj", "lm_head"}, NULL, 0, 1},
	        {"smollm2", {"q_proj", "lm_head"}, NULL, 0, 1},
	        {"qwen3.5-vision", {"q_proj", "embed_tokens"}, NULL, 0, 1},
	        {"smollm2", {".*q_proj|lm_head"}, "this model's embedding is its head too; write a list", 1, 1},
	        {"llama2", {"embed_tokens"}, "loraplus_lr_ratio: an embedding's adapter would have a rate of its own", 0, 16},
	        {"gpt2", {"c_attn", "wte"}, "a table beside others, whose adapter is not built", 0, 1}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct rig rig;
		char *targets[4];
		set_keys(&rig, &all[i], targets);
		int rc = rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session);
		if (all[i].line && (rc != -EINVAL || !strstr(rh_error(rc), all[i].line)))
			fail_msg("%d '%s' does not hold '%s'", rc, rc ? rh_error(rc) : "", all[i].line);
		if (!all[i].line) {
			check_ok(rc);
			const struct rh_model *model = rig.session.model;
			const struct rh_layer *head = &model->layer[model->layers - 1];
			assert_int_equal(head->on_table.r, 2);
			assert_int_equal(rh_head_shares_adapter(head), rh_model_ties(model->config));
			assert_int_equal(model->layer[0].on_table.r, rh_model_ties(model->config) ? 2 : 0);
			assert_int_equal(rig.session.adapter.peft.ties, rh_model_ties(model->config));
		}
		rig_close(&rig);
	}
}

/* Steps of three devices in rounds, with dropout, are one device's to the bit. */
static void test_devices_and_rounds_change_no_bit(void **state)
{
	(void)state;
	static const char *const devices[] = {"cpu:1", "cpu:3"};
	for (int kind = 0; kind < 3; kind += 2) {
		uint64_t hash[2];
		for (int d = 0; d < 2; d++) {
			struct rig rig;
			open_kind(&rig, kind);
			rig.config.device = (char *)(uintptr_t)devices[d];
			rig.config.lora_keys_given = RH_LORA_DROPOUT;
			rig.config.lora_dropout = 0.25;
			rig.config.round_micro_batches = d ? 2 : 0;
			struct rig_input in = rig_input(&rig, "train");
			struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 4};
			rig_start(&rig, RH_SESSION_TRAINS, &work);
			for (int step = 0; step < 2; step++) {
				(void)rig_step(&rig, &in, 4 * step, 4, step);
				rig_update(&rig, 1e-3, step);
			}
			hash[d] = rig_weights_hash(&rig.session);
			rig_close(&rig);
		}
		assert_true(hash[0] == hash[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_curves_equal_peft),
	        cmocka_unit_test(test_tied_adapters_go_by_both_names),
	        cmocka_unit_test(test_keys_make_adapters_of_tables_or_are_refused),
	        cmocka_unit_test(test_devices_and_rounds_change_no_bit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
