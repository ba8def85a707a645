/* Lanes run in any legal order on values that are hashes: what is read is hashed, what is written is the hash. Two runs have done the
 * same if what they tell the caller, what commands find in their integers, all weights that were ever published and the masters have the
 * same hashes at the end. It knows nothing of what a command
 * should find: that is the checker's part, which it judges. */
#ifndef RH_TESTS_RUN_LANE_INTERPRETER_H
#define RH_TESTS_RUN_LANE_INTERPRETER_H

#include "check.h"

#include "run/check.h"

#include <stdlib.h>
#include <string.h>

struct lane_value {
	int64_t first, end, base;
	uint64_t hash;
};

struct lane_piece {
	struct lane_value *value; /* ascending, without overlap */
	int values, capacity;
	int64_t bytes;
};

enum { LANE_NORMS = 16, LANE_MOST_VALUES = 256 };

struct lane_machine {
	const struct rh_check_options *options;
	const struct rh_lanes *lanes;
	struct lane_piece *piece;
	int pieces, first_piece[RH_ROOMS], masters; /* masters: the piece of block 0's, the others' follow */
	uint64_t told;                              /* sum over all outputs */
	uint64_t norm[LANE_NORMS];                  /* of each step: sum over the gradients that have arrived */
	uint64_t scale[LANE_NORMS];                 /* of each step that clips: the norm, once it is known */
	struct rh_place rows[LANE_NORMS];           /* of each training step: where its table travels by rows; else in no room */
	int clips;
	int64_t *arrived; /* of each block: step + 1 of the gradient that the optimizer knows of and has not taken, 0 none */
	int broken;       /* a place that there is not */
	int64_t *offset;
};

static inline uint64_t lane_mix(uint64_t hash, uint64_t with)
{
	hash = (hash ^ with) * 0x9E3779B97F4A7C15u;
	return hash ^ hash >> 29;
}

static inline int lane_of_device(int room)
{
	return room >= RH_ROOM_WEIGHTS && room <= RH_ROOM_CACHE;
}

/* The rows that stand for a block in the command's step; NULL: it travels whole. */
static inline const struct rh_place *lane_rows(const struct lane_machine *machine, const struct rh_command *command, int b)
{
	const struct rh_place *rows = &machine->rows[command->step >= 0 ? command->step % LANE_NORMS : 0];
	return command->step >= 0 && rows->room && b == rh_model_table(machine->options->model) ? rows : NULL;
}

static inline int64_t lane_block_bytes(const struct rh_model *model, int room, int number)
{
	int is_sum = room == RH_ROOM_HOST_SUM;
	const struct rh_block *block = &model->block[is_sum ? number / 2 : number];
	if (room == RH_ROOM_HOST_WEIGHTS || room == RH_ROOM_PAGES)
		return rh_block_bytes(block, model->dtype);
	return rh_dtype_bytes(is_sum ? RH_F32 : model->dtype, block->elements);
}

static inline void lane_machine_open(struct lane_machine *machine, const struct rh_check_options *options)
{
	*machine = (struct lane_machine){.options = options};
	const struct rh_model *model = options->model;
	for (int r = 0; r < RH_ROOMS; r++) {
		machine->first_piece[r] = machine->pieces;
		machine->pieces += options->room[r].count * (lane_of_device(r) ? options->devices : 1);
	}
	machine->masters = machine->pieces;
	machine->pieces += model->blocks;
	machine->piece = calloc((size_t)machine->pieces, sizeof *machine->piece);
	machine->arrived = calloc((size_t)model->blocks, sizeof *machine->arrived);
	machine->offset = calloc(2 * (size_t)model->blocks, sizeof *machine->offset);
	for (int r = 0; r < RH_ROOMS; r++)
		for (int i = 0; i < options->room[r].count * (lane_of_device(r) ? options->devices : 1); i++)
			machine->piece[machine->first_piece[r] + i].bytes = options->room[r].bytes;
	const int blocks[] = {RH_ROOM_HOST_WEIGHTS, RH_ROOM_HOST_GRADIENT, RH_ROOM_HOST_SUM, RH_ROOM_PAGES};
	for (int r = 0; r < 4; r++)
		for (int i = 0; i < options->room[blocks[r]].count; i++)
			machine->piece[machine->first_piece[blocks[r]] + i].bytes = lane_block_bytes(model, blocks[r], i);
	for (int i = machine->masters; i < machine->pieces; i++)
		machine->piece[i].bytes = 1;
}

