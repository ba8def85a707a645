#include "checkpoint/checkpoint_internal.h"

#include "core/alloc.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/text.h"
#include "session/prompting.h"
#include "weights/tensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int checkpoint_in(char path[PATH_MAX], const char *dir, const char *name)
{
	int length = snprintf(path, PATH_MAX, "%s/%s", dir, name);
	return length < PATH_MAX ? 0 : rh_fail(-ENAMETOOLONG, "%s/%s: the path is too long", dir, name);
}

/* Tensors of optimizer.safetensors. */
int checkpoint_optimizer_tensors(const struct rh_session *session, struct rh_tensor_list *list)
{
	const struct rh_model *model = session->model;
	int rc = rh_tensor_list_add_state(list, model, session->store);
	if (!rc && model->dtype != RH_F32 && !session->lora)
		rc = rh_tensor_list_add(list, model, RH_TENSORS_TRAINABLE, RH_F32, ".master");
	return rc;
}

#define MOST_COUNTED (INT64_C(1) << 60) /* sums of it and of what a run adds do not overflow */

const char *const checkpoint_optim_names[RH_OPTIMS] = {"adamw_torch", "lion_32bit", "sgd", "adafactor"};
const char *const checkpoint_layout_names[RH_LAYOUTS] = {"split", "plain", "split8"};

/* State of one optimizer means nothing to another; that of one layout is not laid out anew, so that runs that go on stay bit-equal. */
static int check_optimizer(const char *path, const struct rh_config *config, const char *optim, const char *layout)
{
	const char *now = checkpoint_optim_names[config->optim];
	if (optim && strcmp(optim, now))
		return rh_fail(
		        -EINVAL,
		        "%s: was saved by optim: %s, this run has %s; resume with the checkpoint's, or begin a new run from its weights",
		        path, optim, now);
	now = checkpoint_layout_names[config->state_layout];
	if (layout && strcmp(layout, now))
		return rh_fail(-EINVAL, "%s: was saved with state_layout: %s, this run has %s; resume with the checkpoint's", path, layout,
		               now);
	return 0;
}

static int read_number(const json_t *json, const char *key, const char *path, enum rh_json_need need, double *out)
{
	const char *text = NULL;
	char *end;
	int rc = rh_json_string(json, key, path, need, &text);
	if (rc || !text)
		return rc;
	*out = strtod(text, &end);
	return *text && !*end && isfinite(*out) ? 0 : rh_fail(-EINVAL, "%s: '%s' must be a finite number", path, key);
}

/* The newest comes last. A checkpoint of an earlier version has one alone. */
static int read_shares(const json_t *json, const char *path, struct rh_run_state *out)
{
	const json_t *shares = json_object_get(json, "norm_shares");
	size_t count = json_array_size(shares);
	double one = 0;
	int rc = read_number(json, "norm_share", path, RH_JSON_OPTIONAL, &one);
	for (int64_t s = out->step; !rc && !shares && one > 0 && s > 0 && s > out->step - RH_NORM_SHARES;)
		rh_run_state_share(out, --s, one);
	if (!rc && shares && (!json_is_array(shares) || count > RH_NORM_SHARES || (int64_t)count > out->step))
		rc = rh_fail(-EINVAL, "%s: 'norm_shares' must be at most %d numbers, and no more than there were steps", path,
		             RH_NORM_SHARES);
	for (size_t i = 0; !rc && i < count; i++) {
		const char *text = json_string_value(json_array_get(shares, i));
		char *end = NULL;
		double share = text ? strtod(text, &end) : -1;
		if (!text || !*text || *end || !isfinite(share) || share < 0)
			rc = rh_fail(-EINVAL, "%s: 'norm_shares' must be finite numbers from 0", path);
		else
			out->norm_share[(out->step - (int64_t)count + (int64_t)i) % RH_NORM_SHARES] = share;
	}
	return rc;
}

/* The newest step's come last. */
static int read_device_shares(const json_t *json, const char *path, struct rh_run_state *out)
{
	const json_t *steps = json_object_get(json, "device_norm_shares");
	size_t count = json_array_size(steps), devices = json_array_size(json_array_get(steps, 0));
	int is_wrong = steps && (!json_is_array(steps) || !count || count > RH_DEVICE_SHARES || (int64_t)count > out->step || !devices ||
	                         devices > RH_SHARING_DEVICES);
	for (size_t i = 0; !is_wrong && i < count; i++) {
		const json_t *step = json_array_get(steps, i);
		double *share = out->device_share[(out->step - (int64_t)count + (int64_t)i) % RH_DEVICE_SHARES];
		is_wrong = json_array_size(step) != devices;
		for (size_t d = 0; !is_wrong && d < devices; d++) {
			const char *text = json_string_value(json_array_get(step, d));
			char *end = NULL;
			share[d] = text ? strtod(text, &end) : -1;
			is_wrong = !text || !*text || *end || !isfinite(share[d]) || share[d] < 0;
		}
	}
	out->share_devices = (int)devices;
	return !is_wrong ? 0
	                 : rh_fail(-EINVAL,
	                           "%s: 'device_norm_shares' must be at most %d lists of as many finite numbers from 0, and no more lists "
	                           "than there were steps",
	                           path, RH_DEVICE_SHARES);
}

