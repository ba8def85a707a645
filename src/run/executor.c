/* Creates an executor: its memory, its lowering, and each device's rooms; counts their bytes for the plan. */
#include "run/executor_internal.h"

#include "core/alloc.h"
#include "core/hooks.h"
#include "core/minmax.h"
#include "partition/rounds.h"

#include <stdlib.h>

enum {
	BULK_WAITS = 3,   /* of each slot: for its weights, its sums, and gradients of the slot before */
	HOST_WAITS = 2,   /* of each block: the host's, for its update */
	EVENT_BYTES = 112 /* a CPU device's event, and a pointer to it */
};

/* Elements of the embedding's sum of a tied table, or of its adapter, that are sent down at once. 0: it has a place in the store, or there
 * is no such sum. */
static int64_t fold_elements(const struct rh_executor_options *options)
{
	const struct rh_block *table = &options->model->block[0];
	for (int b = 0; b < options->model->blocks; b++)
		if (options->model->block[b].trainable && options->model->block[b].uses > 1)
			table = &options->model->block[b];
	if (!options->planned.train_micro_batches || !table->trainable || table->uses < 2 || table->shared || options->plan->crosses_rounds)
		return 0;
	return rh_min(table->elements, LOWER_FOLD_ELEMENTS);
}

static int64_t micro_memory_bytes(const struct rh_executor_options *options, const struct lower_limits *limits)
{
	int64_t staged = rh_align_up(options->plan->micro_bytes, RH_ALIGN) + rh_align_up(options->plan->result_bytes, RH_ALIGN);
	return 2 * rh_align_up(fold_elements(options) * 4, RH_ALIGN) + rh_bytes_times(staged, limits->micro_batches);
}

/* In host memory: buffers, before the activations that are saved and the table's rows. */
static int64_t boundary_bytes(const struct rh_executor_options *options, const struct lower_limits *limits)
{
	int64_t bytes = limits->boundaries.bytes;
	return options->plan->saved_bytes || options->planned.table_rows ? rh_align_up(bytes, RH_ALIGN) : bytes;
}

static int64_t saved_bytes(const struct rh_executor_options *options)
{
	int64_t bytes = options->plan->saved_bytes;
	return options->planned.table_rows ? rh_align_up(bytes, RH_ALIGN) : bytes;
}

/* All three. */
static int64_t large_bytes(const struct rh_executor_options *options, const struct lower_limits *limits)
{
	return boundary_bytes(options, limits) + saved_bytes(options) + run_table_steps(options) * run_table_stride(options);
}

/* Pages of weights on NVMe are sent as they are. */
static struct rh_transfer_limits piece_limits(const struct rh_executor_options *options)
{
	if (options->page_bytes)
		return (struct rh_transfer_limits){options->page_bytes, options->page_bytes};
	const char *text = getenv(RH_HOOK_PIECE_BYTES);
	int64_t bytes = text ? rh_align_up(strtol(text, NULL, 10), RH_ALIGN) : 0;
	return bytes > 0 ? (struct rh_transfer_limits){bytes, bytes} : (struct rh_transfer_limits){RH_TRANSFER_LEAST, RH_TRANSFER_MOST};
}

/* The limits that follow from the options. */
static int find_limits(const struct rh_executor_options *options, struct lower_limits *out)
{
	const struct rh_stage_plan *plan = options->plan;
	int64_t train = options->planned.train_micro_batches, infer = options->planned.infer_micro_batches,
	        spare = options->planned.spare_boundaries;
	*out = (struct lower_limits){.dispatch = {.model = options->model,
	                                          .plan = plan,
	                                          .schedule = options->planned.schedule,
	                                          .devices = options->planned.devices,
	                                          .train_micro_batches = train,
	                                          .train_round = options->planned.train_round,
	                                          .admission_limit = options->admission_limit,
	                                          .update_delay = options->planned.update_delay,
	                                          .chunks = options->planned.chunks,
	                                          .classes = options->planned.classes,
	                                          .boxes = options->boxes},
	                             .gaps = rh_max(rh_max(train, infer), 1),
	                             .pieces = piece_limits(options)};
	out->dispatch.infer_round = rh_boundary_infer_round(options->planned.infer_round, options->planned.spills_boundaries, spare);
	out->steps_in_flight = rh_dispatch_is_local(&out->dispatch) ? rh_boundary_steps_in_flight(&out->dispatch)
	                                                            : 1 + rh_executor_joins(&options->planned, options->model);
	out->micro_batches = rh_max(train * out->steps_in_flight, infer);
	/* one upload or download takes the room for weights at most */
	out->most_pieces = rh_transfer_pieces_most(out->pieces, rh_max(plan->weight_bytes, plan->rounded_bytes), 2 * options->model->blocks,
	                                           (int)out->gaps);
	const struct rh_boundary_run run = {
	        .dispatch = out->dispatch,
	        .infer_micro_batches = infer,
	        .spare = spare,
	        .spills = options->planned.spills_boundaries,
	        .record_bytes = rh_space_round(options->space, plan->boundary_bytes),
	        .record_unit = rh_space_round(options->space, 1),
	};
	return rh_boundary_needs(&run, &out->boundaries);
}

