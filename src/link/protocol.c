#include "link/protocol.h"

#include "core/alloc.h"
#include "core/minmax.h"

#include <stdio.h>
#include <string.h>

enum { STATE_EVERY = 4 * RH_LINK_FRAME_BYTES }; /* bytes of a long message between two acknowledgements */

int protocol_open(struct protocol *protocol, uint64_t id, int64_t capacity, int64_t heartbeat_ns, int64_t retry_ns)
{
	RH_ASSERT(id && capacity > 0);
	*protocol = (struct protocol){.id = id, .capacity = capacity, .heartbeat_ns = heartbeat_ns, .retry_ns = retry_ns};
	protocol->out.message = rh_alloc((size_t)capacity, sizeof *protocol->out.message);
	protocol->in.message = rh_alloc((size_t)capacity, sizeof *protocol->in.message);
	if (protocol->out.message && protocol->in.message)
		return 0;
	protocol_close(protocol);
	return -ENOMEM;
}

void protocol_close(struct protocol *protocol)
{
	rh_free(protocol->out.message);
	rh_free(protocol->in.message);
	protocol->out.message = protocol->in.message = NULL;
}

static int post(struct protocol *protocol, struct protocol_queue *queue, const struct protocol_message *message)
{
	RH_ASSERT(message->size >= 0);
	if (queue->posted - queue->done >= protocol->capacity)
		return rh_fail(-ENOBUFS, "%lld messages are posted on a link already", (long long)protocol->capacity);
	queue->message[queue->posted++ % protocol->capacity] = *message;
	return 0;
}

int protocol_send(struct protocol *protocol, uint64_t tag, const void *bytes, int64_t size)
{
	return post(protocol, &protocol->out, &(struct protocol_message){.tag = tag, .bytes = (char *)(uintptr_t)bytes, .size = size});
}

int protocol_receive(struct protocol *protocol, uint64_t tag, void *bytes, int64_t size)
{
	int rc = post(protocol, &protocol->in, &(struct protocol_message){.tag = tag, .bytes = bytes, .size = size});
	if (!rc)
		protocol->is_state_due = 1;
	return rc;
}

static void send_again(struct protocol *protocol, int64_t now_ns)
{
	protocol->next.number = protocol->out.done;
	protocol->next.offset = protocol->out.offset;
	protocol->progress_ns = now_ns;
}

int protocol_is_unused(const struct protocol *protocol)
{
	return !protocol->moved;
}

void protocol_rewind(struct protocol *protocol, int64_t now_ns)
{
	send_again(protocol, now_ns);
	protocol->is_state_due = 1;
	protocol->allowed = protocol->out.done; /* until the peer's STATE: it says which byte to begin with */
	protocol->is_pong_due = 0;
	protocol->has_said_bye = 0;
	protocol->heard_ns = now_ns;
	protocol->acknowledged.ping_ns = now_ns;
}

static int has_data(const struct protocol *protocol)
{
	return protocol->next.number < protocol->out.posted && protocol->next.number < protocol->allowed;
}

static void next_data(struct protocol *protocol, struct frame *out)
{
	int64_t number = protocol->next.number, offset = protocol->next.offset;
	const struct protocol_message *message = &protocol->out.message[number % protocol->capacity];
	int64_t length = rh_min(message->size - offset, RH_LINK_FRAME_BYTES);
	*out = (struct frame){.type = FRAME_DATA,
	                      .length = (uint32_t)length,
	                      .a = (uint64_t)number,
	                      .b = (uint64_t)offset,
	                      .c = (uint64_t)message->size,
	                      .d = message->tag,
	                      .payload = message->bytes + offset};
	int is_last = offset + length == message->size;
	protocol->next.number += is_last;
	protocol->next.offset = is_last ? 0 : offset + length;
}

static void next_state(struct protocol *protocol, struct frame *out)
{
	*out = (struct frame){.type = FRAME_STATE,
	                      .a = (uint64_t)protocol->in.done,
	                      .b = (uint64_t)protocol->in.offset,
	                      .c = (uint64_t)protocol->in.posted,
	                      .d = protocol->peer};
	protocol->acknowledged.done = protocol->in.done;
	protocol->acknowledged.offset = protocol->in.offset;
	protocol->is_state_due = 0;
}

static int is_unacknowledged(const struct protocol *protocol)
{
	return protocol->next.number > protocol->out.done || protocol->next.offset > protocol->out.offset;
}

/* The frames that have a due time: a ping, and everything unacknowledged where the transport may lose frames. */
static int next_due(struct protocol *protocol, int64_t now_ns, struct frame *out)
{
	if (now_ns - protocol->acknowledged.ping_ns < protocol->heartbeat_ns)
		return 0;
	protocol->acknowledged.ping_ns = now_ns;
	protocol->is_state_due = protocol->retry_ns != INT64_MAX; /* the last one may be lost */
	*out = (struct frame){.type = FRAME_PING, .a = (uint64_t)now_ns};
	return 1;
}

