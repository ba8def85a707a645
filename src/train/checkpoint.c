#include "train/checkpoint.h"

#include "core/alloc.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/text.h"
#include "train/output.h"
#include "train/tensors.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* "dir/name" into `path`. */
static int in_dir(char path[PATH_MAX], const char *dir, const char *name)
{
	int length = snprintf(path, PATH_MAX, "%s/%s", dir, name);
	return length < PATH_MAX ? 0 : rh_fail(-ENAMETOOLONG, "%s/%s: the path is too long", dir, name);
}

int rh_output_save(const struct rh_session *session, const char *dir)
{
	int rc = rh_dir_make(dir);
	if (rc)
		return rc;
	const struct rh_config *config = session->config;
	rc = session->lora ? rh_adapter_save(dir, &session->adapter, session->model, session->store)
	                   : rh_weights_save(dir, session->model, session->store);
	return rc ? rc : rh_source_copy_tokenizer(session->source ? config->model_name_or_path : config->config_name, dir);
}

/* Tensors of optimizer.safetensors. */
static int optimizer_tensors(const struct rh_session *session, struct rh_tensor_list *list)
{
	const struct rh_model *model = session->model;
	int rc = rh_tensor_list_add_state(list, model, session->store);
	if (!rc && model->dtype != RH_F32 && !session->lora)
		rc = rh_tensor_list_add(list, model, RH_TENSORS_TRAINABLE, RH_F32, ".master");
	return rc;
}

static const char *const optim_names[RH_OPTIMS] = {"adamw_torch", "lion_32bit", "sgd", "adafactor"};
static const char *const layout_names[RH_LAYOUTS] = {"split", "plain", "split8"};

/* State of one optimizer means nothing to another; that of one layout is not laid out anew, so that runs that go on stay bit-equal. */
static int check_optimizer(const char *path, const struct rh_config *config, const char *optim, const char *layout)
{
	const char *now = optim_names[config->optim];
	if (optim && strcmp(optim, now))
		return rh_fail(
		        -EINVAL,
		        "%s: was saved by optim: %s, this run has %s; resume with the checkpoint's, or begin a new run from its weights",
		        path, optim, now);
	now = layout_names[config->state_layout];
	if (layout && strcmp(layout, now))
		return rh_fail(-EINVAL, "%s: was saved with state_layout: %s, this run has %s; resume with the checkpoint's", path, layout,
		               now);
	return 0;
}

/* Doubles as C99 hexadecimal: read back bit for bit. */
static int save_run_state(const char *path, const struct rh_config *config, const struct rh_run_state *state)
{
	struct rh_text text = {0};
	int rc = rh_text_printf(&text,
	                        "{\n  \"version\": 1,\n  \"step\": %" PRId64 ",\n  \"loss_since_log\": \"%a\",\n  \"run_loss\": \"%a\",\n"
	                        "  \"steps_since_log\": %" PRId64 ",\n  \"tokens\": %" PRId64 ",\n  \"trained_tokens\": %" PRId64 ",\n"
	                        "  \"data_rows\": %" PRId64 ",\n  \"data_tokens\": %" PRId64 ",\n"
	                        "  \"optim\": \"%s\",\n  \"state_layout\": \"%s\"\n}\n",
	                        state->step, state->loss_since_log, state->run_loss, state->steps_since_log, state->tokens,
	                        state->trained_tokens, state->data_rows, state->data_tokens, optim_names[config->optim],
	                        layout_names[config->state_layout]);
	if (!rc)
		rc = rh_file_write_whole(path, text.bytes, text.length);
	rh_text_free(&text);
	return rc;
}

