/* Writes a checkpoint's files in the order in which training can continue: block after block the weights and their optimizer state, then
 * whatever is small or does not change. */
#include "checkpoint/checkpoint_internal.h"

#include "ckpt/prompts.h"
#include "core/alloc.h"
#include "core/fault.h"
#include "weights/tensors_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_weights(const struct rh_session *session, const char *dir, struct rh_tensors_out **out)
{
	return session->lora ? rh_adapter_out_open(dir, session->model, session->store, out)
	                     : rh_tensors_out_open_model(dir, session->source, session->model, session->store, out);
}

static int save_weights_config(const struct rh_session *session, const char *dir)
{
	return session->lora ? rh_peft_config_save(&session->adapter.peft, dir) : rh_weights_config_save(dir, session->model);
}

/* Tokenizer and template: the same all the run long. To read a GGUF base's vocabulary takes tens of MiB for a moment, so freed memory
 * goes back to the system before and after. */
static int save_fixed(const struct rh_session *session, const char *dir)
{
	const struct rh_config *config = session->config;
	rh_alloc_return_freed();
	int rc = rh_source_copy_tokenizer(session->source ? config->model_name_or_path : config->config_name, dir);
	if (!rc && session->chat_jinja)
		rc = rh_source_set_chat_template(dir, session->chat_jinja);
	if (!rc && session->eos_changed)
		rc = rh_source_set_eos(dir, session->model_config, session->tokenizer);
	int refers = rh_preference_refers(&config->preference);
	const struct rh_prompts prompts = {.is_told = 1,
	                                   .is_chat = session->chat_trained,
	                                   .date = config->chat_template_date,
	                                   .base = *session->base_digest ? session->base_digest : NULL,
	                                   .reference_model = refers ? config->model_name_or_path : NULL,
	                                   .reference_adapter = refers ? config->adapter_name_or_path : NULL};
	if (!rc)
		rc = rh_prompts_write(&prompts, dir);
	rh_alloc_return_freed();
	return rc;
}

int rh_output_save(const struct rh_session *session, const char *dir)
{
	struct rh_tensors_out *weights;
	int rc = rh_dir_make(dir);
	if (!rc)
		rc = open_weights(session, dir, &weights);
	if (!rc)
		rc = rh_tensors_out_commit(weights);
	if (!rc)
		rc = save_weights_config(session, dir);
	return rc ? rc : save_fixed(session, dir);
}

/* ---- files that do not change ---- */

void checkpoint_fixed_forget(struct checkpoint_fixed *fixed)
{
	rh_names_free(&fixed->names);
	*fixed->dir = 0;
}

/* Copies of the last checkpoint's files, each still what this run wrote. 0 where one is not, or cannot be copied. No checkpoint shares a
 * file with another, as programs change a tokenizer in place. */
static int copy_last(const struct checkpoint_fixed *fixed, const char *dir)
{
	int rc = 0;
	for (size_t i = 0; !rc && i < fixed->names.count; i++) {
		char from[PATH_MAX], to[PATH_MAX], hex[RH_FILE_HASH];
		rc = checkpoint_in(from, fixed->dir, fixed->names.name[i]);
		if (!rc)
			rc = checkpoint_in(to, dir, fixed->names.name[i]);
		if (!rc)
			rc = rh_file_copy(from, to);
		if (!rc)
			rc = rh_file_hash(to, hex);
		if (!rc && strcmp(hex, fixed->hex[i]))
			rc = -EINVAL;
	}
	for (size_t i = 0; rc && i < fixed->names.count; i++) { /* whatever hinders it: the base's files need none of it */
		char to[PATH_MAX];
		if (!checkpoint_in(to, dir, fixed->names.name[i]))
			rh_file_discard(to);
	}
	rh_error_clear();
	return !rc;
}