static inline void lane_machine_close(struct lane_machine *machine)
{
	for (int i = 0; i < machine->pieces; i++)
		free(machine->piece[i].value);
	free(machine->piece);
	free(machine->offset);
	free(machine->arrived);
}

static inline void lane_put(struct lane_piece *piece, struct lane_value value)
{
	struct lane_value kept[2];
	int i = 0, j, extra = 0;
	while (i < piece->values && piece->value[i].end <= value.first)
		i++;
	for (j = i; j < piece->values && piece->value[j].first < value.end; j++)
		;
	if (i < j && piece->value[i].first < value.first) {
		kept[extra] = piece->value[i];
		kept[extra++].end = value.first;
	}
	int before = extra;
	if (i < j && piece->value[j - 1].end > value.end) {
		kept[extra] = piece->value[j - 1];
		kept[extra++].first = value.end;
	}
	int left = piece->values - j, values = i + extra + 1 + left;
	if (values > piece->capacity) {
		piece->capacity = 2 * values + 4;
		piece->value = realloc(piece->value, (size_t)piece->capacity * sizeof *piece->value);
		assert_non_null(piece->value);
	}
	memmove(piece->value + i + extra + 1, piece->value + j, (size_t)left * sizeof *piece->value);
	memcpy(piece->value + i, kept, (size_t)before * sizeof *kept);
	piece->value[i + before] = value;
	memcpy(piece->value + i + before + 1, kept + before, (size_t)(extra - before) * sizeof *kept);
	piece->values = values;
}

struct lane_range {
	struct lane_piece *piece;
	int64_t first, end;
};

static inline struct lane_range lane_range(struct lane_machine *machine, struct rh_place place)
{
	const struct rh_check_options *options = machine->options;
	const struct rh_model *model = options->model;
	int number = place.number, device = 0, b = number, room = (int)place.room;
	struct lane_range range = {NULL, place.first, place.first + place.bytes};
	if (rh_room_is_whole(place.room))
		number = 0;
	if (lane_of_device(room))
		device = place.device;
	if (room == RH_ROOM_NONE || number < 0 || number >= options->room[room].count || device < 0 || device >= options->devices) {
		machine->broken = 1;
		return range;
	}
	/* a gradient that shares the bytes of a sum (offload/store.c) */
	enum rh_shared shared = room == RH_ROOM_HOST_GRADIENT ? model->block[b].shared : RH_SHARED_NOT;
	int two = room == RH_ROOM_HOST_GRADIENT && model->block[b].uses == 2, crosses = options->crosses_rounds || shared;
	if (room == RH_ROOM_HOST_GRADIENT && model->dtype == RH_F32 && (crosses || two)) {
		room = RH_ROOM_HOST_SUM;
		number = 2 * b + (shared ? shared == RH_SHARED_BY_EMBEDDING : !crosses);
	} else if (room == RH_ROOM_HOST_GRADIENT && crosses && !two) {
		room = RH_ROOM_HOST_SUM;
		number = 2 * b;
	}
	range.piece = &machine->piece[machine->first_piece[room] + device * options->room[room].count + number];
	if (room == RH_ROOM_ARENA)
		range = (struct lane_range){range.piece, 0, 1};
	if (range.first < 0 || range.end <= range.first || range.end > range.piece->bytes)
		machine->broken = 1;
	return range;
}

static inline uint64_t lane_read(struct lane_machine *machine, uint64_t hash, struct lane_range range)
{
	int64_t at = range.first;
	if (machine->broken)
		return hash;
	for (int i = 0; i < range.piece->values; i++) {
		const struct lane_value *value = &range.piece->value[i];
		int64_t first = value->first > at ? value->first : at, end = value->end < range.end ? value->end : range.end;
		if (first >= end)
			continue;
		/* pieces of one thing beside one another are one */
		while (i + 1 < range.piece->values && value->end == value[1].first && value[1].first < range.end &&
		       value->hash == value[1].hash && value->base == value[1].base) {
			value++;
			i++;
			end = value->end < range.end ? value->end : range.end;
		}
		hash = lane_mix(
		        lane_mix(lane_mix(lane_mix(hash, (uint64_t)(first - range.first)), value->hash), (uint64_t)(first - value->base)),
		        (uint64_t)(end - value->base));
		at = end;
	}
	return lane_mix(hash, 77);
}

