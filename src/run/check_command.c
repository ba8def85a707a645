/* What each kind of command needs to find, and what it leaves. */
#include "core/minmax.h"
#include "run/check_internal.h"
#include "schedule/boundary.h"

enum arena_piece { ARENA_KEPT, ARENA_RUNNING }; /* the two pieces that the checker knows of a device's arena */

struct check_call *check_call_of(const struct rh_check *check, int64_t step)
{
	for (size_t i = check->calls; i-- > 0;)
		if (check->call[i].call.step == step)
			return &check->call[i];
	return NULL;
}

static const struct rh_model *model_of(const struct rh_check *check)
{
	return check->options.model;
}

const struct rh_place *check_rows(const struct rh_check *check, int b)
{
	const struct check_call *call = check_call_of(check, check->command->step);
	return call && call->rows.room && b == rh_model_table(model_of(check)) ? &call->rows : NULL;
}

/* Bytes of a block in the command's step, as devices read it. */
static int64_t block_bytes(const struct rh_check *check, int b)
{
	const struct rh_place *rows = check_rows(check, b);
	return rows ? rows->bytes : rh_block_bytes(&model_of(check)->block[b], model_of(check)->dtype);
}

/* The model's last layer, not that of a box's part with other boxes above. */
static int ends_model(const struct rh_check *check)
{
	return check->command->hi == model_of(check)->layers && !check->options.plan->feeds;
}

static struct check_content of_micro_batch(const struct rh_check *check, enum check_what what, int which)
{
	const struct rh_command *command = check->command;
	return (struct check_content){.what = what, .which = which, .step = command->step, .micro_batch = command->micro_batch};
}

static struct check_range resolve(struct rh_check *check, enum rh_room room, int number, int64_t first, int64_t bytes)
{
	int device = check->recorded->lane[check->command->lane].owner;
	struct rh_place place = {.room = room, .device = rh_int16(device), .number = number, .first = first, .bytes = bytes};
	return check_resolve(check, &place);
}

void check_need(struct rh_check *check, struct check_range range, const struct check_content *content)
{
	if (check_failed(check))
		return;
	check_touch(check, range, CHECK_READS);
	check_find(check, range, content);
}

void check_put(struct rh_check *check, struct check_range range, const struct check_content *content)
{
	if (check_failed(check))
		return;
	check_touch(check, range, CHECK_WRITES);
	check_leave(check, range, content);
}

static void need_or_put(struct rh_check *check, enum check_mode mode, struct check_range range, const struct check_content *content)
{
	if (mode == CHECK_READS)
		check_need(check, range, content);
	else
		check_put(check, range, content);
}

/* ---- compute ---- */

static void boundary(struct rh_check *check, enum check_mode mode, enum check_what what, int buffer, int layer)
{
	struct check_content content = of_micro_batch(check, what, layer);
	int64_t bytes = what == CHECK_NARROW ? rh_narrow_boundary_shape(model_of(check), layer, check->command->tokens).bytes
	                                     : rh_boundary_shape(model_of(check), layer, check->command->tokens).bytes;
	need_or_put(check, mode, resolve(check, RH_ROOM_BOUNDARY, buffer, 0, bytes), &content);
}

/* How many updates the weights have had with which the command computes. */
static int64_t version_of(const struct rh_check *check, int b)
{
	const struct rh_check_call *call = &check_call_of(check, check->command->step)->call;
	if (!model_of(check)->block[b].trainable)
		return 0;
	return call->version >= 0 ? call->version : check->published[b];
}

/* Uploaded weights of the command's layers, in the layout of its stage. */
enum need { NEED_ALL, NEED_PREPARED };

