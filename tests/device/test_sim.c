/* The simulated machine: how what is in flight shares links, switches and memory, in closed forms; order; and that it repeats itself. */
#include "check.h"

#include "core/alloc.h"
#include "device/sim/flow.h"
#include "device/sim/sim.h"
#include "device/stalls.h"

#include <math.h>
#include <string.h>

enum { MOST = 8 };

/* A machine of `devices` with round rates: links of 20 up, 10 down, 24 both GB/s, memory of 50, no switch, no latency. */
struct box {
	struct rh_hardware hardware;
	struct rh_sim *sim;
	struct rh_device *device[MOST];
	struct rh_event *done[MOST * 4];
	int devices, events;
	int holds; /* of a stream: commands */
};

static void box_plain(struct box *box, int devices)
{
	*box = (struct box){.devices = devices};
	box->hardware.devices = devices;
	box->hardware.device.peak[RH_PRODUCT_F32] = 1e12;
	box->hardware.device.memory_bytes_per_s = 1e12;
	box->hardware.link = (struct rh_hardware_link){.up_bytes_per_s = 20e9, .down_bytes_per_s = 10e9, .both_bytes_per_s = 24e9};
	box->hardware.host.dram_bytes_per_s = 50e9;
	box->hardware.host.optimizer_bytes_per_s[RH_LAYOUT_SPLIT] = 40e9;
	box->hardware.host.cores = 4;
}

static void box_open(struct box *box)
{
	struct rh_sim_options options = {
	        .hardware = &box->hardware, .devices = box->devices, .layout = RH_LAYOUT_SPLIT, .stream_capacity = box->holds};
	check_ok(rh_sim_create(&options, &box->sim));
	for (int d = 0; d < box->devices; d++)
		check_ok(rh_sim_open(box->sim, d, (int64_t)1 << 40, &box->device[d]));
}

static void box_close(struct box *box)
{
	rh_sim_release(box->sim);
	for (int e = 0; e < box->events; e++)
		box->done[e]->ops->event_destroy(box->done[e]);
	for (int d = 0; d < box->devices; d++)
		box->device[d]->ops->close(box->device[d]);
}

static struct rh_event *record(struct box *box, int d, enum rh_stream stream)
{
	struct rh_event **event = &box->done[box->events++];
	check_ok(box->device[d]->ops->event_create(box->device[d], RH_EVENT_TIMED, event));
	check_ok(box->device[d]->ops->record(box->device[d], stream, *event));
	return *event;
}

static struct rh_event *up(struct box *box, int d, double gigabytes)
{
	check_ok(box->device[d]->ops->copy_up(box->device[d], RH_STREAM_WEIGHTS, NULL, NULL, (int64_t)(gigabytes * 1e9)));
	return record(box, d, RH_STREAM_WEIGHTS);
}

static struct rh_event *down(struct box *box, int d, double gigabytes)
{
	check_ok(box->device[d]->ops->copy_down(box->device[d], RH_STREAM_GRADIENTS, NULL, NULL, (int64_t)(gigabytes * 1e9)));
	return record(box, d, RH_STREAM_GRADIENTS);
}

/* An op of the plain box's that takes so long, by the bytes it moves. */
static struct rh_op op_of(double seconds)
{
	static char nowhere;
	struct rh_op op = {.kind = RH_OP_FILL};
	op.operand[RH_FILL_Y] = rh_view_of(&nowhere, RH_F32, 1, (int64_t)(seconds * 1e12 / 4));
	return op;
}

static struct rh_event *work(struct box *box, int d, double seconds)
{
	struct rh_op op = op_of(seconds);
	check_ok(box->device[d]->ops->launch(box->device[d], RH_STREAM_COMPUTE, &op));
	return record(box, d, RH_STREAM_COMPUTE);
}

static double at(struct rh_event *event)
{
	check_ok(event->ops->event_sync(event));
	return (double)event->ops->event_time_ns(event) * 1e-9;
}