/* Upper bound on the waits of compute streams in the steps in flight. Each micro-batch of a slot waits for its integers. Forward, it waits
 * for a buffer of each boundary that is kept. Backward, it waits for a result buffer or the gradient from above, and for a buffer for the
 * gradient below. */
static int64_t all_waits(const struct rh_executor_options *options)
{
	const struct rh_stage_plan *plan = options->plan;
	int64_t count = options->planned.train_micro_batches, forward = plan->forward_stages, backward = plan->backward_stages;
	if (!count)
		return 0;
	int64_t rounds = !rh_schedule_has_rounds(options->planned.schedule) ? count : rh_round_count(count, options->planned.train_round);
	int64_t slots = rounds * (forward + 2 * backward); /* a split backward is two slots */
	int64_t kept = forward + backward;
	int64_t waits = slots * BULK_WAITS + count * (forward + kept + 4 * backward) +
	                options->planned.devices * (int64_t)HOST_WAITS * options->model->blocks;
	return (1 + rh_executor_joins(&options->planned, options->model)) *
	       rh_min(waits, (int64_t)options->planned.devices * RH_STALLS_MOST);
}

/* Layers of a plan's longest stage. */
static int64_t longest_stage(const struct rh_stage_plan *plan)
{
	int64_t longest = 1;
	for (int s = 0; s < plan->forward_stages; s++)
		longest = rh_max(longest, plan->forward[s].hi - plan->forward[s].lo);
	for (int s = 0; s < plan->backward_stages; s++)
		longest = rh_max(longest, plan->backward[s].hi - plan->backward[s].lo);
	return longest;
}

/* Upper bound on a slot's commands: those of its micro-batches, bulk copies, sums and updates. */
static int64_t slot_commands(const struct rh_executor_options *options, int64_t micro_batches)
{
	enum { OF_MICRO_BATCH = 10, OF_LAYER = 12 };
	const struct rh_stage_plan *plan = options->plan;
	int64_t saves = plan->saved_bytes > 0, layers = longest_stage(plan), copies = options->page_bytes ? 2 : 1;
	int64_t pieces = (copies * plan->weight_bytes + plan->rounded_bytes + 2 * plan->gradient_bytes) / piece_limits(options).most_bytes;
	return micro_batches * (OF_MICRO_BATCH + (2 + saves) * layers) + pieces + OF_LAYER * layers;
}

/* Bytes of the ring. A device has dispatch_slots slots in flight, or as many as make DISPATCH_LAUNCHES launches and a few more. A command
 * that is not over keeps its whole chunk in use, so room for twice as many is counted. */
static int64_t lane_bytes(const struct rh_executor_options *options, int64_t infer_round)
{
	enum { AHEAD = 3, LEAST_LAUNCHES = 12, WAITS = 4 };
	int64_t train = options->planned.train_micro_batches, infer = options->planned.infer_micro_batches;
	if (rh_schedule_has_rounds(options->planned.schedule))
		train = rh_min(train, options->planned.train_round);
	int64_t long_slot = rh_max(rh_max(train, rh_min(infer, infer_round)), 1);
	int64_t commands = rh_max(dispatch_slots(options) * slot_commands(options, 1),
	                          (AHEAD + DISPATCH_LAUNCHES / (LEAST_LAUNCHES * long_slot)) * slot_commands(options, long_slot));
	int64_t chunks = 2 * options->planned.devices * (commands / RING_CHUNK + 1) + options->model->blocks;
	return chunks * ((int64_t)sizeof(struct ring_chunk) + RING_CHUNK * WAITS * (int64_t)sizeof(uint32_t));
}

