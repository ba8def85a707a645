#include "link/transport.h"

#include "config/device_spec.h"
#include "config/transport.h"
#include "link/mpi.h"
#include "link/nccl.h"
#include "link/tcp.h"

#include <string.h>

static int is_upper(const struct rh_transport_options *options)
{
	return options->box > options->neighbour;
}

static int open_tcp(const struct rh_transport_options *options, struct rh_link **out)
{
	static const char listen[] = "listen:";
	int listens = !strncmp(options->address, listen, sizeof listen - 1);
	const struct rh_tcp_options tcp = {.address = options->address + (listens ? sizeof listen - 1 : 0),
	                                   .listens = listens,
	                                   .identity = options->peer ? options->identity : NULL,
	                                   .peer = options->peer,
	                                   .greeting = options->greeting,
	                                   .messages = options->messages,
	                                   .bytes_per_s = options->bytes_per_s,
	                                   .timing = options->timing};
	return rh_tcp_open(&tcp, out);
}

static int open_mpi(const struct rh_transport_options *options, struct rh_link **out)
{
	const struct rh_mpi_options mpi = {.rank = options->box,
	                                   .peer = options->neighbour,
	                                   .is_upper = is_upper(options),
	                                   .greeting = options->greeting,
	                                   .messages = options->messages,
	                                   .timing = options->timing};
	return rh_mpi_open(&mpi, out);
}

/* From the box's first GPU. */
static int open_nccl(const struct rh_transport_options *options, struct rh_link **out)
{
	struct rh_device_spec spec;
	struct rh_transport_options host = *options;
	struct rh_link *host_link;
	int rc = rh_device_spec_parse(options->device, &spec);
	if (!rc && spec.kind != RH_DEVICE_CUDA && spec.kind != RH_DEVICE_EMU)
		rc = rh_fail(-EINVAL,
		             "link_transport: nccl sends from GPUs, and device is '%s': write device: cuda, or link_transport: tcp",
		             options->device);
	host.messages++;
	if (!rc)
		rc = open_tcp(&host, &host_link);
	if (rc)
		return rc;
	const struct rh_nccl_options nccl = {
	        .host_link = host_link, .gpu = spec.count ? spec.gpu[0] : 0, .is_upper = is_upper(options), .messages = options->messages};
	return rh_nccl_link_open(&nccl, out);
}

int rh_transport_open(int link_transport, const struct rh_transport_options *options, struct rh_link **out)
{
#define OPENS(name, ...) open_##name,
	static int (*const opens[])(const struct rh_transport_options *, struct rh_link **) = {RH_TRANSPORTS(OPENS)};
#undef OPENS
	*out = NULL;
	return opens[link_transport](options, out);
}
