/* A listener to the host's part of a run's work: updates, reads and writes. */
#ifndef RH_OFFLOAD_WATCH_H
#define RH_OFFLOAD_WATCH_H

#include <stdint.h>

struct rh_model;
struct rh_trace;

enum rh_watched { RH_WATCHED_UPDATE, RH_WATCHED_READ, RH_WATCHED_WRITE };

struct rh_watch {
	/* Called after the work, from any thread, with locks held: it must be short and must not call back. block: of an update, else -1;
	 * bytes: of a transfer, else 0. Seconds are those of rh_updater_seconds. */
	void (*notify)(void *context, enum rh_watched what, int block, int64_t bytes, double began_s, double ended_s);
	void *context; /* notify NULL: nobody listens */
};

/* A listener that adds the work to a trace, as the host's. context: a struct rh_watch_trace. */
struct rh_watch_trace {
	struct rh_trace *trace;
	const struct rh_model *model; /* of the blocks */
};
void rh_watch_trace_notify(void *context, enum rh_watched what, int block, int64_t bytes, double began_s, double ended_s);

#endif