static inline void lane_write(struct lane_machine *machine, struct lane_range range, uint64_t hash)
{
	if (!machine->broken)
		lane_put(range.piece, (struct lane_value){range.first, range.end, range.first, hash});
}

static inline void lane_carry(struct lane_machine *machine, struct lane_range from, struct lane_range to)
{
	int64_t shift = to.first - from.first;
	struct lane_value value[LANE_MOST_VALUES];
	int values = 0;
	if (machine->broken || from.end - from.first != to.end - to.first) {
		machine->broken = 1;
		return;
	}
	for (int i = 0; i < from.piece->values && values < LANE_MOST_VALUES; i++) {
		struct lane_value part = from.piece->value[i];
		part.first = part.first > from.first ? part.first : from.first;
		part.end = part.end < from.end ? part.end : from.end;
		if (part.first < part.end)
			value[values++] = part;
	}
	assert_true(values < LANE_MOST_VALUES);
	lane_write(machine, to, 0); /* what nobody has written */
	for (int i = 0; i < values; i++)
		lane_put(to.piece, (struct lane_value){value[i].first + shift, value[i].end + shift, value[i].base + shift, value[i].hash});
}

/* ---- commands ---- */

static inline struct lane_range lane_own(struct lane_machine *machine, const struct rh_command *command, enum rh_room room, int number,
                                         int64_t first, int64_t bytes)
{
	return lane_range(machine, (struct rh_place){room, rh_int16(machine->lanes->lane[command->lane].owner), number, first, bytes});
}

static inline struct lane_range lane_buffer(struct lane_machine *machine, const struct rh_command *command, int layer, int buffer)
{
	int64_t bytes = rh_boundary_shape(machine->options->model, layer, command->tokens).bytes;
	return lane_own(machine, command, RH_ROOM_BOUNDARY, buffer, 0, bytes);
}

static inline struct lane_range lane_narrow(struct lane_machine *machine, const struct rh_command *command, int layer, int buffer)
{
	int64_t bytes = rh_narrow_boundary_shape(machine->options->model, layer, command->tokens).bytes;
	return lane_own(machine, command, RH_ROOM_BOUNDARY, buffer, 0, bytes);
}

/* Of a backward slot: its input is a copy in 8 bits, which its recompute makes wide. */
static inline int lane_reads_narrow(const struct lane_machine *machine, const struct rh_command *command)
{
	return command->kind != RH_COMMAND_FORWARD && rh_stage_plan_narrows(machine->options->plan, command->stage.lo);
}

static inline uint64_t lane_read_weights(struct lane_machine *machine, const struct rh_command *command, uint64_t hash)
{
	const struct rh_model *model = machine->options->model;
	int is_backward = command->operands.is_backward_upload;
	(void)rh_stage_plan_upload_layout(model, command->stage.lo, command->stage.hi, is_backward, machine->offset);
	for (int l = command->lo; l < command->hi; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = model->layer[l].block[which];
			int is_read =
			        b >= 0 && (command->kind != RH_COMMAND_DEQUANTISE || rh_block_plain_bytes(&model->block[b], model->dtype));
			const struct rh_place *rows = b < 0 ? NULL : lane_rows(machine, command, b);
			if (is_read && machine->offset[b] >= 0)
				hash = lane_read(machine, hash,
				                 lane_own(machine, command, RH_ROOM_WEIGHTS, b,
				                          command->operands.weights + machine->offset[b],
				                          rows ? rows->bytes : rh_block_bytes(&model->block[b], model->dtype)));
		}
	return hash;
}

/* The plain matrices of the command's layers: read by what computes with them, or made of the packed weights. */
static inline uint64_t lane_plain_matrices(struct lane_machine *machine, const struct rh_command *command, uint64_t hash)
{
	const struct rh_model *model = machine->options->model;
	int makes = command->kind == RH_COMMAND_DEQUANTISE;
	if (!machine->options->plan->plain_bytes)
		return hash;
	(void)rh_stage_plan_plain_layout(model, command->stage.lo, command->stage.hi, machine->offset);
	for (int i = 2 * command->lo; i < 2 * command->hi; i++) {
		int b = rh_model_plain_block(model, i / 2, i % 2);
		if (b < 0)
			continue;
		struct lane_range range = lane_own(machine, command, RH_ROOM_PLAIN, b, machine->offset[b] + makes * command->target.first,
		                                   rh_block_plain_bytes(&model->block[b], model->dtype));
		if (makes)
			lane_write(machine, range, lane_mix(hash, (uint64_t)b));
		else
			hash = lane_read(machine, hash, range);
	}
	return hash;
}

