/* What comes before what, as the executor's events, the host's waits and the updater's tokens have it. */
#include "run/record_internal.h"

#include "core/alloc.h"

#include <string.h>

void record_join(const struct rh_recorder *recorder, int64_t *to, const int64_t *from)
{
	for (int l = 0; l < record_lanes(recorder); l++)
		to[l] = from[l] > to[l] ? from[l] : to[l];
}

/* Of what is known, the latest command that the row does not have yet; -1: it has all. */
static int64_t latest_unknown(const struct rh_recorder *recorder, const int64_t *known, const int64_t *row)
{
	int64_t latest = -1;
	for (int l = 0; l < record_lanes(recorder); l++)
		if (known[l] > row[l] && known[l] > latest)
			latest = known[l];
	return latest;
}

void record_add(struct rh_recorder *recorder, struct rh_command *command)
{
	size_t lanes = (size_t)record_lanes(recorder), rows = (size_t)recorder->lanes.commands;
	int64_t *known = record_known(recorder, command->lane), before = known[command->lane], wait;
	struct rh_command *added;
	if (recorder->rc)
		return;
	if (rows == recorder->row_capacity) {
		size_t capacity = recorder->row_capacity * lanes;
		recorder->rc = rh_grow(&recorder->row, &capacity, (2 * rows + 64) * lanes, sizeof *recorder->row);
		recorder->row_capacity = capacity / lanes;
	}
	if (!recorder->rc)
		recorder->rc = rh_lanes_add(&recorder->lanes, command, &added);
	if (recorder->rc)
		return;
	int64_t *row = recorder->row + rows * lanes;
	for (size_t l = 0; l < lanes; l++)
		row[l] = -1;
	if (before >= 0)
		memcpy(row, recorder->row + (size_t)before * lanes, lanes * sizeof *row);
	while (!recorder->rc && (wait = latest_unknown(recorder, known, row)) >= 0) {
		recorder->rc = rh_lanes_wait(&recorder->lanes, wait, RH_WAIT_NEEDS);
		record_join(recorder, row, recorder->row + (size_t)wait * lanes);
	}
	row[command->lane] = added->position;
	record_join(recorder, known, row);
}

/* Where a thing's stamp is, or would be. */
static size_t find_stamp(const struct rh_recorder *recorder, const void *of)
{
	size_t mask = recorder->stamp_capacity - 1, i = ((uintptr_t)of * 0x9E3779B97F4A7C15u >> 20) & mask;
	while (recorder->stamp[i].of && recorder->stamp[i].of != of)
		i = (i + 1) & mask;
	return i;
}

static int grow_stamps(struct rh_recorder *recorder)
{
	struct record_stamp *old = recorder->stamp;
	size_t had = recorder->stamp_capacity;
	recorder->stamp = rh_alloc(had ? 2 * had : 1024, sizeof *recorder->stamp);
	if (!recorder->stamp) {
		recorder->stamp = old;
		return -ENOMEM;
	}
	recorder->stamp_capacity = had ? 2 * had : 1024;
	for (size_t i = 0; i < had; i++)
		if (old[i].of)
			recorder->stamp[find_stamp(recorder, old[i].of)] = old[i];
	rh_free(old);
	return 0;
}

int64_t *record_stamp(struct rh_recorder *recorder, const void *of, int make)
{
	size_t lanes = (size_t)record_lanes(recorder), i;
	if (2 * recorder->stamps >= recorder->stamp_capacity && !recorder->rc)
		recorder->rc = grow_stamps(recorder);
	if (recorder->rc)
		return NULL;
	i = find_stamp(recorder, of);
	if (recorder->stamp[i].of || !make)
		return recorder->stamp[i].known;
	int64_t *known = rh_alloc(lanes, sizeof *known);
	if (!known) {
		recorder->rc = -ENOMEM;
		return NULL;
	}
	for (size_t l = 0; l < lanes; l++)
		known[l] = -1;
	recorder->stamp[i] = (struct record_stamp){of, known};
	recorder->stamps++;
	return known;
}

/* ---- the updater ---- */

/* Tokens of the updater's are small numbers, events addresses: neither is the other. */
static const void *token_key(int64_t token)
{
	return (const void *)(uintptr_t)(token + 1);
}

static void add_update(struct rh_recorder *recorder, enum rh_command_kind kind, int block, int64_t step)
{
	record_add(recorder,
	           &(struct rh_command){.kind = kind, .lane = record_optimizer(recorder), .block = block, .step = step, .micro_batch = -1});
}

/* What was waited for has been heard: a gradient is there. */
static void end_arrival(struct rh_recorder *recorder)
{
	int b = recorder->arriving, trainable = 0;
	const struct rh_model *model = recorder->executor->options.model;
	if (b < 0)
		return;
	recorder->arriving = -1;
	add_update(recorder, RH_COMMAND_GRADIENT_ARRIVED, b, recorder->arrivals[b]++);
	for (int i = 0; i < model->blocks; i++)
		trainable += model->block[i].trainable;
	if (++recorder->all_arrived % trainable == 0)
		add_update(recorder, RH_COMMAND_NORM, -1, recorder->all_arrived / trainable - 1);
}

/* Tokens are three a block (offload/updater_internal.h: weights ready, gradient taken, announced), and two more. */
enum { TOKEN_READY, TOKEN_TAKEN, TOKEN_ANNOUNCED, TOKENS };

static void hear(struct rh_recorder *recorder, const struct rh_order_event *event)
{
	int is_updater = event->lane == record_optimizer(recorder), blocks = recorder->executor->options.model->blocks;
	int64_t *known = is_updater ? record_known(recorder, event->lane) : record_host(recorder), *stamp;
	int is_block = event->kind >= RH_ORDER_SIGNAL && event->what < TOKENS * blocks, b = is_block ? (int)event->what / TOKENS : -1;
	if (event->kind == RH_ORDER_WAIT) {
		if (is_updater && is_block && event->what % TOKENS == TOKEN_ANNOUNCED) {
			end_arrival(recorder);
			recorder->arriving = b;
		}
		if ((stamp = record_stamp(recorder, token_key(event->what), 0)))
			record_join(recorder, known, stamp);
		return;
	}
	if (is_updater)
		end_arrival(recorder);
	if (event->kind == RH_ORDER_TAKE)
		recorder->taking[event->what] = event->step;
	else if (event->kind == RH_ORDER_PUBLISH)
		add_update(recorder, RH_COMMAND_WEIGHTS_READY, (int)event->what, event->step);
	if (event->kind != RH_ORDER_SIGNAL)
		return;
	if (is_updater && is_block && event->what % TOKENS == TOKEN_TAKEN)
		add_update(recorder, RH_COMMAND_GRADIENT_TAKEN, b, recorder->taking[b]);
	if ((stamp = record_stamp(recorder, token_key(event->what), 1)))
		memcpy(stamp, known, (size_t)record_lanes(recorder) * sizeof *stamp);
}

void record_updater(struct rh_recorder *recorder)
{
	int64_t count, forgotten;
	if (!recorder->log)
		return;
	const struct rh_order_event *event = rh_order_log_events(recorder->log, &count, &forgotten);
	if (forgotten && !recorder->rc)
		recorder->rc = rh_fail(-ENOMEM, "these steps are too long to be recorded");
	while (!recorder->rc && recorder->heard < count)
		hear(recorder, &event[recorder->heard++]);
}
