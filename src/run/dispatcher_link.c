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

/* Posts the lane's next message once all that it waits for has ended: the copy that brings its bytes, or the readers of its buffer. What is
 * sent has no other reader, so it is coded where it lies. 1: posted. */
static int post(struct rh_executor *executor, int which)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct dispatch_link *link = &dispatcher->link[which];
	int lane = executor->lowering.links + which;
	if (link->posted == DISPATCH_MESSAGES || !dispatcher_is_ready(dispatcher, lane))
		return 0;
	const struct rh_command *command = &dispatcher->lane[lane].head->lowered;
	const struct rh_wire_boundary message = message_of(executor, command);
	int64_t bytes = rh_wire_boundary_bytes(&message);
	struct rh_link *end = link_of(executor, which);
	uint64_t tag = rh_wire_tag(command->boundary, command->step, command->micro_batch);
	int rc = dispatcher_waits_have_ended(executor, command);
	if (rc <= 0)
		return rc;
	if (!receives(which) && !end->is_virtual)
		code(executor, command);
	rc = receives(which) ? rh_link_receive(end, tag, buffer_of(executor, command), bytes)
	                     : rh_link_send(end, tag, buffer_of(executor, command), bytes);
	if (rc)
		return rc;
	int at = (link->first + link->posted++) % DISPATCH_MESSAGES;
	link->command[at] = ring_of(command);
	link->number[at] = receives(which) ? end->receives : end->sends;
	dispatcher_advance(executor, lane);
	return 1;
}

/* 1: the lane's oldest message is over. */
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
	dispatcher->left[at->index]--;
	if (receives(which) && !link_of(executor, which)->is_virtual) {
		const struct rh_wire_boundary message = message_of(executor, command);
		rh_wire_boundary_decode(&message, buffer_of(executor, command));
	}
	dispatcher_end(executor, at);
	return 1;
}

int dispatcher_is_linked(const struct rh_executor *executor)
{
	const struct run_dispatcher *dispatcher = &executor->dispatcher;
	int any_busy = 0;
	for (int which = 0; executor->lowering.links >= 0 && which < LOWER_LINKS; which++)
		any_busy |= dispatcher->link[which].posted || dispatcher->lane[executor->lowering.links + which].head;
	return any_busy;
}

int dispatcher_serve_links(struct rh_executor *executor)
{
	int any = 0, rc = 0;
	for (int which = 0; rc >= 0 && executor->lowering.links >= 0 && which < LOWER_LINKS; which++) {
		struct rh_link *link = link_of(executor, which);
		struct rh_link_progress progress;
		rc = link ? link->ops->progress(link, &progress) : 0;
		while (!rc && link && finish(executor, which, &progress))
			any = 1;
		while (!rc && link && (rc = post(executor, which)) > 0) {
			any = 1;
			rc = 0;
		}
	}
	return rc < 0 ? rc : any;
}
