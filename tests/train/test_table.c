/* The embedding's table by rows: a run whose steps send the rows alone that their tokens name, and get the gradients of these alone back,
 * trains as one does whose table travels whole, bit for bit, and its commands pass the checker. */
#include "train/rig.h"

#include "core/hooks.h"
#include "run/check.h"
#include "session/update.h"

#include <stdlib.h>

enum { STEPS = 4, CASES = 48, CASES_LONG = 1000 };

struct table_case {
	const char *model;
	int lora, bf16, stale, clips, evaluates, weights_first;
	enum rh_optim optim;
	enum rh_state_layout layout;
	int64_t micros, round;
	uint32_t cuts;
	char device[8];
};

struct outcome {
	double loss[STEPS], norm[STEPS], held_out[STEPS];
	uint64_t weights;
	int64_t table_rows; /* planned */
	int64_t up, down;   /* bytes of the table, and of its gradient */
};

static void configure(const struct table_case *is, struct rh_config *config)
{
	static char *targets[] = {"all-linear"};
	config->dtype = is->bf16 ? RH_BF16 : RH_F32;
	config->state_layout = is->layout;
	config->optim = is->optim;
	config->round_micro_batches = is->round;
	config->optimizer_staleness = is->stale;
	config->max_grad_norm = is->clips;
	config->weight_decay = 0.01;
	config->device = (char *)(uintptr_t)is->device;
	if (is->lora) {
		config->use_lora = 1;
		config->lora_r = 4;
		config->lora_alpha = 8;
		config->lora_target_modules = (struct rh_list){targets, 1, 1};
	}
}

/* Of bulk copies of the table, and of its gradient, to this room. */
static int64_t copied_to(const struct rh_session *session, enum rh_room room, enum rh_room or)
{
	const struct rh_lanes *lanes = rh_record_lanes(session->executor);
	int64_t bytes = 0;
	for (int64_t i = 0; i < lanes->commands; i++) {
		const struct rh_command *command = &lanes->command[i];
		if (command->kind == RH_COMMAND_COPY && command->block == rh_model_table(session->model) &&
		    (command->target.room == room || command->target.room == or))
			bytes += command->target.bytes;
	}
	return bytes;
}

static void check_lanes(const struct rh_session *session, const struct table_case *is)
{
	struct rh_check_options options;
	struct rh_check_fault fault;
	struct rh_check *check;
	rh_record_rooms(session->executor, &options);
	check_ok(rh_check_create(&options, &check));
	for (int64_t step = 0; step < STEPS; step++) {
		int64_t version = step > is->stale ? step - is->stale : 0;
		check_ok(rh_check_expect(check, &(struct rh_check_call){.step = step,
		                                                        .micro_batches = is->micros,
		                                                        .version = version,
		                                                        .trains = 1,
		                                                        .updates = 1,
		                                                        .clips = is->clips}));
		if (is->evaluates)
			check_ok(rh_check_expect(check,
			                         &(struct rh_check_call){.step = -1 - step, .micro_batches = 1, .version = step + 1}));
	}
	check_ok(rh_check_run(check, rh_record_lanes(session->executor), &fault));
	if (fault.position < 0)
		rh_check_finish(check, &fault);
	if (fault.position >= 0)
		fail_msg("%s", fault.text);
	rh_check_destroy(check);
}

static double evaluate(struct rig *rig, const struct rig_input *in)
{
	static struct rig_micro micro;
	double sum = 0;
	rig_micro_make(in, in->micros - 1, 0, &micro);
	check_ok(rh_executor_infer(rig->session.executor, &micro.batch, 1));
	for (int64_t i = 0; i < micro.batch.shape.head_rows; i++)
		sum += (double)micro.loss[i];
	return sum;
}

static void begin(struct rig *rig, const struct rig_input *in, const struct table_case *is, int64_t step, struct rig_flight *flight)
{
	struct rh_update update = {.settings = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01},
	                           .learning_rate = 1e-2,
	                           .scale = 1,
	                           .step = step + 1};
	rh_updater_open(rig->session.updater, &update, rig->config.max_grad_norm);
	rig_begin(rig, in, step % (in->micros - is->micros + 1), is->micros, step, flight);
}

