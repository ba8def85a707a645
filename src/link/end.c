#include "link/end.h"

#include "core/clock.h"
#include "core/minmax.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

int end_open(struct link_end *end, int64_t messages, int64_t heartbeat_ns)
{
	uint64_t id = 0;
	pthread_mutex_init(&end->lock, NULL);
	pthread_cond_init(&end->changed, NULL);
	if (getrandom(&id, sizeof id, 0) != sizeof id)
		return rh_fail(-EIO, "the system gives no random numbers");
	return protocol_open(&end->protocol, id | 1, messages, heartbeat_ns, INT64_MAX);
}

/* Signals are the main thread's, and a broken connection is an error code. */
static void *begin(void *context)
{
	struct link_end *end = context;
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	end->run(end);
	return NULL;
}

int end_start(struct link_end *end)
{
	int code = pthread_create(&end->thread, NULL, begin, end);
	return code ? rh_fail(-code, "a link wants a thread: %s", strerror(code)) : 0;
}

static void wake(struct link_end *end)
{
	if (end->wake)
		end->wake(end);
}

void end_stop(struct link_end *end)
{
	pthread_mutex_lock(&end->lock);
	end->closes = end->protocol.is_bye_due = 1;
	pthread_mutex_unlock(&end->lock);
	wake(end);
	pthread_join(end->thread, NULL);
}

void end_close(struct link_end *end)
{
	protocol_close(&end->protocol);
	pthread_cond_destroy(&end->changed);
	pthread_mutex_destroy(&end->lock);
}

static int post(struct link_end *end, int is_send, uint64_t tag, void *bytes, int64_t size)
{
	pthread_mutex_lock(&end->lock);
	int rc = rh_fault_get(&end->fault);
	if (!rc)
		rc = is_send ? protocol_send(&end->protocol, tag, bytes, size) : protocol_receive(&end->protocol, tag, bytes, size);
	pthread_mutex_unlock(&end->lock);
	wake(end);
	return rc;
}

int end_send(struct rh_link *link, uint64_t tag, const void *bytes, int64_t size)
{
	return post((struct link_end *)link, 1, tag, (void *)(uintptr_t)bytes, size);
}

int end_receive(struct rh_link *link, uint64_t tag, void *bytes, int64_t size)
{
	return post((struct link_end *)link, 0, tag, bytes, size);
}

int end_progress(struct rh_link *link, struct rh_link_progress *out)
{
	struct link_end *end = (struct link_end *)link;
	pthread_mutex_lock(&end->lock);
	*out = end->progress;
	int rc = rh_fault_get(&end->fault);
	pthread_mutex_unlock(&end->lock);
	return rc;
}

int end_wait(struct rh_link *link, int64_t sent, int64_t received)
{
	struct link_end *end = (struct link_end *)link;
	int rc = 0;
	pthread_mutex_lock(&end->lock);
	while (!rc && (end->progress.sent < sent || end->progress.received < received)) {
		rc = rh_fault_get(&end->fault);
		if (!rc)
			pthread_cond_wait(&end->changed, &end->lock);
	}
	pthread_mutex_unlock(&end->lock);
	return rc;
}

void end_abort(struct rh_link *link, const char *line)
{
	struct link_end *end = (struct link_end *)link;
	end_fail(end, rh_fail(-ECANCELED, "%s", line));
	wake(end);
}

void end_fail(struct link_end *end, int rc)
{
	pthread_mutex_lock(&end->lock);
	int is_ours = !rh_fault_code(&end->fault) && rc != -ECONNRESET && rc != -ECONNABORTED;
	rh_fault_keep(&end->fault, rc);
	if (is_ours && !end->protocol.is_abort_due) {
		snprintf(end->protocol.abort_line, sizeof end->protocol.abort_line, "%s", rh_error(rc));
		end->protocol.is_abort_due = 1;
	}
	pthread_cond_broadcast(&end->changed);
	pthread_mutex_unlock(&end->lock);
}

int end_has_ended(struct link_end *end)
{
	pthread_mutex_lock(&end->lock);
	int ended = end->closes || rh_fault_code(&end->fault);
	pthread_mutex_unlock(&end->lock);
	return ended;
}

int end_next(struct link_end *end, struct frame *out)
{
	pthread_mutex_lock(&end->lock);
	int any = protocol_next(&end->protocol, rh_clock_ns(), out);
	pthread_mutex_unlock(&end->lock);
	return any;
}

int end_expect(struct link_end *end, const struct frame *frame, char **into)
{
	pthread_mutex_lock(&end->lock);
	int rc = protocol_expect(&end->protocol, frame, into);
	pthread_mutex_unlock(&end->lock);
	return rc;
}

int end_take(struct link_end *end, const struct frame *frame, const char *payload)
{
	pthread_mutex_lock(&end->lock);
	int rc = protocol_take(&end->protocol, rh_clock_ns(), frame, payload);
	pthread_mutex_unlock(&end->lock);
	return rc;
}

void end_publish(struct link_end *end, int64_t sent_most, int64_t bytes_out, int64_t bytes_in)
{
	pthread_mutex_lock(&end->lock);
	struct rh_link_progress *progress = &end->progress;
	const struct protocol *protocol = &end->protocol;
	int64_t sent = rh_min(protocol->out.done, sent_most);
	int is_new = progress->sent != sent || progress->received != protocol->in.done || rh_fault_code(&end->fault);
	progress->sent = sent;
	progress->received = protocol->in.done;
	progress->latency_s = (double)protocol->shortest_echo_ns / 2e9;
	progress->bytes_sent += bytes_out;
	progress->bytes_received += bytes_in;
	if (is_new)
		pthread_cond_broadcast(&end->changed);
	pthread_mutex_unlock(&end->lock);
}

enum end_words end_last_words(struct link_end *end)
{
	pthread_mutex_lock(&end->lock);
	const struct protocol *protocol = &end->protocol;
	int is_at_fault = rh_fault_code(&end->fault), is_undone = protocol->out.done < protocol->out.posted;
	enum end_words out = is_at_fault ? (protocol->is_abort_due ? END_SPEAKS : END_HAS_SPOKEN)
	                     : is_undone ? END_IN_SILENCE
	                                 : (protocol->has_said_bye ? END_HAS_SPOKEN : END_SPEAKS);
	pthread_mutex_unlock(&end->lock);
	return out;
}
