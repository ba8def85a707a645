/* The workers of several GPUs, their events, and threads that ask for them, over a runtime of stubs: no kernel runs, so ThreadSanitizer may
 * look (make tsan). What the stubs note of an event is plain memory: only the order that the workers keep makes it the same for all. */
#include "check.h"

#include "cuda/device_internal.h"

#include <stdlib.h>

enum { DEVICES = 4, EVENTS = 12, COMMANDS = 20000, ASKERS = 2 };

/* An event as CUDA has it. */
struct CUevent_st {
	int records; /* carried out; the worker of the event's device counts */
};

struct CUstream_st {
	int device;
};

/* What one device's worker is to meet, in order. */
struct expected {
	int records[COMMANDS]; /* of the event of the n-th wait */
	int enqueued, waits;   /* the host's count, and the worker's */
	int64_t sent, copied;
};

static struct expected expected[DEVICES];
static struct cuda_device device[DEVICES];
static struct CUstream_st streams[DEVICES];
static struct cuda_event event[DEVICES][EVENTS];
static struct CUevent_st there[DEVICES][EVENTS];
static _Atomic int wrong, is_over;

cudaError_t cudaEventRecord(cudaEvent_t of, cudaStream_t stream)
{
	(void)stream;
	of->records++;
	return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t of, unsigned flags)
{
	struct expected *at = &expected[stream->device];
	(void)flags;
	if (of->records != at->records[at->waits++])
		atomic_fetch_add(&wrong, 1);
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	(void)to, (void)bytes, (void)kind;
	if ((int64_t)(intptr_t)from != ++expected[stream->device].copied)
		atomic_fetch_add(&wrong, 1);
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t of)
{
	(void)of;
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t of)
{
	(void)of;
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
	(void)from, (void)to;
	*milliseconds = 0;
	return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
	(void)flags;
	*out = calloc(1, sizeof **out);
	return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t of)
{
	free(of);
	return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	return cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void)
{
	return cudaSuccess;
}

int cuda_enter(struct cuda_device *of)
{
	return rh_fault_get(&of->fault);
}

int cuda_check(struct cuda_device *of, cudaError_t error, const char *doing)
{
	(void)of, (void)doing;
	return error == cudaSuccess ? 0 : -EIO;
}

int cuda_keep_fault(struct cuda_device *of, int code)
{
	(void)of;
	return code;
}

int launch_op(const struct launch_context *launch, const struct rh_op *op)
{
	(void)launch, (void)op;
	return 0;
}

/* As an optimizer's thread does: any event, any time. */
static void *ask(void *seed_of)
{
	uint64_t seed = *(const uint64_t *)seed_of;
	while (!atomic_load_explicit(&is_over, memory_order_relaxed)) {
		struct cuda_event *of = &event[check_random(&seed) % DEVICES][check_random(&seed) % EVENTS];
		int rc = check_random(&seed) % 2 ? device_event_sync(&of->base) : device_event_query(&of->base);
		if (rc < 0)
			atomic_fetch_add(&wrong, 1);
	}
	return NULL;
}

static void enqueue(uint64_t *seed, int d, int made[DEVICES][EVENTS])
{
	struct cuda_device *to = &device[d];
	int of = (int)(check_random(seed) % DEVICES), number = (int)(check_random(seed) % EVENTS);
	switch (check_random(seed) % 3) {
	case 0:
		assert_int_equal(cuda_queue_copy(to, 1, RH_STREAM_COMPUTE, NULL, (void *)(intptr_t)++expected[d].sent, 8), 0);
		return;
	case 1:
		made[d][number]++;
		assert_int_equal(device_record(&to->base, RH_STREAM_COMPUTE, &event[d][number].base), 0);
		return;
	default:
		if (made[of][number])
			expected[d].records[expected[d].enqueued++] = made[of][number];
		assert_int_equal(device_wait(&to->base, RH_STREAM_COMPUTE, &event[of][number].base), 0);
	}
}

static void test_waits_see_the_record_before_them_and_no_later_one(void **state)
{
	static const struct rh_device_ops table;
	static int made[DEVICES][EVENTS];
	(void)state;
	uint64_t seed = check_seed(), of_asker[ASKERS];
	pthread_t asker[ASKERS];
	for (int d = 0; d < DEVICES; d++) {
		device[d].base.ops = &table;
		device[d].gpu = streams[d].device = d;
		for (int s = 0; s < RH_STREAMS; s++)
			device[d].stream[s] = &streams[d];
		for (int e = 0; e < EVENTS; e++) {
			event[d][e] =
			        (struct cuda_event){.base = {&table}, .device = &device[d], .event = &there[d][e], .use = RH_EVENT_HOST};
			atomic_init(&event[d][e].references, 1);
		}
		assert_int_equal(cuda_clock_start(&device[d]), 0);
		assert_int_equal(cuda_queue_open(&device[d]), 0);
	}
	for (int i = 0; i < ASKERS; i++) {
		of_asker[i] = check_random(&seed);
		assert_int_equal(pthread_create(&asker[i], NULL, ask, &of_asker[i]), 0);
	}
	for (int i = 0; i < COMMANDS; i++)
		enqueue(&seed, (int)(check_random(&seed) % DEVICES), made);
	for (int d = 0; d < DEVICES; d++)
		rh_worker_drain(device[d].worker);
	atomic_store(&is_over, 1);
	for (int i = 0; i < ASKERS; i++)
		assert_int_equal(pthread_join(asker[i], NULL), 0);
	for (int d = 0; d < DEVICES; d++) {
		rh_worker_close(device[d].worker);
		cuda_clock_stop(&device[d]);
		assert_int_equal(expected[d].waits, expected[d].enqueued);
		assert_int_equal(expected[d].copied, expected[d].sent);
		assert_true(expected[d].waits > 100);
	}
	assert_int_equal(wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_waits_see_the_record_before_them_and_no_later_one)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
