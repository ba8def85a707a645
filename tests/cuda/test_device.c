/* The CUDA device's own code on the emulated runtime: memory, streams, events, and every way that a GPU can be missing or break. */
#include "device_case.h"

#include "core/hooks.h"
#include "core/log.h"
#include "machine/machine.h"
#include "runtime.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static void says(int rc, int code, const char *part)
{
	assert_int_equal(rc, code);
	if (!strstr(rh_error(rc), part))
		print_error("'%s' does not say '%s'\n", rh_error(rc), part);
	assert_non_null(strstr(rh_error(rc), part));
	assert_null(strchr(rh_error(rc), '\n'));
}

static void test_copies_events_and_times(void **state)
{
	(void)state;
	struct device_case on = device_case_open();
	const struct rh_device_ops *ops = on.device->ops;
	uint64_t seed = check_seed();
	static char up[MIB], down[MIB];
	for (int i = 0; i < MIB; i++)
		up[i] = (char)check_random(&seed);
	struct rh_event *sent, *got;
	check_ok(ops->event_create(on.device, RH_EVENT_TIMED, &sent));
	check_ok(ops->event_create(on.device, RH_EVENT_TIMED, &got));
	assert_int_equal(ops->event_query(sent), 1);
	assert_int_equal(ops->event_time_ns(sent), 0);
	check_ok(ops->wait(on.device, RH_STREAM_COMPUTE, sent));
	char *last = on.base + CASE_DEVICE_BYTES - MIB;
	check_ok(ops->copy_up(on.device, RH_STREAM_WEIGHTS, last, up, MIB));
	check_ok(ops->record(on.device, RH_STREAM_WEIGHTS, sent));
	check_ok(ops->wait(on.device, RH_STREAM_GRADIENTS, sent));
	check_ok(ops->copy_down(on.device, RH_STREAM_GRADIENTS, down, last, MIB));
	check_ok(ops->record(on.device, RH_STREAM_GRADIENTS, got));
	check_ok(ops->event_sync(got));
	assert_int_equal(ops->event_query(got), 1);
	assert_memory_equal(up, down, MIB);
	assert_true(ops->event_time_ns(sent) > 0 && ops->event_time_ns(got) >= ops->event_time_ns(sent));
	check_ok(ops->synchronize(on.device));
	ops->event_destroy(sent);
	ops->event_destroy(got);
	ops->close(on.device);
	assert_int_equal(runtime_held(), 0);
}

static void test_memory_is_reserved_within_cap_and_gpu(void **state)
{
	(void)state;
	struct runtime_machine machine = {1, 13000, 8, 9, (int64_t)400 << 20, 0, 0};
	struct rh_cuda_options options = {.cap_bytes = 200 << 20};
	struct rh_device *device, *second;
	void *base;
	runtime_set_machine(&machine);
	check_ok(rh_cuda_open(0, &options, &device));
	check_ok(rh_cuda_open(1, &options, &second)); /* another worker on the same GPU */
	says(device->ops->reserve(device, (200 << 20) + 1, &base), -ENOMEM, "device emu:0: the run needs 200.0 MiB, its cap is 200.0 MiB");
	check_ok(device->ops->reserve(device, 200 << 20, &base));
	says(second->ops->reserve(second, 200 << 20, &base), -ENOMEM, "end what else uses the GPU");
	check_ok(second->ops->reserve(second, 130 << 20, &base)); /* a refusal is no fault */
	check_ok(second->ops->synchronize(second));
	struct rh_device_memory memory;
	device->ops->memory(device, &memory);
	assert_int_equal(memory.cap_bytes, 200 << 20);
	assert_int_equal(memory.reserved_bytes, 200 << 20);
	assert_int_equal(memory.peak_bytes, 200 << 20);
	assert_int_equal(memory.free_bytes, (400 - 200 - 130 - 2 * 32) << 20);
	device->ops->close(device);
	second->ops->close(second);
	runtime_set_machine(NULL);
	assert_int_equal(runtime_held(), 0);
}