static void test_copies_one_way_share_the_hosts_memory(void **state)
{
	(void)state;
	struct box box;
	box_plain(&box, 4);
	box_open(&box);
	struct rh_event *e[4];
	for (int d = 0; d < 4; d++) /* 4 x 20 are wanted, 50 are there: 12.5 each */
		e[d] = up(&box, d, 12.5 * (d + 1));
	check_near(at(e[0]), 1, 1e-9);
	/* three with 16.667 each: device 1 has 12.5 left */
	check_near(at(e[1]), 1 + 12.5 / (50.0 / 3), 1e-9);
	/* two at 20 each */
	double t2 = at(e[1]) + 12.5 / 20;
	check_near(at(e[2]), t2, 1e-9);
	check_near(at(e[3]), t2 + 12.5 / 20, 1e-9);
	box_close(&box);
}

static void test_both_ways_share_a_link_max_min(void **state)
{
	(void)state;
	struct box box;
	box_plain(&box, 1);
	box_open(&box);
	struct rh_event *a = up(&box, 0, 28), *b = down(&box, 0, 10);
	/* 24 in sum: down stops at its own 10, up has the other 14, and 20 once alone */
	check_near(at(b), 1, 1e-9);
	check_near(at(a), 1 + 14.0 / 20, 1e-9);
	box_close(&box);
}

static void test_devices_under_a_switch_share_it(void **state)
{
	(void)state;
	struct box box;
	box_plain(&box, 3);
	box.hardware.pcie_switch = (struct rh_hardware_link){.up_bytes_per_s = 20e9, .devices = 2};
	box_open(&box);
	struct rh_event *a = up(&box, 0, 10), *b = up(&box, 1, 10), *c = up(&box, 2, 20);
	check_near(at(a), 1, 1e-9);
	check_near(at(b), 1, 1e-9);
	check_near(at(c), 1, 1e-9);
	box_close(&box);
}

static void test_what_begins_later_slows_what_is_in_flight(void **state)
{
	(void)state;
	struct box box;
	box_plain(&box, 2);
	box.hardware.host.dram_bytes_per_s = 20e9;
	box_open(&box);
	/* device 1's copy waits for half a second's work on device 1 */
	struct rh_event *a = up(&box, 0, 20), *w = work(&box, 1, 0.5);
	check_ok(box.device[1]->ops->wait(box.device[1], RH_STREAM_WEIGHTS, w));
	struct rh_event *b = up(&box, 1, 5);
	/* alone to 0.5 (10 left), then 10 each: b is through at 1.0, a has 5 left at 20 */
	check_near(at(b), 1.0, 1e-9);
	check_near(at(a), 1.25, 1e-9);
	box_close(&box);
}

static void test_latency_comes_before_the_bytes_and_holds_nothing(void **state)
{
	(void)state;
	struct box box;
	box_plain(&box, 2);
	box.hardware.link.latency_s = 0.25;
	box.hardware.host.dram_bytes_per_s = 20e9;
	box_open(&box);
	struct rh_event *a = up(&box, 0, 10), *b = up(&box, 0, 10), *c = up(&box, 1, 0);
	check_near(at(c), 0.25, 1e-9);
	check_near(at(a), 0.75, 1e-9);
	check_near(at(b), 1.5, 1e-9);
	box_close(&box);
}

static void test_streams_keep_their_order_and_events_join_them(void **state)
{
	(void)state;
	struct box box;
	box_plain(&box, 2);
	box_open(&box);
	struct rh_event *first = work(&box, 0, 1), *second = work(&box, 0, 2);
	check_ok(box.device[1]->ops->wait(box.device[1], RH_STREAM_COMPUTE, first));
	struct rh_event *other = work(&box, 1, 5);
	/* an event recorded again moves, but not for those that wait for what it was */
	check_ok(box.device[0]->ops->record(box.device[0], RH_STREAM_COMPUTE, first));
	check_near(at(other), 6, 1e-9);
	check_near(at(second), 3, 1e-9);
	check_near(at(first), 3, 1e-9);
	check_near(rh_sim_seconds(box.sim), 6, 1e-9);
	/* what is enqueued now begins now */
	check_near(at(work(&box, 0, 1)), 7, 1e-9);
	struct rh_event *never;
	check_ok(box.device[0]->ops->event_create(box.device[0], RH_EVENT_TIMED, &never));
	assert_int_equal(never->ops->event_query(never), 1);
	box.done[box.events++] = never;
	box_close(&box);
}

