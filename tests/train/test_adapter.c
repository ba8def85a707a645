/* Adapters of mixtures of experts: which parameters the run's keys mean, as PEFT 0.21 resolved them when it was run; and files that are
 * loaded and saved to the bit. */
#include "rig.h"

#include "core/file.h"
#include "session/adapter.h"
#include "weights/tensors_out.h"

#include <unistd.h>

struct expected {
	const char *model, *targets, *parameters; /* the run's; words between blanks */
	int pattern;
	const char *modules, *resolved; /* the adapter's */
	double rank;                    /* that gate_up_proj has in place of r; 0: no pattern */
	const char *saved;              /* the run's: what is trained whole */
};

static char *word[16];

/* Words between blanks, valid until the next call. */
static struct rh_list list_of(const char *text, char *copy, size_t first)
{
	struct rh_list list = {.item = word + first};
	strcpy(copy, text ? text : "");
	for (char *at = strtok(copy, " "); at; at = strtok(NULL, " "))
		list.item[list.count++] = at;
	return list;
}

static int resolve(const struct expected *want, struct rh_config *config, struct rh_model_config *model, struct rh_adapter *out)
{
	static char targets[256], parameters[256], saved[256];
	char path[128];
	snprintf(path, sizeof path, "tests/reference/models/%s", want->model);
	check_ok(rh_model_config_load(path, model));
	config->use_lora = 1;
	config->lora_r = 4;
	config->lora_alpha = 8;
	config->lora_target_modules = list_of(want->targets ? want->targets : "q_proj v_proj", targets, 0);
	config->lora_target_parameters = list_of(want->parameters, parameters, 8);
	config->lora_modules_to_save = list_of(want->saved, saved, 12);
	config->lora_targets_given = want->targets != NULL;
	config->lora_targets_pattern = want->pattern;
	return rh_adapter_resolve(config, model, RH_ADAPTER_PLANS, out);
}

static void check_words(char *const *found, size_t count, const char *words)
{
	char copy[256], *at;
	size_t all = 0;
	strcpy(copy, words);
	for (at = strtok(copy, " "); at; at = strtok(NULL, " "), all++) {
		size_t i = 0;
		while (i < count && strcmp(found[i], at))
			i++;
		if (i == count)
			fail_msg("'%s' is not among those of the adapter", at);
	}
	assert_int_equal(all, count);
}

static void test_names_of_experts_become_what_peft_makes_of_them(void **state)
{
	(void)state;
	static const char latent[] = "q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj o_proj";
	static const char attention[] = "q_proj k_proj v_proj o_proj", both[] = "mlp.experts.gate_up_proj mlp.experts.down_proj";
	static const char next[] = "q_proj k_proj v_proj o_proj in_proj_qkvz in_proj_ba out_proj shared_expert_gate";
	static const struct expected cases[] = {
	        {"qwen3-moe", "all-linear", NULL, 0, attention, "gate.weight gate_up_proj down_proj", 8, NULL},
	        {"qwen3-moe", "gate_proj up_proj", NULL, 0, "", "gate_up_proj", 8, NULL},
	        {"qwen3-moe", "q_proj mlp.experts.down_proj", NULL, 0, "q_proj", "down_proj", 0, NULL},
	        {"qwen3-moe", "q_proj gate", NULL, 0, "q_proj", "gate.weight", 0, NULL},
	        {"qwen3-moe", ".*\\.q_proj|.*\\.down_proj", NULL, 1, "q_proj", "down_proj", 0, NULL},
	        {"qwen3-moe", "q_proj", "mlp.experts.gate_up_proj", 0, "q_proj", "mlp.experts.gate_up_proj", 0, NULL},
	        {"qwen3-moe", NULL, NULL, 0, "q_proj v_proj", "", 0, NULL},
	        {"glm4-lite", "all-linear", NULL, 0, latent, "gate.weight gate_up_proj down_proj", 8, NULL},
	        {"glm4-lite", "q_a_proj gate_proj up_proj", NULL, 0, "q_a_proj", "gate_up_proj", 8, NULL},
	        {"qwen3-next", "all-linear", NULL, 0, next, "gate.weight gate_up_proj down_proj", 8, NULL},
	        {"qwen3-next", "in_proj_qkvz in_proj_ba", NULL, 0, "in_proj_qkvz in_proj_ba", "", 0, NULL},
	        {"qwen3-next", ".*shared_expert\\.down_proj", NULL, 1, "", "down_proj", 0, NULL}, /* its name means the others too */
	        {"gpt-oss", "all-linear", NULL, 0, attention, "", 0, NULL},
	        {"gpt-oss", "q_proj", both, 0, "q_proj", both, 0, NULL},
	        {"gpt-oss", NULL, "mlp.router.weight", 0, "", "mlp.router.weight", 0, NULL},
	        {"gemma4-moe", "all-linear", NULL, 0, "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj proj", "", 0, NULL},
	        {"gemma4", "all-linear", NULL, 0, "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj", "", 0, NULL},
	        {"gemma4-e2b", "all-linear", NULL, 0,
	         "model\\.language_model\\..*\\.(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|per_layer_input_gate|"
	         "per_layer_projection)|model\\.language_model\\.per_layer_model_projection",
	         "", 0, NULL},
	        {"gemma4-moe", "q_proj", "experts.down_proj", 0, "q_proj", "experts.down_proj", 0, NULL},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_config config = {.lora_dropout = 0.05};
		struct rh_model_config model;
		struct rh_adapter adapter;
		int64_t r;
		double alpha;
		check_ok(resolve(&cases[i], &config, &model, &adapter));
		check_words(adapter.peft.target, adapter.peft.targets, cases[i].modules);
		check_words(adapter.peft.parameter, adapter.peft.parameters, cases[i].resolved);
		assert_true(adapter.peft.lora_dropout == (adapter.peft.parameters ? 0 : 0.05));
		check_ok(rh_peft_module(&adapter.peft, "model.layers.0.mlp.experts.gate_up_proj", &r, &alpha));
		assert_int_equal(r, cases[i].rank ? (int64_t)cases[i].rank : 4);
		assert_true(alpha == 2 * (double)r);
		rh_adapter_free(&adapter);
		rh_model_config_free(&model);
	}
}

