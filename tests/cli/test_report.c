/* `report`: the page says what metrics.jsonl says, of one run and of several, and shows what others wrote as text. */
#include "cli/good.h"

#define LINE(step, loss, speed)                                                                                                            \
	"{\"step\": " #step ", \"epoch\": 0.5, \"loss\": " #loss                                                                           \
	", \"grad_norm\": null, \"learning_rate\": 1e-4, \"tokens_per_second\": " #speed                                                   \
	", \"elapsed_seconds\": 60, \"compute_seconds\": 3, \"weights_wait_seconds\": 1, \"optimizer_wait_seconds\": 0, "                  \
	"\"vram_peak_bytes\": 2147483648}\n"

static void make_run(const struct scratch *scratch, const char *name, const char *lines)
{
	check_ok(rh_dir_make(path_of("%s/%s", scratch->dir, name)));
	write_text(path_of("%s/%s/metrics.jsonl", scratch->dir, name), lines);
}

static char *page_of(const char *path)
{
	size_t length;
	return read_bytes(path, &length);
}

static void has(const char *page, const char *part)
{
	if (!strstr(page, part))
		fail_msg("'%s' is not on the page:\n%.3000s", part, page);
}

static void test_a_page_says_what_the_run_logged(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	/* the last line is being written */
	make_run(&scratch, "run", LINE(10, 4, 100) "{\"step\": 10, \"eval_loss\": 3.25}\n" LINE(20, 2, 300) "{\"step\": 30, \"lo");
	write_text(path_of("%s/run/adapter_config.json", scratch.dir), "{\"r\": \"<script>alert(1)</script>\"}");
	write_text(path_of("%s/run/trace.svg", scratch.dir), "<?xml version=\"1.0\"?>\n<svg id=\"step\"></svg>");
	run_ok(&scratch, "report %s/run", scratch.dir);
	char *page = page_of(path_of("%s/run/report.html", scratch.dir));
	has(page, "<td>steps<td class=n>20</tr>");
	has(page, "<td>loss of the last steps<td class=n>2.0000</tr>");
	has(page, "<td>best evaluation's loss<td class=n>3.2500</tr>");
	has(page, "<td>tokens/s, mean<td class=n>200.0</tr>");
	has(page, "<td>most device memory, GiB<td class=n>2.00</tr>");
	has(page, "<title>loss: 4 at 10</title>");
	has(page, "<title>eval_loss: 3.25 at 10</title>");
	has(page, "computing 75.0 %");
	has(page, "<svg id=\"step\"></svg>");
	has(page, "&lt;script&gt;alert(1)");
	assert_null(strstr(page, "<script>alert"));
	assert_null(strstr(page, "Gradient norm</h2>")); /* none was finite */
	assert_null(strstr(page, "http"));               /* nothing of it lies elsewhere */
	free(page);
	run_ok(&scratch, "report %s/run", scratch.dir); /* over its own page */
	scratch_close(&scratch);
}

/* What a run leaves at its end, of what it planned and what its data were. */
static void test_a_run_leaves_its_page(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	const char *dir = scratch.dir;
	write_text(path_of("%s/rows.jsonl", dir), ROWS "{\"prompt\": \"red \", \"completion\": \"green blue\"}\n");
	run_ok(&scratch,
	       "train %s/run.yaml --eval_split 0.4 --eval_strategy steps --eval_steps 1 --sample_prompts <b>cat --sample_max_new_tokens 4 "
	       "--trace_step 2",
	       dir);
	char *page = page_of(path_of("%s/out/report.html", dir));
	has(page, "<tr><td>state<td class=n>ended</tr>");
	has(page, "<tr><td>steps<td class=n>2</tr>");
	has(page, "planned host memory, GiB<td class=n>");
	has(page, "<tr><td>rows held out<td class=n>2<td>");
	has(page, "<tr><td>duplicates<td class=n>1<td class=soft>rows that were there before");
	has(page, "<p><b>&lt;b&gt;cat</b></p><table>\n<tr><td class=n>2<td><pre>");
	has(page, "<summary>before that</summary><table>\n<tr><td class=n>1<td><pre>");
	has(page, "<div class=\"scroll zoom\">\n<svg ");
	has(page, "roundhouse 0.1, ");
	has(page, "all weights, fp32, cpu:1");
	has(page, "Configuration, every key as it was resolved");
	assert_null(strstr(page, "<b>cat"));
	free(page);
	/* what a user has put there stays */
	write_text(path_of("%s/run.txt", dir), "mine");
	check_ok(rh_file_remove(path_of("%s/out/report.html", dir)));
	copy_file(path_of("%s/run.txt", dir), path_of("%s/out/report.html", dir));
	run_ok(&scratch,
	       "train %s/run.yaml --eval_split 0.4 --eval_strategy steps --eval_steps 1 --max_steps 3 --resume_from_checkpoint true", dir);
	assert_true(same_file(path_of("%s/run.txt", dir), path_of("%s/out/report.html", dir)));
	scratch_close(&scratch);
}

/* A browser clicks its way through a real run's page: nothing is loaded from elsewhere, the recorded step becomes larger and whole again,
 * and what is folded opens. */
