/* The checker judged: lanes of recorded runs are spoilt, and run in random legal orders by an interpreter that knows nothing of it. What it
 * passes never fails; what it refuses fails in one of 200 orders.
 *
 * Some failures need a rare order: of the two commands that the checker found at odds the one has to wait for all others, while the other
 * runs ahead. A third of the orders do so. Uploads for a step that does not come are not spoilt: nobody reads what they bring. */
#include "run/lane_case.h"
#include "run/lane_interpreter.h"

enum { MUTANTS = 500, ORDERS_PASSED = 100, ORDERS_REFUSED = 200, CASES = 24 };

/* Lanes that may be spoilt. */
static void lanes_copy(const struct rh_lanes *from, struct rh_lanes *to)
{
	*to = *from;
	to->command = malloc((size_t)from->commands * sizeof *to->command);
	to->wait = malloc((size_t)(from->waits + 1) * sizeof *to->wait);
	assert_true(to->command && to->wait);
	memcpy(to->command, from->command, (size_t)from->commands * sizeof *to->command);
	memcpy(to->wait, from->wait, (size_t)from->waits * sizeof *to->wait);
}

/* A run's, with positions counted from 0: they are numbers of commands from here on. */
static void lanes_copy_from_zero(const struct rh_lanes *recorded, struct rh_lanes *out)
{
	lanes_copy(recorded, out);
	for (int64_t i = 0; i < out->commands; i++)
		out->command[i].position -= recorded->first;
	for (int64_t i = 0; i < out->waits; i++)
		out->wait[i] -= recorded->first;
	out->first = 0;
}

static void lanes_drop(struct rh_lanes *lanes)
{
	free(lanes->command);
	free(lanes->wait);
}

static void remove_wait(struct rh_lanes *lanes, int64_t position, int which)
{
	struct rh_command *command = &lanes->command[position];
	int64_t *wait = &lanes->wait[command->first_wait];
	memmove(wait + which, wait + which + 1, (size_t)(command->waits - which - 1) * sizeof *wait);
	command->waits--;
}

/* Does the command come after the position all the same? By a walk back over lanes and waits. */
static int comes_after(const struct rh_lanes *lanes, int64_t position, int64_t other)
{
	char *reached = calloc((size_t)lanes->commands, 1);
	int64_t previous[LANE_MOST_LANES], *before = malloc((size_t)lanes->commands * sizeof *before);
	assert_true(reached && before);
	memset(previous, -1, sizeof previous);
	for (int64_t i = 0; i < lanes->commands; i++) {
		before[i] = previous[lanes->command[i].lane];
		previous[lanes->command[i].lane] = i;
	}
	reached[position] = 1;
	for (int64_t i = position; i > other; i--) {
		const struct rh_command *command = &lanes->command[i];
		if (!reached[i])
			continue;
		if (before[i] >= 0)
			reached[before[i]] = 1;
		for (int w = 0; w < command->waits; w++)
			reached[lanes->wait[command->first_wait + w]] = 1;
	}
	int is = reached[other];
	free(reached);
	free(before);
	return is;
}

/* Orders until one comes to something else; `orders` if none does. hurried, delayed: positions that are at odds, or -1. */
static int orders_until_failure(struct lane_machine *machine, const struct rh_lanes *lanes, uint64_t expected, int64_t hurried,
                                int64_t delayed, int orders, uint64_t *seed)
{
	int i = 0;
	while (i < orders && lane_run_randomly(machine, lanes, i % 3 ? hurried : -1, i % 3 == 2 ? delayed : -1, seed) == expected)
		i++;
	return i;
}

struct tally {
	int refused, failed, passed, implied, harmless;
	int dequantises; /* waits of DEQUANTISE that were missed */
};

/* Every wait of a run removed, one at a time. */
static void remove_every_wait(const struct lane_run *run, struct lane_machine *machine, const struct rh_lanes *lanes, uint64_t expected,
                              uint64_t *seed, struct tally *tally)
{
	for (int64_t i = 0; i < lanes->commands; i++)
		for (int w = 0; w < lanes->command[i].waits; w++) {
			struct rh_lanes without;
			int64_t other = lanes->wait[lanes->command[i].first_wait + w];
			lanes_copy(lanes, &without);
			remove_wait(&without, i, w);
			struct rh_check_fault fault = lane_check(run, &without);
			tally->refused += fault.position >= 0;
			tally->dequantises += fault.position >= 0 && lanes->command[i].kind == RH_COMMAND_DEQUANTISE;
			if (fault.position < 0 && comes_after(&without, i, other)) {
				tally->implied++;
			} else if (fault.position < 0) {
				assert_int_equal(orders_until_failure(machine, &without, expected, i, other, ORDERS_PASSED, seed),
				                 ORDERS_PASSED);
				tally->harmless++;
			}
			lanes_drop(&without);
		}
}

