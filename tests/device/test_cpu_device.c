#include "check.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "device/cpu/cpu.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static struct rh_device *open_device(int index, int threads, int64_t cap_bytes)
{
	struct rh_cpu_options options = {.threads = threads, .cap_bytes = cap_bytes, .isa = rh_cpu_best_isa()};
	struct rh_device *device;
	check_ok(rh_cpu_open(index, &options, &device));
	return device;
}

static char *reserve(struct rh_device *device, int64_t bytes)
{
	void *base;
	check_ok(device->ops->reserve(device, bytes, &base));
	return base;
}

static struct rh_event *event(struct rh_device *device)
{
	struct rh_event *made;
	check_ok(device->ops->event_create(device, RH_EVENT_TIMED, &made));
	return made;
}

/* d (n,n) = a (n,n) b (n,n), F32. */
static struct rh_op gemm(void *a, void *b, void *d, int64_t n)
{
	struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {.alpha = 1}};
	op.operand[RH_GEMM_A] = rh_view_of(a, RH_F32, n, n);
	op.operand[RH_GEMM_B] = rh_view_of(b, RH_F32, n, n);
	op.operand[RH_GEMM_D] = rh_view_of(d, RH_F32, n, n);
	return op;
}

static void test_copies_return_what_was_sent_up(void **state)
{
	(void)state;
	struct rh_device *device = open_device(0, 1, 0);
	char *base = reserve(device, 3 * MIB + 5);
	uint64_t seed = check_seed();
	char *up = malloc(MIB), *down = malloc(MIB);
	for (int i = 0; i < MIB; i++)
		up[i] = (char)check_random(&seed);
	int64_t last = 2 * MIB + 5; /* up to the last byte */
	check_ok(device->ops->copy_up(device, RH_STREAM_WEIGHTS, base + last, up, MIB));
	check_ok(device->ops->copy_down(device, RH_STREAM_WEIGHTS, down, base + last, MIB));
	check_ok(device->ops->synchronize(device));
	assert_memory_equal(up, down, MIB);
	device->ops->close(device);
	free(up);
	free(down);
}

static void test_reserve_above_the_cap_is_refused(void **state)
{
	(void)state;
	struct rh_device *device = open_device(3, 1, 8 * MIB);
	void *base;
	assert_int_equal(device->ops->reserve(device, 8 * MIB + 1, &base), -ENOMEM);
	assert_non_null(strstr(rh_error(-ENOMEM), "device cpu:3"));
	assert_non_null(strstr(rh_error(-ENOMEM), "cap is 8.0 MiB"));
	reserve(device, 8 * MIB);
	struct rh_device_memory memory;
	device->ops->memory(device, &memory);
	assert_int_equal(memory.cap_bytes, 8 * MIB);
	assert_int_equal(memory.reserved_bytes, 8 * MIB);
	assert_int_equal(memory.peak_bytes, 8 * MIB);
	assert_true(memory.total_bytes > memory.free_bytes && memory.free_bytes > 0);
	device->ops->close(device);
	device = open_device(0, 1, INT64_MAX);
	assert_int_equal(device->ops->reserve(device, (int64_t)1 << 50, &base), -ENOMEM);
	assert_non_null(strstr(rh_error(-ENOMEM), "the machine has"));
	device->ops->close(device);
}

/* A value goes up on one stream, from device to device... down on another, in order because of events alone; many times more than a ring
 * holds. */
static void test_events_order_streams_beyond_full_rings(void **state)
{
	(void)state;
	enum { ROUNDS = 3000 };
	struct rh_device *device = open_device(0, 1, 0);
	const struct rh_device_ops *ops = device->ops;
	char *cell = reserve(device, 64);
	static int64_t up[ROUNDS], down[ROUNDS];
	struct rh_event *sent = event(device), *received = event(device);
	for (int i = 0; i < ROUNDS; i++) {
		up[i] = i * (int64_t)1000003;
		check_ok(ops->wait(device, RH_STREAM_ACTIVATIONS_UP, received));
		check_ok(ops->copy_up(device, RH_STREAM_ACTIVATIONS_UP, cell, &up[i], 8));
		check_ok(ops->record(device, RH_STREAM_ACTIVATIONS_UP, sent));
		check_ok(ops->wait(device, RH_STREAM_ACTIVATIONS_DOWN, sent));
		check_ok(ops->copy_down(device, RH_STREAM_ACTIVATIONS_DOWN, &down[i], cell, 8));
		check_ok(ops->record(device, RH_STREAM_ACTIVATIONS_DOWN, received));
	}
	check_ok(ops->event_sync(received));
	assert_memory_equal(up, down, sizeof up);
	assert_int_equal(ops->event_query(received), 1);
	assert_int_equal(ops->event_query(sent), 1);
	assert_true(ops->event_time_ns(received) >= ops->event_time_ns(sent) && ops->event_time_ns(sent) > 0);
	ops->event_destroy(sent);
	ops->event_destroy(received);
	ops->close(device);
}

