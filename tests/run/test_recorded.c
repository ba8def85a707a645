/* Today's executor on lanes, as the checker sees it: random configurations in virtual time. */
#include "run/lane_case.h"

#include <stdlib.h>

/* All commands up to the one at fault. */
static void dump(const struct rh_lanes *lanes, int64_t end)
{
	for (int64_t i = 0; i <= end && i < lanes->commands; i++) {
		const struct rh_command *command = &lanes->command[i];
		char text[512];
		rh_command_describe(lanes, command, text, sizeof text);
		printf("    %s; waits for", text);
		for (int w = 0; w < command->waits; w++)
			printf(" %lld", (long long)lanes->wait[command->first_wait + w]);
		printf("\n");
	}
}

static int has_command(const struct rh_lanes *lanes, enum rh_command_kind kind, enum rh_room from)
{
	for (int64_t i = 0; i < lanes->commands; i++)
		if (lanes->command[i].kind == kind && lanes->command[i].source.room == from)
			return 1;
	return 0;
}

static int count_commands(const struct rh_lanes *lanes, enum rh_command_kind kind)
{
	int count = 0;
	for (int64_t i = 0; i < lanes->commands; i++)
		count += lanes->command[i].kind == kind;
	return count;
}

static int reads_pages(const struct rh_lanes *lanes)
{
	return has_command(lanes, RH_COMMAND_READ, RH_ROOM_PAGES);
}

static int writes_records(const struct rh_lanes *lanes)
{
	return has_command(lanes, RH_COMMAND_WRITE, RH_ROOM_HOST_BOUNDARY);
}

static int brings_activations_back(const struct rh_lanes *lanes)
{
	return has_command(lanes, RH_COMMAND_COPY, RH_ROOM_HOST_SAVED);
}

static int64_t from_environment(const char *name, int64_t otherwise)
{
	const char *text = getenv(name);
	return text ? strtol(text, NULL, 10) : otherwise;
}

static void test_recorded_runs_pass_the_checker(void **state)
{
	(void)state;
	int is_long = getenv("RH_LONG") != NULL, most = is_long ? LANE_MOST_MICROS : 24;
	int64_t first = from_environment("RH_LANE_SEED", 1), count = from_environment("RH_LANE_CASES", is_long ? 10000 : 500);
	int64_t commands = 0, waits = 0, longest = 0;
	int ran = 0, absent = 0, faults = 0;
	struct {
		int capped, weights, activations, generating, boxes, shared, delayed, packed, in_arena, saved, prepared, chunks,
		        spilled_chunks, narrow, shared_saved, rows, trained_rows;
	} kinds = {0};
	int64_t seed = first;
	for (; ran < count; seed++) {
		static struct lane_run run;
		struct lane_case is = lane_case_random((uint64_t)seed, most);
		const struct rh_lanes *lanes;
		if (lane_run_open(&run, &is)) {
			absent++;
			rh_error_clear();
			lane_run_close(&run);
			continue;
		}
		lane_run_steps(&run);
		lanes = rh_record_lanes(run.session.executor);
		struct rh_check_fault fault = lane_check(&run, lanes);
		if (fault.position >= 0) {
			lane_case_print(&is);
			printf("  %s\n", fault.text);
			if (count == 1)
				dump(lanes, fault.position);
			faults++;
		}
		ran++;
		kinds.capped += is.cap_bytes > 0;
		kinds.generating += is.generates;
		kinds.boxes += is.boxes > 0;
		kinds.delayed += is.delay > 0;
		kinds.chunks += has_command(lanes, RH_COMMAND_CARRY, RH_ROOM_NONE);
		kinds.spilled_chunks += is.chunks && writes_records(lanes);
		kinds.narrow += run.session.plan.stages.narrow_bytes && run.session.plan.stages.backward_stages > 2;
		kinds.shared += rh_model_shared_block(run.session.model) >= 0;
		if (rh_model_is_packed(run.session.model)) /* where plain matrices have a room it is filled, else nothing fills one */
			assert_int_equal(run.session.plan.stages.plain_bytes > 0, has_command(lanes, RH_COMMAND_DEQUANTISE, RH_ROOM_NONE));
		if (run.session.plan.stages.forward_stages + run.session.plan.stages.backward_stages == 1 &&
		    !is.is_eight) /* what lies there stays */
			assert_true(count_commands(lanes, RH_COMMAND_DEQUANTISE) <= is.devices);
		kinds.prepared += is.is_eight && has_command(lanes, RH_COMMAND_DEQUANTISE, RH_ROOM_NONE);
		kinds.packed += rh_model_is_packed(run.session.model);
		kinds.in_arena += rh_model_is_packed(run.session.model) && !run.session.plan.stages.plain_bytes;
		kinds.weights += reads_pages(lanes);
		kinds.activations += writes_records(lanes);
		kinds.saved += brings_activations_back(lanes);
		kinds.rows += run.session.plan.executor.table_rows > 0;
		kinds.trained_rows += has_command(lanes, RH_COMMAND_GRADIENT_ARRIVED, RH_ROOM_HOST_ROWS);
		kinds.shared_saved += is.devices > 1 && brings_activations_back(lanes);
		commands += lanes->commands;
		waits += lanes->waits;
		longest = lanes->commands > longest ? lanes->commands : longest;
		lane_run_close(&run);
	}
	printf("seeds %lld to %lld: %d runs of %d steps, %lld commands (%lld at most), %lld waits; %d configurations that there are not\n",
	       (long long)first, (long long)seed - 1, ran, LANE_STEPS, (long long)commands, (long long)longest, (long long)waits, absent);
	printf("1 to 8 layers of 11 models (one of experts, one of windows), LoRA and full, fp32 and bf16, tied or not, 1 to 8 devices, 1 "
	       "to "
	       "%d micro-batches, a last step of fewer, rounds, cuts, 14 schedules, stale, clipping, evaluation; %d with caps of 64 KiB to "
	       "4 "
	       "MiB, %d with weights and %d with activations on NVMe, %d that generate, %d of one box among 2 to 4, %d of these with "
	       "half of a tied table; %d with updates beside the stages; %d with packed weights, which %d make plain for each product; %d "
	       "save activations, %d of them on several devices; %d of texts in chunks, %d of these with activations on NVMe; %d prepare "
	       "weights "
	       "for 8-bit products; %d with layers' inputs in 8 bits; %d whose table travels by rows, %d of these trained\n",
	       most, kinds.capped, kinds.weights, kinds.activations, kinds.generating, kinds.boxes, kinds.shared, kinds.delayed,
	       kinds.packed, kinds.in_arena, kinds.saved, kinds.shared_saved, kinds.chunks, kinds.spilled_chunks, kinds.prepared,
	       kinds.narrow, kinds.rows, kinds.trained_rows);
	assert_int_equal(faults, 0);
	assert_true(ran > absent);
	assert_true(count < 500 || (kinds.packed > kinds.in_arena && kinds.in_arena && kinds.saved > kinds.shared_saved &&
	                            kinds.shared_saved && kinds.chunks && kinds.spilled_chunks && kinds.prepared && kinds.narrow &&
	                            kinds.rows > kinds.trained_rows && kinds.trained_rows > 20));
}

