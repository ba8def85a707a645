/* The embedding's table by rows. A training step's tokens name some of its rows: these are numbered in the order of their first token, the
 * micro-batches' ids become these numbers, and a device gets and sums no other rows. What is added up, and in which order, stays the same,
 * as do the bits. A row travels through HOST_ROWS: up as the table has it when its first copy is issued, and down as a gradient, which the
 * optimizer's take spreads over the table's (rh_store_rows_arrive). */
#include "run/executor_internal.h"

#include "core/minmax.h"

#include <string.h>

int64_t run_table_stride(const struct rh_executor_options *options)
{
	const struct rh_block *block = &options->model->block[rh_model_table(options->model)];
	if (!options->planned.table_rows)
		return 0;
	return rh_align_up(rh_dtype_bytes(options->model->dtype, options->planned.table_rows * block->tensor[0].cols), RH_ALIGN);
}

/* Of stale updates a step's rows go up while the gradient of the step before is still to be taken. */
int run_table_steps(const struct rh_executor_options *options)
{
	return options->planned.table_rows ? 1 + options->planned.stale : 0;
}

int run_table_create(struct rh_executor *executor)
{
	const struct rh_executor_options *options = &executor->options;
	struct run_table *table = &executor->table;
	table->block = rh_model_table(options->model);
	if (!options->planned.table_rows)
		return 0;
	const struct rh_tensor *tensor = &options->model->block[table->block].tensor[0];
	table->cols = tensor->cols;
	table->rows = tensor->rows;
	table->row_bytes = rh_dtype_bytes(options->model->dtype, tensor->cols);
	table->number = rh_region_take(&executor->memory, tensor->rows, sizeof *table->number);
	for (int i = 0; i < run_table_steps(options); i++)
		table->step[i].id = rh_region_take(&executor->memory, options->planned.table_rows, sizeof *table->step[i].id);
	if (executor->memory.rc || !options->model->block[table->block].trainable)
		return executor->memory.rc;
	int rc = rh_store_by_rows(options->store, table->block);
	if (!rc && options->updater && !options->planned.stale && rh_optimizer_has_passes(options->store))
		rh_updater_by_rows(options->updater, table->block);
	return rc;
}

/* Numbers the rows that the ids name and that have no number yet, and puts the numbers in place of the ids. */
static void number_rows(struct run_table *table, struct run_table_step *step, int64_t most, int32_t *ids, int64_t count)
{
	for (int64_t t = 0; t < count; t++) {
		int32_t row = ids[t];
		RH_ASSERT(row >= 0 && row < table->rows);
		if (!table->number[row]) {
			RH_ASSERT(step->count < most);
			step->id[step->count++] = row;
			table->number[row] = rh_int32(step->count);
		}
		ids[t] = table->number[row] - 1;
	}
}

struct lower_table run_table_begin(struct rh_executor *executor, const struct run_book *book)
{
	const struct rh_executor_options *options = &executor->options;
	struct run_table *table = &executor->table;
	int64_t most = options->planned.table_rows, tokens = 0;
	if (!most || !executor->trains)
		return (struct lower_table){0};
	int index = (int)(table->begun++ % run_table_steps(options));
	struct run_table_step *step = &table->step[index];
	for (int i = 0; i < RUN_FLIGHT; i++) /* a step may be run once more */
		table->step[i].count *= table->step[i].number != executor->step;
	*step = (struct run_table_step){.id = step->id, .number = executor->step};
	for (int64_t m = book->first; m < book->first + book->count; m++) {
		const struct rh_micro_shape *shape = &executor->lowering.batch[m].shape;
		char *micro = run_piece(executor->room, RH_ROOM_HOST_MICRO, m);
		tokens += shape->tokens;
		if (!rh_store_options(options->store)->addresses_only)
			number_rows(table, step, most, (int32_t *)(void *)(micro + rh_micro_layout(shape).ids), shape->tokens);
	}
	for (int64_t i = 0; i < step->count; i++)
		table->number[step->id[i]] = 0;
	if (rh_store_options(options->store)->addresses_only) /* tokens have no ids there: each may name a row of its own */
		step->count = rh_min(most, tokens);
	if (options->updater)
		rh_updater_rows(options->updater, table->block, step->id, step->count);
	return (struct lower_table){.block = table->block, .elements = step->count * table->cols, .index = index};
}

int run_table_index(const struct rh_executor *executor, const struct rh_command *command)
{
	const struct run_table *table = &executor->table;
	for (int i = 0; command->block == table->block && i < RUN_FLIGHT; i++)
		if (table->step[i].count && table->step[i].number == command->step)
			return i;
	return -1;
}

/* Copies rows from the table to HOST_ROWS, up to this byte there. */
static void gather(const struct rh_executor *executor, struct run_table_step *step, char *to, int64_t end)
{
	const struct run_table *table = &executor->table;
	const char *from = rh_store_weights(executor->options.store, table->block);
	int64_t bytes = table->row_bytes;
	for (; step->gathered * bytes < end; step->gathered++)
		memcpy(to + step->gathered * bytes, from + step->id[step->gathered] * bytes, (size_t)bytes);
}

int run_table_up(struct rh_executor *executor, struct rh_device *device, const struct rh_command *command, char *to)
{
	int index = run_table_index(executor, command);
	struct run_table_step *step = &executor->table.step[index];
	char *rows = run_piece(executor->room, RH_ROOM_HOST_ROWS, index);
	int64_t first = command->source.first, bytes = command->source.bytes;
	int rc = 0;
	for (int64_t done = 0, run; !rc && done < bytes; done += run) { /* the device copies while the host gathers what is next */
		run = rh_min(bytes - done, executor->copies.piece_bytes);
		if (!rh_store_options(executor->options.store)->addresses_only)
			gather(executor, step, rows, first + done + run);
		rc = rh_host_copy_up(&executor->copies, device, RH_STREAM_WEIGHTS, to + done, rows + first + done, run);
	}
	return rc;
}

void run_table_arrives(struct rh_executor *executor, const struct rh_command *command)
{
	const struct rh_place *from = &command->source;
	struct rh_store *store = executor->options.store;
	if (from->room == RH_ROOM_HOST_ROWS && !rh_store_options(store)->addresses_only)
		rh_store_rows_arrive(store, command->block, executor->table.step[from->number].id, from->bytes / executor->table.row_bytes,
		                     run_piece(executor->room, RH_ROOM_HOST_ROWS, from->number));
}
