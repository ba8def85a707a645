#include "link/link.h"

void rh_link_close(struct rh_link *link)
{
	if (link)
		link->ops->close(link);
}

int rh_link_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	int rc = link->ops->send(link, tag, bytes, size);
	link->sends += !rc;
	return rc;
}

int rh_link_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	int rc = link->ops->receive(link, tag, bytes, size);
	link->receives += !rc;
	return rc;
}
