/* What a run tells of itself in status.json (observe/status.h): what stays as it begins, and its end. */
#include "train/training.h"

#include "core/json.h"
#include "core/version.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

/* Text of others; null where it is none, or no UTF-8. */
static json_t *text_json(const char *text)
{
	json_t *json = text ? json_string(text) : NULL;
	return json ? json : json_null();
}

static json_t *addresses_json(const struct rh_devices *devices)
{
	json_t *list = json_array();
	for (int d = 0; list && d < devices->count; d++)
		(void)json_array_append_new(list, json_string(devices->device[d]->address));
	return list;
}

static json_t *findings_json(const struct rh_dataset *dataset)
{
	json_t *json = json_object();
	for (enum rh_lint lint = 0; json && lint < RH_LINTS; lint++)
		if (dataset->finding[lint].rows)
			(void)json_object_set_new(
			        json, rh_lint_name(lint),
			        json_pack("{s:I, s:s}", "rows", (json_int_t)dataset->finding[lint].rows, "meaning", rh_lint_meaning(lint)));
	return json;
}

static json_t *data_json(const struct rh_training_data *data)
{
	const struct rh_dataset *train = &data->train;
	if (!train->rows)
		return json_null(); /* another box has them */
	return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "file", text_json(train->name), "read_rows",
	                 (json_int_t)train->read_rows, "rows", (json_int_t)train->rows, "tokens", (json_int_t)train->tokens,
	                 "trained_tokens", (json_int_t)train->trained_tokens, "cut_rows", (json_int_t)train->cut_rows, "held_out_rows",
	                 (json_int_t)data->held_out.rows, "findings", findings_json(train));
}

static json_t *facts_json(const struct training *run)
{
	const struct rh_config *config = run->config;
	const struct rh_run_bytes *planned = &run->session.plan.bytes;
	const struct rh_train_result *result = run->result;
	int64_t trained, all;
	char method[64] = "all weights";
	rh_model_parameters(run->session.model, &trained, &all);
	if (run->session.lora)
		snprintf(method, sizeof method, "LoRA, rank %lld", (long long)run->session.adapter.peft.r);
	return json_pack("{s:s, s:o, s:s, s:s, s:I, s:I, s:o, s:o, s:I, s:{s:I, s:I, s:I}, s:o, s:b, s:o}", "program",
	                 "roundhouse " RH_VERSION, "model",
	                 text_json(config->model_name_or_path ? config->model_name_or_path : config->config_name), "method", method,
	                 "dtype", config->dtype == RH_F32 ? "fp32" : "bf16", "parameters", (json_int_t)all, "trained_parameters",
	                 (json_int_t)trained, "device", text_json(config->device), "addresses", addresses_json(&run->session.devices),
	                 "began", (json_int_t)time(NULL), "planned", "vram", (json_int_t)planned->device, "ram", (json_int_t)planned->total,
	                 "nvme", (json_int_t)planned->nvme, "planned_tokens_per_second",
	                 rh_json_number(result->predicted_tokens_per_second > 0 ? result->predicted_tokens_per_second : NAN),
	                 "rates_assumed", result->rates_assumed, "data", data_json(&run->data));
}

int status_open(struct training *run)
{
	return rh_status_open(run->config->output_dir, facts_json(run), &run->log.status);
}

void status_end(struct training *run, int rc)
{
	const char *line = rc ? rh_error(rc) : NULL;
	rh_status_phase(run->log.status, rc ? RH_PHASE_FAILED : run->result->interrupted ? RH_PHASE_STOPPED : RH_PHASE_ENDED, line);
}
