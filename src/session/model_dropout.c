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

int rh_session_set_dropout(struct rh_session *session)
{
	const struct rh_model_config *config = session->model_config;
	char rates[160];
	list_rates(config, rates, sizeof rates);
	if (!session->config->model_dropout) {
		if (*rates)
			rh_warn_once("config.json: %s: not applied (model_dropout: true applies it)", rates);
		return 0;
	}
	session->model->drop = config->dropout;
	if (!rh_task_classifies(config->task))
		session->model->drop.head = 0;
	const struct rh_model_dropout *drop = &session->model->drop;
	if (drop->embedding > 0 || drop->attention > 0 || drop->residual > 0 || drop->head > 0)
		return 0;
	return rh_fail(-EINVAL, "model_dropout: config.json of this model drops nothing; write the rates there, or remove the key");
}