int protocol_next(struct protocol *protocol, int64_t now_ns, struct frame *out)
{
	if (protocol->is_abort_due) {
		protocol->is_abort_due = 0;
		*out = (struct frame){
		        .type = FRAME_ABORT, .length = (uint32_t)strlen(protocol->abort_line), .payload = protocol->abort_line};
		return 1;
	}
	if (protocol->is_pong_due) {
		protocol->is_pong_due = 0;
		*out = (struct frame){.type = FRAME_PONG, .a = protocol->pong};
		return 1;
	}
	if (protocol->is_state_due) {
		next_state(protocol, out);
		return 1;
	}
	if (next_due(protocol, now_ns, out))
		return 1;
	if (!is_unacknowledged(protocol))
		protocol->progress_ns = now_ns;
	else if (now_ns - protocol->progress_ns >= protocol->retry_ns)
		send_again(protocol, now_ns);
	if (has_data(protocol)) {
		next_data(protocol, out);
		return 1;
	}
	if (protocol->is_bye_due && !protocol->has_said_bye && protocol->out.done == protocol->out.posted) {
		protocol->has_said_bye = 1;
		*out = (struct frame){.type = FRAME_BYE};
		return 1;
	}
	return 0;
}

int64_t protocol_deadline(const struct protocol *protocol)
{
	int64_t ping = protocol->acknowledged.ping_ns + protocol->heartbeat_ns;
	if (protocol->retry_ns == INT64_MAX || !is_unacknowledged(protocol))
		return ping;
	return rh_min(ping, protocol->progress_ns + protocol->retry_ns);
}

int protocol_expect(const struct protocol *protocol, const struct frame *frame, char **into)
{
	const struct protocol_queue *queue = &protocol->in;
	*into = NULL;
	if (frame->a >= (uint64_t)queue->posted)
		return rh_fail(-EPROTO, "the peer sent a message that nobody has asked for");
	if (frame->a != (uint64_t)queue->done || frame->b != (uint64_t)queue->offset)
		return 0;
	const struct protocol_message *message = &queue->message[queue->done % protocol->capacity];
	if (frame->d != message->tag || frame->c != (uint64_t)message->size)
		return rh_fail(-EPROTO,
		               "the peer sent message %llu as %#llx of %llu bytes; this box expects %#llx of %lld bytes: the boxes do not "
		               "run the same program",
		               (unsigned long long)frame->a, (unsigned long long)frame->d, (unsigned long long)frame->c,
		               (unsigned long long)message->tag, (long long)message->size);
	*into = message->bytes + queue->offset;
	return 0;
}

static int take_data(struct protocol *protocol, const struct frame *frame)
{
	struct protocol_queue *queue = &protocol->in;
	char *into;
	int rc = protocol_expect(protocol, frame, &into);
	if (rc)
		return rc;
	if (!into) { /* lost, doubled or out of order: tell the peer what is here */
		protocol->is_state_due = 1;
		return 0;
	}
	queue->offset += frame->length;
	protocol->moved++;
	if (queue->offset == queue->message[queue->done % protocol->capacity].size) {
		queue->done++;
		queue->offset = 0;
		protocol->is_state_due = 1;
	} else if (queue->offset - (protocol->acknowledged.done == queue->done ? protocol->acknowledged.offset : 0) >= STATE_EVERY) {
		protocol->is_state_due = 1;
	}
	return 0;
}

static int is_later(int64_t number, int64_t offset, int64_t than_number, int64_t than_offset)
{
	return number > than_number || (number == than_number && offset > than_offset);
}

/* After a rewind sending skips what the peer turns out to have. */
static int take_state(struct protocol *protocol, int64_t now_ns, const struct frame *frame)
{
	struct protocol_queue *queue = &protocol->out;
	int64_t received = (int64_t)frame->a, offset = (int64_t)frame->b, posted = (int64_t)frame->c;
	if (frame->d != protocol->id)
		return 0; /* spoken to an earlier process at this address */
	if (received < 0 || offset < 0 || posted < received)
		return rh_fail(-EPROTO, "the peer sent impossible counts");
	if (is_later(queue->done, queue->offset, received, offset) || posted < protocol->allowed)
		return 0; /* an old one */
	int is_beyond = received > queue->posted || (received == queue->posted && offset);
	if (is_beyond || (offset && offset >= queue->message[received % protocol->capacity].size))
		return rh_fail(-EPROTO, "the peer acknowledges more than it was sent");
	if (is_later(received, offset, queue->done, queue->offset)) {
		protocol->progress_ns = now_ns;
		protocol->moved++;
	}
	queue->done = received;
	queue->offset = offset;
	protocol->allowed = posted;
	if (is_later(received, offset, protocol->next.number, protocol->next.offset)) {
		protocol->next.number = received;
		protocol->next.offset = offset;
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

int protocol_take(struct protocol *protocol, int64_t now_ns, const struct frame *frame, const char *payload)
{
	protocol->heard_ns = now_ns;
	switch (frame->type) {
	case FRAME_DATA:
		return protocol->has_heard_bye ? rh_fail(-EPROTO, "the peer sent a message after its farewell")
		                               : take_data(protocol, frame);
	case FRAME_STATE:
		return take_state(protocol, now_ns, frame);
	case FRAME_PING:
		protocol->pong = frame->a;
		protocol->is_pong_due = 1;
		return 0;
	case FRAME_PONG: {
		/* a time that this end has not reached, it has not sent either: a peer may say any number */
		int64_t echo = frame->a < (uint64_t)now_ns ? now_ns - (int64_t)frame->a : 0;
		if (echo && (!protocol->shortest_echo_ns || echo < protocol->shortest_echo_ns))
			protocol->shortest_echo_ns = echo;
		return 0;
	}
	case FRAME_BYE:
		protocol->has_heard_bye = 1;
		return 0;
	case FRAME_ABORT:
		return take_abort(frame, payload);
	default:
		return rh_fail(-EPROTO, "the peer greets twice");
	}
}
