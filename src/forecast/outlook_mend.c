/* Finds the changes after each of which a run would fit, and how fast it would then be. */
#include "forecast/outlook_internal.h"

#include "core/alloc.h"
#include "core/log.h"
#include "core/minmax.h"
#include "forecast/judge.h"
#include "session/chunks.h"

#include <stdio.h>
#include <string.h>

enum { FIRST_TRIED = 256, SHORT = 2048 /* tokens */ };

static const double gib = 1 << 30;

/* A change, and its simulation. */
struct mend_try {
	struct rh_task task;
	struct rh_config config; /* with the change */
	const struct trial *trial;
	struct rh_forecast forecast;
	int fits;
	int spills;     /* the text begins with what spilling takes, which the simulation says */
	char text[160]; /* what to set; with `spills`, beside that */
	const char *remark;
};

struct mending {
	const struct rh_config *config;
	struct trial trial;
	struct rh_tasks *tasks;
	struct rh_outlook *out;
	struct mend_try tried[RH_MENDS_MOST];
	int count;
};

static int simulate(void *context)
{
	struct mend_try *mend = context;
	struct rh_forecast_input own = {0};
	struct rh_log_kept kept = {0}, *before = rh_log_keep(&kept); /* reading rows says what the run's reading has said */
	const struct rh_forecast_input *input = trial_rows(&mend->config, mend->trial);
	int rc = input ? 0 : trial_input(&mend->config, mend->trial, &own);
	if (!rc)
		rc = rh_forecast_judged(&mend->config, mend->trial->machine, input ? input : &own, NULL, &mend->forecast);
	mend->fits = !rc;
	rh_forecast_free(&mend->forecast);
	rh_forecast_input_free(&own);
	rh_error_clear();
	(void)rh_log_keep(before);
	rh_log_forget(&kept);
	return 0;
}

/* remark: what else to say of the change; NULL: nothing. */
static void add(struct mending *at, const struct rh_config *changed, int spills, const char *text, const char *remark)
{
	RH_ASSERT(at->count < RH_MENDS_MOST);
	struct mend_try *mend = &at->tried[at->count++];
	*mend = (struct mend_try){.config = *changed, .trial = &at->trial, .spills = spills, .remark = remark};
	snprintf(mend->text, sizeof mend->text, "%s", text);
	rh_task_begin(at->tasks, &mend->task, simulate, mend);
}

/* A size as it is shown: never less than it is. */
static int64_t as_shown(int64_t bytes)
{
	int64_t unit = bytes >= (int64_t)8 << 30 ? 1 << 30 : 1 << 20;
	return (bytes + unit - 1) / unit * unit;
}

/* As a user would write it. */
static void show_size(int64_t bytes, char *out, size_t room)
{
	int64_t shown = as_shown(bytes);
	if (bytes >= (int64_t)8 << 30)
		snprintf(out, room, "%lldGiB", (long long)(shown >> 30));
	else
		snprintf(out, room, "%lldMiB", (long long)(shown >> 20));
}

/* ---- each kind of change; 1: there is one ---- */

/* With all the NVMe that there may be. */
static struct rh_config spilled(const struct rh_config *config, const struct trial *trial)
{
	struct rh_config other = *config;
	int64_t room = trial->machine->hardware->nvme.bytes;
	other.spill = RH_SPILL_AUTO;
	other.max_nvme = room ? room : (int64_t)1 << 50;
	other.max_nvme_writes = 0;
	return other;
}

static int mend_by_spill(struct mending *at, const struct rh_config *config, const char *with, const char *remark)
{
	struct rh_config other = spilled(config, &at->trial);
	struct trial_result result;
	const struct rh_run_bytes *bytes = &result.bytes;
	if (config->spill)
		return 0;
	if (!trial_fits_with(&other, &at->trial, RH_STAGES_PACKED, &result)) {
		if (!*with && bytes->nvme && bytes->total > bytes->total_budget)
			at->out->spilled_ram_bytes = bytes->total;
		return 0;
	}
	if (!bytes->nvme)
		return 0;
	add(at, &other, 1, with, remark);
	return 1;
}

/* Finds the largest micro-batch that fits: of fewer rows or, where not even one row fits, of one shorter row. *smaller: the configuration
 * with it; text: the keys to set. 0: none fits, or only a row far shorter than what was asked. */
