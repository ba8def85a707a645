/* Tasks: the same results, the same lines in the same order, whatever the number of threads; what is dropped is not done or not told. */
#include "check.h"

#include "core/tasks.h"

#include <fcntl.h>
#include <string.h>

static const int thread_counts[] = {5, 2, 1, 0}; /* 0: none, the tasks are the caller's */
enum { COUNTS = sizeof thread_counts / sizeof *thread_counts };

static int run_on(int threads, int (*root)(struct rh_tasks *, void *), void *context)
{
	return threads ? rh_tasks_run(threads, root, context) : root(NULL, context);
}

/* What `root` says, into text. */
static int said_by(int threads, int (*root)(struct rh_tasks *, void *), void *context, char *text, size_t room)
{
	FILE *file = tmpfile();
	assert_non_null(file);
	fflush(stderr);
	int terminal = dup(2);
	assert_true(terminal >= 0 && dup2(fileno(file), 2) == 2);
	int rc = run_on(threads, root, context);
	fflush(stderr);
	assert_int_equal(dup2(terminal, 2), 2);
	close(terminal);
	rewind(file);
	text[fread(text, 1, room - 1, file)] = 0;
	fclose(file);
	return rc;
}

/* The sum of [low, high), by halves; each says where it is, and warns of the first number it sees where that is odd. */
struct span {
	struct rh_task task;
	struct rh_tasks *tasks;
	int low, high, refused; /* the number that none may hold */
	int64_t sum;
};

static int add_span(void *context)
{
	struct span *span = context;
	int middle = span->low + (span->high - span->low) / 2;
	if (span->high - span->low == 1) {
		span->sum = span->low;
		if (span->low & 1)
			rh_warn_once("%d is odd", span->low);
		return span->low == span->refused ? rh_fail(-EDOM, "%d is refused", span->low) : 0;
	}
	struct span half[2] = {{.tasks = span->tasks, .low = span->low, .high = middle, .refused = span->refused},
	                       {.tasks = span->tasks, .low = middle, .high = span->high, .refused = span->refused}};
	for (int i = 1; i >= 0; i--)
		rh_task_begin(span->tasks, &half[i].task, add_span, &half[i]);
	rh_note("%d to %d", span->low, span->high);
	int rc = 0;
	for (int i = 0; !rc && i < 2; i++)
		rc = rh_task_finish(&half[i].task);
	for (int i = 0; i < 2; i++)
		rh_task_drop(&half[i].task);
	span->sum = half[0].sum + half[1].sum;
	return rc;
}

static int add_all(struct rh_tasks *tasks, void *context)
{
	struct span *span = context;
	span->tasks = tasks;
	return add_span(span);
}

static void test_tasks_in_tasks_give_the_same_results_and_lines_on_any_threads(void **state)
{
	(void)state;
	char said[COUNTS][8192];
	for (int i = 0; i < COUNTS; i++) {
		struct span span = {.high = 100, .refused = -1};
		assert_int_equal(said_by(thread_counts[i], add_all, &span, said[i], sizeof said[i]), 0);
		assert_int_equal(span.sum, 4950);
		if (i > 1)
			assert_string_equal(said[i], said[1]);
	}
	assert_non_null(strstr(said[0], "warning: 1 is odd\n")); /* and no other before it, which would silence it */
	assert_null(strstr(said[0], "3 is odd"));
	assert_non_null(strstr(said[1], "0 to 100\n0 to 50\n0 to 25\n0 to 12\n"));
}

static void test_a_task_that_fails_gives_its_code_and_line_to_whom_asks(void **state)
{
	(void)state;
	char said[8192], first[8192] = "";
	for (int i = 0; i < COUNTS; i++) {
		struct span span = {.high = 100, .refused = 37};
		assert_int_equal(said_by(thread_counts[i], add_all, &span, said, sizeof said), -EDOM);
		assert_string_equal(rh_error(-EDOM), "37 is refused");
		assert_null(strstr(said, "50 to 100")); /* dropped: nobody hears of it */
		if (i)
			assert_string_equal(said, first);
		else
			strcpy(first, said);
	}
	rh_error_clear();
}

static int count_one(void *context)
{
	__atomic_fetch_add((int *)context, 1, __ATOMIC_RELAXED);
	rh_note("never told");
	return rh_fail(-EIO, "a line of its own");
}

/* Drops all of many, of which some may have begun; keeps its own line. */
static int drop_all(struct rh_tasks *tasks, void *context)
{
	enum { MANY = 20 };
	struct rh_task task[MANY];
	for (int i = 0; i < MANY; i++)
		rh_task_begin(tasks, &task[i], count_one, context);
	int rc = rh_fail(-EPERM, "the owner's line");
	for (int i = MANY - 1; i >= 0; i--)
		rh_task_drop(&task[i]);
	assert_string_equal(rh_error(rc), "the owner's line");
	return rc;
}

static void test_dropped_tasks_are_over_and_leave_nothing(void **state)
{
	(void)state;
	char said[256];
	struct rh_task none = {0};
	for (int i = 0; i < COUNTS; i++) {
		int count = 0;
		assert_int_equal(said_by(thread_counts[i], drop_all, &count, said, sizeof said), -EPERM);
		assert_string_equal(rh_error(-EPERM), "the owner's line");
		assert_string_equal(said, "");
		assert_true(thread_counts[i] > 1 ? count <= 20 : count == 0);
	}
	assert_int_equal(rh_task_finish(&none), 0);
	rh_task_drop(&none);
	rh_error_clear();
}

static int answer(struct rh_tasks *tasks, void *context)
{
	(void)tasks;
	return *(const int *)context;
}

static void test_the_roots_result_is_its_own(void **state)
{
	(void)state;
	for (int i = 0; thread_counts[i]; i++)
		for (int result = -3; result < 3; result++)
			assert_int_equal(rh_tasks_run(thread_counts[i], answer, &result), result);
	rh_error_clear();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_tasks_in_tasks_give_the_same_results_and_lines_on_any_threads),
	        cmocka_unit_test(test_a_task_that_fails_gives_its_code_and_line_to_whom_asks),
	        cmocka_unit_test(test_dropped_tasks_are_over_and_leave_nothing),
	        cmocka_unit_test(test_the_roots_result_is_its_own),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