/* What the executor and the store note of each row of a table that travels by rows. */
static int64_t table_heap_bytes(const struct rh_executor_options *options)
{
	enum { NOTED = 4 + 4 + 1 + 1, ID = 4 };
	int64_t steps = run_table_steps(options), most = options->planned.table_rows;
	return most ? NOTED * options->model->block[rh_model_table(options->model)].tensor[0].rows + steps * ID * most : 0;
}

/* Allocations that grow with stages, micro-batches or devices. An array that grows takes half more than it needs. */
static int64_t heap_bytes(const struct rh_executor_options *options, const struct lower_limits *limits)
{
	enum { DEVICE_EVENTS = RH_STREAMS * RH_MARKS };
	int64_t layers = options->model->layers, blocks = options->model->blocks;
	int64_t events = 2 * blocks + 2 * RUN_FLIGHT + DEVICE_EVENTS;
	int64_t lanes = options->planned.devices * (RH_STREAMS + blocks) + 2 * blocks + 2,
	        boundaries = (options->plan->narrow_bytes ? 3 : 2) * (layers + 1) * limits->micro_batches;
	return table_heap_bytes(options) + all_waits(options) * ((int64_t)sizeof(struct rh_stall) + 2 * EVENT_BYTES) +
	       options->planned.devices * (events * EVENT_BYTES + layers * (int64_t)sizeof(struct rh_activations) + 3 * limits->gaps * 8) +
	       lane_bytes(options, limits->dispatch.infer_round) + lanes * 128 + boundaries * 8;
}

int rh_executor_bytes(const struct rh_executor_options *options, struct rh_executor_bytes *out)
{
	struct lower_limits limits;
	const struct rh_boundary_needs *needs = &limits.boundaries;
	int rc = find_limits(options, &limits);
	if (rc)
		return rc;
	int64_t staging = options->registers ? rh_host_round(rh_staging_bytes(limits.pieces.most_bytes)) : 0;
	*out = (struct rh_executor_bytes){.heap = heap_bytes(options, &limits),
	                                  .host = rh_host_round(large_bytes(options, &limits)) +
	                                          rh_host_round(micro_memory_bytes(options, &limits)) +
	                                          rh_host_round(LOWER_FRAMES * options->page_bytes) + staging,
	                                  .nvme = needs->nvme,
	                                  .nvme_step = needs->nvme_step};
	return 0;
}

int rh_executor_take_space(struct rh_executor_options *options)
{
	struct lower_limits limits;
	const struct rh_boundary_needs *needs = &limits.boundaries;
	int rc = find_limits(options, &limits);
	for (int size = 0, taken = 0, record; !rc && options->space && size < RH_RECORD_SIZES; size++)
		for (int i = 0; !rc && i < needs->size_records[size]; i++, taken++) {
			rc = rh_space_take(options->space, needs->record_bytes[size], "boundary activations", NULL,
			                   taken ? &record : &options->first_record);
			RH_ASSERT(rc || !taken || record == options->first_record + taken);
		}
	return rc;
}

/* Cuts a device's memory into rooms, exactly as the plan added them up. */
static void cut_memory(const struct rh_stage_plan *plan, void *base, struct run_device *out)
{
	struct rh_arena memory = {.base = base, .capacity = plan->device_bytes};
	struct rh_room_size size[RH_ROOMS] = {0};
	rh_rooms_of_device(plan, size);
	for (int r = 0; r < RH_ROOMS; r++) {
		int64_t bytes = rh_align_up(size[r].bytes, RH_ALIGN);
		out->room[r].base = rh_arena_take(&memory, size[r].count * bytes);
		out->room[r].stride = rh_room_is_whole((enum rh_room)r) ? 0 : bytes;
	}
	out->arena = (struct rh_arena){.base = out->room[RH_ROOM_ARENA].base, .capacity = plan->arena_bytes};
	RH_ASSERT(memory.used == plan->device_bytes);
}

