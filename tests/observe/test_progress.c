#include "check.h"

#include "core/file.h"
#include "core/log.h"
#include "observe/progress.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* Everything written to stderr while `act` runs. */
static char *capture(void (*act)(void))
{
	static char text[65536];
	char path[] = "/tmp/rh-progress-XXXXXX";
	fflush(stderr);
	int file = mkstemp(path), kept = dup(2);
	assert_true(file >= 0 && kept >= 0);
	dup2(file, 2);
	act();
	fflush(stderr);
	dup2(kept, 2);
	close(kept);
	ssize_t length = pread(file, text, sizeof text - 1, 0);
	assert_true(length >= 0);
	text[length] = 0;
	close(file);
	unlink(path);
	return text;
}

static struct rh_step_report report_of(int64_t step)
{
	return (struct rh_step_report){.step = step,
	                               .steps = 200,
	                               .epoch = (double)step / 100,
	                               .loss = 1.25,
	                               .grad_norm = 0.5,
	                               .learning_rate = 2e-4,
	                               .tokens_per_second = 1234.4,
	                               .trained_tokens = 100,
	                               .seconds_left = 3725,
	                               .vram_peak_bytes = 3ll << 29,
	                               .ram_peak_bytes = 2048};
}

static int columns;
static enum rh_progress_style style;
static double change; /* of the loss, from step to step */

static void act_many_steps(void)
{
	struct rh_progress *progress;
	check_ok(rh_progress_open(2, RH_PROGRESS_BAR, 200, &progress));
	for (int64_t step = 1; step <= 60; step++) {
		struct rh_step_report report = report_of(step);
		report.loss += change * (double)step;
		report.planned_tokens_per_second = 2468.8;
		rh_progress_step(progress, &report, (double)step);
	}
	rh_progress_close(progress);
}

static void act_load(void)
{
	struct rh_progress *progress;
	check_ok(rh_progress_open(2, RH_PROGRESS_BAR, 80, &progress));
	for (int64_t done = 1; done <= 4; done++)
		rh_progress_loading(progress, done << 30, 4ll << 30, change * (double)done);
	rh_progress_close(progress);
}

static void act_one_step(void)
{
	struct rh_progress *progress;
	struct rh_step_report report = report_of(100);
	check_ok(rh_progress_open(2, style, columns, &progress));
	rh_progress_step(progress, &report, 1);
	rh_progress_logged(progress, &report);
	rh_progress_close(progress);
}

/* The last drawing, without its carriage return, the clearing of the rest and the newline. */
static char *last_line(char *text)
{
	char *line = strrchr(text, '\r');
	assert_non_null(line);
	char *end = strstr(line, "\x1b[K\n");
	assert_non_null(end);
	*end = 0;
	return line + 1;
}

static void test_bar_shows_what_fits(void **state)
{
	(void)state;
	style = RH_PROGRESS_BAR;
	static const struct {
		int columns;
		const char *line;
	} cases[] = {
	        {170, "[####################--------------------]  step 100/200  epoch 1.00  loss 1.2500  grad norm 0.5  lr 0.0002  1234 "
	              "tokens/s  "
	              "1:02:05 left  device 1.50 GiB  ram 2.00 KiB"},
	        {80, "[#####-----]  step 100/200  loss 1.2500  lr 0.0002  1234 tokens/s  1:02:05 left"},
	        {61, "[########---------]  step 100/200  loss 1.2500  1:02:05 left"},
	        {40, "step 100/200  loss 1.2500  1:02:05 left"},
	        {30, "step 100/200  loss 1.2500"},
	        {13, "step 100/200"},
	        {5, ""},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		columns = cases[i].columns;
		const char *line = last_line(capture(act_one_step));
		assert_true((int)strlen(line) < columns);
		assert_string_equal(line, cases[i].line);
	}
	for (columns = 1; columns < 500; columns++)
		assert_true((int)strlen(last_line(capture(act_one_step))) < columns);
}

static void test_bar_tells_the_trend_and_the_share_of_the_plan(void **state)
{
	(void)state;
	static const double changes[] = {-0.01, 0, 0.01};
	static const char *const said[] = {" falling  ", " level  ", " rising  "};
	for (int i = 0; i < 3; i++) {
		change = changes[i];
		char *text = capture(act_many_steps);
		assert_non_null(strstr(text, "1234 tokens/s (50 % of plan)"));
		char *early = strstr(text, "step 19/");
		assert_non_null(early);
		assert_null(memmem(early, strcspn(early, "\r"), said[i], strlen(said[i]))); /* too few to tell */
		assert_non_null(strstr(last_line(text), said[i]));
	}
}