static int load_run_state(const char *path, const struct rh_config *config, struct rh_run_state *state)
{
	json_t *json = NULL;
	const char *since = NULL, *run = NULL, *optim = NULL, *layout = NULL;
	int64_t version = 0;
	int rc = rh_json_load(path, &json);
	if (rc)
		return rc;
	*state = (struct rh_run_state){0};
	struct {
		const char *key;
		int64_t *out;
	} whole[] = {{"version", &version},
	             {"step", &state->step},
	             {"steps_since_log", &state->steps_since_log},
	             {"tokens", &state->tokens},
	             {"trained_tokens", &state->trained_tokens}};
	for (size_t i = 0; !rc && i < sizeof whole / sizeof *whole; i++)
		rc = rh_json_int(json, whole[i].key, path, RH_JSON_REQUIRED, whole[i].out);
	if (!rc)
		rc = rh_json_int(json, "data_rows", path, RH_JSON_OPTIONAL, &state->data_rows);
	if (!rc)
		rc = rh_json_int(json, "data_tokens", path, RH_JSON_OPTIONAL, &state->data_tokens);
	if (!rc)
		rc = rh_json_string(json, "loss_since_log", path, RH_JSON_REQUIRED, &since);
	if (!rc)
		rc = rh_json_string(json, "run_loss", path, RH_JSON_REQUIRED, &run);
	if (!rc)
		rc = rh_json_string(json, "optim", path, RH_JSON_OPTIONAL, &optim);
	if (!rc)
		rc = rh_json_string(json, "state_layout", path, RH_JSON_OPTIONAL, &layout);
	if (!rc)
		rc = check_optimizer(path, config, optim, layout);
	if (!rc && version != 1)
		rc = rh_fail(-EINVAL, "%s: version %" PRId64 " is not known to this program", path, version);
	if (!rc) {
		state->loss_since_log = strtod(since, NULL);
		state->run_loss = strtod(run, NULL);
	}
	json_decref(json);
	return rc;
}

int rh_checkpoint_step(const char *dir, int64_t *step)
{
	json_t *json = NULL;
	char path[PATH_MAX];
	int rc = in_dir(path, dir, "run_state.json");
	if (!rc)
		rc = rh_json_load(path, &json);
	if (rc)
		return rh_fail_in(rc, "resume_from_checkpoint: not a complete checkpoint");
	rc = rh_json_int(json, "step", path, RH_JSON_REQUIRED, step);
	json_decref(json);
	return rc;
}

/* Piece by piece: mapped pages count as this process's memory. */
static int checksum(const char *path, char *hex, size_t bytes)
{
	enum { PIECE = 1 << 20 };
	struct rh_mapping file;
	XXH3_state_t *state = XXH3_createState();
	int rc = state ? rh_file_map(path, &file) : -ENOMEM;
	if (rc) {
		XXH3_freeState(state);
		return rc;
	}
	XXH3_128bits_reset(state);
	for (size_t at = 0; at < file.length; at += PIECE) {
		size_t length = file.length - at < PIECE ? file.length - at : PIECE;
		XXH3_128bits_update(state, file.bytes + at, length);
		rh_file_forget(file.bytes + at, length);
	}
	XXH128_hash_t hash = XXH3_128bits_digest(state);
	XXH3_freeState(state);
	rh_file_unmap(&file);
	snprintf(hex, bytes, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64, (uint64_t)hash.low64);
	return 0;
}

static int save_checksums(const char *dir)
{
	DIR *entries = opendir(dir);
	if (!entries)
		return rh_fail(-errno, "%s: cannot read directory: %s", dir, strerror(errno));
	char path[PATH_MAX];
	json_t *sums = json_object();
	int rc = sums ? 0 : -ENOMEM;
	for (struct dirent *entry; !rc && (entry = readdir(entries));) {
		char hex[33];
		if (entry->d_name[0] == '.')
			continue;
		rc = in_dir(path, dir, entry->d_name);
		if (!rc)
			rc = checksum(path, hex, sizeof hex);
		if (!rc && json_object_set_new(sums, entry->d_name, json_string(hex)))
			rc = -ENOMEM;
	}
	closedir(entries);
	char *text = rc ? NULL : json_dumps(sums, JSON_INDENT(2) | JSON_SORT_KEYS);
	json_decref(sums);
	if (!rc)
		rc = text ? in_dir(path, dir, "checksums.json") : -ENOMEM;
	if (!rc)
		rc = rh_file_write_whole(path, text, strlen(text));
	free(text);
	return rc;
}

