#include "observe/trainer_state.h"

#include "core/alloc.h"
#include "core/file.h"
#include "core/text.h"

#include <math.h>
#include <stdlib.h>

static int no_memory(void)
{
	return rh_fail(-ENOMEM, "out of host memory for trainer_state.json");
}

static json_t *rate(int64_t count, double seconds)
{
	return rh_json_number(seconds > 0 ? (double)count / seconds : (double)NAN);
}

int rh_trainer_state_create(struct rh_trainer_state *out)
{
	*out = (struct rh_trainer_state){.log_history = json_array()};
	return out->log_history ? 0 : no_memory();
}

void rh_trainer_state_free(struct rh_trainer_state *state)
{
	rh_free(state->best_checkpoint);
	json_decref(state->log_history);
	*state = (struct rh_trainer_state){0};
}

static int read_counts(const json_t *file, const char *path, struct rh_trainer_state *out)
{
	const struct {
		const char *key;
		int64_t *count;
		enum rh_json_need need;
	} counts[] = {{"global_step", &out->global_step, RH_JSON_REQUIRED},
	              {"max_steps", &out->max_steps, RH_JSON_OPTIONAL},
	              {"num_train_epochs", &out->num_train_epochs, RH_JSON_OPTIONAL},
	              {"train_batch_size", &out->train_batch_size, RH_JSON_OPTIONAL},
	              {"logging_steps", &out->logging_steps, RH_JSON_OPTIONAL},
	              {"eval_steps", &out->eval_steps, RH_JSON_OPTIONAL},
	              {"save_steps", &out->save_steps, RH_JSON_OPTIONAL},
	              {"num_input_tokens_seen", &out->num_input_tokens_seen, RH_JSON_OPTIONAL}};
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		int rc = rh_json_int(file, counts[i].key, path, counts[i].need, counts[i].count);
		if (rc)
			return rc;
		if (*counts[i].count < 0)
			return rh_fail(-EINVAL, "%s: '%s' must not be negative", path, counts[i].key);
	}
	return 0;
}

/* transformers writes all three, or null. */
static int read_best(const json_t *file, const char *path, struct rh_trainer_state *out)
{
	const char *checkpoint = NULL;
	int rc = rh_json_int(file, "best_global_step", path, RH_JSON_OPTIONAL, &out->best_step);
	if (rc)
		return rc;
	rc = rh_json_real(file, "best_metric", path, RH_JSON_OPTIONAL, &out->best_metric);
	if (rc)
		return rc;
	rc = rh_json_string(file, "best_model_checkpoint", path, RH_JSON_OPTIONAL, &checkpoint);
	if (rc)
		return rc;
	const json_t *stopping = json_object_get(json_object_get(file, "stateful_callbacks"), "EarlyStoppingCallback"),
	             *attributes = json_object_get(stopping, "attributes");
	if (json_is_object(attributes))
		rc = rh_json_int(attributes, "early_stopping_patience_counter", path, RH_JSON_OPTIONAL, &out->patience_used);
	if (!rc && (out->best_step < 0 || out->patience_used < 0))
		rc = rh_fail(-EINVAL, "%s: 'best_global_step' and the patience counter must not be negative", path);
	if (!rc && checkpoint && !(out->best_checkpoint = rh_strdup(checkpoint)))
		rc = -ENOMEM;
	return rc;
}

static int read_history(const json_t *file, const char *path, struct rh_trainer_state *out)
{
	json_t *history = json_object_get(file, "log_history");
	if (!json_is_array(history))
		return rh_fail(-EINVAL, "%s: 'log_history' must be a list", path);
	for (size_t i = 0; i < json_array_size(history); i++)
		if (!json_is_object(json_array_get(history, i)))
			return rh_fail(-EINVAL, "%s: entry %zu of 'log_history' must be an object", path, i);
	out->log_history = json_incref(history);
	return 0;
}