static void need_uploaded(struct rh_check *check, enum need need)
{
	const struct rh_model *model = model_of(check);
	const struct rh_command *command = check->command;
	int is_backward = command->operands.is_backward_upload;
	(void)rh_stage_plan_upload_layout(model, command->stage.lo, command->stage.hi, is_backward, check->offset);
	for (int l = command->lo; l < command->hi; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS && !check_failed(check); which++) {
			int b = model->layer[l].block[which];
			if (b >= 0 && check->offset[b] < 0 && command->kind == RH_COMMAND_FORWARD)
				check_fault(check, -1, "reads block %d, which an upload for a backward lacks", b);
			if (b < 0 || check->offset[b] < 0 ||
			    (need == NEED_PREPARED && !rh_block_plain_bytes(&model->block[b], model->dtype)))
				continue;
			int64_t first = command->operands.weights + check->offset[b];
			struct check_content weights = {.what = CHECK_WEIGHTS, .which = b, .step = version_of(check, b), .base = first};
			check_need(check, resolve(check, RH_ROOM_WEIGHTS, b, first, block_bytes(check, b)), &weights);
		}
}

/* The plain matrices of the command's layers, in the layout of its stage that begins at `base`; where the plan has a room for them. */
static void plain_matrices(struct rh_check *check, enum check_mode mode, int64_t base)
{
	const struct rh_model *model = model_of(check);
	const struct rh_command *command = check->command;
	if (!check->options.plan->plain_bytes)
		return;
	(void)rh_stage_plan_plain_layout(model, command->stage.lo, command->stage.hi, check->offset);
	for (int l = command->lo; l < command->hi; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS && !check_failed(check); which++) {
			int b = rh_model_plain_block(model, l, which);
			if (b < 0)
				continue;
			int64_t first = base + check->offset[b];
			struct check_content plain = {.what = CHECK_PLAIN, .which = b, .step = version_of(check, b), .base = first};
			need_or_put(check, mode,
			            resolve(check, RH_ROOM_PLAIN, b, first, rh_block_plain_bytes(&model->block[b], model->dtype)), &plain);
		}
}

static void need_weights(struct rh_check *check)
{
	need_uploaded(check, NEED_ALL);
	plain_matrices(check, CHECK_READS, 0);
}

/* What a command adds of a micro-batch's gradients to its layers' sums. 0: nothing, but it touches the sums. */
enum part { PART_AT_ONCE = 1, PART_DEFERRED = 2 };

/* Micro-batches that have been added to a sum before this one, and with it. Of a text's chunks the last is added first; its places that are
 * empty count with its first chunk. */
static int64_t added_before(const struct rh_check *check)
{
	const struct rh_command *command = check->command;
	return command->micro_batch - command->chunk + command->operands.later_chunks;
}

static int64_t added_with(const struct rh_check *check)
{
	return check->command->chunk ? added_before(check) + 1 : check->command->micro_batch + rh_max(check->options.chunks, 1);
}

static void add_to_sums(struct rh_check *check, int lo, int hi, int parts)
{
	const struct rh_model *model = model_of(check);
	const struct rh_command *command = check->command;
	(void)rh_stage_plan_gradient_layout(model, command->stage.lo, command->stage.hi, check->offset);
	for (int l = lo; l < hi; l++)
		for (int which = 0; which < RH_LAYER_BLOCKS && !check_failed(check); which++) {
			int b = model->layer[l].block[which], is_head = model->layer[l].kind == RH_LAYER_HEAD, added = parts;
			if (b < 0 || !model->block[b].trainable || (is_head && parts == PART_DEFERRED))
				continue;
			if (is_head && parts) /* nothing of the head is deferred */
				added = PART_AT_ONCE | PART_DEFERRED;
			int sum = 2 * b + model->layer[l].use[which];
			const struct rh_place *rows = check_rows(check, b);
			int64_t first = 4 * check->offset[sum],
			        elements = rows ? rows->bytes / rh_dtype_bytes(model->dtype, 1) : model->block[b].elements;
			struct check_range range = resolve(check, RH_ROOM_SUMS, sum, first, 4 * elements);
			struct check_content content = {.what = CHECK_SUM, .which = sum, .step = command->step, .base = first};
			const struct check_content *present = check_first(&range);
			content.micro_batch = added & PART_AT_ONCE ? added_before(check) : present->micro_batch;
			content.deferred = added & PART_DEFERRED ? added_before(check) : present->deferred;
			check_need(check, range, &content);
			content.micro_batch = added & PART_AT_ONCE ? added_with(check) : content.micro_batch;
			content.deferred = added & PART_DEFERRED ? added_with(check) : content.deferred;
			check_put(check, range, &content);
		}
}

