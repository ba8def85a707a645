/* What fits: how long a sequence may be, and the smallest change after which a run would fit. */
#include "train/outlook_internal.h"

#include <stdio.h>

/* By a plan alone; `stages`: also those that are chosen by time. */
static int fits_with(const struct rh_config *config, const struct rh_session_machine *machine, enum rh_session_stages stages)
{
	struct rh_load load = {0};
	struct rh_session session = {0};
	int rc = rh_load_synthetic(config, 0, &load);
	rc = rc ? rc : rh_session_simulate(config, machine, &session);
	rc = rc ? rc : rh_session_plan(&session, &load.work, stages);
	rh_session_close(&session);
	rh_load_free(&load);
	rh_error_clear();
	return !rc;
}

static int fits(const struct rh_config *config, const struct rh_session_machine *machine)
{
	return fits_with(config, machine, RH_STAGES_PACKED);
}

/* The largest value in [known, most] for which the configuration fits, by doubling and halving; `known` where only that does (0: none). */
static int64_t largest(struct rh_config *config, int64_t *key, int64_t known, int64_t most, const struct rh_session_machine *machine)
{
	int64_t low = known, high = known ? known + known / 8 + 1 : 256;
	high = high < most ? high : most;
	for (; high <= most; high = high * 4 > most && high < most ? most : high * 4) {
		*key = high;
		if (!fits(config, machine))
			break;
		low = high;
		if (high == most)
			return most;
	}
	while (high - low > (low >> 6) + 1) {
		*key = low + (high - low) / 2;
		if (fits(config, machine))
			low = *key;
		else
			high = *key;
	}
	return low;
}

int64_t outlook_longest(const struct rh_config *config, const struct rh_session_machine *machine, int in_flight, int64_t known)
{
	struct rh_config other = *config;
	other.per_device_train_batch_size = 1;
	other.gradient_accumulation_steps = in_flight;
	other.round_micro_batches = 0;
	int64_t length = largest(&other, &other.max_length, known, 1 << 22, machine);
	for (; length; length -= (length >> 6) + 1) { /* searched with packed stages: those that a run would have may need a little more */
		other.max_length = length;
		if (fits_with(&other, machine, RH_STAGES_CHOSEN))
			break;
	}
	return length;
}

/* The least that a user would have to change, what costs least first. */
void outlook_mend(const struct rh_config *config, const struct rh_session_machine *machine, struct rh_outlook *out)
{
	struct rh_config other = *config;
	char *text = out->mend.text;
	size_t room = sizeof out->mend.text;
	other.max_vram = other.max_ram = 0;
	if ((config->max_vram || config->max_ram) && fits(&other, machine)) {
		snprintf(text, room, "%s", config->max_ram ? "a larger max_ram, or none" : "a larger max_vram, or none");
		return;
	}
	other = *config;
	if (config->dtype == RH_BF16 && config->state_layout != RH_LAYOUT_SPLIT8 && config->optim == RH_OPTIM_ADAMW && !config->use_lora) {
		other.state_layout = RH_LAYOUT_SPLIT8;
		if (fits(&other, machine)) {
			snprintf(text, room, "state_layout: split8");
			return;
		}
		other = *config;
	}
	if (!config->spill && machine->hardware->nvme.bytes > 0) {
		other.spill = RH_SPILL_AUTO;
		other.max_nvme = machine->hardware->nvme.bytes;
		if (fits(&other, machine)) {
			snprintf(text, room, "spill: auto, with nvme_dirs and max_nvme");
			return;
		}
		other = *config;
	}
	int64_t batch = largest(&other, &other.per_device_train_batch_size, 0, config->per_device_train_batch_size, machine);
	if (batch) {
		snprintf(text, room, "per_device_train_batch_size: %lld", (long long)batch);
		return;
	}
	other = *config;
	other.per_device_train_batch_size = 1;
	int64_t length = largest(&other, &other.max_length, 0, config->max_length, machine);
	if (length) {
		snprintf(text, room, "per_device_train_batch_size: 1 and max_length: %lld", (long long)length);
		return;
	}
	other = *config;
	other.dtype = RH_BF16;
	if (config->dtype == RH_F32 && fits(&other, machine)) {
		snprintf(text, room, "dtype: bfloat16");
		return;
	}
	other.use_lora = 1;
	other.lora_r = config->lora_r ? config->lora_r : 16;
	if (!config->use_lora && fits(&other, machine))
		snprintf(text, room, "lora_r: 16 (and dtype: bfloat16)");
}