static int find_batch(const struct rh_config *config, const struct trial *trial, struct rh_config *smaller, char *text, size_t room)
{
	struct rh_config other = *config;
	struct rh_session session;
	struct trial opened;
	int64_t rows = config->per_device_train_batch_size, fewest = rh_preference_fewest_rows(&config->preference), batch = 0, length = 0;
	int rc = trial_open(trial, &other, &session, &opened);
	if (!rc && rows > fewest)
		batch = trial_largest(&other, &other.per_device_train_batch_size, FIRST_TRIED, rows, &opened);
	batch = batch < fewest ? 0 : batch;
	if (!rc && !batch) {
		other.per_device_train_batch_size = fewest;
		length = trial_largest(&other, &other.max_length, FIRST_TRIED, config->max_length, &opened);
	}
	trial_close(&opened);
	*smaller = *config;
	smaller->per_device_train_batch_size = batch ? batch : fewest;
	smaller->max_length = batch ? config->max_length : length;
	if (batch)
		snprintf(text, room, "per_device_train_batch_size: %lld", (long long)batch);
	else if (rows > fewest)
		snprintf(text, room, "per_device_train_batch_size: %lld and max_length: %lld", (long long)fewest, (long long)length);
	else
		snprintf(text, room, "max_length: %lld", (long long)length);
	return batch || (length && length >= rh_min(config->max_length / 8, SHORT));
}

static const char *remark_of(const struct rh_config *smaller, const struct rh_config *config)
{
	return smaller->max_length < config->max_length ? "shorter rows: other results" : "another batch size: other results";
}

static int mend_by_batch(struct mending *at, const struct rh_config *config, const char *with)
{
	struct rh_config smaller;
	char text[96], all[160];
	if (!find_batch(config, &at->trial, &smaller, text, sizeof text))
		return 0;
	snprintf(all, sizeof all, "%s%s", with, text);
	add(at, &smaller, 0, all, remark_of(&smaller, config));
	return 1;
}

/* Spilling together with a smaller micro-batch, for where neither is enough alone. */
static int mend_by_spill_and_batch(struct mending *at)
{
	const struct rh_config *config = at->config;
	struct rh_config other = spilled(config, &at->trial), smaller;
	char text[96], with[sizeof text + 2];
	if (config->spill || !find_batch(&other, &at->trial, &smaller, text, sizeof text))
		return 0;
	smaller.spill = 0;
	snprintf(with, sizeof with, ", %s", text);
	return mend_by_spill(at, &smaller, with, remark_of(&smaller, config));
}

/* Rows in chunks, shorter than those that do not fit; of micro-batches of several rows, where not even single rows fit. */
static int mend_by_chunk(struct mending *at)
{
	enum { LONGEST = 1 << 16 };
	const struct rh_config *config = at->config;
	struct rh_config other = *config;
	struct rh_session session;
	struct trial opened;
	char with[64] = "", text[96];
	int64_t fewest = rh_preference_fewest_rows(&config->preference), has_rows = 0, is_fine = 0;
	int64_t longest = rh_min(config->sequence_chunk ? config->sequence_chunk : config->max_length, LONGEST);
	other.per_device_train_batch_size = fewest;
	if (longest / 2 < FIRST_TRIED)
		return 0;
	int rc = trial_open(&at->trial, &other, &session, &opened);
	other.sequence_chunk = longest / 2;
	if (!rc && rh_chunks_check(&other, session.model)) /* such a model's rows are not cut */
		rc = 1;
	other.sequence_chunk = 0;
	if (!rc && config->per_device_train_batch_size > fewest)
		has_rows = trial_fits(&other, &opened);
	other.sequence_chunk = has_rows ? 0 : longest / 2;
	for (; !rc && !is_fine && other.sequence_chunk >= FIRST_TRIED; other.sequence_chunk /= is_fine ? 1 : 2)
		is_fine = trial_fits(&other, &opened);
	trial_close(&opened);
	if (config->per_device_train_batch_size > fewest)
		snprintf(with, sizeof with, "per_device_train_batch_size: %lld and ", (long long)fewest);
	snprintf(text, sizeof text, "%ssequence_chunk: %lld", with, (long long)other.sequence_chunk);
	if (is_fine)
		add(at, &other, 0, text, "other results, within rounding");
	return is_fine != 0;
}

/* Layers' inputs in 8 bits. */
static int mend_by_saved(struct mending *at)
{
	struct rh_config other = *at->config;
	other.saved_dtype = RH_SAVED_FP8;
	if (at->config->saved_dtype == RH_SAVED_FP8 || !trial_fits(&other, &at->trial))
		return 0;
	add(at, &other, 0, "saved_dtype: fp8", "other results");
	return 1;
}