/* Once it has taken a second, and not when all is there. */
static void test_bar_shows_a_slow_load(void **state)
{
	(void)state;
	change = 0.6;
	char *text = capture(act_load);
	assert_null(strstr(text, "1.00 GiB of"));
	assert_null(strstr(text, "2.00 GiB of"));
	assert_non_null(strstr(text, "]  loading the model: 3.00 GiB of 4.00 GiB"));
	assert_null(strstr(text, "4.00 GiB of"));
	change = 0.1;
	assert_string_equal(capture(act_load), "");
}

/* What was logged stays above the bar, in one line of the terminal. */
static void test_logged_lines_stay_above_the_bar(void **state)
{
	(void)state;
	style = RH_PROGRESS_BAR;
	columns = 80;
	assert_non_null(
	        strstr(capture(act_one_step), "\r\x1b[Kstep 100/200  mean loss 1.2500  lr 0.0002  1234 tokens/s  1:02:05 left\n\r["));
	columns = 40;
	assert_non_null(strstr(capture(act_one_step), "\r\x1b[Kstep 100/200  mean loss 1.2500\n\rstep"));
}

static void test_lines_are_plain(void **state)
{
	(void)state;
	style = RH_PROGRESS_LINES;
	assert_string_equal(capture(act_one_step),
	                    "step 100/200  epoch 1.00  mean loss 1.2500  grad norm 0.5  lr 0.0002  1234 tokens/s  1:02:05 left  "
	                    "device 1.50 GiB  ram 2.00 KiB\n");
}

static void act_first_step(void)
{
	struct rh_progress *progress;
	struct rh_step_report report = report_of(1);
	check_ok(rh_progress_open(2, style, 60, &progress));
	rh_progress_first(progress, &report);
	rh_progress_close(progress);
}

static void test_the_first_step_is_told_where_there_is_no_bar(void **state)
{
	(void)state;
	style = RH_PROGRESS_LINES;
	assert_string_equal(capture(act_first_step), "step 1/200 done  1234 tokens/s  1:02:05 left\n");
	style = RH_PROGRESS_BAR;
	assert_string_equal(capture(act_first_step), "");
}

/* An evaluation by itself, or (columns 61) in the middle of a run. */
static void act_evaluation(void)
{
	struct rh_progress *progress;
	struct rh_step_report report = report_of(100);
	check_ok(rh_progress_open(2, RH_PROGRESS_BAR, columns, &progress));
	if (columns == 61)
		rh_progress_step(progress, &report, 0);
	for (int64_t done = 10; done <= 30; done += 10)
		rh_progress_rows(progress, done, 30, 30 - (double)done, (double)done);
	rh_progress_rows(NULL, 1, 2, 0, 0);
	rh_progress_close(progress);
}

static void test_bar_shows_an_evaluation_and_goes(void **state)
{
	(void)state;
	columns = 40;
	assert_string_equal(capture(act_evaluation),
	                    "\revaluated 10/30 rows  0:20 left\x1b[K\revaluated 20/30 rows  0:10 left\x1b[K\r\x1b[K");
	columns = 61;
	const char *text = capture(act_evaluation);
	assert_non_null(strstr(text, "]  evaluated 20/30 rows  0:10 left\x1b[K\r["));
	assert_non_null(strstr(text, "]  step 100/200  loss 1.2500  1:02:05 left\x1b[K\n"));
	for (columns = 1; columns < 61; columns++)
		for (const char *at = capture(act_evaluation); (at = strstr(at, "\reval")); at++)
			assert_true((int)strcspn(at + 1, "\x1b") < columns);
}

static void act_log_between(void)
{
	struct rh_progress *progress;
	struct rh_step_report report = report_of(1);
	check_ok(rh_progress_open(2, RH_PROGRESS_BAR, 14, &progress));
	rh_note("before");
	rh_progress_step(progress, &report, 0);
	rh_note("between");
	rh_progress_close(progress);
	rh_note("after");
}

static void test_bar_steps_aside_for_log_lines(void **state)
{
	(void)state;
	assert_string_equal(capture(act_log_between), "before\n\rstep 1/200\x1b[K\r\x1b[Kbetween\n\rstep 1/200\x1b[K\nafter\n");
}

