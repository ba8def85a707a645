/* rank_pattern, alpha_pattern, exclude_modules, layers_to_transform and use_dora: adapters and curves of PEFT's
 * (tests/reference/lora_kin.py), and keys that make the same adapters. init_lora_weights: by statistics. */
#include "rig.h"

#include "core/file.h"

#include <unistd.h>

enum { KINDS = 4, DORA = 3 };
static const char *const kinds[KINDS] = {"patterns", "expression", "layers", "dora"};

static void open_kind(struct rig *rig, int kind)
{
	rig_open(rig, "smollm2", "adapter");
	snprintf(rig->adapter, sizeof rig->adapter, "tests/reference/train/kin/%s", kinds[kind]);
}

static void test_curves_equal_peft(void **state)
{
	(void)state;
	FILE *file = fopen("tests/reference/train/kin/kin.txt", "r");
	assert_non_null(file);
	for (int kind = 0; kind < KINDS; kind++) {
		struct rig rig;
		double worst = 0, expected;
		open_kind(&rig, kind);
		rig.config.weight_decay = 0.01; /* torch's AdamW */
		struct rig_input in = rig_input(&rig, "train");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 2};
		rig_start(&rig, RH_SESSION_TRAINS, &work);
		for (int step = 0; step < (kind == DORA ? 30 : 12); step++) {
			assert_int_equal(fscanf(file, "%la", &expected), 1);
			double loss = rig_step(&rig, &in, 2 * step, 2, step);
			rig_update(&rig, 1e-3, step);
			worst = fmax(worst, fabs(loss / expected - 1));
		}
		printf("%s: worst loss error %.2e\n", kinds[kind], worst);
		assert_true(worst <= 1e-6); /* fp32 sums in another order; PEFT in fp64 is 2e-7 from PEFT in fp32 */
		rig_close(&rig);
	}
	fclose(file);
}

/* ---- keys ---- */

#define LINEARS "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"

static void set_keys(int kind, struct rh_config *config)
{
	static char *linears[] = {LINEARS}, *some[] = {"q_proj", "down_proj"};
	static char *excluded[] = {"k_proj", "layers.1.self_attn.o_proj"}, *expression[] = {".*\\.mlp\\..*|.*\\.1\\..*v_proj"};
	static char *ranks[] = {"q_proj=2", "layers.1.mlp.down_proj=6"}, *alphas[] = {"v_proj=12", "layers\\.0\\.self_attn\\.o_proj=3"};
	static char *layers[] = {"1"}, *no_keys[] = {"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
	config->adapter_name_or_path = NULL;
	config->use_lora = 1;
	config->lora_targets_given = 1;
	config->lora_r = kind == 2 ? 3 : 4;
	config->lora_alpha = kind == 2 ? 6 : 8;
	config->lora_target_modules = kind == 2 ? (struct rh_list){some, 2, 2} : (struct rh_list){linears, 7, 7};
	config->use_dora = kind == DORA;
	if (kind == DORA) {
		config->lora_target_modules = (struct rh_list){no_keys, 6, 6};
	} else if (kind == 0) {
		config->exclude_modules = (struct rh_list){excluded, 2, 2};
		config->rank_pattern = (struct rh_list){ranks, 2, 2};
		config->alpha_pattern = (struct rh_list){alphas, 2, 2};
	} else if (kind == 1) {
		config->exclude_modules = (struct rh_list){expression, 1, 1};
		config->exclude_pattern = 1;
	} else {
		config->layers_to_transform = (struct rh_list){layers, 1, 1};
	}
}

static void check_same_adapters(const struct rh_model *ours, const struct rh_model *theirs)
{
	assert_int_equal(ours->blocks, theirs->blocks);
	for (int b = 0; b < ours->blocks; b++) {
		assert_int_equal(ours->block[b].tensors, theirs->block[b].tensors);
		for (int t = 0; t < ours->block[b].tensors; t++) {
			assert_string_equal(ours->block[b].tensor[t].name, theirs->block[b].tensor[t].name);
			assert_int_equal(ours->block[b].tensor[t].rows, theirs->block[b].tensor[t].rows);
			assert_int_equal(ours->block[b].tensor[t].cols, theirs->block[b].tensor[t].cols);
		}
	}
	for (int l = 0; l < ours->layers; l++)
		for (int p = 0; p < RH_PROJS; p++) {
			assert_int_equal(ours->layer[l].proj[p].r, theirs->layer[l].proj[p].r);
			assert_true(ours->layer[l].proj[p].scale == theirs->layer[l].proj[p].scale);
		}
}

/* The keys' adapter has the modules, ranks and scales of PEFT's, which has been read; and what it writes is read as the same. */
static void test_keys_make_the_adapters_of_peft(void **state)
{
	(void)state;
	for (int kind = 0; kind < KINDS; kind++) {
		struct rig theirs, ours, again;
		char dir[96];
		open_kind(&theirs, kind);
		open_kind(&ours, kind);
		set_keys(kind, &ours.config);
		check_ok(rh_session_open(&theirs.config, RH_SESSION_TRAINS, &theirs.session));
		check_ok(rh_session_open(&ours.config, RH_SESSION_TRAINS, &ours.session));
		check_same_adapters(ours.session.model, theirs.session.model);
		snprintf(dir, sizeof dir, "%s/rh-kin-XXXXXX", check_place("/tmp"));
		assert_non_null(mkdtemp(dir));
		check_ok(rh_peft_config_save(&ours.session.adapter.peft, dir));
		open_kind(&again, kind);
		check_ok(rh_peft_config_load(dir, &again.session.adapter.peft));
		static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.o_proj",
		                                      "model.layers.1.mlp.down_proj", "model.layers.0.mlp.down_proj",
		                                      "model.layers.1.self_attn.v_proj"};
		for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
			assert_int_equal(rh_peft_matches(&again.session.adapter.peft, modules[i]),
			                 rh_peft_matches(&theirs.session.adapter.peft, modules[i]));
		rh_peft_config_free(&again.session.adapter.peft);
		again.session = (struct rh_session){0};
		rig_close(&again);
		check_ok(rh_dir_remove(dir));
		rig_close(&theirs);
		rig_close(&ours);
	}
}