/* A host that asks for one thing after another sees all of them at one time; one that does nothing else than ask sees time go on. */
/* The compute stream waits for `other`, which counts as a stall of this kind. */
static void stall(struct box *box, struct rh_stalls *stalls, enum rh_stall_kind kind, struct rh_event *other)
{
	check_ok(rh_stalls_open(stalls, kind));
	check_ok(box->device[0]->ops->wait(box->device[0], RH_STREAM_COMPUTE, other));
	check_ok(rh_stalls_close(stalls));
}

/* Each wait is booked under its kind, for as long as the stream did wait: not at all for what is over; the rest is computing. */
static void test_waits_of_a_step_are_booked_by_their_kind(void **state)
{
	(void)state;
	struct box box;
	struct rh_stalls stalls;
	box_plain(&box, 1);
	box.hardware.link.both_bytes_per_s = 30e9; /* neither way slows the other */
	box_open(&box);
	check_ok(rh_stalls_create(box.device[0], &stalls));
	for (int step = 0; step < 2; step++) { /* the second is booked anew */
		struct rh_stall_times times = {0};
		rh_stalls_reset(&stalls);
		check_ok(rh_stalls_begin(&stalls));
		struct rh_event *weights = up(&box, 0, 60), *sums = down(&box, 0, 35), *late = down(&box, 0, 20); /* over at 3, 3.5, 5.5 */
		(void)work(&box, 0, 1);
		stall(&box, &stalls, RH_STALL_WEIGHTS, weights);
		stall(&box, &stalls, RH_STALL_ACTIVATIONS, weights);
		(void)work(&box, 0, 0.25);
		stall(&box, &stalls, RH_STALL_GRADIENTS, sums);
		(void)work(&box, 0, 0.5);
		check_ok(rh_stalls_end(&stalls));
		stall(&box, &stalls, RH_STALL_GRADIENTS, late); /* behind the step's end */
		check_ok(rh_stalls_sync(&stalls));
		rh_stalls_add(&stalls, &times);
		check_near(times.stalled[RH_STALL_WEIGHTS], 2, 1e-9);
		check_near(times.stalled[RH_STALL_ACTIVATIONS], 0, 1e-9);
		check_near(times.stalled[RH_STALL_GRADIENTS], 0.25, 1e-9);
		check_near(times.compute, 1.75, 1e-9);
		(void)at(late);
	}
	rh_stalls_destroy(&stalls);
	box_close(&box);
}

static void test_queries_take_no_time(void **state)
{
	(void)state;
	struct box box;
	box_plain(&box, 2);
	box_open(&box);
	struct rh_event *late = work(&box, 0, 2), *soon = work(&box, 1, 1);
	double before = rh_sim_seconds(box.sim);
	for (int i = 0; i < 20; i++)
		assert_int_equal(late->ops->event_query(late) + soon->ops->event_query(soon), 0);
	assert_true(rh_sim_seconds(box.sim) == before);
	check_near(at(soon) - before, 1, 1e-9);
	assert_int_equal(late->ops->event_query(late), 0);
	while (!late->ops->event_query(late))
		continue;
	check_near(rh_sim_seconds(box.sim) - before, 2, 1e-9);
	box_close(&box);
}

