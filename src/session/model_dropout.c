/* Dropout of the model itself, which its config.json names and a run asks for. */
#include "core/log.h"
#include "model/family.h"
#include "session/session.h"

#include <stdio.h>
#include <string.h>

/* "attn_pdrop 0.1, embd_pdrop 0.1": those that the file says, each once. */
static void list_rates(const struct rh_model_config *config, char *text, size_t bytes)
{
	const struct rh_family *family = config->family;
	const char *const key[] = {rh_family_key(family, "attention_dropout"), family->embedding_dropout,
	                           rh_family_key(family, "hidden_dropout"), family->head_dropout};
	size_t used = 0;
	*text = 0;
	for (int i = 0; i < 4; i++) {
		double rate = key[i] ? json_number_value(json_object_get(config->source, key[i])) : 0;
		int is_told = 0;
		for (int k = 0; key[i] && k < i; k++)
			is_told |= key[k] && !strcmp(key[k], key[i]);
		if (rate > 0 && !is_told && used < bytes)
			used += (size_t)snprintf(text + used, bytes - used, "%s%s %g", used ? ", " : "", key[i], rate);
	}
}

void rh_session_idle_dropout(struct rh_session *session, int is_idle)
{
	const struct rh_config *config = session->config;
	float own = config->model_dropout ? session->model_config->dropout.embedding : 0, idle = (float)config->fluidpipe_idle_dropout;
	session->model->drop.embedding = is_idle && idle > own ? idle : own;
}

static int set_own(struct rh_session *session, const char *rates)
{
	const struct rh_model_config *config = session->model_config;
	struct rh_model_dropout *drop = &session->model->drop;
	if (!session->config->model_dropout) {
		if (*rates)
			rh_warn_once("config.json: %s: not applied (model_dropout: true applies it)", rates);
		return 0;
	}
	*drop = config->dropout;
	if (!rh_task_classifies(config->task))
		drop->head = 0;
	if (drop->embedding > 0 || drop->attention > 0 || drop->residual > 0 || drop->head > 0)
		return 0;
	return rh_fail(-EINVAL, "model_dropout: config.json of this model drops nothing; write the rates there, or remove the key");
}

static int set_noise(struct rh_session *session)
{
	session->model->drop.noise = (float)session->config->neftune_noise_alpha;
	if (session->config->neftune_noise_alpha > 0 && rh_model_patch(session->model_config))
		return rh_fail(-EINVAL, "neftune_noise_alpha: is for texts, and this model takes images; leave the key out");
	return 0;
}

int rh_session_set_dropout(struct rh_session *session)
{
	const struct rh_config *config = session->config;
	char rates[160];
	list_rates(session->model_config, rates, sizeof rates);
	int rc = set_own(session, rates);
	if (!rc)
		rc = set_noise(session);
	if (!rc && config->mode == RH_MODE_FLUIDPIPE && config->box == 1 && config->fluidpipe_idle_sampler)
		rh_session_idle_dropout(session, config->fluidpipe_idle_steps != 0 && rh_config_distils(config, 0));
	return rc;
}