/* ---- how an adapter begins ---- */

struct spread {
	double mean, deviation, largest;
	int64_t count;
};

/* Of all A, or all B, of an adapter of one rank. */
static struct spread spread_of(enum rh_lora_init init, int is_b, int64_t rank)
{
	struct rig rig;
	struct spread out = {0};
	double sum = 0, squares = 0;
	open_kind(&rig, 0);
	set_keys(2, &rig.config);
	rig.config.layers_to_transform = (struct rh_list){0};
	rig.config.lora_r = rank;
	rig.config.init_lora_weights = init;
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	const struct rh_model *model = rig.session.model;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &model->block[b].tensor[t];
			float values[4096];
			if (!strstr(tensor->name, is_b ? ".lora_B." : ".lora_A."))
				continue;
			int64_t count = tensor->rows * tensor->cols < 4096 ? tensor->rows * tensor->cols : 4096;
			rh_model_initial(model, 42, b, t, 0, count, values);
			for (int64_t i = 0; i < count; i++) {
				sum += (double)values[i];
				squares += (double)values[i] * (double)values[i];
				out.largest = fmax(out.largest, fabs((double)values[i]));
			}
			out.count += count;
		}
	out.mean = sum / (double)out.count;
	out.deviation = sqrt(squares / (double)out.count - out.mean * out.mean);
	rig_close(&rig);
	return out;
}

/* Within four standard errors of a mean, and of a deviation (of a uniform one 0.45 / sqrt(n) of itself, of a normal one 0.71). */
static void check_spread(struct spread is, double deviation, double share)
{
	printf("%lld values: mean %.2e, deviation %.4f of %.4f\n", (long long)is.count, is.mean, is.deviation, deviation);
	assert_true(is.count > 500);
	assert_true(fabs(is.mean) <= 4 * deviation / sqrt((double)is.count));
	assert_true(fabs(is.deviation / deviation - 1) <= 4 * share / sqrt((double)is.count));
}

static void test_adapters_begin_as_pefts(void **state)
{
	(void)state;
	const int64_t rank = 16;
	struct spread gaussian = spread_of(RH_LORA_INIT_GAUSSIAN, 0, rank), b = spread_of(RH_LORA_INIT_GAUSSIAN, 1, rank);
	check_spread(gaussian, 1.0 / (double)rank, 0.71);
	assert_true(gaussian.largest > 2.5 / (double)rank); /* no uniform one */
	assert_true(b.largest == 0);
	struct spread both = spread_of(RH_LORA_INIT_FALSE, 1, rank);
	check_spread(both, 1 / sqrt(3.0 * (double)rank), 0.45);
	assert_true(both.largest <= 1 / sqrt((double)rank) * 1.0001);
	struct spread usual = spread_of(RH_LORA_INIT_TRUE, 1, rank);
	assert_true(usual.largest == 0);
	struct spread a = spread_of(RH_LORA_INIT_FALSE, 0, rank), plain = spread_of(RH_LORA_INIT_TRUE, 0, rank);
	assert_true(a.deviation == plain.deviation && a.largest == plain.largest);
}

