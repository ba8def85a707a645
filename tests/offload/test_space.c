/* Space on NVMe: what is written comes back, over any number of drives, by io_uring and by threads; whatever goes wrong is named, and
 * nothing is left behind. */
#include "offload/drives.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "device/cpu/cpu.h"
#include "offload/drive_internal.h"
#include "offload/simd/checksum.h"
#include "offload/space.h"
#include "offload/space_queue.h"

#include <dirent.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RECORDS = 5 };

/* Three directories on a disk and three on tmpfs, which has no direct access. */
struct world {
	struct drives drives;
	struct rh_space *space;
	char *memory; /* room for a record of each size, twice */
	int record[RECORDS];
};

static const int64_t sizes[RECORDS] = {1, 4096, 3 * RH_SPACE_BLOCK + 5000, RH_SPACE_BLOCK, 7 * RH_SPACE_BLOCK};
enum { ROOM = 8 * RH_SPACE_BLOCK };

static void world_open(struct world *world, const char *where)
{
	*world = (struct world){0};
	drives_make_in(&world->drives, where);
	world->memory = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(world->memory != MAP_FAILED);
}

static int space_open(struct world *world, struct rh_space_options options)
{
	options.dir = world->drives.name;
	int rc = rh_space_open(&options, &world->space);
	for (int r = 0; !rc && r < RECORDS; r++)
		rc = rh_space_take(world->space, sizes[r], "optimizer state", "model.layers.3", &world->record[r]);
	if (!rc)
		rc = rh_space_reserve(world->space);
	if (!rc)
		rh_space_attach(world->space, world->memory, ROOM);
	if (rc) {
		rh_space_close(world->space);
		world->space = NULL;
	}
	return rc;
}

static int entries(const char *dir)
{
	int count = -2; /* itself and its parent */
	DIR *open = opendir(dir);
	assert_non_null(open);
	while (readdir(open))
		count++;
	closedir(open);
	return count;
}

static void world_close(struct world *world)
{
	rh_space_close(world->space);
	for (int d = 0; d < DRIVES; d++)
		assert_int_equal(entries(world->drives.dir[d]), 0);
	munmap(world->memory, ROOM);
	check_ok(rh_dir_remove(world->drives.root));
}

static void fill(char *memory, int64_t bytes, uint32_t seed)
{
	for (int64_t i = 0; i < bytes; i += 4) {
		uint32_t value = (uint32_t)i * 2654435761u + seed;
		memcpy(memory + i, &value, 4);
	}
}

static int write_all(struct world *world, struct rh_space_io *io, uint32_t seed)
{
	int rc = 0;
	for (int r = 0; !rc && r < RECORDS; r++) {
		fill(world->memory, rh_space_round(world->space, sizes[r]), seed + (uint32_t)r);
		rh_space_write(io, world->record[r], world->memory);
		rc = rh_space_io_wait(io);
	}
	return rc;
}

static int read_all(struct world *world, struct rh_space_io *io, uint32_t seed)
{
	int rc = 0;
	char *expected = malloc(ROOM);
	for (int r = RECORDS - 1; !rc && r >= 0; r--) {
		int64_t bytes = rh_space_round(world->space, sizes[r]);
		fill(expected, bytes, seed + (uint32_t)r);
		memset(world->memory, 0x5a, (size_t)bytes);
		rh_space_read(io, world->record[r], world->memory);
		rc = rh_space_io_wait(io);
		if (!rc)
			assert_memory_equal(world->memory, expected, (size_t)bytes);
	}
	free(expected);
	return rc;
}

