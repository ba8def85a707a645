/* One end of a link, served by a thread of its own: what that thread and the caller's share, and the link's functions over it. A
 * transport's struct begins with this one, and the transport moves the protocol's frames. */
#ifndef RH_LINK_END_H
#define RH_LINK_END_H

#include "core/fault.h"
#include "link/link.h"
#include "link/protocol.h"

#include <pthread.h>

struct link_end {
	struct rh_link base;
	void (*run)(struct link_end *end);  /* the thread's work, until end_has_ended and the last words */
	void (*wake)(struct link_end *end); /* something was posted; NULL: the thread looks by itself */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* protected by lock */
	struct protocol protocol;
	struct rh_fault fault;
	struct rh_link_progress progress;
	int closes;
};

/* Opens the protocol for `messages` messages each way, under a random id; run and wake must be set. Call end_close in any case. */
int end_open(struct link_end *end, int64_t messages, int64_t heartbeat_ns) RH_MUST;
int end_start(struct link_end *end) RH_MUST;
/* Makes the thread send its last frames and end. */
void end_stop(struct link_end *end);
void end_close(struct link_end *end);

/* The functions of struct rh_link_ops, except close. */
int end_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size) RH_MUST;
int end_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size) RH_MUST;
int end_progress(struct rh_link *link, struct rh_link_progress *out) RH_MUST;
int end_wait(struct rh_link *link, int64_t sent, int64_t received) RH_MUST;
void end_abort(struct rh_link *link, const char *line);

/* ---- the thread's ---- */

/* Ends the link with a fault; tells the peer where the fault is this end's. */
void end_fail(struct link_end *end, int rc);
/* 1: the caller closes the link, or it has a fault. */
int end_has_ended(struct link_end *end);
/* protocol_next, protocol_expect and protocol_take. */
int end_next(struct link_end *end, struct frame *out);
int end_expect(struct link_end *end, const struct frame *frame, char **into) RH_MUST;
int end_take(struct link_end *end, const struct frame *frame, const char *payload) RH_MUST;
/* Updates the progress that the caller sees: at most `sent_most` sends count as done; the bytes are those since the last call. */
void end_publish(struct link_end *end, int64_t sent_most, int64_t bytes_out, int64_t bytes_in);

/* The last frames: an abort; or, where everything that was sent is done, acknowledgements and BYE; else none. */
enum end_words { END_SPEAKS, END_HAS_SPOKEN, END_IN_SILENCE };
enum end_words end_last_words(struct link_end *end);

#endif
