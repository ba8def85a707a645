/* What the optimizer's commands need, and what they leave. Beside rooms that lanes name it has a norm, and of each block a master and what
 * it was told of the gradient: these are pieces of RH_ROOM_NONE. */
#include "run/check_internal.h"

enum own { OWN_NORM, OWN_MASTER, OWN_ARRIVAL };

static struct check_range own(const struct rh_check *check, enum own what, int b)
{
	int number = what == OWN_NORM ? 0 : 1 + b + (what == OWN_ARRIVAL ? check->options.model->blocks : 0);
	return (struct check_range){check->piece + check->first_piece[RH_ROOM_NONE] + number, 0, 1};
}

/* depth 1: it has been taken, too. */
static struct check_content arrival(const struct rh_check *check, int b, int depth)
{
	return (struct check_content){.what = CHECK_ARRIVED, .which = b, .depth = depth, .step = check->command->step};
}

/* The block's gradient of this step is on the host, whole: in one piece, or as two sums that are added up when it is taken. */
static void need_gradient(struct rh_check *check, int b)
{
	const struct rh_model *model = check->options.model;
	const struct rh_block *block = &model->block[b];
	if (block->uses == 2 && (check->options.crosses_rounds || block->shared)) {
		for (int use = 0; use < 2; use++) {
			if (block->shared && use != rh_shared_use(block->shared))
				continue; /* another box's, which the updater waits for */
			struct rh_place place = {RH_ROOM_HOST_SUM, -1, 2 * b + use, 0, 4 * block->elements};
			struct check_content sum = check_whole_sum(check, 2 * b + use, 0);
			check_need(check, check_resolve(check, &place), &sum);
		}
		return;
	}
	struct rh_place place = {RH_ROOM_HOST_GRADIENT, -1, b, 0, rh_dtype_bytes(model->dtype, block->elements)};
	const struct rh_place *rows = check_rows(check, b);
	struct check_range range = check_resolve(check, rows ? rows : &place);
	int is_one_sum = model->dtype == RH_F32 && block->uses == 1;
	struct check_content content = is_one_sum ? check_whole_sum(check, 2 * b, 0) : check_gradient(check, b, 0);
	check_need(check, range, &content);
}

static void run_arrived(struct rh_check *check, int b)
{
	struct check_content arrived = arrival(check, b, 0);
	need_gradient(check, b);
	check_touch(check, own(check, OWN_ARRIVAL, b), CHECK_ANNOUNCES);
	check_leave(check, own(check, OWN_ARRIVAL, b), &arrived);
}

static void run_norm(struct rh_check *check)
{
	const struct rh_model *model = check->options.model;
	struct check_content scale = {.what = CHECK_SCALE, .step = check->command->step};
	if (!check_call_of(check, check->command->step)->call.clips)
		return;
	for (int b = 0; b < model->blocks; b++) {
		struct check_content arrived = arrival(check, b, 0);
		if (model->block[b].trainable)
			check_need(check, own(check, OWN_ARRIVAL, b), &arrived);
	}
	check_put(check, own(check, OWN_NORM, 0), &scale);
}

/* The gradient as the optimizer knows it: arrived, not yet taken; with the norm of all where the step clips. */
static void need_arrived(struct rh_check *check, int b)
{
	struct check_content arrived = arrival(check, b, 0), scale = {.what = CHECK_SCALE, .step = check->command->step};
	need_gradient(check, b);
	check_need(check, own(check, OWN_ARRIVAL, b), &arrived);
	if (check_call_of(check, check->command->step)->call.clips)
		check_need(check, own(check, OWN_NORM, 0), &scale);
}

/* Each update starts from the version that the previous one left; none is missing. */
static void update_master(struct rh_check *check, int b)
{
	const struct rh_check_call *call = &check_call_of(check, check->command->step)->call;
	struct check_content master = {
	        .what = CHECK_MASTER, .which = b, .step = call->version >= 0 ? check->command->step : check->master[b]};
	if (!check->master[b] && !master.step)
		check_leave(check, own(check, OWN_MASTER, b), &master);
	check_need(check, own(check, OWN_MASTER, b), &master);
	master.step++;
	check_put(check, own(check, OWN_MASTER, b), &master);
	check->master[b]++;
}

/* From the master to what devices read: as it is after this step's update. */
static void publish(struct rh_check *check, int b)
{
	const struct rh_model *model = check->options.model;
	const struct rh_check_call *call = &check_call_of(check, check->command->step)->call;
	int64_t version = call->version >= 0 ? check->command->step + 1 : check->master[b];
	struct rh_place place = {RH_ROOM_HOST_WEIGHTS, -1, b, 0, rh_block_bytes(&model->block[b], model->dtype)};
	struct check_content master = {.what = CHECK_MASTER, .which = b, .step = version};
	struct check_content weights = {.what = CHECK_WEIGHTS, .which = b, .step = version};
	check_need(check, own(check, OWN_MASTER, b), &master);
	check_put(check, check_resolve(check, &place), &weights);
	check->published[b] = version;
}

static void run_taken(struct rh_check *check, int b)
{
	struct check_content taken = arrival(check, b, 1);
	need_arrived(check, b);
	if (check->options.stale)
		update_master(check, b);
	check_put(check, own(check, OWN_ARRIVAL, b), &taken);
	check_call_of(check, check->command->step)->trained++;
}

void check_update(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	int b = command->block;
	if (command->kind == RH_COMMAND_NORM) {
		run_norm(check);
		return;
	}
	if (!check_is_sum(check, 2 * b))
		return;
	if (command->kind == RH_COMMAND_GRADIENT_ARRIVED)
		run_arrived(check, b);
	else if (command->kind == RH_COMMAND_GRADIENT_TAKEN)
		run_taken(check, b);
	if (command->kind != RH_COMMAND_WEIGHTS_READY)
		return;
	if (!check->options.stale) {
		need_arrived(check, b);
		update_master(check, b);
	}
	publish(check, b);
	check_call_of(check, command->step)->published++;
}