static void act_thousand_steps(void)
{
	struct rh_progress *progress;
	check_ok(rh_progress_open(2, RH_PROGRESS_BAR, 60, &progress));
	for (int64_t step = 1; step <= 200; step++) {
		struct rh_step_report report = report_of(step);
		report.loss = report.grad_norm = NAN;
		if (step == 100)
			report.loss = 7;
		rh_progress_step(progress, &report, (double)step * 0.01);
	}
	rh_progress_close(progress);
}

static void test_bar_is_redrawn_ten_times_a_second_and_at_the_end(void **state)
{
	(void)state;
	const char *text = capture(act_thousand_steps);
	int drawn = 0;
	for (const char *at = text; (at = strchr(at, '\r')); at++)
		drawn++;
	assert_in_range(drawn, 18, 22);
	assert_non_null(strstr(text, "step 200/200  loss 7.0000")); /* the last known loss */
	assert_null(strstr(text, "nan"));
}

static void act_unknown(void)
{
	struct rh_progress *progress;
	struct rh_step_report report = {.step = 1,
	                                .steps = 0,
	                                .epoch = NAN,
	                                .loss = INFINITY,
	                                .grad_norm = NAN,
	                                .learning_rate = NAN,
	                                .tokens_per_second = NAN,
	                                .seconds_left = NAN,
	                                .nvme_peak_bytes = INT64_MAX};
	check_ok(rh_progress_open(2, style, 100, &progress));
	rh_progress_step(progress, &report, NAN);
	rh_progress_logged(progress, &report);
	rh_progress_close(progress);
	rh_progress_close(NULL);
}

static void test_figures_that_are_not_known_are_left_out(void **state)
{
	(void)state;
	style = RH_PROGRESS_LINES;
	assert_string_equal(capture(act_unknown), "step 1/0  mean loss inf  nvme 8388608.00 TiB\n");
	style = RH_PROGRESS_BAR;
	assert_non_null(strstr(capture(act_unknown), "]  step 1/0  loss inf"));
}

static void *say_lines(void *unused)
{
	for (int i = 0; i < 500; i++)
		rh_note("line");
	return unused;
}

static void act_lines_from_a_thread(void)
{
	struct rh_progress *progress;
	pthread_t thread;
	check_ok(rh_progress_open(2, RH_PROGRESS_BAR, 20, &progress));
	assert_int_equal(pthread_create(&thread, NULL, say_lines, NULL), 0);
	for (int64_t step = 1; step <= 200; step++) {
		struct rh_step_report report = report_of(step);
		rh_progress_step(progress, &report, (double)step);
	}
	pthread_join(thread, NULL);
	rh_progress_close(progress);
}

/* No drawing comes between the clearing of the bar and the end of the line. */
static void test_lines_of_other_threads_stay_whole(void **state)
{
	(void)state;
	const char *text = capture(act_lines_from_a_thread);
	int lines = 0;
	for (const char *at = text; (at = strstr(at, "line")); at++, lines++)
		assert_true(at[4] == '\n' && (at == text || at[-1] == 'K' || at[-1] == '\n'));
	assert_int_equal(lines, 500);
}

static void test_style_of_a_file_is_lines(void **state)
{
	(void)state;
	int file = open("/dev/null", O_WRONLY);
	assert_int_equal(rh_progress_style_of(file), RH_PROGRESS_LINES);
	close(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_bar_shows_what_fits),
	        cmocka_unit_test(test_bar_tells_the_trend_and_the_share_of_the_plan),
	        cmocka_unit_test(test_bar_shows_a_slow_load),
	        cmocka_unit_test(test_logged_lines_stay_above_the_bar),
	        cmocka_unit_test(test_lines_are_plain),
	        cmocka_unit_test(test_the_first_step_is_told_where_there_is_no_bar),
	        cmocka_unit_test(test_bar_shows_an_evaluation_and_goes),
	        cmocka_unit_test(test_bar_steps_aside_for_log_lines),
	        cmocka_unit_test(test_bar_is_redrawn_ten_times_a_second_and_at_the_end),
	        cmocka_unit_test(test_figures_that_are_not_known_are_left_out),
	        cmocka_unit_test(test_lines_of_other_threads_stay_whole),
	        cmocka_unit_test(test_style_of_a_file_is_lines),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
