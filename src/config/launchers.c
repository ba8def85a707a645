/* What launchers tell the processes that they start: torchrun, Open MPI's mpirun, Slurm. */
#include "config/config_internal.h"

#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_MOST = 65535 };

static int fail_variable(const char *name, const char *expected)
{
	return rh_fail(-EINVAL, "%s of the environment: '%s' is not allowed; expected %s", name, config_show(getenv(name)).text, expected);
}

int config_ask_ranks(struct rh_config *config)
{
	static const char *const names[][2] = {
	        {"RANK", "WORLD_SIZE"}, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"SLURM_PROCID", "SLURM_NTASKS"}};
	char expected[96];
	snprintf(expected, sizeof expected, "the number of boxes, at most %d; or give boxes and box", RH_BOXES_MAX);
	for (size_t i = 0; i < sizeof names / sizeof *names && !(config->box && config->boxes); i++) {
		const char *rank = getenv(names[i][0]), *ranks = getenv(names[i][1]);
		int64_t number, count;
		if (!rank || !ranks)
			continue;
		if (config_parse_integer(ranks, &count) || count < 1 || count > RH_BOXES_MAX)
			return fail_variable(names[i][1], expected);
		if (config_parse_integer(rank, &number) || number < 0 || number >= count)
			return fail_variable(names[i][0], "a box's number, counted from 0; or give boxes and box");
		if (count == 1) /* nothing was distributed, or by another launcher */
			continue;
		config->box = config->box ? config->box : number + 1;
		config->boxes = config->boxes ? config->boxes : count;
	}
	return 0;
}

int config_ask_addresses(struct rh_config *config)
{
	const char *host = getenv("MASTER_ADDR"), *port_text = getenv("MASTER_PORT");
	int is_first = config->box == 1;
	char **address = is_first ? &config->link_above : &config->link_below;
	int64_t port;
	if (!host || !port_text || config->box > 2 || *address || !rh_transport_traits(config->link_transport).takes_addresses)
		return 0;
	if (config_parse_integer(port_text, &port) || port < 1 || port >= PORT_MOST)
		return fail_variable("MASTER_PORT", "a port below 65535; or give link_above and link_below");
	struct rh_text text = {0};
	int is_ipv6 = strchr(host, ':') != NULL, next = (int)port + 1; /* torchrun itself listens on the other */
	int rc = is_first ? rh_text_printf(&text, "listen:%d", next) : rh_text_printf(&text, is_ipv6 ? "[%s]:%d" : "%s:%d", host, next);
	if (rc)
		rh_text_free(&text);
	else
		*address = text.bytes;
	return rc;
}