static inline void lane_add_sums(struct lane_machine *machine, const struct rh_command *command, int lo, uint64_t hash)
{
	const struct rh_model *model = machine->options->model;
	(void)rh_stage_plan_gradient_layout(model, command->stage.lo, command->stage.hi, machine->offset);
	for (int l = lo; l < command->hi; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS; which++) {
			int b = model->layer[l].block[which], sum;
			if (b < 0 || !model->block[b].trainable ||
			    (command->kind == RH_COMMAND_WEIGHT_GRADIENT && model->layer[l].kind == RH_LAYER_HEAD))
				continue;
			sum = 2 * b + model->layer[l].use[which];
			const struct rh_place *rows = lane_rows(machine, command, b);
			int64_t elements = rows ? rows->bytes / rh_dtype_bytes(model->dtype, 1) : model->block[b].elements;
			struct lane_range range = lane_own(machine, command, RH_ROOM_SUMS, sum, 4 * machine->offset[sum], 4 * elements);
			lane_write(machine, range, lane_mix(lane_read(machine, 3, range), lane_mix(hash, (uint64_t)sum)));
		}
}

/* The buffer of activations that are saved, and the place of those that are kept: what the command reads or writes there. */
static inline uint64_t lane_outlasting(struct lane_machine *machine, const struct rh_command *command, uint64_t hash)
{
	int writes = command->kind == RH_COMMAND_FORWARD;
	const struct rh_place *place = &command->source;
	struct rh_emit emit = {
	        .model = machine->options->model, .fates = machine->options->plan->fates, .shape = {.tokens = command->tokens}};
	int64_t bytes[RH_FATES];
	for (int saves = 0; saves < 2; saves++) {
		struct lane_range range;
		if (saves ? command->operands.saving < 0 : place->room != RH_ROOM_KEPT)
			continue;
		struct rh_stage_piece piece = rh_stage_plan_piece(machine->options->plan, command->stage, command->lo);
		rh_stage_fate_bytes(&emit, piece.lo, piece.hi, bytes);
		if (saves)
			range = lane_own(machine, command, RH_ROOM_SAVING, command->operands.saving, 0, bytes[RH_FATE_SAVE]);
		else
			range = lane_range(
			        machine, (struct rh_place){RH_ROOM_KEPT, place->device, place->number, place->first, bytes[RH_FATE_KEEP]});
		if (writes)
			lane_write(machine, range, lane_mix(hash, (uint64_t)saves));
		else
			hash = lane_read(machine, hash, range);
	}
	return hash;
}