static void test_host_memory_is_pinned_once(void **state)
{
	(void)state;
	struct device_case on = device_case_open();
	static char host[4096];
	check_ok(on.device->ops->pin(on.device, host, 0));
	check_ok(on.device->ops->pin(on.device, host, sizeof host));
	says(on.device->ops->pin(on.device, host, sizeof host), -ENOMEM, "cannot pin");
	check_ok(on.device->ops->synchronize(on.device)); /* no fault of the device */
	on.device->ops->unpin(on.device, host, sizeof host);
	on.device->ops->close(on.device);
	assert_int_equal(runtime_held(), 0);
}

static void test_gpus_that_cannot_serve_say_why(void **state)
{
	(void)state;
	const int64_t gib = (int64_t)1 << 30;
	struct rh_cuda_options options = {0};
	struct rh_device *device;
	int64_t room;
	static const struct {
		struct runtime_machine machine;
		int code;
		const char *line;
	} cases[] = {
	        {{0, 0, 0, 0, 0, 0, 0}, -ENODEV, "this machine has no NVIDIA driver"},
	        {{1, 12020, 8, 9, 0, 0, 0}, -EIO, "the NVIDIA driver knows CUDA 12.2, this program needs 13.0"},
	        {{1, 12020, 8, 9, 0, 0, 0}, -EIO, "install a newer driver, or build with CUDA toolkit 12"},
	        {{0, 13000, 0, 0, 0, 0, 0}, -ENODEV, "no GPU is visible"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		runtime_set_machine(&cases[i].machine);
		says(rh_cuda_count(), cases[i].code, cases[i].line);
		says(rh_cuda_open(0, &options, &device), cases[i].code, cases[i].line);
		says(rh_devices_count("emu:1"), cases[i].code, cases[i].line);
	}
	runtime_set_machine(&(struct runtime_machine){2, 13000, 7, 5, gib, 0, 0});
	says(rh_cuda_open(0, &options, &device), -ENODEV, "device emu:0: its compute capability is 7.5, at least 8.0 is needed");
	says(rh_cuda_open(0, &options, &device), -ENODEV, "name other GPUs, as device cuda:1 or cuda:0,2, or use device cpu");
	runtime_set_machine(&(struct runtime_machine){2, 13000, 8, 0, gib, 0, 0});
	options.gpu = 2;
	says(rh_cuda_check_fp8(0), -ENODEV, "device emu:0: its compute capability is 8.0, fp8 needs at least 8.9");
	says(rh_devices_check_fp8("emu:2"), -ENODEV, "device emu:0: its compute capability is 8.0, fp8 needs at least 8.9");
	says(rh_cuda_open(0, &options, &device), -EINVAL, "device emu:2: this machine has 2 GPUs, counted from 0");
	check_ok(rh_cuda_room(1, 1, &room));
	assert_int_equal(room, gib - (256 << 20) - (32 << 20));
	check_ok(rh_cuda_room(1, 4, &room));
	assert_int_equal(room, (gib - (256 << 20)) / 4 - (32 << 20));
	runtime_set_machine(&(struct runtime_machine){2, 13000, 8, 0, 280 << 20, 0, 0});
	says(rh_cuda_room(0, 1, &room), -ENOMEM, "280 of 24576 MiB are free, too little for 1 worker");
	options.gpu = 0;
	says(rh_cuda_open(0, &options, &device), -ENOMEM, "too little");
	runtime_set_machine(NULL);
	says(rh_devices_count("cuda"), -ENODEV, "'cuda' is not in this build");
	assert_int_equal(rh_devices_count("emu:3"), 3);
	assert_int_equal(runtime_held(), 0);
}

/* A machine without a GPU is one to compute on the CPU with; one whose driver does not serve says so, and why. */
static void test_a_gpu_that_is_not_used_is_told(void **state)
{
	(void)state;
	static const struct {
		struct runtime_machine machine;
		cudaError_t error;
		const char *device;
		int is_told;
	} cases[] = {
	        {{0, 0, 0, 0, 0, 0, 0}, cudaSuccess, "cpu:1", 0},
	        {{0, 13000, 0, 0, 0, 0, 0}, cudaSuccess, "cpu:1", 0},
	        {{1, 12020, 8, 9, 0, 0, 0}, cudaSuccess, "cpu:1", 1},
	        {{1, 13000, 8, 9, 0, 0, 0}, cudaErrorSystemDriverMismatch, "cpu:1", 1},
	        {{1, 13000, 8, 9, 0, 0, 0}, cudaSuccess, "cuda", 0},
	};
	setenv(RH_HOOK_MACHINE_ROOT, "/nowhere", 1); /* this machine may have a card */
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct rh_log_kept kept = {0}, *before = rh_log_keep(&kept);
		runtime_set_machine(&cases[i].machine);
		(void)runtime_fail_nth(cases[i].error ? 1 : 0, "cudaGetDeviceCount", cases[i].error);
		assert_string_equal(rh_machine_device_for(rh_cuda_count()), cases[i].device);
		(void)rh_log_keep(before);
		assert_int_equal(kept.first != NULL, cases[i].is_told);
		rh_log_forget(&kept);
	}
	(void)runtime_fail_nth(0, "cuda", cudaSuccess);
	runtime_set_machine(NULL);
	unsetenv(RH_HOOK_MACHINE_ROOT);
	assert_string_equal(getenv("CUDA_MODULE_LOADING"), "LAZY"); /* else a library's kernels take memory that was planned with */
}

