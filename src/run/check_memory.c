/* What each byte of each room holds, and which commands touched it. */
#include "offload/store.h"
#include "run/check_internal.h"

#include <stdio.h>
#include <string.h>

static int is_of_device(enum rh_room room)
{
	return room >= RH_ROOM_WEIGHTS && room <= RH_ROOM_CACHE;
}

static int is_of_blocks(enum rh_room room)
{
	return room == RH_ROOM_HOST_WEIGHTS || room == RH_ROOM_HOST_GRADIENT || room == RH_ROOM_HOST_SUM || room == RH_ROOM_PAGES;
}

static int64_t block_bytes(const struct rh_model *model, enum rh_room room, int number)
{
	const struct rh_block *block = &model->block[room == RH_ROOM_HOST_SUM ? number / 2 : number];
	if (room == RH_ROOM_HOST_SUM || room == RH_ROOM_HOST_GRADIENT)
		return rh_dtype_bytes(room == RH_ROOM_HOST_SUM ? RH_F32 : model->dtype, block->elements);
	return rh_block_bytes(block, model->dtype);
}

void rh_check_rooms(struct rh_check_options *options, int64_t micro_batches)
{
	const struct rh_stage_plan *plan = options->plan;
	int blocks = options->model->blocks, places = (int)micro_batches;
	struct rh_room_size *room = options->room;
	rh_rooms_of_device(plan, room);
	room[RH_ROOM_ARENA] = (struct rh_room_size){2, 1}; /* what is kept, and what runs through a stage: see check_command.c */
	room[RH_ROOM_HOST_WEIGHTS].count = room[RH_ROOM_HOST_GRADIENT].count = room[RH_ROOM_PAGES].count = blocks;
	room[RH_ROOM_HOST_SUM].count = 2 * blocks;
	room[RH_ROOM_HOST_SAVED] = (struct rh_room_size){1, plan->saved_bytes};
	room[RH_ROOM_HOST_MICRO] = (struct rh_room_size){places, plan->micro_bytes};
	room[RH_ROOM_HOST_RESULT] = (struct rh_room_size){places, plan->result_bytes};
}

/* Puts the weights there that devices read before any update. */
static int fill_weights(struct rh_check *check)
{
	const enum rh_room rooms[] = {RH_ROOM_HOST_WEIGHTS, RH_ROOM_PAGES};
	const struct rh_model *model = check->options.model;
	for (size_t i = 0; !check->rc && i < 2 * (size_t)model->blocks; i++) {
		int b = (int)i / 2;
		struct check_range range = {check->piece + check->first_piece[rooms[i % 2]] + b, 0, block_bytes(model, rooms[i % 2], b)};
		check_leave(check, range, &(struct check_content){.what = CHECK_WEIGHTS, .which = b});
	}
	return check->rc;
}

int check_memory_create(struct rh_check *check)
{
	const struct rh_check_options *options = &check->options;
	for (int r = 0; r < RH_ROOMS; r++) {
		check->first_piece[r] = check->pieces;
		check->pieces += options->room[r].count * (is_of_device((enum rh_room)r) ? options->devices : 1);
	}
	check->piece = rh_region_take(&check->memory, check->pieces, sizeof *check->piece);
	if (check->memory.rc)
		return check->memory.rc;
	for (int r = 0; r < RH_ROOMS; r++) {
		int count = options->room[r].count * (is_of_device((enum rh_room)r) ? options->devices : 1);
		for (int i = 0; i < count; i++)
			check->piece[check->first_piece[r] + i].bytes =
			        is_of_blocks((enum rh_room)r) ? block_bytes(options->model, (enum rh_room)r, i) : options->room[r].bytes;
	}
	return fill_weights(check);
}

/* The gradient may lie in a sum. */
static int gradient_piece(const struct rh_check *check, int b)
{
	const struct rh_model *model = check->options.model;
	int use = rh_store_gradient_use(&model->block[b], model->dtype, check->options.crosses_rounds);
	return use < 0 ? check->first_piece[RH_ROOM_HOST_GRADIENT] + b : check->first_piece[RH_ROOM_HOST_SUM] + 2 * b + use;
}