static void check_round_trip(const char *where, int dirs, enum rh_drive_engine engine)
{
	struct world world;
	struct rh_space_io *io;
	struct rh_space_stats stats;
	world_open(&world, where);
	check_ok(space_open(&world, (struct rh_space_options){.dirs = dirs, .engine = engine, .depth = 4}));
	check_ok(rh_space_io_create(world.space, sizes[4], &io));
	rh_space_read(io, world.record[1], memset(world.memory, 1, 4096)); /* never written */
	check_ok(rh_space_io_wait(io));
	for (int i = 0; i < 4096; i++)
		assert_int_equal(world.memory[i], 0);
	for (uint32_t seed = 1; seed < 3; seed++) {
		check_ok(write_all(&world, io, seed));
		check_ok(read_all(&world, io, seed));
	}
	rh_space_stats(world.space, &stats);
	int64_t bytes = 0, most = 0, least = INT64_MAX, reserved = 0, read = 0, written = 0;
	for (int r = 0; r < RECORDS; r++)
		bytes += rh_space_round(world.space, sizes[r]);
	for (int d = 0; d < stats.drives; d++) {
		reserved += stats.reserved_bytes[d];
		read += stats.read_bytes[d];
		written += stats.written_bytes[d];
		most = stats.reserved_bytes[d] > most ? stats.reserved_bytes[d] : most;
		least = stats.reserved_bytes[d] < least ? stats.reserved_bytes[d] : least;
	}
	assert_int_equal(reserved, bytes);
	assert_int_equal(read, 2 * reserved);
	assert_int_equal(written, 2 * reserved);
	assert_true(most - least <= RH_SPACE_BLOCK);
	printf("%s: %d drives by %s%s, %lld bytes, unit %lld\n", where, dirs, stats.engine, stats.direct ? ", direct" : "",
	       (long long)reserved, (long long)rh_space_round(world.space, 1));
	rh_space_io_destroy(io);
	world_close(&world);
}

static void test_what_is_written_comes_back(void **state)
{
	(void)state;
	static const char *const places[] = {"build", "/dev/shm"};
	for (int p = 0; p < 2; p++)
		for (int dirs = 1; dirs <= DRIVES && !access(places[p], W_OK); dirs += 2)
			for (int engine = RH_DRIVE_BEST; engine <= RH_DRIVE_THREADS; engine++)
				check_round_trip(places[p], dirs, (enum rh_drive_engine)engine);
}

/* The files hold what the records need and no byte more, from the start. */
static void test_room_is_reserved_to_the_byte(void **state)
{
	(void)state;
	struct world world;
	struct stat about;
	char path[64];
	world_open(&world, "build");
	check_ok(space_open(&world, (struct rh_space_options){.dirs = 2}));
	int64_t found = 0, bytes = 0;
	for (int r = 0; r < RECORDS; r++)
		bytes += rh_space_round(world.space, sizes[r]);
	for (int fd = 3; fd < 64; fd++) {
		char name[256] = "";
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		if (readlink(path, name, sizeof name - 1) > 0 && strstr(name, "(deleted)") && strstr(name, "rh-drives") &&
		    !fstat(fd, &about)) {
			found += about.st_size;
			assert_true(about.st_blocks * 512 >= about.st_size);
		}
	}
	assert_int_equal(found, bytes);
	world_close(&world);
}

/* Each call in turn goes wrong in each way, on each engine; the run after it is well. In memory where there is such a place: a thousand
 * files take long on a busy disk. */
