#include "core/stop.h"

#include <stdatomic.h>

static atomic_int asked; /* lock-free, so a handler may set it */

void rh_stop_ask(void)
{
	atomic_store(&asked, 1);
}

void rh_stop_forget(void)
{
	atomic_store(&asked, 0);
}

int rh_stop_is_asked(void)
{
	return atomic_load(&asked);
}
