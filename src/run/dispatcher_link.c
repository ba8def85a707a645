/* Lanes to and from the boxes beside this one: messages posted in the order of a lane, done as the link says. */
#include "run/dispatcher_internal.h"

#include "core/minmax.h"
#include "link/link.h"

#include <string.h>

static struct rh_link *link_of(const struct rh_executor *executor, int which)
{
	const struct rh_executor_options *options = &executor->options;
	return which == LOWER_FROM_BELOW || which == LOWER_TO_BELOW ? options->below : options->above;
}

static int receives(int which)
{
	return which == LOWER_FROM_BELOW || which == LOWER_FROM_ABOVE;
}

uint64_t rh_executor_message_tag(enum rh_boundary_kind kind, int64_t step, int64_t micro_batch)
{
	enum { MICRO_BATCHES = 1 << 24 };
	return (uint64_t)1 << 63 | (uint64_t)step * 2 * MICRO_BATCHES | (uint64_t)micro_batch * 2 | (uint64_t)kind;
}

static uint64_t tag_of(const struct rh_command *command)
{
	return rh_executor_message_tag((enum rh_boundary_kind)command->block, command->step, command->micro_batch);
}

/* A buffer whose last readers are through with it. 1: *out is the command's; 0: not yet. */
static int take_buffer(struct rh_executor *executor, const struct rh_command *command, struct rh_boundary_buffer **out)
{
	struct rh_boundaries *boundaries = &executor->boundaries;
	enum rh_boundary_kind kind = (enum rh_boundary_kind)command->block;
	int devices = executor->options.devices, rc = 1;
	if (!dispatcher_has_buffer(executor, command))
		return 0;
	int64_t *read = &executor->dispatcher.read[boundaries->queue[boundaries->head] * devices];
	for (int d = 0; rc > 0 && d < devices; d++)
		rc = dispatcher_has_ended(executor, read[d]);
	if (rc <= 0)
		return rc;
	for (int d = 0; d < devices; d++)
		read[d] = LOWER_NEVER;
	int readers = kind == RH_BOUNDARY_GRADIENT ? 1 : rh_boundary_readers(executor->options.plan, executor->trains, command->lo);
	*out = rh_boundary_acquire(boundaries, kind, command->lo, run_place(executor, command), readers);
	dispatcher_count_buffer(&executor->dispatcher, ring_of(command)->slot, 1, 0);
	return 1;
}

static struct rh_boundary_buffer *buffer_of(const struct rh_executor *executor, const struct rh_command *command)
{
	return rh_boundary_find(&executor->boundaries, (enum rh_boundary_kind)command->block, command->lo, run_place(executor, command));
}

/* What the device sends has to be there. */
static int find_buffer(struct rh_executor *executor, const struct rh_command *command, struct rh_boundary_buffer **out)
{
	int rc = dispatcher_waits_have_ended(executor, command);
	if (rc <= 0)
		return rc;
	*out = buffer_of(executor, command);
	return 1;
}

static int64_t columns(const struct rh_executor *executor)
{
	return executor->options.model->config->hidden_size;
}

/* A load goes right behind the values, coded or not; in a buffer it lies behind what they are uncoded. */
static int64_t message_bytes(const struct rh_executor *executor, const struct rh_command *command)
{
	const struct rh_model *model = executor->options.model;
	return rh_wire_bytes(executor->options.wire, model->dtype, command->tokens, columns(executor)) + rh_load_bytes(model);
}

static char *load_of(const struct rh_executor *executor, const struct rh_command *command, const struct rh_boundary_buffer *buffer)
{
	const struct rh_model *model = executor->options.model;
	return buffer->memory + rh_boundary_bytes(model, command->tokens) - rh_load_bytes(model);
}

static void code(const struct rh_executor *executor, const struct rh_command *command, struct rh_boundary_buffer *buffer)
{
	const struct rh_executor_options *options = &executor->options;
	const struct rh_wire_draw draw = {.seed = options->seed,
	                                  .box = (uint32_t)options->boxes->box,
	                                  .step = (uint32_t)command->step,
	                                  .micro_batch = (uint32_t)command->micro_batch,
	                                  .kind = (uint32_t)command->block};
	size_t load = (size_t)rh_load_bytes(options->model);
	rh_wire_code(options->wire, options->model->dtype, command->tokens, columns(executor), &draw, buffer->memory);
	memmove(buffer->memory + message_bytes(executor, command) - load, load_of(executor, command, buffer), load);
}

static void decode(const struct rh_executor *executor, const struct rh_command *command)
{
	const struct rh_executor_options *options = &executor->options;
	struct rh_boundary_buffer *buffer = buffer_of(executor, command);
	size_t load = (size_t)rh_load_bytes(options->model);
	memmove(load_of(executor, command, buffer), buffer->memory + message_bytes(executor, command) - load, load);
	rh_wire_decode(options->wire, options->model->dtype, command->tokens, columns(executor), buffer->memory);
}

/* 1: the lane's next message is posted. What is sent has no other reader, and is coded where it lies. */
static int post(struct rh_executor *executor, int which)
{
	struct run_dispatcher *dispatcher = &executor->dispatcher;
	struct dispatch_link *link = &dispatcher->link[which];
	struct rh_boundary_buffer *buffer;
	int lane = executor->lowering.links + which;
	if (link->posted == DISPATCH_MESSAGES || !dispatcher_is_ready(dispatcher, lane))
		return 0;
	const struct rh_command *command = &dispatcher->head[lane]->is;
	int64_t bytes = message_bytes(executor, command);
	struct rh_link *end = link_of(executor, which);
	int rc = receives(which) ? take_buffer(executor, command, &buffer) : find_buffer(executor, command, &buffer);
	if (rc <= 0)
		return rc;
	if (!receives(which) && !end->is_virtual)
		code(executor, command, buffer);
	rc = receives(which) ? rh_link_receive(end, tag_of(command), buffer->memory, bytes)
	                     : rh_link_send(end, tag_of(command), buffer->memory, bytes);
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
	const struct rh_command *command = &at->is;
	link->first = (link->first + 1) % DISPATCH_MESSAGES;
	link->posted--;
	dispatcher->left--;
	dispatcher->left_of[at->place]--;
	if (receives(which)) {
		if (!link_of(executor, which)->is_virtual)
			decode(executor, command);
	} else {
		struct rh_boundary_buffer *buffer = buffer_of(executor, command);
		int64_t unused = executor->boundaries.free_count;
		buffer->slot = rh_max(buffer->slot, at->slot);
		rh_boundary_release(&executor->boundaries, (enum rh_boundary_kind)command->block, command->lo,
		                    run_place(executor, command));
		dispatcher_count_buffer(dispatcher, buffer->slot, 0, executor->boundaries.free_count > unused);
	}
	dispatcher_end(executor, at);
	return 1;
}

int dispatcher_is_linked(const struct rh_executor *executor)
{
	const struct run_dispatcher *dispatcher = &executor->dispatcher;
	int is = 0;
	for (int which = 0; executor->lowering.links >= 0 && which < LOWER_LINKS; which++)
		is |= dispatcher->link[which].posted || dispatcher->head[executor->lowering.links + which];
	return is;
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