static void test_each_fault_is_told_in_one_line_or_mended(void **state)
{
	(void)state;
	static const struct {
		enum rh_drive_fault fault;
		int code, rc; /* rc 0: mended */
		const char *told;
		int64_t stride; /* but under RH_LONG */
	} faults[] = {
	        {RH_FAULT_FAIL, -EIO, -EIO, "Input/output error", 1},
	        {RH_FAULT_FAIL, -ENOSPC, -ENOSPC, "No space left", 7},
	        {RH_FAULT_SHORT, 0, 0, NULL, 3},
	        {RH_FAULT_TORN, 0, -EBADMSG, "checksum", 3},
	        {RH_FAULT_FLIP, 0, -EBADMSG, "checksum", 3},
	        {RH_FAULT_STALL, 0, -ETIMEDOUT, "no answer", 13},
	};
	int is_long = getenv("RH_LONG") != NULL;
	int64_t calls = 0;
	for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
		for (int engine = RH_DRIVE_BEST; engine <= RH_DRIVE_THREADS; engine++)
			for (int64_t n = 1; n < 1000; n += is_long ? 1 : faults[f].stride) {
				struct world world;
				struct rh_space_io *io = NULL;
				world_open(&world, check_place("build"));
				rh_drive_fail_nth(n, faults[f].fault, faults[f].code);
				int rc = space_open(
				        &world, (struct rh_space_options){.dirs = 2,
				                                          .engine = (enum rh_drive_engine)engine,
				                                          .stall_seconds = faults[f].fault == RH_FAULT_STALL ? 0.3 : 0});
				if (!rc) {
					check_ok(rh_space_io_create(world.space, sizes[4], &io));
					rc = write_all(&world, io, 7);
					/* twice: a fault stays, and nothing crashes on the way out */
					for (int again = 0; !again || (rc && again < 2); again++)
						rc = rc ? (read_all(&world, io, 7), rc) : read_all(&world, io, 7);
				}
				calls = rh_drive_fail_nth(0, 0, 0);
				int harmless = calls < n || faults[f].rc == 0 || (faults[f].fault != RH_FAULT_FAIL && n <= 6);
				if (rc != faults[f].rc && !(harmless && !rc))
					fail_msg("fault %zu, call %lld: %d, %s", f, (long long)n, rc, rc ? rh_error(rc) : "nothing told");
				if (rc) {
					const char *line = rh_error(rc);
					assert_null(strchr(line, '\n'));
					if (!strstr(line, faults[f].told) ||
					    (n > 6 && rc != -ETIMEDOUT && !strstr(line, world.drives.root)) ||
					    (n > 6 && !strstr(line, "optimizer state of model.layers.3")))
						fail_msg("fault %zu, call %lld: %s", f, (long long)n, line);
				}
				rh_space_close(world.space);
				world.space = NULL;
				rh_space_io_destroy(io);
				world_close(&world);
				if (calls < n)
					break;
			}
	printf("%lld calls\n", (long long)calls);
}

static void count_ended(void *count)
{
	atomic_fetch_add((atomic_int *)count, 1);
}

/* Through a queue: each transfer in the order in which it was submitted, no more at once than there is room for. A fault comes with its
 * transfer, and every later one has it, too. */
static void test_a_queue_moves_records_beside_its_caller(void **state)
{
	(void)state;
	enum { BYTES = 4096, TIMES = 40, AT_ONCE = 3 };
	const struct rh_device_ops no_queue = {0};
	struct rh_device device = {.ops = &no_queue};
	for (int spoilt = 0; spoilt < 2; spoilt++) {
		struct world world;
		struct rh_space_queue *write, *read;
		atomic_int ended = 0;
		world_open(&world, check_place("build"));
		check_ok(space_open(&world, (struct rh_space_options){.dirs = 2, .most_written_bytes = spoilt ? TIMES / 2 * BYTES : 0}));
		struct rh_space_queue_options options = {.device = &device,
		                                         .space = world.space,
		                                         .bytes = BYTES,
		                                         .capacity = AT_ONCE,
		                                         .is_write = 1,
		                                         .ended = count_ended,
		                                         .context = &ended};
		check_ok(rh_space_queue_create(&options, &write));
		options.is_write = 0;
		check_ok(rh_space_queue_create(&options, &read));
		assert_false(rh_space_queue_is_busy(write) || rh_space_queue_has_room(NULL) || rh_space_queue_is_busy(NULL));
		int rc = 0, taken = 0;
		for (int n = 0; n < TIMES; n++) {
			if (!rh_space_queue_has_room(write)) {
				assert_int_equal(n - taken, AT_ONCE);
				int now = rh_space_queue_take(write);
				assert_true(!rc || now == rc);
				rc = now;
				taken++;
			}
			fill(world.memory + n % AT_ONCE * BYTES, BYTES, (uint32_t)n);
			check_ok(rh_space_queue_submit(write, &(struct rh_space_transfer){.record = world.record[1],
			                                                                  .memory = world.memory + n % AT_ONCE * BYTES}));
		}
		while (rh_space_queue_is_busy(write)) {
			int now = rh_space_queue_take(write);
			assert_true(!rc || now == rc);
			rc = now;
		}
		assert_int_equal(rc != 0, spoilt);
		if (!spoilt) {
			char expected[BYTES];
			fill(expected, BYTES, TIMES - 1);
			check_ok(rh_space_queue_submit(read,
			                               &(struct rh_space_transfer){.record = world.record[1], .memory = world.memory}));
			check_ok(rh_space_queue_take(read));
			assert_memory_equal(world.memory, expected, BYTES);
			assert_int_equal(ended, TIMES + 1);
		}
		rh_space_queue_destroy(write);
		rh_space_queue_destroy(read);
		rh_error_clear();
		world_close(&world);
	}
}

