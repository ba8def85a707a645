#include "run/check_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int rh_check_create(const struct rh_check_options *options, struct rh_check **out)
{
	struct rh_check *check = rh_alloc(1, sizeof *check);
	if (!check)
		return -ENOMEM;
	int blocks = options->model->blocks;
	check->options = *options;
	check->options.room[RH_ROOM_NONE] = (struct rh_room_size){1 + 2 * blocks, 1}; /* the optimizer's own */
	check->master = rh_region_take(&check->memory, blocks, sizeof *check->master);
	check->published = rh_region_take(&check->memory, blocks, sizeof *check->published);
	check->offset = rh_region_take(&check->memory, 2 * blocks, sizeof *check->offset);
	int rc = check_memory_create(check);
	if (rc)
		rh_check_destroy(check);
	else
		*out = check;
	return rc;
}

void rh_check_destroy(struct rh_check *check)
{
	if (!check)
		return;
	for (int i = 0; check->piece && i < check->pieces; i++) {
		rh_free(check->piece[i].interval);
		rh_free(check->piece[i].access);
	}
	rh_region_free(&check->memory);
	rh_free(check->call);
	rh_free(check);
}

int rh_check_expect(struct rh_check *check, const struct rh_check_call *call)
{
	int rc = rh_grow(&check->call, &check->call_capacity, check->calls + 1, sizeof *check->call);
	if (!rc)
		check->call[check->calls++] = (struct check_call){.call = *call};
	return rc;
}

void check_fault(struct rh_check *check, int64_t other, const char *format, ...)
{
	struct rh_check_fault *fault = check->fault;
	const struct rh_lanes *lanes = check->recorded;
	char own[256], beside[256] = "", what[400];
	va_list arguments;
	if (check_failed(check))
		return;
	fault->position = check->command->position;
	fault->other = other;
	va_start(arguments, format);
	vsnprintf(what, sizeof what, format, arguments);
	va_end(arguments);
	rh_command_describe(lanes, check->command, own, sizeof own);
	if (other >= lanes->first)
		rh_command_describe(lanes, rh_command_at(lanes, other), beside, sizeof beside);
	else if (other >= 0)
		snprintf(beside, sizeof beside, "%lld", (long long)other);
	snprintf(fault->text, sizeof fault->text, "%s: %s%s%s", own, what, other >= 0 ? ": " : "", beside);
}

/* ---- what comes before what ---- */

static size_t row_bytes(const struct rh_check *check)
{
	return (size_t)check->lanes * sizeof(int64_t);
}

/* Finds the last command that waits for each. */
static int prepare(struct rh_check *check, const struct rh_lanes *lanes)
{
	size_t count = (size_t)lanes->commands;
	check->lanes = lanes->lanes;
	check->now = rh_alloc((size_t)(check->lanes * check->lanes) + 1, sizeof *check->now);
	check->waiter = rh_alloc(count + 1, sizeof *check->waiter);
	check->row = rh_alloc(count + 1, sizeof *check->row);
	if (!check->now || !check->waiter || !check->row)
		return -ENOMEM;
	memset(check->now, -1, row_bytes(check) * (size_t)check->lanes);
	for (int64_t i = 0; i < lanes->commands; i++)
		for (int w = 0; w < lanes->command[i].waits; w++) {
			int64_t wait = lanes->wait[lanes->command[i].first_wait + w] - lanes->first;
			if (wait >= 0 && wait < i)
				check->waiter[wait] = i;
		}
	return 0;
}

static void give_back_rows(struct rh_check *check)
{
	for (int64_t i = 0; check->row && check->recorded && i < check->recorded->commands; i++)
		rh_free(check->row[i]);
	rh_free(check->row);
	rh_free(check->now);
	rh_free(check->waiter);
	check->row = NULL;
	check->now = check->waiter = NULL;
}

/* A command's clock is the largest of the clocks of the command before it on its lane and of those that it waits for. It is kept until the
 * last command that waits for it has run. */
static void move_clock(struct rh_check *check, int64_t i)
{
	const struct rh_lanes *lanes = check->recorded;
	const struct rh_command *command = check->command;
	int64_t *now = check->now + command->lane * check->lanes;
	for (int w = 0; w < command->waits; w++) {
		int64_t wait = lanes->wait[command->first_wait + w] - lanes->first;
		for (int l = 0; w < command->waits - command->paces && l < check->lanes; l++)
			now[l] = check->row[wait][l] > now[l] ? check->row[wait][l] : now[l];
		if (check->waiter[wait] != i)
			continue;
		rh_free(check->row[wait]);
		check->row[wait] = NULL;
	}
	now[command->lane] = command->position;
	if (!check->waiter[i])
		return;
	check->row[i] = rh_alloc((size_t)check->lanes, sizeof *now);
	if (check->row[i])
		memcpy(check->row[i], now, row_bytes(check));
	else
		check->rc = -ENOMEM;
}

/* Waits must point to earlier commands of other lanes. */
static void check_waits(struct rh_check *check)
{
	const struct rh_lanes *lanes = check->recorded;
	const struct rh_command *command = check->command;
	for (int i = 0; i < command->waits; i++) {
		int64_t wait = lanes->wait[command->first_wait + i];
		if (wait < lanes->first || wait >= command->position || rh_command_at(lanes, wait)->lane == command->lane)
			check_fault(check, -1, "waits for position %lld, which is not before it on another lane", (long long)wait);
	}
}

int rh_check_run(struct rh_check *check, const struct rh_lanes *lanes, struct rh_check_fault *out)
{
	*out = (struct rh_check_fault){.position = -1, .other = -1};
	check->recorded = lanes;
	check->fault = out;
	check->rc = prepare(check, lanes);
	for (int64_t i = 0; !check_failed(check) && i < lanes->commands; i++) {
		check->command = &lanes->command[i];
		check_waits(check);
		if (check_failed(check))
			break;
		move_clock(check, i);
		if (!check->rc)
			check_command(check);
	}
	give_back_rows(check);
	return check->rc;
}

void rh_check_finish(struct rh_check *check, struct rh_check_fault *out)
{
	int trainable = 0;
	*out = (struct rh_check_fault){.position = -1, .other = -1};
	for (int b = 0; b < check->options.model->blocks; b++)
		trainable += check->options.model->block[b].trainable;
	for (size_t i = 0; out->position < 0 && i < check->calls; i++) {
		const struct check_call *call = &check->call[i];
		const struct rh_stage_plan *plan = check->options.plan;
		int64_t count = call->call.micro_batches, outputs = plan->feeds ? 0 : count;
		int64_t sent = count * (plan->feeds + (plan->tap > 0) + (call->call.trains && plan->owes_gradient));
		int taken = call->call.updates ? trainable : 0,
		    is_open = check->options.stale && call->call.version >= 0 && !call->published; /* the latest step's may come yet */
		if (call->outputs == outputs && call->sent == sent && call->trained == taken && (call->published == taken || is_open))
			continue;
		out->position = check->recorded->first + check->recorded->commands;
		snprintf(out->text, sizeof out->text,
		         "step %lld ends with %lld of %lld results read, %lld of %lld boundaries sent, %lld of %d gradients taken, %lld "
		         "blocks ready",
		         (long long)call->call.step, (long long)call->outputs, (long long)outputs, (long long)call->sent, (long long)sent,
		         (long long)call->trained, taken, (long long)call->published);
	}
}
