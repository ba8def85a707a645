/* The checker on lanes made by hand: what goes to drives and to the boxes beside this one. (Whole runs: test_recorded.c; spoilt ones:
 * test_mutants.c.) */
#include "run/lane_case.h"

#include "core/alloc.h"
#include "schedule/boundary.h"

enum { RECEIVES, SENDS, READS, WRITES, UP, DOWN, LANES };

/* A boundary comes from a link, goes up to a device, down again to another buffer, from there to a record and back into a third, and to a
 * link. Twice, through the same buffers and record. */
enum { RECEIVE, COPY_UP, COPY_DOWN, WRITE, READ, SEND, COMMANDS };

struct hand {
	struct rh_lanes lanes;
	int64_t at[2 * COMMANDS];
	int added;
};

static struct rh_place host(enum rh_room room, int number, int64_t bytes)
{
	return (struct rh_place){.room = room, .device = -1, .number = number, .bytes = bytes};
}

/* `before`: numbers of the commands that this one waits for, -1: none. */
static void add(struct hand *hand, enum rh_command_kind kind, int lane, int micro_batch, struct rh_place from, struct rh_place to,
                const int before[2])
{
	struct rh_command command = {.kind = kind,
	                             .lane = lane,
	                             .micro_batch = micro_batch,
	                             .block = -1,
	                             .boundary = RH_BOUNDARY_ACTIVATION,
	                             .lo = 1,
	                             .hi = 1,
	                             .tokens = 1,
	                             .source = from,
	                             .target = to};
	struct rh_waits waits = {0};
	for (int i = 0; i < 2; i++)
		if (before[i] >= 0) {
			int64_t position = hand->at[before[i]];
			check_ok(rh_waits_add(&waits,
			                      (struct rh_wait){position, rh_command_at(&hand->lanes, position)->lane, RH_WAIT_NEEDS}));
		}
	hand->at[hand->added++] = hand->lanes.first + hand->lanes.commands;
	check_ok(rh_lanes_add(&hand->lanes, &command, &waits));
	rh_free(waits.wait);
}

static void make(struct hand *hand, int64_t bytes)
{
	static const struct rh_lane lane[LANES] = {[RECEIVES] = {.queue = RH_QUEUE_RECEIVES},
	                                           [SENDS] = {.queue = RH_QUEUE_SENDS},
	                                           [READS] = {.queue = RH_QUEUE_READS},
	                                           [WRITES] = {.queue = RH_QUEUE_WRITES},
	                                           [UP] = {.queue = RH_QUEUE_STREAM, .stream = RH_STREAM_ACTIVATIONS_UP},
	                                           [DOWN] = {.queue = RH_QUEUE_STREAM, .stream = RH_STREAM_ACTIVATIONS_DOWN}};
	const struct rh_place none = {.device = -1}, device = {RH_ROOM_BOUNDARY, 0, 0, 0, bytes}, record = host(RH_ROOM_RECORD, 0, bytes);
	*hand = (struct hand){0};
	for (int i = 0; i < LANES; i++)
		assert_int_equal(rh_lanes_add_lane(&hand->lanes, lane[i]), i);
	for (int m = 0; m < 2; m++) {
		int now = m * COMMANDS, was = now - COMMANDS;
		const int before[COMMANDS][2] = {{m ? was + COPY_UP : -1, -1},          {now + RECEIVE, m ? was + COPY_DOWN : -1},
		                                 {now + COPY_UP, m ? was + WRITE : -1}, {now + COPY_DOWN, m ? was + READ : -1},
		                                 {now + WRITE, m ? was + SEND : -1},    {now + READ, -1}};
		add(hand, RH_COMMAND_RECEIVE, RECEIVES, m, none, host(RH_ROOM_HOST_BOUNDARY, 0, bytes), before[RECEIVE]);
		add(hand, RH_COMMAND_COPY, UP, m, host(RH_ROOM_HOST_BOUNDARY, 0, bytes), device, before[COPY_UP]);
		add(hand, RH_COMMAND_COPY, DOWN, m, device, host(RH_ROOM_HOST_BOUNDARY, 1, bytes), before[COPY_DOWN]);
		add(hand, RH_COMMAND_WRITE, WRITES, m, host(RH_ROOM_HOST_BOUNDARY, 1, bytes), record, before[WRITE]);
		add(hand, RH_COMMAND_READ, READS, m, record, host(RH_ROOM_HOST_BOUNDARY, 2, bytes), before[READ]);
		add(hand, RH_COMMAND_SEND, SENDS, m, host(RH_ROOM_HOST_BOUNDARY, 2, bytes), none, before[SEND]);
	}
}

static struct rh_check_fault judge(const struct lane_run *run, const struct rh_lanes *lanes)
{
	struct rh_check_options options;
	struct rh_check_fault fault;
	struct rh_check *check;
	int64_t bytes = lanes->command[RECEIVE].target.bytes;
	rh_record_rooms(run->session.executor, &options);
	options.room[RH_ROOM_HOST_BOUNDARY] = (struct rh_room_size){3, bytes};
	options.room[RH_ROOM_RECORD] = options.room[RH_ROOM_BOUNDARY] = (struct rh_room_size){1, bytes};
	check_ok(rh_check_create(&options, &check));
	check_ok(rh_check_expect(check, &(struct rh_check_call){.micro_batches = 2}));
	check_ok(rh_check_run(check, lanes, &fault));
	rh_check_destroy(check);
	return fault;
}

