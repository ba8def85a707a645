/* Whoever wants to know when the host did what of a run's work. */
#ifndef RH_OFFLOAD_WATCH_H
#define RH_OFFLOAD_WATCH_H

#include <stdint.h>

enum rh_watched { RH_WATCHED_UPDATE, RH_WATCHED_READ, RH_WATCHED_WRITE };

struct rh_watch {
	/* It is done. block: of an update, else -1; bytes: of a transfer, else 0. Seconds on the clock of rh_updater_seconds. Called from
	 * any thread, with locks held: it must be short, and must not call back. */
	void (*did)(void *context, enum rh_watched what, int block, int64_t bytes, double began_s, double ended_s);
	void *context; /* did NULL: nobody wants to know */
};

#endif