enum mutation { REMOVE_WAIT, SWAP, ROOM_NUMBER, RANGE, OPERAND, LABEL, DROP, MUTATIONS };
static const char *const mutation_names[] = {"wait removed",    "commands swapped", "another piece of a room", "another range",
                                             "another operand", "another label",    "command removed"};

static int is_compute(const struct rh_command *command)
{
	return command->kind <= RH_COMMAND_WEIGHT_GRADIENT;
}

/* 0: this command has nothing of the kind. */
static int mutate(struct rh_lanes *lanes, int64_t position, enum mutation mutation, int trainable, struct lane_random *random)
{
	struct rh_command *command = &lanes->command[position];
	int up = (int)lane_pick(random, 2) ? 1 : -1;
	switch (mutation) {
	case REMOVE_WAIT:
		if (!command->waits)
			return 0;
		remove_wait(lanes, position, (int)lane_pick(random, command->waits));
		return 1;
	case SWAP: { /* with the next on its lane; waits stay where they are */
		int64_t next = position + 1;
		while (next < lanes->commands && lanes->command[next].lane != command->lane)
			next++;
		if (next == lanes->commands)
			return 0;
		struct rh_command first = *command, second = lanes->command[next];
		*command = second;
		lanes->command[next] = first;
		struct rh_command *const both[] = {command, &lanes->command[next]};
		const struct rh_command *const were[] = {&first, &second};
		for (int i = 0; i < 2; i++) {
			both[i]->position = were[i]->position;
			both[i]->first_wait = were[i]->first_wait;
			both[i]->waits = were[i]->waits;
			both[i]->paces = were[i]->paces;
		}
		return 1;
	}
	case ROOM_NUMBER: {
		struct rh_place *place = lane_pick(random, 2) ? &command->source : &command->target;
		if (place->room < RH_ROOM_BOUNDARY || place->room == RH_ROOM_ARENA || is_compute(command))
			return 0;
		place->number += up;
		return 1;
	}
	case RANGE: {
		struct rh_place *place = lane_pick(random, 2) ? &command->source : &command->target;
		if (!place->room || place->room == RH_ROOM_ARENA || place->bytes < 2)
			return 0;
		if (lane_pick(random, 2) && command->kind == RH_COMMAND_COPY) { /* half of it alone */
			command->source.bytes /= 2;
			command->target.bytes /= 2;
		} else {
			place->first += up * place->bytes;
		}
		return 1;
	}
	case OPERAND: {
		int16_t *const operand[] = {&command->operands.micro, &command->operands.x,  &command->operands.y,
		                            &command->operands.dy,    &command->operands.dx, &command->operands.result};
		int which = (int)lane_pick(random, 8);
		if (!is_compute(command) || (which < 6 && *operand[which] < 0))
			return 0;
		if (which == 7)
			command->operands.is_backward_upload ^= 1;
		else if (which == 6)
			command->operands.weights += up * RH_ALIGN;
		else
			*operand[which] = rh_int16(*operand[which] + up);
		return which < 6 || command->kind != RH_COMMAND_WEIGHT_GRADIENT;
	}
	case LABEL:
		if (is_compute(command) && lane_pick(random, 2))
			command->micro_batch += up;
		else if (is_compute(command))
			command->step += up;
		else if (command->kind == RH_COMMAND_WEIGHTS_READY || command->kind == RH_COMMAND_GRADIENT_TAKEN)
			command->block += up;
		else
			return 0;
		return 1;
	default: /* what is left does nothing, as the weight gradient of a head does, of which nothing is deferred */
		if (command->kind == RH_COMMAND_WEIGHT_GRADIENT && !command->source.bytes)
			return 0;
		command->kind = RH_COMMAND_UPLOADS_OVER;
		command->block = trainable;
		return 1;
	}
}

