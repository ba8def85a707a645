#include "link/session.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <stdio.h>
#include <string.h>

enum { STATE_EVERY = 4 * RH_LINK_FRAME_BYTES }; /* bytes of a long message between two acknowledgements */

int session_open(struct session *session, uint64_t id, int64_t capacity, int64_t heartbeat_ns, int64_t retry_ns)
{
	RH_ASSERT(id && capacity > 0);
	*session = (struct session){.id = id, .capacity = capacity, .heartbeat_ns = heartbeat_ns, .retry_ns = retry_ns};
	session->out.message = rh_alloc((size_t)capacity, sizeof *session->out.message);
	session->in.message = rh_alloc((size_t)capacity, sizeof *session->in.message);
	if (session->out.message && session->in.message)
		return 0;
	session_close(session);
	return -ENOMEM;
}

void session_close(struct session *session)
{
	rh_free(session->out.message);
	rh_free(session->in.message);
	session->out.message = session->in.message = NULL;
}

static int post(struct session *session, struct session_queue *queue, const struct session_message *message)
{
	RH_ASSERT(message->size >= 0);
	if (queue->posted - queue->done >= session->capacity)
		return rh_fail(-ENOBUFS, "%lld messages are posted on a link already", (long long)session->capacity);
	queue->message[queue->posted++ % session->capacity] = *message;
	return 0;
}

int session_send(struct session *session, uint64_t tag, const void *bytes, int64_t size)
{
	return post(session, &session->out, &(struct session_message){.tag = tag, .bytes = (char *)(uintptr_t)bytes, .size = size});
}

int session_receive(struct session *session, uint64_t tag, void *bytes, int64_t size)
{
	int rc = post(session, &session->in, &(struct session_message){.tag = tag, .bytes = bytes, .size = size});
	if (!rc)
		session->is_state_due = 1;
	return rc;
}

static void send_again(struct session *session, int64_t now_ns)
{
	session->next.number = session->out.done;
	session->next.offset = session->out.offset;
	session->progress_ns = now_ns;
}

int session_is_unused(const struct session *session)
{
	return !session->moved;
}

void session_rewind(struct session *session, int64_t now_ns)
{
	send_again(session, now_ns);
	session->is_state_due = 1;
	session->allowed = session->out.done; /* until the peer's STATE: it says which byte to begin with */
	session->is_pong_due = 0;
	session->has_said_bye = 0;
	session->heard_ns = now_ns;
	session->acknowledged.ping_ns = now_ns;
}

static int has_data(const struct session *session)
{
	return session->next.number < session->out.posted && session->next.number < session->allowed;
}

static void next_data(struct session *session, struct frame *out)
{
	int64_t number = session->next.number, offset = session->next.offset;
	const struct session_message *message = &session->out.message[number % session->capacity];
	int64_t length = rh_min(message->size - offset, RH_LINK_FRAME_BYTES);
	*out = (struct frame){.type = FRAME_DATA,
	                      .length = (uint32_t)length,
	                      .a = (uint64_t)number,
	                      .b = (uint64_t)offset,
	                      .c = (uint64_t)message->size,
	                      .d = message->tag,
	                      .payload = message->bytes + offset};
	int is_last = offset + length == message->size;
	session->next.number += is_last;
	session->next.offset = is_last ? 0 : offset + length;
}

static void next_state(struct session *session, struct frame *out)
{
	*out = (struct frame){.type = FRAME_STATE,
	                      .a = (uint64_t)session->in.done,
	                      .b = (uint64_t)session->in.offset,
	                      .c = (uint64_t)session->in.posted,
	                      .d = session->peer};
	session->acknowledged.done = session->in.done;
	session->acknowledged.offset = session->in.offset;
	session->is_state_due = 0;
}

static int is_unacknowledged(const struct session *session)
{
	return session->next.number > session->out.done || session->next.offset > session->out.offset;
}

/* The frames that have a due time: a ping, and everything unacknowledged where the transport may lose frames. */
static int next_due(struct session *session, int64_t now_ns, struct frame *out)
{
	if (now_ns - session->acknowledged.ping_ns < session->heartbeat_ns)
		return 0;
	session->acknowledged.ping_ns = now_ns;
	session->is_state_due = session->retry_ns != INT64_MAX; /* the last one may be lost */
	*out = (struct frame){.type = FRAME_PING, .a = (uint64_t)now_ns};
	return 1;
}

int session_next(struct session *session, int64_t now_ns, struct frame *out)
{
	if (session->is_abort_due) {
		session->is_abort_due = 0;
		*out = (struct frame){.type = FRAME_ABORT, .length = (uint32_t)strlen(session->abort_line), .payload = session->abort_line};
		return 1;
	}
	if (session->is_pong_due) {
		session->is_pong_due = 0;
		*out = (struct frame){.type = FRAME_PONG, .a = session->pong};
		return 1;
	}
	if (session->is_state_due) {
		next_state(session, out);
		return 1;
	}
	if (next_due(session, now_ns, out))
		return 1;
	if (!is_unacknowledged(session))
		session->progress_ns = now_ns;
	else if (now_ns - session->progress_ns >= session->retry_ns)
		send_again(session, now_ns);
	if (has_data(session)) {
		next_data(session, out);
		return 1;
	}
	if (session->is_bye_due && !session->has_said_bye && session->out.done == session->out.posted) {
		session->has_said_bye = 1;
		*out = (struct frame){.type = FRAME_BYE};
		return 1;
	}
	return 0;
}