static inline void lane_compute(struct lane_machine *machine, const struct rh_command *command)
{
	const struct rh_model *model = machine->options->model;
	int backward = command->kind == RH_COMMAND_BACKWARD, first = command->lo == command->stage.lo;
	struct lane_range running = lane_own(machine, command, RH_ROOM_ARENA, 1, 0, 1);
	struct lane_range kept = lane_own(machine, command, RH_ROOM_ARENA, 0, 0, 1);
	const struct rh_stage_places *places = rh_stage_plan_piece(machine->options->plan, command->stage, command->lo).places;
	if (command->lo < command->stage.lo || command->hi > command->stage.hi || command->lo >= command->hi ||
	    command->stage.hi > model->layers)
		machine->broken = 1;
	if (machine->broken)
		return;
	uint64_t hash = lane_mix(lane_mix(lane_mix(command->kind, (uint64_t)command->lo), (uint64_t)command->hi), (uint64_t)command->step);
	hash = lane_mix(hash, (uint64_t)command->micro_batch);
	hash = lane_read(machine, hash, lane_own(machine, command, RH_ROOM_MICRO, command->operands.micro, 0, 1));
	machine->told += hash; /* a weight gradient may have no use for them, nor for anything else */
	if (command->kind == RH_COMMAND_WEIGHT_GRADIENT) {
		if (command->source.bytes) /* nothing of the head is deferred */
			hash = lane_read(machine, hash, lane_range(machine, command->source));
		lane_add_sums(machine, command, command->lo, hash);
		return;
	}
	hash = lane_plain_matrices(machine, command, lane_read_weights(machine, command, hash));
	if (backward) {
		int has_above = command->operands.dy >= 0, defers = command->target.room == RH_ROOM_DEFERRED && command->target.bytes;
		if (has_above || command->hi < command->stage.hi)
			hash = lane_read(machine, hash,
			                 has_above ? lane_buffer(machine, command, command->hi, command->operands.dy) : running);
		if (first && model->layer[command->lo].kind == RH_LAYER_BLOCK && !lane_reads_narrow(machine, command))
			hash = lane_read(machine, hash, lane_buffer(machine, command, command->lo, command->operands.x));
		if (command->target.room == RH_ROOM_CACHE && rh_model_carriers(model, command->lo, command->hi)) {
			struct lane_range carried = lane_range(machine, command->target);
			hash = lane_read(machine, hash, carried);
			lane_write(machine, carried, hash);
		}
		hash = lane_outlasting(machine, command, hash);
		if (!places || places->recomputes)
			hash = lane_read(machine, hash, kept);
		lane_add_sums(machine, command, command->lo, hash);
		if (defers) {
			struct lane_range deferred = lane_range(machine, command->target);
			lane_write(machine, deferred, command->hi < command->stage.hi ? lane_read(machine, hash, deferred) : hash);
		}
		if (command->operands.dx >= 0)
			lane_write(machine, lane_buffer(machine, command, command->lo, command->operands.dx), hash);
		else if (!first)
			lane_write(machine, running, hash);
		return;
	}
	if (command->operands.x >= 0 && lane_reads_narrow(machine, command))
		hash = lane_read(machine, hash, lane_narrow(machine, command, command->lo, command->operands.x));
	else if (command->operands.x >= 0 || !first)
		hash = lane_read(machine, hash,
		                 command->operands.x >= 0 ? lane_buffer(machine, command, command->lo, command->operands.x) : running);
	hash = lane_outlasting(machine, command, hash);
	int recomputes = command->kind == RH_COMMAND_RECOMPUTE;
	if (recomputes && command->target.room == RH_ROOM_CACHE)
		hash = lane_read(machine, hash, lane_range(machine, command->target));
	if (recomputes)
		lane_write(machine, kept, first ? hash : lane_read(machine, hash, kept));
	if (!recomputes && command->target.room == RH_ROOM_CACHE) {
		struct lane_range cache = lane_range(machine, command->target);
		hash = command->step < -1 || command->chunk ? lane_read(machine, hash, cache) : hash;
		lane_write(machine, cache, hash);
	}
	if (command->kind == RH_COMMAND_CARRY)
		return;
	if (command->operands.y >= 0)
		lane_write(machine, lane_buffer(machine, command, command->hi, command->operands.y), hash);
	else
		lane_write(machine, running, hash);
	if (command->kind == RH_COMMAND_FORWARD && command->operands.narrow >= 0)
		lane_write(machine, lane_narrow(machine, command, command->hi, command->operands.narrow), lane_mix(hash, 8));
	int has_results = command->hi == model->layers && !machine->options->plan->feeds;
	if (has_results)
		lane_write(machine,
		           lane_own(machine, command, RH_ROOM_RESULT, command->operands.result, 0,
		                    machine->options->room[RH_ROOM_RESULT].bytes),
		           hash);
	if (has_results && command->kind == RH_COMMAND_RECOMPUTE)
		lane_add_sums(machine, command, command->hi - 1, hash);
}

static inline uint64_t lane_read_gradient(struct lane_machine *machine, const struct rh_command *command, uint64_t hash)
{
	const struct rh_model *model = machine->options->model;
	int b = command->block;
	int64_t elements = model->block[b].elements;
	if (lane_rows(machine, command, b))
		return lane_read(machine, hash, lane_range(machine, *lane_rows(machine, command, b)));
	if (model->block[b].uses == 2 && (machine->options->crosses_rounds || model->block[b].shared)) {
		for (int use = 0; use < 2; use++)
			hash = lane_read(machine, hash,
			                 lane_range(machine, (struct rh_place){RH_ROOM_HOST_SUM, -1, 2 * b + use, 0, 4 * elements}));
		return hash;
	}
	return lane_read(machine, hash,
	                 lane_range(machine, (struct rh_place){RH_ROOM_HOST_GRADIENT, -1, b, 0, rh_dtype_bytes(model->dtype, elements)}));
}