/* Makes them from the base model's, and keeps their names and checksums where there are not too many. `before`: what else is in `dir`. */
static int make_fixed(const struct checkpoint_job *job, const char *dir)
{
	struct checkpoint_fixed *fixed = job->fixed;
	struct rh_names before = {0}, after = {0};
	checkpoint_fixed_forget(fixed);
	int rc = rh_dir_list(dir, &before);
	if (!rc)
		rc = save_fixed(job->session, dir);
	if (!rc)
		rc = rh_dir_list(dir, &after);
	for (size_t i = 0, b = 0; !rc && i < after.count; i++) { /* both sorted */
		char path[PATH_MAX];
		while (b < before.count && strcmp(before.name[b], after.name[i]) < 0)
			b++;
		if (b < before.count && !strcmp(before.name[b], after.name[i]))
			continue;
		if (fixed->names.count == CHECKPOINT_FIXED)
			break;
		rc = rh_grow(&fixed->names.name, &fixed->names.capacity, fixed->names.count + 1, sizeof *fixed->names.name);
		if (!rc)
			rc = checkpoint_in(path, dir, after.name[i]);
		if (!rc)
			rc = rh_file_hash(path, fixed->hex[fixed->names.count]);
		if (!rc && !(fixed->names.name[fixed->names.count] = rh_strdup(after.name[i])))
			rc = -ENOMEM;
		fixed->names.count += !rc;
	}
	if (after.count - before.count > CHECKPOINT_FIXED)
		checkpoint_fixed_forget(fixed);
	rh_names_free(&before);
	rh_names_free(&after);
	return rc;
}

/* ---- one checkpoint ---- */

/* Doubles as C99 hexadecimal: read back bit for bit. The newest norm's comes last; "[]" where boxes do not update themselves. */
static int print_shares(const struct rh_run_state *state, struct rh_text *out)
{
	int64_t step = rh_max(0, state->step - RH_NORM_SHARES);
	while (step < state->step && !(rh_run_state_share_of(state, step) > 0))
		step++;
	int rc = rh_text_printf(out, "  \"norm_shares\": [");
	for (const char *comma = ""; !rc && step < state->step; comma = ", ")
		rc = rh_text_printf(out, "%s\"%a\"", comma, rh_run_state_share_of(state, step++));
	return rc ? rc : rh_text_printf(out, "]\n}\n");
}

/* A list for each of the newest steps that have shares. */
static int print_device_shares(const struct rh_run_state *state, struct rh_text *out)
{
	int64_t step = rh_max(0, state->step - RH_DEVICE_SHARES);
	while (step < state->step && !(state->device_share[step % RH_DEVICE_SHARES][0] > 0))
		step++;
	int rc = state->share_devices && step < state->step ? rh_text_printf(out, "  \"device_norm_shares\": [") : 0;
	for (const char *comma = ""; !rc && state->share_devices && step < state->step; comma = ", ", step++) {
		rc = rh_text_printf(out, "%s[", comma);
		for (int d = 0; !rc && d < state->share_devices; d++)
			rc = rh_text_printf(out, "%s\"%a\"", d ? ", " : "", state->device_share[step % RH_DEVICE_SHARES][d]);
		if (!rc)
			rc = rh_text_printf(out, step + 1 < state->step ? "]" : "]],\n");
	}
	return rc;
}

/* What losses over answers told since the last line: a sum, and of how many. */
static int print_figures(const struct rh_figures *figures, struct rh_text *out)
{
	int rc = 0, any = 0;
	for (enum rh_figure f = 0; f < RH_FIGURES; f++)
		any |= figures->count[f] > 0;
	for (enum rh_figure f = 0; !rc && any && f < RH_FIGURES; f++)
		rc = rh_text_printf(out, "%s\"%a\", %" PRId64, f ? ", " : "  \"figures\": [", figures->sum[f], figures->count[f]);
	return rc || !any ? rc : rh_text_printf(out, "],\n");
}

