/* Every schedule that ends its steps together, on four devices: 20 steps whose losses, gradient norms and weights are RoundPipe's, bit for
 * bit. */
#include "train/deep.h"

enum { STEPS = 20, BLOCKS = 6, MICROS = 8 };

struct what {
	const char *model;
	enum rh_dtype dtype;
	int64_t lora_r;                /* 0: full */
	double dropout, clip, balance; /* router_aux_loss_coef */
};

struct outcome {
	double loss[STEPS], norm[STEPS];
	uint64_t weights;
	int64_t deferred_bytes;
};

static struct outcome run(const struct what *what, const char *schedule)
{
	static char *targets[] = {(char *)(uintptr_t) "all-linear"};
	struct deep deep;
	struct rig *rig = &deep.rig;
	struct outcome out = {0};
	deep_open(&deep, what->model, BLOCKS);
	rig->config.device = (char *)(uintptr_t) "cpu:4";
	rig->config.dtype = what->dtype;
	rig->config.state_layout = what->dtype == RH_F32 ? RH_LAYOUT_PLAIN : RH_LAYOUT_SPLIT;
	rig->config.schedule = (char *)(uintptr_t)schedule;
	rig->config.use_lora = what->lora_r > 0;
	rig->config.lora_r = what->lora_r;
	rig->config.lora_alpha = 16;
	rig->config.lora_dropout = what->dropout;
	rig->config.lora_target_modules = (struct rh_list){.item = targets, .count = 1};
	rig->config.max_grad_norm = what->clip;
	rig->config.router_aux_loss_coef = what->balance;
	struct rig_input in = rig_input(rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
	rig_start(rig, RH_SESSION_TRAINS, &work);
	for (int step = 0; step < STEPS; step++) {
		int64_t count = step % 7 == 6 ? MICROS - 1 - step % 5 : MICROS; /* short steps too */
		out.loss[step] = rig_step(rig, &in, step * MICROS % (in.micros - MICROS + 1), count, step);
		out.norm[step] = rig_update(rig, 3e-3, step);
	}
	out.weights = rig_weights_hash(&rig->session);
	out.deferred_bytes = rig->session.plan.stages.deferred_bytes;
	deep_close(&deep);
	return out;
}

static void check_all(const struct what *what)
{
	struct outcome expected = run(what, "roundpipe");
	assert_true(expected.loss[STEPS - 1] < expected.loss[0]);
	for (int s = 0; s < rh_schedule_count; s++) {
		const struct rh_schedule *schedule = &rh_schedules[s];
		if (schedule->update != RH_UPDATE_FLUSHES)
			continue;
		struct outcome got = run(what, schedule->name);
		for (int step = 0; step < STEPS; step++)
			if (got.loss[step] != expected.loss[step] || got.norm[step] != expected.norm[step])
				fail_msg("%s, %s, step %d: loss %.9g norm %.9g, expected %.9g %.9g", what->model, schedule->name, step,
				         got.loss[step], got.norm[step], expected.loss[step], expected.norm[step]);
		assert_true(got.weights == expected.weights);
		assert_int_equal(got.deferred_bytes > 0, schedule->splits_backward);
	}
}

static void test_full_training_gives_the_same_under_every_schedule(void **state)
{
	(void)state;
	check_all(&(struct what){.model = "smollm2", .clip = 1}); /* tied head */
	check_all(&(struct what){.model = "qwen3-moe"});
	check_all(&(struct what){.model = "gpt-oss", .dtype = RH_BF16, .balance = 0.1});
	check_all(&(struct what){.model = "gemma3"});     /* norms behind what attention and the MLP make */
	check_all(&(struct what){.model = "gemma4-moe"}); /* experts beside an MLP, whose norms are their own */
	check_all(&(struct what){.model = "glm4-lite"});  /* latent attention, whose inner linears have operands of their own */
	check_all(&(struct what){.model = "gemma4-e2b"}); /* keys and inputs that travel beside activations */
	check_all(&(struct what){.model = "qwen3", .dtype = RH_BF16});
}

static void test_lora_with_dropout_gives_the_same_under_every_schedule(void **state)
{
	(void)state;
	check_all(&(struct what){.model = "qwen3", .lora_r = 3, .dropout = 0.1, .clip = 0.5});
	check_all(&(struct what){.model = "gemma4-e2b", .dtype = RH_BF16, .lora_r = 3, .dropout = 0.1});
	check_all(&(struct what){.model = "glm4-lite", .lora_r = 3, .clip = 0.5});
	check_all(&(struct what){.model = "deepseek3", .lora_r = 3, .clip = 0.5});
	check_all(
	        &(struct what){.model = "qwen3-moe", .dtype = RH_BF16, .lora_r = 3, .balance = 0.1}); /* experts and routers; no dropout */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_full_training_gives_the_same_under_every_schedule),
	        cmocka_unit_test(test_lora_with_dropout_gives_the_same_under_every_schedule),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