/* All kernels, by name, when a device is opened; where that takes long a line says so, once. */
static void test_kernels_are_loaded_at_the_start(void **state)
{
	(void)state;
	struct rh_cuda_options options = {0};
	struct rh_device *device;
	(void)runtime_fail_nth(0, "cudaFuncGetAttributes", cudaSuccess);
	check_ok(rh_cuda_open(0, &options, &device));
	device->ops->close(device);
	uint64_t kernels = runtime_fail_nth(0, "cudaFuncGetAttributes", cudaSuccess);
	assert_true(kernels > 200);
	for (uint64_t n = 1; n <= kernels; n += kernels - 1) { /* the first, and the last */
		char line[512];
		(void)runtime_fail_nth(n, "cudaFuncGetAttributes", cudaErrorNoKernelImageForDevice);
		says(rh_cuda_open(0, &options, &device), -EIO, "device emu:0: loading kernel ");
		snprintf(line, sizeof line, "%s", rh_error(-EIO));
		const char *name = strstr(line, "kernel ") + strlen("kernel ");
		assert_true(strcspn(name, " <") > 3 && !strchr(name, '=') && !strchr(name, '['));
	}
	(void)runtime_fail_nth(0, "cuda", cudaSuccess);
	for (int is_slow = 0; is_slow < 2; is_slow++) {
		struct rh_log_kept kept = {0}, *before = rh_log_keep(&kept);
		runtime_set_pace((struct runtime_pace){.load_ns = is_slow ? 1200000000 / (int64_t)kernels : 0});
		check_ok(rh_cuda_open(0, &options, &device));
		device->ops->close(device);
		(void)rh_log_keep(before);
		runtime_set_pace((struct runtime_pace){0});
		assert_int_equal(kept.first != NULL, is_slow);
		assert_true(kept.first == kept.last);
		rh_log_forget(&kept);
	}
	assert_int_equal(runtime_held(), 0);
}