static void check_refused(const struct expected *want, struct rh_config config, const char *line)
{
	struct rh_model_config model;
	struct rh_adapter adapter;
	struct rh_model *made = NULL;
	int rc = resolve(want, &config, &model, &adapter);
	if (!rc) {
		check_ok(rh_model_create(&model, RH_F32, &adapter.lora, &made));
		rc = rh_adapter_check_targets(&config, made);
		rh_model_destroy(made);
		rh_adapter_free(&adapter);
	}
	if (rc != -EINVAL || !strstr(rh_error(rc), line))
		fail_msg("%d '%s' does not hold '%s'", rc, rc ? rh_error(rc) : "", line);
	rh_model_config_free(&model);
}

static void test_what_peft_refuses_is_refused(void **state)
{
	(void)state;
	const struct rh_config none = {0}, some = {.lora_dropout = 0.1, .lora_dropout_given = 1};
	check_refused(&(struct expected){.model = "qwen3-moe", .targets = "gate_proj"}, none, "gate_proj needs up_proj beside it");
	check_refused(&(struct expected){.model = "qwen3-moe", .targets = "up_proj"}, none, "up_proj needs gate_proj beside it");
	check_refused(&(struct expected){.model = "qwen3-moe", .targets = "all-linear"}, some,
	              "lora_dropout: adapters of experts and routers can have none, found 0.1");
	check_refused(&(struct expected){.model = "gpt-oss", .targets = "q_proj router"}, none, "'router' names no linear module");
	check_refused(&(struct expected){.model = "llama3", .targets = "q_proj norm"}, none,
	              "'norm' names no linear module of this model,");
	check_refused(&(struct expected){.model = "gpt-oss", .parameters = "mlp.router.weight mlp.experts.up_proj"}, none,
	              "lora_target_parameters: 'mlp.experts.up_proj' is no parameter of experts or of a router");
	check_refused(&(struct expected){.model = "qwen3", .targets = "q_proj", .parameters = "down_proj"}, none,
	              "'down_proj' is no parameter of experts or of a router of this model (it has none)");
}

static void test_modules_that_cannot_be_trained_whole_are_refused(void **state)
{
	(void)state;
	const struct rh_config none = {0};
	check_refused(&(struct expected){.model = "llama2", .saved = "lm_head norm"}, none,
	              "lora_modules_to_save: 'norm' cannot be trained whole in this model (embed_tokens, lm_head can)");
	check_refused(&(struct expected){.model = "gpt2", .targets = "c_attn", .saved = "wte"}, none,
	              "'wte' cannot be trained whole in this model (nothing can)");
	check_refused(&(struct expected){.model = "bert-cls", .targets = "query", .saved = "word_embeddings"}, none,
	              "'word_embeddings' cannot be trained whole in this model (classifier can)");
	check_refused(&(struct expected){.model = "bert-mlm", .targets = "query", .saved = "decoder"}, none, "(nothing can)");
}

/* PEFT trains two tables apart, unless ensure_weight_tying says that they are one. */
static void test_a_tied_table_is_saved_as_one(void **state)
{
	(void)state;
	static const char *const words[] = {"embed_tokens", "lm_head", "lm_head embed_tokens"};
	for (int i = 0; i < 3; i++) {
		struct rh_config config = {0};
		struct rh_model_config model;
		struct rh_adapter adapter;
		check_ok(resolve(&(struct expected){.model = "smollm2", .saved = words[i]}, &config, &model, &adapter));
		assert_true(adapter.peft.ties);
		check_words(adapter.peft.saved, adapter.peft.saves, "embed_tokens");
		rh_adapter_free(&adapter);
		config.adapter_name_or_path = (char[]){"tests/reference/models/smollm2/adapter-whole"};
		config.lora_keys_given = RH_LORA_SAVED;
		check_ok(rh_adapter_resolve(&config, &model, RH_ADAPTER_PLANS, &adapter));
		assert_true(adapter.peft.ties);
		rh_adapter_free(&adapter);
		config.lora_modules_to_save.count = 0;
		int rc = rh_adapter_resolve(&config, &model, RH_ADAPTER_PLANS, &adapter);
		assert_true(rc == -EINVAL && strstr(rh_error(rc), "lora_modules_to_save: contradicts tests/reference"));
		rh_model_config_free(&model);
	}
}