/* What a call returned for a request of three units moves it on by whole units; the next call begins aligned. */
static void test_a_drives_answer_moves_a_request_on(void **state)
{
	(void)state;
	enum { UNIT = 4096 };
	static const struct {
		int64_t result, moved;
		int is_over;
	} answers[] = {{-EAGAIN, 0, 0},    {-EINTR, 0, 0}, {UNIT + 900, UNIT, 0}, {-EAGAIN, UNIT, 0}, {2 * UNIT - 1, 2 * UNIT, 0},
	               {UNIT, 3 * UNIT, 1}};
	struct rh_drive_request request = {.bytes = 3 * UNIT};
	for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
		assert_int_equal(drive_advance(&request, answers[i].result, UNIT), answers[i].is_over);
		assert_int_equal(request.moved, answers[i].moved);
	}
	assert_int_equal(request.rc, 0);
	struct rh_drive_request cut = {.bytes = 3 * UNIT};
	assert_int_equal(drive_advance(&cut, UNIT - 1, UNIT), 1); /* less than a unit: the file ends there */
	assert_int_equal(cut.rc, -EIO);
}

/* The first test: forks before there are threads. */
static void test_two_runs_on_one_directory_are_refused(void **state)
{
	(void)state;
	struct world world, other;
	int opened[2];
	char go = 1;
	world_open(&world, "build");
	assert_int_equal(pipe(opened), 0);
	other = world;
	other.drives.name[0] = world.drives.dir[2];
	other.drives.name[1] = world.drives.dir[1];
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child) {
		int rc = read(opened[0], &go, 1) == 1 ? space_open(&other, (struct rh_space_options){.dirs = 2}) : 0;
		_exit(rc == -EBUSY && strstr(rh_error(rc), world.drives.dir[1]) && strstr(rh_error(rc), "in use by another run") ? 0 : 1);
	}
	check_ok(space_open(&world, (struct rh_space_options){.dirs = 2}));
	assert_int_equal(write(opened[1], &go, 1), 1);
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	close(opened[0]);
	close(opened[1]);
	world_close(&world);
}

static void test_directories_that_cannot_be_used_are_named(void **state)
{
	(void)state;
	struct world world;
	world_open(&world, "build");
	world.drives.name[1] = world.drives.dir[0];
	assert_int_equal(space_open(&world, (struct rh_space_options){.dirs = 2}), -EINVAL);
	assert_non_null(strstr(rh_error(-EINVAL), "twice"));
	world.drives.name[1] = (char *)(uintptr_t) "build/no/such/directory";
	assert_int_equal(space_open(&world, (struct rh_space_options){.dirs = 2}), -ENOENT);
	assert_non_null(strstr(rh_error(-ENOENT), "build/no/such/directory"));
	world_close(&world);
}

