/* Runs the blocks of a launch, and the threads of a block in the order asked for. */
#include "block.h"

#include "fiber.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
	MAX_THREADS = 1024,
	MAX_ARRAYS = 64,
	MAX_GRID_YZ = 65535,
	MAX_AT_ONCE = 16,
	STATIC_SHARED_BYTES_MAX = 48 << 10,
};

enum thread_state { READY, AT_BARRIER, AT_WARP, DONE };

struct thread {
	struct fiber *fiber; /* NULL: not begun, or done */
	enum thread_state state;
	const char *file; /* of the barrier it waits at */
	int line;
	dim3 place; /* in its block */
	struct copies copies;
};

struct warp {
	int arrived;
	void (*perform)(void *const lane[32]);
	void *argument[32];
};

struct shared_array {
	const char *key;
	char *bytes;
	size_t offset, size; /* offset: of a dynamic one */
	int dynamic;
};

/* What one OS thread runs now, and the fibers it keeps. */
struct machine {
	struct thread thread[MAX_THREADS];
	struct warp warp[MAX_THREADS / 32];
	struct shared_array array[MAX_ARRAYS];
	struct fiber *idle[MAX_THREADS];
	unsigned sequence[MAX_THREADS]; /* the order of threads */
	int arrays, idles, threads, done, at_barrier, first_at_barrier, current;
	dim3 placed; /* the size of the blocks that threads' places are of */
	size_t dynamic_bytes, static_bytes;
	void (*body)(void *);
	void *argument;
	const char *signature;
	enum cudaemu_order order;
	uint64_t seed;
};

static __thread struct machine *machine;
__thread struct cudaemu_place cudaemu_here;
static pthread_key_t ends; /* of threads that ran what a stream had come to, and know nothing of it */

static void thread_ends(void *)
{
	cudaemu_release();
}

__attribute__((constructor)) static void make_key(void)
{
	(void)pthread_key_create(&ends, thread_ends);
}

static struct machine *this_machine(void)
{
	if (machine)
		return machine;
	machine = (struct machine *)calloc(1, sizeof *machine);
	if (!machine || pthread_setspecific(ends, machine)) {
		fprintf(stderr, "cudaemu: no memory\n");
		abort();
	}
	return machine;
}

void cudaemu_abort(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "cudaemu: %s: block (%u,%u,%u) thread %d: ", machine->signature, cudaemu_here.block.x, cudaemu_here.block.y,
	        cudaemu_here.block.z, machine->current);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	abort();
}

void cudaemu_set_order(enum cudaemu_order order, uint64_t seed)
{
	this_machine()->order = order;
	machine->seed = seed * 2 + 1;
}

static int shared_bytes = 100 << 10;

void cudaemu_set_shared_bytes(int bytes)
{
	shared_bytes = bytes;
}

int cudaemu_shared_bytes(void)
{
	return shared_bytes;
}

void *cudaemu_keep(const void *launch, size_t bytes)
{
	void *kept = malloc(bytes);
	if (!kept) {
		fprintf(stderr, "cudaemu: no memory\n");
		abort();
	}
	memcpy(kept, launch, bytes);
	return kept;
}

static unsigned random_below(unsigned n)
{
	uint64_t s = machine->seed;
	s ^= s >> 12;
	s ^= s << 25;
	s ^= s >> 27;
	machine->seed = s;
	return (unsigned)((s * 0x2545F4914F6CDD1Dull >> 32) * n >> 32);
}

static void make_sequence(unsigned *sequence, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		sequence[i] = machine->order == CUDAEMU_DESCENDING ? n - 1 - i : i;
	for (unsigned i = n; machine->order == CUDAEMU_RANDOM && i > 1; i--) {
		unsigned at = random_below(i), kept = sequence[i - 1];
		sequence[i - 1] = sequence[at];
		sequence[at] = kept;
	}
}

static inline __attribute__((always_inline)) void suspend(enum thread_state state)
{
	struct thread *own = &machine->thread[machine->current];
	own->state = state;
	fiber_suspend(own->fiber);
}

/* One thread of the kernel after another: whoever resumes the fiber has set `current`. */
void fiber_main(void)
{
	for (;;) {
		machine->body(machine->argument);
		suspend(DONE);
	}
}

static void resume(int index)
{
	struct thread *thread = &machine->thread[index];
	if (!thread->fiber)
		thread->fiber = machine->idles ? machine->idle[--machine->idles] : fiber_create();
	machine->current = index;
	cudaemu_here.thread = thread->place;
	fiber_resume(thread->fiber);
	if (thread->state == DONE) {
		machine->idle[machine->idles++] = thread->fiber;
		thread->fiber = NULL;
		thread->copies.count = 0;
		machine->done++;
	}
}

