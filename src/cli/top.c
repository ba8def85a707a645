/* `roundhouse top RUN`: what a run does now, from the status.json that it writes after each step; in a terminal drawn anew each second
 * until the run is over, else once. */
#include "cli/top.h"
#include "cli/verbs.h"
#include "core/alloc.h"
#include "core/file.h"
#include "core/wrap.h"
#include "observe/status.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static const char usage[] = "usage: roundhouse top RUN [--once]\n\n"
                            "RUN is the output_dir of a run, also over ssh. Shows step, loss, evaluations, speed beside the plan's, where "
                            "the time goes,\nmemory of each tier, and load and temperature of its GPUs; anew each second, until the run is "
                            "over or q is pressed.\nOnce with --once, or where the output is no terminal.\n";

enum { PERIOD_MS = 1000 };

static volatile sig_atomic_t is_asked_to_end;

static void ask_to_end(int signal)
{
	(void)signal;
	is_asked_to_end = 1;
}

/* Does the reader's terminal take more than ASCII? As its environment says. */
static int is_ascii(void)
{
	const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *value = getenv(names[i]);
		if (value && *value)
			return !strcasestr(value, "utf-8") && !strcasestr(value, "utf8");
	}
	return 1;
}

/* The status, and where it is none, why. */
static int read_status(const char *dir, json_t **out)
{
	char *path = rh_path_join(dir, RH_STATUS_NAME);
	int rc = path ? 0 : -ENOMEM;
	if (!rc && !rh_dir_exists(dir))
		rc = rh_fail(-ENOENT, "%s: there is no such directory; top takes the output_dir of a run", dir);
	if (!rc && !rh_file_exists(path))
		rc = rh_fail(-ENOENT, "%s holds no " RH_STATUS_NAME ": no run has begun to train there", dir);
	if (!rc)
		rc = rh_json_load(path, out);
	if (!rc && !json_is_object(*out)) {
		json_decref(*out);
		rc = rh_fail(-EINVAL, "%s: is no status of a run", path);
	}
	rh_free(path);
	return rc;
}

/* Draws over what was drawn before: `lines` of it. */
static int draw(const char *dir, const struct rh_nvml *nvml, int is_terminal, int *lines, int *is_over)
{
	json_t *status = NULL;
	struct rh_text text = {0};
	int rc = read_status(dir, &status);
	if (rc)
		return rc;
	const struct top_style style = {.columns = is_terminal ? rh_columns_of(stdout) : 0,
	                                .is_ascii = is_ascii(),
	                                .now = (int64_t)time(NULL),
	                                .is_alive = rh_status_is_alive(status)};
	*is_over = top_is_over(status, style.is_alive);
	rc = top_view(status, dir, nvml, &style, &text);
	if (!rc && *lines)
		printf("\033[%dA", *lines);
	if (!rc && is_terminal)
		printf("\033[J");
	if (!rc)
		fwrite(text.bytes, 1, text.length, stdout);
	*lines = 0;
	for (size_t i = 0; i < text.length; i++)
		*lines += text.bytes[i] == '\n';
	fflush(stdout);
	json_decref(status);
	rh_text_free(&text);
	return rc;
}

/* Until a key or a second; 1: the key was q. */
static int wait_for_key(int reads_keys)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	char key;
	if (poll(&input, reads_keys ? 1 : 0, PERIOD_MS) <= 0 || read(STDIN_FILENO, &key, 1) != 1)
		return 0;
	return key == 'q' || key == 'Q';
}

/* A run's own directory may be gone for a moment, or its file written just now: only the first look has to find it. */
static int watch(const char *dir, const struct rh_nvml *nvml)
{
	struct termios before, keys;
	int reads_keys = isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &before), lines = 0, is_over = 0, rc;
	struct sigaction action = {.sa_handler = ask_to_end};
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	if (reads_keys) {
		keys = before;
		keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		tcsetattr(STDIN_FILENO, TCSANOW, &keys);
	}
	printf("\033[?25l"); /* no cursor */
	rc = draw(dir, nvml, 1, &lines, &is_over);
	while (!rc && !is_over && !is_asked_to_end && !wait_for_key(reads_keys))
		rc = draw(dir, nvml, 1, &lines, &is_over);
	printf("\033[?25h");
	fflush(stdout);
	if (reads_keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
	return rc;
}

int verb_top(int argc, char **argv)
{
	const char *dir = NULL;
	int is_once = !isatty(STDOUT_FILENO), lines = 0, is_over;
	if (argc == 1 && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
		fputs(usage, stdout);
		return 0;
	}
	for (int i = 0; i < argc; i++) {
		if (!strcmp(argv[i], "--once"))
			is_once = 1;
		else if (argv[i][0] == '-')
			return rh_fail(-EINVAL, "there is no flag %s; top takes --once", argv[i]);
		else if (dir)
			return rh_fail(-EINVAL, "%s: top takes one run", argv[i]);
		else
			dir = argv[i];
	}
	if (!dir)
		return rh_fail(-EINVAL, "which run? roundhouse top OUTPUT_DIR");
	struct rh_nvml nvml;
	int has_nvml = !rh_nvml_open(&nvml);
	int rc =
	        is_once ? draw(dir, has_nvml ? &nvml : NULL, isatty(STDOUT_FILENO), &lines, &is_over) : watch(dir, has_nvml ? &nvml : NULL);
	if (has_nvml)
		rh_nvml_close(&nvml);
	return rc;
}
