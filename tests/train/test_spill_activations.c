/* Runs whose boundaries between stages lie on NVMe: bit for bit those in memory, whatever else is spilled, synchronous and asynchronous,
 * under every schedule, with much memory for the rings and with the least; and the bytes are those said. */
#include "offload/drives.h"
#include "train/deep.h"

#include "config/hardware.h"
#include "session/session.h"

enum { STEPS = 50, BLOCKS = 6, MICROS = 7 };

struct what {
	const char *model, *device, *schedule; /* NULL: RoundPipe */
	int lora, staleness;
	int64_t round;        /* 0: chosen */
	double clip, balance; /* router_aux_loss_coef */
	int steps;
	int64_t micros;        /* 0: MICROS */
	const int64_t *window; /* of paci */
};

/* Where it runs. */
struct place {
	int spill, drives;
	int64_t ram; /* 0: all */
};

struct outcome {
	double loss[STEPS];
	float *weights;
	int64_t count, ram_bytes, boundary_bytes, nvme_bytes, step_bytes, run_bytes;
	struct rh_space_stats stats;
};

static struct rig_input open_run(struct deep *deep, const struct what *what, struct place place, struct rh_workload *work)
{
	static char *targets[] = {(char *)(uintptr_t) "all-linear"};
	struct rh_config *config = &deep->rig.config;
	deep_open(deep, what->model, BLOCKS);
	if (!what->schedule)
		deep_cut(deep);
	config->dtype = RH_BF16;
	config->state_layout = RH_LAYOUT_SPLIT;
	config->device = (char *)(uintptr_t)what->device;
	config->schedule = (char *)(uintptr_t)what->schedule;
	config->use_lora = what->lora;
	config->lora_r = 4;
	config->lora_alpha = 8;
	config->lora_target_modules = (struct rh_list){.item = targets, .count = 1};
	config->round_micro_batches = what->round;
	config->optimizer_staleness = what->staleness;
	config->max_grad_norm = what->clip;
	config->router_aux_loss_coef = what->balance;
	config->max_vram = 4 << 20; /* so that max_ram is not spent on devices */
	config->max_ram = place.ram;
	config->spill = place.spill;
	config->max_nvme = place.spill ? 1 << 30 : 0;
	config->nvme_dirs = (struct rh_list){.item = group_drives.name, .count = (size_t)place.drives};
	struct rig_input in = rig_input(&deep->rig, "train");
	*work = (struct rh_workload){
	        .train = rig_limits(&in, 0), .train_micro_batches = what->micros ? what->micros : MICROS, .train_steps = what->steps};
	check_ok(rh_session_open(config, RH_SESSION_TRAINS, &deep->rig.session));
	deep->rig.session.admission_limit = what->window;
	return in;
}

static double step(struct rig *rig, const struct what *what, const struct rig_input *in, int step)
{
	const struct rh_update update = {.settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 3e-3, .scale = 1, .step = step + 1};
	double norm;
	rh_updater_open(rig->session.updater, &update, what->clip);
	double loss = rig_step(rig, in, step * MICROS % (in->micros - MICROS + 1), MICROS - (step % 5 == 4), step);
	check_ok(rh_updater_norm(rig->session.updater, &norm));
	if (step % 10 == 6 || step + 1 == what->steps)
		check_ok(rh_updater_flush(rig->session.updater));
	return loss;
}

static struct outcome train(const struct what *what, struct place place)
{
	struct deep deep;
	struct rh_workload work;
	struct rh_session *session = &deep.rig.session;
	struct outcome out = {0};
	struct rig_input in = open_run(&deep, what, place, &work);
	check_ok(rh_session_start(session, &work));
	for (int s = 0; s < what->steps; s++)
		out.loss[s] = step(&deep.rig, what, &in, s);
	out.weights = rig_weights(session, &out.count);
	out.ram_bytes = session->plan.bytes.total;
	out.boundary_bytes = session->plan.bytes.boundaries;
	out.nvme_bytes = session->plan.bytes.nvme;
	out.step_bytes = session->plan.bytes.nvme_step;
	out.run_bytes = rh_run_plan_nvme_writes(&session->plan, what->steps);
	if (session->space)
		rh_space_stats(session->space, &out.stats);
	deep_close(&deep);
	return out;
}

