/* Streams of the emulated runtime. A stream is a ring of commands, run in their order; streams go on as events allow and in no other order:
 * which stream runs its next command, and how many run at a call, is drawn at random by seed. A device that leaves out a wait, or records
 * on the wrong stream, computes with what is not there yet.
 *
 * Nothing runs by itself: calls that enqueue let some commands run, and those that wait run what they wait for, with all the rest or with
 * no more than it needs. As on a GPU a call that finds its stream's ring full waits for room there. */
#include "cudaemu_control.h"
#include "runtime_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	RING = 1024,     /* commands, about what a stream of a GPU holds */
	PACE_CALLS = 61, /* calls until another pace is drawn */
	PACES = 3
};

/* One record of an event: what waits for it holds it, however often the event is recorded again. */
struct point {
	int holders, reached;
	int64_t time_ns;
	struct CUstream_st *stream; /* that comes to it */
};

enum kind { CALL, COPY, FILL, RECORD, WAIT };

struct command {
	enum kind kind;
	void (*run)(void *argument); /* of CALL; the argument is freed after it */
	void *argument;
	struct {
		char *to;
		const char *from;
		size_t to_pitch, from_pitch, width, rows;
		int value; /* of FILL */
	} bytes;
	struct point *point;
};

struct CUstream_st {
	int gpu;
	struct command *ring;
	int capacity, first, count;
	struct CUstream_st *next;
};