/* A stream holds so many commands; time goes on while the host waits for room, and what it enqueues next on another device is late. */
static void test_a_full_stream_keeps_the_host(void **state)
{
	(void)state;
	enum { OPS = 40, HOLDS = 16 };
	for (int holds = 0; holds <= HOLDS; holds += HOLDS) {
		struct box box;
		box_plain(&box, 2);
		box.holds = holds;
		box_open(&box);
		struct rh_op op = op_of(1);
		for (int i = 0; i < OPS; i++)
			check_ok(box.device[0]->ops->launch(box.device[0], RH_STREAM_COMPUTE, &op));
		check_near(rh_sim_seconds(box.sim), holds ? OPS - HOLDS : 0, 1e-9);
		check_near(at(work(&box, 1, 1)), holds ? OPS - HOLDS + 1 : 1, 1e-9);
		check_near(at(record(&box, 0, RH_STREAM_COMPUTE)), OPS, 1e-9);
		box_close(&box);
	}
	struct rh_hardware_device gpu = {0}, host = {.on_host_cores = 1};
	assert_int_equal(rh_sim_stream_capacity(&gpu), 1000);
	assert_int_equal(rh_sim_stream_capacity(&host), 0);
}

/* A recorded run takes as long as the same run that nobody records. */
static void test_timed_events_do_not_fill_a_stream(void **state)
{
	(void)state;
	enum { OPS = 8, HOLDS = 16, EVENTS = 4 };
	struct box box;
	box_plain(&box, 1);
	box.holds = HOLDS;
	box_open(&box);
	struct rh_event *last = NULL;
	for (int i = 0; i < OPS; i++) {
		last = work(&box, 0, 1);
		for (int e = 1; e < EVENTS; e++)
			last = record(&box, 0, RH_STREAM_COMPUTE);
	}
	check_near(rh_sim_seconds(box.sim), 0, 1e-9);
	check_near(at(last), OPS, 1e-9);
	struct rh_op op = op_of(1);
	for (int i = 0; i < HOLDS; i++)
		check_ok(box.device[0]->ops->launch(box.device[0], RH_STREAM_COMPUTE, &op));
	check_near(rh_sim_seconds(box.sim), OPS, 1e-9);
	box_close(&box);
}

static int tell(void *context, int64_t argument)
{
	int64_t **at_ = context;
	*(*at_)++ = argument;
	return argument == 13 ? rh_fail(-EIO, "job 13 failed") : 0;
}

static void test_host_queue_shares_memory_and_runs_jobs_in_order(void **state)
{
	(void)state;
	struct box box;
	struct rh_host_queue *queue;
	int64_t told[4] = {0}, *next = told, ticket[4];
	box_plain(&box, 1);
	box_open(&box);
	check_ok(box.device[0]->ops->host_queue(box.device[0], &queue));
	struct rh_event *w = work(&box, 0, 1), *copy = up(&box, 0, 30);
	struct rh_host_job job = {.work = RH_HOST_OPTIMIZER, .bytes = 30e9, .run = tell, .context = &next, .argument = 7};
	/* 50 of memory: the copy gets its 20, the update 30 */
	check_ok(queue->ops->submit(queue, &job, &ticket[0]));
	job.argument = 8;
	job.wait_event = w;
	check_ok(queue->ops->submit(queue, &job, &ticket[1]));
	job.argument = 13;
	check_ok(queue->ops->submit(queue, &job, &ticket[2]));
	check_ok(queue->ops->submit(queue, &job, &ticket[3]));
	check_ok(queue->ops->await(queue, ticket[0]));
	check_near(queue->ops->seconds(queue), 1, 1e-9);
	check_near(at(copy), 1.5, 1e-9);
	check_ok(queue->ops->await(queue, ticket[1])); /* 15 by 1.5, the rest at 40 */
	check_near(queue->ops->seconds(queue), 1.5 + 15.0 / 40, 1e-9);
	assert_int_equal(told[0], 7);
	assert_int_equal(told[1], 8);
	int rc = queue->ops->await(queue, ticket[3]);
	assert_int_equal(rc, -EIO);
	assert_string_equal(rh_error(rc), "job 13 failed");
	assert_int_equal(next - told, 3); /* nothing is run after a fault */
	queue->ops->destroy(queue);
	box_close(&box);
}