int64_t session_deadline(const struct session *session)
{
	int64_t ping = session->acknowledged.ping_ns + session->heartbeat_ns;
	if (session->retry_ns == INT64_MAX || !is_unacknowledged(session))
		return ping;
	return rh_min(ping, session->progress_ns + session->retry_ns);
}

int session_expect(const struct session *session, const struct frame *frame, char **into)
{
	const struct session_queue *queue = &session->in;
	*into = NULL;
	if (frame->a >= (uint64_t)queue->posted)
		return rh_fail(-EPROTO, "the peer sent a message that nobody has asked for");
	if (frame->a != (uint64_t)queue->done || frame->b != (uint64_t)queue->offset)
		return 0;
	const struct session_message *message = &queue->message[queue->done % session->capacity];
	if (frame->d != message->tag || frame->c != (uint64_t)message->size)
		return rh_fail(-EPROTO,
		               "the peer sent message %llu as %#llx of %llu bytes; this box expects %#llx of %lld bytes: the boxes do not "
		               "run the same program",
		               (unsigned long long)frame->a, (unsigned long long)frame->d, (unsigned long long)frame->c,
		               (unsigned long long)message->tag, (long long)message->size);
	*into = message->bytes + queue->offset;
	return 0;
}

static int take_data(struct session *session, const struct frame *frame)
{
	struct session_queue *queue = &session->in;
	char *into;
	int rc = session_expect(session, frame, &into);
	if (rc)
		return rc;
	if (!into) { /* lost, doubled or out of order: tell the peer what is here */
		session->is_state_due = 1;
		return 0;
	}
	queue->offset += frame->length;
	session->moved++;
	if (queue->offset == queue->message[queue->done % session->capacity].size) {
		queue->done++;
		queue->offset = 0;
		session->is_state_due = 1;
	} else if (queue->offset - (session->acknowledged.done == queue->done ? session->acknowledged.offset : 0) >= STATE_EVERY) {
		session->is_state_due = 1;
	}
	return 0;
}

static int is_later(int64_t number, int64_t offset, int64_t than_number, int64_t than_offset)
{
	return number > than_number || (number == than_number && offset > than_offset);
}

/* After a rewind sending skips what the peer turns out to have. */
static int take_state(struct session *session, int64_t now_ns, const struct frame *frame)
{
	struct session_queue *queue = &session->out;
	int64_t received = (int64_t)frame->a, offset = (int64_t)frame->b, posted = (int64_t)frame->c;
	if (frame->d != session->id)
		return 0; /* spoken to an earlier process at this address */
	if (received < 0 || offset < 0 || posted < received)
		return rh_fail(-EPROTO, "the peer sent impossible counts");
	if (is_later(queue->done, queue->offset, received, offset) || posted < session->allowed)
		return 0; /* an old one */
	int is_beyond = received > queue->posted || (received == queue->posted && offset);
	if (is_beyond || (offset && offset >= queue->message[received % session->capacity].size))
		return rh_fail(-EPROTO, "the peer acknowledges more than it was sent");
	if (is_later(received, offset, queue->done, queue->offset)) {
		session->progress_ns = now_ns;
		session->moved++;
	}
	queue->done = received;
	queue->offset = offset;
	session->allowed = posted;
	if (is_later(received, offset, session->next.number, session->next.offset)) {
		session->next.number = received;
		session->next.offset = offset;
	}
	return 0;
}

static int take_abort(const struct frame *frame, const char *payload)
{
	char line[512];
	size_t length = frame->length < sizeof line - 1 ? frame->length : sizeof line - 1;
	for (size_t i = 0; i < length; i++)
		line[i] = payload[i] >= 32 && payload[i] != 127 ? payload[i] : '?';
	line[length] = 0;
	return rh_fail(-ECONNABORTED, "the peer stopped: %s", length ? line : "it gives no reason");
}

int session_take(struct session *session, int64_t now_ns, const struct frame *frame, const char *payload)
{
	session->heard_ns = now_ns;
	switch (frame->type) {
	case FRAME_DATA:
		return session->has_heard_bye ? rh_fail(-EPROTO, "the peer sent a message after its farewell") : take_data(session, frame);
	case FRAME_STATE:
		return take_state(session, now_ns, frame);
	case FRAME_PING:
		session->pong = frame->a;
		session->is_pong_due = 1;
		return 0;
	case FRAME_PONG: {
		/* a time that this end has not reached, it has not sent either: a peer may say any number */
		int64_t echo = frame->a < (uint64_t)now_ns ? now_ns - (int64_t)frame->a : 0;
		if (echo && (!session->shortest_echo_ns || echo < session->shortest_echo_ns))
			session->shortest_echo_ns = echo;
		return 0;
	}
	case FRAME_BYE:
		session->has_heard_bye = 1;
		return 0;
	case FRAME_ABORT:
		return take_abort(frame, payload);
	default:
		return rh_fail(-EPROTO, "the peer greets twice");
	}
}