void cudaemu_barrier(const char *file, int line)
{
	struct thread *own = &machine->thread[machine->current];
	own->file = file;
	own->line = line;
	if (!machine->at_barrier)
		machine->first_at_barrier = machine->current;
	struct thread *first = &machine->thread[machine->first_at_barrier]; /* all the others wait where it does */
	if (first->line != line || (first->file != file && strcmp(first->file, file) != 0))
		cudaemu_abort("divergent barrier: this thread is at %s:%d, thread %d at %s:%d", file, line, machine->first_at_barrier,
		              first->file, first->line);
	machine->at_barrier++;
	if (machine->at_barrier < machine->threads)
		return suspend(AT_BARRIER);
	machine->at_barrier = 0;
	for (int i = 0; i < machine->threads; i++)
		machine->thread[i].state = READY;
	suspend(READY); /* so that the order after the barrier is the one asked for */
}

int cudaemu_lane(void)
{
	return machine->current % 32;
}

void cudaemu_warp(void (*perform)(void *const lane[32]), void *argument)
{
	struct warp *warp = &machine->warp[machine->current / 32];
	if (warp->arrived && warp->perform != perform)
		cudaemu_abort("lanes of a warp are at different warp-wide functions");
	warp->perform = perform;
	warp->argument[machine->current % 32] = argument;
	if (++warp->arrived < 32)
		return suspend(AT_WARP);
	perform(warp->argument);
	warp->arrived = 0;
	for (int i = 0; i < 32; i++)
		machine->thread[machine->current / 32 * 32 + i].state = READY;
	suspend(READY);
}

struct copies *cudaemu_copies(void)
{
	return &machine->thread[machine->current].copies;
}

void cudaemu_check_aligned(const void *at, const char *file, int line)
{
	if ((uintptr_t)at % 16)
		cudaemu_abort("%s:%d: a vector at %p, which is no multiple of 16", file, line, at);
}

static struct shared_array *find_array(const char *key)
{
	for (int i = 0; i < machine->arrays; i++)
		if (machine->array[i].key == key)
			return &machine->array[i];
	return NULL;
}

static struct shared_array *add_array(const char *key, const char *name, size_t bytes)
{
	void *memory = NULL;
	if (machine->arrays == MAX_ARRAYS || posix_memalign(&memory, 128, bytes))
		cudaemu_abort("no room for the shared array %s of %zu bytes", name, bytes);
	memset(memory, 0xff, bytes);
	struct shared_array *array = &machine->array[machine->arrays++];
	*array = shared_array{key, (char *)memory, 0, bytes, 0};
	return array;
}

static void check_shared_limit(const char *name)
{
	if (machine->static_bytes > STATIC_SHARED_BYTES_MAX)
		cudaemu_abort("shared array %s: %zu static bytes, at most %d", name, machine->static_bytes, STATIC_SHARED_BYTES_MAX);
	if (machine->static_bytes + machine->dynamic_bytes > (size_t)shared_bytes - 1024)
		cudaemu_abort("shared array %s: %zu static and %zu dynamic bytes, at most %d", name, machine->static_bytes,
		              machine->dynamic_bytes, shared_bytes - 1024);
}

void *cudaemu_shared(const char *key, const char *name, size_t bytes)
{
	struct shared_array *array = find_array(key);
	if (!array) {
		array = add_array(key, name, bytes);
		machine->static_bytes += (bytes + 127) / 128 * 128;
		check_shared_limit(name);
	}
	return array->bytes;
}

void *cudaemu_dynamic(const char *key, const char *name, size_t offset, size_t bytes)
{
	struct shared_array *array = find_array(key);
	if (array) {
		if (array->offset != offset || array->size != bytes)
			cudaemu_abort("dynamic array %s is of another place or size than before", name);
		return array->bytes;
	}
	if (offset % 16 || offset + bytes > machine->dynamic_bytes)
		cudaemu_abort("dynamic array %s: [%zu, %zu) of %zu bytes launched with", name, offset, offset + bytes,
		              machine->dynamic_bytes);
	for (int i = 0; i < machine->arrays; i++) {
		struct shared_array *other = &machine->array[i];
		if (other->dynamic && offset < other->offset + other->size && other->offset < offset + bytes)
			cudaemu_abort("dynamic array %s overlaps another", name);
	}
	array = add_array(key, name, bytes);
	array->offset = offset;
	array->dynamic = 1;
	return array->bytes;
}

static void say_why_stuck(void)
{
	for (int i = 0; i < machine->threads; i++) {
		struct thread *thread = &machine->thread[i];
		machine->current = i;
		if (thread->state == AT_BARRIER)
			cudaemu_abort("divergent barrier at %s:%d: %d threads of %d are there, %d have ended", thread->file, thread->line,
			              machine->at_barrier, machine->threads, machine->done);
		if (thread->state == AT_WARP)
			cudaemu_abort("divergent warp: a warp-wide function is waited at by %d lanes of 32, %d threads have ended",
			              machine->warp[i / 32].arrived, machine->done);
	}
}

