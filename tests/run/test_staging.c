/* Faults in steps whose weights and gradients go through the ring of registered memory: the ring's thread, which lags here, has nothing
 * left to do when the step returns, so that who it calls may go. Run it under AddressSanitizer and ThreadSanitizer. */
#include "train/rig.h"

#include "run/executor_internal.h"

#include <stdatomic.h>
#include <time.h>

enum { MICROS = 4, STEPS = 2, EVENTS = 64, FAULTS = 24, DEVICES = 2 };

/* CPU devices that register anything but the store. */
static struct slow {
	struct rh_device_ops real, ops;
	const struct rh_executor *executor;
	const char *store;
	int64_t store_bytes;
	char *memory[DEVICES]; /* reserved for an executor before */
	int64_t calls, fails;  /* the call that fails, from 1; 0: none */
	int to_ring;           /* the latest copy downwards went there */
	struct rh_event *event[EVENTS];
	_Atomic int events, over, late; /* over: the step has returned */
} slow;

static int call(void)
{
	return ++slow.calls == slow.fails ? rh_fail(-EIO, "call %lld fails", (long long)slow.fails) : 0;
}

static int slow_pin(struct rh_device *device, void *host, int64_t bytes)
{
	(void)device, (void)bytes;
	const char *at = host;
	return at >= slow.store && at < slow.store + slow.store_bytes ? rh_fail(-ENOMEM, "the store is not registered") : 0;
}

static void slow_unpin(struct rh_device *device, void *host, int64_t bytes)
{
	(void)device, (void)host, (void)bytes;
}

static int slow_reserve(struct rh_device *device, int64_t bytes, void **base)
{
	(void)bytes;
	*base = slow.memory[device->index];
	return 0;
}

static int slow_up(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	int rc = call();
	return rc ? rc : slow.real.copy_up(device, stream, to, from, bytes);
}

static int slow_down(struct rh_device *device, enum rh_stream stream, void *to, const void *from, int64_t bytes)
{
	const struct rh_arena *ring = &slow.executor->copies.staging_memory;
	slow.to_ring = (char *)to >= ring->base && (char *)to < ring->base + ring->capacity;
	int rc = call();
	return rc ? rc : slow.real.copy_down(device, stream, to, from, bytes);
}

static int slow_record(struct rh_device *device, enum rh_stream stream, struct rh_event *event)
{
	int i = 0, rc = call();
	while (i < slow.events && slow.event[i] != event)
		i++;
	if (slow.to_ring && i == slow.events) {
		assert_true(i < EVENTS);
		slow.event[i] = event;
		slow.events++;
	}
	slow.to_ring = 0;
	return rc ? rc : slow.real.record(device, stream, event);
}

static int slow_launch(struct rh_device *device, enum rh_stream stream, const struct rh_op *op)
{
	int rc = call();
	return rc ? rc : slow.real.launch(device, stream, op);
}

static int slow_sync(struct rh_event *event)
{
	int i = 0, events = slow.events;
	while (i < events && slow.event[i] != event)
		i++;
	if (i < events) {
		nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
		slow.late += slow.over;
	}
	return slow.real.event_sync(event);
}

/* Another executor on the same devices, which are slow now. */
static void replace_executor(struct rig *rig)
{
	struct rh_executor *before = rig->session.executor;
	struct rh_executor_options options = before->options;
	slow = (struct slow){.real = *options.device[0]->ops};
	slow.store = rh_store_memory(options.store, &slow.store_bytes);
	slow.ops = slow.real;
	slow.ops.pin = slow_pin;
	slow.ops.unpin = slow_unpin;
	slow.ops.reserve = slow_reserve;
	slow.ops.copy_up = slow_up;
	slow.ops.copy_down = slow_down;
	slow.ops.record = slow_record;
	slow.ops.launch = slow_launch;
	slow.ops.event_sync = slow_sync;
	for (int d = 0; d < options.planned.devices; d++) {
		slow.memory[d] = before->device[d].room[RH_ROOM_WEIGHTS].base; /* the first that is cut from it */
		options.device[d]->ops = &slow.ops;
	}
	rh_executor_destroy(before);
	options.registers = 1;
	check_ok(rh_executor_create(&options, &rig->session.executor));
	slow.executor = rig->session.executor;
	assert_non_null(slow.executor->copies.staging);
}

/* Steps in which call `fails` does; 0: none does. Returns the calls that were made. */
static int64_t run(int updates_early, int64_t fails)
{
	static struct rig_micro micro[MICROS];
	struct rh_micro_batch batch[MICROS];
	struct rig rig;
	int64_t cuts[] = {1, 2}, trained = 0, calls;
	int rc = 0;
	rig_open(&rig, "qwen3", NULL);
	rig.config.dtype = RH_BF16;
	rig.config.device = (char *)(uintptr_t) "cpu:2";
	rig.config.backward_cuts = cuts;
	rig.config.backward_cut_count = 2;
	struct rig_input in = rig_input(&rig, "train");
	struct rh_workload work = {.train = rig_limits(&in, 0), .train_micro_batches = MICROS};
	rig_start(&rig, RH_SESSION_TRAINS, &work);
	replace_executor(&rig);
	slow.calls = 0;
	slow.fails = fails;
	for (int m = 0; m < MICROS; m++) {
		rig_micro_make(&in, m, 0, &micro[m]);
		batch[m] = micro[m].batch;
		trained += batch[m].shape.head_rows;
	}
	for (int step = 0; !rc && step < STEPS; step++) {
		struct rh_update update = {.settings = {0.9, 0.999, 1e-8, 0, 0}, .learning_rate = 1e-3, .scale = 1, .step = step + 1};
		double norm;
		rh_updater_open(rig.session.updater, &update, updates_early ? 0 : 1);
		rc = rig_train(rig.session.executor, batch, MICROS, step, 1.0f / (float)trained);
		if (!rc)
			rc = rh_updater_norm(rig.session.updater, &norm);
	}
	if (fails && slow.calls >= fails) { /* a host that waits less times less: the last call may not come */
		char line[64];
		slow.over = 1;
		snprintf(line, sizeof line, "call %lld fails", (long long)fails);
		assert_int_equal(rc, -EIO);
		assert_string_equal(rh_error(rc), line);
	} else {
		check_ok(rc);
		assert_true(slow.events > 0);
	}
	calls = slow.calls;
	rig_close(&rig);
	assert_int_equal(slow.late, 0);
	return calls;
}

static void test_after_a_fault_the_ring_is_done(void **state)
{
	(void)state;
	for (int updates_early = 0; updates_early < 2; updates_early++) {
		int64_t calls = run(updates_early, 0);
		for (int64_t i = 0; i < FAULTS; i++)
			(void)run(updates_early, 1 + i * (calls - 1) / (FAULTS - 1));
		printf("%d of %lld calls failed in turn\n", FAULTS, (long long)calls);
	}
}

int main(void)
{
	setenv("RH_PIECE_BYTES", "4096", 1); /* these models are small: many pieces all the same */
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_after_a_fault_the_ring_is_done)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