/* The least memory that the run can have. */
static int64_t least_ram(const struct what *what, int spill)
{
	int64_t ram = 0;
	for (int rc = 0; !rc;) {
		struct deep deep;
		struct rh_workload work;
		(void)open_run(&deep, what, (struct place){spill, 1, ram ? ram - 1 : 0}, &work);
		rc = rh_session_start(&deep.rig.session, &work);
		ram = rc ? ram : deep.rig.session.plan.bytes.total;
		assert_true(!rc || rc == RH_DOES_NOT_FIT);
		deep_close(&deep);
	}
	return ram;
}

static struct outcome check_same(const struct what *what, const struct outcome *expected, struct place place)
{
	struct outcome got = train(what, place);
	int64_t written = 0, read = 0, reserved = 0;
	for (int s = 0; s < what->steps; s++)
		if (got.loss[s] != expected->loss[s])
			fail_msg("%s %s, spill %d over %d, staleness %d, step %d: loss %.9g, in memory %.9g", what->model,
			         what->schedule ? what->schedule : "", place.spill, place.drives, what->staleness, s, got.loss[s],
			         expected->loss[s]);
	assert_memory_equal(got.weights, expected->weights, (size_t)got.count * sizeof(float));
	for (int d = 0; d < got.stats.drives; d++) {
		reserved += got.stats.reserved_bytes[d];
		written += got.stats.written_bytes[d];
		read += got.stats.read_bytes[d];
	}
	printf("%s %s %s, spill %d over %d: memory %lld (in memory %lld), on NVMe %lld, a step writes %lld; written %lld, read %lld\n",
	       what->model, what->device, what->schedule ? what->schedule : "", place.spill, place.drives, (long long)got.boundary_bytes,
	       (long long)expected->boundary_bytes, (long long)reserved, (long long)got.step_bytes, (long long)written, (long long)read);
	assert_int_equal(reserved, got.nvme_bytes);
	assert_true(written <= got.run_bytes);
	if (place.spill == RH_SPILL_ACTIVATIONS) /* with room for both rings and more, they may all stay */
		assert_true(place.ram ? got.boundary_bytes < expected->boundary_bytes && got.step_bytes > 0 && read >= written / 2
		                      : got.boundary_bytes <= expected->boundary_bytes);
	free(got.weights);
	return got;
}

static const int all_kinds = RH_SPILL_OPTIMIZER | RH_SPILL_MASTERS | RH_SPILL_WEIGHTS | RH_SPILL_ACTIVATIONS;

/* With room for what the next slot reads, and with the least. */
static void check_case(const struct what *what, int drives)
{
	struct outcome expected = train(what, (struct place){0});
	int64_t least = least_ram(what, RH_SPILL_ACTIVATIONS);
	struct outcome poor = check_same(what, &expected, (struct place){RH_SPILL_ACTIVATIONS, drives, least});
	struct outcome rich = check_same(what, &expected, (struct place){all_kinds, 4 - drives, 0});
	if (getenv("RH_LONG")) {
		check_same(what, &expected, (struct place){all_kinds, drives, least_ram(what, all_kinds)});
		rich = check_same(what, &expected, (struct place){RH_SPILL_ACTIVATIONS, 4 - drives, 0});
		assert_true(poor.step_bytes > rich.step_bytes);
	}
	free(expected.weights);
}

/* Full and LoRA, synchronous and asynchronous, one device and two; quick: each of them in one of two cases. */
static void test_activations_from_nvme_are_those_in_memory(void **state)
{
	(void)state;
	int is_long = getenv("RH_LONG") != NULL;
	for (int lora = 0; lora < 2; lora++)
		for (int staleness = 0; staleness < 2; staleness++)
			for (int devices = 1; devices < 3; devices++)
				if (is_long || (lora == staleness && lora == devices - 1))
					check_case(&(struct what){.model = lora ? "llama3" : "qwen3",
					                          .device = devices == 1 ? "cpu:1" : "cpu:2",
					                          .lora = lora,
					                          .staleness = staleness,
					                          .round = devices == 1 ? 0 : 4,
					                          .clip = staleness ? 0 : 1,
					                          .steps = is_long ? STEPS : STEPS / 3},
					           staleness ? 3 : 1);
}