/* ---- activations that are kept or saved ---- */

/* The command's layers and those beside them whose rows are placed together; without places where all these are recomputed. */
static struct rh_stage_piece piece_of(const struct rh_check *check)
{
	const struct rh_command *command = check->command;
	struct rh_stage_piece piece = rh_stage_plan_piece(check->options.plan, command->stage, command->lo);
	if (!check_call_of(check, command->step)->call.trains)
		piece.places = NULL;
	return piece;
}

static int recomputes(const struct rh_check *check)
{
	const struct rh_stage_places *places = piece_of(check).places;
	return !places || places->recomputes;
}

static struct rh_emit table_of(const struct rh_check *check)
{
	return (struct rh_emit){.model = model_of(check), .fates = check->options.plan->fates, .shape = {.tokens = check->command->tokens}};
}

/* Reads or writes a row where its fate has it, up to the row after it: in `kept` or in the command's buffer of saved ones. */
static void touch_row(struct rh_check *check, enum check_mode mode, const struct rh_stage_row *row, const struct rh_place *kept)
{
	struct check_content content = of_micro_batch(check, CHECK_ROW, row->layer);
	int64_t bytes = rh_align_up(row->bytes, RH_ALIGN);
	struct check_range range = row->fate == RH_FATE_KEEP
	                                   ? resolve(check, RH_ROOM_KEPT, 0, kept->first + row->offset, bytes)
	                                   : resolve(check, RH_ROOM_SAVING, check->command->operands.saving, row->offset, bytes);
	if (row->fate == RH_FATE_KEEP && (kept->room != RH_ROOM_KEPT || row->offset + bytes > kept->bytes))
		check_fault(check, -1, "has no place for activation %d of layer %d", row->is.row, row->layer);
	content.depth = row->is.row;
	content.base = range.first;
	need_or_put(check, mode, range, &content);
}

/* Rows of a layer that some of the stage's are recomputed from: of the same layer, of the layer above, or of what lies beside. */
static rh_row_set read_of(struct rh_check *check, int layer)
{
	const struct rh_command *command = check->command;
	struct rh_emit emit = table_of(check);
	struct rh_stage_rows rows;
	struct rh_stage_row row;
	rh_row_set read = 0, to_side = 0, of_side = 0;
	rh_stage_rows(&emit, command->stage.lo, command->stage.hi, &rows);
	while (rh_stage_next_row(&rows, &row)) {
		int maker = row.layer - (row.is.maker == RH_MAKER_BELOW);
		if (row.is.side == RH_SIDE_TO && row.layer == layer)
			to_side |= RH_ROW_SET(row.is.row);
		if (row.is.side == RH_SIDE_FROM && row.fate == RH_FATE_RECOMPUTE)
			of_side = ~(rh_row_set)0;
		if (row.fate == RH_FATE_RECOMPUTE && maker == layer)
			read |= row.is.from;
		else if (row.fate == RH_FATE_RECOMPUTE && layer == command->stage.lo) /* it has the tables of all layers */
			read |= row.is.from & RH_ROW_RUN(RH_ROW_ROPE, RH_ROPES);
	}
	return read | (to_side & of_side);
}