static int read_all(const json_t *file, const char *path, struct rh_trainer_state *out)
{
	int rc = read_counts(file, path, out);
	if (rc)
		return rc;
	rc = rh_json_real(file, "epoch", path, RH_JSON_REQUIRED, &out->epoch);
	if (rc)
		return rc;
	rc = rh_json_real(file, "total_flos", path, RH_JSON_OPTIONAL, &out->total_flos);
	if (rc)
		return rc;
	rc = read_best(file, path, out);
	return rc ? rc : read_history(file, path, out);
}

int rh_trainer_state_load(const char *path, struct rh_trainer_state *out)
{
	json_t *file = NULL;
	*out = (struct rh_trainer_state){0};
	int rc = rh_json_load(path, &file);
	if (!rc)
		rc = read_all(file, path, out);
	json_decref(file);
	if (rc) {
		rh_free(out->best_checkpoint);
		*out = (struct rh_trainer_state){0};
	}
	return rc;
}

/* Sets a key and takes the value over; *rc keeps the first failure. */
static void put(json_t *object, const char *key, json_t *value, int *rc)
{
	if (json_object_set_new(object, key, value) && !*rc)
		*rc = no_memory();
}

static int64_t step_of(const json_t *entry)
{
	return json_integer_value(json_object_get(entry, "step"));
}

/* Steps between entries that stay, if one comes each `each` steps: so many that at most a quarter of the places are theirs. */
static int64_t spacing_of(int64_t newest, int64_t each)
{
	int64_t spacing = each > 0 ? each : 1;
	while (newest / spacing > RH_HISTORY_MOST / 4)
		spacing *= 2;
	return spacing;
}

static int thin_out(struct rh_trainer_state *state)
{
	json_t *kept = json_array(), *entry;
	size_t count = json_array_size(state->log_history), i;
	int64_t newest = step_of(json_array_get(state->log_history, count - 1)), of_steps = spacing_of(newest, state->logging_steps),
	        of_evaluations = spacing_of(newest, state->eval_steps);
	int failed = !kept;
	json_array_foreach(state->log_history, i, entry)
	{
		int64_t spacing = json_object_get(entry, "loss") ? of_steps : of_evaluations;
		if (!failed && (step_of(entry) % spacing == 0 || i + 1 == count))
			failed = json_array_append(kept, entry);
	}
	if (failed) {
		json_decref(kept);
		return no_memory();
	}
	json_decref(state->log_history);
	state->log_history = kept;
	return 0;
}

static int append(struct rh_trainer_state *state, json_t *entry, int rc)
{
	if (rc) {
		json_decref(entry);
		return rc;
	}
	if (json_array_append_new(state->log_history, entry))
		return no_memory();
	return json_array_size(state->log_history) > RH_HISTORY_MOST ? thin_out(state) : 0;
}

static void put_figures(json_t *entry, const char *prefix, const struct rh_figures *figures, int *rc)
{
	for (enum rh_figure f = 0; f < RH_FIGURES; f++) {
		char key[64];
		snprintf(key, sizeof key, "%s%s", prefix, rh_figure_name(f));
		if (figures->count[f])
			put(entry, key, rh_json_number(rh_figure_of(figures, f)), rc);
	}
}

int rh_trainer_state_log_step(struct rh_trainer_state *state, const struct rh_step_report *report)
{
	json_t *entry = json_object();
	int rc = 0;
	put(entry, "epoch", rh_json_number(report->epoch), &rc);
	put(entry, "grad_norm", rh_json_number(report->grad_norm), &rc);
	put(entry, "learning_rate", rh_json_number(report->learning_rate), &rc);
	put(entry, "loss", rh_json_number(report->loss), &rc);
	put_figures(entry, "", &report->figures, &rc);
	put(entry, "step", json_integer(report->step), &rc);
	return append(state, entry, rc);
}

int rh_trainer_state_log_eval(struct rh_trainer_state *state, const struct rh_eval_report *report)
{
	json_t *entry = json_object();
	int rc = 0;
	put(entry, "epoch", rh_json_number(report->epoch), &rc);
	put(entry, "eval_loss", rh_json_number(report->loss), &rc);
	put(entry, "eval_runtime", rh_json_number(report->seconds), &rc);
	put(entry, "eval_samples_per_second", rate(report->rows, report->seconds), &rc);
	put_figures(entry, "eval_", &report->figures, &rc);
	put(entry, "step", json_integer(report->step), &rc);
	return append(state, entry, rc);
}