/* A boundary whose load lies behind it. */
static void test_loads_from_nvme_are_those_in_memory(void **state)
{
	(void)state;
	check_case(&(struct what){.model = "gpt-oss", .device = "cpu:2", .round = 4, .clip = 1, .balance = 0.1, .steps = 6}, 1);
}

/* Some keep so few boundaries that they stay in memory. */
static void test_every_schedule_that_ends_its_steps_together(void **state)
{
	(void)state;
	int spilled = 0;
	for (int s = 0; s < rh_schedule_count; s++) {
		if (rh_schedules[s].update != RH_UPDATE_FLUSHES)
			continue;
		struct what what = {.model = "qwen3", .device = "cpu:4", .schedule = rh_schedules[s].name, .clip = 1, .steps = 6};
		struct outcome expected = train(&what, (struct place){0}),
		               got = train(&what, (struct place){RH_SPILL_ACTIVATIONS, 2, least_ram(&what, RH_SPILL_ACTIVATIONS)});
		printf("%s: boundaries %lld bytes of memory (in memory %lld), a step writes %lld\n", what.schedule,
		       (long long)got.boundary_bytes, (long long)expected.boundary_bytes, (long long)got.step_bytes);
		assert_true(!got.step_bytes == !(got.stats.written_bytes[0] + got.stats.written_bytes[1]));
		spilled += got.step_bytes > 0;
		assert_memory_equal(got.weights, expected.weights, (size_t)got.count * sizeof(float));
		assert_memory_equal(got.loss, expected.loss, sizeof got.loss);
		free(got.weights);
		free(expected.weights);
	}
	assert_true(spilled >= 5);
}

/* ---- budgets, and a flipped bit ---- */

struct budget {
	int64_t ram, nvme, writes;
	int rc;
	const char *says;
};

/* Starts within the budget, and, where that is enough, trains all steps within it. */
static void check_budget(const struct what *what, struct budget budget)
{
	struct deep deep;
	struct rh_workload work;
	struct rig_input in = open_run(&deep, what, (struct place){RH_SPILL_ACTIVATIONS, 2, budget.ram}, &work);
	deep.rig.config.max_nvme = budget.nvme;
	deep.rig.config.max_nvme_writes = budget.writes;
	int rc = rh_session_start(&deep.rig.session, &work);
	assert_int_equal(rc, budget.rc);
	if (rc && !strstr(rh_error(rc), budget.says))
		fail_msg("%s", rh_error(rc));
	for (int s = 0; !rc && s < what->steps; s++)
		(void)rig_step(&deep.rig, &in, 0, MICROS, s);
	if (!rc) { /* every step was a whole one, so that all is written that was said */
		struct rh_space_stats stats;
		rh_space_stats(deep.rig.session.space, &stats);
		assert_int_equal(stats.written_bytes[0] + stats.written_bytes[1], budget.writes);
		assert_int_equal(stats.reserved_bytes[0] + stats.reserved_bytes[1], budget.nvme);
	}
	deep_close(&deep);
}

static const struct what budgeted = {.model = "qwen3", .device = "cpu:1", .clip = 1, .steps = 3};

static void test_budgets_hold_to_the_byte(void **state)
{
	(void)state;
	int64_t least = least_ram(&budgeted, RH_SPILL_ACTIVATIONS);
	struct outcome is = train(&budgeted, (struct place){RH_SPILL_ACTIVATIONS, 2, least});
	int64_t nvme = is.nvme_bytes, writes = budgeted.steps * is.step_bytes;
	free(is.weights);
	check_budget(&budgeted, (struct budget){least, nvme, writes, 0, NULL});
	check_budget(&budgeted, (struct budget){least - 1, nvme, writes, RH_DOES_NOT_FIT, "1 byte less"});
	check_budget(&budgeted, (struct budget){least, nvme - 1, writes, -ENOSPC, "max_nvme: "});
	check_budget(&budgeted, (struct budget){least, nvme, writes - 1, -EDQUOT, "3 steps"});
}

