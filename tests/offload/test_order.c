/* The five orderings: random runs of devices and an optimizer beside them, with each ordering's waits left out in turn. */
#include "check.h"

#include "core/alloc.h"
#include "offload/order.h"

#include <pthread.h>
#include <string.h>

enum { DEVICES = 4, BLOCKS = 6, STEPS = 6, LANES = 2 * DEVICES + 2, EVENTS = 8192, RUNS = 10000 };
enum token { UPLOADED, DOWNLOADED, TAKEN, UPDATED, PUBLISHED, TOKEN_KINDS };

/* A run before its lanes are interleaved. */
struct world {
	uint64_t seed;
	int devices, blocks, steps, staleness;
	int off; /* the ordering whose waits are left out; 0: none */
	struct order_event lane[LANES][EVENTS];
	int length[LANES];
	int upload_device[STEPS][BLOCKS][2], downloads[STEPS][BLOCKS];
};

static int random_below(struct world *w, int most)
{
	return (int)(check_random(&w->seed) % (uint32_t)most);
}

static int copier(const struct world *w)
{
	return 2 * w->devices;
}

static int optimizer(const struct world *w)
{
	return 2 * w->devices + 1;
}

static void add(struct world *w, int lane, enum order_kind kind, int64_t what, int step)
{
	assert_true(w->length[lane] < EVENTS);
	w->lane[lane][w->length[lane]++] = (struct order_event){kind, lane, what, step};
}

/* One of each kind, block, step and (uploads, downloads) number. */
static int64_t token(enum token kind, int block, int step, int number)
{
	return (((int64_t)step * BLOCKS + block) * TOKEN_KINDS + kind) * 2 + number;
}

static void wait_unless(struct world *w, int ordering, int lane, int64_t what)
{
	if (w->off != ordering)
		add(w, lane, ORDER_WAIT, what, 0);
}

/* Uploads for forward and backward (one where both ran in one stage), then the gradient of each round. */
static void device_part(struct world *w, int step, int b)
{
	int uploads = 1 + random_below(w, 2), newest = step - 1 - w->staleness;
	w->downloads[step][b] = 1 + random_below(w, 2);
	for (int u = 0; u < 2; u++) {
		int device = u < uploads ? random_below(w, w->devices) : -1;
		w->upload_device[step][b][u] = device;
		if (device < 0)
			continue;
		if (newest >= 0)
			wait_unless(w, 2, 2 * device, token(PUBLISHED, b, newest, 0));
		add(w, 2 * device, ORDER_UPLOAD, b, step);
		add(w, 2 * device, ORDER_SIGNAL, token(UPLOADED, b, step, u), 0);
	}
	int backward = w->upload_device[step][b][uploads - 1];
	for (int d = 0; d < w->downloads[step][b]; d++) {
		add(w, 2 * backward + 1, ORDER_WAIT, token(UPLOADED, b, step, uploads - 1), 0);
		if (step > 0)
			wait_unless(w, 4, 2 * backward + 1, token(TAKEN, b, step - 1, 0));
		add(w, 2 * backward + 1, ORDER_DOWNLOAD, b, step);
		add(w, 2 * backward + 1, ORDER_SIGNAL, token(DOWNLOADED, b, step, d), 0);
	}
}

static void publish(struct world *w, int step, int b)
{
	wait_unless(w, 5, copier(w), token(UPDATED, b, step, 0));
	for (int since = step ? step + w->staleness : 0; since <= step + w->staleness; since++) /* earlier ones: by earlier publications */
		for (int u = 0; u < 2; u++)
			if (w->upload_device[since][b][u] >= 0)
				wait_unless(w, 1, copier(w), token(UPLOADED, b, since, u));
	add(w, copier(w), ORDER_PUBLISH, b, step);
	add(w, copier(w), ORDER_SIGNAL, token(PUBLISHED, b, step, 0), 0);
}

/* A thread that copies gradients in and weights out, and one that updates between. */
static void host_part(struct world *w, int step, int b)
{
	if (step > 0)
		wait_unless(w, 5, copier(w), token(UPDATED, b, step - 1, 0));
	for (int d = 0; d < w->downloads[step][b]; d++)
		wait_unless(w, 3, copier(w), token(DOWNLOADED, b, step, d));
	add(w, copier(w), ORDER_TAKE, b, step);
	add(w, copier(w), ORDER_SIGNAL, token(TAKEN, b, step, 0), 0);
	if (w->staleness && step > 0)
		publish(w, step - 1, b);
	wait_unless(w, 5, optimizer(w), token(TAKEN, b, step, 0));
	if (step > 0)
		wait_unless(w, 5, optimizer(w), token(PUBLISHED, b, step - 1, 0));
	add(w, optimizer(w), ORDER_UPDATE, b, step);
	add(w, optimizer(w), ORDER_SIGNAL, token(UPDATED, b, step, 0), 0);
	if (!w->staleness)
		publish(w, step, b);
}