/* The rows of layers [lo, hi) that are neither recomputed nor made by the backward: all, or those that others are recomputed from. */
static void touch_rows(struct rh_check *check, enum check_mode mode, const struct rh_place *kept)
{
	const struct rh_command *command = check->command;
	struct rh_emit emit = table_of(check);
	struct rh_stage_piece piece = piece_of(check);
	struct rh_stage_rows rows;
	struct rh_stage_row row;
	int layer = -1;
	rh_row_set read = ~(rh_row_set)0;
	if (!piece.places)
		return;
	if (command->hi > piece.hi)
		check_fault(check, -1, "leaves rows of two stages");
	rh_stage_rows(&emit, piece.lo, piece.hi, &rows);
	while (!check_failed(check) && rh_stage_next_row(&rows, &row)) {
		int is_inside = row.layer >= command->lo && row.layer < command->hi;
		if (row.fate == RH_FATE_RECOMPUTE || row.is.maker == RH_MAKER_BACKWARD || !is_inside)
			continue;
		if (command->kind == RH_COMMAND_CARRY && row.fate == RH_FATE_SAVE)
			continue;
		if (command->kind == RH_COMMAND_RECOMPUTE && row.layer != layer)
			read = read_of(check, layer = row.layer);
		if (read & RH_ROW_SET(row.is.row))
			touch_row(check, mode, &row, kept);
	}
}

static struct check_range recomputed_range(struct rh_check *check)
{
	return resolve(check, RH_ROOM_ARENA, ARENA_KEPT, 0, 1);
}

/* What the stage keeps, or defers, of its layers up, or down, to this one. */
static struct check_content staged(const struct rh_check *check, enum check_what what, struct check_range range, int depth)
{
	struct check_content content = of_micro_batch(check, what, check->command->stage.lo);
	content.depth = depth;
	content.base = range.first;
	return content;
}

/* Extends what is kept, or deferred, of the stage by the command's layers: from layer `begin` to layer `end`. */
static void extend(struct rh_check *check, enum check_what what, struct check_range range, int begin, int end)
{
	const struct rh_stage *stage = &check->command->stage;
	struct check_content before = staged(check, what, range, begin), after = staged(check, what, range, end);
	if (begin != (what == CHECK_KEPT ? stage->lo : stage->hi))
		check_need(check, range, &before);
	check_put(check, range, &after);
}

static void running(struct rh_check *check, enum check_mode mode, enum check_what what, int layer)
{
	struct check_content content = of_micro_batch(check, what, layer);
	need_or_put(check, mode, resolve(check, RH_ROOM_ARENA, ARENA_RUNNING, 0, 1), &content);
}

/* Of a backward slot, below its stage. */
static int reads_narrow(const struct rh_check *check)
{
	const struct rh_command *command = check->command;
	return command->kind != RH_COMMAND_FORWARD && check_call_of(check, command->step)->call.trains &&
	       rh_stage_plan_narrows(check->options.plan, command->stage.lo);
}

static void need_input(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	if (command->operands.x >= 0)
		boundary(check, CHECK_READS, reads_narrow(check) ? CHECK_NARROW : CHECK_ACTIVATION, command->operands.x, command->lo);
	else if (command->lo > command->stage.lo)
		running(check, CHECK_READS, CHECK_RUNNING, command->lo);
	else if (command->lo > 0 || check->options.plan->is_fed)
		check_fault(check, -1, "has no input");
}

static void leave_results(struct rh_check *check)
{
	struct check_content result = of_micro_batch(check, CHECK_RESULT, 0);
	if (ends_model(check))
		check_put(check,
		          resolve(check, RH_ROOM_RESULT, check->command->operands.result, 0, check->options.room[RH_ROOM_RESULT].bytes),
		          &result);
}

/* Adds the call's keys and values to those of the calls before it. */
static void extend_cache(struct rh_check *check)
{
	struct check_content before = {.what = CHECK_CACHE, .step = check->command->step + 1}, after = before;
	struct check_range cache = check_resolve(check, &check->command->target);
	after.step = check->command->step;
	if (before.step < 0)
		check_need(check, cache, &before);
	check_put(check, cache, &after);
}

/* What mixers carry of the text's chunks before this one, and then of this one, too. */
static void extend_carried(struct rh_check *check)
{
	struct check_range room = check_resolve(check, &check->command->target);
	struct check_content content = of_micro_batch(check, CHECK_CARRIED, check->command->stage.lo);
	content.base = room.first;
	content.micro_batch--;
	if (check->command->chunk)
		check_need(check, room, &content);
	content.micro_batch++;
	check_put(check, room, &content);
}