static int read_figures(const json_t *json, const char *path, struct rh_figures *out)
{
	const json_t *figures = json_object_get(json, "figures");
	size_t count = json_array_size(figures) / 2;
	for (size_t f = 0; f < count && f < RH_FIGURES; f++) {
		const char *text = json_string_value(json_array_get(figures, 2 * f));
		const json_t *of = json_array_get(figures, 2 * f + 1);
		char *end = NULL;
		out->sum[f] = text ? strtod(text, &end) : 0;
		out->count[f] = json_integer_value(of);
		if (!text || !*text || *end || !isfinite(out->sum[f]) || out->count[f] < 0 || out->count[f] > MOST_COUNTED)
			return rh_fail(-EINVAL, "%s: 'figures' must be finite numbers, each with how many it is the sum of", path);
	}
	return 0;
}

/* `version` too. */
static int read_run_state(const json_t *json, const char *path, const struct rh_config *config, struct rh_run_state *out)
{
	const char *optim = NULL, *layout = NULL, *date = NULL, *saved = NULL;
	int64_t version = 0;
	const struct {
		const char *key;
		int64_t *out;
		enum rh_json_need need;
	} counts[] = {{"version", &version, RH_JSON_REQUIRED},
	              {"step", &out->step, RH_JSON_REQUIRED},
	              {"steps_since_log", &out->steps_since_log, RH_JSON_REQUIRED},
	              {"tokens", &out->tokens, RH_JSON_REQUIRED},
	              {"trained_tokens", &out->trained_tokens, RH_JSON_REQUIRED},
	              {"skipped_steps", &out->skipped_steps, RH_JSON_OPTIONAL},
	              {"drift_since_log", &out->drift_since_log, RH_JSON_OPTIONAL},
	              {"idle_steps", &out->idle_steps, RH_JSON_OPTIONAL},
	              {"idle_steps_of_epoch", &out->idle_steps_of_epoch, RH_JSON_OPTIONAL},
	              {"data_rows", &out->data_rows, RH_JSON_OPTIONAL},
	              {"data_tokens", &out->data_tokens, RH_JSON_OPTIONAL},
	              {"sequence_chunk", &out->sequence_chunk, RH_JSON_OPTIONAL}};
	int rc = 0;
	for (size_t i = 0; !rc && i < sizeof counts / sizeof *counts; i++) {
		rc = rh_json_int(json, counts[i].key, path, counts[i].need, counts[i].out);
		if (!rc && (*counts[i].out < 0 || *counts[i].out > MOST_COUNTED))
			rc = rh_fail(-EINVAL, "%s: '%s' is %" PRId64 ", which no run counts to", path, counts[i].key, *counts[i].out);
	}
	if (!json_object_get(json, "sequence_chunk"))
		out->sequence_chunk = -1;
	if (!rc && version != 1)
		rc = rh_fail(-EINVAL, "%s: version %" PRId64 " is not known to this program", path, version);
	if (!rc)
		rc = read_number(json, "loss_since_log", path, RH_JSON_REQUIRED, &out->loss_since_log);
	if (!rc)
		rc = read_number(json, "run_loss", path, RH_JSON_REQUIRED, &out->run_loss);
	if (!rc)
		rc = read_shares(json, path, out);
	if (!rc)
		rc = read_device_shares(json, path, out);
	if (!rc)
		rc = read_figures(json, path, &out->figures_since_log);
	if (!rc)
		rc = rh_json_string(json, "optim", path, RH_JSON_OPTIONAL, &optim);
	if (!rc)
		rc = rh_json_string(json, "state_layout", path, RH_JSON_OPTIONAL, &layout);
	if (!rc)
		rc = rh_json_string(json, "chat_template_date", path, RH_JSON_OPTIONAL, &date);
	if (!rc)
		rc = rh_json_string(json, "saved_dtype", path, RH_JSON_OPTIONAL, &saved);
	if (!rc && (saved && !strcmp(saved, "fp8")) != (config->saved_dtype == RH_SAVED_FP8))
		rh_note("%s: was saved with saved_dtype: %.8s, this run has %s: it goes on with other gradients", path,
		        saved ? saved : "dtype", config->saved_dtype == RH_SAVED_FP8 ? "fp8" : "dtype");
	if (!rc && date && strcmp(date, config->chat_template_date))
		rh_note("%s: was saved with chat_template_date: %.20s, this run has %s: conversations that hold the day go on otherwise",
		        path, date, config->chat_template_date);
	return rc ? rc : check_optimizer(path, config, optim, layout);
}

