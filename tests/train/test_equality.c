/* Where a run is executed never changes a bit of it: devices, rounds, cuts and caps. Every configuration trains a few steps, whose losses,
 * gradient norms and final weights must be the same bytes. */
#include "rig.h"

enum { STEPS = 3 };

/* One way of running the same thing. */
struct way {
	const char *device;
	int64_t round; /* 0: chosen */
	int64_t forward_cuts[4], backward_cuts[4];
	int64_t forward_count, backward_count; /* -1: chosen */
	int64_t cap;                           /* bytes of device memory, 0: all */
	const char *schedule;                  /* NULL: RoundPipe */
};

static const struct way one_device = {.device = "cpu:1", .forward_count = -1, .backward_count = -1};

struct what {
	const char *model, *adapter;
	enum rh_dtype dtype;
	double dropout;
	int64_t micro_batches; /* of a step */
	double balance;        /* router_aux_loss_coef */
};

struct outcome {
	double loss[STEPS], norm[STEPS];
	uint64_t weights;
	int stages;
	int64_t device_bytes, device_peak;
};

static struct outcome run(const struct what *what, const struct way *way)
{
	struct rig rig;
	struct outcome out = {0};
	int64_t forward_cuts[4], backward_cuts[4];
	rig_open(&rig, what->model, what->adapter);
	memcpy(forward_cuts, way->forward_cuts, sizeof forward_cuts);
	memcpy(backward_cuts, way->backward_cuts, sizeof backward_cuts);
	rig.config.dtype = what->dtype;
	rig.config.device = (char *)(uintptr_t)way->device;
	rig.config.round_micro_batches = way->round;
	rig.config.forward_cuts = forward_cuts;
	rig.config.backward_cuts = backward_cuts;
	rig.config.forward_cut_count = way->forward_count;
	rig.config.backward_cut_count = way->backward_count;
	rig.config.max_vram = way->cap;
	rig.config.schedule = (char *)(uintptr_t)way->schedule;
	rig.config.lora_dropout = what->dropout;
	rig.config.router_aux_loss_coef = what->balance;
	rig.config.lora_keys_given = what->dropout > 0 ? RH_LORA_DROPOUT : 0;
	struct rig_input in = rig_input(&rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = what->micro_batches};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	for (int step = 0; step < STEPS; step++) {
		/* the last step is a short one */
		int64_t count = step + 1 == STEPS && what->micro_batches > 2 ? what->micro_batches - 2 : what->micro_batches;
		out.loss[step] = rig_step(&rig, &in, step * what->micro_batches, count, step);
		out.norm[step] = rig_update(&rig, 3e-3, step);
	}
	out.weights = rig_weights_hash(&rig.session);
	out.stages = rig.session.plan.stages.forward_stages + rig.session.plan.stages.backward_stages;
	out.device_bytes = rig.session.plan.stages.device_bytes;
	struct rh_device_memory memory;
	rig.session.devices.device[0]->ops->memory(rig.session.devices.device[0], &memory);
	out.device_peak = memory.peak_bytes;
	rig_close(&rig);
	return out;
}

static void same(const struct what *what, const struct way *way, const struct outcome *expected)
{
	struct outcome got = run(what, way);
	int equal = got.weights == expected->weights && !memcmp(got.loss, expected->loss, sizeof got.loss) &&
	            !memcmp(got.norm, expected->norm, sizeof got.norm);
	if (!equal)
		print_error("%s %s: %s, round %lld, cuts %lld/%lld, cap %lld, %d stages: losses %.9g %.9g %.9g, expected %.9g %.9g %.9g\n",
		            what->model, what->adapter ? what->adapter : "full", way->device, (long long)way->round,
		            (long long)way->forward_count, (long long)way->backward_count, (long long)way->cap, got.stages, got.loss[0],
		            got.loss[1], got.loss[2], expected->loss[0], expected->loss[1], expected->loss[2]);
	assert_true(equal);
}

