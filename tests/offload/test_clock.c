/* The wall clock is set while a drive works: an hour back or forth, once or all the time. No deadline counts on it. */
#include "offload/drives.h"

#include "core/log.h"
#include "offload/space.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

static _Atomic long set_by; /* seconds that the wall clock was set by */

/* Linked before the C library's. */
int clock_gettime(clockid_t clock, struct timespec *out)
{
	int rc = (int)syscall(SYS_clock_gettime, clock, out);
	if (!rc && clock == CLOCK_REALTIME)
		out->tv_sec += atomic_load(&set_by);
	return rc;
}

static void test_a_clock_that_is_set_declares_no_drive_dead(void **state)
{
	(void)state;
	enum { BYTES = 4 * RH_SPACE_BLOCK, LATE_MS = 60 };
	static const long jumps[] = {-3600, 3600, -86400 * 365};
	char *memory = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int jump = 0; jump < 3; jump++)
		for (int engine = RH_DRIVE_BEST; engine <= RH_DRIVE_THREADS; engine++)
			for (int64_t late = 4; late < 12; late++) {
				struct drives drives;
				struct rh_space *space;
				struct rh_space_io *io;
				int record;
				drives_make(&drives);
				rh_drive_fail_nth(late, RH_FAULT_DELAY, LATE_MS); /* so that somebody waits for it */
				check_ok(rh_space_open(
				        &(struct rh_space_options){
				                .dir = drives.name, .dirs = 1, .engine = (enum rh_drive_engine)engine, .stall_seconds = 30},
				        &space));
				check_ok(rh_space_take(space, BYTES, "optimizer state", "model.layers.3", &record));
				check_ok(rh_space_reserve(space));
				rh_space_attach(space, memory, 2 * BYTES);
				check_ok(rh_space_io_create(space, BYTES, &io));
				atomic_store(&set_by, jumps[jump]);
				memset(memory, 7, BYTES);
				rh_space_write(io, record, memory);
				check_ok(rh_space_io_wait(io));
				rh_space_read(io, record, memory + BYTES);
				check_ok(rh_space_io_wait(io));
				atomic_store(&set_by, 0);
				rh_drive_fail_nth(0, 0, 0);
				assert_memory_equal(memory, memory + BYTES, BYTES);
				rh_space_close(space);
				rh_space_io_destroy(io);
				drives_remove(&drives);
			}
	munmap(memory, 2 * BYTES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_clock_that_is_set_declares_no_drive_dead)};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