/* A wait stands for the record made before it, not for a later one on a stream that is stuck. */
static void test_wait_captures_the_record_before_it(void **state)
{
	(void)state;
	struct rh_device *device = open_device(0, 1, 0), *gate = open_device(1, 1, 0);
	const struct rh_device_ops *ops = device->ops;
	enum { BIG = 64 * MIB };
	char *base = reserve(device, 64), *slow = reserve(gate, BIG);
	char *host = calloc(1, BIG);
	struct rh_event *moved = event(device), *opened = event(gate), *never = event(device);
	assert_int_equal(ops->event_query(never), 1);
	check_ok(ops->event_sync(never));
	check_ok(ops->wait(device, RH_STREAM_COMPUTE, never));
	int64_t value = 42, got = 0;
	check_ok(ops->copy_up(device, RH_STREAM_WEIGHTS, base, &value, 8));
	check_ok(ops->record(device, RH_STREAM_WEIGHTS, moved));
	check_ok(ops->wait(device, RH_STREAM_GRADIENTS, moved)); /* this record */
	check_ok(ops->copy_up(gate, RH_STREAM_WEIGHTS, slow, host, BIG));
	check_ok(ops->record(gate, RH_STREAM_WEIGHTS, opened));
	check_ok(ops->wait(device, RH_STREAM_COMPUTE, opened));
	check_ok(ops->record(device, RH_STREAM_COMPUTE, moved)); /* not this one, behind the gate */
	check_ok(ops->copy_down(device, RH_STREAM_GRADIENTS, &got, base, 8));
	struct rh_event *taken = event(device);
	check_ok(ops->record(device, RH_STREAM_GRADIENTS, taken));
	check_ok(ops->event_sync(taken));
	assert_int_equal(got, 42);
	check_ok(ops->event_sync(moved));
	assert_int_equal(ops->event_query(opened), 1);
	assert_true(ops->event_time_ns(moved) >= ops->event_time_ns(opened));
	ops->event_destroy(moved); /* with its reader gone: the stream may still hold it */
	ops->event_destroy(taken);
	ops->event_destroy(never);
	ops->close(device);
	ops->event_destroy(opened);
	ops->close(gate);
	free(host);
}

/* A number travels round eight devices, each adding nothing but its hop; waits cross devices. */
static void test_eight_devices_wait_for_each_other(void **state)
{
	(void)state;
	enum { DEVICES = 8, HOPS = 400 };
	struct rh_device *device[DEVICES];
	struct rh_event *arrived[DEVICES];
	char *cell[DEVICES];
	static int64_t post[HOPS + 1];
	for (int i = 0; i < DEVICES; i++) {
		device[i] = open_device(i, 2, MIB);
		cell[i] = reserve(device[i], MIB);
		arrived[i] = event(device[i]);
	}
	const struct rh_device_ops *ops = device[0]->ops;
	post[0] = 77;
	for (int hop = 0; hop < HOPS; hop++) {
		int at = hop % DEVICES, before = (hop + DEVICES - 1) % DEVICES;
		check_ok(ops->wait(device[at], RH_STREAM_COMPUTE, arrived[before]));
		check_ok(ops->copy_up(device[at], RH_STREAM_COMPUTE, cell[at], &post[hop], 8));
		check_ok(ops->copy_down(device[at], RH_STREAM_COMPUTE, &post[hop + 1], cell[at], 8));
		check_ok(ops->record(device[at], RH_STREAM_COMPUTE, arrived[at]));
	}
	for (int i = 0; i < DEVICES; i++)
		check_ok(ops->synchronize(device[i]));
	assert_int_equal(post[HOPS], 77);
	for (int i = 0; i < DEVICES; i++) {
		ops->event_destroy(arrived[i]);
		ops->close(device[i]);
	}
}

