/* `roundhouse train`: the run, and its result as a line of JSON. */
#include "train/train.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "core/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int verb_print_json(struct json_t *object)
{
	char *line = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
	json_decref(object);
	if (!line)
		return rh_fail(-EINVAL, "the result cannot be printed as JSON");
	puts(line);
	free(line);
	return fflush(stdout) ? rh_fail(-errno, "standard output: cannot write: %s", strerror(errno)) : 0;
}

static int print_json(const struct rh_train_result *result)
{
	json_t *eval = json_null();
	if (result->has_eval)
		eval = json_pack("{s:o, s:o, s:o, s:I}", "eval_loss", rh_json_number(result->eval.loss), "eval_token_accuracy",
		                 rh_json_number(result->eval.token_accuracy), "eval_accuracy",
		                 rh_json_number(result->eval.choice_accuracy < 0 ? NAN : result->eval.choice_accuracy), "eval_rows",
		                 (json_int_t)result->eval.rows);
	return verb_print_json(json_pack(
	        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:{s:I, s:I, s:I}, s:{s:{s:I, s:I, s:I}, s:o, s:b}}", "steps",
	        (json_int_t)result->steps, "mean_loss", rh_json_number(result->mean_loss), "final_loss", rh_json_number(result->final_loss),
	        "eval", eval, "tokens_per_second", rh_json_number(result->tokens_per_second), "seconds", rh_json_number(result->seconds),
	        "reference_seconds", rh_json_number(result->reference_seconds > 0 ? result->reference_seconds : NAN), "interrupted",
	        result->interrupted, "peak_bytes", "vram", (json_int_t)result->device_peak_bytes, "ram", (json_int_t)result->ram_peak_bytes,
	        "nvme", (json_int_t)result->nvme_bytes, "plan", "peak_bytes", "vram", (json_int_t)result->device_planned_bytes, "ram",
	        (json_int_t)result->ram_planned_bytes, "nvme", (json_int_t)result->nvme_bytes, "tokens_per_second",
	        rh_json_number(result->predicted_tokens_per_second > 0 ? result->predicted_tokens_per_second : NAN), "rates_assumed",
	        result->rates_assumed));
}

int verb_train(const struct rh_config *config)
{
	struct rh_train_result result;
	int rc = rh_train(config, &result);
	if (rc)
		return rc;
	if (config->json)
		return print_json(&result);
	if (!(result.tokens_per_second > 0)) {
		rh_note("%lld steps; nothing was left to train", (long long)result.steps);
		return 0;
	}
	rh_note("%lld steps, %.1f tokens/s, mean loss %.6f, of the last %lld step%s %.6f; peak: device %.1f MiB of %.1f planned, process "
	        "%.1f MiB of %.1f planned",
	        (long long)result.steps, result.tokens_per_second, result.mean_loss, (long long)result.final_steps,
	        result.final_steps == 1 ? "" : "s", result.final_loss, (double)result.device_peak_bytes / 1048576,
	        (double)result.device_planned_bytes / 1048576, (double)result.ram_peak_bytes / 1048576,
	        (double)result.ram_planned_bytes / 1048576);
	if (result.drift_micro_batches)
		rh_note("version drift: at most %lld, bound %lld; %lld of %lld micro-batches met an update between forward and backward",
		        (long long)result.version_drift, (long long)result.version_drift_bound, (long long)result.drifted,
		        (long long)result.drift_micro_batches);
	if (result.predicted_tokens_per_second > 0 && !result.rates_assumed) /* guessed rates predict nothing */
		rh_note("predicted: %.1f tokens/s; measured is %.2f of that", result.predicted_tokens_per_second,
		        result.tokens_per_second / result.predicted_tokens_per_second);
	return 0;
}
