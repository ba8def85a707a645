/* Signals that ask the run to stop. */
#include "train/training.h"

#include "core/stop.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t step_seconds; /* what one takes, rounded up; 0: not known yet */
static volatile sig_atomic_t on_terminal;  /* whose last line is a bar's, or ^C */

/* Runs in an interrupted thread: it may call write, but no formatting of the C library. */
static void ask_to_stop(int signal_number)
{
	char text[160] = "\nstopping after this step", digits[12];
	const char *from = text + !on_terminal;
	int code = errno;
	size_t length = strlen(text), count = 0;
	(void)signal_number;
	rh_stop_ask();
	for (unsigned left = (unsigned)step_seconds; left; left /= 10)
		digits[count++] = (char)('0' + left % 10);
	if (count) {
		memcpy(text + length, " (one takes about ", 18);
		for (length += 18; count;)
			text[length++] = digits[--count];
		memcpy(text + length, " s)", 3);
		length += 3;
	}
	static const char end[] = " with a checkpoint; the same signal again: now, without one\n";
	memcpy(text + length, end, sizeof end - 1);
	(void)!write(STDERR_FILENO, from, (size_t)(text + length - from) + sizeof end - 1);
	errno = code;
}

void train_tell_step_seconds(double seconds)
{
	step_seconds = seconds < 1e6 ? (sig_atomic_t)ceil(seconds) : 0;
}

void train_watch_signals(void)
{
	struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = (int)SA_RESETHAND};
	rh_stop_forget();
	step_seconds = 0;
	on_terminal = isatty(STDERR_FILENO);
	static const int asking[] = {SIGINT, SIGTERM, SIGHUP, SIGXCPU};
	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < sizeof asking / sizeof *asking; i++) {
		struct sigaction before;
		if (sigaction(asking[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN)
			continue; /* nohup, or a shell's background job: whoever started the run wants it so */
		sigaction(asking[i], &action, NULL);
	}
}
