/* How fast is a link on this machine, plain and encrypted, and what does it cost? Two ends in one process over loopback, messages of 8 MiB
 * one way; the reference is iperf3 over loopback, one stream. Then two ends in processes of their own at 1 Gbit/s, encrypted: the cores
 * that each takes (bar: 0.3). */
#include "machine.h"

#include "core/clock.h"
#include "link/identity.h"
#include "link/tcp.h"
#include "tests/port.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 8 << 20, AHEAD = 4, MESSAGES = 160, SECONDS = 5, PACED_SIZE = 256 << 10, PACED_MESSAGES = 2400 };
#define GBIT 0.125e9 /* bytes a second */

struct measured {
	double bytes_per_second, cores; /* processor seconds a second, both ends */
};

static double used_seconds(const struct rusage *used)
{
	return (double)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) + (double)(used->ru_utime.tv_usec + used->ru_stime.tv_usec) * 1e-6;
}

static double processor_seconds(void)
{
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	return used_seconds(&used);
}

static struct measured since(double seconds, double processor)
{
	double wall = rh_clock_seconds() - seconds;
	return (struct measured){.bytes_per_second = (double)SIZE * MESSAGES / wall, .cores = (processor_seconds() - processor) / wall};
}

static int move(struct rh_link *from, struct rh_link *to, const char *out, char *in)
{
	int rc = 0;
	for (int64_t i = 0; i < MESSAGES && !rc; i++) {
		if (i >= AHEAD)
			rc = to->ops->wait(to, 0, i - AHEAD + 1);
		if (!rc && i >= AHEAD)
			rc = from->ops->wait(from, i - AHEAD + 1, 0);
		if (!rc)
			rc = to->ops->receive(to, (uint64_t)i, in + (i % AHEAD) * SIZE, SIZE);
		if (!rc)
			rc = from->ops->send(from, (uint64_t)i, out + (i % AHEAD) * SIZE, SIZE);
	}
	return rc ? rc : to->ops->wait(to, 0, MESSAGES);
}

static int measure_link(const char *keys[2], const char *hashes[2], const char *out, char *in, struct measured *measured)
{
	struct rh_link *ends[2] = {0};
	char address[32] = "127.0.0.1:0";
	struct rh_tcp_options options = {.address = address, .listens = 1, .greeting = "", .messages = AHEAD};
	options.identity = keys[0];
	options.peer = hashes[1];
	int rc = rh_tcp_open(&options, &ends[0]);
	if (rc)
		return rc;
	snprintf(address, sizeof address, "127.0.0.1:%d", rh_tcp_port(ends[0]));
	options.listens = 0;
	options.identity = keys[1];
	options.peer = hashes[0];
	rc = rh_tcp_open(&options, &ends[1]);
	double seconds = rh_clock_seconds(), processor = processor_seconds();
	if (!rc)
		rc = move(ends[1], ends[0], out, in);
	*measured = since(seconds, processor);
	rh_link_close(ends[1]);
	rh_link_close(ends[0]);
	return rc;
}

/* iperf3 over loopback for so many seconds: TCP and nothing else. Its server ends after one client. */
static int measure_iperf3(double *bytes_per_second)
{
	char command[256], line[512];
	int port = free_port();
	snprintf(command, sizeof command, "iperf3 -s -1 -p %d >/dev/null & sleep 0.3; iperf3 -c 127.0.0.1 -p %d -t %d -f m; wait", port,
	         port, SECONDS);
	FILE *out = popen(command, "r");
	if (!out)
		return rh_fail(-errno, "iperf3 does not start");
	*bytes_per_second = 0;
	while (fgets(line, sizeof line, out)) {
		double mbit;
		const char *at = strstr(line, "receiver") ? strstr(line, "Bytes") : NULL;
		if (at && sscanf(at, "Bytes %lf", &mbit) == 1)
			*bytes_per_second = mbit * 1e6 / 8;
	}
	pclose(out);
	return *bytes_per_second > 0 ? 0 : rh_fail(-ENOENT, "iperf3 says nothing: is it installed?");
}