/* A run's memory that lies on the card, or not; a card that was idle; one that drives a display. */
static void test_memory_that_is_not_on_the_card_is_told(void **state)
{
	(void)state;
	static const struct {
		struct runtime_pace pace;
		const char *line; /* NULL: none */
	} cases[] = {
	        {{0}, NULL},
	        {{.memory_mb_s = 800}, NULL},
	        {{.memory_mb_s = 800, .slow_fills = 1}, NULL},
	        {{.memory_mb_s = 800, .drives_display = 1}, "device emu:0: the memory reserved for the run lies on the card: it takes "},
	        {{.memory_mb_s = 800, .slow_fills = 100},
	         "warning: device emu:0: of 1 places in the memory reserved for the run 1 take 0.1 GB/s, the card's memory 1: they seem to "
	         "lie in host memory, and steps will be slow; end what else uses the GPU, or lower max_vram"},
	};
	struct rh_cuda_options options = {0};
	struct rh_device *device;
	void *base;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char text[1024] = "";
		FILE *said = tmpfile();
		int before = dup(STDERR_FILENO);
		assert_true(said && dup2(fileno(said), STDERR_FILENO) >= 0);
		runtime_set_pace(cases[i].pace);
		check_ok(rh_cuda_open(0, &options, &device));
		check_ok(device->ops->reserve(device, (int64_t)256 << 20, &base));
		device->ops->close(device);
		(void)dup2(before, STDERR_FILENO);
		close(before);
		rewind(said);
		size_t length = fread(text, 1, sizeof text - 1, said);
		fclose(said);
		text[length] = 0;
		if (!cases[i].line)
			assert_string_equal(text, "");
		else if (strncmp(text, cases[i].line, strlen(cases[i].line)) != 0)
			fail_msg("'%s' does not say '%s'", text, cases[i].line);
	}
	runtime_set_pace((struct runtime_pace){.memory_mb_s = 800});
	(void)runtime_fail_nth(3, "cudaMemsetAsync", cudaErrorECCUncorrectable);
	check_ok(rh_cuda_open(0, &options, &device));
	says(device->ops->reserve(device, (int64_t)256 << 20, &base), -EIO,
	     "device emu:0: probing the memory that was reserved: uncorrectable");
	device->ops->close(device);
	(void)runtime_fail_nth(0, "cuda", cudaSuccess);
	runtime_set_pace((struct runtime_pace){0});
	assert_int_equal(runtime_held(), 0);
}

/* Two GPUs, of which the second has a multiprocessor more, or has not. */
static int unlike_is_told(int larger)
{
	struct rh_devices devices;
	struct rh_log_kept kept = {0}, *before = rh_log_keep(&kept);
	runtime_set_machine(&(struct runtime_machine){2, 13000, 8, 9, (int64_t)1 << 30, 0, larger});
	check_ok(rh_devices_open("emu:2", 2, MIB, &devices));
	rh_devices_close(&devices);
	(void)rh_log_keep(before);
	int is_told = kept.first != NULL;
	rh_log_forget(&kept);
	runtime_set_machine(NULL);
	return is_told;
}

static void test_gpus_that_are_not_alike_are_told(void **state)
{
	(void)state;
	assert_false(unlike_is_told(0));
	assert_true(unlike_is_told(1));
}

/* A refusal that ruins nothing is kept by its own device; another's next launch does not find it. */
static void test_a_fault_of_one_device_is_not_blamed_on_another(void **state)
{
	(void)state;
	struct rh_cuda_options options = {.gpu = 1, .cap_bytes = MIB};
	struct rh_device *broken;
	struct rh_event *event;
	struct device_case on = device_case_open();
	struct rh_op op = {.kind = RH_OP_FILL};
	op.operand[RH_FILL_Y] = rh_view_of(on.base, RH_F32, 4, 4);
	check_ok(rh_cuda_open(1, &options, &broken));
	(void)runtime_fail_nth(1, "cudaEventCreate", cudaErrorInvalidValue);
	says(broken->ops->event_create(broken, RH_EVENT_ORDER, &event), -EIO, "device emu:1: creating an event: ");
	check_ok(on.device->ops->launch(on.device, RH_STREAM_COMPUTE, &op));
	says(broken->ops->synchronize(broken), -EIO, "creating an event");
	(void)runtime_fail_nth(1, "cudaDeviceGetAttribute", cudaErrorInvalidValue);
	says(rh_cuda_check_fp8(1), -ENODEV, "device emu:1: ");
	check_ok(on.device->ops->launch(on.device, RH_STREAM_COMPUTE, &op));
	int64_t room;
	(void)runtime_fail_nth(1, "cudaMemGetInfo", cudaErrorInvalidValue);
	says(rh_cuda_room(1, 1, &room), -ENODEV, "device emu:1: ");
	check_ok(on.device->ops->launch(on.device, RH_STREAM_COMPUTE, &op));
	struct rh_cuda_gpu gpu;
	(void)runtime_fail_nth(1, "cudaDeviceGetPCIBusId", cudaErrorInvalidValue);
	says(rh_cuda_describe(1, &gpu), -ENODEV, "device emu:1: ");
	check_ok(on.device->ops->launch(on.device, RH_STREAM_COMPUTE, &op));
	(void)runtime_fail_nth(0, "cuda", cudaSuccess);
	broken->ops->close(broken);
	on.device->ops->close(on.device);
	assert_int_equal(runtime_held(), 0);
}