/* What the machine simulated says of bytes is what the run takes. */
static void test_a_plan_says_the_same_bytes(void **state)
{
	(void)state;
	struct rh_hardware hardware;
	check_ok(rh_hardware_find("rtx4090x8", &hardware));
	struct rh_session_machine machine = {.hardware = &hardware, .devices = 1};
	struct deep deep;
	struct rh_workload work;
	struct outcome is = train(&budgeted, (struct place){RH_SPILL_ACTIVATIONS, 2, 0});
	struct rig_input in = open_run(&deep, &budgeted, (struct place){RH_SPILL_ACTIVATIONS, 2, 0}, &work);
	rh_session_close(&deep.rig.session);
	check_ok(rh_session_simulate(&deep.rig.config, &machine, &deep.rig.session));
	check_ok(rh_session_start(&deep.rig.session, &work));
	assert_int_equal(deep.rig.session.plan.bytes.nvme, is.nvme_bytes);
	assert_int_equal(deep.rig.session.plan.bytes.nvme_step, is.step_bytes);
	(void)rig_step(&deep.rig, &in, 0, MICROS, 0); /* in virtual time */
	deep_close(&deep);
	rh_hardware_free(&hardware);
	free(is.weights);
}

/* Each block in turn: whatever comes back flipped is named, and the step ends with it. */
static void test_a_flipped_bit_is_named_before_it_is_used(void **state)
{
	(void)state;
	struct deep deep;
	struct rh_workload work;
	int64_t least = least_ram(&budgeted, RH_SPILL_ACTIVATIONS), told = 0, calls = INT64_MAX;
	for (int64_t n = 1; n <= calls; n += getenv("RH_LONG") ? 1 : 7) {
		struct rig_input in = open_run(&deep, &budgeted, (struct place){RH_SPILL_ACTIVATIONS, 2, least}, &work);
		rh_drive_fail_nth(1, RH_FAULT_SHORT, 0); /* so that what is opened can fail */
		check_ok(rh_session_start(&deep.rig.session, &work));
		rh_drive_fail_nth(n, RH_FAULT_FLIP, 0);
		struct rig_micro *micro = calloc(MICROS, sizeof *micro);
		struct rh_micro_batch batch[MICROS];
		for (int m = 0; m < MICROS; m++) {
			rig_micro_make(&in, m, 0, &micro[m]);
			batch[m] = micro[m].batch;
		}
		int rc = rig_train(deep.rig.session.executor, batch, MICROS, 0, 0.01f);
		calls = rh_drive_fail_nth(0, 0, 0);
		if (calls >= n) {
			told++;
			assert_int_equal(rc, -EBADMSG);
			if (!strstr(rh_error(rc), "boundary activations") || !strstr(rh_error(rc), "does not match its checksum"))
				fail_msg("%s", rh_error(rc));
			calls = INT64_MAX;
		} else {
			check_ok(rc);
		}
		free(micro);
		deep_close(&deep);
	}
	printf("%lld flips, all named\n", (long long)told);
	assert_true(told > 3);
}

/* ---- local updates ---- */

struct running {
	const struct rig_input *in;
	struct rig *rig;
	struct rig_micro micro[2 * RIG_MICRO_MAX]; /* of the steps in flight, by step */
	struct rh_micro_batch batch[MICROS];
	int64_t micros, until;
	double loss;
};

static int begin_step(void *context, int64_t step, const struct rh_micro_batch **batch, float *loss_scale)
{
	struct running *at = context;
	int64_t trained = 0;
	if (step == at->until)
		return 1;
	for (int64_t m = 0; m < at->micros; m++) {
		struct rig_micro *micro = &at->micro[(step * at->micros + m) % (2 * RIG_MICRO_MAX)];
		rig_micro_make(at->in, (step * at->micros + m) % at->in->micros, 0, micro);
		at->batch[m] = micro->batch;
		trained += micro->batch.shape.head_rows;
	}
	static const struct rh_optimizer_settings settings = {0.9, 0.999, 1e-8, 0, 0};
	struct rh_update update = {settings, 3e-3, 1, step + 1, 1};
	rh_updater_open(at->rig->session.updater, &update, 0);
	*batch = at->batch;
	*loss_scale = 1.0f / (float)trained;
	return 0;
}