/* ---- DoRA ---- */

struct dora_run {
	double loss;
	uint64_t weights;
};

static struct dora_run run_dora(int use_dora, const char *device, const char *schedule)
{
	struct rig rig;
	struct dora_run out = {0};
	open_kind(&rig, DORA);
	if (!use_dora) {
		set_keys(DORA, &rig.config);
		rig.config.use_dora = 0;
	} else if (use_dora == 1) {
		set_keys(DORA, &rig.config);
	}
	rig.config.device = (char *)(uintptr_t)device;
	rig.config.schedule = (char *)(uintptr_t)schedule;
	struct rig_input in = rig_input(&rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 4};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	for (int step = 0; step < 3; step++) {
		double loss = rig_step(&rig, &in, 0, 4, step);
		out.loss = step ? out.loss : loss;
		rig_update(&rig, 1e-3, step);
	}
	out.weights = rig_weights_hash(&rig.session);
	rig_close(&rig);
	return out;
}

/* Of the first step, as vectors. */
static void test_dora_gradients_equal_peft(void **state)
{
	(void)state;
	struct rig rig;
	struct rh_safetensors *file;
	double worst = 0;
	int tensors = 0;
	open_kind(&rig, DORA);
	struct rig_input in = rig_input(&rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 2};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	(void)rig_step(&rig, &in, 0, 2, 0);
	(void)rig_norm(&rig.session);
	check_ok(rh_safetensors_open("tests/reference/train/kin/dora-gradients.safetensors", &file));
	const struct rh_model *model = rig.session.model;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; model->block[b].trainable && t < model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &model->block[b].tensor[t];
			const struct rh_safetensor *wanted = rh_safetensors_find(file, tensor->name);
			const float *found = (const float *)rh_store_gradient(rig.session.store, b) + tensor->offset;
			assert_non_null(wanted);
			const float *expected = tensor_bytes(file, wanted);
			double apart = 0, length = 0;
			for (int64_t i = 0; i < tensor->rows * tensor->cols; i++) {
				apart += ((double)found[i] - (double)expected[i]) * ((double)found[i] - (double)expected[i]);
				length += (double)expected[i] * (double)expected[i];
			}
			worst = fmax(worst, sqrt(apart / length));
			tensors++;
		}
	printf("%d tensors, worst %.2e\n", tensors, worst);
	assert_true(tensors == 36 && worst < 2e-5); /* as of plain adapters in train/test_parity */
	rh_safetensors_close(file);
	rig_close(&rig);
}

static void test_dora_has_the_same_bits_everywhere(void **state)
{
	(void)state;
	static const char *const ways[][2] = {{"cpu:1", NULL}, {"cpu:3", NULL}, {"cpu:2", "1f1b"}, {"cpu:2", "looped-bfs"}};
	uint64_t first = 0;
	for (int w = 0; w < 4; w++) {
		struct dora_run is = run_dora(2, ways[w][0], ways[w][1]);
		first = w ? first : is.weights;
		assert_true(is.weights == first);
	}
}

/* Magnitudes are the rows' norms, so that the first loss is that of a new LoRA adapter, whose B is zero; quotients and roots round. */
static void test_a_new_dora_changes_nothing(void **state)
{
	(void)state;
	struct dora_run dora = run_dora(1, "cpu:1", NULL), lora = run_dora(0, "cpu:1", NULL);
	printf("first loss %.9g, LoRA's %.9g\n", dora.loss, lora.loss);
	assert_true(fabs(dora.loss / lora.loss - 1) < 1e-6);
	assert_true(dora.weights != lora.weights);
}

static void test_split_backwards_are_refused(void **state)
{
	(void)state;
	struct rig rig;
	open_kind(&rig, DORA);
	rig.config.device = (char *)(uintptr_t) "cpu:2";
	rig.config.schedule = (char *)(uintptr_t) "zb-h1";
	struct rig_input in = rig_input(&rig, "train");
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = 2};
	int rc = rh_session_start(&rig.session, &work);
	assert_int_equal(rc, -EINVAL);
	assert_non_null(strstr(rh_error(rc), "use_dora: its gradients need the weights"));
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_curves_equal_peft),
	        cmocka_unit_test(test_keys_make_the_adapters_of_peft),
	        cmocka_unit_test(test_adapters_begin_as_pefts),
	        cmocka_unit_test(test_dora_gradients_equal_peft),
	        cmocka_unit_test(test_dora_has_the_same_bits_everywhere),
	        cmocka_unit_test(test_a_new_dora_changes_nothing),
	        cmocka_unit_test(test_split_backwards_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
