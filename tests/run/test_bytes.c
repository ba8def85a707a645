/* What a plan says of bytes is what the executor then takes, to the byte: every reference model, full and LoRA, in both dtypes, on one to
 * four devices, with room and with little, under RoundPipe and under schedules that keep something more. All micro-batches of a step are
 * alike, so that the largest is really met. */
#include "bytes_case.h"
#include "train/rig.h"

enum { MICROS = 3 };

struct what {
	const char *model, *device, *schedule; /* NULL: RoundPipe */
	enum rh_dtype dtype;
	int64_t lora_r, round; /* 0: full; chosen */
	int64_t cap;           /* bytes; 0: all */
	double balance;        /* router_aux_loss_coef */
};

static int open_run(const struct what *what, struct rig *rig, struct rig_micro *micro)
{
	static char *targets[] = {(char *)(uintptr_t) "all-linear"};
	rig_open(rig, what->model, NULL);
	struct rh_config *config = &rig->config;
	config->device = (char *)(uintptr_t)what->device;
	config->schedule = (char *)(uintptr_t)what->schedule;
	config->dtype = what->dtype;
	config->state_layout = what->dtype == RH_F32 ? RH_LAYOUT_PLAIN : RH_LAYOUT_SPLIT;
	config->use_lora = what->lora_r > 0;
	config->lora_r = what->lora_r;
	config->lora_alpha = 8;
	config->lora_dropout = 0.1;
	config->router_aux_loss_coef = what->balance;
	config->lora_target_modules = (struct rh_list){.item = targets, .count = 1};
	config->round_micro_batches = what->round;
	config->max_vram = what->cap;
	struct rig_input in = rig_input(rig, "train");
	rig_micro_make(&in, 0, 0, micro);
	struct rh_workload work = {.train = micro->batch.shape, .train_micro_batches = MICROS};
	check_ok(rh_session_open(config, RH_SESSION_TRAINS, &rig->session));
	return rh_session_start(&rig->session, &work);
}

static void step(struct rig *rig, struct rig_micro *micro)
{
	struct rh_micro_batch batch[MICROS] = {micro->batch, micro->batch, micro->batch};
	check_ok(rig_train(rig->session.executor, batch, MICROS, 0, 1.0f / (float)(MICROS * micro->batch.shape.head_rows)));
}

/* The device's bytes; 0: refused. */
static int64_t check_run(const struct what *what)
{
	static struct rig_micro micro;
	struct rig rig;
	int64_t bytes = 0;
	int rc = open_run(what, &rig, &micro);
	if (!rc) {
		step(&rig, &micro);
		check_device_bytes(&rig.session);
		check_host_bytes(&rig.session);
		bytes = rig.session.plan.stages.device_bytes;
		assert_true(!what->cap || bytes <= what->cap);
		assert_int_equal(rig.session.plan.stages.deferred_bytes > 0, what->schedule && !strncmp(what->schedule, "zb", 2));
	}
	assert_true(!rc || (rc == RH_DOES_NOT_FIT && what->cap));
	rig_close(&rig);
	return bytes;
}

static const char *const models[] = {"llama2", "llama3",  "llama-bias",  "qwen2",   "qwen3",      "smollm2",    "mistral",
                                     "phi3",   "gemma3",  "qwen3-moe",   "gpt-oss", "gpt2",       "bert-mlm",   "bert-cls",
                                     "vit",    "qwen3.5", "qwen3.5-moe", "gemma4",  "gemma4-moe", "qwen3-next", "gemma4-e2b"};
enum { MODELS = sizeof models / sizeof *models };

static double balance_of(const char *model)
{
	return !strcmp(model, "qwen3-moe") || !strcmp(model, "gpt-oss") ? 0.1 : 0;
}

static void test_planned_bytes_are_those_taken(void **state)
{
	(void)state;
	static const char *const devices[] = {"cpu:1", "cpu:2", "cpu:4"};
	int runs = 0, refused = 0;
	for (int m = 0; m < MODELS; m++)
		for (int k = 0; k < 4; k++)
			for (int d = 0; d < 3; d++) {
				struct what what = {.model = models[m],
				                    .device = devices[d],
				                    .dtype = k % 2 ? RH_BF16 : RH_F32,
				                    .lora_r = k / 2 ? 4 : 0,
				                    .round = (m + d) % 3,
				                    .balance = d % 2 ? balance_of(models[m]) : 0};
				int64_t all = check_run(&what);
				runs++;
				for (int cut = 0; cut < 3; cut++) {
					what.cap = all * (9 - 2 * cut) / 10;
					int fits = check_run(&what) > 0;
					runs += fits;
					refused += !fits;
				}
			}
	printf("%d runs, %d caps refused\n", runs, refused);
	assert_true(runs > MODELS * 4 * 3 * 3 / 2);
}

static void test_planned_bytes_are_those_taken_under_other_schedules(void **state)
{
	(void)state;
	for (int m = 0; m < MODELS; m++)
		for (int s = 0; s < rh_schedule_count; s++)
			for (int k = 0; k < 2 && !rh_schedule_has_rounds(&rh_schedules[s]) && rh_schedules[s].update == RH_UPDATE_FLUSHES;
			     k++)
				(void)check_run(&(struct what){.model = models[m],
				                               .device = "cpu:2",
				                               .schedule = rh_schedules[s].name,
				                               .dtype = (m + s) % 2 ? RH_BF16 : RH_F32,
				                               .lora_r = k ? 4 : 0,
				                               .balance = balance_of(models[m])});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_planned_bytes_are_those_taken),
	        cmocka_unit_test(test_planned_bytes_are_those_taken_under_other_schedules),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