static const char *const devices[] = {"cpu:1", "cpu:2", "cpu:4", "cpu:8"};
enum { DEVICES = 4 };

/* Cuts, devices and rounds: all that there are under RH_LONG, else each cut on each number of devices, with rounds that take turns. The
 * models have 2 or 3 blocks: layers 0 (embedding) to 3 or 4 (head). */
static void sweep(const struct what *what)
{
	static const struct way cuts[] = {
	        {.forward_count = -1, .backward_count = -1},
	        {.forward_count = 0, .backward_count = 0},
	        {.forward_count = -1, .backward_count = 1, .backward_cuts = {3}},
	        {.forward_count = 1, .forward_cuts = {1}, .backward_count = 2, .backward_cuts = {2, 3}},
	        {.forward_count = 2, .forward_cuts = {1, 2}, .backward_count = 3, .backward_cuts = {1, 2, 3}},
	        {.forward_count = 1, .forward_cuts = {2}, .backward_count = 2, .backward_cuts = {1, 3}},
	};
	struct outcome expected = run(what, &one_device);
	int is_long = getenv("RH_LONG") != NULL;
	for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
		for (int d = 0; d < DEVICES; d++)
			for (int64_t round = 1; round <= what->micro_batches; round++) {
				struct way way = cuts[c];
				way.device = devices[d];
				way.round = round;
				if (is_long || (int64_t)(c + (size_t)d) % what->micro_batches + 1 == round)
					same(what, &way, &expected);
			}
}

static void test_full_training_is_the_same_everywhere(void **state)
{
	(void)state;
	sweep(&(struct what){.model = "smollm2", .micro_batches = 7}); /* tied head */
	sweep(&(struct what){.model = "llama2", .micro_batches = 5});
	sweep(&(struct what){.model = "glm4-lite", .micro_batches = 4});
	sweep(&(struct what){.model = "bert-mlm", .micro_batches = 4}); /* its embedding's backward reads weights: of a norm */
}

static void test_lora_with_dropout_is_the_same_everywhere(void **state)
{
	(void)state;
	sweep(&(struct what){.model = "smollm2", .adapter = "adapter", .dropout = 0.1, .micro_batches = 7});
	sweep(&(struct what){.model = "qwen3", .adapter = "adapter-rs", .dropout = 0.25, .micro_batches = 5});
	sweep(&(struct what){.model = "llama2", .adapter = "adapter-whole", .micro_batches = 5}); /* embedding and head trained whole */
	sweep(&(struct what){.model = "smollm2", .adapter = "adapter-whole", .dtype = RH_BF16, .micro_batches = 5});
}

static void test_bf16_training_is_the_same_everywhere(void **state)
{
	(void)state;
	sweep(&(struct what){.model = "smollm2", .dtype = RH_BF16, .micro_batches = 5});
	sweep(&(struct what){.model = "llama-bias", .adapter = "adapter", .dtype = RH_BF16, .micro_batches = 5});
	sweep(&(struct what){.model = "glm4-lite", .adapter = "adapter", .dtype = RH_BF16, .micro_batches = 4});
}

/* Each router's gradient holds what the layers above it chose, which other stages and devices computed. */
static void test_a_load_balancing_loss_is_the_same_everywhere(void **state)
{
	(void)state;
	struct what plain = {.model = "qwen3-moe", .micro_batches = 3}, balanced = plain;
	balanced.balance = 0.5;
	struct outcome without = run(&plain, &one_device), with = run(&balanced, &one_device);
	assert_true(with.loss[0] > without.loss[0] + 1 && with.weights != without.weights); /* evenly spread: 0.5 times 3 experts a token */
	sweep(&balanced);
	sweep(&(struct what){.model = "gpt-oss", .dtype = RH_BF16, .balance = 0.5, .micro_batches = 4});
	sweep(&(struct what){.model = "qwen3-moe", .adapter = "adapter", .balance = 0.01, .micro_batches = 5});
}

