/* The protocol of a link without threads or clocks: two sessions over a line that loses, doubles, holds up and reorders frames, in a time
 * of its own. */
#include "check.h"

#include "link/protocol.h"

#include <string.h>

enum { CAPACITY = 8, MESSAGES = 40, LONGEST = 3 * RH_LINK_FRAME_BYTES, FLYING = 4096 };

struct flying {
	int is_there;
	int64_t arrival_ns;
	unsigned char header[FRAME_HEADER];
	struct frame frame;
};

struct line {
	struct flying *flying;
	uint64_t seed;
	double lost, doubled;
	int64_t latency_ns, jitter_ns;
};

struct end {
	struct protocol protocol;
	struct line line; /* towards this end */
	char *out, *in;
	int64_t size[MESSAGES], posted;
};

static double draw(uint64_t *seed)
{
	return (double)check_random(seed) / 4294967296.0;
}

static void launch(struct line *line, const struct frame *frame, int64_t now_ns)
{
	if (draw(&line->seed) < line->lost)
		return;
	int copies = 1 + (draw(&line->seed) < line->doubled);
	for (int i = 0; i < FLYING && copies; i++) {
		if (line->flying[i].is_there)
			continue;
		line->flying[i] =
		        (struct flying){.is_there = 1,
		                        .arrival_ns = now_ns + line->latency_ns + (int64_t)(draw(&line->seed) * (double)line->jitter_ns),
		                        .frame = *frame};
		frame_encode(frame, line->flying[i].header);
		copies--;
	}
	assert_int_equal(copies, 0); /* credits bound what is on its way */
}

static void land(struct end *end, const struct flying *flying, int64_t now_ns)
{
	struct frame frame;
	char *into = NULL;
	check_ok(frame_decode(flying->header, &frame));
	assert_true(frame_check(flying->header, frame_hash(flying->frame.payload, frame.length)));
	if (frame.type == FRAME_DATA)
		check_ok(protocol_expect(&end->protocol, &frame, &into));
	if (into && frame.length)
		memcpy(into, flying->frame.payload, frame.length);
	check_ok(protocol_take(&end->protocol, now_ns, &frame, flying->frame.payload));
}

static void post_more(struct end *end)
{
	while (end->posted < MESSAGES && end->posted < end->protocol.out.done + CAPACITY &&
	       end->posted < end->protocol.in.done + CAPACITY) {
		int64_t at = end->posted++;
		check_ok(protocol_send(&end->protocol, (uint64_t)at, end->out + at * LONGEST, end->size[at]));
		check_ok(protocol_receive(&end->protocol, (uint64_t)at, end->in + at * LONGEST, end->size[at]));
	}
}

static void turn(struct end *end, struct end *other, int64_t now_ns)
{
	struct frame frame;
	post_more(end);
	for (int i = 0; i < FLYING; i++) {
		struct flying *flying = &end->line.flying[i];
		if (!flying->is_there || flying->arrival_ns > now_ns)
			continue;
		flying->is_there = 0;
		land(end, flying, now_ns);
	}
	for (int frames = 0; frames < 4 && protocol_next(&end->protocol, now_ns, &frame); frames++)
		launch(&other->line, &frame, now_ns);
}

static void cut(struct end *ends, int64_t now_ns)
{
	for (int i = 0; i < 2; i++) {
		memset(ends[i].line.flying, 0, FLYING * sizeof *ends[i].line.flying);
		protocol_rewind(&ends[i].protocol, now_ns);
	}
}

static void make_end(struct end *end, int which, uint64_t *seed, const int64_t *size)
{
	int64_t retry_ns = 40000000;
	check_ok(protocol_open(&end->protocol, 1 + (uint64_t)which, CAPACITY, retry_ns, retry_ns));
	end->protocol.peer = 2 - (uint64_t)which;
	protocol_rewind(&end->protocol, 1);
	memcpy(end->size, size, sizeof end->size);
	end->posted = 0;
	memset(end->in, 0, (size_t)MESSAGES * LONGEST);
	memset(end->line.flying, 0, FLYING * sizeof *end->line.flying);
	end->line.seed = check_random(seed) | 1u;
	end->line.lost = draw(seed) < 0.5 ? 0.2 * draw(seed) : 0;
	end->line.doubled = draw(seed) < 0.5 ? 0.2 * draw(seed) : 0;
	end->line.latency_ns = (int64_t)(draw(seed) * 2e7);
	end->line.jitter_ns = (int64_t)(draw(seed) * 1e7);
	for (int64_t i = 0; i < (int64_t)MESSAGES * LONGEST; i += 64)
		end->out[i] = (char)check_random(seed);
}

static int is_over(const struct end *ends)
{
	return ends[0].protocol.out.done == MESSAGES && ends[0].protocol.in.done == MESSAGES && ends[1].protocol.out.done == MESSAGES &&
	       ends[1].protocol.in.done == MESSAGES;
}

