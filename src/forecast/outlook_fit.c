/* Finds what fits: how long a sequence may be, and the changes after each of which a run would fit. */
#include "forecast/outlook_internal.h"

#include "core/minmax.h"
#include "session/chunks.h"

#include <stdio.h>
#include <string.h>

enum { FIRST_TRIED = 256, SHORT = 2048 /* tokens */ };

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

/* ---- changes after which a run would fit ---- */

static const double gib = 1 << 30;

static char *next_mend(struct rh_outlook *out)
{
	RH_ASSERT(out->mends < RH_MENDS_MOST);
	return out->mend[out->mends++].text;
}

/* As a user would write it, never less than it is. */
static void show_size(int64_t bytes, char *out, size_t room)
{
	const int64_t mib = 1 << 20;
	if (bytes >= (int64_t)8 << 30)
		snprintf(out, room, "%lldGiB", (long long)((bytes + 1024 * mib - 1) / (1024 * mib)));
	else
		snprintf(out, room, "%lldMiB", (long long)((bytes + mib - 1) / mib));
}

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

/* Onto NVMe goes what it must, and no more. */
static int mend_by_spill(const struct rh_config *config, const struct trial *trial, const char *with, struct rh_outlook *out)
{
	struct rh_config other = spilled(config, trial);
	struct trial_result result;
	const struct rh_run_bytes *bytes = &result.bytes;
	char size[32];
	if (config->spill)
		return 0;
	if (!trial_fits_with(&other, trial, RH_STAGES_PACKED, &result)) {
		if (!*with && bytes->nvme && bytes->total > bytes->total_budget)
			out->spilled_ram_bytes = bytes->total;
		return 0;
	}
	if (!bytes->nvme)
		return 0;
	show_size(bytes->nvme, size, sizeof size);
	char *text = next_mend(out);
	snprintf(text, sizeof out->mend->text, "spill: auto, nvme_dirs and max_nvme: %s%s (%.1f GiB written to NVMe a step%s)", size, with,
	         (double)bytes->nvme_step / gib,
	         trial->machine->hardware->nvme.bytes ? "" : "; the profile has no nvme, whose speed decides");
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

static int mend_by_batch(const struct rh_config *config, const struct trial *trial, const char *with, struct rh_outlook *out)
{
	struct rh_config smaller;
	char text[96];
	if (!find_batch(config, trial, &smaller, text, sizeof text))
		return 0;
	snprintf(next_mend(out), sizeof out->mend->text, "%s%s", with, text);
	return 1;
}

/* Spilling together with a smaller micro-batch, for where neither is enough alone. */
static int mend_by_spill_and_batch(const struct rh_config *config, const struct trial *trial, struct rh_outlook *out)
{
	struct rh_config other = spilled(config, trial), smaller;
	char text[96], with[sizeof text + 2];
	if (config->spill || !find_batch(&other, trial, &smaller, text, sizeof text))
		return 0;
	smaller.spill = 0;
	snprintf(with, sizeof with, ", %s", text);
	return mend_by_spill(&smaller, trial, with, out);
}

/* Rows in chunks, shorter than those that do not fit; of micro-batches of several rows, where not even single rows fit. */
static int mend_by_chunk(const struct rh_config *config, const struct trial *trial, struct rh_outlook *out)
{
	enum { LONGEST = 1 << 16 };
	struct rh_config other = *config;
	struct rh_session session;
	struct trial opened;
	int64_t longest = rh_min(config->sequence_chunk ? config->sequence_chunk : config->max_length, LONGEST), has_rows = 0, is_fine = 0;
	int64_t fewest = rh_preference_fewest_rows(&config->preference);
	other.per_device_train_batch_size = fewest;
	if (longest / 2 < FIRST_TRIED)
		return 0;
	int rc = trial_open(trial, &other, &session, &opened);
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
	if (is_fine) {
		char with[64] = "";
		if (config->per_device_train_batch_size > fewest)
			snprintf(with, sizeof with, "per_device_train_batch_size: %lld and ", (long long)fewest);
		snprintf(next_mend(out), sizeof out->mend->text, "%ssequence_chunk: %lld (other results, within rounding)", with,
		         (long long)other.sequence_chunk);
	}
	return is_fine != 0;
}

/* Layers' inputs in 8 bits. */
static int mend_by_saved(const struct rh_config *config, const struct trial *trial, struct rh_outlook *out)
{
	struct rh_config other = *config;
	other.saved_dtype = RH_SAVED_FP8;
	if (config->saved_dtype == RH_SAVED_FP8 || !trial_fits(&other, trial))
		return 0;
	snprintf(next_mend(out), sizeof out->mend->text, "saved_dtype: fp8 (other results)");
	return 1;
}

/* The same training in fewer bytes. */
static int mend_by_layout(const struct rh_config *config, const struct trial *trial, struct rh_outlook *out)
{
	struct rh_config other = *config;
	size_t room = sizeof out->mend->text;
	int before = out->mends, wide = config->dtype == RH_F32;
	other.dtype = RH_BF16;
	if (wide) {
		other.state_layout = RH_LAYOUT_SPLIT;
		if (trial_fits(&other, trial))
			snprintf(next_mend(out), room, "dtype: bfloat16");
	}
	if (config->state_layout == RH_LAYOUT_SPLIT8 || config->optim != RH_OPTIM_ADAMW || config->use_lora || out->mends > before)
		return out->mends > before;
	other.state_layout = RH_LAYOUT_SPLIT8;
	if (trial_fits(&other, trial))
		snprintf(next_mend(out), room, "state_layout: split8%s", wide ? " and dtype: bfloat16" : "");
	return out->mends > before;
}

static int mend_by_lora(const struct rh_config *config, const struct trial *trial, struct rh_outlook *out)
{
	struct rh_config other = *config;
	char text[128];
	int before = out->mends;
	if (config->use_lora)
		return 0;
	other.dtype = RH_BF16;
	other.state_layout = RH_LAYOUT_SPLIT;
	other.use_lora = 1;
	other.lora_r = config->lora_r ? config->lora_r : 16;
	snprintf(text, sizeof text, "a LoRA adapter instead of all weights, use_peft: true%s",
	         config->dtype == RH_F32 ? " and dtype: bfloat16" : "");
	if (trial_fits(&other, trial)) {
		snprintf(next_mend(out), sizeof out->mend->text, "%s", text);
	} else if (!before) {
		size_t length = strlen(text);
		snprintf(text + length, sizeof text - length, " and ");
		mend_by_batch(&other, trial, text, out);
	}
	return out->mends > before;
}

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

static void mend_by_cap(const struct rh_config *config, const struct trial *trial, struct rh_outlook *out)
{
	struct caps caps = find_caps(config, trial);
	char ram_size[32], vram_size[32];
	size_t room = sizeof out->mend->text;
	if (!caps.ram && !caps.vram)
		return;
	show_size(caps.ram, ram_size, sizeof ram_size);
	show_size(caps.vram, vram_size, sizeof vram_size);
	int beyond = trial->machine->ram_bytes && caps.ram > trial->machine->ram_bytes;
	char *text = next_mend(out);
	out->ram_needed_bytes = caps.without_vram ? 0 : caps.ram;
	if (!caps.ram)
		snprintf(text, room, "max_vram: %s", vram_size);
	else
		snprintf(text, room, "max_ram: %s%s%s", ram_size, beyond ? ", more than this machine has" : "",
		         caps.without_vram ? ", and no max_vram" : "");
}

/* A mend of its own, beside those that depend on one another. */
struct cap_mend {
	struct rh_task task;
	const struct rh_config *config;
	const struct trial *trial;
	struct rh_outlook out;
};

static int run_cap_mend(void *context)
{
	struct cap_mend *mend = context;
	mend_by_cap(mend->config, mend->trial, &mend->out);
	return 0;
}

int outlook_mend(struct rh_tasks *tasks, const struct rh_config *config, const struct rh_session_machine *machine, struct rh_outlook *out)
{
	const struct trial trial = {.machine = machine};
	struct rh_config half = *config;
	struct cap_mend cap = {.config = config, .trial = &trial};
	rh_task_begin(tasks, &cap.task, run_cap_mend, &cap);
	int found = mend_by_spill(config, &trial, "", out);
	found |= mend_by_layout(config, &trial, out);
	found |= mend_by_chunk(config, &trial, out);
	found |= mend_by_saved(config, &trial, out);
	found |= mend_by_batch(config, &trial, "", out);
	int has_one_change = found;
	found |= mend_by_lora(config, &trial, out);
	if (!has_one_change)
		found |= mend_by_spill_and_batch(config, &trial, out);
	if (!found && config->dtype == RH_BF16 && config->optim == RH_OPTIM_ADAMW && !config->use_lora) {
		half.state_layout = RH_LAYOUT_SPLIT8;
		mend_by_spill(&half, &trial, ", state_layout: split8", out);
	}
	int rc = rh_task_finish(&cap.task);
	out->ram_needed_bytes = cap.out.ram_needed_bytes;
	for (int i = 0; i < cap.out.mends; i++)
		snprintf(next_mend(out), sizeof out->mend->text, "%s", cap.out.mend[i].text);
	return rc;
}