static inline void lane_update(struct lane_machine *machine, const struct rh_command *command)
{
	const struct rh_model *model = machine->options->model;
	int b = command->block, is_ready = command->kind == RH_COMMAND_WEIGHTS_READY, updates = is_ready != machine->options->stale;
	if (b < 0 || b >= model->blocks || !model->block[b].trainable) {
		machine->broken = 1;
		return;
	}
	struct lane_range master = {&machine->piece[machine->masters + b], 0, 1};
	uint64_t hash = lane_mix(13, (uint64_t)command->step);
	if (command->kind != RH_COMMAND_GRADIENT_ARRIVED && (updates || !is_ready) && machine->arrived[b] != command->step + 1)
		machine->broken = 1; /* the optimizer would wait for good */
	if (machine->broken)
		return;
	if (command->kind == RH_COMMAND_GRADIENT_ARRIVED)
		machine->arrived[b] = command->step + 1;
	else if (!is_ready)
		machine->arrived[b] = 0;
	if (command->kind == RH_COMMAND_GRADIENT_ARRIVED) /* its squares */
		machine->norm[command->step % LANE_NORMS] += lane_read_gradient(machine, command, 5);
	else if (updates)
		lane_write(machine, master,
		           lane_mix(lane_read(machine, lane_read_gradient(machine, command, hash), master),
		                    machine->scale[command->step % LANE_NORMS]));
	else if (!is_ready) /* the moments */
		machine->told += lane_mix(lane_read_gradient(machine, command, hash), (uint64_t)b);
	if (is_ready) { /* perhaps for a step that does not come */
		struct rh_place place = {RH_ROOM_HOST_WEIGHTS, -1, b, 0, lane_block_bytes(model, RH_ROOM_HOST_WEIGHTS, b)};
		uint64_t published = lane_read(machine, 7, master);
		lane_write(machine, lane_range(machine, place), published);
		machine->told += lane_mix(published, (uint64_t)b);
	}
}

/* Between boxes: what another box makes of other steps and micro-batches is other. */
static inline uint64_t lane_message(const struct rh_command *command)
{
	return lane_mix(lane_mix(lane_mix(17, (uint64_t)command->step), (uint64_t)command->micro_batch), (uint64_t)command->boundary);
}

static inline void lane_do(struct lane_machine *machine, const struct rh_command *command)
{
	switch (command->kind) {
	case RH_COMMAND_FORWARD:
	case RH_COMMAND_CARRY:
	case RH_COMMAND_RECOMPUTE:
	case RH_COMMAND_BACKWARD:
	case RH_COMMAND_WEIGHT_GRADIENT:
		lane_compute(machine, command);
		break;
	case RH_COMMAND_DEQUANTISE:
		(void)lane_plain_matrices(machine, command, lane_read_weights(machine, command, 23));
		break;
	case RH_COMMAND_CLEAR:
		lane_write(machine, lane_range(machine, command->target), 1);
		break;
	case RH_COMMAND_ROUND:
	case RH_COMMAND_HOST_ADD: {
		uint64_t hash = lane_read(machine, command->kind, lane_range(machine, command->source));
		int64_t element = rh_dtype_bytes(machine->options->model->dtype, 1), first = command->target.first / element * 4;
		if (command->kind == RH_COMMAND_HOST_ADD)
			hash = lane_read(machine, hash,
			                 lane_range(machine, (struct rh_place){RH_ROOM_HOST_SUM, -1, 2 * command->target.number + 1, first,
			                                                       command->source.bytes}));
		lane_write(machine, lane_range(machine, command->target), hash);
		break;
	}
	case RH_COMMAND_COPY:
	case RH_COMMAND_READ:
	case RH_COMMAND_WRITE:
		lane_carry(machine, lane_range(machine, command->source), lane_range(machine, command->target));
		if (command->target.room == RH_ROOM_WEIGHTS &&
		    lane_rows(machine, command, command->target.number)) /* it goes through them */
			machine->told += lane_read(machine, 29, lane_range(machine, *lane_rows(machine, command, command->target.number)));
		break;
	case RH_COMMAND_INPUT:
		lane_write(machine, lane_range(machine, command->target),
		           lane_mix(lane_mix(11, (uint64_t)command->step), (uint64_t)command->micro_batch));
		break;
	case RH_COMMAND_RECEIVE:
		lane_write(machine, lane_range(machine, command->target), lane_message(command));
		break;
	case RH_COMMAND_SEND:
		machine->told += lane_read(machine, lane_message(command), lane_range(machine, command->source));
		break;
	case RH_COMMAND_OUTPUT: {
		if (!command->source.bytes) /* the place of a chunk that its text has not */
			break;
		struct lane_range range = lane_range(machine, command->source);
		range.end = range.first + 1;
		machine->told += lane_read(machine, lane_mix((uint64_t)command->step, (uint64_t)command->micro_batch), range);
		break;
	}
	case RH_COMMAND_GRADIENT_ARRIVED:
	case RH_COMMAND_WEIGHTS_READY:
	case RH_COMMAND_GRADIENT_TAKEN:
		lane_update(machine, command);
		break;
	case RH_COMMAND_NORM:
		machine->scale[command->step % LANE_NORMS] = machine->clips ? machine->norm[command->step % LANE_NORMS] : 0;
		break;
	default:
		break;
	}
}