/* That of all chunks of the text, once the backwards of all later ones have added to its gradient. `adds`: this one does, too. */
enum adds { ADDS_NOTHING, ADDS };
static void need_carried(struct rh_check *check, const struct rh_place *place, enum adds adds)
{
	int later = check->command->operands.later_chunks;
	struct check_range room = check_resolve(check, place);
	struct check_content content = of_micro_batch(check, CHECK_CARRIED, check->command->stage.lo);
	content.base = room.first;
	content.micro_batch += later;
	content.deferred = later;
	check_need(check, room, &content);
	content.deferred += adds;
	check_put(check, room, &content);
}

static void run_carry(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	if (command->stage.lo > 0 && command->operands.x < 0)
		check_fault(check, -1, "has no input");
	if (command->operands.x >= 0)
		boundary(check, CHECK_READS, reads_narrow(check) ? CHECK_NARROW : CHECK_ACTIVATION, command->operands.x, command->lo);
	need_weights(check);
	touch_rows(check, CHECK_READS, &command->source);
	extend_carried(check);
}

static void run_forward(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	need_input(check);
	need_weights(check);
	touch_rows(check, command->kind == RH_COMMAND_FORWARD ? CHECK_WRITES : CHECK_READS, &command->source);
	if (command->kind == RH_COMMAND_RECOMPUTE)
		extend(check, CHECK_KEPT, recomputed_range(check), command->lo, command->hi);
	if (command->target.room == RH_ROOM_CACHE && command->kind == RH_COMMAND_RECOMPUTE)
		need_carried(check, &command->target, ADDS_NOTHING);
	else if (command->target.room == RH_ROOM_CACHE && check_call_of(check, command->step)->call.trains)
		extend_carried(check);
	else if (command->target.room == RH_ROOM_CACHE)
		extend_cache(check);
	if (command->kind == RH_COMMAND_FORWARD && command->operands.y >= 0)
		boundary(check, CHECK_WRITES, CHECK_ACTIVATION, command->operands.y, command->hi);
	else
		running(check, CHECK_WRITES, CHECK_RUNNING, command->hi);
	if (command->kind == RH_COMMAND_FORWARD && command->operands.narrow >= 0)
		boundary(check, CHECK_WRITES, CHECK_NARROW, command->operands.narrow, command->hi);
	leave_results(check);
	if (command->kind == RH_COMMAND_RECOMPUTE && ends_model(check)) /* the head's gradient is made with its loss; backward counts it */
		add_to_sums(check, command->hi - 1, command->hi, 0);
}

static void need_gradient_above(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	if (command->operands.dy >= 0)
		boundary(check, CHECK_READS, CHECK_BOUNDARY_GRADIENT, command->operands.dy, command->hi);
	else if (command->hi < command->stage.hi)
		running(check, CHECK_READS, CHECK_RUNNING_GRADIENT, command->hi);
	else if (!ends_model(check))
		check_fault(check, -1, "has no gradient from above");
}

static void run_backward(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	int defers = command->target.room == RH_ROOM_DEFERRED && (command->target.bytes || command->stage.lo < model_of(check)->layers - 1);
	need_gradient_above(check);
	need_weights(check);
	int reads_input = model_of(check)->layer[command->lo].kind == RH_LAYER_BLOCK; /* the head keeps the rows that it needs */
	if (reads_input && command->lo == command->stage.lo && !reads_narrow(check))  /* else recompute made it wide */
		boundary(check, CHECK_READS, CHECK_ACTIVATION, command->operands.x, command->lo);
	int has_mixer = rh_model_carriers(model_of(check), command->lo, command->hi);
	if (command->chunk + command->operands.later_chunks > 0 && has_mixer)
		need_carried(check, &command->target, ADDS);
	touch_rows(check, CHECK_READS, &command->source);
	if (recomputes(check)) {
		struct check_range range = recomputed_range(check);
		struct check_content content = staged(check, CHECK_KEPT, range, command->stage.hi);
		check_need(check, range, &content);
	}
	add_to_sums(check, command->lo, command->hi, defers ? PART_AT_ONCE : PART_AT_ONCE | PART_DEFERRED);
	if (defers)
		extend(check, CHECK_DEFERRED, check_resolve(check, &command->target), command->hi, command->lo);
	if (command->operands.dx >= 0)
		boundary(check, CHECK_WRITES, CHECK_BOUNDARY_GRADIENT, command->operands.dx, command->lo);
	else if (command->lo > command->stage.lo)
		running(check, CHECK_WRITES, CHECK_RUNNING_GRADIENT, command->lo);
}