/* The same training in fewer bytes. */
static int mend_by_layout(struct mending *at)
{
	const struct rh_config *config = at->config;
	struct rh_config other = *config;
	int before = at->count, wide = config->dtype == RH_F32;
	other.dtype = RH_BF16;
	if (wide) {
		other.state_layout = RH_LAYOUT_SPLIT;
		if (trial_fits(&other, &at->trial))
			add(at, &other, 0, "dtype: bfloat16", "other results");
	}
	if (config->state_layout == RH_LAYOUT_SPLIT8 || config->optim != RH_OPTIM_ADAMW || config->use_lora || at->count > before)
		return at->count > before;
	other.state_layout = RH_LAYOUT_SPLIT8;
	if (trial_fits(&other, &at->trial))
		add(at, &other, 0, wide ? "state_layout: split8 and dtype: bfloat16" : "state_layout: split8", "other results");
	return at->count > before;
}

static int mend_by_lora(struct mending *at)
{
	const struct rh_config *config = at->config;
	struct rh_config other = *config;
	char text[128];
	int before = at->count;
	if (config->use_lora)
		return 0;
	other.dtype = RH_BF16;
	other.state_layout = RH_LAYOUT_SPLIT;
	other.use_lora = 1;
	other.lora_r = config->lora_r ? config->lora_r : 16;
	snprintf(text, sizeof text, "a LoRA adapter instead of all weights, use_peft: true%s",
	         config->dtype == RH_F32 ? " and dtype: bfloat16" : "");
	if (trial_fits(&other, &at->trial)) {
		add(at, &other, 0, text, "other results");
	} else if (!before) {
		size_t length = strlen(text);
		snprintf(text + length, sizeof text - length, " and ");
		mend_by_batch(at, &other, text);
	}
	return at->count > before;
}

/* ---- caps ---- */

/* Host memory that a run needs whatever it may have, where that does not change its plan: of devices with memory of their own, and nothing
 * on NVMe. 0: not known. */
static int64_t needed_ram(struct rh_config *other, const struct trial *trial)
{
	const struct rh_hardware_device *device = &trial->machine->hardware->device;
	struct trial_result result = {0};
	other->max_ram = 1;
	if (device->memory <= device->reserved || other->spill || trial_fits_with(other, trial, RH_STAGES_PACKED, &result))
		return 0;
	return result.bytes.total_budget == 1 ? result.bytes.total : 0;
}

/* A cap that is tried: it fits where it is `needed`, or, where that is not known, by a plan. */
static int cap_fits(const struct rh_config *config, int64_t cap, int64_t needed, const struct trial *trial)
{
	return needed ? cap >= needed : trial_fits(config, trial);
}

/* The least value of a cap that fits, to a hundredth; 0: none does. `cap` is one of *other's, of which the trial is. */
static int64_t least_cap(const struct rh_config *config, int64_t *cap, struct rh_config *other, const struct trial *trial)
{
	*other = *config;
	int64_t low = 0, high = (int64_t)64 << 20, needed = cap == &other->max_ram ? needed_ram(other, trial) : 0;
	for (*other = *config;; low = high, high *= 2) {
		*cap = high;
		if (cap_fits(other, high, needed, trial))
			break;
		if (high > (int64_t)1 << 45)
			return 0;
	}
	while (high - low > high / 100) {
		*cap = low + (high - low) / 2;
		if (cap_fits(other, *cap, needed, trial))
			high = *cap;
		else
			low = *cap;
	}
	return high;
}

/* The least max_ram with which it fits; else the least max_vram; else, without_vram, the least max_ram beside no max_vram. 0: none. */
struct caps {
	int64_t ram, vram;
	int without_vram;
};

static struct caps find_caps(const struct rh_config *config, const struct trial *base)
{
	struct rh_config other = *config, free_vram = *config;
	struct rh_session session;
	struct trial trial;
	struct caps caps = {0};
	int rc = trial_open(base, &other, &session, &trial);
	if (!rc)
		caps.ram = least_cap(config, &other.max_ram, &other, &trial);
	if (!rc && !caps.ram && config->max_vram) {
		caps.vram = least_cap(config, &other.max_vram, &other, &trial);
		caps.without_vram = !caps.vram;
	}
	free_vram.max_vram = 0;
	if (caps.without_vram)
		caps.ram = least_cap(&free_vram, &other.max_ram, &other, &trial);
	trial_close(&trial);
	return caps;
}

