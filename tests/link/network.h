/* A network that can be shaped, of hosts in a row: namespaces with TUN devices between them where this machine allows it, else relays of
 * byte streams on loopback, which say that they stand in (they lose no packets). */
#ifndef RH_TESTS_LINK_NETWORK_H
#define RH_TESTS_LINK_NETWORK_H

#include "port.h"
#include "relay.h"
#include "tun.h"

struct network {
	int hosts, is_tun;
	struct tun tun;
	struct relay relay[TUN_HOSTS - 1];
};

/* shape[k]: of the line from host k up to the next, and down. */
static inline void network_open(struct network *network, int hosts, const struct shape shape[][2], uint64_t seed)
{
	memset(network, 0, sizeof *network);
	network->hosts = hosts;
	int rc = getenv("RH_RELAY") ? -ECANCELED : tun_open(&network->tun, hosts, shape, seed);
	network->is_tun = !rc;
	if (rc)
		printf("no network namespaces (%s): relays on loopback shape the lines\n", rc == -ECANCELED ? "RH_RELAY" : strerror(-rc));
	for (int k = 0; rc && k + 1 < hosts; k++) {
		struct relay *relay = &network->relay[k];
		relay_open(relay, 0, seed + (uint64_t)k);
		relay->shape[0] = shape[k][1]; /* the higher host connects */
		relay->shape[1] = shape[k][0];
		relay_start(relay, free_port());
	}
}

static inline void network_close(struct network *network)
{
	if (network->is_tun)
		tun_close(&network->tun);
	for (int k = 0; !network->is_tun && k + 1 < network->hosts; k++)
		relay_close(&network->relay[k]);
}

/* From now on the calling thread, and processes and threads that it starts, are on that host; -1: where the process began. */
static inline void network_enter(const struct network *network, int host)
{
	if (network->is_tun)
		assert_int_equal(tun_enter(host < 0 ? network->tun.home : network->tun.space[host]), 0);
}

/* Where the lower host of line k listens, and where the higher one finds it. */
static inline void network_addresses(const struct network *network, int k, char listens[64], char connects[64])
{
	if (network->is_tun) {
		snprintf(listens, 64, "%d", 4711 + k); /* on all addresses of the host */
		snprintf(connects, 64, "10.77.%d.1:%d", k, 4711 + k);
	} else {
		snprintf(listens, 64, "127.0.0.1:%d", network->relay[k].to_port);
		snprintf(connects, 64, "127.0.0.1:%d", network->relay[k].port);
	}
}

/* Nothing passes the line while it is down. */
static inline void network_set_down(struct network *network, int k, int is_down)
{
	if (network->is_tun)
		network->tun.line[k].is_down = is_down;
	else
		network->relay[k].is_down = is_down;
}

#endif