static void run_one(struct end *ends, uint64_t *seed)
{
	int64_t size[MESSAGES], now_ns = 1;
	for (int i = 0; i < MESSAGES; i++)
		size[i] = check_random(seed) % 4 ? check_random(seed) % 2000 : check_random(seed) % LONGEST;
	for (int i = 0; i < 2; i++)
		make_end(&ends[i], i, seed, size);
	double cuts = draw(seed) < 0.5 ? 0.002 : 0;
	for (int turns = 0; !is_over(ends); turns++, now_ns += 1000000) {
		assert_true(turns < 200000);
		if (draw(seed) < cuts)
			cut(ends, now_ns);
		for (int i = 0; i < 2; i++)
			turn(&ends[i], &ends[!i], now_ns);
	}
	for (int i = 0; i < 2; i++)
		for (int m = 0; m < MESSAGES; m++)
			assert_memory_equal(ends[i].out + m * LONGEST, ends[!i].in + m * LONGEST, (size_t)size[m]);
	for (int i = 0; i < 2; i++)
		protocol_close(&ends[i].protocol);
}

static void test_session_any_line_delivers_once_and_in_order(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	struct end *ends = calloc(2, sizeof *ends);
	assert_non_null(ends);
	for (int i = 0; i < 2; i++) {
		ends[i].out = calloc(MESSAGES, LONGEST);
		ends[i].in = calloc(MESSAGES, LONGEST);
		ends[i].line.flying = calloc(FLYING, sizeof(struct flying));
		assert_true(ends[i].out && ends[i].in && ends[i].line.flying);
	}
	int lines = getenv("RH_LONG") ? 2000 : CHECK_THREADS_ONLY ? 2 : 60;
	for (int i = 0; i < lines; i++)
		run_one(ends, &seed);
	printf("%d lines: up to 20%% lost, 20%% doubled, 20 ms latency, 10 ms jitter, cuts\n", lines);
	for (int i = 0; i < 2; i++) {
		free(ends[i].out);
		free(ends[i].in);
		free(ends[i].line.flying);
	}
	free(ends);
}

static void take_state_of(struct protocol *protocol, uint64_t done, uint64_t offset, uint64_t posted, int expected)
{
	struct frame frame = {.type = FRAME_STATE, .a = done, .b = offset, .c = posted, .d = protocol->id};
	assert_int_equal(protocol_take(protocol, 1, &frame, NULL), expected);
}

/* bytes: (10), a message of one piece, which must outlive the protocol. */
static void open_and_send(struct protocol *protocol, const char *bytes)
{
	check_ok(protocol_open(protocol, 5, CAPACITY, 1, INT64_MAX));
	protocol_rewind(protocol, 0);
	check_ok(protocol_send(protocol, 1, bytes, 10));
}

/* A peer that lies about what it has is a fault, not a wild pointer. */
static void test_session_acknowledging_more_than_was_sent_is_a_fault(void **state)
{
	(void)state;
	struct protocol protocol;
	char bytes[10] = {0};
	open_and_send(&protocol, bytes);
	take_state_of(&protocol, 2, 0, 2, -EPROTO);
	take_state_of(&protocol, 1, 1, 2, -EPROTO);
	take_state_of(&protocol, 0, 10, 2, -EPROTO);
	take_state_of(&protocol, 0, UINT64_MAX, 2, -EPROTO);
	take_state_of(&protocol, UINT64_MAX, 0, 2, -EPROTO);
	take_state_of(&protocol, 1, 0, 0, -EPROTO);
	assert_int_equal(protocol.out.done, 0);
	take_state_of(&protocol, 0, 9, 1, 0);
	take_state_of(&protocol, 1, 0, 1, 0);
	assert_int_equal(protocol.out.done, 1);
	protocol_close(&protocol);
}

static void test_session_unasked_or_unlike_pieces_are_faults(void **state)
{
	(void)state;
	struct protocol protocol;
	char bytes[10], *into;
	check_ok(protocol_open(&protocol, 5, CAPACITY, 1, INT64_MAX));
	protocol_rewind(&protocol, 0);
	struct frame frame = {.type = FRAME_DATA, .length = 10, .a = 0, .b = 0, .c = 10, .d = 3};
	assert_int_equal(protocol_expect(&protocol, &frame, &into), -EPROTO); /* nothing is posted */
	check_ok(protocol_receive(&protocol, 3, bytes, sizeof bytes));
	check_ok(protocol_expect(&protocol, &frame, &into));
	assert_ptr_equal(into, bytes);
	frame.c = 11;
	assert_int_equal(protocol_expect(&protocol, &frame, &into), -EPROTO);
	frame.c = 10;
	frame.d = 4;
	assert_int_equal(protocol_expect(&protocol, &frame, &into), -EPROTO);
	frame.d = 3;
	frame.b = 1; /* not where the message stands: dropped */
	check_ok(protocol_expect(&protocol, &frame, &into));
	assert_null(into);
	protocol_close(&protocol);
}