static inline void lane_spoil(struct lane_machine *machine, struct lane_range range, const struct rh_command *command)
{
	lane_write(machine, range, lane_mix(19, (uint64_t)command->position));
}

/* The command has begun: what it writes without reading it is neither old nor new until it ends. */
static inline void lane_begin_command(struct lane_machine *machine, const struct rh_command *command)
{
	const struct rh_model *model = machine->options->model;
	switch (command->kind) {
	case RH_COMMAND_FORWARD:
	case RH_COMMAND_RECOMPUTE:
	case RH_COMMAND_BACKWARD:
		if (command->operands.y >= 0 && command->kind == RH_COMMAND_FORWARD)
			lane_spoil(machine, lane_buffer(machine, command, command->hi, command->operands.y), command);
		if (command->operands.dx >= 0 && command->kind == RH_COMMAND_BACKWARD)
			lane_spoil(machine, lane_buffer(machine, command, command->lo, command->operands.dx), command);
		break;
	case RH_COMMAND_DEQUANTISE:
	case RH_COMMAND_CLEAR:
	case RH_COMMAND_ROUND:
	case RH_COMMAND_COPY:
	case RH_COMMAND_READ:
	case RH_COMMAND_WRITE:
	case RH_COMMAND_INPUT:
	case RH_COMMAND_RECEIVE:
		lane_spoil(machine, lane_range(machine, command->target), command);
		break;
	case RH_COMMAND_WEIGHTS_READY:
		if (command->block >= 0 && command->block < model->blocks)
			lane_spoil(machine,
			           lane_range(machine, (struct rh_place){RH_ROOM_HOST_WEIGHTS, -1, command->block, 0,
			                                                 lane_block_bytes(model, RH_ROOM_HOST_WEIGHTS, command->block)}),
			           command);
		break;
	default:
		break;
	}
}

/* A step's inputs all say where its table travels by rows, or none does. */
static inline void lane_find_rows(struct lane_machine *machine, const struct rh_lanes *lanes)
{
	memset(machine->rows, 0, sizeof machine->rows);
	for (int64_t i = 0; i < lanes->commands; i++) {
		const struct rh_command *command = &lanes->command[i];
		struct rh_place *rows = &machine->rows[command->step >= 0 ? command->step % LANE_NORMS : 0];
		if (command->kind != RH_COMMAND_INPUT || !command->source.room)
			continue;
		(void)lane_range(machine, command->source);
		machine->broken |= rows->room && (rows->number != command->source.number || rows->first != command->source.first);
		*rows = command->source;
	}
}

/* All weights as they are loaded, nothing else. */
static inline void lane_machine_reset(struct lane_machine *machine, const struct rh_lanes *lanes)
{
	const struct rh_model *model = machine->options->model;
	machine->lanes = lanes;
	machine->told = 0;
	memset(machine->norm, 0, sizeof machine->norm);
	memset(machine->arrived, 0, (size_t)model->blocks * sizeof *machine->arrived);
	memset(machine->scale, 0, sizeof machine->scale);
	machine->broken = 0;
	for (int i = 0; i < machine->pieces; i++)
		machine->piece[i].values = 0;
	const enum rh_room rooms[] = {RH_ROOM_HOST_WEIGHTS, RH_ROOM_PAGES};
	for (int i = 0; i < 2 * model->blocks; i++) {
		int b = i / 2;
		struct rh_place place = {rooms[i % 2], -1, b, 0, lane_block_bytes(model, rooms[i % 2], b)};
		lane_write(machine, lane_range(machine, place), lane_mix(17, (uint64_t)b));
	}
	lane_find_rows(machine, lanes);
}

