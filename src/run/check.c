#include "run/check_internal.h"

#include "core/alloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int rh_check_create(const struct rh_check_options *options, struct rh_check **out)
{
	struct rh_check *check = rh_alloc(1, sizeof *check);
	if (!check)
		return -ENOMEM;
	size_t blocks = (size_t)options->model->blocks;
	check->options = *options;
	check->options.room[RH_ROOM_NONE] = (struct rh_check_room){1 + 2 * (int)blocks, 1}; /* the optimizer's own */
	check->master = rh_alloc(blocks, sizeof *check->master);
	check->offset = rh_alloc(2 * blocks, sizeof *check->offset);
	int rc = check->master && check->offset ? check_memory_create(check) : -ENOMEM;
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
	check_memory_destroy(check);
	rh_free(check->master);
	rh_free(check->offset);
	rh_free(check->call);
	rh_free(check->clock);
	rh_free(check->latest);
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
	const struct rh_lanes *lanes = check->on;
	va_list arguments;
	if (check_failed(check))
		return;
	fault->position = check->command->position;
	fault->other = other;
	rh_command_describe(lanes, check->command, fault->text, sizeof fault->text);
	size_t at = strlen(fault->text);
	snprintf(fault->text + at, sizeof fault->text - at, ": ");
	at = strlen(fault->text);
	va_start(arguments, format);
	vsnprintf(fault->text + at, sizeof fault->text - at, format, arguments);
	va_end(arguments);
	at = strlen(fault->text);
	if (other < 0 || at + 8 > sizeof fault->text)
		return;
	snprintf(fault->text + at, sizeof fault->text - at, ": ");
	if (other >= lanes->first)
		rh_command_describe(lanes, rh_command_at(lanes, other), fault->text + at + 2, sizeof fault->text - at - 2);
	else
		snprintf(fault->text + at + 2, sizeof fault->text - at - 2, "%lld", (long long)other);
}

static int *clock_row(const struct rh_check *check, int64_t position)
{
	return check->clock + (position - check->on->first) * check->lanes;
}

/* A command comes after what comes before the command before it on its lane, and before those that it waits for. */
static void set_clock(struct rh_check *check, const struct rh_command *command)
{
	const struct rh_lanes *lanes = check->on;
	int *row = clock_row(check, command->position), lane = command->lane;
	if (check->latest[lane] >= lanes->first)
		memcpy(row, clock_row(check, check->latest[lane]), (size_t)check->lanes * sizeof *row);
	else
		memset(row, 0, (size_t)check->lanes * sizeof *row);
	for (int i = 0; i < command->waits - command->paces; i++) {
		const int *other = clock_row(check, lanes->wait[command->first_wait + i]);
		for (int l = 0; l < check->lanes; l++)
			row[l] = other[l] > row[l] ? other[l] : row[l];
	}
	row[lane] = (int)(command->position - lanes->first) + 1;
	check->latest[lane] = command->position;
}

/* A row for each command of these lanes; those that were run get theirs again where there are more lanes now. */
static int make_clocks(struct rh_check *check)
{
	const struct rh_lanes *lanes = check->on;
	int had = check->lanes;
	int rc = rh_grow(&check->latest, &check->latest_capacity, (size_t)lanes->lanes, sizeof *check->latest);
	if (!rc)
		rc = rh_grow(&check->clock, &check->clock_capacity, (size_t)(lanes->commands * lanes->lanes) + 1, sizeof *check->clock);
	if (rc)
		return rc;
	for (int l = had; l < lanes->lanes; l++)
		check->latest[l] = -1;
	check->lanes = lanes->lanes;
	for (int l = 0; had < lanes->lanes && l < lanes->lanes; l++)
		check->latest[l] = -1;
	for (int64_t i = lanes->first; had < lanes->lanes && i < check->done; i++)
		set_clock(check, rh_command_at(lanes, i));
	return 0;
}

/* Waits lead to what comes before, and elsewhere. */
static void check_waits(struct rh_check *check)
{
	const struct rh_lanes *lanes = check->on;
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
	check->on = lanes;
	check->fault = out;
	if (check->done < lanes->first)
		check->done = lanes->first;
	check->rc = make_clocks(check);
	for (; !check_failed(check) && check->done < lanes->first + lanes->commands; check->done++) {
		check->command = rh_command_at(lanes, check->done);
		check_waits(check);
		if (check_failed(check))
			break;
		set_clock(check, check->command);
		check->now = clock_row(check, check->done);
		check_command(check);
	}
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
		long long step = call->call.step;
		int taken = call->call.updates ? trainable : 0, ready = check->options.stale ? (int)call->published : taken;
		if (call->outputs == call->call.micro_batches && call->trained == taken && call->published == ready)
			continue;
		out->position = check->done;
		snprintf(
		        out->text, sizeof out->text,
		        "step %lld ends with the results of %lld of %lld micro-batches read, %lld of %d gradients taken, %lld blocks ready",
		        step, (long long)call->outputs, (long long)call->call.micro_batches, (long long)call->trained, taken,
		        (long long)call->published);
	}
}