/* The list must name every part that is loaded, or a shortened list would let a damaged part through. */
static int check_list(const char *dir, const json_t *sums)
{
	static const char *const parts[] = {"optimizer.safetensors", "run_state.json", "trainer_state.json", "config.yaml"};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if (!json_object_get(sums, parts[i]))
			return rh_fail(-EINVAL, "%s/checksums.json: does not list %s: the file was damaged; resume from another checkpoint",
			               dir, parts[i]);
	DIR *entries = opendir(dir);
	if (!entries)
		return rh_fail(-errno, "%s: cannot read directory: %s", dir, strerror(errno));
	int rc = 0;
	for (struct dirent *entry; !rc && (entry = readdir(entries));) {
		int ours = !strcmp(entry->d_name, "checksums.json") || entry->d_name[0] == '.';
		if (!ours && !json_object_get(sums, entry->d_name))
			rc = rh_fail(-EINVAL, "%s/%s: is not in checksums.json: it is no part of this checkpoint; remove it", dir,
			             entry->d_name);
	}
	closedir(entries);
	return rc;
}

int rh_checkpoint_verify(const char *dir)
{
	json_t *sums = NULL, *value;
	const char *name;
	char path[PATH_MAX], hex[33];
	int rc = in_dir(path, dir, "checksums.json");
	if (!rc)
		rc = rh_json_load(path, &sums);
	if (rc)
		return rh_fail_in(rc, "resume_from_checkpoint: not a complete checkpoint");
	rc = check_list(dir, sums);
	json_object_foreach(sums, name, value)
	{
		const char *expected = json_string_value(value);
		if (rc || strchr(name, '/'))
			continue;
		rc = in_dir(path, dir, name);
		if (!rc)
			rc = checksum(path, hex, sizeof hex);
		if (!rc && (!expected || strcmp(hex, expected)))
			rc = rh_fail(-EINVAL,
			             "%s/%s: does not match its checksum: the file was damaged or changed; resume from another checkpoint",
			             dir, name);
	}
	json_decref(sums);
	return rc;
}

static int save_parts(const struct rh_session *session, const char *dir, const struct rh_run_state *state,
                      const struct rh_trainer_state *trainer)
{
	struct rh_tensor_list list = {0};
	struct rh_text yaml = {0};
	char path[PATH_MAX];
	int rc = rh_output_save(session, dir);
	if (!rc)
		rc = optimizer_tensors(session, &list);
	if (!rc)
		rc = in_dir(path, dir, "optimizer.safetensors");
	if (!rc)
		rc = rh_tensors_save(path, &list, session->model, session->store);
	rh_tensor_list_free(&list);
	if (!rc)
		rc = in_dir(path, dir, "trainer_state.json");
	if (!rc)
		rc = rh_trainer_state_save(trainer, path);
	if (!rc)
		rc = in_dir(path, dir, "run_state.json");
	if (!rc)
		rc = save_run_state(path, session->config, state);
	if (!rc)
		rc = rh_config_print(session->config, &yaml);
	if (!rc)
		rc = in_dir(path, dir, "config.yaml");
	if (!rc)
		rc = rh_file_write_whole(path, yaml.bytes, yaml.length);
	rh_text_free(&yaml);
	return rc ? rc : save_checksums(dir);
}

/* The step that a directory entry's name says; -1 if it is no checkpoint. */
static int64_t step_of(const char *name)
{
	char *end;
	if (strncmp(name, "checkpoint-", 11))
		return -1;
	long long step = strtoll(name + 11, &end, 10);
	return end == name + 11 || *end || step < 0 ? -1 : step;
}

/* Least or greatest step of the checkpoints in `dir` other than that of step `except`, and their number. */
static int scan(const char *dir, int64_t except, int64_t *oldest, int64_t *newest, int64_t *count)
{
	*oldest = *newest = -1;
	*count = 0;
	DIR *entries = opendir(dir);
	if (!entries)
		return errno == ENOENT ? 0 : rh_fail(-errno, "%s: cannot read directory: %s", dir, strerror(errno));
	for (struct dirent *entry; (entry = readdir(entries));) {
		int64_t step = step_of(entry->d_name);
		if (step < 0 || step == except)
			continue;
		*oldest = *count == 0 || step < *oldest ? step : *oldest;
		*newest = step > *newest ? step : *newest;
		++*count;
	}
	closedir(entries);
	return 0;
}