static void run_weight_gradient(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	struct check_range deferred = {0};
	if (command->source.bytes || command->stage.lo < model_of(check)->layers - 1) /* nothing of the head is deferred */
		deferred = check_resolve(check, &command->source);
	if (!deferred.piece)
		return;
	int depth = check_first(&deferred)->depth; /* nothing of frozen layers below is deferred */
	struct check_content content = staged(check, CHECK_DEFERRED, deferred, depth < command->lo ? depth : command->lo);
	check_need(check, deferred, &content);
	add_to_sums(check, command->lo, command->hi, PART_DEFERRED);
}

static int is_on_compute_stream(struct rh_check *check)
{
	const struct rh_lane *lane = &check->recorded->lane[check->command->lane];
	if (lane->queue == RH_QUEUE_STREAM && lane->stream == RH_STREAM_COMPUTE)
		return 1;
	check_fault(check, -1, "is not on a compute stream");
	return 0;
}

static void run_dequantise(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	int64_t bytes = rh_stage_plan_plain_layout(model_of(check), command->stage.lo, command->stage.hi, check->offset);
	if (!is_on_compute_stream(check))
		return;
	if (command->target.room != RH_ROOM_PLAIN || command->target.bytes != bytes || command->lo != command->stage.lo ||
	    command->hi != command->stage.hi)
		check_fault(check, -1, "does not make the packed weights of one stage plain");
	need_uploaded(check, NEED_PREPARED);
	plain_matrices(check, CHECK_WRITES, command->target.first);
}

static void run_compute(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	const struct check_call *call = check_call_of(check, command->step);
	int layers = model_of(check)->layers;
	if (!is_on_compute_stream(check))
		return;
	if (command->stage.lo < 0 || command->stage.hi > layers || command->lo < command->stage.lo || command->hi > command->stage.hi ||
	    command->lo >= command->hi || command->tokens < 1 || command->micro_batch < 0 ||
	    command->micro_batch >= call->call.micro_batches) {
		check_fault(check, -1, "names layers %d to %d of stage %d to %d, or a micro-batch that its step has not", command->lo,
		            command->hi, command->stage.lo, command->stage.hi);
		return;
	}
	struct check_content micro = of_micro_batch(check, CHECK_MICRO, 0);
	check_need(check, resolve(check, RH_ROOM_MICRO, command->operands.micro, 0, 1), &micro);
	if (command->kind == RH_COMMAND_CARRY)
		run_carry(check);
	else if (command->kind == RH_COMMAND_WEIGHT_GRADIENT)
		run_weight_gradient(check);
	else if (command->kind == RH_COMMAND_BACKWARD)
		run_backward(check);
	else
		run_forward(check);
}

/* ---- sums ---- */

struct check_content check_whole_sum(const struct rh_check *check, int sum, int64_t base)
{
	int64_t count = check_call_of(check, check->command->step)->call.micro_batches;
	return (struct check_content){
	        .what = CHECK_SUM, .which = sum, .step = check->command->step, .micro_batch = count, .deferred = count, .base = base};
}

struct check_content check_gradient(const struct rh_check *check, int b, int64_t base)
{
	return (struct check_content){.what = CHECK_GRADIENT, .which = b, .step = check->command->step, .base = base};
}

int check_is_sum(struct rh_check *check, int sum)
{
	const struct rh_model *model = model_of(check);
	int b = sum / 2;
	if (sum >= 0 && b < model->blocks && model->block[b].trainable && sum % 2 < model->block[b].uses)
		return 1;
	check_fault(check, -1, "names gradient sum %d, which there is not", sum);
	return 0;
}

