/* Runs a command on each of several hosts in a row, over a network shaped as asked for:
 *
 *   make build/release/tests/link/network
 *   build/release/tests/link/network LINE... -- COMMAND COMMAND...
 *
 * LINE is LATENCY_MS,UP_MBIT,DOWN_MBIT[,JITTER_MS[,LOST]] of the line from a host to the next; there is one line fewer than commands.
 * Commands are given to sh. In each one's environment ABOVE is the address at which it listens for the next host, BELOW where it finds the
 * one before. Ends with the first exit status that is not 0. */
#include "network.h"

#include <signal.h>
#include <sys/wait.h>

static int usage(void)
{
	fprintf(stderr, "network LATENCY_MS,UP_MBIT,DOWN_MBIT[,JITTER_MS[,LOST]]... -- COMMAND COMMAND...\n");
	return 2;
}

static int read_line(const char *text, struct shape shape[2])
{
	double latency, up, down, jitter = 0, lost = 0;
	if (sscanf(text, "%lf,%lf,%lf,%lf,%lf", &latency, &up, &down, &jitter, &lost) < 3 || latency < 0 || up < 0 || down < 0)
		return -1;
	shape[0] = (struct shape){.latency_ms = latency, .jitter_ms = jitter, .mbit = up, .lost = lost};
	shape[1] = shape[0];
	shape[1].mbit = down;
	return 0;
}

static pid_t start(const struct network *network, int host, const char *command)
{
	char above[64], below[64], unused[64];
	pid_t pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	network_enter(network, host);
	if (host + 1 < network->hosts) {
		network_addresses(network, host, above, unused);
		setenv("ABOVE", above, 1);
	}
	if (host) {
		network_addresses(network, host - 1, unused, below);
		setenv("BELOW", below, 1);
	}
	execl("/bin/sh", "sh", "-c", command, (char *)NULL);
	_exit(127);
}

int main(int argc, char **argv)
{
	struct shape shape[TUN_HOSTS - 1][2];
	static struct network network;
	pid_t pid[TUN_HOSTS];
	int lines = 0, result = 0;
	while (1 + lines < argc && strcmp(argv[1 + lines], "--")) {
		if (lines == TUN_HOSTS - 1 || read_line(argv[1 + lines], shape[lines]))
			return usage();
		lines++;
	}
	int hosts = argc - lines - 2;
	if (!lines || hosts != lines + 1)
		return usage();
	network_open(&network, hosts, (const struct shape(*)[2])shape, 1);
	for (int h = 0; h < hosts; h++)
		pid[h] = start(&network, h, argv[lines + 2 + h]);
	for (int h = 0; h < hosts; h++) {
		int status = 0;
		waitpid(pid[h], &status, 0);
		int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		result = result ? result : code;
	}
	network_close(&network);
	return result;
}