static int print_run_state(const struct rh_config *config, const struct rh_run_state *state, struct rh_text *out)
{
	int rc = rh_text_printf(out,
	                        "{\n  \"version\": 1,\n  \"step\": %" PRId64 ",\n  \"loss_since_log\": \"%a\",\n  \"run_loss\": \"%a\",\n"
	                        "  \"steps_since_log\": %" PRId64 ",\n  \"tokens\": %" PRId64 ",\n  \"trained_tokens\": %" PRId64 ",\n"
	                        "  \"skipped_steps\": %" PRId64 ",\n  \"drift_since_log\": %" PRId64 ",\n"
	                        "  \"idle_steps\": %" PRId64 ",\n  \"idle_steps_of_epoch\": %" PRId64 ",\n"
	                        "  \"data_rows\": %" PRId64 ",\n  \"data_tokens\": %" PRId64 ",\n  \"sequence_chunk\": %" PRId64 ",\n"
	                        "  \"saved_dtype\": \"%s\",\n"
	                        "  \"optim\": \"%s\",\n  \"state_layout\": \"%s\",\n  \"chat_template_date\": \"%s\",\n",
	                        state->step, state->loss_since_log, state->run_loss, state->steps_since_log, state->tokens,
	                        state->trained_tokens, state->skipped_steps, state->drift_since_log, state->idle_steps,
	                        state->idle_steps_of_epoch, state->data_rows, state->data_tokens, state->sequence_chunk,
	                        config->saved_dtype == RH_SAVED_FP8 ? "fp8" : "dtype", checkpoint_optim_names[config->optim],
	                        checkpoint_layout_names[config->state_layout], config->chat_template_date);
	if (!rc)
		rc = print_figures(&state->figures_since_log, out);
	if (!rc)
		rc = print_device_shares(state, out);
	return rc ? rc : print_shares(state, out);
}

/* The run's configuration, with the dropout that applies where none was given. */
static int print_config(const struct rh_session *session, struct rh_text *out)
{
	struct rh_config applied = *session->config; /* a view */
	if (session->lora && !applied.lora_dropout_given) {
		applied.lora_dropout = session->adapter.peft.lora_dropout;
		applied.lora_dropout_given = 1;
		applied.lora_keys_given |= applied.adapter_name_or_path ? RH_LORA_DROPOUT : 0;
	}
	return rh_config_print(&applied, out);
}

int checkpoint_job_make(const struct rh_session *session, const struct rh_run_state *state, const struct rh_trainer_state *trainer,
                        struct checkpoint_fixed *fixed, struct checkpoint_job *out)
{
	*out = (struct checkpoint_job){
	        .session = session,
	        .kept = {.newest = state->step, .best = rh_checkpoint_step(trainer->best_checkpoint), .common = INT64_MAX},
	        .fixed = fixed};
	int rc = rh_trainer_state_print(trainer, &out->trainer);
	if (!rc)
		rc = print_run_state(session->config, state, &out->run);
	if (!rc)
		rc = print_config(session, &out->config);
	if (rc)
		checkpoint_job_free(out);
	return rc;
}

void checkpoint_job_free(struct checkpoint_job *job)
{
	rh_text_free(&job->trainer);
	rh_text_free(&job->run);
	rh_text_free(&job->config);
	for (int i = 0; i < RH_CHECKPOINT_EXTRAS; i++)
		rh_text_free(&job->extra[i].text);
}

static int open_state(const struct rh_session *session, const char *dir, struct rh_tensors_out **out)
{
	struct rh_tensor_list list = {0};
	char path[PATH_MAX];
	int rc = checkpoint_optimizer_tensors(session, &list);
	if (!rc)
		rc = checkpoint_in(path, dir, "optimizer.safetensors");
	if (!rc)
		rc = rh_tensors_out_open(path, &list, session->model, session->store, out);
	rh_tensor_list_free(&list);
	return rc;
}

/* Writes nothing where every update has been published. */
static int open_published(const struct rh_session *session, const char *dir, struct rh_tensors_out **out)
{
	struct rh_tensor_list list = {0};
	char path[PATH_MAX];
	int behind = 0;
	for (int b = 0; b < session->model->blocks; b++)
		behind |= rh_store_is_behind(session->store, b);
	if (!behind)
		return 0;
	int rc = checkpoint_in(path, dir, CHECKPOINT_PUBLISHED);
	if (!rc)
		rc = rh_tensor_list_add(&list, session->model, RH_TENSORS_PUBLISHED, session->model->dtype, "");
	if (!rc)
		rc = rh_tensors_out_open(path, &list, session->model, session->store, out);
	rh_tensor_list_free(&list);
	return rc;
}