/* Never the one of step `kept` (-1: none), even where a run that went on from an older one left newer ones behind. */
static int remove_oldest(const struct rh_config *config, int64_t kept)
{
	int64_t oldest, newest, others;
	int rc = scan(config->output_dir, kept, &oldest, &newest, &others);
	while (!rc && config->save_total_limit > 0 && others + (kept >= 0) > config->save_total_limit) {
		char name[64], path[PATH_MAX];
		snprintf(name, sizeof name, "checkpoint-%" PRId64, oldest);
		rc = in_dir(path, config->output_dir, name);
		if (!rc)
			rc = rh_dir_remove(path);
		if (!rc)
			rc = scan(config->output_dir, kept, &oldest, &newest, &others);
	}
	return rc;
}

int rh_checkpoint_save(const struct rh_session *session, const struct rh_run_state *state, const struct rh_trainer_state *trainer)
{
	char name[64];
	snprintf(name, sizeof name, "checkpoint-%" PRId64, state->step);
	char *final = rh_path_join(session->config->output_dir, name);
	snprintf(name, sizeof name, ".checkpoint-%" PRId64 ".tmp", state->step);
	char *temporary = rh_path_join(session->config->output_dir, name);
	int rc = final && temporary ? rh_dir_remove(temporary) : -ENOMEM;
	if (!rc)
		rc = rh_dir_make(temporary);
	if (!rc)
		rc = save_parts(session, temporary, state, trainer);
	if (!rc)
		rc = rh_dir_sync(temporary);
	if (!rc && rh_dir_exists(final)) /* of an earlier attempt at the same step */
		rc = rh_dir_remove(final);
	if (!rc && rename(temporary, final) < 0)
		rc = rh_fail(-errno, "%s: cannot rename into place: %s", final, strerror(errno));
	if (!rc)
		rc = rh_dir_sync(session->config->output_dir);
	if (rc && temporary) {
		struct rh_fault first = {0}; /* cleaning up must not hide what went wrong */
		rh_fault_keep(&first, rc);
		int left = rh_dir_remove(temporary);
		rc = rh_fault_get(&first);
		if (left)
			rc = rh_fail(rc, "%s (and %s was left behind)", rh_error(rc), temporary);
	}
	rh_free(final);
	rh_free(temporary);
	return rc ? rc : remove_oldest(session->config, state->step);
}

int rh_checkpoint_newest(const char *dir, int64_t *newest)
{
	*newest = -1;
	DIR *entries = opendir(dir);
	if (!entries)
		return errno == ENOENT ? 0 : rh_fail(-errno, "%s: cannot read directory: %s", dir, strerror(errno));
	int rc = 0;
	for (struct dirent *entry; !rc && (entry = readdir(entries));) {
		char sums[300], path[PATH_MAX];
		int64_t step = step_of(entry->d_name);
		if (step < 0)
			continue;
		snprintf(sums, sizeof sums, "%s/checksums.json", entry->d_name);
		rc = in_dir(path, dir, sums);
		if (!rc && !rh_file_exists(path))
			rh_note("%s/%s is passed over: it has no checksums.json, so it is not complete", dir, entry->d_name);
		else if (!rc)
			*newest = step > *newest ? step : *newest;
	}
	closedir(entries);
	return rc;
}

/* ".checkpoint-N.tmp", or what core/file.h had not yet renamed: "model.safetensors.tmp.4711". */
int rh_checkpoint_left_behind(const char *name)
{
	const char *suffix = NULL;
	if (*name == '.') {
		size_t length = strlen(name);
		return length > 16 && !strncmp(name, ".checkpoint-", 12) && !strcmp(name + length - 4, ".tmp");
	}
	for (const char *at = name; (at = strstr(at, ".tmp.")); at++)
		suffix = at + 5;
	return suffix && *suffix && suffix[strspn(suffix, "0123456789")] == 0;
}

