/* Lanes to and from the boxes beside this one: messages posted in the order of a lane, done as the link says. */
#include "run/executor_internal.h"

#include "link/link.h"

static struct rh_link *link_of(const struct rh_executor *executor, int which)
{
	const struct rh_executor_options *options = &executor->options;
	return which == LOWER_FROM_BELOW || which == LOWER_TO_BELOW ? options->below : options->above;
}

static int receives(int which)
{
	return which == LOWER_FROM_BELOW || which == LOWER_FROM_ABOVE;
}

static int is_letter(const struct rh_command *command)
{
	return command->kind == RH_COMMAND_SEND_LETTER || command->kind == RH_COMMAND_RECEIVE_LETTER;
}

static struct rh_letter letter_of(const struct rh_command *command, int which)
{
	return (struct rh_letter){.way = (enum rh_letter_way)which, .kind = command->letter, .step = command->step};
}

static char *buffer_of(const struct rh_executor *executor, const struct rh_command *command)
{
	return run_host_address(executor, command->kind == RH_COMMAND_SEND ? command->source : command->target);
}

static struct rh_wire_boundary message_of(const struct rh_executor *executor, const struct rh_command *command)
{
	return (struct rh_wire_boundary){executor->options.model, executor->options.wire, command->lo, command->tokens};
}

static void code(const struct rh_executor *executor, const struct rh_command *command)
{
	const struct rh_wire_boundary message = message_of(executor, command);
	const struct rh_wire_draw draw = {.seed = executor->options.planned.seed,
	                                  .box = (uint32_t)executor->options.boxes->box,
	                                  .step = (uint32_t)command->step,
	                                  .micro_batch = (uint32_t)command->micro_batch,
	                                  .kind = (uint32_t)command->boundary};
	rh_wire_boundary_code(&message, &draw, buffer_of(executor, command));
}

static int post_bytes(struct rh_executor *executor, int which, uint64_t tag, void *bytes, int64_t size)
{
	struct rh_link *end = link_of(executor, which);
	return receives(which) ? rh_link_receive(end, tag, bytes, size) : rh_link_send(end, tag, bytes, size);
}

/* 1: posted; 0: it cannot be yet. */
static int post_letter(struct rh_executor *executor, int which, const struct rh_command *command)
{
	const struct rh_letters *letters = executor->stretch.call->letters;
	const struct rh_letter letter = letter_of(command, which);
	uint64_t tag;
	void *bytes;
	int64_t size;
	int rc = letters->open(letters->context, &letter, &tag, &bytes, &size);
	if (rc <= 0)
		return rc;
	rc = post_bytes(executor, which, tag, bytes, size);
	return rc ? rc : 1;
}

/* 1: posted; 0: it cannot be yet. What is sent has no other reader, so it is coded where it lies. */
static int post_boundary(struct rh_executor *executor, int which, const struct rh_command *command)
{
	const struct rh_wire_boundary message = message_of(executor, command);
	int rc = dispatcher_waits_have_ended(executor, command);
	if (rc <= 0)
		return rc;
	if (!receives(which) && !link_of(executor, which)->is_virtual)
		code(executor, command);
	rc = post_bytes(executor, which, rh_wire_tag(command->boundary, command->step, command->micro_batch), buffer_of(executor, command),
	                rh_wire_boundary_bytes(&message));
	return rc ? rc : 1;
}

/* A message that follows those of a flushed step: nothing here waits for it. */
static int post_follower(struct rh_executor *executor, int which, struct ring_command *at)
{
	const struct rh_follower *follower = &executor->follow[which].message[executor->follow[which].posted++];
	int rc = post_bytes(executor, which, follower->tag, follower->bytes, follower->size);
	if (rc)
		return rc;
	executor->dispatcher.left[at->index]--;
	dispatcher_end_head(executor, executor->lowering.links + which);
	return 1;
}

/* A step that is flushed is over before its neighbours say that they have what it sent: what uses these buffers next waits for that. Not so
 * in a stretch, at whose end the letters' memory is the caller's again. */