/* Lanes go on at random, a wait only after its signal. Returns the number of events. */
static int64_t interleave(struct world *w, struct order_event *out)
{
	static char signalled[STEPS * BLOCKS * TOKEN_KINDS * 2];
	int at[LANES] = {0}, left = 0, lanes = 2 * w->devices + 2;
	int64_t count = 0;
	memset(signalled, 0, sizeof signalled);
	for (int l = 0; l < lanes; l++)
		left += w->length[l];
	for (int stuck = 0; left > 0; stuck++) {
		int l = random_below(w, lanes), burst = 1 + random_below(w, 8);
		for (; burst > 0 && at[l] < w->length[l]; burst--) {
			const struct order_event *next = &w->lane[l][at[l]];
			if (next->kind == ORDER_WAIT && !signalled[next->subject])
				break;
			if (next->kind == ORDER_SIGNAL)
				signalled[next->subject] = 1;
			out[count++] = *next;
			at[l]++;
			left--;
			stuck = 0;
		}
		assert_true(stuck < 10000);
	}
	return count;
}

static struct order_fault run(uint64_t seed, int off)
{
	static struct world w;
	static struct order_event event[LANES * EVENTS];
	struct order_fault fault;
	memset(w.length, 0, sizeof w.length);
	w.seed = seed * 0x9e3779b97f4a7c15u + 1;
	w.off = off;
	w.devices = 1 + random_below(&w, DEVICES);
	w.blocks = 1 + random_below(&w, BLOCKS);
	w.steps = 3 + random_below(&w, STEPS - 2);
	w.staleness = random_below(&w, 2);
	for (int step = 0; step < w.steps; step++) {
		for (int b = 0; b < w.blocks; b++)
			device_part(&w, step, b);
		for (int b = 0; b < w.blocks; b++)
			host_part(&w, step, b);
	}
	check_ok(order_check(event, interleave(&w, event), w.staleness, &fault));
	return fault;
}

static void test_10000_random_runs_hold_all_orderings(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (uint64_t i = 0; i < RUNS; i++) {
		struct order_fault fault = run(seed + i, 0);
		if (fault.ordering) {
			char text[256];
			order_describe(&fault, text, sizeof text);
			fail_msg("run %llu: %s", (unsigned long long)i, text);
		}
	}
}

static void test_each_ordering_left_out_is_found(void **state)
{
	(void)state;
	uint64_t seed = check_seed();
	for (int off = 1; off <= 5; off++) {
		int found = 0;
		struct order_fault fault = {0};
		char text[256] = "";
		for (uint64_t i = 0; i < 1000; i++) {
			fault = run(seed + i, off);
			if (fault.ordering && !found++)
				order_describe(&fault, text, sizeof text);
			assert_true(!fault.ordering || fault.ordering == off);
		}
		printf("ordering %d left out: found in %d of 1000 runs: %s\n", off, found, text);
		/* 1 and 4 are implied by others in many runs: a block uploaded once a step comes before its own download; in sync a
		 * download comes after an upload of weights that its gradient's predecessor made */
		assert_true(found > (off == 1 || off == 4 ? 300 : 990));
	}
}

/* By hand: a sync step of one block, each line left out in turn. */
static void test_a_missing_operation_is_named(void **state)
{
	(void)state;
	static const struct order_event whole[] = {{ORDER_UPLOAD, 0, 0, 0},  {ORDER_DOWNLOAD, 0, 0, 0}, {ORDER_TAKE, 0, 0, 0},
	                                           {ORDER_UPDATE, 0, 0, 0},  {ORDER_PUBLISH, 0, 0, 0},  {ORDER_UPLOAD, 0, 0, 1},
	                                           {ORDER_DOWNLOAD, 0, 0, 1}};
	enum { COUNT = sizeof whole / sizeof *whole };
	static const int expected[COUNT + 1] = {0, 3, 5, 5, 2, 0, 0, 0};
	for (int without = 0; without <= COUNT; without++) {
		struct order_event event[COUNT];
		struct order_fault fault;
		int64_t count = 0;
		for (int i = 0; i < COUNT; i++)
			if (i != without)
				event[count++] = whole[i];
		check_ok(order_check(event, count, 0, &fault));
		assert_int_equal(fault.ordering, expected[without]);
		assert_true(!fault.ordering || fault.first.lane == -1);
	}
	struct order_fault fault;
	check_ok(order_check(whole, 0, 0, &fault));
	assert_int_equal(fault.ordering, 0);
	static const struct order_event frozen[] = {{ORDER_UPLOAD, 0, 3, 0}, {ORDER_UPLOAD, 1, 3, 7}};
	check_ok(order_check(frozen, 2, 0, &fault));
	assert_int_equal(fault.ordering, 0);
}

static void *record(void *argument)
{
	for (int i = 0; i < 1000; i++)
		order_log_add(argument, ORDER_UPLOAD, 1, i, i);
	return NULL;
}

static void test_a_log_takes_what_fits_from_any_thread(void **state)
{
	(void)state;
	struct order_log *log = order_log_create(1500);
	pthread_t other;
	int64_t count, forgotten;
	assert_int_equal(pthread_create(&other, NULL, record, log), 0);
	record(log);
	pthread_join(other, NULL);
	assert_non_null(order_log_events(log, &count, &forgotten));
	assert_int_equal(count, 1500);
	assert_int_equal(forgotten, 500);
	order_log_destroy(log);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_10000_random_runs_hold_all_orderings),
	        cmocka_unit_test(test_each_ordering_left_out_is_found),
	        cmocka_unit_test(test_a_missing_operation_is_named),
	        cmocka_unit_test(test_a_log_takes_what_fits_from_any_thread),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