struct check_range check_resolve(struct rh_check *check, const struct rh_place *place)
{
	struct check_range range = {NULL, place->first, place->first + place->bytes};
	const struct rh_room_size *room = &check->options.room[place->room];
	int number = rh_room_is_whole(place->room) ? 0 : place->number, device = is_of_device(place->room) ? place->device : 0;
	if (place->room == RH_ROOM_NONE || device < 0 || device >= check->options.devices || number < 0 || number >= room->count) {
		check_fault(check, -1, "names room %d of device %d, of %d, and piece %d of a room of %d", (int)place->room, device,
		            check->options.devices, number, room->count);
		return range;
	}
	int piece = place->room == RH_ROOM_HOST_GRADIENT ? gradient_piece(check, number)
	                                                 : check->first_piece[place->room] + device * room->count + number;
	if (place->room == RH_ROOM_ARENA) {
		range.first = 0;
		range.end = 1;
	}
	if (range.first >= 0 && range.first < range.end && range.end <= check->piece[piece].bytes)
		range.piece = &check->piece[piece];
	else
		check_fault(check, -1, "names bytes %lld to %lld of a room of %lld", (long long)range.first, (long long)range.end,
		            (long long)check->piece[piece].bytes);
	return range;
}

/* ---- who touched it ---- */

static int comes_before(const struct rh_check *check, const struct check_access *access)
{
	return check->now[check->command->lane * check->lanes + access->lane] >= access->position;
}

void check_touch(struct rh_check *check, struct check_range range, enum check_mode mode)
{
	struct check_piece *piece = range.piece;
	if (check_failed(check))
		return;
	size_t kept = 0;
	for (size_t i = 0; i < piece->accesses; i++) {
		const struct check_access *access = &piece->access[i];
		int overlaps = access->first < range.end && range.first < access->end;
		int is_covered = range.first <= access->first && access->end <= range.end;
		int before = !overlaps || mode == CHECK_ANNOUNCES || comes_before(check, access);
		if (!before && (mode == CHECK_WRITES || access->is_write))
			check_fault(check, access->position, "%s what another command %s, and nothing orders the two",
			            mode == CHECK_WRITES ? "writes" : "reads", access->is_write ? "writes" : "reads");
		/* whatever comes after this command comes after those, too */
		if (overlaps && is_covered && before && (mode != CHECK_READS || !access->is_write))
			continue;
		piece->access[kept++] = *access;
	}
	piece->accesses = kept;
	int rc = rh_grow(&piece->access, &piece->access_capacity, kept + 1, sizeof *piece->access);
	if (rc) {
		check->rc = rc;
		return;
	}
	piece->access[piece->accesses++] =
	        (struct check_access){range.first, range.end, check->command->position, check->command->lane, mode != CHECK_READS};
}

/* ---- what it holds ---- */

static int is_alike(const struct check_content *a, const struct check_content *b)
{
	return a->what == b->what && a->which == b->which && a->depth == b->depth && a->step == b->step &&
	       a->micro_batch == b->micro_batch && a->deferred == b->deferred && a->base == b->base;
}