static void small_case(int i, struct lane_case *is)
{
	uint64_t seed = 20000 + 97 * (uint64_t)i;
	do {
		*is = lane_case_random(seed++, 4);
		is->micro_batches = is->micro_batches > 3 ? 3 : is->micro_batches;
		is->last_micro_batches = is->last_micro_batches > is->micro_batches ? is->micro_batches : is->last_micro_batches;
		is->round = is->round > is->micro_batches ? is->micro_batches : is->round;
	} while (is->layers > 4 || is->devices > 3 || (is->lora != i % 2) || (i % 8 == 3 && !(is->narrow && is->layers > 2)));
}

static struct tally by_mutation[MUTATIONS], waits_removed;

/* Its share of all mutants. */
static void spoil(const struct lane_run *run, struct lane_machine *machine, const struct rh_lanes *lanes, uint64_t expected, uint64_t *seed)
{
	struct lane_random random = {run->is->seed};
	int trainable = 0;
	while (!run->session.model->block[trainable].trainable)
		trainable++;
	for (int made = 0; made < (MUTANTS + CASES - 1) / CASES;) {
		enum mutation mutation = (enum mutation)(made % MUTATIONS);
		int64_t position = lane_pick(&random, lanes->commands);
		struct rh_lanes spoilt;
		lanes_copy(lanes, &spoilt);
		if (lanes->command[position].step < LANE_STEPS && mutate(&spoilt, position, mutation, trainable, &random)) {
			struct tally *tally = &by_mutation[mutation];
			struct rh_check_fault fault = lane_check(run, &spoilt);
			int orders = fault.position < 0 ? ORDERS_PASSED : ORDERS_REFUSED;
			int64_t hurried = fault.other < 0 ? position : fault.position;
			int fails = orders_until_failure(machine, &spoilt, expected, hurried, fault.other, orders, seed) < orders;
			char text[512];
			rh_command_describe(lanes, &lanes->command[position], text, sizeof text);
			if (fault.position < 0 && fails) {
				lane_case_print(run->is);
				printf("passed, and fails: %s: %s\n", mutation_names[mutation], text);
			}
			if (fault.position >= 0 && !fails)
				printf("refused, and fails in no order: %s: %s\n  %s\n", mutation_names[mutation], text, fault.text);
			assert_true((fault.position >= 0) == fails);
			tally->refused += fault.position >= 0;
			tally->failed += fault.position >= 0 && fails;
			tally->passed += fault.position < 0;
			made++;
		}
		lanes_drop(&spoilt);
	}
}

/* Each command that makes packed weights plain reads them where they do not lie, or leaves the plain ones elsewhere. Returns how many. */
static int spoil_dequantise(const struct lane_run *run, struct lane_machine *machine, const struct rh_lanes *lanes, uint64_t expected)
{
	int commands = 0;
	for (int64_t i = 0; i < lanes->commands; i++) {
		if (lanes->command[i].kind != RH_COMMAND_DEQUANTISE)
			continue;
		for (int is_target = 0; is_target < 2; is_target++) {
			struct rh_lanes copy;
			lanes_copy(lanes, &copy);
			*(is_target ? &copy.command[i].target.first : &copy.command[i].operands.weights) += RH_ALIGN;
			struct rh_check_fault fault = lane_check(run, &copy);
			assert_true(fault.position >= 0 && (is_target || fault.position == i));
			assert_int_not_equal(lane_run_in_order(machine, &copy), expected);
			lanes_drop(&copy);
		}
		commands++;
	}
	return commands;
}