int rh_trainer_state_log_end(struct rh_trainer_state *state, const struct rh_run_report *report)
{
	json_t *entry = json_object();
	int rc = 0;
	put(entry, "epoch", rh_json_number(report->epoch), &rc);
	put(entry, "step", json_integer(report->step), &rc);
	put(entry, "total_flos", rh_json_number(report->flops), &rc);
	put(entry, "train_loss", rh_json_number(report->loss), &rc);
	put(entry, "train_runtime", rh_json_number(report->seconds), &rc);
	put(entry, "train_samples_per_second", rate(report->rows, report->seconds), &rc);
	put(entry, "train_steps_per_second", rate(report->step, report->seconds), &rc);
	return append(state, entry, rc);
}

/* As transformers' ExportableState of that callback. */
static json_t *early_stopping(const struct rh_trainer_state *state)
{
	if (!state->patience)
		return json_object();
	return json_pack("{s:{s:{s:I, s:f}, s:{s:I}}}", "EarlyStoppingCallback", "args", "early_stopping_patience",
	                 (json_int_t)state->patience, "early_stopping_threshold", state->patience_threshold, "attributes",
	                 "early_stopping_patience_counter", (json_int_t)state->patience_used);
}

static int make_file(const struct rh_trainer_state *state, json_t **out)
{
	json_t *file = json_object();
	int rc = 0;
	put(file, "best_global_step", state->best_step ? json_integer(state->best_step) : json_null(), &rc);
	put(file, "best_metric", state->best_step ? rh_json_number(state->best_metric) : json_null(), &rc);
	put(file, "best_model_checkpoint", state->best_checkpoint ? json_string(state->best_checkpoint) : json_null(), &rc);
	put(file, "epoch", rh_json_number(state->epoch), &rc);
	put(file, "eval_steps", json_integer(state->eval_steps), &rc);
	put(file, "global_step", json_integer(state->global_step), &rc);
	put(file, "is_hyper_param_search", json_false(), &rc);
	put(file, "is_local_process_zero", json_true(), &rc);
	put(file, "is_world_process_zero", json_true(), &rc);
	put(file, "log_history", json_incref(state->log_history), &rc);
	put(file, "logging_steps", json_integer(state->logging_steps), &rc);
	put(file, "max_steps", json_integer(state->max_steps), &rc);
	put(file, "num_input_tokens_seen", json_integer(state->num_input_tokens_seen), &rc);
	put(file, "num_train_epochs", json_integer(state->num_train_epochs), &rc);
	put(file, "save_steps", json_integer(state->save_steps), &rc);
	put(file, "stateful_callbacks", early_stopping(state), &rc);
	put(file, "total_flos", rh_json_number(state->total_flos), &rc);
	put(file, "train_batch_size", json_integer(state->train_batch_size), &rc);
	put(file, "trial_name", json_null(), &rc);
	put(file, "trial_params", json_null(), &rc);
	*out = file;
	return rc;
}

/* jansson forgets a fault of its callback here and there, and goes on: this one stays. */
static int append_bytes(const char *bytes, size_t length, void *text)
{
	return rh_text_append(text, bytes, length);
}

int rh_trainer_state_print(const struct rh_trainer_state *state, struct rh_text *out)
{
	json_t *file = NULL;
	int rc = make_file(state, &file);
	if (!rc && json_dump_callback(file, append_bytes, out, JSON_INDENT(2) | JSON_SORT_KEYS))
		rc = no_memory();
	json_decref(file);
	return rc ? rc : rh_text_append(out, "\n", 1);
}

int rh_trainer_state_save(const struct rh_trainer_state *state, const char *path)
{
	struct rh_text text = {0};
	int rc = rh_trainer_state_print(state, &text);
	if (!rc)
		rc = rh_file_write_whole(path, text.bytes, text.length);
	rh_text_free(&text);
	return rc;
}
