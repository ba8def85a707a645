/* `top`: in a pipe once; in a terminal until the run is over, as wide as that is. Of runs that go on, ended, were stopped or killed. */
#include "cli/good.h"
#include "core/json.h"

#include <poll.h>
#include <sys/ioctl.h>

static struct ran run_top(const struct scratch *scratch)
{
	struct ran ran = run_line(scratch, "top %s/out", scratch->dir);
	if (ran.status)
		fail_msg("exit %d: %s", ran.status, ran.err);
	return ran;
}

static void has(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("'%s' is not in:\n%s", part, text);
}

static void start_endless(const struct scratch *scratch, struct ran *ran)
{
	char line[1024];
	fill_in(scratch, "train @/run.yaml --max_steps 100000000 --save_strategy no --logging_steps 1000000", line, sizeof line);
	run_start(scratch, line, 0, ran);
	const char *path = path_of("%s/out/status.json", scratch->dir);
	char status[512];
	snprintf(status, sizeof status, "%s", path);
	for (int tenth = 0; tenth < 300; tenth++) {
		usleep(100000);
		size_t length;
		char *text = rh_file_exists(status) ? read_bytes(status, &length) : strdup("");
		int trains = strstr(text, "\"step\":0,") == NULL && *text;
		free(text);
		if (trains)
			return;
	}
	fail_msg("no step in 30 s");
}

static void test_an_ended_run_is_told_once(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	run_ok(&scratch, "train %s/run.yaml --eval_split 0.5 --eval_strategy steps --eval_steps 1", scratch.dir);
	struct ran ran = run_top(&scratch);
	has(ran.out, "/out: ended\n");
	has(ran.out, "step   2 of 2  [========================] 100 %");
	has(ran.out, "all weights, fp32, cpu:1");
	has(ran.out, "\nloss   ");
	has(ran.out, " at step 2; best ");
	has(ran.out, " tokens/s\n"); /* rates are assumed here: no share of the plan's */
	has(ran.out, "where  computing ");
	has(ran.out, " planned\n");
	assert_null(strchr(ran.out, '\033'));
	run_free(&ran);
	scratch_close(&scratch);
}

/* What top shows in a terminal of so many columns until it ends; free() it. */
static char *watch(const struct scratch *scratch, unsigned short columns, void (*seen)(void *), void *context)
{
	struct winsize size = {.ws_row = 40, .ws_col = columns};
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	assert_true(master >= 0 && !grantpt(master) && !unlockpt(master) && !ioctl(master, TIOCSWINSZ, &size));
	char dir[256], name[64];
	snprintf(name, sizeof name, "%s", ptsname(master));
	snprintf(dir, sizeof dir, "%s/out", scratch->dir);
	fflush(NULL);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		setsid();
		int end = open(name, O_RDWR);
		setenv("LC_ALL", "C.UTF-8", 1);
		if (end < 0 || dup2(end, 0) < 0 || dup2(end, 1) < 0 || dup2(end, 2) < 0)
			_exit(126);
		execl(program_path(), "roundhouse", "top", dir, (char *)NULL);
		_exit(127);
	}
	size_t length = 0, room = 1 << 20;
	char *text = malloc(room);
	for (;;) {
		struct pollfd from = {.fd = master, .events = POLLIN};
		assert_true(length + 4096 < room);
		if (poll(&from, 1, 30000) <= 0)
			fail_msg("top shows nothing for 30 s");
		ssize_t got = read(master, text + length, 4095);
		if (got <= 0)
			break;
		length += (size_t)got;
		text[length] = 0;
		if (seen && strstr(text, ": training") && memmem(text, length, "\033[J", 3)) {
			seen(context);
			seen = NULL;
		}
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(master);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return text;
}

static void stop(void *context)
{
	kill(((struct ran *)context)->pid, SIGTERM);
}