/* An echo of a time that was never sent is no round trip, whatever number a peer says. */
static void test_session_echo_of_a_time_to_come_is_no_latency(void **state)
{
	(void)state;
	struct protocol protocol;
	const uint64_t times[] = {UINT64_MAX, (UINT64_C(1) << 63) + 1, UINT64_C(1) << 63, 1001, 1000};
	check_ok(protocol_open(&protocol, 5, CAPACITY, 1, INT64_MAX));
	for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
		check_ok(protocol_take(&protocol, 1000, &(struct frame){.type = FRAME_PONG, .a = times[i]}, NULL));
		assert_int_equal(protocol.shortest_echo_ns, 0);
	}
	check_ok(protocol_take(&protocol, 1000, &(struct frame){.type = FRAME_PONG, .a = 600}, NULL));
	check_ok(protocol_take(&protocol, 1000, &(struct frame){.type = FRAME_PONG, .a = 500}, NULL));
	assert_int_equal(protocol.shortest_echo_ns, 400);
	protocol_close(&protocol);
}

/* A peer that acknowledges what it had from an earlier process at this address has not received anything of this one. */
static void test_session_acknowledgement_meant_for_an_earlier_process_is_ignored(void **state)
{
	(void)state;
	struct protocol protocol;
	char bytes[10] = {0};
	open_and_send(&protocol, bytes);
	check_ok(protocol_take(&protocol, 1, &(struct frame){.type = FRAME_STATE, .a = 1, .c = 1, .d = 4}, NULL));
	assert_int_equal(protocol.out.done, 0);
	check_ok(protocol_take(&protocol, 1, &(struct frame){.type = FRAME_STATE, .a = 1, .c = 1, .d = 5}, NULL));
	assert_int_equal(protocol.out.done, 1);
	protocol_close(&protocol);
}

/* The next frame that is not an acknowledgement; its type is FRAME_STATE where there is none. */
static struct frame next_after_state(struct protocol *protocol)
{
	struct frame frame = {.type = FRAME_STATE};
	while (frame.type == FRAME_STATE && protocol_next(protocol, 1, &frame))
		;
	return frame;
}

/* On a new connection only the peer knows which bytes have arrived. */
static void test_session_sends_nothing_on_a_new_connection_before_the_peer_says_what_it_has(void **state)
{
	(void)state;
	struct protocol protocol;
	char bytes[10] = {0};
	check_ok(protocol_open(&protocol, 5, CAPACITY, INT64_MAX, INT64_MAX));
	protocol_rewind(&protocol, 0);
	check_ok(protocol_send(&protocol, 1, bytes, sizeof bytes));
	take_state_of(&protocol, 0, 0, 1, 0);
	assert_int_equal(next_after_state(&protocol).type, FRAME_DATA);
	protocol_rewind(&protocol, 1);
	assert_int_equal(next_after_state(&protocol).type, FRAME_STATE);
	take_state_of(&protocol, 0, 4, 1, 0);
	struct frame frame = next_after_state(&protocol);
	assert_int_equal(frame.type, FRAME_DATA);
	assert_int_equal(frame.b, 4);
	assert_int_equal(frame.length, 6);
	protocol_close(&protocol);
}

/* What a peer says goes to a terminal: no byte of it may command that. */
static void test_session_a_peers_last_words_hold_no_control_bytes(void **state)
{
	(void)state;
	struct protocol protocol;
	static const char words[] = "no\nspace \033[2J\177\x9b left";
	check_ok(protocol_open(&protocol, 5, CAPACITY, 1, INT64_MAX));
	int rc = protocol_take(&protocol, 1, &(struct frame){.type = FRAME_ABORT, .length = sizeof words - 1}, words);
	assert_int_equal(rc, -ECONNABORTED);
	assert_string_equal(rh_error(rc), "the peer stopped: no?space ?[2J?? left");
	protocol_close(&protocol);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_session_any_line_delivers_once_and_in_order),
	        cmocka_unit_test(test_session_acknowledging_more_than_was_sent_is_a_fault),
	        cmocka_unit_test(test_session_unasked_or_unlike_pieces_are_faults),
	        cmocka_unit_test(test_session_echo_of_a_time_to_come_is_no_latency),
	        cmocka_unit_test(test_session_acknowledgement_meant_for_an_earlier_process_is_ignored),
	        cmocka_unit_test(test_session_sends_nothing_on_a_new_connection_before_the_peer_says_what_it_has),
	        cmocka_unit_test(test_session_a_peers_last_words_hold_no_control_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