struct CUevent_st {
	int gpu;
	unsigned flags;
	struct point *point; /* of the latest record; NULL: none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below, and held while commands run */
static struct CUstream_st *streams;
static uint64_t seed = 1;
static int ring = RING, pace, calls;
static struct runtime_queues counted;
static int64_t epoch = 1;         /* of counting */
static _Thread_local int64_t own; /* in which this thread was counted */

void runtime_set_queues(uint64_t wanted, int commands)
{
	pthread_mutex_lock(&lock);
	seed = wanted * 2 + 1;
	ring = commands ? commands : RING;
	pthread_mutex_unlock(&lock);
}

struct runtime_queues runtime_queues(void)
{
	pthread_mutex_lock(&lock);
	struct runtime_queues was = counted;
	counted = (struct runtime_queues){0};
	epoch++;
	pthread_mutex_unlock(&lock);
	return was;
}

__attribute__((constructor)) static void read_environment(void)
{
	const char *text = getenv("RH_EMU_SEED");
	if (text)
		seed = strtoull(text, NULL, 10) * 2 + 1;
}

static unsigned random_below(unsigned n)
{
	seed ^= seed >> 12;
	seed ^= seed << 25;
	seed ^= seed >> 27;
	return (unsigned)((seed * 0x2545F4914F6CDD1Dull >> 32) * n >> 32);
}

static void release(struct point *point)
{
	if (point && !--point->holders)
		free(point);
}

/* Running: the lock is held */

static void move(const struct command *command)
{
	for (size_t i = 0; i < command->bytes.rows; i++) {
		char *to = command->bytes.to + i * command->bytes.to_pitch;
		if (command->kind == FILL)
			memset(to, command->bytes.value, command->bytes.width);
		else
			memcpy(to, command->bytes.from + i * command->bytes.from_pitch, command->bytes.width);
	}
}

static void fill_slowly(const struct command *command)
{
	int64_t ns = runtime_fill_ns(command->bytes.rows * command->bytes.width);
	move(command);
	runtime_let_pass(ns);
}

static const struct command *head(const struct CUstream_st *stream)
{
	return stream->count ? &stream->ring[stream->first] : NULL;
}

static int is_ready(const struct CUstream_st *stream)
{
	const struct command *command = head(stream);
	return command && (command->kind != WAIT || command->point->reached);
}

/* The stream's next command, which is ready. Of a ruined GPU nothing is computed, and nobody is kept waiting. */
static void run_next(struct CUstream_st *stream)
{
	struct command command = *head(stream);
	struct timespec time;
	int runs = !runtime_ruined();
	stream->first = (stream->first + 1) % stream->capacity;
	stream->count--;
	if (command.kind == CALL) {
		if (runs)
			command.run(command.argument);
		free(command.argument);
	} else if (runs && command.kind == FILL) {
		fill_slowly(&command);
	} else if (runs && command.kind == COPY) {
		move(&command);
	} else if (command.kind == RECORD) {
		clock_gettime(CLOCK_MONOTONIC, &time);
		command.point->time_ns = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
		command.point->reached = 1;
	}
	release(command.point);
}

/* Any stream's; 0: none is ready. */
static int run_any(void)
{
	struct CUstream_st *chosen = NULL;
	unsigned ready = 0;
	for (struct CUstream_st *stream = streams; stream; stream = stream->next)
		if (is_ready(stream) && !random_below(++ready))
			chosen = stream;
	if (chosen)
		run_next(chosen);
	return chosen != NULL;
}

/* One command on the way to the stream's next, and no other. */
static void run_needed(struct CUstream_st *stream)
{
	while (!is_ready(stream)) {
		stream = head(stream)->point->stream;
		if (!stream || !head(stream)) {
			fprintf(stderr, "cudaemu: a stream waits for what nobody will do\n");
			abort();
		}
	}
	run_next(stream);
}

static void run_towards(struct CUstream_st *stream, int alone)
{
	if (alone || !run_any())
		run_needed(stream);
}

/* Until the stream has come to its present end. */
static void finish(struct CUstream_st *stream)
{
	int alone = (int)random_below(2);
	while (stream->count)
		run_towards(stream, alone);
}

/* A GPU that has been given nothing while the host waits for room on another's. */
static int one_starves(int gpu)
{
	int busy[64] = {0}, there[64] = {0}, starves = 0;
	for (const struct CUstream_st *stream = streams; stream; stream = stream->next) {
		there[stream->gpu] = 1;
		busy[stream->gpu] |= stream->count > 0;
	}
	for (int i = 0; i < 64; i++)
		starves |= i != gpu && there[i] && !busy[i];
	return starves;
}

/* Some time passes. */
static void pass(void)
{
	static const unsigned chances[PACES] = {0, 2, 6}; /* of commands a call, in quarters */
	if (++calls % PACE_CALLS == 1)
		pace = (int)random_below(PACES);
	for (unsigned left = random_below(2 * chances[pace] + 1); left >= 4; left -= 4)
		(void)run_any();
}

static cudaError_t enqueue(struct CUstream_st *stream, const struct command *command)
{
	pthread_mutex_lock(&lock);
	counted.threads += own != epoch;
	own = epoch;
	counted.full += stream->count == stream->capacity;
	while (stream->count == stream->capacity) {
		counted.starved += one_starves(stream->gpu);
		run_towards(stream, 0);
	}
	stream->ring[(stream->first + stream->count++) % stream->capacity] = *command;
	counted.deepest = stream->count > counted.deepest ? stream->count : counted.deepest;
	pass();
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

void cudaemu_enqueue(struct CUstream_st *stream, void (*run)(void *argument), void *argument)
{
	(void)enqueue(stream, &(struct command){.kind = CALL, .run = run, .argument = argument});
}

void runtime_drain(int gpu)
{
	pthread_mutex_lock(&lock);
	for (struct CUstream_st *stream = streams; stream; stream = stream->next)
		if (stream->gpu == gpu)
			finish(stream);
	pthread_mutex_unlock(&lock);
}

/* Streams */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
	ENTER();
	(void)priority;
	struct CUstream_st *stream = calloc(1, sizeof *stream);
	struct command *commands = calloc((size_t)ring, sizeof *commands);
	if (flags != cudaStreamNonBlocking || !stream || !commands) {
		free(stream);
		free(commands);
		return runtime_refuse(cudaErrorInvalidValue);
	}
	*stream = (struct CUstream_st){.gpu = runtime_current_gpu(), .ring = commands, .capacity = ring};
	pthread_mutex_lock(&lock);
	stream->next = streams;
	streams = stream;
	pthread_mutex_unlock(&lock);
	runtime_count_object(1);
	*out = stream;
	return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	struct CUstream_st **at = &streams;
	pthread_mutex_lock(&lock);
	finish(stream);
	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	pthread_mutex_unlock(&lock);
	free(stream->ring);
	free(stream);
	runtime_count_object(-1);
	return runtime_ruined();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	ENTER();
	pthread_mutex_lock(&lock);
	finish(stream);
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

/* Events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	ENTER();
	if (flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming) || !(*event = calloc(1, sizeof **event)))
		return runtime_refuse(cudaErrorInvalidValue);
	(*event)->gpu = runtime_current_gpu();
	(*event)->flags = flags;
	runtime_count_object(1);
	return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	pthread_mutex_lock(&lock);
	release(event->point);
	pthread_mutex_unlock(&lock);
	free(event);
	runtime_count_object(-1);
	return runtime_ruined();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	ENTER();
	struct point *point = calloc(1, sizeof *point);
	if (event->gpu != stream->gpu || !point) {
		free(point);
		return runtime_refuse(cudaErrorInvalidResourceHandle);
	}
	*point = (struct point){.holders = 2, .stream = stream}; /* the event's and the command's */
	pthread_mutex_lock(&lock);
	release(event->point);
	event->point = point;
	pthread_mutex_unlock(&lock);
	return enqueue(stream, &(struct command){.kind = RECORD, .point = point});
}

/* For the record that is the latest now; for none, not at all. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
	ENTER();
	(void)flags;
	if (stream->gpu != runtime_current_gpu())
		return runtime_refuse(cudaErrorInvalidResourceHandle);
	pthread_mutex_lock(&lock);
	struct point *point = event->point;
	if (point)
		point->holders++;
	pthread_mutex_unlock(&lock);
	return point ? enqueue(stream, &(struct command){.kind = WAIT, .point = point}) : cudaSuccess;
}

/* A wait that would spin is refused. */
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	ENTER();
	if (!(event->flags & cudaEventBlockingSync))
		return runtime_refuse(cudaErrorInvalidResourceHandle);
	pthread_mutex_lock(&lock);
	int alone = (int)random_below(2);
	struct point *point = event->point;
	if (point)
		point->holders++;
	while (point && !point->reached)
		run_towards(point->stream, alone);
	release(point);
	pthread_mutex_unlock(&lock);
	return cudaSuccess;
}