int rh_checkpoint_tidy(const struct rh_config *config, int64_t resumed)
{
	const char *output_dir = config->output_dir;
	DIR *entries = opendir(output_dir);
	if (!entries)
		return rh_fail(-errno, "%s: cannot read directory: %s", output_dir, strerror(errno));
	int rc = 0;
	for (struct dirent *entry; !rc && (entry = readdir(entries));) {
		char path[PATH_MAX];
		if (!rh_checkpoint_left_behind(entry->d_name))
			continue;
		rc = in_dir(path, output_dir, entry->d_name);
		if (!rc && *entry->d_name == '.')
			rc = rh_dir_remove(path);
		else if (!rc && unlink(path) < 0)
			rc = rh_fail(-errno, "%s: cannot remove: %s", path, strerror(errno));
		if (!rc)
			rh_note("%s is removed: a run was killed while it wrote it", path);
	}
	closedir(entries);
	return rc ? rc : remove_oldest(config, resumed);
}

int rh_checkpoint_find(const struct rh_config *config, char **path)
{
	*path = NULL;
	if (!config->resume_from_checkpoint)
		return 0;
	if (strcmp(config->resume_from_checkpoint, "true")) {
		if (!rh_dir_exists(config->resume_from_checkpoint))
			return rh_fail(-ENOENT, "resume_from_checkpoint: %s is not a directory", config->resume_from_checkpoint);
		*path = rh_strdup(config->resume_from_checkpoint);
		return *path ? 0 : -ENOMEM;
	}
	int64_t newest;
	int rc = rh_checkpoint_newest(config->output_dir, &newest), fresh = rc ? rc : rh_output_fresh(config->output_dir);
	if (fresh < 0)
		return fresh;
	if (newest < 0)
		return rh_fail(-ENOENT,
		               "resume_from_checkpoint: there is no complete checkpoint in %s; to begin a new run %sleave the key out",
		               config->output_dir, fresh ? "" : "remove what is in it, or choose another output_dir, and ");
	char name[64];
	snprintf(name, sizeof name, "checkpoint-%" PRId64, newest);
	*path = rh_path_join(config->output_dir, name);
	return *path ? 0 : -ENOMEM;
}

static int load_weights(const char *dir, struct rh_session *session)
{
	if (session->lora)
		return rh_adapter_load(dir, session->model, session->store);
	struct rh_source *source;
	int rc = rh_source_open(dir, &source);
	if (rc)
		return rc;
	rc = rh_weights_load(source, session->config->seed, session->model, session->store);
	rh_source_close(source);
	return rc;
}

/* The line of `key` ("seed: ", `length` bytes) in a printed configuration: its value, of *bytes; NULL if there is none. */
static const char *value_in(const struct rh_mapping *yaml, const char *key, size_t length, size_t *bytes)
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

/* Says which keys of the two configurations differ: the user may well want it so. */
static int tell_differences(const char *path, const struct rh_config *config)
{
	struct rh_text now = {0};
	struct rh_mapping before;
	int rc = rh_config_print(config, &now);
	if (!rc)
		rc = rh_file_map(path, &before);
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
	rh_file_unmap(&before);
	rh_text_free(&now);
	return 0;
}

int rh_checkpoint_load(const char *dir, struct rh_session *session, struct rh_run_state *state, struct rh_trainer_state *trainer)
{
	struct rh_tensor_list list = {0};
	char path[PATH_MAX];
	int rc = rh_checkpoint_verify(dir);
	if (!rc)
		rc = in_dir(path, dir, "config.yaml");
	if (!rc)
		rc = tell_differences(path, session->config);
	if (!rc)
		rc = in_dir(path, dir, "run_state.json");
	if (!rc)
		rc = load_run_state(path, session->config, state);
	if (!rc)
		rc = load_weights(dir, session);
	if (!rc)
		rc = optimizer_tensors(session, &list);
	if (!rc) /* after the weights: masters hold more than their files */
		rc = in_dir(path, dir, "optimizer.safetensors");
	if (!rc)
		rc = rh_tensors_load(path, &list, session->model, session->store);
	rh_tensor_list_free(&list);
	if (!rc)
		rc = in_dir(path, dir, "trainer_state.json");
	if (!rc)
		rc = rh_trainer_state_load(path, trainer);
	return rc;
}