/* What a run has come to; 0: it broke off. */
static inline uint64_t lane_outcome(struct lane_machine *machine)
{
	const struct rh_model *model = machine->options->model;
	uint64_t hash = machine->told;
	for (int b = 0; b < model->blocks; b++) {
		struct rh_place place = {RH_ROOM_HOST_WEIGHTS, -1, b, 0, lane_block_bytes(model, RH_ROOM_HOST_WEIGHTS, b)};
		hash = lane_read(machine, lane_read(machine, hash, lane_range(machine, place)),
		                 (struct lane_range){&machine->piece[machine->masters + b], 0, 1});
	}
	return machine->broken ? 0 : hash | 1;
}

/* ---- orders ---- */

/* In the order of positions. */
static inline uint64_t lane_run_in_order(struct lane_machine *machine, const struct rh_lanes *lanes)
{
	lane_machine_reset(machine, lanes);
	for (int64_t i = 0; i < lanes->commands && !machine->broken; i++)
		lane_do(machine, &lanes->command[i]);
	return lane_outcome(machine);
}

enum { LANE_MOST_LANES = 256 };

/* In a random legal order: lanes have random priorities, of which the one that runs loses its own now and then (Burckhardt et al., ASPLOS
 * 2010); a command begins and ends, and half of them end only when no other lane can go on. hurried: a position whose lane comes first;
 * delayed: one whose lane comes last, and which ends, and in half of
 * the orders begins, only when no other lane can go on; -1: none. *seed moves on. Waits that keep a pace
 * alone are not heeded. */
static inline uint64_t lane_run_randomly(struct lane_machine *machine, const struct rh_lanes *lanes, int64_t hurried, int64_t delayed,
                                         uint64_t *seed)
{
	enum { CHANGES = 4 };
	int64_t next[LANE_MOST_LANES], change[CHANGES], done = 0, priority[LANE_MOST_LANES], lowest = 0;
	char *is_done = calloc((size_t)lanes->commands + 1, 1), runs[LANE_MOST_LANES] = {0};
	int64_t *after = malloc((size_t)(lanes->commands + 1) * sizeof *after), last[LANE_MOST_LANES];
	assert_true(lanes->lanes <= LANE_MOST_LANES && is_done && after);
	for (int l = 0; l < lanes->lanes; l++) {
		next[l] = last[l] = -1;
		*seed = *seed * 6364136223846793005u + 1442695040888963407u;
		priority[l] = (int64_t)(*seed >> 34);
	}
	for (int64_t i = 0; i < lanes->commands; i++) {
		int l = lanes->command[i].lane;
		if (last[l] < 0)
			next[l] = i;
		else
			after[last[l]] = i;
		after[i] = -1;
		last[l] = i;
	}
	if (hurried >= 0)
		priority[lanes->command[hurried].lane] = INT64_MAX;
	if (delayed >= 0)
		priority[lanes->command[delayed].lane] = INT64_MIN;
	for (int i = 0; i < CHANGES; i++) {
		*seed = *seed * 6364136223846793005u + 1442695040888963407u;
		change[i] = (int64_t)((*seed >> 33) % (uint64_t)(lanes->commands + 1));
	}
	int begins_late = (int)(*seed >> 45 & 1);
	lane_machine_reset(machine, lanes);
	while (done < lanes->commands && !machine->broken) {
		int best = -1;
		for (int l = 0; l < lanes->lanes; l++) {
			int is_slow = runs[l] == 2 || (begins_late && next[l] == delayed);
			int best_is_slow = best >= 0 && (runs[best] == 2 || (begins_late && next[best] == delayed));
			if (next[l] < 0 || (best >= 0 && (is_slow != best_is_slow ? is_slow : priority[l] <= priority[best])))
				continue;
			const struct rh_command *command = &lanes->command[next[l]];
			int ready = 1;
			for (int w = 0; ready && !runs[l] && w < command->waits - command->paces; w++)
				ready = is_done[lanes->wait[command->first_wait + w]];
			if (ready)
				best = l;
		}
		if (best < 0) {
			machine->broken = 1;
			break;
		}
		if (!runs[best]) {
			*seed = *seed * 6364136223846793005u + 1442695040888963407u;
			runs[best] = next[best] == delayed ? 2 : 1 + (char)(*seed >> 40 & 1);
			lane_begin_command(machine, &lanes->command[next[best]]);
			continue;
		}
		runs[best] = 0;
		lane_do(machine, &lanes->command[next[best]]);
		is_done[next[best]] = 1;
		next[best] = after[next[best]];
		for (int i = 0; i < CHANGES; i++)
			if (change[i] == done)
				priority[best] = --lowest;
		done++;
	}
	free(is_done);
	free(after);
	return lane_outcome(machine);
}

#endif
