/* Runs whose Nth mapping of memory, or Nth call of io_uring, fails: each N in turn until a run has fewer. A run ends with its result or
 * with one line; it does not crash, does not hang, and leaves no descriptor and no thread behind. */
#include "cli/good.h"
#include "limit_time.h"

#include "core/log.h"
#include "train/train.h"

#include <dlfcn.h>
#include <liburing.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum call { MAPPING, RING_MADE, RING_FILES, RING_BUFFERS, RING_SUBMITS, RING_WAITS, CALLS };
static const char *const call_names[CALLS] = {
        "mmap", "io_uring_queue_init", "io_uring_register_files", "io_uring_register_buffers", "io_uring_submit", "__io_uring_get_cqe"};

static struct {
	enum call call;
	_Atomic long asked; /* calls of that kind since it was armed */
	long at;            /* that fails; 0: none */
	int code;           /* negative errno */
} fault;

/* ThreadSanitizer calls mmap while it sets itself up, when code that it instruments would crash. */
#define BEFORE_SANITIZER __attribute__((no_sanitize("thread")))

BEFORE_SANITIZER static int is_due(enum call call)
{
	return fault.at && fault.call == call && atomic_fetch_add(&fault.asked, 1) + 1 == fault.at;
}

/* Linked before the C library's: the program's and its libraries' calls come here, the C library's own do not. */
BEFORE_SANITIZER void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
	if (is_due(MAPPING)) {
		errno = -fault.code;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

#define RING(kind, result, name, parameters, ...)                                                                                          \
	result name parameters                                                                                                             \
	{                                                                                                                                  \
		result(*real) parameters;                                                                                                  \
		*(void **)&real = dlsym(RTLD_NEXT, #name);                                                                                 \
		return is_due(kind) ? fault.code : real(__VA_ARGS__);                                                                      \
	}
RING(RING_MADE, int, io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags), entries, ring, flags)
RING(RING_FILES, int, io_uring_register_files, (struct io_uring * ring, const int *files, unsigned count), ring, files, count)
RING(RING_BUFFERS, int, io_uring_register_buffers, (struct io_uring * ring, const struct iovec *pieces, unsigned count), ring, pieces,
     count)
RING(RING_SUBMITS, int, io_uring_submit, (struct io_uring * ring), ring)
RING(RING_WAITS, int, __io_uring_get_cqe,
     (struct io_uring * ring, struct io_uring_cqe **cqe, unsigned submit, unsigned wait, sigset_t *mask), ring, cqe, submit, wait, mask)

static int entries_of(const char *path)
{
	DIR *entries = opendir(path);
	int count = 0;
	while (entries && readdir(entries))
		count++;
	if (entries)
		closedir(entries);
	return count;
}

enum { DONE = 0, REFUSED = 1, SILENT = 3, DESCRIPTORS = 4, THREADS = 5, NOT_REACHED = 16 };

/* In a process of its own, which a hang ends. */
static int run(const struct scratch *scratch, enum call call, long at, int code)
{
	int status;
	fflush(NULL);
	check_ok(rh_dir_remove(path_of("%s/out", scratch->dir)));
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		char line[1024];
		char *argv[64], *rest = line;
		int argc = 0;
		struct rh_config config;
		struct rh_train_result result;
		limit_time(240);
		if (!freopen("/dev/null", "w", stderr))
			_exit(90);
		snprintf(line, sizeof line,
		         "--model_name_or_path %s/hf --train_file %s/rows.jsonl --max_length 64 --per_device_train_batch_size 2 "
		         "--max_steps 2 "
		         "--save_steps 1 --output_dir %s/out --spill optimizer,masters --max_nvme 64MiB --nvme_dirs %s/nvme",
		         scratch->dir, scratch->dir, scratch->dir, scratch->dir);
		for (char *word; (word = strsep(&rest, " "));)
			argv[argc++] = word;
		if (rh_config_load("train", argc, argv, NULL, &config))
			_exit(91);
		/* ThreadSanitizer starts a thread of its own with the first one */
		int files = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task") + CHECK_THREADS_ONLY;
		fault.call = call;
		fault.code = code;
		fault.at = at;
		int rc = rh_train(&config, &result);
		long asked = atomic_load(&fault.asked);
		fault.at = 0;
		int ends = rc && !*rh_error(rc) ? SILENT : rc ? REFUSED : DONE;
		for (int tries = 0; entries_of("/proc/self/task") > threads && tries < 2000;
		     tries++) /* the kernel's own end a little later */
			usleep(1000);
		if (entries_of("/proc/self/fd") > files)
			ends = DESCRIPTORS;
		else if (entries_of("/proc/self/task") > threads)
			ends = THREADS;
		_exit(ends + (asked < at ? NOT_REACHED : 0));
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (!WIFEXITED(status))
		fail_msg("%s, call %ld: ended by signal %d", call_names[call], at, WTERMSIG(status));
	return WEXITSTATUS(status);
}

/* Every call of these. */
static void sweep(enum call call, int code)
{
	struct scratch scratch;
	int refused = 0;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/nvme", scratch.dir)));
	if (run(&scratch, call, 0, code) == 90)
		check_skip("no /dev/null");
	long at = 1;
	for (;; at++) {
		int ends = run(&scratch, call, at, code);
		if (ends & NOT_REACHED)
			break;
		if (ends != DONE && ends != REFUSED)
			fail_msg("%s, call %ld fails with %s: %s", call_names[call], at, strerror(-code),
			         ends == SILENT        ? "no line says why the run ended"
			         : ends == DESCRIPTORS ? "a descriptor is left open"
			         : ends == THREADS     ? "a thread is left"
			                               : "another end");
		refused += ends == REFUSED;
		struct rh_names names;
		check_ok(rh_dir_list(path_of("%s/nvme", scratch.dir), &names));
		for (size_t i = 0; i < names.count; i++)
			if (strstr(names.name[i], "roundhouse"))
				fail_msg("%s, call %ld: %s is left in nvme_dirs", call_names[call], at, names.name[i]);
		rh_names_free(&names);
	}
	printf("%s, %s: fewer than %ld calls; %d ended the run\n", call_names[call], strerror(-code), at, refused);
	scratch_close(&scratch);
}

static void test_mappings_that_fail(void **state)
{
	(void)state;
	sweep(MAPPING, -ENOMEM);
}

static void test_rings_that_cannot_be_made_or_registered(void **state)
{
	(void)state;
	static const int codes[] = {-ENOMEM, -EPERM};
	for (int i = 0; i < 2; i++)
		for (enum call call = RING_MADE; call <= RING_BUFFERS; call++)
			sweep(call, codes[i]);
}

static void test_submissions_and_waits_that_fail(void **state)
{
	(void)state;
	sweep(RING_SUBMITS, -EAGAIN);
	sweep(RING_SUBMITS, -EIO);
	sweep(RING_WAITS, -EINTR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_mappings_that_fail),
	        cmocka_unit_test(test_rings_that_cannot_be_made_or_registered),
	        cmocka_unit_test(test_submissions_and_waits_that_fail),
	};
	rh_log_quiet(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