static int next_job(void *context, struct rh_host_job *job)
{
	int *left = context;
	*job = (struct rh_host_job){.work = RH_HOST_MEMORY, .bytes = 1e9};
	return (*left)-- > 0;
}

/* A queue with a worker and jobs that wait, whose every allocation fails in turn. */
static int use_queue(struct box *box)
{
	enum { JOBS = 40 };
	struct rh_host_queue *queue;
	int64_t ticket = 0;
	int left = 3, rc = box->device[0]->ops->host_queue(box->device[0], &queue);
	if (rc)
		return rc;
	queue->ops->serve(queue, &(struct rh_host_worker){.next = next_job, .context = &left});
	for (int i = 0; !rc && i < JOBS; i++) {
		struct rh_host_job job = {.work = i % 2 ? RH_HOST_MEMORY : RH_HOST_OPTIMIZER, .bytes = 1e9};
		rc = queue->ops->submit(queue, &job, &ticket);
	}
	if (!rc)
		rc = queue->ops->await(queue, ticket);
	queue->ops->await_change(queue);
	queue->ops->destroy(queue);
	return rc;
}

static void test_a_queue_short_of_memory_says_so_and_ends(void **state)
{
	(void)state;
	int failures = 0;
	for (uint64_t n = 1;; n++) {
		struct box box;
		box_plain(&box, 1);
		box_open(&box);
		rh_alloc_fail_nth(n);
		int rc = use_queue(&box), whole = rh_alloc_fail_nth(0) < n;
		box_close(&box);
		if (whole) {
			check_ok(rc);
			break;
		}
		assert_int_equal(rc, -ENOMEM);
		failures++;
	}
	assert_true(failures > 4);
}

static void test_devices_on_the_hosts_cores_share_them_with_the_optimizer(void **state)
{
	(void)state;
	struct box box;
	struct rh_host_queue *queue;
	int64_t ticket;
	box_plain(&box, 1);
	box.hardware.device.on_host_cores = 1;
	box.hardware.host.dram_bytes_per_s = 0;
	box_open(&box);
	check_ok(rh_sim_queue(box.sim, &queue));
	struct rh_event *w = work(&box, 0, 1);
	struct rh_host_job job = {.work = RH_HOST_OPTIMIZER, .bytes = 20e9};
	check_ok(queue->ops->submit(queue, &job, &ticket)); /* half a second alone: both at half speed until it is over */
	check_ok(queue->ops->await(queue, ticket));
	check_near(rh_sim_seconds(box.sim), 1, 1e-9);
	check_near(at(w), 1.5, 1e-9);
	queue->ops->destroy(queue);
	box_close(&box);
}

