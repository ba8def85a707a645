#include "session/session_model.h"

#include "ckpt/source.h"
#include "core/json.h"
#include "core/log.h"
#include "schedule/schedule.h"
#include "session/mode.h"

#include <stdio.h>
#include <string.h>

/* Numbers, truth values and lists are what they look like, all else is a word. */
int rh_session_rope_scaling(const struct rh_config *config, json_t **out)
{
	const struct rh_list *pairs = &config->rope_scaling;
	*out = NULL;
	if (!pairs->count)
		return 0;
	json_t *object = json_object();
	int failed = !object;
	for (size_t i = 0; !failed && i < pairs->count; i++) {
		char name[64];
		const char *equals = strchr(pairs->item[i], '=');
		snprintf(name, sizeof name, "%.*s", (int)(equals - pairs->item[i]), pairs->item[i]);
		json_t *value = json_loads(equals + 1, JSON_DECODE_ANY, NULL);
		failed = json_object_set_new(object, name, value ? value : json_string(equals + 1));
	}
	*out = object;
	return failed ? rh_fail(-ENOMEM, "rope_scaling: out of host memory") : 0;
}

int rh_session_scale_rope(struct rh_session *session)
{
	json_t *scaling;
	int rc = rh_session_rope_scaling(session->config, &scaling);
	if (!rc && scaling)
		rc = session->source ? rh_source_scale_rope(session->source, scaling)
		                     : rh_model_config_scale_rope(&session->random_config, scaling);
	json_decref(scaling);
	return rc;
}

/* The model's configuration becomes the session's own copy, which may be changed. */
static int own_config(struct rh_session *session)
{
	int rc = session->model_config == &session->stage ? 0 : rh_model_config_copy(session->model_config, &session->stage);
	session->model_config = &session->stage;
	return rc;
}

int rh_session_untie_config(struct rh_session *session)
{
	int rc = own_config(session);
	session->stage.tie_word_embeddings = 0;
	return rc;
}

int rh_session_keep_first_layers(struct rh_session *session)
{
	int64_t layers = session->config->first_layers;
	if (!layers || layers >= session->model_config->num_hidden_layers)
		return 0;
	int rc = own_config(session);
	return rc ? rc : rh_model_config_keep_layers(&session->stage, layers);
}

int rh_session_updates_by_stage(const struct rh_config *config)
{
	const struct rh_schedule *schedule = config->schedule ? rh_schedule_find(config->schedule) : NULL;
	return config->mode == RH_MODE_LOCAL && schedule && schedule->update == RH_UPDATE_LOCAL;
}

int rh_session_untie(struct rh_session *session)
{
	int stays_tied = session->config->tie_word_embeddings, by_stage = rh_session_updates_by_stage(session->config);
	if (stays_tied && !rh_model_ties(session->model_config))
		return rh_fail(-EINVAL, "tie_word_embeddings: this model's head is not its embedding; remove the key");
	int unties = rh_mode_of(session->config->mode)->unties || by_stage;
	if (!unties || stays_tied || session->lora || !rh_model_ties(session->model_config))
		return 0;
	int rc = rh_session_untie_config(session);
	if (!session->machine)
		rh_note("%s: the embedding and the head of this model are one table, which %s train apart: the result has two",
		        by_stage ? "schedule" : "mode", by_stage ? "stages" : "boxes");
	return rc;
}

int rh_session_check_tied(const struct rh_session *session)
{
	if (!rh_mode_of(session->config->mode)->unties || !session->lora || !rh_model_trains_tied(session->model))
		return 0;
	const struct rh_layer *end = &session->model->layer[rh_model_has_embedding(session->model) ? 0 : session->model->layers - 1];
	return rh_fail(-EINVAL,
	               "%s: this model's embedding is its head too, in another box; leave it out, or write tie_word_embeddings: false "
	               "into the model's config.json",
	               end->on_table.r ? "lora_target_modules" : "lora_modules_to_save");
}