static struct outcome run(const struct table_case *is, int by_rows)
{
	static struct rig_flight flight[2];
	struct outcome out = {.table_rows = 0};
	struct rig rig;
	int64_t cut[16], cuts = 0;
	assert_int_equal(setenv(RH_HOOK_TABLE_ROWS, by_rows ? "1" : "0", 1), 0);
	rig_open(&rig, is->model, NULL);
	struct rig_input in = rig_input(&rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = is->micros};
	configure(is, &rig.config);
	if (is->evaluates) {
		work.infer = work.train;
		work.infer_micro_batches = 1;
	}
	check_ok(rh_session_open(&rig.config, RH_SESSION_TRAINS, &rig.session));
	for (int l = 1; l + 1 < rig.session.model->layers; l++)
		if (is->cuts >> l & 1)
			cut[cuts++] = l;
	rig.config.backward_cuts = cut;
	rig.config.backward_cut_count = cuts;
	check_ok(rh_session_start(&rig.session, &work));
	out.table_rows = rig.session.plan.executor.table_rows;
	assert_true(by_rows || !out.table_rows);
	if (is->weights_first)
		rh_updater_weights_first(rig.session.updater);
	rh_record_begin(rig.session.executor);
	for (int64_t begun = 0, step = 0; step < STEPS; step++) {
		int64_t most = rh_executor_steps_in_flight(rig.session.executor);
		while (begun < STEPS && begun - step < most) {
			begin(&rig, &in, is, begun, &flight[begun % 2]);
			begun++;
		}
		out.loss[step] = rig_finish(&rig, &flight[step % 2]);
		check_ok(rh_updater_norm(rig.session.updater, &out.norm[step]));
		if (is->evaluates)
			out.held_out[step] = evaluate(&rig, &in);
	}
	check_ok(rh_updater_flush(rig.session.updater));
	check_lanes(&rig.session, is);
	out.up = copied_to(&rig.session, RH_ROOM_WEIGHTS, RH_ROOM_WEIGHTS);
	out.down = copied_to(&rig.session, RH_ROOM_HOST_GRADIENT, RH_ROOM_HOST_ROWS);
	out.weights = rig_weights_hash(&rig.session);
	rig.config.backward_cuts = NULL;
	rig_close(&rig);
	assert_int_equal(unsetenv(RH_HOOK_TABLE_ROWS), 0);
	return out;
}

static int are_equal(const struct outcome *a, const struct outcome *b)
{
	return !memcmp(a->loss, b->loss, sizeof a->loss) && !memcmp(a->norm, b->norm, sizeof a->norm) &&
	       !memcmp(a->held_out, b->held_out, sizeof a->held_out) && a->weights == b->weights;
}

static struct table_case draw(uint64_t *seed, int i)
{
	static const char *const models[] = {"qwen3", "llama2", "mistral", "gpt-oss", "qwen3-moe", "phi3"};
	static const enum rh_optim optims[] = {RH_OPTIM_ADAMW, RH_OPTIM_ADAMW, RH_OPTIM_LION, RH_OPTIM_ADAFACTOR};
	uint32_t random = check_random(seed);
	struct table_case is = {.model = models[i % 6],
	                        .lora = i % 3 == 2,
	                        .bf16 = random & 1,
	                        .stale = random >> 1 & 1,
	                        .clips = random >> 2 & 1,
	                        .weights_first = random >> 14 & 1,
	                        .optim = optims[random >> 3 & 3],
	                        .micros = 1 + (random >> 5) % 3,
	                        .cuts = random >> 16};
	is.round = random >> 8 & 1 ? 1 : 0;
	is.evaluates = !is.stale && random >> 9 & 1;
	is.layout = !is.bf16 ? RH_LAYOUT_PLAIN : is.optim == RH_OPTIM_ADAMW && random >> 10 & 1 ? RH_LAYOUT_SPLIT8 : RH_LAYOUT_SPLIT;
	snprintf(is.device, sizeof is.device, "cpu:%d", 1 + (int)((random >> 11) % 3));
	return is;
}

static void test_rows_train_as_the_whole_table_does(void **state)
{
	(void)state;
	int count = getenv("RH_LONG") ? CASES_LONG : CASES, stale = 0, rounds = 0, several = 0, frozen = 0, fewer = 0;
	uint64_t seed = check_seed();
	for (int i = 0; i < count; i++) {
		struct table_case is = draw(&seed, i);
		struct outcome whole = run(&is, 0), rows = run(&is, 1);
		assert_true(rows.table_rows > 0);
		if (!are_equal(&whole, &rows))
			fail_msg("%s%s %s on %s, %d micro-batches, rounds of %d, cuts %x, optimizer %d, stale %d: losses %.9g to %.9g, "
			         "whole %.9g to %.9g",
			         is.model, is.lora ? " LoRA" : "", is.bf16 ? "bf16" : "fp32", is.device, (int)is.micros, (int)is.round,
			         is.cuts, (int)is.optim, is.stale, rows.loss[0], rows.loss[STEPS - 1], whole.loss[0],
			         whole.loss[STEPS - 1]);
		if (!is.lora && !is.evaluates)
			assert_true(rows.up < whole.up && rows.down < whole.down && rows.down > 0);
		stale += is.stale;
		rounds += is.round == 1 && is.micros > 1;
		several += strcmp(is.device, "cpu:1") != 0;
		frozen += is.lora;
		fewer += rows.up < whole.up;
	}
	printf("%d runs of %d steps: %d on several devices, %d in several rounds, %d of stale updates, %d with a frozen table\n", count,
	       STEPS, several, rounds, stale, frozen);
	assert_true(several > count / 3 && rounds > count / 10 && stale > count / 4 && frozen && fewer > count / 3);
}

/* A table that is the head too, or that has another beside it, travels whole. */
static void test_other_tables_travel_whole(void **state)
{
	(void)state;
	static const char *const models[] = {"qwen2", "gpt2", "gemma3"};
	for (int i = 0; i < 3; i++) {
		struct table_case is = {.model = models[i], .micros = 1, .device = "cpu:1"};
		struct outcome whole = run(&is, 0), rows = run(&is, 1);
		assert_int_equal(rows.table_rows, 0);
		assert_int_equal(rows.up, whole.up);
		assert_int_equal(rows.weights, whole.weights);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_rows_train_as_the_whole_table_does),
	        cmocka_unit_test(test_other_tables_travel_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
