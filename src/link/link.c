#include "link/link.h"

void rh_link_close(struct rh_link *link)
{
	if (link)
		link->ops->close(link);
}