/* Shares of random flows: no resource is overdrawn, and whoever is below another's share is held by a full resource or its own limit. */
static void test_random_flows_are_shared_max_min(void **state)
{
	(void)state;
	enum { FLOWS = 12, RESOURCES = 6 };
	uint32_t seed = 5;
	for (int round = 0; round < 2000; round++) {
		struct sim_route route[FLOWS] = {{0}};
		struct sim_flow flow[FLOWS], *list[FLOWS];
		double capacity[RESOURCES], spare[RESOURCES], load[RESOURCES], used[RESOURCES] = {0};
		for (int r = 0; r < RESOURCES; r++)
			capacity[r] = 1 + (double)((seed = seed * 1664525u + 1013904223u) >> 24);
		for (int f = 0; f < FLOWS; f++) {
			route[f].scale = 1 + (double)((seed = seed * 1664525u + 1013904223u) >> 30);
			route[f].most = (seed >> 8) % 3 ? 0 : 1 + (double)((seed >> 12) % 40);
			for (int r = 0; r < RESOURCES; r++)
				if ((seed = seed * 1664525u + 1013904223u) >> 31 || (!route[f].uses && r == RESOURCES - 1)) {
					route[f].use[route[f].uses].resource = r;
					route[f].use[route[f].uses++].weight = 0.5 + (double)(seed >> 28) / 8;
				}
			flow[f].route = &route[f];
			list[f] = &flow[f];
		}
		sim_share(list, FLOWS, capacity, RESOURCES, spare, load);
		for (int f = 0; f < FLOWS; f++)
			for (int u = 0; u < route[f].uses; u++)
				used[route[f].use[u].resource] += flow[f].rate * route[f].use[u].weight;
		for (int r = 0; r < RESOURCES; r++)
			assert_true(used[r] <= capacity[r] * (1 + 1e-9));
		for (int f = 0; f < FLOWS; f++) {
			int held = route[f].most > 0 && flow[f].rate >= route[f].most * (1 - 1e-9);
			for (int u = 0; u < route[f].uses && !held; u++) {
				int r = route[f].use[u].resource, highest = used[r] >= capacity[r] * (1 - 1e-9);
				for (int g = 0; g < FLOWS && highest; g++)
					for (int v = 0; v < route[g].uses; v++)
						if (route[g].use[v].resource == r &&
						    flow[g].rate / route[g].scale > flow[f].rate / route[f].scale * (1 + 1e-9))
							highest = 0;
				held = highest;
			}
			assert_true(held);
		}
	}
}

/* A random tangle of copies, launches and waits over all streams: the times of all its events. */
static void tangle(uint32_t seed, int64_t *time, int count)
{
	struct box box;
	struct rh_event *event[200];
	box_plain(&box, 4);
	box.hardware.link.latency_s = 1e-5;
	box_open(&box);
	for (int i = 0; i < count; i++) {
		struct rh_device *device = box.device[(seed = seed * 1664525u + 1013904223u) >> 30];
		enum rh_stream stream = (enum rh_stream)((seed >> 8) % RH_STREAMS);
		int64_t bytes = (seed >> 12) % 100000000;
		struct rh_op op = op_of((double)(seed >> 20) * 1e-6);
		check_ok(device->ops->event_create(device, RH_EVENT_TIMED, &event[i]));
		if (i && (seed >> 5) % 2)
			check_ok(device->ops->wait(device, stream, event[(seed >> 10) % (unsigned)i]));
		if (stream == RH_STREAM_COMPUTE)
			check_ok(device->ops->launch(device, stream, &op));
		else if (stream == RH_STREAM_WEIGHTS || stream == RH_STREAM_ACTIVATIONS_UP)
			check_ok(device->ops->copy_up(device, stream, NULL, NULL, bytes));
		else
			check_ok(device->ops->copy_down(device, stream, NULL, NULL, bytes));
		check_ok(device->ops->record(device, stream, event[i]));
		if (i % 50 == 49)
			check_ok(event[i / 2]->ops->event_sync(event[i / 2]));
	}
	for (int d = 0; d < 4; d++)
		check_ok(box.device[d]->ops->synchronize(box.device[d]));
	for (int i = 0; i < count; i++) {
		time[i] = event[i]->ops->event_time_ns(event[i]);
		event[i]->ops->event_destroy(event[i]);
	}
	box_close(&box);
}

static void test_the_same_commands_take_the_same_time(void **state)
{
	(void)state;
	static int64_t first[200], second[200];
	for (uint32_t seed = 1; seed < 20; seed++) {
		tangle(seed, first, 200);
		tangle(seed, second, 200);
		assert_memory_equal(first, second, sizeof first);
	}
}

