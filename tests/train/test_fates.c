/* Activations that are kept on the device, saved on the host and recomputed, row by row at random: each run trains as one does in which
 * all are recomputed, bit for bit, and its commands pass the checker. Several devices keep none; their forward stages are cut at random,
 * too. */
#include "train/rig.h"

#include "core/hooks.h"
#include "run/check.h"
#include "run/executor.h"

#include <stdlib.h>

enum { STEPS = 2, MICROS_MOST = 4, CASES = 60, CASES_LONG = 2000 };

/* What layers differ in: norms, residuals, experts, windows, sinks, biases, positions. */
static const char *const models[] = {"qwen3",        "qwen3-moe",  "gpt-oss",   "gemma3",     "gpt2",       "bert-mlm",    "llama2",
                                     "vit",          "qwen3.5",    "olmo3",     "granite",    "ministral3", "qwen3.5-moe", "gemma4",
                                     "muse-glimmer", "gemma4-moe", "glm4-lite", "qwen3-next", "gemma4-e2b", "deepseek3"};
enum { MODELS = sizeof models / sizeof *models };

struct fate_case {
	const char *model;
	int lora, bf16, balances;
	uint32_t cuts, forward_cuts; /* a bit for each layer that begins a stage */
	int devices;
};

struct outcome {
	double loss[STEPS];
	uint64_t weights;
	int64_t kept, saved; /* bytes of the plan */
	int in_part;         /* stages that recompute some of their rows */
};

static void configure(const struct fate_case *is, struct rh_config *config)
{
	static char *targets[] = {"all-linear"};
	config->dtype = is->bf16 ? RH_BF16 : RH_F32;
	config->state_layout = is->bf16 ? RH_LAYOUT_SPLIT : RH_LAYOUT_PLAIN;
	config->round_micro_batches = 2;
	if (is->devices > 1)
		config->device = (char *)(uintptr_t) "cpu:3";
	if (is->lora) {
		config->use_lora = 1;
		config->lora_r = 4;
		config->lora_alpha = 8;
		config->lora_dropout = 0.1;
		config->lora_target_modules = (struct rh_list){targets, 1, 1};
	}
}

static void check_lanes(const struct rh_session *session, int64_t micros)
{
	struct rh_check_options options;
	struct rh_check_fault fault;
	struct rh_check *check;
	rh_record_rooms(session->executor, &options);
	check_ok(rh_check_create(&options, &check));
	for (int64_t step = 0; step < STEPS; step++)
		check_ok(rh_check_expect(
		        check, &(struct rh_check_call){.step = step, .micro_batches = micros, .version = step, .trains = 1, .updates = 1}));
	check_ok(rh_check_run(check, rh_record_lanes(session->executor), &fault));
	if (fault.position < 0)
		rh_check_finish(check, &fault);
	if (fault.position >= 0)
		fail_msg("%s", fault.text);
	rh_check_destroy(check);
}

/* fates: the hook's seed; NULL: the plan's own. */
static struct outcome run(const struct fate_case *is, const char *fates)
{
	struct outcome out = {.in_part = 0};
	struct rig rig;
	int64_t cut[16], cuts = 0, forward_cut[16], forward_cuts = 0;
	assert_int_equal(fates ? setenv(RH_HOOK_FATES, fates, 1) : unsetenv(RH_HOOK_FATES), 0);
	rig_open(&rig, is->model, NULL);
	struct rig_input in = rig_input(&rig, "train");
	int64_t micros = in.micros < MICROS_MOST ? in.micros : MICROS_MOST;
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = micros};
	configure(is, &rig.config);
	if (is->balances)
		rig_balance(&rig, is->model);
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	for (int l = 1; l < rig.session.model->layers; l++)
		if (is->cuts >> l & 1 || l + 1 == rig.session.model->layers)
			cut[cuts++] = l;
	rig.config.backward_cuts = cut;
	rig.config.backward_cut_count = cuts;
	for (int l = 1; is->devices > 1 && l + 1 < rig.session.model->layers; l++)
		if (is->forward_cuts >> l & 1)
			forward_cut[forward_cuts++] = l;
	if (is->devices > 1) {
		rig.config.forward_cuts = forward_cut;
		rig.config.forward_cut_count = forward_cuts;
	}
	check_ok(rh_session_start(&rig.session, &work));
	const struct rh_stage_plan *plan = &rig.session.plan.stages;
	out.saved = plan->saved_bytes;
	out.kept = plan->kept_bytes;
	for (int i = 0; i < plan->backward_stages; i++)
		out.in_part += plan->places[i].recomputes && (plan->places[i].kept.bytes || plan->places[i].saved.bytes);
	rh_record_begin(rig.session.executor);
	for (int64_t step = 0; step < STEPS; step++) {
		out.loss[step] = rig_step(&rig, &in, 0, micros, step);
		(void)rig_update(&rig, 1e-3, step);
	}
	check_lanes(&rig.session, micros);
	out.weights = rig_weights_hash(&rig.session);
	rig.config.backward_cuts = rig.config.forward_cuts = NULL;
	rig_close(&rig);
	assert_int_equal(unsetenv(RH_HOOK_FATES), 0);
	return out;
}

static void test_random_fates_train_bit_equal_and_pass_the_checker(void **state)
{
	(void)state;
	int count = getenv("RH_LONG") ? CASES_LONG : CASES, kept = 0, saved = 0, in_part = 0, several = 0;
	uint64_t seed = check_seed();
	struct outcome plain = {.in_part = 0};
	struct fate_case is = {.model = NULL};
	for (int i = 0; i < count; i++) {
		char fates[16];
		if (i % 4 == 0) { /* four fates of each kind of run */
			const char *model = models[i / 4 % MODELS];
			uint32_t random = check_random(&seed);
			is = (struct fate_case){.model = model, .lora = random & 1, .bf16 = random >> 1 & 1, .cuts = random >> 8};
			is.forward_cuts = random >> 16;
			is.devices = i / 4 % 2 ? 3 : 1;
			is.balances = !strcmp(model, "qwen3-moe") && random & 4;
			plain = run(&is, NULL);
			assert_int_equal(plain.kept + plain.saved, 0);
		}
		snprintf(fates, sizeof fates, "%u", check_random(&seed) % 1000000);
		struct outcome own = run(&is, fates);
		kept += own.kept > 0;
		saved += own.saved > 0;
		in_part += own.in_part > 0;
		several += is.devices > 1 && own.saved > 0;
		assert_true(is.devices == 1 || !own.kept);
		if (memcmp(own.loss, plain.loss, sizeof own.loss) != 0 || own.weights != plain.weights)
			fail_msg("%s%s %s, %d devices, cuts %x, forward %x, fates %s: losses %.9g %.9g, all recomputed %.9g %.9g", is.model,
			         is.lora ? " LoRA" : "", is.bf16 ? "bf16" : "fp32", is.devices, is.cuts, is.forward_cuts, fates,
			         own.loss[0], own.loss[1], plain.loss[0], plain.loss[1]);
	}
	printf("%d fates of %d models: %d keep rows, %d save rows, %d of these on 3 devices, %d recompute a part of a stage\n", count,
	       (int)MODELS, kept, saved, several, in_part);
	assert_true(kept > count / 6 && saved > count / 3 && several > count / 6 && in_part > count / 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_random_fates_train_bit_equal_and_pass_the_checker),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
