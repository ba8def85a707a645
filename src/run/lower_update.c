/* The optimizer's commands (rh_command_kind). Each block has two lanes, in order of steps t:
 *
 *   gradients             arrived(t), taken(t)
 *   weights, synchronous  ready(t), which waits for arrived(t)
 *   weights, stale        uploads over(t + 1), which comes after arrived(t) and before arrived(t + 1); ready(t)
 *
 * With local updates uploads are over where rh_dispatch_publishes says; otherwise, if updates clip, `ready` and `taken` wait for the norm,
 * too. Uploads wait for the latest `ready`, downloads for the latest `taken`. */
#include "run/lower.h"

#include "core/minmax.h"

static int64_t add_command(struct lowering *to, int lane, enum rh_command_kind kind, int block, int64_t step)
{
	struct rh_command command = lower_command_on(kind, lane, step);
	command.block = block;
	return lower_add(to, &command);
}

static int gradient_lane(const struct lowering *to, int block)
{
	return to->optimizer + block;
}

static int weights_lane(const struct lowering *to, int block)
{
	return to->optimizer + to->options->model->blocks + block;
}

static int norm_lane(const struct lowering *to)
{
	return to->optimizer + 2 * to->options->model->blocks;
}

static void add_weights_ready(struct lowering *to, int block, int64_t step)
{
	int lane = weights_lane(to, block);
	lower_await(to, lane, to->lane[gradient_lane(to, block)].last, RH_WAIT_NEEDS);
	to->block[block].ready = add_command(to, lane, RH_COMMAND_WEIGHTS_READY, block, step);
	to->block[block].version += to->block[block].arrived && (to->call.updates || to->call.is_local);
	to->block[block].stashed_versions += to->block[block].arrived && to->call.is_local;
	to->block[block].arrived = 0;
}

/* Adds the commands that follow an arrived gradient. norm: the command that they wait for; LOWER_NEVER: they wait for none. */
static void add_updates(struct lowering *to, int block, int64_t step, int64_t norm)
{
	if (!to->options->planned.stale) {
		lower_await(to, weights_lane(to, block), norm, RH_WAIT_NEEDS);
		add_weights_ready(to, block, step);
	}
	lower_await(to, gradient_lane(to, block), norm, RH_WAIT_NEEDS);
	lower_await(to, gradient_lane(to, block), to->block[block].ready, RH_WAIT_NEEDS);
	to->block[block].taken = add_command(to, gradient_lane(to, block), RH_COMMAND_GRADIENT_TAKEN, block, step);
}

static void add_norm(struct lowering *to, int64_t step)
{
	const struct rh_model *model = to->options->model;
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].trainable)
			lower_await(to, norm_lane(to), to->lane[gradient_lane(to, b)].last, RH_WAIT_NEEDS);
	int64_t norm = add_command(to, norm_lane(to), RH_COMMAND_NORM, -1, step);
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].trainable)
			add_updates(to, b, step, norm);
}

/* Waits for the block's uploads so far in this call. Returns to how many devices they went. */
static int await_uploads(struct lowering *to, int lane, int block)
{
	int devices = to->options->planned.devices, count = 0;
	for (int d = 0; d < devices && to->block[block].uploaded_step == to->call.number; d++) {
		lower_await(to, lane, to->uploaded[block * devices + d], RH_WAIT_NEEDS);
		count += to->uploaded[block * devices + d] != LOWER_NEVER;
	}
	return count;
}

void lower_arrived(struct lowering *to, int block, int64_t step, int64_t downloaded, int device, struct rh_place where)
{
	int lane = gradient_lane(to, block);
	if (!to->options->updater && !to->call.is_local)
		return;
	lower_await(to, lane, downloaded, RH_WAIT_NEEDS);
	lower_await(to, lane, to->block[block].uploads_over, RH_WAIT_NEEDS);
	/* on one device the gradient comes after them */
	if (to->call.is_local && !to->options->planned.stale && await_uploads(to, lane, block) > 1)
		device = -1;
	struct rh_command arrived = lower_command_on(RH_COMMAND_GRADIENT_ARRIVED, lane, step);
	arrived.block = block;
	arrived.sender = device;
	if (where.room == RH_ROOM_HOST_ROWS)
		arrived.source = where;
	to->block[block].arrival = lower_add(to, &arrived);
	RH_ASSERT(!to->call.is_local || !to->block[block].arrived); /* the previous update is published */
	to->block[block].arrived = 1;
	int is_last = --to->expected == 0;
	to->expected = is_last ? to->trainable : to->expected;
	if (!to->call.clips || to->call.is_local)
		add_updates(to, block, step, LOWER_NEVER);
	else if (is_last)
		add_norm(to, step);
}