static void test_launch_computes(void **state)
{
	(void)state;
	struct rh_device *device = open_device(0, 2, 0);
	enum { N = 3 };
	float a[N * N] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, got[N * N];
	char *base = reserve(device, 4096);
	check_ok(device->ops->copy_up(device, RH_STREAM_COMPUTE, base, a, sizeof a));
	struct rh_op op = gemm(base, base, base + 1024, N);
	for (int stream = 0; stream < RH_STREAMS; stream++) {
		check_ok(device->ops->synchronize(device));
		memset(got, 0, sizeof got);
		check_ok(device->ops->launch(device, (enum rh_stream)stream, &op));
		check_ok(device->ops->copy_down(device, (enum rh_stream)stream, got, base + 1024, sizeof got));
		check_ok(device->ops->synchronize(device));
		float want[N * N] = {30, 36, 42, 66, 81, 96, 102, 126, 150};
		assert_memory_equal(got, want, sizeof want);
	}
	device->ops->close(device);
}

/* The first launch finds no memory for its scratch: the fault stays, later launches and copies are skipped, events are still reached. */
static void test_launch_fault_is_sticky_and_nothing_hangs(void **state)
{
	(void)state;
	enum { N = 64 };
	struct rh_device *device = open_device(5, 1, 0);
	const struct rh_device_ops *ops = device->ops;
	char *base = reserve(device, MIB);
	struct rh_event *after = event(device);
	float *host = calloc(N * N, 4), *down = calloc(N * N, 4);
	for (int i = 0; i < N * N; i++)
		host[i] = 1;
	check_ok(ops->copy_up(device, RH_STREAM_COMPUTE, base, host, N * N * 4));
	check_ok(ops->synchronize(device));
	rh_alloc_fail_nth(1);
	struct rh_op op = gemm(base, base, base + MIB / 2, N);
	for (int i = 0; i < 600; i++) {
		check_ok(ops->launch(device, RH_STREAM_COMPUTE, &op));
		check_ok(ops->record(device, RH_STREAM_COMPUTE, after));
		check_ok(ops->wait(device, RH_STREAM_GRADIENTS, after));
		check_ok(ops->copy_down(device, RH_STREAM_GRADIENTS, down, base + MIB / 2, N * N * 4));
	}
	assert_int_equal(ops->event_sync(after), -ENOMEM);
	assert_non_null(strstr(rh_error(-ENOMEM), "device cpu:5, gemm"));
	rh_alloc_fail_nth(0);
	rh_error_clear();
	assert_int_equal(ops->synchronize(device), -ENOMEM);
	assert_non_null(strstr(rh_error(-ENOMEM), "device cpu:5, gemm"));
	assert_int_equal(ops->event_query(after), -ENOMEM);
	assert_true(ops->event_time_ns(after) > 0);
	for (int i = 0; i < N * N; i++)
		assert_true(down[i] == 0);
	ops->event_destroy(after);
	ops->close(device);
	free(host);
	free(down);
}

static void test_open_that_runs_out_of_memory_unwinds(void **state)
{
	(void)state;
	struct rh_cpu_options options = {.threads = 2, .cap_bytes = MIB, .isa = rh_cpu_best_isa()};
	int refused = 0;
	for (uint64_t n = 1;; n++) {
		struct rh_device *device;
		rh_alloc_fail_nth(n);
		int rc = rh_cpu_open(0, &options, &device);
		rh_alloc_fail_nth(0);
		if (!rc) {
			device->ops->close(device);
			break;
		}
		assert_int_equal(rc, -ENOMEM);
		refused++;
	}
	assert_true(refused >= 10);
}

static double a_hundredth(const void *context, const struct rh_op *op)
{
	(void)context, (void)op;
	return 0.01;
}

/* Ten products of 10 ms and, beside them, a copy of 50 ms: each stream sleeps for what its commands would take, all is computed, and what
 * waits for a stream is late by no more than a thread may wake up late on a busy machine. */
