/* A listener to the host's share of a run's work: updates, reads and writes. */
#ifndef RH_OFFLOAD_WATCH_H
#define RH_OFFLOAD_WATCH_H

#include <stdint.h>

enum rh_watched { RH_WATCHED_UPDATE, RH_WATCHED_READ, RH_WATCHED_WRITE };

struct rh_watch {
	/* Called after the work, from any thread, with locks held: it must be short and must not call back. block: of an update, else -1;
	 * bytes: of a transfer, else 0. Seconds are those of rh_updater_seconds. */
	void (*did)(void *context, enum rh_watched what, int block, int64_t bytes, double began_s, double ended_s);
	void *context; /* did NULL: nobody listens */
};

#endif