/* A time does not change when it is read again after the clock's anchor has moved, once or oftener. */
static void test_a_time_is_the_same_when_read_later(void **state)
{
	(void)state;
	struct device_case on = device_case_open();
	const struct rh_device_ops *ops = on.device->ops;
	struct rh_event *event;
	check_ok(ops->event_create(on.device, RH_EVENT_TIMED, &event));
	check_ok(ops->record(on.device, RH_STREAM_COMPUTE, event));
	check_ok(ops->event_sync(event));
	int64_t first = ops->event_time_ns(event);
	for (int i = 0; i < 3; i++) {
		check_ok(nanosleep(&(struct timespec){1, 50 * 1000 * 1000}, NULL));
		check_ok(ops->synchronize(on.device));
		assert_in_range(ops->event_time_ns(event) - first + 100000, 0, 200000);
		if (!i)
			assert_int_equal(ops->event_time_ns(event), first);
	}
	check_ok(ops->record(on.device, RH_STREAM_COMPUTE, event));
	check_ok(ops->event_sync(event));
	assert_true(ops->event_time_ns(event) - first > 3000000000);
	ops->event_destroy(event);
	ops->close(on.device);
	assert_int_equal(runtime_held(), 0);
}

enum { DOUBLED = 8, FLOATS = 64 };

enum leave { NOTHING_OUT, WAIT_OF_COMPUTE_OUT, WAIT_OF_DOWNLOAD_OUT, WAIT_OF_SECOND_OUT };

struct chain {
	struct rh_device *device[2];
	char *base[2];
	struct rh_event *up, *computed, *down[2];
	float host[FLOATS]; /* registered */
};

/* A value goes up on one GPU, is doubled there, comes down, goes up on the other and comes down again: what the host has then. Streams and
 * GPUs know of one another by events alone. */
static float through_two_gpus(struct chain *chain, float value, enum leave leave)
{
	const struct rh_device_ops *ops = chain->device[0]->ops;
	for (int i = 0; i < FLOATS; i++)
		chain->host[i] = value;
	for (int d = 0; d < 2; d++) {
		struct rh_device *device = chain->device[d];
		struct rh_op twice = {.kind = RH_OP_ADD};
		for (int i = 0; i < 3; i++)
			twice.operand[i] = rh_view_of(chain->base[d], RH_F32, 1, FLOATS);
		if (d && leave != WAIT_OF_SECOND_OUT)
			check_ok(ops->wait(device, RH_STREAM_ACTIVATIONS_UP, chain->down[0]));
		check_ok(ops->copy_up(device, RH_STREAM_ACTIVATIONS_UP, chain->base[d], chain->host, sizeof chain->host));
		if (d)
			continue;
		check_ok(ops->record(device, RH_STREAM_ACTIVATIONS_UP, chain->up));
		if (leave != WAIT_OF_COMPUTE_OUT)
			check_ok(ops->wait(device, RH_STREAM_COMPUTE, chain->up));
		check_ok(ops->launch(device, RH_STREAM_COMPUTE, &twice));
		check_ok(ops->record(device, RH_STREAM_COMPUTE, chain->computed));
		if (leave != WAIT_OF_DOWNLOAD_OUT)
			check_ok(ops->wait(device, RH_STREAM_ACTIVATIONS_DOWN, chain->computed));
		check_ok(ops->copy_down(device, RH_STREAM_ACTIVATIONS_DOWN, chain->host, chain->base[d], sizeof chain->host));
		check_ok(ops->record(device, RH_STREAM_ACTIVATIONS_DOWN, chain->down[0]));
	}
	struct rh_device *second = chain->device[1];
	check_ok(ops->copy_down(second, RH_STREAM_ACTIVATIONS_UP, chain->host, chain->base[1], sizeof chain->host));
	check_ok(ops->record(second, RH_STREAM_ACTIVATIONS_UP, chain->down[1]));
	check_ok(ops->event_sync(chain->down[1]));
	float got = chain->host[FLOATS - 1];
	check_ok(ops->synchronize(chain->device[0]));
	check_ok(ops->synchronize(second));
	return got;
}