int rh_checkpoint_state(const char *dir, const struct rh_config *config, struct rh_run_state *state, struct rh_trainer_state *trainer)
{
	json_t *json = NULL;
	char path[PATH_MAX], theirs[PATH_MAX];
	*state = (struct rh_run_state){0};
	*trainer = (struct rh_trainer_state){0};
	int rc = checkpoint_in(path, dir, "run_state.json");
	if (!rc)
		rc = checkpoint_in(theirs, dir, "trainer_state.json");
	if (!rc)
		rc = rh_json_load(path, &json);
	if (!rc)
		rc = read_run_state(json, path, config, state);
	json_decref(json);
	if (!rc)
		rc = rh_trainer_state_load(theirs, trainer);
	/* the end that the checkpoint's own run had; this one's may be another */
	if (!rc && (state->step != trainer->global_step || state->step > trainer->max_steps)) {
		rc = rh_fail(-EINVAL,
		             "%s: step %" PRId64 ", but trainer_state.json has step %" PRId64 " of %" PRId64 ": one of them was changed",
		             path, state->step, trainer->global_step, trainer->max_steps);
		rh_trainer_state_free(trainer);
	}
	return rc;
}

/* What verification asks for: all files as they were written, those that a run goes on from, or the weights. */
enum wanted { ALL_FILES, STATE_FILES, WEIGHT_FILES };

/* Written with save_only_model: neither state nor its place in the list. */
static int is_model_alone(const char *dir, const json_t *sums)
{
	char state[PATH_MAX];
	int is = !json_object_get(sums, "optimizer.safetensors") && !json_object_get(sums, "run_state.json");
	return is && !checkpoint_in(state, dir, "run_state.json") && !rh_file_exists(state);
}

/* A file is not what it should be; 0 where that is no matter. */
static int judge_file(const char *dir, const char *name, enum wanted wanted, const char *fault)
{
	if (wanted == ALL_FILES || !rh_source_is_of_tokenizer(name))
		return rh_fail(-EINVAL, "%s/%s: %s", dir, name, fault);
	rh_note("%s/%s: %s; the run goes on, with the tokenizer of its model", dir, name, fault);
	return 0;
}

/* The list must name every part that is loaded, or a shortened list would let a damaged part through. */
static int check_list(const char *dir, const json_t *sums, enum wanted wanted)
{
	static const char *const parts[] = {"optimizer.safetensors", "run_state.json", "trainer_state.json", "config.yaml"};
	struct rh_names names;
	int is_alone = is_model_alone(dir, sums);
	if (is_alone && wanted == STATE_FILES)
		return rh_fail(-EINVAL, "%s: holds the model alone (save_only_model: true), so no run goes on from it", dir);
	for (size_t i = is_alone ? 2 : 0; i < sizeof parts / sizeof *parts; i++)
		if (!json_object_get(sums, parts[i]))
			return rh_fail(-EINVAL, "%s/checksums.json: does not list %s: the file was damaged", dir, parts[i]);
	int rc = rh_dir_list(dir, &names);
	for (size_t i = 0; !rc && i < names.count; i++) {
		int ours = !strcmp(names.name[i], "checksums.json") || *names.name[i] == '.';
		if (!ours && !json_object_get(sums, names.name[i]))
			rc = judge_file(dir, names.name[i], wanted,
			                "is not in checksums.json: it is no part of this checkpoint; remove it");
	}
	rh_names_free(&names);
	return rc;
}

static int check_file(const char *dir, const char *name, const char *expected, enum wanted wanted)
{
	char path[PATH_MAX], hex[RH_FILE_HASH];
	int rc = checkpoint_in(path, dir, name);
	if (rc)
		return rc;
	rc = rh_file_hash(path, hex);
	if (rh_file_is_damage(rc) && wanted != ALL_FILES && rh_source_is_of_tokenizer(name)) {
		rh_error_clear();
		return judge_file(dir, name, wanted, "is gone");
	}
	if (!rc && (!expected || strcmp(hex, expected)))
		rc = judge_file(dir, name, wanted, "does not match its checksum: the file was damaged or changed");
	return rc;
}

static int verify(const char *dir, enum wanted wanted)
{
	json_t *sums = NULL, *value;
	const char *name;
	char path[PATH_MAX];
	int rc = checkpoint_in(path, dir, "checksums.json");
	if (!rc)
		rc = rh_json_load(path, &sums);
	if (rc)
		return rc;
	rc = check_list(dir, sums, wanted);
	json_object_foreach(sums, name, value) if (!rc && !strchr(name, '/')) rc = check_file(dir, name, json_string_value(value), wanted);
	json_decref(sums);
	return rc;
}