static void test_mutants_that_pass_never_fail_and_those_refused_do(void **state)
{
	(void)state;
	uint64_t seed = 1;
	int cases = 0, dequantised = 0, in_chunks = 0, narrow = 0;
	for (int i = 0; cases < CASES; i++) {
		static struct lane_run run;
		struct lane_case is;
		struct rh_lanes recorded;
		const struct rh_lanes *lanes = &recorded;
		struct lane_machine machine;
		struct rh_check_options options;
		small_case(i, &is);
		if (lane_run_open(&run, &is)) {
			rh_error_clear();
			lane_run_close(&run);
			continue;
		}
		cases++;
		in_chunks += is.chunks > 0;
		narrow += run.session.plan.stages.narrow_bytes && run.session.plan.stages.backward_stages > 2;
		lane_run_steps(&run);
		lanes_copy_from_zero(rh_record_lanes(run.session.executor), &recorded);
		assert_int_equal(lane_check(&run, lanes).position, -1);
		rh_record_rooms(run.session.executor, &options);
		lane_machine_open(&machine, &options);
		machine.clips = is.clips;
		uint64_t expected = lane_run_in_order(&machine, lanes);
		assert_true(expected != 0);
		assert_int_equal(orders_until_failure(&machine, lanes, expected, -1, -1, ORDERS_PASSED, &seed), ORDERS_PASSED);
		dequantised += spoil_dequantise(&run, &machine, lanes, expected);
		remove_every_wait(&run, &machine, lanes, expected, &seed, &waits_removed);
		spoil(&run, &machine, lanes, expected, &seed);
		lanes_drop(&recorded);
		lane_machine_close(&machine);
		lane_run_close(&run);
	}
	printf("every wait of %d runs removed: %d found, %d of them of commands that dequantise, %d implied by the others, %d that no "
	       "result "
	       "needs (no order of %d fails)\n",
	       cases, waits_removed.refused, waits_removed.dequantises, waits_removed.implied, waits_removed.harmless, ORDERS_PASSED);
	printf("%d commands that dequantise spoilt, each told\n", dequantised);
	assert_true(waits_removed.dequantises > 0 && dequantised > 0 && in_chunks > 0 && narrow > 0);
	for (int i = 0; i < MUTATIONS; i++)
		printf("%s: %d refused, of which %d fail in at least one of %d orders; %d passed, none of which fails\n", mutation_names[i],
		       by_mutation[i].refused, by_mutation[i].failed, ORDERS_REFUSED, by_mutation[i].passed);
}

/* Spoils what inference computes last, then the copy of its results: each is told. Returns how many commands were spoilt. */
static int spoil_inference(const struct lane_run *run, struct lane_machine *machine, const struct rh_lanes *lanes, uint64_t expected)
{
	int spoilt = 0;
	for (int64_t i = 0; i < lanes->commands; i++) {
		const struct rh_command *command = &lanes->command[i];
		int is_top = command->kind == RH_COMMAND_FORWARD && command->hi == run->session.model->layers;
		struct rh_lanes copy;
		if (command->step >= 0 || (!is_top && command->target.room != RH_ROOM_HOST_RESULT))
			continue;
		lanes_copy(lanes, &copy);
		if (is_top)
			copy.command[i].operands.weights += RH_ALIGN;
		else
			copy.command[i].source.number ^= 1;
		assert_int_not_equal(lane_run_in_order(machine, &copy), expected);
		lanes_drop(&copy);
		spoilt++;
	}
	return spoilt;
}

static void test_results_of_inference_are_part_of_the_outcome(void **state)
{
	(void)state;
	int spoilt = 0;
	for (int i = 0, cases = 0; cases < 8; i++) {
		static struct lane_run run;
		struct lane_case is;
		struct lane_machine machine;
		struct rh_check_options options;
		small_case(i, &is);
		int rc = is.evaluates && !is.boxes ? lane_run_open(&run, &is) : -ENOENT;
		if (!rc) {
			lane_run_steps(&run);
			rh_record_rooms(run.session.executor, &options);
			lane_machine_open(&machine, &options);
			machine.clips = is.clips;
			struct rh_lanes lanes;
			lanes_copy_from_zero(rh_record_lanes(run.session.executor), &lanes);
			spoilt += spoil_inference(&run, &machine, &lanes, lane_run_in_order(&machine, &lanes));
			lanes_drop(&lanes);
			lane_machine_close(&machine);
			cases++;
		}
		rh_error_clear();
		if (is.evaluates && !is.boxes)
			lane_run_close(&run);
	}
	printf("%d commands of inference spoilt, each told\n", spoilt);
	assert_true(spoilt > 0);
}

int main(void)
{
	setenv(RH_HOOK_PIECE_BYTES, "16384", 1);
	setenv(RH_HOOK_SPILL_ELEMENTS, "8192", 1);
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_mutants_that_pass_never_fail_and_those_refused_do),
	                                   cmocka_unit_test(test_results_of_inference_are_part_of_the_outcome)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