/* Runs the seed's configuration, which the checker passes. */
static void pass_seed(struct lane_run *run, const struct lane_case *is)
{
	assert_int_equal(lane_run_open(run, is), 0);
	lane_run_steps(run);
	struct rh_check_fault fault = lane_check(run, rh_record_lanes(run->session.executor));
	if (fault.position >= 0)
		fail_msg("%s", fault.text);
	lane_run_close(run);
}

/* Rows of fewer chunks than others, and gradients that leave in more gaps than such a row has micro-batches: each gradient arrives. */
static void test_gradients_leave_before_a_short_row_ends(void **state)
{
	(void)state;
	static struct lane_run run;
	struct lane_case is = lane_case_random(823, LANE_MOST_MICROS);
	assert_int_equal(is.chunks, 3);
	pass_seed(&run, &is); /* ends: without that gradient the norm would be waited for */
}

/* Of adapters the lowest block makes no gradient of its input; a stage of another block does, of a matrix that it makes plain. */
static void test_a_packed_block_has_room_for_its_input_gradient(void **state)
{
	(void)state;
	static struct lane_run run;
	struct lane_case is = lane_case_random(10127, LANE_MOST_MICROS);
	assert_true(is.lora && is.packed);
	pass_seed(&run, &is);
}

/* What is drawn has few of them: states before chunks, and gradients that go down from chunk to chunk. */
static void test_linear_attention_in_chunks_passes_the_checker(void **state)
{
	(void)state;
	static struct lane_run run;
	int passed = 0;
	for (uint64_t seed = 1; passed < 4; seed++) {
		struct lane_case is = lane_case_random(seed, LANE_MOST_MICROS);
		if (!is.chunks || strcmp(is.model, "qwen3.5"))
			continue;
		int rc = lane_run_open(&run, &is);
		passed += !rc;
		rh_error_clear();
		lane_run_close(&run);
		if (!rc)
			pass_seed(&run, &is);
	}
}

int main(void)
{
	setenv(RH_HOOK_PIECE_BYTES, "1024", 1); /* these models are small: several pieces all the same */
	setenv(RH_HOOK_SPILL_ELEMENTS, "1024", 1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_gradients_leave_before_a_short_row_ends),
	        cmocka_unit_test(test_a_packed_block_has_room_for_its_input_gradient),
	        cmocka_unit_test(test_linear_attention_in_chunks_passes_the_checker),
	        cmocka_unit_test(test_recorded_runs_pass_the_checker),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