static void test_a_cap_below_the_model_changes_nothing_and_holds(void **state)
{
	(void)state;
	struct what what = {.model = "qwen3", .micro_batches = 6};
	struct outcome whole = run(&what, &one_device);
	int64_t smallest = whole.device_bytes;
	int most_stages = 1, tries = 0;
	for (int64_t cap = whole.device_bytes - 1; cap > 0; cap = cap * 9 / 10) {
		struct way way = one_device;
		way.cap = cap;
		way.round = tries++ % 2 ? 2 : 0; /* what stays on the device from forward to backward is of one round */
		struct rig rig;                  /* does a plan exist under this cap? */
		rig_open(&rig, what.model, NULL);
		rig.config.max_vram = cap;
		struct rig_input in = rig_input(&rig, "train");
		struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = what.micro_batches};
		check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
		int rc = rh_session_start(&rig.session, &work);
		rig_close(&rig);
		if (rc) {
			assert_int_equal(rc, RH_DOES_NOT_FIT);
			assert_non_null(strstr(rh_error(rc), "max_vram"));
			printf("refused: %s\n", rh_error(rc));
			break;
		}
		same(&what, &way, &whole);
		struct outcome got = run(&what, &way);
		assert_true(got.device_bytes <= cap && got.device_peak <= cap && got.device_peak == got.device_bytes);
		smallest = got.device_bytes;
		most_stages = got.stages > most_stages ? got.stages : most_stages;
	}
	printf("device memory from %lld bytes in one stage down to %lld in %d\n", (long long)whole.device_bytes, (long long)smallest,
	       most_stages);
	assert_true(smallest * 3 < whole.device_bytes * 2 && most_stages >= 4);
}

/* 20 steps and more in all, on four devices: whoever runs what when. */
static void test_every_synchronous_schedule_gives_the_same(void **state)
{
	(void)state;
	static const struct what whats[] = {{.model = "qwen3", .micro_batches = 6},
	                                    {.model = "smollm2", .micro_batches = 5},
	                                    {.model = "llama3", .adapter = "adapter", .dropout = 0.1, .micro_batches = 5},
	                                    {.model = "smollm2", .dtype = RH_BF16, .micro_batches = 1}};
	for (size_t i = 0; i < sizeof whats / sizeof *whats; i++) {
		struct outcome expected = run(&whats[i], &one_device);
		for (int s = 0; s < rh_schedule_count; s++) {
			const struct rh_schedule *schedule = &rh_schedules[s];
			if (schedule->update != RH_UPDATE_FLUSHES)
				continue;
			for (int count = 1; count <= 4; count *= 2) {
				if (count == 4 && schedule->stages_least > 1)
					continue; /* the models have 4 or 5 layers */
				const char *const names[] = {"", "cpu:1", "cpu:2", "", "cpu:4"};
				struct way way = {
				        .device = names[count], .forward_count = -1, .backward_count = -1, .schedule = schedule->name};
				same(&whats[i], &way, &expected);
			}
		}
	}
}

static void test_two_runs_are_the_same(void **state)
{
	(void)state;
	struct what what = {.model = "llama3", .micro_batches = 4};
	struct way way = {.device = "cpu:2", .round = 2, .forward_count = -1, .backward_count = 1, .backward_cuts = {2}};
	struct outcome first = run(&what, &way);
	same(&what, &way, &first);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_full_training_is_the_same_everywhere),
	        cmocka_unit_test(test_lora_with_dropout_is_the_same_everywhere),
	        cmocka_unit_test(test_bf16_training_is_the_same_everywhere),
	        cmocka_unit_test(test_a_load_balancing_loss_is_the_same_everywhere),
	        cmocka_unit_test(test_a_cap_below_the_model_changes_nothing_and_holds),
	        cmocka_unit_test(test_every_synchronous_schedule_gives_the_same),
	        cmocka_unit_test(test_two_runs_are_the_same),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
