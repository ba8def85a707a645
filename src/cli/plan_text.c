/* `plan` on a terminal: the answer first, then what it is made of. */
#include "cli/plan.h"
#include "core/wrap.h"
#include "observe/trace.h"
#include "partition/roundpipe.h"
#include "partition/rounds.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS = 100, COLUMNS_LEAST = 60 };

static const double gib = 1 << 30;

static int put_stages(struct rh_text *out, const struct rh_forecast *is)
{
	const struct rh_stage_plan *plan = &is->plan;
	int rc = rh_text_printf(out, "stages       forward");
	for (int i = 0; i < plan->forward_stages && !rc; i++)
		rc = rh_text_printf(out, "%s %d-%d", i && i % 12 == 0 ? "\n                    " : "", plan->forward[i].lo,
		                    plan->forward[i].hi - 1);
	if (!rc)
		rc = rh_text_printf(out, "%s\n             forward, loss and backward %d-%d\n", plan->forward_stages ? "" : " none",
		                    plan->backward[0].lo, plan->backward[0].hi - 1);
	for (int i = 1; i < plan->backward_stages && !rc; i++)
		rc = rh_text_printf(out, "%s %d-%d",
		                    i == 1        ? "             backward"
		                    : i % 12 == 1 ? "\n                     "
		                                  : "",
		                    plan->backward[i].lo, plan->backward[i].hi - 1);
	if (!rc)
		rc = rh_text_printf(out, "%s", plan->backward_stages > 1 ? "\n" : "");
	if (!rc)
		rc = rh_text_printf(out, "             (layer 0 is the embedding, %d the head)\n", plan->backward[0].hi - 1);
	if (!rc && is->packed)
		rc = rh_text_printf(out, "             (packed as full as memory allows: cuts are searched for in up to %d layers)\n",
		                    RH_PARTITION_LAYERS_MOST);
	return rc;
}

/* Prints the rounds of RoundPipe; the other schedules have none. */
static int put_rounds(struct rh_text *out, const struct rh_forecast *is, int64_t micro_batches)
{
	int64_t rounds = rh_round_count(micro_batches, is->round_micro_batches);
	if (rounds < 2)
		return 0;
	return rh_text_printf(out, "rounds       %lld of up to %lld micro-batches\n", (long long)rounds,
	                      (long long)is->round_micro_batches);
}

static int put_chunks(struct rh_text *out, const struct rh_config *config, const struct rh_workload *work)
{
	if (work->chunks < 2)
		return 0;
	return rh_text_printf(out, "chunks       the longest %s, of %lld tokens, in %d of at most %lld (sequence_chunk%s)\n",
	                      config->per_device_train_batch_size > 1 ? "micro-batch" : "row", (long long)work->row.tokens, work->chunks,
	                      (long long)work->chunk, config->sequence_chunk ? "" : ": whole rows do not fit");
}

static int put_tier(struct rh_text *out, const char *name, int64_t used, int64_t budget, const char *what)
{
	int rc = rh_text_printf(out, "%-12s %.2f GiB", name, (double)used / gib);
	if (!rc && budget)
		rc = rh_text_printf(out, " of %.2f", (double)budget / gib);
	return rc ? rc : rh_text_printf(out, "%s\n", what);
}