/* Whatever order streams run in, a value is where its events say; and each wait that is left out is found missing by some order. */
static void test_streams_wait_for_events_and_for_nothing_else(void **state)
{
	(void)state;
	static struct chain chain;
	struct rh_cuda_options options = {.cap_bytes = MIB};
	for (int d = 0; d < 2; d++) {
		void *base;
		options.gpu = d;
		check_ok(rh_cuda_open(d, &options, &chain.device[d]));
		check_ok(chain.device[d]->ops->reserve(chain.device[d], MIB, &base));
		check_ok(chain.device[d]->ops->event_create(chain.device[d], RH_EVENT_HOST, &chain.down[d]));
		chain.base[d] = base;
	}
	const struct rh_device_ops *ops = chain.device[0]->ops;
	check_ok(ops->event_create(chain.device[0], RH_EVENT_ORDER, &chain.up));
	check_ok(ops->event_create(chain.device[0], RH_EVENT_ORDER, &chain.computed));
	check_ok(ops->pin(chain.device[0], chain.host, sizeof chain.host));
	for (int leave = NOTHING_OUT; leave <= WAIT_OF_SECOND_OUT; leave++) {
		int wrong = 0;
		for (int i = 0; i < 200; i++) {
			runtime_set_queues((uint64_t)i, 0);
			wrong += through_two_gpus(&chain, (float)i + 1, (enum leave)leave) != (float)(2 * (i + 1));
		}
		printf("without wait %d: %d of 200 orders go wrong\n", leave, wrong);
		assert_true(leave == NOTHING_OUT ? !wrong : wrong > 10);
	}
	ops->unpin(chain.device[0], chain.host, sizeof chain.host);
	struct rh_event *events[] = {chain.up, chain.computed, chain.down[0], chain.down[1]};
	for (size_t i = 0; i < sizeof events / sizeof *events; i++)
		ops->event_destroy(events[i]);
	for (int d = 0; d < 2; d++)
		ops->close(chain.device[d]);
	runtime_set_queues(0, 0);
	assert_int_equal(runtime_held(), 0);
}

/* What the host changes before the stream has come to a copy from pageable memory is copied, or not: as on a GPU nobody may count on
 * either. */
static void test_pageable_memory_is_read_sooner_or_later(void **state)
{
	(void)state;
	struct device_case on = device_case_open();
	const struct rh_device_ops *ops = on.device->ops;
	int early = 0;
	for (int i = 0; i < 200; i++) {
		static char host, got;
		host = 1;
		runtime_set_queues((uint64_t)i, 0);
		check_ok(ops->copy_up(on.device, RH_STREAM_WEIGHTS, on.base, &host, 1));
		(void)rh_cuda_stream(on.device, RH_STREAM_WEIGHTS); /* the worker has enqueued it */
		host = 2;
		check_ok(ops->synchronize(on.device));
		check_ok(ops->copy_down(on.device, RH_STREAM_WEIGHTS, &got, on.base, 1));
		check_ok(ops->synchronize(on.device));
		early += got == 1;
	}
	assert_in_range(early, 20, 190);
	ops->close(on.device);
	runtime_set_queues(0, 0);
	assert_int_equal(runtime_held(), 0);
}

/* A stream holds so many commands; the GPU's worker, which enqueues more, waits, and what a GPU beside has to do is done meanwhile. */
static void test_a_full_stream_keeps_its_worker(void **state)
{
	(void)state;
	enum { HOLDS = 16, FILLS = 200 };
	runtime_set_queues(3, HOLDS);
	struct device_case on = device_case_open();
	struct rh_op op = {.kind = RH_OP_FILL};
	op.operand[RH_FILL_Y] = rh_view_of(on.base, RH_F32, 4, 4);
	(void)runtime_queues();
	for (int i = 0; i < FILLS; i++)
		check_ok(on.device->ops->launch(on.device, RH_STREAM_COMPUTE, &op));
	check_ok(on.device->ops->synchronize(on.device));
	struct runtime_queues queues = runtime_queues();
	assert_int_equal(queues.deepest, HOLDS);
	assert_true(queues.full > 0 && !queues.starved); /* there is no other GPU */
	on.device->ops->close(on.device);
	runtime_set_queues(0, 0);
	assert_int_equal(runtime_held(), 0);
}

