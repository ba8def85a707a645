#include "run/lane.h"

#include "core/alloc.h"

#include <stdio.h>
#include <string.h>

int rh_lanes_add_lane(struct rh_lanes *lanes, struct rh_lane lane)
{
	int rc = rh_grow(&lanes->lane, &lanes->lane_capacity, (size_t)lanes->lanes + 1, sizeof *lanes->lane);
	if (rc)
		return rc;
	lanes->lane[lanes->lanes] = lane;
	return lanes->lanes++;
}

int rh_lanes_add(struct rh_lanes *lanes, const struct rh_command *command, const struct rh_waits *waits)
{
	RH_ASSERT(command->lane >= 0 && command->lane < lanes->lanes);
	int rc = rh_grow(&lanes->command, &lanes->command_capacity, (size_t)lanes->commands + 1, sizeof *lanes->command);
	if (!rc)
		rc = rh_grow(&lanes->wait, &lanes->wait_capacity, (size_t)(lanes->waits + waits->count), sizeof *lanes->wait);
	if (rc)
		return rc;
	struct rh_command *added = &lanes->command[lanes->commands];
	*added = *command;
	added->position = lanes->first + lanes->commands++;
	added->first_wait = rh_int32(lanes->waits);
	added->paces = 0;
	for (int i = 0; i < waits->count; i++) {
		RH_ASSERT(waits->wait[i].position < added->position);
		if (waits->wait[i].position < lanes->first)
			continue;
		lanes->wait[lanes->waits++] = waits->wait[i].position;
		added->paces = rh_int16(added->paces + (waits->wait[i].why == RH_WAIT_PACES));
	}
	added->waits = rh_int16(lanes->waits - added->first_wait);
	return 0;
}

/* 1: a wait for `one` makes a wait for `other` needless. */
static int covers(const struct rh_wait *one, const struct rh_wait *other)
{
	return one->lane == other->lane && one->position >= other->position && (one->why == RH_WAIT_NEEDS || other->why == RH_WAIT_PACES);
}

static void drop_covered(struct rh_waits *waits, const struct rh_wait *by)
{
	int kept = 0;
	for (int i = 0; i < waits->count; i++)
		if (covers(by, &waits->wait[i]))
			waits->paces -= waits->wait[i].why == RH_WAIT_PACES;
		else
			waits->wait[kept++] = waits->wait[i];
	waits->count = kept;
}

int rh_waits_add(struct rh_waits *waits, struct rh_wait wait)
{
	for (int i = 0; i < waits->count; i++)
		if (covers(&waits->wait[i], &wait))
			return 0;
	drop_covered(waits, &wait);
	int rc = rh_grow(&waits->wait, &waits->capacity, (size_t)waits->count + 1, sizeof *waits->wait);
	if (rc)
		return rc;
	int at = waits->count++, first_pace = at - waits->paces;
	for (; wait.why == RH_WAIT_NEEDS && at > first_pace; at--)
		waits->wait[at] = waits->wait[at - 1];
	waits->wait[at] = wait;
	waits->paces += wait.why == RH_WAIT_PACES;
	return 0;
}

void rh_lanes_free(struct rh_lanes *lanes)
{
	rh_free(lanes->lane);
	rh_free(lanes->command);
	rh_free(lanes->wait);
	*lanes = (struct rh_lanes){0};
}

void rh_rooms_of_device(const struct rh_stage_plan *plan, struct rh_room_size room[RH_ROOMS])
{
	room[RH_ROOM_WEIGHTS] = (struct rh_room_size){1, plan->weight_bytes};
	room[RH_ROOM_PLAIN] = (struct rh_room_size){1, plan->plain_bytes};
	room[RH_ROOM_SUMS] = (struct rh_room_size){1, plan->gradient_bytes};
	room[RH_ROOM_ROUNDED] = (struct rh_room_size){1, plan->rounded_bytes};
	room[RH_ROOM_BOUNDARY] = (struct rh_room_size){plan->boundary_buffers, plan->boundary_bytes};
	room[RH_ROOM_MICRO] = (struct rh_room_size){RH_PLAN_MICRO_BUFFERS, plan->micro_bytes};
	room[RH_ROOM_RESULT] = (struct rh_room_size){RH_PLAN_RESULT_BUFFERS, plan->result_bytes};
	room[RH_ROOM_ARENA] = (struct rh_room_size){1, plan->arena_bytes};
	room[RH_ROOM_KEPT] = (struct rh_room_size){1, plan->kept_bytes};
	room[RH_ROOM_SAVING] = (struct rh_room_size){RH_PLAN_SAVING_BUFFERS, plan->saving_bytes};
	room[RH_ROOM_DEFERRED] = (struct rh_room_size){1, plan->deferred_bytes};
	room[RH_ROOM_CACHE] = (struct rh_room_size){1, plan->cache_bytes};
}