static int put_tiers(struct rh_text *out, const struct rh_forecast *is)
{
	char what[256], plain[32] = "";
	const struct rh_stage_plan *plan = &is->plan;
	if ((double)plan->plain_bytes >= 0.005 * gib)
		snprintf(plain, sizeof plain, ", prepared for products %.2f", (double)plan->plain_bytes / gib);
	snprintf(what, sizeof what, ": weights %.2f%s, gradients %.2f, activations %.2f, boundaries %.2f", (double)plan->weight_bytes / gib,
	         plain, (double)(plan->gradient_bytes + plan->rounded_bytes) / gib, (double)(plan->arena_bytes + plan->kept_bytes) / gib,
	         (double)(plan->boundary_buffers * plan->boundary_bytes) / gib);
	int length = (int)strlen(what);
	if ((double)plan->cache_bytes >= 0.005 * gib) /* of rows in chunks: keys, values, states */
		snprintf(what + length, sizeof what - (size_t)length, ", carried %.2f", (double)plan->cache_bytes / gib);
	int rc = put_tier(out, is->host_devices ? "each device" : "each GPU", is->device_bytes, is->device_budget, what);
	length = snprintf(what, sizeof what, ": weights and optimizer %.2f, boundary activations %.2f", (double)is->store_bytes / gib,
	                  (double)(is->boundary_bytes - plan->saved_bytes) / gib);
	if (plan->saved_bytes)
		length +=
		        snprintf(what + length, sizeof what - (size_t)length, ", saved activations %.2f", (double)plan->saved_bytes / gib);
	int64_t devices = is->host_devices * is->device_bytes, rest = is->ram_bytes - is->store_bytes - is->boundary_bytes - devices;
	if (is->host_devices)
		length += snprintf(what + length, sizeof what - (size_t)length, ", devices %.2f", (double)devices / gib);
	snprintf(what + length, sizeof what - (size_t)length, ", program and data %.2f", (double)rest / gib);
	if (!rc)
		rc = put_tier(out, "host", is->ram_bytes, is->ram_budget, what);
	snprintf(what, sizeof what, ": %.2f GiB written a step", (double)is->nvme_step_bytes / gib);
	return rc || !is->nvme_bytes ? rc : put_tier(out, "NVMe", is->nvme_bytes, is->nvme_budget, what);
}

static int put_time(struct rh_text *out, double seconds)
{
	if (seconds < 120)
		return rh_text_printf(out, "%.1f s", seconds);
	if (seconds < 7200)
		return rh_text_printf(out, "%.1f minutes", seconds / 60);
	return seconds < 172800 ? rh_text_printf(out, "%.1f hours", seconds / 3600) : rh_text_printf(out, "%.1f days", seconds / 86400);
}

/* Memory may hold more than the model knows positions for. */
static int put_length(struct rh_text *out, int64_t tokens, int64_t positions)
{
	if (positions && tokens > positions)
		return rh_text_printf(out, "%lld tokens (the model's context; memory would hold %lld)", (long long)positions,
		                      (long long)tokens);
	return rh_text_printf(out, "%lld tokens", (long long)tokens);
}

/* What more tokens would exceed. */
static int put_budget(struct rh_text *out, const struct rh_longest *longest)
{
	return longest->budget ? rh_text_printf(out, ", as far as %s goes", longest->budget) : 0;
}

/* The longest sequences with one row a micro-batch, which may be another batch size than the rest of the plan has. */
static int put_longest(struct rh_text *out, int64_t positions, const struct rh_outlook *look, int devices, int64_t batch)
{
	int rc = rh_text_printf(out, "longest      ");
	if (!rc)
		rc = put_length(out, look->longest_single.tokens, positions);
	if (!rc)
		rc = put_budget(out, &look->longest_single);
	if (!rc && devices > 1) {
		rc = rh_text_printf(out, "; with %d rows in flight ", devices);
		if (!rc)
			rc = put_length(out, look->longest.tokens, positions);
		if (!rc)
			rc = put_budget(out, &look->longest);
	}
	return rc ? rc : rh_text_printf(out, "%s\n", batch > 1 ? " at per_device_train_batch_size: 1" : "");
}

/* The pass before the first step, in which the model runs forward over all rows. */
static int put_reference(struct rh_text *out, const struct rh_config *config, const struct rh_forecast_input *input,
                         const struct rh_forecast *is)
{
	int64_t step = config->per_device_train_batch_size * config->gradient_accumulation_steps, steps = (input->rows + step - 1) / step;
	int rc = rh_text_printf(out, "reference    one pass forward over the rows before step 1: %.1f tokens/s",
	                        is->reference_tokens_per_second);
	if (!rc && input->rows)
		rc = rh_text_printf(out, ", ");
	if (!rc && input->rows)
		rc = put_time(out, input->tokens_a_step * (double)steps / is->reference_tokens_per_second);
	return rc ? rc : rh_text_printf(out, "\n");
}

