/* How fast is a link on this machine, plain and encrypted, and what does it cost? Two ends in one process over loopback, messages of 8 MiB
 * one way; the reference is a plain socket pair of the same process that moves the same bytes with nothing of ours around it. */
#include "machine.h"

#include "core/clock.h"
#include "link/identity.h"
#include "link/tcp.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 8 << 20, AHEAD = 4, MESSAGES = 160 };

struct measured {
	double bytes_per_second, cores; /* processor seconds a second, both ends */
};

static double processor_seconds(void)
{
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
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

struct pipe {
	int descriptor;
	const char *bytes;
};

static void *write_all(void *context)
{
	struct pipe *pipe = context;
	for (int64_t i = 0; i < MESSAGES; i++)
		for (int64_t sent = 0; sent < SIZE;) {
			ssize_t now = send(pipe->descriptor, pipe->bytes + (i % AHEAD) * SIZE + sent, (size_t)(SIZE - sent), MSG_NOSIGNAL);
			if (now <= 0)
				return NULL;
			sent += now;
		}
	return NULL;
}

/* A TCP connection over loopback and nothing else. */
static int measure_socket(const char *out, char *in, struct measured *measured)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), to = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &length) || connect(to, (struct sockaddr *)&address, sizeof address))
		return rh_fail(-errno, "loopback: no connection");
	int from = accept(listener, NULL, NULL);
	struct pipe pipe = {.descriptor = to, .bytes = out};
	pthread_t thread;
	double seconds = rh_clock_seconds(), processor = processor_seconds();
	int rc = -pthread_create(&thread, NULL, write_all, &pipe);
	for (int64_t i = 0; i < MESSAGES && !rc; i++)
		for (int64_t got = 0; got < SIZE && !rc;) {
			ssize_t now = recv(from, in + (i % AHEAD) * SIZE + got, (size_t)(SIZE - got), 0);
			rc = now <= 0 ? -EIO : 0;
			got += now;
		}
	*measured = since(seconds, processor);
	pthread_join(thread, NULL);
	close(from);
	close(to);
	close(listener);
	return rc;
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
	struct measured bare, plain, secure;
	int rc = out && in && mkdtemp(folder) ? make_keys(folder, path, hash) : -ENOMEM;
	const char *none[2] = {0}, *keys[2] = {path[0], path[1]}, *hashes[2] = {hash[0], hash[1]};
	if (!rc)
		rc = measure_socket(out, in, &bare);
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
	printf("%-12s %10.2f %22.2f\n%-12s %10.2f %22.2f\n%-12s %10.2f %22.2f\n", "socket", bare.bytes_per_second / 1e9, bare.cores,
	       "plain link", plain.bytes_per_second / 1e9, plain.cores, "TLS link", secure.bytes_per_second / 1e9, secure.cores);
	printf("a saturated 1 Gbit/s with TLS takes %.3f of a core an end\n", secure.cores / 2 * 0.125e9 / secure.bytes_per_second);
	printf("{\"bench\": \"links\", \"value\": %.4g, \"unit\": \"bytes/s, TLS\", \"reference\": %.4g, \"ratio\": %.3f, \"plain\": %.4g, "
	       "\"cores_an_end_at_1_gbit\": %.4f, \"machine\": \"%s\"}\n",
	       secure.bytes_per_second, bare.bytes_per_second, secure.bytes_per_second / bare.bytes_per_second, plain.bytes_per_second,
	       secure.cores / 2 * 0.125e9 / secure.bytes_per_second, machine);
	return 0;
}