static void compare_files(const char *a, const char *b)
{
	struct rh_safetensors *x, *y;
	check_ok(rh_safetensors_open(a, &x));
	check_ok(rh_safetensors_open(b, &y));
	assert_int_equal(rh_safetensors_count(x), rh_safetensors_count(y));
	for (int64_t i = 0; i < rh_safetensors_count(x); i++) {
		const struct rh_safetensor *one = rh_safetensors_at(x, i), *other = rh_safetensors_find(y, one->name);
		if (!other || one->bytes != other->bytes || memcmp(one->shape, other->shape, sizeof one->shape) ||
		    memcmp(tensor_bytes(x, one), tensor_bytes(y, other), (size_t)one->bytes))
			fail_msg("%s is another in %s", one->name, b);
	}
	rh_safetensors_close(x);
	rh_safetensors_close(y);
}

static void test_saved_adapters_are_what_was_loaded(void **state)
{
	(void)state;
	static const char *const cases[][2] = {{"qwen3-moe", "adapter"},
	                                       {"qwen3-moe", "adapter-rs"},
	                                       {"gpt-oss", "adapter"},
	                                       {"gpt-oss", "adapter-rs"},
	                                       {"gemma3-vision", "adapter"},
	                                       {"gemma3-vision", "adapter-rs"},
	                                       {"llama2", "adapter-whole"},
	                                       {"llama-bias", "adapter-whole"},
	                                       {"smollm2", "adapter-whole"},
	                                       {"bert-cls", "adapter"},
	                                       {"qwen3.5", "adapter"},
	                                       {"qwen3.5-vision", "adapter"},
	                                       {"qwen3.5-vision", "adapter-rs"},
	                                       {"qwen3.5-moe", "adapter"},
	                                       {"qwen3.5-moe", "adapter-rs"},
	                                       {"qwen3.5-moe-vision", "adapter-rs"},
	                                       {"qwen3-next", "adapter"},
	                                       {"qwen3-next", "adapter-rs"},
	                                       {"gemma4", "adapter"},
	                                       {"gemma4-vision", "adapter"},
	                                       {"gemma4-e2b", "adapter"},
	                                       {"muse-glimmer", "adapter"},

	                                       {"gemma4-moe", "adapter"},
	                                       {"gemma4-moe", "adapter-rs"}};
	for (size_t m = 0; m < sizeof cases / sizeof *cases; m++) {
		struct rig rig;
		struct rh_peft_config config;
		char dir[96], saved[160], was[160];
		snprintf(dir, sizeof dir, "%s/rh-adapter-XXXXXX", check_place("/tmp"));
		assert_non_null(mkdtemp(dir));
		rig_open(&rig, cases[m][0], cases[m][1]);
		struct rig_input in = rig_input(&rig, "docs");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = in.micros};
		rig_start(&rig, RH_SESSION_TRAINS, &work);
		struct rh_tensors_out *out;
		check_ok(rh_adapter_out_open(dir, rig.session.model, rig.session.store, &out));
		check_ok(rh_tensors_out_commit(out));
		check_ok(rh_peft_config_save(&rig.session.adapter.peft, dir));
		snprintf(saved, sizeof saved, "%s/adapter_model.safetensors", dir);
		snprintf(was, sizeof was, "tests/reference/models/%s/%s/adapter_model.safetensors", cases[m][0], cases[m][1]);
		compare_files(was, saved);
		check_ok(rh_peft_config_load(dir, &config));
		const struct rh_peft_config *loaded = &rig.session.adapter.peft;
		assert_int_equal(config.parameters, loaded->parameters);
		assert_int_equal(config.targets, loaded->targets);
		assert_int_equal(config.target_is_pattern, loaded->target_is_pattern);
		assert_int_equal(config.saves, loaded->saves);
		assert_int_equal(config.ties, loaded->ties);
		for (size_t i = 0; i < config.saves; i++)
			assert_true(rh_peft_saves(loaded, config.saved[i]));
		for (size_t i = 0; i < config.parameters; i++)
			assert_true(rh_peft_matches_parameter(loaded, config.parameter[i]));
		rh_peft_config_free(&config);
		rig_close(&rig);
		check_ok(rh_dir_remove(dir));
	}
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_names_of_experts_become_what_peft_makes_of_them),
	        cmocka_unit_test(test_what_peft_refuses_is_refused),
	        cmocka_unit_test(test_modules_that_cannot_be_trained_whole_are_refused),
	        cmocka_unit_test(test_a_tied_table_is_saved_as_one),
	        cmocka_unit_test(test_saved_adapters_are_what_was_loaded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