static int put_speed(struct rh_text *out, const struct rh_config *config, const struct rh_machine_found *found,
                     const struct rh_forecast_input *input, const struct rh_outlook *look)
{
	const struct rh_forecast *is = &look->forecast;
	int rc = rh_text_printf(out, "speed        %.1f tokens/s, %.4g s a step; idle %.1f %%; %.1f %% of the devices' peak (MFU)\n",
	                        is->tokens_per_second, is->step_seconds, 100 * is->bubble, 100 * look->speed_of_light);
	if (!rc && input->run_steps) {
		rc = rh_text_printf(out, "whole run    %lld steps, ", (long long)input->run_steps);
		if (!rc)
			rc = put_time(out, look->run_seconds);
		if (!rc && look->nvme_written_bytes)
			rc = rh_text_printf(out, "; %.2f GiB written to NVMe", (double)look->nvme_written_bytes / gib);
		if (!rc)
			rc = rh_text_printf(out, "\n");
	}
	if (!rc && is->reference_tokens_per_second > 0)
		rc = put_reference(out, config, input, is);
	if (!rc)
		rc = rh_text_printf(out, "bottleneck   %s (25 %% faster, it would give %.1f %% more tokens/s)\n",
		                    rh_bottleneck_name(look->bottleneck), 100 * look->bottleneck_gain);
	if (!rc && *look->advice.text)
		rc = rh_text_printf(out, "helps most   %s: %.1f %% more tokens/s\n", look->advice.text, 100 * look->advice.gain);
	double gain = rh_machine_bf16_gain(found, config);
	if (!rc && gain > 0)
		rc = rh_text_printf(
		        out, "faster       dtype: bfloat16, in which this processor's products are %.1f times as fast (other results)\n",
		        gain);
	return rc || input->of_images
	               ? rc
	               : put_longest(out, input->positions, look, found->machine.devices, config->per_device_train_batch_size);
}

static int put_head(struct rh_text *out, const struct rh_machine_found *found, const struct rh_forecast_input *input)
{
	int rc = rh_text_printf(out, "machine      %s, %d device%s%s\n", found->hardware.name, found->machine.devices,
	                        found->machine.devices == 1 ? "" : "s",
	                        found->assumed ? " (rates are guesses: roundhouse doctor --save local measures them)" : "");
	const char *taken = input->of_images ? "are images" : "taken to be max_length tokens each, all of them trained";
	if (!rc && input->synthetic)
		rc = rh_text_printf(out, "rows         %s (%s)\n", taken, input->uncounted);
	return rc;
}

/* What a step holds and what is trained: of keys that nobody wrote, what is taken for them. */
static int put_step(struct rh_text *out, const struct rh_config *config, const struct rh_forecast_input *input)
{
	int64_t rows = config->per_device_train_batch_size, micro = input->count[0] / rh_chunks_of(&input->work);
	int rc = rh_text_printf(out, "step         %lld row%s of %.0f tokens in all: %lld micro-batch%s of up to %lld",
	                        (long long)(rows * micro), rows * micro == 1 ? "" : "s", input->tokens_a_step, (long long)micro,
	                        micro == 1 ? "" : "es", (long long)rows);
	if (!rc)
		rc = rh_text_printf(out, "\ntrains       %s%s", input->trains,
		                    config->use_lora && !config->lora_targets_given && !config->adapter_name_or_path
		                            ? " (lora_target_modules is not set)"
		                            : "");
	return rc ? rc : rh_text_printf(out, "\n");
}