static void run_clear(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	struct check_content zero = {
	        .what = CHECK_SUM, .which = command->target.number, .step = command->step, .base = command->target.first};
	if (!check_is_sum(check, command->target.number) || command->target.room != RH_ROOM_SUMS)
		check_fault(check, -1, "clears no sum");
	check_put(check, check_resolve(check, &command->target), &zero);
}

/* From a whole sum or pieces of it to as many elements of another room. */
static void run_round(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	int sum = command->source.number;
	if (!check_is_sum(check, sum))
		return;
	if (command->target.room != RH_ROOM_ROUNDED || command->target.number != sum ||
	    command->target.bytes * 2 != command->source.bytes) {
		check_fault(check, -1, "does not round one sum");
		return;
	}
	struct check_range from = check_resolve(check, &command->source), to = check_resolve(check, &command->target);
	int64_t base = check_first(&from)->base;
	struct check_content whole = check_whole_sum(check, sum, base);
	struct check_content rounded = check_gradient(check, sum / 2, to.first - (from.first - base) / 2);
	check_need(check, from, &whole);
	check_put(check, to, &rounded);
}

static void run_host_add(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	int b = command->target.number;
	if (!check_is_sum(check, 2 * b + 1))
		return;
	struct check_range from = check_resolve(check, &command->source), to = check_resolve(check, &command->target);
	int64_t element = rh_dtype_bytes(model_of(check)->dtype, 1), first = command->target.first / element;
	struct rh_place head = {RH_ROOM_HOST_SUM, -1, 2 * b + 1, 4 * first, command->source.bytes};
	struct check_range other = check_resolve(check, &head);
	struct check_content one = check_whole_sum(check, 2 * b, from.first - 4 * first), two = check_whole_sum(check, 2 * b + 1, 0);
	struct check_content result = check_gradient(check, b, 0);
	check_need(check, from, &one);
	check_need(check, other, &two);
	check_put(check, to, &result);
}

/* ---- the rest ---- */

/* Device memory is reached by its own device's streams alone. */
static void need_own_stream(struct rh_check *check, const struct rh_place *place)
{
	const struct rh_lane *lane = &check->recorded->lane[check->command->lane];
	if (place->device >= 0 && (lane->queue != RH_QUEUE_STREAM || lane->owner != place->device))
		check_fault(check, -1, "touches the memory of device %d, which is not its own", place->device);
}

static void run_copy(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	need_own_stream(check, &command->source);
	need_own_stream(check, &command->target);
	struct check_range from = check_resolve(check, &command->source), to = check_resolve(check, &command->target);
	if (from.end - from.first != to.end - to.first)
		check_fault(check, -1, "copies %lld bytes to %lld", (long long)(from.end - from.first), (long long)(to.end - to.first));
	check_touch(check, from, CHECK_READS);
	check_touch(check, to, CHECK_WRITES);
	check_carry(check, from, to);
	const struct rh_place *rows = command->target.room == RH_ROOM_WEIGHTS ? check_rows(check, command->target.number) : NULL;
	if (rows) /* through which they travel */
		check_touch(check, check_resolve(check, rows), CHECK_READS);
}

/* A boundary of the command's micro-batch goes to the box beside this one, or comes from there. */
static void run_message(struct rh_check *check)
{
	const struct rh_command *command = check->command;
	int sends = command->kind == RH_COMMAND_SEND;
	enum rh_queue queue = check->recorded->lane[command->lane].queue;
	enum check_what what = command->boundary == RH_BOUNDARY_ACTIVATION ? CHECK_ACTIVATION : CHECK_BOUNDARY_GRADIENT;
	struct check_content content = of_micro_batch(check, what, command->lo);
	struct check_range range = check_resolve(check, sends ? &command->source : &command->target);
	if (queue != (sends ? RH_QUEUE_SENDS : RH_QUEUE_RECEIVES))
		check_fault(check, -1, "is not on a link's lane for it");
	need_or_put(check, sends ? CHECK_READS : CHECK_WRITES, range, &content);
	check_call_of(check, command->step)->sent += sends;
}

