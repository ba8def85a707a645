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
	assert_null(strstr(page, "<script"));
	assert_null(strstr(page, "Gradient norm</h2>")); /* none was finite */
	assert_null(strstr(page, "http"));               /* nothing of it lies elsewhere */
	free(page);
	run_ok(&scratch, "report %s/run", scratch.dir); /* over its own page */
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
	refused(&scratch, "report @/nothing", "nothing holds no metrics.jsonl");
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
	        cmocka_unit_test(test_a_page_says_what_the_run_logged),
	        cmocka_unit_test(test_runs_stand_side_by_side),
	        cmocka_unit_test(test_figures_near_the_largest_are_drawn),
	        cmocka_unit_test(test_what_is_no_run_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