static void test_op_takes_the_longer_of_arithmetic_and_memory(void **state)
{
	(void)state;
	struct rh_hardware_gemm point = {RH_PRODUCT_F32, RH_GEMM_ANY, 64, 64, 64, 0.5};
	struct rh_hardware_op known = {.op = (char *)(uintptr_t) "fill", .product = RH_PRODUCT_F32, .bytes_per_s = 1e9};
	struct rh_hardware_device device = {.peak = {[RH_PRODUCT_F32] = 1e9},
	                                    .gemm = &point,
	                                    .gemms = 1,
	                                    .op = &known,
	                                    .ops = 1,
	                                    .memory_bytes_per_s = 1e10,
	                                    .launch_s = 1e-3};
	static float a[64 * 64], b[64 * 64], d[64 * 64];
	struct rh_op op = {.kind = RH_OP_GEMM};
	op.operand[RH_GEMM_A] = rh_view_of(a, RH_F32, 64, 64);
	op.operand[RH_GEMM_B] = rh_view_of(b, RH_F32, 64, 64);
	op.operand[RH_GEMM_D] = rh_view_of(d, RH_F32, 64, 64);
	check_near(rh_sim_op_seconds(&device, &op, 1), 1e-3 + 2 * 64.0 * 64 * 64 / 0.5e9, 1e-12);
	check_near(rh_sim_op_seconds(&device, &op, 0.5), 1e-3 + 4 * 64.0 * 64 * 64 / 0.5e9, 1e-12);
	device.memory_bytes_per_s = 1e3;
	check_near(rh_sim_op_seconds(&device, &op, 1), 1e-3 + 3 * 64.0 * 64 * 4 / 1e3, 1e-9);
	struct rh_op fill = {.kind = RH_OP_FILL};
	fill.operand[RH_FILL_Y] = rh_view_of(d, RH_F32, 64, 64);
	check_near(rh_sim_op_seconds(&device, &fill, 1), 1e-3 + 64.0 * 64 * 4 / 1e9, 1e-12);
}

/* What was measured with weights' gradients beside what it makes counts where they are made. */
static void test_sums_of_gradients_have_rates_of_their_own(void **state)
{
	(void)state;
	struct rh_hardware_op known[] = {
	        {.op = (char *)(uintptr_t) "rmsnorm_backward", .product = RH_PRODUCT_F32, .bytes_per_s = 2e6},
	        {.op = (char *)(uintptr_t) "rmsnorm_backward_dw", .product = RH_PRODUCT_F32, .bytes_per_s = 1e6},
	};
	struct rh_hardware_device device = {.op = known, .ops = 2};
	static float some[64 * 64];
	struct rh_op op = {.kind = RH_OP_RMSNORM_BACKWARD};
	for (int i = RH_RMSNORM_BACKWARD_X; i <= RH_RMSNORM_BACKWARD_DX; i++)
		op.operand[i] = rh_view_of(some, RH_F32, 64, 64);
	double without = rh_op_cost(&op).bytes / 2e6;
	check_near(rh_sim_op_seconds(&device, &op, 1), without, 1e-12);
	op.operand[RH_RMSNORM_BACKWARD_DW] = rh_view_of(some, RH_F32, 1, 64);
	check_near(rh_sim_op_seconds(&device, &op, 1), rh_op_cost(&op).bytes / 1e6, 1e-12);
	device.ops = 1; /* the other's, for want of its own */
	check_near(rh_sim_op_seconds(&device, &op, 1), rh_op_cost(&op).bytes / 2e6, 1e-12);
}

/* Square products whose forms differ have the same shapes: each takes its own time. */
static void test_forms_of_square_products_are_told_apart(void **state)
{
	(void)state;
	struct rh_hardware_gemm point[] = {{RH_PRODUCT_F32, RH_GEMM_NN, 64, 64, 64, 1}, {RH_PRODUCT_F32, RH_GEMM_NT, 64, 64, 64, 0.25}};
	struct box box;
	box_plain(&box, 1);
	box.hardware.device.peak[RH_PRODUCT_F32] = 1e6;
	box.hardware.device.gemm = point;
	box.hardware.device.gemms = 2;
	box_open(&box);
	static float a[64 * 64];
	struct rh_op op = {.kind = RH_OP_GEMM};
	op.operand[RH_GEMM_A] = op.operand[RH_GEMM_B] = op.operand[RH_GEMM_D] = rh_view_of(a, RH_F32, 64, 64);
	double flops = 2.0 * 64 * 64 * 64, before = 0;
	for (int turn = 0; turn < 4; turn++) {
		op.gemm.trans_b = turn % 2;
		check_ok(box.device[0]->ops->launch(box.device[0], RH_STREAM_COMPUTE, &op));
		double now = at(record(&box, 0, RH_STREAM_COMPUTE));
		check_near(now - before, flops / (turn % 2 ? 0.25e6 : 1e6), 1e-6);
		before = now;
	}
	box_close(&box);
}