static int device_create(struct rh_executor *executor, int index)
{
	const struct rh_executor_options *options = &executor->options;
	const struct rh_model *model = options->model;
	struct rh_device *device = options->device[index];
	struct run_device *out = &executor->device[index];
	int blocks = model->blocks;
	void *base;
	*out = (struct run_device){.device = device, .executor = executor, .index = index, .stage_weights = -1};
	int rc = device->ops->reserve(device, options->plan->device_bytes, &base);
	for (int i = 0; !rc && i < executor->flights; i++)
		rc = rh_stalls_create(device, &out->flight[i].stalls);
	if (rc)
		return rc;
	cut_memory(options->plan, base, out);
	struct rh_region *memory = &executor->memory;
	out->emit = (struct rh_emit){.model = model,
	                             .launch = issue_launch,
	                             .sink = out,
	                             .arena = &out->arena,
	                             .kept = &out->kept,
	                             .saved = &out->saved,
	                             .seed = options->planned.seed,
	                             .weights = rh_region_take(memory, blocks, sizeof *out->emit.weights),
	                             .gradient = rh_region_take(memory, blocks, sizeof *out->emit.gradient),
	                             .cache_rows = options->planned.cache_rows};
	if (options->plan->plain_bytes)
		out->emit.plain = rh_region_take(memory, blocks, sizeof *out->emit.plain);
	rc = memory->rc;
	for (int b = 0; !rc && b < blocks; b++) {
		int at = b * options->planned.devices + index;
		if (model->block[b].trainable)
			rc = device->ops->event_create(device, RH_EVENT_HOST, &executor->downloaded[at]);
		if (!rc && model->block[b].trainable && options->planned.stale)
			rc = device->ops->event_create(device, RH_EVENT_HOST, &executor->uploaded[at]);
	}
	return rc ? rc : rh_stage_state_create(model, &out->state);
}

/* Reserves memory that is large, and that a simulated run never touches. */
static int reserve(const struct rh_executor_options *options, int64_t bytes, const char *what, struct rh_arena *out)
{
	if (rh_store_options(options->store)->addresses_only)
		return rh_host_reserve_addresses(bytes, what, out);
	return rh_host_reserve_near(options->device, options->planned.devices, bytes, what, out);
}

static int host_create(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	const struct rh_stage_plan *plan = options->plan;
	const struct lower_limits *limits = &executor->lowering.limits;
	struct rh_region *memory = &executor->memory;
	int64_t blocks = options->model->blocks;
	int rc = reserve(options, large_bytes(options, limits), "boundary activations", &executor->boundary_memory);
	if (!rc)
		rc = rh_host_reserve_near(options->device, options->planned.devices, micro_memory_bytes(options, limits),
		                          "staging of micro-batches", &executor->micro_memory);
	if (!rc)
		rc = reserve(options, LOWER_FRAMES * options->page_bytes, "pages of weights on NVMe", &executor->frame_memory);
	if (rc)
		return rc;
	executor->book = rh_region_take(memory, limits->steps_in_flight, sizeof *executor->book);
	executor->offset = rh_region_take(memory, 2 * blocks, sizeof *executor->offset);
	executor->version = rh_region_take(memory, blocks, sizeof *executor->version);
	executor->arriving = rh_region_take(memory, blocks, sizeof *executor->arriving);
	if (memory->rc)
		return memory->rc;
	for (int64_t i = 0; i < limits->steps_in_flight; i++)
		executor->book[i].first = i * options->planned.train_micro_batches;
	int64_t fold = rh_align_up(fold_elements(options) * 4, RH_ALIGN), micro = rh_align_up(plan->micro_bytes, RH_ALIGN);
	int64_t staged = micro + rh_align_up(plan->result_bytes, RH_ALIGN);
	char *at = executor->micro_memory.base;
	executor->room[RH_ROOM_HOST_BOUNDARY] = (struct run_room){executor->boundary_memory.base, limits->boundaries.bytes_each};
	executor->room[RH_ROOM_HOST_SAVED] =
	        (struct run_room){executor->boundary_memory.base + boundary_bytes(options, limits), plan->saved_bytes};
	executor->room[RH_ROOM_HOST_ROWS] = (struct run_room){
	        executor->boundary_memory.base + boundary_bytes(options, limits) + saved_bytes(options), run_table_stride(options)};
	executor->room[RH_ROOM_HOST_FRAME] = (struct run_room){executor->frame_memory.base, options->page_bytes};
	executor->room[RH_ROOM_HOST_FOLD] = (struct run_room){at, fold};
	executor->room[RH_ROOM_HOST_MICRO] = (struct run_room){at + 2 * fold, staged};
	executor->room[RH_ROOM_HOST_RESULT] = (struct run_room){at + 2 * fold + micro, staged};
	return 0;
}