/* An end of a link that carries 1 Gbit/s one way, as a line of that speed does: a message each few milliseconds. */
static int run_paced_end(const char *const keys[2], const char *const hashes[2], int port, int sends)
{
	enum { AT_ONCE = 16 };
	static char bytes[AT_ONCE][PACED_SIZE];
	char address[32];
	struct rh_link *link;
	snprintf(address, sizeof address, "127.0.0.1:%d", port);
	struct rh_tcp_options options = {.address = address,
	                                 .listens = !sends,
	                                 .greeting = "",
	                                 .messages = AT_ONCE,
	                                 .identity = keys[sends],
	                                 .peer = hashes[!sends]};
	int rc = rh_tcp_open(&options, &link);
	if (rc)
		return rc;
	double begun = 0;
	for (int64_t i = 0; i < PACED_MESSAGES && !rc; i++) {
		if (i >= AT_ONCE)
			rc = link->ops->wait(link, sends ? i - AT_ONCE + 1 : 0, sends ? 0 : i - AT_ONCE + 1);
		double early = begun + (double)i * PACED_SIZE / GBIT - rh_clock_seconds();
		if (sends && i > 0 && early > 0)
			usleep((useconds_t)(early * 1e6));
		if (!rc)
			rc = sends ? rh_link_send(link, (uint64_t)i, bytes[i % AT_ONCE], PACED_SIZE)
			           : rh_link_receive(link, (uint64_t)i, bytes[i % AT_ONCE], PACED_SIZE);
		if (!rc && i == 0) {
			rc = link->ops->wait(link, sends, !sends); /* connected */
			begun = rh_clock_seconds();
		}
	}
	if (!rc)
		rc = link->ops->wait(link, sends ? PACED_MESSAGES : 0, sends ? 0 : PACED_MESSAGES);
	rh_link_close(link);
	return rc;
}

/* Each end in a process of its own, whose processor seconds are counted. cores[0]: who receives. */
static int measure_paced(const char *const keys[2], const char *const hashes[2], double cores[2], double *bytes_per_second)
{
	pid_t pid[2];
	int port = free_port(), failed = 0;
	double seconds = rh_clock_seconds();
	for (int sends = 0; sends < 2; sends++) {
		fflush(stdout);
		pid[sends] = fork();
		if (!pid[sends]) {
			int rc = run_paced_end(keys, hashes, port, sends);
			if (rc)
				fprintf(stderr, "links: %s\n", rh_error(rc));
			_exit(rc != 0);
		}
	}
	for (int sends = 1; sends >= 0; sends--) {
		struct rusage used;
		int status = 0;
		failed |= wait4(pid[sends], &status, 0, &used) != pid[sends] || status;
		double wall = rh_clock_seconds() - seconds;
		cores[sends] = used_seconds(&used) / wall;
		*bytes_per_second = (double)PACED_SIZE * PACED_MESSAGES / wall;
	}
	return failed ? rh_fail(-EIO, "an end at 1 Gbit/s failed") : 0;
}

static int make_keys(const char *folder, char path[2][128], char hash[2][RH_IDENTITY_HASH])
{
	int rc = 0;
	for (int i = 0; i < 2 && !rc; i++) {
		snprintf(path[i], 128, "%s/%d.pem", folder, i);
		rc = rh_identity_make(path[i]);
		if (!rc)
			rc = rh_identity_hash(path[i], hash[i]);
	}
	return rc;
}

int main(void)
{
	char folder[] = "/tmp/rh-links-XXXXXX", path[2][128], hash[2][RH_IDENTITY_HASH], machine[256];
	char *out = calloc(AHEAD, SIZE), *in = calloc(AHEAD, SIZE);
	struct measured plain, secure;
	double iperf3 = 0, cores[2] = {0}, paced = 0;
	int rc = out && in && mkdtemp(folder) ? make_keys(folder, path, hash) : -ENOMEM;
	const char *none[2] = {0}, *keys[2] = {path[0], path[1]}, *hashes[2] = {hash[0], hash[1]};
	if (!rc)
		rc = measure_paced(keys, hashes, cores, &paced); /* first: forked while there is one thread */
	if (!rc)
		rc = measure_iperf3(&iperf3);
	if (!rc)
		rc = measure_link(none, none, out, in, &plain);
	if (!rc)
		rc = measure_link(keys, hashes, out, in, &secure);
	for (int i = 0; i < 2; i++)
		unlink(path[i]);
	rmdir(folder);
	free(out);
	free(in);
	if (rc) {
		fprintf(stderr, "links: %s\n", rh_error(rc));
		return 1;
	}
	bench_machine(machine, sizeof machine);
	printf("%-12s %10s %22s\n", "", "GB/s", "cores, both ends");
	printf("%-12s %10.2f\n%-12s %10.2f %22.2f\n%-12s %10.2f %22.2f\n", "iperf3", iperf3 / 1e9, "plain link",
	       plain.bytes_per_second / 1e9, plain.cores, "TLS link", secure.bytes_per_second / 1e9, secure.cores);
	printf("at %.2f Gbit/s with TLS the sender takes %.3f cores, the receiver %.3f\n", paced / GBIT, cores[1], cores[0]);
	printf("{\"bench\": \"links\", \"value\": %.4g, \"unit\": \"bytes/s, TLS\", \"reference\": %.4g, \"ratio\": %.3f, \"plain\": %.4g, "
	       "\"paced\": %.4g, \"cores_sender\": %.3f, \"cores_receiver\": %.3f, \"machine\": \"%s\"}\n",
	       secure.bytes_per_second, iperf3, secure.bytes_per_second / iperf3, plain.bytes_per_second, paced, cores[1], cores[0],
	       machine);
	return 0;
}
