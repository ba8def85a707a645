#include "train/stress_trial.h"

#include "core/alloc.h"
#include "core/clock.h"
#include "core/minmax.h"
#include "core/philox.h"
#include "machine/machine.h"
#include "session/chunks.h"
#include "session/session.h"
#include "session/update.h"

#include <math.h>
#include <stdio.h>

/* One document of random tokens, in chunks. */
struct row {
	int32_t *ids, *position, *head_row, *numbers; /* numbers: of the chunks' documents and head rows */
	float *loss;
	struct rh_micro_batch *micro; /* (places) */
	int places, chunks;
	int64_t tokens; /* 0: none was made */
};

static void row_free(struct row *row)
{
	rh_free(row->ids);
	rh_free(row->position);
	rh_free(row->head_row);
	rh_free(row->numbers);
	rh_free(row->loss);
	rh_free(row->micro);
	*row = (struct row){0};
}

static int row_reserve(int64_t tokens, int places, struct row *out)
{
	size_t count = (size_t)tokens + 1;
	*out = (struct row){.ids = rh_alloc(count, sizeof *out->ids),
	                    .position = rh_alloc(count, sizeof *out->position),
	                    .head_row = rh_alloc(count, sizeof *out->head_row),
	                    .numbers = rh_alloc(count + 4 * (size_t)places, sizeof *out->numbers),
	                    .loss = rh_alloc(count, sizeof *out->loss),
	                    .micro = rh_alloc((size_t)places, sizeof *out->micro),
	                    .places = places};
	return out->ids && out->position && out->head_row && out->numbers && out->loss && out->micro ? 0 : -ENOMEM;
}

/* Cuts where a row of max_length is cut: each chunk is then as large as was planned for it, which one of a shorter row need not be.
 * Returns how many chunks `tokens` hold. */
static int64_t cut_within(const struct rh_session *session, int64_t tokens, int64_t *cut)
{
	const struct rh_chunk_rule rule = rh_chunk_rule_of(session->work.chunk, session->model);
	const int32_t start[2] = {0, (int32_t)session->config->max_length};
	int64_t count = rh_chunks_cut(&rule, start, 1, cut);
	while (count > 0 && cut[count] > tokens)
		count--;
	return count;
}

/* A row of at most so many tokens; none where they are fewer than the first chunk's. */
static int row_make(const struct rh_session *session, int64_t most, struct row *row)
{
	int64_t cut[RH_CHUNKS_MOST + 1] = {0, most}, vocabulary = session->model_config->vocab_size;
	int64_t count = row->places > 1 ? cut_within(session, most, cut) : 1, tokens = count > 0 ? cut[count] : 0;
	int32_t start[2] = {0, (int32_t)tokens}, *numbers = row->numbers;
	float *loss = row->loss;
	if (count <= 0)
		return (int)count;
	for (int64_t i = 0; i <= tokens; i++) {
		uint32_t drawn = rh_philox(session->config->seed, (uint32_t)i, 0, 0, 0).word[0];
		row->ids[i] = (int32_t)(drawn % (uint64_t)vocabulary);
		row->position[i] = row->head_row[i] = (int32_t)i;
	}
	const struct rh_micro_shape shape = {.tokens = tokens, .documents = 1, .longest = tokens, .head_rows = tokens - 1};
	const struct rh_micro_batch whole = {.shape = shape,
	                                     .ids = row->ids,
	                                     .position = row->position,
	                                     .start_q = start,
	                                     .start_k = start,
	                                     .head_row = row->head_row,
	                                     .target = row->ids + 1};
	row->tokens = tokens;
	row->chunks = (int)count;
	for (int c = 0; c < row->places; c++) {
		struct rh_micro_shape of_chunk = rh_chunk_of(&whole, cut, c, (int)count, &(struct rh_chunk_room){0}).shape;
		const struct rh_chunk_room room = {.start_q = numbers,
		                                   .start_k = numbers + of_chunk.documents + 1,
		                                   .head_row = numbers + 2 * (of_chunk.documents + 1)};
		row->micro[c] = rh_chunk_of(&whole, cut, c, (int)count, &room);
		if (row->places == 1)
			row->micro[c].shape.chunks = 0, row->micro[c].shape.text_longest = 0;
		row->micro[c].loss = loss;
		loss += of_chunk.head_rows;
		numbers += 2 * (of_chunk.documents + 1) + of_chunk.head_rows;
	}
	return 0;
}