/* What is on NVMe needs no name: a directory that vanishes while a run is in it does no harm. */
static void test_a_directory_that_vanishes_does_no_harm(void **state)
{
	(void)state;
	struct world world;
	struct rh_space_io *io;
	world_open(&world, "build");
	check_ok(space_open(&world, (struct rh_space_options){.dirs = 1}));
	check_ok(rh_space_io_create(world.space, sizes[4], &io));
	check_ok(write_all(&world, io, 3));
	assert_int_equal(rmdir(world.drives.dir[0]), 0);
	check_ok(read_all(&world, io, 3));
	assert_int_equal(mkdir(world.drives.dir[0], 0777), 0);
	rh_space_close(world.space);
	world.space = NULL;
	rh_space_io_destroy(io);
	world_close(&world);
}

static void test_writes_beyond_their_budget_are_refused(void **state)
{
	(void)state;
	struct world world;
	struct rh_space_io *io;
	world_open(&world, "build");
	int64_t once = 0;
	for (int r = 0; r < RECORDS; r++)
		once += (sizes[r] + 4095) / 4096 * 4096;
	check_ok(space_open(&world, (struct rh_space_options){.dirs = 1, .most_written_bytes = once}));
	check_ok(rh_space_io_create(world.space, sizes[4], &io));
	check_ok(write_all(&world, io, 3));
	check_ok(read_all(&world, io, 3));
	int rc = write_all(&world, io, 4);
	assert_int_equal(rc, -EDQUOT);
	assert_non_null(strstr(rh_error(rc), "max_nvme_writes"));
	assert_int_equal(rh_space_io_wait(io), -EDQUOT);
	rh_space_io_destroy(io);
	world_close(&world);
}

static void count_done(struct rh_drive_request *request)
{
	++*(_Atomic int *)request->context;
}

static void sleep_ms(int ms)
{
	struct timespec wait = {ms / 1000, ms % 1000 * 1000000L};
	nanosleep(&wait, NULL);
}

/* Of two requests the first is answered late, and with depth 1 the second stands in line behind it. Who closes with patience has both;
 * who has none hears of neither any more, and may forget them. */
static void check_close(enum rh_drive_engine engine, double patience)
{
	enum { BYTES = 8192, LATE_MS = 300 };
	char path[] = "build/rh-drive-XXXXXX";
	_Atomic int done = 0;
	struct rh_drive *drive;
	struct rh_drive_request *request = calloc(2, sizeof *request);
	static _Alignas(4096) char memory[2][BYTES]; /* a drive that was abandoned may still write to it */
	int file = mkstemp(path);
	assert_true(file >= 0 && !unlink(path) && !ftruncate(file, BYTES));
	struct rh_drive_options options = {.descriptor = file, .depth = 1, .unit = 4096, .engine = engine};
	double began = rh_clock_seconds();
	rh_drive_fail_nth(1, RH_FAULT_DELAY, LATE_MS);
	check_ok(rh_drive_open(&options, &drive));
	for (int i = 0; i < 2; i++) {
		request[i] = (struct rh_drive_request){.kind = i ? RH_DRIVE_WRITE : RH_DRIVE_READ,
		                                       .memory = memory[patience > 1] + 4096 * i,
		                                       .offset = 4096 * i,
		                                       .bytes = 4096,
		                                       .done = count_done,
		                                       .context = &done};
		drive->ops->submit(drive, &request[i]);
	}
	drive->ops->close(drive, patience);
	rh_drive_fail_nth(0, 0, 0);
	int told = done;
	if (patience > 1 || (rh_clock_seconds() - began) * 1000 < LATE_MS) /* else this program was kept off until the answer came */
		assert_int_equal(told, patience > 1 ? 2 : 0);
	memset(request, 0xff, 2 * sizeof *request); /* who looks at it now calls nowhere */
	free(request);
	close(file);
	sleep_ms(LATE_MS + 200);
	assert_int_equal(done, told);
}