/* What the caller sends and receives lies in memory of its own. A step's letter may come in an earlier or later step. */
static void run_letter(struct rh_check *check)
{
	int sends = check->command->kind == RH_COMMAND_SEND_LETTER;
	if (check->recorded->lane[check->command->lane].queue != (sends ? RH_QUEUE_SENDS : RH_QUEUE_RECEIVES))
		check_fault(check, -1, "is not on a link's lane for it");
}

static void run_input(struct rh_check *check)
{
	struct check_content micro = of_micro_batch(check, CHECK_MICRO, 0);
	check_put(check, check_resolve(check, &check->command->target), &micro);
	const struct rh_place *rows = &check->command->source;
	struct rh_place *said = &check_call_of(check, check->command->step)->rows;
	if (!rows->room)
		return;
	(void)check_resolve(check, rows);
	if (said->room && (said->number != rows->number || said->first != rows->first))
		check_fault(check, -1, "says that the table's rows lie elsewhere than another input of its step");
	*said = *rows;
}

static void run_output(struct rh_check *check)
{
	struct check_content result = of_micro_batch(check, CHECK_RESULT, 0);
	check_call_of(check, check->command->step)->outputs++;
	if (!check->command->source.bytes) /* a chunk without a target, or the place of one that its text has not */
		return;
	struct check_range range = check_resolve(check, &check->command->source);
	range.end = range.first + 1; /* nobody reads what a micro-batch of fewer rows has not filled */
	check_need(check, range, &result);
}

void check_command(struct rh_check *check)
{
	static void (*const run[RH_COMMANDS])(struct rh_check *) = {[RH_COMMAND_FORWARD] = run_compute,
	                                                            [RH_COMMAND_CARRY] = run_compute,
	                                                            [RH_COMMAND_RECOMPUTE] = run_compute,
	                                                            [RH_COMMAND_BACKWARD] = run_compute,
	                                                            [RH_COMMAND_WEIGHT_GRADIENT] = run_compute,
	                                                            [RH_COMMAND_DEQUANTISE] = run_dequantise,
	                                                            [RH_COMMAND_CLEAR] = run_clear,
	                                                            [RH_COMMAND_ROUND] = run_round,
	                                                            [RH_COMMAND_COPY] = run_copy,
	                                                            [RH_COMMAND_HOST_ADD] = run_host_add,
	                                                            [RH_COMMAND_INPUT] = run_input,
	                                                            [RH_COMMAND_OUTPUT] = run_output,
	                                                            [RH_COMMAND_GRADIENT_ARRIVED] = check_update,
	                                                            [RH_COMMAND_UPLOADS_OVER] = check_update,
	                                                            [RH_COMMAND_NORM] = check_update,
	                                                            [RH_COMMAND_WEIGHTS_READY] = check_update,
	                                                            [RH_COMMAND_GRADIENT_TAKEN] = check_update,
	                                                            [RH_COMMAND_READ] = run_copy,
	                                                            [RH_COMMAND_WRITE] = run_copy,
	                                                            [RH_COMMAND_SEND] = run_message,
	                                                            [RH_COMMAND_RECEIVE] = run_message,
	                                                            [RH_COMMAND_SEND_LETTER] = run_letter,
	                                                            [RH_COMMAND_RECEIVE_LETTER] = run_letter};
	const struct rh_command *command = check->command;
	int is_ahead = command->kind == RH_COMMAND_COPY || command->kind == RH_COMMAND_READ || command->kind == RH_COMMAND_SEND_LETTER ||
	               command->kind == RH_COMMAND_RECEIVE_LETTER; /* perhaps of a step that never comes */
	if (command->kind >= RH_COMMANDS || (!is_ahead && !check_call_of(check, command->step)))
		check_fault(check, -1, "is of a step that is not run, or of no kind");
	else
		run[command->kind](check);
}