static int mend_by_cap(void *context)
{
	struct mending *at = context;
	struct caps caps = find_caps(at->config, &at->trial);
	struct rh_config other = *at->config;
	char size[32], text[128];
	if (!caps.ram && !caps.vram)
		return 0;
	show_size(caps.ram ? caps.ram : caps.vram, size, sizeof size);
	int beyond = at->trial.machine->ram_bytes && caps.ram > at->trial.machine->ram_bytes;
	at->out->ram_needed_bytes = caps.without_vram ? 0 : caps.ram;
	if (caps.ram)
		other.max_ram = as_shown(caps.ram);
	else
		other.max_vram = as_shown(caps.vram);
	other.max_vram = caps.without_vram ? 0 : other.max_vram;
	snprintf(text, sizeof text, "%s: %s%s", caps.ram ? "max_ram" : "max_vram", size, caps.without_vram ? ", and no max_vram" : "");
	add(at, &other, 0, text, beyond ? "more than this machine has" : NULL);
	return 0;
}

/* ---- all of them ---- */

static void tell(const struct mending *at, const struct mend_try *mend, struct rh_mend *out)
{
	char size[32], spills[96] = "";
	const struct rh_forecast *is = &mend->forecast;
	const char *remark = mend->remark ? mend->remark : "";
	*out = (struct rh_mend){.tokens_per_second = is->tokens_per_second};
	if (mend->spills) {
		show_size(is->nvme_bytes, size, sizeof size);
		snprintf(spills, sizeof spills, "spill: auto, nvme_dirs and max_nvme: %s", size);
	}
	int length = snprintf(out->text, sizeof out->text, "%s%s", spills, mend->text);
	if (mend->spills)
		snprintf(out->text + length, sizeof out->text - (size_t)length, " (%.1f GiB written to NVMe a step%s%s%s)",
		         (double)is->nvme_step_bytes / gib,
		         at->trial.machine->hardware->nvme.bytes ? "" : "; the profile has no nvme, whose speed decides",
		         *remark ? "; " : "", remark);
	else if (*remark)
		snprintf(out->text + length, sizeof out->text - (size_t)length, " (%s)", remark);
}

/* Those that fit go among the others, the fastest first. */
static int gather(struct mending *at)
{
	struct rh_outlook *out = at->out;
	int rc = 0;
	for (int i = 0; i < at->count; i++) {
		int failed = rh_task_finish(&at->tried[i].task), place = out->mends;
		rc = rc ? rc : failed;
		if (failed || !at->tried[i].fits || place == RH_MENDS_MOST)
			continue;
		for (; place > 0 && out->mend[place - 1].tokens_per_second < at->tried[i].forecast.tokens_per_second; place--)
			out->mend[place] = out->mend[place - 1];
		tell(at, &at->tried[i], &out->mend[place]);
		out->mends++;
	}
	return rc;
}

static int has_change(struct mending *at)
{
	int found = mend_by_spill(at, at->config, "", NULL);
	found |= mend_by_layout(at);
	found |= mend_by_chunk(at);
	found |= mend_by_saved(at);
	found |= mend_by_batch(at, at->config, "");
	int has_one_change = found;
	found |= mend_by_lora(at);
	if (!has_one_change)
		found |= mend_by_spill_and_batch(at);
	return found;
}

int outlook_mend(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine,
                 const struct rh_forecast_input *input, struct rh_outlook *out)
{
	enum { CHANGES, CAPS };
	struct rh_config half = *config;
	struct rh_task task;
	struct mending *at = rh_alloc(2, sizeof *at);
	if (!at)
		return -ENOMEM;
	for (int i = 0; i < 2; i++)
		at[i] = (struct mending){
		        .config = config, .trial = {.machine = machine, .input = input, .of = config}, .tasks = tasks, .out = out};
	rh_task_begin(tasks, &task, mend_by_cap, &at[CAPS]); /* beside those that depend on one another */
	if (!has_change(&at[CHANGES]) && config->dtype == RH_BF16 && config->optim == RH_OPTIM_ADAMW && !config->use_lora) {
		half.state_layout = RH_LAYOUT_SPLIT8;
		(void)mend_by_spill(&at[CHANGES], &half, ", state_layout: split8", "other results");
	}
	int rc = rh_task_finish(&task);
	for (int i = CHANGES; i <= CAPS; i++) {
		int failed = gather(&at[i]);
		rc = rc ? rc : failed;
	}
	rh_free(at);
	return rc;
}
