/* The lines by which a session describes its plan before it begins. */
#include "core/log.h"
#include "session/mode.h"

#include <stdio.h>

/* Backward stages end at the lowest layer that is trained: the embedding under LoRA never is. */
static void report_idle_cuts(const struct rh_session *session)
{
	int lowest = session->model->first_trained;
	for (int64_t i = 0; i < session->config->backward_cut_count; i++)
		if (session->config->backward_cuts[i] <= lowest)
			rh_note("backward_cuts: %lld has no effect, as nothing below layer %d is trained",
			        (long long)session->config->backward_cuts[i], lowest);
}

/* Asked for, and not done. */
static void report_kept_boundaries(const struct rh_session *session)
{
	const struct rh_stage_plan *plan = &session->plan.stages;
	if (!(session->config->spill & RH_SPILL_ACTIVATIONS) || session->plan.bytes.boundaries_nvme)
		return;
	rh_note("spill: activations stay in memory: %s", plan->forward_stages + plan->backward_stages == 1
	                                                         ? "all layers are one stage, and none lie between stages"
	                                                         : "the buffers on their way to NVMe would take as much of it");
}

/* What stays as the file has it. */
static void report_packed(const struct rh_session *session)
{
	const struct rh_model *model = session->model;
	int64_t matrices = 0, elements = 0, bytes = 0, feeding = 0, feeding_bytes = 0;
	for (int b = 0; b < model->blocks; b++)
		for (int t = 0; t < model->block[b].tensors; t++) {
			const struct rh_tensor *tensor = &model->block[b].tensor[t];
			if (!tensor->form)
				continue;
			if (tensor->form == RH_FORM_FP8_JOINT) {
				feeding++;
				feeding_bytes += rh_block_tensor(&model->block[b], t, model->dtype).bytes;
				continue;
			}
			matrices++;
			elements += tensor->rows * tensor->cols;
			bytes += rh_block_tensor(&model->block[b], t, model->dtype).bytes;
		}
	if (feeding)
		rh_note("fp8: %lld frozen matrices are in 8 bits, in %.1f MiB, as their products take them", (long long)feeding,
		        (double)feeding_bytes / 1048576);
	if (matrices)
		rh_note("base: %lld matrices %s%s, %.1f M weights in %.1f MiB; %s", (long long)matrices,
		        session->config->quantize ? "are packed, those that their file does not have so in "
		                                  : "stay packed as their file has them",
		        session->config->quantize ? rh_form_traits(session->config->quantize)->name : "", (double)elements / 1e6,
		        (double)bytes / 1048576,
		        session->plan.stages.plain_bytes ? "a device makes them plain once for a stage's micro-batches"
		                                         : "each product makes its own plain, which takes the least memory");
}

/* Where each byte lies, and how layers are cut. */
static void report_details(const struct rh_session *session)
{
	const struct rh_stage_plan *plan = &session->plan.stages;
	int saving = 0;
	for (int i = 0; i < plan->backward_stages; i++)
		saving += !plan->places[i].recomputes;
	char plain[48] = "";
	if (plan->plain_bytes)
		snprintf(plain, sizeof plain, ", prepared for products %.1f", (double)plan->plain_bytes / 1048576);
	rh_note("plan: %s, %d forward and %d backward stages, %d of them without recompute; device %.1f MiB (weights %.1f%s, gradients "
	        "%.1f, activations %.1f)",
	        session->config->device, plan->forward_stages, plan->backward_stages, saving + 1, (double)plan->device_bytes / 1048576,
	        (double)plan->weight_bytes / 1048576, plain, (double)(plan->gradient_bytes + plan->rounded_bytes) / 1048576,
	        (double)(plan->arena_bytes + plan->kept_bytes) / 1048576);
	if (session->plan.balanced.step_s > 0 && session->rates_assumed)
		rh_note("stages: cut for %d devices by what layers take, by assumed rates (doctor --save local measures them)",
		        session->devices.count);
	else if (session->plan.balanced.step_s > 0)
		rh_note("stages: cut for %d devices by what layers take (profile local); compute alone takes %.3g s a step, %.0f %% of it "
		        "idle",
		        session->devices.count, session->plan.balanced.step_s, 100 * session->plan.balanced.idle);
	if (session->plan.executor.train_round > 0 && session->config->gradient_accumulation_steps > session->plan.executor.train_round &&
	    rh_schedule_has_rounds(session->plan.executor.schedule))
		rh_note("rounds: at most %lld micro-batches each", (long long)session->plan.executor.train_round);
	rh_note("host: %.1f MiB (weights and optimizer %.1f, boundaries %.1f, devices %.1f, data %.1f, program %.1f, checkpoints %.1f)",
	        (double)session->plan.bytes.total / 1048576, (double)session->plan.bytes.store / 1048576,
	        (double)session->plan.bytes.boundaries / 1048576,
	        (double)(session->plan.bytes.device * session->plan.bytes.host_devices) / 1048576,
	        (double)session->plan.bytes.data / 1048576, (double)session->plan.bytes.program / 1048576,
	        (double)session->plan.bytes.checkpoints / 1048576);
}

void rh_session_report(const struct rh_session *session)
{
	report_idle_cuts(session);
	int64_t trainable, all;
	rh_model_parameters(session->model, &trainable, &all);
	rh_note("model: %.1f M parameters, %.2f M trained (%.2f %%), %s", (double)all / 1e6, (double)trainable / 1e6,
	        all ? 100.0 * (double)trainable / (double)all : 0, session->config->dtype == RH_F32 ? "fp32" : "bf16");
	report_packed(session);
	int64_t unfit = rh_model_unfit(session->model);
	if (unfit)
		rh_note("%s: the products of %lld linears stay in bf16 with fp32 sums: their lengths are no multiples of %d",
		        session->config->fp8 ? "fp8" : "accumulation: fp16", (long long)unfit, session->config->fp8 ? 16 : 8);
	if (session->model->head_rows < session->model->head_rows_wanted)
		rh_note("max_vram: the loss is made at most %lld tokens at a time, not %lld, for want of device memory: slower, and its "
		        "sums "
		        "are rounded otherwise; raise it, or lower per_device_train_batch_size",
		        (long long)rh_head_chunk(session->model, INT64_MAX), (long long)session->model->head_rows_wanted);
	report_kept_boundaries(session);
	const struct rh_mode_order *order = &rh_session_mode(session)->order;
	if (order->orders_boxes && order->update == RH_UPDATE_LOCAL && session->plan.stages.backward_stages > 1)
		rh_note("mode %s: this box runs its layers in %d stages, and recomputes each from the input that its forward had: memory "
		        "limits that lead to other stages lead to slightly other results",
		        rh_mode_name(session->config->mode), session->plan.stages.backward_stages);
	if (session->config->verbose)
		report_details(session);
	else
		rh_note("plan: %s, device %.1f MiB each, host %.1f MiB (--verbose says where)", session->config->device,
		        (double)session->plan.stages.device_bytes / 1048576, (double)session->plan.bytes.total / 1048576);
}