int rh_checkpoint_verify(const char *dir)
{
	return verify(dir, ALL_FILES);
}

int rh_checkpoint_verify_state(const char *dir)
{
	return verify(dir, STATE_FILES);
}

static int load_weights(const char *dir, struct rh_session *session)
{
	if (session->lora)
		return rh_adapter_load(dir, NULL, session->model, session->store);
	struct rh_source *source;
	int rc = rh_source_open_part(dir, rh_model_is_part(session->model) ? session->model : NULL, &source);
	if (rc)
		return rc;
	rc = rh_weights_load(source, session->config->seed, session->model, session->store, session->pool, NULL);
	rh_source_close(source);
	return rc;
}

/* The line of `key` ("seed: ", `length` bytes) in a printed configuration: its value, of *bytes; NULL if there is none. */
static const char *value_in(const struct rh_bytes *yaml, const char *key, size_t length, size_t *bytes)
{
	const char *at = yaml->bytes, *end = yaml->bytes + yaml->length;
	while (at < end) {
		const char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
		if ((size_t)(stop - at) >= length && !memcmp(at, key, length)) {
			*bytes = (size_t)(stop - at) - length;
			return at + length;
		}
		at = stop + 1;
	}
	return NULL;
}

int rh_checkpoint_value(const char *dir, const char *key, json_t **out)
{
	struct rh_bytes yaml;
	char path[PATH_MAX];
	size_t bytes = 0;
	*out = NULL;
	int rc = checkpoint_in(path, dir, "config.yaml");
	if (!rc)
		rc = rh_file_load(path, &yaml);
	if (rc)
		return rc;
	const char *value = value_in(&yaml, key, strlen(key), &bytes);
	if (value) /* lists of quoted words are JSON too */
		rc = rh_json_parse(value, bytes, path, out);
	rh_bytes_free(&yaml);
	return rc;
}

/* Says which keys of the two configurations differ: the user may well want it so. */
static int tell_differences(const char *path, const struct rh_config *config)
{
	struct rh_text now = {0};
	struct rh_bytes before;
	int rc = rh_config_print(config, &now);
	if (!rc)
		rc = rh_file_load(path, &before);
	if (rc) {
		rh_text_free(&now);
		return rc;
	}
	for (const char *at = now.bytes; *at;) {
		size_t whole = strcspn(at, "\n"), key = strcspn(at, ":") + 2, bytes = 0;
		int counts = *at != '#' && key <= whole && strncmp(at, "resume_from_checkpoint", 22);
		const char *was = counts ? value_in(&before, at, key, &bytes) : NULL;
		if (was && (bytes != whole - key || memcmp(was, at + key, bytes)))
			rh_note("differs from the checkpoint's configuration: %.*s (was %.*s)", (int)whole, at, (int)bytes, was);
		else if (counts && !was)
			rh_note("differs from the checkpoint's configuration: %.*s (was not given)", (int)whole, at);
		at += whole + (at[whole] == '\n');
	}
	rh_bytes_free(&before);
	rh_text_free(&now);
	return 0;
}

/* A run of stale weights that stopped between two saves: its next step computes with weights that lack the last gradient. */
static int load_published(const char *dir, struct rh_session *session)
{
	struct rh_tensor_list list = {0};
	char path[PATH_MAX];
	int rc = checkpoint_in(path, dir, CHECKPOINT_PUBLISHED);
	if (rc || !rh_file_exists(path))
		return rc;
	if (!rh_store_options(session->store)->published) {
		rh_note("%s is passed over: optimizer_staleness is 0 now, and all weights are the newest", path);
		return 0;
	}
	rc = rh_tensor_list_add(&list, session->model, RH_TENSORS_PUBLISHED, session->model->dtype, "");
	if (!rc)
		rc = rh_tensors_load(path, &list, 0, session->model, session->store);
	rh_tensor_list_free(&list);
	return rc;
}

int rh_checkpoint_load_weights(const char *dir, struct rh_session *session)
{
	int rc = verify(dir, WEIGHT_FILES);
	return rc ? rc : load_weights(dir, session);
}

int rh_checkpoint_load(const char *dir, struct rh_session *session)
{
	struct rh_tensor_list list = {0};
	char path[PATH_MAX];
	int rc = checkpoint_in(path, dir, "config.yaml");
	if (!rc)
		rc = tell_differences(path, session->config);
	if (!rc)
		rc = load_weights(dir, session);
	if (!rc)
		rc = checkpoint_optimizer_tensors(session, &list);
	if (!rc) /* after the weights: masters hold more than their files */
		rc = checkpoint_in(path, dir, "optimizer.safetensors");
	if (!rc)
		rc = rh_tensors_load(path, &list, 0, session->model, session->store);
	rh_tensor_list_free(&list);
	return rc ? rc : load_published(dir, session);
}