static void test_paced_commands_last_as_long_as_they_are_said_to(void **state)
{
	(void)state;
	enum { N = 8, OPS = 10, COPY_BYTES = 50000 };
	const struct rh_cpu_pace pace = {.op_seconds = a_hundredth, .up_bytes_per_s = 1e6, .down_bytes_per_s = 1e12};
	struct rh_cpu_options options = {.threads = 1, .cap_bytes = MIB, .isa = rh_cpu_best_isa(), .pace = &pace};
	struct rh_device *device;
	struct rh_event *computed, *copied;
	float *host = calloc(COPY_BYTES / 4, sizeof *host);
	assert_non_null(host);
	check_ok(rh_cpu_open(0, &options, &device));
	const struct rh_device_ops *ops = device->ops;
	char *base = reserve(device, MIB);
	check_ok(ops->event_create(device, RH_EVENT_TIMED, &computed));
	check_ok(ops->event_create(device, RH_EVENT_TIMED, &copied));
	double began = rh_clock_seconds();
	check_ok(ops->copy_up(device, RH_STREAM_WEIGHTS, base, host, COPY_BYTES));
	check_ok(ops->record(device, RH_STREAM_WEIGHTS, copied));
	struct rh_op op = gemm(base, base, base + MIB / 2, N);
	for (int i = 0; i < OPS; i++)
		check_ok(ops->launch(device, RH_STREAM_COMPUTE, &op));
	check_ok(ops->record(device, RH_STREAM_COMPUTE, computed));
	check_ok(ops->event_sync(computed));
	double took = rh_clock_seconds() - began;
	check_ok(ops->event_sync(copied));
	double copy_first = (double)(ops->event_time_ns(computed) - ops->event_time_ns(copied)) / 1e9;
	printf("%.4f s, the copy %.4f s before\n", took, copy_first);
	assert_true(took >= 0.01 * OPS && took < 0.01 * OPS + 0.5);
	assert_true(copy_first > 0 && copy_first < 0.5);
	ops->event_destroy(computed);
	ops->event_destroy(copied);
	ops->close(device);
	free(host);
}

/* 1 if a child that runs `act` dies of it. */
static int dies(void (*act)(void))
{
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child) {
		if (!freopen("/dev/null", "w", stderr))
			_exit(0);
		signal(SIGSEGV, SIG_DFL); /* cmocka catches these */
		signal(SIGABRT, SIG_DFL);
		act();
		_exit(0);
	}
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void launch_inside(void)
{
	struct rh_device *device = open_device(0, 1, 0);
	char *base = reserve(device, 4096);
	struct rh_op op = gemm(base, base, base + 4096 - 64, 4);
	check_ok(device->ops->launch(device, RH_STREAM_COMPUTE, &op));
	check_ok(device->ops->synchronize(device));
}

static void launch_beyond_the_end(void)
{
	struct rh_device *device = open_device(0, 1, 0);
	char *base = reserve(device, 4096);
	struct rh_op op = gemm(base, base, base + 4096 - 60, 4);
	(void)!device->ops->launch(device, RH_STREAM_COMPUTE, &op);
}

static void launch_strided_beyond_the_end(void)
{
	struct rh_device *device = open_device(0, 1, 0);
	char *base = reserve(device, 4096);
	struct rh_op op = gemm(base, base, base + 4096 - 64, 4);
	op.operand[RH_GEMM_D].stride = 5;
	(void)!device->ops->launch(device, RH_STREAM_COMPUTE, &op);
}

static void launch_on_host_memory(void)
{
	struct rh_device *device = open_device(0, 1, 0);
	char *base = reserve(device, 4096);
	static float d[16];
	struct rh_op op = gemm(base, base, d, 4);
	(void)!device->ops->launch(device, RH_STREAM_COMPUTE, &op);
}

static void copy_beyond_the_end(void)
{
	struct rh_device *device = open_device(0, 1, 0);
	char *base = reserve(device, 4096), host[32] = {0};
	(void)!device->ops->copy_up(device, RH_STREAM_WEIGHTS, base + 4096 - 31, host, 32);
}

static void dereference_on_the_host(void)
{
	struct rh_device *device = open_device(0, 1, 0);
	*(volatile char *)reserve(device, 4096) = 1;
}

static void test_addresses_outside_are_our_own_mistake(void **state)
{
	(void)state;
	assert_false(dies(launch_inside));
	assert_true(dies(launch_beyond_the_end));
	assert_true(dies(launch_strided_beyond_the_end));
	assert_true(dies(launch_on_host_memory));
	assert_true(dies(copy_beyond_the_end));
	assert_true(dies(dereference_on_the_host));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_addresses_outside_are_our_own_mistake),
	        cmocka_unit_test(test_copies_return_what_was_sent_up),
	        cmocka_unit_test(test_reserve_above_the_cap_is_refused),
	        cmocka_unit_test(test_events_order_streams_beyond_full_rings),
	        cmocka_unit_test(test_wait_captures_the_record_before_it),
	        cmocka_unit_test(test_eight_devices_wait_for_each_other),
	        cmocka_unit_test(test_launch_computes),
	        cmocka_unit_test(test_launch_fault_is_sticky_and_nothing_hangs),
	        cmocka_unit_test(test_open_that_runs_out_of_memory_unwinds),
	        cmocka_unit_test(test_paced_commands_last_as_long_as_they_are_said_to),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