/* Who asks again and again sees time pass. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
	ENTER();
	pthread_mutex_lock(&lock);
	if (event->point && !event->point->reached)
		(void)run_any();
	int reached = !event->point || event->point->reached;
	pthread_mutex_unlock(&lock);
	return reached ? cudaSuccess : runtime_refuse(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
	ENTER();
	pthread_mutex_lock(&lock);
	int recorded = from->point && to->point && !((from->flags | to->flags) & cudaEventDisableTiming);
	int reached = recorded && from->point->reached && to->point->reached;
	if (reached)
		*milliseconds = (float)((double)(to->point->time_ns - from->point->time_ns) / 1e6);
	pthread_mutex_unlock(&lock);
	return reached ? cudaSuccess : runtime_refuse(recorded ? cudaErrorNotReady : cudaErrorInvalidResourceHandle);
}

/* Copies */

/* What was read of pageable memory before the stream came to the copy. */
struct early {
	char *to;
	size_t bytes;
	char read[];
};

static void write_early(void *argument)
{
	const struct early *early = argument;
	memcpy(early->to, early->read, early->bytes);
}

static int reads_early(void)
{
	pthread_mutex_lock(&lock);
	int early = (int)random_below(2);
	pthread_mutex_unlock(&lock);
	return early;
}

static cudaError_t copy_early(char *to, const char *from, size_t bytes, cudaStream_t stream)
{
	struct early *early = malloc(sizeof *early + bytes);
	if (!early)
		return runtime_refuse(cudaErrorMemoryAllocation);
	early->to = to;
	early->bytes = bytes;
	memcpy(early->read, from, bytes);
	return enqueue(stream, &(struct command){.kind = CALL, .run = write_early, .argument = early});
}

/* One to host memory that is not registered keeps its caller until it is done; one from there may read it at once, whatever the stream
 * still waits for. One that leaves a registration is refused. All as by CUDA. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	ENTER();
	enum runtime_pinned pinned = runtime_pinned(kind == cudaMemcpyHostToDevice ? src : dst, bytes);
	if (stream->gpu != runtime_current_gpu())
		return runtime_refuse(cudaErrorInvalidResourceHandle);
	if (pinned == RUNTIME_PINNED_IN_PART)
		return runtime_refuse(cudaErrorInvalidValue);
	if (kind == cudaMemcpyHostToDevice && pinned == RUNTIME_PAGEABLE && reads_early())
		return copy_early(dst, src, bytes, stream);
	const struct command command = {.kind = COPY, .bytes = {dst, src, 0, 0, bytes, 1, 0}};
	cudaError_t error = enqueue(stream, &command);
	if (kind != cudaMemcpyDeviceToHost || pinned == RUNTIME_PINNED)
		return error;
	pthread_mutex_lock(&lock);
	counted.pageable++;
	finish(stream);
	pthread_mutex_unlock(&lock);
	return error;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
	ENTER();
	(void)kind;
	return enqueue(stream, &(struct command){.kind = COPY, .bytes = {dst, src, dst_pitch, src_pitch, width, rows, 0}});
}

cudaError_t cudaMemset2DAsync(void *dst, size_t pitch, int value, size_t width, size_t rows, cudaStream_t stream)
{
	ENTER();
	return enqueue(stream, &(struct command){.kind = FILL, .bytes = {dst, NULL, pitch, 0, width, rows, value}});
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
	ENTER();
	return enqueue(stream, &(struct command){.kind = FILL, .bytes = {dst, NULL, bytes, 0, bytes, 1, value}});
}
