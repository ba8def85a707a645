/* `plan --json`: the plan of one box for programs. */
#include "cli/plan.h"

static json_t *tier(int64_t used, int64_t budget)
{
	return json_pack("{s:I, s:o}", "used_bytes", (json_int_t)used, "budget_bytes", budget ? json_integer(budget) : json_null());
}

static json_t *stages_json(const struct rh_stage_plan *plan)
{
	json_t *list = json_array();
	for (int i = 0; i < plan->forward_stages; i++)
		json_array_append_new(list, json_pack("{s:s, s:i, s:i}", "pass", "forward", "first_layer", plan->forward[i].lo,
		                                      "last_layer", plan->forward[i].hi - 1));
	for (int i = 0; i < plan->backward_stages; i++)
		json_array_append_new(list, json_pack("{s:s, s:i, s:i}", "pass", i ? "backward" : "fused", "first_layer",
		                                      plan->backward[i].lo, "last_layer", plan->backward[i].hi - 1));
	return list;
}

static json_t *advice_json(const struct rh_advice *advice)
{
	return *advice->text ? json_pack("{s:s, s:f}", "change", advice->text, "gain", advice->gain) : json_null();
}

static json_t *mend_json(const struct rh_outlook *look, int i)
{
	const struct rh_mend *mend = &look->mend[i];
	return i < look->mends ? json_pack("{s:s, s:f}", "change", mend->text, "tokens_per_second", mend->tokens_per_second) : json_null();
}

static json_t *mends_json(const struct rh_outlook *look)
{
	json_t *list = json_array();
	for (int i = 0; i < look->mends; i++)
		json_array_append_new(list, mend_json(look, i));
	return list;
}

static json_t *json_or_null(const char *text)
{
	return text ? json_string(text) : json_null();
}

static json_t *known(double value)
{
	return value > 0 ? json_real(value) : json_null();
}

json_t *plan_json(const struct rh_machine_found *found, const struct rh_forecast_input *input, const struct rh_outlook *look)
{
	const struct rh_forecast *is = &look->forecast;
	if (!look->fits)
		return json_pack("{s:b, s:s, s:s, s:o, s:o, s:o, s:o, s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:n, s:n}", "fits", 0, "hardware",
		                 found->hardware.name, "why", look->refusal, "mend", mend_json(look, 0), "mends", mends_json(look),
		                 "max_ram_needed_bytes", look->ram_needed_bytes ? json_integer(look->ram_needed_bytes) : json_null(),
		                 "rates_assumed", json_boolean(found->assumed), "tokens_per_second", "step_seconds", "bubble", "bottleneck",
		                 "longest_sequence", "longest_sequence_single", "speed_of_light", "tiers", "stages");
	json_t *out = json_pack("{s:b, s:s, s:o, s:i, s:i, s:f, s:f, s:f, s:f, s:s, s:f, s:o, s:I}", "fits", 1, "hardware",
	                        found->hardware.name, "rates_assumed", json_boolean(found->assumed), "devices", found->machine.devices,
	                        "devices_used", is->devices, "tokens_per_second", is->tokens_per_second, "step_seconds", is->step_seconds,
	                        "bubble", is->bubble, "speed_of_light", look->speed_of_light, "bottleneck",
	                        rh_bottleneck_name(look->bottleneck), "bottleneck_gain", look->bottleneck_gain, "advice",
	                        advice_json(&look->advice), "longest_sequence", (json_int_t)look->longest.tokens);
	json_t *rest =
	        json_pack("{s:I, s:{s:o, s:o, s:o}, s:o, s:o, s:o, s:I, s:{s:f, s:f, s:f, s:f, s:f}, s:b, s:s?, s:I, s:I, s:o}",
	                  "round_micro_batches", (json_int_t)is->round_micro_batches, "tiers", "vram",
	                  tier(is->host_devices ? 0 : is->device_bytes, is->host_devices ? 0 : is->device_budget), "ram",
	                  tier(is->ram_bytes, is->ram_budget), "nvme", tier(is->nvme_bytes, is->nvme_budget), "stages",
	                  stages_json(&is->plan), "run_steps", input->run_steps ? json_integer(input->run_steps) : json_null(),
	                  "run_seconds", known(look->run_seconds), "nvme_written_bytes", (json_int_t)look->nvme_written_bytes, "step_parts",
	                  "compute", is->times.compute, "weights", is->times.weights, "activations", is->times.activations, "gradients",
	                  is->times.gradients, "optimizer", is->times.optimizer, "rows_assumed_full", input->synthetic, "rows_uncounted",
	                  input->uncounted, "nvme_step_bytes", (json_int_t)is->nvme_step_bytes, "model_positions",
	                  (json_int_t)input->positions, "stages_packed", json_boolean(is->packed));
	if (rest) {
		int is_cut = input->work.chunks > 1;
		(void)json_object_set_new(rest, "sequence_chunk", is_cut ? json_integer(input->work.chunk) : json_null());
		(void)json_object_set_new(rest, "chunks", json_integer(rh_chunks_of(&input->work)));
		if (is->reference_tokens_per_second > 0)
			(void)json_object_set_new(rest, "reference_tokens_per_second", json_real(is->reference_tokens_per_second));
		if (!is->host_devices && is->longest_launch.seconds > 0)
			(void)json_object_set_new(rest, "longest_launch",
			                          json_pack("{s:s, s:f}", "op", rh_op_info(is->longest_launch.op)->name, "seconds",
			                                    is->longest_launch.seconds));
		(void)json_object_set_new(rest, "longest_sequence_budget", json_or_null(look->longest.budget));
		(void)json_object_set_new(rest, "longest_sequence_single", json_integer(look->longest_single.tokens));
		(void)json_object_set_new(rest, "longest_sequence_single_budget", json_or_null(look->longest_single.budget));
	}
	if (!out || !rest || json_object_update(out, rest)) {
		json_decref(out);
		out = NULL;
	}
	json_decref(rest);
	return out;
}