static int end_step(void *context, int64_t step, const struct rh_versions *versions)
{
	struct running *at = context;
	(void)versions;
	for (int64_t m = 0; m < at->micros; m++) {
		const struct rig_micro *micro = &at->micro[(step * at->micros + m) % (2 * RIG_MICRO_MAX)];
		for (int64_t i = 0; i < micro->batch.shape.head_rows; i++)
			at->loss += (double)micro->loss[i];
	}
	double norm;
	return rh_updater_norm(at->rig->session.updater, &norm);
}

/* Two stretches, of which the second ends before it said that it would. */
static struct outcome train_stretches(const struct what *what, struct place place)
{
	struct deep deep;
	struct rh_workload work;
	struct outcome out = {0};
	struct rig_input in = open_run(&deep, what, place, &work);
	struct running *at = calloc(1, sizeof *at);
	check_ok(rh_session_start(&deep.rig.session, &work));
	*at = (struct running){.in = &in, .rig = &deep.rig, .micros = work.train_micro_batches};
	for (int part = 0; part < 2; part++) {
		const struct rh_stretch stretch = {.first_step = part ? what->steps / 3 : 0,
		                                   .steps = part ? 2 * what->steps : what->steps / 3,
		                                   .micro_batches = at->micros,
		                                   .begin = begin_step,
		                                   .end = end_step,
		                                   .context = at};
		at->until = part ? what->steps : -1;
		check_ok(rh_executor_train_stretch(deep.rig.session.executor, &stretch));
		check_ok(rh_updater_flush(deep.rig.session.updater));
	}
	out.loss[0] = at->loss;
	out.weights = rig_weights(&deep.rig.session, &out.count);
	out.boundary_bytes = deep.rig.session.plan.bytes.boundaries;
	out.step_bytes = deep.rig.session.plan.bytes.nvme_step;
	if (deep.rig.session.space)
		rh_space_stats(deep.rig.session.space, &out.stats);
	free(at);
	deep_close(&deep);
	return out;
}

static void test_stages_that_update_themselves(void **state)
{
	(void)state;
	static const int64_t window[] = {11, 9, 5, 2};
	struct what what = {.model = "qwen3", .device = "cpu:4", .schedule = "paci", .steps = 12, .micros = 3, .window = window};
	struct outcome expected = train_stretches(&what, (struct place){0}),
	               got = train_stretches(&what, (struct place){RH_SPILL_ACTIVATIONS, 1, least_ram(&what, RH_SPILL_ACTIVATIONS)});
	printf("paci: boundaries %lld bytes of memory (in memory %lld), a step writes %lld; %lld written\n", (long long)got.boundary_bytes,
	       (long long)expected.boundary_bytes, (long long)got.step_bytes, (long long)got.stats.written_bytes[0]);
	assert_true(got.stats.written_bytes[0] > 0 && got.stats.written_bytes[0] <= what.steps * got.step_bytes);
	assert_true(got.loss[0] == expected.loss[0]);
	assert_memory_equal(got.weights, expected.weights, (size_t)got.count * sizeof(float));
	free(got.weights);
	free(expected.weights);
}

int main(void)
{
	setenv("RH_SPILL_ELEMENTS", "3000", 1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_activations_from_nvme_are_those_in_memory),
	        cmocka_unit_test(test_loads_from_nvme_are_those_in_memory),
	        cmocka_unit_test(test_every_schedule_that_ends_its_steps_together),
	        cmocka_unit_test(test_budgets_hold_to_the_byte),
	        cmocka_unit_test(test_a_plan_says_the_same_bytes),
	        cmocka_unit_test(test_a_flipped_bit_is_named_before_it_is_used),
	        cmocka_unit_test(test_stages_that_update_themselves),
	};
	return cmocka_run_group_tests(tests, group_drives_make, group_drives_remove);
}