static void test_nothing_is_heard_of_a_drive_that_is_closed(void **state)
{
	(void)state;
	for (int engine = RH_DRIVE_BEST; engine <= RH_DRIVE_THREADS; engine++) {
		check_close((enum rh_drive_engine)engine, 10);
		check_close((enum rh_drive_engine)engine, 0.05);
		/* the same of a whole space, which waits a second for drives that have stalled */
		struct world world;
		struct rh_space_io *io;
		world_open(&world, "build");
		rh_drive_fail_nth(12, RH_FAULT_DELAY, 1500);
		check_ok(space_open(&world, (struct rh_space_options){
		                                    .dirs = 1, .depth = 2, .engine = (enum rh_drive_engine)engine, .stall_seconds = 0.2}));
		check_ok(rh_space_io_create(world.space, sizes[4], &io));
		assert_int_equal(write_all(&world, io, 7), -ETIMEDOUT);
		rh_drive_fail_nth(0, 0, 0);
		rh_space_close(world.space);
		world.space = NULL;
		rh_space_io_destroy(io);
		world_close(&world);
		sleep_ms(700);
	}
}

/* What the meter says and what the kernel counts. */
static int64_t kernel_written(void)
{
	char line[128];
	long long bytes = -1;
	FILE *file = fopen("/proc/self/io", "r");
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "write_bytes: %lld", &bytes) == 1)
			break;
	if (file)
		fclose(file);
	return bytes;
}

static void test_bytes_written_are_those_the_kernel_counts(void **state)
{
	(void)state;
	struct world world;
	struct rh_space_io *io;
	struct rh_space_stats stats;
	if (kernel_written() < 0)
		check_skip("this kernel does not count bytes written (/proc/self/io)");
	for (int engine = RH_DRIVE_BEST; engine <= RH_DRIVE_THREADS; engine++) {
		world_open(&world, "build");
		check_ok(space_open(&world, (struct rh_space_options){.dirs = 2, .engine = (enum rh_drive_engine)engine}));
		check_ok(rh_space_io_create(world.space, sizes[4], &io));
		int64_t before = kernel_written();
		for (uint32_t seed = 0; seed < 4; seed++)
			check_ok(write_all(&world, io, seed));
		rh_space_stats(world.space, &stats);
		double counted = (double)(kernel_written() - before), said = (double)(stats.written_bytes[0] + stats.written_bytes[1]);
		int direct = stats.direct;
		rh_space_io_destroy(io);
		world_close(&world);
		if (!direct)
			check_skip("build/ lies on a file system without direct access, whose writes come later");
		printf("%s: meter %.0f, kernel %.0f\n", stats.engine, said, counted);
		assert_true(counted >= said * 0.99 && counted <= said * 1.01);
	}
}

/* A file written on one machine is never read on another, but tests lower the instruction set in between. */
static void test_checksums_are_the_same_on_any_instruction_set(void **state)
{
	(void)state;
	static char bytes[5000];
	uint64_t seed = check_seed();
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (char)check_random(&seed);
	for (int64_t length = 0; length < (int64_t)sizeof bytes; length = length * 3 / 2 + 1) {
		uint64_t base = checksum_base(bytes, length);
		for (enum rh_cpu_isa isa = RH_CPU_AVX2; isa <= rh_cpu_best_isa(); isa++)
			assert_true(RH_CPU_PICK(isa, checksum)(bytes, length) == base);
	}
}

int main(void)
{
	rh_log_quiet(1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_two_runs_on_one_directory_are_refused),
	        cmocka_unit_test(test_a_queue_moves_records_beside_its_caller),
	        cmocka_unit_test(test_a_drives_answer_moves_a_request_on),
	        cmocka_unit_test(test_what_is_written_comes_back),
	        cmocka_unit_test(test_checksums_are_the_same_on_any_instruction_set),
	        cmocka_unit_test(test_room_is_reserved_to_the_byte),
	        cmocka_unit_test(test_each_fault_is_told_in_one_line_or_mended),
	        cmocka_unit_test(test_directories_that_cannot_be_used_are_named),
	        cmocka_unit_test(test_a_directory_that_vanishes_does_no_harm),
	        cmocka_unit_test(test_writes_beyond_their_budget_are_refused),
	        cmocka_unit_test(test_nothing_is_heard_of_a_drive_that_is_closed),
	        cmocka_unit_test(test_bytes_written_are_those_the_kernel_counts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