/* More shapes than the simulated machine remembers, in an order that mostly repeats: it guesses the next op from the last one, and each
 * still takes what it takes alone. */
static void test_an_op_takes_its_time_whatever_came_before(void **state)
{
	(void)state;
	enum { SHAPES = 3000, OPS = 20000, PERIOD = 9 };
	struct box box;
	box_plain(&box, 1);
	box.hardware.device.peak[RH_PRODUCT_F32] = 1e6;
	box_open(&box);
	static float a[SHAPES * 4];
	struct rh_event *ended = record(&box, 0, RH_STREAM_COMPUTE);
	double before = 0;
	uint32_t random = 20261126;
	printf("seed %u\n", random);
	for (int i = 0; i < OPS; i++) {
		random = random * 1664525 + 1013904223;
		int64_t rows = (random >> 8) % 4 ? i % PERIOD + i / 5000 : (int64_t)((random >> 12) % SHAPES);
		struct rh_op op = {.kind = RH_OP_GEMM};
		op.operand[RH_GEMM_A] = rh_view_of(a, RH_F32, rows + 1, 4);
		op.operand[RH_GEMM_B] = rh_view_of(a, RH_F32, 4, 4);
		op.operand[RH_GEMM_D] = rh_view_of(a, RH_F32, rows + 1, 4);
		check_ok(box.device[0]->ops->launch(box.device[0], RH_STREAM_COMPUTE, &op));
		check_ok(box.device[0]->ops->record(box.device[0], RH_STREAM_COMPUTE, ended));
		double now = at(ended);
		check_near(now - before, rh_sim_op_seconds(&box.hardware.device, &op, 1), 1e-6);
		before = now;
	}
	box_close(&box);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_copies_one_way_share_the_hosts_memory),
	        cmocka_unit_test(test_both_ways_share_a_link_max_min),
	        cmocka_unit_test(test_devices_under_a_switch_share_it),
	        cmocka_unit_test(test_what_begins_later_slows_what_is_in_flight),
	        cmocka_unit_test(test_waits_of_a_step_are_booked_by_their_kind),
	        cmocka_unit_test(test_queries_take_no_time),
	        cmocka_unit_test(test_a_full_stream_keeps_the_host),
	        cmocka_unit_test(test_timed_events_do_not_fill_a_stream),
	        cmocka_unit_test(test_latency_comes_before_the_bytes_and_holds_nothing),
	        cmocka_unit_test(test_streams_keep_their_order_and_events_join_them),
	        cmocka_unit_test(test_host_queue_shares_memory_and_runs_jobs_in_order),
	        cmocka_unit_test(test_a_queue_short_of_memory_says_so_and_ends),
	        cmocka_unit_test(test_devices_on_the_hosts_cores_share_them_with_the_optimizer),
	        cmocka_unit_test(test_random_flows_are_shared_max_min),
	        cmocka_unit_test(test_the_same_commands_take_the_same_time),
	        cmocka_unit_test(test_op_takes_the_longer_of_arithmetic_and_memory),
	        cmocka_unit_test(test_sums_of_gradients_have_rates_of_their_own),
	        cmocka_unit_test(test_forms_of_square_products_are_told_apart),
	        cmocka_unit_test(test_an_op_takes_its_time_whatever_came_before),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