/* Number of the first interval that ends after `first`. */
static size_t find_interval(const struct check_piece *piece, int64_t first)
{
	size_t low = 0, high = piece->intervals;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (piece->interval[middle].end > first)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

const struct check_content *check_first(const struct check_range *range)
{
	static const struct check_content nothing = {0};
	const struct check_piece *piece = range->piece;
	size_t i = piece ? find_interval(piece, range->first) : 0;
	return piece && i < piece->intervals && piece->interval[i].first <= range->first ? &piece->interval[i].content : &nothing;
}

static const char *content_name(const struct check_content *content, char *text, size_t bytes)
{
	static const char *const names[] = {[CHECK_NOTHING] = "nothing",
	                                    [CHECK_WEIGHTS] = "weights of block",
	                                    [CHECK_PLAIN] = "plain matrices of block",
	                                    [CHECK_SUM] = "sum 2 * block + use =",
	                                    [CHECK_GRADIENT] = "gradient of block",
	                                    [CHECK_ACTIVATION] = "activation at layer",
	                                    [CHECK_BOUNDARY_GRADIENT] = "gradient at layer",
	                                    [CHECK_NARROW] = "copy in 8 bits of the activation at layer",
	                                    [CHECK_MICRO] = "micro-batch",
	                                    [CHECK_RESULT] = "results",
	                                    [CHECK_KEPT] = "activations of layers from",
	                                    [CHECK_ROW] = "an activation of layer",
	                                    [CHECK_DEFERRED] = "deferred gradients of layers from",
	                                    [CHECK_RUNNING] = "activation at layer",
	                                    [CHECK_RUNNING_GRADIENT] = "gradient at layer",
	                                    [CHECK_SCALE] = "norm",
	                                    [CHECK_MASTER] = "master of block",
	                                    [CHECK_CACHE] = "keys and values",
	                                    [CHECK_CARRIED] = "what chunks before it carry",
	                                    [CHECK_ARRIVED] = "arrival of the gradient of block"};
	int counts_updates = content->what == CHECK_WEIGHTS || content->what == CHECK_PLAIN || content->what == CHECK_MASTER;
	snprintf(text, bytes, "%s %d, %s %lld, micro-batch %lld (depth %d, %lld deferred)", names[content->what], content->which,
	         counts_updates ? "updates" : "step", (long long)content->step, (long long)content->micro_batch, content->depth,
	         (long long)content->deferred);
	return text;
}

void check_find(struct rh_check *check, struct check_range range, const struct check_content *content)
{
	int64_t at = range.first;
	char found[160], wanted[160];
	if (check_failed(check))
		return;
	for (size_t i = find_interval(range.piece, at); at < range.end; i++) {
		const struct check_interval *interval = i < range.piece->intervals ? &range.piece->interval[i] : NULL;
		struct check_content nothing = {0};
		const struct check_content *present = interval && interval->first <= at ? &interval->content : &nothing;
		if (!is_alike(present, content)) {
			check_fault(check, -1, "needs %s, and finds %s at byte %lld", content_name(content, wanted, sizeof wanted),
			            content_name(present, found, sizeof found), (long long)at);
			return;
		}
		at = interval->end;
	}
}

/* Inserts an interval as number i. */
static int open_interval(struct check_piece *piece, size_t i)
{
	int rc = rh_grow(&piece->interval, &piece->interval_capacity, piece->intervals + 1, sizeof *piece->interval);
	if (rc)
		return rc;
	memmove(piece->interval + i + 1, piece->interval + i, (piece->intervals - i) * sizeof *piece->interval);
	piece->intervals++;
	return 0;
}

static void close_intervals(struct check_piece *piece, size_t from, size_t to)
{
	memmove(piece->interval + from, piece->interval + to, (piece->intervals - to) * sizeof *piece->interval);
	piece->intervals -= to - from;
}

void check_leave(struct rh_check *check, struct check_range range, const struct check_content *content)
{
	struct check_piece *piece = range.piece;
	if (check->rc || (check->fault && check_failed(check)))
		return;
	size_t i = find_interval(piece, range.first);
	if (i < piece->intervals && piece->interval[i].first < range.first) { /* the range begins inside this one */
		if ((check->rc = open_interval(piece, i)))
			return;
		piece->interval[i].end = piece->interval[i + 1].first = range.first;
		i++;
	}
	size_t j = i;
	while (j < piece->intervals && piece->interval[j].end <= range.end)
		j++;
	if (j > i)
		close_intervals(piece, i, j);
	if (i < piece->intervals && piece->interval[i].first < range.end)
		piece->interval[i].first = range.end;
	if ((check->rc = open_interval(piece, i)))
		return;
	piece->interval[i] = (struct check_interval){range.first, range.end, *content};
	struct check_interval *at = &piece->interval[i];
	if (i + 1 < piece->intervals && at[1].first == at->end && is_alike(&at[1].content, content)) {
		at->end = at[1].end;
		close_intervals(piece, i + 1, i + 2);
		at = &piece->interval[i];
	}
	if (i && at[-1].end == at->first && is_alike(&at[-1].content, content)) {
		at[-1].end = at->end;
		close_intervals(piece, i, i + 1);
	}
}

void check_carry(struct rh_check *check, struct check_range from, struct check_range to)
{
	int64_t at = from.first;
	if (check_failed(check))
		return;
	while (at < from.end && !check_failed(check)) {
		size_t i = find_interval(from.piece, at);
		if (i == from.piece->intervals || from.piece->interval[i].first > at) {
			check_fault(check, -1, "copies what nobody has written, at byte %lld", (long long)at);
			return;
		}
		struct check_interval interval = from.piece->interval[i];
		int64_t end = interval.end < from.end ? interval.end : from.end, shift = to.first - from.first;
		interval.content.base += shift;
		check_leave(check, (struct check_range){to.piece, at + shift, end + shift}, &interval.content);
		at = end;
	}
}