/* A run of a few commands; the first thing that fails. */
static int short_run(char *line, size_t bytes)
{
	struct rh_cuda_options options = {.cap_bytes = MIB};
	struct rh_device *device = NULL;
	struct rh_event *event = NULL;
	float host[64] = {0};
	void *base;
	struct rh_op op = {.kind = RH_OP_GEMM, .gemm = {.alpha = 1}}, fill = {.kind = RH_OP_FILL};
	int rc = rh_cuda_open(0, &options, &device);
	if (rc) {
		snprintf(line, bytes, "%s", rh_error(rc));
		return rc;
	}
	const struct rh_device_ops *ops = device->ops;
	rc = ops->reserve(device, MIB, &base);
	fill.operand[RH_FILL_Y] = rh_view_of(base, RH_F32, 4, 4);
	for (int i = 0; i < 3; i++)
		op.operand[(int[]){RH_GEMM_A, RH_GEMM_B, RH_GEMM_D}[i]] = rh_view_of((char *)base + 256 * i, RH_F32, 4, 4);
	if (!rc)
		rc = ops->event_create(device, RH_EVENT_TIMED, &event);
	if (!rc)
		rc = ops->copy_up(device, RH_STREAM_WEIGHTS, base, host, sizeof host);
	if (!rc)
		rc = ops->record(device, RH_STREAM_WEIGHTS, event);
	if (!rc)
		rc = ops->wait(device, RH_STREAM_COMPUTE, event);
	if (!rc)
		rc = ops->launch(device, RH_STREAM_COMPUTE, &fill);
	if (!rc)
		rc = ops->launch(device, RH_STREAM_COMPUTE, &op);
	if (!rc)
		rc = ops->record(device, RH_STREAM_COMPUTE, event);
	if (!rc)
		rc = ops->event_sync(event);
	int done = rc ? rc : ops->event_query(event);
	if (!rc)
		rc = done < 0 ? done : 0;
	if (!rc)
		rc = ops->copy_down(device, RH_STREAM_GRADIENTS, host, base, sizeof host);
	if (!rc)
		rc = ops->synchronize(device);
	if (rc)
		snprintf(line, bytes, "%s", rh_error(rc));
	for (int i = 0; rc && event && i < 2; i++) { /* whatever comes later says the same, at once */
		assert_int_equal(i ? ops->event_sync(event) : ops->synchronize(device), rc);
		assert_string_equal(rh_error(rc), line);
	}
	if (event)
		ops->event_destroy(event);
	ops->close(device);
	return rc;
}

/* What a person can do about it follows CUDA's own words. */
static void test_an_error_says_how_to_mend_it(void **state)
{
	(void)state;
	static const struct {
		cudaError_t error;
		const char *call, *line;
	} cases[] = {
	        {cudaErrorIllegalAddress, "cudaPeekAtLastError", "with CUDA_LAUNCH_BLOCKING=1, as an earlier op may be at fault"},
	        {cudaErrorLaunchTimeout, "cudaPeekAtLastError",
	         "the GPU drives a display too, whose driver ends long kernels: lower max_length"},
	        {cudaErrorNoKernelImageForDevice, "cudaLaunchKernel", "this program has no code for this GPU: build it"},
	        {cudaErrorUnsupportedPtxVersion, "cudaPeekAtLastError", "newer than the NVIDIA driver: install a newer driver"},
	        {cudaErrorMemoryAllocation, "cudaLaunchKernel", "fill: out of memory; lower max_vram"},
	        {cudaErrorSystemDriverMismatch, "cudaInitDevice", "the NVIDIA driver was updated: restart the machine"},
	        {cudaErrorUnknown, "cudaMemcpyAsync", "dmesg"},
	        {cudaErrorNoKernelImageForDevice, "cudaFuncGetAttributes", "onto a GPU of compute capability 8.9: "},
	        {cudaErrorInvalidDeviceFunction, "cudaFuncGetAttributes", "this program has no code for this GPU: build it"},
	        {cudaErrorJitCompilerNotFound, "cudaFuncGetAttributes", "libnvidia-ptxjitcompiler.so"},
	        {cudaErrorMemoryAllocation, "cudaInitDevice", "end what else uses the GPU"},
	};
	char line[512];
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		(void)runtime_fail_nth(1, cases[i].call, cases[i].error);
		assert_true(short_run(line, sizeof line) < 0);
		if (!strstr(line, cases[i].line))
			fail_msg("'%s' does not say '%s'", line, cases[i].line);
		assert_int_equal(runtime_held(), 0);
	}
	(void)runtime_fail_nth(0, "cuda", cudaSuccess);
}