static int reserve(const struct rh_config *config, struct rh_session *session)
{
	int64_t tokens = config->max_length;
	struct rh_workload work = {.train = {.tokens = tokens, .documents = 1, .longest = tokens, .head_rows = tokens - 1},
	                           .train_micro_batches = 1,
	                           .train_steps = 1,
	                           .run_steps = 1};
	int rc = rh_session_open(config, RH_SESSION_TRAINS, session);
	if (!rc)
		rc = rh_session_check_speaks(session);
	if (!rc)
		rc = rh_chunks_choose(session, NULL, RH_CHUNK_UNKNOWN, &work);
	return rc ? rc : rh_session_start(session, &work);
}

/* Forward, backward and update. */
static int train(struct rh_session *session, const struct row *row, double *norm)
{
	const struct rh_update update = rh_update_of(session->config, 0, session->config->learning_rate, 1);
	rh_updater_open(session->updater, &update, session->config->max_grad_norm);
	int rc = rh_executor_begin(session->executor, row->micro, row->places, 0, 1.0f / (float)(row->tokens - 1));
	if (!rc)
		rc = rh_executor_finish(session->executor);
	if (!rc)
		rc = rh_updater_norm(session->updater, norm);
	return rc ? rh_executor_abandon(session->executor, rc) : rh_updater_finish(session->updater);
}

static void measure(const struct rh_session *session, struct rh_stress_tried *out)
{
	struct rh_device_memory memory;
	for (int d = 0; d < session->devices.count; d++) {
		session->devices.device[d]->ops->memory(session->devices.device[d], &memory);
		out->device_peak_bytes = rh_max(out->device_peak_bytes, memory.peak_bytes);
	}
	const struct rh_run_bytes *bytes = &session->plan.bytes;
	out->ram_planned_bytes = bytes->total - bytes->checkpoints - bytes->tokenizer;
	out->device_planned_bytes = session->plan.bytes.device;
	out->ram_peak_bytes = rh_machine_peak_ram();
}

/* Time grows with the length, at least in proportion. */
static int64_t tokens_in(double seconds, double predicted_s, int64_t tokens)
{
	static const double share = 0.5; /* of the time left, which predictions are kept to */
	return predicted_s <= share * seconds ? tokens : (int64_t)((double)tokens * share * seconds / predicted_s);
}

void rh_stress_try(const struct rh_config *config, double seconds, double predicted_s,
                   void (*reserved)(void *context, const struct rh_stress_tried *so_far), void *context, struct rh_stress_tried *out)
{
	enum { FEWEST = 64 };
	struct rh_session session = {0};
	struct row row = {0};
	double began = rh_clock_seconds();
	*out = (struct rh_stress_tried){0};
	int rc = reserve(config, &session);
	if (!rc) {
		out->reserved_tokens = config->max_length;
		rc = row_reserve(config->max_length, rh_chunks_of(&session.work), &row);
		measure(&session, out);
	}
	if (!rc && reserved)
		reserved(context, out);
	int64_t tokens = rc ? 0 : tokens_in(seconds - (rh_clock_seconds() - began), predicted_s, config->max_length);
	if (!rc && tokens >= FEWEST)
		rc = row_make(&session, tokens, &row);
	if (!rc && row.tokens) {
		double started = rh_clock_seconds();
		rc = train(&session, &row, &out->norm);
		if (!rc && !isfinite(out->norm))
			rc = rh_fail(-EINVAL, "the gradient of the step is not finite");
		out->step_seconds = rh_clock_seconds() - started;
		out->step_tokens = rc ? 0 : row.tokens;
		out->chunks = row.chunks;
		measure(&session, out);
	}
	if (rc)
		snprintf(out->why, sizeof out->why, "%s", rh_error(rc));
	rh_session_close(&session);
	row_free(&row);
}