static void test_a_browser_shows_the_page(void **state)
{
	(void)state;
	static const char browser[] = "/usr/bin/chromium-headless-shell",
	                  clicks[] = "<script>const b = document.querySelectorAll('[data-zoom]'), s = document.querySelector('.zoom svg'), "
	                             "v = () => s.getAttribute('viewBox').split(' ').map(Number);\n"
	                             "const whole = v()[2]; b[0].click(); const close = v()[2]; b[1].click(); const back = v()[2]; "
	                             "b[0].click(); b[2].click();\n"
	                             "for (const d of document.querySelectorAll('summary')) d.click();\n"
	                             "document.title = ['clicked', whole / close, whole / back, whole / v()[2], "
	                             "[...document.querySelectorAll('details')].every(d => d.open), "
	                             "performance.getEntriesByType('resource').length].join(' ');</script>";
	struct scratch scratch;
	if (!getenv("RH_LONG") || access(browser, X_OK)) {
		print_message("skipped: RH_LONG is not set, or there is no %s\n", browser);
		skip();
	}
	make_good(&scratch);
	run_ok(&scratch, "train %s/run.yaml --eval_split 0.5 --eval_strategy steps --sample_prompts cat --trace_step 2", scratch.dir);
	char *page = page_of(path_of("%s/out/report.html", scratch.dir)), command[1024], title[256] = "";
	FILE *file = fopen(path_of("%s/clicked.html", scratch.dir), "w");
	assert_non_null(file);
	fprintf(file, "%s%s", page, clicks);
	assert_int_equal(fclose(file), 0);
	free(page);
	snprintf(command, sizeof command,
	         "timeout 120 %s --no-sandbox --disable-gpu --user-data-dir=%s/browser --dump-dom file://%s/clicked.html 2>/dev/null | "
	         "grep -o "
	         "'<title>[^<]*'",
	         browser, scratch.dir, scratch.dir);
	file = popen(command, "r");
	assert_non_null(file);
	assert_non_null(fgets(title, sizeof title, file));
	pclose(file);
	if (strcmp(title, "<title>clicked 1.6 1 1 true 0\n"))
		fail_msg("%s", title);
	scratch_close(&scratch);
}

static void test_runs_stand_side_by_side(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	make_run(&scratch, "a", LINE(1, 3, 100));
	make_run(&scratch, "b", LINE(1, 2.5, 50) LINE(2, 1.5, 70));
	run_ok(&scratch, "report %s/a %s/b --html %s/both.html", scratch.dir, scratch.dir, scratch.dir);
	char *page = page_of(path_of("%s/both.html", scratch.dir));
	has(page, "<td>steps<td class=n>1<td class=n>2</tr>");
	has(page, "<td>loss of the last steps<td class=n>3.0000<td class=n>1.5000</tr>");
	has(page, "<circle class=\"s0\"");
	has(page, "<circle class=\"s1\"");
	free(page);
	scratch_close(&scratch);
}

/* Neither does the page of a run that diverged overflow. */
static void test_figures_near_the_largest_are_drawn(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	make_run(&scratch, "one", LINE(1, 1.7e308, 100));
	make_run(&scratch, "all", LINE(1, 1.5e308, 100) LINE(2, -1.7e308, 1e308) LINE(3, 1.7e308, 1e308) LINE(4, 1, 5e-324));
	static const char *const names[] = {"one", "all"};
	for (int i = 0; i < 2; i++) {
		run_ok(&scratch, "report %s/%s", scratch.dir, names[i]);
		char *page = page_of(path_of("%s/%s/report.html", scratch.dir, names[i]));
		has(page, "<title>loss: 1.7e+308 at ");
		char *drawing = strstr(page, "<svg");
		assert_non_null(drawing);
		assert_true(!strstr(drawing, "nan") && !strstr(drawing, "inf"));
		if (!i)
			has(page, "<td>loss of the last steps<td class=n>1.7e+308</tr>");
		free(page);
	}
	scratch_close(&scratch);
}

static void test_what_is_no_run_is_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	scratch_open(&scratch);
	make_run(&scratch, "run", LINE(1, 3, 100));
	make_run(&scratch, "empty", "");
	make_run(&scratch, "spoilt", "{\"step\": 1}\nnot json\n");
	write_text(path_of("%s/mine.html", scratch.dir), "<html>mine</html>");
	refused(&scratch, "report", "which run?");
	refused(&scratch, "report @/nothing", "nothing: no such directory; report takes the output_dir of a run");
	refused(&scratch, "report @", "holds no metrics.jsonl");
	refused(&scratch, "report @/empty", "has logged no step yet");
	refused(&scratch, "report @/spoilt", "metrics.jsonl:2: ");
	refused(&scratch, "report @/run --html", "--html: which file?");
	refused(&scratch, "report @/run @/run", "add --html");
	refused(&scratch, "report @/run --pdf x", "no flag --pdf|--html");
	refused(&scratch, "report @/run --html @/mine.html", "html: |is no HTML page that Roundhouse wrote|--force");
	char *page = page_of(path_of("%s/mine.html", scratch.dir));
	assert_string_equal(page, "<html>mine</html>");
	free(page);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_a_page_says_what_the_run_logged),    cmocka_unit_test(test_a_run_leaves_its_page),
	        cmocka_unit_test(test_a_browser_shows_the_page),           cmocka_unit_test(test_runs_stand_side_by_side),
	        cmocka_unit_test(test_figures_near_the_largest_are_drawn), cmocka_unit_test(test_what_is_no_run_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