/* The N-th call of the runtime breaks the GPU, for each N until nothing is left to break. */
static void test_a_fault_at_any_call_is_kept_and_nothing_leaks(void **state)
{
	(void)state;
	char line[512];
	uint64_t n = 0;
	int rc;
	do {
		runtime_fail_nth(++n, "cuda", cudaErrorECCUncorrectable);
		rc = short_run(line, sizeof line);
		if (rc) {
			assert_non_null(strstr(line, "device emu"));
			assert_non_null(strstr(line, "uncorrectable ECC error"));
		}
		assert_int_equal(runtime_held(), 0);
	} while (rc);
	runtime_fail_nth(0, "cuda", cudaSuccess);
	printf("%llu calls\n", (unsigned long long)n);
	assert_true(n > 30);
}

/* A product of one row by an adapter's a, in a child: does it end by a signal? */
static int lora_aborts_on(enum rh_stream stream)
{
	int status;
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child) {
		signal(SIGABRT, SIG_DFL);
		struct device_case on = device_case_open();
		struct rh_op op = {.kind = RH_OP_LORA_LOW, .lora.out = {8}};
		op.operand[RH_LORA_WIDE] = rh_view_of(on.base, RH_F32, 1, 8);
		op.operand[RH_LORA_LOWS] = rh_view_of(on.base + 256, RH_F32, 1, 4);
		op.operand[RH_LORA_MATRICES] = rh_view_of(on.base + 512, RH_F32, 4, 8);
		_exit(on.device->ops->launch(on.device, stream, &op) || on.device->ops->synchronize(on.device));
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
	return WIFSIGNALED(status);
}

static void test_an_op_whose_parts_use_the_workspace_keeps_to_the_compute_stream(void **state)
{
	(void)state;
	assert_false(lora_aborts_on(RH_STREAM_COMPUTE));
	assert_true(lora_aborts_on(RH_STREAM_WEIGHTS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_copies_events_and_times),
	        cmocka_unit_test(test_memory_is_reserved_within_cap_and_gpu),
	        cmocka_unit_test(test_host_memory_is_pinned_once),
	        cmocka_unit_test(test_gpus_that_cannot_serve_say_why),
	        cmocka_unit_test(test_a_gpu_that_is_not_used_is_told),
	        cmocka_unit_test(test_gpus_that_are_not_alike_are_told),
	        cmocka_unit_test(test_kernels_are_loaded_at_the_start),
	        cmocka_unit_test(test_memory_that_is_not_on_the_card_is_told),
	        cmocka_unit_test(test_a_fault_of_one_device_is_not_blamed_on_another),
	        cmocka_unit_test(test_a_time_is_the_same_when_read_later),
	        cmocka_unit_test(test_streams_wait_for_events_and_for_nothing_else),
	        cmocka_unit_test(test_pageable_memory_is_read_sooner_or_later),
	        cmocka_unit_test(test_a_full_stream_keeps_its_worker),
	        cmocka_unit_test(test_an_op_whose_parts_use_the_workspace_keeps_to_the_compute_stream),
	        cmocka_unit_test(test_an_error_says_how_to_mend_it),
	        cmocka_unit_test(test_a_fault_at_any_call_is_kept_and_nothing_leaks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