void lower_uploads_over(struct lowering *to, int block, int64_t step)
{
	int lane = weights_lane(to, block);
	if (!to->options->planned.stale || !to->options->updater || (to->call.is_local && !to->block[block].arrived))
		return;
	(void)await_uploads(to, lane, block);
	lower_await(to, lane, to->block[block].arrival, RH_WAIT_NEEDS);
	to->block[block].uploads_over = add_command(to, lane, RH_COMMAND_UPLOADS_OVER, block, step - to->call.is_local);
	if (to->block[block].arrived)
		add_weights_ready(to, block, step - 1);
}

void lower_flush(struct lowering *to, int64_t step)
{
	const struct rh_model *model = to->options->model;
	for (int b = 0; b < model->blocks; b++)
		if (model->block[b].trainable)
			add_weights_ready(to, b, step);
}

/* A tied table's sum of the embedding is finished last; the head's sum has come down by then. It is sent in pieces, each of which is added
 * to the head's sum on arrival, so that the host holds one sum and not two. Returns the last addition. */
static int64_t fold_pieces(struct lowering *to, int64_t step)
{
	int device = to->unsent_sum.device, block = to->unsent_sum.block, lane = lower_lane(device, RH_STREAM_GRADIENTS);
	int64_t elements = to->options->model->block[block].elements;
	enum rh_dtype dtype = to->options->model->dtype;
	for (int64_t first = 0, turn = 0; first < elements; first += LOWER_FOLD_ELEMENTS, turn ^= 1) {
		int64_t count = rh_min(elements - first, LOWER_FOLD_ELEMENTS);
		struct rh_command copy = lower_command_on(RH_COMMAND_COPY, lane, step);
		copy.block = block;
		copy.source = lower_bytes(device, RH_ROOM_SUMS, 2 * block, to->unsent_sum.first + first * 4, count * 4);
		copy.target = lower_bytes(-1, RH_ROOM_HOST_FOLD, turn, 0, count * 4);
		lower_await(to, lane, to->lane[lower_lane(device, RH_STREAM_COMPUTE)].last, RH_WAIT_NEEDS);
		lower_await(to, lane, to->fold[turn], RH_WAIT_NEEDS);
		to->device[device].sums_sent = lower_add(to, &copy);
		struct rh_command add = lower_command_on(RH_COMMAND_HOST_ADD, to->caller, step);
		add.block = block;
		add.source = copy.target;
		add.target = lower_bytes(-1, RH_ROOM_HOST_GRADIENT, block, rh_dtype_bytes(dtype, first), rh_dtype_bytes(dtype, count));
		lower_await(to, to->caller, to->device[device].sums_sent, RH_WAIT_NEEDS);
		lower_await(to, to->caller, to->summed[2 * block + 1], RH_WAIT_NEEDS);
		lower_await(to, to->caller, to->block[block].taken, RH_WAIT_NEEDS);
		to->fold[turn] = lower_add(to, &add);
	}
	return to->lane[to->caller].last;
}

void lower_fold(struct lowering *to, int64_t step)
{
	const struct rh_model *model = to->options->model;
	for (int b = 0; b < model->blocks; b++) {
		if (!model->block[b].trainable || model->block[b].uses < 2)
			continue;
		lower_uploads_over(to, b, step);
		int64_t whole = to->summed[2 * b + 1];
		if (to->unsent_sum.block == b)
			whole = fold_pieces(to, step);
		else
			lower_await(to, gradient_lane(to, b), to->summed[2 * b], RH_WAIT_NEEDS);
		lower_arrived(to, b, step, whole, -1, lower_nowhere());
	}
	to->unsent_sum.block = -1;
}
