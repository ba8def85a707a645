/* Hosts in network namespaces of their own, in a row; between two of them a line: a TUN device at each end, and a thread that carries
 * packets from one to the other, late, paced, and with some of them lost. TCP runs over it as over any network. All is gone when the
 * process ends. Wants the right to make namespaces and /dev/net/tun. */
#ifndef RH_TESTS_LINK_TUN_H
#define RH_TESTS_LINK_TUN_H

#include "shape.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum { TUN_HOSTS = 4, TUN_PACKET = 1500 };

struct tun_line {
	int end[2];                  /* devices of the lower and the higher host, -1: none */
	struct shape_queue queue[2]; /* from each */
	pthread_t thread;
	int started;
	atomic_int stops, is_down; /* down: all packets are lost */
};

struct tun {
	int hosts, home, space[TUN_HOSTS]; /* namespaces; -1: none */
	struct tun_line line[TUN_HOSTS - 1];
};

static inline int tun_enter(int space)
{
	return setns(space, CLONE_NEWNET) ? -errno : 0;
}

/* The interface gets an address and starts. */
static inline int tun_configure(const char *name, const char *address, int packet)
{
	struct ifreq request = {0};
	struct sockaddr_in inet = {.sin_family = AF_INET};
	int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc = 0;
	snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
	inet_pton(AF_INET, address, &inet.sin_addr);
	memcpy(&request.ifr_addr, &inet, sizeof inet);
	rc |= ioctl(control, SIOCSIFADDR, &request);
	inet_pton(AF_INET, "255.255.255.0", &inet.sin_addr);
	memcpy(&request.ifr_netmask, &inet, sizeof inet);
	rc |= ioctl(control, SIOCSIFNETMASK, &request);
	request.ifr_mtu = packet;
	rc |= packet ? ioctl(control, SIOCSIFMTU, &request) : 0;
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	rc |= ioctl(control, SIOCSIFFLAGS, &request);
	rc = rc ? -errno : 0;
	close(control);
	return rc;
}

static inline int tun_device(int line, int end)
{
	struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
	char address[32];
	int descriptor = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (descriptor < 0)
		return -errno;
	snprintf(request.ifr_name, sizeof request.ifr_name, "line%d", line);
	snprintf(address, sizeof address, "10.77.%d.%d", line, end + 1);
	int rc = ioctl(descriptor, TUNSETIFF, &request) ? -errno : tun_configure(request.ifr_name, address, TUN_PACKET);
	if (!rc)
		return descriptor;
	close(descriptor);
	return rc;
}

static inline void tun_take(struct tun_line *line, int end)
{
	char packet[TUN_PACKET + 64];
	struct shape_queue *queue = &line->queue[end];
	for (ssize_t got; (got = read(line->end[end], packet, sizeof packet)) > 0;)
		if (!line->is_down && queue->bytes < shape_room(queue))
			shape_put(queue, packet, (size_t)got);
}

static inline void *tun_run(void *context)
{
	struct tun_line *line = context;
	prctl(PR_SET_TIMERSLACK, 1000);
	for (int64_t now_ns = shape_now(); !line->stops;) {
		struct pollfd polls[2] = {{.fd = line->end[0], .events = POLLIN}, {.fd = line->end[1], .events = POLLIN}};
		struct timespec wait = shape_wait(line->queue, now_ns, 20);
		ppoll(polls, 2, &wait, NULL);
		tun_take(line, 0);
		tun_take(line, 1);
		now_ns = shape_now();
		for (int i = 0; i < 2; i++)
			for (struct shape_piece *piece; (piece = shape_due(&line->queue[i], now_ns)); shape_drop(&line->queue[i]))
				(void)!write(line->end[!i], piece->bytes, piece->size);
	}
	return NULL;
}

static inline void tun_close(struct tun *tun)
{
	for (int k = 0; k + 1 < tun->hosts; k++) {
		struct tun_line *line = &tun->line[k];
		line->stops = 1;
		if (line->started)
			pthread_join(line->thread, NULL);
		for (int i = 0; i < 2; i++) {
			if (line->end[i] >= 0)
				close(line->end[i]);
			if (line->started)
				shape_close(&line->queue[i]);
		}
	}
	for (int h = 0; h < tun->hosts; h++)
		if (tun->space[h] >= 0)
			close(tun->space[h]);
	if (tun->home >= 0)
		close(tun->home);
}

static inline int tun_make_host(struct tun *tun, int h)
{
	if (unshare(CLONE_NEWNET))
		return -errno;
	tun->space[h] = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	int rc = tun->space[h] < 0 ? -errno : tun_configure("lo", "127.0.0.1", 0);
	for (int k = h - 1; !rc && k <= h; k++) { /* the line below it, the line above */
		if (k < 0 || k + 1 == tun->hosts)
			continue;
		tun->line[k].end[k < h] = rc = tun_device(k, k < h);
		rc = rc < 0 ? rc : 0;
	}
	return rc;
}

/* shape[k]: of the line from host k up to the next, and down. Negative errno: this machine does not let us. */
static inline int tun_open(struct tun *tun, int hosts, const struct shape shape[][2], uint64_t seed)
{
	*tun = (struct tun){.hosts = hosts, .home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)};
	for (int h = 0; h < hosts; h++)
		tun->space[h] = -1;
	for (int k = 0; k + 1 < hosts; k++)
		tun->line[k].end[0] = tun->line[k].end[1] = -1;
	int rc = tun->home < 0 ? -errno : 0;
	for (int h = 0; !rc && h < hosts; h++)
		rc = tun_make_host(tun, h);
	if (tun->home >= 0)
		assert_int_equal(tun_enter(tun->home), 0);
	for (int k = 0; !rc && k + 1 < hosts; k++) {
		for (int i = 0; i < 2; i++)
			shape_open(&tun->line[k].queue[i], &shape[k][i], seed + (uint64_t)(2 * k + i));
		rc = -pthread_create(&tun->line[k].thread, NULL, tun_run, &tun->line[k]);
		tun->line[k].started = !rc;
	}
	if (rc)
		tun_close(tun);
	return rc;
}

#endif