static void leave_send(struct rh_executor *executor, struct ring_command *at)
{
	if (!executor->trains || executor->is_stretch)
		return;
	executor->dispatcher.left[at->index]--;
	at->index = DISPATCH_LEFT;
}

/* Posts the lane's next message once all that it waits for has ended: the copy that brings its bytes, or the readers of its buffer. 1:
 * posted. */
static int post(struct rh_executor *executor, int which)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct dispatch_link *link = &dispatcher->link[which];
	int lane = executor->lowering.links + which;
	if (!dispatcher_is_ready(dispatcher, lane))
		return 0;
	const struct rh_command *command = &dispatcher->lane[lane].head->lowered;
	const struct rh_link *end = link_of(executor, which);
	if (is_letter(command) && !executor->is_stretch)
		return post_follower(executor, which, dispatcher->lane[lane].head);
	if (link->posted == DISPATCH_MESSAGES)
		return 0;
	int rc = is_letter(command) ? post_letter(executor, which, command) : post_boundary(executor, which, command);
	if (rc <= 0)
		return rc;
	int at = (link->first + link->posted++) % DISPATCH_MESSAGES;
	link->command[at] = ring_of(command);
	link->number[at] = receives(which) ? end->receives : end->sends;
	if (!receives(which))
		leave_send(executor, link->command[at]);
	dispatcher_advance(executor, lane);
	return 1;
}

/* Its content is there, or no longer needed here. */
static int settle(struct rh_executor *executor, int which, const struct rh_command *command)
{
	if (is_letter(command)) {
		const struct rh_letters *letters = executor->stretch.call->letters;
		const struct rh_letter letter = letter_of(command, which);
		return letters->close(letters->context, &letter);
	}
	if (receives(which) && !link_of(executor, which)->is_virtual) {
		const struct rh_wire_boundary message = message_of(executor, command);
		rh_wire_boundary_decode(&message, buffer_of(executor, command));
	}
	return 0;
}

/* 1: the lane's oldest message is over; 0: not yet; or a fault. */
static int finish(struct rh_executor *executor, int which, const struct rh_link_progress *progress)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct dispatch_link *link = &dispatcher->link[which];
	if (!link->posted || link->number[link->first] > (receives(which) ? progress->received : progress->sent))
		return 0;
	struct ring_command *at = link->command[link->first];
	const struct rh_command *command = &at->lowered;
	link->first = (link->first + 1) % DISPATCH_MESSAGES;
	link->posted--;
	if (at->index != DISPATCH_LEFT)
		dispatcher->left[at->index]--;
	int rc = settle(executor, which, command);
	dispatcher_end(executor, at);
	return rc ? rc : 1;
}

/* 1: messages of the lane are posted, or still to be. */
static int is_busy(const struct rh_executor *executor, int which)
{
	const struct run_dispatcher *dispatcher = &executor->dispatcher;
	return dispatcher->link[which].posted || dispatcher->lane[executor->lowering.links + which].head;
}

int dispatcher_is_linked(const struct rh_executor *executor)
{
	int any_busy = 0;
	for (int which = 0; executor->lowering.links >= 0 && which < LOWER_LINKS; which++)
		any_busy |= is_busy(executor, which);
	return any_busy;
}

int dispatcher_serve_links(struct rh_executor *executor)
{
	int any = 0, rc = 0;
	for (int which = 0; rc >= 0 && executor->lowering.links >= 0 && which < LOWER_LINKS; which++) {
		struct rh_link *link = link_of(executor, which);
		struct rh_link_progress progress = {0};
		int fault = link ? link->ops->progress(link, &progress) : 0;
		while (!rc && link && fault != -ECONNABORTED && (rc = finish(executor, which, &progress)) > 0) {
			any = 1;
			rc = 0;
		}
		if (fault == -ECONNRESET && !rc && !is_busy(executor, which)) { /* a neighbour that has all it wants may be gone already */
			rh_error_clear();
			continue;
		}
		rc = rc ? rc : fault;
		while (!rc && link && (rc = post(executor, which)) > 0) {
			any = 1;
			rc = 0;
		}
	}
	return rc < 0 ? rc : any;
}