const char *rh_command_name(enum rh_command_kind kind)
{
	static const char *const names[RH_COMMANDS] = {[RH_COMMAND_FORWARD] = "forward",
	                                               [RH_COMMAND_RECOMPUTE] = "recompute",
	                                               [RH_COMMAND_BACKWARD] = "backward",
	                                               [RH_COMMAND_WEIGHT_GRADIENT] = "weight gradient",
	                                               [RH_COMMAND_CARRY] = "carry",
	                                               [RH_COMMAND_DEQUANTISE] = "dequantise",
	                                               [RH_COMMAND_CLEAR] = "clear",
	                                               [RH_COMMAND_ROUND] = "round",
	                                               [RH_COMMAND_COPY] = "copy",
	                                               [RH_COMMAND_HOST_ADD] = "host add",
	                                               [RH_COMMAND_INPUT] = "input",
	                                               [RH_COMMAND_OUTPUT] = "output",
	                                               [RH_COMMAND_GRADIENT_ARRIVED] = "gradient arrived",
	                                               [RH_COMMAND_UPLOADS_OVER] = "uploads over",
	                                               [RH_COMMAND_NORM] = "norm",
	                                               [RH_COMMAND_WEIGHTS_READY] = "weights ready",
	                                               [RH_COMMAND_GRADIENT_TAKEN] = "gradient taken",
	                                               [RH_COMMAND_READ] = "read",
	                                               [RH_COMMAND_WRITE] = "write",
	                                               [RH_COMMAND_SEND] = "send",
	                                               [RH_COMMAND_RECEIVE] = "receive",
	                                               [RH_COMMAND_SEND_LETTER] = "send letter",
	                                               [RH_COMMAND_RECEIVE_LETTER] = "receive letter"};
	return names[kind];
}

static const char *room_name(enum rh_room room)
{
	static const char *const names[RH_ROOMS] = {[RH_ROOM_NONE] = "nowhere",
	                                            [RH_ROOM_WEIGHTS] = "weights",
	                                            [RH_ROOM_PLAIN] = "plain weights",
	                                            [RH_ROOM_SUMS] = "sums",
	                                            [RH_ROOM_ROUNDED] = "rounded sums",
	                                            [RH_ROOM_BOUNDARY] = "boundary",
	                                            [RH_ROOM_MICRO] = "micro-batch",
	                                            [RH_ROOM_RESULT] = "result",
	                                            [RH_ROOM_ARENA] = "arena",
	                                            [RH_ROOM_KEPT] = "kept activations",
	                                            [RH_ROOM_SAVING] = "activations to be saved",
	                                            [RH_ROOM_DEFERRED] = "deferred gradients",
	                                            [RH_ROOM_CACHE] = "KV cache",
	                                            [RH_ROOM_HOST_WEIGHTS] = "host weights",
	                                            [RH_ROOM_HOST_STASH] = "stash",
	                                            [RH_ROOM_HOST_GRADIENT] = "host gradient",
	                                            [RH_ROOM_HOST_SUM] = "host sum",
	                                            [RH_ROOM_HOST_SAVED] = "saved activations",
	                                            [RH_ROOM_HOST_BOUNDARY] = "host boundary",
	                                            [RH_ROOM_HOST_MICRO] = "host micro-batch",
	                                            [RH_ROOM_HOST_RESULT] = "host result",
	                                            [RH_ROOM_HOST_FOLD] = "fold",
	                                            [RH_ROOM_HOST_FRAME] = "page frame",
	                                            [RH_ROOM_HOST_ROWS] = "rows of the table",
	                                            [RH_ROOM_RECORD] = "record",
	                                            [RH_ROOM_PAGES] = "pages"};
	return names[room];
}

/* snprintf at the end of `text`. */
#define ADD(text, bytes, ...)                                                                                                              \
	do {                                                                                                                               \
		size_t add_at = strlen(text);                                                                                              \
		snprintf((text) + add_at, (bytes)-add_at, __VA_ARGS__);                                                                    \
	} while (0)

static void describe_place(const struct rh_place *place, const char *word, char *text, size_t bytes)
{
	if (place->room == RH_ROOM_NONE)
		return;
	ADD(text, bytes, ", %s ", word);
	if (place->device >= 0)
		ADD(text, bytes, "device %d's ", place->device);
	ADD(text, bytes, "%s %d at %lld+%lld", room_name(place->room), place->number, (long long)place->first, (long long)place->bytes);
}

void rh_command_describe(const struct rh_lanes *lanes, const struct rh_command *command, char *text, size_t bytes)
{
	snprintf(text, bytes, "%lld %s", (long long)command->position, rh_command_name(command->kind));
	if (command->block >= 0)
		ADD(text, bytes, " of block %d", command->block);
	if (command->kind == RH_COMMAND_SEND || command->kind == RH_COMMAND_RECEIVE)
		ADD(text, bytes, " of %s at layer %d", command->boundary == RH_BOUNDARY_ACTIVATION ? "an activation" : "a gradient",
		    command->lo);
	if (command->kind == RH_COMMAND_SEND_LETTER || command->kind == RH_COMMAND_RECEIVE_LETTER)
		ADD(text, bytes, " of kind %d", command->letter);
	if (command->hi > command->lo)
		ADD(text, bytes, " of layers %d to %d", command->lo, command->hi - 1);
	ADD(text, bytes, ", step %lld", (long long)command->step);
	if (command->micro_batch >= 0)
		ADD(text, bytes, " micro-batch %lld", (long long)command->micro_batch);
	describe_place(&command->source, "from", text, bytes);
	describe_place(&command->target, "to", text, bytes);
	const struct rh_lane *lane = &lanes->lane[command->lane];
	ADD(text, bytes, " (lane %d%s%d)", command->lane, lane->queue == RH_QUEUE_STREAM ? ", device " : ", queue ",
	    lane->queue == RH_QUEUE_STREAM ? lane->owner : (int)lane->queue);
}