static void test_a_terminal_shows_it_until_it_stops(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran;
	make_good(&scratch);
	start_endless(&scratch, &ran);
	char *text = watch(&scratch, 40, stop, &ran), *rest = text;
	run_wait(&ran);
	assert_int_equal(ran.status, 0);
	has(text, ": stopped");
	has(text, "\033[?25h"); /* the cursor is there again */
	has(text, "█");
	for (char *line; (line = strsep(&rest, "\r\n"));) {
		int columns = 0, is_code = 0;
		for (const char *at = line; *at; at++) { /* codes are no columns */
			is_code = *at == '\033' || (is_code && !((*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z')));
			int ends_code = !is_code && at > line && (*at == 'J' || *at == 'A' || *at == 'l' || *at == 'h') &&
			                memchr(line, '\033', (size_t)(at - line)) && strspn(at - 1, "[0123456789") > 0;
			columns += !is_code && !ends_code && ((unsigned char)*at & 0xc0) != 0x80;
		}
		if (columns > 40)
			fail_msg("%d columns: %s", columns, line);
	}
	free(text);
	run_free(&ran);
	scratch_close(&scratch);
}

static void test_a_killed_run_is_told_of(void **state)
{
	(void)state;
	struct scratch scratch;
	struct ran ran;
	make_good(&scratch);
	start_endless(&scratch, &ran);
	struct ran first = run_top(&scratch);
	has(first.out, "/out: training\n");
	kill(ran.pid, SIGKILL);
	run_wait(&ran);
	struct ran then = run_top(&scratch);
	has(then.out, "no process here runs it: killed, or on another machine; last heard of ");
	char *text = watch(&scratch, 200, NULL, NULL); /* nothing to wait for */
	has(text, "killed");
	free(text);
	run_free(&first);
	run_free(&then);
	run_free(&ran);
	/* the number is another process's by now */
	char pid[64], own[64];
	size_t length;
	char *status = read_bytes(path_of("%s/out/status.json", scratch.dir), &length);
	json_t *json = NULL;
	check_ok(rh_json_parse(status, length, "status", &json));
	snprintf(pid, sizeof pid, "\"pid\":%lld,", (long long)json_integer_value(json_object_get(json, "pid")));
	snprintf(own, sizeof own, "\"pid\":%lld,", (long long)getpid());
	json_decref(json);
	free(status);
	edit_file(path_of("%s/out/status.json", scratch.dir), pid, own);
	then = run_top(&scratch);
	has(then.out, "no process here runs it");
	run_free(&then);
	scratch_close(&scratch);
}

static void test_a_failed_run_says_why(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	/* the results of a run do not fit where files may have so few bytes; its status does */
	struct ran ran;
	char line[512];
	fill_in(&scratch, "train @/run.yaml --save_strategy no", line, sizeof line);
	run_start(&scratch, line, 32 << 10, &ran);
	run_wait(&ran);
	assert_int_equal(ran.status, 1);
	struct ran top = run_top(&scratch);
	has(top.out, "/out: failed: ");
	run_free(&ran);
	run_free(&top);
	scratch_close(&scratch);
}

static void test_what_is_no_run_is_refused(void **state)
{
	(void)state;
	struct scratch scratch;
	make_good(&scratch);
	check_ok(rh_dir_make(path_of("%s/bad", scratch.dir)));
	write_text(path_of("%s/bad/status.json", scratch.dir), "[1]");
	refused(&scratch, "top", "which run?");
	refused(&scratch, "top @/nowhere", "nowhere: there is no such directory|output_dir");
	refused(&scratch, "top @/hf", "holds no status.json");
	refused(&scratch, "top @/bad", "status.json: is no status of a run");
	refused(&scratch, "top @/bad @/hf", "top takes one run");
	refused(&scratch, "top @/bad --all", "no flag --all|--once");
	write_text(path_of("%s/bad/status.json", scratch.dir), "{}"); /* nothing is in it, so nothing is said but that */
	struct ran ran = run_line(&scratch, "top %s/bad", scratch.dir);
	assert_int_equal(ran.status, 0);
	has(ran.out, "no step is done yet");
	run_free(&ran);
	scratch_close(&scratch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(test_an_ended_run_is_told_once), cmocka_unit_test(test_a_terminal_shows_it_until_it_stops),
	        cmocka_unit_test(test_a_killed_run_is_told_of),   cmocka_unit_test(test_a_failed_run_says_why),
	        cmocka_unit_test(test_what_is_no_run_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