static void run_block(void)
{
	machine->done = machine->at_barrier = 0;
	machine->static_bytes = 0;
	for (int i = 0; i < machine->threads; i++)
		machine->thread[i].state = READY;
	make_sequence(machine->sequence, (unsigned)machine->threads);
	while (machine->done < machine->threads) {
		int progress = 0;
		for (int i = 0; i < machine->threads; i++) {
			int index = (int)machine->sequence[i];
			if (machine->thread[index].state == READY) {
				resume(index);
				progress = 1;
			}
		}
		if (!progress)
			say_why_stuck();
		if (machine->order == CUDAEMU_RANDOM)
			make_sequence(machine->sequence, (unsigned)machine->threads);
	}
	for (int i = 0; i < machine->arrays; i++)
		free(machine->array[i].bytes);
	machine->arrays = 0;
}

static void place_threads(dim3 size)
{
	dim3 placed = machine->placed;
	if (placed.x == size.x && placed.y == size.y && placed.z == size.z)
		return;
	for (unsigned i = 0; i < size.x * size.y * size.z; i++)
		machine->thread[i].place = dim3(i % size.x, i / size.x % size.y, i / size.x / size.y);
	machine->placed = size;
}

/* A launch; its blocks, in the order of `sequence`, are taken one after another by the OS threads that run them. */
struct launch {
	const char *signature;
	dim3 grid, block;
	size_t dynamic_bytes, blocks, next; /* next: changed by atomic operations alone */
	void (*body)(void *);
	void *argument;
	const unsigned *sequence;
	enum cudaemu_order order;
	uint64_t seed;
};

static void begin_launch(const struct launch *launch)
{
	this_machine();
	machine->signature = launch->signature;
	machine->current = 0;
	machine->threads = (int)(launch->block.x * launch->block.y * launch->block.z);
	machine->dynamic_bytes = launch->dynamic_bytes;
	machine->body = launch->body;
	machine->argument = launch->argument;
	machine->static_bytes = 0; /* what is left of the kernel before */
	cudaemu_here.block_dim = launch->block;
	cudaemu_here.grid_dim = launch->grid;
	cudaemu_here.block = dim3(0, 0, 0);
}

static void run_blocks(struct launch *launch)
{
	dim3 grid = launch->grid;
	place_threads(launch->block);
	for (size_t i; (i = __atomic_fetch_add(&launch->next, 1, __ATOMIC_RELAXED)) < launch->blocks;) {
		unsigned b = launch->sequence[i];
		cudaemu_here.block = dim3(b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y);
		run_block();
	}
}

static void *run_beside(void *argument)
{
	struct launch *launch = (struct launch *)argument;
	begin_launch(launch);
	machine->order = launch->order;
	machine->seed = launch->seed;
	run_blocks(launch);
	return NULL;
}

static __thread int at_once = 1;
static int most_at_once = 1; /* of any thread so far; changed by atomic operations alone */

void cudaemu_set_blocks_at_once(int blocks)
{
	at_once = blocks < MAX_AT_ONCE ? blocks : MAX_AT_ONCE;
	if (at_once > __atomic_load_n(&most_at_once, __ATOMIC_RELAXED))
		__atomic_store_n(&most_at_once, at_once, __ATOMIC_RELAXED);
}

int cudaemu_blocks_may_run_at_once(void)
{
	return __atomic_load_n(&most_at_once, __ATOMIC_RELAXED) > 1;
}

void cudaemu_run(const char *signature, dim3 grid, dim3 block, size_t dynamic_bytes, void (*body)(void *), void *argument)
{
	struct launch launch = {signature,         grid, block, dynamic_bytes, (size_t)grid.x * grid.y * grid.z, 0, body, argument, NULL,
	                        CUDAEMU_ASCENDING, 0};
	begin_launch(&launch);
	if (!launch.blocks || grid.y > MAX_GRID_YZ || grid.z > MAX_GRID_YZ || grid.x > INT32_MAX)
		cudaemu_abort("a grid of (%u,%u,%u)", grid.x, grid.y, grid.z);
	if (machine->threads < 32 || machine->threads > MAX_THREADS || machine->threads % 32)
		cudaemu_abort("a block of %d threads", machine->threads);
	check_shared_limit("(dynamic)");
	cudaemu_note_kernel(signature, machine->threads, (int64_t)dynamic_bytes);
	unsigned *sequence = (unsigned *)malloc(launch.blocks * sizeof *sequence);
	if (!sequence)
		cudaemu_abort("no memory for the order of %zu blocks", launch.blocks);
	make_sequence(sequence, (unsigned)launch.blocks);
	launch.sequence = sequence;
	launch.order = machine->order;
	launch.seed = machine->seed;
	pthread_t beside[MAX_AT_ONCE];
	for (int i = 1; i < at_once; i++)
		if (pthread_create(&beside[i], NULL, run_beside, &launch))
			cudaemu_abort("no thread for a block");
	run_blocks(&launch);
	for (int i = 1; i < at_once; i++)
		pthread_join(beside[i], NULL);
	free(sequence);
}

/* Ends with the OS thread's work: its fibers and bookkeeping. */
void cudaemu_release(void)
{
	for (int i = 0; machine && i < machine->idles; i++)
		fiber_destroy(machine->idle[i]);
	for (int i = 0; machine && i < MAX_THREADS; i++)
		free(machine->thread[i].copies.pending);
	free(machine);
	machine = NULL;
	(void)pthread_setspecific(ends, NULL);
}