static void refuse(const struct lane_run *run, struct hand *hand, const char *says)
{
	struct rh_check_fault fault = judge(run, &hand->lanes);
	if (fault.position < 0 || !strstr(fault.text, says))
		fail_msg("'%s', not '%s'", fault.position < 0 ? "no fault" : fault.text, says);
	rh_lanes_free(&hand->lanes);
}

static void test_commands_of_drives_and_links_are_held_to_their_contents_and_order(void **state)
{
	(void)state;
	struct lane_case is = {.model = "qwen3",
	                       .schedule = "gpipe",
	                       .layers = 2,
	                       .devices = 1,
	                       .micro_batches = 2,
	                       .last_micro_batches = 2,
	                       .forward_cuts = -1,
	                       .backward_cuts = -1};
	static struct lane_run run;
	struct hand hand;
	check_ok(lane_run_open(&run, &is));
	int64_t bytes = rh_dtype_bytes(RH_F32, run.session.model->config->hidden_size);
	make(&hand, bytes);
	struct rh_check_fault fault = judge(&run, &hand.lanes);
	if (fault.position >= 0)
		fail_msg("%s", fault.text);
	int waits = 0;
	for (int64_t i = 0; i < hand.lanes.commands; i++)
		waits += hand.lanes.command[i].waits;
	rh_lanes_free(&hand.lanes);
	int found = 0;
	for (int64_t i = 0; i < 2 * COMMANDS; i++)
		for (int w = 0;; w++) { /* each wait, one at a time */
			make(&hand, bytes);
			struct rh_command *command = &hand.lanes.command[i];
			if (w == command->waits) {
				rh_lanes_free(&hand.lanes);
				break;
			}
			int64_t *wait = &hand.lanes.wait[command->first_wait];
			memmove(wait + w, wait + w + 1, (size_t)(command->waits - w - 1) * sizeof *wait);
			command->waits--;
			refuse(&run, &hand, "nothing orders the two");
			found++;
		}
	assert_int_equal(found, waits);
	make(&hand, bytes);
	hand.lanes.command[COMMANDS + SEND].micro_batch = 0;
	refuse(&run, &hand,
	       "needs activation at layer 1, step 0, micro-batch 0 (depth 0, 0 deferred), and finds activation at layer 1, step 0, "
	       "micro-batch 1");
	make(&hand, bytes);
	hand.lanes.command[SEND].boundary = RH_BOUNDARY_GRADIENT;
	refuse(&run, &hand, "needs gradient at layer 1");
	make(&hand, bytes);
	hand.lanes.command[READ].source.number = 1;
	refuse(&run, &hand, "and piece 1 of a room of 1");
	make(&hand, bytes);
	hand.lanes.command[WRITE].source.number = 2;
	refuse(&run, &hand, "copies what nobody has written");
	make(&hand, bytes);
	hand.lanes.lane[RECEIVES].queue = RH_QUEUE_SENDS;
	refuse(&run, &hand, "is not on a link's lane for it");
	lane_run_close(&run);
}

/* In memory, too. */
static void test_boundaries_beyond_the_plans_buffers_are_refused(void **state)
{
	(void)state;
	struct lane_case is = {.model = "qwen3",
	                       .schedule = "gpipe",
	                       .layers = 4,
	                       .devices = 2,
	                       .micro_batches = 4,
	                       .last_micro_batches = 4,
	                       .forward_cuts = -1,
	                       .backward_cuts = -1};
	static struct lane_run run;
	struct rh_check_options options;
	int accepted = 0;
	check_ok(lane_run_open(&run, &is));
	lane_run_steps(&run);
	rh_record_rooms(run.session.executor, &options);
	int buffers = options.room[RH_ROOM_HOST_BOUNDARY].count;
	assert_true(buffers > 1);
	for (int most = buffers; most > 0; most--) {
		struct rh_check_fault fault;
		struct rh_check *check;
		options.room[RH_ROOM_HOST_BOUNDARY].count = most;
		check_ok(rh_check_create(&options, &check));
		for (int i = 0; i < run.calls; i++)
			check_ok(rh_check_expect(check, &run.call[i]));
		check_ok(rh_check_run(check, rh_record_lanes(run.session.executor), &fault));
		rh_check_destroy(check);
		accepted += fault.position < 0;
		assert_true(fault.position < 0 || strstr(fault.text, "of a room of"));
	}
	printf("%d buffers; the program needs %d\n", buffers, buffers - accepted + 1);
	assert_true(accepted > 0 && accepted < buffers);
	lane_run_close(&run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_commands_of_drives_and_links_are_held_to_their_contents_and_order),
	                                   cmocka_unit_test(test_boundaries_beyond_the_plans_buffers_are_refused)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