static int copies_create(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	struct rh_host_copies_options copies = {
	        .device = options->device,
	        .devices = options->planned.devices,
	        .has_staging = options->registers,
	        .piece_bytes = executor->lowering.limits.pieces.most_bytes,
	        .area = {[RH_HOST_BOUNDARIES] = executor->boundary_memory,
	                 [RH_HOST_MICRO] = executor->micro_memory,
	                 [RH_HOST_FRAMES] = executor->frame_memory},
	        .scratch = {.base = executor->device[0].room[RH_ROOM_WEIGHTS].base, .capacity = options->plan->weight_bytes}};
	struct rh_arena *store = &copies.area[RH_HOST_STORE];
	store->base = rh_store_memory(options->store, &store->capacity);
	return rh_host_copies_create(&copies, &executor->copies);
}

int rh_executor_create(const struct rh_executor_options *options, struct rh_executor **out)
{
	struct rh_executor *executor = rh_alloc(1, sizeof *executor);
	if (!executor)
		return -ENOMEM;
	int events = options->model->blocks * options->planned.devices;
	struct lower_limits limits;
	executor->options = *options;
	executor->flights = 1 + rh_executor_joins(&options->planned, options->model);
	executor->device = rh_region_take(&executor->memory, options->planned.devices, sizeof *executor->device);
	executor->uploaded = rh_region_take(&executor->memory, events, sizeof(struct rh_event *));
	executor->downloaded = rh_region_take(&executor->memory, events, sizeof(struct rh_event *));
	int rc = executor->memory.rc;
	for (int d = 0; !rc && d < options->planned.devices; d++)
		rc = device_create(executor, d);
	if (!rc)
		rc = find_limits(options, &limits);
	if (!rc)
		rc = lower_create(&executor->options, &limits, &executor->lowering);
	if (!rc)
		rc = host_create(executor);
	if (!rc)
		rc = run_table_create(executor);
	if (!rc)
		rc = dispatcher_create(executor);
	if (!rc)
		rc = copies_create(executor);
	if (!rc && options->updater && rh_dispatch_is_local(&executor->lowering.limits.dispatch))
		rc = rh_updater_by_block(options->updater, executor->lowering.limits.steps_in_flight);
	if (rc)
		rh_executor_destroy(executor);
	else
		*out = executor;
	return rc;
}

int64_t rh_executor_drift_bound(const struct rh_executor *executor)
{
	return rh_dispatch_drift_bound(&executor->lowering.limits.dispatch, 0);
}

void rh_executor_destroy(struct rh_executor *executor)
{
	if (!executor)
		return;
	RH_ASSERT(executor->begun == executor->finished);
	run_rest(executor);
	rh_host_copies_destroy(&executor->copies);
	run_spans_drop(executor);
	for (int i = 0; executor->downloaded && i < executor->options.model->blocks * executor->options.planned.devices; i++) {
		rh_event_free(executor->uploaded[i]);
		rh_event_free(executor->downloaded[i]);
	}
	for (int d = 0; executor->device && d < executor->options.planned.devices; d++) {
		for (int i = 0; i < RUN_FLIGHT; i++)
			rh_stalls_destroy(&executor->device[d].flight[i].stalls);
		rh_stage_state_free(&executor->device[d].state);
	}
	dispatcher_destroy(executor); /* drives first, which use all that follows */
	rh_host_release(&executor->frame_memory);
	lower_destroy(&executor->lowering);
	rh_host_release(&executor->boundary_memory);
	rh_host_release(&executor->micro_memory);
	rh_free(executor->span);
	rh_region_free(&executor->memory);
	rh_free(executor);
}
