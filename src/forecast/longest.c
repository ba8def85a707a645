#include "forecast/longest.h"

#include "core/minmax.h"
#include "forecast/outlook_internal.h"
#include "session/chunks.h"

#include <string.h>

int trial_open(const struct trial *base, const struct rh_config *config, struct rh_session *session, struct trial *out)
{
	*out = *base;
	out->session = session;
	return rh_session_simulate(config, base->machine, session);
}

void trial_close(struct trial *trial)
{
	rh_session_close(trial->session);
	rh_error_clear();
}

const struct rh_forecast_input *trial_rows(const struct rh_config *config, const struct trial *trial)
{
	const struct rh_config *of = trial->of;
	int same = trial->input && trial->input->work.chunks < 2 && config->sequence_chunk == of->sequence_chunk &&
	           config->max_length == of->max_length && config->per_device_train_batch_size == of->per_device_train_batch_size;
	return same ? trial->input : NULL;
}

int trial_input(const struct rh_config *config, const struct trial *trial, struct rh_forecast_input *out)
{
	struct rh_session session;
	if (trial->input->synthetic)
		return rh_forecast_input_of_machine(config, trial->machine, trial->input, out);
	*out = (struct rh_forecast_input){0};
	int rc = rh_session_simulate(config, trial->machine, &session);
	if (rc)
		return rc;
	rc = rh_forecast_input_make(config, &session, trial->input->steps, out);
	rh_session_close(&session);
	if (rc)
		rh_forecast_input_free(out);
	return rc;
}

/* By a plan alone; `stages`: also those that are chosen by time. */
static int plan_with(const struct rh_config *config, const struct trial *trial, enum rh_run_stages stages, struct trial_result *out)
{
	struct rh_session *session = trial->session;
	const struct rh_forecast_input *rows = trial_rows(config, trial);
	struct rh_forecast_input input = {0};
	RH_ASSERT(session->config == config);
	int rc = rh_forecast_input_synthetic(config, 0, &input);
	if (rc)
		return rc;
	rh_forecast_input_suit(session->model_config, &input);
	if (rows)
		input.work = rows->work;
	else if (trial->input)
		rh_forecast_input_keep(trial->input, config, &input);
	rh_run_plan_free(&session->plan);
	rc = rh_chunks_choose(session, NULL, RH_CHUNK_UNKNOWN, &input.work);
	if (!rc)
		rc = rh_session_plan(session, &input.work, stages);
	*out = (struct trial_result){session->plan.bytes, input.work.chunks > 1 ? input.work.chunk : 0};
	rh_forecast_input_free(&input);
	return rc;
}

int trial_fits_with(const struct rh_config *config, const struct trial *trial, enum rh_run_stages stages, struct trial_result *out)
{
	struct rh_session session;
	struct trial own = *trial;
	int opens = !trial->session, rc = 0;
	*out = (struct trial_result){0};
	if (trial->unwanted && atomic_load(trial->unwanted))
		return 0;
	if (opens)
		rc = trial_open(trial, config, &session, &own);
	if (!rc)
		rc = plan_with(config, &own, stages, out);
	if (opens)
		trial_close(&own);
	rh_error_clear();
	return !rc;
}

int trial_fits(const struct rh_config *config, const struct trial *trial)
{
	struct trial_result result;
	return trial_fits_with(config, trial, RH_STAGES_PACKED, &result);
}

static int64_t bisect(const struct rh_config *config, int64_t *key, int64_t low, int64_t high, const struct trial *trial)
{
	while (high - low > (low >> 6) + 1) {
		*key = low + (high - low) / 2;
		if (trial_fits(config, trial))
			low = *key;
		else
			high = *key;
	}
	return low;
}

/* Rows in more chunks may need less memory than shorter rows in fewer: a little further on it may fit again. */
static int64_t look_further(const struct rh_config *config, int64_t *key, int64_t low, int64_t most, const struct trial *trial)
{
	enum { STEPS = 4, PARTS = 32 };
	for (int step = 1; low >= PARTS && step <= STEPS && low + step * low / PARTS <= most; step++) {
		*key = low + step * low / PARTS;
		if (!trial_fits(config, trial))
			continue;
		low = bisect(config, key, *key, *key + low / PARTS, trial);
		step = 0;
	}
	return low;
}

int64_t trial_largest(const struct rh_config *config, int64_t *key, int64_t first, int64_t most, const struct trial *trial)
{
	int64_t low = 0, high = first;
	high = high < most ? high : most;
	for (; high <= most; high = high * 4 > most && high < most ? most : high * 4) {
		*key = high;
		if (!trial_fits(config, trial))
			break;
		low = high;
		if (high == most)
			return most;
	}
	low = bisect(config, key, low, high, trial);
	return look_further(config, key, low, most, trial);
}

/* The budget without which a row of this length would fit. */
static const char *find_budget(struct rh_config *config, int64_t length, const struct rh_session_machine *machine,
                               const struct trial *opened)
{
	const struct rh_config given = *config;
	struct rh_session_machine ample = *machine;
	const char *budget = "max_vram";
	config->max_length = length;
	config->max_nvme = INT64_MAX / 4;
	config->max_nvme_writes = 0;
	if (given.spill && trial_fits(config, opened)) {
		budget = "max_nvme";
	} else {
		ample.ram_bytes = 0;
		opened->session->machine = &ample;
		config->max_ram = 0;
		budget = trial_fits(config, opened) ? "max_ram" : budget;
		opened->session->machine = machine;
	}
	*config = given;
	return budget;
}

int rh_longest_find(const struct rh_config *config, const struct rh_session_machine *machine, int64_t rows, int64_t most,
                    const _Atomic int *unwanted, struct rh_longest *out)
{
	enum { ALL = 1 << 20 }; /* rows of a step are in one round, however many chunks they have */
	const struct trial trial = {.machine = machine, .unwanted = unwanted};
	struct rh_config own = *config;
	struct rh_session session;
	struct trial opened;
	struct trial_result result;
	own.per_device_train_batch_size = 1;
	own.gradient_accumulation_steps = rows;
	own.round_micro_batches = outlook_is_roundpipe(config) ? ALL : 0;
	*out = (struct rh_longest){0};
	int rc = trial_open(&trial, &own, &session, &opened);
	if (!rc) {
		out->tokens = trial_largest(&own, &own.max_length, rh_min(config->max_length, most), most, &opened);
		own.max_length = out->tokens;
		if (out->tokens && trial_fits_with(&own, &opened, RH_STAGES_PACKED, &result))
			out->chunk = result.chunk;
		if (out->tokens < most && !(unwanted && atomic_load(unwanted)))
			out->budget = find_budget(&own, out->tokens + (out->tokens >> 5) + 2, machine, &opened);
	}
	trial_close(&opened); /* where it could not be opened, nothing of this configuration fits */
	return rc == -ENOMEM ? rc : 0;
}

static int find_longest(void *context)
{
	struct outlook_longest *longest = context;
	return rh_longest_find(longest->config, longest->machine, longest->rows, RH_LONGEST_MOST, &longest->unwanted, &longest->found);
}

void outlook_longest_begin(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine, int64_t rows,
                           struct outlook_longest *out)
{
	out->rows = rows;
	out->config = config;
	out->machine = machine;
	atomic_init(&out->unwanted, 0);
	rh_task_begin(tasks, &out->task, find_longest, out);
}