static int save_tensors(const struct checkpoint_job *job, const char *dir)
{
	enum { WEIGHTS, STATE, PUBLISHED, FILES };
	struct rh_tensors_out *out[FILES] = {NULL};
	int rc = open_weights(job->session, dir, &out[WEIGHTS]);
	if (!rc && !job->session->config->save_only_model)
		rc = open_state(job->session, dir, &out[STATE]);
	if (!rc && !job->session->config->save_only_model)
		rc = open_published(job->session, dir, &out[PUBLISHED]);
	for (int f = 0; f < FILES; f++)
		if (out[f])
			rh_tensors_out_through(out[f], job->ring);
	for (int b = 0; !rc && b < job->session->model->blocks; b++) {
		for (int f = 0; !rc && f < FILES; f++)
			rc = out[f] ? rh_tensors_out_block(out[f], b) : 0;
		if (!rc && job->written)
			job->written(job->context, b);
	}
	for (int f = 0; f < FILES; f++) {
		if (!rc && out[f])
			rc = rh_tensors_out_commit(out[f]);
		else
			rh_tensors_out_abandon(out[f]);
	}
	return rc ? rc : save_weights_config(job->session, dir);
}

static int save_text(const char *dir, const char *name, const struct rh_text *text)
{
	char path[PATH_MAX];
	int rc = checkpoint_in(path, dir, name);
	return rc ? rc : rh_file_write_whole(path, text->bytes, text->length);
}

static int save_checksums(const char *dir)
{
	struct rh_names names;
	char path[PATH_MAX];
	int rc = rh_dir_list(dir, &names);
	json_t *sums = json_object();
	if (!rc && !sums)
		rc = -ENOMEM;
	for (size_t i = 0; !rc && i < names.count; i++) {
		char hex[RH_FILE_HASH];
		if (*names.name[i] == '.')
			continue;
		rc = checkpoint_in(path, dir, names.name[i]);
		if (!rc)
			rc = rh_file_hash(path, hex);
		if (!rc && json_object_set_new(sums, names.name[i], json_string(hex)))
			rc = -ENOMEM;
	}
	rh_names_free(&names);
	char *text = rc ? NULL : json_dumps(sums, JSON_INDENT(2) | JSON_SORT_KEYS);
	json_decref(sums);
	if (!rc)
		rc = text ? checkpoint_in(path, dir, "checksums.json") : -ENOMEM;
	if (!rc)
		rc = rh_file_write_whole(path, text, strlen(text));
	free(text);
	return rc;
}

static int save_parts(const struct checkpoint_job *job, const char *dir)
{
	int rc = save_tensors(job, dir);
	if (!rc && !(*job->fixed->dir && job->fixed->names.count && copy_last(job->fixed, dir)))
		rc = make_fixed(job, dir);
	if (!rc)
		rc = save_text(dir, "trainer_state.json", &job->trainer);
	if (!rc && !job->session->config->save_only_model)
		rc = save_text(dir, "run_state.json", &job->run);
	if (!rc)
		rc = save_text(dir, "config.yaml", &job->config);
	for (int i = 0; !rc && i < RH_CHECKPOINT_EXTRAS; i++)
		if (job->extra[i].text.length)
			rc = save_text(dir, job->extra[i].name, &job->extra[i].text);
	return rc ? rc : save_checksums(dir);
}

int checkpoint_job_write(const struct checkpoint_job *job)
{
	const struct rh_config *config = job->session->config;
	char temporary[PATH_MAX], path[PATH_MAX];
	int rc = checkpoint_temporary(temporary, config->output_dir, job->kept.newest);
	if (!rc)
		rc = rh_dir_remove(temporary);
	if (rc)
		return rc;
	rc = rh_dir_make(temporary);
	if (!rc)
		rc = save_parts(job, temporary);
	if (!rc)
		rc = rh_dir_sync(temporary);
	if (!rc)
		rc = checkpoint_place(config->output_dir, job->kept.newest, path);
	if (rc) {
		struct rh_fault first = {0}; /* cleaning up must not hide what went wrong */
		rh_fault_keep(&first, rc);
		int left = rh_dir_remove(temporary);
		rc = rh_fault_get(&first);
		return left ? rh_fail(rc, "%s (and %s was left behind)", rh_error(rc), temporary) : rc;
	}
	snprintf(job->fixed->dir, sizeof job->fixed->dir, "%s", path);
	return checkpoint_remove_oldest(config, &job->kept);
}