static int put_share(struct rh_text *out, int64_t used, int64_t budget, const char *where)
{
	if (budget)
		return rh_text_printf(out, "%.1f of %.1f GiB %s", (double)used / gib, (double)budget / gib, where);
	return rh_text_printf(out, "%.1f GiB %s", (double)used / gib, where);
}

/* The answer, before what it is made of. */
static int put_answer(struct rh_text *out, const struct rh_outlook *look)
{
	const struct rh_forecast *is = &look->forecast;
	int rc = look->fits ? rh_text_printf(out, "fits         ") : rh_text_printf(out, "does not fit %s\n", look->refusal);
	if (!rc && look->fits) {
		rc = put_share(out, is->device_bytes, is->device_budget, is->host_devices ? "on each device, " : "on each GPU, ");
		if (!rc)
			rc = put_share(out, is->ram_bytes, is->ram_budget, "of host memory");
		if (!rc && is->nvme_bytes) {
			rc = rh_text_printf(out, ", ");
			if (!rc)
				rc = put_share(out, is->nvme_bytes, is->nvme_budget, "of NVMe");
		}
		return rc ? rc : rh_text_printf(out, "\n");
	}
	if (!rc && look->spilled_ram_bytes)
		rc = rh_text_printf(out, "NVMe         is not enough: with all there that may be, %.1f GiB of host memory are needed\n",
		                    (double)look->spilled_ram_bytes / gib);
	for (int i = 0; i < look->mends && !rc; i++)
		rc = rh_text_printf(out, "%s %s: %.1f tokens/s\n", i ? "          or" : "would fit    with", look->mend[i].text,
		                    look->mend[i].tokens_per_second);
	return rc || look->mends ? rc : rh_text_printf(out, "would fit    on a larger machine, or a smaller model\n");
}

/* A card that drives a display is shown nothing meanwhile, and its driver ends what takes seconds. */
static int put_long_launch(struct rh_text *out, const struct rh_forecast *is)
{
	if (is->host_devices || is->longest_launch.seconds <= RH_LAUNCH_MOST_S)
		return 0;
	return rh_text_printf(out, "warning      a launch of %s takes %.2f s: a GPU that drives a display may be stopped in it\n",
	                      rh_op_info(is->longest_launch.op)->name, is->longest_launch.seconds);
}

int plan_put(struct rh_text *out, const struct rh_machine_found *found, const struct rh_forecast_input *input,
             const struct rh_outlook *look, const struct rh_trace *trace, const struct rh_config *config)
{
	int64_t max_length = config->max_length;
	int rc = put_answer(out, look);
	if (!rc && input->positions && !input->of_images && max_length > input->positions)
		rc = rh_text_printf(out,
		                    "warning      max_length %lld is above the %lld positions that the model knows: train refuses it\n",
		                    (long long)max_length, (long long)input->positions);
	if (!rc)
		rc = put_head(out, found, input);
	if (!rc)
		rc = put_step(out, config, input);
	if (!look->fits)
		return rc;
	if (!rc)
		rc = put_speed(out, config, found, input, look);
	if (!rc && look->forecast.devices < found->machine.devices)
		rc = rh_text_printf(out, "devices      %d used: a step takes no less time on more of them\n", look->forecast.devices);
	if (!rc)
		rc = put_tiers(out, &look->forecast);
	if (!rc)
		rc = put_stages(out, &look->forecast);
	if (!rc)
		rc = put_rounds(out, &look->forecast, input->count[0]);
	if (!rc)
		rc = put_chunks(out, config, &input->work);
	if (!rc)
		rc = put_long_launch(out, &look->forecast);
	if (!rc)
		rc = rh_text_printf(
		        out, "drawn below  one step: %.4g s from its first update or upload to its last download; steps may overlap\n",
		        trace->seconds);
	int terminal = rh_columns_of(stdout), columns = terminal >= COLUMNS_LEAST && terminal < COLUMNS ? terminal : COLUMNS;
	return rc ? rc : rh_trace_text(trace, columns, out);
}
